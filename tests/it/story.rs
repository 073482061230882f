//! The conformance story, told in exoclaw: connect, chat, tool, abort, error, reconnect, restart.
//! Over real sockets, against the binary as it ships, on the offline provider.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;

fn session(account: &str) -> Value {
    json!({"channel": "websocket", "account": account})
}

#[test]
fn a_newcomer_chats_without_a_key() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    let answer = client.chat("ada", "what is a walrus?");
    assert_eq!(answer.events(), ["text", "usage", "done"], "{answer:?}");
    assert!(answer.text().contains("walrus"), "it answers about the text: {}", answer.text());
    assert!(answer.data("text").count() > 3, "it streams: {answer:?}");
    let usage = answer.data("usage").next().unwrap();
    assert!(usage["input_tokens"].as_u64() > Some(0) && usage["output_tokens"].as_u64() > Some(0), "{usage}");
}

#[test]
fn the_methods_of_the_seed_answer_in_its_shape() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    assert_eq!(client.call("ping", json!({})), json!({"id": "r1", "result": "pong"}));
    let status = client.call("status", Value::Null);
    assert_eq!(status["result"]["plugins"], 2, "{status}");
    assert_eq!(status["result"]["sessions"], 0, "{status}");
    assert!(status["result"]["version"].is_string() && status.get("error").is_none(), "{status}");
    let plugins = client.call("plugin.list", json!({}));
    let names: Vec<_> = plugins["result"].as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!(names, ["clock", "echo"], "{plugins}");
    let unknown = client.call("no.such", json!({}));
    assert_eq!(unknown, json!({"id": "r4", "error": "unknown method: no.such"}));
}

