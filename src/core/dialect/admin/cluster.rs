//! `admin.cluster.*`: how the cluster is, who owns which sessions, and how a node gives them away.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, invalid, method};
use crate::cluster::node::{NodeName, NodeState};
use crate::daemon::cluster::{
    ClusterNode, ClusterStatus, GetClusterStatus, HandOver, ListSlots, LogStatus, SlotOwner,
};
use crate::error::Error;
use crate::ids::SessionKey;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.cluster.status", "{}", status),
    method("admin.cluster.nodes", "{}", nodes),
    method("admin.cluster.slots", r#"{"session"?}"#, slots),
    method("admin.cluster.handover", r#"{"node"}"#, hand_over),
];

/// `admin.cluster.status`: `cluster` and `node` (names), `state` (`connecting`, `joining`, `live`, `draining`), `fault`
/// (why nothing can be written, or null), `servers`, `server` (the one that is connected, or null), `log` (null, or
/// `first`, `last`, `bytes`, `records`, `leader`, `followers` and how many `servers` of how many are `current`, as of
/// `at_ms`), `applied`, `agree` (whether all stores that could be compared are alike; null where none could),
/// `slots_unowned`, `nodes` as `admin.cluster.nodes` tells them, and counts since the start.
fn status(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(GetClusterStatus, |status| told(&status))
}

/// `admin.cluster.nodes`: `{"nodes": [..]}`, those that ever joined, each with its `state` (`gone` where it does not
/// count as alive), `version`, `slots`, `applied` and whether its store `agrees`.
fn nodes(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(GetClusterStatus, |status| json!({ "nodes": nodes_of(&status) }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotsParams {
    #[serde(default)]
    session: Option<String>,
}

/// `admin.cluster.slots`: `{"slots": [..]}`, each with its `owner`, null while nobody has it; of a session, its own.
fn slots(request: &Request) -> Result<Call, Error> {
    let SlotsParams { session } = request.read()?;
    let session = session.map(|key| SessionKey::parse(&key)).transpose()?;
    ask(ListSlots { session }, |slots| json!({ "slots": slots.iter().map(slot).collect::<Vec<_>>() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HandOverParams {
    node: String,
}

/// `admin.cluster.handover`: the node gives its slots away, and takes none until it is started anew: `node`, and the
/// `slots` that it had.
fn hand_over(request: &Request) -> Result<Call, Error> {
    let HandOverParams { node } = request.read()?;
    if node.is_empty() {
        return Err(invalid("name a node: `clawmux cluster nodes` lists them"));
    }
    ask(
        HandOver { node: NodeName::new(node) },
        |handed| json!({ "node": handed.node.as_str(), "slots": handed.slots }),
    )
}

fn told(status: &ClusterStatus) -> Value {
    let counts = status.counts;
    let others = status.nodes.iter().filter(|node| node.node != status.node);
    let compared: Vec<bool> = others.filter_map(|node| node.agrees).collect();
    json!({
        "cluster": status.name,
        "node": status.node.as_str(),
        "state": status.state.map_or("connecting", name),
        "fault": status.fault,
        "servers": status.servers,
        "server": status.server.as_ref().map(|(name, version)| json!({ "name": name, "version": version })),
        "connection_losses": status.losses,
        "log": status.log.as_ref().map(log),
        "applied": status.applied,
        "agree": (!compared.is_empty()).then(|| compared.iter().all(|agrees| *agrees)),
        "slots_unowned": status.unowned,
        "nodes": nodes_of(status),
        "written_total": counts.written,
        "refused_for_a_moment_total": counts.transient,
        "refused_total": counts.refused,
        "unknown_total": counts.unknown,
        "followed_anew_total": counts.followed_anew,
        "slots_gained_total": counts.gained,
        "slots_lost_total": counts.lost,
        "awake": counts.awake,
        "stalled": counts.stalled,
    })
}

fn log(log: &LogStatus) -> Value {
    let (servers, current) = log.quorum();
    let followers = log.followers.iter().map(|server| {
        json!({
            "name": server.name,
            "current": server.is_current,
            "offline": server.is_offline,
            "lag": server.lag,
        })
    });
    json!({
        "first": log.first,
        "last": log.last,
        "bytes": log.bytes,
        "records": log.records,
        "leader": log.leader,
        "followers": followers.collect::<Vec<_>>(),
        "servers": servers,
        "current": current,
        "at_ms": log.at.as_millis(),
    })
}

fn nodes_of(status: &ClusterStatus) -> Vec<Value> {
    let row = |node: &ClusterNode| {
        let is_this = node.node == status.node;
        json!({
            "node": node.node.as_str(),
            "this": is_this,
            "state": if node.is_alive { node.state.map(name) } else { Some("gone") },
            "heard_ms": node.heard.map(|heard| heard.as_millis()),
            "epoch": node.epoch.map(|epoch| epoch.0),
            "version": node.version,
            "slots": node.slots,
            "applied": node.applied,
            "agrees": node.agrees,
        })
    };
    status.nodes.iter().map(row).collect()
}

fn slot(slot: &SlotOwner) -> Value {
    json!({
        "slot": slot.slot.number(),
        "owner": slot.owner.as_ref().map(NodeName::as_str),
        "token": slot.token.map(|token| token.0),
    })
}

fn name(state: NodeState) -> &'static str {
    match state {
        NodeState::Joining => "joining",
        NodeState::Live => "live",
        NodeState::Draining => "draining",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::node::Epoch;
    use crate::daemon::cluster::{ClusterCounts, LogFollower};
    use crate::time::Timestamp;

    fn node(name: &str, agrees: Option<bool>) -> ClusterNode {
        ClusterNode {
            node: NodeName::new(name),
            epoch: Some(Epoch(7)),
            state: Some(NodeState::Live),
            heard: Some(Timestamp::from_millis(5)),
            is_alive: name != "c",
            version: Some("1".into()),
            slots: 85,
            applied: Some(9),
            agrees,
        }
    }

    #[test]
    fn a_node_that_is_silent_is_gone_and_one_store_that_differs_is_enough() {
        let follower =
            |name: &str, is_offline| LogFollower { name: name.into(), is_current: true, is_offline, lag: 0 };
        let log = LogStatus {
            first: 1,
            last: 9,
            bytes: 100,
            records: 9,
            leader: Some("n1".into()),
            followers: vec![follower("n2", false), follower("n3", true)],
            at: Timestamp::from_millis(5),
        };
        let mut status = ClusterStatus {
            name: "clawmux".into(),
            node: "a".into(),
            state: None,
            servers: vec!["nats://a".into()],
            server: None,
            losses: 0,
            log: Some(log),
            applied: 9,
            fault: None,
            nodes: vec![node("a", Some(true)), node("b", None), node("c", None)],
            unowned: 1,
            counts: ClusterCounts::default(),
        };
        let told_of = told(&status);
        assert_eq!((&told_of["agree"], &told_of["state"]), (&Value::Null, &json!("connecting")));
        assert_eq!((&told_of["log"]["servers"], &told_of["log"]["current"]), (&json!(3), &json!(2)));
        let states: Vec<_> = told_of["nodes"].as_array().unwrap().iter().map(|node| &node["state"]).collect();
        assert_eq!(states, ["live", "live", "gone"]);
        status.nodes[1].agrees = Some(true);
        assert_eq!(told(&status)["agree"], true);
        status.nodes[2].agrees = Some(false);
        assert_eq!(told(&status)["agree"], false);
    }
}
