//! Who is let in and how much they may ask for; what a start refuses, and how a stop goes.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};

use crate::support::client::{Client, Stream};
use crate::support::daemon::{self, Daemon};
use crate::support::upstream::{Turn, Upstream};
use crate::support::{eventually, wait_for};

const TOKEN: &str = "a-token-of-24-characters";

fn session(account: &str) -> Value {
    json!({"channel": "websocket", "account": account})
}

fn guarded(config: &str) -> Daemon {
    Daemon::with_env(config, &[("CLAWMUX_TOKEN", TOKEN)])
}

/// What the daemon says before it closes, and the code of its Close frame.
fn farewell(client: &mut Client) -> (Value, String) {
    let said = client.receive();
    let end = client.receive_or_close().expect_err("it closes");
    (said, end)
}

fn assert_turned_away(client: &mut Client, why: &str) {
    let (said, code) = farewell(client);
    assert_eq!((said, code.as_str()), (json!({"error": "auth_failed", "code": 4001}), "4001"), "{why}");
}

/// The text of a refusal that is a plain reply.
fn refusal(client: &mut Client, method: &str, params: Value) -> String {
    let reply = client.call(method, params);
    assert!(reply.get("result").is_none() && reply.get("event").is_none(), "{method}: {reply}");
    reply["error"].as_str().unwrap_or_else(|| panic!("{method}: {reply}")).to_owned()
}

#[test]
fn the_right_token_opens_and_nothing_else_does() {
    let daemon = guarded("");
    let mut client = Client::connect_with(daemon.address, TOKEN);
    assert_eq!(client.chat("ada", "hello").error(), "");
    client.send_text(&json!({"token": TOKEN}).to_string());
    let again = client.receive();
    assert_eq!(again["id"], "0", "{again}");
    assert!(again["error"].is_string(), "a second handshake is refused: {again}");
    assert_eq!(client.call("ping", Value::Null)["result"], "pong", "and does no harm");

    let firsts = [
        json!({"token": "wrong"}).to_string(),
        json!({"token": ""}).to_string(),
        json!({"token": format!("{TOKEN}x")}).to_string(),
        json!({"token": null}).to_string(),
        json!({"id": "1", "method": "ping"}).to_string(),
        "İİİİ".to_owned(),
    ];
    for first in firsts {
        let mut stranger = Client::open(daemon.address, "/ws");
        stranger.send_text(&first);
        assert_turned_away(&mut stranger, &first);
    }
    let mut stranger = Client::open(daemon.address, "/ws");
    stranger.send_binary(json!({"token": TOKEN}).to_string().as_bytes());
    assert_turned_away(&mut stranger, "binary");

    assert_eq!(daemon.get("/healthz").0, 200, "whether it is alive is no secret");
    assert_eq!(client.call("ping", Value::Null)["result"], "pong");
    assert!(!daemon.log().contains(TOKEN), "{}", daemon.log());
}

#[test]
fn who_shows_no_token_in_time_is_turned_away() {
    let daemon = guarded("[gateway]\nhandshake_timeout_ms = 2000\n");
    let mut silent = Client::open(daemon.address, "/ws");
    assert_turned_away(&mut silent, "late");
    assert_eq!(Client::connect_with(daemon.address, TOKEN).call("ping", Value::Null)["result"], "pong");
}

