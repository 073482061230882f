//! Sessions, prompts and streams over Wundr's protocol, against the binary as it ships: two principals
//! with keys of their own, a daemon that is killed, and sessions shared with other protocols.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::wundr::{Incoming, Wundr};

const OPERATOR: &str = "the-token-that-all-operators-share";

/// A daemon that knows Ada, Bob and its operator.
fn daemon() -> Daemon {
    let config = "[agents.work]\n[limits]\nrequests_burst = 10000\nsubscriptions = 4\n";
    Daemon::shared(config, &[("ada", "user"), ("bob", "user")], &[("CLAWMUX_TOKEN", OPERATOR)])
}

/// One of them, who takes all events in their order.
struct Person(Wundr);

/// An event, as it came.
#[derive(Clone, Debug)]
struct Event {
    /// Its name.
    name: String,
    /// What it says.
    payload: Value,
    /// Which subscription it is for.
    subscription: String,
}

impl Event {
    fn of(frame: &Value) -> Self {
        let text = |name: &str| frame[name].as_str().unwrap_or_default().to_owned();
        Self { name: text("event"), payload: frame["payload"].clone(), subscription: text("subscriptionId") }
    }

    /// The number in its session's log.
    fn session_seq(&self) -> u64 {
        self.payload["sessionSeq"].as_u64().unwrap_or_else(|| panic!("no sessionSeq: {self:?}"))
    }

    /// A text of its payload.
    fn text(&self, member: &str) -> &str {
        self.payload[member].as_str().unwrap_or_default()
    }
}

fn is_event(frame: &Value) -> bool {
    frame["type"] == "event" && frame["event"] != "health.heartbeat"
}

impl Person {
    fn connect(address: SocketAddr, key: &str) -> Self {
        Self(Wundr::connect_with(address, key))
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.0.call(method, params)
    }

    /// A request that is refused: the code, and the whole error.
    fn refused(&mut self, method: &str, params: Value) -> (String, Value) {
        let error = self.0.refused(method, params);
        (error["code"].as_str().unwrap_or_default().to_owned(), error)
    }

    /// A session: its id, and the id of its subscription.
    fn session(&mut self) -> (String, String) {
        let task = json!({ "type": "general", "description": "try it" });
        let create = json!({ "orchestratorId": "orc", "sessionType": "claude-code", "task": task });
        let made = self.call("session.create", create);
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{name}: {made}")).to_owned();
        (text("id"), text("subscriptionId"))
    }

    /// Submits a prompt; gives its id.
    fn prompt(&mut self, session: &str, prompt: &str) -> String {
        let accepted = self.call("prompt.submit", json!({ "sessionId": session, "prompt": prompt }));
        accepted["promptId"].as_str().unwrap_or_else(|| panic!("no promptId: {accepted}")).to_owned()
    }

    /// The next event; heartbeats aside.
    fn event(&mut self) -> Event {
        Event::of(&self.0.find("an event", is_event))
    }

    /// The events up to and with the first for which that is true.
    fn until(&mut self, mut is_last: impl FnMut(&Event) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.event();
            let last = is_last(&event);
            events.push(event);
            if last {
                return events;
            }
        }
    }

    /// The events up to and with the end of a prompt, and the status of its session that follows it.
    fn until_end(&mut self, prompt: &str) -> Vec<Event> {
        let is_end = |event: &Event| {
            ["stream.end", "stream.error"].contains(&&*event.name) && event.text("promptId") == prompt
        };
        let mut events = self.until(is_end);
        events.push(self.event());
        assert_eq!(events.last().map(|last| &*last.name), Some("session.status"), "{events:#?}");
        events
    }

    /// The events that are on their way before the answer to a ping.
    fn rest(&mut self) -> Vec<Event> {
        self.call("health.ping", json!({}));
        let is_kept = |kept: &&Incoming| matches!(kept, Incoming::Frame(frame) if is_event(frame));
        let count = self.0.kept().filter(is_kept).count();
        (0..count).map(|_| self.event()).collect()
    }
}

/// What a `session.status` says of what goes on.
fn activity(event: &Event) -> &str {
    event.payload["metadata"]["activity"].as_str().unwrap_or_default()
}

