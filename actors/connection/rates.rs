//! What principals may ask for in a given time, in cost units, over all their connections.
//!
//! In a cluster what one spends at another daemon is taken from what he has here, as soon as that is heard. Where he has
//! not as much he owes it: nothing is spent here until that is paid, out of what he is given from then on.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

/// So many bursts one may owe: as many as there are daemons, and more.
const OWED_BURSTS_MAX: u32 = 16;

/// Principals of whom is kept what they spent, until it is taken.
const TOLD_MAX: usize = 4096;

/// What principals spend at this daemon, for who tells other daemons, and hears of theirs.
pub trait Spending: Send + Sync {
    /// What was spent here since this was asked last, in cost units.
    fn take(&self) -> Vec<(Arc<str>, u32)>;

    /// So much was spent at another daemon.
    fn heard(&self, principal: &str, units: u32);
}

type Limiter = DefaultKeyedRateLimiter<Arc<str>>;

/// The rates of all principals, shared by all connections.
#[derive(Debug)]
pub struct Rates {
    burst: u32,
    per_second: u32,
    limiter: Option<(Limiter, NonZeroU32)>,
    clock: DefaultClock,
    /// How often something was spent.
    spent: AtomicUsize,
    /// In a cluster.
    shared: Option<Mutex<Shared>>,
}

/// What is shared with other daemons.
#[derive(Debug, Default)]
struct Shared {
    /// What was spent here and nobody was told of yet.
    spent: HashMap<Arc<str>, u32>,
    /// What was spent elsewhere, by those who had not as much left here.
    owed: HashMap<Arc<str>, u32>,
}

impl Rates {
    /// As `[limits]` says; a burst of 0 is no limit. Whether other daemons are told.
    pub fn new(limits: &Limits, is_shared: bool) -> Self {
        let limiter = NonZeroU32::new(limits.requests_burst).map(|burst| {
            let per_second = NonZeroU32::new(limits.requests_per_second).unwrap_or(NonZeroU32::MIN);
            (Limiter::keyed(Quota::per_second(per_second).allow_burst(burst)), burst)
        });
        Self {
            burst: limits.requests_burst,
            per_second: limits.requests_per_second,
            limiter,
            clock: DefaultClock::default(),
            spent: AtomicUsize::new(0),
            shared: is_shared.then(Mutex::default),
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
        let cost = cost.min(*burst);
        self.forget_some(limiter);
        let mut shared = self.shared();
        let owed = shared.as_mut().map_or(0, |shared| shared.pay(limiter, *burst, &principal.name));
        let all = cost.saturating_add(owed);
        let due = all.min(*burst);
        match limiter.check_key_n(&principal.name, due) {
            Ok(Err(until)) => {
                // What is more than a burst comes after it.
                let beyond = Duration::from_secs(1) * (all.get() - due.get()) / self.per_second.max(1);
                let wait = until.wait_time_from(self.clock.now()) + beyond;
                Err(ErrorCode::RateLimited
                    .error(format!("too many requests: try again in {} ms", wait.as_millis().max(1)))
                    .with(Detail::RetryAfter(wait)))
            }
            Ok(Ok(())) | Err(_) => {
                if let Some(shared) = &mut shared {
                    shared.spends(&principal.name, cost.get());
                }
                Ok(())
            }
        }
    }

    /// What was spent since this was asked last.
    pub fn take_spent(&self) -> Vec<(Arc<str>, u32)> {
        let (Some(mut shared), Some((limiter, burst))) = (self.shared(), &self.limiter) else {
            return Vec::new();
        };
        // Who owes something and does not come again is forgotten once he has paid.
        let owing: Vec<Arc<str>> = shared.owed.keys().cloned().collect();
        for name in owing {
            shared.pay(limiter, *burst, &name);
        }
        if limiter.len() > PRINCIPALS_MARK {
            limiter.retain_recent();
        }
        shared.spent.drain().collect()
    }

    /// Takes what a principal has spent at another daemon from what he has here.
    pub fn spent_elsewhere(&self, principal: &str, units: u32) {
        let (Some(mut shared), Some((limiter, burst))) = (self.shared(), &self.limiter) else { return };
        self.forget_some(limiter);
        let name: Arc<str> = principal.into();
        let owed = shared.owed.entry(name.clone()).or_default();
        *owed = owed.saturating_add(units).min(burst.get().saturating_mul(OWED_BURSTS_MAX));
        shared.pay(limiter, *burst, &name);
    }

    fn shared(&self) -> Option<MutexGuard<'_, Shared>> {
        Some(self.shared.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who has all of it again is like somebody new.
    fn forget_some(&self, limiter: &Limiter) {
        if self.spent.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY) && limiter.len() > PRINCIPALS_MARK {
            limiter.retain_recent();
        }
    }
}

impl Shared {
    /// Has a principal pay what he owes as far as he can. What he still owes.
    fn pay(&mut self, limiter: &Limiter, burst: NonZeroU32, name: &Arc<str>) -> u32 {
        let Some(mut owed) = self.owed.remove(name) else { return 0 };
        let mut piece = owed.min(burst.get());
        while let Some(pays) = NonZeroU32::new(piece.min(owed)) {
            match limiter.check_key_n(name, pays) {
                Ok(Ok(())) => owed -= pays.get(),
                Ok(Err(_)) | Err(_) => piece = pays.get() / 2,
            }
        }
        if owed > 0 {
            self.owed.insert(name.clone(), owed);
        }
        owed
    }

