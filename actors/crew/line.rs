//! The crew as a client of the sessions: what it asked for, and where the answers go.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use actix::prelude::*;
use clawmux_core::auth::{Owner, Principal, Scopes};
use clawmux_core::command::Command;
use clawmux_core::crew::Effect;
use clawmux_core::ids::{ConnectionId, SubAgentId, Ticket};
use clawmux_core::turn::Turn;

use super::Promise;
use crate::deliver::{Client, Deliver, Window};
use crate::session_supervisor::{Dispatch, Gone};

/// The first number of these connections: between those of listeners, which count up from 1, and those
/// of the operator's socket.
const FIRST_ID: u64 = 1 << 62;

/// The way to the sessions and back.
pub(super) struct Line {
    connection: ConnectionId,
    window: Arc<Window>,
    dispatch: Recipient<Dispatch>,
    gone: Recipient<Gone>,
    tickets: u64,
    waiting: HashMap<Ticket, Waiting>,
}

/// Something that was asked for and is not over.
pub(super) struct Waiting {
    /// What it is for.
    pub(super) effect: Effect,
    /// How often it was asked for.
    pub(super) attempt: u32,
    /// The run that is followed, where it is one.
    pub(super) run: Option<Followed>,
    /// Who waits for it: is answered when the last of these is dropped.
    pub(super) _promise: Option<Rc<Promise>>,
}

/// A turn whose run is followed.
pub(super) struct Followed {
    /// Whose.
    pub(super) agent: SubAgentId,
    /// Which.
    pub(super) turn: u32,
    /// The fold of its events so far.
    pub(super) fold: Turn,
}

impl Line {
    pub(super) fn new(dispatch: Recipient<Dispatch>, gone: Recipient<Gone>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            connection: ConnectionId(FIRST_ID + LAST.fetch_add(1, Relaxed)),
            window: Arc::default(),
            dispatch,
            gone,
            tickets: 0,
            waiting: HashMap::new(),
        }
    }

    /// Another one in its place: nothing that was asked for over this one is heard any more.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.dispatch.clone(), self.gone.clone())
    }

    /// Asks for something on behalf of an owner; gives it back where it can't be asked for now.
    pub(super) fn ask(
        &mut self,
        owner: Owner,
        command: Command,
        waiting: Waiting,
        to: Recipient<Deliver>,
    ) -> Result<(), Box<Waiting>> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let principal = Principal { owner, unlimited: true, ..Principal::new("crew", Scopes::USER) };
        let client = Client { connection: self.connection, to, window: self.window.clone() };
        let dispatch = Dispatch { ticket, principal, command, client, arbiter: Arbiter::current() };
        if self.dispatch.try_send(dispatch).is_err() {
            return Err(Box::new(waiting));
        }
        self.waiting.insert(ticket, waiting);
        Ok(())
    }

    /// What was asked for under a ticket.
    pub(super) fn waiting(&mut self, ticket: Ticket) -> Option<&mut Waiting> {
        self.waiting.get_mut(&ticket)
    }

    /// It is over.
    pub(super) fn over(&mut self, ticket: Ticket) -> Option<Waiting> {
        self.waiting.remove(&ticket)
    }

    /// An event was taken.
    pub(super) fn taken(&self, cost: usize) {
        self.window.give_back(cost, self.connection);
    }

    /// Whether it fell too far behind the log and hears no more.
    pub(super) fn is_lagging(&self) -> bool {
        self.window.is_lagging()
    }

    /// How much waits for answers or follows.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
        self.gone.do_send(Gone { connection: self.connection });
    }
}
