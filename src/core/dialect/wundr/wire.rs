//! Wundr's frames as they are on the wire, and how an error is said.
//!
//! Its clients validate what they read: an optional member that is absent is left out, never `null`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::frame;
pub(super) use super::super::frame::answer;
use super::super::json::{Params, even_null, object};
use super::shape::{COUNT, NAME, Shape, TEXT, optional, required};
use crate::error::credential::{CredentialFault, Refusal};
use crate::error::{Detail, Error, ErrorCode};
use crate::scope::Scope;

/// The longest id of a request, in bytes: it is kept and echoed.
const ID_BYTES_MAX: usize = 1024;

/// When to try again whose JWT has expired, in milliseconds. (Source: the protocol's document, section 6.)
const EXPIRED_RETRY_MS: u64 = 1000;

/// The most requests in one array.
pub(super) const BATCH_MAX: usize = 50;

/// What is answered under, where a frame has no id of its own.
pub(super) const NO_ID: &str = "invalid";

/// One text frame of a client.
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
    /// Several frames in one.
    Batch(Vec<&'a RawValue>),
    /// JSON, but no request: the id to answer under, and what is wrong.
    Broken(String, String),
    /// Not even JSON.
    Garbage,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default, rename = "type", deserialize_with = "even_null")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Reads a text frame.
pub(super) fn read(text: &str) -> Incoming<'_> {
    if text.trim_start().starts_with('[') {
        return match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(all) => Incoming::Batch(all),
            Err(_) => Incoming::Garbage,
        };
    }
    let fields: Fields<'_> = match object(text) {
        Ok(fields) => fields,
        Err(why) if serde_json::from_str::<&RawValue>(text).is_ok() => {
            return Incoming::Broken(NO_ID.into(), why);
        }
        Err(_) => return Incoming::Garbage,
    };
    let text_of = |raw: Option<&RawValue>| {
        raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok()).filter(|text| !text.is_empty())
    };
    let id = text_of(fields.id).filter(|id| id.len() <= ID_BYTES_MAX);
    // A number is echoed as text: who sent it may look for it.
    let echo = id.clone().or_else(|| {
        let raw = fields.id?.get();
        (raw.len() <= 32 && raw.parse::<f64>().is_ok()).then(|| raw.to_owned())
    });
    let broken = |why: &str| Incoming::Broken(echo.clone().unwrap_or_else(|| NO_ID.into()), why.into());
    if text_of(fields.kind).as_deref() != Some("req") {
        return broken("type: must be \"req\"");
    }
    let Some(id) = &id else {
        return broken(&format!("id: must be a string of 1 to {ID_BYTES_MAX} bytes"));
    };
    match text_of(fields.method) {
        Some(method) => Incoming::Request { id: id.clone(), method, params: Params(fields.params) },
        None => broken("method: must be a string that is not empty"),
    }
}

/// The protocol's `ErrorShape`.
pub(super) const ERROR: Shape = Shape::Object(&[
    required("code", NAME, "one of the error codes"),
    required("message", TEXT, "for people"),
    optional("details", Shape::Any, "for programs"),
    optional("retryable", Shape::Flag, "whether the same may succeed later"),
    optional("retryAfterMs", COUNT, "in how long"),
]);

/// What a client is told of a failure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    /// One of [`CODES`].
    pub(super) code: &'static str,
    /// For people.
    pub(super) message: String,
    /// For programs.
    pub(super) details: Option<Value>,
    /// Whether the same request may succeed later, and in how many milliseconds where that is known.
    pub(super) retry: Option<Option<u64>>,
}

/// The protocol's error codes. (Source: the protocol's document, section 6.)
pub(super) const CODES: [&str; 10] = [
    "INVALID_REQUEST",
    "UNAUTHORIZED",
    "FORBIDDEN",
    "NOT_FOUND",
    "CONFLICT",
    "RATE_LIMITED",
    "INTERNAL",
    "UNAVAILABLE",
    "TIMEOUT",
    "PROTOCOL_MISMATCH",
];

