//! A daemon that is cut off from its cluster: whom it trusts.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::cluster::{begun, server};
use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::tools::needs;
use crate::support::wundr::Wundr;
use crate::support::{eventually, openclaw};

const TOKEN: &str = "the-shared-operator-token";

/// Whether an exoclaw client is let in that shows this token; else what it is told, and the code of the close.
fn comes(address: SocketAddr, token: &str) -> Result<(), (Value, String)> {
    let mut client = Client::open(address, "/ws");
    client.send_text(&json!({ "token": token }).to_string());
    let told = client.receive();
    if told["error"].is_null() { Ok(()) } else { Err((told, client.end())) }
}

#[test]
fn a_daemon_that_is_cut_off_from_its_cluster_trusts_no_credential_that_was_given_out() {
    needs!("nats-server");
    let (mut server, config) = server();
    let config = format!("{config}partition_grace_ms = 13000\n");
    let daemon = Daemon::at(begun(&config), &config, &[("CLAWMUX_TOKEN", TOKEN)]);
    let made = daemon.json_of(&["token", "create", "--yes", "--name", "bot", "--role", "user"]);
    let secret = made["secret"].as_str().unwrap().to_owned();
    let address = daemon.address;
    let (mut theirs, mut ours) =
        (Client::connect_with(address, &secret), Client::connect_with(address, TOKEN));
    let mut other = openclaw::connect_with(address, json!({ "auth": { "token": secret } }));

    server.kill();
    let (told, close) = eventually("nobody new is let in by it", || comes(address, &secret).err());
    assert_eq!((&told["error"], &*close), (&json!("unavailable"), "1013"), "{told}");
    assert_eq!(comes(address, "none").unwrap_err().0["error"], "auth_failed");
    let auth = json!({ "type": "api-key", "token": secret });
    let (as_wundr, close) = Wundr::try_connect(address, "/v2", auth, json!({})).err().expect("refused");
    assert_eq!((&as_wundr["code"], &*close), (&json!("UNAVAILABLE"), "1013"), "{as_wundr}");
    // Who was there may read on for a while.
    let history = json!({ "session": "main:websocket:ada:main" });
    theirs.call("chat.history", history.clone());

    assert_eq!(theirs.receive()["error"], "unavailable");
    assert_eq!(theirs.end(), "1013");
    assert_eq!(other.end(), "1013");
    ours.call("chat.history", history);
    assert_eq!(comes(address, TOKEN), Ok(()));

    server.start_again();
    eventually("it lets in again", || comes(address, &secret).is_ok());
}
