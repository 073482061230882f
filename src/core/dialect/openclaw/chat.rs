//! Talking: prompts, what becomes of them, and what was said.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use super::follow::Known;
use super::stream::{End, Frame, Told, usage_of, wire_run};
use super::wire::{Failure, Protocol};
use super::{Call, OpenClaw, Request, keys, misfit, slash, stream, target, wire};
use crate::attachment::{self, Attachment};
use crate::command::{Command, Submit};
use crate::dialect::Turn;
use crate::error::{Error, ErrorCode};
use crate::event::Outcome;
use crate::ids::{RunId, Seq, SessionKey};
use crate::reply::{Entry, LastRun, Reply, Said, Transcript, UnderWay};
use crate::thinking::Thinking;
use crate::time::Timestamp;

/// The most bytes an idempotency key may have.
pub(super) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;

/// How many messages a history has where the client does not say, and at most.
const HISTORY_DEFAULT: u64 = 200;
const HISTORY_MAX: u64 = 1000;

/// How many bytes a history has at most, as JSON.
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// How long after the answer to a prompt its end is told at the earliest.
const END_AFTER_ANSWER: Duration = Duration::from_millis(40);

/// How long ago a run may have ended that a page is told the end of when it comes back.
const MISSED_MAX: Duration = Duration::from_secs(10 * 60);

/// Words that end what runs when they are all of a message. (Source: Clawdbot's gateway.)
const STOP_WORDS: [&str; 7] = ["/stop", "stop", "esc", "abort", "wait", "exit", "interrupt"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Send<'a> {
    #[serde(borrow)]
    session_key: Option<Cow<'a, str>>,
    message: Option<String>,
    thinking: Option<String>,
    #[serde(borrow)]
    attachments: Option<Vec<Attached<'a>>>,
    idempotency_key: Option<String>,
}

/// A file of a prompt: its bytes in base64, as a `data:` URL or without.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attached<'a> {
    mime_type: Option<Cow<'a, str>>,
    file_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
}

/// What a prompt is made of.
struct Prompt {
    session: SessionKey,
    key: String,
    content: String,
    /// The name that the client gave its run.
    name: Option<String>,
    thinking: Option<Thinking>,
    attachments: Vec<Attachment>,
}

