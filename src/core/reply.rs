//! What a client is answered, in nobody's words.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;

use crate::approval::ApprovalReply;
use crate::attachment::Attachment;
use crate::auth::pairing::DeviceReply;
use crate::auth::token::TokenReply;
use crate::auth::{About, Owner, Role as ClientRole, Scopes};
use crate::catalog::Catalog;
use crate::config::ModelRef;
use crate::error::Error;
use crate::event::{Logged, Usage};
use crate::file::FileReply;
use crate::health::Report;
use crate::ids::{CallId, ConnectionId, LaneName, PluginName, RunId, Seq, SessionKey};
use crate::job::JobReply;
use crate::memory::MemoryReply;
use crate::node::{Invoked, NodeRow};
use crate::operator::OperatorReply;
use crate::settings::Settings;
use crate::subagent::SubAgentReply;
use crate::team::TeamReply;
use crate::time::Timestamp;

/// The answer to a [`Command`](crate::command::Command).
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To `Device`.
    Device(Box<DeviceReply>),
    /// To `Approval`.
    Approval(Box<ApprovalReply>),
    /// To `SubAgent`.
    SubAgent(Box<SubAgentReply>),
    /// To `Team`.
    Team(Box<TeamReply>),
    /// To `Memory`.
    Memory(Box<MemoryReply>),
    /// To `File`.
    File(Box<FileReply>),
    /// To `Token`.
    Token(Box<TokenReply>),
    /// To `Job`.
    Job(Box<JobReply>),
    /// To `Operator`.
    Operator(Box<OperatorReply>),
    /// To `Status`.
    Status(Status),
    /// To `Machine`.
    Machine(Box<Machine>),
    /// To `Lanes`, by name.
    Lanes(Vec<LaneRow>),
    /// To `Soul`: as it is now.
    Soul(Box<SoulFile>),
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
    /// To `Attach` and `AttachTurns`; the events follow.
    Attached {
        /// The session.
        session: SessionKey,
        /// The events given are those after this number.
        after: Seq,
        /// The last number in the session so far.
        head: Seq,
        /// The run that is under way at `after`; told only where that is `head`.
        under_way: Option<Box<UnderWay>>,
        /// The runs that wait, with the idempotency keys they were asked with; told where that is told.
        queued: Vec<(RunId, Option<String>)>,
        /// The model that would answer the next prompt.
        model: Option<ModelRef>,
    },
    /// To `Catalog`: as it is now.
    Catalog(Arc<Catalog>),
    /// To `Detach`: no event follows.
    Detached {
        /// Whether it was followed.
        found: bool,
    },
    /// To `Watch` and `WatchCalls`; the events follow.
    Watching,
    /// To `Unwatch`: no event follows.
    Unwatched,
    /// To `ListSessions`.
    SessionList(SessionList),
    /// To `DescribeSession`; none where nothing was ever said in it.
    Session(Option<Box<SessionRow>>),
    /// To `Exists`.
    Exists(bool),
    /// To `Transcript`.
    Transcript(Box<Transcript>),
    /// To `Preview`, in the order that was asked.
    Previews(Vec<Preview>),
    /// To `CreateSession`, `Configure` and `Reset`: the session as it is now.
    Settled(Box<SessionRow>),
    /// To `Compact`.
    Compacted {
        /// How many messages are left.
        kept: usize,
        /// How many were forgotten.
        forgotten: usize,
    },
    /// To `Delete`.
    Deleted {
        /// Whether it was there.
        found: bool,
    },
    /// To `Export`.
    Exported {
        /// The session.
        session: SessionKey,
        /// The events, in order; none where nothing comes after what was asked for.
        events: Vec<Logged>,
    },
    /// To `Inject`.
    Injected {
        /// The message's id.
        message: String,
        /// The number of its event.
        seq: Seq,
    },
    /// To `Health`.
    Health(Arc<Report>),
    /// To `Overview`.
    Overview(Arc<Overview>),
    /// To `Tell`, `NodeResult` and `NodeEvent`: it was taken, or came too late to be of use.
    Noted,
    /// To `Nodes`, by name.
    Nodes(Vec<NodeRow>),
    /// To `InvokeNode`.
    Invoked(Box<Invoked>),
    /// To `Config`: as it is now.
    Config(Box<ConfigSnapshot>),
    /// To `LogTail`.
    LogTail(LogTail),
    /// To `UsageDays`: one for each day and model, the earliest first.
    UsageDays(Vec<DayUsage>),
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

