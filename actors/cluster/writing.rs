//! What is to be written under one subject of the log, in the order in which it came.
//!
//! One record is on its way at a time: what follows is decided on what the store has then. Text of a step that is
//! under way is no record; it is shown here once everything before it was applied.
//!
//! What becomes of calls of models goes with events of the same session where some are written soon, and the events
//! that end a step wait a moment for what its call cost: both come at the same time.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use clawmux_core::cluster::ownership::appender::Appender;
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::Stamp;
use clawmux_core::conversation::event::Logged;
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::spoken::{Part, Spoken};
use clawmux_core::replica::{Appended, Blob, CallChange, Guard, Write};
use tokio::sync::oneshot;

use crate::store::{Counted, Submission, Submitted};

/// A subject that something is to be written under.
pub(super) struct Writing {
    /// The subject in the words of the log.
    pub(super) name: String,
    /// Of a session; a table has none, for all nodes write it.
    pub(super) slot: Option<Slot>,
    pub(super) stage: Stage,
    pub(super) queue: VecDeque<Waiting>,
    calls: Calls,
    /// The record that is on its way, and who waits for it.
    pub(super) in_flight: Option<(Stamp, Answer)>,
    /// The blob that it is, where it is too large for the log.
    pub(super) blob: Option<Blob>,
    /// Whether that is, or was at last, events of a session.
    pub(super) is_append: bool,
    /// The guard of its key.
    pub(super) guard: Option<Guard>,
    /// The number of its fence: answers to what was asked before that count no more.
    pub(super) begun: u64,
    /// Since when it waits to be written, in milliseconds of this process's clock.
    pub(super) waits_since_ms: Option<u64>,
    spoken: Spoken,
}

/// How far a subject is from being written under.
pub(super) enum Stage {
    /// Its slot is not ours, the daemon has not joined, or nothing is to be written.
    Asleep,
    /// The store is asked where it ends.
    Asking,
    /// It is ours.
    Awake(Box<Appender<Bytes>>),
}

/// What is to be done, in its turn, and who waits for it.
pub(super) struct Waiting {
    pub(super) what: What,
    pub(super) answer: Answer,
}

/// What is to be done.
pub(super) enum What {
    /// Be ready to write: nobody else can, and the store has all that others wrote.
    Open,
    /// Write this.
    Record(Write),
    /// Show this text.
    Text(SessionKey, Vec<Logged>),
}

impl Writing {
    pub(super) fn new(name: String, slot: Option<Slot>) -> Self {
        Self {
            name,
            slot,
            stage: Stage::Asleep,
            queue: VecDeque::new(),
            calls: Calls::default(),
            in_flight: None,
            blob: None,
            is_append: false,
            guard: None,
            begun: 0,
            waits_since_ms: None,
            spoken: Spoken::default(),
        }
    }

    /// Takes a change in.
    pub(super) fn submit(&mut self, Submission { change, done, counted }: Submission, now_ms: u64) {
        let what: Vec<What> = match change {
            Submitted::Call(change) => {
                self.calls.add(change, Answer::new(done, 1, Some(counted)), now_ms);
                return;
            }
            Submitted::Write(write) => {
                self.calls.note(&write);
                vec![What::Record(write)]
            }
            Submitted::Append(append) => {
                let parts = self.spoken.take(&append.session, &append.events, append.reserve, &append.to_say);
                let what = |part| match part {
                    Part::Record(appended) => What::Record(Write::Append(appended)),
                    Part::Text(events) => What::Text(append.session.clone(), events),
                };
                parts.into_iter().map(what).collect()
            }
        };
        let answer = Answer::new(done, what.len(), Some(counted));
        self.queue.extend(what.into_iter().map(|what| Waiting { what, answer: answer.clone() }));
    }

    /// What is next, where nothing is on its way: what is left of a change that failed is not. `can_share` says whether
    /// every daemon can read events with calls.
    pub(super) fn next(&mut self, now_ms: u64, can_share: bool) -> Option<Waiting> {
        if self.in_flight.is_some() {
            return None;
        }
        while self.queue.pop_front_if(|next| next.answer.has_failed()).is_some() {}
        if let Some(waiting) = self.calls.alone(now_ms, can_share) {
            return Some(waiting);
        }
        match self.queue.front_mut() {
            Some(Waiting { what: What::Record(Write::Append(append)), answer }) if can_share => {
                if !self.calls.join(append, answer, now_ms) {
                    return None;
                }
            }
            _ => {}
        }
        self.queue.pop_front()
    }

    /// Has nothing wait for company any more.
    pub(super) fn hurry(&mut self) {
        self.calls.waiting.iter_mut().for_each(|(.., since_ms)| *since_ms = 0);
        self.calls.held_since_ms = self.calls.held_since_ms.map(|_| 0);
    }

