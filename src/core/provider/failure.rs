//! What went wrong, in a provider's own words: taken out of what servers and gateways wrap them in.
//!
//! | who | wraps |
//! |---|---|
//! | OpenAI, Anthropic and most others | `{"error": {"type": .., "code": .., "message": ..}}` |
//! | Gemini | `[{"error": {"status": .., "message": ..}}]` |
//! | vLLM | `{"object": "error", "type": .., "message": ..}` |
//! | what is built on FastAPI | `{"detail": ".."}`, `{"detail": [{"msg": ..}]}` |
//! | OpenRouter | what its upstream said, as text in `error.metadata.raw` |
//! | LiteLLM | `litellm.BadRequestError: OpenAIException - {..}`, at times as Python prints it |
//!
//! These stand within each other, JSON as text in JSON: the innermost words count.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::fault::Fault;
use super::page::{is_page, page_title};
use crate::access::Secret;
use crate::error::{Detail, Error, ErrorCode};

/// The longest piece of a provider's own words that an error repeats, in characters.
const QUOTE_CHARS_MAX: usize = 300;

/// How deep wrappings are opened.
const DEPTH_MAX: usize = 6;

/// What LiteLLM writes behind what it was told.
const TRAILERS: [&str; 4] =
    [". Received Model Group=", "\nReceived Model Group=", "Available Model Group Fallbacks=", "\nModel: "];

/// A failure in a provider's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Value")]
pub(super) struct Failure {
    /// What it is called, by the one who tells it and by those behind him.
    kinds: Vec<String>,
    /// Which of these is for people, if any.
    shown: Option<String>,
    message: String,
}

impl From<Value> for Failure {
    fn from(value: Value) -> Self {
        Self::of_value(&value, 0)
    }
}

impl Failure {
    /// One that is told in these words alone.
    pub(super) fn of_text(text: &str) -> Self {
        Self::unwrapped(text, 0)
    }

    /// That of an answer other than success; empty where it says nothing that a person can read.
    pub(super) fn of_body(body: &[u8]) -> Self {
        let said = String::from_utf8_lossy(body);
        match serde_json::from_str::<Value>(&said) {
            Ok(value) => Self::of_value(&value, 0),
            Err(_) if is_page(&said) => page_title(&said).map(Self::of_text).unwrap_or_default(),
            Err(_) => Self::of_text(&said),
        }
    }

    /// What it comes to, as far as its name or its words tell.
    pub(super) fn fault(&self) -> Option<Fault> {
        let named = || self.kinds.iter().filter_map(|kind| Fault::of_name(kind));
        let is_telling = |fault: &Fault| !matches!(fault, Fault::BadRequest | Fault::Server);
        named().find(is_telling).or_else(|| Fault::of_words(&self.message)).or_else(|| named().next())
    }

    fn of_value(value: &Value, depth: usize) -> Self {
        match value {
            Value::String(text) => Self::unwrapped(text, depth),
            _ if depth > DEPTH_MAX => Self { message: value.to_string(), ..Self::default() },
            Value::Object(map) => {
                if let Some(inner) =
                    ["error", "detail"].iter().find_map(|key| map.get(*key).filter(|v| !v.is_null()))
                    && !matches!(inner, Value::Bool(_))
                {
                    return Self::of_value(inner, depth + 1);
                }
                let raw = map.get("metadata").and_then(|metadata| metadata["raw"].as_str());
                let said = raw
                    .filter(|raw| !raw.trim().is_empty())
                    .map(|raw| Self::unwrapped(raw, depth + 1))
                    .or_else(|| {
                        let said = ["message", "msg", "reason"].iter().find_map(|key| map.get(*key));
                        said.filter(|said| !said.is_null()).map(|said| Self::of_value(said, depth + 1))
                    });
                let mut failure =
                    said.unwrap_or_else(|| Self { message: value.to_string(), ..Self::default() });
                for key in ["type", "status", "code"] {
                    let name = match map.get(key) {
                        Some(Value::String(name)) if !matches!(name.as_str(), "" | "None" | "error") => {
                            name.clone()
                        }
                        Some(Value::Number(code)) => code.to_string(),
                        _ => continue,
                    };
                    let is_word = !name.bytes().all(|byte| byte.is_ascii_digit());
                    if is_word && key != "code" && failure.shown.is_none() {
                        failure.shown = Some(name.clone());
                    }
                    failure.kinds.push(name);
                }
                failure
            }
            Value::Array(list) => match list.first() {
                // One of several things that are wrong, each with its place.
                Some(first) => Self::of_value(first, depth + 1),
                None => Self::default(),
            },
            other => Self { message: other.to_string(), ..Self::default() },
        }
    }

