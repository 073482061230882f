//! Answers of HTTP that are none of a model: a redirect, a web page, an error that calls itself a success.

use serde::Deserialize;
use url::Url;

use super::failure::{Failure, quote};
use super::fault::Fault;
use super::page::{is_page, page_title};
use crate::access::Secret;
use crate::error::{Error, ErrorCode};

/// The error of a redirect to `location`, of a request to `asked`. Requests that bring a prompt and a key are not sent
/// to where a server says. Of the target no user and no query are told, which may be secrets.
pub fn misdirected(provider: &str, status: u16, asked: &str, location: &str) -> Error {
    let target = Url::parse(asked).and_then(|asked| asked.join(location)).ok().filter(Url::has_host);
    let told = target.map_or_else(
        || location.to_owned(),
        |mut target| {
            let _ = (target.set_username(""), target.set_password(None));
            target.set_query(None);
            target.set_fragment(None);
            target.into()
        },
    );
    ErrorCode::Provider.error(format!(
        "{provider} answered {status}: it is to be found at {}, which is not followed: have base_url say so",
        quote(&told, None)
    ))
}

/// The error, and what it comes to, of a successful answer that is no stream but of this content type and begins with
/// `body`. `secrets` are removed from what is told of it.
pub fn not_a_stream(provider: &str, content_type: &str, body: &[u8], secrets: &[&Secret]) -> (Error, Fault) {
    #[derive(Deserialize)]
    struct Reported {
        error: Failure,
    }
    let said = String::from_utf8_lossy(body);
    let quote = |text: &str| quote(text, secrets.iter().copied());
    if let Ok(Reported { error }) = serde_json::from_str(&said) {
        let message = format!("{provider} reported: {}", quote(&error.to_string()));
        return (ErrorCode::Provider.error(message), error.fault().unwrap_or(Fault::Server));
    }
    let kind = quote(content_type);
    let is_page = is_page(&said);
    let what = match is_page {
        true => match page_title(&said) {
            Some(title) => format!(": a page {:?}; check its base_url", quote(title)),
            None => ": a page; check its base_url".to_owned(),
        },
        false if said.trim().is_empty() => String::new(),
        false => format!(": {}", quote(&said)),
    };
    let message = format!("{provider} answered with content-type {kind} instead of text/event-stream{what}");
    // A page is there again in a moment.
    let fault = if is_page { Fault::Misconfigured } else { Fault::Server };
    (ErrorCode::Provider.error(message), fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_redirects_target_is_told_without_secrets() {
        for (location, told) in [
            ("https://api.example/v1/messages?token=geheim#x", "https://api.example/v1/messages"),
            ("/login?next=geheim", "http://a.example/login"),
            ("//b.example", "http://b.example/"),
            ("https://user:geheim@b.example/", "https://b.example/"),
            ("http://:no", "http://:no"),
        ] {
            let error = misdirected("p", 307, "http://a.example/v1/messages", location);
            let begins = format!("p answered 307: it is to be found at {told}, which is not followed: ");
            assert!(error.message.starts_with(&begins), "{error}");
            assert!(!error.message.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn what_came_instead_of_a_stream_is_named() {
        let key = Secret::new("geheim");
        for (kind, body, told, fault) in [
            (
                "text/html; charset=utf-8",
                "<!DOCTYPE html>\n<HTML><Title lang=de>\nAnmelden bei geheim </title>...",
                " instead of text/event-stream: a page \"Anmelden bei [secret]\"; check its base_url",
                Fault::Misconfigured,
            ),
            (
                "text/html",
                "<html>",
                " instead of text/event-stream: a page; check its base_url",
                Fault::Misconfigured,
            ),
            ("application/json", r#"{"id": 7}"#, ": {\"id\": 7}", Fault::Server),
            ("text/plain", " ", " instead of text/event-stream", Fault::Server),
            (
                "application/json",
                r#"{"error":{"type":"overloaded_error","message":"geheim"}}"#,
                "p reported: overloaded_error: [secret]",
                Fault::Overloaded,
            ),
        ] {
            let (error, came_to) = not_a_stream("p", kind, body.as_bytes(), &[&key]);
            assert!(error.message.ends_with(told), "{kind} {body}: {error}");
            assert_eq!(came_to, fault, "{kind} {body}");
            assert!(error.message.starts_with("p reported") || error.message.contains(&kind[..9]), "{error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(page in "(<|title|>|İ|[ -~]|\\PC){0,30}", location in "\\PC{0,30}") {
            let _ = not_a_stream("p", &page, page.as_bytes(), &[]);
            let _ = misdirected("p", 302, "http://a", &location);
        }
    }
}
