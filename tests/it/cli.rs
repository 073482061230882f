//! The binary from outside: exit statuses, complaints, and `chat` against a scripted daemon.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::daemon::output;

fn clawmux(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clawmux"));
    command.env_clear().env("CLAWMUX_HOME", home).env("USER", "tester").args(args).stdin(Stdio::null());
    command
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
        (&["chat", "hi", "--session", "a:b:c:d:e"], 2, "session key"),
        (&["chat", "hi", "--session", "a:b:c:d", "--agent", "work"], 2, "names its agent itself"),
        (&["chat", "hi", "--file", "nowhere.txt"], 1, "nowhere.txt: cannot read it: No such file"),
        (&["chat", "hi", "--file", "/"], 1, "/: it is a folder"),
        (&["chat", "-", "-"], 2, "the input (-) can be named once"),
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
        (&["session", "show"], 2, "<NAME|KEY>"),
        (&["sessions", "--limit", "0"], 2, "above 0"),
        (&["drain"], 69, "clawmux serve"),
        (&["backup"], 2, "<FILE>"),
        (&["backup", "copy.db"], 1, "there is no store at"),
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
        (Some("CREATE TABLE notes (text)"), "another program's database"),
        (None, "is not a clawmux store"),
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

    let cluster =
        "[cluster]\nname = \"c\"\nnode = \"a\"\nservers = [\"nats://n1\", \"nats://n2\"]\nreplicas = 1\n";
    std::fs::write(&file, format!("{cluster}monitor = [\"http://n1:8222\"]\n")).unwrap();
    let (status, stdout, stderr) = output(&mut clawmux(home.path(), &["check"]));
    let line = "cluster c, as node a: 1 replica on nats://n1, nats://n2; acknowledged once synced, which is asked of \
                http://n1:8222";
    assert!(status == 0 && stdout.lines().any(|said| said == line), "{stdout}{stderr}");

    std::fs::write(&file, "[agents.main]\nsoul = \".\"\n").unwrap();
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert!(status == 64 && stderr.contains("is not a file"), "{stderr}");

    std::fs::write(&file, "[providers.openai]\napi_key = \"x\"\n").unwrap();
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert!(status == 64 && stderr.trim_end().ends_with("use api_key_env or api_key_file"), "{stderr}");

    // What only the file system or the log knows stands with the rest, with its file and line.
    let text =
        "[[plugins]]\nname = \"notes\"\npath = \"n.wasm\"\n[log]\nfilter = \"a=b=c\"\n[limits]\nqueu = 1\n";
    std::fs::write(&file, text).unwrap();
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check"]));
    assert_eq!(status, 64, "{stderr}");
    for (line, says) in [(3, "plugin notes: cannot read"), (5, "log.filter: "), (7, "did you mean queue?")] {
        let found = stderr.lines().find(|told| told.starts_with(&at(line)));
        assert!(found.is_some_and(|told| told.contains(says)), "{line}: {says}: {stderr}");
    }
    let (_, stdout, _) = output(&mut clawmux(home.path(), &["check", "--json"]));
    let told: Value = serde_json::from_str(&stdout).unwrap();
    let placed: Vec<_> =
        told["complaints"].as_array().unwrap().iter().filter_map(|entry| entry["line"].as_u64()).collect();
    assert_eq!(placed, [3, 5, 7], "{told}");
}

#[test]
fn the_check_tries_what_a_start_would_come_to_grief_over() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("gateway.toml");
    let check = || output(&mut clawmux(home.path(), &["check"]));
    // It passes all that can be seen without running it.
    let text = "(module (func (export \"describe\") (result i32) unreachable) \
        (func (export \"handle_tool_call\") (result i32) i32.const 0))";
    std::fs::write(home.path().join("n.wasm"), wat::parse_str(text).unwrap()).unwrap();
    std::fs::write(&file, "[[plugins]]\nname = \"notes\"\npath = \"n.wasm\"\n").unwrap();
    let (status, _, stderr) = check();
    assert!(status == 64 && stderr.contains("n.wasm: plugin notes: describe crashed: "), "{stderr}");
    let text = "[gateway]\nsocket_group = \"nobody-has-this-group\"\n[log]\nfilter = \"debgu\"\n";
    std::fs::write(&file, text).unwrap();
    let (status, _, stderr) = check();
    assert!(status == 64 && stderr.contains("there is no group \"nobody-has-this-group\""), "{stderr}");
    assert!(stderr.contains("log.filter: \"debgu\" is not a level"), "{stderr}");
    std::fs::write(&file, "").unwrap();
    assert_eq!(check().0, 0);
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2, "nothing is left behind");
    // Somebody who may look into the home and not write, which root always may.
    let metadata = std::fs::metadata("/proc/self").unwrap();
    if std::os::unix::fs::MetadataExt::uid(&metadata) != 0 {
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
        let (status, _, stderr) = check();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(status == 64 && stderr.contains("can't write into"), "{stderr}");
    }
    let below_a_file = file.join("home");
    let (status, _, stderr) = output(&mut clawmux(&below_a_file, &["check"]));
    assert!(status != 0 && stderr.contains("gateway.toml"), "{stderr}");
}

