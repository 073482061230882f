//! What operators ask of the cluster that a daemon is part of, and what they are answered.

use crate::cluster::node::{Epoch, NodeName, NodeState};
use crate::cluster::slot::Slot;
use crate::cluster::stamp::Token;
use crate::ids::SessionKey;
use crate::time::Timestamp;

/// Ask how the cluster is, as this daemon sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetClusterStatus;

/// Ask who owns which sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSlots {
    /// Only the slot of this session; none = all slots.
    pub session: Option<SessionKey>,
}

/// Have a node give all its slots away, for the others to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The node.
    pub node: NodeName,
}

/// How the cluster is, as one daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The name of the cluster.
    pub name: String,
    /// The daemon that says so.
    pub node: NodeName,
    /// How far it is; none before it has joined.
    pub state: Option<NodeState>,
    /// The servers that are configured.
    pub servers: Vec<String>,
    /// The server that is connected, with its version; none where none is.
    pub server: Option<(String, String)>,
    /// How often the connection was lost.
    pub losses: u64,
    /// The log, as its leader said last; none where it never did.
    pub log: Option<LogStatus>,
    /// The last record that the store has.
    pub applied: u64,
    /// Why nothing can be written; none where it can.
    pub fault: Option<String>,
    /// The nodes that ever joined, by their names.
    pub nodes: Vec<ClusterNode>,
    /// How many slots nobody owns, as far as is known.
    pub unowned: usize,
    /// What happened since the start.
    pub counts: ClusterCounts,
}

/// The log of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStatus {
    /// The first place that has a record.
    pub first: u64,
    /// The last place that was given out.
    pub last: u64,
    /// What is there, in bytes.
    pub bytes: u64,
    /// How many records are there.
    pub records: u64,
    /// The server that leads it; none where it is alone.
    pub leader: Option<String>,
    /// The servers that follow the leader.
    pub followers: Vec<LogFollower>,
    /// When the leader said so.
    pub at: Timestamp,
}

impl LogStatus {
    /// How many servers have the log, and how many of them are there and up to date.
    pub fn quorum(&self) -> (usize, usize) {
        let current = self.followers.iter().filter(|server| server.is_current && !server.is_offline);
        (self.followers.len() + 1, current.count() + 1)
    }
}

/// A server that follows the leader of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFollower {
    /// The server's name.
    pub name: String,
    /// Whether it has what the leader has.
    pub is_current: bool,
    /// Whether it is away.
    pub is_offline: bool,
    /// What it lacks, in records.
    pub lag: u64,
}

/// A node, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// The node.
    pub node: NodeName,
    /// Which of its processes.
    pub epoch: Option<Epoch>,
    /// How far it said it is; none where it was not heard.
    pub state: Option<NodeState>,
    /// When it was heard last; none where it was not. Of the one that says so, now.
    pub heard: Option<Timestamp>,
    /// Whether it counts as alive.
    pub is_alive: bool,
    /// The version of clawmux that it runs.
    pub version: Option<String>,
    /// How many slots it owns.
    pub slots: usize,
    /// The last record that its store has, as it said.
    pub applied: Option<u64>,
    /// Whether its store is the same as that of the one that says so; none where they were not seen at the same record.
    pub agrees: Option<bool>,
}

/// What happened in a daemon's part of its cluster since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// Records that were written.
    pub written: u64,
    /// Refusals for a moment.
    pub transient: u64,
    /// Refusals that say nothing by themselves.
    pub refused: u64,
    /// Records of which it had to be found out what became of them.
    pub unknown: u64,
    /// How often the log was followed anew.
    pub followed_anew: u64,
    /// Slots that were gained.
    pub gained: u64,
    /// Slots that another daemon took.
    pub lost: u64,
    /// Subjects of the log that are being written under.
    pub awake: usize,
    /// Those of them of which a record waits for too long.
    pub stalled: usize,
}

/// A slot, as one daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    /// The slot.
    pub slot: Slot,
    /// Who owns it; none where nobody does, or it is changing hands.
    pub owner: Option<NodeName>,
    /// Under which token; known of one's own.
    pub token: Option<Token>,
}

/// A node gives its slots away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// The node.
    pub node: NodeName,
    /// How many slots it had.
    pub slots: usize,
}
