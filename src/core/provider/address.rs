//! Where requests go: addresses below a base URL, which may be written with or without its version.

use std::net::IpAddr;

use super::format::Format;

/// Where OpenAI's format has no version in its path.
const WITHOUT_VERSION: [&str; 4] =
    ["api.perplexity.ai", "api.githubcopilot.com", "models.github.ai", "models.inference.ai.azure.com"];

/// The base URL with its version: `/v1` is added where there is none. A base URL that names all of the address,
/// down to `/chat/completions`, is taken at its word.
pub fn api_root(format: Format, base_url: &str) -> String {
    let base_url = base_url.trim_end_matches('/');
    if base_url.is_empty() {
        return String::new();
    }
    if let Some(root) = base_url.strip_suffix(path(format)).filter(|_| format != Format::Offline) {
        return root.to_owned();
    }
    let rest = base_url.split_once("://").map_or(base_url, |(_, rest)| rest);
    let mut segments = rest.split('/').skip(1);
    let has_version = match format {
        // Its path ends in the version; gateways have others in front.
        Format::Anthropic => segments.last() == Some("v1"),
        _ => segments.any(is_version) || WITHOUT_VERSION.contains(&host(base_url)),
    };
    if has_version { base_url.to_owned() } else { format!("{base_url}/v1") }
}

/// Where a model is asked.
pub fn endpoint(format: Format, base_url: &str) -> String {
    api_root(format, base_url) + path(format)
}

/// Where the list of models is; none for a format without a network.
pub fn models(format: Format, base_url: &str) -> Option<String> {
    let root = api_root(format, base_url);
    match format {
        Format::Anthropic => Some(format!("{root}/models?limit=1000")),
        Format::Chat | Format::Responses => Some(format!("{root}/models")),
        Format::Offline => None,
    }
}

/// Where vectors of texts are asked for; none for a format that has no such thing.
pub fn embeddings(format: Format, base_url: &str) -> Option<String> {
    matches!(format, Format::Chat | Format::Responses)
        .then(|| format!("{}/embeddings", api_root(format, base_url)))
}

/// What a format has below the root.
const fn path(format: Format) -> &'static str {
    match format {
        Format::Anthropic => "/messages",
        Format::Chat => "/chat/completions",
        Format::Responses => "/responses",
        Format::Offline => "",
    }
}

/// Whether a segment of a path is a version: `v1`, `v4`, `v1beta`.
fn is_version(segment: &str) -> bool {
    let Some(rest) = segment.strip_prefix('v') else { return false };
    let digits = rest.chars().take_while(char::is_ascii_digit).count();
    (1..=3).contains(&digits) && matches!(&rest[digits..], "" | "alpha" | "beta" | "beta1")
}

/// Whether this base URL is OpenAI's own.
pub fn is_openai(base_url: &str) -> bool {
    let host = host(base_url).to_ascii_lowercase();
    host == "openai.com" || host.ends_with(".openai.com")
}

/// The host of a base URL; an IPv6 address without its brackets.
pub fn host(base_url: &str) -> &str {
    let rest = base_url.split_once("://").map_or(base_url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether it is on this host.
pub fn is_loopback(base_url: &str) -> bool {
    let host = host(base_url);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_may_be_written_or_not() {
        use Format::{Anthropic, Chat, Responses};
        for (format, base_url, address) in [
            (Chat, "http://127.0.0.1:11434", "http://127.0.0.1:11434/v1/chat/completions"),
            (Chat, "http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1/chat/completions"),
            (Chat, "http://127.0.0.1:11434/v1/", "http://127.0.0.1:11434/v1/chat/completions"),
            (Chat, "https://lab/llm", "https://lab/llm/v1/chat/completions"),
            (Chat, "https://lab/llm/v1", "https://lab/llm/v1/chat/completions"),
            (Chat, "https://x.test/v1beta/openai", "https://x.test/v1beta/openai/chat/completions"),
            (Chat, "https://x.test/api/paas/v4", "https://x.test/api/paas/v4/chat/completions"),
            (Chat, "https://x.test/vision", "https://x.test/vision/v1/chat/completions"),
            (Chat, "https://x.test/odd/chat/completions", "https://x.test/odd/chat/completions"),
            (Chat, "https://api.perplexity.ai", "https://api.perplexity.ai/chat/completions"),
            (Responses, "https://api.openai.com", "https://api.openai.com/v1/responses"),
            (Responses, "http://lab:1/v1", "http://lab:1/v1/responses"),
            (Anthropic, "https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
            (Anthropic, "https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
            (Anthropic, "https://gw.test/v1/me/anthropic", "https://gw.test/v1/me/anthropic/v1/messages"),
            (Anthropic, "https://x.test/odd/messages", "https://x.test/odd/messages"),
        ] {
            assert_eq!(endpoint(format, base_url), address);
        }
    }

    #[test]
    fn the_list_of_models_is_where_requests_go() {
        for format in [Format::Chat, Format::Responses] {
            for base_url in ["http://lab:1", "http://lab:1/v1", "http://lab:1/v1/"] {
                assert_eq!(models(format, base_url).unwrap(), "http://lab:1/v1/models");
            }
        }
        for base_url in ["http://lab:1", "http://lab:1/v1"] {
            assert_eq!(models(Format::Anthropic, base_url).unwrap(), "http://lab:1/v1/models?limit=1000");
        }
        assert_eq!(models(Format::Offline, ""), None);
    }

    #[test]
    fn openai_is_told_from_those_who_look_like_it() {
        for (url, is) in [
            ("https://api.openai.com/v1", true),
            ("https://EU.api.openai.com", true),
            ("https://x.openai.azure.com/openai/v1", false),
            ("https://api.openai.com.evil.test", false),
            ("http://openai.com:8080", true),
            ("", false),
        ] {
            assert_eq!(is_openai(url), is, "{url}");
        }
    }

    #[test]
    fn this_host_is_known() {
        for (url, is) in [
            ("http://127.0.0.1:8080/v1", true),
            ("https://LOCALHOST/v1", true),
            ("http://[::1]:5/v1", true),
            ("http://127.0.0.1.evil.test", false),
            ("http://127.evil.test", false),
            ("http://192.168.1.5:8000/v1", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(url), is, "{url}");
        }
    }
}
