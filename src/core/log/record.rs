//! An event as kind and body, and back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::segment::Segment;
use super::unreadable;
use crate::approval::{Asked, Decided, Decision};
use crate::attachment::Attachment;
use crate::auth::{Owner, Scope};
use crate::error::{Detail, Error, ErrorCode};
use crate::event::{Cause, Event, Forgotten, Outcome, Proof, Seal, Streamed, ToolCall, ToolResult, Usage};
use crate::ids::{CallId, PluginName, Seq};
use crate::manner::Manner;
use crate::settings::{Assignment, Settings};
use crate::thinking::Thinking;
use crate::time::Timestamp;

/// The kind of [`Event::Text`]; its body is a [`Segment`].
pub const TEXT: &str = "text";
/// The kind of [`Event::Thought`]; its body is a [`Segment`].
pub const THOUGHT: &str = "thought";
/// The kind of [`Event::Prompted`].
pub const PROMPTED: &str = "prompted";
/// The kind of [`Event::StepEnded`].
pub const STEP_ENDED: &str = "step_ended";
/// The kind of [`Event::Restarted`].
pub const RESTARTED: &str = "restarted";
/// The kind of [`Event::Ended`].
pub const ENDED: &str = "ended";
const STARTED: &str = "started";
const TOOL_CALLED: &str = "tool_called";
const TOOL_RETURNED: &str = "tool_returned";
const CLEARED: &str = "cleared";
/// The kind of [`Event::Injected`].
pub const INJECTED: &str = "injected";
const CONFIGURED: &str = "configured";
const DELETED: &str = "deleted";
const SEALED: &str = "sealed";
const APPROVAL_ASKED: &str = "approval_asked";
const APPROVAL_DECIDED: &str = "approval_decided";

/// The kind of a piece of this.
pub const fn streamed_kind(of: Streamed) -> &'static str {
    match of {
        Streamed::Text => TEXT,
        Streamed::Thought => THOUGHT,
    }
}

/// What records of this kind are pieces of; none where they are none.
pub fn streamed(kind: &str) -> Option<Streamed> {
    [Streamed::Text, Streamed::Thought].into_iter().find(|of| streamed_kind(*of) == kind)
}

#[derive(Serialize, Deserialize)]
struct Prompted<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(borrow, default)]
    owner: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attached<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    lane: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

/// An attachment, but for its data: that is not JSON, and is kept beside the record.
#[derive(Serialize, Deserialize)]
struct Attached<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type")]
    media_type: Cow<'a, str>,
    bytes: usize,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    caption: Option<Cow<'a, str>>,
}

/// The seals of a step, in order.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    #[serde(borrow)]
    seals: Vec<Sealing<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Sealing<'a> {
    thought: usize,
    text: usize,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    signature: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    redacted: Option<Cow<'a, str>>,
}

/// The input is kept as the text of a JSON value of its own, so that what could be parsed once
/// can be parsed again however deep it nests.
#[derive(Serialize, Deserialize)]
struct ToolCalled<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    input: Cow<'a, RawValue>,
}

#[derive(Serialize, Deserialize)]
struct ApprovalAsked<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    input: Cow<'a, RawValue>,
    asked: u64,
    deadline: u64,
}

#[derive(Serialize, Deserialize)]
struct ApprovalDecided<'a> {
    #[serde(borrow)]
    call: Cow<'a, str>,
    #[serde(borrow)]
    tool: Cow<'a, str>,
    /// `approved`, `denied`, `timed_out` or `withdrawn`.
    #[serde(borrow)]
    decision: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    input: Option<Cow<'a, RawValue>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    by: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct ToolReturned<'a> {
    #[serde(borrow)]
    call: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(default)]
    is_error: bool,
}

#[derive(Serialize, Deserialize)]
struct Tokens {
    input: u64,
    output: u64,
}

#[derive(Serialize, Deserialize)]
struct Ended<'a> {
    /// `completed`, `aborted` or `failed`.
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    /// What aborted it: `stopped` or `timed_out`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    cause: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    error: Option<Failure<'a>>,
    usage: Tokens,
}

#[derive(Serialize, Deserialize)]
struct Injected<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
}

/// Of a conversation that was forgotten as a whole the body is empty, as it was before there was
/// anything else.
#[derive(Serialize, Deserialize)]
struct Cleared {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    up_to: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    anew: bool,
}