    fn spends(&mut self, name: &Arc<str>, units: u32) {
        if let Some(spent) = self.spent.get_mut(name) {
            *spent = spent.saturating_add(units);
        } else if self.spent.len() < TOLD_MAX {
            self.spent.insert(name.clone(), units);
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
        rates_of(burst, 1, false)
    }

    fn rates_of(burst: u32, per_second: u32, is_shared: bool) -> Rates {
        let limits = Limits {
            requests_burst: burst,
            requests_per_second: per_second,
            ..clawmux_core::config::Config::default().limits
        };
        Rates::new(&limits, is_shared)
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
        let rates = rates_of(10, 1_000_000, true);
        for n in 0..5 * PRINCIPALS_MARK {
            rates.spend(&principal(&format!("jwt:{n}"), false), 1).unwrap();
        }
        for n in 0..5 * PRINCIPALS_MARK {
            rates.spent_elsewhere(&format!("jwt:{n}"), 30);
        }
        assert!(rates.take_spent().len() <= TOLD_MAX);
        rates.take_spent();
        let shared = rates.shared().unwrap();
        assert!(shared.spent.is_empty() && shared.owed.is_empty(), "all was paid meanwhile");
        let known = rates.limiter.as_ref().map_or(0, |(limiter, _)| limiter.len());
        assert!(known <= PRINCIPALS_MARK + SWEEP_EVERY, "{known} are known");
    }

    #[test]
    fn what_is_spent_elsewhere_is_taken_here_and_owed_where_there_is_not_as_much() {
        let rates = rates_of(10, 1, true);
        let ci = principal("ci", false);
        rates.spend(&ci, 3).unwrap();
        assert_eq!(rates.take_spent(), [(Arc::from("ci"), 3)]);
        assert!(rates.take_spent().is_empty(), "it is told once");
        rates.spent_elsewhere("ci", 5);
        rates.spend(&ci, 2).unwrap();
        rates.spent_elsewhere("ci", 4);
        let refused = rates.spend(&ci, 1).unwrap_err();
        assert!(
            matches!(refused.detail, Some(Detail::RetryAfter(wait)) if (2..=6).contains(&wait.as_secs())),
            "what is owed comes first: {refused:?}"
        );
        rates.spent_elsewhere("ci", u32::MAX);
        assert!((100..=160).contains(&rates.shared().unwrap().owed["ci"]), "a bounded number of bursts");
        let refused = rates.spend(&ci, 1).unwrap_err();
        assert!(
            matches!(refused.detail, Some(Detail::RetryAfter(wait)) if (150..=161).contains(&wait.as_secs())),
            "until all is paid: {refused:?}"
        );
        assert_eq!(rates.take_spent(), [(Arc::from("ci"), 2)], "what was refused was not spent");
        // Nobody is told where there is no other daemon.
        let alone = rates_of(10, 1, false);
        alone.spend(&ci, 3).unwrap();
        alone.spent_elsewhere("ci", 10);
        assert!(alone.take_spent().is_empty());
        alone.spend(&ci, 7).unwrap();
    }

    #[test]
    fn a_cost_above_the_burst_takes_all_of_it() {
        let rates = rates(3);
        rates.spend(&principal("ci", false), 5).unwrap();
        assert!(rates.spend(&principal("ci", false), 1).is_err());
    }
}