/// All text of a prompt, in one.
fn text_of(events: &[Event]) -> String {
    let is_text = |event: &&Event| event.name == "stream.chunk" && event.text("chunkType") == "text";
    events.iter().filter(is_text).map(|event| event.text("content")).collect()
}

fn names(events: &[Event]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
    names.dedup_by(|a, b| a == b && *a == "stream.chunk");
    names
}

/// In one session: what happened in it comes in order.
fn assert_in_order(events: &[Event]) {
    assert!(events.is_sorted_by(|a, b| a.session_seq() <= b.session_seq()), "{events:#?}");
}

fn as_ada(address: SocketAddr) -> Person {
    Person::connect(address, &key_of("ada"))
}

#[test]
fn a_session_is_made_prompted_and_stopped() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let task = json!({ "type": "code", "description": "sort it", "metadata": { "ticket": 7 } });
    let made = ada
        .call("session.create", json!({ "orchestratorId": "orc-1", "sessionType": "ruflo", "task": task }));
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(made["sessionId"], made["id"]);
    assert_eq!(made["sessionKey"], format!("main:wundr:{id}:main"));
    assert_eq!((&made["orchestratorId"], &made["sessionType"]), (&json!("orc-1"), &json!("ruflo")));
    assert_eq!(
        made["task"],
        json!({ "type": "code", "description": "sort it", "priority": "medium", "metadata": { "ticket": 7 } })
    );
    assert_eq!(made["status"], "running");
    let notes: Vec<_> = made["notes"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(notes, ["task", "task.metadata", "task.priority"], "{made}");
    let created = ada.event();
    assert_eq!((&*created.name, created.text("id")), ("session.created", &*id));
    assert_eq!(created.subscription, made["subscriptionId"].as_str().unwrap());

    // Several prompts, one after the other, submitted at once.
    let first = ada.prompt(&id, r#"/tool echo {"text":"hi"}"#);
    let second = ada.prompt(&id, "and now?");
    let told = ada.until_end(&first);
    assert_in_order(&told);
    assert_eq!(
        names(&told),
        [
            "session.status",
            "stream.start",
            "stream.chunk",
            "tool.status",
            "tool.status",
            "tool.status",
            "tool.result",
            "stream.chunk",
            "stream.end",
            "session.status"
        ],
        "{told:#?}"
    );
    let chunks: Vec<_> = told.iter().filter(|event| event.name == "stream.chunk").collect();
    let indexes: Vec<_> = chunks.iter().filter_map(|chunk| chunk.payload["index"].as_u64()).collect();
    assert_eq!(indexes, (0..chunks.len() as u64).collect::<Vec<_>>());
    let call = chunks.iter().find(|chunk| chunk.text("chunkType") == "tool_use").unwrap();
    let call: Value = serde_json::from_str(call.text("content")).unwrap();
    assert_eq!((&call["name"], &call["input"]["text"]), (&json!("echo"), &json!("hi")));
    let statuses: Vec<_> =
        told.iter().filter(|event| event.name == "tool.status").map(|event| event.text("status")).collect();
    assert_eq!(statuses, ["started", "running", "completed"]);
    let result = told.iter().find(|event| event.name == "tool.result").unwrap();
    assert_eq!(
        (result.text("status"), result.text("toolName"), result.text("result")),
        ("completed", "echo", "hi")
    );
    assert!(result.payload["durationMs"].is_u64(), "{result:?}");
    let end = &told[told.len() - 2];
    assert_eq!(end.payload["metadata"]["stopReason"], "completed");
    assert!(end.payload["usage"]["outputTokens"].as_u64() > Some(0), "{end:?}");
    assert!(text_of(&ada.until_end(&second)).contains("and now?"));

    // A tool that fails, a provider that fails.
    let broken = ada.prompt(&id, r#"/tool echo {"text":1}"#);
    let told = ada.until_end(&broken);
    let result = told.iter().find(|event| event.name == "tool.result").unwrap();
    assert_eq!((result.text("status"), result.payload.get("result")), ("failed", None));
    assert!(told.iter().any(|event| event.text("chunkType") == "error"), "{told:#?}");
    let failed = ada.prompt(&id, "/fail");
    let told = ada.until_end(&failed);
    let error = &told[told.len() - 2];
    assert_eq!(
        (&*error.name, error.payload["error"]["code"].as_str()),
        ("stream.error", Some("UNAVAILABLE"))
    );
    let info = ada.call("session.status", json!({ "sessionId": id }));
    let told = (&info["status"], &info["activity"], &info["lastPrompt"]);
    assert_eq!(told, (&json!("running"), &json!("idle"), &json!("failed")), "it takes the next");

    // Cancelled under way, and in the queue.
    let slow = ada.prompt(&id, "/slow 60");
    let queued = ada.prompt(&id, "never");
    ada.until(|event| event.name == "stream.chunk");
    let cancelled = ada.call("prompt.cancel", json!({ "sessionId": id, "promptId": queued }));
    assert_eq!((&cancelled["cancelled"], &cancelled["promptId"]), (&json!(true), &json!(queued)));
    ada.call("prompt.cancel", json!({ "sessionId": id }));
    for prompt in [queued, slow] {
        let told = ada.until_end(&prompt);
        assert_eq!(told[told.len() - 2].payload["metadata"]["stopReason"], "cancelled", "{told:#?}");
    }
    assert_eq!(ada.call("prompt.cancel", json!({ "sessionId": id }))["cancelled"], false);

    // Stopped in the midst of a prompt, for good.
    let last = ada.prompt(&id, "/slow 60");
    ada.until(|event| event.name == "stream.chunk");
    let stopped = ada.call("session.stop", json!({ "sessionId": id, "reason": "enough" }));
    assert_eq!((&stopped["status"], &stopped["prompts"]), (&json!("terminated"), &json!([last])));
    let told = ada.until(|event| event.text("status") == "terminated");
    assert!(told.iter().any(|event| event.name == "session.stopped" && event.text("reason") == "enough"));
    assert_eq!(told.iter().filter(|event| event.name == "stream.end").count(), 1);
    let (_daemon, mut ada) = daemon.kill_and_restart().and(as_ada);
    let again = json!({ "sessionId": id, "prompt": "again" });
    let (code, error) = ada.refused("prompt.submit", again);
    assert!(code == "CONFLICT" && error["message"].as_str().unwrap().contains("was stopped"), "{error}");
    let info = ada.call("session.resume", json!({ "sessionId": id, "subscribe": false }));
    assert_eq!((&info["status"], &info["reason"]), (&json!("terminated"), &json!("enough")));
    assert_eq!(
        (&info["metrics"]["tasksCompleted"], &info["task"]["metadata"]["ticket"]),
        (&json!(5), &json!(7)),
        "{info}"
    );
}

/// Submits what takes a while and takes its events up to the third chunk of text.
fn cut_off(client: &mut Person, session: &str) -> (String, Vec<Event>) {
    let prompt = client.prompt(session, "/slow 3");
    let mut chunks = 0;
    let told = client.until(|event| {
        chunks += usize::from(event.name == "stream.chunk");
        chunks == 3
    });
    (prompt, told)
}

#[test]
fn who_resumes_is_told_exactly_what_it_missed() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let (id, _) = ada.session();
    let (prompt, told) = cut_off(&mut ada, &id);
    let (last, known) = (told.last().unwrap().session_seq(), text_of(&told));
    drop(ada);

    // The daemon lives on: the rest of the text, in however many pieces.
    let mut ada = as_ada(daemon.address);
    let resumed = ada.call("session.resume", json!({ "sessionId": id, "lastSeq": last }));
    assert_eq!((&resumed["id"], &resumed["status"]), (&json!(id), &json!("running")));
    let rest = ada.until_end(&prompt);
    assert_in_order(&rest);
    assert!(rest[0].session_seq() > last, "{rest:#?}");
    assert_eq!(format!("{known}{}", text_of(&rest)).trim(), "Slowly: 1 2 3 done.");
    let (end, status) = (&rest[rest.len() - 2], &rest[rest.len() - 1]);

    // Between the end of the prompt and the status that follows it, and after both.
    for (from, left) in [(end, &["session.status"][..]), (status, &[])] {
        let mut other = as_ada(daemon.address);
        other.call("session.resume", json!({ "sessionId": id, "lastSeq": from.session_seq() }));
        let next = other.prompt(&id, "next");
        let told = other.until(|event| event.text("promptId") == next);
        let told: Vec<_> = told.iter().take_while(|event| activity(event) != "busy").collect();
        assert_eq!(told.iter().map(|event| &*event.name).collect::<Vec<_>>(), left, "{told:#?}");
        other.until_end(&next);
    }
    // All of it, from the beginning: under the same numbers.
    let mut other = as_ada(daemon.address);
    other.call("session.resume", json!({ "sessionId": id, "lastSeq": 0 }));
    let all = other.until_end(&prompt);
    assert_eq!(text_of(&all).trim(), "Slowly: 1 2 3 done.");
    assert_eq!(
        names(&all),
        ["session.created", "session.status", "stream.start", "stream.chunk", "stream.end", "session.status"]
    );
    assert_eq!(all[all.len() - 2].session_seq(), end.session_seq());
    let (code, _) = other.refused("session.resume", json!({ "sessionId": id, "lastSeq": 1_000_000 }));
    assert_eq!(code, "INVALID_REQUEST");
}

#[test]
fn who_resumes_after_the_daemon_was_killed_is_told_that_the_step_starts_anew() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let (id, _) = ada.session();
    let (prompt, told) = cut_off(&mut ada, &id);
    let last = told.last().unwrap().session_seq();
    let daemon = daemon.kill_and_restart();

    let mut ada = as_ada(daemon.address);
    ada.call("session.resume", json!({ "sessionId": id, "lastSeq": last }));
    let rest = ada.until_end(&prompt);
    assert_in_order(&rest);
    assert!(rest[0].session_seq() > last, "{rest:#?}");
    let starts: Vec<_> = rest.iter().filter(|event| event.name == "stream.start").collect();
    assert_eq!(starts.len(), 1, "{rest:#?}");
    assert_eq!(starts[0].payload["metadata"]["restarted"], true, "{rest:#?}");
    let anew: Vec<_> = rest.iter().skip_while(|event| event.name != "stream.start").cloned().collect();
    assert_eq!(text_of(&anew).trim(), "Slowly: 1 2 3 done.");
    assert_eq!(rest.iter().filter(|event| event.name == "stream.end").count(), 1, "{rest:#?}");
    assert!(ada.rest().is_empty(), "nothing follows the end");
}

