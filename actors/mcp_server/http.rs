//! An MCP server behind a URL: streamable HTTP, as rmcp speaks it, over the daemon's own client.
//!
//! rmcp's futures go from thread to thread, those of the daemon's client do not: requests go through a channel
//! to a task on the server's arbiter.
//!
//! Deliberately absent: the stream by which a server may say something unasked (that a list of tools has
//! changed is found out by asking for it now and then), resuming a stream that broke, and OAuth.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use actix_web::web::Bytes;
use clawmux_core::config::McpUrl;
use clawmux_core::tools::plugin::{HttpRequest, Rights};
use futures::StreamExt as _;
use futures::stream::{BoxStream, FuturesUnordered};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use sse_stream::{Sse, SseStream};
use tokio::sync::{mpsc, oneshot};

use crate::outbound::fetch::{Fetcher, Opened, Reach};

/// Pieces of a body that wait to be read.
const PIECES_MAX: usize = 4;

/// Requests that wait to be sent.
const REQUESTS_MAX: usize = 16;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// The client of one server.
#[derive(Clone, Debug)]
pub(super) struct HttpClient(mpsc::Sender<Order>);

/// What keeps a request from its answer, in words.
#[derive(Debug)]
pub(super) struct HttpFailure(String);

impl fmt::Display for HttpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HttpFailure {}

type Failure = StreamableHttpError<HttpFailure>;

/// A request, and who waits for its answer.
#[derive(Debug)]
struct Order {
    request: HttpRequest,
    reply: oneshot::Sender<Result<Answer, HttpFailure>>,
}

/// What a server answered.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    content_type: String,
    session: Option<String>,
    body: Body,
}

type Body = mpsc::Receiver<Result<Bytes, HttpFailure>>;

impl HttpClient {
    /// And what sends its requests; over once there is no client any more.
    pub(super) fn new(fetcher: Fetcher, server: &McpUrl) -> (Self, impl Future<Output = ()> + use<>) {
        let (orders, ordered) = mpsc::channel(REQUESTS_MAX);
        let rights =
            Rights { http: vec![server.grant.clone()], secrets: server.secrets.clone(), ..Rights::default() };
        (Self(orders), serve(fetcher, rights, ordered))
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        session: Option<Arc<str>>,
        more: HashMap<HeaderName, HeaderValue>,
        body: Vec<u8>,
    ) -> Result<Answer, Failure> {
        let mut headers: Vec<(HeaderName, HeaderValue)> = more.into_iter().collect();
        let accept = if method == Method::GET { EVENTS } else { "application/json, text/event-stream" };
        headers.push((header::ACCEPT, HeaderValue::from_static(accept)));
        if !body.is_empty() {
            headers.push((header::CONTENT_TYPE, HeaderValue::from_static(JSON)));
        }
        if let Some(session) = session.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.push((SESSION, session));
        }
        let request = HttpRequest { method, url: url.to_owned(), headers, body };
        let (reply, answer) = oneshot::channel();
        let closed = || StreamableHttpError::TransportChannelClosed;
        self.0.send(Order { request, reply }).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?.map_err(StreamableHttpError::Client)
    }
}

/// Sends requests as long as there may be more.
async fn serve(fetcher: Fetcher, rights: Rights, mut orders: mpsc::Receiver<Order>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => under_way.push(carry_out(&fetcher, &rights, order)),
                None => return,
            },
            Some(()) = under_way.next() => {}
        }
    }
}

