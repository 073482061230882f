//! `clawmux reference`: what can be said in a protocol, printed by the tables that check and do it.

use clawmux_core::dialect::wundr;
use serde_json::Value;

use crate::cli::Reference;
use crate::exit::Failure;
use crate::operator::table;
use crate::terminal::{json_line, say};

/// Runs `reference`. Asks no daemon.
///
/// # Errors
/// None.
pub(crate) fn run(options: &Reference) -> Result<(), Failure> {
    let reference = wundr::reference();
    if options.json {
        say(&json_line(&reference));
        return Ok(());
    }
    let methods: Vec<_> = rows(&reference, "methods").iter().map(method).collect();
    say(&table::table(["METHOD", "SCOPE", "COST", "PARAMS", "DOES"], &["DOES", "PARAMS"], &methods));
    let events: Vec<_> = rows(&reference, "events").iter().map(event).collect();
    say(&table::table(["EVENT", "PAYLOAD", "COMES"], &["COMES", "PAYLOAD"], &events));
    let codes: Vec<_> = rows(&reference, "errors").iter().filter_map(Value::as_str).collect();
    say(&format!(
        "errors: {}\n\nA member with a ? may be left out; --json has all of it as JSON Schema.",
        codes.join(", ")
    ));
    Ok(())
}

fn rows<'a>(reference: &'a Value, name: &str) -> &'a [Value] {
    reference[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn method(method: &Value) -> [String; 5] {
    let scopes: Vec<_> = rows(method, "scopes").iter().filter_map(Value::as_str).collect();
    let scopes = if scopes.is_empty() { "-".to_owned() } else { scopes.join(" or ") };
    [
        text(&method["name"]),
        scopes,
        method["cost"].to_string(),
        members(&method["params"]),
        text(&method["description"]),
    ]
}

fn event(event: &Value) -> [String; 3] {
    [text(&event["name"]), members(&event["payload"]), text(&event["description"])]
}

/// The names of an object's members.
fn members(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object() else { return "any".into() };
    let is_required = |name: &str| rows(schema, "required").iter().any(|required| required == name);
    let names =
        properties.keys().map(|name| if is_required(name) { name.clone() } else { format!("{name}?") });
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() { "-".into() } else { names }
}
