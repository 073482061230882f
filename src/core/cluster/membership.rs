//! Who is alive, by what was heard.
//!
//! A node is dead when neither I nor a majority of those whom I hear have heard it for a lease. The witnesses are there
//! for a partition that is not symmetric: where A and C do not hear each other and B hears both, nobody is dead. What a
//! witness says is as old as its last heartbeat, and each measures by its own clock.
//!
//! Whoever has just begun to listen, or stood still for longer than a lease, has heard nobody for lack of listening:
//! for one lease it holds nobody for dead.
//!
//! Deliberately absent: keys that are renewed in the stream's cluster. Renewals need the same quorum that an election
//! of the stream's leader takes away for seconds, and all leases would lapse at once. And any guarantee: who is held
//! for dead may well be alive, and everything that is written is fenced.

use std::collections::BTreeMap;

use crate::cluster::node::{Epoch, Heartbeat, Incarnation, NODES_MAX, NodeName, NodeState};

/// What one node knows of the others.
#[derive(Clone, Debug)]
pub struct Membership {
    me: NodeName,
    lease_ms: u64,
    /// Since when it listens without having stood still.
    since_ms: u64,
    looked_ms: u64,
    others: BTreeMap<NodeName, Other>,
}

#[derive(Clone, Debug)]
struct Other {
    epoch: Epoch,
    state: NodeState,
    hears: Vec<NodeName>,
    heard_ms: u64,
}

impl Membership {
    /// Begins to listen. `lease_ms` is the silence after which a node counts as dead; `now_ms`, here and below, is the
    /// node's own clock, which never goes back and counts the time a machine sleeps.
    pub fn new(me: NodeName, lease_ms: u64, now_ms: u64) -> Self {
        Self { me, lease_ms, since_ms: now_ms, looked_ms: now_ms, others: BTreeMap::new() }
    }

