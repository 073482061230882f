//! The addresses to listen on: whether they are free, who has them where not, and whether a daemon that
//! runs answers there.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clawmux_actors::host::socket_owner::Means;
use clawmux_actors::listener;

use super::{Findings, LOG};

/// How long a connection may take, and each piece of an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where a daemon would listen that does not run.
pub(super) fn free(addresses: &[SocketAddr], found: &mut Findings) {
    for address in addresses.iter().filter(|address| address.port() != 0) {
        match listener::bind(&[*address]) {
            Ok(_) => found.fine("port", format!("{address} is free")),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let who =
                    holder(address.port()).unwrap_or_else(|| "a process that can't be looked at".into());
                found.error(
                    "port",
                    format!("{address} is taken by {who}: clawmux can't start there"),
                    "stop it, or set another address with gateway.listen or --listen",
                );
            }
            Err(error) => {
                let advice = "set another address with gateway.listen or --listen";
                found.error("port", format!("can't listen on {error}"), advice);
            }
        }
    }
    exposed(addresses, found);
}

/// Where a daemon listens that runs.
pub(super) fn answering(addresses: &[SocketAddr], found: &mut Findings) {
    for address in addresses {
        match readiness(*address) {
            Ok(text) if text.starts_with("HTTP/1.1 200") => {
                found.fine("port", format!("{address} answers and takes work"));
            }
            Ok(text) => {
                let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
                let what = format!("{address} answers and takes no work: {body}");
                found.warning("port", what, LOG);
            }
            Err(error) => found.error(
                "port",
                format!("{address} does not answer: {error}"),
                format!("see whether a firewall is in the way; {LOG}"),
            ),
        }
    }
    exposed(addresses, found);
}

/// Whether it can be told who comes over loopback, which decides who is let in there while no credential
/// is configured.
pub(super) fn neighbours(means: Option<Means>, addresses: &[SocketAddr], found: &mut Findings) {
    if !addresses.iter().any(|address| address.ip().to_canonical().is_loopback()) {
        return;
    }
    match means {
        Some(means) => found.fine(
            "port",
            format!(
                "over loopback, only programs of this user and of root get in without a credential ({} says whose they are)",
                match means {
                    Means::SockDiag => "sock_diag",
                    Means::Tables => "/proc/net/tcp",
                }
            ),
        ),
        None => found.warning(
            "port",
            "the system does not say whose programs connect over loopback (neither sock_diag nor /proc/net/tcp does): \
             while no credential is configured, programs of every user of this host get in",
            "clawmux token create, or auth.token_file: with a credential nobody comes in without one; in a \
             systemd unit add AF_NETLINK to RestrictAddressFamilies",
        ),
    }
}

/// Off loopback everything can be read on the way.
fn exposed(addresses: &[SocketAddr], found: &mut Findings) {
    for address in addresses.iter().filter(|address| !address.ip().to_canonical().is_loopback()) {
        found.warning(
            "port",
            format!(
                "{address} can be reached from elsewhere, by plain HTTP: credentials can be read on the way"
            ),
            "put a proxy with TLS before it and listen on 127.0.0.1, or leave it to a network you trust",
        );
    }
}

fn readiness(address: SocketAddr) -> io::Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    write!(socket, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    socket.take(4096).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The process that listens on this port, as far as this user may know it.
fn holder(port: u16) -> Option<String> {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets: Vec<String> = tables
        .iter()
        .flat_map(|table| listening(table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let is_it = |file: fs::DirEntry| {
            fs::read_link(file.path())
                .is_ok_and(|link| sockets.iter().any(|socket| link.as_os_str() == &**socket))
        };
        if files.flatten().any(is_it) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("process {pid} ({})", name.trim()));
        }
    }
    None
}

/// The sockets in a table of the kernel that listen on this port.
fn listening(table: &str, port: u16) -> impl Iterator<Item = u64> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port) && *fields.get(3)? == LISTEN;
        is_it.then(|| fields.get(9)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_actors::store::Severity;

    #[test]
    fn the_process_that_has_a_port_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let mut found = Findings::default();
        free(&[address], &mut found);
        let told = &found.0[0];
        assert_eq!(told.severity, Severity::Error);
        assert!(told.what.contains(&format!("process {}", std::process::id())), "{}", told.what);
        drop(taken);
        let mut found = Findings::default();
        free(&[address, ([0, 0, 0, 0], 0).into()], &mut found);
        assert_eq!(found.0[0].severity, Severity::Fine, "{}", found.0[0].what);
        assert!(found.0[1].what.contains("plain HTTP"), "{}", found.0[1].what);
    }

    #[test]
    fn it_is_told_who_is_let_in_over_loopback() {
        let (inside, outside) = (([127, 0, 0, 1], 1).into(), ([0, 0, 0, 0], 1).into());
        for (means, severity) in [
            (Some(Means::SockDiag), Severity::Fine),
            (Some(Means::Tables), Severity::Fine),
            (None, Severity::Warning),
        ] {
            let mut found = Findings::default();
            neighbours(means, &[outside, inside], &mut found);
            assert_eq!(found.0[0].severity, severity, "{}", found.0[0].what);
        }
        let mut found = Findings::default();
        neighbours(None, &[outside], &mut found);
        assert!(found.0.is_empty());
    }

    #[test]
    fn who_does_not_answer_is_told() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut found = Findings::default();
        answering(&[silent.local_addr().unwrap()], &mut found);
        assert_eq!(found.0[0].severity, Severity::Error, "{}", found.0[0].what);
        assert_eq!(listening("", 1).count() + listening("x\ny z\n 1 :ZZ 0 0A", 1).count(), 0);
    }
}
