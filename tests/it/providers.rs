//! Models over the network, from a client's prompt to the provider's wire and back: all formats,
//! over HTTP and HTTPS, and whatever providers do when they fail.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::client::{Client, Stream};
use crate::support::daemon::{self, Daemon};
use crate::support::openclaw;
use crate::support::upstream::{Turn, Upstream};
use crate::support::wundr::Wundr;
use crate::support::{NOBODY, wait_for};

const KINDS: [&str; 3] = ["anthropic", "openai", "openai-responses"];

/// The provider's key. Nobody but the provider may ever see it.
const KEY: &str = "sk-test-51ae0bd9f4-geheim";

const SOUL: &str = "You are a heron. İİİİ.";

/// `main` on a provider of this kind.
fn config(kind: &str, base_url: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\napi_key_env = \"UP_KEY\"\n\
         [agents.main]\nprovider = \"up\"\nmodel = \"test-model\"\n"
    )
}

fn start(kind: &str, upstream: &Upstream) -> Daemon {
    let home = daemon::home();
    std::fs::write(home.path().join("SOUL.md"), SOUL).unwrap();
    Daemon::at(home, &config(kind, &upstream.base_url()), &[("UP_KEY", KEY)])
}

fn say(pieces: &[&str]) -> Turn {
    Turn::Say(pieces.iter().map(ToString::to_string).collect())
}

/// The messages of a request's body, or what stands for them.
fn messages(body: &Value) -> &[Value] {
    body["messages"].as_array().or(body["input"].as_array()).expect("messages")
}

/// The messages of the last request, without a system prompt.
fn last_messages(upstream: &Upstream) -> Vec<Value> {
    let requests = upstream.requests();
    let messages = requests.last().map(|last| messages(&last.body)).expect("a request");
    messages.iter().filter(|message| message["role"] != "system").cloned().collect()
}

fn roles(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["role"].as_str()).collect()
}

/// The text of a message, in any format.
fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// A stream that failed, in the protocol's shape.
fn assert_failed(stream: &Stream, kind: &str) {
    assert!(stream.error().starts_with("provider error: "), "{kind}: {stream:?}");
    let events = stream.events();
    assert_eq!(events[events.len() - 3..], ["usage", "error", "done"], "{kind}: {stream:?}");
}

#[test]
fn text_comes_as_it_is_said_and_counts_as_the_wire_says() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);
        upstream.then(say(&["Hé", "llo ", "😀"]));
        let answer = client.chat("ada", "greet me");
        assert_eq!(answer.events(), ["text", "usage", "done"], "{kind}: {answer:?}");
        assert_eq!((answer.text().as_str(), answer.usage()), ("Héllo 😀", (20, 3)), "{kind}: {answer:?}");

        let request = &upstream.requests()[0];
        let (head, body) = (request.head.to_ascii_lowercase(), &request.body);
        assert_eq!((&body["model"], &body["stream"]), (&json!("test-model"), &json!(true)), "{kind}: {body}");
        let names: Vec<Value> = body["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(
                |tool| if kind == "openai" { tool["function"]["name"].clone() } else { tool["name"].clone() },
            )
            .collect();
        assert_eq!(names, ["echo", "clock"], "{kind}: the agent's tools are offered: {body}");
        match kind {
            "anthropic" => {
                assert_eq!(request.path, "/v1/messages");
                assert!(head.contains(&format!("x-api-key: {KEY}")), "{head}");
                assert_eq!(body["system"][0]["text"], SOUL, "{body}");
                assert_eq!(roles(body["messages"].as_array().unwrap()), ["user"], "{body}");
            }
            "openai-responses" => {
                assert_eq!(request.path, "/v1/responses");
                assert!(head.contains(&format!("authorization: bearer {KEY}")), "{head}");
                assert_eq!((&body["instructions"], &body["store"]), (&json!(SOUL), &json!(false)), "{body}");
                assert_eq!(roles(&last_messages(&upstream)), ["user"], "{body}");
            }
            _ => {
                assert_eq!(request.path, "/v1/chat/completions");
                assert!(head.contains(&format!("authorization: bearer {KEY}")), "{head}");
                assert_eq!(body["messages"][0], json!({"role": "system", "content": SOUL}), "{body}");
                assert_eq!(roles(&last_messages(&upstream)), ["user"], "{body}");
            }
        }
    }
}

