//! `Hub`: who is connected, and what concerns all of them.
//!
//! Connections join with their principal and their link; the hub tells them what is not about one
//! session: that the daemon stops, that a credential was revoked. Either ends the connection, and
//! by its link it does so in time also while its actor can't hear. The hub is not on the path of a
//! token: sessions send to their followers directly.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use actix::prelude::*;
use clawmux_core::announcement::Announcement;
use clawmux_core::auth::Role;
use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;
use serde_json::json;

use crate::clock;
use crate::connection::link::Link;
use crate::deliver::Deliver;
use crate::observe::{Observe, Observed};

/// Who is connected.
#[derive(Debug, Default)]
pub struct Hub {
    present: HashMap<ConnectionId, Present>,
}

#[derive(Debug)]
struct Present {
    principal: Arc<str>,
    device: Option<(Arc<str>, Role)>,
    to: Recipient<Deliver>,
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
    /// The paired device it comes from, and as what.
    pub device: Option<(Arc<str>, Role)>,
    /// Where it takes announcements.
    pub to: Recipient<Deliver>,
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

/// Tells some connections, or all.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Broadcast {
    /// What.
    pub notice: Notice,
    /// Whose connections.
    pub whose: Whose,
}

/// Some of the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All.
    All,
    /// Those of the principal with this name.
    Principal(Arc<str>),
    /// Those of this device, in this role or in any.
    Device(Arc<str>, Option<Role>),
}

/// Tells all connections; each tells its client what that may know of it. One that has no room for
/// it misses it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Announce(pub Arc<Announcement>);

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

    fn handle(&mut self, join: Join, _: &mut Self::Context) {
        let Join { connection, principal, device, to, link } = join;
        self.present.insert(connection, Present { principal, device, to, link });
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

    fn handle(&mut self, Broadcast { notice, whose }: Broadcast, _: &mut Self::Context) {
        let fault = match notice {
            Notice::Draining => Fault::Draining,
            Notice::Revoked => Fault::Revoked,
        };
        for present in self.present.values() {
            if whose.includes(present)
                && let Some(link) = present.link.upgrade()
            {
                link.close(fault, clock::now());
            }
        }
    }
}

impl Handler<Announce> for Hub {
    type Result = ();

    fn handle(&mut self, Announce(announcement): Announce, _: &mut Self::Context) {
        for present in self.present.values() {
            let _ = present.to.try_send(Deliver::Announce(announcement.clone()));
        }
    }
}

impl Whose {
    fn includes(&self, present: &Present) -> bool {
        match self {
            Self::All => true,
            Self::Principal(name) => *name == present.principal,
            Self::Device(device, role) => present
                .device
                .as_ref()
                .is_some_and(|(id, as_what)| id == device && role.is_none_or(|role| role == *as_what)),
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
