//! Every method: its name, who may call it, what it costs, what it takes and gives, and what does it.
//!
//! What is documented ([`super::discover`]), what is checked and what is called comes from here.
//! (Source: the protocol's document, section 4; the parameters are those of Wundr's client.)

use serde_json::{Value, json};

use super::shape::{self, COUNT, Field, NAME, Shape, optional, required};
use super::subscription::PATTERNS_MAX;
use super::wire::Failure;
use super::{
    Answered, Turn, Wundr, agents, auth, config, connect, discover, files, follow, health, history, memory,
    prompts, sessions, teams, tools,
};
use crate::dialect::json::Params;
use crate::error::{Error, ErrorCode};
use crate::scope::{Scope, Scopes};

/// One method.
pub(super) struct Method {
    /// Its name, `domain.verb`.
    pub(super) name: &'static str,
    /// What it does, in a sentence.
    pub(super) doc: &'static str,
    /// Any of these scopes is enough; where there is none, everybody who was let in may call it.
    pub(super) needs: &'static [Scope],
    /// What it costs, in units of `[limits]`.
    pub(super) cost: u32,
    /// Its parameters.
    pub(super) params: &'static [Field],
    /// The members of its result.
    pub(super) result: &'static [Field],
    /// Answers, or asks the daemon.
    pub(super) handle: Handle,
}

/// Answers a request whose parameters are in shape, or asks the daemon.
type Handle = fn(&mut Wundr, &mut super::Request<'_>, &mut Turn<'_>) -> Answered;

/// No scope: everybody who was let in.
pub(super) const ANYBODY: &[Scope] = &[];
/// The scope of those who may read.
pub(super) const READ: &[Scope] = &[Scope::Read];
/// The scope of those who may change the configuration.
pub(super) const ADMIN: &[Scope] = &[Scope::Admin];
/// The scope of those who may write and prompt.
pub(super) const WRITE: &[Scope] = &[Scope::Write];

/// The scopes of those who may decide about tool calls: of all sessions, or of their own.
pub(super) const DECIDE: &[Scope] = &[Scope::Approve, Scope::Write];
/// The scope of those who may form teams.
pub(super) const TEAMS: &[Scope] = &[Scope::Teams];
/// The scopes of those who may look at an agent.
pub(super) const READ_OR_TEAMS: &[Scope] = &[Scope::Read, Scope::Teams];
/// The scopes of those who may subscribe to events.
pub(super) const TOLD: &[Scope] = &[Scope::Read, Scope::Approve, Scope::Teams];

