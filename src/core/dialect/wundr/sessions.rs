//! Sessions: made, gone on with, stopped, listed.
//!
//! | status | when |
//! |---|---|
//! | `running` | it takes prompts, whether one is under way or not, and whatever became of the last |
//! | `paused` | the prompt under way waits for somebody's approval |
//! | `terminated` | it was stopped: it takes no more until another protocol resets it |
//!
//! What goes on in one that is open is told besides, as its `activity` and its `lastPrompt`. The other
//! states the protocol has (`initializing`, `completed`, `failed`) are of sessions that begin slowly or
//! are over with their first task, of which there are none: a list of them is empty.
//!
//! Sessions of other protocols are sessions like any other. What was not said when they were made is
//! made up: the session's agent leads it, its kind is `claude-code`, and its task is its first prompt.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::shape::{COUNT, Field, NAME, SAID, Shape, TEXT, default, optional, required};
use super::subscription::{Interest, SESSION_ID};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::conversation::command::{Close, CreateSession, DescribeSession, SessionFilter};
use crate::conversation::reply::{SessionRow, SessionState, Stopped};
use crate::dialect::json::{clip, put};
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, Seq, SessionKey};
use crate::prompt::settings::{Assignment, Patch, Settings};
use crate::target::Target;

/// The kind of session that others than this protocol's clients make.
const DEFAULT_KIND: &str = "claude-code";

/// What a session made with `subscribe` is told of.
const OWN_EVENTS: [&str; 4] = ["stream.*", "tool.*", "session.*", "agent.*"];

/// How many sessions a list has.
const LIST_MAX: i64 = 200;

/// The most characters of a name, of a task and of a reason.
const WORD: Shape = Shape::Text(1, 256);
const DESCRIPTION: Shape = Shape::Text(0, 8192);
const REASON: Shape = Shape::Text(0, 1024);

/// Every status that the protocol has.
pub(super) const STATES: &[&str] =
    &["initializing", "running", "paused", "completed", "failed", "terminated"];

/// The status of a session that takes prompts.
pub(super) const RUNNING: &str = "running";
/// The status of a session whose prompt waits for an approval.
pub(super) const PAUSED: &str = "paused";
/// The status of a session that was stopped.
pub(super) const TERMINATED: &str = "terminated";

/// The activity of a session in which nothing is under way.
pub(super) const IDLE: &str = "idle";
/// The activity of a session in which a prompt is under way or waits.
pub(super) const BUSY: &str = "busy";

/// Whether a prompt is under way or waits in a session.
pub(super) const ACTIVITY: Field = optional(
    "activity",
    Shape::OneOf(&[IDLE, BUSY]),
    "whether a prompt is under way or waits; absent in one that was stopped",
);

/// What became of the last prompt.
pub(super) const LAST_PROMPT: Field = optional(
    "lastPrompt",
    Shape::OneOf(&["completed", "cancelled", "failed"]),
    "what became of the last prompt, where none is under way",
);

/// The member that names a session.
pub(super) const SESSION: Field = required("sessionId", NAME, "the session");

const SUBSCRIBE: Field = default(
    "subscribe",
    Shape::Flag,
    "true",
    "whether to be told of its stream.*, tool.*, session.* and agent.* events",
);

const TASK: &[Field] = &[
    required(
        "type",
        Shape::OneOf(&["code", "research", "analysis", "custom", "general"]),
        "the kind of task",
    ),
    required(
        "description",
        DESCRIPTION,
        "what the session is for: the agent has it before it at every prompt",
    ),
    default(
        "priority",
        Shape::OneOf(&["low", "medium", "high", "critical"]),
        r#""medium""#,
        "the agent is told it with the description; prompts take their turns in order, whatever it is",
    ),
    optional("metadata", Shape::AnyObject, "kept and told again"),
];

/// The parameters of `session.create`.
pub(super) const CREATE: &[Field] = &[
    required("orchestratorId", WORD, "who leads it: the agent of this name, or the default agent"),
    required("sessionType", Shape::OneOf(&["claude-code", "ruflo"]), "kept and told again"),
    required("task", Shape::Object(TASK), "what it is made for; a prompt says what to do"),
    optional("memoryProfile", Shape::Any, "refused: there are no profiles of memory to choose from"),
    SUBSCRIBE,
];

