//! What was said: histories, with what else a page shows first.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::follow::Known;
use super::stream::{Frame, usage_of, wire_run};
use super::wire::Protocol;
use super::{Answered, Call, OpenClaw, Request, keys, stream, target};
use crate::conversation::command::ReadTranscript;
use crate::conversation::reply::{LastRun, UnderWay};
use crate::conversation::transcript::{Entry, Said, Transcript};
use crate::dialect::Turn;
use crate::error::ErrorCode;
use crate::ids::{RunId, Seq, SessionKey};
use crate::prompt::thinking::Thinking;

/// How many messages a history has where the client does not say, and at most.
const HISTORY_DEFAULT: u64 = 200;
const HISTORY_MAX: u64 = 1000;

/// How many bytes a history has at most, as JSON.
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// How long ago a run may have ended that a page is told the end of when it comes back.
const MISSED_MAX: Duration = Duration::from_secs(10 * 60);

/// `chat.history`.
pub(super) fn history(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    transcript(dialect, request, turn, |dialect, transcript, key| dialect.history_payload(transcript, key))
}

/// `chat.startup`: the history with what else a page shows first.
pub(super) fn startup(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    transcript(dialect, request, turn, |dialect, transcript, key| {
        let mut payload = dialect.history_payload(transcript, key);
        payload["agentsList"] = dialect.agents();
        payload
    })
}

/// Reads a session's history and follows it from where that ends.
fn transcript(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
    payload: fn(&OpenClaw, &Transcript, &str) -> Value,
) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct History {
        session_key: Option<String>,
        limit: Option<u64>,
        max_bytes: Option<u64>,
        after_seq: Option<u64>,
    }
    let asked: History = request.read()?;
    let limit = asked.limit.unwrap_or(HISTORY_DEFAULT).clamp(1, HISTORY_MAX);
    let bytes_max = asked.max_bytes.map_or(HISTORY_BYTES_MAX, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX).min(HISTORY_BYTES_MAX)
    });
    let key = asked.session_key.unwrap_or_else(|| keys::MAIN.into());
    let Some(session) = dialect.session(request, Some(&key), turn)? else { return Ok(Call::Elsewhere) };
    let after = asked.after_seq.map(Seq);
    let read = ReadTranscript {
        target: target(&session),
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        bytes_max,
        at: after,
    };
    Call::ask_either(read, move |dialect, reply, turn| {
        let transcript = match reply {
            Err(error) if error.code == ErrorCode::NotFound => Box::default(),
            transcript => transcript?,
        };
        let answer = payload(dialect, &transcript, &key);
        // A number that is not there yet is of a log that was put back to an older copy.
        let after = after.unwrap_or(transcript.head).min(transcript.head);
        dialect.tell_missed_end(&session, &transcript, &key, turn);
        let Transcript { under_way, queued, .. } = *transcript;
        let known = Known { after, under_way, queued };
        dialect.follow(&session, &key, Some(known), turn);
        Ok(Call::Answer(answer))
    })
}

impl OpenClaw {
    /// Clawdbot's page shows a run as under way until it is told its end, which may have been while it
    /// was cut off. So it is told that once, behind the first history of a session on its connection.
    /// To a page that knows nothing of the run it means nothing.
    fn tell_missed_end(
        &mut self,
        session: &SessionKey,
        transcript: &Transcript,
        key: &str,
        turn: &mut Turn<'_>,
    ) {
        if self.protocol != Protocol::Three || !self.is_page || self.followed.contains_key(session) {
            return;
        }
        let Some(row) = transcript.row.as_ref().filter(|row| row.running.is_empty()) else { return };
        let Some(LastRun { run, ended: Some(ended), .. }) = &row.last_run else { return };
        let now = turn.now();
        if transcript.under_way.is_none() && now.since(*ended) <= MISSED_MAX {
            let payload = stream::ended(run.as_str(), key, transcript.head);
            self.tell_at(now.after(Duration::from_millis(1)), vec![Frame::Chat(payload)], None, turn);
        }
    }

