//! What is asked about jobs.

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::JobId;
use clawmux_core::principal::Principal;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::{
    self, AddJobOnce, GetJob, GetJobStatus, HEARTBEAT, JOBS_MAX, Job, JobCommand, JobPatch, JobReply,
    JobStatus, LastHeartbeat, ListFirings, ListJobs, NewJob, Order, Place, Ran, RemoveJob, RunJob,
    SetHeartbeat, StartJob, Started, UpdateJob, WakeSession,
};
use clawmux_core::schedule::{Due, Misfire, Plan};
use clawmux_core::time::Timestamp;

use super::firing::By;
use super::{ASKED_MAX, Entry, Scheduler, no_such};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::store::{JobWrite, ReadFirings, WriteJobs};

/// Of so many times of a job it is looked how close they are.
const GAPS: usize = 64;

/// Firings that are told at most.
const RUNS_MAX: usize = 200;

/// A job that is to be there once.
enum Made {
    /// It is yet to be written down.
    New(Box<Job>),
    /// It was there before.
    Before(Box<job::JobView>),
}

impl Scheduler {
    /// Does what is asked and answers.
    pub(super) fn direct(
        &mut self,
        command: JobCommand,
        by: &Principal,
        asker: Asker,
        ctx: &mut Context<Self>,
    ) {
        match command {
            JobCommand::List(ListJobs) => {
                let mut views: Vec<_> = self.seen_by(by).map(|entry| self.view(entry)).collect();
                views.sort_by_key(|view| (view.next.is_none(), view.next, view.job.created));
                answer(asker, Ok(JobReply::Jobs(views)));
            }
            JobCommand::Get(GetJob { job }) => {
                let found = self.find(&job, by).map(|entry| JobReply::Job(Box::new(self.view(entry))));
                answer(asker, found);
            }
            JobCommand::Add(new) => match self.make(*new, by) {
                Ok(job) => self.put(job, job::JobChange::Added, asker, ctx),
                Err(error) => asker.reply(Err(error)),
            },
            JobCommand::AddOnce(add) => match self.make_once(add, by) {
                Ok(Made::New(job)) => self.put(*job, job::JobChange::Added, asker, ctx),
                Ok(Made::Before(view)) => answer(asker, Ok(JobReply::Job(view))),
                Err(error) => asker.reply(Err(error)),
            },
            JobCommand::Update(UpdateJob { job, patch }) => match self.patch(&job, *patch, by) {
                Ok(job) => self.put(job, job::JobChange::Updated, asker, ctx),
                Err(error) => asker.reply(Err(error)),
            },
            JobCommand::Remove(RemoveJob { job }) => self.remove(&job, by, asker, ctx),
            JobCommand::Run(RunJob { job }) => self.run(&job, by, (asker, true), ctx),
            JobCommand::Start(StartJob { job }) => self.run(&job, by, (asker, false), ctx),
            JobCommand::Runs(ListFirings { job, limit }) => {
                let jobs = match job {
                    Some(job) => self.find(&job, by).map(|entry| vec![entry.job.id.clone()]),
                    None => Ok(self.known_to(by).map(|entry| entry.job.id.clone()).collect()),
                };
                let (store, limit) = (self.setup.store.clone(), limit.min(RUNS_MAX));
                ctx.spawn(actix::fut::wrap_future(async move {
                    let read = async { ask(&store, ReadFirings { jobs: jobs?, limit }).await.flatten() };
                    answer(asker, read.await.map(JobReply::Runs));
                }));
            }
            JobCommand::Status(GetJobStatus) => {
                let status = self.status(by);
                answer(asker, Ok(JobReply::Status(status)));
            }
            JobCommand::Wake(WakeSession { session, text, is_now }) => {
                let now = clock::wall();
                let beat = self.jobs.get(&JobId::from(HEARTBEAT)).and_then(|entry| self.next(entry, now));
                let at = beat.filter(|_| !is_now).unwrap_or(now);
                let made = self.make(wake(session, text, at), by);
                match made {
                    Ok(job) => self.put_and(job, job::JobChange::Added, asker, ctx, move |view| {
                        JobReply::Started(Started { job: view.job.id, scheduled: at })
                    }),
                    Err(error) => asker.reply(Err(error)),
                }
            }
            JobCommand::SetHeartbeat(SetHeartbeat { on }) => {
                self.is_beating = on;
                self.look(ctx);
                answer(asker, Ok(JobReply::Heartbeat(on)));
            }
            JobCommand::LastHeartbeat(LastHeartbeat) => {
                let last = self.jobs.get(&JobId::from(HEARTBEAT)).and_then(|entry| entry.last.clone());
                answer(asker, Ok(JobReply::Beat(last.map(Box::new))));
            }
        }
    }

