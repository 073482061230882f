//! A clawmux that was built without NATS: `[bus]` has no effect, and that is said.

use crate::support::client::Client;
use crate::support::daemon::Daemon;

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