    /// Whether something is to be done in the next moments that nothing has to happen for.
    pub(super) fn is_waiting(&self) -> bool {
        !self.calls.waiting.is_empty() || self.calls.held_since_ms.is_some()
    }

    /// The last change failed. Where it was one of events, the session begins anew: text of steps is said anew, too.
    pub(super) fn failed(&mut self) {
        if self.is_append {
            self.spoken = Spoken::default();
        }
    }

    /// The log has this record of a session: what was on its way before it and did not come is not accepted any more.
    pub(super) fn give_up_before(&mut self, stamp: Stamp) -> Option<(Answer, Option<Blob>)> {
        let is_before = |in_flight: &Stamp| (in_flight.token, in_flight.record) < (stamp.token, stamp.record);
        let is_ordered = self.slot.is_some();
        self.give_up(|in_flight| is_ordered && is_before(in_flight))
    }

    /// Gives up what is on its way, where it is such: it never will be in the log. Gives who waits for it, and the blob
    /// that nothing names.
    pub(super) fn give_up(&mut self, is_such: impl Fn(&Stamp) -> bool) -> Option<(Answer, Option<Blob>)> {
        let (_, answer) = self.in_flight.take_if(|(in_flight, _)| is_such(in_flight))?;
        self.failed();
        Some((answer, self.blob.take()))
    }

    /// Refuses everything that is not on its way; the text of steps is forgotten, for whoever goes on says it anew.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        let calls = self.calls.waiting.drain(..).map(|(_, answer, _)| answer);
        for answer in self.queue.drain(..).map(|waiting| waiting.answer).chain(calls) {
            answer.one_is(Err(error.clone()));
        }
        self.spoken = Spoken::default();
    }

    /// Whether nothing is said that a record is to have.
    pub(super) fn is_silent(&self) -> bool {
        self.spoken.is_empty()
    }

    /// Whether it can be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        let has_nothing = self.queue.is_empty() && self.calls.waiting.is_empty();
        self.in_flight.is_none() && has_nothing && self.spoken.is_empty()
    }
}

/// How long a change of a call waits for events to go with, and events for what their call cost, in milliseconds.
const COMPANY_MS: u64 = 20;

/// What becomes of calls of a session's models.
#[derive(Default)]
struct Calls {
    /// What waits for events to go with, who waits for it, and since when.
    waiting: VecDeque<(CallChange, Answer, u64)>,
    /// Those that began and are not over.
    under_way: HashSet<u64>,
    /// Since when events wait for what their call cost.
    held_since_ms: Option<u64>,
}

impl Calls {
    fn add(&mut self, change: CallChange, answer: Answer, now_ms: u64) {
        match &change {
            CallChange::Begun { call, .. } => drop(self.under_way.insert(*call)),
            CallChange::Ended { call, .. } => drop(self.under_way.remove(call)),
        }
        self.waiting.push_back((change, answer, now_ms));
    }

    /// A change of a call that goes alone.
    fn note(&mut self, write: &Write) {
        if let Write::BeginCall { call, .. } = write {
            self.under_way.insert(*call);
        }
    }

    /// What goes alone, since it has waited for long enough or nobody can take it along.
    fn alone(&mut self, now_ms: u64, can_share: bool) -> Option<Waiting> {
        let is_due = |(.., since): &mut (_, _, u64)| !can_share || has_passed(*since, now_ms);
        let (change, answer, _) = self.waiting.pop_front_if(is_due)?;
        Some(Waiting { what: What::Record(change.into()), answer })
    }

    /// Has everything that waits go with these events. False where they are to wait themselves.
    fn join(&mut self, append: &mut Appended, answer: &Answer, now_ms: u64) -> bool {
        let ends_step = append.events.iter().any(|logged| logged.event.settles());
        if ends_step
            && !self.under_way.is_empty()
            && !has_passed(*self.held_since_ms.get_or_insert(now_ms), now_ms)
        {
            return false;
        }
        self.held_since_ms = None;
        // A prompt is refused where its key is taken: no call depends on that.
        if append.guards().is_empty() {
            for (change, waits, _) in self.waiting.drain(..) {
                append.calls.push(change);
                answer.takes_along(waits);
            }
        }
        true
    }
}

fn has_passed(since_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(since_ms) >= COMPANY_MS
}

/// Who waits for a change, which may have several parts: told when all of them are made, or one is refused.
#[derive(Clone)]
pub(super) struct Answer(Rc<Answering>);

struct Answering {
    done: RefCell<Option<oneshot::Sender<Result<(), Error>>>>,
    has_failed: Cell<bool>,
    left: Cell<usize>,
    /// Those whose changes are in the same record.
    along: RefCell<Vec<Answer>>,
    _counted: Option<Counted>,
}

