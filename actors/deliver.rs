//! The one road to a client.
//!
//! Replies and the events that follow them reach a connection through one mailbox, in order, as
//! [`Deliver`]. A session sends an event only against credit: a connection that follows a session
//! starts with [`CREDIT`] events and gives more with [`More`] as its socket takes them. Without
//! credit the connection's cursor waits, and what is further back is read from the log; so a full
//! mailbox is never control flow, and a slow client costs nothing but its place in the log.

use std::sync::Arc;

use actix::{Message, Recipient};
use clawmux_core::error::Error;
use clawmux_core::event::Published;
use clawmux_core::ids::{ConnectionId, Ticket};
use clawmux_core::reply::Reply;

/// How many events of one session may be under way to one connection.
pub const CREDIT: u32 = 16;

/// What reaches a connection.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum Deliver {
    /// The one answer to a request.
    Reply(Ticket, Result<Reply, Error>),
    /// An event of a session the connection follows. When its frames have left for the socket the
    /// connection gives one credit back to `from`.
    Event {
        /// The event.
        event: Arc<Published>,
        /// Whom to give credit.
        from: Recipient<More>,
    },
}

/// Room for more events of a session.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct More {
    /// The connection that has room.
    pub connection: ConnectionId,
    /// For so many events.
    pub events: u32,
}

/// A connection, as a session sees it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Which.
    pub connection: ConnectionId,
    /// Where it takes deliveries.
    pub to: Recipient<Deliver>,
}
