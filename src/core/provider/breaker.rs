//! Which models and keys are left alone for a while because they keep failing.
//!
//! What fails is a model, whichever key it is asked with, or a key at a model: a key that is refused or has
//! no more requests left. So the overload of one model does not cool the others of its provider, and the
//! refusal of one key does not cool its other keys. Each is set aside after [`FAILURES_MAX`] failures in a row,
//! or at once where another attempt is of no use for now: a refused key, a rate limit, no such model, a provider
//! that says for how long it wants to be left alone. Then one call is let through; that one's end decides.
//!
//! ```text
//!  closed -- failures in a row --> open -- pause over --> half open (one call)
//!    ^                               ^                      |       |
//!    +------------- went well -------|----------------------+       |
//!                                    +--- failed: twice as long ----+
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault::Fault;
use super::model::ModelRef;
use crate::time::{Timestamp, backoff};

/// So many failures in a row set a model aside.
pub const FAILURES_MAX: u32 = 3;

/// For how long at first, and at most.
const PAUSE: Duration = Duration::from_secs(15);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// For how long the end of the one call that was let through is waited for, before another one is.
const TRIAL: Duration = Duration::from_secs(60);

/// The most breakers that are kept: more than configurations have models and keys.
const BREAKERS_MAX: usize = 4096;

/// Models and keys that failed lately: a model by itself, or with one of its provider's keys, by its position.
#[derive(Debug, Default)]
pub struct Breakers(BTreeMap<(ModelRef, Option<usize>), Breaker>);

#[derive(Debug)]
struct Breaker {
    /// Failures in a row, and what the last one was.
    failures: u32,
    fault: Fault,
    /// How often it was set aside since it last went well, and until when it is.
    opened: u32,
    until: Option<Timestamp>,
}

/// A model that is left alone, or one key of its provider at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAlone<'a> {
    /// The model.
    pub model: &'a ModelRef,
    /// The position of the key; none = whichever key it is.
    pub key: Option<usize>,
    /// What went wrong last.
    pub fault: Fault,
    /// Until when.
    pub until: Timestamp,
}

impl Breakers {
    /// A call of this model with this key failed. `wanted` is for how long its provider wants to be left alone.
    pub fn failed(
        &mut self,
        now: Timestamp,
        model: &ModelRef,
        key: usize,
        fault: Fault,
        wanted: Option<Duration>,
    ) {
        let what = (model.clone(), fault.is_of_key().then_some(key));
        if !fault.fails_over() || (self.0.len() >= BREAKERS_MAX && !self.0.contains_key(&what)) {
            return;
        }
        let new = Breaker { failures: 0, fault, opened: 0, until: None };
        let breaker = self.0.entry(what).or_insert(new);
        breaker.failures = breaker.failures.saturating_add(1);
        breaker.fault = fault;
        let is_at_once = fault.is_of_key() || fault == Fault::Misconfigured || wanted.is_some();
        if breaker.failures >= FAILURES_MAX || is_at_once {
            let own = backoff(PAUSE, breaker.opened, PAUSE_MAX);
            let pause = wanted.map_or(own, |wanted| wanted.min(PAUSE_MAX).max(Duration::from_secs(1)));
            breaker.opened = breaker.opened.saturating_add(1);
            // One that is let through and fails opens it again.
            breaker.failures = FAILURES_MAX;
            breaker.until = Some(now.after(pause));
        }
    }

    /// A call of this model with this key went well.
    pub fn succeeded(&mut self, model: &ModelRef, key: usize) {
        for key in [None, Some(key)] {
            self.0.remove(&(model.clone(), key));
        }
    }

    /// Until when this model is not asked with this key; none = it may be asked now.
    pub fn until(&self, now: Timestamp, model: &ModelRef, key: usize) -> Option<Timestamp> {
        let until = |key| self.0.get(&(model.clone(), key)).and_then(|breaker| breaker.until);
        until(None).max(until(Some(key))).filter(|until| now < *until)
    }

    /// This model is asked with this key. Where one was set aside and its pause is over, no other call is let
    /// through until the end of this one.
    pub fn asked(&mut self, now: Timestamp, model: &ModelRef, key: usize) {
        for key in [None, Some(key)] {
            if let Some(Breaker { until: Some(until), .. }) = self.0.get_mut(&(model.clone(), key))
                && *until <= now
            {
                *until = now.after(TRIAL);
            }
        }
    }

