//! Which HTTP requests reach a handshake at all.
//!
//! While loopback is open, the operator's browser is the way in for others: a page of another
//! origin may open a WebSocket to 127.0.0.1, a name that resolves to 127.0.0.1 makes a foreign page
//! "the same origin", and a reverse proxy on the same host makes everybody local. So there the
//! `Origin` must be the daemon's own or listed, the `Host` a loopback name, and nothing may have
//! been forwarded. Programs that are no browsers send no `Origin`. Where a credential is required,
//! only a foreign `Origin` is refused.

use std::net::{IpAddr, SocketAddr};

use crate::error::{Error, ErrorCode};

/// What the gate looks at in a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestFacts<'a> {
    /// The `Host` header (or the authority of the request target).
    pub host: Option<&'a str>,
    /// The `Origin` header.
    pub origin: Option<&'a str>,
    /// Whether any header is one that [`is_forwarding_header`] knows.
    pub forwarded: bool,
}

/// The rules for one daemon.
#[derive(Clone, Debug)]
pub struct Gate {
    ports: Vec<u16>,
    allowed: Vec<String>,
}

impl Gate {
    /// For the addresses really bound, and `gateway.allowed_origins`.
    pub fn new(listen: &[SocketAddr], allowed_origins: &[String]) -> Self {
        Self {
            ports: listen.iter().map(SocketAddr::port).collect(),
            allowed: allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect(),
        }
    }

    /// Whether a request may go on to its handshake. `credentials_required` as
    /// [`Authority::credentials_required`](super::authority::Authority::credentials_required) says for it.
    ///
    /// # Errors
    /// `Forbidden`, with the header that is wrong and what to do.
    pub fn admit(&self, facts: &RequestFacts<'_>, credentials_required: bool) -> Result<(), Error> {
        let refuse = |why: String| Err(ErrorCode::Forbidden.error(why));
        if !credentials_required {
            if facts.forwarded {
                return refuse(
                    "forwarded requests are refused while no credential is required: set CLAWMUX_TOKEN"
                        .into(),
                );
            }
            match facts.host.map(split_port) {
                Some(Some((name, _))) if is_loopback_name(name) => {}
                Some(_) => {
                    return refuse(
                        "the Host header is not a loopback name: use 127.0.0.1 or localhost, or set CLAWMUX_TOKEN"
                            .into(),
                    );
                }
                None => return refuse("the Host header is missing".into()),
            }
        }
        match facts.origin {
            Some(origin) if !self.is_own(origin, facts.host) && !self.is_listed(origin) => refuse(
                "the Origin of this page is not allowed: list it in gateway.allowed_origins".to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// A page the daemon served itself: its origin is the host that was asked, or a loopback name
    /// with a port of the daemon.
    fn is_own(&self, origin: &str, host: Option<&str>) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        if host.is_some_and(|host| host.eq_ignore_ascii_case(authority)) {
            return true;
        }
        split_port(authority).is_some_and(|(name, port)| {
            is_loopback_name(name) && self.ports.contains(&port.unwrap_or(default_port))
        })
    }

    fn is_listed(&self, origin: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }
}

/// Whether a header (its name in any case) tells of a proxy.
pub fn is_forwarding_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    const NAMES: [&str; 11] = [
        "forwarded",
        "via",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-proxyuser-ip",
        "true-client-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "x-appengine-user-ip",
        "x-amzn-trace-id",
    ];
    const PREFIXES: [&str; 6] = ["x-forwarded", "x-original-", "x-envoy-", "cf-", "tailscale-", "x-azure-"];
    NAMES.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `name[:port]`, with an IPv6 address in brackets. None where it is neither.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, Some(port.strip_prefix(':')?)),
        None => match authority.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (authority, None),
        },
    };
    match port {
        None => Some((name, None)),
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => Some((name, Some(port.parse().ok()?))),
        Some(_) => None,
    }
}

