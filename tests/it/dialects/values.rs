//! What the scripts say happens inside: replies, events and announcements, read from their JSON.

use std::sync::Arc;
use std::time::Duration;

use clawmux_core::access::About;
use clawmux_core::agents::subagent::{AgentChange, AgentNews, AgentState, AgentStatus, SubAgentReply};
use clawmux_core::agents::team::{Coordination, Relayed, Sent, TeamNews, TeamReply, TeamState, TeamStatus};
use clawmux_core::area::Noted;
use clawmux_core::config::request::{ConfigIssue, ConfigReply, ConfigSnapshot};
use clawmux_core::conversation::approval::{
    ApprovalReply, ApprovalRequest, Decided, DecidedCall, Decision, News, PendingCall,
};
use clawmux_core::conversation::event::{Cause, Event, Forgotten, Incomplete, Logged, Outcome};
use clawmux_core::conversation::reply::{
    Aborted, Attached, Cleared, Compacted, Deleted, Detached, Exported, Injected, LastRun, Preview,
    SessionList, SessionReply, SessionRow, SessionState, SessionSummary, Stopped, UnderWay, Unwatched,
    Watching,
};
use clawmux_core::conversation::transcript::{Entry, History, Message, Role, Said, Transcript};
use clawmux_core::daemon::announcement::{Announcement, ChangeReason, SessionChange};
use clawmux_core::daemon::command::{DaemonReply, DayUsage, LogTail, Overview, Status};
use clawmux_core::daemon::health::{Condition, Figures, Part, Report};
use clawmux_core::daemon::operator::{self, BackupReport, FoundSession, OperatorReply, Snapshot};
use clawmux_core::daemon::presence::{Presence, Present};
use clawmux_core::error::credential::CredentialFault;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{ApprovalId, Owner, RunId, Seq, SessionKey};
use clawmux_core::memory::file::{FileAbout, FileId, FileList, FileReply, FileRow, Piece, UploadId, Written};
use clawmux_core::memory::{self, Found, Kind, MemoryReply, Remembered, Stored, Tier};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::{Assignment, Settings};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::budget::{Budget, Period, Unit, Whose};
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::notice::{Notice, NoticeKind};
use clawmux_core::provider::price::Money;
use clawmux_core::provider::tally::Tally;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::{JobReply, Ran, Started};
use clawmux_core::scope;
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::skill::{Skill, SkillList, SkillOfAgent, SkillRow, Standing};
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::node::{Invoked, NodeFailure, NodeReply, NodeRow};
use clawmux_core::tools::plugin::{PluginReply, PluginSummary, Unloaded};
use serde_json::Value;

use super::catalog;

pub(super) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

pub(super) fn json(words: &[&str]) -> Result<Value, String> {
    serde_json::from_str(&words.join(" ")).map_err(|error| error.to_string())
}

pub(super) fn key_of(text: &str) -> Result<SessionKey, String> {
    SessionKey::parse(text).map_err(|error| error.message)
}

pub(super) fn fault_of(reason: &str, at: u64) -> Result<CredentialFault, String> {
    use clawmux_core::error::credential::Refusal;
    let at = Timestamp::from_millis(at);
    let jwt = [
        Refusal::Malformed,
        Refusal::HeaderInvalid,
        Refusal::AlgorithmUnsupported,
        Refusal::SignatureInvalid,
        Refusal::PayloadInvalid,
        Refusal::PayloadSchemaInvalid,
        Refusal::Expired { at },
        Refusal::IssuerMismatch,
        Refusal::AudienceMismatch,
        Refusal::Revoked,
        Refusal::NotConfigured,
    ];
    let mut all = jwt.into_iter().map(CredentialFault::Jwt).chain([
        CredentialFault::Missing,
        CredentialFault::ApiKey,
        CredentialFault::ApiKeyExpired { at },
    ]);
    all.find(|fault| fault.reason() == reason).ok_or_else(|| format!("no such reason: {reason}"))
}

pub(super) fn principal(name: &str, scopes: &str) -> Result<Principal, String> {
    let scopes: Option<Vec<Scope>> = scopes.split(',').map(scope_of).collect();
    let scopes = Scopes::of(&scopes.ok_or("no such scope")?);
    Ok(Principal::new(name, scopes))
}

