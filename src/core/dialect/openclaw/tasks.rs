//! `tasks.list`: what is done besides conversations, by agents that work for sessions and by jobs.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request, keys};
use crate::agents::subagent::{AgentState, AgentStatus, List};
use crate::dialect::Turn;
use crate::ids::Owner;
use crate::schedule::job::{Firing, FiringState, ListFirings};

/// How many tasks are told to who does not say, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 500;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TasksParams {
    /// One, or several.
    status: Option<Value>,
    agent_id: Option<String>,
    session_key: Option<String>,
    limit: Option<usize>,
}

impl TasksParams {
    fn wants(&self, task: &Value) -> bool {
        let status = &task["status"];
        let is_status = match &self.status {
            Some(Value::Array(several)) => several.contains(status),
            Some(one) => one == status,
            None => true,
        };
        let is_agent = self.agent_id.as_ref().is_none_or(|agent| task["agentId"] == agent.as_str());
        let is_session = self.session_key.as_ref().is_none_or(|key| {
            ["sessionKey", "childSessionKey"].iter().any(|name| task[*name] == key.as_str())
        });
        is_status && is_agent && is_session
    }
}

/// `tasks.list`: the latest changed first.
pub(super) fn list(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: TasksParams = request.read()?;
    let limit = asked.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    let who = dialect.owner.clone();
    Call::ask_on(List, move |_, agents, _| {
        Call::ask(ListFirings { job: None, limit: LIMIT_MAX }, move |_, firings, _| {
            let mut tasks: Vec<Value> =
                agents.iter().map(|agent| of_agent(agent, &who)).chain(firings.iter().map(of_job)).collect();
            tasks.retain(|task| asked.wants(task));
            tasks.sort_by_key(|task| std::cmp::Reverse(task["updatedAt"].as_u64()));
            tasks.truncate(limit);
            json!({ "tasks": tasks })
        })
    })
}

fn of_agent(agent: &AgentStatus, who: &Owner) -> Value {
    let status = match agent.state {
        AgentState::Initializing => "queued",
        AgentState::Running | AgentState::Paused => "running",
        AgentState::Completed => "completed",
        AgentState::Failed => "failed",
        AgentState::Stopped => "cancelled",
    };
    let mut task = json!({
        "id": agent.agent.as_str(),
        "taskId": agent.agent.as_str(),
        "kind": "subagent",
        "runtime": "subagent",
        "status": status,
        "title": agent.task,
        "agentId": &*agent.session.agent(),
        "childSessionKey": keys::write(&agent.session, who),
        "createdAt": agent.created.as_millis(),
        "startedAt": agent.created.as_millis(),
        "updatedAt": agent.updated.as_millis(),
    });
    if let Some(parent) = &agent.parent {
        task["sessionKey"] = keys::write(parent, who).into();
    }
    if agent.state.is_over() {
        task["endedAt"] = agent.updated.as_millis().into();
    }
    if let Some(answer) = &agent.answer {
        task["terminalSummary"] = answer.as_str().into();
    }
    if let Some(why) = &agent.why {
        task["error"] = why.message.as_str().into();
    }
    task
}

fn of_job(firing: &Firing) -> Value {
    let status = match firing.state {
        FiringState::Running => "running",
        FiringState::Done => "completed",
        FiringState::Failed(_) => "failed",
        FiringState::Skipped(_) => "cancelled",
    };
    let id = format!("{}@{}", firing.job, firing.scheduled.as_millis());
    let mut task = json!({
        "id": id,
        "taskId": id,
        "kind": "cron",
        "runtime": "cron",
        "status": status,
        "title": firing.job.as_str(),
        "sourceId": firing.job.as_str(),
        "createdAt": firing.scheduled.as_millis(),
        "startedAt": firing.begun.as_millis(),
        "updatedAt": firing.ended.unwrap_or(firing.begun).as_millis(),
    });
    if let Some(run) = &firing.run {
        task["runId"] = run.as_str().into();
    }
    if let Some(ended) = firing.ended {
        task["endedAt"] = ended.as_millis().into();
    }
    if let Some(text) = &firing.text {
        task["terminalSummary"] = text.as_str().into();
    }
    match &firing.state {
        FiringState::Failed(error) => task["error"] = error.message.as_str().into(),
        FiringState::Skipped(why) => task["progressSummary"] = why.as_str().into(),
        FiringState::Running | FiringState::Done => {}
    }
    task
}
