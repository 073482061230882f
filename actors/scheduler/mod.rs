//! `Scheduler`: what is done at set times without anybody asking.
//!
//! One timer stands for the next job that is due; it looks at the wall clock at least once a minute, so
//! that a clock that jumps, or a machine that slept, is noticed. When a job is due, its firing is written
//! down, and only then its session prompted, over everybody's road ([`Line`]) and under a key that
//! follows from the firing. So after a crash every firing that is not over is asked for again: where its
//! prompt was accepted, its run is followed to its end, else it is prompted now. What came of it is
//! written down when all is done that follows from it ([`firing`]).
//!
//! Few firings go on at once; what is due meanwhile stays due. While the daemon is drained none is begun.
//!
//! In a cluster one daemon at a time begins firings ([`TakeFirings`]), and all of them change jobs ([`elsewhere`]). Which
//! firings go on is known where they do.
//!
//! The heartbeat has a small budget of its own and asks no model while its file says nothing
//! ([`heartbeat`]). Deliberately absent: when something is due (the core's `schedule`), and what a
//! job may be (the core's `job`).

mod elsewhere;
mod firing;
mod heartbeat;
mod requests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::config;
use clawmux_core::daemon::announcement::Announcement;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::JobId;
use clawmux_core::schedule::job::{Firing, HEARTBEAT, Job, JobCommand, JobNews, JobView};
use clawmux_core::schedule::{self, Due, Schedule};
use clawmux_core::time::Timestamp;
use serde_json::json;

use crate::hub::{Announce, Hub};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Deliver;
use crate::runtime::dispatch::Request;
use crate::runtime::line::{Begin, Line};
use crate::runtime::observe::{Observe, Observed};
use crate::runtime::say::Say;
use crate::store::{Health, JobWrite, ReadJobs, Store, WriteJobs, watch};
use elsewhere::Writes;
use firing::{By, FiringId, Running};

/// Firings that may go on at once, but for those that somebody asks for.
const RUNNING_MAX: usize = 4;
/// And with those.
const ASKED_MAX: usize = 16;

/// How long the wall clock is not looked at, at most.
const LOOK: Duration = Duration::from_secs(60);

/// Deliveries and requests that may wait: more than a full window of the smallest events.
const MAILBOX: usize = 2048;

/// How soon a line that fell too far behind is noticed.
const LAG_CHECK: Duration = Duration::from_secs(5);

/// How long after something could not be written or read it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What a scheduler is made with.
pub struct SchedulerSetup {
    /// The built-in jobs.
    pub config: config::Scheduler,
    /// Where the heartbeat's file is.
    pub home: PathBuf,
    /// Tells the time zone of expressions that name none, by its IANA name; asked where there is one.
    pub zone: fn() -> String,
    /// Where jobs and firings are written down.
    pub store: Addr<Store>,
    /// Who tells those that want to know.
    pub hub: Addr<Hub>,
    /// Who says to people what jobs in their conversations say.
    pub channels: Recipient<Say>,
    /// Whether they can be written down.
    pub log: Health,
}

/// The actor.
pub struct Scheduler {
    setup: SchedulerSetup,
    jobs: BTreeMap<JobId, Entry>,
    running: HashMap<FiringId, Running>,
    /// Firings that the last stop cut off, until it is known where to ask.
    open: Vec<Firing>,
    line: Option<Line<FiringId>>,
    /// The one timer.
    timer: Option<SpawnHandle>,
    /// Whether firings are begun.
    is_taking: bool,
    /// Whether it waits until the log can be written.
    is_broken: bool,
    /// Whether clients let the heart beat.
    is_beating: bool,
    /// Why the heartbeat stopped by itself.
    halted: Option<String>,
    /// What is being written down.
    writes: Writes,
    firings_total: u64,
    skipped_total: u64,
    retries_total: u64,
}

/// A job, and how it is.
struct Entry {
    job: Job,
    /// The latest firing that is over.
    last: Option<Firing>,
    /// When the firing was due that goes on.
    current: Option<Timestamp>,
    /// Since when it is known that the clock was far ahead when the job was done last.
    put_back: Option<Timestamp>,
}

impl Entry {
    fn new(job: Job, last: Option<Firing>) -> Self {
        Self { job, last, current: None, put_back: None }
    }

    /// Up to when all times of the job are dealt with.
    fn settled(&self, now: Timestamp) -> Timestamp {
        schedule::put_back(self.job.settled, self.put_back, now).unwrap_or(self.job.settled)
    }
}

/// Begins firings, or none from here on; those that go on do so to their end.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct TakeFirings(pub bool);

