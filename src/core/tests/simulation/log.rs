//! The log as a session knows it: what the store promises, and what a crash leaves of it.
//!
//! A unit is taken whole or not at all. A durable unit takes everything before it to the disk; one
//! that is only text survives the end of the process, but a power loss may take any number of the
//! last ones. A unit that was refused by a failing disk may still come back at the next crash, as
//! long as nothing was written after it. Text may be shown before it is in the log: it is kept beside it until a unit
//! brings it, and gone with whoever showed it.

use std::mem;

use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::conversation::session::Batch;
use clawmux_core::conversation::window::Window;
use clawmux_core::ids::{Owner, RunId, Seq};
use clawmux_core::prompt::settings::Settings;

use crate::book::{Book, Stage};
use crate::dice::Dice;
use crate::rules::{self, Check};

/// One session's log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    events: Vec<Logged>,
    book: Book,
    reserved: Seq,
    /// How many events are on the disk.
    synced: usize,
    /// Where the units after that end.
    ends: Vec<usize>,
    /// Whether it was written to since it was opened.
    current: bool,
    /// A unit that was refused, but may come back.
    refused: Option<Batch>,
    /// What was shown and is not in it yet.
    shown: Vec<Logged>,
}

/// What a session is read back from.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) events: Vec<Logged>,
    pub(crate) head: Seq,
    pub(crate) reserved: Seq,
    pub(crate) settings: Settings,
    pub(crate) window: Window,
}

/// Why a unit is not in the log.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The disk failed.
    Disk,
    /// The key stands for another run.
    Conflict,
    /// It does not follow.
    Order(String),
}

impl Log {
    pub(crate) fn events(&self) -> &[Logged] {
        &self.events
    }

    /// What a power loss leaves in any case.
    pub(crate) fn durable(&self) -> &[Logged] {
        &self.events[..self.synced]
    }

    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    pub(crate) fn reserved(&self) -> Seq {
        self.reserved
    }

    pub(crate) fn head(&self) -> Seq {
        self.events.last().map_or(Seq(0), |logged| logged.seq)
    }

