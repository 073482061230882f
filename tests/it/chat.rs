//! The terminal client over the end of its daemon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::daemon::{Daemon, command, home, output_of};
use crate::support::eventually;

/// Starts it; its output grows as it comes.
fn growing(mut command: Command) -> (Child, Arc<Mutex<String>>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = Arc::new(Mutex::new(String::new()));
    let (mut stdout, shared) = (child.stdout.take().unwrap(), said.clone());
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(bytes @ 1..) = stdout.read(&mut buffer) {
            shared.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..bytes]));
        }
    });
    (child, said)
}

/// Waits until it has ended well; gives what it complained of.
fn ended(mut child: Child) -> String {
    let status = eventually("the end", || child.try_wait().unwrap());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(status.success(), "{status}: {stderr}");
    stderr
}

/// What stderr says up to where it says this.
fn complaint(child: &mut Child, end: &str) -> String {
    let mut stderr = child.stderr.take().unwrap();
    let (mut told, mut buffer) = (String::new(), [0; 512]);
    while !told.contains(end) {
        let read = stderr.read(&mut buffer).unwrap();
        assert!(read > 0, "{told}");
        told.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    told
}

/// The call that waits for approval.
fn waiting(daemon: &Daemon) -> String {
    eventually("the call", || {
        let list = daemon.rows_of(&["approvals"]);
        list.first()?["approval"].as_str().map(str::to_owned)
    })
}

#[test]
fn an_answer_goes_on_when_the_daemon_is_killed_and_comes_back() {
    let daemon = Daemon::start();
    let (url, elsewhere) = (format!("ws://{}/ws", daemon.address), home());
    let chat = || {
        let mut chat = command(elsewhere.path());
        chat.args(["chat", "/slow 5", "--url", &url]);
        growing(chat)
    };
    let (child, said) = chat();
    eventually("some of the answer", || said.lock().unwrap().contains(" 2"));
    let _daemon = daemon.kill_and_return();
    let stderr = ended(child);
    assert!(stderr.contains("waiting for the daemon"), "{stderr}");
    assert!(stderr.contains("was cut off and goes on"), "{stderr}");

    // The same without any trouble.
    let (child, whole) = chat();
    ended(child);
    let whole = || whole.lock().unwrap().clone();
    eventually("all of it", || whole().ends_with('\n'));
    assert_eq!(*said.lock().unwrap(), whole(), "said once, and all of it");
}

/// Runs `clawmux chat` on a home with this piped in: exit status, stdout, stderr.
fn piped(home: &Path, args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut chat = command(home);
    chat.arg("chat").args(args).env("USER", "ann");
    output_of(&mut chat, input)
}

#[test]
fn the_operator_needs_no_token_at_home_and_the_answer_goes_on_after_a_kill() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", "a-token-of-somebody-else")]);
    let mut chat = command(daemon.home());
    chat.args(["chat", "/slow 5"]);
    let (child, said) = growing(chat);
    eventually("some of the answer", || said.lock().unwrap().contains(" 2"));
    let daemon = daemon.kill_and_restart();
    let stderr = ended(child);
    assert!(stderr.contains("was cut off and goes on"), "{stderr}");
    eventually("all of it", || *said.lock().unwrap() == "Slowly: 1 2 3 4 5 done.\n");
    let log = daemon.stdout_of(&["sessions", "--json"]);
    assert!(log.contains("main:cli:user:main"), "{log}");
}

#[test]
fn words_and_input_are_one_turn_and_stdout_has_the_answer_alone() {
    let daemon = Daemon::start();
    for (args, input, quoted) in [
        (&["hello", "there"][..], "", "hello there"),
        (&["explain"], "let x;\n", "explain\n\nlet x;"),
        (&["in", "French:", "-", "please"], "hi\n", "in French:\n\nhi\n\nplease"),
        (&["-"], "piped\n", "piped"),
        (&[], "piped\n", "piped"),
        (&["/help"], "", "Try /tool NAME"),
    ] {
        let (status, stdout, stderr) = piped(daemon.home(), args, input.as_bytes());
        assert_eq!((status, stderr.as_str()), (0, ""), "{args:?}");
        assert!(stdout.contains(quoted), "{args:?}: {stdout}");
    }
    let (status, _, stderr) = piped(daemon.home(), &[], b"");
    assert!(status == 2 && stderr.contains("the message is empty"), "{stderr}");
    let (status, _, stderr) = piped(daemon.home(), &[], b"\xff\xfe");
    assert!(status == 1 && stderr.contains("the input is not text in UTF-8: send a file"), "{stderr}");
    let (status, stdout, stderr) = piped(daemon.home(), &["/fail"], b"");
    assert_eq!((status, stdout.as_str()), (1, ""));
    assert_eq!(stderr, "error: provider error: offline: failed, as /fail asks for\n");
}

