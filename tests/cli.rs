//! The binary from outside: exit statuses, complaints, and `chat` against a scripted daemon.

#![expect(clippy::unwrap_used, reason = "a test says why it failed by failing")]

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

fn clawmux(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clawmux"));
    command.env_clear().env("CLAWMUX_HOME", home).env("USER", "tester").args(args).stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("it exits by itself"), text(stdout), text(stderr))
}

#[test]
fn exit_statuses_are_those_scripts_know() {
    let home = tempfile::tempdir().unwrap();
    // The doctor looks whether the port is free.
    std::fs::write(home.path().join("gateway.toml"), "[gateway]\nlisten = [\"127.0.0.1:0\"]\n").unwrap();
    for (args, expected, says) in [
        (&["--help"][..], 0, ""),
        (&["--version"], 0, ""),
        (&["help", "serve"], 0, ""),
        (&[], 2, "Usage"),
        (&["nothing"], 2, "unrecognized"),
        (&["chat", "hi", "--session", "x"], 2, "session key"),
        (&["chat", " "], 2, "the message is empty"),
        (&["chat"], 2, "the message is empty"),
        (&["chat", "hi", "--url", "127.0.0.1:1"], 2, "expected ws://"),
        (&["chat", "hi", "--url", "ws://127.0.0.1:1/ws"], 69, "no daemon is reachable"),
        (
            &["chat", "hi", "--url", "ws://127.0.0.1:1/ws", "--token-file", "/nowhere"],
            1,
            "cannot read the token",
        ),
        (&["status"], 69, "clawmux serve"),
        (&["sessions"], 69, "clawmux serve"),
        (&["session", "show", "x"], 69, "clawmux serve"),
        (&["session"], 2, "Usage"),
        (&["session", "show"], 2, "<KEY>"),
        (&["sessions", "--limit", "0"], 2, "above 0"),
        (&["drain"], 69, "clawmux serve"),
        (&["backup"], 2, "<FILE>"),
        (&["backup", "copy.db"], 1, "there is no log at"),
        (&["doctor"], 0, ""),
        (&["doctor", "--fix"], 2, "--fix"),
        (&["usage"], 69, "clawmux serve"),
        (&["usage", "--by", "week"], 2, "session"),
        (&["usage", "--days", "0"], 2, "above 0"),
        (&["connections"], 69, "clawmux serve"),
        (&["connection", "close", "x"], 2, "<ID>"),
        (&["connection", "close", "1"], 69, "clawmux serve"),
        (&["actors"], 69, "clawmux serve"),
        (&["plugins"], 69, "clawmux serve"),
        (&["plugin"], 2, "Usage"),
        (&["plugin", "reload", "echo"], 69, "clawmux serve"),
        (&["plugin", "call", "echo", "[]"], 2, "expected a JSON object"),
        (&["plugin", "call", "echo", "{"], 2, "the input: EOF"),
        (&["plugin", "call", "echo", "--input-file", "/nowhere"], 2, "/nowhere"),
        (&["events"], 69, "clawmux serve"),
        (&["completions"], 2, "<SHELL>"),
        (&["completions", "tcsh"], 2, "bash"),
        (&["man", "sesion"], 2, "there is no command \"sesion\" here"),
        (&["man", "session", "tail"], 0, ""),
        (&["check"], 0, ""),
        (&["--config", "/nowhere.toml", "check"], 64, "/nowhere.toml: can't be read"),
    ] {
        let (status, stdout, stderr) = output(&mut clawmux(home.path(), args));
        assert_eq!(status, expected, "{args:?}: {stdout}{stderr}");
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
}

#[test]
fn serve_says_what_is_wrong_with_a_log_it_can_not_open() {
    let newer = "CREATE TABLE meta (opened INTEGER, version TEXT); INSERT INTO meta VALUES (1, '9.1.0');
                 PRAGMA application_id = 1668052845; PRAGMA user_version = 99;";
    for (sql, says) in [
        (Some(newer), "format 99, this clawmux knows up to"),
        (Some("CREATE TABLE notes (text)"), "database of another program"),
        (None, "the log is damaged"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("clawmux.db");
        match sql {
            Some(sql) => rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap(),
            None => std::fs::write(&path, "no database ".repeat(1000)).unwrap(),
        }
        let before = std::fs::read(&path).unwrap();
        let (status, stdout, stderr) =
            output(&mut clawmux(home.path(), &["serve", "--listen", "127.0.0.1:0"]));
        assert_eq!(status, 1, "{says}: {stdout}{stderr}");
        assert!(stderr.contains(says) && stderr.contains("clawmux doctor"), "{says}: {stderr}");
        assert!(stderr.contains(&path.display().to_string()), "{says}: {stderr}");
        assert!(std::fs::read(&path).unwrap() == before, "{says}: it is not left as it was");
    }
}

#[test]
fn check_tells_everything_at_once() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("gateway.toml");
    std::fs::write(&file, "[gateway]\nlisten = [\"0.0.0.0:1\"]\nsocket_grup = 1\n[default]\nagent = \"x\"\n")
        .unwrap();
    let (status, _, stderr) = output(clawmux(home.path(), &["check"]).env("CLAWMUX__LIMITS__QUEUE", "0"));
    assert_eq!(status, 64, "{stderr}");
    let at = |line| format!("{}:{line}: ", file.display());
    for begin in [at(2), at(3), at(5), "CLAWMUX__LIMITS__QUEUE: ".into()] {
        assert!(stderr.lines().any(|line| line.starts_with(&begin)), "{begin} in {stderr}");
    }

    let (status, stdout, stderr) =
        output(clawmux(home.path(), &["check", "--json"]).env("CLAWMUX__LIMITS__QUEUE", "0"));
    assert_eq!((status, stderr.as_str()), (64, ""));
    let told: Value = serde_json::from_str(&stdout).unwrap();
    let of =
        |key: &str| told["complaints"].as_array().unwrap().iter().find(|entry| entry["key"] == key).cloned();
    let queue = of("limits.queue").unwrap_or_else(|| panic!("{told}"));
    assert_eq!((&queue["source"], &queue["file"]), (&json!("CLAWMUX__LIMITS__QUEUE"), &Value::Null));
    let placed: Vec<_> =
        told["complaints"].as_array().unwrap().iter().filter_map(|e| e["line"].as_u64()).collect();
    assert_eq!((placed.as_slice(), &told["ok"]), (&[2, 3, 5][..], &json!(false)), "{told}");

    std::fs::write(&file, "[xeno]\nhome = \"/x\"\n[agents.main]\nsoul = \"other.md\"\n").unwrap();
    let (status, stdout, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.starts_with("ok: "), "{stdout}{stderr}");
    assert!(stderr.contains("agents.main.soul"), "{stderr}");
    let (status, stdout, _) = output(&mut clawmux(home.path(), &["check", "--json"]));
    let told: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (status, &told["ok"], told["complaints"].as_array().map(Vec::len)),
        (0, &json!(true), Some(0))
    );
    assert!(told["warnings"].as_array().unwrap().iter().any(|w| w["key"] == "agents.main.soul"), "{told}");

    std::fs::write(&file, "[agents.main]\nsoul = \".\"\n").unwrap();
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert!(status == 64 && stderr.contains("is not a file"), "{stderr}");

    std::fs::write(&file, "[providers.openai]\napi_key = \"x\"\n").unwrap();
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert!(status == 64 && stderr.trim_end().ends_with("use api_key_env or api_key_file"), "{stderr}");

    std::fs::write(&file, "[[plugins]]\nname = \"notes\"\npath = \"n.wasm\"\n[log]\nfilter = \"a=b=c\"\n")
        .unwrap();
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert!(
        status == 64
            && stderr.contains("plugin notes: cannot read")
            && stderr.contains("n.wasm")
            && stderr.contains("log.filter"),
        "{stderr}"
    );
}

