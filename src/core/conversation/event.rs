//! What happens in a session. The log of a session is the sequence of these, and its state is
//! their fold.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::conversation::approval::{ApprovalRequest, Decided, Decision};
use crate::error::Error;
use crate::ids::{Owner, RunId, Seq, SessionKey};
use crate::prompt::attachment::{self, Attachment};
use crate::prompt::run_options::RunOptions;
use crate::prompt::settings::Settings;
use crate::provider::Stop;
use crate::provider::notice::Notice;
use crate::provider::thought::{SignatureData, ThoughtSignature};
use crate::provider::usage::Usage;
use crate::time::Timestamp;
use crate::tools::call::{ToolCall, ToolResult};

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model finished its answer.
    Completed,
    /// The model ended its answer before it was complete; what it said is kept.
    Incomplete(Incomplete),
    /// It was ended; what was said so far is kept.
    Aborted(Cause),
    /// It failed; what was said so far is kept.
    Failed(Error),
}

/// Why an answer is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// It reached the most tokens that it may have.
    Length,
    /// The model refused to go on.
    Refusal,
    /// The provider's filter ended it.
    ContentFilter,
}

impl Incomplete {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Length, Self::Refusal, Self::ContentFilter];

    /// Its name, in the event log and in protocols that have none of their own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Refusal => "refusal",
            Self::ContentFilter => "content_filter",
        }
    }

    /// That of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.name() == name)
    }

    /// What an answer comes to whose model stopped for this; none where that is complete.
    pub const fn of(stop: Stop) -> Option<Self> {
        match stop {
            Stop::End | Stop::ToolUse => None,
            Stop::MaxTokens => Some(Self::Length),
            Stop::Refused => Some(Self::Refusal),
            Stop::Filtered => Some(Self::ContentFilter),
        }
    }
}

/// What ended a run that did not end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// An abort was requested.
    #[default]
    Asked,
    /// Somebody told the session to stop, in it.
    Stopped,
    /// Its time was over ([`RunOptions::timeout`]).
    TimedOut,
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

/// How the window on the past moved, so that a conversation fits into its context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Turns that ended up to this number are not seen any more.
    pub up_to: Seq,
    /// Of turns that ended up to this number, what was brought along is only named; 0 = none.
    pub named: Seq,
    /// What was said in all turns that are not seen, in short; may be empty.
    pub summary: String,
}

/// One thing that happened. All but `Cleared`, `Compacted`, `Configured` and `Deleted` belong to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A prompt was accepted; its run waits for its turn.
    Prompted {
        /// The text of the prompt.
        content: String,
        /// The owner of the prompt.
        owner: Owner,
        /// The idempotency key, if one was given.
        idempotency_key: Option<String>,
        /// The attachments of the prompt.
        attachments: Vec<Attachment>,
        /// How it is to be answered.
        run_options: RunOptions,
    },
    /// The run's turn has come.
    Started,
    /// What is put beside its prompt of what is remembered, for this turn and the later ones that see it.
    Recalled {
        /// As the model is shown it.
        notes: String,
    },
    /// The model said a piece of text.
    Text(String),
    /// The model thought a piece: no part of its answer.
    Thought(String),
    /// Of the thoughts of an answer that asks for tools: what goes back to the provider with the
    /// tools' results. Journaled together with the calls.
    Sealed(Vec<ThoughtSignature>),
    /// Something that whoever waits for the answer should know; no part of it.
    Noticed(Notice),
    /// The model asked for a tool: the intent, journaled before the call is made.
    ToolCalled(ToolCall),
    /// The same, of a call that is made only once somebody approves it.
    ApprovalAsked(ApprovalRequest),
    /// Whether it is made was decided; of one that is not, the model is told in a result of its own.
    ApprovalDecided(Decided),
    /// A tool answered a call.
    ToolReturned(ToolResult),
    /// The model finished one answer of the run: all its text and tool calls are in the event log.
    StepEnded {
        /// What the provider counted for it.
        usage: Usage,
    },
    /// The step was cut off: the daemon was restarted, another one took the session, or the log of its cluster has
    /// something else. Its text so far is void, the step starts anew.
    Restarted,
    /// The run is over; nothing of it follows.
    Ended {
        /// The outcome of the run.
        outcome: Outcome,
        /// Summed over all its steps.
        usage: Usage,
    },
    /// Something was said in the model's name outside any prompt's run; it is a run of its own, whose
    /// only event this is.
    Injected {
        /// The text.
        content: String,
    },
    /// The conversation so far was forgotten, or its beginning.
    Cleared(Forgotten),
    /// The oldest turns are left out of what the model sees, and a summary stands for them.
    Compacted(Compacted),
    /// What the session is set to from here on, all of it.
    Configured(Box<Settings>),
    /// The session is gone with its event log, and this with it: nobody reads it there. Numbers begin anew
    /// should there be a session of this name again.
    Deleted,
}

