//! Where a plugin may send HTTP requests.
//!
//! A grant names an origin (scheme, host, port) and how paths begin there. It is held against a URL as
//! the WHATWG's URL Standard reads it, the same reading that the request is made from: user names,
//! numeric forms of addresses and dots in paths mean one thing to both.

use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use super::address;

/// The longest grant and the longest URL, in bytes.
pub(super) const URL_BYTES_MAX: usize = 8192;

/// `http:SCHEME://HOST[:PORT][/PATH]`, `http:HOST` (https on port 443) or `http:*` (any public host).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HttpGrant {
    /// Any public host, by http on port 80 and https on port 443.
    Public,
    /// One origin; its URL has nothing behind its path.
    Origin(Url),
}

/// Why a request is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No grant is for this URL, which is given without user, password and query.
    NotGranted(String),
    /// It is no URL to send a request to, and why.
    Malformed(String),
    /// The host has this address, which is not public and not named by a grant.
    Private(IpAddr),
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGranted(url) => write!(f, "no grant for {url}"),
            Self::Malformed(why) => f.write_str(why),
            Self::Private(address) => {
                write!(f, "{address} is not a public address; a grant must name it to allow it")
            }
        }
    }
}

impl HttpGrant {
    /// Reads what stands behind `http:`.
    ///
    /// # Errors
    /// Why it is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Public);
        }
        let full = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let url = read(&full)?;
        if url.host_str().is_some_and(|host| host.contains('*')) {
            return Err("a host is named in full, or * stands for all public ones".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("it has a query or a fragment; a grant ends with the path".to_owned());
        }
        if has_dots(url.path()) {
            return Err("its path has dot segments".to_owned());
        }
        Ok(Self::Origin(url))
    }

    /// A URL that requests are sent to as it stands, and a grant of its origin.
    ///
    /// # Errors
    /// Why it is not understood.
    pub fn of_url(text: &str) -> Result<(Url, Self), String> {
        let url = read(text)?;
        if url.fragment().is_some() {
            return Err("it has a fragment".to_owned());
        }
        let mut origin = url.clone();
        origin.set_path("/");
        origin.set_query(None);
        Ok((url, Self::Origin(origin)))
    }

    /// Whether it is for requests to `url`.
    pub fn matches(&self, url: &Url) -> bool {
        match self {
            // What is told by its number is no host that has a public name; it has to be named.
            Self::Public => url.port().is_none(),
            Self::Origin(granted) => has_same_origin(granted, url) && begins(url.path(), granted.path()),
        }
    }

    /// Whether it is for everything that `other` is for.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Public, Self::Public) => true,
            // Who asks for any host can do with one the operator names, wherever it is.
            (Self::Public, Self::Origin(_)) => true,
            (Self::Origin(_), Self::Public) => false,
            (Self::Origin(_), Self::Origin(url)) => self.matches(url),
        }
    }

    /// Whether a connection to `address` may be made, to which the host of a URL that this grant matches
    /// was resolved: a public one, or one that the grant names.
    pub fn reaches(&self, address: IpAddr) -> bool {
        let is_named = match self {
            Self::Public => false,
            Self::Origin(url) => match url.host() {
                Some(Host::Ipv4(named)) => address == IpAddr::V4(named),
                Some(Host::Ipv6(named)) => address == IpAddr::V6(named),
                Some(Host::Domain(name)) => {
                    let is_localhost = name == "localhost" || name.ends_with(".localhost");
                    is_localhost && address.is_loopback()
                }
                None => false,
            },
        };
        is_named || address::is_public(address)
    }
}

impl fmt::Display for HttpGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Public => f.write_str("*"),
            Self::Origin(url) => f.write_str(url.as_str()),
        }
    }
}

/// Reads the URL of a request, and finds the grant that is for it.
///
/// # Errors
/// Why there is none.
pub fn allow<'a>(
    grants: impl IntoIterator<Item = &'a HttpGrant>,
    text: &str,
) -> Result<(Url, &'a HttpGrant), Denied> {
    let url = read(text).map_err(Denied::Malformed)?;
    if has_dots(url.path()) {
        // Servers that decode a path twice would leave the folder that was granted.
        return Err(Denied::Malformed("the path has encoded dot segments".to_owned()));
    }
    // The narrowest grant: what a wide one refuses, such as a private address, one that names it may allow.
    let width = |grant: &&HttpGrant| match grant {
        HttpGrant::Public => 0,
        HttpGrant::Origin(url) => 1 + url.path().len(),
    };
    let found = grants.into_iter().filter(|grant| grant.matches(&url)).max_by_key(width);
    match found {
        Some(grant) => Ok((url, grant)),
        None => {
            let mut shown = url;
            shown.set_query(None);
            Err(Denied::NotGranted(shown.into()))
        }
    }
}

