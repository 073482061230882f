//! `admin.devices` and `admin.device.*`: paired devices, and those that wait for approval.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::event::owner_name;
use super::method::{Method, Request, ask, method};
use crate::access::About;
use crate::access::pairing::{
    ApproveDevice, Device, Grant, ListDevices, PendingPairing, RejectDevice, RevokeDevice,
};
use crate::error::{Error, ErrorCode};
use crate::scope::{Role, Scope, Scopes};

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.devices", "{}", list),
    method("admin.device.approve", r#"{"request"}"#, approve),
    method("admin.device.reject", r#"{"request"}"#, reject),
    method("admin.device.revoke", r#"{"device", "role"?}"#, revoke),
];

/// `admin.devices`: `{"pending": [..], "paired": [..]}`, the latest first. No token is ever in it.
fn list(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(ListDevices, |list| {
        json!({
            "pending": list.pending.iter().map(pending).collect::<Vec<_>>(),
            "paired": list.paired.iter().map(device).collect::<Vec<_>>(),
        })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PairingParams {
    request: String,
}

/// `admin.device.approve`: `{"request", "device", "role", "approved": true}`.
fn approve(request: &Request) -> Result<Call, Error> {
    let PairingParams { request } = request.read()?;
    ask(ApproveDevice { request }, |done| {
        json!({
            "request": done.request,
            "device": &*done.device.id,
            "role": done.role.name(),
            "approved": true,
        })
    })
}

/// `admin.device.reject`: `{"request", "device", "rejected": true}`.
fn reject(request: &Request) -> Result<Call, Error> {
    let PairingParams { request } = request.read()?;
    ask(
        RejectDevice { request },
        |done| json!({ "request": done.request, "device": &*done.device, "rejected": true }),
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceParams {
    device: String,
    role: Option<String>,
}

/// `admin.device.revoke`: `{"device", "roles", "revoked": true}`; its connections are closed.
fn revoke(request: &Request) -> Result<Call, Error> {
    let DeviceParams { device, role } = request.read()?;
    let role = role.map(|name| role_of(&name)).transpose()?;
    ask(RevokeDevice { device, role }, |done| {
        let roles: Vec<_> = done.roles.into_iter().map(Role::name).collect();
        json!({ "device": &*done.device, "roles": roles, "revoked": true })
    })
}

fn role_of(name: &str) -> Result<Role, Error> {
    Role::from_name(name).ok_or_else(|| {
        ErrorCode::InvalidRequest.error("there is no such role: it is \"operator\" or \"node\"")
    })
}

fn pending(pending: &PendingPairing) -> Value {
    json!({
        "request": pending.id,
        "device": &*pending.device,
        "name": name(&pending.about),
        "platform": pending.about.platform,
        "role": pending.role.name(),
        "scopes": scopes(pending.scopes),
        "credential": &*pending.credential,
        "owner": owner_name(&pending.owner),
        "address": pending.peer.to_string(),
        "repair": pending.is_repair,
        "requested_ms": pending.at.as_millis(),
    })
}

fn device(device: &Device) -> Value {
    json!({
        "device": &*device.id,
        "name": name(&device.about),
        "platform": device.about.platform,
        "credential": &*device.credential,
        "address": device.peer.to_string(),
        "origin": device.origin().to_string(),
        "created_ms": device.created.as_millis(),
        "approved_ms": device.approved.as_millis(),
        "used_ms": device.used().as_millis(),
        "roles": device.grants.iter().map(grant).collect::<Vec<_>>(),
    })
}

fn grant(grant: &Grant) -> Value {
    json!({
        "role": grant.role.name(),
        "scopes": scopes(grant.scopes),
        "issued_ms": grant.issued.as_millis(),
        "rotated_ms": grant.rotated.map(|at| at.as_millis()),
        "revoked_ms": grant.revoked.map(|at| at.as_millis()),
        "used_ms": grant.used.map(|at| at.as_millis()),
        "origin": grant.origin.map(|origin| origin.to_string()),
    })
}

/// What people know it by.
fn name(about: &About) -> &str {
    about.display_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&about.client_id)
}

/// `admin` stands for all.
fn scopes(scopes: Scopes) -> Vec<&'static str> {
    if scopes.allows(Scope::Admin) {
        return vec![Scope::Admin.name()];
    }
    Scope::ALL.into_iter().filter(|scope| scopes.allows(*scope)).map(Scope::name).collect()
}
