//! What one node has of the stream: applied in its order, later than it was written.

use std::collections::BTreeMap;

use clawmux_core::cluster::stamp::{Sequence, Stamp, Token, accepts};

use crate::engine::Stored;
use crate::table::{Names, TABLE, take};
use crate::toy::{Body, Conversation, Event};

/// A session in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) last: Sequence,
    pub(crate) highest: Token,
    pub(crate) conversation: Conversation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    /// How many messages of the stream it has.
    pub(crate) applied: usize,
    pub(crate) sessions: Vec<Kept>,
    /// The run of each key.
    pub(crate) keys: BTreeMap<u32, u32>,
    /// The last record of the table.
    pub(crate) table: Sequence,
    pub(crate) names: Names,
    /// Depends on every record that counts.
    pub(crate) digest: u64,
}

impl Replica {
    pub(crate) fn new(sessions: usize) -> Self {
        let (keys, names) = Default::default();
        Self {
            applied: 0,
            sessions: vec![Kept::default(); sessions],
            keys,
            table: Sequence(0),
            names,
            digest: 0,
        }
    }

    /// Applies the next message. Gives the session, or the table, the sequence and the stamp where it is a record.
    pub(crate) fn apply(&mut self, stored: &Stored) -> Option<(usize, Sequence, Stamp)> {
        self.applied += 1;
        let sequence = Sequence(self.applied as u64);
        let (session, stamp, body) = match *stored {
            Stored::Guard => return None,
            Stored::Wanted { stamp, record } => {
                self.table = sequence;
                take(&mut self.names, record);
                self.digest = self.digest.wrapping_mul(31).wrapping_add(record.by as u64);
                return Some((TABLE, sequence, stamp));
            }
            Stored::Record { session, stamp, body } => (session, stamp, body),
        };
        let kept = &mut self.sessions[session];
        kept.last = sequence;
        if accepts(kept.highest, stamp.token) {
            kept.highest = stamp.token;
            // What makes no sense was found when it was written.
            if let Some(body) = &body
                && kept.conversation.apply(body).is_ok()
            {
                self.digest = self.digest.wrapping_mul(31).wrapping_add(print(session, body));
                if let Event::Prompted { key, run } = body.event {
                    self.keys.insert(key, run);
                }
            }
        }
        Some((session, sequence, stamp))
    }
}

fn print(session: usize, body: &Body) -> u64 {
    let of = |event: Event| match event {
        Event::Prompted { key, run } => u64::from(key) << 32 | u64::from(run),
        Event::Called { call } => 1 << 60 | u64::from(call),
        Event::Returned { call } => 2 << 60 | u64::from(call),
        Event::Interrupted { call } => 3 << 60 | u64::from(call),
        Event::Ended { run } => 4 << 60 | u64::from(run),
    };
    of(body.event)
        ^ body.then.map_or(0, of).rotate_left(17)
        ^ (session as u64) << 50
        ^ u64::from(body.first) << 20
}