fn scope_of(name: &str) -> Option<Scope> {
    Scope::ALL.into_iter().find(|scope| scope.name() == name)
}

pub(super) fn error_of(code: &str, text: &str) -> Result<Error, String> {
    let code = ErrorCode::from_name(code).ok_or("no such error code")?;
    Ok(match code {
        ErrorCode::Forbidden => {
            code.error("").with(Detail::MissingScope(scope_of(text).ok_or("no such scope")?))
        }
        ErrorCode::RateLimited => {
            code.error("").with(Detail::RetryAfter(Duration::from_millis(number(text)?)))
        }
        _ => code.error(text),
    })
}

/// The one member of an object.
fn member(value: &Value) -> Result<(&str, &Value), String> {
    match value.as_object().and_then(|object| object.iter().next()) {
        Some((name, value)) => Ok((name, value)),
        None => Err("expected an object with one member".into()),
    }
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// A text that may not be there.
fn word(value: &Value, name: &str) -> Option<String> {
    value[name].as_str().map(str::to_owned)
}

/// A value that is a text; empty where it is none.
fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// An item of a list of texts.
fn string<T: From<String>>(value: &Value) -> Result<T, String> {
    Ok(text_of(value).into())
}

fn time(value: &Value, name: &str) -> Timestamp {
    Timestamp::from_millis(count(value, name))
}

fn session_of(value: &Value) -> Result<SessionKey, String> {
    key_of(&text(value, "session"))
}

fn usage_of(value: &Value) -> Usage {
    let cached = [count(value, "cacheRead"), count(value, "cacheWrite")];
    Usage {
        input_tokens: count(value, "input") + cached.iter().sum::<u64>(),
        output_tokens: count(value, "output"),
        cache_read_tokens: cached[0],
        cache_write_tokens: cached[1],
    }
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> Result<T, String>) -> Result<Vec<T>, String> {
    value.as_array().ok_or("expected a list")?.iter().map(item).collect()
}

/// Runs that wait: a list of `[run, key]`.
fn queued_of(value: &Value) -> Vec<(RunId, Option<String>)> {
    let run = |pair: &Value| Some((RunId::from(pair[0].as_str()?), pair[1].as_str().map(str::to_owned)));
    value.as_array().map(|runs| runs.iter().filter_map(run).collect()).unwrap_or_default()
}

fn under_way_of(value: &Value) -> Option<UnderWay> {
    value.is_object().then(|| UnderWay {
        run: text(value, "run").into(),
        idempotency_key: word(value, "key"),
        text: text(value, "text"),
        step_at: count(value, "step_at") as usize,
        seq: Seq(count(value, "seq")),
        started: time(value, "started"),
        is_anew: value["is_anew"] == true,
        calls: list(&value["calls"], |call| Ok((text(call, "id").into(), text(call, "name").into())))
            .unwrap_or_default(),
    })
}

fn entry_of(value: &Value) -> Result<Entry, String> {
    let said = match value["role"].as_str() {
        Some("user") => Said::User {
            text: text(value, "text"),
            idempotency_key: word(value, "key"),
            attachments: Vec::new(),
        },
        Some("assistant") => Said::Assistant {
            text: text(value, "text"),
            model: None,
            usage: Usage::default(),
            is_aborted: value["aborted"] == true,
            error: word(value, "error"),
        },
        _ => return Err("no such role".into()),
    };
    Ok(Entry {
        id: text(value, "id"),
        place: count(value, "place"),
        at: time(value, "at"),
        run: value["run"].as_str().map(RunId::from),
        said,
        clipped: false,
    })
}

fn report_of(value: &Value) -> Report {
    let at = time(value, "at");
    let part = |name: &'static str| {
        let errors = list(&value[name], string);
        Part::running(name, at).degraded_by(errors.unwrap_or_default())
    };
    Report {
        at,
        started: Timestamp::from_millis(1000),
        sessions: count(value, "sessions"),
        connections: count(value, "connections"),
        parts: vec![part("store"), part("plugins")],
        figures: Figures {
            sessions_made: 5,
            tokens: 7,
            completed: count(value, "completed"),
            failed: count(value, "failed"),
            timed: count(value, "completed"),
            response_ms: 10,
        },
    }
}

