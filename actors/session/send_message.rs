//! A call of the built-in tool `send_message` ([`clawmux_core::tools::messenger`]): done here, without a plugin.
//!
//! On behalf of whom its session belongs to: an agent speaks in no session that they may not see, whoever
//! prompted the run. What it says elsewhere has an id that follows from the call, so that a call that is made again says it once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::command::{Inject, SessionCommand};
use clawmux_core::conversation::reply::{Injected, SessionReply};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, Owner, RunId, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Scopes;
use clawmux_core::target::Target;
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::messenger::{Message, Sent, said};
use serde_json::json;
use tokio::sync::oneshot;

use crate::files::{Files, Look};
use crate::runtime::ask::ask;
use crate::runtime::deliver::{Asker, Client, Deliver, Window};
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};

/// The first number of the connections that calls ask over: below those of the agent supervisor and the scheduler.
const FIRST_ID: u64 = 1 << 61;

/// How long the other session may take to have it written.
const TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Makes it. Whatever happens, the answer is a result.
    pub(super) async fn make(self) -> ToolResult {
        let call = self.call.id.clone();
        let made = self.send().await;
        let is_error = made.is_err();
        ToolResult { call, content: made.unwrap_or_else(|why| why), is_error }
    }

    async fn send(self) -> Result<String, String> {
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
        match self.ask(inject).await.map_err(refuse)? {
            Reply::Session(SessionReply::Injected(Injected { .. })) => Ok(said(session.as_ref(), &id)),
            _ => Err("not sent: internal error".into()),
        }
    }

    async fn ask(self, command: SessionCommand) -> Result<Reply, Error> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let scopes = if self.owner == Owner::Admins { Scopes::ADMIN } else { Scopes::USER };
        let principal = Principal { owner: self.owner, unlimited: true, ..Principal::new("agent", scopes) };
        let (done, answer) = oneshot::channel();
        let to = Letterbox(Some(done)).start();
        let client = Client {
            connection: ConnectionId(FIRST_ID + LAST.fetch_add(1, Relaxed)),
            to: to.recipient(),
            window: Arc::<Window>::default(),
            arbiter: Arbiter::current(),
        };
        let asker = Asker::new(client, Ticket(1));
        let busy = |_| ErrorCode::Unavailable.error("the daemon is busy: try again");
        self.sessions.try_send(Request { command, principal, asker }).map_err(busy)?;
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(ErrorCode::Unavailable.error("the request was lost: try again")),
            Err(_) => {
                let seconds = TIMEOUT.as_secs();
                let late = format!("no answer within {seconds} s: it may still be said");
                Err(ErrorCode::Timeout.error(late))
            }
        }
    }
}

/// Takes one answer.
struct Letterbox(Option<oneshot::Sender<Result<Reply, Error>>>);

impl Actor for Letterbox {
    type Context = Context<Self>;
}

impl Handler<Deliver> for Letterbox {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        if let (Deliver::Reply(_, reply), Some(done)) = (delivery, self.0.take()) {
            // Nobody waits any more where the run was ended.
            let _ = done.send(reply);
        }
        ctx.stop();
    }
}

impl Handler<Observe> for Letterbox {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf("letterbox", json!({ "waiting": self.0.is_some() }))
    }
}