    /// Takes off what gateways write in front of what they were told, and opens JSON that is written as text.
    fn unwrapped(text: &str, depth: usize) -> Self {
        let mut rest = text.trim();
        let mut kinds = Vec::new();
        let is_wrapped = rest.starts_with("litellm.");
        if is_wrapped {
            while let Some((word, after)) = rest.split_once([':', ' ']) {
                let name = word.rsplit('.').next().unwrap_or_default();
                let is_class =
                    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                let after = after.trim_start();
                if is_class && (name.ends_with("Error") && name != "Error" || name == "Timeout") {
                    kinds.insert(0, name.to_owned());
                } else if !(is_class && name.ends_with("Exception")) {
                    break;
                }
                rest = after.strip_prefix("- ").unwrap_or(after);
            }
        }
        if let Some((_, after)) = rest.strip_prefix("Error code: ").and_then(|coded| coded.split_once(" - "))
        {
            rest = after;
        }
        if is_wrapped {
            let end = TRAILERS.iter().filter_map(|trailer| rest.find(trailer)).min();
            rest = rest[..end.unwrap_or(rest.len())].trim_end();
        }
        let json = rest.strip_prefix("b'").or_else(|| rest.strip_prefix("b\"")).unwrap_or(rest);
        let mut failure = None;
        if depth < DEPTH_MAX && json.starts_with(['{', '[']) {
            let parsed = serde_json::Deserializer::from_str(json).into_iter::<Value>().next();
            failure = match parsed {
                Some(Ok(value)) => Some(Self::of_value(&value, depth + 1)),
                _ => printed(json, "message").map(|said| Self {
                    shown: printed(json, "type").map(Cow::into_owned),
                    kinds: ["type", "code"]
                        .iter()
                        .filter_map(|key| printed(json, key))
                        .map(Cow::into_owned)
                        .collect(),
                    ..Self::unwrapped(&said, depth + 1)
                }),
            };
        }
        let mut failure = failure
            .filter(|failure| !failure.message.is_empty())
            .unwrap_or_else(|| Self { message: rest.to_owned(), ..Self::default() });
        failure.shown = failure.shown.or_else(|| kinds.first().cloned());
        failure.kinds.extend(kinds);
        failure
    }
}

