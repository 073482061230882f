//! The exoclaw protocol: JSON requests over a WebSocket, a stream of events for each prompt.
//!
//! ```text
//!            credential required               {"token":..}              let in
//!   New ───────────────────────────► Waiting ──────────────► Checking ──────────► Open
//!    │                                  │ deadline, anything else  │ refused        │ fault, peer gone
//!    │ none required: Checking          ▼                          ▼                ▼
//!    └────────────────────────────► Closed ◄───────────────────────┴────────────────┘
//! ```
//!
//! A request is pending until its reply; a prompt's request then becomes a stream until the run's
//! last event, and a `session.attach` one until its `session.detach`. Several requests may want one
//! run (the same idempotency key): each is told all of it.
//!
//! The frames of a `session.attach` have a `seq`, the last number they cover, and a `first_seq`
//! where they cover several: so that each begins where the one before ended. Besides the events of
//! the seed there are `prompt`, `restart`, `message` (what was put into the conversation in the model's
//! name), `clear`, and `deleted`, the last.
//!
//! How a connection ends, in the shape the protocol has for a failed authentication, a text frame
//! `{"error":WORD,"code":CODE}` and then a Close frame with the same code:
//!
//! | why | word | code |
//! |---|---|---|
//! | no or wrong token, or none in time | `auth_failed` | 4001 |
//! | credential revoked, expired | `credential_revoked`, `credential_expired` | 4001 |
//! | frame over the limit | `frame_too_large` | 1009 |
//! | reads too slowly | `slow_consumer` | 1008 |
//! | silent for too long | `idle_timeout` | 4008 |
//! | too many connections | `overloaded` | 1013 |
//! | daemon stops | `draining` | 1001 |
//!
//! Deliberately absent: `memory.search`, which is refused by name.

pub mod client;
mod wire;

use std::sync::Arc;

use self::wire::{Id, Incoming, Place};
use super::json::{Params, clip, invalid};
use super::{Dialect, Fault, Frame, Input, Setup, Turn};
use crate::auth::{Admitted, Credentials, Scope, Secret};
use crate::command::{Command, Submit, Target};
use crate::error::{Error, ErrorCode};
use crate::event::{Event, Outcome, Published};
use crate::ids::{PluginName, RunId, Seq, SessionKey, Ticket};
use crate::manner::Manner;
use crate::reply::Reply;
use crate::time::Timestamp;

/// This dialect's slot in [`Published::wire`].
const SLOT: usize = 0;

/// How many requests of one connection may wait for an answer or stream at once.
pub const IN_FLIGHT_MAX: usize = 256;

/// How many messages `chat.history` gives where the client does not say, and at most.
const HISTORY_DEFAULT: u64 = 50;
const HISTORY_MAX: u64 = 1000;

/// The most bytes an idempotency key may have.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;

/// Cost of a prompt, of other writes, and of reads, in units of `[limits]`.
const PROMPT: u32 = 5;
const WRITE: u32 = 1;
const READ: u32 = 0;

/// exoclaw, on one connection.
#[derive(Debug)]
pub struct Exoclaw {
    setup: Setup,
    phase: Phase,
    pending: Vec<Pending>,
    streams: Vec<Stream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Waiting,
    Checking,
    Open,
    Closed,
}

/// A request that waits for its reply.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    id: Id,
    ask: Ask,
}

/// What a pending request asked.
#[derive(Debug, PartialEq)]
enum Ask {
    Plain,
    /// `session.detach` of an id that names no session that is followed.
    DetachNothing,
    /// `chat.abort` of an id that names no request in flight.
    AbortNothing,
    Attach,
    Chat {
        accepted: bool,
        target: Target,
        run: RunId,
    },
}

/// A request whose events are being told.
#[derive(Debug)]
struct Stream {
    ticket: Ticket,
    id: Id,
    told: Told,
}

/// What a stream tells.
#[derive(Debug)]
enum Told {
    Run(ToldRun),
    Session(ToldSession),
}

/// All that a `session.attach` follows.
#[derive(Debug)]
struct ToldSession {
    session: SessionKey,
    /// The last number heard of.
    heard: Seq,
    /// The first number the next frame covers.
    from: Seq,
}

