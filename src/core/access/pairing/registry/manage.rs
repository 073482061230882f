//! What those ask and decide who may pair devices.

use subtle::ConstantTimeEq;

use super::{Change, Moment, Registry, Step};
use crate::access::pairing::{
    ApproveDevice, ApprovedDevice, Device, DeviceCommand, DeviceList, DeviceReply, ListDevices, News,
    PendingPairing, RejectDevice, RejectedDevice, RemoveDevice, RevokeDevice, RevokedDevice, RotateDevice,
    RotatedDevice, VerifyDevice, sees,
};
use crate::error::{Error, ErrorCode};
use crate::ids::Owner;
use crate::principal::Principal;
use crate::scope::Scopes;
use crate::time::Timestamp;

impl Registry {
    /// Answers somebody who may pair devices.
    pub fn answer(
        &mut self,
        command: DeviceCommand,
        principal: &Principal,
        at: &mut Moment<'_>,
    ) -> Step<DeviceReply> {
        self.expire(at.now);
        match command {
            DeviceCommand::List(ListDevices) => Step::of(Ok(DeviceReply::List(self.list(principal)))),
            DeviceCommand::Approve(ApproveDevice { request }) => self.approve(&request, principal, at),
            DeviceCommand::Reject(RejectDevice { request }) => self.reject(&request, principal, at),
            DeviceCommand::Remove(RemoveDevice { device }) => self.remove(&device, principal),
            DeviceCommand::Rotate(rotate) => self.rotate(&rotate, principal, at),
            DeviceCommand::Revoke(revoke) => self.revoke(&revoke, principal, at),
            DeviceCommand::Verify(verify) => self.verify(&verify, principal),
        }
    }

    fn list(&self, principal: &Principal) -> DeviceList {
        let mut pending: Vec<_> =
            self.pending.iter().filter(|pending| sees(principal, &pending.owner)).cloned().collect();
        pending.reverse();
        let mut paired: Vec<_> =
            self.devices.keys().filter_map(|id| self.seen(id, principal).ok()).cloned().collect();
        paired.sort_by_key(|device| std::cmp::Reverse(device.approved));
        DeviceList { pending, paired }
    }

    fn approve(&self, request: &str, principal: &Principal, at: &mut Moment<'_>) -> Step<DeviceReply> {
        let pending = match self.waiting(request, principal) {
            Ok(pending) => pending,
            Err(error) => return Step::of(Err(error)),
        };
        if !principal.scopes.holds(pending.scopes) {
            return Step::of(Err(denied("approval")));
        }
        let allowed =
            self.authority.backing(&pending.credential, pending.at).map(|credential| credential.scopes);
        let Some(allowed) = allowed else { return Step::of(Err(unknown_request())) };
        let known = self.devices.get(&pending.device).cloned();
        let ended = known.as_ref().filter(|device| device.credential != pending.credential);
        let ends = ended.map(|device| (device.id.clone(), None)).into_iter().collect();
        let mut device =
            self.granted(known, &pending.into(), &pending.credential, pending.scopes.and(allowed), at);
        if let Some(grant) = device.grants.iter_mut().find(|grant| grant.role == pending.role) {
            grant.used = grant.used.filter(|_| grant.issued != at.now);
        }
        let mut step = Step::of(Ok(DeviceReply::Approved(ApprovedDevice {
            request: pending.id.clone(),
            role: pending.role,
            device: Box::new(device.clone()),
        })));
        step.settles = Some(pending.id.clone());
        step.news.push(resolved(pending, true, at.now));
        step.ends = ends;
        self.put(&mut step, device);
        step
    }

    fn reject(&self, request: &str, principal: &Principal, at: &Moment<'_>) -> Step<DeviceReply> {
        match self.waiting(request, principal) {
            Err(error) => Step::of(Err(error)),
            Ok(pending) => Step {
                settles: Some(pending.id.clone()),
                news: vec![resolved(pending, false, at.now)],
                ..Step::of(Ok(DeviceReply::Rejected(RejectedDevice {
                    request: pending.id.clone(),
                    device: pending.device.clone(),
                })))
            },
        }
    }

    fn remove(&self, device: &str, principal: &Principal) -> Step<DeviceReply> {
        match self.seen(device, principal) {
            Err(error) => Step::of(Err(error)),
            Ok(device) => Step {
                changes: vec![Change::Remove(device.id.clone())],
                ends: vec![(device.id.clone(), None)],
                ..Step::of(Ok(DeviceReply::Removed(device.id.clone())))
            },
        }
    }