impl Failure {
    /// One that says no more than this.
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: None, retry: None }
    }

    /// With details.
    pub(super) fn with(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// A frame or parameters that can't be understood.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new("INVALID_REQUEST", message)
    }

    /// How an error is said. The one `match` from neutral codes to this protocol's; what the
    /// protocol has no code for says so in `details.reason`.
    pub(super) fn of(error: &Error) -> Self {
        let reason = |reason: &str| Some(json!({ "reason": reason }));
        let (code, details) = match error.code {
            ErrorCode::InvalidRequest | ErrorCode::UnknownMethod => ("INVALID_REQUEST", None),
            ErrorCode::TooLarge => ("INVALID_REQUEST", reason("too_large")),
            ErrorCode::Unauthenticated => ("UNAUTHORIZED", None),
            ErrorCode::Forbidden => ("FORBIDDEN", None),
            ErrorCode::NotFound => ("NOT_FOUND", None),
            ErrorCode::Conflict => ("CONFLICT", None),
            ErrorCode::Aborted => ("CONFLICT", reason("aborted")),
            ErrorCode::RateLimited => ("RATE_LIMITED", Some(json!({ "remaining": 0 }))),
            ErrorCode::BudgetExceeded => ("RATE_LIMITED", reason("budget_exceeded")),
            ErrorCode::Unavailable => ("UNAVAILABLE", None),
            ErrorCode::Provider => ("UNAVAILABLE", reason("provider")),
            ErrorCode::Interrupted => ("UNAVAILABLE", reason("interrupted")),
            ErrorCode::Timeout => ("TIMEOUT", None),
            ErrorCode::Internal => ("INTERNAL", None),
        };
        let mut failure = Self { details, ..Self::new(code, error.message.clone()) };
        let mut after = None;
        match &error.detail {
            Some(Detail::MissingScope(scope)) => return Self::missing_scope(&[*scope], None),
            Some(Detail::RetryAfter(wait)) => {
                after = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1));
            }
            Some(Detail::Limit { name, limit }) => {
                let details = failure.details.get_or_insert_with(|| json!({}));
                details["limit"] = name.name().into();
                details["max"] = (*limit).into();
            }
            Some(Detail::Budget(met)) => {
                let details = failure.details.get_or_insert_with(|| json!({}));
                details["limit"] = met.name.name().into();
                details["max"] = met.limit.into();
                details["used"] = met.used.into();
                if let Some(resets) = met.resets {
                    details["resetsAt"] = resets.to_rfc3339().replace(".000Z", "Z").into();
                }
            }
            Some(Detail::Credential(fault)) => {
                let mut details = json!({ "reason": fault.reason() });
                if let Some(at) = fault.expired_at() {
                    // In whole seconds, which is what a JWT counts in, as the protocol's document has it.
                    details["expiredAt"] = at.to_rfc3339().replace(".000Z", "Z").into();
                }
                if matches!(fault, CredentialFault::Jwt(Refusal::Expired { .. })) {
                    // Another one is what helps, and that is soon there.
                    after = Some(EXPIRED_RETRY_MS);
                }
                failure.details = Some(details);
            }
            Some(Detail::Received(bytes)) => {
                let details = failure.details.get_or_insert_with(|| json!({}));
                details["received"] = (*bytes).into();
            }
            Some(Detail::Pairing(_) | Detail::KeyRefused | Detail::Namesakes | Detail::NotOwner) | None => {}
        }
        if error.is_retryable() || after.is_some() {
            failure.retry = Some(after);
        }
        failure
    }

    /// The refusal of somebody who has none of these scopes.
    pub(super) fn missing_scope(any_of: &[Scope], method: Option<&str>) -> Self {
        let names: Vec<&str> = any_of.iter().map(|scope| scope_name(*scope)).collect();
        let what = method.map_or_else(|| "this".to_owned(), ToOwned::to_owned);
        Self::new("FORBIDDEN", format!("{what} needs scope {}", names.join(" or ")))
            .with(json!({ "requiredScopes": names }))
    }

    /// As the protocol's object.
    pub(super) fn to_value(&self) -> Value {
        frame::error(self.code, &self.message, self.details.as_ref(), self.retry)
    }
}

