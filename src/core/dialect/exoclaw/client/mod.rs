//! The other half of exoclaw: what a client says, and what it makes of what it is told. The
//! terminal client speaks it.
//!
//! Pure like the gateway's half. As clients should, it sends strictly and receives tolerantly:
//! unknown keys and events are passed over.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::dialect::json::put;
use crate::ids::SessionKey;

/// The path of the protocol's WebSocket.
pub const PATH: &str = "/ws";

/// What a client is told.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerMessage {
    /// The client is let in.
    Hello,
    /// The connection is about to be closed.
    Closing {
        /// Why, in a word such as `auth_failed`.
        error: String,
        /// The code of the Close frame that follows.
        code: u16,
    },
    /// The final answer to a request that does not stream, or the refusal of one that would.
    Answer {
        /// The request.
        id: String,
        /// What it gives, or what went wrong.
        outcome: Result<Value, String>,
    },
    /// A frame of a stream.
    Event {
        /// The request it belongs to.
        id: String,
        /// Its place in the session; none in the stream of a prompt.
        place: Option<Place>,
        /// What happened.
        event: StreamEvent,
    },
    /// Something of a newer daemon: to be passed over.
    Unknown,
}

/// Where in an attached session a frame belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The last number that the frame covers: what to attach after to go on from it.
    pub seq: u64,
    /// The run; none for what concerns the session as a whole.
    pub run: Option<String>,
    /// Whether something was left out of the frame because it is long.
    pub is_clipped: bool,
}

/// What happens in a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The prompt is durable. Nothing follows under its id where it was sent not to be followed.
    Accepted {
        /// The id of its run.
        run: String,
        /// Its number in the session's log.
        seq: u64,
    },
    /// In an attached session: a prompt, which waits until the runs before it are over.
    Prompt {
        /// What it says.
        content: String,
        /// Who sent it; none where that is not told.
        by: Option<String>,
        /// What it brought along, by name or else by media type.
        attachments: Vec<String>,
    },
    /// A piece of text.
    Text(String),
    /// A piece of what the model thinks, told only where thoughts were asked for.
    Thought(String),
    /// The model calls a tool.
    ToolUse {
        /// The id of the call, unique in its run.
        call: String,
        /// The tool's name.
        name: String,
        /// What it is called with.
        input: Value,
        /// What it has to be approved by before it is called; none where it needs no approval.
        approval: Option<String>,
    },
    /// A call that waited was decided, by whomever.
    Approval {
        /// What it was to be decided by.
        id: String,
        /// The tool.
        name: String,
        /// `approved`, `denied`, `timed_out` or `withdrawn`.
        decision: String,
        /// Who decided; none where nobody did.
        by: Option<String>,
    },
    /// The tool answered.
    ToolResult {
        /// The id of the call.
        call: String,
        /// What it answered.
        content: String,
        /// Whether it failed.
        is_error: bool,
    },
    /// The tokens of the whole run.
    Usage {
        /// Tokens that the model read.
        input_tokens: u64,
        /// Tokens that it wrote.
        output_tokens: u64,
    },
    /// A step was cut off, as by a restart of the daemon: its text so far is void and comes anew.
    Restart,
    /// What becomes of the answer besides its text: a model is asked again, the next one is asked, the answer is cut.
    Notice {
        /// `waiting`, `retrying`, `fallback`, `incomplete`, `reduced` or `compacted`.
        kind: String,
        /// A sentence for people.
        message: String,
    },
    /// The run failed; [`ABORTED`] where somebody ended it.
    Error(String),
    /// Nothing of the run follows.
    Done,
    /// Something was put into the conversation in the model's name.
    Message(String),
    /// What was said so far is forgotten.
    Clear,
    /// The session is gone; nothing follows.
    Deleted,
    /// Something of a newer daemon: to be passed over.
    Unknown,
}

/// The text of [`StreamEvent::Error`] in an aborted run.
pub const ABORTED: &str = "aborted";

/// The word of [`ServerMessage::Closing`] for a credential that does not hold.
pub const AUTH_FAILED: &str = "auth_failed";

