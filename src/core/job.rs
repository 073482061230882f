//! What is done at set times without anybody asking: what can be asked about such jobs and how they
//! are. When one is due is [`schedule`](crate::schedule)'s.

use std::time::Duration;

/// The built-in job that looks after what the agent keeps in its heartbeat file.
pub const HEARTBEAT: &str = "heartbeat";
/// The built-in job that has the memory of a conversation saved and begins a new one.
pub const NEW_SESSION: &str = "new-session";

/// What can be asked about jobs.
#[derive(Clone, Debug, PartialEq)]
pub enum JobCommand {
    /// Do one now, whenever it is due. Answered when it is done.
    Run {
        /// Which.
        job: String,
    },
}

impl JobCommand {
    /// What the request and its reply may take of memory, a small request being 1.
    pub fn weight(&self) -> usize {
        1
    }
}

/// What is answered about jobs.
#[derive(Clone, Debug, PartialEq)]
pub enum JobReply {
    /// To `Run`.
    Ran(Ran),
}

/// What became of a job that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Whether it was done as it should be.
    pub is_ok: bool,
    /// For people.
    pub message: String,
    /// What the model said, if it was asked.
    pub result: Option<String>,
    /// How long it took.
    pub took: Duration,
}
