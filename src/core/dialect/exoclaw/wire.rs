//! exoclaw's frames as they are on the wire: what a client says, read with tolerance, and what it
//! is told, written with care.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::conversation::approval::{self, ApprovalRequest};
use crate::conversation::event::{Event, Outcome, Published};
use crate::dialect::json::{Params, clip, even_null, invalid, json, object};
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{ApprovalId, Owner, RunId, Seq, SessionKey};
use crate::target::{Route, Target};

/// The longest id a client may give, in bytes of JSON: it is echoed in every frame.
pub(super) const ID_BYTES_MAX: usize = 1024;

/// The id of a request, as JSON, in the type it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Id(Box<str>);

impl Id {
    /// What answers carry that belong to no usable id.
    pub(super) fn none() -> Self {
        Self("\"0\"".into())
    }

    /// The id in `raw`: a string or a number. None for any other type.
    fn read(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        match text.as_bytes().first()? {
            b'"' => serde_json::from_str::<String>(text).ok().map(|id| Self(json(&id).into())),
            b'-' | b'0'..=b'9' => Some(Self(text.into())),
            _ => None,
        }
    }

    pub(super) fn as_json(&self) -> &str {
        &self.0
    }
}

/// One frame of a client.
#[derive(Debug)]
pub(super) enum Incoming<'a> {
    /// `{"token": ...}` and no method.
    Token,
    /// A request.
    Request {
        /// Its id, where it has a usable one.
        id: Option<Id>,
        /// Its method.
        method: String,
        /// Its parameters.
        params: Params<'a>,
    },
    /// Something else: the id to answer under and what is wrong.
    Broken(Option<Id>, String),
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    token: Option<&'a RawValue>,
}

/// The token in a first frame.
pub(super) fn token(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Handshake {
        token: String,
    }
    object::<Handshake>(text).ok().map(|handshake| handshake.token)
}

/// Reads a frame.
pub(super) fn read(text: &str) -> Incoming<'_> {
    let broken = |id, why: &str| Incoming::Broken(id, format!("parse error: {}", clip(why)));
    let fields: Fields<'_> = match object(text) {
        Ok(fields) => fields,
        Err(why) => return broken(None, &why),
    };
    let id = fields.id.and_then(Id::read);
    if let Some(id) = &id
        && id.0.len() > ID_BYTES_MAX
    {
        return broken(None, &format!("the id is longer than {ID_BYTES_MAX} bytes"));
    }
    match (fields.method, fields.token) {
        (Some(method), _) => match serde_json::from_str(method.get()) {
            Ok(method) => Incoming::Request { id, method, params: Params(fields.params) },
            Err(_) => broken(id, "method must be a string"),
        },
        (None, Some(_)) => Incoming::Token,
        (None, None) => broken(id, "missing field `method`"),
    }
}

/// The fields that name a session.
#[derive(Deserialize)]
pub(super) struct Place {
    session: Option<String>,
    channel: Option<String>,
    account: Option<String>,
    peer: Option<String>,
    guild: Option<String>,
    team: Option<String>,
}

impl Place {
    /// Whether no session is named at all.
    pub(super) fn is_absent(&self) -> bool {
        self.session.is_none() && self.channel.is_none() && self.account.is_none()
    }

    /// The session that the fields name.
    ///
    /// # Errors
    /// `InvalidRequest` where they name none.
    pub(super) fn target(self, method: &str) -> Result<Target, Error> {
        if let Some(session) = self.session {
            return SessionKey::parse(&session)
                .map(Target::Session)
                .map_err(|error| invalid(method, &error.message));
        }
        let required = |name: &str, value: Option<String>| match value {
            None => Err(invalid(method, &format!("missing field `{name}`"))),
            Some(text) if text.trim().is_empty() => Err(invalid(method, &format!("{name} is empty"))),
            Some(text) => Ok(text),
        };
        let given = |value: Option<String>| value.filter(|text| !text.is_empty());
        Ok(Target::Route(Route {
            channel: required("channel", self.channel)?,
            account: required("account", self.account)?,
            peer: given(self.peer),
            guild: given(self.guild),
            team: given(self.team),
        }))
    }
}

/// The parameters of `chat.abort`, besides the session.
#[derive(Deserialize)]
pub(super) struct ChatAbort<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    pub(super) run: Option<String>,
}

impl ChatAbort<'_> {
    /// The request whose run is to end.
    pub(super) fn id(&self) -> Result<Option<Id>, Error> {
        let Some(raw) = self.id else { return Ok(None) };
        Id::read(raw).map(Some).ok_or_else(|| invalid("chat.abort", "id must be a string or a number"))
    }
}

/// The parameters of `chat.history`, besides the session.
#[derive(Deserialize)]
pub(super) struct ChatHistory<'a> {
    pub(super) limit: Option<u64>,
    #[serde(borrow)]
    pub(super) before: Option<Cow<'a, str>>,
}

/// The parameters of `memory.search`.
#[derive(Deserialize)]
pub(super) struct MemorySearch<'a> {
    #[serde(borrow)]
    pub(super) query: Cow<'a, str>,
    pub(super) limit: Option<u64>,
}

