//! How one prompt is to be answered, where that differs from how its session and its agent are set.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::LaneName;
use crate::prompt::answer_to::AnswerTo;
use crate::prompt::thinking::Thinking;

/// What a prompt costs of `limits.requests_burst`, in every dialect.
pub const PROMPT_COST: u32 = 5;

/// What a prompt asks of its answer; what it does not say is as its session is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// How much is thought over it.
    pub thinking: Option<Thinking>,
    /// The model that answers, `PROVIDER/MODEL`.
    pub model: Option<String>,
    /// The most tokens of one answer; no more than the agent may give.
    pub max_tokens: Option<u32>,
    /// The lane its run waits in for its turn, besides the queue of its session.
    pub lane: Option<LaneName>,
    /// How long after it was accepted its run is ended, should it not be over then; in milliseconds.
    pub timeout: Option<Duration>,
    /// Where the answer goes besides the session.
    pub answer_to: Option<Arc<AnswerTo>>,
}

impl From<Option<Thinking>> for RunOptions {
    fn from(thinking: Option<Thinking>) -> Self {
        Self { thinking, ..Self::default() }
    }
}
