//! The scheduler as a client of the sessions: what it asked for, and where the answers go.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use actix::prelude::*;
use clawmux_core::auth::{Owner, Principal, Scopes};
use clawmux_core::command::Command;
use clawmux_core::ids::{ConnectionId, JobId, Ticket};
use clawmux_core::time::Timestamp;

use crate::deliver::{Client, Deliver, Window};
use crate::session_supervisor::{Dispatch, Gone};

/// The first number of these connections: between those of the crew and those of the operator's socket.
const FIRST_ID: u64 = (1 << 62) + (1 << 61);

/// Which firing: its job, and when it was due.
pub(super) type FiringId = (JobId, Timestamp);

/// The way to the sessions and back.
pub(super) struct Line {
    connection: ConnectionId,
    window: Arc<Window>,
    dispatch: Recipient<Dispatch>,
    gone: Recipient<Gone>,
    tickets: u64,
    /// What was asked for and is not over.
    waiting: HashMap<Ticket, FiringId>,
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

    /// Asks for something on behalf of an owner; says whether it could be asked for now.
    pub(super) fn ask(
        &mut self,
        owner: Owner,
        command: Command,
        firing: FiringId,
        to: Recipient<Deliver>,
    ) -> bool {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let principal = Principal { owner, unlimited: true, ..Principal::new("scheduler", Scopes::USER) };
        let client = Client { connection: self.connection, to, window: self.window.clone() };
        let dispatch = Dispatch { ticket, principal, command, client, arbiter: Arbiter::current() };
        let is_sent = self.dispatch.try_send(dispatch).is_ok();
        if is_sent {
            self.waiting.insert(ticket, firing);
        }
        is_sent
    }

    /// The firing that something was asked for under this ticket.
    pub(super) fn firing(&self, ticket: Ticket) -> Option<&FiringId> {
        self.waiting.get(&ticket)
    }

    /// What was asked for is over.
    pub(super) fn over(&mut self, ticket: Ticket) -> Option<FiringId> {
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
