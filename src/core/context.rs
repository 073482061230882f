//! What the model sees: the soul, the last turns as far as they fit, and the turn under way.

use crate::provider::ChatMessage;
use crate::turn::Turn;

/// What a model is told that a user said before something that was said without a prompt.
pub const NO_PROMPT: &str = "(no prompt)";

/// A past turn: a prompt and what the model made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// What the user said; none for what was said in the model's name without a prompt.
    pub prompt: Option<String>,
    /// What the model did.
    pub turn: Turn,
}

/// Tokens, estimated: four bytes each, rounded up.
pub fn estimate_tokens(bytes: usize) -> usize {
    bytes.div_ceil(4)
}

/// The soul, cut to fit into `tokens` by itself.
pub fn fit_soul(soul: &str, tokens: usize) -> &str {
    let bytes = tokens.saturating_mul(4);
    if soul.len() <= bytes { soul } else { &soul[..soul.floor_char_boundary(bytes)] }
}

/// The conversation for the turn under way: as many of the newest `past` exchanges as fit into
/// `tokens` beside the soul (of `soul_bytes`), then `prompt` and what came of it so far, always whole.
pub fn conversation(
    soul_bytes: usize,
    past: &[&Exchange],
    prompt: &str,
    turn: &Turn,
    tokens: usize,
) -> Vec<ChatMessage> {
    let mut left = tokens.saturating_sub(estimate_tokens(soul_bytes));
    let fitting = past
        .iter()
        .rev()
        .take_while(|exchange| {
            let cost = estimate_turn(exchange.prompt.as_deref().unwrap_or_default(), &exchange.turn);
            let fits = cost <= left;
            left = left.saturating_sub(cost);
            fits
        })
        .count();
    let mut messages = Vec::new();
    for exchange in &past[past.len() - fitting..] {
        match &exchange.prompt {
            Some(prompt) => messages.push(ChatMessage::User(prompt.clone())),
            // Providers want a user to begin, and both to speak in turns.
            None => messages.push(ChatMessage::User(NO_PROMPT.into())),
        }
        messages.extend(exchange.turn.messages());
    }
    messages.push(ChatMessage::User(prompt.to_owned()));
    messages.extend(turn.messages());
    messages
}

/// What a past turn takes of the context, in estimated tokens.
pub fn estimate_turn(prompt: &str, turn: &Turn) -> usize {
    let messages = turn.messages().map(|message| match message {
        ChatMessage::User(text) => text.len(),
        ChatMessage::Assistant { text, calls } => {
            text.len() + calls.iter().map(|call| call.input.to_string().len() + 32).sum::<usize>()
        }
        ChatMessage::ToolResults(results) => results.iter().map(|result| result.content.len() + 16).sum(),
    });
    estimate_tokens(prompt.len() + messages.sum::<usize>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Usage};

    fn exchange(prompt: &str, answer: &str) -> Exchange {
        let mut turn = Turn::new();
        turn.apply(&Event::Text(answer.into()));
        turn.apply(&Event::StepEnded { usage: Usage::default() });
        Exchange { prompt: Some(prompt.into()), turn }
    }

    #[test]
    fn what_was_said_without_a_prompt_is_seen_and_a_user_always_begins() {
        let note = Exchange { prompt: None, ..exchange("", "a note") };
        let past = [note.clone(), exchange("hi", "yes"), note];
        let past: Vec<_> = past.iter().collect();
        let seen = conversation(0, &past, "now", &Turn::new(), 1000);
        let roles: String =
            seen.iter().map(|m| if matches!(m, ChatMessage::User(_)) { 'u' } else { 'a' }).collect();
        assert_eq!(roles, "uauauau");
        assert_eq!(seen[1], seen[5]);
        assert!(matches!(&seen[5], ChatMessage::Assistant { text, .. } if text == "a note"));
    }

    #[test]
    fn the_newest_turns_that_fit_are_seen() {
        let past = [exchange("old", &"x".repeat(400)), exchange("newer", "yes"), exchange("newest", "no")];
        let past: Vec<_> = past.iter().collect();
        let seen = |tokens| conversation(8, &past, "now", &Turn::new(), tokens);
        assert_eq!(seen(1000).len(), 7);
        assert_eq!(seen(50).len(), 5, "the long one does not fit");
        assert_eq!(seen(0), [ChatMessage::User("now".into())], "the prompt always goes");
    }

    #[test]
    fn a_soul_is_cut_between_characters() {
        assert_eq!(fit_soul("İİİİ", 1), "İİ");
        assert_eq!(fit_soul("İİİİ", 100), "İİİİ");
        assert_eq!(fit_soul("aİİİ", 1), "aİ");
    }
}
