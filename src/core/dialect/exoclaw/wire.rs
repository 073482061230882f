//! exoclaw's frames as they are on the wire: what a client says, read with tolerance, and what it
//! is told, written with care.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::access::Owner;
use crate::config::ModelRef;
use crate::config::catalog::Catalog;
use crate::config::request::ConfigReply;
use crate::conversation::approval::{self, ApprovalReply, Asked, Pending};
use crate::conversation::command::Before;
use crate::conversation::event::{Event, Outcome, Published};
use crate::conversation::reply::{Attached, Compacted, Injected, SessionReply, Unwatched, Watching};
use crate::conversation::transcript::{History, Role};
use crate::daemon::command::{DaemonReply, Noted};
use crate::dialect::admin::event::exported;
use crate::dialect::json::{Params, clip, even_null, invalid, json, object};
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{ApprovalId, RunId, Seq, SessionKey};
use crate::request::reply::Reply;
use crate::target::{Route, Target};
use crate::tools::node::NodeReply;
use crate::tools::plugin::{self, PluginReply};

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

    /// The session named.
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

/// Of `chat.abort`, besides the session.
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

/// Of `chat.history`, besides the session.
#[derive(Deserialize)]
pub(super) struct ChatHistory<'a> {
    pub(super) limit: Option<u64>,
    #[serde(borrow)]
    pub(super) before: Option<Cow<'a, str>>,
}

/// What ends a mark that stands for an answer and not for its prompt.
const ANSWER: &str = "/answer";

/// The message that the mark `more` of a history stands for.
pub(super) fn before(mark: &str) -> Before {
    match mark.strip_suffix(ANSWER) {
        Some(run) => Before { run: run.into(), role: Role::Assistant },
        None => Before { run: mark.into(), role: Role::User },
    }
}

/// The mark of the oldest message of a history, where there are older ones.
fn more(history: &History) -> Option<String> {
    let oldest = history.messages.first().filter(|_| history.more)?;
    Some(match oldest.role {
        Role::User => oldest.run.as_str().to_owned(),
        Role::Assistant => format!("{}{ANSWER}", oldest.run),
    })
}

/// Of `session.attach`, besides the session.
#[derive(Deserialize)]
pub(super) struct SessionAttach {
    pub(super) after_seq: Option<u64>,
    pub(super) turns: Option<u64>,
    pub(super) thoughts: Option<bool>,
}

/// Of `session.detach`.
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

/// Of `plugin.load` and `plugin.unload`.
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

/// The answer to `session.attach`, before its events; with its agent and the model that answers next for
/// those who asked for such.
pub(super) fn attached(
    id: &Id,
    session: &str,
    head: Seq,
    banner: Option<(&str, Option<&ModelRef>)>,
) -> String {
    #[derive(Serialize)]
    struct Attached<'a> {
        session: &'a str,
        seq: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        agent: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    }
    let agent = banner.map(|(agent, _)| agent);
    let model = banner.and_then(|(_, model)| model).map(ModelRef::to_string);
    result(id, &Attached { session, seq: head.0, agent, model })
}

/// The answer to `approval.list`.
pub(super) fn waiting<'a>(id: &Id, calls: impl Iterator<Item = &'a Arc<Pending>>, reader: &Owner) -> String {
    #[derive(Serialize)]
    struct Waiting<'a> {
        id: &'a str,
        session: &'a str,
        name: &'a str,
        input: &'a Value,
        deadline: u64,
    }
    let calls = calls.map(|pending| Waiting {
        id: pending.id.as_str(),
        session: pending.session.seen_by(reader),
        name: pending.asked.call.name.as_str(),
        input: &pending.asked.call.input,
        deadline: pending.asked.deadline.as_millis(),
    });
    result(id, &calls.collect::<Vec<_>>())
}

/// The answer to `agent.list`.
pub(super) fn agents(id: &Id, catalog: &Catalog) -> String {
    #[derive(Serialize)]
    struct Agent<'a> {
        name: &'a str,
        provider: &'a str,
        model: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        default: bool,
    }
    let agents = catalog.agents.iter().map(|agent| Agent {
        name: agent.id.as_str(),
        provider: &agent.model.provider,
        model: &agent.model.model,
        default: catalog.default_agent.as_ref() == Some(&agent.id),
    });
    result(id, &agents.collect::<Vec<_>>())
}

