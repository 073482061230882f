//! Tool calls that wait for approval, over real sockets: in every protocol that knows of them, over
//! restarts, and on the command line.

use std::sync::Barrier;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon, key_of};
use crate::support::eventually;
use crate::support::openclaw;
use crate::support::wundr::{Incoming, Wundr};

const ASK: &str = "[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n";
const CALL: &str = r#"/tool echo {"text":"hi"}"#;

/// The next `tool.request`.
fn request(client: &mut Wundr) -> Value {
    client.event("tool.request")["payload"].clone()
}

/// What decides about it.
fn about(request: &Value) -> Value {
    json!({ "sessionId": request["sessionId"], "requestId": request["requestId"] })
}

fn approve(client: &mut Wundr, request: &Value) -> Result<Value, Value> {
    client.try_call("tool.approve", about(request))
}

/// The next event of this name about the call that was asked for.
fn of_call(client: &mut Wundr, name: &str, request: &Value) -> Value {
    let id = request["requestId"].clone();
    client.event_that(name, |payload| payload["requestId"] == id)["payload"].clone()
}

/// Runs `clawmux` on the daemon's home: exit status, stdout, stderr.
fn run(daemon: &Daemon, args: &[&str], stdin: &str) -> (i32, String, String) {
    daemon::output_of(daemon::command(daemon.home()).args(args), stdin.as_bytes())
}

/// The approvals that wait, as scripts see them.
fn waiting(daemon: &Daemon) -> Vec<Value> {
    daemon.rows_of(&["approvals"])
}

/// The one that waits, once it does.
fn waits(daemon: &Daemon) -> Value {
    eventually("a call that waits", || waiting(daemon).pop())
}

fn kinds(stream: &crate::support::client::Stream) -> Vec<String> {
    stream.events().into_iter().filter(|event| *event != "text").map(str::to_owned).collect()
}

#[test]
fn a_call_is_made_when_it_is_approved_with_the_input_that_was_and_the_first_decision_counts() {
    let (daemon, mut approver) = Daemon::with(ASK).and(Wundr::connect);
    approver.subscribe(&["tool.*", "session.status"], Value::Null);
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", CALL);

    let asked = request(&mut approver);
    assert_eq!((&asked["toolName"], &asked["toolInput"]), (&json!("echo"), &json!({"text": "hi"})));
    assert_eq!((&asked["requiresApproval"], &asked["approvalTimeoutMs"]), (&json!(true), &json!(120_000)));
    let mut decision = about(&asked);
    decision["modifiedInput"] = json!({ "text": "instead" });
    let answer = approver.call("tool.approve", decision.clone());
    assert_eq!((&answer["status"], &answer["toolName"]), (&json!("approved"), &json!("echo")));
    let late = approver.try_call("tool.deny", about(&asked)).expect_err("it is decided");
    assert_eq!(late["code"], "CONFLICT", "{late}");

    let result = of_call(&mut approver, "tool.result", &asked);
    assert_eq!((&result["status"], &result["result"]), (&json!("completed"), &json!("instead")));
    let started = approver.seen().iter().filter(|frame| frame.contains("\"started\"")).count();
    assert_eq!(started, 1, "{:#?}", approver.seen());
    approver.event_that("session.status", |payload| payload["metadata"]["activity"] == "idle");
    let frames = approver.seen().iter().map(|frame| serde_json::from_str::<Value>(frame).expect("JSON"));
    let states = frames.filter(|frame| frame["event"] == "session.status");
    let states: Vec<_> = states.map(|frame| frame["payload"]["status"].clone()).collect();
    assert_eq!(states, ["running", "paused", "running", "running"]);

    let answer = client.stream(&prompt);
    assert_eq!(kinds(&answer), ["tool_use", "tool_result", "usage", "done"], "{answer:?}");
    let call = answer.data("tool_use").next().expect("it is shown");
    assert_eq!((&call["input"]["text"], &call["approval"]["id"]), (&json!("hi"), &asked["requestId"]));
    assert_eq!(answer.data("tool_result").next().expect("it answers")["content"], "instead");
}

