//! The rules themselves, over what is paired and what waits.

mod manage;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::{Device, Grant, News, PendingPairing};
use crate::access::authority::Authority;
use crate::access::token::Use;
use crate::access::{About, Admitted, Claim, DeviceClaim, DeviceToken, Secret};
use crate::error::credential::{CredentialFault, PairingReason, PairingRequired};
use crate::error::{Detail, Error, ErrorCode};
use crate::hex::hex;
use crate::ids::RunId;
use crate::principal::Principal;
use crate::scope::{Role, Scopes};
use crate::time::Timestamp;

/// How long a request waits for approval.
pub const PENDING_LIFE: Duration = Duration::from_secs(5 * 60);
/// The most requests that wait, of one credential. Beyond it the oldest makes room.
pub const PENDING_MAX: usize = 32;
/// The most devices paired with one credential. Beyond it the one not used for longest makes room.
pub const DEVICES_MAX: usize = 256;
/// How exactly it is kept when a device was last used.
const USED_RESOLUTION: Duration = Duration::from_secs(60);
/// The most characters that are kept of anything a client says of itself.
const ABOUT_CHARS_MAX: usize = 128;
/// How many bytes of the keyed hash a token has.
const TOKEN_BYTES: usize = 16;

/// A change to write to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "few, and each is written at once")]
pub enum Change {
    /// The device is as this now.
    Put(Device),
    /// There is no such device.
    Remove(Arc<str>),
    /// It was used in this role. Nothing else of it changes, whatever somebody else decides of it at the same time.
    Seen(Arc<str>, Role, Use),
}

/// What follows from a question.
#[derive(Debug)]
pub struct Step<A> {
    /// The answer, once the rest is done.
    pub answer: Result<A, Error>,
    /// What has to be written down before the answer is told.
    pub changes: Vec<Change>,
    /// Whether that may be lost in a power cut, and need not be waited for.
    pub is_idle: bool,
    /// The request that this settles.
    pub settles: Option<String>,
    /// Who is to be told what.
    pub news: Vec<News>,
    /// Whose connections end: those of this device, in this role or in all.
    pub ends: Vec<(Arc<str>, Option<Role>)>,
}

impl<A> Step<A> {
    fn of(answer: Result<A, Error>) -> Self {
        Self {
            answer,
            changes: Vec::new(),
            is_idle: false,
            settles: None,
            news: Vec::new(),
            ends: Vec::new(),
        }
    }
}

/// Somebody who comes from a device.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// What it claims, with its device.
    pub claim: Claim,
    /// The device; its proof was checked.
    pub device: DeviceClaim,
    /// The address the device connects from.
    pub peer: IpAddr,
    /// Whether that is this host, by a socket that nobody else can reach, and no proxy.
    pub is_loopback: bool,
}

/// What time it is, and randomness.
pub struct Moment<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// A source of fresh random bytes.
    pub random: &'a mut dyn FnMut() -> [u8; 16],
}

/// The devices and the requests that wait.
pub struct Registry {
    authority: Arc<Authority>,
    secret: Vec<u8>,
    devices: BTreeMap<Arc<str>, Device>,
    /// Requests that wait for a decision, the oldest first.
    pending: Vec<PendingPairing>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("devices", &self.devices.len())
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// What is written down was changed by somebody else. Gives those of whom connections end, with the role in which
    /// they may come no more, or none where that is any.
    pub fn replace(&mut self, secret: Vec<u8>, devices: Vec<Device>) -> Vec<(Arc<str>, Option<Role>)> {
        let devices = devices.into_iter().map(|device| (device.id.clone(), device)).collect();
        let before = std::mem::replace(&mut self.devices, devices);
        self.secret = secret;
        let mut ends = Vec::new();
        for (id, device) in before {
            let Some(now) = self.devices.get(&id).filter(|now| now.credential == device.credential) else {
                ends.push((id, None));
                continue;
            };
            let held = device.grants.iter().filter(|grant| grant.revoked.is_none());
            let lost = held.filter(|grant| {
                // With another salt it has another token, and who holds the old one is not it.
                now.live(grant.role).is_none_or(|live| live.salt != grant.salt)
            });
            ends.extend(lost.map(|grant| (id.clone(), Some(grant.role))));
        }
        ends
    }

    /// Of what is written down. `secret` is the store's.
    pub fn new(authority: Arc<Authority>, secret: Vec<u8>, devices: Vec<Device>) -> Self {
        let devices = devices.into_iter().map(|device| (device.id.clone(), device)).collect();
        Self { authority, secret, devices, pending: Vec::new() }
    }

