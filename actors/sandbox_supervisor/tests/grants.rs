//! What plugins do with their grants, and can't do beyond them: HTTP, secrets, the store.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use actix::Addr;
use clawmux_core::access::Secret;
use clawmux_core::ids::Owner;
use clawmux_core::tools::plugin::{Capability, PluginSecret, SecretPlace};
use futures::future::BoxFuture;

use super::*;
use crate::outbound::fetch::Fetcher;
use crate::outbound::resolver::{Lookup, Resolver};
use crate::outbound::tls::client_config;
use crate::plugin::HostServices;
use crate::store::{Stop, Store};

/// A server of HTTP that answers as `answer` says of the head of a request, and how often it was asked.
struct Server {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, answer) = (Arc::clone(&heads), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream: TcpStream = stream.unwrap();
                    let mut head = String::new();
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    while let Some(Ok(line)) =
                        lines.next().filter(|line| !matches!(line, Ok(line) if line.is_empty()))
                    {
                        head.push_str(&line);
                        head.push('\n');
                    }
                    seen.lock().unwrap().push(head.clone());
                    let _ = stream.write_all(answer(&head).as_bytes());
                });
            }
        });
        Self { address, heads }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

/// Answers each look-up with the next of these, and then with the last of them.
struct Scripted(Mutex<VecDeque<SocketAddr>>);

impl Lookup for Scripted {
    fn lookup(&self, _: &str, port: u16) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
        let mut answers = self.0.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().copied() };
        Box::pin(async move { Ok(next.map(|at| SocketAddr::new(at.ip(), port)).into_iter().collect()) })
    }
}

fn resolver(answers: &[&str]) -> Resolver {
    let answers = answers.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
    Resolver::new(Scripted(Mutex::new(answers)))
}

fn services(resolver: Resolver) -> HostServices {
    HostServices {
        fetcher: Some(Fetcher::new(resolver, client_config(None).unwrap())),
        store: None,
        embedder: None,
    }
}

/// The plugin of this name that ships, with these grants.
fn granted(name: &str, capabilities: &[String]) -> config::Plugin {
    let mut entry = entry(name, "unused", Limits::default());
    entry.path = None;
    entry.limits.timeout = Duration::from_secs(20);
    entry.capabilities = Some(capabilities.iter().map(|text| Capability::parse(text).unwrap()).collect());
    entry
}

async fn start_with(
    plugin: config::Plugin,
    services: HostServices,
) -> (tempfile::TempDir, Addr<SandboxSupervisor>) {
    let home = home(&[]);
    let to = supervisor(&home, vec![plugin]).with_services(services).start();
    (home, to)
}

async fn fetch(to: &Addr<SandboxSupervisor>, url: &str) -> ToolResult {
    result(to, "fetch", json!({ "url": url })).await
}

#[actix::test]
async fn a_page_that_is_granted_is_read_and_no_other() {
    let server = Server::start(|head| ok(&format!("asked for {}", head.lines().next().unwrap())));
    let entry = granted("fetch", &[format!("http:{}", server.url("/open"))]);
    let (_home, to) = start_with(entry, services(Resolver::default())).await;
    let read = fetch(&to, &server.url("/open/page?q=1")).await;
    assert_eq!((read.content.as_str(), read.is_error), ("asked for GET /open/page?q=1 HTTP/1.1", false));
    for (url, says) in [
        (server.url("/other"), "no grant for"),
        (server.url("/opened"), "no grant for"),
        (server.url("/open/../other"), "no grant for"),
        (server.url("/open/%2e%2e/other"), "no grant for"),
        (server.url("/open/%252e%252e/other"), "encoded dot segments"),
        (format!("http://localhost:{}/open", server.address.port()), "no grant for"),
        (format!("http://user@{}/open", server.address), "user name"),
        (format!("http://{}@evil.example/open", server.address), "user name"),
        (format!("http://{}\\@evil.example/open", server.address), "backslashes"),
        (format!("ftp://{}/open", server.address), "\"ftp\""),
        ("file:///etc/passwd".to_owned(), "\"file\""),
    ] {
        let refused = fetch(&to, &url).await;
        assert!(refused.is_error && refused.content.contains(says), "{url}: {}", refused.content);
    }
    assert_eq!(server.heads().len(), 1, "what is refused is not asked");
}

