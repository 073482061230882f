//! Where the answer to a prompt goes besides its session: over the channel that it came over.

use serde::{Deserialize, Serialize};

/// The channel that is the bus, in the store: no configured channel can have this name.
pub const BUS: &str = "bus:";

/// Where the answer to a prompt goes besides its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerTo {
    /// The channel: its name in the configuration, or [`BUS`].
    pub channel: String,
    /// What is in order among itself: answers of one conversation are sent one after the other.
    pub conversation: String,
    /// Where within the channel, in words of its own.
    pub address: String,
}