    /// How many devices are paired, and how many wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.devices.len(), self.pending.len())
    }

    /// Whether somebody is let in.
    pub fn admit(&mut self, arrival: &Arrival, at: &mut Moment<'_>) -> Step<Admitted> {
        self.expire(at.now);
        match self.authority.authenticate(&arrival.claim.credentials, at.now) {
            Ok(principal) => self.admit_credential(principal, arrival, at),
            Err(error) if error.code == ErrorCode::Unavailable => Step::of(Err(error)),
            Err(error) => self.admit_token(error, arrival, at),
        }
    }

    /// By a credential that holds.
    fn admit_credential(
        &mut self,
        principal: Principal,
        arrival: &Arrival,
        at: &mut Moment<'_>,
    ) -> Step<Admitted> {
        let (role, now) = (arrival.claim.role, at.now);
        let is_lasting = self.authority.backing(&principal.name, now).is_some();
        let principal = principal.narrowed(arrival.claim.scopes);
        let wanted = principal.scopes;
        let known = self.paired(&arrival.device.id).cloned();
        if !is_lasting {
            // What a JWT allows is known while it is shown: no pairing could be held to it later.
            return Step::of(Ok(principal.into()));
        }
        let reason = match &known {
            None => PairingReason::NotPaired,
            Some(device) if device.credential != principal.name => {
                if arrival.is_loopback {
                    return Step::of(Ok(principal.into()));
                }
                PairingReason::NotPaired
            }
            Some(device) => match device.live(role) {
                None => PairingReason::Role,
                Some(grant) if !grant.scopes.holds(wanted) => PairingReason::Scopes,
                Some(grant) => {
                    let admitted =
                        Admitted { principal, device_token: Some(self.device_token(device, grant)) };
                    return self.used(device, role, admitted, (now, arrival.peer));
                }
            },
        };
        if !arrival.is_loopback {
            return self.request(reason, known.as_ref(), &principal, wanted, arrival, at);
        }
        let device = self.granted(known, &arrival.into(), &principal.name, wanted, at);
        let mut step = Step::of(Ok(Admitted { principal: principal.clone(), device_token: None }));
        if let (Ok(admitted), Some(grant)) = (&mut step.answer, device.live(role)) {
            admitted.device_token = Some(self.device_token(&device, grant));
        }
        step.news.push(News::Resolved {
            request: fresh_id(at),
            device: device.id.clone(),
            role,
            owner: principal.owner,
            is_approved: true,
            at: now,
        });
        self.put(&mut step, device);
        step
    }

    /// By the token of the device.
    fn admit_token(&self, refused: Error, arrival: &Arrival, at: &Moment<'_>) -> Step<Admitted> {
        let role = arrival.claim.role;
        let shown = arrival.claim.credentials.token();
        let Some(device) = self.paired(&arrival.device.id) else {
            let fault = match (shown, &arrival.device.token) {
                (_, Some(_)) => CredentialFault::DeviceToken,
                _ => return Step::of(Err(refused)),
            };
            return Step::of(Err(fault.error()));
        };
        let grant = device.grants.iter().find(|grant| grant.role == role);
        let matching = grant.filter(|grant| {
            let token = self.token(&device.id, role, &grant.salt);
            let is_it =
                |shown: &Secret| bool::from(shown.expose().as_bytes().ct_eq(token.expose().as_bytes()));
            arrival.device.token.iter().chain(shown).any(is_it)
        });
        let Some(grant) = matching.filter(|grant| grant.revoked.is_none()) else {
            let fault = if matching.is_some() || arrival.device.token.is_some() {
                CredentialFault::DeviceToken
            } else if shown.is_some() {
                let has_device_token = grant.is_some_and(|grant| grant.revoked.is_none());
                CredentialFault::Mismatch { has_device_token }
            } else {
                CredentialFault::Missing
            };
            return Step::of(Err(fault.error()));
        };
        // Another daemon may have revoked it.
        if let Err(error) = self.authority.check_word() {
            return Step::of(Err(error));
        }
        // Looked up when the device was.
        let Some(credential) = self.backing(device) else {
            return Step::of(Err(CredentialFault::DeviceToken.error()));
        };
        let allowed = credential.scopes.and(arrival.claim.scopes.unwrap_or(grant.scopes));
        if !grant.scopes.holds(allowed) {
            return Step::of(Err(CredentialFault::DeviceScopes.error()));
        }
        let principal = Principal { scopes: allowed, ..credential };
        let admitted = Admitted { principal, device_token: Some(self.device_token(device, grant)) };
        self.used(device, role, admitted, (at.now, arrival.peer))
    }

    /// A device whose credential is still there.
    fn paired(&self, id: &str) -> Option<&Device> {
        self.devices.get(id).filter(|device| self.backing(device).is_some())
    }

    /// Who shows the credential that a device was paired with.
    fn backing(&self, device: &Device) -> Option<Principal> {
        self.authority.backing(&device.credential, device.approved)
    }

    /// Lets a request wait, or the same one wait on.
    fn request(
        &mut self,
        reason: PairingReason,
        known: Option<&Device>,
        principal: &Principal,
        wanted: Scopes,
        arrival: &Arrival,
        at: &mut Moment<'_>,
    ) -> Step<Admitted> {
        let role = arrival.claim.role;
        let known = known.filter(|device| device.credential == principal.name);
        let of_this = |pending: &PendingPairing| pending.device == arrival.device.id && pending.role == role;
        let is_same =
            |pending: &PendingPairing| pending.scopes == wanted && pending.credential == principal.name;
        let mut news = Vec::new();
        let request = match self.pending.iter().find(|p| of_this(p)).filter(|p| is_same(p)) {
            Some(pending) => pending.id.clone(),
            None => {
                // What somebody is about to approve does not become more under the same id.
                self.pending.retain(|pending| !of_this(pending));
                let mine = |pending: &PendingPairing| pending.credential == principal.name;
                if self.pending.iter().filter(|pending| mine(pending)).count() >= PENDING_MAX
                    && let Some(oldest) = self.pending.iter().position(mine)
                {
                    self.pending.remove(oldest);
                }
                let pending = PendingPairing {
                    id: fresh_id(at),
                    device: arrival.device.id.clone(),
                    public_key: arrival.device.public_key,
                    about: clipped(&arrival.claim.about),
                    peer: arrival.peer,
                    credential: principal.name.clone(),
                    owner: principal.owner.clone(),
                    role,
                    scopes: wanted,
                    at: at.now,
                    is_repair: known.is_some(),
                };
                self.pending.push(pending.clone());
                news.push(News::Requested(Arc::new(pending.clone())));
                pending.id
            }
        };
        let grants = || known.into_iter().flat_map(|device| &device.grants).filter(|g| g.revoked.is_none());
        let required = PairingRequired {
            request,
            reason,
            device: arrival.device.id.clone(),
            role,
            scopes: wanted,
            approved_roles: grants().map(|grant| grant.role).collect(),
            approved_scopes: grants().find(|grant| grant.role == role).map_or(Scopes::NONE, |g| g.scopes),
        };
        let error = ErrorCode::Forbidden
            .error(format!("pairing required: approve request {} (clawmux device approve)", required.request))
            .with(Detail::Pairing(Box::new(required)));
        Step { news, ..Step::of(Err(error)) }
    }

    /// The device with this role and these scopes besides what it has.
    fn granted(
        &self,
        known: Option<Device>,
        wish: &Wish<'_>,
        credential: &Arc<str>,
        scopes: Scopes,
        at: &mut Moment<'_>,
    ) -> Device {
        let mut device = known.filter(|device| device.credential == *credential).unwrap_or_else(|| Device {
            id: wish.device.clone(),
            public_key: wish.public_key,
            about: About::default(),
            peer: wish.peer,
            credential: credential.clone(),
            created: at.now,
            approved: at.now,
            grants: Vec::new(),
        });
        device.about = clipped(wish.about);
        device.peer = wish.peer;
        device.approved = at.now;
        let fresh = Grant {
            role: wish.role,
            scopes,
            salt: (at.random)(),
            issued: at.now,
            rotated: None,
            revoked: None,
            used: Some(at.now),
            origin: Some(wish.peer),
        };
        match device.grants.iter_mut().find(|grant| grant.role == wish.role) {
            Some(grant) if grant.revoked.is_none() => grant.scopes = grant.scopes.or(scopes),
            Some(grant) => *grant = Grant { rotated: Some(at.now), issued: grant.issued, ..fresh },
            None => device.grants.push(fresh),
        }
        device
    }

    /// Has a device written down, and makes room for it.
    fn put<A>(&self, step: &mut Step<A>, device: Device) {
        if !self.devices.contains_key(&device.id) {
            let of_this = || self.devices.values().filter(|other| other.credential == device.credential);
            if of_this().count() >= DEVICES_MAX
                && let Some(idle) = of_this().min_by_key(|other| other.used())
            {
                step.changes.push(Change::Remove(idle.id.clone()));
                step.ends.push((idle.id.clone(), None));
            }
        }
        step.changes.push(Change::Put(device));
    }

    /// Notes that it was used from there, now and then.
    fn used(
        &self,
        device: &Device,
        role: Role,
        admitted: Admitted,
        (now, origin): (Timestamp, IpAddr),
    ) -> Step<Admitted> {
        let mut step = Step::of(Ok(admitted));
        step.is_idle = true;
        if let Some(grant) = device.grants.iter().find(|grant| grant.role == role)
            && (grant.origin != Some(origin)
                || grant.used.is_none_or(|used| now.since(used) >= USED_RESOLUTION))
        {
            step.changes.push(Change::Seen(device.id.clone(), role, Use { at: now, origin }));
        }
        step
    }

    /// What was written down holds from now on.
    pub fn apply(&mut self, changes: &[Change], settles: Option<&str>) {
        for change in changes {
            match change {
                Change::Put(device) => drop(self.devices.insert(device.id.clone(), device.clone())),
                Change::Remove(id) => drop(self.devices.remove(id)),
                Change::Seen(id, role, last) => {
                    let grants = self.devices.get_mut(id).into_iter().flat_map(|device| &mut device.grants);
                    for grant in grants.filter(|grant| grant.role == *role) {
                        (grant.used, grant.origin) = (Some(last.at), Some(last.origin));
                    }
                }
            }
        }
        if let Some(request) = settles {
            self.pending.retain(|pending| pending.id != request);
        }
    }

    fn expire(&mut self, now: Timestamp) {
        self.pending.retain(|pending| now.since(pending.at) < PENDING_LIFE);
    }

    fn device_token(&self, device: &Device, grant: &Grant) -> DeviceToken {
        DeviceToken {
            token: self.token(&device.id, grant.role, &grant.salt),
            issued: grant.rotated.unwrap_or(grant.issued),
        }
    }

    fn token(&self, device: &str, role: Role, salt: &[u8; 16]) -> Secret {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes a key of any length");
        for part in [b"clawmux device token", device.as_bytes(), role.name().as_bytes(), salt] {
            mac.update(part);
            mac.update(&[0]);
        }
        let bytes = mac.finalize().into_bytes();
        Secret::new(hex(&bytes[..TOKEN_BYTES]))
    }
}

