//! Where models are asked and which: base URLs with and without a version, headers of one's own, and the models of
//! servers that nobody named.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::eventually;
use crate::support::openclaw;
use crate::support::upstream::{Turn, Upstream};

fn list(models: &[&str]) -> Turn {
    let data: Vec<Value> = models.iter().map(|model| json!({ "id": model, "object": "model" })).collect();
    Turn::Status(200, None, json!({ "object": "list", "data": data }).to_string())
}

/// An agent without a model at a provider of this kind, which has no key.
fn unnamed(kind: &str, base_url: &str) -> String {
    format!(
        "[providers.up]\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\nretries = 0\n[agents.main]\nprovider = \"up\"\n"
    )
}

#[test]
fn a_base_url_is_the_same_with_and_without_its_version_everywhere() {
    for (kind, path) in [
        ("anthropic", "/v1/messages"),
        ("openai", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
        ("ollama", "/v1/chat/completions"),
    ] {
        let upstream = Upstream::start();
        for end in ["", "/", "/v1", "/v1/"] {
            let config = unnamed(kind, &format!("{}{end}", upstream.base_url())) + "model = \"m\"\n";
            let (daemon, mut client) = Daemon::with(&config).and(Client::connect);
            assert_eq!(client.chat("ada", "hi").text(), "You said: hi", "{kind} {end}");
            assert_eq!(upstream.requests().last().unwrap().path, path, "{kind} {end}");
            upstream.then(list(&["m"]));
            assert_eq!(daemon.rows_of(&["models"])[0]["model"], "m", "{kind} {end}");
            let asked = upstream.requests().pop().unwrap().path;
            assert_eq!(asked.split('?').next().unwrap(), "/v1/models", "{kind} {end}");
            // What is asked where requests go, and the list.
            upstream.then(Turn::Status(400, None, "{}".into())).then(list(&["m"]));
            let (_, found, _) = daemon.run(&["doctor"]);
            assert!(found.contains("provider up has m (main)"), "{kind} {end}: {found}");
            let asked: Vec<_> =
                upstream.requests().into_iter().map(|request| request.path).rev().take(2).collect();
            assert!(asked[0].starts_with("/v1/models") && asked[1] == path, "{asked:?}");
        }
    }
}

#[test]
fn a_model_that_nobody_named_is_asked_and_shown_once_it_is_known() {
    let upstream = Upstream::start();
    let (daemon, mut client) = Daemon::with(&unnamed("openai", &upstream.base_url())).and(Client::connect);
    let model = |daemon: &Daemon| daemon.json_of(&["status"])["agents"][0]["model"].clone();
    assert_eq!(model(&daemon), "up", "nobody asked yet");
    let mut page = openclaw::connect(daemon.address, 3);
    assert_eq!(openclaw::call(&mut page, "models.list", json!({}))["models"], json!([]));
    assert_eq!(client.call("model.list", Value::Null)["result"], json!([]));

    upstream.then(list(&["text-embedding-3", "tiny"]));
    assert_eq!(client.chat("ada", "hi").text(), "You said: hi");
    assert_eq!(upstream.requests().last().unwrap().body["model"], "tiny");
    eventually("the model to be known", || model(&daemon) == "up/tiny");
    eventually("the page to be told", || {
        openclaw::call(&mut page, "models.list", json!({}))["models"][0]["id"] == "tiny"
    });
    assert_eq!(client.call("model.list", Value::Null)["result"][0]["model"], "up/tiny");

    // Another model in its place, while the daemon runs; a reload that does not concern it forgets nothing.
    let unknown = json!({"error": {"message": "model 'tiny' not found", "type": "not_found_error"}});
    upstream.then(Turn::Status(404, None, unknown.to_string())).then(list(&["other"]));
    assert_eq!(client.chat("ada", "again").text(), "You said: again");
    eventually("the other one to be known", || model(&daemon) == "up/other");
    daemon.stdout_of(&["config", "set", "limits.queue", "9"]);
    assert_eq!(model(&daemon), "up/other");
    let asked = upstream.requests().len();
    assert_eq!(client.chat("ada", "and again").text(), "You said: and again");
    assert_eq!(upstream.requests().len(), asked + 1, "the list is not read again");
    // What ran keeps to the model it was recorded with, by whatever it is called now.
    let (daemon, mut client) = daemon.restart().and(Client::connect);
    upstream.then(list(&["third"]));
    assert_eq!(client.chat("ada", "after a restart").text(), "You said: after a restart");
    eventually("it to be known again", || model(&daemon) == "up/third");
}

#[test]
fn a_server_without_models_says_what_to_do() {
    let upstream = Upstream::start();
    let (_daemon, mut client) = Daemon::with(&unnamed("ollama", &upstream.base_url())).and(Client::connect);
    upstream.then(list(&[]));
    let failed = client.chat("ada", "hi");
    assert!(failed.error().contains("up has no models: load one there"), "{failed:?}");
    assert_eq!(failed.usage(), (0, 0), "nobody counted anything");
    upstream.then(list(&["tiny"]));
    assert_eq!(client.chat("ada", "hi").text(), "You said: hi", "once there is one");
}

#[test]
fn headers_of_ones_own_are_sent_and_never_shown() {
    const SECRET: &str = "geheim-7f31c0-of-the-team";
    let upstream = Upstream::start();
    let config = unnamed("openai", &upstream.base_url()).replace(
        "[agents",
        "headers = { X-Title = \"clawmux-title\", x-team = \"secret:team\" }\n[secrets.team]\nvalue_env = \"TEAM\"\n[agents",
    ) + "model = \"m\"\n[log]\nfilter = \"trace\"\n";
    let (daemon, mut client) = Daemon::with_env(&config, &[("TEAM", SECRET)]).and(Client::connect);
    let echoes = json!({"error": {"message": format!("no: {SECRET}"), "type": "invalid_request_error"}});
    upstream.then(Turn::Status(400, None, echoes.to_string()));
    let failed = client.chat("ada", "hi");
    assert!(failed.error().contains("no: [secret]"), "{failed:?}");
    assert_eq!(client.chat("ada", "hi").text(), "You said: hi");
    for request in upstream.requests() {
        let head = request.head.to_ascii_lowercase();
        assert!(
            head.contains("x-title: clawmux-title") && head.contains(&format!("x-team: {SECRET}")),
            "{head}"
        );
    }
    let shown = daemon.stdout_of(&["config", "get"]);
    assert!(
        shown.contains("x-team") && !shown.contains(SECRET) && !shown.contains("clawmux-title"),
        "{shown}"
    );
    assert!(!daemon.log().contains(SECRET) && !daemon.log().contains("clawmux-title"));
    assert!(client.seen().iter().all(|frame| !frame.contains(SECRET)));
    let home = daemon::home();
    std::fs::write(home.path().join("gateway.toml"), config.replace("X-Title", "Transfer-Encoding")).unwrap();
    let (status, _, said) = daemon::output(daemon::command(home.path()).arg("check").env("TEAM", SECRET));
    assert_eq!(status, 64);
    assert!(said.contains("gateway.toml:5: providers.up.headers.Transfer-Encoding: clawmux sets"), "{said}");
}
