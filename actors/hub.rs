//! `Hub`: who is connected, and what concerns all of them.
//!
//! Connections join with their principal and their link; the hub tells them what is not about one
//! session: that the daemon stops, that a credential was revoked. Either ends the connection, and
//! by its link it does so in time also while its actor can't hear. The hub is not on the path of a
//! token: sessions send to their followers directly.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use actix::prelude::*;
use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;
use serde_json::json;

use crate::clock;
use crate::connection::link::Link;
use crate::observe::{Observe, Observed};

/// Who is connected.
#[derive(Debug, Default)]
pub struct Hub {
    present: HashMap<ConnectionId, Present>,
}

#[derive(Debug)]
struct Present {
    principal: Arc<str>,
    link: Weak<Link>,
}

/// A connection has completed its handshake, as this principal.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Join {
    /// Which.
    pub connection: ConnectionId,
    /// The principal's name.
    pub principal: Arc<str>,
    /// What ends it; held by the connection.
    pub link: Weak<Link>,
}

/// A connection is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Leave {
    /// Which.
    pub connection: ConnectionId,
}

/// What concerns a connection as such, and ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The daemon stops.
    Draining,
    /// The connection's credential was revoked.
    Revoked,
}

/// Tells every connection, or those of one principal.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Broadcast {
    /// What.
    pub notice: Notice,
    /// Whose connections; none means all.
    pub principal: Option<Arc<str>>,
}

/// How many connections are present?
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "usize")]
pub struct Connected;

impl Actor for Hub {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<Join> for Hub {
    type Result = ();

    fn handle(&mut self, Join { connection, principal, link }: Join, _: &mut Self::Context) {
        self.present.insert(connection, Present { principal, link });
    }
}

impl Handler<Leave> for Hub {
    type Result = ();

    fn handle(&mut self, Leave { connection }: Leave, _: &mut Self::Context) {
        self.present.remove(&connection);
    }
}

impl Handler<Broadcast> for Hub {
    type Result = ();

    fn handle(&mut self, Broadcast { notice, principal }: Broadcast, _: &mut Self::Context) {
        let fault = match notice {
            Notice::Draining => Fault::Draining,
            Notice::Revoked => Fault::Revoked,
        };
        for present in self.present.values() {
            if principal.as_ref().is_none_or(|name| *name == present.principal)
                && let Some(link) = present.link.upgrade()
            {
                link.close(fault, clock::now());
            }
        }
    }
}

impl Handler<Connected> for Hub {
    type Result = usize;

    fn handle(&mut self, _: Connected, _: &mut Self::Context) -> usize {
        self.present.len()
    }
}

impl Handler<Observe> for Hub {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let mut principals = std::collections::BTreeMap::<&str, usize>::new();
        for present in self.present.values() {
            *principals.entry(&present.principal).or_default() += 1;
        }
        Observed::leaf(
            "hub",
            json!({ "connections": self.present.len(), "connections_by_principal": principals }),
        )
    }
}

/// Makes the hub panic, for tests of what follows.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage;

#[cfg(test)]
impl Handler<Sabotage> for Hub {
    type Result = ();

    fn handle(&mut self, _: Sabotage, _: &mut Self::Context) {
        panic!("sabotaged");
    }
}
