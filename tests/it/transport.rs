//! How requests travel to model providers: through the proxies of the environment or past them, on connections that
//! servers close just then, by TLS with certificates of one's own; and what is said where they do not arrive.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::NOBODY;
use crate::support::client::{Client, Stream};
use crate::support::daemon::{self, Daemon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Turn, Upstream};

const KINDS: [&str; 2] = ["anthropic", "openai"];

/// `main` on a provider of this kind, with these lines besides.
fn config(kind: &str, base_url: &str, more: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\n{more}\
         [agents.main]\nprovider = \"up\"\nmodel = \"test-model\"\n"
    )
}

/// What a daemon on this provider is answered, in this environment.
fn ask(kind: &str, base_url: &str, env: &[(&str, &str)]) -> Stream {
    let daemon = Daemon::with_env(&config(kind, base_url, ""), env);
    Client::connect(daemon.address).chat("ada", "hi")
}

/// The URL of an upstream under a name that only a proxy knows.
fn elsewhere(upstream: &Upstream) -> String {
    let scheme = upstream.base_url().split("://").next().unwrap().to_owned();
    format!("{scheme}://models.example:{}", upstream.address().port())
}

#[test]
fn the_proxies_of_the_environment_are_used_and_shown_who_asks() {
    let shown = format!("Basic {}", STANDARD.encode("ada:p@ss geheim"));
    for kind in KINDS {
        for tls in [false, true] {
            let upstream = if tls { Upstream::start_tls() } else { Upstream::start() };
            let proxy = Proxy::start(Some(shown.as_str()));
            let home = daemon::home();
            let ca = if tls { "ca_file = \"ca.pem\"\n" } else { "" };
            if tls {
                std::fs::write(home.path().join("ca.pem"), upstream.ca_pem()).unwrap();
            }
            let config = config(kind, &elsewhere(&upstream), ca) + "[log]\nfilter = \"trace\"\n";
            let address = format!("http://ada:p%40ss%20geheim@{}", proxy.address());
            let variable = if tls { "https_proxy" } else { "HTTP_PROXY" };
            let mut daemon = Daemon::at(home, &config, &[(variable, address.as_str())]);
            let mut client = Client::connect(daemon.address);
            for prompt in ["one", "two"] {
                let answer = client.chat("ada", prompt);
                assert_eq!(answer.text(), format!("You said: {prompt}"), "{kind}: {answer:?}");
            }
            let heads = proxy.heads();
            assert_eq!(heads.len(), 1, "{kind}: the connection is kept: {heads:?}");
            let port = upstream.address().port();
            let begins = match tls {
                true => format!("CONNECT models.example:{port} HTTP/1.1\r\n"),
                false => format!("POST http://models.example:{port}/"),
            };
            assert!(heads[0].starts_with(&begins), "{kind}: {heads:?}");
            let request = &upstream.requests()[0].head.to_ascii_lowercase();
            assert!(request.contains(&format!("host: models.example:{port}\r\n")), "{kind}: {request}");
            assert_eq!(request.contains("proxy-authorization"), !tls, "{kind}: {request}");

            // So do those who look at a provider from outside.
            let mut models = daemon::command(daemon.home());
            let (_, out, said) = daemon::output(models.arg("models").env(variable, &address));
            assert!(proxy.heads().len() > 1, "{kind}: {out}{said}");
            daemon.terminate();
            let told = daemon.log() + &out + &said;
            for secret in ["geheim", &shown["Basic ".len()..]] {
                assert!(!told.contains(secret), "{kind}: {secret} is told");
            }
        }
    }
}

#[test]
fn what_is_on_this_host_or_named_is_asked_directly() {
    let (upstream, proxy) = (Upstream::start(), Proxy::start(None));
    let address = proxy.address().to_string();
    for base_url in [upstream.base_url(), format!("http://localhost:{}", upstream.address().port())] {
        let answer = ask("openai", &base_url, &[("HTTP_PROXY", address.as_str()), ("NO_PROXY", "")]);
        assert_eq!(answer.text(), "You said: hi", "{base_url}: {answer:?}");
    }
    // It would answer by the proxy, and is nowhere without.
    let named = [("http_proxy", &*address), ("no_proxy", "models.example")];
    let answer = ask("openai", &elsewhere(&upstream), &named);
    assert!(answer.error().contains("host not found"), "{answer:?}");
    assert_eq!(proxy.heads(), [""; 0]);
    let answer = ask(
        "openai",
        &elsewhere(&upstream),
        &[("http_proxy", address.as_str()), ("no_proxy", "other.example")],
    );
    assert_eq!(answer.text(), "You said: hi", "{answer:?}");
}

