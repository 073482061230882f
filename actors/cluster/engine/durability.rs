//! Whether an acknowledgement is a sync, as the monitoring ports of the servers say.
//!
//! A client can't see it: with the server's default a record is acknowledged when it is in the page caches of
//! a majority, and a power cut of all of them takes it. `GET /jsz` says `"sync_always": true` within `config`
//! where `sync_interval: always` is set, and leaves the field out where it is not. `server_id` tells servers
//! apart.
//!
//! A server that is silent is only named, as long as a majority of the replicas answers: a node must be able
//! to join while one server is down. The ports speak plain HTTP; one request, without anything kept open,
//! needs no client.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use crate::nats::Unusable;

/// How long a port may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The longest answer that is read, in bytes; 2 KB are usual.
const ANSWER_BYTES_MAX: u64 = 256 * 1024;

/// The most headers of an answer.
const HEADERS_MAX: usize = 64;

#[derive(Deserialize)]
struct Jetstream {
    #[serde(default)]
    server_id: String,
    config: Option<Config>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    sync_always: bool,
}

/// Asks these ports whether their servers sync before they acknowledge, `server` being the id of the one that
/// is connected. Says which are silent, as long as most are not.
///
/// # Errors
/// Where one does not, where too few are named, or where too few answer.
pub(super) async fn check(
    monitor: &[String],
    replicas: usize,
    server: &str,
) -> Result<Option<String>, Unusable> {
    let named: BTreeSet<&String> = monitor.iter().collect();
    if named.len() < replicas {
        return Err(Unusable::refused(format!(
            "cluster.monitor names {} servers, and there are {replicas} replicas: name the monitoring port \
             of each server, such as http://127.0.0.1:8222 (`http: 8222` in its configuration), or set \
             cluster.durability = \"unchecked\" and risk losing what was acknowledged",
            named.len()
        )));
    }
    let answers = join_all(named.iter().map(|port| ask(port))).await;
    let (mut ids, mut silent) = (BTreeSet::new(), Vec::new());
    for (port, answer) in named.into_iter().zip(answers) {
        match answer {
            Ok(Jetstream { config: None, .. }) => {
                return Err(Unusable::refused(format!(
                    "{port}: this NATS server has no JetStream: enable it there"
                )));
            }
            Ok(Jetstream { config: Some(Config { sync_always: false }), .. }) => {
                return Err(Unusable::refused(format!(
                    "{port}: this NATS server acknowledges before it syncs: set `sync_interval: always` in \
                     its jetstream section and restart it, or set cluster.durability = \"unchecked\" and \
                     risk losing what was acknowledged"
                )));
            }
            Ok(Jetstream { server_id, .. }) => drop(ids.insert(server_id)),
            Err(Failure::Wrong(why)) => {
                return Err(Unusable::refused(format!("cluster.monitor: {port}: {why}")));
            }
            Err(Failure::Silent(why)) => silent.push(format!("{port}: {why}")),
        }
    }
    let silent = silent.join("; ");
    if ids.len() * 2 <= replicas && !silent.is_empty() {
        return Err(Unusable::away(format!(
            "whether the NATS servers sync before they acknowledge is not known of a majority: {silent}"
        )));
    }
    if !silent.is_empty() {
        return Ok(Some(silent));
    }
    if ids.len() < replicas {
        return Err(Unusable::refused(
            "cluster.monitor names a server twice: name the monitoring port of each server".to_owned(),
        ));
    } else if !ids.contains(server) {
        return Err(Unusable::refused(
            "cluster.monitor does not name the server that is connected: name the port of each server"
                .to_owned(),
        ));
    }
    Ok(None)
}

/// Why a port did not say how its server is.
enum Failure {
    /// It can't be one of a NATS server.
    Wrong(String),
    /// It is away.
    Silent(String),
}

async fn ask(port: &str) -> Result<Jetstream, Failure> {
    let url = Url::parse(port).map_err(|error| Failure::Wrong(error.to_string()))?;
    let host = url.host_str().filter(|_| url.scheme() == "http");
    let (Some(host), Some(number)) = (host, url.port_or_known_default()) else {
        return Err(Failure::Wrong("it is no http:// URL, such as http://127.0.0.1:8222".to_owned()));
    };
    let path = format!("{}/jsz?config=true", url.path().trim_end_matches('/'));
    match timeout(ANSWER_MAX, get(host, number, &path)).await {
        Ok(Ok(answer)) => read(&answer).map_err(Failure::Wrong),
        Ok(Err(error)) => Err(Failure::Silent(error.to_string())),
        Err(_) => Err(Failure::Silent(format!("no answer within {} s", ANSWER_MAX.as_secs()))),
    }
}

/// The answer as it comes. HTTP/1.0 has no chunks, and ends with the connection.
async fn get(host: &str, port: u16, path: &str) -> std::io::Result<Vec<u8>> {
    let address = (host.trim_matches(['[', ']']), port);
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn read(answer: &[u8]) -> Result<Jetstream, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(answer).map_err(|error| format!("it does not speak HTTP: {error}"))?;
    let httparse::Status::Complete(bytes) = parsed else { return Err("its answer is cut off".to_owned()) };
    match head.code {
        Some(200) => serde_json::from_slice(&answer[bytes..])
            .map_err(|error| format!("it is not the monitoring port of a NATS server: {error}")),
        code => Err(format!("it is not the monitoring port of a NATS server: status {}", code.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_or_named() {
        let of = |answer: &str| read(answer.as_bytes());
        let syncs = |answer: &str| of(answer).unwrap().config.map(|config| config.sync_always);
        let head = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n";
        let with = |body: &str| format!("{head}{body}");
        assert_eq!(syncs(&with(r#"{"config":{"sync_interval":1,"sync_always":true}}"#)), Some(true));
        assert_eq!(syncs(&with(r#"{"config":{"sync_interval":120000000000}}"#)), Some(false));
        assert_eq!(syncs(&with(r#"{"disabled":true}"#)), None);
        for answer in [&with("<html>"), "HTTP/1.0 404 Not Found\r\n\r\n", "HTTP/1.0 200", "SSH-2.0-x\r\n", ""]
        {
            assert!(of(answer).is_err(), "{answer}");
        }
    }
}
