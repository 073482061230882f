//! HTTP to model providers: one client per provider and arbiter, connections kept alive.
//!
//! awc closes what it kept for too long when it looks for a connection, which may be never. So a client
//! that nobody used for as long is let go, and its connections with it. While it is used, awc takes the
//! connections in turn and so meets those that were idle.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::error::ParseError;
use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::Method;
use awc::http::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, PROXY_AUTHORIZATION, RETRY_AFTER,
};
use awc::{Client, ClientBuilder, ClientResponse, Connector};
use bytes::Bytes;
use clawmux_core::access::Secret;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::provider::fault::{Fault, retry_after};
use clawmux_core::provider::proxy::Proxy;
use clawmux_core::provider::{http_error, misdirected, not_a_stream, quote};
use futures::StreamExt as _;
use futures::stream::LocalBoxStream;
use rustls::ClientConfig;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::{Deadlines, Endpoint};
use crate::outbound::beginning::NoAnswer;
use crate::outbound::dial::{self, Dial, Unconnected};
use crate::outbound::proxy::{ProxyFailed, ProxyFault};
use crate::outbound::resolver::Resolver;
use crate::runtime::clock;

/// How long a connection is used at all, so that a change in the DNS is followed.
const LIFETIME: Duration = Duration::from_secs(600);

/// How much of the body of an error is read, in bytes.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// How many clients an arbiter keeps.
const CLIENTS_MAX: usize = 64;

/// The body of a response that is an event stream.
pub(super) type Body = LocalBoxStream<'static, Result<Bytes, PayloadError>>;

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// What that means for what is done next.
    pub(super) fault: Fault,
    /// Whether the provider may have counted the request.
    pub(super) billed: bool,
}

/// Sends a request to a model and waits for the head of its response, which is a stream of events.
pub(super) async fn call(
    endpoint: Arc<Endpoint>,
    body: Bytes,
    deadlines: Deadlines,
) -> Result<Body, Failure> {
    let Some(http) = &endpoint.http else {
        return Err(Failure {
            error: ErrorCode::Internal.error(format!("{} has no network", endpoint.name)),
            fault: Fault::BadRequest,
            billed: false,
        });
    };
    let (mut response, client) = post(&endpoint, &http.url, &http.headers, body, deadlines).await?;
    // Some servers name no type; another type is another thing, such as a proxy's page.
    if let Some(kind) = other_than(&response, &CONTENT_TYPE, "text/event-stream") {
        let said = error_body(&mut response, deadlines.idle).await;
        let secrets: Vec<&Secret> = endpoint.secrets().collect();
        let (error, fault) = not_a_stream(&endpoint.name, &kind, &said, &secrets);
        return Err(Failure { error, fault, billed: true });
    }
    // The client is in use as long as its answer is read.
    Ok(response.inspect(move |_| _ = &client).boxed_local())
}

