//! API keys and JWTs that the daemon gave out.
//!
//! Of an API key the store has the SHA-256, of a JWT its id (`jti`): neither can be shown again.
//! What was revoked stays known, so that a JWT can't come back and lists tell what happened, until
//! it makes room for others.
//!
//! A name is a principal: what is made with a key belongs to its name. A new one takes the name of one
//! that lets nobody in any more, and all that belongs to it ([`Estate`]), only where that is said; else
//! it is refused while there is anything. Devices that were paired with the old one do not come along.
//!
//! To **rotate** one is to give out another of its name and scopes while it holds on for a while, so
//! that whoever shows it can be given the new one in peace. Whoever has the one is trusted to be whom
//! the other was given to: devices that were paired with the old one stay.
//!
//! When and from where a credential was last used is kept for those of the configuration too, by their
//! names; not for JWTs that others make, of whose subjects there is no end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::authority::{Authority, digest};
use super::{Grounds, Owner, Principal, Scope, Scopes, Secret};
use crate::error::{Error, ErrorCode};
use crate::time::Timestamp;

/// How the id of everything given out begins. A JWT with such a `jti` is let in only while the store
/// knows it.
pub const ID_PREFIX: &str = "cmx_";
/// How an API key begins, so that it is known where it should not be.
pub const KEY_PREFIX: &str = "cmxkey_";
/// The most that are known at once, revoked and expired ones among them.
pub const TOKENS_MAX: usize = 1024;
/// The longest life of one.
pub const LIFE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long a JWT lives where nothing is said.
pub const JWT_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// How long the old one holds that is rotated, where nothing is said.
pub const OVERLAP: Duration = Duration::from_secs(86_400);
/// How long a JWT holds on that its client had renewed. (Source: Wundr's client renews within the last
/// 300 s.)
pub const RENEWED_OVERLAP: Duration = Duration::from_secs(300);
/// How many hold at once that come of one by renewal.
const RENEWED_MAX: usize = 8;
/// One that ends within so long is warned of.
pub const EXPIRES_SOON: Duration = Duration::from_secs(7 * 86_400);
/// Names that principals have which show no key of their own.
pub const RESERVED: [&str; 3] = ["local", "token", "socket"];

/// What kind of credential it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A random text.
    ApiKey,
    /// A signed one.
    Jwt,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::ApiKey, Self::Jwt];

    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ApiKey => "api-key",
            Self::Jwt => "jwt",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A credential that the daemon gave out; not the secret itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id; of a JWT also its `jti`.
    pub id: Arc<str>,
    /// Its name; of a JWT its subject.
    pub name: Arc<str>,
    /// What it is.
    pub kind: Kind,
    /// The SHA-256 of an API key.
    pub sha256: Option<[u8; 32]>,
    /// What it allows.
    pub scopes: Scopes,
    /// When it was made.
    pub created: Timestamp,
    /// Since when there is one of which this goes on: when the first was made of those that were
    /// rotated.
    pub since: Timestamp,
    /// When it ends, by the wall clock.
    pub expires: Option<Timestamp>,
    /// Since when it is revoked.
    pub revoked: Option<Timestamp>,
    /// When somebody was last let in with it; about a minute exact.
    pub used: Option<Timestamp>,
    /// From where that was.
    pub origin: Option<IpAddr>,
}

impl Token {
    /// Who shows it.
    pub fn principal(&self) -> Principal {
        let name = match self.kind {
            Kind::ApiKey => self.name.clone(),
            Kind::Jwt => subject_name(&self.name),
        };
        let grounds = Grounds::Issued(self.id.clone());
        Principal { grounds, expires: self.expires, ..Principal::new(name, self.scopes) }
    }

    /// Whether it lets nobody in any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.revoked.is_some() || self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The principal's name of a JWT's subject. No key has such a name.
pub(super) fn subject_name(subject: &str) -> Arc<str> {
    format!("jwt:{subject}").into()
}

/// Whether this may be the name of a key.
pub fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.".contains(c))
        && name.len() <= NAME_BYTES_MAX
}

