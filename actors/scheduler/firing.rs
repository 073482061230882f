//! One firing, from its row to what came of it.
//!
//! ```text
//!   Entering ── row written ──► Prompting ── run over ──► Renewing  ─┐ (new session)
//!      │ it was there before        │                └──► Telling ───┤ (result to a session)
//!      ▼                            └── failed ──────────────────────┴──► Ending ── row written ──► over
//! ```
//!
//! Every step can be taken again after a crash: the row is there once, the prompt has a key, a conversation
//! that began is begun, and a result has an id. A session that a result is for is made where there is none.

use actix::prelude::*;
use clawmux_core::conversation::command::{CreateSession, Inject, Renew, SessionCommand, Submit};
use clawmux_core::conversation::event::{Event, Outcome, Published};
use clawmux_core::conversation::lane;
use clawmux_core::conversation::reply::SessionReply;
use clawmux_core::conversation::turn::Turn;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{JobId, RunId, SessionKey, Ticket};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::Patch;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::Due;
use clawmux_core::schedule::job::{
    self, Firing, FiringState, HEARTBEAT, Job, JobReply, NEW_SESSION, Ran, Started,
};
use clawmux_core::target::Target;
use clawmux_core::time::Timestamp;
use std::time::Duration;

use super::{AGAIN, Scheduler};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::{Asker, cost};
use crate::runtime::say::Say;
use crate::store::{FindRun, JobWrite, ReadJobs, WriteJobs};

/// Which firing: its job, and when it was due.
pub(super) type FiringId = (JobId, Timestamp);

/// How long until something that was refused for the moment is asked for again, times how often it was,
/// up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How often that is done before it has failed: some ten minutes.
const ATTEMPTS_MAX: u32 = 80;

/// A firing that goes on.
pub(super) struct Running {
    pub(super) firing: Firing,
    job: Job,
    stage: Stage,
    /// How often the present stage was asked for.
    attempt: u32,
    /// Whether the session that the result goes to was asked to be made.
    is_made: bool,
    /// What is said and how, where that is not what the job says.
    saying: Option<Saying>,
    /// The fold of its run so far.
    fold: Turn,
    /// All that the model said, once it has.
    text: Option<String>,
    /// Who waits until it is written down.
    starter: Option<Asker>,
    /// Who waits for its end.
    askers: Vec<Asker>,
}

/// Who asked for a firing, and what for.
pub(super) enum By {
    /// Nobody: it is due.
    Time,
    /// Somebody who waits until it is written down.
    Starter(Asker),
    /// Somebody who waits for its end.
    Waiter(Asker),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Entering,
    Prompting,
    Renewing,
    /// The session that the result goes to is made.
    Making,
    Telling,
    /// The people of a conversation over a channel are told.
    Saying,
    Ending,
}

/// A prompt.
pub(super) struct Saying {
    pub(super) prompt: String,
    pub(super) run_options: RunOptions,
}

/// What became of getting ready.
pub(super) enum Ready {
    /// This is to be said; none = what the job says.
    Say(Option<Saying>),
    /// Nothing is to be done, and why.
    Skip(String),
}

impl Scheduler {
    /// Begins a firing.
    pub(super) fn fire(&mut self, id: &JobId, due: Due, by: By, ctx: &mut Context<Self>) {
        let (is_manual, starter, askers) = match by {
            By::Time => (false, None, Vec::new()),
            By::Starter(asker) => (true, Some(asker), Vec::new()),
            By::Waiter(asker) => (true, None, vec![asker]),
        };
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let before = entry.job.clone();
        if !is_manual {
            entry.job.settled = due.scheduled;
            entry.job.is_enabled &= !entry.job.schedule.is_once();
        }
        entry.current = Some(due.scheduled);
        let job = entry.job.clone();
        let mut firing = Firing {
            job: id.clone(),
            scheduled: due.scheduled,
            is_manual,
            begun: clock::wall(),
            ended: None,
            state: FiringState::Running,
            missed: due.missed,
            run: None,
            text: None,
            usage: Usage::default(),
        };
        let running = Running {
            firing: firing.clone(),
            job: job.clone(),
            stage: Stage::Entering,
            attempt: 0,
            is_made: false,
            saying: None,
            fold: Turn::new(),
            text: None,
            starter,
            askers,
        };
        let key: FiringId = (id.clone(), due.scheduled);
        self.running.insert(key.clone(), running);
        self.firings_total += 1;
        let get_ready = (!due.is_skipped).then(|| self.get_ready(&job));
        let (store, writing) = (self.setup.store.clone(), self.writes.begin());
        let enter = async move {
            let _writing = writing;
            let ready = match get_ready {
                Some(ready) => ready.await?,
                None => Ready::Skip("its time passed while it could not be done".into()),
            };
            if let Ready::Skip(why) = &ready {
                firing.state = FiringState::Skipped(why.clone());
                firing.ended = Some(clock::wall());
            }
            let put = JobWrite::Put(Box::new(job));
            let enter = JobWrite::Enter(Box::new(firing.clone()));
            ask(&store, WriteJobs(vec![put, enter])).await.flatten()?;
            Ok((firing, ready))
        };
        ctx.spawn(enter.into_actor(self).map(
            move |entered: Result<_, Error>, scheduler, ctx| match entered {
                Ok((firing, ready)) => scheduler.entered(&key, firing, ready, ctx),
                Err(error) => scheduler.not_entered(&key, &before, error, ctx),
            },
        ));
    }

