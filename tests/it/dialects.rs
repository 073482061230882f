//! Recorded conversations: every `tests/fixtures/<dialect>/*.script`, spoken with the pure dialect.
//!
//! To add a case, add a file. One step a line; a step on the left side is followed by what it must
//! bring about, all of it and in this order:
//!
//! | line | is |
//! |---|---|
//! | `# text` | a comment |
//! | `setup open` or `setup auth` | whether a credential is required; `open` unless said |
//! | `setup after FILE` | the steps of this script of the same folder come first |
//! | `> text` | the client sends a text frame |
//! | `>b hex` | the client sends a binary frame |
//! | `@ ms` | the clock is at this; where the dialect's deadline is reached, it is told |
//! | `! in NAME SCOPE,.. [EXPIRES]` / `! out [REASON AT]` / `! other` | credentials were checked: let in, until then; not, and why and since when; those of somebody else than before |
//! | `! paired NAME SCOPE,.. TOKEN` / `! unpaired DEVICE REQUEST` | a device was: let in with this token, or it has to be approved |
//! | `! accepted TICKET SESSION RUN SEQ [AHEAD]` or `! repeated ...`, `! over ...` | the reply to a prompt: a new run, and how many come before it; one that was there; one that is over |
//! | `! reply TICKET json` | another reply: an object with one member, named as in `reply_of` |
//! | `! error TICKET CODE text` | the reply is an error; for `forbidden` the text is the scope |
//! | `! event TICKET SESSION RUN SEQ json` | an event that the request with this ticket follows: an object with one member, named as in `event_of`; no run is `-`, several numbers are `3..5` |
//! | `! announce json` | something that is not about one session: an object with one member, named as in `announcement_of` |
//! | `! progress TICKET NAME json` | how far a request is that takes long |
//! | `! invoke ID NODE COMMAND params` | the client, a node, is to do something |
//! | `! fault NAME` / `! ended` | something is wrong with the connection; the peer left |
//! | `< text` | the gateway sends this frame |
//! | `<~ json` | the gateway sends a frame that holds this: objects may have more members |
//! | `<b "bytes"` | the gateway sends this binary frame, written as Rust writes bytes |
//! | `? authenticate none` or `... token TEXT`, `... api-key TEXT`, `... jwt TEXT` | credentials are to be checked; role, scopes and device follow where they are asked for |
//! | `? TICKET SCOPE COST command` | a request is to be executed; runs are `run1`, `run2`, .. |
//! | `x CODE reason` | the gateway closes |

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawmux_core::access::pairing::{CredentialFault, PairingReason, PairingRequired};
use clawmux_core::access::{
    self, About, Admitted, Claim, Credentials, DeviceToken, Owner, Principal, Scope, Scopes, Secret,
};
use clawmux_core::agents::subagent::{AgentChange, AgentNews, AgentState, AgentStatus, SubAgentReply};
use clawmux_core::agents::team::{Coordination, Relayed, Sent, TeamNews, TeamReply, TeamState, TeamStatus};
use clawmux_core::config::ModelRef;
use clawmux_core::config::catalog::{Access, AgentEntry, Catalog, ModelEntry};
use clawmux_core::config::request::{ConfigIssue, ConfigReply, ConfigSnapshot};
use clawmux_core::conversation::approval::{
    ApprovalReply, Asked, Decided, DecidedCall, Decision, News, Pending,
};
use clawmux_core::conversation::command::{
    Abort, Attach, AttachTurns, Clear, Close, CreateSession, Delete, DescribeSession, Detach, Export,
    GetBudgets, ListSummaries, ReadHistory, SessionCommand, Stop,
};
use clawmux_core::conversation::event::{
    Cause, Event, Forgotten, Logged, Outcome, Published, ToolCall, ToolResult, Usage,
};
use clawmux_core::conversation::reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Deleted, Detached, Exported, Injected, LastRun, Preview,
    SessionList, SessionReply, SessionRow, SessionState, SessionSummary, Stopped, UnderWay, Unwatched,
    Watching,
};
use clawmux_core::conversation::transcript::{Entry, History, Message, Role, Said, Transcript};
use clawmux_core::daemon::announcement::{Announcement, ChangeReason, SessionChange};
use clawmux_core::daemon::command::{
    DaemonCommand, DaemonReply, DayUsage, GetStatus, LogTail, Noted, Overview, Status,
};
use clawmux_core::daemon::health::{Figures, Part, Report};
use clawmux_core::daemon::operator::{self, BackupReport, FoundSession, OperatorReply, Progress};
use clawmux_core::daemon::presence::{Presence, Present};
use clawmux_core::dialect::admin::Admin;
use clawmux_core::dialect::exoclaw::Exoclaw;
use clawmux_core::dialect::openclaw::OpenClaw;
use clawmux_core::dialect::socket::Socket;
use clawmux_core::dialect::wundr::Wundr;
use clawmux_core::dialect::xeno::Xeno;
use clawmux_core::dialect::{Action, Dialect, Fault, Frame, Input, Introduction, Setup, Turn};
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{ApprovalId, ConnectionId, LaneName, RunId, Seq, SessionKey, Ticket};
use clawmux_core::memory::file::{FileAbout, FileId, FileList, FileReply, FileRow, Piece, UploadId, Written};
use clawmux_core::memory::{self, Found, Kind, MemoryReply, Remembered, Stored, Tier};
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::{Assignment, Settings};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::ProviderKind;
use clawmux_core::provider::meter::{Budget, Period};
use clawmux_core::request::command::Command;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::{JobReply, Ran, Started};
use clawmux_core::target::Target;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::node::{Invocation, Invoked, NodeFailure, NodeReply, NodeRow};
use clawmux_core::tools::plugin::{
    ListPlugins, LoadPlugin, PluginCommand, PluginReply, PluginSummary, UnloadPlugin, Unloaded,
};
use proptest::prelude::{Strategy, prop, prop_assert, prop_oneof, proptest};
use proptest::sample::select;
use serde_json::Value;

