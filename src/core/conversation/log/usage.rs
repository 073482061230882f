//! What one model call cost.

use crate::ids::{AgentId, RunId, SessionKey};
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

/// The first part of a request, in the order in which providers cache them, that is not as it was in the
/// session's last one: what comes from there on was not in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// Nothing: all of the last request is in front of this one.
    Nothing,
    /// Another model was asked.
    Model,
    /// The tools that are offered.
    Tools,
    /// The system prompt.
    System,
    /// The messages that were sent before.
    Messages,
}

impl Changed {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Model, Self::Tools, Self::System, Self::Messages];

    /// Its name in the store and to operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Model => "model",
            Self::Tools => "tools",
            Self::System => "system",
            Self::Messages => "messages",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|changed| changed.name() == name)
    }
}
