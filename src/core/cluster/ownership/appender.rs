//! How the records of one subject are written by one node, one at a time: those of a session by its owner, those of a
//! table by every node that has something to change.
//!
//! ```text
//!         the replica has all that is known                acked, or seen as ours
//!  Behind ------------------------------> Sent -----------------------------------> Rest
//!    ^                                    |  ^                                       |
//!    |                                    |  |                     the next record   |
//!    |                                    |  +---------------------------------------+
//!    |           refused, or unknown      |  ^
//!    |             +----------------------+  | nothing came: the same again, after a pause
//!    |             v                         |
//!    |          Reading ---------------------+------ its key is another's: taken
//!    |             |        (AskingKey)
//!    +-------------+ somebody's record came, and the fence does not stand
//!                  | a higher token came
//!                  +----------------------------------------------------------------> Ended
//! ```
//!
//! The first record is the **fence**: empty, with the owner's token. Once it is accepted, whoever acted on an older
//! state can write no more, and what the replica has then is the whole state. What is appended before it waits.
//!
//! # Why nothing is written twice, and what was given up is never written
//!
//! Sequences only grow, and the stream accepts a record with the expectation `e` only while `e` is the last sequence of
//! the subject. So a record `X` that was published with `e` can be in one place only: as the **first** record of the
//! subject after `e`.
//!
//! 1. While nothing is seen after `e`, `X` may be there (a read may be stale), may come later (a publish that timed out
//!    may still be on its way), or may never come. Then `X` is published again with the **same** `e`, and nothing else
//!    is published: of all copies one at most is accepted.
//! 2. Once the first record after `e` is seen, all is decided, for it never changes. If it is `X`, `X` was written. If
//!    it is another's, no copy of `X` with `e` is accepted any more, however late it arrives. Only then may `X` be
//!    published with a new expectation, or be given up.
//! 3. Reads are prefixes of the truth: they may end too early, but they never leave anything out. So it does not matter
//!    which of a stale read, a late acknowledgement and the replica says first what came after `e`.
//! 4. A refusal, a missing answer and an empty read therefore decide nothing. An acknowledgement does, whichever
//!    copy it is for.
//!
//! A record with a guard is one atomic batch with the guard of its key. It has a third outcome: the key's guard is
//! another record's. Then no copy can be accepted while that guard lives, which is a day; copies do not live as long.
//!
//! **What comes behind a guarded record must not build on it**, as its number may be given again: append nothing behind
//! one before it is settled.
//!
//! # Subjects that nobody owns
//!
//! A table is written by all nodes at once ([`Appender::shared`]). There is no fence, and tokens have no order: one only
//! says whose a record is, so it is the epoch of the node, which no other process has. All of the above holds, since none
//! of it depends on who the others are: the first record after the expectation decides. If it is another's, the head is
//! published anew behind it, at once. Whenever one is refused so another was accepted: somebody always gets on.
//!
//! What such a record changes must make sense behind any others: whether it does is decided by those who apply it, each
//! alike, and not by its place.
//!
//! Time is bounded by pauses, not by giving up: a session whose records are not accepted says so after [`STALL_MS`]
//! and goes on trying. Deliberately absent: reading the session again as a whole after a refusal. It turns one refusal
//! into load, and load into more of them.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;

use crate::cluster::stamp::{RecordId, Sequence, Stamp, Token, accepts};

/// How long a record may be unsettled before those who wait for it are told, in milliseconds.
pub const STALL_MS: u64 = 10_000;

/// The pause before a publish is made again that was refused for a moment, in milliseconds.
pub const TRANSIENT_MS: u64 = 5;

/// So many refusals for a moment in a row are answered so; then the stream is read.
pub const TRANSIENTS_MAX: u32 = 20;

/// The longest pause between two tries of the same record, in milliseconds. The first is [`TRANSIENT_MS`], and each is
/// twice as long as the one before.
pub const PAUSE_MS_MAX: u64 = 640;

