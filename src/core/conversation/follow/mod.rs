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
//! and from then on it is served from the event log until it has caught up: so a slow client costs its
//! place in the event log and nothing else. How far it may fall behind is bounded, in bytes of the event log.
//!
//! A connection that follows a session and also asks for runs in it is told those runs once: under
//! the request that asked for them.
//!
//! There is no mailbox, socket or store in here. Whoever drives this sends ([`Sink`]), reads from
//! the event log what [`Followers::missing`] names and hands it to [`Followers::caught`].

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::conversation::event::{Event, Logged, Published};
use crate::ids::{ConnectionId, RunId, Seq, SessionKey, Ticket};

/// The way to one connection.
pub trait Sink {
    /// Sends an event to the cursor that `ticket` asked for. It covers the numbers from `first` on:
    /// those of events that were left out on purpose with it, but none that should have been sent.
    fn send(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>) -> Sent;

    /// The connection has fallen too far behind and should be closed; said once.
    fn lag(&mut self);

    /// Whether somebody is at its end.
    fn is_open(&self) -> bool;

    /// Whether there is room for an event; where not, [`Followers::room`] is to be called when there
    /// is.
    fn has_room(&mut self) -> bool;
}

/// The most bytes of a prompt or of a tool's result that who follows a session is told, so that one
/// who does not read costs no more than for any other event. Who follows a run is told all of it.
pub const CLIP_BYTES: usize = 32 * 1024;

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
    /// Everything, for as long as the session is awake anyway: nobody stays awake for it, once it
    /// has been told what there is.
    Watch,
    /// Like `Watch`, but nothing of it except tool calls ([`Event::is_of_calls`]): for one who decides
    /// about calls of sessions that are not his. Nothing else of them gets onto his road.
    Calls,
}

impl Wanted {
    /// Whether it is all that happens in the session.
    fn is_all(&self) -> bool {
        !matches!(self, Self::Run(_))
    }

    /// Whether it keeps no session awake.
    fn is_watch(&self) -> bool {
        matches!(self, Self::Watch | Self::Calls)
    }

    /// Whether an event that its cursor comes to is given to it.
    fn shows(&self, event: &Event) -> bool {
        *self != Self::Calls || event.is_of_calls()
    }
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
    /// The first number that the next event it is given covers.
    first: Seq,
    pace: Pace,
    /// Bytes that were published since it was last live and that it has not got.
    lag_bytes: usize,
}

/// How a cursor gets its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As they are published.
    Live,
    /// From the event log, when the road has room.
    Behind,
    /// From the event log: a read is under way.
    Reading,
}

/// A read from the event log that a cursor needs.
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

impl<R: Sink> Followers<R> {
    /// How many connections follow.
    pub fn len(&self) -> usize {
        self.feeds.len()
    }

