//! HTTP to model providers: one client per provider and arbiter, connections kept alive.
//!
//! awc closes what it kept for too long when it looks for a connection, which may be never. So a client
//! that nobody used for as long is let go, and its connections with it. While it is used, awc takes the
//! connections in turn and so meets those that were idle.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use awc::{Client, ClientBuilder, Connector};
use bytes::Bytes;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::provider::fault::{Fault, retry_after};
use clawmux_core::provider::http_error;
use futures::StreamExt as _;
use futures::stream::LocalBoxStream;
use rustls::ClientConfig;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Deadlines, Endpoint};
use crate::outbound::dial::{self, Dial};
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

/// Sends a request and waits for the head of its response.
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
    let client = client(&endpoint, deadlines);
    let url = if endpoint.tls.is_some() { dial::below_tls(&http.url) } else { http.url.clone() };
    // A connection that the server closed while it was idle is only noticed by using it: once more.
    let mut again = true;
    let mut response = loop {
        let mut request = client.http().post(&*url).no_decompress();
        for (name, value) in &http.headers {
            request = request.insert_header((&**name, value.expose()));
        }
        match timeout(deadlines.first_byte, request.send_body(body.clone())).await {
            Ok(Ok(response)) => break response,
            Ok(Err(error)) if again && is_disconnected(&error) => again = false,
            Ok(Err(error)) => return Err(refused(&endpoint, error, deadlines)),
            Err(_) => {
                let (name, limit) = (&endpoint.name, deadlines.first_byte);
                return Err(Failure {
                    error: ErrorCode::Timeout.error(format!("{name}: no answer within {limit:?}")),
                    fault: Fault::Timeout,
                    billed: true,
                });
            }
        }
    };
    let status = response.status();
    if !status.is_success() {
        let wait = header(response.headers(), &RETRY_AFTER).and_then(|wait| retry_after(wait, clock::wall()));
        let said = error_body(&mut response, deadlines.idle).await;
        return Err(Failure {
            error: http_error(&endpoint.name, status.as_u16(), wait, &said, endpoint.secrets()),
            fault: Fault::of_status(status.as_u16(), &said),
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
            Err(Failure { error: ErrorCode::Provider.error(message), fault: Fault::Server, billed: true })
        }
        // The client is in use as long as its answer is read.
        None => Ok(response.inspect(move |_| _ = &client).boxed_local()),
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
    Failure { error: code.error(format!("{name}: {message}")), fault, billed }
}

fn fault_of(error: &SendRequestError) -> Fault {
    match error {
        SendRequestError::Connect(ConnectError::Timeout) => Fault::Timeout,
        SendRequestError::Connect(ConnectError::Io(why)) if why.kind() == io::ErrorKind::TimedOut => {
            Fault::Timeout
        }
        SendRequestError::Connect(ConnectError::Resolver(_) | ConnectError::NoRecords)
        | SendRequestError::Url(_)
        | SendRequestError::Http(_) => Fault::Misconfigured,
        _ => Fault::Network,
    }
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

/// What a client is for: nothing that another one may use.
#[derive(Clone)]
struct Key {
    base_url: String,
    tls: Option<Arc<ClientConfig>>,
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
        has_same_tls && self.base_url == other.base_url && of(self) == of(other)
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

    pub(super) fn http(&self) -> &Client {
        &self.0.client
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.uses.set(self.0.uses.get() - 1);
        self.0.used.set(Instant::now());
    }
}

pub(super) fn client(endpoint: &Endpoint, deadlines: Deadlines) -> Lent {
    let Deadlines { connect, keep_alive, .. } = deadlines;
    let key = Key { base_url: endpoint.base_url.clone(), tls: endpoint.tls.clone(), connect, keep_alive };
    CLIENTS.with_borrow_mut(|clients| {
        if let Some(cached) = clients.iter().find(|cached| cached.key == key) {
            return Lent::new(cached);
        }
        if clients.len() == CLIENTS_MAX {
            clients.remove(0);
        }
        let client = build(&key);
        let cached = Rc::new(Cached { key, client, uses: Cell::new(0), used: Cell::new(Instant::now()) });
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
