//! Jobs that are done at set times: `cron.*`, `wake`, `set-heartbeats`, `last-heartbeat`, and the events
//! `cron` and `heartbeat`.
//!
//! | what the client says | what is done |
//! |---|---|
//! | `sessionTarget: main` | the agent's main session is prompted with the text of the event |
//! | `sessionTarget: isolated` | a session of the job's own is prompted, and the answer put into the main session (protocol 4: unless `delivery.mode` is `none`) |
//! | `wakeMode` | kept and shown: a job prompts when it is due, and waits for no heartbeat |
//! | `wake`, mode `now` | the main session is prompted at once; `next-heartbeat`: when the heart beats next |
//!
//! What a client wants to read back and that has no meaning here (`wakeMode`, where a result is
//! delivered to) is kept as the job's note. Deliberately absent: jobs that run commands or scripts, wait
//! for another program, or call a webhook; each is refused by name.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::wire::Protocol;
use super::{Answered, Call, OpenClaw, Request, keys};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::hex::hex;
use crate::ids::{AgentId, Owner, SessionKey};
use crate::prompt::run_options::RunOptions;
use crate::prompt::thinking::Thinking;
use crate::request::ask::Ask;
use crate::schedule::job::{
    self, Firing, FiringState, GetJob, GetJobStatus, Job, JobChange, JobNews, JobPatch, JobView,
    LastHeartbeat, ListFirings, ListJobs, NewJob, Order, Place, RemoveJob, RunJob, SetHeartbeat, StartJob,
    Started, UpdateJob, WakeSession,
};
use crate::schedule::{Misfire, Plan, Schedule};
use crate::time::Timestamp;

/// How many firings are told to who does not say, and at most.
const RUNS: (usize, usize) = (50, 200);
/// How many jobs are told at most at once.
const JOBS_MAX: usize = 200;
/// How much of an answer is told in short.
const PREVIEW_CHARS: usize = 200;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePlan {
    kind: Option<String>,
    at: Option<String>,
    at_ms: Option<u64>,
    every_ms: Option<u64>,
    anchor_ms: Option<u64>,
    expr: Option<String>,
    tz: Option<String>,
}

/// Of `cron.add`, and of the patch of `cron.update`, where everything may be left out.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireJob {
    name: Option<String>,
    description: Option<String>,
    enabled: Option<bool>,
    delete_after_run: Option<bool>,
    agent_id: Option<String>,
    session_key: Option<String>,
    schedule: Option<WirePlan>,
    session_target: Option<String>,
    wake_mode: Option<String>,
    payload: Option<Map<String, Value>>,
    isolation: Option<Value>,
    delivery: Option<Value>,
    trigger: Option<Value>,
    pacing: Option<Value>,
    declaration_key: Option<String>,
}

/// What is kept of a job for clients to read back.
#[derive(Clone, Default)]
struct Note(Map<String, Value>);

impl Note {
    fn of(job: &Job) -> Self {
        let read = |note: &String| serde_json::from_str::<Map<String, Value>>(note).ok();
        Self(job.note.as_ref().and_then(read).unwrap_or_default())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    fn set(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.0.insert(name.into(), value.into());
        }
    }

    fn write(self) -> Option<String> {
        (!self.0.is_empty()).then(|| Value::Object(self.0).to_string())
    }
}

/// The text of a payload stands under this name.
fn text_of(kind: &str) -> &'static str {
    if kind == "systemEvent" { "text" } else { "message" }
}