#[test]
fn tools_are_called_together_and_their_results_go_back() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);
        let calls = [("echo", r#"{"text":"hi İİİİ"}"#), ("clock", "{}")];
        let calls = calls.map(|(name, input)| (name.to_owned(), input.to_owned()));
        upstream.then(Turn::Call("Let me see. ".into(), calls.to_vec())).then(say(&["It ", "works."]));
        let answer = client.chat("ada", "try the tools");
        assert_eq!(
            answer.events(),
            ["text", "tool_use", "tool_use", "tool_result", "tool_result", "text", "usage", "done"],
            "{kind}: {answer:?}"
        );
        assert_eq!(answer.text(), "Let me see. It works.", "{kind}: text before a call is kept");
        // 20 for each input; a piece and two calls, then two pieces of output.
        assert_eq!(answer.usage(), (40, 5), "{kind}: {answer:?}");
        let uses: Vec<&Value> = answer.data("tool_use").collect();
        assert_eq!((&uses[0]["name"], &uses[1]["name"]), (&json!("echo"), &json!("clock")));
        assert_eq!(uses[0]["input"], json!({"text": "hi İİİİ"}), "{kind}: an input in pieces is whole");
        let results: Vec<&Value> = answer.data("tool_result").collect();
        let of = |id: &Value| *results.iter().find(|result| result["tool_use_id"] == *id).unwrap();
        let (echo, clock) = (of(&uses[0]["id"]), of(&uses[1]["id"]));
        assert_eq!(echo["content"], "hi İİİİ", "{kind}: {answer:?}");
        assert!(results.iter().all(|result| result.get("is_error").is_none()), "{kind}: {answer:?}");

        let messages = last_messages(&upstream);
        assert_eq!(text(&messages[1]), "Let me see. ", "{kind}: {messages:?}");
        match kind {
            "anthropic" => {
                assert_eq!(roles(&messages), ["user", "assistant", "user"], "{messages:?}");
                let said = messages[1]["content"].as_array().unwrap();
                let kinds: Vec<_> = said.iter().map(|block| block["type"].as_str().unwrap()).collect();
                assert_eq!(kinds, ["text", "tool_use", "tool_use"], "{messages:?}");
                assert_eq!(said[1]["input"], json!({"text": "hi İİİİ"}), "{messages:?}");
                let back = messages[2]["content"].as_array().unwrap();
                assert_eq!(back.len(), 2, "all results in one message: {messages:?}");
                for (block, (call, result)) in back.iter().zip([(&said[1], echo), (&said[2], clock)]) {
                    assert_eq!((&block["type"], &block["tool_use_id"]), (&json!("tool_result"), &call["id"]));
                    assert!(block.to_string().contains(result["content"].as_str().unwrap()), "{block}");
                }
            }
            "openai-responses" => {
                let kinds: Vec<_> = messages.iter().map(|item| item["type"].as_str().unwrap()).collect();
                let (called, output) = ("function_call", "function_call_output");
                assert_eq!(kinds, ["message", "message", called, called, output, output], "{messages:?}");
                for (at, result) in [echo, clock].into_iter().enumerate() {
                    assert_eq!(messages[4 + at]["call_id"], messages[2 + at]["call_id"], "{messages:?}");
                    assert_eq!(messages[4 + at]["output"], result["content"], "{messages:?}");
                }
                let arguments: Value =
                    serde_json::from_str(messages[2]["arguments"].as_str().unwrap()).unwrap();
                assert_eq!(arguments, json!({"text": "hi İİİİ"}), "{messages:?}");
            }
            _ => {
                assert_eq!(roles(&messages), ["user", "assistant", "tool", "tool"], "{messages:?}");
                let calls = messages[1]["tool_calls"].as_array().unwrap();
                for (at, result) in [echo, clock].into_iter().enumerate() {
                    assert_eq!(messages[2 + at]["tool_call_id"], calls[at]["id"], "{messages:?}");
                    assert_eq!(messages[2 + at]["content"], result["content"], "{messages:?}");
                }
                let arguments: Value =
                    serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
                assert_eq!(arguments, json!({"text": "hi İİİİ"}), "{messages:?}");
            }
        }
    }
}

