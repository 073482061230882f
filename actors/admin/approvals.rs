//! `admin.approvals` and `admin.approval.*`: tool calls that wait until somebody decides about them.

use clawmux_core::approval::{ApprovalCommand, ApprovalReply, Pending, Verdict};
use clawmux_core::command::Command;
use clawmux_core::error::Error;
use clawmux_core::ids::ApprovalId;
use clawmux_core::reply::Reply;
use serde::Deserialize;
use serde_json::{Value, json};

use super::event::owner_name;
use super::methods::Call;
use super::session::{execute, unexpected};

/// `admin.approvals`: `{"approvals": [..]}`, the longest waiting first.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.approvals")?;
    match ask(&call, ApprovalCommand::List).await? {
        ApprovalReply::List(list) => {
            Ok(json!({ "approvals": list.iter().map(|pending| row(pending)).collect::<Vec<_>>() }))
        }
        other => Err(unexpected(&Reply::Approval(Box::new(other)))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approve {
    approval: String,
    input: Option<Value>,
}

/// `admin.approval.approve`: `{"approval", "session", "run", "tool", "approved": true}`, once it is in
/// the log. `input`, an object, is what the tool is given in place of the model's.
pub(super) async fn approve(call: Call) -> Result<Value, Error> {
    let Approve { approval, input } = call.params("admin.approval.approve")?;
    decide(&call, approval, Verdict::Approve { input }, "approved").await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Deny {
    approval: String,
    reason: Option<String>,
}

/// `admin.approval.deny`: `{"approval", "session", "run", "tool", "denied": true}`, once it is in the
/// log. The model is told the `reason`.
pub(super) async fn deny(call: Call) -> Result<Value, Error> {
    let Deny { approval, reason } = call.params("admin.approval.deny")?;
    decide(&call, approval, Verdict::Deny { reason }, "denied").await
}

async fn decide(call: &Call, id: String, verdict: Verdict, word: &str) -> Result<Value, Error> {
    let command = ApprovalCommand::Decide { id: ApprovalId::new(id), session: None, verdict };
    match ask(call, command).await? {
        ApprovalReply::Decided { id, session, run, decided } => Ok(json!({
            "approval": id.as_str(),
            "session": session.as_str(),
            "run": run.as_str(),
            "tool": decided.tool.as_str(),
            word: true,
        })),
        other => Err(unexpected(&Reply::Approval(Box::new(other)))),
    }
}

async fn ask(call: &Call, command: ApprovalCommand) -> Result<ApprovalReply, Error> {
    match execute(call, Command::Approval(command)).await? {
        (_, Reply::Approval(reply)) => Ok(*reply),
        (_, other) => Err(unexpected(&other)),
    }
}

fn row(pending: &Pending) -> Value {
    let Pending { id, session, owner, run, prompted_by, asked } = pending;
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
