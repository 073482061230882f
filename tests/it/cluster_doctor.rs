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
    of_part("cluster", doctor)
}

fn of_part(part: &str, doctor: &mut Command) -> Vec<Value> {
    let (_, told, said) = output(doctor);
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}{said}"));
    let findings = told["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["part"] == part).cloned().collect()
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

#[test]
fn a_damaged_store_of_a_node_is_to_be_taken_from_the_log() {
    needs!("nats-server");
    let (_server, config) = server();
    let mut daemon = Daemon::at(begun(&config), &config, &[]);
    assert_eq!(Client::connect(daemon.address).chat("ada", "hello").events().last(), Some(&"done"));
    assert!(daemon.terminate().success());
    let (home, store) = (daemon.home().to_owned(), daemon.home().join("clawmux.db"));
    let from_the_log =
        format!("move {}* away, and start it: it takes the store from the log", store.display());
    let finds = |words: &str| {
        let found = of_part("store", command(&home).args(["doctor", "--json"]));
        says(&found, "error", words, &from_the_log);
    };
    let verify = |words: &str| {
        let (status, told, said) = output(command(&home).args(["cluster", "verify"]));
        assert!(status == 1 && said.contains(words), "{words}: {status} {told}{said}");
    };
    let kept = fs::read(&store).unwrap();
    for (sql, why) in [
        ("DELETE FROM meta", "it is empty"),
        ("UPDATE meta SET cluster = 'x'", "a value of it can't be read"),
        ("DROP TABLE meta", "no such table: meta"),
    ] {
        fs::write(&store, &kept).unwrap();
        rusqlite::Connection::open(&store).unwrap().execute_batch(sql).unwrap();
        finds(&format!("its table `meta` is damaged, {why}"));
        verify("its table `meta` is damaged");
    }
    fs::write(&store, &kept[..kept.len() / 2]).unwrap();
    finds("database disk image is malformed");
    fs::write(&store, "").unwrap();
    verify("or its file is empty. Start the daemon, which takes its store from the log");
}
