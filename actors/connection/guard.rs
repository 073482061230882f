//! Looks at WebSocket frame headers as the bytes pass.
//!
//! A frame is refused when its header is complete: by its announced length and the sum of the
//! fragments before it, so that an announced gigabyte never comes. The guard also lets bytes pass one
//! frame at a time, so that a connection can stop reading exactly between two frames, and it refuses
//! what RFC 6455 forbids in a header.
//!
//! Deliberately absent: payloads. They pass unread and masked; see [`frames`](super::frames).

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
    /// Text that is not UTF-8.
    NotText,
}

/// What may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// So many bytes of a header, from the front.
    pub header: usize,
    /// So many bytes of a payload after them; none while the header is not complete.
    pub payload: usize,
    /// Whether a frame ends with them.
    pub frame_ends: bool,
}

/// The frame under way, as its header says; to be asked once that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub opcode: u8,
    /// Whether its message ends with it.
    pub is_last: bool,
    /// What its payload is masked with.
    pub mask: [u8; 4],
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
                    return Ok(Passed { header: at, payload: 0, frame_ends: false });
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
        Ok(Passed { header: at, payload: here as usize, frame_ends: self.remaining == 0 })
    }

    /// Whether a frame or a message has begun and is not complete.
    pub fn is_unfinished(&self) -> bool {
        self.header_bytes > 0 || self.remaining > 0 || self.fragmented
    }

    /// Whether the header of the frame under way is complete.
    pub fn has_header(&self) -> bool {
        self.header_bytes == 0
    }

    /// The header that was completed last.
    pub fn header(&self) -> Header {
        let [first, second, rest @ ..] = self.header;
        let at = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = [rest[at], rest[at + 1], rest[at + 2], rest[at + 3]];
        Header { opcode: first & 0x0f, is_last: first & 0x80 != 0, mask }
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
                        let bytes = step.header + step.payload;
                        assert!(bytes > 0, "it must make progress");
                        passed += bytes;
                        frames += usize::from(step.frame_ends);
                        piece = &piece[bytes..];
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
            Ok(Passed { header: 13, payload: 0, frame_ends: false }),
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
