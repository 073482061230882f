//! What was said in a session, for who was not told of it as it was said.

use serde::Deserialize;
use serde_json::{Value, json};

use super::sessions::{self, ACTIVITY, SESSION, describe, target};
use super::shape::{COUNT, Field, NAME, Shape, TEXT, default, optional, required};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::conversation::command::{Before, ReadHistory};
use crate::conversation::transcript::{Message, Role};
use crate::dialect::json::put;
use crate::ids::RunId;

/// How many messages one page has.
const PAGE_MAX: i64 = 200;

const USER: &str = "user";
const ASSISTANT: &str = "assistant";

const PLACE: &[Field] = &[
    required("promptId", NAME, "the prompt"),
    required("role", Shape::OneOf(&[USER, ASSISTANT]), "the prompt itself, or its answer"),
];

/// The parameters of `session.history`.
pub(super) const ASKED: &[Field] = &[
    SESSION,
    default("limit", Shape::Integer(1, PAGE_MAX), "50", "at most so many messages, the newest"),
    optional(
        "before",
        Shape::Object(PLACE),
        "only those before this one: `olderBefore` of the page behind it",
    ),
];

const SAID: &[Field] = &[
    required("promptId", NAME, "the prompt it is or answers"),
    required("role", Shape::OneOf(&[USER, ASSISTANT]), "who said it"),
    required("content", TEXT, "what was said: of an answer the text of all its steps"),
    required("timestamp", Shape::Time, "when; of an answer when it ended"),
    optional(
        "truncated",
        Shape::Flag,
        "whether that is only the beginning, as it alone is too long for a page: session.resume with lastSeq 0 \
         tells all of it",
    ),
    optional("attachments", Shape::List(&TEXT, 0, usize::MAX), "the names of what it brought along"),
];

/// What `session.history` is answered.
pub(super) const TOLD: &[Field] = &[
    SESSION,
    required(
        "messages",
        Shape::List(&Shape::Object(SAID), 0, usize::MAX),
        "oldest first, within 256 KiB: prompts, and answers that are over, be they cut short",
    ),
    optional(
        "olderBefore",
        Shape::Object(PLACE),
        "what to give as `before` for the page of older ones, if any",
    ),
    ACTIVITY,
    required("sessionSeq", COUNT, "nothing up to this number is missing: session.resume goes on from it"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HistoryParams {
    session_id: String,
    limit: usize,
    before: Option<Place>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    prompt_id: String,
    role: String,
}

fn role(role: Role) -> &'static str {
    match role {
        Role::User => USER,
        Role::Assistant => ASSISTANT,
    }
}

fn said(message: &Message) -> Value {
    let mut said = json!({
        "promptId": message.run.as_str(),
        "role": role(message.role),
        "content": message.content,
        "timestamp": message.at.to_rfc3339(),
    });
    put(&mut said, "truncated", message.clipped.then_some(true));
    if !message.attachments.is_empty() {
        let name =
            |attachment: &crate::prompt::attachment::Attachment| attachment.name().unwrap_or("").to_owned();
        said["attachments"] = message.attachments.iter().map(name).collect();
    }
    said
}

/// `session.history`
pub(super) fn history(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let HistoryParams { session_id, limit, before } = request.read()?;
    let before = before.map(|Place { prompt_id, role }| Before {
        run: RunId::from(prompt_id),
        role: if role == USER { Role::User } else { Role::Assistant },
    });
    // First how far it is, then what was said: so nothing up to there is missing.
    describe(session_id.clone(), move |_, row, _| {
        let mut told = json!({ "sessionId": row.session.uuid(), "sessionSeq": row.head.0 });
        put(&mut told, "activity", sessions::activity(row.state));
        Call::ask(ReadHistory { target: target(&session_id), limit, before }, move |_, history, _| {
            told["messages"] = history.messages.iter().map(said).collect();
            let oldest = history.messages.first().filter(|_| history.more);
            let place =
                |oldest: &Message| json!({ "promptId": oldest.run.as_str(), "role": role(oldest.role) });
            put(&mut told, "olderBefore", oldest.map(place));
            told
        })
    })
}
