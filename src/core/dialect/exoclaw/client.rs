//! The other half of exoclaw: what a client says, and what it makes of what it is told. The
//! terminal client speaks it.
//!
//! Pure like the gateway's half. As clients should, it sends strictly and receives tolerantly:
//! unknown keys and events are passed over.

use serde_json::{Value, json};

use crate::ids::SessionKey;

/// The path of the protocol's WebSocket.
pub const PATH: &str = "/ws";

/// What a client is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// It is let in.
    Hello,
    /// It is about to be closed.
    Closing {
        /// Why, in a word such as `auth_failed`.
        error: String,
        /// The code of the Close frame that follows.
        code: u16,
    },
    /// The final answer to a request that does not stream, or the refusal of one that would.
    Answer {
        /// The request.
        id: String,
        /// What it gives, or what went wrong.
        outcome: Result<Value, String>,
    },
    /// A frame of a stream.
    Event {
        /// The request it belongs to.
        id: String,
        /// What happened.
        event: StreamEvent,
    },
    /// Nothing this client knows.
    Unknown,
}

/// What happens in a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// A piece of text.
    Text(String),
    /// The model calls a tool.
    ToolUse {
        /// Which.
        name: String,
        /// With what.
        input: Value,
        /// What it has to be approved by before it is called; none where it needs no approval.
        approval: Option<String>,
    },
    /// The tool answered.
    ToolResult {
        /// What.
        content: String,
        /// Whether it failed.
        is_error: bool,
    },
    /// The tokens of the whole run.
    Usage {
        /// Read.
        input_tokens: u64,
        /// Written.
        output_tokens: u64,
    },
    /// The daemon was restarted within a step: its text so far is void and comes anew.
    Restart,
    /// The run failed; [`ABORTED`] where somebody ended it.
    Error(String),
    /// Nothing follows.
    Done,
    /// Nothing this client knows.
    Unknown,
}

/// The text of [`StreamEvent::Error`] in an aborted run.
pub const ABORTED: &str = "aborted";

/// The word of [`Told::Closing`] for a credential that does not hold.
pub const AUTH_FAILED: &str = "auth_failed";

/// The first frame of a client that has a credential.
pub fn token(token: &str) -> String {
    json!({ "token": token }).to_string()
}

/// The word of [`Told::Closing`] for a daemon that stops.
pub const DRAINING: &str = "draining";

/// A prompt. Sent again with the same `key` it is the same run, told from its start.
pub fn send(id: &str, session: &SessionKey, content: &str, key: &str) -> String {
    // The protocol wants channel and account of every client; the session says the same and more.
    let params = json!({
        "channel": session.channel(), "account": session.account(), "peer": session.peer(),
        "session": session.as_str(), "content": content, "idempotency_key": key,
    });
    json!({ "id": id, "method": "chat.send", "params": params }).to_string()
}

/// Ends the run of the prompt with the id `prompt`.
pub fn abort(id: &str, prompt: &str) -> String {
    json!({ "id": id, "method": "chat.abort", "params": { "id": prompt } }).to_string()
}

/// What a text frame says.
pub fn read(frame: &str) -> Told {
    let Ok(Value::Object(mut frame)) = serde_json::from_str(frame) else { return Told::Unknown };
    let id = match frame.remove("id") {
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        _ if frame.get("ok").and_then(Value::as_bool) == Some(true) => return Told::Hello,
        _ => match frame.remove("error") {
            Some(Value::String(error)) => {
                let code =
                    frame.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                return Told::Closing { error, code: code.unwrap_or_default() };
            }
            _ => return Told::Unknown,
        },
    };
    if let Some(Value::String(event)) = frame.get("event") {
        let event = event.clone();
        return Told::Event { id, event: stream_event(&event, frame.remove("data").unwrap_or_default()) };
    }
    match frame.remove("error") {
        None | Some(Value::Null) => {
            Told::Answer { id, outcome: Ok(frame.remove("result").unwrap_or_default()) }
        }
        Some(Value::String(error)) => Told::Answer { id, outcome: Err(error) },
        Some(other) => Told::Answer { id, outcome: Err(other.to_string()) },
    }
}

