//! Why a call of a model failed, as far as it decides what is done next.
//!
//! | fault | asked again | next model |
//! |---|---|---|
//! | the request is at fault | | |
//! | it is too long, or has images, tools, thoughts or marks that can't be taken | without | |
//! | the key is refused, or its account has no quota left | with the next key | yes |
//! | there is no such model or no such server | | yes |
//! | rate limit | with the next key, else later | yes |
//! | overload, server, network, cut | yes | yes |
//! | too slow | | yes |

use std::time::Duration;

use super::failure::Failure;
use crate::time::Timestamp;

/// Why a call of a model failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The key is missing, wrong, or not enough: 401, 403.
    Auth,
    /// The key's account has no quota or credit left: 402, or an error that is called so.
    Quota,
    /// There is no such model there, or the base URL is none: 404, or a redirect to another.
    Misconfigured,
    /// The request is not one that the provider takes.
    BadRequest,
    /// It is longer than the model's context.
    ContextTooLong,
    /// The model can't see the images in it.
    NoImages,
    /// The model, or its server as it was started, can't call tools.
    NoTools,
    /// The model can't think, or not as much as it was asked to.
    NoThinking,
    /// It does not take back what the model thought before: that was said to another key, or is damaged.
    NoThoughts,
    /// The server does not know the marks of what may be cached.
    NoCacheMarks,
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

/// What servers say where a model can't see images, in lowercase: llama.cpp, OpenAI, Ollama, vLLM, OpenRouter.
const NO_IMAGES: [&str; 9] = [
    "image input is not supported",
    "image_url is only supported",
    "image_url is not supported",
    "does not support image",
    "support image input",
    "not support images",
    "is not a multimodal model",
    "missing data required for image input",
    "not a vision model",
];

/// What servers say where a model can't call tools, in lowercase: llama.cpp, Ollama, vLLM, OpenRouter.
const NO_TOOLS: [&str; 6] = [
    "tools param requires --jinja",
    "does not support tools",
    "does not support function calling",
    "tool choice requires --enable-auto-tool-choice",
    "support tool use",
    "tools are not supported",
];

/// What servers say where a model can't think, in lowercase: Ollama, OpenAI, Groq, Gemini.
const NO_THINKING: [&str; 7] = [
    "does not support thinking",
    "reasoning_effort is not supported",
    "'reasoning_effort' is not supported",
    "argument supplied: reasoning_effort",
    "'reasoning.effort' is not supported",
    "thinking is not supported",
    "encrypted content is not supported",
];

/// What servers say of thoughts that they don't take back, in lowercase: OpenAI, Anthropic, Gemini.
const NO_THOUGHTS: [&str; 5] = [
    "invalid_encrypted_content",
    "encrypted content could not be",
    "invalid `signature` in `thinking`",
    "thought signature is not valid",
    "thought_signature is not valid",
];

/// What servers say where there is no such model, in lowercase, whatever the status: OpenRouter, LiteLLM, DeepSeek,
/// OpenAI, Mistral, llama.cpp.
const NO_MODEL: [&str; 6] = [
    "is not a valid model",
    "invalid model name",
    "model not exist",
    "model_not_found",
    "invalid_model",
    "model not found",
];

/// What servers name that don't know the marks of what may be cached, in lowercase.
const NO_CACHE_MARKS: [&str; 1] = ["cache_control"];