/// A client of the OpenClaw protocol that is let in.
fn openclaw(daemon: &Daemon) -> Client {
    let mut client = Client::open(daemon.address, "/");
    client.receive();
    let about = json!({"id": "cli", "version": "1", "platform": "linux", "mode": "cli"});
    let params = json!({"minProtocol": 3, "maxProtocol": 3, "client": about, "role": "operator", "scopes": ["operator.admin"]});
    let hello = call(&mut client, "connect", params).pop().unwrap();
    assert_eq!(hello["ok"], true, "{hello}");
    client
}

/// Calls a method: what comes up to its answer.
fn call(client: &mut Client, method: &str, params: Value) -> Vec<Value> {
    let id = format!("{method}-id");
    client.send_text(&json!({"type": "req", "id": id, "method": method, "params": params}).to_string());
    up_to(client, |frame| frame["id"] == id.as_str())
}

fn up_to(client: &mut Client, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut frames = vec![];
    while !frames.last().is_some_and(&is_last) {
        frames.push(client.receive());
    }
    frames
}

/// Sends a prompt: what comes up to the end of its answer.
fn send(client: &mut Client, params: Value) -> Vec<Value> {
    let run = params["idempotencyKey"].clone();
    let mut frames = call(client, "chat.send", params);
    let answer = frames.last().unwrap();
    assert_eq!(answer["ok"], true, "{answer}");
    frames.extend(up_to(client, |frame| {
        let payload = &frame["payload"];
        frame["event"] == "chat" && payload["runId"] == run && payload["state"] != "delta"
    }));
    assert_eq!(frames.last().unwrap()["payload"]["state"], "final", "{frames:?}");
    frames
}

/// The images of all messages of a request's body, in any format.
fn images(body: &Value) -> Vec<Vec<u8>> {
    let parts = messages(body).iter().flat_map(|message| message["content"].as_array().into_iter().flatten());
    let encoded = parts.filter_map(|part| match part["type"].as_str() {
        Some("image") if part["source"]["media_type"] == "image/png" => part["source"]["data"].as_str(),
        Some("image_url") => part["image_url"]["url"].as_str()?.strip_prefix("data:image/png;base64,"),
        Some("input_image") => part["image_url"].as_str()?.strip_prefix("data:image/png;base64,"),
        _ => None,
    });
    encoded.map(|data| STANDARD.decode(data).unwrap()).collect()
}

