//! A client of OpenClaw's protocol.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::client::Client;

/// Opens an OpenClaw connection of this protocol number and takes hello-ok.
pub fn connect(address: SocketAddr, protocol: u64) -> Client {
    let mut client = Client::open(address, "/");
    assert_eq!(client.receive()["event"], "connect.challenge");
    let about = json!({ "id": "test", "version": "1", "platform": "linux", "mode": "ui" });
    let hello = call(
        &mut client,
        "connect",
        json!({ "minProtocol": protocol, "maxProtocol": protocol, "client": about }),
    );
    assert_eq!(hello["protocol"], protocol, "{hello}");
    client
}

/// A request and the payload of its answer; the method is its id.
pub fn call(client: &mut Client, method: &str, params: Value) -> Value {
    client.send_text(&json!({ "type": "req", "id": method, "method": method, "params": params }).to_string());
    let answer = client.reply(method);
    assert_eq!(answer["ok"], true, "{method}: {answer}");
    answer["payload"].clone()
}
