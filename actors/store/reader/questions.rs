//! The questions that wait for the reader, those of each owner in their order and owners in turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use clawmux_core::limits::fair::Fair;

use super::Reader;
use crate::store::figures::Figures;

/// A question, answered on the reader's thread; or told that there is no room for it.
pub(in crate::store) type Question = Box<dyn FnOnce(Turn<'_>) + Send>;

/// What becomes of a question.
pub(in crate::store) enum Turn<'a> {
    /// It is answered from this.
    Read(&'a mut Reader),
    /// Too many wait.
    Full,
    /// Nobody answers any more.
    Closed,
}

/// Whose question it is; none = the daemon's own.
pub(in crate::store) type Asker = Option<Arc<str>>;

/// They.
pub(in crate::store) struct Questions {
    state: Mutex<State>,
    /// Something has come, or nothing will any more.
    news: Condvar,
    figures: Arc<Figures>,
}

struct State {
    waiting: Fair<Asker, Question>,
    is_closed: bool,
}

impl Questions {
    /// With room for so many.
    pub(in crate::store) fn new(questions_max: usize, figures: Arc<Figures>) -> Arc<Self> {
        let state = State { waiting: Fair::new(questions_max), is_closed: false };
        Arc::new(Self { state: Mutex::new(state), news: Condvar::new(), figures })
    }

    /// Asks.
    pub(in crate::store) fn ask(&self, asker: Asker, question: Question) {
        let (refused, turn) = {
            let mut state = self.lock();
            if state.is_closed {
                (Some(question), Turn::Closed)
            } else {
                let refused = state.waiting.push(asker, question);
                self.count(&state);
                (refused, Turn::Full)
            }
        };
        self.news.notify_one();
        if let Some(refused) = refused {
            refused(turn);
        }
    }

    /// Nothing more is asked; what waits is answered.
    pub(in crate::store) fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    /// Answers them all, until there are none and will be none. Blocks.
    pub(in crate::store) fn answer(&self, mut reader: Reader) {
        while let Some(question) = self.next() {
            // Who asked is told by the end of its channel. A view is closed as it unwinds.
            let _ = catch_unwind(AssertUnwindSafe(|| question(Turn::Read(&mut reader))));
        }
    }

    fn next(&self) -> Option<Question> {
        let mut state = self.lock();
        loop {
            if let Some(question) = state.waiting.pop() {
                self.count(&state);
                return Some(question);
            }
            if state.is_closed {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn count(&self, state: &State) {
        self.figures.questions.store(state.waiting.len(), Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Questions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Questions").finish_non_exhaustive()
    }
}
