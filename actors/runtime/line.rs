//! An actor as a client of the sessions: what it asked for, and where the answers go.
//!
//! So what the daemon does by itself goes the road of everybody.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use actix::dev::SendError;
use actix::prelude::*;
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::ids::{ConnectionId, Owner, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::scope::Scopes;

use crate::runtime::arbiters::Arbiters;
use crate::runtime::deliver::{Asker, Client, Deliver, Window};
use crate::runtime::dispatch::{Gone, Request};

/// The first number of these connections: between those of listeners, which count up from 1, and those
/// of the operator's socket.
const FIRST_ID: u64 = 1 << 62;

/// Sessions can be asked from here on, by an actor that has its own [`Line`] to them.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Begin {
    /// Where requests go.
    pub dispatch: Recipient<Request<SessionCommand>>,
    /// Who is told that a connection is gone.
    pub gone: Recipient<Gone>,
}

/// The way to the sessions and back.
pub(crate) struct Line<T> {
    /// Whose it is, as sessions know it.
    name: &'static str,
    connection: ConnectionId,
    window: Arc<Window>,
    sessions: Begin,
    /// Whose threads sessions are woken on; none = that of whoever asks.
    arbiters: Option<Arbiters>,
    tickets: u64,
    /// What was asked for and is not over.
    waiting: HashMap<Ticket, T>,
}

impl<T> Line<T> {
    /// The line of the actor of this name.
    pub(crate) fn new(name: &'static str, sessions: Begin) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            name,
            connection: ConnectionId(FIRST_ID + LAST.fetch_add(1, Relaxed)),
            window: Arc::default(),
            sessions,
            arbiters: None,
            tickets: 0,
            waiting: HashMap::new(),
        }
    }

    /// It, with sessions woken on these in turn: for one whose own thread ends before they do.
    #[cfg(feature = "nats")]
    pub(crate) fn waking_on(mut self, arbiters: Arbiters) -> Self {
        self.arbiters = Some(arbiters);
        self
    }

    /// Another one in its place: nothing that was asked for over this one is heard any more.
    pub(crate) fn anew(&self) -> Self {
        let mut line = Self::new(self.name, self.sessions.clone());
        line.arbiters.clone_from(&self.arbiters);
        line
    }

    /// Asks for something on behalf of an owner.
    ///
    /// # Errors
    /// What it was for, where it can't be asked for now.
    pub(crate) fn ask(
        &mut self,
        owner: Owner,
        command: SessionCommand,
        waiting: T,
        to: Recipient<Deliver>,
    ) -> Result<(), Box<T>> {
        // A job of the operators' may be about anybody's session.
        let scopes = if owner == Owner::Admins { Scopes::ADMIN } else { Scopes::USER };
        self.ask_as(owner, scopes, command, waiting, to)
    }

    /// Asks for something on behalf of an owner who may do this.
    ///
    /// # Errors
    /// What it was for, where it can't be asked for now.
    pub(crate) fn ask_as(
        &mut self,
        owner: Owner,
        scopes: Scopes,
        command: SessionCommand,
        waiting: T,
        to: Recipient<Deliver>,
    ) -> Result<(), Box<T>> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let principal = Principal { owner, unlimited: true, ..Principal::new(self.name, scopes) };
        let client = Client {
            connection: self.connection,
            to,
            window: self.window.clone(),
            arbiter: self.arbiters.as_ref().map_or_else(Arbiter::current, Arbiters::next),
        };
        let asker = Asker::new(client, ticket);
        if let Err(SendError::Full(request) | SendError::Closed(request)) =
            self.sessions.dispatch.try_send(Request { command, principal, asker })
        {
            request.asker.forget();
            return Err(Box::new(waiting));
        }
        self.waiting.insert(ticket, waiting);
        Ok(())
    }

    /// What was asked for under a ticket.
    pub(crate) fn waiting(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.waiting.get_mut(&ticket)
    }

    /// It is over.
    pub(crate) fn over(&mut self, ticket: Ticket) -> Option<T> {
        self.waiting.remove(&ticket)
    }

    /// An event was taken.
    pub(crate) fn taken(&self, cost: usize) {
        self.window.give_back(cost, self.connection);
    }

    /// Whether it fell too far behind the log and hears no more.
    pub(crate) fn is_lagging(&self) -> bool {
        self.window.is_lagging()
    }

    /// How much waits for answers or follows.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl<T> Drop for Line<T> {
    fn drop(&mut self) {
        #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
        self.sessions.gone.do_send(Gone { connection: self.connection });
    }
}