/// The tier and the kind of an entry.
fn memory_words(value: &Value) -> (Tier, Kind) {
    (Tier::from_name(&text(value, "tier")).unwrap(), Kind::from_name(&text(value, "kind")).unwrap())
}

/// What is said of files: a row, bytes of one, how far one has come, one that is no more.
fn file_reply_of(value: &Value) -> Result<FileReply, String> {
    if let Some(received) = value["received"].as_u64() {
        return Ok(FileReply::Written(Written::Received(received)));
    }
    let id = FileId::parse(&text(value, "id")).ok_or("no id of a file")?;
    if value["deleted"] == true {
        return Ok(FileReply::Deleted(id));
    }
    let file = FileRow {
        id,
        upload: UploadId::parse(&text(value, "upload")).ok_or("no id of an upload")?,
        owner: Owner::Admins,
        about: FileAbout {
            name: word(value, "name"),
            media_type: None,
            total: value["total"].as_u64(),
            sha256: Some([0xab; 32]),
        },
        size: count(value, "size"),
        is_complete: value["complete"] == true,
        created: Timestamp::from_millis(0),
        updated: Timestamp::from_millis(1000),
    };
    Ok(match value["piece"].as_str() {
        Some(data) => FileReply::Piece(Box::new(Piece { file, data: data.to_owned().into() })),
        None if value["list"] == true => FileReply::List(FileList { files: vec![file], total: 1 }),
        // What is whole came with its last piece.
        None if file.is_complete => FileReply::Written(Written::Complete(file)),
        None => FileReply::File(file),
    })
}