/// Which publish or read an answer is for; counts up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// What happened. Every attempt has to be answered, by [`Input::Unknown`] at the latest. Answers to one that is not the
/// last change nothing, but for an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a, R> {
    /// Write this record. `has_guard` says that a key comes with it, which no other record may have.
    Append {
        /// Its number among all records of this process.
        id: RecordId,
        /// What it says: only passed through.
        record: R,
        /// Whether the guard of a key is part of it.
        has_guard: bool,
    },
    /// The replica applied this record of the session. To be told of each, in their order, whoever wrote it.
    Applied(Sequence, Stamp),
    /// The stream acknowledged the record with this number; of a batch this is its last sequence.
    Acked(RecordId, Sequence),
    /// The stream refused it for a moment (10164).
    Transient(Attempt),
    /// The stream refused it: an expectation does not hold (10071). This says nothing by itself.
    Refused(Attempt),
    /// There was no answer, or the answer says nothing.
    Unknown(Attempt),
    /// What the stream has of the session, from the first record after the one that was asked for; maybe too little.
    ReadBack(Attempt, &'a [(Sequence, Stamp)]),
    /// Whose the guard of the key is, as the stream's leader says; none where there is no guard.
    KeyIs(Attempt, Option<Stamp>),
    /// Write what was appended, then end. Nothing may be appended any more.
    Close,
    /// The slot is lost: give up what was never published, settle the rest, then end.
    Lose,
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<R> {
    /// Publish this to the session's subject.
    Publish {
        /// What the answer is for.
        attempt: Attempt,
        /// What the record carries.
        stamp: Stamp,
        /// The sequence that must be the last of the subject.
        expected: Sequence,
        /// What it says; none for the fence.
        record: Option<R>,
        /// Whether the guard of its key goes before it, in one atomic batch, with 0 expected.
        has_guard: bool,
    },
    /// Read what the stream has of the session after this sequence. Where that fails, say [`Input::Unknown`].
    ReadSince(Attempt, Sequence),
    /// Ask the leader whose the guard of this record's key is. Where that fails, say [`Input::Unknown`].
    ReadKey(Attempt, RecordId),
    /// The fence stands: what the replica has of the session is all there is. Restore it, act on it. Of a shared subject:
    /// it takes records.
    Opened,
    /// This record is in the log. Said once, as one of the three.
    Written(RecordId, Sequence),
    /// This record is not in the log, and never will be. Said once, as one of the three.
    Lost(RecordId),
    /// Neither is this one, since its key is another record's. Said once, as one of the three.
    Taken(RecordId),
    /// A record has not been settled for [`STALL_MS`]: whoever waits is told that nothing can be written.
    Stalled,
    /// Something was settled after [`Action::Stalled`].
    Flows,
    /// Nothing more will be said. With a token, where a higher one was found.
    Ended(Option<Token>),
}

/// The writer of one subject, as long as it is awake under one token.
#[derive(Debug)]
pub struct Appender<R> {
    token: Token,
    mode: Mode,
    /// Whether it ends once nothing is left to write.
    closes: bool,
    state: State,
    /// The last sequence of the subject, as far as is known.
    last: Sequence,
    /// The last sequence that the replica has applied.
    applied: Sequence,
    /// What was appended and is not settled; the first is published once the fence stands.
    queue: VecDeque<Held<R>>,
    attempts: u64,
    /// How often the head was tried.
    tries: u32,
    /// Since when it waits.
    since_ms: Option<u64>,
    is_stalled: bool,
}

#[derive(Debug)]
struct Held<R> {
    id: RecordId,
    record: R,
    has_guard: bool,
}

/// Who else writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Maybe an earlier owner: its fence, with this number, does not stand yet.
    Unfenced(RecordId),
    /// Nobody but whoever outdoes it.
    Fenced,
    /// Everybody.
    Shared,
}

/// Where the head is: the fence, or the first of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The replica has to apply what is known to be there, before the fence can be published.
    Behind,
    /// There is nothing to write.
    Rest,
    /// It was published, and no answer has come.
    Sent { attempt: Attempt, transients: u32 },
    /// It was published, and is published again then: its outcome is unknown.
    Pausing { until_ms: u64, transients: u32 },
    /// What came since is being read. `is_refused` says that the last answer was a refusal.
    Reading { attempt: Attempt, is_refused: bool },
    /// Nothing came, and yet it was refused: it is being asked whose its key is.
    AskingKey { attempt: Attempt },
    /// Nothing follows.
    Ended,
}

impl<R: Clone> Appender<R> {
    /// Begins to write a session of which the replica has applied `applied` as the last record (0 = none), and has
    /// seen `highest` as the highest token. `fence` is the number of the fence among all records of this process.
    pub fn new(
        token: Token,
        fence: RecordId,
        (applied, highest): (Sequence, Token),
        now_ms: u64,
        actions: &mut Vec<Action<R>>,
    ) -> Self {
        let mut appender =
            Self { since_ms: Some(now_ms), ..Self::at(token, Mode::Unfenced(fence), State::Behind, applied) };
        if accepts(highest, token) {
            appender.proceed(now_ms, actions);
        } else {
            appender.end(Some(highest), actions);
        }
        appender
    }

    /// Begins to write a subject that all nodes write, of which the replica has applied `applied` as the last record
    /// (0 = none). `token` is this process's alone.
    pub fn shared(token: Token, applied: Sequence, actions: &mut Vec<Action<R>>) -> Self {
        actions.push(Action::Opened);
        Self::at(token, Mode::Shared, State::Rest, applied)
    }

