//! Lines of a bounded length, read from a socket.

use std::io;

use tokio::io::AsyncBufReadExt;

use super::LINE_BYTES_MAX;

/// What was read.
pub(super) enum Line {
    Complete,
    TooLong,
    /// The peer closed; a half line without its end is no request.
    Ended,
}

/// Reads up to a line end, which is not kept.
pub(super) async fn read_line(
    read: &mut (impl AsyncBufReadExt + Unpin),
    line: &mut Vec<u8>,
) -> io::Result<Line> {
    loop {
        let chunk = read.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(Line::Ended);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(chunk.len());
        if line.len() + taken > LINE_BYTES_MAX {
            return Ok(Line::TooLong);
        }
        line.extend_from_slice(&chunk[..taken]);
        read.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Line::Complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::BufReader;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Lines are found whatever pieces they come in.
        #[test]
        fn lines_survive_every_split(lines in proptest::collection::vec("[^\n]{0,40}", 0..6), capacity in 1_usize..16) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut read = BufReader::with_capacity(capacity, text.as_bytes());
            futures::executor::block_on(async {
                for expected in &lines {
                    let mut line = Vec::new();
                    assert!(matches!(read_line(&mut read, &mut line).await.unwrap(), Line::Complete));
                    assert_eq!(&line, expected.as_bytes());
                }
                assert!(matches!(read_line(&mut read, &mut Vec::new()).await.unwrap(), Line::Ended));
            });
        }
    }
}