/// The protocol's name of a scope; one that it does not have is an operator's.
pub(super) const fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "daemon.read",
        Scope::Write => "daemon.write",
        Scope::Teams => "daemon.teams",
        Scope::Approve => "daemon.approve",
        Scope::Admin | Scope::Pair => "daemon.admin",
    }
}

/// The scopes the protocol has. (Source: the protocol's document, section 9.)
pub(super) const SCOPES: [Scope; 5] = [Scope::Admin, Scope::Read, Scope::Write, Scope::Approve, Scope::Teams];

/// The refusal of a request.
pub(super) fn refusal(id: &str, failure: &Failure) -> String {
    frame::refusal(id, &failure.to_value())
}

/// An event with a payload that is JSON already and the connection's number of it.
pub(super) fn event(name: &str, payload: &str, seq: u64, subscription: Option<&str>) -> String {
    frame::event(name, payload, Some(seq), |frame| {
        if let Some(subscription) = subscription {
            frame.push_str(r#","subscriptionId":""#);
            frame.push_str(subscription);
            frame.push('"');
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn broken(text: &str) -> (String, String) {
        match read(text) {
            Incoming::Broken(id, why) => (id, why),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn what_is_no_request_is_answered_under_the_id_it_has() {
        for (text, id) in [
            (r#"{"type":"res","id":"a","method":"m"}"#, "a"),
            (r#"{"id":"a","method":"m"}"#, "a"),
            (r#"{"type":"req","id":5,"method":"m"}"#, "5"),
            (r#"{"type":"req","id":"","method":"m"}"#, "invalid"),
            (r#"{"type":"req","id":null,"method":"m"}"#, "invalid"),
            (r#"{"type":"req","id":{"a":1},"method":"m"}"#, "invalid"),
            (r#"{"type":"req","method":"m"}"#, "invalid"),
            (r#"{"type":"req","id":"a"}"#, "a"),
            (r#"{"type":"req","id":"a","method":""}"#, "a"),
            (r#"{"type":"req","id":"a","method":7}"#, "a"),
            ("7", "invalid"),
            ("null", "invalid"),
        ] {
            assert_eq!(broken(text).0, id, "{text}");
        }
        assert!(matches!(read("{"), Incoming::Garbage));
        assert!(matches!(read("[{}, 1"), Incoming::Garbage));
        assert!(matches!(read(" [{}, 1]"), Incoming::Batch(all) if all.len() == 2));
        let long = format!(r#"{{"type":"req","id":"{}","method":"m"}}"#, "x".repeat(ID_BYTES_MAX + 1));
        assert_eq!(broken(&long).0, "invalid");
    }

    #[test]
    fn every_error_has_a_code_of_the_protocol() {
        for code in ErrorCode::ALL {
            let failure = Failure::of(&code.error("x"));
            assert!(CODES.contains(&failure.code), "{code:?}");
            let retryable = failure.to_value().get("retryable").is_some();
            assert_eq!(retryable, code.error("x").is_retryable(), "{code:?}");
        }
        let wait = Detail::RetryAfter(std::time::Duration::from_micros(10));
        let limited = Failure::of(&ErrorCode::RateLimited.error("slow down").with(wait)).to_value();
        assert_eq!(
            limited,
            json!({ "code": "RATE_LIMITED", "message": "slow down", "details": { "remaining": 0 },
                "retryable": true, "retryAfterMs": 1 })
        );
    }

    proptest! {
        #[test]
        fn no_text_ends_the_reader(text in ".{0,64}") {
            let _ = read(&text);
        }
    }
}
