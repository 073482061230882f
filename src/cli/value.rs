//! Values of the command line: numbers, durations, points in time.

use std::time::Duration;

/// A number above 0.
///
/// # Errors
/// What is expected.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number above 0".into()),
        Ok(number) => Ok(number),
    }
}

/// The number of a connection.
///
/// # Errors
/// What is expected.
pub(super) fn connection_number(text: &str) -> Result<u64, String> {
    let expected = "expected the number of a connection: `clawmux connections` lists them";
    text.parse().map_err(|_| expected.to_owned())
}

/// A duration as people write it: `90s`, `15m`, `12h`, `30d`.
///
/// # Errors
/// What is expected.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a span such as 90s, 15m, 12h or 30d".to_owned();
    let unit = text.chars().last().ok_or_else(expected)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(expected()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| expected())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| *seconds > 0).ok_or_else(expected)?;
    Ok(Duration::from_secs(seconds))
}

/// A duration, or `0s`.
///
/// # Errors
/// What is expected.
pub(super) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    if text == "0s" { Ok(Duration::ZERO) } else { duration(text) }
}

/// When a job is due that runs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// At this time, in milliseconds since the epoch.
    At(u64),
    /// After this time from now.
    In(Duration),
}

impl Due {
    /// In milliseconds since the epoch.
    pub(crate) fn at_ms(self, now_ms: u64) -> u64 {
        match self {
            Self::At(at) => at,
            Self::In(wait) => now_ms.saturating_add(millis(wait)),
        }
    }
}

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time: with an offset, in this host's time zone, or from now on.
///
/// # Errors
/// What is expected.
pub(super) fn due(text: &str) -> Result<Due, String> {
    let expected =
        || "expected a time such as 2026-01-31T09:00:00Z, 2026-01-31T09:00 (of this host) or +20m".to_owned();
    if let Some(wait) = text.strip_prefix('+') {
        return duration(wait).map(Due::In).map_err(|_| expected());
    }
    let timestamp = text.parse::<jiff::Timestamp>().or_else(|_| {
        let local: jiff::civil::DateTime = text.parse()?;
        Ok::<_, jiff::Error>(local.to_zoned(jiff::tz::TimeZone::system())?.timestamp())
    });
    let millis = timestamp.map_err(|_| expected())?.as_millisecond();
    u64::try_from(millis).map(Due::At).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "d", "0d", "-1d", "1", "1y", "1.5d", " 1d", "1 d", "99999999999999999999d", "İ"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(duration(&format!("{}d", u64::MAX)).is_err());
        let zero = |text| duration_or_zero(text);
        assert_eq!((zero("0s"), zero("1h")), (Ok(Duration::ZERO), Ok(Duration::from_secs(3600))));
        assert!(zero("0h").is_err());
    }

    #[test]
    fn times_are_read() {
        assert_eq!(due("1970-01-01T00:01:00Z"), Ok(Due::At(60_000)));
        assert_eq!(due("1970-01-01T01:01:00+01:00"), Ok(Due::At(60_000)));
        assert!(matches!(due("2026-01-31T09:00"), Ok(Due::At(_))));
        assert_eq!(due("+20m").map(|due| due.at_ms(5)), Ok(1_200_005));
        for bad in ["", "soon", "+", "+5", "20m", "2026-13-01T00:00Z", "1969-12-31T00:00:00Z"] {
            assert!(due(bad).is_err(), "{bad}");
        }
    }
}
