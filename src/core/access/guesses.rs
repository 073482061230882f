//! How fast credentials can be guessed.
//!
//! Who has shown a few that do not hold waits before the next one is looked at, whether it holds or
//! not: else the time would tell. The wait doubles with each and ends by itself. As many as may wait at
//! once are few; one more is refused, and not looked at. The same one again is no guess but a client
//! that knows no better, and counts once.
//!
//! All this is by [`Source`], so that nobody waits for what another source does. Sources that are many
//! share the last place there is.

use std::collections::HashMap;
use std::time::Duration;

use crate::access::strangers::Source;
use crate::error::{Detail, Error, ErrorCode};
use crate::time::Timestamp;

/// So many may be wrong before anybody waits.
const FREE: u32 = 5;

/// The first wait; each is twice the last.
const WAIT_MIN: Duration = Duration::from_millis(250);

/// The longest wait: shorter than a handshake may take.
pub const WAIT_MAX: Duration = Duration::from_secs(4);

/// The most failures that are counted.
const FAILURES_MAX: u32 = FREE + 6;

/// After so long without one, one failure less is counted.
const FORGIVEN_AFTER: Duration = Duration::from_secs(10);

/// How many of one source may wait at once.
const WAITING_MAX: usize = 8;

/// How many sources are known. Those beyond are one.
const SOURCES_MAX: usize = 4096;

/// How many of the last credentials of a source are known again.
const KNOWN_MAX: usize = 4;

/// The recent wrong credentials of each source.
#[derive(Debug, Default)]
pub struct Guesses(HashMap<Source, Guesser>);

#[derive(Debug)]
struct Guesser {
    failures: u32,
    /// When one of them was last counted, or forgiven.
    since: Timestamp,
    waiting: usize,
    /// What the last ones are known by; the oldest is overwritten.
    known: [u64; KNOWN_MAX],
    next: usize,
}

impl Guesser {
    fn new(now: Timestamp) -> Self {
        Self { failures: 0, since: now, waiting: 0, known: [0; KNOWN_MAX], next: 0 }
    }

    /// Takes off what has been forgiven since the last wrong credential.
    fn forgive(&mut self, now: Timestamp) {
        let step = FORGIVEN_AFTER.as_millis() as u64;
        let steps = now.millis_since(self.since) / step;
        self.failures = self.failures.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
        self.since = self.since.after(Duration::from_millis(steps.saturating_mul(step)));
    }

    fn wait(&self) -> Duration {
        match self.failures.checked_sub(FREE) {
            None => Duration::ZERO,
            Some(doublings) => WAIT_MIN.saturating_mul(1 << doublings.min(16)).min(WAIT_MAX),
        }
    }
}

impl Guesses {
    /// Somebody shows a credential: how long before it is looked at. Where that is not at once, it is
    /// one of those who wait until [`Self::waited`] says so.
    ///
    /// # Errors
    /// `RateLimited`, where as many wait as may.
    pub fn wait(&mut self, source: Source, now: Timestamp) -> Result<Duration, Error> {
        let Some(guesser) = self.known(source) else { return Ok(Duration::ZERO) };
        guesser.forgive(now);
        let wait = guesser.wait();
        if wait.is_zero() {
            return Ok(wait);
        }
        if guesser.waiting >= WAITING_MAX {
            let why = format!(
                "too many credentials from your address did not hold: try again in {} ms",
                wait.as_millis()
            );
            return Err(ErrorCode::RateLimited.error(why).with(Detail::RetryAfter(wait)));
        }
        guesser.waiting += 1;
        Ok(wait)
    }

    /// One that waited does so no longer.
    pub fn waited(&mut self, source: Source) {
        if let Some(guesser) = self.known(source) {
            guesser.waiting = guesser.waiting.saturating_sub(1);
        }
    }

    /// What it showed does not hold. `mark` tells credentials apart.
    pub fn failed(&mut self, source: Source, mark: u64, now: Timestamp) {
        if !self.0.contains_key(&source) {
            self.make_room(now);
        }
        let source = self.place(source);
        let guesser = self.0.entry(source).or_insert_with(|| Guesser::new(now));
        guesser.forgive(now);
        if guesser.known.contains(&mark) {
            return;
        }
        guesser.known[guesser.next % KNOWN_MAX] = mark;
        guesser.next = (guesser.next + 1) % KNOWN_MAX;
        guesser.failures = (guesser.failures + 1).min(FAILURES_MAX);
        guesser.since = now;
    }

