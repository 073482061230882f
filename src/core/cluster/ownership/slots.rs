//! The slots of one node: which it claims, holds, hands over and loses.
//!
//! ```text
//!                  it should be mine, and is free                accepted, or read as mine
//!  Unread --read--> Elsewhere -------------------> Claiming ---------------------------> Held
//!    ^                ^  ^                            |                                   | |
//!    |                |  +-- read as another's -------+                                   | |
//!    |                |                                                                   | |
//!    |                +-- read as another's: lost --- Vacating <-- should be another's ---+ |
//!    |                |                                  | its sessions sleep               |
//!    |                +-- accepted, or read as free --- Releasing                           |
//!    +--- a higher token was seen in a session (also while vacating or releasing) ----------+
//! ```
//!
//! Every write is a compare-and-set on the revision that was read last, and a revision never comes back. So a write
//! whose outcome is unknown is made again with the same expectation, at the next poll that still shows it: however many
//! copies arrive and however late, one at most is accepted, and none once anything else was. A poll may be stale; what
//! is older than what is known already is passed over. Only a process itself ever writes its own name into an entry:
//! whoever reads its own name and epoch there owns the slot under that revision, even if it thought otherwise.
//!
//! Nothing here is needed for safety: a node that never looks at all is fenced in each session. Deliberately absent: a
//! clock that ends ownership. A node that can write nothing keeps its slots and stalls at its next record.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::mem;

use crate::cluster::membership::Membership;
use crate::cluster::node::{Epoch, Heartbeat, Incarnation, NodeName, NodeState};
use crate::cluster::slot::{Slot, owner_of};
use crate::cluster::stamp::Token;

/// How often a node says that it is alive, in milliseconds.
pub const BEAT_MS: u64 = 500;

/// How often it reads the slots, in milliseconds; so long too until an unsettled write is made again.
pub const POLL_MS: u64 = 1000;

/// So many slots are vacated at once because another node should have them. A node that drains vacates all at once.
pub const VACATING_MAX: usize = 16;

/// A slot's entry in its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of which slot.
    pub slot: Slot,
    /// Its revision.
    pub revision: Token,
    /// What it says.
    pub claim: Claim,
}

/// What an entry says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Whose the slot is; nobody's once it was handed over.
    pub owner: Option<Incarnation>,
    /// Who was wanted next when it was handed over.
    pub next: Option<NodeName>,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// The node's record was written; its revision is the epoch. Where it is not, [`Action::Join`] is said again.
    Joined(Epoch),
    /// The replica has applied everything that was in the stream when the node joined.
    CaughtUp,
    /// A heartbeat came, of another node.
    Heard(&'a Heartbeat),
    /// The answer to [`Action::ReadSlots`]: all entries there are, in any order. It may be from the past.
    SlotsRead(&'a [Entry]),
    /// A write of a slot was accepted, and got this revision.
    Accepted(Slot, Token),
    /// A session of this slot has a record with this token, which is higher than the slot's own.
    Superseded(Slot, Token),
    /// All sessions of a slot sleep: the answer to [`Action::Vacate`].
    Vacated(Slot),
    /// Give everything away and take nothing more. Before the node has joined there is nothing to give, and this is
    /// passed over.
    Drain,
    /// It is to take part again, instead of being drained. What is being vacated is given away all the same.
    CallOff,
    /// Time passed: at least every [`BEAT_MS`].
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the node's record.
    Join,
    /// Send this to all nodes.
    Beat(Heartbeat),
    /// Read all entries.
    ReadSlots,
    /// Write this entry if the slot's revision is still the expected one (0 = there is no entry). Only that it was
    /// accepted has to be told; a refusal or an unknown outcome settles itself with the next poll.
    WriteSlot {
        /// Which.
        slot: Slot,
        /// The revision it must have.
        expected: Token,
        /// What it shall say.
        claim: Claim,
    },
    /// The slot is this node's, under this token.
    Gained(Slot, Token),
    /// Let its runs end, put its sessions to sleep, then say [`Input::Vacated`]; bounded by the caller's clock.
    Vacate(Slot),
    /// The slot was given away, and all its sessions slept before.
    Released(Slot),
    /// The slot is another's: its sessions end here.
    Lost(Slot),
    /// The node has given everything away. Said once.
    Drained,
}

/// The slots of one node.
#[derive(Debug)]
pub struct Ownership {
    me: NodeName,
    life: Life,
    membership: Membership,
    lease_ms: u64,
    places: BTreeMap<Slot, Place>,
    beat_ms: Option<u64>,
    poll_ms: Option<u64>,
    /// Who takes slots, as of the last look, this node included where it does.
    takers: Vec<NodeName>,
}

/// Joining -> CatchingUp -> Live -> Draining -> Drained; what is gained late is given away in the last one, too. A drain
/// that is called off leads back to Live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Joining,
    CatchingUp(Epoch),
    Live(Epoch),
    Draining(Epoch),
    Drained(Epoch),
}