/// Takes events up to and with the end of a prompt; nothing but `stream.*` of it is kept.
fn stream_of(client: &mut Person, prompt: &str) -> Vec<Event> {
    let told = client.until_end(prompt);
    told.into_iter().filter(|event| event.name.starts_with("stream.")).collect()
}

#[test]
fn who_resumes_without_a_number_is_told_the_answer_from_its_beginning() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let (id, _) = ada.session();
    let (prompt, told) = cut_off(&mut ada, &id);
    let known = text_of(&told);
    drop(ada);
    let mut ada = as_ada(daemon.address);
    let resumed = ada.call("session.resume", json!({ "sessionId": id }));
    let first = ada.event();
    assert_eq!((&*first.name, first.text("promptId")), ("stream.start", &*prompt));
    assert_eq!(first.payload["metadata"], json!({ "resumed": true }));
    assert_eq!(first.subscription, resumed["subscriptionId"].as_str().unwrap());
    let second = ada.event();
    assert!(second.name == "stream.chunk" && second.text("content").starts_with(&*known), "{second:?}");
    let rest = stream_of(&mut ada, &prompt);
    let mut all = vec![first, second];
    all.extend(rest);
    assert_in_order(&all);
    assert_eq!(text_of(&all).trim(), "Slowly: 1 2 3 done.");
    let indexes = all.iter().filter_map(|event| event.payload["index"].as_u64());
    assert!(indexes.eq(0..all.len() as u64 - 2), "{all:#?}");
    assert_eq!(all.iter().filter(|event| event.name == "stream.start").count(), 1, "{all:#?}");

    // The daemon is killed within a step, which is said anew.
    let (prompt, _) = cut_off(&mut ada, &id);
    drop(ada);
    let (daemon, mut ada) = daemon.kill_and_restart().and(as_ada);
    ada.call("session.resume", json!({ "sessionId": id }));
    let told = stream_of(&mut ada, &prompt);
    assert_eq!(told[0].name, "stream.start", "{told:#?}");
    assert_eq!(told[0].payload["metadata"], json!({ "resumed": true, "restarted": true }), "{told:#?}");
    assert_eq!(text_of(&told).trim(), "Slowly: 1 2 3 done.");
    assert_eq!(told.iter().filter(|event| event.name == "stream.start").count(), 1, "{told:#?}");

    // Where nothing is under way nothing is told.
    let mut other = as_ada(daemon.address);
    other.call("session.resume", json!({ "sessionId": id }));
    assert!(other.rest().is_empty());
}

