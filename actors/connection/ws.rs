//! The one file that names actix-web-actors: a WebSocket as a connection sees it.
//!
//! Output is pulled: a context is polled only when the socket asks for more, so what waits for a
//! peer that does not read is bounded by what one poll can write. Every poll's frames leave in one
//! piece. Large frames are refused in front of the decoder, by [`guard`](super::guard).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use actix::{ActorContext, ActorFuture, AsyncContext, StreamHandler};
use actix_http::ws::Item;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::{HttpRequest, HttpResponse, web};
use actix_web_actors::ws::{
    CloseCode, CloseReason, Message, ProtocolError, WebsocketContext, WsResponseBuilder,
};
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use clawmux_core::dialect::{Fault, Frame, Input};

use super::Connection;
use super::guard::{Guarded, Violation};
use super::link::{HANDSHAKE_BYTES_MAX, Link};
use super::transport::Transport;
use crate::clock;

/// A WebSocket.
#[derive(Debug, Default)]
pub struct Ws {
    fragments: Fragments,
}

/// What a connection's handlers write to.
type Context = WebsocketContext<Connection<Ws>>;

/// The longest header of a frame a server sends, in bytes.
const HEADER_BYTES_MAX: usize = 10;

/// Answers an upgrade request; `connection` speaks on the socket from then on.
///
/// # Errors
/// Where the request is not a correct WebSocket upgrade.
pub(crate) fn upgrade(
    request: &HttpRequest,
    payload: web::Payload,
    connection: Connection<Ws>,
) -> Result<HttpResponse, actix_web::Error> {
    let link = connection.link.clone();
    let allowed = (connection.protocol.max_payload_bytes)(&connection.terms);
    let largest = allowed.max(HANDSHAKE_BYTES_MAX);
    let guarded = Guarded::new(payload, link.clone());
    let response = WsResponseBuilder::new(connection, request, guarded).frame_size(largest).start()?;
    Ok(response.map_body(|_, inner| Counted { inner, link }).map_into_boxed_body())
}

/// The bytes for a peer, counted as the socket takes them.
struct Counted {
    inner: BoxBody,
    link: Arc<Link>,
}

impl MessageBody for Counted {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.inner.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        self.link.asked();
        let polled = Pin::new(&mut self.inner).poll_next(task);
        if let Poll::Ready(Some(Ok(bytes))) = &polled {
            self.link.took(bytes.len());
        }
        polled
    }
}

/// A message that comes in fragments.
#[derive(Debug, Default)]
struct Fragments {
    bytes: BytesMut,
    is_text: bool,
}

impl Transport for Ws {
    type Context = Context;

    fn begin(&mut self, context: &mut Context) {
        context.spawn(Pump);
    }

    fn send(&mut self, context: &mut Context, link: &Link, frame: Frame) {
        link.wrote(frame.len() + HEADER_BYTES_MAX);
        match frame {
            Frame::Text(text) => context.text(text),
            Frame::Binary(bytes) => context.binary(bytes),
        }
    }

    fn ping(&mut self, context: &mut Context, link: &Link) {
        link.wrote(HEADER_BYTES_MAX);
        context.ping(b"");
    }

    fn close(&mut self, context: &mut Context, link: &Link, code: u16, reason: &str) {
        // A control frame has room for 123 bytes of it.
        let reason = &reason[..reason.floor_char_boundary(123)];
        link.wrote(reason.len() + HEADER_BYTES_MAX);
        context.close(Some(CloseReason {
            code: CloseCode::from(code),
            description: (!reason.is_empty()).then(|| reason.to_owned()),
        }));
    }

    fn set_mailbox_capacity(context: &mut Context, capacity: usize) {
        context.set_mailbox_capacity(capacity);
    }
}

/// Runs whenever the socket asks for more, since then everything in a context is polled.
struct Pump;

impl ActorFuture<Connection<Ws>> for Pump {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        connection: &mut Connection<Ws>,
        context: &mut Context,
        _: &mut Task<'_>,
    ) -> Poll<()> {
        connection.on_room(context);
        Poll::Pending
    }
}

impl StreamHandler<Result<Message, ProtocolError>> for Connection<Ws> {
    fn handle(&mut self, message: Result<Message, ProtocolError>, context: &mut Context) {
        match message {
            Ok(Message::Text(text)) => self.on_frame(Frame::Text(text), context),
            Ok(Message::Binary(bytes)) => self.on_frame(Frame::Binary(bytes), context),
            Ok(Message::Continuation(item)) => self.on_fragment(item, context),
            Ok(Message::Ping(bytes)) => {
                if !self.is_closing() {
                    self.link.wrote(bytes.len() + HEADER_BYTES_MAX);
                    context.pong(&bytes);
                }
            }
            Ok(Message::Pong(_) | Message::Nop) => {}
            Ok(Message::Close(reason)) => {
                self.tell(Input::Ended, context);
                if !self.is_closing() {
                    context.close(reason.map(|reason| CloseReason { description: None, ..reason }));
                }
                context.stop();
            }
            Err(error) => self.on_broken(&error, context),
        }
    }

    fn finished(&mut self, context: &mut Context) {
        self.tell(Input::Ended, context);
        context.stop();
    }
}

impl Connection<Ws> {
    fn on_fragment(&mut self, item: Item, context: &mut Context) {
        match item {
            Item::FirstText(bytes) => {
                self.transport.fragments = Fragments { bytes: BytesMut::from(&bytes[..]), is_text: true };
            }
            Item::FirstBinary(bytes) => {
                self.transport.fragments = Fragments { bytes: BytesMut::from(&bytes[..]), is_text: false };
            }
            Item::Continue(bytes) => self.transport.fragments.bytes.extend_from_slice(&bytes),
            Item::Last(bytes) => {
                self.transport.fragments.bytes.extend_from_slice(&bytes);
                let Fragments { bytes, is_text } = std::mem::take(&mut self.transport.fragments);
                let bytes = bytes.freeze();
                if !is_text {
                    return self.on_frame(Frame::Binary(bytes), context);
                }
                match ByteString::try_from(bytes) {
                    Ok(text) => self.on_frame(Frame::Text(text), context),
                    Err(_) => self.end_broken(1007, "text must be UTF-8", context),
                }
            }
        }
    }

    fn on_broken(&mut self, error: &ProtocolError, context: &mut Context) {
        match (self.link.violation(), error) {
            (Some(Violation::Oversize { limit }), _) => {
                self.link.closes("oversize", clock::now());
                self.tell(Input::Fault(Fault::Oversize { limit }), context);
                self.end(1009, "the frame is too large", context);
            }
            (Some(Violation::Protocol(why)), _) => self.end_broken(1002, why, context),
            // The only complaint the decoder has left that is not about a header.
            (None, ProtocolError::Io(_)) => self.end_broken(1007, "text must be UTF-8", context),
            (None, _) => self.end_broken(1002, "broken frame", context),
        }
    }

    fn end_broken(&mut self, code: u16, why: &str, context: &mut Context) {
        self.link.closes("broken", clock::now());
        self.end(code, why, context);
    }
}
