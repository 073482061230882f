//! Wundr's protocol v2.
//!
//! ```text
//!   New ──► Waiting ── auth.connect ──► Checking ── let in: hello ──► Open
//!            │ nothing in time,          │ refused                     │ auth.logout, fault,
//!            │ or something else         ▼                             ▼ peer gone
//!            └────────────────────────► Closed ◄───────────────────────┘
//! ```
//!
//! What a request may be is one table ([`method`]): a row has the method's name, scopes, cost, the
//! shape of its parameters and of its result, and the function that does it. That answers at once or
//! asks the daemon, and then makes the answer of the reply, or asks on. The table of events
//! ([`event`]) is alike. Both print themselves as JSON Schema ([`discover`]).
//!
//! A request is looked at in this order: known method, scope, rate, parameters. Every request has one
//! answer; one that takes longer than [`ANSWER_MAX`] is answered with `TIMEOUT`, and what comes later
//! is dropped.
//!
//! Every event frame takes the connection's next number, heartbeats too, when it is sent: a gap is a
//! loss. How a connection ends: refused handshakes are in [`connect`]; else
//!
//! | why | code |
//! |---|---|
//! | `auth.logout` | 1000 |
//! | silent for too long, daemon stops | 1001 |
//! | frame over the limit | 1009 |
//! | reads too slowly, credential revoked or expired | 1008 |
//! | too many connections | 1013 |
//!
//! Deliberately absent: protocol v1, and the switch to JSON-RPC 2.0 that its clients never make.

mod agents;
mod auth;
mod binary;
mod config;
mod connect;
mod discover;
mod event;
mod files;
mod follow;
mod health;
mod history;
mod memory;
mod method;
mod prompts;
mod sessions;
mod shape;
mod stream;
mod subscription;
mod teams;
mod tools;
mod wire;

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

pub use self::connect::is_greeting;
pub use self::discover::reference;
use self::follow::Following;
use self::method::Method;
use self::wire::{Failure, Incoming};
use super::calls::{self, Calling, Calls};
use super::json::Params;
use super::{Dialect, DialectSetup, Fault, Frame, Input, Turn};
use crate::access::token::Kind;
use crate::daemon::announcement::Announcement;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, Ticket};
use crate::principal::Grounds;
use crate::request::reply::Reply;
use crate::scope::{Scope, Scopes};
use crate::time::Timestamp;

/// Which slot of a published event holds its payload in this protocol's words.
const SLOT: usize = 1;

/// How many requests of a batch wait for an answer at once, with those besides.
const BATCH_AT_ONCE: usize = 8;

/// What is answered to a batch before the rest of it waits until there is room again, in bytes: no less
/// than what makes a connection say that there is.
const BATCH_BYTES: usize = 64 * 1024;

/// How long the answer to a request may take. (Source: the timeout of Wundr's client.)
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Wundr's protocol, on one connection.
pub struct Wundr {
    setup: DialectSetup,
    phase: Phase,
    greeting: connect::Greeting,
    /// The scopes that were granted.
    scopes: Scopes,
    /// The owner of what is made on this connection.
    owner: Owner,
    /// What kind of credential was shown.
    kind: Kind,
    /// What keeps that credential valid, and ends it.
    grounds: Grounds,
    /// When the credential expires.
    expires: Option<Timestamp>,
    /// The requests for another credential that are looked at, in order.
    refreshing: VecDeque<auth::Refreshing>,
    /// How many of those were refused.
    refused: u32,
    calls: Calls<Self>,
    /// What is left of a batch.
    batch: VecDeque<Box<RawValue>>,
    following: Following,
    introduced: tools::Introduced,
    /// What is sent in binary frames.
    transfers: files::Transfers,
    /// The number of the last event.
    event_seq: u64,
    heartbeats: u64,
    next_heartbeat: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Waiting,
    Checking,
    Open,
    Closed,
}

/// What becomes of a request.
type Call = calls::Call<Wundr>;

/// What becomes of a request, or why it is refused.
type Answered = Result<Call, Error>;

/// Who is to be answered.
pub(super) struct Asker {
    id: String,
    method: &'static Method,
    /// When it has to be answered.
    until: Timestamp,
}

