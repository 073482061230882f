//! Looks at WebSocket frame headers as the bytes pass, in front of the frame decoder.
//!
//! The decoder checks a frame's size only when the whole frame is there, so an announced gigabyte
//! would sit in memory first; and it never looks at a message's fragments together. Here a frame
//! is refused when its header is complete: by its announced length and the sum of the fragments
//! before it. The guard also lets bytes pass one frame at a time, so that a connection can stop
//! reading exactly between two frames, and it refuses what RFC 6455 forbids in a header.
//!
//! Deliberately absent: payloads. They pass unread and masked.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::error::PayloadError;
use bytes::{Bytes, BytesMut};
use futures::Stream;

use super::link::Link;

/// The longest header a masked frame can have, in bytes.
const HEADER_BYTES_MAX: usize = 14;

/// The longest payload of a control frame, in bytes.
const CONTROL_BYTES_MAX: u64 = 125;

/// Why a peer's bytes are no longer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A message larger than this many bytes was announced.
    Oversize {
        /// The limit.
        limit: usize,
    },
    /// RFC 6455 forbids it.
    Protocol(&'static str),
}

/// What may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// So many bytes, from the front.
    pub bytes: usize,
    /// Whether a frame ends with them.
    pub frame_ends: bool,
}

/// The state between two bytes of a peer.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    /// Payload bytes of the current frame that have not passed.
    remaining: u64,
    /// Payload bytes of the current message's frames.
    message_bytes: u64,
    /// Whether a message is under way in fragments.
    fragmented: bool,
}

impl Guard {
    /// Looks at the front of `bytes`, up to the end of the current frame. A message may have at
    /// most `limit` bytes.
    ///
    /// # Errors
    /// The violation; nothing may pass from then on.
    pub fn pass(&mut self, bytes: &[u8], limit: usize) -> Result<Passed, Violation> {
        let mut at = 0;
        if self.remaining == 0 {
            loop {
                let Some(byte) = bytes.get(at) else {
                    return Ok(Passed { bytes: at, frame_ends: false });
                };
                self.header[self.header_bytes] = *byte;
                self.header_bytes += 1;
                at += 1;
                if self.header_bytes >= 2 && self.header_bytes == self.header_length()? {
                    break;
                }
            }
            self.remaining = self.announced(limit)?;
            self.header_bytes = 0;
        }
        let here = self.remaining.min((bytes.len() - at) as u64);
        self.remaining -= here;
        // At most what is left of `bytes`, so it fits.
        Ok(Passed { bytes: at + here as usize, frame_ends: self.remaining == 0 })
    }

    /// Whether a header has begun and is not complete.
    pub fn is_in_header(&self) -> bool {
        self.header_bytes > 0
    }

    /// How long the header is, as far as its first two bytes tell.
    fn header_length(&self) -> Result<usize, Violation> {
        let [first, second, ..] = self.header;
        if first & 0x70 != 0 {
            return Err(Violation::Protocol("reserved bits are set"));
        }
        if second & 0x80 == 0 {
            return Err(Violation::Protocol("a client's frame must be masked"));
        }
        if !matches!(first & 0x0f, 0x0..=0x2 | 0x8..=0xa) {
            return Err(Violation::Protocol("unknown opcode"));
        }
        Ok(match second & 0x7f {
            126 => 8,
            127 => 14,
            _ => 6,
        })
    }

    /// The payload length that a complete header announces.
    fn announced(&mut self, limit: usize) -> Result<u64, Violation> {
        let [first, second, rest @ ..] = self.header;
        let length = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes([rest[0], rest[1]])),
            127 => {
                u64::from_be_bytes([rest[0], rest[1], rest[2], rest[3], rest[4], rest[5], rest[6], rest[7]])
            }
            short => u64::from(short),
        };
        let last = first & 0x80 != 0;
        match first & 0x0f {
            0x8..=0xa => {
                if !last {
                    return Err(Violation::Protocol("a control frame must not be fragmented"));
                }
                if length > CONTROL_BYTES_MAX {
                    return Err(Violation::Protocol("a control frame may have 125 bytes"));
                }
                return Ok(length);
            }
            0x0 if !self.fragmented => return Err(Violation::Protocol("nothing to continue")),
            0x1 | 0x2 if self.fragmented => {
                return Err(Violation::Protocol("a fragmented message is under way"));
            }
            0x0 => {}
            _ => self.message_bytes = 0,
        }
        self.message_bytes = self.message_bytes.saturating_add(length);
        if self.message_bytes > limit as u64 {
            return Err(Violation::Oversize { limit });
        }
        self.fragmented = !last;
        Ok(length)
    }
}

/// The bytes of a peer, as the frame decoder gets to see them.
///
/// Gives out at most one frame before it says `Pending`; the decoder then has a whole frame to
/// answer with, so no wake-up is lost. A header is held back until it is complete: the decoder
/// would complain again and again of half a header that it does not like. After a violation it drops what still comes, so that the
/// peer can read why.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    inner: S,
    guard: Guard,
    rest: Bytes,
    header: BytesMut,
    frame_ended: bool,
    link: Arc<Link>,
}

impl<S> Guarded<S> {
    pub(super) fn new(inner: S, link: Arc<Link>) -> Self {
        Self {
            inner,
            guard: Guard::default(),
            rest: Bytes::new(),
            header: BytesMut::new(),
            frame_ended: false,
            link,
        }
    }
}

