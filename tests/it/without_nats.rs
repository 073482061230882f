//! A clawmux that was built without NATS: `[bus]` has no effect, `[cluster]` is refused, and both are said.

use crate::support::client::Client;
use crate::support::daemon::{Daemon, command, home, output};

#[test]
fn a_bus_that_was_left_out_is_named_and_all_else_works() {
    let daemon = Daemon::with("[bus]\n");
    let (status, stdout, stderr) = daemon.run(&["bus", "status"]);
    assert!(
        status == 1 && stdout.contains("this clawmux was built without NATS"),
        "{status} {stdout}{stderr}"
    );
    assert!(daemon.stdout_of(&["status"]).contains("was built without NATS"));
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("me", "hi").events().last(), Some(&"done"));
}

#[test]
fn a_cluster_that_can_not_be_joined_is_no_daemon_alone() {
    let home = home();
    let config = "[cluster]\nnode = \"a\"\nreplicas = 1\ndurability = \"unchecked\"\n";
    std::fs::write(home.path().join("gateway.toml"), config).unwrap();
    let (code, _, stderr) = output(command(home.path()).args(["serve", "--listen", "127.0.0.1:0"]));
    assert!(code == 1 && stderr.contains("this clawmux was built without NATS"), "{code} {stderr}");
    assert!(!home.path().join("clawmux.db").exists(), "nothing is written");
    let (code, _, stderr) = output(command(home.path()).args(["cluster", "verify"]));
    assert!(code == 1 && stderr.contains("this clawmux was built without NATS"), "{code} {stderr}");
    let (code, stdout, _) = output(command(home.path()).args(["doctor", "--offline"]));
    assert!(!stdout.contains("built without NATS"), "{code} {stdout}");
    let (code, stdout, _) = output(command(home.path()).arg("doctor"));
    assert!(
        code == 1 && stdout.contains("error    cluster this clawmux was built without NATS"),
        "{code} {stdout}"
    );
}