    /// What is left alone now.
    pub fn open(&self, now: Timestamp) -> impl Iterator<Item = LeftAlone<'_>> {
        self.0.iter().filter_map(move |((model, key), breaker)| {
            let until = breaker.until.filter(|until| now < *until)?;
            Some(LeftAlone { model, key: *key, fault: breaker.fault, until })
        })
    }

    /// Keeps the models for which this holds.
    pub fn retain(&mut self, keeps: impl Fn(&ModelRef) -> bool) {
        self.0.retain(|(model, _), _| keeps(model));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(name: &str) -> ModelRef {
        ModelRef { provider: "p".into(), model: name.into() }
    }

    fn admits(breakers: &Breakers, now: Timestamp, model: &ModelRef, key: usize) -> bool {
        breakers.until(now, model, key).is_none()
    }

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn a_model_that_keeps_failing_is_left_alone_and_then_tried_by_one() {
        let (mut breakers, one, other) = (Breakers::default(), model("one"), model("other"));
        for second in 0..2 {
            breakers.failed(at(second), &one, 0, Fault::Overloaded, None);
            assert!(admits(&breakers, at(second), &one, 0), "it may do better");
        }
        breakers.failed(at(2), &one, 1, Fault::Overloaded, None);
        assert!(!admits(&breakers, at(2), &one, 0) && !admits(&breakers, at(16), &one, 2), "whichever key");
        assert!(admits(&breakers, at(2), &other, 0), "one model's overload does not cool the rest");
        let open: Vec<_> = breakers.open(at(2)).collect();
        assert_eq!(open, [LeftAlone { model: &one, key: None, fault: Fault::Overloaded, until: at(17) }]);
        assert!(admits(&breakers, at(17), &one, 0), "one is let through");
        breakers.asked(at(17), &one, 0);
        assert!(!admits(&breakers, at(17), &one, 0), "and no other while it is under way");
        breakers.failed(at(18), &one, 0, Fault::Server, None);
        assert!(!admits(&breakers, at(47), &one, 0) && admits(&breakers, at(48), &one, 0), "twice as long");
        breakers.succeeded(&one, 0);
        assert!(admits(&breakers, at(49), &one, 0) && breakers.open(at(49)).next().is_none());
    }

    #[test]
    fn one_keys_refusal_does_not_cool_the_other_keys() {
        for (fault, wanted) in
            [(Fault::Auth, None), (Fault::RateLimit, None), (Fault::RateLimit, Some(Duration::from_secs(15)))]
        {
            let (mut breakers, one, other) = (Breakers::default(), model("one"), model("other"));
            breakers.failed(at(0), &one, 1, fault, wanted);
            assert!(!admits(&breakers, at(14), &one, 1), "{}", fault.name());
            assert!(
                admits(&breakers, at(0), &one, 0) && admits(&breakers, at(0), &other, 1),
                "{}",
                fault.name()
            );
            breakers.succeeded(&one, 0);
            assert!(!admits(&breakers, at(14), &one, 1), "another key went well");
            breakers.asked(at(15), &one, 0);
            assert!(admits(&breakers, at(15), &one, 1), "another key is asked");
            breakers.succeeded(&one, 1);
            assert_eq!(breakers.open(at(0)).count(), 0);
        }
    }

    #[test]
    fn what_no_retry_helps_and_what_wants_to_be_left_alone_is_set_aside_at_once() {
        let one = model("one");
        for (fault, wanted, seconds) in [
            (Fault::Auth, None, 15),
            (Fault::Misconfigured, None, 15),
            (Fault::RateLimit, Some(40), 40),
            (Fault::Overloaded, Some(7), 7),
        ] {
            let mut breakers = Breakers::default();
            breakers.failed(at(0), &one, 0, fault, wanted.map(Duration::from_secs));
            assert!(!admits(&breakers, at(seconds - 1), &one, 0) && admits(&breakers, at(seconds), &one, 0));
        }
        let mut breakers = Breakers::default();
        for _ in 0..10 {
            breakers.failed(at(0), &one, 0, Fault::BadRequest, None);
            breakers.failed(at(0), &one, 0, Fault::ContextTooLong, None);
        }
        assert!(admits(&breakers, at(0), &one, 0), "the request was at fault");
    }

    proptest! {
        /// However often it fails, it is tried again within a bounded time.
        #[test]
        fn nothing_is_left_alone_for_ever(
            faults in prop::collection::vec((0..4usize, 0..3usize), 0..200), wanted in 0..u64::MAX / 2,
        ) {
            let (mut breakers, one) = (Breakers::default(), model("one"));
            let mut now = at(0);
            for (fault, key) in faults {
                let fault = [Fault::Auth, Fault::RateLimit, Fault::Server, Fault::Network][fault];
                let wanted = (fault == Fault::RateLimit).then(|| Duration::from_millis(wanted));
                breakers.failed(now, &one, key, fault, wanted);
                now = now.after(PAUSE_MAX.max(TRIAL));
                prop_assert!(admits(&breakers, now, &one, key));
                breakers.asked(now, &one, key);
            }
        }
    }
}
