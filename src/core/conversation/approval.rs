//! Tool calls that wait until somebody decides whether they are made.
//!
//! ```text
//!   the answer ends ──► asked ──┬── approved (as it is, or with another input) ──► made, once
//!                               ├── denied ─────────┐
//!                               ├── nobody in time ─┴──► the model is told so instead of a result
//!                               └── the run ended first: withdrawn
//! ```
//!
//! Both ends are events of the session's log: a call waits on over a restart, with the deadline it was
//! asked with, and it is made only where its approval is in the event log. Of several decisions the first
//! counts. While a call waits, those of the same answer that need no approval are made.
//!
//! How many can wait follows from other bounds: a session has one run at a time, and that waits for at
//! most [`CALLS_MAX`](crate::conversation::turn::CALLS_MAX) calls, each until its deadline.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::approval_rule::Rule;
use crate::area::area;
use crate::error::{Error, ErrorCode};
use crate::ids::Owner;
use crate::ids::{ApprovalId, CallId, PluginName, RunId, SessionKey};
use crate::principal::Principal;
use crate::scope::Scope;
use crate::time::Timestamp;
use crate::tools::call::ToolCall;

/// The most bytes of an input that is given in place of the model's, as JSON.
pub const INPUT_BYTES_MAX: usize = 256 * 1024;

/// The most bytes of a reason.
pub const REASON_BYTES_MAX: usize = 4096;

/// The tools an agent may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolbox {
    /// Every tool that the model is offered. One that ends in `*` stands for all that begin so.
    pub offered: Vec<PluginName>,
    /// Of these, the ones whose calls wait for approval.
    pub gated: Vec<PluginName>,
    /// Rules about calls: the first that is for one says whether it waits, whatever `gated` says.
    pub rules: Arc<[Rule]>,
    /// How long a call may wait for a decision.
    pub timeout: Duration,
}

impl Toolbox {
    /// Tools that are called unasked.
    pub fn ungated(offered: Vec<PluginName>) -> Self {
        Self { offered, ..Self::default() }
    }

    /// Whether the model may call it.
    pub fn offers(&self, tool: &PluginName) -> bool {
        is_among(tool, &self.offered)
    }

    /// Whether this call waits for approval.
    pub fn waits(&self, call: &ToolCall) -> bool {
        let rule = self.rules.iter().find(|rule| rule.is_for(call));
        rule.map_or_else(|| self.is_gated(&call.name), |rule| rule.asks)
    }

    /// Whether calls of this tool wait for approval where no rule says otherwise.
    pub fn is_gated(&self, tool: &PluginName) -> bool {
        is_among(tool, &self.gated)
    }
}

pub(super) fn is_among(tool: &PluginName, named: &[PluginName]) -> bool {
    named.iter().any(|named| match named.as_str().strip_suffix('*') {
        Some(beginning) => tool.as_str().starts_with(beginning),
        None => named == tool,
    })
}

/// A call of the model that waits for approval.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRequest {
    /// The call, as the model wants it.
    pub call: ToolCall,
    /// When the call began to wait.
    pub asked: Timestamp,
    /// From when on it counts as denied.
    pub deadline: Timestamp,
}

/// What was decided about a call that waited.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The id of the call.
    pub call: CallId,
    /// The tool that is called.
    pub tool: PluginName,
    /// The decision about it.
    pub decision: Decision,
    /// Who decided; none where nobody did.
    pub by: Option<String>,
}

/// The decision about a call, as it stands in the event log.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The call is made.
    Approved {
        /// With this input, an object, in place of the model's.
        input: Option<Value>,
    },
    /// The call is not made.
    Denied {
        /// Why, as the model is told.
        reason: Option<String>,
    },
    /// Nobody decided in time: it is not made.
    TimedOut,
    /// Its run ended before: it is not made, and nobody is left to be told.
    Withdrawn,
}

/// What an approver answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The call shall be made.
    Approve {
        /// With this input in place of the model's.
        input: Option<Value>,
    },
    /// The call shall be made as it is, and later ones of its tool in this session unasked.
    ApproveForSession,
    /// The call shall not be made.
    Deny {
        /// Why, as the model is told.
        reason: Option<String>,
    },
}