#[test]
fn the_sample_passes_the_check() {
    let home = tempfile::tempdir().unwrap();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/gateway.toml");
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["check", "--config", sample]));
    assert_eq!((status, stderr.as_str()), (0, ""));
}

/// A daemon that is told what to say: after the greeting it attaches whoever asks, takes the first prompt
/// as the run `r`, and tells `frames` of it, each `{attach}` under the id of the attach, each `{id}` under
/// that of the prompt. Gives back every frame it was sent.
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
        let mut attach = Value::Null;
        while let Some(frame) = heard(&mut socket).await {
            if let Some(answer) = attached(&frame) {
                say(&mut socket, &answer).await;
                attach = frame["id"].clone();
            }
            if frame["method"] == "chat.send" {
                for (seq, answer) in frames.iter().enumerate() {
                    let answer = answer.replace("{id}", frame["id"].as_str().unwrap());
                    let attached = format!(r#""id":{attach},"seq":{},"run":"r""#, seq + 1);
                    say(&mut socket, &answer.replace("{attach}", &attached)).await;
                }
            }
            told.push(frame);
        }
        told
    });
    Scripted { address, told }
}

/// The answer to a `session.attach`.
fn attached(frame: &Value) -> Option<String> {
    let asked = frame["method"] == "session.attach";
    let result = json!({ "session": frame["params"]["session"], "seq": 0 });
    asked.then(|| json!({ "id": frame["id"], "result": result }).to_string())
}

/// The prompt among what a daemon was sent.
fn prompt(told: &[Value]) -> &Value {
    told.iter().find(|frame| frame["method"] == "chat.send").expect("a prompt")
}

const ACCEPTED: &str = r#"{"id":"{id}","event":"accepted","data":{"run":"r","seq":1}}"#;

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
            r#"{{attach},"event":"prompt","data":"hello"}"#,
            r#"{{attach},"event":"text","data":"Hello "}"#,
            r#"{"id":"{id}","event":"accepted","data":{"run":"r","seq":1}}"#,
            r#"{{attach},"event":"tool_use","data":{"id":"c","name":"echo","input":{"text":"hi"}}}"#,
            r#"{{attach},"event":"tool_result","data":{"tool_use_id":"c","content":"\u001b[2Jhi"}}"#,
            r#"{{attach},"event":"text","data":"İİİİ"}"#,
            r#"{{attach},"event":"usage","data":{"input_tokens":1,"output_tokens":2}}"#,
            r#"{{attach},"event":"done"}"#,
        ],
    )
    .await;
    let ((status, stdout, stderr), told) = chat(daemon, &["hello"], |_| {}).await;
    assert_eq!((status, stdout.as_str()), (0, "Hello İİİİ\n"), "{stderr}");
    assert!(stderr.contains("→ echo {\"text\":\"hi\"}") && stderr.contains("← [2Jhi"), "{stderr:?}");
    let sent = &prompt(&told)["params"];
    assert_eq!((&sent["session"], &sent["content"]), (&json!("main:cli:tester:main"), &json!("hello")));
    assert_eq!(sent["follow"], false, "it is told under the attach");
}