/// Sends a request and hands its answer over, for as long as anybody waits for it.
async fn carry_out(fetcher: &Fetcher, rights: &Rights, order: Order) {
    let Order { request, mut reply } = order;
    let opened = tokio::select! {
        opened = fetcher.open(rights, request, Reach::Any) => opened,
        () = reply.closed() => return,
    };
    let Opened { mut response, .. } = match opened {
        Ok(opened) => opened,
        Err(why) => {
            let _ = reply.send(Err(HttpFailure(why.why)));
            return;
        }
    };
    let text = |name: &str| {
        let value = response.headers().get(name)?.to_str().ok()?;
        Some(rights.shown(value.to_owned()))
    };
    let (pieces, body) = mpsc::channel(PIECES_MAX);
    let answer = Answer {
        status: StatusCode::from_u16(response.status().as_u16()).unwrap_or_default(),
        content_type: text(header::CONTENT_TYPE.as_str()).unwrap_or_default(),
        session: text(SESSION.as_str()),
        body,
    };
    if reply.send(Ok(answer)).is_err() {
        return;
    }
    loop {
        let piece = tokio::select! {
            piece = response.next() => piece,
            () = pieces.closed() => return,
        };
        let Some(piece) = piece else { return };
        let piece = piece.map_err(|error| HttpFailure(rights.shown(error.to_string())));
        let is_over = piece.is_err();
        if pieces.send(piece).await.is_err() || is_over {
            return;
        }
    }
}

/// A whole body of at most so many bytes.
async fn whole(mut body: Body, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let mut whole = Vec::new();
    while let Some(piece) = body.recv().await {
        let piece = piece.map_err(StreamableHttpError::Client)?;
        if whole.len() + piece.len() > bytes_max {
            return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: bytes_max });
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

/// The events of a body of at most so many bytes.
fn events(body: Body, bytes_max: usize) -> BoxStream<'static, Result<Sse, SseError>> {
    let bounded = futures::stream::unfold((body, 0), move |(mut body, mut bytes)| async move {
        let piece = body.recv().await?;
        let piece = piece.and_then(|piece| {
            bytes += piece.len();
            let larger = || HttpFailure(format!("the answer is larger than {bytes_max} bytes"));
            if bytes > bytes_max { Err(larger()) } else { Ok(piece) }
        });
        Some((piece, (body, bytes)))
    });
    SseStream::from_bytes_stream(bounded.boxed()).boxed()
}

fn is_of(content_type: &str, wanted: &str) -> bool {
    content_type.split(';').next().is_some_and(|found| found.trim().eq_ignore_ascii_case(wanted))
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpFailure;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, auth_header, custom_headers, limits)
            .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let (has_session, is_request) =
            (session_id.is_some(), matches!(message, ClientJsonRpcMessage::Request(_)));
        let body = serde_json::to_vec(&message)?;
        let answer = self.send(Method::POST, &uri, session_id, custom_headers, body).await?;
        let Answer { status, content_type, session, body } = answer;
        match status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if has_session => return Err(StreamableHttpError::SessionExpired),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let why = format!("it refuses the credentials, or their want (HTTP {})", status.as_u16());
                return Err(StreamableHttpError::Client(HttpFailure(why)));
            }
            status if !status.is_success() => {
                // Errors of the protocol may come with any status.
                if is_of(&content_type, JSON)
                    && let Ok(body) = whole(body, limits.max_error_response_size).await
                    && let Ok(error @ ServerJsonRpcMessage::Error(_)) = serde_json::from_slice(&body)
                {
                    return Ok(StreamableHttpPostResponse::Json(error, session));
                }
                return Err(HttpStatusError::new(status.as_u16(), None).into());
            }
            _ => {}
        }
        if !is_request {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if is_of(&content_type, EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(body, limits.max_json_response_size), session));
        }
        if !is_of(&content_type, JSON) {
            return Err(StreamableHttpError::UnexpectedContentType(Some(content_type)));
        }
        let body = whole(body, limits.max_json_response_size).await?;
        let message = serde_json::from_slice(&body);
        let message = message.map_err(|error| {
            let why = format!("the answer is no message of the protocol: {error}");
            StreamableHttpError::UnexpectedServerResponse(Cow::Owned(why))
        })?;
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let sent = self.send(Method::DELETE, &uri, Some(session_id), custom_headers, Vec::new());
        match sent.await?.status {
            status if status.is_success() || status == StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            status => Err(HttpStatusError::new(status.as_u16(), None).into()),
        }
    }

    async fn get_stream(
        &self,
        _: Arc<str>,
        _: Option<Arc<str>>,
        _: Option<String>,
        _: Option<String>,
        _: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}