/// The parameters of `session.attach` and `session.export`, besides the session.
#[derive(Deserialize)]
pub(super) struct SessionAttach {
    pub(super) after_seq: Option<u64>,
    pub(super) turns: Option<u64>,
    pub(super) thoughts: Option<bool>,
}

/// The parameters of `session.detach`.
#[derive(Deserialize)]
pub(super) struct SessionDetach<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

impl SessionDetach<'_> {
    /// The `session.attach` that is to end.
    pub(super) fn id(&self) -> Result<Id, Error> {
        let method = "session.detach";
        let raw = self.id.ok_or_else(|| invalid(method, "missing field `id`"))?;
        Id::read(raw).ok_or_else(|| invalid(method, "id must be a string or a number"))
    }
}

/// The parameters of `plugin.load` and `plugin.unload`.
#[derive(Deserialize)]
pub(super) struct PluginParams {
    pub(super) name: Option<String>,
    pub(super) path: Option<String>,
}

/// The first frame of an open connection.
pub(super) fn hello(version: &str) -> String {
    #[derive(Serialize)]
    struct Hello<'a> {
        ok: bool,
        version: &'a str,
    }
    json(&Hello { ok: true, version })
}

/// What is said before a connection is closed for a reason.
pub(super) fn farewell(error: &str, code: u16) -> String {
    #[derive(Serialize)]
    struct Farewell<'a> {
        error: &'a str,
        code: u16,
    }
    json(&Farewell { error, code })
}

/// A final answer that says `result`.
pub(super) fn result<T: Serialize + ?Sized>(id: &Id, result: &T) -> String {
    framed(id, "\"result\":", &json(result))
}

/// A final answer that says what went wrong.
pub(super) fn refusal(id: &Id, text: &str) -> String {
    framed(id, "\"error\":", &json(text))
}

/// The first frame of a stream whose prompt carried an idempotency key.
pub(super) fn accepted(id: &Id, run: &RunId, seq: Seq) -> String {
    #[derive(Serialize)]
    struct Accepted<'a> {
        run: &'a str,
        seq: u64,
    }
    framed(id, "\"event\":\"accepted\",\"data\":", &json(&Accepted { run: run.as_str(), seq: seq.0 }))
}

/// What the frame of a prompt says besides, for who wants that: who sent it, where that is no operator,
/// and what it brought along. Empty for what is no prompt.
pub(super) fn details(event: &Event) -> String {
    #[derive(Serialize)]
    struct File<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<&'a str>,
        media_type: &'a str,
        bytes: usize,
    }
    let Event::Prompted { owner, attachments, .. } = event else { return String::new() };
    let mut details = String::new();
    if let Owner::Credential(name) = owner {
        details.push_str(",\"by\":");
        details.push_str(&json(&**name));
    }
    if !attachments.is_empty() {
        let files = attachments.iter().map(|attachment| File {
            name: attachment.name(),
            media_type: attachment.media_type(),
            bytes: attachment.bytes(),
        });
        details.push_str(",\"attachments\":");
        details.push_str(&json(&files.collect::<Vec<_>>()));
    }
    details
}

/// One frame of an attached session: an event, the numbers it covers, its run, and whether something
/// was left out.
pub(super) fn numbered(
    id: &Id,
    line: &str,
    details: &str,
    (first, seq): (Seq, Seq),
    event: &Published,
) -> String {
    use std::fmt::Write as _;
    let mut frame = String::with_capacity(96 + id.0.len() + line.len() + details.len());
    let _ = write!(frame, "{{\"id\":{},{line}{details},\"seq\":{seq}", id.0);
    if first < seq {
        let _ = write!(frame, ",\"first_seq\":{first}");
    }
    if let Some(run) = &event.logged.run {
        let _ = write!(frame, ",\"run\":{}", json(run.as_str()));
    }
    if event.is_clipped() {
        frame.push_str(",\"clipped\":true");
    }
    frame.push('}');
    frame
}

/// One frame: the envelope of this connection around `payload`.
pub(super) fn framed(id: &Id, head: &str, payload: &str) -> String {
    let mut frame = String::with_capacity(8 + id.0.len() + head.len() + payload.len());
    for part in ["{\"id\":", &id.0, ",", head, payload, "}"] {
        frame.push_str(part);
    }
    frame
}

