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
//!
//! A run comes from one feed at a time: a session that is followed, or the run by itself, which comes
//! whole, from its prompt on. Where it goes over to another feed, that may begin before what was taken
//! and cut its pieces elsewhere; so what was said is gone over again ([`RunStream::again`]) and put in the
//! place of what there is as soon as the new feed says something new. Up to where it was told stays.

use std::time::Duration;

use serde_json::{Value, json};

use super::wire::{Protocol, escaped};
use crate::conversation::approval::ApprovalRequest;
use crate::conversation::event::{Cause, Event, Incomplete, Logged, Outcome};
use crate::conversation::reply::UnderWay;
use crate::conversation::transcript::{Entry, STEP_JOINT};
use crate::dialect::json::json as to_json;
use crate::error::Error;
use crate::ids::{RunId, Seq, Ticket};
use crate::provider::usage::Usage;
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
pub(super) struct RunStream {
    protocol: Protocol,
    /// Its name on the wire, and the key of its session, both as members of an object. None where the
    /// run is only waited for.
    head: Option<String>,
    key: Option<String>,
    run: String,
    /// Whether that is how its prompt names it, rather than its id.
    is_named: bool,
    /// The ticket under which it comes.
    feed: Ticket,
    /// Whether it comes by itself, whole.
    is_whole: bool,
    said: Said,
    /// Up to where its text was told.
    told_at: usize,
    /// What was told is void from somewhere on.
    is_replaced: bool,
    /// Up to where its thoughts were told.
    thought_at: usize,
    /// The last number that was taken.
    seq: Seq,
    /// What its feed said of what was taken from another one before.
    again: Option<Said>,
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

/// What a run said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    /// All its text, as the inside of a JSON string.
    text: String,
    /// Where in it the step under way begins.
    step_at: usize,
    /// Whether the next piece of text is the first of its step.
    is_new_step: bool,
    /// What was thought in this step, as the inside of a JSON string.
    thought: String,
}

impl Said {
    /// Up to a place in the midst of a step.
    fn up_to(under_way: &UnderWay) -> Self {
        let text = escaped(&under_way.text).into_owned();
        let step_at = escaped(&under_way.text[..under_way.step_at]).len();
        Self { is_new_step: step_at == text.len(), text, step_at, thought: String::new() }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Text(text) => {
                if std::mem::take(&mut self.is_new_step) && !self.text.is_empty() {
                    self.text.push_str(&escaped(STEP_JOINT));
                }
                self.text.push_str(&escaped(text));
            }
            Event::Thought(thought) => self.thought.push_str(&escaped(thought)),
            Event::StepEnded { .. } => {
                self.step_at = self.text.len();
                self.begin_step();
            }
            Event::Restarted => {
                self.text.truncate(self.step_at);
                self.begin_step();
            }
            _ => {}
        }
    }

    fn begin_step(&mut self) {
        self.is_new_step = true;
        self.thought = String::new();
    }
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

