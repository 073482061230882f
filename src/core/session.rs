//! One conversation: its queue of prompts, its run, its place in the log.
//!
//! ```text
//!   submit ---> queue ---(turn comes: Started)---> run ---(Ended)---> past ---(Cleared)---> gone
//!                 |                                 ^
//!                 +-----------(abort: Ended)        | events of the turn (see `turn`)
//! ```
//!
//! Queue, run and past are one state, and the state is the fold of the log: every change is an
//! [`Event`] that gets the next number, is applied, and waits to be written ([`Session::take`]).
//! Whoever drives this writes the events first and only then lets anything of them be seen or
//! done; what to do is [`Session::work`], which follows from the state. There is no clock, no
//! mailbox and no store in here, so crashes between any two steps can be played through.
//!
//! What a prompt says need not be in memory while it waits: once it is in the log it can be set aside
//! ([`Session::set_aside`]), and when its turn comes it is wanted back ([`Session::wanted`]).

use std::collections::VecDeque;

use crate::approval::{self, Decided, Decision, Pending, Toolbox, Verdict};
use crate::attachment::{self, Attachment};
use crate::auth::{Owner, Principal};
use crate::config::Recovery;
use crate::context::{self, Exchange, Showing};
use crate::error::{Detail, Error, ErrorCode};
use crate::event::{Cause, Event, Forgotten, Logged, Outcome, ToolResult, Usage};
use crate::ids::{ApprovalId, CallId, LaneName, PluginName, RunId, Seq, SessionKey};
use crate::manner::Manner;
use crate::provider::{ChatMessage, Delta};
use crate::session_reply::UnderWay;
use crate::settings::{Patch, Settings};
use crate::thinking::Thinking;
use crate::time::Timestamp;
use crate::turn::{Turn, Work};

/// How many numbers are reserved ahead, durably. After a power loss numbering goes on above the
/// reservation, so that no number a client saw is used twice.
pub const SEQ_RESERVE: u64 = 8192;

/// How many bytes of prompts, with what they bring along, may wait in one session. A single prompt may
/// always wait.
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The bounds of a session.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Prompts that may wait.
    pub queue: usize,
    /// Past turns the model sees: so many are kept, and as many that ended without an answer.
    pub episodic_turns: usize,
    /// Estimated tokens of soul and past turns.
    pub context_tokens: usize,
}

/// A prompt for [`Session::submit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The id of its run.
    pub run: RunId,
    /// What the user says.
    pub content: String,
    /// Whose it is.
    pub owner: Owner,
    /// The same key from the same owner is the same run.
    pub idempotency_key: Option<String>,
    /// What it brings along.
    pub attachments: Vec<Attachment>,
    /// How it is to be answered.
    pub manner: Manner,
}

/// What became of a [`Submission`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The run: that of the submission, or the one its key names.
    pub run: RunId,
    /// The number of the prompt's event.
    pub seq: Seq,
    /// Whether the run was there before.
    pub repeated: bool,
}

/// A prompt in the queue or under way.
#[derive(Clone, Debug, PartialEq)]
struct Prompt {
    run: RunId,
    seq: Seq,
    at: Timestamp,
    content: String,
    owner: Owner,
    idempotency_key: Option<String>,
    attachments: Vec<Attachment>,
    manner: Manner,
    /// How many bytes it has that are in the log and not here; 0 = all of it is here.
    aside: usize,
}

/// What is over and not forgotten.
#[derive(Clone, Debug, PartialEq)]
struct Past {
    /// None for what was injected.
    prompt: Option<Prompt>,
    turn: Turn,
    /// The number of its end.
    ended: Seq,
}

impl Past {
    /// What it takes of the context, in estimated tokens.
    fn cost(&self) -> usize {
        let prompt = self.prompt.as_ref().map(|prompt| (&*prompt.content, &*prompt.attachments));
        let (content, attachments) = prompt.unwrap_or_default();
        context::estimate_turn(content, attachments, &self.turn)
    }
}

impl Prompt {
    /// Whether its run has this id, or was asked for with this idempotency key.
    fn is_named(&self, run: &RunId) -> bool {
        self.run == *run || self.idempotency_key.as_deref() == Some(run.as_str())
    }

    /// When its run is ended, should it not be over then.
    fn deadline(&self) -> Option<Timestamp> {
        self.manner.timeout.map(|timeout| self.at.after(timeout))
    }

    fn is_overdue(&self, now: Timestamp) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// How many bytes it has, wherever they are.
    fn bytes(&self) -> usize {
        self.aside + prompt_bytes(&self.content, &self.attachments)
    }
}

/// How much memory a prompt takes with what it brings along, roughly.
pub fn prompt_bytes(content: &str, attachments: &[Attachment]) -> usize {
    content.len() + attachment::held_bytes(attachments)
}

/// Events to be written as one unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The events, in order.
    pub events: Vec<Logged>,
    /// Whether it must be on disk before anything of it is seen.
    pub durable: bool,
    /// The new high-water mark of numbers, where it moves.
    pub reserve: Option<Seq>,
}

/// One conversation.
#[derive(Clone, Debug)]
pub struct Session {
    key: SessionKey,
    owner: Owner,
    limits: Limits,
    /// Those that hold from the next run on.
    next_limits: Option<Limits>,
    head: Seq,
    reserved: Seq,
    /// Numbers the next event covers besides its own: they may have been seen before a power loss.
    skipped: bool,
    past: VecDeque<Past>,
    queue: VecDeque<Prompt>,
    run: Option<(Prompt, Turn)>,
    settings: Settings,
    /// When the run under way began; 0 where none is.
    began: Timestamp,
    /// Runs of lanes whose turn has come there. In nobody's log: after a restart they wait anew.
    admitted: Vec<RunId>,
    draining: bool,
    unwritten: Vec<Logged>,
}

impl Session {
    /// A session nobody named before.
    pub fn new(key: SessionKey, limits: Limits) -> Self {
        Self {
            owner: key.owner(),
            key,
            limits,
            next_limits: None,
            head: Seq(0),
            reserved: Seq(0),
            skipped: false,
            settings: Settings::default(),
            past: VecDeque::new(),
            queue: VecDeque::new(),
            run: None,
            began: Timestamp::default(),
            admitted: Vec::new(),
            draining: false,
            unwritten: Vec::new(),
        }
    }

    /// A session read back: `events` are its last ended runs and all that have not ended; `head`
    /// is the last number in the log, `reserved` the high-water mark, `settings` what it is set to.
    pub fn restore(
        key: SessionKey,
        limits: Limits,
        head: Seq,
        reserved: Seq,
        settings: Settings,
        events: Vec<Logged>,
    ) -> Self {
        let mut session = Self { head, reserved, settings, ..Self::new(key, limits) };
        for logged in &events {
            session.apply(logged);
        }
        // Numbers of the answer under way may have reached clients and not the disk.
        session.skipped = !session.is_idle() && reserved > head;
        session
    }

    /// Brings a session that was read back to where it can go on: records that the answer under
    /// way is void, or that the run is over. `idempotent` says which tools may be called again.
    pub fn recover(&mut self, now: Timestamp, recovery: Recovery, idempotent: impl Fn(&PluginName) -> bool) {
        let cut_off = self.running().cloned();
        self.time_out(now, Usage::default());
        match (&self.run, recovery) {
            // One whose turn has just come.
            (Some((prompt, _)), _) if cut_off.as_ref() != Some(&prompt.run) => {}
            (Some((_, turn)), Recovery::Resume) => {
                for event in turn.recover(idempotent) {
                    self.emit_run(now, event);
                }
            }
            (Some((_, turn)), Recovery::Interrupt) => {
                let why = ErrorCode::Interrupted.error("interrupted: the daemon was restarted");
                for event in turn.end(Outcome::Failed(why), Usage::default()) {
                    self.emit_run(now, event);
                }
            }
            (None, _) => {}
        }
        self.expire(now);
        self.start_next(now);
    }