/// A request of somebody who may make it, its parameters in shape.
struct Request<'a> {
    id: &'a str,
    method: &'static Method,
    params: Value,
}

impl Request<'_> {
    /// Its parameters; those that are not named in `T` are ignored.
    fn read<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Error> {
        serde_json::from_value(self.params.take()).map_err(|why| self.invalid(&why.to_string()))
    }

    /// A parameter that is a text; one that is required is there, as they are in shape.
    fn text(&self, name: &str) -> String {
        self.text_if_any(name).unwrap_or_default()
    }

    /// A parameter that is a text, where it is there.
    fn text_if_any(&self, name: &str) -> Option<String> {
        self.params[name].as_str().map(str::to_owned)
    }

    /// The refusal of its parameters.
    fn invalid(&self, why: &str) -> Error {
        invalid(self.method.name, why)
    }
}

/// The refusal of the parameters of a method. (Source: the words of Wundr's daemon.)
fn invalid(method: &str, why: &str) -> Error {
    ErrorCode::InvalidRequest.error(format!("invalid params for {method}: {}", super::json::clip(why)))
}

impl Calling for Wundr {
    type Asker = Asker;

    fn calls(&mut self) -> &mut Calls<Self> {
        &mut self.calls
    }

    fn scope(&self, asker: Option<&mut Asker>) -> Scope {
        self.granted(asker.map_or(&[], |asker| asker.method.needs))
    }

    fn answer(
        &mut self,
        Asker { id, method, .. }: Asker,
        outcome: Result<Value, Error>,
        turn: &mut Turn<'_>,
    ) {
        turn.send(match outcome {
            Ok(payload) => {
                method.check_result(&payload);
                wire::answer(&id, &payload)
            }
            Err(error) => wire::refusal(&id, &method.failure(&error)),
        });
    }
}

impl Dialect for Wundr {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match (self.phase, input) {
            (Phase::Closed, _) => {}
            (Phase::New, Input::Opened) => self.phase = Phase::Waiting,
            (Phase::Waiting, Input::Frame(frame)) => self.on_first(&frame, turn),
            (Phase::Waiting | Phase::Checking, Input::Tick) => self.on_handshake_deadline(turn),
            (Phase::Checking, Input::Authenticated(answer)) => self.on_authenticated(answer, turn),
            (Phase::Open, Input::Authenticated(answer)) => self.on_refreshed(answer, turn),
            (Phase::Open, Input::Frame(Frame::Text(text))) => self.on_text(&text, turn),
            (Phase::Open, Input::Frame(Frame::Binary(frame))) => self.on_binary(&frame, turn),
            (Phase::Open, Input::Drained) => self.on_drained(turn),
            (Phase::Open, Input::Tick) => self.on_tick(turn),
            (Phase::Open, Input::Reply(ticket, reply)) => self.on_reply(ticket, reply, turn),
            (Phase::Open, Input::Announced(announcement)) => self.on_announced(announcement, turn),
            (Phase::Open, Input::Event { ticket, event, .. }) => self.on_event(ticket, event, turn),
            (_, Input::Fault(fault)) => self.on_fault(fault, turn),
            (_, Input::Ended) => self.close(),
            (
                _,
                Input::Opened
                | Input::Frame(_)
                | Input::Authenticated(_)
                | Input::Reply(..)
                | Input::Event { .. }
                | Input::Announced(_)
                | Input::Invoked(_)
                | Input::Progress(..)
                | Input::Drained
                | Input::Tick,
            ) => {}
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::New | Phase::Closed => None,
            Phase::Waiting | Phase::Checking => Some(self.setup.handshake_deadline),
            Phase::Open => {
                let answers = self.calls.askers().map(|asker| asker.until);
                answers.chain([self.next_heartbeat]).min()
            }
        }
    }
}

impl Wundr {
    /// For a connection that is about to open.
    pub fn new(setup: DialectSetup) -> Self {
        Self {
            following: Following::new(setup.subscriptions),
            introduced: tools::Introduced::default(),
            setup,
            phase: Phase::New,
            greeting: connect::Greeting::default(),
            scopes: Scopes::NONE,
            owner: Owner::Credential("".into()),
            kind: Kind::ApiKey,
            grounds: Grounds::default(),
            expires: None,
            refreshing: VecDeque::new(),
            refused: 0,
            calls: Calls::default(),
            batch: VecDeque::new(),
            transfers: files::Transfers::default(),
            event_seq: 0,
            heartbeats: 0,
            next_heartbeat: Timestamp::default(),
        }
    }

