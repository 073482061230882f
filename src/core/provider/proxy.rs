//! Which calls of providers go through an HTTP proxy, as the environment says: `HTTP_PROXY` for `http` targets,
//! `HTTPS_PROXY` for `https` ones, but for those that `NO_PROXY` names.
//!
//! All three are read as curl reads them: a name in lowercase comes before the one in capitals, an empty variable
//! says nothing, an entry of `NO_PROXY` is a host with all below it, an address, or a network such as
//! `10.0.0.0/8`. In four things they are read otherwise:
//!
//! - This host itself (`localhost`, what is below it, loopback addresses) is never asked through a proxy: a
//!   model server on this machine is of no concern to one.
//! - `HTTP_PROXY` counts in capitals too, since this is no CGI program whose callers could set it.
//! - An entry of `NO_PROXY` may end with a port, for which alone it then holds; and `*` is every host in a list
//!   too, and `*.` before a name is `.`.
//! - A proxy that names no port is asked at 80, as URLs have it.
//!
//! Deliberately absent: `ALL_PROXY`, and proxies that are spoken to by TLS or SOCKS.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

use crate::access::Secret;
use crate::error::{Error, ErrorCode};

/// What a proxy has to look like.
const EXPECTED: &str = "http://HOST:PORT, with USER:PASSWORD@ before the host where it wants them";

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The variable of the environment that names it.
    pub variable: &'static str,
    /// Its host: a name, or an address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it is shown, as the header `Proxy-Authorization` has it.
    pub authorization: Option<Secret>,
}

/// What the environment says of proxies. What is no proxy is only complained of by whoever needs it.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Result<Proxy, Error>>,
    https: Option<Result<Proxy, Error>>,
    direct: Vec<Direct>,
}

impl Proxies {
    /// Reads the variables, whose values `variable` gives.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &'static str| {
            let value = variable(name).filter(|value| !value.trim().is_empty())?;
            Some((name, value.trim().to_owned()))
        };
        let either = |lower, upper| set(lower).or_else(|| set(upper));
        let proxy = |lower, upper| either(lower, upper).map(|(name, value)| read(name, &value));
        let direct = either("no_proxy", "NO_PROXY").map(|(_, list)| {
            let entries = list.split(|c: char| c == ',' || c.is_whitespace());
            entries.filter_map(Direct::read).collect()
        });
        Self {
            http: proxy("http_proxy", "HTTP_PROXY"),
            https: proxy("https_proxy", "HTTPS_PROXY"),
            direct: direct.unwrap_or_default(),
        }
    }

    /// The proxy by which this URL is asked; none where it is asked directly.
    ///
    /// # Errors
    /// `InvalidRequest` where the variable that counts names no proxy that can be used. Its value is not repeated.
    pub fn of(&self, url: &str) -> Result<Option<Proxy>, Error> {
        let Ok(url) = Url::parse(url) else { return Ok(None) };
        let proxy = match url.scheme() {
            "http" => &self.http,
            "https" => &self.https,
            _ => &None,
        };
        let (Some(proxy), Some(host), Some(port)) = (proxy, url.host(), url.port_or_known_default()) else {
            return Ok(None);
        };
        let host = Target::of(&host);
        if host.is_this_host() || self.direct.iter().any(|direct| direct.holds(&host, port)) {
            return Ok(None);
        }
        proxy.clone().map(Some)
    }
}

/// A proxy, as a variable names it.
fn read(variable: &'static str, value: &str) -> Result<Proxy, Error> {
    let bad =
        |what: &str| Err(ErrorCode::InvalidRequest.error(format!("{variable} {what}: expected {EXPECTED}")));
    let url = if value.contains("://") { Url::parse(value) } else { Url::parse(&format!("http://{value}")) };
    let Ok(url) = url else { return bad("is no URL") };
    if url.scheme() != "http" {
        return bad(&format!("names a proxy by {}, which is not spoken", url.scheme()));
    }
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        _ => return bad("names no host"),
    };
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return bad("has more than a host and a port");
    }
    let (user, password) = (url.username(), url.password());
    let authorization = (!user.is_empty() || password.is_some()).then(|| {
        let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
        let both = [decoded(user), b":".to_vec(), decoded(password.unwrap_or_default())].concat();
        Secret::new(format!("Basic {}", STANDARD.encode(both)))
    });
    Ok(Proxy { variable, host, port: url.port().unwrap_or(80), authorization })
}

/// The host of a URL.
enum Target {
    Name(String),
    Address(IpAddr),
}

impl Target {
    fn of(host: &Host<&str>) -> Self {
        match host {
            Host::Domain(name) => Self::Name(name.trim_end_matches('.').to_ascii_lowercase()),
            Host::Ipv4(address) => Self::Address((*address).into()),
            Host::Ipv6(address) => Self::Address(address.to_canonical()),
        }
    }