    /// Also the built-in ones that are off: what they did stays to be told.
    fn known_to(&self, by: &Principal) -> impl Iterator<Item = &Entry> {
        self.jobs.values().filter(|entry| entry.job.is_seen_by(by))
    }

    fn seen_by(&self, by: &Principal) -> impl Iterator<Item = &Entry> {
        self.known_to(by).filter(|entry| !entry.job.is_built_in() || entry.job.is_enabled)
    }

    /// The job with this id, else the one of this name.
    fn find(&self, job: &str, by: &Principal) -> Result<&Entry, Error> {
        let entry = self.jobs.get(&JobId::from(job)).filter(|entry| entry.job.is_seen_by(by));
        if let Some(entry) = entry {
            return Ok(entry);
        }
        let mut named = self.known_to(by).filter(|entry| entry.job.name == job);
        match (named.next(), named.count()) {
            (Some(entry), 0) => Ok(entry),
            (Some(_), others) => {
                let why = format!("{} jobs are called so: give the id of one", others + 1);
                Err(ErrorCode::Conflict.error(why))
            }
            (None, _) => Err(no_such(job)),
        }
    }

    /// The same of one that is to be changed.
    fn find_own(&self, job: &str, by: &Principal) -> Result<&Entry, Error> {
        let entry = self.find(job, by)?;
        if entry.job.is_built_in() {
            let why =
                format!("the job {job} is built in: [scheduler] in the configuration says when it is done");
            return Err(ErrorCode::Conflict.error(why));
        }
        Ok(entry)
    }

    fn make(&self, new: NewJob, by: &Principal) -> Result<Job, Error> {
        self.make_as(JobId::from_random(clock::random()), new, by)
    }

    /// A job of this id, or the one that was made of it before.
    fn make_once(&self, add: AddJobOnce, by: &Principal) -> Result<Made, Error> {
        match self.jobs.get(&add.id) {
            Some(entry) if entry.job.owner == by.owner => {
                return Ok(Made::Before(Box::new(self.view(entry))));
            }
            Some(_) => return Err(ErrorCode::Conflict.error("there is another job of this id")),
            None => {}
        }
        let job = self.make_as(add.id, *add.job, by)?;
        let gap = job.schedule.shortest_gap(job.settled, GAPS);
        if gap.is_some_and(|gap| gap < add.gap_min) {
            let least = add.gap_min.as_secs();
            let why = format!("job: it would be done more often than every {least} s");
            return Err(ErrorCode::InvalidRequest.error(why));
        }
        Ok(Made::New(Box::new(job)))
    }

    fn make_as(&self, id: JobId, new: NewJob, by: &Principal) -> Result<Job, Error> {
        let own = self.jobs.values().filter(|entry| entry.job.owner == by.owner && !entry.job.is_built_in());
        if own.count() >= JOBS_MAX {
            return Err(
                ErrorCode::Conflict.error(format!("there are {JOBS_MAX} jobs already: remove one first"))
            );
        }
        Job::new(new, id, by.owner.clone(), clock::wall(), &(self.setup.zone)())
    }

    fn patch(&self, job: &str, patch: JobPatch, by: &Principal) -> Result<Job, Error> {
        self.find_own(job, by)?.job.patched(patch, clock::wall(), &(self.setup.zone)())
    }

    /// Writes a job down and answers with it.
    fn put(&mut self, job: Job, what: job::JobChange, asker: Asker, ctx: &mut Context<Self>) {
        self.put_and(job, what, asker, ctx, |view| JobReply::Job(Box::new(view)));
    }

    fn put_and(
        &mut self,
        job: Job,
        what: job::JobChange,
        asker: Asker,
        ctx: &mut Context<Self>,
        reply: impl FnOnce(job::JobView) -> JobReply + 'static,
    ) {
        let store = self.setup.store.clone();
        let change = JobWrite::Put(Box::new(job.clone()));
        let before = self.jobs.get(&job.id).map(|entry| entry.job.clone());
        // At once, so that what is asked meanwhile builds on it; the store keeps the order.
        let is_new = before.is_none();
        if let Some(entry) = self.jobs.get_mut(&job.id) {
            entry.job = job.clone();
        }
        let writing = self.writes.begin();
        let written = async move {
            let _writing = writing;
            ask(&store, WriteJobs(vec![change])).await.flatten()
        };
        ctx.spawn(written.into_actor(self).map(move |written, scheduler, ctx| {
            if let Err(error) = written {
                if let (Some(entry), Some(before)) = (scheduler.jobs.get_mut(&job.id), before)
                    && entry.job == job
                {
                    entry.job = before;
                }
                return asker.reply(Err(error));
            }
            if is_new {
                scheduler.jobs.insert(job.id.clone(), Entry::new(job.clone(), None));
            }
            scheduler.announce(&job, what);
            match scheduler.jobs.get(&job.id) {
                Some(entry) => answer(asker, Ok(reply(scheduler.view(entry)))),
                None => asker.reply(Err(no_such(job.id.as_str()))),
            }
            scheduler.look(ctx);
        }));
    }

