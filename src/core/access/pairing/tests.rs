//! The rules, told as stories: who comes, with what, from where.

use super::*;
use crate::access::auth::{ApiKey, Auth, LoopbackPolicy};
use crate::access::authority::{Authority, digest};
use crate::access::{Admitted, Claim, Credentials, DeviceClaim, Secret};
use crate::error::credential::CredentialFault;
use crate::error::credential::PairingReason;
use crate::error::credential::PairingRequired;
use crate::error::{Detail, Error, ErrorCode};
use crate::scope::Scope;
use proptest::prelude::*;

const TOKEN: &str = "the-shared-token";
const CI: &str = "the-key-of-ci";

fn authority(token: bool, ci: Option<Scopes>) -> Arc<Authority> {
    let ci = ci.map(|scopes| ApiKey { name: "ci".into(), sha256: digest(CI), chars: None, scopes });
    Arc::new(Authority::new(&Auth {
        token: token.then(|| Secret::new(TOKEN)),
        jwt: None,
        loopback: LoopbackPolicy::Auto,
        api_keys: ci.into_iter().collect(),
    }))
}

struct World {
    registry: Registry,
    now: Timestamp,
    random: u64,
    /// What was written down, so that a new start can be played.
    written: Vec<Change>,
    news: Vec<News>,
    ends: Vec<(Arc<str>, Option<Role>)>,
}

/// Who comes.
#[derive(Clone)]
struct Guest {
    seed: u8,
    token: Option<String>,
    device_token: Option<String>,
    role: Role,
    scopes: Option<Scopes>,
    is_loopback: bool,
}

fn guest(seed: u8, token: &str) -> Guest {
    Guest {
        seed,
        token: (!token.is_empty()).then(|| token.into()),
        device_token: None,
        role: Role::Operator,
        scopes: None,
        is_loopback: true,
    }
}

impl Guest {
    fn afar(self) -> Self {
        Self { is_loopback: false, ..self }
    }

    fn asking(self, scopes: &[Scope]) -> Self {
        Self { scopes: Some(Scopes::of(scopes)), ..self }
    }

    fn node(self) -> Self {
        Self { role: Role::Node, ..self }
    }

    fn id(&self) -> String {
        id(self.seed)
    }
}

fn id(seed: u8) -> String {
    crate::access::device::id_of(&[seed; 32])
}

fn operator() -> Principal {
    Principal::new("token", Scopes::ADMIN)
}

fn ci() -> Principal {
    Principal { owner: Owner::Credential("ci".into()), ..Principal::new("ci", Scopes::ADMIN) }
}