/// How the machine is that the daemon runs on. What is not known is 0 or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Which kernel it has, such as `linux`.
    pub platform: String,
    /// The version of its kernel.
    pub kernel: String,
    /// What kind of processors it has, such as `x86_64`.
    pub architecture: String,
    /// What its system calls itself.
    pub system: String,
    /// The daemon's process.
    pub pid: u32,
    /// How many processors the daemon may use.
    pub processors: usize,
    /// How many tasks wanted one, on average over 1, 5 and 15 minutes.
    pub load: [f64; 3],
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// What of that can be had without swapping, in bytes.
    pub memory_free_bytes: u64,
}

/// A lane in which runs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRow {
    /// Its name.
    pub name: LaneName,
    /// How many runs are active, or about to be: one at most.
    pub active: usize,
    /// How many wait for their turn.
    pub waiting: usize,
}

/// The file of an agent's soul.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoulFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says; none where it is not there.
    pub text: Option<String>,
    /// When it was last written to.
    pub updated: Option<Timestamp>,
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
    /// Whether that run is over.
    pub is_over: bool,
    /// How many runs come before it in its lane, and in its session those of none; 0 for a run of no
    /// lane.
    pub ahead: usize,
}

/// The last messages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The session.
    pub session: SessionKey,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Whether there are older ones, to be asked for before the oldest of these.
    pub more: bool,
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
    /// Whether `content` is only the beginning.
    pub clipped: bool,
    /// What it brought along, without the bytes.
    pub attachments: Vec<Attachment>,
}

impl Message {
    /// What a message takes besides its text, at most, in bytes.
    const ENVELOPE_BYTES: usize = 256;

    /// What an attachment takes besides its name, at most, in bytes.
    const ATTACHMENT_BYTES: usize = 128;

    /// How many bytes it takes as JSON, at most.
    pub fn json_bytes(&self) -> usize {
        json_bytes(&self.content) + self.envelope_bytes()
    }

    fn envelope_bytes(&self) -> usize {
        let name = |attachment: &Attachment| json_bytes(attachment.name().unwrap_or_default());
        let attachments = self.attachments.iter().map(|attachment| name(attachment) + Self::ATTACHMENT_BYTES);
        attachments.sum::<usize>() + Self::ENVELOPE_BYTES
    }

    /// Keeps of the text what fits into so many bytes as JSON.
    pub fn clip(&mut self, json_bytes_max: usize) {
        let bytes_max = json_bytes_max.saturating_sub(self.envelope_bytes());
        self.clipped |= clip(&mut self.content, bytes_max);
    }
}

/// How many bytes a text takes within a JSON string.
fn json_bytes(text: &str) -> usize {
    text.bytes().map(escaped).sum()
}

/// Keeps of a text what fits into so many bytes within a JSON string; says whether that is not all.
fn clip(text: &mut String, mut json_bytes_max: usize) -> bool {
    let fitting = text.bytes().map_while(|byte| {
        json_bytes_max = json_bytes_max.checked_sub(escaped(byte))?;
        Some(byte)
    });
    let kept = fitting.count();
    let kept = text.floor_char_boundary(kept);
    let is_clipped = kept < text.len();
    if is_clipped {
        text.truncate(kept);
        text.shrink_to_fit();
    }
    is_clipped
}

/// How many bytes this one takes in a JSON string.
const fn escaped(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0x00..0x20 => 6,
        _ => 1,
    }
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
    /// Its key.
    pub session: SessionKey,
    /// Tells its conversations apart: a new one begins with each reset.
    pub session_id: String,
    /// Whose it is.
    pub owner: Owner,
    /// What it is set to.
    pub settings: Settings,
    /// How it is.
    pub state: SessionState,
    /// How many of its prompts got an answer since it was made, be it cut short.
    pub answered: u64,
    /// The model that answers next.
    pub model: Option<ModelRef>,
    /// When it was made.
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