/// What can be asked about credentials of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenCommand {
    /// Which there are.
    List,
    /// Give one out.
    Create {
        /// Its name.
        name: String,
        /// What it is.
        kind: Kind,
        /// What it allows.
        scopes: Scopes,
        /// How long it lives; none = as long as such do: a JWT [`JWT_LIFE`], an API key for ever.
        life: Option<Duration>,
        /// Whether it takes over what belongs to its name.
        inherit: bool,
    },
    /// Let nobody in with it any more.
    Revoke {
        /// Its id.
        id: String,
    },
    /// Give out another in its place.
    Rotate {
        /// Its id.
        id: String,
        /// For how long both hold; none = for [`OVERLAP`].
        overlap: Option<Duration>,
        /// How long the new one lives; none = as long as the old one was to live.
        life: Option<Duration>,
    },
    /// Give out a JWT in the place of the one that the caller was let in with, which then holds for
    /// [`RENEWED_OVERLAP`] more. Answered as `Rotate`.
    Renew {
        /// Its id.
        id: String,
    },
}

/// When somebody was last let in, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// When; about a minute exact.
    pub at: Timestamp,
    /// From where.
    pub origin: IpAddr,
}

/// A credential of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Its name; the shared token's is `token`.
    pub name: Arc<str>,
    /// What it allows.
    pub scopes: Scopes,
    /// When it was last used.
    pub used: Option<Use>,
}

/// The answer to a [`TokenCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenReply {
    /// To `List`.
    List {
        /// Those that were given out, the latest first.
        tokens: Vec<Token>,
        /// Those of the configuration.
        configured: Vec<Configured>,
        /// Whether nobody has to show one over loopback, until the first is given out.
        loopback_open: bool,
        /// Whether clients need one, and none is valid any more.
        locked_out: bool,
    },
    /// To `Create`.
    Created {
        /// It.
        token: Token,
        /// What is shown to be let in; told this once.
        secret: Secret,
        /// Whether loopback was open until now, and is not any more.
        closes_loopback: bool,
    },
    /// To `Revoke`.
    Revoked(Token),
    /// To `Rotate`.
    Rotated {
        /// The new one.
        token: Token,
        /// What is shown to be let in with it; told this once.
        secret: Secret,
        /// The old one, which now has an end.
        old: Token,
    },
}

impl TokenCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::List => 16,
            Self::Create { .. } | Self::Revoke { .. } | Self::Rotate { .. } | Self::Renew { .. } => 1,
        }
    }
}

/// What belongs to an owner, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estate {
    /// Sessions.
    pub sessions: u64,
    /// What is remembered.
    pub memories: u64,
    /// Files.
    pub files: u64,
    /// Jobs.
    pub jobs: u64,
}

impl Estate {
    /// Whether a credential of this name may be given out without taking it over: where there is nothing.
    ///
    /// # Errors
    /// `Conflict`, which says what there is.
    pub fn check(&self, name: &str) -> Result<(), Error> {
        let kinds = [
            (self.sessions, "session", "sessions"),
            (self.memories, "memory", "memories"),
            (self.files, "file", "files"),
            (self.jobs, "job", "jobs"),
        ];
        let there = kinds.iter().filter(|(count, ..)| *count > 0);
        let there: Vec<String> = there
            .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
            .collect();
        if there.is_empty() {
            return Ok(());
        }
        let there = there.join(", ");
        Err(ErrorCode::Conflict.error(format!(
            "{name:?} had a credential before, and what belongs to it is still there: {there}. \
             Take it over with --inherit, or use another name"
        )))
    }
}

/// Something to write down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The credential is as this now.
    Put(Token),
    /// It is not known any more.
    Forget(Arc<str>),
    /// One of the configuration was used.
    Used(Arc<str>, Use),
}

/// All that were given out, and when those of the configuration were used.
#[derive(Debug, Default)]
pub struct Ledger {
    tokens: BTreeMap<Arc<str>, Token>,
    configured: BTreeMap<Arc<str>, Use>,
}

