//! Which devices may come in, as what, and with which tokens: the rules, without their storage.
//!
//! Whoever shows a credential may pair the device it comes from: over loopback at once, from
//! elsewhere after somebody with the pairing scope approved it. A paired device gets one token for
//! each role it comes in, which it may show instead of a credential from then on, and only together
//! with a proof that it holds its key. Scopes and roles grow by the same road and never by themselves.
//!
//! **A device is its credential's.** It belongs to the owner of the credential it was paired with and
//! is never allowed more than that one is now; where the credential is gone, so is the pairing. A
//! device that shows another credential is let in as that one, and its pairing stays as it is.
//!
//! **Tokens are derived**, not kept: a keyed hash of the device, the role and a random salt, under a
//! secret of the store. So a token can be told again in every handshake and after every restart,
//! while no token stands anywhere; to revoke or to rotate is to forget the salt, and no salt comes
//! twice. Whoever can read the store (or a copy of it) can make the tokens of those salts, but uses
//! none without the key of its device.
//!
//! Nothing here changes by being asked: a [`Step`] says what has to be written down first and is then
//! [applied](Registry::apply). Requests that wait for approval are the exception: they live a few
//! minutes, and a client whose request was lost asks again.

mod command;
mod registry;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use super::About;
use crate::ids::Owner;
use crate::principal::Principal;
use crate::scope::{Role, Scope, Scopes};
use crate::time::Timestamp;

pub use command::{
    ApproveDevice, ApprovedDevice, DeviceCommand, DeviceReply, ListDevices, RejectDevice, RejectedDevice,
    RemoveDevice, RevokeDevice, RevokedDevice, RotateDevice, RotatedDevice, VerifyDevice,
};
pub use registry::{Arrival, Change, DEVICES_MAX, Moment, PENDING_LIFE, PENDING_MAX, Registry, Step};

/// A paired device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its id: the SHA-256 of its public key, in hexadecimal digits.
    pub id: Arc<str>,
    /// Its Ed25519 public key.
    pub public_key: [u8; 32],
    /// What it said of itself when it was paired; cut short, without control characters.
    pub about: About,
    /// The address it came from then.
    pub peer: IpAddr,
    /// The name of the credential it was paired with.
    pub credential: Arc<str>,
    /// When it was first paired.
    pub created: Timestamp,
    /// When that was last approved of, by somebody or silently.
    pub approved: Timestamp,
    /// What it may come as; one a role.
    pub grants: Vec<Grant>,
}

/// What a device may do in one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// The scopes it was granted.
    pub scopes: Scopes,
    /// What its token is made of.
    pub salt: [u8; 16],
    /// When it was first granted.
    pub issued: Timestamp,
    /// When its token was last exchanged.
    pub rotated: Option<Timestamp>,
    /// Since when it holds no longer.
    pub revoked: Option<Timestamp>,
    /// When it was last used; about a minute exact.
    pub used: Option<Timestamp>,
    /// From where that was.
    pub origin: Option<IpAddr>,
}

/// A device that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPairing {
    /// The request's id.
    pub id: String,
    /// The device's id.
    pub device: Arc<str>,
    /// Its public key.
    pub public_key: [u8; 32],
    /// What it says of itself.
    pub about: About,
    /// Where it comes from.
    pub peer: IpAddr,
    /// The credential it showed.
    pub credential: Arc<str>,
    /// Whose that is.
    pub owner: Owner,
    /// As what it wants to come.
    pub role: Role,
    /// The scopes it wants.
    pub scopes: Scopes,
    /// When it asked first.
    pub at: Timestamp,
    /// Whether it is paired already and wants more.
    pub is_repair: bool,
}

/// What whoever may pair devices is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Somebody has to decide.
    Requested(Arc<PendingPairing>),
    /// It is decided.
    Resolved {
        /// The request; one of its own where nobody had to be asked.
        request: String,
        /// The device.
        device: Arc<str>,
        /// As what it comes.
        role: Role,
        /// Whose it is.
        owner: Owner,
        /// Whether it may come in.
        is_approved: bool,
        /// When.
        at: Timestamp,
    },
}

impl News {
    /// Whether somebody with these scopes, who is this owner, may hear of it.
    pub fn is_for(&self, scopes: Scopes, hearer: &Owner) -> bool {
        let owner = match self {
            Self::Requested(pending) => &pending.owner,
            Self::Resolved { owner, .. } => owner,
        };
        scopes.allows(Scope::Pair) && (*hearer == Owner::Admins || hearer == owner)
    }
}

/// The devices, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceList {
    /// Those that wait, the latest first.
    pub pending: Vec<PendingPairing>,
    /// Those that are paired, the latest approved first.
    pub paired: Vec<Device>,
}

impl Device {
    /// What it may do in this role; none where that was revoked.
    pub fn live(&self, role: Role) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.role == role && grant.revoked.is_none())
    }

    /// From where it was last used, or paired.
    pub fn origin(&self) -> IpAddr {
        let last = self.grants.iter().filter(|grant| grant.origin.is_some()).max_by_key(|grant| grant.used);
        last.and_then(|grant| grant.origin).unwrap_or(self.peer)
    }

    /// When it was last used, or paired.
    pub fn used(&self) -> Timestamp {
        self.grants.iter().filter_map(|grant| grant.used).fold(self.approved, Timestamp::max)
    }
}

/// Whether devices of this owner are the principal's to see: all are an operator's, also one that
/// asked for the pairing scope alone.
fn sees(principal: &Principal, owner: &Owner) -> bool {
    principal.owner == Owner::Admins || principal.owner == *owner
}