/// The configuration was read again: the built-in jobs are those it asks for, and a heartbeat that
/// stopped by itself beats again.
///
/// Errors: as [`Job::built_in`]; nothing has changed then.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct SetSchedule(pub config::Scheduler);

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("jobs", &self.jobs.len()).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Of what the store has and the configuration asks for.
    ///
    /// # Errors
    /// As the store's, and as [`Job::built_in`].
    pub async fn open(setup: SchedulerSetup) -> Result<Self, Error> {
        let kept = ask(&setup.store, ReadJobs).await??;
        let mut last: HashMap<JobId, Firing> =
            kept.last.into_iter().map(|firing| (firing.job.clone(), firing)).collect();
        let entry = |job: Job| {
            let last = last.remove(&job.id);
            (job.id.clone(), Entry::new(job, last))
        };
        let jobs = kept.jobs.into_iter().map(entry).collect();
        let mut scheduler = Self {
            jobs,
            running: HashMap::new(),
            open: kept.open,
            line: None,
            timer: None,
            is_taking: true,
            is_broken: false,
            is_beating: true,
            halted: None,
            writes: Writes::default(),
            firings_total: 0,
            skipped_total: 0,
            retries_total: 0,
            setup,
        };
        let config = scheduler.setup.config.clone();
        let changes = scheduler.build_in(&config)?;
        if !changes.is_empty() {
            ask(&scheduler.setup.store, WriteJobs(changes)).await??;
        }
        Ok(scheduler)
    }

    /// Makes the built-in jobs what the configuration asks for; what is to be written of that.
    fn build_in(&mut self, config: &config::Scheduler) -> Result<Vec<JobWrite>, Error> {
        let cron = config.new_session_cron.as_deref();
        let zone = cron.map(|_| (self.setup.zone)()).unwrap_or_default();
        let wanted =
            Job::built_in(config.heartbeat, config.heartbeat_result_to.as_ref(), cron, clock::wall(), &zone)?;
        let mut changes = Vec::new();
        for entry in self.jobs.values_mut().filter(|entry| entry.job.is_built_in() && entry.job.is_enabled) {
            if !wanted.iter().any(|job| job.id == entry.job.id) {
                entry.job.is_enabled = false;
                changes.push(JobWrite::Put(Box::new(entry.job.clone())));
            }
        }
        for job in wanted {
            match self.jobs.get_mut(&job.id) {
                Some(entry)
                    if entry.job.is_enabled
                        && entry.job.task.result_to == job.task.result_to
                        && is_same(&entry.job.schedule, &job.schedule) => {}
                Some(entry) => {
                    entry.job = job.clone();
                    changes.push(JobWrite::Put(Box::new(job)));
                }
                None => {
                    changes.push(JobWrite::Put(Box::new(job.clone())));
                    self.jobs.insert(job.id.clone(), Entry::new(job, None));
                }
            }
        }
        Ok(changes)
    }

    /// Whether a job is done at all at the moment.
    fn is_on(&self, job: &Job) -> bool {
        let is_heartbeat = job.id.as_str() == HEARTBEAT;
        job.is_enabled && !(is_heartbeat && (!self.is_beating || self.halted.is_some()))
    }

    /// When a job is due next.
    fn next(&self, entry: &Entry, now: Timestamp) -> Option<Timestamp> {
        if !self.is_on(&entry.job) {
            return None;
        }
        entry.job.schedule.next(entry.settled(now))
    }

    /// Begins what is due, as far as there is room, and sets the timer.
    fn look(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if !self.is_taking || self.is_broken || self.line.is_none() {
            return;
        }
        let now = clock::wall();
        for entry in self.jobs.values_mut().filter(|entry| entry.current.is_none()) {
            entry.put_back = schedule::put_back(entry.job.settled, entry.put_back, now);
        }
        let mut due: Vec<(JobId, Due)> = self
            .jobs
            .values()
            .filter(|entry| entry.current.is_none() && self.is_on(&entry.job))
            .filter_map(|entry| {
                let job = &entry.job;
                Some((job.id.clone(), schedule::due(&job.schedule, job.misfire, entry.settled(now), now)?))
            })
            .collect();
        due.sort_by_key(|(_, due)| due.scheduled);
        for (job, due) in due {
            if self.running.len() >= RUNNING_MAX {
                break;
            }
            self.fire(&job, due, By::Time, ctx);
        }
        let wait = if self.running.len() >= RUNNING_MAX {
            // The end of one of them looks again.
            LOOK
        } else {
            let idle = self.jobs.values().filter(|entry| entry.current.is_none());
            let next = idle.filter_map(|entry| self.next(entry, now)).min();
            next.map_or(LOOK, |next| next.since(now)).min(LOOK)
        };
        self.timer = Some(ctx.run_later(wait, Self::look));
    }

    /// Something could not be written: goes on once that is possible again.
    fn fall(&mut self, error: &Error, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.is_broken, true) {
            return;
        }
        tracing::warn!(%error, "jobs wait until the store can be written");
        let restored = self.setup.log.clone().restored();
        ctx.spawn(restored.into_actor(self).map(|(), _, ctx| {
            // A moment later, so that a fault that comes back at once does not keep it busy.
            ctx.run_later(AGAIN, |scheduler, ctx| {
                scheduler.is_broken = false;
                scheduler.write_ends(ctx);
                scheduler.look(ctx);
            });
        }));
    }

    /// A job as it is shown.
    fn view(&self, entry: &Entry) -> JobView {
        let begun = |scheduled: Timestamp| {
            let running = self.running.get(&(entry.job.id.clone(), scheduled));
            running.map_or(scheduled, |running| running.firing.begun)
        };
        JobView {
            job: entry.job.clone(),
            next: self.next(entry, clock::wall()),
            running: entry.current.map(begun),
            last: entry.last.clone(),
        }
    }

    /// Tells what happened to a job, those who may know.
    #[expect(clippy::disallowed_methods, reason = "two messages for each firing, one for each change")]
    fn announce(&self, job: &Job, what: clawmux_core::schedule::job::JobChange) {
        let next = self.jobs.get(&job.id).and_then(|entry| self.next(entry, clock::wall()));
        let news = JobNews { job: job.id.clone(), owner: job.owner.clone(), what, next };
        self.setup.hub.do_send(Announce(Arc::new(Announcement::Job(Box::new(news)))));
    }
}

