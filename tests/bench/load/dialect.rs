//! What the load says in each protocol: how it is let in, the smallest request, a prompt, and how the
//! end of an answer is told.

use serde_json::{Value, json};

use super::wire::Wire;
use crate::process::Process;

/// A protocol of the daemon, or that of the limit programs, which takes frames as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A limit program's: no handshake; an empty frame ends an answer.
    Bare,
    /// On `/ws`.
    Exoclaw,
    /// On `/v2`.
    Wundr,
    /// On `/`, its protocol 4.
    OpenClaw,
    /// On the Unix socket.
    Xeno,
    /// That of model providers over HTTP, which peers speak to clients, too.
    Events,
}

impl Dialect {
    /// Those over TCP.
    pub const WEB: [Self; 3] = [Self::Exoclaw, Self::Wundr, Self::OpenClaw];

    /// Its name in a row's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Exoclaw => "exoclaw",
            Self::Wundr => "wundr",
            Self::OpenClaw => "openclaw",
            Self::Xeno => "xeno",
            Self::Events => "events",
        }
    }

    /// A connection that was let in.
    pub fn connect(self, process: &Process) -> Wire {
        match self {
            Self::Bare => Wire::web(process.address, "/"),
            Self::Exoclaw => {
                let mut wire = Wire::web(process.address, "/ws");
                wire.next();
                wire
            }
            Self::Wundr => {
                let mut wire = Wire::web(process.address, "/v2");
                call(
                    &mut wire,
                    "auth.connect",
                    &json!({
                        "minProtocol": 2, "maxProtocol": 2, "auth": {"type": "api-key", "token": "none"},
                        "client": {"id": "bench", "version": "1", "platform": "linux"},
                    }),
                );
                wire
            }
            Self::OpenClaw => {
                let mut wire = Wire::web(process.address, "/");
                call(
                    &mut wire,
                    "connect",
                    &json!({
                        "minProtocol": 4, "maxProtocol": 4, "role": "operator", "scopes": ["operator.admin"],
                        "client": {"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"},
                    }),
                );
                wire
            }
            Self::Xeno => Wire::lines(&process.socket()),
            Self::Events => Wire::http(process.address),
        }
    }

    /// The smallest request there is. xeno has no ping: what its clients ask for first, of an empty session.
    pub fn ping(self) -> &'static str {
        match self {
            Self::Bare | Self::Events | Self::Exoclaw => r#"{"id":"1","method":"ping"}"#,
            Self::Wundr => r#"{"type":"req","id":"1","method":"health.ping","params":{"clientTimestamp":1}}"#,
            Self::OpenClaw => r#"{"type":"req","id":"1","method":"health","params":{}}"#,
            Self::Xeno => r#"{"jsonrpc":"2.0","id":1,"method":"gateway.initialize"}"#,
        }
    }

    /// Makes sure of a session of this name; gives the prompt that is sent to it.
    pub fn prompt(self, wire: &mut Wire, session: &str) -> String {
        match self {
            Self::Bare => "go".to_owned(),
            Self::Events => {
                let body = json!({"model": "bench", "stream": true, "messages": [{"role": "user", "content": session}]});
                let body = body.to_string();
                format!(
                    "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
            Self::Exoclaw => json!({"id": "1", "method": "chat.send",
                "params": {"channel": "bench", "account": session, "content": "go"}})
            .to_string(),
            Self::Wundr => {
                let session = call(
                    wire,
                    "session.create",
                    &json!({"orchestratorId": "main", "sessionType": "claude-code",
                        "task": {"type": "general", "description": session}}),
                );
                request("prompt.submit", &json!({"sessionId": session["id"], "prompt": "go"}))
            }
            Self::OpenClaw => request(
                "chat.send",
                &json!({"sessionKey": format!("agent:main:{session}"), "message": "go", "idempotencyKey": session}),
            ),
            Self::Xeno => json!({"jsonrpc": "2.0", "id": 1, "method": "gateway.query", "params": {
                "requestId": session, "content": "go",
                "context": {"type": "rpc", "channelId": session, "metadata": {"clientName": "bench"}}}})
            .to_string(),
        }
    }

    /// Whether an answer ends with this message.
    ///
    /// # Panics
    /// Where it says that the answer failed.
    pub fn is_end(self, message: &[u8]) -> bool {
        let has = |part: &str| contains(message, part.as_bytes());
        let (end, failures): (&str, &[&str]) = match self {
            Self::Bare => return message.is_empty(),
            Self::Events => ("data: [DONE]", &["\"error\":"]),
            Self::Exoclaw => (r#""event":"done""#, &[r#""error":"#, r#""event":"error""#]),
            Self::Wundr => (r#""event":"stream.end""#, &[r#""ok":false"#, r#""stream.error""#]),
            Self::OpenClaw => (r#""state":"final""#, &[r#""ok":false"#, r#""state":"error""#]),
            Self::Xeno => (r#""gateway.done""#, &[r#""error":"#, r#""gateway.error""#]),
        };
        // An answer's pieces are many, and only what is no piece can be a refusal.
        let is_piece = message.contains(&b'<');
        let failed = !is_piece && failures.iter().any(|failure| has(failure));
        assert!(!failed, "an answer failed: {}", String::from_utf8_lossy(message));
        (!is_piece || self == Self::OpenClaw) && has(end)
    }
}

/// A request of Wundr's or OpenClaw's protocol; its method is its id.
pub fn request(method: &str, params: &Value) -> String {
    json!({"type": "req", "id": method, "method": method, "params": params}).to_string()
}

/// A request and its answer's payload.
pub fn call(wire: &mut Wire, method: &str, params: &Value) -> Value {
    wire.send(&request(method, params));
    loop {
        let frame: Value = serde_json::from_str(&wire.next()).expect("JSON");
        if frame["type"] == "res" && frame["id"] == method {
            assert_eq!(frame["ok"], true, "{method}: {frame}");
            return frame["payload"].clone();
        }
    }
}

fn contains(message: &[u8], part: &[u8]) -> bool {
    let mut rest = message;
    while let Some(at) = rest.iter().position(|byte| *byte == part[0]) {
        if rest[at..].starts_with(part) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}