impl Verdict {
    /// That the call shall be made, with this input in place of the model's; `for_session` also later ones.
    ///
    /// # Errors
    /// `InvalidRequest` where both are asked for: an approval of an input is one of that input alone.
    pub fn approve(input: Option<Value>, for_session: bool) -> Result<Self, Error> {
        match (input, for_session) {
            (input, false) => Ok(Self::Approve { input }),
            (None, true) => Ok(Self::ApproveForSession),
            (Some(_), true) => Err(ErrorCode::InvalidRequest
                .error("a call that is given another input is approved once, not for the session")),
        }
    }

    /// Whether it is one that can be carried out.
    ///
    /// # Errors
    /// `InvalidRequest` where the input is no object or is too large, or the reason is too long.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |why: String| Err(ErrorCode::InvalidRequest.error(why));
        match self {
            Self::Approve { input: Some(input) } if !input.is_object() => {
                bad("the modified input is not a JSON object".into())
            }
            Self::Approve { input: Some(input) } if input.to_string().len() > INPUT_BYTES_MAX => {
                bad(format!("the modified input is longer than {INPUT_BYTES_MAX} bytes"))
            }
            Self::Deny { reason: Some(reason) } if reason.len() > REASON_BYTES_MAX => {
                bad(format!("the reason is longer than {REASON_BYTES_MAX} bytes"))
            }
            Self::Approve { .. } | Self::ApproveForSession | Self::Deny { .. } => Ok(()),
        }
    }
}

impl Decision {
    /// The decision in a word, for people.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Approved { .. } => "approved",
            Self::Denied { .. } => "denied",
            Self::TimedOut => "nobody decided in time",
            Self::Withdrawn => "its run ended before",
        }
    }
}

impl From<Verdict> for Decision {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Approve { input } => Self::Approved { input },
            Verdict::ApproveForSession => Self::Approved { input: None },
            Verdict::Deny { reason } => Self::Denied { reason },
        }
    }
}

/// A call that waits, wherever it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingCall {
    /// What it is decided by.
    pub id: ApprovalId,
    /// The session in which the call waits.
    pub session: SessionKey,
    /// The owner of that session.
    pub owner: Owner,
    /// The run that makes the call.
    pub run: RunId,
    /// The owner of the prompt that began the run.
    pub prompted_by: Owner,
    /// The call, and until when it waits.
    pub asked: ApprovalRequest,
}

/// What those are told who may decide.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A call waits for a decision.
    Requested(Arc<PendingCall>),
    /// A call waits no longer.
    Resolved {
        /// The call that waited.
        pending: Arc<PendingCall>,
        /// What was decided, and by whom.
        decided: Decided,
        /// When it was decided.
        at: Timestamp,
    },
}

impl News {
    /// The call that the news is about.
    pub fn pending(&self) -> &Arc<PendingCall> {
        match self {
            Self::Requested(pending) | Self::Resolved { pending, .. } => pending,
        }
    }
}

/// Whether this principal may decide about the calls of everybody's runs: operators and approvers.
pub fn decides_all(principal: &Principal) -> bool {
    principal.scopes.allows(Scope::Admin) || principal.scopes.allows(Scope::Approve)
}

/// Whether this principal may decide about the calls of a run, by who prompted that: operators and
/// approvers about all, who may write about those of the runs he prompted himself; whoever owns the
/// session.
pub fn may_decide(principal: &Principal, prompted_by: &Owner) -> bool {
    decides_all(principal) || (principal.scopes.allows(Scope::Write) && principal.owner == *prompted_by)
}

/// Whether this principal may know of a call that waits: who may decide about it, and who reads the
/// session it is in.
pub fn may_see(principal: &Principal, pending: &PendingCall) -> bool {
    knows_of(principal, (&pending.owner, &pending.prompted_by))
}

/// The same of one in a session of this owner, whose run was prompted by this one.
pub fn knows_of(principal: &Principal, (owner, prompted_by): (&Owner, &Owner)) -> bool {
    may_decide(principal, prompted_by) || (principal.scopes.allows(Scope::Read) && principal.sees(owner))
}

