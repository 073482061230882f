//! xeno's protocol: JSON-RPC 2.0 over the lines of a Unix socket, with notifications for each query.
//!
//! A part of [`Socket`](super::socket): that owns the connection, has its peer let in, and gives this
//! what is not for the operator's methods. So there is no handshake here, and nothing here closes.
//!
//! | line | what becomes of it |
//! |---|---|
//! | not JSON | answered with -32700 and id null |
//! | no object, a batch, another `jsonrpc`, no method | dropped |
//! | no id, or null | dropped, and not executed |
//! | a method that is not there, parameters that are wrong | refused with -32000 |
//!
//! A query is pending until it is accepted; then it is owed a `gateway.done`, which is the last thing
//! said of it ([`query`]). Two queries of one `requestId` are two queries, each with its own end: the
//! client tells them apart by their order, since queries take place one after the other. A query whose
//! attachments can't be read is accepted, and ends with the reason: the refusals of JSON-RPC are for
//! what is wrong with the request, and the list of those is closed.
//!
//! One query takes place at a time, for all connections: their runs are in the lane
//! [`XENO`](crate::conversation::lane::XENO).

mod method;
mod query;
#[cfg(test)]
mod tests;
mod wire;

pub use self::method::reference;

use std::fmt::Write as _;
use std::sync::Arc;

use self::method::XenoMethod;
use self::query::Query;
use self::wire::{Incoming, Raw};
use super::json::json;
use super::{Dialect, DialectSetup, Fault, Frame, Input, Introduction, Turn};
use crate::config::catalog::AgentEntry;
use crate::conversation::command::{AbortLane, ReadTranscript, Submit};
use crate::conversation::event::Published;
use crate::conversation::lane;
use crate::conversation::reply::Accepted;
use crate::conversation::transcript::{Said, Transcript};
use crate::error::{Error, ErrorCode};
use crate::ids::Ticket;
use crate::prompt::run_options::{PROMPT_COST, RunOptions};
use crate::provider::ProviderKind;
use crate::request::ask::Ask;
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::schedule::job::{self, Ran, RunJob};
use crate::scope::Scope;
use crate::target::{Route, Target};
use crate::time::Timestamp;

/// The channel of its sessions.
const CHANNEL: &str = "xeno";

/// The account of the session that is meant where none is named.
const DEFAULT: &str = "default";

/// The most queries of one connection that may be under way or wait.
pub const IN_FLIGHT_MAX: usize = 256;

/// How many messages `gateway.initialize` gives at most, the newest, and how many bytes of them.
const HISTORY_MAX: usize = 1000;
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// Cost of a prompt, of other writes, and of reads, in units of `[limits]`.
const PROMPT: u32 = PROMPT_COST;
const WRITE: u32 = 1;
const READ: u32 = 0;

/// xeno's protocol, on one connection.
pub struct Xeno {
    /// Whether nothing has to be paid for any model there is.
    is_free: bool,
    limit_bytes: usize,
    pending: Vec<Pending>,
    queries: Vec<(Ticket, Query)>,
    /// What its client said of itself last.
    introduction: Introduction,
}

/// A request that waits for its reply.
struct Pending {
    ticket: Ticket,
    /// Its id, as JSON, as it came.
    id: Box<str>,
    /// Whether it is a query.
    is_query: bool,
    then: Then,
}