/// The run of a `chat.send`.
#[derive(Debug)]
struct ToldRun {
    session: SessionKey,
    run: RunId,
    /// Whether the client was sent a frame for it.
    begun: bool,
    /// Whether it was asked for with an idempotency key: then a restart of the step is told too.
    keyed: bool,
}

/// A request in neutral words.
struct Call {
    needs: Scope,
    cost: u32,
    command: Result<Command, Error>,
    ask: Ask,
}

impl Call {
    fn plain(needs: Scope, cost: u32, command: Result<Command, Error>) -> Self {
        Self { needs, cost, command, ask: Ask::Plain }
    }
}

impl Dialect for Exoclaw {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match (self.phase, input) {
            (Phase::Closed, _) => {}
            (Phase::New, Input::Opened) if self.setup.credentials_required => self.phase = Phase::Waiting,
            (Phase::New, Input::Opened) => self.authenticate(Credentials::None, turn),
            (Phase::Waiting, Input::Frame(frame)) => self.on_token(&frame, turn),
            (Phase::Waiting, Input::Tick) if turn.now() >= self.setup.handshake_deadline => {
                self.fail_authentication("no credential in time", turn);
            }
            (Phase::Checking, Input::Authenticated(answer)) => self.on_authenticated(answer, turn),
            (Phase::Open, Input::Frame(Frame::Text(text))) => self.on_text(&text, turn),
            (Phase::Open, Input::Frame(Frame::Binary(_))) => {
                turn.send(wire::refusal(&Id::none(), "parse error: expected a text frame, got a binary one"));
            }
            (Phase::Open, Input::Reply(ticket, reply)) => self.on_reply(ticket, reply, turn),
            (Phase::Open, Input::Event { ticket, first, event }) => self.on_event(ticket, first, event, turn),
            (_, Input::Fault(fault)) => self.on_fault(fault, turn),
            (_, Input::Ended) => self.close(),
            // Before it is open a connection asks for nothing and follows nothing; a tick may come late.
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
        (self.phase == Phase::Waiting).then_some(self.setup.handshake_deadline)
    }
}

impl Exoclaw {
    /// For a connection that is about to open.
    pub fn new(setup: Setup) -> Self {
        Self { setup, phase: Phase::New, pending: Vec::new(), streams: Vec::new() }
    }

    fn authenticate(&mut self, credentials: Credentials, turn: &mut Turn<'_>) {
        self.phase = Phase::Checking;
        turn.authenticate(credentials);
    }

    fn on_token(&mut self, frame: &Frame, turn: &mut Turn<'_>) {
        let token = match frame {
            Frame::Text(text) => wire::token(text),
            Frame::Binary(_) => None,
        };
        match token {
            Some(token) => self.authenticate(Credentials::Token(Secret::new(token)), turn),
            None => self.fail_authentication("the first frame must be {\"token\":\"...\"}", turn),
        }
    }

    fn on_authenticated(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        match answer {
            Ok(_) => {
                self.phase = Phase::Open;
                turn.send(wire::hello(&self.setup.version));
            }
            Err(_) => self.fail_authentication("the credential does not hold", turn),
        }
    }

    fn fail_authentication(&mut self, reason: &str, turn: &mut Turn<'_>) {
        self.farewell("auth_failed", 4001, reason, turn);
    }

