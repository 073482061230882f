//! OpenClaw's frames as they are on the wire, and how an error is said in each protocol number.
//!
//! Clients of protocol 3 drop frames that hold a key they don't know, so no frame has any besides
//! those of the protocol, and what is absent is left out.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::frame;
pub(super) use super::super::frame::answer;
use super::super::json::{Params, json as to_json, object};
use crate::dialect::Frame;
use crate::error::{Detail, Error, ErrorCode};
use crate::scope::Scope;

/// The longest id of a request, in bytes: it is kept and echoed.
const ID_BYTES_MAX: usize = 1024;

/// Which generation of the protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    /// Clawdbot and its descendants up to January 2026.
    Three = 3,
    /// OpenClaw since.
    Four = 4,
}

/// One frame of a client.
#[derive(Debug)]
pub(super) enum Incoming<'a> {
    /// A request.
    Request {
        /// Its id.
        id: String,
        /// Its method.
        method: String,
        /// Its parameters.
        params: Params<'a>,
    },
    /// An event, such as a `tick` that is acknowledged: needs no answer.
    Event,
    /// JSON, but no request: the id it may have and what is wrong.
    Broken(Option<String>, String),
    /// Not even JSON.
    Garbage,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Reads a frame; a binary one as if it were text.
pub(super) fn read(frame: &Frame) -> Incoming<'_> {
    let text = match frame {
        Frame::Text(text) => Some(&**text),
        Frame::Binary(bytes) => std::str::from_utf8(bytes).ok(),
    };
    text.map_or(Incoming::Garbage, read_text)
}

fn read_text(text: &str) -> Incoming<'_> {
    let fields: Fields<'_> = match object(text) {
        Ok(fields) => fields,
        Err(why) if serde_json::from_str::<&RawValue>(text).is_ok() => return Incoming::Broken(None, why),
        Err(_) => return Incoming::Garbage,
    };
    let text_of = |raw: Option<&RawValue>| {
        raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok()).filter(|text| !text.is_empty())
    };
    let id = text_of(fields.id).filter(|id| id.len() <= ID_BYTES_MAX);
    let broken = |id, why: &str| Incoming::Broken(id, why.into());
    match text_of(fields.kind).as_deref() {
        Some("req") => {}
        Some("event") => return Incoming::Event,
        Some(_) => return broken(id, "at /type: must be \"req\""),
        None => return broken(id, "must have required property 'type', \"req\""),
    }
    let Some(id) = id else {
        return broken(None, &format!("at /id: must be a string of 1 to {ID_BYTES_MAX} bytes"));
    };
    match text_of(fields.method) {
        Some(method) => Incoming::Request { id, method, params: Params(fields.params) },
        None => broken(Some(id), "at /method: must be a string that is not empty"),
    }
}

/// What a client is told of a failure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    /// The protocol's code.
    pub(super) code: &'static str,
    /// For people; the only thing that most clients look at.
    pub(super) message: String,
    /// For programs.
    pub(super) details: Option<Value>,
    /// When the same request may succeed, in milliseconds; `Some(None)` = later.
    pub(super) retry: Option<Option<u64>>,
}

impl Failure {
    /// One that says no more than this.
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: None, retry: None }
    }

    /// With details.
    pub(super) fn with(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// How an error is said. The one `match` from neutral codes to this protocol's.
    pub(super) fn of(error: &Error, protocol: Protocol) -> Self {
        if let Some(Detail::MissingScope(scope)) = &error.detail {
            return Self::missing_scope(*scope, protocol);
        }
        let code = match error.code {
            ErrorCode::Unavailable
            | ErrorCode::RateLimited
            | ErrorCode::BudgetExceeded
            | ErrorCode::Provider
            | ErrorCode::Interrupted
            | ErrorCode::Internal => "UNAVAILABLE",
            ErrorCode::Timeout => "AGENT_TIMEOUT",
            ErrorCode::Forbidden if protocol == Protocol::Four => "FORBIDDEN",
            ErrorCode::InvalidRequest
            | ErrorCode::UnknownMethod
            | ErrorCode::Unauthenticated
            | ErrorCode::Forbidden
            | ErrorCode::NotFound
            | ErrorCode::Conflict
            | ErrorCode::TooLarge
            | ErrorCode::Aborted => "INVALID_REQUEST",
        };
        let after = match &error.detail {
            Some(Detail::RetryAfter(after)) => Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            _ => None,
        };
        let retry = (error.is_retryable() || after.is_some()).then_some(after);
        let details = match &error.detail {
            Some(Detail::Budget(met)) => Some(json!({
                "code": "BUDGET_EXCEEDED",
                "budget": met.name.name(),
                "used": met.used,
                "limit": met.limit,
                "resetsAt": met.resets.map(|at| at.as_millis()),
            })),
            _ => None,
        };
        Self { code, message: error.message.clone(), details, retry }
    }

    /// The refusal of somebody without this scope.
    pub(super) fn missing_scope(scope: Scope, protocol: Protocol) -> Self {
        let name = scope_name(scope);
        let failure = Self::new("INVALID_REQUEST", format!("missing scope: {name}"));
        match protocol {
            Protocol::Three => failure,
            Protocol::Four => Self { code: "FORBIDDEN", ..failure }
                .with(json!({ "code": "MISSING_SCOPE", "missingScope": name, "requiredScopes": [name] })),
        }
    }

    /// As the protocol's object.
    pub(super) fn to_value(&self) -> Value {
        frame::error(self.code, &self.message, self.details.as_ref(), self.retry)
    }
}

/// The protocol's name of a scope.
pub(super) const fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "operator.read",
        Scope::Write | Scope::Teams => "operator.write",
        Scope::Approve => "operator.approvals",
        Scope::Pair => "operator.pairing",
        Scope::Admin => "operator.admin",
    }
}

/// The refusal of a request.
pub(super) fn refusal(id: &str, failure: &Failure) -> String {
    frame::refusal(id, &failure.to_value())
}

/// The refusal of a request that has a payload all the same (a failed `agent`).
pub(super) fn refusal_with(id: &str, payload: &Value, failure: &Failure) -> String {
    let (id, error) = (to_json(id), failure.to_value());
    format!(r#"{{"type":"res","id":{id},"ok":false,"payload":{payload},"error":{error}}}"#)
}

/// An event with a payload that is JSON already. `rest` is what follows the payload.
pub(super) fn event(name: &str, payload: &str, rest: Rest) -> String {
    frame::event(name, payload, rest.seq, |frame| {
        if let Some((presence, health)) = rest.state_version {
            frame.push_str(&format!(r#","stateVersion":{{"presence":{presence},"health":{health}}}"#));
        }
    })
}

/// What an event carries besides its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    /// Its number on this connection.
    pub(super) seq: Option<u64>,
    /// The versions of presence and health.
    pub(super) state_version: Option<(u64, u64)>,
}

/// The text as the inside of a JSON string.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        return text.into();
    }
    let quoted = to_json(text);
    quoted[1..quoted.len() - 1].to_owned().into()
}
