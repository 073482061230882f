//! The bus: adapters on a real NATS server.

mod faults;
pub mod nats;

use std::process::{Command, Stdio};

use futures::StreamExt as _;
use serde_json::{Value, json};

use self::nats::{Adapter, Answer, Server};
use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::running::bounded;
use crate::support::tools::{self, needs};
use crate::support::{NOBODY, eventually};

const ADA: &str = "exoclaw.matrix.main.%40ada%3Aexample%2Eorg";

/// A configuration with a bus on these servers.
fn config(servers: &[&Server], more: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| server.url()).collect();
    format!("{more}\n[bus]\nservers = {servers:?}\n")
}

/// A server, a daemon on it, and an adapter.
fn started(more: &str) -> (Server, Daemon, Adapter) {
    let server = Server::start();
    let daemon = Daemon::with(&config(&[&server], more));
    let adapter = Adapter::new(&[server.url()]);
    adapter.await_streams();
    (server, daemon, adapter)
}

fn status(daemon: &Daemon) -> Value {
    let (_, stdout, stderr) = daemon.run(&["bus", "status", "--json"]);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

#[test]
fn a_message_is_answered_on_its_subject_and_where_it_wants_it() {
    needs!("nats-server");
    let (_server, daemon, adapter) = started("");
    let mut inbox = adapter.wait(adapter.client.subscribe("adapters.matrix")).unwrap();
    adapter.wait(adapter.client.flush()).unwrap();
    let headers = [("Nats-Msg-Id", "$1"), ("Clawmux-Reply", "adapters.matrix")];
    adapter.say_with(ADA, r#"{"content":"hello there","thinking":"low"}"#, &headers);
    let answer = adapter.answer_to("$1");
    assert_eq!(answer.subject, format!("{ADA}.answer"));
    let body = &answer.body;
    assert_eq!((&body["status"], &body["stop_reason"]), (&json!("completed"), &json!("end")), "{body}");
    assert_eq!(
        (body["run"].as_str(), body["session"].as_str()),
        (Some(&*answer.id), Some("main:matrix:main:@ada%3Aexample.org"))
    );
    assert!(
        body["text"].as_str().unwrap().contains("hello there")
            && body["usage"]["output_tokens"].as_u64() > Some(0),
        "{body}"
    );
    let besides = adapter.wait(inbox.next()).unwrap();
    let said: Value = serde_json::from_slice(&besides.payload).unwrap();
    assert_eq!((&said, besides.headers.unwrap().get("Nats-Msg-Id").unwrap().as_str()), (body, &*answer.id));
    // Plain text, on another spelling of the same subject; the same id is the same message.
    adapter.say("exoclaw.matrix.main.%40ada%3aexample%2eorg", "$2", "again");
    adapter.say(ADA, "$2", "again");
    assert_eq!(adapter.answer_to("$2").subject, format!("{ADA}.answer"));
    assert_eq!(adapter.answers().len(), 2);
    let sessions = daemon.rows_of(&["sessions"]);
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!(
        (&sessions[0]["session"], &sessions[0]["owner"]),
        (&json!("bus/main:matrix:main:@ada%3Aexample.org"), &json!("bus"))
    );
    let bus = status(&daemon);
    assert_eq!(
        (&bus["bus"], &bus["published_total"], &bus["dead_letters"]),
        (&json!("running"), &json!(2), &json!(0)),
        "{bus}"
    );
    assert!(daemon.stdout_of(&["bus", "status"]).starts_with("bus           running\n"));
    for line in [
        "clawmux_bus_up 1",
        "clawmux_bus_answers_total 2",
        // As it was when the server was last asked.
        "clawmux_bus_lag 0",
        "clawmux_bus_redeliveries_total ",
    ] {
        eventually(line, || daemon.get("/metrics").1.contains(line));
    }
    let acknowledged = || status(&daemon)["ack_pending"] == 0;
    eventually("both are acknowledged", acknowledged);
    assert_eq!(adapter.count("EXOCLAW"), 0, "what is durable here is no longer there");
}

#[test]
fn text_is_heard_as_it_is_said_and_then_whole() {
    needs!("nats-server");
    let (_server, _daemon, adapter) = started("");
    let mut live = adapter.wait(adapter.client.subscribe("exoclaw.*.*.*.live")).unwrap();
    adapter.wait(adapter.client.flush()).unwrap();
    adapter.say_with(ADA, "tell me more", &[("Nats-Msg-Id", "1"), ("Clawmux-Stream", "1")]);
    let answer = adapter.answer_to("1");
    let mut heard = String::new();
    let mut n = 0;
    while heard != answer.body["text"].as_str().unwrap() {
        let piece = adapter.wait(live.next()).unwrap();
        assert_eq!(piece.subject.as_str(), format!("{ADA}.live"));
        let piece: Value = serde_json::from_slice(&piece.payload).unwrap();
        assert_eq!((&piece["run"], &piece["n"]), (&answer.body["run"], &json!(n)));
        heard += piece["text"].as_str().unwrap();
        n += 1;
    }
    assert!(n > 1, "in pieces: {heard}");
}

#[test]
fn what_cant_be_taken_is_a_dead_letter_with_its_reason() {
    needs!("nats-server");
    let (_server, daemon, adapter) = started("[gateway]\nmax_payload_bytes = 2048\n");
    let json = ("Content-Type", "application/json");
    adapter.say_with(ADA, "{broken", &[("Nats-Msg-Id", "a"), json, ("X-Own", "kept")]);
    adapter.say(ADA, "b", "  ");
    adapter.say(ADA, "c", &"x".repeat(3000));
    adapter.say("exoclaw.matrix.main.b%4", "d", "hi");
    adapter.say_with(ADA, "hi", &[("Nats-Msg-Id", "e"), ("Clawmux-Reply", "$JS.API.STREAM.DELETE.EXOCLAW")]);
    adapter.say(ADA, &"g".repeat(600), "its id is too long");
    adapter.say(ADA, "f", "fine");
    assert_eq!(adapter.answer_to("f").body["status"], "completed");
    // Its peer is told as well, of all but the one whose peer nobody knows.
    for (id, says) in [("a", "no JSON"), ("b", "empty"), ("c", "2048"), ("e", "Clawmux-Reply")] {
        let answer = adapter.answer_to(id);
        assert_eq!((&*answer.id, &answer.body["status"]), (&*format!("refused-{id}"), &json!("refused")));
        assert!(answer.body["error"]["message"].as_str().unwrap().contains(says), "{:?}", answer.body);
    }
    eventually("all are dead letters", || adapter.count("EXOCLAW_DLQ") == 6);
    let letters = daemon.rows_of(&["bus", "dlq", "list"]);
    let of = |id: &str| {
        letters.iter().find(|letter| letter["id"] == id).unwrap_or_else(|| panic!("{id}: {letters:?}"))
    };
    assert!(of("d")["reason"].as_str().unwrap().contains("the peer in the subject is not encoded"));
    assert_eq!((&of("d")["subject"], &of("a")["deliveries"]), (&json!("exoclaw.matrix.main.b%4"), &json!(1)));
    let number = of("a")["letter"].to_string();
    let shown = daemon.json_of(&["bus", "dlq", "show", &number]);
    assert_eq!(shown["text"], "{broken");
    assert!(shown["headers"].as_array().unwrap().contains(&json!(["X-Own", "kept"])), "{shown}");
    assert!(daemon.stdout_of(&["bus", "dlq", "show", &number]).contains("says        {broken"));
    eventually("it is told", || daemon.stdout_of(&["doctor"]).contains("the bus has 6 dead letters"));
    // Where it came from, once more: it is refused again, under an id of its own.
    let replayed = daemon.stdout_of(&["bus", "dlq", "replay", &number]);
    assert!(replayed.starts_with("published again: letter"), "{replayed}");
    assert_eq!(adapter.answer_to("a#replay-1").body["status"], "refused");
    eventually("it is a dead letter again", || {
        daemon.rows_of(&["bus", "dlq", "list"]).iter().any(|letter| letter["id"] == "a#replay-1")
    });
    let again = daemon
        .rows_of(&["bus", "dlq", "list"])
        .iter()
        .find(|letter| letter["id"] == "a#replay-1")
        .unwrap()["letter"]
        .to_string();
    daemon.stdout_of(&["bus", "dlq", "replay", &again]);
    adapter.answer_to("a#replay-2");
    assert_eq!(daemon.run(&["bus", "dlq", "show", &number]).0, 1, "it is gone");
    eventually("all can be dropped", || {
        daemon.stdout_of(&["bus", "dlq", "drop", "--all"]);
        daemon.rows_of(&["bus", "dlq", "list"]).is_empty()
    });
    assert_eq!(daemon.run(&["bus", "dlq", "drop"]).0, 2, "it wants to know which");
}

#[test]
fn who_has_no_agent_or_no_budget_is_told_so() {
    needs!("nats-server");
    let more = "[default]\nagent = \"\"\n[[bindings]]\nagent = \"main\"\nchannel = \"known\"\n[budgets]\nsession = 1\n";
    let (_server, daemon, adapter) = started(more);
    adapter.say("exoclaw.stranger.main.x", "1", "hi");
    let answer = adapter.answer_to("1");
    assert_eq!(
        (&*answer.id, &answer.body["status"], &answer.body["error"]["code"]),
        ("refused-1", &json!("refused"), &json!("not_found"))
    );
    eventually("it is a dead letter besides", || adapter.count("EXOCLAW_DLQ") == 1);
    adapter.say("exoclaw.known.main.x", "2", "hi");
    let answer = adapter.answer_to("2");
    assert_eq!(
        (&*answer.id, &answer.body["status"], &answer.body["error"]["code"]),
        ("refused-2", &json!("refused"), &json!("budget_exceeded"))
    );
    adapter.say("exoclaw.known.main.x", "3", "/fail");
    adapter.answer_to("3");
    assert_eq!(daemon.rows_of(&["bus", "dlq", "list"]).len(), 1, "a budget is no reason to bury anything");
}

#[test]
fn who_waits_for_an_approval_is_told_and_then_answered() {
    needs!("nats-server");
    let (_server, daemon, adapter) = started("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n");
    adapter.say(ADA, "1", r#"/tool echo {"text":"done"}"#);
    let waits = || adapter.answers().into_iter().find(|answer| answer.body["status"] == "waiting");
    let waiting = eventually("it waits", waits);
    assert_eq!((&*waiting.to, &waiting.body["approval"]["tool"]), ("1", &json!("echo")));
    let id = waiting.body["approval"]["id"].as_str().unwrap();
    let run = waiting.body["run"].as_str().unwrap();
    assert_eq!(waiting.id, format!("{run}-approval-{id}"));
    // It waits over a restart, too, and is told once.
    let daemon = daemon.kill_and_restart();
    eventually("it still waits", || daemon.rows_of(&["approvals"]).len() == 1);
    daemon.stdout_of(&["approval", "approve", id]);
    let answer = adapter.answer_to("1");
    assert_eq!((&*answer.id, &answer.body["status"]), (run, &json!("completed")));
    assert_eq!(adapter.answers().len(), 2);
}

#[test]
fn agents_and_jobs_speak_to_those_who_have_written() {
    needs!("nats-server");
    let (_server, daemon, adapter) = started("[[bindings]]\nagent = \"main\"\nchannel = \"pager\"\n");
    adapter.say(ADA, "1", "hello");
    adapter.answer_to("1");
    let key = "bus/main:matrix:main:@ada%3Aexample.org";
    let job = ["job", "add", "--at", "+1s", "--delete-after", "--prompt", "as you say", "--result-to", key];
    daemon.stdout_of(&job);
    let said = || adapter.answers().into_iter().find(|answer| answer.to.is_empty());
    let said = eventually("the job's result", said);
    assert_eq!(said.subject.as_str(), format!("{ADA}.answer"));
    assert!(said.body["text"].as_str().unwrap().contains("as you say"), "{said:?}");
    // One whom only a binding names, too.
    let job = ["job", "add", "--at", "+1s", "--prompt", "wake up", "--result-to", "bus/main:pager:main:bob"];
    let id = daemon.json_of(&job)["job"].as_str().unwrap().to_owned();
    eventually("it is said", || {
        adapter.answers().iter().any(|answer| answer.subject == "exoclaw.pager.main.bob.answer")
    });
    eventually("it is done", || daemon.rows_of(&["job", "runs", &id]).iter().any(|run| run["state"] == "ok"));
    // It stands in the conversation as well.
    let shown = daemon.stdout_of(&["session", "show", key]);
    assert!(shown.contains("as you say"), "{shown}");
    // And so does what an agent has to say by itself, but not to those who never wrote.
    let job = ["job", "add", "--at", "+1s", "--prompt", "hm", "--result-to", "bus/main:matrix:main:eve"];
    let id = daemon.json_of(&job)["job"].as_str().unwrap().to_owned();
    let failed = || {
        daemon.rows_of(&["job", "runs", &id]).iter().any(|run| run["why"].to_string().contains("never wrote"))
    };
    eventually("it fails", failed);
}

#[test]
fn an_agent_writes_to_people_whom_it_may_write_to() {
    needs!("nats-server");
    let more = "[agents.main]\ntools = [\"sessions\"]\n[[bindings]]\nagent = \"main\"\nchannel = \"pager\"\n";
    let server = Server::start();
    let daemon = Daemon::with(&format!("{}channels = [\"pager\"]\n", config(&[&server], more)));
    let adapter = Adapter::new(&[server.url()]);
    adapter.await_streams();
    let mut client = Client::connect(daemon.address);
    let mut call = |input: Value| client.chat("ops", &format!("/tool send_message {input}"));
    let made = call(json!({ "channel": "pager", "peer": "bob", "text": "wake up" }));
    let result = made.data("tool_result").next().unwrap_or_else(|| panic!("{made:?}"));
    assert!(result["content"].as_str().unwrap().contains("\"sent\":true"), "{result}");
    let said: Answer = eventually("the message", || adapter.answers().pop());
    assert_eq!(
        (said.subject.as_str(), &said.body["text"]),
        ("exoclaw.pager.main.bob.answer", &json!("wake up"))
    );
    let made = call(json!({ "session": "bus/main:matrix:main:eve", "text": "psst" }));
    let result = made.data("tool_result").next().unwrap_or_else(|| panic!("{made:?}"));
    assert!(result["content"].as_str().unwrap().contains("never wrote over the channel matrix"), "{result}");
    assert_eq!(adapter.answers().len(), 1);
}

#[test]
fn two_daemons_on_one_bus_are_told_apart() {
    needs!("nats-server");
    let (server, first, adapter) = started("");
    eventually("the first takes messages", || status(&first)["bus"] == "running");
    let second = Daemon::with(&config(&[&server], ""));
    let claimed = || Some(status(&second)).filter(|bus| bus["bus"] == "claimed");
    let bus = eventually("the second stands back", claimed);
    let why = bus["why"].as_str().unwrap();
    assert!(
        why.contains("another daemon takes the messages")
            && why.contains(&format!("process {}", first.pid())),
        "{why}"
    );
    assert!(why.contains(&first.home().display().to_string()), "{why}");
    assert_eq!((second.run(&["bus", "status"]).0, second.get("/readyz").0), (1, 200));
    assert!(second.stdout_of(&["status"]).contains("another daemon takes the messages"));
    adapter.say(ADA, "1", "hi");
    adapter.answer_to("1");
    assert_eq!(status(&second)["received_total"], 0);
    // Once the first is gone the second takes over.
    drop(first);
    eventually("the second takes messages", || status(&second)["bus"] == "running");
    adapter.say(ADA, "2", "hi");
    assert_eq!(adapter.answer_to("2").body["status"], "completed");
}

#[test]
fn a_server_that_is_no_use_is_refused_in_a_sentence() {
    needs!("nats-server");
    let without = Server::with("");
    let shut = Server::with(
        "jetstream: { store_dir: \"STORE\" }\nauthorization: { token: \"let-me-in-0123456789\" }\n",
    );
    for (server, state, says) in [
        (without.url(), "refused", "no JetStream"),
        (shut.url(), "refused", "does not let us in"),
        (format!("nats://{NOBODY}"), "away", "can't be reached"),
    ] {
        let daemon = Daemon::with(&format!("[bus]\nservers = [{server:?}]\n"));
        let bus = eventually("it is refused", || Some(status(&daemon)).filter(|bus| bus["bus"] == state));
        assert!(bus["why"].as_str().unwrap().contains(says), "{bus}");
        assert_eq!(daemon.get("/readyz").0, 200, "the bus is no reason not to work");
        let mut client = Client::connect(daemon.address);
        client.chat("me", "hi");
        assert!(daemon.stdout_of(&["status"]).contains("the bus "), "{says}");
        assert!(daemon.stdout_of(&["doctor"]).contains(says), "{says}");
        assert!(daemon.get("/metrics").1.contains("clawmux_bus_up 0"));
    }
    // With what it wants it lets in; what it is does not reach the log.
    let file = shut.folder().join("token");
    std::fs::write(&file, "let-me-in-0123456789\n").unwrap();
    let daemon = Daemon::with(&format!(
        "[bus]\nservers = [{:?}]\ntoken_file = {:?}\n",
        shut.url(),
        file.display().to_string()
    ));
    eventually("it is let in", || status(&daemon)["bus"] == "running");
    assert!(
        !daemon.log().contains("let-me-in") && !daemon.stdout_of(&["config", "get"]).contains("let-me-in")
    );
}

#[test]
fn the_bus_comes_and_goes_with_the_configuration() {
    needs!("nats-server");
    let server = Server::start();
    let daemon = Daemon::start();
    let (code, _, stderr) = daemon.run(&["bus", "status"]);
    assert!(code == 1 && stderr.contains("there is no bus"), "{code} {stderr}");
    assert!(!daemon.get("/metrics").1.contains("clawmux_bus"));
    std::fs::write(daemon.home().join("gateway.toml"), config(&[&server], "")).unwrap();
    daemon.stdout_of(&["config", "reload"]);
    eventually("it is there", || status(&daemon)["bus"] == "running");
    std::fs::write(daemon.home().join("gateway.toml"), config(&[&server], "") + "principal = \"ops\"\n")
        .unwrap();
    daemon.stdout_of(&["config", "reload"]);
    eventually("it is another's", || {
        status(&daemon)["principal"] == "ops" && status(&daemon)["bus"] == "running"
    });
    let adapter = Adapter::new(&[server.url()]);
    adapter.say(ADA, "1", "hi");
    adapter.answer_to("1");
    assert_eq!(daemon.rows_of(&["sessions"])[0]["owner"], "ops");
    // Whoever spoke with it before and is awake speaks on.
    let other = config(&[&server], "") + "principal = \"ops\"\nchannels = [\"matrix\"]\n";
    std::fs::write(daemon.home().join("gateway.toml"), other).unwrap();
    daemon.stdout_of(&["config", "reload"]);
    adapter.say(ADA, "2", "hi again");
    assert_eq!(adapter.answer_to("2").body["status"], "completed");
    std::fs::write(daemon.home().join("gateway.toml"), "").unwrap();
    daemon.stdout_of(&["config", "reload"]);
    eventually("it is gone", || daemon.run(&["bus", "status"]).0 == 1);
}

/// The adapter of the documentation, with the official Python client.
#[test]
fn the_example_in_python_brings_events_in_and_answers_out() {
    needs!("nats-server");
    let python = tools::nats_folder().join("bin/python3");
    if !Command::new(&python).args(["-c", "import nats"]).output().is_ok_and(|ended| ended.status.success()) {
        return tools::missing("nats-py", tools::NATS);
    }
    let (server, _daemon, _adapter) = started("");
    let events = server.folder().join("events.jsonl");
    let event = |id: u32, room: &str, body: &str| {
        json!({ "type": "m.room.message", "room_id": room, "sender": "@ada:example.org", "event_id": format!("${id}"),
            "content": { "msgtype": "m.text", "body": body } }).to_string() + "\n"
    };
    let lines = event(1, "!a:example.org", "hello")
        + &event(2, "!b:example.org", "/fail")
        + &event(3, "!a:example.org", "bye");
    std::fs::write(&events, lines).unwrap();
    let mut command = Command::new(&python);
    command.arg("tests/clients/matrix_adapter.py").arg(&events).arg(server.url());
    let ended =
        bounded(&mut command).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}{stderr}");
    let answers: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |id: &str| {
        answers.iter().find(|answer| answer["to"] == id).unwrap_or_else(|| panic!("{id}: {stdout}"))
    };
    assert_eq!(answers.len(), 3, "{stdout}");
    assert!(of("$1")["body"].as_str().unwrap().contains("hello"), "{stdout}");
    assert_eq!((&of("$2")["status"], &of("$1")["room"]), (&json!("failed"), &json!("%21a%3Aexample%2Eorg")));
}
