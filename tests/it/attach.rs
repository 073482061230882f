//! A session as a terminal attaches to it: exoclaw on the Unix socket and on `/ws`, from its last turns on,
//! with calls decided in place.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::lines::Lines;
use crate::support::openclaw::{call, connect};

const ASK: &str = "[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n";
const ADA: &str = "main:websocket:ada:main";

/// Sends a request of exoclaw's over the socket, and takes its one answer.
fn ask(lines: &mut Lines, id: &str, method: &str, params: Value) -> Value {
    lines.send_line(&json!({ "id": id, "method": method, "params": params }).to_string());
    answer(lines, id)
}

fn answer(lines: &mut Lines, id: &str) -> Value {
    let answer = lines.find(&format!("the answer {id}"), |frame| {
        frame["id"] == id && (frame.get("event").is_none() || frame["event"] == "accepted")
    });
    assert!(answer.get("jsonrpc").is_none(), "exoclaw's words: {answer}");
    answer
}

/// The frames of an attached session up to this event, in order.
fn told(lines: &mut Lines, id: &str, last: &str) -> Vec<Value> {
    let mut told = Vec::new();
    loop {
        let frame = lines.find(last, |frame| frame["id"] == id && frame.get("event").is_some());
        let is_last = frame["event"] == last;
        told.push(frame);
        if is_last {
            return told;
        }
    }
}

/// What of it can be compared between connections: how text comes in pieces can't.
fn gist(frames: &[Value]) -> Vec<(String, Value)> {
    let mut gist: Vec<(String, Value)> = Vec::new();
    for frame in frames {
        let event = frame["event"].as_str().expect("an event").to_owned();
        let data = frame["data"].clone();
        match gist.last_mut() {
            Some((last, Value::String(text))) if event == "text" && last == "text" => {
                text.push_str(data.as_str().expect("text"));
            }
            _ => gist.push((event, data)),
        }
    }
    gist
}

fn events(gist: &[(String, Value)]) -> Vec<&str> {
    gist.iter().map(|(event, _)| event.as_str()).collect()
}

/// That each frame begins where the one before ended.
fn is_without_a_hole(frames: &[Value]) {
    let numbers = |frame: &Value| {
        let seq = frame["seq"].as_u64().expect("a number");
        (frame["first_seq"].as_u64().unwrap_or(seq), seq)
    };
    for pair in frames.windows(2) {
        assert_eq!(numbers(&pair[1]).0, numbers(&pair[0]).1 + 1, "{pair:#?}");
    }
}

