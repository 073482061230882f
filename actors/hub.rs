//! Who is connected. For now only the messages between it and connections.

use std::sync::Arc;

use actix::{Message, Recipient};
use clawmux_core::ids::ConnectionId;

/// A connection was let in.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Join {
    /// Which.
    pub connection: ConnectionId,
    /// As whom.
    pub principal: Arc<str>,
    /// Where it is told what concerns it.
    pub notices: Recipient<Notice>,
}

/// A connection left.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Leave {
    /// Which.
    pub connection: ConnectionId,
}

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub enum Notice {
    /// The daemon is stopping.
    Draining,
    /// Its credential was revoked.
    Revoked,
}
