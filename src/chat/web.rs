//! The WebSocket to a daemon: authentication, keepalive, and errors in words.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use actix_http::error::ParseError;
use awc::Client;
use awc::error::{ConnectError, SendRequestError, WsClientError, WsProtocolError};
use awc::http::{StatusCode, Uri};
use awc::ws::{Frame, Message};
use bytes::{Bytes, BytesMut};
use clawmux_core::access::Secret;
use clawmux_core::dialect::exoclaw::client::{self as exoclaw, ServerMessage};
use futures::stream::LocalBoxStream;
use futures::{Sink, SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::link_error::{LinkError, MESSAGE_BYTES_MAX, closing, lost};
use crate::exit::{FAILED, Failure};
use crate::terminal::one_line;

/// How long the handshake may take with a credential.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait for the greeting without a credential.
const HELLO: Duration = Duration::from_secs(3);
/// How often a silent daemon is pinged, and how many pings may stay without an answer.
const BEAT: Duration = Duration::from_secs(30);
const BEATS_MAX: u32 = 3;
/// How long a frame may take to leave, and the Close frame to be answered.
const WRITE: Duration = Duration::from_secs(30);
const CLOSE: Duration = Duration::from_secs(1);
/// How long the words of a refusal may take, and how many bytes of them are read.
const REFUSAL: Duration = Duration::from_secs(2);
const REFUSAL_BYTES_MAX: u64 = 16 * 1024;
/// How much of them is quoted, in characters.
const QUOTED_CHARS_MAX: usize = 400;

pub(super) struct Web {
    sink: Pin<Box<dyn Sink<Message, Error = WsProtocolError>>>,
    stream: LocalBoxStream<'static, Result<Frame, WsProtocolError>>,
    beat: Interval,
    silent_beats: u32,
    fragments: BytesMut,
}

impl Web {
    /// Connects and authenticates.
    ///
    /// # Errors
    /// If nobody answers, or the daemon does not accept this client.
    pub(super) async fn open(url: &str, token: Option<&Secret>) -> Result<Self, LinkError> {
        let request = Client::builder().timeout(HANDSHAKE).finish().ws(url).max_frame_size(MESSAGE_BYTES_MAX);
        let socket = match request.connect().await {
            Ok((_, socket)) => socket,
            Err(error) => return Err(refused(url, error).await),
        };
        let (sink, stream) = socket.split();
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beat.reset();
        let mut link = Self {
            sink: Box::pin(sink),
            stream: stream.boxed_local(),
            beat,
            silent_beats: 0,
            fragments: BytesMut::new(),
        };
        if let Some(token) = token {
            link.send(exoclaw::token(token.expose())).await.map_err(LinkError::Temporary)?;
        }
        let patience = if token.is_some() { HANDSHAKE } else { HELLO };
        let mut is_strange = false;
        match timeout(patience, link.greeting(&mut is_strange)).await {
            Ok(greeted) => greeted.map(|()| link),
            Err(_) if is_strange => Err(LinkError::refused(format!(
                "what answers at {url} speaks another protocol: clawmux has its WebSocket for chats at /ws"
            ))),
            Err(_) if token.is_none() => Err(LinkError::refused(
                "the daemon wants a credential: set CLAWMUX_TOKEN or give --token-file",
            )),
            Err(_) => Err(unreachable(url, &format!("no greeting within {} s", patience.as_secs()))),
        }
    }

    /// Waits for the greeting; sets `is_strange` if anything came that is not exoclaw.
    async fn greeting(&mut self, is_strange: &mut bool) -> Result<(), LinkError> {
        loop {
            match self.next().await.map_err(LinkError::Temporary)? {
                ServerMessage::Hello => return Ok(()),
                ServerMessage::Closing { error, .. } => return Err(closing(&error)),
                _ => *is_strange = true,
            }
        }
    }

    /// Sends a text frame.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) async fn send(&mut self, text: String) -> Result<(), Failure> {
        match timeout(WRITE, self.sink.send(Message::Text(text.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(&error.to_string())),
            Err(_) => Err(lost("the daemon takes nothing any more")),
        }
    }

    /// The next message of the daemon. Cancel safe.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) async fn next(&mut self) -> Result<ServerMessage, Failure> {
        loop {
            let frame = tokio::select! {
                frame = self.stream.next() => frame,
                _ = self.beat.tick() => {
                    self.silent_beats += 1;
                    if self.silent_beats > BEATS_MAX {
                        return Err(lost("the daemon is silent"));
                    }
                    let _ = self.sink.send(Message::Ping(Bytes::new())).await;
                    continue;
                }
            };
            self.silent_beats = 0;
            let complete = match frame {
                Some(Ok(Frame::Text(text))) => Some(text),
                Some(Ok(Frame::Continuation(item))) => self.assemble(item)?,
                Some(Ok(Frame::Ping(payload))) => {
                    let _ = self.sink.send(Message::Pong(payload)).await;
                    None
                }
                Some(Ok(Frame::Pong(_) | Frame::Binary(_))) => None,
                Some(Ok(Frame::Close(reason))) => {
                    let why = reason.and_then(|reason| reason.description);
                    return Err(lost(&one_line(&why.unwrap_or_else(|| "the daemon closed it".into()), 200)));
                }
                Some(Err(error)) => return Err(lost(&error.to_string())),
                None => return Err(lost("the daemon closed it")),
            };
            if let Some(text) = complete {
                return Ok(std::str::from_utf8(&text).map_or(ServerMessage::Unknown, exoclaw::read));
            }
        }
    }

    fn assemble(&mut self, item: actix_http::ws::Item) -> Result<Option<Bytes>, Failure> {
        use actix_http::ws::Item;
        let (piece, last) = match item {
            Item::FirstText(piece) | Item::FirstBinary(piece) => {
                self.fragments.clear();
                (piece, false)
            }
            Item::Continue(piece) => (piece, false),
            Item::Last(piece) => (piece, true),
        };
        if self.fragments.len() + piece.len() > MESSAGE_BYTES_MAX {
            return Err(lost("the daemon sent a message that is too large"));
        }
        self.fragments.extend_from_slice(&piece);
        Ok(last.then(|| self.fragments.split().freeze()))
    }

    /// Closes the connection; does not wait long for the answer.
    pub(super) async fn close(&mut self) {
        let goodbye = async {
            if self.sink.send(Message::Close(None)).await.is_ok() {
                while let Some(Ok(frame)) = self.stream.next().await {
                    if matches!(frame, Frame::Close(_)) {
                        return;
                    }
                }
            }
        };
        let _ = timeout(CLOSE, goodbye).await;
    }
}

