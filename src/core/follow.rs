//! Who follows a session, and how far each has come: one log, many cursors.
//!
//! ```text
//!              published, road open
//!             ┌────────────────────┐
//!             ▼                    │
//!   follow ► Live ─── road full ─► Behind ◄── more to read, or the road is full ──┐
//!             ▲                    │ road open                                    │
//!             │                    ▼                                              │
//!             └─ all was read ── Reading ─────────────────────────────────────────┘
//! ```
//!
//! A [`Cursor`] wants one run or the whole session; its events carry its ticket. While it is live,
//! events are sent to it as they are published. Where its connection takes no more it falls behind,
//! and from then on it is served from the log until it has caught up: so a slow client costs its
//! place in the log and nothing else. How far it may fall behind is bounded, in bytes of the log.
//!
//! A connection that follows a session and also asks for runs in it is told those runs once: under
//! the request that asked for them.
//!
//! There is no mailbox, socket or store in here. Whoever drives this sends ([`Road`]), reads from
//! the log what [`Followers::missing`] names and hands it to [`Followers::caught`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::auth::{Owner, Principal};
use crate::event::{Event, Logged, Published};
use crate::ids::{ConnectionId, RunId, Seq, SessionKey, Ticket};

/// The way to one connection.
pub trait Road {
    /// Sends an event to the cursor that `ticket` asked for.
    fn send(&mut self, ticket: Ticket, event: &Arc<Published>) -> Sent;

    /// The connection has fallen too far behind and should be closed; said once.
    fn lag(&mut self);
}

/// What became of an event that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Taken,
    /// The connection has no room; [`Followers::room`] is to be called when it has.
    Full,
    /// The connection is gone.
    Closed,
}

/// What a cursor wants of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// One run, up to its end.
    Run(RunId),
    /// Everything, until it is let go.
    Session,
}

/// All followers of one session.
#[derive(Debug)]
pub struct Followers<R> {
    feeds: BTreeMap<ConnectionId, Feed<R>>,
}

impl<R> Default for Followers<R> {
    fn default() -> Self {
        Self { feeds: BTreeMap::new() }
    }
}

/// One connection.
#[derive(Debug)]
struct Feed<R> {
    road: R,
    principal: Principal,
    /// Whether the road was full when it was last tried.
    is_full: bool,
    cursors: Vec<Cursor>,
    /// The runs that it asked for itself, with the number of their end once that is known: a cursor
    /// over the whole session leaves them out.
    own: Vec<(RunId, Option<Seq>)>,
}

#[derive(Debug)]
struct Cursor {
    ticket: Ticket,
    wanted: Wanted,
    /// The last number it was given, or need not be given.
    at: Seq,
    pace: Pace,
    /// Bytes that were published since it was last live and that it has not got.
    lag_bytes: usize,
}

/// How a cursor gets its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As they are published.
    Live,
    /// From the log, when the road has room.
    Behind,
    /// From the log: a read is under way.
    Reading,
}

/// A read from the log that a cursor needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Whose cursor.
    pub connection: ConnectionId,
    /// Which of its cursors.
    pub ticket: Ticket,
    /// Only this run, if it wants one.
    pub run: Option<RunId>,
    /// What comes after this number.
    pub after: Seq,
}

impl<R: Road> Followers<R> {
    /// How many connections follow.
    pub fn len(&self) -> usize {
        self.feeds.len()
    }

