//! The operator's protocol: what each method answers, right and wrong parameters alike, on a daemon in a fixed state.
//!
//! `fixtures/admin-answers.txt` is the conversation. A line is
//!
//! | line | is |
//! |---|---|
//! | `# text` | a comment |
//! | `> METHOD PARAMS` | a request; `$NAME` in it stands for something found before |
//! | `< RESULT` or `x ERROR` | its answer |
//! | `~ METHOD PARAMS` | a notification before the answer |
//! | `= NAME POINTER` | what a JSON pointer finds in the answer is `$NAME` from there on |
//!
//! Times, sizes and random ids are left out. With `CLAWMUX_RECORD=1` the answers are written anew.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::lines::Lines;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const TOKEN: &str = "the-shared-operator-token";
const CONFIG: &str = "[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n";

/// The key of a device, and its id.
const KEY: [u8; 32] = [7; 32];
const DEVICE: &str = "fe812c12f3ab4ce6ac5db69ac352f906cb1b11ef43fb33e252ef7ff552263889";

/// A device asks to be let in, and waits for approval.
fn ask_to_pair(daemon: &Daemon) {
    let mut request = format!("ws://{}/", daemon.address).into_client_request().expect("a request");
    request.headers_mut().insert("x-forwarded-for", "203.0.113.7".parse().expect("a header"));
    let mut client = Client::upgrade(daemon.address, request).expect("it is let in");
    let challenge = client.receive();
    let nonce = challenge["payload"]["nonce"].as_str().expect("a nonce");
    let key = SigningKey::from_bytes(&KEY);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let signed_at = u64::try_from(since.as_millis()).expect("soon enough");
    let said = format!("v2|{DEVICE}|cli|cli|operator|operator.read|{signed_at}|{TOKEN}|{nonce}");
    let params = json!({
        "minProtocol": 3, "maxProtocol": 3, "role": "operator", "scopes": ["operator.read"], "auth": { "token": TOKEN },
        "client": { "id": "cli", "version": "1", "platform": "linux", "mode": "cli" },
        "device": {
            "id": DEVICE,
            "publicKey": URL_SAFE_NO_PAD.encode(key.verifying_key().to_bytes()),
            "signature": URL_SAFE_NO_PAD.encode(key.sign(said.as_bytes()).to_bytes()),
            "signedAt": signed_at,
            "nonce": nonce,
        },
    });
    client.send_text(&json!({ "type": "req", "id": "c", "method": "connect", "params": params }).to_string());
    let refused = client.reply("c");
    assert_eq!(refused["error"]["code"], "NOT_PAIRED", "{refused}");
}

/// What `$NAME` stands for, and whether that is looked for in answers.
struct Names(Vec<(String, String, bool)>);

impl Names {
    fn read(&self, text: &str) -> Value {
        let with_values =
            self.0.iter().fold(text.to_owned(), |text, (name, value, _)| text.replace(name, value));
        serde_json::from_str(&with_values).unwrap_or_else(|error| panic!("{error}: {with_values}"))
    }

    fn learn(&mut self, name: &str, value: &Value) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.0.push((format!("${name}"), text, value.is_string()));
    }

    /// What always is the same of it.
    fn fixed(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let known = self.0.iter().filter(|(.., is_told)| *is_told);
                let named = known.fold(text.clone(), |text, (name, value, _)| text.replace(value, name));
                // A session that was just told does not say how.
                let named = named.replace(" is decided already: denied", " is decided already");
                let words = named.split_inclusive([' ', '"', '/', ':']).map(|word| {
                    let end = word.trim_end_matches([' ', '"', '/', ',', ';', ':']);
                    let digits = end.bytes().filter(u8::is_ascii_hexdigit).count();
                    let is_id = digits >= 12 && end.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
                    if is_id { format!("ID{}", &word[end.len()..]) } else { word.to_owned() }
                });
                words.collect::<String>().into()
            }
            Value::Array(list) => list.iter().map(|value| self.fixed(value)).collect(),
            Value::Object(object) => {
                let fixed = object.iter().map(|(key, value)| {
                    let varies = ["_ms", "_us", "bytes", "_per_day"].iter().any(|end| key.ends_with(end))
                        || [
                            "pid",
                            "next",
                            "follow",
                            "pages_left",
                            "connection",
                            "connections_max",
                            "max",
                            "seq",
                            "first_seq",
                        ]
                        .contains(&key.as_str());
                    let value = match (key.as_str(), value) {
                        (_, Value::Number(_)) if varies => json!(0),
                        ("next", Value::Array(_)) => json!([]),
                        ("secret" | "peer" | "version", _) => json!(key.to_uppercase()),
                        ("day", Value::String(_)) => json!("DAY"),
                        // Figures of actors.
                        ("state", Value::Object(figures)) => figures.keys().cloned().collect(),
                        ("children", Value::Array(list)) => {
                            let mut list: Vec<Value> = list.iter().map(|child| self.fixed(child)).collect();
                            list.sort_by_key(|child| child["actor"].to_string());
                            list.into()
                        }
                        ("queued", _) if object.contains_key("mailbox_wait_us") => json!(0),
                        _ => self.fixed(value),
                    };
                    (key.clone(), value)
                });
                fixed.collect()
            }
            other => other.clone(),
        }
    }
}