impl<S: Stream<Item = Result<Bytes, PayloadError>> + Unpin> Stream for Guarded<S> {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if std::mem::take(&mut this.frame_ended) {
            return Poll::Pending;
        }
        if !this.link.may_read() {
            // The socket has not taken what is written; when it does, everything is polled again.
            return Poll::Pending;
        }
        loop {
            if this.rest.is_empty() {
                match Pin::new(&mut this.inner).poll_next(cx) {
                    Poll::Ready(Some(Ok(bytes))) => this.rest = bytes,
                    other => return other,
                }
                this.link.received(this.rest.len());
            }
            if this.link.violation().is_some() {
                this.rest.clear();
                continue;
            }
            if this.rest.is_empty() {
                continue;
            }
            return match this.guard.pass(&this.rest, this.link.frame_limit()) {
                Ok(passed) => {
                    let bytes = this.rest.split_to(passed.bytes);
                    if this.guard.is_in_header() {
                        this.header.extend_from_slice(&bytes);
                        continue;
                    }
                    this.frame_ended = passed.frame_ends;
                    if this.header.is_empty() {
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                    this.header.extend_from_slice(&bytes);
                    Poll::Ready(Some(Ok(std::mem::take(&mut this.header).freeze())))
                }
                Err(violation) => {
                    this.link.refuse(violation);
                    this.rest.clear();
                    Poll::Ready(Some(Err(PayloadError::Overflow)))
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(first: u8, length: u64) -> Vec<u8> {
        let mut bytes = vec![first];
        match length {
            0..126 => bytes.push(0x80 | length as u8),
            126..65536 => {
                bytes.push(0x80 | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(0x80 | 127);
                bytes.extend(length.to_be_bytes());
            }
        }
        bytes.extend([1, 2, 3, 4]);
        bytes
    }

    fn whole(first: u8, length: u64) -> Vec<u8> {
        let mut bytes = frame(first, length);
        bytes.resize(bytes.len() + length as usize, 0xff);
        bytes
    }

    /// Everything the guard says about `bytes` given in pieces of these sizes.
    fn run(bytes: &[u8], sizes: &[usize], limit: usize) -> (usize, usize, Option<Violation>) {
        let (mut guard, mut passed, mut frames) = (Guard::default(), 0, 0);
        let mut sizes = sizes.iter().copied().cycle();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().unwrap_or(1).clamp(1, rest.len()));
            let mut piece = piece;
            while !piece.is_empty() {
                match guard.pass(piece, limit) {
                    Ok(step) => {
                        assert!(step.bytes > 0, "it must make progress");
                        passed += step.bytes;
                        frames += usize::from(step.frame_ends);
                        piece = &piece[step.bytes..];
                    }
                    Err(violation) => return (passed, frames, Some(violation)),
                }
            }
            rest = after;
        }
        (passed, frames, None)
    }

    #[test]
    fn a_gigabyte_is_refused_by_its_header() {
        let header = frame(0x81, 1 << 30);
        let mut guard = Guard::default();
        assert_eq!(
            guard.pass(&header[..13], 65536),
            Ok(Passed { bytes: 13, frame_ends: false }),
            "not known yet"
        );
        assert_eq!(guard.pass(&header[13..], 65536), Err(Violation::Oversize { limit: 65536 }));
    }

    #[test]
    fn the_sum_of_fragments_counts() {
        let mut bytes = whole(0x01, 40);
        bytes.extend(whole(0x89, 100));
        bytes.extend(whole(0x00, 40));
        assert_eq!(run(&bytes, &[7], 80), (bytes.len(), 3, None), "pings between fragments do not count");
        bytes.extend(frame(0x80, 1));
        assert_eq!(run(&bytes, &[7], 80).2, Some(Violation::Oversize { limit: 80 }));
        assert_eq!(run(&bytes, &[7], 81).2, None);
    }

    #[test]
    fn what_the_rfc_forbids_is_refused() {
        let cases: [(&str, Vec<u8>); 8] = [
            ("reserved bits", vec![0xc1, 0x80]),
            ("masked", vec![0x81, 0x05]),
            ("opcode", frame(0x83, 1)),
            ("opcode", frame(0x8b, 1)),
            ("fragmented", frame(0x09, 1)),
            ("125 bytes", frame(0x89, 126)),
            ("nothing to continue", frame(0x80, 1)),
            ("under way", [whole(0x01, 1), frame(0x81, 1)].concat()),
        ];
        for (why, bytes) in cases {
            match run(&bytes, &[1], 1000).2 {
                Some(Violation::Protocol(text)) => assert!(text.contains(why), "{text}: {bytes:02x?}"),
                other => panic!("{why}: {other:?}"),
            }
        }
    }

    proptest! {
        /// However the bytes are cut, the same bytes pass and the same frames end.
        #[test]
        fn cuts_do_not_matter(
            frames in prop::collection::vec((0u8..=0xff, 0u64..400), 1..6),
            sizes in prop::collection::vec(1usize..50, 1..8),
            limit in 0usize..1000,
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(first, length)| whole(*first, *length)).collect();
            let at_once = run(&bytes, &[usize::MAX], limit);
            let in_pieces = run(&bytes, &sizes, limit);
            let one_by_one = run(&bytes, &[1], limit);
            prop_assert_eq!((at_once.1, at_once.2), (one_by_one.1, one_by_one.2));
            prop_assert_eq!((in_pieces.1, in_pieces.2), (one_by_one.1, one_by_one.2));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), limit in any::<usize>()) {
            let (passed, _, violation) = run(&bytes, &[3], limit);
            prop_assert!(passed == bytes.len() || violation.is_some());
        }
    }
}
