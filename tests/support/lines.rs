//! A client of the Unix socket: JSON-RPC 2.0, one message a line, no code of the daemon's.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use super::TIMEOUT;

/// One connection.
pub struct Lines {
    stream: UnixStream,
    buffer: Vec<u8>,
    next_id: u64,
    /// Messages that came while another one was waited for.
    kept: VecDeque<Value>,
    /// Every line, for messages of failed tests.
    seen: Vec<String>,
}

impl Lines {
    /// Connects to the socket of this home.
    pub fn connect(home: &Path) -> Self {
        Self::connect_to(&home.join(".xeno").join("gateway.sock"))
    }

    /// Connects to a socket.
    pub fn connect_to(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        stream.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a deadline is set");
        Self { stream, buffer: Vec::new(), next_id: 0, kept: VecDeque::new(), seen: Vec::new() }
    }

    /// Every line so far, as it came.
    pub fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it takes bytes");
    }

    /// Sends a line.
    pub fn send_line(&mut self, line: &str) {
        self.send_bytes(format!("{line}\n").as_bytes());
    }

    /// Sends a request; gives its id. No `params` where they are null.
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let mut request = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        self.send_line(&request.to_string());
        self.next_id
    }

    /// Asks, and takes the result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}\n{:#?}", self.seen))
    }

    /// Asks, and takes the error it is refused with.
    pub fn refused(&mut self, method: &str, params: Value) -> Value {
        match self.try_call(method, params) {
            Ok(result) => panic!("{method} was not refused: {result}"),
            Err(error) => error,
        }
    }

    /// Asks, and takes the result or the error.
    ///
    /// # Errors
    /// The error.
    pub fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params);
        self.answer(&json!(id))
    }

    /// The answer under this id: its result or its error.
    ///
    /// # Errors
    /// The error.
    pub fn answer(&mut self, id: &Value) -> Result<Value, Value> {
        let answer = self.find(&format!("the answer {id}"), |message| {
            message.get("method").is_none() && message.get("id") == Some(id)
        });
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].clone()),
        }
    }

    /// The next notification of this method: its parameters.
    pub fn notification(&mut self, method: &str) -> Value {
        let found = self.find(&format!("notification {method}"), |message| message["method"] == method);
        found["params"].clone()
    }

    /// The next message for which this holds; others are kept.
    pub fn find(&mut self, what: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.kept.iter().position(&is_meant)
            && let Some(message) = self.kept.remove(at)
        {
            return message;
        }
        let begin = std::time::Instant::now();
        loop {
            assert!(begin.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}, after {:#?}", self.seen);
            match self.read() {
                Ok(message) if is_meant(&message) => return message,
                Ok(other) => self.kept.push_back(other),
                Err(end) => panic!("the connection ended ({end}) before {what}, after {:#?}", self.seen),
            }
        }
    }

    /// The next message, whatever it is; or how the connection ended.
    ///
    /// # Errors
    /// The end.
    pub fn next(&mut self) -> Result<Value, String> {
        match self.kept.pop_front() {
            Some(kept) => Ok(kept),
            None => self.read(),
        }
    }

    /// The messages that came and were not looked for, in order.
    pub fn take_kept(&mut self) -> Vec<Value> {
        self.kept.drain(..).collect()
    }

    /// Says that nothing more will be sent; what comes can still be read.
    pub fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("it is open");
    }

    /// Reads until the daemon closes; gives the messages that came and were not looked for, in order.
    pub fn until_closed(&mut self) -> Vec<Value> {
        loop {
            match self.read() {
                Ok(message) => self.kept.push_back(message),
                Err(end) if end == "closed" => return self.kept.drain(..).collect(),
                Err(end) => panic!("waited for a close: {end}, after {:#?}", self.seen),
            }
        }
    }

    fn read(&mut self) -> Result<Value, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8(line).expect("lines are UTF-8").trim_end().to_owned();
                let message = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                self.seen.push(line);
                return Ok(message);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("closed".into()),
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err("closed".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}
