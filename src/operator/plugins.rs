//! `clawmux plugins`, `plugin load|unload|reload|call`: tools in their sandbox.

use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::arguments;
use super::input;
use super::new_plugin;
use super::plugin_signing;
use super::print::{self, List};
use super::table::Cell;
use crate::admin_client::{Link, ask, home_of};
use crate::answer::Members;
use crate::cli::{Global, PluginArg, PluginCommand, ToolInput};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{Tone, json_line, one_line, say, tell, visible, write};
use crate::when::{ago, now_ms};

/// How long the daemon may take; its own deadlines for loads and calls are shorter.
const TIMEOUT: Duration = Duration::from_secs(660);

/// Runs `plugins`.
///
/// # Errors
/// As [`ask`]; status 1 if there is no plugin of this name.
pub(crate) fn list(global: &Global, name: Option<&str>) -> Result<(), Failure> {
    let answer = ask(global, "admin.plugins", &json!({}))?;
    let listed = answer.list("plugins");
    if let Some(name) = name {
        let Some(plugin) = listed.iter().find(|plugin| plugin["plugin"] == *name) else {
            let why = format!("there is no plugin {}: `clawmux plugins` lists them", one_line(name, 100));
            return Err(Failure::new(FAILED, why));
        };
        print::answer(global, plugin, |plugin| described(plugin, now_ms()));
        return Ok(());
    }
    let list = List {
        rows: listed,
        head: [
            "NAME",
            "STATE",
            "FROM",
            "CALLS",
            "ERRORS",
            "NOW",
            "RESTARTS",
            "APPROVAL",
            "GRANTS",
            "LAST ERROR",
        ],
        gives_way: &["LAST ERROR", "GRANTS"],
        cells: |plugin, _| row(plugin),
        none: "no plugins are loaded: `clawmux plugin load NAME` loads one",
    };
    list.print(global).map(drop)
}

/// Runs `plugin`.
///
/// # Errors
/// As [`ask`]; status 1 if a called plugin says that it failed, 2 if the input is no JSON object.
pub(crate) fn run(global: &Global, command: &PluginCommand) -> Result<(), Failure> {
    let (plugin, method, params) = match command {
        PluginCommand::New(options) => return new_plugin::write(global, options),
        PluginCommand::Sign(options) => return plugin_signing::sign(global, options),
        PluginCommand::Verify(options) => return plugin_signing::verify(global, options),
        PluginCommand::Load(options) => {
            let params = json!({ "plugin": options.plugin.name, "path": options.path });
            (&options.plugin, "admin.plugin.load", params)
        }
        PluginCommand::Unload(plugin) => (plugin, "admin.plugin.unload", json!({ "plugin": plugin.name })),
        PluginCommand::Reload(plugin) => (plugin, "admin.plugin.reload", json!({ "plugin": plugin.name })),
        PluginCommand::Call(options) => (
            &options.plugin,
            "admin.plugin.call",
            json!({ "plugin": options.plugin.name, "input": input_of(&options.input)? }),
        ),
    };
    let mut link = Link::open(&home_of(global)?)?;
    link.wait_for(Some(TIMEOUT))?;
    let answer = link.call(method, &params, |_, _| {})?;
    if global.json {
        say(&json_line(&answer));
    } else {
        show(&answer, plugin, command)?;
    }
    if answer["is_error"] == true { Err(Failure::new(FAILED, "")) } else { Ok(()) }
}

/// Prints the outcome. The output of a plugin goes to stdout, everything about it to stderr.
fn show(answer: &Value, plugin: &PluginArg, command: &PluginCommand) -> Result<(), Failure> {
    let name = one_line(&plugin.name, 100);
    match command {
        PluginCommand::Load(_) => {
            say(&format!("loaded plugin {name}; {}", granted(answer)));
            if let Some(how) = given(answer, &name) {
                say(&how);
            }
            if let Some(path) = answer["path"].as_str() {
                say(&format!(
                    "it stays until the daemon stops; to load it at every start, add to gateway.toml:\n[[plugins]]\nname = \
                     \"{name}\"\npath = \"plugins/{}\"",
                    one_line(path, 500)
                ));
            }
        }
        PluginCommand::Unload(_) => say(&format!("unloaded plugin {name}; calls that are running finish")),
        PluginCommand::Reload(_) => say(&format!(
            "reloaded plugin {name}; {}; calls that are running finish on the old one",
            granted(answer)
        )),
        PluginCommand::Call(_) => show_result(answer)?,
        PluginCommand::New(_) | PluginCommand::Sign(_) | PluginCommand::Verify(_) => {}
    }
    Ok(())
}

/// Prints what a call gave to stdout, and how it went to stderr.
pub(super) fn show_result(answer: &Value) -> Result<(), Failure> {
    let content = answer["content"].as_str().unwrap_or_default();
    write(&format!("{}\n", visible(content.trim_end_matches('\n'))))?;
    let took = answer.number("took_us");
    let how = if answer["is_error"] == true { "failed" } else { "ok" };
    let fuel = answer["fuel"].as_u64().map(|fuel| format!(", {fuel} fuel")).unwrap_or_default();
    let grants = match answer.words("grants") {
        none if none == "-" => String::new(),
        grants => format!("; it used {}", one_line(&grants, 1000)),
    };
    tell(&format!("{how} ({}.{} ms{fuel}{grants})", took / 1000, took % 1000 / 100));
    Ok(())
}

fn granted(answer: &Value) -> String {
    match answer.words("capabilities") {
        none if none == "-" => "it has no capabilities".into(),
        grants => format!("its capabilities: {}", one_line(&grants, 500)),
    }
}

