//! How a built-in tool asks the rest of the daemon: as a client would, on behalf of the session's owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use serde_json::json;
use tokio::sync::oneshot;

use crate::runtime::deliver::{Asker, Client, Deliver, Window};
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};

/// The first number of the connections that calls ask over: below those of the agent supervisor and the scheduler.
const FIRST_ID: u64 = 1 << 61;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks whoever answers commands of this area.
///
/// # Errors
/// As [`ask_within`]'s.
pub(super) async fn ask<C: Send>(
    whom: &Recipient<Request<C>>,
    command: C,
    principal: Principal,
) -> Result<Reply, Error> {
    ask_within(TIMEOUT, whom, command, principal).await
}

/// The same with another deadline.
///
/// # Errors
/// What it is answered; `Unavailable` where nobody has time for it, `Timeout` where no answer came: what was
/// asked may still be done.
pub(super) async fn ask_within<C: Send>(
    deadline: Duration,
    whom: &Recipient<Request<C>>,
    command: C,
    principal: Principal,
) -> Result<Reply, Error> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let (done, answer) = oneshot::channel();
    let to = Letterbox(Some(done)).start();
    let client = Client {
        connection: ConnectionId(FIRST_ID + LAST.fetch_add(1, Relaxed)),
        to: to.recipient(),
        window: Arc::<Window>::default(),
        arbiter: Arbiter::current(),
    };
    let asker = Asker::new(client, Ticket(1));
    let busy = |_| ErrorCode::Unavailable.error("the daemon is busy: try again");
    whom.try_send(Request { command, principal, asker }).map_err(busy)?;
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(_)) => Err(ErrorCode::Unavailable.error("the request was lost: try again")),
        Err(_) => {
            let seconds = deadline.as_secs();
            let late = format!("no answer within {seconds} s: it may still be done");
            Err(ErrorCode::Timeout.error(late))
        }
    }
}

/// Takes one answer.
struct Letterbox(Option<oneshot::Sender<Result<Reply, Error>>>);

impl Actor for Letterbox {
    type Context = Context<Self>;
}

impl Handler<Deliver> for Letterbox {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        if let (Deliver::Reply(_, reply), Some(done)) = (delivery, self.0.take()) {
            // Nobody waits any more where the run was ended.
            let _ = done.send(reply);
        }
        ctx.stop();
    }
}

impl Handler<Observe> for Letterbox {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf("letterbox", json!({ "waiting": self.0.is_some() }))
    }
}