#[test]
fn sessions_are_named_in_short_and_files_go_along() {
    let daemon = Daemon::start();
    let file = daemon.home().join("notes.md");
    std::fs::write(&file, "# notes").unwrap();
    let file = file.to_str().unwrap();
    let args = ["look", "--session", "plan", "--file", file, "--file", file];
    let (status, stdout, stderr) = piped(daemon.home(), &args, b"");
    assert_eq!((status, stderr.as_str()), (0, ""));
    assert_eq!(stdout.matches("You sent notes.md (text/markdown, 7 bytes).").count(), 2, "{stdout}");
    for (session, status, says) in [
        ("main:cli:ann:p", 0, "I am the offline provider"),
        ("main:cli:ann:plan", 0, "I remember 1 earlier message"),
        ("main:cl", 1, "several sessions begin with main:cl: "),
        ("work:", 1, "no session begins with work:; there are: main:cli:ann:p"),
        ("a:b:c:d:e", 2, "session key"),
    ] {
        let (ended, stdout, stderr) = piped(daemon.home(), &["hi", "--session", session], b"");
        assert!(
            ended == status && (stdout.contains(says) || stderr.contains(says)),
            "{session}: {stdout}{stderr}"
        );
    }
    let (status, _, stderr) = piped(daemon.home(), &["hi", "--agent", "nobody"], b"");
    assert_eq!((status, stderr.as_str()), (1, "error: there is no agent nobody; there are: main\n"));
}

#[test]
fn a_turn_is_json_lines_where_they_are_asked_for() {
    let daemon = Daemon::start();
    let args = ["--json", "/tool echo {\"text\":\"hi\"}"];
    let (status, stdout, stderr) = piped(daemon.home(), &args, b"");
    assert_eq!((status, stderr.as_str()), (0, ""));
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!(events[0]["event"], "accepted");
    assert_eq!(events[0]["session"], "main:cli:ann:main");
    assert_eq!(of("tool_use"), [&json!({ "event": "tool_use", "name": "echo", "input": { "text": "hi" } })]);
    assert_eq!(of("tool_result"), [&json!({ "event": "tool_result", "content": "hi", "is_error": false })]);
    let text: String = of("text").iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(text, "I call echo.\necho answered: \"hi\"");
    let done = events.last().unwrap();
    assert_eq!((&done["event"], &done["outcome"]), (&json!("done"), &json!("completed")));
    assert!(done["output_tokens"].as_u64() > Some(0) && done["elapsed_ms"].is_u64(), "{done}");

    let (status, stdout, _) = piped(daemon.home(), &["--json", "/fail"], b"");
    let done: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((status, &done["outcome"]), (1, &json!("failed")), "{done}");
    assert_eq!(done["error"], "provider error: offline: failed, as /fail asks for");
}