impl Fault {
    /// Of an HTTP answer other than success, with what it says.
    pub fn of_status(status: u16, body: &[u8]) -> Self {
        let named = || Failure::of_body(body).fault();
        match status {
            // Whatever the status: one server says so with 500, another with 404.
            400..=599 if says(body, &NO_IMAGES) => Self::NoImages,
            400..=599 if says(body, &NO_TOOLS) => Self::NoTools,
            400 | 422 | 500 if says(body, &NO_THINKING) => Self::NoThinking,
            400 | 422 | 500 if says(body, &NO_THOUGHTS) => Self::NoThoughts,
            402 => Self::Quota,
            401 | 403 => named().filter(|fault| *fault == Self::Quota).unwrap_or(Self::Auth),
            // A redirect, no such thing, and a proxy that wants a user.
            300..=399 | 404 | 407 => Self::Misconfigured,
            408 | 504 => Self::Timeout,
            // What is used up does not come back in a moment.
            429 => {
                let is_of_account = |fault: &Self| matches!(fault, Self::Auth | Self::Quota);
                named().filter(is_of_account).unwrap_or(Self::RateLimit)
            }
            425 => Self::RateLimit,
            503 | 529 => Self::Overloaded,
            400 | 413 | 422 | 500 if says(body, &TOO_LONG) => Self::ContextTooLong,
            400 | 422 if says(body, &NO_CACHE_MARKS) => Self::NoCacheMarks,
            400 | 422 if says(body, &NO_MODEL) => Self::Misconfigured,
            // Gateways say so of all that goes wrong behind them.
            400 => named().filter(|fault| *fault != Self::Server).unwrap_or(Self::BadRequest),
            500 => named().filter(|fault| *fault != Self::BadRequest).unwrap_or(Self::Server),
            501.. => Self::Server,
            _ => Self::BadRequest,
        }
    }

    /// What a provider's name for a failure means, or its code in place of a status; none where it is not known.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "overloaded_error"
            | "server_is_overloaded"
            | "slow_down"
            | "ServiceUnavailableError"
            | "UNAVAILABLE"
            | "503"
            | "529" => Self::Overloaded,
            "rate_limit_error" | "rate_limit_exceeded" | "RateLimitError" | "RESOURCE_EXHAUSTED" | "429" => {
                Self::RateLimit
            }
            "authentication_error"
            | "permission_error"
            | "invalid_api_key"
            | "AuthenticationError"
            | "PermissionDeniedError"
            | "UNAUTHENTICATED"
            | "PERMISSION_DENIED"
            | "401"
            | "403" => Self::Auth,
            "billing_error"
            | "billing_hard_limit_reached"
            | "insufficient_quota"
            | "BudgetExceededError"
            | "budget_exceeded"
            | "402" => Self::Quota,
            "timeout_error" | "Timeout" | "DEADLINE_EXCEEDED" | "408" | "504" => Self::Timeout,
            "not_found_error" | "NotFoundError" | "NOT_FOUND" | "404" => Self::Misconfigured,
            "invalid_request_error"
            | "request_too_large"
            | "invalid_prompt"
            | "BadRequestError"
            | "UnprocessableEntityError"
            | "ContentPolicyViolationError"
            | "INVALID_ARGUMENT"
            | "400"
            | "422" => Self::BadRequest,
            "server_error"
            | "api_error"
            | "InternalServerError"
            | "APIConnectionError"
            | "APIError"
            | "INTERNAL"
            | "500"
            | "502" => Self::Server,
            name if says(name.as_bytes(), &TOO_LONG) => Self::ContextTooLong,
            name if says(name.as_bytes(), &NO_MODEL) => Self::Misconfigured,
            _ => return None,
        })
    }

    /// What a provider's words mean; none where they tell nothing.
    pub(super) fn of_words(message: &str) -> Option<Self> {
        let said = message.as_bytes();
        let known: [(&[&str], Self); 4] = [
            (&TOO_LONG, Self::ContextTooLong),
            (&NO_MODEL, Self::Misconfigured),
            (&["api key not valid"], Self::Auth),
            (&["credit balance is too low"], Self::Quota),
        ];
        known.into_iter().find(|(words, _)| says(said, words)).map(|(_, fault)| fault)
    }

    /// Whether the same model may do better in a moment.
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::RateLimit | Self::Overloaded | Self::Server | Self::Network | Self::Cut)
    }

    /// Whether another model may do better.
    pub const fn fails_over(self) -> bool {
        !matches!(
            self,
            Self::BadRequest
                | Self::ContextTooLong
                | Self::NoImages
                | Self::NoTools
                | Self::NoThinking
                | Self::NoThoughts
                | Self::NoCacheMarks
        )
    }

    /// Whether another key of the same provider may do better: it is this one that is refused or has no more
    /// requests or money left.
    pub const fn is_of_key(self) -> bool {
        matches!(self, Self::Auth | Self::Quota | Self::RateLimit)
    }

    /// What a model did that failed so, in words that follow its name.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Auth => "refused the API key",
            Self::Quota => "has no quota left on the account, whose billing wants a look",
            Self::Misconfigured => "was not found",
            Self::BadRequest => "refused the request",
            Self::ContextTooLong => "can't take so long a conversation",
            Self::NoImages => "can't see images",
            Self::NoTools => "can't call tools",
            Self::NoThinking => "can't think",
            Self::NoThoughts => "does not take back what was thought",
            Self::NoCacheMarks => "refused the marks of its cache",
            Self::RateLimit => "takes no more requests for now",
            Self::Overloaded => "is overloaded",
            Self::Server => "failed",
            Self::Network => "was not reached",
            Self::Timeout => "did not answer in time",
            Self::Cut => "broke off its answer",
        }
    }

    /// All of them.
    const ALL: [Self; 16] = [
        Self::Auth,
        Self::Quota,
        Self::Misconfigured,
        Self::BadRequest,
        Self::ContextTooLong,
        Self::NoImages,
        Self::NoTools,
        Self::NoThinking,
        Self::NoThoughts,
        Self::NoCacheMarks,
        Self::RateLimit,
        Self::Overloaded,
        Self::Server,
        Self::Network,
        Self::Timeout,
        Self::Cut,
    ];

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Its name, for logs and figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Quota => "quota",
            Self::Misconfigured => "misconfigured",
            Self::BadRequest => "bad_request",
            Self::ContextTooLong => "context_too_long",
            Self::NoImages => "no_images",
            Self::NoTools => "no_tools",
            Self::NoThinking => "no_thinking",
            Self::NoThoughts => "no_thoughts",
            Self::NoCacheMarks => "no_cache_marks",
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
        }
    }
}