    fn rotate(&self, asked: &RotateDevice, principal: &Principal, at: &mut Moment<'_>) -> Step<DeviceReply> {
        let RotateDevice { ref device, role, scopes } = *asked;
        let mut device = match self.seen(device, principal) {
            Ok(device) => device.clone(),
            Err(error) => return Step::of(Err(error)),
        };
        let allowed = self.backing(&device).map_or(Scopes::NONE, |credential| credential.scopes);
        let Some(grant) =
            device.grants.iter_mut().find(|grant| grant.role == role && grant.revoked.is_none())
        else {
            return Step::of(Err(unknown_device()));
        };
        grant.scopes = scopes.unwrap_or(grant.scopes).and(allowed);
        // Who is told the token could come in with it from that device.
        if !principal.scopes.holds(grant.scopes) {
            return Step::of(Err(denied("rotation")));
        }
        grant.salt = (at.random)();
        grant.rotated = Some(at.now);
        let (salt, scopes) = (grant.salt, grant.scopes);
        let token = self.token(&device.id, role, &salt);
        let id = device.id.clone();
        Step {
            changes: vec![Change::Put(device)],
            ends: vec![(id.clone(), Some(role))],
            ..Step::of(Ok(DeviceReply::Rotated(RotatedDevice {
                device: id,
                role,
                token,
                scopes,
                at: at.now,
            })))
        }
    }

    fn revoke(&self, asked: &RevokeDevice, principal: &Principal, at: &mut Moment<'_>) -> Step<DeviceReply> {
        let RevokeDevice { ref device, role } = *asked;
        let mut device = match self.seen(device, principal) {
            Ok(device) => device.clone(),
            Err(error) => return Step::of(Err(error)),
        };
        let mut roles = Vec::new();
        for grant in device.grants.iter_mut().filter(|grant| role.is_none_or(|role| grant.role == role)) {
            grant.revoked.get_or_insert(at.now);
            roles.push(grant.role);
        }
        if roles.is_empty() {
            return Step::of(Err(unknown_device()));
        }
        let id = device.id.clone();
        Step {
            changes: vec![Change::Put(device)],
            ends: roles.iter().map(|role| (id.clone(), Some(*role))).collect(),
            ..Step::of(Ok(DeviceReply::Revoked(RevokedDevice { device: id, roles, at: at.now })))
        }
    }

    fn verify(&self, asked: &VerifyDevice, principal: &Principal) -> Step<DeviceReply> {
        let VerifyDevice { ref device, role, ref token } = *asked;
        let device = self.seen(device, principal).ok().filter(|device| {
            device.live(role).is_some_and(|grant| {
                let real = self.token(&device.id, role, &grant.salt);
                bool::from(real.expose().as_bytes().ct_eq(token.expose().as_bytes()))
            })
        });
        Step::of(Ok(DeviceReply::Verified(device.cloned().map(Box::new))))
    }

    fn waiting(&self, request: &str, principal: &Principal) -> Result<&PendingPairing, Error> {
        let found = self.pending.iter().find(|pending| pending.id == request);
        found.filter(|pending| sees(principal, &pending.owner)).ok_or_else(unknown_request)
    }

    /// The device, where the principal may know of it. Those whose credential is gone are the operators'.
    fn seen(&self, id: &str, principal: &Principal) -> Result<&Device, Error> {
        let device = self.devices.get(id).ok_or_else(unknown_device)?;
        let owner = self.backing(device).map_or(Owner::Admins, |credential| credential.owner);
        if sees(principal, &owner) { Ok(device) } else { Err(unknown_device()) }
    }
}

fn resolved(pending: &PendingPairing, is_approved: bool, at: Timestamp) -> News {
    News::Resolved {
        request: pending.id.clone(),
        device: pending.device.clone(),
        role: pending.role,
        owner: pending.owner.clone(),
        is_approved,
        at,
    }
}

fn unknown_request() -> Error {
    ErrorCode::NotFound.error("unknown requestId")
}

fn unknown_device() -> Error {
    ErrorCode::NotFound.error("unknown deviceId/role")
}

fn denied(what: &str) -> Error {
    ErrorCode::Forbidden
        .error(format!("device pairing {what} denied: it takes all scopes that the device gets"))
}
