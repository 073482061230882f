//! A dialect turns frames into requests, and replies and events into frames.
//!
//! It returns what should happen and a connection makes it happen: a dialect does no I/O, takes no
//! clock and keeps only the small state its handshake and counters need. Nothing outside a
//! dialect's module knows its words. A fifth protocol is a new module here, a line in the table of
//! routes, and fixtures.

pub mod jsonrpc;

pub mod admin;
mod calls;
pub mod exoclaw;
mod frame;
mod json;
pub mod openclaw;
pub mod root;
pub mod socket;
pub mod wundr;
pub mod xeno;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;

use crate::access::{Admitted, Claim};
use crate::config::catalog::Catalog;
use crate::conversation::event::Published;
use crate::daemon::announcement::Announcement;
use crate::daemon::operator::Progress;
use crate::error::Error;
use crate::ids::{ConnectionId, RunId, Seq, Ticket};
use crate::request::command::{Command, Request};
use crate::request::reply::Reply;
use crate::scope::{Scope, Scopes};
use crate::time::Timestamp;
use crate::tools::node::Invocation;

/// One protocol, spoken on one connection.
pub trait Dialect {
    /// Takes one input and writes what should happen to `turn`.
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>);

    /// When it next wants [`Input::Tick`]: handshake deadlines, heartbeats, coalescing.
    fn deadline(&self) -> Option<Timestamp>;
}

/// One message of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A text frame, or one line of a line protocol.
    Text(ByteString),
    /// A binary frame.
    Binary(Bytes),
}

impl Frame {
    /// The size of its payload, in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
        }
    }

    /// Whether its payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a connection tells its dialect.
#[derive(Debug)]
pub enum Input<'a> {
    /// The transport is open. First input, once.
    Opened,
    /// The peer sent this.
    Frame(Frame),
    /// The answer to [`Action::Authenticate`].
    Authenticated(Result<Admitted, Error>),
    /// The answer to [`Action::Execute`]; exactly one per ticket.
    Reply(Ticket, Result<Reply, Error>),
    /// Something happened that a request follows.
    Event {
        /// The ticket of the request.
        ticket: Ticket,
        /// The first number that is covered by it: besides its own, those of events that this
        /// connection was told under other tickets. One that does not follow the number before
        /// means that the log has a hole.
        first: Seq,
        /// What.
        event: &'a Arc<Published>,
    },
    /// Something happened that is not about one session; the dialect tells its client what that may
    /// know of it.
    Announced(&'a Announcement),
    /// The client, which is a node, is to do something; what becomes of it is told by
    /// [`NodeResult`](crate::tools::node::NodeResult).
    Invoked(&'a Invocation),
    /// How far a request is that takes long, now and then before its [`Input::Reply`].
    Progress(Ticket, Progress),
    /// Something is wrong with the connection; the dialect says so in its words and closes.
    Fault(Fault),
    /// There is room to send again.
    Drained,
    /// The peer closed its half. Over lines it still reads: the dialect goes on saying what it owes,
    /// and closes then.
    Ended,
    /// The deadline passed.
    Tick,
}

/// What can be wrong with a connection. Each has its own words in each protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A frame, announced or assembled, is larger than this many bytes.
    Oversize {
        /// The limit.
        limit: usize,
    },
    /// What all connections have sent of messages that are not complete takes too much room, and its
    /// own is the largest.
    Crowded,
    /// It began a message and did not complete it in time.
    Incomplete,
    /// It reads too slowly.
    Slow,
    /// It has not been heard of for too long.
    Idle,
    /// Its credential was revoked.
    Revoked,
    /// Its credential expired.
    Expired,
    /// It can't be known whether its credential still holds.
    CutOff,
    /// There is no room for it.
    Overloaded,
    /// The daemon is stopping.
    Draining,
}

/// The most bytes of the reason in a Close frame.
const REASON_BYTES_MAX: usize = 123;

/// What a dialect wants done.
#[derive(Debug)]
pub enum Action {
    /// Send a frame.
    Send(Frame),
    /// Check these; reading is suspended until [`Input::Authenticated`].
    Authenticate(Claim),
    /// Execute a request; [`Input::Reply`] follows under the same ticket.
    Execute(Ticket, Request),
    /// Note what the peer says of itself, for operators who look who is connected.
    Introduce(Introduction),
    /// Close with this code and reason (at most 123 bytes), after what was sent before it.
    Close {
        /// WebSocket close code.
        code: u16,
        /// For people.
        reason: String,
    },
}