#[test]
fn the_model_is_told_of_a_denial_and_its_reason() {
    let (daemon, mut approver) = Daemon::with(ASK).and(Wundr::connect);
    approver.subscribe(&["tool.*"], Value::Null);
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", CALL);
    let asked = request(&mut approver);
    for (params, code) in [
        (json!({ "requestId": asked["requestId"] }), "INVALID_REQUEST"),
        (json!({ "sessionId": asked["sessionId"], "requestId": "no" }), "NOT_FOUND"),
        (
            json!({ "sessionId": "7f0c1f5e-0000-4000-8000-000000000000", "requestId": asked["requestId"] }),
            "NOT_FOUND",
        ),
    ] {
        assert_eq!(approver.refused("tool.deny", params.clone())["code"], code, "{params}");
    }
    let mut wrong = about(&asked);
    wrong["modifiedInput"] = json!([1]);
    assert_eq!(approver.refused("tool.approve", wrong)["code"], "INVALID_REQUEST");

    let mut decision = about(&asked);
    decision["reason"] = json!("too noisy");
    assert_eq!(approver.call("tool.deny", decision)["status"], "denied");
    let result = of_call(&mut approver, "tool.result", &asked);
    assert_eq!((&result["status"], &result["error"]), (&json!("denied"), &json!("too noisy")));
    let answer = client.stream(&prompt);
    let told = answer.data("tool_result").next().expect("a result");
    assert!(told["is_error"] == true && told["content"].as_str().is_some_and(|c| c.contains("too noisy")));
    assert!(answer.text().contains("echo failed"), "the model goes on: {}", answer.text());
    let results = approver.seen().iter().filter(|frame| frame.contains(r#""event":"tool.result""#)).count();
    assert_eq!(results, 1, "{:#?}", approver.seen());
}

#[test]
fn who_does_not_decide_in_time_denies() {
    let (daemon, mut approver) =
        Daemon::with(&format!("{ASK}[approvals]\ntimeout_ms = 300\n")).and(Wundr::connect);
    approver.subscribe(&["tool.*"], Value::Null);
    let mut client = Client::connect(daemon.address);
    let answer = client.chat("ada", CALL);
    let told = answer.data("tool_result").next().expect("a result");
    assert!(told["content"].as_str().is_some_and(|c| c.contains("within 300 ms")), "{answer:?}");
    let asked = request(&mut approver);
    assert_eq!(of_call(&mut approver, "tool.result", &asked)["status"], "timeout");
    assert_eq!(approve(&mut approver, &asked).expect_err("too late")["code"], "CONFLICT");
    assert!(waiting(&daemon).is_empty());
}

#[test]
fn what_waits_waits_on_over_a_crash_and_a_stop_and_is_told_to_who_comes_back() {
    let (daemon, mut client) = Daemon::with(ASK).and(Client::connect);
    client.prompt("ada", CALL);
    let before = waits(&daemon);
    let daemon = daemon.kill_and_restart();
    assert_eq!(waits(&daemon), before, "nobody names the session, and it waits as before");
    let daemon = daemon.restart();
    assert_eq!(waits(&daemon), before);

    let mut approver = Wundr::connect(daemon.address);
    let subscription = approver.subscribe(&["tool.request", "tool.result"], Value::Null);
    let asked = request(&mut approver);
    assert_eq!(asked["requestId"], before["approval"], "told at once, under the same id");
    let left = asked["approvalTimeoutMs"].as_u64().expect("a number");
    assert!(left < 120_000, "of its time some is gone: {left}");
    let mut other = Wundr::connect(daemon.address);
    other.subscribe(&["*"], json!({ "sessionId": asked["sessionId"] }));
    assert_eq!(request(&mut other)["requestId"], asked["requestId"], "also to who asks for its session");
    approve(&mut approver, &asked).expect("it waits");
    assert_eq!(of_call(&mut approver, "tool.result", &asked)["result"], "hi");
    approver.call("unsubscribe", json!({ "subscriptionId": subscription }));
    for client in [approver, other] {
        let told = client.seen().iter().filter(|frame| frame.contains(r#""event":"tool.request""#)).count();
        assert_eq!(told, 1, "{:#?}", client.seen());
    }
    assert!(waiting(&daemon).is_empty());
    let (status, stdout, _) = daemon.run(&["session", "show", "main:websocket:ada:main"]);
    assert_eq!((status, stdout.matches("result  ").count()), (0, 1), "it was called once: {stdout}");
    let (status, _, stderr) = daemon.run(&["doctor"]);
    assert!(status <= 1 && !stderr.contains("unknown kind"), "{stderr}");
}

#[test]
fn an_acknowledged_decision_holds_whenever_the_daemon_is_killed() {
    let mut daemon = Daemon::with(ASK);
    let mut acknowledged = 0;
    for round in 0..6 {
        let account = format!("r{round}");
        let key = format!("main:websocket:{account}:main");
        Client::connect(daemon.address).prompt(&account, CALL);
        let id = waits(&daemon)["approval"].clone();
        let mut approver = Wundr::connect(daemon.address);
        approver.subscribe(&["tool.request"], Value::Null);
        let asked = request(&mut approver);
        let answer = approver.request("tool.approve", about(&asked));
        // At another moment each time.
        std::thread::sleep(Duration::from_millis(round * 4));
        daemon = daemon.kill_and_restart();
        approver.closed();
        let is_it = |incoming: &Incoming| matches!(incoming, Incoming::Frame(frame) if frame["id"] == *answer && frame["ok"] == true);
        let is_acknowledged = approver.kept().any(is_it);
        acknowledged += u32::from(is_acknowledged);
        if let Some(row) = waiting(&daemon).pop() {
            assert!(!is_acknowledged && row["approval"] == id, "acknowledged and undone: {row}");
            let (status, _, stderr) = daemon.run(&["approval", "approve", id.as_str().expect("an id")]);
            assert_eq!(status, 0, "{stderr}");
        }
        let events = eventually("the run to end", || {
            let (_, stdout, _) = daemon.run(&["session", "show", &key, "--json"]);
            stdout.contains(r#""event":"end""#).then_some(stdout)
        });
        let count = |event: &str| events.matches(&format!(r#""event":"{event}""#)).count();
        let counts = ["approval_asked", "approval_decided", "tool_result", "end"].map(count);
        assert_eq!(counts, [1; 4], "round {round}, acknowledged: {is_acknowledged}: {events}");
    }
    assert!(acknowledged > 0, "the last are given enough time");
}

#[test]
fn of_many_who_decide_at_once_one_does() {
    let (daemon, mut client) = Daemon::with(ASK).and(Client::connect);
    for round in 0..5 {
        let prompt = client.prompt("ada", CALL);
        let mut deciders: Vec<Wundr> = (0..4).map(|_| Wundr::connect(daemon.address)).collect();
        let asked: Vec<Value> = deciders
            .iter_mut()
            .map(|decider| {
                decider.subscribe(&["tool.*"], Value::Null);
                request(decider)
            })
            .collect();
        let start = Barrier::new(deciders.len());
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let decide = |(number, (mut decider, asked)): (usize, (Wundr, &Value))| {
                let (start, params) = (&start, about(asked));
                scope.spawn(move || {
                    start.wait();
                    let method = if number % 2 == 0 { "tool.approve" } else { "tool.deny" };
                    decider.try_call(method, params).map_err(|error| error["code"].clone())
                })
            };
            let threads: Vec<_> = deciders.into_iter().zip(&asked).enumerate().map(decide).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let won: Vec<_> = outcomes.iter().flatten().collect();
        assert_eq!(won.len(), 1, "round {round}: {outcomes:?}");
        assert!(
            outcomes.iter().all(|outcome| outcome.as_ref().map_or_else(|code| code == "CONFLICT", |_| true))
        );
        let answer = client.stream(&prompt);
        let told = answer.data("tool_result").next().expect("a result");
        assert_eq!(told.get("is_error").is_none(), won[0]["status"] == "approved", "{answer:?}");
    }
}

#[test]
fn an_approver_sees_calls_of_all_and_nothing_else_and_others_see_nothing() {
    let people = [
        ("ada", "user"),
        ("bob", "user"),
        ("ron", "readonly"),
        ("eve", "daemon.approve"),
        ("max", "daemon.write daemon.approve"),
    ];
    let daemon = Daemon::shared(ASK, &people, &[]);
    let [mut ada, mut bob, mut ron, mut eve, mut max] =
        people.map(|(name, _)| Wundr::connect_with(daemon.address, &key_of(name)));
    for client in [&mut ada, &mut bob, &mut ron, &mut eve, &mut max] {
        client.subscribe(&["*"], Value::Null);
        client.call("health.ping", json!({}));
    }
    assert_eq!(eve.refused("session.list", json!({}))["code"], "FORBIDDEN");

    let mut client = Client::connect_with(daemon.address, &key_of("ada"));
    client.chat("ada", "the password is xyzzy");
    let prompt = client.prompt("ada", r#"/tool echo {"text":"plugh"}"#);
    let asked = request(&mut ada);
    assert_eq!(request(&mut eve), asked, "the approver is asked as the owner is");
    assert_eq!(request(&mut max), asked);

    assert_eq!(approve(&mut bob, &asked).expect_err("not his")["code"], "NOT_FOUND");
    assert_eq!(approve(&mut ron, &asked).expect_err("he reads")["code"], "FORBIDDEN");
    let mut late = Wundr::connect_with(daemon.address, &key_of("eve"));
    late.subscribe(&["tool.request"], json!({ "sessionId": asked["sessionId"] }));
    assert_eq!(request(&mut late)["requestId"], asked["requestId"]);
    approve(&mut eve, &asked).expect("that is what she is for");
    for client in [&mut ada, &mut eve, &mut max] {
        assert_eq!(of_call(client, "tool.result", &asked)["result"], "plugh");
    }
    assert_eq!(kinds(&client.stream(&prompt)), ["tool_use", "tool_result", "usage", "done"]);
    // An owner decides about his own, without the scope.
    client.prompt("ada", CALL);
    let own = request(&mut ada);
    approve(&mut ada, &own).expect("it is hers");
    assert_eq!(of_call(&mut eve, "tool.result", &own)["result"], "hi");

    for other in [&mut bob, &mut ron, &mut eve, &mut max] {
        // Answered behind whatever was on its way.
        other.call("health.ping", json!({}));
        let events = other.seen().iter().filter(|frame| frame.contains("\"type\":\"event\""));
        let (calls, rest): (Vec<_>, Vec<_>) = events.partition(|frame| frame.contains("\"event\":\"tool."));
        assert!(rest.iter().all(|frame| frame.contains("health.heartbeat")), "{rest:#?}");
        assert!(!other.seen().iter().any(|frame| frame.contains("xyzzy")), "{:#?}", other.seen());
        assert!(calls.is_empty() || calls.len() >= 4, "{calls:#?}");
    }
    assert!(bob.seen().iter().chain(ron.seen()).all(|frame| !frame.contains(r#""event":"tool."#)));
}

#[test]
fn the_command_line_lists_approves_and_denies() {
    let daemon = Daemon::with(ASK);
    let (status, stdout, stderr) = daemon.run(&["approvals"]);
    assert_eq!((status, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("no tool call waits"), "{stderr}");
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", CALL);
    let row = waits(&daemon);
    assert_eq!((&row["session"], &row["tool"]), (&json!("main:websocket:ada:main"), &json!("echo")));
    let id = row["approval"].as_str().expect("an id");
    let (_, table, _) = daemon.run(&["approvals"]);
    assert!(table.contains(&id[..12]) && table.contains(r#"{"text":"hi"}"#), "{table}");
    let (_, shown, _) = daemon.run(&["session", "show", "main:websocket:ada:main"]);
    assert!(shown.contains("waits for approval until"), "{shown}");

    let (status, _, stderr) = run(&daemon, &["approval", "approve", id, "--input-file", "-"], "[1]");
    assert_eq!(status, 2, "{stderr}");
    let (status, stdout, stderr) =
        run(&daemon, &["approval", "approve", &id[..8], "--input-file", "-"], r#"{"text":"typed"}"#);
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.contains("echo"), "{stdout}");
    let answer = client.stream(&prompt);
    assert_eq!(answer.data("tool_result").next().expect("a result")["content"], "typed");
    let (status, _, stderr) = daemon.run(&["approval", "deny", id]);
    assert!(status == 1 && stderr.contains("decided already: approved"), "{status} {stderr}");
    let (status, _, stderr) = run(&daemon, &["approval", "deny", &id[..12]], "");
    assert!(status == 1 && stderr.contains("decided already: approved"), "{status} {stderr}");
    let (status, _, stderr) = daemon.run(&["approval", "deny", "nothing"]);
    assert!(status == 1 && stderr.contains("no such approval"), "{status} {stderr}");

    let prompt = client.prompt("ada", CALL);
    let row = waits(&daemon);
    let id = row["approval"].as_str().expect("an id");
    let (status, stdout, stderr) = daemon.run(&["approval", "deny", id, "--reason", "no way", "--json"]);
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&stdout).expect("JSON")["denied"], true);
    let answer = client.stream(&prompt);
    let told = answer.data("tool_result").next().expect("a result")["content"].as_str().map(str::to_owned);
    assert!(told.is_some_and(|told| told.ends_with("denied: no way")), "{answer:?}");
    let (_, shown, _) = daemon.run(&["session", "show", "main:websocket:ada:main"]);
    assert!(shown.contains("echo denied by"), "{shown}");
}

#[test]
fn whoever_ends_the_run_ends_what_waits() {
    let (daemon, mut approver) = Daemon::with(ASK).and(Wundr::connect);
    approver.subscribe(&["tool.*"], Value::Null);
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", CALL);
    let asked = request(&mut approver);
    let status = |client: &mut Wundr| {
        client.call("session.status", json!({ "sessionId": asked["sessionId"] }))["status"].clone()
    };
    assert_eq!(status(&mut approver), "paused");
    assert!(client.abort(&prompt));
    assert_eq!(of_call(&mut approver, "tool.result", &asked)["status"], "failed");
    assert_eq!(client.stream(&prompt).error(), "aborted");
    assert_eq!(approve(&mut approver, &asked).expect_err("it is over")["code"], "CONFLICT");
    assert_eq!(status(&mut approver), "running");
    assert!(waiting(&daemon).is_empty());
}

/// OpenClaw, as far as approvals go.
struct OpenClaw(Client);

impl OpenClaw {
    fn connect(daemon: &Daemon) -> Self {
        let scopes = json!(["operator.read", "operator.write", "operator.approvals"]);
        let (client, hello) = openclaw::try_connect(daemon.address, json!({ "scopes": scopes }));
        let features = &hello["payload"]["features"];
        for (kind, name) in [("methods", "exec.approval.resolve"), ("events", "exec.approval.requested")] {
            assert!(features[kind].as_array().is_some_and(|all| all.contains(&json!(name))), "{hello}");
        }
        Self(client)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let frame = json!({ "type": "req", "id": method, "method": method, "params": params });
        self.0.send_text(&frame.to_string());
        self.find(|frame| frame["type"] == "res" && frame["id"] == method)
    }

    fn find(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let frame = self.0.receive();
            if is_it(&frame) {
                return frame;
            }
        }
    }
}

#[test]
fn openclaw_clients_decide_about_the_same_calls() {
    let daemon = Daemon::with(ASK);
    let mut operator = OpenClaw::connect(&daemon);
    assert_eq!(operator.call("exec.approval.list", json!({}))["payload"], json!([]));
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", CALL);
    let requested = operator.find(|frame| frame["event"] == "exec.approval.requested");
    let asked = requested["payload"].clone();
    assert_eq!(asked["request"]["command"], r#"echo {"text":"hi"}"#);
    assert_eq!(asked["request"]["sessionKey"], "agent:main:websocket:ada:main");
    let list = operator.call("exec.approval.list", json!({}))["payload"].clone();
    assert_eq!(list, json!([asked]));
    let id = &asked["id"];
    assert_eq!(*id, waits(&daemon)["approval"], "one id in all protocols");
    let got = operator.call("exec.approval.get", json!({ "id": id }))["payload"].clone();
    assert_eq!((&got["commandText"], &got["agentId"]), (&asked["request"]["command"], &json!("main")));

    let resolve = json!({ "id": id, "decision": "allow-once" });
    assert_eq!(operator.call("exec.approval.resolve", resolve.clone())["payload"], json!({ "ok": true }));
    let answer = client.stream(&prompt);
    assert_eq!(answer.data("tool_result").next().expect("a result")["content"], "hi");
    let again = operator.call("exec.approval.resolve", resolve);
    assert!(
        again["error"]["message"].as_str().is_some_and(|why| why.contains("unknown or expired")),
        "{again}"
    );

    client.prompt("ada", CALL);
    let requested = operator.find(|frame| frame["event"] == "exec.approval.requested");
    let id = requested["payload"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(daemon.run(&["approval", "deny", &id]).0, 0);
    let resolved = operator.find(|frame| frame["event"] == "exec.approval.resolved");
    assert_eq!((&resolved["payload"]["id"], &resolved["payload"]["decision"]), (&json!(id), &json!("deny")));
}

#[test]
fn a_tool_that_was_allowed_for_a_session_asks_there_no_more() {
    let daemon = Daemon::with(ASK);
    let mut operator = OpenClaw::connect(&daemon);
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", CALL);
    let id = operator.find(|frame| frame["event"] == "exec.approval.requested")["payload"]["id"].clone();
    let always = json!({ "id": id, "decision": "allow-always" });
    assert_eq!(operator.call("exec.approval.resolve", always)["payload"], json!({ "ok": true }));
    assert_eq!(client.stream(&prompt).data("tool_result").next().expect("a result")["content"], "hi");
    let unasked = client.chat("ada", CALL);
    assert_eq!(unasked.data("tool_result").next().expect("a result")["content"], "hi", "{unasked:?}");
    let daemon = daemon.kill_and_restart();
    let mut client = Client::connect(daemon.address);
    let unasked = client.chat("ada", CALL);
    assert_eq!(unasked.data("tool_result").next().expect("a result")["content"], "hi", "{unasked:?}");

    client.prompt("bob", CALL);
    let id = waits(&daemon)["approval"].as_str().expect("an id").to_owned();
    let said = daemon.stdout_of(&["approval", "approve", &id, "--for-session"]);
    assert!(said.starts_with("approved echo in ") && said.contains("and its later calls there"), "{said}");
}
