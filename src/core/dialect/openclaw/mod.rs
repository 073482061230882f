//! The gateway protocol of Clawdbot (number 3) and OpenClaw (number 4).
//!
//! ```text
//!   New ──► Waiting ── connect ──► Checking ── let in ──► Greeting ── hello-ok ──► Open
//!            │ challenge sent,        │ refused             │ what hello-ok tells      │ fault,
//!            │ nothing in time        ▼                     ▼ is asked for             ▼ peer gone
//!            └─────────────────────► Closed ◄───────────────┴──────────────────────────┘
//! ```
//!
//! What a request may be is one table ([`method`]): a row has the method's name, its scope and cost,
//! and the function that reads its parameters. That answers at once or asks the daemon, and then
//! makes the answer of the reply, or asks on.
//!
//! A connection that names a session in a request follows it from then on ([`follow`]): what
//! happens in it is told as `chat` and `agent` events ([`stream`]). One that never named a session
//! is told of all it may see, also of runs that began before it came. A run that is told is told to its
//! end, whatever is named meanwhile.
//!
//! How a connection ends: refused handshakes are in [`connect`]; else
//!
//! | why | code |
//! |---|---|
//! | frame over the limit | 1009 |
//! | reads too slowly, silent for too long, credential revoked or expired | 1008 |
//! | too many connections | 1013 |
//! | daemon stops (after a `shutdown` event) | 1012 |
//!
//! Deliberately absent: `exec.approval.request` and whatever else [`method`] has no row for; it
//! is refused by name and not among the `features` a client is told.

mod absent;
mod agents;
mod approvals;
mod catalog;
mod chat;
mod connect;
mod cron;
mod devices;
mod follow;
mod history;
mod keys;
mod lists;
mod logs;
mod machine;
mod message;
mod method;
mod nodes;
mod reference;
mod sessions;
mod settings;
mod slash;
mod spending;
mod state;
mod stream;
mod tasks;
mod tools;
mod usage;
mod wait;
mod wire;

pub use self::reference::reference;

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use self::follow::{Followed, Held};
use self::keys::KeyMatch;
use self::method::{Method, Who};
use self::stream::RunStream;
use self::wait::Vain;
use self::wire::{Failure, Incoming, Protocol, Rest};
use super::calls::{self, Calling, Calls, misfit};
use super::json::Params;
use super::{Dialect, DialectSetup, Fault, Frame, Input, Turn};
use crate::conversation::command::Exists;
use crate::conversation::reply::{Attached, SessionReply};
use crate::daemon::announcement::Announcement;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, RunId, SessionKey, Ticket};
use crate::request::reply::Reply;
use crate::scope::{Role, Scope, Scopes};
use crate::target::Target;
use crate::time::Timestamp;

/// How many keys are remembered that could have been of two sessions.
const LOCATED_MAX: usize = 1024;

/// How many frames may wait for the end of the handshake.
const EARLY_MAX: usize = 32;

/// OpenClaw, on one connection.
pub struct OpenClaw {
    setup: DialectSetup,
    phase: Phase,
    greeting: connect::Greeting,
    nonce: String,
    protocol: Protocol,
    /// Who is let in.
    who: Who,
    /// Whose what it makes is.
    owner: Owner,
    /// The device that it comes from.
    device: Option<String>,
    /// What the client said it can do.
    caps: Vec<String>,
    /// Whether it is a page in a browser, which stays while its connections come and go.
    is_page: bool,
    /// What came behind the handshake, before its end.
    early: VecDeque<Frame>,
    calls: Calls<Self>,
    /// Requests that wait until it is known which session their key stands for.
    locating: HashMap<String, Vec<(String, String)>>,
    /// Which sessions keys stand for that could be either of two.
    located: HashMap<String, SessionKey>,
    /// The sessions that were named.
    followed: HashMap<SessionKey, Followed>,
    /// What is told of all sessions, while none was named.
    watch: Option<Ticket>,
    /// When is looked which runs are under way, while no session was named.
    look: Option<Timestamp>,
    /// Runs that are being told, or waited for.
    runs: HashMap<RunId, RunStream>,
    /// Runs that were asked for because they began before they were told, and how their session is
    /// called.
    joining: HashMap<RunId, String>,
    /// What is told a little later, in order.
    held: VecDeque<Held>,
    /// Runs whose end was told lately.
    ended: VecDeque<RunId>,
    /// `agent.wait` of runs that nobody knows.
    vain: Vec<Vain>,
    /// Whether changes of sessions are told.
    is_subscribed: bool,
    /// How often a session was named.
    named: u64,
    /// The number of the last event.
    event_seq: u64,
    /// The versions of presence and health that were told last.
    state_version: (u64, u64),
    next_tick: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Waiting,
    Checking,
    Greeting,
    Open,
    Closed,
}

