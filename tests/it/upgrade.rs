//! A store that the release before wrote, under this one: nothing that was in it is lost, what was cut
//! off goes on, and a store of a newer release is left alone. With `CLAWMUX_TEST_BIN` it is another
//! binary than the one built with the tests that has to do so, such as the one that is given out.
//!
//! `fixtures/upgrade/` holds what daemons of older formats left behind when they were killed, as SQL.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::eventually;
use crate::support::lines::Lines;

/// What the last release with another format left behind.
const OLD: &str = include_str!("../fixtures/upgrade/format_6.sql");
const OLD_FORMAT: i64 = 6;
/// The credential that it gave out.
const PHONE: &str = "cmxkey_baVD06QLYGUGe7nASpsGsmrMH_3dPZ5so-d7LkluA3I";
/// The configuration that it ran with.
const CONFIG: &str = "[[plugins]]\nname = \"clock\"\napproval = \"ask\"\n";

const MAIN: &str = "main:cli:ada:main";
const WORK: &str = "main:cli:ada:work";
/// All that were there, with how many prompts each has.
const SESSIONS: [(&str, usize); 5] = [
    (MAIN, 1),
    (WORK, 1),
    ("phone/main:websocket:ada:main", 1),
    ("phone/main:websocket:cut:main", 2),
    ("phone/main:websocket:asks:main", 1),
];

/// A home with the old store.
fn old_home() -> tempfile::TempDir {
    let home = daemon::home();
    let db = Connection::open(store_of(home.path())).unwrap();
    db.execute_batch(OLD).unwrap();
    home
}

fn store_of(home: &Path) -> PathBuf {
    home.join("clawmux.db")
}

fn format_of(store: &Path) -> i64 {
    let db = Connection::open(store).unwrap();
    db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// Makes a copy of the store with the program, as an operator does before an upgrade and after it.
fn back_up(home: &Path, file: &Path) -> String {
    let ran = daemon::command(home).arg("backup").arg(file).output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success(), "{said}");
    said
}

