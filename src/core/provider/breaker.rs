//! Which models are left alone for a while because they keep failing.
//!
//! A model is known by its provider and name, so that the overload of one does not cool the others. It is set
//! aside after [`FAILURES_MAX`] failures in a row, or at once where no retry helps (a refused key) or where its
//! provider says for how long it wants to be left alone. Then one call is let through; that one's end decides.
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
use crate::time::Timestamp;

/// So many failures in a row set a model aside.
pub const FAILURES_MAX: u32 = 3;

/// For how long at first, and at most.
const PAUSE: Duration = Duration::from_secs(15);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// For how long a model waits for the end of the one call that was let through, before another one is.
const TRIAL: Duration = Duration::from_secs(60);

/// The most models that are kept: more than configurations have.
const MODELS_MAX: usize = 1024;

/// The models that failed lately.
#[derive(Debug, Default)]
pub struct Breakers(BTreeMap<ModelRef, Breaker>);

#[derive(Debug, Default)]
struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// How often it was set aside since it last went well, and until when it is.
    opened: u32,
    until: Option<Timestamp>,
}

impl Breakers {
    /// A call of this model failed. `wanted` is for how long its provider wants to be left alone.
    pub fn failed(&mut self, now: Timestamp, model: &ModelRef, fault: Fault, wanted: Option<Duration>) {
        if !fault.fails_over() || (self.0.len() >= MODELS_MAX && !self.0.contains_key(model)) {
            return;
        }
        let breaker = self.0.entry(model.clone()).or_default();
        breaker.failures = breaker.failures.saturating_add(1);
        let is_at_once = matches!(fault, Fault::Auth | Fault::Misconfigured) || wanted.is_some();
        if breaker.failures >= FAILURES_MAX || is_at_once {
            let own = PAUSE.saturating_mul(2u32.saturating_pow(breaker.opened)).min(PAUSE_MAX);
            let pause = wanted.map_or(own, |wanted| wanted.min(PAUSE_MAX).max(Duration::from_secs(1)));
            breaker.opened = breaker.opened.saturating_add(1);
            // One that is let through and fails opens it again.
            breaker.failures = FAILURES_MAX;
            breaker.until = Some(now.after(pause));
        }
    }

    /// A call of this model went well.
    pub fn succeeded(&mut self, model: &ModelRef) {
        self.0.remove(model);
    }

    /// Whether this model may be asked now. Where it was set aside and its pause is over, this lets one call
    /// through.
    pub fn admits(&mut self, now: Timestamp, model: &ModelRef) -> bool {
        let Some(Breaker { until: Some(until), .. }) = self.0.get_mut(model) else { return true };
        if now < *until {
            return false;
        }
        *until = now.after(TRIAL);
        true
    }

    /// The models that are set aside, and until when.
    pub fn open(&self, now: Timestamp) -> impl Iterator<Item = (&ModelRef, Timestamp)> {
        let open = move |breaker: &Breaker| breaker.until.filter(|until| now < *until);
        self.0.iter().filter_map(move |(model, breaker)| Some((model, open(breaker)?)))
    }

    /// Keeps the models for which this holds.
    pub fn retain(&mut self, keeps: impl Fn(&ModelRef) -> bool) {
        self.0.retain(|model, _| keeps(model));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(name: &str) -> ModelRef {
        ModelRef { provider: "p".into(), model: name.into() }
    }

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn a_model_that_keeps_failing_is_left_alone_and_then_tried_by_one() {
        let (mut breakers, one, other) = (Breakers::default(), model("one"), model("other"));
        for second in 0..2 {
            breakers.failed(at(second), &one, Fault::Overloaded, None);
            assert!(breakers.admits(at(second), &one), "it may do better");
        }
        breakers.failed(at(2), &one, Fault::Overloaded, None);
        assert!(!breakers.admits(at(2), &one) && !breakers.admits(at(16), &one));
        assert!(breakers.admits(at(2), &other), "one model's overload does not cool the rest");
        assert_eq!(breakers.open(at(2)).collect::<Vec<_>>(), [(&one, at(17))]);
        assert!(breakers.admits(at(17), &one), "one is let through");
        assert!(!breakers.admits(at(17), &one), "and no other while it is under way");
        breakers.failed(at(18), &one, Fault::Server, None);
        assert!(!breakers.admits(at(47), &one) && breakers.admits(at(48), &one), "twice as long");
        breakers.succeeded(&one);
        assert!(breakers.admits(at(49), &one) && breakers.open(at(49)).next().is_none());
    }

    #[test]
    fn what_no_retry_helps_and_what_wants_to_be_left_alone_is_set_aside_at_once() {
        let (mut breakers, one) = (Breakers::default(), model("one"));
        breakers.failed(at(0), &one, Fault::Auth, None);
        assert!(!breakers.admits(at(14), &one));
        let mut breakers = Breakers::default();
        breakers.failed(at(0), &one, Fault::RateLimit, Some(Duration::from_secs(40)));
        assert!(!breakers.admits(at(39), &one) && breakers.admits(at(40), &one));
        let mut breakers = Breakers::default();
        for _ in 0..10 {
            breakers.failed(at(0), &one, Fault::BadRequest, None);
            breakers.failed(at(0), &one, Fault::ContextTooLong, None);
        }
        assert!(breakers.admits(at(0), &one), "the request was at fault");
    }

    proptest! {
        /// However often it fails, it is tried again within a bounded time.
        #[test]
        fn nothing_is_left_alone_for_ever(faults in prop::collection::vec(0..4usize, 0..200), wanted in 0..u64::MAX / 2) {
            let (mut breakers, one) = (Breakers::default(), model("one"));
            let mut now = at(0);
            for fault in faults {
                let fault = [Fault::Auth, Fault::RateLimit, Fault::Server, Fault::Network][fault];
                breakers.failed(now, &one, fault, (fault == Fault::RateLimit).then(|| Duration::from_millis(wanted)));
                now = now.after(PAUSE_MAX.max(TRIAL));
                prop_assert!(breakers.admits(now, &one));
            }
        }
    }
}
