//! How the daemon is and how it is configured, in Wundr's words, against the binary as it ships.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon, key_of};
use crate::support::eventually;
use crate::support::wundr::Wundr;

fn health(client: &mut Wundr) -> Value {
    client.call("health.status", Value::Null)
}

/// The configuration file with keys of an operator and of one who reads.
fn guarded(more: &str) -> Daemon {
    let people = [("boss", "admin"), ("eye", "readonly")];
    Daemon::shared(&format!("# mine\n{more}"), &people, &[("CLAWMUX__BUDGETS__DAILY", "1000000")])
}

#[test]
fn health_is_what_was_measured() {
    let (daemon, mut client) = Daemon::start().and(Wundr::connect);
    let fresh = health(&mut client);
    let parts = fresh["subsystems"].as_object().unwrap_or_else(|| panic!("{fresh}"));
    assert_eq!(
        parts.keys().map(String::as_str).collect::<Vec<_>>(),
        ["hub", "plugins", "providers", "sessions", "store"]
    );
    assert!(
        parts.values().all(|part| part["status"] == "running" && part.get("errors").is_none()),
        "{fresh}"
    );
    assert_eq!(
        (&fresh["status"], &fresh["connectedClients"], &fresh["activeSessions"], &fresh["metrics"]),
        (&json!("running"), &json!(1), &json!(0), &Value::Null),
        "{fresh}"
    );

    let mut other = Client::connect(daemon.address);
    let (input, output) = other.chat("ada", "hello").usage();
    let busy = eventually("the next look", || {
        Some(health(&mut client)).filter(|health| health["metrics"]["totalTokensUsed"] == input + output)
    });
    assert_eq!(
        (&busy["metrics"]["totalSessionsSpawned"], &busy["metrics"]["successRate"]),
        (&json!(1), &json!(1.0))
    );
    assert!(busy["metrics"]["averageResponseTimeMs"].as_f64().is_some_and(|ms| ms > 0.0), "{busy}");
    assert_eq!(busy["connectedClients"], 2, "{busy}");
    other.chat("ada", "/fail");
    eventually("the failure to count", || {
        Some(health(&mut client)).filter(|health| health["metrics"]["successRate"] == 0.5)
    });
}

#[test]
fn a_provider_that_fails_is_told_until_it_answers() {
    let (daemon, mut client) = Daemon::start().and(Wundr::connect);
    let mut other = Client::connect(daemon.address);
    let degraded = |client: &mut Wundr, says: &str| {
        let seen = eventually("the provider to be told of", || {
            let seen = health(client);
            let part = &seen["subsystems"]["providers"];
            let is_said = part["errors"][0].as_str().is_some_and(|error| error.starts_with(says));
            is_said.then_some(seen)
        });
        assert_eq!(
            (&seen["status"], &seen["subsystems"]["providers"]["status"]),
            (&json!("degraded"), &json!("degraded")),
            "{seen}"
        );
    };
    other.chat("ada", "/fail");
    degraded(&mut client, "provider offline: the last call failed (provider), at 2");
    other.chat("ada", "/fail");
    degraded(&mut client, "provider offline: the last 2 calls failed (provider), at 2");
    other.chat("ada", "hello");
    eventually("the provider to be well", || {
        let seen = health(&mut client);
        seen["status"] == "running" && seen["subsystems"]["providers"].get("errors").is_none()
    });
}

#[test]
fn what_is_wrong_degrades_the_part_and_the_whole() {
    let home = daemon::home();
    std::fs::create_dir(home.path().join("plugins")).expect("a folder");
    std::fs::write(home.path().join("plugins/broken.wasm"), b"no module").expect("a file");
    let config = "[[plugins]]\nname = \"broken\"\npath = \"plugins/broken.wasm\"\n\
                  [providers.anthropic]\n[agents.main]\nprovider = \"anthropic\"\n";
    let (_daemon, mut client) = Daemon::at(home, config, &[]).and(Wundr::connect);
    let seen = eventually("the plugin to fail", || {
        Some(health(&mut client)).filter(|health| health["subsystems"]["plugins"]["status"] == "degraded")
    });
    let errors = |part: &str| seen["subsystems"][part]["errors"][0].as_str().unwrap_or_default().to_owned();
    assert_eq!(seen["status"], "degraded", "{seen}");
    assert_eq!(errors("plugins"), "plugin broken can't be loaded");
    assert_eq!(errors("providers"), "agent main has no API key for its provider");
    assert_eq!(seen["subsystems"]["store"]["status"], "running", "{seen}");
}

