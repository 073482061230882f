//! What is to be written under one subject of the log, in the order in which it came.
//!
//! One record is on its way at a time: what follows is decided on what the store has then. Text of a step that is
//! under way is no record; it is shown here once everything before it was applied.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use clawmux_core::cluster::ownership::appender::Appender;
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::Stamp;
use clawmux_core::conversation::event::Logged;
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::spoken::{Part, Spoken};
use clawmux_core::replica::{Blob, Guard, Write};
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
    pub(super) fn submit(&mut self, Submission { change, done, counted }: Submission) {
        let what: Vec<What> = match change {
            Submitted::Write(write) => vec![What::Record(write)],
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

    /// What is next, where nothing is on its way: what is left of a change that failed is not.
    pub(super) fn next(&mut self) -> Option<Waiting> {
        if self.in_flight.is_some() {
            return None;
        }
        while let Some(next) = self.queue.pop_front() {
            if !next.answer.has_failed() {
                return Some(next);
            }
        }
        None
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
        for waiting in self.queue.drain(..) {
            waiting.answer.one_is(Err(error.clone()));
        }
        self.spoken = Spoken::default();
    }

    /// Whether nothing is said that a record is to have.
    pub(super) fn is_silent(&self) -> bool {
        self.spoken.is_empty()
    }

    /// Whether it can be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.queue.is_empty() && self.spoken.is_empty()
    }
}

/// Who waits for a change, which may have several parts: told when all of them are made, or one is refused.
#[derive(Clone)]
pub(super) struct Answer(Rc<Answering>);

struct Answering {
    done: RefCell<Option<oneshot::Sender<Result<(), Error>>>>,
    has_failed: Cell<bool>,
    left: Cell<usize>,
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
            _counted: counted,
        }));
        if parts == 0 {
            answer.tell(Ok(()));
        }
        answer
    }

    /// One of its parts is made, or refused.
    pub(super) fn one_is(&self, outcome: Result<(), Error>) {
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
        assert!(writing.next().is_some() && writing.next().is_none(), "only the other change is left");
    }
}