/// A URL of http or https without user and password, its fragment left out.
fn read(text: &str) -> Result<Url, String> {
    if text.len() > URL_BYTES_MAX {
        return Err(format!("the URL has {} bytes, more than {URL_BYTES_MAX}", text.len()));
    }
    // The standard's reading drops these silently, so that a log would not show what is meant.
    if text.bytes().any(|byte| byte.is_ascii_control() || byte == b'\\') || text.trim() != text {
        return Err("the URL has control characters, backslashes or white space around it".to_owned());
    }
    let mut url = Url::parse(text).map_err(|error| format!("not a URL ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the scheme is {:?}, expected http or https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL has a user name or password".to_owned());
    }
    if url.host_str().is_none_or(|host| host.ends_with('.')) {
        return Err("the host ends with a dot".to_owned());
    }
    url.set_fragment(None);
    Ok(url)
}

fn has_same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host() == other.host()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// Whether a path is `prefix` or something below it. A prefix without a slash at its end stands for
/// itself and what is below it, never for `/v10` where `/v1` is granted.
fn begins(path: &str, prefix: &str) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// Whether a path means another one to a server that decodes it, once or more often.
fn has_dots(path: &str) -> bool {
    let mut path = path.as_bytes().to_vec();
    loop {
        let decoded: Vec<u8> = percent_encoding::percent_decode(&path).collect();
        if decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(is_dots) {
            return true;
        }
        if decoded == path {
            return false;
        }
        path = decoded;
    }
}