#[test]
fn a_connection_has_one_subscription_of_its_own_on_a_session() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let (id, subscription) = ada.session();
    ada.event();
    let (prompt, told) = cut_off(&mut ada, &id);
    let resume = |more: Value| {
        let mut params = json!({ "sessionId": id });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    // At once, and under way: nothing is told twice, nor anew. There may be four subscriptions.
    let asked: Vec<_> = (0..6).map(|_| ada.0.request("session.resume", resume(json!({})))).collect();
    for id in asked {
        let resumed = ada.0.answer(&id).unwrap();
        assert_eq!(resumed["subscriptionId"], *subscription);
    }
    let rest = stream_of(&mut ada, &prompt);
    let text = format!("{}{}", text_of(&told), text_of(&rest));
    assert_eq!(text.trim(), "Slowly: 1 2 3 done.");
    assert!(rest.iter().all(|event| event.name != "stream.start" && event.subscription == subscription));

    // From a number on it is told again what came after that, under the same name; then on, once.
    let last = told.last().unwrap().session_seq();
    let resumed = ada.call("session.resume", resume(json!({ "lastSeq": last })));
    assert_eq!(resumed["subscriptionId"], *subscription);
    assert_eq!(text_of(&stream_of(&mut ada, &prompt)), text_of(&rest));
    let next = ada.prompt(&id, "once");
    let told = stream_of(&mut ada, &next);
    assert_eq!(told.iter().filter(|event| event.name == "stream.start").count(), 1, "{told:#?}");
    assert!(ada.rest().is_empty(), "nothing follows");

    // On another connection several at once are one too.
    let mut other = as_ada(daemon.address);
    let asked: Vec<_> = (0..6).map(|_| other.0.request("session.resume", resume(json!({})))).collect();
    let mut names: Vec<_> =
        asked.iter().map(|id| other.0.answer(id).unwrap()["subscriptionId"].clone()).collect();
    names.dedup();
    assert_eq!(names.len(), 1, "{names:?}");
    let next = other.prompt(&id, "once more");
    let told = stream_of(&mut other, &next);
    assert_eq!(told.iter().filter(|event| event.name == "stream.end").count(), 1, "{told:#?}");
    assert!(other.rest().is_empty(), "nothing follows");
    // Given up, it is made anew.
    other.call("unsubscribe", json!({ "subscriptionId": names[0] }));
    assert_ne!(other.call("session.resume", resume(json!({})))["subscriptionId"], names[0]);
}