#[test]
fn roles_say_what_may_be_asked() {
    let key = |name: &str, role: &str| {
        format!("[[auth.api_keys]]\nname = \"{name}\"\nkey_env = \"KEY_{name}\"\nrole = \"{role}\"\n")
    };
    let config = key("alice", "user") + &key("bob", "user") + &key("eye", "readonly") + &key("boss", "admin");
    let env = [
        ("KEY_alice", "key-of-alice-0123456789"),
        ("KEY_bob", "key-of-bob-0123456789"),
        ("KEY_eye", "key-of-eye-0123456789"),
        ("KEY_boss", "key-of-boss-0123456789"),
    ];
    let daemon = Daemon::with_env(&config, &env);
    let [mut alice, mut bob, mut eye, mut boss] =
        env.map(|(_, key)| Client::connect_with(daemon.address, key));

    assert_eq!(alice.chat("ada", "my parrot is called Kea").error(), "");
    for (method, params) in
        [("plugin.load", json!({"name": "echo"})), ("plugin.unload", json!({"name": "echo"}))]
    {
        assert_eq!(refusal(&mut alice, method, params.clone()), "forbidden: needs admin");
        assert_eq!(refusal(&mut eye, method, params), "forbidden: needs admin");
    }
    let prompt = json!({"channel": "websocket", "account": "ada", "content": "hi"});
    for (method, params) in
        [("chat.send", prompt.clone()), ("chat.abort", session("ada")), ("session.clear", session("ada"))]
    {
        assert_eq!(refusal(&mut eye, method, params), "forbidden: needs write", "{method}");
    }
    for method in ["ping", "status", "plugin.list", "session.list", "budget.status"] {
        let reply = eye.call(method, Value::Null);
        assert!(reply.get("error").is_none() && reply.get("result").is_some(), "{method}: {reply}");
    }

    // Whose a session is says the credential, and others do not learn that it exists.
    let key = "alice/main:websocket:ada:main";
    let hers = json!({ "session": key, "content": "hi" });
    let hidden = format!("no such session: {key}");
    for client in [&mut bob, &mut eye] {
        assert_eq!(client.call("session.list", json!({}))["result"], json!([]));
        for method in ["chat.history", "budget.status"] {
            assert_eq!(refusal(client, method, hers.clone()), hidden);
        }
        let own = client.call("chat.history", session("ada"));
        assert_eq!(own["result"]["messages"], json!([]), "the same name is another session: {own}");
    }
    for method in ["chat.send", "session.clear", "chat.abort"] {
        assert_eq!(refusal(&mut bob, method, hers.clone()), hidden);
    }
    for client in [&mut alice, &mut boss] {
        let list = client.call("session.list", json!({}));
        assert_eq!(list["result"].as_array().map(Vec::len), Some(1), "{list}");
        let history = client.call("chat.history", json!({ "session": key }));
        assert_eq!(history["result"]["messages"].as_array().map(Vec::len), Some(2), "{history}");
    }
    let reply = boss.call("plugin.unload", json!({"name": "echo"}));
    assert_eq!(reply["result"]["unloaded"], true, "{reply}");
    assert!(env.iter().all(|(_, key)| !daemon.log().contains(key)), "{}", daemon.log());
}

