//! `clawmux plugins`, `plugin load|unload|reload|call`: tools in their sandbox.

use std::io::Read;
use std::time::Duration;

use serde_json::{Value, json};

use super::table::{Cell, table};
use super::when::{ago, now_ms};
use crate::admin_client::{Link, call, home_of};
use crate::cli::{CallPlugin, Global, OnePlugin, PluginCommand, Plugins};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{Tone, json_line, one_line, say, tell, visible, write};

/// An input has at most so many bytes, as the daemon takes them.
const INPUT_BYTES_MAX: u64 = 1024 * 1024;
/// The daemon ends loading and calling by deadlines of its own, which are shorter.
const PATIENCE: Duration = Duration::from_secs(660);

/// Runs `plugins`.
///
/// # Errors
/// As [`call`]; status 1 where there is no plugin of this name.
pub(crate) fn list(global: &Global, options: &Plugins) -> Result<(), Failure> {
    let answer = call(&home_of(global)?, "admin.plugins", &json!({}))?;
    let listed = answer["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
    let now_ms = now_ms();
    if let Some(name) = &options.name {
        let Some(plugin) = listed.iter().find(|plugin| plugin["plugin"] == **name) else {
            let why = format!("there is no plugin {}: `clawmux plugins` lists them", one_line(name, 100));
            return Err(Failure::new(FAILED, why));
        };
        say(&if options.json { json_line(plugin) } else { described(plugin, now_ms) });
        return Ok(());
    }
    if options.json {
        return super::objects(listed);
    }
    if listed.is_empty() {
        tell("no plugins are loaded: `clawmux plugin load NAME` loads one");
        return Ok(());
    }
    let rows: Vec<_> = listed.iter().map(row).collect();
    say(&table(
        ["NAME", "STATE", "FROM", "CALLS", "ERRORS", "NOW", "RESTARTS", "APPROVAL", "GRANTS", "LAST ERROR"],
        &["LAST ERROR", "GRANTS"],
        &rows,
    ));
    Ok(())
}

/// Runs `plugin`.
///
/// # Errors
/// As [`call`]; status 1 where a called plugin says that it failed, 2 where the input is no JSON object.
pub(crate) fn run(global: &Global, command: &PluginCommand) -> Result<(), Failure> {
    let (plugin, method, params) = match command {
        PluginCommand::Load(options) => {
            let params = json!({ "plugin": options.plugin.name, "path": options.path });
            (&options.plugin, "admin.plugin.load", params)
        }
        PluginCommand::Unload(plugin) => (plugin, "admin.plugin.unload", json!({ "plugin": plugin.name })),
        PluginCommand::Reload(plugin) => (plugin, "admin.plugin.reload", json!({ "plugin": plugin.name })),
        PluginCommand::Call(options) => (
            &options.plugin,
            "admin.plugin.call",
            json!({ "plugin": options.plugin.name, "input": input(options)? }),
        ),
    };
    let mut link = Link::open(&home_of(global)?)?;
    link.wait_for(Some(PATIENCE))?;
    let answer = link.call(method, &params, |_, _| {})?;
    if plugin.json {
        say(&json_line(&answer));
    } else {
        tell_of(&answer, plugin, command)?;
    }
    match answer["is_error"] == true {
        true => Err(Failure::new(FAILED, "")),
        false => Ok(()),
    }
}

/// What came of it. The output of a plugin goes to stdout, what is said about it to stderr.
fn tell_of(answer: &Value, plugin: &OnePlugin, command: &PluginCommand) -> Result<(), Failure> {
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
        PluginCommand::Call(_) => {
            let content = answer["content"].as_str().unwrap_or_default();
            write(&format!("{}\n", visible(content.trim_end_matches('\n'))))?;
            let took = answer["took_us"].as_u64().unwrap_or(0);
            let how = if answer["is_error"] == true { "failed" } else { "ok" };
            tell(&format!("{how} ({}.{} ms)", took / 1000, took % 1000 / 100));
        }
    }
    Ok(())
}

fn granted(answer: &Value) -> String {
    match words(&answer["capabilities"]) {
        none if none == "-" => "it has no capabilities".into(),
        grants => format!("its capabilities: {}", one_line(&grants, 500)),
    }
}

