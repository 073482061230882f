//! What the model sees besides the system prompt: a summary of what was said long ago, the turns of the window
//! ([`crate::conversation::window`]), and the turn under way.
//!
//! The conversation of a turn begins with that of the turn before it, byte for byte, up to where that ended, but
//! for thoughts, which belong to their run, and where the window moved.
//!
//! The prompt under way goes with all it brought along. Of past turns the attachments are bounded
//! apart from what was said ([`Showing`]): a large file must not push out the conversation about it.

use crate::conversation::notes::summary_block;
use crate::conversation::turn::Turn;
use crate::prompt::attachment::{Attachment, Kind};
use crate::provider::ChatMessage;

/// What a model is told that a user said before something that was said without a prompt.
pub const NO_PROMPT: &str = "(no prompt)";
/// What a model is told that it said to a prompt that was not answered, since its run failed or was aborted.
pub const NOT_ANSWERED: &str = "(not answered)";
/// How much of past turns' images the model is shown, the newest first: bytes, and how many. Older ones
/// are named in their place.
pub const PAST_IMAGE_BYTES_MAX: usize = 4 << 20;
const PAST_IMAGES_MAX: usize = 16;

/// A past turn: a prompt and what the model made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// What the user said; none for what was said in the model's name without a prompt.
    pub prompt: Option<String>,
    /// The attachments of the prompt.
    pub attachments: Vec<Attachment>,
    /// What was put beside it of what is remembered; may be empty.
    pub notes: String,
    /// The model's answer, with its tool calls.
    pub turn: Turn,
}

/// Decides which attachments of past turns the model is still shown: images up to
/// [`PAST_IMAGE_BYTES_MAX`], text files up to a bound of their own. Asked of all of them, the newest
/// turn first. From the first that does not fit on, none of its kind is shown: so what was once left
/// out never comes back, and who reads a session from the event log decides as who kept it in memory did.
#[derive(Clone, Copy, Debug)]
pub struct Showing {
    images_left: usize,
    image_bytes_left: usize,
    text_bytes_left: usize,
}

impl Showing {
    /// With room for so many bytes of text files.
    pub fn new(text_bytes_max: usize) -> Self {
        Self {
            images_left: PAST_IMAGES_MAX,
            image_bytes_left: PAST_IMAGE_BYTES_MAX,
            text_bytes_left: text_bytes_max,
        }
    }

    /// Beside a conversation of so many tokens: half as much again.
    pub fn beside(context_tokens: usize) -> Self {
        Self::new(context_tokens.saturating_mul(BYTES_PER_TOKEN / 2))
    }

    /// The same with half as much room.
    #[must_use]
    pub fn halved(self) -> Self {
        Self {
            images_left: self.images_left / 2,
            image_bytes_left: self.image_bytes_left / 2,
            text_bytes_left: self.text_bytes_left / 2,
        }
    }

    /// Whether this one is shown.
    pub fn shows(&mut self, attachment: &Attachment) -> bool {
        let left = match attachment.kind() {
            Kind::Image(_) if self.images_left == 0 => return false,
            Kind::Image(_) => {
                self.images_left -= 1;
                &mut self.image_bytes_left
            }
            Kind::Text(_) => &mut self.text_bytes_left,
            // Its name is all there is.
            Kind::Named => return true,
        };
        let fits = attachment.bytes() <= *left;
        *left = if fits { *left - attachment.bytes() } else { 0 };
        fits
    }
}

/// How many bytes make a token, roughly.
const BYTES_PER_TOKEN: usize = 4;

/// What a turn, a call and its result take besides what they say, roughly: the names of things in a request.
const TURN_BYTES: usize = 112;
const CALL_BYTES: usize = 112;
const RESULT_BYTES: usize = 96;

