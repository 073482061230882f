//! Every example that `clawmux reference` prints, said to a daemon as it ships: each method is known, and takes the
//! parameters of its example. (The operator's protocol: `admin.rs`.)

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::lines::Lines;
use crate::support::wundr::Wundr;

/// The methods of a protocol: name, parameters of the example, and all that is printed of it.
fn methods(daemon: &Daemon, protocol: &str) -> Vec<(String, Value, Value)> {
    let reference = daemon.json_of(&["reference", protocol]);
    let rows = reference["methods"].as_array().expect("methods").clone();
    assert!(rows.len() >= 5, "{protocol}: {reference}");
    let row = |row: Value| {
        let example = row["example"].clone();
        let name = row["name"].as_str().expect("a name").to_owned();
        assert_eq!(example["method"], *name, "{row}");
        (name, example["params"].clone(), row)
    };
    rows.into_iter().map(row).collect()
}

fn daemon() -> Daemon {
    Daemon::with("[limits]\nrequests_burst = 100000\n")
}

/// What is wrong with a request, rather than with what it asks for.
fn is_misspoken(why: &str) -> bool {
    let why = why.to_lowercase();
    ["unknown method", "method not found", "invalid params", "missing field", "required property"]
        .iter()
        .any(|words| why.contains(words))
        || (why.starts_with("invalid ") && why.contains(" params"))
}

#[test]
fn exoclaw_is_spoken_as_printed() {
    let (daemon, mut client) = daemon().and(Client::connect);
    for (name, params, _) in methods(&daemon, "exoclaw") {
        let id = client.request(&name, params);
        let reply = client.reply(&id);
        let why = reply["error"].as_str().unwrap_or_default();
        assert!(!is_misspoken(why), "{name}: {reply}");
    }
    // What is not printed is not there.
    let refused = client.call("chat.sendd", json!({}));
    assert_eq!(refused["error"], "unknown method: chat.sendd", "{refused}");
}

#[test]
fn openclaw_is_spoken_as_printed() {
    let daemon = daemon();
    let mut client = Client::open(daemon.address, "/");
    client.receive();
    let reference = daemon.json_of(&["reference", "openclaw"]);
    let connect =
        reference["frames"].as_array().expect("frames").iter().find(|frame| frame["name"] == "connect");
    client.send_text(&connect.expect("it is printed")["example"].to_string());
    let hello = client.reply("1");
    assert_eq!(hello["ok"], true, "the handshake is as printed: {hello}");
    for (name, _, row) in methods(&daemon, "openclaw") {
        let mut request = row["example"].clone();
        request["id"] = json!(name);
        client.send_text(&request.to_string());
        let reply = client.reply(&name);
        let why = reply["error"]["message"].as_str().unwrap_or_default();
        if row["scopes"] == json!(["role node"]) {
            assert!(why.starts_with("unauthorized role"), "{name}: {reply}");
        } else {
            assert!(!is_misspoken(why), "{name}: {reply}");
        }
    }
}

#[test]
fn wundr_is_spoken_as_printed() {
    let daemon = daemon();
    let mut misspoken = Vec::new();
    for (name, params, row) in methods(&daemon, "wundr") {
        // Some of them end the connection.
        let mut client = Wundr::connect(daemon.address);
        let id = row["example"]["id"].as_str().expect("an id");
        client.request_as(id, &name, params);
        if let Err(refused) = client.answer(id) {
            let why = refused["message"].as_str().unwrap_or_default();
            if is_misspoken(why) || refused["code"] == "METHOD_NOT_FOUND" {
                misspoken.push(format!("{name}: {refused}"));
            }
        }
    }
    assert!(misspoken.is_empty(), "{misspoken:#?}");
}

#[test]
fn xeno_is_spoken_as_printed() {
    let daemon = daemon();
    let mut lines = Lines::connect(daemon.home());
    for (name, params, _) in methods(&daemon, "xeno") {
        if let Err(refused) = lines.try_call(&name, params) {
            assert!(!is_misspoken(refused["message"].as_str().unwrap_or_default()), "{name}: {refused}");
        }
    }
}