/// The answer to `model.list`.
pub(super) fn models(id: &Id, catalog: &Catalog) -> String {
    #[derive(Serialize)]
    struct Model {
        model: String,
        available: bool,
    }
    let models = catalog.models.iter().map(|entry| Model {
        model: entry.model.to_string(),
        available: catalog.is_available(&entry.model.provider),
    });
    result(id, &models.collect::<Vec<_>>())
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
    let text = match &published.logged.event {
        Event::Started | Event::StepEnded { .. } | Event::Configured(_) | Event::Sealed(_) => String::new(),
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
        Event::Text(text) => line("text", text),
        Event::ToolCalled(call) => {
            let (id, name) = (call.id.as_str(), call.name.as_str());
            line("tool_use", &ToolUse { id, name, input: &call.input, approval: None })
        }
        Event::ApprovalAsked(Asked { call, deadline, .. }) => {
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
                Outcome::Completed => None,
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
            text.push_str("\n\"event\":\"done\"");
            text
        }
    };
    Bytes::from(text)
}

/// A decision in a word.
fn decision(decision: &approval::Decision) -> &'static str {
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

/// The answer to a request that does not stream, for a client that is this owner.
pub(super) fn answer(id: &Id, reply: &Reply, reader: &Owner) -> String {
    #[derive(Serialize)]
    struct Status<'a> {
        version: &'a str,
        plugins: usize,
        sessions: usize,
    }
    #[derive(Serialize)]
    struct Aborted<'a> {
        aborted: bool,
        run: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Detached {
        detached: bool,
    }
    #[derive(Serialize)]
    struct Stopped<'a> {
        session: &'a str,
        stopped: bool,
    }
    #[derive(Serialize)]
    struct History<'a> {
        session: &'a str,
        messages: Vec<Message<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        more: Option<String>,
    }
    #[derive(Serialize)]
    struct Message<'a> {
        role: &'static str,
        content: &'a str,
        timestamp: u64,
        run: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        clipped: bool,
    }
    #[derive(Serialize)]
    struct Session<'a> {
        session: &'a str,
        created: u64,
        updated: u64,
        running: bool,
    }
    #[derive(Serialize)]
    struct Cleared<'a> {
        session: &'a str,
        cleared: bool,
    }
    #[derive(Serialize)]
    struct Deleted {
        deleted: bool,
    }
    #[derive(Serialize)]
    struct Exported<'a> {
        session: &'a str,
        lines: Vec<serde_json::Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<u64>,
    }
    #[derive(Serialize)]
    struct Decided<'a> {
        id: &'a str,
        decision: &'static str,
    }
    #[derive(Serialize)]
    struct Budget {
        used: u64,
        reserved: u64,
        limit: u64,
    }
    #[derive(Serialize)]
    struct Named<'a> {
        name: &'a str,
    }
    #[derive(Serialize)]
    struct Loaded<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<&'a str>,
        description: &'a str,
        capabilities: &'a [String],
    }
    #[derive(Serialize)]
    struct Unloaded<'a> {
        name: &'a str,
        unloaded: bool,
    }
    match reply {
        Reply::Daemon(DaemonReply::Status(status)) => result(
            id,
            &Status { version: &status.version, plugins: status.plugins, sessions: status.sessions },
        ),
        Reply::Session(SessionReply::Accepted(reply)) => accepted(id, &reply.run, reply.seq),
        Reply::Session(SessionReply::Aborted(crate::conversation::reply::Aborted { run })) => {
            result(id, &Aborted { aborted: run.is_some(), run: run.as_ref().map(RunId::as_str) })
        }
        Reply::Session(SessionReply::Attached(Attached { session, head, .. })) => {
            attached(id, session.seen_by(reader), *head, None)
        }
        Reply::Approval(reply) if let ApprovalReply::Decided { id: approval, decided, .. } = &**reply => {
            result(id, &Decided { id: approval.as_str(), decision: decision(&decided.decision) })
        }
        Reply::Session(SessionReply::Detached(crate::conversation::reply::Detached { found })) => {
            result(id, &Detached { detached: *found })
        }
        Reply::Session(SessionReply::Stopped(crate::conversation::reply::Stopped { session, .. })) => {
            result(id, &Stopped { session: session.seen_by(reader), stopped: true })
        }
        Reply::Session(SessionReply::History(history)) => {
            let messages = history.messages.iter().map(|message| Message {
                role: match message.role {
                    Role::User => "user",
                    Role::Assistant => "assistant",
                },
                content: &message.content,
                timestamp: message.at.as_millis(),
                run: message.run.as_str(),
                clipped: message.clipped,
            });
            let (session, more) = (history.session.seen_by(reader), more(history));
            result(id, &History { session, messages: messages.collect(), more })
        }
        Reply::Session(SessionReply::Sessions(sessions)) => {
            let list: Vec<_> = sessions
                .iter()
                .map(|summary| Session {
                    session: summary.session.seen_by(reader),
                    created: summary.created.as_millis(),
                    updated: summary.updated.as_millis(),
                    running: summary.running,
                })
                .collect();
            result(id, &list)
        }
        Reply::Session(SessionReply::Cleared(crate::conversation::reply::Cleared { session })) => {
            result(id, &Cleared { session: session.seen_by(reader), cleared: true })
        }
        Reply::Session(SessionReply::Budget(budgets)) => {
            let by_period: serde_json::Map<String, Value> = budgets
                .iter()
                .map(|budget| {
                    let figures =
                        Budget { used: budget.used, reserved: budget.reserved, limit: budget.limit };
                    (budget.period.name().to_owned(), serde_json::to_value(figures).unwrap_or_default())
                })
                .collect();
            result(id, &by_period)
        }
        Reply::Session(SessionReply::Deleted(crate::conversation::reply::Deleted { found })) => {
            result(id, &Deleted { deleted: *found })
        }
        Reply::Session(SessionReply::Exported(crate::conversation::reply::Exported { session, events })) => {
            let lines = events.iter().map(exported).collect();
            let next = events.last().map(|logged| logged.seq.0);
            result(id, &Exported { session: session.seen_by(reader), lines, next })
        }
        Reply::Plugin(PluginReply::Plugins(plugins)) => {
            let list: Vec<_> = plugins.iter().map(|plugin| Named { name: plugin.name.as_str() }).collect();
            result(id, &list)
        }
        Reply::Plugin(PluginReply::Loaded(plugin)) => result(
            id,
            &Loaded {
                name: plugin.name.as_str(),
                version: plugin.version.as_deref(),
                description: &plugin.description,
                capabilities: &plugin.capabilities,
            },
        ),
        Reply::Plugin(PluginReply::Unloaded(plugin::Unloaded { name })) => {
            result(id, &Unloaded { name: name.as_str(), unloaded: true })
        }
        Reply::Device(_)
        | Reply::Daemon(DaemonReply::Catalog(_))
        | Reply::Session(SessionReply::Watching(Watching))
        | Reply::Session(SessionReply::Unwatched(Unwatched))
        | Reply::Session(SessionReply::SessionList(_))
        | Reply::Session(SessionReply::Session(_))
        | Reply::Session(SessionReply::Exists(_))
        | Reply::Session(SessionReply::Transcript(_))
        | Reply::Session(SessionReply::Previews(_))
        | Reply::Session(SessionReply::Settled(_))
        | Reply::Session(SessionReply::Compacted(Compacted { .. }))
        | Reply::Session(SessionReply::Injected(Injected { .. }))
        | Reply::Daemon(DaemonReply::Health(_))
        | Reply::Daemon(DaemonReply::Overview(_))
        | Reply::Daemon(DaemonReply::Noted(Noted))
        | Reply::Node(NodeReply::Noted(Noted))
        | Reply::Node(NodeReply::Nodes(_))
        | Reply::Node(NodeReply::Invoked(_))
        | Reply::Config(ConfigReply::Config(_))
        | Reply::Daemon(DaemonReply::LogTail(_))
        | Reply::Daemon(DaemonReply::UsageDays(_))
        | Reply::Approval(_)
        | Reply::SubAgent(_)
        | Reply::Team(_)
        | Reply::Memory(_)
        | Reply::File(_)
        | Reply::Token(_)
        | Reply::Job(_)
        | Reply::Daemon(DaemonReply::Machine(_))
        | Reply::Daemon(DaemonReply::Lanes(_))
        | Reply::Config(ConfigReply::Soul(_))
        | Reply::Operator(_) => refusal(id, "internal error: the reply is to no request of this protocol"),
    }
}
