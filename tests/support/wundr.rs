//! A client of Wundr's protocol v2: plain WebSocket and JSON, no code of the daemon's.
//!
//! It looks at every event frame's `seq`: each is one more than the one before.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use super::TIMEOUT;
pub use super::socket::Incoming;
use super::socket::Socket;

/// One connection.
pub struct Wundr {
    socket: Socket,
    next_id: u64,
    /// The number of the last event frame.
    seq: u64,
    hello: Value,
    /// Frames that came while another one was waited for.
    kept: VecDeque<Incoming>,
}

impl Wundr {
    /// Opens `/v2` and is let in, without a credential.
    pub fn connect(address: SocketAddr) -> Self {
        Self::connect_as(address, json!({ "type": "api-key", "token": "none" }), json!({}))
    }

    /// Opens `/v2` and is let in with an API key or the shared token.
    pub fn connect_with(address: SocketAddr, token: &str) -> Self {
        Self::connect_as(address, json!({ "type": "api-key", "token": token }), json!({}))
    }

    /// Opens `/v2` and is let in with this `auth`, and `more` parameters of `auth.connect`.
    pub fn connect_as(address: SocketAddr, auth: Value, more: Value) -> Self {
        Self::try_connect(address, "/v2", auth, more)
            .unwrap_or_else(|(answer, close)| panic!("refused: {answer}, {close}"))
    }

    /// Opens a path and asks to be let in; else what it was answered, and the code of the close.
    ///
    /// # Errors
    /// The refusal.
    pub fn try_connect(
        address: SocketAddr,
        path: &str,
        auth: Value,
        more: Value,
    ) -> Result<Self, (Value, String)> {
        let mut client = Self::open(address, path);
        let mut params = json!({
            "minProtocol": 2, "maxProtocol": 2, "auth": auth,
            "client": { "id": "test", "version": "1.0.0", "platform": "linux/x64" },
        });
        for (name, value) in more.as_object().expect("an object") {
            params[name] = value.clone();
        }
        let id = client.request("auth.connect", params);
        let is_answer = |frame: &Value| frame["type"] == "res" && frame["id"] == *id;
        let frame = match client.try_find("the answer to auth.connect", is_answer) {
            Ok(frame) => frame,
            // Who is no longer let in may hear no more than that.
            Err(end) => return Err((Value::Null, end)),
        };
        let answer =
            if frame["ok"] == true { Ok(frame["payload"].clone()) } else { Err(frame["error"].clone()) };
        match answer {
            Ok(hello) => {
                client.hello = hello;
                Ok(client)
            }
            Err(error) => Err((error, client.closed())),
        }
    }

    /// Opens a path and sends nothing.
    pub fn open(address: SocketAddr, path: &str) -> Self {
        let socket = Socket::open(address, path);
        Self { socket, next_id: 0, seq: 0, hello: Value::Null, kept: VecDeque::new() }
    }

    /// What `auth.connect` was answered.
    pub fn hello(&self) -> &Value {
        &self.hello
    }

    /// Every text frame so far, as it came.
    pub fn seen(&self) -> &[String] {
        self.socket.seen()
    }

    /// Sends a text frame as it is.
    pub fn send_text(&mut self, text: &str) {
        self.socket.send_text(text).expect("it takes frames");
    }

    /// Sends a binary frame.
    pub fn send_binary(&mut self, bytes: impl Into<Vec<u8>>) {
        self.socket.send_binary(bytes);
    }

    /// Sends a request; gives its id.
    pub fn request(&mut self, method: &str, params: Value) -> String {
        self.next_id += 1;
        let id = format!("r{}", self.next_id);
        self.request_as(&id, method, params);
        id
    }

    /// Sends a request under this id.
    pub fn request_as(&mut self, id: &str, method: &str, params: Value) {
        self.send_text(&json!({ "type": "req", "id": id, "method": method, "params": params }).to_string());
    }

