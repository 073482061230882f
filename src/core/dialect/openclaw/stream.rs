//! A run as it is told to one client: what happens in the log, as `chat` and `agent` events.
//!
//! ```text
//!   Queued ── Started ──► Begun ── Ended ──► told: final, aborted or error
//!                          │  ▲
//!                          ▼  │ the step's text is void; what follows replaces it
//!                        Restarted
//! ```
//!
//! Text is told in pieces of at least [`COALESCE`]: the first at once, the rest together, and what
//! is left right before the end. Every piece has the whole text so far for clients that replace
//! and what is new for those that append, so a piece is never dropped. Both are kept as the inside
//! of JSON strings: a piece costs a copy of its bytes and no encoding.

use std::time::Duration;

use serde_json::{Value, json};

use super::wire::{Protocol, escaped};
use crate::approval::Asked;
use crate::dialect::json::json as to_json;
use crate::error::Error;
use crate::event::{Event, Logged, Outcome, Usage};
use crate::ids::{RunId, Seq};
use crate::reply::{Entry, STEP_JOINT, UnderWay};
use crate::time::Timestamp;

/// The least time between two pieces of text. (Source: Clawdbot's gateway.)
const COALESCE: Duration = Duration::from_millis(150);

/// A run that says nothing for so long is said to be alive: Moltz gives up after 60 s.
const SILENCE: Duration = Duration::from_secs(20);

/// What a step begins with for clients that append, after a restart made its text void.
const RESTARTED: &str = "\n\n[restarted]\n\n";

/// The events a run's events become.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Event `chat` with this payload.
    Chat(String),
    /// Event `agent` with this payload.
    Agent(String),
    /// Event `session.message` with this payload.
    Message(String),
}

/// One run.
#[derive(Debug)]
pub(super) struct Told {
    protocol: Protocol,
    /// Its name on the wire, and the key of its session, both as members of an object. None where the
    /// run is only waited for.
    head: Option<String>,
    key: Option<String>,
    run: String,
    /// All its text, as the inside of a JSON string.
    text: String,
    /// Where in it the step under way begins.
    step_at: usize,
    /// Whether the next piece of text is the first of its step.
    is_new_step: bool,
    /// Up to where it was told.
    told_at: usize,
    /// What was told is void from somewhere on.
    is_replaced: bool,
    /// What was thought in this step, as the inside of a JSON string, and up to where it was told.
    thought: String,
    thought_at: usize,
    /// The last number that was taken.
    seq: Seq,
    agent_seq: u64,
    /// Its end is not told before this.
    pub(super) quiet_until: Timestamp,
    /// When its turn came.
    pub(super) started: Option<Timestamp>,
    /// When something was last told.
    last: Option<Timestamp>,
    /// Requests of `agent` that wait for its end.
    pub(super) asked: Vec<String>,
    /// Requests of `agent.wait`, and until when they wait.
    pub(super) waiting: Vec<(String, Timestamp)>,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct End {
    /// How.
    pub(super) outcome: Outcome,
    /// When.
    pub(super) at: Timestamp,
    /// What it cost.
    pub(super) usage: Usage,
    /// All its text, trimmed, as the inside of a JSON string.
    pub(super) text: String,
}

impl End {
    /// All its text, trimmed, as it was said.
    pub(super) fn plain_text(&self) -> String {
        // It was escaped in here.
        serde_json::from_str(&format!("\"{}\"", self.text)).unwrap_or_default()
    }
}

impl Told {
    /// The run of this name, in the session that the client calls `key`; without one nothing is told.
    pub(super) fn new(protocol: Protocol, run: &str, key: Option<&str>) -> Self {
        let mut told = Self {
            protocol,
            head: None,
            key: None,
            run: run.to_owned(),
            text: String::new(),
            step_at: 0,
            is_new_step: false,
            told_at: 0,
            is_replaced: false,
            thought: String::new(),
            thought_at: 0,
            seq: Seq::default(),
            agent_seq: 0,
            quiet_until: Timestamp::default(),
            started: None,
            last: None,
            asked: Vec::new(),
            waiting: Vec::new(),
        };
        if let Some(key) = key {
            told.tell_as(key);
        }
        told
    }