/// What is done with the reply to a request of this id, which came under this ticket.
type Then = Box<dyn FnOnce(&mut Xeno, (Ticket, &str), Result<Reply, Error>, &mut Turn<'_>)>;

/// A request in neutral words.
struct Call {
    needs: Scope,
    cost: u32,
    command: Command,
    then: Then,
}

impl Call {
    /// Asks the daemon; `then` does what its reply brings about.
    fn ask_on<C: Ask + 'static>(
        (needs, cost): (Scope, u32),
        question: C,
        then: impl FnOnce(&mut Xeno, (Ticket, &str), Result<C::Reply, Error>, &mut Turn<'_>) + 'static,
    ) -> Self {
        let then: Then = Box::new(|xeno, asked, reply, turn| then(xeno, asked, C::answer(reply), turn));
        Self { needs, cost, command: question.into(), then }
    }

    /// Asks the daemon; `told` makes the result that its client is told.
    fn ask<C: Ask + 'static>(
        terms: (Scope, u32),
        question: C,
        told: impl FnOnce(Result<C::Reply, Error>) -> Result<String, Error> + 'static,
    ) -> Self {
        Self::ask_on(terms, question, |_, (_, id), reply, turn| {
            turn.send(match told(reply) {
                Ok(result) => wire::answer(id, &result),
                Err(error) => wire::refusal(id, &error.message),
            });
        })
    }
}

/// A built-in job that a client can have done.
#[derive(Debug)]
struct Job {
    name: &'static str,
    done: &'static str,
}

static HEARTBEAT: Job = Job { name: job::HEARTBEAT, done: "Heartbeat completed." };

static NEW_SESSION: Job = Job { name: job::NEW_SESSION, done: "New session task completed." };

impl Dialect for Xeno {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match input {
            Input::Frame(Frame::Text(line)) => self.on_line(&line, turn),
            Input::Reply(ticket, reply) => self.on_reply(ticket, reply, turn),
            Input::Event { ticket, event, .. } => self.on_event(ticket, event, turn),
            Input::Tick => self.on_tick(turn),
            Input::Fault(fault) => self.on_fault(fault, turn),
            // Whose connection it is sees to the rest; a peer that closed its half is told what it is owed.
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.queries.iter().filter_map(|(_, query)| query.deadline()).min()
    }
}

impl std::fmt::Debug for Xeno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Xeno").field("queries", &self.queries).finish_non_exhaustive()
    }
}

impl Xeno {
    /// For a connection whose peer is let in.
    pub fn new(setup: DialectSetup) -> Self {
        let catalog = &setup.catalog;
        let mut models = catalog.agents.iter().flat_map(AgentEntry::models);
        let is_offline = |provider: &str| {
            catalog.access.get(provider).is_some_and(|access| access.kind == ProviderKind::Offline)
        };
        let is_free = models.all(|model| is_offline(&model.provider));
        let (limit_bytes, introduction) = (setup.max_payload_bytes, Introduction::default());
        Self { is_free, limit_bytes, pending: Vec::new(), queries: Vec::new(), introduction }
    }