pub(super) fn reply_of(value: &Value) -> Result<Reply, String> {
    let (name, value) = member(value)?;
    let plugin = |value: &Value| {
        Ok(PluginSummary {
            name: text(value, "name").into(),
            version: word(value, "version"),
            description: text(value, "description"),
            capabilities: list(&value["capabilities"], string).unwrap_or_default(),
        })
    };
    Ok(match name {
        "ran" => Reply::Job(JobReply::Ran(Ran {
            is_ok: value["ok"] == true,
            message: text(value, "message"),
            result: word(value, "result"),
            took: Duration::from_millis(count(value, "ms")),
        })),
        "beat" => Reply::Job(JobReply::Beat(None)),
        "removed" => Reply::Job(JobReply::Removed(value == true)),
        "started" => Reply::Job(JobReply::Started(Started {
            job: text(value, "job").into(),
            scheduled: time(value, "at"),
        })),
        "file" => Reply::File(file_reply_of(value)?),
        "status" => Reply::Daemon(DaemonReply::Status(Status {
            version: text(value, "version"),
            plugins: count(value, "plugins") as usize,
            sessions: count(value, "sessions") as usize,
            connections: count(value, "connections") as usize,
            started: Timestamp::default(),
            condition: match value["condition"].as_str() {
                Some("running") => Some(Condition::Running),
                Some("degraded") => Some(Condition::Degraded),
                _ => None,
            },
        })),
        "health" => Reply::Daemon(DaemonReply::Health(Arc::new(report_of(value)))),
        "stored" => {
            let (tier, kind) = memory_words(value);
            let created = time(value, "created");
            let session = value["session"].as_str().map(|key| SessionKey::parse(key).unwrap());
            Reply::Memory(MemoryReply::Stored(Stored { id: text(value, "id"), tier, kind, session, created }))
        }
        "found" => Reply::Memory(MemoryReply::Found(Found {
            results: list(&value["results"], |result| {
                let (tier, kind) = memory_words(result);
                Ok(Remembered {
                    id: text(result, "id"),
                    owner: Owner::Admins,
                    tier,
                    kind,
                    content: text(result, "content"),
                    metadata: result["metadata"].as_object().cloned(),
                    session: None,
                    score: result["score"].as_f64().unwrap_or_default(),
                    created: time(result, "created"),
                    fact: None,
                    source: memory::Source::default(),
                })
            })
            .unwrap_or_default(),
            total: count(value, "total"),
        })),
        "forgotten" => Reply::Memory(MemoryReply::Deleted(memory::Deleted { id: text_of(value) })),
        "config" => Reply::Config(ConfigReply::Config(Box::new(ConfigSnapshot {
            path: text(value, "path"),
            exists: value["exists"] == true,
            hash: text(value, "hash"),
            file: value["file"].clone(),
            effective: value["effective"].clone(),
            complaints: list(&value["complaints"], |issue| {
                Ok(ConfigIssue { path: text(issue, "path"), message: text(issue, "message") })
            })
            .unwrap_or_default(),
            warnings: Vec::new(),
            needs_restart: value["needs_restart"] == true,
            pending: list(&value["pending"], string).unwrap_or_default(),
        }))),
        "log_tail" => Reply::Daemon(DaemonReply::LogTail(LogTail {
            cursor: count(value, "cursor"),
            end: count(value, "end"),
            lines: list(&value["lines"], string)?,
            truncated: value["truncated"] == true,
            reset: value["reset"] == true,
        })),
        "skills" => Reply::Daemon(DaemonReply::Skills(Box::new(SkillList { skills: list(value, skill)? }))),
        "usage_days" => Reply::Daemon(DaemonReply::UsageDays(list(value, |day| {
            Ok(DayUsage {
                day: time(day, "day"),
                model: ModelRef { provider: text(day, "provider"), model: text(day, "model") },
                tally: Tally {
                    usage: usage_of(day),
                    cost: Money::from_nanos(count(day, "cost")),
                    calls: count(day, "calls"),
                    unpriced: count(day, "unpriced"),
                },
            })
        })?)),
        "agent" => Reply::SubAgent(SubAgentReply::Status(Box::new(agent_of(value)?))),
        "team" => Reply::Team(TeamReply::Status(team_of(value)?)),
        "sent" => Reply::Team(TeamReply::Sent(Sent {
            team: text(value, "team").into(),
            message: text(value, "id"),
            to: list(&value["to"], string)?,
        })),
        "aborted" => Reply::Session(SessionReply::Aborted(Aborted { run: value.as_str().map(RunId::from) })),
        "history" => Reply::Session(SessionReply::History(History {
            session: session_of(value)?,
            messages: list(&value["messages"], |message| {
                Ok(Message {
                    role: if message["role"] == "user" { Role::User } else { Role::Assistant },
                    content: text(message, "content"),
                    at: time(message, "at"),
                    run: text(message, "run").into(),
                    clipped: message["clipped"] == true,
                    attachments: Vec::new(),
                })
            })?,
            more: value["more"] == true,
        })),
        "sessions" => Reply::Session(SessionReply::Sessions(list(value, |session| {
            Ok(SessionSummary {
                session: session_of(session)?,
                created: time(session, "created"),
                updated: time(session, "updated"),
                running: session["running"] == true,
            })
        })?)),
        "overview" => Reply::Daemon(DaemonReply::Overview(Arc::new(Overview {
            sessions: count(value, "sessions"),
            ..Overview::default()
        }))),
        "noted" => Reply::Daemon(DaemonReply::Noted(Noted)),
        "node_noted" => Reply::Node(NodeReply::Noted(Noted)),
        "nodes" => Reply::Node(NodeReply::Nodes(list(value, |node| {
            let about = About {
                platform: text(node, "platform"),
                display_name: word(node, "name"),
                commands: list(&node["commands"], string)?,
                ..About::default()
            };
            let connected = time(node, "at");
            Ok(NodeRow { id: text(node, "id").into(), about, host: text(node, "host"), connected })
        })?)),
        "invoked" => Reply::Node(NodeReply::Invoked(Box::new(Invoked {
            node: text(value, "node").into(),
            command: text(value, "command"),
            outcome: match value["code"].as_str() {
                None => Ok(word(value, "payload")),
                Some(code) => Err(NodeFailure { code: code.into(), message: text(value, "message") }),
            },
        }))),
        "log" => {
            let [filter, configured] = [0, 1].map(|at| value[at].as_str().unwrap_or_default().to_owned());
            Reply::Operator(OperatorReply::Log(operator::LogFilter { filter, configured }))
        }
        "channels" => {
            let channel = |state: &Value| Ok(Snapshot { state: state.clone(), ..Snapshot::default() });
            let all = Snapshot { children: list(value, channel)?, ..Snapshot::default() };
            Reply::Operator(OperatorReply::Observed(all))
        }
        "session_found" => {
            let (key, owner) = (key_of(&text_of(value))?, Owner::Admins);
            Reply::Operator(OperatorReply::Found(FoundSession { key, owner }))
        }
        "copied" => {
            let bytes = value.as_u64().unwrap_or_default();
            let report = BackupReport { bytes, sessions: 1, runs: 2, took_ms: 3 };
            Reply::Operator(OperatorReply::Copied(report))
        }
        "watching" => Reply::Session(SessionReply::Watching(Watching)),
        "unwatched" => Reply::Session(SessionReply::Unwatched(Unwatched)),
        "exists" => Reply::Session(SessionReply::Exists(value == true)),
        "stopped" => Reply::Session(SessionReply::Stopped(Stopped {
            session: session_of(value)?,
            runs: list(&value["runs"], string)?,
        })),
        "transcript" => Reply::Session(SessionReply::Transcript(Box::new(Transcript {
            head: Seq(count(value, "head")),
            total: count(value, "total"),
            entries: list(&value["entries"], entry_of)?,
            under_way: under_way_of(&value["under_way"]),
            queued: queued_of(&value["queued"]),
            row: value.get("row").map(row_of).transpose()?,
        }))),
        "attached" => Reply::Session(SessionReply::Attached(Attached {
            session: session_of(value)?,
            after: Seq(count(value, "after")),
            head: Seq(count(value, "head")),
            under_way: under_way_of(&value["under_way"]).map(Box::new),
            queued: queued_of(&value["queued"]),
            model: value["model"]
                .as_str()
                .and_then(|model| model.split_once('/'))
                .map(|(provider, model)| ModelRef { provider: provider.to_owned(), model: model.to_owned() }),
        })),
        "catalog" => Reply::Daemon(DaemonReply::Catalog(Arc::new(catalog()))),
        "detached" => {
            Reply::Session(SessionReply::Detached(Detached { found: value.as_bool().unwrap_or_default() }))
        }
        "cleared" => Reply::Session(SessionReply::Cleared(Cleared { session: key_of(&text_of(value))? })),
        "budget" => Reply::Session(SessionReply::Budget(list(value, |budget| {
            Ok(Budget {
                whose: Whose::default(),
                unit: Unit::Tokens,
                resets: None,
                period: match budget["period"].as_str() {
                    Some("session") => Period::Session,
                    Some("daily") => Period::Daily,
                    Some("monthly") => Period::Monthly,
                    _ => return Err("no such period".into()),
                },
                used: count(budget, "used"),
                reserved: count(budget, "reserved"),
                limit: count(budget, "limit"),
            })
        })?)),
        "plugins" => Reply::Plugin(PluginReply::Plugins(list(value, plugin)?)),
        "loaded" => Reply::Plugin(PluginReply::Loaded(plugin(value)?)),
        "unloaded" => Reply::Plugin(PluginReply::Unloaded(Unloaded { name: text_of(value).into() })),
        "rows" => Reply::Session(SessionReply::SessionList(SessionList {
            rows: list(&value["rows"], row_of)?,
            total: count(value, "total"),
        })),
        "row" if value.is_null() => Reply::Session(SessionReply::Session(None)),
        "row" => Reply::Session(SessionReply::Session(Some(Box::new(row_of(value)?)))),
        "settled" => Reply::Session(SessionReply::Settled(Box::new(row_of(value)?))),
        "previews" => Reply::Session(SessionReply::Previews(list(value, |preview| {
            let said = |said: &Value| {
                let role = if said[0] == "user" { Role::User } else { Role::Assistant };
                Ok((role, said[1].as_str().unwrap_or_default().to_owned()))
            };
            let messages = if preview.is_null() { None } else { Some(list(preview, said)?) };
            Ok(Preview { messages })
        })?)),
        "compacted" => Reply::Session(SessionReply::Compacted(Compacted {
            kept: usize::try_from(count(value, "kept")).unwrap_or_default(),
            forgotten: usize::try_from(count(value, "forgotten")).unwrap_or_default(),
        })),
        "approvals" => Reply::Approval(ApprovalReply::List(list(value, pending_of)?)),
        "approval" => Reply::Approval(ApprovalReply::Found(pending_of(value)?)),
        "decided" => Reply::Approval(ApprovalReply::Decided(Box::new(DecidedCall {
            id: ApprovalId::new(text(value, "id")),
            session: session_of(value)?,
            run: text(value, "run").into(),
            decided: decided_of(value),
        }))),
        "exported" => Reply::Session(SessionReply::Exported(Exported {
            session: session_of(value)?,
            events: (1..=count(value, "messages"))
                .map(|seq| Logged {
                    first_seq: Seq(seq),
                    seq: Seq(seq),
                    run: Some("i".into()),
                    at: Timestamp::from_millis(5),
                    event: Event::Injected { content: "hi".into() },
                })
                .collect(),
        })),
        "deleted" => {
            Reply::Session(SessionReply::Deleted(Deleted { found: value.as_bool().unwrap_or_default() }))
        }
        "injected" => Reply::Session(SessionReply::Injected(Injected {
            message: text(value, "message"),
            seq: Seq(count(value, "seq")),
        })),
        _ => return Err("no such reply".into()),
    })
}

