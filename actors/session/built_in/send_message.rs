//! A call of the built-in tool `send_message` ([`clawmux_core::tools::messenger`]): done here, without a plugin.
//!
//! On behalf of whom its session belongs to: an agent speaks in no session that they may not see, whoever
//! prompted the run. What it says elsewhere has an id that follows from the call, so that a call that is made again says it once.

use actix::prelude::*;
use clawmux_core::conversation::command::{Inject, SessionCommand};
use clawmux_core::conversation::reply::{Injected, SessionReply};
use clawmux_core::error::Error;
use clawmux_core::ids::{Owner, RunId};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Scopes;
use clawmux_core::target::Target;
use clawmux_core::tools::call::ToolCall;
use clawmux_core::tools::messenger::{Message, Sent, said};

use super::asking;
use crate::files::{Files, Look};
use crate::runtime::ask::ask;
use crate::runtime::dispatch::Request;

/// A call that is to be made.
pub(super) struct SendMessage {
    /// The run it is for.
    pub(super) run: RunId,
    /// The call.
    pub(super) call: ToolCall,
    /// Whose session it is made in.
    pub(super) owner: Owner,
    /// Who looks at files.
    pub(super) files: Addr<Files>,
    /// Who knows the sessions.
    pub(super) sessions: Recipient<Request<SessionCommand>>,
}

impl SendMessage {
    /// Makes it.
    ///
    /// # Errors
    /// Why nothing was sent, for the model.
    pub(super) async fn make(self) -> Result<String, String> {
        let mut message = Message::read(&self.call.input).map_err(|why| format!("not sent: {why}"))?;
        let refuse = |error: Error| format!("not sent: {error}");
        let mut attachments = std::mem::take(&mut message.attachments);
        if !attachments.is_empty() {
            attachments = ask(&self.files, Look(attachments)).await.flatten().map_err(refuse)?;
        }
        let Some(target) = message.target.clone() else {
            return Ok(Sent::new(message.text, &attachments).to_result());
        };
        let id = RunId::of_message(&self.run, &self.call.id);
        let session = match &target {
            Target::Session(key) => Some(key.clone()),
            Target::Route(_) | Target::Uuid(_) | Target::Conversation(_) => None,
        };
        let content = message.in_words(&attachments);
        let inject = SessionCommand::Inject(Inject { target, content, id: Some(id.clone()) });
        let scopes = if self.owner == Owner::Admins { Scopes::ADMIN } else { Scopes::USER };
        let principal = Principal { owner: self.owner, unlimited: true, ..Principal::new("agent", scopes) };
        match asking::ask(&self.sessions, inject, principal).await.map_err(refuse)? {
            Reply::Session(SessionReply::Injected(Injected { .. })) => Ok(said(session.as_ref(), &id)),
            _ => Err("not sent: internal error".into()),
        }
    }
}