impl World {
    fn new() -> Self {
        Self {
            registry: Registry::new(authority(true, Some(Scopes::USER)), vec![7; 32], Vec::new()),
            now: Timestamp::from_millis(1_000_000),
            random: 0,
            written: Vec::new(),
            news: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// A new start, perhaps with other credentials: what was written down is what there is.
    fn restart(&mut self, authority: Arc<Authority>) {
        let mut devices = std::collections::BTreeMap::new();
        for change in &self.written {
            match change {
                Change::Put(device) => drop(devices.insert(device.id.clone(), device.clone())),
                Change::Remove(id) => drop(devices.remove(id)),
                Change::Seen(id, role, last) => {
                    let grants = devices.get_mut(id).into_iter().flat_map(|device| &mut device.grants);
                    for grant in grants.filter(|grant| grant.role == *role) {
                        (grant.used, grant.origin) = (Some(last.at), Some(last.origin));
                    }
                }
            }
        }
        self.registry = Registry::new(authority, vec![7; 32], devices.into_values().collect());
    }

    fn step<A>(&mut self, ask: impl FnOnce(&mut Registry, &mut Moment<'_>) -> Step<A>) -> Result<A, Error> {
        let counter = &mut self.random;
        let mut random = || {
            *counter += 1;
            u128::from(*counter).to_be_bytes()
        };
        let step = ask(&mut self.registry, &mut Moment { now: self.now, random: &mut random });
        self.registry.apply(&step.changes, step.settles.as_deref());
        self.written.extend(step.changes);
        self.news.extend(step.news);
        self.ends.extend(step.ends);
        step.answer
    }

    fn come(&mut self, guest: &Guest) -> Result<Admitted, Error> {
        let public_key = [guest.seed; 32];
        let device = DeviceClaim {
            id: guest.id().into(),
            public_key,
            token: guest.device_token.as_ref().map(Secret::new),
        };
        let claim = Claim {
            credentials: guest
                .token
                .as_ref()
                .map_or(Credentials::None, |t| Credentials::Token(Secret::new(t))),
            scopes: guest.scopes,
            role: guest.role,
            device: Some(device.clone()),
            about: About { client_id: "cli\u{1b}[2J".into(), mode: "x".repeat(9999), ..About::default() },
        };
        let arrival = Arrival { claim, device, peer: [127, 0, 0, 1].into(), is_loopback: guest.is_loopback };
        self.step(|registry, at| registry.admit(&arrival, at))
    }

    /// Comes and is let in: with which token to come again.
    fn token(&mut self, guest: &Guest) -> String {
        let admitted = self.come(guest).unwrap();
        admitted.device_token.expect("a token").token.expose().to_owned()
    }

    fn fault(&mut self, guest: &Guest) -> CredentialFault {
        match self.come(guest).expect_err("it is refused").detail {
            Some(Detail::Credential(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    fn required(&mut self, guest: &Guest) -> PairingRequired {
        match self.come(guest).expect_err("it is refused").detail {
            Some(Detail::Pairing(required)) => *required,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, command: DeviceCommand, principal: &Principal) -> Result<DeviceReply, Error> {
        self.step(|registry, at| registry.answer(command, principal, at))
    }

    fn list(&mut self, principal: &Principal) -> DeviceList {
        match self.ask(DeviceCommand::List(ListDevices), principal) {
            Ok(DeviceReply::List(list)) => list,
            other => panic!("{other:?}"),
        }
    }

    fn approve(&mut self, request: &str) {
        self.ask(DeviceCommand::Approve(ApproveDevice { request: request.into() }), &operator()).unwrap();
    }
}

#[test]
fn over_loopback_a_device_is_paired_at_once_and_its_token_is_stable() {
    let mut world = World::new();
    let first = world.token(&guest(1, TOKEN));
    assert!(first.len() == 32 && first.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
    assert!(matches!(&world.news[..], [News::Resolved { is_approved: true, .. }]), "{:?}", world.news);
    assert_eq!(world.token(&guest(1, TOKEN)), first, "it is told again");
    assert_eq!(world.token(&guest(1, &first)), first, "and lets in by itself, where a token is shown");
    let beside = Guest { device_token: Some(first.clone()), token: None, ..guest(1, "") };
    assert_eq!(world.token(&beside), first, "or beside");
    assert_eq!(world.token(&beside.clone().afar()), first, "from anywhere");
    assert_eq!(
        world.token(&Guest { token: Some("stale".into()), ..beside }),
        first,
        "a wrong token before it"
    );
    world.restart(authority(true, Some(Scopes::USER)));
    assert_eq!(world.token(&guest(1, &first).afar()), first, "after a new start");
    let node = world.token(&guest(1, TOKEN).node());
    assert_ne!(node, first, "one each role");
    assert_ne!(world.token(&guest(2, TOKEN)), first, "one each device");
    assert_eq!(world.news.len(), 3, "who is paired is not paired again: {:?}", world.news);
    let list = world.list(&operator());
    assert_eq!((list.paired.len(), list.pending.len()), (2, 0));
    let about = &list.paired[0].about;
    assert_eq!((&*about.client_id, about.mode.len()), ("cli[2J", 128), "nothing a terminal obeys");
}

#[test]
fn what_somebody_else_decided_ends_connections_as_it_would_here() {
    let mut world = World::new();
    for seed in 1..=4 {
        world.token(&guest(seed, TOKEN));
        world.token(&guest(seed, TOKEN).node());
    }
    let before = world.list(&operator()).paired;
    let change = |mut device: Device| {
        let node = device.grants.iter_mut().find(|grant| grant.role == Role::Node).unwrap();
        match &*device.id {
            device if device == id(1) => node.revoked = Some(Timestamp::from_millis(7)),
            device if device == id(2) => node.salt = [9; 16],
            device if device == id(3) => node.used = Some(Timestamp::from_millis(7)),
            _ => return None,
        }
        Some(device)
    };
    let kept = before.into_iter().filter_map(change).collect();
    let mut ends = world.registry.replace(vec![7; 32], kept);
    let mut expected: Vec<(Arc<str>, Option<Role>)> =
        [(1, Some(Role::Node)), (2, Some(Role::Node)), (4, None)]
            .map(|(seed, role)| (id(seed).into(), role))
            .into();
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(ends, expected);
    assert_eq!(world.list(&operator()).paired.len(), 3);
}

#[test]
fn a_token_is_its_devices_in_its_role_with_its_scopes() {
    let mut world = World::new();
    let token = world.token(&guest(1, TOKEN).asking(&[Scope::Read, Scope::Write]));
    world.token(&guest(2, TOKEN));
    assert_eq!(world.fault(&guest(2, &token)), CredentialFault::Mismatch { has_device_token: true });
    assert_eq!(world.fault(&guest(3, &token)), CredentialFault::Mismatch { has_device_token: false });
    let beside = Guest { device_token: Some(token.clone()), ..guest(2, "") };
    assert_eq!(world.fault(&beside), CredentialFault::DeviceToken, "another's");
    assert_eq!(world.fault(&Guest { seed: 3, ..beside }), CredentialFault::DeviceToken, "nobody's");
    assert_eq!(world.fault(&guest(1, &token).node()), CredentialFault::Mismatch { has_device_token: false });
    assert_eq!(world.fault(&guest(1, "")), CredentialFault::Missing);
    assert_eq!(world.fault(&guest(3, "")), CredentialFault::Missing);
    assert_eq!(world.fault(&guest(1, &token).asking(&[Scope::Admin])), CredentialFault::DeviceScopes);
    let scopes = |admitted: Admitted| admitted.principal.scopes;
    let read = world.come(&guest(1, &token).asking(&[Scope::Read])).unwrap();
    assert_eq!(scopes(read), Scopes::of(&[Scope::Read]), "what is asked for");
    let all = world.come(&guest(1, &token)).unwrap();
    assert_eq!(scopes(all), Scopes::of(&[Scope::Read, Scope::Write]), "asking for nothing: what was granted");
}

#[test]
fn from_elsewhere_somebody_has_to_approve() {
    let mut world = World::new();
    let afar = guest(1, TOKEN).afar().asking(&[Scope::Read]);
    let required = world.required(&afar);
    assert_eq!((required.reason, &*required.device), (PairingReason::NotPaired, &*id(1)));
    assert_eq!(world.required(&afar).request, required.request, "who asks again waits on");
    let [News::Requested(pending)] = &world.news[..] else { panic!("{:?}", world.news) };
    assert_eq!((&pending.id, pending.scopes), (&required.request, Scopes::of(&[Scope::Read])));
    assert_eq!(world.list(&operator()).pending.len(), 1);
    assert!(world.written.is_empty());

    world.approve(&required.request);
    let token = world.token(&afar);
    assert_eq!(world.token(&Guest { token: None, device_token: Some(token.clone()), ..afar.clone() }), token);
    let twice = world
        .ask(DeviceCommand::Approve(ApproveDevice { request: required.request }), &operator())
        .unwrap_err();
    assert_eq!(twice.code, ErrorCode::NotFound);

    let more = world.required(&guest(1, TOKEN).afar().asking(&[Scope::Read, Scope::Write]));
    assert_eq!((more.reason, more.approved_scopes), (PairingReason::Scopes, Scopes::of(&[Scope::Read])));
    let node = world.required(&guest(1, TOKEN).afar().asking(&[]).node());
    assert_eq!((node.reason, node.approved_roles), (PairingReason::Role, vec![Role::Operator]));
    assert_eq!(world.list(&operator()).pending.len(), 2, "one for each role");
    world.approve(&more.request);
    let wide = world.come(&guest(1, TOKEN).afar().asking(&[Scope::Read, Scope::Write])).unwrap();
    assert_eq!(wide.device_token.unwrap().token.expose(), token, "the token stays, it only goes further");

    world.ask(DeviceCommand::Reject(RejectDevice { request: node.request.clone() }), &operator()).unwrap();
    assert_ne!(world.required(&guest(1, TOKEN).afar().asking(&[]).node()).request, node.request);
}

#[test]
fn what_is_about_to_be_approved_does_not_become_more() {
    let mut world = World::new();
    let little = world.required(&guest(1, TOKEN).afar().asking(&[Scope::Read]));
    let much = world.required(&guest(1, TOKEN).afar().asking(&[Scope::Admin]));
    assert_ne!(little.request, much.request);
    let gone = world
        .ask(DeviceCommand::Approve(ApproveDevice { request: little.request }), &operator())
        .unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert_eq!(world.list(&operator()).pending.len(), 1);
}

#[test]
fn nobody_approves_what_he_may_not_do_or_see() {
    let mut world = World::new();
    let required = world.required(&guest(1, TOKEN).afar());
    let approve = DeviceCommand::Approve(ApproveDevice { request: required.request });
    let pairer = Principal { scopes: Scopes::of(&[Scope::Pair, Scope::Read]), ..operator() };
    let denied = world.ask(approve.clone(), &pairer).unwrap_err();
    assert!(
        denied.code == ErrorCode::Forbidden && denied.message.starts_with("device pairing approval denied")
    );
    assert_eq!(world.ask(approve, &ci()).unwrap_err().code, ErrorCode::NotFound);
    assert!(world.list(&ci()).pending.is_empty() && world.list(&pairer).pending.len() == 1);
    let hears = |principal: Principal| world.news[0].is_for(principal.scopes, &principal.owner);
    assert!(hears(operator()) && hears(pairer) && !hears(ci()));
    assert!(!hears(Principal { scopes: Scopes::USER, ..operator() }), "without the scope");

    world.token(&guest(2, TOKEN));
    for command in [
        DeviceCommand::Remove(RemoveDevice { device: id(2) }),
        DeviceCommand::Revoke(RevokeDevice { device: id(2), role: None }),
        DeviceCommand::Rotate(RotateDevice { device: id(2), role: Role::Operator, scopes: None }),
    ] {
        assert_eq!(world.ask(command, &ci()).unwrap_err().code, ErrorCode::NotFound);
    }
    let own = world.token(&guest(3, CI));
    assert_eq!(world.list(&ci()).paired.len(), 1);
    assert_eq!(world.come(&guest(3, &own)).unwrap().principal.owner, Owner::Credential("ci".into()));
}

#[test]
fn revoked_rotated_and_removed_tokens_let_nobody_in_and_end_what_is_open() {
    let mut world = World::new();
    let old = world.token(&guest(1, TOKEN));
    let rotate = DeviceCommand::Rotate(RotateDevice { device: id(1), role: Role::Operator, scopes: None });
    let Ok(DeviceReply::Rotated(RotatedDevice { token: new, .. })) = world.ask(rotate, &operator()) else {
        panic!()
    };
    let beside = |token: &str| Guest { device_token: Some(token.into()), ..guest(1, "") };
    assert_eq!(world.fault(&beside(&old)), CredentialFault::DeviceToken);
    assert_eq!(world.token(&beside(new.expose())), new.expose());
    assert_eq!(world.ends, [(id(1).into(), Some(Role::Operator))]);

    let revoke = DeviceCommand::Revoke(RevokeDevice { device: id(1), role: Some(Role::Operator) });
    world.ask(revoke, &operator()).unwrap();
    world.restart(authority(true, None));
    assert_eq!(world.fault(&beside(new.expose())), CredentialFault::DeviceToken);
    assert_eq!(
        world.fault(&guest(1, new.expose())),
        CredentialFault::DeviceToken,
        "where a token is shown, too"
    );
    assert_eq!(
        world.required(&guest(1, TOKEN).afar()).reason,
        PairingReason::Role,
        "the credential asks anew"
    );
    let third = world.token(&guest(1, TOKEN));
    assert!(third != old && third != new.expose(), "over loopback it is paired anew, with another token");

    world.ask(DeviceCommand::Remove(RemoveDevice { device: id(1) }), &operator()).unwrap();
    assert_eq!(world.fault(&beside(&third)), CredentialFault::DeviceToken);
    let fourth = world.token(&guest(1, TOKEN));
    for token in [&old, &third, new.expose()] {
        assert_eq!(world.fault(&beside(token)), CredentialFault::DeviceToken, "no token comes twice");
    }
    world.restart(authority(true, None));
    assert_eq!(world.token(&beside(&fourth)), fourth);
    assert_eq!(world.ends.len(), 3);
}

#[test]
fn a_device_is_its_credentials() {
    let mut world = World::new();
    let token = world.token(&guest(1, CI).asking(&[Scope::Admin]));
    let come = guest(1, &token).asking(&[Scope::Admin]);
    let admitted = world.come(&come).unwrap();
    assert_eq!(admitted.principal.scopes, Scopes::USER, "what is asked for and allowed");
    assert_eq!(&*admitted.principal.name, "ci");
    // The credential is allowed less now, more, and then it is gone.
    world.restart(authority(true, Some(Scopes::READONLY)));
    assert_eq!(world.come(&come).unwrap().principal.scopes, Scopes::READONLY);
    world.restart(authority(true, Some(Scopes::ADMIN)));
    assert_eq!(world.fault(&come), CredentialFault::DeviceScopes, "more has to be granted");
    world.restart(authority(true, None));
    assert_eq!(world.fault(&come), CredentialFault::Mismatch { has_device_token: false });
    let beside = Guest { device_token: Some(token), ..guest(1, "") };
    assert_eq!(world.fault(&beside), CredentialFault::DeviceToken);
    // What it was paired with is gone: another credential may pair it.
    let other = world.token(&guest(1, TOKEN));
    assert_eq!(world.come(&guest(1, &other)).unwrap().principal.owner, Owner::Admins);
    assert_eq!(world.fault(&beside), CredentialFault::DeviceToken, "that did not bring the old one back");
}

#[test]
fn another_credential_lets_in_and_changes_no_pairing() {
    let mut world = World::new();
    let token = world.token(&guest(1, TOKEN));
    let admitted = world.come(&guest(1, CI)).unwrap();
    assert_eq!(
        (&*admitted.principal.name, admitted.device_token),
        ("ci", None),
        "no operator's token for ci"
    );
    assert_eq!(world.token(&guest(1, &token)), token);
    let required = world.required(&guest(1, CI).afar());
    assert!(
        required.reason == PairingReason::NotPaired && required.approved_roles.is_empty(),
        "{required:?}"
    );
    world.approve(&required.request);
    assert_eq!(world.ends, [(id(1).into(), None)], "it is ci's now");
    assert_eq!(world.fault(&guest(1, &token)), CredentialFault::Mismatch { has_device_token: true });
    assert_eq!(world.come(&guest(1, CI).afar()).unwrap().principal.owner, Owner::Credential("ci".into()));
}

#[test]
fn floods_are_bounded_and_what_waits_does_not_wait_for_ever() {
    let mut world = World::new();
    let kept = world.required(&guest(255, CI).afar()).request;
    for seed in 0..200 {
        world.required(&guest(seed, TOKEN).afar());
    }
    let list = world.list(&operator());
    assert_eq!(list.pending.len(), PENDING_MAX + 1, "and each credential has room of its own");
    assert_eq!(list.pending[0].device.as_ref(), id(199), "the latest first");
    assert!(list.pending.iter().any(|pending| pending.id == kept));
    world.now = world.now.after(PENDING_LIFE);
    assert!(world.list(&operator()).pending.is_empty());
    assert_eq!(
        world.ask(DeviceCommand::Reject(RejectDevice { request: kept }), &operator()).unwrap_err().code,
        ErrorCode::NotFound
    );
}

#[test]
fn the_device_not_used_for_longest_makes_room() {
    let mut world = World::new();
    let device = |seed: usize, used| Device {
        id: format!("{seed}").into(),
        public_key: [0; 32],
        about: About::default(),
        peer: [127, 0, 0, 1].into(),
        credential: "token".into(),
        created: Timestamp::default(),
        approved: Timestamp::from_millis(used),
        grants: Vec::new(),
    };
    let others = (0..DEVICES_MAX).map(|seed| device(seed, 1000 - seed as u64));
    world.registry = Registry::new(authority(true, Some(Scopes::USER)), vec![7; 32], others.collect());
    world.token(&guest(1, TOKEN));
    world.token(&guest(2, CI));
    assert_eq!(world.ends, [((DEVICES_MAX - 1).to_string().into(), None)]);
    assert_eq!(world.list(&operator()).paired.len(), DEVICES_MAX + 1);
}

#[test]
fn when_it_was_used_is_written_down_now_and_then_only() {
    let mut world = World::new();
    let token = world.token(&guest(1, TOKEN));
    let written = world.written.len();
    for _ in 0..10 {
        world.come(&guest(1, &token)).unwrap();
    }
    assert_eq!(world.written.len(), written);
    world.now = world.now.after(std::time::Duration::from_secs(61));
    world.come(&guest(1, &token)).unwrap();
    assert_eq!(world.written.len(), written + 1);
    assert_eq!(world.list(&operator()).paired[0].used(), world.now);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever anybody does: who is let in has no scope that the credential shown, or the one that
    /// the device was paired with, does not allow; from elsewhere only what was approved; and a token
    /// that was revoked or exchanged never lets in again.
    #[test]
    fn nobody_gets_more_than_is_allowed(
        moves in proptest::collection::vec((0..8_u8, 0..3_u8, 0..4_u8, any::<bool>(), any::<bool>(), 0..64_u8), 1..60)
    ) {
        let mut world = World::new();
        let mut tokens: Vec<(u8, Role, String)> = Vec::new();
        let mut dead: std::collections::HashSet<String> = std::collections::HashSet::new();
        for (what, seed, shown, is_loopback, is_node, scopes) in moves {
            let role = if is_node { Role::Node } else { Role::Operator };
            let alive = |tokens: &[(u8, Role, String)], role: Option<Role>| -> Vec<String> {
                tokens.iter().filter(|t| t.0 == seed && role.is_none_or(|r| r == t.1)).map(|t| t.2.clone()).collect()
            };
            match what {
                0 => {
                    let list = world.list(&operator());
                    if let Some(pending) = list.pending.first() {
                        world.approve(&pending.id.clone());
                    }
                }
                1 => {
                    let ends = alive(&tokens, Some(role));
                    if world.ask(DeviceCommand::Revoke(RevokeDevice { device: id(seed), role: Some(role) }), &operator()).is_ok() {
                        dead.extend(ends);
                    }
                }
                2 => {
                    let ends = alive(&tokens, Some(role));
                    let rotate = DeviceCommand::Rotate(RotateDevice { device: id(seed), role, scopes: None });
                    if world.ask(rotate, &operator()).is_ok() {
                        dead.extend(ends);
                    }
                }
                3 if scopes < 8 => {
                    let ends = alive(&tokens, None);
                    if world.ask(DeviceCommand::Remove(RemoveDevice { device: id(seed) }), &operator()).is_ok() {
                        dead.extend(ends);
                    }
                }
                4 if scopes < 8 => world.restart(authority(true, Some(Scopes::USER))),
                _ => {
                    let (token, allowed) = match shown {
                        0 => (TOKEN.to_owned(), Scopes::ADMIN),
                        1 => (CI.to_owned(), Scopes::USER),
                        _ => match tokens.get(usize::from(scopes) % tokens.len().max(1)) {
                            Some((_, _, token)) => (token.clone(), Scopes::ADMIN),
                            None => continue,
                        },
                    };
                    let asked: Vec<Scope> = Scope::ALL.into_iter().filter(|s| scopes >> (*s as u8) & 1 == 1).collect();
                    let guest = Guest { is_loopback, role, ..guest(seed, &token).asking(&asked) };
                    let before = world.list(&operator());
                    let Ok(admitted) = world.come(&guest) else { continue };
                    prop_assert!(!dead.contains(&token), "a dead token let in");
                    prop_assert!(allowed.and(Scopes::of(&asked)).holds(admitted.principal.scopes));
                    if &*admitted.principal.name == "ci" {
                        prop_assert!(Scopes::USER.holds(admitted.principal.scopes));
                    }
                    if !is_loopback {
                        let device = before.paired.iter().find(|device| *device.id == *guest.id());
                        let grant = device.and_then(|device| device.live(role));
                        prop_assert!(grant.is_some_and(|grant| grant.scopes.holds(admitted.principal.scopes)));
                    }
                    if let Some(token) = admitted.device_token {
                        let token = token.token.expose().to_owned();
                        prop_assert!(!dead.contains(&token), "a dead token was told again");
                        if !tokens.iter().any(|known| known.2 == token) {
                            tokens.push((seed, role, token));
                        }
                    }
                }
            }
        }
    }
}
