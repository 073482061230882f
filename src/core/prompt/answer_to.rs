//! Where the answer to a prompt goes besides its session: over the channel that it came over.

/// The channel that is the bus, in the store: no configured channel can have this name.
pub const BUS_CHANNEL: &str = "bus:";

/// Where the answer to a prompt goes besides its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerTo {
    /// The channel: its name in the configuration, or [`BUS_CHANNEL`].
    pub channel: String,
    /// What is in order among itself: answers of one conversation are sent one after the other.
    pub conversation: String,
    /// Where within the channel, in words of its own.
    pub address: String,
}
