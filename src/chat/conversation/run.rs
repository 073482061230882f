//! One run of a session: whose it is, what it does, and since when.

use std::time::{Duration, Instant};

use clawmux_core::dialect::exoclaw::client::ABORTED;

use crate::chat::renderer::{End, Outcome};

/// A prompt that somebody else wrote.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// Who wrote it, where that is known.
    pub(super) by: Option<String>,
}

/// A run that is under way or waits.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: Option<String>,
    pub(super) is_own: bool,
    /// The prompt of somebody else that waits; it is shown when its turn comes.
    pub(super) unshown: Option<Prompt>,
    /// When it began; none if that was before this chat attached.
    since: Option<Instant>,
    /// Since when it does what it does.
    pub(super) doing_since: Instant,
    pub(super) doing: Doing,
    pub(super) failure: Option<String>,
    pub(super) tokens: Option<(u64, u64)>,
}

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It has not answered yet.
    Waiting,
    Thinking,
    Answering,
    /// Calls without a result yet: id and tool.
    Calling(Vec<(String, String)>),
}

impl Run {
    /// A run that has just been prompted. `is_past`: before this chat attached.
    pub(super) fn new(id: Option<String>, is_own: bool, is_past: bool, now: Instant) -> Self {
        Self {
            id,
            is_own,
            unshown: None,
            since: (!is_past).then_some(now),
            doing_since: now,
            doing: Doing::Waiting,
            failure: None,
            tokens: None,
        }
    }

    /// Records what it does now.
    pub(super) fn does(&mut self, doing: Doing, now: Instant) {
        if self.doing != doing {
            (self.doing, self.doing_since) = (doing, now);
        }
    }

    /// It calls one more tool.
    pub(super) fn calls(&mut self, call: String, tool: String, now: Instant) {
        let mut calls = match &self.doing {
            Doing::Calling(calls) => calls.clone(),
            _ => Vec::new(),
        };
        calls.push((call, tool));
        self.does(Doing::Calling(calls), now);
    }

    /// One of its calls has a result.
    pub(super) fn called(&mut self, call: &str, now: Instant) {
        if let Doing::Calling(calls) = &self.doing {
            let left: Vec<_> = calls.iter().filter(|(id, _)| id != call).cloned().collect();
            self.does(if left.is_empty() { Doing::Waiting } else { Doing::Calling(left) }, now);
        }
    }

    /// How it ended. `is_past`: before this chat attached.
    pub(super) fn end(self, is_past: bool, now: Instant) -> End {
        let outcome = match self.failure {
            None => Outcome::Completed,
            Some(why) if why == ABORTED => Outcome::Aborted,
            Some(why) => Outcome::Failed(why),
        };
        let elapsed = self.since.filter(|_| !is_past).map(|since| now.saturating_duration_since(since));
        End { outcome, elapsed, tokens: self.tokens }
    }

    /// For how long it has done what it does.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.doing_since)
    }
}
