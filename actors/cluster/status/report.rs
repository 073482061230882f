//! What operators are told of the cluster.

use std::collections::BTreeMap;
use std::rc::Rc;

use actix::{Handler, ResponseActFuture, WrapFuture as _};
use clawmux_core::cluster::node::{NodeName, NodeState};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::daemon::cluster::{
    ClusterCounts, ClusterNode, ClusterStatus, GetClusterStatus, HandOver, HandedOver, ListSlots,
    LogFollower, LogStatus, SlotOwner,
};
use clawmux_core::error::{Error, ErrorCode};
use serde_json::{Value as Json, json};

use crate::cluster::{Cluster, Figures, now_ms};
use crate::runtime::ask::Typed;
use crate::runtime::clock;

impl Cluster {
    /// How many slots this node owns.
    pub(in crate::cluster) fn held(&self) -> usize {
        Slot::all().filter(|slot| self.ownership.token(*slot).is_some()).count()
    }

    /// How many slots no other daemon has: while they are given away, and where nobody can take them.
    pub(in crate::cluster) fn not_taken(&self) -> usize {
        let me = &self.settings.node;
        Slot::all().filter(|slot| self.ownership.owner(*slot).is_none_or(|owner| owner == me)).count()
    }

    /// What is told of it with all other actors.
    pub(in crate::cluster) fn state(&self) -> Json {
        let Figures { written, transient, refused, unknown, followed_anew } = &self.figures;
        let outlook = &self.outlook;
        let differ = outlook.heard.iter().filter(|(_, peer)| peer.agrees == Some(false));
        let last = outlook.log.as_ref().map(|(extent, ..)| extent.last.0);
        json!({
            "cluster": outlook.about.name,
            "node": self.settings.node.as_str(),
            "state": match self.ownership.state() {
                None => "connecting",
                Some(NodeState::Joining) => "joining",
                Some(NodeState::Live) => "live",
                Some(NodeState::Draining) => "draining",
            },
            "connected": self.engine.is_connected(),
            "connection_losses": self.engine.losses(),
            "nodes": self.ownership.membership().hears(now_ms()).count() + 1,
            "servers_away": outlook.log.as_ref().map(|(_, servers, _)| servers.away()),
            "stores_that_differ": differ.map(|(node, _)| node.as_str()).collect::<Vec<_>>(),
            "slots": self.held(),
            "applied": self.applied,
            "behind": last.map(|last| last.saturating_sub(self.applied)),
            "log_bytes": outlook.log.as_ref().map(|(extent, ..)| extent.bytes),
            "awake": self.awake.len(),
            "stalled": self.stalled.len(),
            "fault": self.why_nothing_can_be_written(now_ms()).map(|error| error.message),
            "written": written,
            "refused": refused,
            "transient": transient,
            "unknown": unknown,
            "followed_anew": followed_anew,
            "slots_gained": outlook.gained,
            "slots_lost": outlook.lost,
            "acks": outlook.acks,
            "ack_us": outlook.ack_us,
        })
    }

    fn status(&self) -> ClusterStatus {
        let outlook = &self.outlook;
        let log = outlook.log.as_ref().map(|(extent, servers, at)| LogStatus {
            first: extent.first.0,
            // The log was looked at a moment ago, and has what the store has.
            last: extent.last.0.max(self.applied),
            bytes: extent.bytes,
            records: extent.records,
            leader: servers.leader.clone(),
            followers: servers
                .followers
                .iter()
                .map(|server| LogFollower {
                    name: server.name.clone(),
                    is_current: server.is_current,
                    is_offline: server.is_offline,
                    lag: server.lag,
                })
                .collect(),
            at: *at,
        });
        let owners = self.owners();
        let figures = &self.figures;
        ClusterStatus {
            name: outlook.about.name.clone(),
            node: self.settings.node.clone(),
            state: self.ownership.state(),
            servers: outlook.about.servers.clone(),
            server: self.engine.server(),
            losses: self.engine.losses(),
            log,
            applied: self.applied,
            fault: self.why_nothing_can_be_written(now_ms()).map(|error| error.message),
            nodes: self.nodes(&owners),
            unowned: Slot::COUNT - owners.values().sum::<usize>(),
            counts: ClusterCounts {
                written: figures.written,
                transient: figures.transient,
                refused: figures.refused,
                unknown: figures.unknown,
                followed_anew: figures.followed_anew,
                gained: outlook.gained,
                lost: outlook.lost,
                awake: self.awake.len(),
                stalled: self.stalled.len(),
            },
        }
    }

