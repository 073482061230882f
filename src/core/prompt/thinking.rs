//! How much a model should think before it answers.

/// A level of thinking, as far as the model can think at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thinking {
    /// No thinking.
    Off,
    /// As little as the model can.
    Minimal,
    /// Little thinking.
    Low,
    /// As much as is usual.
    Medium,
    /// Much thinking.
    High,
    /// As much as it can.
    Max,
}

impl Thinking {
    /// Every level, the least first.
    pub const ALL: [Self; 6] = [Self::Off, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Max];

    /// Its name, in event logs and in the protocols that have one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Max => "xhigh",
        }
    }

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}
