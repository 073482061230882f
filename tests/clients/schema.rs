//! Every frame the daemon sends on protocol 4, against the JSON schema that is published of it.
//!
//! The schema names a definition for most answers and events after the method or event:
//! `agents.list` is answered by an `AgentsListResult`, `chat` is a `ChatEvent`. Every method that the
//! daemon says it has is called, so that none is added without its shape being looked at.

mod validator;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::npm::Generation;
use crate::support::daemon::Daemon;
use crate::support::socket::{Incoming, Socket};
use crate::support::tools::needs;

const TOKEN: &str = "a-token-of-the-schema-7d21";

/// Definitions whose names do not follow from the method.
const ANSWERS: [(&str, &str); 2] = [("agent.identity.get", "AgentIdentityResult"), ("connect", "HelloOk")];

/// What the schema forgot: the gateway it was published with sends it too, and clients go by it.
const FORGOTTEN: [&str; 2] = [
    "the event agent is no AgentEvent: /sessionKey: must not be there",
    "the answer to skills.proposals.list is no SkillsProposalsListResult: /installedSkills: must not be there",
];

/// The published schema, and what was found with it.
struct Schema {
    document: Value,
    checked: BTreeMap<String, usize>,
    breaches: BTreeSet<String>,
}

impl Schema {
    fn published() -> Self {
        let file = Generation::OpenClaw.modules().join("@openclaw/gateway-protocol/protocol.schema.json");
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let document = serde_json::from_str(&text).unwrap();
        Self { document, checked: BTreeMap::new(), breaches: BTreeSet::new() }
    }

    fn has(&self, definition: &str) -> bool {
        self.document["definitions"].get(definition).is_some()
    }

    /// Takes note of everything in `value` that the definition does not allow.
    fn check(&mut self, definition: &str, value: &Value, of: &str) {
        let schema = &self.document["definitions"][definition];
        for breach in validator::breaches(schema, value, "") {
            self.breaches.insert(format!("{of} is no {definition}: {breach}"));
        }
        *self.checked.entry(definition.to_owned()).or_default() += 1;
    }

    /// Checks a frame and what is in it; `method` is what a `res` answers.
    fn frame(&mut self, frame: &Value, method: Option<&str>) {
        match frame["type"].as_str() {
            Some("res") => {
                self.check("ResponseFrame", frame, "an answer");
                let method = method.unwrap_or_else(|| panic!("an answer to nothing: {frame}"));
                let named =
                    ANSWERS.iter().find(|(name, _)| *name == method).map(|(_, shape)| (*shape).to_owned());
                let definition = named.unwrap_or_else(|| camel(method) + "Result");
                if frame["ok"] == true && self.has(&definition) {
                    self.check(&definition, &frame["payload"], &format!("the answer to {method}"));
                }
            }
            Some("event") => {
                self.check("EventFrame", frame, "an event");
                let name = frame["event"].as_str().unwrap();
                let definition = camel(name) + "Event";
                if self.has(&definition) {
                    self.check(&definition, &frame["payload"], &format!("the event {name}"));
                }
            }
            _ => panic!("neither an answer nor an event: {frame}"),
        }
    }
}

/// `sessions.list` is `SessionsList`.
fn camel(name: &str) -> String {
    let parts = name.split(['.', '-', '_']).filter(|part| !part.is_empty());
    parts.map(|part| part[..1].to_uppercase() + &part[1..]).collect()
}

/// A connection that has every frame looked at.
struct Connection {
    socket: Socket,
    asked: BTreeMap<String, String>,
    ids: usize,
}

