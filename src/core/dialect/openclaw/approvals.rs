//! Tool calls that wait for approval: `exec.approval.list`, `get` and `resolve`, and the events
//! `exec.approval.requested` and `resolved`, for those who have `operator.approvals`.
//!
//! The protocol knows approvals of shell commands; a tool call is shown as one: its tool and its input.
//!
//! Deliberately absent: `exec.approval.request`, by which a client has its own commands approved;
//! `allow-always`, which would have to change the configuration and is refused by name; and what is
//! about hosts and folders, which tools have none of.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request, keys};
use crate::conversation::approval::{
    Decide, Decided, Decision, GetApproval, ListApprovals, News, PastApprovals, PendingCall, Verdict,
};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::ids::{ApprovalId, Owner};
use crate::request::ask::Ask;
use crate::scope::Scope;

/// What can be decided.
const DECISIONS: [&str; 3] = ["allow-once", "allow-always", "deny"];

/// How many characters of a call are shown in short.
const PREVIEW_CHARS: usize = 160;

#[derive(Deserialize)]
struct ApprovalParams {
    id: String,
}

#[derive(Deserialize)]
struct Resolve {
    id: String,
    decision: String,
}

/// Asks about approvals; `then` makes the payload of the reply.
fn ask<C: Ask + 'static>(question: C, then: impl FnOnce(C::Reply) -> Value + 'static) -> Answered {
    Call::ask_either(question, |_, reply, _| Ok(Call::Answer(then(reply.map_err(in_their_words)?))))
}

/// Clients take an approval off their lists by these words.
fn in_their_words(error: Error) -> Error {
    let words = match error.code {
        ErrorCode::NotFound => "unknown or expired approval id",
        ErrorCode::Conflict => "already resolved: unknown or expired approval id",
        _ => return error,
    };
    Error { message: words.into(), ..error }
}

/// `exec.approval.list`
pub(super) fn list(dialect: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let who = dialect.owner.clone();
    ask(ListApprovals, move |list| list.iter().map(|pending| requested(pending, &who)).collect())
}

/// How many decisions are told to who does not say, and at most.
const PAST: usize = 50;
const PAST_MAX: usize = 100;

/// `approval.history`: what was decided since the daemon started, as far as it is kept.
pub(super) fn history(dialect: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    struct HistoryParams {
        limit: Option<usize>,
        kind: Option<String>,
    }
    let asked: HistoryParams = request.read()?;
    if asked.kind.is_some_and(|kind| kind != "exec") {
        return Ok(Call::Answer(json!({ "items": [] })));
    }
    let limit = asked.limit.unwrap_or(PAST).clamp(1, PAST_MAX);
    let who = dialect.owner.clone();
    ask(PastApprovals { limit }, move |past| {
        let items: Vec<_> = past.iter().filter_map(|news| past_call(news, &who)).collect();
        json!({ "items": items })
    })
}

/// A decision that was made, or that nobody made.
fn past_call(news: &News, who: &Owner) -> Option<Value> {
    let News::Resolved { pending, decided, at } = news else { return None };
    let (status, reason) = match decided.decision {
        Decision::Approved { .. } => ("allowed", "user"),
        Decision::Denied { .. } => ("denied", "user"),
        Decision::TimedOut => ("expired", "timeout"),
        Decision::Withdrawn => ("cancelled", "run-aborted"),
    };
    let short: String = command(pending).chars().take(PREVIEW_CHARS).collect();
    let mut item = json!({
        "id": pending.id.as_str(),
        "urlPath": format!("/approvals/{}", pending.id),
        "createdAtMs": pending.asked.asked.as_millis(),
        "expiresAtMs": pending.asked.deadline.as_millis(),
        "presentation": {
            "kind": "exec",
            "commandText": short,
            "agentId": &*pending.session.agent(),
            "allowedDecisions": DECISIONS,
        },
        "resolvedAtMs": at.as_millis(),
        "source": { "agentId": &*pending.session.agent(), "sessionKey": keys::write(&pending.session, who) },
        "status": status,
        "reason": reason,
    });
    if let Some(decision) = word(decided) {
        item["decision"] = decision.into();
    }
    if let Some(by) = decided.by.as_ref().filter(|by| !by.is_empty()) {
        item["resolver"] = json!({ "kind": "runtime", "id": by });
    }
    Some(item)
}

/// `exec.approval.get`
pub(super) fn get(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let ApprovalParams { id } = request.read()?;
    ask(GetApproval { id: ApprovalId::new(id) }, |pending| {
        let text = command(&pending);
        let short: String = text.chars().take(PREVIEW_CHARS).collect();
        json!({
            "id": pending.id.as_str(),
            "commandText": text,
            "commandPreview": if short == text { Value::Null } else { short.into() },
            "allowedDecisions": DECISIONS,
            "host": null,
            "nodeId": null,
            "agentId": pending.session.agent(),
            "expiresAtMs": pending.asked.deadline.as_millis(),
        })
    })
}

/// `exec.approval.resolve`
pub(super) fn resolve(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Resolve { id, decision } = request.read()?;
    let verdict = verdict(&decision).ok_or_else(|| {
        let word = clip(&decision);
        request.invalid(&format!("invalid decision {word:?}: it is allow-once, allow-always or deny"))
    })?;
    let id = ApprovalId::new(id);
    ask(Decide { id, session: None, verdict }, |_| json!({ "ok": true }))
}

/// What a client says of a call by one of [`DECISIONS`].
pub(super) fn verdict(word: &str) -> Option<Verdict> {
    match word {
        "allow-once" => Some(Verdict::Approve { input: None }),
        "allow-always" => Some(Verdict::ApproveForSession),
        "deny" => Some(Verdict::Deny { reason: None }),
        _ => None,
    }
}

/// A tool call as clients show commands.
pub(super) fn command(pending: &PendingCall) -> String {
    format!("{} {}", pending.asked.call.name, pending.asked.call.input)
}

fn requested(pending: &PendingCall, who: &Owner) -> Value {
    json!({
        "id": pending.id.as_str(),
        "request": {
            "command": command(pending),
            "cwd": null,
            "host": null,
            "security": null,
            "ask": "always",
            "agentId": pending.session.agent(),
            "resolvedPath": null,
            "sessionKey": keys::write(&pending.session, who),
            "runId": pending.run.as_str(),
            "allowedDecisions": DECISIONS,
        },
        "createdAtMs": pending.asked.asked.as_millis(),
        "expiresAtMs": pending.asked.deadline.as_millis(),
    })
}

/// The word for a decision; of one that nobody made there is none.
fn word(decided: &Decided) -> Option<&'static str> {
    match decided.decision {
        Decision::Approved { .. } => Some(DECISIONS[0]),
        Decision::Denied { .. } => Some(DECISIONS[2]),
        Decision::TimedOut | Decision::Withdrawn => None,
    }
}

impl OpenClaw {
    /// Tells of a call that waits, or does no longer.
    pub(super) fn tell_approval(&mut self, news: &News, turn: &mut Turn<'_>) {
        if !self.who.scopes.allows(Scope::Approve) {
            return;
        }
        match news {
            News::Requested(pending) => {
                self.emit("exec.approval.requested", &requested(pending, &self.owner).to_string(), turn);
            }
            News::Resolved { pending, decided, at } => {
                let resolved = json!({
                    "id": pending.id.as_str(),
                    "decision": word(decided),
                    "resolvedBy": decided.by,
                    "ts": at.as_millis(),
                });
                self.emit("exec.approval.resolved", &resolved.to_string(), turn);
            }
        }
    }
}
