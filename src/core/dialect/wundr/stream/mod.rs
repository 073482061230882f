//! What happens in a session, in this protocol's words.
//!
//! | in the log | told |
//! |---|---|
//! | the session's first event | `session.created` |
//! | `Started` | `session.status` busy, `stream.start` |
//! | `Restarted` | `stream.start` again, with `metadata.restarted`: what was told of the step is void |
//! | `Text`, `Thought` | `stream.chunk` text, thinking |
//! | `ToolCalled` | `stream.chunk` tool_use, `tool.status` started, then running: it is in the log, and made |
//! | `ApprovalAsked`, `ApprovalDecided` | see [`super::tools`]; `session.status` paused, and running once no call waits |
//! | `ToolReturned` | `stream.chunk` error where it failed; `tool.status`, `tool.result` |
//! | `Ended` | `stream.end`, or `stream.error` where the run failed; then `session.status` idle |
//! | `Injected` | `stream.start`, `stream.chunk`, `stream.end` of a prompt of its own |
//! | `Configured` that closes it, `Deleted` | `session.stopped`, `session.status` terminated |
//! | a new conversation | `session.status` |
//!
//! Who cancels a prompt is told its `stream.end` with the `stopReason` `cancelled`: it is over as it
//! was meant to be, and nothing is wrong. Chunks of the type `code` are never told: a fence of the
//! model's text may be cut anywhere, and text is told as it comes.
//!
//! The text of a prompt that was submitted with `stream: false` is told to the connection that submitted it
//! as one `stream.chunk` before its end, that of all steps together, and its thoughts not at all; of what
//! is longer than [`WHOLE_BYTES_MAX`] it is told as soon as there is so much. A subscription that begins
//! within a prompt begins with `stream.start`, all text so far, and `tool.status` running of each call that
//! is being made ([`StreamState::begin`]).
//!
//! Every payload has the number of its event in the session's log, `sessionSeq`: who has the last of
//! them goes on from there with `session.resume`. The end of a run takes several numbers, and its two
//! events have one each.
//!
//! What is the same for everybody is written once for all connections ([`Published::wire`]). What is
//! not: the `index` of a chunk, which counts what one subscriber was told of a prompt, and what a tool
//! answered, which says the name of the tool and how long it took, as far as the call was seen.

mod calls;

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Value, json};

use self::calls::Calls;
use super::SLOT;
use super::sessions::{ACTIVITY, BUSY, IDLE, LAST_PROMPT, RUNNING, TERMINATED};
use super::shape::{COUNT, Field, NAME, SAID, Shape, TEXT, optional, required};
use super::tools::TOOL_REQUEST;
use super::wire::{self, Failure};
use crate::conversation::event::{Event, Forgotten, Incomplete, Logged, Outcome, Published};
use crate::conversation::reply::UnderWay;
use crate::conversation::transcript::STEP_JOINT;
use crate::dialect::json::{json as to_json, put};
use crate::ids::{ApprovalId, CallId, RunId, Seq};
use crate::prompt::settings::Settings;
use crate::time::Timestamp;
use crate::tools::call::ToolCall;

/// The events that sessions are told in. Their places here are how they are kept in what is written
/// once for all.
pub(super) const SESSION_EVENTS: &[&str] = &[
    STREAM_START,
    STREAM_CHUNK,
    STREAM_PROGRESS,
    STREAM_END,
    STREAM_ERROR,
    SESSION_CREATED,
    SESSION_STATUS,
    SESSION_STOPPED,
    TOOL_STATUS,
    TOOL_RESULT,
    TOOL_REQUEST,
];

const STREAM_START: &str = "stream.start";
const STREAM_CHUNK: &str = "stream.chunk";
const STREAM_PROGRESS: &str = "stream.progress";
const STREAM_END: &str = "stream.end";
const STREAM_ERROR: &str = "stream.error";
const SESSION_CREATED: &str = "session.created";
const SESSION_STATUS: &str = "session.status";
const SESSION_STOPPED: &str = "session.stopped";
const TOOL_STATUS: &str = "tool.status";
const TOOL_RESULT: &str = "tool.result";