#[derive(Serialize, Deserialize)]
struct Configured<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    label: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    assignment: Option<Assigned<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    closed: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    display: BTreeMap<String, Value>,
}

/// What a session was made for.
#[derive(Serialize, Deserialize)]
struct Assigned<'a> {
    #[serde(borrow)]
    lead: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    task: Cow<'a, str>,
    #[serde(borrow)]
    description: Cow<'a, str>,
    #[serde(borrow)]
    priority: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    metadata: Value,
}

#[derive(Serialize, Deserialize)]
struct Failure<'a> {
    #[serde(borrow)]
    code: Cow<'a, str>,
    #[serde(borrow)]
    message: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    missing_scope: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    limit: Option<(Cow<'a, str>, u64)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    key_refused: bool,
}

/// Writes the event's body to the end of `body` and says its kind.
///
/// Of attachments it says what they are; their data is kept beside the record.
///
/// Of an error's detail everything comes back but the fraction of a millisecond of a wait.
pub fn write(event: &Event, body: &mut Vec<u8>) -> &'static str {
    match event {
        Event::Prompted { content, owner, idempotency_key, attachments, manner } => {
            let key = idempotency_key.as_deref().map(Cow::Borrowed);
            let attachments = attachments.iter().map(|attachment| Attached {
                name: attachment.name().map(Cow::Borrowed),
                media_type: attachment.media_type().into(),
                bytes: attachment.bytes(),
                caption: attachment.caption().map(Cow::Borrowed),
            });
            let prompted = Prompted {
                content: content.into(),
                owner: owner.as_str().into(),
                key,
                attachments: attachments.collect(),
                thinking: manner.thinking.map(|level| level.name().into()),
                model: manner.model.as_deref().map(Cow::Borrowed),
                max_tokens: manner.max_tokens,
                lane: manner.lane.as_ref().map(|lane| lane.as_str().into()),
                timeout_ms: manner.timeout.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            };
            put(body, &prompted);
            PROMPTED
        }
        Event::Started => {
            body.extend_from_slice(b"{}");
            STARTED
        }
        Event::Text(text) => {
            Segment::new(Streamed::Text, Seq::default(), Timestamp::default(), text).write(body);
            TEXT
        }
        Event::Thought(text) => {
            Segment::new(Streamed::Thought, Seq::default(), Timestamp::default(), text).write(body);
            THOUGHT
        }
        Event::Sealed(seals) => {
            let seals = seals.iter().map(|seal| {
                let (signature, redacted) = match &seal.proof {
                    Proof::Bare => (None, None),
                    Proof::Signature(proof) => (Some(proof.into()), None),
                    Proof::Redacted(proof) => (None, Some(proof.into())),
                };
                Sealing { thought: seal.thought_bytes, text: seal.text_bytes, signature, redacted }
            });
            put(body, &Sealed { seals: seals.collect() });
            SEALED
        }
        Event::ToolCalled(call) => {
            let (id, name) = (call.id.as_str().into(), call.name.as_str().into());
            put(body, &ToolCalled { id, name, input: raw(&call.input) });
            TOOL_CALLED
        }
        Event::ApprovalAsked(Asked { call, asked, deadline }) => {
            let (id, name) = (call.id.as_str().into(), call.name.as_str().into());
            let (asked, deadline) = (asked.as_millis(), deadline.as_millis());
            put(body, &ApprovalAsked { id, name, input: raw(&call.input), asked, deadline });
            APPROVAL_ASKED
        }
        Event::ApprovalDecided(decided) => {
            let (decision, input, reason) = match &decided.decision {
                Decision::Approved { input } => ("approved", input.as_ref(), None),
                Decision::Denied { reason } => ("denied", None, reason.as_deref()),
                Decision::TimedOut => ("timed_out", None, None),
                Decision::Withdrawn => ("withdrawn", None, None),
            };
            let record = ApprovalDecided {
                call: decided.call.as_str().into(),
                tool: decided.tool.as_str().into(),
                decision: decision.into(),
                input: input.map(raw),
                reason: reason.map(Cow::Borrowed),
                by: decided.by.as_deref().map(Cow::Borrowed),
            };
            put(body, &record);
            APPROVAL_DECIDED
        }
        Event::ToolReturned(result) => {
            let (call, content) = (result.call.as_str().into(), (&result.content).into());
            put(body, &ToolReturned { call, content, is_error: result.is_error });
            TOOL_RETURNED
        }
        Event::StepEnded { usage } => {
            put(body, &tokens(*usage));
            STEP_ENDED
        }
        Event::Restarted => {
            body.extend_from_slice(b"{}");
            RESTARTED
        }
        Event::Ended { outcome, usage } => {
            let (name, cause, error) = match outcome {
                Outcome::Completed => ("completed", None, None),
                Outcome::Aborted(Cause::Asked) => ("aborted", None, None),
                Outcome::Aborted(Cause::Stopped) => ("aborted", Some("stopped".into()), None),
                Outcome::Aborted(Cause::TimedOut) => ("aborted", Some("timed_out".into()), None),
                Outcome::Failed(error) => ("failed", None, Some(failure(error))),
            };
            put(body, &Ended { outcome: name.into(), cause, error, usage: tokens(*usage) });
            ENDED
        }
        Event::Cleared(forgotten) => {
            let (up_to, anew) = match forgotten {
                Forgotten::Past => (None, false),
                Forgotten::Conversation => (None, true),
                Forgotten::UpTo(seq) => (Some(seq.0), false),
            };
            put(body, &Cleared { up_to, anew });
            CLEARED
        }
        Event::Injected { content } => {
            put(body, &Injected { content: content.into() });
            INJECTED
        }
        Event::Configured(settings) => {
            write_settings(settings, body);
            CONFIGURED
        }
        Event::Deleted => {
            body.extend_from_slice(b"{}");
            DELETED
        }
    }
}

