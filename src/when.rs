//! Points in time and durations in words. Times are UTC: the log of one machine is often read on
//! another.

use std::time::{SystemTime, UNIX_EPOCH};

/// In milliseconds.
const SECOND: u64 = 1000;
const DAY: u64 = 86_400 * SECOND;
/// What is longer ago is shown as a date.
const LONG_AGO: u64 = 30 * DAY;

/// Now, in milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A duration such as `2m 5s`.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / SECOND;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s}s"),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, ..) => format!("{d}d {h}h"),
    }
}

/// How long before `now_ms` it was.
pub(crate) fn ago(at_ms: u64, now_ms: u64) -> String {
    match now_ms.saturating_sub(at_ms) {
        ms if ms < SECOND => "now".into(),
        ms if ms > LONG_AGO => utc(at_ms)[..10].to_owned(),
        ms => {
            let long = span(ms);
            // One unit is enough.
            format!("{} ago", long.split(' ').next().unwrap_or(&long))
        }
    }
}

/// The time such as `2026-01-31 23:59:58`, UTC.
pub(crate) fn utc(at_ms: u64) -> String {
    let millis = i64::try_from(at_ms).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%F %T").to_string()
}

/// A time for file names: `20260131T235958Z`.
pub(crate) fn stamp(at_ms: u64) -> String {
    let digits = utc(at_ms).replace(['-', ':'], "");
    format!("{}Z", digits.replace(' ', "T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_distances() {
        assert_eq!(
            ["5s", "2m 5s", "1h 0m", "1d 1h"],
            [5, 125, 3600, 90_061].map(|s| span(s * 1000)).each_ref().map(|s| s.as_str())
        );
        assert_eq!(ago(10_000, 10_999), "now");
        assert_eq!(ago(10_000, 9_000), "now", "clocks differ");
        assert_eq!(ago(0, 125_000), "2m ago");
        assert_eq!(ago(0, 90 * DAY), "1970-01-01");
    }

    #[test]
    fn dates() {
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(stamp(951_782_400_000), "20000229T000000Z");
        assert!(utc(u64::MAX).starts_with("9999-"), "no input panics");
    }
}