impl Life {
    fn epoch(self) -> Option<Epoch> {
        match self {
            Self::Joining => None,
            Self::CatchingUp(epoch) | Self::Live(epoch) | Self::Draining(epoch) | Self::Drained(epoch) => {
                Some(epoch)
            }
        }
    }
}

/// A slot as this node knows it.
#[derive(Debug)]
struct Place {
    /// The highest revision that is known.
    revision: Token,
    /// Whom it should belong to; as of the takers.
    wanted: Option<NodeName>,
    holding: Holding,
}

#[derive(Debug, PartialEq, Eq)]
enum Holding {
    /// What the entry of this revision says is not known.
    Unread,
    /// It is not this node's.
    Elsewhere(Claim),
    /// A write of this node is on its way; the entry said this before.
    Claiming(Claim),
    /// It is this node's, under the known revision.
    Held { since_ms: u64 },
    /// Its sessions are being put to sleep.
    Vacating,
    /// They sleep; the entry is to say so.
    Releasing,
}

impl Ownership {
    /// A node that looks after these slots, all of them but in tests. Begins with [`Action::Join`] at the first tick.
    pub fn new(me: NodeName, lease_ms: u64, slots: impl IntoIterator<Item = Slot>, now_ms: u64) -> Self {
        let place = |slot| (slot, Place { revision: Token(0), wanted: None, holding: Holding::Unread });
        Self {
            life: Life::Joining,
            membership: Membership::new(me.clone(), lease_ms, now_ms),
            lease_ms,
            places: slots.into_iter().map(place).collect(),
            beat_ms: None,
            poll_ms: None,
            takers: Vec::new(),
            me,
        }
    }

    /// The token under which this node owns a slot; none where it does not, or is giving it away.
    pub fn token(&self, slot: Slot) -> Option<Token> {
        let place = self.places.get(&slot)?;
        matches!(place.holding, Holding::Held { .. }).then_some(place.revision)
    }

    /// Who owns a slot, as far as this node knows: whom to send commands for its sessions.
    pub fn owner(&self, slot: Slot) -> Option<&NodeName> {
        let place = self.places.get(&slot)?;
        match &place.holding {
            Holding::Held { .. } | Holding::Vacating => Some(&self.me),
            Holding::Elsewhere(claim) => {
                claim.owner.as_ref().map(|owner| &owner.node).or(claim.next.as_ref())
            }
            Holding::Unread | Holding::Claiming(_) | Holding::Releasing => None,
        }
    }

    /// How far this node is; none before it has joined.
    pub fn state(&self) -> Option<NodeState> {
        match self.life {
            Life::Joining => None,
            Life::CatchingUp(_) => Some(NodeState::Joining),
            Life::Live(_) => Some(NodeState::Live),
            Life::Draining(_) | Life::Drained(_) => Some(NodeState::Draining),
        }
    }

