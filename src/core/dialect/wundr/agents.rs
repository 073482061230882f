//! Agents that work for a session, in this protocol's words.

use serde::Deserialize;
use serde_json::{Value, json};

use super::sessions::target;
use super::shape::{COUNT, Field, INTEGER_MAX, NAME, SAID, Shape, TEXT, default, optional, required};
use super::wire::{self, Failure};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::agents::subagent::{AgentChange, AgentNews, AgentStatus, Priority, Spawn, Status, Stop, Task};
use crate::dialect::json::put;
use crate::error::Error;
use crate::ids::{Owner, SessionKey, SubAgentId};
use crate::provider::model::ModelRef;
use crate::request::ask::Ask;
use crate::time::Timestamp;

/// Every status of an agent. (Source: Wundr's schemas.)
const STATES: &[&str] = &["initializing", "running", "paused", "completed", "failed", "stopped"];

/// What an agent may be given besides its task.
pub(super) const CONFIG: Shape = Shape::Object(&[
    optional(
        "maxTokens",
        Shape::Integer(1, INTEGER_MAX),
        "the most tokens that its session may spend; it fails when they do not do",
    ),
    optional(
        "model",
        NAME,
        "the model that answers, PROVIDER/MODEL or MODEL, one of the configuration; absent = the agent's",
    ),
]);

/// What is to be done.
pub(super) const TASK: Shape = Shape::Object(&[
    required("description", SAID, "what it is told to do"),
    default(
        "priority",
        Shape::OneOf(&["low", "medium", "high", "critical"]),
        r#""medium""#,
        "who begins first where several wait",
    ),
]);

const AGENT: Field = required("agentId", NAME, "the agent");
const REASON: Field = optional("reason", Shape::Text(1, 1024), "why, for people");

/// The parameters of `agent.spawn`.
pub(super) const SPAWN: &[Field] = &[
    optional("parentSessionId", NAME, "the session it works for, which is told what it answers"),
    required("agentType", NAME, "the agent of this name, or the default agent"),
    optional("config", CONFIG, "bounds of its own"),
    required("task", TASK, "what it is to do"),
];

/// The parameters of `agent.status`.
pub(super) const ONE: &[Field] = &[AGENT];

/// The parameters of `agent.stop`.
pub(super) const STOP: &[Field] = &[
    AGENT,
    REASON,
    default(
        "force",
        Shape::Flag,
        "false",
        "whether to stop it also where a team needs it, and not to mind that it is over already",
    ),
];

/// An agent: the protocol's `AgentStatus`, with more.
pub(super) const STATUS: &[Field] = &[
    AGENT,
    required("status", Shape::OneOf(STATES), "how it is"),
    required("sessionId", NAME, "its own session"),
    required("sessionKey", NAME, "what other protocols call that"),
    optional("parentSessionId", NAME, "the session it works for"),
    optional("teamId", NAME, "the team it is in"),
    optional("role", NAME, "as what it is in the team"),
    required("agentType", NAME, "as it was asked for"),
    required("task", TEXT, "what it does, in short"),
    required("depth", COUNT, "how many sessions are above its own"),
    optional("result", TEXT, "what it answered last, in short"),
    optional("error", wire::ERROR, "why it failed or was stopped"),
    required(
        "metrics",
        Shape::Object(&[
            required("tokensUsed", COUNT, "read and written in its turns"),
            required("durationMs", COUNT, "since it was put to work, until it was over"),
            required("tasksCompleted", COUNT, "turns that were answered"),
        ]),
        "what it has done",
    ),
    required("startedAt", Shape::Time, "when it was put to work"),
    required("updatedAt", Shape::Time, "when anything of this changed last"),
];