/// What an event says, without the envelope: one frame a line, since JSON text has no line breaks.
/// Empty for what exoclaw has no word for.
pub(super) fn payload(published: &Published) -> Bytes {
    #[derive(Serialize)]
    struct ToolUse<'a> {
        id: &'a str,
        name: &'a str,
        input: &'a Value,
        /// Of a call that waits until somebody approves it.
        #[serde(skip_serializing_if = "Option::is_none")]
        approval: Option<Approval<'a>>,
    }
    #[derive(Serialize)]
    struct Approval<'a> {
        id: &'a str,
        deadline_ms: u64,
    }
    #[derive(Serialize)]
    struct Decision<'a> {
        id: &'a str,
        name: &'a str,
        decision: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct ToolResult<'a> {
        tool_use_id: &'a str,
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    }
    #[derive(Serialize)]
    struct Usage {
        input_tokens: u64,
        output_tokens: u64,
    }
    #[derive(Serialize)]
    struct Notice<'a> {
        kind: &'static str,
        message: &'a str,
    }
    #[derive(Serialize)]
    struct Done {
        stop_reason: &'static str,
    }
    let text = match &published.logged.event {
        Event::Started
        | Event::StepEnded { .. }
        | Event::Configured(_)
        | Event::Sealed(_)
        | Event::Recalled { .. }
        | Event::Compacted(_) => String::new(),
        Event::Thought(piece) => line("thought", piece),
        Event::ApprovalDecided(decided) => {
            let id = published.logged.run.as_ref().map(|run| ApprovalId::of(run, &decided.call));
            let Some(id) = id else { return Bytes::new() };
            let (name, decision) = (decided.tool.as_str(), decision(&decided.decision));
            line("approval", &Decision { id: id.as_str(), name, decision, by: decided.by.as_deref() })
        }
        Event::Prompted { content, .. } => line("prompt", content),
        Event::Cleared(_) => "\"event\":\"clear\"".to_owned(),
        Event::Injected { content } => line("message", content),
        Event::Deleted => "\"event\":\"deleted\"".to_owned(),
        Event::Restarted => "\"event\":\"restart\"".to_owned(),
        Event::Noticed(notice) => {
            line("notice", &Notice { kind: notice.kind.name(), message: &notice.message })
        }
        Event::Text(text) => line("text", text),
        Event::ToolCalled(call) => {
            let (id, name) = (call.id.as_str(), call.name.as_str());
            line("tool_use", &ToolUse { id, name, input: &call.input, approval: None })
        }
        Event::ApprovalAsked(ApprovalRequest { call, deadline, .. }) => {
            let (id, name) = (call.id.as_str(), call.name.as_str());
            let approval = published.logged.run.as_ref().map(|run| ApprovalId::of(run, &call.id));
            let deadline_ms = deadline.as_millis();
            let approval = approval.as_ref().map(|id| Approval { id: id.as_str(), deadline_ms });
            line("tool_use", &ToolUse { id, name, input: &call.input, approval })
        }
        Event::ToolReturned(result) => line(
            "tool_result",
            &ToolResult {
                tool_use_id: result.call.as_str(),
                content: &result.content,
                is_error: result.is_error,
            },
        ),
        Event::Ended { outcome, usage } => {
            let usage = Usage { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens };
            let mut text = line("usage", &usage);
            let failure = match outcome {
                Outcome::Completed | Outcome::Incomplete(_) => None,
                Outcome::Aborted(_) => Some("aborted".to_owned()),
                // What a run waits for in vain is its provider: tools that do not answer are results.
                Outcome::Failed(error) if error.code == ErrorCode::Timeout => {
                    Some(prefixed("provider error: ", &error.message))
                }
                Outcome::Failed(error) => Some(describe(error)),
            };
            if let Some(failure) = failure {
                text.push('\n');
                text.push_str(&line("error", &failure));
            }
            text.push('\n');
            text.push_str(&match outcome {
                Outcome::Incomplete(why) => line("done", &Done { stop_reason: why.name() }),
                _ => "\"event\":\"done\"".to_owned(),
            });
            text
        }
    };
    Bytes::from(text)
}

/// A decision in a word.
pub(super) fn decision(decision: &approval::Decision) -> &'static str {
    match decision {
        approval::Decision::Approved { .. } => "approved",
        approval::Decision::Denied { .. } => "denied",
        approval::Decision::TimedOut => "timed_out",
        approval::Decision::Withdrawn => "withdrawn",
    }
}

fn line<T: Serialize + ?Sized>(event: &str, data: &T) -> String {
    format!("\"event\":\"{event}\",\"data\":{}", json(data))
}

/// An error in exoclaw's words: the codes that have a wording of their own, and the message.
pub(super) fn describe(error: &Error) -> String {
    match error.code {
        ErrorCode::Forbidden => match error.detail {
            Some(Detail::MissingScope(scope)) => format!("forbidden: needs {}", scope.name()),
            _ => prefixed("forbidden: ", &error.message),
        },
        ErrorCode::Provider => prefixed("provider error: ", &error.message),
        ErrorCode::RateLimited => match error.detail {
            Some(Detail::RetryAfter(wait)) => {
                format!("rate limited: try again in {} ms", wait.as_millis().max(1))
            }
            _ => prefixed("rate limited: ", &error.message),
        },
        ErrorCode::Aborted => "aborted".into(),
        ErrorCode::InvalidRequest
        | ErrorCode::UnknownMethod
        | ErrorCode::Unauthenticated
        | ErrorCode::NotFound
        | ErrorCode::Conflict
        | ErrorCode::TooLarge
        | ErrorCode::BudgetExceeded
        | ErrorCode::Unavailable
        | ErrorCode::Timeout
        | ErrorCode::Interrupted
        | ErrorCode::Internal => error.message.clone(),
    }
}

fn prefixed(prefix: &str, message: &str) -> String {
    if message.starts_with(prefix) { message.to_owned() } else { format!("{prefix}{message}") }
}
