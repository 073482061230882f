//! `admin.approvals` and `admin.approval.*`: tool calls that wait until somebody decides about them.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::event::owner_name;
use super::method::{Method, Request, ask, method};
use crate::conversation::approval::{Decide, DecidedCall, ListApprovals, PendingCall, Verdict};
use crate::error::Error;
use crate::ids::ApprovalId;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.approvals", "{}", list),
    method("admin.approval.approve", r#"{"approval", "input"? or "for_session"?}"#, approve),
    method("admin.approval.deny", r#"{"approval", "reason"?}"#, deny),
];

/// `admin.approvals`: `{"approvals": [..]}`, the longest waiting first.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(
        ListApprovals,
        |list| json!({ "approvals": list.iter().map(|pending| row(pending)).collect::<Vec<_>>() }),
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approve {
    approval: String,
    input: Option<Value>,
    #[serde(default)]
    for_session: bool,
}

/// `admin.approval.approve`: `{"approval", "session", "run", "tool", "approved": true}`, once it is in
/// the log. `input`, an object, is what the tool is given in place of the model's. With `for_session`, later
/// calls of the same tool in the same session wait no more.
fn approve(request: &Request) -> Result<Call, Error> {
    let Approve { approval, input, for_session } = request.read()?;
    decide(approval, Verdict::approve(input, for_session)?, "approved")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Deny {
    approval: String,
    reason: Option<String>,
}

/// `admin.approval.deny`: `{"approval", "session", "run", "tool", "denied": true}`, once it is in the
/// log. The model is told the `reason`.
fn deny(request: &Request) -> Result<Call, Error> {
    let Deny { approval, reason } = request.read()?;
    decide(approval, Verdict::Deny { reason }, "denied")
}

fn decide(id: String, verdict: Verdict, word: &'static str) -> Result<Call, Error> {
    ask(Decide { id: ApprovalId::new(id), session: None, verdict }, move |reply| {
        let DecidedCall { id, session, run, decided } = *reply;
        json!({
            "approval": id.as_str(),
            "session": session.as_str(),
            "run": run.as_str(),
            "tool": decided.tool.as_str(),
            word: true,
        })
    })
}

fn row(pending: &PendingCall) -> Value {
    let PendingCall { id, session, owner, run, prompted_by, asked } = pending;
    json!({
        "approval": id.as_str(),
        "session": session.as_str(),
        "owner": owner_name(owner),
        "run": run.as_str(),
        "prompted_by": owner_name(prompted_by),
        "call": asked.call.id.as_str(),
        "tool": asked.call.name.as_str(),
        "input": asked.call.input,
        "asked_ms": asked.asked.as_millis(),
        "deadline_ms": asked.deadline.as_millis(),
    })
}
