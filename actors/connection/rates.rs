//! What principals may ask for in a given time, in cost units, over all their connections.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use clawmux_core::config::Limits;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::principal::Principal;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};

/// Above so many principals those that have not spent anything lately are forgotten, now and then: a
/// JWT may be of anybody.
const PRINCIPALS_MARK: usize = 4096;
/// After how many times something is spent it is looked for them.
const SWEEP_EVERY: usize = 1024;

/// The rates of all principals, shared by all connections.
#[derive(Debug)]
pub struct Rates {
    burst: u32,
    per_second: u32,
    limiter: Option<(DefaultKeyedRateLimiter<Arc<str>>, NonZeroU32)>,
    clock: DefaultClock,
    /// How often something was spent.
    spent: AtomicUsize,
}

impl Rates {
    /// As `[limits]` says; a burst of 0 is no limit.
    pub fn new(limits: &Limits) -> Self {
        let limiter = NonZeroU32::new(limits.requests_burst).map(|burst| {
            let per_second = NonZeroU32::new(limits.requests_per_second).unwrap_or(NonZeroU32::MIN);
            (DefaultKeyedRateLimiter::keyed(Quota::per_second(per_second).allow_burst(burst)), burst)
        });
        Self {
            burst: limits.requests_burst,
            per_second: limits.requests_per_second,
            limiter,
            clock: DefaultClock::default(),
            spent: AtomicUsize::new(0),
        }
    }

    /// Whether these are those of `limits`.
    pub fn are_of(&self, limits: &Limits) -> bool {
        (self.burst, self.per_second) == (limits.requests_burst, limits.requests_per_second)
    }

    /// Takes `cost` units from what `principal` has.
    ///
    /// # Errors
    /// `RateLimited`, with the time after which it will have them.
    pub fn spend(&self, principal: &Principal, cost: u32) -> Result<(), Error> {
        let (Some((limiter, burst)), Some(cost)) = (&self.limiter, NonZeroU32::new(cost)) else {
            return Ok(());
        };
        if principal.unlimited {
            return Ok(());
        }
        // A cost above the burst could never be paid.
        // Who has all of it again is like somebody new.
        if self.spent.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY) && limiter.len() > PRINCIPALS_MARK {
            limiter.retain_recent();
        }
        match limiter.check_key_n(&principal.name, cost.min(*burst)) {
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(until)) => {
                let wait = until.wait_time_from(self.clock.now());
                Err(ErrorCode::RateLimited
                    .error(format!("too many requests: try again in {} ms", wait.as_millis().max(1)))
                    .with(Detail::RetryAfter(wait)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::scope::Scopes;

    fn principal(name: &str, unlimited: bool) -> Principal {
        Principal { unlimited, ..Principal::new(name, Scopes::NONE) }
    }

    fn rates(burst: u32) -> Rates {
        Rates::new(&Limits {
            requests_burst: burst,
            requests_per_second: 1,
            ..clawmux_core::config::Config::default().limits
        })
    }

    #[test]
    fn each_principal_has_its_own_burst() {
        let rates = rates(10);
        for name in ["ci", "alice"] {
            let principal = principal(name, false);
            rates.spend(&principal, 5).unwrap();
            rates.spend(&principal, 5).unwrap();
            let error = rates.spend(&principal, 5).unwrap_err();
            assert_eq!(error.code, ErrorCode::RateLimited);
            assert!(
                matches!(error.detail, Some(Detail::RetryAfter(wait)) if wait.as_secs() <= 5),
                "{error:?}"
            );
            rates.spend(&principal, 0).unwrap();
        }
    }

    #[test]
    fn some_have_no_limit() {
        let (limited, unlimited) = (rates(1), rates(0));
        for _ in 0..10 {
            limited.spend(&principal("local", true), 5).unwrap();
            unlimited.spend(&principal("ci", false), 5).unwrap();
        }
    }

    #[test]
    fn those_who_spend_nothing_are_forgotten() {
        let rates = Rates::new(&Limits {
            requests_per_second: 1_000_000,
            requests_burst: 10,
            ..clawmux_core::config::Config::default().limits
        });
        for n in 0..5 * PRINCIPALS_MARK {
            rates.spend(&principal(&format!("jwt:{n}"), false), 1).unwrap();
        }
        let known = rates.limiter.as_ref().map_or(0, |(limiter, _)| limiter.len());
        assert!(known <= PRINCIPALS_MARK + SWEEP_EVERY, "{known} are known");
    }

    #[test]
    fn a_cost_above_the_burst_takes_all_of_it() {
        let rates = rates(3);
        rates.spend(&principal("ci", false), 5).unwrap();
        assert!(rates.spend(&principal("ci", false), 1).is_err());
    }
}