/// What an event takes besides its text, roughly.
const EVENT_BYTES: usize = 64;

impl Event {
    /// A prompt that brings nothing along, thought over as its session is set.
    pub fn prompted(content: impl Into<String>, owner: Owner, idempotency_key: Option<String>) -> Self {
        let (attachments, run_options) = (Vec::new(), RunOptions::default());
        Self::Prompted { content: content.into(), owner, idempotency_key, attachments, run_options }
    }

    /// How much it counts where bytes are bounded.
    pub fn bytes(&self) -> usize {
        EVENT_BYTES
            + match self {
                Self::Prompted { content, attachments, .. } => {
                    content.len() + attachment::held_bytes(attachments)
                }
                Self::Text(text) | Self::Thought(text) => text.len(),
                Self::Sealed(seals) => seals.iter().map(|seal| EVENT_BYTES + seal.bytes()).sum(),
                Self::ToolCalled(call) | Self::ApprovalAsked(ApprovalRequest { call, .. }) => {
                    call.input.to_string().len()
                }
                Self::ApprovalDecided(decided) => match &decided.decision {
                    Decision::Approved { input: Some(input) } => input.to_string().len(),
                    Decision::Denied { reason: Some(reason) } => reason.len(),
                    Decision::Approved { input: None }
                    | Decision::Denied { reason: None }
                    | Decision::TimedOut
                    | Decision::Withdrawn => 0,
                },
                Self::ToolReturned(result) => result.content.len(),
                Self::Injected { content } | Self::Recalled { notes: content } => content.len(),
                Self::Compacted(compacted) => compacted.summary.len(),
                Self::Noticed(notice) => notice.message.len(),
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
            Self::Prompted { content, owner, idempotency_key, attachments, run_options }
                if content.len() > bytes_max =>
            {
                let (owner, idempotency_key) = (owner.clone(), idempotency_key.clone());
                let (attachments, run_options) = (attachments.clone(), run_options.clone());
                Some(Self::Prompted {
                    content: cut(content),
                    owner,
                    idempotency_key,
                    attachments,
                    run_options,
                })
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

    /// What kind of stream it is a piece of, and the piece; none for what happens at once.
    pub fn streamed(&self) -> Option<(Streamed, &str)> {
        match self {
            Self::Text(text) => Some((Streamed::Text, text)),
            Self::Thought(text) => Some((Streamed::Thought, text)),
            _ => None,
        }
    }

    /// Whether a step ends with it, or is made void: what the step has streamed is kept with it, in one piece.
    pub fn settles(&self) -> bool {
        matches!(self, Self::StepEnded { .. } | Self::Restarted | Self::Ended { .. })
    }

    /// Whether it is about a tool call: all that who decides about calls of others is told of.
    pub fn is_of_calls(&self) -> bool {
        matches!(
            self,
            Self::ToolCalled(_) | Self::ApprovalAsked(_) | Self::ApprovalDecided(_) | Self::ToolReturned(_)
        )
    }

    /// Lets go of what nobody but the model and its provider is shown: the bytes of attachments, what
    /// proves thoughts, and what is put beside prompts.
    pub fn let_go(&mut self) {
        match self {
            Self::Recalled { notes } => *notes = String::new(),
            Self::Compacted(compacted) => compacted.summary = String::new(),
            Self::Prompted { attachments, .. } => attachments.iter_mut().for_each(Attachment::let_go),
            Self::Sealed(seals) => seals.iter_mut().for_each(|seal| seal.proof = SignatureData::Bare),
            _ => {}
        }
    }

    /// How many numbers it takes when it happens. The end of a run takes three, for clients of some
    /// protocols are told it in up to three messages (cost, error, end): each has a number of its
    /// own then, so that one who was cut off between them is told the rest.
    pub fn numbers(&self) -> u64 {
        if matches!(self, Self::Ended { .. }) { 3 } else { 1 }
    }
}

/// What a model streams: pieces that follow each other, of which a reader may get several as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Streamed {
    /// [`Event::Text`]
    Text,
    /// [`Event::Thought`]
    Thought,
}

impl Streamed {
    /// The event of a piece of it.
    pub fn event(self, piece: String) -> Event {
        match self {
            Self::Text => Event::Text(piece),
            Self::Thought => Event::Thought(piece),
        }
    }
}

/// An event with its place in the event log: what the store keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// The first number it covers: less than `seq` where text was coalesced, at the end of a run,
    /// and where numbers were skipped after a restart.
    pub first_seq: Seq,
    /// The last number it covers.
    pub seq: Seq,
    /// The run it belongs to; none for what concerns the session.
    pub run: Option<RunId>,
    /// When the event was written.
    pub at: Timestamp,
    /// The event.
    pub event: Event,
}

/// How many dialects keep their encoding of an event for all their connections, each in a slot of its own.
pub const ENCODINGS: usize = 2;

/// An event on its way to clients: shared by all connections, its payload encoded at most once
/// per dialect.
#[derive(Debug)]
pub struct Published {
    /// The session it happened in.
    pub session: SessionKey,
    /// The event and its place in the event log.
    pub logged: Logged,
    bytes: usize,
    is_clipped: bool,
    wire: [OnceLock<Bytes>; ENCODINGS],
}

impl Published {
    /// How much it counts where bytes are bounded.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ready to be shared, without what no client is shown ([`Event::let_go`]).
    pub fn new(session: SessionKey, logged: Logged) -> Arc<Self> {
        Self::share(session, logged, false)
    }

