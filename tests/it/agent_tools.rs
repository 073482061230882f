//! What agents do with built-in tools besides remembering: jobs, other agents, other conversations; and whose those are.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;

const PEOPLE: [(&str, &str); 3] = [("ada", "user"), ("eve", "user"), ("boss", "admin")];

/// A daemon whose agent has these groups of tools.
fn start(groups: &str, more: &str) -> Daemon {
    let config = format!("[agents.main]\ntools = [{groups}]\n{more}\n[limits]\nrequests_burst = 0\n");
    Daemon::shared(&config, &PEOPLE, &[])
}

fn connect(daemon: &Daemon, who: &str) -> Client {
    Client::connect_with(daemon.address, &key_of(who))
}

/// Calls a tool as an agent does: what it is told, and whether that is an error.
fn call(client: &mut Client, tool: &str, input: Value) -> (String, bool) {
    let stream = client.chat("peer", &format!("/tool {tool} {input}"));
    assert_eq!((stream.events().last(), stream.error()), (Some(&"done"), ""), "the run goes on: {stream:?}");
    let Some(result) = stream.data("tool_result").next() else { return (stream.text(), true) };
    (result["content"].as_str().unwrap().to_owned(), result["is_error"] == true)
}

fn made(client: &mut Client, tool: &str, input: Value) -> String {
    let (told, is_error) = call(client, tool, input);
    assert!(!is_error, "{tool}: {told}");
    told
}

fn refused(client: &mut Client, tool: &str, input: Value, why: &str) {
    let (told, is_error) = call(client, tool, input.clone());
    assert!(is_error && told.contains(why), "{tool} {input}: {told}");
}

/// The sessions in the daemon, of all owners.
fn sessions(daemon: &Daemon) -> Vec<Value> {
    daemon.rows_of(&["sessions", "--all"])
}

#[test]
fn jobs_of_an_agent_are_those_of_the_owner_of_its_session() {
    let mut daemon = start("\"jobs\"", "");
    let mut ada = connect(&daemon, "ada");
    let daily = json!({ "prompt": "Look at the kettle.", "cron": "0 9 * * *", "timezone": "Europe/Berlin" });
    let added: Value = serde_json::from_str(&made(&mut ada, "job_add", daily)).unwrap();
    assert_eq!(
        (&added["name"], &added["when"]["cron"], &added["session"]),
        (&json!("Look at the kettle."), &json!("0 9 * * *"), &json!("ada/main:websocket:peer:main"))
    );
    let job = added["job"].as_str().unwrap();
    assert!(made(&mut ada, "job_list", json!({})).contains(job));
    for who in ["eve", "boss"] {
        let mut other = connect(&daemon, who);
        assert_eq!(made(&mut other, "job_list", json!({})), "there are no jobs", "{who}");
        assert!(
            made(&mut other, "job_remove", json!({ "job": job })).starts_with("there is no such job"),
            "{who}"
        );
    }
    let listed = daemon.rows_of(&["jobs"]);
    assert_eq!((listed.len(), &listed[0]["owner"]), (1, &json!("ada")), "{listed:?}");

    for (input, why) in [
        (json!({ "prompt": "x", "cron": "* * * * * *" }), "more often than every 60 s"),
        (json!({ "prompt": "x", "cron": "61 * * * *" }), "minute"),
        (json!({ "prompt": "x", "at": "2020-01-01T00:00:00Z" }), "has passed"),
        (json!({ "prompt": "x" }), "exactly one of"),
    ] {
        refused(&mut ada, "job_add", input, why);
    }

    daemon = daemon.kill_and_restart();
    let mut ada = connect(&daemon, "ada");
    assert!(made(&mut ada, "job_list", json!({})).contains(job));
    assert_eq!(made(&mut ada, "job_remove", json!({ "job": job })), "removed");
    assert_eq!(made(&mut ada, "job_list", json!({})), "there are no jobs");
    drop(daemon);
}

