//! What can be asked of one session, once it is found.

use crate::conversation::approval::Verdict;
use crate::conversation::event::Cause;
use crate::conversation::follow::Wanted;
use crate::conversation::reply::SessionReply;
use crate::conversation::session::{Submission, prompt_bytes};
use crate::ids::{ApprovalId, Owner, RunId, Seq, Ticket};
use crate::principal::Principal;
use crate::prompt::settings::Patch;

/// What can be asked of one session.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Take a prompt.
    Submit {
        /// The prompt.
        submission: Submission,
        /// Whether its run is followed.
        follow: bool,
    },
    /// Answer with a run that is in the log already, and follow it from its prompt on.
    Follow {
        /// The run.
        run: RunId,
        /// The number of its prompt.
        seq: Seq,
        /// Whether it is followed.
        follow: bool,
    },
    /// Look at the whole session, and follow it.
    Attach {
        /// After this number; none = from now on.
        after: Option<Seq>,
        /// Whether it is followed.
        follow: bool,
    },
    /// Follow it no longer.
    Detach {
        /// The ticket of the `Attach`.
        follow: Ticket,
    },
    /// End everything that is under way or waits, for this cause.
    Stop(Cause),
    /// The same, and take no more prompts until there is a new conversation.
    Close {
        /// Why.
        reason: String,
    },
    /// End a run.
    Abort {
        /// Which; none means the one under way.
        run: Option<RunId>,
    },
    /// Forget the conversation.
    Clear,
    /// Make the session with these settings, if it is not there.
    Create(Patch),
    /// Change its settings.
    Configure(Patch),
    /// Begin a new conversation.
    Reset,
    /// The same, without ending what is under way or waits.
    Renew,
    /// Forget the beginning of the conversation.
    Compact(Cut),
    /// Say something in the model's name.
    Inject {
        /// What.
        content: String,
        /// Under which id, which was not used before; none = a fresh one.
        id: Option<RunId>,
    },
    /// Decide about a call that waits for approval.
    Decide {
        /// Which.
        id: ApprovalId,
        /// What.
        verdict: Verdict,
    },
    /// Remove the session.
    Delete,
}

impl Order {
    /// Whether a session that is not there begins with it.
    pub fn begins(&self) -> bool {
        matches!(self, Self::Submit { .. } | Self::Create(_) | Self::Configure(_) | Self::Reset)
    }

    /// How many bytes it adds to the log, about; none where it ends something, or only looks.
    pub fn adds(&self) -> Option<usize> {
        match self {
            Self::Submit { submission, .. } => {
                Some(prompt_bytes(&submission.content, &submission.attachments))
            }
            Self::Inject { content, id: None } => Some(content.len()),
            Self::Create(_)
            | Self::Configure(_)
            | Self::Reset
            | Self::Renew
            | Self::Clear
            | Self::Compact(_) => Some(0),
            // What is put into a conversation under an id is a part of what was begun before.
            Self::Inject { .. }
            | Self::Follow { .. }
            | Self::Attach { .. }
            | Self::Detach { .. }
            | Self::Stop(_)
            | Self::Close { .. }
            | Self::Abort { .. }
            | Self::Decide { .. }
            | Self::Delete => None,
        }
    }

    /// Whether it is about what is in the session, so that there must be something.
    pub fn needs_something(&self) -> bool {
        matches!(
            self,
            Self::Clear
                | Self::Renew
                | Self::Stop(_)
                | Self::Close { .. }
                | Self::Compact(_)
                | Self::Inject { .. }
                | Self::Decide { .. }
                | Self::Delete
        )
    }

    /// Whether this principal may have it carried out in a session of this owner. Who may decide about a
    /// call is said by the call.
    pub fn is_for(&self, principal: &Principal, owner: &Owner) -> bool {
        matches!(self, Self::Decide { .. }) || principal.sees(owner)
    }

    /// Whether it may be given once more where nobody knows what came of it: a prompt is known by its run.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Submit { .. }
            | Self::Follow { .. }
            | Self::Attach { .. }
            | Self::Detach { .. }
            | Self::Stop(_)
            | Self::Close { .. }
            | Self::Create(_)
            | Self::Configure(_)
            | Self::Abort { run: Some(_) }
            | Self::Inject { id: Some(_), .. }
            | Self::Decide { .. } => true,
            Self::Abort { run: None }
            | Self::Clear
            | Self::Reset
            | Self::Renew
            | Self::Compact(_)
            | Self::Inject { id: None, .. }
            | Self::Delete => false,
        }
    }

    /// It, followed by nobody: for who asks on behalf of others and serves them himself.
    #[must_use]
    pub fn unfollowed(mut self) -> Self {
        if let Self::Submit { follow, .. } | Self::Follow { follow, .. } | Self::Attach { follow, .. } =
            &mut self
        {
            *follow = false;
        }
        self
    }

    /// Whether who gives it follows what comes of it.
    pub fn is_followed(&self) -> bool {
        matches!(
            self,
            Self::Submit { follow: true, .. }
                | Self::Follow { follow: true, .. }
                | Self::Attach { follow: true, .. }
        )
    }
}

/// What follows the answer to an order that is followed, and after which number; none where nothing does.
pub fn followed(reply: &SessionReply) -> Option<(Wanted, Seq)> {
    match reply {
        SessionReply::Accepted(accepted) => {
            Some((Wanted::Run(accepted.run.clone()), Seq(accepted.seq.0 - 1)))
        }
        SessionReply::Attached(attached) => Some((Wanted::Session, attached.after)),
        _ => None,
    }
}

/// Where a conversation is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Runs that ended up to this number are forgotten.
    pub up_to: Seq,
    /// Messages that are kept.
    pub kept: usize,
    /// Messages that are forgotten.
    pub forgotten: usize,
}
