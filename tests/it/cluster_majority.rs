//! A cluster whose servers are lost one after the other: who operates it is told what is so, and in time.

use crate::bus::nats::Server;
use crate::cluster::status;
use crate::support::daemon::{Daemon, command, home, output};
use crate::support::eventually;
use crate::support::tools::needs;

#[test]
fn servers_that_are_lost_are_named_and_without_most_of_them_nothing_is_called_done() {
    needs!("nats-server");
    let (servers, monitors) = Server::syncing_cluster();
    let urls = servers.each_ref().map(Server::url);
    let config = |node: &str| {
        format!("[cluster]\nnode = {node:?}\nservers = {urls:?}\nmonitor = {monitors:?}\nlease_ms = 1000\n")
    };
    let home_of_a = home();
    std::fs::write(home_of_a.path().join("gateway.toml"), config("a")).unwrap();
    eventually("the servers to find each other and the cluster to begin", || {
        output(command(home_of_a.path()).args(["cluster", "init"])).0 == 0
    });
    let a = Daemon::at(home_of_a, &config("a"), &[]);
    let b = Daemon::at(home(), &config("b"), &[]);
    eventually("each owns its share", || {
        let nodes = status(&a)["nodes"].clone();
        [0, 1].iter().all(|node| nodes[*node]["slots"].as_u64() > Some(64))
    });

    // A new leader has never heard the one before it.
    let name_of = |server: &Server| format!("n{}", server.route());
    let leader = eventually("the leader of the log to be known", || {
        status(&a)["log"]["leader"].as_str().map(str::to_owned)
    });
    let (led, mut rest): (Vec<Server>, Vec<Server>) =
        servers.into_iter().partition(|server| name_of(server) == leader);
    drop(led);
    eventually("the server that is away to be named", || {
        let told = a.stdout_of(&["status"]);
        told.contains(&format!("NATS servers that have the log of the cluster are away: {leader}"))
            // Two of three are enough.
            && told.contains("new prompts  are accepted")
    });

    let leader = status(&a)["log"]["leader"].as_str().map(str::to_owned);
    rest.retain(|server| Some(name_of(server)) == leader);
    eventually("both to take no prompts", || [&a, &b].iter().all(|daemon| daemon.get("/readyz").0 == 503));
    let told = a.stdout_of(&["status"]);
    assert!(told.contains("new prompts  are refused: the store can't be written"), "{told}");
    let (code, said, why) = b.run(&["cluster", "handover", "a"]);
    assert!(code == 1 && why.contains("the log of the cluster can't be"), "{code} {said}{why}");
    // Nobody can take them.
    let (code, said, why) = b.run(&["drain", "--timeout", "2"]);
    assert!(code == 1 && why.contains("slots to be taken over"), "{code} {said}{why}");
    b.stdout_of(&["drain", "--off"]);
}
