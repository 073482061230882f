//! `admin.devices` and `admin.device.*`: paired devices, and those that wait for approval.

use clawmux_core::auth::pairing::{Device, DeviceCommand, DeviceReply, Grant, Pending};
use clawmux_core::auth::{About, Role, Scope, Scopes};
use clawmux_core::command::Command;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::reply::Reply;
use serde::Deserialize;
use serde_json::{Value, json};

use super::event::owner_name;
use super::methods::Call;
use super::session::{execute, unexpected};

/// `admin.devices`: `{"pending": [..], "paired": [..]}`, the latest first. No token is ever in it.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.devices")?;
    match ask(&call, DeviceCommand::List).await? {
        DeviceReply::List(list) => Ok(json!({
            "pending": list.pending.iter().map(pending).collect::<Vec<_>>(),
            "paired": list.paired.iter().map(device).collect::<Vec<_>>(),
        })),
        other => Err(unexpected(&Reply::Device(Box::new(other)))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    request: String,
}

/// `admin.device.approve`: `{"request", "device", "role", "approved": true}`.
pub(super) async fn approve(call: Call) -> Result<Value, Error> {
    let Request { request } = call.params("admin.device.approve")?;
    match ask(&call, DeviceCommand::Approve { request }).await? {
        DeviceReply::Approved { request, role, device } => {
            Ok(json!({ "request": request, "device": &*device.id, "role": role.name(), "approved": true }))
        }
        other => Err(unexpected(&Reply::Device(Box::new(other)))),
    }
}

/// `admin.device.reject`: `{"request", "device", "rejected": true}`.
pub(super) async fn reject(call: Call) -> Result<Value, Error> {
    let Request { request } = call.params("admin.device.reject")?;
    match ask(&call, DeviceCommand::Reject { request }).await? {
        DeviceReply::Rejected { request, device } => {
            Ok(json!({ "request": request, "device": &*device, "rejected": true }))
        }
        other => Err(unexpected(&Reply::Device(Box::new(other)))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    device: String,
    role: Option<String>,
}

/// `admin.device.revoke`: `{"device", "roles", "revoked": true}`; its connections are closed.
pub(super) async fn revoke(call: Call) -> Result<Value, Error> {
    let Named { device, role } = call.params("admin.device.revoke")?;
    let role = role.map(|name| role_of(&name)).transpose()?;
    match ask(&call, DeviceCommand::Revoke { device, role }).await? {
        DeviceReply::Revoked { device, roles, .. } => {
            let roles: Vec<_> = roles.into_iter().map(Role::name).collect();
            Ok(json!({ "device": &*device, "roles": roles, "revoked": true }))
        }
        other => Err(unexpected(&Reply::Device(Box::new(other)))),
    }
}

fn role_of(name: &str) -> Result<Role, Error> {
    Role::from_name(name).ok_or_else(|| {
        ErrorCode::InvalidRequest.error("there is no such role: it is \"operator\" or \"node\"")
    })
}

async fn ask(call: &Call, command: DeviceCommand) -> Result<DeviceReply, Error> {
    match execute(call, Command::Device(command)).await? {
        (_, Reply::Device(reply)) => Ok(*reply),
        (_, other) => Err(unexpected(&other)),
    }
}

fn pending(pending: &Pending) -> Value {
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
