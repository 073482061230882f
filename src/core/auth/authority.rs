//! The credentials there are, and who somebody is that shows one.
//!
//! Of keys only digests are kept. A key is compared with every one of them in constant time, so that
//! how long it takes says neither which matched nor how much of it did.
//!
//! What is configured changes when a configuration is applied ([`Authority::configure`]), and what the
//! daemon gave out itself, which is in the store, when an operator says so ([`Authority::renew`]): both
//! are in one immutable value, which is exchanged as a whole, and nobody who looks at it waits for
//! anybody. Each credential of the configuration has a number that it keeps as long as it stays the
//! same, so that it can be told who came in by one that is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::jwt::{self, Claims, Refusal, Signer};
use super::pairing::CredentialFault;
use super::token::{self, Token};
use super::{Credentials, Grounds, Principal, Scopes, Secret};
use crate::config::{Auth, Jwt, LoopbackPolicy};
use crate::error::{Error, ErrorCode};
use crate::exchanged::Exchanged;
use crate::time::Timestamp;

/// The fewest characters of a secret that others than this host may guess at.
pub const SECRET_CHARS_MIN: usize = 16;

/// As many characters as such a secret should have.
pub const SECRET_CHARS_GOOD: usize = 32;

/// Who is let in; shared by all connections.
#[derive(Debug)]
pub struct Authority(Exchanged<Held>);

/// All that is known of credentials at one time.
#[derive(Clone, Debug)]
struct Held {
    configured: Arc<Configured>,
    issued: Arc<Issued>,
}

/// What the configuration says.
#[derive(Debug)]
struct Configured {
    loopback: LoopbackPolicy,
    known: Vec<Known>,
    jwt: Option<Verifier>,
    /// Whose secret is shorter than [`SECRET_CHARS_MIN`].
    short: Option<String>,
    /// The last number given out.
    last: u32,
}

/// What JWTs are signed with.
#[derive(Debug)]
struct Verifier {
    signer: Signer,
    from: Jwt,
    number: u32,
}

/// A key and who shows it.
#[derive(Clone, PartialEq)]
struct Known {
    sha256: [u8; 32],
    principal: Principal,
    /// Since when it is there; none = it was configured.
    since: Option<Timestamp>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.principal.fmt(f)
    }
}

/// What the daemon gave out.
#[derive(Debug, Default)]
struct Issued {
    /// The keys that were not revoked.
    known: Vec<Known>,
    /// The ids of all that was not revoked, keys and JWTs, and when they end.
    valid: BTreeMap<Arc<str>, Option<Timestamp>>,
    /// Whether there was ever anything: a door that was closed does not open by a revocation.
    is_any: bool,
}

impl Configured {
    /// That of a configuration. What `before` has as well keeps its number.
    fn new(auth: &Auth, before: Option<&Self>) -> Self {
        let mut last = before.map_or(0, |before| before.last);
        let mut number = |old: Option<u32>| {
            old.unwrap_or_else(|| {
                last += 1;
                last
            })
        };
        let mut known = |sha256: [u8; 32], name: &str, scopes: Scopes| {
            let with = |number| {
                let grounds = Grounds::Configured(number);
                Known {
                    sha256,
                    principal: Principal { grounds, ..Principal::new(name, scopes) },
                    since: None,
                }
            };
            let mut old = before.iter().flat_map(|before| &before.known);
            let old = old.find_map(|old| match old.principal.grounds {
                Grounds::Configured(number) if *old == with(number) => Some(number),
                _ => None,
            });
            with(number(old))
        };
        let token = auth.token.as_ref().map(|token| known(digest(token.expose()), "token", Scopes::ADMIN));
        let keys = auth.api_keys.iter().map(|key| known(key.sha256, &key.name, key.scopes));
        let known = token.into_iter().chain(keys).collect();
        // The configuration has refused a shorter secret.
        let signer = |jwt: &Jwt| {
            let signer = Signer::new(&jwt.secret, &jwt.issuer, &jwt.audience).ok()?;
            Some(signer.with_life_max(jwt.max_life))
        };
        let jwt = auth.jwt.as_ref().and_then(|jwt| {
            let old = before.and_then(|before| before.jwt.as_ref()).filter(|old| old.from == *jwt);
            Some(Verifier {
                signer: signer(jwt)?,
                from: jwt.clone(),
                number: number(old.map(|old| old.number)),
            })
        });
        let token = auth.token.iter().map(|token| ("token", Some(token.expose().chars().count())));
        let keys = auth.api_keys.iter().map(|key| (&*key.name, key.chars));
        let is_short = |(_, chars): &(_, Option<usize>)| chars.is_some_and(|chars| chars < SECRET_CHARS_MIN);
        let short = token.chain(keys).find(is_short).map(|(name, _)| name.to_owned());
        Self { loopback: auth.loopback, known, jwt, short, last }
    }

