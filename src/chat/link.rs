//! The WebSocket to a daemon: let in, kept alive, and either understood or given up.

use std::pin::Pin;
use std::time::Duration;

use awc::Client;
use awc::error::WsProtocolError;
use awc::ws::{Frame, Message};
use bytes::{Bytes, BytesMut};
use clawmux_core::auth::Secret;
use clawmux_core::dialect::exoclaw::client::{self as exoclaw, Told};
use futures::stream::LocalBoxStream;
use futures::{Sink, SinkExt, StreamExt};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::exit::{FAILED, Failure, UNREACHABLE};

/// The largest message taken from a daemon, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How long the handshake may take with a credential.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a daemon that wants no credential may take to say so.
const HELLO: Duration = Duration::from_secs(3);
/// How often a silent daemon is asked whether it lives, and how many times.
const BEAT: Duration = Duration::from_secs(30);
const BEATS_MAX: u32 = 3;
/// How long a frame may take to leave, and the Close frame to be answered.
const WRITE: Duration = Duration::from_secs(30);
const CLOSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    sink: Pin<Box<dyn Sink<Message, Error = WsProtocolError>>>,
    stream: LocalBoxStream<'static, Result<Frame, WsProtocolError>>,
    beat: Interval,
    silent_beats: u32,
    fragments: BytesMut,
}

impl Link {
    /// Connects and is let in.
    ///
    /// # Errors
    /// Status 69 where nobody answers, 1 where the credential is missing or wrong.
    pub(super) async fn open(url: &str, token: Option<&Secret>) -> Result<Self, Failure> {
        let unreachable =
            |why: String| Failure::new(UNREACHABLE, format!("no daemon is reachable at {url}: {why}"));
        let request = Client::builder().timeout(HANDSHAKE).finish().ws(url).max_frame_size(MESSAGE_BYTES_MAX);
        let (_, socket) = request.connect().await.map_err(|error| unreachable(error.to_string()))?;
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
            link.send(exoclaw::token(token.expose())).await?;
        }
        let patience = if token.is_some() { HANDSHAKE } else { HELLO };
        match timeout(patience, link.greeting()).await {
            Ok(greeted) => greeted.map(|()| link),
            Err(_) if token.is_none() => Err(Failure::new(
                FAILED,
                "the daemon wants a credential: set CLAWMUX_TOKEN or give --token-file",
            )),
            Err(_) => Err(unreachable(format!("no greeting within {patience:?}"))),
        }
    }

    async fn greeting(&mut self) -> Result<(), Failure> {
        loop {
            match self.next().await? {
                Told::Hello => return Ok(()),
                Told::Closing { error, .. } if error == exoclaw::AUTH_FAILED => {
                    return Err(Failure::new(FAILED, "the daemon does not accept this token"));
                }
                Told::Closing { error, .. } if error == exoclaw::DRAINING => {
                    return Err(Failure::new(UNREACHABLE, "the daemon stops"));
                }
                Told::Closing { error, .. } => {
                    return Err(Failure::new(
                        FAILED,
                        format!("the daemon closes: {}", crate::terminal::one_line(&error, 200)),
                    ));
                }
                _ => {}
            }
        }
    }

    /// Sends a text frame.
    ///
    /// # Errors
    /// Status 1 where the connection is lost.
    pub(super) async fn send(&mut self, text: String) -> Result<(), Failure> {
        match timeout(WRITE, self.sink.send(Message::Text(text.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(&error.to_string())),
            Err(_) => Err(lost("it takes nothing any more")),
        }
    }

    /// What the daemon says next. May be dropped while it waits and called anew.
    ///
    /// # Errors
    /// Status 1 where the connection is lost.
    pub(super) async fn next(&mut self) -> Result<Told, Failure> {
        loop {
            let frame = tokio::select! {
                frame = self.stream.next() => frame,
                _ = self.beat.tick() => {
                    self.silent_beats += 1;
                    if self.silent_beats > BEATS_MAX {
                        return Err(lost("it is silent"));
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
                    let why =
                        reason.and_then(|reason| reason.description).unwrap_or_else(|| "it closed".into());
                    return Err(lost(&crate::terminal::one_line(&why, 200)));
                }
                Some(Err(error)) => return Err(lost(&error.to_string())),
                None => return Err(lost("it closed")),
            };
            if let Some(text) = complete {
                return Ok(std::str::from_utf8(&text).map_or(Told::Unknown, exoclaw::read));
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
            return Err(lost("it sent a message that is too large"));
        }
        self.fragments.extend_from_slice(&piece);
        Ok(last.then(|| self.fragments.split().freeze()))
    }

    /// Says goodbye; does not wait long for the answer.
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

fn lost(why: &str) -> Failure {
    Failure::new(FAILED, format!("the connection to the daemon is lost: {why}"))
}
