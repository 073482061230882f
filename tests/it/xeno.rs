//! xeno's protocol over the real socket, against the binary as it ships: framing, refusals, the life of a
//! query, one at a time for everybody, aborts, clients that leave, restarts, attachments and messages.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, home};
use crate::support::eventually;
use crate::support::lines::Lines;

fn query(request: &str, content: &str, channel: &str) -> Value {
    let context = json!({ "type": "rpc", "channelId": channel, "metadata": { "clientName": "console" } });
    json!({ "requestId": request, "content": content, "context": context })
}

fn connect(daemon: &Daemon) -> Lines {
    Lines::connect(daemon.home())
}

/// Has a query accepted.
fn ask(client: &mut Lines, request: &str, content: &str) {
    assert_eq!(client.call("gateway.query", query(request, content, "default")), json!({ "accepted": true }));
}

/// What is told of a query.
#[derive(Debug, Default)]
struct Told {
    partial: Vec<String>,
    last: Option<Value>,
    stats: Vec<String>,
    errors: Vec<String>,
}

impl Told {
    fn text(&self) -> &str {
        self.last.as_ref().and_then(|last| last["content"].as_str()).unwrap_or_default()
    }
}

fn text(params: &Value, name: &str) -> String {
    params[name].as_str().unwrap_or_else(|| panic!("{name} in {params}")).to_owned()
}

/// Everything that is told of a query, up to its end; of others it is kept.
fn hear(client: &mut Lines, request: &str) -> Told {
    let mut told = Told::default();
    loop {
        let message =
            client.find(&format!("more of {request}"), |message| message["params"]["requestId"] == request);
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "gateway.stream" => {
                assert!(told.last.is_none(), "nothing is streamed after the last: {message}");
                if params["isPartial"] == true {
                    assert!(params.get("attachments").is_none(), "{message}");
                    told.partial.push(text(params, "content"));
                } else {
                    told.last = Some(params.clone());
                }
            }
            "gateway.stats" => told.stats.push(text(params, "stats")),
            "gateway.error" => told.errors.push(text(params, "error")),
            "gateway.done" => {
                assert_eq!(message["params"], json!({ "requestId": request }));
                return told;
            }
            other => panic!("{other}: {message}"),
        }
    }
}

fn history(client: &mut Lines) -> Vec<(String, String)> {
    let answer = client.call("gateway.initialize", Value::Null);
    let turns = answer["history"].as_array().expect("a history");
    turns.iter().map(|turn| (text(turn, "role"), text(turn, "content"))).collect()
}

/// Waits until a piece of the answer has come.
fn begun(client: &mut Lines, request: &str) {
    client.find(&format!("a piece of {request}"), |message| {
        message["method"] == "gateway.stream" && message["params"]["requestId"] == request
    });
}

#[test]
fn every_refusal_and_every_line_that_is_none() {
    let daemon = Daemon::start();
    let mut client = connect(&daemon);
    let file = json!({ "type": "image", "path": "/x" });
    for (method, params, message) in [
        ("gateway.nothing", Value::Null, "Method not found: gateway.nothing"),
        ("", Value::Null, "Method not found: "),
        ("gateway.query", Value::Null, "Invalid query params."),
        ("gateway.query", json!([]), "Invalid query params."),
        ("gateway.query", json!({ "attachments": {} }), "Invalid query attachments payload."),
        ("gateway.query", json!({ "attachments": null }), "Invalid query attachments payload."),
        ("gateway.query", json!({ "attachments": [1] }), "Invalid query attachment."),
        (
            "gateway.query",
            json!({ "attachments": [{ "type": "x", "path": "/x" }] }),
            "Invalid query attachment payload.",
        ),
        (
            "gateway.query",
            json!({ "attachments": [{ "type": "image" }] }),
            "Invalid query attachment payload.",
        ),
        ("gateway.query", json!({ "attachments": [file] }), "Invalid query requestId."),
        ("gateway.query", json!({ "requestId": "r" }), "Invalid query content."),
        ("gateway.query", json!({ "requestId": "r", "content": " \n" }), "Invalid query content."),
        ("gateway.query", json!({ "requestId": "r", "content": "x" }), "Invalid query context."),
        (
            "gateway.query",
            json!({ "requestId": "r", "content": "x", "context": {} }),
            "Invalid query context type.",
        ),
        ("gateway.abort", json!([]), "Invalid abort params."),
        ("gateway.heartbeat", json!(5), "Invalid heartbeat params."),
        ("gateway.new_session", json!("x"), "Invalid new_session params."),
    ] {
        let error = client.refused(method, params.clone());
        assert_eq!(error, json!({ "code": -32000, "message": message }), "{method} {params}");
    }
    // Nothing of this is answered, and the line after it is.
    let dropped = [
        "null",
        "true",
        "[]",
        "{}",
        "",
        "  \t\r",
        r#"{"jsonrpc":"2.0","method":"gateway.abort"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"gateway.initialize"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"gateway.initialize"}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"gateway.initialize"}]"#,
    ];
    let seen = client.seen().len();
    for line in dropped {
        client.send_line(line);
    }
    client.send_bytes(b" \t{\"jsonrpc\":\"2.0\", \"id\":{\"a\" :1e2},");
    client.send_bytes(b"\"method\":\"gateway.abort\"} \r\n");
    client.next().expect("an answer");
    assert_eq!(client.seen()[seen..], [r#"{"jsonrpc":"2.0","id":{"a" :1e2},"result":{"ok":true}}"#]);
    client.send_line("{nonsense");
    let answer = client.next().expect("an answer");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32700)));

    // What arrived before the end is answered; an unfinished line is not executed.
    client.send_bytes(br#"{"jsonrpc":"2.0","id":"last","method":"gateway.initialize"}"#);
    client.send_bytes(b"\n{\"jsonrpc\":\"2.0\",\"id\":\"never\",\"method\":\"gateway.initialize\"}");
    client.finish();
    let rest = client.until_closed();
    assert_eq!(
        rest,
        [json!({ "jsonrpc": "2.0", "id": "last", "result": { "sessionId": null, "history": [] } })]
    );
}

