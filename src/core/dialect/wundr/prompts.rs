//! Prompts: submitted and cancelled. What becomes of them is told as events ([`super::stream`]).
//!
//! `stream: false` has the connection that submits it told the text in one piece, at its end; others who
//! subscribed are told as it comes. A prompt's `model` is one that the configuration names; its
//! `maxTokens` holds as far as the agent may answer.

use serde::Deserialize;
use serde_json::{Value, json};

use super::sessions::{SESSION, target};
use super::shape::{COUNT, Field, INTEGER_MAX, NAME, SAID, Shape, default, optional, required};
use super::{Answered, Call, Request, Turn, Wundr, files};
use crate::conversation::command::{Abort, Submit};
use crate::conversation::reply::{Aborted, Accepted};
use crate::dialect::json::put;
use crate::ids::RunId;
use crate::prompt::run_options::{PROMPT_COST, RunOptions};

/// What a prompt costs, in units of `[limits]`.
pub(super) const COST: u32 = PROMPT_COST;

/// The parameters of `prompt.submit`.
pub(super) const SUBMIT: &[Field] = &[
    SESSION,
    required("prompt", SAID, "what to say"),
    optional("context", Shape::Any, "what to know for it, put before it: a text, or anything as JSON"),
    default(
        "stream",
        Shape::Flag,
        "true",
        "false = this connection is told the text in one stream.chunk before stream.end; one of more than 256 KiB \
         in several",
    ),
    optional("model", NAME, "which answers, PROVIDER/MODEL or MODEL; absent = the session's"),
    optional(
        "maxTokens",
        Shape::Integer(1, INTEGER_MAX),
        "of the answer at most; no more than the agent may give",
    ),
    optional("attachments", files::ATTACHMENTS, "files that were uploaded, for the model to see"),
    optional("idempotencyKey", Shape::Text(1, 256), "the same key is the same prompt, asked for once"),
];

/// What `prompt.submit` is answered.
pub(super) const SUBMITTED: &[Field] = &[
    required("promptId", NAME, "names it from here on"),
    SESSION,
    required("status", Shape::OneOf(&["accepted"]), "it is kept, and runs when its turn comes"),
    required("repeated", Shape::Flag, "whether its idempotency key named one that was there"),
    required("sessionSeq", COUNT, "its number in the session's log"),
];

/// The parameters of `prompt.cancel`.
pub(super) const CANCEL: &[Field] =
    &[SESSION, optional("promptId", NAME, "which; absent = the one under way")];

/// What `prompt.cancel` is answered.
pub(super) const CANCELLED: &[Field] = &[
    required("ok", Shape::Flag, "true"),
    SESSION,
    required("cancelled", Shape::Flag, "whether there was one to cancel"),
    optional("promptId", NAME, "the one that was cancelled"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubmitParams {
    session_id: String,
    prompt: String,
    context: Option<Value>,
    stream: bool,
    model: Option<String>,
    max_tokens: Option<u64>,
    attachments: Option<Value>,
    idempotency_key: Option<String>,
}

/// `prompt.submit`: answered at once, when the prompt is kept.
pub(super) fn submit(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let asked: SubmitParams = request.read()?;
    if asked.prompt.trim().is_empty() {
        return Err(request.invalid("prompt: must not be blank"));
    }
    let run_options = RunOptions {
        model: asked.model,
        max_tokens: asked.max_tokens.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        ..RunOptions::default()
    };
    let submit = Submit {
        target: target(&asked.session_id),
        run: turn.run_id(),
        content: with_context(asked.prompt, asked.context),
        idempotency_key: asked.idempotency_key,
        attachments: Vec::new(),
        files: files::attached(asked.attachments.as_ref())?,
        local_files: Vec::new(),
        run_options,
        follow: false,
    };
    let is_whole = !asked.stream;
    if is_whole {
        // Its events may come before the answer.
        wundr.following.tell_whole(submit.run.clone());
    }
    Call::ask(submit, move |wundr, Accepted { session, run, seq, repeated, .. }, _| {
        if is_whole {
            wundr.following.tell_whole(run.clone());
        }
        json!({
            "promptId": run.as_str(),
            "sessionId": session.uuid(),
            "status": "accepted",
            "repeated": repeated,
            "sessionSeq": seq.0,
        })
    })
}

/// A prompt with what is to be known for it.
fn with_context(prompt: String, context: Option<Value>) -> String {
    let context = match context {
        None | Some(Value::Null) => return prompt,
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    if context.trim().is_empty() {
        return prompt;
    }
    format!("Context:\n{context}\n\n{prompt}")
}

/// `prompt.cancel`: one that is over stays as it is.
pub(super) fn cancel(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let session_id = request.text("sessionId");
    let run = request.text_if_any("promptId").map(RunId::from);
    let abort = Abort { target: target(&session_id), run };
    Call::ask(abort, move |_, Aborted { run }, _| {
        let mut answer = json!({ "ok": true, "sessionId": session_id, "cancelled": run.is_some() });
        put(&mut answer, "promptId", run.as_ref().map(RunId::as_str));
        answer
    })
}