    /// Whether nobody follows.
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty()
    }

    /// The roads to all of them.
    pub fn roads(&mut self) -> impl Iterator<Item = &mut R> {
        self.feeds.values_mut().map(|feed| &mut feed.road)
    }

    /// Follows from the number after `after` on. `published` is the last number that was published:
    /// a cursor that is not behind it is live from here on. `road` is used where the connection
    /// follows nothing yet.
    pub fn follow(
        &mut self,
        (connection, ticket): (ConnectionId, Ticket),
        principal: &Principal,
        (wanted, after): (Wanted, Seq),
        published: Seq,
        road: impl FnOnce() -> R,
    ) {
        let feed = self.feeds.entry(connection).or_insert_with(|| Feed {
            road: road(),
            principal: principal.clone(),
            is_full: false,
            cursors: Vec::new(),
            own: Vec::new(),
        });
        if let Wanted::Run(run) = &wanted
            && !feed.own.iter().any(|(own, _)| own == run)
        {
            feed.own.push((run.clone(), None));
        }
        let pace = if after < published { Pace::Behind } else { Pace::Live };
        feed.cursors.push(Cursor { ticket, wanted, at: after, pace, lag_bytes: 0 });
    }

    /// Lets a cursor go; says whether it was there.
    pub fn unfollow(&mut self, connection: ConnectionId, ticket: Ticket) -> bool {
        let Some(feed) = self.feeds.get_mut(&connection) else { return false };
        let before = feed.cursors.len();
        feed.cursors.retain(|cursor| cursor.ticket != ticket);
        let found = feed.cursors.len() < before;
        feed.forget_own();
        self.drop_finished();
        found
    }

    /// The connection is gone.
    pub fn forget(&mut self, connection: ConnectionId) {
        self.feeds.remove(&connection);
    }

    /// The session belongs to `owner` from now on: who may not see that follows no longer.
    pub fn claimed(&mut self, owner: &Owner) {
        self.feeds.retain(|_, feed| feed.principal.sees(owner));
    }

    /// The connection has room again.
    pub fn room(&mut self, connection: ConnectionId) {
        if let Some(feed) = self.feeds.get_mut(&connection) {
            feed.is_full = false;
        }
    }

    /// Nobody is live any more, and no read is under way: all that follows is read from the log.
    pub fn fall_behind(&mut self) {
        for feed in self.feeds.values_mut() {
            feed.is_full = false;
            for cursor in &mut feed.cursors {
                cursor.pace = Pace::Behind;
            }
        }
    }

    /// Sends an event to those who want it and are live. One that is not may fall `lag_bytes_max`
    /// bytes of the log behind; beyond that its connection is given up.
    pub fn publish(&mut self, session: &SessionKey, logged: Logged, lag_bytes_max: usize) {
        let wanted = |feed: &Feed<R>| feed.cursors.iter().any(|cursor| cursor.wants(&logged));
        if !self.feeds.values().any(wanted) {
            return;
        }
        let event = Published::new(session.clone(), logged);
        for feed in self.feeds.values_mut() {
            feed.publish(&event, lag_bytes_max);
        }
        self.drop_finished();
    }

    /// Which reads would help: one for each cursor that is behind and whose connection has room.
    /// They count as under way until [`Self::caught`].
    pub fn missing(&mut self) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (connection, feed) in &mut self.feeds {
            if feed.is_full {
                continue;
            }
            for cursor in feed.cursors.iter_mut().filter(|cursor| cursor.pace == Pace::Behind) {
                cursor.pace = Pace::Reading;
                let run = match &cursor.wanted {
                    Wanted::Run(run) => Some(run.clone()),
                    Wanted::Session => None,
                };
                missing.push(Missing {
                    connection: *connection,
                    ticket: cursor.ticket,
                    run,
                    after: cursor.at,
                });
            }
        }
        missing
    }

    /// What a read gave, in order. `is_all` says that nothing was published that it did not give.
    pub fn caught(&mut self, session: &SessionKey, missing: &Missing, events: Vec<Logged>, is_all: bool) {
        let Some(feed) = self.feeds.get_mut(&missing.connection) else { return };
        let find = |feed: &Feed<R>| {
            feed.cursors
                .iter()
                .position(|cursor| cursor.ticket == missing.ticket && cursor.pace == Pace::Reading)
        };
        for logged in events {
            // Each event may be the last of a run, and its cursor with it.
            let Some(index) = find(feed) else { break };
            feed.offer(index, &Published::new(session.clone(), logged));
        }
        if let Some(index) = find(feed) {
            let cursor = &mut feed.cursors[index];
            cursor.pace = if is_all { Pace::Live } else { Pace::Behind };
            if is_all {
                cursor.lag_bytes = 0;
            }
        }
        self.drop_finished();
    }

    /// Ends what is told of single runs with the event that `end` makes, outside the log; who
    /// follows the whole session goes on.
    pub fn end_runs(&mut self, session: &SessionKey, end: impl Fn(RunId) -> Logged) {
        for feed in self.feeds.values_mut() {
            for index in (0..feed.cursors.len()).rev() {
                let Wanted::Run(run) = &feed.cursors[index].wanted else { continue };
                let event = Published::new(session.clone(), end(run.clone()));
                let cursor = feed.cursors.remove(index);
                feed.road.send(cursor.ticket, &event);
            }
        }
        self.drop_finished();
    }

    fn drop_finished(&mut self) {
        self.feeds.retain(|_, feed| !feed.cursors.is_empty());
    }
}

