//! A provider with several keys, and one that takes a few calls at once: how sessions share them, and what
//! every protocol, the commands and the figures say of it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::openclaw;
use crate::support::upstream::{Turn, Upstream};
use crate::support::wundr::Wundr;

/// The keys. Nobody but the provider may ever see one.
const KEYS: [(&str, &str); 2] = [("UP_A", "sk-test-first-geheim"), ("UP_B", "sk-test-second-geheim")];

fn config(base_url: &str, more: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{base_url}\"\n\
         api_key_envs = [\"UP_A\", \"UP_B\"]\n{more}\n[agents.main]\nprovider = \"up\"\nmodel = \"test-model\"\n"
    )
}

/// `/health`, as it is told to who asks for JSON.
fn health_of(daemon: &Daemon) -> Value {
    let mut socket = TcpStream::connect(daemon.address).unwrap();
    let head = "Host: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n";
    write!(socket, "GET /health HTTP/1.1\r\n{head}").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_key_that_is_refused_is_set_aside_and_every_protocol_says_that_something_is_wrong() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_env(&config(&upstream.base_url(), ""), &KEYS);
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "hi").text(), "You said: hi");
    eventually("the first look", || client.call("status", json!({}))["result"]["status"] == "running");
    assert_eq!(health_of(&daemon), json!({ "ok": true, "status": "running" }));

    // It repeats the key it refuses.
    let first = KEYS.iter().find(|(_, key)| upstream.requests()[0].head.contains(key)).unwrap().1;
    upstream.then(Turn::Status(401, None, format!("no: {first}")));
    let answer = client.chat("ada", "and now?");
    assert_eq!(answer.text(), "You said: and now?", "another key is asked at once: {answer:?}");
    let keys: Vec<String> = upstream
        .requests()
        .iter()
        .map(|request| {
            let head = request.head.to_ascii_lowercase();
            head.lines().find(|line| line.starts_with("authorization: ")).unwrap().to_owned()
        })
        .collect();
    assert_eq!((keys.len(), keys[0] == keys[1], keys[1] == keys[2]), (3, true, false), "{keys:?}");

    let is_told = |problem: &str| {
        problem.starts_with("model up/test-model refused the API key (key ")
            && problem.contains(" of 2): it is left alone until ")
    };
    let mut wundr = Wundr::connect(daemon.address);
    let told = eventually("Wundr's health", || {
        Some(wundr.call("health.status", Value::Null)).filter(|health| health["status"] == "degraded")
    });
    assert!(is_told(told["subsystems"]["providers"]["errors"][0].as_str().unwrap()), "{told}");
    assert_eq!(client.call("status", json!({}))["result"]["status"], "degraded");
    assert_eq!(health_of(&daemon), json!({ "ok": true, "status": "degraded" }), "it is alive");
    assert_eq!(daemon.get("/health").1, "ok");
    assert_eq!(daemon.get("/readyz").0, 200, "and takes work");
    let mut claw = openclaw::connect(daemon.address, 3);
    let told = eventually("OpenClaw's health", || {
        let told = openclaw::call(&mut claw, "health", json!({}));
        Some(told).filter(|health| health["status"] == "degraded")
    });
    assert_eq!(told["ok"], true, "prompts are taken: {told}");
    assert!(is_told(told["problems"][0].as_str().unwrap()), "{told}");
    let status = daemon.json_of(&["status"]);
    let left_alone = &status["left_alone"][0];
    assert_eq!(
        (&left_alone["provider"], &left_alone["model"], &left_alone["fault"]),
        (&json!("up"), &json!("test-model"), &json!("auth")),
        "{status}"
    );
    let (refused, _) = KEYS.iter().find(|(_, key)| *key == first).unwrap();
    let said = daemon.stdout_of(&["status"]);
    assert!(
        said.contains("up/test-model is not asked with key ") && said.contains(&format!("({refused})")),
        "{said}"
    );
    let (_, doctor, _) = daemon.run(&["doctor", "--offline"]);
    assert!(doctor.contains("up/test-model is not asked with key "), "{doctor}");
    assert!(daemon.get("/metrics").1.contains("clawmux_provider_left_alone{provider=\"up\"} 1\n"));

    let log = daemon.log();
    assert!(log.contains("key failed, trying the next"), "{log}");
    for (_, key) in KEYS {
        let seen = client.seen().iter().chain(claw.seen()).chain(wundr.seen());
        assert!(seen.clone().all(|frame| !frame.contains(key)), "it is told to a client");
        assert!(!log.contains(key) && !status.to_string().contains(key), "it is in the log or the status");
    }
}

#[test]
fn who_waits_for_a_place_is_told_and_nobody_waits_for_ever_behind_a_crowd() {
    let upstream = Upstream::start();
    let config = config(&upstream.base_url(), "max_concurrent = 1");
    let daemon = Daemon::shared(&config, &[("ada", "user"), ("bob", "user")], &KEYS);
    let connect = |name: &str| Client::connect_with(daemon.address, &key_of(name));
    let send = |client: &mut Client, account: &str, id: &str| {
        let params =
            json!({ "channel": "websocket", "account": account, "content": account, "idempotency_key": id });
        client.send_text(&json!({ "id": id, "method": "chat.send", "params": params }).to_string());
    };
    upstream.then(Turn::HangBody("here".into()));
    let (mut ada, mut bob) = (connect("ada"), connect("bob"));
    send(&mut ada, "a0", "k0");
    ada.find(|frame| frame["event"] == "text");
    // She has three more sessions that wait; bob's comes last, and is the second to begin.
    for at in 1..4 {
        send(&mut ada, &format!("a{at}"), &format!("k{at}"));
    }
    let waiting = |count: usize| {
        let status = daemon.json_of(&["status"]);
        let calls = &status["provider_calls"][0];
        (calls["running"] == 1 && calls["waiting"] == count).then_some(())
    };
    eventually("ada's calls to wait", || waiting(3));
    send(&mut bob, "b", "k");
    eventually("bob's call to wait", || waiting(4));
    let told = bob.find(|frame| frame["event"] == "notice");
    assert_eq!(
        told["data"],
        json!({ "kind": "waiting", "message": "waiting for a place at up: 1 call is under way, the most at once" })
    );
    assert!(daemon.stdout_of(&["status"]).contains("up: 4 calls waiting for a place, 1 of 1 under way"));
    ada.call("chat.abort", json!({ "channel": "websocket", "account": "a0" }));
    bob.find(|frame| frame["event"] == "done");
    for at in 1..4 {
        let id = format!("k{at}");
        ada.find(|frame| frame["id"] == id.as_str() && frame["event"] == "done");
    }
    let said = |request: &Value| {
        let last = request["messages"].as_array().unwrap().last().unwrap().clone();
        last["content"].as_str().unwrap_or_default().to_owned()
    };
    let order: Vec<String> = upstream.requests().iter().map(|request| said(&request.body)).collect();
    assert_eq!(order[0], "a0", "{order:?}");
    assert!(order[..3].contains(&"b".to_owned()), "one of ada's at most is before bob's: {order:?}");
    eventually("all places to be free", || {
        let status = daemon.json_of(&["status"]);
        status["provider_calls"][0]["running"] == 0 && status["provider_calls"][0]["waiting"] == 0
    });
}
