//! How an event changes a conversation, and how it is shown.

use clawmux_core::dialect::exoclaw::client::StreamEvent;

use super::run::{Doing, Prompt, Run};
use super::{Change, Conversation, Output, PendingApproval, SessionEvent};
use crate::chat::renderer::{Call, Decision, End, Outcome};

/// The run that an event is about.
#[derive(Clone, Debug)]
struct About {
    run: Option<String>,
    is_own: bool,
    /// The event happened before this chat attached.
    is_past: bool,
}

impl Conversation {
    /// Applies an event and shows it.
    pub(super) fn show(&mut self, event: SessionEvent, output: &mut Output<'_>) -> Option<Change> {
        let SessionEvent { place, event } = event;
        let mut is_past = false;
        if let Some(place) = &place {
            // Where it was attached anew nothing comes twice; should it, it is not shown twice.
            let is_known = place.seq < self.seq;
            self.seq = self.seq.max(place.seq);
            if is_known {
                return None;
            }
            is_past = place.seq <= self.past;
        }
        let is_clipped = place.as_ref().is_some_and(|place| place.is_clipped);
        let run = place.and_then(|place| place.run);
        let is_own = run.as_ref().is_some_and(|run| self.own.contains(run));
        if self.is_private && !is_own && event != StreamEvent::Deleted {
            self.pass_over(run, &event, output);
            return None;
        }
        let about = About { run, is_own, is_past };
        match event {
            StreamEvent::Prompt { content, by, attachments } => {
                let clipped = if is_clipped { "…" } else { "" };
                let files: String = attachments.iter().map(|file| format!("\n[{file}]")).collect();
                let prompt = Prompt { text: format!("{content}{clipped}{files}"), by };
                self.prompted(prompt, about, output);
            }
            StreamEvent::Message(text) => {
                output.renderer.answer(&text);
                output.renderer.end_answer(&End { outcome: Outcome::Completed, elapsed: None, tokens: None });
            }
            StreamEvent::Clear => output.renderer.note("cleared: the conversation begins anew"),
            StreamEvent::Deleted => return self.deleted(),
            StreamEvent::Approval { id, name, decision, by } => {
                self.pending.retain(|asked| asked.id != id);
                let is_own = self.deciding.iter().any(|deciding| deciding.id == id);
                self.deciding.retain(|deciding| deciding.id != id);
                output.renderer.decided(&Decision { id, name, decision, by, is_own });
            }
            StreamEvent::Accepted { .. } | StreamEvent::Unknown => {}
            StreamEvent::Done => return self.done(about, output),
            event => self.goes_on(event, about, output),
        }
        None
    }

    /// Somebody prompted, here or elsewhere.
    fn prompted(&mut self, prompt: Prompt, about: About, output: &mut Output<'_>) {
        let mut run = Run::new(about.run, about.is_own, about.is_past, output.now);
        match (about.is_own, self.runs.is_empty()) {
            (true, true) => output.renderer.own_turn(),
            (true, false) => {}
            (false, true) => output.renderer.prompted(&prompt.text, prompt.by.as_deref()),
            (false, false) => run.unshown = Some(prompt),
        }
        self.runs.push(run);
    }

    /// The session is gone.
    fn deleted(&mut self) -> Option<Change> {
        let is_awaited = !self.is_private || !self.runs.is_empty() || !self.own.is_empty();
        (self.runs, self.pending, self.deciding) = (Vec::new(), Vec::new(), Vec::new());
        (self.seq, self.past) = (0, 0);
        self.ahead.clear();
        is_awaited.then_some(Change::Deleted)
    }

    /// A run does something.
    fn goes_on(&mut self, event: StreamEvent, about: About, output: &mut Output<'_>) {
        let is_past = about.is_past;
        let now = output.now;
        let at = self.run(about, output);
        let run = &mut self.runs[at];
        match event {
            StreamEvent::Text(text) => {
                run.does(Doing::Answering, now);
                output.renderer.answer(&text);
            }
            StreamEvent::Thought(text) => {
                run.does(Doing::Thinking, now);
                output.renderer.thought(&text);
            }
            StreamEvent::ToolUse { call, name, input, approval } => {
                run.calls(call, name.clone(), now);
                if let Some(id) = approval.clone() {
                    let (name, input) = (name.clone(), input.clone());
                    self.pending.push(PendingApproval { id, name, input, run: run.id.clone() });
                }
                output.renderer.tool_call(&Call { name, input, approval });
            }
            StreamEvent::ToolResult { call, content, is_error } => {
                run.called(&call, now);
                output.renderer.tool_result(&content, is_error);
            }
            StreamEvent::Usage { input_tokens, output_tokens } => {
                run.tokens = Some((input_tokens, output_tokens));
            }
            StreamEvent::Restart => {
                run.does(Doing::Waiting, now);
                if !is_past {
                    output.renderer.note("the answer was cut off and goes on: its last step begins anew");
                }
                output.renderer.void_step();
            }
            StreamEvent::Notice { kind, message } if !is_past => output.renderer.notice(&kind, &message),
            StreamEvent::Error(why) => run.failure = Some(why),
            // What is not about a run was shown before.
            _ => {}
        }
    }

    /// A run is over, and the turn of the next has come.
    fn done(&mut self, about: About, output: &mut Output<'_>) -> Option<Change> {
        let is_past = about.is_past;
        let at = self.run(about, output);
        let run = self.runs.remove(at);
        self.pending.retain(|asked| asked.run != run.id);
        self.deciding.retain(|asked| asked.run != run.id);
        self.own.retain(|own| Some(own) != run.id.as_ref());
        let is_own = run.is_own;
        let end = run.end(is_past, output.now);
        if at == 0 {
            output.renderer.end_answer(&end);
            if let Some(next) = self.runs.first_mut() {
                next.doing_since = output.now;
                if next.is_own {
                    output.renderer.own_turn();
                }
                if let Some(Prompt { text, by }) = next.unshown.take() {
                    output.renderer.prompted(&text, by.as_deref());
                }
            }
        } else {
            if is_own {
                output.renderer.own_turn();
            }
            match &end.outcome {
                Outcome::Failed(why) => output.renderer.error(why),
                _ => output.renderer.note("a prompt that was queued is not answered any more"),
            }
        }
        is_own.then_some(Change::Ended(end.outcome))
    }

    /// Counts runs of others in a private conversation.
    fn pass_over(&mut self, id: Option<String>, event: &StreamEvent, output: &Output<'_>) {
        match event {
            StreamEvent::Prompt { .. } if self.runs.is_empty() && !self.ahead.contains(&id) => {
                self.ahead.push(id);
            }
            StreamEvent::Done if !self.ahead.is_empty() => {
                self.ahead.retain(|run| *run != id);
                if let Some(run) = self.runs.first_mut().filter(|_| self.ahead.is_empty()) {
                    run.doing_since = output.now;
                }
            }
            _ => {}
        }
    }

    /// The index of this run; a run that began earlier is added.
    fn run(&mut self, about: About, output: &Output<'_>) -> usize {
        self.runs.iter().position(|run| run.id == about.run).unwrap_or_else(|| {
            self.runs.insert(0, Run::new(about.run, about.is_own, about.is_past, output.now));
            0
        })
    }
}
