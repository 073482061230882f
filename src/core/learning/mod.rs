//! Learning: what is said in a conversation, as facts about whom the memory belongs to.
//!
//! | file | knows |
//! |---|---|
//! | [`rules`] | sentences that say a fact outright, without a model |
//! | [`asked`] | how a model is asked for facts, and what of its answer is taken |
//!
//! **What may be learned from.** Whoever can write into what is learned can speak to every later conversation of
//! its owner. So of an exchange only what its owner said, and the answer, are looked at; never what tools
//! returned, what was attached, or what was put into the conversation. An answer is not looked at where tools
//! were called in the run or files were attached: it may repeat what those say. Sessions whose prompts are not
//! those of a person who owns them are not looked at at all ([`may_be_learned_from`]). Of a prompt, what is quoted
//! or code is left out by the rules. What a model says that it found has to be in the words of the prompt, and is
//! a few short facts or nothing. An answer alone teaches nothing: it only helps to understand the prompt.

pub mod asked;
pub mod rules;

use std::collections::BTreeSet;

use crate::ids::SessionKey;
use crate::provider::ProviderKind;

/// The most facts that are learned from one exchange.
pub const FACTS_MAX: usize = 8;

/// The most of a prompt and of an answer that is looked at, in bytes.
pub const PROMPT_BYTES_MAX: usize = 8 * 1024;
/// See [`PROMPT_BYTES_MAX`].
pub const ANSWER_BYTES_MAX: usize = 4 * 1024;

/// Who finds the facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LearnBy {
    /// The rules, where the agent's model is the offline one; else nobody.
    #[default]
    Auto,
    /// Nobody.
    Off,
    /// The rules.
    Rules,
    /// The model that answered; of the offline one, the rules.
    Model,
}

/// How facts are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finder {
    /// By the rules.
    Rules,
    /// By the model that answered.
    Model,
}

impl LearnBy {
    /// How facts are found in what an agent answers whose first model is of such a provider; none where they are
    /// not.
    pub fn finder(self, kind: ProviderKind) -> Option<Finder> {
        match (self, kind) {
            (Self::Off, _) => None,
            (Self::Rules, _) | (Self::Auto | Self::Model, ProviderKind::Offline) => Some(Finder::Rules),
            (Self::Auto, _) => None,
            (Self::Model, _) => Some(Finder::Model),
        }
    }
}

/// What was said in a run that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The prompt.
    pub prompt: String,
    /// The answer; empty where it may repeat what others said.
    pub answer: String,
}

impl Exchange {
    /// Of a prompt and an answer; what is too long is looked at as far as its bounds.
    pub fn new(prompt: &str, answer: &str) -> Self {
        let cut = |text: &str, bytes: usize| text[..text.floor_char_boundary(bytes)].to_owned();
        Self { prompt: cut(prompt, PROMPT_BYTES_MAX), answer: cut(answer, ANSWER_BYTES_MAX) }
    }
}

/// Whether the prompts of a session are those of the person it belongs to. `foreign` are the channels over which
/// others write, and those of jobs and of agents that work for a session.
pub fn may_be_learned_from(session: &SessionKey, foreign: &BTreeSet<String>) -> bool {
    let peer = session.peer();
    let is_group = ["guild/", "team/"].iter().any(|group| peer.starts_with(group));
    !is_group && !session.owner().is_channel() && !foreign.contains(&*session.channel())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_not_learned() {
        let foreign = BTreeSet::from(["telegram".to_owned(), "cron".to_owned()]);
        for (key, may) in [
            ("main:cli:ada:work", true),
            ("ada/main:websocket:ada:main", true),
            ("main:telegram:bot:42", false),
            ("ada/main:cron:job:main", false),
            ("main:discord:bot:guild%2Fhome%2Fbob", false),
        ] {
            let session = SessionKey::parse(key).unwrap();
            assert_eq!(may_be_learned_from(&session, &foreign), may, "{key}");
        }
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let exchange = Exchange::new(&"İ".repeat(PROMPT_BYTES_MAX), "");
        assert_eq!(exchange.prompt.len(), PROMPT_BYTES_MAX);
    }
}