#[test]
fn an_image_arrives_unchanged_and_is_there_after_a_crash_and_thoughts_are_told() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let thinks = vec!["I look, ".into(), "İ see.".into()];
        let calls = Turn::Call("Let me see. ".into(), vec![("clock".into(), "{}".into())]);
        upstream
            .then(Turn::Think(thinks, Box::new(calls)))
            .then(say(&["A heron."]))
            .then(say(&["As I said."]));
        let mut daemon = start(kind, &upstream);
        // Every byte, in an image's clothes.
        let image: Vec<u8> =
            b"\x89PNG\r\n\x1a\n".iter().copied().chain((0..2000).flat_map(|_| 0..=255)).collect();
        let file = |name: &str, media_type: &str, data: &[u8]| json!({"type": "file", "mimeType": media_type, "fileName": name, "content": STANDARD.encode(data)});
        let mut client = openclaw(&daemon);
        let pdf = json!({"sessionKey": "main", "message": "read it", "idempotencyKey": "no",
            "attachments": [file("report.pdf", "application/pdf", b"%PDF-1.7")]});
        let refused = call(&mut client, "chat.send", pdf).pop().unwrap();
        assert_eq!(refused["ok"], false, "{kind}: {refused}");
        assert!(refused["error"]["message"].to_string().contains("report.pdf"), "{kind}: {refused}");

        let told = send(
            &mut client,
            json!({
                "sessionKey": "main", "message": "what is it?", "idempotencyKey": "k1", "thinking": "medium",
                "attachments": [file("heron.png", "image/png", &image), file("birds.csv", "text/csv", b"heron,1")],
            }),
        );
        let thought = told.iter().filter(|frame| frame["payload"]["stream"] == "thinking");
        let thought: String =
            thought.filter_map(|frame| frame["payload"]["data"]["delta"].as_str()).collect();
        assert_eq!(thought, "I look, İ see.", "{kind}: {told:?}");
        let requests = upstream.requests();
        assert_eq!(requests.len(), 2, "{kind}: what was refused reached nobody");
        for request in &requests {
            assert_eq!(images(&request.body), std::slice::from_ref(&image), "{kind}: byte for byte");
            assert!(request.body.to_string().contains("birds.csv"), "{kind}");
        }
        // What follows the prompt.
        let sent = messages(&requests[1].body);
        let said = &sent[1 + sent.iter().position(|message| message["role"] == "user").unwrap()];
        match kind {
            "anthropic" => {
                assert_eq!(requests[0].body["thinking"], json!({"type": "enabled", "budget_tokens": 4096}));
                let signature = format!("{}I look, İ see.", crate::support::upstream::SIGNATURE);
                let block = json!({"type": "thinking", "thinking": "I look, İ see.", "signature": signature});
                assert_eq!(said["content"][0], block, "{said}");
            }
            "openai-responses" => {
                let reasoning = json!({"effort": "medium", "summary": "auto"});
                assert_eq!(requests[0].body["reasoning"], reasoning);
                assert_eq!(requests[0].body["include"], json!(["reasoning.encrypted_content"]));
                let proof = format!("{}I look, İ see.", crate::support::upstream::SIGNATURE);
                assert_eq!(
                    (&said["id"], &said["encrypted_content"]),
                    (&json!("rs_1"), &json!(proof)),
                    "{said}"
                );
                assert_eq!(said["summary"], json!([{"type": "summary_text", "text": "I look, İ see."}]));
            }
            _ => {
                assert_eq!(requests[0].body["reasoning_effort"], "medium");
                assert_eq!(said["reasoning_content"], "I look, İ see.", "{said}");
            }
        }

        daemon = daemon.kill_and_restart();
        let mut client = openclaw(&daemon);
        send(&mut client, json!({"sessionKey": "main", "message": "sure?", "idempotencyKey": "k2"}));
        let body = &upstream.requests()[2].body;
        assert_eq!(images(body), [image], "{kind}: read back from the log");
        assert!(!body.to_string().contains("İ see"), "{kind}: a thought is of its run alone: {body}");
    }
}

#[test]
fn calls_that_make_no_sense_are_answered_and_the_loop_goes_on() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);
        for (name, input) in [
            ("echo", r#"{"text": "#),
            ("echo", "[1]"),
            ("echo", r#"{"text":7}"#),
            ("no_such_tool", "{}"),
            ("İİİİ", "{}"),
            ("../echo", "{}"),
        ] {
            upstream
                .then(Turn::Call(String::new(), vec![(name.into(), input.into())]))
                .then(say(&["I see."]));
            let answer = client.chat("ada", "go");
            let events = answer.events();
            assert_eq!(
                events,
                ["tool_use", "tool_result", "text", "usage", "done"],
                "{kind}: {name} {input}: {answer:?}"
            );
            let result = answer.data("tool_result").next().unwrap();
            assert_eq!(result["is_error"], true, "{kind}: {name} {input}: {answer:?}");
            assert_eq!((answer.text().as_str(), answer.usage()), ("I see.", (40, 2)), "{kind}: {answer:?}");
        }
    }
}

