//! What operators, and clients with a JWT, ask about credentials, and what they are answered.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::{JWT_LIFE, OVERLAP, RENEWED_OVERLAP};
use super::{Kind, Token, Use};
use crate::access::Secret;
use crate::scope::Scopes;

/// What can be asked about credentials of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenCommand {
    /// List all tokens.
    List,
    /// Issue a token.
    Create {
        /// The token's name, for people.
        name: String,
        /// The kind of token.
        kind: Kind,
        /// What its holder may do.
        scopes: Scopes,
        /// How long it lives; none = as long as such do: a JWT [`JWT_LIFE`], an API key for ever.
        life: Option<Duration>,
        /// Whether it takes over what belongs to its name.
        inherit: bool,
    },
    /// Let nobody in with it any more.
    Revoke {
        /// The token's id.
        id: String,
    },
    /// Give out another in its place.
    Rotate {
        /// The token's id.
        id: String,
        /// For how long both hold; none = for [`OVERLAP`].
        overlap: Option<Duration>,
        /// How long the new one lives; none = as long as the old one was to live.
        life: Option<Duration>,
    },
    /// Give out a JWT in the place of the one that the caller was let in with, which then holds for
    /// [`RENEWED_OVERLAP`] more. Answered as `Rotate`.
    Renew {
        /// The token's id.
        id: String,
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
    List {
        /// Those that were given out, the latest first.
        tokens: Vec<Token>,
        /// The credentials from the configuration.
        configured: Vec<Configured>,
        /// Whether nobody has to show one over loopback, until the first is given out.
        loopback_open: bool,
        /// Whether clients need one, and none is valid any more.
        locked_out: bool,
    },
    /// To `Create`.
    Created {
        /// The token issued.
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
        /// The token that replaces it.
        token: Token,
        /// What is shown to be let in with it; told this once.
        secret: Secret,
        /// The old one, which now has an end.
        old: Token,
    },
}