/// Every method.
pub(super) static METHODS: &[Method] = &[
    // Letting in.
    row(connect::METHOD, ANYBODY, 0, connect::again)
        .doc("The handshake: the first frame of a connection, and only that.")
        .takes(connect::PARAMS)
        .gives(connect::HELLO),
    row("auth.refresh", ANYBODY, 0, auth::refresh)
        .doc("Shows another credential of the same principal before the one shown ends, without reconnecting; or has \
              a fresh JWT given out in place of one that this daemon gave out.")
        .takes(auth::REFRESH)
        .gives(auth::REFRESHED),
    row("auth.logout", ANYBODY, 0, auth::logout)
        .doc("Ends the connection.")
        .takes(&[optional("reason", Shape::Text(0, 1024), "why, for the daemon's log")])
        .gives(&[required("ok", Shape::Flag, "true")]),
    // Sessions.
    row("session.create", WRITE, 3, sessions::create)
        .doc("Makes a session. It takes any number of prompts, one after the other; nothing runs in it before the \
              first. What becomes of its task is in `notes`; a memoryProfile is refused.")
        .takes(sessions::CREATE)
        .gives(sessions::INFO),
    row("session.resume", WRITE, 1, sessions::resume)
        .doc("Goes on with a session, of this protocol or of another; with what was missed of it.")
        .takes(sessions::RESUME)
        .gives(sessions::INFO),
    row("session.stop", WRITE, 1, sessions::stop)
        .doc("Ends a session with all that runs in it. It is kept, and takes no more prompts.")
        .takes(sessions::STOP)
        .gives(sessions::STOPPED),
    row("session.list", READ, 0, sessions::list)
        .doc("The sessions there are, of whatever protocol, the latest used first.")
        .takes(sessions::LIST)
        .gives(sessions::LISTED),
    row("session.status", READ, 0, sessions::status)
        .doc("One session.")
        .takes(sessions::ONE)
        .gives(sessions::INFO),
    row("session.history", READ, 0, history::history)
        .doc("What was said in a session, newest page first: for who missed its events, and has no number to resume \
              from. The answer of a prompt under way is not in it: session.resume tells that from its beginning.")
        .takes(history::ASKED)
        .gives(history::TOLD),
    // Prompts.
    row("prompt.submit", WRITE, prompts::COST, prompts::submit)
        .doc("Says something in a session. Answered at once; the answer is told as stream.* events.")
        .takes(prompts::SUBMIT)
        .gives(prompts::SUBMITTED),
    row("prompt.cancel", WRITE, 1, prompts::cancel)
        .doc("Ends a prompt, whether it is under way or waits.")
        .takes(prompts::CANCEL)
        .gives(prompts::CANCELLED),
    // Agents.
    row("agent.spawn", WRITE, 3, agents::spawn)
        .doc("Puts an agent to work in a session of its own. What it answers is told to the session it works for.")
        .takes(agents::SPAWN)
        .gives(agents::STATUS),
    row("agent.status", READ_OR_TEAMS, 0, agents::describe)
        .doc("One agent.")
        .takes(agents::ONE)
        .gives(agents::STATUS),
    row("agent.stop", WRITE, 1, agents::stop)
        .doc("Ends an agent with all that work for it.")
        .takes(agents::STOP)
        .gives(agents::STATUS),
    // Teams.
    row("team.create", TEAMS, 3, teams::create)
        .doc("Forms a team of agents and puts it to work.")
        .takes(teams::CREATE)
        .gives(teams::STATUS),
    row("team.status", TEAMS, 0, teams::describe)
        .doc("One team, with what its members answered.")
        .takes(teams::ONE)
        .gives(teams::STATUS),
    row("team.message", TEAMS, 1, teams::message)
        .doc("Relays a message between members. Who it is for reads it as a prompt, between its turns at the task; \
              the answer is told to who it is from.")
        .takes(teams::MESSAGE)
        .gives(teams::SENT),
    row("team.dissolve", TEAMS, 1, teams::dissolve)
        .doc("Ends a team with all its members.")
        .takes(teams::DISSOLVE)
        .gives(teams::STATUS),
    // Being told.
    row("subscribe", TOLD, 0, follow::subscribe)
        .doc("Asks to be told of events from now on: those whose name fits a pattern and whose payload has these members.")
        .takes(&[
            required(
                "events",
                Shape::List(&Shape::Text(0, usize::MAX), 1, PATTERNS_MAX),
                "patterns: `*` alone is everything, a segment `*` is any one, `**` any number",
            ),
            optional(
                "filter",
                Shape::AnyObject,
                "what members of the payload have to be: texts, numbers, flags; a sessionId has to be there",
            ),
        ])
        .gives(&[
            required("subscriptionId", NAME, "comes with every event it is told"),
            required("events", Shape::List(&NAME, 1, PATTERNS_MAX), "as they were asked"),
        ]),
    row("unsubscribe", TOLD, 0, follow::unsubscribe)
        .doc("Asks to be told no longer.")
        .takes(&[required("subscriptionId", NAME, "what subscribe was answered")])
        .gives(&[required("ok", Shape::Flag, "true")]),
    // Tool calls that wait.
    row("tool.approve", DECIDE, 1, tools::approve)
        .doc("Has a call made that waits for approval. The first decision counts; a second one is a CONFLICT.")
        .takes(tools::APPROVE)
        .gives(tools::DECIDED),
    row("tool.deny", DECIDE, 1, tools::deny)
        .doc("Has a call not made that waits for approval; the model is told. The first decision counts.")
        .takes(tools::DENY)
        .gives(tools::DECIDED),
    // How the daemon is.
    row("health.ping", ANYBODY, 0, health::ping)
        .doc("Measures the way to the daemon and back.")
        .takes(&[optional("clientTimestamp", COUNT, "when it was sent, for the sender")])
        .gives(&[
            required("type", Shape::OneOf(&["health.pong"]), "what it is"),
            required("serverTimestamp", COUNT, "the daemon's time, in ms since 1970"),
            optional("clientTimestamp", COUNT, "as it was given"),
        ]),
    row("health.status", READ, 0, health::status)
        .doc("How the daemon and its parts are.")
        .gives(health::STATUS),
    // How it is configured.
    row("config.get", READ, 0, config::get)
        .doc("What the configuration says.")
        .takes(config::ASKED)
        .gives(config::SHOWN),
    row("config.set", ADMIN, 2, config::set)
        .doc("Changes the configuration, all of it that is given or nothing. It is in effect when this is answered, but \
              for the keys that the answer calls pending.")
        .takes(config::SET)
        .gives(config::DONE),
    // What is remembered.
    row("memory.query", READ, 2, memory::query)
        .doc("Looks for what is remembered, by words, by an embedding, or by both.")
        .takes(memory::QUERIED)
        .gives(memory::FOUND),
    row("memory.store", WRITE, 2, memory::store)
        .doc("Remembers something; it is on the disk when this is answered.")
        .takes(memory::STORED)
        .gives(memory::KEPT),
    row("memory.delete", WRITE, 2, memory::delete)
        .doc("Forgets an entry for good.")
        .takes(memory::ONE)
        .gives(memory::GONE),
    // Files.
    row(files::UPLOAD, WRITE, 1, files::upload)
        .doc("Begins an upload, whose bytes follow in binary frames with its id, or says how far it has come. \
              In binary frames alone, the first with `method`, it is answered under their id when all of it is \
              kept. A frame: version 1 (1 byte), flags (1 byte: 1 compressed, 2 more follow, 4 the last), id (16 \
              bytes), length of the metadata (4 bytes, big endian), metadata (JSON), bytes.")
        .takes(files::UPLOAD_PARAMS)
        .gives(files::FILE),
    row("file.download", READ, 0, files::download)
        .doc("The bytes of a file, in binary frames with the id of the request, and then the answer.")
        .takes(files::DOWNLOAD_PARAMS)
        .gives(files::DOWNLOADED),
    row("file.status", READ, 0, files::status)
        .doc("How a file is, and how far an upload has come.")
        .takes(files::ONE_PARAMS)
        .gives(files::FILE),
    row("file.list", READ, 0, files::list)
        .doc("The caller's files and uploads.")
        .takes(files::LIST_PARAMS)
        .gives(files::LIST),
    row("file.delete", WRITE, 1, files::delete)
        .doc("Removes a file, or gives an upload up.")
        .takes(files::ONE_PARAMS)
        .gives(files::DELETED),
    // What there is.
    row("rpc.discover", ANYBODY, 0, discover::discover)
        .doc("Every method and event with its schema.")
        .gives(discover::RESULT),
    row("rpc.describe", ANYBODY, 0, discover::describe)
        .doc("One method with its schema.")
        .takes(&[required("method", NAME, "its name")])
        .gives(discover::METHOD),
];