area! {
    /// What can be asked about tool calls that wait until somebody decides.
    Approval(ApprovalCommand => ApprovalReply) {
        /// Those that the caller may know of, the longest waiting first.
        List(ListApprovals) => List(Vec<Arc<PendingCall>>),
        /// What was decided lately, since the daemon started, of what the caller may know of: the latest
        /// first. Each is a [`News::Resolved`].
        Past(PastApprovals) => Past(Vec<News>),
        /// One of them.
        Get(GetApproval) => Found(Arc<PendingCall>),
        /// Decide about one.
        Decide(Decide) => Decided(Box<DecidedCall>),
    }
}

/// Which calls wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListApprovals;

/// What was decided lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastApprovals {
    /// At most so many.
    pub limit: usize,
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetApproval {
    /// The id under which it waits.
    pub id: ApprovalId,
}

/// Decide about a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decide {
    /// The id under which it waits.
    pub id: ApprovalId,
    /// The session it has to be of; none = wherever it is.
    pub session: Option<SessionKey>,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// The answer to a [`ApprovalCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum ApprovalReply {
    /// To `List`.
    List(Vec<Arc<PendingCall>>),
    /// To `Past`.
    Past(Vec<News>),
    /// To `Get`.
    Found(Arc<PendingCall>),
    /// To `Decide`.
    Decided(Box<DecidedCall>),
}

/// A decision that is in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct DecidedCall {
    /// The id under which the call waited.
    pub id: ApprovalId,
    /// Its session.
    pub session: SessionKey,
    /// Its run.
    pub run: RunId,
    /// What was decided, and by whom.
    pub decided: Decided,
}

impl ApprovalCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::List(_) | Self::Past(_) => 16,
            Self::Get(_) => 2,
            Self::Decide(_) => 1,
        }
    }
}

/// That nothing waits under this id, or nothing the caller may know of.
pub fn no_such(id: &ApprovalId) -> Error {
    ErrorCode::NotFound.error(format!("no such approval: {id}"))
}

/// That somebody who knows of a call may not decide about it.
pub fn not_yours(id: &ApprovalId) -> Error {
    ErrorCode::Forbidden.error(format!(
        "approval {id} is decided by who prompted its run, by operators, and by those who may approve"
    ))
}

/// That somebody decided before, or nobody in time; `what` in the words of [`Decision::word`], where it
/// is known.
pub fn decided_already(id: &ApprovalId, what: Option<&str>) -> Error {
    let what = what.map(|what| format!(": {what}")).unwrap_or_default();
    ErrorCode::Conflict.error(format!("approval {id} is decided already{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::Scopes;
    use serde_json::json;

    #[test]
    fn who_decides_and_who_knows() {
        let owner = |name: &str| Owner::Credential(name.into());
        let who =
            |scopes: &[Scope]| Principal { owner: owner("ada"), ..Principal::new("ada", Scopes::of(scopes)) };
        let table = [
            // scopes; decide, know: one's own run in one's own session, in another's, another's run in one's
            // own session, in another's
            (&[Scope::Admin][..], [true; 8]),
            (&[Scope::Approve], [true; 8]),
            (&[Scope::Write], [true, true, true, true, false, true, false, false]),
            (&[Scope::Read], [false, true, false, false, false, true, false, false]),
            (&[Scope::Teams, Scope::Pair], [false; 8]),
            (&[], [false; 8]),
        ];
        for (scopes, expected) in table {
            let (who, mine, other) = (who(scopes), owner("ada"), owner("bob"));
            let cases = [(&mine, &mine), (&other, &mine), (&mine, &other), (&other, &other)];
            let found = cases.map(|case| [may_decide(&who, case.1), knows_of(&who, case)]);
            assert_eq!(found.as_flattened(), expected, "{scopes:?}");
        }
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused() {
        let approve = |input| Verdict::Approve { input: Some(input) };
        assert!(approve(json!({})).check().is_ok() && Verdict::Approve { input: None }.check().is_ok());
        for input in [json!([]), json!("x"), json!(null), json!({ "x": "x".repeat(INPUT_BYTES_MAX) })] {
            assert_eq!(approve(input).check().unwrap_err().code, ErrorCode::InvalidRequest);
        }
        let deny = |bytes| Verdict::Deny { reason: Some("x".repeat(bytes)) };
        assert!(deny(REASON_BYTES_MAX).check().is_ok());
        assert_eq!(deny(REASON_BYTES_MAX + 1).check().unwrap_err().code, ErrorCode::InvalidRequest);
    }
}
