//! The Node library `openclaw-node`, in a program that uses it.

use std::path::Path;

use serde_json::Value;

use crate::npm::Generation;
use crate::stage::{Auth, Stage};
use crate::support::tools::needs;
use crate::support::upstream::Turn;

#[test]
fn with_a_token() {
    needs!("clients", "npm");
    a_program(Auth::Token);
}

#[test]
fn without_a_credential() {
    needs!("clients", "npm");
    a_program(Auth::Open);
}

/// The texts of the chunks of this type.
fn chunks<'a>(answer: &'a Value, kind: &str) -> Vec<&'a str> {
    let chunks = answer.as_array().unwrap_or_else(|| panic!("no chunks: {answer}"));
    chunks.iter().filter(|chunk| chunk["type"] == kind).filter_map(|chunk| chunk["text"].as_str()).collect()
}

fn texts(history: &Value) -> Vec<(String, String)> {
    let messages = history["messages"].as_array().unwrap_or_else(|| panic!("no messages: {history:#}"));
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    messages.iter().map(|message| (word(&message["role"]), word(&message["content"][0]["text"]))).collect()
}

fn a_program(auth: Auth) {
    let stage = Stage::new(Generation::OpenClaw, auth);
    stage.will_say(&["Herons ", "wade ", "slowly."]);
    stage.will_hang_after("They stand and wait");
    stage.will_say(&["Here ", "I am."]);
    stage.upstream.then(Turn::Status(400, None, r#"{"error":{"message":"no such lake"}}"#.into()));
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/library.mjs");
    let output = stage
        .node(&program)
        .args([&format!("ws://{}", stage.address()), stage.token().unwrap_or_default()])
        .env("LIBRARY", Generation::OpenClaw.modules().join("openclaw-node/dist/index.mjs"))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let told: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert!(output.status.success(), "{told:#}\n{stderr}");

    assert_eq!(told["hello"]["protocol"], 4, "{told:#}");
    assert_eq!(told["hello"]["auth"]["role"], "operator", "{told:#}");
    assert!(told["methods"].as_u64().unwrap() > 10, "{told:#}");
    assert_eq!(chunks(&told["answer"], "text").concat(), "Herons wade slowly.", "{:#}", told["answer"]);
    assert_eq!(chunks(&told["answer"], "done").len(), 1, "{:#}", told["answer"]);
    assert!(chunks(&told["answer"], "error").is_empty(), "{:#}", told["answer"]);
    assert_eq!(told["health"]["ok"], true, "{:#}", told["health"]);
    let sessions = told["sessions"]["sessions"].as_array().unwrap();
    assert!(sessions.iter().any(|row| row["key"] == "agent:main:library"), "{sessions:#?}");
    let said = |role: &str, text: &str| (role.to_owned(), text.to_owned());
    let first = [said("user", "what do herons do"), said("assistant", "Herons wade slowly.")];
    assert_eq!(texts(&told["history"]), first, "{:#}", told["history"]);
    assert_eq!(told["agents"]["defaultId"], "main", "{:#}", told["agents"]);

    assert_eq!(told["aborted"]["aborted"], true, "{told:#}");
    assert_eq!(chunks(&told["cut"], "text").concat(), "They stand and wait", "{:#}", told["cut"]);
    assert_eq!(told["waited"]["status"], "ok", "{:#}", told["waited"]);
    let after = texts(&told["after"]);
    let once = after.iter().filter(|message| **message == said("assistant", "Here I am.")).count();
    assert_eq!(once, 1, "{after:#?}");
    assert!(told["failed"].to_string().contains("no such lake"), "{:#}", told["failed"]);
    assert!(told["refused"].to_string().contains("missing scope: operator.admin"), "{}", told["refused"]);
    assert_eq!((&told["reset"]["ok"], &told["deleted"]["ok"]), (&true.into(), &true.into()), "{told:#}");
}
