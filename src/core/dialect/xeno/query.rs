//! One accepted query as its client is told of it.
//!
//! ```text
//!   accepted ─► [stats: busy] ─► stream (partial) ... ─┬─ completed ─► stats ─► stream (final) ──────────┬─► done
//!                                   ▲    │ restarted:  └─ aborted, failed ─► [stream (final)] ─► error ──┤
//!                                   └────┘ text void   ─ shutdown, fault ─────────────────────► error ──┘
//! ```
//!
//! A partial stream has all the text so far, at most one each [`PARTIAL`]. The final one of a run that
//! was aborted or failed has what was said until then, so that it is not lost on a client that replaces
//! partial text by what comes last.

use std::time::Duration;

use super::wire;
use crate::conversation::event::{Event, Incomplete, Logged, Outcome};
use crate::conversation::transcript::STEP_JOINT;
use crate::dialect::json::json;
use crate::ids::CallId;
use crate::time::Timestamp;
use crate::tools::messenger::{self, Sent};

/// The least time between two partial streams of one query.
const PARTIAL: Duration = Duration::from_millis(100);

/// An accepted query.
#[derive(Debug)]
pub(super) struct Query {
    /// How its client calls it, as JSON.
    request: Box<str>,
    text: String,
    /// Where the step under way begins in it.
    step_at: usize,
    is_new_step: bool,
    /// Whether there is text that no stream had yet.
    is_untold: bool,
    told: Option<Timestamp>,
    started: Timestamp,
    /// Since when the model is asked.
    asked: Timestamp,
    /// For how long it was asked, in steps that are over.
    api: Duration,
    steps: u32,
    /// Calls that may send something back.
    sending: Vec<CallId>,
    /// What is sent back, as JSON.
    attachments: Vec<String>,
}

impl Query {
    /// One that was accepted now.
    pub(super) fn new(request: Box<str>, now: Timestamp) -> Self {
        Self {
            request,
            text: String::new(),
            step_at: 0,
            is_new_step: false,
            is_untold: false,
            told: None,
            started: now,
            asked: now,
            api: Duration::ZERO,
            steps: 0,
            sending: Vec::new(),
            attachments: Vec::new(),
        }
    }

    /// When it next has something to tell.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.told.filter(|_| self.is_untold).map(|told| told.after(PARTIAL))
    }

    /// That so many come before it.
    pub(super) fn busy(&self, ahead: usize) -> String {
        self.stats(&format!("Busy with another task. Your message is queued ({ahead} ahead)."))
    }

    /// Takes what happened, tells what is due, and says whether that was its end. `is_free`: nothing
    /// has to be paid for the model.
    pub(super) fn take(
        &mut self,
        logged: &Logged,
        now: Timestamp,
        is_free: bool,
        mut tell: impl FnMut(String),
    ) -> bool {
        match &logged.event {
            Event::Started => (self.started, self.asked) = (logged.at, logged.at),
            Event::Text(text) => self.say(text),
            Event::StepEnded { .. } => {
                self.steps += 1;
                self.api += logged.at.since(self.asked);
                (self.step_at, self.is_new_step) = (self.text.len(), true);
            }
            Event::ToolCalled(call) if call.name.as_str() == messenger::NAME => {
                self.sending.push(call.id.clone());
            }
            Event::ToolReturned(result) => {
                self.asked = logged.at;
                let is_sent = self.sending.contains(&result.call) && !result.is_error;
                if let Some(sent) = is_sent.then(|| Sent::read(&result.content)).flatten() {
                    self.sent_back(sent);
                }
            }
            Event::Restarted => {
                self.is_untold |= self.text.len() > self.step_at;
                self.text.truncate(self.step_at);
                self.is_new_step = true;
                self.asked = logged.at;
            }
            Event::Ended { outcome, .. } => {
                self.end(outcome, logged.at, is_free, &mut tell);
                return true;
            }
            Event::Noticed(notice) => tell(self.stats(&notice.message)),
            // All else is not told to who asks for an answer.
            _ => {}
        }
        self.tell_due(now, tell);
        false
    }

    /// Tells the text so far, where that is due.
    pub(super) fn tell_due(&mut self, now: Timestamp, mut tell: impl FnMut(String)) {
        if self.is_untold && self.told.is_none_or(|told| told.after(PARTIAL) <= now) {
            self.is_untold = false;
            self.told = Some(now);
            tell(self.stream(true));
        }
    }

    /// Tells that nothing more will be told, and why.
    pub(super) fn give_up(&mut self, why: &str, mut tell: impl FnMut(String)) {
        if self.is_untold {
            tell(self.stream(true));
        }
        self.fail(why, &mut tell);
    }

    /// What the agent sends to who asked is a part of its answer.
    fn sent_back(&mut self, sent: Sent) {
        if let Some(text) = sent.text {
            self.say(&text);
            (self.step_at, self.is_new_step) = (self.text.len(), true);
        }
        self.attachments.extend(sent.attachments.into_iter().map(|attachment| attachment.to_string()));
    }

    fn say(&mut self, text: &str) {
        if std::mem::take(&mut self.is_new_step) && !self.text.is_empty() {
            self.text.push_str(STEP_JOINT);
        }
        self.text.push_str(text);
        self.is_untold = true;
    }

    fn end(&self, outcome: &Outcome, at: Timestamp, is_free: bool, tell: &mut impl FnMut(String)) {
        let has_something = !self.text.is_empty() || !self.attachments.is_empty();
        match outcome {
            Outcome::Completed | Outcome::Incomplete(_) => {
                tell(self.stats(&self.summary(outcome, at, is_free)));
                tell(self.stream(false));
                tell(self.done());
            }
            Outcome::Aborted(_) | Outcome::Failed(_) => {
                if has_something {
                    tell(self.stream(false));
                }
                match outcome {
                    Outcome::Failed(error) => self.fail(&error.message, tell),
                    _ => self.fail("The query was aborted.", tell),
                }
            }
        }
    }

    fn fail(&self, why: &str, tell: &mut impl FnMut(String)) {
        tell(wire::notification("error", &self.request, &format!(r#","error":{}"#, json(why))));
        tell(self.done());
    }

    /// How it went, in the form that xeno's server has. What a model costs is not known here, so that it
    /// is only told where that is nothing.
    fn summary(&self, outcome: &Outcome, at: Timestamp, is_free: bool) -> String {
        let seconds = |time: Duration| format!("{:.2}s", time.as_secs_f64());
        let cost = if is_free { " | cost=$0.000000" } else { "" };
        let (turns, took, api) = (self.steps, seconds(at.since(self.started)), seconds(self.api));
        let stop = match outcome {
            Outcome::Incomplete(Incomplete::Length) => "max_tokens",
            Outcome::Incomplete(why) => why.name(),
            _ => "end_turn",
        };
        format!("result=success | turns={turns}{cost} | duration={took} | api={api} | stop={stop}")
    }

    fn stream(&self, is_partial: bool) -> String {
        let mut rest = format!(r#","content":{},"isPartial":{is_partial}"#, json(&self.text));
        if !is_partial && !self.attachments.is_empty() {
            rest.push_str(&format!(r#","attachments":[{}]"#, self.attachments.join(",")));
        }
        wire::notification("stream", &self.request, &rest)
    }

    fn stats(&self, stats: &str) -> String {
        wire::notification("stats", &self.request, &format!(r#","stats":{}"#, json(stats)))
    }

    fn done(&self) -> String {
        wire::notification("done", &self.request, "")
    }
}
