//! The threads guests run on.
//!
//! A bounded number of them with a bounded queue, started when first needed. Not tokio's blocking
//! pool: hundreds of spinning guests there would be hundreds of threads, and files and name
//! look-ups would wait behind them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A handle to the threads; they end when the last one is dropped and their job is done.
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

struct Owner(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
}

struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Threads whose guest waits for its host.
    waiting: usize,
    closed: bool,
}

/// How busy a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Threads started.
    pub threads: usize,
    /// Those at work.
    pub busy: usize,
    /// Jobs that wait for one.
    pub queued: usize,
}

impl Pool {
    /// The most jobs that may wait.
    pub const QUEUE_MAX: usize = 1024;

    /// So many threads there may be besides, while as many wait for somebody else.
    pub const WAITING_MAX: usize = 64;

    /// With at most `threads` threads (at least one).
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Owner(Arc::new(Shared {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                threads: 0,
                idle: 0,
                waiting: 0,
                closed: false,
            }),
            work: Condvar::new(),
            threads_max: threads.max(1),
        }))))
    }

    /// Two threads a core, so that a spinning guest on each leaves room for others; at least 4, at
    /// most 64.
    pub fn threads_for_this_machine() -> usize {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        (cores * 2).clamp(4, 64)
    }

    /// The most threads.
    pub fn threads_max(&self) -> usize {
        self.0.0.threads_max
    }

    /// Runs `job` on a thread of the pool, in the order of submission. A panic in it ends the job
    /// only.
    ///
    /// # Errors
    /// [`Full`] where [`Self::QUEUE_MAX`] jobs wait already, or where no thread could be started.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Full> {
        let shared = &self.0.0;
        let mut state = shared.lock();
        if state.queue.len() >= Self::QUEUE_MAX {
            return Err(Full);
        }
        state.queue.push_back(Box::new(job));
        shared.start_threads(&mut state);
        if state.threads == 0 {
            state.queue.pop_back();
            return Err(Full);
        }
        drop(state);
        shared.work.notify_one();
        Ok(())
    }

    /// Does what waits for somebody else, on a thread of the pool: meanwhile another thread may run a job, of
    /// [`Self::WAITING_MAX`] more at most.
    pub fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let shared = &self.0.0;
        let mut state = shared.lock();
        state.waiting += 1;
        shared.start_threads(&mut state);
        drop(state);
        let waited = wait();
        shared.lock().waiting -= 1;
        waited
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let state = self.0.0.lock();
        Load { threads: state.threads, busy: state.threads - state.idle, queued: state.queue.len() }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.0.work.notify_all();
    }
}

impl Shared {
    // A poisoned lock is fine: jobs run outside it, and the state is whole between statements.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread where jobs wait that nobody is there for.
    fn start_threads(self: &Arc<Self>, state: &mut State) {
        if state.queue.len() <= state.idle || state.threads >= self.threads_max(state) {
            return;
        }
        let for_thread = Arc::clone(self);
        let name = format!("sandbox-{}", state.threads);
        match std::thread::Builder::new().name(name).spawn(move || for_thread.work()) {
            Ok(_) => state.threads += 1,
            Err(error) => tracing::warn!(%error, threads = state.threads, "no more threads for the sandbox"),
        }
    }

    /// The most threads as things are.
    fn threads_max(&self, state: &State) -> usize {
        self.threads_max + state.waiting.min(Pool::WAITING_MAX)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            // Who waited is back: one thread is too many.
            if state.closed || state.threads > self.threads_max(&state) {
                state.threads -= 1;
                return;
            }
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a job of the sandbox panicked");
                }
                state = self.lock();
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_panicking_job_takes_nothing_with_it() {
        let pool = Pool::new(1);
        let (sender, done) = mpsc::channel();
        pool.submit(|| panic!("in a job")).unwrap();
        pool.submit(move || sender.send(()).unwrap()).unwrap();
        done.recv().unwrap();
        assert_eq!(pool.load().threads, 1);
    }

    #[test]
    fn threads_and_queue_are_bounded() {
        let pool = Pool::new(2);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (sender, started) = mpsc::channel();
        for _ in 0..2 {
            let (gate, sender) = (Arc::clone(&gate), sender.clone());
            pool.submit(move || {
                sender.send(()).unwrap();
                let _ = gate.lock().unwrap().recv();
            })
            .unwrap();
        }
        started.recv().unwrap();
        started.recv().unwrap();
        for _ in 0..Pool::QUEUE_MAX {
            pool.submit(|| ()).unwrap();
        }
        assert_eq!(pool.submit(|| ()), Err(Full));
        assert_eq!(pool.load(), Load { threads: 2, busy: 2, queued: Pool::QUEUE_MAX });
        drop(release);
    }

    #[test]
    fn threads_end_with_the_last_handle() {
        let (sender, ended) = mpsc::channel::<()>();
        let pool = Pool::new(1);
        let kept = sender.clone();
        let (started_sender, started) = mpsc::channel();
        pool.submit(move || {
            thread_local!(static HELD: std::cell::RefCell<Option<mpsc::Sender<()>>> = const { std::cell::RefCell::new(None) });
            HELD.with(|held| *held.borrow_mut() = Some(kept));
            started_sender.send(()).unwrap();
        })
        .unwrap();
        started.recv().unwrap();
        drop(sender);
        drop(pool);
        assert!(ended.recv().is_err(), "the thread's own sender is dropped when it ends");
    }
}
