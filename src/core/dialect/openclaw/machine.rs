//! The machine and what runs on it: `system.info`, `environments.list`, `diagnostics.lanes`.

use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::conversation::command::SessionFilter;
use crate::conversation::reply::{SessionList, SessionState};
use crate::daemon::command::{GetMachine, LaneRow, ListLanes, Machine};
use crate::dialect::Turn;
use crate::tools::node::{ListNodes, NodeRow};

/// The environment that is the daemon's own machine.
const GATEWAY: &str = "gateway";

/// How many sessions that run are counted.
const SESSIONS_MAX: usize = 1000;

/// `system.info`
pub(super) fn info(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(GetMachine, |dialect, machine, turn| {
        told(&machine, turn.now().millis_since(dialect.setup.started), &dialect.setup.version)
    })
}

fn told(machine: &Machine, up_ms: u64, version: &str) -> Value {
    json!({
        "machineName": machine.host,
        "hostname": machine.host,
        "platform": machine.platform,
        "release": machine.kernel,
        "arch": machine.architecture,
        "osLabel": machine.system,
        // What the daemon is made of, where others name their Node.
        "nodeVersion": format!("clawmux {version}"),
        "pid": machine.pid,
        "uptimeMs": up_ms,
        "cpuCount": machine.processors,
        "loadAverage": machine.load,
        "memoryTotalBytes": machine.memory_bytes,
        "memoryFreeBytes": machine.memory_free_bytes,
    })
}

/// `environments.list`: the daemon's machine, and the nodes that are connected.
pub(super) fn environments(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask_on(GetMachine, |_, machine, _| {
        Call::ask(ListNodes, move |_, nodes, _| {
            let own = json!({
                "id": GATEWAY, "type": "local", "label": machine.host, "status": "available",
                "platform": machine.platform, "sessionHost": true,
            });
            let all: Vec<_> = std::iter::once(own).chain(nodes.iter().map(environment)).collect();
            json!({ "environments": all })
        })
    })
}

fn environment(node: &NodeRow) -> Value {
    let about = &node.about;
    let mut value = json!({
        "id": &*node.id,
        "type": "node",
        "label": about.display_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&node.id),
        "status": "available",
        "sessionHost": false,
        "lastConnectedAtMs": node.connected.as_millis(),
        "capabilities": about.caps,
        "invocableCommands": about.commands,
    });
    if !about.platform.is_empty() {
        value["platform"] = about.platform.as_str().into();
    }
    value
}

/// `diagnostics.lanes`: the lanes that clients named, and the sessions, each of which is one of its own.
pub(super) fn lanes(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask_on(ListLanes, |_, lanes, _| {
        let running = SessionFilter {
            limit: SESSIONS_MAX,
            state: Some(SessionState::Running),
            ..SessionFilter::default()
        };
        Call::ask(running, move |_, sessions, turn| occupancy(&lanes, &sessions, turn.now().as_millis()))
    })
}

fn occupancy(lanes: &[LaneRow], sessions: &SessionList, now_ms: u64) -> Value {
    let lane = |lane: &LaneRow| {
        json!({
            "lane": lane.name.as_str(),
            "activeCount": lane.active,
            "queuedCount": lane.waiting,
            "maxConcurrent": 1,
        })
    };
    let runs = || sessions.rows.iter().map(|row| row.running.len()).filter(|runs| *runs > 0);
    let count = runs().count();
    let dynamic = (count > 0).then(|| {
        json!({
            "laneCount": count,
            "activeCount": count,
            "queuedCount": runs().map(|runs| runs - 1).sum::<usize>(),
            "queuedLaneCount": runs().filter(|runs| *runs > 1).count(),
        })
    });
    json!({ "ts": now_ms, "lanes": lanes.iter().map(lane).collect::<Vec<_>>(), "dynamic": dynamic })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_told_as_they_are() {
        let lanes = [LaneRow { name: "nightly".into(), active: 1, waiting: 2 }];
        let told = occupancy(&lanes, &SessionList::default(), 7);
        let lane = json!({"lane": "nightly", "activeCount": 1, "queuedCount": 2, "maxConcurrent": 1});
        assert_eq!(told, json!({"ts": 7, "lanes": [lane], "dynamic": null}));
    }
}
