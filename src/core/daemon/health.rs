//! How the daemon and its parts are, for those who watch over it.
//!
//! A part is what its actor says of itself, looked at just now. Nothing here counts as well what is
//! only hoped: figures that were not measured are left out.

use crate::time::Timestamp;

/// The condition of a part of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// It works.
    Running,
    /// It works, and something should be looked at.
    Degraded,
    /// It fails.
    Error,
    /// It does not run.
    Stopped,
}

impl Condition {
    /// Its name, as clients know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Degraded => "degraded",
            Self::Error => "error",
            Self::Stopped => "stopped",
        }
    }
}

/// A part of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The part's name.
    pub name: &'static str,
    /// The part's condition.
    pub condition: Condition,
    /// When it was looked at.
    pub checked: Timestamp,
    /// What should be looked at, without secrets.
    pub errors: Vec<String>,
}

impl Part {
    /// One that is as it should be.
    pub fn running(name: &'static str, checked: Timestamp) -> Self {
        Self { name, condition: Condition::Running, checked, errors: Vec::new() }
    }

    /// With something that should be looked at, where there is.
    #[must_use]
    pub fn degraded_by(mut self, errors: impl IntoIterator<Item = String>) -> Self {
        self.errors.extend(errors);
        if !self.errors.is_empty() {
            self.condition = self.condition.max(Condition::Degraded);
        }
        self
    }
}

/// What was measured since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Sessions that were made.
    pub sessions_made: u64,
    /// Tokens that models read and wrote.
    pub tokens: u64,
    /// Runs that ended by themselves, well.
    pub completed: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Runs whose length is known, and how long they took in all, in ms, from their prompt to their end.
    pub timed: u64,
    /// See [`Self::timed`].
    pub response_ms: u64,
}

impl Figures {
    /// How long a run took on average, in ms; none where none ended.
    pub fn response_ms_average(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.response_ms as f64 / self.timed as f64)
    }

    /// The share of runs that did not fail, aborted ones not counted; none where none ended.
    pub fn success_rate(&self) -> Option<f64> {
        let ended = self.completed + self.failed;
        (ended > 0).then(|| self.completed as f64 / ended as f64)
    }
}

/// The health of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When the daemon was examined.
    pub at: Timestamp,
    /// Since when the daemon is ready.
    pub started: Timestamp,
    /// Sessions that are awake.
    pub sessions: u64,
    /// Connections that were let in.
    pub connections: u64,
    /// The parts of the daemon with their conditions.
    pub parts: Vec<Part>,
    /// What was measured.
    pub figures: Figures,
}

impl Report {
    /// How it is as a whole: one part that is not as it should be degrades it.
    pub fn condition(&self) -> Condition {
        let worst = self.parts.iter().map(|part| part.condition).max().unwrap_or(Condition::Running);
        worst.min(Condition::Degraded)
    }

    /// What should be looked at, of all parts, without secrets.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flat_map(|part| &part.errors).map(String::as_str)
    }

    /// Whether something is other than it was in another report, figures and times aside.
    pub fn differs(&self, other: &Self) -> bool {
        let said = |report: &Self| -> Vec<_> {
            report.parts.iter().map(|part| (part.name, part.condition, part.errors.clone())).collect()
        };
        said(self) != said(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(parts: Vec<Part>) -> Report {
        let at = Timestamp::from_millis(1);
        Report { at, started: at, sessions: 0, connections: 0, parts, figures: Figures::default() }
    }

    #[test]
    fn one_part_degrades_the_whole_and_times_are_no_change() {
        let part = |name| Part::running(name, Timestamp::from_millis(1));
        let well = report(vec![part("a"), part("b").degraded_by([])]);
        assert_eq!(well.condition(), Condition::Running);
        let ill = report(vec![part("a"), part("b").degraded_by(["why".into()])]);
        assert_eq!((ill.condition(), ill.differs(&well)), (Condition::Degraded, true));
        let broken = Part { condition: Condition::Error, ..part("b") };
        assert_eq!(report(vec![part("a"), broken]).condition(), Condition::Degraded);
        let later = Report {
            at: Timestamp::from_millis(9),
            sessions: 5,
            parts: vec![Part { checked: Timestamp::from_millis(9), ..part("a") }, part("b")],
            ..well.clone()
        };
        assert!(!later.differs(&well));
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        let none = Figures::default();
        assert_eq!((none.response_ms_average(), none.success_rate()), (None, None));
        let some = Figures { completed: 3, failed: 1, timed: 4, response_ms: 10, ..none };
        assert_eq!((some.response_ms_average(), some.success_rate()), (Some(2.5), Some(0.75)));
    }
}
