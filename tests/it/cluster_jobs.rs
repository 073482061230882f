//! Jobs in a cluster of two daemons: what becomes of one is told everywhere.

use serde_json::{Value, json};

use crate::cluster_sessions::pair;
use crate::support::openclaw::{call, connect};
use crate::support::tools::needs;

#[test]
fn clients_of_both_daemons_are_told_what_becomes_of_a_job() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (mut at_a, mut at_b) = (connect(a.daemon.address, 4), connect(b.daemon.address, 4));
    let job = json!({
        "name": "water", "enabled": true, "sessionTarget": "isolated", "wakeMode": "next-heartbeat",
        "schedule": { "kind": "every", "everyMs": 3_600_000 },
        "payload": { "kind": "agentTurn", "message": "hello" },
    });
    let added = call(&mut at_a, "cron.add", job);
    let id = added["id"].as_str().unwrap_or_else(|| panic!("{added}")).to_owned();
    let mut told = |action: &str| {
        at_b.find(|frame: &Value| {
            let payload = &frame["payload"];
            frame["event"] == "cron" && payload["action"] == action && payload["jobId"] == id.as_str()
        })
    };
    told("added");
    let patch = json!({ "id": id, "patch": { "name": "rain" } });
    call(&mut at_a, "cron.update", patch);
    told("updated");
    call(&mut at_a, "cron.remove", json!({ "id": id }));
    told("removed");
}