/// Writes what a session is set to, as its log and its row in lists have it.
pub fn write_settings(settings: &Settings, body: &mut Vec<u8>) {
    let label = settings.label.as_deref().map(Cow::Borrowed);
    let model = settings.model.as_deref().map(Cow::Borrowed);
    let thinking = settings.thinking.map(|level| Cow::Borrowed(level.name()));
    let assignment = settings.assignment.as_deref().map(|assignment| Assigned {
        lead: (&assignment.lead).into(),
        kind: (&assignment.kind).into(),
        task: (&assignment.task).into(),
        description: (&assignment.description).into(),
        priority: (&assignment.priority).into(),
        metadata: assignment.metadata.clone(),
    });
    let closed = settings.closed.as_deref().map(Cow::Borrowed);
    let display = settings.display.clone();
    put(body, &Configured { label, model, thinking, assignment, closed, display });
}

/// Reads it. A level of thinking that is not known is none.
///
/// # Errors
/// `Internal` where the body is no settings.
pub fn read_settings(body: &[u8]) -> Result<Settings, Error> {
    let record: Configured<'_> = take(CONFIGURED, body)?;
    Ok(Settings {
        label: record.label.map(Cow::into_owned),
        model: record.model.map(Cow::into_owned),
        thinking: record.thinking.and_then(|name| Thinking::from_name(&name)),
        assignment: record.assignment.map(|assigned| {
            Box::new(Assignment {
                lead: assigned.lead.into_owned(),
                kind: assigned.kind.into_owned(),
                task: assigned.task.into_owned(),
                description: assigned.description.into_owned(),
                priority: assigned.priority.into_owned(),
                metadata: assigned.metadata,
            })
        }),
        closed: record.closed.map(Cow::into_owned),
        display: record.display,
    })
}

