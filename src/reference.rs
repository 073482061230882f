//! `clawmux reference`: what can be said in each protocol, printed from the tables that check and do it.

use clawmux_core::dialect::{admin, exoclaw, openclaw, wundr, xeno};
use serde_json::Value;

use crate::answer::Members;
use crate::cli::{Global, Protocol, Reference};
use crate::exit::Failure;
use crate::terminal::{Tone, json_line, may_color, put};

/// Every protocol.
const ALL: [Protocol; 5] =
    [Protocol::Exoclaw, Protocol::Openclaw, Protocol::Wundr, Protocol::Xeno, Protocol::Admin];

/// Runs `reference`. Asks no daemon.
///
/// # Errors
/// Status 1 if it can't be written.
pub(crate) fn run(global: &Global, options: &Reference) -> Result<(), Failure> {
    let wanted = options.protocol.as_ref().map_or(&ALL[..], std::slice::from_ref);
    let colored = may_color(&std::io::stdout());
    for protocol in wanted {
        let reference = of(*protocol);
        let text = if global.json { json_line(&reference) } else { page(&reference, colored) };
        if !put(&text)? {
            // Nobody reads any more.
            break;
        }
    }
    Ok(())
}

fn of(protocol: Protocol) -> Value {
    match protocol {
        Protocol::Exoclaw => exoclaw::reference(),
        Protocol::Openclaw => openclaw::reference(),
        Protocol::Wundr => wundr::reference(),
        Protocol::Xeno => xeno::reference(),
        Protocol::Admin => admin::reference(),
    }
}

/// For people: each frame, method and event with its example below it.
fn page(reference: &Value, colored: bool) -> String {
    let head = |text: &str| Tone::Head.paint(text, colored);
    let mut lines = vec![head(&format!("{}: {}", text(reference, "protocol"), text(reference, "where")))];
    lines.extend(reference["session"].as_str().map(str::to_owned));
    lines.extend([String::new(), head("FRAMES")]);
    for frame in reference.list("frames") {
        // As recorded conversations have it.
        let arrow = if frame["from"] == "client" { '>' } else { '<' };
        lines.push(text(frame, "name").to_owned());
        lines.push(format!("  {arrow} {}", frame["example"]));
    }
    lines.extend([String::new(), head("METHODS")]);
    for method in reference.list("methods") {
        lines.push(format!(
            "{}({}){}",
            head(text(method, "name")),
            members(&method["params"]),
            about(method)
        ));
        lines.push(format!("  > {}", method["example"]));
    }
    lines.extend([String::new(), head("EVENTS")]);
    for event in reference.list("events") {
        lines.push(format!("{}{}", head(text(event, "name")), about(event)));
        if !event["example"].is_null() {
            lines.push(format!("  < {}", event["example"]));
        }
    }
    let errors = reference.texts("errors");
    if !errors.is_empty() {
        lines.extend([String::new(), head("ERRORS"), errors.join(", ")]);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What it does, and who may have it done.
fn about(row: &Value) -> String {
    let scopes = row.texts("scopes");
    let scopes = if scopes.is_empty() { String::new() } else { format!(" [{}]", scopes.join(" or ")) };
    match row["description"].as_str() {
        Some(description) => format!("{scopes}: {description}"),
        None => scopes,
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// The names of parameters, a `?` behind those that may be left out.
fn members(params: &Value) -> String {
    if let Some(text) = params.as_str() {
        return text.trim_matches(['{', '}']).replace('"', "");
    }
    let Some(properties) = params["properties"].as_object() else { return "any".into() };
    let is_required = |name: &str| params.list("required").iter().any(|required| required == name);
    let names =
        properties.keys().map(|name| if is_required(name) { name.clone() } else { format!("{name}?") });
    names.collect::<Vec<_>>().join(", ")
}
