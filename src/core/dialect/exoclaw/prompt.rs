//! `chat.send`: a prompt with what it brings along.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::wire::{self, Place};
use super::{Call, Opens, RunStream, Stream, Streaming};
use crate::conversation::command::Submit;
use crate::conversation::reply::Accepted;
use crate::dialect::Turn;
use crate::dialect::json::{Params, clip, invalid};
use crate::error::Error;
use crate::prompt::attachment::{self, ATTACHMENTS_MAX, Attachment};
use crate::prompt::run_options::RunOptions;

/// The most bytes an idempotency key may have.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;

const METHOD: &str = "chat.send";

/// The parameters, besides the session.
#[derive(Deserialize)]
struct ChatSend<'a> {
    content: Option<String>,
    idempotency_key: Option<String>,
    /// The model that answers this prompt.
    model: Option<String>,
    #[serde(borrow)]
    attachments: Option<Vec<File<'a>>>,
    /// Whether the run is told under the id of the request.
    follow: Option<bool>,
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    media_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
}

/// The request in neutral words.
///
/// # Errors
/// `InvalidRequest` where its parameters are wrong, `TooLarge` where it brings too much along.
pub(super) fn send(params: Params<'_>, turn: &mut Turn<'_>) -> Result<Call, Error> {
    let submit = read(params, turn)?;
    let opens = Opens::Run { target: submit.target.clone(), run: submit.run.clone() };
    let (keyed, follow) = (submit.idempotency_key.is_some(), submit.follow);
    let call =
        Call::ask_on(submit, move |exoclaw, (ticket, id), Accepted { session, run, seq, .. }, turn| {
            if keyed {
                turn.send(wire::accepted(&id, &run, seq));
            }
            if follow {
                let told = Streaming::Run(RunStream { session, run, begun: keyed, keyed });
                exoclaw.streams.push(Stream { ticket, id, told });
            }
        });
    Ok(Call { opens, ..call })
}

fn read(params: Params<'_>, turn: &mut Turn<'_>) -> Result<Submit, Error> {
    let target = params.read::<Place>(METHOD)?.target(METHOD)?;
    let chat = params.read::<ChatSend<'_>>(METHOD)?;
    let content = chat.content.ok_or_else(|| invalid(METHOD, "missing field `content`"))?;
    let files = chat.attachments.unwrap_or_default();
    if content.trim().is_empty() && files.is_empty() {
        return Err(invalid(METHOD, "content is blank"));
    }
    if let Some(key) = &chat.idempotency_key
        && (key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX)
    {
        let why = format!("idempotency_key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
        return Err(invalid(METHOD, &why));
    }
    let follow = chat.follow.unwrap_or(true);
    if !follow && chat.idempotency_key.is_none() {
        return Err(invalid(METHOD, "follow: false needs an idempotency_key, which the answer is for"));
    }
    let model = chat.model.map(|model| model.trim().to_owned());
    if model.as_ref().is_some_and(String::is_empty) {
        return Err(invalid(METHOD, "model is blank: name one as PROVIDER/MODEL"));
    }
    if files.len() > ATTACHMENTS_MAX {
        let why = format!("{} attachments are more than {ATTACHMENTS_MAX}", files.len());
        return Err(invalid(METHOD, &why));
    }
    let attachments = files.iter().map(attachment).collect::<Result<Vec<_>, _>>()?;
    attachment::check(&attachments)?;
    Ok(Submit {
        target,
        run: turn.run_id(),
        content,
        idempotency_key: chat.idempotency_key,
        attachments,
        files: Vec::new(),
        local_files: Vec::new(),
        run_options: RunOptions { model, ..RunOptions::default() },
        follow,
    })
}

fn attachment(file: &File<'_>) -> Result<Attachment, Error> {
    let name = file.name.as_deref();
    let refuse = |why: &str| {
        let name = clip(name.unwrap_or("without a name"));
        invalid(METHOD, &format!("attachment {name}: {why}"))
    };
    let data = file.data.as_deref().ok_or_else(|| refuse("missing field `data`"))?;
    let data = BASE64_STANDARD.decode(data).map_err(|_| refuse("data is not base64"))?;
    Attachment::new(name, file.media_type.as_deref(), data.into())
}
