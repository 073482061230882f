//! `fetch`: a tool that reads a page of the web, as text.
//!
//! Which pages it may read is the host's to say, by the grants `http:...` of its entry.

use extism_pdk::{FnResult, HttpRequest, http, plugin_fn};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    url: String,
    #[serde(default)]
    from: usize,
    #[serde(default)]
    characters: Option<usize>,
    #[serde(default)]
    raw: bool,
}

#[derive(Serialize)]
struct Output {
    content: String,
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    is_error: bool,
}

/// So many characters are answered where nobody says, and the most.
const CHARACTERS: usize = 20_000;
const CHARACTERS_MAX: usize = 200_000;

/// How wide text is laid out.
const COLUMNS: usize = 100;

/// What the tool is, for the model.
#[plugin_fn]
pub fn describe() -> FnResult<&'static str> {
    Ok(r#"{"name":"fetch","description":"Reads a page of the web and answers with its text, links numbered and listed at the end. Long pages are answered in parts.","input_schema":{"type":"object","properties":{"url":{"type":"string","description":"Where the page is; https where no scheme is given."},"from":{"type":"integer","minimum":0,"description":"The first character wanted, for the next part of a long page."},"characters":{"type":"integer","minimum":1,"maximum":200000,"description":"How many characters to answer with, 20000 where it is not said."},"raw":{"type":"boolean","description":"The body as it came, not as text."}},"required":["url"],"additionalProperties":false}}"#)
}

/// Answers with the text of the page at `url`.
#[plugin_fn]
pub fn handle_tool_call(input: String) -> FnResult<String> {
    let output = match serde_json::from_str::<Input>(&input) {
        Ok(input) => fetch(input)?,
        Err(error) => Output { content: format!("fetch: {error}"), is_error: true },
    };
    Ok(serde_json::to_string(&output)?)
}

fn fetch(input: Input) -> FnResult<Output> {
    let url = if input.url.contains("://") { input.url } else { format!("https://{}", input.url) };
    let accept = "text/html, text/plain;q=0.9, application/json;q=0.9, */*;q=0.1";
    let request = HttpRequest::new(&url)
        .with_header("accept", accept)
        .with_header("user-agent", concat!("clawmux-fetch/", env!("CARGO_PKG_VERSION")));
    let response = http::request::<()>(&request, None)?;
    let (status, body) = (response.status_code(), response.body());
    let kind = response.headers().get("content-type").map(String::as_str).unwrap_or_default();
    let text = match readable(kind, &body, input.raw) {
        Ok(text) => part(&text, input.from, input.characters.unwrap_or(CHARACTERS).min(CHARACTERS_MAX)),
        Err(why) => return Ok(Output { content: format!("{url}: {why}"), is_error: true }),
    };
    let is_error = !(200..300).contains(&status);
    let content = if is_error { format!("{url} answered with status {status}:\n{text}") } else { text };
    Ok(Output { content, is_error })
}

/// What a body says, as text.
fn readable(kind: &str, body: &[u8], raw: bool) -> Result<String, String> {
    let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
    let kind = kind.trim().to_ascii_lowercase();
    let is_html = matches!(kind.as_str(), "text/html" | "application/xhtml+xml")
        || kind.is_empty() && body.trim_ascii_start().starts_with(b"<");
    let is_text = is_html
        || kind.is_empty()
        || kind.starts_with("text/")
        || ["json", "xml", "javascript", "yaml", "toml"].iter().any(|word| kind.contains(word));
    if !is_text {
        return Err(format!("it is {kind}, {} bytes, not text", body.len()));
    }
    let is_latin = ["iso-8859-1", "latin1", "windows-1252"]
        .iter()
        .any(|charset| parameters.to_ascii_lowercase().contains(charset));
    let text = match is_latin {
        true => body.iter().map(|byte| char::from(*byte)).collect(),
        false => String::from_utf8_lossy(body).into_owned(),
    };
    if !is_html || raw {
        return Ok(text);
    }
    html2text::from_read(text.as_bytes(), COLUMNS).map_err(|why| format!("its HTML can't be read: {why}"))
}

/// So many characters of a text, and how to go on where there are more.
fn part(text: &str, from: usize, characters: usize) -> String {
    let mut part: String = text.chars().skip(from).take(characters).collect();
    let all = text.chars().count();
    let end = from.saturating_add(characters).min(all);
    if end < all {
        part.push_str(&format!("\n[characters {from} to {end} of {all}: go on with \"from\": {end}]"));
    } else if from > 0 && part.is_empty() {
        part = format!("[the text has {all} characters]");
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_text() {
        let html = b"<html><head><title>T</title><script>x()</script></head><body><h1>Head</h1><p>One <a \
            href=\"/two\">two</a></p></body></html>";
        let text = readable("text/html; charset=utf-8", html, false).unwrap();
        assert!(text.contains("Head") && text.contains("/two") && !text.contains("x()"), "{text}");
        assert_eq!(readable("application/json", b"{}", false).unwrap(), "{}");
        assert_eq!(readable("text/plain; charset=ISO-8859-1", b"\xe4", false).unwrap(), "\u{e4}");
        assert!(readable("image/png", b"\x89PNG", false).unwrap_err().contains("image/png, 4 bytes"));
        assert!(readable("text/html", b"<p>a", true).unwrap().contains("<p>"));
    }

    #[test]
    fn long_texts_come_in_parts() {
        assert_eq!(part("abc", 0, 3), "abc");
        assert_eq!(part("\u{e4}bcd", 1, 2), "bc\n[characters 1 to 3 of 4: go on with \"from\": 3]");
        assert_eq!(part("abc", 9, 2), "[the text has 3 characters]");
    }
}
