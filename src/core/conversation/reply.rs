//! What is answered about sessions.

use crate::conversation::event::Logged;
use crate::conversation::transcript::{History, Role, Transcript};
use crate::ids::{CallId, Owner, PluginName, RunId, Seq, SessionKey};
use crate::prompt::settings::Settings;
use crate::provider::budget::Budget;
use crate::provider::model::ModelRef;
use crate::provider::price::Money;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

/// The answer to a [`SessionCommand`](crate::conversation::command::SessionCommand).
#[derive(Clone, Debug, PartialEq)]
pub enum SessionReply {
    /// To `Submit` and `FollowRun`.
    Accepted(Accepted),
    /// To `Abort` and `AbortLane`.
    Aborted(Aborted),
    /// To `ListSessions`.
    SessionList(SessionList),
    /// To `ReadHistory`.
    History(History),
    /// To `ListSummaries`.
    Sessions(Vec<SessionSummary>),
    /// To `Clear` and `Renew`.
    Cleared(Cleared),
    /// To `Attach` and `AttachTurns`.
    Attached(Attached),
    /// To `Detach`.
    Detached(Detached),
    /// To `Watch` and `WatchCalls`.
    Watching(Watching),
    /// To `Unwatch`.
    Unwatched(Unwatched),
    /// To `DescribeSession`.
    Session(Option<Box<SessionRow>>),
    /// To `Exists`.
    Exists(bool),
    /// To `ReadTranscript`.
    Transcript(Box<Transcript>),
    /// To `PreviewSessions`.
    Previews(Vec<Preview>),
    /// To `CreateSession`, `Configure` and `Reset`.
    Settled(Box<SessionRow>),
    /// To `Compact`.
    Compacted(Compacted),
    /// To `Delete`.
    Deleted(Deleted),
    /// To `Export`.
    Exported(Exported),
    /// To `Inject`.
    Injected(Injected),
    /// To `Stop` and `Close`.
    Stopped(Stopped),
    /// To `GetBudgets`.
    Budget(Vec<Budget>),
}

/// A prompt that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The session that the prompt went to.
    pub session: SessionKey,
    /// The run that the prompt began.
    pub run: RunId,
    /// The number of the prompt's event.
    pub seq: Seq,
    /// Whether the idempotency key named a run that was there before.
    pub repeated: bool,
    /// Whether that run is over.
    pub is_over: bool,
    /// How many runs come before it in its lane, and in its session those of none; 0 for a run of no
    /// lane.
    pub ahead: usize,
}

/// The run that was ended, if one was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// The run that was aborted, if one was under way.
    pub run: Option<RunId>,
}

/// A conversation that was forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// The session that was cleared.
    pub session: SessionKey,
}

/// A session that is followed; its events follow this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The session that is followed now.
    pub session: SessionKey,
    /// The events given are those after this number.
    pub after: Seq,
    /// The last number in the session so far.
    pub head: Seq,
    /// The run that is under way at `after`; told only where that is `head`.
    pub under_way: Option<Box<UnderWay>>,
    /// The runs that wait, with the idempotency keys they were asked with; told where that is told.
    pub queued: Vec<(RunId, Option<String>)>,
    /// The model that would answer the next prompt.
    pub model: Option<ModelRef>,
}

/// No event of the session follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    /// Whether the session was followed before.
    pub found: bool,
}

/// All sessions are followed; their events follow this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watching;

/// They are followed no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwatched;

/// The beginning of a conversation was forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// How many messages are left.
    pub kept: usize,
    /// The number of messages that were dropped.
    pub forgotten: usize,
}

/// A session that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Whether the session existed.
    pub found: bool,
}

/// A part of the event log of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// The session that was exported.
    pub session: SessionKey,
    /// The events, in order; none where nothing comes after what was asked for.
    pub events: Vec<Logged>,
}

/// A message that was put into a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The id of the message.
    pub message: String,
    /// The number of its event.
    pub seq: Seq,
}

/// A session in which nothing runs or waits any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The session that was stopped.
    pub session: SessionKey,
    /// The runs that were ended.
    pub runs: Vec<RunId>,
}

/// A run in the midst of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// The run's id.
    pub run: RunId,
    /// The idempotency key it was asked with.
    pub idempotency_key: Option<String>,
    /// What it said up to [`Self::seq`], steps joined by [`STEP_JOINT`](super::transcript::STEP_JOINT).
    pub text: String,
    /// Where in `text` the step under way begins: what is from there on is void after a restart.
    pub step_at: usize,
    /// The number up to which that goes.
    pub seq: Seq,
    /// When it began.
    pub started: Timestamp,
    /// Whether a restart cut off the step under way, which is said anew.
    pub is_anew: bool,
    /// The calls that are being made; told to who attaches, and not in a transcript.
    pub calls: Vec<(CallId, PluginName)>,
}

/// One session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// The session's key.
    pub session: SessionKey,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last written to.
    pub updated: Timestamp,
    /// Whether a run is under way or queued.
    pub running: bool,
}

/// Sessions that fit a filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionList {
    /// The sessions, the latest used first.
    pub rows: Vec<SessionRow>,
    /// How many there are besides the limit.
    pub total: u64,
}

/// How a session is, as lists show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Nothing ever ran in it, or nothing since it was reset.
    New,
    /// A run is under way or waits for its turn.
    Running,
    /// The run under way waits for somebody's decision.
    Paused,
    /// Nothing runs; the last run ended by itself or was ended.
    Idle,
    /// Nothing runs; the last run failed.
    Failed,
    /// It was stopped for good.
    Closed,
}

/// One session, as lists show it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    /// The session's key.
    pub session: SessionKey,
    /// Tells its conversations apart: a new one begins with each reset.
    pub session_id: String,
    /// The owner of the session.
    pub owner: Owner,
    /// What it is set to.
    pub settings: Settings,
    /// What the session is doing.
    pub state: SessionState,
    /// How many of its prompts got an answer since it was made, be it cut short.
    pub answered: u64,
    /// The model that answers next.
    pub model: Option<ModelRef>,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last written to.
    pub updated: Timestamp,
    /// The run under way, then those that wait, as clients name them ([`RunId`], or the idempotency
    /// key where there is one).
    pub running: Vec<RunId>,
    /// The last run that began.
    pub last_run: Option<LastRun>,
    /// What its runs cost since the last reset.
    pub usage: Usage,
    /// What that costs, where prices are known.
    pub cost: Money,
    /// The number of its last event.
    pub head: Seq,
    /// The first thing a user said, cut short; where it was asked for.
    pub title: Option<String>,
    /// The last message, cut short; where it was asked for.
    pub last_message: Option<String>,
}

/// The last run of a session that began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// The run, as clients name it.
    pub run: RunId,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Whether it was aborted.
    pub is_aborted: bool,
}

/// The last messages of one session, in short.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// The messages, oldest first; none where there is no such session.
    pub messages: Option<Vec<(Role, String)>>,
}
