//! Tool calls that wait for approval: `tool.request`, `tool.approve`, `tool.deny`, and what is told of
//! decisions.
//!
//! | in the log | told |
//! |---|---|
//! | `ApprovalAsked` | `stream.chunk` tool_use, `tool.request` |
//! | `ApprovalDecided`, approved | `tool.status` started, then running |
//! | else | `tool.status` failed, `tool.result` denied, timeout, or failed where the run ended first |
//!
//! A subscription that names `tool.request` is told at once of all calls that wait already and that it
//! is about, so who comes back finds what it has to decide. Of what may reach it both ways, in that
//! list and as an event, it is told once ([`Introduced`]).
//!
//! Who may decide for others without seeing their sessions is told of their calls and of nothing else
//! in them ([`WatchCalls`](crate::conversation::command::WatchCalls)).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::shape::{COUNT, Field, INTEGER_MAX, NAME, Shape, TEXT, optional, required};
use super::{Answered, Call, Calling, Request, Wundr};
use crate::conversation::approval::{
    ApprovalRequest, Decide, Decided, Decision, GetApproval, ListApprovals, PendingCall, Verdict, no_such,
};
use crate::conversation::event::{Event, Logged};
use crate::dialect::Turn;
use crate::ids::{ApprovalId, RunId};
use crate::time::Timestamp;

/// The event that asks for a decision.
pub(super) const TOOL_REQUEST: &str = "tool.request";

/// `tool.request`
pub(super) const REQUEST: &[Field] = &[
    required("sessionId", NAME, "the session"),
    required("promptId", NAME, "the prompt"),
    required("requestId", NAME, "the call: for tool.approve and tool.deny"),
    required("toolName", NAME, "the tool"),
    required("toolInput", Shape::AnyObject, "what it would be given"),
    required("requiresApproval", Shape::Flag, "true: it is not called before somebody approves it"),
    required(
        "approvalTimeoutMs",
        Shape::Integer(1, INTEGER_MAX),
        "in how long it counts as denied, from when this was asked or, where it waits already, from now",
    ),
    required("expiresAt", Shape::Time, "when it counts as denied"),
    optional("sessionSeq", COUNT, "its number in the session's log, where it is told as it happens"),
];

/// What `tool.approve` takes.
pub(super) const APPROVE: &[Field] = &[
    required("sessionId", NAME, "the session"),
    required("requestId", NAME, "the call, as in tool.request"),
    optional("modifiedInput", Shape::AnyObject, "what the tool is given in place of the model's input"),
];

/// What `tool.deny` takes.
pub(super) const DENY: &[Field] = &[
    required("sessionId", NAME, "the session"),
    required("requestId", NAME, "the call, as in tool.request"),
    optional("reason", TEXT, "why, as the model is told"),
];

/// What both answer, once the decision is in the log.
pub(super) const DECIDED: &[Field] = &[
    required("sessionId", NAME, "the session"),
    required("requestId", NAME, "the call"),
    required("toolName", NAME, "the tool"),
    required("status", Shape::OneOf(&["approved", "denied"]), "what was decided"),
];

/// What a subscription was told of calls that wait.
#[derive(Debug, Default)]
pub(super) struct Introduced {
    of: HashMap<String, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether the list of what waits is still to come.
    is_listing: bool,
    /// Told from the list or, while that is to come, as events.
    told: HashSet<ApprovalId>,
    /// Decided while the list is to come.
    decided: HashSet<ApprovalId>,
}

impl Introduced {
    /// The list was asked for.
    fn lists(&mut self, subscription: &str) {
        self.of.insert(subscription.to_owned(), Known { is_listing: true, ..Known::default() });
    }

    /// Which of these a subscription is to be told.
    fn listed(&mut self, subscription: &str, list: Vec<Arc<PendingCall>>) -> Vec<Arc<PendingCall>> {
        let Some(known) = self.of.get_mut(subscription) else { return Vec::new() };
        known.is_listing = false;
        let (told, decided) = (std::mem::take(&mut known.told), std::mem::take(&mut known.decided));
        let is_new =
            |pending: &Arc<PendingCall>| !told.contains(&pending.id) && !decided.contains(&pending.id);
        let new: Vec<_> = list.into_iter().filter(is_new).collect();
        known.told = new.iter().map(|pending| pending.id.clone()).collect();
        if known.told.is_empty() {
            self.of.remove(subscription);
        }
        new
    }

    /// Whether a subscription is to be told of a call by its event.
    pub(super) fn is_news(&mut self, subscription: &str, id: &ApprovalId) -> bool {
        let Some(known) = self.of.get_mut(subscription) else { return true };
        if known.is_listing { known.told.insert(id.clone()) } else { !known.told.remove(id) }
    }

    /// A call waits no longer.
    pub(super) fn decided(&mut self, id: &ApprovalId) {
        self.of.retain(|_, known| {
            known.told.remove(id);
            if known.is_listing {
                known.decided.insert(id.clone());
            }
            known.is_listing || !known.told.is_empty()
        });
    }

    /// The subscription is over.
    pub(super) fn forget(&mut self, subscription: &str) {
        self.of.remove(subscription);
    }
}

/// The call that an event is about, if it waits for approval or did.
pub(super) fn approval_of(logged: &Logged) -> Option<ApprovalId> {
    let call = match &logged.event {
        Event::ApprovalAsked(asked) => &asked.call.id,
        Event::ApprovalDecided(decided) => &decided.call,
        _ => return None,
    };
    Some(ApprovalId::of(logged.run.as_ref()?, call))
}

