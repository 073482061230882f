//! The engine: the stream with compare-and-set on each subject, and the buckets of slots and nodes. What it accepts is
//! held against the rules at once.

use std::collections::BTreeMap;

use clawmux_core::cluster::ownership::slots::{Claim, Entry};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::{Sequence, Stamp, Token};

use crate::dice::Dice;
use crate::rules::{self, Check};
use crate::table::{Names, TABLE, Wanted, take};
use crate::toy::{Body, Conversation, Event};

/// A message of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored {
    /// The guard of a key, and the run it stands for.
    Guard,
    Record {
        session: usize,
        stamp: Stamp,
        body: Option<Body>,
    },
    /// A record of the table.
    Wanted {
        stamp: Stamp,
        record: Wanted,
    },
}

/// One session, as somebody who reads the whole stream knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    pub(crate) sequences: Vec<(Sequence, Stamp)>,
    pub(crate) highest: Token,
    pub(crate) conversation: Conversation,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) stream: Vec<Stored>,
    pub(crate) subjects: Vec<Subject>,
    /// Whose the guard of a key is, and the run.
    pub(crate) guards: BTreeMap<u32, (Stamp, u32)>,
    /// The run of each key's prompt.
    pub(crate) prompts: BTreeMap<u32, u32>,
    pub(crate) calls: Vec<u32>,
    /// Who has a name in the table.
    pub(crate) names: Names,
    /// All versions of each slot's entry.
    slots: Vec<(Slot, Vec<(Token, Claim)>)>,
    revision: u64,
    epoch: u64,
    pub(crate) is_away: bool,
}

impl Engine {
    pub(crate) fn new(sessions: usize, slots: impl Iterator<Item = Slot>) -> Self {
        Self {
            stream: Vec::new(),
            subjects: vec![Subject::default(); sessions + 1],
            guards: BTreeMap::new(),
            prompts: BTreeMap::new(),
            calls: Vec::new(),
            names: Names::new(),
            slots: slots.map(|slot| (slot, Vec::new())).collect(),
            revision: 0,
            epoch: 100,
            is_away: false,
        }
    }

    /// The last sequence of a session's subject.
    pub(crate) fn last(&self, session: usize) -> Sequence {
        self.subjects[session].sequences.last().map_or(Sequence(0), |(sequence, _)| *sequence)
    }

    /// Whether this record is in the stream.
    pub(crate) fn has(&self, session: usize, stamp: Stamp) -> bool {
        self.subjects[session].sequences.iter().any(|(_, found)| *found == stamp)
    }

    /// Takes a record, with the guard of its key where it has one, if what is expected holds.
    pub(crate) fn publish(
        &mut self,
        session: usize,
        expected: Sequence,
        stamp: Stamp,
        body: Option<Body>,
        key: Option<u32>,
    ) -> Check<Option<Sequence>> {
        if self.last(session) != expected || key.is_some_and(|key| self.guards.contains_key(&key)) {
            return Ok(None);
        }
        let is_again = self.has(session, stamp);
        rules::no_record_is_written_twice(is_again, session, stamp)?;
        let subject = &mut self.subjects[session];
        rules::tokens_never_decrease(subject.highest, session, stamp)?;
        subject.highest = stamp.token;
        if let Some(body) = &body {
            rules::a_record_follows(subject.conversation.apply(body), session, stamp, body)?;
            for event in [Some(body.event), body.then].into_iter().flatten() {
                match event {
                    Event::Prompted { key, run } => {
                        rules::no_prompt_is_there_twice(key, self.prompts.insert(key, run), run)?;
                    }
                    Event::Called { call } => self.calls.push(call),
                    _ => {}
                }
            }
        }
        if let (Some(key), Some(Body { event: Event::Prompted { run, .. }, .. })) = (key, body) {
            self.guards.insert(key, (stamp, run));
            self.stream.push(Stored::Guard);
        }
        self.stream.push(Stored::Record { session, stamp, body });
        let sequence = Sequence(self.stream.len() as u64);
        self.subjects[session].sequences.push((sequence, stamp));
        Ok(Some(sequence))
    }

    /// Takes a record of the table, if what is expected holds.
    pub(crate) fn want(
        &mut self,
        expected: Sequence,
        stamp: Stamp,
        record: Wanted,
    ) -> Check<Option<Sequence>> {
        if self.last(TABLE) != expected {
            return Ok(None);
        }
        rules::no_record_is_written_twice(self.has(TABLE, stamp), TABLE, stamp)?;
        take(&mut self.names, record);
        self.stream.push(Stored::Wanted { stamp, record });
        let sequence = Sequence(self.stream.len() as u64);
        self.subjects[TABLE].sequences.push((sequence, stamp));
        Ok(Some(sequence))
    }

    /// Which record of a session comes before this one, 0 = none.
    pub(crate) fn before(&self, session: usize, stamp: Stamp) -> Option<Sequence> {
        let sequences = &self.subjects[session].sequences;
        let at = sequences.iter().position(|(_, found)| *found == stamp)?;
        Some(at.checked_sub(1).map_or(Sequence(0), |before| sequences[before].0))
    }

    /// What a session has after a sequence; where it is stale, not all of it. Says whether it is.
    pub(crate) fn read(
        &self,
        session: usize,
        after: Sequence,
        stale: Option<&mut Dice>,
    ) -> (Vec<(Sequence, Stamp)>, bool) {
        let sequences = &self.subjects[session].sequences;
        let mut found = sequences[sequences.partition_point(|(sequence, _)| *sequence <= after)..].to_vec();
        let all = found.len();
        if let Some(dice) = stale {
            found.truncate(dice.below(all + 1));
        }
        let is_stale = found.len() < all;
        (found, is_stale)
    }

    /// A node's record is written: its epoch.
    pub(crate) fn join(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// The entries of all slots; where it is stale, some of them from the past. Says whether any is.
    pub(crate) fn poll(&self, mut stale: Option<&mut Dice>) -> (Vec<Entry>, bool) {
        let mut is_stale = false;
        let mut entries = Vec::new();
        for (slot, versions) in &self.slots {
            let back = stale.as_mut().map_or(0, |dice| dice.below(3).min(versions.len()));
            is_stale |= back > 0;
            if let Some((revision, claim)) = versions[..versions.len() - back].last() {
                entries.push(Entry { slot: *slot, revision: *revision, claim: claim.clone() });
            }
        }
        (entries, is_stale)
    }

    /// Writes a slot's entry, if its revision is the expected one.
    pub(crate) fn write_slot(&mut self, slot: Slot, expected: Token, claim: Claim) -> Option<Token> {
        let (_, versions) = self.slots.iter_mut().find(|(of, _)| *of == slot)?;
        if versions.last().map_or(Token(0), |(revision, _)| *revision) != expected {
            return None;
        }
        self.revision += 1;
        versions.push((Token(self.revision), claim));
        Some(Token(self.revision))
    }
}
