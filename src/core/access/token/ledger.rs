//! All credentials that the daemon gave out, and what becomes of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{
    Change, Configured, CreateToken, CreatedToken, EXPIRES_SOON, ID_PREFIX, JWT_LIFE, KEY_PREFIX, Kind,
    LIFE_MAX, ListTokens, NAME_BYTES_MAX, OVERLAP, RENEWED_OVERLAP, RESERVED, RenewToken, RevokeToken,
    RotateToken, RotatedToken, Shown, TOKENS_MAX, Token, TokenCommand, TokenList, TokenReply, Use, is_name,
    subject_name,
};
use crate::access::Secret;
use crate::access::authority::{Authority, digest};
use crate::error::{Error, ErrorCode};
use crate::hex::hex;
use crate::ids::Owner;
use crate::principal::{Grounds, Principal};
use crate::scope::{Scope, Scopes};
use crate::time::Timestamp;

/// How exactly it is kept when one was last used.
const USED_RESOLUTION: Duration = Duration::from_secs(60);

/// How many hold at once that come of one by renewal.
pub(super) const RENEWED_MAX: usize = 8;

/// All that were given out, and when those of the configuration were used.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(super) tokens: BTreeMap<Arc<str>, Token>,
    configured: BTreeMap<Arc<str>, Use>,
}

/// What time it is, and randomness.
pub struct Moment<'a> {
    /// What time it is, as other things are dated.
    pub now: Timestamp,
    /// And by the wall clock.
    pub wall: Timestamp,
    /// A source of fresh random bytes.
    pub random: &'a mut dyn FnMut() -> [u8; 16],
}

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
            TokenCommand::Renew(RenewToken { id }) => match &by.grounds {
                Grounds::Minted(own, _) if **own == *id => self.renew(&id, authority, at),
                _ => Err(ErrorCode::Forbidden.error("only who was let in with a JWT can have it renewed")),
            },
            _ if !is_operator => {
                Err(ErrorCode::Forbidden.error("credentials are for operators of the daemon"))
            }
            TokenCommand::List(ListTokens) => {
                let configured = authority.configured().into_iter().map(|(name, scopes)| Configured {
                    used: self.configured.get(&name).copied(),
                    name,
                    scopes,
                });
                let configured = configured.collect();
                let loopback_open = !authority.credentials_required(true, false);
                let (tokens, locked_out) = (self.list(), authority.is_locked_out(at.wall));
                let list = TokenList { tokens, configured, loopback_open, locked_out };
                Ok((Vec::new(), TokenReply::List(list)))
            }
            TokenCommand::Create(new) => {
                over_socket(by, "create")?;
                self.create(&new, authority, at)
            }
            TokenCommand::Rotate(RotateToken { id, overlap, life }) => {
                over_socket(by, "rotate")?;
                self.rotate(&id, overlap.unwrap_or(OVERLAP), life, authority, at)
            }
            TokenCommand::Revoke(RevokeToken { id }) => {
                let mut token = self.known(&id)?;
                let changes = match token.revoked {
                    Some(_) => Vec::new(),
                    None => {
                        token.revoked = Some(at.now);
                        vec![Change::Put(token.clone())]
                    }
                };
                Ok((changes, TokenReply::Revoked(Box::new(token))))
            }
        }
    }

    /// Whom all belongs to that would come with what the command gives out, though nobody said so; none
    /// where nothing would: somebody is let in by that name already, or it lets in an operator.
    pub fn heir(&self, command: &TokenCommand, wall: Timestamp) -> Option<Owner> {
        let TokenCommand::Create(CreateToken { name, kind, scopes, inherit: false, .. }) = command else {
            return None;
        };
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
        new: &CreateToken,
        authority: &Authority,
        at: &mut Moment<'_>,
    ) -> Result<(Vec<Change>, TokenReply), Error> {
        let CreateToken { ref name, kind, scopes, life, inherit: _ } = *new;
        let name = name.as_str();
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
        let created = CreatedToken { token, secret, closes_loopback };
        Ok((changes, TokenReply::Created(Box::new(created))))
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

    /// One that was given out.
    fn known(&self, id: &str) -> Result<Token, Error> {
        let none = || ErrorCode::NotFound.error("no credential has this id");
        self.tokens.get(id).cloned().ok_or_else(none)
    }

    /// One that lets somebody in.
    fn living(&self, id: &str, at: &Moment<'_>) -> Result<Token, Error> {
        let token = self.known(id)?;
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
        Ok((changes, TokenReply::Rotated(Box::new(RotatedToken { token, secret, old }))))
    }

    /// Issues a token.
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
                is_news(token.used, token.origin).then(|| Change::Seen(id.clone(), Use { at: now, origin }))
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
            Shown::Issued(id) => {
                let Token { used, origin, .. } = self.tokens.get(id)?;
                Some(Change::Seen(id.clone(), Use { at: (*used)?, origin: (*origin)? }))
            }
            Shown::Configured(name) => {
                self.configured.get(name).map(|last| Change::Used(name.clone(), *last))
            }
        }
    }

    /// What is written down was changed by somebody else; what is known here of uses may be later.
    pub fn replace(&mut self, kept: Self) {
        let before = std::mem::replace(self, kept);
        for (id, token) in &mut self.tokens {
            if let Some(known) = before.tokens.get(id).filter(|known| known.used > token.used) {
                (token.used, token.origin) = (known.used, known.origin);
            }
        }
        for (name, known) in before.configured {
            let last = self.configured.entry(name).or_insert(known);
            if known.at > last.at {
                *last = known;
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
                Change::Seen(id, last) => {
                    if let Some(token) = self.tokens.get_mut(id) {
                        (token.used, token.origin) = (Some(last.at), Some(last.origin));
                    }
                }
            }
        }
    }
}

/// Refuses whom no socket of the home stands for.
fn over_socket(by: &Principal, verb: &str) -> Result<(), Error> {
    if by.grounds == Grounds::Socket {
        return Ok(());
    }
    let why = format!("credentials are given out over the Unix socket alone: clawmux token {verb}");
    Err(ErrorCode::Forbidden.error(why))
}

/// An id that nobody has; it need not be hard to guess.
fn fresh_id(at: &mut Moment<'_>) -> String {
    const BYTES: usize = 8;
    format!("{ID_PREFIX}{}", hex(&(at.random)()[..BYTES]))
}
