//! What a session tells whoever supervises it.

use std::fmt;

use actix::prelude::*;
use clawmux_core::agents::subagent::SubAgentCommand;
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::memory::MemoryCommand;
use clawmux_core::principal::Principal;

use super::Subscribers;
use crate::runtime::deliver::Asker;
use crate::runtime::dispatch::Request;

/// Who supervises a session.
#[derive(Clone)]
pub struct Supervisor {
    /// Is told how the session fares.
    pub reports: Recipient<Report>,
    /// Takes what is asked of any session.
    pub requests: Recipient<Request<SessionCommand>>,
    /// Takes what is asked of agents that work for sessions.
    pub sub_agents: Recipient<Request<SubAgentCommand>>,
    /// Takes what is asked of memories.
    pub memory: Recipient<Request<MemoryCommand>>,
}

impl<A> From<Addr<A>> for Supervisor
where
    A: Actor<Context = Context<A>>
        + Handler<Report>
        + Handler<Request<SessionCommand>>
        + Handler<Request<SubAgentCommand>>
        + Handler<Request<MemoryCommand>>,
{
    fn from(actor: Addr<A>) -> Self {
        Self {
            reports: actor.clone().recipient(),
            requests: actor.clone().recipient(),
            sub_agents: actor.clone().recipient(),
            memory: actor.recipient(),
        }
    }
}

/// What a session tells its supervisor.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum Report {
    /// It ended.
    Down(Down),
    /// It would sleep.
    Idle {
        /// The session.
        key: SessionKey,
        /// How many messages of its supervisor it has taken.
        received: u64,
    },
    /// A prompt with this idempotency key is in the log, or will not be.
    KeySettled {
        /// Whose prompt it is.
        owner: Owner,
        /// Its idempotency key.
        key: String,
    },
    /// What was prompted here is another session's, or may be.
    KeyTaken(KeyTaken),
}

/// A prompt whose idempotency key stands for a run that another daemon of the cluster wrote: who asked is answered with
/// that run, wherever it is.
#[derive(Debug)]
pub struct KeyTaken {
    /// Who waits for the answer.
    pub asker: Asker,
    /// On whose behalf.
    pub principal: Principal,
    /// Whose prompt it is, and its idempotency key.
    pub key: (Owner, String),
    /// Whether the run is to be followed.
    pub follow: bool,
}

/// What is left of a session that ended.
#[derive(Debug)]
pub struct Down {
    /// The session.
    pub key: SessionKey,
    /// Who followed it.
    pub subscribers: Subscribers,
    /// Whether a handler panicked.
    pub panicked: bool,
    /// Why it ended.
    pub ending: Ending,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Something failed: it is begun anew.
    Fell,
    /// What it decided is void, for the log has something else: it is begun anew, which is no failure.
    Outdone,
    /// It was told to, and nothing is left to do.
    Done,
    /// It is for another to go on with, here or in another daemon of the cluster.
    Moved,
}

/// An idempotency key of a prompt that is on its way: while there is one, the key stands for the
/// session it was sent to. Dropped when the prompt is written, refused or lost.
pub struct HeldKey {
    /// Whose prompt it is, and its idempotency key.
    pub key: (Owner, String),
    /// Who is told when it is dropped.
    pub reports: Recipient<Report>,
}

impl HeldKey {
    /// The key stands for a run that another daemon wrote: whoever asked is answered with that.
    pub(crate) fn taken(self, (asker, principal): (Asker, Principal), follow: bool) {
        let (key, reports) = (self.key.clone(), self.reports.clone());
        // It is held no longer when the run is looked for.
        drop(self);
        // Where the supervisor is too busy, the asker is told so by being dropped.
        let _ = reports.try_send(Report::KeyTaken(KeyTaken { asker, principal, key, follow }));
    }
}

impl fmt::Debug for HeldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldKey")
    }
}

impl Drop for HeldKey {
    #[expect(clippy::disallowed_methods, reason = "a lost one would keep the key for ever; one per prompt")]
    fn drop(&mut self) {
        let (owner, key) = std::mem::replace(&mut self.key, (Owner::Admins, String::new()));
        self.reports.do_send(Report::KeySettled { owner, key });
    }
}
