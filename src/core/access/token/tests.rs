//! What operators do with credentials that the daemon gives out.

use super::ledger::RENEWED_MAX;
use super::*;
use crate::access::Credentials;
use crate::access::Secret;
use crate::access::auth::{ApiKey, Auth, Jwt, LoopbackPolicy};
use crate::ids::Owner;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_500);

fn authority(jwt: bool) -> Authority {
    let jwt = jwt.then(|| Jwt {
        secret: Secret::new("0123456789abcdef0123456789abcdef"),
        issuer: "me".into(),
        audience: "you".into(),
        max_life: None,
    });
    let ci = ApiKey { name: "ci".into(), sha256: [0; 32], chars: None, scopes: Scopes::USER };
    let api_keys = if jwt.is_some() { vec![ci] } else { Vec::new() };
    Authority::new(&Auth { token: None, jwt, loopback: LoopbackPolicy::Auto, api_keys })
}

struct World {
    ledger: Ledger,
    authority: Authority,
    random: u8,
    wall: Timestamp,
}

impl World {
    fn new(jwt: bool) -> Self {
        Self { ledger: Ledger::default(), authority: authority(jwt), random: 0, wall: NOW }
    }

    fn ask_as(&mut self, by: &Principal, command: TokenCommand) -> Result<TokenReply, Error> {
        let random = &mut self.random;
        let mut random = || {
            *random = random.wrapping_add(1);
            [*random; 16]
        };
        let mut at = Moment { now: NOW, wall: self.wall, random: &mut random };
        let (changes, reply) = self.ledger.decide(command, by, &self.authority, &mut at)?;
        self.ledger.apply(&changes);
        self.authority.renew(&self.ledger.list());
        Ok(reply)
    }

    fn ask(&mut self, command: TokenCommand) -> Result<TokenReply, Error> {
        self.ask_as(&Principal::socket(), command)
    }

    fn create(&mut self, name: &str, kind: Kind) -> Result<(Token, Secret), Error> {
        match self.ask(create(name, kind, None))? {
            TokenReply::Created(created) => Ok((created.token, created.secret)),
            other => panic!("{other:?}"),
        }
    }

    fn who(&self, secret: &Secret) -> Result<Principal, Error> {
        self.authority.authenticate(&Credentials::Token(secret.clone()), self.wall)
    }
}

fn create(name: &str, kind: Kind, life: Option<Duration>) -> TokenCommand {
    TokenCommand::Create(CreateToken { name: name.into(), kind, scopes: Scopes::USER, life, inherit: false })
}

#[test]
fn a_key_lets_in_until_it_is_revoked_and_its_name_goes_on() {
    let mut world = World::new(false);
    let TokenReply::Created(created) = world.ask(create("bot", Kind::ApiKey, None)).unwrap() else {
        panic!()
    };
    let CreatedToken { token, secret, closes_loopback } = *created;
    assert!(closes_loopback && secret.expose().len() >= 32 + KEY_PREFIX.len());
    assert!(!format!("{token:?}{secret:?}").contains(secret.expose()));
    assert_eq!(world.who(&secret).unwrap().owner, Owner::Credential("bot".into()));
    let taken = world.create("bot", Kind::ApiKey).unwrap_err();
    assert!(taken.code == ErrorCode::Conflict && taken.message.contains(&*token.id), "{taken}");

    let revoke = TokenCommand::Revoke(RevokeToken { id: token.id.to_string() });
    let TokenReply::Revoked(revoked) = world.ask(revoke.clone()).unwrap() else { panic!() };
    assert_eq!(revoked.revoked, Some(NOW));
    assert!(world.who(&secret).is_err());
    assert_eq!(world.ask(revoke).unwrap(), TokenReply::Revoked(revoked), "once more is the same");
    let (_, second) = world.create("bot", Kind::ApiKey).unwrap();
    assert_eq!(world.who(&second).unwrap().owner, Owner::Credential("bot".into()));
    assert_ne!(second, secret);
    let TokenReply::List(TokenList { tokens, .. }) = world.ask(TokenCommand::List(ListTokens)).unwrap()
    else {
        panic!()
    };
    assert_eq!(tokens.len(), 2);
    let unknown = world.ask(TokenCommand::Revoke(RevokeToken { id: "cmx_0".into() })).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);
}

