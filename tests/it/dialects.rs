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

use clawmux_core::access::{Admitted, Claim, Credentials, DeviceToken, Secret};
use clawmux_core::config::catalog::{Access, AgentEntry, Catalog, ModelEntry};
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::conversation::event::{Logged, Published};
use clawmux_core::conversation::reply::{Accepted, SessionReply};
use clawmux_core::daemon::operator::Progress;
use clawmux_core::dialect::admin::Admin;
use clawmux_core::dialect::exoclaw::Exoclaw;
use clawmux_core::dialect::openclaw::OpenClaw;
use clawmux_core::dialect::socket::Socket;
use clawmux_core::dialect::wundr::Wundr;
use clawmux_core::dialect::xeno::Xeno;
use clawmux_core::dialect::{Action, Dialect, DialectSetup, Fault, Frame, Input, Introduction, Turn};
use clawmux_core::error::credential::{CredentialFault, PairingReason, PairingRequired};
use clawmux_core::error::{Detail, ErrorCode};
use clawmux_core::ids::{ConnectionId, RunId, Seq, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::provider::ProviderKind;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::request::command::Command;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Role;
use clawmux_core::scope::Scopes;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::node::Invocation;
use proptest::prelude::{Strategy, prop, prop_assert, prop_oneof, proptest};
use proptest::sample::select;
use serde_json::Value;

use self::values::{
    announcement_of, error_of, event_of, fault_of, json, key_of, number, principal, reply_of,
};
use self::words::describe;

mod values;
mod words;

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

fn run_all(dialect: &str, at_least: usize, make: fn(DialectSetup) -> Box<dyn Dialect>) {
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
fn run(path: &Path, make: fn(DialectSetup) -> Box<dyn Dialect>) -> Result<(), String> {
    let script = &std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let auth = script.lines().any(|line| line == "setup auth");
    let mut stage = Stage {
        dialect: make(DialectSetup {
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
            ..DialectSetup::default()
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
            mcp_tools: Vec::new(),
            built_in: Vec::new(),
            soul: "/home/SOUL.md".into(),
        }],
        models: vec![ModelEntry { model, kind: ProviderKind::Offline }],
        heartbeat: None,
        known: Default::default(),
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
                    role: Role::Operator,
                    scopes: Scopes::ADMIN,
                    approved_roles: vec![Role::Operator],
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
                    "cut off" => Fault::CutOff,
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
    if claim.role != Role::Operator {
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
        let mut socket = Socket::new(DialectSetup { subscriptions: 2, ..DialectSetup::default() });
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
