//! Talking over OpenClaw, with connections that are cut, that only listen, and runs that take too long.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::openclaw::{self, ask as call};

/// How many clients are cut off at once, each at another moment.
const CUT: u64 = 6;

/// Opens a connection of protocol 4 and takes hello-ok.
fn connect(address: SocketAddr) -> Client {
    openclaw::connect_with(address, json!({ "minProtocol": 4, "scopes": ["operator.admin"] }))
}

fn send(client: &mut Client, id: &str, key: &str, message: &str) -> Value {
    let params = json!({ "sessionKey": key, "message": message, "idempotencyKey": format!("run-{key}") });
    call(client, id, "chat.send", params)
}

/// What a client that appends has of a run, up to its end or until it has enough; the end, where it came.
fn follow(client: &mut Client, run: &str, is_enough: impl Fn(&str) -> bool) -> (String, Option<Value>) {
    follow_on(client, run, String::new(), is_enough)
}

/// The same of one that has this already.
fn follow_on(
    client: &mut Client,
    run: &str,
    mut said: String,
    is_enough: impl Fn(&str) -> bool,
) -> (String, Option<Value>) {
    loop {
        let frame = match client.take_kept() {
            Some(frame) => frame,
            None => client.receive(),
        };
        let payload = &frame["payload"];
        if frame["event"] != "chat" || payload["runId"] != run {
            continue;
        }
        if payload["state"] != "delta" {
            return (said, Some(payload.clone()));
        }
        if payload["replace"] == true {
            said.clear();
        }
        said.push_str(payload["deltaText"].as_str().unwrap_or_else(|| panic!("{frame}")));
        if let Some(whole) = payload["message"]["content"][0]["text"].as_str() {
            assert_eq!(said, whole, "who appends has what who replaces has");
        }
        if is_enough(&said) {
            return (said, None);
        }
    }
}

