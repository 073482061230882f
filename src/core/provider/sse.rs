//! Server-sent events, read from bytes that may be split anywhere.
//!
//! Lines end with LF, CR or CRLF; a leading byte order mark and comments are skipped; bytes that
//! are not UTF-8 become U+FFFD, as the standard says. Nothing is allocated per event: a line is
//! looked at in place where it arrived whole, and the buffers for lines and events that did not are
//! reused. `id` and `retry` are deliberately ignored: no model provider resumes a stream.
//!
//! A stream that says nothing for too long, however many comments it holds, is refused: looking at them
//! is work too.
//!
//! Source: WHATWG HTML, "Server-sent events", parsing an event stream.

use std::borrow::Cow;

use memchr::memchr2;

use crate::error::{Detail, Error, ErrorCode};

/// The largest event, and the longest line, in bytes.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How many lines in a row may lead to no event: comments to stay connected by, empty ones, unknown fields.
/// A server that sends a comment ten times a second has sent as many after a quarter of an hour.
pub const IDLE_LINES_MAX: usize = 16 * 1024;

/// An incremental parser of one stream.
#[derive(Debug)]
pub struct Parser {
    /// The part of a line that came without its end.
    line: Vec<u8>,
    /// The data of the event under way, each line followed by LF.
    data: Vec<u8>,
    /// Its type; empty where the stream names none.
    kind: Vec<u8>,
    /// Whether the last byte was a CR, so that a LF right after it belongs to it.
    after_cr: bool,
    /// Whether no line was seen yet: the first may start with a byte order mark.
    first_line: bool,
    /// So many lines came since the last event.
    idle_lines: usize,
    event_bytes_max: usize,
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its `event` field; empty where it has none.
    pub kind: Cow<'a, str>,
    /// Its `data` lines, joined with LF.
    pub data: Cow<'a, str>,
}

impl Default for Parser {
    fn default() -> Self {
        Self::with_limit(EVENT_BYTES_MAX)
    }
}

impl Parser {
    /// A parser that refuses events and lines larger than this many bytes.
    pub fn with_limit(event_bytes_max: usize) -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            kind: Vec::new(),
            after_cr: false,
            first_line: true,
            idle_lines: 0,
            event_bytes_max,
        }
    }

    /// Takes the next bytes and hands each event that is complete with them to `on_event`.
    ///
    /// # Errors
    /// `Provider` with a limit where an event or a line is too large or too many lines lead to no event,
    /// and whatever `on_event` returns. The stream is of no use after either.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut on_event: impl FnMut(Event<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rest = bytes;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            if rest[0] == b'\n' {
                rest = &rest[1..];
            }
        }
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (part, ending) = rest.split_at(end);
            if self.line.is_empty() {
                self.take_line(part, &mut on_event)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                self.check_size(line.len() + part.len())?;
                line.extend_from_slice(part);
                let taken = self.take_line(&line, &mut on_event);
                line.clear();
                self.line = line;
                taken?;
            }
            rest = match ending {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.check_size(self.line.len() + rest.len())?;
        self.line.extend_from_slice(rest);
        Ok(())
    }

    /// The stream is over: takes what is left as a last line and a last event. The standard drops
    /// an event that no blank line ends; some servers end their last event with the stream, and it
    /// is for the caller to say whether what it holds is whole.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self, mut on_event: impl FnMut(Event<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut on_event)?;
        }
        self.take_line(b"", &mut on_event)
    }

    fn take_line(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(Event<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = if std::mem::take(&mut self.first_line) {
            line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            let dispatched = match self.data.split_last() {
                Some((_, data)) => {
                    self.idle_lines = 0;
                    on_event(Event { kind: text(&self.kind), data: text(data) })
                }
                None => self.count_idle_line(),
            };
            self.data.clear();
            self.kind.clear();
            return dispatched;
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &[][..]),
        };
        match field {
            b"data" => {
                self.check_size(self.data.len() + value.len())?;
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => {
                self.count_idle_line()?;
                self.kind.clear();
                self.kind.extend_from_slice(value);
            }
            _ => self.count_idle_line()?,
        }
        Ok(())
    }

    fn count_idle_line(&mut self) -> Result<(), Error> {
        self.idle_lines += 1;
        if self.idle_lines <= IDLE_LINES_MAX {
            return Ok(());
        }
        Err(ErrorCode::Provider
            .error(format!("the stream holds {IDLE_LINES_MAX} lines in a row that lead to no event"))
            .with(Detail::Limit {
                name: crate::error::limit::Limit::IdleLines,
                limit: IDLE_LINES_MAX as u64,
            }))
    }

    fn check_size(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.event_bytes_max {
            return Ok(());
        }
        let limit = self.event_bytes_max;
        Err(ErrorCode::Provider
            .error(format!("the stream holds an event larger than {limit} bytes"))
            .with(Detail::Limit { name: crate::error::limit::Limit::EventBytes, limit: limit as u64 }))
    }
}