    /// Whether nothing is owed: no answer, and no end of a query.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.queries.is_empty()
    }

    fn on_line(&mut self, line: &str, turn: &mut Turn<'_>) {
        match wire::read(line) {
            Incoming::Request { id, method, params } => {
                if let Err(why) = self.on_request(id, &method, params, turn) {
                    turn.send(wire::refusal(id, &why));
                }
            }
            Incoming::NotJson => turn.send(wire::not_json()),
            Incoming::Dropped => {}
        }
    }

    /// Has a request executed.
    ///
    /// # Errors
    /// Why not, as its client is told.
    fn on_request(
        &mut self,
        id: &str,
        method: &str,
        params: Option<Raw<'_>>,
        turn: &mut Turn<'_>,
    ) -> Result<(), String> {
        let asked = method::find(method).ok_or_else(|| wire::no_method(method))?;
        let checked = |is_right: bool, name: &str| match is_right {
            true => Ok(()),
            false => Err(format!("Invalid {name} params.")),
        };
        let call = match asked {
            XenoMethod::Initialize => {
                let (limit, bytes_max) = (HISTORY_MAX, HISTORY_BYTES_MAX);
                let read = ReadTranscript { target: target(None), limit, bytes_max, at: None };
                Call::ask((Scope::Read, READ), read, |transcript| Ok(snapshot(&*transcript?)))
            }
            XenoMethod::Query => self.query(params, turn)?,
            XenoMethod::Abort => {
                checked(wire::is_nothing(params), "abort")?;
                // What could not be aborted is not active.
                let told = |_| Ok(r#"{"ok":true}"#.to_owned());
                Call::ask((Scope::Write, WRITE), AbortLane { lane: lane::xeno() }, told)
            }
            XenoMethod::Heartbeat => {
                checked(wire::is_nothing(params), "heartbeat")?;
                run(&HEARTBEAT)
            }
            XenoMethod::NewSession => {
                checked(wire::is_nothing(params), "new_session")?;
                run(&NEW_SESSION)
            }
        };
        if id.len() > wire::ID_BYTES_MAX {
            return Err(format!("Invalid id: longer than {} bytes.", wire::ID_BYTES_MAX));
        }
        let Call { needs, cost, command, then } = call;
        let ticket = turn.execute(needs, cost, Ok(command));
        self.pending.push(Pending { ticket, id: id.into(), is_query: asked == XenoMethod::Query, then });
        Ok(())
    }

    /// The request for a query.
    ///
    /// # Errors
    /// What is wrong with it, as its client is told.
    fn query(&mut self, params: Option<Raw<'_>>, turn: &mut Turn<'_>) -> Result<Call, String> {
        let wire::Query { request, content, channel, local_files, introduction } = wire::query(params)?;
        let asked = self.pending.iter().filter(|pending| pending.is_query).count();
        if asked + self.queries.len() >= IN_FLIGHT_MAX {
            return Err(format!("Too many queries in flight ({IN_FLIGHT_MAX}): wait for one to end."));
        }
        if introduction != self.introduction {
            self.introduction = introduction.clone();
            turn.introduce(introduction);
        }
        let (request, has_files) = (Box::<str>::from(request), !local_files.is_empty());
        let submit = Submit {
            target: target(channel),
            run: turn.run_id(),
            content,
            // A `requestId` names a query of a connection: other clients, and later ones, use it again.
            idempotency_key: None,
            attachments: Vec::new(),
            files: Vec::new(),
            local_files,
            run_options: RunOptions { lane: Some(lane::xeno()), ..RunOptions::default() },
            follow: true,
        };
        Ok(Call::ask_on((Scope::Write, PROMPT), submit, move |xeno: &mut Self, (ticket, id), reply, turn| {
            let mut query = Query::new(request, turn.now());
            match reply {
                Ok(Accepted { ahead, .. }) => {
                    turn.send(accepted(id));
                    if ahead > 0 {
                        turn.send(query.busy(ahead));
                    }
                    xeno.queries.push((ticket, query));
                }
                Err(error) if has_files && is_about_files(&error) => {
                    turn.send(accepted(id));
                    query.give_up(&error.message, |line| turn.send(line));
                }
                Err(error) => turn.send(wire::refusal(id, &error.message)),
            }
        }))
    }

    fn on_reply(&mut self, ticket: Ticket, reply: Result<Reply, Error>, turn: &mut Turn<'_>) {
        let Some(at) = self.pending.iter().position(|pending| pending.ticket == ticket) else { return };
        let Pending { id, then, .. } = self.pending.remove(at);
        then(self, (ticket, &id), reply, turn);
    }

    fn on_event(&mut self, ticket: Ticket, event: &Arc<Published>, turn: &mut Turn<'_>) {
        let Some(at) = self.queries.iter().position(|(of, _)| *of == ticket) else { return };
        let (now, is_free) = (turn.now(), self.is_free);
        let is_over = self.queries[at].1.take(&event.logged, now, is_free, |line| turn.send(line));
        if is_over {
            self.queries.remove(at);
        }
    }

    fn on_tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now();
        for (_, query) in &mut self.queries {
            query.tell_due(now, |line| turn.send(line));
        }
    }

    /// Says what is still owed on a connection that ends. What was accepted takes place all the same.
    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        let why = match fault {
            Fault::Draining => "Gateway is shutting down.".to_owned(),
            Fault::Oversize { .. } => {
                format!("Connection closed: a line may have {} bytes.", self.limit_bytes)
            }
            Fault::Crowded => "Connection closed: unfinished lines take too much room: try later.".to_owned(),
            Fault::Incomplete => "Connection closed: a line was not complete in time.".to_owned(),
            Fault::Slow => "Connection closed: it reads too slowly.".to_owned(),
            Fault::Idle => "Connection closed: it was silent for too long.".to_owned(),
            Fault::Revoked | Fault::Expired => "Connection closed: it is let in no longer.".to_owned(),
            Fault::CutOff => "Connection closed: the daemon is cut off from its cluster.".to_owned(),
            Fault::Overloaded => "Connection closed: there are too many.".to_owned(),
        };
        for Pending { id, .. } in std::mem::take(&mut self.pending) {
            turn.send(wire::refusal(&id, &why));
        }
        for (_, mut query) in std::mem::take(&mut self.queries) {
            query.give_up(&why, |line| turn.send(line));
        }
    }
}

