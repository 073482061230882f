//! The sessions there are, what they are set to, and what is done to them as a whole.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Answered, Call, OpenClaw, Request, keys, misfit, target};
use crate::conversation::command::{
    self, Configure, CreateSession, Delete, DescribeSession, PreviewSessions, Reset, SessionFilter, Submit,
};
use crate::conversation::reply::{Accepted, Compacted, Deleted, Preview, SessionList, SessionRow};
use crate::conversation::transcript::Role;
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::dialect::json::even_null;
use crate::error::{Error, ErrorCode};
use crate::ids::{self, Owner, RunId, SessionKey};
use crate::prompt::run_options::RunOptions;
use crate::prompt::settings::Patch;
use crate::prompt::thinking::Thinking;
use crate::request::ask::Ask;
use crate::target::Target;
use crate::time::Timestamp;

/// How many sessions a list has where the client does not say, and at most.
const LIST_DEFAULT: u64 = 200;
const LIST_MAX: u64 = 1000;

/// How many sessions can be previewed at once, and what of each where the client does not say.
const PREVIEWS_MAX: usize = 64;
const PREVIEW_DEFAULT: u64 = 12;
const PREVIEW_CHARS_DEFAULT: u64 = 240;

/// How many messages `sessions.compact` keeps where the client does not say.
const COMPACT_DEFAULT: u64 = 400;

/// What clients keep with a session that means nothing to clawmux, and the values it may have; none =
/// any text or flag. (Source: OpenClaw's and Clawdbot's `sessions.patch`.)
const DISPLAY: &[(&str, &[&str])] = &[
    ("verboseLevel", &["on", "off", "full"]),
    ("reasoningLevel", &["on", "off", "stream"]),
    ("responseUsage", &["off", "tokens", "full", "on"]),
    ("elevatedLevel", &["on", "off", "ask", "full"]),
    ("sendPolicy", &["allow", "deny"]),
    ("groupActivation", &["mention", "always"]),
    ("traceLevel", &[]),
    ("fastMode", &[]),
    ("archived", &[]),
    ("pinned", &[]),
    ("unread", &[]),
    ("icon", &[]),
    ("color", &[]),
    ("category", &[]),
    ("boardFace", &["chat", "dashboard"]),
    ("statusNote", &[]),
    ("attention", &[]),
];

/// Flags whose last change has a time: when they were set, and when they were taken back.
const TIMES: &[(&str, &str, Option<&str>)] = &[
    ("archived", "archivedAt", None),
    ("pinned", "pinnedAt", None),
    ("unread", "markedUnreadAt", Some("lastReadAt")),
];

/// What the levels of thinking are called in a refusal.
const LEVELS: &str = "off|minimal|low|medium|high";

#[derive(Deserialize)]
struct Keyed {
    key: Option<String>,
}

/// Which sessions a list is to have.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    limit: Option<u64>,
    offset: Option<u64>,
    active_minutes: Option<u64>,
    label: Option<String>,
    agent_id: Option<String>,
    spawned_by: Option<String>,
    search: Option<String>,
    /// `true`, `false` or `"all"`.
    archived: Option<Value>,
    include_derived_titles: Option<bool>,
    include_last_message: Option<bool>,
}