    fn entered(&mut self, key: &FiringId, firing: Firing, ready: Ready, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get_mut(key) else { return };
        running.firing = firing;
        if let Some(starter) = running.starter.take() {
            let started = Started { job: key.0.clone(), scheduled: key.1 };
            starter.reply(Ok(JobReply::Started(started).into()));
        }
        match ready {
            Ready::Skip(_) => {
                self.skipped_total += 1;
                self.over(key, ctx);
            }
            Ready::Say(saying) => {
                running.saying = saying;
                running.stage = Stage::Prompting;
                let (job, begun) = (running.job.clone(), running.firing.begun);
                self.announce(&job, job::JobChange::Started(begun));
                self.drive(key, ctx);
            }
        }
    }

    fn not_entered(&mut self, key: &FiringId, before: &Job, error: Error, ctx: &mut Context<Self>) {
        let Some(running) = self.running.remove(key) else { return };
        for asker in running.askers.into_iter().chain(running.starter) {
            asker.reply(Err(error.clone()));
        }
        let entry = self.jobs.get_mut(&key.0);
        if let Some(entry) = entry {
            entry.current = None;
            if error.code != ErrorCode::Conflict && entry.job.updated == before.updated {
                (entry.job.settled, entry.job.is_enabled) = (before.settled, before.is_enabled);
            }
        }
        if error.code == ErrorCode::Conflict {
            // Its row is there: it was done, or it is to be gone on with.
            self.read_open(ctx);
        } else {
            self.fall(&error, ctx);
        }
    }