/// What somebody was let in with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shown {
    /// One that was given out, by its id.
    Issued(Arc<str>),
    /// One of the configuration, by its name.
    Configured(Arc<str>),
}

impl Shown {
    /// What this principal was let in with, if it is one whose use is kept.
    pub fn of(principal: &Principal, authority: &Authority) -> Option<Self> {
        match &principal.grounds {
            Grounds::Issued(id) | Grounds::Minted(id, _) => Some(Self::Issued(id.clone())),
            Grounds::Configured(_) if authority.is_configured(&principal.name) => {
                Some(Self::Configured(principal.name.clone()))
            }
            Grounds::Configured(_) | Grounds::Skipped | Grounds::Open | Grounds::Socket => None,
        }
    }
}

/// What time it is, and randomness.
pub struct Moment<'a> {
    /// What time it is, as other things are dated.
    pub now: Timestamp,
    /// And by the wall clock.
    pub wall: Timestamp,
    /// Gives fresh random bytes.
    pub random: &'a mut dyn FnMut() -> [u8; 16],
}

/// How exactly it is kept when one was last used.
const USED_RESOLUTION: Duration = Duration::from_secs(60);

impl Ledger {
    /// Of what is written down.
    pub fn new(tokens: Vec<Token>) -> Self {
        let tokens = tokens.into_iter().map(|token| (token.id.clone(), token)).collect();
        Self { tokens, configured: BTreeMap::new() }
    }

    /// With what is written down of those of the configuration.
    #[must_use]
    pub fn with_uses(mut self, uses: Vec<(Arc<str>, Use)>) -> Self {
        self.configured = uses.into_iter().collect();
        self
    }

    /// The credentials, the latest first.
    pub fn list(&self) -> Vec<Token> {
        let mut all: Vec<Token> = self.tokens.values().cloned().collect();
        all.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        all
    }

    /// How many let somebody in at `wall`, and how many are known.
    pub fn counts(&self, wall: Timestamp) -> (usize, usize) {
        (self.tokens.values().filter(|token| !token.is_over(wall)).count(), self.tokens.len())
    }

    /// Those that let somebody in at `wall` and will not for long, and that no other goes on from.
    pub fn expiring(&self, wall: Timestamp) -> impl Iterator<Item = &Token> {
        let limit = wall.after(EXPIRES_SOON);
        let ends_soon = move |token: &&Token| token.expires.is_some_and(|expires| expires <= limit);
        let valid = self.tokens.values().filter(move |token| !token.is_over(wall));
        valid.filter(ends_soon).filter(move |token| self.successor(token, wall).is_none())
    }

    /// Those that held at `before` and have expired since.
    pub fn expired(&self, before: Timestamp, wall: Timestamp) -> impl Iterator<Item = &Token> {
        self.tokens.values().filter(move |token| !token.is_over(before) && token.is_over(wall))
    }

    /// The one that goes on from it.
    fn successor(&self, token: &Token, wall: Timestamp) -> Option<&Token> {
        self.tokens.values().find(|other| {
            let goes_on = (&other.name, other.kind, other.since) == (&token.name, token.kind, token.since);
            goes_on && !other.is_over(wall) && (other.created, &other.id) > (token.created, &token.id)
        })
    }

