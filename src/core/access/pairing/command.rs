//! What those ask who may pair devices, and what they are answered.

use std::sync::Arc;

use super::{Device, DeviceList};
use crate::access::Secret;
use crate::area::area;
use crate::scope::{Role, Scopes};
use crate::time::Timestamp;

area! {
    /// What can be asked about paired devices.
    Device(DeviceCommand => DeviceReply) {
        /// Those that are paired, and those that wait for approval.
        List(ListDevices) => List(DeviceList),
        /// Let one in that waits.
        Approve(ApproveDevice) => Approved(ApprovedDevice),
        /// Do not.
        Reject(RejectDevice) => Rejected(RejectedDevice),
        /// Forget a device: it has to be paired anew.
        Remove(RemoveDevice) => Removed(Arc<str>),
        /// Give a device another token; the one it has holds no longer.
        Rotate(RotateDevice) => Rotated(RotatedDevice),
        /// Let a device no longer come as this.
        Revoke(RevokeDevice) => Revoked(RevokedDevice),
        /// Whether a token is that of a device.
        Verify(VerifyDevice) => Verified(Option<Box<Device>>),
    }
}

/// Which devices are paired, and which wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListDevices;

/// Let a device in that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApproveDevice {
    /// The id of its request.
    pub request: String,
}

/// Do not let a device in that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectDevice {
    /// The id of its request.
    pub request: String,
}

/// Forget a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveDevice {
    /// Its id.
    pub device: String,
}

/// Give a device another token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotateDevice {
    /// Its id.
    pub device: String,
    /// The role whose token it is.
    pub role: Role,
    /// How far the new one goes; none = as far as the old one.
    pub scopes: Option<Scopes>,
}

/// Let a device no longer come in a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeDevice {
    /// Its id.
    pub device: String,
    /// The role; none = any.
    pub role: Option<Role>,
}

/// Whether a token is that of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyDevice {
    /// The id of the device.
    pub device: String,
    /// The role it comes in.
    pub role: Role,
    /// The token.
    pub token: Secret,
}

/// The answer to a [`DeviceCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceReply {
    /// To `List`.
    List(DeviceList),
    /// To `Approve`.
    Approved(ApprovedDevice),
    /// To `Reject`.
    Rejected(RejectedDevice),
    /// To `Remove`: the id of the device.
    Removed(Arc<str>),
    /// To `Rotate`.
    Rotated(RotatedDevice),
    /// To `Revoke`.
    Revoked(RevokedDevice),
    /// To `Verify`: the device, if the token is its.
    Verified(Option<Box<Device>>),
}

/// A device was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedDevice {
    /// The id of its request.
    pub request: String,
    /// The role in which it may come.
    pub role: Role,
    /// The device, as it is paired now.
    pub device: Box<Device>,
}

/// A device was not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedDevice {
    /// The id of its request.
    pub request: String,
    /// The id of the device.
    pub device: Arc<str>,
}

/// A device has another token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotatedDevice {
    /// Its id.
    pub device: Arc<str>,
    /// The role whose token it is.
    pub role: Role,
    /// The new token.
    pub token: Secret,
    /// How far it goes.
    pub scopes: Scopes,
    /// When it was given.
    pub at: Timestamp,
}

/// A device may no longer come in some roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedDevice {
    /// Its id.
    pub device: Arc<str>,
    /// The roles whose tokens hold no longer.
    pub roles: Vec<Role>,
    /// When they were revoked.
    pub at: Timestamp,
}