    /// Ready to be shared, after something was left out of it ([`Event::clipped`]).
    pub fn clipped(session: SessionKey, logged: Logged) -> Arc<Self> {
        Self::share(session, logged, true)
    }

    fn share(session: SessionKey, mut logged: Logged, is_clipped: bool) -> Arc<Self> {
        logged.event.let_go();
        let bytes = logged.event.bytes();
        Arc::new(Self { session, logged, bytes, is_clipped, wire: Default::default() })
    }

    /// Whether something was left out of it.
    pub fn is_clipped(&self) -> bool {
        self.is_clipped
    }

    /// The payload in the words of the dialect with this slot (below [`ENCODINGS`]), encoded by
    /// the first connection that asks.
    pub fn wire(&self, slot: usize, encode: impl FnOnce(&Self) -> Bytes) -> &Bytes {
        self.wire[slot].get_or_init(|| encode(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_what_came_along_and_not_given_it() {
        let data = [&b"\xff\xd8\xff"[..], &[0; 100_000]].concat();
        let image = Attachment::new(Some("a.jpg"), None, data.into()).unwrap();
        let prompted = Event::Prompted {
            content: "look".repeat(10),
            owner: Owner::Admins,
            idempotency_key: None,
            attachments: vec![image],
            run_options: RunOptions::default(),
        };
        let seal = ThoughtSignature {
            thought_bytes: 5,
            text_bytes: 0,
            proof: SignatureData::Redacted("x".repeat(100_000)),
        };
        let session = SessionKey::parse("main:test:a:main").unwrap();
        for event in [prompted.clone(), Event::Sealed(vec![seal])] {
            assert!(event.bytes() > 100_000, "where it is kept all of it counts");
            let (first_seq, seq, run) = (Seq(1), Seq(1), Some(RunId::from("r")));
            let logged = Logged { first_seq, seq, run, at: Timestamp::default(), event };
            let published = Published::new(session.clone(), logged.clone());
            assert!(published.bytes() < 300, "{}", published.bytes());
            assert!(!published.is_clipped(), "nothing is left out that anybody was to be told");
            if let Event::Prompted { attachments, .. } = &published.logged.event {
                let told = (attachments[0].name(), attachments[0].media_type(), attachments[0].bytes());
                assert_eq!(told, (Some("a.jpg"), "image/jpeg", 100_003));
            }
        }
        let clipped = prompted.clipped(8).unwrap();
        assert!(matches!(&clipped, Event::Prompted { content, attachments, .. }
            if content == "looklook" && attachments.len() == 1));
    }
}
