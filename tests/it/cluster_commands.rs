//! `clawmux cluster init`, `rebuild`, `leave`: on a home without a daemon, and on a real NATS server.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use serde_json::Value;

use crate::bus::nats::Server;
use crate::cluster::{begun, server};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, home, output};
use crate::support::eventually;
use crate::support::tools::needs;

fn run(home: &Path, args: &[&str]) -> (i32, String, String) {
    output(command(home).args(args))
}

fn json(home: &Path, args: &[&str]) -> Value {
    let (status, told, said) = run(home, args);
    assert_eq!(status, 0, "{args:?}: {told}{said}");
    serde_json::from_str(&told).unwrap()
}

fn refused(home: &Path, args: &[&str], status: i32, words: &str) {
    let (ended, told, said) = run(home, args);
    assert!(ended == status && said.contains(words), "{args:?}: {ended} {told}{said}");
}

#[test]
fn a_home_begins_a_cluster_rebuilds_it_and_leaves_it() {
    needs!("nats-server");
    let daemon = Daemon::start();
    let home = daemon.home().to_owned();
    daemon.stdout_of(&["chat", "hi"]);
    let runs = format!("a daemon (process {}) runs on", daemon.pid());
    for args in [&["cluster", "leave", "--yes"][..], &["cluster", "leave"]] {
        refused(&home, args, 1, &runs);
    }
    daemon.signal("KILL");
    eventually("it to be dead", || run(&home, &["status"]).0 == 69);
    refused(&home, &["cluster", "init"], 64, "no cluster is configured: name its servers in [cluster]");
    refused(&home, &["cluster", "leave"], 1, "is of no cluster: there is nothing to leave");

    let server = Server::with("jetstream: { store_dir: \"STORE\", max_file: 2G, sync_interval: always }\n");
    let config = fs::read_to_string(home.join("gateway.toml")).unwrap_or_default();
    let cluster = format!(
        "{config}\n[cluster]\nname = \"test\"\nnode = \"a\"\nservers = [\"{}\"]\nreplicas = 1\n\
         durability = \"unchecked\"\n",
        server.url()
    );
    fs::write(home.join("gateway.toml"), cluster).unwrap();
    refused(&home, &["cluster", "rebuild"], 1, "is of no cluster: run it on a node of the cluster");
    let begun = json(&home, &["cluster", "init", "--json"]);
    assert_eq!(
        (&begun["name"], &begun["generation"], &begun["sessions"]),
        (&"test".into(), &1.into(), &1.into())
    );
    assert_eq!(begun["cluster"].as_str().map(str::len), Some(32));
    refused(&home, &["cluster", "init"], 1, "the store of this home is of it: start the daemon");

    refused(&home, &["cluster", "rebuild"], 2, "The log on the servers has no record that this store lacks.");
    let rebuilt = json(&home, &["cluster", "rebuild", "--yes", "--json"]);
    assert_eq!((&rebuilt["cluster"], &rebuilt["generation"]), (&begun["cluster"], &2.into()));
    assert_eq!(rebuilt["lost_records"], 0);
    assert!(Path::new(rebuilt["kept"].as_str().unwrap()).is_file(), "{rebuilt}");

    refused(&home, &["cluster", "leave"], 2, "Give --yes to leave it");
    let (status, told, said) = run(&home, &["cluster", "leave", "--yes"]);
    assert!(status == 0 && told.contains("goes on alone: remove [cluster]"), "{told}{said}");
    fs::write(home.join("gateway.toml"), config).unwrap();
    let daemon = daemon.restart_stopped();
    assert_eq!(daemon.rows_of(&["sessions"])[0]["prompts"], 1);
}

#[test]
fn a_store_that_the_log_contradicts_begins_no_new_log_unless_that_is_wanted() {
    needs!("nats-server");
    let (_server, config) = server();
    let mut daemon = Daemon::at(begun(&config), &config, &[]);
    let mut client = Client::connect(daemon.address);
    for nth in 0..3 {
        assert_eq!(client.chat("ada", &format!("hello {nth}")).events().last(), Some(&"done"));
    }
    assert!(daemon.terminate().success());
    let home = daemon.home().to_owned();
    let rebuild = ["cluster", "rebuild", "--yes"];
    refused(&home, &rebuild[..2], 2, "The log on the servers has no record that this store lacks.");

    let db = Connection::open(home.join("clawmux.db")).unwrap();
    let applied: i64 = db.query_row("SELECT applied FROM meta", [], |row| row.get(0)).unwrap();
    for (at, words) in [
        (1000, "says that it has record 1000, and the log ends at record"),
        (applied / 2, "does not add up to what the log has up to there"),
    ] {
        db.execute("UPDATE meta SET applied = ?", [at]).unwrap();
        refused(&home, &rebuild, 1, words);
        refused(&home, &rebuild, 1, "move ");
    }
    let forced = ["cluster", "rebuild", "--force"];
    refused(&home, &forced, 2, "The log contradicts this store: ");
    let rebuilt = json(&home, &[&forced[..], &["--yes", "--json"]].concat());
    assert_eq!(rebuilt["lost_records"], applied - applied / 2);
}

#[test]
fn a_monitoring_port_that_is_silent_is_told_where_a_cluster_begins() {
    needs!("nats-server");
    let (_server, config) = server();
    let two = config.replace("monitor = [", "monitor = [\"http://127.0.0.1:9\", ");
    let home = home();
    fs::write(home.path().join("gateway.toml"), two).unwrap();
    let (status, told, said) = run(home.path(), &["cluster", "init"]);
    assert!(status == 0 && told.contains("begins with the store of this home"), "{status} {told}{said}");
    let words = ["warning: it is not known of all NATS servers whether they sync", "http://127.0.0.1:9: "];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}