/// Says what is in a conversation; gives it with the answers that came.
fn spoken(script: &str, lines: &mut Lines, names: &mut Names) -> String {
    let mut spoken = String::new();
    let mut left = script.lines().peekable();
    while let Some(line) = left.next() {
        let Some(request) = line.strip_prefix("> ") else {
            if line.is_empty() || line.starts_with('#') {
                writeln!(spoken, "{line}").expect("it takes text");
            }
            continue;
        };
        let (method, params) = request.split_once(' ').unwrap_or_else(|| panic!("no parameters: {line}"));
        let answer = lines.try_call(method, names.read(params));
        writeln!(spoken, "{line}").expect("it takes text");
        let mut captures = Vec::new();
        while let Some(line) = left.next_if(|line| !line.starts_with(['>', '#']) && !line.is_empty()) {
            if let Some((name, pointer)) = line.strip_prefix("= ").and_then(|line| line.split_once(' ')) {
                let found = answer.as_ref().ok().and_then(|result| result.pointer(pointer));
                names.learn(name, found.unwrap_or_else(|| panic!("{line}: {answer:?}")));
                captures.push(line);
            }
        }
        let (mark, answer) = match &answer {
            Ok(result) => ("<", names.fixed(result)),
            Err(error) => ("x", names.fixed(error)),
        };
        // How many there are of some is a matter of time.
        let told =
            lines.take_kept().into_iter().filter(|told| mark == "<" && told["method"] != "admin.event");
        for told in told {
            let told =
                format!("~ {} {}", told["method"].as_str().unwrap_or("?"), names.fixed(&told["params"]));
            if !spoken.ends_with(&format!("{told}\n")) {
                writeln!(spoken, "{told}").expect("it takes text");
            }
        }
        writeln!(spoken, "{mark} {answer}").expect("it takes text");
        for line in captures {
            writeln!(spoken, "{line}").expect("it takes text");
        }
    }
    spoken
}

#[test]
fn every_method_answers_what_was_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/admin-answers.txt");
    let recorded = std::fs::read_to_string(&path).expect("it is there");
    let daemon = Daemon::with_env(CONFIG, &[("CLAWMUX_TOKEN", TOKEN)]);
    let reference = daemon.json_of(&["reference", "admin"]);
    let examples = reference["methods"].as_array().expect("methods").iter().map(|method| {
        let name = method["name"].as_str().expect("a name").to_owned();
        let is_asked = recorded.lines().any(|line| line.starts_with(&format!("> {name} ")));
        assert!(is_asked, "{name} is asked nothing");
        (name, method["example"]["params"].clone())
    });
    let examples: Vec<_> = examples.collect();
    let mut client = Client::connect_with(daemon.address, TOKEN);
    let mut lines = Lines::connect(daemon.home());
    client.chat("ada", "hello");
    client.chat("dan", "bye");
    for name in ["bob", "eve"] {
        client.prompt(name, r#"/tool echo {"text":"hi"}"#);
        eventually("a call that waits", || {
            let waiting = lines.call("admin.approvals", json!({}));
            waiting["approvals"]
                .as_array()?
                .iter()
                .find(|call| call["session"].as_str().is_some_and(|s| s.contains(name)))
                .cloned()
        });
    }
    for (name, running) in [("carl", 3), ("fay", 4)] {
        client.prompt(name, "/slow 200");
        eventually("a run", || lines.call("admin.status", json!({}))["running"] == running);
    }
    ask_to_pair(&daemon);
    let mut names = Names(Vec::new());
    names.learn("HOME", &json!(daemon.home().to_str().expect("text")));
    names.learn("ADDRESS", &json!(daemon.address.to_string()));
    names.learn("DEVICE", &json!(DEVICE));
    let spoken = spoken(&recorded, &mut lines, &mut names);
    if std::env::var_os("CLAWMUX_RECORD").is_some() {
        std::fs::write(&path, &spoken).expect("it is written");
        return;
    }
    let mut differences = String::new();
    for (was, is) in recorded.split("\n> ").zip(spoken.split("\n> ")).filter(|(was, is)| was != is) {
        let asked = was.lines().next().unwrap_or_default();
        writeln!(differences, "> {asked}").expect("it takes text");
        for (was, is) in was.lines().zip(is.lines()).filter(|(was, is)| was != is) {
            let json = |line: &str| serde_json::from_str(line.get(2..)?).ok();
            match (json(was), json(is)) {
                (Some(was), Some(is)) => differ("", &was, &is, &mut differences),
                _ => writeln!(differences, "  recorded {was}\n  answered {is}").expect("it takes text"),
            }
        }
    }
    assert!(spoken == recorded, "{differences}");
    // What is printed for people is right as well.
    for (name, mut params) in examples {
        if name == "admin.backup" {
            params["file"] = json!(daemon.home().join("example.db"));
        }
        if let Err(refused) = lines.try_call(&name, params) {
            assert!(refused["code"] == -32000, "{name}: {refused}");
        }
    }
}

/// Tells where two answers differ.
fn differ(at: &str, was: &Value, is: &Value, told: &mut String) {
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => {
            for key in was.keys().chain(is.keys().filter(|key| !was.contains_key(*key))) {
                let of = |object: &serde_json::Map<_, Value>| object.get(key).cloned().unwrap_or_default();
                differ(&format!("{at}/{key}"), &of(was), &of(is), told);
            }
        }
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            was.iter()
                .zip(is)
                .enumerate()
                .for_each(|(i, (was, is))| differ(&format!("{at}/{i}"), was, is, told));
        }
        (was, is) if was == is => {}
        (was, is) => writeln!(told, "  {at}\n    recorded {was}\n    answered {is}").expect("it takes text"),
    }
}
