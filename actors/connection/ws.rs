//! The one file that names actix-web-actors: a WebSocket as a connection sees it.
//!
//! Output is pulled: a context is polled only when the socket asks for more, so what waits for a
//! peer that does not read is bounded by what one poll can write. Every poll's frames leave in one
//! piece. Input it has none: the bytes of a peer are read by [`frames`](super::frames), as far as the
//! [`Link`] says that more may be read.
//!
//! The server asks for more of a body only once everything before it is with the kernel (see
//! [`Listener`](crate::listener::Listener)). So a context that has come to its end has nothing left
//! to be delivered, and our half is closed there and then: after the Close that answers the peer's, the
//! peer's that answers ours, or ours that says what is wrong with its frames (RFC 6455, 7.1). What still
//! comes is read and dropped for a moment: closing at once would destroy what the peer has not read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use actix::{ActorContext, ActorFuture, AsyncContext, StreamHandler};
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::{HttpRequest, HttpResponse, web};
use actix_web_actors::ws::{
    CloseCode, CloseReason, Message, ProtocolError, WebsocketContext, WsResponseBuilder,
};
use bytes::Bytes;
use clawmux_core::dialect::{Fault, Frame, Input};

use super::Connection;
use super::frames::{Frames, Incoming};
use super::guard::Violation;
use super::link::Link;
use super::transport::Transport;
use crate::runtime::clock;

/// A WebSocket.
pub struct Ws {
    frames: Frames<web::Payload>,
}

/// What a connection's handlers write to.
type Context = WebsocketContext<Connection<Ws>>;

/// So many frames in a row are taken before others on the arbiter have their turn.
const FRAMES_IN_A_ROW: usize = 16;

/// The longest header of a frame a server sends, in bytes.
const HEADER_BYTES_MAX: usize = 10;

impl Ws {
    /// Over what follows an upgrade request.
    pub(crate) fn new(payload: web::Payload) -> Self {
        Self { frames: Frames::new(payload) }
    }
}

/// Answers an upgrade request; `connection` speaks on the socket from then on.
///
/// # Errors
/// Where the request is not a correct WebSocket upgrade.
pub(crate) fn upgrade(
    request: &HttpRequest,
    connection: Connection<Ws>,
) -> Result<HttpResponse, actix_web::Error> {
    let link = connection.link.clone();
    let response = WsResponseBuilder::new(connection, request, futures::stream::pending()).start()?;
    Ok(response.map_body(|_, inner| Counted { inner, link }).map_into_boxed_body())
}

/// The same response to an upgrade that is refused, after which our half is closed at once.
pub(crate) fn refused(response: HttpResponse, link: Arc<Link>) -> HttpResponse {
    response.map_body(|_, inner| Last { inner, link }).map_into_boxed_body()
}

/// The last bytes for a peer.
struct Last {
    inner: BoxBody,
    link: Arc<Link>,
}

impl MessageBody for Last {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.inner.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_next(task);
        if let Poll::Ready(None) = &polled {
            self.link.finish();
        }
        polled
    }
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
        match &polled {
            Poll::Ready(Some(Ok(bytes))) => self.link.took(bytes.len()),
            Poll::Ready(None) => self.link.finish(),
            _ => {}
        }
        polled
    }
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

/// Runs whenever anything happens in the context, and whenever the socket asks for more, since then
/// everything in a context is polled.
struct Pump;

impl ActorFuture<Connection<Ws>> for Pump {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        connection: &mut Connection<Ws>,
        context: &mut Context,
        task: &mut Task<'_>,
    ) -> Poll<()> {
        connection.on_room(context);
        for _ in 0..FRAMES_IN_A_ROW {
            if !(connection.link.may_read() || connection.is_closing()) {
                // The socket has not taken what is written; when it does, everything is polled again.
                return Poll::Pending;
            }
            let incoming = ready!(connection.transport.frames.poll(&connection.link, task));
            if connection.on_incoming(incoming, context) {
                context.stop();
                return Poll::Ready(());
            }
        }
        // The others first.
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl StreamHandler<Result<Message, ProtocolError>> for Connection<Ws> {
    /// Never: nothing comes to the context itself.
    fn handle(&mut self, _: Result<Message, ProtocolError>, _: &mut Context) {}

    fn finished(&mut self, _: &mut Context) {}
}

impl Connection<Ws> {
    /// Takes what came; whether it was the last of it.
    fn on_incoming(&mut self, incoming: Incoming, context: &mut Context) -> bool {
        match incoming {
            Incoming::Message(frame) => self.on_frame(frame, context),
            Incoming::Ping(bytes) => {
                if !self.is_closing() {
                    self.link.wrote(bytes.len() + HEADER_BYTES_MAX);
                    context.pong(&bytes);
                }
            }
            Incoming::Close(code) => {
                self.tell(Input::Ended, context);
                if !self.is_closing() {
                    let reason = |code| CloseReason { code: CloseCode::from(code), description: None };
                    self.link.wrote(HEADER_BYTES_MAX);
                    context.close(code.map(reason));
                    self.link.says_goodbye();
                }
                return true;
            }
            Incoming::Ended => {
                self.tell(Input::Ended, context);
                return true;
            }
            Incoming::Refused(violation) => {
                self.on_violation(violation, context);
                return true;
            }
        }
        false
    }

    fn on_violation(&mut self, violation: Violation, context: &mut Context) {
        let (code, why) = match violation {
            Violation::Oversize { limit } => {
                self.link.closes("oversize", clock::now());
                self.tell(Input::Fault(Fault::Oversize { limit }), context);
                (1009, "the frame is too large")
            }
            Violation::Protocol(why) => (1002, why),
            Violation::NotText => (1007, "text must be UTF-8"),
        };
        self.link.closes("broken", clock::now());
        self.end(code, why, context);
    }
}
