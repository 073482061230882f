//! One error type with a small, neutral set of codes. Each dialect maps the codes to its own
//! words in one `match`; messages are lowercase and say what failed and what to do.

pub mod credential;
pub mod limit;

use std::fmt;
use std::time::Duration;

use crate::error::credential::{CredentialFault, PairingRequired};
use crate::error::limit::Limit;
use crate::scope::Scope;
use crate::time::Timestamp;

/// What kind of failure it is. Closed: a dialect's `match` over it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The frame or its parameters could not be understood.
    InvalidRequest,
    /// The method does not exist.
    UnknownMethod,
    /// No credential, or one that does not hold.
    Unauthenticated,
    /// The caller is known but may not do this.
    Forbidden,
    /// What was named does not exist (or is not the caller's to see).
    NotFound,
    /// The request contradicts the present state.
    Conflict,
    /// A frame or a value is larger than the limit.
    TooLarge,
    /// Too many requests for now.
    RateLimited,
    /// A token budget does not leave room for the call.
    BudgetExceeded,
    /// Cannot be done at the moment: full, draining or out of order.
    Unavailable,
    /// The model provider failed.
    Provider,
    /// A deadline passed.
    Timeout,
    /// Somebody aborted it.
    Aborted,
    /// The daemon stopped while it was under way.
    Interrupted,
    /// A fault of clawmux itself.
    Internal,
}

impl ErrorCode {
    /// An error of this kind.
    pub fn error(self, message: impl Into<String>) -> Error {
        Error { code: self, message: message.into(), detail: None }
    }

    /// The code's name in the lines of the log and in event logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnknownMethod => "unknown_method",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::TooLarge => "too_large",
            Self::RateLimited => "rate_limited",
            Self::BudgetExceeded => "budget_exceeded",
            Self::Unavailable => "unavailable",
            Self::Provider => "provider",
            Self::Timeout => "timeout",
            Self::Aborted => "aborted",
            Self::Interrupted => "interrupted",
            Self::Internal => "internal",
        }
    }

    /// The code with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// All codes.
    pub const ALL: [Self; 15] = [
        Self::InvalidRequest,
        Self::UnknownMethod,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::Conflict,
        Self::TooLarge,
        Self::RateLimited,
        Self::BudgetExceeded,
        Self::Unavailable,
        Self::Provider,
        Self::Timeout,
        Self::Aborted,
        Self::Interrupted,
        Self::Internal,
    ];
}

/// What some failures say besides their message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The scope the caller lacks.
    MissingScope(Scope),
    /// When trying again makes sense.
    RetryAfter(Duration),
    /// A bound was exceeded.
    Limit {
        /// The name of the bound.
        name: Limit,
        /// The bound itself, in its own unit.
        limit: u64,
    },
    /// A budget does not hold what was asked for.
    Budget(Box<BudgetMet>),
    /// How many bytes of an upload have come: where it goes on.
    Received(u64),
    /// A model provider let us in no longer: its key is missing, wrong or not enough.
    KeyRefused,
    /// What is wrong with what was shown to be let in.
    Credential(CredentialFault),
    /// There is none of the caller's own, but there are others of the same name; the message lists them.
    Namesakes,
    /// The device has to be approved first.
    Pairing(Box<PairingRequired>),
    /// This daemon of a cluster does not own the session: who does, or will, goes on from what the log has, and what
    /// was to be written here never comes into it.
    NotOwner,
}

/// How a budget stood that was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetMet {
    /// The name of the bound, which says what it counts.
    pub name: Limit,
    /// What was used and reserved.
    pub used: u64,
    /// The bound itself.
    pub limit: u64,
    /// When it starts at zero again; none where it never does.
    pub resets: Option<Timestamp>,
}

/// A failure, as clients, event logs and operators are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind of failure.
    pub code: ErrorCode,
    /// What failed and what to do, for people. Never holds a secret.
    pub message: String,
    /// Typed detail, where there is some.
    pub detail: Option<Detail>,
}

impl Error {
    /// Adds a detail to the error.
    #[must_use]
    pub fn with(mut self, detail: Detail) -> Self {
        self.detail = Some(detail);
        self
    }

    /// Whether the same request may succeed later without anyone changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self.code, ErrorCode::RateLimited | ErrorCode::Unavailable | ErrorCode::Timeout)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.name()), Some(code));
        }
    }
}