    /// From now on these are its bounds. The run under way is shown what it was shown before.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits.queue = limits.queue;
        match self.run {
            None => self.limits = limits,
            Some(_) => self.next_limits = Some(limits),
        }
    }

    /// The session's key.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Whom it belongs to.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What it is set to.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The last number given out.
    pub fn head(&self) -> Seq {
        self.head
    }

    /// The run under way.
    pub fn running(&self) -> Option<&RunId> {
        self.run.as_ref().map(|(prompt, _)| &prompt.run)
    }

    /// Whether the run under way is the one with this id or this idempotency key.
    pub fn is_running(&self, run: &RunId) -> bool {
        self.run.as_ref().is_some_and(|(prompt, _)| prompt.is_named(run))
    }

    /// The run under way with what it said so far.
    pub fn under_way(&self) -> Option<UnderWay> {
        let (prompt, turn) = self.run.as_ref()?;
        let (text, step_at) = turn.text();
        Some(UnderWay {
            run: prompt.run.clone(),
            idempotency_key: prompt.idempotency_key.clone(),
            text,
            step_at,
            seq: self.head,
            started: self.began,
            is_anew: turn.is_anew(),
            calls: turn.made().into_iter().map(|call| (call.id, call.name)).collect(),
        })
    }

    /// The runs that wait, in order, with the idempotency keys they were asked with.
    pub fn waiting(&self) -> impl Iterator<Item = (RunId, Option<String>)> {
        self.queue.iter().map(|prompt| (prompt.run.clone(), prompt.idempotency_key.clone()))
    }

    /// How many prompts wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many bytes of this prompt, which waits, are in memory; none where it does not wait.
    pub fn held_bytes(&self, run: &RunId) -> Option<usize> {
        let prompt = self.queue.iter().find(|prompt| prompt.run == *run)?;
        Some(prompt_bytes(&prompt.content, &prompt.attachments))
    }

    /// Lets go of what a prompt says that waits; it is in the log.
    pub fn set_aside(&mut self, run: &RunId) {
        let Some(prompt) = self.queue.iter_mut().find(|prompt| prompt.run == *run) else { return };
        let held = prompt_bytes(&prompt.content, &prompt.attachments);
        prompt.content = String::new();
        prompt.attachments.iter_mut().for_each(Attachment::let_go);
        prompt.aside += held - prompt_bytes("", &prompt.attachments);
    }

    /// The same of one that was read back without what it says, which has so many bytes.
    pub fn is_aside(&mut self, run: &RunId, bytes: usize) {
        if let Some(prompt) = self.queue.iter_mut().find(|prompt| prompt.run == *run) {
            prompt.aside = bytes.max(1);
        }
    }

    /// The prompt that was set aside and whose turn has come, and the number of its event: it begins
    /// once it is given back.
    pub fn wanted(&self) -> Option<(&RunId, Seq)> {
        let prompt = self.next_in_line().filter(|prompt| prompt.aside > 0)?;
        Some((&prompt.run, prompt.seq))
    }

    /// Gives back what a prompt says that was set aside, or ends it as failed where that can't be read.
    pub fn give_back(&mut self, now: Timestamp, run: &RunId, said: Result<(String, Vec<Attachment>), Error>) {
        let Some(prompt) = self.queue.iter_mut().find(|prompt| prompt.run == *run) else { return };
        match said {
            Ok((content, attachments)) => {
                prompt.content = content;
                prompt.attachments = attachments;
                prompt.aside = 0;
            }
            Err(error) => {
                let end = Event::Ended { outcome: Outcome::Failed(error), usage: Usage::default() };
                self.emit(now, Some(run.clone()), end);
            }
        }
        self.start_next(now);
    }

    /// Whether this run is under way or waits.
    pub fn is_open(&self, run: &RunId) -> bool {
        self.open().any(|prompt| prompt.run == *run)
    }

    /// Those that are in a lane, in order: the run, its lane, and when it was accepted.
    pub fn in_lanes(&self) -> impl Iterator<Item = (&RunId, &LaneName, Timestamp)> {
        self.open().filter_map(|prompt| Some((&prompt.run, prompt.manner.lane.as_ref()?, prompt.at)))
    }

    /// How many runs of no lane are under way or wait before this one.
    pub fn ahead(&self, run: &RunId) -> usize {
        let before = self.open().take_while(|prompt| prompt.run != *run);
        before.filter(|prompt| prompt.manner.lane.is_none()).count()
    }

    /// The lane of the run under way.
    pub fn lane(&self) -> Option<&LaneName> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.manner.lane.as_ref())
    }

    /// The turn of this run has come in its lane: it begins as soon as it does in the session, or goes
    /// on where a restart cut it off.
    pub fn admit(&mut self, now: Timestamp, run: &RunId) {
        if self.is_open(run) && !self.admitted.contains(run) {
            self.admitted.push(run.clone());
            self.start_next(now);
        }
    }

    /// Those that are under way or wait, in order.
    fn open(&self) -> impl Iterator<Item = &Prompt> {
        self.run.iter().map(|(prompt, _)| prompt).chain(&self.queue)
    }

    /// Whether nothing else is to be waited for.
    fn is_admitted(&self, prompt: &Prompt) -> bool {
        prompt.manner.lane.is_none() || self.admitted.contains(&prompt.run)
    }

    /// Whether nothing is under way or queued.
    pub fn is_idle(&self) -> bool {
        self.run.is_none() && self.queue.is_empty()
    }

    /// Whether all that was decided has been taken for writing.
    pub fn is_taken(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Takes a prompt into the queue; its turn begins at once where nothing is under way.
    ///
    /// # Errors
    /// `Conflict` where it was closed, `Unavailable` where the queue is full or the daemon is stopping,
    /// `TooLarge` where it brings along too much.
    pub fn submit(&mut self, now: Timestamp, submission: Submission) -> Result<Submitted, Error> {
        if let Some(known) = self.find(&submission) {
            return Ok(Submitted { run: known.run.clone(), seq: known.seq, repeated: true });
        }
        attachment::check(&submission.attachments)?;
        if self.settings.closed.is_some() {
            return Err(ErrorCode::Conflict.error(format!(
                "session {} was stopped and takes no more prompts: reset it, or use another",
                self.key
            )));
        }
        if self.draining {
            return Err(ErrorCode::Unavailable.error("the daemon is stopping: try again once it runs again"));
        }
        if self.queue.len() >= self.limits.queue {
            let limit = self.limits.queue;
            return Err(ErrorCode::Unavailable
                .error(format!("the session's queue is full ({limit} prompts wait): try again later"))
                .with(Detail::Limit { name: "limits.queue", limit: limit as u64 }));
        }
        let waiting: usize = self.queue.iter().map(Prompt::bytes).sum();
        let more = prompt_bytes(&submission.content, &submission.attachments);
        if waiting > 0 && waiting.saturating_add(more) > QUEUE_BYTES_MAX {
            return Err(ErrorCode::Unavailable.error(format!(
                "the session's queue is full ({waiting} bytes of prompts wait): try again later"
            )));
        }
        let Submission { run, content, owner, idempotency_key, attachments, manner } = submission;
        let prompted = Event::Prompted { content, owner, idempotency_key, attachments, manner };
        let seq = self.emit(now, Some(run.clone()), prompted);
        self.start_next(now);
        Ok(Submitted { run, seq, repeated: false })
    }

    /// Ends a run, by its id or its idempotency key, or the one under way where none is named, with what was said so far. Gives the run
    /// that was ended; none where it is not under way and not queued. `partial` is what the answer
    /// under way has cost.
    pub fn abort(&mut self, now: Timestamp, run: Option<&RunId>, partial: Usage) -> Option<RunId> {
        self.end(now, run, Cause::Asked, partial)
    }

    fn end(&mut self, now: Timestamp, run: Option<&RunId>, cause: Cause, partial: Usage) -> Option<RunId> {
        let run = match run {
            None => self.running()?,
            Some(run) => {
                let under_way = self.run.iter().map(|(prompt, _)| prompt);
                &under_way.chain(&self.queue).find(|prompt| prompt.is_named(run))?.run
            }
        };
        let run = run.clone();
        match &self.run {
            Some((prompt, turn)) if prompt.run == run => {
                for event in turn.end(Outcome::Aborted(cause), partial) {
                    self.emit(now, Some(run.clone()), event);
                }
            }
            _ => {
                let end = Event::Ended { outcome: Outcome::Aborted(cause), usage: Usage::default() };
                self.emit(now, Some(run.clone()), end);
            }
        }
        self.start_next(now);
        Some(run)
    }

    /// Ends the run under way and all that wait, for this cause. Gives those runs. `partial` is what the
    /// answer under way has cost.
    pub fn stop(&mut self, now: Timestamp, cause: Cause, partial: Usage) -> Vec<RunId> {
        let waiting: Vec<RunId> = self.queue.iter().map(|prompt| prompt.run.clone()).collect();
        let mut ended: Vec<RunId> = waiting.into_iter().rev().collect();
        ended.retain(|run| self.end(now, Some(run), cause, Usage::default()).is_some());
        ended.extend(self.end(now, None, cause, partial));
        ended.reverse();
        ended
    }

    /// Whether it can be closed for this reason.
    ///
    /// # Errors
    /// As [`Settings::patched`]'s.
    pub fn check_reason(&self, reason: &str) -> Result<(), Error> {
        self.settings.patched(&closed(reason)).map(drop)
    }

    /// Ends the run under way and all that wait, and takes no more prompts until it is reset, for a
    /// reason that was checked. Gives those runs; one that was closed before keeps its reason.
    /// `partial` is what the answer under way has cost.
    pub fn close(&mut self, now: Timestamp, reason: &str, partial: Usage) -> Vec<RunId> {
        if self.settings.closed.is_some() {
            return Vec::new();
        }
        let ended = self.stop(now, Cause::Stopped, partial);
        let mut settings = self.settings.clone();
        settings.apply(&closed(reason));
        self.emit(now, None, Event::Configured(Box::new(settings)));
        ended
    }

    /// Whether nothing ever happened in it: it is in nobody's log.
    pub fn is_new(&self) -> bool {
        self.head == Seq(0)
    }

    /// Forgets the past turns; what is under way or queued goes on.
    pub fn clear(&mut self, now: Timestamp) {
        self.emit(now, None, Event::Cleared(Forgotten::Past));
    }

    /// Forgets the past turns that ended up to this number.
    pub fn compact(&mut self, now: Timestamp, up_to: Seq) {
        self.emit(now, None, Event::Cleared(Forgotten::UpTo(up_to)));
    }

    /// Begins a new conversation; what is under way or waits goes on, in that one.
    pub fn renew(&mut self, now: Timestamp) {
        self.emit(now, None, Event::Cleared(Forgotten::Conversation));
    }

    /// Ends whatever is under way or waits, and begins a new conversation with the same settings; one
    /// that was closed is open again.
    /// `partial` is what the answer under way has cost.
    pub fn reset(&mut self, now: Timestamp, partial: Usage) {
        self.stop(now, Cause::Asked, partial);
        if self.settings.closed.is_some() {
            let settings = Settings { closed: None, ..self.settings.clone() };
            self.emit(now, None, Event::Configured(Box::new(settings)));
        }
        self.emit(now, None, Event::Cleared(Forgotten::Conversation));
    }

    /// Changes what it is set to. What changes nothing leaves no trace, but in a session that begins
    /// with it.
    ///
    /// # Errors
    /// As [`Settings::patched`]'s.
    pub fn configure(&mut self, now: Timestamp, patch: &Patch) -> Result<(), Error> {
        let settings = self.settings.patched(patch)?;
        if settings != self.settings || self.is_new() {
            self.emit(now, None, Event::Configured(Box::new(settings)));
        }
        Ok(())
    }

    /// Makes a session in which nothing happened yet.
    pub fn create(&mut self, now: Timestamp) {
        if self.is_new() {
            self.emit(now, None, Event::Configured(Box::default()));
        }
    }

    /// Takes something said in the model's name under this id, outside any prompt's run. Gives its
    /// number.
    pub fn inject(&mut self, now: Timestamp, id: RunId, content: String) -> Seq {
        self.emit(now, Some(id), Event::Injected { content })
    }

    /// Takes what the model said in answer `step` of `run`; what comes too late is nothing.
    pub fn said(&mut self, now: Timestamp, run: &RunId, step: usize, deltas: Vec<Delta>, tools: &Toolbox) {
        let Some((prompt, turn)) = &mut self.run else { return };
        if prompt.run != *run || turn.work() != Some(Work::Ask { step }) {
            return;
        }
        for event in turn.said(now, deltas, tools) {
            self.emit_run(now, event);
        }
        self.start_next(now);
    }

    /// Ends the run because the model can't be heard; what comes too late is nothing. `partial` is
    /// what the answer has cost.
    pub fn failed(&mut self, now: Timestamp, run: &RunId, step: usize, error: Error, partial: Usage) {
        let Some((prompt, turn)) = &self.run else { return };
        if prompt.run == *run && turn.work() == Some(Work::Ask { step }) {
            for event in turn.end(Outcome::Failed(error), partial) {
                self.emit_run(now, event);
            }
            self.start_next(now);
        }
    }

    /// Takes a tool's result; what comes too late or a second time is nothing.
    pub fn returned(&mut self, now: Timestamp, run: &RunId, result: ToolResult) {
        let Some((prompt, turn)) = &self.run else { return };
        if prompt.run == *run
            && let Some(event) = turn.returned(result)
        {
            self.emit_run(now, event);
        }
    }

    /// The calls that wait for approval.
    pub fn pending(&self) -> Vec<Pending> {
        let Some((prompt, turn)) = &self.run else { return Vec::new() };
        let pending = turn.waiting().map(|asked| Pending {
            id: ApprovalId::of(&prompt.run, &asked.call.id),
            session: self.key.clone(),
            owner: self.owner.clone(),
            run: prompt.run.clone(),
            prompted_by: prompt.owner.clone(),
            asked,
        });
        pending.collect()
    }

    /// Who prompted this run; the session's owner where that is forgotten.
    pub fn prompted_by(&self, run: &RunId) -> &Owner {
        let past = self.past.iter().rev().filter_map(|past| past.prompt.as_ref());
        let mut prompts = self.run.iter().map(|(prompt, _)| prompt).chain(past);
        prompts.find(|prompt| prompt.run == *run).map_or(&self.owner, |prompt| &prompt.owner)
    }

    /// When [`Self::expire`] or [`Self::time_out`] has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.undecided().into_iter().chain(self.open().filter_map(Prompt::deadline)).min()
    }

    /// When it is decided about a call that waits for approval.
    fn undecided(&self) -> Option<Timestamp> {
        self.run.as_ref().and_then(|(_, turn)| turn.deadline())
    }

    /// Whether the run under way takes longer than its prompt allows.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.run.as_ref().is_some_and(|(prompt, _)| prompt.is_overdue(now))
    }

    /// Ends runs that take longer than their prompts allow, those that still wait included. While the
    /// session is stopping they go on: the next start finds them. `partial` is what the answer under
    /// way has cost.
    pub fn time_out(&mut self, now: Timestamp, partial: Usage) {
        if self.draining {
            return;
        }
        // Those that wait first, so that none of them begins.
        let overdue = |prompt: &&Prompt| prompt.is_overdue(now);
        let waiting: Vec<RunId> =
            self.queue.iter().filter(overdue).map(|prompt| prompt.run.clone()).collect();
        for run in waiting {
            self.end(now, Some(&run), Cause::TimedOut, Usage::default());
        }
        if self.is_overdue(now) {
            self.end(now, None, Cause::TimedOut, partial);
        }
    }

    /// Decides about calls for which nobody did in time. While the session is stopping they wait: the
    /// next start finds them.
    pub fn expire(&mut self, now: Timestamp) {
        if self.draining || self.undecided().is_none_or(|deadline| deadline > now) {
            return;
        }
        for Pending { asked, .. } in self.pending() {
            if asked.deadline <= now {
                self.decided(now, &asked.call.id, Decision::TimedOut, None);
            }
        }
    }

    /// Takes a decision about a call that waits for approval. Gives its run and what is recorded.
    ///
    /// # Errors
    /// `NotFound` where there is no such call, `Conflict` where it was decided before or its time is
    /// over, `InvalidRequest` as [`Verdict::check`]'s, `Unavailable` where the daemon is stopping.
    pub fn decide(
        &mut self,
        now: Timestamp,
        id: &ApprovalId,
        verdict: Verdict,
        by: &Principal,
    ) -> Result<(RunId, Decided), Error> {
        verdict.check()?;
        if self.draining {
            return Err(ErrorCode::Unavailable
                .error("the daemon is stopping: the call keeps waiting; decide once it runs again"));
        }
        self.expire(now);
        let Some(pending) = self.pending().into_iter().find(|pending| pending.id == *id) else {
            return Err(match self.is_call(id) {
                true if by.sees(&self.owner) || approval::decides_all(by) => {
                    approval::decided_already(id, None)
                }
                _ => approval::no_such(id),
            });
        };
        if !approval::may_decide(by, &pending.prompted_by) {
            return Err(match approval::may_see(by, &pending) {
                true => approval::not_yours(id),
                false => approval::no_such(id),
            });
        }
        let Pending { run, asked, .. } = pending;
        let (call, tool) = (asked.call.id, asked.call.name);
        let decision = Decision::from(verdict);
        self.decided(now, &call, decision.clone(), Some(&by.name));
        Ok((run, Decided { call, tool, decision, by: Some(by.name.to_string()) }))
    }

    fn decided(&mut self, now: Timestamp, call: &CallId, decision: Decision, by: Option<&str>) {
        let Some((_, turn)) = &self.run else { return };
        for event in turn.decided(call, decision, by) {
            self.emit_run(now, event);
        }
    }

    /// Whether this is the id of a call of a run that is not forgotten.
    fn is_call(&self, id: &ApprovalId) -> bool {
        let past = self.past.iter().filter_map(|past| Some((past.prompt.as_ref()?, &past.turn)));
        let mut runs = past.chain(self.run.iter().map(|(prompt, turn)| (prompt, turn)));
        runs.any(|(prompt, turn)| turn.calls().any(|call| ApprovalId::of(&prompt.run, &call.id) == *id))
    }

    /// From here on nothing new is begun: the step under way finishes, the rest waits in the log
    /// for the next start.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// What is to be done for the run under way; nothing while it waits for its lane.
    pub fn work(&self) -> Option<(&RunId, Work)> {
        let (prompt, turn) = self.run.as_ref().filter(|(prompt, _)| self.is_admitted(prompt))?;
        Some((&prompt.run, turn.work()?))
    }

    /// The conversation as the model should see it now, beside a soul of this many bytes; empty
    /// where nothing is under way.
    pub fn conversation(&self, soul_bytes: usize) -> Vec<ChatMessage> {
        let Some((prompt, turn)) = &self.run else { return Vec::new() };
        let exchange = |prompt: Option<&Prompt>, turn: &Turn| Exchange {
            prompt: prompt.map(|prompt| prompt.content.clone()),
            attachments: prompt.map(|prompt| prompt.attachments.clone()).unwrap_or_default(),
            turn: turn.clone(),
        };
        let under_way = exchange(Some(prompt), turn);
        let past = self.past.iter().filter(|past| past.turn.has_answer());
        let past: Vec<Exchange> = past.map(|past| exchange(past.prompt.as_ref(), &past.turn)).collect();
        context::conversation(soul_bytes, &past, &under_way, self.limits.context_tokens)
    }

    /// How much is to be thought over the prompt under way: as it says, else as the session is set.
    pub fn thinking(&self) -> Option<Thinking> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.manner.thinking).or(self.settings.thinking)
    }

    /// The model that answers the prompt under way, where one was chosen for it or for the session.
    pub fn model(&self) -> Option<&str> {
        let chosen = self.run.as_ref().and_then(|(prompt, _)| prompt.manner.model.as_deref());
        chosen.or(self.settings.model.as_deref())
    }

    /// The most tokens of one answer to the prompt under way, where it says so.
    pub fn max_tokens(&self) -> Option<u32> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.manner.max_tokens)
    }

    /// What has to be written, as one unit; none where nothing has.
    pub fn take(&mut self) -> Option<Batch> {
        let last = self.unwritten.last()?.seq;
        let mut durable = self.unwritten.iter().any(|logged| logged.event.streamed().is_none());
        let mut reserve = None;
        if last > self.reserved || (durable && last.0 + SEQ_RESERVE / 2 > self.reserved.0) {
            durable = true;
            self.reserved = Seq(last.0 + SEQ_RESERVE);
            reserve = Some(self.reserved);
        }
        Some(Batch { events: std::mem::take(&mut self.unwritten), durable, reserve })
    }

    /// Whether this is a prompt that was submitted before, as far as that is in memory.
    pub fn has(&self, submission: &Submission) -> bool {
        self.find(submission).is_some()
    }

    /// The run a submission's idempotency key names, as far as it is in memory.
    fn find(&self, submission: &Submission) -> Option<&Prompt> {
        let key = submission.idempotency_key.as_ref()?;
        let under_way = self.run.iter().map(|(prompt, _)| prompt);
        let past = self.past.iter().filter_map(|past| past.prompt.as_ref());
        under_way
            .chain(&self.queue)
            .chain(past)
            .find(|prompt| prompt.idempotency_key.as_ref() == Some(key) && prompt.owner == submission.owner)
    }

    fn start_next(&mut self, now: Timestamp) {
        if let Some(prompt) = self.next_in_line().filter(|prompt| prompt.aside == 0) {
            let run = prompt.run.clone();
            self.emit(now, Some(run), Event::Started);
        }
    }

    /// The prompt whose turn has come.
    fn next_in_line(&self) -> Option<&Prompt> {
        let is_free = self.run.is_none() && !self.draining;
        self.queue.front().filter(|prompt| is_free && self.is_admitted(prompt))
    }

    fn emit_run(&mut self, now: Timestamp, event: Event) {
        let run = self.running().cloned();
        self.emit(now, run, event);
    }

    /// Numbers, applies and keeps an event for writing.
    fn emit(&mut self, now: Timestamp, run: Option<RunId>, event: Event) -> Seq {
        let first_seq = self.head.next();
        let before = if std::mem::take(&mut self.skipped) { self.reserved } else { self.head };
        let seq = Seq(before.0 + event.numbers());
        self.head = seq;
        let logged = Logged { first_seq, seq, run, at: now, event };
        self.apply(&logged);
        self.unwritten.push(logged);
        seq
    }

    /// Adds to the past, and lets go of what the model will never see: turns that are too many, and
    /// those that don't fit into the context beside the newer ones. Prompts without an answer are
    /// kept for their idempotency keys alone and bounded by themselves, so that those that fail
    /// while a provider is away do not push out what the model has to know. Attachments that are no
    /// longer shown are let go.
    fn keep(&mut self, mut ended: Past) {
        if let Some(prompt) = &mut ended.prompt
            && !ended.turn.has_answer()
        {
            prompt.content = String::new();
            prompt.attachments = Vec::new();
        }
        self.past.push_back(ended);
        let mut showing = Showing::beside(self.limits.context_tokens);
        let (mut answered, mut unanswered, mut left) = (0, 0, Some(self.limits.context_tokens));
        let mut kept = VecDeque::with_capacity(self.past.len());
        for mut past in std::mem::take(&mut self.past).into_iter().rev() {
            let seen = if past.turn.has_answer() {
                answered += 1;
                left = left.and_then(|left| left.checked_sub(past.cost()));
                answered <= self.limits.episodic_turns && left.is_some()
            } else {
                unanswered += 1;
                unanswered <= self.limits.episodic_turns
            };
            if seen {
                for attachment in past.prompt.iter_mut().flat_map(|prompt| &mut prompt.attachments) {
                    if !showing.shows(attachment) {
                        attachment.let_go();
                    }
                }
                kept.push_front(past);
            }
        }
        self.past = kept;
    }

    /// The fold.
    fn apply(&mut self, logged: &Logged) {
        let Some(run) = &logged.run else {
            match &logged.event {
                Event::Cleared(Forgotten::UpTo(seq)) => self.past.retain(|past| past.ended > *seq),
                Event::Cleared(Forgotten::Past | Forgotten::Conversation) => self.past.clear(),
                Event::Configured(settings) => self.settings.clone_from(settings),
                // Nothing else concerns the session.
                _ => {}
            }
            return;
        };
        match &logged.event {
            Event::Injected { content } => {
                let turn = Turn::of_text(content);
                self.keep(Past { prompt: None, turn, ended: logged.seq });
            }
            Event::Prompted { content, owner, idempotency_key, attachments, manner } => {
                self.queue.push_back(Prompt {
                    run: run.clone(),
                    seq: logged.seq,
                    at: logged.at,
                    content: content.clone(),
                    owner: owner.clone(),
                    idempotency_key: idempotency_key.clone(),
                    attachments: attachments.clone(),
                    manner: manner.clone(),
                    aside: 0,
                })
            }
            Event::Started => {
                if let Some(at) = self.queue.iter().position(|prompt| prompt.run == *run) {
                    self.run = self.queue.remove(at).map(|prompt| (prompt, Turn::new()));
                    self.began = logged.at;
                    self.limits = self.next_limits.take().unwrap_or_else(|| self.limits.clone());
                }
            }
            event => {
                if let Event::Ended { .. } = event {
                    self.admitted.retain(|admitted| admitted != run);
                }
                if self.running() != Some(run) {
                    // A prompt that was aborted in the queue.
                    self.queue.retain(|prompt| prompt.run != *run);
                    return;
                }
                if let Some((_, turn)) = &mut self.run {
                    turn.apply(event);
                }
                if let Event::Ended { .. } = event
                    && let Some((prompt, turn)) = self.run.take()
                {
                    self.began = Timestamp::default();
                    self.keep(Past { prompt: Some(prompt), turn, ended: logged.seq });
                }
            }
        }
    }
}