/// What becomes of a request.
type Call = calls::Call<OpenClaw>;

/// What becomes of a request, or why it is refused.
type Answered = Result<Call, Error>;

/// Who is to be answered.
pub(super) struct Asker {
    id: String,
    /// The scope under which it is asked.
    needs: Scope,
}

/// A request of a client that may make it.
struct Request<'a> {
    id: &'a str,
    method: &'static Method,
    params: Params<'a>,
}

impl<'a> Request<'a> {
    /// Its parameters; those that are not named in `T` are ignored.
    fn read<T: serde::Deserialize<'a>>(&self) -> Result<T, Error> {
        self.params.read(self.method.name)
    }

    /// The refusal of its parameters.
    fn invalid(&self, why: &str) -> Error {
        super::json::invalid(self.method.name, why)
    }
}

impl Calling for OpenClaw {
    type Asker = Asker;

    fn calls(&mut self) -> &mut Calls<Self> {
        &mut self.calls
    }

    fn scope(&self, asker: Option<&mut Asker>) -> Scope {
        let Some(asker) = asker else { return self.granted(Scope::Read) };
        // Who may not read asks on as it was asked.
        let then = if self.who.scopes.allows(Scope::Read) { Scope::Read } else { asker.needs };
        self.granted(std::mem::replace(&mut asker.needs, then))
    }

    fn answer(&mut self, asker: Asker, outcome: Result<Value, Error>, turn: &mut Turn<'_>) {
        turn.send(match outcome {
            Ok(payload) => wire::answer(&asker.id, &payload),
            Err(error) => wire::refusal(&asker.id, &Failure::of(&error, self.protocol)),
        });
    }
}

impl Dialect for OpenClaw {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match (self.phase, input) {
            (Phase::Closed, _) => {}
            (Phase::New, Input::Opened) => self.challenge(turn),
            (Phase::Waiting, Input::Frame(frame)) => self.on_first(&frame, turn),
            (Phase::Checking | Phase::Greeting, Input::Frame(frame)) => self.on_early(frame, turn),
            (Phase::Waiting | Phase::Checking | Phase::Greeting, Input::Tick) => self.on_deadline(turn),
            (Phase::Checking, Input::Authenticated(answer)) => self.on_authenticated(answer, turn),
            (Phase::Open, Input::Frame(frame)) => self.on_frame(&frame, turn),
            (Phase::Open, Input::Tick) => self.on_tick(turn),
            (Phase::Greeting | Phase::Open, Input::Reply(ticket, reply)) => {
                self.on_reply(ticket, reply, turn)
            }
            (Phase::Greeting | Phase::Open, Input::Event { ticket, event, .. }) => {
                self.on_event(ticket, event, turn);
            }
            (Phase::Open, Input::Announced(announcement)) => self.on_announced(announcement, turn),
            (Phase::Open, Input::Invoked(invocation)) => self.tell_invocation(invocation, turn),
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
            Phase::Waiting | Phase::Checking | Phase::Greeting => Some(self.setup.handshake_deadline),
            Phase::Open => {
                let runs = self.runs.values().filter_map(RunStream::deadline);
                let vain = self.vain.iter().map(|vain| vain.look);
                let held = self.held.front().map(|held| held.due);
                runs.chain(vain).chain(held).chain(self.look).chain([self.next_tick]).min()
            }
        }
    }
}

