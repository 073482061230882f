//! What was said in a conversation, as clients are told it.

use crate::conversation::reply::{SessionRow, UnderWay};
use crate::ids::{CallId, PluginName, RunId, Seq, SessionKey};
use crate::prompt::attachment::Attachment;
use crate::provider::model::ModelRef;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

/// The last messages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The session that was read.
    pub session: SessionKey,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Whether there are older ones, to be asked for before the oldest of these.
    pub more: bool,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The user, a person or a program.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The author of the message.
    pub role: Role,
    /// The text.
    pub content: String,
    /// When it was said (for an answer: when it ended).
    pub at: Timestamp,
    /// The run it belongs to.
    pub run: RunId,
    /// Whether `content` is only the beginning.
    pub clipped: bool,
    /// What it brought along, without the bytes.
    pub attachments: Vec<Attachment>,
}

impl Message {
    /// What a message takes besides its text, at most, in bytes.
    const ENVELOPE_BYTES: usize = 256;

    /// What an attachment takes besides its name, at most, in bytes.
    const ATTACHMENT_BYTES: usize = 128;

    /// How many bytes it takes as JSON, at most.
    pub fn json_bytes(&self) -> usize {
        json_bytes(&self.content) + self.envelope_bytes()
    }

    fn envelope_bytes(&self) -> usize {
        let name = |attachment: &Attachment| json_bytes(attachment.name().unwrap_or_default());
        let attachments = self.attachments.iter().map(|attachment| name(attachment) + Self::ATTACHMENT_BYTES);
        attachments.sum::<usize>() + Self::ENVELOPE_BYTES
    }

    /// Keeps of the text what fits into so many bytes as JSON.
    pub fn clip(&mut self, json_bytes_max: usize) {
        let bytes_max = json_bytes_max.saturating_sub(self.envelope_bytes());
        self.clipped |= clip(&mut self.content, bytes_max);
    }
}

/// How many bytes a text takes within a JSON string.
fn json_bytes(text: &str) -> usize {
    text.bytes().map(escaped).sum()
}

/// Keeps of a text what fits into so many bytes within a JSON string; says whether that is not all.
fn clip(text: &mut String, mut json_bytes_max: usize) -> bool {
    let fitting = text.bytes().map_while(|byte| {
        json_bytes_max = json_bytes_max.checked_sub(escaped(byte))?;
        Some(byte)
    });
    let kept = fitting.count();
    let kept = text.floor_char_boundary(kept);
    let is_clipped = kept < text.len();
    if is_clipped {
        text.truncate(kept);
        text.shrink_to_fit();
    }
    is_clipped
}

/// How many bytes this one takes in a JSON string.
const fn escaped(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0x00..0x20 => 6,
        _ => 1,
    }
}

/// The newest part of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The session, as it is in lists; none where nothing was ever said in it.
    pub row: Option<SessionRow>,
    /// The messages, oldest first.
    pub entries: Vec<Entry>,
    /// How many messages the conversation has.
    pub total: u64,
    /// The number up to which the event log was read.
    pub head: Seq,
    /// The run that was under way at the number that was asked for.
    pub under_way: Option<UnderWay>,
    /// The runs that waited at that number, in order, with the idempotency keys they were asked with;
    /// the latest, should there be many.
    pub queued: Vec<(RunId, Option<String>)>,
}

/// What stands between the texts of two steps of one run.
pub const STEP_JOINT: &str = "\n\n";

/// One message of a transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Stable for ever, unique in the session.
    pub id: String,
    /// Its place in the conversation, from 1.
    pub place: u64,
    /// When it was said (for an answer: when it ended).
    pub at: Timestamp,
    /// The run it belongs to; none for an injected one.
    pub run: Option<RunId>,
    /// The message.
    pub said: Said,
    /// Whether its text is only the beginning.
    pub clipped: bool,
}

impl Entry {
    /// What a message takes besides its texts, at most, in bytes.
    const ENVELOPE_BYTES: usize = 1024;

    /// The id of a run's prompt.
    pub fn prompt_id(run: &RunId) -> String {
        format!("user-{run}")
    }

    /// The id of a run's answer.
    pub fn answer_id(run: &RunId) -> String {
        format!("assistant-{run}")
    }

    /// How many bytes it takes as JSON, at most.
    pub fn json_bytes(&self) -> usize {
        let rest = match &self.said {
            Said::User { attachments, .. } => attachments.len() * Self::ENVELOPE_BYTES,
            Said::Assistant { error, .. } => error.as_deref().map_or(0, json_bytes),
            Said::Tool { .. } => 0,
        };
        json_bytes(self.said.text()) + rest + Self::ENVELOPE_BYTES
    }

    /// Keeps of the text what fits into so many bytes as JSON.
    pub fn clip(&mut self, json_bytes_max: usize) {
        let rest = self.json_bytes() - json_bytes(self.said.text());
        let (Said::User { text, .. } | Said::Assistant { text, .. } | Said::Tool { text, .. }) =
            &mut self.said;
        self.clipped |= clip(text, json_bytes_max.saturating_sub(rest));
    }
}

impl Said {
    /// The text.
    pub fn text(&self) -> &str {
        let (Self::User { text, .. } | Self::Assistant { text, .. } | Self::Tool { text, .. }) = self;
        text
    }
}

/// What a message of a transcript is.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// By a user.
    User {
        /// The text.
        text: String,
        /// The idempotency key of its run.
        idempotency_key: Option<String>,
        /// What it brought along, without the bytes.
        attachments: Vec<Attachment>,
    },
    /// By the model: all steps of a run.
    Assistant {
        /// The text.
        text: String,
        /// The model, where it is known.
        model: Option<ModelRef>,
        /// The tokens the run used.
        usage: Usage,
        /// Whether the run was aborted.
        is_aborted: bool,
        /// Why the run failed, for people; none where it did not.
        error: Option<String>,
    },
    /// By a tool.
    Tool {
        /// The id of the call.
        call: CallId,
        /// The tool's name.
        name: PluginName,
        /// The tool's answer.
        text: String,
        /// Whether the call failed.
        is_error: bool,
    },
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
                attachments: Vec::new(),
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