    fn at(token: Token, mode: Mode, state: State, applied: Sequence) -> Self {
        Self {
            token,
            mode,
            closes: false,
            state,
            last: applied,
            applied,
            queue: VecDeque::new(),
            attempts: 0,
            tries: 0,
            since_ms: None,
            is_stalled: false,
        }
    }

    /// The token under which it writes.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether it takes records: its fence stands, or it needs none.
    pub fn is_open(&self) -> bool {
        self.fence().is_none() && !self.closes && self.state != State::Ended
    }

    /// When it next wants [`Input::Tick`], by the node's own clock.
    pub fn deadline_ms(&self) -> Option<u64> {
        let stall = self.since_ms.filter(|_| !self.is_stalled).map(|since| since + STALL_MS);
        let pause = match self.state {
            State::Pausing { until_ms, .. } => Some(until_ms),
            _ => None,
        };
        stall.into_iter().chain(pause).min()
    }

    /// Takes in what happened at `now_ms` of the node's own clock, and adds what is to be done.
    pub fn handle(&mut self, input: Input<'_, R>, now_ms: u64, actions: &mut Vec<Action<R>>) {
        match input {
            Input::Append { id, record, has_guard } => {
                self.append(Held { id, record, has_guard }, now_ms, actions)
            }
            _ if self.state == State::Ended => {}
            Input::Applied(sequence, stamp) => {
                self.applied = self.applied.max(sequence);
                self.see(sequence, stamp, actions);
                self.proceed(now_ms, actions);
            }
            Input::Acked(record, sequence) => {
                if self.head() == Some(record) {
                    self.see(sequence, Stamp { token: self.token, record }, actions);
                    self.proceed(now_ms, actions);
                }
            }
            Input::Transient(attempt) => match self.state {
                State::Sent { attempt: sent, transients }
                    if sent == attempt && transients < TRANSIENTS_MAX =>
                {
                    let until_ms = now_ms + TRANSIENT_MS;
                    self.state = State::Pausing { until_ms, transients: transients + 1 };
                }
                _ => self.unsettled(attempt, false, now_ms, actions),
            },
            Input::Refused(attempt) => self.unsettled(attempt, true, now_ms, actions),
            Input::Unknown(attempt) => self.unsettled(attempt, false, now_ms, actions),
            Input::ReadBack(attempt, records) => self.read_back(attempt, records, now_ms, actions),
            Input::KeyIs(attempt, stamp) => self.key_is(attempt, stamp, now_ms, actions),
            Input::Close => {
                self.closes = true;
                self.proceed(now_ms, actions);
            }
            Input::Lose => {
                self.closes = true;
                let published = usize::from(self.fence().is_none() && !self.queue.is_empty());
                actions.extend(self.queue.drain(published..).map(|held| Action::Lost(held.id)));
                self.proceed(now_ms, actions);
            }
            Input::Tick => self.tick(now_ms, actions),
        }
    }

    fn append(&mut self, held: Held<R>, now_ms: u64, actions: &mut Vec<Action<R>>) {
        if self.closes || self.state == State::Ended {
            actions.push(Action::Lost(held.id));
            return;
        }
        self.queue.push_back(held);
        self.proceed(now_ms, actions);
    }

    /// The fence, where it does not stand yet.
    fn fence(&self) -> Option<RecordId> {
        match self.mode {
            Mode::Unfenced(fence) => Some(fence),
            Mode::Fenced | Mode::Shared => None,
        }
    }

    /// The record that is published next, or was and is not settled.
    fn head(&self) -> Option<RecordId> {
        self.fence().or_else(|| self.queue.front().map(|held| held.id))
    }

    /// Publishes the head, or ends, where that is due.
    fn proceed(&mut self, now_ms: u64, actions: &mut Vec<Action<R>>) {
        let is_over = self.closes && self.queue.is_empty();
        match self.state {
            State::Ended => {}
            _ if is_over => self.end(None, actions),
            State::Behind if self.applied >= self.last => self.publish(0, now_ms, actions),
            State::Rest if self.head().is_some() => self.publish(0, now_ms, actions),
            _ => {}
        }
    }

    fn publish(&mut self, transients: u32, now_ms: u64, actions: &mut Vec<Action<R>>) {
        let Some(record) = self.head() else { return };
        let attempt = self.attempt();
        self.since_ms.get_or_insert(now_ms);
        self.state = State::Sent { attempt, transients };
        let head = self.queue.front().filter(|_| self.fence().is_none());
        actions.push(Action::Publish {
            attempt,
            stamp: Stamp { token: self.token, record },
            expected: self.last,
            record: head.map(|held| held.record.clone()),
            has_guard: head.is_some_and(|held| held.has_guard),
        });
    }