impl Connection {
    fn open(address: SocketAddr, schema: &mut Schema) -> (Self, Value) {
        let socket = Socket::open(address, "/");
        let mut connection = Self { socket, asked: BTreeMap::new(), ids: 0 };
        let client = json!({"id": "cli", "version": "2026.9.6", "platform": "linux", "mode": "cli"});
        let scopes = ["admin", "read", "write", "approvals", "pairing", "questions"]
            .map(|scope| format!("operator.{scope}"));
        let connect = json!({"minProtocol": 4, "maxProtocol": 4, "client": client, "role": "operator",
            "scopes": scopes, "caps": ["tool-events"], "auth": {"token": TOKEN}});
        let hello = connection.call("connect", &connect, schema);
        assert_eq!(hello["ok"], true, "{hello}");
        (connection, hello["payload"].clone())
    }

    fn send(&mut self, method: &str, params: &Value) -> String {
        self.ids += 1;
        let id = format!("s{}", self.ids);
        let request = json!({"type": "req", "id": id, "method": method, "params": params});
        self.asked.insert(id.clone(), method.to_owned());
        self.socket.send_text(&request.to_string()).unwrap();
        id
    }

    /// The next frame, looked at.
    fn next(&mut self, schema: &mut Schema) -> Value {
        let Incoming::Frame(frame) = self.socket.read().unwrap() else { panic!("a binary frame") };
        let method = frame["id"].as_str().and_then(|id| self.asked.get(id));
        schema.frame(&frame, method.map(String::as_str));
        frame
    }

    /// Everything until a frame that is wanted.
    fn until(&mut self, schema: &mut Schema, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let frame = self.next(schema);
            if wanted(&frame) {
                return frame;
            }
        }
    }

    fn call(&mut self, method: &str, params: &Value, schema: &mut Schema) -> Value {
        let id = self.send(method, params);
        self.until(schema, |frame| frame["id"] == id.as_str())
    }
}

/// What a method is called with, where it takes anything that matters.
fn params(method: &str) -> Value {
    let key = "agent:main:main";
    match method {
        "chat.history" | "chat.startup" | "chat.metadata" => json!({"sessionKey": key, "limit": 50}),
        "chat.inject" => json!({"sessionKey": key, "message": "a note", "label": "note"}),
        "agent" => json!({"message": "once more", "agentId": "main", "idempotencyKey": "schema-agent"}),
        "agent.wait" => json!({"runId": "schema-1", "timeoutMs": 5000}),
        "chat.send" => json!({"sessionKey": key, "message": "and again", "idempotencyKey": "schema-2"}),
        "chat.abort" => json!({"sessionKey": key}),
        "sessions.resolve"
        | "sessions.describe"
        | "sessions.messages.subscribe"
        | "sessions.compact"
        | "sessions.messages.unsubscribe" => json!({"key": key}),
        "sessions.preview" => json!({"keys": [key]}),
        "sessions.patch" => json!({"key": key, "label": "herons"}),
        "sessions.create" => json!({"key": "schema-made", "agentId": "main"}),
        "sessions.reset" => json!({"key": "agent:main:schema-made"}),
        "sessions.delete" => json!({"key": "agent:main:schema-made"}),
        "cron.add" => {
            json!({"name": "herons", "description": "look", "schedule": {"kind": "cron", "expr": "0 9 * * 1"},
            "sessionTarget": "isolated", "wakeMode": "now", "delivery": {"mode": "announce"},
            "payload": {"kind": "agentTurn", "message": "look at the herons", "thinking": "low"}})
        }
        "cron.get" | "cron.remove" | "cron.run" => json!({"id": "no-such-job", "mode": "force"}),
        "cron.update" => json!({"id": "no-such-job", "patch": {"enabled": false}}),
        "set-heartbeats" => json!({"enabled": false}),
        "wake" => json!({"mode": "next-heartbeat", "text": "wake up"}),
        "system-event" => json!({"text": "a thing happened"}),
        "agents.files.list" => json!({"agentId": "main"}),
        "agents.files.get" => json!({"agentId": "main", "name": "SOUL.md"}),
        "agents.create" => json!({"name": "Schema Bird"}),
        "agents.files.set" => json!({"agentId": "schema-bird", "name": "SOUL.md", "content": "a heron"}),
        "agents.update" => json!({"agentId": "schema-bird", "model": "offline/offline"}),
        "agents.delete" => json!({"agentId": "schema-bird"}),
        "tools.effective" | "sessions.branches.list" => json!({"sessionKey": key}),
        "migrations.memory.plan" | "doctor.memory.status" | "tools.catalog" => json!({"agentId": "main"}),
        "tools.github.status" => json!({"agentId": "main", "selectedScope": "agent"}),
        _ => json!({}),
    }
}

