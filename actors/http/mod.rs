//! What the daemon answers over HTTP: whether it is alive and ready, and upgrades to the protocols
//! it serves. The table of protocols is here; who may upgrade is decided before an actor exists.
//!
//! Nothing here waits for an actor, but for `/metrics`, and that for a moment only: so all of it
//! answers whatever sessions and plugins do.

pub mod control_ui;
pub mod metrics;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use actix_web::http::{Method, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use clawmux_core::access::gate::{Gate, RequestFacts, is_forwarding_header};
use clawmux_core::access::strangers::Source;
use clawmux_core::access::{Credentials, Secret};
use clawmux_core::channel::BODY_BYTES_MAX;
use clawmux_core::daemon::health::Condition;
use clawmux_core::dialect::admin::{self, Admin};
use clawmux_core::dialect::exoclaw::Exoclaw;
use clawmux_core::dialect::root::Root;
use clawmux_core::dialect::socket::Socket;
use clawmux_core::dialect::wundr::Wundr;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::principal::Grounds;
use clawmux_core::scope::Scope;
use clawmux_core::swappable::Swappable;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::channel_supervisor::{Delivered, Webhooks};
use crate::connection::link::{Link, Peer};
use crate::connection::registry::Registry;
use crate::connection::strangers::Said;
use crate::connection::ws::{self, Ws};
use crate::connection::{Approach, Connection, Protocol, Services};
use crate::host::socket_owner::{Means, may_use};
use crate::http::control_ui::ControlUi;
use crate::http::metrics::{CONTENT_TYPE, Door, Metrics};
use crate::runtime::clock;
use crate::store::Health;

/// The protocols served over WebSocket.
pub const PROTOCOLS: &[Protocol] = &[
    Protocol {
        path: "/ws",
        name: "exoclaw",
        may_skip: true,
        max_payload_bytes: |terms| terms.gateway.max_payload_bytes,
        is_announced_to: false,
        dialect: |setup| Box::new(Exoclaw::new(setup)),
    },
    Protocol {
        path: "/v2",
        name: "wundr",
        may_skip: false,
        max_payload_bytes: |terms| terms.gateway.max_payload_bytes,
        is_announced_to: true,
        dialect: |setup| Box::new(Wundr::new(setup)),
    },
    Protocol {
        path: "/",
        name: "openclaw",
        may_skip: false,
        max_payload_bytes: |terms| terms.openclaw.max_payload_bytes,
        is_announced_to: true,
        dialect: |setup| Box::new(Root::new(setup)),
    },
    Protocol {
        path: "/admin",
        name: "admin",
        may_skip: false,
        max_payload_bytes: |terms| terms.gateway.max_payload_bytes.min(admin::MESSAGE_BYTES_MAX),
        is_announced_to: true,
        dialect: |setup| Box::new(Admin::new(setup)),
    },
];

/// What is spoken on the Unix sockets.
pub const SOCKET: Protocol = Protocol {
    path: "",
    name: "socket",
    may_skip: false,
    max_payload_bytes: |terms| terms.xeno.max_line_bytes,
    is_announced_to: true,
    dialect: |setup| Box::new(Socket::new(setup)),
};

/// What platforms send their messages to, with the name of a channel behind it.
const WEBHOOK: &str = "/webhook/";

/// When somebody for whom there is no place may try again, in seconds.
const RETRY_AFTER_SECS: u32 = 5;

/// Why no work is taken where all is well.
const NOT_READY: &str = "the daemon is starting or stopping";
/// Why it is not while it drains.
const DRAINING: &str = "draining: new work is to go elsewhere";

/// Whether connections are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// They will be: who comes now waits.
    Starting,
    /// They are.
    Ready,
    /// They are no longer.
    Stopping,
}

