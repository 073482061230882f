//! What becomes of appends on their way into a log that several daemons read: text waits until its step is over, and
//! then goes with the event that ends it, or with another event before that: no event goes before text with lower
//! numbers, or who reads the log would miss it.

use std::collections::HashMap;
use std::mem;

use super::write::Appended;
use crate::conversation::event::{Event, Logged};
use crate::conversation::log::segment::Segment;
use crate::conversation::outbox::ToSay;
use crate::ids::{RunId, Seq, SessionKey};

/// The text of one session's steps that are under way, in order of their appends.
#[derive(Debug, Default)]
pub struct Spoken(HashMap<RunId, Vec<Segment>>);

/// What an append comes to, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A record of the log.
    Record(Appended),
    /// Text that is only shown here until its step is over.
    Text(Vec<Logged>),
}

impl Spoken {
    /// Takes an append in, and says what it comes to. That is one record at most, unless a run says something after a
    /// step of it has ended in there, or several prompts have keys: a record has the guard of one.
    pub fn take(
        &mut self,
        session: &SessionKey,
        events: &[Logged],
        reserve: Option<Seq>,
        to_say: &[ToSay],
    ) -> Vec<Part> {
        let mut parts = Vec::new();
        let (mut written, mut said): (Vec<Logged>, Vec<Logged>) = (Vec::new(), Vec::new());
        let mut settled: Vec<(RunId, Vec<Segment>)> = Vec::new();
        let record = |settled: &mut Vec<_>, written: &mut Vec<_>| Appended {
            session: session.clone(),
            settled: mem::take(settled),
            events: mem::take(written).into(),
            reserve: None,
            to_say: Vec::new(),
        };
        for logged in events {
            match (&logged.run, logged.event.streamed()) {
                (Some(run), Some((of, piece))) => {
                    let segments = self.0.entry(run.clone()).or_default();
                    let (seq, at) = (logged.seq, logged.at);
                    if !segments.last_mut().is_some_and(|segment| segment.push(of, seq, at, piece)) {
                        segments.push(Segment::new(of, seq, at, piece));
                    }
                    said.push(logged.clone());
                }
                _ => {
                    said.clear();
                    let ends_step = |run: &RunId| {
                        let ended =
                            |before: &Logged| before.event.settles() && before.run.as_ref() == Some(run);
                        written.iter().any(ended)
                    };
                    let is_next_step = self.0.keys().any(ends_step);
                    if is_next_step || (has_key(logged) && written.iter().any(has_key)) {
                        parts.push(Part::Record(record(&mut settled, &mut written)));
                    }
                    let mut texts: Vec<(RunId, Vec<Segment>)> = self.0.drain().collect();
                    texts.sort_unstable_by_key(|(_, text)| text.first().map(Segment::first_seq));
                    for (run, mut text) in texts {
                        // What comes after the event is of a life of the session that fell.
                        text.retain(|segment| segment.seq() < logged.first_seq);
                        if text.is_empty() {
                            continue;
                        }
                        match settled.iter_mut().find(|(of, _)| *of == run) {
                            Some((_, before)) => before.extend(text),
                            None => settled.push((run, text)),
                        }
                    }
                    written.push(logged.clone());
                }
            }
        }
        if !written.is_empty() || reserve.is_some() || !to_say.is_empty() {
            let last = record(&mut settled, &mut written);
            parts.push(Part::Record(Appended { reserve, to_say: to_say.to_vec(), ..last }));
        }
        if !said.is_empty() {
            parts.push(Part::Text(said));
        }
        parts
    }