/// The newest part of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The session, as it is in lists; none where nothing was ever said in it.
    pub row: Option<SessionRow>,
    /// The messages, oldest first.
    pub entries: Vec<Entry>,
    /// How many messages the conversation has.
    pub total: u64,
    /// The number up to which the log was read.
    pub head: Seq,
    /// The run that was under way at the number that was asked for.
    pub under_way: Option<UnderWay>,
    /// The runs that waited at that number, in order, with the idempotency keys they were asked with;
    /// the latest, should there be many.
    pub queued: Vec<(RunId, Option<String>)>,
}

/// A run in the midst of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// The run.
    pub run: RunId,
    /// The idempotency key it was asked with.
    pub idempotency_key: Option<String>,
    /// What it said up to [`Self::seq`], steps joined by [`STEP_JOINT`].
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

/// What stands between the texts of two steps of one run.
pub const STEP_JOINT: &str = "\n\n";

/// One message of a transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Stable for ever, unique in the session.
    pub id: String,
    /// Its place in the conversation, from 1.
    pub place: u64,
    /// When it was said (for an answer: when it ended).
    pub at: Timestamp,
    /// The run it belongs to; none for an injected one.
    pub run: Option<RunId>,
    /// What it is.
    pub said: Said,
    /// Whether its text is only the beginning.
    pub clipped: bool,
}

impl Entry {
    /// What a message takes besides its texts, at most, in bytes.
    const ENVELOPE_BYTES: usize = 1024;

    /// The id of a run's prompt.
    pub fn prompt_id(run: &RunId) -> String {
        format!("user-{run}")
    }

    /// The id of a run's answer.
    pub fn answer_id(run: &RunId) -> String {
        format!("assistant-{run}")
    }

    /// How many bytes it takes as JSON, at most.
    pub fn json_bytes(&self) -> usize {
        let rest = match &self.said {
            Said::User { attachments, .. } => attachments.len() * Self::ENVELOPE_BYTES,
            Said::Assistant { error, .. } => error.as_deref().map_or(0, json_bytes),
            Said::Tool { .. } => 0,
        };
        json_bytes(self.said.text()) + rest + Self::ENVELOPE_BYTES
    }

    /// Keeps of the text what fits into so many bytes as JSON.
    pub fn clip(&mut self, json_bytes_max: usize) {
        let rest = self.json_bytes() - json_bytes(self.said.text());
        let (Said::User { text, .. } | Said::Assistant { text, .. } | Said::Tool { text, .. }) =
            &mut self.said;
        self.clipped |= clip(text, json_bytes_max.saturating_sub(rest));
    }
}

impl Said {
    /// The text.
    pub fn text(&self) -> &str {
        let (Self::User { text, .. } | Self::Assistant { text, .. } | Self::Tool { text, .. }) = self;
        text
    }
}

/// What a message of a transcript is.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// By a user.
    User {
        /// What.
        text: String,
        /// The idempotency key of its run.
        idempotency_key: Option<String>,
        /// What it brought along, without the bytes.
        attachments: Vec<Attachment>,
    },
    /// By the model: all steps of a run.
    Assistant {
        /// What.
        text: String,
        /// The model, where it is known.
        model: Option<ModelRef>,
        /// What the run cost.
        usage: Usage,
        /// Whether the run was aborted.
        is_aborted: bool,
        /// Why it failed.
        error: Option<String>,
    },
    /// By a tool.
    Tool {
        /// The call.
        call: CallId,
        /// The tool.
        name: PluginName,
        /// What it answered.
        text: String,
        /// Whether it failed.
        is_error: bool,
    },
}

/// The last messages of one session, in short.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// The messages, oldest first; none where there is no such session.
    pub messages: Option<Vec<(Role, String)>>,
}

/// How the daemon is and what went on lately, as far as the caller may see it; a picture that may be
/// a second old.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Counts up with every picture that differs.
    pub version: u64,
    /// When it was taken.
    pub at: Timestamp,
    /// Since when the daemon is ready.
    pub started: Timestamp,
    /// How many sessions there are.
    pub sessions: u64,
    /// Those used last, a few.
    pub recent: Vec<SessionRow>,
    /// Why prompts can't be taken at the moment; none where all is well.
    pub fault: Option<Error>,
    /// Who is connected.
    pub presence: Arc<Presence>,
}