/// The deadline of the handshake in every script, in milliseconds of its clock.
const HANDSHAKE_DEADLINE: u64 = 10_000;

#[test]
fn exoclaw() {
    run_all("exoclaw", 15, |setup| Box::new(Exoclaw::new(setup)));
}

#[test]
fn openclaw() {
    run_all("openclaw", 5, |setup| Box::new(OpenClaw::new(setup)));
}

#[test]
fn wundr() {
    run_all("wundr", 5, |setup| Box::new(Wundr::new(setup)));
}

#[test]
fn admin() {
    run_all("admin", 15, |setup| Box::new(Admin::new(setup)));
}

#[test]
fn socket() {
    run_all("socket", 4, |setup| Box::new(Socket::new(setup)));
}

#[test]
fn xeno() {
    run_all("xeno", 8, |setup| Box::new(Xeno::new(setup)));
}

fn run_all(dialect: &str, at_least: usize, make: fn(Setup) -> Box<dyn Dialect>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(dialect);
    let mut scripts: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    let mut complaints = String::new();
    for script in &scripts {
        if let Err(complaint) = run(script, make) {
            let _ = writeln!(complaints, "{}:{complaint}\n", script.display());
        }
    }
    assert!(complaints.is_empty(), "\n{complaints}");
    assert!(scripts.len() >= at_least, "only {} scripts in {}", scripts.len(), folder.display());
}

/// Runs one script; the complaint begins with the number of a line.
fn run(path: &Path, make: fn(Setup) -> Box<dyn Dialect>) -> Result<(), String> {
    let script = &std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let auth = script.lines().any(|line| line == "setup auth");
    let mut stage = Stage {
        dialect: make(Setup {
            version: "0.1.0".into(),
            credentials_required: auth,
            handshake_deadline: Timestamp::from_millis(HANDSHAKE_DEADLINE),
            subscriptions: 2,
            connection: ConnectionId(7),
            is_loopback: true,
            max_payload_bytes: 26_214_400,
            max_buffered_bytes: 16_777_216,
            tick_interval: Duration::from_secs(15),
            heartbeat_interval: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(90),
            catalog: Arc::new(catalog()),
            ..Setup::default()
        }),
        now: Timestamp::from_millis(0),
        tickets: 0,
        runs: Vec::new(),
        heard: Vec::new(),
    };
    stage.tell(Input::Opened);
    for line in script.lines() {
        if let Some(before) = line.strip_prefix("setup after ") {
            let before = std::fs::read_to_string(path.with_file_name(before)).map_err(|e| e.to_string())?;
            let steps = before.lines().filter(|line| line.starts_with(['>', '!', '@']));
            for step in steps {
                stage.step(step).map_err(|why| format!("before: {why}: {step}"))?;
            }
            stage.heard.clear();
        }
    }
    let mut expected: Vec<String> = Vec::new();
    let mut begun = 0;
    let lines = script.lines().enumerate().map(|(at, line)| (at + 1, line));
    for (number, line) in lines.chain([(0, "end")]) {
        if line.is_empty() || line.starts_with('#') || line.starts_with("setup ") {
            continue;
        }
        if ["< ", "<~ ", "<b ", "? ", "x "].iter().any(|kind| line.starts_with(kind)) {
            expected.push(line.to_owned());
            continue;
        }
        let heard = std::mem::take(&mut stage.heard);
        if !is_as_expected(&heard, &expected) {
            let (heard, expected) = (heard.join("\n    "), expected.join("\n    "));
            return Err(format!("{begun}: expected\n    {expected}\n  but it was\n    {heard}"));
        }
        expected.clear();
        begun = number;
        if number > 0 {
            stage.step(line).map_err(|why| format!("{number}: {why}: {line}"))?;
        }
    }
    Ok(())
}

/// The agents and models there are in every script.
fn catalog() -> Catalog {
    let model = ModelRef { provider: "offline".into(), model: "offline".into() };
    Catalog {
        default_agent: Some("main".into()),
        providers: ["offline".into()].into(),
        agents: vec![AgentEntry {
            id: "main".into(),
            model: model.clone(),
            fallback: Vec::new(),
            tools: vec!["echo".into()],
            node_tools: Vec::new(),
            soul: "/home/SOUL.md".into(),
        }],
        models: vec![ModelEntry { model, kind: ProviderKind::Offline }],
        heartbeat: None,
        access: [(
            "offline".to_owned(),
            Access { kind: ProviderKind::Offline, has_key: false, lacks_key: false },
        )]
        .into(),
    }
}

