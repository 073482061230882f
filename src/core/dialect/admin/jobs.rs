//! `admin.jobs` and `admin.job.*`: what is done at set times.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::event::owner_name;
use super::method::{Method, Request, ask, ask_on, invalid, method};
use crate::error::Error;
use crate::ids::{AgentId, SessionKey};
use crate::prompt::run_options::RunOptions;
use crate::prompt::thinking::Thinking;
use crate::schedule::job::{
    Firing, GetJobStatus, JobPatch, JobView, ListFirings, ListJobs, NewJob, Order, Place, RemoveJob,
    StartJob, Started, UpdateJob,
};
use crate::schedule::{Misfire, Plan};
use crate::time::Timestamp;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.jobs", "{}", list),
    method(
        "admin.job.add",
        r#"{"prompt", "at_ms"? or "every_ms"? with "anchor_ms"? or "cron"? with "zone"?, "name"?, "description"?, "session"? or "agent"?, "result_to"?, "misfire"?, "model"?, "thinking"?, "enabled"?, "delete_after"?}"#,
        add,
    ),
    method("admin.job.run", r#"{"job"}"#, run),
    method("admin.job.remove", r#"{"job"}"#, remove),
    method("admin.job.runs", r#"{"job"?, "limit"?}"#, runs),
    method("admin.job.enable", r#"{"job"}"#, enable),
    method("admin.job.disable", r#"{"job"}"#, disable),
];

/// How many firings are told to who does not say.
const RUNS: usize = 20;

/// The characters of a prompt that a job without a name is called by.
const NAME_CHARS: usize = 40;

/// `admin.jobs`: `{"jobs": [..], ..}`, the next to be due first, with how the scheduler is.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask_on(ListJobs, |jobs| {
        ask(GetJobStatus, move |status| {
            json!({
                "jobs": jobs.iter().map(job).collect::<Vec<_>>(),
                "draining": !status.is_enabled,
                "next_ms": status.next.map(Timestamp::as_millis),
                "heartbeat_ms": status.heartbeat.map(millis),
                "heartbeat_halted": status.heartbeat_halted,
            })
        })
    })
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
fn add(request: &Request) -> Result<Call, Error> {
    let add: Add = request.read()?;
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
    let run_options = RunOptions { thinking, model: add.model, ..RunOptions::default() };
    let new = NewJob {
        name,
        description: add.description,
        is_enabled: add.enabled.unwrap_or(true),
        plan,
        order: Order { place, prompt: add.prompt, run_options, result_to },
        misfire,
        is_deleted_after: add.delete_after.unwrap_or(false),
        note: None,
    };
    ask(Box::new(new), |view| job(&view))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobParams {
    job: String,
}

/// `admin.job.enable`: what `admin.jobs` says of it.
fn enable(request: &Request) -> Result<Call, Error> {
    let JobParams { job } = request.read()?;
    switch(job, true)
}

/// `admin.job.disable`: what `admin.jobs` says of it.
fn disable(request: &Request) -> Result<Call, Error> {
    let JobParams { job } = request.read()?;
    switch(job, false)
}

fn switch(named: String, on: bool) -> Result<Call, Error> {
    let patch = Box::new(JobPatch { is_enabled: Some(on), ..JobPatch::default() });
    ask(UpdateJob { job: named, patch }, |view| job(&view))
}

/// `admin.job.run`: `{"job", "scheduled_ms"}` once it is begun; `admin.job.runs` says what came of it.
fn run(request: &Request) -> Result<Call, Error> {
    let JobParams { job } = request.read()?;
    ask(
        StartJob { job },
        |Started { job, scheduled }| json!({ "job": job.as_str(), "scheduled_ms": scheduled.as_millis() }),
    )
}

/// `admin.job.remove`: `{"removed"}`.
fn remove(request: &Request) -> Result<Call, Error> {
    let JobParams { job } = request.read()?;
    ask(RemoveJob { job }, |removed| json!({ "removed": removed }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Runs {
    job: Option<String>,
    limit: Option<usize>,
}

/// `admin.job.runs`: `{"runs": [..]}`, the latest first.
fn runs(request: &Request) -> Result<Call, Error> {
    let Runs { job, limit } = request.read()?;
    ask(
        ListFirings { job, limit: limit.unwrap_or(RUNS) },
        |firings| json!({ "runs": firings.iter().map(firing).collect::<Vec<_>>() }),
    )
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
        "model": job.task.run_options.model,
        "thinking": job.task.run_options.thinking.map(Thinking::name),
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
        "run": firing.run.as_ref().map(crate::ids::RunId::as_str),
        "text": firing.text,
        "input_tokens": firing.usage.input_tokens,
        "output_tokens": firing.usage.output_tokens,
    })
}
