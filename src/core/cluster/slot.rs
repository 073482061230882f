//! Which slot and which subject a session has, and which node should own a slot.
//!
//! Sub-agents, their teams and the purse they share live where their root lives: a session's slot follows from the key
//! of its **root**, its subject from its own key. Both are the first bytes of SHA-256, so that every node on every
//! platform comes to the same.
//!
//! The wanted owner of a slot is found by rendezvous hashing: every node has a weight for every slot, and the highest
//! wins. So a node that comes takes its share and moves nothing else, and one that goes leaves only its own share.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::cluster::node::NodeName;
use crate::hex::hex;
use crate::ids::SessionKey;

/// A share of all sessions: what moves from node to node as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// How many there are.
    pub const COUNT: usize = 256;

    /// The slot of this number.
    pub fn new(number: u8) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The slot of this session and of all that have it as their root.
    pub fn of(root: &SessionKey) -> Self {
        Self(SessionId::of(root).0[0])
    }

    /// All of them, by number.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

/// What stands for a session in subjects: the first 16 bytes of SHA-256 of its key, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// That of this session.
    pub fn of(key: &SessionKey) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&Sha256::digest(key.as_str())[..16]);
        Self(id)
    }

    /// Its bytes.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// Which of these nodes should own the slot; none where there are no nodes. Their order does not matter.
pub fn owner_of<'a>(slot: Slot, nodes: impl IntoIterator<Item = &'a NodeName>) -> Option<&'a NodeName> {
    nodes.into_iter().max_by_key(|node| (weight(slot, node), *node))
}

/// What a node weighs for a slot.
fn weight(slot: Slot, node: &NodeName) -> u64 {
    let digest = Sha256::new().chain_update([slot.0]).chain_update(node.as_str()).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn nodes(count: usize) -> Vec<NodeName> {
        (0..count).map(|number| NodeName::new(format!("node-{number}"))).collect()
    }

    /// They are in the stream for ever: they may never become others.
    #[test]
    fn a_session_keeps_its_slot_and_its_subject() {
        let key = SessionKey::parse("main:websocket:ada:main").unwrap();
        assert_eq!(SessionId::of(&key).to_string(), "e41824f2ab516549e0639172ced548ab");
        assert_eq!(Slot::of(&key), Slot::new(SessionId::of(&key).bytes()[0]));
        let nodes = nodes(3);
        let owner =
            |slot| owner_of(Slot::new(slot), &nodes).and_then(|node| node.as_str().strip_prefix("node-"));
        let owners: Vec<&str> = (0..8).filter_map(owner).collect();
        assert_eq!(owners, ["1", "2", "1", "2", "2", "1", "0", "0"]);
    }

    #[test]
    fn every_node_has_its_share() {
        assert_eq!(Slot::all().count(), Slot::COUNT);
        for count in 1..=9 {
            let nodes = nodes(count);
            let mut shares = BTreeMap::new();
            for slot in Slot::all() {
                *shares.entry(owner_of(slot, &nodes).unwrap()).or_insert(0) += 1;
            }
            let fair = Slot::COUNT / count;
            assert_eq!(shares.len(), count);
            let uneven = shares.values().find(|share| **share < fair / 2 || **share > fair * 2);
            assert!(uneven.is_none(), "{count} nodes: {shares:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_moves_but_the_share_of_who_comes_or_goes(
            names in proptest::collection::btree_set("[a-z0-9.-]{1,12}", 1..8),
            slot in any::<u8>(),
            which in any::<prop::sample::Index>(),
        ) {
            let nodes: Vec<NodeName> = names.into_iter().map(NodeName::new).collect();
            let (slot, one) = (Slot::new(slot), which.get(&nodes));
            let with = owner_of(slot, &nodes);
            let without = owner_of(slot, nodes.iter().filter(|node| *node != one));
            prop_assert!(with == Some(one) || with == without);
            prop_assert_eq!(owner_of(slot, nodes.iter().rev()), with);
        }
    }
}
