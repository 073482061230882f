//! An event of a session, as JSON.
//!
//! `{"seq", "first_seq"?, "at_ms", "run"?, "event", ..}`: `first_seq` is there where the event covers
//! several numbers, and the rest depends on `event`.
//!
//! | `event` | besides |
//! |---|---|
//! | `prompt` | `content`, `owner` (null: the operators), `idempotency_key`?, `attachments`? (`name`, `type`, `bytes` of each), `thinking`? |
//! | `start` | |
//! | `text` | `text` |
//! | `thought` | `text` |
//! | `recalled` | |
//! | `sealed` | `thoughts` (how many go back to the provider) |
//! | `tool_call` | `call`, `tool`, `input` |
//! | `approval_asked` | `approval`, `call`, `tool`, `input`, `deadline_ms` |
//! | `approval_decided` | `call`, `tool`, `decision` (`approved`, `denied`, `timed_out`, `withdrawn`), `input`?, `reason`?, `by`? |
//! | `tool_result` | `call`, `content`, `is_error` |
//! | `step_end` | `input_tokens`, `output_tokens`, `cache_read_tokens`, `cache_write_tokens` |
//! | `restart` | |
//! | `end` | `outcome` (`completed`, `aborted`, `failed`), `error`? (`code`, `message`), tokens as `step_end` |
//! | `message` | `content` |
//! | `clear` | |
//! | `reset` | |
//! | `compact` | `up_to_seq` |
//! | `compacted` | `up_to_seq` |
//! | `configure` | `label`, `model`, `thinking`, `display` |
//! | `delete` | |

use crate::conversation::approval::{ApprovalRequest, Decision};
use crate::conversation::event::{Event, Forgotten, Logged, Outcome};
use crate::ids::{ApprovalId, Owner, RunId};
use crate::prompt::attachment::Attachment;
use crate::prompt::thinking::Thinking;
use crate::provider::usage::Usage;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// The same as a line of an export, where what a prompt brought along is there as well: each of
/// `attachments` has `data`, in base64, where it has bytes of its own.
pub fn exported(logged: &Logged) -> Value {
    let mut line = to_json(logged);
    if let (Event::Prompted { attachments, .. }, Some(told)) =
        (&logged.event, line.get_mut("attachments").and_then(Value::as_array_mut))
    {
        for (attachment, told) in attachments.iter().zip(told).filter(|(a, _)| !a.data().is_empty()) {
            told["data"] = BASE64_STANDARD.encode(attachment.data()).into();
        }
    }
    line
}