#[test]
fn a_call_that_waits_says_how_it_is_decided() {
    let daemon = Daemon::with("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n");
    for (decide, says) in [("approve", "echo answered: \"hi\""), ("deny", "echo failed")] {
        let mut chat = command(daemon.home());
        chat.args(["chat", "--json", "/tool echo {\"text\":\"hi\"}"]);
        let (child, said) = growing(chat);
        let id = eventually("the call", || {
            let said = said.lock().unwrap();
            let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.find_map(|event| event["approval"].as_str().map(str::to_owned))
        });
        daemon.stdout_of(&["approval", decide, &id]);
        ended(child);
        let text = || {
            let said = said.lock().unwrap();
            let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.filter_map(|event| event["text"].as_str().map(str::to_owned)).collect::<String>()
        };
        eventually("all of it", || text().contains(says));
    }
    let mut chat = command(daemon.home());
    chat.args(["chat", "/tool echo {\"text\":\"hi\"}"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = chat.spawn().unwrap();
    complaint(&mut child, "waits for approval: `clawmux approval approve");
    daemon.stdout_of(&["approval", "approve", &waiting(&daemon)]);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "I call echo.\necho answered: \"hi\"\n");
}

#[test]
fn a_prompt_that_has_to_wait_says_so() {
    let daemon = Daemon::with("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n");
    let mut first = command(daemon.home());
    first.args(["chat", "/tool echo {\"text\":\"hi\"}"]).env("USER", "ann");
    let (first, _said) = growing(first);
    let waiting = waiting(&daemon);
    for args in [&["chat", "second"][..], &["chat", "--json", "third"]] {
        let mut chat = command(daemon.home());
        chat.args(args).env("USER", "ann").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = chat.spawn().unwrap();
        let told = complaint(&mut child, "\n");
        assert_eq!(told, "queued behind another prompt\n", "{args:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    daemon.stdout_of(&["approval", "approve", &waiting]);
    ended(first);
}

#[test]
fn nobody_who_reads_any_more_is_no_panic() {
    let daemon = Daemon::start();
    let mut chat = command(daemon.home());
    chat.args(["chat", "/slow 2"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = chat.spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));

    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = command(daemon.home()).args(["chat", "hi"]).stdout(full).output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && stderr.contains("cannot write the answer"), "{stderr}");
}

#[test]
fn a_chat_without_a_daemon_runs_one_that_others_join() {
    let home = home();
    // Whoever listens where daemons do by default is no matter here.
    std::fs::write(home.path().join("gateway.toml"), "[gateway]\nlisten = [\"127.0.0.1:0\"]\n").unwrap();
    let mut first = command(home.path());
    first.args(["chat", "/slow 6"]).env("USER", "ann");
    let (child, said) = growing(first);
    eventually("some of the answer", || said.lock().unwrap().contains(" 1"));
    let (status, stdout, stderr) = piped(home.path(), &["hello", "--session", "other"], b"");
    assert_eq!((status, stderr.as_str()), (0, ""));
    assert!(stdout.contains("You said: \"hello\""), "{stdout}");
    ended(child);
    eventually("all of it", || said.lock().unwrap().ends_with(" 6 done.\n"));
    // What was said is there for the next.
    let (_, stdout, _) = piped(home.path(), &["hello", "--session", "other"], b"");
    assert!(stdout.contains("I remember 1 earlier message"), "{stdout}");
}

#[test]
fn another_daemon_on_the_configured_address_is_named_and_not_used() {
    let other = Daemon::start();
    let home = home();
    let config = format!("[gateway]\nlisten = [\"{}\"]\n", other.address);
    std::fs::write(home.path().join("gateway.toml"), config).unwrap();
    let (status, stdout, stderr) = piped(home.path(), &["hello"], b"");
    assert!(status == 0 && stdout.contains("You said: \"hello\""), "{stderr}");
    let address = other.address;
    assert_eq!(
        stderr,
        format!(
            "another program listens on {address}; to chat with that one: clawmux chat --url ws://{address}/ws\n"
        )
    );
    assert!(other.rows_of(&["sessions"]).is_empty(), "it is another home's");
}

#[test]
fn a_daemon_in_the_chat_warns_of_its_configuration() {
    let home = home();
    let config = "[gateway]\nlisten = [\"127.0.0.1:0\"]\n[agents.main]\ntools = [\"ecoh\"]\n";
    std::fs::write(home.path().join("gateway.toml"), config).unwrap();
    let mut chat = command(home.path());
    chat.args(["chat", "hi"]);
    let ended = chat.output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && stderr.starts_with("warning: "), "{stderr}");
    assert!(stderr.contains("no plugin \"ecoh\" is configured"), "{stderr}");
}

#[test]
fn who_has_a_token_chats_from_elsewhere_as_far_as_that_goes() {
    let config = "[[auth.api_keys]]\nname = \"ci\"\nkey_env = \"CI_KEY\"\nrole = \"user\"\n\
                  [[auth.api_keys]]\nname = \"eye\"\nkey_env = \"EYE_KEY\"\nrole = \"readonly\"\n";
    let keys = [("CI_KEY", "a-key-of-some-length-1"), ("EYE_KEY", "a-key-of-some-length-2")];
    let daemon = Daemon::with_env(config, &keys);
    let elsewhere = home();
    let run = |token: &str, args: &[&str]| {
        let mut chat = command(elsewhere.path());
        chat.arg("chat").args(args).args(["--url", &format!("ws://{}/ws", daemon.address)]);
        let ended = chat.env("USER", "ann").env("CLAWMUX_TOKEN", token).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
    };
    let (status, stdout, stderr) = run(keys[0].1, &["hello", "--session", "plan"]);
    assert!(status == Some(0) && stdout.contains("You said: \"hello\""), "{stderr}");
    let (status, _, stderr) = run(keys[0].1, &["hello", "--session", "main:cli:ann:pl"]);
    assert_eq!(status, Some(0), "{stderr}");
    let (status, _, stderr) = run(keys[0].1, &["hello", "--agent", "nobody"]);
    assert_eq!((status, stderr.as_str()), (Some(1), "error: there is no agent nobody; there are: main\n"));
    let (status, stdout, stderr) = run(keys[1].1, &["hello"]);
    assert_eq!((status, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("forbidden: needs write"), "{stderr}");
    let (status, _, stderr) = run("a-key-that-nobody-gave", &["hello"]);
    assert!(status == Some(1) && stderr.contains("does not accept this token"), "{stderr}");
    let (status, _, stderr) = run("", &["hello"]);
    assert!(status == Some(1) && stderr.contains("the daemon wants a credential"), "{stderr}");
    // The operator at home sees whose it is, and goes there by name.
    let (_, stdout, _) = piped(daemon.home(), &["hi", "--session", "ci/main:cli:ann:plan"], b"");
    assert!(stdout.contains("I remember 1 earlier message: \"hello\""), "{stdout}");
}

/// Whoever comes to this address is told this, and no more.
fn answering(response: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match client.read(&mut buffer) {
                        Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
                        _ => return,
                    }
                }
                let _ = client.write_all(response.as_bytes());
            });
        }
    });
    address
}