/// `tool.request`, from some time on.
fn request(session: &str, run: &RunId, asked: &ApprovalRequest, from: Timestamp) -> Value {
    json!({
        "sessionId": session,
        "promptId": run.as_str(),
        "requestId": ApprovalId::of(run, &asked.call.id).as_str(),
        "toolName": asked.call.name.as_str(),
        "toolInput": asked.call.input,
        "requiresApproval": true,
        "approvalTimeoutMs": asked.deadline.millis_since(from).max(1),
        "expiresAt": asked.deadline.to_rfc3339(),
    })
}

/// `tool.request` as it happens.
pub(super) fn requested(session: &str, run: &RunId, asked: &ApprovalRequest, seq: u64) -> Value {
    let mut payload = request(session, run, asked, asked.asked);
    payload["sessionSeq"] = seq.into();
    payload
}

/// What a decision that keeps a call from being made is in `tool.result`: its status, and why.
pub(super) fn refusal(decided: &Decided) -> Option<(&'static str, String)> {
    match &decided.decision {
        Decision::Approved { .. } => None,
        Decision::Denied { reason } => {
            Some(("denied", reason.clone().unwrap_or_else(|| "denied by an approver".into())))
        }
        Decision::TimedOut => Some(("timeout", "nobody decided in time".into())),
        Decision::Withdrawn => Some(("failed", "the prompt ended before anybody decided".into())),
    }
}

/// `tool.approve`
pub(super) fn approve(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let input = request.params["modifiedInput"].take();
    let for_session = request.params["forSession"] == true;
    let verdict = Verdict::approve(Some(input).filter(Value::is_object), for_session);
    decide(request, verdict.map_err(|error| request.invalid(&error.message))?)
}

/// `tool.deny`
pub(super) fn deny(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let reason = request.text_if_any("reason").filter(|reason| !reason.is_empty());
    decide(request, Verdict::Deny { reason })
}

/// Decides about the call that the parameters name, if it is one of their session.
fn decide(request: &Request<'_>, verdict: Verdict) -> Answered {
    verdict.check().map_err(|error| request.invalid(&error.message))?;
    let (session_id, id) = (request.text("sessionId"), ApprovalId::new(request.text("requestId")));
    Call::ask_on(GetApproval { id: id.clone() }, move |_, pending, _| {
        if pending.session.uuid() != session_id {
            return Err(no_such(&id));
        }
        let session = Some(pending.session.clone());
        Call::ask(Decide { id, session, verdict }, move |_, reply, _| {
            let is_approved = matches!(reply.decided.decision, Decision::Approved { .. });
            json!({
                "sessionId": session_id,
                "requestId": reply.id.as_str(),
                "toolName": reply.decided.tool.as_str(),
                "status": if is_approved { "approved" } else { "denied" },
            })
        })
    })
}

impl Wundr {
    /// Tells a subscription that stands now of the calls that wait already.
    pub(super) fn introduce(&mut self, subscription: &str, turn: &mut Turn<'_>) {
        self.introduced.lists(subscription);
        let subscription = subscription.to_owned();
        self.aside(ListApprovals, turn, move |dialect, reply, turn| {
            let now = turn.now();
            // Where the list is refused, what waits from here on is told.
            for pending in dialect.introduced.listed(&subscription, reply.unwrap_or_default()) {
                let payload = request(&pending.session.uuid(), &pending.run, &pending.asked, now);
                dialect.tell_one(&subscription, TOOL_REQUEST, &payload, turn);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Owner, SessionKey};
    use crate::tools::call::ToolCall;

    fn pending(call: &str) -> Arc<PendingCall> {
        let call = ToolCall { id: call.into(), name: "rm".into(), input: json!({}) };
        let run = RunId::from("run");
        let at = Timestamp::default();
        Arc::new(PendingCall {
            id: ApprovalId::of(&run, &call.id),
            session: SessionKey::new("main", "test", "a", "main").unwrap(),
            owner: Owner::Admins,
            run,
            prompted_by: Owner::Admins,
            asked: ApprovalRequest { call, asked: at, deadline: at },
        })
    }

    #[test]
    fn a_subscription_is_told_once_of_a_call_whichever_way_comes_first() {
        let (a, b, c) = (pending("a"), pending("b"), pending("c"));
        let mut introduced = Introduced::default();
        assert!(introduced.is_news("sub", &a.id), "without a list all is news");
        introduced.lists("sub");
        assert!(introduced.is_news("sub", &a.id));
        introduced.decided(&c.id);
        let told = introduced.listed("sub", vec![a.clone(), b.clone(), c]);
        assert_eq!(told, std::slice::from_ref(&b), "a came as an event, c is decided");
        assert!(!introduced.is_news("sub", &b.id), "b was in the list and is replayed");
        assert!(introduced.is_news("sub", &a.id) && introduced.is_news("other", &b.id));
    }

    #[test]
    fn nothing_is_kept_of_what_is_decided() {
        let (a, b) = (pending("a"), pending("b"));
        let mut introduced = Introduced::default();
        introduced.lists("sub");
        introduced.listed("sub", vec![a.clone(), b.clone()]);
        introduced.decided(&a.id);
        introduced.decided(&b.id);
        assert!(introduced.of.is_empty());
        introduced.lists("sub");
        introduced.listed("sub", Vec::new());
        assert!(introduced.of.is_empty());
    }
}
