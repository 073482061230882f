//! The run under way: what is to be done for it, what comes of that, and how it ends.

use super::{Past, Prompt, Session};
use crate::conversation::approval::Toolbox;
use crate::conversation::context::{self, Exchange};
use crate::conversation::event::{Cause, Event, Outcome};
use crate::conversation::reply::UnderWay;
use crate::conversation::turn::{Turn, Work};
use crate::error::Error;
use crate::ids::RunId;
use crate::prompt::thinking::Thinking;
use crate::provider::usage::Usage;
use crate::provider::{ChatMessage, Delta};
use crate::time::Timestamp;
use crate::tools::call::{ToolCall, ToolResult};
use crate::tools::long_result;

impl Session {
    /// The run under way.
    pub fn running(&self) -> Option<&RunId> {
        self.run.as_ref().map(|(prompt, _)| &prompt.run)
    }

    /// The idempotency key that the run under way was asked for with.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.idempotency_key.as_deref())
    }

    /// Whether the run under way is the one with this id or this idempotency key.
    pub fn is_running(&self, run: &RunId) -> bool {
        self.run.as_ref().is_some_and(|(prompt, _)| prompt.is_named(run))
    }

    /// The run under way with what it said so far.
    pub fn under_way(&self) -> Option<UnderWay> {
        let (prompt, turn) = self.run.as_ref()?;
        let (text, step_at) = turn.text();
        Some(UnderWay {
            run: prompt.run.clone(),
            idempotency_key: prompt.idempotency_key.clone(),
            text,
            step_at,
            seq: self.head,
            started: self.began,
            is_anew: turn.is_anew(),
            calls: turn.made().into_iter().map(|call| (call.id, call.name)).collect(),
        })
    }

    /// What is to be done for the run under way; nothing while it waits for its lane.
    pub fn work(&self) -> Option<(&RunId, Work)> {
        let (prompt, turn) = self.run.as_ref().filter(|(prompt, _)| self.is_admitted(prompt))?;
        Some((&prompt.run, turn.work()?))
    }

    /// The conversation as the model should see it now; empty where nothing is under way.
    pub fn conversation(&self) -> Vec<ChatMessage> {
        let Some((prompt, turn)) = &self.run else { return Vec::new() };
        let under_way = exchange(Some(prompt), turn);
        let past = self.seen().into_iter().map(|past| exchange(past.prompt.as_ref(), &past.turn));
        let past: Vec<Exchange> = past.collect();
        let shown = long_result::shown_bytes(self.limits.context_tokens);
        context::conversation(&self.window.summary, &past, &under_way, shown)
    }

    /// The past turns that the run under way sees, in the order in which they began: those that were over when it
    /// began, so that nothing is put before what it was shown.
    pub(super) fn seen(&self) -> Vec<&Past> {
        let past = self.past.iter().filter(|past| past.is_shown() && past.ended < self.began_at);
        let mut seen: Vec<&Past> = past.collect();
        seen.sort_by_key(|past| past.began);
        seen
    }

    /// What a call of the built-in tool `read_result` gives: more of a result of the run under way, or of a
    /// past turn that the model sees.
    pub fn read_result(&self, asked: &ToolCall) -> ToolResult {
        let under_way = self.run.iter().map(|(_, turn)| turn);
        let mut turns = under_way.chain(self.past.iter().rev().map(|past| &past.turn));
        long_result::read(asked, long_result::shown_bytes(self.limits.context_tokens), |call| {
            turns.find_map(|turn| turn.result(call)).map(|result| result.content.as_str())
        })
    }

    /// Whether the model sees results that are longer than it is shown at once.
    pub fn has_long_results(&self) -> bool {
        let shown = long_result::shown_bytes(self.limits.context_tokens);
        let turns = self.past.iter().map(|past| &past.turn).chain(self.run.iter().map(|(_, turn)| turn));
        turns.into_iter().any(|turn| turn.has_result_over(shown))
    }

    /// How much is to be thought over the prompt under way: as it says, else as the session is set.
    pub fn thinking(&self) -> Option<Thinking> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.run_options.thinking).or(self.settings.thinking)
    }

    /// The model that answers the prompt under way, where one was chosen for it or for the session.
    pub fn model(&self) -> Option<&str> {
        let chosen = self.run.as_ref().and_then(|(prompt, _)| prompt.run_options.model.as_deref());
        chosen.or(self.settings.model.as_deref())
    }

    /// The most tokens of one answer to the prompt under way, where it says so.
    pub fn max_tokens(&self) -> Option<u32> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.run_options.max_tokens)
    }

    /// Takes what the model said in answer `step` of `run`; what comes too late is nothing.
    pub fn said(&mut self, now: Timestamp, run: &RunId, step: usize, deltas: Vec<Delta>, tools: &Toolbox) {
        let Some((prompt, turn)) = &mut self.run else { return };
        if prompt.run != *run || turn.work() != Some(Work::Ask { step }) {
            return;
        }
        for event in turn.said(now, deltas, tools, &self.settings.allowed) {
            self.emit_run(now, event);
        }
        self.start_next(now);
    }

    /// Ends the run because the model can't be heard; what comes too late is nothing. `partial` is
    /// what the answer has cost.
    pub fn failed(&mut self, now: Timestamp, run: &RunId, step: usize, error: Error, partial: Usage) {
        let Some((prompt, turn)) = &self.run else { return };
        if prompt.run == *run && turn.work() == Some(Work::Ask { step }) {
            self.finish(now, Outcome::Failed(error), partial);
            self.start_next(now);
        }
    }

    /// Takes a tool's result; what comes too late or a second time is nothing.
    pub fn returned(&mut self, now: Timestamp, run: &RunId, result: ToolResult) {
        let Some((prompt, turn)) = &self.run else { return };
        if prompt.run == *run
            && let Some(event) = turn.returned(result)
        {
            self.emit_run(now, event);
        }
    }

    /// Ends a run, by its id or its idempotency key, or the one under way where none is named, with what was said so far. Gives the run
    /// that was ended; none where it is not under way and not queued. `partial` is what the answer
    /// under way has cost.
    pub fn abort(&mut self, now: Timestamp, run: Option<&RunId>, partial: Usage) -> Option<RunId> {
        self.end(now, run, Cause::Asked, partial)
    }

    /// Ends the run under way and all that wait, for this cause. Gives those runs. `partial` is what the
    /// answer under way has cost.
    pub fn stop(&mut self, now: Timestamp, cause: Cause, partial: Usage) -> Vec<RunId> {
        let waiting: Vec<RunId> = self.queue.iter().map(|prompt| prompt.run.clone()).collect();
        let mut ended: Vec<RunId> = waiting.into_iter().rev().collect();
        ended.retain(|run| self.end(now, Some(run), cause, Usage::default()).is_some());
        ended.extend(self.end(now, None, cause, partial));
        ended.reverse();
        ended
    }

    fn end(&mut self, now: Timestamp, run: Option<&RunId>, cause: Cause, partial: Usage) -> Option<RunId> {
        let run = match run {
            None => self.running()?,
            Some(run) => &self.open().find(|prompt| prompt.is_named(run))?.run,
        };
        let run = run.clone();
        match &self.run {
            Some((prompt, _)) if prompt.run == run => self.finish(now, Outcome::Aborted(cause), partial),
            _ => {
                let end = Event::Ended { outcome: Outcome::Aborted(cause), usage: Usage::default() };
                self.emit(now, Some(run.clone()), end);
            }
        }
        self.start_next(now);
        Some(run)
    }

    /// Whether the run under way takes longer than its prompt allows.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.run.as_ref().is_some_and(|(prompt, _)| prompt.is_overdue(now))
    }

    /// Ends runs that take longer than their prompts allow, those that still wait included. While the
    /// session is stopping they go on: the next start finds them. `partial` is what the answer under
    /// way has cost.
    pub fn time_out(&mut self, now: Timestamp, partial: Usage) {
        if self.draining {
            return;
        }
        // Those that wait first, so that none of them begins.
        let overdue = |prompt: &&Prompt| prompt.is_overdue(now);
        let waiting: Vec<RunId> =
            self.queue.iter().filter(overdue).map(|prompt| prompt.run.clone()).collect();
        for run in waiting {
            self.end(now, Some(&run), Cause::TimedOut, Usage::default());
        }
        if self.is_overdue(now) {
            self.end(now, None, Cause::TimedOut, partial);
        }
    }

    /// Ends the run under way. `partial` is what the answer under way has cost.
    pub(super) fn finish(&mut self, now: Timestamp, outcome: Outcome, partial: Usage) {
        let Some((_, turn)) = &self.run else { return };
        for event in turn.end(outcome, partial) {
            self.emit_run(now, event);
        }
    }

    pub(super) fn emit_run(&mut self, now: Timestamp, event: Event) {
        let run = self.running().cloned();
        self.emit(now, run, event);
    }
}

/// A turn as the model is told of it.
pub(super) fn exchange(prompt: Option<&Prompt>, turn: &Turn) -> Exchange {
    Exchange {
        prompt: prompt.map(|prompt| prompt.content.clone()),
        attachments: prompt.map(|prompt| prompt.attachments.clone()).unwrap_or_default(),
        notes: prompt.map(|prompt| prompt.notes.clone()).unwrap_or_default(),
        turn: turn.clone(),
    }
}
