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
//! ```text
//!   decided ---(all before it is in the log, number reserved: Session::show)---> shown --+
//!      |                                                                                 |
//!      +------------------(anything but text: Session::take)------> written <--(a page)--+
//! ```
//!
//! Only the text of a step under way may be seen before it is in the log: a crash makes it void in any case, since
//! the step is said anew. It gathers on a page, which is written when it is full, when time has come, or with the
//! next event that is no text. The numbers it is seen with were reserved durably before, so none is given twice.
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
use crate::conversation::outbox::{ChannelAnswer, ToSay};
use crate::conversation::turn::{Turn, Work};
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

/// How much text is shown at most that is not taken for writing, in bytes as [`Event::bytes`] counts them. Those are
/// far fewer pieces than are reserved, so that there are numbers while more are being reserved.
pub const PAGE_BYTES: usize = 32 * 1024;

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
    /// How many of them were shown before, the first ones.
    pub shown: usize,
    /// Whether it must be on disk before the others are seen.
    pub durable: bool,
    /// The new high-water mark of numbers, where it moves.
    pub reserve: Option<Seq>,
    /// What is said over channels with them.
    pub to_say: Vec<ToSay>,
}

impl Batch {
    /// Those that may be seen only once they are written.
    pub fn unseen(&self) -> &[Logged] {
        &self.events[self.shown..]
    }
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
    /// Up to where numbers are reserved durably, and up to where once the last batch is written.
    reserved: Seq,
    reserving: Seq,
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
    /// What was not taken for writing, in order; the first ones are shown, of so many bytes.
    unwritten: Vec<Logged>,
    shown: usize,
    shown_bytes: usize,
    /// What is said over channels with them.
    to_say: Vec<ToSay>,
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
            reserving: Seq(0),
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
            shown: 0,
            shown_bytes: 0,
            to_say: Vec::new(),
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
        let mut session =
            Self { head, reserved, reserving: reserved, settings, window, ..Self::new(key, limits) };
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
                let why = match turn.work() {
                    // What was shown last may not have been written.
                    Some(Work::Ask { .. }) if self.skipped => {
                        "interrupted: the session had to begin anew from what was stored; the last words of the answer may \
                         be missing"
                    }
                    _ => "interrupted: the session had to begin anew from what was stored",
                };
                let why = ErrorCode::Interrupted.error(why);
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

    /// Whether something was decided that is neither shown nor taken for writing.
    pub fn has_unseen(&self) -> bool {
        self.unwritten.len() > self.shown
    }

    /// Shows what may be seen at once: text, while there is room on the page. All that was taken for writing
    /// and not shown before must be written. Gives how many pieces that are, the last of the [`page`](Self::page).
    pub fn show(&mut self) -> usize {
        let before = self.shown;
        while let Some(next) = self.unwritten.get(self.shown)
            && next.event.streamed().is_some()
            && next.seq <= self.reserved
            && !self.is_page_full()
        {
            self.shown += 1;
            self.shown_bytes += next.event.bytes();
        }
        self.shown - before
    }

    /// What is shown and not taken for writing.
    pub fn page(&self) -> &[Logged] {
        &self.unwritten[..self.shown]
    }

    /// Whether nothing more can be shown before the page is taken for writing.
    pub fn is_page_full(&self) -> bool {
        self.shown_bytes >= PAGE_BYTES
    }

    /// What has to be written, as one unit; none where nothing has.
    pub fn take(&mut self) -> Option<Batch> {
        let last = self.unwritten.last()?.seq;
        let mut durable = self.unwritten.iter().any(|logged| logged.event.streamed().is_none());
        let mut reserve = None;
        let is_due = (durable || self.shown > 0) && last.0 + SEQ_RESERVE / 2 > self.reserving.0;
        if last > self.reserving || is_due {
            durable = true;
            self.reserving = Seq(last.0 + SEQ_RESERVE);
            reserve = Some(self.reserving);
        }
        self.shown_bytes = 0;
        let shown = std::mem::take(&mut self.shown);
        let to_say = std::mem::take(&mut self.to_say);
        Some(Batch { events: std::mem::take(&mut self.unwritten), shown, durable, reserve, to_say })
    }

    /// Numbers up to this one are reserved: the batch that says so is written.
    pub fn reserved(&mut self, up_to: Seq) {
        self.reserved = self.reserved.max(up_to);
    }

    /// Numbers, applies and keeps an event for writing.
    fn emit(&mut self, now: Timestamp, run: Option<RunId>, event: Event) -> Seq {
        let first_seq = self.head.next();
        let before = if std::mem::take(&mut self.skipped) { self.reserved } else { self.head };
        let seq = Seq(before.0 + event.numbers());
        self.head = seq;
        let logged = Logged { first_seq, seq, run, at: now, event };
        self.to_say.extend(self.says(&logged));
        self.apply(&logged);
        self.unwritten.push(logged);
        seq
    }

    /// What an event that is about to happen says over the channel that its prompt came over.
    fn says(&self, logged: &Logged) -> Option<ToSay> {
        let run = logged.run.as_ref()?;
        if !matches!(logged.event, Event::Ended { .. } | Event::ApprovalAsked(_)) {
            return None;
        }
        let prompt = self.open().find(|prompt| prompt.run == *run)?;
        let to = prompt.run_options.answer_to.as_deref()?.clone();
        let answer = match &logged.event {
            Event::Ended { outcome, usage } => {
                let under_way = self.run.as_ref().filter(|(prompt, _)| prompt.run == *run);
                let turn = under_way.map(|(_, turn)| turn);
                ChannelAnswer::of_run(run, self.key.local(), turn, outcome, *usage)
            }
            Event::ApprovalAsked(asked) => ChannelAnswer::of_approval(run, self.key.local(), asked),
            _ => return None,
        };
        Some(ToSay { to, answer })
    }
}