/// Bytes as text. What is whole, as nearly all is, is looked through only once and fast.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::default();
        let mut seen = Vec::new();
        for chunk in chunks {
            parser
                .push(chunk, |event| {
                    seen.push((event.kind.into_owned(), event.data.into_owned()));
                    Ok(())
                })
                .unwrap();
        }
        seen
    }

    fn pair(kind: &str, data: &str) -> (String, String) {
        (kind.to_owned(), data.to_owned())
    }

    #[test]
    fn fields_comments_and_line_endings() {
        let stream = "\u{feff}data: one\n\n: a comment\nevent: two\r\ndata:2\r\ndata:  b\r\n\r\nid: 7\nretry: 1\rdata\r\rignored: x\n\ndata: \u{feff}é\n\n";
        assert_eq!(
            events(&[stream.as_bytes()]),
            [pair("", "one"), pair("two", "2\n b"), pair("", ""), pair("", "\u{feff}é")]
        );
    }

    #[test]
    fn an_event_without_its_blank_line_is_only_seen_at_the_end() {
        let mut parser = Parser::default();
        parser.push(b"event: e\ndata: [DONE]", |event| panic!("too early: {event:?}")).unwrap();
        let mut seen = Vec::new();
        parser
            .finish(|event| {
                seen.push((event.kind.into_owned(), event.data.into_owned()));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [pair("e", "[DONE]")]);
    }

    #[test]
    fn large_lines_and_events_are_refused() {
        for stream in ["data: 0123456789012345\n", "0123456789abcdefg", "data: 01234567\ndata: 89012345\n"] {
            let mut parser = Parser::with_limit(16);
            let mut pushed = Ok(());
            for byte in stream.as_bytes() {
                pushed = pushed.and_then(|()| parser.push(&[*byte], |_| Ok(())));
            }
            let error = pushed.expect_err(stream);
            assert_eq!(
                error.detail,
                Some(Detail::Limit { name: crate::error::limit::Limit::EventBytes, limit: 16 })
            );
            let whole = Parser::with_limit(16).push(stream.as_bytes(), |_| Ok(()));
            assert!(whole.is_err() || stream.starts_with("data: 0123456789"), "{stream:?}");
        }
    }

    #[test]
    fn lines_that_lead_to_no_event_are_counted_from_event_to_event() {
        for idle in [": stay\n", "\n", "\r\n", "id: 7\n", "event: e\n", "unknown\n"] {
            let mut parser = Parser::default();
            let mut events = 0;
            for _ in 0..3 {
                let stream = format!("data: x\n\n{}", idle.repeat(IDLE_LINES_MAX - 1));
                parser
                    .push(stream.as_bytes(), |_| {
                        events += 1;
                        Ok(())
                    })
                    .unwrap();
            }
            assert_eq!(events, 3, "{idle:?}");
            let error = parser.push(idle.repeat(2).as_bytes(), |_| Ok(())).expect_err(idle);
            let limit = IDLE_LINES_MAX as u64;
            assert_eq!(
                error.detail,
                Some(Detail::Limit { name: crate::error::limit::Limit::IdleLines, limit })
            );
            assert_eq!(error.code, ErrorCode::Provider);
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_become_replacement_characters() {
        assert_eq!(events(&[b"data: a\xffb\n\n"]), [pair("", "a\u{fffd}b")]);
    }

    /// Text made of what matters to the parser.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("data:".to_owned()),
            Just("event: ".to_owned()),
            Just("\n".to_owned()),
            Just("\r".to_owned()),
            Just("\r\n".to_owned()),
            Just(": ".to_owned()),
            Just("\u{feff}".to_owned()),
            Just("İé😀".to_owned()),
            "[a-z ]{0,5}",
        ];
        prop_oneof![
            proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..100),
        ]
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(stream in stream(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts {
                chunks.push(&stream[from..cut]);
                from = cut;
            }
            chunks.push(&stream[from..]);
            let whole = events(&[&stream]);
            prop_assert_eq!(events(&chunks), whole.clone());
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(events(&bytes), whole);
        }
    }
}
