//! The JSON of records, and the values that several of them hold.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::ENDED;
use crate::conversation::log::unreadable;
use crate::error::limit::Limit;
use crate::error::{BudgetMet, Detail, Error, ErrorCode};
use crate::provider::usage::Usage;
use crate::scope::Scope;
use crate::time::Timestamp;

#[derive(Serialize, Deserialize)]
pub(super) struct Prompted<'a> {
    pub(super) content: Cow<'a, str>,
    #[serde(default)]
    pub(super) owner: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) attachments: Vec<Attached<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) thinking: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lane: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answer_to: Option<Answering<'a>>,
}

/// Where an answer goes besides its session.
#[derive(Serialize, Deserialize)]
pub(super) struct Answering<'a> {
    pub(super) channel: Cow<'a, str>,
    pub(super) conversation: Cow<'a, str>,
    pub(super) address: Cow<'a, str>,
}

/// An attachment, but for its data: that is not JSON, and is kept beside the record.
#[derive(Serialize, Deserialize)]
pub(super) struct Attached<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(rename = "type")]
    pub(super) media_type: Cow<'a, str>,
    pub(super) bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) caption: Option<Cow<'a, str>>,
}

/// The seals of a step, in order.
#[derive(Serialize, Deserialize)]
pub(super) struct Sealed<'a> {
    pub(super) seals: Vec<Sealing<'a>>,
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Sealing<'a> {
    pub(super) thought: usize,
    pub(super) text: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) signature: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) redacted: Option<Cow<'a, str>>,
    /// What is encrypted, and its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) encrypted: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<Cow<'a, str>>,
    /// Which call `signature` is of, where it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<usize>,
}

/// The input is kept as the text of a JSON value of its own, so that what could be parsed once
/// can be parsed again however deep it nests.
#[derive(Serialize, Deserialize)]
pub(super) struct ToolCalled<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) name: Cow<'a, str>,
    pub(super) input: Cow<'a, RawValue>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ApprovalAsked<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) name: Cow<'a, str>,
    pub(super) input: Cow<'a, RawValue>,
    pub(super) asked: u64,
    pub(super) deadline: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ApprovalDecided<'a> {
    pub(super) call: Cow<'a, str>,
    pub(super) tool: Cow<'a, str>,
    /// `approved`, `denied`, `timed_out` or `withdrawn`.
    pub(super) decision: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<Cow<'a, RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ToolReturned<'a> {
    pub(super) call: Cow<'a, str>,
    pub(super) content: Cow<'a, str>,
    #[serde(default)]
    pub(super) is_error: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) input: u64,
    pub(super) output: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) cache_read: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) cache_write: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

#[derive(Serialize, Deserialize)]
pub(super) struct Ended<'a> {
    /// `completed`, `incomplete`, `aborted` or `failed`.
    pub(super) outcome: Cow<'a, str>,
    /// What aborted it: `stopped` or `timed_out`; or why it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Failure<'a>>,
    pub(super) usage: Tokens,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Noticed<'a> {
    pub(super) kind: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Recalled<'a> {
    pub(super) notes: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Compaction<'a> {
    pub(super) up_to: u64,
    #[serde(default)]
    pub(super) named: u64,
    #[serde(default)]
    pub(super) summary: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Injected<'a> {
    pub(super) content: Cow<'a, str>,
}

/// Of a conversation that was forgotten as a whole the body is empty, as it was before there was
/// anything else.
#[derive(Serialize, Deserialize)]
pub(super) struct Cleared {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) up_to: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) anew: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Configured<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) thinking: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) assignment: Option<Assigned<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) closed: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) allowed: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) display: BTreeMap<String, Value>,
}

/// What a session was made for.
#[derive(Serialize, Deserialize)]
pub(super) struct Assigned<'a> {
    pub(super) lead: Cow<'a, str>,
    pub(super) kind: Cow<'a, str>,
    pub(super) task: Cow<'a, str>,
    pub(super) description: Cow<'a, str>,
    pub(super) priority: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) metadata: Value,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Failure<'a> {
    pub(super) code: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) missing_scope: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<(Cow<'a, str>, u64)>,
    /// Of a budget, whose bound `limit` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) used: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resets_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) key_refused: bool,
}

pub(super) fn tokens(usage: Usage) -> Tokens {
    Tokens {
        input: usage.input_tokens,
        output: usage.output_tokens,
        cache_read: usage.cache_read_tokens,
        cache_write: usage.cache_write_tokens,
    }
}

pub(super) fn usage(tokens: &Tokens) -> Usage {
    Usage {
        input_tokens: tokens.input,
        output_tokens: tokens.output,
        cache_read_tokens: tokens.cache_read,
        cache_write_tokens: tokens.cache_write,
    }
}

pub(super) fn failure(error: &Error) -> Failure<'_> {
    let mut failure = Failure {
        code: error.code.name().into(),
        message: (&error.message).into(),
        missing_scope: None,
        retry_after_ms: None,
        limit: None,
        used: None,
        resets_ms: None,
        key_refused: false,
    };
    match &error.detail {
        None => {}
        // About who is let in, about files, or about where a session is: no run fails with that.
        Some(Detail::Credential(_) | Detail::Pairing(_) | Detail::Received(_)) => {}
        Some(Detail::Namesakes | Detail::NotOwner) => {}
        Some(Detail::KeyRefused) => failure.key_refused = true,
        Some(Detail::MissingScope(scope)) => failure.missing_scope = Some(scope.name().into()),
        Some(Detail::RetryAfter(wait)) => {
            failure.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        }
        Some(Detail::Limit { name, limit }) => failure.limit = Some((name.name().into(), *limit)),
        Some(Detail::Budget(met)) => {
            failure.limit = Some((met.name.name().into(), met.limit));
            failure.used = Some(met.used);
            failure.resets_ms = met.resets.map(Timestamp::as_millis);
        }
    }
    failure
}

pub(super) fn error(failure: Failure<'_>) -> Result<Error, Error> {
    let code = ErrorCode::from_name(&failure.code)
        .ok_or_else(|| unreadable(ENDED, format_args!("unknown error code {:?}", failure.code)))?;
    let scope = |name: &str| Scope::ALL.into_iter().find(|scope| scope.name() == name);
    let detail = if let Some(scope) = failure.missing_scope.as_deref().and_then(scope) {
        Some(Detail::MissingScope(scope))
    } else if failure.key_refused {
        Some(Detail::KeyRefused)
    } else if let Some(wait) = failure.retry_after_ms {
        Some(Detail::RetryAfter(Duration::from_millis(wait)))
    } else {
        let bound = failure.limit.and_then(|(name, limit)| Some((Limit::from_name(&name)?, limit)));
        let resets = failure.resets_ms.map(Timestamp::from_millis);
        bound.map(|(name, limit)| match failure.used {
            Some(used) => Detail::Budget(Box::new(BudgetMet { name, used, limit, resets })),
            None => Detail::Limit { name, limit },
        })
    };
    Ok(Error { code, message: failure.message.into_owned(), detail })
}
