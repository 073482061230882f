//! What is done at set times without anybody asking: jobs, each of their firings, what can be asked
//! about both and what is answered. When one is due is [`schedule`](crate::schedule)'s.
//!
//! A job prompts a session in the name of its owner. Each firing is known by its job and the time it was
//! due ([`Firing`]): that pair is written down before anything is done and is there once, and the
//! prompt's idempotency key follows from it. So a firing is done once, however often it is begun.
//!
//! Two jobs are built in and follow from the configuration: [`HEARTBEAT`] and [`NEW_SESSION`].
//!
//! Deliberately absent: where all this is kept, and who does it.

mod command;
mod heartbeat;
mod write;

use std::time::Duration;

pub use command::{
    AddJobOnce, GetJob, GetJobStatus, JobCommand, JobReply, LastHeartbeat, ListFirings, ListJobs, RemoveJob,
    RunJob, SetHeartbeat, StartJob, Started, UpdateJob, WakeSession,
};
pub use heartbeat::{
    ASIDE_CHARS_MAX as HEARTBEAT_ASIDE_CHARS_MAX, FILE_BYTES_MAX as HEARTBEAT_BYTES_MAX, has_tasks, is_well,
    prompt as heartbeat_prompt,
};
pub use write::JobWrite;

use crate::error::{Error, ErrorCode};
use crate::ids::{AgentId, JobId, Owner, RunId, SessionKey};
use crate::principal::Principal;
use crate::prompt::run_options::RunOptions;
use crate::provider::usage::Usage;
use crate::schedule::{Misfire, Plan, Schedule};
use crate::scope::Scope;
use crate::time::Timestamp;

/// The built-in job that looks after what the agent keeps in its heartbeat file.
pub const HEARTBEAT: &str = "heartbeat";
/// The built-in job that has a conversation summed up and begins a new one.
pub const NEW_SESSION: &str = "new-session";

/// The session that the built-in jobs are about.
pub const BUILT_IN_SESSION: &str = "main:xeno:default:main";

/// What the model is asked before its conversation ends.
pub const NEW_SESSION_PROMPT: &str = "A new session is about to begin: of all that was said in this one, your answer to \
    this alone will be in front of you in it. If one of your tools keeps notes, keep in them now what is worth \
    remembering. Then sum up in a few sentences what you will have to know: about the user, what was done, what was \
    decided and what is still open.";

/// The channel of the sessions that jobs have for themselves.
pub const CHANNEL: &str = "cron";

/// The most jobs of one owner.
pub const JOBS_MAX: usize = 100;
/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// The longest prompt, in bytes.
pub const PROMPT_BYTES_MAX: usize = 64 * 1024;
/// The longest description or note, in bytes.
pub const NOTE_BYTES_MAX: usize = 8 * 1024;
/// Firings remembered of each job.
pub const FIRINGS_MAX: usize = 100;
/// So much of an answer is kept with its firing, in bytes; all of it is in its session.
pub const TEXT_BYTES_MAX: usize = 4 * 1024;

/// Something that is done at set times.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The job's id.
    pub id: JobId,
    /// The name for people.
    pub name: String,
    /// The description for people.
    pub description: Option<String>,
    /// Whose it is, and in whose name it prompts.
    pub owner: Owner,
    /// Whether it is done at all.
    pub is_enabled: bool,
    /// The times at which it runs.
    pub schedule: Schedule,
    /// The prompt it sends.
    pub task: Task,
    /// What becomes of times that passed without it.
    pub misfire: Misfire,
    /// Whether it is gone once it was done well, where it is due once.
    pub is_deleted_after: bool,
    /// What the protocol it was made in keeps with it; means nothing here.
    pub note: Option<String>,
    /// When the job was created.
    pub created: Timestamp,
    /// When it was last changed by somebody.
    pub updated: Timestamp,
    /// All its times up to this are dealt with.
    pub settled: Timestamp,
}

/// The prompt that a job sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The session it prompts.
    pub session: SessionKey,
    /// The text of the prompt.
    pub prompt: String,
    /// How it is to be answered.
    pub run_options: RunOptions,
    /// The session that the answer is put into besides.
    pub result_to: Option<SessionKey>,
}

/// What a job is to do, as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The session to prompt.
    pub place: Place,
    /// The text of the prompt.
    pub prompt: String,
    /// How it is to be answered.
    pub run_options: RunOptions,
    /// The session that the answer is put into besides.
    pub result_to: Option<SessionKey>,
}

/// Where a job prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this session.
    Session(SessionKey),
    /// In one of its own, with this agent.
    Own(AgentId),
}