    /// Goes on with the firings that the store has and that nobody does.
    pub(super) fn read_open(&mut self, ctx: &mut Context<Self>) {
        let store = self.setup.store.clone();
        let read = async move { ask(&store, ReadJobs).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|kept, scheduler, ctx| {
            match kept {
                Ok(kept) => scheduler.go_on_with(kept.open, ctx),
                Err(error) => return scheduler.fall(&error, ctx),
            }
            scheduler.look(ctx);
        }));
    }

    /// Goes on with firings that were begun before.
    pub(super) fn go_on_with(&mut self, open: Vec<Firing>, ctx: &mut Context<Self>) {
        for firing in open {
            let key = (firing.job.clone(), firing.scheduled);
            if self.running.contains_key(&key) {
                continue;
            }
            let Some(entry) = self.jobs.get_mut(&firing.job) else {
                tracing::warn!(job = %firing.job, "a job that had begun is no longer there");
                continue;
            };
            entry.current = Some(firing.scheduled);
            let (job, idempotency_key) = (entry.job.clone(), firing.key());
            let running = Running {
                firing,
                job: job.clone(),
                stage: Stage::Prompting,
                attempt: 0,
                is_made: false,
                saying: None,
                fold: Turn::new(),
                text: None,
                starter: None,
                askers: Vec::new(),
            };
            self.running.insert(key.clone(), running);
            // It may have been prompted already; where it was not, what it says is looked up now.
            let (ready, store) = (self.get_ready(&job), self.setup.store.clone());
            let find = FindRun { owner: job.owner, idempotency_key, or_id: false };
            let look = async move { (ready.await, ask(&store, find).await.flatten()) };
            ctx.spawn(look.into_actor(self).map(move |(ready, found), scheduler, ctx| {
                let Some(running) = scheduler.running.get_mut(&key) else { return };
                match ready {
                    Ok(Ready::Skip(why)) if found == Ok(None) => {
                        return scheduler.end(&key, FiringState::Skipped(why), ctx);
                    }
                    Ok(Ready::Say(saying)) => running.saying = saying,
                    _ => {}
                }
                scheduler.drive(&key, ctx);
            }));
        }
    }

    /// Has somebody wait for the end of a firing that goes on.
    pub(super) fn join(&mut self, key: &FiringId, asker: Asker) {
        match self.running.get_mut(key) {
            Some(running) => running.askers.push(asker),
            None => asker.reply(Err(ErrorCode::Unavailable.error("the job is just over: try again"))),
        }
    }

    /// Asks anew for everything that goes on.
    pub(super) fn drive_all(&mut self, ctx: &mut Context<Self>) {
        let keys: Vec<FiringId> = self.running.keys().cloned().collect();
        for key in keys {
            self.drive(&key, ctx);
        }
    }

    /// Asks the sessions for what the present stage of a firing needs.
    fn drive(&mut self, key: &FiringId, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get_mut(key) else { return };
        let task = &running.job.task;
        let target = Target::Session(task.session.clone());
        let command = match running.stage {
            Stage::Entering | Stage::Ending => return,
            Stage::Saying => return self.say(key, ctx),
            Stage::Prompting => {
                running.fold = Turn::new();
                let (prompt, mut run_options) = match &running.saying {
                    Some(saying) => (saying.prompt.clone(), saying.run_options.clone()),
                    None => (task.prompt.clone(), task.run_options.clone()),
                };
                if running.job.is_built_in() {
                    // They are about the session of the socket, and wait among its queries.
                    run_options.lane = Some(lane::xeno());
                }
                SessionCommand::Submit(Submit {
                    target,
                    run: RunId::from_random(clock::random()),
                    content: prompt,
                    idempotency_key: Some(running.firing.key()),
                    attachments: Vec::new(),
                    files: Vec::new(),
                    local_files: Vec::new(),
                    run_options,
                    follow: true,
                })
            }
            // What waits behind it goes on, in the new conversation.
            Stage::Renewing => SessionCommand::Renew(Renew { target }),
            Stage::Making => {
                let Some(to) = task.result_to.clone() else { return self.end(key, FiringState::Done, ctx) };
                SessionCommand::CreateSession(CreateSession {
                    target: Target::Session(to),
                    patch: Patch::default(),
                })
            }
            Stage::Telling => {
                let Some(to) = task.result_to.clone() else { return self.end(key, FiringState::Done, ctx) };
                let content = running.text.clone().unwrap_or_default();
                let id = Some(running.firing.result_id());
                SessionCommand::Inject(Inject { target: Target::Session(to), content, id })
            }
        };
        let told =
            task.result_to.as_ref().filter(|_| matches!(running.stage, Stage::Making | Stage::Telling));
        let owner = match told.map(SessionKey::owner) {
            // Nobody else can begin a conversation over a channel.
            Some(of_channel) if of_channel.is_channel() => of_channel,
            _ => running.job.owner.clone(),
        };
        let to = ctx.address().recipient();
        let is_sent =
            self.line.as_mut().is_some_and(|line| line.ask(owner, command, key.clone(), to).is_ok());
        if !is_sent {
            self.refused(key, ErrorCode::Unavailable.error("the daemon is busy"), ctx);
        }
    }

    /// Something could not be done: for the moment, or at all.
    fn refused(&mut self, key: &FiringId, error: Error, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get_mut(key) else { return };
        // While the daemon stops, it is left to the next start.
        if error.is_retryable() && (running.attempt < ATTEMPTS_MAX || !self.is_taking) {
            running.attempt += 1;
            self.retries_total += 1;
            let delay = (RETRY * running.attempt).min(RETRY_MAX);
            let (stage, key) = (running.stage, key.clone());
            ctx.run_later(delay, move |scheduler, ctx| {
                if scheduler.running.get(&key).is_some_and(|running| running.stage == stage) {
                    scheduler.drive(&key, ctx);
                }
            });
            return;
        }
        // It may not have been named yet; somebody else's can't be made.
        if running.stage == Stage::Telling && error.code == ErrorCode::NotFound && !running.is_made {
            (running.stage, running.is_made) = (Stage::Making, true);
            return self.drive(key, ctx);
        }
        if matches!(running.stage, Stage::Making | Stage::Telling)
            || running.stage == Stage::Saying && running.job.task.result_to.is_some()
        {
            let to = running.job.task.result_to.as_ref();
            let why = format!(
                "it was done, but its result did not come to {}: {error}",
                to.map_or("-", |to| to.as_str())
            );
            return self.end(key, FiringState::Failed(Error { message: why, ..error }), ctx);
        }
        self.end(key, FiringState::Failed(error), ctx);
    }

    pub(super) fn replied(&mut self, ticket: Ticket, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        let Some(line) = &mut self.line else { return };
        if let Ok(Reply::Session(SessionReply::Accepted(accepted))) = reply {
            // It is followed to its end.
            if let Some(running) = line.waiting(ticket).and_then(|key| self.running.get_mut(key)) {
                running.firing.run = Some(accepted.run);
                running.attempt = 0;
            }
            return;
        }
        let Some(key) = line.over(ticket) else { return };
        match reply {
            Ok(_) => self.advance(&key, ctx),
            Err(error) => self.refused(&key, error, ctx),
        }
    }

    pub(super) fn heard(&mut self, ticket: Ticket, event: &Published, ctx: &mut Context<Self>) {
        let Some(line) = &mut self.line else { return };
        line.taken(cost(event));
        let Some(running) = line.waiting(ticket).and_then(|key| self.running.get_mut(key)) else { return };
        running.fold.apply(&event.logged.event);
        let Event::Ended { outcome, usage } = &event.logged.event else { return };
        running.firing.usage = *usage;
        let (text, _) = running.fold.text();
        running.firing.keep(&text);
        running.text = Some(text);
        let Some(key) = line.over(ticket) else { return };
        match outcome.clone() {
            Outcome::Completed | Outcome::Incomplete(_) => self.advance(&key, ctx),
            Outcome::Aborted(_) => {
                self.end(&key, FiringState::Failed(ErrorCode::Aborted.error("somebody aborted it")), ctx);
            }
            Outcome::Failed(error) => self.end(&key, FiringState::Failed(error), ctx),
        }
    }

    /// The present stage is done.
    fn advance(&mut self, key: &FiringId, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get_mut(key) else { return };
        let is_heartbeat = key.0.as_str() == HEARTBEAT;
        let is_silent = |text: &str| text.trim().is_empty() || (is_heartbeat && job::is_well(text));
        let said = running.text.as_deref().is_some_and(|text| !is_silent(text));
        let next = match running.stage {
            Stage::Prompting if key.0.as_str() == NEW_SESSION => Stage::Renewing,
            Stage::Making => Stage::Telling,
            // Then it stands in their conversation, too.
            Stage::Saying if running.job.task.result_to.is_some() => Stage::Telling,
            Stage::Prompting | Stage::Renewing if running.job.task.result_to.is_some() && said => {
                let to = running.job.task.result_to.as_ref();
                // Whom nothing may be said to, of them no conversation is begun.
                if to.is_some_and(|to| to.owner().is_channel()) { Stage::Saying } else { Stage::Telling }
            }
            Stage::Prompting if running.job.owner.is_channel() && !running.job.has_own_session() && said => {
                Stage::Saying
            }
            _ => return self.end(key, FiringState::Done, ctx),
        };
        (running.stage, running.attempt) = (next, 0);
        self.drive(key, ctx);
    }

    /// Says what the model said to whoever's conversation it is.
    fn say(&self, key: &FiringId, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get(key) else { return };
        let task = &running.job.task;
        let session = task.result_to.as_ref().unwrap_or(&task.session);
        let say = Say {
            channel: session.channel().into_owned(),
            account: Some(session.account().into_owned()),
            peer: session.peer().into_owned(),
            text: running.text.clone().unwrap_or_default(),
            id: running.firing.key(),
        };
        let (channels, key) = (self.setup.channels.clone(), key.clone());
        let said = async move {
            let gone = |_| ErrorCode::Unavailable.error("the channels are busy");
            channels.send(say).await.map_err(gone)?
        };
        ctx.spawn(said.into_actor(self).map(move |said, scheduler, ctx| {
            if scheduler.running.get(&key).is_some_and(|running| running.stage == Stage::Saying) {
                match said {
                    Ok(_) => scheduler.advance(&key, ctx),
                    Err(error) => scheduler.refused(&key, error, ctx),
                }
            }
        }));
    }

    /// It is over; that is to be written down.
    fn end(&mut self, key: &FiringId, state: FiringState, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get_mut(key) else { return };
        running.stage = Stage::Ending;
        running.firing.ended = Some(clock::wall());
        running.firing.state = state;
        self.write_end(key, ctx);
    }

    /// Writes the ends down that could not be before.
    pub(super) fn write_ends(&mut self, ctx: &mut Context<Self>) {
        let ended = self.running.iter().filter(|(_, running)| running.stage == Stage::Ending);
        let keys: Vec<FiringId> = ended.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.write_end(&key, ctx);
        }
    }

    fn write_end(&mut self, key: &FiringId, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get(key) else { return };
        let mut changes = vec![JobWrite::Settle(Box::new(running.firing.clone()))];
        if self.is_gone_after(running) {
            changes.push(JobWrite::Remove(key.0.clone()));
        }
        let (store, writing, key) = (self.setup.store.clone(), self.writes.begin(), key.clone());
        let written = async move {
            let _writing = writing;
            ask(&store, WriteJobs(changes)).await.flatten()
        };
        ctx.spawn(written.into_actor(self).map(move |written, scheduler, ctx| match written {
            Ok(()) => scheduler.over(&key, ctx),
            // It waits for the log, or for a moment.
            Err(error) if !scheduler.is_broken => scheduler.fall(&error, ctx),
            Err(_) => {
                ctx.run_later(AGAIN, move |scheduler, ctx| {
                    if !scheduler.is_broken {
                        scheduler.write_end(&key, ctx);
                    }
                });
            }
        }));
    }

    /// Whether its job is gone with it.
    fn is_gone_after(&self, running: &Running) -> bool {
        let entry = self.jobs.get(&running.firing.job);
        running.firing.state == FiringState::Done
            && entry.is_some_and(|entry| entry.job.is_deleted_after && entry.job.schedule.is_once())
    }

    /// What came of it is written down: tells who waits and who wants to know.
    fn over(&mut self, key: &FiringId, ctx: &mut Context<Self>) {
        let Some(running) = self.running.remove(key) else { return };
        let is_gone = self.is_gone_after(&running);
        let Running { firing, job, text, askers, .. } = running;
        self.look_after_heartbeat(&firing);
        if let FiringState::Failed(error) = &firing.state {
            let last = self.jobs.get(&key.0).and_then(|entry| entry.last.as_ref());
            let did_so =
                |last: &Firing| matches!(&last.state, FiringState::Failed(last) if last.code == error.code);
            if last.is_some_and(did_so) {
                // The log has it; this may be each minute, of many jobs.
                tracing::debug!(job = %firing.job, %error, "a job was not done again");
            } else {
                tracing::warn!(job = %firing.job, %error, "a job was not done");
            }
        }
        if let Some(entry) = self.jobs.get_mut(&key.0) {
            entry.current = None;
            entry.last = Some(firing.clone());
        }
        self.announce(&job, job::JobChange::Finished(Box::new(firing.clone())));
        if is_gone {
            self.jobs.remove(&key.0);
            self.announce(&job, job::JobChange::Removed);
        }
        for asker in askers {
            let ran = Ran::of(&firing, text.clone());
            asker.reply(Ok(JobReply::Ran(ran).into()));
        }
        self.look(ctx);
    }

    /// A heartbeat whose key is refused beats no more until somebody changes that.
    fn look_after_heartbeat(&mut self, firing: &Firing) {
        if firing.job.as_str() != HEARTBEAT {
            return;
        }
        match &firing.state {
            FiringState::Failed(error) if error.detail == Some(Detail::KeyRefused) => {
                if self.halted.is_none() {
                    tracing::warn!(
                        %error,
                        "the heartbeat stops until the configuration is changed: the model provider refuses its key"
                    );
                }
                self.halted = Some(error.message.clone());
            }
            FiringState::Done => self.halted = None,
            _ => {}
        }
    }
}