#[actix::test]
async fn no_form_of_a_private_address_is_reached_by_a_grant_of_all_public_hosts() {
    let (_home, to) = start_with(
        granted("fetch", &["http:*".to_owned()]),
        services(resolver(&["127.0.0.1", "10.0.0.7", "::1", "::ffff:192.168.1.1", "fe80::1", "100.64.0.1"])),
    )
    .await;
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://0.0.0.0/",
        // By name, as the resolver has it, time after time.
        "http://one.example/",
        "http://two.example/",
        "http://three.example/",
        "http://four.example/",
        "http://five.example/",
        "http://six.example/",
    ] {
        let refused = fetch(&to, url).await;
        assert!(refused.content.contains("is not a public address"), "{url}: {}", refused.content);
    }
    let refused = fetch(&to, "http://one.example:8080/").await;
    assert!(refused.content.contains("no grant for"), "{}", refused.content);
}

#[actix::test]
async fn each_redirect_is_held_against_the_grants() {
    let inner = Server::start(|_| ok("secret"));
    let (to_inner, port) = (inner.url("/"), inner.address.port());
    let server = Server::start(move |head| match head.split(' ').nth(1).unwrap() {
        "/in" => redirect(&to_inner),
        "/name" => redirect(&format!("http://localhost:{port}/")),
        "/loop" => redirect("/loop"),
        "/twice" => redirect("/once"),
        "/once" => redirect("page"),
        "/bad" => redirect("http://["),
        path => ok(path),
    });
    let entry = granted("fetch", &[format!("http:{}", server.url("/"))]);
    let (_home, to) = start_with(entry, services(Resolver::default())).await;
    assert_eq!(fetch(&to, &server.url("/twice")).await.content, "/page");
    for (path, says) in [
        ("/in", "no grant for"),
        ("/name", "no grant for http://localhost"),
        ("/loop", "redirected more than 5 times"),
        ("/bad", "redirected to no URL"),
    ] {
        let refused = fetch(&to, &server.url(path)).await;
        assert!(refused.is_error && refused.content.contains(says), "{path}: {}", refused.content);
    }
    assert!(inner.heads().is_empty());
}

#[actix::test]
async fn a_name_that_means_another_host_a_moment_later_is_not_followed_there() {
    let server = Server::start(|_| ok("inner"));
    let port = server.address.port();
    // Looked at is what is connected to: the second answer, of this host, plays no part in the first request,
    // and is refused in the second one.
    let resolver = resolver(&["203.0.113.1", "127.0.0.1"]);
    let grant = format!("http:http://rebinding.example:{port}/");
    let mut entry = granted("fetch", &[grant]);
    entry.limits.timeout = Duration::from_millis(500);
    let (_home, to) = start_with(entry, services(resolver)).await;
    let first = fetch(&to, &format!("http://rebinding.example:{port}/")).await;
    assert!(first.is_error, "{}", first.content);
    let second = fetch(&to, &format!("http://rebinding.example:{port}/")).await;
    assert!(second.content.contains("127.0.0.1 is not a public address"), "{}", second.content);
    assert!(server.heads().is_empty());
}

#[actix::test]
async fn a_secret_goes_along_and_never_comes_back() {
    let other = Server::start(|head| ok(&format!("{} other", head.contains("s3cret"))));
    let away = other.url("/");
    let server = Server::start(move |head| match head.split(' ').nth(1).unwrap() {
        "/away" => redirect(&away),
        _ => ok(&format!("it was {head}")),
    });
    let mut entry = granted(
        "fetch",
        &[
            format!("http:{}", server.url("/")),
            format!("http:{}", other.url("/")),
            format!("secret:key@{}", server.url("/")),
        ],
    );
    let place = SecretPlace::Header { name: "x-key".parse().unwrap(), prefix: "Key ".to_owned() };
    entry.secrets.insert("key".to_owned(), PluginSecret { value: Secret::new("s3cret-value"), place });
    assert!(!format!("{entry:?}").contains("s3cret"));
    let (_home, to) = start_with(entry, services(Resolver::default())).await;
    let read = fetch(&to, &server.url("/")).await.content;
    assert!(read.contains("x-key: Key [secret]"), "{read}");
    assert!(server.heads()[0].contains("x-key: Key s3cret-value"));
    assert_eq!(fetch(&to, &server.url("/away")).await.content, "false other");
}