    /// What follows from a command: what has to be written down, and then applied, before the answer
    /// is told.
    ///
    /// # Errors
    /// `Forbidden` for who may not, `NotFound` for an id that is none, `Conflict` for a name that is
    /// taken, `InvalidRequest` for what can't be given out.
    pub fn decide(
        &self,
        command: TokenCommand,
        by: &Principal,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, TokenReply), Error> {
        let is_operator = by.owner == Owner::Admins && by.scopes.allows(Scope::Admin);
        match command {
            TokenCommand::Renew { id } => match &by.grounds {
                Grounds::Minted(own, _) if **own == *id => self.renew(&id, authority, at),
                _ => Err(ErrorCode::Forbidden.error("only who was let in with a JWT can have it renewed")),
            },
            _ if !is_operator => {
                Err(ErrorCode::Forbidden.error("credentials are for operators of the daemon"))
            }
            TokenCommand::List => {
                let configured = authority.configured().into_iter().map(|(name, scopes)| Configured {
                    used: self.configured.get(&name).copied(),
                    name,
                    scopes,
                });
                let configured = configured.collect();
                let loopback_open = !authority.credentials_required(true, false);
                let (tokens, locked_out) = (self.list(), authority.is_locked_out(at.wall));
                Ok((Vec::new(), TokenReply::List { tokens, configured, loopback_open, locked_out }))
            }
            TokenCommand::Create { name, kind, scopes, life, inherit: _ } => {
                if by.grounds != Grounds::Socket {
                    let why = "credentials are given out over the Unix socket alone: clawmux token create";
                    return Err(ErrorCode::Forbidden.error(why));
                }
                self.create(&name, kind, scopes, life, authority, at)
            }
            TokenCommand::Rotate { id, overlap, life } => {
                if by.grounds != Grounds::Socket {
                    let why = "credentials are given out over the Unix socket alone: clawmux token rotate";
                    return Err(ErrorCode::Forbidden.error(why));
                }
                self.rotate(&id, overlap.unwrap_or(OVERLAP), life, authority, at)
            }
            TokenCommand::Revoke { id } => {
                let none = || ErrorCode::NotFound.error("no credential has this id");
                let mut token = self.tokens.get(&*id).cloned().ok_or_else(none)?;
                let changes = match token.revoked {
                    Some(_) => Vec::new(),
                    None => {
                        token.revoked = Some(at.now);
                        vec![Change::Put(token.clone())]
                    }
                };
                Ok((changes, TokenReply::Revoked(token)))
            }
        }
    }

    /// Whom all belongs to that would come with what the command gives out, though nobody said so; none
    /// where nothing would: somebody is let in by that name already, or it lets in an operator.
    pub fn heir(&self, command: &TokenCommand, wall: Timestamp) -> Option<Owner> {
        let TokenCommand::Create { name, kind, scopes, inherit: false, .. } = command else { return None };
        let is_living = |token: &Token| *token.name == **name && token.kind == *kind && !token.is_over(wall);
        if scopes.allows(Scope::Admin) || self.tokens.values().any(is_living) {
            return None;
        }
        Some(Owner::Credential(match kind {
            Kind::ApiKey => name.as_str().into(),
            Kind::Jwt => subject_name(name),
        }))
    }

    /// Another JWT in the place of one that its client shows. Should its client not get it, or share the
    /// one with others, it is given out again: there are a few at most.
    fn renew(
        &self,
        id: &str,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, TokenReply), Error> {
        let old = self.living(id, at)?;
        let goes_with = |token: &&Token| {
            (&token.name, token.kind, token.since) == (&old.name, old.kind, old.since)
                && !token.is_over(at.wall)
        };
        let chain: Vec<&Token> = self.tokens.values().filter(goes_with).collect();
        if chain.len() >= RENEWED_MAX {
            let minutes = RENEWED_OVERLAP.as_secs() / 60;
            return Err(ErrorCode::Conflict.error(format!(
                "{id} was renewed too often: use the last that was given, or wait {minutes} minutes"
            )));
        }
        // One that was renewed already ends early; the others live as long as they were to.
        let life = chain.iter().filter_map(|token| Some(token.expires?.since(token.created))).max();
        let life = life.map(|life| life.max(Duration::from_secs(1)));
        self.succeed(old, RENEWED_OVERLAP, life, authority, at)
    }