#[test]
fn what_is_set_is_stored_and_holds_at_once() {
    let mut daemon = guarded("[limits]\nqueue = 3 # few");
    let mut boss = Wundr::connect_with(daemon.address, &key_of("boss"));
    let asked = json!({ "keys": ["limits.queue", "budgets.daily", "memory"] });
    let before = boss.call("config.get", asked.clone());
    assert_eq!(
        (&before["values"]["limits.queue"], &before["values"]["budgets.daily"], &before["pending"]),
        (&json!(3), &json!(1_000_000), &json!([])),
        "{before}"
    );
    let set = boss
        .call("config.set", json!({ "values": { "limits.queue": 5, "memory": { "episodic_turns": 7 } } }));
    assert_eq!((&set["pending"], &set["restartRequired"]), (&json!([]), &json!(false)));
    let after = boss.call("config.get", asked.clone());
    assert_eq!(
        (&after["values"]["limits.queue"], &after["pending"]),
        (&json!(5), &set["pending"]),
        "{after}"
    );
    let path = daemon.home().join("gateway.toml");
    let text = std::fs::read_to_string(&path).expect("it is there");
    assert!(text.starts_with("# mine\n[limits]\nqueue = 5 # few\n"), "{text}");

    // What takes a restart is named.
    let set = boss.call("config.set", json!({ "values": { "store.path": "other.db" } }));
    assert_eq!((&set["pending"], &set["restartRequired"]), (&json!(["store.path"]), &json!(true)));
    boss.call("config.set", json!({ "values": { "store": null } }));
    let text = std::fs::read_to_string(&path).expect("it is there");

    // All complaints at once, and nothing is written.
    let wrong = json!({ "limits.queue": 0, "limits.queu": 1, "auth.token": "s3cret", "nonsense": {} });
    let error = boss.refused("config.set", json!({ "values": wrong }));
    let message = error["message"].as_str().unwrap_or_default();
    for says in
        ["limits.queue: expected", "limits.queu: unknown key", "nonsense: unknown key", "use token_env"]
    {
        assert!(message.contains(says), "{says}: {error}");
    }
    assert!(!error.to_string().contains("s3cret"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
    let all = boss.call("config.get", json!({ "all": true }));
    assert!(
        !all.to_string().contains(&key_of("boss")) && all["values"]["auth"]["api_keys"][0]["name"] == "boss",
        "{all}"
    );

    // Who only reads is told what concerns everybody.
    let mut eye = Wundr::connect_with(daemon.address, &key_of("eye"));
    let seen = eye.call("config.get", json!({ "all": true }));
    assert_eq!(
        (&seen["values"]["limits"]["queue"], seen["values"].get("auth"), seen.get("path"), seen.get("hash")),
        (&json!(5), None, None, None),
        "{seen}"
    );
    assert_eq!(eye.call("config.get", json!({ "keys": ["auth", "gateway.listen"] }))["values"], json!({}));
    assert_eq!(eye.refused("config.set", json!({ "values": {} }))["code"], "FORBIDDEN");

    // Back to what the daemon started with: nothing is pending, before the next start and after it.
    let back = json!({ "values": { "limits": { "queue": 3 }, "memory": null }, "merge": false });
    assert_eq!(boss.call("config.set", back)["pending"], json!([]));
    daemon = daemon.restart();
    let mut boss = Wundr::connect_with(daemon.address, &key_of("boss"));
    let now = boss.call("config.get", asked);
    assert_eq!((&now["values"]["limits.queue"], &now["pending"]), (&json!(3), &json!([])), "{now}");
}

#[test]
fn who_subscribed_is_told_when_something_changes() {
    let daemon = guarded("");
    let mut eye = Wundr::connect_with(daemon.address, &key_of("eye"));
    assert_eq!(health(&mut eye)["status"], "running");
    let subscription = eye.subscribe(&["health.*"], Value::Null);
    let drain = |args: &[&str]| daemon.stdout_of(&[&["drain"], args].concat());
    drain(&[]);
    let told = eye.event("health.status");
    assert_eq!(
        (
            &told["subscriptionId"],
            &told["payload"]["status"],
            &told["payload"]["subsystems"]["sessions"]["errors"][0]
        ),
        (&json!(subscription), &json!("degraded"), &json!("the daemon drains: no new prompts are taken")),
        "{told}"
    );
    drain(&["--off"]);
    assert_eq!(eye.event("health.status")["payload"]["status"], "running");
}
