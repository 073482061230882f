//! `clawmux doctor` on a node of a cluster whose daemon is stopped.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::bus::nats::Server;
use crate::cluster::{begun, server};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, home, output};
use crate::support::eventually;
use crate::support::tools::needs;

/// What it says of the cluster.
fn findings(home: &Path) -> Vec<Value> {
    of(command(home).args(["doctor", "--json"]))
}

fn of(doctor: &mut Command) -> Vec<Value> {
    let (_, told, said) = output(doctor);
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}{said}"));
    let findings = told["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["part"] == "cluster").cloned().collect()
}

/// That it says so, in this state; where that is not "ok" with what to do.
fn says(findings: &[Value], state: &str, words: &str, advice: &str) {
    let found = findings.iter().find(|finding| finding["what"].as_str().unwrap().contains(words));
    let found = found.unwrap_or_else(|| panic!("nothing says {words}: {findings:#?}"));
    assert_eq!(found["state"], state, "{found}");
    assert!(found["advice"].as_str().unwrap().contains(advice), "{found}");
    assert!(state == "ok" || found["advice"] != "", "{found}");
}

#[test]
fn a_stopped_node_is_told_how_its_cluster_is() {
    needs!("nats-server");
    let (mut server, config) = server();
    let empty = home();
    fs::write(empty.path().join("gateway.toml"), &config).unwrap();
    let told = findings(empty.path());
    says(&told, "ok", "answers: NATS server", "");
    says(&told, "ok", "the servers sync what they acknowledge", "");
    says(&told, "error", "there is no cluster \"clawmux\"", "clawmux cluster init");
    assert!(!empty.path().join("clawmux.db.lock").exists(), "nothing is made");

    let mut daemon = Daemon::at(begun(&config), &config, &[]);
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "hello").events().last(), Some(&"done"));
    let of_daemon = of(command(daemon.home()).args(["doctor", "--json"]));
    assert_eq!(of_daemon, Vec::<Value>::new(), "the daemon says it itself");
    let told = findings(empty.path());
    says(&told, "error", "another daemon is there as node a", "cluster.node");
    says(&told, "ok", "is empty: the daemon takes the base of the cluster", "");
    fs::write(empty.path().join("gateway.toml"), config.replace("node = \"a\"", "node = \"b\"")).unwrap();
    says(&findings(empty.path()), "ok", "daemons of it that are heard: a", "");

    assert!(daemon.terminate().success());
    let home = daemon.home().to_owned();
    let told = findings(&home);
    says(&told, "ok", "the cluster \"clawmux\" is there (generation 1): its log has", "");
    says(&told, "ok", "and has all its records", "");
    eventually("nobody is heard", || {
        findings(&home).iter().any(|finding| finding["what"] == "no other daemon of it is heard")
    });
    assert!(told.iter().all(|finding| finding["state"] == "ok"), "{told:#?}");

    // What other daemons wrote meanwhile.
    server.publish_raw("clawmux.log.t.jobs", b"NATS/1.0\r\n\r\n", b"{}");
    says(&findings(&home), "ok", "and is 1 record behind", "");
    let db = rusqlite::Connection::open(home.join("clawmux.db")).unwrap();
    db.execute("UPDATE meta SET applied = 100000", []).unwrap();
    drop(db);
    says(&findings(&home), "error", "the servers have lost records", "does not start");

    let offline = of(command(&home).args(["doctor", "--json", "--offline"]));
    assert_eq!(offline, Vec::<Value>::new());
    server.kill();
    let told = findings(&home);
    says(&told, "error", "can't be reached", "cluster.servers");
    assert_eq!(told.len(), 1, "{told:#?}");
}

#[test]
fn servers_that_do_not_sync_and_one_of_several_that_is_away_are_told() {
    needs!("nats-server");
    let (server, config) = server();
    let daemon = begun(&config);
    let away = format!("servers = [{:?}, \"nats://127.0.0.1:9\"]", server.url());
    let two = config.replace(&format!("servers = [{:?}]", server.url()), &away);
    fs::write(daemon.path().join("gateway.toml"), two).unwrap();
    let told = findings(daemon.path());
    says(&told, "warning", "127.0.0.1:9 can't be reached", "takes another one meanwhile");
    says(&told, "ok", "on one server", "");

    let monitor = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let careless = Server::with(&format!(
        "http: \"127.0.0.1:{monitor}\"\njetstream: {{ store_dir: \"STORE\", max_mem: 64M, max_file: 2G }}\n"
    ));
    let config = format!(
        "[cluster]\nnode = \"a\"\nservers = [{:?}]\nreplicas = 1\nmonitor = [\"http://127.0.0.1:{monitor}\"]\n",
        careless.url()
    );
    fs::write(daemon.path().join("gateway.toml"), config).unwrap();
    let told = findings(daemon.path());
    says(&told, "error", "acknowledges before it syncs", "does not start");
    says(&told, "error", "and the store of this home is of the cluster", "clawmux cluster rebuild");
}