#[test]
fn a_query_streams_and_ends_once_and_the_session_can_be_seen_meanwhile() {
    let daemon = Daemon::start();
    let mut client = connect(&daemon);
    ask(&mut client, "one", "  tell me of the heron  ");
    let told = hear(&mut client, "one");
    let last = told.last.as_ref().expect("a last stream");
    assert_eq!(last.as_object().unwrap().keys().collect::<Vec<_>>(), ["content", "isPartial", "requestId"]);
    assert!(told.errors.is_empty() && !told.partial.is_empty());
    let mut before = "";
    for partial in &told.partial {
        assert!(partial.starts_with(before) && told.text().starts_with(partial.as_str()), "all of it so far");
        before = partial;
    }
    let [stats] = &told.stats[..] else { panic!("{told:?}") };
    let parts: Vec<&str> =
        stats.split(" | ").map(|part| part.split('=').next().unwrap_or_default()).collect();
    assert_eq!(parts, ["result", "turns", "cost", "duration", "api", "stop"], "{stats}");
    assert!(
        stats.starts_with("result=success | turns=1 | cost=$0.000000 | ") && stats.ends_with("stop=end_turn")
    );

    ask(&mut client, "two", "/slow 60");
    begun(&mut client, "two");
    let answer = client.call("gateway.initialize", json!({ "whatever": 1 }));
    assert!(answer["sessionId"].is_string(), "{answer}");
    let said = history(&mut client);
    let expected = [("user", "  tell me of the heron  "), ("assistant", told.text()), ("user", "/slow 60")];
    let expected: Vec<_> = expected.iter().map(|(role, text)| (role.to_string(), text.to_string())).collect();
    assert_eq!(said[..3], expected);
    client.call("gateway.abort", json!({}));
    hear(&mut client, "two");

    // A provider that fails, and the same name again.
    ask(&mut client, "two", "/fail");
    let failed = hear(&mut client, "two");
    assert!(
        failed.last.is_none() && failed.errors.len() == 1 && failed.errors[0].contains("failed"),
        "{failed:?}"
    );
    // Off unless it is configured, and it says where.
    for (method, begins, key) in [
        ("gateway.heartbeat", "Heartbeat task is unavailable or disabled.", "scheduler.heartbeat_minutes"),
        ("gateway.new_session", "New session task is unavailable or disabled.", "scheduler.new_session_cron"),
    ] {
        let answer = client.call(method, json!({}));
        let message = text(&answer, "message");
        assert!(message.starts_with(begins) && message.contains(key) && answer["ok"] == false, "{answer}");
    }
}

