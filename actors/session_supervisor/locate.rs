//! From what a request names to the session that is meant by it.

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::target::Target;

use super::SessionSupervisor;
use crate::runtime::ask::ask;
use crate::runtime::dispatch::{Located, Request};
use crate::store::{Among, FindSession};

impl SessionSupervisor {
    /// Finds the session that a request names, and goes on with it: at once, or where it is named by an id,
    /// when it is found, those that name one so in the order they came.
    pub(super) fn locate<C: 'static>(
        &mut self,
        target: Option<Target>,
        request: Request<C>,
        then: impl FnOnce(&mut Self, Located<C>, &mut Context<Self>) + 'static,
        ctx: &mut Context<Self>,
    ) {
        let who = request.principal.clone();
        let go_on =
            move |supervisor: &mut Self, session: Result<_, Error>, ctx: &mut Context<Self>| match session {
                Ok(session) => then(supervisor, Located { request, session }, ctx),
                Err(error) => request.asker.reply(Err(error)),
            };
        let Some(mut target) = target else { return go_on(self, Ok(None), ctx) };
        if let Err(error) = target.settle(&who) {
            return go_on(self, Err(error), ctx);
        }
        let Some(find) = by_id(&target, &who) else {
            return go_on(self, self.resolve(&target, &who).map(Some), ctx);
        };
        let store = self.setup.deps.store.clone();
        let unknown = no_such_id(&find.id);
        let found = async move { ask(&store, find).await.flatten() };
        let found_then = move |supervisor: &mut Self, found, ctx: &mut Context<Self>| {
            let session = match found {
                Ok(Some(key)) if who.sees(&SessionKey::owner(&key)) => {
                    supervisor.resolve(&Target::Session(key), &who).map(Some)
                }
                Ok(_) => Err(unknown),
                Err(error) => Err(error),
            };
            go_on(supervisor, session, ctx);
        };
        self.in_turn(found, found_then);
    }

    /// The session that somebody means by a target.
    pub(super) fn resolve(&self, target: &Target, who: &Principal) -> Result<SessionKey, Error> {
        match target {
            Target::Uuid(id) | Target::Conversation(id) => Err(no_such_id(id)),
            Target::Route(route) => Ok(self.agent_configs().router.session_key(route)?.in_space(&who.owner)),
            Target::Session(key) => {
                if self.agent_configs().agents.contains_key(&AgentId::from(&*key.agent())) {
                    Ok(key.clone())
                } else {
                    let seen = key.seen_by(&who.owner);
                    Err(ErrorCode::NotFound.error(format!("session {seen}: no agent named {}", key.agent())))
                }
            }
        }
    }
}

/// How a session is looked for that is named by an id.
fn by_id(target: &Target, who: &Principal) -> Option<FindSession> {
    let (id, among) = match target {
        // An operator's own come first: nobody else can make one that is found in its place.
        Target::Uuid(uuid) => (uuid, if who.is_operator() { Among::All } else { Among::Own }),
        Target::Conversation(id) => (id, Among::OwnConversations),
        Target::Route(_) | Target::Session(_) => return None,
    };
    Some(FindSession { id: id.clone(), owner: who.owner.clone(), among })
}

fn no_such_id(id: &str) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {}", &id[..id.floor_char_boundary(64)]))
}
