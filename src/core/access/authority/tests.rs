//! Who is let in by which credential, and who stays when they change.

use super::*;
use crate::access::auth::{ApiKey, Jwt};
use crate::access::token::Kind;
use crate::error::Detail;
use crate::ids::Owner;
use crate::scope::Scope;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const JWT_SECRET: &str = "0123456789abcdef0123456789abcdef";

fn auth(token: Option<&str>, keys: &[(&str, &str, Scopes)], loopback: LoopbackPolicy) -> Authority {
    Authority::new(&raw(token, keys, loopback))
}

fn raw(token: Option<&str>, keys: &[(&str, &str, Scopes)], loopback: LoopbackPolicy) -> Auth {
    Auth {
        token: token.map(Secret::new),
        jwt: None,
        loopback,
        api_keys: keys
            .iter()
            .map(|(name, key, scopes)| ApiKey {
                name: (*name).into(),
                sha256: digest(key),
                chars: Some(key.chars().count()),
                scopes: *scopes,
            })
            .collect(),
    }
}

fn with_jwt() -> Authority {
    let jwt =
        Jwt { secret: Secret::new(JWT_SECRET), issuer: "me".into(), audience: "you".into(), max_life: None };
    Authority::new(&Auth { jwt: Some(jwt), ..raw(None, &[], LoopbackPolicy::Auto) })
}

fn jwt_of(subject: &str, scopes: Scopes, id: Option<&str>) -> Secret {
    let expires = NOW.after(Duration::from_secs(60));
    let signer = Signer::new(&Secret::new(JWT_SECRET), "me", "you").unwrap();
    signer.mint(&Claims { subject: subject.into(), scopes, expires, id: id.map(Arc::from) }, NOW)
}

fn issued(id: &str, name: &str, key: Option<&str>) -> Token {
    Token {
        id: id.into(),
        name: name.into(),
        kind: if key.is_some() { Kind::ApiKey } else { Kind::Jwt },
        sha256: key.map(digest),
        scopes: Scopes::USER,
        created: NOW,
        since: NOW,
        expires: Some(NOW.after(Duration::from_secs(60))),
        revoked: None,
        used: None,
        origin: None,
    }
}

fn token(text: &str) -> Credentials {
    Credentials::Token(Secret::new(text))
}

