//! HTTP to model providers: one client per arbiter, connections kept alive.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use awc::{Client, ClientBuilder, Connector};
use bytes::Bytes;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::provider::{http_error, may_fail_over};
use futures::StreamExt as _;
use futures::stream::LocalBoxStream;
use rustls::ClientConfig;
use tokio::time::timeout;

use super::dial::{self, Dial};
use super::{Deadlines, Endpoint};

/// How long an unused connection is kept. Providers close theirs after a minute or more.
const KEEP_ALIVE: Duration = Duration::from_secs(45);

/// How long a connection is used at all, so that a change in the DNS is followed.
const LIFETIME: Duration = Duration::from_secs(600);

/// How much of the body of an error is read, in bytes.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// How many kinds of clients (by their TLS configuration) an arbiter keeps.
const CLIENTS_MAX: usize = 16;

/// The body of a response that is an event stream.
pub(super) type Body = LocalBoxStream<'static, Result<Bytes, PayloadError>>;

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Whether another model may do better.
    pub(super) fail_over: bool,
    /// Whether the provider may have counted the request.
    pub(super) billed: bool,
}

/// Sends a request and waits for the head of its response.
pub(super) async fn call(
    endpoint: Arc<Endpoint>,
    body: Bytes,
    deadlines: Deadlines,
) -> Result<Body, Failure> {
    let Some(http) = &endpoint.http else {
        return Err(Failure {
            error: ErrorCode::Internal.error(format!("{} has no network", endpoint.name)),
            fail_over: false,
            billed: false,
        });
    };
    let client = client(endpoint.tls.as_ref(), deadlines.connect);
    let url = if endpoint.tls.is_some() { dial::below_tls(&http.url) } else { http.url.clone() };
    // A connection that the server closed while it was idle is only noticed by using it: once more.
    let mut again = true;
    let mut response = loop {
        let mut request = client.post(&*url).no_decompress();
        for (name, value) in &http.headers {
            request = request.insert_header((HeaderName::from_static(name), value.expose()));
        }
        match timeout(deadlines.first_byte, request.send_body(body.clone())).await {
            Ok(Ok(response)) => break response,
            Ok(Err(error)) if again && is_disconnected(&error) => again = false,
            Ok(Err(error)) => return Err(refused(&endpoint, error, deadlines)),
            Err(_) => {
                let (name, limit) = (&endpoint.name, deadlines.first_byte);
                return Err(Failure {
                    error: ErrorCode::Timeout.error(format!("{name}: no answer within {limit:?}")),
                    fail_over: true,
                    billed: true,
                });
            }
        }
    };
    let status = response.status();
    if !status.is_success() {
        let retry_after = header(response.headers(), &RETRY_AFTER).map(str::to_owned);
        let said = error_body(&mut response, deadlines.idle).await;
        return Err(Failure {
            error: http_error(
                &endpoint.name,
                status.as_u16(),
                retry_after.as_deref(),
                &said,
                endpoint.key.as_ref(),
            ),
            fail_over: may_fail_over(status.as_u16()),
            billed: false,
        });
    }
    // Some servers name no type; another type is another thing, such as a proxy's page.
    let unfit = [(CONTENT_TYPE, "text/event-stream"), (CONTENT_ENCODING, "identity")].into_iter().find_map(
        |(name, expected)| {
            let value = header(response.headers(), &name)?.trim();
            let kind = value.split(';').next().unwrap_or_default().trim();
            (!kind.eq_ignore_ascii_case(expected)).then(|| {
                let value: String = value.chars().take(100).collect();
                format!("{} answered with {name} {value} instead of {expected}", endpoint.name)
            })
        },
    );
    match unfit {
        Some(message) => {
            Err(Failure { error: ErrorCode::Provider.error(message), fail_over: true, billed: true })
        }
        None => Ok(response.boxed_local()),
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

fn is_disconnected(error: &SendRequestError) -> bool {
    match error {
        SendRequestError::Connect(ConnectError::Disconnected) => true,
        SendRequestError::Send(error) => {
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        }
        _ => false,
    }
}

/// A request that got no response.
pub(super) fn refused(endpoint: &Endpoint, error: SendRequestError, deadlines: Deadlines) -> Failure {
    let name = &endpoint.name;
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
        SendRequestError::Connect(ConnectError::Io(why))
            if why.kind() == io::ErrorKind::ConnectionRefused =>
        {
            (ErrorCode::Provider, format!("{}: check base_url", io_words(&why)), false)
        }
        SendRequestError::Connect(ConnectError::Io(why)) => (ErrorCode::Provider, io_words(&why), false),
        SendRequestError::Connect(why) => (ErrorCode::Provider, why.to_string(), false),
        SendRequestError::Send(why) => (ErrorCode::Provider, io_words(&why), true),
        SendRequestError::Url(why) => (ErrorCode::Provider, format!("{why}: check base_url"), false),
        SendRequestError::Response(why) => {
            (ErrorCode::Provider, format!("answered with what is not HTTP ({why})"), true)
        }
        // Told without their own words, which may repeat a header.
        SendRequestError::Http(_) => {
            (ErrorCode::Provider, "request can't be sent: check api key and base_url".into(), false)
        }
        why => (ErrorCode::Provider, format!("request failed ({why})"), true),
    };
    Failure { error: code.error(format!("{name}: {message}")), fail_over: true, billed }
}

/// An I/O error in the words clients know.
pub(super) fn io_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::ConnectionReset => "connection reset".into(),
        io::ErrorKind::InvalidData if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            format!("tls: {error} (a private certificate authority is named by ca_file)")
        }
        _ => error.to_string(),
    }
}

struct Cached {
    tls: Option<Arc<ClientConfig>>,
    connect: Duration,
    client: Client,
}

thread_local! {
    /// The clients of this arbiter, the latest made last.
    static CLIENTS: RefCell<Vec<Cached>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn client(tls: Option<&Arc<ClientConfig>>, connect: Duration) -> Client {
    CLIENTS.with_borrow_mut(|clients| {
        let same = |cached: &&Cached| {
            cached.connect == connect
                && match (&cached.tls, tls) {
                    (Some(cached), Some(wanted)) => Arc::ptr_eq(cached, wanted),
                    (None, None) => true,
                    _ => false,
                }
        };
        if let Some(cached) = clients.iter().find(same) {
            return cached.client.clone();
        }
        if clients.len() == CLIENTS_MAX {
            clients.remove(0);
        }
        let client = build(tls, connect);
        clients.push(Cached { tls: tls.cloned(), connect, client: client.clone() });
        client
    })
}

fn build(tls: Option<&Arc<ClientConfig>>, connect: Duration) -> Client {
    let connector = Connector::new()
        .connector(Dial { tls: tls.cloned(), deadline: connect })
        // Its two steps have a deadline each: this one is never the first.
        .timeout(connect.saturating_mul(3))
        // How many calls there are at once is the supervisor's to say.
        .limit(0)
        .conn_keep_alive(KEEP_ALIVE)
        .conn_lifetime(LIFETIME);
    ClientBuilder::new()
        .connector(connector)
        .no_default_headers()
        .disable_redirects()
        .disable_timeout()
        .finish()
}