impl Job {
    /// What its client is told.
    fn outcome(&self, reply: Result<Reply, Error>) -> String {
        let failed = |message: &str| format!(r#"{{"ok":false,"message":{}}}"#, json(message));
        let ran = match reply.map(RunJob::take) {
            Ok(Some(ran)) => ran,
            Ok(None) => return failed("Internal error."),
            Err(error) => match Ran::unavailable(self.name) {
                Some(off) if error.code == ErrorCode::NotFound => return failed(&off.message),
                _ => return failed(&error.message),
            },
        };
        let message = if ran.is_ok { self.done } else { &ran.message };
        let mut outcome = format!(r#"{{"ok":{},"message":{}"#, ran.is_ok, json(message));
        if let Some(result) = &ran.result {
            let _ = write!(outcome, r#","result":{}"#, json(result));
        }
        // What was not begun took no time.
        if ran.is_ok || !ran.took.is_zero() {
            let _ = write!(outcome, r#","durationMs":{}"#, ran.took.as_millis());
        }
        outcome.push('}');
        outcome
    }
}

/// The request to have a built-in job done.
fn run(job: &'static Job) -> Call {
    let then: Then = Box::new(|_, (_, id), reply, turn| turn.send(wire::answer(id, &job.outcome(reply))));
    let command = RunJob { job: job.name.to_owned() }.into();
    Call { needs: Scope::Write, cost: PROMPT, command, then }
}

/// The session of this `channelId`.
fn target(channel: Option<String>) -> Target {
    let account = channel.unwrap_or_else(|| DEFAULT.to_owned());
    Target::Route(Route { channel: CHANNEL.to_owned(), account, ..Route::default() })
}

fn accepted(id: &str) -> String {
    wire::answer(id, r#"{"accepted":true}"#)
}

/// Whether a prompt with files was refused because of them rather than because of the daemon.
fn is_about_files(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::InvalidRequest | ErrorCode::NotFound | ErrorCode::Forbidden | ErrorCode::TooLarge
    )
}

/// The session as it is: its id, and what was said in it.
fn snapshot(transcript: &Transcript) -> String {
    let session = transcript.row.as_ref().map(|row| &row.session_id);
    let mut snapshot = format!(r#"{{"sessionId":{},"history":["#, json(&session));
    let turns = transcript.entries.iter().filter_map(|entry| match &entry.said {
        Said::User { text, .. } => Some(("user", text)),
        Said::Assistant { text, .. } => Some(("assistant", text)),
        Said::Tool { .. } => None,
    });
    let mut comma = "";
    for (role, text) in turns.filter(|(_, text)| !text.is_empty()) {
        let _ = write!(snapshot, r#"{comma}{{"role":"{role}","content":{}}}"#, json(text));
        comma = ",";
    }
    snapshot.push_str("]}");
    snapshot
}