#[test]
fn a_tool_is_called_in_its_sandbox_and_the_model_answers() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    let answer = client.chat("ada", r#"/tool echo {"text":"hi İİİİ"}"#);
    let mut events = answer.events();
    events.retain(|event| *event != "text");
    assert_eq!(events, ["tool_use", "tool_result", "usage", "done"], "{answer:?}");
    let call = answer.data("tool_use").next().unwrap();
    assert_eq!((&call["name"], &call["input"]["text"]), (&json!("echo"), &json!("hi İİİİ")));
    let result = answer.data("tool_result").next().unwrap();
    assert_eq!(result["tool_use_id"], call["id"]);
    assert_eq!(result["content"], "hi İİİİ", "{result}");
    assert!(result.get("is_error").is_none(), "{result}");

    let clock = client.chat("ada", "/tool clock {}");
    let result = clock.data("tool_result").next().unwrap();
    assert!(result["content"].as_str().unwrap().contains("20"), "a time: {result}");

    let refused = client.chat("ada", r#"/tool echo {"text":1}"#);
    let result = refused.data("tool_result").next().unwrap();
    assert_eq!(result["is_error"], true, "{result}");
    assert_eq!(refused.events().last(), Some(&"done"), "the loop goes on: {refused:?}");
}

#[test]
fn a_long_result_is_kept_whole_and_read_on_in_after_a_crash_too() {
    // A quarter of the context is shown: 8,000 bytes.
    let daemon = Daemon::with(
        "[memory]\ncontext_tokens = 8000\n[agents.main]\nmax_tokens = 6000\ntools = [\"calc\"]\n",
    );
    let mut client = Client::connect(daemon.address);
    let told = client.chat("ada", r#"/tool calc {"expression":"2^29999"}"#);
    let call =
        told.data("tool_use").next().unwrap_or_else(|| panic!("{told:?}"))["id"].as_str().unwrap().to_owned();
    let text = told.data("tool_result").next().unwrap()["content"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 9031, "who follows is told all of it");

    let daemon = daemon.kill_and_restart();
    let mut client = Client::connect(daemon.address);
    let mut read = |call: &str, from: usize| {
        let told = client.chat("ada", &format!(r#"/tool read_result {{"call":"{call}","from":{from}}}"#));
        told.data("tool_result").next().unwrap_or_else(|| panic!("{told:?}")).clone()
    };
    let rest = read(&call, 8000);
    let (rest, note) = rest["content"].as_str().unwrap().rsplit_once('\n').unwrap();
    assert_eq!((rest, note), (&text[8000..], "[bytes 8000 to 9031 of 9031, the end]"));
    let part = read(&call, 0);
    let (_, note) = part["content"].as_str().unwrap().rsplit_once('\n').unwrap();
    let on = format!(r#"{{"call":"{call}","from":8000}}"#);
    assert_eq!(note, format!("[bytes 0 to 8000 of 9031; for more call read_result with {on}]"));
    let wrong = read("another", 0);
    assert_eq!(wrong["is_error"], true, "{wrong}");
}

#[test]
fn abort_is_heard_while_streaming_and_in_the_queue() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    let running = client.prompt("ada", "/slow 50");
    let first = client.reply(&running);
    assert_eq!(first["event"], "text", "{first}");
    let queued = client.prompt("ada", "next");
    let also_queued = client.prompt("ada", "after that");

    let aborted = client.call("chat.abort", json!({"id": queued}));
    assert_eq!(aborted["result"]["aborted"], true, "{aborted}");
    let ended = client.stream(&queued);
    assert_eq!(ended.events(), ["usage", "error", "done"], "{ended:?}");

    let aborted = client.call("chat.abort", session("ada"));
    assert_eq!(aborted["result"]["aborted"], true, "{aborted}");
    let ended = client.stream(&running);
    assert_eq!(ended.data("error").next(), Some(&json!("aborted")), "{ended:?}");

    let next = client.stream(&also_queued);
    assert!(next.text().contains("after that"), "the next prompt starts: {next:?}");
    let nothing = client.call("chat.abort", session("ada"));
    assert_eq!(nothing["result"]["aborted"], false, "{nothing}");
}

#[test]
fn a_failing_provider_is_an_error_and_the_session_stays_usable() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    let failed = client.chat("ada", "/fail");
    assert_eq!(failed.events().last(), Some(&"done"), "{failed:?}");
    let error = failed.data("error").next().and_then(Value::as_str).unwrap_or_default();
    assert!(error.starts_with("provider error: "), "{failed:?}");
    assert!(client.chat("ada", "still there?").text().contains("still there"));
}

#[test]
fn a_ping_is_answered_within_a_stream() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    let slow = client.prompt("ada", "/slow 50");
    client.reply(&slow);
    assert_eq!(client.call("ping", Value::Null)["result"], "pong");
    client.call("chat.abort", json!({"id": slow}));
    assert_eq!(client.stream(&slow).events().last(), Some(&"done"));
}

#[test]
fn two_clients_share_a_session_and_the_second_message_sees_the_first() {
    let (daemon, mut ada) = Daemon::start().and(Client::connect);
    let mut bob = Client::connect(daemon.address);
    ada.chat("shared", "remember the word heliotrope");
    bob.chat("shared", "and now?");
    let history = bob.call("chat.history", session("shared"));
    assert_eq!(history["result"]["session"], "main:websocket:shared:main", "{history}");
    let messages = history["result"]["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"], "{history}");
    assert_eq!(messages[0]["content"], "remember the word heliotrope");
    assert_eq!(messages[0]["run"], messages[1]["run"]);
}

#[test]
fn a_client_that_leaves_mid_stream_finds_the_answer_in_the_history() {
    let (daemon, mut leaver) = Daemon::start().and(Client::connect);
    let id = leaver.prompt("ada", "tell me about otters");
    leaver.reply(&id);
    drop(leaver);
    let mut client = Client::connect(daemon.address);
    let history = crate::support::eventually("the run to end", || {
        let history = client.call("chat.history", session("ada"));
        (history["result"]["messages"].as_array()?.len() == 2).then_some(history)
    });
    assert!(history["result"]["messages"][1]["content"].as_str().unwrap().contains("otters"), "{history}");
}

#[test]
fn the_same_idempotency_key_is_the_same_run_also_after_a_restart() {
    let daemon = Daemon::start();
    let params =
        json!({"channel": "websocket", "account": "ada", "content": "once", "idempotency_key": "k1"});
    let mut client = Client::connect(daemon.address);
    let first_id = client.request("chat.send", params.clone());
    let again_id = client.request("chat.send", params.clone());
    let (first, again) = (client.stream(&first_id), client.stream(&again_id));
    assert_eq!(first.events(), ["accepted", "text", "usage", "done"], "{first:?}");
    assert_eq!(again.events(), first.events(), "{again:?}");
    assert_eq!(first.data("accepted").next(), again.data("accepted").next());
    assert_eq!(first.text(), again.text());

    let (_daemon, mut client) = daemon.restart().and(Client::connect);
    let id = client.request("chat.send", params);
    let after = client.stream(&id);
    assert_eq!(after.data("accepted").next(), first.data("accepted").next(), "{after:?}");
    assert_eq!(after.text(), first.text());
    let history = client.call("chat.history", session("ada"));
    assert_eq!(history["result"]["messages"].as_array().unwrap().len(), 2, "no second run: {history}");
}

#[test]
fn a_restarted_daemon_remembers_and_can_forget() {
    let daemon = Daemon::start();
    Client::connect(daemon.address).chat("ada", "my parrot is called Kea");
    let (_daemon, mut client) = daemon.restart().and(Client::connect);
    let list = client.call("session.list", json!({}));
    assert_eq!(list["result"][0]["session"], "main:websocket:ada:main", "{list}");
    let again = client.chat("ada", "hello again");
    assert!(again.text().contains("Kea") || again.text().contains("earlier"), "{}", again.text());
    assert!(client.call("session.clear", session("ada")).get("error").is_none());
    let history = client.call("chat.history", session("ada"));
    assert_eq!(history["result"]["messages"], json!([]), "{history}");
}

#[test]
fn a_run_cut_off_by_kill_9_has_an_end() {
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    let id = client.request(
        "chat.send",
        json!({"channel": "websocket", "account": "ada", "content": "tell me of cranes", "idempotency_key": "k"}),
    );
    while client.reply(&id)["event"] != "text" {}
    let (_daemon, mut client) = daemon.kill_and_restart().and(Client::connect);
    let id = client.request(
        "chat.send",
        json!({"channel": "websocket", "account": "ada", "content": "tell me of cranes", "idempotency_key": "k"}),
    );
    let told = client.stream(&id);
    let mut events = told.events();
    // What was shown last may have gone with the daemon.
    events.retain(|event| *event != "text");
    assert_eq!(events, ["accepted", "restart", "usage", "done"], "{told:?}");
    let history = client.call("chat.history", session("ada"));
    let answer = history["result"]["messages"][1]["content"].as_str().unwrap();
    assert_eq!(answer.matches("cranes").count(), 1, "the step ran once in what is kept: {history}");
    assert!(told.text().ends_with(answer), "{told:?}");
}

#[test]
fn an_interrupted_run_ends_as_interrupted_where_the_operator_says_so() {
    let daemon = Daemon::with("[store]\nrecovery = \"interrupt\"\n");
    let params =
        json!({"channel": "websocket", "account": "ada", "content": "/slow 60", "idempotency_key": "k"});
    let mut client = Client::connect(daemon.address);
    let id = client.request("chat.send", params.clone());
    while client.reply(&id)["event"] != "text" {}
    let (_daemon, mut client) = daemon.kill_and_restart().and(Client::connect);
    let id = client.request("chat.send", params);
    let stream = client.stream(&id);
    let error = stream.data("error").next().and_then(Value::as_str).unwrap_or_default();
    assert!(error.contains("interrupted"), "{stream:?}");
    assert_eq!(stream.events().last(), Some(&"done"));
}

#[test]
fn bad_input_is_answered_in_the_protocols_shape_and_harms_nothing() {
    let (_daemon, mut client) = Daemon::start().and(Client::connect);
    let mut refused = |text: &str, id: &str, start: &str| {
        client.send_text(text);
        let answer = client.receive();
        let error = answer["error"].as_str().unwrap_or_else(|| panic!("{text}: {answer}"));
        assert_eq!(answer["id"], id, "{text}: {answer}");
        assert!(error.starts_with(start), "{text}: {answer}");
    };
    refused("{not json", "0", "parse error: ");
    refused("[]", "0", "parse error: ");
    refused(r#"{"id":"x"}"#, "x", "");
    refused(r#"{"id":"x","method":"chat.send"}"#, "x", "invalid chat.send params: ");
    refused(r#"{"id":"x","method":"chat.send","params":{"channel":1}}"#, "x", "invalid chat.send params: ");
    refused(
        r#"{"id":"x","method":"chat.send","params":{"channel":"c","account":"a","content":" "}}"#,
        "x",
        "invalid chat.send params: ",
    );
    refused(r#"{"id":"x","method":"İİİİ"}"#, "x", "unknown method: İİİİ");
    client.send_binary(&[0, 159, 146, 150]);
    assert!(client.receive()["error"].is_string());
    client.send_text(r#"{"token":"not needed"}"#);
    let answer = client.chat("İİİİ", "İİİİ");
    assert!(answer.text().contains("İİİİ"), "{}", answer.text());
}

#[test]
fn health_is_plain_http() {
    let daemon = Daemon::start();
    for path in ["/healthz", "/health", "/readyz"] {
        assert_eq!(daemon.get(path).0, 200, "{path}");
    }
    assert_eq!(daemon.get("/nonsense").0, 404);
}
