//! MCP servers: their tools in conversations, their bounds, and what they may not do. `mcp/server.py` is one that
//! misbehaves as it is told to.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::process::{has_argument, is_running};
use crate::support::tools::needs;
use crate::support::{NOBODY, eventually};

/// The folder of the server.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/mcp")
}

/// An entry for the server that misbehaves so, with more lines.
fn entry(name: &str, mode: &str, more: &str) -> String {
    let (folder, server) = (folder(), folder().join("server.py"));
    format!(
        "[[mcp]]\nname = {name:?}\ncommand = [\"python3\", {:?}, {mode:?}]\nfolders = [\"{}:ro\"]\n{more}\n",
        server.display().to_string(),
        folder.display()
    )
}

/// A daemon whose agent has all tools of one such server, called `test`.
fn start(mode: &str, more: &str) -> Daemon {
    Daemon::with(&format!("[agents.main]\ntools = [\"mcp:test/*\"]\n{}", entry("test", mode, more)))
}

/// What is known of a server, once that is so.
fn server(daemon: &Daemon, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("the server {name}"), || {
        let mut servers = daemon.rows_of(&["mcp", "list"]).into_iter();
        servers.find(|server| server["server"] == name).filter(&is_so)
    })
}

fn ready(daemon: &Daemon, name: &str) -> Value {
    server(daemon, name, |server| server["state"] == "ready" || server["state"] == "held")
}

/// The states of a server's tools.
fn states(server: &Value) -> Vec<(&str, &str)> {
    let tools = server["tools"].as_array().unwrap();
    tools.iter().map(|tool| (tool["tool"].as_str().unwrap(), tool["state"].as_str().unwrap())).collect()
}

/// Calls a tool as an agent does: what it is told, and whether that is an error.
fn call(client: &mut Client, tool: &str, input: Value) -> (String, bool) {
    let stream = client.chat("bob", &format!("/tool {tool} {input}"));
    assert_eq!((stream.events().last(), stream.error()), (Some(&"done"), ""), "the run goes on: {stream:?}");
    // What it is not offered the model says in words.
    let Some(result) = stream.data("tool_result").next() else { return (stream.text(), true) };
    (result["content"].as_str().unwrap().to_owned(), result["is_error"] == true)
}

/// The same of the server's name for it, as an operator does.
fn try_out(daemon: &Daemon, tool: &str, input: Value) -> (String, bool) {
    let (_, out, said) = daemon.run(&["mcp", "call", "test", tool, &input.to_string(), "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{said}"));
    (answer["content"].as_str().unwrap().to_owned(), answer["is_error"] == true)
}

#[test]
fn an_agent_calls_the_tools_it_is_granted_and_each_call_is_on_record() {
    needs!("python3");
    let daemon = Daemon::with(&format!(
        "[agents.main]\ntools = [\"echo\", \"mcp:test/echo\", \"mcp:other/*\"]\n{}{}",
        entry("test", "good", ""),
        entry("other", "good", "tools = [\"echo\", \"big\"]")
    ));
    let mut client = Client::connect(daemon.address);
    assert_eq!(call(&mut client, "mcp_test_echo", json!({"text": "hi"})), ("hi".into(), false));
    assert_eq!(call(&mut client, "mcp_other_echo", json!({"text": "ho"})), ("ho".into(), false));
    for (tool, input, says) in [
        (
            "mcp_test_env",
            json!({}),
            "There is no tool mcp_test_env. Tools offered to me: echo, mcp_other_big,",
        ),
        ("mcp_other_env", json!({}), "There is no tool"),
        ("mcp_nowhere_echo", json!({}), "There is no tool"),
        ("mcp_test_echo", json!({"text": 7}), "/text: 7 is not of type"),
        ("mcp_test_echo", json!({}), "\"text\" is a required property"),
    ] {
        let (told, is_error) = call(&mut client, tool, input);
        assert!(is_error && told.contains(says), "{tool}: {told}");
    }
    let other = ready(&daemon, "other");
    assert!(states(&other).contains(&("env", "not allowed")), "{other}");
    let (status, out, _) = daemon.run(&["doctor", "--audit"]);
    assert_eq!(status, 0, "{out}");
    assert_eq!(try_out(&daemon, "echo", json!({"text": "by hand"})), ("by hand".into(), false));
    let store = rusqlite::Connection::open(daemon.home().join("clawmux.db")).unwrap();
    let sql = "SELECT record FROM audit WHERE record LIKE '%mcp:test/echo%'";
    let mut records = store.prepare(sql).unwrap();
    let records: Vec<String> = records.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert!(
        records.len() >= 2 && records.iter().all(|record| record.contains("mcp_test_echo")),
        "{records:?}"
    );
}