fn agent_of(value: &Value) -> Result<AgentStatus, String> {
    use AgentState::{Completed, Failed, Initializing, Paused, Running, Stopped};
    let all = [Initializing, Running, Paused, Completed, Failed, Stopped];
    let state = all.into_iter().find(|state| value["state"] == state.name()).ok_or("no such state")?;
    Ok(AgentStatus {
        agent: text(value, "id").into(),
        owner: Owner::Admins,
        session: session_of(value)?,
        parent: value["parent"].as_str().map(key_of).transpose()?,
        team: value["team"].as_str().map(|team| (team.into(), text(value, "role"))),
        kind: text(value, "kind"),
        state,
        task: text(value, "task"),
        usage: Usage::new(count(value, "tokens"), 0),
        turns_completed: count(value, "turns") as u32,
        answer: word(value, "answer"),
        why: value["why"].as_str().map(|why| ErrorCode::Aborted.error(why)),
        depth: 1,
        created: Timestamp::from_millis(1000),
        updated: time(value, "updated"),
    })
}

fn team_of(value: &Value) -> Result<TeamStatus, String> {
    use TeamState::{Active, Completed, Dissolved, Failed, Forming};
    let all = [Forming, Active, Completed, Failed, Dissolved];
    Ok(TeamStatus {
        team: text(value, "id").into(),
        owner: Owner::Admins,
        name: text(value, "name"),
        description: None,
        strategy: Coordination::Sequential,
        state: all.into_iter().find(|state| value["state"] == state.name()).ok_or("no such state")?,
        members: list(&value["members"], agent_of)?,
        progress: value["progress"].as_f64().unwrap_or_default(),
        why: None,
        created: Timestamp::from_millis(1000),
        updated: Timestamp::from_millis(2000),
    })
}

