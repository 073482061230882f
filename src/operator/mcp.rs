//! `clawmux mcp list|call|restart|approve`: MCP servers and their tools.

use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::arguments;
use super::plugins::{input_of, show_result};
use super::print::{self, List};
use super::table::Cell;
use crate::admin_client::{Link, ask, home_of};
use crate::answer::Members;
use crate::cli::{Global, McpCommand};
use crate::exit::{FAILED, Failure};
use crate::terminal::{Tone, json_line, one_line, say};
use crate::when::{ago, now_ms};

/// How long the daemon may take; its own deadline for a call is shorter.
const TIMEOUT: Duration = Duration::from_secs(660);

/// So much of a tool's description is shown, in characters.
const DESCRIPTION_CHARS_MAX: usize = 100;

/// Runs `mcp`.
///
/// # Errors
/// As [`ask`]; status 1 if there is no server of this name or a called tool says that it failed, 2 if the input is
/// no JSON object.
pub(crate) fn run(global: &Global, command: &McpCommand) -> Result<(), Failure> {
    match command {
        McpCommand::List { server } => list(global, server.as_deref()),
        McpCommand::Call(options) => {
            let input = input_of(&options.input)?;
            let params = json!({ "server": options.server.server, "tool": options.tool, "input": input });
            let mut link = Link::open(&home_of(global)?)?;
            link.wait_for(Some(TIMEOUT))?;
            let answer = link.call("admin.mcp.call", &params, |_, _| {})?;
            if global.json {
                say(&json_line(&answer));
            } else {
                show_result(&answer)?;
            }
            if answer["is_error"] == true { Err(Failure::new(FAILED, "")) } else { Ok(()) }
        }
        McpCommand::Restart(server) => {
            let answer = ask(global, "admin.mcp.restart", &json!({ "server": server.server }))?;
            print::answer(global, &answer, |answer| {
                let name = one_line(answer.text("server"), 100);
                format!("MCP server {name} is starting again: `clawmux mcp list` shows how it is")
            });
            Ok(())
        }
        McpCommand::Approve(options) => {
            let params = match &options.digest {
                Some(digest) => json!({ "server": options.server.server, "digest": digest }),
                None => json!({ "server": options.server.server }),
            };
            let answer = ask(global, "admin.mcp.approve", &params)?;
            print::answer(global, &answer, |answer| {
                let name = one_line(answer.text("server"), 100);
                match answer.words("tools") {
                    none if none == "-" => format!("no tool of {name} was held"),
                    tools => format!("agreed to what {name} says of {}", one_line(&tools, 2000)),
                }
            });
            Ok(())
        }
    }
}

fn list(global: &Global, name: Option<&str>) -> Result<(), Failure> {
    let answer = ask(global, "admin.mcp", &json!({}))?;
    let listed = answer.list("servers");
    if let Some(name) = name {
        let Some(server) = listed.iter().find(|server| server["server"] == *name) else {
            let why =
                format!("there is no MCP server {}: `clawmux mcp list` lists them", one_line(name, 100));
            return Err(Failure::new(FAILED, why));
        };
        print::answer(global, server, |server| described(server, now_ms()));
        return Ok(());
    }
    let list = List {
        rows: listed,
        head: ["NAME", "STATE", "TOOLS", "CALLS", "ERRORS", "NOW", "STARTS", "APPROVAL", "LAST ERROR"],
        gives_way: &["LAST ERROR"],
        cells: |server, _| row(server),
        none: "no MCP server is configured: add one to gateway.toml as [[mcp]]",
    };
    list.print(global).map(drop)
}

fn row(server: &Value) -> [Cell; 9] {
    let tools = server.list("tools");
    let offered = tools.iter().filter(|tool| tool["state"] == "offered").count();
    let errors = server.number("errors");
    [
        server.text("server").into(),
        state(server),
        format!("{offered} of {}", tools.len()).into(),
        server.number("calls").to_string().into(),
        Cell::toned(errors.to_string(), if errors > 0 { Tone::Warn } else { Tone::Plain }),
        server.number("running").to_string().into(),
        server.number("starts").to_string().into(),
        server.text("approval").into(),
        server["error"].as_str().or(server["last_error"].as_str()).unwrap_or("-").into(),
    ]
}

