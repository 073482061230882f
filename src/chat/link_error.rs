//! Why a connection to a daemon failed.

use clawmux_core::dialect::exoclaw::client as exoclaw;

use crate::exit::{FAILED, Failure, UNREACHABLE};
use crate::terminal::one_line;

/// The largest message taken from a daemon, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum LinkError {
    /// Trying again may help.
    Temporary(Failure),
    /// Trying again does not help.
    Refused(Failure),
}

impl LinkError {
    /// It is refused, with status 1.
    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(Failure::new(FAILED, why))
    }

    /// No daemon is reachable.
    pub(super) fn unreachable(why: String) -> Self {
        Self::Temporary(Failure::new(UNREACHABLE, why))
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Temporary(failure) | LinkError::Refused(failure) => failure,
        }
    }
}

/// The connection is gone.
pub(super) fn lost(why: &str) -> Failure {
    Failure::new(FAILED, format!("the connection to the daemon is lost: {why}"))
}

/// The error for the reason that the daemon gave before it closed the connection.
pub(super) fn closing(word: &str) -> LinkError {
    let refused = |why: &str| LinkError::refused(why);
    match word {
        exoclaw::AUTH_FAILED => refused("the daemon does not accept this token"),
        exoclaw::DRAINING => LinkError::unreachable("the daemon is stopping".into()),
        "credential_revoked" => refused("the token was revoked (credential_revoked): ask for another one"),
        "credential_expired" => refused("the token has expired (credential_expired): ask for another one"),
        "frame_too_large" => refused("the prompt is larger than the daemon takes (frame_too_large)"),
        "slow_consumer"
        | "idle_timeout"
        | "overloaded"
        | "message_crowded_out"
        | "message_timeout"
        | "rate_limited"
        | "too_many_connections" => {
            LinkError::Temporary(Failure::new(FAILED, format!("the daemon closed the connection: {word}")))
        }
        word => refused(&format!("the daemon closed the connection: {}", one_line(word, 200))),
    }
}
