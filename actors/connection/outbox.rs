//! The credit a connection owes to the sessions it follows.
//!
//! What is written waits in the frame encoder until the socket asks for it, and a connection whose
//! socket does not ask is not even polled: so there is no queue here, only the count of what must
//! be given back. An event's credit goes back once the socket has asked again after its frames
//! were taken, all of one session in one message; a session never has more than
//! [`CREDIT`](crate::deliver::CREDIT) events under way to a peer that does not read.

use actix::Recipient;
use clawmux_core::ids::ConnectionId;

use crate::deliver::More;

/// Credit to be given back.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    owed: Vec<Owed>,
    full: bool,
}

#[derive(Debug)]
struct Owed {
    to: Recipient<More>,
    events: u32,
    /// How often the socket had asked when the last of them was written.
    at: u64,
}

impl Outbox {
    /// One event of `to` was written while the socket had asked `polls` times.
    pub(super) fn owe(&mut self, to: Recipient<More>, polls: u64) {
        match self.owed.iter_mut().find(|owed| owed.at == polls && owed.to == to) {
            Some(owed) => owed.events += 1,
            None => self.owed.push(Owed { to, events: 1, at: polls }),
        }
    }

    /// Gives back what was written before the socket asked the last time.
    pub(super) fn repay(&mut self, connection: ConnectionId, polls: u64) {
        self.owed.retain(|owed| {
            if owed.at < polls {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "credit that is lost would stop the stream; there are never more of these than credit given"
                )]
                owed.to.do_send(More { connection, events: owed.events });
            }
            owed.at >= polls
        });
    }

    /// Notes that more is written than should be.
    pub(super) fn filled(&mut self) {
        self.full = true;
    }

    /// Whether there is room again after it was [`filled`](Self::filled); says so once.
    pub(super) fn drained(&mut self, has_room: bool) -> bool {
        has_room && std::mem::take(&mut self.full)
    }
}
