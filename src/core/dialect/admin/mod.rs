//! The operator's protocol: `admin.*`, JSON-RPC 2.0, one message a frame. Spoken on `/admin`, and on
//! the Unix socket beside xeno's ([`socket`](super::socket)).
//!
//! ```text
//!            credential required               admin.auth            let in, as an admin
//!   New ───────────────────────────► Waiting ──────────────► Checking ──────────────────► Open
//!    │                                  │ deadline, anything else │ refused                │ fault, peer gone
//!    │ none required: Checking          ▼                         ▼                        ▼
//!    └────────────────────────────► Closed ◄──────────────────────┴────────────────────────┘
//! ```
//!
//! What a request may be is one table ([`method`]): a row has the method's name, what it takes, and the function
//! that reads that and asks the daemon. Most ask for something that only operators ask for
//! ([`operator`](crate::daemon::operator)), the others for what every client may.
//!
//! | notification | tells |
//! |---|---|
//! | `admin.session.event` | an event of a session that is tailed: [`event`], with `session` and `follow` |
//! | `admin.event` | of `admin.events`: the same of any session, or an [`announcement`], with `follow` |
//! | `admin.backup.progress` and the like | how far a request is, before its answer |
//! | `admin.closing` | why the daemon ends the connection; the last message |
//!
//! A request without an id is executed and not answered. Absent: batches.

mod activity;
mod actors;
pub mod announcement;
mod approvals;
mod bus;
mod channels;
mod cluster;
mod config;
mod connections;
mod devices;
pub mod event;
mod jobs;
mod log;
mod mcp;
mod memory;
mod method;
pub(super) mod plugins;
mod reference;
mod session;
mod sessions;
mod skills;
mod status;
mod tokens;
mod upkeep;
mod usage;

pub use reference::reference;
pub use status::LOCKED_OUT;

use std::sync::Arc;

use serde_json::{Value, json};

use super::calls::{self, Calling, Calls};
use super::{Dialect, DialectSetup, Fault, Frame, Input, Turn};
use crate::access::{Admitted, Credentials, Secret};
use crate::conversation::command::{Detach, Unwatch};
use crate::conversation::event::{Event, Published};
use crate::daemon::announcement::Announcement;
use crate::daemon::operator::Progress;
use crate::dialect::jsonrpc::{self, Request};
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{SessionKey, Ticket};
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::scope::Scope;
use crate::target::Target;
use crate::time::Timestamp;

/// The largest message, in bytes, on `/admin`.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// What a request costs, in units of `[limits]`.
const COST: u32 = 1;

/// Close codes: no or wrong credential, and one that is none of an admin.
const UNAUTHENTICATED: u16 = 4001;
const FORBIDDEN: u16 = 4003;

/// The operator's protocol, on one connection.
#[derive(Debug)]
pub struct Admin {
    setup: DialectSetup,
    phase: Phase,
    /// Who it is, once that is known.
    principal: Option<Arc<str>>,
    /// The id of the `admin.auth` that is being checked.
    claim: Option<Option<Value>>,
    calls: Calls<Self>,
    follows: Vec<Follow>,
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
type Call = calls::Call<Admin>;

/// Who is to be answered.
pub(super) struct Asker {
    /// None where no answer is wanted.
    id: Option<Value>,
    /// Whether it begins to follow something.
    follows: bool,
}

/// Something that is followed, until the connection ends.
#[derive(Debug)]
struct Follow {
    ticket: Ticket,
    followed: Followed,
}

#[derive(Clone, Debug)]
enum Followed {
    Session(SessionKey),
    Everything,
}

impl Dialect for Admin {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match (self.phase, input) {
            (Phase::Closed, _) => {}
            (Phase::New, Input::Opened) if self.setup.credentials_required => self.phase = Phase::Waiting,
            (Phase::New, Input::Opened) => {
                self.phase = Phase::Checking;
                turn.authenticate(Credentials::None);
            }
            (Phase::Waiting, Input::Frame(frame)) => self.on_first(&frame, turn),
            (Phase::Waiting, Input::Tick) if turn.now() >= self.setup.handshake_deadline => {
                self.farewell("no admin.auth in time", UNAUTHENTICATED, turn);
            }
            (Phase::Checking, Input::Authenticated(answer)) => self.on_authenticated(answer, turn),
            (Phase::Open, Input::Authenticated(answer)) => self.on_authenticated_again(answer, turn),
            (Phase::Open, Input::Frame(frame)) => match request(&frame) {
                Ok(request) => self.on_request(request, turn),
                Err(refusal) => turn.send(refusal),
            },
            (Phase::Open, Input::Reply(ticket, reply)) => self.take_reply(ticket, reply, turn),
            (Phase::Open, Input::Progress(ticket, Progress::Backup { pages_left })) => {
                if self.calls.has(ticket) {
                    turn.send(notification("admin.backup.progress", &json!({ "pages_left": pages_left })));
                }
            }
            (Phase::Open, Input::Event { ticket, event, .. }) => self.on_event(ticket, event, turn),
            (Phase::Open, Input::Announced(announcement)) => self.on_announced(announcement, turn),
            (_, Input::Fault(fault)) => self.on_fault(fault, turn),
            (_, Input::Ended) => self.close(),
            // Before it is open a connection asks for nothing and follows nothing; a tick may come late.
            (
                _,
                Input::Opened
                | Input::Frame(_)
                | Input::Authenticated(_)
                | Input::Reply(..)
                | Input::Progress(..)
                | Input::Event { .. }
                | Input::Announced(_)
                | Input::Invoked(_)
                | Input::Drained
                | Input::Tick,
            ) => {}
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        (self.phase == Phase::Waiting).then_some(self.setup.handshake_deadline)
    }
}

impl Calling for Admin {
    type Asker = Asker;

