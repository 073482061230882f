//! The conformance story, told in all four protocols: connect, chat, a tool, a failure, an abort, a
//! restart in the midst of an answer; and one session that a client of each follows at once, through
//! a restart of the daemon. Over real sockets, against the binary as it ships, on the offline provider.

#[cfg(feature = "nats")]
mod elsewhere;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::lines::Lines;
use crate::support::openclaw;
use crate::support::wundr::Wundr;

/// How a run ended, for the client that asked for it.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    /// Its text, as somebody reads it in the end.
    text: String,
    /// Why it failed or that it was aborted; empty where it did neither.
    failure: String,
}

/// A message of a conversation.
type Said = (String, String);

/// A client of one protocol, with one session.
trait Voice: Sized {
    const PROTOCOL: &'static str;
    /// Connects; `name` chooses the session.
    fn connect(daemon: &Daemon, name: &str) -> Self;
    /// Asks, and returns once a piece of the answer has come.
    fn ask(&mut self, prompt: &str);
    /// The rest of the answer.
    fn hear(&mut self) -> Heard;
    /// Ends the run under way.
    fn abort(&mut self);
    /// The conversation.
    fn history(&mut self) -> Vec<Said>;

    fn chat(&mut self, prompt: &str) -> Heard {
        self.ask(prompt);
        self.hear()
    }
}

/// A name that nobody else has.
fn fresh(what: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}", LAST.fetch_add(1, Relaxed))
}

fn said(messages: &Value, text: impl Fn(&Value) -> String) -> Vec<Said> {
    let list = messages.as_array().unwrap_or_else(|| panic!("a list: {messages}"));
    list.iter().map(|m| (m["role"].as_str().unwrap_or_default().to_owned(), text(m))).collect()
}

fn text_at(message: &Value, pointer: &str) -> String {
    message.pointer(pointer).and_then(Value::as_str).unwrap_or_default().trim().to_owned()
}

struct Exoclaw {
    client: Client,
    session: Value,
    request: String,
    text: String,
}

impl Voice for Exoclaw {
    const PROTOCOL: &'static str = "exoclaw";

    fn connect(daemon: &Daemon, name: &str) -> Self {
        let session = json!({ "channel": "websocket", "account": name });
        Self { client: Client::connect(daemon.address), session, request: String::new(), text: String::new() }
    }

    fn ask(&mut self, prompt: &str) {
        let mut params = self.session.clone();
        params["content"] = json!(prompt);
        self.request = self.client.request("chat.send", params);
        self.text.clear();
        loop {
            let frame = self.client.reply(&self.request);
            match frame["event"].as_str() {
                Some("text") => return self.text.push_str(frame["data"].as_str().unwrap_or_default()),
                Some("tool_use" | "tool_result") => {}
                _ => panic!("{frame}"),
            }
        }
    }

    fn hear(&mut self) -> Heard {
        let stream = self.client.stream(&self.request);
        let text = (self.text.clone() + &stream.text()).trim().to_owned();
        Heard { text, failure: stream.error().to_owned() }
    }

    fn abort(&mut self) {
        assert!(self.client.abort(&self.request));
    }

    fn history(&mut self) -> Vec<Said> {
        let answer = self.client.call("chat.history", self.session.clone());
        said(&answer["result"]["messages"], |message| text_at(message, "/content"))
    }
}

/// Protocol 3 or 4.
struct OpenClaw<const N: u64> {
    client: Client,
    session: String,
    /// The run asked for; empty = whichever.
    run: String,
    text: String,
}

impl<const N: u64> OpenClaw<N> {
    fn call(&mut self, method: &str, params: Value) -> Value {
        openclaw::call(&mut self.client, method, params)
    }

    /// The payload of the next `chat` event of the run.
    fn event(&mut self) -> Value {
        let run = self.run.clone();
        let is_meant =
            |frame: &Value| frame["event"] == "chat" && (run.is_empty() || frame["payload"]["runId"] == run);
        // An abort may be heard before it is answered.
        self.client.find(is_meant)["payload"].clone()
    }
}

impl<const N: u64> Voice for OpenClaw<N> {
    const PROTOCOL: &'static str = if N == 3 { "openclaw 3" } else { "openclaw 4" };

    fn connect(daemon: &Daemon, name: &str) -> Self {
        let client = openclaw::connect(daemon.address, N);
        Self { client, session: name.to_owned(), run: String::new(), text: String::new() }
    }