pub(super) fn announcement_of(value: &Value) -> Result<Announcement, String> {
    let (name, value) = member(value)?;
    Ok(match name {
        "report" => Announcement::Report(Arc::new(report_of(value))),
        "presence" => {
            let present = list(value, |present| {
                Ok(Present {
                    connection: None,
                    host: text(present, "host"),
                    about: About {
                        client_id: text(present, "client"),
                        mode: text(present, "mode"),
                        ..About::default()
                    },
                    device: present["device"].as_str().map(Arc::from),
                    role: scope::Role::Operator,
                    scopes: Scopes::READONLY,
                    reason: text(present, "reason"),
                    text: word(present, "text"),
                    idle: None,
                    at: time(present, "at"),
                })
            })?;
            Announcement::Presence(Arc::new(Presence { version: 5, present }))
        }
        "changed" => Announcement::SessionChanged(SessionChange {
            session: key_of(&text_of(value))?,
            owner: Owner::Admins,
            reason: ChangeReason::Ended,
        }),
        "agent" => {
            let what = match value["what"].as_str() {
                Some("spawned") => AgentChange::Spawned,
                Some("stopped") => AgentChange::Stopped,
                _ => AgentChange::Changed,
            };
            Announcement::Agent(Box::new(AgentNews { what, status: agent_of(value)? }))
        }
        "team" => Announcement::Team(Box::new(TeamNews::Changed(team_of(value)?))),
        "dissolved" => Announcement::Team(Box::new(TeamNews::Dissolved {
            team: text(value, "id").into(),
            owner: Owner::Admins,
            reason: word(value, "reason"),
        })),
        "relayed" => Announcement::Team(Box::new(TeamNews::Message(Relayed {
            message: text(value, "id"),
            team: text(value, "team").into(),
            owner: Owner::Admins,
            from: text(value, "from").into(),
            to: value["to"].as_str().map(Into::into),
            content: text(value, "content"),
            metadata: value.get("metadata").cloned(),
            answers: word(value, "answers"),
            at: time(value, "at"),
        }))),
        "requested" => Announcement::Approval(Arc::new(News::Requested(pending_of(value)?))),
        "resolved" => Announcement::Approval(Arc::new(News::Resolved {
            pending: pending_of(value)?,
            decided: decided_of(value),
            at: time(value, "at"),
        })),
        _ => return Err("no such announcement".into()),
    })
}