fn fault(answer: Result<Principal, Error>) -> CredentialFault {
    match answer.unwrap_err().detail {
        Some(Detail::Credential(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_credential_is_its_principal_and_nothing_else_is() {
    let readonly = Scopes::of(&[Scope::Read]);
    let authority = auth(
        Some("s3cret"),
        &[("ci", "key-1", readonly), ("boss", "key-2", Scopes::ADMIN)],
        LoopbackPolicy::Auto,
    );
    let who = |text| authority.authenticate(&token(text), NOW).map(|p| (p.name.to_string(), p.owner));
    assert_eq!(who("s3cret").unwrap(), ("token".into(), Owner::Admins));
    assert_eq!(who("key-1").unwrap(), ("ci".into(), Owner::Credential("ci".into())));
    assert_eq!(who("key-2").unwrap(), ("boss".into(), Owner::Admins));
    let ci = authority.authenticate(&token("key-1"), NOW).unwrap();
    assert!(ci.scopes == readonly && !ci.unlimited);
    for wrong in ["", "s3cre", "s3crets", "S3cret", "key-3", "İİİİ"] {
        assert_eq!(who(wrong).unwrap_err().code, ErrorCode::Unauthenticated, "{wrong:?}");
    }
    assert!(authority.authenticate(&Credentials::None, NOW).is_err());
    let open = auth(None, &[], LoopbackPolicy::Auto);
    assert!(open.authenticate(&token(""), NOW).is_err(), "no credential is not an empty one");
    let by_kind = |text| authority.authenticate(&Credentials::ApiKey(Secret::new(text)), NOW);
    assert_eq!(&*by_kind("s3cret").unwrap().name, "token");
    assert_eq!(fault(by_kind("nothing")), CredentialFault::ApiKey);
    let as_jwt = authority.authenticate(&Credentials::Jwt(Secret::new("key-1")), NOW);
    assert_eq!(fault(as_jwt), CredentialFault::Jwt(Refusal::NotConfigured));
}

#[test]
fn a_jwt_is_its_subject_and_only_that_kind_is_tried_where_it_is_named() {
    let authority = with_jwt();
    let jwt = jwt_of("alice", Scopes::USER, None);
    for credentials in [Credentials::Jwt(jwt.clone()), Credentials::Token(jwt.clone())] {
        let alice = authority.authenticate(&credentials, NOW).unwrap();
        assert_eq!((&*alice.name, alice.scopes), ("jwt:alice", Scopes::USER));
        assert_eq!(alice.owner, Owner::Credential("jwt:alice".into()));
        assert_eq!(alice.expires, Some(NOW.after(Duration::from_secs(60))));
    }
    let as_key = authority.authenticate(&Credentials::ApiKey(jwt.clone()), NOW);
    assert_eq!(fault(as_key), CredentialFault::ApiKey);
    let boss = Credentials::Jwt(jwt_of("boss", Scopes::ADMIN, None));
    assert_eq!(authority.authenticate(&boss, NOW).unwrap().owner, Owner::Admins);
    let late = NOW.after(Duration::from_secs(60));
    let expired = CredentialFault::Jwt(Refusal::Expired { at: late });
    assert_eq!(fault(authority.authenticate(&Credentials::Token(jwt), late)), expired);
    assert_eq!(
        fault(authority.authenticate(&token("no jwt"), NOW)),
        CredentialFault::Mismatch { has_device_token: false }
    );
    assert!(authority.credentials_required(true, true), "a secret is a credential");
}

#[test]
fn what_was_given_out_holds_until_it_expires_or_is_revoked() {
    let authority = with_jwt();
    let ours = jwt_of("ci", Scopes::USER, Some("cmx_2"));
    let by_jwt = || authority.authenticate(&Credentials::Jwt(ours.clone()), NOW);
    assert_eq!(fault(by_jwt()), CredentialFault::Jwt(Refusal::Revoked), "the store knows nothing of it");
    let theirs = Credentials::Jwt(jwt_of("x", Scopes::USER, Some("theirs")));
    authority.authenticate(&theirs, NOW).unwrap();

    let mut tokens = [issued("cmx_1", "ci", Some("key")), issued("cmx_2", "ci", None)];
    authority.renew(&tokens);
    let (key, jwt) = (authority.authenticate(&token("key"), NOW).unwrap(), by_jwt().unwrap());
    assert_eq!((&*key.name, &key.grounds), ("ci", &Grounds::Issued("cmx_1".into())));
    assert_eq!((&*jwt.name, &jwt.grounds), ("jwt:ci", &Grounds::Minted("cmx_2".into(), 1)));
    assert_ne!(key.owner, jwt.owner);
    let late = NOW.after(Duration::from_secs(60));
    let expired = CredentialFault::ApiKeyExpired { at: late };
    assert_eq!(fault(authority.authenticate(&token("key"), late)), expired);

    assert!(authority.upholds(&key) && authority.upholds(&jwt));
    tokens[0].revoked = Some(NOW);
    authority.renew(&tokens);
    assert!(!authority.upholds(&key) && authority.upholds(&jwt));
    assert!(authority.authenticate(&token("key"), NOW).is_err());
    authority.renew(&[]);
    assert!(!authority.upholds(&jwt));
    assert_eq!(fault(by_jwt()), CredentialFault::Jwt(Refusal::Revoked));
}

#[test]
fn the_first_one_given_out_closes_loopback_for_good() {
    let authority = auth(None, &[], LoopbackPolicy::Auto);
    let local = authority.local(true);
    assert!(!authority.credentials_required(true, true) && authority.upholds(&local));
    authority.renew(&[Token { revoked: Some(NOW), ..issued("cmx_1", "ci", Some("key")) }]);
    assert!(authority.credentials_required(true, true) && !authority.upholds(&local));
    let skips = auth(None, &[], LoopbackPolicy::Skip);
    let (exoclaw, other) = (skips.local(true), skips.local(false));
    skips.renew(&[issued("cmx_1", "ci", Some("key"))]);
    assert!(skips.upholds(&exoclaw) && !skips.upholds(&other));
}

#[test]
fn who_came_in_by_what_is_configured_no_more_is_upheld_no_more() {
    let readonly = Scopes::of(&[Scope::Read]);
    let jwt = Some(Jwt {
        secret: Secret::new(JWT_SECRET),
        issuer: "me".into(),
        audience: "you".into(),
        max_life: None,
    });
    let with = |token, keys: &[(&str, &str, Scopes)], jwt: &Option<Jwt>| Auth {
        jwt: jwt.clone(),
        ..raw(token, keys, LoopbackPolicy::Auto)
    };
    let keys = [("a", "key-a", readonly), ("b", "key-b", readonly), ("c", "key-c", readonly)];
    let authority = Authority::new(&with(Some("s3cret"), &keys, &jwt));
    authority.renew(&[issued("cmx_1", "x", Some("key-x")), issued("cmx_2", "y", None)]);
    let shows = |text: &str| authority.authenticate(&token(text), NOW).unwrap();
    let minted = jwt_of("y", Scopes::USER, Some("cmx_2"));
    let all = ["s3cret", "key-a", "key-b", "key-c", "key-x", minted.expose()].map(shows);
    let upheld = |authority: &Authority| all.each_ref().map(|principal| authority.upholds(principal));
    authority.configure(&with(Some("s3cret"), &keys, &jwt));
    assert_eq!(upheld(&authority), [true; 6], "the same again");
    // One is gone, one is another key, one has other scopes; and it stays so when they come back.
    let others = [("b", "key-2", readonly), ("c", "key-c", Scopes::USER)];
    authority.configure(&with(Some("s3cret"), &others, &jwt));
    assert_eq!(upheld(&authority), [true, false, false, false, true, true]);
    authority.configure(&with(Some("s3cret"), &keys, &jwt));
    assert_eq!(upheld(&authority), [true, false, false, false, true, true]);
    authority.configure(&with(Some("another"), &keys, &None));
    assert_eq!(upheld(&authority), [false, false, false, false, true, false]);

    let policy = |loopback| raw(None, &[], loopback);
    let doors = Authority::new(&policy(LoopbackPolicy::Skip));
    let (skipped, open) = (doors.local(true), doors.local(false));
    doors.configure(&with(Some("s3cret"), &[], &None));
    assert!(!doors.upholds(&skipped) && !doors.upholds(&open));
    doors.configure(&policy(LoopbackPolicy::Auto));
    assert!(!doors.upholds(&skipped) && !doors.upholds(&open), "a closed door stays closed");
    assert!(doors.credentials_required(true, true));
    doors.configure(&policy(LoopbackPolicy::Skip));
    assert!(doors.upholds(&skipped) && !doors.upholds(&open), "but to whom it is said to be open");
    let doors = Authority::new(&policy(LoopbackPolicy::Auto));
    assert!(doors.upholds(&skipped) && doors.upholds(&open));
    doors.configure(&policy(LoopbackPolicy::Required));
    assert!(!doors.upholds(&open));
}

#[test]
fn a_key_stands_for_nothing_older_than_it_is() {
    let authority = auth(None, &[("old", "key", Scopes::USER)], LoopbackPolicy::Auto);
    authority.renew(&[issued("cmx_1", "ci", Some("new")), issued("cmx_2", "jay", None)]);
    let before = Timestamp::from_millis(NOW.as_millis() - 1);
    assert!(authority.backing("ci", NOW).is_some() && authority.backing("ci", before).is_none());
    assert!(authority.backing("old", before).is_some());
    assert!(authority.backing("jwt:jay", NOW).is_none() && authority.backing("jay", NOW).is_none());
}

#[test]
fn when_a_credential_is_required() {
    use LoopbackPolicy::{Auto, Required, Skip};
    // policy, configured, over loopback, the protocol of `skip`: required
    for (policy, configured, loopback, may_skip, required) in [
        (Auto, false, true, true, false),
        (Auto, false, false, true, true),
        (Auto, true, true, true, true),
        (Required, false, true, true, true),
        (Skip, true, true, true, false),
        (Skip, true, true, false, true),
        (Skip, true, false, true, true),
        (Skip, false, true, false, false),
    ] {
        let authority = auth(configured.then_some("token"), &[], policy);
        assert_eq!(
            authority.credentials_required(loopback, may_skip),
            required,
            "{policy:?}, configured: {configured}, loopback: {loopback}, may skip: {may_skip}"
        );
    }
}

#[test]
fn off_loopback_without_credentials_is_refused_with_what_to_set() {
    let open = auth(None, &[], LoopbackPolicy::Auto);
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(open.may_listen(&[address.parse().unwrap()]).is_ok(), "{address}");
    }
    for address in ["0.0.0.0:1", "192.168.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
        let all = ["127.0.0.1:1".parse().unwrap(), address.parse().unwrap()];
        let error = open.may_listen(&all).unwrap_err();
        assert!(error.message.contains("CLAWMUX_TOKEN"), "{}", error.message);
        assert!(auth(Some("t"), &[], LoopbackPolicy::Skip).may_listen(&all).is_ok());
        for (token, keys) in
            [("fifteen-letters", &[][..]), ("sixteen-letters-", &[("ci", "k", Scopes::USER)])]
        {
            let short = auth(Some(token), keys, LoopbackPolicy::Auto);
            let error = short.secrets_suit(&all).unwrap_err();
            assert!(error.message.contains("16 characters"), "{}", error.message);
            assert!(short.secrets_suit(&all[..1]).is_ok(), "on loopback it is a warning");
        }
        let long = auth(Some("sixteen-letters-"), &[], LoopbackPolicy::Auto);
        assert!(long.secrets_suit(&all).is_ok());
    }
    assert!(auth(None, &[], LoopbackPolicy::Required).may_listen(&[]).is_err());
}

#[test]
fn who_has_let_the_last_credential_end_is_locked_out() {
    let open = auth(None, &[], LoopbackPolicy::Auto);
    assert!(!open.is_locked_out(NOW), "nobody needs one");
    open.renew(&[issued("cmx_1", "ci", Some("key"))]);
    assert!(!open.is_locked_out(NOW));
    assert!(open.is_locked_out(NOW.after(Duration::from_secs(60))), "it has ended");
    let revoked = Token { revoked: Some(NOW), ..issued("cmx_1", "ci", Some("key")) };
    open.renew(&[revoked.clone(), issued("cmx_2", "jwt", None)]);
    assert!(open.is_locked_out(NOW), "nothing says what the JWT would be checked with");
    for configured in [auth(Some("s3cret"), &[], LoopbackPolicy::Auto), with_jwt()] {
        configured.renew(std::slice::from_ref(&revoked));
        assert!(!configured.is_locked_out(NOW));
    }
}

#[test]
fn no_debug_output_holds_a_digest() {
    let text = format!("{:?}", auth(Some("s3cret"), &[], LoopbackPolicy::Auto));
    assert!(text.contains("token") && !text.contains("sha256") && !text.contains("s3cret"), "{text}");
}

#[test]
fn what_was_given_out_lets_nobody_in_where_it_can_not_be_relied_on() {
    let authority = auth(Some("s3cret"), &[], LoopbackPolicy::Auto);
    authority.renew(&[issued("t1", "ada", Some("a key"))]);
    let ada = authority.authenticate(&token("a key"), NOW).unwrap();
    let boss = authority.authenticate(&token("s3cret"), NOW).unwrap();
    for (word, stays) in [(Word::Doubtful, true), (Word::Stale, false)] {
        authority.rely(word);
        let refused = authority.authenticate(&token("a key"), NOW).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
        assert_eq!(authority.upholds(&ada), stays, "{word:?}");
        // One that does not hold is none, whatever can be relied on.
        let wrong = authority.authenticate(&token("another key"), NOW).unwrap_err();
        assert_eq!(wrong.code, ErrorCode::Unauthenticated, "{wrong}");
        // The configuration is this daemon's own.
        authority.authenticate(&token("s3cret"), NOW).unwrap();
        assert!(authority.upholds(&boss));
    }
    authority.rely(Word::Good);
    assert!(authority.upholds(&ada));
    authority.authenticate(&token("a key"), NOW).unwrap();
}
