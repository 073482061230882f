//! What may be added to a session's log: a function of what is known of the session and of the events alone, so that
//! all who know the same decide alike.
//!
//! Two rules are about numbers. Who writes a session knows every number of it, also of text that is in no log yet:
//! there each number follows the one before ([`numbers_follow`]). A log that several read has text only when its step
//! is over: there numbers rise, and those in between may come later ([`numbers_rise`]).

use crate::conversation::event::{Event, Logged};
use crate::conversation::log::segment::Segment;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, RunId, Seq, SessionKey};

/// How far a session's log goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Its last number; 0 where the session is new.
    pub head: u64,
    /// Numbers up to here were set aside: a client may have seen any of them.
    pub reserved: u64,
}

/// What is known of a session, and of the runs of all.
pub trait Known {
    /// Why something can't be looked up, or is refused.
    type Error: From<Error>;

    /// Whether it is one of this session that has not ended.
    fn is_open(&self, run: &RunId) -> bool;

    /// Whether there is such a run, in whatever session.
    ///
    /// # Errors
    /// Where that can't be looked up.
    fn exists(&self, run: &RunId) -> Result<bool, Self::Error>;

    /// Whether a key stands for a run of this owner's.
    ///
    /// # Errors
    /// Where that can't be looked up.
    fn has_key(&self, owner: &Owner, key: &str) -> Result<bool, Self::Error>;

    /// Whether the session has an event with one of these numbers.
    ///
    /// # Errors
    /// Where that can't be looked up.
    fn has_number(&self, first: Seq, up_to: Seq) -> Result<bool, Self::Error>;
}

/// Whether the numbers of these events follow what there is, one after the other. `may_be_seen` says whether clients
/// may have seen numbers above the head that no log has: after a start, where text was under way.
///
/// # Errors
/// `Internal`, saying which number is wrong.
pub fn numbers_follow(
    session: &SessionKey,
    events: &[Logged],
    reached: Reached,
    may_be_seen: impl FnOnce() -> bool,
) -> Result<(), Error> {
    let Reached { head, reserved } = reached;
    let Some(first) = events.first() else { return Ok(()) };
    let top = head.max(reserved);
    // What was reserved is covered by the first event.
    let follows =
        first.first_seq.0 > top || (first.first_seq.0 == head + 1 && (first.seq.0 > top || !may_be_seen()));
    if !follows || (head == 0 && reserved == 0 && first.first_seq.0 != 1) {
        return refuse(format_args!(
            "number {} does not follow in {session} (head {head}, reserved up to {reserved})",
            first.first_seq
        ));
    }
    let mut next = first.first_seq;
    for logged in events {
        let is_streamed = logged.event.streamed().is_some();
        let covers = if is_streamed { logged.seq == next } else { logged.seq >= next };
        if logged.first_seq != next || !covers || !is_number(logged.seq) {
            return refuse(format_args!(
                "numbers {} to {} where {next} was due",
                logged.first_seq, logged.seq
            ));
        }
        next = logged.seq.next();
    }
    Ok(())
}

/// Whether the numbers of these events are above what there is and rise.
///
/// # Errors
/// `Internal`, saying which number is wrong.
pub fn numbers_rise(
    session: &SessionKey,
    events: &[Logged],
    Reached { head, .. }: Reached,
) -> Result<(), Error> {
    let mut last = Seq(head);
    for logged in events {
        if logged.first_seq <= last || logged.seq < logged.first_seq || !is_number(logged.seq) {
            return refuse(format_args!(
                "numbers {} to {} come after {last} in {session}",
                logged.first_seq, logged.seq
            ));
        }
        last = logged.seq;
    }
    Ok(())
}

/// Whether a number can be set aside.
///
/// # Errors
/// `Internal` where it can't.
pub fn can_reserve(reserve: Option<Seq>) -> Result<(), Error> {
    match reserve {
        Some(reserve) if !is_number(reserve) => refuse("the reserve is no number of the store"),
        _ => Ok(()),
    }
}