/// The text under a key of a dictionary as Python prints it.
fn printed<'a>(dictionary: &'a str, key: &str) -> Option<Cow<'a, str>> {
    let (_, after) = dictionary.split_once(&format!("'{key}': "))?;
    let quote = after.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let said = &after[1..];
    let mut is_escaped = false;
    let end = said.char_indices().find(|(_, c)| {
        let is_end = *c == quote && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    let said = &said[..end?.0];
    Some(if said.contains('\\') { said.replace("\\'", "'").replace("\\n", "\n").into() } else { said.into() })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shown {
            Some(kind) => write!(f, "{kind}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// The error of an HTTP answer other than success. `retry_after` is what the header of that name says; `secrets`
/// are removed from what the provider says, should it repeat them.
pub fn http_error<'a>(
    provider: &str,
    status: u16,
    retry_after: Option<Duration>,
    body: &[u8],
    secrets: impl IntoIterator<Item = &'a Secret>,
) -> Error {
    let said = quote(&Failure::of_body(body).to_string(), secrets);
    let mut message = format!("{provider} answered {status}");
    if !said.is_empty() {
        message.push_str(": ");
        message.push_str(&said);
    }
    // One service says so with another status.
    let is_key =
        matches!(status, 401 | 403) || (status == 400 && Fault::of_status(status, body) == Fault::Auth);
    let is_quota = Fault::of_status(status, body) == Fault::Quota;
    let is_key = is_key && !is_quota;
    match status {
        _ if is_quota => message.push_str(" (the account has no quota left: see its billing)"),
        _ if is_key => message.push_str(" (check its api key)"),
        404 => message.push_str(" (check its base_url and the model)"),
        407 => message
            .push_str(" (the proxy wants a user and a password, or others: http://USER:PASSWORD@HOST:PORT)"),
        _ => {}
    }
    let error = ErrorCode::Provider.error(message);
    if is_key {
        return error.with(Detail::KeyRefused);
    }
    match retry_after {
        Some(wait) => error.with(Detail::RetryAfter(wait)),
        None => error,
    }
}

/// `text` without the secrets.
pub fn hide<'a>(mut text: String, secrets: impl IntoIterator<Item = &'a Secret>) -> String {
    for secret in secrets.into_iter().map(Secret::expose).filter(|secret| !secret.is_empty()) {
        text = text.replace(secret, "[secret]");
    }
    text
}

/// `text` on one line, bounded, without the secrets.
pub fn quote<'a>(text: &str, secrets: impl IntoIterator<Item = &'a Secret>) -> String {
    let mut line = String::with_capacity(text.len().min(4 * QUOTE_CHARS_MAX));
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let mut line = hide(line, secrets);
    if let Some((end, _)) = line.char_indices().nth(QUOTE_CHARS_MAX) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn http_errors_say_who_answered_what() {
        let overloaded = br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}"#;
        let error = http_error("anthropic", 529, Some(Duration::from_secs(7)), overloaded, None);
        assert_eq!(error.message, "anthropic answered 529: overloaded_error: Overloaded");
        assert_eq!(error.code, ErrorCode::Provider);
        assert_eq!(error.detail, Some(Detail::RetryAfter(Duration::from_secs(7))));

        let (key, title) = (Secret::new("sk-123"), Secret::new("geheim"));
        let denied = br#"{"error":{"message":"Incorrect\nkey: sk-123, geheim.","type":"invalid_request_error","code":"x"}}"#;
        let error = http_error("openai", 401, None, denied, [&key, &title]);
        assert_eq!(
            error.message,
            "openai answered 401: invalid_request_error: Incorrect key: [secret], [secret]. (check its api key)"
        );
        let used_up =
            br#"{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"insufficient_quota"}}"#;
        let error = http_error("openai", 429, None, used_up, None);
        assert!(error.message.ends_with(" (the account has no quota left: see its billing)"), "{error}");
        assert_eq!(error.detail, None);
        let gemini = br#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]"#;
        let error = http_error("gemini", 400, None, gemini, None);
        assert!(error.message.ends_with("(check its api key)"), "{error}");
        assert_eq!(error.detail, Some(Detail::KeyRefused));
    }

    #[test]
    fn http_errors_bear_any_body() {
        let cases: [(&[u8], &str); 7] = [
            (b"", "p answered 500"),
            (b"<html>oops</html>", "p answered 500"),
            (b"plain  text\r\n", "p answered 500: plain text"),
            (br#"{"error":"model not loaded"}"#, "p answered 500: model not loaded"),
            (br#"{"error":{"code":3}}"#, r#"p answered 500: {"code":3}"#),
            (br#"{"detail":[]}"#, "p answered 500"),
            (b"\xff\xfe", "p answered 500: \u{fffd}\u{fffd}"),
        ];
        for (body, message) in cases {
            assert_eq!(http_error("p", 500, None, body, None).message, message);
        }
        let long = "İ".repeat(10_000);
        let error = http_error("p", 500, None, long.as_bytes(), None);
        assert!(error.message.chars().count() < 400, "{} characters", error.message.chars().count());
    }

    #[test]
    fn the_innermost_words_count() {
        for (status, body, said, fault) in [
            // vLLM, older and newer.
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","param":null,"code":400}"#,
                "BadRequestError: This model's maximum context length is 4096 tokens.",
                Fault::ContextTooLong,
            ),
            (
                404,
                r#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}"#,
                "NotFoundError: The model `x` does not exist.",
                Fault::Misconfigured,
            ),
            // FastAPI.
            (404, r#"{"detail":"Not Found"}"#, "Not Found", Fault::Misconfigured),
            (
                422,
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#,
                "extra_forbidden: Extra inputs are not permitted",
                Fault::BadRequest,
            ),
            (
                422,
                r#"{"object":"error","message":{"detail":[{"msg":"Field required"}]},"type":"invalid_request_error","code":null}"#,
                "invalid_request_error: Field required",
                Fault::BadRequest,
            ),
            // LiteLLM: JSON, Python's print of a dictionary, classes within each other, and its own words behind.
            (
                400,
                r#"{"error":{"message":"litellm.BadRequestError: OpenAIException - {\"error\":{\"message\":\"prompt is too long: 9 > 8\",\"type\":\"invalid_request_error\"}}. Received Model Group=gpt\nAvailable Model Group Fallbacks=None","type":null,"param":null,"code":"400"}}"#,
                "invalid_request_error: prompt is too long: 9 > 8",
                Fault::ContextTooLong,
            ),
            (
                400,
                r#"{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException - Error code: 400 - {'error': {'message': \"it's too much\", 'type': 'invalid_request_error', 'code': 'context_length_exceeded'}}\nReceived Model Group=x","type":null,"code":"400"}}"#,
                "invalid_request_error: it's too much",
                Fault::ContextTooLong,
            ),
            (
                500,
                r#"{"error":{"message":"litellm.RateLimitError: AnthropicException - b'{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow down\"}}'","type":null,"code":"500"}}"#,
                "rate_limit_error: slow down",
                Fault::RateLimit,
            ),
            (
                500,
                r#"{"error":{"message":"litellm.APIConnectionError: OllamaException - connection refused","type":null,"code":"500"}}"#,
                "APIConnectionError: connection refused",
                Fault::Server,
            ),
            (
                400,
                r#"{"error":{"message":"litellm.BadRequestError: Invalid model name passed in model=x. Call `/v1/models` to view available models","type":"invalid_request_error","code":"400"}}"#,
                "BadRequestError: Invalid model name passed in model=x. Call `/v1/models` to view available models",
                Fault::Misconfigured,
            ),
            // OpenRouter tells what its upstream said as text.
            (
                429,
                r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"{\"error\":{\"message\":\"busy\",\"type\":\"too_many\"}}","provider_name":"x"}}}"#,
                "too_many: busy",
                Fault::RateLimit,
            ),
            (
                400,
                r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]"#,
                "INVALID_ARGUMENT: API key not valid. Please pass a valid API key.",
                Fault::Auth,
            ),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                "insufficient_quota: You exceeded your current quota",
                Fault::Quota,
            ),
        ] {
            assert_eq!(Failure::of_body(body.as_bytes()).to_string(), said);
            assert_eq!(Fault::of_status(status, body.as_bytes()), fault, "{status} {body}");
        }
    }

    #[test]
    fn failures_within_streams_are_told_apart() {
        let fault = |json: &str| serde_json::from_str::<Failure>(json).unwrap().fault();
        for (json, expected) in [
            (r#"{"type":"overloaded_error","message":"Overloaded"}"#, Some(Fault::Overloaded)),
            (r#"{"code":"rate_limit_exceeded","message":"x"}"#, Some(Fault::RateLimit)),
            (r#"{"code":"server_error","message":"x"}"#, Some(Fault::Server)),
            (r#"{"code":503,"message":"x"}"#, Some(Fault::Overloaded)),
            (
                r#"{"type":"invalid_request_error","message":"prompt is too long"}"#,
                Some(Fault::ContextTooLong),
            ),
            (r#"{"type":"invalid_request_error","message":"no"}"#, Some(Fault::BadRequest)),
            (r#""out of memory""#, None),
        ] {
            assert_eq!(fault(json), expected, "{json}");
        }
    }

    proptest! {
        #[test]
        fn no_body_panics(
            body in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                "(litellm\\.|[A-Za-z]{0,8}(Error|Exception)|: | - |b'|'message': |[{}\"'\\\\İ])*".prop_map(String::into_bytes),
            ],
        ) {
            let _ = http_error("p", 400, None, &body, None);
        }
    }
}