    /// Whether there is any, or was any before a reload: a door that was closed does not open because a
    /// file is empty, half written or gone. It takes a restart.
    fn is_any(&self) -> bool {
        self.last > 0
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        let known = self.known.iter().filter_map(|known| match known.principal.grounds {
            Grounds::Configured(number) => Some(number),
            _ => None,
        });
        known.chain(self.jwt.iter().map(|jwt| jwt.number))
    }
}

impl Issued {
    fn new(tokens: &[Token]) -> Self {
        let valid = || tokens.iter().filter(|token| token.revoked.is_none());
        let known = valid().filter_map(|token| {
            Some(Known { sha256: token.sha256?, principal: token.principal(), since: Some(token.since) })
        });
        Self {
            known: known.collect(),
            valid: valid().map(|token| (token.id.clone(), token.expires)).collect(),
            is_any: !tokens.is_empty(),
        }
    }
}

impl Held {
    fn credentials_configured(&self) -> bool {
        self.configured.is_any() || self.issued.is_any
    }

    fn upholds(&self, grounds: &Grounds) -> bool {
        let is_signed_with =
            |number: u32| self.configured.jwt.as_ref().is_some_and(|jwt| jwt.number == number);
        match grounds {
            Grounds::Socket => true,
            Grounds::Configured(number) => self.configured.numbers().any(|known| known == *number),
            Grounds::Skipped => {
                self.configured.loopback == LoopbackPolicy::Skip || !self.credentials_configured()
            }
            Grounds::Open => {
                self.configured.loopback != LoopbackPolicy::Required && !self.credentials_configured()
            }
            Grounds::Issued(id) => self.issued.valid.contains_key(id),
            Grounds::Minted(id, number) => self.issued.valid.contains_key(id) && is_signed_with(*number),
        }
    }

    /// Every key there is.
    fn known(&self) -> impl Iterator<Item = &Known> {
        self.configured.known.iter().chain(&self.issued.known)
    }

    /// Who shows this key, where there is one such.
    fn by_key(&self, key: &Secret, now: Timestamp) -> Option<Result<Principal, CredentialFault>> {
        let shown = digest(key.expose());
        let mut found = u32::MAX;
        let all = || self.known();
        for (index, known) in (0_u32..).zip(all()) {
            found.conditional_assign(&index, known.sha256.ct_eq(&shown));
        }
        let principal = &usize::try_from(found).ok().and_then(|index| all().nth(index))?.principal;
        Some(match principal.expires {
            Some(at) if at <= now => Err(CredentialFault::ApiKeyExpired { at }),
            _ => Ok(principal.clone()),
        })
    }

    /// Who shows this JWT.
    fn by_jwt(&self, token: &Secret, now: Timestamp) -> Result<Principal, CredentialFault> {
        let refuse = CredentialFault::Jwt;
        let jwt = self.configured.jwt.as_ref().ok_or(refuse(Refusal::NotConfigured))?;
        let claims = jwt.signer.verify(token.expose(), now).map_err(refuse)?;
        let mut expires = claims.expires;
        let grounds = match claims.id {
            // One of ours: it is let in as long as it stands in the store.
            Some(id) if id.starts_with(token::ID_PREFIX) => {
                // Rotated, it ends sooner than it says itself.
                let Some(end) = self.issued.valid.get(&id) else { return Err(refuse(Refusal::Revoked)) };
                expires = end.map_or(expires, |end| end.min(expires));
                if expires <= now {
                    return Err(refuse(Refusal::Expired { at: expires }));
                }
                Grounds::Minted(id, jwt.number)
            }
            _ => Grounds::Configured(jwt.number),
        };
        let name = token::subject_name(&claims.subject);
        Ok(Principal { grounds, expires: Some(expires), ..Principal::new(name, claims.scopes) })
    }
}

