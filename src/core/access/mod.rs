//! Who is let in, and with which scopes.
//!
//! Granted = requested AND allowed, never what a client claims of itself. Secrets are compared in
//! constant time and can't be printed.

pub mod strangers;

pub mod authority;
pub mod device;
pub mod gate;
pub mod guesses;
pub mod jwt;
pub mod pairing;
pub mod token;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorCode};
use crate::ids::SessionKey;
use crate::time::Timestamp;

/// What a caller may do. Each protocol has its own names for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Look at what one owns.
    Read,
    /// Prompt, abort, clear.
    Write,
    /// Form teams and spawn agents.
    Teams,
    /// Decide tool calls of others.
    Approve,
    /// Pair devices and nodes.
    Pair,
    /// Everything, and everybody's.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Teams, Self::Approve, Self::Pair, Self::Admin];

    /// The scope's neutral name, as logs use it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Teams => "teams",
            Self::Approve => "approve",
            Self::Pair => "pair",
            Self::Admin => "admin",
        }
    }

    /// The scopes by the names the configuration knows them under, which are those that clients
    /// know from their protocols.
    pub const BY_NAME: [(&str, Self); 10] = [
        ("daemon.read", Self::Read),
        ("daemon.write", Self::Write),
        ("daemon.teams", Self::Teams),
        ("daemon.approve", Self::Approve),
        ("daemon.admin", Self::Admin),
        ("operator.read", Self::Read),
        ("operator.write", Self::Write),
        ("operator.approvals", Self::Approve),
        ("operator.pairing", Self::Pair),
        ("operator.admin", Self::Admin),
    ];

    /// The scope of this name, of those in [`BY_NAME`](Self::BY_NAME).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::BY_NAME.iter().find(|(known, _)| *known == name).map(|(_, scope)| *scope)
    }
}

/// A set of scopes. `Admin` holds every other one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Scopes(u8);

impl Scopes {
    /// No scope at all.
    pub const NONE: Self = Self(0);

    /// What role `admin` allows.
    pub const ADMIN: Self = Self(0b11_1111);

    /// What role `user` allows.
    pub const USER: Self = Self(0b111);

    /// What role `readonly` allows.
    pub const READONLY: Self = Self(0b1);

    /// The set of these. Who may write may read.
    pub fn of(scopes: &[Scope]) -> Self {
        scopes.iter().fold(Self::NONE, |set, scope| match scope {
            Scope::Admin => Self::ADMIN,
            Scope::Write => Self(set.0 | bit(Scope::Write) | bit(Scope::Read)),
            scope => Self(set.0 | bit(*scope)),
        })
    }

    /// The fewest names that stand for it, of those in [`Scope::BY_NAME`].
    pub fn names(self) -> Vec<&'static str> {
        let all = if self.allows(Scope::Admin) { &[Scope::Admin][..] } else { &Scope::ALL[..] };
        let held = all.iter().filter(|scope| self.allows(**scope));
        held.filter_map(|scope| Scope::BY_NAME.iter().find(|(_, known)| known == scope))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Whether `scope` is in it.
    pub fn allows(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// Whether all of `other` is in it.
    pub fn holds(self, other: Self) -> bool {
        self.and(other) == other
    }

    /// What is in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Scope::ALL.into_iter().filter(|s| self.allows(*s)).map(Scope::name)).finish()
    }
}

fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

/// Whom a session, a key or a file belongs to. All admins are one owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The operators.
    Admins,
    /// The credential with this name.
    Credential(Arc<str>),
}

impl Owner {
    /// How the log names it: empty for the admins.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Admins => "",
            Self::Credential(name) => name,
        }
    }

    /// The owner the log names so.
    pub fn from_name(name: &str) -> Self {
        if name.is_empty() { Self::Admins } else { Self::Credential(name.into()) }
    }
}

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

