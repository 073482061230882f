//! Text, or thoughts, of consecutive sequence numbers, kept once and cut anywhere.
//!
//! While a model speaks, every piece of text is an event with a number of its own, and so is every
//! piece of a thought. When the step
//! is over, what follows one number after the other becomes one segment: the text, and how long
//! each piece was. A cursor in the middle of it gets the rest in one piece. A number taken by
//! something else (a prompt that was queued meanwhile, a tool call, a thought after text) ends the segment, so the
//! order of the event log stays exact. So does a segment that is full: an event made of one is never large,
//! so that a slow reader can be served in small portions. What a segment forgets is when each piece
//! was said: it keeps the time of the last.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::unreadable;
use crate::conversation::event::{Logged, Streamed};
use crate::error::Error;
use crate::ids::{RunId, Seq};
use crate::time::Timestamp;

/// How large a segment gets: its text, and a byte for each piece. A piece that is larger by itself
/// stays whole, alone in its segment.
pub const SEGMENT_BYTES_MAX: usize = 32 * 1024;

/// At least one piece of text, or of a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    of: Streamed,
    first_seq: Seq,
    at: Timestamp,
    text: String,
    /// The length of every piece in bytes; they sum to the length of `text`.
    lengths: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    #[serde(borrow)]
    lengths: Cow<'a, [usize]>,
}

impl Segment {
    /// The segment of one piece.
    pub fn new(of: Streamed, seq: Seq, at: Timestamp, piece: &str) -> Self {
        Self { of, first_seq: seq, at, text: piece.to_owned(), lengths: vec![piece.len()] }
    }

    /// Takes the next piece; says whether it did: not where it is of something else, where `seq` is
    /// not the number after the last, nor where the segment would grow beyond [`SEGMENT_BYTES_MAX`].
    #[must_use]
    pub fn push(&mut self, of: Streamed, seq: Seq, at: Timestamp, piece: &str) -> bool {
        let bytes = self.text.len() + self.lengths.len() + piece.len() + 1;
        if of != self.of || seq != self.seq().next() || bytes > SEGMENT_BYTES_MAX {
            return false;
        }
        self.text.push_str(piece);
        self.lengths.push(piece.len());
        self.at = at;
        true
    }

    /// What it is a piece of.
    pub fn of(&self) -> Streamed {
        self.of
    }

    /// The number of the first piece.
    pub fn first_seq(&self) -> Seq {
        self.first_seq
    }

    /// The number of the last piece.
    pub fn seq(&self) -> Seq {
        Seq(self.first_seq.0 + (self.lengths.len() as u64 - 1))
    }

    /// When the last piece was said.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// All of the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All of the text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Everything after number `after` as one event; none where nothing follows.
    pub fn rest_after(&self, run: &RunId, after: Seq) -> Option<Logged> {
        self.between(run, after, self.seq())
    }

    /// Everything after number `after` up to number `up_to` as one event; none where there is nothing.
    /// Its time is that of the last piece of all.
    pub fn between(&self, run: &RunId, after: Seq, up_to: Seq) -> Option<Logged> {
        let seq = self.seq().min(up_to);
        if after >= seq || seq < self.first_seq {
            return None;
        }
        let seen = usize::try_from((after.0 + 1).saturating_sub(self.first_seq.0)).ok()?;
        let end = usize::try_from(seq.0 - self.first_seq.0).ok()? + 1;
        let from: usize = self.lengths.iter().take(seen).sum();
        let to: usize = self.lengths.iter().take(end).sum();
        Some(Logged {
            first_seq: Seq(self.first_seq.0 + seen as u64),
            seq,
            run: Some(run.clone()),
            at: self.at,
            event: self.of.event(self.text.get(from..to)?.to_owned()),
        })
    }

    /// Writes the body of its record to the end of `body`; numbers and time are kept beside it.
    pub fn write(&self, body: &mut Vec<u8>) {
        let record = Body { text: (&self.text).into(), lengths: (&self.lengths).into() };
        serde_json::to_writer(body, &record).expect("strings and numbers always serialize");
    }