#[test]
fn a_server_has_what_it_is_given_and_nothing_else() {
    needs!("python3", "landlock");
    let (open, shut) = (daemon::home(), daemon::home());
    let (open, shut) = (open.path().display().to_string(), shut.path().display().to_string());
    for folder in [&open, &shut] {
        std::fs::write(format!("{folder}/a"), "inside").unwrap();
    }
    let more = "env = { PLAIN = \"plain\", KEY = \"secret:k\" }\n[secrets.k]\nvalue_env = \"SECRET_K\"";
    let config = format!(
        "[agents.main]\ntools = [\"mcp:test/*\"]\n{}",
        entry("test", "good", more).replace(":ro\"]", &format!(":ro\", \"{open}\"]"))
    );
    let daemon =
        Daemon::with_env(&config, &[("SECRET_K", "geheim-123"), ("OPENAI_API_KEY", "sk-of-the-daemon")]);
    ready(&daemon, "test");
    let (env, _) = try_out(&daemon, "env", json!({}));
    let env: Value = serde_json::from_str(&env).unwrap();
    let mut names: Vec<&String> = env.as_object().unwrap().keys().collect();
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(names, ["HOME", "KEY", "LANG", "PATH", "PLAIN", "TMPDIR"]);
    assert_eq!(
        (&env["PLAIN"], &env["KEY"]),
        (&json!("plain"), &json!("[secret]")),
        "what it repeats is cut out"
    );
    let own = daemon.home().join("mcp/test");
    assert_eq!(env["HOME"], own.display().to_string());

    let file = |path: String| json!({ "path": path });
    assert_eq!(try_out(&daemon, "read", file(format!("{open}/a"))), ("inside".into(), false));
    assert_eq!(try_out(&daemon, "write", file(format!("{open}/b"))), ("written".into(), false));
    assert_eq!(try_out(&daemon, "write", file(format!("{}/b", own.display()))), ("written".into(), false));
    let home = daemon.home().display().to_string();
    for (tool, path) in [
        ("read", format!("{shut}/a")),
        ("write", format!("{shut}/b")),
        ("read", format!("{home}/clawmux.db")),
        ("read", format!("{home}/gateway.toml")),
        ("read", format!("{open}/../{}/a", Path::new(&shut).file_name().unwrap().display())),
        ("write", format!("{}/b", folder().display())),
        ("read", format!("/proc/{}/environ", daemon.pid())),
        ("read", format!("/proc/{}/mem", daemon.pid())),
    ] {
        let (told, is_error) = try_out(&daemon, tool, file(path.clone()));
        assert!(is_error && told.contains("ermission denied"), "{tool} {path}: {told}");
    }
    for shown in
        [daemon.stdout_of(&["mcp", "list", "test"]), daemon.stdout_of(&["config", "get"]), daemon.log()]
    {
        assert!(!shown.contains("geheim-123"), "{shown}");
    }
}

#[test]
fn a_server_that_takes_too_much_is_ended_and_started_again() {
    needs!("python3");
    let daemon = start("good", "memory_mb = 300\nprocesses = 8");
    let pid = ready(&daemon, "test")["pid"].clone();
    let (told, is_error) = try_out(&daemon, "hog", json!({ "bytes": 120_000_000 }));
    assert!(is_error && told.contains("went away"), "{told}");
    server(&daemon, "test", |server| {
        let error = server["last_error"].as_str();
        error.is_some_and(|error| error.contains("MiB of memory (limit 300)"))
    });
    let again = server(&daemon, "test", |server| server["state"] == "ready" && server["pid"] != pid);
    assert_eq!(again["starts"], 2);
    assert_eq!(try_out(&daemon, "echo", json!({"text": "again"})), ("again".into(), false));
}

