//! What the system says of a process.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// Resident memory, in bytes.
pub fn resident_bytes(pid: u32) -> usize {
    bytes_of(pid, "VmRSS:")
}

/// The most memory it ever had, in bytes.
pub fn peak_bytes(pid: u32) -> usize {
    bytes_of(pid, "VmHWM:")
}

/// The same; none where it has ended.
#[allow(dead_code, reason = "some tests' alone")]
pub fn peak_bytes_if_any(pid: u32) -> Option<usize> {
    bytes_if_any(pid, "VmHWM:")
}

fn bytes_of(pid: u32, what: &str) -> usize {
    bytes_if_any(pid, what).expect("it lives, and says so")
}

fn bytes_if_any(pid: u32, what: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(what))?;
    line.split_whitespace().next()?.parse::<usize>().ok().map(|kib| kib * 1024)
}

/// How many files and sockets it has open.
pub fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count()
}

/// How many files and sockets this process may have open, after asking for as many as it may ask.
pub fn open_files_max() -> usize {
    let limits = || {
        let limits = std::fs::read_to_string("/proc/self/limits").expect("the limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a line");
        let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap_or(usize::MAX));
        (numbers.next().expect("the soft one"), numbers.next().expect("the hard one"))
    };
    let (soft, hard) = limits();
    if soft < hard {
        // From util-linux; where it is missing there are fewer strangers.
        let pid = std::process::id().to_string();
        let _ = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={hard}:{hard}")]).status();
    }
    limits().0
}

/// The value that so large a share is not above.
pub fn percentile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// What the kernel holds for the peers of this port that they have not acknowledged, in bytes: one
/// for each connection.
pub fn send_queues(port: u16) -> Vec<usize> {
    connected().into_iter().filter(|(local, ..)| *local == port).map(|(.., unsent)| unsent).collect()
}

/// How many are connected to this address.
pub fn connections_to(address: SocketAddr) -> usize {
    connected().into_iter().filter(|(_, remote, _)| *remote == address.port()).count()
}

/// Connections over IPv4 on this host: local port, remote port, bytes not acknowledged.
fn connected() -> Vec<(u16, u16, usize)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the sockets of this host");
    let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let read = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote) = (port(fields.next()?)?, port(fields.next()?)?);
        let is_connected = fields.next()? == "01";
        let unsent = usize::from_str_radix(fields.next()?.split_once(':')?.0, 16).ok()?;
        is_connected.then_some((local, remote, unsent))
    };
    table.lines().filter_map(read).collect()
}

/// Whether a process has this argument.
pub fn has_argument(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.into_iter().any(|process| {
        let said = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        said.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
}

/// Whether there is such a process, other than one that has ended and nobody has asked after.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