#[test]
fn a_principal_has_a_rate_and_reads_are_free() {
    let daemon = guarded("[limits]\nrequests_burst = 11\nrequests_per_second = 1\n");
    let mut client = Client::connect_with(daemon.address, TOKEN);
    for _ in 0..30 {
        assert!(client.call("status", Value::Null).get("result").is_some());
    }
    // Eleven units buy two prompts; more come in at one a second.
    let ids: Vec<String> = (0..20).map(|at| client.prompt(&format!("a{at}"), "hello")).collect();
    let firsts: Vec<Value> = ids.iter().map(|id| client.reply(id)).collect();
    assert!(firsts[..2].iter().all(|first| first["event"] == "text"), "{firsts:?}");
    let refused = firsts.iter().find(|first| first.get("event").is_none());
    let refused = refused.expect("the rate is kept");
    let text = refused["error"].as_str().unwrap();
    let wait = text.strip_prefix("rate limited: try again in ").and_then(|rest| rest.strip_suffix(" ms"));
    let wait: u64 = wait.and_then(|ms| ms.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!((1..=5000).contains(&wait), "{text}");
    // The same principal on another connection is no other.
    let mut second = Client::connect_with(daemon.address, TOKEN);
    assert!(
        refusal(&mut second, "chat.send", json!({"channel": "c", "account": "a", "content": "x"}))
            .starts_with("rate limited: ")
    );
    assert!(client.call("plugin.list", Value::Null).get("result").is_some(), "reads go on");
    assert_eq!(client.call("ping", Value::Null)["result"], "pong");
}

#[test]
fn a_queue_is_full_for_one_session_alone() {
    let upstream = Upstream::start();
    let daemon = Daemon::with(&format!(
        "[providers.up]\nretries = 0\nkind = \"anthropic\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n[limits]\nqueue = 2\n",
        upstream.base_url()
    ));
    upstream.then(Turn::HangBody("well".into()));
    let mut client = Client::connect(daemon.address);
    let running = client.prompt("ada", "one");
    client.reply(&running);
    let queued = [client.prompt("ada", "two"), client.prompt("ada", "three")];
    let id = client.prompt("ada", "four");
    let refused = client.reply(&id);
    assert!(refused["error"].as_str().unwrap().contains("queue is full (2 prompts wait)"), "{refused}");
    assert_eq!(client.chat("bob", "hello").error(), "", "another session has its own queue");
    assert!(client.abort(&running));
    let ends: Vec<Stream> = queued.iter().map(|id| client.stream(id)).collect();
    assert_eq!(ends.iter().map(Stream::text).collect::<Vec<_>>(), ["You said: two", "You said: three"]);
    assert_eq!(client.chat("ada", "five").error(), "", "there is room again");
}

#[test]
fn a_frame_over_the_limit_closes_its_connection_alone() {
    let daemon = guarded("[gateway]\nmax_payload_bytes = 100000\n");
    let mut neighbour = Client::connect_with(daemon.address, TOKEN);
    let too_large = (json!({"error": "frame_too_large", "code": 1009}), "1009".to_owned());
    let mut client = Client::connect_with(daemon.address, TOKEN);
    let fits = client.chat("ada", &"x".repeat(90_000));
    assert_eq!(fits.error(), "", "what fits is taken");
    client.send_text(&"x".repeat(100_001));
    assert_eq!(farewell(&mut client), too_large);
    let mut stranger = Client::open(daemon.address, "/ws");
    stranger.send_text(&"x".repeat(65_537));
    assert_eq!(farewell(&mut stranger), too_large, "less before the handshake");
    assert_eq!(neighbour.call("ping", Value::Null)["result"], "pong");
}

#[test]
fn while_loopback_is_open_web_pages_and_proxies_are_kept_out() {
    let open = Daemon::with("[gateway]\nallowed_origins = [\"https://app.example.com\"]\n");
    let closed = guarded("");
    let upgrade = |daemon: &Daemon, name: &'static str, value: &str| {
        let mut request = format!("ws://{}/ws", daemon.address).into_client_request().unwrap();
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        Client::upgrade(daemon.address, request).map(drop)
    };
    let port = open.address.port();
    for (name, value) in [
        ("origin", "https://evil.example".to_owned()),
        ("origin", "null".to_owned()),
        ("origin", "http://127.0.0.1:1".to_owned()),
        ("host", format!("evil.example:{port}")),
        ("host", format!("127.0.0.1.evil.example:{port}")),
        ("x-forwarded-for", "10.0.0.1".to_owned()),
        ("forwarded", "for=10.0.0.1".to_owned()),
    ] {
        let refused = upgrade(&open, name, &value).expect_err(&format!("{name}: {value}"));
        assert!(refused.contains("403"), "{name}: {value}: {refused}");
    }
    for (name, value) in [
        ("origin", format!("http://127.0.0.1:{port}")),
        ("origin", format!("http://localhost:{port}")),
        ("origin", "https://app.example.com".to_owned()),
        ("host", format!("localhost:{port}")),
        ("host", format!("[::1]:{port}")),
    ] {
        upgrade(&open, name, &value).unwrap_or_else(|error| panic!("{name}: {value}: {error}"));
    }
    // With a credential a proxy may stand in front; a foreign page stays out.
    upgrade(&closed, "x-forwarded-for", "10.0.0.1").unwrap();
    upgrade(&closed, "host", "claw.example.com").unwrap();
    assert!(upgrade(&closed, "origin", "https://evil.example").unwrap_err().contains("403"));
}

#[test]
fn off_loopback_without_a_credential_it_does_not_start() {
    let home = daemon::home();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let output = daemon::command(home.path()).args(["serve", "--listen", listen]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 64)), "{:?}: {stderr}", output.status);
        assert!(stderr.contains("CLAWMUX_TOKEN") && stderr.contains("127.0.0.1"), "{stderr}");
        assert!(output.stdout.is_empty(), "it was never ready");
    }
}

#[test]
fn a_second_daemon_on_one_home_is_refused() {
    let daemon = Daemon::start();
    let (status, _, stderr) = daemon.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(status, 1, "{stderr}");
    assert!(stderr.contains("another") || stderr.contains("already"), "it says why: {stderr}");
    let mut client = Client::connect(daemon.address);
    assert_eq!(client.chat("ada", "still there?").error(), "");
    assert_eq!(daemon.json_of(&["status"])["pid"], daemon.pid(), "the socket is still the first one's");
}