/// Whether the lines are the same, or hold what a `<~` asks for.
fn is_as_expected(heard: &[String], expected: &[String]) -> bool {
    let fits = |(heard, expected): (&String, &String)| match expected.strip_prefix("<~ ") {
        // The order of an object's members is nobody's concern.
        None => {
            let json = |line: &str| serde_json::from_str::<Value>(line.strip_prefix("< ")?).ok();
            heard == expected || json(heard).is_some_and(|heard| json(expected) == Some(heard))
        }
        Some(part) => {
            let json = |text: &str| serde_json::from_str::<Value>(text).ok();
            let heard = heard.strip_prefix("< ").and_then(json);
            heard.zip(json(part)).is_some_and(|(heard, part)| holds(&heard, &part))
        }
    };
    heard.len() == expected.len() && heard.iter().zip(expected).all(fits)
}

/// Whether `whole` is `part` but for members that its objects have besides.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| holds(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
        }
        _ => whole == part,
    }
}

struct Stage {
    dialect: Box<dyn Dialect>,
    now: Timestamp,
    tickets: u64,
    runs: Vec<RunId>,
    heard: Vec<String>,
}

impl Stage {
    fn step(&mut self, line: &str) -> Result<(), String> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            ">" => self.tell(Input::Frame(Frame::Text(rest.into()))),
            ">b" => {
                let bytes: Option<Vec<u8>> = (0..rest.len())
                    .step_by(2)
                    .map(|at| rest.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()))
                    .collect();
                self.tell(Input::Frame(Frame::Binary(bytes.ok_or("not hex")?.into())));
            }
            "@" => {
                self.now = Timestamp::from_millis(rest.parse().map_err(|_| "not a time")?);
                if self.dialect.deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.tell(Input::Tick);
                }
            }
            "!" => self.inner(rest)?,
            _ => return Err("no such step".into()),
        }
        Ok(())
    }

    fn inner(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["in", name, scopes] => {
                let principal = principal(name, scopes)?;
                self.tell(Input::Authenticated(Ok(principal.into())));
            }
            ["paired", name, scopes, token] => {
                let principal = principal(name, scopes)?;
                let device_token =
                    Some(DeviceToken { token: Secret::new(token), issued: Timestamp::from_millis(5) });
                self.tell(Input::Authenticated(Ok(Admitted { principal, device_token })));
            }
            ["unpaired", device, request] => {
                let required = PairingRequired {
                    request: request.into(),
                    reason: PairingReason::Scopes,
                    device: device.into(),
                    role: access::Role::Operator,
                    scopes: Scopes::ADMIN,
                    approved_roles: vec![access::Role::Operator],
                    approved_scopes: Scopes::READONLY,
                };
                let error = ErrorCode::Forbidden.error("no").with(Detail::Pairing(Box::new(required)));
                self.tell(Input::Authenticated(Err(error)));
            }
            ["in", name, scopes, expires] => {
                let expires = Some(Timestamp::from_millis(number(expires)?));
                let principal = Principal { expires, ..principal(name, scopes)? };
                self.tell(Input::Authenticated(Ok(principal.into())));
            }
            ["out", reason, at] => {
                let fault = fault_of(reason, number(at)?)?;
                self.tell(Input::Authenticated(Err(fault.error())));
            }
            ["other"] => {
                let known = principal("jwt:ada", "read")?;
                let refused = known.renewed(&principal("jwt:bob", "read")?).map(Into::into);
                self.tell(Input::Authenticated(refused));
            }
            ["out"] => {
                let error = CredentialFault::Mismatch { has_device_token: false }.error();
                self.tell(Input::Authenticated(Err(error)));
            }
            [kind @ ("accepted" | "repeated" | "over"), ticket, session, run, seq, ref ahead @ ..] => {
                let accepted = Accepted {
                    session: key_of(session)?,
                    run: self.run_named(run),
                    seq: Seq(number(seq)?),
                    repeated: kind != "accepted",
                    is_over: kind == "over",
                    ahead: ahead.first().map_or(Ok(0), |ahead| number(ahead))? as usize,
                };
                self.tell(Input::Reply(
                    Ticket(number(ticket)?),
                    Ok(Reply::Session(SessionReply::Accepted(accepted))),
                ));
            }
            ["reply", ticket, ..] => {
                let reply = reply_of(&json(&words[2..])?)?;
                self.tell(Input::Reply(Ticket(number(ticket)?), Ok(reply)));
            }
            ["error", ticket, code, ..] => {
                let error = error_of(code, &words[3..].join(" "))?;
                self.tell(Input::Reply(Ticket(number(ticket)?), Err(error)));
            }
            ["event", ticket, session, run, seq, ..] => {
                let (first_seq, seq) = seq.split_once("..").unwrap_or((seq, seq));
                let logged = Logged {
                    first_seq: Seq(number(first_seq)?),
                    seq: Seq(number(seq)?),
                    run: (run != "-").then(|| self.run_named(run)),
                    at: self.now,
                    event: event_of(&json(&words[5..])?)?,
                };
                let event = Published::new(key_of(session)?, logged);
                let (ticket, first) = (Ticket(number(ticket)?), event.logged.first_seq);
                self.tell(Input::Event { ticket, first, event: &event });
            }
            ["progress", ticket, "admin.backup.progress", ..] => {
                let told: Value = json(&words[3..])?;
                let progress =
                    Progress::Backup { pages_left: told["pages_left"].as_u64().unwrap_or_default() };
                self.tell(Input::Progress(Ticket(number(ticket)?), progress));
            }
            ["announce", ..] => {
                let announcement = announcement_of(&json(&words[1..])?)?;
                self.tell(Input::Announced(&announcement));
            }
            ["invoke", id, node, command, ..] => self.tell(Input::Invoked(&Invocation {
                id: id.into(),
                node: node.into(),
                command: command.into(),
                params: Some(words[4..].join(" ")).filter(|params| !params.is_empty()),
                timeout: Duration::from_secs(30),
                idempotency_key: None,
            })),
            ["fault", name] => {
                self.tell(Input::Fault(match name {
                    "oversize" => Fault::Oversize { limit: 65_536 },
                    "crowded" => Fault::Crowded,
                    "incomplete" => Fault::Incomplete,
                    "slow" => Fault::Slow,
                    "idle" => Fault::Idle,
                    "revoked" => Fault::Revoked,
                    "expired" => Fault::Expired,
                    "overloaded" => Fault::Overloaded,
                    "draining" => Fault::Draining,
                    _ => return Err("no such fault".into()),
                }));
            }
            ["ended"] => self.tell(Input::Ended),
            _ => return Err("no such inner event".into()),
        }
        Ok(())
    }

    /// `run1` is the first run the dialect named; any other name is itself.
    fn run_named(&self, name: &str) -> RunId {
        let index = name.strip_prefix("run").and_then(|index| index.parse::<usize>().ok());
        match index.and_then(|index| self.runs.get(index.wrapping_sub(1))) {
            Some(run) => run.clone(),
            None => name.into(),
        }
    }

    fn tell(&mut self, input: Input<'_>) {
        let mut actions = Vec::new();
        let mut random = {
            let mut next = u8::try_from(self.runs.len()).unwrap();
            move || {
                next += 1;
                [next; 16]
            }
        };
        self.dialect.handle(input, &mut Turn::new(self.now, &mut actions, &mut self.tickets, &mut random));
        for action in actions {
            let line = match action {
                Action::Send(Frame::Text(text)) => format!("< {text}"),
                Action::Send(Frame::Binary(bytes)) => format!("<b {bytes:?}"),
                Action::Authenticate(claim) => authentication(&claim),
                Action::Execute(ticket, request) => {
                    if let Ok(Command::Session(SessionCommand::Submit(submit))) = &request.command {
                        self.runs.push(submit.run.clone());
                    }
                    let command = match &request.command {
                        Ok(command) => describe(command),
                        Err(error) => format!("{}: {}", error.code.name(), error.message),
                    };
                    format!("? {} {} {} {command}", ticket.0, request.needs.name(), request.cost)
                }
                Action::Introduce(Introduction { client, user }) => {
                    format!(
                        "? introduce client={} user={}",
                        client.unwrap_or_default(),
                        user.unwrap_or_default()
                    )
                }
                Action::Close { code, reason } => format!("x {code} {reason}"),
            };
            self.heard.push(self.with_run_names(line));
        }
    }

    fn with_run_names(&self, mut line: String) -> String {
        for (index, run) in self.runs.iter().enumerate() {
            line = line.replace(run.as_str(), &format!("run{}", index + 1));
        }
        line
    }
}

