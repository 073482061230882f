//! The fold of the event log: what an event makes of the state, and what is kept of runs that are over.

use std::collections::VecDeque;

use super::{Prompt, Session};
use crate::conversation::context::{self, Showing};
use crate::conversation::event::{Event, Forgotten, Logged};
use crate::conversation::turn::Turn;
use crate::ids::Seq;
use crate::prompt::attachment::Attachment;
use crate::time::Timestamp;
use crate::tools::long_result::shown_bytes;

/// The most bytes of results of tools that past turns may hold, to be read on in.
const PAST_RESULT_BYTES_MAX: usize = 1 << 20;

/// Of the context, one in so many parts is for prompts that were not answered.
const UNANSWERED_SHARE: usize = 4;

/// What is over and not forgotten.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Past {
    /// None for what was injected.
    pub(super) prompt: Option<Prompt>,
    pub(super) turn: Turn,
    /// The number of its end.
    pub(super) ended: Seq,
}

impl Past {
    /// Whether the model is shown it: it was answered, or is known by its prompt.
    pub(super) fn is_shown(&self) -> bool {
        self.turn.has_answer() || self.prompt.as_ref().is_some_and(|prompt| !prompt.content.is_empty())
    }

    /// What it takes of a context of so many tokens, estimated.
    fn cost(&self, context_tokens: usize) -> usize {
        let prompt = self.prompt.as_ref().map(|prompt| (&*prompt.content, &*prompt.attachments));
        let (content, attachments) = prompt.unwrap_or_default();
        context::estimate_turn(content, attachments, &self.turn, shown_bytes(context_tokens))
    }
}

impl Session {
    /// Brings the state up to date with an event of the event log.
    pub(super) fn apply(&mut self, logged: &Logged) {
        let Some(run) = &logged.run else {
            match &logged.event {
                Event::Cleared(Forgotten::UpTo(seq)) => self.past.retain(|past| past.ended > *seq),
                Event::Cleared(Forgotten::Past | Forgotten::Conversation) => self.past.clear(),
                Event::Configured(settings) => self.settings.clone_from(settings),
                // Nothing else concerns the session.
                _ => {}
            }
            return;
        };
        match &logged.event {
            Event::Injected { content } => {
                let turn = Turn::of_text(content);
                self.keep(Past { prompt: None, turn, ended: logged.seq });
            }
            Event::Prompted { content, owner, idempotency_key, attachments, run_options } => {
                self.queue.push_back(Prompt {
                    run: run.clone(),
                    seq: logged.seq,
                    at: logged.at,
                    content: content.clone(),
                    owner: owner.clone(),
                    idempotency_key: idempotency_key.clone(),
                    attachments: attachments.clone(),
                    run_options: run_options.clone(),
                    aside: 0,
                })
            }
            Event::Started => {
                if let Some(at) = self.queue.iter().position(|prompt| prompt.run == *run) {
                    self.run = self.queue.remove(at).map(|prompt| (prompt, Turn::new()));
                    self.began = logged.at;
                    self.limits = self.next_limits.take().unwrap_or_else(|| self.limits.clone());
                }
            }
            event => {
                if let Event::Ended { .. } = event {
                    self.admitted.retain(|admitted| admitted != run);
                }
                if self.running() != Some(run) {
                    // A prompt that was aborted in the queue.
                    self.queue.retain(|prompt| prompt.run != *run);
                    return;
                }
                if let Some((_, turn)) = &mut self.run {
                    turn.apply(event);
                }
                if let Event::Ended { .. } = event
                    && let Some((prompt, turn)) = self.run.take()
                {
                    self.began = Timestamp::default();
                    self.keep(Past { prompt: Some(prompt), turn, ended: logged.seq });
                }
            }
        }
    }

    /// Adds to the past, and lets go of what the model will never see: turns that are too many, and
    /// those that don't fit into the context beside the newer ones, or whose results of tools don't fit
    /// into memory beside theirs. Prompts without an answer are bounded by themselves, so that those that
    /// fail while a provider is away do not push out what the model has to know; one that is too long is kept
    /// for its idempotency key alone. Attachments that are no longer shown are let go.
    fn keep(&mut self, mut ended: Past) {
        if let Some(prompt) = &mut ended.prompt
            && !ended.turn.has_answer()
        {
            prompt.attachments.iter_mut().for_each(Attachment::let_go);
        }
        self.past.push_back(ended);
        let context_tokens = self.limits.context_tokens;
        let mut showing = Showing::beside(context_tokens);
        let (mut answered, mut unanswered) = (0, 0);
        let (mut left, mut bytes_left) = (Some(context_tokens), Some(PAST_RESULT_BYTES_MAX));
        let mut unanswered_left = Some(context_tokens / UNANSWERED_SHARE);
        let mut kept = VecDeque::with_capacity(self.past.len());
        for mut past in std::mem::take(&mut self.past).into_iter().rev() {
            let seen = if past.turn.has_answer() {
                answered += 1;
                left = left.and_then(|left| left.checked_sub(past.cost(context_tokens)));
                bytes_left = bytes_left.and_then(|left| left.checked_sub(past.turn.result_bytes()));
                answered <= self.limits.episodic_turns && left.is_some() && bytes_left.is_some()
            } else {
                unanswered += 1;
                unanswered_left =
                    unanswered_left.and_then(|left| left.checked_sub(past.cost(context_tokens)));
                if let Some(prompt) = past.prompt.as_mut().filter(|_| unanswered_left.is_none()) {
                    prompt.content = String::new();
                    prompt.attachments = Vec::new();
                }
                unanswered <= self.limits.episodic_turns
            };
            if seen {
                for attachment in past.prompt.iter_mut().flat_map(|prompt| &mut prompt.attachments) {
                    if !showing.shows(attachment) {
                        attachment.let_go();
                    }
                }
                kept.push_front(past);
            }
        }
        self.past = kept;
    }
}
