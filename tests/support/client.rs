//! An exoclaw client: plain WebSocket and JSON, no code of the daemon's.

use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::PATIENCE;

/// One connection.
pub struct Client {
    socket: WebSocket<TcpStream>,
    next_id: u64,
    /// Frames that came while another one was waited for.
    kept: Vec<Value>,
    /// Every text frame, for messages of failed tests.
    seen: Vec<String>,
}

/// The frames of one streamed answer, without its id.
#[derive(Debug)]
pub struct Stream(pub Vec<Value>);

impl Stream {
    /// All text, in one.
    pub fn text(&self) -> String {
        self.data("text").filter_map(Value::as_str).collect()
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
        let request = format!("ws://{address}{path}").into_client_request().expect("a request");
        Self::upgrade(address, request).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Opens with this request.
    pub fn upgrade(
        address: SocketAddr,
        request: tungstenite::handshake::client::Request,
    ) -> Result<Self, String> {
        let stream = TcpStream::connect(address).expect("it accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline is set");
        stream.set_nodelay(true).expect("no delay");
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (socket, _) = tungstenite::client::client_with_config(request, stream, Some(config))
            .map_err(|error| error.to_string())?;
        Ok(Self { socket, next_id: 0, kept: Vec::new(), seen: Vec::new() })
    }

    /// The oldest frame that came while another one was waited for.
    pub fn take_kept(&mut self) -> Option<Value> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0))
    }

    /// Every text frame so far, as it came.
    pub fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Sends a text frame as it is.
    pub fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).expect("it takes frames");
    }

    /// Sends a binary frame.
    pub fn send_binary(&mut self, bytes: &[u8]) {
        self.socket.send(Message::binary(bytes.to_vec())).expect("it takes frames");
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
        let request = json!({"id": id, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(request)).map_err(|error| error.to_string())
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
        if let Some(index) = self.kept.iter().position(|frame| frame["id"] == id) {
            return self.kept.remove(index);
        }
        loop {
            let frame = self.receive();
            if frame["id"] == id {
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
            Err(end) => panic!("the connection ended ({end}) after {:#?}", self.seen),
        }
    }

    /// The next text frame, or how the connection ended: the close code, or why there is none.
    pub fn receive_or_close(&mut self) -> Result<Value, String> {
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => {
                    self.seen.push(text.to_string());
                    return Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
                }
                Ok(Message::Close(Some(close))) => return Err(u16::from(close.code).to_string()),
                Ok(Message::Close(None)) => return Err("no code".into()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}