    fn farewell(&mut self, word: &str, code: u16, reason: &str, turn: &mut Turn<'_>) {
        turn.send(wire::farewell(word, code));
        turn.close(code, reason);
        self.close();
    }

    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.pending = Vec::new();
        self.streams = Vec::new();
    }

    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        match fault {
            Fault::Oversize { limit } => {
                self.farewell("frame_too_large", 1009, &format!("a frame may have {limit} bytes"), turn);
            }
            Fault::Slow => {
                self.farewell("slow_consumer", 1008, "reads too slowly: read on, or attach again", turn)
            }
            Fault::Idle => self.farewell("idle_timeout", 4008, "was silent for too long", turn),
            Fault::Revoked => self.farewell("credential_revoked", 4001, "the credential was revoked", turn),
            Fault::Expired => self.farewell("credential_expired", 4001, "the credential expired", turn),
            Fault::Overloaded => self.farewell("overloaded", 1013, "too many connections, try later", turn),
            Fault::Draining => {
                for pending in std::mem::take(&mut self.pending) {
                    turn.send(wire::refusal(&pending.id, "unavailable: the daemon is stopping"));
                }
                self.farewell("draining", 1001, "the daemon is stopping", turn);
            }
        }
    }

    fn on_text(&mut self, text: &str, turn: &mut Turn<'_>) {
        match wire::read(text) {
            Incoming::Token if self.setup.credentials_required => {
                turn.send(wire::refusal(&Id::none(), "already authenticated: send requests"));
            }
            Incoming::Token => turn.send(wire::hello(&self.setup.version)),
            Incoming::Broken(id, why) => turn.send(wire::refusal(&id.unwrap_or_else(Id::none), &why)),
            Incoming::Request { id, method, params } => self.on_request(id, &method, params, turn),
        }
    }

    fn on_request(&mut self, given: Option<Id>, method: &str, params: Params<'_>, turn: &mut Turn<'_>) {
        let named = given.is_some();
        let id = given.unwrap_or_else(Id::none);
        // Requests without an id share one; only a stream is lost in that.
        let clash = (named || matches!(method, "chat.send" | "session.attach"))
            && (self.streams.iter().any(|stream| stream.id == id)
                || self.pending.iter().any(|pending| pending.id == id));
        if clash {
            let text = format!("id {} is in use by a request in flight", clip(id.as_json()));
            return turn.send(wire::refusal(&id, &text));
        }
        if method == "ping" {
            return turn.send(wire::result(&id, "pong"));
        }
        let Some(call) = self.call(method, params, turn) else {
            let later = method == "memory.search";
            let note = if later { " (not available yet)" } else { "" };
            let text = format!("unknown method: {}{note}", clip(method));
            return turn.send(wire::refusal(&id, &text));
        };
        let followed = self.streams.iter().filter(|stream| matches!(stream.told, Told::Session(_))).count();
        if self.pending.len() + self.streams.len() - followed >= IN_FLIGHT_MAX {
            let text = format!("too many requests in flight ({IN_FLIGHT_MAX}): wait for one to end");
            return turn.send(wire::refusal(&id, &text));
        }
        let attaching = self.pending.iter().filter(|pending| pending.ask == Ask::Attach).count();
        if call.ask == Ask::Attach && followed + attaching >= self.setup.subscriptions {
            let limit = self.setup.subscriptions;
            let text =
                format!("too many sessions attached (limits.subscriptions = {limit}): detach from one");
            return turn.send(wire::refusal(&id, &text));
        }
        let ticket = turn.execute(call.needs, call.cost, call.command);
        self.pending.push(Pending { ticket, id, ask: call.ask });
    }

    /// The request in neutral words; none for a method that does not exist.
    fn call(&mut self, method: &str, params: Params<'_>, turn: &mut Turn<'_>) -> Option<Call> {
        let target = || params.read::<Place>(method)?.target(method);
        Some(match method {
            "status" => Call::plain(Scope::Read, READ, Ok(Command::Status)),
            "plugin.list" => Call::plain(Scope::Read, READ, Ok(Command::Plugins)),
            "session.list" => Call::plain(Scope::Read, READ, Ok(Command::Sessions)),
            "chat.send" => send(params, turn),
            "chat.abort" => self.abort(params),
            "chat.history" => {
                let command = target().and_then(|target| {
                    let asked = params.read::<wire::ChatHistory<'_>>(method)?;
                    let limit = asked.limit.unwrap_or(HISTORY_DEFAULT);
                    let limit = usize::try_from(limit.min(HISTORY_MAX)).unwrap_or(usize::MAX);
                    let before = asked.before.as_deref().map(wire::before);
                    Ok(Command::History { target, limit, before })
                });
                Call::plain(Scope::Read, READ, command)
            }
            "session.attach" => {
                let command = target().and_then(|target| {
                    let after = params.read::<wire::SessionAttach>(method)?.after_seq.map(Seq);
                    Ok(Command::Attach { target, after })
                });
                Call { ask: Ask::Attach, ..Call::plain(Scope::Read, READ, command) }
            }
            "session.detach" => self.detach(params),
            "session.clear" => {
                Call::plain(Scope::Write, WRITE, target().map(|target| Command::Clear { target }))
            }
            "budget.status" => {
                let command = params.read::<Place>(method).and_then(|place| {
                    let target = if place.is_absent() { None } else { Some(place.target(method)?) };
                    Ok(Command::Budget { target })
                });
                Call::plain(Scope::Read, READ, command)
            }
            "plugin.load" | "plugin.unload" => {
                let command = params.read::<wire::PluginParams>(method).and_then(|plugin| {
                    let name = plugin.name.filter(|name| !name.trim().is_empty());
                    let name = name.ok_or_else(|| invalid(method, "missing field `name`"))?;
                    let name = PluginName::from(name);
                    Ok(if method == "plugin.load" {
                        Command::LoadPlugin { name, path: plugin.path }
                    } else {
                        Command::UnloadPlugin { name }
                    })
                });
                Call::plain(Scope::Admin, WRITE, command)
            }
            _ => return None,
        })
    }

    fn abort(&self, params: Params<'_>) -> Call {
        let method = "chat.abort";
        let refuse = |error| Call::plain(Scope::Write, WRITE, Err(error));
        let asked = params.read::<wire::ChatAbort<'_>>(method).and_then(|asked| Ok((asked.id()?, asked.run)));
        let (id, run) = match asked {
            Ok(asked) => asked,
            Err(error) => return refuse(error),
        };
        let Some(id) = id else {
            let target = params.read::<Place>(method).and_then(|place| place.target(method));
            let run = run.map(RunId::from);
            return Call::plain(Scope::Write, WRITE, target.map(|target| Command::Abort { target, run }));
        };
        let told = self.streams.iter().find_map(|stream| match &stream.told {
            Told::Run(told) if stream.id == id => {
                Some((Target::Session(told.session.clone()), told.run.clone()))
            }
            Told::Run(_) | Told::Session(_) => None,
        });
        let found = told.or_else(|| {
            self.pending.iter().find_map(|pending| match &pending.ask {
                Ask::Chat { target, run, .. } if pending.id == id => Some((target.clone(), run.clone())),
                _ => None,
            })
        });
        match found {
            Some((target, run)) => {
                Call::plain(Scope::Write, WRITE, Ok(Command::Abort { target, run: Some(run) }))
            }
            // Scope and rate are looked at all the same.
            None => Call {
                ask: Ask::AbortNothing,
                ..refuse(ErrorCode::NotFound.error("no such request is in flight"))
            },
        }
    }

    /// Lets go of a session at once: what is under way of it is not told any more.
    fn detach(&mut self, params: Params<'_>) -> Call {
        let refuse = |error| Call::plain(Scope::Read, READ, Err(error));
        let id = match params.read::<wire::SessionDetach<'_>>("session.detach").and_then(|asked| asked.id()) {
            Ok(id) => id,
            Err(error) => return refuse(error),
        };
        let followed = self.streams.iter().position(|s| s.id == id && matches!(s.told, Told::Session(_)));
        let stream = followed.map(|at| self.streams.remove(at));
        match stream.map(|stream| (stream.ticket, stream.told)) {
            Some((follow, Told::Session(ToldSession { session, .. }))) => {
                let target = Target::Session(session);
                Call::plain(Scope::Read, READ, Ok(Command::Detach { target, follow }))
            }
            _ => Call {
                ask: Ask::DetachNothing,
                ..refuse(ErrorCode::NotFound.error("no session is attached under this id"))
            },
        }
    }

    fn on_reply(&mut self, ticket: Ticket, reply: Result<Reply, Error>, turn: &mut Turn<'_>) {
        let Some(at) = self.pending.iter().position(|pending| pending.ticket == ticket) else { return };
        let Pending { id, ask, .. } = self.pending.swap_remove(at);
        match (ask, reply) {
            (Ask::Chat { accepted: wanted, .. }, Ok(Reply::Accepted(accepted))) => {
                if wanted {
                    turn.send(wire::accepted(&id, &accepted.run, accepted.seq));
                }
                let told =
                    ToldRun { session: accepted.session, run: accepted.run, begun: wanted, keyed: wanted };
                self.streams.push(Stream { ticket, id, told: Told::Run(told) });
            }
            (Ask::Attach, Ok(Reply::Attached { session, after, head, .. })) => {
                turn.send(wire::attached(&id, &session, head));
                let told = ToldSession { session, heard: after, from: after.next() };
                self.streams.push(Stream { ticket, id, told: Told::Session(told) });
            }
            (Ask::DetachNothing, Err(error)) if error.code == ErrorCode::NotFound => {
                turn.send(wire::answer(&id, &Reply::Detached { found: false }));
            }
            (Ask::AbortNothing, Err(error)) if error.code == ErrorCode::NotFound => {
                turn.send(wire::answer(&id, &Reply::Aborted { run: None }));
            }
            (Ask::Chat { .. } | Ask::Attach, Ok(_))
            | (_, Ok(Reply::Accepted(_) | Reply::Attached { .. })) => {
                turn.send(wire::refusal(&id, "internal error: the reply does not fit the request"));
            }
            (_, Ok(reply)) => turn.send(wire::answer(&id, &reply)),
            (_, Err(error)) => turn.send(wire::refusal(&id, &wire::describe(&error))),
        }
    }

    fn on_event(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>, turn: &mut Turn<'_>) {
        let Some(at) = self.streams.iter().position(|stream| stream.ticket == ticket) else { return };
        let stream = &mut self.streams[at];
        let payload = event.wire(SLOT, wire::payload);
        // It was text when it was encoded.
        let Ok(payload) = std::str::from_utf8(payload) else { return };
        match &mut stream.told {
            Told::Run(told) => {
                told.tell(&stream.id, event, payload, turn);
                if matches!(event.logged.event, Event::Ended { .. }) {
                    self.streams.remove(at);
                }
            }
            Told::Session(told) => {
                told.tell(&stream.id, first, event, payload, turn);
                // Nothing follows.
                if event.logged.event == Event::Deleted {
                    self.streams.remove(at);
                }
            }
        }
    }
}