impl Authority {
    /// Of the configured credentials.
    pub fn new(auth: &Auth) -> Self {
        let configured = Arc::new(Configured::new(auth, None));
        Self(Exchanged::new(Held { configured, issued: Arc::default() }))
    }

    /// From now on these are what the daemon has given out.
    pub fn renew(&self, tokens: &[Token]) {
        let issued = Arc::new(Issued::new(tokens));
        self.0.update(|held| Held { issued, ..held.clone() });
    }

    /// From now on these are configured. Who was let in may not stay where it is not upheld any more
    /// ([`Self::upholds`]).
    pub fn configure(&self, auth: &Auth) {
        self.0.update(|held| Held {
            configured: Arc::new(Configured::new(auth, Some(&held.configured))),
            ..held.clone()
        });
    }

    fn said(&self) -> Arc<Configured> {
        self.0.get().configured.clone()
    }

    /// Whether any credential is configured, or was ever given out.
    pub fn credentials_configured(&self) -> bool {
        self.0.get().credentials_configured()
    }

    /// Whether the daemon ever gave out a credential.
    pub fn has_issued(&self) -> bool {
        self.0.get().issued.is_any
    }

    /// Whether credentials are required, and there is none left that anybody could show: all that were
    /// given out were revoked or have ended, and none is configured. A secret that JWTs are signed with
    /// counts as one.
    pub fn is_locked_out(&self, now: Timestamp) -> bool {
        let held = self.0.get();
        let is_configured = !held.configured.known.is_empty() || held.configured.jwt.is_some();
        let holds = |key: &Known| key.principal.expires.is_none_or(|end| end > now);
        !is_configured && held.credentials_configured() && !held.issued.known.iter().any(holds)
    }

    /// Whether a connection must show a credential. `loopback`: it came over a loopback address to
    /// a socket bound to one. `may_skip`: its protocol is the one that `auth.loopback = "skip"` is for.
    pub fn credentials_required(&self, loopback: bool, may_skip: bool) -> bool {
        let held = self.0.get();
        match held.configured.loopback {
            _ if !loopback => true,
            LoopbackPolicy::Required => true,
            LoopbackPolicy::Skip if may_skip => false,
            LoopbackPolicy::Auto | LoopbackPolicy::Skip => held.credentials_configured(),
        }
    }

    /// Who comes where no credential is required, over a protocol that `may_skip` as in
    /// [`Self::credentials_required`]. Whatever it shows is not looked at.
    pub fn local(&self, may_skip: bool) -> Principal {
        match self.said().loopback {
            LoopbackPolicy::Skip if may_skip => Principal { grounds: Grounds::Skipped, ..Principal::local() },
            _ => Principal::local(),
        }
    }

    /// Whether somebody who was let in may stay, but for the end of its credential's time.
    pub fn upholds(&self, principal: &Principal) -> bool {
        self.0.get().upholds(&principal.grounds)
    }

    /// Who it is that shows `credentials`, at this time of the wall clock.
    ///
    /// # Errors
    /// `Unauthenticated` where this is none that holds, with what is wrong.
    pub fn authenticate(&self, credentials: &Credentials, now: Timestamp) -> Result<Principal, Error> {
        let held = self.0.get();
        let shown = match credentials {
            Credentials::None => Err(CredentialFault::Missing),
            Credentials::ApiKey(key) => held.by_key(key, now).unwrap_or(Err(CredentialFault::ApiKey)),
            Credentials::Jwt(token) => held.by_jwt(token, now),
            Credentials::Token(token) => match held.by_key(token, now) {
                Some(known) => known,
                None if held.configured.jwt.is_some() && jwt::is_shaped(token.expose()) => {
                    held.by_jwt(token, now)
                }
                None => Err(CredentialFault::Mismatch { has_device_token: false }),
            },
        };
        shown.map_err(CredentialFault::error)
    }

