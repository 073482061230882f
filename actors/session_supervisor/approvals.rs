//! What is asked about tool calls that wait for approval: answered here, and decisions by the session.

use actix::prelude::*;
use clawmux_core::conversation::approval::{
    ApprovalCommand, ApprovalReply, Decide, GetApproval, ListApprovals, PastApprovals, decided_already,
    may_decide, may_see, no_such, not_yours,
};
use clawmux_core::conversation::order::Order;
use clawmux_core::error::Error;
use clawmux_core::ids::ApprovalId;
use clawmux_core::ids::SessionKey;
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;

use super::requests::Who;
use super::{SessionSupervisor, caught};
use crate::runtime::dispatch::Request;
use crate::session::Found;

impl Handler<Request<ApprovalCommand>> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, request: Request<ApprovalCommand>, _: &mut Self::Context) {
        let Request { command, principal, asker } = request;
        caught(|| self.approval(command, (asker, principal)));
    }
}

impl SessionSupervisor {
    fn approval(&mut self, command: ApprovalCommand, (asker, principal): Who) {
        let approvals = &self.setup.deps.approvals;
        let reply = match command {
            ApprovalCommand::List(ListApprovals) => Ok(ApprovalReply::List(approvals.list(&principal))),
            ApprovalCommand::Past(PastApprovals { limit }) => {
                Ok(ApprovalReply::Past(approvals.past(&principal, limit)))
            }
            ApprovalCommand::Get(GetApproval { id }) => match approvals.find(&id) {
                Found::Waiting(pending) if may_see(&principal, &pending) => Ok(ApprovalReply::Found(pending)),
                Found::Decided(past) if past.is_known_to(&principal) => {
                    Err(decided_already(&past.id, Some(past.what)))
                }
                Found::Waiting(_) | Found::Decided(_) | Found::Nothing => Err(no_such(&id)),
            },
            ApprovalCommand::Decide(Decide { id, session, verdict }) => {
                let session = session.map_or_else(|| self.session_of(&id, &principal), Ok);
                match session {
                    Ok(session) => {
                        let order = Order::Decide { id, verdict };
                        return self.order(order, session, (asker, principal));
                    }
                    Err(error) => Err(error),
                }
            }
        };
        asker.reply(reply.map(Reply::Approval));
    }

    /// The session in which a call waits about which the principal may decide.
    fn session_of(&self, id: &ApprovalId, principal: &Principal) -> Result<SessionKey, Error> {
        match self.setup.deps.approvals.find(id) {
            Found::Waiting(pending) if may_decide(principal, &pending.prompted_by) => {
                Ok(pending.session.clone())
            }
            Found::Waiting(pending) if may_see(principal, &pending) => Err(not_yours(id)),
            Found::Decided(past) if past.is_known_to(principal) => {
                Err(decided_already(&past.id, Some(past.what)))
            }
            Found::Waiting(_) | Found::Decided(_) | Found::Nothing => Err(no_such(id)),
        }
    }
}
