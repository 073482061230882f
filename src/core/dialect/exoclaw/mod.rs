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
//!
//! Deliberately absent: `memory.search`, which is refused by name.

mod approvals;
mod attach;
pub mod client;
mod method;
mod prompt;
mod wire;

use std::sync::Arc;

pub use self::method::reference;

use self::attach::{ToldSession, Wants};
use self::wire::{Id, Incoming, Place};
use super::json::{Params, clip, invalid};
use super::{Dialect, Fault, Frame, Input, Setup, Turn};
use crate::access::{Admitted, Credentials, Principal, Scope, Scopes, Secret};
use crate::conversation::approval::{ApprovalReply, may_decide};
use crate::conversation::command::{
    Abort, Clear, Delete, Detach, Export, GetBudgets, ListSummaries, ReadHistory, SessionCommand,
};
use crate::conversation::event::{Event, Outcome, Published};
use crate::conversation::reply::{Aborted, Attached, Detached, SessionReply};
use crate::daemon::command::{DaemonCommand, DaemonReply, GetCatalog, GetStatus};
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{PluginName, RunId, Seq, SessionKey, Ticket};
use crate::prompt::run_options::PROMPT_COST;
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::target::Target;
use crate::time::Timestamp;
use crate::tools::plugin::{ListPlugins, LoadPlugin, PluginCommand, UnloadPlugin};

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