#[test]
fn who_asks_is_seen_among_the_connections() {
    let daemon = Daemon::start();
    let (mut client, mut operator) = (connect(&daemon), connect(&daemon));
    ask(&mut client, "one", "hi");
    let mut seen = |client: &str, user: Value| {
        let list = operator.call("admin.connections", json!({}));
        let rows = list["connections"].as_array().expect("a list").clone();
        rows.iter().any(|row| row["client"] == client && row["user"] == user)
    };
    assert!(seen("console", Value::Null));
    let context = json!({ "type": "rpc", "userId": "ada", "metadata": { "clientName": "pager\u{7}" } });
    client.call("gateway.query", json!({ "requestId": "two", "content": "hi", "context": context }));
    assert!(seen("pager\u{7}", json!("ada")));
    let shown = daemon.stdout_of(&["connections"]);
    assert!(shown.contains("pager") && shown.contains("ada") && !shown.contains('\u{7}'), "{shown}");
}

#[test]
fn a_file_that_may_not_be_sent_is_refused_with_the_key_to_set() {
    let daemon = Daemon::start();
    let mut client = connect(&daemon);
    let path = daemon.home().join("note.txt");
    std::fs::write(&path, "a note").expect("a file");
    let mut asked = query("one", "read it", "default");
    asked["attachments"] = json!([{ "type": "document", "path": path }]);
    client.call("gateway.query", asked);
    let told = hear(&mut client, "one");
    assert!(told.errors[0].contains("list there the folders whose files may be sent"), "{told:?}");
    assert!(told.errors[0].contains("files.attachment_roots"), "{told:?}");
}

#[test]
fn queries_of_all_connections_take_place_one_at_a_time_in_their_order() {
    let daemon = Daemon::start();
    let [mut ada, mut bob] = [connect(&daemon), connect(&daemon)];
    let mut watcher = connect(&daemon);
    ask(&mut ada, "a", "/slow 2");
    begun(&mut ada, "a");
    assert_eq!(bob.call("gateway.query", query("b", "hi", "work")), json!({ "accepted": true }));
    assert_eq!(ada.call("gateway.query", query("c", "hi", "default")), json!({ "accepted": true }));
    let busy = |ahead: u32| format!("Busy with another task. Your message is queued ({ahead} ahead).");
    assert_eq!(text(&bob.notification("gateway.stats"), "stats"), busy(1));
    let of_c =
        |message: &Value| message["method"] == "gateway.stats" && message["params"]["requestId"] == "c";
    assert_eq!(text(&ada.find("that it waits", of_c)["params"], "stats"), busy(2));
    // Others are answered meanwhile, in whatever protocol.
    watcher.call("gateway.initialize", Value::Null);
    let mut other = Client::connect(daemon.address);
    assert!(other.chat("eve", "hi").text().contains("You said"), "it waits for nobody");
    let of_a = hear(&mut ada, "a");
    assert!(of_a.text().ends_with("2 done."), "{of_a:?}");
    // The order of acceptance is that of the ends, whichever session they are in.
    assert!(hear(&mut bob, "b").text().contains("You said"));
    assert!(hear(&mut ada, "c").text().contains("I remember 1 earlier"));
}

#[test]
fn an_abort_ends_what_is_active_and_nothing_else() {
    let daemon = Daemon::start();
    let [mut client, mut other] = [connect(&daemon), connect(&daemon)];
    for unused in [Value::Null, json!({ "requestId": 5 }), json!({ "requestId": null, "x": [{}] })] {
        assert_eq!(client.call("gateway.abort", unused), json!({ "ok": true }), "nothing is active");
    }
    ask(&mut client, "active", "/slow 60");
    ask(&mut client, "waits", "hi");
    begun(&mut client, "active");
    assert_eq!(other.call("gateway.abort", json!({ "requestId": "waits" })), json!({ "ok": true }));
    let aborted = hear(&mut client, "active");
    assert!(aborted.text().starts_with("Slowly:"), "what was said is kept: {aborted:?}");
    assert!(aborted.errors.len() == 1 && aborted.errors[0].contains("aborted"), "{aborted:?}");
    assert!(hear(&mut client, "waits").text().contains("You said"), "the queue is not touched");

    // Sent right behind the query, before anything of it can have come.
    let id = client.request("gateway.query", query("at once", "/slow 60", "new"));
    client.call("gateway.abort", json!({}));
    client.answer(&json!(id)).expect("it is accepted");
    let aborted = hear(&mut client, "at once");
    assert!(aborted.errors[0].contains("aborted"), "{aborted:?}");
    // While a tool or an approval is awaited it is the same run; twice does no harm.
    client.call("gateway.abort", json!({}));
    ask(&mut client, "after", "hi");
    assert!(hear(&mut client, "after").errors.is_empty());
}