    fn create(
        &self,
        name: &str,
        kind: Kind,
        scopes: Scopes,
        life: Option<Duration>,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, TokenReply), Error> {
        if !is_name(name) || RESERVED.contains(&name) {
            return Err(ErrorCode::InvalidRequest.error(format!(
                "expected a name of lowercase letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX}, \
                 and none of {}",
                RESERVED.join(", ")
            )));
        }
        // A JWT is succeeded by another of its name while it lasts.
        let is_taken = |token: &&Token| {
            *token.name == *name && kind == Kind::ApiKey && token.kind == kind && !token.is_over(at.wall)
        };
        if let Some(other) = self.tokens.values().find(is_taken) {
            return Err(ErrorCode::Conflict
                .error(format!("{name:?} is the name of {} already: revoke that one first", other.id)));
        }
        if kind == Kind::ApiKey && authority.is_configured(name) {
            return Err(ErrorCode::Conflict.error(format!("{name:?} is a key of the configuration already")));
        }
        let closes_loopback = !authority.credentials_configured();
        let (changes, token, secret) = self.give(name, kind, scopes, life, authority, at)?;
        Ok((changes, TokenReply::Created { token, secret, closes_loopback }))
    }

    /// Another in the place of one that holds.
    fn rotate(
        &self,
        id: &str,
        overlap: Duration,
        life: Option<Duration>,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, TokenReply), Error> {
        let old = self.living(id, at)?;
        if let Some(other) = self.successor(&old, at.wall) {
            let other = &other.id;
            return Err(ErrorCode::Conflict.error(format!("{id} was rotated already: rotate {other}")));
        }
        if overlap > LIFE_MAX {
            return Err(ErrorCode::InvalidRequest.error("both can hold for 100 years at most"));
        }
        self.succeed(old, overlap, life, authority, at)
    }

    /// One that lets somebody in.
    fn living(&self, id: &str, at: &Moment<'_>) -> Result<Token, Error> {
        let none = || ErrorCode::NotFound.error("no credential has this id");
        let token = self.tokens.get(id).cloned().ok_or_else(none)?;
        if token.is_over(at.wall) {
            return Err(ErrorCode::Conflict.error(format!(
                "{id} is revoked or has expired: give out another with clawmux token create"
            )));
        }
        Ok(token)
    }

    /// Another that goes on from one.
    fn succeed(
        &self,
        mut old: Token,
        overlap: Duration,
        life: Option<Duration>,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, TokenReply), Error> {
        let as_before = || Some(old.expires?.since(old.created).max(Duration::from_secs(1)));
        let life = life.or_else(as_before);
        let (mut changes, mut token, secret) =
            self.give(&old.name, old.kind, old.scopes, life, authority, at)?;
        token.since = old.since;
        let end = at.wall.after(overlap);
        old.expires = Some(old.expires.map_or(end, |expires| expires.min(end)));
        changes.retain(|change| !matches!(change, Change::Put(_)));
        changes.extend([Change::Put(token.clone()), Change::Put(old.clone())]);
        Ok((changes, TokenReply::Rotated { token, secret, old }))
    }

    /// A new one.
    fn give(
        &self,
        name: &str,
        kind: Kind,
        scopes: Scopes,
        life: Option<Duration>,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, Token, Secret), Error> {
        if life.is_some_and(|life| life.is_zero() || life > LIFE_MAX) {
            let why = "it must live at least a second and at most 100 years";
            return Err(ErrorCode::InvalidRequest.error(why));
        }
        let mut changes = Vec::new();
        if self.tokens.len() >= TOKENS_MAX {
            let over = self.tokens.values().filter(|token| token.is_over(at.wall));
            let Some(oldest) = over.min_by_key(|token| token.created) else {
                return Err(ErrorCode::Conflict
                    .error(format!("there are {TOKENS_MAX} credentials already: revoke some first")));
            };
            changes.push(Change::Forget(oldest.id.clone()));
        }
        let life = match (kind, authority.jwt_life_max()) {
            (Kind::Jwt, Some(most)) if life.is_some_and(|life| life > most) => {
                let days = most.as_secs() / 86_400;
                let why = format!("a JWT may live {days} days at most (auth.jwt.max_life_days)");
                return Err(ErrorCode::InvalidRequest.error(why));
            }
            (Kind::Jwt, most) => Some(life.unwrap_or(most.unwrap_or(JWT_LIFE).min(JWT_LIFE))),
            (Kind::ApiKey, _) => life,
        };
        let mut token = Token {
            id: fresh_id(at).into(),
            name: name.into(),
            kind,
            sha256: None,
            scopes,
            created: at.now,
            since: at.now,
            expires: life.map(|life| at.wall.after(life)),
            revoked: None,
            used: None,
            origin: None,
        };
        let secret = match kind {
            Kind::ApiKey => {
                let random = [(at.random)(), (at.random)()].concat();
                let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
                token.sha256 = Some(digest(&key));
                Secret::new(key)
            }
            Kind::Jwt => {
                // It says so in whole seconds, and so does the list.
                token.expires = token.expires.map(|at| Timestamp::from_millis(at.as_millis() / 1000 * 1000));
                let none = || {
                    ErrorCode::Conflict.error(
                        "no JWT is accepted here: set CLAWMUX_JWT_SECRET in the daemon's environment, or \
                         auth.jwt.secret_file in gateway.toml",
                    )
                };
                authority.mint(&token, at.wall).ok_or_else(none)?
            }
        };
        changes.push(Change::Put(token.clone()));
        Ok((changes, token, secret))
    }

