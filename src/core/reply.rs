//! What a client is answered, in nobody's words.

use crate::ids::{PluginName, RunId, Seq, SessionKey};
use crate::time::Timestamp;

/// The answer to a [`Command`](crate::command::Command).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Status`.
    Status(Status),
    /// To `Submit`: the prompt is durable and will run.
    Accepted(Accepted),
    /// To `Abort`: the run that was ended, if one was.
    Aborted {
        /// The run.
        run: Option<RunId>,
    },
    /// To `History`.
    History(History),
    /// To `Sessions`.
    Sessions(Vec<SessionSummary>),
    /// To `Clear`.
    Cleared {
        /// The session.
        session: SessionKey,
    },
    /// To `Attach`; the events follow.
    Attached {
        /// The session.
        session: SessionKey,
        /// The events given are those after this number.
        after: Seq,
        /// The last number in the session so far.
        head: Seq,
    },
    /// To `Detach`: no event follows.
    Detached {
        /// Whether it was followed.
        found: bool,
    },
    /// To `Stop`.
    Stopped {
        /// The session.
        session: SessionKey,
        /// The runs that were ended.
        runs: Vec<RunId>,
    },
    /// To `Budget`.
    Budget(Vec<Budget>),
    /// To `Plugins`.
    Plugins(Vec<PluginSummary>),
    /// To `LoadPlugin`.
    PluginLoaded(PluginSummary),
    /// To `UnloadPlugin`.
    PluginUnloaded {
        /// Its name.
        name: PluginName,
    },
}

/// How the daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Version of clawmux.
    pub version: String,
    /// Plugins loaded.
    pub plugins: usize,
    /// Sessions awake.
    pub sessions: usize,
    /// Connections open.
    pub connections: usize,
    /// Since when the daemon is ready.
    pub started: Timestamp,
}

/// A prompt that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its session.
    pub session: SessionKey,
    /// Its run.
    pub run: RunId,
    /// The number of the prompt's event.
    pub seq: Seq,
    /// Whether the idempotency key named a run that was there before.
    pub repeated: bool,
}

/// The last messages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The session.
    pub session: SessionKey,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
}

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The person or program.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What was said.
    pub content: String,
    /// When it was said (for an answer: when it ended).
    pub at: Timestamp,
    /// The run it belongs to.
    pub run: RunId,
}

/// One session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// Its key.
    pub session: SessionKey,
    /// When it was made.
    pub created: Timestamp,
    /// When it was last written to.
    pub updated: Timestamp,
    /// Whether a run is under way or queued.
    pub running: bool,
}

/// The span of time a budget counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// The life of a session.
    Session,
    /// The calendar day, UTC.
    Daily,
    /// The calendar month, UTC.
    Monthly,
}

impl Period {
    /// Its name in the configuration and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Daily => "daily",
            Self::Monthly => "monthly",
        }
    }
}

/// What one budget leaves, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Over which span.
    pub period: Period,
    /// Spent and settled.
    pub used: u64,
    /// Reserved by calls under way.
    pub reserved: u64,
    /// The bound; 0 = unlimited.
    pub limit: u64,
}

/// One loaded plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSummary {
    /// Its name.
    pub name: PluginName,
    /// Its version, where its manifest says one.
    pub version: Option<String>,
    /// What it says it does.
    pub description: String,
    /// What it was granted, as written in the configuration.
    pub capabilities: Vec<String>,
}
