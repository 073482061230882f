//! `clawmux config get|set|unset|reload`: through the running daemon, which applies changes at once; if none
//! runs, on the files themselves, with the same checks.

use std::time::Duration;

use clawmux_actors::configuration::{Draft, Now, Setting};
use clawmux_core::config::{no_such_key, value_of_text};
use clawmux_core::error::{Error, ErrorCode};
use serde_json::{Value, json};

use super::print::{self, List};
use crate::admin_client::{Link, Refused, home_of};
use crate::answer::Members;
use crate::cli::{ConfigCommand, Global};
use crate::exit::{CONFIG, FAILED, Failure};
use crate::settings;
use crate::terminal::{one_line, tell};

/// How long the daemon may take to apply a configuration.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Runs `config`.
///
/// # Errors
/// Status 64 if the configuration is bad, or would be; 69 if no daemon is reachable that could
/// reload it.
pub(crate) fn run(global: &Global, command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Get { path } => get(global, path.as_deref()),
        ConfigCommand::Set { path, value } => change(global, path, &value_of_text(path, value)),
        ConfigCommand::Unset { path } => change(global, path, &Value::Null),
        ConfigCommand::Reload => {
            let mut link = Link::open(&home_of(global)?)?;
            let answer = ask(&mut link, "admin.config.reload", &json!({}))?;
            warn(&answer);
            print::answer(global, &answer, outcome);
            Ok(())
        }
    }
}

fn get(global: &Global, path: Option<&str>) -> Result<(), Failure> {
    path.map_or(Ok(()), is_key)?;
    let answer = match Link::open_if_there(&home_of(global)?)? {
        Some(mut link) => {
            let params = path.map_or_else(|| json!({}), |path| json!({ "path": path }));
            ask(&mut link, "admin.config.get", &params)?
        }
        None => {
            let now = Now::read(&settings::layers(global, &[])?).map_err(refused)?;
            let settings = now.all_settings(path).map_err(refused)?;
            let complaints = now.is_good().err().map(|error| error.message).unwrap_or_default();
            json!({ "settings": rows(&settings), "complaints": complaints.lines().collect::<Vec<_>>() })
        }
    };
    let (settings, complaints) = (answer.list("settings"), answer.texts("complaints"));
    for complaint in &complaints {
        tell(&format!("bad: {}", one_line(complaint, 2000)));
    }
    let head = ["KEY", "VALUE", "FROM"];
    let list =
        List { rows: settings, head, gives_way: &["VALUE"], cells: |setting, _| row(setting), none: "" };
    match path {
        _ if global.json => return print::objects(settings),
        // Where nothing can be read, nothing is known of the key.
        Some(path) if settings.is_empty() && complaints.is_empty() => {
            tell(&format!("nothing is set in {path}"));
        }
        Some(_) if settings.is_empty() => {}
        _ => list.print_table(),
    }
    Ok(())
}

/// Status 64 if this is no key and no section.
fn is_key(path: &str) -> Result<(), Failure> {
    no_such_key(path).map_or(Ok(()), |why| Err(Failure::new(CONFIG, one_line(&why, 2000))))
}

fn row(setting: &Value) -> [String; 3] {
    let text = |name: &str| setting[name].as_str();
    let from = text("at").or(text("from")).unwrap_or("-");
    let from = match text("waits_for") {
        None => from.to_owned(),
        Some(what) => format!("{from} (waits for a {what})"),
    };
    let (value, from) = match &setting["value"] {
        Value::Null if setting["at"].is_null() => ("-".to_owned(), from.replacen("default", "not set", 1)),
        value => (value.to_string(), from),
    };
    [text("path").unwrap_or("-").to_owned(), value, from]
}

