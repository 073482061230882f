//! `clawmux cluster init`, `rebuild`, `leave`: on a home without a daemon, and on a real NATS server.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::bus::nats::Server;
use crate::support::daemon::{Daemon, command, output};
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