impl Cursor {
    fn wants(&self, logged: &Logged) -> bool {
        let is_wanted = match &self.wanted {
            Wanted::Run(run) => logged.run.as_ref() == Some(run),
            Wanted::Session => true,
        };
        is_wanted && logged.seq > self.at
    }
}

impl<R: Road> Feed<R> {
    fn publish(&mut self, event: &Arc<Published>, lag_bytes_max: usize) {
        // Backwards: one that has come to its end leaves.
        for index in (0..self.cursors.len()).rev() {
            let Some(cursor) = self.cursors.get_mut(index) else { continue };
            if !cursor.wants(&event.logged) {
                continue;
            }
            if cursor.pace == Pace::Live {
                self.offer(index, event);
                continue;
            }
            cursor.lag_bytes = cursor.lag_bytes.saturating_add(event.bytes());
            if cursor.lag_bytes > lag_bytes_max {
                self.road.lag();
                self.cursors.clear();
                return;
            }
        }
    }

    /// Sends the event to a cursor that wants it, if the road has room.
    fn offer(&mut self, index: usize, event: &Arc<Published>) {
        let Logged { seq, run, event: what, .. } = &event.logged;
        let cursor = &mut self.cursors[index];
        if !cursor.wants(&event.logged) {
            return;
        }
        let is_end = matches!(what, Event::Ended { .. });
        let own = run.as_ref().and_then(|run| self.own.iter().position(|(own, _)| own == run));
        if let Some(own) = own
            && is_end
        {
            self.own[own].1 = Some(*seq);
        }
        if own.is_none() || cursor.wanted != Wanted::Session {
            if self.is_full {
                cursor.pace = Pace::Behind;
                return;
            }
            match self.road.send(cursor.ticket, event) {
                Sent::Taken => {}
                Sent::Full => {
                    self.is_full = true;
                    cursor.pace = Pace::Behind;
                    return;
                }
                Sent::Closed => return self.cursors.clear(),
            }
        }
        cursor.at = *seq;
        cursor.lag_bytes = cursor.lag_bytes.saturating_sub(event.bytes());
        if is_end && cursor.wanted != Wanted::Session {
            self.cursors.remove(index);
        }
        if is_end {
            self.forget_own();
        }
    }

    /// Forgets own runs that have ended and that no cursor over the session will still meet.
    fn forget_own(&mut self) {
        let sessions = self.cursors.iter().filter(|cursor| cursor.wanted == Wanted::Session);
        let passed = sessions.map(|cursor| cursor.at).min().unwrap_or(Seq(u64::MAX));
        let told = |run: &RunId| self.cursors.iter().any(|cursor| cursor.wanted == Wanted::Run(run.clone()));
        self.own.retain(|(run, end)| end.is_none_or(|end| end > passed) || told(run));
    }
}
