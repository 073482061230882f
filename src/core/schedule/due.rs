//! What of the times that passed is to be done now.

use std::time::Duration;

use super::Schedule;
use crate::time::Timestamp;

/// What passed so long ago was missed; what is younger is merely late.
pub const LATE: Duration = Duration::from_secs(60);

/// So many missed times are counted; more are told as this many.
pub const MISSED_MAX: u64 = 1000;

/// By so much the clock may be put back before it is said to have been wrong.
const BACK_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What becomes of times that passed without being done: the daemon was not there, or the job was still
/// busy with an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misfire {
    /// They are not done; that they were missed is written down.
    Skip,
    /// The last of them is done, for all of them.
    #[default]
    Once,
    /// The last so many of them are done, one after the other.
    All(u32),
}

impl Misfire {
    /// The most that [`Misfire::All`] may be.
    pub const ALL_MAX: u32 = 100;

    /// How it is written: `skip`, `once`, `all:10`.
    pub fn name(self) -> String {
        match self {
            Self::Skip => "skip".into(),
            Self::Once => "once".into(),
            Self::All(most) => format!("all:{most}"),
        }
    }

    /// The policy that is written so; `all` alone is as many as there may be.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "skip" => Some(Self::Skip),
            "once" => Some(Self::Once),
            "all" => Some(Self::All(Self::ALL_MAX)),
            _ => {
                let most = name.strip_prefix("all:")?.parse().ok()?;
                (1..=Self::ALL_MAX).contains(&most).then_some(Self::All(most))
            }
        }
    }
}

/// A time that is to be dealt with now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// It. Every time up to it is dealt with by this.
    pub scheduled: Timestamp,
    /// How many before it were missed, up to [`MISSED_MAX`].
    pub missed: u64,
    /// Whether it is itself only to be written down as missed.
    pub is_skipped: bool,
}

/// What is to be dealt with at `now`, where all up to `settled` has been; none where nothing is. A clock
/// that is put back far is [`put_back`]'s.
pub fn due(schedule: &Schedule, misfire: Misfire, settled: Timestamp, now: Timestamp) -> Option<Due> {
    let last = schedule.last(settled, now)?;
    let (scheduled, is_skipped) = match misfire {
        Misfire::Skip => (last, now.since(last) > LATE),
        Misfire::Once => (last, false),
        Misfire::All(most) => {
            let mut first = last;
            for _ in 1..most.max(1) {
                let before = Timestamp::from_millis(first.as_millis().saturating_sub(1));
                match schedule.last(settled, before) {
                    Some(earlier) => first = earlier,
                    None => break,
                }
            }
            (first, false)
        }
    };
    let mut missed = 0;
    let mut at = settled;
    while missed < MISSED_MAX
        && let Some(earlier) = schedule.next(at).filter(|earlier| *earlier < scheduled)
    {
        missed += 1;
        at = earlier;
    }
    Some(Due { scheduled, missed, is_skipped })
}

/// Where `settled` is so far ahead that the clock was wrong when it was set: up to when all is said to be
/// dealt with instead, which is when that was `noticed` first. None where the clock was put back little,
/// or not at all, or has come back.
///
/// Whoever looks again keeps the answer and gives it as `noticed`: "now" anew each time would leave
/// nothing that is ever due.
pub fn put_back(settled: Timestamp, noticed: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let is_ahead = |time: Timestamp| time.since(now) > BACK_MAX;
    is_ahead(settled).then(|| noticed.filter(|noticed| !is_ahead(*noticed)).unwrap_or(now))
}