    /// A run that is under way already; the client knows what it said so far.
    pub(super) fn resumed(mut self, under_way: &UnderWay) -> Self {
        self.text = escaped(&under_way.text).into_owned();
        self.step_at = escaped(&under_way.text[..under_way.step_at]).len();
        self.told_at = self.text.len();
        self.is_new_step = self.step_at == self.text.len();
        self.seq = under_way.seq;
        self.started = Some(under_way.started);
        self
    }

    /// Its name on the wire.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// What its session is called; none where it is only waited for.
    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Tells it under this key from here on, where it was only waited for.
    pub(super) fn tell_as(&mut self, key: &str) {
        if self.head.is_none() {
            self.head = Some(format!(r#""runId":{},"sessionKey":{}"#, to_json(&self.run), to_json(key)));
            self.key = Some(key.to_owned());
        }
    }

    /// When it next has something to tell or to say that it is alive, or somebody waits no longer.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let last = self.last.or(self.started);
        let tells = match last {
            Some(last) if self.head.is_some() => {
                Some(last.after(if self.has_untold() { COALESCE } else { SILENCE }))
            }
            _ => None,
        };
        self.waiting.iter().map(|(_, until)| *until).chain(tells).min()
    }

    fn has_untold(&self) -> bool {
        self.told_at < self.text.len() || self.thought_at < self.thought.len()
    }

    /// Whether this was not taken yet.
    pub(super) fn is_news(&self, logged: &Logged) -> bool {
        logged.seq > self.seq
    }

    /// Takes what happened; gives the end, if it is that. What was taken before is nothing.
    pub(super) fn take(&mut self, logged: &Logged, frames: &mut Vec<Frame>) -> Option<End> {
        if !self.is_news(logged) {
            return None;
        }
        self.seq = logged.seq;
        let now = logged.at;
        match &logged.event {
            Event::Started => {
                self.started = Some(now);
                let data = format!(r#"{{"phase":"start","startedAt":{}}}"#, now.as_millis());
                self.agent("lifecycle", &data, now, frames);
            }
            Event::Text(text) => self.say(text),
            Event::Thought(thought) => self.thought.push_str(&escaped(thought)),
            // One that waits for approval looks like one that takes long.
            Event::ToolCalled(call) | Event::ApprovalAsked(Asked { call, .. }) => {
                self.flush(now, frames);
                let data = json!({
                    "phase": "start",
                    "name": call.name.as_str(),
                    "toolCallId": call.id.as_str(),
                    "args": call.input,
                });
                self.agent("tool", &data.to_string(), now, frames);
            }
            Event::ToolReturned(result) => {
                let data = json!({
                    "phase": "result",
                    "toolCallId": result.call.as_str(),
                    "result": { "content": [{ "type": "text", "text": result.content }] },
                    "isError": result.is_error,
                });
                self.agent("tool", &data.to_string(), now, frames);
            }
            Event::StepEnded { .. } => {
                self.flush(now, frames);
                self.is_new_step = true;
                self.step_at = self.text.len();
                self.forget_thoughts();
            }
            Event::Restarted => {
                self.is_replaced |= self.told_at > self.step_at;
                self.text.truncate(self.step_at);
                self.told_at = self.told_at.min(self.step_at);
                self.is_new_step = true;
                self.forget_thoughts();
            }
            Event::Ended { outcome, usage } => {
                let id = logged.run.as_ref().map(Entry::answer_id);
                return Some(self.end(outcome, *usage, id.as_deref(), now, frames));
            }
            Event::Prompted { .. }
            | Event::Sealed(_)
            | Event::ApprovalDecided(_)
            // Not of a run.
            | Event::Injected { .. }
            | Event::Cleared(_)
            | Event::Configured(_)
            | Event::Deleted => {}
        }
        None
    }

    fn say(&mut self, text: &str) {
        if std::mem::take(&mut self.is_new_step) && !self.text.is_empty() {
            self.text.push_str(&escaped(STEP_JOINT));
        }
        self.text.push_str(&escaped(text));
    }

    /// Tells what is due at this time.
    pub(super) fn tell_due(&mut self, now: Timestamp, frames: &mut Vec<Frame>) {
        let Some(started) = self.started else { return };
        let last = self.last;
        if self.has_untold() {
            if last.is_none_or(|last| now >= last.after(COALESCE)) {
                self.flush(now, frames);
            }
        } else if now >= last.unwrap_or(started).after(SILENCE) {
            self.last = Some(now);
            let text = if self.protocol == Protocol::Four { r#","deltaText":"""# } else { "" };
            self.chat("delta", text, frames);
        }
    }

    fn forget_thoughts(&mut self) {
        self.thought = String::new();
        self.thought_at = 0;
    }

    /// Tells the thoughts and the text that are not told yet.
    fn flush(&mut self, now: Timestamp, frames: &mut Vec<Frame>) {
        if self.head.is_none() || !self.has_untold() {
            return;
        }
        self.last = Some(now);
        if self.thought_at < self.thought.len() {
            let new = &self.thought[self.thought_at..];
            let data = format!(r#"{{"text":"{}","delta":"{new}"}}"#, self.thought);
            self.thought_at = self.thought.len();
            self.agent("thinking", &data, now, frames);
        }
        // What replaces nothing yet waits for the first word of the new step.
        if self.told_at >= self.text.len() {
            return;
        }
        let replaced = std::mem::take(&mut self.is_replaced);
        let new = &self.text[self.told_at..];
        let marker = if replaced { escaped(RESTARTED) } else { "".into() };
        let data = format!(r#"{{"text":"{}","delta":"{marker}{new}"}}"#, self.text);
        let four = match (self.protocol, replaced) {
            (Protocol::Three, _) => String::new(),
            (Protocol::Four, false) => format!(r#","deltaText":"{new}""#),
            (Protocol::Four, true) => format!(r#","deltaText":"{}","replace":true"#, self.text),
        };
        let message = format!(
            r#"{four},"message":{{"role":"assistant","content":[{{"type":"text","text":"{}"}}],"delta":"{marker}{new}","timestamp":{}}}"#,
            self.text,
            now.as_millis()
        );
        self.told_at = self.text.len();
        self.agent("assistant", &data, now, frames);
        self.chat("delta", &message, frames);
    }

    /// The run's end; `id` is what its answer is called in the history.
    fn end(
        &mut self,
        outcome: &Outcome,
        usage: Usage,
        id: Option<&str>,
        now: Timestamp,
        frames: &mut Vec<Frame>,
    ) -> End {
        self.flush(now, frames);
        let text = trimmed(&self.text).to_owned();
        let message = if text.is_empty() {
            String::new()
        } else {
            // Newer clients put what they read of a history in the place of what they were told, and
            // would show twice what they can't match.
            let identity = match (self.protocol, id) {
                (Protocol::Four, Some(id)) => {
                    format!(r#","__openclaw":{{"id":{},"runId":{}}}"#, to_json(id), to_json(&self.run))
                }
                _ => String::new(),
            };
            format!(
                r#","message":{{"role":"assistant","content":[{{"type":"text","text":"{text}"}}],"timestamp":{}{identity}}}"#,
                now.as_millis()
            )
        };
        match outcome {
            Outcome::Completed => {
                let started = self.started.unwrap_or(now).as_millis();
                let data =
                    format!(r#"{{"phase":"end","startedAt":{started},"endedAt":{}}}"#, now.as_millis());
                self.agent("lifecycle", &data, now, frames);
                let rest = format!(r#","stopReason":"stop"{message},"usage":{}"#, usage_of(usage));
                self.chat("final", &rest, frames);
            }
            Outcome::Aborted => {
                let message = if self.protocol == Protocol::Four { &*message } else { "" };
                self.chat("aborted", &format!(r#","stopReason":"rpc"{message}"#), frames);
            }
            Outcome::Failed(error) => {
                let data = json!({ "phase": "error", "error": error.message, "endedAt": now.as_millis() });
                self.agent("lifecycle", &data.to_string(), now, frames);
                self.chat("error", &format!(r#","errorMessage":{}"#, to_json(&error.message)), frames);
            }
        }
        End { outcome: outcome.clone(), at: now, usage, text }
    }

    fn chat(&self, state: &str, rest: &str, frames: &mut Vec<Frame>) {
        if let Some(head) = &self.head {
            let seq = self.seq;
            frames.push(Frame::Chat(format!(r#"{{{head},"seq":{seq},"state":"{state}"{rest}}}"#)));
        }
    }

    fn agent(&mut self, stream: &str, data: &str, now: Timestamp, frames: &mut Vec<Frame>) {
        if let Some(head) = &self.head {
            self.agent_seq += 1;
            let (seq, ts) = (self.agent_seq, now.as_millis());
            frames.push(Frame::Agent(format!(
                r#"{{{head},"stream":"{stream}","data":{data},"seq":{seq},"ts":{ts}}}"#
            )));
        }
    }
}

/// The payload of a `chat` event that ends a run which the log knows nothing of.
pub(super) fn failed(run: &str, key: &str, error: &Error) -> String {
    let (run, key, error) = (to_json(run), to_json(key), to_json(&error.message));
    format!(r#"{{"runId":{run},"sessionKey":{key},"seq":0,"state":"error","errorMessage":{error}}}"#)
}

/// The payload of a `chat` event that ends a run whose answer the client knows from the history.
pub(super) fn ended(run: &str, key: &str, seq: Seq) -> String {
    let (run, key) = (to_json(run), to_json(key));
    format!(r#"{{"runId":{run},"sessionKey":{key},"seq":{seq},"state":"final","stopReason":"stop"}}"#)
}

/// The payload of a `chat` event with an answer of the daemon itself: one that the history has under
/// the name of its run, or to a command, which it does not have.
pub(super) fn said(run: &str, key: &str, seq: u64, text: &str, now: Timestamp, is_command: bool) -> String {
    let mut message = json!({
        "role": "assistant",
        "content": [{ "type": "text", "text": text }],
        "timestamp": now.as_millis(),
    });
    if is_command {
        message["command"] = true.into();
    } else {
        message["__openclaw"] = json!({ "id": run });
    }
    json!({
        "runId": run,
        "sessionKey": key,
        "seq": seq,
        "state": "final",
        "stopReason": "injected",
        "message": message,
        "usage": usage_of(Usage::default()),
    })
    .to_string()
}

/// Tokens in the protocol's words; as integers that fit 32 bits.
pub(super) fn usage_of(usage: Usage) -> Value {
    let fit = |tokens: u64| tokens.min(i32::MAX as u64);
    json!({
        "input": fit(usage.input_tokens),
        "output": fit(usage.output_tokens),
        "totalTokens": fit(usage.total()),
    })
}

/// Without white space at either end, of text that is the inside of a JSON string.
fn trimmed(text: &str) -> &str {
    let mut text = text;
    loop {
        let before = text;
        text = text.trim_matches(' ');
        for white in ["\\n", "\\r", "\\t"] {
            text = text.strip_prefix(white).unwrap_or(text);
            // An escaped backslash before it is no white space.
            if let Some(rest) = text.strip_suffix(white)
                && rest.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0
            {
                text = rest;
            }
        }
        if text == before {
            return text;
        }
    }
}

/// The name of a run on the wire: the idempotency key it was asked with, else its id.
pub(super) fn wire_run<'a>(run: &'a RunId, idempotency_key: Option<&'a str>) -> &'a str {
    idempotency_key.unwrap_or(run.as_str())
}
