//! Teams of agents, in this protocol's words.

use serde::Deserialize;
use serde_json::{Value, json};

use super::agents::{self, Config, TaskParams};
use super::shape::{Field, NAME, SAID, Shape, TEXT, default, optional, required};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::agents::team::{
    Coordination, Create, Dissolve, MEMBERS_MAX, Member, Message, ROUNDS_MAX, Relayed, Sent, Status,
    TeamNews, TeamStatus,
};
use crate::dialect::json::put;
use crate::error::Error;
use crate::ids::{Owner, TeamId};
use crate::request::ask::Ask;
use crate::time::Timestamp;

/// Every status of a team. (Source: Wundr's schemas; no team of ours is ever paused.)
const STATES: &[&str] = &["forming", "active", "paused", "completed", "failed", "dissolved"];

/// Every strategy. (Source: Wundr's schemas; `custom` is refused by name.)
const STRATEGIES: Shape = Shape::OneOf(&["sequential", "parallel", "round-robin", "custom"]);

const TEAM: Field = required("teamId", NAME, "the team");
const REASON: Field = optional("reason", Shape::Text(1, 1024), "why, for people");

const MEMBER: Shape = Shape::Object(&[
    required("agentType", NAME, "the agent of this name, or the default agent"),
    required("role", NAME, "as what it is in the team; all members are told"),
    optional("config", agents::CONFIG, "bounds of its own"),
]);

/// The parameters of `team.create`.
pub(super) const CREATE: &[Field] = &[
    required("name", NAME, "its name"),
    optional("description", Shape::Text(1, 1024), "what it is for; its members are told"),
    required("agents", Shape::List(&MEMBER, 1, MEMBERS_MAX), "its members, in order"),
    default(
        "coordinationStrategy",
        STRATEGIES,
        r#""parallel""#,
        "sequential: one after another, each told what those before said; parallel: all at once; round-robin: in \
         rounds, each told what was said so far; custom is refused",
    ),
    optional("rounds", Shape::Integer(1, ROUNDS_MAX as i64), "of round-robin; 2 where it is not said"),
    required("task", agents::TASK, "what it is to do"),
];

/// The parameters of `team.status`.
pub(super) const ONE: &[Field] = &[TEAM];

/// `team.dissolve`, and the event `team.dissolved`
pub(super) const DISSOLVE: &[Field] = &[TEAM, REASON];

/// The parameters of `team.message`.
pub(super) const MESSAGE: &[Field] = &[
    TEAM,
    required("from", NAME, "the member it is from: its agentId, or its role where that is its alone"),
    optional("to", NAME, "the member it is for, named likewise; all others where it is not said"),
    required("content", SAID, "what it says"),
    optional("metadata", Shape::AnyObject, "what else there is to say to clients"),
];

/// What `team.message` is answered.
pub(super) const SENT: &[Field] = &[
    required("ok", Shape::Flag, "true"),
    required("messageId", NAME, "the message, as its answers name it"),
    TEAM,
    required("to", Shape::List(&NAME, 1, MEMBERS_MAX), "the members it waits for"),
];

/// The event `team.message`
pub(super) const RELAYED: &[Field] = &[
    TEAM,
    required("from", NAME, "the member it is from"),
    optional("to", NAME, "the member it is for; all others where it is not said"),
    required("content", TEXT, "what it says"),
    optional("metadata", Shape::AnyObject, "as it was sent"),
    required("messageId", NAME, "the message"),
    optional("inReplyTo", NAME, "the message it answers"),
    required("sentAt", Shape::Time, "when"),
];

/// A team: the protocol's `TeamStatus`, with more.
pub(super) const STATUS: &[Field] = &[
    TEAM,
    required("name", NAME, "its name"),
    optional("description", TEXT, "what it is for"),
    required("status", Shape::OneOf(STATES), "how it is"),
    required("coordinationStrategy", STRATEGIES, "how its work is put together"),
    required(
        "agents",
        Shape::List(&Shape::Object(agents::STATUS), 1, MEMBERS_MAX),
        "its members, in order, each with what it answered last",
    ),
    required("progress", Shape::Number(0.0, 1.0), "how much of the turns at its task is over"),
    optional("reason", TEXT, "why it failed or was dissolved"),
    required("startedAt", Shape::Time, "when it was formed"),
    required("updatedAt", Shape::Time, "when anything of this changed last"),
];

