//! Lines of a Unix socket, as a connection sees them: UTF-8, one message a line, split at `\n`.
//!
//! One future moves bytes both ways and runs whenever anything happens in the actor's context. It writes
//! what waits, then reads on as long as the [`Link`] says that more may be read: so what waits for a
//! peer that does not read, and what it asked for, is bounded as it is over a WebSocket. A line
//! that is too long is refused when so much of it is there; at most one line and one read are held, counted
//! with what all connections hold of messages that are not complete.
//!
//! Spaces, tabs and CR around a line do not count, empty lines are skipped, and an unfinished line at the
//! end is none. A peer that has closed its half still reads: what it asked for is answered.
//!
//! A connection that ends stays until its peer has taken the last line and closed too, for a moment,
//! and drops what still comes: so a peer that is busy writing gets to read why.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use actix::{ActorContext, ActorFuture, AsyncContext};
use bytes::{Buf, Bytes, BytesMut};
use bytestring::ByteString;
use clawmux_core::dialect::{Fault, Frame, Input};
use socket2::SockRef;
use tokio::net::UnixStream;

use super::Connection;
use super::link::Link;
use super::transport::Transport;
use crate::runtime::clock;

/// What a connection's handlers write to.
type Context = actix::Context<Connection<Lines>>;

/// Bytes of one read, at least and at most: more where a long line is under way.
const READ_BYTES: (usize, usize) = (8 * 1024, 256 * 1024);

/// Room for so many bytes is kept for what is to be written next.
const KEPT_BYTES: usize = 64 * 1024;

/// So many lines in a row are taken before others on the arbiter have their turn.
const LINES_IN_A_ROW: usize = 32;

/// A Unix socket that carries lines.
#[derive(Debug)]
pub struct Lines {
    stream: UnixStream,
    unread: Unread,
    unsent: BytesMut,
    /// Whether the peer has closed its half.
    has_ended: bool,
    /// Whether ours is closed.
    has_finished: bool,
}

/// What was read and is no frame yet; the bytes themselves are the link's.
#[derive(Debug, Default)]
struct Unread {
    /// So many of them hold no line end.
    looked_at: usize,
}

/// There was a line of more bytes than a line may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLong;

impl Unread {
    /// Takes the next line that is not empty, without its end and the spaces around it.
    fn line(&mut self, bytes: &mut BytesMut, bytes_max: usize) -> Result<Option<Bytes>, TooLong> {
        loop {
            let end = bytes[self.looked_at..].iter().position(|byte| *byte == b'\n');
            let length = end.map_or(bytes.len(), |end| self.looked_at + end);
            if length > bytes_max {
                return Err(TooLong);
            }
            if end.is_none() {
                self.looked_at = length;
                return Ok(None);
            }
            self.looked_at = 0;
            let line = bytes.split_to(length);
            bytes.advance(1);
            if bytes.is_empty() {
                // Whoever gets the line has the memory, and nothing is held for an idle peer.
                *bytes = BytesMut::new();
            }
            let line = line.freeze();
            let trimmed = trim(&line);
            if !trimmed.is_empty() {
                return Ok(Some(line.slice_ref(trimmed)));
            }
        }
    }
}

/// How much to read next, where so much is there.
fn room(unread: usize) -> usize {
    let (least, most) = READ_BYTES;
    unread.clamp(least, most)
}