    /// What covers any of these numbers, also of what is only shown.
    pub(crate) fn between(&self, first: Seq, last: Seq) -> Vec<&Logged> {
        let within = |events: &'_ [Logged]| {
            let from = events.partition_point(|logged| logged.seq < first);
            let to = events.partition_point(|logged| logged.first_seq <= last);
            from.min(to)..to
        };
        let events = &self.events[within(&self.events)];
        events.iter().chain(&self.shown[within(&self.shown)]).collect()
    }

    /// A piece of text is shown.
    pub(crate) fn show(&mut self, logged: &Logged) -> Check {
        rules::only_text_is_shown_before_it_is_written(logged)?;
        let head = self.shown.last().map_or(self.head(), |logged| logged.seq);
        // What is in a unit on its way comes before it.
        rules::what_is_shown_is_ahead_of_the_log(head, logged)?;
        self.shown.push(logged.clone());
        Ok(())
    }

    /// Whoever showed it is gone: gives what nobody will write any more.
    pub(crate) fn forget_shown(&mut self) -> Vec<Logged> {
        mem::take(&mut self.shown)
    }

    /// Where a run with this key is.
    pub(crate) fn find(&self, owner: &Owner, key: &str) -> Option<(RunId, Seq)> {
        self.book.of_key(owner, key).map(|run| (run.id.clone(), run.seq))
    }

    /// Writes a unit, whole.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Check<Result<(), Refusal>> {
        if let Err(refusal) = self.check(batch) {
            return Ok(Err(refusal));
        }
        self.refused = None;
        self.apply(batch)?;
        Ok(Ok(()))
    }

    /// The disk fails while this is written.
    pub(crate) fn fail(&mut self, batch: &Batch) -> Result<(), Refusal> {
        self.refused = self.check(batch).is_ok().then(|| batch.clone());
        Err(Refusal::Disk)
    }

    /// The disk takes what it has so far, because of another session for instance.
    pub(crate) fn sync(&mut self) {
        self.synced = self.events.len();
        self.ends.clear();
    }

    fn apply(&mut self, batch: &Batch) -> Check {
        rules::a_reserve_is_durable(batch)?;
        let mut head = self.head();
        let last = batch.events.last().map_or(head, |logged| logged.seq);
        let durable = batch.durable || batch.reserve.is_some() || last > self.reserved;
        for logged in &batch.events {
            rules::numbers_have_no_gap(head, logged)?;
            head = logged.seq;
            self.book.read(logged)?;
            self.events.push(logged.clone());
        }
        self.shown.retain(|logged| logged.seq > head);
        self.reserved = self.reserved.max(batch.reserve.unwrap_or_default());
        self.current = true;
        self.ends.push(self.events.len());
        if durable {
            self.sync();
        }
        Ok(())
    }

    fn check(&self, batch: &Batch) -> Result<(), Refusal> {
        let Some(first) = batch.events.first() else { return Err(Refusal::Order("an empty unit".into())) };
        let (head, top) = (self.head(), self.head().max(self.reserved));
        // After a start numbers above the head may have been seen, where a run was under way.
        let may_be_seen = !self.current && self.book.is_open();
        if first.first_seq != head.next() || (may_be_seen && first.seq <= top) {
            return Err(Refusal::Order(format!(
                "{}..={} does not follow {head}, reserved up to {top}",
                first.first_seq, first.seq
            )));
        }
        let mut keys = Vec::new();
        let taken = batch.events.iter().any(|logged| match &logged.event {
            Event::Prompted { owner, idempotency_key: Some(key), .. } => {
                let again = keys.contains(&(owner, key)) || self.find(owner, key).is_some();
                keys.push((owner, key));
                again
            }
            _ => false,
        });
        if taken { Err(Refusal::Conflict) } else { Ok(()) }
    }

    /// The process is gone. What was refused may turn out to be there.
    pub(crate) fn crash(&mut self, dice: &mut Dice) -> Check {
        if let Some(batch) = self.refused.take()
            && dice.one_in(2)
        {
            self.apply(&batch)?;
        }
        self.current = false;
        Ok(())
    }

    /// The power is gone too: gives what went with it.
    pub(crate) fn lose_power(&mut self, dice: &mut Dice) -> Check<Vec<Logged>> {
        let kept = dice.below(self.ends.len() + 1);
        let events = if kept == 0 { self.synced } else { self.ends[kept - 1] };
        let lost = self.events.split_off(events);
        if !lost.is_empty() {
            self.book = Book::of(&self.events)?;
        }
        // What is there after a start stays there.
        self.sync();
        Ok(lost)
    }

    /// The last `runs` ended runs of the window with an answer, as many begun without, as much said without a
    /// prompt, and all that have not ended; text said in a row in one piece or in several.
    pub(crate) fn load(&self, runs: usize, dice: &mut Dice) -> Loaded {
        let window = self.book.window().clone();
        let newest = |answered: bool, injected: bool| {
            let ended = |run: &&crate::book::Run| {
                let is_such = run.has_answer() == answered && run.is_injected == injected;
                is_such && run.stage == Stage::Ended && run.began && run.ended > window.from
            };
            let mut ended: Vec<_> = self.book.runs().iter().filter(ended).collect();
            ended.sort_unstable_by_key(|run| std::cmp::Reverse(run.ended));
            ended.truncate(runs);
            ended
        };
        let last: Vec<&RunId> = [newest(true, false), newest(true, true), newest(false, false)]
            .concat()
            .into_iter()
            .map(|run| &run.id)
            .collect();
        let open: Vec<&RunId> =
            self.book.runs().iter().filter(|r| r.stage != Stage::Ended).map(|r| &r.id).collect();
        let wanted = |logged: &&Logged| {
            logged.run.as_ref().is_some_and(|run| last.contains(&run) || open.contains(&run))
        };
        let coalesce = dice.one_in(2);
        let events = gather(self.events.iter().filter(wanted), coalesce, usize::MAX);
        let settings = self.book.settings().clone();
        Loaded { events, head: self.head(), reserved: self.reserved, settings, window }
    }

    /// What comes after a number, of one run or of all, at most so many events; text said in a row in
    /// one piece or in several.
    pub(crate) fn read(&self, run: Option<&RunId>, after: Seq, dice: &mut Dice) -> Vec<Logged> {
        let from = self.events.partition_point(|logged| logged.seq <= after);
        let wanted = |logged: &&Logged| run.is_none() || logged.run.as_ref() == run;
        let (coalesce, most) = (dice.one_in(2), 1 + dice.below(6));
        gather(self.events[from..].iter().filter(wanted), coalesce, most)
    }
}

/// Copies of events, at most so many; consecutive pieces of a run's text as one where wanted.
fn gather<'a>(events: impl Iterator<Item = &'a Logged>, coalesce: bool, most: usize) -> Vec<Logged> {
    let mut gathered: Vec<Logged> = Vec::with_capacity(most.min(events.size_hint().1.unwrap_or(0)));
    for logged in events {
        if coalesce
            && let Some((of, more)) = logged.event.streamed()
            && let Some(Logged { seq, run, event, .. }) = gathered.last_mut()
            && (*run == logged.run && seq.next() == logged.first_seq)
            && event.streamed().is_some_and(|(last, _)| last == of)
            && let Event::Text(text) | Event::Thought(text) = event
        {
            text.push_str(more);
            *seq = logged.seq;
            continue;
        }
        if gathered.len() == most {
            break;
        }
        gathered.push(logged.clone());
    }
    gathered
}