/// Whether a provider's words hold one of these.
fn says(said: &[u8], any: &[&str]) -> bool {
    let said = String::from_utf8_lossy(said).to_lowercase();
    any.iter().any(|words| said.contains(words))
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
            (402, "", Fault::Quota),
            (403, r#"{"error":{"type":"billing_error","message":"x"}}"#, Fault::Quota),
            (429, r#"{"error":{"code":"insufficient_quota","message":"x"}}"#, Fault::Quota),
            (
                400,
                r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#,
                Fault::Quota,
            ),
            (403, "", Fault::Auth),
            (404, "", Fault::Misconfigured),
            (302, "", Fault::Misconfigured),
            (407, "", Fault::Misconfigured),
            (400, "no such thing", Fault::BadRequest),
            (
                400,
                r#"{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
                Fault::ContextTooLong,
            ),
            (400, r#"{"error":{"code":"context_length_exceeded"}}"#, Fault::ContextTooLong),
            (400, r#"{"error":{"type":"exceed_context_size_error"}}"#, Fault::ContextTooLong),
            (413, "", Fault::BadRequest),
            (500, r#"{"error":{"message":"tools param requires --jinja flag"}}"#, Fault::NoTools),
            (400, r#"{"error":"registry.ollama.ai/library/x does not support tools"}"#, Fault::NoTools),
            (500, "image input is not supported - hint: provide the mmproj", Fault::NoImages),
            (404, "No endpoints found that support image input", Fault::NoImages),
            (400, r#"{"error":{"message":"\"llama3\" does not support thinking"}}"#, Fault::NoThinking),
            (400, r#"{"error":{"code":"invalid_encrypted_content","message":"x"}}"#, Fault::NoThoughts),
            (400, "Model Not Exist", Fault::Misconfigured),
            (
                400,
                r#"{"error":{"message":"system.0.cache_control: Extra inputs are not permitted"}}"#,
                Fault::NoCacheMarks,
            ),
            (408, "", Fault::Timeout),
            (429, "", Fault::RateLimit),
            (500, "", Fault::Server),
            (502, "", Fault::Server),
            (503, "", Fault::Overloaded),
            (529, "", Fault::Overloaded),
        ] {
            assert_eq!(Fault::of_status(status, body.as_bytes()), fault, "{status} {body}");
        }
        assert_eq!(Fault::of_name("overloaded_error"), Some(Fault::Overloaded));
        assert_eq!(Fault::of_name("new_error"), None);
        for fault in Fault::ALL {
            assert_eq!(Fault::from_name(fault.name()), Some(fault));
        }
        assert_eq!(Fault::of_words("prompt is too long"), Some(Fault::ContextTooLong));
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
