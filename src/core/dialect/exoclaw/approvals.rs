//! `approval.*`: tool calls that wait until somebody decides. A user decides about those of the runs that
//! he prompted himself, operators and approvers about all.

use serde::Deserialize;
use serde_json::Value;

use super::wire::Place;
use super::{Ask, Call, READ, WRITE};
use crate::access::{Principal, Scope};
use crate::conversation::approval::{ApprovalCommand, Verdict};
use crate::dialect::json::{Params, invalid};
use crate::error::Error;
use crate::ids::{ApprovalId, SessionKey};
use crate::request::command::Command;
use crate::target::Target;

#[derive(Deserialize)]
struct Approve {
    id: Option<String>,
    input: Option<Value>,
}

#[derive(Deserialize)]
struct Deny {
    id: Option<String>,
    reason: Option<String>,
}

/// The scope by which somebody may decide: that of approvers or operators, else that of users.
fn needed(who: &Principal) -> Scope {
    let decides = [Scope::Approve, Scope::Admin].into_iter().find(|scope| who.scopes.allows(*scope));
    decides.unwrap_or(Scope::Write)
}

/// `approval.approve`
pub(super) fn approve(who: &Principal, params: Params<'_>) -> Call {
    let method = "approval.approve";
    let asked = params.read::<Approve>(method);
    let verdict = asked.map(|asked| (asked.id, Verdict::Approve { input: asked.input }));
    Call::plain(needed(who), WRITE, verdict.and_then(|verdict| decide(method, verdict)))
}

/// `approval.deny`
pub(super) fn deny(who: &Principal, params: Params<'_>) -> Call {
    let method = "approval.deny";
    let reason = |reason: Option<String>| reason.filter(|reason| !reason.trim().is_empty());
    let asked = params.read::<Deny>(method);
    let verdict = asked.map(|asked| (asked.id, Verdict::Deny { reason: reason(asked.reason) }));
    Call::plain(needed(who), WRITE, verdict.and_then(|verdict| decide(method, verdict)))
}

fn decide(method: &str, (id, verdict): (Option<String>, Verdict)) -> Result<Command, Error> {
    let id = id.filter(|id| !id.is_empty()).ok_or_else(|| invalid(method, "missing field `id`"))?;
    verdict.check().map_err(|error| invalid(method, &error.message))?;
    let decide = ApprovalCommand::Decide { id: ApprovalId::new(id), session: None, verdict };
    Ok(Command::Approval(decide))
}

/// `approval.list`
pub(super) fn list(who: &Principal, params: Params<'_>) -> Call {
    match session(who, params) {
        Ok(session) => {
            let command = Ok(Command::Approval(ApprovalCommand::List));
            Call { ask: Ask::Approvals(session), ..Call::plain(needed(who), READ, command) }
        }
        Err(error) => Call::plain(needed(who), READ, Err(error)),
    }
}

/// The session whose calls are asked for; none = those of all.
fn session(who: &Principal, params: Params<'_>) -> Result<Option<SessionKey>, Error> {
    let method = "approval.list";
    let place = params.read::<Place>(method)?;
    if place.is_absent() {
        return Ok(None);
    }
    match place.target(method)? {
        Target::Session(session) => who.session(&session).map(Some),
        // Where a route leads is decided elsewhere.
        Target::Route(_) | Target::Uuid(_) | Target::Conversation(_) => {
            Err(invalid(method, "name the session by its key, as `session`"))
        }
    }
}
