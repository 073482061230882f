//! `[cluster]`: several daemons that share one set of sessions.

use std::collections::BTreeSet;
use std::time::Duration;

use url::Url;

use super::credentials::Secrets;
use super::nats::{Reach, reach};
use super::section::{Report, Section};
use super::{Cluster, Durability};
use crate::cluster::node::{NODE_BYTES_MAX, NodeName};

/// The longest name of a cluster, in bytes.
const CLUSTER_BYTES_MAX: usize = 32;

/// What hosts are called that were given no name.
const NO_HOST: [&str; 2] = ["localhost", "localhost.localdomain"];

/// `host` is the name of this machine.
pub(super) fn cluster(
    mut s: Section,
    r: &mut Report,
    secrets: &mut Secrets<'_>,
    host: &str,
) -> Option<Cluster> {
    if !s.is_written() {
        return None;
    }
    let name = name(&mut s, r);
    let node = node(&mut s, r, host);
    let Reach { servers, credential, ca_file, client_certificate } = reach(&mut s, r, secrets);
    let replicas = replicas(&mut s, r);
    let lease_ms = s.integer(r, "lease_ms", 3000, 1000..=60_000);
    let max_log_bytes = Some(s.integer(r, "max_log_bytes", 0, 0..=1 << 50)).filter(|most| *most > 0);
    let partition_grace = s.millis(r, "partition_grace_ms", 30_000);
    let durabilities = [("required", Durability::Required), ("unchecked", Durability::Unchecked)];
    let durability = s.choice(r, "durability", Durability::Required, &durabilities);
    let monitor = monitor(&mut s, r, (replicas, durability));
    s.finish(r);
    Some(Cluster {
        name,
        node,
        servers,
        credential,
        ca_file,
        client_certificate,
        replicas,
        lease: Duration::from_millis(lease_ms),
        max_log_bytes,
        partition_grace,
        monitor,
        durability,
    })
}

fn name(s: &mut Section, r: &mut Report) -> String {
    let name = s.text(r, "name", "clawmux");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_name = (1..=CLUSTER_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    // Two of them come before the number of a generation.
    if !is_name || name.contains("--") {
        let why = format!(
            "cluster.name: expected 1 to {CLUSTER_BYTES_MAX} letters, digits, '-' and '_', not two '-' in a row"
        );
        r.complain(&s.origin("name"), format!("{why}, found {name:?}"));
    }
    name
}

/// The name that is written, else that of the machine, where it can be one that no other machine has.
fn node(s: &mut Section, r: &mut Report, host: &str) -> NodeName {
    const EXPECTED: &str = "letters, digits, '-', '_' and '.'";
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = |name: &str| (1..=NODE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    let written = s.text(r, "node", "");
    let why = match &*written {
        "" if NO_HOST.contains(&host) => {
            format!(
                "this machine is called {host}, as others are: give the node a name that no other one has"
            )
        }
        "" if !is_name(host) => format!(
            "the name of this machine, {host:?}, can't be that of a node: give it one of at most \
             {NODE_BYTES_MAX} {EXPECTED}"
        ),
        "" => return NodeName::new(host),
        written if is_name(written) => return NodeName::new(written),
        _ => format!("expected 1 to {NODE_BYTES_MAX} {EXPECTED}, found {written:?}"),
    };
    r.complain(&s.origin("node"), format!("cluster.node: {why}"));
    NodeName::new(written)
}

fn replicas(s: &mut Section, r: &mut Report) -> usize {
    let replicas = s.count(r, "replicas", 3, 1..=5);
    let at = s.origin("replicas");
    match replicas {
        1 => r.warn(&at, "cluster.replicas: 1 is for trying it out: without its one server nothing works"),
        2 | 4 => r.complain(
            &at,
            format!(
                "cluster.replicas: expected 3 or 5 (or 1, to try it out), found {replicas}: of {replicas} no \
                 more may be lost than of {}",
                replicas - 1
            ),
        ),
        _ => {}
    }
    replicas
}

fn monitor(s: &mut Section, r: &mut Report, (replicas, durability): (usize, Durability)) -> Vec<String> {
    let written = s.texts(r, "monitor", Some(&[])).unwrap_or_default();
    for port in &written {
        let url = Url::parse(&port.value).ok();
        if url.is_none_or(|url| url.scheme() != "http" || url.host_str().is_none()) {
            let why = format!(
                "cluster.monitor: expected http://HOST:PORT such as http://127.0.0.1:8222, found {:?}",
                port.value
            );
            r.complain(&port.origin, why);
        }
    }
    let monitor: Vec<String> = written.into_iter().map(|port| port.value).collect();
    let named = monitor.iter().collect::<BTreeSet<_>>().len();
    if durability == Durability::Required && named < replicas {
        let why = format!(
            "cluster.monitor: it names {named} servers of {replicas}: name the monitoring port of each, such \
             as http://127.0.0.1:8222 (`http: 8222` in its configuration), so that it is seen whether they \
             sync; or set durability = \"unchecked\" and risk losing what was acknowledged"
        );
        r.complain(&s.origin("monitor"), why);
    }
    if durability == Durability::Unchecked {
        let why = "cluster.durability: it is not looked whether the servers sync (`sync_interval: always`): \
                   a power cut may take what was acknowledged";
        r.warn(&s.origin("durability"), why);
    }
    monitor
}