fn stream_event(event: &str, data: Value) -> StreamEvent {
    let text = |data: &Value| match data {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let field = |name: &str| data.get(name).map(text).unwrap_or_default();
    let number = |name: &str| data.get(name).and_then(Value::as_u64).unwrap_or_default();
    match event {
        "text" => StreamEvent::Text(text(&data)),
        "tool_use" => StreamEvent::ToolUse {
            name: field("name"),
            input: data.get("input").cloned().unwrap_or_default(),
            approval: data.pointer("/approval/id").and_then(Value::as_str).map(str::to_owned),
        },
        "tool_result" => StreamEvent::ToolResult {
            content: field("content"),
            is_error: data.get("is_error").and_then(Value::as_bool).unwrap_or(false),
        },
        "usage" => StreamEvent::Usage {
            input_tokens: number("input_tokens"),
            output_tokens: number("output_tokens"),
        },
        "restart" => StreamEvent::Restart,
        "error" => StreamEvent::Error(text(&data)),
        "done" => StreamEvent::Done,
        _ => StreamEvent::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_are_understood() {
        let event = |event| Told::Event { id: "1".into(), event };
        for (frame, told) in [
            (r#"{"ok":true,"version":"0.1.0"}"#, Told::Hello),
            (
                r#"{"error":"auth_failed","code":4001}"#,
                Told::Closing { error: AUTH_FAILED.into(), code: 4001 },
            ),
            (r#"{"id":"1","result":"pong"}"#, Told::Answer { id: "1".into(), outcome: Ok(json!("pong")) }),
            (r#"{"id":1,"result":{},"error":null}"#, Told::Answer { id: "1".into(), outcome: Ok(json!({})) }),
            (r#"{"id":"1","error":"no"}"#, Told::Answer { id: "1".into(), outcome: Err("no".into()) }),
            (r#"{"id":"1","event":"text","data":"hi"}"#, event(StreamEvent::Text("hi".into()))),
            (
                r#"{"id":"1","event":"tool_use","data":{"id":"c","name":"echo","input":{"text":"hi"}}}"#,
                event(StreamEvent::ToolUse {
                    name: "echo".into(),
                    input: json!({"text": "hi"}),
                    approval: None,
                }),
            ),
            (
                r#"{"id":"1","event":"tool_use","data":{"id":"c","name":"rm","input":{},"approval":{"id":"7f"}}}"#,
                event(StreamEvent::ToolUse {
                    name: "rm".into(),
                    input: json!({}),
                    approval: Some("7f".into()),
                }),
            ),
            (
                r#"{"id":"1","event":"tool_result","data":{"tool_use_id":"c","content":"hi"}}"#,
                event(StreamEvent::ToolResult { content: "hi".into(), is_error: false }),
            ),
            (
                r#"{"id":"1","event":"usage","data":{"input_tokens":1,"output_tokens":2}}"#,
                event(StreamEvent::Usage { input_tokens: 1, output_tokens: 2 }),
            ),
            (r#"{"id":"1","event":"error","data":"aborted"}"#, event(StreamEvent::Error(ABORTED.into()))),
            (r#"{"id":"1","event":"restart"}"#, event(StreamEvent::Restart)),
            (r#"{"id":"1","event":"done"}"#, event(StreamEvent::Done)),
            (r#"{"id":"1","event":"new","data":[]}"#, event(StreamEvent::Unknown)),
            ("[]", Told::Unknown),
            ("{", Told::Unknown),
        ] {
            assert_eq!(read(frame), told, "{frame}");
        }
    }

    #[test]
    fn a_prompt_names_its_session() {
        let session = SessionKey::new("main", "cli", "a:b", "main").unwrap();
        let frame: Value = serde_json::from_str(&send("1", &session, "hi", "k")).unwrap();
        assert_eq!(frame["params"]["session"], "main:cli:a%3Ab:main");
        assert_eq!(frame["params"]["account"], "a:b");
    }

    proptest! {
        #[test]
        fn no_frame_panics(frame in any::<String>()) {
            read(&frame);
        }

        #[test]
        fn no_event_panics(event in "[a-z_]{0,12}", data in "[0-9\\[\\]{}\":a-z]{0,24}") {
            read(&format!(r#"{{"id":"1","event":"{event}","data":{data}}}"#));
        }
    }
}
