//! The operator's commands about connections, actors, plugins and spending, over the binary and the
//! socket as they ship.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::guest::guest;
use crate::support::lines::Lines;
use crate::support::running::Running;
use crate::support::tools::{needs, skip};
use crate::support::wundr::Wundr;
use crate::support::{TIMEOUT, eventually};

const ADA: &str = "main:websocket:ada:main";

/// Answers `ok`.
const OK: &str = "(call $say (i32.const 111) (i32.const 107)) i32.const 0";
/// Answers `no`.
const NO: &str = "(call $say (i32.const 110) (i32.const 111)) i32.const 0";
const SPIN: &str = "(loop $l (br $l)) i32.const 0";

/// Puts a module into the plugins folder of a home.
fn put(home: &Path, name: &str, module: &[u8]) {
    let folder = home.join("plugins");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(format!("{name}.wasm")), module).expect("a file");
}

fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().unwrap_or_else(|| panic!("{name} of {answer}"))
}

fn find<'a>(answer: &'a Value, list: &str, name: &str, value: &str) -> &'a Value {
    let found = rows(answer, list).iter().find(|row| row[name] == value);
    found.unwrap_or_else(|| panic!("no {value} in {answer}"))
}

#[test]
fn who_is_connected_is_told_and_can_be_sent_away() {
    let daemon = Daemon::start();
    // Who asks is connected too, over the Unix socket.
    let alone = daemon.rows_of(&["connections"]);
    let oneself = &alone[0];
    assert_eq!((alone.len(), &oneself["principal"]), (1, &json!("socket")), "{alone:?}");
    assert!(oneself["peer"].as_str().is_some_and(|peer| peer.starts_with("user ")), "{alone:?}");

    let mut ada = Client::connect(daemon.address);
    ada.chat("ada", "hi");
    let mut wundr = Wundr::connect(daemon.address);
    let answer = json!({ "connections": daemon.rows_of(&["connections"]) });
    let told = find(&answer, "connections", "protocol", "exoclaw");
    assert_eq!((&told["principal"], &told["follows"]), (&json!("local"), &json!(1)), "{told}");
    for name in ["received_bytes", "sent_bytes", "since_ms", "connection"] {
        assert!(told[name].as_u64().is_some_and(|number| number > 0), "{name}: {told}");
    }
    assert!(told["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{told}");
    assert_eq!(rows(&answer, "connections").len(), 3, "{answer}");
    let table = daemon.stdout_of(&["connections"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["ID", "PROTOCOL", "WHO", "PEER"], "{table}");
    assert_eq!((lines.len(), lines[2][1], lines[3][1]), (4, "wundr", "exoclaw"), "the latest first: {table}");
    assert_eq!(lines[3].last(), Some(&"open"), "{table}");
    let (_, stdout, stderr) = daemon.run(&["connections", "--limit", "1"]);
    assert!(stdout.lines().count() == 2 && stderr.contains("the latest 1 of 3"), "{stdout}{stderr}");

    let id = told["connection"].to_string();
    let said = daemon.stdout_of(&["connection", "close", &id]);
    assert!(said.starts_with(&format!("closed connection {id} from 127.0.0.1:")), "{said}");
    while ada.receive_or_close().is_ok() {}
    wundr.call("health.ping", json!({})).is_object().then_some(()).expect("others are not disturbed");
    eventually("it to be gone", || daemon.rows_of(&["connections"]).len() == 2);
    let counted = Lines::connect(daemon.home()).call("admin.connections", json!({}));
    assert_eq!(counted["closed"]["operator"], 1, "{counted}");
    let (status, _, stderr) = daemon.run(&["connection", "close", &id]);
    assert!(status == 1 && stderr.contains(&format!("there is no connection {id}")), "{stderr}");
    assert!(Client::connect(daemon.address).chat("ada", "again").text().contains("again"));
}

#[test]
fn the_tree_of_actors_says_how_far_each_is_behind() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    client.chat("ada", "hi");
    client.chat("bob", "hi");
    let tree = daemon.json_of(&["actors"]);
    assert_eq!((&tree["actor"], &tree["silent"]), (&json!("gateway"), &Value::Null));
    for name in
        ["store", "sandbox supervisor", "provider supervisor", "hub", "session supervisor", "listener"]
    {
        let actor = find(&tree, "children", "actor", name);
        assert!(actor["mailbox_wait_us"].is_u64() && actor["silent"].is_null(), "{actor}");
    }
    let sessions = find(&tree, "children", "actor", "session supervisor");
    assert_eq!((&sessions["restarts"], &sessions["children_total"]), (&json!(0), &json!(2)));
    let ada = find(sessions, "children", "actor", &format!("session {ADA}"));
    assert!(ada["mailbox_wait_us"].is_u64() && ada["queued"] == 0, "{ada}");
    let store = find(&tree, "children", "actor", "store");
    assert!(store["queued"].is_u64() && store["state"]["commits"].as_u64() > Some(0), "{store}");

    let table = daemon.stdout_of(&["actors"]);
    assert!(table.starts_with("ACTOR"), "{table}");
    assert!(
        table.contains("├─ session supervisor") && table.contains(&format!("─ session {ADA}")),
        "{table}"
    );
    assert!(table.contains("doing=nothing") && !table.contains("queued=0"), "{table}");
    assert!(daemon.stdout_of(&["actors", "--figures"]).contains("queued=0"));
    let few = daemon.stdout_of(&["actors", "--children", "1"]);
    assert!(few.contains(" more: --children N") && few.lines().count() < table.lines().count(), "{few}");
}

#[test]
fn plugins_come_go_and_are_tried() {
    let home = daemon::home();
    put(home.path(), "mine", &guest(OK));
    put(home.path(), "spin", &guest(SPIN));
    put(home.path(), "burn", &guest(SPIN));
    put(home.path(), "later", &guest(OK));
    std::fs::write(home.path().join("plugins/bad.wasm"), "bad").expect("a file");
    let entry = |name: &str, more: &str| {
        format!("[[plugins]]\nname = \"{name}\"\npath = \"plugins/{name}.wasm\"\n{more}\n")
    };
    let config = [
        "[agents.main]\ntools = [\"echo\", \"mine\", \"spin\"]\n".to_owned(),
        entry("mine", "approval = \"ask\"\ncapabilities = [\"host_function:clock\"]"),
        entry("spin", "timeout_ms = 1500\nfuel = 100000000000"),
        entry("burn", "fuel = 1000000"),
        entry("bad", ""),
    ];
    let daemon = Daemon::at(home, &config.concat(), &[]);

    let listed = eventually("all to be settled", || {
        let listed = json!({ "plugins": daemon.rows_of(&["plugins"]) });
        rows(&listed, "plugins").iter().all(|plugin| plugin["state"] != "loading").then_some(listed)
    });
    let names: Vec<_> = rows(&listed, "plugins").iter().map(|plugin| plugin["plugin"].clone()).collect();
    assert_eq!(names, ["bad", "burn", "clock", "echo", "mine", "spin"]);
    let mine = find(&listed, "plugins", "plugin", "mine");
    assert_eq!(
        (&mine["state"], &mine["source"], &mine["approval"], &mine["capabilities"], &mine["calls"]),
        (&json!("loaded"), &json!("configured"), &json!("ask"), &json!(["host_function:clock"]), &json!(0))
    );
    assert_eq!(
        mine["limits"],
        json!({ "timeout_ms": 5000, "memory_mb": 64, "fuel": 1_000_000_000, "output_bytes": 1_048_576,
            "host_calls": 10_000, "http_bytes": 4_194_304 })
    );
    assert!(mine["path"].as_str().is_some_and(|path| path.ends_with("plugins/mine.wasm")), "{mine}");
    let bad = find(&listed, "plugins", "plugin", "bad");
    assert!(bad["state"] == "failed" && bad["error"].as_str().expect("why").contains("WebAssembly"), "{bad}");

    // Trying one is under its own grants and limits, and its output alone is on stdout.
    let (status, stdout, stderr) = daemon.run(&["plugin", "call", "mine"]);
    assert_eq!((status, stdout.as_str()), (0, "ok\n"), "nobody is asked for approval: {stderr}");
    assert!(stderr.starts_with("ok (") && stderr.trim_end().ends_with(" fuel)"), "{stderr}");
    let answer = daemon.json_of(&["plugin", "call", "echo", r#"{"text":"\u001b[2Jhi"}"#]);
    assert_eq!((&answer["content"], &answer["is_error"]), (&json!("\u{1b}[2Jhi"), &json!(false)));
    assert!(answer["took_us"].as_u64() > Some(0), "{answer}");
    let shown = daemon.stdout_of(&["plugin", "call", "echo", r#"{"text":"\u001b[2Jhi"}"#]);
    assert_eq!(shown, "\\u{1b}[2Jhi\n", "a terminal obeys nothing of it");
    let (status, stdout, stderr) = daemon.run(&["plugin", "call", "burn"]);
    assert_eq!((status, stdout.as_str()), (1, "plugin burn ran out of fuel (limit 1000000)\n"), "{stderr}");
    let (status, stdout, _) = daemon.run(&["plugin", "call", "nobody"]);
    assert!(status == 1 && stdout.contains("there is no tool"), "{stdout}");

    // A new one takes over without cutting what is under way.
    let home = daemon.home();
    std::thread::scope(|scope| {
        let spinning = scope.spawn(|| daemon.run(&["plugin", "call", "spin"]));
        eventually("the call to be under way", || {
            let listed = json!({ "plugins": daemon.rows_of(&["plugins"]) });
            find(&listed, "plugins", "plugin", "spin")["running"] == 1
        });
        put(home, "spin", &guest(NO));
        let said = daemon.stdout_of(&["plugin", "reload", "spin"]);
        assert!(said.starts_with("reloaded plugin spin; it has no capabilities"), "{said}");
        assert_eq!(daemon.stdout_of(&["plugin", "call", "spin"]), "no\n", "the new one answers");
        let (status, stdout, _) = spinning.join().expect("it ends");
        assert_eq!((status, stdout.as_str()), (1, "plugin spin took longer than 1500 ms\n"));
    });
    std::fs::write(home.join("plugins/spin.wasm"), "bad").expect("a file");
    let (status, _, stderr) = daemon.run(&["plugin", "reload", "spin"]);
    assert!(status == 1 && stderr.trim_end().ends_with("; the one there was goes on"), "{stderr}");
    assert_eq!(daemon.stdout_of(&["plugin", "call", "spin"]), "no\n");

    // A file of the plugins folder is found by its name; one that is not there names those that are.
    let (status, _, stderr) = daemon.run(&["plugin", "load", "sooner"]);
    assert!(status == 1 && stderr.contains("no plugins/sooner.wasm"), "{stderr}");
    assert!(stderr.contains("there are: bad, burn, later, mine, spin"), "{stderr}");
    let said = daemon.stdout_of(&["plugin", "load", "later"]);
    assert!(said.starts_with("loaded plugin later; it has no capabilities\n"), "{said}");
    assert!(said.contains("no agent uses it yet") && said.contains("[[plugins]]"), "{said}");
    let entry = "`clawmux config set agents.main.tools echo,mine,spin,later`";
    assert!(said.contains(entry), "{said}");
    let later = daemon.json_of(&["plugins", "later"]);
    assert_eq!((&later["source"], &later["state"]), (&json!("loaded"), &json!("loaded")), "{later}");
    let (status, _, stderr) = daemon.run(&["plugin", "load", "later"]);
    assert!(status == 1 && stderr.contains("unload it first"), "{stderr}");
    let (status, _, stderr) = daemon.run(&["plugin", "load", "out", "--path", "../gateway.toml"]);
    assert!(status == 1 && stderr.contains("is not in "), "{stderr}");
    assert!(daemon.stdout_of(&["plugin", "unload", "later"]).starts_with("unloaded plugin later"));
    for command in ["unload", "reload"] {
        let (status, _, stderr) = daemon.run(&["plugin", command, "later"]);
        assert!(status == 1 && stderr.contains("\"later\" is not loaded"), "{command}: {stderr}");
    }

    let table = daemon.stdout_of(&["plugins"]);
    let line = |name: &str| -> Vec<&str> {
        let line = table.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {table}")).split_whitespace().collect()
    };
    assert_eq!(line("burn")[..5], ["burn", "loaded", "configured", "1", "1"], "{table}");
    assert!(line("bad").join(" ").contains("not a WebAssembly module"), "{table}");
    let told = daemon.stdout_of(&["plugins", "burn"]);
    assert!(told.contains("limits      5000 ms, 64 MiB, 1000000 fuel"), "{told}");
    assert!(told.contains("calls       1, 1 failed") && told.contains("ran out of fuel"), "{told}");
    let (status, _, stderr) = daemon.run(&["plugins", "nobody"]);
    assert!(status == 1 && stderr.contains("there is no plugin nobody"), "{stderr}");
    let problems = daemon.json_of(&["status"])["problems"].clone();
    assert!(problems[0].as_str().is_some_and(|problem| problem.contains("plugin bad")), "{problems}");
}

#[test]
fn what_was_spent_is_added_up_and_stands_against_the_budgets() {
    let daemon = Daemon::with("[budgets]\ndaily = 2000\nsession = 1500\n");
    let (_, _, stderr) = daemon.run(&["usage"]);
    assert!(stderr.contains("nothing was spent"), "{stderr}");
    let mut client = Client::connect(daemon.address);
    let (mut input, mut output) = (0, 0);
    for name in ["ada", "bob", "ada"] {
        let (read, written) = client.chat(name, "count this").usage();
        (input, output) = (input + read, output + written);
    }
    let spent = json!({
        "input_tokens": input, "output_tokens": output, "tokens": input + output,
        "cache_read_tokens": 0, "cache_write_tokens": 0, "calls": 3, "cost": 0.0, "calls_without_price": 0,
    });
    let usage = eventually("all to be counted", || {
        let usage = daemon.json_of(&["usage"]);
        (usage["today"] == spent).then_some(usage)
    });
    assert_eq!((&usage["month"], rows(&usage, "rows").len()), (&spent, 1), "{usage}");
    let daily = find(&usage, "budgets", "budget", "daily");
    assert_eq!(
        (&daily["limit_tokens"], &daily["used_tokens"], &daily["left_tokens"]),
        (&json!(2000), &spent["tokens"], &json!(2000 - input - output))
    );
    let session = find(&usage, "budgets", "budget", "session");
    assert_eq!((&session["limit_tokens"], &session["used_tokens"]), (&json!(1500), &Value::Null));
    for by in ["day", "agent", "principal", "model", "session"] {
        let usage = daemon.json_of(&["usage", "--by", by]);
        for name in ["tokens", "input_tokens", "output_tokens"] {
            let sum: u64 = rows(&usage, "rows").iter().filter_map(|row| row[name].as_u64()).sum();
            assert_eq!(json!(sum), spent[name], "{by}: {usage}");
        }
        let calls: u64 = rows(&usage, "rows").iter().filter_map(|row| row["calls"].as_u64()).sum();
        assert_eq!(calls, 3, "{by}: {usage}");
    }
    let by_session = daemon.json_of(&["usage", "--by", "session", "--limit", "1"]);
    assert_eq!(
        (&by_session["rows"][0]["session"], &by_session["more"]),
        (&json!(ADA), &json!(true)),
        "who spent most"
    );
    let by_model = daemon.json_of(&["usage", "--by", "model"]);
    assert_eq!(
        (&by_model["rows"][0]["provider"], &by_model["rows"][0]["model"]),
        (&json!("offline"), &json!("offline"))
    );
    let table = daemon.stdout_of(&["usage", "--by", "agent"]);
    assert!(table.contains("\nAGENT  TOKENS") && table.contains("\nmain   "), "{table}");
    assert!(table.contains("each session may spend 1 500 tokens") && table.contains("2 000"), "{table}");

    // Near its end it is said where people look.
    let mut others = 0;
    let problem = eventually("the budget to be near its end", || {
        others += 1;
        client.chat(&format!("other{others}"), &"much to read ".repeat(20));
        daemon.json_of(&["status"])["problems"][0].as_str().map(str::to_owned)
    });
    assert!(
        problem.starts_with("the daily budget is at ") && problem.ends_with(" of 2000 tokens"),
        "{problem}"
    );
}

#[test]
fn what_waits_for_somebody_is_told_at_once() {
    let daemon = Daemon::with("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n");
    let quiet = daemon.json_of(&["status"]);
    assert_eq!(
        (&quiet["approvals_waiting"], &quiet["problems"], &quiet["running"]),
        (&json!(0), &json!([]), &json!(0))
    );
    let mut client = Client::connect(daemon.address);
    client.prompt("ada", r#"/tool echo {"text":"hi"}"#);
    let waiting = eventually("a call to wait", || {
        let status = daemon.json_of(&["status"]);
        (status["approvals_waiting"] == 1).then_some(status)
    });
    assert_eq!((&waiting["running"], &waiting["devices_waiting"]), (&json!(1), &json!(0)), "{waiting}");
    let screen = daemon.stdout_of(&["status"]);
    assert!(screen.contains("waiting      1 tool call waits for approval: `clawmux approvals`"), "{screen}");
    let table = daemon.stdout_of(&["sessions"]);
    assert!(table.lines().nth(1).is_some_and(|line| line.contains("  approval  ")), "{table}");
}

#[test]
fn who_answers_and_what_went_wrong_is_told() {
    let config = "[providers.lab]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
        [agents.main]\nprovider = \"lab\"\nmodel = \"tiny\"\n[budgets]\ndaily = 5000\n";
    let (daemon, mut client) = Daemon::with(config).and(Client::connect);
    assert_ne!(client.chat("ada", "hi").error(), "", "nobody answers there");
    let status = eventually("the failure to be told", || {
        let status = daemon.json_of(&["status"]);
        (status["provider_errors"][0]["calls_failed"].as_u64() >= Some(1)).then_some(status)
    });
    let agent =
        json!({"agent": "main", "provider": "lab", "model": "lab/tiny", "fallback": [], "default": true});
    assert_eq!(
        (&status["agents"], &status["provider_errors"][0]["provider"], &status["reload_failed"]),
        (&json!([agent]), &json!("lab"), &Value::Null),
        "{status}"
    );
    std::fs::write(daemon.home().join("gateway.toml"), "[limits]\nqueu = 1\n").expect("a file");
    assert_eq!(daemon.run(&["config", "reload"]).0, 64);
    assert!(daemon.json_of(&["status"])["reload_failed"]["at_ms"].is_u64());
    let screen = daemon.stdout_of(&["status"]);
    for says in [
        "\nagent        main: lab/tiny\n",
        "\nprovider     lab: the last ",
        "\ntoday        ",
        " of 5 000 tokens used, ",
        "\nnew prompts  are accepted\n",
        "\nproblem      the last reload (the operator, 20",
        "did you mean queue?",
    ] {
        assert!(screen.contains(says), "{says}: {screen}");
    }
}

/// `clawmux events` under way: its lines, and what it says besides.
struct Watching {
    child: Running,
    lines: mpsc::Receiver<String>,
    said: mpsc::Receiver<String>,
}

impl Watching {
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let mut command = daemon::command(daemon.home());
        command.arg("events").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running::start(&mut command);
        let (lines, said) = (child.stdout_lines(), child.stderr_lines());
        Self { child, lines, said }
    }

    /// Waits until it says something with these words.
    fn says(&self, words: &str) {
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|line: &String| line.contains(words)) {
            seen.push(self.said.recv_timeout(TIMEOUT).unwrap_or_else(|e| panic!("{words}: {e}: {seen:?}")));
        }
    }

    /// The first line that has these words.
    fn line(&self, words: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(TIMEOUT).unwrap_or_else(|e| panic!("{words}: {e}: {seen:?}"));
            if line.contains(words) {
                return line;
            }
            seen.push(line);
        }
    }

    fn status(&mut self) -> Option<i32> {
        self.child.ended().code()
    }
}

#[test]
fn what_happens_is_told_as_it_happens() {
    let daemon = Daemon::start();
    let mut everything = Watching::start(&daemon, &[]);
    everything.says("following what happens");
    let mut client = Client::connect(daemon.address);
    client.chat("ada", "two\nlines \u{1b}[2J");
    let prompt = everything.line("  prompt     ");
    assert!(prompt.ends_with(&format!(r"  {ADA}  prompt     two lines \u{{1b}}[2J")), "{prompt}");
    let mut answer = Vec::new();
    let end = loop {
        let line = everything.line(ADA);
        match line.split_once("  text       ") {
            Some((_, sentence)) => answer.push(sentence.to_owned()),
            None if line.contains("  end  ") => break line,
            None => {}
        }
    };
    assert!(end.contains("completed; "), "{end}");
    // By the sentence, though it came by the word.
    let (said, words) = (answer.join(" "), answer.join(" ").split(' ').count());
    assert!(said.contains("Tools offered to me: echo, clock."), "{answer:#?}");
    assert!(words > 20 && answer.len() * 3 < words, "{answer:#?}");
    everything.child.signal("INT");
    assert_eq!(everything.status(), Some(0));

    // Only what is asked for, for programs; from when it is connected on.
    let mut some = Watching::start(
        &daemon,
        &["--json", "--wait", "--session", "main:websocket:b", "--kind", "prompt", "--kind", "end"],
    );
    eventually("it to be connected", || daemon.rows_of(&["connections"]).len() == 3);
    let event = eventually("a prompt to be told", || {
        client.chat("ada", "not this one");
        client.chat("bob", "this one");
        some.lines.try_recv().ok()
    });
    let event: Value = serde_json::from_str(&event).expect("JSON");
    assert_eq!((&event["event"], &event["content"]), (&json!("prompt"), &json!("this one")), "{event}");
    assert_eq!(
        (&event["session"], &event["follow"]),
        (&json!("main:websocket:bob:main"), &Value::Null),
        "{event}"
    );
    let end: Value = serde_json::from_str(&some.line("")).expect("JSON");
    assert_eq!((&end["event"], &end["run"]), (&json!("end"), &event["run"]), "nothing between: {end}");

    // The daemon goes away: who does not wait ends, who waits goes on with the next.
    let mut ends = Watching::start(&daemon, &[]);
    ends.says("following what happens");
    let daemon = daemon.restart();
    ends.says("stopping");
    assert_eq!(ends.status(), Some(69));
    some.says("waiting for it");
    let mut client = Client::connect(daemon.address);
    eventually("a prompt of the next daemon to be told", || {
        client.chat("bob", "after the restart");
        some.lines.try_iter().find(|line| line.contains("after the restart"))
    });
    assert_eq!(some.child.try_wait().expect("it can be asked"), None, "it goes on");
}

#[test]
fn a_session_is_named_by_the_beginning_of_its_key() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    for name in ["ada", "adam", "bob"] {
        client.chat(name, &format!("I am {name}"));
    }
    for short in ["main:websocket:b", "main:websocket:bo…", "main:websocket:bob:main"] {
        assert!(daemon.stdout_of(&["session", "show", short]).contains("I am bob"), "{short}");
    }
    let (status, _, stderr) = daemon.run(&["session", "show", "main:websocket:a"]);
    assert_eq!(status, 1);
    assert!(stderr.contains("several sessions begin with") && stderr.contains(ADA), "{stderr}");
    assert!(daemon.stdout_of(&["session", "show", ADA]).contains("I am ada\n"));
    let (status, _, stderr) = daemon.run(&["session", "clear", "nobody"]);
    assert!(status == 1 && stderr.contains("no session begins with \"nobody\""), "{stderr}");
    assert!(daemon.stdout_of(&["session", "clear", "main:websocket:adam"]).starts_with("cleared"));
    assert_eq!(daemon.stdout_of(&["sessions", "main:websocket:a"]).lines().count(), 3);
    let (_, _, stderr) = daemon.run(&["sessions", "work:"]);
    assert!(stderr.contains("no session key begins with work:"), "{stderr}");
}

#[test]
fn what_a_method_does_not_take_it_refuses_in_words() {
    let daemon = Daemon::start();
    let mut lines = Lines::connect(daemon.home());
    for (method, params, says) in [
        ("admin.status", json!({"x": 1}), "unknown field `x`"),
        ("admin.connections", json!({"limit": -1}), "it takes {\"limit\"?}"),
        ("admin.connection.close", json!({}), "missing field `connection`"),
        ("admin.connection.close", json!({"connection": "1"}), "invalid type"),
        ("admin.actors", json!({"children": "all"}), "it takes {\"children\"?}"),
        ("admin.plugins", json!({"plugin": "echo"}), "unknown field `plugin`"),
        ("admin.plugin.load", json!({"path": "x.wasm"}), "missing field `plugin`"),
        ("admin.plugin.load", json!({"plugin": "a b"}), "a name is 1 to 64 of the characters"),
        ("admin.plugin.unload", json!([]), "missing field `plugin`"),
        ("admin.plugin.reload", json!({"plugin": 1}), "expected a string"),
        ("admin.plugin.call", json!({"plugin": "echo", "input": [1]}), "is a JSON object"),
        (
            "admin.usage",
            json!({"by": "week"}),
            "`by` is \"day\", \"agent\", \"principal\", \"model\" or \"session\"",
        ),
        ("admin.usage", json!({"days": "all"}), "it takes {\"by\"?, \"days\"?, \"limit\"?}"),
        ("admin.sessions", json!({"prefix": 1}), "expected a string"),
    ] {
        let refused = lines.refused(method, params.clone());
        assert_eq!(refused["code"], -32602, "{method} {params}: {refused}");
        assert!(refused["message"].as_str().expect("text").contains(says), "{method} {params}: {refused}");
    }
    // What is too much is cut down, not refused.
    assert!(lines.call("admin.usage", json!({"days": 1_000_000, "limit": 1_000_000}))["rows"].is_array());
    assert_eq!(lines.call("admin.actors", json!({"children": 0}))["children"], json!([]));
    let gone = lines.refused("admin.connection.close", json!({"connection": u64::MAX}));
    assert_eq!(gone["code"], -32000, "{gone}");
}

#[test]
fn whoever_has_seen_enough_closes_the_pipe_and_a_terminal_gets_what_fits() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    for name in 0..30 {
        client.prompt(&format!("somebody-with-a-long-name-{name}"), "hi");
    }
    eventually("all to be listed", || daemon.stdout_of(&["sessions"]).lines().count() == 31);
    let clawmux = env!("CARGO_BIN_EXE_clawmux");
    let home = daemon.home().display().to_string();
    for command in
        ["sessions", "sessions --json", "actors", "connections", "plugins", "usage", "status", "help", "man"]
    {
        let line = format!("{clawmux} --home {home} {command} | head -c 1");
        let ended = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.stdout.len() == 1 && !said.contains("panicked"), "{command}: {said}");
    }

    needs!("script");
    let on_terminal = |columns: usize, setting: &str, command: &str| {
        let line = format!("stty cols {columns} && {setting} {clawmux} --home {home} {command}");
        let ended = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .output()
            .expect("a terminal");
        String::from_utf8(ended.stdout).expect("text").replace('\r', "")
    };
    for command in ["sessions", "actors", "connections", "plugins", "status"] {
        let colored = on_terminal(78, "", command);
        assert!(colored.contains("\u{1b}[1m"), "{command}: {colored:?}");
        let plain = on_terminal(78, "NO_COLOR=1", command);
        assert!(!plain.contains('\u{1b}'), "{command}: {plain:?}");
        // Figures give way; keys, times and states do not, and make lines longer.
        assert!(plain.contains('…') || command != "actors", "{command}: {plain}");
        assert!(!plain.contains('…') || command != "sessions", "{command}: {plain}");
    }
    assert!(!daemon.stdout_of(&["sessions"]).contains(['…', '\u{1b}']), "into a pipe goes all of it");
    for columns in [40, 50, 60, 80, 132] {
        let tree = on_terminal(columns, "NO_COLOR=1", "actors");
        let widest = tree.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(columns) && tree.contains("─ session"), "{columns}: {tree}");
    }
    // A bar for each day on a terminal, and none elsewhere.
    let bars = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    eventually("something to be spent", || daemon.json_of(&["usage"])["today"]["tokens"].as_u64() > Some(0));
    let usage = on_terminal(80, "NO_COLOR=1", "usage --days 7");
    assert!(usage.contains("······█") && usage.contains("no daily budget"), "{usage}");
    assert!(on_terminal(80, "NO_COLOR=1", "usage --by agent").contains("████████████"), "the whole share");
    let piped = daemon.stdout_of(&["usage"]) + &on_terminal(80, "", "usage --json");
    assert!(!piped.contains(bars) && !piped.contains('·'), "{piped}");
}