/// How much text is held for prompts that are told in one piece, in bytes, on one road.
const WHOLE_BYTES_MAX: usize = 256 * 1024;

/// The largest piece that the text so far is told in, in bytes.
const PIECE_BYTES_MAX: usize = 64 * 1024;

const SESSION_SEQ: Field =
    required("sessionSeq", COUNT, "its number in the session's log, for session.resume");
const SESSION: Field = required("sessionId", NAME, "the session");
const PROMPT: Field = required("promptId", NAME, "the prompt");

/// The payload of `stream.start`.
pub(super) const START: &[Field] = &[
    SESSION,
    PROMPT,
    SESSION_SEQ,
    optional(
        "metadata",
        Shape::Object(&[
            optional(
                "restarted",
                Shape::Flag,
                "the answer was cut off, as by a restart of the daemon: what was told of it since the last tool result is void",
            ),
            optional(
                "resumed",
                Shape::Flag,
                "the subscription begins within the prompt: all text so far follows, and what was told of it \
                 before is void",
            ),
        ]),
        "why it starts again",
    ),
];

/// The payload of `stream.chunk`.
pub(super) const CHUNK: &[Field] = &[
    SESSION,
    PROMPT,
    required(
        "chunkType",
        Shape::OneOf(&["text", "thinking", "tool_use", "code", "error"]),
        "what it is a piece of; code is never sent",
    ),
    required(
        "content",
        TEXT,
        "the piece; of tool_use: id, name and input as JSON; of error: what a tool failed with",
    ),
    required("index", COUNT, "counts the chunks of the prompt that this subscription was told, from 0"),
    SESSION_SEQ,
];

/// Why a prompt's answer ended: `max_tokens`, `refusal` and `content_filter` leave it incomplete.
const STOP_REASONS: &[&str] = &["completed", "cancelled", "max_tokens", "refusal", "content_filter"];

/// The payload of `stream.progress`.
pub(super) const PROGRESS: &[Field] = &[
    SESSION,
    PROMPT,
    required("streamId", NAME, "the prompt"),
    required("requestId", NAME, "the prompt"),
    required("index", COUNT, "its number in the session"),
    required("message", TEXT, "what happened, for people"),
    required(
        "data",
        Shape::Object(&[required(
            "kind",
            Shape::OneOf(&[
                "waiting",
                "retrying",
                "fallback",
                "incomplete",
                "reduced",
                "compacted",
                "budget",
            ]),
            "a model is asked again; the next one is asked; the answer is cut; less was sent",
        )]),
        "what it is about",
    ),
    SESSION_SEQ,
];

/// The payload of `stream.end`.
pub(super) const END: &[Field] = &[
    SESSION,
    PROMPT,
    required(
        "usage",
        Shape::Object(&[
            required("inputTokens", COUNT, "tokens read by the model"),
            required("outputTokens", COUNT, "tokens written by it"),
        ]),
        "what the prompt cost",
    ),
    required(
        "metadata",
        Shape::Object(&[required("stopReason", Shape::OneOf(STOP_REASONS), "why it ended")]),
        "how it ended",
    ),
    SESSION_SEQ,
];

/// The payload of `stream.error`.
pub(super) const ERROR: &[Field] =
    &[SESSION, PROMPT, required("error", wire::ERROR, "why it failed"), SESSION_SEQ];

/// The payload of `tool.status`.
pub(super) const STATUS_OF_TOOL: &[Field] = &[
    SESSION,
    PROMPT,
    required("requestId", NAME, "the call"),
    required("toolName", NAME, "the tool"),
    required(
        "status",
        Shape::OneOf(&["started", "running", "completed", "failed"]),
        "started = it is in the log, running = it is being made",
    ),
    optional("progress", Shape::Number(0.0, 1.0), "how much of it is done"),
    optional("message", TEXT, "for people"),
    SESSION_SEQ,
];

