//! Messages of a WebSocket, made of the bytes as they come.
//!
//! Payloads go straight to where they are put together, so that what a peer holds here of a message that
//! is not complete is known to the byte, counted with that of all others, and can be taken away from
//! outside; see [`Partial`](super::partial::Partial). A message that comes in one piece, as nearly all do,
//! is never counted.
//!
//! Once the connection has said goodbye, payloads are dropped as they come and only the peer's own
//! Close is still heard.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::error::PayloadError;
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use clawmux_core::dialect::Frame;
use futures::{Stream, StreamExt as _};

use super::guard::{Guard, Header, Violation};
use super::link::Link;

/// Continues a message, as RFC 6455 numbers what frames are.
const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;

/// What a peer brought about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    Message(Frame),
    Ping(Bytes),
    /// It says goodbye, with this code.
    Close(Option<u16>),
    /// It may not send that; it is not read any further.
    Refused(Violation),
    /// Nothing more comes.
    Ended,
}

/// The bytes of a peer.
#[derive(Debug)]
pub(super) struct Frames<S> {
    inner: S,
    guard: Guard,
    rest: Bytes,
    /// The payload of a control frame, as far as it is there.
    control: BytesMut,
    /// How much of the current frame's payload has come.
    at: usize,
    /// Whether the message under way is text.
    is_text: bool,
}

impl<S: Stream<Item = Result<Bytes, PayloadError>> + Unpin> Frames<S> {
    pub(super) fn new(inner: S) -> Self {
        let (guard, rest, control) = (Guard::default(), Bytes::new(), BytesMut::new());
        Self { inner, guard, rest, control, at: 0, is_text: false }
    }

    /// What comes next.
    pub(super) fn poll(&mut self, link: &Arc<Link>, task: &mut Context<'_>) -> Poll<Incoming> {
        loop {
            if self.rest.is_empty() {
                if self.guard.is_unfinished() {
                    link.message_goes_on();
                }
                match ready!(self.inner.poll_next_unpin(task)) {
                    Some(Ok(bytes)) => {
                        link.received(bytes.len());
                        self.rest = bytes;
                    }
                    // However it ended.
                    Some(Err(_)) | None => return Poll::Ready(Incoming::Ended),
                }
                continue;
            }
            match self.take(link) {
                Ok(Some(incoming)) => return Poll::Ready(incoming),
                Ok(None) => {}
                Err(violation) => {
                    self.rest.clear();
                    return Poll::Ready(Incoming::Refused(violation));
                }
            }
        }
    }

    /// Takes what is there of the current frame.
    fn take(&mut self, link: &Arc<Link>) -> Result<Option<Incoming>, Violation> {
        let has_ended = link.has_said_goodbye();
        let limit = if has_ended { usize::MAX } else { link.frame_limit() };
        let passed = self.guard.pass(&self.rest, limit)?;
        let payload = self.rest.split_to(passed.header + passed.payload).split_off(passed.header);
        if !self.guard.has_header() {
            return Ok(None);
        }
        let header = self.guard.header();
        let at = self.at;
        self.at = if passed.frame_ends { 0 } else { at + payload.len() };
        let incoming = match header.opcode {
            CLOSE.. => {
                append(&mut self.control, &payload, header.mask, at);
                passed
                    .frame_ends
                    .then(|| control(header, self.control.split().freeze()))
                    .transpose()?
                    .flatten()
            }
            _ if has_ended => None,
            _ => {
                let bytes = self.message(header, (&payload, at), passed.frame_ends, link);
                bytes.map(|bytes| self.message_of(bytes)).transpose()?
            }
        };
        if !self.guard.is_unfinished() {
            link.message_ended();
        }
        Ok(incoming)
    }

    /// Adds a payload's part, which begins at `at`, to its message; which is answered with once it is complete.
    fn message(
        &mut self,
        header: Header,
        (payload, at): (&[u8], usize),
        frame_ends: bool,
        link: &Arc<Link>,
    ) -> Option<Bytes> {
        if header.opcode != CONTINUATION {
            self.is_text = header.opcode == TEXT;
        }
        let is_complete = frame_ends && header.is_last;
        if is_complete && at == 0 && header.opcode != CONTINUATION {
            let mut bytes = BytesMut::with_capacity(payload.len());
            append(&mut bytes, payload, header.mask, 0);
            return Some(bytes.freeze());
        }
        let complete = link.partial().change(link, |partial| {
            append(partial, payload, header.mask, at);
            is_complete.then(|| std::mem::take(partial).freeze())
        });
        complete.flatten()
    }

    fn message_of(&self, bytes: Bytes) -> Result<Incoming, Violation> {
        let frame = if self.is_text {
            Frame::Text(ByteString::try_from(bytes).map_err(|_| Violation::NotText)?)
        } else {
            Frame::Binary(bytes)
        };
        Ok(Incoming::Message(frame))
    }
}

/// What a control frame says; none where that is nothing.
fn control(header: Header, payload: Bytes) -> Result<Option<Incoming>, Violation> {
    Ok(match header.opcode {
        PING => Some(Incoming::Ping(payload)),
        CLOSE => Some(Incoming::Close(match payload[..] {
            [] => None,
            [high, low, ref reason @ ..] if str::from_utf8(reason).is_ok() => {
                Some(close_code(u16::from_be_bytes([high, low]))?)
            }
            [_] => return Err(Violation::Protocol("a close code has two bytes")),
            _ => return Err(Violation::NotText),
        })),
        _ => None,
    })
}

/// A code that may be said (RFC 6455, 7.4).
fn close_code(code: u16) -> Result<u16, Violation> {
    match code {
        1000..=1003 | 1007..=1014 | 3000..=4999 => Ok(code),
        _ => Err(Violation::Protocol("no such close code")),
    }
}

/// Adds a payload's part, which begins at `at`, without its mask.
fn append(to: &mut BytesMut, payload: &[u8], mask: [u8; 4], at: usize) {
    let from = to.len();
    to.extend_from_slice(payload);
    let mut mask = mask;
    mask.rotate_left(at % 4);
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = to[from..].as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip([a, b, c, d, a, b, c]) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A payload reads the same in whatever parts it comes.
        #[test]
        fn masks_go_on_from_part_to_part(
            payload in proptest::collection::vec(any::<u8>(), 0..100),
            mask in any::<[u8; 4]>(),
            sizes in proptest::collection::vec(1_usize..20, 1..6),
        ) {
            let masked: Vec<u8> = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            let (mut read, mut at, mut sizes) = (BytesMut::from(&b"before"[..]), 0, sizes.into_iter().cycle());
            while at < masked.len() {
                let to = (at + sizes.next().unwrap_or(1)).min(masked.len());
                append(&mut read, &masked[at..to], mask, at);
                at = to;
            }
            prop_assert_eq!(&read[6..], &payload[..]);
        }
    }
}