/// The event of this kind with this body; attachments are without their data.
///
/// # Errors
/// `Internal` where the kind is not known or the body does not hold what the kind needs.
pub fn read(kind: &str, body: &[u8]) -> Result<Event, Error> {
    Ok(match kind {
        PROMPTED => {
            let record: Prompted<'_> = take(kind, body)?;
            let attachments = record.attachments.into_iter().map(|attached| {
                let name = attached.name.map(Cow::into_owned);
                let caption = attached.caption.map(Cow::into_owned);
                let known = Attachment::remembered(name, &attached.media_type, attached.bytes);
                known.map(|known| known.with_caption(caption)).ok_or_else(|| {
                    unreadable(kind, format_args!("an attachment of unknown type {:?}", attached.media_type))
                })
            });
            let thinking = record.thinking.map(|name| {
                Thinking::from_name(&name)
                    .ok_or_else(|| unreadable(kind, format_args!("unknown level of thinking {name:?}")))
            });
            Event::Prompted {
                content: record.content.into_owned(),
                owner: Owner::from_name(&record.owner),
                idempotency_key: record.key.map(Cow::into_owned),
                attachments: attachments.collect::<Result<_, _>>()?,
                manner: Manner {
                    thinking: thinking.transpose()?,
                    model: record.model.map(Cow::into_owned),
                    max_tokens: record.max_tokens,
                    lane: record.lane.map(|lane| lane.into_owned().into()),
                    timeout: record.timeout_ms.map(Duration::from_millis),
                },
            }
        }
        STARTED => Event::Started,
        TEXT | THOUGHT => {
            let of = if kind == TEXT { Streamed::Text } else { Streamed::Thought };
            of.event(Segment::read(of, Seq::default(), Timestamp::default(), body)?.into_text())
        }
        SEALED => {
            let record: Sealed<'_> = take(kind, body)?;
            let seals = record.seals.into_iter().map(|sealing| Seal {
                thought_bytes: sealing.thought,
                text_bytes: sealing.text,
                proof: match (sealing.signature, sealing.redacted) {
                    (Some(proof), _) => Proof::Signature(proof.into_owned()),
                    (None, Some(proof)) => Proof::Redacted(proof.into_owned()),
                    (None, None) => Proof::Bare,
                },
            });
            Event::Sealed(seals.collect())
        }
        TOOL_CALLED => {
            let record: ToolCalled<'_> = take(kind, body)?;
            Event::ToolCalled(ToolCall {
                id: CallId::new(record.id),
                name: PluginName::new(record.name),
                input: serde_json::from_str(record.input.get()).map_err(|e| unreadable(kind, e))?,
            })
        }
        APPROVAL_ASKED => {
            let record: ApprovalAsked<'_> = take(kind, body)?;
            let (id, name) = (CallId::new(record.id), PluginName::new(record.name));
            let input = serde_json::from_str(record.input.get()).map_err(|e| unreadable(kind, e))?;
            Event::ApprovalAsked(Asked {
                call: ToolCall { id, name, input },
                asked: Timestamp::from_millis(record.asked),
                deadline: Timestamp::from_millis(record.deadline),
            })
        }
        APPROVAL_DECIDED => {
            let record: ApprovalDecided<'_> = take(kind, body)?;
            let input = record.input.map(|input| serde_json::from_str(input.get()));
            let input = input.transpose().map_err(|e| unreadable(kind, e))?;
            let decision = match &*record.decision {
                "approved" => Decision::Approved { input },
                "denied" => Decision::Denied { reason: record.reason.map(Cow::into_owned) },
                "timed_out" => Decision::TimedOut,
                "withdrawn" => Decision::Withdrawn,
                other => return Err(unreadable(kind, format_args!("unknown decision {other:?}"))),
            };
            Event::ApprovalDecided(Decided {
                call: CallId::new(record.call),
                tool: PluginName::new(record.tool),
                decision,
                by: record.by.map(Cow::into_owned),
            })
        }
        TOOL_RETURNED => {
            let record: ToolReturned<'_> = take(kind, body)?;
            Event::ToolReturned(ToolResult {
                call: CallId::new(record.call),
                content: record.content.into_owned(),
                is_error: record.is_error,
            })
        }
        STEP_ENDED => Event::StepEnded { usage: usage(&take(kind, body)?) },
        RESTARTED => Event::Restarted,
        ENDED => {
            let record: Ended<'_> = take(kind, body)?;
            let outcome = match (&*record.outcome, record.error) {
                ("completed", _) => Outcome::Completed,
                ("aborted", _) => Outcome::Aborted(match record.cause.as_deref() {
                    Some("stopped") => Cause::Stopped,
                    Some("timed_out") => Cause::TimedOut,
                    // What a newer one may say of it is no reason not to read its end.
                    _ => Cause::Asked,
                }),
                ("failed", Some(failure)) => Outcome::Failed(error(failure)?),
                (other, _) => return Err(unreadable(kind, format_args!("unknown outcome {other:?}"))),
            };
            Event::Ended { outcome, usage: usage(&record.usage) }
        }
        CLEARED => {
            let record: Cleared = take(kind, body)?;
            Event::Cleared(match record.up_to {
                Some(seq) => Forgotten::UpTo(Seq(seq)),
                None if record.anew => Forgotten::Conversation,
                None => Forgotten::Past,
            })
        }
        INJECTED => {
            let record: Injected<'_> = take(kind, body)?;
            Event::Injected { content: record.content.into_owned() }
        }
        CONFIGURED => Event::Configured(Box::new(read_settings(body)?)),
        DELETED => Event::Deleted,
        other => {
            return Err(unreadable(
                "record",
                format_args!("unknown kind {other:?}; a newer clawmux wrote it, use that one"),
            ));
        }
    })
}