/// Which agents use it; or that one must be given it, and how. None where the daemon does not say.
fn given(answer: &Value, name: &str) -> Option<String> {
    let agents = answer["agents"].as_array()?;
    let those = |given: bool| {
        let those = agents.iter().filter(move |agent| (agent["given"] == true) == given);
        those.filter_map(|agent| agent["agent"].as_str()).collect::<Vec<_>>()
    };
    let given = those(true);
    if !given.is_empty() {
        return Some(format!("agents that use it: {}", one_line(&given.join(", "), 500)));
    }
    let agent = agents.iter().find(|agent| agent["default"] == true).or(agents.first())?;
    let tools = agent["tools"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let tools: Vec<&str> = tools.chain([name]).collect();
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

/// What the plugin is given.
fn input(options: &CallPlugin) -> Result<Value, Failure> {
    let bad = |why: String| Failure::new(USAGE, format!("the input: {why}"));
    let text = match (&options.input, &options.input_file) {
        (Some(text), _) if text != "-" => text.clone(),
        (None, None) => return Ok(json!({})),
        (_, file) => {
            let source: Box<dyn Read> = match file {
                Some(file) => {
                    let open = std::fs::File::open(file);
                    Box::new(open.map_err(|error| bad(format!("{}: {error}", file.display())))?)
                }
                None => Box::new(std::io::stdin()),
            };
            let mut text = String::new();
            source
                .take(INPUT_BYTES_MAX + 1)
                .read_to_string(&mut text)
                .map_err(|error| bad(error.to_string()))?;
            text
        }
    };
    if text.len() as u64 > INPUT_BYTES_MAX {
        return Err(bad(format!("more than {INPUT_BYTES_MAX} bytes")));
    }
    let input: Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if input.is_object() {
        Ok(input)
    } else {
        Err(bad("expected a JSON object, such as {\"text\":\"hi\"}".into()))
    }
}

fn row(plugin: &Value) -> [Cell; 10] {
    let number = |name: &str| plugin[name].as_u64().unwrap_or(0);
    let errors = number("errors");
    [
        text(plugin, "plugin").into(),
        state(plugin),
        text(plugin, "source").into(),
        number("calls").to_string().into(),
        Cell::toned(errors.to_string(), if errors > 0 { Tone::Warn } else { Tone::Plain }),
        under_way(plugin).into(),
        number("restarts").to_string().into(),
        text(plugin, "approval").into(),
        words(&plugin["capabilities"]).into(),
        plugin["error"].as_str().or(plugin["last_error"].as_str()).unwrap_or("-").into(),
    ]
}

fn state(plugin: &Value) -> Cell {
    let state = text(plugin, "state");
    let tone = match state.as_str() {
        "loaded" => Tone::Good,
        "loading" => Tone::Warn,
        _ => Tone::Bad,
    };
    Cell::toned(state, tone)
}

fn under_way(plugin: &Value) -> String {
    let number = |name: &str| plugin[name].as_u64().unwrap_or(0);
    match (number("running"), number("waiting")) {
        (running, 0) => running.to_string(),
        (running, waiting) => format!("{running} +{waiting}"),
    }
}

/// All there is to say about one.
fn described(plugin: &Value, now_ms: u64) -> String {
    let number = |name: &str| plugin[name].as_u64();
    let limits = &plugin["limits"];
    let limits = limits["timeout_ms"]
        .as_u64()
        .map(|timeout| format!("{timeout} ms, {} MiB, {} fuel", limits["memory_mb"], limits["fuel"]));
    let from = match plugin["path"].as_str() {
        Some(path) => format!("{} ({path})", text(plugin, "source")),
        None => text(plugin, "source"),
    };
    let failed =
        number("last_error_ms").map(|at| format!("{}: {}", ago(at, now_ms), text(plugin, "last_error")));
    let rows = [
        ("name", Some(text(plugin, "plugin"))),
        ("version", plugin["version"].as_str().map(str::to_owned)),
        ("about", plugin["description"].as_str().map(str::to_owned)),
        ("state", Some(text(plugin, "state"))),
        ("error", plugin["error"].as_str().map(str::to_owned)),
        ("from", Some(from)),
        ("grants", Some(words(&plugin["capabilities"]))),
        ("limits", limits),
        ("approval", plugin["approval"].as_str().map(str::to_owned)),
        ("idempotent", plugin["idempotent"].as_bool().map(|yes| if yes { "yes" } else { "no" }.to_owned())),
        (
            "calls",
            number("calls").map(|calls| {
                format!(
                    "{calls}, {} failed, {} of them cut off, {} under way",
                    number("errors").unwrap_or(0),
                    number("cut_off").unwrap_or(0),
                    under_way(plugin)
                )
            }),
        ),
        (
            "last call",
            number("last_call_us")
                .filter(|us| *us > 0)
                .map(|us| format!("took {}.{:03} ms", us / 1000, us % 1000)),
        ),
        ("last error", failed),
        ("restarts", number("restarts").map(|restarts| restarts.to_string())),
    ];
    let lines = rows
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name:<12}{}", one_line(&value, 2000))));
    lines.collect::<Vec<_>>().join("\n")
}

fn text(plugin: &Value, name: &str) -> String {
    plugin[name].as_str().unwrap_or("-").to_owned()
}

fn words(list: &Value) -> String {
    let all: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if all.is_empty() { "-".into() } else { all.join(" ") }
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