impl Answer {
    /// Whoever waits for one thing that is not counted among changes.
    pub(super) fn of(done: oneshot::Sender<Result<(), Error>>) -> Self {
        Self::new(done, 1, None)
    }

    fn new(done: oneshot::Sender<Result<(), Error>>, parts: usize, counted: Option<Counted>) -> Self {
        let answer = Self(Rc::new(Answering {
            done: RefCell::new(Some(done)),
            has_failed: Cell::new(false),
            left: Cell::new(parts),
            along: RefCell::default(),
            _counted: counted,
        }));
        if parts == 0 {
            answer.tell(Ok(()));
        }
        answer
    }

    /// Another one's change is made with the next of its parts, or refused with it.
    fn takes_along(&self, other: Self) {
        self.0.along.borrow_mut().push(other);
    }

    /// One of its parts is made, or refused.
    pub(super) fn one_is(&self, outcome: Result<(), Error>) {
        for other in self.0.along.take() {
            other.one_is(outcome.clone());
        }
        let left = self.0.left.get().saturating_sub(1);
        self.0.left.set(left);
        if outcome.is_err() {
            self.fails();
        }
        if outcome.is_err() || left == 0 {
            self.tell(outcome);
        }
    }

    fn tell(&self, outcome: Result<(), Error>) {
        if let Some(done) = self.0.done.take() {
            // Whoever does not wait any more has no use for it.
            let _ = done.send(outcome);
        }
    }

    /// Whether somebody still waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.done.borrow().as_ref().is_some_and(|done| !done.is_closed())
    }

    /// A part of it can't be made, which is told later: the others are not made either.
    pub(super) fn fails(&self) {
        self.0.has_failed.set(true);
    }

    fn has_failed(&self) -> bool {
        self.0.has_failed.get()
    }
}

#[cfg(test)]
mod tests {
    use clawmux_core::cluster::stamp::{RecordId, Token};
    use clawmux_core::conversation::event::Event;
    use clawmux_core::conversation::log::usage::UsageRecord;
    use clawmux_core::ids::{Owner, Seq};
    use clawmux_core::provider::usage::Usage;
    use clawmux_core::time::Timestamp;

    use super::*;

    fn stamp(token: u64, record: u64) -> Stamp {
        Stamp { token: Token(token), record: RecordId(record) }
    }

    fn session() -> Writing {
        Writing::new("a".to_owned(), Some(Slot::of(&SessionKey::new("main", "test", "a", "main").unwrap())))
    }

    #[test]
    fn what_can_not_come_any_more_is_given_up() {
        for (behind, is_given_up) in [((2, 1), false), ((2, 6), true), ((3, 1), true), ((1, 9), false)] {
            let mut writing = session();
            let (done, _told) = oneshot::channel();
            writing.in_flight = Some((stamp(2, 5), Answer::of(done)));
            let given_up = writing.give_up_before(stamp(behind.0, behind.1));
            assert_eq!(writing.in_flight.is_none(), is_given_up, "{behind:?}");
            assert_eq!(given_up.is_some(), is_given_up, "{behind:?}");
        }
        // Of a table others' records say nothing of ours.
        let (done, _told) = oneshot::channel();
        let mut table = Writing::new("t".to_owned(), None);
        table.in_flight = Some((stamp(2, 5), Answer::of(done)));
        assert!(table.give_up_before(stamp(9, 9)).is_none());
        assert!(table.in_flight.is_some());
    }

    fn usage() -> UsageRecord {
        let session = SessionKey::new("main", "test", "a", "main").unwrap();
        let usage = Usage::new(3, 4);
        let (run, agent, at) = ("r".into(), "main".into(), Timestamp::from_millis(7));
        let (provider, model, cost, changed) = ("up".to_owned(), "m".to_owned(), None, None);
        UsageRecord { session, run, agent, provider, model, usage, cost, changed, at }
    }

    fn begun(call: u64) -> CallChange {
        CallChange::Begun { call, reserved: usage() }
    }

    fn ended(call: u64) -> CallChange {
        CallChange::Ended { call, records: vec![usage()] }
    }

    fn events(event: Event) -> What {
        let (session, run) = (usage().session, Some("r".into()));
        let events = [Logged { first_seq: Seq(1), seq: Seq(1), run, at: Timestamp::default(), event }].into();
        let (settled, to_say, calls) = (Vec::new(), Vec::new(), Vec::new());
        What::Record(Write::Append(Appended { session, settled, events, reserve: None, to_say, calls }))
    }

    fn step_ended() -> What {
        events(Event::StepEnded { usage: Usage::default() })
    }