    fn attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt(self.attempts)
    }

    /// The session has this record after all that was known; whoever says so leaves nothing out before it.
    fn see(&mut self, sequence: Sequence, stamp: Stamp, actions: &mut Vec<Action<R>>) {
        if sequence <= self.last || self.state == State::Ended {
            return;
        }
        self.last = sequence;
        if stamp.token == self.token && self.head() == Some(stamp.record) {
            if self.fence().is_none() {
                self.settled(Action::Written(stamp.record, sequence), actions);
            } else {
                self.mode = Mode::Fenced;
                self.flows(Action::Opened, actions);
            }
        } else if self.mode == Mode::Shared {
            // Somebody else's: nothing that was published before is accepted any more.
            self.state = State::Rest;
        } else if !accepts(stamp.token, self.token) {
            self.end(Some(stamp.token), actions);
        } else if self.fence().is_some() {
            // An earlier owner, or this one when the session was awake before.
            self.state = State::Behind;
        } else if stamp.token == self.token {
            // Somebody else writes under this token: what is known here is not all.
            self.end(Some(stamp.token), actions);
        } else {
            // A breach that every replica passes over. Nothing that was published before is accepted any more.
            self.state = State::Rest;
        }
    }

    /// The head is written, or taken: the next one follows.
    fn settled(&mut self, outcome: Action<R>, actions: &mut Vec<Action<R>>) {
        self.queue.pop_front();
        self.flows(outcome, actions);
    }

    fn flows(&mut self, outcome: Action<R>, actions: &mut Vec<Action<R>>) {
        (self.state, self.tries, self.since_ms) = (State::Rest, 0, None);
        actions.push(outcome);
        if mem::take(&mut self.is_stalled) {
            actions.push(Action::Flows);
        }
    }

    /// An attempt has no answer that decides anything.
    fn unsettled(&mut self, attempt: Attempt, is_refused: bool, now_ms: u64, actions: &mut Vec<Action<R>>) {
        match self.state {
            State::Sent { attempt: sent, .. } if sent == attempt => {
                let attempt = self.attempt();
                self.state = State::Reading { attempt, is_refused };
                actions.push(Action::ReadSince(attempt, self.last));
            }
            State::Reading { attempt: asked, .. } | State::AskingKey { attempt: asked }
                if asked == attempt =>
            {
                self.pause(now_ms);
            }
            _ => {}
        }
    }

    fn pause(&mut self, now_ms: u64) {
        let pause_ms = (TRANSIENT_MS << self.tries.min(16)).min(PAUSE_MS_MAX);
        self.tries += 1;
        self.state = State::Pausing { until_ms: now_ms + pause_ms, transients: 0 };
    }

    fn read_back(
        &mut self,
        attempt: Attempt,
        records: &[(Sequence, Stamp)],
        now_ms: u64,
        actions: &mut Vec<Action<R>>,
    ) {
        let State::Reading { attempt: asked, is_refused } = self.state else { return };
        if asked != attempt {
            return;
        }
        for (sequence, stamp) in records {
            self.see(*sequence, *stamp, actions);
        }
        if self.state != (State::Reading { attempt, is_refused }) {
            self.proceed(now_ms, actions);
            return;
        }
        match self.queue.front().filter(|held| self.fence().is_none() && is_refused && held.has_guard) {
            None => self.pause(now_ms),
            Some(Held { id, .. }) => {
                let id = *id;
                let attempt = self.attempt();
                self.state = State::AskingKey { attempt };
                actions.push(Action::ReadKey(attempt, id));
            }
        }
    }

    fn key_is(&mut self, attempt: Attempt, stamp: Option<Stamp>, now_ms: u64, actions: &mut Vec<Action<R>>) {
        let Some(record) = self.head().filter(|_| self.state == State::AskingKey { attempt }) else { return };
        // Where it is ours, the record is there, too: a read will show it.
        if stamp.is_some_and(|stamp| stamp != Stamp { token: self.token, record }) {
            self.settled(Action::Taken(record), actions);
            self.proceed(now_ms, actions);
        } else {
            self.pause(now_ms);
        }
    }

    fn tick(&mut self, now_ms: u64, actions: &mut Vec<Action<R>>) {
        if let State::Pausing { until_ms, transients } = self.state
            && until_ms <= now_ms
        {
            self.publish(transients, now_ms, actions);
        }
        let is_due = self.since_ms.is_some_and(|since| now_ms.saturating_sub(since) >= STALL_MS);
        if is_due && !mem::replace(&mut self.is_stalled, is_due) {
            actions.push(Action::Stalled);
        }
    }

    /// Gives up what is left: all of it is decided, or was never published.
    fn end(&mut self, outdone: Option<Token>, actions: &mut Vec<Action<R>>) {
        actions.extend(self.queue.drain(..).map(|held| Action::Lost(held.id)));
        (self.state, self.since_ms) = (State::Ended, None);
        actions.push(Action::Ended(outdone));
    }
}
