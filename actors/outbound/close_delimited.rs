//! Bodies that end with their connection.
//!
//! A response with neither `Content-Length` nor `Transfer-Encoding` has all that comes until the
//! server closes as its body (RFC 9112, 6.3), and small model servers stream that way. actix-http
//! reads such a body only where the response says HTTP/1.0, and takes one that says HTTP/1.1 for
//! empty. So such a head is made to say HTTP/1.0, which is as long; nothing else is touched.
//!
//! A head is looked for from a write until one was read: awc reads nothing of a response before its
//! whole request is written, in however many writes, and writes nothing more before the response is
//! over. What a server answers early waits in the socket. So whatever is read first after a write
//! begins a head, and all that follows it passes as it is. A head that comes in one read, as nearly all
//! do, is looked at where the reader wants it; one that comes in pieces is held back until it is
//! complete, too long, or no head of HTTP, which the reader then judges.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of an incomplete head is held back, in bytes. What is larger passes as it is.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How many header fields a head may have: as many as actix-http allows.
const FIELDS_MAX: usize = 96;

/// How much is read at once of a head that comes in pieces, in bytes.
const PIECE_BYTES: usize = 4 * 1024;

/// A client's connection over `S`, on which no request is answered by HTTP/1.1 with a body that ends
/// with the connection. For requests whose responses have bodies: not HEAD, not CONNECT.
#[derive(Debug)]
pub(crate) struct CloseDelimited<S> {
    below: S,
    /// Whether a body that is cut off is an error: actix-http takes it for whole.
    refuses_cut: bool,
    /// Whether the body under way ends with the connection.
    ends_with_connection: bool,
    /// Whether the next read begins or continues a head.
    heading: bool,
    /// What was read but not handed on.
    held: Vec<u8>,
}

impl<S> CloseDelimited<S> {
    pub(crate) fn new(below: S) -> Self {
        Self { below, refuses_cut: false, ends_with_connection: true, heading: false, held: Vec::new() }
    }

    /// Reading fails where the connection ends within a body that says how long it is.
    #[must_use]
    pub(crate) fn refusing_cut_bodies(self) -> Self {
        Self { refuses_cut: true, ..self }
    }

