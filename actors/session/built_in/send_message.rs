//! A call of the built-in tool `send_message` ([`clawmux_core::tools::messenger`]): done here, without a plugin.
//!
//! On behalf of whom its session belongs to: an agent speaks in no session that they may not see, whoever
//! prompted the run. What it says elsewhere has an id that follows from the call, so that a call that is made again
//! says it once. Over channels only operators' agents speak, since the channels are theirs, and to people only whom
//! the channel lets in.

use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::command::{CreateSession, Inject, SessionCommand};
use clawmux_core::conversation::reply::{Injected, SessionReply};
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::settings::Patch;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Scopes;
use clawmux_core::target::{Route, Target};
use clawmux_core::tools::call::ToolCall;
use clawmux_core::tools::messenger::{Message, Place, Sent, place, said};
use tokio::time::sleep;

use super::asking;
use crate::files::{Files, Look};
use crate::runtime::ask::ask;
use crate::runtime::dispatch::Request;
use crate::runtime::say::Say;

/// How often a channel that can say nothing for the moment is asked again, and after what pause.
const ATTEMPTS_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// A call that is to be made.
pub(super) struct SendMessage {
    /// The run it is for.
    pub(super) run: RunId,
    /// The call.
    pub(super) call: ToolCall,
    /// Whose session it is made in.
    pub(super) owner: Owner,
    /// Whether a message without a target goes to whoever asked, with the answer.
    pub(super) answers_bring_messages: bool,
    /// The channels there are.
    pub(super) channels: Vec<String>,
    /// Who looks at files.
    pub(super) files: Addr<Files>,
    /// Who knows the sessions.
    pub(super) sessions: Recipient<Request<SessionCommand>>,
    /// Who speaks over channels.
    pub(super) voice: Recipient<Say>,
}

impl SendMessage {
    /// Makes it.
    ///
    /// # Errors
    /// Why nothing was sent, for the model.
    pub(super) async fn make(self) -> Result<String, String> {
        let refuse = |why: String| format!("not sent: {why}");
        let mut message = Message::read(&self.call.input).map_err(refuse)?;
        let place = message.target.take().map(|target| place(target, &self.channels)).transpose();
        let place = place.map_err(refuse)?;
        let mut attachments = std::mem::take(&mut message.attachments);
        if !attachments.is_empty() {
            let looked = ask(&self.files, Look(attachments)).await.flatten();
            attachments = looked.map_err(|error| refuse(error.to_string()))?;
        }
        let Some(place) = place else {
            if !self.answers_bring_messages {
                return Err(refuse(
                    "name a session, or a channel with account and peer; what you answer goes to \
                    whoever asked"
                        .into(),
                ));
            }
            return Ok(Sent::new(message.text, &attachments).to_result());
        };
        let content = message.in_words(&attachments);
        let id = RunId::of_message(&self.run, &self.call.id);
        let sent = match place {
            Place::Here(target) => self.put(target, content, &id, self.owner.clone()).await,
            Place::Channel(route) => self.say(route, content, &id).await,
        };
        sent.map_err(|error| refuse(error.to_string()))
    }

    /// Puts it into a conversation, which begins with it where it is not there.
    async fn put(&self, target: Target, content: String, id: &RunId, owner: Owner) -> Result<String, Error> {
        let session = match &target {
            Target::Session(key) => Some(key.clone()),
            Target::Route(_) | Target::Uuid(_) | Target::Conversation(_) => None,
        };
        let scopes = if owner == Owner::Admins { Scopes::ADMIN } else { Scopes::USER };
        let principal = Principal { owner, unlimited: true, ..Principal::new("agent", scopes) };
        let inject = SessionCommand::Inject(Inject { target: target.clone(), content, id: Some(id.clone()) });
        let mut put = asking::ask(&self.sessions, inject.clone(), principal.clone()).await;
        // Where somebody else's has the name it may be meant: that can be said with its whole key.
        let is_new =
            |error: &Error| error.code == ErrorCode::NotFound && error.detail != Some(Detail::Namesakes);
        if put.as_ref().is_err_and(is_new) {
            let create = SessionCommand::CreateSession(CreateSession { target, patch: Patch::default() });
            asking::ask(&self.sessions, create, principal.clone()).await?;
            put = asking::ask(&self.sessions, inject, principal).await;
        }
        match put? {
            Reply::Session(SessionReply::Injected(Injected { .. })) => Ok(said(session.as_ref(), id)),
            _ => Err(ErrorCode::Internal.error("internal error")),
        }
    }

    /// Says it over a channel, and puts it into the conversation there, so that whoever answers knows of it.
    async fn say(&self, route: Route, content: String, id: &RunId) -> Result<String, Error> {
        if self.owner != Owner::Admins {
            return Err(ErrorCode::Forbidden.error("only agents of the operators speak over channels"));
        }
        let say = Say {
            channel: route.channel.clone(),
            account: Some(route.account.clone()),
            peer: route.peer.clone().unwrap_or_default(),
            text: content.clone(),
            id: id.to_string(),
        };
        let mut attempt = 1;
        let owner = loop {
            let gone = |_| ErrorCode::Unavailable.error("the channels are busy");
            match self.voice.send(say.clone()).await.map_err(gone).flatten() {
                Ok(owner) => break owner,
                Err(error) if error.code == ErrorCode::Unavailable && attempt < ATTEMPTS_MAX => {
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
            attempt += 1;
        };
        let put = self.put(Target::Route(route), content, id, owner).await;
        if let Err(error) = &put {
            tracing::warn!(%error, "what an agent said over a channel is not in its conversation");
        }
        // They have been told in any case.
        Ok(said(None, id))
    }
}
