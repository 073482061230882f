//! A pause for a plugin that keeps failing, so that it costs nobody more than a look.
//!
//! Counted are calls that the plugin itself spoils: those that trap, or go over a limit. What it says of
//! itself (`is_error`, an error of its own) is an answer. Each owner has a pause of their own: whoever
//! makes a plugin fail takes it away from nobody else.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clawmux_core::ids::Owner;
use clawmux_core::time::backoff;

/// So many calls in a row fail before the first pause.
const FAILURES_MAX: u32 = 5;

/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// The most owners whose failures are counted.
const OWNERS_MAX: usize = 1000;

/// How a plugin's calls end, for each owner for whom the last one failed.
#[derive(Debug, Default)]
pub(super) struct Quarantine(BTreeMap<Owner, Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// In a row.
    count: u32,
    until: Option<Instant>,
}

impl Quarantine {
    /// A call for this owner is over, and whether the plugin spoiled it. Gives the pause that begins, if one
    /// does.
    pub(super) fn over(&mut self, owner: &Owner, is_spoiled: bool, now: Instant) -> Option<Duration> {
        if !is_spoiled {
            self.0.remove(owner);
            return None;
        }
        if self.left(owner, now).is_some() {
            // It began before the pause did.
            return None;
        }
        if self.0.len() >= OWNERS_MAX && !self.0.contains_key(owner) {
            self.0.pop_first();
        }
        let failures = self.0.entry(owner.clone()).or_default();
        failures.count = failures.count.saturating_add(1);
        let nth = failures.count.checked_sub(FAILURES_MAX)?;
        let pause = backoff(PAUSE, nth, PAUSE_MAX);
        failures.until = Some(now + pause);
        Some(pause)
    }

    /// How long no call is made for this owner any more; none where calls are made.
    pub(super) fn left(&self, owner: &Owner, now: Instant) -> Option<Duration> {
        let until = self.0.get(owner)?.until?;
        Some(until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// For how many owners no call is made any more, and how long for the last of them.
    pub(super) fn now(&self, now: Instant) -> Option<(usize, Duration)> {
        let left: Vec<Duration> = self.0.keys().filter_map(|owner| self.left(owner, now)).collect();
        Some((left.len(), left.into_iter().max()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_with_the_first_good_call() {
        let (mut quarantine, mut now, owner) = (Quarantine::default(), Instant::now(), Owner::Admins);
        for _ in 1..FAILURES_MAX {
            assert_eq!(quarantine.over(&owner, true, now), None);
            assert_eq!(quarantine.left(&owner, now), None);
        }
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let pause = quarantine.over(&owner, true, now).unwrap();
            assert_eq!(quarantine.over(&owner, true, now), None, "it had begun before");
            assert_eq!(quarantine.left(&owner, now), Some(pause));
            assert_eq!(quarantine.now(now), Some((1, pause)));
            now += pause;
            assert_eq!((quarantine.left(&owner, now), quarantine.now(now)), (None, None));
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(quarantine.over(&owner, false, now), None);
        assert_eq!(quarantine.over(&owner, true, now), None, "counted anew");
    }

    #[test]
    fn a_good_call_between_bad_ones_is_enough() {
        let (mut quarantine, now, owner) = (Quarantine::default(), Instant::now(), Owner::Admins);
        for at in 0..100 {
            assert_eq!(quarantine.over(&owner, at % FAILURES_MAX != 0, now), None);
        }
    }

    #[test]
    fn one_owners_failures_are_no_others_and_owners_are_bounded() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        let owner = |nth: usize| Owner::Credential(format!("key:{nth}").into());
        for nth in 0..OWNERS_MAX * 2 {
            for _ in 0..FAILURES_MAX {
                quarantine.over(&owner(nth), true, now);
            }
        }
        assert_eq!(quarantine.left(&Owner::Admins, now), None);
        assert_eq!(quarantine.left(&owner(OWNERS_MAX * 2 - 1), now), Some(PAUSE));
        assert_eq!(quarantine.0.len(), OWNERS_MAX);
    }
}
