//! An exoclaw client: plain WebSocket and JSON, no code of the daemon's.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::handshake::client::Request;

use super::TIMEOUT;
use super::socket::{Incoming, Socket};

/// One connection.
pub struct Client {
    socket: Socket,
    next_id: u64,
    /// Frames that came while another one was waited for.
    kept: Vec<Value>,
}

/// The frames of one streamed answer, without its id.
#[derive(Debug)]
pub struct Stream(pub Vec<Value>);

impl Stream {
    /// All text, in one.
    pub fn text(&self) -> String {
        self.data("text").filter_map(Value::as_str).collect()
    }

    /// All text that a restart did not make void.
    pub fn lasting_text(&self) -> String {
        let (mut lasting, mut step) = (String::new(), String::new());
        for frame in &self.0 {
            match frame["event"].as_str() {
                Some("text") => step.push_str(frame["data"].as_str().unwrap_or_default()),
                Some("restart") => step.clear(),
                Some("tool_result") => lasting.push_str(&std::mem::take(&mut step)),
                _ => {}
            }
        }
        lasting + &step
    }

    /// The data of all events of this name.
    pub fn data<'a>(&'a self, event: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |frame| frame["event"] == event).map(|frame| &frame["data"])
    }

    /// What went wrong: the data of `error`, or the refusal that came instead of a stream.
    pub fn error(&self) -> &str {
        let refusal = self.0.iter().find_map(|frame| frame["error"].as_str());
        self.data("error").find_map(Value::as_str).or(refusal).unwrap_or_default()
    }

    /// Its tokens, input and output.
    pub fn usage(&self) -> (u64, u64) {
        let usage = self.data("usage").next().unwrap_or(&Value::Null);
        let tokens = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{name}: {self:?}"));
        (tokens("input_tokens"), tokens("output_tokens"))
    }

    /// The names of the events, runs of `text` as one.
    pub fn events(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.iter().filter_map(|frame| frame["event"].as_str()).collect();
        names.dedup_by(|a, b| a == b && *a == "text");
        names
    }
}

impl Client {
    /// Opens `/ws` and takes the hello.
    pub fn connect(address: SocketAddr) -> Self {
        let mut client = Self::open(address, "/ws");
        let hello = client.receive();
        assert_eq!(hello["ok"], true, "hello: {hello}");
        client
    }

    /// Opens `/ws`, shows a token and takes the hello.
    pub fn connect_with(address: SocketAddr, token: &str) -> Self {
        let mut client = Self::open(address, "/ws");
        client.send_text(&json!({ "token": token }).to_string());
        let hello = client.receive();
        assert_eq!(hello["ok"], true, "hello: {hello}");
        client
    }

    /// Opens a path and takes nothing.
    pub fn open(address: SocketAddr, path: &str) -> Self {
        Self::on(Socket::open(address, path))
    }

    /// Opens with this request.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn upgrade(address: SocketAddr, request: Request) -> Result<Self, String> {
        Socket::upgrade(address, request).map(Self::on)
    }

    fn on(socket: Socket) -> Self {
        Self { socket, next_id: 0, kept: Vec::new() }
    }

    /// The oldest frame that came while another one was waited for.
    pub fn take_kept(&mut self) -> Option<Value> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0))
    }

    /// The frames that came while others were waited for.
    pub fn kept(&self) -> &[Value] {
        &self.kept
    }

    /// Every text frame so far, as it came.
    pub fn seen(&self) -> &[String] {
        self.socket.seen()
    }

    /// The reason of the Close.
    pub fn reason(&self) -> &str {
        self.socket.reason()
    }

    /// Sends a text frame as it is.
    pub fn send_text(&mut self, text: &str) {
        self.socket.send_text(text).expect("it takes frames");
    }

    /// Sends a binary frame.
    pub fn send_binary(&mut self, bytes: &[u8]) {
        self.socket.send_binary(bytes);
    }

    /// Sends a request; gives its id.
    pub fn request(&mut self, method: &str, params: Value) -> String {
        self.next_id += 1;
        let id = format!("r{}", self.next_id);
        self.send_text(&json!({"id": id, "method": method, "params": params}).to_string());
        id
    }

    /// Sends a request under this id; the connection may have ended.
    pub fn try_request(&mut self, id: &str, method: &str, params: Value) -> Result<(), String> {
        self.socket.send_text(&json!({"id": id, "method": method, "params": params}).to_string())
    }

    /// Sends a prompt for an account of channel `websocket`; gives its id.
    pub fn prompt(&mut self, account: &str, content: &str) -> String {
        self.request("chat.send", json!({"channel": "websocket", "account": account, "content": content}))
    }

    /// Sends a request and takes its plain reply.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.reply(&id)
    }

    /// A prompt and its whole stream.
    pub fn chat(&mut self, account: &str, content: &str) -> Stream {
        let id = self.prompt(account, content);
        self.stream(&id)
    }

    /// The next frame with this id.
    pub fn reply(&mut self, id: &str) -> Value {
        self.find(|frame| frame["id"] == id)
    }

    /// The next frame for which this holds; others are kept.
    pub fn find(&mut self, is_meant: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.kept.iter().position(&is_meant) {
            return self.kept.remove(index);
        }
        // Ticks come for ever.
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < TIMEOUT, "waited {TIMEOUT:?}, after {:#?}", self.seen());
            let frame = self.receive();
            if is_meant(&frame) {
                return frame;
            }
            self.kept.push(frame);
        }
    }

    /// The frames with this id up to and with `done`, or one that is no event.
    pub fn stream(&mut self, id: &str) -> Stream {
        let mut frames = Vec::new();
        loop {
            let mut frame = self.reply(id);
            if let Some(object) = frame.as_object_mut() {
                object.remove("id");
            }
            let last = frame["event"] == "done" || frame.get("event").is_none();
            frames.push(frame);
            if last {
                return Stream(frames);
            }
        }
    }

    /// Aborts what this request started; gives whether there was anything.
    pub fn abort(&mut self, id: &str) -> bool {
        let reply = self.call("chat.abort", json!({ "id": id }));
        reply["result"]["aborted"].as_bool().unwrap_or_else(|| panic!("chat.abort: {reply}"))
    }

    /// The next text frame.
    pub fn receive(&mut self) -> Value {
        match self.receive_or_close() {
            Ok(frame) => frame,
            Err(end) => panic!("the connection ended ({end}) after {:#?}", self.seen()),
        }
    }

    /// How the connection ends: the close code, or why there is none. What comes before that is taken.
    pub fn end(&mut self) -> String {
        loop {
            if let Err(end) = self.receive_or_close() {
                return end;
            }
        }
    }

    /// The next text frame, or how the connection ended: the close code, or why there is none.
    pub fn receive_or_close(&mut self) -> Result<Value, String> {
        loop {
            if let Incoming::Frame(frame) = self.socket.read()? {
                return Ok(frame);
            }
        }
    }
}