    /// How many slots each node owns.
    fn owners(&self) -> BTreeMap<NodeName, usize> {
        let mut owners = BTreeMap::new();
        for owner in Slot::all().filter_map(|slot| self.ownership.owner(slot)) {
            *owners.entry(owner.clone()).or_insert(0) += 1;
        }
        owners
    }

    /// Those that ever joined, or are heard, by their names.
    fn nodes(&self, owners: &BTreeMap<NodeName, usize>) -> Vec<ClusterNode> {
        let (outlook, me) = (&self.outlook, &self.settings.node);
        let mut nodes: BTreeMap<&NodeName, ClusterNode> = BTreeMap::new();
        let joined = outlook.nodes.iter().map(|node| &node.from.node);
        for node in joined.chain(outlook.heard.keys()).chain([me]) {
            let peer = outlook.heard.get(node).filter(|_| node != me);
            let of_bucket = outlook.nodes.iter().find(|joined| joined.from.node == *node);
            let about = of_bucket.and_then(|node| serde_json::from_slice::<Json>(&node.about).ok());
            let known = ClusterNode {
                node: node.clone(),
                epoch: match (peer, of_bucket) {
                    (Some(peer), _) => Some(peer.heartbeat.from.epoch),
                    (None, of_bucket) => of_bucket.map(|node| node.from.epoch),
                },
                state: if node == me {
                    self.ownership.state()
                } else {
                    peer.map(|peer| peer.heartbeat.state)
                },
                heard: if node == me { Some(clock::now()) } else { peer.map(|peer| peer.at) },
                is_alive: node == me
                    || self.ownership.membership().hears(now_ms()).any(|heard| heard == node),
                version: about.and_then(|about| about["version"].as_str().map(str::to_owned)),
                slots: owners.get(node).copied().unwrap_or(0),
                applied: if node == me { Some(self.applied) } else { peer.and_then(|peer| peer.applied) },
                agrees: if node == me { Some(true) } else { peer.and_then(|peer| peer.agrees) },
            };
            nodes.insert(node, known);
        }
        nodes.into_values().collect()
    }
}

impl Handler<Typed<GetClusterStatus>> for Cluster {
    type Result = Result<Box<ClusterStatus>, Error>;

    fn handle(&mut self, _: Typed<GetClusterStatus>, _: &mut Self::Context) -> Self::Result {
        Ok(Box::new(self.status()))
    }
}

impl Handler<Typed<ListSlots>> for Cluster {
    type Result = Result<Vec<SlotOwner>, Error>;

    fn handle(
        &mut self,
        Typed(ListSlots { session }): Typed<ListSlots>,
        _: &mut Self::Context,
    ) -> Self::Result {
        let only = session.map(|session| Slot::of(&session));
        let slots = Slot::all().filter(|slot| only.is_none_or(|only| only == *slot));
        let row = |slot| SlotOwner {
            slot,
            owner: self.ownership.owner(slot).cloned(),
            token: self.ownership.token(slot),
        };
        Ok(slots.map(row).collect())
    }
}

impl Handler<Typed<HandOver>> for Cluster {
    type Result = ResponseActFuture<Self, Result<HandedOver, Error>>;

    fn handle(&mut self, Typed(HandOver { node }): Typed<HandOver>, ctx: &mut Self::Context) -> Self::Result {
        let handed = |node: NodeName, slots: Option<usize>| match slots {
            Some(slots) => Ok(HandedOver { node, slots }),
            None => {
                let why = format!("no other node is there that would take the sessions of {node}");
                Err(ErrorCode::Conflict.error(why))
            }
        };
        if let Some(fault) = self.why_nothing_can_be_written(now_ms()) {
            return Box::pin(async move { Err(fault) }.into_actor(self));
        }
        if node == self.settings.node {
            let slots = self.hand_over_as_asked(ctx);
            return Box::pin(async move { handed(node, slots) }.into_actor(self));
        }
        let is_known = self.outlook.nodes.iter().any(|known| known.from.node == node)
            || self.outlook.heard.contains_key(&node);
        if !is_known {
            let error = ErrorCode::NotFound
                .error(format!("there is no node {node} in the cluster: `clawmux cluster nodes` lists them"));
            return Box::pin(async move { Err(error) }.into_actor(self));
        }
        let engine = Rc::clone(&self.engine);
        let asked = async move {
            match engine.ask_to_hand_over(&node).await {
                Ok(slots) => handed(node, slots),
                Err(why) => Err(ErrorCode::Unavailable.error(format!(
                    "the node {node} can't be asked to give its sessions away: {why}; those of a node that is gone are \
                     taken by the others in any case"
                ))),
            }
        };
        Box::pin(asked.into_actor(self))
    }
}
