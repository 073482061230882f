//! The arbiters that serve connections.
//!
//! A session lives on the arbiter of the connection that woke it, so that a token need not change
//! threads on its way to it. One that goes on after a restart is woken by nobody: it gets one of
//! these in turn, so that all cores share them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Arbiter, ArbiterHandle};
use futures::future::join_all;
use tokio::sync::oneshot;

use crate::runtime::meters::Meters;

/// They enter themselves as they start.
#[derive(Clone, Debug, Default)]
pub struct Arbiters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Mutex<Vec<ArbiterHandle>>,
    turns: AtomicUsize,
    meters: Meters,
}

impl Arbiters {
    /// Of those whose lag is measured.
    pub fn new(meters: Meters) -> Self {
        Self(Arc::new(Inner { meters, ..Inner::default() }))
    }

    /// Enters the arbiter this is called on.
    pub fn enter(&self) {
        if let Some(arbiter) = Arbiter::try_current() {
            let mut all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(arbiter);
            self.0.meters.watch_arbiter(format!("connections-{}", all.len()));
        }
    }

    /// The next in turn; the one this is called on while there is none.
    pub fn next(&self) -> ArbiterHandle {
        let all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.0.turns.fetch_add(1, Relaxed);
        all.get(turn % all.len().max(1)).cloned().unwrap_or_else(Arbiter::current)
    }

    /// How many of them do not come to anything new within this time: something blocks them. Those
    /// that are over are forgotten.
    pub async fn blocked(&self, within: Duration) -> usize {
        let mut answers = Vec::new();
        {
            let mut all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|arbiter| {
                let (done, answer) = oneshot::channel();
                let goes_on = arbiter.spawn_fn(move || {
                    let _ = done.send(());
                });
                if goes_on {
                    answers.push(tokio::time::timeout(within, answer));
                }
                goes_on
            });
        }
        // One that ended before it got there answers with the end of its channel.
        join_all(answers).await.into_iter().filter(Result::is_err).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