/// `.` or `..`, also with parameters behind it as some servers have them.
fn is_dots(segment: &[u8]) -> bool {
    let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
    matches!(name, b"." | b"..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grant(text: &str) -> HttpGrant {
        HttpGrant::parse(text).unwrap()
    }

    fn allows(granted: &str, url: &str) -> bool {
        allow([&grant(granted)], url).is_ok()
    }

    #[test]
    fn a_bare_host_is_https_on_its_port() {
        assert_eq!(grant("api.example.com").to_string(), "https://api.example.com/");
        assert_eq!(grant("api.example.com:8443/v1").to_string(), "https://api.example.com:8443/v1");
        assert_eq!(grant("HTTP://A.Example:80/x").to_string(), "http://a.example/x");
    }

    #[test]
    fn what_is_no_grant_is_refused() {
        for (text, says) in [
            ("", "not a URL"),
            ("ftp://example.com", "http or https"),
            ("https://user@example.com", "user name"),
            ("https://example.com/?q=1", "query"),
            ("https://example.com/#top", ""),
            ("https://*.example.com/", "in full"),
            ("https://example.com./", "dot"),
            ("https://example.com/%2e%2e%2fx", "dot segments"),
            (" example.com", "not a URL"),
        ] {
            match HttpGrant::parse(text) {
                Err(error) => assert!(error.contains(says), "{text}: {error}"),
                Ok(grant) => assert_eq!((says, grant.to_string().contains('#')), ("", false), "{text}"),
            }
        }
    }

    #[test]
    fn a_grant_is_for_its_origin_and_what_is_below_its_path() {
        for (granted, url, is_allowed) in [
            ("api.example.com", "https://api.example.com/any?x=1", true),
            ("api.example.com", "https://API.EXAMPLE.COM:443/", true),
            ("api.example.com", "http://api.example.com/", false),
            ("api.example.com", "https://api.example.com:444/", false),
            ("api.example.com", "https://example.com/", false),
            ("api.example.com", "https://api.example.com.evil.net/", false),
            ("api.example.com", "https://evil.net/api.example.com", false),
            ("api.example.com", "https://api.example.com@evil.net/", false),
            ("api.example.com", "https://evil.net@api.example.com/", false),
            ("api.example.com", "https://api.example.com\\@evil.net/", false),
            ("api.example.com", "https:\t//api.example.com/", false),
            ("api.example.com", "//api.example.com/", false),
            ("api.example.com", "https://api.example.com./", false),
            ("https://a.example/v1", "https://a.example/v1", true),
            ("https://a.example/v1", "https://a.example/v1/x", true),
            ("https://a.example/v1", "https://a.example/v10", false),
            ("https://a.example/v1/", "https://a.example/v1", false),
            ("https://a.example/v1/", "https://a.example/v1/../admin", false),
            ("https://a.example/v1/", "https://a.example/v1/%2e%2e/admin", false),
            ("https://a.example/v1/", "https://a.example/v1/..%2fadmin", false),
            ("https://a.example/v1/", "https://a.example/v1/%252e%252e%252fadmin", false),
            ("https://a.example/v1/", "https://a.example/v1/..%5cadmin", false),
            ("https://a.example/v1/", "https://a.example/v1/..;/admin", false),
            ("https://a.example/v1/", "https://a.example/v1/group%2Fproject", true),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/x", true),
            ("http://127.0.0.1:8080/", "http://2130706433:8080/x", true),
            ("http://127.0.0.1:8080/", "http://0x7f.1:8080/x", true),
            ("http://127.0.0.1:8080/", "http://[::ffff:127.0.0.1]:8080/x", false),
            ("*", "https://anything.example/", true),
            ("*", "http://anything.example/", true),
            ("*", "https://anything.example:8443/", false),
            ("*", "ftp://anything.example/", false),
        ] {
            assert_eq!(allows(granted, url), is_allowed, "{granted} and {url}");
        }
    }

    #[test]
    fn only_an_address_that_is_named_is_reached_besides_public_ones() {
        let at = |address: &str| address.parse::<IpAddr>().unwrap();
        assert!(grant("api.example.com").reaches(at("93.184.216.34")));
        assert!(!grant("api.example.com").reaches(at("127.0.0.1")), "a name that is bound to loopback");
        assert!(!grant("*").reaches(at("10.0.0.1")));
        assert!(grant("http://10.0.0.1/").reaches(at("10.0.0.1")));
        assert!(!grant("http://10.0.0.1/").reaches(at("10.0.0.2")));
        assert!(grant("http://localhost:8080/").reaches(at("::1")));
        assert!(!grant("http://localhost:8080/").reaches(at("192.168.1.1")));
        assert!(!grant("http://[::1]/").reaches(at("::ffff:127.0.0.1")));
    }

    #[test]
    fn the_narrowest_grant_decides() {
        let grants = [grant("*"), grant("http://127.0.0.1/"), grant("http://127.0.0.1/a/")];
        let (_, found) = allow(&grants, "http://127.0.0.1/a/b").unwrap();
        assert_eq!(found, &grants[2]);
        let denied = allow(&grants[2..], "http://127.0.0.1/b?token=x").unwrap_err();
        assert_eq!(denied.to_string(), "no grant for http://127.0.0.1/b", "a query may hold what is secret");
    }

    #[test]
    fn a_plugin_is_given_what_it_asks_for_or_less() {
        for (asked, granted, is_covered) in [
            ("*", "*", true),
            ("*", "http://10.0.0.1:8080/", true),
            ("api.example.com", "*", false),
            ("api.example.com", "https://api.example.com/v1/", true),
            ("https://api.example.com/v1/", "api.example.com", false),
            ("https://api.example.com/v1/", "https://api.example.com/v1/", true),
        ] {
            assert_eq!(grant(asked).covers(&grant(granted)), is_covered, "{asked} and {granted}");
        }
    }

    proptest! {
        /// Whatever is asked for, what is allowed goes to the host, by the scheme, on the port and below the
        /// path that were granted, as another parser of URLs reads it.
        #[test]
        fn nothing_outside_a_grant_is_allowed(
            scheme in "(https?|HTTPS?|ftp):?/{0,3}",
            before in "([a-z0-9.@\\\\#?%/]{0,12})?",
            host in "(a\\.example|b\\.example|a\\.example\\.|127\\.0\\.0\\.1|0x7f\\.1|\\[::1\\])",
            after in "(:[0-9]{0,4})?[a-z0-9./%@\\\\#?;:]{0,24}",
        ) {
            let text = format!("{scheme}{before}{host}{after}");
            let granted = [grant("https://a.example/v1/"), grant("http://127.0.0.1:8080/")];
            if let Ok((url, _)) = allow(&granted, &text) {
                let uri: http::Uri = url.as_str().parse().unwrap();
                let place = (uri.scheme_str().unwrap(), uri.host().unwrap(), uri.port_u16());
                prop_assert!(!uri.authority().unwrap().as_str().contains('@'), "{}", url);
                match place {
                    ("https", "a.example", None) => prop_assert!(uri.path().starts_with("/v1/"), "{}", url),
                    ("http", "127.0.0.1", Some(8080)) => {}
                    other => prop_assert!(false, "{text}: {other:?}"),
                }
            }
        }

        /// A grant reads back as it is shown, and covers itself.
        #[test]
        fn grants_read_back(text in "(https?://)?[a-z0-9.:\\[\\]*/%]{1,24}") {
            if let Ok(grant) = HttpGrant::parse(&text) {
                prop_assert_eq!(&HttpGrant::parse(&grant.to_string()).unwrap(), &grant);
                prop_assert!(grant.covers(&grant));
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = HttpGrant::parse(&text);
            let _ = allow([&HttpGrant::Public], &text);
        }
    }
}