#[test]
fn a_model_that_never_stops_calling_is_stopped() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);
        for _ in 0..100 {
            upstream.then(Turn::Call(String::new(), vec![("echo".into(), r#"{"text":"x"}"#.into())]));
        }
        let answer = client.chat("ada", "go");
        assert_eq!(answer.events().last(), Some(&"done"), "{kind}");
        assert!(!answer.error().is_empty(), "{kind}: it says why: {answer:?}");
        let asked = upstream.requests().len();
        assert!((2..100).contains(&asked), "{kind}: {asked} answers");
        assert_eq!(answer.usage(), (20 * asked as u64, asked as u64), "{kind}: all of them are counted");
        assert_eq!(client.call("ping", Value::Null)["result"], "pong", "{kind}");
    }
}

#[test]
fn a_crash_between_a_tool_and_the_answer_repeats_neither() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let daemon = start(kind, &upstream);
        let prompt =
            json!({"channel": "websocket", "account": "ada", "content": "go", "idempotency_key": "k"});
        upstream
            .then(Turn::Call("Look: ".into(), vec![("clock".into(), "{}".into())]))
            .then(Turn::HangBody("It is".into()))
            .then(say(&["It is late."]));
        let mut client = Client::connect(daemon.address);
        let id = client.request("chat.send", prompt.clone());
        let mut seen = Vec::new();
        while seen.last().is_none_or(|frame: &Value| frame["data"] != "It is") {
            seen.push(client.reply(&id));
        }
        let result = seen.iter().find(|frame| frame["event"] == "tool_result").unwrap()["data"].clone();
        let (_daemon, mut client) = daemon.kill_and_restart().and(Client::connect);
        let id = client.request("chat.send", prompt);
        let stream = client.stream(&id);
        assert_eq!(stream.error(), "", "{kind}: {stream:?}");
        assert_eq!(
            stream.data("tool_result").collect::<Vec<_>>(),
            [&result],
            "{kind}: the call was made once"
        );
        assert!(
            stream.text().starts_with("Look: ") && stream.text().ends_with("It is late."),
            "{kind}: {stream:?}"
        );
        assert_eq!(stream.usage(), (40, 3), "{kind}: {stream:?}");
        assert_eq!(
            upstream.requests().len(),
            3,
            "{kind}: only the answer that was cut off is asked for again"
        );
        let (cut, again) = (&upstream.requests()[1].body, &upstream.requests()[2].body);
        assert_eq!(messages(cut), messages(again), "{kind}: and in the same words");
    }
}

#[test]
fn the_next_prompt_brings_the_turns_before_it_also_after_a_restart() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (daemon, mut client) = start(kind, &upstream).and(Client::connect);
        upstream.then(say(&["Noted: ", "heliotrope."])).then(say(&["Which one?"]));
        client.chat("ada", "the word is heliotrope");
        client.chat("bob", "a stranger's prompt");
        assert_eq!(roles(&last_messages(&upstream)), ["user"], "{kind}: another session knows nothing of it");
        client.chat("ada", "what was the word?");
        let expected = ["the word is heliotrope", "Noted: heliotrope.", "what was the word?"];
        let messages = last_messages(&upstream);
        assert_eq!(roles(&messages), ["user", "assistant", "user"], "{kind}: {messages:?}");
        assert_eq!(messages.iter().map(text).collect::<Vec<_>>(), expected, "{kind}");

        let daemon = daemon.restart();
        Client::connect(daemon.address).chat("ada", "and now?");
        let messages = last_messages(&upstream);
        assert_eq!(
            roles(&messages),
            ["user", "assistant", "user", "assistant", "user"],
            "{kind}: {messages:?}"
        );
        assert_eq!(text(&messages[1]), expected[1], "{kind}: {messages:?}");
    }
}