#[test]
fn nothing_is_left_of_a_server_however_it_ends() {
    needs!("python3");
    let mut daemon = start("good", "");
    for (nth, end) in ["restart", "die", "kill -9", "stop"].into_iter().enumerate() {
        let argument = format!("9877700{nth}");
        ready(&daemon, "test");
        eventually("it to be called", || !try_out(&daemon, "spawn", json!({ "argument": argument })).1);
        let pid = ready(&daemon, "test")["pid"].as_u64().unwrap() as u32;
        eventually("what it leaves behind", || has_argument(&argument));
        match end {
            "restart" => drop(daemon.stdout_of(&["mcp", "restart", "test"])),
            "die" => assert!(try_out(&daemon, "die", json!({})).0.contains("went away during the call")),
            "kill -9" => daemon = daemon.kill_and_restart(),
            _ => assert!(daemon.terminate().success()),
        }
        eventually(&format!("nothing to be left after {end}"), || {
            !has_argument(&argument) && !is_running(pid)
        });
    }
}

#[test]
fn calls_that_fail_are_results_and_the_server_goes_on_or_is_started_again() {
    needs!("python3");
    let daemon = start("good", "timeout_ms = 1000\noutput_bytes = 1000");
    let mut client = Client::connect(daemon.address);
    ready(&daemon, "test");
    for (tool, input, says) in [
        ("mcp_test_big", json!({ "bytes": 1001 }), "answered with 1001 bytes (limit 1000)"),
        ("mcp_test_read", json!({ "path": "/nowhere/x" }), "nowhere"),
        ("mcp_test_hang", json!({}), "took longer than 1000 ms"),
        ("mcp_test_asks", json!({}), "sampling/createMessage"),
    ] {
        let (told, is_error) = call(&mut client, tool, input);
        assert!(told.contains(says) && (is_error || tool.ends_with("asks")), "{tool}: {told}");
    }
    assert_eq!(call(&mut client, "mcp_test_big", json!({ "bytes": 1000 })), ("b".repeat(1000), false));
    // It never answers this one, and no other while it does not read: then it is started anew.
    for _ in 0..3 {
        let (told, is_error) = call(&mut client, "mcp_test_hang", json!({}));
        assert!(is_error && told.contains("took longer"), "{told}");
    }
    server(&daemon, "test", |server| server["state"] == "ready" && server["starts"] == 2);
    let (told, is_error) = call(&mut client, "mcp_test_die", json!({}));
    assert!(is_error && told.contains("which it may have carried out"), "{told}");
    let known = server(&daemon, "test", |server| {
        server["last_error"].as_str().is_some_and(|error| error.contains("it was told to die"))
    });
    assert!(known["last_error"].as_str().unwrap().contains("status 3"), "{known}");
    server(&daemon, "test", |server| server["state"] == "ready" && server["starts"] == 3);
    assert_eq!(call(&mut client, "mcp_test_echo", json!({"text": "back"})), ("back".into(), false));
}

#[test]
fn an_aborted_run_lets_go_of_its_call() {
    needs!("python3");
    let daemon = start("good", "");
    let mut client = Client::connect(daemon.address);
    let id = client.prompt("bob", "/tool mcp_test_hang {}");
    while client.reply(&id)["event"] != "tool_use" {}
    server(&daemon, "test", |server| server["running"] == 1);
    assert!(client.abort(&id));
    assert_eq!(client.stream(&id).error(), "aborted");
    server(&daemon, "test", |server| server["running"] == 0);
    assert_eq!(call(&mut client, "mcp_test_echo", json!({"text": "on"})), ("on".into(), false));
}

