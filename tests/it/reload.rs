//! Other configurations while the daemon runs, over real sockets: what changes holds at once, what is
//! bad changes nothing, and whoever is connected stays so.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::guest::guest;
use crate::support::upstream::{Turn, Upstream};
use crate::support::wundr::Wundr;
use crate::support::{eventually, wait_for};

const JWT_SECRET: &str = "a-secret-of-more-than-thirty-two-bytes";

/// Runs `clawmux` on the daemon's home: exit status, stdout, stderr.
fn run(home: &Path, args: &[&str]) -> (i32, String, String) {
    daemon::output(daemon::command(home).args(args))
}

fn write(daemon: &Daemon, text: &str) {
    std::fs::write(daemon.home().join("gateway.toml"), text).unwrap();
}

/// Has it go over to this text; gives what was applied.
fn reload(daemon: &Daemon, text: &str) -> Vec<String> {
    write(daemon, text);
    applied(&daemon.json_of(&["config", "reload"]))
}

fn applied(answer: &Value) -> Vec<String> {
    names(&answer["applied"])
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// What is said of one key.
fn setting(daemon: &Daemon, key: &str) -> Value {
    let shown = daemon.rows_of(&["config", "get", key]);
    shown.first().cloned().unwrap_or_default()
}

/// How often it was reloaded well, as its log says.
fn reloads(daemon: &Daemon) -> usize {
    daemon.log().matches("the configuration was reloaded").count()
}

/// The module of the plugin `echo`, under another name.
fn put_parrot(daemon: &Daemon) {
    let folder = daemon.home().join("plugins");
    std::fs::create_dir_all(&folder).unwrap();
    let echo = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/echo/echo.wasm");
    std::fs::copy(echo, folder.join("parrot.wasm")).unwrap();
}

/// Opens `/ws` as a page of this origin would.
fn from_page(daemon: &Daemon, origin: &str) -> Result<Client, String> {
    let mut request = format!("ws://{}/ws", daemon.address).into_client_request().unwrap();
    request.headers_mut().insert("origin", origin.parse().unwrap());
    Client::upgrade(daemon.address, request)
}

#[test]
fn what_changes_holds_at_once_while_a_run_streams_through_it() {
    let (daemon, mut client) = Daemon::with("").and(Client::connect);
    let long = client.prompt("ada", "/slow 60");
    eventually("the run to stream", || {
        let frame = client.receive();
        frame["event"] == "text"
    });
    assert!(from_page(&daemon, "https://app.example.com").is_err(), "not listed yet");

    put_parrot(&daemon);
    std::fs::write(daemon.home().join("WORK.md"), "Work.").unwrap();
    let full = "[agents.main]\n[agents.work]\nsoul = \"WORK.md\"\ntools = [\"parrot\"]\n[default]\nagent = \"work\"\n\
        [[bindings]]\nagent = \"main\"\nchannel = \"websocket\"\naccount = \"bob\"\n\
        [[plugins]]\nname = \"parrot\"\npath = \"plugins/parrot.wasm\"\n\
        [gateway]\nallowed_origins = [\"https://app.example.com\"]\n[limits]\nqueue = 1\n";
    let what = reload(&daemon, full);
    for key in
        ["agents.work", "bindings", "default.agent", "gateway.allowed_origins", "limits.queue", "plugins"]
    {
        assert!(what.iter().any(|told| told == key), "{key}: {what:?}");
    }
    assert!(from_page(&daemon, "https://app.example.com").is_ok());

    // Default agent, binding, tools of a new agent, and a plugin that was not there.
    let answer = client.chat("eve", "/tool parrot {\"text\":\"hi\"}");
    let result = answer.data("tool_result").next().unwrap_or_else(|| panic!("{answer:?}"));
    assert_eq!((&result["content"], answer.error()), (&json!("hi"), ""), "{answer:?}");
    client.chat("bob", "hello");
    let sessions = daemon.run(&["sessions"]).1;
    for key in ["main:websocket:ada:main", "work:websocket:eve:main", "main:websocket:bob:main"] {
        assert!(sessions.contains(key), "{key}: {sessions}");
    }
    // The queue of a session that is at work.
    let in_ada = |client: &mut Client| {
        let params = json!({ "session": "main:websocket:ada:main", "content": "and then?" });
        client.request("chat.send", params)
    };
    let waits = in_ada(&mut client);
    let refused = in_ada(&mut client);
    let refused = client.stream(&refused);
    assert!(refused.error().contains("queue is full (1 prompts wait)"), "{refused:?}");

    // What is gone is said in words.
    let what = reload(&daemon, "[budgets]\nsession = 1\n");
    assert!(what.contains(&"budgets.session".to_owned()) && what.contains(&"plugins".to_owned()), "{what:?}");
    let gone = client.request("chat.send", json!({ "session": "work:websocket:eve:main", "content": "x" }));
    let gone = client.stream(&gone);
    assert!(gone.error().contains("no agent named work"), "{gone:?}");
    let plugins = client.call("plugin.list", json!({}));
    assert!(!plugins.to_string().contains("parrot"), "{plugins}");
    let poor = client.chat("carl", "hello");
    assert!(poor.error().contains("budget exceeded (session"), "{poor:?}");
    reload(&daemon, "");
    let rich = client.chat("carl", "hello");
    assert_eq!(rich.error(), "", "{rich:?}");

    // The run that began before all of it is still at it.
    assert!(client.abort(&long), "it runs");
    assert_eq!(client.stream(&long).events().last(), Some(&"done"));
    let waited = client.stream(&waits);
    assert_eq!((waited.events().last(), waited.error()), (Some(&"done"), ""), "{waited:?}");
}

#[test]
fn souls_keys_and_models_hold_from_the_next_prompt_on() {
    let upstream = Upstream::start();
    let home = daemon::home();
    std::fs::write(home.path().join("SOUL.md"), "You are a heron.").unwrap();
    std::fs::write(home.path().join("key"), "sk-first").unwrap();
    let config = |model: &str| {
        format!(
            "[providers.up]\nretries = 0\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n\
             [agents.main]\nprovider = \"up\"\nmodel = \"{model}\"\n",
            upstream.base_url()
        )
    };
    let (daemon, mut client) = Daemon::at(home, &config("one"), &[]).and(Client::connect);
    // A run of two steps, the second of which comes after the reload.
    upstream.then(Turn::EndLate("thinking".into()));
    let first = client.prompt("ada", "begin");
    eventually("the run to stream", || client.receive()["event"] == "text");

    std::fs::write(daemon.home().join("SOUL.md"), "You are a stork.").unwrap();
    std::fs::write(daemon.home().join("key"), "sk-second").unwrap();
    let what = reload(&daemon, &config("two"));
    for told in ["agents.main.model", "agents.main.soul", "providers.up"] {
        assert!(what.contains(&told.to_owned()), "{told}: {what:?}");
    }
    wait_for("the response to end", upstream.end());
    let answer = client.stream(&first);
    assert_eq!((answer.events().last(), answer.error()), (Some(&"done"), ""), "{answer:?}");
    client.chat("ada", "again");
    let seen: Vec<_> = upstream
        .requests()
        .iter()
        .map(|request| {
            let key = if request.head.contains("sk-first") { "first" } else { "second" };
            (key, request.body["model"].clone(), request.body["system"][0]["text"].clone())
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("first", json!("one"), json!("You are a heron.")),
            ("second", json!("two"), json!("You are a stork."))
        ]
    );
    let shown = daemon.run(&["config", "get"]).1 + &daemon.log();
    assert!(!shown.contains("sk-"), "a secret is shown");
}

#[test]
fn connections_end_with_their_credential_and_others_live_on() {
    let home = daemon::home();
    for (name, text) in [("token", "the-first-shared-token"), ("jwt", JWT_SECRET)] {
        std::fs::write(home.path().join(name), text).unwrap();
    }
    let head = "[auth]\ntoken_file = \"token\"\n[auth.jwt]\nsecret_file = \"jwt\"\n";
    let key = |name: &str, role: &str| {
        format!(
            "[[auth.api_keys]]\nname = \"{name}\"\nkey_env = \"KEY_{}\"\nrole = \"{role}\"\n",
            name.to_uppercase()
        )
    };
    let all = format!("{head}{}{}{}", key("a", "user"), key("b", "user"), key("c", "admin"));
    let keys =
        [("KEY_A", "the-key-of-a-one"), ("KEY_B", "the-key-of-b-two"), ("KEY_C", "the-key-of-c-three")];
    let daemon = Daemon::at(home, &all, &keys);
    let connect = |token: &str| Client::connect_with(daemon.address, token);
    let (mut a, mut b, mut c) = (connect(keys[0].1), connect(keys[1].1), connect(keys[2].1));
    let mut boss = connect("the-first-shared-token");
    let issued = daemon.json_of(&["token", "create", "--yes", "--name", "d", "--role", "user", "--jwt"]);
    let mut jwt =
        Wundr::connect_as(daemon.address, json!({ "type": "jwt", "token": issued["secret"] }), json!({}));
    let streams = b.prompt("b", "/slow 60");
    eventually("the run to stream", || b.receive()["event"] == "text");

    let closed = |client: &mut Client| loop {
        match client.receive_or_close() {
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    // One is gone, one has other rights, one stays; and the same text again closes nobody.
    let fewer = format!("{head}{}{}", key("b", "user"), key("c", "user"));
    assert_eq!(reload(&daemon, &all), [] as [String; 0]);
    assert_eq!(reload(&daemon, &fewer), ["auth.api_keys"]);
    assert_eq!((closed(&mut a), closed(&mut c)), ("4001".to_owned(), "4001".to_owned()));
    assert_eq!(boss.call("ping", json!({}))["result"], "pong");
    connect(keys[2].1);

    std::fs::write(daemon.home().join("token"), "the-second-shared-token").unwrap();
    assert_eq!(reload(&daemon, &fewer), ["auth"], "a file that is named has another secret");
    assert_eq!(closed(&mut boss), "4001");
    connect("the-second-shared-token");

    std::fs::write(daemon.home().join("jwt"), "another-secret-of-more-than-thirty-two-bytes").unwrap();
    jwt.call("session.list", json!({}));
    reload(&daemon, &fewer);
    assert_eq!(jwt.closed(), "1008");

    assert!(b.abort(&streams), "b has seen nothing of it");
}

#[test]
fn the_first_credential_closes_open_doors_and_it_takes_a_restart_to_open_them() {
    let (daemon, mut open) = Daemon::with("").and(Client::connect);
    std::fs::write(daemon.home().join("token"), "a-token-of-some-length").unwrap();
    reload(&daemon, "[auth]\ntoken_file = \"token\"\n");
    let end = loop {
        if let Err(end) = open.receive_or_close() {
            break end;
        }
    };
    assert_eq!(end, "4001");
    let mut known = Client::connect_with(daemon.address, "a-token-of-some-length");
    reload(&daemon, "");
    while known.receive_or_close().is_ok() {}
    // A file that is empty, half written or gone lets nobody in.
    let mut stranger = Client::open(daemon.address, "/ws");
    stranger.send_text("{}");
    assert_eq!(stranger.receive()["code"], 4001);
    let daemon = daemon.restart();
    Client::connect(daemon.address);
}

#[test]
fn a_bad_configuration_changes_nothing_and_is_told_as_a_whole() {
    let good = "# mine\n[limits]\nqueue = 7 # some\n[gateway]\n";
    let (daemon, mut client) = Daemon::with(good).and(Client::connect);
    std::fs::create_dir(daemon.home().join("folder")).unwrap();
    std::fs::write(daemon.home().join("noise.wasm"), "noise").unwrap();
    let path = daemon.home().join("gateway.toml").display().to_string();
    let before = daemon.json_of(&["status"])["plugins"].clone();
    for (bad, says) in [
        ("[limits\n", vec![format!("{path}:1: not valid TOML")]),
        (
            "[limits]\nqueu = 1\nqueue = 0\n",
            vec![format!("{path}:2: limits.queu: unknown key"), format!("{path}:3: limits.queue: expected")],
        ),
        ("[limits]\nqueue = 9\n[agents.main]\nsoul = \"folder\"\n", vec!["agents.main.soul".into()]),
        ("[limits]\nqueue = 9\n[[plugins]]\nname = \"p\"\npath = \"gone.wasm\"\n", vec!["gone.wasm".into()]),
        (
            "[limits]\nqueue = 9\n[[plugins]]\nname = \"p\"\npath = \"noise.wasm\"\n",
            vec!["noise.wasm".into()],
        ),
        ("[limits]\nqueue = 9\n[auth]\ntoken_file = \"gone\"\n", vec![format!("{path}:4: auth.token_file")]),
        ("[limits]\nqueue = 9\n[log]\nfilter = \"a=b=c\"\n", vec!["log.filter".into()]),
        (
            "[limits]\nqueue = 9\n[auth]\nloopback = \"required\"\n",
            vec!["no credential is configured".into()],
        ),
        (
            "[limits]\nqueue = 9\n[providers.x]\nkind = \"openai\"\nbase_url = \"https://x\"\nca_file = \"noise.wasm\"\n",
            vec!["noise.wasm".into()],
        ),
    ] {
        write(&daemon, bad);
        let (status, stdout, stderr) = daemon.run(&["config", "reload"]);
        assert_eq!(status, 64, "{bad}: {stdout}{stderr}");
        for says in &says {
            assert!(stderr.lines().any(|line| line.contains(says)), "{says}: {stderr}");
        }
        assert!(stdout.is_empty(), "{stdout}");
        // By signal the same, and the log tells it.
        let told = daemon.log().matches("was not reloaded").count();
        daemon.signal("HUP");
        eventually("SIGHUP to be heard", || daemon.log().matches("was not reloaded").count() > told);
        assert_eq!(client.call("ping", json!({}))["result"], "pong", "{bad}");
        // Nor is it forgotten.
        let problems = daemon.json_of(&["status"])["problems"].to_string();
        let (_, doctor, _) = daemon.run(&["doctor", "--offline"]);
        assert!(
            doctor.contains("the last reload (SIGHUP, ") && doctor.contains(") changed nothing: "),
            "{doctor}"
        );
        for says in &says {
            assert!(
                problems.contains("the last reload (SIGHUP, ") && problems.contains(") changed nothing: "),
                "{problems}"
            );
            assert!(problems.contains(&says.replace('"', "\\\"")), "{says}: {problems}");
        }
    }
    write(&daemon, good);
    assert_eq!(applied(&daemon.json_of(&["config", "reload"])), [] as [String; 0], "as it was");
    assert_eq!(daemon.json_of(&["status"])["problems"], json!([]), "it went well");
    assert_eq!(setting(&daemon, "limits.queue")["value"], 7);
    assert_eq!(daemon.json_of(&["status"])["plugins"], before);
    assert_eq!(client.chat("ada", "hello").error(), "");
}

#[test]
fn what_takes_a_restart_is_named_until_it_is_taken_back() {
    let daemon = Daemon::with("");
    write(&daemon, "[store]\npath = \"other.db\"\n[log]\nformat = \"json\"\n[memory]\nepisodic_turns = 2\n");
    let answer = daemon.json_of(&["config", "reload"]);
    assert_eq!(names(&answer["needs_restart"]), ["log.format", "store.path"], "{answer}");
    assert_eq!(applied(&answer), ["memory.episodic_turns"]);
    let again = daemon.json_of(&["config", "reload"]);
    assert_eq!((names(&again["needs_restart"]).len(), applied(&again).len()), (2, 0), "{again}");
    assert_eq!(setting(&daemon, "store.path")["waits_for"], "restart");
    assert_eq!(setting(&daemon, "memory.episodic_turns")["waits_for"], Value::Null);
    write(&daemon, "[memory]\nepisodic_turns = 3\n");
    assert_eq!(setting(&daemon, "memory.episodic_turns")["waits_for"], "reload");
    let back = daemon.json_of(&["config", "reload"]);
    assert_eq!(names(&back["needs_restart"]), [] as [String; 0]);
    assert!(!daemon.home().join("other.db").exists());
}

#[test]
fn keys_are_set_where_they_stand_and_shown_with_their_place() {
    let home = daemon::home();
    let path = home.path().join("gateway.toml");
    // No daemon: the file itself.
    let text = "# mine\n[limits]\nqueue = 3 # few\n";
    std::fs::write(&path, text).unwrap();
    let (status, stdout, stderr) = run(home.path(), &["config", "set", "limits.queue", "4"]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.contains("no daemon runs") && stdout.contains("gateway.toml:3"), "{stdout}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "# mine\n[limits]\nqueue = 4 # few\n");
    let (status, _, stderr) = run(home.path(), &["config", "set", "limits.queue", "0"]);
    assert!(status == 64 && stderr.contains("limits.queue: expected"), "{status}: {stderr}");
    assert_eq!(run(home.path(), &["config", "reload"]).0, 69);
    assert_eq!(run(home.path(), &["log"]).0, 69);
    assert!(run(home.path(), &["config", "get", "limits.queue"]).1.contains("gateway.toml:3"));

    let env = [("CLAWMUX__BUDGETS__DAILY", "7"), ("CLAWMUX_TOKEN", "geheim-geheim-geheim")];
    let daemon = Daemon::at(home, "# mine\n[limits]\nqueue = 4 # few\n[agents.main]\nmodel = \"x\"\n", &env);
    let from = |key: &str| {
        let setting = setting(&daemon, key);
        (setting["value"].clone(), setting["from"].as_str().unwrap().to_owned(), setting["at"].clone())
    };
    assert_eq!(from("memory.context_tokens"), (json!(5000), "default".into(), Value::Null));
    assert_eq!(from("budgets.daily"), (json!(7), "environment".into(), json!("CLAWMUX__BUDGETS__DAILY")));
    assert_eq!(from("gateway.listen").1, "command line");
    assert!(from("limits.queue").2.as_str().unwrap().ends_with("gateway.toml:3"));
    let (status, all, _) = daemon.run(&["config", "get"]);
    assert!(status == 0 && !all.contains("geheim"), "{all}");

    for (key, says) in [("budgets.daily", "CLAWMUX__BUDGETS__DAILY"), ("gateway.listen", "--listen")] {
        let (status, _, stderr) = daemon.run(&["config", "set", key, "9"]);
        assert!(status == 1 && stderr.contains(says), "{key}: {status} {stderr}");
    }
    let (status, _, stderr) = daemon.run(&["config", "set", "auth.token", "s3cret"]);
    assert!(status != 0 && !stderr.contains("s3cret"), "{stderr}");
    assert!(stderr.contains("use token_env or token_file"), "{stderr}");
    let (status, _, stderr) = daemon.run(&["config", "get", "limits.queu"]);
    assert!(status == 64 && stderr.contains("did you mean queue?"), "{stderr}");
    let (status, _, stderr) = daemon.run(&["config", "set", "queue", "9"]);
    assert!(status == 64 && stderr.contains("did you mean limits.queue?"), "{stderr}");
    // All keys there are, those without a value too.
    for key in ["auth.token_file ", "openclaw.control_ui ", "limits.queue "] {
        assert!(all.contains(&format!("\n{key}")), "{key}: {all}");
    }
    assert_eq!(from("auth.token_file"), (Value::Null, "default".into(), Value::Null));

    let answer = daemon.json_of(&["config", "set", "limits.queue", "9"]);
    assert_eq!(
        (applied(&answer), &answer["written"]),
        (vec!["limits.queue".to_owned()], &json!(true)),
        "{answer}"
    );
    let again = daemon.json_of(&["config", "set", "limits.queue", "9"]);
    assert_eq!(again["written"], false, "{again}");
    let bare = daemon.json_of(&["config", "set", "agents.main.model", "4"]);
    assert_eq!(bare["settings"][0]["value"], "4", "a text may be bare: {bare}");
    daemon.json_of(&["config", "set", "gateway.allowed_origins", "https://a.example,https://b.example"]);
    let text = std::fs::read_to_string(daemon.home().join("gateway.toml")).unwrap();
    assert!(text.starts_with("# mine\n[limits]\nqueue = 9 # few\n"), "{text}");
    let unset = daemon.json_of(&["config", "unset", "limits.queue"]);
    assert_eq!(unset["settings"][0]["from"], "default", "{unset}");
    let text = std::fs::read_to_string(daemon.home().join("gateway.toml")).unwrap();
    assert!(text.starts_with("# mine\n") && !text.contains("[limits]"), "no empty table: {text}");
    assert_eq!(daemon.run(&["config", "unset", "limits.queue"]).0, 1, "it is not set");
}

#[test]
fn what_a_bad_file_does_not_say_is_told_as_it_is_in_force() {
    let daemon = Daemon::at(daemon::home(), "[limits]\nqueue = 9\n", &[]);
    for bad in ["[limits]\nqueue = \"x\"\n", "[limits\n"] {
        std::fs::write(daemon.home().join("gateway.toml"), bad).unwrap();
        let told = setting(&daemon, "limits.queue");
        let expected =
            json!({ "path": "limits.queue", "value": 9, "from": "last good", "at": null, "waits_for": null });
        assert_eq!(told, expected, "{bad}");
        let (status, said, why) = daemon.run(&["config", "get", "limits.queue"]);
        assert!(status == 0 && said.contains("last good") && why.contains("bad: "), "{said}{why}");
        assert!(!said.contains("waits for"), "{said}");
    }
}

#[test]
fn the_log_is_filtered_as_the_operator_says_until_the_next_reload() {
    let daemon = Daemon::with("[log]\nfilter = \"warn\"\n");
    let filter = || daemon.json_of(&["log"])["filter"].clone();
    assert_eq!(filter(), "warn");
    let mut client = Client::connect(daemon.address);
    client.call("ping", json!({}));
    assert!(!daemon.log().contains("connection opened"), "{}", daemon.log());
    let (status, stdout, _) = daemon.run(&["log", "debug"]);
    assert!(status == 0 && stdout.contains("bring back warn"), "{stdout}");
    Client::connect(daemon.address);
    eventually("the log to say more", || daemon.log().contains("connection opened"));
    for (bad, says) in [("loud", "there is no level"), ("a=b=c", "expected directives")] {
        let (status, _, stderr) = daemon.run(&["log", bad]);
        assert!(status == 1 && stderr.contains(says), "{bad}: {stderr}");
    }
    assert_eq!(filter(), "debug");
    daemon.json_of(&["config", "reload"]);
    assert_eq!(filter(), "warn");
    daemon.json_of(&["config", "set", "log.filter", "info,clawmux=debug"]);
    assert_eq!(filter(), "info,clawmux=debug");
}

#[test]
fn rates_hold_at_once_for_those_who_are_connected() {
    let env = [("CLAWMUX_TOKEN", "the-shared-operator-token")];
    let daemon = Daemon::with_env("", &env);
    let mut client = Client::connect_with(daemon.address, env[0].1);
    reload(&daemon, "[limits]\nrequests_burst = 5\nrequests_per_second = 1\n");
    assert_eq!(client.chat("ada", "hello").error(), "");
    let refused = client.chat("ada", "hello");
    assert!(refused.error().contains("rate limited"), "{refused:?}");
    reload(&daemon, "");
    assert_eq!(client.chat("ada", "hello").error(), "");
}

/// What a process holds: threads, and open files but pipes. Each thread of the sandbox has a pipe once it has
/// read a guest's memory: how many there are depends on which threads had work.
fn held(daemon: &Daemon) -> (usize, usize) {
    let list = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", daemon.pid())).unwrap().flatten();
    let is_pipe = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
    };
    (list("task").count(), list("fd").filter(|file| !is_pipe(file.path())).count())
}

#[test]
fn fifty_reloads_under_load_leave_nothing_behind() {
    let daemon = Daemon::with("");
    put_parrot(&daemon);
    let config = |round: usize| {
        format!(
            "[agents.main]\nmax_tokens = {}\n[agents.other{}]\n[[plugins]]\nname = \"parrot\"\n\
             path = \"plugins/parrot.wasm\"\nmemory_mb = {}\n[limits]\nqueue = {}\n",
            100 + round,
            round % 3,
            8 + round / 5 % 2,
            10 + round
        )
    };
    // Once, so that what is made once is made.
    reload(&daemon, &config(0));
    reload(&daemon, &config(1));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut before = (0, 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|who| {
                let (stop, address) = (&stop, daemon.address);
                scope.spawn(move || {
                    let mut client = Client::connect(address);
                    let mut prompts = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) || prompts == 0 {
                        let text = "/tool echo {\"text\":\"hi\"}";
                        let answer = client.chat(&format!("user{who}"), text);
                        assert_eq!(
                            (answer.error(), answer.events().last()),
                            ("", Some(&"done")),
                            "{answer:?}"
                        );
                        prompts += 1;
                    }
                    prompts
                })
            })
            .collect();
        before = held(&daemon);
        for round in 2..52 {
            let what = reload(&daemon, &config(round));
            assert!(what.iter().any(|key| key == "limits.queue"), "{round}: {what:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let prompts: Vec<usize> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        assert!(prompts.iter().all(|prompts| *prompts > 0), "{prompts:?}");
    });
    let status = daemon.json_of(&["status"]);
    assert_eq!((&status["plugins"], &status["sessions"]), (&json!(3), &json!(4)), "{status}");
    let mut last = before;
    eventually("what was replaced to be gone", || {
        let now = held(&daemon);
        if now != std::mem::replace(&mut last, now) {
            eprintln!("{} threads and {} files, {before:?} before", now.0, now.1);
        }
        // The pools grow on demand, up to what they may have.
        now.0 <= before.0 + 16 && now.1 <= before.1 + 8
    });
    assert_eq!(setting(&daemon, "limits.queue")["value"], 61);
}

#[test]
fn signals_and_changes_at_the_same_time_come_one_after_the_other() {
    let daemon = Daemon::with("# mine\n[limits]\nqueue = 3 # few\n");
    let before = reloads(&daemon);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                daemon.signal("HUP");
            }
        });
        for who in 0..2 {
            let daemon = &daemon;
            scope.spawn(move || {
                for round in 0..5 {
                    let (key, value) = if who == 0 {
                        ("limits.queue", (10 + round).to_string())
                    } else {
                        ("memory.episodic_turns", (20 + round).to_string())
                    };
                    let answer = daemon.json_of(&["config", "set", key, &value]);
                    assert_eq!(answer["written"], true, "{answer}");
                }
            });
        }
    });
    eventually("the signals to be heard", || reloads(&daemon) > before);
    let text = std::fs::read_to_string(daemon.home().join("gateway.toml")).unwrap();
    assert_eq!(text, "# mine\n[limits]\nqueue = 14 # few\n\n[memory]\nepisodic_turns = 24\n");
    for key in ["limits.queue", "memory.episodic_turns"] {
        assert_eq!(setting(&daemon, key)["waits_for"], Value::Null, "{key}");
    }
    assert!(!daemon.log().contains("was not reloaded"), "{}", daemon.log());
}