impl OpenClaw {
    /// A session as a row of a list.
    pub(super) fn session_row(&self, row: &SessionRow) -> Value {
        let status = match (&row.last_run, row.running.is_empty()) {
            (Some(run), false) if run.ended.is_none() => "running",
            (_, false) => "queued",
            (Some(run), true) if run.is_aborted => "killed",
            (_, true) => "done",
        };
        let usage = super::stream::usage_of(row.usage);
        let agent = row.session.agent();
        let mut value = json!({
            "key": keys::write(&row.session, &self.owner),
            "kind": "direct",
            "chatType": "direct",
            "agentId": &*agent,
            "channel": &*row.session.channel(),
            "isMain": is_main(&row.session, &self.owner),
            "sessionId": row.session_id,
            "updatedAt": row.updated.as_millis(),
            "systemSent": row.head.0 > 0,
            "abortedLastRun": row.last_run.as_ref().is_some_and(|run| run.is_aborted),
            "inputTokens": usage["input"],
            "outputTokens": usage["output"],
            "totalTokens": usage["totalTokens"],
            "hasActiveRun": !row.running.is_empty(),
            "activeRunIds": row.running.iter().map(RunId::as_str).collect::<Vec<_>>(),
            "status": status,
        });
        for (name, set) in &row.settings.display {
            value[name] = set.clone();
        }
        let model = row.model.as_ref().or_else(|| self.model_of(&agent));
        if let Some(tokens) = model.and_then(|model| self.setup.catalog.facts(model).context_window) {
            value["contextTokens"] = tokens.into();
        }
        if let Some(model) = model {
            value["modelProvider"] = model.provider.as_str().into();
            value["model"] = model.model.as_str().into();
        }
        if let Some(level) = row.settings.thinking {
            value["thinkingLevel"] = level.name().into();
        }
        let texts = [
            ("label", &row.settings.label),
            ("displayName", &row.settings.label),
            ("derivedTitle", &row.title),
            ("lastMessagePreview", &row.last_message),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                value[name] = text.as_str().into();
            }
        }
        if let Some(run) = &row.last_run {
            value["lastRunId"] = run.run.as_str().into();
            value["startedAt"] = run.started.as_millis().into();
            if let Some(ended) = run.ended {
                value["endedAt"] = ended.as_millis().into();
            }
        }
        value
    }

    /// The payload of `sessions.list`, from what [`filter`] found.
    fn session_list(&self, asked: &Listing, list: SessionList, now: Timestamp) -> Value {
        let is_asked = |row: &&SessionRow| {
            let archived = row.settings.display.get("archived").is_some_and(|set| *set == Value::Bool(true));
            match &asked.archived {
                Some(Value::Bool(only)) => archived == *only,
                Some(Value::String(_)) => true,
                _ => !archived,
            }
        };
        let found = list.rows.len() as u64;
        let offset = asked.offset.unwrap_or(0);
        let mut hidden = 0;
        let mut rows = Vec::new();
        for row in list.rows.iter().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if !is_asked(&row) {
                hidden += 1;
                continue;
            }
            let mut value = self.session_row(row);
            let wanted = [
                ("derivedTitle", asked.include_derived_titles),
                ("lastMessagePreview", asked.include_last_message),
            ];
            for (name, wanted) in wanted {
                if let (Some(members), None | Some(false)) = (value.as_object_mut(), wanted) {
                    members.remove(name);
                }
            }
            rows.push(value);
        }
        json!({
            "ts": now.as_millis(),
            "path": "clawmux",
            "count": rows.len(),
            "totalCount": list.total.saturating_sub(hidden),
            "hasMore": list.total > found,
            "defaults": self.session_defaults(),
            "sessions": rows,
        })
    }

    /// The session that a request is about; none where it is not known yet.
    fn keyed(
        &mut self,
        request: &Request<'_>,
        turn: &mut Turn<'_>,
    ) -> Result<Option<(SessionKey, String)>, Error> {
        let Keyed { key } = request.read()?;
        let key = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| request.invalid("must have required property 'key'"))?;
        Ok(self.session(request, Some(&key), turn)?.map(|session| (session, key)))
    }

    /// The answer to what changed a session: its row under the name the client used.
    fn settled(&self, key: &str, row: &SessionRow) -> Value {
        let mut answer = json!({ "ok": true, "path": "clawmux", "key": key, "entry": self.session_row(row) });
        answer["sessionId"] = row.session_id.as_str().into();
        let model = row.model.as_ref().or_else(|| self.model_of(&row.session.agent()));
        if let Some(model) = model {
            answer["resolved"] = json!({ "modelProvider": model.provider, "model": model.model });
        }
        answer
    }
}

/// Whether it is the session that an agent's clients begin in.
fn is_main(session: &SessionKey, who: &Owner) -> bool {
    keys::write(session, who) == format!("agent:{}:{}", session.agent(), keys::MAIN)
}