fn authentication(claim: &Claim) -> String {
    let mut line = match &claim.credentials {
        Credentials::None => "? authenticate none".to_owned(),
        Credentials::Token(token) => format!("? authenticate token {}", token.expose()),
        Credentials::ApiKey(key) => format!("? authenticate api-key {}", key.expose()),
        Credentials::Jwt(token) => format!("? authenticate jwt {}", token.expose()),
    };
    if claim.role != access::Role::Operator {
        let _ = write!(line, " role={:?}", claim.role);
    }
    if let Some(scopes) = claim.scopes {
        let _ = write!(line, " scopes={scopes:?}");
    }
    if let Some(device) = &claim.device {
        let _ = write!(line, " device={}", device.id);
    }
    line
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

fn json(words: &[&str]) -> Result<Value, String> {
    serde_json::from_str(&words.join(" ")).map_err(|error| error.to_string())
}

fn key_of(text: &str) -> Result<SessionKey, String> {
    SessionKey::parse(text).map_err(|error| error.message)
}

fn fault_of(reason: &str, at: u64) -> Result<CredentialFault, String> {
    use clawmux_core::access::jwt::Refusal;
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

fn principal(name: &str, scopes: &str) -> Result<Principal, String> {
    let scopes: Option<Vec<Scope>> = scopes.split(',').map(scope_of).collect();
    let scopes = Scopes::of(&scopes.ok_or("no such scope")?);
    Ok(Principal::new(name, scopes))
}

fn scope_of(name: &str) -> Option<Scope> {
    Scope::ALL.into_iter().find(|scope| scope.name() == name)
}

fn error_of(code: &str, text: &str) -> Result<Error, String> {
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
        idempotency_key: value["key"].as_str().map(str::to_owned),
        text: text(value, "text"),
        step_at: count(value, "step_at") as usize,
        seq: Seq(count(value, "seq")),
        started: Timestamp::from_millis(count(value, "started")),
        is_anew: value["is_anew"] == true,
        calls: list(&value["calls"], |call| Ok((text(call, "id").into(), text(call, "name").into())))
            .unwrap_or_default(),
    })
}