#[test]
fn shells_and_the_manual_know_every_command() {
    let home = daemon::home();
    let clawmux = |args: &[&str]| {
        let ended = daemon::command(home.path()).args(args).output().expect("it runs");
        assert!(ended.status.success(), "{args:?}: {ended:?}");
        String::from_utf8(ended.stdout).expect("text")
    };
    let help = clawmux(&["--help"]);
    let listed = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("commands");
    let commands: Vec<&str> = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() >= 25 && commands.contains(&"completions"), "{commands:?}");

    for shell in ["bash", "zsh", "fish"] {
        let script = clawmux(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
        for deeper in ["approve", "input-file", "NAME"] {
            assert!(script.contains(deeper) || (shell != "zsh" && deeper == "NAME"), "{shell}: {deeper}");
        }
        let file = home.path().join(shell);
        std::fs::write(&file, script).expect("a file");
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(parsed) => assert!(parsed.status.success() && parsed.stderr.is_empty(), "{shell}: {parsed:?}"),
            Err(_) => eprintln!("no {shell} here: whether it takes its script is not looked at"),
        }
    }

    let pages = home.path().join("man1");
    clawmux(&["man", "--out", pages.to_str().expect("text")]);
    let page =
        |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let first = page("clawmux.1");
    for command in &commands {
        assert!(page(&format!("clawmux-{command}.1")).contains(".TH"), "{command}");
        assert!(first.contains(&format!("clawmux\\-{command}(1)")), "{command}: {first}");
    }
    assert!(page("clawmux-session-tail.1").contains("after"));
    assert_eq!(clawmux(&["man"]), first);
    assert_eq!(clawmux(&["man", "session", "tail"]), page("clawmux-session-tail.1"));
    for name in ["clawmux.1", "clawmux-plugin-call.1"] {
        let man = Command::new("man")
            .args(["--warnings", "-l"])
            .arg(pages.join(name))
            .env("MANPAGER", "cat")
            .output();
        match man {
            Ok(shown) if shown.status.success() => {
                let text = String::from_utf8_lossy(&shown.stdout).into_owned();
                assert!(text.contains("SYNOPSIS") && shown.stderr.is_empty(), "{name}: {shown:?}");
            }
            _ => skip(&format!("no man(1) to show {name}")),
        }
    }
}
