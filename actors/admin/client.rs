//! What the rest of the daemon knows of a connection of the operator's socket: a client like any
//! other, under the principal `socket`, which may do everything and whose work is the operators'.
//!
//! What it follows waits in a queue that is bounded by its [`Window`]: who writes the events gives
//! the room back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix::dev::SendError;
use actix::prelude::*;
use clawmux_core::auth::Principal;
use clawmux_core::command::Command;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::Published;
use clawmux_core::ids::{ConnectionId, Ticket};
use clawmux_core::reply::Reply;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Daemon;
use crate::deliver::{Client, Deliver, Window, cost};
use crate::observe::{Observe, Observed};
use crate::session_supervisor::{Dispatch, Gone};

/// The first number of these connections: those that listeners accept count up from 1 and never get
/// here.
const FIRST_ID: u64 = 1 << 63;

/// How soon a connection that was given up is noticed once all it was sent is written.
const LAG_CHECK: Duration = Duration::from_secs(1);
/// Deliveries that may wait: more than a full window of the smallest events.
const MAILBOX: usize = 1024;

/// The actor.
pub(super) struct AdminClient {
    connection: ConnectionId,
    dispatch: Recipient<Dispatch>,
    gone: Recipient<Gone>,
    window: Arc<Window>,
    events: mpsc::UnboundedSender<(Ticket, Arc<Published>)>,
    tickets: u64,
    /// Requests under way.
    waiting: HashMap<Ticket, oneshot::Sender<Result<Reply, Error>>>,
}

/// The events of what the connection follows, for who writes them.
pub(super) struct Events {
    connection: ConnectionId,
    window: Arc<Window>,
    queue: mpsc::UnboundedReceiver<(Ticket, Arc<Published>)>,
}

impl Events {
    /// The next one; none where there will be no more because the connection has fallen too far
    /// behind. Waits where nothing happens; may be dropped while it waits.
    pub(super) async fn next(&mut self) -> Option<(Ticket, Arc<Published>)> {
        loop {
            match timeout(LAG_CHECK, self.queue.recv()).await {
                Ok(event) => return event,
                Err(_) if self.window.is_lagging() => return None,
                Err(_) => {}
            }
        }
    }

    /// It is written.
    pub(super) fn written(&self, event: &Published) {
        self.window.give_back(cost(event), self.connection);
    }
}

/// Has a command executed.
#[derive(Debug, Message)]
#[rtype(result = "Result<(Ticket, Reply), Error>")]
pub(super) struct Execute(pub(super) Command);

/// The connection is closed. Needed, because the sessions it follows hold the actor.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Leave;

impl AdminClient {
    pub(super) fn new(daemon: &Arc<Daemon>) -> (Self, Events) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let connection = ConnectionId(FIRST_ID + LAST.fetch_add(1, Relaxed));
        let window = Arc::new(Window::default());
        let (events, queue) = mpsc::unbounded_channel();
        let client = Self {
            connection,
            dispatch: daemon.dispatch.clone(),
            gone: daemon.gone.clone(),
            window: window.clone(),
            events,
            tickets: 0,
            waiting: HashMap::new(),
        };
        (client, Events { connection, window, queue })
    }
}

impl Drop for AdminClient {
    fn drop(&mut self) {
        #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
        self.gone.do_send(Gone { connection: self.connection });
    }
}

impl Actor for AdminClient {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Execute> for AdminClient {
    type Result = ResponseFuture<Result<(Ticket, Reply), Error>>;

    fn handle(&mut self, Execute(command): Execute, ctx: &mut Self::Context) -> Self::Result {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (done, answer) = oneshot::channel();
        let sent = self.dispatch.try_send(Dispatch {
            ticket,
            principal: Principal::socket(),
            command,
            client: Client {
                connection: self.connection,
                to: ctx.address().recipient(),
                window: self.window.clone(),
            },
            arbiter: Arbiter::current(),
        });
        match sent {
            Ok(()) => drop(self.waiting.insert(ticket, done)),
            Err(SendError::Full(_)) => {
                let _ = done.send(Err(ErrorCode::Unavailable.error("the daemon is busy: try again")));
            }
            Err(SendError::Closed(_)) => {
                let _ = done.send(Err(ErrorCode::Unavailable.error("the daemon is stopping")));
            }
        }
        Box::pin(async move {
            let lost = |_| ErrorCode::Unavailable.error("the request was lost: try again");
            Ok((ticket, answer.await.map_err(lost)??))
        })
    }
}

impl Handler<Deliver> for AdminClient {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, _: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => {
                if let Some(waiting) = self.waiting.remove(&ticket) {
                    // Nobody waits any more where the method's deadline has passed.
                    let _ = waiting.send(reply);
                }
            }
            Deliver::Announced | Deliver::Invoke(_) => {}
            // Who would write it is gone, and soon so is this.
            Deliver::Event { ticket, event, .. } => drop(self.events.send((ticket, event))),
        }
    }
}

impl Handler<Leave> for AdminClient {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<Observe> for AdminClient {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            format!("admin connection {}", self.connection.0 - FIRST_ID + 1),
            json!({
                "waiting": self.waiting.len(),
                "requests_total": self.tickets,
                "window_taken_bytes": self.window.taken_bytes(),
            }),
        )
    }
}