/// The lines that `session show` writes of this session, as JSON.
fn log_of(daemon: &Daemon, key: &str) -> Vec<Value> {
    let lines = daemon.stdout_of(&["session", "show", key, "--json"]);
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind(log: &[Value], kind: &str) -> usize {
    log.iter().filter(|event| event["event"] == kind).count()
}

/// What was over when the old release ended is there, word by word.
fn reads_what_was_said(daemon: &Daemon) {
    let listed = daemon.stdout_of(&["sessions", "--json"]);
    for (key, prompts) in SESSIONS {
        assert!(listed.contains(&format!("\"{key}\"")), "{key}: {listed}");
        let log = log_of(daemon, key);
        assert_eq!(of_kind(&log, "prompt"), prompts, "{key}: {log:?}");
    }
    let shown = daemon.stdout_of(&["session", "show", WORK]);
    assert!(shown.contains("kept since format 6") && shown.contains("echo answered"), "{shown}");
    let mut phone = Client::connect_with(daemon.address, PHONE);
    let history = phone.call("chat.history", json!({"channel": "websocket", "account": "ada"}));
    let messages = history["result"]["messages"].as_array().unwrap();
    assert_eq!(messages[0]["content"], "remember the walrus", "{history}");
    assert!(messages[1]["content"].as_str().unwrap().starts_with("You said: \"remember the walrus\""));
    let job = daemon.stdout_of(&["jobs"]);
    assert!(job.contains("morning") && job.contains("0 9 * * 1-5"), "{job}");
}

/// What was cut off, waited behind it, or waits for somebody comes to its end, once.
fn goes_on(daemon: &Daemon) {
    let cut = "phone/main:websocket:cut:main";
    let log = eventually("the run that was cut off and the one behind it to end", || {
        let log = log_of(daemon, cut);
        (of_kind(&log, "end") == 2).then_some(log)
    });
    assert_eq!(of_kind(&log, "restart"), 1, "{log:?}");
    let shown = daemon.stdout_of(&["session", "show", cut]);
    assert!(shown.contains("6 done.") && shown.contains("what waited behind it?"), "{shown}");

    let asks = "phone/main:websocket:asks:main";
    let waiting = Lines::connect(daemon.home()).call("admin.approvals", json!({}));
    let call = &waiting["approvals"][0];
    assert_eq!((&call["session"], &call["tool"]), (&json!(asks), &json!("clock")), "{waiting}");
    daemon.stdout_of(&["approval", "approve", call["approval"].as_str().unwrap()]);
    eventually("the approved call to be made and the run to end", || {
        let log = log_of(daemon, asks);
        of_kind(&log, "tool_result") == 1 && of_kind(&log, "end") == 1
    });

    // A prompt that its client sends again is the one that was answered then.
    let mut phone = Client::connect_with(daemon.address, PHONE);
    let again = json!({"channel": "websocket", "account": "ada", "content": "remember the walrus",
        "idempotency_key": "k1"});
    let id = phone.request("chat.send", again);
    assert!(phone.stream(&id).text().contains("remember the walrus"));
    assert_eq!(of_kind(&log_of(daemon, "phone/main:websocket:ada:main"), "prompt"), 1);
    let answer = phone.chat("ada", "and a seal");
    assert!(answer.text().contains("and a seal"), "it takes new prompts: {answer:?}");
}

#[test]
fn a_store_of_the_release_before_is_read_and_what_was_cut_off_goes_on() {
    let home = old_home();
    let copies = tempfile::tempdir().unwrap();
    let (before, after) = (copies.path().join("before.db"), copies.path().join("after.db"));
    back_up(home.path(), &before);
    assert_eq!(format_of(&before), OLD_FORMAT, "a copy is as what it is a copy of");
    assert_eq!(format_of(&store_of(home.path())), OLD_FORMAT, "copying changes nothing");

    let daemon = Daemon::at(home, CONFIG, &[]);
    assert!(format_of(&store_of(daemon.home())) > OLD_FORMAT);
    reads_what_was_said(&daemon);
    goes_on(&daemon);
    back_up(daemon.home(), &after);
    let shown = daemon.stdout_of(&["session", "show", MAIN, "--json"]);
    let daemon = daemon.restart();
    assert_eq!(daemon.stdout_of(&["session", "show", MAIN, "--json"]), shown);
    drop(daemon);

    // The copy made afterwards is of the new format, and has what came since.
    let home = daemon::home();
    std::fs::copy(&after, store_of(home.path())).unwrap();
    let restored = Daemon::at(home, CONFIG, &[]);
    assert_eq!(restored.stdout_of(&["session", "show", MAIN, "--json"]), shown);
    let phone = restored.stdout_of(&["session", "show", "phone/main:websocket:ada:main"]);
    assert!(phone.contains("and a seal"), "{phone}");
}

#[test]
fn the_copy_made_before_can_be_upgraded_as_well() {
    let home = old_home();
    let copies = tempfile::tempdir().unwrap();
    let before = copies.path().join("before.db");
    back_up(home.path(), &before);
    let home = daemon::home();
    std::fs::copy(&before, store_of(home.path())).unwrap();
    let daemon = Daemon::at(home, CONFIG, &[]);
    reads_what_was_said(&daemon);
    goes_on(&daemon);
}

#[test]
fn a_store_of_a_newer_release_is_refused_and_left_as_it_is() {
    let home = old_home();
    let store = store_of(home.path());
    {
        let db = Connection::open(&store).unwrap();
        db.execute_batch("PRAGMA user_version = 99; UPDATE meta SET version = '9.1.0';").unwrap();
    }
    let bytes = std::fs::read(&store).unwrap();
    let ran = daemon::command(home.path()).args(["serve", "--listen", "127.0.0.1:0"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for part in ["format 99", "clawmux 9.1.0", &*store.display().to_string()] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(std::fs::read(&store).unwrap() == bytes, "it was written to");
}
