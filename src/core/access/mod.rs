//! Who is let in, and with which scopes.
//!
//! Granted = requested AND allowed, never what a client claims of itself. Secrets are compared in
//! constant time and can't be printed.

pub mod strangers;

pub mod auth;
pub mod authority;
pub mod device;
pub mod gate;
pub mod guesses;
pub mod jwt;
pub mod pairing;
pub mod token;

use std::fmt;
use std::sync::Arc;

use crate::principal::Principal;
use crate::scope::Role;
use crate::scope::Scopes;
use crate::time::Timestamp;

/// Text that must not be shown: neither `Debug` nor `Display` prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be shown.
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
    /// The credentials shown.
    pub credentials: Credentials,
    /// The scopes it asks for; none = all that what it shows allows.
    pub scopes: Option<Scopes>,
    /// The role in which the client connects.
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

/// A device whose signature was found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClaim {
    /// Its id: the SHA-256 of its public key, in hexadecimal digits.
    pub id: Arc<str>,
    /// The device's Ed25519 public key.
    pub public_key: [u8; 32],
    /// A device token shown besides the [`Credentials`].
    pub token: Option<Secret>,
}

/// What a client says of itself; shown to operators and believed by nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The client's program, by its id.
    pub client_id: String,
    /// The program's version.
    pub version: String,
    /// In which way it runs, in its own words.
    pub mode: String,
    /// The operating system, as the client calls it.
    pub platform: String,
    /// What kind of device that is.
    pub device_family: Option<String>,
    /// The model of the machine.
    pub model_identifier: Option<String>,
    /// The device's name for people.
    pub display_name: Option<String>,
    /// Distinguishes several instances of one program.
    pub instance_id: Option<String>,
    /// What a node can do, in its own words.
    pub caps: Vec<String>,
    /// The commands a node takes.
    pub commands: Vec<String>,
    /// What its user allows it, by name.
    pub permissions: Vec<(String, bool)>,
}

/// A client that was let in.
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
    /// The secret itself.
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
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Credentials::Token(Secret::new("abc"))), "Token([secret])");
    }
}