/// Text that must not be shown: neither `Debug` nor `Display` prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the one place that needs it: a request header or a comparison.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// What a connection asks to be let in as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// What it shows.
    pub credentials: Credentials,
    /// The scopes it asks for; none = all that what it shows allows.
    pub scopes: Option<Scopes>,
    /// As what it comes.
    pub role: Role,
    /// The device it comes from, which has proven that it holds its key.
    pub device: Option<DeviceClaim>,
    /// What it says of itself.
    pub about: About,
}

impl From<Credentials> for Claim {
    fn from(credentials: Credentials) -> Self {
        Self { credentials, ..Self::default() }
    }
}

/// As what somebody connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// To use agents, or to run the daemon.
    #[default]
    Operator,
    /// To be used by agents: it offers commands.
    Node,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 2] = [Self::Operator, Self::Node];

    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Node => "node",
        }
    }

    /// The role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A device whose signature was found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClaim {
    /// Its id: the SHA-256 of its public key, in hexadecimal digits.
    pub id: Arc<str>,
    /// Its Ed25519 public key.
    pub public_key: [u8; 32],
    /// A device token shown besides the [`Credentials`].
    pub token: Option<Secret>,
}

/// What a client says of itself; shown to operators and believed by nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Which program it is.
    pub client_id: String,
    /// Its version.
    pub version: String,
    /// In which way it runs, in its own words.
    pub mode: String,
    /// What it runs on.
    pub platform: String,
    /// What kind of device that is.
    pub device_family: Option<String>,
    /// Which model of it.
    pub model_identifier: Option<String>,
    /// Its name for people.
    pub display_name: Option<String>,
    /// Tells its instances apart.
    pub instance_id: Option<String>,
    /// What a node can do, in its own words.
    pub caps: Vec<String>,
    /// The commands a node takes.
    pub commands: Vec<String>,
    /// What its user allows it, by name.
    pub permissions: Vec<(String, bool)>,
}

/// Somebody was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is, with the scopes that were asked for and are allowed.
    pub principal: Principal,
    /// What its device may show from now on instead of a credential.
    pub device_token: Option<DeviceToken>,
}

impl From<Principal> for Admitted {
    fn from(principal: Principal) -> Self {
        Self { principal, device_token: None }
    }
}

/// A token for one device in one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceToken {
    /// The token.
    pub token: Secret,
    /// When it was first given out.
    pub issued: Timestamp,
}

/// What a client shows to be let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing: it hopes to be `local`.
    #[default]
    None,
    /// The shared token, an API key or a JWT: its protocol has one place for all of them.
    Token(Secret),
    /// The shared token or an API key, and nothing else.
    ApiKey(Secret),
    /// A JWT, and nothing else.
    Jwt(Secret),
}

impl Credentials {
    /// The token that is shown.
    pub fn token(&self) -> Option<&Secret> {
        match self {
            Self::None => None,
            Self::Token(token) | Self::ApiKey(token) | Self::Jwt(token) => Some(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_the_scopes_they_stand_for() {
        assert_eq!(Scopes::READONLY, Scopes::of(&[Scope::Read]));
        assert_eq!(Scopes::USER, Scopes::of(&[Scope::Read, Scope::Write, Scope::Teams]));
        assert_eq!(Scopes::ADMIN, Scopes::of(&Scope::ALL));
        assert_eq!(Scopes::of(&[Scope::Admin]), Scopes::ADMIN);
    }

    #[test]
    fn every_set_of_scopes_reads_back_by_its_names() {
        for bits in 0..=Scopes::ADMIN.0 {
            let some: Vec<_> = Scope::ALL.into_iter().filter(|scope| Scopes(bits).allows(*scope)).collect();
            let set = Scopes::of(&some);
            let named: Vec<_> = set.names().into_iter().filter_map(Scope::from_name).collect();
            assert_eq!(Scopes::of(&named), set, "{:?}", set.names());
        }
        assert_eq!(Scopes::ADMIN.names(), ["daemon.admin"]);
    }

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

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Credentials::Token(Secret::new("abc"))), "Token([secret])");
    }
}