    fn ask(&mut self, prompt: &str) {
        self.run = fresh("run");
        let send = json!({ "sessionKey": self.session, "message": prompt, "idempotencyKey": self.run });
        assert_eq!(self.call("chat.send", send)["status"], "started");
        let event = self.event();
        assert_eq!(event["state"], "delta", "{event}");
        self.text = text_at(&event, "/message/content/0/text");
    }

    fn hear(&mut self) -> Heard {
        loop {
            let event = self.event();
            let text = text_at(&event, "/message/content/0/text");
            let failure = match event["state"].as_str() {
                Some("delta") => {
                    self.text = text;
                    continue;
                }
                Some("final") => String::new(),
                Some("aborted") => "aborted".to_owned(),
                Some("error") => text_at(&event, "/errorMessage"),
                _ => panic!("{event}"),
            };
            let text = if text.is_empty() { std::mem::take(&mut self.text) } else { text };
            return Heard { text, failure };
        }
    }

    fn abort(&mut self) {
        let session = self.session.clone();
        assert_eq!(self.call("chat.abort", json!({ "sessionKey": session }))["aborted"], true);
    }

    fn history(&mut self) -> Vec<Said> {
        let session = self.session.clone();
        let answer = self.call("chat.history", json!({ "sessionKey": session }));
        let mut messages = said(&answer["messages"], |message| text_at(message, "/content/0/text"));
        messages.retain(|(role, _)| role == "user" || role == "assistant");
        messages
    }
}

struct WundrVoice {
    client: Wundr,
    session: String,
    prompt: String,
    text: String,
    address: SocketAddr,
}

impl Voice for WundrVoice {
    const PROTOCOL: &'static str = "wundr";

