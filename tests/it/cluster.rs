//! A cluster of one daemon on a real NATS server: what a person sees of it while things fail.

use std::net::TcpListener;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::bus::nats::Server;
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, home, output};
use crate::support::eventually;
use crate::support::running::Running;
use crate::support::tools::needs;

/// A server that syncs what it acknowledges, and the configuration of a daemon that is a cluster on it.
pub(crate) fn server() -> (Server, String) {
    let monitor = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::with(&format!(
        "http: \"127.0.0.1:{monitor}\"\n\
         jetstream: {{ store_dir: \"STORE\", max_mem: 64M, max_file: 2G, sync_interval: always }}\n"
    ));
    let config = format!(
        "[cluster]\nnode = \"a\"\nservers = [{:?}]\nreplicas = 1\nmonitor = [\"http://127.0.0.1:{monitor}\"]\n\
         lease_ms = 1000\n",
        server.url()
    );
    (server, config)
}

/// A home with which the cluster has begun.
pub(crate) fn begun(config: &str) -> tempfile::TempDir {
    let home = home();
    std::fs::write(home.path().join("gateway.toml"), config).unwrap();
    let (code, stdout, stderr) = output(command(home.path()).args(["cluster", "init"]));
    assert_eq!(code, 0, "{stdout}{stderr}");
    home
}

pub(crate) fn status(daemon: &Daemon) -> Value {
    let (_, stdout, stderr) = daemon.run(&["cluster", "status", "--json"]);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

/// Whether new work is taken, and else why not.
fn readiness(daemon: &Daemon) -> (u16, Value) {
    let (code, body) = daemon.get("/readyz");
    (code, serde_json::from_str(&body).unwrap())
}

#[test]
fn a_daemon_in_a_cluster_answers_says_how_that_is_and_goes_on_after_a_kill() {
    needs!("nats-server");
    let (_server, config) = server();
    let daemon = Daemon::at(begun(&config), &config, &[]);
    eventually("every slot is owned", || status(&daemon)["nodes"][0]["slots"] == 256);
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "hello").events().last(), Some(&"done"));

    // The log is looked at once a second.
    let cluster = eventually("what was written is seen in the log", || {
        let cluster = status(&daemon);
        (cluster["log"]["last"].as_u64() > Some(0)).then_some(cluster)
    });
    assert_eq!((&cluster["state"], &cluster["fault"]), (&json!("live"), &Value::Null), "{cluster}");
    assert_eq!(cluster["slots_unowned"], 0, "{cluster}");
    let nodes = daemon.rows_of(&["cluster", "nodes"]);
    assert_eq!((&nodes[0]["node"], &nodes[0]["state"]), (&json!("a"), &json!("live")), "{nodes:?}");
    let slots = daemon.rows_of(&["cluster", "slots"]);
    assert!(slots.len() == 256 && slots.iter().all(|slot| slot["owner"] == "a"), "{slots:?}");
    let one = daemon.rows_of(&["cluster", "slots", "--session", "main:websocket:ada:main"]);
    assert_eq!(one.len(), 1, "{one:?}");
    let short = daemon.rows_of(&["cluster", "slots", "--session", "main:websocket:ada"]);
    assert_eq!(short, one, "as with other commands, a beginning that only one session has is enough");
    assert!(daemon.stdout_of(&["status"]).contains("as its node a: live, 256 of 256 slots"));
    assert!(daemon.stdout_of(&["doctor"]).contains("node a of the cluster clawmux, live"));
    assert!(daemon.get("/metrics").1.contains("clawmux_cluster_slots 256\n"));
    let (code, _, stderr) = daemon.run(&["cluster", "handover", "b"]);
    assert!(code == 1 && stderr.contains("there is no node b in the cluster"), "{code} {stderr}");

    let daemon = daemon.kill_and_restart();
    assert_eq!(readiness(&daemon).0, 200);
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "again").events().last(), Some(&"done"));
    let shown = daemon.stdout_of(&["session", "show", "main:websocket:ada:main"]);
    assert!(shown.contains("hello") && shown.contains("again"), "{shown}");

    // Nobody else is there to take what it has.
    let (code, _, stderr) = daemon.run(&["cluster", "handover", "a"]);
    assert!(code == 1 && stderr.contains("no other node is there"), "{code} {stderr}");
    let daemon = daemon.restart();
    eventually("every slot is owned again", || status(&daemon)["nodes"][0]["slots"] == 256);
}