#[test]
fn what_is_wrong_with_a_proxy_is_said() {
    let proxy = Proxy::start(Some("Basic x"));
    let there = proxy.address();
    for (scheme, value, says) in [
        (
            "https",
            format!("{there}"),
            format!("the proxy at {there}, which HTTPS_PROXY names, wants a user and a password"),
        ),
        ("http", format!("{there}"), "407 (the proxy wants a user and a password".to_owned()),
        (
            "https",
            format!("http://u:geheim@{NOBODY}"),
            format!("connection refused by the proxy at {NOBODY}, which HTTPS_PROXY names"),
        ),
        (
            "http",
            format!("http://u:geheim@{NOBODY}"),
            format!("connection refused by the proxy at {NOBODY}, which HTTP_PROXY names"),
        ),
    ] {
        let variable = format!("{}_PROXY", scheme.to_ascii_uppercase());
        let failed =
            ask("openai", &format!("{scheme}://models.example/v1"), &[(variable.as_str(), value.as_str())]);
        assert!(failed.error().contains(&says), "{says}: {failed:?}");
        assert!(!failed.error().contains("geheim"), "{failed:?}");
    }
    // One that can't be used is told before anything begins, where it counts.
    let home = daemon::home();
    std::fs::write(home.path().join("gateway.toml"), config("openai", "https://models.example/v1", ""))
        .unwrap();
    let mut serve = daemon::command(home.path());
    serve.args(["serve", "--listen", "127.0.0.1:0"]).env("HTTPS_PROXY", "socks5://u:geheim@p:1");
    let (status, _, said) = daemon::output(&mut serve);
    assert_ne!(status, 0, "{said}");
    let expected =
        "provider up: HTTPS_PROXY names a proxy by socks5, which is not spoken: expected http://HOST:PORT";
    assert!(said.contains(expected) && !said.contains("geheim"), "{said}");
}

/// Behind a proxy that closes each connection when the next request comes.
#[test]
fn a_kept_connection_that_was_closed_is_replaced_without_a_word() {
    for kind in KINDS {
        for tls in [false, true] {
            let upstream = if tls { Upstream::start_tls() } else { Upstream::start() };
            let home = daemon::home();
            if tls {
                std::fs::write(home.path().join("ca.pem"), upstream.ca_pem()).unwrap();
            }
            let ca = if tls { "ca_file = \"ca.pem\"\n" } else { "" };
            let daemon = Daemon::at(home, &config(kind, &upstream.base_url(), ca), &[]);
            let mut client = Client::connect(daemon.address);
            client.chat("ada", "first");
            for round in 0..10 {
                upstream.then(Turn::Close);
                let answer = client.chat("ada", "hi");
                let told = (answer.text(), answer.error());
                assert_eq!(told, ("You said: hi".to_owned(), ""), "{kind}, {tls}, {round}: {answer:?}");
                // It leaves a connection to the next one.
                client.chat("ada", "between");
            }
            // Once, and not for ever.
            upstream.then(Turn::Close).then(Turn::Close);
            let before = upstream.requests().len();
            let failed = client.chat("ada", "hi");
            assert!(failed.error().contains("closed"), "{kind}, {tls}: {failed:?}");
            assert_eq!(upstream.requests().len() - before, 2, "{kind}, {tls}");
        }
    }
}

#[test]
fn a_servers_own_certificate_is_taken_where_it_is_named() {
    let (upstream, other) = (Upstream::start_self_signed(), Upstream::start_self_signed());
    let answer = |trusted: Option<&Upstream>| {
        let home = daemon::home();
        let ca = trusted.map_or("", |trusted| {
            std::fs::write(home.path().join("ca.pem"), trusted.ca_pem()).unwrap();
            "ca_file = \"ca.pem\"\n"
        });
        let daemon = Daemon::at(home, &config("openai", &upstream.base_url(), ca), &[]);
        Client::connect(daemon.address).chat("ada", "hi")
    };
    let taken = answer(Some(&upstream));
    assert_eq!(taken.text(), "You said: hi", "{taken:?}");
    for trusted in [None, Some(&other)] {
        let failed = answer(trusted);
        assert!(failed.error().contains("ca_file"), "{failed:?}");
    }
    assert_eq!((upstream.requests().len(), other.requests().len()), (1, 0), "nothing was told to a stranger");
}

#[test]
fn what_does_not_arrive_says_why() {
    let plain = Upstream::start();
    let secure = Upstream::start_self_signed();
    // A server that answers a handshake in plain HTTP, as most do.
    let answers = TcpListener::bind("127.0.0.1:0").unwrap();
    let no_tls = format!("https://{}", answers.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut socket, _) = answers.accept().unwrap();
        let _ = socket.read(&mut [0; 1024]);
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    });
    let page = |title: &str| format!("<html><head><title>{title}</title></head></html>");
    for (url, turn, says) in [
        (
            format!("http://{NOBODY}"),
            None,
            format!("connection refused: does the server at {NOBODY} run? check base_url"),
        ),
        (no_tls, None, "what answers does not speak TLS".to_owned()),
        (
            format!("http://{}", secure.address()),
            None,
            "the server speaks TLS: base_url has to begin with https://".to_owned(),
        ),
        (
            plain.base_url(),
            Some(Turn::Redirect("/elsewhere/v1?key=geheim".into())),
            format!(
                "up answered 307: it is to be found at http://{}/elsewhere/v1, which is not followed",
                plain.address()
            ),
        ),
        (
            plain.base_url(),
            Some(Turn::Page(page("Log in to the network"))),
            "content-type text/html instead of text/event-stream: a page \"Log in to the network\""
                .to_owned(),
        ),
        (
            plain.base_url(),
            Some(Turn::Status(400, None, page("The plain HTTP request was sent to HTTPS port"))),
            "up answered 400: The plain HTTP request was sent to HTTPS port".to_owned(),
        ),
    ] {
        if let Some(turn) = turn {
            plain.then(turn);
        }
        let failed = ask("openai", &url, &[]);
        assert!(failed.error().contains(&says), "{url}: {says}: {failed:?}");
        assert!(!failed.error().contains("geheim"), "{failed:?}");
    }
    server.join().unwrap();
}
