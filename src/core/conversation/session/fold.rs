//! The fold of the event log: what an event makes of the state, and what is kept of runs that are over.
//!
//! What the model sees of them is what the window shows, and that moves by events alone
//! ([`crate::conversation::window`]). Besides there are bounds on what is held in memory, far beyond what is
//! ever in the window for long.

use std::collections::VecDeque;

use super::{Prompt, Session};
use crate::conversation::compaction::Cost;
use crate::conversation::context::{self, Showing};
use crate::conversation::event::{Event, Logged};
use crate::conversation::turn::{CUT_MARK, Turn};
use crate::ids::Seq;
use crate::prompt::attachment::{Attachment, Kind};
use crate::time::Timestamp;
use crate::tools::long_result::shown_bytes;

/// The most bytes of results of tools that past turns may hold, to be read on in.
pub(super) const PAST_RESULT_BYTES_MAX: usize = 1 << 20;

/// How many times the context past turns may take in memory; one prompt alone no more than a part of that.
const PAST_CONTEXTS: usize = 8;
const PROMPT_CONTEXTS: usize = 2;

/// Of the context, one in so many parts is for prompts that were not answered.
const UNANSWERED_SHARE: usize = 4;

/// What is over and not forgotten.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Past {
    /// None for what was injected.
    pub(super) prompt: Option<Prompt>,
    pub(super) turn: Turn,
    /// The number of its beginning: the model is told in this order.
    pub(super) began: Seq,
    /// The number of its end.
    pub(super) ended: Seq,
}

impl Past {
    /// Whether the model is shown it: it was answered, or is known by its prompt.
    pub(super) fn is_shown(&self) -> bool {
        self.turn.has_answer() || self.prompt.as_ref().is_some_and(|prompt| !prompt.content.is_empty())
    }

    /// What it takes in a context of so many tokens.
    pub(super) fn cost(&self, context_tokens: usize) -> Cost {
        let said =
            self.prompt.as_ref().map(|prompt| (&*prompt.content, &*prompt.notes, &*prompt.attachments));
        let bytes = context::said_bytes(said.unwrap_or_default(), &self.turn, shown_bytes(context_tokens));
        let tokens = if self.is_shown() { context::estimate_tokens(bytes) } else { 0 };
        Cost { tokens, result_bytes: self.turn.result_bytes() }
    }

    /// What it brought along of which the model could be shown something; of a turn without an answer none is.
    pub(super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        let prompt = self.prompt.iter().filter(|_| self.turn.has_answer());
        prompt.flat_map(|prompt| &prompt.attachments).filter(|attachment| attachment.kind() != Kind::Named)
    }
}

impl Session {
    /// Brings the state up to date with an event of the event log.
    pub(super) fn apply(&mut self, logged: &Logged) {
        let Some(run) = &logged.run else {
            if self.window.apply(logged.seq, &logged.event) {
                self.past.retain(|past| past.ended > self.window.from);
                self.name_attachments();
            }
            // Nothing else concerns the session.
            if let Event::Configured(settings) = &logged.event {
                self.settings.clone_from(settings);
            }
            return;
        };
        match &logged.event {
            Event::Injected { content } => {
                let turn = Turn::of_text(content);
                self.keep(Past { prompt: None, turn, began: logged.seq, ended: logged.seq });
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
                    notes: String::new(),
                    aside: 0,
                })
            }
            Event::Started => {
                if let Some(at) = self.queue.iter().position(|prompt| prompt.run == *run) {
                    self.run = self.queue.remove(at).map(|prompt| (prompt, Turn::new()));
                    (self.began, self.began_at) = (logged.at, logged.seq);
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
                if let Some((prompt, turn)) = &mut self.run {
                    if let Event::Recalled { notes } = event {
                        prompt.notes.clone_from(notes);
                    }
                    turn.apply(event);
                }
                if let Event::Ended { .. } = event
                    && let Some((prompt, turn)) = self.run.take()
                {
                    self.keep(Past { prompt: Some(prompt), turn, began: self.began_at, ended: logged.seq });
                    (self.began, self.began_at) = (Timestamp::default(), Seq(0));
                    // Most sessions are idle most of the time: room is for those that are not.
                    if self.queue.is_empty() {
                        self.queue = VecDeque::new();
                    }
                }
            }
        }
    }

    /// Lets go of attachments that are only named from now on.
    fn name_attachments(&mut self) {
        let named = self.window.named;
        let old = self.past.iter_mut().filter(|past| past.ended <= named);
        let prompts = old.filter_map(|past| past.prompt.as_mut());
        prompts.flat_map(|prompt| &mut prompt.attachments).for_each(Attachment::let_go);
    }

    /// Adds to the past, and lets go of what is too much to be held: turns that are too many, and
    /// those that are far more than the context beside the newer ones, or whose results of tools don't fit
    /// into memory beside theirs. Prompts without an answer are bounded by themselves, so that those that
    /// fail while a provider is away do not push out what the model has to know; one that is too long is kept
    /// for its idempotency key alone. Attachments that are no longer shown are let go.
    fn keep(&mut self, mut ended: Past) {
        let context_tokens = self.limits.context_tokens;
        if let Some(prompt) = &mut ended.prompt {
            if !ended.turn.has_answer() {
                prompt.attachments.iter_mut().for_each(Attachment::let_go);
            } else if prompt.content.len() > PROMPT_CONTEXTS * context::bytes_of(context_tokens) {
                let fits = PROMPT_CONTEXTS * context::bytes_of(context_tokens);
                prompt.content.truncate(prompt.content.floor_char_boundary(fits));
                prompt.content.push_str(CUT_MARK);
            }
        }
        self.past.push_back(ended);
        let mut showing = Showing::beside(context_tokens);
        let (mut answered, mut unanswered) = (0, 0);
        let mut left = Some(context_tokens.saturating_mul(PAST_CONTEXTS));
        let mut bytes_left = Some(PAST_RESULT_BYTES_MAX);
        let mut unanswered_left = Some(context_tokens / UNANSWERED_SHARE);
        let mut kept = VecDeque::with_capacity(self.past.len());
        for mut past in std::mem::take(&mut self.past).into_iter().rev() {
            let cost = past.cost(context_tokens);
            let seen = if past.turn.has_answer() {
                answered += 1;
                left = left.and_then(|left| left.checked_sub(cost.tokens));
                bytes_left = bytes_left.and_then(|left| left.checked_sub(cost.result_bytes));
                answered <= self.limits.turns() && left.is_some() && bytes_left.is_some()
            } else {
                unanswered += 1;
                unanswered_left = unanswered_left.and_then(|left| left.checked_sub(cost.tokens));
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
        self.name_attachments();
    }
}
