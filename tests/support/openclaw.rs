//! A client of OpenClaw's protocol.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::client::Client;

/// Opens a connection and takes its challenge; gives the answer to `connect` with these parameters
/// besides or instead of the usual ones.
pub fn try_connect(address: SocketAddr, more: Value) -> (Client, Value) {
    let mut client = Client::open(address, "/");
    assert_eq!(client.receive()["event"], "connect.challenge");
    let mut params = json!({
        "minProtocol": 3, "maxProtocol": 4,
        "client": { "id": "test", "version": "1", "platform": "linux", "mode": "ui" },
    });
    for (name, value) in more.as_object().expect("an object") {
        params[name] = value.clone();
    }
    let answer = ask(&mut client, "connect", "connect", params);
    (client, answer)
}

/// The same of who is let in.
pub fn connect_with(address: SocketAddr, more: Value) -> Client {
    let (client, hello) = try_connect(address, more);
    assert_eq!(hello["payload"]["type"], "hello-ok", "{hello}");
    client
}

/// The same with this protocol number alone.
pub fn connect(address: SocketAddr, protocol: u64) -> Client {
    let (client, hello) = try_connect(address, json!({ "minProtocol": protocol, "maxProtocol": protocol }));
    assert_eq!(hello["payload"]["protocol"], protocol, "{hello}");
    client
}

/// Sends a request.
pub fn request(client: &mut Client, id: &str, method: &str, params: Value) {
    client.send_text(&json!({ "type": "req", "id": id, "method": method, "params": params }).to_string());
}

/// A request and its answer.
pub fn ask(client: &mut Client, id: &str, method: &str, params: Value) -> Value {
    request(client, id, method, params);
    client.reply(id)
}

/// A request and the payload of its answer; the method is its id.
pub fn call(client: &mut Client, method: &str, params: Value) -> Value {
    let answer = ask(client, method, method, params);
    assert_eq!(answer["ok"], true, "{method}: {answer}");
    answer["payload"].clone()
}
