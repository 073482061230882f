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
//! name), `clear`, and `deleted`, the last; who asks for `turns` or `thoughts` is told more ([`attach`]).
//!
//! On the Unix socket it is spoken one frame a line, without a handshake: [`socket`](super::socket).
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

mod answer;
mod approvals;
mod attach;
pub mod client;
mod method;
mod prompt;
mod wire;

use std::sync::Arc;

pub use self::method::reference;

use self::attach::SessionStream;
use self::wire::{Id, Incoming, Place};
use super::json::{Params, clip, invalid};
use super::{Dialect, DialectSetup, Fault, Frame, Input, Turn};
use crate::access::{Admitted, Credentials, Secret};
use crate::conversation::command::{
    Abort, Attach, Clear, Delete, Detach, Export, GetBudgets, ListSummaries, ReadHistory,
};
use crate::conversation::event::{Event, Outcome, Published};
use crate::conversation::reply::{Aborted, Attached};
use crate::daemon::command::{GetCatalog, GetStatus};
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{Owner, PluginName, RunId, Seq, SessionKey, Ticket};
use crate::memory::{Query, Question, question};
use crate::principal::Principal;
use crate::prompt::run_options::PROMPT_COST;
use crate::request::ask::Ask;
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::scope::{Scope, Scopes};
use crate::target::Target;
use crate::time::Timestamp;
use crate::tools::plugin::{ListPlugins, LoadPlugin, UnloadPlugin};

/// This dialect's slot in [`Published::wire`].
const SLOT: usize = 0;

/// How many requests of one connection may wait for an answer or stream at once.
pub const IN_FLIGHT_MAX: usize = 256;

/// How many messages `chat.history` gives where the client does not say, and at most.
const HISTORY_DEFAULT: u64 = 50;
const HISTORY_MAX: u64 = 1000;

/// That the daemon answered something else than what was asked.
const MISFIT: &str = "internal error: the reply does not fit the request";

/// The most turns that `session.attach` begins with.
pub const TURNS_MAX: u64 = 100;

/// Cost of a prompt, of other writes, and of reads, in units of `[limits]`.
const PROMPT: u32 = PROMPT_COST;
const WRITE: u32 = 1;
const READ: u32 = 0;
/// Of looking through all that is remembered.
const SEARCH: u32 = 2;