impl OpenClaw {
    /// For a connection that is about to open.
    pub fn new(setup: DialectSetup) -> Self {
        Self {
            setup,
            phase: Phase::New,
            greeting: connect::Greeting::default(),
            nonce: String::new(),
            protocol: Protocol::Three,
            who: Who { role: Role::Operator, scopes: Scopes::NONE },
            owner: Owner::Credential("".into()),
            device: None,
            caps: Vec::new(),
            is_page: false,
            early: VecDeque::new(),
            calls: Calls::default(),
            locating: HashMap::new(),
            located: HashMap::new(),
            followed: HashMap::new(),
            watch: None,
            look: None,
            runs: HashMap::new(),
            joining: HashMap::new(),
            held: VecDeque::new(),
            ended: VecDeque::new(),
            vain: Vec::new(),
            is_subscribed: false,
            named: 0,
            event_seq: 0,
            state_version: (0, 0),
            next_tick: Timestamp::default(),
        }
    }

    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.early = VecDeque::new();
        self.calls = Calls::default();
        self.locating = HashMap::new();
        self.followed = HashMap::new();
        self.runs = HashMap::new();
        self.joining = HashMap::new();
        self.held = VecDeque::new();
        self.vain = Vec::new();
    }

    /// Closes, with these last words to whoever waits for an answer.
    fn end(&mut self, code: u16, reason: &str, turn: &mut Turn<'_>) {
        turn.close(code, reason);
        self.close();
    }

    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        let (code, reason) = match fault {
            Fault::Oversize { limit } => (1009, format!("a frame may have {limit} bytes")),
            Fault::Crowded => (1013, "unfinished messages take too much room, try later".into()),
            Fault::Incomplete => (1008, "a message was not complete in time".into()),
            Fault::Slow => (1008, "slow consumer".into()),
            Fault::Idle => (1008, "was silent for too long".into()),
            Fault::Revoked => (1008, "unauthorized: the credential was revoked".into()),
            Fault::Expired => (1008, "unauthorized: the credential expired".into()),
            Fault::CutOff => (1013, "cut off from its cluster, try another gateway".into()),
            Fault::Overloaded => (1013, "too many connections, try later".into()),
            Fault::Draining => {
                self.give_up(&ErrorCode::Unavailable.error("the daemon is stopping"), turn);
                if self.phase == Phase::Open {
                    self.emit("shutdown", r#"{"reason":"service restart","restartExpectedMs":null}"#, turn);
                }
                (1012, "service restart".into())
            }
        };
        self.end(code, &reason, turn);
    }

    /// Sends an event, with the connection's next number.
    fn emit(&mut self, name: &str, payload: &str, turn: &mut Turn<'_>) {
        self.event_seq += 1;
        turn.send(wire::event(name, payload, Rest { seq: Some(self.event_seq), state_version: None }));
    }

    /// Sends an event that has state with versions.
    fn emit_state(&mut self, name: &str, payload: &Value, state_version: (u64, u64), turn: &mut Turn<'_>) {
        self.event_seq += 1;
        let rest = Rest { seq: Some(self.event_seq), state_version: Some(state_version) };
        turn.send(wire::event(name, &payload.to_string(), rest));
    }

    /// Something came behind the handshake, before its end.
    fn on_early(&mut self, frame: Frame, turn: &mut Turn<'_>) {
        if self.early.len() >= EARLY_MAX {
            return self.end(1008, "too many frames before hello-ok", turn);
        }
        self.early.push_back(frame);
    }

    fn on_frame(&mut self, frame: &Frame, turn: &mut Turn<'_>) {
        match wire::read(frame) {
            Incoming::Request { id, method, params } => self.on_request(&id, &method, params, turn),
            Incoming::Broken(id, why) => {
                let failure = Failure::new("INVALID_REQUEST", format!("invalid request frame: {why}"));
                turn.send(wire::refusal(id.as_deref().unwrap_or("invalid"), &failure));
            }
            // What is not JSON has nothing to be answered under.
            Incoming::Event | Incoming::Garbage => {}
        }
    }

    /// Role and scope, then whether there is such a method, then its parameters.
    fn on_request(&mut self, id: &str, name: &str, params: Params<'_>, turn: &mut Turn<'_>) {
        if name == "connect" {
            let failure = Failure::new("INVALID_REQUEST", "connect is only valid as the first request");
            return turn.send(wire::refusal(id, &failure));
        }
        let (method, needs) = match method::find(name, params, &self.who, self.protocol) {
            Ok(found) => found,
            Err(failure) => return turn.send(wire::refusal(id, &failure)),
        };
        let held = self.locating.values().map(Vec::len).sum();
        if let Err(full) = self.calls.room(held) {
            return turn.send(wire::refusal(id, &Failure::of(&full, self.protocol)));
        }
        let call = (method.handle)(self, &Request { id, method, params }, turn);
        self.proceed(Some(Asker { id: id.to_owned(), needs }), method.cost, call, turn);
    }

    /// The scope under which the connection is let do what `needs` this one.
    fn granted(&self, needs: Scope) -> Scope {
        if self.who.role == Role::Node { Scope::Read } else { needs }
    }

    fn on_reply(&mut self, ticket: Ticket, reply: Result<Reply, Error>, turn: &mut Turn<'_>) {
        if let Ok(Reply::Session(SessionReply::Attached(Attached { session, .. }))) = &reply {
            // Its events come under this ticket.
            self.attached(ticket, session);
        }
        self.take_reply(ticket, reply, turn);
    }

    /// The session a client's key stands for. Where that is not known yet the request waits until it
    /// is, and `None` says so.
    fn session(
        &mut self,
        request: &Request<'_>,
        key: Option<&str>,
        turn: &mut Turn<'_>,
    ) -> Result<Option<SessionKey>, Error> {
        let key = key.unwrap_or(keys::MAIN);
        let (first, second) = match keys::read(key, self.default_agent(), &self.owner)? {
            KeyMatch::One(session) => return Ok(Some(session)),
            KeyMatch::Either(first, second) => (first, second),
        };
        if let Some(session) = self.located.get(key) {
            return Ok(Some(session.clone()));
        }
        let held = (
            request.id.to_owned(),
            format!(
                r#"{{"type":"req","id":{},"method":{},"params":{}}}"#,
                super::json::json(request.id),
                super::json::json(request.method.name),
                request.params.0.map_or("{}", |params| params.get())
            ),
        );
        let waiting = self.locating.entry(key.to_owned()).or_default();
        waiting.push(held);
        if waiting.len() > 1 {
            return Ok(None);
        }
        let key = key.to_owned();
        self.aside(Exists { session: first.clone() }, turn, move |dialect, reply, turn| {
            let waiting = dialect.locating.remove(&key).unwrap_or_default();
            match reply {
                Ok(is_there) => {
                    if dialect.located.len() >= LOCATED_MAX {
                        dialect.located.clear();
                    }
                    dialect.located.insert(key.clone(), if is_there { first } else { second });
                    for (_, frame) in waiting {
                        dialect.on_frame(&Frame::Text(frame.into()), turn);
                    }
                    if !is_there {
                        // It may come to be.
                        dialect.located.remove(&key);
                    }
                }
                Err(error) => {
                    let failure = Failure::of(&error, dialect.protocol);
                    waiting.iter().for_each(|(id, _)| turn.send(wire::refusal(id, &failure)));
                }
            }
        });
        Ok(None)
    }

    /// The session a client's key stands for, where that is known already.
    fn session_known(&self, key: &str) -> Option<SessionKey> {
        match keys::read(key, self.default_agent(), &self.owner).ok()? {
            KeyMatch::One(session) => Some(session),
            KeyMatch::Either(..) => self.located.get(key).cloned(),
        }
    }

    fn on_announced(&mut self, announcement: &Announcement, turn: &mut Turn<'_>) {
        if self.who.role == Role::Node {
            return;
        }
        match announcement {
            Announcement::Presence(presence) => self.tell_presence(presence, turn),
            Announcement::Health(overview) => self.tell_health(overview, turn),
            // Told in no words of this protocol.
            Announcement::Report(_) => {}
            Announcement::SessionChanged(change) => self.tell_session_changed(change, turn),
            Announcement::Pairing(news) => self.tell_pairing(news, turn),
            // It has no words for these.
            Announcement::Agent(_) | Announcement::Team(_) => {}
            Announcement::Approval(news) => self.tell_approval(news, turn),
            Announcement::Job(news) => self.tell_job(news, turn),
            Announcement::Catalog(catalog) => self.setup.catalog = catalog.clone(),
        }
    }

    fn on_tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now();
        self.tell_due(turn);
        self.wait_on(turn);
        self.look_around(turn);
        if now >= self.next_tick {
            self.next_tick = now.after(self.setup.tick_interval);
            self.emit("tick", &format!(r#"{{"ts":{}}}"#, now.as_millis()), turn);
        }
    }
}

/// The target of a command about this session.
fn target(session: &SessionKey) -> Target {
    Target::Session(session.clone())
}

impl std::fmt::Debug for OpenClaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenClaw").field("phase", &self.phase).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