/// Whether these events are of runs that are open where they come, each begun once and under one key.
///
/// # Errors
/// `Conflict` where a run or its key is there already; `Internal` where an event is of a run that is not open, or of
/// none against its kind.
pub fn runs_agree<K: Known>(session: &SessionKey, events: &[Logged], known: &K) -> Result<(), K::Error> {
    let (mut begun, mut over): (Vec<&RunId>, Vec<&RunId>) = (Vec::new(), Vec::new());
    let mut keys = Vec::new();
    for logged in events {
        let is_open = |run: &RunId| (known.is_open(run) || begun.contains(&run)) && !over.contains(&run);
        match (&logged.event, &logged.run) {
            (Event::Cleared(_) | Event::Compacted(_) | Event::Configured(_), None) => {}
            (Event::Deleted, _) => return Ok(refuse("a session that is gone has no events")?),
            (Event::Cleared(_) | Event::Compacted(_) | Event::Configured(_), Some(_)) | (_, None) => {
                return Ok(refuse(format_args!(
                    "event {} has a run, or none, against its kind",
                    logged.seq
                ))?);
            }
            (Event::Prompted { .. } | Event::Injected { .. }, Some(run))
                if begun.contains(&run) || known.exists(run)? =>
            {
                return Err(ErrorCode::Conflict.error(format!("run {run} exists already")).into());
            }
            (Event::Injected { .. }, Some(run)) => {
                begun.push(run);
                over.push(run);
            }
            (Event::Prompted { owner, idempotency_key, .. }, Some(run)) => {
                if let Some(key) = idempotency_key {
                    if keys.contains(&(owner, key)) || known.has_key(owner, key)? {
                        let message = "the idempotency key stands for another run already";
                        return Err(ErrorCode::Conflict.error(message).into());
                    }
                    keys.push((owner, key));
                }
                begun.push(run);
            }
            (event, Some(run)) => {
                if !is_open(run) {
                    return Ok(refuse(format_args!("run {run} is not open in {session}"))?);
                }
                if matches!(event, Event::Ended { .. }) {
                    over.push(run);
                }
            }
        }
    }
    Ok(())
}

/// Whether this text comes before these events, with numbers in order that nothing else has; text of a run of which a step
/// ends here, before that end.
///
/// # Errors
/// `Internal` where it is not.
pub fn text_is_due<K: Known>(
    session: &SessionKey,
    settled: &[(RunId, Vec<Segment>)],
    events: &[Logged],
    known: &K,
) -> Result<(), K::Error> {
    let mut numbers: Vec<(Seq, Seq)> = events.iter().map(|logged| (logged.first_seq, logged.seq)).collect();
    for (nth, (run, segments)) in settled.iter().enumerate() {
        let end = events.iter().find(|logged| logged.event.settles() && logged.run.as_ref() == Some(run));
        let before = end.or(events.last());
        let Some(end) = before.filter(|_| settled[..nth].iter().all(|(of, _)| of != run)) else {
            return Ok(refuse(format_args!(
                "there is text of run {run} in {session}, and nothing comes after it"
            ))?);
        };
        let mut last = Seq(0);
        for segment in segments {
            let (first, up_to) = (segment.first_seq(), segment.seq());
            if first <= last || up_to >= end.seq || known.has_number(first, up_to)? {
                return Ok(refuse(format_args!(
                    "text of run {run} in {session} has the numbers {first} to {up_to}"
                ))?);
            }
            numbers.push((first, up_to));
            last = up_to;
        }
    }
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[1].0 <= pair[0].1) {
        Some(pair) => Ok(refuse(format_args!("number {} is there twice in {session}", pair[1].0))?),
        None => Ok(()),
    }
}

/// Whether the store can hold it.
fn is_number(seq: Seq) -> bool {
    i64::try_from(seq.0).is_ok_and(|seq| seq < i64::MAX)
}

fn refuse(why: impl std::fmt::Display) -> Result<(), Error> {
    Err(refused(why))
}

