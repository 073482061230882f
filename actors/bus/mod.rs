//! The bus: people who write through adapters on NATS JetStream.
//!
//! ```text
//!  adapter ──► stream of messages ──► peers: one at a time ──► prompt (its key is the message's) ──► durable: ack
//!                                        └─ what can't be taken ──► stream of dead letters, then terminated
//!  run ──► its end and the outbox row, at once (the session's doing)
//!  outbox row ──► stream of answers ──► acknowledged: outbox row gone
//! ```
//!
//! Each arrow is taken once at least, and under an id by which the next one knows it: a message's id is the idempotency
//! key of its prompt, the run is the id of its answer. So whatever is killed between two of them, a message is run
//! once and answered once for whoever looks at ids.
//!
//! What messages mean and in which order they are taken is in [`clawmux_core::bus`]. Without `[bus]` none of this is
//! started.

#[cfg(feature = "nats")]
mod actor;
#[cfg(feature = "nats")]
mod claim;
#[cfg(feature = "nats")]
mod dead_letters;
#[cfg(feature = "nats")]
mod intake;
#[cfg(feature = "nats")]
mod outlet;
#[cfg(feature = "nats")]
mod unreadable;

use std::path::PathBuf;
use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::config;
use clawmux_core::daemon::operator::{DeadLetter, DeadLettersAsked};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::swappable::Swappable;

use crate::runtime::arbiters::Arbiters;
use crate::runtime::line::Begin;
use crate::runtime::observe::Observe;
use crate::runtime::say::{OutboxGrew, Say};
use crate::runtime::supervision::Guard;
use crate::session::AgentConfigs;
use crate::store::Store;

/// What the bus works with.
#[derive(Clone)]
pub struct Surroundings {
    /// Keeps what is yet to be said.
    pub store: Addr<Store>,
    /// Who answers whom.
    pub agent_configs: Arc<Swappable<AgentConfigs>>,
    /// The home, by which daemons are told apart.
    pub home: PathBuf,
    /// The threads of sessions.
    pub arbiters: Arbiters,
    /// The largest message.
    pub payload_bytes_max: usize,
}

/// What can be asked about dead letters.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<DeadLetter>, Error>")]
pub struct AskDeadLetters(pub DeadLettersAsked);

/// Nothing new is begun any more; answered when nothing is on its way, or after a while. The bus ends then.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct End;

/// That there is no bus to be asked about.
pub(crate) fn none() -> Error {
    ErrorCode::NotFound.error("there is no bus: gateway.toml has no [bus]")
}

/// The bus, for those who need not know how it is done.
#[derive(Clone)]
pub struct Bus {
    /// Says something.
    pub say: Recipient<Say>,
    /// Is told of what there is to say.
    pub outbox: Recipient<OutboxGrew>,
    /// Says how it is.
    pub observe: Recipient<Observe>,
    /// Knows the dead letters.
    pub dead_letters: Recipient<AskDeadLetters>,
    /// Ends it.
    pub end: Recipient<End>,
}

impl Bus {
    /// Starts it, on a thread of its own.
    ///
    /// # Errors
    /// `Unavailable` where this clawmux was built without it.
    #[cfg(feature = "nats")]
    pub fn start(
        config: config::Bus,
        around: Surroundings,
        sessions: Begin,
        guard: Guard,
    ) -> Result<Self, Error> {
        let arbiter = Arbiter::new();
        let make =
            move |_: &mut Context<actor::BusActor>| actor::BusActor::new(config, around, sessions, guard);
        let to = actor::BusActor::start_in_arbiter(&arbiter.handle(), make);
        Ok(Self {
            say: to.clone().recipient(),
            outbox: to.clone().recipient(),
            observe: to.clone().recipient(),
            dead_letters: to.clone().recipient(),
            end: to.recipient(),
        })
    }

    /// Refuses, since this clawmux was built without it.
    ///
    /// # Errors
    /// `Unavailable`.
    #[cfg(not(feature = "nats"))]
    pub fn start(_: config::Bus, _: Surroundings, _: Begin, _: Guard) -> Result<Self, Error> {
        let why = "this clawmux was built without NATS (cargo feature `nats`): [bus] has no effect";
        Err(ErrorCode::Unavailable.error(why))
    }
}
