//! How an answer begins: with nothing, or with what is no HTTP.
//!
//! A connection that was kept for the next request may be closed by the server at any moment, even while that
//! request is on its way. Only here is it known that a connection had been used before and that not a byte came
//! back on it, which is when the request may be sent again. And a server that speaks TLS says so with its first
//! byte, which an HTTP parser only calls garbage.
//!
//! A request that can't be written to its end may have been answered all the same, such as one that is too large:
//! the rest of it goes nowhere, and what the server said is read.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The first byte of the two records of TLS that a server may begin with: an alert and a handshake. No HTTP
/// begins so.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// Why there is no answer. The inner error of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The connection had been used before, and was closed before a byte of this answer.
    Stale,
    /// The server speaks TLS, and was not spoken to by TLS.
    Tls,
}

impl NoAnswer {
    /// Whether this is what went wrong, and which of it.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    fn error(self) -> io::Error {
        let kind = match self {
            Self::Stale => io::ErrorKind::ConnectionAborted,
            Self::Tls => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, self)
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stale => "the connection was closed while it was not in use",
            Self::Tls => "the server speaks TLS",
        })
    }
}

impl std::error::Error for NoAnswer {}

/// A client's connection over `S`, on which a request is written whole before its answer is read.
#[derive(Debug)]
pub(crate) struct Beginning<S> {
    below: S,
    /// Whether an answer was read on it before.
    is_used: bool,
    /// Whether something was written since the last byte was read.
    awaits: bool,
    /// Why nothing can be written any more.
    unwritable: Option<io::Error>,
}

impl<S> Beginning<S> {
    pub(crate) fn new(below: S) -> Self {
        Self { below, is_used: false, awaits: false, unwritable: None }
    }

    pub(crate) fn below(&self) -> &S {
        &self.below
    }

    /// What the end of the connection is where an answer was to begin.
    fn ended(&mut self, why: Option<io::Error>) -> io::Result<()> {
        if self.is_used {
            return Err(NoAnswer::Stale.error());
        }
        why.or_else(|| self.unwritable.take()).map_or(Ok(()), Err)
    }

    /// What a write came to, where the connection may have been lost by it.
    fn written<T>(&mut self, written: io::Result<T>, otherwise: T) -> io::Result<T> {
        match written {
            Err(why) if is_lost(&why) => {
                self.unwritable = Some(why);
                Ok(otherwise)
            }
            written => written,
        }
    }
}

/// Whether the other side has gone.
fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