/// Reads a prompt; none where it is not known yet which session it is for.
fn prompt(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Option<Prompt>, Error> {
    let asked: Send<'_> = request.read()?;
    let content = asked.message.ok_or_else(|| request.invalid("must have required property 'message'"))?;
    let attachments = asked.attachments.unwrap_or_default();
    if content.trim().is_empty() && attachments.is_empty() {
        return Err(request.invalid("at /message: must not be blank"));
    }
    let name = asked.idempotency_key.filter(|key| !key.is_empty());
    if name.as_ref().is_some_and(|key| key.len() > IDEMPOTENCY_KEY_BYTES_MAX) {
        let why = format!("at /idempotencyKey: must have at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
        return Err(request.invalid(&why));
    }
    let thinking = asked.thinking.as_deref().map(|level| thinking(request, level)).transpose()?;
    let attachments =
        attachments.iter().map(|file| attachment(request, file)).collect::<Result<Vec<_>, _>>()?;
    attachment::check(&attachments)?;
    let key = asked.session_key.as_deref().unwrap_or(keys::MAIN).to_owned();
    let Some(session) = dialect.session(request, Some(&key), turn)? else { return Ok(None) };
    Ok(Some(Prompt { session, key, content, name, thinking, attachments }))
}

fn thinking(request: &Request<'_>, level: &str) -> Result<Thinking, Error> {
    Thinking::from_name(level).ok_or_else(|| {
        request.invalid(&format!(
            "at /thinking: no such level: {} (use off|minimal|low|medium|high|xhigh)",
            wire::complaint(level)
        ))
    })
}

fn attachment(request: &Request<'_>, file: &Attached<'_>) -> Result<Attachment, Error> {
    let name = file.file_name.as_deref();
    let refuse = |why: &str| {
        let name = wire::complaint(name.unwrap_or("without a name"));
        request.invalid(&format!("at /attachments: attachment {name}: {why}"))
    };
    let content = file.content.as_deref().ok_or_else(|| refuse("must have required property 'content'"))?;
    let encoded = match content.strip_prefix("data:").and_then(|url| url.split_once(";base64,")) {
        Some((_, encoded)) => encoded,
        None => content,
    };
    let data = BASE64.decode(encoded.trim()).map_err(|_| refuse("its content is not base64"))?;
    Attachment::new(name, file.mime_type.as_deref(), data.into())
}

impl Prompt {
    /// The command, for the run `run`.
    fn submit(self, run: RunId) -> Command {
        Command::Submit(Submit {
            target: target(&self.session),
            run,
            content: self.content,
            idempotency_key: self.name,
            attachments: self.attachments,
            thinking: self.thinking,
        })
    }
}

/// `chat.send`: answered at once with the run's name; what it says comes as events.
pub(super) fn send(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    let prompt = match prompt(dialect, request, turn) {
        Ok(Some(prompt)) => prompt,
        Ok(None) => return Ok(Call::Elsewhere),
        Err(error) => {
            dialect.tell_refused(request, &error, turn);
            return Err(error);
        }
    };
    dialect.follow(&prompt.session, &prompt.key, None, turn);
    if STOP_WORDS.iter().any(|word| prompt.content.trim().eq_ignore_ascii_case(word)) {
        return Call::ask(Command::Stop { target: target(&prompt.session) }, stopped);
    }
    let run = turn.run_id();
    let (key, name) = (prompt.key.clone(), prompt.name.clone().unwrap_or_else(|| run.to_string()));
    if let Some(command) = slash::parse(&prompt.content) {
        return slash::answer(command, slash::Asked { session: prompt.session, key, run: name });
    }
    Call::ask(prompt.submit(run), move |dialect, reply, turn| match reply {
        Ok(Reply::Accepted(accepted)) => {
            dialect.expect(&accepted.run, &name, &key, after_answer(turn.now()));
            let status = match accepted.repeated {
                false => "started",
                true if dialect.ended.contains(&accepted.run) => "ok",
                true => "in_flight",
            };
            Ok(Call::Answer(json!({ "runId": name, "status": status })))
        }
        Ok(_) => Err(misfit()),
        Err(error) => {
            // Moltz shows nothing of a refusal that is only an answer.
            dialect.emit("chat", &stream::failed(&name, &key, &error), turn);
            Err(error)
        }
    })
}

impl OpenClaw {
    /// A run that the client asked for itself is told under the names it gave; its end, not before
    /// `quiet_until`.
    pub(super) fn expect(&mut self, run: &RunId, name: &str, key: &str, quiet_until: Timestamp) {
        if self.ended.contains(run) {
            // Its end was told; who asks for it again is answered from the log.
            return;
        }
        let protocol = self.protocol;
        let told = self.runs.entry(run.clone()).or_insert_with(|| Told::new(protocol, name, Some(key)));
        told.tell_as(key);
        told.quiet_until = quiet_until;
        // Who waited for it before it was there.
        let known = self.vain.extract_if(.., |vain| vain.run == name);
        told.waiting.extend(known.map(|vain| (vain.id, vain.until)));
    }

    /// Tells a client that looks at nothing but events that its prompt was refused.
    fn tell_refused(&mut self, request: &Request<'_>, error: &Error, turn: &mut Turn<'_>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Names {
            session_key: Option<String>,
            idempotency_key: Option<String>,
        }
        if let Ok(Names { session_key, idempotency_key: Some(run) }) = request.read() {
            let key = session_key.as_deref().unwrap_or(keys::MAIN);
            self.emit("chat", &stream::failed(&run, key, error), turn);
        }
    }

    /// The names on the wire of these runs.
    fn names(&self, runs: &[RunId]) -> Vec<String> {
        runs.iter().map(|run| self.runs.get(run).map_or(run.as_str(), |told| told.run()).to_owned()).collect()
    }
}

/// When the end of a run may follow the answer to `chat.send`. The terminal clients take all frames
/// that arrive together before they go on from their request, and would wait for ever for an end that
/// was among them.
pub(super) fn after_answer(now: Timestamp) -> Timestamp {
    now.after(END_AFTER_ANSWER)
}

/// The answer to whoever stopped a session.
fn stopped(dialect: &mut OpenClaw, reply: Result<Reply, Error>, _: &mut Turn<'_>) -> Result<Call, Error> {
    let runs = match reply {
        Ok(Reply::Stopped { runs, .. }) => dialect.names(&runs),
        Ok(Reply::Aborted { run }) => dialect.names(run.as_slice()),
        Ok(_) => return Err(misfit()),
        // Nothing was ever said in it.
        Err(error) if error.code == ErrorCode::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(Call::Answer(json!({ "ok": true, "aborted": !runs.is_empty(), "runIds": runs })))
}

/// `chat.abort`: one run, or all of a session.
pub(super) fn abort(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Abort {
        session_key: Option<String>,
        run_id: Option<String>,
    }
    let asked: Abort = request.read()?;
    let Some(session) = dialect.session(request, asked.session_key.as_deref(), turn)? else {
        return Ok(Call::Elsewhere);
    };
    let Some(run) = asked.run_id else {
        return Call::ask(Command::Stop { target: target(&session) }, stopped);
    };
    let told = dialect.runs.values().find(|told| told.run() == run).and_then(Told::key);
    if told.and_then(|key| dialect.session_known(key)).is_some_and(|told_in| told_in != session) {
        return Err(ErrorCode::InvalidRequest.error("runId does not match sessionKey"));
    }
    let abort = Command::Abort { target: target(&session), run: Some(run.as_str().into()) };
    Call::ask(abort, move |dialect, reply, turn| match reply {
        // Under the name the client has for it.
        Ok(Reply::Aborted { run: Some(_) }) => {
            Ok(Call::Answer(json!({ "ok": true, "aborted": true, "runIds": [run] })))
        }
        reply => stopped(dialect, reply, turn),
    })
}

/// `chat.history`.
pub(super) fn history(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    transcript(dialect, request, turn, |dialect, transcript, key| dialect.history_payload(transcript, key))
}

/// `chat.startup`: the history with what else a page shows first.
pub(super) fn startup(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
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
) -> Result<Call, Error> {
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
    let command = Command::Transcript {
        target: target(&session),
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        bytes_max,
        at: after,
    };
    Call::ask(command, move |dialect, reply, turn| {
        let transcript = match reply {
            Ok(Reply::Transcript(transcript)) => transcript,
            Ok(_) => return Err(misfit()),
            Err(error) if error.code == ErrorCode::NotFound => Box::default(),
            Err(error) => return Err(error),
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

/// `chat.inject`: a message of the assistant that no model said.
pub(super) fn inject(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Inject {
        session_key: Option<String>,
        message: Option<String>,
        label: Option<String>,
    }
    let asked: Inject = request.read()?;
    let message = asked.message.filter(|message| !message.trim().is_empty());
    let message =
        message.ok_or_else(|| request.invalid("must have required property 'message', not blank"))?;
    let key = asked.session_key.unwrap_or_else(|| keys::MAIN.into());
    let Some(session) = dialect.session(request, Some(&key), turn)? else { return Ok(Call::Elsewhere) };
    dialect.follow(&session, &key, None, turn);
    let content = match asked.label.filter(|label| !label.is_empty()) {
        Some(label) => format!("[{label}]\n\n{message}"),
        None => message,
    };
    Call::ask(Command::Inject { target: target(&session), content }, |_, reply, _| match reply? {
        // Whoever follows the session is told it as an event.
        Reply::Injected { message, .. } => Ok(Call::Answer(json!({ "ok": true, "messageId": message }))),
        _ => Err(misfit()),
    })
}

/// `agent`: answered twice, when the prompt is accepted and when its run has ended.
pub(super) fn agent(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Agent {
        agent_id: Option<String>,
        session_key: Option<String>,
    }
    let asked: Agent = request.read()?;
    let Some(mut prompt) = prompt(dialect, request, turn)? else { return Ok(Call::Elsewhere) };
    if let (Some(agent), None) = (&asked.agent_id, &asked.session_key) {
        if dialect.setup.catalog.agent(agent).is_none() {
            return Err(request.invalid(&format!("at /agentId: no agent named {}", wire::complaint(agent))));
        }
        prompt.key = format!("agent:{agent}:{}", keys::MAIN);
        let Some(session) = dialect.session(request, Some(&prompt.key), turn)? else {
            return Ok(Call::Elsewhere);
        };
        prompt.session = session;
    }
    dialect.follow(&prompt.session, &prompt.key, None, turn);
    let run = turn.run_id();
    let (key, id) = (prompt.key.clone(), request.id.to_owned());
    let name = prompt.name.clone().unwrap_or_else(|| run.to_string());
    Call::ask(prompt.submit(run), move |dialect, reply, turn| match reply? {
        Reply::Accepted(accepted) => {
            dialect.expect(&accepted.run, &name, &key, turn.now());
            let accepted_at = turn.now().as_millis();
            let payload = json!({ "runId": name, "status": "accepted", "acceptedAt": accepted_at });
            turn.send(wire::answer(&id, &payload));
            if dialect.ended.contains(&accepted.run) {
                // It was told to its end: that is read again, for this answer alone.
                dialect.ended.retain(|run| *run != accepted.run);
                let told = Told::new(dialect.protocol, &name, None);
                dialect.runs.insert(accepted.run.clone(), told);
            }
            if let Some(told) = dialect.runs.get_mut(&accepted.run) {
                told.asked.push(id);
            }
            Ok(Call::Elsewhere)
        }
        _ => Err(misfit()),
    })
}

/// The second answer to `agent`.
pub(super) fn agent_ended(id: &str, told: &Told, end: &End, now: Timestamp) -> String {
    // It was made by us.
    let text: String = serde_json::from_str(&format!("\"{}\"", end.text)).unwrap_or_default();
    let started = told.started.unwrap_or(now);
    let duration = u64::try_from(now.since(started).as_millis()).unwrap_or(u64::MAX);
    let payloads = if text.is_empty() { json!([]) } else { json!([{ "text": text, "mediaUrl": null }]) };
    let result = json!({
        "payloads": payloads,
        "meta": {
            "durationMs": duration,
            "agentMeta": { "usage": usage_of(end.usage) },
            "aborted": end.outcome == Outcome::Aborted,
        },
    });
    match &end.outcome {
        Outcome::Completed | Outcome::Aborted => {
            let summary = if end.outcome == Outcome::Completed { "completed" } else { "aborted" };
            let payload =
                json!({ "runId": told.run(), "status": "ok", "summary": summary, "result": result });
            wire::answer(id, &payload)
        }
        Outcome::Failed(error) => {
            let payload = json!({ "runId": told.run(), "status": "error", "summary": error.message });
            let failure = Failure { code: "UNAVAILABLE", ..Failure::of(error, Protocol::Three) };
            wire::refusal_with(id, &payload, &failure)
        }
    }
}
