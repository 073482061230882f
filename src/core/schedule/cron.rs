//! A cron expression in a time zone.
//!
//! Five fields (minute, hour, day of the month, month, day of the week), six with seconds in front,
//! seven with the year behind; names of days and months, `L`, `#`, `W`, and nicknames such as `@daily`.
//! Where both the day of the month and the day of the week are given, either is enough.
//!
//! An expression without a `*` in its minute and hour names hours of the clock: each is done once a day,
//! also on days on which the clock is put forward over it or back to it. One with a `*` there is done by
//! the clock as it runs. The parser knows the first kind only by a single hour and minute; a list of
//! them is taken apart into as many expressions, so that `30 2,14 * * *` is not missed at 02:30.

use croner::parser::CronParser;
use croner::{Cron as Pattern, CronComponent, JobType};
use jiff::tz::TimeZone;

use crate::error::{Error, ErrorCode};
use crate::time::Timestamp;

/// The longest expression, in bytes.
const BYTES_MAX: usize = 256;

/// Of so many hours and minutes together an expression is taken apart; one with more is done by the
/// clock as it runs.
const TIMES_MAX: usize = 96;

/// What the fields are called and what may stand in them, all seven.
const FIELDS: [(&str, &str); 7] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31, or L"),
    ("month", "1 to 12, or JAN to DEC"),
    ("day of the week", "0 to 7, or SUN to SAT"),
    ("year", "1 to 9999"),
];

/// A bit that stands for every way in which a value may be meant (the parser's).
const ANY_BIT: u8 = 1;

/// A cron expression with its time zone.
#[derive(Clone, Debug)]
pub struct Cron {
    expression: String,
    zone: TimeZone,
    name: String,
    /// It is due when one of these is.
    patterns: Vec<Pattern>,
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        (&self.expression, &self.name) == (&other.expression, &other.name)
    }
}

impl Cron {
    /// Reads an expression that is meant in the zone of this IANA name.
    ///
    /// # Errors
    /// `InvalidRequest`, naming what is wrong with either.
    pub fn new(expression: &str, zone: &str) -> Result<Self, Error> {
        let tz = time_zone(zone)?;
        Ok(Self {
            expression: expression.trim().to_owned(),
            zone: tz,
            name: zone.to_owned(),
            patterns: patterns(expression)?,
        })
    }

    /// As it was written.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The name of its time zone.
    pub fn zone(&self) -> &str {
        &self.name
    }

    /// The first time that is due after this one.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let millis = i64::try_from(after.as_millis()).ok()?;
        let instant = jiff::Timestamp::from_millisecond(millis).ok()?;
        let after = instant.to_zoned(self.zone.clone());
        // Where a country leaves out a whole day, the parser finds no way over it.
        let change = || Some(self.zone.following(instant).next()?.timestamp().to_zoned(self.zone.clone()));
        let due = self.patterns.iter().filter_map(|pattern| {
            let next = pattern.find_next_occurrence(&after, false);
            let next = next.ok().or_else(|| pattern.find_next_occurrence(&change()?, true).ok())?;
            // The parser works in seconds and keeps their fraction.
            let seconds = u64::try_from(next.timestamp().as_second()).ok()?;
            Some(Timestamp::from_millis(seconds * 1000))
        });
        due.min()
    }
}

/// Makes sure that an expression can be understood, whatever the zone.
///
/// # Errors
/// As [`Cron::new`].
fn patterns(expression: &str) -> Result<Vec<Pattern>, Error> {
    let shown: String = expression.chars().take(BYTES_MAX).collect();
    let refuse = |why: &str| ErrorCode::InvalidRequest.error(format!("cron expression {shown:?}: {why}"));
    if expression.len() > BYTES_MAX {
        return Err(refuse(&format!("longer than {BYTES_MAX} bytes")));
    }
    let text = expression.trim();
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.is_empty() {
        return Err(refuse("it is empty; expected minute, hour, day, month and weekday"));
    }
    if !text.starts_with('@') && !(5..=7).contains(&fields.len()) {
        return Err(refuse(&format!(
            "{} fields; expected 5: minute, hour, day, month and weekday (or 6 with seconds in front)",
            fields.len()
        )));
    }
    if text.starts_with('@') && !text.eq_ignore_ascii_case(nickname(text)) {
        return Err(refuse("unknown nickname; there are @yearly, @monthly, @weekly, @daily and @hourly"));
    }
    let parse = |text: &str| {
        let parsed = CronParser::new().parse(text);
        parsed.map_err(|error| refuse(&wrong_field(&fields).unwrap_or_else(|| words(&error))))
    };
    let pattern = parse(text)?;
    if pattern.determine_job_type() == JobType::FixedTime || text.starts_with('@') {
        return Ok(vec![pattern]);
    }
    let first = usize::from(fields.len() > 5);
    if fields[first].contains(['*', '?']) || fields[first + 1].contains(['*', '?']) {
        return Ok(vec![pattern]);
    }
    let values = |component: &CronComponent| component.get_set_values(ANY_BIT);
    let (minutes, hours) = (values(&pattern.pattern.minutes), values(&pattern.pattern.hours));
    if minutes.len() * hours.len() > TIMES_MAX || values(&pattern.pattern.seconds).len() > 1 {
        return Ok(vec![pattern]);
    }
    let mut each = Vec::with_capacity(minutes.len() * hours.len());
    for hour in &hours {
        for minute in &minutes {
            let mut fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
            fields[first] = minute.to_string();
            fields[first + 1] = hour.to_string();
            each.push(parse(&fields.join(" "))?);
        }
    }
    Ok(each)
}

/// Which field cannot be what it is, and what may stand there: the one that is refused also where all
/// others say nothing.
fn wrong_field(fields: &[&str]) -> Option<String> {
    let names = &FIELDS[usize::from(fields.len() == 5)..];
    let (at, wrong) = fields.iter().enumerate().find(|(at, field)| {
        let mut alone = vec!["*"; fields.len()];
        alone[*at] = field;
        CronParser::new().parse(&alone.join(" ")).is_err()
    })?;
    let (name, range) = names.get(at)?;
    Some(format!("the {name} is {wrong}; expected {range}"))
}

/// The nickname that this is, if it is one.
fn nickname(text: &str) -> &'static str {
    let known = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    known.into_iter().find(|known| text.eq_ignore_ascii_case(known)).unwrap_or("@")
}

/// What the parser says, in the words of this program.
fn words(error: &croner::errors::CronError) -> String {
    let said = error.to_string();
    let said = said.trim_end_matches('.');
    let mut chars = said.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// The time zone of this name.
///
/// # Errors
/// `InvalidRequest` where nobody knows it.
fn time_zone(name: &str) -> Result<TimeZone, Error> {
    if name.eq_ignore_ascii_case("utc") {
        return Ok(TimeZone::UTC);
    }
    let shown: String = name.chars().take(64).collect();
    TimeZone::get(name).map_err(|_| {
        ErrorCode::InvalidRequest
            .error(format!("unknown time zone {shown:?}: expected a name such as UTC or Europe/Berlin"))
    })
}