/// Tokens, estimated: four bytes each, rounded up.
pub fn estimate_tokens(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// How many bytes so many tokens are, estimated.
pub const fn bytes_of(tokens: usize) -> usize {
    tokens.saturating_mul(BYTES_PER_TOKEN)
}

/// The conversation for the turn under way: what stands for the turns before these, the `past` ones, and the one
/// `under_way`. Of each result of a tool at most `shown` bytes; attachments as far as their bytes are there.
pub fn conversation(
    summary: &str,
    past: &[Exchange],
    under_way: &Exchange,
    shown: usize,
) -> Vec<ChatMessage> {
    let mut messages = Vec::new();
    let mut before = summary_block(summary);
    for (at, exchange) in past.iter().chain([under_way]).enumerate() {
        // Providers want a user to begin, and both to speak in turns.
        let text = exchange.prompt.clone().unwrap_or_else(|| NO_PROMPT.into());
        let notes = [std::mem::take(&mut before), exchange.notes.clone()];
        let notes: Vec<String> = notes.into_iter().filter(|notes| !notes.is_empty()).collect();
        let attachments = exchange.attachments.clone();
        messages.push(ChatMessage::User { notes: notes.join("\n\n"), text, attachments });
        messages.extend(exchange.turn.messages(shown));
        if at < past.len() && !exchange.turn.has_answer() {
            let text = NOT_ANSWERED.to_owned();
            messages.push(ChatMessage::Assistant { text, calls: Vec::new(), thoughts: Vec::new() });
        }
    }
    messages
}

impl Exchange {
    /// How many bytes it takes of the context, estimated: of its attachments their names, of each result of a tool
    /// at most `shown`.
    pub fn bytes(&self, shown: usize) -> usize {
        let prompt = self.prompt.as_deref().unwrap_or_default();
        said_bytes((prompt, &self.notes, &self.attachments), &self.turn, shown)
    }
}

/// The same of a prompt with its notes and attachments, and what came of it.
pub fn said_bytes(
    (prompt, notes, attachments): (&str, &str, &[Attachment]),
    turn: &Turn,
    shown: usize,
) -> usize {
    let names: usize = attachments.iter().map(|attachment| attachment.note().len()).sum();
    let messages = turn.messages(shown).map(|message| match message {
        ChatMessage::User { text, .. } => text.len(),
        ChatMessage::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.input.to_string().len() + CALL_BYTES).sum::<usize>()
        }
        ChatMessage::ToolResults(results) => {
            results.iter().map(|result| result.content.len() + RESULT_BYTES).sum()
        }
    });
    TURN_BYTES + prompt.len() + notes.len() + names + messages.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::event::Event;
    use crate::provider::usage::Usage;
    use proptest::prelude::*;

    fn exchange(prompt: &str, answer: &str) -> Exchange {
        let mut turn = Turn::new();
        turn.apply(&Event::Text(answer.into()));
        turn.apply(&Event::StepEnded { usage: Usage::default() });
        Exchange { prompt: Some(prompt.into()), attachments: Vec::new(), notes: String::new(), turn }
    }

    fn image(bytes: usize) -> Attachment {
        Attachment::remembered(None, "image/png", bytes).unwrap()
    }

    fn file(bytes: usize) -> Attachment {
        Attachment::remembered(None, "text/plain", bytes).unwrap()
    }

    #[test]
    fn what_was_said_without_a_prompt_is_seen_and_a_user_always_begins() {
        let note = Exchange { prompt: None, ..exchange("", "a note") };
        let past = [note.clone(), exchange("hi", "yes"), note];
        let under_way = Exchange { turn: Turn::new(), ..exchange("now", "") };
        let seen = conversation("", &past, &under_way, 1000);
        let is_user = |message: &ChatMessage| matches!(message, ChatMessage::User { .. });
        let roles: String = seen.iter().map(|message| if is_user(message) { 'u' } else { 'a' }).collect();
        assert_eq!(roles, "uauauau");
        assert_eq!(seen[1], seen[5]);
        assert!(matches!(&seen[5], ChatMessage::Assistant { text, .. } if text == "a note"));
    }

    #[test]
    fn a_summary_stands_before_the_first_turn_and_what_is_remembered_beside_its_prompt() {
        let noted = Exchange { notes: "<memory>tea</memory>".into(), ..exchange("old", "yes") };
        let under_way = Exchange { turn: Turn::new(), ..exchange("now", "") };
        let notes = |summary: &str, past: &[Exchange]| -> Vec<String> {
            let seen = conversation(summary, past, &under_way, 1000);
            let notes = seen.into_iter().filter_map(|message| match message {
                ChatMessage::User { notes, .. } => Some(notes),
                _ => None,
            });
            notes.collect()
        };
        let seen = notes("a cat", &[noted.clone(), exchange("newer", "no")]);
        assert!(seen[0].starts_with("<earlier>\n") && seen[0].contains("\na cat\n"), "{seen:?}");
        assert!(seen[0].ends_with("</earlier>\n\n<memory>tea</memory>"), "{seen:?}");
        assert_eq!(seen[1..], ["", ""]);
        assert_eq!(notes("", &[noted]), ["<memory>tea</memory>", ""]);
        assert!(
            notes("a cat", &[])[0].contains("a cat"),
            "where no turn is left it stands before the prompt"
        );
    }

    #[test]
    fn past_attachments_are_shown_up_to_bounds_of_their_kind() {
        let mut showing = Showing::beside(100);
        assert!(showing.shows(&file(150)) && showing.shows(&image(PAST_IMAGE_BYTES_MAX - 5)));
        assert!(showing.shows(&image(4)) && !showing.shows(&image(2)));
        assert!(!showing.shows(&image(1)), "none after one that does not fit");
        assert!(showing.shows(&file(50)) && !showing.shows(&file(1)));
        let mut showing = Showing::new(0);
        let shown = (0..100).filter(|_| showing.shows(&image(1))).count();
        assert_eq!(shown, PAST_IMAGES_MAX);
    }

    proptest! {
        /// With newer ones before them, of the older ones none is shown that was not before.
        #[test]
        fn what_was_left_out_never_comes_back(
            old in proptest::collection::vec((any::<bool>(), 0usize..3 << 20), 0..20),
            new in proptest::collection::vec((any::<bool>(), 0usize..3 << 20), 0..20),
        ) {
            let made = |(is_image, bytes): &(bool, usize)| if *is_image { image(*bytes) } else { file(*bytes) };
            let shown = |of: &[&(bool, usize)]| -> Vec<bool> {
                let mut showing = Showing::new(2 << 20);
                of.iter().map(|one| showing.shows(&made(one))).collect()
            };
            let before = shown(&old.iter().collect::<Vec<_>>());
            let after = shown(&new.iter().chain(&old).collect::<Vec<_>>());
            for (before, after) in before.iter().zip(&after[new.len()..]) {
                prop_assert!(*before || !*after);
            }
        }
    }
}
