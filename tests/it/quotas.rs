//! What owners may keep, how they make room, and that prompts that wait are not all in memory.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::process::resident_bytes;
use crate::support::upstream::{Turn, Upstream};

const MIB: usize = 1 << 20;

/// A daemon with a user and an operator.
fn shared(config: &str) -> Daemon {
    Daemon::shared(config, &[("ada", "user"), ("boss", "admin")], &[])
}

fn place(account: &str) -> Value {
    json!({"channel": "websocket", "account": account})
}

fn keyed(account: &str, content: &str, key: &str) -> Value {
    json!({"channel": "websocket", "account": account, "content": content, "idempotency_key": key})
}

/// Whether a file of the log has this in it.
fn is_in_files(home: &Path, text: &str) -> bool {
    let files = home.read_dir().unwrap().filter_map(|entry| {
        let entry = entry.unwrap();
        entry.file_name().to_string_lossy().starts_with("clawmux.db").then(|| entry.path())
    });
    let has = |bytes: Vec<u8>| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    files.filter_map(|path| std::fs::read(path).ok()).any(has)
}

#[test]
fn an_owner_has_a_quota_is_told_what_to_delete_and_deletes_it() {
    let daemon = shared("[limits]\nrequests_burst = 0\nsessions = 3\nstore_bytes = 3500000\n");
    let mut ada = Client::connect_with(daemon.address, &key_of("ada"));
    let large = "x".repeat(MIB);
    assert_eq!(ada.chat("small", "hello").error(), "");
    assert_eq!(ada.chat("large", &large).error(), "");
    assert_eq!(ada.chat("large", "and again").error(), "");
    let mut times = 0;
    let refused = loop {
        times += 1;
        assert!(times < 5, "it is met");
        let id = ada.request("chat.send", keyed("large", &large, &format!("again-{times}")));
        let first = ada.reply(&id);
        if let Some(error) = first["error"].as_str() {
            break error.to_owned();
        }
        ada.stream(&id);
    };
    assert!(refused.contains("delete some") && refused.contains("main:websocket:large:main"), "{refused}");
    let again = ada.request("chat.send", keyed("small", "small things too, once it is met", "s"));
    let again = ada.reply(&again);
    assert!(
        again["event"] == "accepted" || again["error"].as_str().unwrap_or("").contains("delete some"),
        "{again}"
    );

    let third = ada.chat("third", "hi");
    if third.error().is_empty() {
        let fourth =
            ada.call("chat.send", json!({"channel": "websocket", "account": "fourth", "content": "hi"}));
        let fourth = fourth["error"].as_str().unwrap_or_else(|| panic!("{fourth}"));
        assert!(fourth.contains("3 are allowed: delete some"), "{fourth}");
        assert!(fourth.contains("unused for longest are"), "{fourth}");
    }
    let mut boss = Client::connect_with(daemon.address, &key_of("boss"));
    assert_eq!(boss.chat("other", "the quota of one is not another's").error(), "");
    let refused = ada.call("session.delete", place("other"));
    assert!(refused["result"]["deleted"] != true, "{refused}");

    // All of it can be taken along first.
    let (mut lines, mut after) = (Vec::new(), Some(0));
    while let Some(from) = after {
        let page = ada
            .call("session.export", json!({"channel": "websocket", "account": "large", "after_seq": from}));
        let result = &page["result"];
        lines.extend(result["lines"].as_array().unwrap_or_else(|| panic!("{page}")).iter().cloned());
        after = result["next"].as_u64();
    }
    let prompts: Vec<&str> = lines
        .iter()
        .filter(|line| line["event"] == "prompt")
        .map(|line| line["content"].as_str().unwrap())
        .collect();
    assert_eq!(&prompts[..2], [&*large, "and again"]);
    let exported = daemon.stdout_of(&["session", "export", "ada/main:websocket:large:main"]);
    let exported: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(exported, lines);

    assert_eq!(ada.call("session.delete", place("large"))["result"]["deleted"], true);
    assert_eq!(ada.call("session.delete", place("large"))["result"]["deleted"], false);
    assert_eq!(ada.chat("large", &large).error(), "", "there is room again");
    let status = daemon.json_of(&["status"]);
    let owners = status["store_size"]["owners"].as_array().unwrap();
    assert!(
        owners.iter().any(|owner| owner["owner"] == "ada" && owner["bytes"].as_u64() > Some(MIB as u64)),
        "{status}"
    );
}

#[test]
fn a_large_prompt_costs_more() {
    let daemon = Daemon::with_env(
        "[gateway]\nmax_payload_bytes = 20000000\n[limits]\nrequests_burst = 20\nrequests_per_second = 1\n",
        &[("CLAWMUX_TOKEN", "a-token-of-24-characters")],
    );
    let mut client = Client::connect_with(daemon.address, "a-token-of-24-characters");
    let id = client.request("chat.send", keyed("a", &"x".repeat(10 * MIB), "1"));
    assert_eq!(client.reply(&id)["event"], "accepted");
    // Of 20 units it took 15.
    let id = client.request("chat.send", keyed("b", &"x".repeat(10 * MIB), "2"));
    let refused = client.reply(&id);
    assert!(refused["error"].as_str().unwrap().starts_with("rate limited"), "{refused}");
}