/// What requests are answered from.
pub struct Front {
    /// What connections are given.
    pub services: Arc<Services>,
    /// Which requests may upgrade.
    pub gate: Swappable<Gate>,
    /// The addresses bound.
    pub addresses: Vec<SocketAddr>,
    /// What tells whose socket it is at the other end of a connection over loopback, and which user
    /// this process runs as; none where nothing tells.
    pub neighbours: Option<(Means, u32)>,
    /// The protocols served.
    pub protocols: Vec<Protocol>,
    /// The connections there are.
    pub registry: Arc<Registry>,
    /// The page that is served at `/`; none = a short text.
    pub control_ui: Option<ControlUi>,
    /// Whether connections are taken.
    pub stage: watch::Sender<Stage>,
    /// Whether it can be written down.
    pub log: Health,
    /// How the daemon is as a whole, as it was seen last.
    pub condition: Arc<Swappable<Option<Condition>>>,
    /// Whether new work is refused, while connections are taken.
    pub draining: AtomicBool,
    /// What `/metrics` tells; none = nothing.
    pub metrics: Option<Metrics>,
    /// The channels that take webhook requests; none = there are none.
    pub webhooks: Option<Webhooks>,
}

impl Front {
    /// Whether connections are taken.
    pub(crate) fn is_ready(&self) -> bool {
        *self.stage.borrow() == Stage::Ready
    }

    /// Waits while the daemon starts, for as long as a handshake may take: who comes a little early
    /// is not sent away.
    async fn started(&self) {
        let mut stage = self.stage.subscribe();
        let started = stage.wait_for(|stage| *stage != Stage::Starting);
        let within = self.services.terms.get().gateway.handshake_timeout;
        let _ = tokio::time::timeout(within, started).await;
    }

    /// Whether the peer came over loopback to a socket that nobody else can reach.
    fn is_loopback(&self, link: &Link) -> bool {
        match link.peer() {
            Peer::Tcp { to, .. } => {
                link.peer().ip().is_loopback() && to.ip().is_loopback() && self.addresses.contains(&to)
            }
            Peer::Unix { .. } => false,
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("stage", &*self.stage.borrow()).finish_non_exhaustive()
    }
}

/// Answers a request.
pub(crate) async fn serve(
    request: HttpRequest,
    payload: web::Payload,
    front: web::Data<Front>,
) -> HttpResponse {
    if let Some(link) = request.conn_data::<Arc<Link>>() {
        link.requested();
    }
    let path = request.path();
    let wants_upgrade = wants_upgrade(&request);
    let protocol = front.protocols.iter().find(|protocol| protocol.path == path);
    match (path, protocol) {
        // In exoclaw's word, for who does not ask for JSON.
        ("/health", _) if is_reading(&request) && !wants_json(&request) => {
            answer(StatusCode::OK).content_type("text/plain; charset=utf-8").body("ok")
        }
        // It is alive, however it is; what is wrong is not for everybody.
        ("/healthz" | "/health", _) => {
            let mut body = json!({ "ok": true });
            if let Some(condition) = &*front.condition.get() {
                body["status"] = condition.name().into();
            }
            about(&request, StatusCode::OK, body)
        }
        ("/readyz", _) => {
            let reason = match front.log.fault() {
                _ if !front.is_ready() => Some(NOT_READY.into()),
                _ if front.draining.load(Relaxed) => Some(DRAINING.into()),
                fault => fault.map(|fault| fault.message),
            };
            match reason {
                None => about(&request, StatusCode::OK, json!({ "ready": true })),
                Some(reason) => {
                    let body = json!({ "ready": false, "reason": reason });
                    about(&request, StatusCode::SERVICE_UNAVAILABLE, body)
                }
            }
        }
        ("/metrics", _) => match &front.metrics {
            Some(metrics) if is_reading(&request) => scrape(&request, &front, metrics).await,
            Some(_) => about(&request, StatusCode::OK, Value::Null),
            None => answer(StatusCode::NOT_FOUND).json(error("no such page")),
        },
        (_, Some(_)) if wants_upgrade && has_body(&request) => {
            let why = "a request for a websocket has no body: leave content-length and transfer-encoding out";
            answer(StatusCode::BAD_REQUEST).force_close().json(error(why))
        }
        (_, Some(protocol)) if wants_upgrade => {
            front.started().await;
            let response = upgrade(&request, payload, &front, *protocol).await;
            match request.conn_data::<Arc<Link>>() {
                Some(link) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
                    ws::refused(response, link.clone())
                }
                _ => response,
            }
        }
        (path, Some(protocol)) if path != "/" => answer(StatusCode::UPGRADE_REQUIRED)
            .insert_header((header::UPGRADE, "websocket"))
            .json(error(&format!("{} is spoken over a websocket: upgrade", protocol.name))),
        ("/", _) if front.control_ui.is_none() && is_reading(&request) => {
            let mut page = format!("clawmux {}\n", front.services.terms.get().setup.version);
            for Protocol { name, path, .. } in &front.protocols {
                page.push_str(&format!("{name} clients: websocket at {path}. "));
            }
            page.push_str("Health: /healthz, /readyz. Figures: /metrics.\n");
            answer(StatusCode::OK).body(page)
        }
        _ => match (path.strip_prefix(WEBHOOK), &front.control_ui) {
            (Some(channel), _) => webhook(channel, &request, payload, &front).await,
            (None, Some(page)) if !wants_upgrade => page.serve(&request).await,
            (None, _) => answer(StatusCode::NOT_FOUND).json(error("no such page")),
        },
    }
}