fn asked_of(value: &Value) -> ApprovalRequest {
    ApprovalRequest {
        call: ToolCall {
            id: text(value, "call").into(),
            name: text(value, "tool").into(),
            input: value["input"].clone(),
        },
        asked: time(value, "asked"),
        deadline: time(value, "deadline"),
    }
}

fn decided_of(value: &Value) -> Decided {
    let input = Some(value["input"].clone()).filter(|input| !input.is_null());
    Decided {
        call: text(value, "call").into(),
        tool: text(value, "tool").into(),
        decision: match value["decision"].as_str() {
            Some("approved") => Decision::Approved { input },
            Some("denied") => Decision::Denied { reason: word(value, "reason") },
            Some("timed_out") => Decision::TimedOut,
            _ => Decision::Withdrawn,
        },
        by: word(value, "by"),
    }
}

/// The owner of this name; none = the operators.
fn owner_of(value: &Value) -> Owner {
    Owner::from_name(value.as_str().unwrap_or_default())
}

fn pending_of(value: &Value) -> Result<Arc<PendingCall>, String> {
    let (run, asked) = (RunId::from(text(value, "run")), asked_of(value));
    Ok(Arc::new(PendingCall {
        id: ApprovalId::of(&run, &asked.call.id),
        session: session_of(value)?,
        owner: owner_of(&value["owner"]),
        run,
        prompted_by: owner_of(&value["by"]),
        asked,
    }))
}

fn row_of(value: &Value) -> Result<SessionRow, String> {
    let at = |value: &Value| value.as_u64().map(Timestamp::from_millis);
    let run = &value["run"];
    Ok(SessionRow {
        session: session_of(value)?,
        session_id: text(value, "id"),
        owner: Owner::Admins,
        settings: Settings {
            label: word(value, "label"),
            model: word(value, "model"),
            thinking: word(value, "thinking").and_then(|level| Thinking::from_name(&level)),
            display: value["display"].as_object().cloned().unwrap_or_default().into_iter().collect(),
            ..settings_of(value)
        },
        state: match value["state"].as_str() {
            Some("new") => SessionState::New,
            Some("running") => SessionState::Running,
            Some("failed") => SessionState::Failed,
            Some("closed") => SessionState::Closed,
            _ => SessionState::Idle,
        },
        answered: count(value, "answered"),
        model: None,
        created: Timestamp::default(),
        updated: time(value, "updated"),
        running: list(&value["running"], string)?,
        last_run: at(&run["started"]).map(|started| LastRun {
            run: text(run, "id").into(),
            started,
            ended: at(&run["ended"]),
            is_aborted: run["aborted"] == true,
        }),
        usage: usage_of(value),
        cost: Money::default(),
        head: Seq(count(value, "head")),
        title: word(value, "title"),
        last_message: word(value, "last"),
    })
}

