//! Against a stand-in for a model server that is not ours: a script for `node` that takes
//! `--port PORT` and speaks both formats, steered by directives in the prompt such as
//! `[[n=40 ms=25]]`, `[[tool=NAME {..}]]`, `[[err=500]]` and `[[hang]]`.
//!
//! Runs only where `CLAWMUX_TEST_MOCK_LLM` names such a script.

use std::ffi::OsString;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::TIMEOUT;
use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::running::Running;
use crate::support::tools::skip;

/// The running script; killed when dropped.
struct StandIn {
    _process: Running,
    port: u16,
}

impl StandIn {
    fn start(script: &OsString) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("node");
        command.arg(script).args(["--port", &port.to_string()]).stdout(Stdio::piped());
        let mut process = Running::start(&mut command);
        let ready = process.stdout_lines().recv_timeout(TIMEOUT).expect("it gets ready");
        assert!(ready.contains(&port.to_string()), "it says where it listens: {ready:?}");
        Self { _process: process, port }
    }
}

/// Runs `story` in both formats, where there is a stand-in.
fn tell(story: impl Fn(&mut Client, &str)) {
    let Some(script) = std::env::var_os("CLAWMUX_TEST_MOCK_LLM") else {
        return skip("CLAWMUX_TEST_MOCK_LLM names no script");
    };
    let stand_in = StandIn::start(&script);
    for (kind, path) in [("anthropic", ""), ("openai", "/v1")] {
        let daemon = Daemon::with(&format!(
            "[providers.out]\nkind = \"{kind}\"\nbase_url = \"http://127.0.0.1:{}{path}\"\n\
             [agents.main]\nprovider = \"out\"\nmodel = \"mock-model\"\n",
            stand_in.port
        ));
        story(&mut Client::connect(daemon.address), kind);
    }
}

/// What it says to `text` in so many chunks.
fn words(text: &str, chunks: usize) -> String {
    let words: String = (0..chunks).map(|at| format!("w{at} ")).collect();
    format!("MOCK:{text} {words}")
}

#[test]
fn it_streams() {
    tell(|client, kind| {
        let plain = client.chat("ada", "hello İİİİ");
        assert_eq!(plain.events(), ["text", "usage", "done"], "{kind}: {plain:?}");
        assert_eq!(plain.text(), words("hello İİİİ", 8), "{kind}");
        let long = client.chat("ada", "again [[n=40 ms=25]]");
        assert_eq!(long.text(), words("again", 40), "{kind}: {long:?}");
        assert!(long.data("text").count() > 20, "{kind}: in the pieces it came in: {long:?}");
        assert_eq!(long.usage().1, 41, "{kind}: {long:?}");
        assert!(long.usage().0 > plain.usage().0, "{kind}: the context has grown: {long:?}");
    });
}

#[test]
fn it_calls_a_tool() {
    tell(|client, kind| {
        let answer = client.chat("ada", r#"[[tool=echo {"text":"x"}]]"#);
        assert_eq!(
            answer.events(),
            ["tool_use", "tool_result", "text", "usage", "done"],
            "{kind}: {answer:?}"
        );
        let (call, result) =
            (answer.data("tool_use").next().unwrap(), answer.data("tool_result").next().unwrap());
        assert_eq!((&call["name"], &call["input"]), (&json!("echo"), &json!({"text": "x"})), "{kind}");
        assert_eq!((&result["tool_use_id"], &result["content"]), (&call["id"], &json!("x")), "{kind}");
        assert!(answer.text().starts_with("MOCK:"), "{kind}: {answer:?}");
        // Nine tokens each time.
        assert_eq!(answer.usage().1, 18, "{kind}: the sum of both answers");
    });
}

#[test]
fn its_errors_and_silences_end_the_run_and_not_the_session() {
    tell(|client, kind| {
        let failed = client.chat("ada", "[[err=500]]");
        assert_eq!(failed.events(), ["usage", "error", "done"], "{kind}: {failed:?}");
        assert!(failed.error().starts_with("provider error: "), "{kind}: {failed:?}");
        assert!(
            failed.error().contains("500") && failed.error().contains("mock error"),
            "{kind}: {failed:?}"
        );

        let hanging = client.prompt("ada", "[[hang]]");
        assert_eq!(client.reply(&hanging)["event"], "text", "{kind}");
        assert_eq!(client.call("ping", Value::Null)["result"], "pong", "{kind}");
        assert!(client.abort(&hanging), "{kind}");
        assert_eq!(client.stream(&hanging).error(), "aborted", "{kind}");
        assert_eq!(client.chat("ada", "and now?").text(), words("and now?", 8), "{kind}");
    });
}
