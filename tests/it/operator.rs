//! The operator's commands, over the binary and the socket as they ship.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::running::Running;
use crate::support::{TIMEOUT, eventually};

const ADA: &str = "main:websocket:ada:main";

fn account(name: &str) -> Value {
    json!({"channel": "websocket", "account": name})
}

/// How many connections follow the one session there is.
fn followers(daemon: &Daemon) -> u64 {
    daemon.rows_of(&["sessions"])[0]["followers"].as_u64().expect("a number")
}

/// A prompt whose answer is under way.
fn running(client: &mut Client, name: &str, content: &str) -> String {
    let id = client.prompt(name, content);
    while client.reply(&id)["event"] != "text" {}
    id
}

#[test]
fn sessions_are_listed_with_what_they_do() {
    let daemon = Daemon::start();
    let (status, stdout, stderr) = daemon.run(&["sessions"]);
    assert_eq!((status, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("no sessions yet"), "{stderr}");

    let mut client = Client::connect(daemon.address);
    client.chat("ada", "hi");
    let slow = running(&mut client, "bob", "/slow 60");
    let waiting = client.request(
        "chat.send",
        json!({"channel": "websocket", "account": "bob", "content": "next", "idempotency_key": "k"}),
    );
    assert_eq!(client.reply(&waiting)["event"], "accepted");

    let table = daemon.stdout_of(&["sessions"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("KEY") && lines[0].ends_with("UPDATED"), "{table}");
    let fields: Vec<Vec<&str>> = lines[1..].iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(fields[0][..5], ["main:websocket:bob:main", "-", "running", "+1", "2"], "{table}");
    assert_eq!(fields[1][..4], [ADA, "-", "idle", "1"], "{table}");

    let listed = daemon.rows_of(&["sessions"]);
    assert_eq!(listed[0]["state"], "running");
    assert_eq!((&listed[0]["queued"], &listed[0]["prompts"]), (&json!(1), &json!(2)));
    assert!(listed[0]["run"].is_string() && listed[1]["run"].is_null(), "{listed:?}");
    let head = daemon.rows_of(&["session", "show", ADA]).last().expect("events")["seq"].clone();
    assert_eq!(listed[1]["seq"], head);

    let (_, stdout, stderr) = daemon.run(&["sessions", "--limit", "1"]);
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    assert!(stderr.contains("--all or --limit N shows more"), "{stderr}");
    assert_eq!(daemon.stdout_of(&["sessions", "--all"]).lines().count(), 3);
    client.abort(&slow);

    let daemon = daemon.restart();
    let listed = daemon.rows_of(&["sessions"]);
    let ada = listed.iter().find(|session| session["session"] == ADA).expect("it is in the log");
    assert_eq!((&ada["state"], &ada["seq"]), (&json!("asleep"), &head), "{ada}");
}

#[test]
fn a_log_can_be_read_by_people_and_by_scripts() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    client.chat("ada", "say \u{1b}[2J\u{202e}twice\nplease");
    client.chat("ada", r#"/tool echo {"text":"from the tool"}"#);
    client.call("session.clear", account("ada"));

    let events = daemon.rows_of(&["session", "show", ADA]);
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names[..5], ["prompt", "start", "text", "step_end", "end"], "{events:#?}");
    assert!(names.contains(&"tool_call") && names.contains(&"tool_result"), "{names:?}");
    assert_eq!(names.last(), Some(&"clear"));
    assert_eq!(events[0]["content"], "say \u{1b}[2J\u{202e}twice\nplease");
    assert_eq!(events[4]["outcome"], "completed");
    // Every number is covered once.
    let mut next = 1;
    for event in &events {
        let (first, last) = (event.get("first_seq").unwrap_or(&event["seq"]), &event["seq"]);
        assert_eq!(first, next, "{events:#?}");
        next = last.as_u64().expect("a number") + 1;
    }

    let text = daemon.stdout_of(&["session", "show", ADA]);
    assert_eq!(text.lines().filter(|line| !line.starts_with(' ')).count(), events.len(), "{text}");
    assert!(text.contains(r"say \u{1b}[2J\u{202e}twice"), "{text}");
    assert!(text.contains("call      echo {\"text\":\"from the tool\"}"), "{text}");
    assert!(text.contains("end       completed; "), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    let json = daemon.stdout_of(&["session", "show", ADA, "--json"]);
    assert!(!json.contains('\u{202e}') && json.contains(r"\u202e"), "a terminal obeys nothing of it");

    let after = daemon.rows_of(&["session", "show", ADA, "--after", "1", "--limit", "2"]);
    assert_eq!(after, events[1..3]);
    let within = events[2]["first_seq"].as_u64().expect("several pieces of text").to_string();
    let rest = daemon.rows_of(&["session", "show", ADA, "--after", &within]);
    assert_eq!(rest[0]["event"], "text");
    assert!(events[2]["text"].as_str().expect("text").ends_with(rest[0]["text"].as_str().expect("text")));
    let (status, stdout, stderr) = daemon.run(&["session", "show", ADA, "--after", "999999"]);
    assert_eq!((status, stdout.as_str()), (0, ""));
    assert!(stderr.contains("nothing happened in"), "{stderr}");
}

#[test]
fn a_long_log_comes_in_pages_and_whoever_has_seen_enough_ends_it() {
    let (daemon, mut client) =
        Daemon::with("[limits]\nqueue = 2000\nrequests_burst = 0\n").and(Client::connect);
    running(&mut client, "ada", "/slow 60");
    // One connection may have no more than 256 streams.
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(daemon.address)).collect();
    let mut last = String::new();
    for client in &mut clients {
        last = (0..200).map(|n| client.prompt("ada", &format!("prompt {n}"))).last().expect("some");
    }
    let prompts = 1200;
    eventually("all prompts to be in the log", || {
        let listed = daemon.rows_of(&["sessions"]);
        listed[0]["queued"] == prompts
    });
    let events = daemon.rows_of(&["session", "show", ADA]);
    let shown = events.iter().filter(|event| event["event"] == "prompt").count();
    assert_eq!(shown, prompts + 1, "more than two pages");

    let mut show = daemon::command(daemon.home())
        .args(["session", "show", ADA])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    BufReader::new(show.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    // The reader is gone now, as with `head -1`.
    assert!(show.wait().expect("it ends").success());
    assert!(clients[5].abort(&last), "a queued run is aborted by its request");
}

#[test]
fn who_names_no_session_is_told_which_there_are() {
    let daemon = Daemon::start();
    Client::connect(daemon.address).chat("ada", "hi");
    for command in ["show", "tail", "abort", "clear", "stop"] {
        for (wanted, says) in [
            (
                "main:websocket:adda:main",
                "no such session: main:websocket:adda:main; did you mean main:websocket:ada:main?",
            ),
            ("ada", "no session begins with \"ada\"; did you mean main:websocket:ada:main?"),
            (
                "main:telegram:nobody:else",
                "no such session: main:telegram:nobody:else; `clawmux sessions` lists them",
            ),
        ] {
            let (status, stdout, stderr) = daemon.run(&["session", command, wanted]);
            assert_eq!((status, stdout.as_str()), (1, ""), "{command} {wanted}: {stderr}");
            assert!(stderr.trim_end().ends_with(says), "{command} {wanted}: {stderr}");
        }
    }
}

#[test]
fn a_run_is_aborted_and_a_conversation_forgotten() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    let slow = running(&mut client, "ada", "/slow 60");
    let queued = client.prompt("ada", "after that");
    let said = daemon.stdout_of(&["session", "abort", ADA]);
    assert!(said.starts_with("aborted run "), "{said}");
    assert_eq!(client.stream(&slow).error(), "aborted");
    assert!(client.stream(&queued).text().contains("after that"), "the next one runs");

    assert!(daemon.stdout_of(&["session", "abort", ADA]).contains("nothing is running"));
    let answer = daemon.rows_of(&["session", "abort", ADA]);
    assert_eq!(answer, [json!({"session": ADA, "aborted": false, "run": null})]);
    let said = daemon.stdout_of(&["session", "abort", ADA, "--run", "x"]);
    assert!(said.contains("run x is neither running nor queued"), "{said}");

    assert!(daemon.stdout_of(&["session", "clear", ADA]).starts_with("cleared"));
    assert_eq!(client.call("chat.history", account("ada"))["result"]["messages"], json!([]));
    let answer = daemon.rows_of(&["session", "clear", ADA]);
    assert_eq!(answer, [json!({"session": ADA, "cleared": true})]);
}

#[test]
fn a_drained_daemon_finishes_what_runs_refuses_the_rest_and_can_be_read() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    let keyed =
        json!({"channel": "websocket", "account": "ada", "content": "/slow 60", "idempotency_key": "k"});
    let slow = client.request("chat.send", keyed.clone());
    while client.reply(&slow)["event"] != "text" {}
    let queued = client.prompt("ada", "still accepted");
    eventually("the prompt to be in the queue", || daemon.rows_of(&["sessions"])[0]["queued"] == 1);

    let (status, stdout, stderr) = daemon.run(&["drain", "--timeout", "0"]);
    assert_eq!((status, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains(&format!("left: 1 running, 1 queued (in {ADA})")), "{stderr}");
    assert!(stderr.contains("clawmux session abort KEY"), "{stderr}");
    assert_eq!(
        daemon.get("/readyz"),
        (503, r#"{"ready":false,"reason":"draining: new work is to go elsewhere"}"#.into())
    );
    assert_eq!(daemon.get("/healthz").0, 200);
    let refused = client.chat("bob", "too late");
    assert!(refused.error().contains("draining") && refused.error().contains("try again"), "{refused:?}");
    let refused = client.call(
        "chat.send",
        json!({"channel": "websocket", "account": "bob", "content": "too late", "idempotency_key": "new"}),
    );
    assert!(refused["error"].as_str().unwrap_or_default().contains("draining"), "{refused}");
    // What can be read can be read, also by who comes now; and a repeated prompt is told of its run.
    let mut late = Client::connect(daemon.address);
    assert_eq!(late.call("chat.history", account("ada"))["result"]["session"], ADA);
    let again = late.request("chat.send", keyed);
    assert_eq!(late.reply(&again)["event"], "accepted");
    assert!(daemon.stdout_of(&["status"]).contains("new prompts  are refused while"));

    let waiting = daemon::command(daemon.home())
        .args(["drain", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    client.abort(&slow);
    assert!(client.stream(&queued).text().contains("still accepted"), "what was accepted runs");
    let output = waiting.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let drained: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nothing = json!({"draining": true, "running": 0, "queued": 0, "waking": 0, "sessions": []});
    assert_eq!(drained, nothing);
    assert!(daemon.stdout_of(&["drain"]).starts_with("drained: nothing is running"));

    assert!(daemon.stdout_of(&["drain", "--off"]).contains("accepts new prompts again"));
    assert_eq!(daemon.get("/readyz").0, 200);
    assert!(client.chat("bob", "now then").text().contains("now then"));
    assert!(daemon.restart().get("/readyz").0 == 200);
}

#[test]
fn a_stop_tells_clients_and_what_it_cuts_off_goes_on_at_the_next_start() {
    let (mut daemon, mut client) = Daemon::with("[gateway]\ndrain_timeout_ms = 300\n").and(Client::connect);
    let prompt =
        json!({"channel": "websocket", "account": "ada", "content": "/slow 60", "idempotency_key": "k"});
    let slow = client.request("chat.send", prompt.clone());
    while client.reply(&slow)["event"] != "text" {}
    let mut operator = Operator::connect(&daemon);
    assert_eq!(operator.ask("admin.status", json!({}))["result"]["draining"], false);

    let status = daemon.terminate();
    assert!(status.success(), "exit 0: {status}");
    let (mut frames, code) = (
        Vec::new(),
        loop {
            match client.receive_or_close() {
                Ok(frame) if frame["error"] == "draining" => {
                    assert_eq!(frame, json!({"error": "draining", "code": 1001}));
                }
                Ok(_) => {}
                Err(code) => break code,
            }
        },
    );
    frames.extend(client.seen().iter().filter(|frame| frame.contains(r#""error":"draining""#)));
    assert_eq!((frames.len(), code.as_str()), (1, "1001"), "{:?}", client.seen());
    let closing = operator.read().expect("a last line");
    assert_eq!(closing["method"], "admin.closing", "{closing}");
    assert_eq!(operator.read(), None, "then it is closed");

    let (daemon, mut client) = daemon.restart_stopped().and(Client::connect);
    let again = client.request("chat.send", prompt);
    assert_eq!(client.reply(&again)["event"], "accepted");
    eventually("the run to go on", || {
        let listed = daemon.rows_of(&["sessions"]);
        listed[0]["state"] == "running"
    });
    let events = daemon.rows_of(&["session", "show", ADA]);
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names[..4], ["prompt", "start", "text", "restart"], "{events:#?}");
    daemon.stdout_of(&["session", "abort", ADA]);
    assert_eq!(client.stream(&again).events().last(), Some(&"done"));
}

/// `clawmux session tail ADA ..`, and the lines it writes.
struct Tail {
    child: Running,
    lines: mpsc::Receiver<String>,
    errors: mpsc::Receiver<String>,
}

impl Tail {
    /// Started, and following.
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let mut tail = Self::spawn(daemon, args);
        tail.lines = tail.child.stdout_lines();
        tail
    }

    /// Started, and nobody reads what it writes.
    fn spawn(daemon: &Daemon, args: &[&str]) -> Self {
        let mut command = daemon::command(daemon.home());
        command.args(["session", "tail", ADA]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running::start(&mut command);
        let errors = child.stderr_lines();
        Self { child, lines: mpsc::channel().1, errors }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("a line in time")
    }

    /// The next event of `--json`.
    fn event(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// The events up to and with the first of this kind.
    fn until(&self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.event());
            if events.last().is_some_and(|event| event["event"] == kind) {
                return events;
            }
        }
    }

    /// Its exit status, and all it said on stderr.
    fn end(mut self) -> (Option<i32>, String) {
        (self.child.ended().code(), self.errors.iter().collect::<Vec<_>>().join("\n"))
    }
}

/// Makes sure that every number after `after` is covered once; gives the last.
fn contiguous(after: u64, events: &[Value]) -> u64 {
    events.iter().fold(after, |last, event| {
        let first = event.get("first_seq").unwrap_or(&event["seq"]);
        assert_eq!(first, last + 1, "{events:#?}");
        event["seq"].as_u64().expect("a number")
    })
}

#[test]
fn a_session_is_followed_until_ctrl_c_and_across_an_abort() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    client.chat("ada", "before");
    let before = daemon.rows_of(&["session", "show", ADA]);
    let head = before.last().expect("events")["seq"].as_u64().expect("a number");

    let now = Tail::start(&daemon, &["--json"]);
    let all = Tail::start(&daemon, &["--json", "--after", "0"]);
    let people = Tail::start(&daemon, &["--after", "1"]);
    assert!(people.errors.recv_timeout(TIMEOUT).expect("a line").ends_with("after number 1; Ctrl-C ends it"));
    assert_eq!(contiguous(0, &all.until("end")), head, "first what was");
    eventually("the tails to follow", || followers(&daemon) == 3);

    let slow = running(&mut client, "ada", "/slow 60");
    let text = now.until("text");
    let names: Vec<&Value> = text.iter().map(|event| &event["event"]).collect();
    assert_eq!(names, ["prompt", "start", "text"], "{text:#?}");
    assert_eq!(text[0]["content"], "/slow 60");
    daemon.stdout_of(&["session", "abort", ADA]);
    client.stream(&slow);
    let mut told = text;
    told.extend(now.until("end"));
    assert_eq!(told.last().expect("an end")["outcome"], "aborted");
    let last = contiguous(head, &told);
    assert_eq!(contiguous(head, &all.until("end")), last, "both were told the same");

    let mut lines = String::new();
    while !lines.contains("aborted; ") {
        lines.push_str(&people.line());
        lines.push('\n');
    }
    assert_eq!(lines.matches("  text  ").count(), 2, "text goes on within its line: {lines}");
    for tail in [now, all, people] {
        tail.child.signal("INT");
        assert_eq!(tail.end().0, Some(0));
    }
    eventually("the session to be let go", || followers(&daemon) == 0);

    let (status, _, stderr) = daemon.run(&["session", "tail", ADA, "--after", "99999"]);
    assert!(status == 1 && stderr.contains("has no number 99999 yet"), "{stderr}");
    let (status, _, stderr) = daemon.run(&["session", "tail", "main:websocket:adda:main"]);
    assert!(status == 1 && stderr.contains("did you mean main:websocket:ada:main?"), "{stderr}");
}

#[test]
fn a_tail_that_is_not_read_for_a_while_misses_nothing() {
    // Far less than what is prompted here: the daemon gives the tail up, and it comes back.
    let (daemon, mut client) = Daemon::with("[gateway]\nmax_buffered_bytes = 262144\n").and(Client::connect);
    let slow = running(&mut client, "ada", "/slow 60");
    let mut tail = Tail::spawn(&daemon, &["--json", "--after", "0"]);
    eventually("the tail to follow", || followers(&daemon) == 2);
    let content = "x".repeat(200_000);
    for _ in 0..40 {
        client.prompt("ada", &content);
    }
    eventually("the prompts to be in the log", || daemon.rows_of(&["sessions"])[0]["queued"] == 40);
    eventually("the daemon to give it up", || followers(&daemon) == 1);
    let mut other = Client::connect(daemon.address);
    assert!(other.chat("bob", "are you there?").text().contains("there"), "others are served meanwhile");

    tail.lines = tail.child.stdout_lines();
    let mut events = Vec::new();
    let mut prompts = 0;
    while prompts < 41 {
        let event = tail.event();
        prompts += usize::from(event["event"] == "prompt");
        events.push(event);
    }
    contiguous(0, &events);
    let said = tail.errors.recv_timeout(TIMEOUT).expect("a line");
    assert!(said.contains("too slow"), "{said}");
    client.abort(&slow);
}

#[test]
fn a_tail_ends_with_the_daemon_and_says_how_to_go_on() {
    let mut daemon = Daemon::start();
    Client::connect(daemon.address).chat("ada", "hi");
    let tail = Tail::start(&daemon, &["--json", "--after", "0"]);
    let last = contiguous(0, &tail.until("end"));
    assert!(daemon.terminate().success());
    let (status, said) = tail.end();
    assert_eq!(status, Some(69), "{said}");
    assert!(said.contains("the daemon is stopping"), "{said}");
    assert!(
        said.ends_with(&format!("to continue from here: clawmux session tail {ADA} --after {last}")),
        "{said}"
    );
}

#[test]
fn a_session_is_stopped_with_all_that_waits() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    let slow = running(&mut client, "ada", "/slow 60");
    let queued = client.prompt("ada", "never");
    eventually("the prompt to be in the queue", || daemon.rows_of(&["sessions"])[0]["queued"] == 1);
    assert!(daemon.stdout_of(&["session", "stop", ADA]).starts_with("stopped: 2 runs were ended"));
    assert_eq!((client.stream(&slow).error(), client.stream(&queued).error()), ("aborted", "aborted"));
    eventually("the session to sleep", || daemon.rows_of(&["sessions"])[0]["state"] == "asleep");
    assert!(daemon.stdout_of(&["session", "stop", ADA]).starts_with("stopped: nothing was running"));
    let answer = daemon.rows_of(&["session", "stop", ADA]);
    assert_eq!(answer, [json!({"session": ADA, "stopped": true, "runs": []})]);
    assert!(client.chat("ada", "awake?").text().contains("awake"), "it wakes when named");
}

#[test]
fn a_copy_made_under_load_serves_the_same_sessions() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    client.chat("ada", "remember heliotrope");
    let before = daemon.stdout_of(&["session", "show", ADA, "--json"]);
    let mut busy = Client::connect(daemon.address);
    let slow = running(&mut busy, "bob", "/slow 60");
    let streams: Vec<String> = (0..8).map(|n| busy.prompt(&format!("user{n}"), "talk a while")).collect();

    let elsewhere = daemon::home();
    let file = elsewhere.path().join("clawmux.db");
    let name = file.to_str().expect("text");
    let mut command = daemon::command(daemon.home());
    // The name is relative to whoever asks, not to the daemon.
    let (status, stdout, stderr) =
        daemon::output(command.args(["backup", "clawmux.db"]).current_dir(elsewhere.path()));
    assert_eq!(status, 0, "{stdout}{stderr}");
    assert!(
        stdout.starts_with(&format!("wrote {name}: "))
            && stdout.contains(&format!("`clawmux restore {name}`")),
        "{stdout}"
    );
    for stream in streams {
        assert_eq!(busy.stream(&stream).events().last(), Some(&"done"), "nobody is disturbed");
    }
    let (status, _, stderr) = daemon.run(&["backup", name]);
    assert!(status == 1 && stderr.contains("exists"), "{stderr}");
    let (status, _, stderr) = daemon.run(&["backup", "/nowhere/at/all"]);
    assert!(status == 1 && stderr.contains("/nowhere/at"), "{stderr}");
    let answer = Operator::connect(&daemon).ask("admin.backup", json!({"file": "relative"}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    busy.abort(&slow);

    let copied = Daemon::at(elsewhere, "", &[]);
    assert_eq!(copied.stdout_of(&["session", "show", ADA, "--json"]), before);
    let mut client = Client::connect(copied.address);
    let history = client.call("chat.history", account("ada"));
    assert_eq!(history["result"]["messages"][0]["content"], "remember heliotrope", "{history}");
    let bob = copied
        .rows_of(&["sessions"])
        .into_iter()
        .find(|session| session["session"] == "main:websocket:bob:main")
        .expect("what ran is in it too");
    assert_eq!(bob["state"], "running", "and goes on: {bob}");

    // Without a daemon it is made all the same.
    let mut daemon = daemon;
    assert!(daemon.terminate().success());
    let again = copied.home().join("again.db");
    let (status, stdout, stderr) = daemon.run(&["backup", again.to_str().expect("text"), "--json"]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains("no daemon runs on this home"), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(report["sessions"], 10, "{report}");
    assert_eq!(report["bytes"], again.metadata().expect("it is there").len());
    let (status, _, stderr) =
        daemon::output(daemon::command(daemon::home().path()).args(["backup", "/tmp/never"]));
    assert!(status == 1 && stderr.contains("there is no store at"), "{stderr}");
}

#[test]
fn the_doctor_finds_nothing_wrong_where_nothing_is() {
    let home = daemon::home();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    // It looks whether the port is free.
    let any_port = "[gateway]\nlisten = [\"127.0.0.1:0\"]\n";
    std::fs::write(home.path().join("gateway.toml"), any_port).expect("it is written");
    let (status, stdout, stderr) = daemon::output(daemon::command(home.path()).arg("doctor"));
    assert_eq!(status, 0, "an empty home is fine: {stdout}{stderr}");
    assert!(stdout.contains("none runs on this home"), "{stdout}");

    let mut daemon = Daemon::at(home, any_port, &[]);
    Client::connect(daemon.address).chat("ada", "hi");
    let (status, stdout, stderr) = daemon.run(&["doctor"]);
    assert_eq!(status, 0, "{stdout}{stderr}");
    for part in ["config", "home", "daemon", "disk", "store"] {
        assert!(
            stdout.lines().any(|line| line.starts_with(&format!("ok       {part} "))),
            "{part}: {stdout}"
        );
    }
    assert!(stdout.contains(&format!("(process {}) answers on", daemon.pid())), "{stdout}");
    assert!(!stdout.contains("error "), "{stdout}");
    let found = &daemon.rows_of(&["doctor"])[0];
    assert_eq!(found["ok"], true, "{found}");
    assert!(found["findings"].as_array().is_some_and(|list| list.len() >= 6), "{found}");

    assert!(daemon.terminate().success());
    let found = &daemon.rows_of(&["doctor"])[0];
    assert_eq!(found["ok"], true, "{found}");
    assert!(
        found["findings"].as_array().expect("a list").iter().any(|f| f["what"] == "none runs on this home")
    );
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_do() {
    let (mut daemon, mut client) = Daemon::start().and(Client::connect);
    for name in 0..20 {
        client.prompt(&format!("user{name}"), &"much to keep ".repeat(200));
    }
    eventually("the prompts to be in the log", || daemon.rows_of(&["sessions"]).len() == 20);
    daemon.stdout_of(&["drain", "--timeout", "60"]);
    let (status, stdout, _) = daemon.run(&["doctor"]);
    assert!(status == 0 && stdout.contains("it drains: new prompts are refused"), "a warning: {stdout}");

    // A daemon that does not answer: stopped, as a debugger or a full disk would.
    daemon.signal("STOP");
    let asked = daemon::output(daemon::command(daemon.home()).args(["doctor", "--within", "5"]));
    daemon.signal("CONT");
    let (status, stdout, stderr) = asked;
    assert!(status == 1 && stderr.starts_with("1 error, "), "{stderr}{stdout}");
    assert!(
        stdout.contains(&format!("a daemon (process {}) holds this home and does not answer", daemon.pid())),
        "{stdout}"
    );
    assert!(daemon.terminate().success());

    let home = daemon.home();
    std::fs::write(home.join("gateway.toml"), "[gateway]\nlissten = []\n").expect("it is written");
    let log = home.join("clawmux.db");
    let mut bytes = std::fs::read(&log).expect("it is read");
    let half = bytes.len() / 2;
    bytes[half..half + 4096].fill(0x5a);
    std::fs::write(&log, bytes).expect("it is written");
    let (status, stdout, stderr) = daemon.run(&["doctor"]);
    assert_eq!(status, 1, "{stdout}{stderr}");
    let errors: Vec<&str> = stdout.lines().filter(|line| line.starts_with("error ")).collect();
    assert!(
        errors.iter().any(|line| line.contains("gateway.toml:2") && line.contains("lissten")),
        "{stdout}"
    );
    assert!(errors.iter().any(|line| line.starts_with("error    store")), "{stdout}");
    assert!(stdout.contains("clawmux backup in their place"), "with what to do: {stdout}");
    let (status, stdout, stderr) = daemon.run(&["doctor", "--json"]);
    let found: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((status, stderr.as_str(), &found["ok"]), (1, "", &json!(false)));
}

/// A program that speaks to the socket itself.
struct Operator {
    stream: BufReader<UnixStream>,
}

impl Operator {
    fn connect(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(daemon.home().join(".xeno/gateway.sock")).expect("it accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
        Self { stream: BufReader::new(stream) }
    }

    fn send(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).expect("it takes lines");
    }

    fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("it says something in time");
        (!line.is_empty())
            .then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string());
        self.read().expect("an answer")
    }
}

#[test]
fn what_is_no_good_request_is_told_why() {
    let daemon = Daemon::start();
    Client::connect(daemon.address).chat("ada", "hi");
    let mut operator = Operator::connect(&daemon);
    for (method, params, code, says) in [
        ("admin.nothing", json!({}), -32601, "unknown method: admin.nothing"),
        ("admin.session.show", json!({}), -32602, "missing field `session`; it takes {\"session\", "),
        ("admin.session.show", json!({"session": 5}), -32602, "invalid type: integer `5`, expected a string"),
        ("admin.session.show", json!({"session": ADA, "after_seq": -1}), -32602, "invalid value"),
        ("admin.session.show", json!({"session": ADA, "limits": 1}), -32602, "unknown field `limits`"),
        ("admin.session.show", json!([ADA]), -32602, "expected names and values, not a list"),
        ("admin.session.show", json!({"session": "x:y"}), -32602, "no session begins with \"x:y\""),
        ("admin.session.abort", json!({"session": ADA, "run": {}}), -32602, "expected a string"),
        ("admin.sessions", json!({"limit": "all"}), -32602, "invalid admin.sessions params: invalid type"),
        ("admin.sessions", json!({"before": [1]}), -32602, "invalid length 1"),
        ("admin.drain", json!({"on": "yes"}), -32602, "it takes {\"on\"?}"),
        ("admin.session.show", json!({"session": "main:websocket:b:main"}), -32000, "no such session"),
    ] {
        let answer = operator.ask(method, params.clone());
        assert_eq!(
            (&answer["error"]["code"], &answer["id"]),
            (&json!(code), &json!(1)),
            "{params}: {answer}"
        );
        assert!(answer["error"]["message"].as_str().expect("text").contains(says), "{params}: {answer}");
    }
    assert_eq!(operator.ask("admin.sessions", json!([]))["result"]["sessions"][0]["session"], ADA);

    // Several at once are answered in order; notifications not at all, whatever they are.
    let line = |id: Value, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string();
    let silent = r#"{"jsonrpc":"2.0","method":"admin.nothing"}"#;
    operator.send(&format!(
        "{}\n{silent}\n\n{}\n{}\n{{\n{}",
        line(json!(1), "admin.status"),
        line(json!("two"), "admin.nothing"),
        line(json!(3.5), "admin.sessions"),
        line(Value::Null, "admin.status"),
    ));
    let answers: Vec<Value> = (0..5).map(|_| operator.read().expect("an answer")).collect();
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [&json!(1), &json!("two"), &json!(3.5), &Value::Null, &Value::Null]);
    assert_eq!(answers[3]["error"]["code"], -32700);
    assert!(answers[4]["result"]["version"].is_string(), "{}", answers[4]);

    let mut huge = Operator::connect(&daemon);
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(17 << 20));
    // It may close before all of it is taken.
    let _ = huge.stream.get_mut().write_all(long.as_bytes());
    let answer = huge.read().expect("a refusal");
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert_eq!(huge.read().expect("the last line")["method"], "admin.closing");
    let mut rest = Vec::new();
    let _ = huge.stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "then it is closed");
    assert!(operator.ask("admin.status", json!({}))["result"]["pid"].is_number(), "others are unharmed");
}