fn text(end: &Value) -> &str {
    end["message"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{end}"))
}

const SLOWLY: &str = "Slowly: 1 2 3 4 done.";

/// Follows an answer over connections that are cut; whether it was under way at each cut.
fn is_told_over_cuts(address: SocketAddr, at: u64, attempt: u32) -> bool {
    let key = format!("cut{at}-{attempt}");
    let run = format!("run-{key}");
    let mut client = connect(address);
    let started = send(&mut client, "1", &key, "/slow 4");
    assert_eq!(started["payload"]["status"], "started", "{started}");
    for cut in 0..3 {
        // Where it comes back while it is told, right at a word and a little later.
        let enough = format!(" {}", 1 + cut);
        let (_, end) = follow(&mut client, &run, |said| said.contains(&enough));
        assert_eq!(end, None, "it goes on");
        std::thread::sleep(Duration::from_millis(at * 150 % 900));
        client = connect(address);
        let again = send(&mut client, "1", &key, "/slow 4");
        if again["payload"]["status"] == "ok" {
            return false;
        }
        assert_eq!(again["payload"]["runId"], json!(run), "{again}");
        assert_eq!(again["payload"]["status"], "in_flight", "{again}");
    }
    let (said, end) = follow(&mut client, &run, |_| false);
    let end = end.unwrap_or_else(|| panic!("no end after {said:?}"));
    assert_eq!((said.as_str(), text(&end)), (SLOWLY, SLOWLY));

    // Over another connection it is over.
    let mut client = connect(address);
    assert_eq!(send(&mut client, "1", &key, "/slow 4")["payload"]["status"], "ok");
    let asked = json!({ "sessionKey": key, "message": "/slow 4", "idempotencyKey": run });
    let answer = call(&mut client, "2", "agent", asked);
    assert_eq!(answer["payload"]["result"]["payloads"][0]["text"], SLOWLY, "{answer}");
    // Of the others, who run at the same time, it may be told.
    let is_told = |frame: &&String| frame.contains("\"event\":\"chat\"") && frame.contains(&run);
    let told = client.seen().iter().filter(is_told).count();
    assert_eq!(told, 0, "{:#?}", client.seen());
    true
}

#[test]
fn a_prompt_that_is_sent_again_after_a_cut_is_told_once_and_whole() {
    let daemon = Daemon::start();
    let address = daemon.address;
    let clients = (0..CUT).map(|at| {
        std::thread::spawn(move || {
            // On a machine that stands still the answer is over before it is cut: then with another one.
            let is_told = |attempt: u32| is_told_over_cuts(address, at, attempt);
            assert!((0..5).any(is_told), "the answer was over each time before it was cut");
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().expect("it was told once and whole");
    }
}

#[test]
fn who_only_listens_is_told_of_a_run_that_began_before_it_came() {
    let daemon = Daemon::start();
    let mut speaker = connect(daemon.address);
    send(&mut speaker, "1", "listened", "/slow 4");
    follow(&mut speaker, "run-listened", |said| said.contains(" 1"));
    let mut listener = connect(daemon.address);
    let began = Instant::now();
    let (first, end) = follow(&mut listener, "run-listened", |said| !said.is_empty());
    assert!(first.starts_with("Slowly: 1") && end.is_none(), "the text so far: {first:?}, {end:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "not only with the end");
    let (said, end) = follow_on(&mut listener, "run-listened", first, |_| false);
    let end = end.unwrap_or_else(|| panic!("no end after {said:?}"));
    assert_eq!((said.as_str(), text(&end)), (SLOWLY, SLOWLY));
    assert_eq!(end["sessionKey"], "agent:main:listened");
}

#[test]
fn a_run_ends_when_its_time_is_over_whoever_is_there_and_after_a_restart() {
    let daemon = Daemon::start();
    let bounded = |key: &str, millis: u64| {
        let run = format!("run-{key}");
        json!({ "sessionKey": key, "message": "/slow 60", "idempotencyKey": run, "timeoutMs": millis })
    };
    let mut client = connect(daemon.address);
    call(&mut client, "1", "chat.send", bounded("short", 1500));
    let (said, end) = follow(&mut client, "run-short", |_| false);
    let end = end.unwrap_or_default();
    assert_eq!((&end["state"], &end["stopReason"]), (&json!("aborted"), &json!("timeout")), "{said}: {end}");

    // Nobody is there, and then not even the daemon.
    call(&mut client, "2", "chat.send", bounded("left", 1500));
    call(&mut client, "3", "chat.send", bounded("killed", 2500));
    drop(client);
    let mut client = connect(daemon.address);
    let wait = |run: &str| json!({ "runId": run, "timeoutMs": 30_000 });
    let left = call(&mut client, "1", "agent.wait", wait("run-left"));
    assert_eq!(left["payload"]["stopReason"], "timeout", "{left}");
    let daemon = daemon.kill_and_restart();
    let mut client = connect(daemon.address);
    let killed = call(&mut client, "1", "agent.wait", wait("run-killed"));
    assert_eq!(killed["payload"]["stopReason"], "timeout", "{killed}");

    // Who is told to stop stops for that.
    send(&mut client, "2", "stopped", "/slow 60");
    let stop = json!({ "sessionKey": "stopped", "message": "/stop", "idempotencyKey": "s" });
    assert_eq!(call(&mut client, "3", "chat.send", stop)["payload"]["aborted"], true);
    let (_, end) = follow(&mut client, "run-stopped", |_| false);
    assert_eq!(end.unwrap_or_default()["stopReason"], "stop");
}

#[test]
fn a_job_is_run_by_its_name_where_no_other_has_it() {
    let daemon = Daemon::start();
    let mut client = connect(daemon.address);
    let mut add = |id: &str| {
        let job = json!({
            "name": "water", "enabled": true, "sessionTarget": "isolated", "wakeMode": "next-heartbeat",
            "schedule": { "kind": "every", "everyMs": 3_600_000 },
            "payload": { "kind": "agentTurn", "message": "hello" },
        });
        let added = call(&mut client, id, "cron.add", job);
        assert_eq!(added["ok"], true, "{added}");
        added["payload"]["id"].as_str().map(str::to_owned)
    };
    let first = add("1");
    let mut other = connect(daemon.address);
    let run = json!({ "id": "water", "mode": "force" });
    let ran = call(&mut other, "2", "cron.run", run.clone());
    let id = ran["payload"]["runId"].as_str().unwrap_or_default();
    assert!(first.as_deref().is_some_and(|first| id.starts_with(first)), "{ran}");
    add("3");
    let refused = call(&mut other, "4", "cron.run", run);
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(refused["ok"] == false && why.contains("2 jobs"), "{refused}");
}