/// `localhost`, 127.0.0.0/8 or `::1`.
fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gate() -> Gate {
        Gate::new(&["127.0.0.1:18789".parse().unwrap()], &["https://App.example.com".into()])
    }

    fn admit(host: Option<&str>, origin: Option<&str>, forwarded: bool, required: bool) -> Result<(), Error> {
        gate().admit(&RequestFacts { host, origin, forwarded }, required)
    }

    #[test]
    fn programs_on_loopback_come_in() {
        for host in [
            "127.0.0.1:18789",
            "localhost:18789",
            "LOCALHOST",
            "127.1.2.3",
            "[::1]:18789",
            "[::1]",
            "localhost:1",
        ] {
            assert!(admit(Some(host), None, false, false).is_ok(), "{host}");
        }
    }

    #[test]
    fn names_that_merely_lead_to_loopback_do_not() {
        for host in [
            "evil.example:18789",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "0.0.0.0:18789",
            "10.0.0.1",
            "",
            "localhost:x",
            "[::1",
            "::1",
            "127.0.0.1:18789:1",
            "localhost.",
            "user@localhost",
            "[::1]x",
        ] {
            assert!(admit(Some(host), None, false, false).is_err(), "{host}");
            assert!(admit(Some(host), None, false, true).is_ok(), "{host}: a credential decides");
        }
        assert!(admit(None, None, false, false).is_err());
    }

    #[test]
    fn pages_of_other_origins_do_not_come_in() {
        let host = Some("127.0.0.1:18789");
        for origin in [
            "http://127.0.0.1:18789",
            "http://localhost:18789",
            "http://[::1]:18789",
            "https://localhost:18789",
            "https://app.example.com",
        ] {
            for required in [false, true] {
                assert!(admit(host, Some(origin), false, required).is_ok(), "{origin}");
            }
        }
        for origin in [
            "http://localhost:3000",
            "https://evil.example",
            "null",
            "",
            "http://localhost",
            "file://",
            "http://evil.example:18789",
            "https://app.example.com.evil.example",
            "https://app.example.com:444",
            "chrome-extension://127.0.0.1:18789",
            "http://localhost:18789.evil.example",
            "localhost:18789",
        ] {
            for required in [false, true] {
                let error = admit(host, Some(origin), false, required).expect_err(origin);
                assert!(error.message.contains("gateway.allowed_origins"), "{}", error.message);
            }
        }
    }

    #[test]
    fn the_origin_of_the_host_that_was_asked_is_our_own() {
        let through_a_tunnel = (Some("localhost:9999"), Some("http://localhost:9999"));
        assert!(admit(through_a_tunnel.0, through_a_tunnel.1, false, false).is_ok());
        let rebound = (Some("evil.example:18789"), Some("http://evil.example:18789"));
        assert!(admit(rebound.0, rebound.1, false, false).is_err(), "the Host gives it away");
        assert!(
            admit(Some("claw.example"), Some("https://claw.example"), true, true).is_ok(),
            "proxied, with token"
        );
    }

    #[test]
    fn nothing_forwarded_comes_in_without_a_credential() {
        assert!(admit(Some("localhost"), None, true, false).is_err());
        assert!(admit(Some("localhost"), None, true, true).is_ok());
        for name in [
            "Forwarded",
            "X-Forwarded-For",
            "x-forwarded-host",
            "X-Forwarded",
            "X-Original-Forwarded-For",
            "X-Real-IP",
            "via",
            "CF-Ray",
            "CF-Connecting-IP",
            "Fly-Client-IP",
            "X-Envoy-External-Address",
            "Tailscale-User-Login",
        ] {
            assert!(is_forwarding_header(name), "{name}");
        }
        for name in ["host", "origin", "user-agent", "x-request-id", "sec-websocket-key"] {
            assert!(!is_forwarding_header(name), "{name}");
        }
        assert!(!is_forwarding_header("x-forward"));
    }

    proptest! {
        #[test]
        fn no_header_panics(host in any::<String>(), origin in any::<String>(), required in any::<bool>()) {
            let _ = admit(Some(&host), Some(&origin), false, required);
        }

        #[test]
        fn an_open_gate_wants_a_loopback_host(host in "[a-z0-9.:\\[\\]-]{0,24}") {
            if admit(Some(&host), None, false, false).is_ok() {
                let known = host.starts_with("localhost") || host.starts_with("127.") || host.starts_with("[::1]");
                prop_assert!(known || host.starts_with("[0") || host.starts_with("[:"), "{}", host);
            }
        }
    }
}