#[test]
fn without_its_servers_a_daemon_refuses_prompts_and_goes_on_by_itself() {
    needs!("nats-server");
    let (mut server, config) = server();
    let daemon = Daemon::at(begun(&config), &config, &[]);
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "hello").events().last(), Some(&"done"));

    server.kill();
    let reason = eventually("it is no longer ready", || {
        let (code, body) = readiness(&daemon);
        (code == 503).then(|| body["reason"].clone())
    });
    assert!(reason.as_str().unwrap().starts_with("the log of the cluster can't be reached"), "{reason}");
    let (code, stdout, _) = daemon.run(&["cluster", "status"]);
    assert!(
        code == 1 && stdout.contains("nothing can be written: the log of the cluster"),
        "{code} {stdout}"
    );
    for account in ["ada", "nobody-before"] {
        let refused = client.prompt(account, "are you there?");
        let refused = client.reply(&refused);
        assert!(refused.to_string().contains("the log of the cluster can't be reached"), "{refused}");
    }
    // What was said is still there to be read.
    assert!(daemon.stdout_of(&["session", "show", "main:websocket:ada:main"]).contains("hello"));
    assert!(daemon.stdout_of(&["doctor"]).contains("`clawmux cluster status` says more"));

    server.start_again();
    eventually("it is ready again", || readiness(&daemon).0 == 200);
    assert_eq!(client.chat("ada", "and now?").events().last(), Some(&"done"));
}

#[test]
fn a_daemon_that_can_not_join_says_why_and_what_to_do() {
    needs!("nats-server");
    let (_server, config) = server();
    let home = home();
    std::fs::write(home.path().join("gateway.toml"), &config).unwrap();
    let (code, _, stderr) = output(command(home.path()).args(["serve", "--listen", "127.0.0.1:0"]));
    assert!(code == 1 && stderr.contains("run `clawmux cluster init`"), "{code} {stderr}");

    // A server that acknowledges what it has not synced is refused.
    let monitor = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let careless = Server::with(&format!(
        "http: \"127.0.0.1:{monitor}\"\njetstream: {{ store_dir: \"STORE\", max_mem: 64M, max_file: 2G }}\n"
    ));
    let config = format!(
        "[cluster]\nnode = \"a\"\nservers = [{:?}]\nreplicas = 1\nmonitor = [\"http://127.0.0.1:{monitor}\"]\n",
        careless.url()
    );
    std::fs::write(home.path().join("gateway.toml"), config).unwrap();
    let (code, _, stderr) = output(command(home.path()).args(["cluster", "init"]));
    assert!(code == 1 && stderr.contains("sync_interval: always"), "{code} {stderr}");
}

#[test]
fn a_second_daemon_of_the_same_name_is_refused_and_the_first_goes_on() {
    needs!("nats-server");
    let (_server, config) = server();
    let daemon = Daemon::at(begun(&config), &config, &[]);
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", "/slow 4");
    let other = home();
    std::fs::write(other.path().join("gateway.toml"), &config).unwrap();
    let (code, _, stderr) = output(command(other.path()).args(["serve", "--listen", "127.0.0.1:0"]));
    assert!(code != 0 && stderr.contains("another daemon is there as node a"), "{code} {stderr}");
    assert!(stderr.contains("cluster.node"), "{stderr}");
    let stream = client.stream(&prompt);
    let restarted = stream.events().contains(&"restart");
    assert!(stream.lasting_text().ends_with("1 2 3 4 done.") && !restarted, "{:?}", stream.0);
}

#[test]
fn a_record_of_a_later_version_holds_the_store_up_and_is_told_once() {
    needs!("nats-server");
    let (server, config) = server();
    let daemon = Daemon::at(begun(&config), &config, &[]);
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "hello").events().last(), Some(&"done"));
    let later = br#"{"v":900,"token":1,"record":1,"kind":"later","body":{}}"#;
    for number in 0..20 {
        server.publish_raw(&format!("clawmux.log.s.0.z{number}"), b"NATS/1.0\r\n\r\n", later);
    }
    let reason = eventually("it is no longer ready", || {
        let (code, body) = readiness(&daemon);
        (code == 503).then(|| body["reason"].to_string())
    });
    assert!(reason.contains("does not follow the log of the cluster") && reason.contains("900"), "{reason}");
    let told = daemon.log().matches("the store can't apply the log").count();
    assert_eq!(told, 1, "{}", daemon.log());
    let metrics = daemon.get("/metrics").1;
    let followed_anew = metrics.lines().find(|line| line.starts_with("clawmux_cluster_followed_anew"));
    let count: f64 = followed_anew.unwrap().split(' ').next_back().unwrap().parse().unwrap();
    assert!(count < 100.0, "{followed_anew:?}: each record that fails begins it once more");
}

#[test]
fn a_chat_without_a_daemon_says_that_it_joins_the_cluster() {
    needs!("nats-server");
    let (mut server, config) = server();
    let home = begun(&config);
    let joins = "the one of this chat joins the cluster \"clawmux\" as node a";
    let (code, told, said) = output(command(home.path()).args(["chat", "hi"]));
    assert!(code == 0 && said.contains(joins) && !said.contains("still joining"), "{code} {told}{said}");

    server.kill();
    let mut chat = Running::start(command(home.path()).args(["chat", "hi"]).stderr(Stdio::piped()));
    let lines = chat.stderr_lines();
    for words in [joins, "still joining the cluster \"clawmux\" after 5 s, over nats://"] {
        assert!(lines.iter().any(|line| line.contains(words)), "{words}");
    }
}