/// The first frame of a client that has a credential.
pub fn token(token: &str) -> String {
    json!({ "token": token }).to_string()
}

/// The word of [`ServerMessage::Closing`] for a daemon that stops.
pub const DRAINING: &str = "draining";

/// A prompt. Sent again with the same `key` it is the same run, told from its start.
pub fn send(id: &str, session: &SessionKey, content: &str, key: &str) -> String {
    Prompt { session, content, key, model: None, attachments: &[], follow: true }.frame(id)
}

/// A prompt with all that can be said about it.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The session.
    pub session: &'a SessionKey,
    /// What it says.
    pub content: &'a str,
    /// Its idempotency key: sent again with the same one it is the same run.
    pub key: &'a str,
    /// The model that answers this prompt, `PROVIDER/MODEL`; none = the one of the session.
    pub model: Option<&'a str>,
    /// What it brings along, within the limits of [`crate::prompt::attachment`].
    pub attachments: &'a [File<'a>],
    /// Whether its run is told under the id of the request. Where not, the answer is only
    /// [`StreamEvent::Accepted`], and the run is told where the session is attached.
    pub follow: bool,
}

/// A file that a prompt brings along.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its media type; none = what its bytes are.
    pub media_type: Option<&'a str>,
    /// Its bytes.
    pub data: &'a [u8],
}

impl Prompt<'_> {
    /// The request.
    pub fn frame(&self, id: &str) -> String {
        let mut params = place(self.session);
        params["content"] = self.content.into();
        params["idempotency_key"] = self.key.into();
        put(&mut params, "model", self.model);
        if !self.attachments.is_empty() {
            let file = |file: &File<'_>| {
                let mut said = json!({ "name": file.name, "data": BASE64_STANDARD.encode(file.data) });
                put(&mut said, "media_type", file.media_type);
                said
            };
            params["attachments"] = self.attachments.iter().map(file).collect();
        }
        put(&mut params, "follow", (!self.follow).then_some(false));
        request(id, "chat.send", params)
    }
}

/// Where the telling of an attached session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// With the prompts of so many last turns, [`TURNS_MAX`](super::TURNS_MAX) at most; 0 = with what
    /// runs or waits now.
    Turns(u64),
    /// After the last number that was seen.
    Seq(u64),
}

/// Has a session told, from there on and as it happens, with who prompted and what was decided about
/// calls that waited. The answer is read by [`attached`]; what is told up to its `seq` is the past.
pub fn attach(id: &str, session: &SessionKey, since: Since, thoughts: bool) -> String {
    let mut params = place(session);
    match since {
        Since::Turns(turns) => params["turns"] = turns.into(),
        Since::Seq(seq) => params["after_seq"] = seq.into(),
    }
    params["thoughts"] = thoughts.into();
    request(id, "session.attach", params)
}

/// Has it told no longer; `attach` is the id of its `session.attach`.
pub fn detach(id: &str, attach: &str) -> String {
    request(id, "session.detach", json!({ "id": attach }))
}

/// The answer to `session.attach`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The session, as this client names it.
    pub session: String,
    /// The last number there was when it was attached; 0 where nothing was ever said in it.
    pub seq: u64,
    /// The agent of the session.
    pub agent: Option<String>,
    /// The model that would answer the next prompt, `PROVIDER/MODEL`.
    pub model: Option<String>,
}

/// What the result of a `session.attach` says; none where it is no such result.
pub fn attached(result: &Value) -> Option<Attached> {
    Some(Attached {
        session: text(result, "session")?,
        seq: result.get("seq")?.as_u64()?,
        agent: text(result, "agent"),
        model: text(result, "model"),
    })
}

/// Ends the run of the prompt with the id `prompt`.
pub fn abort(id: &str, prompt: &str) -> String {
    request(id, "chat.abort", json!({ "id": prompt }))
}

/// Ends a run of a session, whoever began it; none = the one under way.
pub fn abort_run(id: &str, session: &SessionKey, run: Option<&str>) -> String {
    let mut params = place(session);
    put(&mut params, "run", run);
    request(id, "chat.abort", params)
}