/// In the order of the alphabet, but what undoes something comes last.
fn order(method: &str) -> (usize, &str) {
    let last = [
        "sessions.create",
        "sessions.reset",
        "sessions.delete",
        "agents.create",
        "agents.files.set",
        "agents.update",
        "agents.delete",
    ];
    (last.iter().position(|name| *name == method).map_or(0, |at| at + 1), method)
}

#[test]
fn every_frame_of_protocol_4_is_as_published() {
    needs!("clients", "npm");
    let mut schema = Schema::published();
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    let (mut connection, hello) = Connection::open(daemon.address, &mut schema);
    let listed = |name: &str| -> BTreeSet<String> {
        let names = hello["features"][name].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let (methods, events) = (listed("methods"), listed("events"));

    // A run with text, a tool and its end; one that fails; one that is aborted.
    let end = |frame: &Value| {
        frame["event"] == "chat"
            && ["final", "error", "aborted"].iter().any(|end| frame["payload"]["state"] == *end)
    };
    for (run, message) in [
        ("schema-1", "hello herons"),
        ("schema-tool", r#"/tool echo {"text":"hi"}"#),
        ("schema-fail", "/fail"),
    ] {
        let params = json!({"sessionKey": "agent:main:main", "message": message, "idempotencyKey": run});
        connection.send("chat.send", &params);
        connection.until(&mut schema, end);
    }
    let slow =
        json!({"sessionKey": "agent:main:main", "message": "/slow 30", "idempotencyKey": "schema-slow"});
    connection.send("chat.send", &slow);
    connection.until(&mut schema, |frame| frame["payload"]["state"] == "delta");
    connection.call("chat.abort", &json!({"sessionKey": "agent:main:main"}), &mut schema);

    let mut names: Vec<&str> = methods.iter().map(String::as_str).collect();
    names.sort_by_key(|name| order(name));
    let mut refused = BTreeMap::new();
    for method in names {
        let answer = connection.call(method, &params(method), &mut schema);
        if answer["ok"] == false {
            refused.insert(
                method.to_owned(),
                answer["error"]["message"].as_str().unwrap_or_default().to_owned(),
            );
        }
        for job in answer["payload"]["jobs"].as_array().into_iter().flatten() {
            schema.check("CronJob", job, "a job of cron.list");
        }
        // Answered once already, it answers again when its run has ended.
        if method == "agent" {
            connection
                .until(&mut schema, |frame| frame["type"] == "res" && frame["payload"]["status"] == "ok");
        }
    }
    // Nothing is advertised in vain.
    for (method, why) in &refused {
        if why.contains("not available") || why.contains("unknown method") {
            schema.breaches.insert(format!("{method} is advertised: {why}"));
        }
    }
    let seen: BTreeSet<&str> = schema.checked.keys().map(String::as_str).collect();
    for wanted in [
        "HelloOk",
        "ChatEvent",
        "AgentEvent",
        "AgentsListResult",
        "ModelsListResult",
        "CronAddResult",
        "CronJob",
    ] {
        assert!(seen.contains(wanted), "{wanted} was not looked at: {seen:?}");
    }
    assert!(events.contains("chat") && events.contains("agent"), "{events:?}");
    let breaches: Vec<&String> =
        schema.breaches.iter().filter(|breach| !FORGOTTEN.contains(&breach.as_str())).collect();
    assert!(breaches.is_empty(), "{breaches:#?}\nlooked at: {:?}\nrefused: {refused:#?}", schema.checked);
}

#[test]
fn agents_are_made_and_changed_while_it_runs() {
    needs!("clients", "npm");
    let mut schema = Schema::published();
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    let (mut connection, _) = Connection::open(daemon.address, &mut schema);
    let (mut other, _) = Connection::open(daemon.address, &mut schema);
    let mut ok = |connection: &mut Connection, method: &str, params: Value| {
        let answer = connection.call(method, &params, &mut schema);
        assert_eq!(answer["ok"], true, "{method} {params}: {answer}");
        answer["payload"].clone()
    };
    let made = ok(&mut connection, "agents.create", json!({"name": "My Bird"}));
    assert_eq!((&made["agentId"], &made["model"]), (&json!("my-bird"), &json!("offline/offline")));
    assert_eq!(made["workspace"], daemon.home().join("agents/my-bird").to_str().unwrap());
    let file = json!({"agentId": "my-bird", "name": "SOUL.md"});
    assert_eq!(ok(&mut connection, "agents.files.get", file.clone())["file"]["missing"], true);
    let soul = json!({"agentId": "my-bird", "name": "SOUL.md", "content": "You are a heron."});
    ok(&mut connection, "agents.files.set", soul);
    // Who was connected before knows it as well.
    let listed = ok(&mut other, "agents.list", json!({}));
    assert!(listed["agents"].as_array().unwrap().iter().any(|agent| agent["id"] == "my-bird"), "{listed}");
    assert_eq!(ok(&mut other, "agents.files.get", file)["file"]["content"], "You are a heron.");
    let text = std::fs::read_to_string(daemon.home().join("gateway.toml")).unwrap();
    assert!(text.contains("[agents.my-bird]"), "{text}");
    let run = json!({"message": "hello", "agentId": "my-bird", "idempotencyKey": "bird"});
    assert_eq!(ok(&mut connection, "agent", run)["status"], "accepted");

    ok(&mut connection, "agents.update", json!({"agentId": "my-bird", "model": "offline/other"}));
    let listed = ok(&mut connection, "agents.list", json!({}));
    let bird = listed["agents"].as_array().unwrap().iter().find(|agent| agent["id"] == "my-bird").unwrap();
    assert_eq!(bird["model"]["primary"], "offline/other");
    for (method, params, why) in [
        ("agents.create", json!({"name": "my bird"}), "is there already"),
        ("agents.create", json!({"name": "../.."}), "1 to 64 letters"),
        ("agents.create", json!({"name": "x", "emoji": "y"}), "keeps no emoji"),
        ("agents.create", json!({"name": "x", "workspace": "y"}), "absolute path"),
        ("agents.update", json!({"agentId": "my-bird", "model": "no/such"}), "model not found"),
        ("agents.files.get", json!({"agentId": "my-bird", "name": "../gateway.toml"}), "one file"),
        ("agents.delete", json!({"agentId": "main"}), "is the default agent"),
        ("agents.delete", json!({"agentId": "nobody"}), "no agent named nobody"),
    ] {
        let answer = connection.call(method, &params, &mut schema);
        assert!(answer["error"]["message"].as_str().unwrap_or_default().contains(why), "{params}: {answer}");
    }
    let mut ok =
        |method: &str, params: Value| connection.call(method, &params, &mut schema)["payload"].clone();
    ok("agents.delete", json!({"agentId": "my-bird"}));
    let listed = ok("agents.list", json!({}));
    assert!(listed["agents"].as_array().unwrap().iter().all(|agent| agent["id"] != "my-bird"), "{listed}");
    assert!(
        schema.breaches.iter().all(|breach| FORGOTTEN.contains(&breach.as_str())),
        "{:#?}",
        schema.breaches
    );
}