impl<S: AsyncRead + Unpin> AsyncRead for Beginning<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (before, has_room) = (buf.filled().len(), buf.remaining() > 0);
        let read = ready!(Pin::new(&mut this.below).poll_read(cx, buf));
        if !this.awaits || !has_room {
            return Poll::Ready(read);
        }
        Poll::Ready(match (read, buf.filled().get(before)) {
            (Ok(()), Some(first)) => {
                (this.awaits, this.is_used) = (false, true);
                if TLS_RECORDS.contains(first) { Err(NoAnswer::Tls.error()) } else { Ok(()) }
            }
            (Ok(()), None) => this.ended(None),
            (Err(why), _) if is_lost(&why) => this.ended(Some(why)),
            (Err(why), _) => Err(why),
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Beginning<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.awaits = true;
        if this.unwritable.is_some() {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = ready!(Pin::new(&mut this.below).poll_write(cx, buf));
        Poll::Ready(this.written(written, buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unwritable.is_some() {
            return Poll::Ready(Ok(()));
        }
        let flushed = ready!(Pin::new(&mut this.below).poll_flush(cx));
        Poll::Ready(this.written(flushed, ()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().below).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Gives these, one with each read; what it is given is lost from the first failure on.
    struct Server {
        says: VecDeque<Result<&'static [u8], io::ErrorKind>>,
        takes: VecDeque<Result<(), io::ErrorKind>>,
    }

    impl AsyncRead for Server {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(match self.says.pop_front() {
                Some(Ok(bytes)) => {
                    buf.put_slice(bytes);
                    Ok(())
                }
                Some(Err(kind)) => Err(kind.into()),
                None => Ok(()),
            })
        }
    }

    impl AsyncWrite for Server {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(match self.takes.pop_front() {
                Some(Err(kind)) => Err(kind.into()),
                _ => Ok(buf.len()),
            })
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn over(says: &[Result<&'static [u8], io::ErrorKind>]) -> Beginning<Server> {
        Beginning::new(Server { says: says.iter().copied().collect(), takes: VecDeque::new() })
    }

    /// What is read first after a request.
    fn ask(stream: &mut Beginning<Server>) -> io::Result<Vec<u8>> {
        let answer = async {
            stream.write_all(b"POST / HTTP/1.1\r\n").await?;
            stream.write_all(b"\r\n").await?;
            stream.flush().await?;
            let mut buf = [0; 64];
            let count = stream.read(&mut buf).await?;
            Ok(buf[..count].to_vec())
        };
        answer.now_or_never().expect("nothing is waited for")
    }

    #[test]
    fn a_used_connection_that_ends_without_a_byte_is_stale() {
        use io::ErrorKind::{ConnectionReset, TimedOut, UnexpectedEof};
        for end in [Ok(&b""[..]), Err(ConnectionReset), Err(UnexpectedEof)] {
            let mut stream = over(&[Ok(b"HTTP/1.1"), end]);
            assert_eq!(ask(&mut stream).unwrap(), b"HTTP/1.1");
            assert_eq!(NoAnswer::of(&ask(&mut stream).unwrap_err()), Some(NoAnswer::Stale), "{end:?}");
            // On a new one it is what it is.
            let answer = ask(&mut over(&[end]));
            assert_eq!(answer.as_ref().err().map(io::Error::kind), end.err(), "{answer:?}");
        }
        let mut stream = over(&[Ok(b"HTTP/1.1"), Err(TimedOut)]);
        ask(&mut stream).unwrap();
        assert_eq!(ask(&mut stream).unwrap_err().kind(), TimedOut);
    }

    #[test]
    fn an_end_after_the_first_byte_is_no_concern_of_it() {
        let mut stream = over(&[Ok(b"HTTP/1.1"), Ok(b"HTT"), Err(io::ErrorKind::ConnectionReset), Ok(b"")]);
        ask(&mut stream).unwrap();
        assert_eq!(ask(&mut stream).unwrap(), b"HTT");
        let mut buf = [0; 8];
        let reset = stream.read(&mut buf).now_or_never().unwrap().unwrap_err();
        assert_eq!((reset.kind(), NoAnswer::of(&reset)), (io::ErrorKind::ConnectionReset, None));
        assert_eq!(stream.read(&mut buf).now_or_never().unwrap().unwrap(), 0);
    }

    #[test]
    fn what_is_said_while_the_request_is_written_is_read() {
        use io::ErrorKind::BrokenPipe;
        let mut stream = over(&[Ok(b"HTTP/1.1 413 ")]);
        stream.below.takes = [Ok(()), Err(BrokenPipe)].into();
        assert_eq!(ask(&mut stream).unwrap(), b"HTTP/1.1 413 ");
        // Where nothing was said, it is told why nothing could be written; or that the connection is stale.
        let mut stream = over(&[]);
        stream.below.takes = [Err(BrokenPipe)].into();
        assert_eq!(ask(&mut stream).unwrap_err().kind(), BrokenPipe);
        let mut stream = over(&[Ok(b"HTTP/1.1")]);
        stream.below.takes = [Ok(()), Ok(()), Err(BrokenPipe)].into();
        ask(&mut stream).unwrap();
        assert_eq!(NoAnswer::of(&ask(&mut stream).unwrap_err()), Some(NoAnswer::Stale));
    }

    #[test]
    fn a_server_that_speaks_tls_is_told_from_garbage() {
        for (said, tls) in [
            (&b"\x15\x03\x01\x00\x02\x02\x46"[..], true),
            (b"\x16", true),
            (b"SSH-2.0", false),
            (b"\0", false),
        ] {
            let answer = ask(&mut over(&[Ok(said)]));
            let expected = tls.then_some(NoAnswer::Tls);
            assert_eq!(answer.as_ref().err().and_then(NoAnswer::of), expected, "{answer:?}");
            assert!(tls || answer.unwrap() == said);
        }
    }
}
