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

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::jwt::{self, Claims, Signer};
use super::token::{self, Token};
use super::{Credentials, Secret};
use crate::access::auth::{Auth, Jwt, LoopbackPolicy};
use crate::error::credential::{CredentialFault, Refusal};
use crate::error::{Error, ErrorCode};
use crate::principal::{Grounds, Principal};
use crate::scope::Scopes;
use crate::swappable::Swappable;
use crate::time::Timestamp;

/// The fewest characters of a secret that others than this host may guess at.
pub const SECRET_CHARS_MIN: usize = 16;

/// As many characters as such a secret should have.
pub const SECRET_CHARS_GOOD: usize = 32;

/// Who is let in; shared by all connections.
#[derive(Debug)]
pub struct Authority(Swappable<Held>);

/// All that is known of credentials at one time.
#[derive(Clone, Debug)]
struct Held {
    configured: Arc<Configured>,
    issued: Arc<Issued>,
    word: Word,
}

/// How far it can be relied on what this daemon knows of the credentials that were given out: in a cluster others may have
/// revoked one and can't say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// It is what holds.
    #[default]
    Good,
    /// Nobody new is let in by it; who is there stays.
    Doubtful,
    /// Nobody stays by it either.
    Stale,
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
            Grounds::Issued(_) | Grounds::Minted(..) if self.word == Word::Stale => false,
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
        Self(Swappable::new(Held { configured, issued: Arc::default(), word: Word::Good }))
    }

    /// From now on these are what the daemon has given out.
    pub fn renew(&self, tokens: &[Token]) {
        let issued = Arc::new(Issued::new(tokens));
        self.0.update(|held| Held { issued, ..held.clone() });
    }

    /// From now on what the daemon has given out can be relied on so far.
    pub fn rely(&self, word: Word) {
        self.0.update(|held| Held { word, ..held.clone() });
    }

    /// That nobody new can be let in by what the daemon has given out, where that is so.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn check_word(&self) -> Result<(), Error> {
        match self.0.get().word {
            Word::Good => Ok(()),
            Word::Doubtful | Word::Stale => Err(ErrorCode::Unavailable.error(
                "this daemon is cut off from its cluster and can't know whether the credential holds: try another one",
            )),
        }
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
    /// `Unauthenticated` where this is none that holds, with what is wrong; `Unavailable` where that can't be known.
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
        let principal = shown.map_err(CredentialFault::error)?;
        if matches!(principal.grounds, Grounds::Issued(_) | Grounds::Minted(..)) {
            self.check_word()?;
        }
        Ok(principal)
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

/// SHA-256 of a token, as [`ApiKey`](crate::access::auth::ApiKey) keeps it.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}