/// The payload of `tool.result`.
pub(super) const RESULT_OF_TOOL: &[Field] = &[
    SESSION,
    PROMPT,
    required("requestId", NAME, "the call"),
    required("toolName", NAME, "the tool; `unknown` where its call was before what was resumed"),
    required("status", Shape::OneOf(&["completed", "failed", "denied", "timeout"]), "what became of it"),
    optional("result", Shape::Any, "what the model is told"),
    optional("error", TEXT, "why it failed"),
    optional("truncated", Shape::Flag, "whether that is only the beginning"),
    optional("durationMs", COUNT, "how long it took"),
    SESSION_SEQ,
];

/// The payload of `session.created`.
pub(super) const CREATED: &[Field] = &[
    required("id", NAME, "the session"),
    SESSION,
    required("sessionType", NAME, "the kind of session"),
    required("orchestratorId", NAME, "who leads it"),
    required("status", NAME, "how it is"),
    required("startedAt", Shape::Time, "when it was made"),
    optional("task", Shape::AnyObject, "what it was made for"),
    SESSION_SEQ,
];

/// The payload of `session.status`.
pub(super) const STATUS: &[Field] = &[
    required("id", NAME, "the session"),
    SESSION,
    required("status", Shape::OneOf(super::sessions::STATES), "running = it takes prompts"),
    optional("metadata", Shape::Object(&[ACTIVITY, LAST_PROMPT]), "what goes on in it"),
    SESSION_SEQ,
];

/// The payload of `session.stopped`.
pub(super) const STOPPED: &[Field] =
    &[required("id", NAME, "the session"), SESSION, optional("reason", SAID, "why"), SESSION_SEQ];

/// The words for one event of a session: names of events and their payloads, in order.
type Words = Vec<(&'static str, Value)>;

/// What is the same for everybody of one event: the session's UUID, and the words.
pub(super) struct Shared<'a> {
    text: &'a str,
}

impl<'a> Shared<'a> {
    /// Of an event; written by the first who asks.
    pub(super) fn of(event: &'a Published) -> Self {
        let bytes = event.wire(SLOT, |event| Bytes::from(write(event)));
        // It was written as text.
        Self { text: std::str::from_utf8(bytes).unwrap_or_default() }
    }

    /// The UUID of the session.
    pub(super) fn session_id(&self) -> &'a str {
        self.text.lines().next().unwrap_or_default()
    }

    /// The name and the payload of each event, in order.
    pub(super) fn words(&self) -> impl Iterator<Item = (&'static str, &'a str)> + use<'a> {
        self.text.lines().skip(1).filter_map(|line| {
            let name = SESSION_EVENTS.get(usize::from(line.bytes().next()?.wrapping_sub(b'a')))?;
            Some((*name, line.get(1..)?))
        })
    }
}

/// A line with the session's UUID, and one for each payload, with its name in a letter before it.
fn write(event: &Published) -> String {
    let session = event.session.uuid();
    let Logged { seq, run, event: what, .. } = &event.logged;
    let mut text = format!("{session}\n");
    // What comes for every token is put together by hand.
    let piece = match what {
        Event::Text(piece) => Some(("text", piece)),
        Event::Thought(piece) => Some(("thinking", piece)),
        _ => None,
    };
    if let (Some((kind, piece)), Some(run)) = (piece, run) {
        let (run, piece) = (to_json(run.as_str()), to_json(piece));
        let payload = format!(
            r#"{{"sessionId":"{session}","promptId":{run},"chunkType":"{kind}","content":{piece},"sessionSeq":{seq}}}"#
        );
        push(&mut text, STREAM_CHUNK, &payload);
        return text;
    }
    for (name, payload) in shared(&session, event) {
        push(&mut text, name, &payload.to_string());
    }
    text
}

fn push(text: &mut String, name: &str, payload: &str) {
    let place = SESSION_EVENTS.iter().position(|other| *other == name).unwrap_or_default();
    // There are fewer than letters, and JSON has no line ends.
    text.push(char::from(b'a' + u8::try_from(place).unwrap_or_default()));
    text.push_str(payload);
    text.push('\n');
}