/// A job that is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// The name for people.
    pub name: String,
    /// The description for people.
    pub description: Option<String>,
    /// Whether it is done at all.
    pub is_enabled: bool,
    /// The times at which it runs.
    pub plan: Plan,
    /// The prompt it sends.
    pub order: Order,
    /// What becomes of times that passed without it.
    pub misfire: Misfire,
    /// Whether it is gone once it was done well.
    pub is_deleted_after: bool,
    /// What the protocol it is made in keeps with it.
    pub note: Option<String>,
}

/// What is to change of a job; the rest stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPatch {
    /// See [`NewJob`].
    pub name: Option<String>,
    /// See [`NewJob`].
    pub description: Option<Option<String>>,
    /// See [`NewJob`].
    pub is_enabled: Option<bool>,
    /// See [`NewJob`].
    pub plan: Option<Plan>,
    /// See [`NewJob`].
    pub order: Option<Order>,
    /// See [`NewJob`].
    pub misfire: Option<Misfire>,
    /// See [`NewJob`].
    pub is_deleted_after: Option<bool>,
    /// See [`NewJob`].
    pub note: Option<Option<String>>,
}

/// One time at which a job was done, or was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Firing {
    /// The job that ran.
    pub job: JobId,
    /// When it was due; of one that somebody asked for, when that was. No two of a job have the same.
    pub scheduled: Timestamp,
    /// Whether somebody asked for it.
    pub is_manual: bool,
    /// When the run began.
    pub begun: Timestamp,
    /// When it was over; none while it goes on.
    pub ended: Option<Timestamp>,
    /// The state of the run.
    pub state: FiringState,
    /// How many times before it were missed.
    pub missed: u64,
    /// The run of its prompt.
    pub run: Option<RunId>,
    /// What the model said, as far as it is kept.
    pub text: Option<String>,
    /// The tokens it used.
    pub usage: Usage,
}

/// What became of a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FiringState {
    /// The run is under way.
    Running,
    /// The run completed.
    Done,
    /// The run failed with this error.
    Failed(Error),
    /// There was nothing to do, or it came too late; this says which.
    Skipped(String),
}

impl FiringState {
    /// Its name in the store and in lists.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "ok",
            Self::Failed(_) => "error",
            Self::Skipped(_) => "skipped",
        }
    }

    /// Why it is so, where it is not as it should be.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Running | Self::Done => None,
            Self::Failed(error) => Some(&error.message),
            Self::Skipped(why) => Some(why),
        }
    }
}

impl Firing {
    /// Under which its prompt is accepted once.
    pub fn key(&self) -> String {
        format!("{KEY}{}:{}", self.job, self.scheduled.as_millis())
    }

    /// The id under which its answer is put into another session once.
    pub fn result_id(&self) -> RunId {
        RunId::new(crate::ids::uuid_of(&format!("firing|{}", self.key())))
    }

    /// How long it took; none while it goes on.
    pub fn took(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.since(self.begun))
    }

    /// Keeps so much of an answer as is kept.
    pub fn keep(&mut self, text: &str) {
        self.text = Some(text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned());
    }
}

impl Job {
    /// A job of `owner` that is made `now`.
    ///
    /// # Errors
    /// `InvalidRequest`, naming what can't be: an empty name or prompt, or one that is too long, a
    /// schedule that can't be, a time that passed.
    pub fn new(new: NewJob, id: JobId, owner: Owner, now: Timestamp, host_zone: &str) -> Result<Self, Error> {
        let schedule = schedule_of(&new.plan, now, host_zone)?;
        let job = Self {
            task: new.order.task(&id, &owner)?,
            settled: begin(&schedule, now),
            id,
            name: new.name,
            description: new.description,
            owner,
            is_enabled: new.is_enabled,
            schedule,
            misfire: new.misfire,
            is_deleted_after: new.is_deleted_after,
            note: new.note,
            created: now,
            updated: now,
        };
        job.checked()
    }

