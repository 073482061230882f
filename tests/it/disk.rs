//! Full and failing disks: new work is refused with the reason, what is there is served, nothing
//! acknowledged is lost, nothing happens twice, and all goes on by itself when the disk is well.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::shim::{BROKEN, Disk, FULL};
use crate::support::client::{Client, Stream};
use crate::support::daemon::{self, Daemon};
use crate::support::eventually;
use crate::support::guest::guest;
use crate::support::running::Running;
use crate::support::tools::needs;

/// Sessions say when they go back to the log, and the log when it was tried again.
const FALLS: &str = "[log]\nfilter = \"info,clawmux_actors::session=debug,clawmux_actors::store=debug\"\n";

fn prompt(account: &str, content: &str, key: &str) -> Value {
    json!({"channel": "websocket", "account": account, "content": content, "idempotency_key": key})
}

/// A prompt's whole stream, or its refusal.
fn send(client: &mut Client, account: &str, content: &str, key: &str) -> Stream {
    let id = client.request("chat.send", prompt(account, content, key));
    client.stream(&id)
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// What must be answered whatever the disk does; the account has said something before.
fn reads_go_on(daemon: SocketAddr, client: &mut Client, account: &str, turns: usize) {
    assert_eq!(daemon::get(daemon, "/healthz").0, 200);
    assert_eq!(client.call("ping", Value::Null)["result"], "pong");
    let status = client.call("status", Value::Null);
    assert!(status["result"]["version"].is_string(), "{status}");
    let list = client.call("session.list", json!({}));
    assert!(!list["result"].as_array().unwrap().is_empty(), "{list}");
    let history = client.call("chat.history", json!({"channel": "websocket", "account": account}));
    assert_eq!(history["result"]["messages"].as_array().unwrap().len(), turns * 2, "{history}");
}

fn not_ready(address: SocketAddr, reason: &str) {
    eventually("/readyz to say that it can't take work", || {
        let (status, body) = daemon::get(address, "/readyz");
        status == 503 && body.contains(reason)
    });
}

fn ready(address: SocketAddr) {
    eventually("/readyz to say that it takes work again", || daemon::get(address, "/readyz").0 == 200);
}

/// What the log of a stopped daemon has to be like: whole, without a gap, without an open run.
fn check_log(home: &Path) -> HashMap<String, usize> {
    let db = Connection::open_with_flags(home.join("clawmux.db"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let sound: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    let open: i64 =
        db.query_row("SELECT count(*) FROM runs WHERE ended IS NULL", [], |row| row.get(0)).unwrap();
    assert_eq!(open, 0, "every run has its end");
    let mut asked = db
        .prepare("SELECT s.key, e.first, e.seq, e.kind FROM events e JOIN sessions s ON s.id = e.session ORDER BY 1, 3")
        .unwrap();
    let mut rows = asked.query([]).unwrap();
    let mut heads: HashMap<String, i64> = HashMap::new();
    let mut kinds: HashMap<String, usize> = HashMap::new();
    while let Some(row) = rows.next().unwrap() {
        let (key, first, seq): (String, i64, i64) =
            (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
        let head = heads.entry(key.clone()).or_default();
        assert_eq!(first, *head + 1, "{key} misses a number or has it twice");
        *head = seq;
        *kinds.entry(row.get(3).unwrap()).or_default() += 1;
    }
    kinds
}

/// How many calls of the model were counted.
fn usage_rows(home: &Path) -> usize {
    let db = Connection::open_with_flags(home.join("clawmux.db"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    db.query_row("SELECT count(*) FROM usage", [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

#[test]
fn a_full_disk_refuses_new_work_serves_what_is_there_and_is_over_when_it_is() {
    let home = daemon::home();
    let disk = Disk::under(home.path());
    let (mut daemon, mut client) = Daemon::at_with(home, "", disk.env()).and(Client::connect);
    let before = send(&mut client, "ada", "what is a walrus?", "k1");
    assert_eq!(before.events().last(), Some(&"done"), "{before:?}");

    for (round, after_bytes) in [(0, 0), (1, 5000)] {
        disk.fail("home", "write", FULL, after_bytes);
        for attempt in 0..20 {
            let refused = send(&mut client, &format!("bob{}", attempt % 4), "hello", &format!("b{round}"));
            let why = "the store can't be written: the disk is full";
            assert!(refused.error().starts_with(why), "{refused:?}");
            assert_eq!(refused.0.len(), 1, "nothing was shown: {refused:?}");
        }
        not_ready(daemon.address, "the disk is full");
        reads_go_on(daemon.address, &mut client, "ada", 1);
        let again = send(&mut client, "ada", "what is a walrus?", "k1");
        assert_eq!((again.text(), again.events()), (before.text(), before.events()), "a replay is a read");
        assert_eq!(count(&daemon.log(), "new work is refused"), round + 1, "one line: {}", daemon.log());

        disk.heal();
        ready(daemon.address);
        let taken = send(&mut client, "bob0", "hello", &format!("b{round}"));
        assert_eq!(taken.events().last(), Some(&"done"), "{taken:?}");
        assert_eq!(count(&daemon.log(), "can be written again"), round + 1, "{}", daemon.log());
    }
    assert!(daemon.terminate().success());
    assert_eq!(check_log(daemon.home())["prompted"], 3, "what was refused left no trace");
}

/// A stream, a queue and a tool call are under way when the disk fails, and go on when it is well.
fn what_is_under_way_goes_on(operation: &str, error: i32, reason: &str) {
    let home = daemon::home();
    // Answers nothing for longer than the disk is well.
    let spin = guest("(loop $l (br $l)) i32.const 0");
    std::fs::create_dir_all(home.path().join("plugins")).unwrap();
    std::fs::write(home.path().join("plugins/spin.wasm"), spin).unwrap();
    let config = format!(
        "{FALLS}[agents.main]\ntools = [\"spin\"]\n[[plugins]]\nname = \"spin\"\npath = \"plugins/spin.wasm\"\n\
         timeout_ms = 1000\nfuel = 100000000000\n"
    );
    let disk = Disk::under(home.path());
    let (mut daemon, mut client) = Daemon::at_with(home, &config, disk.env()).and(Client::connect);
    eventually("the plugin to load", || {
        let list = client.call("plugin.list", json!({}));
        list.to_string().contains("spin")
    });
    send(&mut client, "past", "remember me", "past");
    let prompts = [
        ("stream", "/slow 3", "s"),
        ("queue", "/slow 2", "q1"),
        ("queue", "second", "q2"),
        ("queue", "third", "q3"),
        ("tool", "/tool spin {}", "t"),
    ];
    let ids: Vec<String> = prompts
        .iter()
        .map(|(account, content, key)| client.request("chat.send", prompt(account, content, key)))
        .collect();
    // Each has begun, or waits acknowledged.
    let mut told: Vec<Vec<Value>> = ids
        .iter()
        .zip(["text", "text", "accepted", "accepted", "tool_use"])
        .map(|(id, until)| {
            let mut frames = Vec::new();
            while frames.last().is_none_or(|frame: &Value| frame["event"] != until) {
                frames.push(client.reply(id));
            }
            frames
        })
        .collect();

    disk.fail("log", operation, error, 0);
    let refused = eventually("a prompt to be refused", || {
        let refused = send(&mut client, "late", "too late", "late");
        (!refused.error().is_empty()).then_some(refused)
    });
    assert!(refused.error().contains(reason), "{refused:?}");
    for account in ["stream", "queue", "tool"] {
        let fell = format!("session=main:websocket:{account}:main");
        eventually("the session to meet the fault", || {
            daemon
                .log()
                .lines()
                .any(|line| line.contains("starts again from the store") && line.contains(&fell))
        });
    }
    // Longer than a session may fall for reasons of its own.
    eventually("the log to be tried again a few times", || count(&daemon.log(), "it still can't be") >= 4);
    not_ready(daemon.address, reason);
    reads_go_on(daemon.address, &mut client, "past", 1);
    assert_eq!(count(&daemon.log(), "new work is refused"), 1, "{}", daemon.log());
    assert!(!daemon.log().contains("the session stays down"), "{}", daemon.log());

    disk.heal();
    // Nobody names them: they go on, and who followed them is told.
    for ((id, frames), (_, content, key)) in ids.iter().zip(&mut told).zip(prompts) {
        frames.extend(client.stream(id).0);
        for frame in frames.iter_mut() {
            frame.as_object_mut().unwrap().remove("id");
        }
        let told = Stream(std::mem::take(frames));
        assert_eq!((told.events().last(), told.error()), (Some(&"done"), ""), "{content}: {told:?}");
        let account = prompts.iter().find(|prompt| prompt.2 == key).unwrap().0;
        let replay = send(&mut client, account, content, key);
        assert_eq!(
            told.lasting_text(),
            replay.lasting_text(),
            "what was shown and holds is what the log has"
        );
        assert_eq!(told.data("accepted").next(), replay.data("accepted").next(), "the same run");
        if key == "t" {
            assert_eq!(told.data("tool_use").count(), 1, "{told:?}");
            let results: Vec<_> = told.data("tool_result").collect();
            assert!(results.len() == 1 && results[0]["is_error"] == true, "{told:?}");
            assert!(results[0]["content"].as_str().unwrap().contains("interrupted"), "{told:?}");
        }
    }
    ready(daemon.address);
    let taken = send(&mut client, "late", "too late", "late");
    assert_eq!(taken.events().last(), Some(&"done"), "{taken:?}");
    assert!(daemon.terminate().success());
    let kinds = check_log(daemon.home());
    assert_eq!((kinds["prompted"], kinds["ended"]), (prompts.len() + 2, prompts.len() + 2), "{kinds:?}");
    // Every run has one call of the model, that with a tool two, and two were cut off: they cost too.
    let calls = prompts.len() + 2 + 1 + 2;
    assert!(
        usage_rows(daemon.home()) >= calls,
        "{} of {calls} calls: {}",
        usage_rows(daemon.home()),
        daemon.log()
    );
}

#[test]
fn what_is_under_way_goes_on_after_a_full_disk() {
    what_is_under_way_goes_on("write", FULL, "the store can't be written: the disk is full");
}

#[test]
fn what_is_under_way_goes_on_after_a_failure_to_write() {
    what_is_under_way_goes_on("write", BROKEN, "the store can't be written: ");
}

#[test]
fn what_is_under_way_goes_on_after_a_failure_to_sync() {
    what_is_under_way_goes_on("sync", BROKEN, "the store can't be written: ");
}

#[test]
fn on_a_full_disk_it_does_not_start_says_why_and_harms_nothing() {
    let home = daemon::home();
    let disk = Disk::under(home.path());
    let daemon = Daemon::at_with(home, "", disk.env());
    let before = send(&mut Client::connect(daemon.address), "ada", "what is a walrus?", "k");
    disk.fail("home", "write", FULL, 0);
    let (daemon, said) = daemon.kill_and_fail_to_restart();
    assert!(said.contains("the store can't be written: the disk is full"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    disk.heal();
    let mut daemon = daemon.start_again();
    let after = send(&mut Client::connect(daemon.address), "ada", "what is a walrus?", "k");
    assert_eq!(after.text(), before.text());
    assert!(daemon.terminate().success());
    check_log(daemon.home());
}

/// A daemon that a shell command starts, with `$CLAWMUX` and `$HOME` set.
struct Started {
    child: Running,
    address: SocketAddr,
    home: tempfile::TempDir,
}

impl Started {
    fn with(shell: &str) -> Self {
        let home = daemon::home();
        let mut command = Command::new("sh");
        command.args(["-c", shell]).env("CLAWMUX", env!("CARGO_BIN_EXE_clawmux")).env("HOME", home.path());
        let mut child = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let Some(address) = daemon::address_in(&line) else {
            let _ = lines.read_to_string(&mut line);
            panic!("it did not start: {line:?} {:?}", child.wait());
        };
        Self { child, address, home }
    }

    /// The home as the daemon sees it, which may be on a mount of its own.
    fn home(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.child.id(), self.home.path().display()))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home().join("daemon.log")).unwrap_or_default()
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn terminate(&mut self) {
        self.child.signal("TERM");
        let status = self.child.ended();
        assert!(status.success(), "{status}");
    }
}

/// Sends prompts to ever other sessions until one is refused: the ids of those that were
/// acknowledged, and why.
fn fill(client: &mut Client, content: &str) -> (Vec<String>, String) {
    let mut taken = Vec::new();
    for at in 0..500 {
        let params = prompt(&format!("a{at}"), content, &format!("fill{at}"));
        let id = client.request("chat.send", params);
        let answer = client.reply(&id);
        if let Some(error) = answer["error"].as_str() {
            return (taken, error.to_owned());
        }
        assert_eq!(answer["event"], "accepted", "{answer}");
        taken.push(id);
    }
    panic!("500 prompts were taken");
}

#[test]
fn a_really_full_disk_takes_nothing_and_gives_everything_back_when_there_is_room() {
    needs!("mounts");
    let mut daemon = Started::with(
        "exec unshare -m sh -c 'mount -t tmpfs -o size=12m none $HOME && \
         exec $CLAWMUX --home $HOME serve --listen 127.0.0.1:0 2>$HOME/daemon.log'",
    );
    let mut client = Client::connect(daemon.address);
    send(&mut client, "ada", "what is a walrus?", "k");
    let id = client.request("chat.send", prompt("slow", "/slow 3", "slow"));
    while client.reply(&id)["event"] != "text" {}
    let filler = daemon.home().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    // What the log has room for in its own file is still taken.
    let content = "x".repeat(60_000);
    let (taken, refused) = fill(&mut client, &content);
    let why = "the store can't be written: the disk is full";
    assert!(refused.starts_with(why), "{refused}");
    not_ready(daemon.address, why);
    reads_go_on(daemon.address, &mut client, "ada", 1);
    assert!(daemon.is_alive());

    drop(file);
    std::fs::remove_file(filler).unwrap();
    ready(daemon.address);
    let slow = client.stream(&id);
    assert_eq!((slow.events().last(), slow.error()), (Some(&"done"), ""), "it goes on by itself: {slow:?}");
    for id in &taken {
        let said = client.stream(id);
        assert_eq!((said.events().last(), said.error()), (Some(&"done"), ""), "acknowledged before");
    }
    for at in 0..=taken.len() {
        let said = send(&mut client, &format!("a{at}"), &content, &format!("fill{at}"));
        assert_eq!((said.events().last(), said.error()), (Some(&"done"), ""), "prompt {at}");
    }
    let copy = tempfile::tempdir().unwrap();
    let home = daemon.home();
    let log = daemon.log();
    // The mount goes with the daemon: what it leaves is looked at through a folder held open.
    let held = std::fs::File::open(&home).unwrap();
    daemon.terminate();
    let held = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held)));
    std::fs::copy(held.join("clawmux.db"), copy.path().join("clawmux.db")).unwrap();
    let kinds = check_log(copy.path());
    assert_eq!(kinds["prompted"], taken.len() + 3, "each once: {log}");
}

#[test]
fn a_limit_on_file_sizes_is_a_full_disk_and_not_the_end() {
    needs!("prlimit");
    let mut daemon = Started::with(
        // In blocks of 512 or 1024 bytes, as the shell has it.
        "ulimit -S -f 2400; exec $CLAWMUX --home $HOME serve --listen 127.0.0.1:0 2>$HOME/daemon.log",
    );
    let mut client = Client::connect(daemon.address);
    send(&mut client, "ada", "what is a walrus?", "k");
    let content = "x".repeat(60_000);
    let (taken, refused) = fill(&mut client, &content);
    assert!(refused.starts_with("the store can't be written: "), "{refused}");
    not_ready(daemon.address, "the store can't be written");
    reads_go_on(daemon.address, &mut client, "ada", 1);
    assert!(daemon.is_alive(), "{}", daemon.log());
    let pid = format!("--pid={}", daemon.child.id());
    assert!(Command::new("prlimit").args([&pid, "--fsize=unlimited"]).status().unwrap().success());
    ready(daemon.address);
    for id in &taken {
        let said = client.stream(id);
        assert_eq!((said.events().last(), said.error()), (Some(&"done"), ""), "acknowledged before");
    }
    assert_eq!(send(&mut client, "big", "small", "last").events().last(), Some(&"done"));
    daemon.terminate();
    check_log(daemon.home.path());
}

#[test]
fn log_lines_that_can_not_be_written_end_nothing() {
    let mut daemon = Started::with("exec $CLAWMUX --home $HOME serve --listen 127.0.0.1:0 2>/dev/full");
    let mut client = Client::connect(daemon.address);
    // Each of these is worth a line.
    assert_eq!(client.chat("ada", "/fail").events().last(), Some(&"done"));
    assert_eq!(client.chat("ada", "still there?").events().last(), Some(&"done"));
    assert!(daemon.is_alive());
    daemon.terminate();
}