    fn remove(&mut self, id: &str, by: &Principal, asker: Asker, ctx: &mut Context<Self>) {
        let job = match self.find_own(id, by) {
            Ok(entry) => entry.job.clone(),
            Err(error) if error.code == ErrorCode::NotFound => {
                return answer(asker, Ok(JobReply::Removed(false)));
            }
            Err(error) => return asker.reply(Err(error)),
        };
        let store = self.setup.store.clone();
        let change = JobWrite::Remove(job.id.clone());
        let writing = self.writes.begin();
        let written = async move {
            let _writing = writing;
            ask(&store, WriteJobs(vec![change])).await.flatten()
        };
        ctx.spawn(written.into_actor(self).map(move |written, scheduler, ctx| {
            if let Err(error) = written {
                return asker.reply(Err(error));
            }
            let is_removed = scheduler.jobs.remove(&job.id).is_some();
            if is_removed {
                scheduler.announce(&job, job::JobChange::Removed);
            }
            answer(asker, Ok(JobReply::Removed(is_removed)));
            scheduler.look(ctx);
        }));
    }

    /// Does a job now. Who waits for its end waits for that of the firing that goes on, if one does.
    fn run(&mut self, id: &str, by: &Principal, (asker, waits): (Asker, bool), ctx: &mut Context<Self>) {
        let is_off = |entry: &Entry| entry.job.is_built_in() && !entry.job.is_enabled;
        let entry = match self.find(id, by) {
            Ok(entry) if is_off(entry) => Err(no_such(id)),
            entry => entry,
        };
        let entry = match (entry, Ran::unavailable(id)) {
            (Ok(entry), _) => entry,
            (Err(_), Some(unavailable)) if waits => return answer(asker, Ok(JobReply::Ran(unavailable))),
            (Err(error), _) => return asker.reply(Err(error)),
        };
        let job = entry.job.id.clone();
        if let Some(scheduled) = entry.current {
            if waits {
                return self.join(&(job, scheduled), asker);
            }
            return answer(asker, Ok(JobReply::Started(Started { job, scheduled })));
        }
        if !self.is_taking || self.line.is_none() {
            return asker
                .reply(Err(ErrorCode::Unavailable.error("the daemon is being drained: try again later")));
        }
        if self.running.len() >= ASKED_MAX {
            return asker
                .reply(Err(ErrorCode::Unavailable.error("too many jobs are done at once: try again")));
        }
        // No two firings of a job have the same time.
        let last = entry.last.as_ref().map(|last| last.scheduled.as_millis() + 1);
        let scheduled = Timestamp::from_millis(clock::wall().as_millis().max(last.unwrap_or(0)));
        let due = Due { scheduled, missed: 0, is_skipped: false };
        let by = if waits { By::Waiter(asker) } else { By::Starter(asker) };
        self.fire(&job, due, by, ctx);
    }

    fn status(&self, by: &Principal) -> JobStatus {
        let now = clock::wall();
        let heartbeat = self.jobs.get(&JobId::from(HEARTBEAT)).filter(|entry| self.is_on(&entry.job));
        JobStatus {
            is_enabled: self.is_taking,
            jobs: self.seen_by(by).filter(|entry| !entry.job.is_built_in()).count(),
            next: self.seen_by(by).filter_map(|entry| self.next(entry, now)).min(),
            heartbeat: heartbeat.and(self.setup.config.heartbeat),
            heartbeat_halted: self.halted.clone(),
        }
    }
}

/// What says something once.
fn wake(session: clawmux_core::ids::SessionKey, text: String, at: Timestamp) -> NewJob {
    let place = Place::Session(session);
    NewJob {
        name: "wake".into(),
        description: None,
        is_enabled: true,
        plan: Plan::At(at),
        order: Order { place, prompt: text, run_options: RunOptions::default(), result_to: None },
        misfire: Misfire::Once,
        is_deleted_after: true,
        note: None,
    }
}

fn answer(asker: Asker, reply: Result<JobReply, Error>) {
    asker.reply(reply.map(Reply::Job));
}