    /// It with these changes, made `now`. Another schedule, or being enabled anew, counts from now on:
    /// what passed meanwhile was not missed.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn patched(&self, patch: JobPatch, now: Timestamp, host_zone: &str) -> Result<Self, Error> {
        let mut job = self.clone();
        if let Some(plan) = &patch.plan {
            job.schedule = schedule_of(plan, now, host_zone)?;
            job.settled = begin(&job.schedule, now);
        }
        if let Some(order) = patch.order {
            job.task = order.task(&job.id, &job.owner)?;
        }
        let is_enabled = patch.is_enabled.unwrap_or(job.is_enabled);
        if is_enabled && !self.is_enabled && patch.plan.is_none() {
            job.settled = begin(&schedule_of(&job.schedule.plan(), now, host_zone)?, now);
        }
        job.is_enabled = is_enabled;
        job.name = patch.name.unwrap_or(job.name);
        job.description = patch.description.unwrap_or(job.description);
        job.misfire = patch.misfire.unwrap_or(job.misfire);
        job.is_deleted_after = patch.is_deleted_after.unwrap_or(job.is_deleted_after);
        job.note = patch.note.unwrap_or(job.note);
        job.updated = now;
        job.checked()
    }

    /// The built-in jobs that a configuration asks for, at `now`: how often the heart beats, where what it has to say
    /// goes besides, and when a new session is begun.
    ///
    /// # Errors
    /// As [`Schedule::new`].
    pub fn built_in(
        heartbeat: Option<Duration>,
        heartbeat_result_to: Option<&SessionKey>,
        new_session_cron: Option<&str>,
        now: Timestamp,
        host_zone: &str,
    ) -> Result<Vec<Self>, Error> {
        let session = SessionKey::parse(BUILT_IN_SESSION)?;
        let make = |id: &str, plan: Plan, prompt: &str, misfire| {
            let order = Order {
                place: Place::Session(session.clone()),
                prompt: prompt.into(),
                run_options: RunOptions::default(),
                result_to: heartbeat_result_to.filter(|_| id == HEARTBEAT).cloned(),
            };
            let new = NewJob {
                name: id.into(),
                description: None,
                is_enabled: true,
                plan,
                order,
                misfire,
                is_deleted_after: false,
                note: None,
            };
            Self::new(new, JobId::new(id), Owner::Admins, now, host_zone)
        };
        let mut jobs = Vec::new();
        if let Some(every) = heartbeat {
            let plan = Plan::Every { every, anchor: None };
            jobs.push(make(HEARTBEAT, plan, "what HEARTBEAT.md says", Misfire::Skip)?);
        }
        if let Some(expression) = new_session_cron {
            let plan = Plan::Cron { expression: expression.to_owned(), zone: None };
            jobs.push(make(NEW_SESSION, plan, NEW_SESSION_PROMPT, Misfire::Once)?);
        }
        Ok(jobs)
    }

    /// Whether it follows from the configuration.
    pub fn is_built_in(&self) -> bool {
        is_built_in(&self.id)
    }

    /// Whether the session it prompts is its own.
    pub fn has_own_session(&self) -> bool {
        self.task.session.channel() == CHANNEL && self.task.session.account() == self.id.as_str()
    }

    /// Whether somebody may see it.
    pub fn is_seen_by(&self, who: &Principal) -> bool {
        who.sees(&self.owner) && (!self.is_built_in() || who.scopes.allows(Scope::Admin))
    }

    fn checked(self) -> Result<Self, Error> {
        let refuse = |why: String| Err(ErrorCode::InvalidRequest.error(format!("job: {why}")));
        if self.task.prompt.trim().is_empty() {
            return refuse("it needs a prompt".into());
        }
        if self.name.trim().is_empty() {
            return refuse("it needs a name".into());
        }
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        for (what, bytes, most) in [
            ("name", self.name.len(), NAME_BYTES_MAX),
            ("prompt", self.task.prompt.len(), PROMPT_BYTES_MAX),
            ("description", length(&self.description), NOTE_BYTES_MAX),
            ("note", length(&self.note), NOTE_BYTES_MAX),
        ] {
            if bytes > most {
                return refuse(format!("its {what} has {bytes} bytes, more than {most}"));
            }
        }
        if self.task.result_to.as_ref() == Some(&self.task.session) {
            return refuse("its result is in its session already: name another one for it".into());
        }
        Ok(self)
    }
}

impl Order {
    /// What it is for a job of this owner, who prompts in its own space alone, unless it is the operators'.
    fn task(self, job: &JobId, owner: &Owner) -> Result<Task, Error> {
        let own = |session: SessionKey| match owner {
            Owner::Admins => session,
            Owner::Credential(_) => session.in_space(owner),
        };
        let session = match self.place {
            Place::Session(session) => session,
            Place::Own(agent) => {
                SessionKey::new(agent.as_str(), CHANNEL, job.as_str(), SessionKey::DEFAULT_PEER)?
            }
        };
        let result_to = self.result_to.map(own);
        Ok(Task { session: own(session), prompt: self.prompt, run_options: self.run_options, result_to })
    }
}