/// The parameters of `session.resume`.
pub(super) const RESUME: &[Field] = &[
    SESSION,
    SUBSCRIBE,
    optional(
        "lastSeq",
        COUNT,
        "the last sessionSeq that is known: what came after it is told first; needs `subscribe`. Absent = from now \
         on, with stream.start and the answer so far first where a prompt is under way; nothing anew where this \
         connection subscribed with session.create or session.resume before",
    ),
];

/// The parameters of `session.stop`.
pub(super) const STOP: &[Field] = &[
    SESSION,
    optional("reason", REASON, "why"),
    default("force", Shape::Flag, "false", "no difference: what runs is ended at once"),
];

/// What `session.stop` is answered.
pub(super) const STOPPED: &[Field] = &[
    required("ok", Shape::Flag, "true"),
    SESSION,
    required("status", Shape::OneOf(STATES), "terminated"),
    required("prompts", Shape::List(&NAME, 0, usize::MAX), "those that were ended by it"),
];

/// The parameters of `session.list`.
pub(super) const LIST: &[Field] = &[
    optional("status", Shape::OneOf(STATES), "only those; running = all that were not stopped"),
    default("limit", Shape::Integer(1, LIST_MAX), "50", "at most so many"),
    default("offset", COUNT, "0", "not the first so many"),
];

/// What `session.list` is answered.
pub(super) const LISTED: &[Field] = &[
    required("sessions", Shape::List(&Shape::Object(INFO), 0, usize::MAX), "the latest used first"),
    required("total", COUNT, "how many there are"),
    required("limit", COUNT, "as it was asked"),
    required("offset", COUNT, "as it was asked"),
];

/// The parameters of `session.status`.
pub(super) const ONE: &[Field] = &[SESSION];

/// A session as it is answered.
pub(super) const INFO: &[Field] = &[
    required("id", NAME, "the session"),
    SESSION,
    required("sessionKey", NAME, "what other protocols call it"),
    required("orchestratorId", NAME, "who leads it"),
    required("agent", NAME, "the agent that answers in it"),
    required("sessionType", NAME, "the kind of session"),
    required("status", Shape::OneOf(STATES), "running = it takes prompts"),
    ACTIVITY,
    LAST_PROMPT,
    required(
        "task",
        Shape::Object(&[
            required("type", NAME, "the kind of task"),
            required("description", TEXT, "what is to be done"),
            required("priority", NAME, "how urgent it is"),
            optional("metadata", Shape::AnyObject, "what else was said"),
        ]),
        "what it was made for",
    ),
    required("startedAt", Shape::Time, "when it was made"),
    optional("endedAt", Shape::Time, "when it was stopped"),
    optional("reason", SAID, "why it was stopped"),
    required(
        "metrics",
        Shape::Object(&[
            required("tokensUsed", COUNT, "read and written, since the last reset"),
            required("durationMs", COUNT, "from when it was made until it was last used"),
            required("tasksCompleted", COUNT, "prompts that got an answer, be it cut short"),
        ]),
        "what was done in it",
    ),
    required("sessionSeq", COUNT, "the number of its last event, for session.resume"),
    optional(
        "notes",
        Shape::AnyObject,
        "of session.create: what becomes of what was given with it, by its name",
    ),
    optional(
        "subscriptionId",
        NAME,
        "the subscription to its events: one for this connection, the same however often it is resumed",
    ),
];

/// How a session is, in this protocol's words; whether something is under way in it, and what became
/// of its last prompt.
fn state_words(state: SessionState) -> (&'static str, Option<&'static str>, Option<&'static str>) {
    match state {
        SessionState::New => (RUNNING, Some(IDLE), None),
        SessionState::Running => (RUNNING, Some(BUSY), None),
        SessionState::Paused => (PAUSED, Some(BUSY), None),
        SessionState::Idle => (RUNNING, Some(IDLE), Some("completed")),
        SessionState::Failed => (RUNNING, Some(IDLE), Some("failed")),
        SessionState::Closed => (TERMINATED, None, None),
    }
}