/// exoclaw, on one connection.
#[derive(Debug)]
pub struct Exoclaw {
    setup: Setup,
    phase: Phase,
    /// Who is let in.
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
    Attach(Wants),
    /// `approval.list` of this session; none = of all.
    Approvals(Option<SessionKey>),
    Agents,
    Models,
    Chat {
        accepted: bool,
        follow: bool,
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
        let is_run = |stream: &Stream| matches!(stream.told, Told::Run(_));
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
        let known = method::is_known(method).then(|| self.call(method, params, turn)).flatten();
        let Some(call) = known else {
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
        let is_attach = |ask: &Ask| matches!(ask, Ask::Attach(_));
        let attaching = self.pending.iter().filter(|pending| is_attach(&pending.ask)).count();
        if is_attach(&call.ask) && followed + attaching >= self.setup.subscriptions {
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
            "status" => {
                Call::plain(Scope::Read, READ, Ok(Command::Daemon(DaemonCommand::GetStatus(GetStatus))))
            }
            "plugin.list" => {
                Call::plain(Scope::Read, READ, Ok(Command::Plugin(PluginCommand::List(ListPlugins))))
            }
            "session.list" => Call::plain(
                Scope::Read,
                READ,
                Ok(Command::Session(SessionCommand::ListSummaries(ListSummaries))),
            ),
            "chat.send" => prompt::send(params, turn),
            "chat.abort" => self.abort(params),
            "chat.history" => {
                let command = target().and_then(|target| {
                    let asked = params.read::<wire::ChatHistory<'_>>(method)?;
                    let limit = asked.limit.unwrap_or(HISTORY_DEFAULT);
                    let limit = usize::try_from(limit.min(HISTORY_MAX)).unwrap_or(usize::MAX);
                    let before = asked.before.as_deref().map(wire::before);
                    Ok(Command::Session(SessionCommand::ReadHistory(ReadHistory { target, limit, before })))
                });
                Call::plain(Scope::Read, READ, command)
            }
            "session.attach" => {
                let asked = target().and_then(|target| {
                    let asked = params.read::<wire::SessionAttach>(method)?;
                    attach::command(&asked, target)
                });
                match asked {
                    Ok((command, wants)) => {
                        Call { ask: Ask::Attach(wants), ..Call::plain(Scope::Read, READ, Ok(command)) }
                    }
                    Err(error) => Call::plain(Scope::Read, READ, Err(error)),
                }
            }
            "approval.approve" => approvals::approve(&self.who, params),
            "approval.deny" => approvals::deny(&self.who, params),
            "approval.list" => approvals::list(&self.who, params),
            "agent.list" => Call {
                ask: Ask::Agents,
                ..Call::plain(Scope::Read, READ, Ok(Command::Daemon(DaemonCommand::GetCatalog(GetCatalog))))
            },
            "model.list" => Call {
                ask: Ask::Models,
                ..Call::plain(Scope::Read, READ, Ok(Command::Daemon(DaemonCommand::GetCatalog(GetCatalog))))
            },
            "session.detach" => self.detach(params),
            "session.clear" => Call::plain(
                Scope::Write,
                WRITE,
                target().map(|target| Command::Session(SessionCommand::Clear(Clear { target }))),
            ),
            "session.delete" => Call::plain(
                Scope::Write,
                WRITE,
                target().map(|target| Command::Session(SessionCommand::Delete(Delete { target }))),
            ),
            "session.export" => {
                let command = target().and_then(|target| {
                    let after = params.read::<wire::SessionAttach>(method)?.after_seq.unwrap_or(0);
                    Ok(Command::Session(SessionCommand::Export(Export { target, after: Seq(after) })))
                });
                Call::plain(Scope::Read, WRITE, command)
            }
            "budget.status" => {
                let command = params.read::<Place>(method).and_then(|place| {
                    let target = if place.is_absent() { None } else { Some(place.target(method)?) };
                    Ok(Command::Session(SessionCommand::GetBudgets(GetBudgets { target })))
                });
                Call::plain(Scope::Read, READ, command)
            }
            "plugin.load" | "plugin.unload" => {
                let command = params.read::<wire::PluginParams>(method).and_then(|plugin| {
                    let name = plugin.name.filter(|name| !name.trim().is_empty());
                    let name = name.ok_or_else(|| invalid(method, "missing field `name`"))?;
                    let name = PluginName::from(name);
                    Ok(if method == "plugin.load" {
                        Command::Plugin(PluginCommand::Load(LoadPlugin { name, path: plugin.path }))
                    } else {
                        Command::Plugin(PluginCommand::Unload(UnloadPlugin { name }))
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
            return Call::plain(
                Scope::Write,
                WRITE,
                target.map(|target| Command::Session(SessionCommand::Abort(Abort { target, run }))),
            );
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
            Some((target, run)) => Call::plain(
                Scope::Write,
                WRITE,
                Ok(Command::Session(SessionCommand::Abort(Abort { target, run: Some(run) }))),
            ),
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
            Some((follow, Told::Session(told))) => {
                let target = Target::Session(told.session);
                Call::plain(
                    Scope::Read,
                    READ,
                    Ok(Command::Session(SessionCommand::Detach(Detach { target, follow }))),
                )
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
            (
                Ask::Chat { accepted: wanted, follow, .. },
                Ok(Reply::Session(SessionReply::Accepted(accepted))),
            ) => {
                if wanted {
                    turn.send(wire::accepted(&id, &accepted.run, accepted.seq));
                }
                if !follow {
                    return;
                }
                let told =
                    ToldRun { session: accepted.session, run: accepted.run, begun: wanted, keyed: wanted };
                self.streams.push(Stream { ticket, id, told: Told::Run(told) });
            }
            (
                Ask::Attach(wants),
                Ok(Reply::Session(SessionReply::Attached(Attached { session, after, head, model, .. }))),
            ) => {
                let seen = session.seen_by(&self.who.owner);
                let agent = session.agent();
                let banner = wants.details.then_some((&*agent, model.as_ref()));
                turn.send(wire::attached(&id, seen, head, banner));
                let told = ToldSession::new(session, wants, after, head);
                self.streams.push(Stream { ticket, id, told: Told::Session(told) });
            }
            (Ask::Approvals(session), Ok(Reply::Approval(reply))) => {
                let ApprovalReply::List(calls) = *reply else {
                    return turn.send(wire::refusal(&id, MISFIT));
                };
                let is_asked = |of: &SessionKey| session.as_ref().is_none_or(|session| session == of);
                let calls = calls.iter().filter(|call| is_asked(&call.session));
                let calls = calls.filter(|call| may_decide(&self.who, &call.prompted_by));
                turn.send(wire::waiting(&id, calls, &self.who.owner));
            }
            (Ask::Agents, Ok(Reply::Daemon(DaemonReply::Catalog(catalog)))) => {
                turn.send(wire::agents(&id, &catalog))
            }
            (Ask::Models, Ok(Reply::Daemon(DaemonReply::Catalog(catalog)))) => {
                turn.send(wire::models(&id, &catalog))
            }
            (Ask::DetachNothing, Err(error)) if error.code == ErrorCode::NotFound => {
                turn.send(wire::answer(
                    &id,
                    &Reply::Session(SessionReply::Detached(Detached { found: false })),
                    &self.who.owner,
                ));
            }
            (Ask::AbortNothing, Err(error)) if error.code == ErrorCode::NotFound => {
                turn.send(wire::answer(
                    &id,
                    &Reply::Session(SessionReply::Aborted(Aborted { run: None })),
                    &self.who.owner,
                ));
            }
            (Ask::Chat { .. } | Ask::Attach(_) | Ask::Approvals(_) | Ask::Agents | Ask::Models, Ok(_))
            | (
                _,
                Ok(
                    Reply::Session(SessionReply::Accepted(_))
                    | Reply::Session(SessionReply::Attached(Attached { .. })),
                ),
            ) => {
                turn.send(wire::refusal(&id, MISFIT));
            }
            (_, Ok(reply)) => turn.send(wire::answer(&id, &reply, &self.who.owner)),
            (_, Err(error)) => turn.send(wire::refusal(&id, &wire::describe(&error))),
        }
    }

    fn on_event(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>, turn: &mut Turn<'_>) {
        let Some(at) = self.streams.iter().position(|stream| stream.ticket == ticket) else { return };
        let stream = &mut self.streams[at];
        match &mut stream.told {
            Told::Run(told) => {
                told.tell(&stream.id, event, turn);
                if matches!(event.logged.event, Event::Ended { .. }) {
                    self.streams.remove(at);
                }
            }
            Told::Session(told) => {
                told.tell(&stream.id, first, event, turn);
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
    fn tell(&mut self, id: &Id, event: &Published, turn: &mut Turn<'_>) {
        match &event.logged.event {
            // Refused before it began: not a stream.
            Event::Ended { outcome: Outcome::Failed(error), .. }
                if !self.begun && error.code == ErrorCode::BudgetExceeded =>
            {
                turn.send(wire::refusal(id, &wire::describe(error)));
            }
            Event::Restarted if !self.keyed => {}
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
