//! What the model sees: the soul, the last turns as far as they fit, and the turn under way.
//!
//! The prompt under way goes with all it brought along. Of past turns the attachments are bounded
//! apart from what was said ([`Showing`]): a large file must not push out the conversation about it.

use crate::conversation::turn::Turn;
use crate::prompt::attachment::{Attachment, Kind};
use crate::provider::ChatMessage;
use crate::tools::long_result::shown_bytes;

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

/// Tokens, estimated: four bytes each, rounded up.
pub fn estimate_tokens(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The soul, cut to fit into `tokens` by itself.
pub fn fit_soul(soul: &str, tokens: usize) -> &str {
    let bytes = tokens.saturating_mul(BYTES_PER_TOKEN);
    if soul.len() <= bytes { soul } else { &soul[..soul.floor_char_boundary(bytes)] }
}

/// The conversation for the turn under way: as many of the newest `past` exchanges as fit into
/// `tokens` beside the soul (of `soul_bytes`), then the one `under_way`, always whole. Attachments are
/// shown as far as their bytes are there.
pub fn conversation(
    soul_bytes: usize,
    past: &[Exchange],
    under_way: &Exchange,
    tokens: usize,
) -> Vec<ChatMessage> {
    let shown = shown_bytes(tokens);
    let mut left = tokens.saturating_sub(estimate_tokens(soul_bytes));
    let fitting = past
        .iter()
        .rev()
        .take_while(|exchange| {
            let prompt = exchange.prompt.as_deref().unwrap_or_default();
            let cost = estimate_turn(prompt, &exchange.attachments, &exchange.turn, shown);
            let fits = cost <= left;
            left = left.saturating_sub(cost);
            fits
        })
        .count();
    let mut messages = Vec::new();
    let shown_past = &past[past.len() - fitting..];
    for (at, exchange) in shown_past.iter().chain([under_way]).enumerate() {
        // Providers want a user to begin, and both to speak in turns.
        let text = exchange.prompt.clone().unwrap_or_else(|| NO_PROMPT.into());
        messages.push(ChatMessage::User { text, attachments: exchange.attachments.clone() });
        messages.extend(exchange.turn.messages(shown));
        if at < shown_past.len() && !exchange.turn.has_answer() {
            let text = NOT_ANSWERED.to_owned();
            messages.push(ChatMessage::Assistant { text, calls: Vec::new(), thoughts: Vec::new() });
        }
    }
    messages
}

/// What a past turn takes of the context, in estimated tokens: of its attachments their names, of each result
/// of a tool at most `shown` bytes.
pub fn estimate_turn(prompt: &str, attachments: &[Attachment], turn: &Turn, shown: usize) -> usize {
    let names: usize = attachments.iter().map(|attachment| attachment.note().len()).sum();
    let messages = turn.messages(shown).map(|message| match message {
        ChatMessage::User { text, .. } => text.len(),
        ChatMessage::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.input.to_string().len() + 32).sum::<usize>()
        }
        ChatMessage::ToolResults(results) => results.iter().map(|result| result.content.len() + 16).sum(),
    });
    estimate_tokens(prompt.len() + names + messages.sum::<usize>())
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
        Exchange { prompt: Some(prompt.into()), attachments: Vec::new(), turn }
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
        let seen = conversation(0, &past, &under_way, 1000);
        let is_user = |message: &ChatMessage| matches!(message, ChatMessage::User { .. });
        let roles: String = seen.iter().map(|message| if is_user(message) { 'u' } else { 'a' }).collect();
        assert_eq!(roles, "uauauau");
        assert_eq!(seen[1], seen[5]);
        assert!(matches!(&seen[5], ChatMessage::Assistant { text, .. } if text == "a note"));
    }

    #[test]
    fn the_newest_turns_that_fit_are_seen() {
        let past = [exchange("old", &"x".repeat(400)), exchange("newer", "yes"), exchange("newest", "no")];
        let now = Exchange { attachments: vec![file(1 << 20)], turn: Turn::new(), ..exchange("now", "") };
        let seen = |tokens| conversation(8, &past, &now, tokens);
        assert_eq!(seen(1000).len(), 7);
        assert_eq!(seen(50).len(), 5, "the long one does not fit");
        let alone = ChatMessage::User { text: "now".into(), attachments: now.attachments.clone() };
        assert_eq!(seen(0), [alone], "the prompt always goes, with all it brings along");
    }

    #[test]
    fn a_soul_is_cut_between_characters() {
        assert_eq!(fit_soul("İİİİ", 1), "İİ");
        assert_eq!(fit_soul("İİİİ", 100), "İİİİ");
        assert_eq!(fit_soul("aİİİ", 1), "aİ");
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