/// What a session was made for.
pub(super) fn about(session: &SessionKey, settings: &Settings) -> Value {
    match settings.assignment.as_deref() {
        Some(Assignment { lead, kind, task, description, priority, metadata }) => {
            let mut task = json!({ "type": task, "description": description, "priority": priority });
            if metadata.is_object() {
                task["metadata"] = metadata.clone();
            }
            json!({ "orchestratorId": lead, "sessionType": kind, "task": task })
        }
        None => json!({
            "orchestratorId": &*session.agent(),
            "sessionType": DEFAULT_KIND,
            "task": { "type": "general", "description": "", "priority": "medium" },
        }),
    }
}

/// A session as a client reads it that is this owner.
fn info(row: &SessionRow, who: &Owner) -> Value {
    let mut info = about(&row.session, &row.settings);
    let id = row.session.uuid();
    info["id"] = id.as_str().into();
    info["sessionId"] = id.into();
    info["sessionKey"] = row.session.seen_by(who).into();
    info["agent"] = (&*row.session.agent()).into();
    let (status, activity, last_prompt) = state_words(row.state);
    info["status"] = status.into();
    put(&mut info, "activity", activity);
    put(&mut info, "lastPrompt", last_prompt);
    info["startedAt"] = row.created.to_rfc3339().into();
    info["sessionSeq"] = row.head.0.into();
    info["metrics"] = json!({
        "tokensUsed": row.usage.total(),
        "durationMs": row.updated.millis_since(row.created),
        "tasksCompleted": row.answered,
    });
    if let (None, Some(title)) = (&row.settings.assignment, &row.title) {
        info["task"]["description"] = title.as_str().into();
    }
    if let Some(reason) = &row.settings.closed {
        info["endedAt"] = row.updated.to_rfc3339().into();
        put(&mut info, "reason", Some(reason.as_str()).filter(|reason| !reason.is_empty()));
    }
    info
}

/// The session that a client names by its id.
pub(super) fn target(session_id: &str) -> Target {
    Target::Uuid(session_id.to_owned())
}

/// That there is no such session, or none for the caller.
pub(super) fn no_such(session_id: &str) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {}", clip(session_id)))
}

/// What a session's own subscription asks for.
fn own_events(session_id: &str) -> Result<Interest, Error> {
    let filter = Map::from_iter([(SESSION_ID.to_owned(), Value::from(session_id))]);
    Interest::read(OWN_EVENTS, &filter)
}

