//! A plugin's HTTP request, sent.
//!
//! Each hop of it is held against the plugin's grants anew, resolved once, connected to at an address that
//! the grant reaches, and given the secrets that are for it. A connection is used for one request: a
//! connection that one grant has opened is never there for another one.
//!
//! Deliberately absent: cookies, decompression (what a guest is handed is what it is counted), retries, and the
//! proxies of the environment: which address a grant reaches can't be said where a proxy resolves the name.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::header::{HeaderName, HeaderValue, LOCATION};
use awc::{ClientBuilder, ClientResponse, Connector};
use clawmux_core::tools::plugin::{HttpGrant, HttpRequest, REDIRECTS_MAX, Rights, allow, inject, redact};
use futures::StreamExt as _;
use rustls::ClientConfig;
use url::Url;

use super::dial::{Dial, below_tls};
use super::resolver::Resolver;

/// For the resolution of a name and the connection together, and again for the TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// Sends the requests of plugins.
#[derive(Clone, Debug)]
pub struct Fetcher {
    resolver: Resolver,
    tls: Arc<ClientConfig>,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case; several of one name are joined by commas.
    pub headers: BTreeMap<String, String>,
    /// The grants that it took, of HTTP and of secrets.
    pub grants: Vec<String>,
    /// The body, as it came.
    pub body: Vec<u8>,
}

/// An answer whose body is yet to be read.
#[derive(Debug)]
pub struct Opened {
    /// The answer.
    pub response: ClientResponse,
    /// The grants that it took, of HTTP and of secrets.
    pub grants: Vec<String>,
    /// The host that answered.
    pub host: String,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// In words for whoever wrote it, without secrets.
    pub why: String,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a request that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was not sent, and never will be.
    Refused,
    /// It was not sent: there was no connection.
    Unsent,
    /// It may have been carried out.
    Unknown,
}

impl Unanswered {
    fn never(why: String) -> Self {
        Self { why, fate: Fate::Refused }
    }
}

fn fate(error: &SendRequestError) -> Fate {
    match error {
        SendRequestError::Connect(ConnectError::Io(why)) if why.kind() == io::ErrorKind::PermissionDenied => {
            Fate::Refused
        }
        // So awc calls a connection that ends before an answer.
        SendRequestError::Connect(ConnectError::Disconnected) => Fate::Unknown,
        SendRequestError::Connect(_) => Fate::Unsent,
        SendRequestError::Http(_) | SendRequestError::Url(_) => Fate::Refused,
        _ => Fate::Unknown,
    }
}

/// Which addresses a request may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Public ones, and others that a grant names.
    Public,
    /// Any that the host of a granted URL has: it is the operator's own choice.
    Any,
}

impl Fetcher {
    /// Resolves names by `resolver`, and trusts the servers that `tls` does.
    pub fn new(resolver: Resolver, tls: Arc<ClientConfig>) -> Self {
        Self { resolver, tls }
    }

    /// Sends a request and follows where it is redirected; takes as long as it takes. The answer's body has
    /// at most `body_bytes_max` bytes.
    ///
    /// # Errors
    /// Why there is no answer, in words for whoever wrote the request, without secrets.
    pub async fn fetch(
        &self,
        rights: &Rights,
        request: HttpRequest,
        body_bytes_max: usize,
    ) -> Result<Fetched, String> {
        let opened = self.open(rights, request, Reach::Public).await;
        let Opened { mut response, grants, host } = opened.map_err(|unsent| unsent.why)?;
        let body = body(&mut response, body_bytes_max).await;
        let body = body.map_err(|why| rights.shown(format!("{host}: {why}")))?;
        let body = redact(&rights.secrets, &body).into_owned();
        let status = response.status().as_u16();
        Ok(Fetched { status, headers: headers(&response, rights), grants, body })
    }