#[test]
fn what_is_not_to_be_streamed_is_told_once_at_the_end() {
    let daemon = daemon();
    let (mut ada, mut eve) = (as_ada(daemon.address), as_ada(daemon.address));
    let (id, _) = ada.session();
    ada.event();
    eve.call("session.resume", json!({ "sessionId": id }));
    let submit = |client: &mut Person, prompt: &str| {
        let accepted =
            client.call("prompt.submit", json!({ "sessionId": id, "prompt": prompt, "stream": false }));
        accepted["promptId"].as_str().unwrap().to_owned()
    };
    for text in ["/slow 1", r#"/tool echo {"text":"hi"}"#] {
        let prompt = submit(&mut ada, text);
        let told = ada.until_end(&prompt);
        assert_in_order(&told);
        let is_text = |event: &&Event| event.text("chunkType") == "text";
        let at = told.iter().position(|event| is_text(&event)).unwrap();
        assert_eq!(told.iter().filter(is_text).count(), 1, "{told:#?}");
        assert_eq!(told[at + 1].name, "stream.end", "{told:#?}");
        let streamed = eve.until_end(&prompt);
        assert_eq!(text_of(&streamed), told[at].text("content"));
        assert!(streamed.iter().filter(is_text).count() > 1, "others are told as it comes: {streamed:#?}");
        // From the text on nothing is missing, and nothing is told again.
        let mut late = as_ada(daemon.address);
        late.call("session.resume", json!({ "sessionId": id, "lastSeq": told[at].session_seq() }));
        assert_eq!(names(&late.until_end(&prompt)), ["stream.end", "session.status"]);
    }
    // What was said is told where it is cut short, too.
    let prompt = submit(&mut ada, "/slow 60");
    eve.until(|event| event.text("chunkType") == "text");
    ada.call("prompt.cancel", json!({ "sessionId": id }));
    let told = stream_of(&mut ada, &prompt);
    assert_eq!(names(&told), ["stream.start", "stream.chunk", "stream.end"], "{told:#?}");
    assert!(text_of(&told).starts_with("Slowly:"), "{told:#?}");
}

