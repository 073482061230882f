//! Which credentials are configured.

use std::time::Duration;

use crate::access::Secret;
use crate::scope::Scopes;

/// `[auth]`: credentials, already read from their environment variable or file.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// The shared operator token.
    pub token: Option<Secret>,
    /// `[auth.jwt]`; none where no secret is set.
    pub jwt: Option<Jwt>,
    /// Whether connections over loopback need a credential.
    pub loopback: LoopbackPolicy,
    /// `[[auth.api_keys]]`
    pub api_keys: Vec<ApiKey>,
}

/// One configured API key: only its digest is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its name, for logs and as owner.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// How many characters it has, where that is known.
    pub chars: Option<usize>,
    /// What its holder may do.
    pub scopes: Scopes,
}

/// `[auth.jwt]`: which JWTs are let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// What they are signed with: at least 32 bytes.
    pub secret: Secret,
    /// Who must have issued them.
    pub issuer: String,
    /// Whom they must be for.
    pub audience: String,
    /// How long they may live, from `iat` to `exp`; none = as long as they say.
    pub max_life: Option<Duration>,
}

/// Whether a connection over loopback needs a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopbackPolicy {
    /// Only where one is configured.
    Auto,
    /// A credential is always required.
    Required,
    /// exoclaw needs none.
    Skip,
}