/// The answer about a session, with its subscription where one is wanted.
fn answer_with(
    dialect: &mut Wundr,
    (row, mut info): (&SessionRow, Value),
    subscribe: bool,
    after: Option<Seq>,
    turn: &mut Turn<'_>,
) -> Answered {
    if !subscribe {
        return Ok(Call::Answer(info));
    }
    let session_id = row.session.uuid();
    let interest = own_events(&session_id)?;
    dialect.open_own((session_id, interest), after, turn, move |id| {
        info["subscriptionId"] = id.into();
        info
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    orchestrator_id: String,
    session_type: String,
    task: Task,
    memory_profile: Option<Value>,
    subscribe: bool,
}

#[derive(Deserialize)]
struct Task {
    #[serde(rename = "type")]
    kind: String,
    description: String,
    priority: String,
    metadata: Option<Value>,
}

/// What becomes of what a session is made with.
fn notes(has_metadata: bool) -> Value {
    let mut notes = json!({
        "task": "the agent has it before it at every prompt; it is none itself, so say what to do with prompt.submit",
        "task.priority": "told to the agent; it puts no prompt before another",
    });
    put(&mut notes, "task.metadata", has_metadata.then_some("kept and told again"));
    notes
}

/// `session.create`: answered at once; nothing runs in it before it is prompted.
pub(super) fn create(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let Create { orchestrator_id, session_type, task, memory_profile, subscribe } = request.read()?;
    if subscribe {
        wundr.check_room()?;
    }
    if memory_profile.is_some_and(|profile| !profile.is_null()) {
        let why =
            "memoryProfile: not supported: there are no profiles of memory to choose from; leave it out";
        return Err(request.invalid(why));
    }
    let agent = wundr.agent_named(&orchestrator_id);
    let notes = notes(task.metadata.is_some());
    let uuid = turn.run_id();
    let session = SessionKey::new(&agent, SessionKey::UUID_CHANNEL, uuid.as_str(), SessionKey::DEFAULT_PEER)?;
    let assignment = Assignment {
        lead: orchestrator_id,
        kind: session_type,
        task: task.kind,
        description: task.description,
        priority: task.priority,
        metadata: task.metadata.unwrap_or_default(),
    };
    let patch = Patch { assignment: Some(Some(Box::new(assignment))), ..Patch::default() };
    let create = CreateSession { target: Target::Session(session), patch };
    Call::ask_on(create, move |wundr: &mut Wundr, row, turn| {
        let mut info = info(&row, &wundr.owner);
        info["notes"] = notes;
        // From its beginning on, so that it is told of it as well.
        answer_with(wundr, (&row, info), subscribe, Some(Seq(0)), turn)
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resume {
    session_id: String,
    subscribe: bool,
    last_seq: Option<u64>,
}

/// `session.resume`: tells what was missed, and from there on.
pub(super) fn resume(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Resume { session_id, subscribe, last_seq } = request.read()?;
    if last_seq.is_some() && !subscribe {
        return Err(request.invalid("lastSeq: needs `subscribe`, which is what is told of the session"));
    }
    describe(session_id, move |dialect, row, turn| {
        answer_with(dialect, (row, info(row, &dialect.owner)), subscribe, last_seq.map(Seq), turn)
    })
}

/// Whether something is under way in a session; none where it was stopped.
pub(super) fn activity(state: SessionState) -> Option<&'static str> {
    state_words(state).1
}

/// Asks for a session that the caller may see.
pub(super) fn describe(
    session_id: String,
    then: impl FnOnce(&mut Wundr, &SessionRow, &mut Turn<'_>) -> Answered + 'static,
) -> Answered {
    Call::ask_on(DescribeSession { target: target(&session_id) }, move |dialect, row, turn| {
        then(dialect, &*row.ok_or_else(|| no_such(&session_id))?, turn)
    })
}

/// `session.status`
pub(super) fn status(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    describe(request.text("sessionId"), |dialect, row, _| Ok(Call::Answer(info(row, &dialect.owner))))
}

/// `session.stop`: ends what runs in it, and it takes no more prompts.
pub(super) fn stop(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let (session_id, reason) = (request.text("sessionId"), request.text("reason"));
    let close = Close { target: target(&session_id), reason };
    Call::ask(close, move |_, Stopped { runs, .. }, _| {
        let prompts: Vec<_> = runs.iter().map(|run| run.as_str()).collect();
        json!({ "ok": true, "sessionId": session_id, "status": TERMINATED, "prompts": prompts })
    })
}

#[derive(Deserialize)]
struct List {
    status: Option<String>,
    limit: u64,
    offset: u64,
}

/// `session.list`
pub(super) fn list(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let List { status, limit, offset } = request.read()?;
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let answer = move |sessions: Vec<Value>, total: u64| json!({ "sessions": sessions, "total": total, "limit": limit, "offset": offset });
    let (is_open, state) = match status.as_deref() {
        None => (false, None),
        Some(RUNNING) => (true, None),
        Some(PAUSED) => (true, Some(SessionState::Paused)),
        Some(TERMINATED) => (false, Some(SessionState::Closed)),
        Some(_) => return Ok(Call::Answer(answer(Vec::new(), 0))),
    };
    let filter = SessionFilter {
        limit: number(limit),
        offset: number(offset),
        is_open,
        state,
        with_texts: true,
        ..SessionFilter::default()
    };
    Call::ask(filter, move |dialect, list, _| {
        let rows = list.rows.iter().map(|row| info(row, &dialect.owner));
        answer(rows.collect(), list.total)
    })
}

impl Wundr {
    /// The agent of this name where there is one, else the default agent.
    pub(super) fn agent_named(&self, name: &str) -> String {
        let catalog = &self.setup.catalog;
        let known = catalog.agent(name).map(|agent| &agent.id);
        known.or(catalog.default_agent.as_ref()).map_or_else(|| "main".to_owned(), ToString::to_string)
    }
}
