//! The frames that OpenClaw's and Wundr's protocols have in common: answers, refusals and events. What
//! else an error or an event says is each protocol's own. (Source: the document of Wundr's protocol,
//! section 11: the same frame model, the same error structure.)

use std::fmt::Display;

use serde_json::{Value, json};

use super::json::json as to_json;

/// The answer to a request; `payload` is JSON.
pub(super) fn answer(id: &str, payload: &impl Display) -> String {
    format!(r#"{{"type":"res","id":{},"ok":true,"payload":{payload}}}"#, to_json(id))
}

/// The refusal of a request, with an [`error`].
pub(super) fn refusal(id: &str, error: &Value) -> String {
    format!(r#"{{"type":"res","id":{},"ok":false,"error":{error}}}"#, to_json(id))
}

/// An error. `retry` says that the same request may succeed later, and in how many milliseconds where
/// that is known.
pub(super) fn error(code: &str, message: &str, details: Option<&Value>, retry: Option<Option<u64>>) -> Value {
    let mut object = json!({ "code": code, "message": message });
    if let Some(details) = details {
        object["details"] = details.clone();
    }
    if let Some(after) = retry {
        object["retryable"] = true.into();
        if let Some(after) = after {
            object["retryAfterMs"] = after.into();
        }
    }
    object
}

/// An event with a payload that is JSON already and its number on the connection, where it has one;
/// `rest` adds members behind them, each with a comma before it.
pub(super) fn event(name: &str, payload: &str, seq: Option<u64>, rest: impl FnOnce(&mut String)) -> String {
    let mut frame = String::with_capacity(name.len() + payload.len() + 128);
    frame.push_str(r#"{"type":"event","event":""#);
    frame.push_str(name);
    frame.push_str(r#"","payload":"#);
    frame.push_str(payload);
    if let Some(seq) = seq {
        frame.push_str(r#","seq":"#);
        frame.push_str(&seq.to_string());
    }
    rest(&mut frame);
    frame.push('}');
    frame
}