#[test]
fn what_was_deleted_is_gone_from_the_files_and_they_shrink() {
    let (daemon, mut client) = Daemon::with("[limits]\nrequests_burst = 0\n").and(Client::connect);
    let marked = |name: &str| format!("marker-of-{name}-{} ", name.repeat(3));
    for (name, times) in [("gone", 60_000), ("kept", 5)] {
        assert_eq!(client.chat(name, &marked(name).repeat(times)).error(), "");
        assert_eq!(client.chat(name, &marked(name)).error(), "");
    }
    let size = || daemon.home().join("clawmux.db").metadata().unwrap().len();
    // Not all of it at once.
    eventually("it is moved into the database", || size() > 3 * MIB as u64 / 2);
    assert!(is_in_files(daemon.home(), &marked("gone")));
    let told = daemon.stdout_of(&["session", "delete", "main:websocket:gone:main"]);
    assert!(told.starts_with("deleted"), "{told}");
    eventually("it is gone", || !is_in_files(daemon.home(), &marked("gone")));
    assert!(is_in_files(daemon.home(), &marked("kept")));
    eventually("the file is smaller", || size() < MIB as u64);
    let (_, found, _) = daemon.run(&["doctor", "--offline"]);
    assert!(found.contains("of the store are in use; the largest owners: the operators "), "{found}");
}

#[test]
fn a_bounded_log_lets_go_of_what_was_not_used_for_longest() {
    let (daemon, mut client) =
        Daemon::with("[limits]\nrequests_burst = 0\n[store]\nmax_bytes = 3500000\n").and(Client::connect);
    let large = "x".repeat(MIB / 2);
    for at in 0..10 {
        assert_eq!(client.chat(&format!("a{at}"), &large).error(), "");
    }
    // Who was awake stays so for a minute; after a restart nobody is.
    let (daemon, mut client) = daemon.kill_and_restart().and(Client::connect);
    let attached = client.request("session.attach", place("a0"));
    client.reply(&attached);
    let mut look = Client::connect(daemon.address);
    let accounts = eventually("the oldest are gone", || {
        let list = look.call("session.list", Value::Null);
        let all = list["result"].as_array().unwrap();
        let mut names: Vec<String> = all
            .iter()
            .map(|one| one["session"].as_str().unwrap().split(':').nth(2).unwrap().into())
            .collect();
        names.sort();
        (names.len() < 9).then_some(names)
    });
    assert_eq!(accounts[0], "a0", "it is followed");
    assert_eq!(accounts.last().map(String::as_str), Some("a9"), "{accounts:?}");
    assert!(!accounts.contains(&"a1".to_owned()), "{accounts:?}");
    assert_eq!(look.chat("a1", "anew").error(), "");
}

#[test]
fn prompts_that_wait_are_in_the_store_and_run_in_order_after_a_kill_too() {
    const SESSIONS: usize = 40;
    const LARGE: usize = 3 * MIB;
    let upstream = Upstream::start();
    let config = format!(
        "[providers.up]\nretries = 0\nkind = \"anthropic\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n[limits]\n\
         requests_burst = 0\nqueued_bytes = {LARGE}\n",
        upstream.base_url()
    );
    let hang = || {
        for _ in 0..SESSIONS {
            upstream.then(Turn::HangBody("well".into()));
        }
    };
    hang();
    let (mut daemon, mut client) = Daemon::with(&config).and(Client::connect);
    let account = |at: usize| format!("s{at}");
    for at in 0..SESSIONS {
        let id = client.request("chat.send", keyed(&account(at), "first", &format!("{at}-1")));
        assert_eq!(client.reply(&id)["event"], "accepted");
        assert_eq!(client.reply(&id)["data"], "well");
    }
    let before = resident_bytes(daemon.pid());
    for at in 0..SESSIONS {
        for (n, content) in [(2, "x".repeat(LARGE)), (3, "third".into())] {
            let id = client.request("chat.send", keyed(&account(at), &content, &format!("{at}-{n}")));
            assert_eq!(client.reply(&id)["event"], "accepted");
        }
    }
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    println!("{} MiB wait and memory grew by {} MiB", SESSIONS * LARGE / MIB, grown / MIB);
    assert!(grown < SESSIONS * LARGE * 2 / 3, "{} MiB", grown / MIB);

    hang();
    daemon = daemon.kill_and_restart();
    let key = |at: usize| format!("main:websocket:{}:main", account(at));
    eventually("all go on", || {
        let status = daemon.json_of(&["status"]);
        status["running"] == SESSIONS && status["queued"] == 2 * SESSIONS
    });
    let after = resident_bytes(daemon.pid());
    println!("after a kill it has {} MiB, {} MiB before all that", after / MIB, before / MIB);
    assert!(after < before + SESSIONS * LARGE * 2 / 3, "{} MiB", after / MIB);

    let mut client = Client::connect(daemon.address);
    for at in 0..SESSIONS {
        for _ in 0..2 {
            upstream.then(Turn::Say(vec!["ok".into()]));
        }
        assert_eq!(client.call("chat.abort", place(&account(at)))["result"]["aborted"], true);
        eventually("all of it runs", || {
            let shown = daemon.stdout_of(&["session", "show", &key(at), "--json"]);
            let events: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let runs = |name: &str| -> Vec<String> {
                let of = events.iter().filter(|event| event["event"] == name);
                of.map(|event| event["run"].as_str().unwrap().to_owned()).collect()
            };
            let ends = runs("end");
            if ends.len() == 3 {
                assert_eq!((runs("start"), runs("prompt")), (ends.clone(), ends), "in the order they came");
                let last = events.iter().rfind(|event| event["event"] == "end").unwrap();
                assert_eq!(last["outcome"], "completed");
                return Some(());
            }
            None
        });
    }
    let asked = upstream.requests();
    let large = asked.iter().filter(|asked| asked.body.to_string().len() > LARGE).count();
    assert!(large >= SESSIONS, "each was asked with all it says: {large}");
}
