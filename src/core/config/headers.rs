//! `[providers.NAME.headers]`: what requests carry besides what the format says.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};

use super::mcp::SECRET;
use super::plugins::{PluginSecrets, secret_named};
use super::section::{Report, Section};
use crate::access::Secret;
use crate::provider::format::Format;

/// Headers that are clawmux's to set: they say where a request ends, in what form it is, and what of the answer is
/// understood.
const RESERVED: [&str; 15] = [
    "accept",
    "accept-encoding",
    "anthropic-version",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that hold secrets.
const SECRETS: [&str; 5] = ["authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"];

/// The header that a format sends the key in; none for one without a network.
pub(super) const fn key_header(format: Format) -> Option<&'static str> {
    match format {
        Format::Anthropic => Some("x-api-key"),
        Format::Chat | Format::Responses => Some("authorization"),
        Format::Offline => None,
    }
}

/// The headers of the provider `name`, by their names in lowercase. `taken` is the one its key is sent in.
pub(super) fn read(
    s: Section,
    r: &mut Report,
    name: &str,
    taken: Option<&str>,
    secrets: &PluginSecrets,
) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    for (header, text) in s.named_texts(r) {
        let key = format!("providers.{name}.headers.{header}");
        let Ok(header) = HeaderName::from_bytes(header.as_bytes()) else {
            r.complain(
                &text.origin,
                format!("providers.{name}.headers: {header:?} is not the name of a header"),
            );
            continue;
        };
        let header = header.as_str();
        let value = match text.value.strip_prefix(SECRET) {
            None => Ok(Some(Secret::new(text.value.as_str()))),
            Some(secret) => secret_named(secret, secrets).map(|secret| secret.map(|secret| secret.value)),
        };
        let is_written = !text.value.starts_with(SECRET);
        let checked = value.and_then(|value| match value {
            _ if RESERVED.contains(&header) => Err(format!("clawmux sets {header} itself")),
            _ if taken == Some(header) => Err(format!("the key is sent in {header}: keep one of them")),
            _ if is_written && SECRETS.contains(&header) => Err(format!(
                "secrets are never written here: use \"{SECRET}NAME\" of a [secrets.NAME], or api_key_env"
            )),
            _ if headers.contains_key(header) => Err("it is there twice".to_owned()),
            Some(value) if value.expose().trim().is_empty() => Err("it is empty".to_owned()),
            Some(value) if HeaderValue::from_str(value.expose()).is_err() => {
                Err("it has characters that a header can't hold".to_owned())
            }
            value => Ok(value),
        });
        match checked {
            Ok(value) => headers.extend(value.map(|value| (header.to_owned(), value))),
            Err(why) => r.complain(&text.origin, format!("{key}: {why}")),
        }
    }
    headers
}
