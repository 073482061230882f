//! What one model call cost.

use crate::ids::{AgentId, RunId, SessionKey};
use crate::provider::prefix::Changed;
use crate::provider::price::Money;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

/// What one call of a model used. It was made for the owner of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRecord {
    /// The session it was made for.
    pub session: SessionKey,
    /// The run it was made for.
    pub run: RunId,
    /// The agent that made it.
    pub agent: AgentId,
    /// The provider's name in the configuration.
    pub provider: String,
    /// The model's name at the provider.
    pub model: String,
    /// The tokens read and written.
    pub usage: Usage,
    /// What they cost; none where the model's price is not known.
    pub cost: Option<Money>,
    /// How its request differs from the session's last one; none where that is not known.
    pub changed: Option<Changed>,
    /// When the call ended.
    pub at: Timestamp,
}
