//! What is remembered: checked, put into the store's terms, and asked of it.
//!
//! Everybody remembers for himself; operators find and forget what belongs to anybody.

use clawmux_core::ids::Owner;
use clawmux_core::memory::{Delete, Deleted, MemoryCommand, MemoryRecord, MemoryReply, Query, Stored};
use clawmux_core::principal::Principal;
use clawmux_core::scope::Scope;

use super::reading::{described, no_such};
use super::{SessionSupervisor, caught};
use crate::embedder::{Find, look};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::dispatch::{Located, Request};
use crate::store::{Forget, Recall, Remember};
use actix::Handler;

impl Handler<Request<MemoryCommand>> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, mut request: Request<MemoryCommand>, ctx: &mut Self::Context) {
        caught(|| {
            let target = request.command.target_mut().cloned();
            self.locate(target, request, |supervisor, located, _| supervisor.remember(located), ctx);
        });
    }
}

impl SessionSupervisor {
    /// Takes a request about memories, and the session it names.
    fn remember(&self, located: Located<MemoryCommand>) {
        let Located { request: Request { command, principal, asker }, session } = located;
        if let Err(error) = command.check() {
            return asker.reply(Err(error));
        }
        let (store, embedder) = (self.setup.deps.store.clone(), self.setup.deps.embedder.clone());
        let owner = whose(&principal);
        self.answer(asker, async move {
            let reply = match command {
                MemoryCommand::Query(Query { question, tier, .. }) => {
                    // What is relevant is ranked among what is one's own, also for operators.
                    let owner = if question.is_about() { Some(principal.owner.clone()) } else { owner };
                    if let Some(session) = &session
                        && described(&store, session, &principal).await?.is_none()
                    {
                        return Err(no_such(session, &principal));
                    }
                    let recall = Recall { question, owner, tier, session };
                    MemoryReply::Found(ask(&embedder, Find(recall)).await??)
                }
                MemoryCommand::Store(new) => {
                    let memory = MemoryRecord::new(new, principal.owner.clone(), session, clock::now());
                    let MemoryRecord { id, tier, kind, session, created, .. } = memory.clone();
                    let by_operator = principal.scopes.allows(Scope::Admin);
                    ask(&store, Remember { memory: Box::new(memory), by_operator }).await??;
                    look(&embedder);
                    MemoryReply::Stored(Stored { id, tier, kind, session, created })
                }
                MemoryCommand::Delete(Delete { id }) => {
                    ask(&store, Forget { id: id.clone(), owner }).await??;
                    MemoryReply::Deleted(Deleted { id })
                }
            };
            Ok(reply)
        });
    }
}

/// Whose memories somebody sees; none = everybody's.
fn whose(principal: &Principal) -> Option<Owner> {
    (!principal.scopes.allows(Scope::Admin)).then(|| principal.owner.clone())
}
