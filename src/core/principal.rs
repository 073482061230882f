//! Somebody who was let in, and why.

use std::sync::Arc;

use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, SessionKey};
use crate::scope::{Scope, Scopes};
use crate::time::Timestamp;

/// Why somebody is let in, and so what ends that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grounds {
    /// A credential of the configuration, by a number that no other of this process has; until a
    /// configuration is applied that has it no more.
    Configured(u32),
    /// The configuration lets loopback in without a credential, as long as it says so.
    Skipped,
    /// No credential is configured, for as long as that is so.
    Open,
    /// An API key of the store, by its id; until it is revoked.
    Issued(Arc<str>),
    /// A JWT of the store, by its id, and the number of what it is signed with; until the one is revoked
    /// or the other is another.
    Minted(Arc<str>, u32),
    /// The operating system says that it is the operator, at the other end of the Unix socket.
    Socket,
}

impl Default for Grounds {
    fn default() -> Self {
        Self::Configured(0)
    }
}

impl Grounds {
    /// The credential of the store that it is.
    pub fn token(&self) -> Option<&Arc<str>> {
        match self {
            Self::Issued(id) | Self::Minted(id, _) => Some(id),
            Self::Configured(_) | Self::Skipped | Self::Open | Self::Socket => None,
        }
    }
}

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// A name for logs and for rates: `local`, `token`, `socket`, that of an API key, or `jwt:` and
    /// the subject of a JWT. No two credentials that are not of one owner have the same.
    pub name: Arc<str>,
    /// What it may do on this connection.
    pub scopes: Scopes,
    /// Whom what it makes belongs to.
    pub owner: Owner,
    /// Whether it stands outside the rate limits (`local` and peers on the Unix socket).
    pub unlimited: bool,
    /// Why it was let in.
    pub grounds: Grounds,
    /// When what it showed holds no longer, by the wall clock.
    pub expires: Option<Timestamp>,
}

impl Principal {
    /// Who shows a credential of the configuration with this name. All with the admin scope are one
    /// owner.
    pub fn new(name: impl Into<Arc<str>>, scopes: Scopes) -> Self {
        let name = name.into();
        let owner = match scopes.allows(Scope::Admin) {
            true => Owner::Admins,
            false => Owner::Credential(name.clone()),
        };
        Self { name, scopes, owner, unlimited: false, grounds: Grounds::default(), expires: None }
    }

    /// Whoever comes over loopback while no credential is configured.
    pub fn local() -> Self {
        Self { unlimited: true, grounds: Grounds::Open, ..Self::new("local", Scopes::ADMIN) }
    }

    /// Whoever comes over the operator's Unix socket.
    pub fn socket() -> Self {
        Self { unlimited: true, grounds: Grounds::Socket, ..Self::new("socket", Scopes::ADMIN) }
    }

    /// Whether what it showed has expired at `now`, a time of the wall clock.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// It, with the credential of `shown` from now on: as long as that one lasts, and with no more
    /// scopes than it has already.
    ///
    /// # Errors
    /// `Forbidden` where that is somebody else.
    pub fn renewed(&self, shown: &Self) -> Result<Self, Error> {
        if (&self.name, &self.owner) != (&shown.name, &shown.owner) {
            let why = "the credential is somebody else's: connect anew with it";
            return Err(ErrorCode::Forbidden.error(why));
        }
        Ok(Self { scopes: self.scopes.and(shown.scopes), ..shown.clone() })
    }

    /// With no more scopes than were asked for.
    #[must_use]
    pub fn narrowed(self, asked: Option<Scopes>) -> Self {
        let scopes = asked.map_or(self.scopes, |asked| self.scopes.and(asked));
        Self { scopes, ..self }
    }

    /// The session that it means by a key: in its own space, unless it may name others' and does.
    ///
    /// # Errors
    /// `NotFound`, as of one that is not there, where it names another's and may not.
    pub fn session(&self, said: &SessionKey) -> Result<SessionKey, Error> {
        if said.is_of(&Owner::Admins) {
            return Ok(said.in_space(&self.owner));
        }
        if said.is_of(&self.owner) || self.is_operator() {
            return Ok(said.clone());
        }
        Err(ErrorCode::NotFound.error(format!("no such session: {said}")))
    }

    /// Whether it may know and name what belongs to others.
    pub fn is_operator(&self) -> bool {
        self.owner == Owner::Admins && self.scopes.allows(Scope::Admin)
    }

    /// Whether it may see what belongs to `owner`.
    pub fn sees(&self, owner: &Owner) -> bool {
        self.scopes.allows(Scope::Admin) || self.owner == *owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_principal_is_the_same_and_never_wider() {
        let (write, read) = (Scopes::of(&[Scope::Write]), Scopes::of(&[Scope::Read, Scope::Teams]));
        let expires = Some(Timestamp::from_millis(5));
        let old = Principal { expires: Some(Timestamp::from_millis(1)), ..Principal::new("jwt:a", write) };
        let new = Principal { expires, ..Principal::new("jwt:a", read) };
        let renewed = old.renewed(&new).unwrap();
        assert_eq!((renewed.scopes, renewed.expires), (Scopes::READONLY, expires));
        for other in [Principal::new("jwt:b", read), Principal::new("jwt:a", Scopes::ADMIN)] {
            assert_eq!(old.renewed(&other).unwrap_err().code, ErrorCode::Forbidden);
        }
    }

    #[test]
    fn a_key_is_one_of_ones_own_space_and_operators_name_others() {
        let key = |text: &str| SessionKey::parse(text).unwrap();
        let (ada, eve) = (Principal::new("ada", Scopes::USER), Principal::new("eve", Scopes::USER));
        let (operator, reader) = (Principal::local(), Principal::local().narrowed(Some(Scopes::READONLY)));
        let said = key("main:openclaw:main:main");
        assert_eq!(ada.session(&said).unwrap(), key("ada/main:openclaw:main:main"));
        for operator in [&operator, &reader] {
            assert_eq!(operator.session(&said).unwrap(), said);
        }
        let hers = key("ada/main:openclaw:main:main");
        for who in [&ada, &operator] {
            assert_eq!(who.session(&hers).unwrap(), hers);
        }
        for who in [&eve, &reader] {
            let error = who.session(&hers).unwrap_err();
            assert_eq!(error.message, "no such session: ada/main:openclaw:main:main");
        }
    }
}
