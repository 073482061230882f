//! Whose session it is, over real sockets and in every protocol: each owner has a key space of its own,
//! whoever speaks first.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::lines::Lines;
use crate::support::openclaw;
use crate::support::wundr::Wundr;

const TOKEN: &str = "the-shared-operator-token-0123456789";
const CALL: &str = r#"/tool echo {"text":"hi"}"#;

/// A daemon with an operator's token, users `ada` and `eve`, and `max`, who may approve.
fn daemon(more: &str) -> Daemon {
    let people = [("ada", "user"), ("eve", "user"), ("max", "daemon.approve")];
    Daemon::shared(&format!("[limits]\nrequests_burst = 0\n{more}"), &people, &[("CLAWMUX_TOKEN", TOKEN)])
}

/// An OpenClaw client that shows this token.
struct OpenClaw(Client, u64);

impl OpenClaw {
    fn connect(address: SocketAddr, token: &str) -> Self {
        Self(openclaw::connect_with(address, json!({ "auth": { "token": token } })), 0)
    }

    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.1 += 1;
        let id = format!("c{}", self.1);
        let answer = openclaw::ask(&mut self.0, &id, method, params);
        if answer["ok"] == true { Ok(answer["payload"].clone()) } else { Err(answer["error"].clone()) }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Prompts and waits for the end.
    fn prompt(&mut self, key: &str, content: &str) -> Value {
        let sent = self.call(
            "chat.send",
            json!({ "sessionKey": key, "message": content, "idempotencyKey": format!("k-{content}") }),
        );
        self.call("agent.wait", json!({ "runId": sent["runId"], "timeoutMs": 60_000 }))
    }

    /// What was said in a session.
    fn history(&mut self, key: &str) -> String {
        self.call("chat.history", json!({ "sessionKey": key }))["messages"].to_string()
    }

    fn keys(&mut self) -> Vec<String> {
        let list = self.call("sessions.list", json!({}));
        let rows = list["sessions"].as_array().expect("a list").clone();
        rows.iter().map(|row| row["key"].as_str().expect("a key").to_owned()).collect()
    }
}

/// What an exoclaw client is told was said in a session.
fn history(client: &mut Client, session: &str) -> Value {
    client.call("chat.history", json!({ "session": session }))
}

fn say(client: &mut Client, session: &str, content: &str) -> String {
    let id = client.request("chat.send", json!({ "session": session, "content": content }));
    client.stream(&id).text()
}