    /// Time passed. To be called several times a lease, before what was heard since is taken in.
    pub fn look(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.looked_ms) >= self.lease_ms {
            self.since_ms = now_ms;
        }
        self.looked_ms = now_ms;
    }

    /// A heartbeat came. One of an earlier process of the same node is passed over.
    pub fn hear(&mut self, beat: &Heartbeat, now_ms: u64) {
        let Heartbeat { from: Incarnation { node, epoch }, state, hears } = beat;
        let is_old = self.others.get(node).is_some_and(|other| other.epoch > *epoch);
        if *node == self.me || is_old {
            return;
        }
        if self.others.len() >= NODES_MAX && !self.others.contains_key(node) {
            // Names that nobody has any more make room.
            self.others.retain(|_, other| now_ms.saturating_sub(other.heard_ms) < self.lease_ms);
            if self.others.len() >= NODES_MAX {
                return;
            }
        }
        let other = Other { epoch: *epoch, state: *state, hears: hears.clone(), heard_ms: now_ms };
        self.others.insert(node.clone(), other);
    }

    /// Whom this node hears itself, in their order.
    pub fn hears(&self, now_ms: u64) -> impl Iterator<Item = &NodeName> {
        self.heard(now_ms).map(|(node, _)| node)
    }

    fn heard(&self, now_ms: u64) -> impl Iterator<Item = (&NodeName, &Other)> {
        self.others.iter().filter(move |(_, other)| now_ms.saturating_sub(other.heard_ms) < self.lease_ms)
    }

    /// Whether somebody heard it: this node, or a majority of those whom it hears.
    fn is_heard(&self, node: &NodeName, now_ms: u64) -> bool {
        let (mut witnesses, mut hear_it) = (0, 0);
        for (name, other) in self.heard(now_ms) {
            if name == node {
                return true;
            }
            witnesses += 1;
            hear_it += usize::from(other.hears.contains(node));
        }
        2 * hear_it > witnesses
    }

    /// Whether this process of another node is gone: its node is dead, or has a later process.
    pub fn is_dead(&self, who: &Incarnation, now_ms: u64) -> bool {
        let is_outlived = self.others.get(&who.node).is_some_and(|other| other.epoch > who.epoch);
        let is_settled = now_ms.saturating_sub(self.since_ms) >= self.lease_ms;
        is_outlived || (is_settled && !self.is_heard(&who.node, now_ms))
    }

    /// The other nodes that take slots, in their order. Of one that only others hear nothing is known but that it is
    /// there: it is held for live unless it last said something else.
    pub fn takers(&self, now_ms: u64) -> Vec<&NodeName> {
        let told = self.heard(now_ms).flat_map(|(_, other)| &other.hears);
        let mut takers: Vec<&NodeName> = self.others.keys().chain(told).collect();
        takers.sort_unstable();
        takers.dedup();
        takers.retain(|node| {
            let is_live = self.others.get(*node).is_none_or(|other| other.state == NodeState::Live);
            **node != self.me && is_live && self.is_heard(node, now_ms)
        });
        takers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_MS: u64 = 3000;

    fn name(node: &str) -> NodeName {
        NodeName::new(node)
    }

    fn who(node: &str, epoch: u64) -> Incarnation {
        Incarnation { node: name(node), epoch: Epoch(epoch) }
    }

    fn beat(node: &str, epoch: u64, hears: &[&str]) -> Heartbeat {
        let hears = hears.iter().map(|node| name(node)).collect();
        Heartbeat { from: who(node, epoch), state: NodeState::Live, hears }
    }

    /// A node that has listened for a lease, and looks often.
    fn listening() -> Membership {
        let mut membership = Membership::new(name("a"), LEASE_MS, 0);
        (0..=LEASE_MS).step_by(500).for_each(|now_ms| membership.look(now_ms));
        membership
    }

    fn takers(membership: &Membership, now_ms: u64) -> Vec<&str> {
        membership.takers(now_ms).into_iter().map(NodeName::as_str).collect()
    }

    #[test]
    fn no_more_nodes_are_kept_than_there_may_be() {
        let mut membership = listening();
        for number in 0..10 * NODES_MAX {
            membership.hear(&beat(&format!("n{number}"), 1, &[]), 3000);
        }
        assert_eq!(membership.others.len(), NODES_MAX);
        // Those that fell silent make room.
        membership.hear(&beat("late", 1, &[]), 3000 + LEASE_MS);
        assert_eq!(takers(&membership, 3000 + LEASE_MS), ["late"]);
    }

    #[test]
    fn a_node_that_is_silent_for_a_lease_is_dead() {
        let mut membership = listening();
        membership.hear(&beat("b", 7, &[]), 3000);
        assert!(!membership.is_dead(&who("b", 7), 5999) && takers(&membership, 5999) == ["b"]);
        assert!(membership.is_dead(&who("b", 7), 6000) && takers(&membership, 6000).is_empty());
    }

    #[test]
    fn an_earlier_process_is_dead_as_soon_as_a_later_one_is_heard() {
        let mut membership = Membership::new(name("a"), LEASE_MS, 0);
        membership.hear(&beat("b", 7, &[]), 1);
        membership.hear(&beat("b", 6, &[]), 2);
        assert!(membership.is_dead(&who("b", 6), 3) && !membership.is_dead(&who("b", 7), 3));
        assert!(!membership.is_dead(&who("b", 8), 3));
    }

    #[test]
    fn in_an_asymmetric_partition_witnesses_speak_for_whom_i_do_not_hear() {
        let mut membership = listening();
        membership.hear(&beat("b", 1, &["a", "c"]), 3000);
        assert!(!membership.is_dead(&who("c", 2), 3000) && takers(&membership, 3000) == ["b", "c"]);
        // One of two is no majority; two of three are.
        membership.hear(&beat("d", 3, &["a"]), 3000);
        assert!(membership.is_dead(&who("c", 2), 3000));
        membership.hear(&beat("e", 4, &["c"]), 3000);
        assert!(!membership.is_dead(&who("c", 2), 3000));
        // A witness that is silent itself says nothing.
        membership.hear(&beat("d", 3, &["a"]), 5000);
        assert!(membership.is_dead(&who("c", 2), 6000));
    }

    #[test]
    fn who_did_not_listen_holds_nobody_for_dead() {
        let mut membership = Membership::new(name("a"), LEASE_MS, 0);
        (0..5).for_each(|step| membership.look(step * 500));
        assert!(!membership.is_dead(&who("b", 1), 2999) && membership.is_dead(&who("b", 1), 3000));
        // It stood still.
        membership.look(60_000);
        assert!(!membership.is_dead(&who("b", 1), 60_000) && !membership.is_dead(&who("b", 1), 62_999));
        (0..6).for_each(|step| membership.look(60_000 + step * 500));
        assert!(membership.is_dead(&who("b", 1), 63_000));
    }

    #[test]
    fn only_live_nodes_take_slots() {
        let mut membership = listening();
        for (node, state) in [("b", NodeState::Joining), ("c", NodeState::Draining), ("d", NodeState::Live)] {
            membership.hear(&Heartbeat { state, ..beat(node, 1, &["a"]) }, 3000);
        }
        membership.hear(&beat("a", 1, &[]), 3000);
        assert_eq!(takers(&membership, 3001), ["d"]);
        assert_eq!(membership.hears(3001).count(), 3);
    }
}