    fn calls(&mut self) -> &mut Calls<Self> {
        &mut self.calls
    }

    fn scope(&self, _: Option<&mut Asker>) -> Scope {
        Scope::Admin
    }

    fn answer(&mut self, asker: Asker, outcome: Result<Value, Error>, turn: &mut Turn<'_>) {
        reply(asker.id, outcome, turn);
    }
}

impl Admin {
    /// For a connection that is about to open.
    pub fn new(setup: DialectSetup) -> Self {
        Self {
            setup,
            phase: Phase::New,
            principal: None,
            claim: None,
            calls: Calls::default(),
            follows: Vec::new(),
        }
    }

    /// Whether this ticket is that of a request of this dialect's, or of something it follows.
    pub(super) fn knows(&self, ticket: Ticket) -> bool {
        self.calls.has(ticket) || self.follows.iter().any(|follow| follow.ticket == ticket)
    }

    /// Whether nothing is owed to a peer that asks for nothing more.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.len() == 0
    }

    /// The first message where a credential is required.
    fn on_first(&mut self, frame: &Frame, turn: &mut Turn<'_>) {
        let refuse = |id: &Value, why: &str| {
            let error = ErrorCode::Unauthenticated.error(format!("unauthenticated: {why}"));
            jsonrpc::answer(id, Err(error))
        };
        let refusal = match request(frame) {
            Ok(Request { id, method, params }) if method == "admin.auth" => match token(&params) {
                Some(token) => {
                    self.phase = Phase::Checking;
                    self.claim = Some(id);
                    return turn.authenticate(Credentials::Token(token));
                }
                None => refuse(&id.unwrap_or_default(), "admin.auth takes {\"token\"}"),
            },
            Ok(Request { id, .. }) => {
                refuse(&id.unwrap_or_default(), "the first message must be admin.auth {\"token\"}")
            }
            Err(refusal) => refusal,
        };
        turn.send(refusal);
        self.farewell("not authenticated", UNAUTHENTICATED, turn);
    }

    fn on_authenticated(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        let claim = self.claim.take();
        let (error, code) = match answer {
            Ok(Admitted { principal, .. }) if principal.scopes.allows(Scope::Admin) => {
                self.phase = Phase::Open;
                self.principal = Some(principal.name);
                if let Some(Some(id)) = claim {
                    turn.send(jsonrpc::answer(&id, Ok(self.greeting())));
                }
                return;
            }
            Ok(_) => {
                let needed = Detail::MissingScope(Scope::Admin);
                (ErrorCode::Forbidden.error("forbidden: needs admin").with(needed), FORBIDDEN)
            }
            // Of the connections there are too many, or of what was shown and did not hold.
            Err(error) if matches!(error.code, ErrorCode::RateLimited | ErrorCode::Unavailable) => {
                (error, 1013)
            }
            // Whether there is such a credential is nobody's business.
            Err(_) => (ErrorCode::Unauthenticated.error("unauthenticated: wrong token"), UNAUTHENTICATED),
        };
        let why = error.message.clone();
        if let Some(Some(id)) = claim {
            turn.send(jsonrpc::answer(&id, Err(error)));
        }
        self.farewell(&why, code, turn);
    }

