//! `clawmux skills`: the skills in the folders of agents, and what is wrong with each.

use clawmux_actors::operator::skills_without_daemon;
use serde_json::{Value, json};

use super::print::{self, List};
use super::table::Cell;
use crate::admin_client::{Link, call, home_of};
use crate::answer::Members;
use crate::cli::Global;
use crate::exit::{FAILED, Failure};
use crate::settings;
use crate::terminal::{Tone, one_line, tell};

/// Runs `skills`.
///
/// # Errors
/// Status 69 if a daemon runs and can't be reached, 1 if there is no skill of this name, 64 if no daemon runs and the
/// configuration is bad.
pub(crate) fn run(global: &Global, name: Option<&str>) -> Result<(), Failure> {
    let home = home_of(global)?;
    let answer = match Link::open_if_there(&home)? {
        Some(_) => call(&home, "admin.skills", &json!({}))?,
        None => {
            let settings = settings::read(global, &[])?;
            futures::executor::block_on(skills_without_daemon(&settings.config))?
        }
    };
    let listed = answer.list("skills");
    if let Some(name) = name {
        let named: Vec<&Value> = listed.iter().filter(|skill| skill["skill"] == *name).collect();
        if named.is_empty() {
            let why = format!("there is no skill {}: `clawmux skills` lists them", one_line(name, 100));
            return Err(Failure::new(FAILED, why));
        }
        for skill in named {
            print::answer(global, skill, described);
        }
        return Ok(());
    }
    let list = List {
        rows: listed,
        head: ["NAME", "STATE", "AGENTS", "ABOUT"],
        gives_way: &["ABOUT", "AGENTS"],
        cells: |skill, _| row(skill),
        none: "there are no skills: put folders with a SKILL.md into skills/ of the home",
    };
    if list.print(global)? && listed.iter().all(|skill| skill["state"] == "not granted") {
        tell("no agent is offered any: add \"skills\" to its tools, such as agents.main.tools");
    }
    Ok(())
}

fn row(skill: &Value) -> [Cell; 4] {
    let state = skill.text("state");
    let tone = match state {
        "offered" => Tone::Good,
        "broken" => Tone::Bad,
        "left out" => Tone::Warn,
        _ => Tone::Plain,
    };
    let offered = skill.list("agents").iter().filter(|of| of["state"] == "offered");
    let agents: Vec<&str> = offered.map(|of| of.text("agent")).collect();
    let problem = skill.list("problems").first().map(in_words);
    [
        skill.text("skill").into(),
        Cell::toned(state, tone),
        if agents.is_empty() { "-".into() } else { agents.join(", ").into() },
        problem.unwrap_or_else(|| skill.text("description").to_owned()).into(),
    ]
}

fn in_words(problem: &Value) -> String {
    match problem["line"].as_u64() {
        Some(line) => format!("SKILL.md:{line}: {}", problem.text("message")),
        None => problem.text("message").to_owned(),
    }
}

/// All about one skill.
fn described(skill: &Value) -> String {
    let some = |name: &str| skill[name].as_str().map(str::to_owned);
    let agents = skill.list("agents").iter().map(|of| format!("{} ({})", of.text("agent"), of.text("state")));
    let rows = [
        ("name", some("skill")),
        ("state", some("state")),
        ("folder", some("folder")),
        ("about", some("description")),
        ("license", some("license")),
        ("needs", some("compatibility")),
        ("would use", some("allowed_tools")),
        ("agents", Some(agents.collect::<Vec<_>>().join(", "))),
    ];
    let mut lines = print::details(12, rows);
    for problem in skill.list("problems") {
        let word = if problem["is_fatal"] == true { "broken" } else { "warning" };
        lines.push(format!("{word:<12}{}", one_line(&in_words(problem), 2000)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_is_wrong_before_what_it_is_for() {
        let mut skill = json!({ "skill": "pdf", "state": "offered", "folder": "/s/pdf", "description": "Forms.",
            "agents": [{ "agent": "main", "state": "offered" }, { "agent": "x", "state": "not granted" }],
            "problems": [] });
        assert_eq!(
            row(&skill),
            [Cell::from("pdf"), Cell::toned("offered", Tone::Good), Cell::from("main"), Cell::from("Forms.")]
        );
        skill["state"] = "broken".into();
        skill["agents"] = json!([{ "agent": "main", "state": "broken" }]);
        skill["problems"] = json!([{ "line": 2, "message": "name: missing", "is_fatal": true }]);
        assert_eq!(row(&skill)[2..], [Cell::from("-"), Cell::from("SKILL.md:2: name: missing")]);
        let told = described(&skill);
        assert!(
            told.contains("folder      /s/pdf\n") && told.ends_with("broken      SKILL.md:2: name: missing"),
            "{told}"
        );
    }
}