/// Has a call made that waits, with another input where one is given (an object).
pub fn approve(id: &str, approval: &str, input: Option<&Value>) -> String {
    let mut params = json!({ "id": approval });
    put(&mut params, "input", input.cloned());
    request(id, "approval.approve", params)
}

/// Has it made, and later calls of its tool in its session too.
pub fn approve_for_session(id: &str, approval: &str) -> String {
    request(id, "approval.approve", json!({ "id": approval, "for_session": true }))
}

/// Has it not made; the model is told the reason.
pub fn deny(id: &str, approval: &str, reason: Option<&str>) -> String {
    let mut params = json!({ "id": approval });
    put(&mut params, "reason", reason);
    request(id, "approval.deny", params)
}

/// Asks which calls wait that this client may decide about: of one session, or of all. The answer is
/// read by [`waiting`].
pub fn approvals(id: &str, session: Option<&SessionKey>) -> String {
    request(id, "approval.list", session.map_or_else(|| json!({}), place))
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingCall {
    /// What it is decided by.
    pub id: String,
    /// Its session.
    pub session: String,
    /// The tool.
    pub name: String,
    /// With what it would be called.
    pub input: Value,
    /// When it counts as denied, in milliseconds since 1970.
    pub deadline: u64,
}

/// What the result of an `approval.list` says.
pub fn waiting(result: &Value) -> Vec<WaitingCall> {
    let one = |call: &Value| {
        Some(WaitingCall {
            id: text(call, "id")?,
            session: text(call, "session").unwrap_or_default(),
            name: text(call, "name").unwrap_or_default(),
            input: call.get("input").cloned().unwrap_or_default(),
            deadline: call.get("deadline").and_then(Value::as_u64).unwrap_or_default(),
        })
    };
    list(result, one)
}

/// Asks which agents there are. The answer is read by [`agents_of`].
pub fn agents(id: &str) -> String {
    request(id, "agent.list", json!({}))
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// The model it asks first, `PROVIDER/MODEL`.
    pub model: String,
    /// Whether it answers who names none.
    pub is_default: bool,
}

/// What the result of an `agent.list` says.
pub fn agents_of(result: &Value) -> Vec<Agent> {
    let one = |agent: &Value| {
        let provider = text(agent, "provider").unwrap_or_default();
        let model = text(agent, "model").unwrap_or_default();
        let is_default = agent.get("default").and_then(Value::as_bool).unwrap_or(false);
        Some(Agent { name: text(agent, "name")?, model: format!("{provider}/{model}"), is_default })
    };
    list(result, one)
}

/// Asks which models the agents name. The answer is read by [`models_of`].
pub fn models(id: &str) -> String {
    request(id, "model.list", json!({}))
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// `PROVIDER/MODEL`.
    pub model: String,
    /// Whether it can be asked as far as that hangs on the configuration: its provider has the key it
    /// wants.
    pub is_available: bool,
}

/// What the result of a `model.list` says.
pub fn models_of(result: &Value) -> Vec<Model> {
    let one = |model: &Value| {
        let is_available = model.get("available").and_then(Value::as_bool).unwrap_or(true);
        Some(Model { model: text(model, "model")?, is_available })
    };
    list(result, one)
}

/// Asks for the sessions of this client.
pub fn sessions(id: &str) -> String {
    request(id, "session.list", json!({}))
}

/// Has what was said in a session forgotten.
pub fn clear(id: &str, session: &SessionKey) -> String {
    request(id, "session.clear", place(session))
}

/// Asks what the budgets leave, with that of a session.
pub fn budget(id: &str, session: &SessionKey) -> String {
    request(id, "budget.status", place(session))
}

fn request(id: &str, method: &str, params: Value) -> String {
    json!({ "id": id, "method": method, "params": params }).to_string()
}

/// The fields that name a session. The protocol wants channel and account of every client; the session
/// says the same and more.
fn place(session: &SessionKey) -> Value {
    json!({
        "channel": session.channel(),
        "account": session.account(),
        "peer": session.peer(),
        "session": session.as_str(),
    })
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn list<T>(result: &Value, one: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    result.as_array().into_iter().flatten().filter_map(one).collect()
}

/// What a text frame says.
pub fn read(frame: &str) -> ServerMessage {
    let Ok(Value::Object(mut frame)) = serde_json::from_str(frame) else { return ServerMessage::Unknown };
    let id = match frame.remove("id") {
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        _ if frame.get("ok").and_then(Value::as_bool) == Some(true) => return ServerMessage::Hello,
        _ => match frame.remove("error") {
            Some(Value::String(error)) => {
                let code =
                    frame.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                return ServerMessage::Closing { error, code: code.unwrap_or_default() };
            }
            _ => return ServerMessage::Unknown,
        },
    };
    if let Some(Value::String(event)) = frame.get("event") {
        let event = event.clone();
        let data = frame.remove("data").unwrap_or_default();
        let place = frame.get("seq").and_then(Value::as_u64).map(|seq| Place {
            seq,
            run: frame.get("run").and_then(Value::as_str).map(str::to_owned),
            is_clipped: frame.get("clipped").and_then(Value::as_bool).unwrap_or(false),
        });
        let event = match event.as_str() {
            "prompt" => prompted(&data, &frame),
            event => stream_event(event, data),
        };
        return ServerMessage::Event { id, place, event };
    }
    match frame.remove("error") {
        None | Some(Value::Null) => {
            ServerMessage::Answer { id, outcome: Ok(frame.remove("result").unwrap_or_default()) }
        }
        Some(Value::String(error)) => ServerMessage::Answer { id, outcome: Err(error) },
        Some(other) => ServerMessage::Answer { id, outcome: Err(other.to_string()) },
    }
}

/// What a value says, whatever it is.
fn said(data: &Value) -> String {
    match data {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn prompted(data: &Value, frame: &Map<String, Value>) -> StreamEvent {
    let name = |file: &Value| text(file, "name").or_else(|| text(file, "media_type"));
    StreamEvent::Prompt {
        content: said(data),
        by: frame.get("by").and_then(Value::as_str).map(str::to_owned),
        attachments: frame.get("attachments").map(|files| list(files, name)).unwrap_or_default(),
    }
}

fn stream_event(event: &str, data: Value) -> StreamEvent {
    let field = |name: &str| data.get(name).map(said).unwrap_or_default();
    let number = |name: &str| data.get(name).and_then(Value::as_u64).unwrap_or_default();
    match event {
        "accepted" => StreamEvent::Accepted { run: field("run"), seq: number("seq") },
        "text" => StreamEvent::Text(said(&data)),
        "thought" => StreamEvent::Thought(said(&data)),
        "message" => StreamEvent::Message(said(&data)),
        "clear" => StreamEvent::Clear,
        "deleted" => StreamEvent::Deleted,
        "approval" => StreamEvent::Approval {
            id: field("id"),
            name: field("name"),
            decision: field("decision"),
            by: text(&data, "by"),
        },
        "tool_use" => StreamEvent::ToolUse {
            call: field("id"),
            name: field("name"),
            input: data.get("input").cloned().unwrap_or_default(),
            approval: data.pointer("/approval/id").and_then(Value::as_str).map(str::to_owned),
        },
        "tool_result" => StreamEvent::ToolResult {
            call: field("tool_use_id"),
            content: field("content"),
            is_error: data.get("is_error").and_then(Value::as_bool).unwrap_or(false),
        },
        "usage" => StreamEvent::Usage {
            input_tokens: number("input_tokens"),
            output_tokens: number("output_tokens"),
        },
        "restart" => StreamEvent::Restart,
        "notice" => StreamEvent::Notice { kind: field("kind"), message: field("message") },
        "error" => StreamEvent::Error(said(&data)),
        "done" => StreamEvent::Done,
        _ => StreamEvent::Unknown,
    }
}

#[cfg(test)]
mod tests;
