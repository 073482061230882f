//! Where a change goes to become durable: the seam between one daemon and a cluster of them.
//!
//! For one daemon that is the writer itself, whose commit is synced ([`Local`]). In a cluster it is a log that several
//! daemons read ([`Clustered`]); the writer then applies what comes back from there, in the order of that log
//! ([`Replay`](super::Replay)).

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, TrySendError};

use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::{Subject, Write};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError as NotSent;
use tokio::sync::oneshot;

use super::change::MadeBy;
use super::figures::Figures;
use super::writer::PendingChange;
use super::{Append, closed, full};

/// Makes changes durable and has them applied.
pub(super) trait Journal: Debug + Send + Sync {
    /// Takes a change over, without waiting. Changes of one session take effect in the order in which they are given.
    ///
    /// # Errors
    /// `Unavailable` where too many wait, or where it has ended; the change is then not made.
    fn take(&self, pending: PendingChange) -> Result<(), Error>;
}

/// What one daemon has: the writer's queue.
#[derive(Debug)]
pub(super) struct Local(pub(super) SyncSender<PendingChange>);

impl Journal for Local {
    fn take(&self, pending: PendingChange) -> Result<(), Error> {
        self.0.try_send(pending).map_err(|error| match error {
            TrySendError::Full(_) => full("writes"),
            TrySendError::Disconnected(_) => closed(),
        })
    }
}

/// What a daemon of a cluster has: what concerns it alone goes to its writer, all else to the cluster.
#[derive(Debug)]
pub(super) struct Clustered {
    pub(super) here: Local,
    pub(super) cluster: Sender<Submission>,
    pub(super) figures: Arc<Figures>,
}

/// A change that all daemons make, and who waits for it.
#[derive(Debug)]
pub struct Submission {
    /// The change.
    pub change: Submitted,
    /// Is told how it went.
    pub done: oneshot::Sender<Result<(), Error>>,
    /// Counts it among what waits, until this is dropped.
    pub counted: Counted,
}

/// A change that all daemons make.
#[derive(Debug)]
pub enum Submitted {
    /// Events of a session. Their text waits for the end of its step.
    Append(Append),
    /// Any other.
    Write(Write),
}

impl Submitted {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Append(append) => Subject::Session(SessionKey::clone(&append.session)),
            Self::Write(write) => write.subject(),
        }
    }
}

/// Counts a change among what waits, as long as it does.
#[derive(Debug)]
pub struct Counted {
    figures: Arc<Figures>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.figures.queue.fetch_sub(1, Relaxed);
        self.figures.queue_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Journal for Clustered {
    fn take(&self, pending: PendingChange) -> Result<(), Error> {
        let change = match pending.change.made_by() {
            MadeBy::ThisDaemon => return self.here.take(pending),
            MadeBy::AllButText(append) => Submitted::Append(append.clone()),
            MadeBy::All(write) => Submitted::Write(write),
        };
        let room = self.cluster.try_reserve().map_err(|error| match error {
            NotSent::Full(()) => full("writes"),
            NotSent::Closed(()) => closed(),
        })?;
        let PendingChange { bytes, done, .. } = pending;
        let counted = Counted { figures: Arc::clone(&self.figures), bytes };
        room.send(Submission { change, done, counted });
        Ok(())
    }
}