    /// Whether nobody follows.
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty()
    }

    /// Whether nobody needs the session to be awake: those that only watch it have been told all.
    pub fn is_unneeded(&self) -> bool {
        let mut cursors = self.feeds.values().flat_map(|feed| &feed.cursors);
        cursors.all(|cursor| cursor.wanted.is_watch() && cursor.pace == Pace::Live)
    }

    /// Whether this cursor is there.
    pub fn has(&self, connection: ConnectionId, ticket: Ticket) -> bool {
        let feed = self.feeds.get(&connection);
        feed.is_some_and(|feed| feed.cursors.iter().any(|cursor| cursor.ticket == ticket))
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
        (wanted, after): (Wanted, Seq),
        published: Seq,
        road: impl FnOnce() -> R,
    ) {
        let feed = self.feeds.entry(connection).or_insert_with(|| Feed {
            road: road(),
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
        feed.cursors.push(Cursor { ticket, wanted, at: after, first: after.next(), pace, lag_bytes: 0 });
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

    /// Lets those go that watch, of whom `is_watching` says that they do no longer.
    pub fn keep_watching(&mut self, is_watching: impl Fn(ConnectionId, Ticket) -> bool) {
        for (connection, feed) in &mut self.feeds {
            feed.cursors
                .retain(|cursor| !cursor.wanted.is_watch() || is_watching(*connection, cursor.ticket));
            feed.forget_own();
        }
        self.drop_finished();
    }

    /// The connection is gone.
    pub fn forget(&mut self, connection: ConnectionId) {
        self.feeds.remove(&connection);
    }

    /// Forgets connections that are gone and did not say so.
    pub fn forget_closed(&mut self) {
        self.feeds.retain(|_, feed| feed.road.is_open());
    }

    /// The connection has room again.
    pub fn room(&mut self, connection: ConnectionId) {
        if let Some(feed) = self.feeds.get_mut(&connection) {
            feed.is_full = false;
        }
    }

    /// Nobody is live any more, and no read is under way: all that follows is read from the event log.
    pub fn fall_behind(&mut self) {
        for feed in self.feeds.values_mut() {
            feed.is_full = false;
            for cursor in &mut feed.cursors {
                cursor.pace = Pace::Behind;
            }
        }
    }

    /// Sends an event to those who want it and are live. One that is not may fall `lag_bytes_max`
    /// bytes of the event log behind; beyond that its connection is given up.
    pub fn publish(&mut self, session: &SessionKey, logged: &Logged, lag_bytes_max: usize) {
        let wanted = |feed: &Feed<R>| feed.cursors.iter().any(|cursor| cursor.wants(logged));
        if !self.feeds.values().any(wanted) {
            return;
        }
        let short = logged.event.clipped(CLIP_BYTES);
        let short =
            short.map(|event| Published::clipped(session.clone(), Logged { event, ..logged.clone() }));
        let whole = Published::new(session.clone(), logged.clone());
        let short = short.unwrap_or_else(|| whole.clone());
        for feed in self.feeds.values_mut() {
            feed.publish((&whole, &short), lag_bytes_max);
        }
        self.drop_finished();
    }

    /// Whether a connection that has room is behind with what was published and is not in the event log: the
    /// last number there is `written`, the last that was published `published`.
    pub fn want(&mut self, written: Seq, published: Seq) -> bool {
        let is_due = |cursor: &Cursor| cursor.pace == Pace::Behind && !cursor.is_to_read(written, published);
        written < published
            && self.feeds.values_mut().any(|feed| {
                if feed.is_full || !feed.cursors.iter().any(is_due) {
                    return false;
                }
                feed.is_full = !feed.road.has_room();
                !feed.is_full
            })
    }

    /// Which reads would help: one for each connection that has room and a cursor that is behind with something in
    /// the event log, as in [`Self::want`]. They count as under way until [`Self::caught`]; the cursors of a
    /// connection take turns.
    pub fn missing(&mut self, written: Seq, published: Seq) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (connection, feed) in &mut self.feeds {
            if feed.is_full || feed.cursors.iter().any(|cursor| cursor.pace == Pace::Reading) {
                continue;
            }
            let is_due =
                |cursor: &&mut Cursor| cursor.pace == Pace::Behind && cursor.is_to_read(written, published);
            let Some(cursor) = feed.cursors.iter_mut().find(is_due) else { continue };
            if !feed.road.is_open() {
                feed.cursors.clear();
                continue;
            }
            if !feed.road.has_room() {
                feed.is_full = true;
                continue;
            }
            cursor.pace = Pace::Reading;
            let run = match &cursor.wanted {
                Wanted::Run(run) => Some(run.clone()),
                Wanted::Session | Wanted::Watch | Wanted::Calls => None,
            };
            missing.push(Missing { connection: *connection, ticket: cursor.ticket, run, after: cursor.at });
        }
        self.drop_finished();
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
            let short = match feed.cursors[index].wanted {
                Wanted::Run(_) => None,
                Wanted::Session | Wanted::Watch | Wanted::Calls => logged.event.clipped(CLIP_BYTES),
            };
            let event = match short {
                Some(event) => Published::clipped(session.clone(), Logged { event, ..logged }),
                None => Published::new(session.clone(), logged),
            };
            feed.offer(index, &event);
        }
        if let Some(index) = find(feed) {
            let mut cursor = feed.cursors.remove(index);
            cursor.pace = if is_all { Pace::Live } else { Pace::Behind };
            if is_all {
                cursor.lag_bytes = 0;
            }
            feed.cursors.push(cursor);
        }
        self.drop_finished();
    }

    /// Ends what is told of single runs with the event that `end` makes, outside the event log; who
    /// follows the whole session goes on.
    pub fn end_runs(&mut self, session: &SessionKey, end: impl Fn(RunId) -> Logged) {
        for feed in self.feeds.values_mut() {
            for index in (0..feed.cursors.len()).rev() {
                let Wanted::Run(run) = &feed.cursors[index].wanted else { continue };
                let event = Published::new(session.clone(), end(run.clone()));
                let cursor = feed.cursors.remove(index);
                feed.road.send(cursor.ticket, cursor.first, &event);
            }
        }
        self.drop_finished();
    }

    /// Tells everybody who follows the session the last event there is, which is not in its event log, and
    /// lets all of them go.
    pub fn end_all(&mut self, last: &Arc<Published>) {
        for feed in self.feeds.values_mut() {
            let cursors = std::mem::take(&mut feed.cursors);
            for cursor in cursors.iter().filter(|cursor| cursor.wanted.shows(&last.logged.event)) {
                feed.road.send(cursor.ticket, cursor.first.min(last.logged.first_seq), last);
            }
        }
        self.drop_finished();
    }

    fn drop_finished(&mut self) {
        self.feeds.retain(|_, feed| !feed.cursors.is_empty());
        if self.feeds.is_empty() {
            // An empty map may hold on to room for some.
            self.feeds = BTreeMap::new();
        }
    }
}

