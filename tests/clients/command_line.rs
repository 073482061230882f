//! The command lines, as a user or a script calls them.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::npm::Generation;
use crate::stage::{Auth, Stage};
use crate::support::TIMEOUT;
use crate::support::tools::needs;

/// What a command printed, once it has ended well.
fn run(stage: &Stage, args: &[&str]) -> String {
    let (well, said) = end(stage.command(args));
    assert!(well, "{} {args:?} failed:\n{said}\n{}", stage.generation.name(), log(stage));
    said
}

fn log(stage: &Stage) -> String {
    stage.daemon().map(crate::support::daemon::Daemon::log).unwrap_or_default()
}

/// Whether it ended well, and what it printed.
fn end(mut command: Command) -> (bool, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        // They load some hundred files each time.
        if begin.elapsed() > TIMEOUT * 2 {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "{command:?} does not end; it said:\n{}{}",
                stdout.join().unwrap(),
                stderr.join().unwrap()
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let said = stdout.join().unwrap() + &stderr.join().unwrap();
    (status.success(), said)
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The JSON object that a command printed, among lines of other things.
fn json_in(said: &str) -> Value {
    let begin = said.lines().position(|line| line.starts_with('{') || line.starts_with('['));
    let rest: Vec<&str> = said.lines().skip(begin.unwrap_or(usize::MAX)).collect();
    let rest = rest.join("\n");
    let first = serde_json::Deserializer::from_str(&rest).into_iter::<Value>().next();
    first.and_then(Result::ok).unwrap_or_else(|| panic!("no JSON in:\n{said}"))
}

/// `gateway call METHOD`.
fn call(stage: &Stage, method: &str, params: &str) -> Value {
    json_in(&run(stage, &["gateway", "call", method, "--params", params, "--json"]))
}

#[test]
fn clawdbots_with_a_token() {
    needs!("clients", "npm");
    asks_and_prompts(Generation::Clawdbot);
}

#[test]
fn openclaws_with_a_token() {
    needs!("clients", "npm");
    asks_and_prompts(Generation::OpenClaw);
}

#[test]
fn clawdbots_without_a_credential() {
    needs!("clients", "npm");
    without_a_credential(Generation::Clawdbot);
}

#[test]
fn openclaws_without_a_credential() {
    needs!("clients", "npm");
    without_a_credential(Generation::OpenClaw);
}

#[test]
fn clawdbots_have_jobs_done() {
    needs!("clients", "npm");
    has_jobs_done(Generation::Clawdbot);
}

#[test]
fn openclaws_have_jobs_done() {
    needs!("clients", "npm");
    has_jobs_done(Generation::OpenClaw);
}

fn has_jobs_done(generation: Generation) {
    let stage = Stage::offline(generation, Auth::Token);
    let add = ["cron", "add", "--name", "herons", "--every", "1h", "--session", "isolated"];
    let added = json_in(&run(&stage, &[&add[..], &["--message", "look at the herons", "--json"]].concat()));
    let id = added["id"].as_str().unwrap_or_else(|| panic!("no id in {added:#}")).to_owned();
    let table = run(&stage, &["cron", "list"]);
    assert!(table.contains("herons") && table.contains("every 1h"), "{table}");

    let force: &[&str] = if generation == Generation::Clawdbot { &["--force"] } else { &["--wait"] };
    let ran = json_in(&run(&stage, &[&["cron", "run", &id], force].concat()));
    assert_eq!(ran["ok"], true, "{ran:#}");
    let runs = json_in(&run(&stage, &["cron", "runs", "--id", &id]));
    let entries = runs["entries"].as_array().unwrap_or_else(|| panic!("no entries in {runs:#}"));
    assert_eq!((entries.len(), &entries[0]["status"]), (1, &"ok".into()), "{runs:#}");
    assert!(entries[0]["summary"].as_str().unwrap().contains("look at the herons"), "{runs:#}");

    let off = json_in(&run(&stage, &["cron", "disable", &id]));
    assert_eq!(off["enabled"], false, "{off:#}");
    let gone = json_in(&run(&stage, &["cron", "rm", &id]));
    assert_eq!(gone["removed"], true, "{gone:#}");
    run(&stage, &["system", "event", "--text", "the herons are here", "--mode", "now"]);
    let history = call(&stage, "chat.history", r#"{"sessionKey":"agent:main:main"}"#);
    assert!(history.to_string().contains("look at the herons"), "the result of the job: {history:#}");
}

fn prompt(stage: &Stage, message: &str) -> Value {
    json_in(&run(stage, &["agent", "--agent", "main", "--message", message, "--json"]))
}

/// The text of an answer of `agent --json`.
fn text(answer: &Value) -> &str {
    answer["result"]["payloads"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer:#}"))
}

fn without_a_credential(generation: Generation) {
    let stage = Stage::offline(generation, Auth::Open);
    run(&stage, &["health"]);
    let answer = prompt(&stage, "may I come in");
    assert!(text(&answer).contains("may I come in"), "{answer:#}");
}

fn asks_and_prompts(generation: Generation) {
    let stage = Stage::new(generation, Auth::Token);
    stage.will_say(&["Herons ", "wade ", "slowly."]);
    let answer = prompt(&stage, "what do herons do");
    assert_eq!(text(&answer), "Herons wade slowly.", "{answer:#}");
    assert_eq!(answer["status"], "ok", "{answer:#}");

    let health = json_in(&run(&stage, &["health", "--json"]));
    assert_eq!(health["ok"], true, "{health:#}");

    let status = run(&stage, &["status"]);
    assert!(status.contains("reachable") && !status.contains("unreachable"), "{status}");

    let probe = json_in(&run(&stage, &["gateway", "probe", "--json"]));
    assert_eq!(probe["ok"], true, "{probe:#}");

    let gateway = run(&stage, &["gateway", "status"]);
    assert!(gateway.contains("probe: ok"), "{gateway}");

    let devices = run(&stage, &["devices", "list"]);
    assert!(devices.contains("Paired") || devices.contains("No device"), "{devices}");

    run(&stage, &["channels", "status"]);
    run(&stage, &["nodes", "list"]);
    run(&stage, &["logs", "--limit", "5"]);

    let sessions = call(&stage, "sessions.list", "{}");
    let key = |session: &Value| session["key"] == "agent:main:main";
    assert!(sessions["sessions"].as_array().unwrap().iter().any(key), "{sessions:#}");

    let history = call(&stage, "chat.history", r#"{"sessionKey":"agent:main:main"}"#);
    let said = history["messages"].to_string();
    assert_eq!(said.matches("Herons wade slowly.").count(), 1, "{history:#}");

    let models = call(&stage, "models.list", "{}");
    let is_ours = |model: &Value| model["id"] == "test-model";
    assert!(models["models"].as_array().unwrap().iter().any(is_ours), "{models:#}");
}

/// A wrong token, and a method that nobody has, are said plainly.
#[test]
fn refusals_are_said_plainly() {
    needs!("clients", "npm");
    for generation in Generation::ALL {
        let stage = Stage::offline(generation, Auth::Token);
        let (well, said) = end(stage.command(&["gateway", "call", "no.such.method", "--json"]));
        assert!(!well && said.contains("unknown method: no.such.method"), "{generation:?}: {said}");

        let file = generation.configuration(stage.home.path());
        let config = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, config.replace(crate::stage::TOKEN, "a-wrong-token-1234")).unwrap();
        // Neither may it get in by what it kept from before.
        let state = file.parent().unwrap().join("identity");
        let _ = std::fs::remove_dir_all(state);
        let (well, said) = end(stage.command(&["health"]));
        assert!(!well && said.contains("unauthorized"), "{generation:?}: {said}");
        assert!(said.contains("token mismatch"), "{generation:?}: {said}");
    }
}