    /// Who is let in already showed another credential; where it does not hold nothing changes.
    fn on_authenticated_again(&mut self, answer: Result<Admitted, Error>, turn: &mut Turn<'_>) {
        let outcome = answer.map(|_| self.greeting());
        if let Some(Some(id)) = self.claim.take() {
            turn.send(jsonrpc::answer(&id, outcome));
        }
    }

    /// The answer to `admin.auth`.
    fn greeting(&self) -> Value {
        json!({ "principal": self.principal.as_deref(), "version": &*self.setup.version })
    }

    fn on_request(&mut self, Request { id, method, params }: Request, turn: &mut Turn<'_>) {
        if method == "admin.auth" {
            return self.on_auth(id, &params, turn);
        }
        if method == "admin.unfollow" {
            return match self.unfollow(&params) {
                Err(error) => reply(id, Err(error), turn),
                call => self.proceed(Some(Asker { id, follows: false }), COST, call, turn),
            };
        }
        let found = method::find(&method);
        let follows = found.as_ref().is_ok_and(|method| method.follows);
        if follows && self.following() >= self.setup.subscriptions {
            return reply(id, Err(self.too_many()), turn);
        }
        let call = found.and_then(|method| method.call(params));
        self.proceed(Some(Asker { id, follows }), COST, call, turn);
    }

    /// `admin.auth` of somebody who was let in already.
    fn on_auth(&mut self, id: Option<Value>, params: &Value, turn: &mut Turn<'_>) {
        match token(params) {
            // No credential is looked at where none is required.
            _ if !self.setup.credentials_required => reply(id, Ok(self.greeting()), turn),
            Some(token) => {
                self.claim = Some(id);
                turn.authenticate(Credentials::Token(token));
            }
            None => {
                let why = "invalid admin.auth params: it takes {\"token\"}";
                reply(id, Err(ErrorCode::InvalidRequest.error(why)), turn);
            }
        }
    }

    /// How many things are followed, or soon will be.
    fn following(&self) -> usize {
        self.follows.len() + self.calls.askers().filter(|asker| asker.follows).count()
    }

    fn too_many(&self) -> Error {
        let limit = self.setup.subscriptions;
        let why = format!(
            "one connection may follow {limit} things (limits.subscriptions): end one with admin.unfollow"
        );
        ErrorCode::Unavailable.error(why)
    }

    /// Lets go of something at once: what is under way of it is not told any more. The daemon does so too.
    fn unfollow(&mut self, params: &Value) -> Result<Call, Error> {
        let Some(follow) = params.get("follow").and_then(Value::as_u64).map(Ticket) else {
            let why = "invalid admin.unfollow params: it takes {\"follow\"}, a number";
            return Err(ErrorCode::InvalidRequest.error(why));
        };
        let answer = move |ended: bool| json!({ "follow": follow.0, "ended": ended });
        let Some(at) = self.follows.iter().position(|known| known.ticket == follow) else {
            return Ok(Call::Answer(answer(false)));
        };
        match self.follows.swap_remove(at).followed {
            Followed::Session(key) => {
                Call::ask(Detach { target: Target::Session(key), follow }, move |_, _, _| answer(true))
            }
            Followed::Everything => Call::ask(Unwatch { watch: follow }, move |_, _, _| answer(true)),
        }
    }

    fn on_event(&mut self, ticket: Ticket, event: &Published, turn: &mut Turn<'_>) {
        let Some(at) = self.follows.iter().position(|follow| follow.ticket == ticket) else { return };
        let is_tail = matches!(self.follows[at].followed, Followed::Session(_));
        let mut params = event::to_json(&event.logged);
        params["session"] = json!(event.session.as_str());
        params["follow"] = json!(ticket.0);
        turn.send(notification(if is_tail { "admin.session.event" } else { "admin.event" }, &params));
        // Nothing follows.
        if is_tail && event.logged.event == Event::Deleted {
            self.follows.swap_remove(at);
        }
    }

