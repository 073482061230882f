//! Connections after their upgrade.
//!
//! The HTTP server has 16 KiB of buffers for each connection, and of a WebSocket that is idle they are empty.
//! So with a request that asks for an upgrade it hands over the socket. That is answered by the same application;
//! what follows is read when it is there and written at once, and nothing is kept in between.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_codec::{Encoder as _, Framed, FramedParts};
use actix_http::body::{BoxBody, MessageBody};
use actix_http::error::PayloadError;
use actix_http::h1::{Codec, Message};
use actix_http::{BoxedPayloadStream, ConnectionType, Payload, Request, Response, StatusCode};
use actix_web::dev::{Service, ServiceResponse};
use actix_web::rt::net::TcpStream;
use bytes::{Bytes, BytesMut};
use futures::{Stream, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::RESET_GRACE;
use crate::connection::link::Link;

/// How many bytes are read at a time.
const READ_BYTES: usize = 16 * 1024;

thread_local! {
    /// Where they go first: one for all connections of a thread.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Answers a request with all that follows, on the socket it came over, until that is closed or fails. What
/// follows does so on its own: the server's task, which is larger than all that it takes, is over before.
pub(super) async fn serve<A>(
    app: Rc<A>,
    request: Request,
    framed: Framed<TcpStream, Codec>,
) -> Result<(), actix_web::Error>
where
    A: Service<Request, Response = ServiceResponse, Error = actix_web::Error>,
{
    // The connection is there as long as its socket is.
    let link = request.conn_data::<Arc<Link>>().cloned();
    if let Ok((socket, body)) = begin(app, request, framed).await {
        let mut rest = Box::pin(async move {
            if pass_on(body, &socket).await.is_ok() {
                leave(&socket).await;
            }
            drop(link);
        });
        // It begins at once: behind all that is about to begin, too many would be waiting to be let in.
        if poll!(&mut rest).is_pending() {
            actix::spawn(rest);
        }
    }
    Ok(())
}

/// Answers the request; with what follows. Of a response that ends by itself that is nothing.
async fn begin<A>(
    app: Rc<A>,
    request: Request,
    framed: Framed<TcpStream, Codec>,
) -> io::Result<(OwnedWriteHalf, BoxBody)>
where
    A: Service<Request, Response = ServiceResponse, Error = actix_web::Error>,
{
    let FramedParts { io, mut codec, read_buf, mut write_buf, .. } = framed.into_parts();
    let (reader, socket) = io.into_split();
    let rest = Bytes::copy_from_slice(&read_buf);
    drop(read_buf);
    let incoming: BoxedPayloadStream = Box::pin(Incoming { reader, rest });
    let (request, _) = request.replace_payload(Payload::Stream { payload: incoming });
    let response: Response<BoxBody> = match app.call(request).await {
        Ok(response) => response.into(),
        Err(error) => error.into(),
    };
    let (mut head, body) = response.into_parts();
    let is_upgraded = head.status() == StatusCode::SWITCHING_PROTOCOLS;
    if !is_upgraded {
        head.head_mut().set_connection_type(ConnectionType::Close);
    }
    codec.encode(Message::Item((head, body.size())), &mut write_buf)?;
    // With the answers to requests before it.
    write(&socket, &write_buf).await?;
    if is_upgraded {
        return Ok((socket, body));
    }
    let mut body = pin!(body);
    while let Some(bytes) = next(body.as_mut()).await? {
        let mut chunk = BytesMut::new();
        codec.encode(Message::Chunk(Some(bytes)), &mut chunk)?;
        write(&socket, &chunk).await?;
    }
    let mut end = BytesMut::new();
    codec.encode(Message::Chunk(None), &mut end)?;
    write(&socket, &end).await?;
    Ok((socket, BoxBody::new(())))
}

async fn pass_on(body: BoxBody, socket: &OwnedWriteHalf) -> io::Result<()> {
    let mut body = pin!(body);
    while let Some(bytes) = next(body.as_mut()).await? {
        write(socket, &bytes).await?;
    }
    Ok(())
}

/// More of a body; asked for once everything before it is with the kernel.
async fn next(mut body: Pin<&mut BoxBody>) -> io::Result<Option<Bytes>> {
    let next = poll_fn(|task| body.as_mut().poll_next(task)).await;
    next.transpose().map_err(|error| io::Error::other(error.to_string()))
}

async fn write(socket: &OwnedWriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => socket.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Closes our half. For a while what still comes is read and dropped, so that the peer gets to read the end.
async fn leave(socket: &OwnedWriteHalf) {
    let socket: &TcpStream = socket.as_ref();
    // It may be gone already, which is what is wanted.
    let _ = SockRef::from(socket).shutdown(Shutdown::Write);
    let rest = async {
        while socket.readable().await.is_ok() {
            let read = SCRATCH.with_borrow_mut(|scratch| socket.try_read(scratch));
            if !matches!(&read, Ok(1..)) && !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(RESET_GRACE, rest).await;
}

/// What the peer sends.
struct Incoming {
    reader: OwnedReadHalf,
    /// What came with the request.
    rest: Bytes,
}

impl Stream for Incoming {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.rest))));
        }
        // Knows from how much is read that nothing more is there, and does not ask again.
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.reader).poll_read(task, &mut read))?;
            Poll::Ready(Ok(Bytes::copy_from_slice(read.filled())))
        });
        Poll::Ready(match ready!(read) {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => Some(Ok(bytes)),
            Err(error) => Some(Err(PayloadError::Io(error))),
        })
    }
}
