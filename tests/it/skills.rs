//! Skills, from the folder on the disk to what the model is told and reads, and what people are told of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon, key_of};
use crate::support::openclaw;
use crate::support::upstream::Upstream;

/// Writes a skill into a folder of skills.
fn skill(folder: &Path, name: &str, description: &str, body: &str) {
    fs::create_dir_all(folder.join(name)).unwrap();
    let text = format!("---\nname: {name}\ndescription: {description}\n---\n{body}");
    fs::write(folder.join(name).join("SKILL.md"), text).unwrap();
}

/// Calls `read_skill` as an agent does: what it is told, and whether that is an error.
fn read(client: &mut Client, input: &Value) -> (String, bool) {
    let stream = client.chat("peer", &format!("/tool read_skill {input}"));
    let Some(result) = stream.data("tool_result").next() else { return (stream.text(), true) };
    (result["content"].as_str().unwrap().to_owned(), result["is_error"] == true)
}

/// What the model was told first in each request.
fn told_first(upstream: &Upstream) -> Vec<String> {
    let system = |body: &Value| body["messages"][0]["content"].as_str().unwrap().to_owned();
    upstream.requests().iter().map(|request| system(&request.body)).collect()
}

#[test]
fn the_model_is_told_the_same_of_skills_until_they_change() {
    let upstream = Upstream::start();
    let home = daemon::home();
    let (own, others) = (home.path().join("skills"), home.path().join("more"));
    fs::write(home.path().join("SOUL.md"), "You are a heron.").unwrap();
    skill(&own, "pdf-forms", "Fills forms.", "# Forms");
    skill(&own, "twice", "The home's.", "x");
    skill(&others, "twice", "The agent's own.", "x");
    skill(&others, "alone", "By itself.", "x");
    skill(&own, "Broken", "No good name.", "x");
    let provider = format!(
        "[providers.up]\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n",
        upstream.base_url()
    );
    let config = format!("{provider}tools = [\"skills\"]\nskills = [\"more/alone\", \"more\"]\n");
    let (daemon, mut client) = Daemon::at(home, &config, &[]).and(Client::connect);
    for _ in 0..2 {
        assert_eq!(client.chat("ada", "hello").error(), "");
    }
    let own = daemon.home().join("skills");
    skill(&own, "new", "Came later.", "x");
    fs::remove_dir_all(own.join("pdf-forms")).unwrap();
    assert_eq!(client.chat("ada", "hello").error(), "");
    let told = told_first(&upstream);
    assert!(told[0].starts_with("You are a heron.\n\n# Skills\n"), "{}", told[0]);
    let lines = "\n- alone: By itself.\n- pdf-forms: Fills forms.\n- twice: The agent's own.";
    assert!(told[0].ends_with(lines), "{}", told[0]);
    assert_eq!(told[0], told[1], "nothing has changed");
    let lines = "\n- alone: By itself.\n- new: Came later.\n- twice: The agent's own.";
    assert!(told[2].ends_with(lines), "a change is seen without a restart: {}", told[2]);
    let tools = upstream.requests()[0].body["tools"].as_array().unwrap().clone();
    assert_eq!(tools.iter().map(|tool| &tool["function"]["name"]).collect::<Vec<_>>(), ["read_skill"]);
}

#[test]
fn an_agent_reads_a_skill_and_nothing_outside_of_it() {
    let home = daemon::home();
    let own = home.path().join("skills");
    skill(&own, "pdf-forms", "Fills forms.", "# Forms\nSee references/fields.md.\n");
    fs::create_dir(own.join("pdf-forms/references")).unwrap();
    fs::write(own.join("pdf-forms/references/fields.md"), "All fields.").unwrap();
    symlink("/etc/passwd", own.join("pdf-forms/references/out")).unwrap();
    let config = "[agents.main]\ntools = [\"skills\"]\n[limits]\nrequests_burst = 0\n";
    let (_daemon, mut client) = Daemon::at(home, config, &[]).and(Client::connect);
    let (told, is_error) = read(&mut client, &json!({ "name": "pdf-forms" }));
    let whole = "# Forms\nSee references/fields.md.\n\n[Files of this skill, read with `path`:]\n- references/fields.md";
    assert_eq!((told.as_str(), is_error), (whole, false));
    let fields = read(&mut client, &json!({ "name": "pdf-forms", "path": "references/fields.md" }));
    assert_eq!(fields, ("All fields.".to_owned(), false));
    for (input, why) in [
        (json!({ "name": "pdf-forms", "path": "../../gateway.toml" }), "is no path within the skill"),
        (json!({ "name": "pdf-forms", "path": "/etc/passwd" }), "is no path within the skill"),
        (json!({ "name": "pdf-forms", "path": "references/out" }), "links within a skill are not followed"),
        (
            json!({ "name": "../skills/pdf-forms" }),
            "there is no skill \"../skills/pdf-forms\": there are pdf-forms",
        ),
        (json!({ "skill": "pdf-forms" }), "unknown field \"skill\""),
    ] {
        let (told, is_error) = read(&mut client, &input);
        assert!(is_error && told.contains(why), "{input}: {told}");
    }
}

