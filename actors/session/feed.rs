//! Who follows a session, and how far each has come.
//!
//! A [`Feed`] is one connection with its credit; a [`Cursor`] is what it wants: one run. While a
//! cursor is live, events are sent to it as they are published. Where credit runs out it falls
//! behind, and from then on it is served from the log until it has caught up. A connection that
//! asks for a run again while it is still being told gets it told again afterwards.

use std::collections::HashMap;
use std::sync::Arc;

use actix::Recipient;
use actix::dev::SendError;
use clawmux_core::event::{Event, Logged, Published};
use clawmux_core::ids::{ConnectionId, RunId, Seq, SessionKey};

use crate::deliver::{CREDIT, Client, Deliver, More};

/// All followers of one session.
#[derive(Debug, Default)]
pub struct Feeds {
    feeds: HashMap<ConnectionId, Feed>,
}

#[derive(Debug)]
struct Feed {
    to: Recipient<Deliver>,
    credit: u32,
    cursors: Vec<Cursor>,
}

#[derive(Debug)]
struct Cursor {
    run: RunId,
    /// The last number delivered to it.
    at: Seq,
    pace: Pace,
}

/// How a cursor gets its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As they are published.
    Live,
    /// From the log, when there is credit.
    Behind,
    /// From the log: a read is under way.
    Reading,
    /// Not before the connection's earlier cursor of the run has come to its end.
    Waiting,
}

/// A read from the log that a cursor needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) connection: ConnectionId,
    pub(crate) run: RunId,
    pub(crate) after: Seq,
}

impl Feeds {
    /// Follows a run: from its next event on where `live`, else from the log after `after`.
    pub(crate) fn follow(&mut self, client: &Client, run: RunId, after: Seq, live: bool) {
        let feed = self.feeds.entry(client.connection).or_insert_with(|| Feed {
            to: client.to.clone(),
            credit: CREDIT,
            cursors: Vec::new(),
        });
        let pace = match live {
            _ if feed.cursors.iter().any(|cursor| cursor.run == run) => Pace::Waiting,
            true => Pace::Live,
            false => Pace::Behind,
        };
        feed.cursors.push(Cursor { run, at: after, pace });
    }

    /// The connection is gone.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.feeds.remove(&connection);
    }

    pub(crate) fn len(&self) -> usize {
        self.feeds.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.feeds.is_empty()
    }

    /// Gives a connection credit.
    pub(crate) fn credit(&mut self, connection: ConnectionId, events: u32) {
        if let Some(feed) = self.feeds.get_mut(&connection) {
            feed.credit = (feed.credit + events).min(CREDIT);
        }
    }

    /// Nobody is live any more: all that follows is read from the log.
    pub(crate) fn fall_behind(&mut self) {
        for cursor in self.feeds.values_mut().flat_map(|feed| &mut feed.cursors) {
            if cursor.pace != Pace::Waiting {
                cursor.pace = Pace::Behind;
            }
        }
    }

    /// Sends an event to those who follow its run live.
    pub(crate) fn publish(&mut self, session: &SessionKey, logged: Logged, from: &Recipient<More>) {
        let Some(run) = logged.run.clone() else { return };
        let wanted = |feed: &Feed| feed.cursors.iter().any(|c| c.run == run && c.pace == Pace::Live);
        if !self.feeds.values().any(wanted) {
            return;
        }
        let event = Published::new(session.clone(), logged);
        for feed in self.feeds.values_mut() {
            feed.offer(&run, Pace::Live, &event, from);
        }
        self.drop_finished();
    }

    /// Which reads would help: cursors that are behind and have credit. They count as reading
    /// until [`Self::caught`].
    pub(crate) fn missing(&mut self) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (connection, feed) in &mut self.feeds {
            for cursor in feed.cursors.iter_mut().filter(|_| feed.credit > 0) {
                if cursor.pace == Pace::Behind {
                    cursor.pace = Pace::Reading;
                    missing.push(Missing {
                        connection: *connection,
                        run: cursor.run.clone(),
                        after: cursor.at,
                    });
                }
            }
        }
        missing
    }

    /// What a read gave. `complete` says that there is no more. Gives whether the cursor has moved
    /// or needs no further read; where not, its connection's mailbox is full.
    pub(crate) fn caught(
        &mut self,
        session: &SessionKey,
        missing: &Missing,
        events: Vec<Logged>,
        complete: bool,
        from: &Recipient<More>,
    ) -> bool {
        let Some(feed) = self.feeds.get_mut(&missing.connection) else { return true };
        let read_to = events.last().map_or(missing.after, |logged| logged.seq);
        for logged in events {
            let event = Published::new(session.clone(), logged);
            feed.offer(&missing.run, Pace::Reading, &event, from);
        }
        for cursor in feed.cursors.iter_mut().filter(|c| c.run == missing.run && c.pace == Pace::Reading) {
            cursor.pace = if complete { Pace::Live } else { Pace::Behind };
        }
        let stuck = read_to > missing.after
            && feed.credit > 0
            && feed.cursors.iter().any(|c| c.run == missing.run && c.at == missing.after);
        self.drop_finished();
        !stuck
    }

    /// Ends every follower's run with the event that `end` makes for it, outside the log.
    pub(crate) fn end(
        &mut self,
        session: &SessionKey,
        end: impl Fn(RunId) -> Logged,
        from: &Recipient<More>,
    ) {
        for feed in self.feeds.values_mut() {
            for mut cursor in std::mem::take(&mut feed.cursors) {
                cursor.pace = Pace::Live;
                let run = cursor.run.clone();
                cursor.at = Seq(0);
                let event = Published::new(session.clone(), end(run.clone()));
                feed.credit = feed.credit.max(1);
                feed.cursors = vec![cursor];
                feed.offer(&run, Pace::Live, &event, from);
            }
        }
        self.feeds.clear();
    }

    fn drop_finished(&mut self) {
        self.feeds.retain(|_, feed| !feed.cursors.is_empty());
    }
}

impl Feed {
    /// Sends the event to the cursor of this run and pace, if there is one and there is credit.
    fn offer(&mut self, run: &RunId, pace: Pace, event: &Arc<Published>, from: &Recipient<More>) {
        let Some(index) = self.cursors.iter().position(|c| c.run == *run && c.pace == pace) else { return };
        let cursor = &mut self.cursors[index];
        if event.logged.seq <= cursor.at {
            return;
        }
        if self.credit == 0 {
            cursor.pace = Pace::Behind;
            return;
        }
        match self.to.try_send(Deliver::Event { event: event.clone(), from: from.clone() }) {
            Ok(()) => {
                self.credit -= 1;
                cursor.at = event.logged.seq;
                if matches!(event.logged.event, Event::Ended { .. }) {
                    self.cursors.remove(index);
                    if let Some(next) = self.cursors.iter_mut().find(|c| c.run == *run) {
                        next.pace = Pace::Behind;
                    }
                }
            }
            Err(SendError::Full(_)) => cursor.pace = Pace::Behind,
            Err(SendError::Closed(_)) => self.cursors.clear(),
        }
    }
}
