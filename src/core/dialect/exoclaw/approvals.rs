//! `approval.*`: tool calls that wait until somebody decides. A user decides about those of the runs that
//! he prompted himself, operators and approvers about all.

use serde::Deserialize;
use serde_json::Value;

use super::wire::Place;
use super::{Call, answer};
use crate::conversation::approval::{Decide, ListApprovals, Verdict, may_decide};
use crate::dialect::json::{Params, invalid};
use crate::error::Error;
use crate::ids::{ApprovalId, SessionKey};
use crate::principal::Principal;
use crate::scope::Scope;
use crate::target::Target;

#[derive(Deserialize)]
struct Approve {
    id: Option<String>,
    input: Option<Value>,
    #[serde(default)]
    for_session: bool,
}

#[derive(Deserialize)]
struct Deny {
    id: Option<String>,
    reason: Option<String>,
}

/// The scope by which somebody may decide: that of approvers or operators, else that of users.
pub(super) fn needed(who: &Principal) -> Scope {
    let decides = [Scope::Approve, Scope::Admin].into_iter().find(|scope| who.scopes.allows(*scope));
    decides.unwrap_or(Scope::Write)
}

/// `approval.approve`
pub(super) fn approve(params: Params<'_>) -> Result<Call, Error> {
    let method = "approval.approve";
    let Approve { id, input, for_session } = params.read(method)?;
    let verdict = Verdict::approve(input, for_session).map_err(|error| invalid(method, &error.message))?;
    decide(method, id, verdict)
}

/// `approval.deny`
pub(super) fn deny(params: Params<'_>) -> Result<Call, Error> {
    let method = "approval.deny";
    let Deny { id, reason } = params.read(method)?;
    decide(method, id, Verdict::Deny { reason: reason.filter(|reason| !reason.trim().is_empty()) })
}

fn decide(method: &str, id: Option<String>, verdict: Verdict) -> Result<Call, Error> {
    let id = id.filter(|id| !id.is_empty()).ok_or_else(|| invalid(method, "missing field `id`"))?;
    verdict.check().map_err(|error| invalid(method, &error.message))?;
    let decide = Decide { id: ApprovalId::new(id), session: None, verdict };
    Ok(Call::ask(decide, |id, reply, _| answer::decided(id, &reply.id, &reply.decided.decision)))
}

/// `approval.list`
pub(super) fn list(who: &Principal, params: Params<'_>) -> Result<Call, Error> {
    let session = session(who, params)?;
    Ok(Call::ask_on(ListApprovals, move |exoclaw, (_, id), calls, turn| {
        let who = &exoclaw.who;
        let is_asked = |of: &SessionKey| session.as_ref().is_none_or(|session| session == of);
        let calls = calls.iter().filter(|call| is_asked(&call.session));
        let calls = calls.filter(|call| may_decide(who, &call.prompted_by));
        turn.send(answer::waiting(&id, calls, &who.owner));
    }))
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