fn state(server: &Value) -> Cell {
    let state = server.text("state");
    let tone = match state {
        "ready" => Tone::Good,
        "starting" | "held" => Tone::Warn,
        _ => Tone::Bad,
    };
    Cell::toned(state, tone)
}

/// All details of one server, and its tools.
fn described(server: &Value, now_ms: u64) -> String {
    let some = |name: &str| Some(server.text(name).to_owned());
    let limits = &server["limits"];
    let bounds = limits["processes"].as_u64().map(|processes| {
        let memory = limits.number("memory_bytes") >> 20;
        let folders = match server["is_confined"] == false {
            true => "all that this user has: this kernel can't confine it (no Landlock)".to_owned(),
            false => limits.words("folders"),
        };
        format!("{memory} MiB, {processes} processes; folders: {folders}")
    });
    let failed = server["last_error_ms"]
        .as_u64()
        .map(|at| format!("{}: {}", ago(at, now_ms), server.text("last_error")));
    let retry = server["retry_ms"].as_u64().map(|ms| format!("in {} s", ms.div_ceil(1000)));
    let calls = format!("{}, {} failed", server.number("calls"), server.number("errors"));
    let rows = [
        ("name", some("server")),
        ("state", some("state")),
        ("retry", retry),
        ("reached by", some("reach")),
        ("process", server["pid"].as_u64().map(|pid| pid.to_string())),
        ("bounds", bounds),
        ("timeout", Some(format!("{} ms", server.number("timeout_ms")))),
        ("approval", some("approval")),
        ("calls", Some(calls)),
        ("starts", Some(server.number("starts").to_string())),
        ("last error", failed),
    ];
    let mut lines = print::details(12, rows);
    for tool in server.list("tools") {
        let (name, state) = (one_line(tool.text("tool"), 200), tool.text("state"));
        if state.starts_with("held") {
            // What is agreed to is shown whole.
            lines.push(format!("tool        {name} ({state})"));
            lines.push(one_line(tool.text("description"), usize::MAX));
            lines.push(one_line(&tool["input_schema"].to_string(), usize::MAX));
            continue;
        }
        let about = tool["error"].as_str().or(tool["description"].as_str()).unwrap_or_default();
        lines.push(format!("tool        {name} ({state}): {}", one_line(about, DESCRIPTION_CHARS_MAX)));
        if tool["input_schema"].is_object() {
            lines.push(format!("arguments   {}", one_line(&arguments(&tool["input_schema"]), 2000)));
        }
    }
    let is_held = server["state"] == "held";
    if is_held {
        let (name, digest) = (one_line(server.text("server"), 100), server.text("digest"));
        lines.push(format!("tools are held until you agree: `clawmux mcp approve {name} --digest {digest}`"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_stands_out() {
        let server = json!({ "server": "files", "state": "held", "calls": 3, "errors": 1, "running": 0,
            "starts": 2, "approval": "ask", "limits": {}, "timeout_ms": 1000, "digest": "12ab",
            "tools": [{ "tool": "read", "state": "offered", "description": "reads" },
                { "tool": "w\u{1b}[2J", "state": "held: changed", "description": format!("a\nb{}end", " ".repeat(5000)),
                    "input_schema": { "properties": { "c": {} } } }] });
        let cells = row(&server);
        assert_eq!(cells[1], Cell::toned("held", Tone::Warn));
        assert_eq!(cells[2], Cell::from("1 of 2"));
        let told = described(&server, 0);
        assert!(told.contains("tool        w[2J (held: changed)\na b "), "{told}");
        assert!(told.contains("end\n{\"properties\":{\"c\":{}}}\n"), "{told}");
        assert!(told.ends_with("`clawmux mcp approve files --digest 12ab`"), "{told}");
    }
}