/// It.
pub fn to_json(logged: &Logged) -> Value {
    let (name, mut object) = match &logged.event {
        Event::Prompted { content, owner, idempotency_key, attachments, run_options } => {
            let mut prompt = json!({ "content": content, "owner": owner_name(owner) });
            if let Some(key) = idempotency_key {
                prompt["idempotency_key"] = json!(key);
            }
            if !attachments.is_empty() {
                let told =
                    |a: &Attachment| json!({ "name": a.name(), "type": a.media_type(), "bytes": a.bytes() });
                prompt["attachments"] = attachments.iter().map(told).collect();
            }
            if let Some(thinking) = run_options.thinking {
                prompt["thinking"] = json!(thinking.name());
            }
            if let Some(model) = &run_options.model {
                prompt["model"] = json!(model);
            }
            if let Some(most) = run_options.max_tokens {
                prompt["max_tokens"] = json!(most);
            }
            ("prompt", prompt)
        }
        Event::Started => ("start", json!({})),
        Event::Text(text) => ("text", json!({ "text": text })),
        Event::Thought(text) => ("thought", json!({ "text": text })),
        Event::Recalled { .. } => ("recalled", json!({})),
        Event::Sealed(seals) => ("sealed", json!({ "thoughts": seals.len() })),
        Event::ToolCalled(call) => (
            "tool_call",
            json!({ "call": call.id.as_str(), "tool": call.name.as_str(), "input": call.input }),
        ),
        Event::ApprovalAsked(ApprovalRequest { call, deadline, .. }) => (
            "approval_asked",
            json!({
                "approval": logged.run.as_ref().map(|run| ApprovalId::of(run, &call.id).as_str().to_owned()),
                "call": call.id.as_str(),
                "tool": call.name.as_str(),
                "input": call.input,
                "deadline_ms": deadline.as_millis(),
            }),
        ),
        Event::ApprovalDecided(decided) => {
            let mut object = json!({ "call": decided.call.as_str(), "tool": decided.tool.as_str() });
            object["decision"] = json!(decision_name(&decided.decision));
            match &decided.decision {
                Decision::Approved { input: Some(input) } => object["input"] = input.clone(),
                Decision::Denied { reason: Some(reason) } => object["reason"] = json!(reason),
                _ => {}
            }
            if let Some(by) = &decided.by {
                object["by"] = json!(by);
            }
            ("approval_decided", object)
        }
        Event::ToolReturned(result) => (
            "tool_result",
            json!({ "call": result.call.as_str(), "content": result.content, "is_error": result.is_error }),
        ),
        Event::StepEnded { usage } => ("step_end", tokens(*usage)),
        Event::Noticed(notice) => {
            ("notice", json!({ "kind": notice.kind.name(), "message": notice.message }))
        }
        Event::Restarted => ("restart", json!({})),
        Event::Ended { outcome, usage } => {
            let mut end = tokens(*usage);
            end["outcome"] = json!(match outcome {
                Outcome::Completed => "completed",
                Outcome::Incomplete(why) => {
                    end["why"] = json!(why.name());
                    "incomplete"
                }
                Outcome::Aborted(_) => "aborted",
                Outcome::Failed(error) => {
                    end["error"] = json!({ "code": error.code.name(), "message": error.message });
                    "failed"
                }
            });
            ("end", end)
        }
        Event::Injected { content } => ("message", json!({ "content": content })),
        Event::Cleared(Forgotten::Past) => ("clear", json!({})),
        Event::Cleared(Forgotten::Conversation) => ("reset", json!({})),
        Event::Cleared(Forgotten::UpTo(seq)) => ("compact", json!({ "up_to_seq": seq.0 })),
        Event::Compacted(compacted) => ("compacted", json!({ "up_to_seq": compacted.up_to.0 })),
        Event::Configured(settings) => (
            "configure",
            json!({
                "label": settings.label,
                "model": settings.model,
                "thinking": settings.thinking.map(Thinking::name),
                "display": settings.display,
            }),
        ),
        Event::Deleted => ("delete", json!({})),
    };
    object["event"] = json!(name);
    object["seq"] = json!(logged.seq.0);
    if logged.first_seq != logged.seq {
        object["first_seq"] = json!(logged.first_seq.0);
    }
    object["at_ms"] = json!(logged.at.as_millis());
    if let Some(run) = &logged.run {
        object["run"] = json!(RunId::as_str(run));
    }
    object
}

/// Whose something is; null where it is the operators'.
pub fn owner_name(owner: &Owner) -> Value {
    match owner {
        Owner::Admins => Value::Null,
        Owner::Credential(name) => json!(&**name),
    }
}

/// What was decided, in a word.
pub(super) const fn decision_name(decision: &Decision) -> &'static str {
    match decision {
        Decision::Approved { .. } => "approved",
        Decision::Denied { .. } => "denied",
        Decision::TimedOut => "timed_out",
        Decision::Withdrawn => "withdrawn",
    }
}

