//! The one road to a client.
//!
//! Replies and the events that follow them reach a connection through one mailbox, in order, as
//! [`Deliver`]. How many bytes of events may be under way to one connection is bounded by its
//! [`Window`], which all sessions it follows share: a session takes room from it for every event,
//! and the connection gives it back as its socket takes them. Where there is no room the session
//! waits until it is told [`More`], and what is further back is read from the log; so a full mailbox
//! is never control flow, and a slow client costs nothing but its place in the log.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use actix::{ArbiterHandle, Message, Recipient};
use clawmux_core::conversation::event::Published;
use clawmux_core::daemon::operator::Progress;
use clawmux_core::dialect::Fault;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, Seq, Ticket};
use clawmux_core::request::reply::Reply;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::node::Invocation;

/// How many bytes of events may be under way to one connection. An event may begin while there are
/// fewer, whatever its size. Escaped as JSON they may be six times as many, which with one event of
/// what a read from the log brings still is within the 512 KB that a stuck client may cost.
pub const WINDOW_BYTES: usize = 32 * 1024;

/// What every event counts besides its own bytes: the envelope, and its place in the mailbox.
const ENVELOPE_BYTES: usize = 256;

/// What reaches a connection.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum Deliver {
    /// The one answer to a request.
    Reply(Ticket, Result<Reply, Error>),
    /// How far a request is that takes long; may be lost.
    Progress(Ticket, Progress),
    /// There is something in the connection's [`Inbox`](crate::hub::inbox::Inbox), where there was
    /// nothing.
    Announced,
    /// The client is a node and is to do something; few are under way to one at a time.
    Invoke(Arc<Invocation>),
    /// An event that the request with this ticket follows. When its frames have left for the socket
    /// the connection gives its [`cost`] back to its window.
    Event {
        /// The request.
        ticket: Ticket,
        /// The first number that is covered by it.
        first: Seq,
        /// The event.
        event: Arc<Published>,
    },
}

/// Room for more events, which the session had asked for.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct More {
    /// The connection that has room.
    pub connection: ConnectionId,
}

/// What an event takes of a window, in bytes.
pub fn cost(event: &Published) -> usize {
    event.bytes() + ENVELOPE_BYTES
}

/// What bounds the events under way to one connection. Shared by the connection and the sessions it
/// follows; belongs to the socket and not to the actor, so that it can be looked at while that
/// stands still.
#[derive(Debug, Default)]
pub struct Window {
    taken: AtomicUsize,
    /// Whether anybody waits: looked at on every event, where the list is not.
    is_wanted: AtomicBool,
    waiting: Mutex<Vec<Recipient<More>>>,
    is_lagging: AtomicBool,
}

impl Window {
    /// Bytes under way.
    pub fn taken_bytes(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    /// Takes room for an event of this [`cost`]. Where there is none, `from` is told [`More`] when
    /// there is.
    pub fn take(&self, cost: usize, from: &Recipient<More>) -> bool {
        let has_room = self.has_room_for(from);
        if has_room {
            self.taken.fetch_add(cost, Ordering::SeqCst);
        }
        has_room
    }

    /// Whether there is room for an event. Where there is none, `from` is told [`More`] when there is.
    pub fn has_room_for(&self, from: &Recipient<More>) -> bool {
        if !self.has_room() {
            self.wait(from);
        }
        // The connection looks for who waits after it gave back: one of both sees the other.
        self.has_room()
    }

    /// Gives room back that was taken for an event that was not sent; `from` is told [`More`] when
    /// the connection has taken others.
    pub fn untake(&self, cost: usize, from: &Recipient<More>) {
        self.taken.fetch_sub(cost, Ordering::SeqCst);
        self.wait(from);
    }

    /// Gives room back for events that have left for the socket, and tells who waits for it.
    pub fn give_back(&self, cost: usize, connection: ConnectionId) {
        self.taken.fetch_sub(cost, Ordering::SeqCst);
        if self.is_wanted.load(Ordering::SeqCst) && self.has_room() {
            for waiting in self.wake() {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "lost, the stream would stop; a session asks once and then waits for it"
                )]
                waiting.do_send(More { connection });
            }
        }
    }

    /// The connection has fallen too far behind the log: it is to be closed.
    pub fn lag(&self) {
        self.is_lagging.store(true, Ordering::Relaxed);
    }

    /// Whether the connection has fallen too far behind the log.
    pub fn is_lagging(&self) -> bool {
        self.is_lagging.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        self.taken_bytes() < WINDOW_BYTES
    }

    /// Enters `from` among those who wait.
    fn wait(&self, from: &Recipient<More>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.contains(from) {
            waiting.push(from.clone());
        }
        self.is_wanted.store(true, Ordering::SeqCst);
    }

    fn wake(&self) -> Vec<Recipient<More>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_wanted.store(false, Ordering::SeqCst);
        std::mem::take(&mut waiting)
    }
}

/// What ends a connection, whatever its actor does.
pub trait Closable: fmt::Debug + Send + Sync {
    /// Closes it, once, and has it told why where that is possible.
    fn close(&self, fault: Fault, now: Timestamp);
}

/// What ends a connection, as long as there is one.
pub type Closer = Weak<dyn Closable>;

/// A connection, as a session sees it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its number.
    pub connection: ConnectionId,
    /// Where it takes deliveries.
    pub to: Recipient<Deliver>,
    /// What bounds the events under way to it.
    pub window: Arc<Window>,
    /// Where it lives: a session it wakes lives there too.
    pub arbiter: ArbiterHandle,
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

    /// The connection that asks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Under which ticket; none once it is answered.
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Does not answer: whoever asks was told otherwise.
    pub(crate) fn forget(mut self) {
        self.ticket = None;
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

#[cfg(test)]
mod tests {
    use super::*;
    use actix::{Actor, Context, Handler};

    struct Sink;

    impl Actor for Sink {
        type Context = Context<Self>;
    }

    impl Handler<More> for Sink {
        type Result = ();

        fn handle(&mut self, _: More, _: &mut Self::Context) {}
    }

    #[actix::test]
    async fn a_window_takes_one_event_over_its_bound_and_names_who_waits_once() {
        let (window, from) = (Window::default(), Sink.start().recipient());
        assert!(window.take(WINDOW_BYTES - 1, &from) && window.take(1_000_000, &from));
        assert!(!window.take(1, &from) && !window.take(1, &from));
        assert_eq!(window.taken_bytes(), WINDOW_BYTES + 999_999);
        window.give_back(999_000, ConnectionId(1));
        assert_eq!(window.waiting.lock().unwrap().len(), 1, "there is no room yet");
        window.give_back(WINDOW_BYTES, ConnectionId(1));
        assert_eq!(window.waiting.lock().unwrap().len(), 0, "who waited was told");
        assert!(window.take(1, &from));
    }
}