/// The error of an append that does not follow the log.
pub fn refused(why: impl std::fmt::Display) -> Error {
    ErrorCode::Internal.error(format!("the store refused an append: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::event::{Outcome, Streamed};
    use crate::provider::usage::Usage;
    use crate::time::Timestamp;

    struct Log;

    impl Known for Log {
        type Error = Error;

        fn is_open(&self, run: &RunId) -> bool {
            run.as_str() == "open"
        }

        fn exists(&self, run: &RunId) -> Result<bool, Error> {
            Ok(["open", "over"].contains(&run.as_str()))
        }

        fn has_key(&self, owner: &Owner, key: &str) -> Result<bool, Error> {
            Ok((owner, key) == (&Owner::Admins, "used"))
        }

        fn has_number(&self, first: Seq, up_to: Seq) -> Result<bool, Error> {
            Ok((first.0..=up_to.0).contains(&7))
        }
    }

    fn session() -> SessionKey {
        SessionKey::new("main", "test", "x", "main").unwrap()
    }

    fn logged(first: u64, seq: u64, run: &str, event: Event) -> Logged {
        let run = Some(RunId::from(run));
        Logged { first_seq: Seq(first), seq: Seq(seq), run, at: Timestamp::default(), event }
    }

    fn ended(first: u64, seq: u64, run: &str) -> Logged {
        logged(first, seq, run, Event::Ended { outcome: Outcome::Completed, usage: Usage::default() })
    }

    fn prompt(run: &str, key: &str) -> Logged {
        logged(1, 1, run, Event::prompted("hi", Owner::Admins, Some(key.into())))
    }

    #[test]
    fn numbers_follow_where_each_is_known_and_rise_where_text_is_not() {
        let (session, reached) = (session(), Reached { head: 10, reserved: 20 });
        let follow = |events: &[Logged], seen| numbers_follow(&session, events, reached, || seen).is_ok();
        let rise = |events: &[Logged]| numbers_rise(&session, events, reached).is_ok();
        assert!(follow(&[ended(11, 11, "a")], false) && !follow(&[ended(11, 11, "a")], true));
        assert!(follow(&[ended(11, 21, "a")], true), "it covers what was reserved");
        assert!(follow(&[ended(21, 21, "a"), ended(22, 22, "a")], true));
        assert!(!follow(&[ended(12, 12, "a")], false) && rise(&[ended(12, 12, "a")]));
        assert!(!follow(&[ended(21, 21, "a"), ended(23, 23, "a")], false));
        assert!(rise(&[ended(11, 11, "a"), ended(23, 24, "a")]));
        for wrong in
            [&[ended(10, 11, "a")][..], &[ended(12, 11, "a")], &[ended(11, 12, "a"), ended(12, 13, "a")]]
        {
            assert!(!rise(wrong) && !follow(wrong, false), "{wrong:?}");
        }
        assert!(!rise(&[ended(11, u64::MAX, "a")]));
        assert!(numbers_follow(&session, &[ended(2, 2, "a")], Reached::default(), || false).is_err());
    }

    #[test]
    fn runs_are_begun_once_and_end_once() {
        let good = [prompt("new", "k"), ended(2, 2, "new"), ended(3, 3, "open")];
        runs_agree(&session(), &good, &Log).unwrap();
        let conflict = |events: &[Logged]| runs_agree(&session(), events, &Log).unwrap_err();
        for events in
            [&[prompt("over", "k")][..], &[prompt("new", "used")], &[prompt("a", "k"), prompt("b", "k")]]
        {
            assert_eq!(conflict(events).code, ErrorCode::Conflict, "{events:?}");
        }
        for events in [&[ended(1, 1, "over")][..], &[ended(1, 1, "open"), ended(2, 2, "open")]] {
            assert_eq!(conflict(events).code, ErrorCode::Internal, "{events:?}");
        }
    }

    #[test]
    fn text_has_numbers_below_the_end_of_its_step_that_nothing_else_has() {
        let text = |first: u64| Segment::new(Streamed::Text, Seq(first), Timestamp::default(), "x");
        let due = |run: &str, segments: &[u64], events: &[Logged]| {
            let settled = vec![(run.into(), segments.iter().map(|first| text(*first)).collect())];
            text_is_due(&session(), &settled, events, &Log).is_ok()
        };
        let step = [ended(20, 20, "open")];
        assert!(due("open", &[5, 6, 9], &step) && due("open", &[], &step));
        assert!(due("other", &[5], &step) && !due("other", &[5], &[]), "something comes after it");
        assert!(!due("other", &[21], &step), "before everything");
        assert!(!due("open", &[6, 5], &step) && !due("open", &[5, 5], &step), "in order");
        assert!(!due("open", &[20], &step) && !due("open", &[21], &step), "before the end");
        assert!(!due("open", &[7], &step), "an event has it");
        assert!(!due("open", &[15], &[logged(14, 16, "open", Event::Started), ended(20, 20, "open")]));
        let twice = vec![("open".into(), vec![text(5)]), ("open".into(), vec![text(6)])];
        assert!(text_is_due(&session(), &twice, &step, &Log).is_err());
    }
}
