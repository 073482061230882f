//! The threads that touch files: disks may take their time, and an arbiter has none to give.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use clawmux_core::error::{Error, ErrorCode};
use tokio::sync::oneshot;

/// How many threads there are: a disk that is asked more at once is not faster.
const THREADS: usize = 4;

/// How many jobs may wait for one.
const WAITING_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads, started when first needed, which end when the last of these is dropped and they are through
/// with what waits.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    jobs: SyncSender<Job>,
    waiting: Arc<Waiting>,
}

/// What waits for a thread.
#[derive(Debug)]
struct Waiting {
    jobs: Mutex<Receiver<Job>>,
    /// Jobs that are not done.
    undone: AtomicUsize,
    threads: Mutex<usize>,
}

impl Pool {
    pub(super) fn new() -> Self {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        let (undone, threads) = (AtomicUsize::new(0), Mutex::new(0));
        Self { jobs, waiting: Arc::new(Waiting { jobs: Mutex::new(waiting), undone, threads }) }
    }

    /// Has a job done. None is answered where it panicked.
    ///
    /// # Errors
    /// `Unavailable` where too many wait, or the system has no thread left.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Error> {
        let (done, answer) = oneshot::channel();
        let job = Box::new(move || {
            // Who does not wait any more has no use for it.
            let _ = done.send(job());
        });
        self.start_threads(self.waiting.undone.fetch_add(1, Relaxed) + 1)?;
        self.jobs.try_send(job).map(|()| answer).map_err(|error| {
            self.waiting.undone.fetch_sub(1, Relaxed);
            match error {
                TrySendError::Full(_) => {
                    ErrorCode::Unavailable.error("too much waits for the disk: try again")
                }
                TrySendError::Disconnected(_) => ErrorCode::Internal.error("the threads for files are gone"),
            }
        })
    }

    /// Starts threads for so many jobs.
    fn start_threads(&self, jobs: usize) -> Result<(), Error> {
        let mut threads = self.waiting.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while *threads < jobs.min(THREADS) {
            let waiting = self.waiting.clone();
            let started = std::thread::Builder::new()
                .name(format!("clawmux-file-{}", *threads + 1))
                .spawn(move || work(&waiting));
            match started {
                Ok(_) => *threads += 1,
                // Those there are do it.
                Err(_) if *threads > 0 => break,
                Err(e) => {
                    self.waiting.undone.fetch_sub(1, Relaxed);
                    return Err(
                        ErrorCode::Unavailable.error(format!("can't start the thread for files: {e}"))
                    );
                }
            }
        }
        Ok(())
    }
}

fn work(waiting: &Waiting) {
    loop {
        // Whoever waits here holds the lock; the others wait for it.
        let next = waiting.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a job on a file panicked");
        }
        waiting.undone.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn a_job_that_panics_takes_nothing_with_it() {
        let pool = Pool::new();
        for _ in 0..2 * THREADS {
            pool.run(|| panic!("as asked")).unwrap().await.unwrap_err();
        }
        assert_eq!(pool.run(|| 7).unwrap().await, Ok(7));
    }
}