/// The agents that use it, or how to give it to one. None if the daemon does not say.
fn given(answer: &Value, name: &str) -> Option<String> {
    let agents = answer["agents"].as_array()?;
    let given = agents.iter().filter(|agent| agent["given"] == true);
    let given: Vec<&str> = given.filter_map(|agent| agent["agent"].as_str()).collect();
    if !given.is_empty() {
        return Some(format!("agents that use it: {}", one_line(&given.join(", "), 500)));
    }
    let agent = agents.iter().find(|agent| agent["default"] == true).or(agents.first())?;
    let tools = [agent.texts("tools"), vec![name]].concat();
    let agent = agent["agent"].as_str()?;
    let key = format!("agents.{agent}.tools");
    Some(one_line(
        &format!(
            "no agent uses it yet: give it to one with `clawmux config set {key} {}` (or another agent's tools)",
            tools.join(",")
        ),
        1000,
    ))
}

/// The input of the call.
pub(super) fn input_of(options: &ToolInput) -> Result<Value, Failure> {
    let bad = |why: String| Failure::new(USAGE, format!("the input: {why}"));
    let text = match (options.input.as_deref(), &options.input_file) {
        (None, None) => return Ok(json!({})),
        (Some(text), _) if text != "-" => text.to_owned(),
        (_, None) => input::read(None).map_err(bad)?,
        (_, Some(file)) => {
            input::read(Some(file)).map_err(|why| bad(format!("{}: {why}", file.display())))?
        }
    };
    input::object(&text).map_err(bad)
}

fn row(plugin: &Value) -> [Cell; 10] {
    let number = |name: &str| plugin.number(name);
    let errors = number("errors");
    [
        plugin.text("plugin").into(),
        state(plugin),
        plugin.text("source").into(),
        number("calls").to_string().into(),
        Cell::toned(errors.to_string(), if errors > 0 { Tone::Warn } else { Tone::Plain }),
        under_way(plugin).into(),
        number("restarts").to_string().into(),
        plugin.text("approval").into(),
        plugin.words("capabilities").into(),
        plugin["error"].as_str().or(plugin["last_error"].as_str()).unwrap_or("-").into(),
    ]
}

fn state(plugin: &Value) -> Cell {
    let state = plugin.text("state");
    let tone = match state {
        "loaded" => Tone::Good,
        "loading" => Tone::Warn,
        _ => Tone::Bad,
    };
    Cell::toned(state, tone)
}

fn under_way(plugin: &Value) -> String {
    match (plugin.number("running"), plugin.number("waiting")) {
        (running, 0) => running.to_string(),
        (running, waiting) => format!("{running} +{waiting}"),
    }
}

/// All details of one plugin.
fn described(plugin: &Value, now_ms: u64) -> String {
    let number = |name: &str| plugin[name].as_u64();
    let text = |name: &str| plugin[name].as_str().map(str::to_owned);
    let some = |name: &str| Some(plugin.text(name).to_owned());
    let limits = &plugin["limits"];
    let limits = limits["timeout_ms"].as_u64().map(|timeout| {
        let number = |name: &str| limits.number(name);
        format!(
            "{timeout} ms, {} MiB, {} fuel, {} bytes out, {} calls of the host, {} bytes of HTTP",
            number("memory_mb"),
            number("fuel"),
            number("output_bytes"),
            number("host_calls"),
            number("http_bytes")
        )
    });
    let path = text("path").map(|path| format!(" ({path})")).unwrap_or_default();
    let calls = number("calls").map(|calls| {
        let (failed, cut_off) = (plugin.number("errors"), plugin.number("cut_off"));
        format!("{calls}, {failed} failed, {cut_off} of them cut off, {} under way", under_way(plugin))
    });
    let took = number("last_call_us").filter(|us| *us > 0);
    let failed =
        number("last_error_ms").map(|at| format!("{}: {}", ago(at, now_ms), plugin.text("last_error")));
    let rows = [
        ("name", some("plugin")),
        ("version", text("version")),
        ("about", text("description")),
        ("arguments", plugin["input_schema"].is_object().then(|| arguments(&plugin["input_schema"]))),
        ("state", some("state")),
        ("error", text("error")),
        ("from", Some(format!("{}{path}", plugin.text("source")))),
        ("signed by", text("signed_by")),
        ("asks for", plugin["asks"].is_array().then(|| plugin.words("asks"))),
        ("grants", Some(plugin.words("capabilities"))),
        ("limits", limits),
        ("approval", text("approval")),
        ("idempotent", plugin["idempotent"].as_bool().map(|yes| if yes { "yes" } else { "no" }.to_owned())),
        ("calls", calls),
        ("last call", took.map(|us| format!("took {}.{:03} ms", us / 1000, us % 1000))),
        ("last error", failed),
        ("restarts", number("restarts").map(|restarts| restarts.to_string())),
    ];
    print::details(12, rows).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_stands_out() {
        let plugin = json!({ "plugin": "x", "state": "failed", "error": "no module", "source": "configured",
            "calls": 3, "errors": 1, "running": 1, "waiting": 2, "restarts": 4, "approval": "ask",
            "capabilities": ["host_function:clock"], "last_error": "older" });
        let cells = row(&plugin);
        assert_eq!(cells[1], Cell::toned("failed", Tone::Bad));
        assert_eq!(cells[4], Cell::toned("1", Tone::Warn));
        let rest = ["1 +2", "4", "ask", "host_function:clock", "no module"];
        assert_eq!(cells[5..], rest.map(Cell::from));
        let told = described(&json!({ "plugin": "x\u{1b}[2J", "state": "loaded", "calls": 0 }), 0);
        assert!(told.contains("name        x[2J") && told.contains("calls       0, 0 failed"), "{told}");
    }
}
