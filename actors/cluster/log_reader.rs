//! Reads the log up to a record before a daemon runs, however often it has to be followed anew for that.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::NotFed;

/// How long the log is tried to be followed that can't be, without a record that comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The pause before it is followed again.
const PAUSE: Duration = Duration::from_millis(500);

/// Who reads the log, and how far he is.
pub(super) trait LogReader {
    /// The last record that he has read.
    fn position(&self) -> u64;

    /// Follows the log from there until he is done.
    ///
    /// # Errors
    /// Where it stops before.
    async fn follow(&mut self) -> Result<(), NotFed>;
}

/// Has somebody read the log until he is done. Where it stops, he goes on where he is, as long as anything comes.
///
/// # Errors
/// What more patience would not help against.
pub(super) async fn read(reader: &mut impl LogReader) -> Result<(), NotFed> {
    let mut since = Instant::now();
    loop {
        let before = reader.position();
        match reader.follow().await {
            Err(NotFed::Log(_)) if reader.position() > before => since = Instant::now(),
            Err(NotFed::Log(_)) if since.elapsed() < PATIENCE => {}
            done => return done,
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whose log stops after each record, and in the end for good.
    struct Stops {
        position: u64,
        last: u64,
        attempts: u64,
        end: Option<NotFed>,
    }

    impl LogReader for Stops {
        fn position(&self) -> u64 {
            self.position
        }

        async fn follow(&mut self) -> Result<(), NotFed> {
            self.attempts += 1;
            if self.position < self.last {
                self.position += 1;
                return Err(NotFed::Log("it stops".to_owned()));
            }
            match self.end.take() {
                Some(end) => Err(end),
                None => Ok(()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn he_goes_on_as_long_as_anything_comes() {
        let mut reader = Stops { position: 0, last: 100, attempts: 0, end: None };
        assert!(read(&mut reader).await.is_ok());
        assert_eq!((reader.position, reader.attempts), (100, 101));
        let mut reader =
            Stops { position: 0, last: 1, attempts: 0, end: Some(NotFed::Blob("gone".to_owned())) };
        assert!(matches!(read(&mut reader).await, Err(NotFed::Blob(_))));
        assert_eq!(reader.attempts, 2);
    }
}
