//! Every method: its name, what it takes, and what it asks for. What is not in this table is not there.

use serde_json::{Value, json};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XenoMethod {
    Initialize,
    Query,
    Abort,
    Heartbeat,
    NewSession,
}

/// A method.
struct Method {
    name: &'static str,
    asked: XenoMethod,
    /// What it takes, as people write it; `?` marks what may be left out.
    params: &'static str,
    doc: &'static str,
    /// Parameters, as JSON.
    example: &'static str,
}

const METHODS: &[Method] = &[
    Method {
        name: "gateway.initialize",
        asked: XenoMethod::Initialize,
        params: "",
        doc: "what the console shows first: the messages so far, and what there is",
        example: "{}",
    },
    Method {
        name: "gateway.query",
        asked: XenoMethod::Query,
        params: "requestId, content, context {type, channelId?, userId?}, attachments? [{type, path, caption?}], metadata?",
        doc: "a prompt; accepted at once, answered by notifications until gateway.done",
        example: r#"{"requestId":"r1","content":"hi","context":{"type":"rpc","channelId":"default"}}"#,
    },
    Method {
        name: "gateway.abort",
        asked: XenoMethod::Abort,
        params: "",
        doc: "ends the query that is active",
        example: "{}",
    },
    Method {
        name: "gateway.heartbeat",
        asked: XenoMethod::Heartbeat,
        params: "",
        doc: "has the heartbeat beat now",
        example: "{}",
    },
    Method {
        name: "gateway.new_session",
        asked: XenoMethod::NewSession,
        params: "",
        doc: "sums the conversation up and begins a new one",
        example: "{}",
    },
];

/// Notifications, with parameters as an example.
const NOTIFICATIONS: [(&str, &str, &str); 4] = [
    (
        "gateway.stream",
        "a piece of the answer, and at the end all of it",
        r#"{"requestId":"r1","content":"You said","isPartial":true}"#,
    ),
    (
        "gateway.stats",
        "what a query took",
        r#"{"requestId":"r1","stats":"result=success | turns=1 | duration=0.42s | api=0.40s | stop=end_turn"}"#,
    ),
    ("gateway.error", "why a query failed", r#"{"requestId":"r1","error":"The query was aborted."}"#),
    ("gateway.done", "a query is over; nothing of it follows", r#"{"requestId":"r1"}"#),
];

/// What the method of this name asks for; none where there is none.
pub(super) fn find(name: &str) -> Option<XenoMethod> {
    METHODS.iter().find(|method| method.name == name).map(|method| method.asked)
}

/// The protocol as one JSON document: where it is spoken, its frames, methods with an example of each, and
/// notifications.
pub fn reference() -> Value {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let methods = METHODS.iter().map(|method| {
        json!({
            "name": method.name,
            "params": method.params,
            "description": method.doc,
            "example": { "jsonrpc": "2.0", "id": 1, "method": method.name, "params": parsed(method.example) },
        })
    });
    let events = NOTIFICATIONS.map(|(name, doc, params)| {
        let example = json!({ "jsonrpc": "2.0", "method": name, "params": parsed(params) });
        json!({ "name": name, "description": doc, "example": example })
    });
    json!({
        "protocol": "xeno",
        "where": "the Unix socket HOME/.xeno/gateway.sock, one JSON-RPC 2.0 message a line; no handshake",
        "frames": [
            { "name": "request", "from": "client", "example":
                { "jsonrpc": "2.0", "id": 1, "method": "gateway.abort", "params": {} } },
            { "name": "answer", "from": "daemon", "example":
                { "jsonrpc": "2.0", "id": 1, "result": { "accepted": true } } },
            { "name": "refusal", "from": "daemon", "example":
                { "jsonrpc": "2.0", "id": 1, "error": { "code": -32000, "message": "Method not found: gateway.nothing" } } },
        ],
        "methods": methods.collect::<Vec<_>>(),
        "events": events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_is_json_and_each_name_stands_once() {
        for (at, method) in METHODS.iter().enumerate() {
            assert!(serde_json::from_str::<Value>(method.example).is_ok_and(|params| params.is_object()));
            assert!(
                METHODS[..at].iter().all(|other| other.name != method.name && other.asked != method.asked)
            );
        }
        assert!(NOTIFICATIONS.iter().all(|(.., params)| serde_json::from_str::<Value>(params).is_ok()));
    }
}