/// A device that is to be paired.
struct Wish<'a> {
    device: Arc<str>,
    public_key: [u8; 32],
    about: &'a About,
    peer: IpAddr,
    role: Role,
}

impl<'a> From<&'a Arrival> for Wish<'a> {
    fn from(arrival: &'a Arrival) -> Self {
        Self {
            device: arrival.device.id.clone(),
            public_key: arrival.device.public_key,
            about: &arrival.claim.about,
            peer: arrival.peer,
            role: arrival.claim.role,
        }
    }
}

impl<'a> From<&'a PendingPairing> for Wish<'a> {
    fn from(pending: &'a PendingPairing) -> Self {
        Self {
            device: pending.device.clone(),
            public_key: pending.public_key,
            about: &pending.about,
            peer: pending.peer,
            role: pending.role,
        }
    }
}

fn fresh_id(at: &mut Moment<'_>) -> String {
    RunId::from_random((at.random)()).as_str().to_owned()
}

/// What is kept of what a client says of itself: enough to know it by, and nothing a terminal obeys.
fn clipped(about: &About) -> About {
    let clip = |text: &String| -> String {
        text.chars().filter(|c| !c.is_control()).take(ABOUT_CHARS_MAX).collect()
    };
    let maybe = |text: &Option<String>| text.as_ref().map(clip).filter(|text| !text.is_empty());
    About {
        client_id: clip(&about.client_id),
        version: clip(&about.version),
        mode: clip(&about.mode),
        platform: clip(&about.platform),
        device_family: maybe(&about.device_family),
        model_identifier: maybe(&about.model_identifier),
        display_name: maybe(&about.display_name),
        instance_id: None,
        caps: Vec::new(),
        commands: Vec::new(),
        permissions: Vec::new(),
    }
}
