//! The one road to a client.
//!
//! Replies and the events that follow them reach a connection through one mailbox, in order, as
//! [`Deliver`]. A session sends an event only against credit: a connection that follows a session
//! starts with [`CREDIT`] events and gives more with [`More`] as its socket takes them. Without
//! credit the connection's cursor waits, and what is further back is read from the log; so a full
//! mailbox is never control flow, and a slow client costs nothing but its place in the log.

use std::sync::Arc;

use actix::{Message, Recipient};
use clawmux_core::error::{Error, ErrorCode};
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

/// Somebody who waits for the answer to a request.
///
/// Every request gets exactly one answer: one that is dropped unanswered (an actor ended with
/// requests in its mailbox, a task was cut off) answers that it was lost.
#[derive(Debug)]
pub struct Asker {
    client: Client,
    ticket: Option<Ticket>,
}

impl Asker {
    /// The client that asked, under this ticket.
    pub fn new(client: Client, ticket: Ticket) -> Self {
        Self { client, ticket: Some(ticket) }
    }

    /// Who asks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Answers. A connection that is gone misses it.
    pub fn reply(mut self, reply: Result<Reply, Error>) {
        self.answer(reply);
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "one reply per ticket, and a connection bounds its open tickets; a lost reply would be worse"
    )]
    fn answer(&mut self, reply: Result<Reply, Error>) {
        if let Some(ticket) = self.ticket.take() {
            self.client.to.do_send(Deliver::Reply(ticket, reply));
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.answer(Err(ErrorCode::Unavailable.error("the request was lost: try again")));
        }
    }
}