#[test]
fn a_run_that_a_job_began_adds_no_jobs() {
    let daemon = start("\"jobs\"", "");
    let mut ada = connect(&daemon, "ada");
    let again = json!({ "prompt": "x", "every_minutes": 1 });
    let job = json!({ "prompt": format!("/tool job_add {again}"), "every_minutes": 60, "name": "loop" });
    made(&mut ada, "job_add", job);
    let started = daemon.run(&["job", "run", "loop"]);
    assert_eq!(started.0, 0, "{started:?}");
    let told = eventually("the job is over", || {
        let (_, shown, _) = daemon.run(&["session", "show", "ada/main:websocket:peer:main", "--json"]);
        shown.contains("adds no jobs").then_some(shown)
    });
    assert!(told.contains("job_add"));
    assert_eq!(daemon.rows_of(&["jobs"]).len(), 1, "there is the one job still");
}

#[test]
fn an_agent_has_another_one_work_and_waits_for_it() {
    let helper = "[agents.helper]\ntools = [\"agents\"]\n[agents.bare]\ntools = []\n";
    let config = format!(
        "[agents.main]\ntools = [\"agents\"]\n{helper}[limits]\nrequests_burst = 0\nagent_depth = 2\nagents = 2\n"
    );
    let daemon = Daemon::shared(&config, &PEOPLE, &[]);
    let mut ada = connect(&daemon, "ada");
    let told = made(&mut ada, "agent_run", json!({ "prompt": "The kettle is red.", "agent": "helper" }));
    assert!(told.contains("The kettle is red."), "{told}");
    let worked = sessions(&daemon);
    let work: Vec<&Value> = worked
        .iter()
        .filter(|row| row["session"].as_str().is_some_and(|key| key.starts_with("ada/helper:agent:call-")))
        .collect();
    assert_eq!((work.len(), &work[0]["owner"]), (1, &json!("ada")), "it works for her: {worked:?}");
    let (_, shown, _) = daemon.run(&["session", "show", "ada/main:websocket:peer:main", "--json"]);
    assert!(!shown.contains("has completed its task"), "who waits for it is not told a second time: {shown}");

    refused(
        &mut ada,
        "agent_run",
        json!({ "prompt": "x", "agent": "nobody" }),
        "there are bare, helper, main",
    );
    let (told, is_error) = call(&mut ada, "agent_run", json!({ "prompt": "/fail", "agent": "bare" }));
    assert!(is_error && told.contains("the agent failed"), "{told}");

    // Three deep is one too many.
    let third = json!({ "prompt": "x" });
    let second = json!({ "prompt": format!("/tool agent_run {third}") });
    let first = json!({ "prompt": format!("/tool agent_run {second}") });
    let told = made(&mut ada, "agent_run", first);
    assert!(told.contains("no more than 2 may be"), "{told}");
}

#[test]
fn an_agent_that_nobody_waits_for_any_more_is_stopped() {
    let daemon = start("\"agents\"", "");
    let mut ada = connect(&daemon, "ada");
    let slow = json!({ "prompt": "/slow 600" });
    let id = ada.prompt("peer", &format!("/tool agent_run {slow}"));
    let works = |state: &'static str| {
        let is_at = move |row: &Value| {
            row["session"].as_str().is_some_and(|key| key.contains(":agent:call-")) && row["state"] == state
        };
        sessions(&daemon).iter().any(is_at)
    };
    eventually("the agent works", || works("running"));
    assert!(ada.abort(&id));
    eventually("the agent is stopped", || !works("running"));
    // Nobody's answer is left over: a new call has one of its own.
    assert!(made(&mut ada, "agent_run", json!({ "prompt": "hello" })).contains("hello"));
}