/// What finds what a list is to have; none where there is no such thing.
fn filter(asked: &Listing, now: Timestamp) -> Option<SessionFilter> {
    // No session was made by another.
    if asked.spawned_by.is_some() {
        return None;
    }
    let limit =
        asked.limit.unwrap_or(LIST_DEFAULT).clamp(1, LIST_MAX).saturating_add(asked.offset.unwrap_or(0));
    let active_since = asked.active_minutes.map(|minutes| {
        Timestamp::from_millis(now.as_millis().saturating_sub(minutes.saturating_mul(60_000)))
    });
    let text = |text: &Option<String>| {
        text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    Some(SessionFilter {
        offset: 0,
        is_open: false,
        state: None,
        limit: usize::try_from(limit.min(LIST_MAX)).unwrap_or(usize::MAX),
        active_since,
        agent: text(&asked.agent_id).map(Into::into),
        label: text(&asked.label),
        search: text(&asked.search).map(searched),
        with_texts: [asked.include_derived_titles, asked.include_last_message].contains(&Some(true)),
    })
}

/// What is looked for in keys, labels and titles: where it is a client's key or the beginning of one,
/// the same of the key it stands for. A key without an owner is found in every space that is listed.
fn searched(text: String) -> String {
    let local = ids::owner_apart(&text).map_or(text.as_str(), |(_, local)| local);
    let is_key = local.starts_with("agent:") && !text.contains(char::is_whitespace);
    match keys::read(&text, keys::MAIN, &Owner::Admins) {
        Ok(keys::KeyMatch::One(session)) if is_key => {
            let (key, peer) = (session.to_string(), format!(":{}", SessionKey::DEFAULT_PEER));
            key.strip_suffix(&peer).map(str::to_owned).unwrap_or(key)
        }
        Ok(keys::KeyMatch::Either(canonical, _)) if is_key => canonical.to_string(),
        _ => text,
    }
}

/// Asks for a list and answers with what `payload` makes of it.
fn listed(dialect: &OpenClaw, asked: Listing, turn: &Turn<'_>, payload: fn(Value) -> Value) -> Answered {
    match filter(&asked, turn.now()) {
        None => Ok(Call::Answer(payload(dialect.session_list(&asked, SessionList::default(), turn.now())))),
        Some(filter) => Call::ask(filter, move |dialect, list, turn| {
            payload(dialect.session_list(&asked, list, turn.now()))
        }),
    }
}

/// `sessions.list`.
pub(super) fn list(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    listed(dialect, request.read()?, turn, |list| list)
}

/// `sessions.subscribe`: tells of changes from here on; with what a list takes, the list as well.
pub(super) fn subscribe(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let asked: Listing = request.read()?;
    dialect.is_subscribed = true;
    if request.read::<Map<String, Value>>()?.is_empty() {
        return Ok(Call::Answer(json!({ "subscribed": true })));
    }
    listed(dialect, asked, turn, |list| json!({ "subscribed": true, "list": list }))
}

/// `sessions.unsubscribe`.
pub(super) fn unsubscribe(dialect: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    dialect.is_subscribed = false;
    Ok(Call::Answer(json!({ "subscribed": false })))
}

/// `sessions.messages.subscribe`: the session's messages are told as such from here on, besides the
/// `chat` and `agent` events of its runs.
pub(super) fn messages_subscribe(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Answered {
    let Some((session, key)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    dialect.follow(&session, &key, None, turn);
    dialect.want_messages(&session, true);
    Ok(Call::Answer(json!({ "subscribed": true, "key": key })))
}

/// `sessions.messages.unsubscribe`: the session was named, so its runs are told all the same.
pub(super) fn messages_unsubscribe(
    dialect: &mut OpenClaw,
    request: &Request<'_>,
    turn: &mut Turn<'_>,
) -> Answered {
    let Some((session, key)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    dialect.want_messages(&session, false);
    Ok(Call::Answer(json!({ "subscribed": false, "key": key })))
}

/// `sessions.resolve`: the full key of the session that a key, an id or a label stands for.
pub(super) fn resolve(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Resolve {
        key: Option<String>,
        session_id: Option<String>,
        label: Option<String>,
        short_id: Option<String>,
        reference: Option<Reference>,
        agent_id: Option<String>,
        allow_missing: Option<bool>,
    }
    #[derive(Deserialize)]
    struct Reference {
        key: Option<String>,
    }
    let asked: Resolve = request.read()?;
    let key = asked.key.or(asked.reference.and_then(|reference| reference.key));
    let may_miss = asked.allow_missing == Some(true);
    let owner = dialect.owner.clone();
    let found = move |row: Option<&SessionRow>, named: &str| match row {
        Some(row) => {
            let mut answer = json!({ "ok": true, "key": keys::write(&row.session, &owner), "agentId": &*row.session.agent() });
            if let Some(label) = &row.settings.label {
                answer["displayName"] = label.as_str().into();
            }
            Ok(Call::Answer(answer))
        }
        None if may_miss => Ok(Call::Answer(json!({ "ok": false }))),
        None => {
            let why = format!("No session found: {}", clip(named));
            Err(ErrorCode::InvalidRequest.error(why))
        }
    };
    let named = match (key, asked.session_id.or(asked.short_id), asked.label) {
        (Some(key), None, None) => {
            let Some(session) = dialect.session(request, Some(&key), turn)? else {
                return Ok(Call::Elsewhere);
            };
            return Call::ask_on(DescribeSession { target: target(&session) }, move |_, row, _| {
                found(row.as_deref(), &key)
            });
        }
        (None, Some(id), None) => (Some(id), None),
        (None, None, Some(label)) => (None, Some(label)),
        (None, None, None) => {
            return Err(ErrorCode::InvalidRequest.error("Either key, sessionId or label is required"));
        }
        _ => {
            return Err(
                ErrorCode::InvalidRequest.error("Provide either key, sessionId or label (not multiple)")
            );
        }
    };
    let (id, label) = named;
    let listing = Listing {
        limit: Some(LIST_MAX),
        label: label.clone(),
        agent_id: asked.agent_id,
        ..Listing::default()
    };
    let Some(filter) = filter(&listing, turn.now()) else { return Err(misfit()) };
    Call::ask_on(filter, move |_, list, _| {
        let is_named = |row: &&SessionRow| {
            id.as_ref().is_none_or(|id| *id == row.session_id || is_short_of(id, &row.session))
        };
        let named = id.as_deref().or(label.as_deref()).unwrap_or_default();
        found(list.rows.iter().find(is_named), named)
    })
}

/// Whether an address in the newer Control UI means this session: the UUID at the end of its name
/// without dashes, or its beginning.
fn is_short_of(id: &str, session: &SessionKey) -> bool {
    let account = session.account();
    let last = account.rsplit(':').next().unwrap_or_default().replace('-', "");
    (8..=32).contains(&id.len()) && last.len() == 32 && last.starts_with(id)
}

/// `sessions.preview`.
pub(super) fn preview(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Previews {
        keys: Option<Vec<String>>,
        limit: Option<u64>,
        max_chars: Option<u64>,
    }
    let asked: Previews = request.read()?;
    let mut keys = asked.keys.ok_or_else(|| request.invalid("must have required property 'keys'"))?;
    keys.truncate(PREVIEWS_MAX);
    if keys.is_empty() {
        return Ok(Call::Answer(json!({ "ts": turn.now().as_millis(), "previews": [] })));
    }
    // A key that may stand for either of two is asked for as both.
    let mut targets = Vec::new();
    let mut places = Vec::new();
    for key in &keys {
        let (first, second) = match keys::read(key, dialect.default_agent(), &dialect.owner) {
            Ok(keys::KeyMatch::One(session)) => (Some(session), None),
            Ok(keys::KeyMatch::Either(first, second)) => (Some(first), Some(second)),
            Err(_) => (None, None),
        };
        let from = targets.len();
        targets.extend([first, second].into_iter().flatten().map(Target::Session));
        places.push(from..targets.len());
    }
    let number =
        |number: Option<u64>, default| usize::try_from(number.unwrap_or(default)).unwrap_or(usize::MAX);
    let limit = number(asked.limit, PREVIEW_DEFAULT);
    let chars_max = number(asked.max_chars, PREVIEW_CHARS_DEFAULT);
    Call::ask(PreviewSessions { targets, limit, chars_max }, move |_, previews, turn| {
        let one = |(key, place): (&String, &std::ops::Range<usize>)| {
            let found = previews.get(place.clone()).unwrap_or_default();
            let messages = found.iter().find_map(|Preview { messages }| messages.as_ref());
            let status = match messages {
                None => "missing",
                Some(messages) if messages.is_empty() => "empty",
                Some(_) => "ok",
            };
            let item = |(role, text): &(Role, String)| {
                let role = match role {
                    Role::User => "user",
                    Role::Assistant => "assistant",
                };
                json!({ "role": role, "text": text })
            };
            let items: Vec<_> = messages.into_iter().flatten().map(item).collect();
            json!({ "key": key, "status": status, "items": items })
        };
        let previews: Vec<_> = keys.iter().zip(&places).map(one).collect();
        json!({ "ts": turn.now().as_millis(), "previews": previews })
    })
}

/// `sessions.describe`.
pub(super) fn describe(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let Some((session, _)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    Call::ask(
        DescribeSession { target: target(&session) },
        |dialect, row, _| json!({ "session": row.map(|row| dialect.session_row(&row)) }),
    )
}

/// `sessions.create`: a session, and its first prompt where there is one.
pub(super) fn create(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Create {
        key: Option<String>,
        agent_id: Option<String>,
        label: Option<String>,
        model: Option<String>,
        thinking_level: Option<String>,
        parent_session_key: Option<String>,
        message: Option<String>,
        task: Option<String>,
        idempotency_key: Option<String>,
        attachments: Option<Vec<Value>>,
    }
    let asked: Create = request.read()?;
    if asked.attachments.is_some_and(|files| !files.is_empty()) {
        return Err(request.invalid("at /attachments: send them with chat.send"));
    }
    let agent = asked.agent_id.as_deref().unwrap_or(dialect.default_agent()).to_owned();
    dialect.check_agent(request, &agent)?;
    let key = asked.key.filter(|key| !key.trim().is_empty());
    let key = key.unwrap_or_else(|| format!("agent:{agent}:dashboard:{}", turn.run_id()));
    let Some(session) = dialect.session(request, Some(&key), turn)? else { return Ok(Call::Elsewhere) };
    let mut patch = Patch { label: asked.label.map(Some), model: asked.model.map(Some), ..Patch::default() };
    if let Some(level) = asked.thinking_level {
        patch.thinking = Some(Some(thinking(&level)?));
    }
    if let Some(parent) = asked.parent_session_key {
        patch.display.insert("parentSessionKey".into(), parent.into());
    }
    let message = asked.message.or(asked.task).filter(|message| !message.trim().is_empty());
    let name = asked.idempotency_key.filter(|name| !name.is_empty());
    if name.as_ref().is_some_and(|name| name.len() > super::chat::IDEMPOTENCY_KEY_BYTES_MAX) {
        return Err(request.invalid("at /idempotencyKey: too long"));
    }
    dialect.follow(&session, &key, None, turn);
    Call::ask_on(CreateSession { target: target(&session), patch }, move |dialect, row, turn| {
        let mut answer = dialect.settled(&key, &row);
        let Some(content) = message else { return Ok(Call::Answer(answer)) };
        let run = turn.run_id();
        let name_told = name.clone().unwrap_or_else(|| run.to_string());
        let submit = Submit {
            target: target(&session),
            run,
            content,
            idempotency_key: name,
            attachments: Vec::new(),
            files: Vec::new(),
            local_files: Vec::new(),
            run_options: RunOptions::default(),
            follow: true,
        };
        Call::ask_either(submit, move |dialect, reply, turn| {
            match reply {
                Ok(accepted) => {
                    dialect.expect(
                        &accepted,
                        &name_told,
                        &key,
                        super::chat::after_answer(dialect.protocol, turn.now()),
                    );
                    answer["runStarted"] = true.into();
                    answer["runId"] = name_told.into();
                    let Accepted { repeated, is_over, .. } = accepted;
                    answer["status"] = match (repeated, is_over) {
                        (false, _) => "started",
                        (true, false) => "in_flight",
                        (true, true) => "ok",
                    }
                    .into();
                }
                // The session is there all the same.
                Err(error) => {
                    answer["runStarted"] = false.into();
                    answer["runError"] = json!({ "code": "UNAVAILABLE", "message": error.message });
                }
            }
            Ok(Call::Answer(answer))
        })
    })
}

fn thinking(level: &str) -> Result<Thinking, Error> {
    let refused = || ErrorCode::InvalidRequest.error(format!("invalid thinkingLevel (use {LEVELS})"));
    Thinking::from_name(&level.trim().to_ascii_lowercase()).ok_or_else(refused)
}

/// Reads what `sessions.patch` sets; `null` clears.
fn patch_of(request: &Request<'_>, now: Timestamp) -> Result<Patch, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PatchParams<'a> {
        #[serde(borrow, default, deserialize_with = "even_null")]
        label: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "even_null")]
        model: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "even_null")]
        thinking_level: Option<&'a RawValue>,
    }
    let asked: PatchParams<'_> = request.read()?;
    let text = |name: &str, value: Option<&RawValue>| -> Result<Option<Option<String>>, Error> {
        let Some(value) = value else { return Ok(None) };
        let read: Result<Option<String>, _> = serde_json::from_str(value.get());
        read.map(Some).map_err(|_| request.invalid(&format!("at /{name}: must be string or null")))
    };
    let level = text("thinkingLevel", asked.thinking_level)?;
    let mut patch = Patch {
        label: text("label", asked.label)?.map(|label| label.map(|label| label.trim().to_owned())),
        model: text("model", asked.model)?,
        thinking: level.map(|level| level.as_deref().map(thinking).transpose()).transpose()?,
        ..Patch::default()
    };
    let all: Map<String, Value> = request.read()?;
    for (name, allowed) in DISPLAY {
        let Some(value) = all.get(*name) else { continue };
        let fits = match value {
            Value::Null => true,
            Value::String(text) => allowed.is_empty() || allowed.contains(&text.as_str()),
            Value::Bool(_) => allowed.is_empty(),
            _ => false,
        };
        if !fits {
            let words: Vec<_> = allowed.iter().map(|word| format!("\"{word}\"")).collect();
            let words = if words.is_empty() { "a text, a flag or null".into() } else { words.join("|") };
            return Err(ErrorCode::InvalidRequest.error(format!("invalid {name} (use {words})")));
        }
        patch.display.insert((*name).to_owned(), value.clone());
    }
    for (flag, set, taken_back) in TIMES {
        let (now, is_set) = (Value::from(now.as_millis()), patch.display.get(*flag));
        match is_set {
            Some(Value::Bool(true)) => {
                patch.display.insert((*set).to_owned(), now);
            }
            Some(_) => {
                patch.display.insert((*set).to_owned(), Value::Null);
                if let Some(taken_back) = taken_back {
                    patch.display.insert((*taken_back).to_owned(), now);
                }
            }
            None => {}
        }
    }
    Ok(patch)
}

/// `sessions.patch`: what the session is set to from its next run on.
pub(super) fn patch(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let patch = patch_of(request, turn.now())?;
    let Some((session, key)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    settle(Configure { target: target(&session), patch }, key)
}

/// `sessions.reset`: a new conversation.
pub(super) fn reset(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let Some((session, key)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    settle(Reset { target: target(&session) }, key)
}

fn settle(change: impl Ask<Reply = Box<SessionRow>> + 'static, key: String) -> Answered {
    Call::ask(change, move |dialect, row, _| dialect.settled(&key, &row))
}

/// `sessions.compact`: forgets all but the newest messages.
pub(super) fn compact(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Compact {
        max_lines: Option<u64>,
    }
    let Compact { max_lines } = request.read()?;
    let keep = max_lines.unwrap_or(COMPACT_DEFAULT);
    if keep == 0 {
        return Err(request.invalid("at /maxLines: must be >= 1"));
    }
    let Some((session, key)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    Call::ask(command::Compact { target: target(&session), keep }, move |_, compacted, _| match compacted {
        Compacted { forgotten: 0, .. } => {
            json!({ "ok": true, "key": key, "compacted": false, "reason": "nothing to forget" })
        }
        Compacted { kept, .. } => {
            json!({ "ok": true, "key": key, "compacted": true, "kept": kept, "archived": [] })
        }
    })
}

/// `sessions.delete`: but for the main session, which clients count on.
pub(super) fn delete(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let Some((session, key)) = dialect.keyed(request, turn)? else { return Ok(Call::Elsewhere) };
    if is_main(&session, &dialect.owner) {
        let name = keys::write(&session, &dialect.owner);
        return Err(ErrorCode::InvalidRequest.error(format!("Cannot delete the main session ({name}).")));
    }
    Call::ask(
        Delete { target: target(&session) },
        move |_, Deleted { found }, _| json!({ "ok": true, "key": key, "deleted": found, "archived": [] }),
    )
}