/// What everybody is told of an event.
fn shared(session: &str, published: &Published) -> Words {
    let Logged { first_seq, seq, run, at, event } = &published.logged;
    let prompt = run.as_ref().map_or("", RunId::as_str);
    let status = |status: &str, activity: Option<&str>, last_prompt: Option<&str>| {
        session_status(session, status, (activity, last_prompt), *seq)
    };
    let stream = |name: &'static str, more: Value, seq: Seq| {
        let mut payload = json!({ "sessionId": session, "promptId": prompt, "sessionSeq": seq.0 });
        if let (Value::Object(payload), Value::Object(more)) = (&mut payload, more) {
            payload.extend(more);
        }
        (name, payload)
    };
    let mut words = Words::new();
    if *first_seq == Seq(1) && *event != Event::Deleted {
        let settings = match event {
            Event::Configured(settings) => Some(&**settings),
            _ => None,
        };
        words.push((SESSION_CREATED, created(session, published, settings, *seq, *at)));
    }
    match event {
        Event::Started => {
            words.push(status(RUNNING, Some(BUSY), None));
            words.push(stream(STREAM_START, json!({}), *seq));
        }
        Event::Noticed(notice) => {
            let data = json!({ "kind": notice.kind.name() });
            let mut more = json!({ "data": data, "message": notice.message, "index": seq.0 });
            (more["streamId"], more["requestId"]) = (json!(prompt), json!(prompt));
            words.push(stream(STREAM_PROGRESS, more, *seq));
        }
        Event::Restarted => {
            words.push(stream(STREAM_START, json!({ "metadata": { "restarted": true } }), *seq));
        }
        Event::Ended { outcome, usage } => {
            let first = Seq(seq.0 - 1).max(*first_seq);
            let ended = |reason: &str| {
                let usage = json!({ "inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens });
                let more = json!({ "usage": usage, "metadata": { "stopReason": reason } });
                stream(STREAM_END, more, first)
            };
            words.push(match outcome {
                Outcome::Completed => ended("completed"),
                Outcome::Incomplete(why) => ended(stop_reason(*why)),
                Outcome::Aborted(_) => ended("cancelled"),
                Outcome::Failed(error) => {
                    stream(STREAM_ERROR, json!({ "error": Failure::of(error).to_value() }), first)
                }
            });
            let became = match outcome {
                Outcome::Completed | Outcome::Incomplete(_) => "completed",
                Outcome::Aborted(_) => "cancelled",
                Outcome::Failed(_) => "failed",
            };
            words.push(status(RUNNING, Some(IDLE), Some(became)));
        }
        Event::Injected { content } => {
            words.push(stream(STREAM_START, json!({}), *seq));
            words.push(stream(STREAM_CHUNK, json!({ "chunkType": "text", "content": content }), *seq));
            let usage = json!({ "inputTokens": 0, "outputTokens": 0 });
            let more = json!({ "usage": usage, "metadata": { "stopReason": "completed" } });
            words.push(stream(STREAM_END, more, *seq));
        }
        Event::Cleared(Forgotten::Conversation) => words.push(status(RUNNING, Some(IDLE), None)),
        Event::Configured(settings) => {
            if let Some(reason) = &settings.closed {
                words.push((SESSION_STOPPED, stopped(session, reason, *seq)));
                words.push(status(TERMINATED, None, None));
            }
        }
        Event::Deleted => {
            words.push((SESSION_STOPPED, stopped(session, "deleted", *seq)));
            words.push(status(TERMINATED, None, None));
        }
        // By hand, or by `StreamState` for each, or nobody's business.
        Event::Text(_)
        | Event::Thought(_)
        | Event::ToolCalled(_)
        | Event::ApprovalAsked(_)
        | Event::ApprovalDecided(_)
        | Event::ToolReturned(_)
        | Event::Prompted { .. }
        | Event::Sealed(_)
        | Event::Recalled { .. }
        | Event::Compacted(_)
        | Event::StepEnded { .. }
        | Event::Cleared(Forgotten::Past | Forgotten::UpTo(_)) => {}
    }
    words
}

/// Why an answer is not complete, as the models that Wundr runs say it.
const fn stop_reason(why: Incomplete) -> &'static str {
    match why {
        Incomplete::Length => "max_tokens",
        Incomplete::Refusal | Incomplete::ContentFilter => why.name(),
    }
}