    fn history_payload(&self, transcript: &Transcript, key: &str) -> Value {
        let row = transcript.row.as_ref();
        let mut messages: Vec<Value> = Vec::with_capacity(transcript.entries.len());
        // What the client calls the run of the entry: its prompt says so, and comes first.
        let mut named: Option<(&RunId, &str)> = None;
        for entry in &transcript.entries {
            let mut message = message(entry);
            match (&entry.said, &entry.run) {
                (Said::User { idempotency_key, .. }, Some(run)) => {
                    named = Some((run, wire_run(run, idempotency_key.as_deref())));
                }
                (_, run) => {
                    if let Some((_, name)) = named.filter(|(named, _)| Some(*named) == run.as_ref()) {
                        message["__openclaw"]["runId"] = name.into();
                    }
                }
            }
            messages.push(message);
        }
        let mut payload = json!({
            "sessionKey": key,
            "messages": messages,
            "thinkingLevel": row.and_then(|row| row.settings.thinking).unwrap_or(Thinking::Off).name(),
        });
        if let Some(row) = row {
            payload["sessionId"] = row.session_id.as_str().into();
            if let Some(level) = row.settings.display.get("verboseLevel") {
                payload["verboseLevel"] = level.clone();
            }
        }
        payload["hasMore"] = (transcript.total > transcript.entries.len() as u64).into();
        payload["totalMessages"] = transcript.total.into();
        payload["defaults"] = self.session_defaults();
        if let Some(row) = row {
            payload["sessionInfo"] = self.session_row(row);
        }
        if let Some(UnderWay { run, idempotency_key, text, seq, .. }) = &transcript.under_way {
            let run = wire_run(run, idempotency_key.as_deref());
            payload["inFlightRun"] = json!({ "runId": run, "text": text, "seq": seq.0 });
        }
        payload
    }
}

/// A message of a history.
fn message(entry: &Entry) -> Value {
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let mut message = match &entry.said {
        Said::User { text: said, idempotency_key, attachments } => {
            let mut content = text(said);
            for attachment in attachments {
                let (name, bytes) = (attachment.name().unwrap_or("attachment"), attachment.bytes());
                let note = format!("[{name}: {}, {bytes} bytes]", attachment.media_type());
                if let Some(content) = content.as_array_mut() {
                    content.push(json!({ "type": "text", "text": note }));
                }
            }
            let mut message = json!({ "role": "user", "content": content });
            let run = entry.run.as_ref().map(|run| wire_run(run, idempotency_key.as_deref()));
            if let Some(run) = run {
                message["idempotencyKey"] = format!("{run}:user").into();
            }
            message
        }
        Said::Assistant { text: said, model, usage, is_aborted, error } => {
            let stop = match (is_aborted, error) {
                (true, _) => "aborted",
                (false, Some(_)) => "error",
                (false, None) => "stop",
            };
            let content = match error {
                // Nobody shows an empty message, or where else the error is said.
                Some(error) if said.is_empty() => text(&format!("Error: {error}")),
                _ => text(said),
            };
            let mut message = json!({
                "role": "assistant",
                "content": content,
                "usage": usage_of(*usage),
                "stopReason": stop,
            });
            if let Some(model) = model {
                message["api"] = "clawmux".into();
                message["provider"] = model.provider.as_str().into();
                message["model"] = model.model.as_str().into();
            }
            if let Some(error) = error {
                message["errorMessage"] = error.as_str().into();
            }
            message
        }
        Said::Tool { call, name, text: said, is_error } => json!({
            "role": "toolResult",
            "toolCallId": call.as_str(),
            "toolName": name.as_str(),
            "content": text(said),
            "isError": is_error,
        }),
    };
    message["timestamp"] = entry.at.as_millis().into();
    message["__openclaw"] = json!({ "id": entry.id, "seq": entry.place });
    message
}