impl Cursor {
    /// Whether the event log, up to the number `written`, has something that it was not given, or nothing more is to
    /// come there.
    fn is_to_read(&self, written: Seq, published: Seq) -> bool {
        self.at < written || written == published
    }

    fn wants(&self, logged: &Logged) -> bool {
        let is_wanted = match &self.wanted {
            Wanted::Run(run) => logged.run.as_ref() == Some(run),
            Wanted::Session | Wanted::Watch | Wanted::Calls => true,
        };
        is_wanted && logged.seq > self.at
    }
}

impl<R: Sink> Feed<R> {
    /// Sends the event to those of its cursors that are live: `whole` to who follows the run, else
    /// `short`.
    fn publish(&mut self, (whole, short): (&Arc<Published>, &Arc<Published>), lag_bytes_max: usize) {
        // Backwards: one that has come to its end leaves.
        for index in (0..self.cursors.len()).rev() {
            let Some(cursor) = self.cursors.get_mut(index) else { continue };
            let event = if cursor.wanted.is_all() { short } else { whole };
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
        let Logged { first_seq, seq, run, event: what, .. } = &event.logged;
        let cursor = &mut self.cursors[index];
        if !cursor.wants(&event.logged) {
            return;
        }
        if *first_seq <= cursor.at && cursor.pace == Pace::Live && what.streamed().is_some() {
            // A piece of it was told: the rest is cut off for it in the event log.
            cursor.pace = Pace::Behind;
            return;
        }
        if *first_seq > cursor.at.next() {
            if cursor.wanted.is_all() && cursor.pace == Pace::Live {
                // Something between was not published to it: it is in the log.
                cursor.pace = Pace::Behind;
                return;
            }
            cursor.first = *first_seq;
        }
        let is_end = matches!(what, Event::Ended { .. });
        let own = run.as_ref().and_then(|run| self.own.iter().position(|(own, _)| own == run));
        if let Some(own) = own
            && is_end
        {
            self.own[own].1 = Some(*seq);
        }
        if cursor.wanted.shows(what) && (own.is_none() || !cursor.wanted.is_all()) {
            if self.is_full {
                cursor.pace = Pace::Behind;
                return;
            }
            match self.road.send(cursor.ticket, cursor.first, event) {
                Sent::Taken => cursor.first = seq.next(),
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
        if is_end && !cursor.wanted.is_all() {
            self.cursors.remove(index);
        }
        if is_end {
            self.forget_own();
        }
    }

    /// Forgets own runs that have ended and that no cursor over the session will still meet.
    fn forget_own(&mut self) {
        let sessions = self.cursors.iter().filter(|cursor| cursor.wanted.is_all());
        let passed = sessions.map(|cursor| cursor.at).min().unwrap_or(Seq(u64::MAX));
        let told = |run: &RunId| self.cursors.iter().any(|cursor| cursor.wanted == Wanted::Run(run.clone()));
        self.own.retain(|(run, end)| end.is_none_or(|end| end > passed) || told(run));
    }
}