    fn on_announced(&mut self, announcement: &Announcement, turn: &mut Turn<'_>) {
        let everything = |follow: &&Follow| matches!(follow.followed, Followed::Everything);
        let Some(follow) = self.follows.iter().find(everything) else { return };
        let mut params = announcement::to_json(announcement);
        params["follow"] = json!(follow.ticket.0);
        turn.send(notification("admin.event", &params));
    }

    /// Says why the connection ends and ends it.
    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        let (reason, code) = words(fault);
        if let Fault::Oversize { limit } = fault {
            turn.send(oversize(limit));
        }
        self.give_up(&unanswered(), turn);
        self.farewell(&reason, code, turn);
    }

    fn farewell(&mut self, reason: &str, code: u16, turn: &mut Turn<'_>) {
        turn.send(closing(reason));
        turn.close(code, reason);
        self.close();
    }

    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.calls = Calls::default();
        self.follows = Vec::new();
    }
}

/// The request in a frame.
///
/// # Errors
/// The message to answer with, where there is none.
fn request(frame: &Frame) -> Result<Request, String> {
    match frame {
        Frame::Text(text) => jsonrpc::parse(text.as_bytes()),
        Frame::Binary(_) => Err(not_text()),
    }
}

/// The answer to what is not text.
pub(super) fn not_text() -> String {
    jsonrpc::failure(&Value::Null, jsonrpc::PARSE_ERROR, "parse error: expected text in UTF-8", None)
}

/// The answer to what is too large.
pub(super) fn oversize(limit: usize) -> String {
    let why = format!("invalid request: a message is longer than {limit} bytes");
    jsonrpc::failure(&Value::Null, jsonrpc::INVALID_REQUEST, &why, None)
}

/// The last message of a connection that the daemon ends.
pub(super) fn closing(reason: &str) -> String {
    notification("admin.closing", &json!({ "reason": reason }))
}

/// Why a connection ends, for people, and the code it is closed with.
pub(super) fn words(fault: Fault) -> (String, u16) {
    let (reason, code) = match fault {
        Fault::Oversize { limit } => return (format!("a message may have {limit} bytes"), 1009),
        Fault::Crowded => {
            ("unfinished messages take too much room and this one is the largest: try later", 1013)
        }
        Fault::Incomplete => ("a message was not complete in time", 4008),
        Fault::Slow => ("too slow: it fell too far behind the log; go on after the last number seen", 1008),
        Fault::Idle => ("it was silent for too long", 4008),
        Fault::Revoked => ("the credential was revoked", UNAUTHENTICATED),
        Fault::Expired => ("the credential expired", UNAUTHENTICATED),
        Fault::CutOff => {
            ("cut off from its cluster: the daemon can't know whether the credential holds", 1013)
        }
        Fault::Overloaded => ("too many connections: try later", 1013),
        Fault::Draining => ("the daemon is stopping", 1001),
    };
    (reason.to_owned(), code)
}

/// Why a request is not answered when its connection ends.
pub(super) fn unanswered() -> Error {
    ErrorCode::Unavailable.error("unavailable: the connection ends")
}

/// Answers, where an answer is wanted.
fn reply(id: Option<Value>, outcome: Result<Value, Error>, turn: &mut Turn<'_>) {
    if let Some(id) = id {
        turn.send(jsonrpc::answer(&id, outcome));
    }
}

/// The message that tells something nobody waits for.
fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

/// The token in the parameters of `admin.auth`.
fn token(params: &Value) -> Option<Secret> {
    params.get("token").and_then(Value::as_str).map(Secret::new)
}

/// Answers a method where no daemon runs, by `execute`, which is given the commands it asks for.
///
/// # Errors
/// As the method's.
pub async fn answer<F: Future<Output = Result<Reply, Error>>>(
    method: &str,
    params: Value,
    mut execute: impl FnMut(Command) -> F,
) -> Result<Value, Error> {
    let mut admin = Admin::new(DialectSetup::default());
    let mut call = method::find(method)?.call(params)?;
    loop {
        call = match call {
            Call::Answer(answer) => return Ok(answer),
            Call::Ask(command, then) => {
                let reply = execute(*command).await;
                let (mut actions, mut tickets, mut random) = (Vec::new(), 0, || [0; 16]);
                let now = Timestamp::default();
                then(&mut admin, reply, &mut Turn::new(now, &mut actions, &mut tickets, &mut random))?
            }
            Call::Elsewhere => panic!("it is answered elsewhere"),
        }
    }
}
