//! A prompt: what is submitted, and what a session keeps of it until its run is over.

use crate::ids::{Owner, RunId, Seq};
use crate::prompt::attachment::{self, Attachment};
use crate::prompt::run_options::RunOptions;
use crate::time::Timestamp;

/// How many bytes of prompts, with what they bring along, may wait in one session. A single prompt may
/// always wait.
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A prompt for [`submit`](super::Session::submit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The id of its run.
    pub run: RunId,
    /// The text of the prompt.
    pub content: String,
    /// The owner of the prompt.
    pub owner: Owner,
    /// The same key from the same owner is the same run.
    pub idempotency_key: Option<String>,
    /// The attachments of the prompt.
    pub attachments: Vec<Attachment>,
    /// How it is to be answered.
    pub run_options: RunOptions,
}

/// What became of a [`Submission`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The run: that of the submission, or the one its key names.
    pub run: RunId,
    /// The number of the prompt's event.
    pub seq: Seq,
    /// Whether the run was there before.
    pub repeated: bool,
}

/// A prompt in the queue or under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prompt {
    pub(super) run: RunId,
    pub(super) seq: Seq,
    pub(super) at: Timestamp,
    pub(super) content: String,
    pub(super) owner: Owner,
    pub(super) idempotency_key: Option<String>,
    pub(super) attachments: Vec<Attachment>,
    pub(super) run_options: RunOptions,
    /// What was put beside it of what is remembered; may be empty.
    pub(super) notes: String,
    /// How many bytes it has that are in the event log and not here; 0 = all of it is here.
    pub(super) aside: usize,
}

impl Prompt {
    /// Whether its run has this id, or was asked for with this idempotency key.
    pub(super) fn is_named(&self, run: &RunId) -> bool {
        self.run == *run || self.idempotency_key.as_deref() == Some(run.as_str())
    }

    /// When its run is ended, should it not be over then.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.run_options.timeout.map(|timeout| self.at.after(timeout))
    }

    pub(super) fn is_overdue(&self, now: Timestamp) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// How many bytes it has, wherever they are.
    pub(super) fn bytes(&self) -> usize {
        self.aside + prompt_bytes(&self.content, &self.attachments)
    }
}

/// How much memory a prompt takes with what it brings along, roughly.
pub fn prompt_bytes(content: &str, attachments: &[Attachment]) -> usize {
    content.len() + attachment::held_bytes(attachments)
}