    /// A session in which these calls were told of at 0, and these events then.
    fn with(
        calls: Vec<CallChange>,
        queue: Vec<What>,
    ) -> (Writing, Vec<oneshot::Receiver<Result<(), Error>>>) {
        let (mut writing, mut told) = (session(), Vec::new());
        let mut answer = || {
            let (done, is_told) = oneshot::channel();
            told.push(is_told);
            Answer::of(done)
        };
        calls.into_iter().for_each(|change| writing.calls.add(change, answer(), 0));
        writing.queue.extend(queue.into_iter().map(|what| Waiting { what, answer: answer() }));
        (writing, told)
    }

    /// The calls of what is next, and whether it is events.
    fn next(writing: &mut Writing, now_ms: u64, can_share: bool) -> Option<(bool, usize)> {
        Some(match writing.next(now_ms, can_share)?.what {
            What::Record(Write::Append(appended)) => (true, appended.calls.len()),
            What::Record(Write::BeginCall { .. } | Write::RecordUsage { .. }) => (false, 1),
            what => panic!("{}", matches!(what, What::Open)),
        })
    }

    #[test]
    fn calls_go_with_events_and_who_waits_for_them_is_told_with_these() {
        let (mut writing, told) = with(vec![begun(1), ended(1)], vec![step_ended()]);
        let next = writing.next(1, true).unwrap();
        assert!(matches!(&next.what, What::Record(Write::Append(appended)) if appended.calls.len() == 2));
        next.answer.one_is(Err(super::super::away("it is over")));
        assert!(
            told.into_iter().all(|mut told| told.try_recv().unwrap().is_err()),
            "all of it was one record"
        );
        assert!(writing.is_idle() && !writing.is_waiting());
    }

    #[test]
    fn events_that_end_a_step_wait_a_moment_for_what_its_call_cost() {
        let (mut writing, _told) = with(vec![begun(1)], vec![step_ended()]);
        assert_eq!(next(&mut writing, 1, true), None);
        assert!(writing.is_waiting());
        let (done, _is_told) = oneshot::channel();
        writing.calls.add(ended(1), Answer::of(done), 2);
        assert_eq!(next(&mut writing, 2, true), Some((true, 2)));
        // It does not come: each for itself, the longest wait first.
        let (mut writing, _told) = with(vec![begun(1)], vec![step_ended()]);
        assert_eq!(next(&mut writing, 1, true), None);
        assert_eq!(next(&mut writing, COMPANY_MS, true), Some((false, 1)));
        assert_eq!(next(&mut writing, COMPANY_MS, true), None);
        assert_eq!(next(&mut writing, COMPANY_MS + 1, true), Some((true, 0)));
        // What ends no step waits for no call.
        let (mut writing, _told) = with(vec![begun(1)], vec![events(Event::Started)]);
        assert_eq!(next(&mut writing, 1, true), Some((true, 1)));
    }

    #[test]
    fn calls_go_alone_where_no_events_come_or_somebody_can_not_read_them_together() {
        let (mut writing, _told) = with(vec![begun(1)], Vec::new());
        assert_eq!(next(&mut writing, COMPANY_MS - 1, true), None);
        assert!(writing.is_waiting() && !writing.is_idle());
        assert_eq!(next(&mut writing, COMPANY_MS, true), Some((false, 1)));
        let (mut writing, _told) = with(vec![begun(1), ended(1)], vec![step_ended()]);
        for expected in [(false, 1), (false, 1), (true, 0)] {
            assert_eq!(next(&mut writing, 0, false), Some(expected));
        }
        // A session that closes has nothing wait.
        let (mut writing, _told) = with(vec![begun(1)], Vec::new());
        writing.hurry();
        assert_eq!(next(&mut writing, 1000, true), Some((false, 1)));
        // A prompt may be refused for its key, and takes no call along.
        let prompt = Event::prompted("hi", Owner::Admins, Some("key".into()));
        let (mut writing, _told) = with(vec![begun(1)], vec![events(prompt)]);
        assert_eq!(next(&mut writing, 1, true), Some((true, 0)));
    }

    #[test]
    fn what_is_left_of_a_change_that_fails_is_not_made() {
        let mut writing = session();
        let (done, mut told) = oneshot::channel();
        let failing = Answer::new(done, 2, None);
        let (open, _opened) = oneshot::channel();
        let next = Answer::of(open);
        for answer in [failing.clone(), next] {
            writing.queue.push_back(Waiting { what: What::Open, answer });
        }
        failing.fails();
        assert!(told.try_recv().is_err(), "why is told later");
        assert!(
            writing.next(0, true).is_some() && writing.next(0, true).is_none(),
            "only the other change is left"
        );
    }
}