#[test]
fn history_leads_back_to_the_whole_answer() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let (id, _) = ada.session();
    let mut answers = Vec::new();
    for text in ["one", "two", "three"] {
        let prompt = ada.prompt(&id, text);
        let told = ada.until_end(&prompt);
        answers.push((prompt, text, text_of(&told)));
    }
    let slow = ada.prompt(&id, "/slow 60");
    ada.until(|event| event.name == "stream.start");
    drop(ada);
    let (daemon, mut ada) = daemon.kill_and_restart().and(as_ada);
    assert!(ada.0.hello()["methods"].as_array().unwrap().contains(&json!("session.history")));
    let ask = |client: &mut Person, more: Value| {
        let mut params = json!({ "sessionId": id, "limit": 3 });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.call("session.history", params)
    };
    let newest = ask(&mut ada, json!({}));
    assert_eq!(newest["activity"], "busy");
    let older = ask(&mut ada, json!({ "before": newest["olderBefore"] }));
    let oldest = ask(&mut ada, json!({ "before": older["olderBefore"] }));
    assert!(oldest.get("olderBefore").is_none(), "{oldest}");
    let said: Vec<_> = [oldest, older, newest.clone()]
        .iter()
        .flat_map(|page| page["messages"].as_array().unwrap().clone())
        .map(|message| {
            let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
            (text("promptId"), text("role"), text("content"))
        })
        .collect();
    let mut expected: Vec<_> = answers
        .iter()
        .flat_map(|(prompt, text, answer)| {
            let said = |role: &str, text: &str| (prompt.clone(), role.to_owned(), text.to_owned());
            [said("user", text), said("assistant", answer)]
        })
        .collect();
    expected.push((slow.clone(), "user".into(), "/slow 60".into()));
    assert_eq!(said, expected);
    // Nothing is missing between the two.
    ada.call("session.resume", json!({ "sessionId": id, "lastSeq": newest["sessionSeq"] }));
    ada.call("prompt.cancel", json!({ "sessionId": id }));
    let end = ada.until(|event| event.name == "stream.end").pop().unwrap();
    assert_eq!(end.text("promptId"), slow);
    let mut bob = Person::connect(daemon.address, &key_of("bob"));
    let (code, _) = bob.refused("session.history", json!({ "sessionId": id }));
    assert_eq!(code, "NOT_FOUND");
}

