//! One conversation: its queue of prompts, its run, its place in the event log.
//!
//! ```text
//!   submit ---> queue ---(turn comes: Started)---> run ---(Ended)---> past ---(Cleared)---> gone
//!                 |                                 ^
//!                 +-----------(abort: Ended)        | events of the turn (see `turn`)
//! ```
//!
//! Queue, run and past are one state, and the state is the fold of the event log: every change is an
//! [`Event`] that gets the next number, is applied, and waits to be written ([`Session::take`]).
//! Whoever drives this writes the events first and only then lets anything of them be seen or
//! done; what to do is [`Session::work`], which follows from the state. There is no clock, no
//! mailbox and no store in here, so crashes between any two steps can be played through.
//!
//! What a prompt says need not be in memory while it waits: once it is in the event log it can be set aside
//! ([`Session::set_aside`]), and when its turn comes it is wanted back ([`Session::wanted`]).

mod approvals;
mod changes;
mod compaction;
mod exchange;
mod fold;
#[cfg(test)]
mod prefix;
mod prompt;
mod queue;
mod run;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::conversation::event::{Event, Logged, Outcome};
use crate::conversation::turn::Turn;
use crate::conversation::window::Window;
use crate::error::ErrorCode;
use crate::ids::{Owner, PluginName, RunId, Seq, SessionKey};
use crate::prompt::settings::Settings;
use crate::provider::usage::Usage;
use crate::time::Timestamp;
use fold::Past;
use prompt::Prompt;
pub use prompt::{QUEUE_BYTES_MAX, Submission, Submitted, prompt_bytes};

/// How many numbers are reserved ahead, durably. After a power loss numbering goes on above the
/// reservation, so that no number a client saw is used twice.
pub const SEQ_RESERVE: u64 = 8192;

/// What becomes of a run the daemon's end cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It goes on from its last finished step.
    Resume,
    /// It ends as interrupted.
    Interrupt,
}

/// The bounds of a session.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Prompts that may wait.
    pub queue: usize,
    /// The newest past turns, which stay word for word for as long as they can; of those that ended without an
    /// answer no more than so many are kept.
    pub episodic_turns: usize,
    /// Estimated tokens of all the model sees.
    pub context_tokens: usize,
}

/// How many turns there are in the window at most, for each of the newest.
const TURNS_FACTOR: usize = 20;

impl Limits {
    /// How many past turns the model sees at most, before the oldest are summed up.
    pub fn turns(&self) -> usize {
        self.episodic_turns.saturating_mul(TURNS_FACTOR)
    }
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
    /// What of the past the model sees.
    window: Window,
    queue: VecDeque<Prompt>,
    run: Option<(Prompt, Turn)>,
    settings: Settings,
    /// When the run under way began, and with which number; 0 where none is.
    began: Timestamp,
    began_at: Seq,
    /// Runs of lanes whose turn has come there. In nobody's event log: after a restart they wait anew.
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
            window: Window::default(),
            queue: VecDeque::new(),
            run: None,
            began: Timestamp::default(),
            began_at: Seq(0),
            admitted: Vec::new(),
            draining: false,
            unwritten: Vec::new(),
        }
    }

    /// A session read back: `events` are the last ended runs that `window` shows and all that have not ended;
    /// `head` is the last number in the event log, `reserved` the high-water mark, `settings` what it is set to.
    pub fn restore(
        key: SessionKey,
        limits: Limits,
        head: Seq,
        reserved: Seq,
        settings: Settings,
        window: Window,
        events: Vec<Logged>,
    ) -> Self {
        let mut session = Self { head, reserved, settings, window, ..Self::new(key, limits) };
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
            (Some(_), Recovery::Interrupt) => {
                let why = ErrorCode::Interrupted.error("interrupted: the daemon was restarted");
                self.finish(now, Outcome::Failed(why), Usage::default());
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

    /// How many tokens its model sees, estimated: from now on until its run ends, or other bounds are set.
    pub fn set_context_tokens(&mut self, tokens: usize) {
        self.limits.context_tokens = tokens;
    }

    /// How many tokens its model sees, estimated.
    pub fn context_tokens(&self) -> usize {
        self.limits.context_tokens
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

    /// The last number that was read back or taken for writing.
    pub fn taken(&self) -> Seq {
        self.unwritten.first().map_or(self.head, |logged| Seq(logged.first_seq.0 - 1))
    }

    /// Whether nothing is under way or queued.
    pub fn is_idle(&self) -> bool {
        self.run.is_none() && self.queue.is_empty()
    }

    /// Whether all that was decided has been taken for writing.
    pub fn is_taken(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Whether nothing ever happened in it: it is in nobody's event log.
    pub fn is_new(&self) -> bool {
        self.head == Seq(0)
    }

    /// From here on nothing new is begun: the step under way finishes, the rest waits in the event log
    /// for the next start.
    pub fn drain(&mut self) {
        self.draining = true;
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
}
