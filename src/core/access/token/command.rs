//! What operators, and clients with a JWT, ask about credentials, and what they are answered.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::{JWT_LIFE, OVERLAP, RENEWED_OVERLAP};
use super::{Kind, Token, Use};
use crate::access::Secret;
use crate::area::area;
use crate::scope::Scopes;

area! {
    /// What can be asked about credentials of the store.
    Token(TokenCommand => TokenReply) {
        /// Which there are.
        List(ListTokens) => List(TokenList),
        /// Give one out.
        Create(CreateToken) => Created(Box<CreatedToken>),
        /// Let nobody in with it any more.
        Revoke(RevokeToken) => Revoked(Box<Token>),
        /// Give out another in its place.
        Rotate(RotateToken) => Rotated(Box<RotatedToken>),
        /// Give out a JWT in the place of the one that the caller was let in with.
        Renew(RenewToken) => Rotated(Box<RotatedToken>),
    }
}

/// Which credentials there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListTokens;

/// Give out a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateToken {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// What it allows.
    pub scopes: Scopes,
    /// How long it lives; none = as long as such do: a JWT [`JWT_LIFE`], an API key for ever.
    pub life: Option<Duration>,
    /// Whether it takes over what belongs to its name.
    pub inherit: bool,
}

/// Let nobody in with a credential any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeToken {
    /// Its id.
    pub id: String,
}

/// Give out another credential in the place of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotateToken {
    /// The id of the old one.
    pub id: String,
    /// For how long both hold; none = for [`OVERLAP`].
    pub overlap: Option<Duration>,
    /// How long the new one lives; none = as long as the old one was to live.
    pub life: Option<Duration>,
}

/// Give out a JWT in the place of one, which then holds for [`RENEWED_OVERLAP`] more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewToken {
    /// The id of the old one.
    pub id: String,
}

impl TokenCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::List(_) => 16,
            Self::Create(_) | Self::Revoke(_) | Self::Rotate(_) | Self::Renew(_) => 1,
        }
    }
}

/// A credential of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Its name; the shared token's is `token`.
    pub name: Arc<str>,
    /// What its holder may do.
    pub scopes: Scopes,
    /// When it was last used.
    pub used: Option<Use>,
}

/// The answer to a [`TokenCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenReply {
    /// To `List`.
    List(TokenList),
    /// To `Create`.
    Created(Box<CreatedToken>),
    /// To `Revoke`.
    Revoked(Box<Token>),
    /// To `Rotate` and `Renew`.
    Rotated(Box<RotatedToken>),
}

/// The credentials of the store and of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenList {
    /// Those that were given out, the latest first.
    pub tokens: Vec<Token>,
    /// Those of the configuration.
    pub configured: Vec<Configured>,
    /// Whether nobody has to show one over loopback, until the first is given out.
    pub loopback_open: bool,
    /// Whether clients need one, and none is valid any more.
    pub locked_out: bool,
}

/// A credential was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedToken {
    /// The credential.
    pub token: Token,
    /// What is shown to be let in; told this once.
    pub secret: Secret,
    /// Whether loopback was open until now, and is not any more.
    pub closes_loopback: bool,
}

/// A credential was given out in the place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotatedToken {
    /// The new one.
    pub token: Token,
    /// What is shown to be let in with it; told this once.
    pub secret: Secret,
    /// The old one, which now has an end.
    pub old: Token,
}