/// Whether a schedule of a built-in job is what is `wanted` from now on. Since when it is done is no matter,
/// unless a clock that was ahead put its first time further off.
fn is_same(kept: &Schedule, wanted: &Schedule) -> bool {
    match (kept, wanted) {
        (Schedule::Every { every, anchor }, Schedule::Every { every: span, anchor: first }) => {
            every == span && anchor <= first
        }
        (kept, wanted) => kept == wanted,
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let store = self.setup.store.clone();
        watch(&store, "jobs", self, ctx);
        ctx.run_interval(LAG_CHECK, |scheduler, ctx| {
            if let Some(line) = scheduler.line.as_ref().filter(|line| line.is_lagging()) {
                tracing::warn!("the scheduler fell behind: it reads its runs again from the store");
                scheduler.line = Some(line.anew());
                scheduler.drive_all(ctx);
            }
        });
    }
}

/// From here on jobs are done; those that a stop cut off go on.
impl Handler<Begin> for Scheduler {
    type Result = ();

    fn handle(&mut self, begin: Begin, ctx: &mut Self::Context) {
        self.line = Some(Line::new("scheduler", begin));
        let open = std::mem::take(&mut self.open);
        if !self.is_taking {
            // Another daemon goes on with them.
            return;
        }
        if !open.is_empty() {
            tracing::info!(firings = open.len(), "resuming the jobs that the last stop interrupted");
        }
        self.go_on_with(open, ctx);
        self.look(ctx);
    }
}

impl Handler<Request<JobCommand>> for Scheduler {
    type Result = ();

    fn handle(&mut self, request: Request<JobCommand>, ctx: &mut Self::Context) {
        let Request { mut command, principal, asker } = request;
        if let Err(error) = command.settle(&principal) {
            return asker.reply(Err(error));
        }
        self.direct(command, &principal, asker, ctx);
    }
}

impl Handler<TakeFirings> for Scheduler {
    type Result = ();

    fn handle(&mut self, TakeFirings(take): TakeFirings, ctx: &mut Self::Context) {
        let was_taking = std::mem::replace(&mut self.is_taking, take);
        if take && !was_taking && self.line.is_some() {
            // In a cluster another daemon may have begun some and be gone.
            return self.read_open(ctx);
        }
        self.look(ctx);
    }
}

impl Handler<SetSchedule> for Scheduler {
    type Result = ResponseActFuture<Self, Result<(), Error>>;

    fn handle(&mut self, SetSchedule(config): SetSchedule, _: &mut Self::Context) -> Self::Result {
        let changes = self.build_in(&config);
        if changes.is_ok() {
            self.setup.config = config;
            self.halted = None;
            self.is_beating = true;
        }
        let (store, writing) = (self.setup.store.clone(), self.writes.begin());
        let written = async move {
            let _writing = writing;
            match changes? {
                changes if changes.is_empty() => Ok(()),
                changes => ask(&store, WriteJobs(changes)).await.flatten(),
            }
        };
        Box::pin(written.into_actor(self).map(|written, scheduler, ctx| {
            scheduler.look(ctx);
            written
        }))
    }
}

impl Handler<Deliver> for Scheduler {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => self.replied(ticket, reply, ctx),
            Deliver::Event { ticket, event, .. } => self.heard(ticket, &event, ctx),
            Deliver::Announced | Deliver::Progress(..) | Deliver::Invoke(_) => {}
        }
    }
}

impl Handler<Observe> for Scheduler {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let now = clock::wall();
        let next = self.jobs.values().filter_map(|entry| self.next(entry, now)).min();
        Observed::leaf(
            "scheduler",
            json!({
                "jobs": self.jobs.len(),
                "jobs_enabled": self.jobs.values().filter(|entry| entry.job.is_enabled).count(),
                "running": self.running.len(),
                "running_max": RUNNING_MAX,
                "following": self.line.as_ref().map_or(0, Line::len),
                "next_in_ms": next.map(|next| next.millis_since(now)),
                "firings_total": self.firings_total,
                "skipped_total": self.skipped_total,
                "retries_total": self.retries_total,
                "heartbeat_halted": self.halted,
                "draining": !self.is_taking,
                "waiting_for_log": self.is_broken,
            }),
        )
    }
}

/// That there is no such job, or none that may be seen.
fn no_such(job: &str) -> Error {
    ErrorCode::NotFound.error(format!("no such job: {}", &job[..job.floor_char_boundary(64)]))
}