#[test]
fn the_sample_passes_the_check() {
    let home = tempfile::tempdir().unwrap();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/gateway.toml");
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check", "--config", sample]));
    assert_eq!((status, stderr.as_str()), (0, ""));
}

/// A daemon that is told what to say: after the greeting it answers the first prompt with `frames`,
/// `{id}` filled in. Gives back every frame it was sent.
struct Scripted {
    address: SocketAddr,
    told: tokio::task::JoinHandle<Vec<Value>>,
}

async fn scripted(token: Option<&'static str>, frames: &'static [&'static str]) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let told = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let mut told = Vec::new();
        if let Some(token) = token {
            let shown = heard(&mut socket).await.unwrap_or_default();
            if shown["token"] != token {
                say(&mut socket, r#"{"error":"auth_failed","code":4001}"#).await;
                return told;
            }
        }
        say(&mut socket, r#"{"ok":true,"version":"0.1.0"}"#).await;
        while let Some(frame) = heard(&mut socket).await {
            if frame["method"] == "chat.send" {
                for answer in frames {
                    say(&mut socket, &answer.replace("{id}", frame["id"].as_str().unwrap())).await;
                }
            }
            told.push(frame);
        }
        told
    });
    Scripted { address, told }
}

async fn say(socket: &mut WebSocketStream<TcpStream>, text: &str) {
    let _ = socket.send(Message::text(text)).await;
}

async fn heard(socket: &mut WebSocketStream<TcpStream>) -> Option<Value> {
    loop {
        match socket.next().await?.ok()? {
            Message::Text(text) => return serde_json::from_str(&text).ok(),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

async fn chat(
    daemon: Scripted,
    args: &'static [&'static str],
    prepare: impl FnOnce(&mut Command) + Send + 'static,
) -> ((i32, String, String), Vec<Value>) {
    let url = format!("ws://{}/ws", daemon.address);
    let done = tokio::task::spawn_blocking(move || {
        let home = tempfile::tempdir().unwrap();
        let mut command = clawmux(home.path(), &["chat", "--url", &url]);
        command.args(args);
        prepare(&mut command);
        output(&mut command)
    });
    (done.await.unwrap(), daemon.told.await.unwrap())
}

#[actix_web::test]
async fn one_turn_goes_to_stdout_and_the_rest_to_stderr() {
    let daemon = scripted(
        None,
        &[
            r#"{"id":"other","event":"text","data":"not mine"}"#,
            r#"{"id":"{id}","event":"text","data":"Hello "}"#,
            r#"{"id":"{id}","event":"tool_use","data":{"id":"c","name":"echo","input":{"text":"hi"}}}"#,
            r#"{"id":"{id}","event":"tool_result","data":{"tool_use_id":"c","content":"\u001b[2Jhi"}}"#,
            r#"{"id":"{id}","event":"text","data":"İİİİ"}"#,
            r#"{"id":"{id}","event":"usage","data":{"input_tokens":1,"output_tokens":2}}"#,
            r#"{"id":"{id}","event":"done"}"#,
        ],
    )
    .await;
    let ((status, stdout, stderr), told) = chat(daemon, &["hello"], |_| {}).await;
    assert_eq!((status, stdout.as_str()), (0, "Hello İİİİ\n"), "{stderr}");
    assert!(stderr.contains("→ echo {\"text\":\"hi\"}") && stderr.contains("← [2Jhi"), "{stderr:?}");
    assert_eq!(told[0]["params"]["session"], "main:cli:tester:main");
    assert_eq!(told[0]["params"]["content"], "hello");
}

#[actix_web::test]
async fn how_a_run_ends_is_the_exit_status() {
    const FAILS: &[&str] = &[
        r#"{"id":"{id}","event":"text","data":"so far"}"#,
        r#"{"id":"{id}","event":"error","data":"provider error: \u001b[31mno"}"#,
        r#"{"id":"{id}","event":"done"}"#,
    ];
    const ABORTED: &[&str] =
        &[r#"{"id":"{id}","event":"error","data":"aborted"}"#, r#"{"id":"{id}","event":"done"}"#];
    const REFUSED: &[&str] = &[r#"{"id":"{id}","error":"token budget exceeded (session: 9500/10000)"}"#];
    const CLOSES: &[&str] = &[r#"{"error":"credential_revoked","code":4001}"#];
    for (frames, expected, stdout, says) in [
        (FAILS, 1, "so far\n", "error: provider error: [31mno"),
        (ABORTED, 130, "", "aborted"),
        (REFUSED, 1, "", "token budget exceeded (session: 9500/10000)"),
        (CLOSES, 1, "", "credential_revoked"),
    ] {
        let ((status, out, stderr), _) = chat(scripted(None, frames).await, &["x"], |_| {}).await;
        assert_eq!((status, out.as_str()), (expected, stdout), "{stderr}");
        assert!(stderr.contains(says), "{says}: {stderr:?}");
    }
}

#[actix_web::test]
async fn tokens_come_from_the_environment_or_a_file_and_wrong_ones_are_told() {
    const DONE: &[&str] = &[r#"{"id":"{id}","event":"done"}"#];
    let ((status, _, stderr), _) = chat(scripted(Some("geheim"), DONE).await, &["x"], |command| {
        command.env("CLAWMUX_TOKEN", "geheim");
    })
    .await;
    assert_eq!(status, 0, "{stderr}");

    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "geheim").unwrap();
    let path = file.path().to_owned();
    let ((status, _, stderr), _) = chat(scripted(Some("geheim"), DONE).await, &["x"], move |command| {
        command.env("CLAWMUX_TOKEN", "wrong").arg("--token-file").arg(path);
    })
    .await;
    assert_eq!(status, 0, "{stderr}");

    let ((status, _, stderr), _) = chat(scripted(Some("geheim"), DONE).await, &["x"], |command| {
        command.env("CLAWMUX_TOKEN", "falsch");
    })
    .await;
    assert!(status == 1 && stderr.contains("does not accept this token"), "{stderr}");
    assert!(!stderr.contains("falsch"), "{stderr}");
}

#[actix_web::test]
async fn piped_input_is_one_turn_in_the_session_named() {
    const DONE: &[&str] = &[r#"{"id":"{id}","event":"done"}"#];
    let mut file = tempfile::tempfile().unwrap();
    file.write_all("two\nlines\n".as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let daemon = scripted(None, DONE).await;
    let ((status, _, stderr), told) = chat(daemon, &["--session", "work:cli:a%3Ab:x"], move |command| {
        command.stdin(file);
    })
    .await;
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(told[0]["params"]["session"], "work:cli:a%3Ab:x");
    assert_eq!(told[0]["params"]["content"], "two\nlines");
}

#[actix_web::test]
async fn ctrl_c_aborts_the_run() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    let home = tempfile::tempdir().unwrap();
    let child = clawmux(home.path(), &["chat", "x", "--url", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
    say(&mut socket, r#"{"ok":true,"version":"0.1.0"}"#).await;
    let prompt = heard(&mut socket).await.expect("a prompt");
    let id = prompt["id"].as_str().unwrap();
    say(&mut socket, &format!(r#"{{"id":"{id}","event":"text","data":"so f"}}"#)).await;
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let abort = heard(&mut socket).await.expect("an abort");
    assert_eq!((abort["method"].as_str(), &abort["params"]["id"]), (Some("chat.abort"), &prompt["id"]));
    for frame in [r#""event":"error","data":"aborted""#, r#""event":"done""#] {
        say(&mut socket, &format!(r#"{{"id":"{id}",{frame}}}"#)).await;
    }
    let reading = tokio::spawn(async move { while heard(&mut socket).await.is_some() {} });
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    reading.await.unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "so f\n");
}

/// Serves the operator's socket of a home: answers whatever is asked with this.
async fn answering(home: &Path, result: Value) -> tokio::task::JoinHandle<()> {
    let folder = home.join(".xeno");
    std::fs::create_dir(&folder).unwrap();
    let listener = tokio::net::UnixListener::bind(folder.join("gateway.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).unwrap();
                let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                write.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            }
        }
    })
}

async fn run(mut command: Command) -> (i32, String, String) {
    tokio::task::spawn_blocking(move || output(&mut command)).await.unwrap()
}

#[actix_web::test]
async fn status_and_chat_find_the_daemon_of_their_home() {
    const SAYS: &[&str] =
        &[r#"{"id":"{id}","event":"text","data":"found"}"#, r#"{"id":"{id}","event":"done"}"#];
    let home = tempfile::tempdir().unwrap();
    let daemon = scripted(Some("of the file"), SAYS).await;
    let status = json!({ "version": "9.9", "listen": [daemon.address.to_string()], "uptime_ms": 61_000 });
    let _socket = answering(home.path(), status.clone()).await;

    let (code, stdout, stderr) = run(clawmux(home.path(), &["status", "--json"])).await;
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), status);
    let (_, stdout, _) = run(clawmux(home.path(), &["status"])).await;
    assert!(stdout.contains("up           1m 1s\n") && stdout.contains("version      9.9\n"), "{stdout}");

    // The token the configuration names is shown to this daemon, which proved to be ours.
    std::fs::write(home.path().join("token"), "of the file").unwrap();
    std::fs::write(home.path().join("gateway.toml"), "[auth]\ntoken_file = \"token\"").unwrap();
    let (code, stdout, stderr) = run(clawmux(home.path(), &["chat", "hi"])).await;
    assert_eq!((code, stdout.as_str()), (0, "found\n"), "{stderr}");
}

#[actix_web::test]
async fn chat_finds_a_daemon_where_the_configuration_says_it_listens() {
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::fs::write(home.path().join("token"), "not for strangers").unwrap();
    let file = format!("[gateway]\nlisten = [\"{address}\"]\n[auth]\ntoken_file = \"token\"");
    std::fs::write(home.path().join("gateway.toml"), file).unwrap();
    let serving = tokio::spawn(async move {
        // First the probe, then the client.
        drop(listener.accept().await.unwrap());
        let mut socket = tokio_tungstenite::accept_async(listener.accept().await.unwrap().0).await.unwrap();
        say(&mut socket, r#"{"ok":true,"version":"1"}"#).await;
        let first = heard(&mut socket).await.expect("a prompt");
        say(&mut socket, &format!(r#"{{"id":{},"event":"done"}}"#, first["id"])).await;
        while heard(&mut socket).await.is_some() {}
        first
    });
    let (code, _, stderr) = run(clawmux(home.path(), &["chat", "hi"])).await;
    assert_eq!(code, 0, "{stderr}");
    let first = serving.await.unwrap();
    assert_eq!(
        first["method"], "chat.send",
        "no token goes to a daemon that is not known to be ours: {first}"
    );
}

#[test]
fn the_reference_is_told_without_a_daemon() {
    let home = tempfile::tempdir().unwrap();
    let (status, table, _) = output(&mut clawmux(home.path(), &["reference", "wundr"]));
    assert_eq!(status, 0);
    assert!(table.lines().any(|line| line.starts_with("health.ping ")), "{table}");
    assert!(table.contains("clientTimestamp?"), "{table}");
    let (status, json, _) = output(&mut clawmux(home.path(), &["reference", "wundr", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status, 0);
    let methods = json["methods"].as_array().unwrap();
    assert!(methods.iter().all(|method| method["params"]["type"] == "object"), "{json}");
    assert!(methods.iter().any(|method| method["name"] == "auth.connect"), "{json}");
    assert_eq!(output(&mut clawmux(home.path(), &["reference", "nothing"])).0, 2);
}
