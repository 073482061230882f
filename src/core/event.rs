//! What happens in a session. The log of a session is the sequence of these, and its state is
//! their fold.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use crate::auth::Owner;
use crate::error::Error;
use crate::ids::{CallId, PluginName, RunId, Seq, SessionKey};
use crate::settings::Settings;
use crate::time::Timestamp;

/// Tokens a provider counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Read by the model, cached ones included.
    pub input_tokens: u64,
    /// Written by it.
    pub output_tokens: u64,
}

impl Usage {
    /// Both together, as budgets count.
    pub fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
    }
}

/// A tool call the model asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The provider's name for the call.
    pub id: CallId,
    /// The tool.
    pub name: PluginName,
    /// Its input. What the model wrote where that is not JSON is a JSON string of it, and the
    /// call is answered with an error instead of being made.
    pub input: Value,
}

/// What became of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// The call.
    pub call: CallId,
    /// What the model is told.
    pub content: String,
    /// Whether it failed.
    pub is_error: bool,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With an answer.
    Completed,
    /// Somebody ended it; what was said so far is kept.
    Aborted,
    /// It failed; what was said so far is kept.
    Failed(Error),
}

/// How much of a conversation was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Every run that has ended; what is under way goes on.
    Past,
    /// The same, and a new conversation begins: what it spends is counted anew.
    Conversation,
    /// Runs that ended up to this number.
    UpTo(Seq),
}

/// One thing that happened. All but `Cleared`, `Configured` and `Deleted` belong to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A prompt was accepted; its run waits for its turn.
    Prompted {
        /// What the user said.
        content: String,
        /// Whose prompt it is.
        owner: Owner,
        /// The idempotency key, if one was given.
        idempotency_key: Option<String>,
    },
    /// The run's turn has come.
    Started,
    /// The model said a piece of text.
    Text(String),
    /// The model asked for a tool: the intent, journaled before the call is made.
    ToolCalled(ToolCall),
    /// The tool answered.
    ToolReturned(ToolResult),
    /// The model finished one answer of the run: all its text and tool calls are in the log.
    StepEnded {
        /// What the provider counted for it.
        usage: Usage,
    },
    /// The daemon was restarted within the step: its text so far is void, the step starts anew.
    Restarted,
    /// The run is over; nothing of it follows.
    Ended {
        /// How.
        outcome: Outcome,
        /// Summed over all its steps.
        usage: Usage,
    },
    /// Something was said in the model's name outside any prompt's run; it is a run of its own, whose
    /// only event this is.
    Injected {
        /// What.
        content: String,
    },
    /// The conversation so far was forgotten, or its beginning.
    Cleared(Forgotten),
    /// What the session is set to from here on, all of it.
    Configured(Box<Settings>),
    /// The session is gone with its log, and this with it: nobody reads it there. Numbers begin anew
    /// should there be a session of this name again.
    Deleted,
}

/// What an event takes besides its text, roughly.
const EVENT_BYTES: usize = 64;

impl Event {
    /// How much it counts where bytes are bounded.
    pub fn bytes(&self) -> usize {
        EVENT_BYTES
            + match self {
                Self::Prompted { content, .. } => content.len(),
                Self::Text(text) => text.len(),
                Self::ToolCalled(call) => call.input.to_string().len(),
                Self::ToolReturned(result) => result.content.len(),
                Self::Injected { content } => content.len(),
                Self::Configured(settings) => settings.bytes(),
                Self::Started
                | Self::StepEnded { .. }
                | Self::Restarted
                | Self::Ended { .. }
                | Self::Cleared(_)
                | Self::Deleted => 0,
            }
    }

    /// The event with at most so many bytes of what somebody said to the model, a user or a tool;
    /// none where that is all of it.
    pub fn clipped(&self, bytes_max: usize) -> Option<Self> {
        let cut = |text: &str| text[..text.floor_char_boundary(bytes_max)].to_owned();
        match self {
            Self::Prompted { content, owner, idempotency_key } if content.len() > bytes_max => {
                let (owner, idempotency_key) = (owner.clone(), idempotency_key.clone());
                Some(Self::Prompted { content: cut(content), owner, idempotency_key })
            }
            Self::ToolReturned(ToolResult { call, content, is_error }) if content.len() > bytes_max => {
                let (call, content, is_error) = (call.clone(), cut(content), *is_error);
                Some(Self::ToolReturned(ToolResult { call, content, is_error }))
            }
            Self::Injected { content } if content.len() > bytes_max => {
                Some(Self::Injected { content: cut(content) })
            }
            _ => None,
        }
    }

    /// How many numbers it takes when it happens. The end of a run takes three, for clients of some
    /// protocols are told it in up to three messages (cost, error, end): each has a number of its
    /// own then, so that one who was cut off between them is told the rest.
    pub fn numbers(&self) -> u64 {
        if matches!(self, Self::Ended { .. }) { 3 } else { 1 }
    }
}

/// An event with its place in the log: what the store keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// The first number it covers: less than `seq` where text was coalesced, at the end of a run,
    /// and where numbers were skipped after a restart.
    pub first_seq: Seq,
    /// The last number it covers.
    pub seq: Seq,
    /// The run it belongs to; none for what concerns the session.
    pub run: Option<RunId>,
    /// When.
    pub at: Timestamp,
    /// What.
    pub event: Event,
}

/// How many dialects there are; each has a slot for its encoding of an event.
pub const DIALECTS: usize = 4;

/// An event on its way to clients: shared by all connections, its payload encoded at most once
/// per dialect.
#[derive(Debug)]
pub struct Published {
    /// The session it happened in.
    pub session: SessionKey,
    /// The event and its place in the log.
    pub logged: Logged,
    bytes: usize,
    is_clipped: bool,
    wire: [OnceLock<Bytes>; DIALECTS],
}

impl Published {
    /// How much it counts where bytes are bounded.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ready to be shared.
    pub fn new(session: SessionKey, logged: Logged) -> Arc<Self> {
        let bytes = logged.event.bytes();
        Arc::new(Self { session, logged, bytes, is_clipped: false, wire: Default::default() })
    }

    /// Ready to be shared, after something was left out of it ([`Event::clipped`]).
    pub fn clipped(session: SessionKey, logged: Logged) -> Arc<Self> {
        let bytes = logged.event.bytes();
        Arc::new(Self { session, logged, bytes, is_clipped: true, wire: Default::default() })
    }

    /// Whether something was left out of it.
    pub fn is_clipped(&self) -> bool {
        self.is_clipped
    }

    /// The payload in the words of the dialect with this index (below [`DIALECTS`]), encoded by
    /// the first connection that asks.
    pub fn wire(&self, dialect: usize, encode: impl FnOnce(&Self) -> Bytes) -> &Bytes {
        self.wire[dialect].get_or_init(|| encode(self))
    }
}