#[test]
fn a_console_that_quits_ends_its_query_and_one_that_just_leaves_does_not() {
    let daemon = Daemon::start();
    let mut console = connect(&daemon);
    console.call("gateway.initialize", Value::Null);
    ask(&mut console, "quits", "/slow 60");
    begun(&mut console, "quits");
    let id = console.request("gateway.abort", json!({}));
    console.finish();
    let rest = console.until_closed();
    assert!(rest.iter().any(|message| message["id"] == id && message["result"]["ok"] == true), "{rest:?}");
    assert_eq!(rest.last().map(|message| &message["method"]), Some(&json!("gateway.done")), "{rest:?}");

    let mut leaves = connect(&daemon);
    ask(&mut leaves, "leaves", "/slow 1");
    begun(&mut leaves, "leaves");
    drop(leaves);
    let mut half = connect(&daemon);
    ask(&mut half, "half", "are you there?");
    half.finish();
    let rest = half.until_closed();
    let last = rest.iter().find(|message| message["params"]["isPartial"] == false).expect("a last stream");
    assert!(text(&last["params"], "content").contains("You said"), "a half-closed peer is told all");
    assert_eq!(rest.last().map(|message| &message["method"]), Some(&json!("gateway.done")));
    let said = history(&mut connect(&daemon));
    assert!(said.contains(&("assistant".into(), "Slowly: 1 done.".into())), "it ran to its end: {said:?}");
}

#[test]
fn a_query_survives_a_kill_and_waits_its_turn_again() {
    let daemon = Daemon::start();
    let mut client = connect(&daemon);
    ask(&mut client, "a", "/slow 3");
    assert_eq!(client.call("gateway.query", query("b", "second", "work")), json!({ "accepted": true }));
    begun(&mut client, "a");
    let daemon = daemon.kill_and_restart();
    let mut client = connect(&daemon);
    let said = history(&mut client);
    assert_eq!(said[0], ("user".to_owned(), "/slow 3".to_owned()), "{said:?}");
    // Behind both.
    assert_eq!(client.call("gateway.query", query("c", "third", "work")), json!({ "accepted": true }));
    let told = hear(&mut client, "c");
    assert!(told.text().contains("I remember 1 earlier message: \"second\""), "{told:?}");
    assert!(told.stats[0].contains("queued (2 ahead)"), "{told:?}");
    let said = history(&mut client);
    assert_eq!(said.last(), Some(&("assistant".to_owned(), "Slowly: 1 2 3 done.".to_owned())));
}

#[test]
fn a_stop_is_told_and_what_was_accepted_takes_place_at_the_next_start() {
    let mut daemon = Daemon::with("[gateway]\ndrain_timeout_ms = 300\n");
    let mut client = connect(&daemon);
    ask(&mut client, "active", "/slow 4");
    ask(&mut client, "queued", "hi");
    begun(&mut client, "active");
    assert!(daemon.terminate().success());
    let rest = client.until_closed();
    for request in ["active", "queued"] {
        let of: Vec<&Value> = rest.iter().filter(|m| m["params"]["requestId"] == request).collect();
        let told: Vec<&str> = of.iter().filter_map(|m| m["method"].as_str()).collect();
        assert!(told.ends_with(&["gateway.error", "gateway.done"]), "{rest:?}");
        assert_eq!(of[of.len() - 2]["params"]["error"], "Gateway is shutting down.");
        assert_eq!(told.iter().filter(|method| **method == "gateway.done").count(), 1);
    }
    assert!(rest.iter().all(|message| message["method"] != "admin.closing"), "{rest:?}");
    let daemon = daemon.restart_stopped();
    let mut client = connect(&daemon);
    let said = eventually("both to take place", || {
        let said = history(&mut client);
        (said.len() == 4).then_some(said)
    });
    assert_eq!(said[1].1, "Slowly: 1 2 3 4 done.");
    assert!(said[3].1.contains("You said: \"hi\""), "{said:?}");
}

