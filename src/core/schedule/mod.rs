//! When something is due that is to be done at set times: at a time, every so long, or by a cron
//! expression in a time zone.
//!
//! A [`Schedule`] is a function from a point in time to the next one it names ([`Schedule::next`]); what
//! of those that passed is to be done, and what was missed, says [`due()`]. Both take the time as an
//! argument and keep nothing, so a clock that jumps is only another argument:
//!
//! | what happens | what follows |
//! |---|---|
//! | the clock is put forward, or the daemon was not there | the times passed over were missed: the job's [`Misfire`] says what becomes of them |
//! | the clock is put back by up to a day | what was done is not done again; the next is the first after what was done last |
//! | it is put back further | it was wrong before: it goes on from the time at which that is noticed ([`put_back`]). What was done has a row of its own, so it is still not done again |
//! | summer time begins | a cron time that does not exist is done once, at the first moment after the gap; what is done every minute or hour knows no gap |
//! | summer time ends | a cron time that comes twice is done once, at the first; what is done every minute or hour is done in both hours |
//!
//! "Every so long" counts seconds from its anchor and knows nothing of time zones.
//!
//! A cron expression without a zone means the zone of the host when the job was made, by its name (UTC
//! where the host names none): who writes "at nine" means nine o'clock where he sits, and a job does not
//! move when the host's zone is changed later, because the name is kept with it.

pub mod job;

mod cron;
mod due;

use std::time::Duration;

pub use cron::Cron;
pub use due::{Due, LATE, MISSED_MAX, Misfire, due, put_back};

use crate::error::{Error, ErrorCode};
use crate::time::Timestamp;

/// The shortest and the longest span between two times of "every so long".
pub const EVERY_MIN: Duration = Duration::from_secs(1);
/// The longest such span: ten years.
pub const EVERY_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// When something is to be done, as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Once, at this time.
    At(Timestamp),
    /// Again and again after a fixed time.
    Every {
        /// The time between two runs.
        every: Duration,
        /// The first time, from which all others are counted; none = one span from now.
        anchor: Option<Timestamp>,
    },
    /// By a cron expression.
    Cron {
        /// The expression.
        expression: String,
        /// The time zone it is meant in, by its IANA name; none = the host's.
        zone: Option<String>,
    },
}

/// When something is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// Once, at this time.
    At(Timestamp),
    /// At the anchor and every so long after it.
    Every {
        /// How long; at least [`EVERY_MIN`].
        every: Duration,
        /// The time of the first run.
        anchor: Timestamp,
    },
    /// Whenever the expression says so.
    Cron(Cron),
}

impl Schedule {
    /// The schedule of a plan that is made `now`, on a host with this time zone.
    ///
    /// # Errors
    /// `InvalidRequest`, naming what is wrong: a span out of bounds, an expression that can't be
    /// understood or never comes true, a zone that nobody knows.
    pub fn new(plan: &Plan, now: Timestamp, host_zone: &str) -> Result<Self, Error> {
        match plan {
            Plan::At(at) => Ok(Self::At(*at)),
            Plan::Every { every, anchor } => {
                if !(EVERY_MIN..=EVERY_MAX).contains(every) {
                    return Err(ErrorCode::InvalidRequest
                        .error("the span of a schedule is at least one second and at most ten years"));
                }
                Ok(Self::Every { every: *every, anchor: anchor.unwrap_or_else(|| now.after(*every)) })
            }
            Plan::Cron { expression, zone } => {
                let cron = Cron::new(expression, zone.as_deref().unwrap_or(host_zone))?;
                if cron.next(now).is_none() {
                    return Err(ErrorCode::InvalidRequest
                        .error(format!("cron expression {expression:?}: it names no time that ever comes")));
                }
                Ok(Self::Cron(cron))
            }
        }
    }

    /// The plan that gives this schedule again.
    pub fn plan(&self) -> Plan {
        match self {
            Self::At(at) => Plan::At(*at),
            Self::Every { every, anchor } => Plan::Every { every: *every, anchor: Some(*anchor) },
            Self::Cron(cron) => {
                Plan::Cron { expression: cron.expression().to_owned(), zone: Some(cron.zone().to_owned()) }
            }
        }
    }

    /// The first time that is due after this one; none where there is none any more.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::At(at) => (*at > after).then_some(*at),
            Self::Every { anchor, .. } if after < *anchor => Some(*anchor),
            Self::Every { every, anchor } => {
                let every = u64::try_from(every.as_millis()).ok().filter(|every| *every > 0)?;
                let times = after.millis_since(*anchor) / every + 1;
                let since = times.checked_mul(every)?;
                anchor.as_millis().checked_add(since).map(Timestamp::from_millis)
            }
            Self::Cron(cron) => cron.next(after),
        }
    }

    /// The last time that is due after `after` and not after `until`; none where there is none.
    pub fn last(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let within = |after| self.next(after).filter(|time| *time <= until);
        let mut found = within(after)?;
        // Nothing is due between `beyond` and `until`.
        let mut beyond = until;
        while found < beyond {
            let span = beyond.millis_since(found);
            let middle = found.after(Duration::from_millis(span / 2));
            match within(middle) {
                Some(later) => found = later,
                None => beyond = middle,
            }
        }
        Some(found)
    }

    /// The shortest span between two of its next times after `now`, of so many; none where it has no two.
    pub fn shortest_gap(&self, now: Timestamp, times: usize) -> Option<Duration> {
        if let Self::Every { every, .. } = self {
            return Some(*every);
        }
        let mut last = self.next(now)?;
        let following = std::iter::from_fn(|| {
            let (next, before) = (self.next(last)?, last);
            last = next;
            Some(next.since(before))
        });
        following.take(times).min()
    }

    /// Whether it is due once and never again.
    pub fn is_once(&self) -> bool {
        matches!(self, Self::At(_))
    }
}

#[cfg(test)]
mod tests;