    /// The end of the connection was read.
    fn ended(&self) -> io::Result<()> {
        if self.refuses_cut && !self.ends_with_connection {
            let why = "the connection was closed within the answer";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        Ok(())
    }

    pub(crate) fn below(&self) -> &S {
        &self.below
    }
}

/// What the beginning of a response is.
enum Head {
    /// More has to come before it can be handed on.
    Partial,
    /// A head, or what is none. Whether its body ends with the connection; it then says HTTP/1.0.
    Whole(bool),
}

fn look_at(head: &mut [u8]) -> Head {
    let ends_with_connection = {
        let mut fields = [const { std::mem::MaybeUninit::uninit() }; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let mut parser = httparse::ParserConfig::default();
        parser.allow_spaces_after_header_name_in_responses(true);
        match parser.parse_response_with_uninit_headers(&mut response, head, &mut fields) {
            Ok(httparse::Status::Partial) => return Head::Partial,
            Ok(httparse::Status::Complete(_)) => body_ends_with_connection(&response),
            // The reader judges it.
            Err(_) => return Head::Whole(true),
        }
    };
    // The parser skips empty lines before it.
    if ends_with_connection && let Some(at) = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')) {
        const VERSION: &[u8] = b"HTTP/1.1";
        if let Some(version) = head[at..].get_mut(..VERSION.len())
            && version == VERSION
        {
            version.copy_from_slice(b"HTTP/1.0");
        }
    }
    Head::Whole(ends_with_connection)
}

fn body_ends_with_connection(response: &httparse::Response<'_, '_>) -> bool {
    let has_body = !matches!(response.code, None | Some(100..=199 | 204 | 304));
    // HTTP/1.1 has dropped `identity`, by which a server says that there is no encoding.
    let is_delimited = response.headers.iter().any(|field| {
        field.name.eq_ignore_ascii_case("content-length")
            || field.name.eq_ignore_ascii_case("transfer-encoding")
                && !field.value.trim_ascii().eq_ignore_ascii_case(b"identity")
    });
    has_body && !is_delimited
}

impl<S: AsyncRead + Unpin> AsyncRead for CloseDelimited<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if this.heading && this.held.is_empty() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.below).poll_read(cx, buf))?;
            let read = &mut buf.filled_mut()[before..];
            match look_at(read) {
                Head::Partial if !read.is_empty() => {}
                Head::Partial => {
                    this.heading = false;
                    return Poll::Ready(Ok(()));
                }
                Head::Whole(ends) => {
                    (this.heading, this.ends_with_connection) = (false, ends);
                    return Poll::Ready(Ok(()));
                }
            }
            this.held.extend_from_slice(read);
            buf.set_filled(before);
        }
        while this.heading {
            let mut piece = [0; PIECE_BYTES];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.below).poll_read(cx, &mut piece))?;
            this.held.extend_from_slice(piece.filled());
            let is_over = piece.filled().is_empty() || this.held.len() >= HEAD_BYTES_MAX;
            match look_at(&mut this.held) {
                Head::Partial => this.heading = !is_over,
                Head::Whole(ends) => (this.heading, this.ends_with_connection) = (false, ends),
            }
        }
        if this.held.is_empty() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.below).poll_read(cx, buf))?;
            return Poll::Ready(if buf.filled().len() == before { this.ended() } else { Ok(()) });
        }
        let count = this.held.len().min(buf.remaining());
        buf.put_slice(&this.held[..count]);
        if count < this.held.len() {
            this.held.drain(..count);
        } else {
            this.held = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CloseDelimited<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.below).poll_write(cx, buf))?;
        this.heading = true;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().below).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().below).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::FutureExt as _;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Gives these pieces, one with each read, and then nothing.
    struct Pieces(VecDeque<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.0.pop_front() {
                let rest = piece.split_off(piece.len().min(buf.remaining()));
                buf.put_slice(&piece);
                if !rest.is_empty() {
                    self.0.push_front(rest);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Pieces {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn over<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> CloseDelimited<Pieces> {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        CloseDelimited::new(Pieces(pieces.map(<[u8]>::to_vec).collect()))
    }

    /// What is read after a request that was written in two writes, so many bytes at a time.
    fn read(mut stream: CloseDelimited<Pieces>, read_bytes: usize) -> Vec<u8> {
        let all = async {
            stream.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
            stream.write_all(b"\r\n").await.unwrap();
            let mut all = Vec::new();
            let mut buf = vec![0; read_bytes];
            loop {
                match stream.read(&mut buf).await.unwrap() {
                    0 => break all,
                    count => all.extend_from_slice(&buf[..count]),
                }
            }
        };
        all.now_or_never().expect("nothing is waited for")
    }

    #[test]
    fn a_body_that_is_cut_off_fails_where_that_is_wanted() {
        for (said, is_cut) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx", true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nx", true),
            ("HTTP/1.1 200 OK\r\n\r\nx", false),
            ("HTTP/1.0 200 OK\r\n\r\nx", false),
            ("HTTP/1.1 20", false),
            ("SSH", false),
        ] {
            for wanted in [true, false] {
                let mut stream = over([said.as_bytes()]);
                stream.refuses_cut = wanted;
                let all = async {
                    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
                    stream.read_to_end(&mut Vec::new()).await
                };
                let over = all.now_or_never().expect("nothing is waited for");
                assert_eq!(over.is_err(), is_cut && wanted, "{said:?}: {over:?}");
            }
        }
    }

    const CLOSE_DELIMITED: [&str; 7] = [
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: a\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200\r\n\r\n",
        "HTTP/1.1 500 No\nX: y\n\nbody",
        "\r\n\r\nHTTP/1.1 401 No\r\nConnection: close\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nX-Content-Length: 5\r\nVia: content-length: 5\r\n\r\nHTTP/1.1",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Identity\r\n\r\nx",
        "HTTP/1.1 200 OK\r\n\r\nContent-Length: 5\r\n\r\n",
    ];

    const OTHER: [&str; 15] = [
        "HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No\r\n\r\n",
        "HTTP/1.1 304 No\r\nETag: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n",
        "HTTP/1.1 200 OK\r\nno field\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "\r\n",
        "",
    ];

    /// The two cases above: what is read of each.
    fn cases() -> impl Iterator<Item = (&'static str, String)> {
        let rewritten = |said: &'static str| (said, said.replacen("HTTP/1.1", "HTTP/1.0", 1));
        CLOSE_DELIMITED
            .into_iter()
            .map(rewritten)
            .chain(OTHER.into_iter().map(|said| (said, said.to_owned())))
    }

    #[test]
    fn only_heads_of_close_delimited_bodies_are_rewritten_wherever_they_are_split() {
        for (said, expected) in cases() {
            let bytes = said.as_bytes();
            for at in 0..=bytes.len() {
                for read_bytes in [1, 10, 8_192] {
                    let got = read(over([&bytes[..at], &bytes[at..]]), read_bytes);
                    assert_eq!(
                        String::from_utf8_lossy(&got),
                        expected,
                        "split at {at}, read by {read_bytes}"
                    );
                }
            }
            let got = read(over(bytes.chunks(1)), 8_192);
            assert_eq!(String::from_utf8_lossy(&got), expected, "byte by byte");
        }
    }

    #[test]
    fn each_request_begins_a_head() {
        let said = [CLOSE_DELIMITED[0], OTHER[0], CLOSE_DELIMITED[1]];
        for write_first in [true, false] {
            let mut stream = over(said.map(str::as_bytes));
            let all = async {
                let mut all = Vec::new();
                let mut buf = [0; 8_192];
                for _ in said {
                    if write_first {
                        stream.write_all(b"POST").await.unwrap();
                    }
                    let count = stream.read(&mut buf).await.unwrap();
                    all.push(String::from_utf8_lossy(&buf[..count]).into_owned());
                }
                all
            };
            let all = all.now_or_never().unwrap();
            let begins = |version: &str| all.iter().map(|said| said.starts_with(version)).collect::<Vec<_>>();
            if write_first {
                assert_eq!(begins("HTTP/1.0"), [true, false, true], "{all:?}");
            } else {
                assert_eq!(all, said, "what nobody asked for passes");
            }
        }
    }

    #[test]
    fn a_head_without_end_is_not_held_back_for_ever() {
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 2 * HEAD_BYTES_MAX]].concat();
        let mut stream = over(endless.chunks(100));
        let mut buf = vec![0; 100];
        stream.write_all(b"POST").now_or_never().unwrap().unwrap();
        assert_eq!(stream.read(&mut buf).now_or_never().unwrap().unwrap(), 100);
        assert!(stream.held.len() < HEAD_BYTES_MAX + PIECE_BYTES, "{}", stream.held.len());
        assert_eq!(read(over(endless.chunks(100)), 8_192), endless);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_read_the_same(
            lines in proptest::collection::vec(
                prop_oneof![
                    Just("HTTP/1.1 200 OK".to_owned()),
                    Just("HTTP/1.1 204 No".to_owned()),
                    Just("Content-Length: 3".to_owned()),
                    Just("Transfer-Encoding: chunked".to_owned()),
                    Just(String::new()),
                    "[ -~]{0,20}",
                    "\\PC{0,5}",
                ],
                0..8,
            ),
            end in prop_oneof![Just("\r\n"), Just("\n")],
            cuts in proptest::collection::vec(0_usize..200, 0..6),
            read_bytes in 1_usize..50,
        ) {
            let said = lines.join(end).into_bytes();
            let whole = read(over([&said[..]]), 8_192);
            prop_assert_eq!(whole.len(), said.len());
            let changed: Vec<usize> = (0..said.len()).filter(|at| whole[*at] != said[*at]).collect();
            prop_assert!(changed.len() <= 1, "{:?}", changed);
            prop_assert!(changed.iter().all(|at| (said[*at], whole[*at]) == (b'1', b'0')));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(said.len())).collect();
            cuts.extend([0, said.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|ends| &said[ends[0]..ends[1]]);
            prop_assert_eq!(read(over(pieces), read_bytes), whole);
        }
    }
}