fn raw(value: &Value) -> Cow<'static, RawValue> {
    Cow::Owned(RawValue::from_string(value.to_string()).expect("a JSON value prints as JSON"))
}

fn put(body: &mut Vec<u8>, record: &impl Serialize) {
    serde_json::to_writer(body, record).expect("records of strings and numbers always serialize");
}

fn take<'a, T: Deserialize<'a>>(kind: &str, body: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|e| unreadable(kind, e))
}

fn tokens(usage: Usage) -> Tokens {
    Tokens { input: usage.input_tokens, output: usage.output_tokens }
}

fn usage(tokens: &Tokens) -> Usage {
    Usage { input_tokens: tokens.input, output_tokens: tokens.output }
}

fn failure(error: &Error) -> Failure<'_> {
    let mut failure = Failure {
        code: error.code.name().into(),
        message: (&error.message).into(),
        missing_scope: None,
        retry_after_ms: None,
        limit: None,
        key_refused: false,
    };
    match &error.detail {
        // About who is let in, or about files: no run fails with that.
        None | Some(Detail::Credential(_) | Detail::Pairing(_) | Detail::Received(_)) => {}
        Some(Detail::KeyRefused) => failure.key_refused = true,
        Some(Detail::MissingScope(scope)) => failure.missing_scope = Some(scope.name().into()),
        Some(Detail::RetryAfter(wait)) => {
            failure.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        }
        Some(Detail::Limit { name, limit }) => failure.limit = Some(((*name).into(), *limit)),
    }
    failure
}

fn error(failure: Failure<'_>) -> Result<Error, Error> {
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
        failure.limit.and_then(|(name, limit)| Some(Detail::Limit { name: limit_name(&name)?, limit }))
    };
    Ok(Error { code, message: failure.message.into_owned(), detail })
}

/// The names of limits a failed run can meet. Another name reads back without its detail; the
/// message says it anyway.
const LIMIT_NAMES: [&str; 14] = [
    "session",
    "daily",
    "monthly",
    "queue",
    "requests_burst",
    "requests_per_second",
    "subscriptions",
    "agents",
    "agent_depth",
    "max_tokens",
    "context_tokens",
    "max_payload_bytes",
    "max_buffered_bytes",
    "file_quota_bytes",
];

