//! `clawmux connections`, `connection close`: who is connected.

use serde_json::{Value, json};

use super::table::{Cell, table};
use super::when::{ago, now_ms, span};
use crate::admin_client::{call, home_of};
use crate::cli::{ConnectionCommand, Connections, Global};
use crate::exit::Failure;
use crate::terminal::{Tone, json_line, one_line, say, tell};

/// Silent for longer than this is worth a word, in milliseconds.
const SILENT_MS: u64 = 60_000;

/// Runs `connections`.
///
/// # Errors
/// As [`call`].
pub(crate) fn list(global: &Global, options: &Connections) -> Result<(), Failure> {
    let answer = call(&home_of(global)?, "admin.connections", &json!({ "limit": options.limit }))?;
    let listed = answer["connections"].as_array().map(Vec::as_slice).unwrap_or_default();
    if options.json {
        super::objects(listed)?;
    } else if listed.is_empty() {
        tell("nobody is connected");
    } else {
        let now_ms = now_ms();
        let rows: Vec<_> = listed.iter().map(|connection| row(connection, now_ms)).collect();
        say(&table(
            ["ID", "PROTOCOL", "WHO", "PEER", "SINCE", "IN", "OUT", "BUFFER", "FOLLOWS", "STATE"],
            &["WHO", "PEER", "PROTOCOL"],
            &rows,
        ));
    }
    let total = answer["total"].as_u64().unwrap_or(0);
    if total > listed.len() as u64 {
        tell(&format!("these are the latest {} of {total}: --limit N shows more", listed.len()));
    }
    Ok(())
}

/// Runs `connection close`.
///
/// # Errors
/// As [`call`]; status 1 where there is no such connection.
pub(crate) fn run(global: &Global, command: &ConnectionCommand) -> Result<(), Failure> {
    let ConnectionCommand::Close(options) = command;
    let answer = call(&home_of(global)?, "admin.connection.close", &json!({ "connection": options.id }))?;
    say(&if options.json {
        json_line(&answer)
    } else {
        let peer = one_line(answer["peer"].as_str().unwrap_or("-"), 100);
        format!("closed connection {} from {peer}; its client may connect again", options.id)
    });
    Ok(())
}

fn row(connection: &Value, now_ms: u64) -> [Cell; 10] {
    let text = |name: &str| connection[name].as_str().unwrap_or("-").to_owned();
    let number = |name: &str| connection[name].as_u64().unwrap_or(0);
    let state = if connection["closing"] == true {
        Cell::toned("closing", Tone::Warn)
    } else if connection["principal"].is_null() {
        Cell::toned("handshake", Tone::Warn)
    } else if connection["blocked"] == true {
        Cell::toned("does not read", Tone::Warn)
    } else if number("silent_ms") > SILENT_MS {
        Cell::toned(format!("silent {}", span(number("silent_ms"))), Tone::Warn)
    } else {
        Cell::toned("open", Tone::Good)
    };
    [
        number("connection").to_string().into(),
        text("protocol").into(),
        who(connection).into(),
        text("peer").into(),
        ago(number("since_ms"), now_ms).into(),
        bytes(number("received_bytes")).into(),
        bytes(number("sent_bytes")).into(),
        bytes(number("buffered_bytes")).into(),
        number("follows").to_string().into(),
        state,
    ]
}

/// Who it is, and what it says of itself.
fn who(connection: &Value) -> String {
    let name = connection["principal"].as_str().unwrap_or("-");
    let said = ["client", "user"].map(|member| connection[member].as_str().unwrap_or_default());
    let said = said.into_iter().filter(|said| !said.is_empty()).map(|said| one_line(said, 40));
    let said = said.collect::<Vec<_>>().join(", ");
    if said.is_empty() { name.to_owned() } else { format!("{name} ({said})") }
}

/// So many bytes, as people tell them.
pub(super) fn bytes(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / KIB),
        _ => format!("{} MiB", bytes / MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_is_wrong_with_a_connection() {
        let mut connection = json!({ "connection": 7, "protocol": "exoclaw", "principal": "local",
            "peer": "127.0.0.1:5", "since_ms": 0, "received_bytes": 10_239, "sent_bytes": 10_240,
            "buffered_bytes": 20 << 20, "follows": 2 });
        let cells = row(&connection, 60_000);
        let words = ["7", "exoclaw", "local", "127.0.0.1:5", "1m ago", "10239 B", "10 KiB", "20 MiB", "2"];
        assert_eq!(cells[..9], words.map(Cell::from));
        connection["client"] = "console".into();
        assert_eq!(row(&connection, 60_000)[2], "local (console)".into());
        connection["user"] = "ada".into();
        assert_eq!(row(&connection, 60_000)[2], "local (console, ada)".into());
        assert_eq!(cells[9], Cell::toned("open", Tone::Good));
        connection["silent_ms"] = json!(61_000);
        assert_eq!(row(&connection, 0)[9], Cell::toned("silent 1m 1s", Tone::Warn));
        connection["blocked"] = json!(true);
        assert_eq!(row(&connection, 0)[9], Cell::toned("does not read", Tone::Warn));
    }
}