    fn connect(daemon: &Daemon, name: &str) -> Self {
        let mut client = Wundr::connect(daemon.address);
        let list = client.call("session.list", json!({}));
        let rows = list["sessions"].as_array().unwrap_or_else(|| panic!("{list}"));
        let is_named = |row: &&Value| row.to_string().contains(&format!(":{name}:"));
        let known = rows.iter().find(is_named).or(rows.first());
        let session = match known.and_then(|row| row["id"].as_str()) {
            Some(id) => {
                client.call("session.resume", json!({ "sessionId": id }));
                id.to_owned()
            }
            None => {
                let task = json!({ "type": "general", "description": "a try" });
                let create = json!({ "orchestratorId": "main", "sessionType": "claude-code", "task": task });
                let made = client.call("session.create", create);
                made["sessionId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
            }
        };
        Self { client, session, prompt: String::new(), text: String::new(), address: daemon.address }
    }

    fn ask(&mut self, prompt: &str) {
        let submit = json!({ "sessionId": self.session, "prompt": prompt });
        let answer = self.client.call("prompt.submit", submit);
        self.prompt = answer["promptId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let prompt = self.prompt.clone();
        let chunk = self.client.event_that("stream.chunk", |payload| {
            payload["promptId"] == prompt && payload["chunkType"] == "text"
        });
        self.text = chunk["payload"]["content"].as_str().unwrap_or_default().to_owned();
    }

    fn hear(&mut self) -> Heard {
        // The start was passed over with the first chunk.
        let prompt = self.prompt.clone();
        let mut text = std::mem::take(&mut self.text);
        loop {
            let frame = self.client.find("the end", |frame| {
                frame["payload"]["promptId"] == prompt
                    && matches!(frame["event"].as_str(), Some("stream.chunk" | "stream.end" | "stream.error"))
            });
            let payload = &frame["payload"];
            let failure = match frame["event"].as_str() {
                Some("stream.chunk") => {
                    if payload["chunkType"] == "text" {
                        text.push_str(payload["content"].as_str().unwrap_or_default());
                    }
                    continue;
                }
                Some("stream.error") => payload["error"].to_string(),
                _ => match payload["metadata"]["stopReason"].as_str() {
                    None | Some("completed") => String::new(),
                    Some(reason) => reason.to_owned(),
                },
            };
            return Heard { text: text.trim().to_owned(), failure };
        }
    }

    fn abort(&mut self) {
        let cancel = json!({ "sessionId": self.session });
        assert_eq!(self.client.call("prompt.cancel", cancel)["cancelled"], true);
    }

    fn history(&mut self) -> Vec<Said> {
        // This protocol has no words for it: another one tells it.
        let session = json!({ "session": format!("main:wundr:{}:main", self.session) });
        let answer = Client::connect(self.address).call("chat.history", session);
        said(&answer["result"]["messages"], |message| text_at(message, "/content"))
    }
}

struct Xeno {
    client: Lines,
    channel: String,
    request: String,
    last: String,
}

impl Xeno {
    fn next(&mut self) -> (String, Value) {
        let request = self.request.clone();
        let message = self.client.find("a notification of the query", |message| {
            message["method"].is_string() && message["params"]["requestId"] == request
        });
        (message["method"].as_str().unwrap_or_default().to_owned(), message["params"].clone())
    }
}

impl Voice for Xeno {
    const PROTOCOL: &'static str = "xeno";

    fn connect(daemon: &Daemon, name: &str) -> Self {
        let client = Lines::connect(daemon.home());
        Self { client, channel: name.to_owned(), request: String::new(), last: String::new() }
    }

    fn ask(&mut self, prompt: &str) {
        self.request = fresh("query");
        let context =
            json!({ "type": "rpc", "channelId": self.channel, "metadata": { "clientName": "console" } });
        let query = json!({ "requestId": self.request, "content": prompt, "context": context });
        assert_eq!(self.client.call("gateway.query", query), json!({ "accepted": true }));
        self.last.clear();
        loop {
            let (method, params) = self.next();
            match method.as_str() {
                "gateway.stream" => {
                    assert_eq!(params["isPartial"], true, "the answer streams: {params}");
                    self.last = text_at(&params, "/content");
                    return;
                }
                "gateway.stats" => {}
                _ => panic!("{method} {params}"),
            }
        }
    }

    fn hear(&mut self) -> Heard {
        let mut failure = String::new();
        loop {
            let (method, params) = self.next();
            match method.as_str() {
                "gateway.stream" => self.last = text_at(&params, "/content"),
                "gateway.error" => failure = text_at(&params, "/error"),
                "gateway.stats" => {}
                "gateway.done" => return Heard { text: std::mem::take(&mut self.last), failure },
                _ => panic!("{method} {params}"),
            }
        }
    }

    fn abort(&mut self) {
        assert_eq!(self.client.call("gateway.abort", json!({})), json!({ "ok": true }));
    }

    fn history(&mut self) -> Vec<Said> {
        let answer = self.client.call("gateway.initialize", Value::Null);
        said(&answer["history"], |message| text_at(message, "/content"))
    }
}

/// Where a story is told.
trait Stage: Sized {
    fn begin() -> Self;
    /// Where a client connects; it may be elsewhere once there is a session.
    fn door(&self) -> &Daemon;
    /// The daemon that has the session is killed, and comes back.
    fn crash(self) -> Self;
}

impl Stage for Daemon {
    fn begin() -> Self {
        Self::start()
    }

    fn door(&self) -> &Daemon {
        self
    }

    fn crash(self) -> Self {
        self.kill_and_restart()
    }
}

/// The story.
fn tell<V: Voice, S: Stage>() {
    let stage = S::begin();
    let mut client = V::connect(stage.door(), "default");
    let protocol = V::PROTOCOL;

    let answer = client.chat("what is a walrus?");
    assert!(answer.text.contains("walrus") && answer.failure.is_empty(), "{protocol}: {answer:?}");

    // There is a session, so whoever has it can be told.
    drop(client);
    let mut client = V::connect(stage.door(), "default");
    let tool = client.chat(r#"/tool echo {"text":"hi İİİİ"}"#);
    assert!(tool.text.contains("hi İİİİ") && tool.failure.is_empty(), "{protocol}: {tool:?}");

    client.ask("/slow 60");
    client.abort();
    let aborted = client.hear();
    assert!(!aborted.text.contains("done.") && aborted.text.starts_with("Slowly"), "{protocol}: {aborted:?}");
    let words = ["aborted", "cancel"];
    assert!(words.iter().any(|word| aborted.failure.contains(word)), "{protocol}: {aborted:?}");

    let next = client.chat("still there?");
    assert!(next.text.contains("still there?") && next.failure.is_empty(), "{protocol}: {next:?}");

    // Left alone in the midst of an answer, and killed: it goes on, once.
    client.ask("/slow 4");
    drop(client);
    let stage = stage.crash();
    let mut client = V::connect(stage.door(), "default");
    let after = client.chat("and now?");
    assert!(after.text.contains("and now?") && after.failure.is_empty(), "{protocol}: {after:?}");
    let history = client.history();
    let prompts: Vec<&str> =
        history.iter().filter(|(role, _)| role == "user").map(|(_, text)| text.as_str()).collect();
    let expected = [
        "what is a walrus?",
        r#"/tool echo {"text":"hi İİİİ"}"#,
        "/slow 60",
        "still there?",
        "/slow 4",
        "and now?",
    ];
    assert_eq!(prompts, expected, "{protocol}");
    let answers = history.iter().filter(|(_, text)| text == "Slowly: 1 2 3 4 done.").count();
    assert_eq!(answers, 1, "{protocol}: {history:#?}");
}

#[test]
fn in_exoclaw() {
    tell::<Exoclaw, Daemon>();
}

#[test]
fn in_openclaw_3() {
    tell::<OpenClaw<3>, Daemon>();
}

#[test]
fn in_openclaw_4() {
    tell::<OpenClaw<4>, Daemon>();
}

#[test]
fn in_wundr() {
    tell::<WundrVoice, Daemon>();
}

#[test]
fn in_xeno() {
    tell::<Xeno, Daemon>();
}

/// The text of the next run that this connection is told under its `session.attach`, and the number
/// of its end.
fn followed(client: &mut Client, attach: &str) -> (String, u64) {
    let mut text = String::new();
    loop {
        let frame = client.reply(attach);
        match frame["event"].as_str() {
            Some("text") => text += frame["data"].as_str().unwrap_or_default(),
            Some("restart") => text.clear(),
            Some("done") => return (text.trim().to_owned(), frame["seq"].as_u64().unwrap_or_default()),
            _ => {}
        }
    }
}

#[test]
fn a_client_of_each_protocol_follows_one_session_through_a_restart() {
    const KEY: &str = "main:xeno:default:main";
    const RESUMED: &str = "Slowly: 1 2 3 4 5 done.";
    let mut daemon = Daemon::start();
    let first = Xeno::connect(&daemon, "default").chat("hello from the console").text;

    let mut after = 0;
    for is_restarted in [false, true] {
        let mut exoclaw = Client::connect(daemon.address);
        let mut openclaw = OpenClaw::<4>::connect(&daemon, &format!("agent:{KEY}"));
        let mut wundr = WundrVoice::connect(&daemon, "default");
        let mut xeno = Xeno::connect(&daemon, "default");

        let history = xeno.history();
        assert_eq!(history, openclaw.history());
        assert_eq!(history[1], ("assistant".to_owned(), first.clone()));
        let attach = exoclaw.request("session.attach", json!({ "session": KEY, "after_seq": after }));
        assert!(exoclaw.reply(&attach)["result"]["seq"].as_u64() > Some(after));
        if !is_restarted {
            assert_eq!(followed(&mut exoclaw, &attach).0, first);
        } else {
            // The run that the kill cut off, with what came of it.
            assert_eq!(followed(&mut exoclaw, &attach).0, RESUMED);
        }

        // Whoever asks, all others hear the same.
        xeno.ask("/slow 2");
        let asked = xeno.hear().text;
        openclaw.ask_nothing();
        let mut by_openclaw = openclaw.hear().text;
        if is_restarted && by_openclaw == RESUMED {
            // It came while that run went on.
            openclaw.ask_nothing();
            by_openclaw = openclaw.hear().text;
        }
        let mut by_wundr = wundr.next_answer();
        if is_restarted && by_wundr == RESUMED {
            by_wundr = wundr.next_answer();
        }
        let (by_exoclaw, seq) = followed(&mut exoclaw, &attach);
        assert_eq!([&by_openclaw, &by_wundr, &by_exoclaw], [&asked; 3], "asked in xeno");
        after = seq;

        let asked = openclaw.chat("and from here?").text;
        let by_wundr = wundr.next_answer();
        let (by_exoclaw, seq) = followed(&mut exoclaw, &attach);
        assert_eq!([&by_wundr, &by_exoclaw], [&asked; 2], "asked in openclaw");
        after = after.max(seq);

        let asked = wundr.chat("and from there?").text;
        openclaw.ask_nothing();
        let by_openclaw = openclaw.hear().text;
        let (by_exoclaw, seq) = followed(&mut exoclaw, &attach);
        assert_eq!([&by_openclaw, &by_exoclaw], [&asked; 2], "asked in wundr");
        after = after.max(seq);
        eventually("the console to know it", || {
            (xeno.history().last()? == &("assistant".to_owned(), asked.clone())).then_some(())
        });

        if !is_restarted {
            xeno.ask("/slow 5");
            daemon = daemon.kill_and_restart();
        }
    }
}

impl<const N: u64> OpenClaw<N> {
    /// Somebody else asks.
    fn ask_nothing(&mut self) {
        self.run.clear();
        self.text.clear();
        while self.client.take_kept().is_some() {}
    }
}

impl WundrVoice {
    /// The answer to the next prompt that anybody asks.
    fn next_answer(&mut self) -> String {
        let start = self.client.event("stream.start");
        let prompt = start["payload"]["promptId"].as_str().unwrap_or_default().to_owned();
        self.client.answer_of(&prompt).0.trim().to_owned()
    }
}