#[test]
fn what_a_provider_does_wrong_is_an_error_and_the_session_goes_on() {
    let status = |status, kind: &str, text: &str| {
        let error = json!({"type": kind, "message": text});
        Turn::Status(status, None, json!({"type": "error", "error": error}).to_string())
    };
    // What it does; what the error says; what was said before.
    let cases = [
        (status(401, "authentication_error", &format!("invalid key {KEY}")), "401", ""),
        (status(400, "invalid_request_error", "max_tokens: too large"), "max_tokens: too large", ""),
        (Turn::Status(429, Some(7), "{}".into()), "429", ""),
        (status(529, "overloaded_error", "Overloaded"), "Overloaded", ""),
        (Turn::Status(500, None, "<html>oops</html>".into()), "500", ""),
        (Turn::Page("<html>a proxy's page</html>".into()), "text/html", ""),
        (Turn::Cut("so f".into()), "", "so f"),
        (Turn::Reset("so far".into()), "", "so far"),
        (Turn::Garbage("so far so".into()), "", "so far so"),
        (Turn::Report("well".into()), "Overloaded", "well"),
        (Turn::Close, "", ""),
    ];
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);
        for (at, (turn, says, said)) in cases.iter().enumerate() {
            let account = format!("a{at}");
            upstream.then(turn.clone());
            if matches!(turn, Turn::Close) {
                // A request that an idle connection swallowed is made once more.
                upstream.then(turn.clone());
            }
            let failed = client.chat(&account, "go");
            assert_failed(&failed, kind);
            assert!(failed.error().contains(says), "{kind}: {turn:?} should say {says}: {failed:?}");
            assert_eq!(failed.text(), *said, "{kind}: {turn:?}: what was said is kept");

            upstream.then(say(&["fine"]));
            let next = client.chat(&account, "and now?");
            assert_eq!(
                (next.text().as_str(), next.error()),
                ("fine", ""),
                "{kind}: after {turn:?}: {next:?}"
            );
            let messages = last_messages(&upstream);
            assert!(
                messages.windows(2).all(|pair| pair[0]["role"] != pair[1]["role"]),
                "{kind}: roles take turns after {turn:?}: {messages:?}"
            );
        }
    }
}

#[test]
fn prompts_that_fail_do_not_push_the_conversation_out_of_the_context() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (daemon, mut client) = start(kind, &upstream).and(Client::connect);
        upstream.then(say(&["Noted."]));
        client.chat("ada", "the word is heliotrope");
        // As many as the context has turns.
        for _ in 0..5 {
            upstream.then(Turn::Status(503, None, "{}".into()));
            assert_failed(&client.chat("ada", "what was the word?"), kind);
        }
        let expected = ["the word is heliotrope", "Noted.", "what was the word?"];
        client.chat("ada", "what was the word?");
        let told: Vec<String> = last_messages(&upstream).iter().map(text).collect();
        assert_eq!(told[..3], expected, "{kind}");
        assert_eq!((told.len(), told[3].as_str()), (2 + 2 * 5 + 1, "(not answered)"), "{kind}: {told:?}");
        let daemon = daemon.restart();
        Client::connect(daemon.address).chat("ada", "and again?");
        assert_eq!(text(&last_messages(&upstream)[0]), expected[0], "{kind}: after a restart");
    }
}

#[test]
fn an_abort_closes_the_call_before_its_head_and_within_its_body() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);

        upstream.then(Turn::HangHead);
        let waiting = client.prompt("ada", "one");
        wait_for("the request", upstream.arrived());
        let queued = client.prompt("ada", "two");
        assert_eq!(client.call("ping", Value::Null)["result"], "pong", "{kind}");
        assert!(client.abort(&queued), "{kind}");
        assert_eq!(client.stream(&queued).error(), "aborted", "{kind}");
        assert!(client.abort(&waiting), "{kind}");
        wait_for("the connection to be closed", upstream.left());
        let ended = client.stream(&waiting);
        assert_eq!(ended.events(), ["usage", "error", "done"], "{kind}: {ended:?}");
        assert_eq!(ended.error(), "aborted", "{kind}");

        upstream.then(Turn::HangBody("once upon".into()));
        let streaming = client.prompt("ada", "three");
        let first = client.reply(&streaming);
        assert_eq!(
            (&first["event"], &first["data"]),
            (&json!("text"), &json!("once upon")),
            "{kind}: it streams"
        );
        assert!(client.abort(&streaming), "{kind}");
        wait_for("the connection to be closed", upstream.left());
        assert_eq!(client.stream(&streaming).error(), "aborted", "{kind}");
        assert!(!client.abort(&streaming), "{kind}: it is over");

        let next = client.chat("ada", "four");
        assert_eq!(next.text(), "You said: four", "{kind}: {next:?}");
        assert_eq!(upstream.requests().len(), 3, "{kind}: what was aborted in the queue was never asked");
    }
}

