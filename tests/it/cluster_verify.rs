//! `clawmux cluster verify`: a store that is what the log says is told from one that a disk has changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::bus::nats::Adapter;
use crate::cluster::{begun, server, status};
use crate::cluster_large::ask;
use crate::cluster_sessions::{accounts, pair};
use crate::files::{id, put};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, output};
use crate::support::eventually;
use crate::support::running::Running;
use crate::support::tools::needs;
use crate::support::wundr::Wundr;

/// What is said and must not be told.
const WORDS: &str = "a heron stands in the reeds";

fn verify(home: &Path) -> (i32, Value) {
    let (status, told, said) = output(command(home).args(["cluster", "verify", "--json"]));
    assert!(left(home).is_empty(), "{:?}", left(home));
    (status, serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}{said}")))
}

fn is_alike(home: &Path) -> Value {
    let (status, told) = verify(home);
    assert!(status == 0 && told["alike"] == true && told["differing"] == json!([]), "{status} {told}");
    told
}

fn is_refused(home: &Path, status: i32, words: &str) {
    let (ended, told, said) = output(command(home).args(["cluster", "verify"]));
    assert!(ended == status && said.contains(words), "{words}: {ended} {told}{said}");
    assert!(left(home).is_empty(), "{:?}", left(home));
}

/// What is left of a store that was made anew.
fn left(home: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(home).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.display().to_string().contains(".anew")).collect()
}

/// Changes the store of a home whose daemon is stopped.
fn change(home: &Path, sql: &str) {
    let db = Connection::open(home.join("clawmux.db")).unwrap();
    assert_eq!(db.execute(sql, []).unwrap(), 1, "{sql}");
}

/// The two stores have all that is in the log.
fn are_level(daemons: [&Daemon; 2]) {
    eventually("both stores have the whole log", || {
        let at = daemons.map(|daemon| status(daemon)["applied"].as_u64());
        let last = status(daemons[0])["log"]["last"].as_u64();
        at[0].is_some() && at[0] == at[1] && at[0] == last
    });
}

#[test]
fn a_store_is_what_the_log_says_until_a_bit_of_it_is_another_one() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (of_a, of_b) = accounts(&a);
    let (mut at_a, mut at_b) = (Client::connect(a.daemon.address), Client::connect(b.daemon.address));
    for account in of_a.iter().take(2).chain(of_b.iter().take(2)) {
        assert_eq!(at_a.chat(account, WORDS).events().last(), Some(&"done"));
        assert_eq!(at_b.chat(account, r#"/tool echo {"text":"hi"}"#).events().last(), Some(&"done"));
    }
    for account in [&of_a[0], &of_b[0]] {
        b.daemon.stdout_of(&["session", "delete", &format!("main:websocket:{account}:main")]);
    }
    a.daemon.stdout_of(&["job", "add", "--every", "12h", "--name", "report", "--prompt", "Sum up the day"]);
    put(&mut Wundr::connect(a.daemon.address), &id(1), b"a walrus").unwrap();
    assert_eq!(at_b.chat(&of_a[0], WORDS).events().last(), Some(&"done"), "the session begins anew");
    b.daemon.stdout_of(&["token", "create", "--name", "ci", "--role", "user", "--yes"]);
    are_level([&a.daemon, &b.daemon]);

    let runs = format!("a daemon (process {}) runs on", b.daemon.pid());
    is_refused(b.daemon.home(), 1, &runs);
    for node in [&a, &b] {
        node.daemon.signal("KILL");
        eventually("it to be dead", || node.daemon.run(&["status"]).0 == 69);
    }
    for node in [&a, &b] {
        let told = is_alike(node.daemon.home());
        assert_eq!(told["name"], "clawmux");
        assert!(told["records"].as_u64() > Some(30) && told["rows"].as_u64() > Some(50), "{told}");
        assert!(told["tables"].as_u64() > Some(30), "{told}");
    }

    let home = b.daemon.home();
    let account = &of_b[1];
    let of_session = format!("(SELECT id FROM sessions WHERE key = 'main:websocket:{account}:main')");
    // The last bit of one letter.
    change(
        home,
        &format!(
            "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'heron', 'hdron') AS BLOB)
             WHERE session = {of_session} AND seq = (SELECT min(seq) FROM events WHERE session = {of_session}
             AND instr(CAST(body AS TEXT), 'heron') > 0)"
        ),
    );
    let (code, told) = verify(home);
    let differing = &told["differing"];
    assert!(code == 1 && told["alike"] == false && differing.as_array().unwrap().len() == 1, "{code} {told}");
    assert_eq!(
        (&differing[0]["table"], &differing[0]["rows"], &differing[0]["columns"]),
        (&json!("events"), &json!(1), &json!(["body"]))
    );
    let rows = |rows: u64, example: Option<String>| json!({ "rows": rows, "example": example });
    let changed = format!("session main:websocket:{account}:main, seq 1");
    assert_eq!(differing[0]["differ"], rows(1, Some(changed)));
    assert_eq!((&differing[0]["missing"], &differing[0]["not_in_log"]), (&rows(0, None), &rows(0, None)));
    let (code, told, said) = output(command(home).args(["cluster", "verify"]));
    assert!(
        code == 1 && told.contains("events: 1 row differs in body, such as session"),
        "{code} {told}{said}"
    );
    assert!(told.contains(&format!("move {}* away", home.join("clawmux.db").display())), "{told}");
    assert!(!told.contains("reeds"), "{told}");

    // Of another table, too.
    change(home, "UPDATE tokens SET scopes = 'operator.admin'");
    let (code, told) = verify(home);
    let tables: Vec<&Value> =
        told["differing"].as_array().unwrap().iter().map(|table| &table["table"]).collect();
    assert!(code == 1 && tables == ["events", "tokens"], "{code} {told}");

    // What is told to do helps.
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(home.join(format!("clawmux.db{end}")));
    }
    let daemon = b.daemon.restart_stopped();
    let exported =
        daemon.stdout_of(&["session", "export", &format!("main:websocket:{account}:main"), "--json"]);
    assert!(exported.contains(WORDS), "{exported}");
    daemon.signal("KILL");
    eventually("it to be dead", || daemon.run(&["status"]).0 == 69);
    is_alike(daemon.home());
}