/// With what the idempotency keys of prompts of jobs begin.
const KEY: &str = "job:";

/// Whether a prompt with this idempotency key is one of a job.
pub fn is_of_job(idempotency_key: &str) -> bool {
    idempotency_key.starts_with(KEY)
}

/// Whether a job of this id follows from the configuration.
pub fn is_built_in(job: &JobId) -> bool {
    [HEARTBEAT, NEW_SESSION].contains(&job.as_str())
}

/// A schedule that has something left to do.
fn schedule_of(plan: &Plan, now: Timestamp, host_zone: &str) -> Result<Schedule, Error> {
    if let Plan::At(at) = plan
        && now.since(*at) > crate::schedule::LATE
    {
        let at = at.to_rfc3339();
        return Err(ErrorCode::InvalidRequest.error(format!("job: the time {at} has passed")));
    }
    Schedule::new(plan, now, host_zone)
}

/// From when on the times of a schedule that is made `now` are looked at.
fn begin(schedule: &Schedule, now: Timestamp) -> Timestamp {
    match schedule {
        // Also one that is a moment in the past.
        Schedule::At(at) => now.min(Timestamp::from_millis(at.as_millis().saturating_sub(1))),
        Schedule::Every { .. } | Schedule::Cron(_) => now,
    }
}

/// A job as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// The job itself.
    pub job: Job,
    /// When it is due next; none where it is not any more.
    pub next: Option<Timestamp>,
    /// When the firing that goes on was begun.
    pub running: Option<Timestamp>,
    /// Its latest firing that is over.
    pub last: Option<Firing>,
}

/// The state of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Whether anything is done at set times: not while the daemon is drained.
    pub is_enabled: bool,
    /// The jobs that the caller may see.
    pub jobs: usize,
    /// When the next of them is due.
    pub next: Option<Timestamp>,
    /// How often the heart beats; none where it does not.
    pub heartbeat: Option<Duration>,
    /// Why it stopped by itself, where it did.
    pub heartbeat_halted: Option<String>,
}

/// What became of a job that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Whether it was done as it should be.
    pub is_ok: bool,
    /// A message for people.
    pub message: String,
    /// What the model said, if it was asked.
    pub result: Option<String>,
    /// How long the run took.
    pub took: Duration,
}

impl Ran {
    /// What is told of a built-in job that is not configured; none of any other job.
    pub fn unavailable(job: &str) -> Option<Self> {
        let task = built_in_name(job)?;
        let key = match job {
            HEARTBEAT => "scheduler.heartbeat_minutes (such as 30)",
            _ => "scheduler.new_session_cron (such as \"0 0 * * 1\")",
        };
        let message = format!("{task} task is unavailable or disabled. Set {key} to turn it on.");
        Some(Self { is_ok: false, message, result: None, took: Duration::ZERO })
    }

    /// What is told of a firing that is over; `text` is all that the model said.
    pub fn of(firing: &Firing, text: Option<String>) -> Self {
        let task = built_in_name(firing.job.as_str());
        let message = match (&firing.state, task) {
            (FiringState::Done, Some(task @ "Heartbeat")) => format!("{task} completed."),
            (FiringState::Done, Some(task)) => format!("{task} task completed."),
            (FiringState::Done, None) => "Job completed.".into(),
            (FiringState::Skipped(why), task) => {
                format!("{} skipped: {why}.", task.unwrap_or("Job"))
            }
            (FiringState::Failed(error), task) => format!("{} failed: {error}", task.unwrap_or("Job")),
            (FiringState::Running, task) => format!("{} goes on.", task.unwrap_or("Job")),
        };
        Self {
            is_ok: matches!(firing.state, FiringState::Done | FiringState::Skipped(_)),
            message,
            result: text,
            took: firing.took().unwrap_or_default(),
        }
    }
}

/// What a built-in job is called to people.
fn built_in_name(job: &str) -> Option<&'static str> {
    match job {
        HEARTBEAT => Some("Heartbeat"),
        NEW_SESSION => Some("New session"),
        _ => None,
    }
}

/// Something happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobNews {
    /// The job's id.
    pub job: JobId,
    /// The owner of the job.
    pub owner: Owner,
    /// The change.
    pub what: JobChange,
    /// When it is due next.
    pub next: Option<Timestamp>,
}

/// What happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum JobChange {
    /// The job was created.
    Added,
    /// It was changed.
    Updated,
    /// The job was deleted.
    Removed,
    /// A firing of it was begun.
    Started(Timestamp),
    /// A firing of it is over.
    Finished(Box<Firing>),
}

#[cfg(test)]
mod tests;