    /// How many sources have guessed lately, and how many of them wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.0.len(), self.0.values().map(|guesser| guesser.waiting).sum())
    }

    fn known(&mut self, source: Source) -> Option<&mut Guesser> {
        let place = self.place(source);
        self.0.get_mut(&place)
    }

    /// Under which it is known.
    fn place(&self, source: Source) -> Source {
        let is_room = self.0.len() < SOURCES_MAX;
        if is_room || self.0.contains_key(&source) { source } else { Source::Others }
    }

    /// Forgets those of whom there is nothing to know any more.
    fn make_room(&mut self, now: Timestamp) {
        if self.0.len() >= SOURCES_MAX {
            self.0.retain(|_, guesser| {
                guesser.forgive(now);
                guesser.failures > 0 || guesser.waiting > 0
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn source(n: u32) -> Source {
        IpAddr::from(n.to_be_bytes()).into()
    }

    fn failed(guesses: &mut Guesses, source: Source, marks: impl Iterator<Item = u64>) {
        marks.for_each(|mark| guesses.failed(source, mark, NOW));
    }

    #[test]
    fn a_few_mistakes_cost_nothing_and_many_cost_time() {
        let (mut guesses, one) = (Guesses::default(), source(1));
        let mut waits = Vec::new();
        for mark in 1..=12 {
            let wait = guesses.wait(one, NOW).unwrap();
            if !wait.is_zero() {
                guesses.waited(one);
            }
            waits.push(wait.as_millis());
            guesses.failed(one, mark, NOW);
        }
        assert_eq!(waits, [0, 0, 0, 0, 0, 250, 500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(guesses.wait(source(2), NOW), Ok(Duration::ZERO), "others do not wait");
        assert_eq!(guesses.wait(one, NOW.after(6 * FORGIVEN_AFTER)).unwrap(), WAIT_MIN);
        assert_eq!(guesses.wait(one, NOW.after(7 * FORGIVEN_AFTER)), Ok(Duration::ZERO));
    }

    #[test]
    fn few_wait_at_once() {
        let (mut guesses, one) = (Guesses::default(), source(1));
        failed(&mut guesses, one, 1..100);
        for _ in 0..WAITING_MAX {
            assert_eq!(guesses.wait(one, NOW), Ok(WAIT_MAX));
        }
        let error = guesses.wait(one, NOW).unwrap_err();
        assert_eq!((error.code, error.detail), (ErrorCode::RateLimited, Some(Detail::RetryAfter(WAIT_MAX))));
        assert_eq!(guesses.wait(source(2), NOW), Ok(Duration::ZERO));
        guesses.waited(one);
        assert_eq!(guesses.wait(one, NOW), Ok(WAIT_MAX));
    }

    #[test]
    fn who_shows_the_same_again_and_again_does_not_guess() {
        let (mut guesses, one) = (Guesses::default(), source(1));
        failed(&mut guesses, one, (0..1000).map(|n| 7 + n % 3));
        assert_eq!(guesses.wait(one, NOW), Ok(Duration::ZERO));
    }

    #[test]
    fn there_is_an_end_to_what_is_known() {
        let mut guesses = Guesses::default();
        for n in 0..3 * SOURCES_MAX as u32 {
            failed(&mut guesses, source(n), 1..=9);
        }
        assert!(guesses.0.len() <= SOURCES_MAX + 1);
        assert!(!guesses.wait(source(u32::MAX), NOW).unwrap().is_zero(), "it is one of many");
        let later = NOW.after(20 * FORGIVEN_AFTER);
        guesses.failed(source(u32::MAX), 1, later);
        assert!(guesses.0.len() <= 2, "{}", guesses.0.len());
    }

    proptest! {
        /// Whatever comes, and however many at once: of one source no more than these are looked at.
        #[test]
        fn no_more_are_looked_at_in_a_minute(gaps in prop::collection::vec(0u64..50, 2000)) {
            let (mut guesses, one) = (Guesses::default(), source(1));
            let (mut now, mut looked, mut held) = (NOW, 0_usize, Vec::<Timestamp>::new());
            for (mark, gap) in (1..).zip(gaps) {
                now = now.after(Duration::from_millis(gap));
                for _ in held.extract_if(.., |until| *until <= now) {
                    guesses.waited(one);
                    guesses.failed(one, mark, now);
                    looked += 1;
                }
                match guesses.wait(one, now) {
                    Ok(wait) if wait.is_zero() => {
                        guesses.failed(one, mark, now);
                        looked += 1;
                    }
                    Ok(wait) => held.push(now.after(wait)),
                    Err(_) => {}
                }
            }
            let rounds = now.millis_since(NOW) / WAIT_MAX.as_millis() as u64 + 5;
            prop_assert!(looked <= FREE as usize + WAITING_MAX * rounds as usize, "{looked}");
        }
    }
}
