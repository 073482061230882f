//! Asks the running daemon over its Unix socket, and shows what it says.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use clawmux_actors::admin::socket_path;
use clawmux_core::jsonrpc;
use serde_json::{Value, json};

use crate::cli::Global;
use crate::exit::{FAILED, Failure, UNREACHABLE};
use crate::home;
use crate::terminal::{one_line, say};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The most bytes of an answer.
const BYTES_MAX: u64 = 64 << 20;

/// Asks the daemon of `home`. Blocks.
///
/// # Errors
/// Status 69 where none is reachable, 1 where it refuses or fails.
pub(crate) fn call(home: &Path, method: &str, params: &Value) -> Result<Value, Failure> {
    let socket = socket_path(home);
    let unreachable = |why: &str| {
        Failure::new(
            UNREACHABLE,
            format!("no daemon is reachable at {}: {why}; start one with `clawmux serve`", socket.display()),
        )
    };
    let mut stream = UnixStream::connect(&socket).map_err(|error| match error.kind() {
        ErrorKind::NotFound => unreachable("there is no socket"),
        ErrorKind::ConnectionRefused => unreachable("nobody listens there"),
        _ => unreachable(&error.to_string()),
    })?;
    let broken = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => unreachable(&format!("no answer within {PATIENCE:?}")),
        _ => unreachable(&error.to_string()),
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
    let asked = stream.write_all((jsonrpc::request(1, method, params) + "\n").as_bytes());
    let mut line = Vec::new();
    // What refuses us may have said why before it closed, so read in any case.
    let read = BufReader::new(stream).take(BYTES_MAX).read_until(b'\n', &mut line);
    if line.is_empty() {
        asked.and(read.map(drop)).map_err(broken)?;
        return Err(unreachable("it closed the connection"));
    }
    jsonrpc::read_answer(&line).map_err(|error| Failure::new(FAILED, format!("{method}: {}", error.message)))
}

/// `clawmux status`.
///
/// # Errors
/// As [`call`].
pub(crate) fn status(global: &Global, as_json: bool) -> Result<(), Failure> {
    let home = home::resolve(global.home.as_deref(), |name| std::env::var(name).ok())?;
    let status = call(&home, "admin.status", &json!({}))?;
    say(&if as_json { status.to_string() } else { table(&status) });
    Ok(())
}

/// An object as lines of names and values. Milliseconds are told as people tell them.
fn table(value: &Value) -> String {
    let Value::Object(fields) = value else { return one_line(&value.to_string(), 1000) };
    let rows: Vec<(String, String)> = fields
        .iter()
        .filter(|(name, _)| *name != "started_ms")
        .map(|(name, value)| match (name.strip_suffix("_ms"), value.as_u64()) {
            (Some(name), Some(ms)) => (name.replace('_', " "), duration(ms)),
            _ => (name.replace('_', " "), plain(value)),
        })
        .collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines: Vec<String> = rows.iter().map(|(name, value)| format!("{name:<width$}  {value}")).collect();
    lines.join("\n")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text, 1000),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => one_line(&other.to_string(), 1000),
    }
}

fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s}s"),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, ..) => format!("{d}d {h}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_for_people() {
        let status =
            json!({"version": "1", "listen": ["a:1", "b:2"], "uptime_ms": 90_061_000, "x": "\u{1b}[2J"});
        assert_eq!(table(&status), "listen   a:1, b:2\nuptime   1d 1h\nversion  1\nx        [2J");
        assert_eq!(
            ["5s", "2m 5s", "1h 0m"],
            [5, 125, 3600].map(|s| duration(s * 1000)).each_ref().map(|s| s.as_str())
        );
    }

    #[test]
    fn no_daemon_is_said_with_its_status() {
        let home = tempfile::tempdir().unwrap();
        let failure = call(home.path(), "admin.status", &json!({})).unwrap_err();
        assert_eq!(failure.status, UNREACHABLE);
        assert!(failure.message.contains("clawmux serve"), "{}", failure.message);
    }
}