/// An agent as a client reads it that is `who`.
pub(super) fn status(agent: &AgentStatus, who: &Owner, now: Timestamp) -> Value {
    let mut status = json!({
        "agentId": agent.agent.as_str(),
        "status": agent.state.name(),
        "sessionId": agent.session.uuid(),
        "sessionKey": agent.session.seen_by(who),
        "agentType": agent.kind,
        "task": agent.task,
        "depth": agent.depth,
        "metrics": {
            "tokensUsed": agent.usage.total(),
            "durationMs": agent.duration_ms(now),
            "tasksCompleted": agent.turns_completed,
        },
        "startedAt": agent.created.to_rfc3339(),
        "updatedAt": agent.updated.to_rfc3339(),
    });
    put(&mut status, "parentSessionId", agent.parent.as_ref().map(SessionKey::uuid));
    if let Some((team, role)) = &agent.team {
        status["teamId"] = team.as_str().into();
        status["role"] = role.as_str().into();
    }
    put(&mut status, "result", agent.answer.as_deref());
    put(&mut status, "error", agent.why.as_ref().map(|why| Failure::of(why).to_value()));
    status
}

/// Bounds of an agent's own, as clients say them.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    pub(super) max_tokens: Option<u64>,
    model: Option<String>,
}

impl Config {
    /// The model that is to answer, of an agent of this kind.
    ///
    /// # Errors
    /// `InvalidRequest` where there is no such model.
    pub(super) fn model(
        &self,
        kind: &str,
        wundr: &Wundr,
        request: &Request<'_>,
    ) -> Result<Option<ModelRef>, Error> {
        let Some(model) = &self.model else { return Ok(None) };
        let found = wundr.setup.catalog.find(&wundr.agent_named(kind), model);
        found.map(Some).map_err(|error| request.invalid(&format!("config.model: {}", error.message)))
    }
}

/// A task, as clients say it.
#[derive(Deserialize)]
pub(super) struct TaskParams {
    description: String,
    priority: String,
}

impl From<TaskParams> for Task {
    fn from(TaskParams { description, priority }: TaskParams) -> Self {
        Self { description, priority: Priority::from_name(&priority).unwrap_or_default() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spawning {
    parent_session_id: Option<String>,
    agent_type: String,
    config: Option<Config>,
    task: TaskParams,
}

/// Asks, and answers with the agent.
fn ask(question: impl Ask<Reply = Box<AgentStatus>> + 'static) -> Answered {
    Call::ask(question, |wundr, agent, turn| status(&agent, &wundr.owner, turn.now()))
}

/// `agent.spawn`
pub(super) fn spawn(wundr: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Spawning { parent_session_id, agent_type, config, task } = request.read()?;
    let config = config.unwrap_or_default();
    ask(Box::new(Spawn {
        parent: parent_session_id.as_deref().map(target),
        model: config.model(&agent_type, wundr, request)?,
        kind: agent_type,
        task: task.into(),
        tokens_max: config.max_tokens,
        call: None,
    }))
}

/// `agent.status`
pub(super) fn describe(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    ask(Status { agent: SubAgentId::from(request.text("agentId")) })
}

/// `agent.stop`
pub(super) fn stop(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let (reason, force) = (request.text_if_any("reason"), request.params["force"] == true);
    ask(Stop { agent: SubAgentId::from(request.text("agentId")), reason, force })
}

impl Wundr {
    /// Something happened to an agent. Those who subscribed to its session are told, and those who did to
    /// the session it works for.
    pub(super) fn tell_agent(&mut self, news: &AgentNews, turn: &mut Turn<'_>) {
        let payload = status(&news.status, &self.owner, turn.now());
        let names: &[&'static str] = match news.what {
            AgentChange::Spawned => &["agent.spawned", "agent.status"],
            AgentChange::Changed => &["agent.status"],
            AgentChange::Stopped => &["agent.stopped", "agent.status"],
        };
        let parent = news.status.parent.as_ref().map(|parent| parent.uuid());
        for name in names {
            self.announce_also_to(name, &payload, parent.as_deref(), turn);
        }
    }
}
