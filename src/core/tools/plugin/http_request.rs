//! A plugin's HTTP request: as its guest writes it, and as it goes on where a server redirects it.
//!
//! The guest's form is that of Extism's plugin development kits: JSON with `url`, `method` and `headers`,
//! and the body beside it. What belongs to the connection is the host's alone to say, so that a guest
//! can't make one request look like two.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use url::Url;

/// The most headers a request may have.
pub(super) const HEADERS_MAX: usize = 64;

/// The most bytes of all its headers together.
pub(super) const HEADER_BYTES_MAX: usize = 16 * 1024;

/// The most redirects of one request that are followed.
pub const REDIRECTS_MAX: usize = 5;

/// A request that a guest wants to have sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// One of [`METHODS`].
    pub method: Method,
    /// The URL, not yet held against any grant.
    pub url: String,
    /// The headers, in no order; none of [`is_reserved`].
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body; empty where it has none.
    pub body: Vec<u8>,
}

/// The methods a guest may use.
pub(super) const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

/// Headers that go along to another origin: they say nothing of who asks.
const CARRIED: [HeaderName; 4] =
    [header::ACCEPT, header::ACCEPT_LANGUAGE, header::CONTENT_TYPE, header::USER_AGENT];

/// The guest's JSON. What else is in it, is not looked at: kits add to it.
#[derive(Deserialize)]
struct Written {
    url: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

impl HttpRequest {
    /// Reads a guest's request.
    ///
    /// # Errors
    /// Why it is not sent.
    pub fn read(json: &[u8], body: Vec<u8>) -> Result<Self, String> {
        let written: Written = serde_json::from_slice(json)
            .map_err(|error| format!("the request is not understood: {error}"))?;
        let method = written.method.as_deref().unwrap_or("GET").to_ascii_uppercase();
        let Some(method) = METHODS.into_iter().find(|known| known.as_str() == method) else {
            let known = METHODS.map(|method| method.to_string()).join(", ");
            return Err(format!("the method {method:?} is not one of {known}"));
        };
        if written.headers.len() > HEADERS_MAX {
            return Err(format!("it has {} headers, more than {HEADERS_MAX}", written.headers.len()));
        }
        let bytes: usize = written.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > HEADER_BYTES_MAX {
            return Err(format!("it has {bytes} bytes of headers, more than {HEADER_BYTES_MAX}"));
        }
        let mut headers = Vec::with_capacity(written.headers.len());
        for (name, value) in &written.headers {
            let bad = |what: &str| format!("the header {name:?} {what}");
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("has no valid name"))?;
            if is_reserved(&known) {
                return Err(bad("is set by the host"));
            }
            let value =
                HeaderValue::from_str(value).map_err(|_| bad("has control characters in its value"))?;
            headers.push((known, value));
        }
        Ok(Self { method, url: written.url, headers, body })
    }

    /// The request that follows an answer with this status and `location` to this one, which was sent to
    /// `url`; none where the answer is what the guest gets. Its URL is to be held against the grants as
    /// any other.
    ///
    /// # Errors
    /// Why it can't be followed.
    pub fn redirected(self, url: &Url, status: u16, location: Option<&str>) -> Result<Option<Self>, String> {
        let is_get = matches!(self.method, Method::GET | Method::HEAD);
        let keeps_method = match StatusCode::from_u16(status) {
            Ok(StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND) => is_get || self.method != Method::POST,
            Ok(StatusCode::SEE_OTHER) => is_get,
            Ok(StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) => true,
            _ => return Ok(None),
        };
        let Some(location) = location else { return Ok(None) };
        let next = url.join(location).map_err(|error| format!("it is redirected to no URL ({error})"))?;
        if url.scheme() == "https" && next.scheme() != "https" {
            return Err("it is redirected from https to a connection that others can read".to_owned());
        }
        let Self { mut method, mut headers, mut body, .. } = self;
        if !keeps_method {
            method = Method::GET;
            body = Vec::new();
            headers.retain(|(name, _)| *name != header::CONTENT_TYPE);
        }
        if next.origin() != url.origin() {
            headers.retain(|(name, _)| CARRIED.contains(name));
        }
        Ok(Some(Self { method, url: next.into(), headers, body }))
    }
}