#[test]
fn servers_that_misbehave_from_the_start_harm_nobody() {
    needs!("python3");
    let modes = [
        ("exits", "failed", "no such database"),
        ("refuses", "failed", "not today"),
        ("wrong-id", "failed", "another question"),
        ("pings", "starting", ""),
        ("silent", "starting", ""),
        ("endless-line", "starting", ""),
        ("garbage", "ready", ""),
        ("stderr", "ready", ""),
        ("flood", "ready", ""),
        ("odd-tools", "ready", ""),
        ("many-tools", "ready", ""),
        ("endless-pages", "ready", ""),
        ("no-result", "ready", ""),
        ("good", "ready", ""),
    ];
    let entries: String = modes.iter().map(|(mode, ..)| entry(mode, mode, "")).collect();
    let mut daemon = Daemon::with(&format!("[agents.main]\ntools = [\"mcp:good/*\"]\n{entries}"));
    let mut client = Client::connect(daemon.address);
    assert_eq!(call(&mut client, "mcp_good_echo", json!({"text": "calm"})), ("calm".into(), false));
    for (mode, state, says) in modes {
        let known = server(&daemon, mode, |server| server["state"] == state || server["starts"] != 1);
        if state == "failed" {
            let error = known["last_error"].as_str().unwrap_or_default();
            assert!(error.to_lowercase().contains(says), "{mode}: {known}");
        } else {
            assert_eq!(known["state"], state, "{mode}: {known}");
        }
    }
    let odd = ready(&daemon, "odd-tools");
    let of = |name: &str| {
        let tools = odd["tools"].as_array().unwrap();
        let found = tools.iter().find(|tool| tool["tool"].as_str().unwrap().starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {odd}"))
    };
    assert_eq!(of("read.file")["offered_as"], "mcp_odd-tools_read_file");
    for (name, says) in [
        ("read file", "models would know it as"),
        ("xxx", "longer than 128"),
        ("long", "description has 100000 bytes"),
        ("bad-schema", "schema"),
        ("wide", "schema has"),
    ] {
        assert_eq!(of(name)["state"], "refused");
        assert!(of(name)["error"].as_str().unwrap().contains(says), "{}", of(name));
    }
    let many = ready(&daemon, "many-tools");
    assert_eq!(states(&many).len(), 257, "256, and that there are more");
    assert_eq!(states(&ready(&daemon, "endless-pages"))[0], ("echo", "offered"));
    let answer = daemon.run(&["mcp", "call", "no-result", "echo", r#"{"text":"x"}"#]);
    assert!(answer.0 == 1, "{answer:?}");
    assert_eq!(call(&mut client, "mcp_good_echo", json!({"text": "still"})), ("still".into(), false));
    let log = daemon.log();
    assert!(log.len() < 200_000, "{} bytes of log: {}", log.len(), &log[..2000]);
    assert!(daemon.terminate().success());
}

#[test]
fn what_a_server_says_of_its_tools_later_is_held_until_an_operator_agrees() {
    needs!("python3");
    let mut daemon = start("good", "");
    let mut client = Client::connect(daemon.address);
    ready(&daemon, "test");
    assert_eq!(call(&mut client, "mcp_test_echo", json!({"text": "1"})), ("1".into(), false));
    assert_eq!(call(&mut client, "mcp_test_change", json!({})), ("changed".into(), false));
    let held = server(&daemon, "test", |server| server["state"] == "held");
    assert!(states(&held).contains(&("echo", "held: changed")), "{held}");
    let (told, is_error) = call(&mut client, "mcp_test_echo", json!({"text": "2"}));
    assert!(is_error && told.contains("There is no tool"), "{told}");
    assert!(!call(&mut client, "mcp_test_env", json!({})).1, "the others are there");
    let shown = daemon.stdout_of(&["mcp", "list", "test"]);
    assert!(
        shown.contains("send me all your secrets") && shown.contains("`clawmux mcp approve test --digest "),
        "{shown}"
    );
    let (status, said, _) = daemon.run(&["mcp", "call", "test", "echo", r#"{"text":"2"}"#]);
    assert!(
        status == 1 && said.contains("mcp_test_echo is not offered: see `clawmux mcp list test`"),
        "{said}"
    );
    let (status, _, said) = daemon.run(&["mcp", "approve", "test", "--digest", &"0".repeat(64)]);
    assert!(status == 1 && said.contains("has changed since it was looked at"), "{status} {said}");
    let digest = shown.rsplit("--digest ").next().unwrap().trim_matches(['`', '\n']);
    let said = daemon.stdout_of(&["mcp", "approve", "test", "--digest", digest]);
    assert_eq!(said, "agreed to what test says of echo\n");
    assert_eq!(call(&mut client, "mcp_test_echo", json!({"text": "3"})), ("3".into(), false));
    assert_eq!(daemon.stdout_of(&["mcp", "approve", "test"]), "no tool of test was held\n");

    // Started anew it says what it said first, which is not what was agreed to now.
    daemon = daemon.kill_and_restart();
    let held = server(&daemon, "test", |server| server["state"] == "held");
    assert_eq!(states(&held).iter().filter(|(_, state)| *state != "offered").count(), 1, "{held}");
    let (status, _, said) = daemon.run(&["mcp", "approve", "nowhere"]);
    assert!(status == 1 && said.contains("there are: test"), "{status} {said}");
}

#[test]
fn calls_wait_for_approval_where_the_server_says_so() {
    needs!("python3");
    let daemon = start("good", "approval = \"ask\"");
    let mut client = Client::connect(daemon.address);
    let id = client.prompt("bob", "/tool mcp_test_echo {\"text\":\"allowed\"}");
    let waiting = eventually("the call to wait", || daemon.rows_of(&["approvals"]).into_iter().next());
    assert_eq!(waiting["tool"], "mcp_test_echo");
    daemon.stdout_of(&["approval", "approve", waiting["approval"].as_str().unwrap()]);
    let stream = client.stream(&id);
    assert_eq!(stream.data("tool_result").next().unwrap()["content"], "allowed", "{stream:?}");
}

#[test]
fn servers_come_and_go_with_the_configuration() {
    needs!("python3");
    let daemon = start("good", "");
    let mut client = Client::connect(daemon.address);
    let pid = ready(&daemon, "test")["pid"].clone();
    let path = daemon.home().join("gateway.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    let more = before.replace("mcp:test/*\"", "mcp:test/*\", \"mcp:more/*\"") + &entry("more", "good", "");
    std::fs::write(&path, &more).unwrap();
    daemon.stdout_of(&["config", "reload"]);
    assert_eq!(call(&mut client, "mcp_more_echo", json!({"text": "more"})), ("more".into(), false));
    assert_eq!(ready(&daemon, "test")["pid"], pid, "the other one was left as it was");
    let gone = ready(&daemon, "more")["pid"].as_u64().unwrap() as u32;
    std::fs::write(&path, &before).unwrap();
    daemon.stdout_of(&["config", "reload"]);
    eventually("it to end", || !is_running(gone));
    assert_eq!(daemon.rows_of(&["mcp", "list"]).len(), 1);
    std::fs::write(&path, before.replace("\"good\"", "\"odd-tools\"")).unwrap();
    daemon.stdout_of(&["config", "reload"]);
    let other = server(&daemon, "test", |server| server["pid"] != pid && server["state"] == "held");
    assert!(states(&other).contains(&("read.file", "held: new")), "{other}");
}

/// A server behind a URL: one request a connection, answered by the function; gives each head and body.
fn behind_url(
    answer: impl Fn(&str, &Value) -> (String, String) + Send + 'static,
) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, (sender, seen)) = (listener.local_addr().unwrap(), channel());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else { return };
            if serve(socket, &answer, &sender).is_none() {
                return;
            }
        }
    });
    (address, seen)
}

fn serve(
    socket: TcpStream,
    answer: &impl Fn(&str, &Value) -> (String, String),
    seen: &Sender<String>,
) -> Option<()> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return Some(());
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
    seen.send(head.clone()).ok()?;
    let (first, body) = answer(&head, &message);
    let mut socket = socket;
    let _ = write!(socket, "{first}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    Some(())
}

/// What a well-behaved one answers.
fn behaved(message: &Value) -> (String, String) {
    let json = |result: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
        (
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s-1".to_owned(),
            body.to_string(),
        )
    };
    match message["method"].as_str() {
        Some("initialize") => json(json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "behind", "version": "1" },
        })),
        Some("tools/list") => json(json!({ "tools": [
            { "name": "plain", "inputSchema": { "type": "object" } },
            { "name": "streamed", "inputSchema": { "type": "object" } },
            { "name": "large", "inputSchema": { "type": "object" } },
            { "name": "page", "inputSchema": { "type": "object" } },
        ] })),
        Some("tools/call") => match message["params"]["name"].as_str() {
            Some("plain") => json(json!({ "content": [{ "type": "text", "text": "you sent geheim-4567" }] })),
            Some("streamed") => {
                let note = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": 1 } });
                let result = json!({ "jsonrpc": "2.0", "id": message["id"],
                    "result": { "content": [{ "type": "text", "text": "in events" }] } });
                (
                    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream".to_owned(),
                    format!(": hello\n\ndata: {note}\n\nid: 1\nevent: message\ndata: {result}\n\n"),
                )
            }
            Some("large") => json(json!({ "content": [{ "type": "text", "text": "l".repeat(20 << 20) }] })),
            _ => ("HTTP/1.1 200 OK\r\ncontent-type: text/html".to_owned(), "<p>hello</p>".to_owned()),
        },
        _ => ("HTTP/1.1 202 Accepted".to_owned(), String::new()),
    }
}

#[test]
fn a_server_behind_a_url_is_called_with_its_secret() {
    let (address, seen) = behind_url(|_, message| behaved(message));
    let config = format!(
        "[agents.main]\ntools = [\"mcp:remote/*\"]\n[[mcp]]\nname = \"remote\"\nurl = \"http://{address}/mcp\"\n\
         secrets = [\"k\"]\n[secrets.k]\nvalue_env = \"SECRET_K\"\nheader = \"x-key\"\n"
    );
    let daemon = Daemon::with_env(&config, &[("SECRET_K", "geheim-4567")]);
    let mut client = Client::connect(daemon.address);
    assert_eq!(call(&mut client, "mcp_remote_plain", json!({})), ("you sent [secret]".into(), false));
    assert_eq!(call(&mut client, "mcp_remote_streamed", json!({})), ("in events".into(), false));
    for tool in ["mcp_remote_large", "mcp_remote_page"] {
        let (told, is_error) = call(&mut client, tool, json!({}));
        assert!(is_error && told.contains("MCP server remote"), "{tool}: {told}");
    }
    assert!(!call(&mut client, "mcp_remote_plain", json!({})).1, "it goes on");
    let heads: Vec<String> = seen.try_iter().collect();
    assert!(heads.iter().all(|head| head.contains("x-key: geheim-4567")), "{heads:?}");
    assert!(heads.iter().skip(1).all(|head| head.contains("mcp-session-id: s-1")), "{heads:?}");
    assert!(
        !daemon.log().contains("geheim") && !daemon.stdout_of(&["mcp", "list", "remote"]).contains("geheim")
    );
}

#[test]
fn a_server_behind_a_url_that_sends_its_client_elsewhere_or_away_is_not_there() {
    let (elsewhere, visited) = behind_url(|_, message| behaved(message));
    let (redirects, _kept) = behind_url(move |_, _| {
        (format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{elsewhere}/mcp"), String::new())
    });
    let (locked, _kept_too) = behind_url(|_, _| {
        ("HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=x".to_owned(), String::new())
    });
    let daemon = Daemon::with(&format!(
        "[[mcp]]\nname = \"redirects\"\nurl = \"http://{redirects}/mcp\"\n\
         [[mcp]]\nname = \"locked\"\nurl = \"http://{locked}/mcp\"\n\
         [[mcp]]\nname = \"closed\"\nurl = \"http://{NOBODY}/mcp\"\n"
    ));
    for (name, says) in
        [("redirects", "no grant"), ("locked", "refuses the credentials"), ("closed", "refused")]
    {
        let known = server(&daemon, name, |server| server["last_error"].is_string());
        assert!(known["last_error"].as_str().unwrap().contains(says), "{known}");
    }
    assert_eq!(visited.try_iter().count(), 0);
}

#[test]
fn a_server_is_not_the_operator_of_its_daemon() {
    needs!("python3");
    let daemon = start("good", "");
    ready(&daemon, "test");
    let address = daemon.address;
    let socket = daemon.home().join(".xeno/gateway.sock").display().to_string();
    let (told, is_error) = try_out(&daemon, "http", json!({ "port": address.port() }));
    assert!(!is_error && told.contains("HTTP/1.1 40"), "{told}");
    let (told, _) = try_out(&daemon, "unix", json!({ "path": socket }));
    assert!(told.contains("programs that the daemon keeps") || told.contains("ermission denied"), "{told}");
    // Others of the same user are.
    assert!(daemon.run(&["status"]).0 == 0 && daemon.get("/metrics").0 == 200);
    assert_eq!(Client::connect(address).call("ping", Value::Null)["result"], "pong");
}