/// The change that closes a session.
fn closed(reason: &str) -> Patch {
    Patch { closed: Some(Some(reason.to_owned())), ..Patch::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Scope, Scopes};
    use crate::event::ToolCall;
    use crate::ids::CallId;
    use crate::provider::Stop;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    const NONE: Usage = Usage { input_tokens: 0, output_tokens: 0 };
    const NOW: Timestamp = Timestamp::from_millis(1);

    fn key() -> SessionKey {
        SessionKey::parse("main:websocket:ada:main").unwrap()
    }

    fn limits() -> Limits {
        Limits { queue: 3, episodic_turns: 2, context_tokens: 5000 }
    }

    fn session() -> Session {
        Session::new(key(), limits())
    }

    fn prompt(run: &str) -> Submission {
        Submission {
            run: run.into(),
            content: format!("prompt {run}"),
            owner: Owner::Admins,
            idempotency_key: Some(format!("key {run}")),
            attachments: Vec::new(),
            manner: Manner::default(),
        }
    }

    fn image(bytes: usize) -> Attachment {
        let mut data = b"\xff\xd8\xff".to_vec();
        data.resize(bytes, 0);
        Attachment::new(Some("a.jpg"), None, data.into()).unwrap()
    }

    fn answer(text: &str) -> Vec<Delta> {
        let usage = Some(Usage { input_tokens: 10, output_tokens: 1 });
        vec![Delta::Text(text.into()), Delta::Finished { stop: Stop::End, usage }]
    }

    fn prompts(session: &Session) -> impl Iterator<Item = &Prompt> {
        session.past.iter().filter_map(|past| past.prompt.as_ref())
    }

    fn events(batch: &Batch) -> Vec<&Event> {
        batch.events.iter().map(|logged| &logged.event).collect()
    }

    #[test]
    fn other_bounds_hold_at_once_but_for_what_the_run_under_way_is_shown() {
        let mut session = Session::new(key(), Limits { queue: 2, ..limits() });
        let other = Limits { queue: 1, episodic_turns: 1, context_tokens: 77 };
        session.run = Some((
            Prompt {
                run: "r".into(),
                seq: Seq(1),
                at: Timestamp::default(),
                content: String::new(),
                owner: Owner::Admins,
                idempotency_key: None,
                attachments: Vec::new(),
                manner: Manner::default(),
                aside: 0,
            },
            Turn::new(),
        ));
        session.set_limits(other.clone());
        assert_eq!((session.limits.queue, session.limits.context_tokens), (1, limits().context_tokens));
        session.run = None;
        session.set_limits(other);
        assert_eq!(session.limits.context_tokens, 77);
    }

    #[test]
    fn prompts_run_one_at_a_time_in_order() {
        let mut session = session();
        for run in ["a", "b", "c", "d"] {
            session.submit(NOW, prompt(run)).unwrap();
        }
        let full = session.submit(NOW, prompt("e")).unwrap_err();
        assert!(full.is_retryable() && full.message.contains("queue is full"), "{full}");
        for run in ["a", "b", "c", "d"] {
            assert_eq!(session.running().map(RunId::as_str), Some(run));
            session.said(NOW, &run.into(), 0, answer(run), &Toolbox::default());
        }
        assert!(session.running().is_none());
    }

    #[test]
    fn the_same_key_is_the_same_run() {
        let mut session = session();
        let first = session.submit(NOW, prompt("a")).unwrap();
        let again = session.submit(NOW, Submission { run: "z".into(), ..prompt("a") }).unwrap();
        assert_eq!(again, Submitted { repeated: true, ..first });
        let other = Submission { owner: Owner::Credential("bob".into()), run: "b".into(), ..prompt("a") };
        assert!(!session.submit(NOW, other).unwrap().repeated, "a key counts within its owner");
    }

    fn gated() -> Toolbox {
        let offered = vec![PluginName::from("delete"), PluginName::from("echo")];
        Toolbox { gated: vec![offered[0].clone()], offered, timeout: Duration::from_millis(100) }
    }

    fn asks(tools: &[&str]) -> Vec<Delta> {
        let call = |name: &&str| {
            let (id, name) = (CallId::from(*name), PluginName::from(*name));
            Delta::ToolCall(ToolCall { id, name, input: json!({ "of": "model" }) })
        };
        let end = Delta::Finished { stop: Stop::ToolUse, usage: None };
        tools.iter().map(call).chain([end]).collect()
    }

    /// A session in which a call that needs approval waits, and one goes on that does not.
    fn waiting() -> (Session, ApprovalId) {
        let mut session = session();
        session.submit(NOW, prompt("a")).unwrap();
        session.said(NOW, &"a".into(), 0, asks(&["delete", "echo"]), &gated());
        let id = session.pending()[0].id.clone();
        assert_eq!(id, ApprovalId::of(&"a".into(), &"delete".into()));
        (session, id)
    }

    fn by(name: &str) -> Principal {
        Principal::new(name, Scopes::of(&[Scope::Approve]))
    }

    #[test]
    fn who_prompted_a_run_decides_and_who_owns_the_session_does_not() {
        let user = |name: &str| Principal::new(name, Scopes::USER);
        let approve = || Verdict::Approve { input: None };
        let mut session = Session::new(key().in_space(&Owner::Credential("ada".into())), limits());
        // An operator prompts in ada's session.
        session.submit(NOW, prompt("a")).unwrap();
        session.said(NOW, &"a".into(), 0, asks(&["delete", "echo"]), &gated());
        let id = session.pending()[0].id.clone();
        let hers = session.decide(NOW, &id, approve(), &user("ada")).unwrap_err();
        assert_eq!(hers.code, ErrorCode::Forbidden, "she knows of it");
        let strangers = session.decide(NOW, &id, approve(), &user("eve")).unwrap_err();
        assert_eq!(strangers.code, ErrorCode::NotFound);
        let operator = Principal::local().narrowed(Some(Scopes::of(&[Scope::Write])));
        session.decide(NOW, &id, approve(), &operator).unwrap();
        let late = session.decide(NOW, &id, approve(), &user("eve")).unwrap_err();
        assert_eq!(late.code, ErrorCode::NotFound, "not even that it was");
    }

    fn to_make(session: &Session) -> Vec<(String, Value)> {
        let Some((_, Work::Act { calls, .. })) = session.work() else { return Vec::new() };
        calls.into_iter().map(|call| (call.name.to_string(), call.input)).collect()
    }

    fn result(call: &str) -> ToolResult {
        ToolResult { call: call.into(), content: "done".into(), is_error: false }
    }

    #[test]
    fn a_call_waits_for_approval_while_others_are_made() {
        let (mut session, id) = waiting();
        assert_eq!(to_make(&session), [("echo".to_owned(), json!({ "of": "model" }))]);
        session.returned(NOW, &"a".into(), result("delete"));
        assert_eq!(session.pending().len(), 1, "a result of what was not made is none");
        session.returned(NOW, &"a".into(), result("echo"));
        assert_eq!(to_make(&session), [], "the run waits");
        let input = json!({ "of": "ada" });
        let approve = Verdict::Approve { input: Some(input.clone()) };
        let (run, decided) = session.decide(NOW, &id, approve, &by("ada")).unwrap();
        assert_eq!((run.as_str(), decided.by.as_deref()), ("a", Some("ada")));
        assert_eq!(to_make(&session), [("delete".to_owned(), input)]);
        session.returned(NOW, &"a".into(), result("delete"));
        assert!(matches!(session.work(), Some((_, Work::Ask { step: 1 }))));
        let conversation = format!("{:?}", session.conversation(0));
        assert!(conversation.contains("model") && !conversation.contains("ada\""), "{conversation}");
    }

    #[test]
    fn the_first_decision_counts() {
        let (mut session, id) = waiting();
        session.decide(NOW, &id, Verdict::Deny { reason: Some("too bold".into()) }, &by("ada")).unwrap();
        let late = session.decide(NOW, &id, Verdict::Approve { input: None }, &by("bob")).unwrap_err();
        assert_eq!(late.code, ErrorCode::Conflict);
        assert!(!to_make(&session).iter().any(|(name, _)| name == "delete"));
        session.returned(NOW, &"a".into(), result("echo"));
        let told = format!("{:?}", session.conversation(0));
        assert!(told.contains("denied: too bold"), "the model is told: {told}");
        session.said(NOW, &"a".into(), 1, answer("oh"), &gated());
        let late = session.decide(NOW, &id, Verdict::Approve { input: None }, &by("bob")).unwrap_err();
        assert_eq!(late.code, ErrorCode::Conflict, "also when its run is over");
        let unknown =
            session.decide(NOW, &"x".into(), Verdict::Approve { input: None }, &by("bob")).unwrap_err();
        assert_eq!(unknown.code, ErrorCode::NotFound);
    }

    #[test]
    fn who_does_not_decide_in_time_denies_and_the_deadline_outlives_the_daemon() {
        let (mut live, id) = waiting();
        let deadline = NOW.after(gated().timeout);
        let events = live.take().unwrap().events;
        let back = |now| {
            let (head, settings) = (live.head(), Settings::default());
            let mut back = Session::restore(key(), limits(), head, head, settings, events.clone());
            back.recover(now, Recovery::Resume, |_| false);
            back
        };
        let mut early = back(NOW);
        assert_eq!(early.deadline(), Some(deadline));
        assert_eq!(early.pending(), live.pending(), "it waits as before");
        assert_eq!(to_make(&early), [], "what may have been made is not made again");
        early.expire(Timestamp::from_millis(deadline.as_millis() - 1));
        assert_eq!(early.pending().len(), 1);
        let late = early.decide(deadline, &id, Verdict::Approve { input: None }, &by("ada")).unwrap_err();
        assert_eq!(late.code, ErrorCode::Conflict, "its time is over");
        for late in [early, back(deadline)] {
            assert_eq!((late.pending(), late.deadline()), (Vec::new(), None));
            assert!(matches!(late.work(), Some((_, Work::Ask { step: 1 }))), "{:?}", late.work());
            assert!(format!("{:?}", late.conversation(0)).contains("nobody decided within 100 ms"));
        }
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended_also_while_it_waits_and_after_a_restart() {
        let within = |run: &str, millis| {
            let timeout = Some(Duration::from_millis(millis));
            Submission { manner: Manner { timeout, ..Manner::default() }, ..prompt(run) }
        };
        let mut live = session();
        live.submit(NOW, within("a", 100)).unwrap();
        live.submit(NOW, within("b", 50)).unwrap();
        live.submit(NOW, within("c", 200)).unwrap();
        live.submit(NOW, prompt("d")).unwrap();
        live.said(NOW, &"a".into(), 0, vec![Delta::Text("half".into())], &Toolbox::default());
        let (head, log) = (live.head(), live.take().unwrap().events);
        let restart = |now| {
            let settings = Settings::default();
            let mut back = Session::restore(key(), limits(), head, head, settings, log.clone());
            back.recover(now, Recovery::Resume, |_| false);
            back
        };
        let timed_out = |session: &mut Session| -> Vec<String> {
            let events = session.take().map(|batch| batch.events).unwrap_or_default();
            let is_end = |logged: &&Logged| {
                matches!(logged.event, Event::Ended { outcome: Outcome::Aborted(Cause::TimedOut), .. })
            };
            events.iter().filter(is_end).map(|logged| logged.run.as_ref().unwrap().to_string()).collect()
        };
        assert_eq!(live.deadline(), Some(NOW.after(Duration::from_millis(50))));
        let at = |millis| NOW.after(Duration::from_millis(millis));
        live.time_out(at(49), NONE);
        assert!(timed_out(&mut live).is_empty() && !live.is_overdue(at(50)) && live.is_overdue(at(100)));
        live.time_out(at(50), NONE);
        assert_eq!((timed_out(&mut live), live.running()), (vec!["b".to_owned()], Some(&"a".into())));
        live.time_out(at(100), NONE);
        assert_eq!((timed_out(&mut live), live.running()), (vec!["a".to_owned()], Some(&"c".into())));
        for (millis, ended, running) in [
            (10, vec![], "a"),
            (60, vec!["b"], "a"),
            (150, vec!["b", "a"], "c"),
            (900, vec!["b", "c", "a"], "d"),
        ] {
            let mut back = restart(at(millis));
            assert_eq!(back.running(), Some(&running.into()), "after {millis} ms");
            assert_eq!(timed_out(&mut back), ended, "after {millis} ms");
        }
        let mut stopping = restart(at(10));
        stopping.drain();
        stopping.time_out(at(900), NONE);
        assert_eq!(timed_out(&mut stopping).len(), 0, "the next start finds it");
    }

    #[test]
    fn a_daemon_that_stops_decides_nothing() {
        let (mut session, id) = waiting();
        session.drain();
        let refused = session.decide(NOW, &id, Verdict::Approve { input: None }, &by("ada")).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable);
        session.expire(Timestamp::from_millis(u64::MAX));
        assert_eq!(session.pending().len(), 1);
    }

    #[test]
    fn whoever_ends_the_run_withdraws_what_waits() {
        let ends: [fn(&mut Session); 3] = [
            |session| assert!(session.abort(NOW, None, NONE).is_some()),
            |session| session.reset(NOW, NONE),
            |session| session.recover(NOW, Recovery::Interrupt, |_| true),
        ];
        for end in ends {
            let (mut session, id) = waiting();
            session.take();
            end(&mut session);
            let batch = session.take().unwrap();
            let events = events(&batch);
            let withdrawn = |event: &&Event| {
                matches!(
                    event,
                    Event::ApprovalDecided(Decided { decision: Decision::Withdrawn, by: None, .. })
                )
            };
            assert!(withdrawn(&events[0]) && matches!(events[1], Event::Ended { .. }), "{events:?}");
            assert!(session.pending().is_empty() && session.deadline().is_none());
            assert!(session.decide(NOW, &id, Verdict::Approve { input: None }, &by("ada")).is_err());
        }
    }

    #[test]
    fn prompts_wait_up_to_a_number_of_bytes() {
        let mut session = Session::new(key(), Limits { queue: 64, ..limits() });
        let large = |run: &str| Submission { content: "x".repeat(QUEUE_BYTES_MAX - 1), ..prompt(run) };
        session.submit(NOW, large("running")).unwrap();
        session.submit(NOW, large("waits")).unwrap();
        let error = session.submit(NOW, Submission { content: "xx".into(), ..prompt("c") }).unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains("queue is full"), "{}", error.message);
        session.abort(NOW, Some(&"waits".into()), NONE);
        let huge = Submission { content: "x".repeat(QUEUE_BYTES_MAX + 1), ..prompt("d") };
        session.submit(NOW, huge).expect("one may always wait");
    }

    #[test]
    fn what_prompts_bring_along_counts_and_too_much_is_refused_before_it_is_taken() {
        let mut session = Session::new(key(), Limits { queue: 64, ..limits() });
        let large = |run: &str| Submission { attachments: vec![image(9 << 20)], ..prompt(run) };
        session.submit(NOW, large("running")).unwrap();
        session.submit(NOW, large("waits")).unwrap();
        let error = session.submit(NOW, large("c")).unwrap_err();
        assert!(error.code == ErrorCode::Unavailable && error.message.contains("queue is full"), "{error}");
        let head = session.head();
        let many = Submission { attachments: vec![image(9 << 20); 2], ..prompt("d") };
        assert_eq!(session.submit(NOW, many).unwrap_err().code, ErrorCode::TooLarge);
        assert_eq!(session.head(), head);
    }

    #[test]
    fn a_session_holds_bounded_bytes_of_past_images_and_the_model_is_told_of_the_others() {
        let mut session = Session::new(key(), Limits { episodic_turns: 9, ..limits() });
        for run in ["a", "b", "c", "d"] {
            let attachments = vec![image(1_500_000)];
            session.submit(NOW, Submission { attachments, ..prompt(run) }).unwrap();
            session.said(NOW, &run.into(), 0, answer("nice"), &Toolbox::default());
            let held: usize =
                prompts(&session).map(|prompt| attachment::held_bytes(&prompt.attachments)).sum();
            assert!(held <= context::PAST_IMAGE_BYTES_MAX + 64, "{held}");
        }
        session.submit(NOW, Submission { manner: Some(Thinking::High).into(), ..prompt("e") }).unwrap();
        assert_eq!(session.thinking(), Some(Thinking::High));
        let seen = session.conversation(0);
        let shown: Vec<bool> = seen
            .iter()
            .filter_map(|message| match message {
                ChatMessage::User { attachments, .. } => attachments.first(),
                _ => None,
            })
            .map(|attachment| !attachment.data().is_empty())
            .collect();
        assert_eq!(shown, [false, false, true, true], "{seen:?}");
    }

    #[test]
    fn what_the_model_will_not_see_is_not_kept() {
        let mut session = session();
        let mut say = |run: &str, content: String, said: Option<&str>| {
            session.submit(NOW, Submission { content, ..prompt(run) }).unwrap();
            match said {
                Some(text) => session.said(NOW, &run.into(), 0, answer(text), &Toolbox::default()),
                None => session.failed(NOW, &run.into(), 0, ErrorCode::Provider.error("x"), NONE),
            }
            let bytes: usize = prompts(&session).map(|prompt| prompt.content.len()).sum();
            let runs: Vec<String> = prompts(&session).map(|prompt| prompt.run.to_string()).collect();
            (runs.join(" "), bytes)
        };
        assert_eq!(say("a", "short".into(), Some("yes")), ("a".into(), 5));
        assert_eq!(say("b", "x".repeat(1_000_000), None), ("a b".into(), 5), "a failed run costs no other");
        assert_eq!(say("c", "x".repeat(1_000_000), Some("yes")), ("b".into(), 0), "it never fits");
        assert_eq!(say("d", "again".into(), Some("yes")), ("b d".into(), 5));
    }

    #[test]
    fn abort_is_heard_in_the_queue_and_under_way_and_the_next_begins() {
        let mut session = session();
        for run in ["a", "b", "c"] {
            session.submit(NOW, prompt(run)).unwrap();
        }
        session.said(NOW, &"a".into(), 0, vec![Delta::Text("half".into())], &Toolbox::default());
        assert_eq!(session.abort(NOW, Some(&"b".into()), NONE), Some("b".into()));
        assert_eq!(session.abort(NOW, None, NONE), Some("a".into()));
        assert_eq!(session.running(), Some(&"c".into()));
        assert_eq!(session.abort(NOW, Some(&"b".into()), NONE), None);
        session.said(NOW, &"a".into(), 0, answer("too late"), &Toolbox::default());
        let batch = session.take().unwrap();
        let ends = events(&batch).iter().filter(|e| matches!(e, Event::Ended { .. })).count();
        assert_eq!(ends, 2);
        let seen = session.conversation(0);
        assert!(matches!(&seen[1], ChatMessage::Assistant { text, .. } if text == "half"), "{seen:?}");
    }

    #[test]
    fn turns_with_an_answer_and_turns_without_are_bounded_each_by_themselves() {
        let mut session = session();
        for run in ["a", "b", "c"] {
            session.submit(NOW, prompt(run)).unwrap();
            session.said(NOW, &run.into(), 0, answer(run), &Toolbox::default());
        }
        for run in ["f1", "f2", "f3", "f4"] {
            session.submit(NOW, prompt(run)).unwrap();
            session.failed(NOW, &run.into(), 0, ErrorCode::Provider.error("away"), NONE);
        }
        let past: Vec<&str> = prompts(&session).map(|prompt| prompt.run.as_str()).collect();
        assert_eq!(past, ["b", "c", "f3", "f4"]);
        session.submit(NOW, prompt("z")).unwrap();
        let said = |role: &ChatMessage| matches!(role, ChatMessage::Assistant { .. });
        assert_eq!(session.conversation(0).iter().filter(|message| said(message)).count(), 2);
    }

    #[test]
    fn a_cut_off_run_is_resumed_or_ends_by_policy_and_numbers_are_never_reused() {
        let mut before = session();
        before.submit(NOW, prompt("a")).unwrap();
        before.submit(NOW, prompt("b")).unwrap();
        let batch = before.take().unwrap();
        assert!(batch.durable && batch.reserve == Some(Seq(3 + SEQ_RESERVE)));
        before.said(NOW, &"a".into(), 0, vec![Delta::Text("half".into())], &Toolbox::default());
        let lost = before.take().unwrap();
        assert!(!lost.durable, "text does not wait for the disk");

        for recovery in [Recovery::Resume, Recovery::Interrupt] {
            let mut after = Session::restore(
                key(),
                limits(),
                Seq(3),
                Seq(3 + SEQ_RESERVE),
                Settings::default(),
                batch.events.clone(),
            );
            after.recover(NOW, recovery, |_| false);
            let written = after.take().unwrap();
            assert_eq!(written.events[0].first_seq, Seq(4), "no number is missing");
            assert!(written.events[0].seq > lost.events[0].seq, "and none is used twice");
            match recovery {
                Recovery::Resume => {
                    assert_eq!(events(&written), [&Event::Restarted]);
                    assert_eq!(after.work(), Some((&"a".into(), Work::Ask { step: 0 })));
                }
                Recovery::Interrupt => {
                    assert!(matches!(events(&written)[..], [Event::Ended { .. }, Event::Started]));
                    assert_eq!(after.running(), Some(&"b".into()));
                }
            }
        }
    }

    #[test]
    fn what_is_forgotten_what_stays_and_what_is_said_without_a_prompt() {
        let mut session = session();
        for run in ["a", "b"] {
            session.submit(NOW, prompt(run)).unwrap();
            session.said(NOW, &run.into(), 0, answer(run), &Toolbox::default());
        }
        let first = session.past[0].ended;
        session.inject(NOW, "inject-1".into(), "a note".into());
        session.configure(NOW, &Patch { label: Some(Some("x".into())), ..Patch::default() }).unwrap();
        let head = session.head();
        session.configure(NOW, &Patch { label: Some(Some("x".into())), ..Patch::default() }).unwrap();
        assert_eq!(session.head(), head, "what changes nothing leaves no trace");
        session.compact(NOW, first);
        session.submit(NOW, prompt("c")).unwrap();
        let seen = session.conversation(0);
        let users: Vec<&str> = seen
            .iter()
            .filter_map(|m| if let ChatMessage::User { text, .. } = m { Some(&**text) } else { None })
            .collect();
        assert_eq!(users, ["prompt b", context::NO_PROMPT, "prompt c"]);
        session.submit(NOW, prompt("d")).unwrap();
        let patch = Patch { thinking: Some(Some(Thinking::Low)), ..Patch::default() };
        session.configure(NOW, &patch).unwrap();
        assert_eq!(session.thinking(), Some(Thinking::Low), "as the session is set");
        session.reset(NOW, NONE);
        assert!(session.is_idle() && session.past.is_empty());
        assert_eq!(session.settings().label.as_deref(), Some("x"));
        let events = session.take().unwrap().events;
        let ends = events
            .iter()
            .filter(|logged| matches!(logged.event, Event::Ended { outcome: Outcome::Aborted(_), .. }));
        assert_eq!(ends.count(), 2, "the run under way and the one that waited");
        assert_eq!(events.last().unwrap().event, Event::Cleared(Forgotten::Conversation));
    }

    #[test]
    fn settings_are_checked_and_bounded() {
        let mut session = session();
        let label = |text: &str| Patch { label: Some(Some(text.into())), ..Patch::default() };
        for bad in ["", " ", &"x".repeat(513)] {
            let error = session.configure(NOW, &label(bad)).unwrap_err();
            assert!(error.message.starts_with("invalid label"), "{error}");
        }
        let huge =
            Patch { display: [("x".to_owned(), "y".repeat(20_000).into())].into(), ..Patch::default() };
        assert_eq!(session.configure(NOW, &huge).unwrap_err().code, ErrorCode::InvalidRequest);
        assert!(session.is_new());
        session.configure(NOW, &Patch::default()).unwrap();
        assert!(!session.is_new(), "a session can begin with its settings");
    }

    #[test]
    fn a_run_of_a_lane_begins_when_its_turn_has_come_there_and_in_the_session() {
        let lane = |run: &str| {
            let manner = Manner { lane: Some("l".into()), ..Manner::default() };
            Submission { manner, ..prompt(run) }
        };
        let mut session = Session::new(key(), Limits { queue: 9, ..limits() });
        session.submit(NOW, lane("a")).unwrap();
        session.submit(NOW, prompt("b")).unwrap();
        session.submit(NOW, lane("c")).unwrap();
        assert_eq!((session.running(), session.ahead(&"c".into())), (None, 1), "nothing overtakes it");
        session.admit(NOW, &"c".into());
        assert_eq!(session.running(), None, "the queue keeps its order");
        session.admit(NOW, &"a".into());
        assert_eq!(session.work(), Some((&"a".into(), Work::Ask { step: 0 })));
        let before = session.take().unwrap().events;
        session.said(NOW, &"a".into(), 0, answer("a"), &Toolbox::default());
        session.said(NOW, &"b".into(), 0, answer("b"), &Toolbox::default());
        assert_eq!(session.running(), Some(&"c".into()), "its turn came long ago");

        // Cut off, each waits for its lane anew.
        let mut after = Session::restore(key(), limits(), Seq(4), Seq(4), Settings::default(), before);
        after.recover(NOW, Recovery::Resume, |_| false);
        assert_eq!((after.running(), after.work()), (Some(&"a".into()), None));
        let waiting: Vec<&str> = after.in_lanes().map(|(run, ..)| run.as_str()).collect();
        assert_eq!(waiting, ["a", "c"]);
        after.admit(NOW, &"a".into());
        assert_eq!(after.work(), Some((&"a".into(), Work::Ask { step: 0 })));
        assert_eq!(after.abort(NOW, Some(&"c".into()), NONE), Some("c".into()), "also while it waits");
        after.admit(NOW, &"c".into());
        after.abort(NOW, None, NONE);
        assert_eq!(after.running(), Some(&"b".into()));
        assert!(after.admitted.is_empty() && after.in_lanes().next().is_none());
    }

    #[test]
    fn what_waits_is_set_aside_and_begins_in_its_turn_once_it_is_given_back() {
        let mut session = Session::new(key(), Limits { queue: 9, ..limits() });
        let with = |run: &str| Submission { attachments: vec![image(1000)], ..prompt(run) };
        for run in ["a", "b", "c", "d"] {
            session.submit(NOW, with(run)).unwrap();
        }
        let log = session.take().unwrap().events;
        let bytes = session.held_bytes(&"b".into()).unwrap();
        for run in ["a", "b", "c"] {
            session.set_aside(&run.into());
        }
        assert_eq!(session.held_bytes(&"a".into()), None, "what is under way stays");
        assert!(session.held_bytes(&"b".into()).unwrap() < 50 && bytes > 1000);
        assert_eq!(session.queue[0].bytes(), bytes, "it counts as before");
        assert_eq!(session.wanted(), None, "its turn has not come");

        session.said(NOW, &"a".into(), 0, answer("a"), &Toolbox::default());
        assert_eq!((session.running(), session.queued()), (None, 3));
        assert_eq!(session.wanted(), Some((&"b".into(), log[2].seq)));
        let submitted = with("b");
        let again = session.submit(NOW, with("b")).unwrap();
        assert!(again.repeated && session.has(&submitted));
        session.give_back(NOW, &"b".into(), Ok((submitted.content, submitted.attachments)));
        let told = session.conversation(0);
        let Some(ChatMessage::User { text, attachments }) = told.last() else { panic!("{told:?}") };
        assert_eq!((&**text, attachments[0].data().len()), ("prompt b", 1000));

        session.abort(NOW, None, NONE);
        assert_eq!(session.wanted().map(|(run, _)| run.clone()), Some("c".into()));
        session.give_back(NOW, &"c".into(), Err(ErrorCode::Internal.error("it is damaged")));
        assert_eq!(session.running(), Some(&"d".into()), "the next has its turn");
        session.drain();
        assert_eq!(session.wanted(), None);

        // Read back without what they say, they wait as well.
        let mut after = Session::restore(key(), limits(), Seq(5), Seq(5), Settings::default(), log);
        after.is_aside(&"b".into(), bytes);
        after.recover(NOW, Recovery::Interrupt, |_| false);
        assert_eq!((after.running(), after.wanted().is_some()), (None, true));
        assert_eq!(after.abort(NOW, Some(&"b".into()), NONE), Some("b".into()));
        assert_eq!(after.running(), Some(&"c".into()));
    }

    #[test]
    fn a_draining_session_begins_nothing() {
        let mut session = session();
        session.submit(NOW, prompt("a")).unwrap();
        session.submit(NOW, prompt("b")).unwrap();
        session.drain();
        session.said(NOW, &"a".into(), 0, answer("done"), &Toolbox::default());
        assert_eq!((session.running(), session.queued()), (None, 1));
        assert_eq!(session.submit(NOW, prompt("c")).unwrap_err().code, ErrorCode::Unavailable);
    }

    proptest! {
        /// Whatever happens and wherever the process dies, the session read back from what was
        /// written is the session that wrote it, and every accepted prompt ends at most once.
        #[test]
        fn the_state_is_the_fold_of_the_log(script in proptest::collection::vec((0u8..12, 0u8..6), 0..80)) {
            let mut live = session();
            let mut log: Vec<Logged> = Vec::new();
            let mut reserved = Seq(0);
            for (move_, n) in script {
                let run = RunId::new(format!("r{n}"));
                match move_ {
                    // A run is submitted once, unless a kill took the submission with it.
                    0 | 1 if !log.iter().chain(&live.unwritten).any(|l| l.run.as_ref() == Some(&run)) => {
                        let _ = live.submit(NOW, prompt(run.as_str()));
                    }
                    2 => { live.abort(NOW, (n > 2).then_some(&run), NONE); }
                    3 => live.said(NOW, &run, 0, vec![Delta::Text("t".into())], &Toolbox::default()),
                    4 => live.said(NOW, &run, 0, answer("t"), &Toolbox::default()),
                    5 => live.failed(NOW, &run, 0, ErrorCode::Provider.error("x"), NONE),
                    6 if n == 0 => live.clear(NOW),
                    6 if n == 1 => live.reset(NOW, NONE),
                    8 => live.compact(NOW, Seq(live.head().0.saturating_sub(u64::from(n) * 5))),
                    9 if n > 1 => {
                        live.inject(NOW, RunId::new(format!("i{}", live.head())), format!("note {n}"));
                    }
                    10 => {
                        let label = Some((n > 0).then(|| format!("{n}")));
                        live.configure(NOW, &Patch { label, ..Patch::default() }).unwrap();
                    }
                    11 => {
                        // What waits is out of memory and back again.
                        let said = |run: &RunId| prompt(run.as_str());
                        live.set_aside(&run);
                        live.abort(NOW, None, NONE);
                        while let Some(wanted) = live.wanted().map(|(run, _)| run.clone()) {
                            let Submission { content, attachments, .. } = said(&wanted);
                            live.give_back(NOW, &wanted, Ok((content, attachments)));
                        }
                        if live.held_bytes(&run).is_some() {
                            let Submission { content, attachments, .. } = said(&run);
                            live.give_back(NOW, &run, Ok((content, attachments)));
                        }
                    }
                    7 => {
                        // Killed: what was not written is gone.
                        let head = log.last().map_or(Seq(0), |l| l.seq);
                        live = Session::restore(
                            key(), limits(), head, reserved, Settings::default(), log.clone());
                        live.recover(NOW, Recovery::Resume, |_| false);
                    }
                    _ => {}
                }
                if n != 5 && let Some(batch) = live.take() {
                    reserved = batch.reserve.unwrap_or(reserved);
                    log.extend(batch.events);
                }
            }
            if let Some(batch) = live.take() {
                log.extend(batch.events);
            }
            let mut next = Seq(1);
            for logged in &log {
                prop_assert_eq!(logged.first_seq, next, "no gap, no repeat");
                prop_assert!(logged.seq >= logged.first_seq);
                next = logged.seq.next();
            }
            for n in 0..6 {
                let run = RunId::new(format!("r{n}"));
                let ends = log.iter()
                    .filter(|l| l.run.as_ref() == Some(&run) && matches!(l.event, Event::Ended { .. }))
                    .count();
                prop_assert!(ends <= 1);
            }
            let folded = Session::restore(
                key(), limits(), live.head(), reserved, Settings::default(), log);
            prop_assert_eq!(folded.running(), live.running());
            prop_assert_eq!(folded.work(), live.work());
            prop_assert_eq!(&folded.queue, &live.queue);
            prop_assert_eq!(&folded.past, &live.past);
            prop_assert_eq!(&folded.settings, &live.settings);
        }
    }
}