/// Takes what a platform sends: acknowledged once it is kept.
async fn webhook(channel: &str, request: &HttpRequest, payload: web::Payload, front: &Front) -> HttpResponse {
    if request.method() != Method::POST {
        return answer(StatusCode::METHOD_NOT_ALLOWED)
            .insert_header((header::ALLOW, "POST"))
            .json(error("a webhook takes POST"));
    }
    front.started().await;
    let Some(webhooks) = front.webhooks.as_ref().filter(|_| front.is_ready()) else {
        return answer(StatusCode::SERVICE_UNAVAILABLE)
            .insert_header((header::RETRY_AFTER, RETRY_AFTER_SECS))
            .json(error(NOT_READY));
    };
    let header_of = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let body = async { payload.to_bytes_limited(BODY_BYTES_MAX).await.ok()?.ok().map(Vec::from) };
    let refuse = |status: StatusCode, why: &str| answer(status).force_close().json(error(why));
    match webhooks.deliver(channel, header_of, body).await {
        Delivered::Kept => answer(StatusCode::OK).json(json!({ "ok": true })),
        Delivered::Challenge(wanted) => {
            answer(StatusCode::OK).content_type("text/plain; charset=utf-8").body(wanted)
        }
        Delivered::Unknown => refuse(StatusCode::NOT_FOUND, "no such channel takes webhooks"),
        Delivered::Refused(why) => {
            tracing::debug!(channel, why, "webhook request refused");
            refuse(StatusCode::UNAUTHORIZED, &why)
        }
        Delivered::Malformed(why) => refuse(StatusCode::BAD_REQUEST, why),
        Delivered::Later(why) => {
            let mut later = answer(StatusCode::SERVICE_UNAVAILABLE);
            later.insert_header((header::RETRY_AFTER, RETRY_AFTER_SECS)).json(error(&why))
        }
    }
}

async fn upgrade(
    request: &HttpRequest,
    payload: web::Payload,
    front: &Front,
    protocol: Protocol,
) -> HttpResponse {
    let unavailable = |why: &str| {
        answer(StatusCode::SERVICE_UNAVAILABLE)
            .insert_header((header::RETRY_AFTER, RETRY_AFTER_SECS))
            .force_close()
            .json(error(why))
    };
    // Without a link the operating system had no descriptor left for it.
    let Some(link) = request.conn_data::<Arc<Link>>() else { return unavailable("too many connections") };
    if link.closing_since().is_some() {
        return unavailable("too many connections without a handshake");
    }
    if front.registry.is_full() {
        return unavailable(&format!("too many connections (max_connections = {})", front.registry.max()));
    }
    if !front.is_ready() {
        return unavailable(&format!("not ready: {NOT_READY}"));
    }
    let approach = match approach(request, front, link, protocol.may_skip).await {
        Ok(approach) => approach,
        Err(refusal) => return *refusal,
    };
    let ws = Ws::new(payload);
    let connection = Connection::new(ws, link.clone(), front.services.clone(), protocol, approach);
    ws::upgrade(request, connection).unwrap_or_else(|refusal| refusal.error_response())
}