fn entry_of(value: &Value) -> Result<Entry, String> {
    let said = match value["role"].as_str() {
        Some("user") => Said::User {
            text: text(value, "text"),
            idempotency_key: value["key"].as_str().map(str::to_owned),
            attachments: Vec::new(),
        },
        Some("assistant") => Said::Assistant {
            text: text(value, "text"),
            model: None,
            usage: Usage::default(),
            is_aborted: value["aborted"] == true,
            error: value["error"].as_str().map(str::to_owned),
        },
        _ => return Err("no such role".into()),
    };
    Ok(Entry {
        id: text(value, "id"),
        place: count(value, "place"),
        at: Timestamp::from_millis(count(value, "at")),
        run: value["run"].as_str().map(RunId::from),
        said,
        clipped: false,
    })
}

fn report_of(value: &Value) -> Report {
    let at = Timestamp::from_millis(count(value, "at"));
    let part = |name: &'static str| {
        let errors = list(&value[name], |error| Ok(error.as_str().unwrap_or_default().to_owned()));
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

fn memory_reply(reply: MemoryReply) -> Reply {
    Reply::Memory(reply)
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
            name: value["name"].as_str().map(str::to_owned),
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

fn reply_of(value: &Value) -> Result<Reply, String> {
    let (name, value) = member(value)?;
    let plugin = |value: &Value| {
        Ok(PluginSummary {
            name: text(value, "name").into(),
            version: value["version"].as_str().map(str::to_owned),
            description: text(value, "description"),
            capabilities: list(&value["capabilities"], |item| Ok(item.as_str().unwrap_or("").to_owned()))
                .unwrap_or_default(),
        })
    };
    Ok(match name {
        "ran" => Reply::Job(JobReply::Ran(Ran {
            is_ok: value["ok"] == true,
            message: text(value, "message"),
            result: value["result"].as_str().map(str::to_owned),
            took: Duration::from_millis(count(value, "ms")),
        })),
        "beat" => Reply::Job(JobReply::Beat(None)),
        "removed" => Reply::Job(JobReply::Removed(value == true)),
        "started" => Reply::Job(JobReply::Started(Started {
            job: text(value, "job").into(),
            scheduled: Timestamp::from_millis(count(value, "at")),
        })),
        "file" => Reply::File(file_reply_of(value)?),
        "status" => Reply::Daemon(DaemonReply::Status(Status {
            version: text(value, "version"),
            plugins: count(value, "plugins") as usize,
            sessions: count(value, "sessions") as usize,
            connections: count(value, "connections") as usize,
            started: Timestamp::default(),
        })),
        "health" => Reply::Daemon(DaemonReply::Health(Arc::new(report_of(value)))),
        "stored" => {
            let (tier, kind) = memory_words(value);
            let created = Timestamp::from_millis(count(value, "created"));
            let session = value["session"].as_str().map(|key| SessionKey::parse(key).unwrap());
            memory_reply(MemoryReply::Stored(Stored { id: text(value, "id"), tier, kind, session, created }))
        }
        "found" => memory_reply(MemoryReply::Found(Found {
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
                    created: Timestamp::from_millis(count(result, "created")),
                })
            })
            .unwrap_or_default(),
            total: count(value, "total"),
        })),
        "forgotten" => memory_reply(MemoryReply::Deleted(memory::Deleted {
            id: value.as_str().unwrap_or_default().into(),
        })),
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
            pending: list(&value["pending"], |path| Ok(path.as_str().unwrap_or_default().to_owned()))
                .unwrap_or_default(),
        }))),
        "log_tail" => Reply::Daemon(DaemonReply::LogTail(LogTail {
            cursor: count(value, "cursor"),
            end: count(value, "end"),
            lines: list(&value["lines"], |line| Ok(line.as_str().unwrap_or_default().into()))?,
            truncated: value["truncated"] == true,
            reset: value["reset"] == true,
        })),
        "usage_days" => Reply::Daemon(DaemonReply::UsageDays(list(value, |day| {
            Ok(DayUsage {
                day: Timestamp::from_millis(count(day, "day")),
                model: ModelRef { provider: text(day, "provider"), model: text(day, "model") },
                usage: Usage { input_tokens: count(day, "input"), output_tokens: count(day, "output") },
                calls: count(day, "calls"),
            })
        })?)),
        "agent" => Reply::SubAgent(SubAgentReply::Status(Box::new(agent_of(value)?))),
        "team" => Reply::Team(TeamReply::Status(team_of(value)?)),
        "sent" => Reply::Team(TeamReply::Sent(Sent {
            team: text(value, "team").into(),
            message: text(value, "id"),
            to: list(&value["to"], |id| Ok(id.as_str().unwrap_or_default().into()))?,
        })),
        "aborted" => Reply::Session(SessionReply::Aborted(Aborted { run: value.as_str().map(RunId::from) })),
        "history" => Reply::Session(SessionReply::History(History {
            session: key_of(&text(value, "session"))?,
            messages: list(&value["messages"], |message| {
                Ok(Message {
                    role: if message["role"] == "user" { Role::User } else { Role::Assistant },
                    content: text(message, "content"),
                    at: Timestamp::from_millis(count(message, "at")),
                    run: text(message, "run").into(),
                    clipped: message["clipped"] == true,
                    attachments: Vec::new(),
                })
            })?,
            more: value["more"] == true,
        })),
        "sessions" => Reply::Session(SessionReply::Sessions(list(value, |session| {
            Ok(SessionSummary {
                session: key_of(&text(session, "session"))?,
                created: Timestamp::from_millis(count(session, "created")),
                updated: Timestamp::from_millis(count(session, "updated")),
                running: session["running"] == true,
            })
        })?)),
        "overview" => Reply::Daemon(DaemonReply::Overview(Arc::new(Overview {
            sessions: count(value, "sessions"),
            ..Overview::default()
        }))),
        "noted" => Reply::Daemon(DaemonReply::Noted(Noted)),
        "nodes" => Reply::Node(NodeReply::Nodes(list(value, |node| {
            let about = About {
                platform: text(node, "platform"),
                display_name: node["name"].as_str().map(str::to_owned),
                commands: list(&node["commands"], |item| Ok(item.as_str().unwrap_or_default().to_owned()))?,
                ..About::default()
            };
            let connected = Timestamp::from_millis(count(node, "at"));
            Ok(NodeRow { id: text(node, "id").into(), about, host: text(node, "host"), connected })
        })?)),
        "invoked" => Reply::Node(NodeReply::Invoked(Box::new(Invoked {
            node: text(value, "node").into(),
            command: text(value, "command"),
            outcome: match value["code"].as_str() {
                None => Ok(value["payload"].as_str().map(str::to_owned)),
                Some(code) => Err(NodeFailure { code: code.into(), message: text(value, "message") }),
            },
        }))),
        "log" => {
            let [filter, configured] = [0, 1].map(|at| value[at].as_str().unwrap_or_default().to_owned());
            Reply::Operator(OperatorReply::Log(operator::LogFilter { filter, configured }))
        }
        "session_found" => {
            let (key, owner) = (key_of(value.as_str().unwrap_or_default())?, Owner::Admins);
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
            session: key_of(&text(value, "session"))?,
            runs: list(&value["runs"], |run| Ok(run.as_str().unwrap_or_default().into()))?,
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
            session: key_of(&text(value, "session"))?,
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
        "cleared" => Reply::Session(SessionReply::Cleared(Cleared {
            session: key_of(value.as_str().unwrap_or_default())?,
        })),
        "budget" => Reply::Session(SessionReply::Budget(list(value, |budget| {
            Ok(Budget {
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
        "unloaded" => {
            Reply::Plugin(PluginReply::Unloaded(Unloaded { name: value.as_str().unwrap_or_default().into() }))
        }
        "rows" => Reply::Session(SessionReply::SessionList(SessionList {
            rows: list(&value["rows"], row_of)?,
            total: count(value, "total"),
        })),
        "row" if value.is_null() => Reply::Session(SessionReply::Session(None)),
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
            session: key_of(&text(value, "session"))?,
            run: text(value, "run").into(),
            decided: decided_of(value),
        }))),
        "exported" => Reply::Session(SessionReply::Exported(Exported {
            session: key_of(&text(value, "session"))?,
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
        session: key_of(&text(value, "session"))?,
        parent: value["parent"].as_str().map(key_of).transpose()?,
        team: value["team"].as_str().map(|team| (team.into(), text(value, "role"))),
        kind: text(value, "kind"),
        state,
        task: text(value, "task"),
        usage: Usage { input_tokens: count(value, "tokens"), output_tokens: 0 },
        turns_completed: count(value, "turns") as u32,
        answer: value["answer"].as_str().map(str::to_owned),
        why: value["why"].as_str().map(|why| ErrorCode::Aborted.error(why)),
        depth: 1,
        created: Timestamp::from_millis(1000),
        updated: Timestamp::from_millis(count(value, "updated")),
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

fn announcement_of(value: &Value) -> Result<Announcement, String> {
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
                    role: access::Role::Operator,
                    scopes: Scopes::READONLY,
                    reason: text(present, "reason"),
                    text: present["text"].as_str().map(str::to_owned),
                    idle: None,
                    at: Timestamp::from_millis(count(present, "at")),
                })
            })?;
            Announcement::Presence(Arc::new(Presence { version: 5, present }))
        }
        "changed" => Announcement::SessionChanged(SessionChange {
            session: key_of(value.as_str().unwrap_or_default())?,
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
            reason: value["reason"].as_str().map(str::to_owned),
        })),
        "relayed" => Announcement::Team(Box::new(TeamNews::Message(Relayed {
            message: text(value, "id"),
            team: text(value, "team").into(),
            owner: Owner::Admins,
            from: text(value, "from").into(),
            to: value["to"].as_str().map(Into::into),
            content: text(value, "content"),
            metadata: value.get("metadata").cloned(),
            answers: value["answers"].as_str().map(str::to_owned),
            at: Timestamp::from_millis(count(value, "at")),
        }))),
        "requested" => Announcement::Approval(Arc::new(News::Requested(pending_of(value)?))),
        "resolved" => Announcement::Approval(Arc::new(News::Resolved {
            pending: pending_of(value)?,
            decided: decided_of(value),
            at: Timestamp::from_millis(count(value, "at")),
        })),
        _ => return Err("no such announcement".into()),
    })
}