#[test]
fn a_jwt_takes_a_secret_and_has_an_end() {
    let none = World::new(false).create("bot", Kind::Jwt).unwrap_err();
    assert!(none.message.contains("CLAWMUX_JWT_SECRET"), "{none}");
    let mut world = World::new(true);
    let (token, jwt) = world.create("bot", Kind::Jwt).unwrap();
    assert_eq!(token.expires.unwrap().as_millis() % 1000, 0);
    let principal = world.who(&jwt).unwrap();
    assert_eq!((&*principal.name, principal.expires), ("jwt:bot", token.expires));
    world.wall = token.expires.unwrap();
    assert!(world.who(&jwt).is_err());
    world.create("bot", Kind::Jwt).expect("the name of one that has expired is free");
}

#[test]
fn who_shows_a_jwt_has_it_renewed_a_few_times() {
    let mut world = World::new(true);
    let (old, jwt) = world.create("bot", Kind::Jwt).unwrap();
    let by = world.who(&jwt).unwrap();
    let renew = |id: &str| TokenCommand::Renew(RenewToken { id: id.into() });
    for stranger in [Principal::socket(), Principal::new("jwt:bot", Scopes::USER)] {
        let refused = world.ask_as(&stranger, renew(&old.id)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
    }
    let mut last = None;
    for _ in 1..RENEWED_MAX {
        let TokenReply::Rotated(rotated) = world.ask_as(&by, renew(&old.id)).unwrap() else { panic!() };
        let RotatedToken { token, secret, old: before } = *rotated;
        assert_eq!(before.expires, Some(NOW.after(RENEWED_OVERLAP)));
        assert_eq!((&token.name, token.scopes, token.since), (&old.name, old.scopes, old.since));
        assert_eq!(token.expires, old.expires, "it lives as long as the first was to");
        assert_eq!(world.who(&secret).unwrap().owner, by.owner);
        last = Some((token, secret));
    }
    let refused = world.ask_as(&by, renew(&old.id)).unwrap_err();
    assert!(refused.code == ErrorCode::Conflict && refused.message.contains("too often"), "{refused}");
    world.wall = NOW.after(RENEWED_OVERLAP);
    assert!(world.who(&jwt).is_err(), "it has ended early");
    let (token, secret) = last.unwrap();
    let by = world.who(&secret).unwrap();
    assert_eq!(world.ask_as(&by, renew(&old.id)).unwrap_err().code, ErrorCode::Forbidden);
    world.ask(TokenCommand::Revoke(RevokeToken { id: token.id.to_string() })).unwrap();
    assert_eq!(world.ask_as(&by, renew(&token.id)).unwrap_err().code, ErrorCode::Conflict);
}

#[test]
fn who_may_and_what_may_be_given_out() {
    let mut world = World::new(true);
    for by in [Principal::local(), Principal::new("token", Scopes::ADMIN), Principal::new("x", Scopes::USER)]
    {
        let refused = world.ask_as(&by, create("a", Kind::ApiKey, None)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{by:?}");
    }
    assert!(world.ask_as(&Principal::new("x", Scopes::USER), TokenCommand::List(ListTokens)).is_err());
    assert!(world.ask_as(&Principal::new("token", Scopes::ADMIN), TokenCommand::List(ListTokens)).is_ok());
    for bad in ["", "A", "a b", "jwt:a", "local", "token", "socket", "İ", &"a".repeat(65)] {
        assert_eq!(world.create(bad, Kind::ApiKey).unwrap_err().code, ErrorCode::InvalidRequest, "{bad}");
    }
    assert_eq!(world.create("ci", Kind::ApiKey).unwrap_err().code, ErrorCode::Conflict, "configured");
    world.create("ci", Kind::Jwt).expect("another kind is another principal");
    for life in [Duration::ZERO, LIFE_MAX + Duration::from_secs(1), Duration::MAX] {
        let refused = world.ask(create("a", Kind::ApiKey, Some(life))).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "{life:?}");
    }
}

#[test]
fn there_is_an_end_to_them() {
    let token = |n: usize, revoked| Token {
        id: format!("cmx_{n}").into(),
        name: format!("n{n}").into(),
        kind: Kind::ApiKey,
        sha256: Some([0; 32]),
        scopes: Scopes::USER,
        created: Timestamp::from_millis(n as u64),
        since: Timestamp::from_millis(n as u64),
        expires: None,
        revoked,
        used: None,
        origin: None,
    };
    let mut world = World::new(false);
    world.ledger = Ledger::new((0..TOKENS_MAX).map(|n| token(n, None)).collect());
    assert_eq!(world.create("more", Kind::ApiKey).unwrap_err().code, ErrorCode::Conflict);
    world.ledger.apply(&[Change::Put(token(7, Some(NOW))), Change::Put(token(9, Some(NOW)))]);
    world.create("more", Kind::ApiKey).unwrap();
    assert_eq!(world.ledger.list().len(), TOKENS_MAX);
    assert!(world.ledger.tokens.contains_key("cmx_9") && !world.ledger.tokens.contains_key("cmx_7"));
}

#[test]
fn use_is_noted_now_and_then() {
    let mut world = World::new(true);
    let (token, _) = world.create("bot", Kind::ApiKey).unwrap();
    let (here, there): (IpAddr, IpAddr) = ([127, 0, 0, 1].into(), [10, 0, 0, 1].into());
    for shown in [Shown::Issued(token.id.clone()), Shown::Configured("ci".into())] {
        let first = world.ledger.used(&shown, here, NOW).unwrap();
        world.ledger.apply(std::slice::from_ref(&first));
        assert_eq!(world.ledger.last_use(&shown), Some(first));
        assert_eq!(world.ledger.used(&shown, here, NOW.after(Duration::from_secs(59))), None);
        assert!(world.ledger.used(&shown, there, NOW).is_some());
        assert!(world.ledger.used(&shown, here, NOW.after(Duration::from_secs(60))).is_some());
    }
    assert_eq!(world.ledger.used(&Shown::Issued("cmx_none".into()), here, NOW), None);
    let TokenReply::List(TokenList { configured, .. }) = world.ask(TokenCommand::List(ListTokens)).unwrap()
    else {
        panic!()
    };
    assert_eq!(configured.len(), 1, "the configuration has no other");
    assert_eq!((&*configured[0].name, configured[0].used.unwrap().origin), ("ci", here));
}

#[test]
fn what_somebody_else_decided_holds_and_later_uses_stay_known() {
    let mut world = World::new(true);
    let (token, _) = world.create("bot", Kind::ApiKey).unwrap();
    let here: IpAddr = [127, 0, 0, 1].into();
    for shown in [Shown::Issued(token.id.clone()), Shown::Configured("ci".into())] {
        let used = world.ledger.used(&shown, here, NOW).unwrap();
        world.ledger.apply(&[used]);
    }
    let revoked = Token { revoked: Some(NOW), used: None, ..token.clone() };
    world.ledger.replace(Ledger::new(vec![revoked]));
    let known = &world.ledger.tokens[&token.id];
    assert_eq!((known.revoked, known.used, known.origin), (Some(NOW), Some(NOW), Some(here)));
    assert!(world.ledger.last_use(&Shown::Configured("ci".into())).is_some());
    world.ledger.replace(Ledger::default());
    assert_eq!(world.ledger.list(), []);
}

fn rotate(id: &str, overlap: Duration) -> TokenCommand {
    TokenCommand::Rotate(RotateToken { id: id.into(), overlap: Some(overlap), life: None })
}

#[test]
fn both_hold_while_one_is_rotated_and_then_the_new_one_alone() {
    let day = Duration::from_secs(86_400);
    for kind in Kind::ALL {
        let mut world = World::new(true);
        let (old, secret) = world.create("bot", kind).unwrap();
        world.wall = NOW.after(day);
        let TokenReply::Rotated(rotated) = world.ask(rotate(&old.id, day)).unwrap() else { panic!() };
        let RotatedToken { token, secret: fresh, old: ending } = *rotated;
        assert_eq!((&token.name, token.scopes, token.kind), (&old.name, old.scopes, old.kind));
        assert_eq!((token.since, ending.expires), (old.since, Some(world.wall.after(day))));
        assert_eq!(token.expires.is_some(), kind == Kind::Jwt, "as long as the old one was to live");
        let (before, after) = (world.who(&secret).unwrap(), world.who(&fresh).unwrap());
        assert_eq!((&before.name, &before.owner), (&after.name, &after.owner));
        assert_eq!(before.expires, ending.expires, "whoever comes with the old one goes with it");
        let again = world.ask(rotate(&old.id, day)).unwrap_err();
        assert!(again.code == ErrorCode::Conflict && again.message.contains(&*token.id), "{again}");

        let almost = world.wall;
        world.wall = world.wall.after(day);
        assert_eq!(world.who(&secret).unwrap_err().code, ErrorCode::Unauthenticated);
        world.who(&fresh).unwrap();
        let ended: Vec<_> = world.ledger.expired(almost, world.wall).map(|token| &*token.id).collect();
        assert_eq!(ended, [&*old.id]);
        let over = world.ask(rotate(&old.id, day)).unwrap_err();
        assert!(over.code == ErrorCode::Conflict && over.message.contains("expired"), "{over}");
        world.ask(rotate(&token.id, Duration::ZERO)).unwrap();
        assert!(world.who(&fresh).is_err(), "at once");
    }
}

#[test]
fn what_was_done_with_the_old_key_is_the_new_keys() {
    let mut world = World::new(false);
    let (old, _) = world.create("bot", Kind::ApiKey).unwrap();
    let paired = NOW.after(Duration::from_secs(1));
    world.ask(rotate(&old.id, Duration::from_secs(60))).unwrap();
    let backing = world.authority.backing("bot", paired).unwrap();
    assert_eq!(backing.expires, None, "the one that holds longest stands for it");
    world.ask(TokenCommand::Revoke(RevokeToken { id: old.id.to_string() })).unwrap();
    world.authority.backing("bot", paired).expect("the new one goes on");
    for by in [Principal::local(), Principal::new("token", Scopes::ADMIN)] {
        let refused = world.ask_as(&by, rotate(&old.id, Duration::ZERO)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{by:?}");
    }
}

#[test]
fn what_ends_soon_is_warned_of_unless_another_goes_on() {
    let mut world = World::new(false);
    let mut soon = |name: &str, days: u64| {
        let life = Some(Duration::from_secs(days * 86_400));
        match world.ask(create(name, Kind::ApiKey, life)).unwrap() {
            TokenReply::Created(created) => created.token.id,
            other => panic!("{other:?}"),
        }
    };
    let (near, _far) = (soon("near", 7), soon("far", 8));
    let named = |world: &World| {
        let all = world.ledger.expiring(world.wall).map(|token| token.name.to_string());
        all.collect::<Vec<_>>()
    };
    assert_eq!(named(&world), ["near"]);
    let life = Some(Duration::from_secs(30 * 86_400));
    world.ask(TokenCommand::Rotate(RotateToken { id: near.to_string(), overlap: None, life })).unwrap();
    assert!(named(&world).is_empty());
    world.wall = NOW.after(Duration::from_secs(2 * 86_400));
    assert_eq!(named(&world), ["far"]);
}