/// The exoclaw protocol on one connection.
pub struct Exoclaw {
    setup: DialectSetup,
    phase: Phase,
    /// Who was let in; nobody before that.
    who: Principal,
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
struct Pending {
    ticket: Ticket,
    id: Id,
    opens: Opens,
    then: Then,
}

/// The stream that a request will be once it is answered.
#[derive(Debug, PartialEq)]
enum Opens {
    /// None: its answer is all.
    Nothing,
    /// An attached session.
    Session,
    /// The run of a prompt.
    Run { target: Target, run: RunId },
}

/// What is done with the reply to a request of this id, which came under this ticket.
type Then = Box<dyn FnOnce(&mut Exoclaw, (Ticket, Id), Result<Reply, Error>, &mut Turn<'_>)>;

/// A request whose events are being told.
#[derive(Debug)]
struct Stream {
    ticket: Ticket,
    id: Id,
    told: Streaming,
}

/// What the events of a stream are about.
#[derive(Debug)]
enum Streaming {
    Run(RunStream),
    Session(SessionStream),
}

/// The run of a `chat.send`.
#[derive(Debug)]
struct RunStream {
    session: SessionKey,
    run: RunId,
    /// Whether the client was sent a frame for it.
    begun: bool,
    /// Whether it was asked for with an idempotency key: then a restart of the step is told too.
    keyed: bool,
}

/// A request in neutral words.
struct Call {
    command: Result<Command, Error>,
    opens: Opens,
    then: Then,
}

impl Call {
    /// Asks the daemon; `told` writes the answer of its reply, for a client that is this owner.
    fn ask<C: Ask + 'static>(
        question: C,
        told: impl FnOnce(&Id, &C::Reply, &Owner) -> String + 'static,
    ) -> Self {
        Self::ask_on(question, |exoclaw, (_, id), reply, turn| {
            turn.send(told(&id, &reply, &exoclaw.who.owner));
        })
    }

    /// Asks the daemon; `then` does what its reply brings about.
    fn ask_on<C: Ask + 'static>(
        question: C,
        then: impl FnOnce(&mut Exoclaw, (Ticket, Id), C::Reply, &mut Turn<'_>) + 'static,
    ) -> Self {
        let then: Then = Box::new(|exoclaw, asked, reply, turn| match C::answer(reply) {
            Ok(reply) => then(exoclaw, asked, reply, turn),
            Err(error) => turn.send(wire::refusal(&asked.1, &wire::describe(&error))),
        });
        Self { command: Ok(question.into()), opens: Opens::Nothing, then }
    }

    /// Is refused for this, once its scope and its rate were looked at.
    fn refused(error: Error) -> Self {
        let then: Then = Box::new(|_, (_, id), reply, turn| {
            let why = reply.err().map_or_else(|| MISFIT.to_owned(), |error| wire::describe(&error));
            turn.send(wire::refusal(&id, &why));
        });
        Self { command: Err(error), opens: Opens::Nothing, then }
    }

    /// Finds nothing to ask for, and is answered so. Scope and rate are looked at all the same.
    fn nothing(why: &str, told: impl FnOnce(&Id) -> String + 'static) -> Self {
        let then: Then = Box::new(|_, (_, id), reply, turn| {
            turn.send(match reply {
                Err(error) if error.code != ErrorCode::NotFound => {
                    wire::refusal(&id, &wire::describe(&error))
                }
                _ => told(&id),
            });
        });
        Self { command: Err(ErrorCode::NotFound.error(why)), opens: Opens::Nothing, then }
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

impl std::fmt::Debug for Exoclaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exoclaw").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Exoclaw {
    /// For a connection that is about to open.
    pub fn new(setup: DialectSetup) -> Self {
        let who = Principal::new("", Scopes::of(&[]));
        Self { setup, phase: Phase::New, who, pending: Vec::new(), streams: Vec::new() }
    }

    /// Lets in who comes over a connection that checks for itself who that is, and greets nobody.
    pub(super) fn admit(&mut self, who: &Principal) {
        self.who = who.clone();
        if self.phase == Phase::New {
            self.phase = Phase::Open;
        }
    }

    /// Whether this ticket is that of a request of this dialect's, or of something it follows.
    pub(super) fn knows(&self, ticket: Ticket) -> bool {
        self.pending.iter().any(|pending| pending.ticket == ticket)
            || self.streams.iter().any(|stream| stream.ticket == ticket)
    }

    /// Whether nothing is owed to a peer that asks for nothing more: no answer, and no end of a run.
    pub(super) fn is_idle(&self) -> bool {
        let is_run = |stream: &Stream| matches!(stream.told, Streaming::Run(_));
        self.pending.is_empty() && !self.streams.iter().any(is_run)
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
            Ok(admitted) => {
                self.phase = Phase::Open;
                self.who = admitted.principal;
                turn.send(wire::hello(&self.setup.version));
            }
            Err(Error { code: ErrorCode::RateLimited, message, detail }) => {
                let is_full = matches!(detail, Some(Detail::Limit { .. }));
                let word = if is_full { "too_many_connections" } else { "rate_limited" };
                self.farewell(word, 1013, &message, turn);
            }
            Err(Error { code: ErrorCode::Unavailable, message, .. }) => {
                self.farewell("unavailable", 1013, &message, turn);
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
        self.give_up(fault, turn);
        let (_, code, reason) = words(fault);
        turn.close(code, reason);
    }

    /// Says all that is still to be said on a connection that ends for this.
    pub(super) fn give_up(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        if fault == Fault::Draining {
            for pending in std::mem::take(&mut self.pending) {
                turn.send(wire::refusal(&pending.id, "unavailable: the daemon is stopping"));
            }
        }
        let (word, code, _) = words(fault);
        turn.send(wire::farewell(word, code));
        self.close();
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
        if !method::is_known(method) {
            let text = format!("unknown method: {}", clip(method));
            return turn.send(wire::refusal(&id, &text));
        }
        let followed =
            self.streams.iter().filter(|stream| matches!(stream.told, Streaming::Session(_))).count();
        // Before the call, which may let go of something.
        if self.pending.len() + self.streams.len() - followed >= IN_FLIGHT_MAX {
            let text = format!("too many requests in flight ({IN_FLIGHT_MAX}): wait for one to end");
            return turn.send(wire::refusal(&id, &text));
        }
        let call = self.call(method, params, turn).unwrap_or_else(Call::refused);
        let attaching = self.pending.iter().filter(|pending| pending.opens == Opens::Session).count();
        if call.opens == Opens::Session && followed + attaching >= self.setup.subscriptions {
            let limit = self.setup.subscriptions;
            let text =
                format!("too many sessions attached (limits.subscriptions = {limit}): detach from one");
            return turn.send(wire::refusal(&id, &text));
        }
        let (needs, cost) = self.terms(method);
        let Call { command, opens, then } = call;
        let ticket = turn.execute(needs, cost, command);
        self.pending.push(Pending { ticket, id, opens, then });
    }

    /// The scope that a method takes, and what it costs.
    fn terms(&self, method: &str) -> (Scope, u32) {
        match method {
            "chat.send" => (Scope::Write, PROMPT),
            "chat.abort" | "session.clear" | "session.delete" => (Scope::Write, WRITE),
            "session.export" => (Scope::Read, WRITE),
            "memory.search" => (Scope::Read, SEARCH),
            "plugin.load" | "plugin.unload" => (Scope::Admin, WRITE),
            "approval.approve" | "approval.deny" => (approvals::needed(&self.who), WRITE),
            "approval.list" => (approvals::needed(&self.who), READ),
            _ => (Scope::Read, READ),
        }
    }

    /// The request in neutral words.
    ///
    /// # Errors
    /// `InvalidRequest` where its parameters are wrong.
    fn call(&mut self, method: &str, params: Params<'_>, turn: &mut Turn<'_>) -> Result<Call, Error> {
        let target = || params.read::<Place>(method)?.target(method);
        let plugin = || {
            let asked = params.read::<wire::PluginParams>(method)?;
            let name = asked.name.filter(|name| !name.trim().is_empty());
            let name = name.ok_or_else(|| invalid(method, "missing field `name`"))?;
            Ok::<_, Error>((PluginName::from(name), asked.path))
        };
        Ok(match method {
            "status" => Call::ask(GetStatus, answer::status),
            "plugin.list" => Call::ask(ListPlugins, |id, plugins, _| answer::plugins(id, plugins)),
            "plugin.load" => {
                let (name, path) = plugin()?;
                Call::ask(LoadPlugin { name, path }, answer::loaded)
            }
            "plugin.unload" => Call::ask(UnloadPlugin { name: plugin()?.0 }, answer::unloaded),
            "session.list" => Call::ask(ListSummaries, |id, list, reader| answer::sessions(id, list, reader)),
            "session.attach" => {
                let target = target()?;
                attach::call(&params.read(method)?, target)?
            }
            "session.detach" => self.detach(params.read::<wire::SessionDetach<'_>>(method)?.id()?),
            "session.clear" => Call::ask(Clear { target: target()? }, answer::cleared),
            "session.delete" => Call::ask(Delete { target: target()? }, answer::deleted),
            "session.export" => {
                let target = target()?;
                let after = params.read::<wire::SessionAttach>(method)?.after_seq.unwrap_or(0);
                Call::ask(Export { target, after: Seq(after) }, answer::exported)
            }
            "chat.send" => prompt::send(params, turn)?,
            "chat.abort" => self.abort(params)?,
            "chat.history" => {
                let target = target()?;
                let asked = params.read::<wire::ChatHistory<'_>>(method)?;
                let limit = asked.limit.unwrap_or(HISTORY_DEFAULT);
                let limit = usize::try_from(limit.min(HISTORY_MAX)).unwrap_or(usize::MAX);
                let before = asked.before.as_deref().map(answer::before);
                Call::ask(ReadHistory { target, limit, before }, answer::history)
            }
            "approval.approve" => approvals::approve(params)?,
            "approval.deny" => approvals::deny(params)?,
            "approval.list" => approvals::list(&self.who, params)?,
            "memory.search" => {
                let asked = params.read::<wire::MemorySearch<'_>>(method)?;
                let limit =
                    asked.limit.map_or(question::LIMIT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
                let question = Question::about(&asked.query, limit);
                let question = question.map_err(|error| invalid(method, &error.message))?;
                Call::ask(Query { question, tier: None, session: None }, answer::memories)
            }
            "agent.list" => Call::ask(GetCatalog, |id, catalog, _| answer::agents(id, catalog)),
            "model.list" => Call::ask(GetCatalog, |id, catalog, _| answer::models(id, catalog)),
            "budget.status" => {
                let place = params.read::<Place>(method)?;
                let target = if place.is_absent() { None } else { Some(place.target(method)?) };
                Call::ask(GetBudgets { target }, |id, budgets, _| answer::budgets(id, budgets))
            }
            _ => return Err(ErrorCode::UnknownMethod.error(format!("unknown method: {}", clip(method)))),
        })
    }

    /// `chat.abort`: of a request in flight, or of what runs in a session.
    fn abort(&self, params: Params<'_>) -> Result<Call, Error> {
        let method = "chat.abort";
        let asked = params.read::<wire::ChatAbort<'_>>(method)?;
        let Some(id) = asked.id()? else {
            let target = params.read::<Place>(method)?.target(method)?;
            return Ok(Call::ask(Abort { target, run: asked.run.map(RunId::from) }, answer::aborted));
        };
        let told = self.streams.iter().find_map(|stream| match &stream.told {
            Streaming::Run(told) if stream.id == id => {
                Some((Target::Session(told.session.clone()), told.run.clone()))
            }
            Streaming::Run(_) | Streaming::Session(_) => None,
        });
        let found = told.or_else(|| {
            self.pending.iter().find_map(|pending| match &pending.opens {
                Opens::Run { target, run } if pending.id == id => Some((target.clone(), run.clone())),
                _ => None,
            })
        });
        let reader = self.who.owner.clone();
        Ok(match found {
            Some((target, run)) => Call::ask(Abort { target, run: Some(run) }, answer::aborted),
            None => Call::nothing("no such request is in flight", move |id| {
                answer::aborted(id, &Aborted { run: None }, &reader)
            }),
        })
    }

    /// `session.detach`: lets go of a session at once, so that what is under way of it is not told any more. One that
    /// is being attached is let go of as soon as it is.
    fn detach(&mut self, id: Id) -> Call {
        let is_attaching = |pending: &&mut Pending| pending.id == id && pending.opens == Opens::Session;
        if let Some(pending) = self.pending.iter_mut().find(is_attaching) {
            pending.opens = Opens::Nothing;
            pending.then = Box::new(|exoclaw, (follow, id), reply, turn| {
                let why = match Attach::answer(reply) {
                    Ok(Attached { session, .. }) => {
                        exoclaw.let_go(Detach { target: Target::Session(session), follow }, turn);
                        "the session was detached before it was attached".to_owned()
                    }
                    Err(error) => wire::describe(&error),
                };
                turn.send(wire::refusal(&id, &why));
            });
            return Call::nothing("it is not attached yet", |id| answer::detached(id, true));
        }
        let followed =
            self.streams.iter().position(|s| s.id == id && matches!(s.told, Streaming::Session(_)));
        let stream = followed.map(|at| self.streams.remove(at));
        match stream.map(|stream| (stream.ticket, stream.told)) {
            Some((follow, Streaming::Session(told))) => {
                Call::ask(Detach { target: Target::Session(told.session), follow }, |id, detached, _| {
                    answer::detached(id, detached.found)
                })
            }
            _ => Call::nothing("no session is attached under this id", |id| answer::detached(id, false)),
        }
    }

    /// Detaches from a session without an answer to anybody.
    fn let_go(&mut self, detach: Detach, turn: &mut Turn<'_>) {
        let ticket = turn.execute(Scope::Read, READ, Ok(detach.into()));
        let then: Then = Box::new(|_, _, _, _| ());
        self.pending.push(Pending { ticket, id: Id::none(), opens: Opens::Nothing, then });
    }

    fn on_reply(&mut self, ticket: Ticket, reply: Result<Reply, Error>, turn: &mut Turn<'_>) {
        let Some(at) = self.pending.iter().position(|pending| pending.ticket == ticket) else { return };
        let Pending { id, then, .. } = self.pending.swap_remove(at);
        then(self, (ticket, id), reply, turn);
    }

    fn on_event(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>, turn: &mut Turn<'_>) {
        let Some(at) = self.streams.iter().position(|stream| stream.ticket == ticket) else { return };
        let stream = &mut self.streams[at];
        match &mut stream.told {
            Streaming::Run(told) => {
                told.tell(&stream.id, event, turn);
                if matches!(event.logged.event, Event::Ended { .. }) {
                    self.streams.remove(at);
                }
            }
            Streaming::Session(told) => {
                told.tell(&stream.id, first, event, turn);
                // Nothing follows.
                if event.logged.event == Event::Deleted {
                    self.streams.remove(at);
                }
            }
        }
    }
}

impl RunStream {
    /// Says what happened in the run, in the seed's frames.
    fn tell(&mut self, id: &Id, event: &Published, turn: &mut Turn<'_>) {
        match &event.logged.event {
            // Refused before it began: not a stream.
            Event::Ended { outcome: Outcome::Failed(error), .. }
                if !self.begun && error.code == ErrorCode::BudgetExceeded =>
            {
                turn.send(wire::refusal(id, &wire::describe(error)));
            }
            Event::Restarted | Event::Noticed(_) if !self.keyed => {}
            // Told only where a session is attached.
            Event::Prompted { .. } | Event::Thought(_) | Event::ApprovalDecided(_) => {}
            _ => {
                for line in payload(event).lines() {
                    turn.send(wire::framed(id, "", line));
                    self.begun = true;
                }
            }
        }
    }
}

/// How a connection ends for a fault: the word of the last frame, the code, and the reason for people.
fn words(fault: Fault) -> (&'static str, u16, String) {
    let (word, code, why) = match fault {
        Fault::Oversize { limit } => {
            return ("frame_too_large", 1009, format!("a frame may have {limit} bytes"));
        }
        Fault::Crowded => (
            "message_crowded_out",
            1013,
            "unfinished messages take too much room and this one is the largest: try later",
        ),
        Fault::Incomplete => ("message_timeout", 4008, "a message was not complete in time"),
        Fault::Slow => ("slow_consumer", 1008, "reads too slowly: read on, or attach again"),
        Fault::Idle => ("idle_timeout", 4008, "was silent for too long"),
        Fault::Revoked => ("credential_revoked", 4001, "the credential was revoked"),
        Fault::Expired => ("credential_expired", 4001, "the credential expired"),
        Fault::CutOff => ("unavailable", 1013, "the daemon is cut off from its cluster, try another"),
        Fault::Overloaded => ("overloaded", 1013, "too many connections, try later"),
        Fault::Draining => ("draining", 1001, "the daemon is stopping"),
    };
    (word, code, why.to_owned())
}

/// What an event says in exoclaw's words, one frame a line; encoded once for all connections.
fn payload(event: &Published) -> &str {
    // It was text when it was encoded.
    std::str::from_utf8(event.wire(SLOT, wire::payload)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
