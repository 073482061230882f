//! An event as kind and body, and back.

mod shape;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::segment::Segment;
use super::unreadable;
use crate::conversation::approval::{ApprovalRequest, Decided, Decision};
use crate::conversation::event::{Cause, Compacted, Event, Forgotten, Incomplete, Outcome, Streamed};
use crate::error::Error;
use crate::ids::{CallId, Owner, PluginName, Seq};
use crate::prompt::answer_to::AnswerTo;
use crate::prompt::attachment::Attachment;
use crate::prompt::run_options::RunOptions;
use crate::prompt::settings::{Assignment, Settings};
use crate::prompt::thinking::Thinking;
use crate::provider::notice::{Notice, NoticeKind};
use crate::provider::thought::{SignatureData, ThoughtSignature};
use crate::time::Timestamp;
use crate::tools::call::{ToolCall, ToolResult};
use shape::{
    Answering, ApprovalAsked, ApprovalDecided, Assigned, Attached, Cleared, Compaction, Configured, Ended,
    Injected, Noticed, Prompted, Recalled, Sealed, Sealing, ToolCalled, ToolReturned, error, failure, tokens,
    usage,
};

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
const RECALLED: &str = "recalled";
const COMPACTED: &str = "compacted";
/// The kind of [`Event::Injected`].
pub const INJECTED: &str = "injected";
const CONFIGURED: &str = "configured";
const DELETED: &str = "deleted";
const SEALED: &str = "sealed";
const NOTICED: &str = "noticed";
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

/// Writes the event's body to the end of `body` and says its kind.
///
/// Of attachments it says what they are; their data is kept beside the record.
///
/// Of an error's detail everything comes back but the fraction of a millisecond of a wait.
pub fn write(event: &Event, body: &mut Vec<u8>) -> &'static str {
    match event {
        Event::Prompted { content, owner, idempotency_key, attachments, run_options } => {
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
                thinking: run_options.thinking.map(|level| level.name().into()),
                model: run_options.model.as_deref().map(Cow::Borrowed),
                max_tokens: run_options.max_tokens,
                lane: run_options.lane.as_ref().map(|lane| lane.as_str().into()),
                timeout_ms: run_options
                    .timeout
                    .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
                answer_to: run_options.answer_to.as_deref().map(|to| Answering {
                    channel: (&*to.channel).into(),
                    conversation: (&*to.conversation).into(),
                    address: (&*to.address).into(),
                }),
            };
            put(body, &prompted);
            PROMPTED
        }
        Event::Started => {
            body.extend_from_slice(b"{}");
            STARTED
        }
        Event::Recalled { notes } => {
            put(body, &Recalled { notes: notes.into() });
            RECALLED
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
                let (thought, text) = (seal.thought_bytes, seal.text_bytes);
                let sealing = Sealing { thought, text, ..Sealing::default() };
                match &seal.proof {
                    SignatureData::Bare => sealing,
                    SignatureData::Signature(proof) => Sealing { signature: Some(proof.into()), ..sealing },
                    SignatureData::Redacted(proof) => Sealing { redacted: Some(proof.into()), ..sealing },
                    SignatureData::Encrypted { id, content } => {
                        Sealing { encrypted: Some(content.into()), id: Some(id.into()), ..sealing }
                    }
                    SignatureData::OfCall { nth, signature } => {
                        Sealing { signature: Some(signature.into()), call: Some(*nth), ..sealing }
                    }
                }
            });
            put(body, &Sealed { seals: seals.collect() });
            SEALED
        }
        Event::Noticed(notice) => {
            put(body, &Noticed { kind: notice.kind.name().into(), message: (&notice.message).into() });
            NOTICED
        }
        Event::ToolCalled(call) => {
            let (id, name) = (call.id.as_str().into(), call.name.as_str().into());
            put(body, &ToolCalled { id, name, input: raw(&call.input) });
            TOOL_CALLED
        }
        Event::ApprovalAsked(ApprovalRequest { call, asked, deadline }) => {
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
                Outcome::Incomplete(why) => ("incomplete", Some(why.name().into()), None),
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
        Event::Compacted(Compacted { up_to, named, summary }) => {
            put(body, &Compaction { up_to: up_to.0, named: named.0, summary: summary.into() });
            COMPACTED
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

/// Writes what a session is set to, as its event log and its row in lists have it.
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
    let allowed = settings.allowed.iter().map(|tool| Cow::Borrowed(tool.as_str())).collect();
    put(body, &Configured { label, model, thinking, assignment, closed, allowed, display });
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
        allowed: record.allowed.into_iter().map(PluginName::new).collect(),
        display: record.display,
    })
}