/// The method of this name.
pub(super) fn find(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

/// A row of the table, which has no parameters and no result yet.
const fn row(name: &'static str, needs: &'static [Scope], cost: u32, handle: Handle) -> Method {
    Method { name, doc: "", needs, cost, params: &[], result: &[], handle }
}

impl Method {
    const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    const fn takes(self, params: &'static [Field]) -> Self {
        Self { params, ..self }
    }

    const fn gives(self, result: &'static [Field]) -> Self {
        Self { result, ..self }
    }

    /// Whether somebody with these scopes may call it.
    pub(super) fn is_allowed(&self, scopes: Scopes) -> bool {
        self.needs.is_empty() || self.needs.iter().any(|scope| scopes.allows(*scope))
    }

    /// The parameters, in shape; absent ones are an empty object.
    ///
    /// # Errors
    /// `InvalidRequest` with all complaints.
    pub(super) fn checked(&self, params: Params<'_>) -> Result<Value, Error> {
        let refuse =
            |why: &str| ErrorCode::InvalidRequest.error(format!("invalid params for {}: {why}", self.name));
        let params = params.0.map_or("null", |params| params.get());
        let mut params: Value = serde_json::from_str(params).map_err(|why| refuse(&why.to_string()))?;
        if params.is_null() {
            params = json!({});
        }
        shape::check(self.params, &mut params).map_err(|why| refuse(&why))?;
        Ok(params)
    }

    /// How an error is said in the answer to it.
    pub(super) fn failure(&self, error: &Error) -> Failure {
        let mut failure = Failure::of(error);
        if error.code == ErrorCode::RateLimited {
            failure.message = format!("rate limit exceeded for {}: {}", self.name, failure.message);
        }
        failure
    }

    /// That the result is what it is said to be, where tests run.
    pub(super) fn check_result(&self, result: &Value) {
        if cfg!(debug_assertions) {
            let checked = shape::check(self.result, &mut result.clone());
            assert!(checked.is_ok(), "the result of {}: {checked:?}: {result}", self.name);
        }
    }
}
