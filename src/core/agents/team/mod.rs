//! Teams of agents that work on one task: what can be asked about them and how they are. Whose turn
//! it is says [`plan`]; the rules of the whole are [`registry`](crate::agents::registry)'s.

pub mod plan;

use serde_json::Value as Json;

use crate::agents::subagent::{AgentStatus, Task};
use crate::area::area;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, SubAgentId, TeamId};
use crate::provider::model::ModelRef;
use crate::time::Timestamp;

/// The most members of a team.
pub const MEMBERS_MAX: usize = 16;
/// The most rounds of a team whose members take turns, and how many there are where nobody says.
pub const ROUNDS_MAX: u32 = 10;
/// Rounds of a debate where none are given; see [`ROUNDS_MAX`].
pub const ROUNDS_DEFAULT: u32 = 2;
/// The most teams of one owner that are at work at once.
pub const TEAMS_MAX: usize = 8;
/// The longest message to a member, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The most messages that wait for one member.
pub const MESSAGES_MAX: usize = 64;
/// The longest name of a team or a role, and the longest reason or description, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

area! {
    /// What can be asked about teams of agents.
    Team(TeamCommand => TeamReply) {
        /// Form one and put it to work.
        Create(Create) => Status(TeamStatus),
        /// How one is.
        Status(Status) => Status(TeamStatus),
        /// A message from one member to another, or to all others.
        Message(Message) => Sent(Sent),
        /// End one with all its members and all that work for these.
        Dissolve(Dissolve) => Status(TeamStatus),
    }
}

/// How a team is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The team.
    pub team: TeamId,
}

/// End a team with all its members and all that work for these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dissolve {
    /// The team.
    pub team: TeamId,
    /// Why, for people.
    pub reason: Option<String>,
}

/// A team to be formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    /// The team's name, for people.
    pub name: String,
    /// What it is for, told to its members.
    pub description: Option<String>,
    /// The members, in their order.
    pub members: Vec<Member>,
    /// How their work is put together.
    pub strategy: Coordination,
    /// What they are to do.
    pub task: Task,
}

/// Somebody to be in a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The kind of agent, as its creator calls it.
    pub kind: String,
    /// As what it is in it, told to all.
    pub role: String,
    /// The most tokens its session may spend.
    pub tokens_max: Option<u64>,
    /// The model that answers in its session; none = that of its kind.
    pub model: Option<ModelRef>,
}

/// How the work of a team is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// One after another; each is told what those before it said.
    Sequential,
    /// All at once; none knows of the others' answers.
    Parallel,
    /// In turns, so many rounds of them; each is told what was said so far.
    RoundRobin {
        /// How many, at least 1 and at most [`ROUNDS_MAX`].
        rounds: u32,
    },
}

impl Coordination {
    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Parallel => "parallel",
            Self::RoundRobin { .. } => "round-robin",
        }
    }

    /// The strategy of this name.
    ///
    /// # Errors
    /// `InvalidRequest` for `custom`, which means nothing, and for what is no name.
    pub fn from_name(name: &str, rounds: Option<u32>) -> Result<Self, Error> {
        match name {
            "sequential" => Ok(Self::Sequential),
            "parallel" => Ok(Self::Parallel),
            "round-robin" => Ok(Self::RoundRobin { rounds: rounds.unwrap_or(ROUNDS_DEFAULT) }),
            "custom" => Err(ErrorCode::InvalidRequest.error(
                "coordination strategy custom is not supported: use sequential, parallel or round-robin",
            )),
            other => {
                Err(ErrorCode::InvalidRequest.error(format!("there is no coordination strategy {other:?}")))
            }
        }
    }

    /// How many turns at the task each member has.
    pub fn rounds(self) -> u32 {
        if let Self::RoundRobin { rounds } = self { rounds } else { 1 }
    }
}

/// A message between members of a team.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The team whose members talk.
    pub team: TeamId,
    /// Whom it is from: a member by its id, or by its role where only one has it.
    pub from: String,
    /// Whom it is for, named likewise; none = all others.
    pub to: Option<String>,
    /// The text.
    pub content: String,
    /// What clients say of it besides; shown to clients and not to models.
    pub metadata: Option<Json>,
}

/// The answer to a [`TeamCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum TeamReply {
    /// To `Create`, `Status` and `Dissolve`: how the team is now.
    Status(TeamStatus),
    /// To `Message`.
    Sent(Sent),
}

/// A message waits for its turn, for these members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The team.
    pub team: TeamId,
    /// The message's name.
    pub message: String,
    /// For whom.
    pub to: Vec<SubAgentId>,
}

/// The status of a team.
#[derive(Clone, Debug, PartialEq)]
pub struct TeamStatus {
    /// The team's id.
    pub team: TeamId,
    /// The owner of its agents' sessions.
    pub owner: Owner,
    /// The team's name, for people.
    pub name: String,
    /// The team's purpose, shown to its members.
    pub description: Option<String>,
    /// How its work is put together.
    pub strategy: Coordination,
    /// The stage it has reached.
    pub state: TeamState,
    /// Its members, in order.
    pub members: Vec<AgentStatus>,
    /// How much of its turns at the task is over: 0 to 1.
    pub progress: f64,
    /// Why it failed or was dissolved.
    pub why: Option<String>,
    /// When the team was formed.
    pub created: Timestamp,
    /// When anything of this changed last.
    pub updated: Timestamp,
}

/// How a team is, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamState {
    /// None of its members has had a turn.
    Forming,
    /// Members are at work.
    Active,
    /// It has done what it was to do.
    Completed,
    /// None of its members could.
    Failed,
    /// It was dissolved from outside.
    Dissolved,
}

impl TeamState {
    /// The state's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forming => "forming",
            Self::Active => "active",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Dissolved => "dissolved",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Forming, Self::Active, Self::Completed, Self::Failed, Self::Dissolved];
        all.into_iter().find(|state| state.name() == name)
    }

    /// Whether nothing follows by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Dissolved)
    }
}

/// What happened in a team.
#[derive(Clone, Debug, PartialEq)]
pub enum TeamNews {
    /// It is not as it was.
    Changed(TeamStatus),
    /// A member was sent a message.
    Message(Relayed),
    /// The team was dissolved from outside.
    Dissolved {
        /// The team's id.
        team: TeamId,
        /// The owner of its agents' sessions.
        owner: Owner,
        /// The reason, for people.
        reason: Option<String>,
    },
}

/// A message that was relayed between members.
#[derive(Clone, Debug, PartialEq)]
pub struct Relayed {
    /// The id of the message.
    pub message: String,
    /// The team whose members talk.
    pub team: TeamId,
    /// The team's owner.
    pub owner: Owner,
    /// The sender.
    pub from: SubAgentId,
    /// For whom; none = for all others.
    pub to: Option<SubAgentId>,
    /// The text.
    pub content: String,
    /// What clients say of it besides.
    pub metadata: Option<Json>,
    /// The id of the message that this answers.
    pub answers: Option<String>,
    /// When it was sent.
    pub at: Timestamp,
}

impl TeamNews {
    /// Whose team it is about.
    pub fn owner(&self) -> &Owner {
        match self {
            Self::Changed(status) => &status.owner,
            Self::Message(relayed) => &relayed.owner,
            Self::Dissolved { owner, .. } => owner,
        }
    }
}

impl TeamCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            // Its members' statuses come back.
            Self::Create(_) | Self::Status(_) | Self::Dissolve(_) => 4,
            Self::Message(_) => 2,
        }
    }
}
