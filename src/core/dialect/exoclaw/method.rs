//! Every method: its name, what it takes, and an example. What is not in this table is not there.

use serde_json::{Value, json};

/// A method.
pub(super) struct Method {
    /// Its name.
    pub(super) name: &'static str,
    /// What it takes, as people write it; `?` marks what may be left out. `SESSION` stands for the fields that name one.
    pub(super) params: &'static str,
    /// What it does.
    pub(super) doc: &'static str,
    /// Parameters of a typical request, as JSON.
    pub(super) example: &'static str,
}

const fn row(name: &'static str, params: &'static str, doc: &'static str, example: &'static str) -> Method {
    Method { name, params, doc, example }
}

/// Every method there is.
pub(super) const METHODS: &[Method] = &[
    row("ping", "", "answered \"pong\"", "{}"),
    row("status", "", "version, plugins, sessions", "{}"),
    row(
        "chat.send",
        "SESSION, content, idempotency_key?, model?, attachments? [{name, media_type, data}], follow?",
        "a prompt, answered by events until done",
        r#"{"channel":"websocket","account":"ada","content":"hi","idempotency_key":"k1"}"#,
    ),
    row(
        "chat.abort",
        "id of the request, or SESSION and run?",
        "ends a run; what it had said is kept",
        r#"{"channel":"websocket","account":"ada"}"#,
    ),
    row(
        "chat.history",
        "SESSION, limit?, before?",
        "the latest messages",
        r#"{"channel":"websocket","account":"ada","limit":20}"#,
    ),
    row("session.list", "", "the sessions you may see", "{}"),
    row(
        "session.attach",
        "SESSION, after_seq? or turns?, thoughts?",
        "everything that happens in a session from then on",
        r#"{"channel":"websocket","account":"ada","after_seq":0}"#,
    ),
    row("session.detach", "id of the attach", "ends that", r#"{"id":"1"}"#),
    row(
        "session.export",
        "SESSION, after_seq?",
        "a part of the events of a session",
        r#"{"channel":"websocket","account":"ada","after_seq":0}"#,
    ),
    row("session.clear", "SESSION", "the agent starts over", r#"{"channel":"websocket","account":"ada"}"#),
    row(
        "session.delete",
        "SESSION",
        "a session is gone, with all its events",
        r#"{"channel":"websocket","account":"ada"}"#,
    ),
    row(
        "memory.search",
        "query, limit?",
        "what is remembered for you that is relevant, the best first",
        r#"{"query":"where do I live?","limit":5}"#,
    ),
    row("approval.list", "session?", "the calls that wait and that you may decide about", "{}"),
    row("approval.approve", "id, input?", "a call is made", r#"{"id":"3f9a"}"#),
    row("approval.deny", "id, reason?", "a call is not made", r#"{"id":"3f9a","reason":"not on a Friday"}"#),
    row("agent.list", "", "the agents, each with its model", "{}"),
    row("model.list", "", "the models that agents name", "{}"),
    row("budget.status", "SESSION?", "tokens used and left", r#"{"channel":"websocket","account":"ada"}"#),
    row("plugin.list", "", "the plugins", "{}"),
    row("plugin.load", "name, path?", "loads a plugin; needs an admin", r#"{"name":"clock"}"#),
    row("plugin.unload", "name", "unloads a plugin; needs an admin", r#"{"name":"clock"}"#),
];

/// Events of a run and, from `restart` on, those that only `session.attach` and repeated prompts tell; with the data of
/// each as an example.
const EVENTS: &[(&str, &str, &str)] = &[
    ("accepted", "a prompt with an idempotency key was taken", r#"{"run":"run_0b1c","seq":12}"#),
    ("text", "a piece of the answer", r#""You said""#),
    (
        "tool_use",
        "a tool is called; approval is the id to decide where it waits",
        r#"{"id":"c1","name":"echo","input":{"text":"hi"}}"#,
    ),
    (
        "tool_result",
        "what a tool answered; is_error where it failed",
        r#"{"tool_use_id":"c1","content":"hi"}"#,
    ),
    ("usage", "what the run cost", r#"{"input_tokens":3,"output_tokens":9}"#),
    ("error", "why the run failed", r#""aborted""#),
    ("done", "the run is over", "null"),
    (
        "restart",
        "the answer was cut off, as by a restart of the daemon: the text since the last tool_result is void and comes anew",
        "null",
    ),
    ("prompt", "session.attach: somebody sent a prompt", r#""hi""#),
    ("thought", "session.attach with thoughts: what the model thinks", r#""Two files.""#),
    (
        "approval",
        "session.attach: what was decided about a call that waited",
        r#"{"id":"3f9a","name":"rm","decision":"approved","by":"ada"}"#,
    ),
    (
        "message",
        "session.attach: something was said in the name of the agent outside any run",
        r#""Backup done.""#,
    ),
    ("clear", "session.attach: the agent starts over", "null"),
    ("deleted", "session.attach: the session is gone, with all its events", "null"),
];

/// Whether there is a method of this name.
pub(super) fn is_known(name: &str) -> bool {
    METHODS.iter().any(|method| method.name == name)
}

/// The protocol as one JSON document: where it is spoken, its frames, methods with an example of each, and events.
pub fn reference() -> Value {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let methods = METHODS.iter().map(|method| {
        let params = parsed(method.example);
        json!({
            "name": method.name,
            "params": method.params,
            "description": method.doc,
            "example": { "id": "1", "method": method.name, "params": params },
        })
    });
    let events = EVENTS.iter().map(|(name, doc, data)| {
        let example = json!({ "id": "1", "event": name, "data": parsed(data) });
        json!({ "name": name, "description": doc, "example": example })
    });
    json!({
        "protocol": "exoclaw",
        "where": "ws://127.0.0.1:18789/ws, JSON text frames; and the Unix socket HOME/.xeno/gateway.sock, one message a \
                  line, without token and hello",
        "session": "SESSION is channel, account, peer?, guild?, team?; or session, the key AGENT:CHANNEL:ACCOUNT:PEER",
        "frames": [
            { "name": "token, where a credential is configured", "from": "client", "example": { "token": "..." } },
            { "name": "hello", "from": "daemon", "example": { "ok": true, "version": "0.1.0" } },
            { "name": "request", "from": "client", "example": { "id": "1", "method": "ping" } },
            { "name": "answer", "from": "daemon", "example": { "id": "1", "result": "pong" } },
            { "name": "refusal", "from": "daemon", "example": { "id": "1", "error": "unknown method: pong" } },
            { "name": "event", "from": "daemon", "example": { "id": "1", "event": "text", "data": "You said" } },
        ],
        "methods": methods.collect::<Vec<_>>(),
        "events": events.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_what_the_table_does() {
        let readme = include_str!("README.md");
        let table = readme.split("| method | params | answer |").nth(1).expect("a table of methods");
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let first = rows.filter_map(|row| row.split('|').nth(1));
        let mut listed: Vec<&str> = first.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let mut known: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed.into_iter().filter(|name| *name != "---").collect::<Vec<_>>(), known);
    }

    #[test]
    fn examples_are_json_and_each_name_stands_once() {
        for (at, method) in METHODS.iter().enumerate() {
            assert!(serde_json::from_str::<Value>(method.example).is_ok_and(|params| params.is_object()));
            assert!(METHODS[..at].iter().all(|other| other.name != method.name), "{}", method.name);
        }
        assert!(EVENTS.iter().all(|(.., data)| serde_json::from_str::<Value>(data).is_ok()));
    }
}