fn unreachable(url: &str, why: &str) -> LinkError {
    LinkError::unreachable(format!("no daemon is reachable at {url}: {why}"))
}

/// Why the WebSocket could not be opened.
async fn refused(url: &str, error: WsClientError) -> LinkError {
    let failed = |why: String| LinkError::refused(why);
    let no_clawmux = |why: &str| {
        failed(format!("what answers at {url} is no clawmux, or not its /ws: {}", one_line(why, 200)))
    };
    match error {
        WsClientError::InvalidResponseStatus(status) => {
            let said = words(url).await.map(|said| format!(": {said}")).unwrap_or_default();
            let why = format!("refused at {url} with HTTP status {status}{said}");
            match status {
                StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS => LinkError::Temporary(Failure::new(FAILED, why)),
                StatusCode::NOT_FOUND => failed(format!("{why}; clawmux has its WebSocket at /ws")),
                _ => failed(why),
            }
        }
        WsClientError::SendRequest(SendRequestError::Connect(ConnectError::Io(error)))
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other) =>
        {
            failed(format!("no TLS connection to {url}: {error}"))
        }
        // It went while it was asked.
        WsClientError::SendRequest(SendRequestError::Response(
            error @ (ParseError::Io(_) | ParseError::Incomplete),
        )) => unreachable(url, &error.to_string()),
        WsClientError::SendRequest(SendRequestError::Response(error)) => no_clawmux(&error.to_string()),
        WsClientError::SendRequest(SendRequestError::Url(error)) => failed(format!("--url {url}: {error}")),
        WsClientError::SendRequest(error) => unreachable(url, &error.to_string()),
        other => no_clawmux(&other.to_string()),
    }
}

/// What a server says that does not let a WebSocket be, in its own words: it is asked once more, since
/// the client that tried has only its status. None where it is not told in the clear.
async fn words(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    if uri.scheme_str() != Some("ws") {
        return None;
    }
    let (authority, path) =
        (uri.authority()?.as_str(), uri.path_and_query().map_or("/", |path| path.as_str()));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    let exchange = async {
        let host = uri.host()?.trim_matches(['[', ']']);
        let mut socket = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.ok()?;
        socket.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        let mut limited = socket.take(REFUSAL_BYTES_MAX);
        while body(&answer).is_none() && limited.read_buf(&mut answer).await.ok()? > 0 {}
        body(&answer)
    };
    timeout(REFUSAL, exchange).await.ok().flatten()
}

/// The body of a response as text, once it is there as a whole; none for a page.
fn body(response: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(response);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    };
    let length: usize = header("content-length")?.parse().ok()?;
    let body = body.get(..length).map(str::trim).filter(|body| !body.is_empty())?;
    if header("content-type").is_some_and(|kind| kind.contains("html")) {
        return None;
    }
    let said = serde_json::from_str::<Value>(body).ok().and_then(|body| {
        let error = body.get("error")?;
        error.as_str().or_else(|| error.get("message")?.as_str()).map(str::to_owned)
    });
    Some(one_line(&said.unwrap_or_else(|| body.to_owned()), QUOTED_CHARS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_quoted_where_it_is_text() {
        let response = |kind: &str, body: &str| {
            let length = body.len();
            format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
            )
        };
        for (response, said) in [
            (response("application/json", r#"{"error":"not this Origin"}"#), Some("not this Origin")),
            (response("application/json", r#"{"error":{"message":"no"}}"#), Some("no")),
            (response("text/plain", "go\u{1b}[2J away\n"), Some("go[2J away")),
            (response("text/html", "<html>"), None),
            (response("text/plain", ""), None),
            ("HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nabc".into(), None),
            ("SSH-2.0".into(), None),
        ] {
            assert_eq!(body(response.as_bytes()).as_deref(), said, "{response}");
        }
    }
}