/// What a request is answered that may not go on.
type Refusal = Box<HttpResponse>;

/// How a request comes, where it may go on to show who sends it.
async fn approach(
    request: &HttpRequest,
    front: &Front,
    link: &Link,
    may_skip: bool,
) -> Result<Approach, Refusal> {
    let is_loopback = front.is_loopback(link);
    let required = front.services.authority.credentials_required(is_loopback, may_skip);
    let host = text_of(request, &header::HOST);
    // A target that names another host than the header does is for a proxy, and of no host here.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let facts = RequestFacts {
        host: if target.is_none_or(|target| host == Some(target)) { host } else { Some("") },
        origin: text_of(request, &header::ORIGIN),
        forwarded: request.headers().keys().any(|name| is_forwarding_header(name.as_str())),
    };
    let refuse = |refusal: Error| {
        let said = Said { origin: facts.origin, host: facts.host, path: Some(request.path()), device: None };
        front.services.strangers.tell(link.peer(), "request refused", &refusal, said);
        let refusal = answer(StatusCode::FORBIDDEN).force_close().json(error(&refusal.message));
        Err(Box::new(refusal))
    };
    if let Err(refusal) = front.gate.get().admit(&facts, required) {
        return refuse(refusal);
    }
    let is_open = !required && front.services.authority.local(may_skip).grounds == Grounds::Open;
    let mut user = None;
    if let Some((means, own_user)) = front.neighbours.filter(|_| is_loopback) {
        // Who is to show a credential is told apart from other users where that costs nothing.
        if is_open || means == Means::SockDiag {
            user = Some(link.user(means).await);
        }
        if let (true, Some(user)) = (is_open, user)
            && let Err(refusal) = is_neighbour(user, own_user)
        {
            return refuse(refusal);
        }
    }
    let source = match (is_loopback, facts.forwarded, user) {
        (true, true, _) => last_hop(request).unwrap_or_else(|| link.peer().ip()).into(),
        (true, false, Some(Ok(user))) => Source::User(user),
        _ => link.peer().ip().into(),
    };
    Ok(Approach {
        is_socket: false,
        is_loopback,
        is_forwarded: facts.forwarded,
        credentials_required: required,
        source,
    })
}

/// Whether this user may come over open loopback: the daemon's own and root.
fn is_neighbour(user: Result<u32, &str>, own_user: u32) -> Result<(), Error> {
    const REMEDY: &str = "have its operator create a token (clawmux token create) and show that";
    let why = match user {
        Ok(user) if may_use(user, own_user) => return Ok(()),
        Ok(user) => {
            format!(
                "no credential is configured here, so only the daemon's own user and root are let in, and user {user} is not"
            )
        }
        Err(why) => format!(
            "no credential is configured here, so only the daemon's own user and root are let in, and whose program this is can't be told ({why})"
        ),
    };
    Err(ErrorCode::Forbidden.error(format!("{why}: {REMEDY}")))
}

/// Who came to the proxy that forwards a request, as that says.
fn last_hop(request: &HttpRequest) -> Option<IpAddr> {
    let last = request.headers().get_all("x-forwarded-for").last()?.to_str().ok()?;
    last.rsplit(',').next()?.trim().parse().ok()
}

