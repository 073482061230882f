//! A key that takes no more requests for now: kept while the others are asked with, since a pause cures it.

use std::time::Duration;

use clawmux_core::error::{Detail, Error};
use clawmux_core::provider::fault::Fault;
use tokio::time::Instant;

use super::Candidate;

/// A model with such a key, and what it said.
pub(super) struct Limited {
    pub(super) candidate: Candidate,
    pub(super) error: Error,
    pub(super) fault: Fault,
    /// When it said so.
    at: Instant,
}

impl Limited {
    /// It said so now.
    pub(super) fn new(candidate: Candidate, error: Error, fault: Fault) -> Self {
        Self { candidate, error, fault, at: Instant::now() }
    }

    /// How long it has yet to be left alone, as far as its provider says.
    pub(super) fn wait(&self) -> Duration {
        match self.error.detail {
            Some(Detail::RetryAfter(wait)) => wait.saturating_sub(self.at.elapsed()),
            _ => Duration::ZERO,
        }
    }

    /// What it said, as of now.
    pub(super) fn still(&self) -> Error {
        match self.error.detail {
            Some(Detail::RetryAfter(_)) => self.error.clone().with(Detail::RetryAfter(self.wait())),
            _ => self.error.clone(),
        }
    }
}
