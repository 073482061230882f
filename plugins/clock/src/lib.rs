//! `clock`: a tool that answers with the current time.
//!
//! A sandbox has no clock: the time comes from the host function `clock`, which the plugin has only
//! where `host_function:clock` is granted. Time zones are deliberately absent, their rules would be
//! most of the module.

use extism_pdk::{FnResult, plugin_fn};

#[link(wasm_import_module = "extism:host/user")]
unsafe extern "C" {
    /// Milliseconds since the Unix epoch.
    safe fn clock() -> u64;
}

/// What the tool is, for the model.
#[plugin_fn]
pub fn describe() -> FnResult<&'static str> {
    Ok(r#"{"name":"clock","description":"Tells the current date and time, in UTC as RFC 3339.","input_schema":{"type":"object","properties":{}}}"#)
}

/// Answers with the current time, such as `2026-02-08T09:30:00.250Z`. Whatever the input, it is not
/// looked at.
#[plugin_fn]
pub fn handle_tool_call() -> FnResult<String> {
    Ok(format!(r#"{{"content":"{}"}}"#, rfc3339(clock())))
}

/// The time `millis` after the Unix epoch.
fn rfc3339(millis: u64) -> String {
    let (days, in_day) = (millis / 86_400_000, millis % 86_400_000);
    let (year, month, day) = date(days);
    let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (second, milli) = (in_day / 1000 % 60, in_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01. Counts in years
/// that begin with March, so that the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let since_march_0000 = days + 719_468;
    let cycle = since_march_0000 / DAYS_OF_400_YEARS;
    let in_cycle = since_march_0000 % DAYS_OF_400_YEARS;
    let year = (in_cycle - in_cycle / 1460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
    let in_year = in_cycle - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (400 * cycle + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_770_543_000_250, "2026-02-08T09:30:00.250Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(millis), text);
        }
    }
}