#[test]
fn attachments_are_read_and_sent_back_under_the_roots_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("it is there");
    let config = format!("[files]\nattachment_roots = [{:?}]\n", root.to_str().expect("UTF-8"));
    let daemon = Daemon::at(home(), &config, &[]);
    let mut client = connect(&daemon);
    let write = |name: &str, data: &[u8]| {
        let path = root.join(name);
        std::fs::write(&path, data).expect("it is written");
        path
    };
    let note = write("note.md", b"herons");
    let image = write("bird.png", b"\x89PNG\r\n\x1a\n....");
    let pdf = write("report.pdf", b"%PDF-1.7\x00\xff");
    let with = |request: &str, files: &[&Path]| {
        let files: Vec<Value> =
            files.iter().map(|path| json!({ "type": "document", "path": path })).collect();
        let mut query = query(request, "look", "default");
        query["attachments"] = files.into();
        query
    };
    assert_eq!(client.call("gateway.query", with("in", &[&note, &image, &pdf])), json!({ "accepted": true }));
    let told = hear(&mut client, "in");
    for sent in [
        "You sent note.md (text/markdown, 6 bytes).",
        "You sent bird.png (image/png, 12 bytes).",
        "You sent report.pdf (application/pdf, 10 bytes).",
    ] {
        assert!(told.text().contains(sent), "{told:?}");
    }
    let secret = daemon.home().join("gateway.toml");
    let link = root.join("link");
    std::os::unix::fs::symlink(&secret, &link).expect("it is linked");
    for (path, why) in [
        (secret.as_path(), "not in a folder of files.attachment_roots"),
        (&link, "not in a folder of files.attachment_roots"),
        (&root.join("nothing"), "there is no such file"),
        (&root, "no regular file"),
        (Path::new("note.md"), "not absolute"),
    ] {
        assert_eq!(client.call("gateway.query", with("out", &[&note, path])), json!({ "accepted": true }));
        let told = hear(&mut client, "out");
        assert!(told.last.is_none() && told.errors.len() == 1 && told.errors[0].contains(why), "{told:?}");
    }

    let file = json!({ "type": "image", "path": image, "caption": "a bird" });
    let call = json!({ "text": "Here it is.", "attachments": [file] });
    ask(&mut client, "back", &format!("/tool send_message {call}"));
    let told = hear(&mut client, "back");
    let last = told.last.as_ref().expect("a last stream");
    assert!(told.text().contains("Here it is."), "{told:?}");
    let expected = json!({ "type": "image", "path": image, "mimeType": "image/png", "fileName": "bird.png",
        "caption": "a bird", "size": 12 });
    assert_eq!(last["attachments"], json!([expected]));
    let call = json!({ "attachments": [{ "type": "document", "path": secret }] });
    ask(&mut client, "no", &format!("/tool send_message {call}"));
    let told = hear(&mut client, "no");
    assert!(
        told.text().contains("send_message failed")
            && told.last.as_ref().unwrap().get("attachments").is_none()
    );
    // The prompts that were refused left no trace.
    assert_eq!(
        history(&mut client).iter().filter(|(role, said)| role == "user" && said == "look").count(),
        1
    );
}

#[test]
fn without_roots_nothing_may_be_attached_and_messages_reach_every_session() {
    let daemon = Daemon::start();
    let mut client = connect(&daemon);
    let mut with = query("in", "look", "default");
    with["attachments"] = json!([{ "type": "document", "path": daemon.home().join("gateway.toml") }]);
    assert_eq!(client.call("gateway.query", with), json!({ "accepted": true }));
    let told = hear(&mut client, "in");
    assert!(told.errors[0].contains("no folder is listed in files.attachment_roots"), "{told:?}");

    let mut other = Client::connect(daemon.address);
    other.chat("eve", "hi");
    let attached = other.request("session.attach", json!({ "session": "main:websocket:eve:main" }));
    other.reply(&attached);
    // Who follows the asking session by another protocol sees what happens there too.
    ask(&mut client, "first", "hi");
    hear(&mut client, "first");
    let mut watcher = Client::connect(daemon.address);
    let watched = watcher.request("session.attach", json!({ "session": "main:xeno:default:main" }));
    watcher.reply(&watched);
    let call = json!({ "text": "Dinner is ready.", "session": "main:websocket:eve:main" });
    ask(&mut client, "send", &format!("/tool send_message {call}"));
    let told = hear(&mut client, "send");
    assert!(told.text().contains("send_message answered"), "{told:?}");
    let heard = loop {
        let frame = other.reply(&attached);
        if frame["event"] == "message" {
            break frame;
        }
    };
    assert!(heard.to_string().contains("Dinner is ready."), "{heard}");
    let mut events = Vec::new();
    while events.last().map(String::as_str) != Some("done") {
        events.push(watcher.reply(&watched)["event"].as_str().unwrap_or_default().to_owned());
    }
    assert!(events.contains(&"prompt".to_owned()) && events.contains(&"tool_use".to_owned()), "{events:?}");
}
