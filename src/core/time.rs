//! Points in time as plain numbers: the core has no clock, callers say what time it is.

use std::time::Duration;

/// The pause after something failed once more, `failed` times before: `first`, twice as long each time, `most` at most.
pub fn backoff(first: Duration, failed: u32, most: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failed)).min(most)
}

/// A point in time: milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time `by` later; stops at the largest representable time.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }

    /// As people and programs read it: `2026-01-31T12:00:00.000Z`.
    pub fn to_rfc3339(self) -> String {
        let millis = i64::try_from(self.0).unwrap_or(i64::MAX);
        let time = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
        time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
    }

    /// How many milliseconds it is from `earlier` to here; 0 where `earlier` is later.
    pub const fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How long it is from `earlier` to here; zero where `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.millis_since(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest() {
        let (first, most) = (Duration::from_millis(500), Duration::from_secs(15));
        let pauses = [0, 1, 4, 5, u32::MAX].map(|failed| backoff(first, failed, most).as_millis());
        assert_eq!(pauses, [500, 1000, 8000, 15_000, 15_000]);
    }

    #[test]
    fn times_are_written_whatever_they_are() {
        assert_eq!(Timestamp::from_millis(86_400_001).to_rfc3339(), "1970-01-02T00:00:00.001Z");
        assert!(Timestamp::from_millis(u64::MAX).to_rfc3339().starts_with("9999-12-"));
    }
}
