//! The threads that touch files: disks may take their time, and an arbiter has none to give.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use clawmux_core::error::{Error, ErrorCode};
use tokio::sync::oneshot;

/// How many threads there are: a disk that is asked more at once is not faster.
const THREADS: usize = 4;

/// How many jobs may wait for one.
const WAITING_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads, which end when the last of these is dropped and they are through with what waits.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    jobs: SyncSender<Job>,
}

impl Pool {
    /// Starts them.
    ///
    /// # Errors
    /// `Unavailable` where the system has no thread left.
    pub(super) fn new() -> Result<Self, Error> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 1..=THREADS {
            let waiting = waiting.clone();
            std::thread::Builder::new()
                .name(format!("clawmux-file-{number}"))
                .spawn(move || work(&waiting))
                .map_err(|e| {
                    ErrorCode::Unavailable.error(format!("can't start the thread for files: {e}"))
                })?;
        }
        Ok(Self { jobs })
    }

    /// Has a job done. None is answered where it panicked.
    ///
    /// # Errors
    /// `Unavailable` where too many wait.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Error> {
        let (done, answer) = oneshot::channel();
        let job = Box::new(move || {
            // Who does not wait any more has no use for it.
            let _ = done.send(job());
        });
        match self.jobs.try_send(job) {
            Ok(()) => Ok(answer),
            Err(TrySendError::Full(_)) => {
                Err(ErrorCode::Unavailable.error("too much waits for the disk: try again"))
            }
            Err(TrySendError::Disconnected(_)) => {
                Err(ErrorCode::Internal.error("the threads for files are gone"))
            }
        }
    }
}

fn work(waiting: &Mutex<Receiver<Job>>) {
    loop {
        // Whoever waits here holds the lock; the others wait for it.
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a job on a file panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn a_job_that_panics_takes_nothing_with_it() {
        let pool = Pool::new().unwrap();
        for _ in 0..2 * THREADS {
            pool.run(|| panic!("as asked")).unwrap().await.unwrap_err();
        }
        assert_eq!(pool.run(|| 7).unwrap().await, Ok(7));
    }
}