#[test]
fn an_address_in_use_and_a_log_that_is_none_are_refused_in_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let home = daemon::home();
    let output = daemon::command(home.path()).args(["serve", "--listen", &address]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&address) && !stderr.contains("panicked"), "{stderr}");

    let home = daemon::home();
    std::fs::write(
        home.path().join("clawmux.db"),
        "this is no database, but a letter to a friend. ".repeat(100),
    )
    .unwrap();
    let output = daemon::command(home.path()).args(["serve", "--listen", "127.0.0.1:0"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("clawmux.db") && !stderr.contains("panicked"), "{stderr}");
    let kept = std::fs::read(home.path().join("clawmux.db")).unwrap();
    assert!(kept.starts_with(b"this is no database"), "it is left as it was");
}

#[test]
fn a_second_signal_stops_at_once() {
    let upstream = Upstream::start();
    let mut daemon = Daemon::with(&format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n\
         [gateway]\ndrain_timeout_ms = 600000\n",
        upstream.base_url()
    ));
    upstream.then(Turn::HangBody("once ".into()));
    let mut client = Client::connect(daemon.address);
    let id = client.prompt("ada", "go");
    client.reply(&id);
    daemon.signal("TERM");
    eventually("the drain", || daemon.get("/readyz").0 == 503);
    assert_eq!(daemon.get("/healthz").0, 200, "it is alive while it drains");
    for account in ["ada", "a new one"] {
        let id = client.prompt(account, "x");
        let refused = client.reply(&id);
        let said = refused["error"].as_str().unwrap_or_default();
        assert!(said.contains("the daemon is stopping"), "{account}: nothing new is begun: {refused}");
    }
    assert_eq!(upstream.requests().len(), 1);
    let status = daemon.terminate();
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
}

#[test]
fn a_configuration_with_mistakes_is_refused_with_all_of_them() {
    let home = daemon::home();
    let file = home.path().join("gateway.toml");
    let config = "[gateway]\nlisten = 5\nheartbeat = 1\n[limts]\nqueue = 1\n[budgets]\ndaily = -1\n";
    std::fs::write(&file, config).unwrap();
    for command in ["serve", "check"] {
        let output = daemon::command(home.path()).arg(command).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{command}: {stderr}");
        for (line, key) in
            [(2, "gateway.listen"), (3, "gateway.heartbeat"), (4, "limts"), (7, "budgets.daily")]
        {
            let begin = format!("{}:{line}: {key}", file.display());
            assert!(stderr.lines().any(|said| said.starts_with(&begin)), "{command}: {begin} in {stderr}");
        }
        assert!(!stderr.contains("panicked") && output.stdout.is_empty(), "{command}: {stderr}");
    }
    std::fs::write(&file, "[gateway\n").unwrap();
    let output = daemon::command(home.path()).arg("serve").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains(&format!("{}:1", file.display())), "{stderr}");
}

#[test]
fn a_stop_within_a_run_tells_the_client_and_the_next_start_goes_on() {
    let upstream = Upstream::start();
    let mut daemon = Daemon::with(&format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n\
         [gateway]\ndrain_timeout_ms = 200\n",
        upstream.base_url()
    ));
    upstream.then(Turn::HangBody("once ".into()));
    let mut client = Client::connect(daemon.address);
    let running = client.prompt("ada", "tell me a tale");
    assert_eq!(client.reply(&running)["data"], "once ");
    client.prompt("ada", "and another");
    assert_eq!(client.call("ping", Value::Null)["result"], "pong", "the second one is in");
    let status = daemon.terminate();
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
    let (said, code) = farewell(&mut client);
    assert_eq!((said, code.as_str()), (json!({"error": "draining", "code": 1001}), "1001"));
    wait_for("the call to be closed", upstream.left());

    let (_daemon, mut client) = daemon.kill_and_restart().and(Client::connect);
    let messages = eventually("both runs to end", || {
        let history = client.call("chat.history", session("ada"));
        let messages = history["result"]["messages"].as_array()?.clone();
        (messages.len() == 4).then_some(messages)
    });
    let contents: Vec<&str> = messages.iter().filter_map(|message| message["content"].as_str()).collect();
    assert_eq!(
        contents,
        ["tell me a tale", "You said: tell me a tale", "and another", "You said: and another"],
        "the step that was cut off runs anew, once"
    );
    assert_eq!(upstream.requests().len(), 3);
}

#[test]
fn a_hang_up_ends_nothing_and_is_told() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    daemon.signal("HUP");
    eventually("the daemon to say so", || daemon.log().contains("the configuration was reloaded by=SIGHUP"));
    assert_eq!(client.call("ping", json!({}))["result"], "pong");
}