#[test]
fn an_agent_that_was_not_granted_skills_knows_of_none() {
    let home = daemon::home();
    skill(&home.path().join("skills"), "pdf-forms", "Fills forms.", "x");
    let (daemon, mut client) = Daemon::at(home, "", &[]).and(Client::connect);
    let (told, is_error) = read(&mut client, &json!({ "name": "pdf-forms" }));
    assert!(is_error && told.contains("read_skill"), "{told}");
    let (status, table, hint) = daemon.run(&["skills"]);
    assert_eq!(status, 0);
    assert!(table.contains("not granted") && hint.contains("add \"skills\" to its tools"), "{table}{hint}");
}

#[test]
fn people_are_told_what_is_wrong_with_each_skill() {
    let home = daemon::home();
    let own = home.path().join("skills");
    skill(&own, "good", "Works.", "x");
    skill(&own, "bad", "use it: now", "x");
    skill(&own, "wordy", &"w".repeat(1000), "x");
    fs::create_dir(own.join("empty")).unwrap();
    let config =
        "[agents.main]\ntools = [\"skills\"]\nskills = [\"nowhere\"]\n[memory]\ncontext_tokens = 1000\n";
    let config = format!(
        "{config}[auth]\n[[auth.api_keys]]\nname = \"ada\"\nkey_file = \"ada.key\"\nrole = \"user\"\n"
    );
    fs::write(home.path().join("ada.key"), key_of("ada")).unwrap();
    fs::set_permissions(home.path().join("ada.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::at(home, &config, &[]);
    let rows = |daemon: &Daemon| {
        let rows = daemon.rows_of(&["skills"]);
        let row = |row: &Value| {
            let text = |name: &str| row[name].as_str().unwrap().to_owned();
            (text("skill"), text("state"))
        };
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let expected = [("bad", "broken"), ("empty", "broken"), ("good", "offered"), ("wordy", "left out")];
    let expected = expected.map(|(name, state)| (name.to_owned(), state.to_owned()));
    assert_eq!(rows(&daemon), expected);
    let shown = daemon.stdout_of(&["skills", "bad"]);
    assert!(shown.contains("broken      SKILL.md:3: "), "{shown}");
    let (status, _, why) = daemon.run(&["skills", "none"]);
    assert!(status == 1 && why.contains("there is no skill none"), "{why}");

    // `check` and `doctor` say so too.
    for command in ["check", "doctor"] {
        let (_, out, err) = daemon.run(&[command]);
        let said = out + &err;
        for what in
            ["skills/bad: SKILL.md:3: ", "skills/empty: there is no SKILL.md in it", "nowhere is no folder"]
        {
            assert!(said.contains(what), "{command}: {what}: {said}");
        }
    }

    // Clients of OpenClaw see them; whoever is no operator sees no paths, and none that are broken.
    let mut ada = openclaw::connect_with(daemon.address, json!({ "auth": { "token": key_of("ada") } }));
    let seen = openclaw::call(&mut ada, "skills.status", json!({}));
    let seen: Vec<(&str, bool, &str)> = seen["skills"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |name: &str| row[name].as_str().unwrap();
            (text("name"), row["eligible"] == true, text("baseDir"))
        })
        .collect();
    assert_eq!(seen, [("good", true, ""), ("wordy", false, "")]);

    let mut daemon = daemon;
    assert!(daemon.terminate().success());
    let rows = rows(&daemon);
    assert_eq!(rows, expected, "they are looked at without a daemon as well");
}
