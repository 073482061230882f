//! What the Moltz desktop app does, which is on no registry: a small client that takes frames as it
//! does. It appends the deltas of an answer and never looks at the text of `final`, and it drops a
//! frame whole where a field has another type than it expects.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::npm::Generation;
use crate::stage::{Auth, Stage, TOKEN};
use crate::support::socket::{Incoming, Socket};
use crate::support::upstream::Turn;

/// Words by which it takes a refusal for a fault of the network.
const NETWORK: [&str; 6] = ["timeout", "websocket", "dns", "tls", "ssl", "certificate"];

struct Desktop {
    socket: Socket,
    ids: u64,
}

/// What it shows of one answer.
#[derive(Debug, Default)]
struct Shown {
    text: String,
    deltas: usize,
    end: String,
    error: String,
    tokens: Value,
}

impl Desktop {
    /// Connects and shows the token; gives the answer to that too.
    fn connect(stage: &Stage, token: &str) -> (Self, Value) {
        let mut desktop = Self { socket: Socket::open(stage.address(), "/"), ids: 0 };
        let challenge = desktop.next();
        assert_eq!(challenge["event"], "connect.challenge", "{challenge}");
        let client =
            json!({"id": "openclaw-control-ui", "version": "1.0.0", "platform": "macos", "mode": "ui"});
        let scopes = ["operator.read", "operator.write"];
        let connect = json!({"minProtocol": 3, "maxProtocol": 3, "client": client, "role": "operator",
            "scopes": scopes, "auth": {"token": token}, "caps": [], "locale": "en-US"});
        let hello = desktop.call("connect", &connect);
        (desktop, hello)
    }

    /// The next frame that it understands.
    fn next(&mut self) -> Value {
        loop {
            let incoming =
                self.socket.read().unwrap_or_else(|end| panic!("{end}; saw {:#?}", self.socket.seen()));
            let Incoming::Frame(frame) = incoming else { continue };
            self.understands(&frame);
            return frame;
        }
    }

