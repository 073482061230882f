//! `admin.jobs` and `admin.job.*`: what is done at set times.

use std::time::Duration;

use clawmux_core::command::Command;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, SessionKey};
use clawmux_core::job::{Firing, JobCommand, JobPatch, JobReply, JobView, NewJob, Order, Place};
use clawmux_core::manner::Manner;
use clawmux_core::reply::Reply;
use clawmux_core::schedule::{Misfire, Plan};
use clawmux_core::thinking::Thinking;
use clawmux_core::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::event::owner_name;
use super::methods::Call;
use super::session::{execute, unexpected};

/// How many firings are told to who does not say.
const RUNS: usize = 20;

/// The characters of a prompt that a job without a name is called by.
const NAME_CHARS: usize = 40;

/// `admin.jobs`: `{"jobs": [..], ..}`, the next to be due first, with how the scheduler is.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.jobs")?;
    let JobReply::Jobs(jobs) = ask(&call, JobCommand::List).await? else { return Err(misfit()) };
    let JobReply::Status(status) = ask(&call, JobCommand::Status).await? else { return Err(misfit()) };
    Ok(json!({
        "jobs": jobs.iter().map(job).collect::<Vec<_>>(),
        "draining": !status.is_enabled,
        "next_ms": status.next.map(Timestamp::as_millis),
        "heartbeat_ms": status.heartbeat.map(millis),
        "heartbeat_halted": status.heartbeat_halted,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    prompt: String,
    name: Option<String>,
    description: Option<String>,
    at_ms: Option<u64>,
    every_ms: Option<u64>,
    anchor_ms: Option<u64>,
    cron: Option<String>,
    zone: Option<String>,
    session: Option<String>,
    agent: Option<String>,
    result_to: Option<String>,
    misfire: Option<String>,
    model: Option<String>,
    thinking: Option<String>,
    enabled: Option<bool>,
    delete_after: Option<bool>,
}

/// `admin.job.add`: what `admin.jobs` says of it.
pub(super) async fn add(call: Call) -> Result<Value, Error> {
    let add: Add = call.params("admin.job.add")?;
    let plan = match (add.at_ms, add.every_ms, add.cron) {
        (Some(at), None, None) => Plan::At(Timestamp::from_millis(at)),
        (None, Some(every), None) => Plan::Every {
            every: Duration::from_millis(every),
            anchor: add.anchor_ms.map(Timestamp::from_millis),
        },
        (None, None, Some(expression)) => Plan::Cron { expression, zone: add.zone },
        _ => return Err(invalid("give one of at_ms, every_ms and cron")),
    };
    let misfire = match add.misfire.as_deref() {
        None => Misfire::default(),
        Some(name) => Misfire::from_name(name)
            .ok_or_else(|| invalid("misfire is skip, once, or all:N with N from 1 to 100"))?,
    };
    let thinking = match add.thinking.as_deref() {
        None => None,
        Some(name) => Some(Thinking::from_name(name).ok_or_else(|| {
            let all = Thinking::ALL.map(Thinking::name).join(", ");
            invalid(&format!("there is no such level of thinking: it is one of {all}"))
        })?),
    };
    let place = match (add.session, add.agent) {
        (Some(session), None) => Place::Session(SessionKey::parse(&session)?),
        (None, agent) => Place::Own(AgentId::new(agent.unwrap_or_else(|| "main".into()))),
        (Some(_), Some(_)) => return Err(invalid("the session says which agent: give no other")),
    };
    let result_to = add.result_to.map(|key| SessionKey::parse(&key)).transpose()?;
    let begin: String = add.prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = add.name.unwrap_or_else(|| begin.chars().take(NAME_CHARS).collect());
    let manner = Manner { thinking, model: add.model, ..Manner::default() };
    let new = NewJob {
        name,
        description: add.description,
        is_enabled: add.enabled.unwrap_or(true),
        plan,
        order: Order { place, prompt: add.prompt, manner, result_to },
        misfire,
        is_deleted_after: add.delete_after.unwrap_or(false),
        note: None,
    };
    ask_for_job(&call, JobCommand::Add(Box::new(new))).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    job: String,
}

/// `admin.job.enable`: what `admin.jobs` says of it.
pub(super) async fn enable(call: Call) -> Result<Value, Error> {
    let Named { job } = call.params("admin.job.enable")?;
    switch(&call, job, true).await
}

/// `admin.job.disable`: what `admin.jobs` says of it.
pub(super) async fn disable(call: Call) -> Result<Value, Error> {
    let Named { job } = call.params("admin.job.disable")?;
    switch(&call, job, false).await
}

async fn switch(call: &Call, job: String, on: bool) -> Result<Value, Error> {
    let patch = Box::new(JobPatch { is_enabled: Some(on), ..JobPatch::default() });
    ask_for_job(call, JobCommand::Update { job, patch }).await
}

/// `admin.job.run`: `{"job", "scheduled_ms"}` once it is begun; `admin.job.runs` says what came of it.
pub(super) async fn run(call: Call) -> Result<Value, Error> {
    let Named { job } = call.params("admin.job.run")?;
    match ask(&call, JobCommand::Start { job }).await? {
        JobReply::Started { job, scheduled } => {
            Ok(json!({ "job": job.as_str(), "scheduled_ms": scheduled.as_millis() }))
        }
        _ => Err(misfit()),
    }
}

/// `admin.job.remove`: `{"removed"}`.
pub(super) async fn remove(call: Call) -> Result<Value, Error> {
    let Named { job } = call.params("admin.job.remove")?;
    match ask(&call, JobCommand::Remove { job }).await? {
        JobReply::Removed(removed) => Ok(json!({ "removed": removed })),
        _ => Err(misfit()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Runs {
    job: Option<String>,
    limit: Option<usize>,
}

/// `admin.job.runs`: `{"runs": [..]}`, the latest first.
pub(super) async fn runs(call: Call) -> Result<Value, Error> {
    let Runs { job, limit } = call.params("admin.job.runs")?;
    match ask(&call, JobCommand::Runs { job, limit: limit.unwrap_or(RUNS) }).await? {
        JobReply::Runs(firings) => Ok(json!({ "runs": firings.iter().map(firing).collect::<Vec<_>>() })),
        _ => Err(misfit()),
    }
}

async fn ask(call: &Call, command: JobCommand) -> Result<JobReply, Error> {
    match execute(call, Command::Job(Box::new(command))).await? {
        (_, Reply::Job(reply)) => Ok(*reply),
        (_, other) => Err(unexpected(&other)),
    }
}

async fn ask_for_job(call: &Call, command: JobCommand) -> Result<Value, Error> {
    match ask(call, command).await? {
        JobReply::Job(view) => Ok(job(&view)),
        _ => Err(misfit()),
    }
}

fn misfit() -> Error {
    ErrorCode::Internal.error("the scheduler answered something else than it was asked")
}

fn invalid(why: &str) -> Error {
    ErrorCode::InvalidRequest.error(why)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn job(view: &JobView) -> Value {
    let job = &view.job;
    let schedule = match job.schedule.plan() {
        Plan::At(at) => json!({ "at_ms": at.as_millis() }),
        Plan::Every { every, anchor } => {
            json!({ "every_ms": millis(every), "anchor_ms": anchor.map(Timestamp::as_millis) })
        }
        Plan::Cron { expression, zone } => json!({ "cron": expression, "zone": zone }),
    };
    json!({
        "job": job.id.as_str(),
        "name": job.name,
        "description": job.description,
        "owner": owner_name(&job.owner),
        "enabled": job.is_enabled,
        "built_in": job.is_built_in(),
        "schedule": schedule,
        "session": job.task.session.as_str(),
        "prompt": job.task.prompt,
        "model": job.task.manner.model,
        "thinking": job.task.manner.thinking.map(Thinking::name),
        "result_to": job.task.result_to.as_ref().map(SessionKey::as_str),
        "misfire": job.misfire.name(),
        "delete_after": job.is_deleted_after,
        "created_ms": job.created.as_millis(),
        "updated_ms": job.updated.as_millis(),
        "next_ms": view.next.map(Timestamp::as_millis),
        "running_since_ms": view.running.map(Timestamp::as_millis),
        "last": view.last.as_ref().map(firing),
    })
}

fn firing(firing: &Firing) -> Value {
    json!({
        "job": firing.job.as_str(),
        "scheduled_ms": firing.scheduled.as_millis(),
        "manual": firing.is_manual,
        "begun_ms": firing.begun.as_millis(),
        "ended_ms": firing.ended.map(Timestamp::as_millis),
        "state": firing.state.name(),
        "why": firing.state.why(),
        "missed": firing.missed,
        "run": firing.run.as_ref().map(clawmux_core::ids::RunId::as_str),
        "text": firing.text,
        "input_tokens": firing.usage.input_tokens,
        "output_tokens": firing.usage.output_tokens,
    })
}
