//! Talking: prompts, and what becomes of them.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::json;

use super::stream::{End, RunStream, usage_of};
use super::wire::{Failure, Protocol};
use super::{Answered, Call, OpenClaw, Request, keys, misfit, slash, stream, target, wire};
use crate::conversation::command::{self, DescribeSession, Stop, Submit};
use crate::conversation::event::{Cause, Outcome};
use crate::conversation::reply::{Accepted, Injected, Stopped};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::ids::{RunId, SessionKey};
use crate::prompt::attachment::{self, Attachment};
use crate::prompt::run_options::RunOptions;
use crate::prompt::thinking::Thinking;
use crate::target::Target;
use crate::time::Timestamp;

/// The most bytes an idempotency key may have.
pub(super) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;

/// How long after the answer to a prompt its end is told at the earliest, to older clients and to newer
/// ones.
const END_AFTER_ANSWER: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(40));

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
    /// After how long its run is ended: of `chat.send` in milliseconds, of `agent` in seconds; none and 0
    /// = never.
    timeout_ms: Option<u64>,
    timeout: Option<u64>,
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
    run_options: RunOptions,
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
    let timeout = match request.method.name {
        "agent" => asked.timeout.map(Duration::from_secs),
        _ => asked.timeout_ms.map(Duration::from_millis),
    };
    let timeout = timeout.filter(|timeout| !timeout.is_zero());
    let run_options = RunOptions { timeout, ..thinking.into() };
    let attachments =
        attachments.iter().map(|file| attachment(request, file)).collect::<Result<Vec<_>, _>>()?;
    attachment::check(&attachments)?;
    let key = asked.session_key.as_deref().unwrap_or(keys::MAIN).to_owned();
    let Some(session) = dialect.session(request, Some(&key), turn)? else { return Ok(None) };
    Ok(Some(Prompt { session, key, content, name, run_options, attachments }))
}

fn thinking(request: &Request<'_>, level: &str) -> Result<Thinking, Error> {
    Thinking::from_name(level).ok_or_else(|| {
        request.invalid(&format!(
            "at /thinking: no such level: {} (use off|minimal|low|medium|high|xhigh)",
            clip(level)
        ))
    })
}

fn attachment(request: &Request<'_>, file: &Attached<'_>) -> Result<Attachment, Error> {
    let name = file.file_name.as_deref();
    let refuse = |why: &str| {
        let name = clip(name.unwrap_or("without a name"));
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
    fn submit(self, run: RunId) -> Submit {
        Submit {
            target: target(&self.session),
            run,
            content: self.content,
            idempotency_key: self.name,
            attachments: self.attachments,
            files: Vec::new(),
            local_files: Vec::new(),
            run_options: self.run_options,
            follow: true,
        }
    }
}

/// `chat.send`: answered at once with the run's name; what it says comes as events.
pub(super) fn send(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
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
        return stop(&prompt.session, Cause::Stopped);
    }
    dialect.knows_nothing(&prompt.session);
    let run = turn.run_id();
    let (key, name) = (prompt.key.clone(), prompt.name.clone().unwrap_or_else(|| run.to_string()));
    if let Some(command) = slash::parse(&prompt.content) {
        return slash::answer(command, slash::SlashOrigin { session: prompt.session, key, run: name });
    }
    Call::ask_either(prompt.submit(run), move |dialect, reply, turn| match reply {
        Ok(accepted) => {
            dialect.expect(&accepted, &name, &key, after_answer(dialect.protocol, turn.now()));
            let status = match accepted.repeated {
                false => "started",
                true if accepted.is_over => "ok",
                true => "in_flight",
            };
            Ok(Call::Answer(json!({ "runId": name, "status": status })))
        }
        Err(error) => {
            // Moltz shows nothing of a refusal that is only an answer.
            dialect.emit("chat", &stream::failed(&name, &key, &error), turn);
            Err(error)
        }
    })
}

