//! Every method: its name, who may call it, what it costs, what it takes and gives, and what does it.
//!
//! What is documented ([`super::discover`]), what is checked and what is called comes from here.
//! (Source: the protocol's document, section 4; the parameters are those of Wundr's client.)

use serde_json::{Value, json};

use super::shape::{self, COUNT, Field, NAME, Shape, optional, required};
use super::subscription::PATTERNS_MAX;
use super::wire::Failure;
use super::{
    Call, Turn, Wundr, agents, auth, config, connect, discover, files, follow, health, history, memory,
    prompts, sessions, teams, tools,
};
use crate::access::{Scope, Scopes};
use crate::dialect::json::Params;
use crate::error::{Error, ErrorCode};

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
type Handle = fn(&mut Wundr, &mut super::Request<'_>, &mut Turn<'_>) -> Result<Call, Error>;

/// Everybody who was let in.
pub(super) const ANYBODY: &[Scope] = &[];
/// Who may look.
pub(super) const READ: &[Scope] = &[Scope::Read];
/// Who may run the daemon.
pub(super) const ADMIN: &[Scope] = &[Scope::Admin];
/// Who may do.
pub(super) const WRITE: &[Scope] = &[Scope::Write];

/// Who may decide about calls: of all sessions, or of his own.
pub(super) const DECIDE: &[Scope] = &[Scope::Approve, Scope::Write];
/// Who may form teams.
pub(super) const TEAMS: &[Scope] = &[Scope::Teams];
/// Who may look at an agent.
pub(super) const READ_OR_TEAMS: &[Scope] = &[Scope::Read, Scope::Teams];
/// Who may be told of something.
pub(super) const TOLD: &[Scope] = &[Scope::Read, Scope::Approve, Scope::Teams];

