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

mod command;
mod ledger;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::authority::Authority;
use crate::error::{Error, ErrorCode};
use crate::principal::{Grounds, Principal};
use crate::scope::Scopes;
use crate::time::Timestamp;
pub use command::{
    Configured, CreateToken, CreatedToken, ListTokens, RenewToken, RevokeToken, RotateToken, RotatedToken,
    TokenCommand, TokenList, TokenReply,
};
pub use ledger::{Ledger, Moment};

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
/// One that ends within so long is warned of.
pub const EXPIRES_SOON: Duration = Duration::from_secs(7 * 86_400);
/// Names that principals have which show no key of their own.
pub const RESERVED: [&str; 6] = ["local", "token", "socket", "operators", "admins", "bus"];

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

/// When somebody was last let in, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// When; about a minute exact.
    pub at: Timestamp,
    /// From where.
    pub origin: IpAddr,
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
    /// One that was given out was used, by its id. Nothing else of it changes, whatever somebody else decides of it at
    /// the same time.
    Seen(Arc<str>, Use),
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