#[test]
fn nobody_sees_what_is_another_s() {
    let daemon = daemon();
    let (mut ada, mut bob) = (as_ada(daemon.address), Person::connect(daemon.address, &key_of("bob")));
    let mut operator = Person::connect(daemon.address, OPERATOR);
    bob.call("subscribe", json!({ "events": ["*"] }));
    operator.call("subscribe", json!({ "events": ["stream.end"] }));
    let (id, _) = ada.session();
    let prompt = ada.prompt(&id, "a secret");
    ada.until_end(&prompt);
    let seen = operator.event();
    assert_eq!((seen.text("sessionId"), seen.text("promptId")), (&*id, &*prompt));

    let none = "11111111-1111-4111-8111-111111111111";
    for (method, more) in [
        ("session.status", json!({})),
        ("session.resume", json!({ "lastSeq": 0 })),
        ("session.history", json!({})),
        ("session.stop", json!({})),
        ("prompt.submit", json!({ "prompt": "hi" })),
        ("prompt.cancel", json!({})),
        ("prompt.cancel", json!({ "promptId": prompt })),
        ("subscribe", json!({ "events": ["stream.*"] })),
    ] {
        let mut ask = |session: &str| {
            let mut params = more.clone();
            match method {
                "subscribe" => params["filter"] = json!({ "sessionId": session }),
                _ => params["sessionId"] = session.into(),
            }
            bob.refused(method, params)
        };
        let (theirs, nobodys) = (ask(&id), ask(none));
        assert_eq!(theirs.0, "NOT_FOUND", "{method}: {}", theirs.1);
        let (theirs, nobodys) = (theirs.1.to_string(), nobodys.1.to_string());
        assert_eq!(theirs.replace(&id, none), nobodys, "{method} tells one from the other");
    }
    // Nor can one be put in its place under another agent.
    let mut exoclaw = Client::connect_with(daemon.address, &key_of("bob"));
    for key in [format!("work:wundr:{id}:main"), format!("main:wundr:{id}:main")] {
        let refused = exoclaw.call("chat.send", json!({ "session": key, "content": "mine now" }));
        assert!(refused["error"].is_string(), "{refused}");
    }
    assert_eq!(
        ada.call("session.status", json!({ "sessionId": id }))["sessionKey"],
        format!("main:wundr:{id}:main")
    );
    assert_eq!(bob.call("session.list", json!({}))["total"], 0);
    assert_eq!(operator.call("session.list", json!({}))["total"], 1);
    // Not one event of all that.
    let (own, _) = bob.session();
    let prompt = bob.prompt(&own, "mine");
    let told = bob.until_end(&prompt);
    assert!(told.iter().all(|event| event.text("sessionId") == own), "{told:#?}");
    assert_eq!(ada.call("session.list", json!({}))["sessions"][0]["id"], id);
}

#[test]
fn each_subscription_is_told_once_of_what_it_asked_for() {
    let (daemon, mut ada) = daemon().and(as_ada);
    let quiet = json!({ "orchestratorId": "main", "sessionType": "claude-code", "subscribe": false,
        "task": { "type": "custom", "description": "" } });
    let id = ada.call("session.create", quiet.clone())["id"].as_str().unwrap().to_owned();
    let other = ada.call("session.create", quiet)["id"].as_str().unwrap().to_owned();
    let mut subscribe = |events: Value, filter: Value| {
        let made = ada.call("subscribe", json!({ "events": events, "filter": filter }));
        assert_eq!(made["events"], events);
        made["subscriptionId"].as_str().unwrap().to_owned()
    };
    // Several patterns that fit the same are one subscription.
    let all = subscribe(json!(["*", "stream.*", "stream.end", "**"]), json!({}));
    let one = subscribe(json!(["stream.*"]), json!({ "sessionId": id }));
    let ends = subscribe(json!(["*.end"]), json!({ "sessionId": id }));
    let texts = subscribe(json!(["stream.*"]), json!({ "chunkType": "text" }));
    let (code, error) = ada.refused("subscribe", json!({ "events": ["*"] }));
    assert_eq!((&*code, &error["details"]["max"]), ("RATE_LIMITED", &json!(4)), "{error}");
    for prompt_in in [&other, &id] {
        let prompt = ada.prompt(prompt_in, "hello");
        let mut told = Vec::new();
        while told.last().is_none_or(|event| activity(event) != "idle") {
            told.push(ada.event());
        }
        // What comes from the session's attachment may come behind what comes from the watch.
        told.extend(ada.rest());
        let count = |subscription: &str, name: &str| {
            told.iter().filter(|event| event.subscription == subscription && event.name == name).count()
        };
        let is_it = usize::from(*prompt_in == id);
        assert_eq!((count(&all, "stream.end"), count(&all, "stream.start")), (1, 1), "{told:#?}");
        assert_eq!((count(&one, "stream.end"), count(&ends, "stream.end")), (is_it, is_it), "{told:#?}");
        assert_eq!((count(&ends, "stream.start"), count(&one, "session.status")), (0, 0), "{told:#?}");
        assert_eq!((count(&texts, "stream.end"), count(&all, "session.status")), (0, 2), "{told:#?}");
        assert_eq!(count(&texts, "stream.chunk"), count(&all, "stream.chunk"), "{told:#?}");
        assert_eq!(count(&one, "stream.chunk"), count(&all, "stream.chunk") * is_it, "{told:#?}");
        assert!(told.iter().all(|event| event.text("promptId") == prompt || event.name == "session.status"));
    }
    // Only one's own, and once.
    let mut second = as_ada(daemon.address);
    assert_eq!(second.refused("unsubscribe", json!({ "subscriptionId": all })).0, "NOT_FOUND");
    for subscription in [&all, &one, &texts] {
        assert_eq!(ada.call("unsubscribe", json!({ "subscriptionId": subscription })), json!({ "ok": true }));
        assert_eq!(ada.refused("unsubscribe", json!({ "subscriptionId": subscription })).0, "NOT_FOUND");
    }
    ada.prompt(&other, "nobody hears it");
    ada.prompt(&id, "one hears its end");
    let end = ada.event();
    assert_eq!((&*end.name, &end.subscription, end.text("sessionId")), ("stream.end", &ends, &*id));
    // The watch can be had again.
    ada.call("subscribe", json!({ "events": ["session.stopped"] }));
    ada.call("session.stop", json!({ "sessionId": other }));
    assert_eq!(ada.event().text("sessionId"), other);
}

