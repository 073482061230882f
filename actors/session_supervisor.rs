//! Where requests of connections go. For now only the messages that connections send.

use actix::{ArbiterHandle, Message};
use clawmux_core::auth::Principal;
use clawmux_core::command::Command;
use clawmux_core::ids::{ConnectionId, Ticket};

use crate::deliver::Client;

/// A request of a connection: answered by exactly one `Deliver::Reply` under its ticket.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Dispatch {
    /// Which request.
    pub ticket: Ticket,
    /// Who asks.
    pub principal: Principal,
    /// For what.
    pub command: Command,
    /// Where the answer goes.
    pub client: Client,
    /// Where the connection runs.
    pub arbiter: ArbiterHandle,
}

/// A connection is gone: it follows nothing any more.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Gone {
    /// Which.
    pub connection: ConnectionId,
}