fn trim(line: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
    let begin = line.iter().position(|byte| !is_space(byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !is_space(byte)).map_or(begin, |last| last + 1);
    &line[begin..end]
}

/// What a peer brought about.
enum Incoming {
    Frame(Frame),
    Oversize {
        limit: usize,
    },
    /// It closed its half.
    Ended,
}

impl Lines {
    /// Over this socket, which does not block; called on the arbiter of its actor.
    ///
    /// # Errors
    /// Where the runtime can't take the socket.
    pub fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        let stream = UnixStream::from_std(stream)?;
        let (unread, unsent) = (Unread::default(), BytesMut::new());
        Ok(Self { stream, unread, unsent, has_ended: false, has_finished: false })
    }

    /// Writes what waits, as far as there is room for it.
    fn poll_flush(&mut self, link: &Link, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match self.stream.poll_write_ready(task) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    link.took_some(0, false);
                    return Poll::Pending;
                }
            }
            match self.stream.try_write(&self.unsent) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(written) => {
                    self.unsent.advance(written);
                    link.took_some(written, true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if self.unsent.capacity() > KEPT_BYTES {
            self.unsent = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    /// What comes next.
    fn poll_incoming(&mut self, link: &Arc<Link>, task: &mut Task<'_>) -> Poll<io::Result<Incoming>> {
        if self.has_ended {
            return Poll::Pending;
        }
        let limit = link.frame_limit();
        loop {
            // Where it was taken away, the connection is about to be told.
            let line = link.partial().change(link, |bytes| {
                let line = self.unread.line(bytes, limit);
                (line, bytes.is_empty())
            });
            let Some((line, is_empty)) = line else { return Poll::Pending };
            if is_empty || matches!(line, Ok(Some(_))) {
                link.message_ended();
            }
            match line {
                Ok(Some(line)) => {
                    let frame = match ByteString::try_from(line.clone()) {
                        Ok(text) => Frame::Text(text),
                        Err(_) => Frame::Binary(line),
                    };
                    return Poll::Ready(Ok(Incoming::Frame(frame)));
                }
                Ok(None) => {}
                Err(TooLong) => return Poll::Ready(Ok(Incoming::Oversize { limit })),
            }
            if !is_empty {
                link.message_goes_on();
            }
            ready!(self.stream.poll_read_ready(task))?;
            let stream = &self.stream;
            let read = link.partial().change(link, |bytes| {
                bytes.reserve(room(bytes.len()));
                let read = stream.try_read_buf(bytes);
                if bytes.is_empty() {
                    // Holds no memory for a peer that has sent nothing.
                    *bytes = BytesMut::new();
                }
                read
            });
            match read {
                None => return Poll::Pending,
                Some(Ok(0)) => {
                    self.has_ended = true;
                    link.message_ended();
                    link.partial().change(link, |bytes| *bytes = BytesMut::new());
                    return Poll::Ready(Ok(Incoming::Ended));
                }
                Some(Ok(read)) => link.received(read),
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Drops what still comes, until the peer closes.
    fn poll_drop(&mut self, task: &mut Task<'_>) -> Poll<()> {
        let mut dropped = [0; READ_BYTES.0];
        if self.has_ended {
            return Poll::Ready(());
        }
        loop {
            if ready!(self.stream.poll_read_ready(task)).is_err() {
                return Poll::Ready(());
            }
            match self.stream.try_read(&mut dropped) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
    }

    /// Closes our half, once.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.has_finished, true) {
            // It may be gone already, which is what is wanted.
            let _ = SockRef::from(&self.stream).shutdown(Shutdown::Write);
        }
    }
}

impl Transport for Lines {
    type Context = Context;

    fn begin(&mut self, context: &mut Context) {
        context.spawn(Pump);
    }

    fn send(&mut self, _: &mut Context, link: &Link, frame: Frame) {
        let bytes = match &frame {
            Frame::Text(text) => text.as_bytes(),
            Frame::Binary(bytes) => bytes,
        };
        link.wrote(bytes.len() + 1);
        self.unsent.reserve(bytes.len() + 1);
        self.unsent.extend_from_slice(bytes);
        self.unsent.extend_from_slice(b"\n");
    }

    /// Lines have no such thing, and a peer may be silent as long as it likes.
    fn ping(&mut self, _: &mut Context, _: &Link) {}

    /// Lines have no such thing: the last one said why.
    fn close(&mut self, _: &mut Context, _: &Link, _: u16, _: &str) {}

    fn set_mailbox_capacity(context: &mut Context, capacity: usize) {
        context.set_mailbox_capacity(capacity);
    }
}

/// Moves the bytes. It runs after everything else that was done in the context, so that what was sent
/// there leaves and what may be read now is read.
struct Pump;

impl ActorFuture<Connection<Lines>> for Pump {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        connection: &mut Connection<Lines>,
        context: &mut Context,
        task: &mut Task<'_>,
    ) -> Poll<()> {
        for _ in 0..LINES_IN_A_ROW {
            let flushed = connection.transport.poll_flush(&connection.link, task);
            match flushed {
                Poll::Ready(Ok(())) => {
                    connection.link.asked();
                    connection.on_room(context);
                    if connection.link.buffered_bytes() > 0 {
                        // There was more to say.
                        continue;
                    }
                }
                Poll::Ready(Err(_)) => return connection.is_gone(context),
                Poll::Pending => {}
            }
            if connection.is_closing() {
                if flushed.is_ready() {
                    connection.transport.finish();
                    ready!(connection.transport.poll_drop(task));
                    context.stop();
                    return Poll::Ready(());
                }
                return Poll::Pending;
            }
            if !connection.link.may_read() {
                return Poll::Pending;
            }
            match ready!(connection.transport.poll_incoming(&connection.link, task)) {
                Ok(Incoming::Frame(frame)) => connection.on_frame(frame, context),
                Ok(Incoming::Oversize { limit }) => {
                    connection.link.closes("oversize", clock::now());
                    connection.tell(Input::Fault(Fault::Oversize { limit }), context);
                    connection.end(1009, "the line is too long", context);
                }
                Ok(Incoming::Ended) => connection.tell(Input::Ended, context),
                Err(_) => return connection.is_gone(context),
            }
        }
        // The others first.
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Connection<Lines> {
    /// Nobody reads any more.
    fn is_gone(&mut self, context: &mut Context) -> Poll<()> {
        self.link.close_begins(clock::now());
        context.stop();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The lines of `bytes` that come in pieces of these sizes.
    fn lines(bytes: &[u8], sizes: &[usize], bytes_max: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let (mut unread, mut unread_bytes, mut found) = (Unread::default(), BytesMut::new(), Vec::new());
        let (mut rest, mut sizes) = (bytes, sizes.iter().copied().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().unwrap_or(1).clamp(1, rest.len()));
            unread_bytes.extend_from_slice(piece);
            while let Some(line) = unread.line(&mut unread_bytes, bytes_max)? {
                found.push(line.to_vec());
            }
            rest = after;
        }
        Ok(found)
    }

    #[test]
    fn spaces_around_lines_and_empty_lines_do_not_count() {
        let found = lines(b" \t{}\r\n\r\n\n  \n a b \nunfinished", &[3], 64).unwrap();
        assert_eq!(found, [b"{}".to_vec(), b"a b".to_vec()]);
    }

    #[test]
    fn a_line_may_have_so_many_bytes_and_no_more() {
        assert_eq!(lines(b"1234\n", &[1], 4).unwrap(), [b"1234".to_vec()]);
        assert_eq!(lines(b"12345\n", &[64], 4), Err(TooLong));
        assert_eq!(lines(b"12345", &[1], 4), Err(TooLong), "known before its end is there");
    }

    #[test]
    fn nothing_is_held_for_an_idle_peer() {
        let (mut unread, mut bytes) = (Unread::default(), BytesMut::from(&b"{}\n"[..]));
        assert!(unread.line(&mut bytes, 64).unwrap().is_some());
        assert!(unread.line(&mut bytes, 64).unwrap().is_none());
        assert_eq!(bytes.capacity(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Lines are found whatever pieces they come in.
        #[test]
        fn lines_survive_every_split(
            said in proptest::collection::vec("[^\n]{0,40}", 0..6),
            sizes in proptest::collection::vec(1_usize..16, 1..4),
        ) {
            let text: String = said.iter().map(|line| format!("{line}\n")).collect();
            let expected: Vec<Vec<u8>> = said
                .iter()
                .map(|line| line.trim_matches([' ', '\t', '\r']).as_bytes().to_vec())
                .filter(|line| !line.is_empty())
                .collect();
            prop_assert_eq!(lines(text.as_bytes(), &sizes, 1024), Ok(expected));
        }
    }
}
