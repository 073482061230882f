//! What a client is answered, in nobody's words.

use crate::ids::{PluginName, RunId, Seq, SessionKey};
use crate::time::Timestamp;

/// The answer to a [`Command`](crate::command::Command).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Status`.
    Status(Status),
    /// To `Submit`: the prompt is durable and will run.
    Accepted(Accepted),
    /// To `Abort`: the run that was ended, if one was.
    Aborted {
        /// The run.
        run: Option<RunId>,
    },
    /// To `History`.
    History(History),
    /// To `Sessions`.
    Sessions(Vec<SessionSummary>),
    /// To `Clear`.
    Cleared {
        /// The session.
        session: SessionKey,
    },
    /// To `Attach`; the events follow.
    Attached {
        /// The session.
        session: SessionKey,
        /// The events given are those after this number.
        after: Seq,
        /// The last number in the session so far.
        head: Seq,
    },
    /// To `Detach`: no event follows.
    Detached {
        /// Whether it was followed.
        found: bool,
    },
    /// To `Stop`.
    Stopped {
        /// The session.
        session: SessionKey,
        /// The runs that were ended.
        runs: Vec<RunId>,
    },
    /// To `Budget`.
    Budget(Vec<Budget>),
    /// To `Plugins`.
    Plugins(Vec<PluginSummary>),
    /// To `LoadPlugin`.
    PluginLoaded(PluginSummary),
    /// To `UnloadPlugin`.
    PluginUnloaded {
        /// Its name.
        name: PluginName,
    },
}

/// How the daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Version of clawmux.
    pub version: String,
    /// Plugins loaded.
    pub plugins: usize,
    /// Sessions awake.
    pub sessions: usize,
    /// Connections open.
    pub connections: usize,
    /// Since when the daemon is ready.
    pub started: Timestamp,
}

/// A prompt that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its session.
    pub session: SessionKey,
    /// Its run.
    pub run: RunId,
    /// The number of the prompt's event.
    pub seq: Seq,
    /// Whether the idempotency key named a run that was there before.
    pub repeated: bool,
}

/// The last messages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The session.
    pub session: SessionKey,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Whether there are older ones, to be asked for before the oldest of these.
    pub more: bool,
}

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The person or program.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What was said.
    pub content: String,
    /// When it was said (for an answer: when it ended).
    pub at: Timestamp,
    /// The run it belongs to.
    pub run: RunId,
    /// Whether `content` is only the beginning.
    pub clipped: bool,
}

impl Message {
    /// What a message takes besides its text, at most, in bytes.
    const ENVELOPE_BYTES: usize = 256;

    /// How many bytes it takes as JSON, at most.
    pub fn json_bytes(&self) -> usize {
        self.content.bytes().map(escaped).sum::<usize>() + Self::ENVELOPE_BYTES
    }

    /// Keeps of the text what fits into so many bytes as JSON.
    pub fn clip(&mut self, json_bytes_max: usize) {
        let mut left = json_bytes_max.saturating_sub(Self::ENVELOPE_BYTES);
        let fitting = self.content.bytes().map_while(|byte| {
            left = left.checked_sub(escaped(byte))?;
            Some(byte)
        });
        let kept = fitting.count();
        let kept = self.content.floor_char_boundary(kept);
        if kept < self.content.len() {
            self.content.truncate(kept);
            self.content.shrink_to_fit();
            self.clipped = true;
        }
    }
}

/// How many bytes this one takes in a JSON string.
const fn escaped(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0x00..0x20 => 6,
        _ => 1,
    }
}

/// One session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// Its key.
    pub session: SessionKey,
    /// When it was made.
    pub created: Timestamp,
    /// When it was last written to.
    pub updated: Timestamp,
    /// Whether a run is under way or queued.
    pub running: bool,
}

/// The span of time a budget counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// The life of a session.
    Session,
    /// The calendar day, UTC.
    Daily,
    /// The calendar month, UTC.
    Monthly,
}

impl Period {
    /// Its name in the configuration and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Daily => "daily",
            Self::Monthly => "monthly",
        }
    }
}

/// What one budget leaves, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Over which span.
    pub period: Period,
    /// Spent and settled.
    pub used: u64,
    /// Reserved by calls under way.
    pub reserved: u64,
    /// The bound; 0 = unlimited.
    pub limit: u64,
}

/// One loaded plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSummary {
    /// Its name.
    pub name: PluginName,
    /// Its version, where its manifest says one.
    pub version: Option<String>,
    /// What it says it does.
    pub description: String,
    /// What it was granted, as written in the configuration.
    pub capabilities: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The bound is that of the real thing, and what is kept is a beginning.
        #[test]
        fn a_clipped_message_fits(content in "(a|\"|\\PC|[\\x00-\\x1f]|\u{130}){0,60}", max in 0usize..500) {
            let mut message = Message {
                role: Role::User,
                content: content.clone(),
                at: Timestamp::default(),
                run: RunId::from("r"),
                clipped: false,
            };
            let json = |text: &str| serde_json::to_string(text).map_or(usize::MAX, |json| json.len() - 2);
            prop_assert_eq!(message.json_bytes(), json(&content) + Message::ENVELOPE_BYTES);
            message.clip(max);
            prop_assert!(content.starts_with(&message.content));
            prop_assert_eq!(message.clipped, message.content.len() < content.len());
            prop_assert!(message.content.is_empty() || message.json_bytes() <= max);
        }
    }
}
