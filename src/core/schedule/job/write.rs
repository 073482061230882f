//! What is to be written down of jobs and their firings.

use super::{Firing, Job};
use crate::ids::JobId;

/// What a change counts besides its text, in bytes.
const CHANGE_BYTES: usize = 512;

/// A change of what is kept of jobs.
#[derive(Clone, Debug, PartialEq)]
pub enum JobWrite {
    /// A job, new or as it is now.
    Put(Box<Job>),
    /// A job is gone, with its firings.
    Remove(JobId),
    /// A firing is begun, or is over at once. There may be none of that job and time yet.
    Enter(Box<Firing>),
    /// A firing is as it is now; of those that are over, only the latest are kept.
    Settle(Box<Firing>),
}

impl JobWrite {
    /// What it counts where bytes are bounded.
    pub fn bytes(&self) -> usize {
        CHANGE_BYTES
            + match self {
                Self::Put(job) => job.task.prompt.len() + job.note.as_ref().map_or(0, String::len),
                Self::Enter(firing) | Self::Settle(firing) => firing.text.as_ref().map_or(0, String::len),
                Self::Remove(_) => 0,
            }
    }
}