#[test]
fn who_speaks_first_in_a_session_of_the_operators_has_another_one() {
    let daemon = daemon("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n");
    let address = daemon.address;
    // The attack: a user is first, in the sessions that operators' clients begin in, and listens.
    let mut eve = Client::connect_with(address, &key_of("eve"));
    for session in ["main:openclaw:main:main", "main:xeno:default:main"] {
        say(&mut eve, session, "EVE was here");
        let attach = eve.request("session.attach", json!({ "session": session }));
        assert_eq!(eve.reply(&attach)["result"]["session"], session);
    }
    let mut eves_page = OpenClaw::connect(address, &key_of("eve"));
    assert!(eves_page.history("main").contains("EVE was here"));
    let mut eves_wundr = Wundr::connect_with(address, &key_of("eve"));
    eves_wundr.subscribe(&["*"], Value::Null);

    // The operator says the same keys.
    let mut operator = OpenClaw::connect(address, TOKEN);
    let before = operator.keys();
    assert!(before.iter().all(|key| key.starts_with("eve/agent:main:")), "{before:?}");
    assert!(!operator.history("main").contains("EVE"), "his own is empty");
    operator.prompt("main", "the password is xyzzy");
    let mut xeno = Lines::connect(daemon.home());
    let context = json!({ "type": "rpc", "channelId": "default", "metadata": { "clientName": "console" } });
    let query = json!({ "requestId": "q1", "content": "and the other is plugh", "context": context });
    xeno.call("gateway.query", query);
    xeno.find("the end of it", |message| message["method"] == "gateway.done");
    let snapshot = xeno.call("gateway.initialize", Value::Null).to_string();
    assert!(snapshot.contains("plugh") && !snapshot.contains("EVE"), "{snapshot}");

    // His call waits; nobody but him knows of it.
    operator.call(
        "chat.send",
        json!({ "sessionKey": "agent:main:main", "message": CALL, "idempotencyKey": "c" }),
    );
    let asked = eventually("a call that waits", || {
        operator.call("exec.approval.list", json!({})).as_array().and_then(|list| list.first().cloned())
    });
    let id = asked["id"].clone();
    assert_eq!(asked["request"]["sessionKey"], "agent:main:main");
    for (method, params) in [
        ("exec.approval.list", json!({})),
        ("exec.approval.resolve", json!({ "id": id, "decision": "allow-once" })),
    ] {
        let refused = eves_page.try_call(method, params).expect_err("she is no approver");
        assert_eq!(refused["code"], "FORBIDDEN", "{refused}");
    }
    let approve = json!({ "sessionId": "x", "requestId": id });
    assert_eq!(eves_wundr.refused("tool.approve", approve)["code"], "NOT_FOUND");
    let abort = eve.call("chat.abort", json!({ "session": "main:openclaw:main:main" }));
    assert_eq!(abort["result"]["aborted"], false);
    operator.call("exec.approval.resolve", json!({ "id": id, "decision": "allow-once" }));
    let waited = operator.call("agent.wait", json!({ "runId": "c", "timeoutMs": 60_000 }));
    assert_eq!(waited["status"], "ok");

    // She steers nothing of his, reads nothing, and was told nothing live.
    eve.call("session.clear", json!({ "session": "main:openclaw:main:main" }));
    assert!(operator.history("main").contains("xyzzy"), "what she clears is hers");
    for session in ["main:openclaw:main:main", "main:xeno:default:main"] {
        let read = history(&mut eve, session).to_string();
        assert!(!read.contains("xyzzy") && !read.contains("plugh"), "{read}");
    }
    eves_wundr.call("health.ping", json!({}));
    eves_page.call("health", json!({}));
    for seen in [eve.seen(), eves_page.0.seen(), eves_wundr.seen()] {
        let told = seen.iter().find(|frame| frame.contains("xyzzy") || frame.contains("plugh"));
        assert_eq!(told, None);
    }

    // Nor does she lock out anybody else.
    let mut ada = OpenClaw::connect(address, &key_of("ada"));
    ada.prompt("main", "ADA speaks");
    assert!(ada.history("agent:main:main").contains("ADA speaks") && !ada.history("main").contains("EVE"));
    assert_eq!(ada.keys(), ["agent:main:main"]);

    // Operators are told whose the others are, name them so, and speak there when they say so.
    let mut keys = operator.keys();
    keys.sort();
    let expected = [
        "ada/agent:main:main",
        "agent:main:main",
        "agent:main:xeno:default:main",
        "eve/agent:main:main",
        "eve/agent:main:xeno:default:main",
    ];
    assert_eq!(keys, expected);
    assert!(operator.history("ada/agent:main:main").contains("ADA speaks"));
    assert!(operator.history("ada/main:openclaw:main:main").contains("ADA speaks"));
    operator.prompt("ada/agent:main:main", "the OPERATOR speaks");
    assert!(
        ada.history("main").contains("the OPERATOR speaks") && !operator.history("main").contains("OPERATOR")
    );
    let mut exoclaw = Client::connect_with(address, TOKEN);
    let list = exoclaw.call("session.list", json!({}))["result"].to_string();
    assert!(
        list.contains(r#""ada/main:openclaw:main:main""#) && list.contains(r#""main:openclaw:main:main""#)
    );
    let read = history(&mut exoclaw, "ada/main:openclaw:main:main");
    assert_eq!(read["result"]["session"], "ada/main:openclaw:main:main");

    // Others can't name what is not theirs, there or not.
    for session in ["ada/main:openclaw:main:main", "ada/main:openclaw:no:main"] {
        for method in ["chat.history", "session.clear", "session.attach", "chat.send", "chat.abort"] {
            let refused = eve.call(method, json!({ "session": session, "content": "let me in" }));
            assert_eq!(refused["error"], format!("no such session: {session}"), "{method}");
        }
    }
    let hers = "ada/agent:main:main";
    assert_eq!(eves_page.history(hers), "[]", "as one that is not there");
    let send = json!({ "sessionKey": hers, "message": "let me in", "idempotencyKey": "e" });
    let refused = eves_page.try_call("chat.send", send).expect_err("it is hers");
    assert_eq!(refused["message"], "no such session: ada/main:openclaw:main:main");
    // One's own name before a key does no harm.
    assert_eq!(
        history(&mut eve, "eve/main:openclaw:main:main")["result"]["session"],
        "main:openclaw:main:main"
    );
}

#[test]
fn an_operator_who_errs_is_told_whose_it_is_and_others_are_not() {
    let daemon = daemon("");
    let mut ada = Client::connect_with(daemon.address, &key_of("ada"));
    say(&mut ada, "main:websocket:ada:main", "ADA speaks");
    let (status, _, said) = daemon.run(&["session", "show", "main:websocket:ada:main"]);
    assert!(status == 1 && said.contains("ada/main:websocket:ada:main belongs to ada"), "{said}");
    let shown = daemon.stdout_of(&["session", "show", "ada/main:web"]);
    assert!(shown.contains("ADA speaks"), "{shown}");
    let listed = daemon.json_of(&["sessions"]);
    assert!(listed.to_string().contains(r#""ada/main:websocket:ada:main""#), "{listed}");
    let mut operator = Client::connect_with(daemon.address, TOKEN);
    let refused = operator.call("session.clear", json!({ "session": "main:websocket:ada:main" }));
    let why = refused["error"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("ada/main:websocket:ada:main belongs to ada"), "{refused}");
    let mut eve = Client::connect_with(daemon.address, &key_of("eve"));
    let refused = eve.call("session.clear", json!({ "session": "main:websocket:ada:main" }));
    assert_eq!(refused["error"], "no such session: main:websocket:ada:main");
}

#[test]
fn a_call_is_decided_by_who_prompted_the_run() {
    let daemon = daemon("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n");
    let mut ada = Wundr::connect_with(daemon.address, &key_of("ada"));
    ada.subscribe(&["tool.*"], Value::Null);
    let mut hers = Client::connect_with(daemon.address, &key_of("ada"));
    say(&mut hers, "main:websocket:ada:main", "hello");
    // The operator prompts in her session: she sees the call, and does not decide about it.
    let mut operator = Client::connect_with(daemon.address, TOKEN);
    let send = json!({ "session": "ada/main:websocket:ada:main", "content": CALL });
    let prompt = operator.request("chat.send", send);
    let asked = ada.event("tool.request")["payload"].clone();
    let about = json!({ "sessionId": asked["sessionId"], "requestId": asked["requestId"] });
    assert_eq!(ada.refused("tool.approve", about.clone())["code"], "FORBIDDEN");
    let mut eve = Wundr::connect_with(daemon.address, &key_of("eve"));
    assert_eq!(eve.refused("tool.approve", about.clone())["code"], "NOT_FOUND");
    let mut max = Wundr::connect_with(daemon.address, &key_of("max"));
    assert_eq!(max.call("tool.approve", about)["status"], "approved");
    assert!(operator.stream(&prompt).events().contains(&"done"));
    // Her own she decides about herself.
    hers.request("chat.send", json!({ "session": "main:websocket:ada:main", "content": CALL }));
    let asked = ada.event("tool.request")["payload"].clone();
    let about = json!({ "sessionId": asked["sessionId"], "requestId": asked["requestId"] });
    assert_eq!(ada.call("tool.approve", about)["status"], "approved");
}

#[test]
fn openclaw_agent_speaks_in_the_session_that_has_the_id() {
    let daemon = daemon("");
    let mut ada = OpenClaw::connect(daemon.address, &key_of("ada"));
    let agent = |client: &mut OpenClaw, id: &str, content: &str| {
        client.1 += 1;
        let request = format!("c{}", client.1);
        let params = json!({ "message": content, "sessionId": id, "idempotencyKey": content });
        client.0.send_text(
            &json!({ "type": "req", "id": request, "method": "agent", "params": params }).to_string(),
        );
        for status in ["accepted", "ok"] {
            let answer = client.0.reply(&request);
            assert_eq!(answer["payload"]["status"], status, "{answer}");
        }
    };
    let id_of = |client: &mut OpenClaw, key: &str| {
        let described = client.call("sessions.describe", json!({ "key": key }));
        described["session"]["sessionId"].as_str().unwrap_or_else(|| panic!("{described}")).to_owned()
    };
    // An unknown one begins a session, and goes on in it.
    let id = "0f8fad5b-d9cb-469f-a165-70867728950e";
    agent(&mut ada, id, "first");
    agent(&mut ada, id, "second");
    let key = format!("agent:main:{id}");
    assert_eq!(ada.keys(), std::slice::from_ref(&key));
    assert_eq!(id_of(&mut ada, &key), id);
    let said = ada.history(&key);
    assert!(said.contains("first") && said.contains("second"), "{said}");
    // One that a session has leads there, whatever that is called; also after a reset.
    ada.prompt("agent:main:work", "third");
    let work = id_of(&mut ada, "agent:main:work");
    agent(&mut ada, &work, "fourth");
    assert!(ada.history("agent:main:work").contains("fourth"));
    ada.call(
        "chat.send",
        json!({ "sessionKey": "agent:main:work", "message": "/reset", "idempotencyKey": "r" }),
    );
    let anew = id_of(&mut ada, "agent:main:work");
    assert_ne!(anew, work);
    agent(&mut ada, &anew, "fifth");
    assert!(ada.history("agent:main:work").contains("fifth"));
    assert_eq!(ada.keys().len(), 2);
    // Another's is none of hers, nor hers an operator's.
    for token in [key_of("eve"), TOKEN.to_owned()] {
        let mut other = OpenClaw::connect(daemon.address, &token);
        agent(&mut other, &anew, "sixth");
        assert!(other.keys().contains(&format!("agent:main:{anew}")));
    }
    assert!(!ada.history("agent:main:work").contains("sixth"));
}

#[test]
fn a_new_credential_inherits_nothing_unless_it_is_said() {
    let daemon = daemon("");
    let create = |name: &str, more: &[&str]| {
        let all = ["token", "create", "--json", "--yes", "--role", "user", "--name", name];
        daemon.run(&[&all[..], more].concat())
    };
    let secret_of = |(status, said, why): (i32, String, String)| {
        assert_eq!(status, 0, "{said}{why}");
        let made: Value = serde_json::from_str(&said).expect("JSON");
        (
            made["token"].as_str().expect("an id").to_owned(),
            made["secret"].as_str().expect("a key").to_owned(),
        )
    };
    let (id, key) = secret_of(create("phone", &[]));
    let mut phone = Client::connect_with(daemon.address, &key);
    say(&mut phone, "main:websocket:phone:main", "the password is xyzzy");
    say(&mut phone, "main:websocket:other:main", "and more");
    let mut wundr = Wundr::connect_with(daemon.address, &key);
    let memory = json!({ "content": "tea at five", "type": "knowledge", "tier": "semantic" });
    wundr.try_call("memory.store", memory).ok();
    // To rotate one is no new beginning.
    let rotated = daemon.json_of(&["token", "rotate", &id]);
    let newer = rotated["token"].as_str().expect("an id").to_owned();
    for id in [&id, &newer] {
        daemon.json_of(&["token", "revoke", id]);
    }
    let (status, _, why) = create("phone", &[]);
    assert!(status == 1 && why.contains("2 sessions") && why.contains("--inherit"), "{why}");
    let issued = daemon.rows_of(&["tokens"]).into_iter().filter(|token| token["configured"] != true);
    assert_eq!(issued.count(), 2, "none is made");
    secret_of(create("tablet", &[]));
    let (_, heir) = secret_of(create("phone", &["--inherit"]));
    let mut heir = Client::connect_with(daemon.address, &heir);
    assert!(history(&mut heir, "main:websocket:phone:main").to_string().contains("xyzzy"));
}

/// No interleaving of the requests of several owners, in any protocol and under the same keys, lets one
/// see or steer another.
#[test]
fn no_interleaving_lets_one_see_or_steer_another() {
    const KEYS: [&str; 3] = ["main:openclaw:main:main", "main:openclaw:x:main", "main:websocket:w:main"];
    const WORDS: [&str; 3] = ["main", "x", "agent:main:websocket:w:main"];
    let rounds: u64 = std::env::var("CLAWMUX_OWNERS_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(90);
    let seed: u64 = std::process::id().into();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut dice = |sides: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % sides as u64).expect("it fits")
    };
    let daemon = daemon("");
    let who = [("ADA", key_of("ada")), ("EVE", key_of("eve")), ("OPS", TOKEN.to_owned())];
    let mut clients: Vec<_> = who
        .iter()
        .map(|(name, token)| {
            let mut exoclaw = Client::connect_with(daemon.address, token);
            for key in KEYS {
                exoclaw.call("session.attach", json!({ "session": key }));
            }
            let mut wundr = Wundr::connect_with(daemon.address, token);
            wundr.subscribe(&["*"], Value::Null);
            (*name, exoclaw, OpenClaw::connect(daemon.address, token), wundr, [0_usize; 3])
        })
        .collect();
    for round in 0..rounds {
        let (name, exoclaw, openclaw, wundr, said) = &mut clients[dice(3)];
        let (place, content) = (dice(3), format!("{name}-{round}"));
        match dice(7) {
            0 | 1 => {
                say(exoclaw, KEYS[place], &content);
                said[place] += 1;
            }
            2 | 3 => {
                // Where there is none of that key yet, the word is another name.
                let word = if place == 2 { WORDS[dice(2)] } else { WORDS[place] };
                let place = WORDS.iter().position(|known| *known == word).expect("it is one");
                openclaw.prompt(word, &content);
                said[place] += 1;
            }
            4 => {
                let list = wundr.call("session.list", json!({}));
                let own = list["sessions"].as_array().and_then(|all| {
                    all.iter().find(|row| row["sessionKey"].as_str() == Some(KEYS[place])).cloned()
                });
                if let Some(own) = own {
                    let prompt = json!({ "sessionId": own["id"], "prompt": content });
                    let accepted = wundr.call("prompt.submit", prompt);
                    wundr.answer_of(accepted["promptId"].as_str().expect("an id"));
                    said[place] += 1;
                }
            }
            5 => drop(exoclaw.call("chat.abort", json!({ "session": KEYS[place] }))),
            _ => {
                exoclaw.call("session.clear", json!({ "session": KEYS[place] }));
                said[place] = 0;
            }
        }
    }
    let names: Vec<&str> = who.iter().map(|(name, _)| *name).collect();
    for (name, exoclaw, openclaw, wundr, said) in &mut clients {
        let others: Vec<String> = names.iter().filter(|n| *n != name).map(|n| format!("{n}-")).collect();
        let is_others = |text: &str| others.iter().any(|other| text.contains(other));
        for (place, key) in KEYS.iter().enumerate() {
            let told = eventually("what was said last", || {
                let told = history(exoclaw, key)["result"]["messages"].clone();
                let prompts = told
                    .as_array()
                    .map_or(0, |all| all.iter().filter(|message| message["role"] == "user").count());
                (prompts >= said[place]).then_some(told)
            });
            assert!(!is_others(&told.to_string()), "seed {seed}: {name} in {key}: {told}");
            let prompts = told.as_array().map_or(0, |all| all.iter().filter(|m| m["role"] == "user").count());
            assert_eq!(
                prompts, said[place],
                "seed {seed}: {name} in {key}: nobody else's, and none is gone: {told}"
            );
        }
        for word in &WORDS[..2] {
            assert!(!is_others(&openclaw.history(word)), "seed {seed}: {name} in {word}");
        }
        wundr.call("health.ping", json!({}));
        exoclaw.call("ping", json!({}));
        assert!(!exoclaw.seen().iter().any(|frame| is_others(frame)), "seed {seed}: {name} is told live");
        if *name == "OPS" {
            continue;
        }
        let list = exoclaw.call("session.list", json!({}))["result"].to_string();
        assert!(!list.contains('/'), "seed {seed}: {name} lists {list}");
        for seen in [openclaw.0.seen(), wundr.seen()] {
            assert!(!seen.iter().any(|frame| is_others(frame)), "seed {seed}: {name} is told live");
        }
    }
}