#[actix_web::test]
async fn how_a_run_ends_is_the_exit_status() {
    const FAILS: &[&str] = &[
        ACCEPTED,
        r#"{{attach},"event":"text","data":"so far"}"#,
        r#"{{attach},"event":"error","data":"provider error: \u001b[31mno"}"#,
        r#"{{attach},"event":"done"}"#,
    ];
    const ABORTED: &[&str] =
        &[ACCEPTED, r#"{{attach},"event":"error","data":"aborted"}"#, r#"{{attach},"event":"done"}"#];
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
    const DONE: &[&str] = &[ACCEPTED, r#"{{attach},"event":"done"}"#];
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
    const DONE: &[&str] = &[ACCEPTED, r#"{{attach},"event":"done"}"#];
    let mut file = tempfile::tempfile().unwrap();
    file.write_all("two\nlines\n".as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let daemon = scripted(None, DONE).await;
    let ((status, _, stderr), told) = chat(daemon, &["--session", "work:cli:a%3Ab:x"], move |command| {
        command.stdin(file);
    })
    .await;
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(prompt(&told)["params"]["session"], "work:cli:a%3Ab:x");
    assert_eq!(prompt(&told)["params"]["content"], "two\nlines");
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
    let attach = heard(&mut socket).await.expect("an attach");
    say(&mut socket, &attached(&attach).unwrap()).await;
    let prompt = heard(&mut socket).await.expect("a prompt");
    say(&mut socket, &ACCEPTED.replace("{id}", prompt["id"].as_str().unwrap())).await;
    let frame = |seq: u64, frame: &str| format!(r#"{{"id":{},"seq":{seq},"run":"r",{frame}}}"#, attach["id"]);
    say(&mut socket, &frame(2, r#""event":"text","data":"so f""#)).await;
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let abort = heard(&mut socket).await.expect("an abort");
    assert_eq!(abort["method"], "chat.abort");
    // Where it had not heard yet that its prompt was taken, it names the run by the prompt's key.
    let names = [&json!("r"), &prompt["params"]["idempotency_key"]];
    assert!(names.contains(&&abort["params"]["run"]), "{abort}");
    for (seq, event) in [(3, r#""event":"error","data":"aborted""#), (4, r#""event":"done""#)] {
        say(&mut socket, &frame(seq, event)).await;
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
async fn status_finds_the_daemon_of_its_home() {
    let home = tempfile::tempdir().unwrap();
    let status = json!({ "version": "9.9", "listen": ["127.0.0.1:1"], "uptime_ms": 61_000 });
    let _socket = answering(home.path(), status.clone()).await;

    let (code, stdout, stderr) = run(clawmux(home.path(), &["status", "--json"])).await;
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), status);
    let (_, stdout, _) = run(clawmux(home.path(), &["status"])).await;
    assert!(stdout.contains("running for  1m 1s\n") && stdout.contains("version      9.9\n"), "{stdout}");
}

#[test]
fn what_people_try_is_answered_with_what_does_it() {
    let home = tempfile::tempdir().unwrap();
    for (tried, does) in [
        (&["ps"][..], "`clawmux sessions`"),
        (&["logs"], "`clawmux events`"),
        (&["stop"], "`clawmux drain`"),
        (&["start"], "`clawmux serve`"),
        (&["version"], "`clawmux --version`"),
        (&["dashboard"], "`clawmux events` show what goes on"),
        (&["ls"], "`clawmux sessions`"),
        (&["run", "hi"], "`clawmux serve`"),
        (&["attach", "work"], "`clawmux chat`"),
        (&["restart"], "systemctl restart"),
        (&["init"], "`clawmux setup`"),
        (&["kill"], "`clawmux session abort KEY`"),
        (&["agents"], "`clawmux config get agents`"),
        (&["providers"], "`clawmux doctor`"),
        (&["session", "list"], "`clawmux sessions`"),
    ] {
        let (status, stdout, stderr) = output(&mut clawmux(home.path(), tried));
        assert_eq!((status, stdout.as_str()), (2, ""), "{tried:?}: {stderr}");
        assert!(stderr.starts_with("there is no command ") && stderr.contains(does), "{tried:?}: {stderr}");
    }
    let (status, _, stderr) = output(&mut clawmux(home.path(), &["zzz"]));
    assert!(status == 2 && stderr.contains("unrecognized subcommand"), "{stderr}");
    let (status, help, _) = output(&mut clawmux(home.path(), &["job", "add", "--help"]));
    assert!(status == 0 && help.contains("Examples:\n  clawmux job add --at +20m"), "{help}");
}

#[test]
fn the_reference_is_told_without_a_daemon() {
    let home = tempfile::tempdir().unwrap();
    let (status, table, _) = output(&mut clawmux(home.path(), &["reference", "wundr"]));
    assert_eq!(status, 0);
    assert!(table.lines().any(|line| line.starts_with("health.ping(")), "{table}");
    assert!(table.contains("clientTimestamp?"), "{table}");
    let (status, json, _) = output(&mut clawmux(home.path(), &["reference", "wundr", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status, 0);
    let methods = json["methods"].as_array().unwrap();
    assert!(methods.iter().all(|method| method["params"]["type"] == "object"), "{json}");
    assert!(methods.iter().any(|method| method["name"] == "auth.connect"), "{json}");
    assert_eq!(output(&mut clawmux(home.path(), &["reference", "nothing"])).0, 2);
    // Every protocol: one object a line, each with frames, methods and an example of each.
    let (status, all, _) = output(&mut clawmux(home.path(), &["reference", "--json"]));
    let all: Vec<Value> = all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = all.iter().map(|one| one["protocol"].as_str().unwrap()).collect();
    assert_eq!((status, names.as_slice()), (0, &["exoclaw", "openclaw", "wundr", "xeno", "admin"][..]));
    for one in &all {
        assert!(one["frames"].as_array().is_some_and(|frames| frames.len() >= 3), "{one}");
        let methods = one["methods"].as_array().unwrap();
        assert!(methods.len() >= 5 && methods.iter().all(|method| method["example"].is_object()), "{one}");
    }
    let (_, page, _) = output(&mut clawmux(home.path(), &["reference", "exoclaw"]));
    assert!(page.contains("\nchat.send(SESSION, content, ") && page.contains("\n  > {"), "{page}");
}
