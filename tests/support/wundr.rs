//! A client of Wundr's protocol v2: plain WebSocket and JSON, no code of the daemon's.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::client::Client;

/// One connection.
pub struct Wundr {
    client: Client,
    requests: u64,
    /// The number of the last event frame.
    seq: u64,
    /// Events that came while an answer was waited for.
    events: VecDeque<Event>,
}

/// An event, as it came.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// What it says.
    pub payload: Value,
    /// Which subscription it is for.
    pub subscription: String,
}

impl Event {
    /// The number in its session's log.
    pub fn session_seq(&self) -> u64 {
        self.payload["sessionSeq"].as_u64().unwrap_or_else(|| panic!("no sessionSeq: {self:?}"))
    }

    /// A text of its payload.
    pub fn text(&self, member: &str) -> &str {
        self.payload[member].as_str().unwrap_or_default()
    }
}

impl Wundr {
    /// Lets itself in with an API key.
    pub fn connect(address: SocketAddr, key: &str) -> Self {
        Self::connect_with(address, key, &[])
    }

    /// The same, with these scopes alone.
    pub fn connect_with(address: SocketAddr, key: &str, scopes: &[&str]) -> Self {
        let client = Client::open(address, "/v2");
        let mut wundr = Self { client, requests: 0, seq: 0, events: VecDeque::new() };
        let params = json!({
            "minProtocol": 2,
            "maxProtocol": 2,
            "auth": { "type": "api-key", "token": key },
            "client": { "id": "test", "version": "1.0.0", "platform": "linux/x64" },
            "scopes": scopes,
        });
        let hello = wundr.call("auth.connect", params);
        assert_eq!((&hello["type"], &hello["protocol"]), (&json!("hello"), &json!(2)), "{hello}");
        wundr
    }

    /// Sends a request; gives its id.
    pub fn request(&mut self, method: &str, params: Value) -> String {
        self.requests += 1;
        let id = format!("{method}-{}", self.requests);
        let frame = json!({ "type": "req", "id": id, "method": method, "params": params });
        self.client.send_text(&frame.to_string());
        id
    }

    /// The answer to a request: its payload, or its error. Events that come before it are kept.
    pub fn answer(&mut self, id: &str) -> Result<Value, Value> {
        loop {
            let frame = self.client.receive();
            if frame["type"] == "event" {
                self.keep(&frame);
            } else {
                assert_eq!((&frame["type"], &frame["id"]), (&json!("res"), &json!(id)), "{frame}");
                return match frame["ok"] == true {
                    true => Ok(frame["payload"].clone()),
                    false => Err(frame["error"].clone()),
                };
            }
        }
    }

    /// A request and the payload of its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.answer(&id).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// A request that is refused: the code, and the whole error.
    pub fn refused(&mut self, method: &str, params: Value) -> (String, Value) {
        let id = self.request(method, params);
        match self.answer(&id) {
            Ok(payload) => panic!("{method} is answered: {payload}"),
            Err(error) => (error["code"].as_str().unwrap_or_default().to_owned(), error),
        }
    }

    /// A session: its id, and the id of its subscription.
    pub fn session(&mut self) -> (String, String) {
        let task = json!({ "type": "general", "description": "try it" });
        let made = self.call(
            "session.create",
            json!({ "orchestratorId": "orc", "sessionType": "claude-code", "task": task }),
        );
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{name}: {made}")).to_owned();
        (text("id"), text("subscriptionId"))
    }

    /// Submits a prompt; gives its id.
    pub fn prompt(&mut self, session: &str, prompt: &str) -> String {
        let accepted = self.call("prompt.submit", json!({ "sessionId": session, "prompt": prompt }));
        accepted["promptId"].as_str().unwrap_or_else(|| panic!("no promptId: {accepted}")).to_owned()
    }

    /// The next event; heartbeats aside.
    pub fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let frame = self.client.receive();
            assert_eq!(frame["type"], "event", "{frame}");
            self.keep(&frame);
        }
    }

    /// The events up to and with the first for which that is true.
    pub fn until(&mut self, mut is_last: impl FnMut(&Event) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.event();
            let last = is_last(&event);
            events.push(event);
            if last {
                return events;
            }
        }
    }

    /// The events up to and with the end of a prompt, and the status of its session that follows it.
    pub fn until_end(&mut self, prompt: &str) -> Vec<Event> {
        let is_end = |event: &Event| {
            ["stream.end", "stream.error"].contains(&&*event.name) && event.text("promptId") == prompt
        };
        let mut events = self.until(is_end);
        events.push(self.event());
        assert_eq!(events.last().map(|last| &*last.name), Some("session.status"), "{events:#?}");
        events
    }

    /// The events that are on their way before the answer to a ping.
    pub fn rest(&mut self) -> Vec<Event> {
        self.call("health.ping", json!({}));
        self.events.drain(..).collect()
    }

    /// Every number follows the one before.
    fn keep(&mut self, frame: &Value) {
        assert_eq!(frame["seq"].as_u64(), Some(self.seq + 1), "a gap: {frame}");
        self.seq += 1;
        let text = |name: &str| frame[name].as_str().unwrap_or_default().to_owned();
        if frame["event"] != "health.heartbeat" {
            let payload = frame["payload"].clone();
            self.events.push_back(Event {
                name: text("event"),
                payload,
                subscription: text("subscriptionId"),
            });
        }
    }
}

/// All text of a prompt, in one.
pub fn text_of(events: &[Event]) -> String {
    let is_text = |event: &&Event| event.name == "stream.chunk" && event.text("chunkType") == "text";
    events.iter().filter(is_text).map(|event| event.text("content")).collect()
}