fn tokens(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::approval::Decided;
    use crate::conversation::event::Compacted;
    use crate::error::ErrorCode;
    use crate::ids::{CallId, PluginName, Seq};
    use crate::prompt::thinking::Thinking;
    use crate::provider::notice::{Notice, NoticeKind};
    use crate::time::Timestamp;
    use crate::tools::call::{ToolCall, ToolResult};

    fn json_of(event: Event) -> Value {
        to_json(&Logged { first_seq: Seq(3), seq: Seq(3), run: None, at: Timestamp::from_millis(7), event })
    }

    #[test]
    fn every_event_has_its_words() {
        let usage = Usage::new(1, 2);
        let failed = Outcome::Failed(ErrorCode::Provider.error("no"));
        let call = ToolCall { id: CallId::new("c"), name: PluginName::new("echo"), input: json!({"a": 1}) };
        let result = ToolResult { call: CallId::new("c"), content: "x".into(), is_error: true };
        let owner = Owner::from_name("ci");
        let (at, tool) = (Timestamp::from_millis(9), PluginName::new("rm"));
        let wanted = ToolCall { id: CallId::new("c"), name: tool.clone(), input: json!({}) };
        let decided = |decision, by: Option<&str>| {
            let (call, tool, by) = (CallId::new("c"), tool.clone(), by.map(str::to_owned));
            Event::ApprovalDecided(Decided { call, tool, decision, by })
        };
        for (event, expected) in [
            (
                Event::prompted("hi", owner, Some("k".into())),
                json!({"event": "prompt", "content": "hi", "owner": "ci", "idempotency_key": "k"}),
            ),
            (
                Event::prompted("hi", Owner::Admins, None),
                json!({"event": "prompt", "content": "hi", "owner": null}),
            ),
            (Event::Started, json!({"event": "start"})),
            (
                Event::Prompted {
                    content: "look".into(),
                    owner: Owner::Admins,
                    idempotency_key: None,
                    attachments: vec![Attachment::new(Some("a.txt"), None, "x".into()).expect("text")],
                    run_options: Some(Thinking::Low).into(),
                },
                json!({"event": "prompt", "content": "look", "owner": null, "thinking": "low",
                       "attachments": [{"name": "a.txt", "type": "text/plain", "bytes": 1}]}),
            ),
            (Event::Text("x".into()), json!({"event": "text", "text": "x"})),
            (Event::Thought("x".into()), json!({"event": "thought", "text": "x"})),
            (Event::Sealed(vec![]), json!({"event": "sealed", "thoughts": 0})),
            (
                Event::ToolCalled(call),
                json!({"event": "tool_call", "call": "c", "tool": "echo", "input": {"a": 1}}),
            ),
            (
                Event::ApprovalAsked(ApprovalRequest { call: wanted, asked: at, deadline: at }),
                json!({"event": "approval_asked", "approval": null, "call": "c", "tool": "rm", "input": {},
                       "deadline_ms": 9}),
            ),
            (
                decided(Decision::Approved { input: Some(json!({"b": 2})) }, Some("ada")),
                json!({"event": "approval_decided", "call": "c", "tool": "rm", "decision": "approved",
                       "input": {"b": 2}, "by": "ada"}),
            ),
            (
                decided(Decision::Denied { reason: Some("no".into()) }, Some("ada")),
                json!({"event": "approval_decided", "call": "c", "tool": "rm", "decision": "denied",
                       "reason": "no", "by": "ada"}),
            ),
            (
                decided(Decision::TimedOut, None),
                json!({"event": "approval_decided", "call": "c", "tool": "rm", "decision": "timed_out"}),
            ),
            (
                Event::ToolReturned(result),
                json!({"event": "tool_result", "call": "c", "content": "x", "is_error": true}),
            ),
            (
                Event::StepEnded { usage },
                json!({"event": "step_end", "input_tokens": 1, "output_tokens": 2,
                       "cache_read_tokens": 0, "cache_write_tokens": 0}),
            ),
            (
                Event::Noticed(Notice::new(NoticeKind::Retrying, "it is asked again in 2 s")),
                json!({"event": "notice", "kind": "retrying", "message": "it is asked again in 2 s"}),
            ),
            (Event::Restarted, json!({"event": "restart"})),
            (
                Event::Ended { outcome: failed, usage },
                json!({"event": "end", "outcome": "failed", "error": {"code": "provider", "message": "no"},
                       "input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 0, "cache_write_tokens": 0}),
            ),
            (Event::Recalled { notes: "tea".into() }, json!({"event": "recalled"})),
            (
                Event::Compacted(Compacted { up_to: Seq(7), named: Seq(0), summary: "tea".into() }),
                json!({"event": "compacted", "up_to_seq": 7}),
            ),
            (Event::Cleared(Forgotten::Past), json!({"event": "clear"})),
            (Event::Cleared(Forgotten::UpTo(Seq(7))), json!({"event": "compact", "up_to_seq": 7})),
        ] {
            let mut expected = expected;
            expected["seq"] = json!(3);
            expected["at_ms"] = json!(7);
            assert_eq!(json_of(event), expected);
        }
    }

    #[test]
    fn a_range_of_numbers_is_told() {
        let run = Some(RunId::new("r"));
        let event = Event::Text("x".into());
        let told = to_json(&Logged { first_seq: Seq(3), seq: Seq(9), run, at: Timestamp::default(), event });
        assert_eq!((&told["first_seq"], &told["seq"], &told["run"]), (&json!(3), &json!(9), &json!("r")));
    }
}