impl WirePlan {
    fn read(&self, request: &Request<'_>) -> Result<Plan, Error> {
        let wrong = |why: &str| request.invalid(&format!("schedule: {why}"));
        let guessed = match self {
            Self { at: Some(_), .. } | Self { at_ms: Some(_), .. } => "at",
            Self { every_ms: Some(_), .. } => "every",
            _ => "cron",
        };
        match self.kind.as_deref().unwrap_or(guessed) {
            "at" => {
                let millis = match (self.at_ms, &self.at) {
                    (Some(millis), _) => millis,
                    (None, Some(at)) => {
                        let at: jiff::Timestamp =
                            at.parse().map_err(|_| wrong("at is no time such as 2026-01-31T12:00:00Z"))?;
                        u64::try_from(at.as_millisecond()).map_err(|_| wrong("at is before 1970"))?
                    }
                    (None, None) => return Err(wrong("at needs the time")),
                };
                Ok(Plan::At(Timestamp::from_millis(millis)))
            }
            "every" => {
                let every = self.every_ms.ok_or_else(|| wrong("every needs everyMs"))?;
                let anchor = self.anchor_ms.map(Timestamp::from_millis);
                Ok(Plan::Every { every: Duration::from_millis(every), anchor })
            }
            "cron" => {
                let expression = self.expr.clone().ok_or_else(|| wrong("cron needs expr"))?;
                Ok(Plan::Cron { expression, zone: self.tz.clone().filter(|zone| !zone.trim().is_empty()) })
            }
            other => Err(wrong(&format!("kind {:?} is not available: it is at, every or cron", clip(other)))),
        }
    }
}

/// Where and what, with the note that goes with it.
struct Errand {
    order: Order,
    note: Note,
}

impl WireJob {
    /// What nothing is done with is refused, rather than done otherwise than meant.
    fn refuse_unavailable(&self, request: &Request<'_>) -> Result<(), Error> {
        let is_there = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let webhook = self.delivery.as_ref().is_some_and(|delivery| delivery["mode"] == "webhook");
        let named = [
            (is_there(&self.trigger), "trigger"),
            (is_there(&self.pacing), "pacing"),
            (self.declaration_key.is_some(), "declarationKey"),
            (webhook, "delivery by webhook"),
        ];
        match named.into_iter().find(|(is_there, _)| *is_there) {
            Some((_, name)) => Err(request.invalid(&format!("{name} is not available"))),
            None => Ok(()),
        }
    }

    /// The session that it names, if it names one.
    fn key(&self) -> Option<&str> {
        let named = self.session_target.as_deref().and_then(|target| target.strip_prefix("session:"));
        named.or(self.session_key.as_deref())
    }

    /// What it is to do, given the session that it names; of a patch, on top of what `old` does.
    fn errand(
        &self,
        old: Option<&Job>,
        named: Option<SessionKey>,
        dialect: &OpenClaw,
        method: &str,
    ) -> Result<Errand, Error> {
        let invalid = |why: &str| crate::dialect::json::invalid(method, why);
        let mut note = old.map(Note::of).unwrap_or_default();
        let shown = old.map(|job| shown_order(job, &note, (dialect.protocol, &dialect.owner)));
        note.set("agentId", self.agent_id.clone());
        note.set("sessionKey", self.session_key.clone());
        note.set("wakeMode", self.wake_mode.clone());
        note.set("isolation", self.isolation.clone());
        note.set("delivery", self.delivery.clone());

        let mut payload = shown.as_ref().map(|(_, payload)| payload.clone()).unwrap_or_default();
        if let Some(new) = &self.payload {
            if new.get("kind") != payload.get("kind") {
                payload.clear();
            }
            payload.extend(new.clone());
        }
        let kind = payload.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !["systemEvent", "agentTurn"].contains(&kind.as_str()) {
            let why =
                format!("payload kind {:?} is not available: it is systemEvent or agentTurn", clip(&kind));
            return Err(invalid(&why));
        }
        let text = payload.remove(text_of(&kind));
        let prompt = text.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let target = self.session_target.clone().or_else(|| shown.map(|(target, _)| target));
        let target = target.unwrap_or_else(|| if kind == "systemEvent" { "main" } else { "isolated" }.into());
        if target == "main" && kind != "systemEvent" {
            return Err(invalid("main cron jobs require payload.kind=\"systemEvent\""));
        }
        if target == "isolated" && kind != "agentTurn" {
            return Err(invalid("isolated cron jobs require payload.kind=\"agentTurn\""));
        }

        let agent = note.text("agentId").unwrap_or(dialect.default_agent()).to_owned();
        let is_known = ["isolated", "main", "current"].contains(&target.as_str());
        if !is_known && !target.starts_with("session:") {
            return Err(invalid(&format!("sessionTarget {:?} is not available", clip(&target))));
        }
        // A patch that says nothing of the session leaves it.
        let stays = self.session_target.is_none() && self.agent_id.is_none();
        let place = match (target.as_str(), named, old) {
            ("isolated", ..) => Place::Own(AgentId::from(agent.as_str())),
            (_, Some(session), _) => Place::Session(session),
            (_, None, Some(old)) if stays => Place::Session(old.task.session.clone()),
            (_, None, _) => Place::Session(main_session(&agent)?),
        };
        let is_told = note.0.get("delivery").is_none_or(|delivery| delivery["mode"] != "none");
        let result_to = match &place {
            Place::Own(_) if is_told => Some(main_session(&agent)?),
            _ => None,
        };
        let word = |name: &str| payload.get(name).and_then(Value::as_str);
        let thinking = match word("thinking") {
            None | Some("") => None,
            Some(name) => Some(
                Thinking::from_name(name)
                    .ok_or_else(|| invalid(&format!("unknown thinking level {:?}", clip(name))))?,
            ),
        };
        let model = word("model").filter(|model| !model.is_empty()).map(str::to_owned);
        note.set("sessionTarget", Some(target));
        note.set("payload", Some(payload));
        let run_options = RunOptions { thinking, model, ..RunOptions::default() };
        Ok(Errand { order: Order { place, prompt, run_options, result_to }, note })
    }
}

