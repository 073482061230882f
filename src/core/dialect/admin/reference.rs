//! The operator's protocol, as `clawmux reference admin` prints it.

use serde_json::{Value, json};

use super::method;

/// Members of parameters, with a value each as an example.
const VALUES: &[(&str, &str)] = &[
    ("after_seq", "0"),
    ("answer", "7"),
    ("approval", r#""3f9a""#),
    ("channel", r#""telegram""#),
    ("code", r#""K7M2QX4D""#),
    ("connection", "17"),
    ("device", r#""00ff""#),
    ("file", r#""/var/backups/clawmux.db""#),
    ("job", r#""report""#),
    ("letter", "3"),
    ("memories", "[]"),
    ("memory", r#""6f0c""#),
    ("name", r#""ci""#),
    ("node", r#""node-2""#),
    ("path", r#""limits.queue""#),
    ("plugin", r#""echo""#),
    ("prompt", r#""What is due today?""#),
    ("query", r#""where do I live?""#),
    ("request", r#""8c21""#),
    ("role", r#""user""#),
    ("server", r#""files""#),
    ("session", r#""main:cli:ada:main""#),
    ("token", r#""5d0e""#),
    ("tool", r#""read_file""#),
    ("value", "128"),
    ("at_ms", "1893456000000"),
];

/// Parameters made of what a method takes, as people write it: the members that have to be there, and of several that
/// stand for each other the first.
fn example(params: &str) -> Value {
    let text = params.trim_matches(['{', '}']);
    let needed = text.split(',').filter_map(|part| {
        let first = part.trim();
        let is_choice = first.contains(" or ");
        let (name, rest) = first.strip_prefix('"')?.split_once('"')?;
        (!rest.starts_with('?') || is_choice && !rest.contains("\"filter\"")).then_some(name)
    });
    let value = |name: &str| VALUES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    needed
        .map(|name| {
            let value = value(name).and_then(|text| serde_json::from_str(text).ok());
            (name.to_owned(), value.unwrap_or_default())
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The protocol as one JSON document: where it is spoken, its frames, `methods` (name, and what it takes as people write
/// it) with an example of each, and what is told.
pub fn reference() -> Value {
    let own = [("admin.auth", r#"{"token"}"#), ("admin.unfollow", r#"{"follow"}"#)];
    let all = method::all().map(|method| (method.name, method.params));
    let methods = own.into_iter().chain(all).map(|(name, params)| {
        let params_of_it = match name {
            "admin.auth" => json!({ "token": "..." }),
            "admin.unfollow" => json!({ "follow": 7 }),
            _ => example(params),
        };
        json!({
            "name": name,
            "params": params,
            "example": { "jsonrpc": "2.0", "id": 1, "method": name, "params": params_of_it },
        })
    });
    let event = |name: &str, about: &str, params: Value| {
        let example = json!({ "jsonrpc": "2.0", "method": name, "params": params });
        json!({ "name": name, "description": about, "example": example })
    };
    json!({
        "protocol": "admin",
        "where": "the Unix socket HOME/.xeno/gateway.sock, one JSON-RPC 2.0 message a line; and \
                  ws://127.0.0.1:18789/admin, one a frame, where the first is admin.auth",
        "frames": [
            { "name": "request", "from": "client", "example":
                { "jsonrpc": "2.0", "id": 1, "method": "admin.log", "params": {} } },
            { "name": "answer", "from": "daemon", "example":
                { "jsonrpc": "2.0", "id": 1, "result": { "filter": "info", "configured": "info" } } },
            { "name": "refusal", "from": "daemon", "example":
                { "jsonrpc": "2.0", "id": 1, "error": { "code": -32601, "message": "unknown method: admin.stat" } } },
        ],
        "methods": methods.collect::<Vec<_>>(),
        "events": [
            event("admin.session.event", "an event of a session that is tailed",
                json!({ "follow": 7, "session": "main:cli:ada:main", "seq": 12, "event": "text", "text": "hi" })),
            event("admin.event", "of admin.events: the same of any session, or what concerns the whole daemon",
                json!({ "follow": 7, "event": "session_changed", "session": "main:cli:ada:main", "reason": "created" })),
            event("admin.backup.progress", "how far a backup is", json!({ "pages_left": 120 })),
            event("admin.closing", "why the daemon ends the connection; the last message",
                json!({ "reason": "the daemon is stopping" })),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_has_what_has_to_be_there() {
        assert_eq!(example("{}"), json!({}));
        assert_eq!(
            example(r#"{"session", "after_seq"?, "limit"?}"#),
            json!({ "session": "main:cli:ada:main" })
        );
        assert_eq!(example(r#"{"level"? or "filter"?}"#), json!({}));
        assert_eq!(
            example(r#"{"name", "role"? or "scopes"?, "kind"?, "life_ms"?}"#),
            json!({ "name": "ci", "role": "user" })
        );
        let (add, cron) =
            (r#"{"prompt", "at_ms"? or "every_ms"?"#, r#" with "anchor_ms"? or "cron"?, "name"?}"#);
        assert_eq!(
            example(&format!("{add}{cron}")),
            json!({ "prompt": "What is due today?", "at_ms": 1_893_456_000_000_u64 })
        );
    }
}