impl ToldRun {
    /// Says what happened in the run, in the seed's frames.
    fn tell(&mut self, id: &Id, event: &Published, payload: &str, turn: &mut Turn<'_>) {
        match &event.logged.event {
            // Refused before it began: not a stream.
            Event::Ended { outcome: Outcome::Failed(error), .. }
                if !self.begun && error.code == ErrorCode::BudgetExceeded =>
            {
                turn.send(wire::refusal(id, &wire::describe(error)));
            }
            Event::Restarted if !self.keyed => {}
            Event::Prompted { .. } => {}
            _ => {
                for line in payload.lines() {
                    turn.send(wire::framed(id, "", line));
                    self.begun = true;
                }
            }
        }
    }
}

impl ToldSession {
    /// Says what happened in a session, with its numbers. A frame also covers the numbers before it
    /// that exoclaw has no word for, or that were told elsewhere; never those of a hole in the log.
    fn tell(&mut self, id: &Id, first: Seq, event: &Published, payload: &str, turn: &mut Turn<'_>) {
        if first > self.heard.next() {
            self.from = first;
        }
        self.heard = event.logged.seq;
        let frames = payload.lines().count() as u64;
        for (line, left) in payload.lines().zip((0..frames).rev()) {
            let seq = Seq(event.logged.seq.0.saturating_sub(left));
            // The beginning of an end that was cut off: the client has it.
            if seq >= self.from {
                turn.send(wire::numbered(id, line, (self.from, seq), event));
                self.from = seq.next();
            }
        }
    }
}