    /// Sends a request and follows where it is redirected, up to an answer whose body is yet to be read.
    ///
    /// # Errors
    /// As [`Self::fetch`]'s.
    pub async fn open(
        &self,
        rights: &Rights,
        mut request: HttpRequest,
        reach: Reach,
    ) -> Result<Opened, Unanswered> {
        let mut grants = Vec::new();
        for _ in 0..=REDIRECTS_MAX {
            let allowed = allow(&rights.http, &request.url);
            let (url, grant) = allowed.map_err(|why| Unanswered::never(why.to_string()))?;
            grants.push(format!("http:{grant}"));
            let secrets = rights.secrets.iter().filter(|secret| secret.grant.to.matches(&url));
            grants.extend(secrets.map(|secret| format!("secret:{}", secret.grant)));
            let host = url.host_str().unwrap_or_default().to_owned();
            let within = (reach == Reach::Public).then(|| grant.clone());
            let sent = self.send(rights, within, &url, &request).await;
            let response = sent.map_err(|why| {
                let shown = rights.shown(format!("{host}: {}", in_words(&why)));
                Unanswered { why: shown, fate: fate(&why) }
            })?;
            let status = response.status().as_u16();
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = request.clone().redirected(&url, status, location);
            match next.map_err(|why| Unanswered::never(rights.shown(format!("{host}: {why}"))))? {
                Some(next) => request = next,
                None => return Ok(Opened { response, grants, host }),
            }
        }
        Err(Unanswered::never(format!("redirected more than {REDIRECTS_MAX} times")))
    }

    /// One hop.
    async fn send(
        &self,
        rights: &Rights,
        within: Option<HttpGrant>,
        url: &Url,
        request: &HttpRequest,
    ) -> Result<ClientResponse, SendRequestError> {
        let (mut url, mut sent) = (url.clone(), request.headers.clone());
        inject(&rights.secrets, &mut url, &mut sent);
        let is_tls = url.scheme() == "https";
        let dial = Dial {
            tls: is_tls.then(|| Arc::clone(&self.tls)),
            proxy: None,
            deadline: CONNECT,
            resolver: self.resolver.clone(),
            within,
            refuses_cut: true,
        };
        let connector = Connector::new().connector(dial).timeout(CONNECT * 3);
        let client = ClientBuilder::new()
            .connector(connector)
            .no_default_headers()
            .disable_redirects()
            .disable_timeout()
            .finish();
        let target = if is_tls { below_tls(url.as_str()) } else { url.to_string() };
        let method = awc::http::Method::from_bytes(request.method.as_str().as_bytes());
        let method = method.map_err(|why| SendRequestError::Http(why.into()))?;
        let mut call = client.request(method, target).no_decompress().force_close();
        for (name, value) in &sent {
            let name = HeaderName::from_bytes(name.as_str().as_bytes());
            let value = HeaderValue::from_bytes(value.as_bytes());
            let (Ok(name), Ok(mut value)) = (name, value) else { continue };
            value.set_sensitive(true);
            call = call.insert_header((name, value));
        }
        // Of TLS awc knows nothing, and would name the port that everybody knows.
        if let Some(host) = url.host_str() {
            let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            call = call.insert_header((awc::http::header::HOST, host));
        }
        if request.body.is_empty() { call.send().await } else { call.send_body(request.body.clone()).await }
    }
}

/// The body, where it is not larger than that.
async fn body(response: &mut ClientResponse, bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(piece) = response.next().await {
        let piece = piece.map_err(|why| match why {
            PayloadError::Io(why) | PayloadError::Incomplete(Some(why)) => why.to_string(),
            why => format!("the answer can't be read ({why})"),
        })?;
        if body.len() + piece.len() > bytes_max {
            return Err(format!("the answer is larger than the {bytes_max} bytes that are left"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn headers(response: &ClientResponse, rights: &Rights) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in response.headers() {
        let value = rights.shown(String::from_utf8_lossy(value.as_bytes()).into_owned());
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|before| {
                before.push_str(", ");
                before.push_str(&value);
            })
            .or_insert(value);
    }
    headers
}

/// Why a request got no answer.
fn in_words(error: &SendRequestError) -> String {
    match error {
        SendRequestError::Connect(ConnectError::Io(why)) => match why.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            _ => why.to_string(),
        },
        SendRequestError::Connect(ConnectError::Resolver(why)) => format!("host not found ({why})"),
        SendRequestError::Connect(ConnectError::NoRecords) => "host not found".to_owned(),
        SendRequestError::Connect(ConnectError::Timeout) => format!("not connected within {CONNECT:?}"),
        SendRequestError::Connect(ConnectError::Disconnected) => "closed without an answer".to_owned(),
        SendRequestError::Response(why) => format!("answered with what is not HTTP ({why})"),
        // Told without their own words, which may repeat a header.
        SendRequestError::Http(_) => "the request can't be sent".to_owned(),
        why => why.to_string(),
    }
}