/// Every method.
pub(super) static METHODS: &[Method] = &[
    // Letting in.
    Method {
        name: connect::METHOD,
        doc: "The handshake: the first frame of a connection, and only that.",
        needs: ANYBODY,
        cost: 0,
        params: connect::PARAMS,
        result: connect::HELLO,
        handle: connect::again,
    },
    Method {
        name: "auth.refresh",
        doc: "Shows another credential of the same principal before the one shown ends, without reconnecting; or has \
              a fresh JWT given out in place of one that this daemon gave out.",
        needs: ANYBODY,
        cost: 0,
        params: auth::REFRESH,
        result: auth::REFRESHED,
        handle: auth::refresh,
    },
    Method {
        name: "auth.logout",
        doc: "Ends the connection.",
        needs: ANYBODY,
        cost: 0,
        params: &[optional("reason", Shape::Text(0, 1024), "why, for the daemon's log")],
        result: &[required("ok", Shape::Flag, "true")],
        handle: auth::logout,
    },
    // Sessions.
    Method {
        name: "session.create",
        doc: "Makes a session. It takes any number of prompts, one after the other; nothing runs in it before the \
              first. What becomes of its task and its memoryProfile is in `notes`.",
        needs: WRITE,
        cost: 3,
        params: sessions::CREATE,
        result: sessions::INFO,
        handle: sessions::create,
    },
    Method {
        name: "session.resume",
        doc: "Goes on with a session, of this protocol or of another; with what was missed of it.",
        needs: WRITE,
        cost: 1,
        params: sessions::RESUME,
        result: sessions::INFO,
        handle: sessions::resume,
    },
    Method {
        name: "session.stop",
        doc: "Ends a session with all that runs in it. It is kept, and takes no more prompts.",
        needs: WRITE,
        cost: 1,
        params: sessions::STOP,
        result: sessions::STOPPED,
        handle: sessions::stop,
    },
    Method {
        name: "session.list",
        doc: "The sessions there are, of whatever protocol, the latest used first.",
        needs: READ,
        cost: 0,
        params: sessions::LIST,
        result: sessions::LISTED,
        handle: sessions::list,
    },
    Method {
        name: "session.status",
        doc: "One session.",
        needs: READ,
        cost: 0,
        params: sessions::ONE,
        result: sessions::INFO,
        handle: sessions::status,
    },
    Method {
        name: "session.history",
        doc: "What was said in a session, newest page first: for who missed its events, and has no number to resume \
              from. The answer of a prompt under way is not in it: session.resume tells that from its beginning.",
        needs: READ,
        cost: 0,
        params: history::ASKED,
        result: history::TOLD,
        handle: history::history,
    },
    // Prompts.
    Method {
        name: "prompt.submit",
        doc: "Says something in a session. Answered at once; the answer is told as stream.* events.",
        needs: WRITE,
        cost: prompts::COST,
        params: prompts::SUBMIT,
        result: prompts::SUBMITTED,
        handle: prompts::submit,
    },
    Method {
        name: "prompt.cancel",
        doc: "Ends a prompt, whether it is under way or waits.",
        needs: WRITE,
        cost: 1,
        params: prompts::CANCEL,
        result: prompts::CANCELLED,
        handle: prompts::cancel,
    },
    // Agents.
    Method {
        name: "agent.spawn",
        doc: "Puts an agent to work in a session of its own. What it answers is told to the session it works for.",
        needs: WRITE,
        cost: 3,
        params: agents::SPAWN,
        result: agents::STATUS,
        handle: agents::spawn,
    },
    Method {
        name: "agent.status",
        doc: "One agent.",
        needs: READ_OR_TEAMS,
        cost: 0,
        params: agents::ONE,
        result: agents::STATUS,
        handle: agents::describe,
    },
    Method {
        name: "agent.stop",
        doc: "Ends an agent with all that work for it.",
        needs: WRITE,
        cost: 1,
        params: agents::STOP,
        result: agents::STATUS,
        handle: agents::stop,
    },
    // Teams.
    Method {
        name: "team.create",
        doc: "Forms a team of agents and puts it to work.",
        needs: TEAMS,
        cost: 3,
        params: teams::CREATE,
        result: teams::STATUS,
        handle: teams::create,
    },
    Method {
        name: "team.status",
        doc: "One team, with what its members answered.",
        needs: TEAMS,
        cost: 0,
        params: teams::ONE,
        result: teams::STATUS,
        handle: teams::describe,
    },
    Method {
        name: "team.message",
        doc: "Relays a message between members. Who it is for reads it as a prompt, between its turns at the task; \
              the answer is told to who it is from.",
        needs: TEAMS,
        cost: 1,
        params: teams::MESSAGE,
        result: teams::SENT,
        handle: teams::message,
    },
    Method {
        name: "team.dissolve",
        doc: "Ends a team with all its members.",
        needs: TEAMS,
        cost: 1,
        params: teams::DISSOLVE,
        result: teams::STATUS,
        handle: teams::dissolve,
    },
    // Being told.
    Method {
        name: "subscribe",
        doc: "Asks to be told of events from now on: those whose name fits a pattern and whose payload has these members.",
        needs: TOLD,
        cost: 0,
        params: &[
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
        ],
        result: &[
            required("subscriptionId", NAME, "comes with every event it is told"),
            required("events", Shape::List(&NAME, 1, PATTERNS_MAX), "as they were asked"),
        ],
        handle: follow::subscribe,
    },
    Method {
        name: "unsubscribe",
        doc: "Asks to be told no longer.",
        needs: TOLD,
        cost: 0,
        params: &[required("subscriptionId", NAME, "what subscribe was answered")],
        result: &[required("ok", Shape::Flag, "true")],
        handle: follow::unsubscribe,
    },
    // Tool calls that wait.
    Method {
        name: "tool.approve",
        doc: "Has a call made that waits for approval. The first decision counts; a second one is a CONFLICT.",
        needs: DECIDE,
        cost: 1,
        params: tools::APPROVE,
        result: tools::DECIDED,
        handle: tools::approve,
    },
    Method {
        name: "tool.deny",
        doc: "Has a call not made that waits for approval; the model is told. The first decision counts.",
        needs: DECIDE,
        cost: 1,
        params: tools::DENY,
        result: tools::DECIDED,
        handle: tools::deny,
    },
    // How the daemon is.
    Method {
        name: "health.ping",
        doc: "Measures the way to the daemon and back.",
        needs: ANYBODY,
        cost: 0,
        params: &[optional("clientTimestamp", COUNT, "when it was sent, for the sender")],
        result: &[
            required("type", Shape::OneOf(&["health.pong"]), "what it is"),
            required("serverTimestamp", COUNT, "the daemon's time, in ms since 1970"),
            optional("clientTimestamp", COUNT, "as it was given"),
        ],
        handle: health::ping,
    },
    Method {
        name: "health.status",
        doc: "How the daemon and its parts are.",
        needs: READ,
        cost: 0,
        params: &[],
        result: health::STATUS,
        handle: health::status,
    },
    // How it is configured.
    Method {
        name: "config.get",
        doc: "What the configuration says.",
        needs: READ,
        cost: 0,
        params: config::ASKED,
        result: config::SHOWN,
        handle: config::get,
    },
    Method {
        name: "config.set",
        doc: "Changes the configuration, all of it that is given or nothing. It is in effect when this is answered, but \
              for the keys that the answer calls pending.",
        needs: ADMIN,
        cost: 2,
        params: config::SET,
        result: config::DONE,
        handle: config::set,
    },
    // What is remembered.
    Method {
        name: "memory.query",
        doc: "Looks for what is remembered, by words, by an embedding, or by both.",
        needs: READ,
        cost: 2,
        params: memory::QUERIED,
        result: memory::FOUND,
        handle: memory::query,
    },
    Method {
        name: "memory.store",
        doc: "Remembers something; it is on the disk when this is answered.",
        needs: WRITE,
        cost: 2,
        params: memory::STORED,
        result: memory::KEPT,
        handle: memory::store,
    },
    Method {
        name: "memory.delete",
        doc: "Forgets an entry for good.",
        needs: WRITE,
        cost: 2,
        params: memory::ONE,
        result: memory::GONE,
        handle: memory::delete,
    },
    // Files.
    Method {
        name: files::UPLOAD,
        doc: "Begins an upload, whose bytes follow in binary frames with its id, or says how far it has come. \
              In binary frames alone, the first with `method`, it is answered under their id when all of it is \
              kept. A frame: version 1 (1 byte), flags (1 byte: 1 compressed, 2 more follow, 4 the last), id (16 \
              bytes), length of the metadata (4 bytes, big endian), metadata (JSON), bytes.",
        needs: WRITE,
        cost: 1,
        params: files::UPLOAD_PARAMS,
        result: files::FILE,
        handle: files::upload,
    },
    Method {
        name: "file.download",
        doc: "The bytes of a file, in binary frames with the id of the request, and then the answer.",
        needs: READ,
        cost: 0,
        params: files::DOWNLOAD_PARAMS,
        result: files::DOWNLOADED,
        handle: files::download,
    },
    Method {
        name: "file.status",
        doc: "How a file is, and how far an upload has come.",
        needs: READ,
        cost: 0,
        params: files::ONE_PARAMS,
        result: files::FILE,
        handle: files::status,
    },
    Method {
        name: "file.list",
        doc: "The caller's files and uploads.",
        needs: READ,
        cost: 0,
        params: files::LIST_PARAMS,
        result: files::LIST,
        handle: files::list,
    },
    Method {
        name: "file.delete",
        doc: "Removes a file, or gives an upload up.",
        needs: WRITE,
        cost: 1,
        params: files::ONE_PARAMS,
        result: files::DELETED,
        handle: files::delete,
    },
    // What there is.
    Method {
        name: "rpc.discover",
        doc: "Every method and event with its schema.",
        needs: ANYBODY,
        cost: 0,
        params: &[],
        result: discover::RESULT,
        handle: discover::discover,
    },
    Method {
        name: "rpc.describe",
        doc: "One method with its schema.",
        needs: ANYBODY,
        cost: 0,
        params: &[required("method", NAME, "its name")],
        result: discover::METHOD,
        handle: discover::describe,
    },
];

/// The method of this name.
pub(super) fn find(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

impl Method {
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
