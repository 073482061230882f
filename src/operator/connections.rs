//! `clawmux connections`, `connection close`: who is connected.

use serde_json::{Value, json};

use super::amount::bytes;
use super::print::{self, List};
use super::table::Cell;
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{ConnectionCommand, Global};
use crate::exit::Failure;
use crate::terminal::{Tone, one_line, tell};
use crate::when::{ago, span};

/// A connection that is silent for longer than this is marked, in milliseconds.
const SILENT_MS: u64 = 60_000;

/// Runs `connections`.
pub(crate) fn list(global: &Global, limit: usize) -> Result<(), Failure> {
    let answer = ask(global, "admin.connections", &json!({ "limit": limit }))?;
    let list = List {
        rows: answer.list("connections"),
        head: ["ID", "PROTOCOL", "WHO", "PEER", "SINCE", "IN", "OUT", "BUFFER", "FOLLOWS", "STATE"],
        gives_way: &["WHO", "PEER", "PROTOCOL"],
        cells: row,
        none: "nobody is connected",
    };
    list.print(global)?;
    let (shown, total) = (list.rows.len(), answer.number("total"));
    if total > shown as u64 {
        tell(&format!("these are the latest {shown} of {total}: --limit N shows more"));
    }
    Ok(())
}

/// Runs `connection close`.
///
/// # Errors
/// As [`ask`]; status 1 if there is no such connection.
pub(crate) fn run(global: &Global, command: &ConnectionCommand) -> Result<(), Failure> {
    let ConnectionCommand::Close { id } = command;
    print::done(global, "admin.connection.close", &json!({ "connection": id }), |answer| {
        let peer = one_line(answer.text("peer"), 100);
        format!("closed connection {id} from {peer}; its client may connect again")
    })
}

fn row(connection: &Value, now_ms: u64) -> [Cell; 10] {
    let number = |name: &str| connection.number(name);
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
        connection.text("protocol").into(),
        who(connection).into(),
        connection.text("peer").into(),
        ago(number("since_ms"), now_ms).into(),
        bytes(number("received_bytes")).into(),
        bytes(number("sent_bytes")).into(),
        bytes(number("buffered_bytes")).into(),
        number("follows").to_string().into(),
        state,
    ]
}

/// The principal, and what the client says of itself.
fn who(connection: &Value) -> String {
    let name = connection.text("principal");
    let said = ["client", "user"].map(|member| connection[member].as_str().unwrap_or_default());
    let said = said.into_iter().filter(|said| !said.is_empty()).map(|said| one_line(said, 40));
    let said = said.collect::<Vec<_>>().join(", ");
    if said.is_empty() { name.to_owned() } else { format!("{name} ({said})") }
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