/// Who is connected, or was a short while ago.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Presence {
    /// Counts up with every change.
    pub version: u64,
    /// The clients, the latest first.
    pub present: Vec<Present>,
}

/// One client that is or was connected.
#[derive(Clone, Debug, PartialEq)]
pub struct Present {
    /// Its connection; none for the daemon itself and for what was only told of.
    pub connection: Option<ConnectionId>,
    /// Where it comes from, without a port.
    pub host: String,
    /// What it says of itself.
    pub about: About,
    /// Its device.
    pub device: Option<Arc<str>>,
    /// As what it came.
    pub role: ClientRole,
    /// What it may do.
    pub scopes: Scopes,
    /// Why it is told of: `connect`, `disconnect`, `self`, or what a client said.
    pub reason: String,
    /// What was said of it, for people.
    pub text: Option<String>,
    /// For how long nobody touched it, as far as it was said.
    pub idle: Option<Duration>,
    /// When that was.
    pub at: Timestamp,
}

/// How the configuration is. Secrets are not in it: neither those of the environment and of files,
/// which it only names, nor what should not be written in it and is.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigSnapshot {
    /// The file that changes are written to.
    pub path: String,
    /// Whether it is there.
    pub exists: bool,
    /// Tells its contents apart.
    pub hash: String,
    /// What it says; null where it is not TOML.
    pub file: Json,
    /// What all keys say: of files, environment, command line and by default.
    pub effective: Json,
    /// Why one can't run on it.
    pub complaints: Vec<ConfigIssue>,
    /// What has no effect or is probably not meant.
    pub warnings: Vec<ConfigIssue>,
    /// Whether anything of it takes effect with the next start alone.
    pub needs_restart: bool,
    /// The keys, as `section.key`, that take effect with the next start.
    pub pending: Vec<String>,
}

impl ConfigSnapshot {
    /// What somebody is told of it who is no operator.
    #[must_use]
    pub fn in_common(mut self) -> Self {
        let is_common =
            |path: &str| crate::config::COMMON_SECTIONS.contains(&path.split('.').next().unwrap_or_default());
        for document in [&mut self.file, &mut self.effective] {
            if let Json::Object(sections) = document {
                sections.retain(|name, _| is_common(name));
            }
        }
        self.pending.retain(|path| is_common(path));
        Self {
            path: String::new(),
            hash: String::new(),
            complaints: Vec::new(),
            warnings: Vec::new(),
            ..self
        }
    }
}

/// Something about the configuration that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigIssue {
    /// The key it is about, as `section.key`; empty where it is about no single one.
    pub path: String,
    /// What it is.
    pub message: String,
}

/// A part of the daemon's own log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTail {
    /// The place behind its last line, to go on from.
    pub cursor: u64,
    /// The place behind the last line there is.
    pub end: u64,
    /// The lines, without line ends.
    pub lines: Vec<Arc<str>>,
    /// Whether there were earlier ones that are left out.
    pub truncated: bool,
    /// Whether the place that was asked for is none (any longer), so that these do not follow it.
    pub reset: bool,
}

/// What was spent on one model on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayUsage {
    /// When the day began, UTC.
    pub day: Timestamp,
    /// The model.
    pub model: ModelRef,
    /// The tokens.
    pub usage: Usage,
    /// How many calls were made.
    pub calls: u64,
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The bound is that of the real thing, and what is kept is a beginning.
        #[test]
        fn a_clipped_message_fits(content in "(a|\"|\\PC|[\\x00-\\x1f]|\u{130}){0,60}", max in 0usize..500) {
            let mut message = Message {
                role: Role::User,
                content: content.clone(),
                at: Timestamp::default(),
                run: RunId::from("r"),
                clipped: false,
                attachments: Vec::new(),
            };
            let json = |text: &str| serde_json::to_string(text).map_or(usize::MAX, |json| json.len() - 2);
            prop_assert_eq!(message.json_bytes(), json(&content) + Message::ENVELOPE_BYTES);
            message.clip(max);
            prop_assert!(content.starts_with(&message.content));
            prop_assert_eq!(message.clipped, message.content.len() < content.len());
            prop_assert!(message.content.is_empty() || message.json_bytes() <= max);
        }
    }
}
