//! `clawmux sessions`: those there are, the latest used first.

use serde_json::{Value, json};

use super::source::Source;
use super::table::{Cell, table};
use crate::answer::Members;
use crate::cli::{Global, Sessions};
use crate::exit::Failure;
use crate::terminal::{Tone, json_line, one_line, put, say, tell};
use crate::when::{ago, now_ms};

/// Sessions asked for at once.
const PAGE: usize = 500;

/// Runs `sessions`. As JSON it is one object a line, and a page at a time, however many there are.
pub(crate) fn run(global: &Global, options: &Sessions) -> Result<(), Failure> {
    let source = Source::open(global)?;
    let wanted = if options.all { usize::MAX } else { options.limit };
    let (mut shown, mut before, mut rows) = (0, Value::Null, Vec::new());
    let more = loop {
        let params = json!({ "limit": PAGE.min(wanted - shown), "prefix": options.prefix, "before": before });
        let page = source.ask("admin.sessions", &params)?;
        let sessions = page.list("sessions");
        shown += sessions.len();
        for session in sessions {
            if !global.json {
                rows.push(row(session, now_ms()));
            } else if !put(&json_line(session))? {
                // Nobody reads any more.
                return Ok(());
            }
        }
        before = page["next"].clone();
        if before.is_null() || sessions.is_empty() || shown >= wanted {
            break !before.is_null();
        }
    };
    if !global.json {
        if let Some(prefix) = options.prefix.as_deref().filter(|_| rows.is_empty()) {
            tell(&format!("no session key begins with {}", one_line(prefix, 200)));
            return Ok(());
        }
        if rows.is_empty() {
            tell("no sessions yet: the first prompt creates one, such as `clawmux chat hi`");
            return Ok(());
        }
        say(&table(["KEY", "OWNER", "STATE", "PROMPTS", "SEQ", "UPDATED"], &["OWNER"], &rows));
    }
    if more {
        tell(&format!("these are the {shown} used last: --all or --limit N shows more"));
    }
    Ok(())
}

fn row(session: &Value, now_ms: u64) -> [Cell; 6] {
    let (state, tone) = match session["state"].as_str() {
        // Nothing goes on before somebody decides.
        Some("running") if session["doing"] == "waiting for approval" => ("approval", Tone::Warn),
        Some("running") => ("running", Tone::Good),
        Some("queued") => ("queued", Tone::Warn),
        state => (state.unwrap_or("-"), Tone::Plain),
    };
    let state = match session.number("queued") {
        0 => state.to_owned(),
        queued if state == "queued" => format!("{state} {queued}"),
        queued => format!("{state} +{queued}"),
    };
    [
        session.text("session").into(),
        session.text("owner").into(),
        Cell::toned(state, tone),
        session.number("prompts").to_string().into(),
        session.number("seq").to_string().into(),
        ago(session.number("updated_ms"), now_ms).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_waits() {
        let mut session = json!({"session": "a:b:c:d", "owner": null, "state": "running", "queued": 2,
                                 "prompts": 5, "seq": 60, "updated_ms": 0});
        let cells = row(&session, 60_000);
        let running = |text: &str| Cell::toned(text, Tone::Good);
        assert_eq!(cells[2], running("running +2"));
        assert_eq!(
            [&cells[..2], &cells[3..]].concat(),
            ["a:b:c:d", "-", "5", "60", "1m ago"].map(Cell::from)
        );
        session["queued"] = json!(0);
        session["owner"] = json!("ci");
        assert_eq!(row(&session, 0)[1..3], ["ci".into(), running("running")]);
        session["doing"] = json!("waiting for approval");
        assert_eq!(row(&session, 0)[2], Cell::toned("approval", Tone::Warn));
        session["state"] = json!("queued");
        session["queued"] = json!(3);
        assert_eq!(row(&session, 0)[2], Cell::toned("queued 3", Tone::Warn));
    }
}
