//! Requests of methods to sessions, as any client's are: the answers come as deliveries to the actor.
//!
//! Nothing is followed this way, so no events come.

use std::collections::HashMap;

use actix::dev::SendError;
use actix::prelude::*;
use clawmux_core::auth::Principal;
use clawmux_core::command::Command;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, Ticket};
use clawmux_core::reply::Reply;
use tokio::sync::oneshot;

use super::Admin;
use crate::deliver::{Client, Deliver};

/// What sessions know the actor as: connections count up from 1 and never get here.
const CONNECTION: ConnectionId = ConnectionId(1 << 63);

/// Those under way.
#[derive(Debug, Default)]
pub(super) struct Asked {
    last: u64,
    waiting: HashMap<Ticket, oneshot::Sender<Result<Reply, Error>>>,
}

impl Asked {
    /// How many.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Has a command executed for this principal.
#[derive(Debug, Message)]
#[rtype(result = "Result<(Ticket, Reply), Error>")]
pub(super) struct Execute {
    pub(super) command: Command,
    pub(super) principal: Principal,
}

impl Handler<Execute> for Admin {
    type Result = ResponseFuture<Result<(Ticket, Reply), Error>>;

    fn handle(&mut self, Execute { command, principal }: Execute, ctx: &mut Self::Context) -> Self::Result {
        let Some(daemon) = &self.daemon else {
            return Box::pin(async { Err(ErrorCode::Unavailable.error("the daemon is starting")) });
        };
        // Those that nobody waits for any more, because the deadline of their method has passed.
        self.asked.waiting.retain(|_, waiting| !waiting.is_closed());
        self.asked.last += 1;
        let ticket = Ticket(self.asked.last);
        let client = Client {
            connection: CONNECTION,
            to: ctx.address().recipient(),
            window: Default::default(),
            arbiter: Arbiter::current(),
        };
        if let Err(error) = daemon.routes.send(command, principal, client, ticket) {
            let why = match error {
                SendError::Full(_) => "the daemon is busy: try again",
                SendError::Closed(_) => "the daemon is stopping",
            };
            return Box::pin(async move { Err(ErrorCode::Unavailable.error(why)) });
        }
        let (done, answer) = oneshot::channel();
        self.asked.waiting.insert(ticket, done);
        Box::pin(async move {
            let lost = |_| ErrorCode::Unavailable.error("the request was lost: try again");
            Ok((ticket, answer.await.map_err(lost)??))
        })
    }
}

impl Handler<Deliver> for Admin {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, _: &mut Self::Context) {
        if let Deliver::Reply(ticket, reply) = delivery
            && let Some(waiting) = self.asked.waiting.remove(&ticket)
        {
            let _ = waiting.send(reply);
        }
    }
}