fn status(team: &TeamStatus, who: &Owner, now: Timestamp) -> Value {
    let members: Vec<Value> = team.members.iter().map(|member| agents::status(member, who, now)).collect();
    let mut status = json!({
        "teamId": team.team.as_str(),
        "name": team.name,
        "status": team.state.name(),
        "coordinationStrategy": team.strategy.name(),
        "agents": members,
        "progress": team.progress,
        "startedAt": team.created.to_rfc3339(),
        "updatedAt": team.updated.to_rfc3339(),
    });
    put(&mut status, "description", team.description.as_deref());
    put(&mut status, "reason", team.why.as_deref());
    status
}

fn relayed(message: &Relayed) -> Value {
    let mut payload = json!({
        "teamId": message.team.as_str(),
        "from": message.from.as_str(),
        "content": message.content,
        "messageId": message.message,
        "sentAt": message.at.to_rfc3339(),
    });
    put(&mut payload, "to", message.to.as_ref().map(|to| to.as_str()));
    put(&mut payload, "metadata", message.metadata.clone());
    put(&mut payload, "inReplyTo", message.answers.as_deref());
    payload
}

fn dissolved(team: &TeamId, reason: Option<&str>) -> Value {
    let mut payload = json!({ "teamId": team.as_str() });
    put(&mut payload, "reason", reason);
    payload
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Creating {
    name: String,
    description: Option<String>,
    agents: Vec<Joining>,
    coordination_strategy: String,
    rounds: Option<u32>,
    task: TaskParams,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Joining {
    agent_type: String,
    role: String,
    config: Option<Config>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Messaging {
    team_id: String,
    from: String,
    to: Option<String>,
    content: String,
    metadata: Option<Value>,
}

/// Asks, and answers with the team.
fn ask(question: impl Ask<Reply = TeamStatus> + 'static) -> Answered {
    Call::ask(question, |wundr, team, turn| status(&team, &wundr.owner, turn.now()))
}

/// The team that the parameters name.
fn named(request: &Request<'_>) -> TeamId {
    TeamId::from(request.text("teamId"))
}

/// `team.create`
pub(super) fn create(wundr: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Creating { name, description, agents, coordination_strategy, rounds, task } = request.read()?;
    let strategy = Coordination::from_name(&coordination_strategy, rounds)
        .map_err(|error| request.invalid(&format!("coordinationStrategy: {}", error.message)))?;
    let members = agents.into_iter().map(|Joining { agent_type, role, config }| {
        let config = config.unwrap_or_default();
        let model = config.model(&agent_type, wundr, request)?;
        Ok(Member { kind: agent_type, role, tokens_max: config.max_tokens, model })
    });
    let members = members.collect::<Result<_, Error>>()?;
    ask(Create { name, description, members, strategy, task: task.into() })
}

/// `team.status`
pub(super) fn describe(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    ask(Status { team: named(request) })
}

/// `team.message`
pub(super) fn message(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Messaging { team_id, from, to, content, metadata } = request.read()?;
    let message = Message { team: TeamId::from(team_id), from, to, content, metadata };
    Call::ask(message, |_, Sent { team, message, to }, _| {
        let to: Vec<&str> = to.iter().map(|id| id.as_str()).collect();
        json!({ "ok": true, "messageId": message, "teamId": team.as_str(), "to": to })
    })
}

/// `team.dissolve`
pub(super) fn dissolve(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    ask(Dissolve { team: named(request), reason: request.text_if_any("reason") })
}

impl Wundr {
    /// Something happened in a team.
    pub(super) fn tell_team(&mut self, news: &TeamNews, turn: &mut Turn<'_>) {
        match news {
            TeamNews::Changed(team) => {
                self.announce("team.status", &status(team, &self.owner, turn.now()), turn)
            }
            TeamNews::Message(message) => self.announce("team.message", &relayed(message), turn),
            TeamNews::Dissolved { team, reason, .. } => {
                self.announce("team.dissolved", &dissolved(team, reason.as_deref()), turn);
            }
        }
    }
}