fn session_status(
    session: &str,
    status: &str,
    (activity, last_prompt): (Option<&str>, Option<&str>),
    seq: Seq,
) -> (&'static str, Value) {
    let mut payload = json!({ "id": session, "sessionId": session, "status": status, "sessionSeq": seq.0 });
    for (name, word) in [("activity", activity), ("lastPrompt", last_prompt)] {
        if let Some(word) = word {
            payload["metadata"][name] = word.into();
        }
    }
    (SESSION_STATUS, payload)
}

fn created(session: &str, event: &Published, settings: Option<&Settings>, seq: Seq, at: Timestamp) -> Value {
    let mut payload = super::sessions::about(&event.session, settings.unwrap_or(&Settings::default()));
    payload["id"] = session.into();
    payload["sessionId"] = session.into();
    payload["status"] = RUNNING.into();
    payload["startedAt"] = at.to_rfc3339().into();
    payload["sessionSeq"] = seq.0.into();
    payload
}

fn stopped(session: &str, reason: &str, seq: Seq) -> Value {
    let mut payload = json!({ "id": session, "sessionId": session, "sessionSeq": seq.0 });
    put(&mut payload, "reason", Some(reason).filter(|reason| !reason.is_empty()));
    payload
}

/// What is not the same for all who are told of a session: what one road was told so far.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// How many chunks of prompts under way.
    chunks: HashMap<RunId, u64>,
    /// The calls under way.
    calls: Calls,
    /// The text so far of prompts that are told in one piece.
    whole: HashMap<RunId, Held>,
}

/// The text of a prompt that is told in one piece.
#[derive(Debug, Default)]
struct Held {
    text: String,
    /// Where the step under way begins in it.
    step_at: usize,
}

impl StreamState {
    /// The words for an event, as this road is told them. Nothing of it up to the number `after`.
    /// `is_whole`: the text of its prompt is told in one piece.
    pub(super) fn tell(
        &mut self,
        event: &Published,
        after: Seq,
        is_whole: bool,
    ) -> Vec<(&'static str, String)> {
        let shared = Shared::of(event);
        let logged = &event.logged;
        let mut words = Vec::new();
        if let (Some(run), true) = (&logged.run, is_whole)
            && let Some((text, seq)) = self.held(run, logged)
        {
            let payload = chunk(shared.session_id(), run, "text", &text, seq).to_string();
            words.push((STREAM_CHUNK, self.numbered(run, &payload)));
        }
        // Those of an end have a number each; of what else was cut off somewhere, all is told.
        let is_known = |seq: Seq| matches!(logged.event, Event::Ended { .. }) && seq <= after;
        for (name, payload) in shared.words() {
            match (name, &logged.run) {
                (STREAM_CHUNK, Some(_)) if is_whole && logged.event.streamed().is_some() => {}
                (STREAM_CHUNK, Some(run)) => words.push((name, self.numbered(run, payload))),
                (STREAM_END | STREAM_ERROR, _) if is_known(Seq(logged.seq.0 - 1)) => {}
                _ => words.push((name, payload.to_owned())),
            }
        }
        let Some(run) = &logged.run else { return words };
        for (name, payload) in self.calls.tell(shared.session_id(), run, event) {
            let payload = payload.to_string();
            let payload = if name == STREAM_CHUNK { self.numbered(run, &payload) } else { payload };
            words.push((name, payload));
        }
        if matches!(logged.event, Event::Ended { .. } | Event::Injected { .. }) {
            self.chunks.remove(run);
            self.calls.forget(run);
        }
        words
    }

