//! When a model that failed is asked again, and after what pause.
//!
//! Only before it said anything: what was said can't be taken back.

use std::time::Duration;

use super::fault::Fault;

use crate::time::backoff;

/// How often, and how patiently, one model is asked again before the next one is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How often it is asked again.
    pub max: u32,
    /// The first pause; each one after it is twice as long.
    pub pause: Duration,
    /// The longest pause. A provider that wants to be left alone for longer is not waited for.
    pub pause_max: Duration,
}

impl Retries {
    /// A model is asked once.
    pub const NONE: Self = Self { max: 0, pause: Duration::ZERO, pause_max: Duration::ZERO };

    /// The pause before a model is asked again that was asked again `asked` times; none = it is not.
    ///
    /// Half of a pause of ours is left to `random`, so that those who failed together do not come back together.
    /// A pause that the provider wants is kept, and a little is added.
    pub fn pause(&self, fault: Fault, asked: u32, wanted: Option<Duration>, random: u32) -> Option<Duration> {
        if !fault.is_passing() || asked >= self.max {
            return None;
        }
        let share = f64::from(random) / f64::from(u32::MAX);
        let own = backoff(self.pause, asked, self.pause_max);
        match wanted {
            Some(wanted) if wanted > self.pause_max => None,
            Some(wanted) => Some(wanted.max(own / 2) + own.mul_f64(share / 4.0)),
            None => Some(own / 2 + own.mul_f64(share / 2.0)),
        }
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self { max: 2, pause: Duration::from_secs(1), pause_max: Duration::from_secs(30) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_passes_is_asked_again_a_few_times() {
        let retries = Retries::default();
        let ms = |asked, wanted: Option<u64>, random| {
            let pause = retries.pause(Fault::Overloaded, asked, wanted.map(Duration::from_secs), random);
            pause.map(|pause| pause.as_millis())
        };
        assert_eq!((ms(0, None, 0), ms(0, None, u32::MAX)), (Some(500), Some(1000)));
        assert_eq!((ms(1, None, 0), ms(1, None, u32::MAX)), (Some(1000), Some(2000)));
        assert_eq!(ms(2, None, 0), None);
        assert_eq!(ms(0, Some(7), 0), Some(7000), "as the provider wants");
        assert_eq!(ms(0, Some(0), 0), Some(500));
        assert_eq!(ms(0, Some(31), 0), None, "too long");
        assert_eq!(Retries::NONE.pause(Fault::Server, 0, None, 0), None);
        for fault in [Fault::Auth, Fault::BadRequest, Fault::ContextTooLong, Fault::Timeout] {
            assert_eq!(retries.pause(fault, 0, None, 0), None, "{}", fault.name());
        }
    }

    proptest! {
        #[test]
        fn no_pause_is_longer_than_the_longest_and_a_bit(
            asked in 0..5u32, wanted in prop::option::of(0..100_000u64), random in any::<u32>(),
        ) {
            let retries = Retries { max: 4, ..Retries::default() };
            let wanted = wanted.map(Duration::from_millis);
            if let Some(pause) = retries.pause(Fault::RateLimit, asked, wanted, random) {
                prop_assert!(pause <= retries.pause_max + retries.pause_max / 4);
                prop_assert!(wanted.is_none_or(|wanted| pause >= wanted));
            }
        }
    }
}