#[actix::test]
async fn what_a_call_may_send_receive_and_wait_is_bounded() {
    let server = Server::start(|head| match head.split(' ').nth(1).unwrap() {
        "/large" => ok(&"x".repeat(3000)),
        "/endless" => format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(3000)),
        "/silent" => {
            std::thread::park();
            String::new()
        }
        "/cut" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nx".to_owned(),
        "/odd" => "SSH-2.0-x\r\n".to_owned(),
        _ => ok("small"),
    });
    let mut entry = granted("fetch", &[format!("http:{}", server.url("/"))]);
    entry.limits.http_bytes = 2000;
    entry.limits.timeout = Duration::from_millis(1500);
    entry.concurrent_calls = 8;
    let (_home, to) = start_with(entry, services(Resolver::default())).await;
    assert_eq!(fetch(&to, &server.url("/")).await.content, "small");
    for (path, says) in [
        ("/large", "larger than the 2000 bytes that are left"),
        ("/endless", "larger than the 2000 bytes that are left"),
        ("/cut", "closed within the answer"),
        ("/odd", "not HTTP"),
    ] {
        let refused = fetch(&to, &server.url(path)).await;
        assert!(refused.is_error && refused.content.contains(says), "{path}: {}", refused.content);
    }
    // More calls wait than there are threads, and another plugin's call has one all the same.
    let waiting: Vec<_> =
        (0..8).map(|_| to.send(call("fetch", json!({ "url": server.url("/silent") })))).collect();
    let waiting: Vec<_> =
        futures::future::join_all(waiting).await.into_iter().map(|call| call.unwrap().result()).collect();
    let silent = futures::future::join_all(waiting);
    let echo = async {
        until(&to, "fetch", |state| state["calls_running"] == 8).await;
        result(&to, "echo", json!({ "text": "here" })).await
    };
    let (silent, echo) = futures::join!(silent, echo);
    assert_eq!(echo.content, "here");
    for result in silent {
        assert_eq!(result.0.content, "plugin fetch took longer than 1500 ms");
    }
    until(&to, "fetch", |state| state["calls_running"] == 0 && state["state"] == "loaded").await;
    assert_eq!(fetch(&to, &server.url("/")).await.content, "small");
}

#[actix::test]
async fn notes_are_apart_for_owners_and_agents_and_stay() {
    let (home, folder) = (home(&[]), tempfile::tempdir().unwrap());
    let path = folder.path().join("clawmux.db");
    let entry = granted("notes", &["store:notes".to_owned()]);
    let begin = async || {
        let store = Store::open(path.clone()).await.unwrap().start();
        let services = HostServices { fetcher: None, store: Some(store.clone()), embedder: None };
        (supervisor(&home, vec![entry.clone()]).with_services(services).start(), store)
    };
    let session =
        |owner: &Owner, agent: &str| SessionKey::new(agent, "test", "a", "main").unwrap().in_space(owner);
    let ask = async |to: &Addr<SandboxSupervisor>, session: SessionKey, input: Value| {
        to.send(CallTool { session, ..call("notes", input) }).await.unwrap().result().await.0
    };
    let own = Owner::Credential("ci".into());
    let (to, store) = begin().await;
    let saved =
        ask(&to, session(&own, "main"), json!({ "action": "save", "name": "tea", "text": "green" })).await;
    assert_eq!(saved.content, "saved \"tea\"");
    let read = json!({ "action": "read", "name": "tea" });
    for other in [
        session(&own, "other"),
        session(&Owner::Admins, "main"),
        session(&Owner::Credential("x".into()), "main"),
    ] {
        assert_eq!(ask(&to, other, read.clone()).await.content, "there is no note \"tea\"");
    }
    store.send(Stop).await.unwrap().unwrap();
    let (to, _store) = begin().await;
    assert_eq!(ask(&to, session(&own, "main"), read.clone()).await.content, "green");
    assert_eq!(ask(&to, session(&own, "main"), json!({ "action": "list" })).await.content, "tea");
    ask(&to, session(&own, "main"), json!({ "action": "delete", "name": "tea" })).await;
    assert_eq!(
        ask(&to, session(&own, "main"), json!({ "action": "list" })).await.content,
        "there are no notes"
    );
}

#[actix::test]
async fn a_manifest_is_granted_what_it_asks_for_and_no_more() {
    let entry = granted("notes", &["store:notes".to_owned(), "http:*".to_owned()]);
    let (_home, to) = start_with(entry, HostServices::default()).await;
    let refused = error(&to, "notes", json!({})).await;
    assert_eq!(refused, "plugin notes: it is granted http:*, and its manifest asks for store:notes only");
    let entry = granted("calc", &["host_function:clock".to_owned()]);
    let (_home, to) = start_with(entry, HostServices::default()).await;
    let refused = error(&to, "calc", json!({})).await;
    assert_eq!(refused, "plugin calc: it is granted host_function:clock, and its manifest asks for nothing");
}

#[actix::test]
async fn calc_calculates() {
    let (_home, to) = start_with(granted("calc", &[]), HostServices::default()).await;
    let sum = result(&to, "calc", json!({ "expression": "2^64 / 3 + 1/3" })).await;
    assert_eq!((sum.content.as_str(), sum.is_error), ("18446744073709551617/3", false));
    let huge = result(&to, "calc", json!({ "expression": "lcm(9^9000, 7^9000) % 10^4000" })).await;
    assert!(huge.is_error && huge.content.contains("bits"), "{}", huge.content);
}