impl OpenClaw {
    /// A run that the client asked for itself is told under the names it gave; its end, not before
    /// `quiet_until`. Of one that is over nothing is told but what was begun to be.
    pub(super) fn expect(&mut self, accepted: &Accepted, name: &str, key: &str, quiet_until: Timestamp) {
        let (protocol, feed) = (self.protocol, self.calls.replying());
        if self.ended.contains(&accepted.run) {
            return;
        }
        if accepted.is_over && !self.runs.contains_key(&accepted.run) {
            return self.remember_ended(&accepted.run);
        }
        let new = || RunStream::new(protocol, name, Some(key), feed);
        let told = self.runs.entry(accepted.run.clone()).or_insert_with(new);
        told.call(name);
        told.tell_as(key);
        told.comes_whole(feed);
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
pub(super) fn after_answer(protocol: Protocol, now: Timestamp) -> Timestamp {
    let (older, newer) = END_AFTER_ANSWER;
    now.after(if protocol == Protocol::Three { older } else { newer })
}

/// Ends all that runs in a session.
fn stop(session: &SessionKey, cause: Cause) -> Answered {
    Call::ask_either(Stop { target: target(session), cause }, |dialect, reply, _| {
        stopped(reply.map(|Stopped { runs, .. }| dialect.names(&runs)))
    })
}

/// The answer to whoever ended these runs.
fn stopped(runs: Result<Vec<String>, Error>) -> Answered {
    let runs = match runs {
        // Nothing was ever said in it.
        Err(error) if error.code == ErrorCode::NotFound => Vec::new(),
        runs => runs?,
    };
    Ok(Call::Answer(json!({ "ok": true, "aborted": !runs.is_empty(), "runIds": runs })))
}

/// `chat.abort`: one run, or all of a session.
pub(super) fn abort(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
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
        return stop(&session, Cause::Asked);
    };
    let told = dialect.runs.values().find(|told| told.run() == run).and_then(RunStream::key);
    if told.and_then(|key| dialect.session_known(key)).is_some_and(|told_in| told_in != session) {
        return Err(ErrorCode::InvalidRequest.error("runId does not match sessionKey"));
    }
    let abort = command::Abort { target: target(&session), run: Some(run.as_str().into()) };
    // Told under the name the client has for it.
    Call::ask_either(abort, move |_, reply, _| {
        stopped(reply.map(|aborted| aborted.run.map(|_| run).into_iter().collect()))
    })
}

/// `chat.inject`: a message of the assistant that no model said.
pub(super) fn inject(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
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
    // Whoever follows the session is told it as an event.
    Call::ask(
        command::Inject { target: target(&session), content, id: None },
        |_, Injected { message, .. }, _| json!({ "ok": true, "messageId": message }),
    )
}

/// `agent`: answered twice, when the prompt is accepted and when its run has ended.
pub(super) fn agent(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Agent {
        agent_id: Option<String>,
        session_key: Option<String>,
        session_id: Option<String>,
    }
    let asked: Agent = request.read()?;
    let Some(mut prompt) = prompt(dialect, request, turn)? else { return Ok(Call::Elsewhere) };
    if let (Some(agent), None) = (&asked.agent_id, &asked.session_key) {
        dialect.check_agent(request, agent)?;
        prompt.key = format!("agent:{agent}:{}", keys::MAIN);
        let Some(session) = dialect.session(request, Some(&prompt.key), turn)? else {
            return Ok(Call::Elsewhere);
        };
        prompt.session = session;
    }
    let id = request.id.to_owned();
    let of_conversation = asked.session_id.filter(|id| asked.session_key.is_none() && !id.trim().is_empty());
    let Some(conversation) = of_conversation else { return prompt_agent(dialect, id, prompt, turn) };
    let agent = asked.agent_id.unwrap_or_else(|| dialect.default_agent().to_owned());
    let described = DescribeSession { target: Target::Conversation(conversation.clone()) };
    Call::ask_either(described, move |dialect, reply, turn| {
        match reply {
            Ok(Some(row)) => {
                prompt.key = keys::write(&row.session, &dialect.owner);
                prompt.session = row.session;
            }
            Ok(None) => return Err(misfit()),
            // It begins under this id.
            Err(error) if error.code == ErrorCode::NotFound => {
                prompt.key = format!("agent:{agent}:{}", conversation.trim());
                prompt.session = keys::own(&agent, conversation.trim(), &dialect.owner)?;
            }
            Err(error) => return Err(error),
        }
        prompt_agent(dialect, id, prompt, turn)
    })
}

/// Prompts for `agent`.
fn prompt_agent(dialect: &mut OpenClaw, id: String, prompt: Prompt, turn: &mut Turn<'_>) -> Answered {
    dialect.follow(&prompt.session, &prompt.key, None, turn);
    dialect.knows_nothing(&prompt.session);
    let run = turn.run_id();
    let key = prompt.key.clone();
    let name = prompt.name.clone().unwrap_or_else(|| run.to_string());
    Call::ask_on(prompt.submit(run), move |dialect, accepted, turn| {
        // Of one that is over, only the end is read again.
        if !accepted.is_over {
            dialect.expect(&accepted, &name, &key, turn.now());
            let accepted_at = turn.now().as_millis();
            let payload = json!({ "runId": name, "status": "accepted", "acceptedAt": accepted_at });
            turn.send(wire::answer(&id, &payload));
        }
        dialect.await_end(&accepted, &name).asked.push(id);
        Ok(Call::Elsewhere)
    })
}

/// The second answer to `agent`.
pub(super) fn agent_ended(id: &str, told: &RunStream, end: &End, now: Timestamp) -> String {
    let text = end.plain_text();
    let started = told.started.unwrap_or(now);
    let duration = now.millis_since(started);
    let payloads = if text.is_empty() { json!([]) } else { json!([{ "text": text, "mediaUrl": null }]) };
    let result = json!({
        "payloads": payloads,
        "meta": {
            "durationMs": duration,
            "agentMeta": { "usage": usage_of(end.usage) },
            "aborted": matches!(end.outcome, Outcome::Aborted(_)),
        },
    });
    match &end.outcome {
        Outcome::Completed | Outcome::Incomplete(_) | Outcome::Aborted(_) => {
            let is_aborted = matches!(end.outcome, Outcome::Aborted(_));
            let summary = if is_aborted { "aborted" } else { "completed" };
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
