//! What becomes of an answer besides what the model says, told to whoever waits for it.

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// As many calls of the provider are under way as may be; this one waits for a place.
    Waiting,
    /// A model failed for a moment; it is asked again, after a pause or with another key.
    Retrying,
    /// A model failed; the next one of the agent is asked.
    Fallback,
    /// The answer ended before it was complete.
    Incomplete,
    /// Less was sent than was to be: the model or its server can't take it.
    Reduced,
    /// A budget is near its end.
    Budget,
    /// The conversation has outgrown its context: its oldest turns are summed up.
    Compacted,
}

impl NoticeKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Retrying,
        Self::Fallback,
        Self::Incomplete,
        Self::Reduced,
        Self::Budget,
        Self::Compacted,
    ];

    /// Its name, in the event log and in protocols.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Fallback => "fallback",
            Self::Incomplete => "incomplete",
            Self::Reduced => "reduced",
            Self::Budget => "budget",
            Self::Compacted => "compacted",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that whoever waits for an answer should know, and the model need not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub kind: NoticeKind,
    /// One sentence for people, in no provider's words: anybody who sees the session reads it.
    pub message: String,
}

impl Notice {
    /// A notice of this kind.
    pub fn new(kind: NoticeKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}