    fn is_this_host(&self) -> bool {
        match self {
            Self::Name(name) => is_below(name, "localhost"),
            Self::Address(address) => address.is_loopback() || address.is_unspecified(),
        }
    }
}

/// Whether a name is this domain, or one below it.
fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug)]
struct Direct {
    hosts: Hosts,
    /// None = every port.
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum Hosts {
    All,
    Domain(String),
    /// Addresses that begin with so many bits of this one.
    Network(IpAddr, u32),
}

impl Direct {
    /// What is no host says nothing, as everywhere else.
    fn read(entry: &str) -> Option<Self> {
        if let Some(hosts) = Hosts::by_number(entry) {
            return Some(Self { hosts, port: None });
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (entry, None),
        };
        if let Some(hosts) = Hosts::by_number(host) {
            return Some(Self { hosts, port });
        }
        let name = host.strip_prefix('*').unwrap_or(host);
        let name = name.trim_start_matches('.').trim_end_matches('.').to_ascii_lowercase();
        let hosts = match (host, &*name) {
            ("*", _) => Hosts::All,
            (_, "") => return None,
            _ => Hosts::Domain(name),
        };
        Some(Self { hosts, port })
    }

    fn holds(&self, host: &Target, port: u16) -> bool {
        let is_named = match (&self.hosts, host) {
            (Hosts::All, _) => true,
            (Hosts::Domain(domain), Target::Name(name)) => is_below(name, domain),
            (Hosts::Network(network, bits), Target::Address(address)) => is_within(*address, *network, *bits),
            _ => false,
        };
        is_named && self.port.is_none_or(|only| only == port)
    }
}

impl Hosts {
    /// An address, in brackets or not, or a network.
    fn by_number(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let address: IpAddr = bare.parse().ok()?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        (bits <= all).then_some(Self::Network(address, bits))
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (address.to_bits() ^ network.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            (address.to_bits() ^ network.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let of = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        Proxies::of_environment(|name| of(name).map(str::to_owned))
    }

    /// Where a URL is asked: `HOST:PORT` of its proxy, or `-`.
    fn way(proxies: &Proxies, url: &str) -> String {
        let proxy = proxies.of(url).unwrap();
        proxy.map_or_else(|| "-".to_owned(), |proxy| format!("{}:{}", proxy.host, proxy.port))
    }

    #[test]
    fn each_scheme_has_a_proxy_and_lowercase_comes_first() {
        let none = proxies(&[("HTTP_PROXY", " "), ("ALL_PROXY", "http://p")]);
        assert_eq!((way(&none, "http://a"), way(&none, "https://a")), ("-".into(), "-".into()));
        let one = proxies(&[("HTTPS_PROXY", "http://p:3128/")]);
        assert_eq!((way(&one, "http://a"), way(&one, "https://a/v1")), ("-".into(), "p:3128".into()));
        let both =
            [("HTTP_PROXY", "up"), ("http_proxy", "low:1"), ("https_proxy", ""), ("HTTPS_PROXY", "[::1]:9")];
        let both = proxies(&both);
        assert_eq!((way(&both, "HTTP://a"), way(&both, "https://a")), ("low:1".into(), "::1:9".into()));
        assert_eq!(way(&proxies(&[("HTTP_PROXY", "up")]), "http://a"), "up:80");
        assert_eq!((way(&both, "ftp://a"), way(&both, "no url")), ("-".into(), "-".into()));
    }

    #[test]
    fn this_host_is_never_asked_by_a_proxy() {
        let proxies = proxies(&[("HTTP_PROXY", "p:1"), ("HTTPS_PROXY", "p:1")]);
        for url in [
            "http://localhost:11434",
            "https://LOCALHOST./v1",
            "http://a.localhost",
            "http://127.0.0.1:8080/v1",
            "http://127.1",
            "http://[::1]:8080",
            "http://[::ffff:127.0.0.1]",
            "http://0.0.0.0:8080",
        ] {
            assert_eq!(way(&proxies, url), "-", "{url}");
        }
        for url in ["http://notlocalhost", "http://localhost.example", "http://128.0.0.1"] {
            assert_eq!(way(&proxies, url), "p:1", "{url}");
        }
    }

    #[test]
    fn what_no_proxy_names_is_asked_directly() {
        for (list, direct, other) in [
            ("*", &["http://a", "https://10.0.0.1"][..], &[][..]),
            ("x, *", &["http://a"], &[]),
            (
                "Example.COM",
                &["http://example.com", "http://example.com.:8", "http://a.b.EXAMPLE.com"],
                &["http://notexample.com", "http://example.com.org", "http://com"],
            ),
            (
                ".example.com,\tb.org",
                &["http://example.com", "http://a.example.com", "http://b.org"],
                &["http://c.org"],
            ),
            ("*.example.com", &["http://a.example.com", "http://example.com"], &["http://aexample.com"]),
            (
                "a.org:8443",
                &["https://a.org:8443", "http://x.a.org:8443"],
                &["https://a.org", "http://a.org"],
            ),
            ("a.org:443 b.org", &["https://a.org", "http://b.org"], &["http://a.org"]),
            ("10.1.2.3", &["http://10.1.2.3:8"], &["http://10.1.2.4", "http://10.1.2.3.example"]),
            ("10.1.2.3:80", &["http://10.1.2.3"], &["http://10.1.2.3:81"]),
            ("10.1.0.0/16", &["http://10.1.255.1"], &["http://10.2.0.1"]),
            ("0.0.0.0/0", &["http://192.0.2.1"], &["http://[2001:db8::1]", "http://a"]),
            ("192.0.2.1/32", &["http://192.0.2.1"], &["http://192.0.2.0"]),
            ("2001:db8::/32", &["http://[2001:db8:ff::1]"], &["http://[2001:db9::1]"]),
            ("[2001:db8::1]:8080", &["http://[2001:db8::1]:8080"], &["http://[2001:db8::1]"]),
            ("2001:db8::1,::/0", &["http://[2001:db8::1]", "http://[::5]"], &["http://10.0.0.1"]),
            ("10.0.0.0/33, 1.2.3.4/x, :80, ., a:b:c, a.org:http", &[], &["http://10.0.0.1", "http://a.org"]),
        ] {
            let proxies = proxies(&[("no_proxy", list), ("http_proxy", "p:1"), ("https_proxy", "p:1")]);
            for url in direct {
                assert_eq!(way(&proxies, url), "-", "NO_PROXY={list:?} {url}");
            }
            for url in other {
                assert_eq!(way(&proxies, url), "p:1", "NO_PROXY={list:?} {url}");
            }
        }
    }

    #[test]
    fn a_proxy_is_shown_its_user_and_nobody_else_is() {
        let proxies = proxies(&[("HTTPS_PROXY", "http://us%65r:p%40ss%3A@p:8080")]);
        let proxy = proxies.of("https://a").unwrap().unwrap();
        let shown = proxy.authorization.as_ref().unwrap().expose();
        assert_eq!(shown, format!("Basic {}", STANDARD.encode("user:p@ss:")));
        for told in [format!("{proxy:?}"), format!("{proxies:?}")] {
            assert!(!told.contains("ss") && !told.contains(&shown[6..]), "{told}");
        }
        let alone = read("http_proxy", "user@p").unwrap();
        assert_eq!(alone.authorization.unwrap().expose(), format!("Basic {}", STANDARD.encode("user:")));
    }

    #[test]
    fn what_is_no_proxy_is_only_complained_of_where_it_counts() {
        for (value, why) in [
            ("socks5://geheim@p:1", "names a proxy by socks5, which is not spoken"),
            ("https://geheim:x@p", "names a proxy by https, which is not spoken"),
            ("http://", "is no URL"),
            ("geheim:x@p:99999", "is no URL"),
            ("http://p/path", "has more than a host and a port"),
            ("p?geheim", "has more than a host and a port"),
        ] {
            let proxies = proxies(&[("HTTPS_PROXY", value), ("NO_PROXY", "b.org")]);
            let error = proxies.of("https://a.org").unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidRequest);
            assert!(error.message.starts_with(&format!("HTTPS_PROXY {why}: expected http://")), "{error}");
            assert!(!error.message.contains("geheim"), "{error}");
            for url in ["http://a.org", "https://b.org", "https://localhost"] {
                assert_eq!(way(&proxies, url), "-", "{value} {url}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(list in ".{0,40}", value in ".{0,40}", url in "https?://.{0,30}") {
            let proxies = proxies(&[("no_proxy", &list), ("http_proxy", &value), ("https_proxy", &value)]);
            let _ = proxies.of(&url);
        }

        #[test]
        fn a_network_holds_what_begins_with_its_bits(address: u32, network: u32, bits in 0..=32u32) {
            let entry = format!("{}/{bits}", std::net::Ipv4Addr::from(network));
            let proxies = proxies(&[("no_proxy", &entry), ("http_proxy", "p:1")]);
            let url = format!("http://{}", std::net::Ipv4Addr::from(address));
            let begins = format!("{address:032b}")[..bits as usize] == format!("{network:032b}")[..bits as usize];
            let address = std::net::Ipv4Addr::from(address);
            let is_this_host = address.is_loopback() || address.is_unspecified();
            prop_assert_eq!(way(&proxies, &url) == "-", begins || is_this_host);
        }
    }
}