/// The session that a job names, if it names one; none while that is not known yet: it is asked for,
/// and the request comes again.
fn named_session(
    wire: &WireJob,
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Option<Option<SessionKey>>, Error> {
    match wire.key() {
        None => Ok(Some(None)),
        key => Ok(dialect.session(request, key, turn)?.map(Some)),
    }
}

/// The main session of an agent, in the space of whoever says it.
fn main_session(agent: &str) -> Result<SessionKey, Error> {
    match keys::read(keys::MAIN, agent, &Owner::Admins)? {
        keys::KeyMatch::One(session) | keys::KeyMatch::Either(session, _) => Ok(session),
    }
}

/// A job's `sessionTarget` and `payload`.
fn shown_order(job: &Job, note: &Note, (protocol, who): (Protocol, &Owner)) -> (String, Map<String, Value>) {
    let is_main =
        main_session(&job.task.session.agent()).is_ok_and(|main| main.local() == job.task.session.local());
    let target = match note.text("sessionTarget") {
        Some(target) => target.to_owned(),
        None if is_main => "main".into(),
        None if job.has_own_session() || protocol == Protocol::Three => "isolated".into(),
        None => format!("session:{}", keys::write(&job.task.session, who)),
    };
    let mut payload = note.0.get("payload").and_then(Value::as_object).cloned().unwrap_or_default();
    if !payload.contains_key("kind") {
        payload.insert("kind".into(), if is_main { "systemEvent" } else { "agentTurn" }.into());
        if let Some(model) = &job.task.run_options.model {
            payload.insert("model".into(), model.as_str().into());
        }
        if let Some(thinking) = job.task.run_options.thinking {
            payload.insert("thinking".into(), thinking.name().into());
        }
    }
    let text = text_of(payload["kind"].as_str().unwrap_or_default());
    payload.insert(text.into(), job.task.prompt.as_str().into());
    (target, payload)
}

fn shown_plan(schedule: &Schedule, protocol: Protocol) -> Value {
    match schedule {
        Schedule::At(at) if protocol == Protocol::Three => json!({ "kind": "at", "atMs": at.as_millis() }),
        Schedule::At(at) => json!({ "kind": "at", "at": at.to_rfc3339() }),
        Schedule::Every { every, anchor } => json!({
            "kind": "every",
            "everyMs": u64::try_from(every.as_millis()).unwrap_or(u64::MAX),
            "anchorMs": anchor.as_millis(),
        }),
        Schedule::Cron(cron) => json!({ "kind": "cron", "expr": cron.expression(), "tz": cron.zone() }),
    }
}

/// A job in the protocol's words.
fn shown(view: &JobView, (protocol, who): (Protocol, &Owner)) -> Value {
    let job = &view.job;
    let note = Note::of(job);
    let (target, payload) = shown_order(job, &note, (protocol, who));
    let mut value = json!({
        "id": job.id.as_str(),
        "name": job.name,
        "enabled": job.is_enabled,
        "deleteAfterRun": job.is_deleted_after,
        "createdAtMs": job.created.as_millis(),
        "updatedAtMs": job.updated.as_millis(),
        "schedule": shown_plan(&job.schedule, protocol),
        "sessionTarget": target,
        "wakeMode": note.text("wakeMode").unwrap_or("next-heartbeat"),
        "payload": payload,
    });
    // Each protocol knows one of them.
    let kept = if protocol == Protocol::Three { ["agentId", "isolation"] } else { ["agentId", "delivery"] };
    for name in kept {
        if let Some(kept) = note.0.get(name) {
            value[name] = kept.clone();
        }
    }
    if let Some(description) = &job.description {
        value["description"] = description.as_str().into();
    }
    let mut state = Map::new();
    let time = |at: Option<Timestamp>| at.map(|at| Value::from(at.as_millis()));
    let last = view.last.as_ref();
    let figures = [
        ("nextRunAtMs", time(view.next)),
        ("runningAtMs", time(view.running)),
        ("lastRunAtMs", time(last.map(|last| last.begun))),
        ("lastStatus", last.map(|last| last.state.name().into())),
        ("lastError", last.and_then(|last| last.state.why()).map(Value::from)),
        ("lastDurationMs", last.and_then(Firing::took).map(|took| millis(took).into())),
    ];
    for (name, figure) in figures {
        if let Some(figure) = figure {
            state.insert(name.into(), figure);
        }
    }
    value["state"] = state.into();
    value
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Asks about a job; `then` makes the payload of the reply.
fn ask_about<C: Ask + 'static>(
    job: String,
    question: impl FnOnce(String) -> C,
    then: impl FnOnce(&OpenClaw, C::Reply) -> Value + 'static,
) -> Answered {
    Call::ask_either(question(job.clone()), move |dialect, reply, _| {
        let reply = reply.map_err(|error| in_their_words(error, &job))?;
        Ok(Call::Answer(then(dialect, reply)))
    })
}

/// That there is no such job, as clients know it.
fn in_their_words(error: Error, job: &str) -> Error {
    match error.code {
        ErrorCode::NotFound => Error { message: format!("unknown cron job id: {}", clip(job)), ..error },
        _ => error,
    }
}

fn told(dialect: &OpenClaw, view: &JobView) -> Value {
    shown(view, (dialect.protocol, &dialect.owner))
}

fn change(job: String, patch: JobPatch) -> Answered {
    let update = |job| UpdateJob { job, patch: Box::new(patch) };
    ask_about(job, update, |dialect, view| told(dialect, &view))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CronParams {
    id: Option<String>,
    job_id: Option<String>,
    name: Option<String>,
    mode: Option<String>,
}

impl CronParams {
    fn read(request: &Request<'_>) -> Result<(String, Option<String>), Error> {
        let Self { id, job_id, name, mode } = request.read()?;
        let given = |text: &String| !text.is_empty();
        let id = id.filter(given).or(job_id.filter(given)).or(name.filter(given));
        Ok((id.ok_or_else(|| request.invalid("missing id"))?, mode))
    }
}

/// `cron.status`
pub(super) fn status(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(GetJobStatus, |_, status, _| {
        json!({
            "enabled": status.is_enabled,
            "storePath": "clawmux",
            "jobs": status.jobs,
            "nextWakeAtMs": status.next.map(Timestamp::as_millis),
        })
    })
}

/// `cron.list`. The built-in jobs follow from the configuration and are in no list of jobs to edit.
pub(super) fn list(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct List {
        include_disabled: Option<bool>,
        enabled: Option<String>,
        limit: Option<usize>,
        offset: Option<usize>,
    }
    let asked: List = request.read()?;
    Call::ask(ListJobs, move |dialect, jobs, _| {
        let is_wanted = |job: &Job| match asked.enabled.as_deref() {
            Some("all") => true,
            Some("disabled") => !job.is_enabled,
            Some("enabled") => job.is_enabled,
            _ => job.is_enabled || asked.include_disabled == Some(true),
        };
        let jobs: Vec<&JobView> =
            jobs.iter().filter(|view| !view.job.is_built_in() && is_wanted(&view.job)).collect();
        let (limit, offset) = (asked.limit.unwrap_or(JOBS_MAX).clamp(1, JOBS_MAX), asked.offset.unwrap_or(0));
        let page: Vec<Value> = jobs
            .iter()
            .skip(offset)
            .take(limit)
            .map(|view| shown(view, (dialect.protocol, &dialect.owner)))
            .collect();
        let mut answer = paged("jobs", page, (limit, offset, jobs.len()), dialect.protocol);
        if dialect.protocol != Protocol::Three {
            answer["snapshotRevision"] = revision(&jobs).into();
        }
        answer
    })
}

/// Another text for each list of jobs, by which a client knows that its pages are of one list.
fn revision(jobs: &[&JobView]) -> String {
    let mut digest = Sha256::new();
    for JobView { job, .. } in jobs {
        digest.update(format!("{}\0{}\0", job.id, job.updated.as_millis()));
    }
    hex(&digest.finalize()[..8])
}

/// A part of a list; protocol 4 is told which.
fn paged(
    name: &str,
    page: Vec<Value>,
    (limit, offset, total): (usize, usize, usize),
    protocol: Protocol,
) -> Value {
    let end = offset + page.len();
    let mut value = json!({ name: page });
    if protocol != Protocol::Three {
        let has_more = end < total;
        value["total"] = total.into();
        value["offset"] = offset.into();
        value["limit"] = limit.into();
        value["hasMore"] = has_more.into();
        value["nextOffset"] = if has_more { end.into() } else { Value::Null };
    }
    value
}

/// `cron.get`
pub(super) fn get(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let (job, _) = CronParams::read(request)?;
    ask_about(job, |job| GetJob { job }, |dialect, view| told(dialect, &view))
}

/// `cron.add`
pub(super) fn add(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let wire: WireJob = request.read()?;
    let name = wire.name.clone().ok_or_else(|| request.invalid("name is missing"))?;
    let plan = wire.schedule.as_ref().ok_or_else(|| request.invalid("schedule is missing"))?.read(request)?;
    wire.refuse_unavailable(request)?;
    let Some(named) = named_session(&wire, dialect, request, turn)? else { return Ok(Call::Elsewhere) };
    let Errand { order, note } = wire.errand(None, named, dialect, request.method.name)?;
    let new = NewJob {
        name: name.trim().to_owned(),
        description: wire.description,
        is_enabled: wire.enabled.unwrap_or(true),
        plan,
        order,
        misfire: Misfire::Once,
        is_deleted_after: wire.delete_after_run.unwrap_or(false),
        note: note.write(),
    };
    Call::ask(Box::new(new), |dialect, view, _| told(dialect, &view))
}

/// `cron.update`: reads the job first, for a patch says only what changes.
pub(super) fn update(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    struct Update {
        patch: WireJob,
    }
    let (job, _) = CronParams::read(request)?;
    let Update { patch } = request.read()?;
    let plan = patch.schedule.as_ref().map(|plan| plan.read(request)).transpose()?;
    let changes_order = patch.payload.is_some()
        || patch.session_target.is_some()
        || patch.agent_id.is_some()
        || patch.session_key.is_some()
        || patch.wake_mode.is_some()
        || patch.isolation.is_some()
        || patch.delivery.is_some();
    let simple = JobPatch {
        name: patch.name.as_ref().map(|name| name.trim().to_owned()),
        description: patch.description.clone().map(Some),
        is_enabled: patch.enabled,
        plan,
        is_deleted_after: patch.delete_after_run,
        ..JobPatch::default()
    };
    patch.refuse_unavailable(request)?;
    if !changes_order {
        return change(job, simple);
    }
    let Some(named) = named_session(&patch, dialect, request, turn)? else { return Ok(Call::Elsewhere) };
    let method = request.method.name;
    Call::ask_either(GetJob { job: job.clone() }, move |dialect, reply, _| {
        let view = reply.map_err(|error| in_their_words(error, &job))?;
        let Errand { order, note } = patch.errand(Some(&view.job), named, dialect, method)?;
        let patch = JobPatch { order: Some(order), note: Some(note.write()), ..simple };
        change(job, patch)
    })
}

/// `cron.remove`
pub(super) fn remove(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let (job, _) = CronParams::read(request)?;
    Call::ask(RemoveJob { job }, |_, removed, _| json!({ "ok": true, "removed": removed }))
}

/// `cron.run`. What is due is done by itself, at once: so without `force` there is never anything left.
pub(super) fn run(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let (job, mode) = CronParams::read(request)?;
    match mode.as_deref().unwrap_or("due") {
        "due" => {
            let not_due = json!({ "ok": true, "ran": false, "reason": "not-due" });
            ask_about(job, |job| GetJob { job }, |_, _| not_due)
        }
        "force" | "if-enabled" if dialect.protocol == Protocol::Three => {
            ask_about(job, |job| RunJob { job }, |_, _| json!({ "ok": true, "ran": true }))
        }
        "force" | "if-enabled" => ask_about(
            job,
            |job| StartJob { job },
            |_, Started { job, scheduled }| json!({ "ok": true, "enqueued": true, "runId": run_id(job.as_str(), scheduled) }),
        ),
        other => Err(request.invalid(&format!("mode {:?} is not available", clip(other)))),
    }
}

/// How a firing is called in the protocol.
fn run_id(job: &str, scheduled: Timestamp) -> String {
    format!("{job}:{}", scheduled.as_millis())
}

/// `cron.runs`: protocol 3 tells the oldest first.
pub(super) fn runs(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Runs {
        id: Option<String>,
        job_id: Option<String>,
        run_id: Option<String>,
        limit: Option<usize>,
        offset: Option<usize>,
        sort_dir: Option<String>,
    }
    let asked: Runs = request.read()?;
    let job = asked.id.or(asked.job_id).filter(|id| !id.is_empty());
    let (limit, offset) = (asked.limit.unwrap_or(RUNS.0).clamp(1, RUNS.1), asked.offset.unwrap_or(0));
    let list = ListFirings { job, limit: offset.saturating_add(limit).min(RUNS.1) };
    Call::ask(list, move |dialect, firings, _| {
        let mut firings: Vec<&Firing> = firings
            .iter()
            .filter(|firing| firing.ended.is_some())
            .filter(|firing| {
                let id = run_id(firing.job.as_str(), firing.scheduled);
                asked.run_id.as_ref().is_none_or(|wanted| *wanted == id)
            })
            .collect();
        let is_ascending = match asked.sort_dir.as_deref() {
            Some(order) => order == "asc",
            None => dialect.protocol == Protocol::Three,
        };
        let total = firings.len();
        firings = firings.into_iter().skip(offset).take(limit).collect();
        if is_ascending {
            firings.reverse();
        }
        let entries = firings.into_iter().map(|firing| entry(firing, dialect.protocol)).collect();
        paged("entries", entries, (limit, offset, total), dialect.protocol)
    })
}

fn entry(firing: &Firing, protocol: Protocol) -> Value {
    let mut value = finished(firing);
    value["ts"] = firing.ended.unwrap_or(firing.begun).as_millis().into();
    value["jobId"] = firing.job.as_str().into();
    value["action"] = "finished".into();
    if protocol != Protocol::Three {
        value["runId"] = run_id(firing.job.as_str(), firing.scheduled).into();
        let completion = match firing.state.name() {
            "ok" => "succeeded",
            "error" | "skipped" => "failed",
            _ => "unknown",
        };
        value["completionStatus"] = completion.into();
    }
    value
}

/// What became of a firing.
fn finished(firing: &Firing) -> Value {
    let mut value = json!({ "status": firing.state.name(), "runAtMs": firing.begun.as_millis() });
    if let Some(took) = firing.took() {
        value["durationMs"] = millis(took).into();
    }
    if let Some(why) = firing.state.why() {
        value["error"] = why.into();
    }
    if let Some(text) = firing.text.as_deref().filter(|text| !text.is_empty()) {
        value["summary"] = text.into();
    }
    value
}

/// `wake`
pub(super) fn wake(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wake {
        mode: String,
        text: String,
        session_key: Option<String>,
        agent_id: Option<String>,
    }
    let Wake { mode, text, session_key, agent_id } = request.read()?;
    let is_now = match mode.as_str() {
        "now" => true,
        "next-heartbeat" => false,
        other => {
            let why = format!("mode {:?} is not available: it is now or next-heartbeat", clip(other));
            return Err(request.invalid(&why));
        }
    };
    let text = text.trim().to_owned();
    if text.is_empty() {
        return Ok(Call::Answer(json!({ "ok": false })));
    }
    let key = match (session_key, agent_id) {
        (Some(key), _) => key,
        (None, Some(agent)) => format!("agent:{agent}:{}", keys::MAIN),
        (None, None) => keys::MAIN.into(),
    };
    let Some(session) = dialect.session(request, Some(&key), turn)? else { return Ok(Call::Elsewhere) };
    Call::ask(WakeSession { session, text, is_now }, |_, _, _| json!({ "ok": true }))
}

/// `set-heartbeats`
pub(super) fn set_heartbeats(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    struct Set {
        enabled: Option<bool>,
    }
    let on = request.read::<Set>()?.enabled.ok_or_else(|| request.invalid("enabled (boolean) required"))?;
    Call::ask(SetHeartbeat { on }, |_, on, _| json!({ "ok": true, "enabled": on }))
}

/// `last-heartbeat`
pub(super) fn last_heartbeat(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(LastHeartbeat, |_, firing, _| firing.map_or(Value::Null, |firing| heartbeat(&firing)))
}

/// What a heartbeat came to, in the protocol's words.
fn heartbeat(firing: &Firing) -> Value {
    let text = firing.text.as_deref().unwrap_or_default();
    let (status, indicator) = match &firing.state {
        FiringState::Failed(_) => ("failed", Some("error")),
        FiringState::Skipped(_) | FiringState::Running => ("skipped", None),
        FiringState::Done if text.trim().is_empty() => ("ok-empty", Some("ok")),
        FiringState::Done if job::is_well(text) => ("ok-token", Some("ok")),
        FiringState::Done => ("sent", Some("alert")),
    };
    let mut value = json!({
        "ts": firing.ended.unwrap_or(firing.begun).as_millis(),
        "status": status,
    });
    if let Some(took) = firing.took() {
        value["durationMs"] = millis(took).into();
    }
    if let Some(why) = firing.state.why() {
        value["reason"] = why.into();
    }
    if !text.is_empty() {
        value["preview"] = text.chars().take(PREVIEW_CHARS).collect::<String>().into();
    }
    if let Some(indicator) = indicator {
        value["indicatorType"] = indicator.into();
    }
    value
}

impl OpenClaw {
    /// Tells what happened to a job; of the built-in ones, what the heart did.
    pub(super) fn tell_job(&mut self, news: &JobNews, turn: &mut Turn<'_>) {
        if job::is_built_in(&news.job) {
            if let JobChange::Finished(firing) = &news.what
                && news.job.as_str() == job::HEARTBEAT
            {
                self.emit("heartbeat", &heartbeat(firing).to_string(), turn);
            }
            return;
        }
        let (action, mut payload) = match &news.what {
            JobChange::Added => ("added", json!({})),
            JobChange::Updated => ("updated", json!({})),
            JobChange::Removed => ("removed", json!({})),
            JobChange::Started(begun) => ("started", json!({ "runAtMs": begun.as_millis() })),
            JobChange::Finished(firing) => ("finished", finished(firing)),
        };
        payload["jobId"] = news.job.as_str().into();
        payload["action"] = action.into();
        if let Some(next) = news.next {
            payload["nextRunAtMs"] = next.as_millis().into();
        }
        self.emit("cron", &payload.to_string(), turn);
    }
}
