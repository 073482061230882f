//! Where a change goes to become durable: the seam between one daemon and a cluster of them.
//!
//! For one daemon that is the writer itself, whose commit is synced ([`Local`]). In a cluster it is a log that several
//! daemons read; the writer then applies what comes back from there, in the order of that log
//! ([`Replay`](super::Replay)).

use std::fmt::Debug;
use std::sync::mpsc::{SyncSender, TrySendError};

use clawmux_core::error::Error;

use super::writer::PendingChange;
use super::{closed, full};

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