fn asked_of(value: &Value) -> Asked {
    Asked {
        call: ToolCall {
            id: text(value, "call").into(),
            name: text(value, "tool").into(),
            input: value["input"].clone(),
        },
        asked: Timestamp::from_millis(count(value, "asked")),
        deadline: Timestamp::from_millis(count(value, "deadline")),
    }
}

fn decided_of(value: &Value) -> Decided {
    let input = Some(value["input"].clone()).filter(|input| !input.is_null());
    Decided {
        call: text(value, "call").into(),
        tool: text(value, "tool").into(),
        decision: match value["decision"].as_str() {
            Some("approved") => Decision::Approved { input },
            Some("denied") => Decision::Denied { reason: value["reason"].as_str().map(str::to_owned) },
            Some("timed_out") => Decision::TimedOut,
            _ => Decision::Withdrawn,
        },
        by: value["by"].as_str().map(str::to_owned),
    }
}

/// The owner of this name; none = the operators.
fn owner_of(value: &Value) -> Owner {
    Owner::from_name(value.as_str().unwrap_or_default())
}

fn pending_of(value: &Value) -> Result<Arc<Pending>, String> {
    let (run, asked) = (RunId::from(text(value, "run")), asked_of(value));
    Ok(Arc::new(Pending {
        id: ApprovalId::of(&run, &asked.call.id),
        session: key_of(&text(value, "session"))?,
        owner: owner_of(&value["owner"]),
        run,
        prompted_by: owner_of(&value["by"]),
        asked,
    }))
}