#[test]
fn a_crash_does_not_put_an_agent_to_work_twice() {
    let mut daemon = start("\"agents\"", "");
    let mut ada = connect(&daemon, "ada");
    let slow = json!({ "prompt": "/slow 3" });
    ada.prompt("peer", &format!("/tool agent_run {slow}"));
    let workers = |daemon: &Daemon| {
        let is_one = |row: &&Value| row["session"].as_str().is_some_and(|key| key.contains(":agent:call-"));
        sessions(daemon).iter().filter(is_one).count()
    };
    eventually("the agent works", || workers(&daemon) == 1);
    daemon = daemon.kill_and_restart();
    eventually("the call is answered", || {
        let (_, shown, _) = daemon.run(&["session", "show", "ada/main:websocket:peer:main", "--json"]);
        shown.lines().any(|line| line.contains("\"event\":\"end\"") || line.contains("\"event\":\"ended\""))
    });
    assert_eq!(workers(&daemon), 1);
    let (_, shown, _) = daemon.run(&["session", "show", "ada/main:websocket:peer:main", "--json"]);
    assert!(!shown.contains("interrupted"), "the call went on: {shown}");
}

#[test]
fn an_agent_reads_and_begins_conversations_of_its_owner_alone() {
    let daemon = start("\"sessions\"", "");
    let mut ada = connect(&daemon, "ada");
    let told =
        made(&mut ada, "send_message", json!({ "text": "The kettle boils.", "session": "main:cli:ada:new" }));
    assert!(told.contains("\"sent\":true"), "a conversation begins: {told}");
    let told = made(&mut ada, "session_read", json!({ "session": "main:cli:ada:new" }));
    assert!(told.ends_with("] The kettle boils.") && told.starts_with("[assistant, "), "{told}");
    let told = made(&mut ada, "session_list", json!({}));
    assert!(told.contains("ada/main:cli:ada:new") && told.contains("\"this\":true"), "{told}");
    let told = made(&mut ada, "session_read", json!({ "session": "main:websocket:peer:main", "turns": 1 }));
    let messages =
        told.lines().filter(|line| line.starts_with("[user, ") || line.starts_with("[assistant, "));
    assert_eq!(messages.count(), 2, "one turn has two: {told}");

    for who in ["eve", "boss"] {
        let mut other = connect(&daemon, who);
        refused(&mut other, "session_read", json!({ "session": "ada/main:cli:ada:new" }), "no such session");
        let told = made(&mut other, "session_list", json!({ "search": "ada" }));
        assert!(!told.contains("\"session\":\"ada/"), "{who}: {told}");
    }
    let mut eve = connect(&daemon, "eve");
    let told = made(&mut eve, "session_read", json!({ "session": "main:cli:ada:new" }));
    assert_eq!(told, "nothing was said in it", "the same key is another session");
    let input = json!({ "text": "x", "session": "ada/main:cli:ada:new" });
    refused(&mut eve, "send_message", input, "no such session");
    refused(&mut ada, "send_message", json!({ "text": "x", "session": "nobody:cli:a:b" }), "nobody");
    refused(
        &mut ada,
        "session_read",
        json!({ "session": "main:cli:ada:new", "turns": 100 }),
        "turns: expected",
    );
}

#[test]
fn rules_ask_before_built_in_tools_too() {
    let rules = "[[approvals.rules]]\ntool = \"sessions\"\nargument = \"text\"\nmatches = \"*secret*\"\n";
    let daemon = start("\"sessions\"", rules);
    let mut ada = connect(&daemon, "ada");
    made(&mut ada, "send_message", json!({ "text": "plain", "session": "main:cli:ada:new" }));
    let input = json!({ "text": "a secret", "session": "main:cli:ada:new" });
    let id = ada.prompt("peer", &format!("/tool send_message {input}"));
    let waiting = eventually("it waits", || daemon.rows_of(&["approvals"]).into_iter().next());
    assert_eq!(waiting["tool"], "send_message", "{waiting}");
    daemon.stdout_of(&["approval", "deny", waiting["approval"].as_str().unwrap()]);
    let stream = ada.stream(&id);
    assert!(stream.text().contains("send_message failed"), "{stream:?}");
    let told = made(&mut ada, "session_read", json!({ "session": "main:cli:ada:new" }));
    assert!(told.contains("plain") && !told.contains("secret"), "{told}");
}