    /// Somebody was let in with one: what is worth knowing of it.
    pub fn used(&self, shown: &Shown, origin: IpAddr, now: Timestamp) -> Option<Change> {
        let is_news = |last: Option<Timestamp>, from: Option<IpAddr>| {
            from != Some(origin) || last.is_none_or(|last| now.since(last) >= USED_RESOLUTION)
        };
        match shown {
            Shown::Issued(id) => {
                let token = self.tokens.get(id)?;
                is_news(token.used, token.origin)
                    .then(|| Change::Put(Token { used: Some(now), origin: Some(origin), ..token.clone() }))
            }
            Shown::Configured(name) => {
                let last = self.configured.get(name);
                is_news(last.map(|last| last.at), last.map(|last| last.origin))
                    .then(|| Change::Used(name.clone(), Use { at: now, origin }))
            }
        }
    }

    /// What is to be written down of its last use.
    pub fn last_use(&self, shown: &Shown) -> Option<Change> {
        match shown {
            Shown::Issued(id) => self.tokens.get(id).cloned().map(Change::Put),
            Shown::Configured(name) => {
                self.configured.get(name).map(|last| Change::Used(name.clone(), *last))
            }
        }
    }

    /// What was written down holds from now on.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(token) => drop(self.tokens.insert(token.id.clone(), token.clone())),
                Change::Forget(id) => drop(self.tokens.remove(id)),
                Change::Used(name, last) => drop(self.configured.insert(name.clone(), *last)),
            }
        }
    }
}

