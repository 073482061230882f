//! What is wrong with what was shown to be let in.

use std::sync::Arc;

use crate::error::{Detail, Error, ErrorCode};
use crate::scope::{Role, Scopes};
use crate::time::Timestamp;

/// Why a credential does not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialFault {
    /// No credential was shown.
    Missing,
    /// It is none that holds. The device may have a token to try instead.
    Mismatch {
        /// Whether the device has a token.
        has_device_token: bool,
    },
    /// The device token holds no longer, or is another device's or role's.
    DeviceToken,
    /// The device token does not go so far.
    DeviceScopes,
    /// It is no API key that is known.
    ApiKey,
    /// It is an API key that has expired.
    ApiKeyExpired {
        /// When it ended.
        at: Timestamp,
    },
    /// It is a JWT that does not hold.
    Jwt(Refusal),
}

impl CredentialFault {
    /// The fault as an error for the client.
    pub fn error(self) -> Error {
        let message = match self {
            Self::Missing => "a token or an API key is required",
            Self::Mismatch { .. } => "the token is not valid",
            Self::DeviceToken => "the device token is not valid: it was revoked or exchanged",
            Self::DeviceScopes => "the device token does not go so far: connect with a credential",
            Self::ApiKey => "the API key is not valid",
            Self::ApiKeyExpired { .. } => "API key expired",
            Self::Jwt(refusal) => refusal.message(),
        };
        ErrorCode::Unauthenticated.error(message).with(Detail::Credential(self))
    }

    /// Whether whoever showed it may be guessing.
    pub const fn is_guess(self) -> bool {
        match self {
            Self::Mismatch { .. } | Self::DeviceToken | Self::ApiKey => true,
            Self::Jwt(refusal) => refusal.is_guess(),
            Self::Missing | Self::DeviceScopes | Self::ApiKeyExpired { .. } => false,
        }
    }

    /// When it expired, if that is what is wrong.
    pub fn expired_at(self) -> Option<Timestamp> {
        match self {
            Self::ApiKeyExpired { at } | Self::Jwt(Refusal::Expired { at }) => Some(at),
            _ => None,
        }
    }

    /// What is wrong, by the name that clients of protocols with such names know.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "credential_missing",
            Self::Mismatch { .. } => "credential_mismatch",
            Self::DeviceToken => "device_token_invalid",
            Self::DeviceScopes => "device_token_scopes",
            Self::ApiKey => "api_key_invalid",
            Self::ApiKeyExpired { .. } => "api_key_expired",
            Self::Jwt(refusal) => refusal.reason(),
        }
    }
}

/// Why a device has to be approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PairingReason {
    /// The device is not paired.
    NotPaired,
    /// It wants to come as something else.
    Role,
    /// The device asks for scopes beyond those it was granted.
    Scopes,
}

/// That a device has to be approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairingRequired {
    /// The id of the request that waits for approval.
    pub request: String,
    /// Why approval is needed.
    pub reason: PairingReason,
    /// The device's id.
    pub device: Arc<str>,
    /// As what it wants to come.
    pub role: Role,
    /// The scopes it wants.
    pub scopes: Scopes,
    /// As what it may come already.
    pub approved_roles: Vec<Role>,
    /// The scopes it has already, in the role it asks for.
    pub approved_scopes: Scopes,
}

/// Why a token does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It has not three parts, or is longer than [`BYTES_MAX`](crate::access::jwt::BYTES_MAX).
    Malformed,
    /// Its header can't be read.
    HeaderInvalid,
    /// It is signed in another way.
    AlgorithmUnsupported,
    /// It is signed with another secret, or was changed.
    SignatureInvalid,
    /// Its payload is not JSON.
    PayloadInvalid,
    /// A claim is missing or of another type.
    PayloadSchemaInvalid,
    /// `exp` has passed.
    Expired {
        /// When it expired.
        at: Timestamp,
    },
    /// It holds later, or was issued later than now.
    NotYetValid,
    /// It lives longer than is configured.
    LifeTooLong,
    /// Somebody else issued it.
    IssuerMismatch,
    /// It is for somebody else.
    AudienceMismatch,
    /// It is one of this daemon's and was revoked.
    Revoked,
    /// No secret is configured.
    NotConfigured,
}

impl Refusal {
    /// The reason's name, as clients know it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "jwt_malformed",
            Self::HeaderInvalid => "jwt_header_invalid",
            Self::AlgorithmUnsupported => "jwt_algorithm_unsupported",
            Self::SignatureInvalid => "jwt_signature_invalid",
            Self::PayloadInvalid => "jwt_payload_invalid",
            Self::PayloadSchemaInvalid => "jwt_payload_schema_invalid",
            Self::Expired { .. } => "jwt_expired",
            Self::NotYetValid => "jwt_not_yet_valid",
            Self::LifeTooLong => "jwt_life_too_long",
            Self::IssuerMismatch => "jwt_issuer_mismatch",
            Self::AudienceMismatch => "jwt_audience_mismatch",
            Self::Revoked => "jwt_revoked",
            Self::NotConfigured => "jwt_not_configured",
        }
    }

    /// The message for people.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Malformed => "JWT malformed",
            Self::HeaderInvalid => "JWT header invalid",
            Self::AlgorithmUnsupported => "JWT algorithm unsupported: it must be HS256",
            Self::SignatureInvalid => "JWT signature invalid",
            Self::PayloadInvalid => "JWT payload invalid",
            Self::PayloadSchemaInvalid => "JWT claims invalid",
            Self::Expired { .. } => "JWT expired",
            Self::NotYetValid => "JWT not valid yet: its nbf or iat is in the future",
            Self::LifeTooLong => "JWT lives too long: from iat to exp is more than auth.jwt.max_life_days",
            Self::IssuerMismatch => "JWT issuer mismatch",
            Self::AudienceMismatch => "JWT audience mismatch",
            Self::Revoked => "JWT revoked",
            Self::NotConfigured => "no JWT is accepted here: no secret is configured ([auth.jwt])",
        }
    }

    /// Whether whoever showed it does not know the secret that it should be signed with.
    pub const fn is_guess(self) -> bool {
        matches!(
            self,
            Self::Malformed | Self::HeaderInvalid | Self::AlgorithmUnsupported | Self::SignatureInvalid
        )
    }
}
