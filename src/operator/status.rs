//! `clawmux status`.

use serde_json::{Value, json};

use super::when::span;
use crate::admin_client::{call, home_of};
use crate::cli::Global;
use crate::exit::Failure;
use crate::terminal::{json_line, one_line, say};

/// Runs it.
///
/// # Errors
/// As [`call`].
pub(crate) fn run(global: &Global, as_json: bool) -> Result<(), Failure> {
    let status = call(&home_of(global)?, "admin.status", &json!({}))?;
    say(&if as_json { json_line(&status) } else { fields(&status) });
    Ok(())
}

/// An object as lines of names and values. Milliseconds are told as people tell them.
fn fields(value: &Value) -> String {
    let Value::Object(fields) = value else { return one_line(&value.to_string(), 1000) };
    let rows: Vec<(String, String)> = fields
        .iter()
        .filter(|(name, _)| *name != "started_ms")
        .map(|(name, value)| match (name.strip_suffix("_ms"), value.as_u64()) {
            (Some(name), Some(ms)) => (name.replace('_', " "), span(ms)),
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
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        other => one_line(&other.to_string(), 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_for_people() {
        let status =
            json!({"version": "1", "listen": ["a:1", "b:2"], "uptime_ms": 90_061_000, "x": "\u{1b}[2J"});
        assert_eq!(fields(&status), "listen   a:1, b:2\nuptime   1d 1h\nversion  1\nx        [2J");
    }
}
