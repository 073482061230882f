//! What models say and think in many sessions between two commits, as one value.
//!
//! A page is written once and read only after a crash, so it is plain: a version byte, then for
//! every piece six numbers in LEB128 and the text. Version 1, whose pages are all text, has no
//! number for what a piece is of. It can't be amended; a page is let go when
//! none of its pieces is needed any more.

use super::unreadable;
use crate::conversation::event::Streamed;
use crate::error::Error;
use crate::ids::Seq;
use crate::time::Timestamp;

const VERSION: u8 = 2;

/// The version of pages that hold only text.
const VERSION_TEXT: u8 = 1;

/// One piece of text on a page. Session and run go by the numbers the store gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The session's number.
    pub session: u64,
    /// The run's number.
    pub run: u64,
    /// Its place in the session's log.
    pub seq: Seq,
    /// When the event was written.
    pub at: Timestamp,
    /// What it is a piece of.
    pub of: Streamed,
    /// The text of the event.
    pub text: &'a str,
}

/// Writes a piece to the end of `page`, which starts out empty.
pub fn write(page: &mut Vec<u8>, piece: Piece<'_>) {
    if page.is_empty() {
        page.push(VERSION);
    }
    let (at, length) = (piece.at.as_millis(), piece.text.len() as u64);
    let of = match piece.of {
        Streamed::Text => 0,
        Streamed::Thought => 1,
    };
    for number in [piece.session, piece.run, piece.seq.0, at, of, length] {
        put(page, number);
    }
    page.extend_from_slice(piece.text.as_bytes());
}

/// The pieces of a page, in the order they were written.
///
/// # Errors
/// `Internal` where the page is of a newer version or damaged.
pub fn read(page: &[u8]) -> Result<Vec<Piece<'_>>, Error> {
    let damaged = || unreadable("page of text", "it is damaged");
    let Some((version, mut rest)) = page.split_first() else { return Ok(Vec::new()) };
    if ![VERSION, VERSION_TEXT].contains(version) {
        return Err(unreadable("page of text", format_args!("its version is {version}, beyond {VERSION}")));
    }
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let mut number = || take(&mut rest).ok_or_else(damaged);
        let (session, run, seq, at) = (number()?, number()?, number()?, number()?);
        let of = match if *version == VERSION_TEXT { 0 } else { number()? } {
            0 => Streamed::Text,
            1 => Streamed::Thought,
            _ => return Err(damaged()),
        };
        let length = usize::try_from(number()?).map_err(|_| damaged())?;
        let (text, after) = rest.split_at_checked(length).ok_or_else(damaged)?;
        rest = after;
        let text = std::str::from_utf8(text).map_err(|_| damaged())?;
        pieces.push(Piece { session, run, seq: Seq(seq), at: Timestamp::from_millis(at), of, text });
    }
    Ok(pieces)
}

fn put(page: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        page.push(number as u8 | 0x80);
        number >>= 7;
    }
    page.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits.leading_zeros() < shift {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_newer_version_is_refused() {
        assert!(read(&[3]).unwrap_err().message.contains("version is 3"));
        assert_eq!(read(&[]).unwrap(), []);
    }

    #[test]
    fn a_page_of_the_version_before_is_all_text() {
        // Session 3, run 300, number 7, time 5, two bytes of text; then another piece.
        let page = [1, 3, 0xac, 2, 7, 5, 2, b'h', b'i', 3, 1, 8, 6, 0];
        let piece = |run, seq, at, text| {
            let (seq, at) = (Seq(seq), Timestamp::from_millis(at));
            Piece { session: 3, run, seq, at, of: Streamed::Text, text }
        };
        assert_eq!(read(&page).unwrap(), [piece(300, 7, 5, "hi"), piece(1, 8, 6, "")]);
    }

    proptest! {
        #[test]
        fn every_page_reads_back(pieces in proptest::collection::vec((any::<[u64; 4]>(), any::<bool>(), any::<String>()), 0..20)) {
            let pieces: Vec<Piece<'_>> = pieces
                .iter()
                .map(|([session, run, seq, at], is_text, text)| Piece {
                    session: *session, run: *run, seq: Seq(*seq), at: Timestamp::from_millis(*at),
                    of: if *is_text { Streamed::Text } else { Streamed::Thought }, text,
                })
                .collect();
            let mut page = Vec::new();
            for piece in &pieces {
                write(&mut page, *piece);
            }
            prop_assert_eq!(read(&page).unwrap(), pieces);
        }

        #[test]
        fn no_bytes_panic(mut page in any::<Vec<u8>>()) {
            let _ = read(&page);
            for version in [VERSION_TEXT, VERSION] {
                page.insert(0, version);
                let _ = read(&page);
            }
        }
    }
}