/// What the peer of a connection says of itself after it was let in. Nothing follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// Which program it is.
    pub client: Option<String>,
    /// Who uses it.
    pub user: Option<String>,
}

/// The largest message of a peer that may not write, in bytes: what it asks for is short.
pub const READER_BYTES_MAX: usize = 1 << 20;

/// The largest message of a peer with these scopes, in bytes, where whoever writes may send `limit`.
pub fn message_bytes_max(scopes: Scopes, limit: usize) -> usize {
    let writes = [Scope::Write, Scope::Admin].into_iter().any(|scope| scopes.allows(scope));
    if writes { limit } else { limit.min(READER_BYTES_MAX) }
}

/// The world as one call of [`Dialect::handle`] sees it.
pub struct Turn<'a> {
    now: Timestamp,
    actions: &'a mut Vec<Action>,
    tickets: &'a mut u64,
    random: &'a mut dyn FnMut() -> [u8; 16],
    sent_bytes: usize,
}

impl<'a> Turn<'a> {
    /// `actions` is filled and may be reused; `tickets` is the connection's counter; `random`
    /// gives fresh random bytes.
    pub fn new(
        now: Timestamp,
        actions: &'a mut Vec<Action>,
        tickets: &'a mut u64,
        random: &'a mut dyn FnMut() -> [u8; 16],
    ) -> Self {
        Self { now, actions, tickets, random, sent_bytes: 0 }
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// A fresh id for a run.
    pub fn run_id(&mut self) -> RunId {
        RunId::from_random((self.random)())
    }

    /// Sends text.
    pub fn send(&mut self, text: impl Into<ByteString>) {
        let text = text.into();
        self.sent_bytes += text.len();
        self.actions.push(Action::Send(Frame::Text(text)));
    }

    /// How much was sent in this turn.
    pub fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Sends bytes.
    pub fn send_binary(&mut self, bytes: impl Into<Bytes>) {
        self.actions.push(Action::Send(Frame::Binary(bytes.into())));
    }

    /// Asks for this to be checked.
    pub fn authenticate(&mut self, claim: impl Into<Claim>) {
        self.actions.push(Action::Authenticate(claim.into()));
    }

    /// Fresh random bytes.
    pub fn random(&mut self) -> [u8; 16] {
        (self.random)()
    }

    /// Asks for a command (or the reason there is none) to be executed; it costs what it weighs besides.
    pub fn execute(&mut self, needs: Scope, cost: u32, command: Result<Command, Error>) -> Ticket {
        *self.tickets += 1;
        let ticket = Ticket(*self.tickets);
        let cost = cost.saturating_add(command.as_ref().map_or(0, Command::cost));
        self.actions.push(Action::Execute(ticket, Request { needs, cost, command }));
        ticket
    }

    /// Has it noted what the peer says of itself.
    pub fn introduce(&mut self, introduction: Introduction) {
        self.actions.push(Action::Introduce(introduction));
    }

    /// Closes the connection.
    pub fn close(&mut self, code: u16, reason: impl Into<String>) {
        let mut reason = reason.into();
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        self.actions.push(Action::Close { code, reason });
    }
}

/// What a dialect is told of the daemon when its connection opens.
#[derive(Clone, Debug, Default)]
pub struct DialectSetup {
    /// Version of clawmux.
    pub version: Arc<str>,
    /// Whether this connection must show a credential before anything else. Where not, the dialect asks for
    /// [`Credentials::None`](crate::access::Credentials::None) to be checked and gets principal `local`.
    pub credentials_required: bool,
    /// When the handshake must be complete.
    pub handshake_deadline: Timestamp,
    /// The most sessions the connection may follow at once.
    pub subscriptions: usize,
    /// The connection, as its peer may know it.
    pub connection: ConnectionId,
    /// Whether the peer came over loopback to a socket that nobody else can reach.
    pub is_loopback: bool,
    /// The largest frame the peer may send once it is let in, in bytes.
    pub max_payload_bytes: usize,
    /// How far behind the peer may fall, in bytes of the log.
    pub max_buffered_bytes: usize,
    /// How often a protocol that has ticks sends one.
    pub tick_interval: Duration,
    /// How often a protocol that has heartbeats sends one.
    pub heartbeat_interval: Duration,
    /// A peer that is silent for so long is closed.
    pub heartbeat_timeout: Duration,
    /// The agents and models there are.
    pub catalog: Arc<Catalog>,
    /// Since when the daemon is ready.
    pub started: Timestamp,
}
