//! The story told in a cluster, by clients that are never on the daemon that has their session.

use serde_json::json;

use super::{Exoclaw, OpenClaw, Stage, WundrVoice, Xeno, tell};
use crate::bus::nats::Server;
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, home, output};
use crate::support::tools::needs;

/// How many daemons there are.
const DAEMONS: usize = 3;

/// Some daemons on one server.
struct Elsewhere {
    daemons: Vec<Daemon>,
    _server: Server,
}

impl Elsewhere {
    /// The daemon that has the session, once there is one.
    fn owner(&self) -> Option<usize> {
        let list = Client::connect(self.daemons[0].address).call("session.list", json!({}));
        let key = list["result"][0]["session"].as_str()?.to_owned();
        let slots = self.daemons[0].rows_of(&["cluster", "slots", "--session", &key]);
        let owner = slots[0]["owner"].as_str()?.strip_prefix("n")?.parse();
        Some(owner.unwrap_or_else(|_| panic!("{slots:?}")))
    }
}

impl Stage for Elsewhere {
    fn begin() -> Self {
        let server = Server::with("jetstream: { store_dir: \"STORE\", max_mem: 64M, max_file: 2G }\n");
        let config = |node: usize| {
            format!(
                "[cluster]\nnode = \"n{node}\"\nservers = [{:?}]\nreplicas = 1\nlease_ms = 1000\n\
                 durability = \"unchecked\"\n",
                server.url()
            )
        };
        let first = home();
        std::fs::write(first.path().join("gateway.toml"), config(0)).unwrap();
        let (code, stdout, stderr) = output(command(first.path()).args(["cluster", "init"]));
        assert_eq!(code, 0, "{stdout}{stderr}");
        let others = std::iter::repeat_with(home);
        let homes = std::iter::once(first).chain(others).take(DAEMONS).enumerate();
        let daemons = homes.map(|(node, home)| Daemon::at(home, &config(node), &[])).collect();
        Self { daemons, _server: server }
    }

    fn door(&self) -> &Daemon {
        &self.daemons[self.owner().map_or(0, |owner| (owner + 1) % DAEMONS)]
    }

    fn crash(mut self) -> Self {
        let owner = self.owner().expect("there is a session");
        let daemon = self.daemons.remove(owner).kill_and_restart();
        self.daemons.insert(owner, daemon);
        self
    }
}

#[test]
fn in_exoclaw() {
    needs!("nats-server");
    tell::<Exoclaw, Elsewhere>();
}

#[test]
fn in_openclaw_3() {
    needs!("nats-server");
    tell::<OpenClaw<3>, Elsewhere>();
}

#[test]
fn in_openclaw_4() {
    needs!("nats-server");
    tell::<OpenClaw<4>, Elsewhere>();
}

#[test]
fn in_wundr() {
    needs!("nats-server");
    tell::<WundrVoice, Elsewhere>();
}

#[test]
fn in_xeno() {
    needs!("nats-server");
    tell::<Xeno, Elsewhere>();
}