fn change(global: &Global, path: &str, value: &Value) -> Result<(), Failure> {
    is_key(path)?;
    let answer = match Link::open_if_there(&home_of(global)?)? {
        Some(mut link) if value.is_null() => ask(&mut link, "admin.config.unset", &json!({ "path": path }))?,
        Some(mut link) => ask(&mut link, "admin.config.set", &json!({ "path": path, "value": value }))?,
        None => {
            let layers = settings::layers(global, &[])?;
            let draft = Draft::of_key(&layers, path, value).map_err(refused)?;
            draft.write().map_err(refused)?;
            let settings = draft.then().settings(Some(path)).map_err(refused)?;
            let warnings = draft.then().warnings();
            let warning = |it: &clawmux_core::config::request::ConfigIssue| json!({ "path": it.path, "message": it.message });
            json!({
                "file": draft.file.display().to_string(),
                "written": draft.is_change(),
                "settings": rows(&settings),
                "warnings": warnings.iter().map(warning).collect::<Vec<_>>(),
            })
        }
    };
    warn(&answer);
    print::answer(global, &answer, |answer| changed(path, answer));
    Ok(())
}

/// The outcome of a change, in words.
fn changed(path: &str, answer: &Value) -> String {
    let now: Vec<String> = answer
        .list("settings")
        .iter()
        .map(|setting| {
            let [key, value, from] = row(setting);
            format!("{key} = {value}  ({from})")
        })
        .collect();
    let now = if now.is_empty() { format!("{path} is not set") } else { now.join("\n") };
    let file = one_line(answer.text("file"), 1000);
    let what = match (answer["written"] == true, answer.get("applied").is_some()) {
        (false, _) => "nothing changed: the file says so already".to_owned(),
        (true, false) => format!("wrote {file}; no daemon runs, the next one starts with it"),
        (true, true) => format!("wrote {file}; {}", outcome(answer)),
    };
    format!("{}\n{what}", now.lines().map(|line| one_line(line, 2000)).collect::<Vec<_>>().join("\n"))
}

/// What the daemon applied, in words.
fn outcome(answer: &Value) -> String {
    let named =
        |name: &str| answer.texts(name).iter().map(|text| one_line(text, 200)).collect::<Vec<_>>().join(", ");
    let (applied, restart) = (named("applied"), named("needs_restart"));
    match (applied.is_empty(), restart.is_empty()) {
        (true, true) => "nothing has changed".into(),
        (false, true) => format!("applied: {applied}"),
        (true, false) => format!("needs a restart: {restart}"),
        (false, false) => format!("applied: {applied}\nneeds a restart: {restart}"),
    }
}

fn warn(answer: &Value) {
    for warning in answer.list("warnings") {
        let text = |name: &str| one_line(warning[name].as_str().unwrap_or_default(), 1000);
        let (path, message) = (text("path"), text("message"));
        let colon = if path.is_empty() { "" } else { ": " };
        tell(&format!("warning: {path}{colon}{message}"));
    }
}

fn ask(link: &mut Link, method: &str, params: &Value) -> Result<Value, Failure> {
    link.wait_for(Some(TIMEOUT))?;
    link.call(method, params, |_, _| {}).map_err(|why| match why {
        Refused::Error(error) => refused(error),
        unreachable => unreachable.into(),
    })
}

/// Each complaint on a line of its own.
fn refused(error: Error) -> Failure {
    let status = if error.code == ErrorCode::InvalidRequest { CONFIG } else { FAILED };
    let lines: Vec<String> = error.message.lines().map(|line| one_line(line, 2000)).collect();
    Failure::new(status, lines.join("\n"))
}

fn rows(settings: &[Setting]) -> Vec<Value> {
    settings.iter().map(Setting::to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_change_is_said() {
        let told = |applied: &[&str], restart: &[&str]| {
            outcome(&json!({ "applied": applied, "needs_restart": restart }))
        };
        assert_eq!(told(&[], &[]), "nothing has changed");
        assert_eq!(told(&["a.b"], &[]), "applied: a.b");
        assert_eq!(told(&[], &["c"]), "needs a restart: c");
        assert_eq!(told(&["a.b"], &["c", "d"]), "applied: a.b\nneeds a restart: c, d");
        let setting =
            json!({ "path": "limits.queue", "value": 3, "from": "file", "at": "f:2", "waits_for": "reload" });
        assert_eq!(row(&setting), ["limits.queue", "3", "f:2 (waits for a reload)"]);
        let answer = json!({ "file": "f", "written": true, "settings": [] });
        assert!(changed("limits.queue", &answer).starts_with("limits.queue is not set\nwrote f; no daemon"));
    }
}