    /// Asks, and takes the payload of the answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}\n{:#?}", self.seen()))
    }

    /// Asks, and takes the error it is refused with.
    pub fn refused(&mut self, method: &str, params: Value) -> Value {
        match self.try_call(method, params) {
            Ok(payload) => panic!("{method} was not refused: {payload}"),
            Err(error) => error,
        }
    }

    /// Asks, and takes the payload of the answer or its error.
    ///
    /// # Errors
    /// The error.
    pub fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params);
        self.answer(&id)
    }

    /// The answer under this id: its payload or its error.
    ///
    /// # Errors
    /// The error.
    pub fn answer(&mut self, id: &str) -> Result<Value, Value> {
        let frame =
            self.find(&format!("the answer {id}"), |frame| frame["type"] == "res" && frame["id"] == id);
        if frame["ok"] == true { Ok(frame["payload"].clone()) } else { Err(frame["error"].clone()) }
    }

    /// Subscribes to events, with a filter or null; gives the subscription's id.
    pub fn subscribe(&mut self, events: &[&str], filter: Value) -> String {
        let answer = self.call("subscribe", json!({ "events": events, "filter": filter }));
        answer["subscriptionId"].as_str().unwrap_or_else(|| panic!("subscribe: {answer}")).to_owned()
    }

    /// The next event frame of this name.
    pub fn event(&mut self, name: &str) -> Value {
        self.event_that(name, |_| true)
    }

    /// The next event frame of this name with such a payload.
    pub fn event_that(&mut self, name: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        self.find(&format!("event {name}"), |frame| {
            frame["type"] == "event" && frame["event"] == name && is_meant(&frame["payload"])
        })
    }

    /// The text of a prompt's chunks of kind `text` up to its end, and the payload of that: of
    /// `stream.end` or `stream.error`.
    pub fn answer_of(&mut self, prompt: &str) -> (String, Value) {
        let mut text = String::new();
        loop {
            let frame = self.find(&format!("the end of prompt {prompt}"), |frame| {
                frame["payload"]["promptId"] == prompt
                    && frame["event"].as_str().is_some_and(|name| name.starts_with("stream."))
            });
            let payload = &frame["payload"];
            match frame["event"].as_str() {
                Some("stream.chunk") if payload["chunkType"] == "text" => {
                    text.push_str(payload["content"].as_str().unwrap_or_default());
                }
                // What was said before is void.
                Some("stream.start") => text.clear(),
                Some("stream.end" | "stream.error") => return (text, frame),
                _ => {}
            }
        }
    }

    /// The next frame for which this holds; others are kept.
    pub fn find(&mut self, what: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        self.try_find(what, is_meant).unwrap_or_else(|end| {
            panic!("the connection ended ({end}) before {what}, after {:#?}", self.socket.seen())
        })
    }

    /// The same; the end of the connection where that came first.
    fn try_find(&mut self, what: &str, is_meant: impl Fn(&Value) -> bool) -> Result<Value, String> {
        let is_it = |incoming: &Incoming| matches!(incoming, Incoming::Frame(frame) if is_meant(frame));
        if let Some(at) = self.kept.iter().position(is_it)
            && let Some(Incoming::Frame(frame)) = self.kept.remove(at)
        {
            return Ok(frame);
        }
        // Heartbeats come for ever.
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}, after {:#?}", self.seen());
            match self.read() {
                Ok(Incoming::Frame(frame)) if is_meant(&frame) => return Ok(frame),
                Ok(other) => self.kept.push_back(other),
                Err(end) => return Err(end.to_string()),
            }
        }
    }

    /// The next frame, whatever it is.
    pub fn next(&mut self) -> Incoming {
        let kept = self.kept.pop_front();
        kept.unwrap_or_else(|| {
            self.read().unwrap_or_else(|end| panic!("the connection ended ({end}) after {:#?}", self.seen()))
        })
    }

    /// The next binary frame.
    pub fn binary(&mut self) -> Vec<u8> {
        let at = self.kept.iter().position(|incoming| matches!(incoming, Incoming::Binary(_)));
        if let Some(at) = at
            && let Some(Incoming::Binary(bytes)) = self.kept.remove(at)
        {
            return bytes;
        }
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for a binary frame: {:#?}", self.seen());
            match self.read() {
                Ok(Incoming::Binary(bytes)) => return bytes,
                Ok(other) => self.kept.push_back(other),
                Err(end) => panic!("the connection ended ({end}) before a binary frame: {:#?}", self.seen()),
            }
        }
    }

    /// Waits until the daemon closes; gives the code, or why there is none.
    pub fn closed(&mut self) -> String {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for a close: {:#?}", self.seen());
            match self.read() {
                Ok(incoming) => self.kept.push_back(incoming),
                Err(end) => return end,
            }
        }
    }

    /// The frames that came and were not looked for, in order.
    pub fn kept(&self) -> impl Iterator<Item = &Incoming> {
        self.kept.iter()
    }

    fn read(&mut self) -> Result<Incoming, String> {
        let incoming = self.socket.read()?;
        if let Incoming::Frame(frame) = &incoming
            && let Some(seq) = frame["seq"].as_u64()
        {
            assert_eq!(seq, self.seq + 1, "a gap or a repeat: {frame}");
            self.seq = seq;
        }
        Ok(incoming)
    }
}
