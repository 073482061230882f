//! The way from a session to one connection that follows it.

use std::sync::Arc;

use actix::Recipient;
use actix::dev::SendError;
use clawmux_core::conversation::event::Published;
use clawmux_core::conversation::follow::{self, Followers, Sent};
use clawmux_core::ids::{Seq, Ticket};

use crate::runtime::deliver::{Client, Deliver, More, cost};

/// All that follow one session.
pub type Subscribers = Followers<ConnectionSink>;

/// Sends to a connection within its window.
#[derive(Debug)]
pub struct ConnectionSink {
    client: Client,
    /// Who is told when the window has room again.
    from: Recipient<More>,
}

impl ConnectionSink {
    /// From the session at `from`.
    pub(super) fn new(client: Client, from: Recipient<More>) -> Self {
        Self { client, from }
    }

    /// The session is at `from` now.
    pub(crate) fn starts_at(&mut self, from: Recipient<More>) {
        self.from = from;
    }
}

impl follow::Sink for ConnectionSink {
    fn send(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>) -> Sent {
        let cost = cost(event);
        if !self.client.window.take(cost, &self.from) {
            return Sent::Full;
        }
        match self.client.to.try_send(Deliver::Event { ticket, first, event: event.clone() }) {
            Ok(()) => Sent::Taken,
            Err(SendError::Full(_)) => {
                self.client.window.untake(cost, &self.from);
                Sent::Full
            }
            Err(SendError::Closed(_)) => Sent::Closed,
        }
    }

    fn lag(&mut self) {
        self.client.window.lag();
    }

    fn is_open(&self) -> bool {
        self.client.to.connected()
    }

    fn has_room(&mut self) -> bool {
        self.client.window.has_room_for(&self.from)
    }
}
