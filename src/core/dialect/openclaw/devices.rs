//! Devices: `device.pair.*`, `device.token.*`, and `node.pair.*` over the same registry, since a node
//! is a device that comes as one.
//!
//! Deliberately absent: `node.pair.request`, by which a node without a device would ask to come in (it
//! connects as a device instead), and setup codes.

use serde::Deserialize;
use serde_json::{Value, json};

use super::method::scopes_granted;
use super::wire::{Failure, Protocol};
use super::{Answered, Call, OpenClaw, Request};
use crate::access::device::public_key_text;
use crate::access::pairing::{
    ApproveDevice, Device, Grant, ListDevices, News, PendingPairing, RejectDevice, RemoveDevice,
    RevokeDevice, RotateDevice, RotatedDevice, VerifyDevice,
};
use crate::access::{About, Secret};
use crate::daemon::command::GetOverview;
use crate::dialect::Turn;
use crate::error::credential::{CredentialFault, PairingReason, PairingRequired, Refusal};
use crate::error::{Error, ErrorCode};
use crate::scope::{Role, Scopes};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfRequest {
    request_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfDevice {
    device_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfToken {
    device_id: String,
    role: String,
    scopes: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfNode {
    node_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeToken {
    node_id: String,
    token: String,
}

/// `device.pair.list`
pub(super) fn list(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask_on(ListDevices, |_, list, _| {
        Call::ask(GetOverview, move |dialect, overview, _| {
            let is_connected = |device: &Device| {
                let present = overview.presence.present.iter();
                // Programs that come for one question are not among who is present: this may be one.
                dialect.device.as_deref() == Some(&*device.id)
                    || present
                        .filter(|present| present.connection.is_some())
                        .any(|present| present.device.as_deref() == Some(&*device.id))
            };
            let paired = list.paired.iter().map(|paired| {
                let mut object = device(paired);
                object["connected"] = is_connected(paired).into();
                object
            });
            json!({
                "pending": list.pending.iter().map(pending).collect::<Vec<_>>(),
                "paired": paired.collect::<Vec<_>>(),
            })
        })
    })
}

/// `device.pair.approve`
pub(super) fn approve(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfRequest { request_id } = request.read()?;
    Call::ask(
        ApproveDevice { request: request_id },
        |_, done, _| json!({ "requestId": done.request, "device": device(&done.device) }),
    )
}

/// `device.pair.reject`
pub(super) fn reject(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfRequest { request_id } = request.read()?;
    Call::ask(
        RejectDevice { request: request_id },
        |_, done, _| json!({ "requestId": done.request, "deviceId": &*done.device }),
    )
}

/// `device.pair.remove`
pub(super) fn remove(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfDevice { device_id } = request.read()?;
    Call::ask(RemoveDevice { device: device_id }, |_, device, _| json!({ "deviceId": &*device }))
}

/// `device.token.rotate`
pub(super) fn rotate(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfToken { device_id, role, scopes } = request.read()?;
    let scopes = scopes.as_deref().and_then(super::method::scopes_asked);
    let rotate = RotateDevice { device: device_id, role: role_of(&role)?, scopes };
    Call::ask(rotate, |dialect, RotatedDevice { device, role, token, scopes, at }, _| {
        let mut payload = json!({
            "deviceId": &*device,
            "role": role.name(),
            "token": token.expose(),
            "scopes": names(role, scopes),
            "rotatedAtMs": at.as_millis(),
        });
        if dialect.protocol >= Protocol::Four {
            payload["tokenDelivery"] = "in-band".into();
        }
        payload
    })
}

/// `device.token.revoke`
pub(super) fn revoke(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfToken { device_id, role, .. } = request.read()?;
    Call::ask(RevokeDevice { device: device_id, role: Some(role_of(&role)?) }, |_, done, _| {
        json!({
            "deviceId": &*done.device,
            "role": done.roles.first().map(|role| role.name()),
            "revokedAtMs": done.at.as_millis(),
        })
    })
}

/// `node.pair.list`
pub(super) fn node_list(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(ListDevices, |_, list, _| {
        let waiting = list.pending.iter().filter(|pending| pending.role == Role::Node);
        let paired = list.paired.iter().filter_map(node);
        json!({
            "pending": waiting.map(pending_node).collect::<Vec<_>>(),
            "paired": paired.collect::<Vec<_>>(),
        })
    })
}

/// `node.pair.approve`
pub(super) fn node_approve(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfRequest { request_id } = request.read()?;
    Call::ask(
        ApproveDevice { request: request_id },
        |_, done, _| json!({ "requestId": done.request, "node": node(&done.device) }),
    )
}

/// `node.pair.reject`
pub(super) fn node_reject(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfRequest { request_id } = request.read()?;
    Call::ask(
        RejectDevice { request: request_id },
        |_, done, _| json!({ "requestId": done.request, "nodeId": &*done.device }),
    )
}

/// `node.pair.remove`: it may no longer come as a node; what else it may come as stays.
pub(super) fn node_remove(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let OfNode { node_id } = request.read()?;
    let revoke = RevokeDevice { device: node_id, role: Some(Role::Node) };
    Call::ask(revoke, |_, done, _| json!({ "nodeId": &*done.device }))
}

/// `node.pair.verify`
pub(super) fn node_verify(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    let NodeToken { node_id, token } = request.read()?;
    let verify = VerifyDevice { device: node_id, role: Role::Node, token: Secret::new(token) };
    Call::ask(verify, |_, device, _| match device {
        None => json!({ "ok": false }),
        Some(device) => json!({ "ok": true, "node": node(&device) }),
    })
}

fn role_of(name: &str) -> Result<Role, Error> {
    Role::from_name(name).ok_or_else(|| ErrorCode::NotFound.error("unknown deviceId/role"))
}

impl OpenClaw {
    /// Tells of a device that wants in or was let in.
    pub(super) fn tell_pairing(&mut self, news: &News, turn: &mut Turn<'_>) {
        if !news.is_for(self.who.scopes, &self.owner) {
            return;
        }
        match news {
            News::Requested(request) => {
                self.emit("device.pair.requested", &pending(request).to_string(), turn);
                if request.role == Role::Node {
                    self.emit("node.pair.requested", &pending_node(request).to_string(), turn);
                }
            }
            News::Resolved { request, device, role, is_approved, at, .. } => {
                let decision = if *is_approved { "approved" } else { "rejected" };
                let resolved = |id: &str| {
                    json!({ "requestId": request, id: &**device, "decision": decision, "ts": at.as_millis() })
                        .to_string()
                };
                self.emit("device.pair.resolved", &resolved("deviceId"), turn);
                if *role == Role::Node {
                    self.emit("node.pair.resolved", &resolved("nodeId"), turn);
                }
            }
        }
    }
}

/// Why a credential does not let in, with what clients of protocol 4 go by.
pub(super) fn credential_failure(fault: CredentialFault, is_password: bool) -> Failure {
    const HINT: &str = "give the token that clawmux was configured with, or an api key";
    let kind = if is_password { "password" } else { "token" };
    let (message, reason) = match fault {
        CredentialFault::Missing => (format!("gateway {kind} missing ({HINT})"), format!("{kind}_missing")),
        CredentialFault::Jwt(Refusal::Expired { .. }) | CredentialFault::ApiKeyExpired { .. } => {
            (format!("gateway {kind} expired ({HINT})"), format!("{kind}_mismatch"))
        }
        CredentialFault::Mismatch { .. } | CredentialFault::ApiKey | CredentialFault::Jwt(_) => {
            (format!("gateway {kind} mismatch ({HINT})"), format!("{kind}_mismatch"))
        }
        CredentialFault::DeviceToken => (
            "device token mismatch (it was revoked or exchanged: connect with the gateway token)".into(),
            "device_token_mismatch".into(),
        ),
        CredentialFault::DeviceScopes => (
            "device token scope mismatch (connect with the gateway token to get more)".into(),
            "scope_mismatch".into(),
        ),
    };
    let can_retry = matches!(fault, CredentialFault::Mismatch { has_device_token: true });
    Failure::new("INVALID_REQUEST", format!("unauthorized: {message}")).with(json!({
        "code": format!("AUTH_{}", reason.to_uppercase()),
        "authReason": reason,
        "canRetryWithDeviceToken": can_retry,
        "recommendedNextStep": if can_retry { "retry_with_device_token" } else { "update_auth_credentials" },
    }))
}

/// That a device has to be approved: as an error, and as the reason of the Close, from which some
/// clients read the request.
pub(super) fn pairing_failure(required: &PairingRequired, protocol: Protocol) -> (Failure, String) {
    let (reason, requirement, hint, short) = match required.reason {
        PairingReason::NotPaired => (
            "not-paired",
            "device is not approved yet",
            "Approve this device from the pending pairing requests.",
            "device pairing required",
        ),
        PairingReason::Role => (
            "role-upgrade",
            "device is asking for a higher role than currently approved",
            "Review the requested role upgrade, then approve the pending request.",
            "role upgrade pending approval",
        ),
        PairingReason::Scopes => (
            "scope-upgrade",
            "device is asking for more scopes than currently approved",
            "Review the requested scopes, then approve the pending upgrade.",
            "scope upgrade pending approval",
        ),
    };
    let message = match protocol {
        Protocol::Three => "pairing required".to_owned(),
        Protocol::Four => format!("pairing required: {requirement}"),
    };
    let close = match protocol {
        Protocol::Three => message.clone(),
        // Short, so that the request is not cut off.
        Protocol::Four => format!("pairing required: {short} (requestId: {})", required.request),
    };
    let roles: Vec<_> = required.approved_roles.iter().map(|role| role.name()).collect();
    let failure = Failure::new("NOT_PAIRED", message).with(json!({
        "code": "PAIRING_REQUIRED",
        "reason": reason,
        "requestId": required.request,
        "remediationHint": hint,
        "deviceId": &*required.device,
        "requestedRole": required.role.name(),
        "requestedScopes": names(required.role, required.scopes),
        "approvedRoles": roles,
        "approvedScopes": names(required.role, required.approved_scopes),
    }));
    (failure, close)
}

/// The names of scopes; a node has none, what it may do follows from its role.
fn names(role: Role, scopes: Scopes) -> Vec<String> {
    match role {
        Role::Operator => scopes_granted(&[], scopes),
        Role::Node => Vec::new(),
    }
}

/// What a device says of itself, without what it does not say.
fn about(about: &About, mut object: Value) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| Value::from(text));
    let said = [
        ("displayName", about.display_name.as_deref().and_then(text)),
        ("platform", text(&about.platform)),
        ("deviceFamily", about.device_family.as_deref().and_then(text)),
        ("clientId", text(&about.client_id)),
        ("clientMode", text(&about.mode)),
    ];
    for (name, value) in said {
        if let Some(value) = value {
            object[name] = value;
        }
    }
    object
}

fn pending(pending: &PendingPairing) -> Value {
    about(
        &pending.about,
        json!({
            "requestId": pending.id,
            "deviceId": &*pending.device,
            "publicKey": public_key_text(&pending.public_key),
            "role": pending.role.name(),
            "roles": [pending.role.name()],
            "scopes": names(pending.role, pending.scopes),
            "remoteIp": pending.peer.to_string(),
            "silent": false,
            "isRepair": pending.is_repair,
            "ts": pending.at.as_millis(),
        }),
    )
}

fn device(device: &Device) -> Value {
    let live = || device.grants.iter().filter(|grant| grant.revoked.is_none());
    let scopes = live()
        .filter(|grant| grant.role == Role::Operator)
        .fold(Scopes::NONE, |all, grant| all.or(grant.scopes));
    let roles: Vec<_> = live().map(|grant| grant.role.name()).collect();
    let mut object = json!({
        "deviceId": &*device.id,
        "publicKey": public_key_text(&device.public_key),
        "roles": roles,
        "scopes": names(Role::Operator, scopes),
        "remoteIp": device.peer.to_string(),
        "createdAtMs": device.created.as_millis(),
        "approvedAtMs": device.approved.as_millis(),
        "tokens": device.grants.iter().map(token).collect::<Vec<_>>(),
    });
    if let Some(role) = roles.first() {
        object["role"] = (*role).into();
    }
    about(&device.about, object)
}

/// A token, without itself.
fn token(grant: &Grant) -> Value {
    let mut object = json!({
        "role": grant.role.name(),
        "scopes": names(grant.role, grant.scopes),
        "createdAtMs": grant.issued.as_millis(),
    });
    for (name, at) in
        [("rotatedAtMs", grant.rotated), ("revokedAtMs", grant.revoked), ("lastUsedAtMs", grant.used)]
    {
        if let Some(at) = at {
            object[name] = at.as_millis().into();
        }
    }
    object
}

fn pending_node(request: &PendingPairing) -> Value {
    about(
        &request.about,
        json!({
            "requestId": request.id,
            "nodeId": &*request.device,
            "remoteIp": request.peer.to_string(),
            "silent": false,
            "isRepair": request.is_repair,
            "ts": request.at.as_millis(),
        }),
    )
}

/// A device that may come as a node; none that may not.
fn node(device: &Device) -> Option<Value> {
    let grant = device.live(Role::Node)?;
    let mut object = json!({
        "nodeId": &*device.id,
        "version": device.about.version,
        "remoteIp": device.peer.to_string(),
        "createdAtMs": grant.issued.as_millis(),
        "approvedAtMs": device.approved.as_millis(),
    });
    if let Some(used) = grant.used {
        object["lastConnectedAtMs"] = used.as_millis().into();
    }
    Some(about(&device.about, object))
}
