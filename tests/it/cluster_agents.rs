//! Agents that work for sessions, in a cluster of two daemons: everybody is told of them, and they go on whichever daemon
//! dies.

use serde_json::{Value, json};

use crate::cluster_sessions::{Node, pair};
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::tools::needs;
use crate::support::wundr::Wundr;
use crate::teams::{session, spawning};

/// The daemon that does for all what one does, and the other one.
fn by_lead(pair: [Node; 2]) -> (Node, Node) {
    let [a, b] = pair;
    let first = &a.daemon.rows_of(&["cluster", "slots"])[0];
    assert_eq!(first["slot"], 0, "{first}");
    if first["owner"] == a.name { (a, b) } else { (b, a) }
}

fn spawn(client: &mut Wundr, parent: &Value, task: &str) -> Value {
    client.call("agent.spawn", spawning(parent["id"].as_str(), task))
}

/// Agents are put to work at one daemon, which dies: the other one has them done, and tells for whom they worked.
fn survive(dies: Node, stays: &Node) {
    let mut watcher = Wundr::connect(stays.daemon.address);
    watcher.subscribe(&["agent.*"], Value::Null);
    let mut client = Wundr::connect(dies.daemon.address);
    let parent = session(&mut client);
    let agents = [(); 3].map(|()| spawn(&mut client, &parent, "/slow 4"));
    for agent in &agents {
        let is_it = |payload: &Value| payload["agentId"] == agent["agentId"];
        watcher.event_that("agent.spawned", is_it);
        watcher.event_that("agent.status", |payload| is_it(payload) && payload["status"] == "running");
    }
    dies.daemon.signal("KILL");
    for agent in &agents {
        let is_it = |payload: &Value| payload["agentId"] == agent["agentId"];
        let over = watcher.event_that("agent.status", |payload| {
            is_it(payload) && payload["metrics"]["tasksCompleted"] == 1
        });
        assert_eq!(over["payload"]["status"], "completed", "{over}");
    }
    let mut reader = Client::connect(stays.daemon.address);
    let history = || json!({ "session": parent["sessionKey"], "limit": 100 });
    let results = eventually("the results are where they belong", || {
        let history = reader.call("chat.history", history())["result"]["messages"].to_string();
        (history.matches("has completed its task").count() >= 3).then_some(history)
    });
    for agent in &agents {
        let id = agent["agentId"].as_str().unwrap();
        assert_eq!(results.matches(&format!("({id})")).count(), 1, "{id}: {results}");
    }
}

#[test]
fn agents_go_on_where_the_daemon_dies_that_leads() {
    needs!("nats-server");
    let (_server, pair) = pair();
    let (leads, other) = by_lead(pair);
    survive(leads, &other);
}

#[test]
fn agents_go_on_where_the_daemon_dies_that_put_them_to_work() {
    needs!("nats-server");
    let (_server, pair) = pair();
    let (leads, other) = by_lead(pair);
    survive(other, &leads);
}