/// `/metrics`: where a credential is required, for whoever shows one that may read.
async fn scrape(request: &HttpRequest, front: &Front, metrics: &Metrics) -> HttpResponse {
    let Some(link) = request.conn_data::<Arc<Link>>() else {
        return answer(StatusCode::SERVICE_UNAVAILABLE).force_close().json(error("too many connections"));
    };
    let allowed = match approach(request, front, link, false).await {
        Ok(approach) if approach.credentials_required => {
            may_read(request, front, link, approach.source).await
        }
        approach => approach.map(drop),
    };
    if let Err(refusal) = allowed {
        return *refusal;
    }
    let (ready, draining) = (front.is_ready(), front.draining.load(Relaxed));
    match metrics.text(Door { connections: &front.registry, ready, draining }).await {
        Some(text) => answer(StatusCode::OK).insert_header((header::CONTENT_TYPE, CONTENT_TYPE)).body(text),
        None => answer(StatusCode::SERVICE_UNAVAILABLE)
            .insert_header((header::RETRY_AFTER, RETRY_AFTER_SECS))
            .json(error("too many ask at once")),
    }
}

/// Whether the request shows a credential that allows to look.
async fn may_read(request: &HttpRequest, front: &Front, link: &Link, source: Source) -> Result<(), Refusal> {
    let refuse = |status, why: &str| {
        let mut refusal = answer(status);
        refusal.force_close().insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        Err(Box::new(refusal.json(error(why))))
    };
    let shown = text_of(request, &header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let credentials = match shown {
        Some((_, token)) => Credentials::Token(Secret::new(token.trim())),
        None => Credentials::None,
    };
    let strangers = &front.services.strangers;
    if credentials.token().is_some() {
        match strangers.hold(source) {
            Ok(None) => {}
            Ok(Some(hold)) => tokio::time::sleep(hold.wait).await,
            Err(fault) => return refuse(StatusCode::TOO_MANY_REQUESTS, &fault.message),
        }
    }
    match front.services.authority.authenticate(&credentials, clock::wall()) {
        Ok(principal) if principal.scopes.allows(Scope::Read) => {
            front.services.was_used(&principal, link.peer().ip());
            Ok(())
        }
        Ok(_) => refuse(StatusCode::FORBIDDEN, "this credential may not read"),
        Err(fault) => {
            strangers.refused(source, link.peer(), &credentials, &fault, None);
            let why = format!("{}: send it as authorization: Bearer", fault.message);
            refuse(StatusCode::UNAUTHORIZED, &why)
        }
    }
}

fn is_reading(request: &HttpRequest) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Whether it asks for a websocket, and for nothing else: the HTTP server knows no list of protocols.
fn wants_upgrade(request: &HttpRequest) -> bool {
    let upgrade = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.trim().eq_ignore_ascii_case("websocket"))
}

/// Whether it says that a body follows.
fn has_body(request: &HttpRequest) -> bool {
    let headers = request.headers();
    let is_empty = |length: &header::HeaderValue| length.as_bytes() == b"0";
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get_all(header::CONTENT_LENGTH).any(|length| !is_empty(length))
}

/// The header's text; empty where it is given twice or is not text, so that it matches nothing.
fn text_of<'a>(request: &'a HttpRequest, name: &header::HeaderName) -> Option<&'a str> {
    let mut values = request.headers().get_all(name);
    let first = values.next()?;
    if values.next().is_some() {
        return Some("");
    }
    Some(first.to_str().unwrap_or(""))
}

fn about(request: &HttpRequest, status: StatusCode, body: Value) -> HttpResponse {
    if is_reading(request) {
        answer(status).json(body)
    } else {
        answer(StatusCode::METHOD_NOT_ALLOWED).insert_header((header::ALLOW, "GET, HEAD")).finish()
    }
}

/// Whether it names JSON among what it takes.
fn wants_json(request: &HttpRequest) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("application/json"))
}

fn error(text: &str) -> Value {
    json!({ "error": text })
}

fn answer(status: StatusCode) -> HttpResponseBuilder {
    let mut response = HttpResponse::build(status);
    response
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"));
    response
}