    /// The longest life of a JWT, where one is configured.
    pub fn jwt_life_max(&self) -> Option<Duration> {
        self.said().jwt.as_ref().and_then(|jwt| jwt.from.max_life)
    }

    /// A JWT for one that the store knows by its id, issued at this time of the wall clock; none where
    /// no secret is configured.
    pub fn mint(&self, token: &Token, now: Timestamp) -> Option<Secret> {
        let claims = Claims {
            subject: token.name.clone(),
            scopes: token.scopes,
            expires: token.expires?,
            id: Some(token.id.clone()),
        };
        Some(self.said().jwt.as_ref()?.signer.mint(&claims, now))
    }

    /// Whether a credential of the configuration has this name.
    pub fn is_configured(&self, name: &str) -> bool {
        self.said().known.iter().any(|known| *known.principal.name == *name)
    }

    /// The credentials of the configuration with what they allow, by their names.
    pub fn configured(&self) -> Vec<(Arc<str>, Scopes)> {
        let said = self.said();
        said.known.iter().map(|known| (known.principal.name.clone(), known.principal.scopes)).collect()
    }

    /// Who shows the key of this name, if it is there and was at that time: one that took the place
    /// of a revoked one does not stand for what was done with that. A JWT is nobody's by its name.
    pub fn backing(&self, name: &str, at: Timestamp) -> Option<Principal> {
        let held = self.0.get();
        let stands = held
            .known()
            .filter(|known| *known.principal.name == *name && known.since.is_none_or(|since| since <= at));
        // While one is rotated there are two.
        let end = |known: &&Known| known.principal.expires.map_or(u64::MAX, Timestamp::as_millis);
        stands.max_by_key(end).map(|known| known.principal.clone())
    }

    /// Whether it is safe to listen on these addresses.
    ///
    /// # Errors
    /// `Forbidden`, with what to set, where one of them is off loopback or loopback requires a
    /// credential, and none is configured.
    pub fn may_listen(&self, addresses: &[SocketAddr]) -> Result<(), Error> {
        const SET: &str = "set CLAWMUX_TOKEN in the environment, or auth.token_file, [auth.jwt] or [[auth.api_keys]] in \
             gateway.toml, or give one out (clawmux token create) while it listens on loopback alone";
        if self.credentials_configured() {
            return Ok(());
        }
        if let Some(address) = addresses.iter().find(|address| is_exposed(address)) {
            return Err(ErrorCode::Forbidden.error(format!(
                "{address} is not a loopback address and no credential is configured: {SET}, or listen on 127.0.0.1"
            )));
        }
        if self.said().loopback == LoopbackPolicy::Required {
            return Err(ErrorCode::Forbidden
                .error(format!("auth.loopback is \"required\" and no credential is configured: {SET}")));
        }
        Ok(())
    }
}

impl Authority {
    /// Whether the configured secrets are long enough for who can reach these addresses.
    ///
    /// # Errors
    /// `Forbidden`, with the name of the credential that is too short.
    pub fn secrets_suit(&self, addresses: &[SocketAddr]) -> Result<(), Error> {
        let exposed = addresses.iter().find(|address| is_exposed(address));
        match (exposed, &self.said().short) {
            (Some(address), Some(name)) => Err(ErrorCode::Forbidden.error(format!(
                "{address} is not a loopback address and the secret of the credential {name:?} is shorter than \
                 {SECRET_CHARS_MIN} characters: give it a longer one, or listen on 127.0.0.1"
            ))),
            _ => Ok(()),
        }
    }
}

/// Whether others than this host can reach it.
pub(crate) fn is_exposed(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// SHA-256 of a token, as [`ApiKey`](crate::config::ApiKey) keeps it.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::token::Kind;
    use crate::auth::{Owner, Scope};
    use crate::config::{ApiKey, Jwt};
    use crate::error::Detail;

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
        let jwt = Jwt {
            secret: Secret::new(JWT_SECRET),
            issuer: "me".into(),
            audience: "you".into(),
            max_life: None,
        };
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
}