#[test]
fn two_attach_within_a_run_begun_elsewhere_and_what_one_decides_both_hear() {
    let (daemon, mut earlier) = Daemon::with(ASK).and(Client::connect);
    for prompt in ["one", "two", "three"] {
        earlier.chat("ada", prompt);
    }
    let mut began = connect(daemon.address, 3);
    let send = json!({
        "sessionKey": format!("agent:{ADA}"), "idempotencyKey": "k",
        "message": r#"/tool echo {"text":"hi"}"#,
    });
    assert_eq!(call(&mut began, "chat.send", send)["status"], "started");
    crate::support::eventually("a call that waits", || {
        let list = earlier.call("approval.list", json!({ "session": ADA }));
        list["result"].as_array().is_some_and(|calls| calls.len() == 1)
    });

    let attach = |turns: u64| {
        let mut lines = Lines::connect(daemon.home());
        let params = json!({ "session": ADA, "turns": turns, "thoughts": true });
        let attached = ask(&mut lines, "s", "session.attach", params);
        let about = &attached["result"];
        assert_eq!((&about["session"], &about["agent"]), (&json!(ADA), &json!("main")), "{attached}");
        assert_eq!(about["model"], "offline/offline", "{attached}");
        let past = told(&mut lines, "s", "tool_use");
        is_without_a_hole(&past);
        let last = past.last().expect("the call");
        assert!(last["seq"].as_u64() <= about["seq"].as_u64(), "it is the past: {last} {about}");
        (lines, past)
    };
    // From its prompt on, and from that of the turn before on, answered in one piece.
    let (mut first, past) = attach(1);
    assert_eq!(events(&gist(&past)), ["prompt", "text", "tool_use"], "{past:#?}");
    let (mut second, past) = attach(2);
    let known = gist(&past);
    assert_eq!(
        events(&known),
        ["prompt", "text", "usage", "done", "prompt", "text", "tool_use"],
        "{past:#?}"
    );
    assert_eq!(known[0].1, "three");
    assert_eq!(past.iter().filter(|frame| frame["event"] == "text").count(), 2, "{past:#?}");
    let approval = past.last().expect("the call")["data"]["approval"]["id"].clone();

    let list = ask(&mut first, "l", "approval.list", json!({ "session": ADA }));
    let waiting = &list["result"][0];
    assert_eq!((&waiting["id"], &waiting["name"]), (&approval, &json!("echo")), "{list}");
    assert_eq!((&waiting["session"], &waiting["input"]), (&json!(ADA), &json!({ "text": "hi" })));
    let decide = json!({ "id": approval, "input": { "text": "instead" } });
    let decided = ask(&mut first, "a", "approval.approve", decide.clone());
    assert_eq!(decided["result"], json!({ "id": approval, "decision": "approved" }), "{decided}");
    let late = ask(&mut second, "a", "approval.approve", decide);
    assert!(late["error"].as_str().is_some_and(|why| why.contains("decided already: approved")), "{late}");

    let rest = told(&mut first, "s", "done");
    let heard = gist(&rest);
    assert_eq!(events(&heard), ["approval", "tool_result", "text", "usage", "done"], "{rest:#?}");
    assert_eq!(heard[0].1["id"], approval);
    assert_eq!((&heard[0].1["decision"], &heard[0].1["name"]), (&json!("approved"), &json!("echo")));
    assert!(heard[0].1["by"].is_string(), "somebody did: {}", heard[0].1);
    assert_eq!(heard[1].1["content"], "instead");
    assert_eq!(gist(&told(&mut second, "s", "done")), heard, "two terminals, one session");
    is_without_a_hole(&rest);

    // What one of them says, both are told under the attach, once.
    let prompt = json!({ "session": ADA, "content": "and you?", "idempotency_key": "p", "follow": false });
    let accepted = ask(&mut first, "p", "chat.send", prompt);
    let run = accepted["data"]["run"].clone();
    for lines in [&mut first, &mut second] {
        let said = told(lines, "s", "done");
        assert!(said.iter().all(|frame| frame["run"] == run), "{run}: {said:#?}");
        assert_eq!(events(&gist(&said)), ["prompt", "text", "usage", "done"]);
    }
    assert!(ask(&mut first, "q", "ping", json!({}))["result"] == "pong");
    let own = first.seen().iter().filter(|frame| frame.contains(r#""id":"p""#)).count();
    assert_eq!(own, 1, "accepted and no more: {:#?}", first.seen());
}

#[test]
fn an_attach_begins_behind_the_last_clear_or_before_there_is_anything() {
    let daemon = Daemon::start();
    let mut lines = Lines::connect(daemon.home());
    let work = json!({ "session": "main:cli:ada:work", "turns": 100 });
    let attached = ask(&mut lines, "s", "session.attach", work.clone());
    assert_eq!(attached["result"]["seq"], 0, "{attached}");
    for content in ["one", "two"] {
        let send = json!({
            "session": "main:cli:ada:work", "content": content, "idempotency_key": content, "follow": false,
            "model": "offline/offline",
            "attachments": [{ "name": "a.txt", "media_type": "text/plain", "data": "aGVsbG8=" }],
        });
        assert_eq!(ask(&mut lines, content, "chat.send", send)["event"], "accepted");
        let said = told(&mut lines, "s", "done");
        let files = json!([{ "name": "a.txt", "media_type": "text/plain", "bytes": 5 }]);
        assert_eq!((&said[0]["data"], &said[0]["attachments"]), (&json!(content), &files), "{said:#?}");
        assert!(gist(&said)[1].1.as_str().is_some_and(|text| text.contains("a.txt")), "{said:#?}");
    }
    let mut late = Lines::connect(daemon.home());
    ask(&mut late, "s", "session.attach", work.clone());
    assert_eq!(told(&mut late, "s", "done")[0]["data"], "one");
    assert_eq!(told(&mut late, "s", "done")[0]["data"], "two");
    ask(&mut lines, "c", "session.clear", json!({ "session": "main:cli:ada:work" }));
    let mut after = Lines::connect(daemon.home());
    let attached = ask(&mut after, "s", "session.attach", work);
    assert!(attached["result"]["seq"].as_u64() > Some(0), "{attached}");
    let send = json!({ "session": "main:cli:ada:work", "content": "three", "idempotency_key": "three", "follow": false });
    ask(&mut after, "p", "chat.send", send);
    let said = told(&mut after, "s", "done");
    assert_eq!((&said[0]["event"], &said[0]["data"]), (&json!("prompt"), &json!("three")), "{said:#?}");
    let names = |method: &str, lines: &mut Lines| ask(lines, method, method, json!({}))["result"].clone();
    assert_eq!(names("agent.list", &mut after)[0]["name"], "main");
    assert_eq!(
        names("model.list", &mut after),
        json!([{ "model": "offline/offline", "available": true, "input_price": 0.0, "output_price": 0.0 }])
    );
}

#[test]
fn a_user_decides_about_his_own_calls_and_nobody_elses() {
    let people = [("ada", "user"), ("bob", "user"), ("ron", "readonly")];
    let daemon = Daemon::shared(ASK, &people, &[]);
    let [mut ada, mut bob, mut ron] =
        people.map(|(name, _)| Client::connect_with(daemon.address, &key_of(name)));

    let prompt = ada.prompt("ada", r#"/tool echo {"text":"hi"}"#);
    let waiting = crate::support::eventually("a call that waits", || {
        ada.call("approval.list", json!({}))["result"].as_array().and_then(|calls| calls.first().cloned())
    });
    assert_eq!(waiting["session"], ADA, "as she names it: {waiting}");
    let id = waiting["id"].clone();
    let of_hers = json!({ "session": format!("ada/{ADA}") });
    assert_eq!(bob.call("approval.list", json!({}))["result"], json!([]));
    for (method, params, why) in [
        ("approval.approve", json!({ "id": id }), "no such approval"),
        ("approval.deny", json!({ "id": id }), "no such approval"),
        ("approval.list", of_hers.clone(), "no such session"),
        ("session.attach", json!({ "session": format!("ada/{ADA}"), "turns": 5 }), "no such session"),
    ] {
        let refused = bob.call(method, params);
        assert!(refused["error"].as_str().is_some_and(|error| error.contains(why)), "{method}: {refused}");
    }
    for method in ["approval.approve", "approval.deny", "approval.list"] {
        let refused = ron.call(method, json!({ "id": id }));
        assert_eq!(refused["error"], "forbidden: needs write", "{method}");
    }
    // The owner's terminal needs no credential, and sees whose prompt it was.
    let mut lines = Lines::connect(daemon.home());
    ask(&mut lines, "s", "session.attach", json!({ "session": format!("ada/{ADA}"), "turns": 1 }));
    let past = told(&mut lines, "s", "tool_use");
    assert_eq!((&past[0]["event"], &past[0]["by"]), (&json!("prompt"), &json!("ada")), "{past:#?}");

    let decided = ada.call("approval.approve", json!({ "id": id }));
    assert_eq!(decided["result"]["decision"], "approved", "{decided}");
    let answer = ada.stream(&prompt);
    assert_eq!(answer.data("tool_result").next().expect("it is made")["content"], "hi");
    assert!(!answer.events().contains(&"approval"), "as ever: {answer:?}");
    let rest = told(&mut lines, "s", "done");
    assert_eq!(rest[0]["data"]["by"], "ada", "{rest:#?}");
}