    /// Whether no step is under way that has said something.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn has_key(logged: &Logged) -> bool {
    matches!(&logged.event, Event::Prompted { idempotency_key: Some(_), .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::event::{Outcome, Streamed};
    use crate::provider::usage::Usage;
    use crate::time::Timestamp;

    fn logged(seq: u64, run: &str, event: Event) -> Logged {
        let (seq, run) = (Seq(seq), Some(RunId::from(run)));
        Logged { first_seq: seq, seq, run, at: Timestamp::default(), event }
    }

    fn text(seq: u64, run: &str, piece: &str) -> Logged {
        logged(seq, run, Event::Text(piece.into()))
    }

    fn step_ended(seq: u64, run: &str) -> Logged {
        logged(seq, run, Event::StepEnded { usage: Usage::default() })
    }

    fn ended(seq: u64, run: &str) -> Logged {
        logged(seq, run, Event::Ended { outcome: Outcome::Completed, usage: Usage::default() })
    }

    /// Appends one after the other; of each, what its records and its text are.
    fn taken(appends: &[&[Logged]]) -> (Spoken, Vec<Vec<String>>) {
        let session = SessionKey::new("main", "test", "x", "main").unwrap();
        let mut spoken = Spoken::default();
        let mut said = Vec::new();
        for events in appends {
            let parts = spoken.take(&session, events, None, &[]).into_iter().map(|part| match part {
                Part::Text(events) => format!(
                    "says {}",
                    events.iter().map(|e| e.seq.0.to_string()).collect::<Vec<_>>().join(" ")
                ),
                Part::Record(record) => {
                    let events: Vec<_> = record.events.iter().map(|logged| logged.seq.0).collect();
                    let settled: Vec<_> = record
                        .settled
                        .iter()
                        .map(|(run, text)| {
                            (run.as_str().to_owned(), text.iter().map(Segment::text).collect::<String>())
                        })
                        .collect();
                    format!("writes {events:?} {settled:?}")
                }
            });
            said.push(parts.collect());
        }
        (spoken, said)
    }

    #[test]
    fn text_goes_with_the_end_of_its_step() {
        let (spoken, said) = taken(&[
            &[logged(1, "r", Event::Started)],
            &[text(2, "r", "a"), text(3, "r", "b")],
            &[text(4, "r", "c"), step_ended(5, "r"), text(6, "r", "d")],
            &[ended(7, "r")],
        ]);
        assert_eq!(said[0], ["writes [1] []"]);
        assert_eq!(said[1], ["says 2 3"]);
        assert_eq!(said[2], [r#"writes [5] [("r", "abc")]"#, "says 6"]);
        assert_eq!(said[3], [r#"writes [7] [("r", "d")]"#]);
        assert!(spoken.is_empty());
    }

    #[test]
    fn what_else_is_written_meanwhile_takes_the_text_before_it_along() {
        let (spoken, said) = taken(&[
            &[text(2, "r", "a")],
            &[logged(3, "q", Event::prompted("hi", crate::ids::Owner::Admins, None))],
            &[ended(4, "q")],
        ]);
        assert_eq!(
            (&said[1][..], &said[2][..]),
            (&[r#"writes [3] [("r", "a")]"#.into()][..], &["writes [4] []".into()][..])
        );
        assert!(spoken.is_empty());
    }

    #[test]
    fn steps_that_end_together_and_all_say_something_are_records_of_their_own() {
        let (_, said) = taken(&[&[text(1, "r", "a"), step_ended(2, "r"), text(3, "r", "b"), ended(4, "r")]]);
        assert_eq!(said[0], [r#"writes [2] [("r", "a")]"#, r#"writes [4] [("r", "b")]"#]);
        let (_, said) = taken(&[&[text(1, "r", "a"), step_ended(2, "r"), ended(3, "r")]]);
        assert_eq!(said[0], [r#"writes [2, 3] [("r", "a")]"#]);
    }

    #[test]
    fn a_record_has_one_prompt_with_a_key() {
        let prompt = |seq, run: &str, key: Option<&str>| {
            logged(seq, run, Event::prompted("hi", crate::ids::Owner::Admins, key.map(str::to_owned)))
        };
        let (_, said) =
            taken(&[&[prompt(1, "a", Some("k")), prompt(2, "b", None), prompt(3, "c", Some("l"))]]);
        assert_eq!(said[0], ["writes [1, 2] []", "writes [3] []"]);
    }

    #[test]
    fn numbers_are_set_aside_by_a_record() {
        let session = SessionKey::new("main", "test", "x", "main").unwrap();
        let mut spoken = Spoken::default();
        let parts = spoken.take(&session, &[text(2, "r", "a")], Some(Seq(64)), &[]);
        let [Part::Record(record), Part::Text(said)] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!((record.reserve, record.events.len(), said.len()), (Some(Seq(64)), 0, 1));
        assert_eq!(said[0].event.streamed().map(|(of, _)| of), Some(Streamed::Text));
        assert!(spoken.take(&session, &[], None, &[]).is_empty());
    }
}