#[test]
fn sessions_of_other_protocols_are_sessions_here() {
    let daemon = daemon();
    let mut exoclaw = Client::connect_with(daemon.address, &key_of("ada"));
    exoclaw.chat("parrots", "what do parrots eat?");
    let mut ada = as_ada(daemon.address);
    let (own, _) = ada.session();
    ada.event();
    let list = ada.call("session.list", json!({ "status": "running" }));
    assert_eq!(list["total"], 2, "{list}");
    let theirs = &list["sessions"][1];
    assert_eq!(
        (&theirs["sessionKey"], &theirs["sessionType"]),
        (&json!("main:websocket:parrots:main"), &json!("claude-code"))
    );
    assert_eq!(
        (&theirs["orchestratorId"], &theirs["task"]["description"]),
        (&json!("main"), &json!("what do parrots eat?"))
    );
    let id = theirs["id"].as_str().unwrap().to_owned();
    // One at a time, in the order they were used.
    for (offset, of) in [(0, &own), (1, &id)] {
        let page = ada.call("session.list", json!({ "limit": 1, "offset": offset }));
        assert_eq!((&page["total"], &page["sessions"][0]["id"]), (&json!(2), &json!(of)), "{page}");
    }

    // The same UUID names it after a restart, and it can be gone on with from both sides.
    let (daemon, mut ada) = daemon.kill_and_restart().and(as_ada);
    let mut exoclaw = Client::connect_with(daemon.address, &key_of("ada"));
    ada.call("session.resume", json!({ "sessionId": id, "lastSeq": 0 }));
    let past = ada.until(|event| activity(event) == "idle");
    assert_eq!(past[0].name, "session.created");
    assert!(text_of(&past).contains("parrots"), "{past:#?}");
    let prompt = ada.prompt(&id, "and penguins?");
    assert!(text_of(&ada.until_end(&prompt)).contains("penguins"));
    let said = exoclaw.chat("parrots", "and puffins?").text();
    let told = ada.until(|event| event.name == "stream.end");
    assert_eq!(text_of(&told), said);
    ada.event();

    // Stopped here, it takes no more there; a new conversation of an operator opens it again.
    ada.call("session.stop", json!({ "sessionId": id }));
    for (status, count) in [("terminated", 1), ("running", 1), ("paused", 0), ("completed", 0)] {
        assert_eq!(ada.call("session.list", json!({ "status": status }))["total"], count, "{status}");
    }
    let refused = exoclaw.chat("parrots", "still there?");
    assert!(refused.error().contains("was stopped"), "{refused:?}");
    let mut operator = Client::open(daemon.address, "/");
    operator.receive();
    let about = json!({ "id": "test", "version": "1", "platform": "linux", "mode": "ui" });
    for (method, params) in [
        (
            "connect",
            json!({ "minProtocol": 3, "maxProtocol": 3, "client": about, "auth": { "token": OPERATOR } }),
        ),
        ("sessions.reset", json!({ "key": "ada/agent:main:websocket:parrots:main" })),
    ] {
        operator.send_text(
            &json!({ "type": "req", "id": method, "method": method, "params": params }).to_string(),
        );
        let answer = operator.reply(method);
        assert_eq!(answer["ok"], true, "{answer}");
    }
    assert!(exoclaw.chat("parrots", "still there?").text().contains("still there"));
    assert_eq!(ada.call("session.status", json!({ "sessionId": id }))["status"], "running");
}
