//! Why a call of a model failed, as far as it decides what is done next.
//!
//! | fault | asked again | next model |
//! |---|---|---|
//! | the request is at fault, or too long | | |
//! | the key is refused; there is no such model or no such server | | yes |
//! | rate limit, overload, server, network, cut | yes | yes |
//! | too slow | | yes |

use std::time::Duration;

use crate::time::Timestamp;

/// Why a call of a model failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The key is missing, wrong, or not enough: 401, 402, 403.
    Auth,
    /// There is no such model there, or the base URL is none: 404.
    Misconfigured,
    /// The request is not one that the provider takes.
    BadRequest,
    /// It is longer than the model's context.
    ContextTooLong,
    /// Too many requests, by this key: 429.
    RateLimit,
    /// The model has too much to do: 503, 529.
    Overloaded,
    /// The provider failed.
    Server,
    /// It was not reached, or the connection was lost before an answer.
    Network,
    /// It did not answer in time.
    Timeout,
    /// Its answer ended too early, or is not what its format says.
    Cut,
}

/// What servers say of a request that is longer than the context, in lowercase.
const TOO_LONG: [&str; 8] = [
    "context_length_exceeded",
    "contextwindowexceeded",
    "exceed_context_size",
    "exceeds the available context",
    "maximum context length",
    "prompt is too long",
    "input is too long",
    "context window",
];

impl Fault {
    /// Of an HTTP answer other than success, with what it says.
    pub fn of_status(status: u16, body: &[u8]) -> Self {
        match status {
            401..=403 => Self::Auth,
            404 => Self::Misconfigured,
            408 | 504 => Self::Timeout,
            425 | 429 => Self::RateLimit,
            503 | 529 => Self::Overloaded,
            500.. => Self::Server,
            400 | 413 | 422 if is_too_long(body) => Self::ContextTooLong,
            _ => Self::BadRequest,
        }
    }

    /// Of a failure that the provider names within its stream, such as `overloaded_error`.
    pub fn of_kind(kind: &str, message: &str) -> Self {
        match kind {
            "overloaded_error" => Self::Overloaded,
            "rate_limit_error" | "rate_limit_exceeded" => Self::RateLimit,
            "authentication_error" | "permission_error" | "billing_error" => Self::Auth,
            "timeout_error" => Self::Timeout,
            _ if is_too_long(kind.as_bytes()) || is_too_long(message.as_bytes()) => Self::ContextTooLong,
            "not_found_error" => Self::Misconfigured,
            "invalid_request_error" | "request_too_large" => Self::BadRequest,
            _ => Self::Server,
        }
    }

    /// Whether the same model may do better in a moment.
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::RateLimit | Self::Overloaded | Self::Server | Self::Network | Self::Cut)
    }

    /// Whether another model may do better.
    pub const fn fails_over(self) -> bool {
        !matches!(self, Self::BadRequest | Self::ContextTooLong)
    }

    /// Its name, for logs and figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Misconfigured => "misconfigured",
            Self::BadRequest => "bad_request",
            Self::ContextTooLong => "context_too_long",
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
        }
    }
}

fn is_too_long(said: &[u8]) -> bool {
    let said = String::from_utf8_lossy(said).to_lowercase();
    TOO_LONG.iter().any(|words| said.contains(words))
}

/// The header `Retry-After`, as of `now`: seconds, or a date as HTTP writes them (RFC 9110, section 10.2.3).
/// None where it is neither.
pub fn retry_after(header: &str, now: Timestamp) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let at = jiff::fmt::rfc2822::parse(header).ok()?.timestamp().as_millisecond();
    let at = Timestamp::from_millis(u64::try_from(at).ok()?);
    Some(at.since(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn statuses_are_told_apart() {
        for (status, body, fault) in [
            (401, "", Fault::Auth),
            (402, "", Fault::Auth),
            (403, "", Fault::Auth),
            (404, "", Fault::Misconfigured),
            (302, "", Fault::BadRequest),
            (400, "no such thing", Fault::BadRequest),
            (
                400,
                r#"{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
                Fault::ContextTooLong,
            ),
            (400, r#"{"error":{"code":"context_length_exceeded"}}"#, Fault::ContextTooLong),
            (400, r#"{"error":{"type":"exceed_context_size_error"}}"#, Fault::ContextTooLong),
            (413, "", Fault::BadRequest),
            (408, "", Fault::Timeout),
            (429, "", Fault::RateLimit),
            (500, "", Fault::Server),
            (502, "", Fault::Server),
            (503, "", Fault::Overloaded),
            (529, "", Fault::Overloaded),
        ] {
            assert_eq!(Fault::of_status(status, body.as_bytes()), fault, "{status} {body}");
        }
        assert_eq!(Fault::of_kind("overloaded_error", "Overloaded"), Fault::Overloaded);
        assert_eq!(Fault::of_kind("invalid_request_error", "prompt is too long"), Fault::ContextTooLong);
        assert_eq!(Fault::of_kind("new_error", ""), Fault::Server);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = Timestamp::from_millis(1_445_412_480_000);
        for (header, seconds) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Wed, 21 Oct 2015 07:28:30 GMT", Some(30)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("1.5", None),
            ("", None),
        ] {
            assert_eq!(retry_after(header, now), seconds.map(Duration::from_secs), "{header}");
        }
    }

    proptest! {
        #[test]
        fn no_header_panics(header in ".{0,60}") {
            let _ = retry_after(&header, Timestamp::from_millis(0));
        }
    }
}