#[test]
fn a_provider_that_is_not_there_is_named() {
    for kind in KINDS {
        let home = daemon::home();
        let (daemon, mut client) =
            Daemon::at(home, &config(kind, &format!("http://{NOBODY}")), &[("UP_KEY", KEY)])
                .and(Client::connect);
        for _ in 0..2 {
            let failed = client.chat("ada", "anybody?");
            assert_failed(&failed, kind);
            let says = format!("connection refused: does the server at {NOBODY} run? check base_url");
            assert!(failed.error().contains(&says), "{kind}: {failed:?}");
            assert_eq!(failed.usage(), (0, 0), "{kind}: nothing was counted");
        }
        let log = daemon.log();
        assert!(log.contains("the run failed") && log.contains("main:websocket:ada:main"), "{log}");
    }
}

#[test]
fn https_holds_to_the_authority_that_is_named() {
    for kind in KINDS {
        let upstream = Upstream::start_tls();
        let start = |trusting: bool| {
            let home = daemon::home();
            std::fs::write(home.path().join("ca.pem"), upstream.ca_pem()).unwrap();
            let ca = if trusting { "ca_file = \"ca.pem\"\n" } else { "" };
            let config = config(kind, &upstream.base_url()).replace("[agents", &format!("{ca}[agents"));
            Daemon::at(home, &config, &[("UP_KEY", KEY)])
        };
        let daemon = start(true);
        let answer = Client::connect(daemon.address).chat("ada", "over tls");
        assert_eq!(answer.text(), "You said: over tls", "{kind}: {answer:?}");

        let daemon = start(false);
        let failed = Client::connect(daemon.address).chat("ada", "over tls");
        assert_failed(&failed, kind);
        assert!(failed.error().contains("ca_file"), "{kind}: it says what to do: {failed:?}");
        assert_eq!(upstream.requests().len(), 1, "{kind}: nothing was told to a stranger");
    }
}

#[test]
fn the_key_is_seen_by_the_provider_alone() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let config = config(kind, &upstream.base_url()) + "[log]\nfilter = \"trace\"\n";
        let (mut daemon, mut client) = Daemon::with_env(&config, &[("UP_KEY", KEY)]).and(Client::connect);
        let echoes = json!({"error": {"type": "authentication_error", "message": format!("no: {KEY}")}});
        upstream
            .then(Turn::Status(401, None, echoes.to_string()))
            .then(Turn::Status(403, None, format!("bad header: Bearer {KEY}")))
            .then(Turn::Call(String::new(), vec![("echo".into(), r#"{"text":"x"}"#.into())]))
            .then(say(&["fine"]));
        for _ in 0..3 {
            client.chat("ada", "go");
        }
        for method in ["status", "plugin.list", "session.list", "budget.status"] {
            client.call(method, json!({}));
        }
        assert!(upstream.requests().iter().all(|request| request.head.contains(KEY)), "{kind}: it is used");
        assert!(client.seen().iter().all(|frame| !frame.contains(KEY)), "{kind}: {:#?}", client.seen());
        daemon.terminate();
        let log = daemon.log();
        assert!(log.contains("DEBUG") && log.contains("TRACE"), "{kind}: it logs all it can");
        assert!(!log.contains("cranelift"), "{kind}: the compiler's own words drown the daemon's");
        let mut folders = vec![daemon.home().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.is_file() {
                    let bytes = std::fs::read(&path).unwrap();
                    let holds = bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes());
                    assert!(!holds, "{kind}: the key is in {}", path.display());
                }
            }
        }
    }
}

