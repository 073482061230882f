//! What is kept of agents and teams, and what is to be written down of it.

use crate::agents::subagent::{AgentState, Task};
use crate::agents::team::{Coordination, TeamState};
use crate::error::Error;
use crate::ids::{Owner, SessionKey, SubAgentId, TeamId};
use crate::provider::model::ModelRef;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

/// An agent that was put to work.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// The agent's id.
    pub id: SubAgentId,
    /// The owner of its session.
    pub owner: Owner,
    /// The session in which it works.
    pub session: SessionKey,
    /// The session it works for.
    pub parent: Option<SessionKey>,
    /// The session whose budget it spends.
    pub root: SessionKey,
    /// How many sessions are above it.
    pub depth: u32,
    /// Its place in a team.
    pub seat: Option<Seat>,
    /// Which kind of agent was asked for.
    pub kind: String,
    /// What it is to do; once it is over, the beginning of that.
    pub task: Task,
    /// The most tokens its session may spend.
    pub tokens_max: Option<u64>,
    /// The model that answers in its session; none = that of its kind.
    pub model: Option<ModelRef>,
    /// The stage of its work.
    pub phase: Phase,
    /// How many turns it has begun.
    pub turns: u32,
    /// How many it has completed.
    pub turns_completed: u32,
    /// How many of its turns at the task are over.
    pub task_turns: u32,
    /// What it said last, or the beginning of that.
    pub answer: Option<String>,
    /// What its turns have cost.
    pub usage: Usage,
    /// When it was put to work.
    pub created: Timestamp,
    /// When anything of this changed last.
    pub updated: Timestamp,
}

/// A place in a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The team it belongs to.
    pub team: TeamId,
    /// Its position among the members, from 0.
    pub place: u32,
    /// The role it has in the team.
    pub role: String,
}

/// How far an agent is.
///
/// ```text
///   Waiting --(its turn comes: a prompt for its session)--> Turn
///      ^                                                     |
///      +------------(the turn ends, others may follow)-------+
///      |                                                     |
///      +--------------> Over <--(it ends, or is stopped)-----+
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// It waits for a turn.
    Waiting,
    /// It has its turn number [`Agent::turns`].
    Turn {
        /// What its session is prompted with.
        content: String,
        /// The number of the message it is about; none = it is about the task.
        mail: Option<u64>,
    },
    /// Its work is over; no turn follows.
    Over {
        /// `Completed`, `Failed` or `Stopped`.
        state: AgentState,
        /// Why, where it did not complete.
        why: Option<Error>,
        /// Whether its session is yet to be told to stop.
        settling: bool,
    },
}

impl Agent {
    /// Whether its work is over.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    /// The idempotency key of its turn under way, which makes that one run however often it is asked
    /// for.
    pub fn turn_key(&self) -> String {
        format!("agent:{}:{}", self.id, self.turns)
    }

    pub(super) fn state(&self) -> AgentState {
        match &self.phase {
            Phase::Waiting if self.turns == 0 => AgentState::Initializing,
            Phase::Waiting => AgentState::Paused,
            Phase::Turn { .. } => AgentState::Running,
            Phase::Over { state, .. } => *state,
        }
    }
}

/// A team, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    /// The team's id.
    pub id: TeamId,
    /// The owner of its agents' sessions.
    pub owner: Owner,
    /// The team's name, for people.
    pub name: String,
    /// The team's purpose, shown to its members.
    pub description: Option<String>,
    /// How its work is put together.
    pub strategy: Coordination,
    /// What it is to do.
    pub task: Task,
    /// Its members, in order.
    pub members: Vec<SubAgentId>,
    /// How it is; `Forming` and `Active` are told apart by what its members did.
    pub state: TeamState,
    /// Why it failed or was dissolved.
    pub why: Option<String>,
    /// What was said at the task so far, in order: the places of members, and what each said. Let go
    /// when it is over.
    pub said: Vec<(u32, String)>,
    /// When the team was formed.
    pub created: Timestamp,
    /// When anything of this changed last.
    pub updated: Timestamp,
}

/// A message that waits for a member, or that it is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Its place in the order of all messages.
    pub number: u64,
    /// The name of the message, which several may share.
    pub message: String,
    /// The sender.
    pub from: SubAgentId,
    /// The recipient.
    pub to: SubAgentId,
    /// The text.
    pub content: String,
}

/// Something to be put into a session's conversation, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its id, which the session takes once.
    pub id: String,
    /// The session that gets the note.
    pub session: SessionKey,
    /// The owner of that session.
    pub owner: Owner,
    /// The text.
    pub content: String,
}

/// Something to be written down. Everything but `Said` is the whole of what it is about, in place of
/// what was written of it before.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// An agent is new or has changed.
    Agent(Box<Agent>),
    /// An agent is deleted.
    ForgetAgent(SubAgentId),
    /// A team, but for what was said in it.
    Team(Box<Team>),
    /// It is forgotten, with what was said in it.
    ForgetTeam(TeamId),
    /// Something was said in a team.
    Said {
        /// The team in which it was said.
        team: TeamId,
        /// Its place in [`Team::said`].
        number: usize,
        /// The place of the member.
        place: u32,
        /// The text.
        text: String,
    },
    /// What was said in a team is let go.
    ForgetSaid(TeamId),
    /// A message between members is stored.
    Mail(Mail),
    /// A message was delivered and is deleted.
    ForgetMail(u64),
    /// A note for a session is stored.
    Note(Note),
    /// A note was delivered and is deleted.
    ForgetNote(String),
}

impl Change {
    /// How much it counts where bytes are bounded.
    pub fn bytes(&self) -> usize {
        let content = |phase: &Phase| if let Phase::Turn { content, .. } = phase { content.len() } else { 0 };
        256 + match self {
            Self::Agent(agent) => {
                agent.task.description.len()
                    + agent.answer.as_ref().map_or(0, String::len)
                    + content(&agent.phase)
            }
            Self::Team(team) => team.task.description.len() + team.members.len() * 64,
            Self::Said { text, .. } => text.len(),
            Self::Mail(mail) => mail.content.len(),
            Self::Note(note) => note.content.len(),
            _ => 0,
        }
    }
}

/// Everything about agents and teams in the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// All agents.
    pub agents: Vec<Agent>,
    /// The teams, with what was said in them.
    pub teams: Vec<Team>,
    /// The messages that wait or are at work.
    pub mail: Vec<Mail>,
    /// The notes that are yet to be put where they belong.
    pub notes: Vec<Note>,
}
