//! Clients as a session's followers: connections with little room, which check everything they are
//! told against the log.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use clawmux_core::conversation::event::{Event, Published};
use clawmux_core::conversation::follow::{Sent, Sink, Wanted};
use clawmux_core::ids::{ConnectionId, RunId, Seq, Ticket};

use crate::log::Log;
use crate::rules::{self, Check};

/// One connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) connection: ConnectionId,
    /// How many events it takes before it is full.
    pub(crate) room: Cell<usize>,
    /// Whether a session is to be told when there is room.
    pub(crate) is_full: Cell<bool>,
    /// Whether a session was told that there is none, and nothing since.
    pub(crate) is_known_full: Cell<bool>,
    pub(crate) is_closed: Cell<bool>,
    /// Whether it fell too far behind.
    pub(crate) lags: Cell<bool>,
    tickets: Cell<u64>,
    /// What has come and was not looked at.
    inbox: RefCell<Vec<(Ticket, Arc<Published>)>>,
    views: RefCell<Vec<View>>,
}

/// What a connection asked to be told.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) ticket: Ticket,
    pub(crate) wanted: Wanted,
    /// The last number it was told, or need not be told.
    pub(crate) last: Seq,
    /// Whether it was let go: what still comes is passed over.
    pub(crate) is_detached: bool,
    /// Runs that were told by themselves meanwhile, up to their end.
    pub(crate) left_out: Vec<RunId>,
    /// Whether the run's end was told.
    pub(crate) is_over: bool,
}

/// Who waits for an answer: a connection, and the ticket of its request.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) peer: Rc<Peer>,
    pub(crate) ticket: Ticket,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}/{}", self.peer.connection.0, self.ticket.0)
    }
}

impl Asker {
    /// The answer has come: what is told under this ticket begins after this number.
    pub(crate) fn follows(&self, wanted: Wanted, after: Seq) {
        let view = View {
            ticket: self.ticket,
            wanted,
            last: after,
            is_detached: false,
            left_out: Vec::new(),
            is_over: false,
        };
        self.peer.views.borrow_mut().push(view);
    }
}

/// A session's way to a connection.
#[derive(Clone, Debug)]
pub(crate) struct Way(pub(crate) Rc<Peer>);

impl Sink for Way {
    fn send(&mut self, ticket: Ticket, _: Seq, event: &Arc<Published>) -> Sent {
        if self.0.is_closed.get() {
            return Sent::Closed;
        }
        let room = self.0.room.get();
        if room == 0 {
            self.0.is_full.set(true);
            self.0.is_known_full.set(true);
            return Sent::Full;
        }
        self.0.room.set(room - 1);
        self.0.inbox.borrow_mut().push((ticket, event.clone()));
        Sent::Taken
    }

    fn lag(&mut self) {
        self.0.lags.set(true);
    }

    fn is_open(&self) -> bool {
        !self.0.is_closed.get()
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.0.room.get() > 0;
        if !has_room {
            self.0.is_full.set(true);
            self.0.is_known_full.set(true);
        }
        has_room
    }
}

impl Peer {
    pub(crate) fn new(connection: u64, room: usize) -> Rc<Self> {
        Rc::new(Self {
            connection: ConnectionId(connection),
            room: Cell::new(room),
            is_full: Cell::new(false),
            is_known_full: Cell::new(false),
            is_closed: Cell::new(false),
            lags: Cell::new(false),
            tickets: Cell::new(0),
            inbox: RefCell::default(),
            views: RefCell::default(),
        })
    }

    /// Asks for something, under a ticket of its own.
    pub(crate) fn asker(self: &Rc<Self>) -> Asker {
        self.tickets.set(self.tickets.get() + 1);
        Asker { peer: self.clone(), ticket: Ticket(self.tickets.get()) }
    }

    /// The last number that it was told of the whole session, if it follows that.
    pub(crate) fn seen(&self) -> Option<Seq> {
        let views = self.views.borrow();
        views.iter().filter(|view| view.is_session()).map(|view| view.last).max()
    }

    /// The ticket under which it follows the whole session.
    pub(crate) fn follow(&self) -> Option<Ticket> {
        let views = self.views.borrow();
        views.iter().find(|view| view.is_session()).map(|view| view.ticket)
    }

    /// It wants to be told nothing more under this ticket.
    pub(crate) fn detach(&self, ticket: Ticket) {
        for view in self.views.borrow_mut().iter_mut().filter(|view| view.ticket == ticket) {
            view.is_detached = true;
        }
    }

    /// Looks at what has come; gives how many events.
    pub(crate) fn look(&self, log: &Log) -> Check<u64> {
        let mut inbox = self.inbox.borrow_mut();
        let count = inbox.len() as u64;
        let views = &mut *self.views.borrow_mut();
        for (ticket, event) in inbox.drain(..) {
            let logged = &event.logged;
            let index = views.iter().position(|view| view.ticket == ticket);
            let index = rules::an_answer_comes_before_its_events(index, logged)?;
            let view = &views[index];
            if view.is_detached {
                continue;
            }
            // What one that is given up asked for is forgotten; it asks for more at its own risk.
            if !self.lags.get() {
                rules::nothing_is_told_under_two_tickets(view, views, logged)?;
            }
            rules::what_is_told_is_the_log(log, logged)?;
            rules::what_is_told_follows_what_was_told(log, view, views, logged)?;
            let view = &mut views[index];
            view.last = logged.seq;
            view.is_over = view.run().is_some() && matches!(logged.event, Event::Ended { .. });
            if view.is_over {
                for view in views.iter_mut().filter(|view| view.last < logged.seq) {
                    view.left_out.extend(logged.run.clone());
                }
            }
        }
        Ok(count)
    }

    /// Whether it was told everything that it asked for.
    pub(crate) fn has_everything(&self, log: &Log) -> bool {
        let views = self.views.borrow();
        views.iter().all(|view| match &view.wanted {
            _ if view.is_detached => true,
            Wanted::Run(_) => view.is_over,
            Wanted::Session | Wanted::Watch | Wanted::Calls => {
                let own = |run: &RunId| views.iter().any(|view| view.run() == Some(run));
                log.events()
                    .iter()
                    .rev()
                    .take_while(|logged| logged.seq > view.last)
                    .all(|logged| logged.run.as_ref().is_some_and(own))
            }
        })
    }
}

impl View {
    /// Whether it is of the whole session, still.
    fn is_session(&self) -> bool {
        !matches!(self.wanted, Wanted::Run(_)) && !self.is_detached
    }

    /// The run, if it wants one.
    pub(crate) fn run(&self) -> Option<&RunId> {
        match &self.wanted {
            Wanted::Run(run) => Some(run),
            Wanted::Session | Wanted::Watch | Wanted::Calls => None,
        }
    }
}
