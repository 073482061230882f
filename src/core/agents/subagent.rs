//! Agents that are put to work for a session, each in a session of its own: what can be asked about
//! them and how they are. The rules are [`registry`](crate::agents::registry)'s.

use crate::area::area;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, SessionKey, SubAgentId, TeamId};
use crate::provider::model::ModelRef;
use crate::provider::usage::Usage;
use crate::target::Target;
use crate::time::Timestamp;

/// The longest description of a task, in bytes.
pub const TASK_BYTES_MAX: usize = 64 * 1024;

/// How many bytes weigh as much as a small request.
const WEIGHED_BYTES: usize = 64 * 1024;

area! {
    /// What can be asked about agents that work for a session.
    SubAgent(SubAgentCommand => SubAgentReply) {
        /// Put one to work.
        Spawn(Box<Spawn>) => Status(Box<AgentStatus>),
        /// Those that the caller may see, the latest changed first.
        List(List) => List(Vec<AgentStatus>),
        /// How one is.
        Status(Status) => Status(Box<AgentStatus>),
        /// How one is, once it is over.
        Await(Await) => Status(Box<AgentStatus>),
        /// End one with all that work for it.
        Stop(Stop) => Status(Box<AgentStatus>),
    }
}

/// The agents that the caller may see, the latest changed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List;

/// How an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The agent.
    pub agent: SubAgentId,
}

/// How an agent is, answered once it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Await {
    /// The agent.
    pub agent: SubAgentId,
}

/// End an agent with all that work for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The agent.
    pub agent: SubAgentId,
    /// Why, for people.
    pub reason: Option<String>,
    /// Whether it is to be over afterwards, whatever it was before: also where it is over already,
    /// and where a team misses it.
    pub force: bool,
}

/// An agent to be put to work.
#[derive(Clone, Debug, PartialEq)]
pub struct Spawn {
    /// The session it works for, which is told its result; none = nobody's.
    pub parent: Option<Target>,
    /// Which kind of agent: the configured one of this name where there is one, else the default.
    pub kind: String,
    /// What it is to do.
    pub task: Task,
    /// The most tokens its session may spend; none = as the budgets say.
    pub tokens_max: Option<u64>,
    /// The model that answers in its session; none = that of its kind.
    pub model: Option<ModelRef>,
    /// The id it gets where a call waits for it ([`SubAgentId::of_call`]): where it is there it is this one, and
    /// its result is put into no conversation.
    pub call: Option<SubAgentId>,
}

/// A task for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What to do, in words for the model.
    pub description: String,
    /// How soon, where several wait for their turn.
    pub priority: Priority,
}

impl Task {
    /// Whether it can be given to an agent.
    ///
    /// # Errors
    /// `InvalidRequest` where it says nothing, `TooLarge` where it is longer than [`TASK_BYTES_MAX`].
    pub fn check(&self) -> Result<(), Error> {
        if self.description.trim().is_empty() {
            return Err(ErrorCode::InvalidRequest.error("the task's description is empty"));
        }
        if self.description.len() > TASK_BYTES_MAX {
            let bytes = self.description.len();
            return Err(ErrorCode::TooLarge
                .error(format!("the task's description has {bytes} bytes, the limit is {TASK_BYTES_MAX}")));
        }
        Ok(())
    }
}

/// How soon something is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Runs after all other tasks.
    Low,
    /// Runs before those of low priority.
    #[default]
    Medium,
    /// Runs before those of medium priority.
    High,
    /// Runs before all other tasks.
    Critical,
}

impl Priority {
    /// All priorities, the lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];

    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// The priority of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.name() == name)
    }
}

/// The answer to a [`SubAgentCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum SubAgentReply {
    /// To each of the others: how the agent is now.
    Status(Box<AgentStatus>),
    /// To `List`.
    List(Vec<AgentStatus>),
}

/// The status of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentStatus {
    /// The agent's id.
    pub agent: SubAgentId,
    /// The owner of its session.
    pub owner: Owner,
    /// The session in which it works.
    pub session: SessionKey,
    /// The session it works for.
    pub parent: Option<SessionKey>,
    /// The team it is in, and as what.
    pub team: Option<(TeamId, String)>,
    /// Which kind of agent was asked for.
    pub kind: String,
    /// The stage it has reached.
    pub state: AgentState,
    /// What it does, in short.
    pub task: String,
    /// What its turns have cost.
    pub usage: Usage,
    /// How many turns it has completed.
    pub turns_completed: u32,
    /// What it said last, in short; none before it said something.
    pub answer: Option<String>,
    /// Why it failed or was stopped.
    pub why: Option<Error>,
    /// How many sessions are above it.
    pub depth: u32,
    /// When it was put to work.
    pub created: Timestamp,
    /// When anything of this changed last.
    pub updated: Timestamp,
}

impl AgentStatus {
    /// For how long it works, or did, in milliseconds.
    pub fn duration_ms(&self, now: Timestamp) -> u64 {
        let until = if self.state.is_over() { self.updated } else { now.max(self.updated) };
        until.millis_since(self.created)
    }
}

/// How an agent is, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// Its first turn is yet to come.
    Initializing,
    /// A turn of its is under way.
    Running,
    /// It waits for its next turn.
    Paused,
    /// It has done what it was to do.
    Completed,
    /// Its turn failed.
    Failed,
    /// It was stopped from outside.
    Stopped,
}

impl AgentState {
    /// The state's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all =
            [Self::Initializing, Self::Running, Self::Paused, Self::Completed, Self::Failed, Self::Stopped];
        all.into_iter().find(|state| state.name() == name)
    }

    /// Whether this state is final.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }
}

/// What happened to an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentNews {
    /// The change.
    pub what: AgentChange,
    /// The status after the change.
    pub status: AgentStatus,
}

/// What can happen to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentChange {
    /// It was put to work.
    Spawned,
    /// It is not as it was.
    Changed,
    /// It was stopped from outside.
    Stopped,
}

impl SubAgentCommand {
    /// The session it names, to be replaced.
    pub fn target_mut(&mut self) -> Option<&mut Target> {
        if let Self::Spawn(spawn) = self { spawn.parent.as_mut() } else { None }
    }

    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::Spawn(spawn) => 1 + spawn.task.description.len() / WEIGHED_BYTES,
            Self::List(_) => 64,
            Self::Status(_) | Self::Await(_) | Self::Stop(_) => 1,
        }
    }
}