#[test]
fn large_records_are_compared_and_a_verify_that_was_killed_leaves_nothing_in_the_way() {
    needs!("nats-server");
    let (server, config) = server();
    let daemon = Daemon::at(begun(&config), &config, &[]);
    let data = STANDARD.encode("heron ".repeat(500_000));
    let mut client = Client::connect(daemon.address);
    for nth in 0..4 {
        let stream = ask(&mut client, &format!("ada{nth}"), ("heron.txt", "text/plain"), &data);
        assert_eq!(stream.events().last(), Some(&"done"), "{nth}: {:?}", stream.events());
    }
    daemon.signal("KILL");
    let home = daemon.home().to_owned();
    eventually("it to be dead", || daemon.run(&["status"]).0 == 69);

    let mut killed = Running::start(command(&home).args(["cluster", "verify"]));
    let begin = Instant::now();
    while !home.join("clawmux.db.anew-wal").exists() {
        assert!(begin.elapsed() < Duration::from_secs(60) && killed.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(1));
    }
    killed.put_down();
    assert!(!left(&home).is_empty());
    let daemon = daemon.restart_stopped();
    assert!(left(&home).is_empty(), "the daemon removes it: {:?}", left(&home));
    daemon.signal("KILL");
    eventually("it to be dead", || daemon.run(&["status"]).0 == 69);
    fs::write(home.join("clawmux.db.anew"), "left by one that was killed").unwrap();
    fs::write(home.join("clawmux.db.anew-wal"), "the same").unwrap();
    is_alike(&home);

    // One bit of what is in no record of the log, but in a blob.
    change(
        &home,
        "UPDATE attachments SET data = CAST(substr(data, 1, 1000000) || x'00' || substr(data, 1000002) AS BLOB)
         WHERE rowid = (SELECT min(rowid) FROM attachments)",
    );
    let (code, told) = verify(&home);
    let differing = &told["differing"][0];
    assert!(code == 1 && differing["table"] == "attachments" && differing["rows"] == 1, "{code} {told}");

    let adapter = Adapter::new(&[server.url()]);
    adapter.wait(async {
        adapter.js.get_stream("clawmux_BLOBS").await.unwrap().purge().await.unwrap();
    });
    is_refused(&home, 1, "can't be applied, since the blob");
}

#[test]
fn what_can_not_be_verified_is_refused_with_the_reason() {
    needs!("nats-server");
    let daemon = Daemon::start();
    let home = daemon.home().to_owned();
    daemon.stdout_of(&["chat", "hi"]);
    daemon.signal("KILL");
    eventually("it to be dead", || daemon.run(&["status"]).0 == 69);
    is_refused(&home, 64, "no cluster is configured: name its servers in [cluster]");
    let (mut server, config) = server();
    fs::write(home.join("gateway.toml"), &config).unwrap();
    is_refused(&home, 1, "is of no cluster: run it on a node of the cluster");
    let (code, told, said) = output(command(&home).args(["cluster", "init"]));
    assert_eq!(code, 0, "{told}{said}");
    assert_eq!(is_alike(&home)["records"], 0, "a base is what it is");
    let store = home.join("clawmux.db");
    let kept = fs::read(&store).unwrap();

    change(&home, "UPDATE meta SET applied = 1000");
    is_refused(&home, 1, "the log ends at record 0, and the store of this home has 1000");
    change(&home, &format!("UPDATE meta SET cluster = '{}'", "a".repeat(32)));
    is_refused(&home, 1, "see to cluster.servers and cluster.name");
    let put_back = || {
        for end in ["-wal", "-shm"] {
            let _ = fs::remove_file(home.join(format!("clawmux.db{end}")));
        }
        fs::write(&store, &kept).unwrap();
    };
    put_back();
    let (code, told, said) = output(command(&home).args(["cluster", "rebuild", "--yes"]));
    assert_eq!(code, 0, "{told}{said}");
    is_alike(&home);
    put_back();
    is_refused(&home, 1, "is of generation 1 of the cluster, and the servers have 2");
    server.kill();
    is_refused(&home, 1, "can't be reached: nothing listens there. See to the NATS servers and the network");
}