    /// Fails where the app would drop the frame.
    fn understands(&self, frame: &Value) {
        let small =
            |value: &Value| value.is_null() || value.as_i64().is_some_and(|n| i32::try_from(n).is_ok());
        for path in [
            "/seq",
            "/payload/seq",
            "/payload/usage/input",
            "/payload/usage/output",
            "/payload/usage/totalTokens",
        ] {
            let value = frame.pointer(path).unwrap_or(&Value::Null);
            assert!(small(value), "{path} is not a small integer: {frame}");
        }
        if frame["type"] == "res" && frame["ok"] == false {
            assert!(frame["error"]["code"].is_string() && frame["error"]["message"].is_string(), "{frame}");
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> String {
        self.ids += 1;
        let id = format!("d{}", self.ids);
        let request = json!({"type": "req", "id": id, "method": method, "params": params});
        self.socket.send_text(&request.to_string()).unwrap();
        id
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        loop {
            let frame = self.next();
            if frame["type"] == "res" && frame["id"] == id {
                return frame;
            }
        }
    }

    /// Sends a prompt and shows what comes of it.
    fn chat(&mut self, session: &str, run: &str, message: &str) -> Shown {
        let params = json!({"idempotencyKey": run, "message": message, "sessionKey": session});
        self.request("chat.send", &params);
        self.show(run)
    }

    fn show(&mut self, run: &str) -> Shown {
        let mut shown = Shown::default();
        loop {
            let frame = self.next();
            if frame["event"] != "chat" || frame["payload"]["runId"] != run {
                continue;
            }
            let payload = &frame["payload"];
            match payload["state"].as_str().unwrap_or_default() {
                "delta" => {
                    // One without a message says that the run lives.
                    if payload["message"].is_null() {
                        continue;
                    }
                    let delta =
                        payload["message"]["delta"].as_str().unwrap_or_else(|| panic!("no delta: {frame}"));
                    assert!(!delta.is_empty(), "an empty delta: {frame}");
                    shown.text.push_str(delta);
                    shown.deltas += 1;
                }
                state => {
                    shown.end = state.to_owned();
                    shown.error = payload["errorMessage"].as_str().unwrap_or_default().to_owned();
                    shown.tokens = payload["usage"].clone();
                    return shown;
                }
            }
        }
    }
}

#[test]
fn appends_the_whole_answer_with_a_token_and_no_device() {
    let stage = Stage::new(Generation::OpenClaw, Auth::Token);
    let (mut desktop, hello) = Desktop::connect(&stage, TOKEN);
    assert_eq!((&hello["ok"], &hello["payload"]["protocol"]), (&json!(true), &json!(3)), "{hello}");

    let models = desktop.call("models.list", &json!({}));
    for model in models["payload"]["models"].as_array().unwrap() {
        for field in ["id", "name", "provider"] {
            assert!(model[field].is_string(), "{field} of {model}");
        }
    }
    let session = "7f0d2b8e-6c1e-4f0a-9a56-0f2a4f1f9a01";
    let words: Vec<String> = (0..400).map(|n| format!("word{n} ")).collect();
    stage.upstream.then(Turn::Say(words.clone()));
    let shown = desktop.chat(session, "9b1f3f8e-0000-4000-8000-000000000001", "say much");
    assert_eq!((shown.text.trim(), shown.end.as_str()), (words.concat().trim(), "final"), "{shown:?}");

    stage.upstream.then(Turn::Status(400, None, r#"{"error":{"message":"no such lake"}}"#.into()));
    let shown = desktop.chat(session, "9b1f3f8e-0000-4000-8000-000000000002", "ask another lake");
    assert_eq!(shown.end, "error", "{shown:?}");
    assert!(shown.error.contains("no such lake"), "{shown:?}");

    stage.will_hang_after("They stand and wait");
    let run = "9b1f3f8e-0000-4000-8000-000000000003";
    let params = json!({"idempotencyKey": run, "message": "and then", "sessionKey": session});
    let sent = desktop.call("chat.send", &params);
    assert_eq!(sent["payload"]["runId"], run, "{sent}");
    desktop.socket.inner.send(Message::Ping(Vec::new().into())).unwrap();
    let aborted = desktop.call("chat.abort", &json!({"sessionKey": session, "runId": run}));
    assert_eq!(aborted["payload"]["aborted"], true, "{aborted}");
}

/// What the daemon refuses to take is shown under the prompt: the app shows no answer that is not ok.
#[test]
fn a_refused_prompt_is_shown() {
    let stage = Stage::new(Generation::OpenClaw, Auth::Token);
    let (mut desktop, _) = Desktop::connect(&stage, TOKEN);
    let file =
        json!({"type": "file", "mimeType": "application/x-tar", "fileName": "nest.tar", "content": "AAAA"});
    let run = "9b1f3f8e-0000-4000-8000-000000000004";
    let params =
        json!({"idempotencyKey": run, "message": "look", "sessionKey": "7f0d2b8e", "attachments": [file]});
    desktop.request("chat.send", &params);
    let shown = desktop.show(run);
    assert_eq!(shown.end, "error", "{shown:?}");
    assert!(shown.error.contains("nest.tar"), "it names the file: {shown:?}");
}

#[test]
fn a_wrong_token_is_not_taken_for_a_fault_of_the_network() {
    let stage = Stage::new(Generation::OpenClaw, Auth::Token);
    let (_, refused) = Desktop::connect(&stage, "a-wrong-token-5678");
    let message = refused["error"]["message"].as_str().unwrap_or_default().to_lowercase();
    assert!(message.contains("unauthorized") && message.contains("token mismatch"), "{refused}");
    let taken: Vec<_> = NETWORK.iter().filter(|word| message.contains(**word)).collect();
    assert!(taken.is_empty(), "{taken:?} in {refused}");
}

#[test]
fn no_credential_is_needed_where_none_is_configured() {
    let stage = Stage::offline(Generation::OpenClaw, Auth::Open);
    let (mut desktop, hello) = Desktop::connect(&stage, "whatever-it-kept");
    assert_eq!(hello["ok"], true, "{hello}");
    let shown = desktop.chat("7f0d2b8e", "9b1f3f8e-0000-4000-8000-000000000005", "may I come in");
    assert!(shown.end == "final" && shown.text.contains("may I come in"), "{shown:?}");
    // Its usage is what the app shows beside the answer.
    assert!(shown.tokens.is_null() || shown.tokens["totalTokens"].is_i64(), "{shown:?}");
}