    /// The words for a run within which a subscription begins: that it starts, its text so far, and the
    /// calls that are being made.
    pub(super) fn begin(&mut self, session: &str, under_way: &UnderWay) -> Vec<(&'static str, String)> {
        let UnderWay { run, text, step_at, seq, is_anew, calls, .. } = under_way;
        let mut start = json!({ "sessionId": session, "promptId": run.as_str(), "sessionSeq": seq.0 });
        start["metadata"]["resumed"] = true.into();
        if *is_anew {
            start["metadata"]["restarted"] = true.into();
        }
        let mut words = vec![(STREAM_START, start.to_string())];
        // As it was told in chunks: nothing stands between the steps.
        let (before, step) = text.split_at_checked(*step_at).unwrap_or((text, ""));
        for mut rest in [before, step.strip_prefix(STEP_JOINT).unwrap_or(step)] {
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES_MAX));
                let payload = chunk(session, run, "text", piece, *seq).to_string();
                words.push((STREAM_CHUNK, self.numbered(run, &payload)));
                rest = more;
            }
        }
        for (call, name) in calls {
            self.calls.begins((run.clone(), call.clone()), name.to_string(), None);
            let running = status_of(session, run, call, name.as_str(), "running", *seq);
            words.push((TOOL_STATUS, running.to_string()));
        }
        words
    }

    /// Holds the text of a prompt that is told in one piece. Gives it with its number at the end, and where
    /// it is too much.
    fn held(&mut self, run: &RunId, logged: &Logged) -> Option<(String, Seq)> {
        let told = |held: Held, seq| Some((held.text, seq)).filter(|(text, _)| !text.is_empty());
        if let Event::Ended { .. } = logged.event {
            // Its first number, of which nothing else is told.
            let first = Seq(logged.seq.0.saturating_sub(2)).max(logged.first_seq);
            return told(self.whole.remove(run)?, first);
        }
        let held = self.whole.entry(run.clone()).or_default();
        match &logged.event {
            Event::Text(piece) => held.text.push_str(piece),
            Event::StepEnded { .. } => held.step_at = held.text.len(),
            Event::Restarted => held.text.truncate(held.step_at),
            _ => {}
        }
        let bytes: usize = self.whole.values().map(|held| held.text.len()).sum();
        if bytes <= WHOLE_BYTES_MAX {
            return None;
        }
        told(self.whole.remove(run)?, logged.seq)
    }

    /// The payload of a chunk with its index.
    fn numbered(&mut self, run: &RunId, payload: &str) -> String {
        // Most chunks are of a prompt that is known.
        let index = match self.chunks.get_mut(run) {
            Some(next) => {
                *next += 1;
                *next - 1
            }
            None => {
                self.chunks.insert(run.clone(), 1);
                0
            }
        };
        let open = payload.strip_suffix('}').unwrap_or(payload);
        format!(r#"{open},"index":{index}}}"#)
    }
}

fn chunk(session: &str, run: &RunId, kind: &str, content: &str, seq: Seq) -> Value {
    json!({
        "sessionId": session,
        "promptId": run.as_str(),
        "chunkType": kind,
        "content": content,
        "sessionSeq": seq.0,
    })
}

/// The chunk that says which tool the model asked for.
fn asked_for(session: &str, run: &RunId, call: &ToolCall, seq: Seq) -> Value {
    let content = json!({ "id": call.id.as_str(), "name": call.name.as_str(), "input": call.input });
    chunk(session, run, "tool_use", &content.to_string(), seq)
}

fn status_of(session: &str, run: &RunId, call: &CallId, name: &str, status: &str, seq: Seq) -> Value {
    json!({
        "sessionId": session,
        "promptId": run.as_str(),
        "requestId": ApprovalId::of(run, call).as_str(),
        "toolName": name,
        "status": status,
        "sessionSeq": seq.0,
    })
}
