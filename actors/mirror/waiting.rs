//! Which calls of a session wait for approval before its mirror is told anything.

use std::collections::HashMap;

use actix::Addr;
use clawmux_core::conversation::approval::{ApprovalRequest, PendingCall};
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ApprovalId, Owner, RunId, Seq, SessionKey};

use super::READ_BYTES;
use crate::runtime::ask::ask;
use crate::store::{AskedBy, ReadEvents, Store, UnfinishedSince};

/// Calls that were asked for and not decided, by the events of runs that are not over.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Who prompted those runs.
    pub(super) prompted_by: HashMap<RunId, Owner>,
    pub(super) calls: Vec<PendingCall>,
}

/// A call that was asked for.
pub(super) fn pending(
    session: &SessionKey,
    run: &RunId,
    prompted_by: &HashMap<RunId, Owner>,
    asked: &ApprovalRequest,
) -> PendingCall {
    let owner = session.owner();
    PendingCall {
        id: ApprovalId::of(run, &asked.call.id),
        session: session.clone(),
        run: run.clone(),
        prompted_by: prompted_by.get(run).unwrap_or(&owner).clone(),
        owner,
        asked: asked.clone(),
    }
}

impl Waiting {
    /// Takes an event in.
    fn note(&mut self, session: &SessionKey, logged: Logged) {
        let Some(run) = logged.run else { return };
        match logged.event {
            Event::Prompted { owner, .. } => drop(self.prompted_by.insert(run, owner)),
            Event::Ended { .. } => {
                self.prompted_by.remove(&run);
                self.calls.retain(|call| call.run != run);
            }
            Event::ApprovalAsked(asked) => {
                self.calls.push(pending(session, &run, &self.prompted_by, &asked));
            }
            Event::ApprovalDecided(decided) => {
                let id = ApprovalId::of(&run, &decided.call);
                self.calls.retain(|call| call.id != id);
            }
            _ => {}
        }
    }
}

/// Reads them, from events up to a number.
///
/// # Errors
/// As the store's.
pub(super) async fn read(store: Addr<Store>, session: SessionKey, head: Seq) -> Result<Waiting, Error> {
    let mut waiting = Waiting::default();
    let Some(first) = ask(&store, UnfinishedSince(session.clone())).await.flatten()? else {
        return Ok(waiting);
    };
    let mut after = Seq(first.0.saturating_sub(1));
    while after < head {
        let question = ReadEvents { session: session.clone(), after, run: None, max_bytes: READ_BYTES };
        let read = store.send(AskedBy { owner: session.owner(), question }).await;
        let events = read.map_err(|_| ErrorCode::Unavailable.error("the store has stopped")).flatten()?;
        let Some(last) = events.last().map(|logged| logged.seq) else { break };
        after = last;
        events
            .into_iter()
            .filter(|logged| logged.seq <= head)
            .for_each(|logged| waiting.note(&session, logged));
    }
    Ok(waiting)
}
