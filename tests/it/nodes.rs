//! Many OpenClaw connections at once, and nodes, over real sockets against the binary as it ships.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::openclaw::{self, ask, request};

const OPERATOR: &str = "operator";

/// Opens a connection of protocol 4 in this role and takes hello-ok.
fn connect(address: SocketAddr, role: &str, instance: &str, commands: &[&str]) -> Client {
    let (mode, scopes) =
        if role == OPERATOR { ("ui", json!(["operator.admin"])) } else { ("node", json!([])) };
    let client = json!({
        "id": "test", "version": "1", "platform": "linux", "mode": mode,
        "instanceId": instance, "displayName": instance,
    });
    let about = json!({ "role": role, "scopes": scopes, "commands": commands, "client": client });
    openclaw::connect_with(address, about)
}

/// The next event of this name.
fn event(client: &mut Client, name: &str) -> Value {
    loop {
        let frame = client.receive();
        if frame["event"] == name {
            return frame["payload"].clone();
        }
    }
}

/// Polls until the node is there.
fn node_is_there(operator: &mut Client, node: &str) {
    let start = Instant::now();
    loop {
        let list = ask(operator, "list", "node.list", json!({}));
        let nodes = list["payload"]["nodes"].as_array().cloned().unwrap_or_default();
        if nodes.iter().any(|row| row["nodeId"] == node) {
            return;
        }
        assert!(start.elapsed() < crate::support::TIMEOUT, "{list}");
    }
}

#[test]
fn a_node_does_what_an_operator_asks_and_its_end_is_an_answer() {
    let daemon = Daemon::start();
    let mut operator = connect(daemon.address, OPERATOR, "op", &[]);
    let mut node = connect(daemon.address, "node", "phone", &["camera.snap"]);
    node_is_there(&mut operator, "phone");
    let described = ask(&mut operator, "d", "node.describe", json!({"nodeId": "phone"}));
    assert_eq!(described["payload"]["commands"], json!(["camera.snap"]), "{described}");

    let invoke = json!({"nodeId": "phone", "command": "camera.snap", "params": {"facing": "front"}});
    request(&mut operator, "i1", "node.invoke", invoke.clone());
    let requested = event(&mut node, "node.invoke.request");
    assert_eq!(
        (&requested["command"], &requested["paramsJSON"]),
        (&json!("camera.snap"), &json!(r#"{"facing":"front"}"#))
    );
    let result =
        json!({"id": requested["id"], "nodeId": "phone", "ok": true, "payloadJSON": "{\"seen\":\"a cat\"}"});
    assert_eq!(ask(&mut node, "r1", "node.invoke.result", result)["ok"], true);
    let answer = operator.reply("i1");
    assert_eq!(answer["payload"]["payload"], json!({"seen": "a cat"}), "{answer}");

    let refused =
        ask(&mut operator, "i2", "node.invoke", json!({"nodeId": "phone", "command": "system.run"}));
    assert_eq!(refused["error"]["code"], "INVALID_REQUEST", "{refused}");

    request(&mut operator, "i3", "node.invoke", invoke.clone());
    event(&mut node, "node.invoke.request");
    drop(node);
    let ended = operator.reply("i3");
    let message = ended["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("NOT_CONNECTED"), "{ended}");
    let gone = ask(&mut operator, "i4", "node.invoke", invoke);
    assert_eq!(gone["error"]["code"], "UNAVAILABLE", "{gone}");
}

#[test]
fn a_granted_command_is_a_tool_and_is_not_asked_twice_after_a_crash() {
    let daemon = Daemon::with("[agents.main]\ntools = [\"echo\", \"node:phone/camera.snap\"]\n");
    let mut node = connect(daemon.address, "node", "phone", &["camera.snap", "system.run"]);
    let mut operator = connect(daemon.address, OPERATOR, "op", &[]);
    node_is_there(&mut operator, "phone");
    let mut chat = Client::connect(daemon.address);
    let prompt = chat.prompt("ada", r#"/tool node_phone_camera_snap {"facing":"front"}"#);
    let requested = event(&mut node, "node.invoke.request");
    let result = json!({"id": requested["id"], "nodeId": "phone", "ok": true, "payload": {"seen": "a cat"}});
    ask(&mut node, "r1", "node.invoke.result", result);
    let answer = chat.stream(&prompt);
    let returned = answer.data("tool_result").next().expect("a result");
    assert_eq!(returned["content"], r#"{"seen":"a cat"}"#, "{answer:?}");
    let other = chat.chat("ada", "/tool node_phone_system_run {}");
    assert!(other.text().contains("There is no tool"), "deny by default: {other:?}");

    // Killed in the middle of a call: nobody knows whether it was done, so it is not done again.
    chat.prompt("ada", "/tool node_phone_camera_snap {}");
    event(&mut node, "node.invoke.request");
    let daemon = daemon.kill_and_restart();
    let mut node = connect(daemon.address, "node", "phone", &["camera.snap"]);
    let mut chat = Client::connect(daemon.address);
    let prompt = chat.prompt("ada", "still there?");
    let last = chat.stream(&prompt);
    assert!(last.text().contains("still there?"), "{last:?}");
    let answer = ask(&mut node, "e", "node.event", json!({"event": "exec.started"}));
    assert_eq!(answer["ok"], true);
    let is_asked = |frame: &&String| frame.contains(r#""event":"node.invoke.request""#);
    let asked = node.seen().iter().filter(is_asked).count();
    assert_eq!(asked, 0, "it was not asked again");
}

#[test]
fn who_asks_for_health_is_heard_by_nobody_else() {
    let daemon = Daemon::start();
    let mut silent = connect(daemon.address, OPERATOR, "silent", &[]);
    let mut clients: Vec<Client> =
        (0..64).map(|n| connect(daemon.address, OPERATOR, &format!("c{n}"), &[])).collect();
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(500) {
        for client in &mut clients {
            request(client, "h", "health", json!({}));
        }
        for client in &mut clients {
            let health = client.reply("h");
            assert_eq!(health["payload"]["ok"], true, "{health}");
            calls += 1;
        }
    }
    println!("{} health calls a second over 64 connections", calls * 1000 / start.elapsed().as_millis());
    // What was to reach it has, in order, before this answer.
    ask(&mut silent, "s", "status", json!({}));
    let told =
        |client: &Client| client.seen().iter().filter(|frame| frame.contains(r#""event":"health""#)).count();
    assert_eq!(told(&silent), 0, "a health call is not told to others");
    let most = clients.iter().map(told).max();
    assert_eq!(most, Some(0), "nor to those who called");
}