impl RunStream {
    /// The run of this name, which comes under the ticket `feed`, in the session that the client calls
    /// `key`; without one nothing is told.
    pub(super) fn new(protocol: Protocol, run: &str, key: Option<&str>, feed: Ticket) -> Self {
        let mut told = Self {
            protocol,
            head: None,
            key: None,
            run: run.to_owned(),
            is_named: true,
            feed,
            is_whole: false,
            said: Said::default(),
            told_at: 0,
            is_replaced: false,
            thought_at: 0,
            seq: Seq::default(),
            again: None,
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

    /// The same of a run of which nothing is known but its id: its prompt says how it is called.
    pub(super) fn nameless(mut self) -> Self {
        self.is_named = false;
        self
    }

    /// A run that is under way already, and whether the client knows what it said so far.
    pub(super) fn resumed(mut self, under_way: &UnderWay, is_known: bool) -> Self {
        self.said = Said::up_to(under_way);
        self.told_at = if is_known { self.said.text.len() } else { 0 };
        self.seq = under_way.seq;
        self.started = Some(under_way.started);
        self
    }

    /// Whether it comes under this ticket.
    pub(super) fn comes_under(&self, ticket: Ticket) -> bool {
        self.feed == ticket
    }

    /// Whether it comes by itself, whole.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// From here on it comes whole under this ticket. Where it does so already, that stays.
    pub(super) fn comes_whole(&mut self, feed: Ticket) {
        if !std::mem::replace(&mut self.is_whole, true) {
            self.comes_anew(feed, None);
        }
    }

    /// From here on it comes under this ticket, from its beginning on or from what is known of it.
    pub(super) fn comes_anew(&mut self, feed: Ticket, known: Option<&UnderWay>) {
        self.feed = feed;
        self.again = None;
        if let Some(known) = known {
            self.call(wire_run(&known.run, known.idempotency_key.as_deref()));
        }
        let from = known.map_or(Seq::default(), |known| known.seq);
        let said = known.map(Said::up_to).unwrap_or_default();
        if from < self.seq {
            self.again = Some(said);
        } else if from > self.seq {
            self.seq = from;
            self.started = self.started.or(known.map(|known| known.started));
            self.put(said);
            // What is known later and says less has restarted since.
            self.is_void_from(self.said.text.len());
        }
    }

    /// What was told from here on is void.
    fn is_void_from(&mut self, at: usize) {
        self.is_replaced |= self.told_at > at;
        self.told_at = self.told_at.min(at);
    }

    /// The client knows what it said so far: it was told nothing else of it, or that stays.
    pub(super) fn is_known(&mut self, known: &UnderWay) {
        self.call(wire_run(&known.run, known.idempotency_key.as_deref()));
        // Of what a restart made void it knows too, and that is yet to be replaced.
        if self.told_at > 0 || self.is_replaced {
            return;
        }
        let said = Said::up_to(known);
        self.told_at = said.text.len();
        if known.seq > self.seq {
            // Its feed is yet to come there.
            let before = std::mem::replace(&mut self.said, said);
            self.again.get_or_insert(before);
            self.seq = known.seq;
            self.started = self.started.or(Some(known.started));
        }
    }

    /// Puts what another feed says was said in the place of what there is: the same, a part of it (the
    /// rest follows at once), or more.
    fn put(&mut self, said: Said) {
        let before = std::mem::replace(&mut self.said, said);
        let fits = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
        if !fits(&self.said.text, &before.text) {
            // Never so, unless the log lost something.
            let same = self.said.text.bytes().zip(before.text.bytes()).take_while(|(a, b)| a == b).count();
            self.is_void_from(self.said.text.floor_char_boundary(same));
        }
        if !fits(&self.said.thought, &before.thought) {
            self.thought_at = 0;
        }
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
            self.key = Some(key.to_owned());
            self.write_head();
        }
    }

    /// How it is called, where that was not known.
    pub(super) fn call(&mut self, run: &str) {
        if !std::mem::replace(&mut self.is_named, true) && self.run != run {
            self.run = run.to_owned();
            self.write_head();
        }
    }

    fn write_head(&mut self) {
        let run = to_json(&self.run);
        self.head = self.key.as_ref().map(|key| format!(r#""runId":{run},"sessionKey":{}"#, to_json(key)));
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
        self.told_at < self.said.text.len() || self.thought_at < self.said.thought.len()
    }

    /// Whether this was not taken yet.
    pub(super) fn is_news(&self, logged: &Logged) -> bool {
        logged.seq > self.seq
    }

    /// Takes what happened; gives the end, if it is that. What was taken before is nothing.
    pub(super) fn take(&mut self, logged: &Logged, frames: &mut Vec<Frame>) -> Option<End> {
        if !self.is_news(logged) {
            if let Some(again) = &mut self.again {
                again.take(&logged.event);
            }
            return None;
        }
        if let Some(again) = self.again.take() {
            self.put(again);
        }
        self.seq = logged.seq;
        let now = logged.at;
        match &logged.event {
            Event::Started => {
                self.started = Some(now);
                let data = format!(r#"{{"phase":"start","startedAt":{}}}"#, now.as_millis());
                self.agent("lifecycle", &data, now, frames);
            }
            Event::Text(_) | Event::Thought(_) => self.said.take(&logged.event),
            // One that waits for approval looks like one that takes long.
            Event::ToolCalled(call) | Event::ApprovalAsked(ApprovalRequest { call, .. }) => {
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
                self.said.take(&logged.event);
                self.thought_at = 0;
            }
            Event::Noticed(notice) => {
                let data = json!({ "phase": notice.kind.name(), "message": notice.message });
                self.agent("lifecycle", &data.to_string(), now, frames);
            }
            Event::Restarted => {
                self.is_void_from(self.said.step_at);
                self.said.take(&logged.event);
                self.thought_at = 0;
            }
            Event::Ended { outcome, usage } => {
                let id = logged.run.as_ref().map(Entry::answer_id);
                return Some(self.end(outcome, *usage, id.as_deref(), now, frames));
            }
            Event::Prompted { idempotency_key, .. } => {
                if let Some(run) = &logged.run {
                    self.call(wire_run(run, idempotency_key.as_deref()));
                }
            }
            Event::Sealed(_)
            | Event::Recalled { .. }
            | Event::ApprovalDecided(_)
            // Not of a run.
            | Event::Injected { .. }
            | Event::Cleared(_)
            | Event::Compacted(_)
            | Event::Configured(_)
            | Event::Deleted => {}
        }
        None
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

    /// Tells the thoughts and the text that are not told yet.
    fn flush(&mut self, now: Timestamp, frames: &mut Vec<Frame>) {
        if self.head.is_none() || !self.has_untold() {
            return;
        }
        self.last = Some(now);
        let Said { text, thought, .. } = &self.said;
        let (all, thoughts) = (text.len(), thought.len());
        if let Some(new) = thought.get(self.thought_at..).filter(|new| !new.is_empty()) {
            let data = format!(r#"{{"text":"{thought}","delta":"{new}"}}"#);
            self.thought_at = thoughts;
            self.agent("thinking", &data, now, frames);
        }
        // What replaces nothing yet waits for the first word of the new step.
        let text = &self.said.text;
        let Some(new) = text.get(self.told_at..).filter(|new| !new.is_empty()) else { return };
        let replaced = std::mem::take(&mut self.is_replaced);
        let marker = if replaced { escaped(RESTARTED) } else { "".into() };
        let data = format!(r#"{{"text":"{text}","delta":"{marker}{new}"}}"#);
        let four = match (self.protocol, replaced) {
            (Protocol::Three, _) => String::new(),
            (Protocol::Four, false) => format!(r#","deltaText":"{new}""#),
            (Protocol::Four, true) => format!(r#","deltaText":"{text}","replace":true"#),
        };
        let message = format!(
            r#"{four},"message":{{"role":"assistant","content":[{{"type":"text","text":"{text}"}}],"delta":"{marker}{new}","timestamp":{}}}"#,
            now.as_millis()
        );
        self.told_at = all;
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
        let text = trimmed(&self.said.text).to_owned();
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
            Outcome::Completed | Outcome::Incomplete(_) => {
                let stop = match outcome {
                    Outcome::Incomplete(why) => incomplete(*why),
                    _ => "stop",
                };
                let started = self.started.unwrap_or(now).as_millis();
                let data =
                    format!(r#"{{"phase":"end","startedAt":{started},"endedAt":{}}}"#, now.as_millis());
                self.agent("lifecycle", &data, now, frames);
                let rest = format!(r#","stopReason":"{stop}"{message},"usage":{}"#, usage_of(usage));
                self.chat("final", &rest, frames);
            }
            Outcome::Aborted(cause) => {
                let message = if self.protocol == Protocol::Four { &*message } else { "" };
                let reason = stop_reason(*cause);
                self.chat("aborted", &format!(r#","stopReason":"{reason}"{message}"#), frames);
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

/// What a run that was aborted is said to have stopped for.
pub(super) fn stop_reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Asked => "rpc",
        Cause::Stopped => "stop",
        Cause::TimedOut => "timeout",
    }
}

/// Why an answer is not complete, as OpenClaw's own agent says it of its models.
pub(super) const fn incomplete(why: Incomplete) -> &'static str {
    match why {
        Incomplete::Length => "length",
        Incomplete::Refusal => "refusal",
        Incomplete::ContentFilter => "content_filter",
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

/// Tokens in the protocol's words, whose input is what has nothing to do with a cache; as integers that fit
/// 32 bits.
pub(super) fn usage_of(usage: Usage) -> Value {
    let fit = |tokens: u64| tokens.min(i32::MAX as u64);
    json!({
        "input": fit(usage.fresh_input()),
        "output": fit(usage.output_tokens),
        "cacheRead": fit(usage.cache_read_tokens),
        "cacheWrite": fit(usage.cache_write_tokens),
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