/// Sends a request and waits for the head of its response, which says that it went well. The client is in use as
/// long as the response is read.
pub(super) async fn post(
    endpoint: &Endpoint,
    url: &str,
    headers: &[(Cow<'static, str>, Secret)],
    body: Bytes,
    deadlines: Deadlines,
) -> Result<(ClientResponse, Lent), Failure> {
    let until = Instant::now() + deadlines.first_byte;
    let sent = send(endpoint, Method::POST, url, headers, body, deadlines);
    let (mut response, client) = match timeout_at(until, sent).await {
        Ok(sent) => sent?,
        Err(_) => {
            let (name, limit) = (&endpoint.name, deadlines.first_byte);
            return Err(Failure {
                error: ErrorCode::Timeout.error(format!("{name}: no answer within {limit:?}")),
                fault: Fault::Timeout,
                billed: true,
            });
        }
    };
    let status = response.status();
    if let Some(target) = header(response.headers(), &LOCATION).filter(|_| status.is_redirection()) {
        return Err(Failure {
            error: endpoint.hide(misdirected(&endpoint.name, status.as_u16(), url, target)),
            fault: Fault::Misconfigured,
            billed: false,
        });
    }
    if !status.is_success() {
        let wait = header(response.headers(), &RETRY_AFTER).and_then(|wait| retry_after(wait, clock::wall()));
        let said = error_body(&mut response, deadlines.idle).await;
        return Err(Failure {
            error: http_error(&endpoint.name, status.as_u16(), wait, &said, endpoint.secrets()),
            fault: Fault::of_status(status.as_u16(), &said),
            billed: false,
        });
    }
    if let Some(encoding) = other_than(&response, &CONTENT_ENCODING, "identity") {
        let encoding = quote(&encoding, endpoint.secrets());
        let message =
            format!("{} answered with content-encoding {encoding}, which it was asked not to", endpoint.name);
        return Err(Failure {
            error: ErrorCode::Provider.error(message),
            fault: Fault::Server,
            billed: true,
        });
    }
    Ok((response, client))
}

/// What a header says that does not say this.
fn other_than(response: &ClientResponse, name: &HeaderName, expected: &str) -> Option<String> {
    let value = header(response.headers(), name)?.trim();
    let kind = value.split(';').next().unwrap_or_default().trim();
    (!kind.eq_ignore_ascii_case(expected)).then(|| value.to_owned())
}

/// Sends a request and waits for the head of its response, however long that takes. The client is in use as long as
/// the response is read.
///
/// A connection that the server closed while it was idle is only noticed by using it: what was sent on such a one,
/// of which nothing came back, is sent once more on a new one.
pub(super) async fn send(
    endpoint: &Endpoint,
    method: Method,
    url: &str,
    headers: &[(Cow<'static, str>, Secret)],
    body: Bytes,
    deadlines: Deadlines,
) -> Result<(ClientResponse, Lent), Failure> {
    let mut lent = client(endpoint, deadlines);
    let mut is_second = false;
    loop {
        let request = match &endpoint.proxy {
            Some(proxy) if endpoint.tls.is_none() => {
                let request = match dial::through_proxy(url) {
                    Some(uri) => lent.http().request(method.clone(), uri),
                    None => lent.http().request(method.clone(), url),
                };
                match &proxy.authorization {
                    Some(shown) => request.insert_header((PROXY_AUTHORIZATION, shown.expose())),
                    None => request,
                }
            }
            _ if endpoint.tls.is_some() => lent.http().request(method.clone(), dial::below_tls(url)),
            _ => lent.http().request(method.clone(), url),
        };
        let mut request = request.no_decompress();
        for (name, value) in headers {
            request = request.insert_header((&**name, value.expose()));
        }
        let sent = if body.is_empty() { request.send() } else { request.send_body(body.clone()) };
        match sent.await {
            Ok(response) => return Ok((response, lent)),
            Err(error) if !is_second && no_answer(&error) == Some(NoAnswer::Stale) => {
                is_second = true;
                lent = Lent::new(&Rc::new(Cached::new(lent.0.key.clone())));
            }
            Err(error) => return Err(refused(endpoint, error, deadlines)),
        }
    }
}

/// Why nothing that is HTTP came back.
fn no_answer(error: &SendRequestError) -> Option<NoAnswer> {
    match error {
        SendRequestError::Response(ParseError::Io(why)) | SendRequestError::Send(why) => NoAnswer::of(why),
        _ => None,
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// What there is of an error's body: it only adds words to the status.
async fn error_body(
    body: &mut (impl futures::Stream<Item = Result<Bytes, PayloadError>> + Unpin),
    limit: Duration,
) -> Vec<u8> {
    let mut said = Vec::new();
    let read = async {
        while let Some(Ok(bytes)) = body.next().await {
            let room = ERROR_BODY_BYTES_MAX - said.len();
            said.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if said.len() == ERROR_BODY_BYTES_MAX {
                break;
            }
        }
    };
    let _ = timeout(limit, pin!(read)).await;
    said
}

/// A request that got no response.
fn refused(endpoint: &Endpoint, error: SendRequestError, deadlines: Deadlines) -> Failure {
    let name = &endpoint.name;
    let fault = fault_of(&error);
    let (code, message, billed) = match error {
        SendRequestError::Connect(ConnectError::Timeout) => {
            (ErrorCode::Timeout, format!("not connected within {:?}", deadlines.connect), false)
        }
        SendRequestError::Connect(ConnectError::Io(why)) if why.kind() == io::ErrorKind::TimedOut => {
            (ErrorCode::Timeout, io_words(&why), false)
        }
        SendRequestError::Connect(ConnectError::Resolver(why)) => {
            (ErrorCode::Provider, format!("host not found ({why}): check base_url"), false)
        }
        SendRequestError::Connect(ConnectError::NoRecords) => {
            (ErrorCode::Provider, "host not found: check base_url".into(), false)
        }
        SendRequestError::Connect(ConnectError::Disconnected) => {
            (ErrorCode::Provider, "connection closed without an answer".into(), true)
        }
        SendRequestError::Connect(ConnectError::Io(why)) => (ErrorCode::Provider, io_words(&why), false),
        SendRequestError::Connect(why) => (ErrorCode::Provider, why.to_string(), false),
        SendRequestError::Send(why) => (ErrorCode::Provider, io_words(&why), true),
        SendRequestError::Url(why) => (ErrorCode::Provider, format!("{why}: check base_url"), false),
        // So actix calls a head without an end.
        SendRequestError::Response(ParseError::Io(why)) if why.kind() == io::ErrorKind::Other => {
            (ErrorCode::Provider, "connection closed within the head of the answer".into(), true)
        }
        SendRequestError::Response(ParseError::Io(why)) => (ErrorCode::Provider, io_words(&why), true),
        SendRequestError::Response(why) => {
            (ErrorCode::Provider, format!("answered with what is not HTTP ({why}): check base_url"), true)
        }
        // Told without their own words, which may repeat a header.
        SendRequestError::Http(_) => {
            (ErrorCode::Provider, "request can't be sent: check api key and base_url".into(), false)
        }
        why => (ErrorCode::Provider, format!("request failed ({why})"), true),
    };
    Failure { error: code.error(format!("{name}: {message}")), fault, billed }
}

fn fault_of(error: &SendRequestError) -> Fault {
    if no_answer(error) == Some(NoAnswer::Tls) {
        return Fault::Misconfigured;
    }
    match error {
        SendRequestError::Connect(ConnectError::Timeout) => Fault::Timeout,
        SendRequestError::Connect(ConnectError::Io(why)) => match (why.kind(), ProxyFailed::of(why)) {
            (io::ErrorKind::TimedOut, _) => Fault::Timeout,
            (
                _,
                Some(ProxyFailed { fault: ProxyFault::Refused(500.., _) | ProxyFault::Unreached(_), .. }),
            ) => Fault::Network,
            (_, Some(_)) => Fault::Misconfigured,
            _ if matches!(tls_error(why), Some(rustls::Error::InvalidMessage(_))) => Fault::Misconfigured,
            _ => Fault::Network,
        },
        SendRequestError::Connect(ConnectError::Resolver(_) | ConnectError::NoRecords)
        | SendRequestError::Url(_)
        | SendRequestError::Http(_) => Fault::Misconfigured,
        _ => Fault::Network,
    }
}

/// What went wrong with TLS, where it was that.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// An I/O error in the words clients know.
pub(super) fn io_words(error: &io::Error) -> String {
    if let Some(failed) = ProxyFailed::of(error) {
        return failed.to_string();
    }
    if NoAnswer::of(error) == Some(NoAnswer::Tls) {
        return format!("{error}: base_url has to begin with https://");
    }
    match (error.kind(), Unconnected::of(error), tls_error(error)) {
        (io::ErrorKind::ConnectionRefused, Some(Unconnected { address, .. }), _) => {
            format!("connection refused: does the server at {address} run? check base_url")
        }
        (_, Some(Unconnected { address, .. }), _) => format!("{address} is not reached: {error}"),
        (io::ErrorKind::ConnectionReset, ..) => "connection reset".into(),
        (_, _, Some(rustls::Error::InvalidMessage(_))) => {
            "what answers does not speak TLS: where that is right, base_url has to begin with http://".into()
        }
        (_, _, Some(rustls::Error::InvalidCertificate(_))) => {
            format!(
                "tls: {error} (a private certificate authority, or a server's own certificate, is named by ca_file)"
            )
        }
        (_, _, Some(_)) => format!("tls: {error}"),
        _ => error.to_string(),
    }
}

/// What a client is for: nothing that another one may use.
#[derive(Clone)]
struct Key {
    base_url: String,
    tls: Option<Arc<ClientConfig>>,
    proxy: Option<Proxy>,
    connect: Duration,
    keep_alive: Duration,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let has_same_tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        let of = |key: &Self| (key.connect, key.keep_alive);
        let is_there = self.base_url == other.base_url && self.proxy == other.proxy;
        has_same_tls && is_there && of(self) == of(other)
    }
}

/// A client that is kept.
struct Cached {
    key: Key,
    client: Client,
    /// How many use it.
    uses: Cell<usize>,
    /// When it was last used.
    used: Cell<Instant>,
}

impl Cached {
    fn new(key: Key) -> Self {
        let client = build(&key);
        Self { key, client, uses: Cell::new(0), used: Cell::new(Instant::now()) }
    }
}

thread_local! {
    /// The clients of this arbiter, the latest made last.
    static CLIENTS: RefCell<Vec<Rc<Cached>>> = const { RefCell::new(Vec::new()) };
}

/// A client in use.
pub(super) struct Lent(Rc<Cached>);

impl Lent {
    fn new(cached: &Rc<Cached>) -> Self {
        cached.uses.set(cached.uses.get() + 1);
        Self(cached.clone())
    }

    fn http(&self) -> &Client {
        &self.0.client
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.uses.set(self.0.uses.get() - 1);
        self.0.used.set(Instant::now());
    }
}

fn client(endpoint: &Endpoint, deadlines: Deadlines) -> Lent {
    let Deadlines { connect, keep_alive, .. } = deadlines;
    let (base_url, tls, proxy) = (endpoint.base_url.clone(), endpoint.tls.clone(), endpoint.proxy.clone());
    let key = Key { base_url, tls, proxy, connect, keep_alive };
    CLIENTS.with_borrow_mut(|clients| {
        if let Some(cached) = clients.iter().find(|cached| cached.key == key) {
            return Lent::new(cached);
        }
        if clients.len() == CLIENTS_MAX {
            clients.remove(0);
        }
        let cached = Rc::new(Cached::new(key));
        let lent = Lent::new(&cached);
        actix::spawn(let_go(cached.clone()));
        clients.push(cached);
        lent
    })
}

/// Lets a client go once nobody has used it for a while.
async fn let_go(cached: Rc<Cached>) {
    let keep_alive = cached.key.keep_alive;
    loop {
        let until = if cached.uses.get() > 0 { Instant::now() } else { cached.used.get() } + keep_alive;
        sleep_until(until).await;
        if cached.uses.get() == 0 && cached.used.get().elapsed() >= keep_alive {
            break;
        }
    }
    CLIENTS.with_borrow_mut(|clients| clients.retain(|client| !Rc::ptr_eq(client, &cached)));
}

fn build(key: &Key) -> Client {
    let connector = Connector::new()
        // A provider's address is the operator's to choose.
        .connector(Dial {
            tls: key.tls.clone(),
            proxy: key.proxy.clone(),
            deadline: key.connect,
            resolver: Resolver::default(),
            within: None,
            refuses_cut: false,
        })
        // Its two steps have a deadline each: this one is never the first.
        .timeout(key.connect.saturating_mul(3))
        // How many calls there are at once is the supervisor's to say.
        .limit(0)
        .conn_keep_alive(key.keep_alive)
        .conn_lifetime(LIFETIME);
    ClientBuilder::new()
        .connector(connector)
        .no_default_headers()
        .disable_redirects()
        .disable_timeout()
        .finish()
}