/// Asked again after an overload, and then cut: in every protocol's words.
#[test]
fn what_becomes_of_an_answer_is_told_in_every_protocol() {
    const AGAIN: &str = "up/test-model is overloaded: it is asked again in 1 s";
    const CUT: &str = "the answer was cut at 4096 tokens, the most it may have (agents.main.max_tokens)";
    for kind in KINDS {
        let upstream = Upstream::start();
        let again =
            || upstream.then(Turn::Status(503, None, String::new())).then(Turn::Short("so far".into()));
        let config = config(kind, &upstream.base_url()).replace("retries = 0", "retries = 1");
        let daemon = Daemon::with_env(&config, &[("UP_KEY", KEY)]);

        again();
        let (status, out, said) = daemon.run(&["chat", "--json", "hi"]);
        assert_eq!(status, 0, "{kind}: {said}");
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let told: Vec<_> = lines.iter().filter(|line| line["event"] == "notice").collect();
        assert_eq!(
            told,
            [
                &json!({ "event": "notice", "kind": "retrying", "message": AGAIN }),
                &json!({ "event": "notice", "kind": "incomplete", "message": CUT }),
            ],
            "{kind}: {out}"
        );

        // The seed's client, who knows nothing of notices.
        again();
        let answer = Client::connect(daemon.address).chat("ada", "hi");
        assert_eq!(answer.events(), ["text", "usage", "done"], "{kind}: {answer:?}");
        assert_eq!(
            answer.data("done").next(),
            Some(&json!({ "stop_reason": "length" })),
            "{kind}: {answer:?}"
        );

        again();
        let mut client = Wundr::connect(daemon.address);
        let session = client.call(
            "session.create",
            json!({ "orchestratorId": "o", "sessionType": "ruflo",
            "task": { "type": "general", "description": "talk" } }),
        );
        let accepted = client.call("prompt.submit", json!({ "sessionId": session["id"], "prompt": "hi" }));
        let (text, end) = client.answer_of(accepted["promptId"].as_str().unwrap());
        assert_eq!(
            (text.as_str(), &end["payload"]["metadata"]["stopReason"]),
            ("so far", &json!("max_tokens"))
        );
        let told: Vec<&String> =
            client.seen().iter().filter(|frame| frame.contains(r#""event":"stream.progress""#)).collect();
        assert!(told.len() == 2 && told[0].contains(AGAIN) && told[1].contains(CUT), "{kind}: {told:?}");

        again();
        let mut client = openclaw::connect(daemon.address, 3);
        let params = json!({ "sessionKey": "main", "message": "hi", "idempotencyKey": "k" });
        openclaw::call(&mut client, "chat.send", params);
        let end = client.find(|frame| frame["event"] == "chat" && frame["payload"]["state"] == "final");
        assert_eq!(end["payload"]["stopReason"], "length", "{kind}: {end}");
        let told =
            client.seen().iter().filter(|frame| frame.contains("\"lifecycle\"") && frame.contains(AGAIN));
        assert_eq!(told.count(), 1, "{kind}: {:#?}", client.seen());
    }
}

#[test]
fn a_prompt_that_failed_is_known_to_the_next_one_and_a_cut_answer_marked() {
    for kind in KINDS {
        let upstream = Upstream::start();
        let (_daemon, mut client) = start(kind, &upstream).and(Client::connect);
        upstream.then(Turn::Status(500, None, String::new()));
        assert_failed(&client.chat("ada", "name a heron"), kind);
        upstream.then(Turn::Short("A grey".into()));
        client.chat("ada", "try again");
        client.chat("ada", "go on");
        let messages = last_messages(&upstream);
        assert_eq!(
            roles(&messages),
            ["user", "assistant", "user", "assistant", "user"],
            "{kind}: {messages:?}"
        );
        let texts: Vec<String> = messages.iter().map(text).collect();
        assert_eq!(
            texts,
            ["name a heron", "(not answered)", "try again", "A grey\n[cut off here]", "go on"],
            "{kind}"
        );
    }
}
