//! Nodes: the daemons of one cluster, their incarnations, and what they say of themselves.

use std::fmt;
use std::sync::Arc;

use crate::ids::text_id;

/// The longest name of a node, in bytes.
pub const NODE_BYTES_MAX: usize = 64;

/// The most nodes that a cluster has: what is heard of more is passed over.
pub const NODES_MAX: usize = 64;

text_id! {
    /// The name of a node: unique in its cluster, and the same after a restart.
    NodeName
}

/// Which incarnation of a node: the revision of its record, as this process wrote it. A later one is higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One process: a node between two restarts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// The node.
    pub node: NodeName,
    /// Which of its processes.
    pub epoch: Epoch,
}

/// How far a node is in its life. Slots go to those that are live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its replica is behind: it can own nothing yet.
    Joining,
    /// It takes slots.
    Live,
    /// It gives its slots away, and takes none.
    Draining,
}

/// What a node says of itself, to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub from: Incarnation,
    /// How far it is.
    pub state: NodeState,
    /// Whom else it has heard within a lease, by its own clock.
    pub hears: Vec<NodeName>,
}

impl Heartbeat {
    /// Whether a node of a cluster can have said it, as far as its size goes.
    pub fn is_bounded(&self) -> bool {
        let is_name = |node: &NodeName| node.as_str().len() <= NODE_BYTES_MAX;
        is_name(&self.from.node) && self.hears.len() <= NODES_MAX && self.hears.iter().all(is_name)
    }
}