    /// The segment with this body.
    ///
    /// # Errors
    /// `Internal` where the body is not that of a segment.
    pub fn read(of: Streamed, first_seq: Seq, at: Timestamp, body: &[u8]) -> Result<Self, Error> {
        let body: Body<'_> = serde_json::from_slice(body).map_err(|e| unreadable("text", e))?;
        let mut end = 0_usize;
        for length in body.lengths.iter() {
            end = end
                .checked_add(*length)
                .filter(|end| body.text.is_char_boundary(*end))
                .ok_or_else(|| unreadable("text", "its offsets do not fit"))?;
        }
        let last = first_seq.0.checked_add(body.lengths.len() as u64);
        if end != body.text.len() || body.lengths.is_empty() || last.is_none() {
            return Err(unreadable("text", "its offsets do not fit"));
        }
        Ok(Self { of, first_seq, at, text: body.text.into_owned(), lengths: body.lengths.into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::event::Event;
    use proptest::prelude::*;

    fn segment(first: u64, pieces: &[String]) -> Segment {
        let mut segment = Segment::new(Streamed::Text, Seq(first), Timestamp::from_millis(first), &pieces[0]);
        for (i, piece) in pieces.iter().enumerate().skip(1) {
            let seq = first + i as u64;
            assert!(segment.push(Streamed::Text, Seq(seq), Timestamp::from_millis(seq), piece));
        }
        segment
    }

    #[test]
    fn only_the_next_number_joins() {
        let mut segment = Segment::new(Streamed::Text, Seq(5), Timestamp::default(), "a");
        for seq in [0, 4, 5, 7] {
            assert!(!segment.push(Streamed::Text, Seq(seq), Timestamp::default(), "b"), "{seq}");
        }
        assert!(!segment.push(Streamed::Thought, Seq(6), Timestamp::default(), "b"), "nor does a thought");
        assert_eq!((segment.seq(), segment.text()), (Seq(5), "a"));
    }

    #[test]
    fn a_full_segment_takes_no_more() {
        let (piece, at) = ("x".repeat(1023), Timestamp::default());
        let mut segment = Segment::new(Streamed::Text, Seq(1), at, &piece);
        let taken = (2..100).take_while(|seq| segment.push(Streamed::Text, Seq(*seq), at, &piece)).count();
        assert_eq!((taken, segment.text().len()), (31, 32 * 1023));
        assert!(!segment.push(Streamed::Text, segment.seq().next(), at, ""), "pieces without text count too");
        let mut large = Segment::new(Streamed::Text, Seq(1), at, &"x".repeat(2 * SEGMENT_BYTES_MAX));
        assert!(!large.push(Streamed::Text, Seq(2), at, "x"));
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        for body in [
            r#"{"text":"ab","lengths":[]}"#,
            r#"{"text":"","lengths":[]}"#,
            r#"{"text":"ab","lengths":[1]}"#,
            r#"{"text":"ab","lengths":[1,2]}"#,
            r#"{"text":"İ","lengths":[1,1]}"#,
            r#"{"text":"ab","lengths":[18446744073709551615,3]}"#,
        ] {
            let error =
                Segment::read(Streamed::Text, Seq(1), Timestamp::default(), body.as_bytes()).unwrap_err();
            assert!(error.message.contains("offsets"), "{body}: {error}");
        }
    }

    proptest! {
        #[test]
        fn cut_anywhere_it_gives_exactly_the_rest(first in 1u64..1000, pieces in proptest::collection::vec(any::<String>(), 1..20)) {
            let segment = segment(first, &pieces);
            let run = RunId::from("r");
            for after in 0..first + pieces.len() as u64 + 3 {
                let seen = (after + 1).saturating_sub(first) as usize;
                let rest = segment.rest_after(&run, Seq(after));
                if seen >= pieces.len() {
                    prop_assert_eq!(rest, None);
                    continue;
                }
                let rest = rest.unwrap();
                prop_assert_eq!(rest.event, Event::Text(pieces[seen..].concat()));
                prop_assert_eq!(rest.first_seq, Seq(first + seen as u64));
                prop_assert_eq!(rest.seq, Seq(first + pieces.len() as u64 - 1));
                prop_assert_eq!(rest.at, Timestamp::from_millis(rest.seq.0));
            }
            for up_to in 0..first + pieces.len() as u64 + 3 {
                let (seen, count) = ((up_to + 1).saturating_sub(first) as usize, pieces.len());
                let text = segment.between(&run, Seq(0), Seq(up_to)).map(|logged| (logged.seq.0, logged.event));
                let due = (seen > 0).then(|| (up_to.min(segment.seq().0), Event::Text(pieces[..seen.min(count)].concat())));
                prop_assert_eq!(text, due);
            }
        }

        #[test]
        fn reads_back(first in 1u64..1000, pieces in proptest::collection::vec(any::<String>(), 1..20)) {
            let segment = segment(first, &pieces);
            let mut body = Vec::new();
            segment.write(&mut body);
            prop_assert_eq!(Segment::read(Streamed::Text, segment.first_seq(), segment.at(), &body).unwrap(), segment);
        }

        #[test]
        fn no_bytes_panic(body in any::<Vec<u8>>(), first in any::<u64>(), after in any::<u64>()) {
            if let Ok(segment) = Segment::read(Streamed::Text, Seq(first), Timestamp::default(), &body) {
                let _ = segment.rest_after(&RunId::from("r"), Seq(after));
            }
        }

        #[test]
        fn any_offsets_that_are_accepted_can_be_cut(text in "\\PC{0,8}", lengths in proptest::collection::vec(0usize..4, 0..6), first in any::<u64>(), after in any::<u64>()) {
            let body = serde_json::json!({"text": text, "lengths": lengths}).to_string();
            if let Ok(segment) = Segment::read(Streamed::Text, Seq(first), Timestamp::default(), body.as_bytes()) {
                let rest = segment.rest_after(&RunId::from("r"), Seq(after));
                prop_assert_eq!(rest.is_some(), after < segment.seq().0);
            }
        }
    }
}