/// An error as it stands in event logs. Of what is about who is let in, or about files, the detail is left out.
pub(crate) fn failure_to_json(error: &Error) -> Value {
    serde_json::to_value(failure(error)).unwrap_or_default()
}

/// The error that this was made of.
///
/// # Errors
/// `Internal` where it is none.
pub(crate) fn failure_from_json(json: &Value) -> Result<Error, Error> {
    error(Deserialize::deserialize(json).map_err(|why| unreadable(ENDED, why))?)
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
                run_options: RunOptions {
                    thinking: thinking.transpose()?,
                    model: record.model.map(Cow::into_owned),
                    max_tokens: record.max_tokens,
                    lane: record.lane.map(|lane| lane.into_owned().into()),
                    timeout: record.timeout_ms.map(Duration::from_millis),
                    answer_to: record.answer_to.map(|to| {
                        Arc::new(AnswerTo {
                            channel: to.channel.into_owned(),
                            conversation: to.conversation.into_owned(),
                            address: to.address.into_owned(),
                        })
                    }),
                },
            }
        }
        STARTED => Event::Started,
        RECALLED => {
            let record: Recalled<'_> = take(kind, body)?;
            Event::Recalled { notes: record.notes.into_owned() }
        }
        COMPACTED => {
            let record: Compaction<'_> = take(kind, body)?;
            let (up_to, named) = (Seq(record.up_to), Seq(record.named));
            Event::Compacted(Compacted { up_to, named, summary: record.summary.into_owned() })
        }
        TEXT | THOUGHT => {
            let of = if kind == TEXT { Streamed::Text } else { Streamed::Thought };
            of.event(Segment::read(of, Seq::default(), Timestamp::default(), body)?.into_text())
        }
        SEALED => {
            let record: Sealed<'_> = take(kind, body)?;
            let seals = record.seals.into_iter().map(|sealing| ThoughtSignature {
                thought_bytes: sealing.thought,
                text_bytes: sealing.text,
                proof: match (sealing.signature, sealing.call, sealing.redacted, sealing.encrypted) {
                    (Some(signature), Some(nth), ..) => {
                        SignatureData::OfCall { nth, signature: signature.into_owned() }
                    }
                    (Some(proof), ..) => SignatureData::Signature(proof.into_owned()),
                    (None, _, Some(proof), _) => SignatureData::Redacted(proof.into_owned()),
                    (None, _, None, Some(content)) => SignatureData::Encrypted {
                        id: sealing.id.unwrap_or_default().into_owned(),
                        content: content.into_owned(),
                    },
                    (None, _, None, None) => SignatureData::Bare,
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
            Event::ApprovalAsked(ApprovalRequest {
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
        NOTICED => {
            let record: Noticed<'_> = take(kind, body)?;
            // Of a kind that a newer one knows: it can be shown all the same.
            let kind = NoticeKind::from_name(&record.kind).unwrap_or(NoticeKind::Reduced);
            Event::Noticed(Notice { kind, message: record.message.into_owned() })
        }
        STEP_ENDED => Event::StepEnded { usage: usage(&take(kind, body)?) },
        RESTARTED => Event::Restarted,
        ENDED => {
            let record: Ended<'_> = take(kind, body)?;
            let outcome = match (&*record.outcome, record.error) {
                ("completed", _) => Outcome::Completed,
                ("incomplete", _) => {
                    let why = record.cause.as_deref().and_then(Incomplete::from_name);
                    // What a newer one may say of it is no reason not to read its end.
                    why.map_or(Outcome::Completed, Outcome::Incomplete)
                }
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