/// An id that nobody has; it need not be hard to guess.
fn fresh_id(at: &mut Moment<'_>) -> String {
    const BYTES: usize = 8;
    let digits: String = (at.random)().iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("{ID_PREFIX}{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Credentials;
    use crate::config::{ApiKey, Auth, Jwt, LoopbackPolicy};

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
                TokenReply::Created { token, secret, .. } => Ok((token, secret)),
                other => panic!("{other:?}"),
            }
        }

        fn who(&self, secret: &Secret) -> Result<Principal, Error> {
            self.authority.authenticate(&Credentials::Token(secret.clone()), self.wall)
        }
    }

    fn create(name: &str, kind: Kind, life: Option<Duration>) -> TokenCommand {
        TokenCommand::Create { name: name.into(), kind, scopes: Scopes::USER, life, inherit: false }
    }

    #[test]
    fn a_key_lets_in_until_it_is_revoked_and_its_name_goes_on() {
        let mut world = World::new(false);
        let TokenReply::Created { token, secret, closes_loopback } =
            world.ask(create("bot", Kind::ApiKey, None)).unwrap()
        else {
            panic!()
        };
        assert!(closes_loopback && secret.expose().len() >= 32 + KEY_PREFIX.len());
        assert!(!format!("{token:?}{secret:?}").contains(secret.expose()));
        assert_eq!(world.who(&secret).unwrap().owner, Owner::Credential("bot".into()));
        let taken = world.create("bot", Kind::ApiKey).unwrap_err();
        assert!(taken.code == ErrorCode::Conflict && taken.message.contains(&*token.id), "{taken}");

        let revoke = TokenCommand::Revoke { id: token.id.to_string() };
        let TokenReply::Revoked(revoked) = world.ask(revoke.clone()).unwrap() else { panic!() };
        assert_eq!(revoked.revoked, Some(NOW));
        assert!(world.who(&secret).is_err());
        assert_eq!(world.ask(revoke).unwrap(), TokenReply::Revoked(revoked), "once more is the same");
        let (_, second) = world.create("bot", Kind::ApiKey).unwrap();
        assert_eq!(world.who(&second).unwrap().owner, Owner::Credential("bot".into()));
        assert_ne!(second, secret);
        let TokenReply::List { tokens, .. } = world.ask(TokenCommand::List).unwrap() else { panic!() };
        assert_eq!(tokens.len(), 2);
        let unknown = world.ask(TokenCommand::Revoke { id: "cmx_0".into() }).unwrap_err();
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
        let renew = |id: &str| TokenCommand::Renew { id: id.into() };
        for stranger in [Principal::socket(), Principal::new("jwt:bot", Scopes::USER)] {
            let refused = world.ask_as(&stranger, renew(&old.id)).unwrap_err();
            assert_eq!(refused.code, ErrorCode::Forbidden);
        }
        let mut last = None;
        for _ in 1..RENEWED_MAX {
            let TokenReply::Rotated { token, secret, old: before } =
                world.ask_as(&by, renew(&old.id)).unwrap()
            else {
                panic!()
            };
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
        world.ask(TokenCommand::Revoke { id: token.id.to_string() }).unwrap();
        assert_eq!(world.ask_as(&by, renew(&token.id)).unwrap_err().code, ErrorCode::Conflict);
    }

    #[test]
    fn who_may_and_what_may_be_given_out() {
        let mut world = World::new(true);
        for by in
            [Principal::local(), Principal::new("token", Scopes::ADMIN), Principal::new("x", Scopes::USER)]
        {
            let refused = world.ask_as(&by, create("a", Kind::ApiKey, None)).unwrap_err();
            assert_eq!(refused.code, ErrorCode::Forbidden, "{by:?}");
        }
        assert!(world.ask_as(&Principal::new("x", Scopes::USER), TokenCommand::List).is_err());
        assert!(world.ask_as(&Principal::new("token", Scopes::ADMIN), TokenCommand::List).is_ok());
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
        let TokenReply::List { configured, .. } = world.ask(TokenCommand::List).unwrap() else { panic!() };
        assert_eq!(configured.len(), 1, "the configuration has no other");
        assert_eq!((&*configured[0].name, configured[0].used.unwrap().origin), ("ci", here));
    }

    fn rotate(id: &str, overlap: Duration) -> TokenCommand {
        TokenCommand::Rotate { id: id.into(), overlap: Some(overlap), life: None }
    }

    #[test]
    fn both_hold_while_one_is_rotated_and_then_the_new_one_alone() {
        let day = Duration::from_secs(86_400);
        for kind in Kind::ALL {
            let mut world = World::new(true);
            let (old, secret) = world.create("bot", kind).unwrap();
            world.wall = NOW.after(day);
            let TokenReply::Rotated { token, secret: fresh, old: ending } =
                world.ask(rotate(&old.id, day)).unwrap()
            else {
                panic!()
            };
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
        world.ask(TokenCommand::Revoke { id: old.id.to_string() }).unwrap();
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
                TokenReply::Created { token, .. } => token.id,
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
        world.ask(TokenCommand::Rotate { id: near.to_string(), overlap: None, life }).unwrap();
        assert!(named(&world).is_empty());
        world.wall = NOW.after(Duration::from_secs(2 * 86_400));
        assert_eq!(named(&world), ["far"]);
    }
}