#[test]
fn who_does_not_let_one_in_is_quoted() {
    let home = home();
    for (response, status, says) in [
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 29\r\ncontent-type: application/json\r\n\r\n{\"error\":\"not for you, user\"}",
            1,
            "HTTP status 403 Forbidden: not for you, user",
        ),
        ("HTTP/1.1 401 Unauthorized\r\ncontent-length: 6\r\n\r\nlog in", 1, "401 Unauthorized: log in"),
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull",
            1,
            "503 Service Unavailable: full",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 1, "HTTP status 200 OK"),
        ("SSH-2.0-OpenSSH_9.2p1\r\n", 1, "is no clawmux, or not its /ws"),
    ] {
        let url = format!("ws://{}/ws", answering(response));
        let (ended, stdout, stderr) = piped(home.path(), &["hi", "--url", &url], b"");
        assert!(ended == status && stderr.contains(says), "{ended} {stdout}{stderr}");
        assert!(!stderr.contains("no daemon is reachable"), "{stderr}");
    }
    let daemon = Daemon::start();
    for (path, says) in [
        ("nope", "HTTP status 404 Not Found: no such page; clawmux has its WebSocket at /ws"),
        ("", "speaks another protocol: clawmux has its WebSocket for chats at /ws"),
    ] {
        let url = format!("ws://{}/{path}", daemon.address);
        let (ended, _, stderr) = piped(home.path(), &["hi", "--url", &url], b"");
        assert!(ended == 1 && stderr.contains(says), "{ended} {stderr}");
    }
    let url = format!("wss://{}/ws", daemon.address);
    let (ended, _, stderr) = piped(home.path(), &["hi", "--url", &url], b"");
    assert!(ended == 1 && stderr.contains("no TLS connection to wss://"), "{ended} {stderr}");
}
