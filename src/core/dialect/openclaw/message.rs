//! `session.message`: a message that became a part of a conversation, as its history has it, for those
//! who asked for a session's messages.
//!
//! Its place in the conversation is left out: who needs it reads the history.

use serde_json::json;

use super::stream::{End, Frame, RunStream, incomplete, usage_of};
use crate::conversation::event::{Event, Logged, Outcome};
use crate::conversation::transcript::Entry;
use crate::ids::{RunId, SessionKey};

/// What is told of a prompt that was accepted.
pub(super) fn prompted(session: &SessionKey, key: &str, told: &RunStream, logged: &Logged) -> Option<Frame> {
    let (Event::Prompted { content, .. }, Some(run)) = (&logged.event, &logged.run) else { return None };
    let id = Entry::prompt_id(run);
    let message = json!({
        "role": "user",
        "content": [{ "type": "text", "text": content }],
        "timestamp": logged.at.as_millis(),
        "idempotencyKey": format!("{}:user", told.run()),
        "__openclaw": { "id": id },
    });
    Some(frame(session, key, &id, &message))
}

/// What is told of the answer of a run that has ended; none where it said nothing.
pub(super) fn answered(
    session: &SessionKey,
    key: &str,
    told: &RunStream,
    run: &RunId,
    end: &End,
) -> Option<Frame> {
    if end.text.is_empty() {
        return None;
    }
    let id = Entry::answer_id(run);
    let stop = match &end.outcome {
        Outcome::Completed => "stop",
        Outcome::Incomplete(why) => incomplete(*why),
        Outcome::Aborted(_) => "aborted",
        Outcome::Failed(_) => "error",
    };
    let message = json!({
        "role": "assistant",
        "content": [{ "type": "text", "text": end.plain_text() }],
        "timestamp": end.at.as_millis(),
        "stopReason": stop,
        "usage": usage_of(end.usage),
        "__openclaw": { "id": id, "runId": told.run() },
    });
    Some(frame(session, key, &id, &message))
}

fn frame(session: &SessionKey, key: &str, id: &str, message: &serde_json::Value) -> Frame {
    let agent = session.agent();
    let payload = json!({ "sessionKey": key, "agentId": &*agent, "message": message, "messageId": id });
    Frame::Message(payload.to_string())
}
