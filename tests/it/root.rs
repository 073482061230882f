//! What is spoken at `/`: OpenClaw's protocol, or Wundr's where that comes first.

use serde_json::json;

use crate::support::daemon::Daemon;
use crate::support::wundr::Wundr;

#[test]
fn the_first_frame_decides_what_is_spoken() {
    let daemon = Daemon::start();
    let key = json!({ "type": "api-key", "token": "none" });
    let mut client = Wundr::try_connect(daemon.address, "/", key, json!({})).expect("it is let in");
    assert_eq!(client.hello()["protocol"], 2, "{}", client.hello());
    assert_eq!(client.call("health.ping", json!({ "clientTimestamp": 1 }))["type"], "health.pong");

    let mut other = Wundr::open(daemon.address, "/");
    let challenge = other.event("connect.challenge");
    assert!(challenge["payload"]["nonce"].is_string(), "{challenge}");
    other.request_as(
        "1",
        "connect",
        json!({ "minProtocol": 3, "maxProtocol": 4, "client": { "id": "cli", "version": "1", "platform": "linux",
            "mode": "cli" } }),
    );
    assert_eq!(other.answer("1").expect("it is let in")["type"], "hello-ok");
    // Too late for another protocol.
    assert_eq!(other.refused("auth.connect", json!({}))["code"], "INVALID_REQUEST");
}