    /// Who is alive.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Takes in what happened at `now_ms` of the node's own clock, and adds what is to be done.
    pub fn handle(&mut self, input: Input<'_>, now_ms: u64, actions: &mut Vec<Action>) {
        match input {
            Input::Joined(epoch) => {
                if self.life == Life::Joining {
                    self.life = Life::CatchingUp(epoch);
                }
            }
            Input::CaughtUp => {
                if let Life::CatchingUp(epoch) = self.life {
                    self.life = Life::Live(epoch);
                }
            }
            Input::Heard(beat) => self.membership.hear(beat, now_ms),
            Input::SlotsRead(entries) => self.read(entries, now_ms, actions),
            Input::Accepted(slot, revision) => self.accepted(slot, revision, now_ms, actions),
            Input::Superseded(slot, token) => self.superseded(slot, token, actions),
            Input::Vacated(slot) => self.vacated(slot, actions),
            Input::Drain => {
                if let Some(epoch) = self.life.epoch().filter(|_| !matches!(self.life, Life::Drained(_))) {
                    self.life = Life::Draining(epoch);
                    self.give_away(now_ms, actions);
                }
            }
            Input::CallOff => {
                if let Life::Draining(epoch) | Life::Drained(epoch) = self.life {
                    self.life = Life::Live(epoch);
                }
            }
            Input::Tick => self.tick(now_ms, actions),
        }
    }

    fn tick(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        self.membership.look(now_ms);
        let is_due = |last: Option<u64>, every| last.is_none_or(|last| now_ms.saturating_sub(last) >= every);
        let is_poll_due = is_due(self.poll_ms, POLL_MS);
        if is_poll_due {
            self.poll_ms = Some(now_ms);
        }
        let Some(epoch) = self.life.epoch() else {
            if is_poll_due {
                actions.push(Action::Join);
            }
            return;
        };
        if is_due(self.beat_ms, BEAT_MS) {
            self.beat_ms = Some(now_ms);
            let state = self.state().unwrap_or(NodeState::Joining);
            let hears = self.membership.hears(now_ms).cloned().collect();
            let from = Incarnation { node: self.me.clone(), epoch };
            actions.push(Action::Beat(Heartbeat { from, state, hears }));
        }
        if is_poll_due {
            actions.push(Action::ReadSlots);
        }
    }

    /// Takes in a poll, then claims and gives away.
    fn read(&mut self, entries: &[Entry], now_ms: u64, actions: &mut Vec<Action>) {
        let entries: BTreeMap<Slot, &Entry> = entries.iter().map(|entry| (entry.slot, entry)).collect();
        let Some(epoch) = self.life.epoch() else { return };
        let nobody = Claim::default();
        for (slot, place) in &mut self.places {
            let found = entries.get(slot).map_or((Token(0), &nobody), |entry| (entry.revision, &entry.claim));
            place.read(*slot, found, (&self.me, epoch), now_ms, actions);
        }
        self.take(epoch, now_ms, actions);
        self.give_away(now_ms, actions);
    }

    /// Claims what is free and should be this node's, and writes again what is not settled.
    fn take(&mut self, epoch: Epoch, now_ms: u64, actions: &mut Vec<Action>) {
        self.look_around(now_ms);
        let is_live = matches!(self.life, Life::Live(_));
        let mine = || Claim { owner: Some(Incarnation { node: self.me.clone(), epoch }), next: None };
        for (slot, place) in &mut self.places {
            let Holding::Elsewhere(claim) = &mut place.holding else { continue };
            let is_mine = place.wanted.as_ref() == Some(&self.me) || claim.next.as_ref() == Some(&self.me);
            let is_free = claim.owner.as_ref().is_none_or(|owner| match &owner.node {
                node if *node == self.me => owner.epoch != epoch,
                _ => self.membership.is_dead(owner, now_ms),
            });
            if is_live && is_mine && is_free {
                place.holding = Holding::Claiming(mem::take(claim));
                actions.push(Action::WriteSlot { slot: *slot, expected: place.revision, claim: mine() });
            }
        }
    }

    /// Finds out who takes slots, and, where that is new, who should have which.
    fn look_around(&mut self, now_ms: u64) {
        let mut takers: Vec<NodeName> = self.membership.takers(now_ms).into_iter().cloned().collect();
        if matches!(self.life, Life::Live(_)) {
            takers.push(self.me.clone());
        }
        if takers != self.takers {
            for (slot, place) in &mut self.places {
                place.wanted = owner_of(*slot, &takers).cloned();
            }
            self.takers = takers;
        }
    }

