//! What can be asked about the daemon as a whole, and what is answered.

use std::sync::Arc;
use std::time::Duration;

use crate::area::Noted;
use crate::area::area;
use crate::config::catalog::Catalog;
use crate::conversation::reply::SessionRow;
use crate::daemon::health::{Condition, Report};
use crate::daemon::presence::{Presence, PresenceReport};
use crate::error::Error;
use crate::ids::LaneName;
use crate::provider::model::ModelRef;
use crate::provider::tally::Tally;
use crate::skill::SkillList;
use crate::time::Timestamp;

area! {
    /// What can be asked about the daemon.
    Daemon(DaemonCommand => DaemonReply) {
        /// How it is, in short.
        GetStatus(GetStatus) => Status(Status),
        /// Describe the machine and the process.
        GetMachine(GetMachine) => Machine(Box<Machine>),
        /// How it and its parts are.
        GetHealth(GetHealth) => Health(Arc<Report>),
        /// How it is, who is connected, what went on lately.
        GetOverview(GetOverview) => Overview(Arc<Overview>),
        /// Have something shown among who is connected.
        Tell(Box<PresenceReport>) => Noted(Noted),
        /// The agents and models there are to choose from.
        GetCatalog(GetCatalog) => Catalog(Arc<Catalog>),
        /// The skills there are; who is no operator is told of those that can be used, and not where they are.
        ListSkills(ListSkills) => Skills(Box<SkillList>),
        /// The lanes in which runs are or wait.
        ListLanes(ListLanes) => Lanes(Vec<LaneRow>),
        /// The latest lines of its own log, or those since a place in it.
        ReadLog(ReadLog) => LogTail(LogTail),
        /// What was spent on which model on which day.
        ListUsage(ListUsage) => UsageDays(Vec<DayUsage>),
    }
}

/// The answer to a [`DaemonCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum DaemonReply {
    /// To `GetStatus`.
    Status(Status),
    /// To `GetMachine`.
    Machine(Box<Machine>),
    /// To `GetHealth`.
    Health(Arc<Report>),
    /// To `GetOverview`.
    Overview(Arc<Overview>),
    /// To `Tell`.
    Noted(Noted),
    /// To `GetCatalog`: as it is now.
    Catalog(Arc<Catalog>),
    /// To `ListSkills`.
    Skills(Box<SkillList>),
    /// To `ListLanes`, by name.
    Lanes(Vec<LaneRow>),
    /// To `ReadLog`.
    LogTail(LogTail),
    /// To `ListUsage`: one for each day and model, the earliest first.
    UsageDays(Vec<DayUsage>),
}

impl DaemonCommand {
    /// Whether it is for operators alone.
    pub fn is_for_operators(&self) -> bool {
        matches!(self, Self::ReadLog(_) | Self::ListUsage(_) | Self::ListLanes(_))
    }

    /// What it takes of memory with its reply, where a small request takes 1; none where the reply may be
    /// as large as any.
    pub fn weight(&self) -> Option<usize> {
        match self {
            Self::ReadLog(_) | Self::ListUsage(_) | Self::ListLanes(_) => None,
            Self::ListSkills(_) => Some(64),
            _ => Some(1),
        }
    }
}

/// Ask for the daemon's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetStatus;

/// Describe the machine and the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetMachine;

/// How the daemon and its parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetHealth;

/// How the daemon is, who is connected, what went on lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetOverview;

/// The skills there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSkills;

/// The lanes in which runs are or wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLanes;

/// The latest lines of the daemon's own log, or those since a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadLog {
    /// The place; none = the latest.
    pub cursor: Option<u64>,
    /// At most so many lines.
    pub lines_max: usize,
    /// And at most so many bytes.
    pub bytes_max: usize,
}

/// What was spent on which model on which day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListUsage {
    /// From the day of this time on.
    pub since: Timestamp,
}

/// The agents and models there are to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetCatalog;

/// The daemon's counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version of clawmux.
    pub version: String,
    /// How many plugins are loaded.
    pub plugins: usize,
    /// How many sessions are awake.
    pub sessions: usize,
    /// How many connections are open.
    pub connections: usize,
    /// Since when the daemon is ready.
    pub started: Timestamp,
    /// How it is as a whole, as it was seen last; none before it was looked at for the first time.
    pub condition: Option<Condition>,
}

/// How the machine is that the daemon runs on. What is not known is 0 or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The host's name.
    pub host: String,
    /// Which kernel it has, such as `linux`.
    pub platform: String,
    /// The version of its kernel.
    pub kernel: String,
    /// What kind of processors it has, such as `x86_64`.
    pub architecture: String,
    /// What its system calls itself.
    pub system: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// How many processors the daemon may use.
    pub processors: usize,
    /// How many tasks wanted one, on average over 1, 5 and 15 minutes.
    pub load: [f64; 3],
    /// The memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// What of that can be had without swapping, in bytes.
    pub memory_free_bytes: u64,
}

/// A lane in which runs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRow {
    /// The lane's name.
    pub name: LaneName,
    /// How many runs are active, or about to be: one at most.
    pub active: usize,
    /// How many wait for their turn.
    pub waiting: usize,
}

/// How the daemon is and what went on lately, as far as the caller may see it; a picture that may be
/// a second old.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Counts up with every picture that differs.
    pub version: u64,
    /// When the overview was made.
    pub at: Timestamp,
    /// Since when the daemon is ready.
    pub started: Timestamp,
    /// How many sessions there are.
    pub sessions: u64,
    /// Those used last, a few.
    pub recent: Vec<SessionRow>,
    /// Why prompts can't be taken at the moment; none where all is well.
    pub fault: Option<Error>,
    /// How the parts of the daemon are, as they were seen last; none before that.
    pub report: Option<Arc<Report>>,
    /// How long it took to make the overview.
    pub took: Duration,
    /// Who is connected.
    pub presence: Arc<Presence>,
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
    /// The model that was called.
    pub model: ModelRef,
    /// What its calls came to.
    pub tally: Tally,
}