fn row_of(value: &Value) -> Result<SessionRow, String> {
    let word = |name: &str| value[name].as_str().map(str::to_owned);
    let time = |value: &Value| value.as_u64().map(Timestamp::from_millis);
    let run = &value["run"];
    Ok(SessionRow {
        session: key_of(&text(value, "session"))?,
        session_id: text(value, "id"),
        owner: Owner::Admins,
        settings: Settings {
            label: word("label"),
            model: word("model"),
            thinking: word("thinking").and_then(|level| Thinking::from_name(&level)),
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
        updated: Timestamp::from_millis(count(value, "updated")),
        running: list(&value["running"], |run| Ok(run.as_str().unwrap_or_default().into()))?,
        last_run: time(&run["started"]).map(|started| LastRun {
            run: text(run, "id").into(),
            started,
            ended: time(&run["ended"]),
            is_aborted: run["aborted"] == true,
        }),
        usage: Usage { input_tokens: count(value, "input"), output_tokens: count(value, "output") },
        head: Seq(count(value, "head")),
        title: word("title"),
        last_message: word("last"),
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
    let closed = value["closed"].as_str().map(str::to_owned);
    Settings { assignment: assignment.map(Box::new), closed, ..Settings::default() }
}

fn event_of(value: &Value) -> Result<Event, String> {
    let (name, value) = member(value)?;
    let usage = Usage { input_tokens: count(value, "input"), output_tokens: count(value, "output") };
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
        "text" => Event::Text(value.as_str().unwrap_or_default().to_owned()),
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
        "cleared" => Event::Cleared(Forgotten::Past),
        "anew" => Event::Cleared(Forgotten::Conversation),
        "configured" => Event::Configured(Box::new(settings_of(value))),
        "thought" => Event::Thought(value.as_str().unwrap_or_default().to_owned()),
        "injected" => Event::Injected { content: value.as_str().unwrap_or_default().to_owned() },
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

fn describe(command: &Command) -> String {
    let target = |target: &Target| match target {
        Target::Session(key) => format!("session={key}"),
        Target::Uuid(uuid) => format!("uuid={uuid}"),
        Target::Conversation(id) => format!("conversation={id}"),
        Target::Route(route) => {
            let mut text = format!("{}/{}", route.channel, route.account);
            for (name, part) in [("peer", &route.peer), ("guild", &route.guild), ("team", &route.team)] {
                if let Some(part) = part {
                    let _ = write!(text, " {name}={part}");
                }
            }
            text
        }
    };
    let optional = |name: &str, value: Option<&str>| match value {
        Some(value) => format!(" {name}={value}"),
        None => String::new(),
    };
    let attachment = |attachment: &Attachment| {
        let name = attachment.name().unwrap_or("-");
        format!(" attached={name}:{}:{}", attachment.media_type(), attachment.bytes())
    };
    match command {
        Command::Daemon(DaemonCommand::GetStatus(GetStatus)) => "status".into(),
        Command::Session(SessionCommand::Submit(submit)) => format!(
            "submit {} {}{}{}{}{}{}{}{}{} {:?}",
            target(&submit.target),
            submit.run,
            optional("key", submit.idempotency_key.as_deref()),
            optional("model", submit.run_options.model.as_deref()),
            optional("max_tokens", submit.run_options.max_tokens.map(|most| most.to_string()).as_deref()),
            optional("lane", submit.run_options.lane.as_ref().map(LaneName::as_str)),
            optional(
                "timeout_ms",
                submit.run_options.timeout.map(|time| time.as_millis().to_string()).as_deref()
            ),
            submit.files.iter().map(|file| format!(" file={file}")).collect::<String>(),
            submit.local_files.iter().map(|file| format!(" enclosed={}", file.path)).collect::<String>(),
            submit.attachments.iter().map(attachment).collect::<String>(),
            submit.content
        ),
        Command::Session(SessionCommand::Abort(Abort { target: whose, run })) => {
            format!("abort {}{}", target(whose), optional("run", run.as_ref().map(RunId::as_str)))
        }
        Command::Session(SessionCommand::Attach(Attach { target: whose, after })) => {
            format!(
                "attach {}{}",
                target(whose),
                optional("after", after.map(|after| after.to_string()).as_deref())
            )
        }
        Command::Session(SessionCommand::AttachTurns(AttachTurns { target: whose, turns })) => {
            format!("attach {} turns={turns}", target(whose))
        }
        Command::Session(SessionCommand::Detach(Detach { target: whose, follow })) => {
            format!("detach {} {}", target(whose), follow.0)
        }
        Command::Session(SessionCommand::Close(Close { target: whose, reason })) => {
            format!("close {} {reason:?}", target(whose))
        }
        Command::Session(SessionCommand::DescribeSession(DescribeSession { target: whose })) => {
            format!("describe {}", target(whose))
        }
        Command::Session(SessionCommand::CreateSession(CreateSession { target: whose, patch })) => {
            format!("create {} {patch:?}", target(whose))
        }
        Command::Session(SessionCommand::Stop(Stop { target: whose, cause: Cause::Stopped })) => {
            format!("stop {}", target(whose))
        }
        Command::Session(SessionCommand::Stop(Stop { target: whose, cause })) => {
            format!("stop {} {cause:?}", target(whose))
        }
        Command::Session(SessionCommand::ReadHistory(ReadHistory { target: whose, limit, before })) => {
            let before = before.as_ref().map(|before| format!("{}/{:?}", before.run, before.role));
            format!("history {} limit={limit}{}", target(whose), optional("before", before.as_deref()))
        }
        Command::Session(SessionCommand::ListSummaries(ListSummaries)) => "sessions".into(),
        Command::Session(SessionCommand::Clear(Clear { target: whose })) => {
            format!("clear {}", target(whose))
        }
        Command::Session(SessionCommand::Delete(Delete { target: whose @ Target::Route(_) })) => {
            format!("delete {}", target(whose))
        }
        Command::Session(SessionCommand::Export(Export { target: whose @ Target::Route(_), after })) => {
            format!("export {} after={after}", target(whose))
        }
        Command::Session(SessionCommand::GetBudgets(GetBudgets { target: None })) => "budget".into(),
        Command::Session(SessionCommand::GetBudgets(GetBudgets { target: Some(whose) })) => {
            format!("budget {}", target(whose))
        }
        Command::Plugin(PluginCommand::List(ListPlugins)) => "plugins".into(),
        Command::Plugin(PluginCommand::Load(LoadPlugin { name, path })) => {
            format!("load {name}{}", optional("path", path.as_deref()))
        }
        Command::Plugin(PluginCommand::Unload(UnloadPlugin { name })) => format!("unload {name}"),
        Command::Operator(command) => format!("operate {command:?}"),
        // The words of newer commands are their own names and fields, without their area's.
        other => {
            let shown = format!("{other:?}");
            let split = |shown: &'_ str| {
                let (name, rest) = shown.strip_suffix(')')?.split_once('(')?;
                Some((name.to_owned(), rest.to_owned()))
            };
            let Some((area, asked)) = split(&shown) else { return shown };
            // Of some, the scripts say the struct besides.
            let is_said = |name: &String| !["Query", "Spawn", "Create", "Message"].contains(&name.as_str());
            let fields = split(&asked).filter(|(name, fields)| fields.starts_with(name) && is_said(name));
            let words = fields.map_or(asked, |(_, fields)| fields);
            match area.as_str() {
                "Session" | "Daemon" | "Node" | "Plugin" | "Config" => words,
                area => format!("{area}({words})"),
            }
        }
    }
}

/// What a peer on the Unix socket may ask for, and with what.
const METHODS: &[&str] = &[
    "admin.status",
    "admin.auth",
    "admin.unfollow",
    "admin.events",
    "gateway.query",
    "admin.\\n",
    "x",
    "chat.send",
    "session.attach",
    "approval.approve",
];
const VALUES: &[&str] = &["null", "1", r#""a\nb""#, "{}", "[]", r#"{"follow":1}"#, r#"{"token":"x"}"#];

/// A line of it that means something, or does not.
fn line() -> impl Strategy<Value = String> {
    let request = (select(METHODS), select(VALUES), select(VALUES)).prop_map(|(method, id, params)| {
        let version = if method.starts_with("admin") { r#""jsonrpc":"2.0","# } else { "" };
        format!(r#"{{{version}"id":{id},"method":"{method}","params":{params}}}"#)
    });
    prop_oneof![request.boxed(), "[^\n]{0,40}".prop_map(String::from).boxed()]
}

proptest! {
    /// Whatever a peer says, it is answered in lines or not at all, and one that has closed its half is
    /// closed once nothing is owed.
    #[test]
    fn no_line_breaks_the_framing_of_the_socket(lines in prop::collection::vec(line(), 0..8)) {
        let mut socket = Socket::new(Setup { subscriptions: 2, ..Setup::default() });
        let (mut actions, mut tickets) = (Vec::new(), 0);
        let mut tell = |input: Input<'_>| {
            let mut random = || [7; 16];
            let now = Timestamp::from_millis(1);
            socket.handle(input, &mut Turn::new(now, &mut actions, &mut tickets, &mut random));
        };
        tell(Input::Opened);
        tell(Input::Authenticated(Ok(Principal::socket().into())));
        for line in lines {
            tell(Input::Frame(Frame::Text(line.into())));
        }
        tell(Input::Ended);
        // Tickets are numbers from 1 on; a reply that nobody waits for is nobody's.
        for ticket in 1..64 {
            tell(Input::Reply(Ticket(ticket), Err(ErrorCode::Unavailable.error("no"))));
        }
        prop_assert!(matches!(actions.last(), Some(Action::Close { code: 1000, .. })), "{actions:?}");
        for action in &actions {
            if let Action::Send(frame) = action {
                let text = match frame { Frame::Text(text) => text, Frame::Binary(_) => panic!("a line is text") };
                prop_assert!(!text.contains('\n'), "{text}");
            }
        }
    }
}