fn limit_name(name: &str) -> Option<&'static str> {
    LIMIT_NAMES.into_iter().find(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn failed() -> impl Strategy<Value = Error> {
        let detail = prop_oneof![
            Just(None),
            proptest::sample::select(Scope::ALL.to_vec()).prop_map(|s| Some(Detail::MissingScope(s))),
            Just(Some(Detail::KeyRefused)),
            any::<u64>().prop_map(|ms| Some(Detail::RetryAfter(Duration::from_millis(ms)))),
            (proptest::sample::select(LIMIT_NAMES.to_vec()), any::<u64>())
                .prop_map(|(name, limit)| Some(Detail::Limit { name, limit })),
        ];
        (proptest::sample::select(ErrorCode::ALL.to_vec()), any::<String>(), detail)
            .prop_map(|(code, message, detail)| Error { code, message, detail })
    }

    fn settings() -> impl Strategy<Value = Settings> {
        let thinking = proptest::option::of(proptest::sample::select(Thinking::ALL.to_vec()));
        let display = proptest::collection::btree_map(any::<String>(), json(), 0..3);
        let texts = proptest::array::uniform3(any::<Option<String>>());
        (texts, thinking, proptest::option::of(assignment()), display).prop_map(
            |([label, model, closed], thinking, assignment, display)| Settings {
                label,
                model,
                thinking,
                assignment: assignment.map(Box::new),
                closed,
                display,
            },
        )
    }

    fn assignment() -> impl Strategy<Value = Assignment> {
        (proptest::array::uniform5(any::<String>()), json()).prop_map(
            |([lead, kind, task, description, priority], metadata)| Assignment {
                lead,
                kind,
                task,
                description,
                priority,
                metadata,
            },
        )
    }

    fn attachments() -> impl Strategy<Value = Vec<Attachment>> {
        let media_type = proptest::sample::select(vec!["image/webp", "text/csv", "video/x-unheard"]);
        let caption = proptest::option::of("[a-zİ]{1,9}");
        let one = (any::<Option<String>>(), media_type, any::<usize>(), caption).prop_filter_map(
            "a type that is known",
            |(name, media_type, bytes, caption)| {
                Some(Attachment::remembered(name, media_type, bytes)?.with_caption(caption))
            },
        );
        proptest::collection::vec(one, 0..3)
    }

    fn manner() -> impl Strategy<Value = Manner> {
        let thinking = proptest::option::of(proptest::sample::select(Thinking::ALL.to_vec()));
        let lane = proptest::option::of("[a-z]{1,4}");
        let timeout = proptest::option::of(any::<u64>().prop_map(Duration::from_millis));
        (thinking, any::<Option<String>>(), any::<Option<u32>>(), lane, timeout).prop_map(
            |(thinking, model, max_tokens, lane, timeout)| Manner {
                thinking,
                model,
                max_tokens,
                lane: lane.map(Into::into),
                timeout,
            },
        )
    }

    fn seal() -> impl Strategy<Value = Seal> {
        let proof = prop_oneof![
            Just(Proof::Bare),
            any::<String>().prop_map(Proof::Signature),
            any::<String>().prop_map(Proof::Redacted),
        ];
        (any::<usize>(), any::<usize>(), proof).prop_map(|(thought_bytes, text_bytes, proof)| Seal {
            thought_bytes,
            text_bytes,
            proof,
        })
    }

    fn decision() -> impl Strategy<Value = Decision> {
        let object = proptest::collection::btree_map(any::<String>(), json(), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()));
        prop_oneof![
            proptest::option::of(object).prop_map(|input| Decision::Approved { input }),
            any::<Option<String>>().prop_map(|reason| Decision::Denied { reason }),
            Just(Decision::TimedOut),
            Just(Decision::Withdrawn),
        ]
    }

    fn event() -> impl Strategy<Value = Event> {
        let usage = || {
            (any::<u64>(), any::<u64>())
                .prop_map(|(input_tokens, output_tokens)| Usage { input_tokens, output_tokens })
        };
        prop_oneof![
            (any::<String>(), "[a-z]{0,4}", any::<Option<String>>(), attachments(), manner()).prop_map(
                |(content, owner, idempotency_key, attachments, manner)| {
                    let owner = Owner::from_name(&owner);
                    Event::Prompted { content, owner, idempotency_key, attachments, manner }
                }
            ),
            Just(Event::Started),
            any::<String>().prop_map(Event::Text),
            any::<String>().prop_map(Event::Thought),
            proptest::collection::vec(seal(), 0..3).prop_map(Event::Sealed),
            (any::<String>(), any::<String>(), json()).prop_map(|(id, name, input)| Event::ToolCalled(
                ToolCall { id: CallId::new(id), name: PluginName::new(name), input }
            )),
            (any::<String>(), any::<String>(), json(), any::<u64>(), any::<u64>()).prop_map(
                |(id, name, input, asked, deadline)| Event::ApprovalAsked(Asked {
                    call: ToolCall { id: CallId::new(id), name: PluginName::new(name), input },
                    asked: Timestamp::from_millis(asked),
                    deadline: Timestamp::from_millis(deadline),
                })
            ),
            (any::<String>(), any::<String>(), decision(), any::<Option<String>>()).prop_map(
                |(call, tool, decision, by)| {
                    let (call, tool) = (CallId::new(call), PluginName::new(tool));
                    Event::ApprovalDecided(Decided { call, tool, decision, by })
                }
            ),
            (any::<String>(), any::<String>(), any::<bool>()).prop_map(|(call, content, is_error)| {
                Event::ToolReturned(ToolResult { call: CallId::new(call), content, is_error })
            }),
            usage().prop_map(|usage| Event::StepEnded { usage }),
            Just(Event::Restarted),
            (
                prop_oneof![
                    Just(Outcome::Completed),
                    proptest::sample::select(vec![Cause::Asked, Cause::Stopped, Cause::TimedOut])
                        .prop_map(Outcome::Aborted),
                    failed().prop_map(Outcome::Failed)
                ],
                usage()
            )
                .prop_map(|(outcome, usage)| Event::Ended { outcome, usage }),
            prop_oneof![
                Just(Forgotten::Past),
                Just(Forgotten::Conversation),
                any::<u64>().prop_map(|seq| Forgotten::UpTo(Seq(seq)))
            ]
            .prop_map(Event::Cleared),
            any::<String>().prop_map(|content| Event::Injected { content }),
            settings().prop_map(|settings| Event::Configured(Box::new(settings))),
            Just(Event::Deleted),
        ]
    }

    #[test]
    fn unknown_kinds_are_refused_by_name_and_unknown_fields_passed_over() {
        let error = read("dreamed", b"{}").unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(error.message.contains("dreamed"), "{error}");
        let body = br#"{"input":1,"output":2,"cached":3}"#;
        let usage = Usage { input_tokens: 1, output_tokens: 2 };
        assert_eq!(read(STEP_ENDED, body).unwrap(), Event::StepEnded { usage });
    }

    #[test]
    fn what_forgot_all_before_there_was_a_choice_still_does() {
        assert_eq!(read(CLEARED, b"{}").unwrap(), Event::Cleared(Forgotten::Past));
    }

    #[test]
    fn a_prompt_of_the_released_format_reads_and_one_without_more_is_written_as_then() {
        let body = br#"{"content":"hi","owner":"ci","key":"k"}"#;
        let event = read(PROMPTED, body).unwrap();
        let mut written = Vec::new();
        write(&event, &mut written);
        assert_eq!(std::str::from_utf8(&written).unwrap(), std::str::from_utf8(body).unwrap());
    }

    #[test]
    fn what_a_newer_version_attached_is_refused_by_name() {
        for (body, what) in [
            (&br#"{"content":"","attachments":[{"type":"hologram","bytes":1}]}"#[..], "hologram"),
            (br#"{"content":"","thinking":"forever"}"#, "forever"),
        ] {
            assert!(read(PROMPTED, body).unwrap_err().message.contains(what));
        }
    }

    #[test]
    fn a_tool_input_as_deep_as_the_parser_allows_reads_back() {
        let text = format!("{}{}", "[".repeat(127), "]".repeat(127));
        let input: Value = serde_json::from_str(&text).unwrap();
        let event = Event::ToolCalled(ToolCall { id: "c".into(), name: "echo".into(), input });
        let mut body = Vec::new();
        let kind = write(&event, &mut body);
        assert_eq!(read(kind, &body).unwrap(), event);
    }

    #[test]
    fn a_limit_of_another_name_keeps_its_message() {
        let detail = Some(Detail::Limit { name: "patience", limit: 3 });
        let failed = Error { code: ErrorCode::RateLimited, message: "out of patience".into(), detail };
        let event = Event::Ended { outcome: Outcome::Failed(failed.clone()), usage: Usage::default() };
        let mut body = Vec::new();
        let kind = write(&event, &mut body);
        let outcome = Outcome::Failed(Error { detail: None, ..failed });
        assert_eq!(read(kind, &body).unwrap(), Event::Ended { outcome, usage: Usage::default() });
    }

    proptest! {
        #[test]
        fn every_event_reads_back(event in event()) {
            let mut body = Vec::new();
            let kind = write(&event, &mut body);
            prop_assert_eq!(read(kind, &body).unwrap(), event);
        }

        #[test]
        fn no_bytes_panic(kind in 0usize..14, body in any::<Vec<u8>>()) {
            let kinds = [PROMPTED, STARTED, TEXT, TOOL_CALLED, TOOL_RETURNED, STEP_ENDED, RESTARTED, ENDED, CLEARED, INJECTED, CONFIGURED, THOUGHT, SEALED, ""];
            let _ = read(kinds[kind], &body);
        }

        #[test]
        fn damaged_bodies_never_panic(event in event(), at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
            let mut body = Vec::new();
            let kind = write(&event, &mut body);
            let at = at.index(body.len());
            body[at] = byte;
            let _ = read(kind, &body);
        }
    }
}
