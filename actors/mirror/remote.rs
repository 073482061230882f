//! What the sessions of this daemon need of the others of its cluster, for those who need not know how it is done.

use std::fmt::Debug;
use std::sync::Arc;

use actix::{Message, Recipient, WeakRecipient};
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::peer::{Answered, Ask};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::conversation::event::Logged;
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::oneshot;

use super::PassedOn;
use crate::connection::rates::Spending;
use crate::files::ReadHere;
use crate::runtime::lead::Lead;
use crate::store::SessionChanged;

/// The other daemons.
pub trait Remote: Debug + Send + Sync {
    /// Where a session is written. That it is written here is said once nobody else can write it any more and the
    /// store has all that others wrote. While nobody owns it this waits, for ten seconds at most.
    fn locate(&self, session: SessionKey) -> BoxFuture<'static, Result<Place, Error>>;

    /// Asks a daemon.
    fn ask(&self, node: NodeName, ask: Ask) -> BoxFuture<'static, Result<Answered, Unanswered>>;

    /// What is said of a session from now on, as its owner says it: text, some of which may be lost or come twice.
    ///
    /// Errors: why it can't be heard.
    fn hear(
        &self,
        session: SessionKey,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Vec<Logged>>, String>>;

    /// Waits until the store has the log up to here, or for a few seconds.
    fn applied(&self, position: u64) -> BoxFuture<'static, ()>;
}

/// Where a session is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// By this daemon.
    Here,
    /// By that one, as far as is known.
    There(NodeName),
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It was not sent, or there was nobody to take it.
    NotAsked(String),
    /// Nobody knows whether it was taken.
    Unknown(String),
}

/// From here on sessions are told what becomes of slots, first of those that are held, and other daemons' orders come;
/// and who does what one daemon does for all is told whether this is the one.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Attend {
    /// Who has the sessions.
    pub sessions: Recipient<SlotNews>,
    /// Who takes orders of other daemons' clients.
    pub orders: Recipient<PassedOn>,
    /// Who has the bytes of files.
    pub files: Recipient<ReadHere>,
    /// What principals spend here.
    pub spending: Arc<dyn Spending>,
    /// Who leads.
    pub leader: WeakRecipient<Lead>,
}

/// What becomes of slots, and of sessions that others write.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum SlotNews {
    /// It is this daemon's: who has something unfinished in it goes on here.
    Gained(Slot),
    /// Its sessions are to end at the next step; dropped once none is awake.
    Vacate(Slot, oneshot::Sender<()>),
    /// It is another's: its sessions end here.
    Lost(Slot),
    /// It is that daemon's now.
    Moved(Slot, NodeName),
    /// The store has something that another daemon wrote in a session.
    Changed(SessionChanged),
    /// The store may have something of which nothing was said.
    Missed,
}