    /// Vacates what another should have, and writes what was vacated.
    fn give_away(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        self.look_around(now_ms);
        let drains = matches!(self.life, Life::Draining(_) | Life::Drained(_));
        let vacating = self.places.values().filter(|place| place.holding == Holding::Vacating).count();
        let mut room = if drains { Slot::COUNT } else { VACATING_MAX.saturating_sub(vacating) };
        for (slot, place) in &mut self.places {
            match place.holding {
                Holding::Held { since_ms } if room > 0 => {
                    let is_anothers = place.wanted.as_ref().is_some_and(|wanted| *wanted != self.me);
                    // Views of who is alive differ for a while: what was just taken is not given back at once.
                    let is_old = now_ms.saturating_sub(since_ms) >= self.lease_ms;
                    if drains || (is_anothers && is_old) {
                        place.holding = Holding::Vacating;
                        room -= 1;
                        actions.push(Action::Vacate(*slot));
                    }
                }
                Holding::Releasing => actions.push(place.release(*slot)),
                _ => {}
            }
        }
        self.end_drain(actions);
    }

    /// A drain is over once nothing is held and no claim is on its way, as far as is known.
    fn end_drain(&mut self, actions: &mut Vec<Action>) {
        let is_elsewhere = |place: &Place| matches!(place.holding, Holding::Unread | Holding::Elsewhere(_));
        if let Life::Draining(epoch) = self.life
            && self.places.values().all(is_elsewhere)
        {
            self.life = Life::Drained(epoch);
            actions.push(Action::Drained);
        }
    }

    fn accepted(&mut self, slot: Slot, revision: Token, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(place) = self.places.get_mut(&slot).filter(|place| place.revision < revision) else {
            return;
        };
        match mem::replace(&mut place.holding, Holding::Unread) {
            Holding::Claiming(_) => place.gain(slot, revision, now_ms, actions),
            Holding::Releasing => {
                (place.revision, place.holding) = (revision, Holding::Elsewhere(place.handed_over()));
                actions.push(Action::Released(slot));
            }
            // A late answer: the entry says what this node wrote, or already something else. The next poll shows it.
            other => place.holding = other,
        }
        self.end_drain(actions);
    }

    fn superseded(&mut self, slot: Slot, token: Token, actions: &mut Vec<Action>) {
        let Some(place) = self.places.get_mut(&slot).filter(|place| place.revision < token) else { return };
        place.revision = token;
        if mem::replace(&mut place.holding, Holding::Unread).is_mine() {
            actions.push(Action::Lost(slot));
        }
        self.end_drain(actions);
    }

    fn vacated(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        if let Some(place) = self.places.get_mut(&slot)
            && place.holding == Holding::Vacating
        {
            place.holding = Holding::Releasing;
            actions.push(place.release(slot));
        }
    }
}

impl Holding {
    fn is_mine(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Vacating | Self::Releasing)
    }
}

impl Place {
    /// Takes in what a poll found.
    fn read(
        &mut self,
        slot: Slot,
        (revision, claim): (Token, &Claim),
        (me, epoch): (&NodeName, Epoch),
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        if revision < self.revision {
            return;
        }
        let is_new = revision > self.revision;
        let is_mine = claim.owner.as_ref().is_some_and(|owner| owner.node == *me && owner.epoch == epoch);
        match mem::replace(&mut self.holding, Holding::Unread) {
            // Its own write is still on its way, or was refused: the same again, where it is still wanted.
            Holding::Claiming(before) if !is_new => self.holding = Holding::Elsewhere(before),
            held if held.is_mine() && !is_new => self.holding = held,
            // An unknown outcome: it was accepted.
            _ if is_mine => self.gain(slot, revision, now_ms, actions),
            held => {
                if held == Holding::Releasing && claim.owner.is_none() {
                    actions.push(Action::Released(slot));
                } else if held.is_mine() {
                    actions.push(Action::Lost(slot));
                }
                self.holding = Holding::Elsewhere(claim.clone());
            }
        }
        self.revision = revision;
    }

    fn gain(&mut self, slot: Slot, revision: Token, now_ms: u64, actions: &mut Vec<Action>) {
        (self.revision, self.holding) = (revision, Holding::Held { since_ms: now_ms });
        actions.push(Action::Gained(slot, revision));
    }

    fn handed_over(&self) -> Claim {
        Claim { owner: None, next: self.wanted.clone() }
    }

    fn release(&self, slot: Slot) -> Action {
        Action::WriteSlot { slot, expected: self.revision, claim: self.handed_over() }
    }
}