#[test]
fn the_same_configuration_again_changes_nothing() {
    let cases: u32 = std::env::var("CLAWMUX_RELOAD_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let daemon = Daemon::with("");
    put_parrot(&daemon);
    let client = std::cell::RefCell::new(Client::connect(daemon.address));
    let config =
        (1_usize..50, 0_usize..3, any::<bool>(), 0_u64..1000, proptest::sample::select(vec!["info", "warn"]));
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let outcome = runner.run(&config, |(queue, agents, has_plugin, daily, filter)| {
        let agents: String = (0..agents).map(|n| format!("[agents.a{n}]\n")).collect();
        let plugin = "[[plugins]]\nname = \"parrot\"\npath = \"plugins/parrot.wasm\"\n";
        let text = format!(
            "[agents.main]\n{agents}[limits]\nqueue = {queue}\n[budgets]\ndaily = {}\n[log]\nfilter = \"{filter}\"\n{}",
            daily * 100_000 + 1_000_000,
            if has_plugin { plugin } else { "" }
        );
        reload(&daemon, &text);
        let log = daemon.log().len();
        let again = reload(&daemon, &text);
        prop_assert!(again.is_empty(), "{:?} by {}", again, text);
        let log = daemon.log()[log..].to_owned();
        prop_assert!(!log.contains("plugin loaded"), "{}", log);
        prop_assert_eq!(&client.borrow_mut().call("ping", json!({}))["result"], "pong");
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

/// A tool that counts down from this, then answers with `{}`.
fn countdown(from: u64) -> Vec<u8> {
    guest(&format!(
        "(local $n i64)
            (local.set $n (i64.const {from}))
            (loop $l
                (local.set $n (i64.sub (local.get $n) (i64.const 1)))
                (br_if $l (i64.ne (local.get $n) (i64.const 0))))
            call $empty_object i32.const 0"
    ))
}

#[test]
fn a_call_finishes_in_the_module_it_began_in() {
    let home = daemon::home();
    let folder = home.path().join("plugins");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("count.wasm"), countdown(1_000_000_000)).unwrap();
    let config = "[agents.main]\ntools = [\"count\"]\n[[plugins]]\nname = \"count\"\npath = \"plugins/count.wasm\"\n\
        fuel = 100000000000\ntimeout_ms = 60000\n";
    let (daemon, mut client) = Daemon::at(home, config, &[]).and(Client::connect);
    let call = client.prompt("ada", "/tool count {}");
    eventually("the call to begin", || client.receive()["event"] == "tool_use");
    let trap = wat::parse_str(
        "(module (import \"extism:host/env\" \"output_set\" (func $o (param i64 i64)))
            (func (export \"describe\") (result i32) i32.const 0)
            (func (export \"handle_tool_call\") (result i32) unreachable))",
    );
    // One that can't say what it is does not take the place of one that can.
    std::fs::write(folder_of(&daemon).join("count.wasm"), trap.unwrap()).unwrap();
    let (status, _, stderr) = daemon.run(&["config", "reload"]);
    assert!(status == 64 && stderr.contains("count"), "{status}: {stderr}");
    std::fs::write(folder_of(&daemon).join("count.wasm"), countdown(1)).unwrap();
    assert_eq!(reload(&daemon, config), ["plugins"], "the file is another");
    let begun = client.stream(&call);
    let results: Vec<_> = begun.data("tool_result").collect();
    assert_eq!((results.len(), results[0].get("is_error"), begun.error()), (1, None, ""), "{begun:?}");
    let again = client.chat("ada", "/tool count {}");
    assert_eq!(again.data("tool_result").next().unwrap().get("is_error"), None, "{again:?}");
}

fn folder_of(daemon: &Daemon) -> std::path::PathBuf {
    daemon.home().join("plugins")
}

#[test]
fn a_file_that_does_not_answer_is_refused_and_holds_nobody_up() {
    let mut daemon = Daemon::start();
    let pipe = daemon.home().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.display();
    for (text, says) in [
        (format!("[auth]\ntoken_file = \"{pipe}\"\n"), "it is no regular file"),
        (format!("[providers.p]\nkind = \"openai\"\napi_key_file = \"{pipe}\"\n"), "it is no regular file"),
        (format!("[agents.main]\nsoul = \"{pipe}\"\n"), "is not a file"),
    ] {
        write(&daemon, &text);
        let (status, _, said) = daemon.run(&["check"]);
        assert!(status == 64 && said.contains(says), "{text}: {status} {said}");
        let refused = || daemon.log().matches("the configuration was not reloaded").count();
        let before = refused();
        daemon.signal("HUP");
        eventually("it to be refused", || refused() > before);
    }
    assert!(daemon.log().contains("it is no regular file"));
    assert!(daemon.terminate().success());

    // The same of the file itself.
    let file = daemon.home().join("gateway.toml");
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let (status, _, said) = daemon.run(&["check"]);
    assert!(status == 64 && said.contains("it is no regular file"), "{status} {said}");
}

#[test]
fn what_waits_for_a_restart_is_a_problem_until_then() {
    let daemon = Daemon::start();
    let problems = || daemon.json_of(&["status"])["problems"].clone();
    assert_eq!(problems(), json!([]));
    let (_, stdout, stderr) = daemon.run(&["config", "set", "store.path", "/nowhere/other.db"]);
    assert!(stdout.contains("needs a restart: store.path"), "{stdout}{stderr}");
    assert_eq!(problems(), json!(["restart the daemon to apply the new value of store.path"]));
    let (_, told, _) = daemon.run(&["doctor", "--offline"]);
    assert!(
        told.contains("new value of store.path\n                 -> `systemctl restart clawmux`"),
        "{told}"
    );
    daemon.json_of(&["config", "unset", "store.path"]);
    assert_eq!(problems(), json!([]), "it is as at the start again");
}
