//! What can be said in OpenClaw's protocol, as `clawmux reference openclaw` prints it. What there is comes from the
//! table of methods; what each takes stands here, and tests hold the two together.

use serde_json::{Value, json};

use super::method::{EVENTS, METHODS};
use super::wire::scope_name;
use crate::scope::Role;

/// A method, what it takes as people write it (`?` marks what may be left out), and parameters as an example.
type Row = (&'static str, &'static str, &'static str);

/// All of them, in the order of the methods.
const PARAMS: &[Row] = &[
    (
        "chat.send",
        "sessionKey?, message, idempotencyKey, thinking?, attachments?, timeoutMs?",
        r#"{"sessionKey":"main","message":"hi","idempotencyKey":"k1"}"#,
    ),
    ("chat.abort", "sessionKey?, runId?", r#"{"sessionKey":"main"}"#),
    ("chat.history", "sessionKey?, limit?, maxBytes?, afterSeq?", r#"{"sessionKey":"main","limit":50}"#),
    ("chat.startup", "sessionKey?, limit?", r#"{"sessionKey":"main"}"#),
    ("chat.metadata", "sessionKey?, agentId?", r#"{"sessionKey":"main"}"#),
    (
        "chat.inject",
        "sessionKey?, message, label?",
        r#"{"sessionKey":"main","message":"rain","label":"weather"}"#,
    ),
    (
        "agent",
        "message, idempotencyKey, sessionKey? or sessionId? or agentId?, thinking?, timeout?",
        r#"{"message":"hi","sessionKey":"main","idempotencyKey":"k2"}"#,
    ),
    ("agent.wait", "runId, timeoutMs?", r#"{"runId":"k2","timeoutMs":1000}"#),
    (
        "sessions.list",
        "limit?, offset?, search?, label?, agentId?, activeMinutes?, includeDerivedTitles?, includeLastMessage?",
        r#"{"limit":20}"#,
    ),
    ("sessions.subscribe", "", "{}"),
    ("sessions.unsubscribe", "", "{}"),
    ("sessions.messages.subscribe", "key", r#"{"key":"main"}"#),
    ("sessions.messages.unsubscribe", "key", r#"{"key":"main"}"#),
    ("sessions.resolve", "key? or sessionId? or label?, agentId?, allowMissing?", r#"{"key":"main"}"#),
    ("sessions.preview", "keys, limit?, maxChars?", r#"{"keys":["main"],"limit":2}"#),
    ("sessions.describe", "key", r#"{"key":"main"}"#),
    (
        "sessions.create",
        "key?, agentId?, label?, model?, thinkingLevel?, message?, idempotencyKey?",
        r#"{"label":"a talk"}"#,
    ),
    ("sessions.patch", "key, label?, model?, thinkingLevel?", r#"{"key":"main","label":"a talk"}"#),
    ("sessions.reset", "key, reason?", r#"{"key":"main","reason":"new"}"#),
    ("sessions.compact", "key, maxLines?", r#"{"key":"main"}"#),
    ("sessions.delete", "key", r#"{"key":"main"}"#),
    ("agents.list", "", "{}"),
    ("agent.identity.get", "agentId?, sessionKey?", r#"{"agentId":"main"}"#),
    ("models.list", "", "{}"),
    ("models.authStatus", "agentId?", r#"{"agentId":"main"}"#),
    ("commands.list", "agentId?", "{}"),
    ("question.list", "", "{}"),
    ("device.pair.list", "", "{}"),
    ("device.pair.approve", "requestId", r#"{"requestId":"8c21"}"#),
    ("device.pair.reject", "requestId", r#"{"requestId":"8c21"}"#),
    ("device.pair.remove", "deviceId", r#"{"deviceId":"00ff"}"#),
    ("device.token.rotate", "deviceId, role, scopes?", r#"{"deviceId":"00ff","role":"operator"}"#),
    ("device.token.revoke", "deviceId, role", r#"{"deviceId":"00ff","role":"operator"}"#),
    ("node.pair.list", "", "{}"),
    ("node.pair.approve", "requestId", r#"{"requestId":"8c21"}"#),
    ("node.pair.reject", "requestId", r#"{"requestId":"8c21"}"#),
    ("node.pair.remove", "nodeId", r#"{"nodeId":"00ff"}"#),
    ("node.pair.verify", "nodeId, token", r#"{"nodeId":"00ff","token":"t"}"#),
    ("exec.approval.list", "", "{}"),
    ("exec.approval.get", "id", r#"{"id":"3f9a"}"#),
    (
        "exec.approval.resolve",
        "id, decision (allow-once, allow-always for the session, or deny)",
        r#"{"id":"3f9a","decision":"deny"}"#,
    ),
    ("approval.history", "limit?, kind?", r#"{"limit":20}"#),
    ("health", "probe?", "{}"),
    ("status", "", "{}"),
    ("system-presence", "", "{}"),
    ("last-heartbeat", "", "{}"),
    ("set-heartbeats", "enabled", r#"{"enabled":false}"#),
    ("system-event", "text, host?, mode?, reason?, and more about the machine", r#"{"text":"rain"}"#),
    ("cron.status", "", "{}"),
    ("cron.list", "includeDisabled?, enabled?, limit?, offset?", r#"{"includeDisabled":true}"#),
    ("cron.get", "id", r#"{"id":"j1"}"#),
    ("cron.runs", "id?, limit?, offset?, sortDir?", r#"{"id":"j1","limit":5}"#),
    (
        "cron.add",
        "name, schedule, payload, sessionTarget?, wakeMode?, agentId?, sessionKey?, enabled?, deleteAfterRun?",
        r#"{"name":"report","schedule":{"kind":"every","everyMs":43200000},"sessionTarget":"isolated","wakeMode":"now","payload":{"kind":"agentTurn","message":"Sum up the day"}}"#,
    ),
    ("cron.update", "id, patch", r#"{"id":"j1","patch":{"enabled":false}}"#),
    ("cron.remove", "id", r#"{"id":"j1"}"#),
    ("cron.run", "id, mode?", r#"{"id":"j1","mode":"force"}"#),
    ("wake", "mode (now or next-heartbeat), text, sessionKey?, agentId?", r#"{"mode":"now","text":"look"}"#),
    ("node.list", "", "{}"),
    ("node.describe", "nodeId", r#"{"nodeId":"00ff"}"#),
    (
        "node.invoke",
        "nodeId, command, params?, timeoutMs?, idempotencyKey",
        r#"{"nodeId":"00ff","command":"camera.snap","params":{},"idempotencyKey":"k3"}"#,
    ),
    (
        "node.invoke.result",
        "id, nodeId, ok, payload? or payloadJSON?, error?",
        r#"{"id":"i1","nodeId":"00ff","ok":true,"payload":{}}"#,
    ),
    ("node.event", "event, payloadJSON?", r#"{"event":"exec.finished","payloadJSON":"{}"}"#),
    ("skills.bins", "", "{}"),
    ("config.get", "", "{}"),
    ("config.schema", "", "{}"),
    ("config.set", "raw, baseHash", r#"{"raw":"{}","baseHash":"h1"}"#),
    ("config.apply", "raw, baseHash", r#"{"raw":"{}","baseHash":"h1"}"#),
    ("config.patch", "raw, baseHash", r#"{"raw":"{\"limits\":{\"queue\":9}}","baseHash":"h1"}"#),
    ("logs.tail", "cursor?, limit?, maxBytes?", r#"{"limit":100}"#),
    ("usage.status", "", "{}"),
    ("usage.cost", "days?", r#"{"days":7}"#),
    ("sessions.usage", "key?, agentId?, startDate?, endDate?, limit?", r#"{"limit":5}"#),
    ("agents.create", "name, workspace?, model?, emoji?, avatar?", r#"{"name":"parrot"}"#),
    (
        "agents.update",
        "agentId, workspace?, model?, emoji?, avatar?",
        r#"{"agentId":"main","model":"offline/offline"}"#,
    ),
    ("agents.delete", "agentId, deleteFiles?", r#"{"agentId":"parrot"}"#),
    ("agents.files.list", "agentId", r#"{"agentId":"main"}"#),
    ("agents.files.get", "agentId, name", r#"{"agentId":"main","name":"SOUL.md"}"#),
    (
        "agents.files.set",
        "agentId, name, content",
        r#"{"agentId":"main","name":"SOUL.md","content":"Be brief."}"#,
    ),
    ("system.info", "", "{}"),
    ("environments.list", "", "{}"),
    ("diagnostics.lanes", "", "{}"),
    ("tasks.list", "status?, agentId?, sessionKey?, limit?", "{}"),
    ("plugins.list", "", "{}"),
    ("tools.effective", "sessionKey?, agentId?", r#"{"sessionKey":"main"}"#),
    ("tools.catalog", "agentId?", "{}"),
    ("plugin.approval.list", "", "{}"),
    ("openclaw.approval.list", "", "{}"),
    ("exec.approval.grants.list", "agentId?", "{}"),
    ("skills.search", "", "{}"),
    ("skills.library.list", "", "{}"),
    ("skills.proposals.list", "agentId?", "{}"),
    ("plugins.catalog.browse", "", "{}"),
    ("themes.list", "", "{}"),
    ("talk.catalog", "", "{}"),
    ("progressCard.get", "", "{}"),
    ("worktrees.list", "", "{}"),
    ("channels.pairing.list", "", "{}"),
    ("transcripts.list", "", "{}"),
    ("update.status", "", "{}"),
    ("doctor.memory.status", "", "{}"),
    ("webSearch.status", "", "{}"),
    ("tools.github.status", "", "{}"),
    ("migrations.memory.plan", "", "{}"),
    ("skills.status", "agentId?", "{}"),
    ("channels.status", "probe?", "{}"),
    ("exec.approvals.get", "", "{}"),
];

/// The protocol as one JSON document: where it is spoken, its frames, methods with an example of each, and events.
pub fn reference() -> Value {
    let methods = METHODS.iter().map(|method| {
        let row = PARAMS.iter().find(|(name, ..)| *name == method.name);
        let (_, params, example) = row.copied().unwrap_or((method.name, "", "{}"));
        let params_of_it: Value = serde_json::from_str(example).unwrap_or_default();
        let node = method.role == Role::Node;
        json!({
            "name": method.name,
            "scopes": if node { json!(["role node"]) } else { json!([scope_name(method.needs)]) },
            "cost": method.cost,
            "params": params,
            "example": { "type": "req", "id": "2", "method": method.name, "params": params_of_it },
        })
    });
    json!({
        "protocol": "openclaw",
        "where": "ws://127.0.0.1:18789/, JSON text frames; versions 3 and 4",
        "frames": [
            { "name": "challenge", "from": "daemon", "example":
                { "type": "event", "event": "connect.challenge", "payload": { "nonce": "01010101-0101-4101-8101-010101010101", "ts": 0 } } },
            { "name": "connect", "from": "client", "example":
                { "type": "req", "id": "1", "method": "connect", "params": {
                    "minProtocol": 3, "maxProtocol": 4, "role": "operator", "scopes": ["operator.admin"],
                    "client": { "id": "cli", "version": "1.0.0", "platform": "linux", "mode": "cli" },
                    "auth": { "token": "..." } } } },
            { "name": "hello-ok", "from": "daemon", "example":
                { "type": "res", "id": "1", "ok": true, "payload": { "type": "hello-ok", "protocol": 4 } } },
            { "name": "request", "from": "client", "example":
                { "type": "req", "id": "2", "method": "health", "params": {} } },
            { "name": "answer", "from": "daemon", "example":
                { "type": "res", "id": "2", "ok": true, "payload": { "ok": true } } },
            { "name": "refusal", "from": "daemon", "example":
                { "type": "res", "id": "2", "ok": false,
                  "error": { "code": "INVALID_REQUEST", "message": "unknown method: healt" } } },
            { "name": "event", "from": "daemon", "example":
                { "type": "event", "event": "tick", "payload": { "ts": 15000 }, "seq": 1 } },
        ],
        "methods": methods.collect::<Vec<_>>(),
        "events": EVENTS.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_has_an_example_and_each_example_a_method() {
        let methods: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
        let rows: Vec<&str> = PARAMS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(rows, methods);
        for (name, params, example) in PARAMS {
            let example: Value = serde_json::from_str(example).expect(name);
            let named: Vec<&str> = params.split([',', ' ']).map(|word| word.trim_end_matches('?')).collect();
            for member in example.as_object().expect(name).keys() {
                assert!(named.contains(&member.as_str()), "{name}: {member}: {params}");
            }
        }
    }
}
