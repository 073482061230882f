//! Power cuts of a cluster: what a client is told was accepted is on the disks of a majority of the servers by then.
//!
//! One server may lose its disk with the power; what a majority has synced is never lost by that. So each server's
//! syncs are looked at: at the moment a prompt is acknowledged, two of three have synced it. The same servers without
//! `sync_interval: always` fail it, which is why a daemon does not join them.

mod syncs;

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::bus::nats::Server;
use crate::cluster::status;
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, home, output};
use crate::support::eventually;
use crate::support::tools::needs;
use syncs::Syncs;

const PROMPTS: usize = 10;

/// How many servers had synced each prompt when it was acknowledged.
fn synced_when_acknowledged(durability: &str, does_sync: bool) -> Vec<usize> {
    let (servers, monitors) = Server::cluster_run_by(syncs::traced, does_sync);
    let urls = servers.each_ref().map(Server::url);
    let config = format!(
        "[cluster]\nnode = \"a\"\nservers = {urls:?}\nmonitor = {monitors:?}\ndurability = {durability:?}\n"
    );
    let home = home();
    std::fs::write(home.path().join("gateway.toml"), &config).unwrap();
    eventually("the servers to find each other and the cluster to begin", || {
        let (code, ..) = output(command(home.path()).args(["cluster", "init"]));
        code == 0
    });
    let daemon = Daemon::at(home, &config, &[]);
    eventually("every slot is owned", || status(&daemon)["nodes"][0]["slots"] == 256);
    let mut client = Client::connect(daemon.address);
    let content = |nth: usize| format!("the walrus of prompt {nth} sleeps");
    let acknowledged: Vec<Duration> = (0..PROMPTS)
        .map(|nth| {
            let account = format!("ada{nth}");
            let asked = json!({
                "channel": "websocket", "account": account, "content": content(nth), "idempotency_key": account,
            });
            client.request("chat.send", asked);
            let accepted = client.receive();
            let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(accepted["event"], "accepted", "{accepted}");
            while client.receive()["event"] != "done" {}
            at
        })
        .collect();
    drop(daemon);
    let traces = servers.map(|server| Syncs::read(&server.folder()));
    let count = |(nth, at): (usize, &Duration)| {
        let synced = traces.iter().filter_map(|trace| trace.synced(&content(nth)));
        synced.filter(|synced| synced <= at).count()
    };
    acknowledged.iter().enumerate().map(count).collect()
}

#[test]
fn what_is_acknowledged_was_synced_by_two_of_three_servers() {
    needs!("nats-server", "strace");
    let synced = synced_when_acknowledged("required", true);
    assert!(synced.iter().all(|servers| *servers >= 2), "{synced:?}");
}

#[test]
fn servers_that_do_not_sync_fail_that() {
    needs!("nats-server", "strace");
    let synced = synced_when_acknowledged("unchecked", false);
    assert!(synced.iter().all(|servers| *servers < 2), "{synced:?}");
}