/// What a session was made for, and whether it was closed.
fn settings_of(value: &Value) -> Settings {
    let task = &value["task"];
    let assignment = task.is_object().then(|| Assignment {
        lead: text(value, "lead"),
        kind: text(value, "kind"),
        task: text(task, "type"),
        description: text(task, "description"),
        priority: text(task, "priority"),
        metadata: task["metadata"].clone(),
    });
    let closed = word(value, "closed");
    Settings { assignment: assignment.map(Box::new), closed, ..Settings::default() }
}

pub(super) fn event_of(value: &Value) -> Result<Event, String> {
    let (name, value) = member(value)?;
    let usage = usage_of(value);
    Ok(match name {
        "prompted" if value.is_object() => {
            let file = |file: &Value| {
                let data = text(file, "text").into_bytes();
                Attachment::new(file["name"].as_str(), None, data.into()).map_err(|error| error.message)
            };
            Event::Prompted {
                content: text(value, "text"),
                owner: owner_of(&value["by"]),
                idempotency_key: Some(text(value, "key")),
                attachments: list(&value["files"], file).unwrap_or_default(),
                run_options: RunOptions::default(),
            }
        }
        "prompted" => Event::prompted(value.as_str().unwrap_or_default(), Owner::Admins, None),
        "started" => Event::Started,
        "text" => Event::Text(text_of(value)),
        "called" => Event::ToolCalled(ToolCall {
            id: text(value, "id").into(),
            name: text(value, "name").into(),
            input: value["input"].clone(),
        }),
        "asked" => Event::ApprovalAsked(asked_of(value)),
        "decided" => Event::ApprovalDecided(decided_of(value)),
        "returned" => Event::ToolReturned(ToolResult {
            call: text(value, "call").into(),
            content: text(value, "content"),
            is_error: value["is_error"] == true,
        }),
        "step_ended" => Event::StepEnded { usage },
        "restarted" => Event::Restarted,
        "noticed" => {
            let kind = NoticeKind::from_name(&text(value, "kind")).ok_or("no such kind")?;
            Event::Noticed(Notice::new(kind, text(value, "message")))
        }
        "incomplete" => {
            let why = Incomplete::from_name(&text(value, "why")).ok_or("no such reason")?;
            Event::Ended { outcome: Outcome::Incomplete(why), usage }
        }
        "cleared" => Event::Cleared(Forgotten::Past),
        "anew" => Event::Cleared(Forgotten::Conversation),
        "configured" => Event::Configured(Box::new(settings_of(value))),
        "thought" => Event::Thought(text_of(value)),
        "injected" => Event::Injected { content: text_of(value) },
        "deleted" => Event::Deleted,
        "completed" => Event::Ended { outcome: Outcome::Completed, usage },
        "aborted" => {
            let cause = match value["cause"].as_str() {
                None => Cause::Asked,
                Some("stopped") => Cause::Stopped,
                Some("timed_out") => Cause::TimedOut,
                Some(_) => return Err("no such cause".into()),
            };
            Event::Ended { outcome: Outcome::Aborted(cause), usage }
        }
        "failed" => {
            let error = error_of(&text(value, "code"), &text(value, "message"))?;
            Event::Ended { outcome: Outcome::Failed(error), usage }
        }
        _ => return Err("no such event".into()),
    })
}

/// A skill in the folders of agent `main`; one without a description is broken.
fn skill(value: &Value) -> Result<SkillRow, String> {
    let said = value["description"].as_str().map(|description| Skill {
        name: text(value, "name"),
        description: description.into(),
        license: None,
        compatibility: None,
        allowed_tools: None,
    });
    let standing = if said.is_some() { Standing::Offered } else { Standing::Broken };
    Ok(SkillRow {
        name: text(value, "name"),
        folder: value["folder"].as_str().map(Into::into),
        skill: said,
        problems: Vec::new(),
        agents: vec![SkillOfAgent { agent: "main".into(), standing }],
    })
}