/// Whether a header belongs to the connection or its framing, which is the host's to say.
fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [HeaderName; 10] = [
        header::ACCEPT_ENCODING,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::HOST,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
    ];
    RESERVED.contains(name) || name.as_str().starts_with("proxy-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(json: &str) -> Result<HttpRequest, String> {
        HttpRequest::read(json.as_bytes(), b"body".to_vec())
    }

    fn names(request: &HttpRequest) -> Vec<&str> {
        request.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn reads_what_the_kits_write() {
        let request =
            read(r#"{"url":"https://a.example/","headers":{"X-One":"1"},"method":"post","more":0}"#);
        let request = request.unwrap();
        assert_eq!((request.method.as_str(), request.url.as_str()), ("POST", "https://a.example/"));
        assert_eq!((names(&request), request.body.as_slice()), (vec!["x-one"], &b"body"[..]));
        assert_eq!(read(r#"{"url":"x"}"#).unwrap().method, Method::GET);
        assert_eq!(read(r#"{"url":"x","method":null}"#).unwrap().method, Method::GET);
    }

    #[test]
    fn what_could_pass_for_another_request_is_refused() {
        let many: Vec<String> = (0..=HEADERS_MAX).map(|at| format!("\"x{at}\":\"\"")).collect();
        let large = "x".repeat(HEADER_BYTES_MAX);
        for (json, says) in [
            (r#"{"method":"GET"}"#.to_owned(), "missing field `url`"),
            (r#"{"url":"x","method":"CONNECT"}"#.to_owned(), "\"CONNECT\" is not one of GET"),
            (r#"{"url":"x","method":"GET / HTTP/1.1\r\nX: y"}"#.to_owned(), "is not one of"),
            (r#"{"url":"x","headers":{"a":"b\r\nHost: evil"}}"#.to_owned(), "control characters"),
            (r#"{"url":"x","headers":{"a\r\nb":"c"}}"#.to_owned(), "no valid name"),
            (r#"{"url":"x","headers":{"":"c"}}"#.to_owned(), "no valid name"),
            (r#"{"url":"x","headers":{"Host":"evil"}}"#.to_owned(), "set by the host"),
            (r#"{"url":"x","headers":{"Content-Length":"0"}}"#.to_owned(), "set by the host"),
            (r#"{"url":"x","headers":{"transfer-encoding":"chunked"}}"#.to_owned(), "set by the host"),
            (r#"{"url":"x","headers":{"Proxy-Authorization":"x"}}"#.to_owned(), "set by the host"),
            (format!(r#"{{"url":"x","headers":{{{}}}}}"#, many.join(",")), "65 headers"),
            (format!(r#"{{"url":"x","headers":{{"a":"{large}"}}}}"#), "bytes of headers"),
            ("[".to_owned(), "not understood"),
        ] {
            let error = read(&json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn a_redirect_keeps_what_the_standard_says() {
        let sent = || {
            let headers = r#"{"authorization":"a","accept":"b","content-type":"c","x-key":"d"}"#;
            read(&format!(r#"{{"url":"-","method":"POST","headers":{headers}}}"#)).unwrap()
        };
        let url = Url::parse("https://a.example/one/two?q=1").unwrap();
        for (status, location, next, method, headers) in [
            (302, "three", "https://a.example/one/three", "GET", vec!["accept", "authorization", "x-key"]),
            (303, "/", "https://a.example/", "GET", vec!["accept", "authorization", "x-key"]),
            (
                307,
                "/",
                "https://a.example/",
                "POST",
                vec!["accept", "authorization", "content-type", "x-key"],
            ),
            (308, "//b.example/", "https://b.example/", "POST", vec!["accept", "content-type"]),
            (301, "https://a.example:444/", "https://a.example:444/", "GET", vec!["accept"]),
        ] {
            let request = sent().redirected(&url, status, Some(location)).unwrap().unwrap();
            assert_eq!((request.url.as_str(), request.method.as_str()), (next, method), "{status}");
            assert_eq!(names(&request), headers, "{status}");
            assert_eq!(request.body.is_empty(), method == "GET", "{status}");
        }
        assert_eq!(sent().redirected(&url, 200, Some("/")), Ok(None));
        assert_eq!(sent().redirected(&url, 304, Some("/")), Ok(None));
        assert_eq!(sent().redirected(&url, 302, None), Ok(None));
        assert!(sent().redirected(&url, 302, Some("http://a.example/")).unwrap_err().contains("https"));
        assert!(sent().redirected(&url, 302, Some("https://")).unwrap_err().contains("no URL"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(json in any::<Vec<u8>>(), location in any::<String>(), status in any::<u16>()) {
            let _ = HttpRequest::read(&json, Vec::new());
            let url = Url::parse("http://a.example/").unwrap();
            let _ = read(r#"{"url":"x"}"#).unwrap().redirected(&url, status, Some(&location));
        }

        /// Whatever a guest writes, no line of a request can end before the host ends it.
        #[test]
        fn no_header_holds_a_line_end(name in any::<String>(), value in any::<String>()) {
            let json = serde_json::json!({ "url": "x", "headers": { name: value } }).to_string();
            if let Ok(request) = read(&json) {
                for (name, value) in request.headers {
                    let bytes = [name.as_str().as_bytes(), value.as_bytes()].concat();
                    prop_assert!(!bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
                }
            }
        }
    }
}