fn send(params: Params<'_>, turn: &mut Turn<'_>) -> Call {
    let method = "chat.send";
    let read = || {
        let target = params.read::<Place>(method)?.target(method)?;
        let chat = params.read::<wire::ChatSend>(method)?;
        let content = chat.content.ok_or_else(|| invalid(method, "missing field `content`"))?;
        if content.trim().is_empty() {
            return Err(invalid(method, "content is blank"));
        }
        if let Some(key) = &chat.idempotency_key
            && (key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX)
        {
            let why = format!("idempotency_key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
            return Err(invalid(method, &why));
        }
        Ok((target, content, chat.idempotency_key))
    };
    match read() {
        Ok((target, content, idempotency_key)) => {
            let run = turn.run_id();
            let ask =
                Ask::Chat { accepted: idempotency_key.is_some(), target: target.clone(), run: run.clone() };
            let submit = Submit {
                target,
                run,
                content,
                idempotency_key,
                attachments: Vec::new(),
                files: Vec::new(),
                enclosed: Vec::new(),
                manner: Manner::default(),
                follow: true,
            };
            Call { needs: Scope::Write, cost: PROMPT, command: Ok(Command::Submit(submit)), ask }
        }
        Err(error) => Call::plain(Scope::Write, PROMPT, Err(error)),
    }
}

#[cfg(test)]
mod tests;