    /// Something that is not in a session's log.
    fn on_announced(&mut self, announcement: &Announcement, turn: &mut Turn<'_>) {
        match announcement {
            Announcement::Catalog(catalog) => self.setup.catalog = catalog.clone(),
            Announcement::Report(report) => self.tell_health(report, turn),
            Announcement::Agent(news) => self.tell_agent(news, turn),
            Announcement::Team(news) => self.tell_team(news, turn),
            // It has no words for these, or has them from elsewhere.
            Announcement::Presence(_)
            | Announcement::Health(_)
            | Announcement::SessionChanged(_)
            | Announcement::Pairing(_)
            | Announcement::Job(_)
            | Announcement::Approval(_) => {}
        }
    }

    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.calls = Calls::default();
        self.batch = VecDeque::new();
        self.following = Following::new(0);
        self.transfers = files::Transfers::default();
    }

    fn end(&mut self, code: u16, reason: &str, turn: &mut Turn<'_>) {
        turn.close(code, reason);
        self.close();
    }

    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        let (code, reason, last) = match fault {
            Fault::Oversize { limit } => {
                let failure = Failure::invalid("message exceeds size limit")
                    .with(serde_json::json!({ "maxPayloadBytes": limit }));
                (1009, format!("a frame may have {limit} bytes"), Some(failure))
            }
            Fault::Crowded => {
                let failure =
                    Failure::of(&ErrorCode::Unavailable.error(
                        "unfinished messages take too much room and this one is the largest: try later",
                    ));
                (1013, "unfinished messages take too much room, try later".to_owned(), Some(failure))
            }
            Fault::Incomplete => {
                let failure = Failure::invalid("the message was not complete in time");
                (1008, "message timeout".to_owned(), Some(failure))
            }
            Fault::Slow => (1008, "slow consumer".to_owned(), None),
            Fault::Idle => (1001, "heartbeat timeout".to_owned(), None),
            Fault::Revoked => {
                let failure = Failure::new("UNAUTHORIZED", "the credential was revoked")
                    .with(serde_json::json!({ "reason": "credential_revoked" }));
                (1008, "unauthorized: the credential was revoked".to_owned(), Some(failure))
            }
            Fault::Expired => (1008, "unauthorized: the credential expired".to_owned(), Some(self.expired())),
            Fault::CutOff => {
                let why = "the daemon is cut off from its cluster, try another";
                (1013, why.to_owned(), Some(Failure::of(&ErrorCode::Unavailable.error(why))))
            }
            Fault::Overloaded => (1013, "too many connections, try later".to_owned(), None),
            Fault::Draining => (1001, "server shutdown".to_owned(), None),
        };
        if let (Phase::Open, Some(failure)) = (self.phase, &last) {
            turn.send(wire::refusal(wire::NO_ID, failure));
        }
        if fault == Fault::Draining {
            self.give_up(&ErrorCode::Unavailable.error("the daemon is stopping"), turn);
        }
        self.end(code, &reason, turn);
    }

    /// Sends an event whose payload is JSON already.
    fn emit(&mut self, name: &'static str, payload: &str, subscription: Option<&str>, turn: &mut Turn<'_>) {
        event::check(name, payload);
        self.event_seq += 1;
        turn.send(wire::event(name, payload, self.event_seq, subscription));
    }

    fn on_text(&mut self, text: &str, turn: &mut Turn<'_>) {
        match wire::read(text) {
            Incoming::Batch(all) if all.is_empty() || all.len() > wire::BATCH_MAX => {
                let why = format!("a batch has 1 to {} requests, not {}", wire::BATCH_MAX, all.len());
                turn.send(wire::refusal(wire::NO_ID, &Failure::invalid(why)));
            }
            Incoming::Batch(all) if !self.batch.is_empty() => {
                let why = "a batch is still being worked on: wait for its answers";
                let failure = Failure::of(&ErrorCode::RateLimited.error(why));
                for item in all {
                    let (Incoming::Request { id, .. } | Incoming::Broken(id, _)) = wire::read(item.get())
                    else {
                        continue;
                    };
                    turn.send(wire::refusal(&id, &failure));
                }
            }
            Incoming::Batch(all) => {
                self.batch.extend(all.into_iter().map(ToOwned::to_owned));
                self.work_on_batch(turn);
            }
            one => self.on_incoming(one, turn),
        }
    }

    /// Goes on with a batch, as far as there is room for answers: the rest once those were taken.
    fn work_on_batch(&mut self, turn: &mut Turn<'_>) {
        while self.phase == Phase::Open
            && self.calls.len() < BATCH_AT_ONCE
            && turn.sent_bytes() < BATCH_BYTES
            && let Some(item) = self.batch.pop_front()
        {
            self.on_item(&item, turn);
        }
    }

    /// There is room to send again.
    fn on_drained(&mut self, turn: &mut Turn<'_>) {
        self.send_downloads(turn);
        self.work_on_batch(turn);
    }

    /// One frame of a batch.
    fn on_item(&mut self, item: &RawValue, turn: &mut Turn<'_>) {
        match wire::read(item.get()) {
            Incoming::Batch(_) => {
                let why = "invalid request frame: a batch in a batch";
                turn.send(wire::refusal(wire::NO_ID, &Failure::invalid(why)));
            }
            one => self.on_incoming(one, turn),
        }
    }

    fn on_incoming(&mut self, incoming: Incoming<'_>, turn: &mut Turn<'_>) {
        match incoming {
            Incoming::Request { id, method, params } => self.on_request(id, &method, params, turn),
            Incoming::Broken(id, why) => {
                let failure = Failure::invalid(format!("invalid request frame: {why}"));
                turn.send(wire::refusal(&id, &failure));
            }
            Incoming::Garbage | Incoming::Batch(_) => {
                turn.send(wire::refusal(wire::NO_ID, &Failure::invalid("malformed JSON")));
            }
        }
    }

    /// Known method, then scope, rate, parameters; then it is done.
    fn on_request(&mut self, id: String, name: &str, params: Params<'_>, turn: &mut Turn<'_>) {
        let Some(method) = method::find(name) else {
            let why = format!("unknown method: {}", super::json::clip(name));
            return turn.send(wire::refusal(&id, &Failure::invalid(why)));
        };
        if !method.is_allowed(self.scopes) {
            let failure = Failure::missing_scope(method.needs, Some(name));
            return turn.send(wire::refusal(&id, &failure));
        }
        if let Err(full) = self.calls.room(0) {
            return turn.send(wire::refusal(&id, &Failure::of(&full)));
        }
        let call = method
            .checked(params)
            .and_then(|params| (method.handle)(self, &mut Request { id: &id, method, params }, turn));
        let asker = Asker { id, method, until: turn.now().after(ANSWER_MAX) };
        self.proceed(Some(asker), method.cost, call, turn);
    }

    /// The scope under which somebody is let do what `needs` any of these.
    fn granted(&self, needs: &[Scope]) -> Scope {
        let holds = |scope: &&Scope| self.scopes.allows(**scope);
        // Who has none at all is let do only what needs none.
        needs.iter().chain(&Scope::ALL).find(holds).copied().unwrap_or(Scope::Read)
    }

    fn on_reply(&mut self, ticket: Ticket, reply: Result<Reply, Error>, turn: &mut Turn<'_>) {
        self.take_reply(ticket, reply, turn);
        self.tell_beginnings(turn);
        self.work_on_batch(turn);
    }

    fn on_tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now();
        // What the replies bring about is still done; nobody is told.
        for Asker { id, method, .. } in self.calls.take_askers(|asker| asker.until <= now) {
            let why = format!("{} took longer than {} ms", method.name, ANSWER_MAX.as_millis());
            turn.send(wire::refusal(&id, &Failure::of(&ErrorCode::Timeout.error(why))));
        }
        self.beat(turn);
    }
}

impl std::fmt::Debug for Wundr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wundr").field("phase", &self.phase).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
