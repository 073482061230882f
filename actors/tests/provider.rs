//! Provider calls over real sockets, in both formats, with everything that goes wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also outside of its own function")]

#[allow(dead_code, unreachable_pub, reason = "tests of the daemon use the rest of it")]
#[path = "../../tests/support/upstream.rs"]
mod upstream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler};
use clawmux_actors::provider_supervisor::Deadlines;
use clawmux_actors::provider_supervisor::account::Account;
use clawmux_actors::provider_supervisor::deltas::Deltas;
use clawmux_actors::provider_supervisor::{
    BudgetStatus, CallLog, Chat, Endpoints, ProviderSupervisor, Reconfigure,
};
use clawmux_actors::runtime::observe::Observe;
use clawmux_actors::store::{BeginCall, RecordUsage};
use clawmux_core::access::Secret;
use clawmux_core::config::{self, Config};
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner, SessionKey};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::budget::{Budget, Budgets, Caps, Period};
use clawmux_core::provider::facts::ModelFacts;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::notice::{Notice, NoticeKind};
use clawmux_core::provider::price::{Money, Price};
use clawmux_core::provider::tally::Spent;
use clawmux_core::provider::thought::{SignatureData, Thought};
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{ChatMessage, ChatRequest, Delta, ProviderKind, Stop};
use clawmux_core::tools::call::{ToolCall, ToolResult, ToolSpec};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use upstream::{Turn, Upstream};

const WIRE: [ProviderKind; 3] =
    [ProviderKind::Anthropic, ProviderKind::OpenAi, ProviderKind::OpenAiResponses];

/// An agent `main` on these providers, in order. Their keys are `key-of-NAME`.
fn config(providers: &[(&str, ProviderKind, String)]) -> Config {
    let configured: BTreeMap<String, config::Provider> = providers
        .iter()
        .map(|(name, kind, base_url)| {
            let api_key = Some(Secret::new(format!("key-of-{name}")));
            let patience = config::Patience { retries: 0, ..config::Patience::default() };
            let provider = config::Provider { patience, ..config::Provider::new(*kind, base_url, api_key) };
            ((*name).to_owned(), provider)
        })
        .collect();
    let models = providers
        .iter()
        .map(|(name, _, _)| ModelRef { provider: (*name).to_owned(), model: format!("{name}-model") })
        .collect();
    let agent = config::Agent {
        id: "main".into(),
        models,
        max_tokens: 1_000,
        soul: "SOUL.md".into(),
        tools: vec!["echo".into()],
        node_tools: Vec::new(),
        mcp_tools: Vec::new(),
        built_in: Vec::new(),
        skills: Vec::new(),
    };
    Config {
        providers: configured,
        agents: BTreeMap::from([("main".into(), agent)]),
        default_agent: Some("main".into()),
        budgets: Budgets::default(),
        ..Config::default()
    }
}

/// Keeps what a store would, once it has refused so often.
struct Records {
    kept: mpsc::UnboundedSender<UsageRecord>,
    refusals: VecDeque<Error>,
}

impl Actor for Records {
    type Context = Context<Self>;
}

impl Handler<RecordUsage> for Records {
    type Result = Result<(), Error>;

    fn handle(&mut self, record: RecordUsage, _: &mut Self::Context) -> Self::Result {
        if let Some(refusal) = self.refusals.pop_front() {
            return Err(refusal);
        }
        for record in record.records {
            self.kept.send(record).map_err(|_| ErrorCode::Internal.error("test is over"))?;
        }
        Ok(())
    }
}

impl Handler<BeginCall> for Records {
    type Result = Result<(), Error>;

    fn handle(&mut self, _: BeginCall, _: &mut Self::Context) -> Self::Result {
        Ok(())
    }
}

fn start(
    config: Config,
    deadlines: Deadlines,
) -> (Addr<ProviderSupervisor>, mpsc::UnboundedReceiver<UsageRecord>) {
    start_on(config, deadlines, Vec::new())
}

/// The same on a store that refuses what a call cost so often, with these errors.
fn start_on(
    config: Config,
    deadlines: Deadlines,
    refusals: Vec<Error>,
) -> (Addr<ProviderSupervisor>, mpsc::UnboundedReceiver<UsageRecord>) {
    let (kept, records) = mpsc::unbounded_channel();
    let store = Records { kept, refusals: refusals.into() }.start();
    let calls = CallLog { begun: store.clone().recipient(), over: store.recipient() };
    let supervisor = ProviderSupervisor::new(Arc::new(config), Some(calls), Vec::new()).unwrap();
    (supervisor.with_deadlines(deadlines).start(), records)
}

fn chat(text: &str) -> Chat {
    Chat {
        session: SessionKey::new("main", "test", "İİİİ", "main").unwrap(),
        run: "run-1".into(),
        agent: "main".into(),
        models: Vec::new(),
        model: None,
        request: ChatRequest {
            model: String::new(),
            system: "Be kind.".into(),
            messages: vec![ChatMessage::user(text)],
            tools: vec![ToolSpec {
                name: "echo".into(),
                description: "says it again".into(),
                input_schema: json!({"type": "object"}),
            }],
            max_tokens: 1_000,
            thinking: Thinking::Off,
            cache_marks: true,
        },
        account: Account::default(),
    }
}

/// All of an answer.
async fn read(mut answer: Deltas) -> (Vec<Delta>, Result<(), Error>) {
    let mut deltas = Vec::new();
    let mut result = Ok(());
    while let Some(item) = answer.next().await {
        assert!(result.is_ok(), "nothing follows an error, got {item:?}");
        match item {
            Ok(more) => {
                assert!(!more.is_empty(), "an item holds something");
                deltas.extend(more);
            }
            Err(error) => result = Err(error),
        }
    }
    (deltas, result)
}

async fn ask(supervisor: &Addr<ProviderSupervisor>, text: &str) -> (Vec<Delta>, Result<(), Error>) {
    match supervisor.send(chat(text)).await.unwrap() {
        Ok(answer) => read(answer).await,
        Err(error) => (vec![], Err(error)),
    }
}

fn text(deltas: &[Delta]) -> String {
    deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

async fn observed(supervisor: &Addr<ProviderSupervisor>) -> Value {
    supervisor.send(Observe).await.unwrap().state
}

/// What the upstream counts in the format of this kind, for so much output.
fn counted(kind: ProviderKind, output_tokens: u64) -> Usage {
    let usage = Usage::new(20, output_tokens);
    match kind {
        ProviderKind::Anthropic => Usage { cache_read_tokens: 3, cache_write_tokens: 2, ..usage },
        _ => usage,
    }
}

/// Whatever happened, nothing stays reserved or taken.
async fn all_given_back(supervisor: &Addr<ProviderSupervisor>) {
    let state = observed(supervisor).await;
    assert_eq!(state["reserved_tokens"], json!(0), "{state}");
    assert_eq!((&state["calls_running"], &state["calls_waiting"]), (&json!(0), &json!(0)), "{state}");
}

#[actix::test]
async fn text_and_usage_in_all_formats() {
    for kind in WIRE {
        let upstream = Upstream::start();
        upstream.then(Turn::Say(vec!["Hé".into(), "llo 😀".into()]));
        let (supervisor, mut records) =
            start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!(result, Ok(()), "{kind}");
        let usage = counted(kind, 2);
        assert_eq!(
            deltas,
            [
                Delta::Text("Hé".into()),
                Delta::Text("llo 😀".into()),
                Delta::Finished { stop: Stop::End, usage: Some(usage) }
            ]
        );
        let record = records.recv().await.unwrap();
        assert_eq!((record.provider.as_str(), record.model.as_str(), record.usage), ("p", "p-model", usage));
        assert_eq!((record.run.as_str(), record.agent.as_str()), ("run-1", "main"));

        let request = &upstream.requests()[0];
        let head = request.head.to_ascii_lowercase();
        let (path, auth) = match kind {
            ProviderKind::Anthropic => ("/v1/messages", "x-api-key: key-of-p"),
            ProviderKind::OpenAiResponses => ("/v1/responses", "authorization: bearer key-of-p"),
            _ => ("/v1/chat/completions", "authorization: bearer key-of-p"),
        };
        assert_eq!(request.path, path);
        assert!(head.contains(auth) && head.contains("accept-encoding: identity"), "{head}");
        let most = if kind == ProviderKind::OpenAiResponses { "max_output_tokens" } else { "max_tokens" };
        assert_eq!((&request.body["model"], &request.body[most]), (&json!("p-model"), &json!(1_000)));
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn streams_in_pieces_of_any_size_read_the_same() {
    for kind in WIRE {
        for write_bytes in [1, 7] {
            let upstream = Upstream::start_split(write_bytes);
            let calls = vec![("echo".into(), r#"{"text":"São"}"#.into()), ("echo".into(), "{no".into())];
            upstream.then(Turn::Call("İ look.".into(), calls));
            let (supervisor, _records) =
                start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
            let (deltas, result) = ask(&supervisor, "hi").await;
            assert_eq!(result, Ok(()));
            let prefix = if kind == ProviderKind::Anthropic { "toolu" } else { "call" };
            let call = |at: usize, input: Value| {
                let id = format!("{prefix}_{at}").into();
                Delta::ToolCall(ToolCall { id, name: "echo".into(), input })
            };
            let usage = Some(counted(kind, 3));
            assert_eq!(
                deltas,
                [
                    Delta::Text("İ look.".into()),
                    call(0, json!({"text": "São"})),
                    call(1, json!("{no")),
                    Delta::Finished { stop: Stop::ToolUse, usage }
                ]
            );
        }
    }
}

#[actix::test]
async fn every_failure_is_named_and_the_next_call_works() {
    let body = |kind: &str, message: &str| json!({"error": {"type": kind, "message": message}}).to_string();
    let echoed_key = body("authentication_error", "bad key key-of-p");
    let cases: Vec<(Turn, &str, &str)> = vec![
        (
            Turn::Status(401, None, echoed_key),
            "",
            "p answered 401: authentication_error: bad key [secret] (check its api key)",
        ),
        (
            Turn::Status(400, None, body("invalid_request_error", "no such thing")),
            "",
            "p answered 400: invalid_request_error: no such thing",
        ),
        (
            Turn::Status(429, Some(7), body("rate_limit_error", "slow")),
            "",
            "p answered 429: rate_limit_error: slow",
        ),
        (
            Turn::Status(529, None, body("overloaded_error", "Overloaded")),
            "",
            "p answered 529: overloaded_error: Overloaded",
        ),
        (
            Turn::Redirect("https://elsewhere.example/?x".into()),
            "",
            "p answered 307: it is to be found at https://elsewhere.example/, which is not followed",
        ),
        (
            Turn::Page("<html>".into()),
            "",
            "p answered with content-type text/html instead of text/event-stream",
        ),
        (Turn::Cut("so far".into()), "so far", "p cut the answer: the stream ended without its end marker"),
        (Turn::Reset("so far".into()), "so far", "p cut the answer"),
        (Turn::Garbage("so far".into()), "so far", "p sent an event that can't be read"),
        (
            Turn::Report("so far".into()),
            "so far",
            "p reported within its answer: overloaded_error: Overloaded",
        ),
        (Turn::Report(String::new()), "", "p reported within its answer: overloaded_error: Overloaded"),
    ];
    for kind in WIRE {
        let upstream = Upstream::start();
        let (supervisor, _records) = start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
        for (turn, said, message) in &cases {
            upstream.then(turn.clone());
            let (deltas, result) = ask(&supervisor, "hi").await;
            let error = result.expect_err(message);
            assert!(error.message.starts_with(message), "{kind} {turn:?}: {error}");
            assert_eq!(error.code, ErrorCode::Provider, "{kind} {turn:?}");
            assert_eq!(text(&deltas), *said, "{kind} {turn:?}");
            assert!(!error.message.contains("key-of-p"), "{error}");
            if matches!(turn, Turn::Status(429, ..)) {
                assert_eq!(error.detail, Some(Detail::RetryAfter(Duration::from_secs(7))));
            }
            let (deltas, result) = ask(&supervisor, "again").await;
            assert_eq!((text(&deltas).as_str(), result), ("You said: again", Ok(())), "after {turn:?}");
        }
        // A connection that was kept and is closed without an answer is tried once more, not for ever.
        upstream.then(Turn::Close).then(Turn::Close);
        let (_, result) = ask(&supervisor, "hi").await;
        assert_eq!(result.unwrap_err().message, "p: connection closed without an answer");
        assert_eq!(ask(&supervisor, "hi").await.1, Ok(()));
        upstream.then(Turn::Close);
        assert_eq!(ask(&supervisor, "hi").await.1, Ok(()));
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn a_model_that_fails_for_a_moment_is_asked_again_before_the_next_one() {
    let deadlines = Deadlines { retry: Duration::from_millis(2), ..Deadlines::default() };
    let report = |kind: &str| json!({"error": {"type": kind, "message": "no"}}).to_string();
    for kind in WIRE {
        for (turns, calls, notices) in [
            // Those that pass: it answers in the end.
            (
                vec![Turn::Status(503, None, report("x"))],
                (2, 0),
                &["p/p-model is overloaded: it is asked again in 1 s"][..],
            ),
            (
                vec![Turn::Status(429, Some(0), report("x")), Turn::Status(500, None, report("x"))],
                (3, 0),
                &[
                    "p/p-model takes no more requests for now: it is asked again in 1 s",
                    "p/p-model failed (it answered 500): it is asked again in 1 s",
                ],
            ),
            (
                vec![Turn::Report(String::new())],
                (2, 0),
                &["p/p-model is overloaded: it is asked again in 1 s"],
            ),
            (
                vec![Turn::Say(Vec::new())],
                (2, 0),
                &["p/p-model failed (its answer is empty): it is asked again in 1 s"],
            ),
            // Too often, for too long, or of no use: the next one.
            (
                vec![Turn::Status(503, None, report("x")); 3],
                (3, 1),
                &[
                    "p/p-model is overloaded: it is asked again in 1 s",
                    "p/p-model is overloaded: it is asked again in 1 s",
                    "p/p-model is overloaded: q/q-model is asked",
                ],
            ),
            (
                vec![Turn::Status(429, Some(3600), report("x"))],
                (1, 1),
                &["p/p-model takes no more requests for now: q/q-model is asked"],
            ),
            (
                vec![Turn::Status(401, None, report("authentication_error"))],
                (1, 1),
                &["p/p-model refused the API key: q/q-model is asked"],
            ),
            (
                vec![Turn::Status(404, None, report("not_found_error"))],
                (1, 1),
                &["p/p-model was not found: q/q-model is asked"],
            ),
            (
                vec![Turn::Status(429, None, report("insufficient_quota"))],
                (1, 1),
                &[
                    "p/p-model has no quota left on the account, whose billing wants a look: q/q-model is asked",
                ],
            ),
        ] {
            let (first, second, supervisor) = two_models(kind, deadlines);
            for turn in &turns {
                first.then(turn.clone());
            }
            let (deltas, result) = ask(&supervisor, "hi").await;
            assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())), "{kind} {turns:?}");
            assert_eq!(told(&deltas), notices, "{kind} {turns:?}");
            assert_eq!((first.requests().len(), second.requests().len()), calls, "{kind} {turns:?}");
            all_given_back(&supervisor).await;
        }
        // The request is at fault, or something was said: nobody is asked again.
        for turn in [Turn::Status(400, None, report("invalid_request_error")), Turn::Report("so far".into())]
        {
            let (first, second, supervisor) = two_models(kind, deadlines);
            first.then(turn.clone());
            let (deltas, result) = ask(&supervisor, "hi").await;
            assert!(result.is_err() && told(&deltas).is_empty(), "{kind} {turn:?}");
            assert_eq!((first.requests().len(), second.requests().len()), (1, 0), "{kind} {turn:?}");
            all_given_back(&supervisor).await;
        }
    }
}

/// A supervisor of an agent with a model `p/p-model`, asked again twice, and `q/q-model` to fall back to.
fn two_models(kind: ProviderKind, deadlines: Deadlines) -> (Upstream, Upstream, Addr<ProviderSupervisor>) {
    let (first, second) = (Upstream::start(), Upstream::start());
    let mut config = config(&[("p", kind, first.base_url()), ("q", kind, second.base_url())]);
    config.providers.get_mut("p").unwrap().patience.retries = 2;
    let (supervisor, _) = start(config, deadlines);
    (first, second, supervisor)
}

/// The notices in an answer.
fn told(deltas: &[Delta]) -> Vec<&str> {
    let notices = deltas.iter().filter_map(|delta| match delta {
        Delta::Notice(notice) => Some(notice.message.as_str()),
        _ => None,
    });
    notices.collect()
}

#[actix::test]
async fn a_model_that_keeps_failing_is_left_alone_for_a_while_and_health_says_so() {
    let (first, second, supervisor) = two_models(ProviderKind::OpenAi, Deadlines::default());
    first.then(Turn::Status(401, None, String::new()));
    assert_eq!(told(&ask(&supervisor, "hi").await.0), ["p/p-model refused the API key: q/q-model is asked"]);
    let (deltas, result) = ask(&supervisor, "again").await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: again", Ok(())));
    assert_eq!(told(&deltas), ["p/p-model failed lately: q/q-model is asked"]);
    assert_eq!((first.requests().len(), second.requests().len()), (1, 2), "it is left alone");
    let state = observed(&supervisor).await;
    let failing: Vec<&str> =
        state["failing"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    assert!(
        failing.iter().any(|f| f.starts_with("model p/p-model refused the API key: it is left alone until ")),
        "{failing:?}"
    );
    // Where no other is left, it is asked all the same.
    let mut alone = chat("alone");
    alone.models = vec![ModelRef { provider: "p".into(), model: "p-model".into() }];
    let (deltas, result) = read(supervisor.send(alone).await.unwrap().unwrap()).await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: alone", Ok(())));
    assert_eq!(told(&deltas), [""; 0]);
    let (deltas, _) = ask(&supervisor, "healed").await;
    assert_eq!((text(&deltas).as_str(), first.requests().len()), ("You said: healed", 3), "it went well");
}

#[actix::test]
async fn what_a_server_can_not_take_is_left_out_and_told() {
    let too_long = json!({"error": {"code": "context_length_exceeded", "message": "too long"}}).to_string();
    let toolless = json!({"error": {"message": "tools param requires --jinja flag"}}).to_string();
    for kind in WIRE {
        let upstream = Upstream::start();
        let (supervisor, _records) = start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
        let said = |text: &str| ChatMessage::Assistant { text: text.into(), calls: vec![], thoughts: vec![] };
        let mut long = chat("now");
        let past = (0..4).flat_map(|n| [ChatMessage::user(format!("q{n}")), said("a")]);
        long.request.messages = past.chain([ChatMessage::user("now")]).collect();
        upstream.then(Turn::Status(400, None, too_long.clone()));
        let (deltas, result) = read(supervisor.send(long).await.unwrap().unwrap()).await;
        assert_eq!((text(&deltas).as_str(), result), ("You said: now", Ok(())), "{kind}");
        let notice =
            "the conversation is too long for p-model: the oldest 2 turns were left out of what is sent";
        assert_eq!(told(&deltas), [notice]);
        let body = &upstream.requests()[1].body;
        let sent = body.get("messages").unwrap_or(&body["input"]).to_string();
        assert!(!sent.contains("q1") && sent.contains("q2") && sent.contains("now"), "{sent}");

        // Alone it is too long all the same: one clear error.
        upstream.then(Turn::Status(400, None, too_long.clone()));
        let (deltas, result) = ask(&supervisor, "now").await;
        assert!(result.unwrap_err().message.contains("too long") && deltas.is_empty());

        upstream.then(Turn::Status(500, None, toolless.clone()));
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((told(&deltas), result), (vec!["p-model can't call tools: it is asked without"], Ok(())));
        let before = upstream.requests().len();
        let (deltas, result) = ask(&supervisor, "again").await;
        assert_eq!((told(&deltas), result), (vec![], Ok(())), "it is told once");
        assert_eq!(upstream.requests().len(), before + 1);
        assert!(upstream.requests()[before].body.get("tools").is_none());
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn a_server_that_refuses_the_marks_of_its_cache_is_asked_without_them_from_then_on() {
    let upstream = Upstream::start();
    let (supervisor, _records) =
        start(config(&[("p", ProviderKind::Anthropic, upstream.base_url())]), Deadlines::default());
    let refused = json!({"error": {"message": "tools.0.cache_control: Extra inputs are not permitted"}});
    upstream.then(Turn::Status(400, None, refused.to_string()));
    for said in ["hi", "again"] {
        let (deltas, result) = ask(&supervisor, said).await;
        assert_eq!((text(&deltas), result), (format!("You said: {said}"), Ok(())));
        assert_eq!(told(&deltas), [""; 0], "the model sees all there is");
    }
    let requests = upstream.requests();
    let marked = requests.iter().map(|request| request.body.to_string().contains("cache_control"));
    assert_eq!(marked.collect::<Vec<_>>(), [true, false, false]);
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn a_call_that_waits_to_be_made_again_ends_with_who_asked() {
    let upstream = Upstream::start();
    let mut config = config(&[("p", ProviderKind::OpenAi, upstream.base_url())]);
    config.providers.get_mut("p").unwrap().patience.retries = 2;
    let (supervisor, _records) =
        start(config, Deadlines { retry: Duration::from_secs(3600), ..Deadlines::default() });
    upstream.then(Turn::Status(503, None, String::new()));
    let mut deltas = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let told = deltas.next().await.unwrap().unwrap();
    assert!(
        matches!(&told[..], [Delta::Notice(notice)] if notice.message.starts_with("p/p-model is overloaded: it is")),
        "who asked knows what it waits for: {told:?}"
    );
    assert!(futures::poll!(deltas.next()).is_pending());
    drop(deltas);
    all_given_back(&supervisor).await;
    assert_eq!(upstream.requests().len(), 1);
}

#[actix::test]
async fn nobody_there() {
    let gone = Upstream::start().base_url();
    for (base_url, message) in [
        (gone, "p: connection refused: does the server at 127.0.0.1:"),
        ("http://no-such-host.invalid".to_owned(), "p: host not found"),
        ("ftp://localhost".to_owned(), "p: "),
        ("nonsense".to_owned(), "p: "),
    ] {
        let config = config(&[("p", ProviderKind::OpenAi, base_url.clone())]);
        let (supervisor, mut records) = start(config, Deadlines::default());
        let error = ask(&supervisor, "hi").await.1.unwrap_err();

        assert!(error.message.starts_with(message), "{base_url}: {error}");
        assert_eq!(error.code, ErrorCode::Provider, "{base_url}: {error}");
        all_given_back(&supervisor).await;
        assert!(records.try_recv().is_err(), "nothing was spent");
    }
}

#[actix::test]
async fn silence_ends_at_its_deadline() {
    let usual = Deadlines::default();
    let short = Duration::from_millis(300);
    for kind in WIRE {
        for (turn, deadlines, message) in [
            (Turn::HangHead, Deadlines { first_byte: short, ..usual }, "p: no answer within 300ms"),
            (
                Turn::HangBody("so far".into()),
                Deadlines { idle: short, ..usual },
                "p: silent for 300ms within its answer",
            ),
            (
                Turn::HangBody("so far".into()),
                Deadlines { total: short, ..usual },
                "the answer took longer than 300ms",
            ),
        ] {
            let upstream = Upstream::start();
            upstream.then(turn.clone());
            let (supervisor, mut records) = start(config(&[("p", kind, upstream.base_url())]), deadlines);
            let error = ask(&supervisor, "hi").await.1.unwrap_err();
            assert_eq!(
                (error.code, error.message.as_str()),
                (ErrorCode::Timeout, message),
                "{kind} {turn:?}"
            );
            upstream.left().await;
            let record = records.recv().await.unwrap();
            assert!(record.usage.input_tokens >= 20, "what may have been counted is: {record:?}");
            all_given_back(&supervisor).await;
        }
    }
}

#[actix::test]
async fn dropped_at_any_moment_it_gives_everything_back() {
    for kind in WIRE {
        let upstream = Upstream::start();
        let (supervisor, mut records) =
            start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
        // Before it is opened.
        drop(supervisor.send(chat("hi")).await.unwrap().unwrap());
        all_given_back(&supervisor).await;
        // Before its head.
        upstream.then(Turn::HangHead);
        let mut answer = supervisor.send(chat("hi")).await.unwrap().unwrap();
        tokio::select! {
            item = answer.next() => panic!("too early: {item:?}"),
            () = upstream.arrived() => {}
        }
        drop(answer);
        upstream.left().await;
        let record = records.recv().await.unwrap();
        assert!(record.usage.input_tokens > 20 && record.usage.output_tokens == 0, "{record:?}");
        all_given_back(&supervisor).await;
        // Within its body.
        upstream.then(Turn::HangBody("x".repeat(400)));
        let mut answer = supervisor.send(chat("hi")).await.unwrap().unwrap();
        assert!(answer.next().await.unwrap().is_ok());
        let usage = answer.usage();
        assert_eq!(usage.output_tokens, 100);
        drop(answer);
        upstream.left().await;
        assert_eq!(records.recv().await.unwrap().usage, usage);
        all_given_back(&supervisor).await;
        assert!(records.try_recv().is_err(), "each call is recorded once");
    }
}

#[actix::test]
async fn an_answer_without_end_is_ended() {
    for kind in WIRE {
        let upstream = Upstream::start();
        upstream.then(Turn::Say(vec!["x".repeat(1 << 20); 64]));
        let mut much = config(&[("p", kind, upstream.base_url())]);
        much.agents.get_mut(&AgentId::from("main")).unwrap().max_tokens = u32::MAX;
        let (supervisor, _records) = start(much, Deadlines::default());
        let mut asked = chat("hi");
        asked.request.max_tokens = 4 << 20;
        let (deltas, result) = read(supervisor.send(asked).await.unwrap().unwrap()).await;
        let error = result.expect_err("it is ended");
        assert!(error.message.contains("more than 16777216 bytes"), "{kind:?}: {error}");
        let bytes = text(&deltas).len();
        assert!((16 << 20..24 << 20).contains(&bytes), "{kind:?}: {bytes} bytes were read");
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn an_answer_that_does_not_keep_to_its_bound_is_cut_and_counted() {
    for kind in WIRE {
        let upstream = Upstream::start();
        let mut bounded = config(&[("p", kind, upstream.base_url())]);
        bounded.budgets.all.daily = 1_000_000;
        let (supervisor, mut records) = start(bounded, Deadlines::default());
        let long = vec!["x".repeat(1000); 1000];
        let arguments = format!("{{\"x\":\"{}\"}}", "x".repeat(1_000_000));
        for turn in [Turn::Say(long), Turn::Call("I call.".into(), vec![("echo".into(), arguments)])] {
            upstream.then(turn);
            let (deltas, result) = ask(&supervisor, "hi").await;
            assert_eq!(result, Ok(()), "{kind}");
            assert!(matches!(deltas.last(), Some(Delta::Finished { stop: Stop::MaxTokens, .. })), "{kind}");
            assert!(deltas.iter().any(|delta| matches!(delta, Delta::Notice(_))), "{kind}: it is told");
            assert!(!deltas.iter().any(|delta| matches!(delta, Delta::ToolCall(_))), "{kind}");
            let said = text(&deltas).len();
            assert!(said < 100_000, "{kind}: {said} bytes were taken");
            let spent = records.recv().await.unwrap().usage;
            assert!(spent.output_tokens >= said as u64 / 4, "{kind}: {spent:?} for {said} bytes");
        }
        assert_eq!(ask(&supervisor, "hi").await.1, Ok(()));
        all_given_back(&supervisor).await;

        // Without a budget nothing is lost by it.
        upstream.then(Turn::Say(vec!["x".repeat(1000); 1000]));
        let (supervisor, _records) = start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
        assert_eq!(text(&ask(&supervisor, "hi").await.0).len(), 1_000_000, "{kind}");
    }
}

#[actix::test]
async fn what_a_provider_repeats_of_the_key_within_its_answer_is_not_told() {
    for kind in WIRE {
        for text in [
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"oops key-of-p\"}}\n\n",
            "event: error\ndata: {\"type\":\"error\",\"message\":\"oops key-of-p\",\"error\":\"key-of-p\"}\n\n",
            "data: {\"choices\":\"key-of-p\",\"type\":[\"key-of-p\"],\"k\":\"key-of-p\"}\n\n",
            "data: key-of-p\n\n",
        ] {
            let (base_url, _ended) = endless(text, Duration::from_millis(20));
            let (supervisor, _records) = start(config(&[("p", kind, base_url)]), Deadlines::default());
            let error = ask(&supervisor, "hi").await.1.unwrap_err();
            assert!(error.message.contains("[secret]"), "{kind} {text}: {error}");
            let state = observed(&supervisor).await.to_string();
            assert!(!error.message.contains("key-of-p") && !state.contains("key-of-p"), "{error}; {state}");
        }
    }
}

#[actix::test]
async fn a_count_that_can_not_be_is_not_believed() {
    for usage in ["18446744073709551615", "1e300", "-5", "\"many\""] {
        let text = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"hello\"}},\"finish_reason\":\"stop\"}}],\
             \"usage\":{{\"prompt_tokens\":{usage},\"completion_tokens\":{usage}}}}}\n\ndata: [DONE]\n\n"
        );
        let (base_url, _ended) = endless(text.leak(), Duration::from_millis(20));
        let (supervisor, mut records) =
            start(config(&[("p", ProviderKind::OpenAi, base_url)]), Deadlines::default());
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((self::text(&deltas).as_str(), result), ("hello", Ok(())), "{usage}");
        let spent = records.recv().await.unwrap().usage;
        assert!((1..1000).contains(&spent.total()), "{usage}: {spent:?}");
    }
}

#[actix::test]
async fn the_next_model_answers_where_the_first_can_not() {
    let gone = Upstream::start().base_url();
    let second = Upstream::start();
    for turn in [
        Some(Turn::Status(529, None, String::new())),
        Some(Turn::Status(500, None, String::new())),
        Some(Turn::Status(401, None, String::new())),
        Some(Turn::Status(404, None, String::new())),
        Some(Turn::Report(String::new())),
        Some(Turn::Page(String::new())),
        None,
    ] {
        let first = Upstream::start();
        let base_url = match &turn {
            Some(turn) => {
                first.then(turn.clone());
                first.base_url()
            }
            None => gone.clone(),
        };
        let config = config(&[
            ("a", ProviderKind::Anthropic, base_url),
            ("b", ProviderKind::OpenAi, second.base_url()),
        ]);
        let (supervisor, _records) = start(config, Deadlines::default());
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())), "{turn:?}");
        assert_eq!(second.requests().last().unwrap().body["model"], json!("b-model"));
        all_given_back(&supervisor).await;
    }
    // Not where the request is at fault, and not once something was said.
    let asked = second.requests().len();
    for turn in [Turn::Status(400, None, String::new()), Turn::Cut("x".into())] {
        let first = Upstream::start();
        first.then(turn.clone());
        let config = config(&[
            ("a", ProviderKind::OpenAi, first.base_url()),
            ("b", ProviderKind::OpenAi, second.base_url()),
        ]);
        let (supervisor, _records) = start(config, Deadlines::default());
        assert!(ask(&supervisor, "hi").await.1.is_err(), "{turn:?}");
        assert_eq!(second.requests().len(), asked, "{turn:?}");
    }
}

#[actix::test]
async fn https_with_a_private_authority() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start_tls();
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, upstream.ca_pem()).unwrap();
    for kind in WIRE {
        let mut trusting = config(&[("p", kind, upstream.base_url())]);
        trusting.providers.get_mut("p").unwrap().ca_file = Some(ca_file.clone());
        let (supervisor, _records) = start(trusting, Deadlines::default());
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())));

        let (supervisor, _records) = start(config(&[("p", kind, upstream.base_url())]), Deadlines::default());
        let error = ask(&supervisor, "hi").await.1.unwrap_err();
        assert!(error.message.starts_with("p: tls: ") && error.message.contains("ca_file"), "{error}");
    }
    for content in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&ca_file, content).unwrap();
        let mut broken = config(&[("p", ProviderKind::OpenAi, upstream.base_url())]);
        broken.providers.get_mut("p").unwrap().ca_file = Some(ca_file.clone());
        let refused = ProviderSupervisor::new(Arc::new(broken), None, Vec::new());
        let error = refused.err().expect("a broken ca_file is refused");
        assert!(error.message.contains("provider p: ca_file") && error.message.contains("ca.pem"), "{error}");
    }
}

#[actix::test]
async fn a_body_may_end_with_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    let report = json!({"error": {"type": "rate_limit_error", "message": "slow"}}).to_string();
    for kind in WIRE {
        for (upstream, tls) in [
            (Upstream::start(), false),
            (Upstream::start_split(1), false),
            (Upstream::start_split(7), false),
            (Upstream::start_tls(), true),
        ] {
            let mut config = config(&[("p", kind, upstream.base_url())]);
            if tls {
                std::fs::write(&ca_file, upstream.ca_pem()).unwrap();
                config.providers.get_mut("p").unwrap().ca_file = Some(ca_file.clone());
            }
            let (supervisor, _records) = start(config, Deadlines::default());
            for (turn, said, result) in [
                (Turn::Say(vec!["Hé".into(), "llo".into()]), "Héllo", Ok(())),
                (
                    Turn::Cut("so far".into()),
                    "so far",
                    Err("p cut the answer: the stream ended without its end marker"),
                ),
                (Turn::Status(429, None, report.clone()), "", Err("p answered 429: rate_limit_error: slow")),
            ] {
                upstream.then(turn.clone()).then(Turn::ThenClose(Box::new(turn.clone())));
                for how in ["in chunks", "until it closes"] {
                    let (deltas, got) = ask(&supervisor, "hi").await;
                    let got = got.map_err(|error| error.message);
                    assert_eq!(text(&deltas), said, "{kind} {turn:?} {how}, tls {tls}: {got:?}");
                    assert_eq!(got, result.map_err(str::to_owned), "{kind} {turn:?} {how}, tls {tls}");
                }
            }
            let base_url = upstream.base_url();
            let host = base_url.split("://").last().unwrap();
            for request in upstream.requests() {
                let head = request.head.to_ascii_lowercase();
                assert!(head.contains(&format!("\r\nhost: {host}\r\n")), "{head}");
            }
            all_given_back(&supervisor).await;
        }
    }
}

#[actix::test]
async fn a_handshake_has_its_deadline() {
    // It connects, by the system, and says nothing.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let base_url = format!("https://{}", silent.local_addr().unwrap());
    let deadlines = Deadlines { connect: Duration::from_millis(300), ..Deadlines::default() };
    let (supervisor, mut records) = start(config(&[("p", ProviderKind::OpenAi, base_url)]), deadlines);
    let error = ask(&supervisor, "hi").await.1.unwrap_err();
    assert_eq!(error.message, "p: tls: no handshake within 300ms");
    assert_eq!(error.code, ErrorCode::Timeout);
    all_given_back(&supervisor).await;
    assert!(records.try_recv().is_err(), "nothing was spent");
}

#[actix::test]
async fn a_connection_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    for kind in WIRE {
        for (upstream, tls) in [(Upstream::start(), false), (Upstream::start_tls(), true)] {
            let mut config = config(&[("p", kind, upstream.base_url())]);
            if tls {
                std::fs::write(&ca_file, upstream.ca_pem()).unwrap();
                config.providers.get_mut("p").unwrap().ca_file = Some(ca_file.clone());
            }
            let (supervisor, _records) = start(config, Deadlines::default());
            for _ in 0..5 {
                upstream.then(Turn::EndLate("bye".into()));
                assert_eq!(ask(&supervisor, "hi").await.1, Ok(()), "the end marker is enough");
                all_given_back(&supervisor).await;
                upstream.end().await;
                // What follows the end marker has arrived: lets the arbiter read it.
                for _ in 0..500 {
                    tokio::task::yield_now().await;
                }
            }
            // Until a response takes it along.
            upstream.then(Turn::ThenClose(Box::new(Turn::Say(vec!["bye".into()]))));
            assert_eq!(ask(&supervisor, "hi").await.1, Ok(()), "tls {tls}");
            assert_eq!(upstream.connections(), 1, "for 6 requests, tls {tls}");
            assert_eq!(ask(&supervisor, "hi").await.1, Ok(()), "tls {tls}");
            assert_eq!(upstream.connections(), 2, "for one more, tls {tls}");
        }
    }
}

#[actix::test]
async fn budgets_refuse_clamp_and_settle() {
    let upstream = Upstream::start();
    let mut bounded = config(&[("p", ProviderKind::OpenAi, upstream.base_url())]);
    let all = Caps { daily: 1_200, ..Caps::default() };
    bounded.budgets = Budgets { session: 10_000, all, ..Budgets::default() };
    let (supervisor, _records) = start(bounded, Deadlines::default());

    let mut spent = chat("hi");
    spent.account = Account::new(Usage::new(9_000, 990), Money::ZERO);
    let error = supervisor.send(spent).await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::BudgetExceeded);
    assert!(error.message.starts_with("token budget exceeded (session: 9990/10000)"), "{error}");

    let first = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let second = supervisor.send(chat("hi")).await.unwrap().unwrap();
    assert_eq!(first.max_tokens(), 1_000);
    assert!(second.max_tokens() < 200, "{}", second.max_tokens());
    let clamped = second.max_tokens();
    let error = supervisor.send(chat("hi")).await.unwrap().unwrap_err();
    let (said, resets) = error.message.split_once("; it resets at ").expect("and when it resets");
    assert_eq!(said, "token budget exceeded (daily: 1200/1200)");
    assert!(resets.ends_with("T00:00:00Z"), "{resets}");
    drop(first);
    assert_eq!(read(second).await.1, Ok(()));
    assert_eq!(upstream.requests()[0].body["max_tokens"], json!(clamped), "the provider is told");

    let session = Spent { tokens: 7, cost: Money::ZERO };
    let status = supervisor.send(BudgetStatus { session_spent: Some(session) }).await.unwrap();
    let figures = |budget: &Budget| (budget.period, budget.used, budget.reserved, budget.limit);
    assert_eq!(
        status.iter().map(figures).collect::<Vec<_>>(),
        [(Period::Session, 7, 0, 10_000), (Period::Daily, 22, 0, 1_200), (Period::Monthly, 22, 0, 0)]
    );
}

/// Deadlines that tell of every wait at once.
fn impatient() -> Deadlines {
    Deadlines { notice: Duration::ZERO, ..Deadlines::default() }
}

/// A supervisor with room for so many calls of a provider and so many that wait, which tells of every wait.
fn crowded(config: Config, calls: usize, waiting: usize, deadlines: Deadlines) -> Addr<ProviderSupervisor> {
    let supervisor = ProviderSupervisor::new(Arc::new(config), None, Vec::new()).unwrap();
    supervisor.with_deadlines(deadlines).with_room(calls, waiting).start()
}

/// The call of a session of this owner; none = the operators.
fn chat_of(owner: Option<&str>, account: &str) -> Chat {
    let session = SessionKey::new("main", "test", account, "main").unwrap();
    let owner = owner.map_or(Owner::Admins, |owner| Owner::Credential(owner.into()));
    Chat { session: session.in_space(&owner), ..chat("hi") }
}

/// Until so many calls are under way and so many wait.
async fn until_calls(supervisor: &Addr<ProviderSupervisor>, running: usize, waiting: usize) {
    let mut state = Value::Null;
    for _ in 0..100_000 {
        state = observed(supervisor).await;
        if (&state["calls_running"], &state["calls_waiting"]) == (&json!(running), &json!(waiting)) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("not {running} under way and {waiting} waiting: {state}");
}

/// The next notice of an answer.
async fn notice(answer: &mut Deltas) -> Notice {
    let deltas = answer.next().await.unwrap().unwrap();
    match deltas.as_slice() {
        [Delta::Notice(notice)] => notice.clone(),
        _ => panic!("{deltas:?}"),
    }
}

#[actix::test]
async fn what_a_call_cost_is_written_later_where_it_can_not_be_now_but_not_in_a_session_that_moved() {
    let upstream = Upstream::start();
    let config = config(&[("p", ProviderKind::OpenAi, upstream.base_url())]);
    let away = ErrorCode::Unavailable.error("the store can't be written");
    let moved = away.clone().with(Detail::NotOwner);
    let (supervisor, mut records) = start_on(config, Deadlines::default(), vec![moved, away]);
    for run in ["moved", "late"] {
        let asked = Chat { run: run.into(), ..chat("hi") };
        assert_eq!(read(supervisor.send(asked).await.unwrap().unwrap()).await.1, Ok(()));
    }
    // What is kept is tried again in the order in which it was refused.
    assert_eq!(records.recv().await.unwrap().run.as_str(), "late");
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn calls_at_once_are_bounded_and_who_waits_is_told() {
    let config = config(&[("p", ProviderKind::Offline, String::new())]);
    let supervisor = crowded(config, 1, 1, impatient());
    let first = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let mut second = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let told = notice(&mut second).await;
    assert_eq!(
        (told.kind, told.message.as_str()),
        (NoticeKind::Waiting, "waiting for a place at p: 1 call is under way, the most at once")
    );
    let error = ask(&supervisor, "hi").await.1.unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (
            ErrorCode::Unavailable,
            "provider p: too many calls wait for a place (max_concurrent = 1): try again later"
        )
    );
    until_calls(&supervisor, 1, 1).await;
    drop(first);
    assert_eq!(read(second).await.1, Ok(()), "its turn has come");
    // Who leaves while waiting takes nothing along.
    let first = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let mut left = supervisor.send(chat("hi")).await.unwrap().unwrap();
    notice(&mut left).await;
    let unread = {
        drop(left);
        until_calls(&supervisor, 1, 0).await;
        supervisor.send(chat("hi")).await.unwrap().unwrap()
    };
    drop(unread);
    until_calls(&supervisor, 1, 0).await;
    drop(first);
    until_calls(&supervisor, 0, 0).await;
    all_given_back(&supervisor).await;
    let state = observed(&supervisor).await;
    assert_eq!((&state["calls_granted"], &state["calls_refused"]), (&json!(3), &json!(1)), "{state}");
}

#[actix::test]
async fn a_place_is_waited_for_so_long_and_no_longer() {
    let upstream = Upstream::start();
    let config = config(&[("p", ProviderKind::OpenAi, upstream.base_url())]);
    let deadlines = Deadlines { place: Duration::from_millis(30), ..Deadlines::default() };
    let supervisor = crowded(config, 1, 9, deadlines);
    let _first = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let error = ask(&supervisor, "hi").await.1.unwrap_err();
    let told = "provider p: no place became free in time (max_concurrent = 1): try again later";
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::Unavailable, told));
    until_calls(&supervisor, 1, 0).await;
    assert_eq!(upstream.requests().len(), 0);
}

#[actix::test]
async fn places_go_round_between_owners_however_many_sessions_one_has() {
    let config = config(&[("p", ProviderKind::Offline, String::new())]);
    let supervisor = crowded(config, 1, 4, Deadlines::default());
    let mut running = Some(supervisor.send(chat("hi")).await.unwrap().unwrap());
    let (sender, mut begun) = mpsc::unbounded_channel();
    let mut waiting = 0;
    let mut wait = async |owner: Option<&'static str>, account: &'static str| {
        let mut answer = supervisor.send(chat_of(owner, account)).await.unwrap().unwrap();
        let sender = sender.clone();
        actix::spawn(async move {
            let first = answer.next().await.unwrap();
            sender.send((account, first.is_ok(), answer)).unwrap();
        });
        waiting = (waiting + 1).min(4);
        until_calls(&supervisor, 1, waiting).await;
    };
    for account in ["a1", "a2", "a3", "a4"] {
        wait(Some("ada"), account).await;
    }
    // The room to wait in is full, of ada's alone.
    wait(Some("bob"), "b1").await;
    let (account, is_well, _) = begun.recv().await.unwrap();
    assert_eq!((account, is_well), ("a4", false), "the latest of who has most makes room");
    let mut order = Vec::new();
    for _ in 0..4 {
        drop(running.take());
        let (account, is_well, answer) = begun.recv().await.unwrap();
        assert!(is_well, "{account}");
        order.push(account);
        running = Some(answer);
    }
    assert_eq!(order, ["a1", "b1", "a2", "a3"]);
    drop(running);
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn a_reload_changes_how_many_may_call_and_loses_nobody_who_waits() {
    let mut config = config(&[("p", ProviderKind::Offline, String::new())]);
    config.providers.get_mut("p").unwrap().max_concurrent = 1;
    let supervisor = crowded(config.clone(), 99, 9, impatient());
    let first = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let mut second = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let mut third = supervisor.send(chat("hi")).await.unwrap().unwrap();
    notice(&mut second).await;
    notice(&mut third).await;
    until_calls(&supervisor, 1, 2).await;
    config.providers.get_mut("p").unwrap().max_concurrent = 2;
    let endpoints = Endpoints::new(&config).unwrap();
    supervisor.send(Reconfigure { config: Arc::new(config.clone()), endpoints }).await.unwrap();
    assert!(matches!(second.next().await.unwrap().unwrap()[0], Delta::Text(_)), "it has begun");
    until_calls(&supervisor, 2, 1).await;
    config.providers.get_mut("p").unwrap().max_concurrent = 1;
    let endpoints = Endpoints::new(&config).unwrap();
    supervisor.send(Reconfigure { config: Arc::new(config), endpoints }).await.unwrap();
    drop(second);
    until_calls(&supervisor, 1, 1).await;
    drop(first);
    assert_eq!(read(third).await.1, Ok(()));
    until_calls(&supervisor, 0, 0).await;
}

#[actix::test]
async fn a_call_that_falls_over_takes_a_place_of_the_other_provider() {
    let (p, q) = (Upstream::start(), Upstream::start());
    let kind = ProviderKind::OpenAi;
    let mut config = config(&[("p", kind, p.base_url()), ("q", kind, q.base_url())]);
    config.providers.get_mut("q").unwrap().max_concurrent = 1;
    let supervisor = crowded(config, 9, 9, impatient());
    let of = async |provider: &str| {
        let state = observed(&supervisor).await;
        let calls = state["calls"].as_array().unwrap().iter().find(|of| of["provider"] == provider).unwrap();
        (calls["running"].as_u64().unwrap(), calls["waiting"].as_u64().unwrap())
    };
    let at_q = || Chat { models: vec![ModelRef { provider: "q".into(), model: "m".into() }], ..chat("hi") };
    q.then(Turn::HangBody("here".into()));
    let mut holds_q = supervisor.send(at_q()).await.unwrap().unwrap();
    holds_q.next().await.unwrap().unwrap();
    p.then(Turn::Status(500, None, String::new()));
    let mut answer = supervisor.send(chat("hi")).await.unwrap().unwrap();
    assert_eq!(notice(&mut answer).await.kind, NoticeKind::Fallback);
    assert_eq!(notice(&mut answer).await.kind, NoticeKind::Waiting);
    assert_eq!((of("p").await, of("q").await), ((0, 0), (1, 1)), "it holds no place at the first any more");
    drop(holds_q);
    let (deltas, result) = read(answer).await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())));
    all_given_back(&supervisor).await;

    // Where there is no room to wait in at the first, the next one is asked.
    let mut config = self::config(&[("p", kind, p.base_url()), ("q", kind, q.base_url())]);
    config.providers.get_mut("p").unwrap().max_concurrent = 1;
    let supervisor = crowded(config, 9, 0, impatient());
    let holds_p = supervisor.send(chat("hi")).await.unwrap().unwrap();
    let (deltas, result) = ask(&supervisor, "there").await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: there", Ok(())));
    assert_eq!(told(&deltas), ["p/p-model has no place free: q/q-model is asked"]);
    drop(holds_p);
    all_given_back(&supervisor).await;
}

/// The keys that requests came with, in order: what stands behind `key-`.
fn keys_of(upstream: &Upstream) -> Vec<String> {
    let key = |head: String| {
        head.split("key-").nth(1).and_then(|rest| rest.split_whitespace().next()).map(str::to_owned)
    };
    upstream.requests().into_iter().filter_map(|request| key(request.head)).collect()
}

/// An agent `main` on a model `p/p-model`, asked again twice, with these keys, and `q/q-model` to fall back to.
fn with_keys(kind: ProviderKind, keys: &[&str]) -> (Upstream, Upstream, Config) {
    let (first, second) = (Upstream::start(), Upstream::start());
    let mut config = config(&[("p", kind, first.base_url()), ("q", kind, second.base_url())]);
    let provider = config.providers.get_mut("p").unwrap();
    let mut keys = keys.iter().map(|key| Secret::new(format!("key-{key}")));
    (provider.api_key, provider.more_keys) = (keys.next(), keys.collect());
    provider.patience.retries = 2;
    (first, second, config)
}

#[actix::test]
async fn a_key_that_is_refused_or_limited_is_set_aside_by_itself() {
    let deadlines = Deadlines { retry: Duration::from_millis(2), ..Deadlines::default() };
    for kind in WIRE {
        for status in [401, 403, 429] {
            let (first, second, config) = with_keys(kind, &["a", "b", "c"]);
            let (supervisor, _records) = start(config, deadlines);
            let limited = || Turn::Status(status, (status == 429).then_some(3600), String::new());
            first.then(limited()).then(limited());
            let (deltas, result) = ask(&supervisor, "hi").await;
            assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())), "{kind} {status}");
            assert_eq!(told(&deltas), [""; 0], "it took no time");
            let keys = keys_of(&first);
            assert_eq!(keys.len(), 3, "each once: {keys:?}");
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3, "{keys:?}");
            let state = observed(&supervisor).await;
            let left_alone = state["left_alone"].as_array().unwrap();
            assert_eq!(left_alone.len(), 2, "{state}");
            assert!(left_alone.iter().all(|of| of["key"].as_str().unwrap().ends_with(" of 3")), "{state}");
            assert!(!state.to_string().contains("key-"), "no key is ever told: {state}");
            // The session goes on with the one that answered; so does any other.
            for _ in 0..2 {
                ask(&supervisor, "more").await.1.unwrap();
            }
            supervisor.send(chat_of(None, "another")).await.unwrap().unwrap().collect::<Vec<_>>().await;
            assert_eq!(keys_of(&first)[3..], [keys[2].clone(), keys[2].clone(), keys[2].clone()]);
            assert_eq!(second.requests().len(), 0, "the chain is not spent");
            all_given_back(&supervisor).await;
        }
    }
}

#[actix::test]
async fn a_fallback_without_a_price_is_left_out_without_a_word_and_a_first_model_with_one() {
    let (first, second) = (Upstream::start(), Upstream::start());
    let kind = ProviderKind::OpenAi;
    let mut config = config(&[("p", kind, first.base_url()), ("q", kind, second.base_url())]);
    config.budgets.all.daily_cost = Money::from_dollars(1.0).unwrap();
    let free = ModelFacts { price: Some(Price::default()), ..ModelFacts::default() };
    let priced = |provider: &str| {
        let mut config = config.clone();
        let model = ModelRef { provider: provider.into(), model: format!("{provider}-model") };
        config.models.configured.insert(model, free);
        start(config, Deadlines::default()).0
    };
    assert_eq!(told(&ask(&priced("p"), "hi").await.0), [""; 0]);
    let (deltas, _) = ask(&priced("q"), "hi").await;
    assert_eq!(told(&deltas), ["what p/p-model costs is not known: q/q-model is asked"]);
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
}

/// Whichever key the session begins with, what a pause cures is waited for, and told where it is not waited for.
#[actix::test]
async fn of_a_refused_key_and_a_limited_one_the_limited_one_wins() {
    let deadlines = Deadlines { retry: Duration::from_millis(2), ..Deadlines::default() };
    let refused = || Turn::Status(401, None, String::new());
    let limited = |wait| Turn::Status(429, Some(wait), String::new());
    for is_refused_first in [true, false] {
        let turns = |wait| {
            let mut turns = [refused(), limited(wait)];
            if !is_refused_first {
                turns.reverse();
            }
            turns
        };
        let (first, second, mut config) = with_keys(ProviderKind::OpenAi, &["a", "b"]);
        config.agents.get_mut(&"main".into()).unwrap().models.truncate(1);
        let (supervisor, _records) = start(config.clone(), deadlines);
        for turn in turns(1) {
            first.then(turn);
        }
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())), "{is_refused_first}");
        assert_eq!(told(&deltas), ["p/p-model takes no more requests for now: it is asked again in 1 s"]);
        let keys = keys_of(&first);
        let limited_key = if is_refused_first { &keys[1] } else { &keys[0] };
        assert_eq!((keys.len(), &keys[2]), (3, limited_key), "{keys:?}");
        all_given_back(&supervisor).await;

        // Too long a pause to wait for.
        let (supervisor, _records) = start(config, deadlines);
        for turn in turns(3600) {
            first.then(turn);
        }
        let error = ask(&supervisor, "hi").await.1.unwrap_err();
        assert!(error.message.starts_with("p answered 429"), "{error}");
        assert_eq!(error.detail, Some(Detail::RetryAfter(Duration::from_secs(3600))), "{error}");
        assert_eq!(second.requests().len(), 0);
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn a_page_is_named_at_once_and_so_is_a_prompt_that_is_too_long_by_itself() {
    let (first, second, mut config) = with_keys(ProviderKind::OpenAi, &["a"]);
    config.agents.get_mut(&"main".into()).unwrap().models.truncate(1);
    let (supervisor, _records) = start(config, Deadlines::default());
    first.then(Turn::Page("<html><title>Log in</title>".into()));
    let (deltas, result) = ask(&supervisor, "hi").await;
    let error = result.unwrap_err();
    assert!(error.message.contains("a page \"Log in\"; check its base_url"), "{error}");
    assert_eq!((told(&deltas), first.requests().len()), (vec![], 1), "it is not asked again");

    let said = json!({"error": {"message": "maximum context length is 9 tokens"}}).to_string();
    first.then(Turn::Status(400, None, said));
    let error = ask(&supervisor, "hi").await.1.unwrap_err();
    let expected =
        "this prompt alone is too long for p/p-model; p answered 400: \"maximum context length is 9 tokens\"";
    assert_eq!((error.message.as_str(), error.code), (expected, ErrorCode::Provider));

    first.then(Turn::Short("so far".into()));
    let (deltas, _) = ask(&supervisor, "hi").await;
    let cut = told(&deltas).join("");
    assert!(cut.ends_with(" tokens, the most it may have (agents.main.max_tokens)"), "{cut}");
    assert_eq!(second.requests().len(), 0);
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn without_a_good_key_the_next_model_is_asked_and_an_overload_is_of_all_keys() {
    let deadlines =
        Deadlines { retry: Duration::from_millis(2), notice: Duration::ZERO, ..Deadlines::default() };
    let (first, second, config) = with_keys(ProviderKind::Anthropic, &["a", "b"]);
    let (supervisor, _records) = start(config.clone(), deadlines);
    first.then(Turn::Status(401, None, String::new())).then(Turn::Status(401, None, String::new()));
    let (deltas, result) = ask(&supervisor, "hi").await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())));
    let notices = told(&deltas);
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].starts_with("p/p-model refused the API key (key "), "{notices:?}");
    assert!(notices[0].contains(" of 2): it is asked with key "), "{notices:?}");
    assert_eq!(notices[1], "p/p-model refused the API key: q/q-model is asked");
    assert_eq!((first.requests().len(), second.requests().len()), (2, 1));

    // Overload: another key is of no use.
    let (supervisor, _records) = start(config, deadlines);
    for _ in 0..3 {
        first.then(Turn::Status(529, None, String::new()));
    }
    let (deltas, result) = ask(&supervisor, "hi").await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())));
    let keys = keys_of(&first)[2..].to_vec();
    assert_eq!((keys.len(), keys.iter().collect::<BTreeSet<_>>().len()), (3, 1), "{keys:?}");
    assert_eq!(told(&deltas).last(), Some(&"p/p-model is overloaded: q/q-model is asked"));
    let state = observed(&supervisor).await;
    assert_eq!(state["left_alone"][0]["key"], Value::Null, "{state}");
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn sessions_are_spread_over_the_keys_and_each_stays_with_its_own() {
    let (first, _, config) = with_keys(ProviderKind::OpenAi, &["a", "b", "c"]);
    let (supervisor, _records) = start(config, Deadlines::default());
    for account in 0..20 {
        for _ in 0..2 {
            let chat = chat_of(None, &format!("s{account}"));
            read(supervisor.send(chat).await.unwrap().unwrap()).await.1.unwrap();
        }
    }
    let keys = keys_of(&first);
    assert!(keys.chunks(2).all(|pair| pair[0] == pair[1]), "{keys:?}");
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3, "{keys:?}");
}

#[actix::test]
async fn the_offline_provider_takes_the_same_road() {
    let (supervisor, mut records) =
        start(config(&[("p", ProviderKind::Offline, String::new())]), Deadlines::default());
    let mut answer = supervisor.send(chat("hello")).await.unwrap().unwrap();
    let mut items = Vec::new();
    while let Some(item) = answer.next().await {
        items.push(item.unwrap());
    }
    assert!(items.len() > 5, "it streams: {items:?}");
    let deltas: Vec<Delta> = items.into_iter().flatten().collect();
    assert!(text(&deltas).starts_with("You said: \"hello\" (1 word)."), "{deltas:?}");
    let Some(Delta::Finished { stop: Stop::End, usage: Some(usage) }) = deltas.last() else {
        panic!("{deltas:?}");
    };
    assert_eq!(answer.usage(), *usage);
    assert_eq!(records.recv().await.unwrap().usage, *usage);

    let (deltas, result) = ask(&supervisor, r#"/tool echo {"text":"hi"}"#).await;
    assert_eq!(result, Ok(()));
    assert!(deltas.iter().any(|delta| matches!(delta, Delta::ToolCall(_))), "{deltas:?}");
    let (_, result) = ask(&supervisor, "/fail").await;
    assert_eq!(result.unwrap_err().code, ErrorCode::Provider);
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn unknown_agents_are_refused() {
    let (supervisor, _records) =
        start(config(&[("p", ProviderKind::Offline, String::new())]), Deadlines::default());
    let mut unknown = chat("hi");
    unknown.agent = "İİİİ".into();
    let error = supervisor.send(unknown).await.unwrap().unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::NotFound, "agent İİİİ is not configured"));
    all_given_back(&supervisor).await;
}

#[actix::test]
async fn a_key_that_fits_no_header_is_not_repeated() {
    let upstream = Upstream::start();
    for kind in WIRE {
        let mut broken = config(&[("p", kind, upstream.base_url())]);
        broken.providers.get_mut("p").unwrap().api_key = Some(Secret::new("hush\nhush"));
        let (supervisor, _records) = start(broken, Deadlines::default());
        let error = ask(&supervisor, "hi").await.1.unwrap_err();
        assert!(error.message.contains("check api key") && !error.message.contains("hush"), "{error}");
        all_given_back(&supervisor).await;
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[actix::test]
async fn many_answers_at_once_on_one_arbiter() {
    const ANSWERS: usize = 150;
    let upstream = Upstream::start();
    let (supervisor, _records) =
        start(config(&[("p", ProviderKind::OpenAi, upstream.base_url())]), Deadlines::default());
    let mut answers = Vec::new();
    for _ in 0..ANSWERS {
        upstream.then(Turn::HangBody("here".into()));
        answers.push(supervisor.send(chat("hi")).await.unwrap().unwrap());
    }
    for answer in &mut answers {
        assert_eq!(text(&answer.next().await.unwrap().unwrap()), "here");
    }
    assert_eq!(upstream.connections(), ANSWERS, "all are under way together");
    drop(answers);
    for _ in 0..ANSWERS {
        upstream.left().await;
    }
    all_given_back(&supervisor).await;
}

/// A provider that begins an answer and then sends this for ever, with so long a pause each time. Answers
/// with how often it could once nobody takes it any more.
fn endless(text: &'static str, pause: Duration) -> (String, std::sync::mpsc::Receiver<usize>) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 64 * 1024]).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
        socket.write_all(head.as_bytes()).unwrap();
        let mut count = 0;
        while socket.write_all(text.as_bytes()).is_ok() {
            count += 1;
            std::thread::sleep(pause);
        }
        sender.send(count).unwrap();
    });
    (base_url, ended)
}

#[actix::test]
async fn comments_are_no_sign_of_life_and_not_read_for_ever() {
    const ONE: &str = ": still here\n\n";
    const MANY: &str = ": still here\n\n: still here\n\n: still here\n\n: still here\n\n: still here\n\n\
        : still here\n\n: still here\n\n: still here\n\n: still here\n\n: still here\n\n: still here\n\n";
    let usual = Deadlines::default();
    let short = Duration::from_millis(300);
    for kind in WIRE {
        let (base_url, ended) = endless(ONE, Duration::from_millis(20));
        let deadlines = Deadlines { idle: short, ..usual };
        let (supervisor, _records) = start(config(&[("p", kind, base_url)]), deadlines);
        let error = ask(&supervisor, "hi").await.1.unwrap_err();
        let silent = "p: silent for 300ms within its answer";
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::Timeout, silent), "{kind}");
        assert!(ended.recv_timeout(Duration::from_secs(10)).unwrap() > 0);

        let (base_url, ended) = endless(MANY, Duration::ZERO);
        let (supervisor, _records) = start(config(&[("p", kind, base_url)]), usual);
        let error = ask(&supervisor, "hi").await.1.unwrap_err();
        assert_eq!(error.code, ErrorCode::Provider, "{kind}");
        assert!(error.message.contains("lines in a row that lead to no event"), "{error}");
        assert!(matches!(error.detail, Some(Detail::Limit { .. })), "{error:?}");
        let bytes = ended.recv_timeout(Duration::from_secs(10)).unwrap() * MANY.len();
        assert!(bytes < 64 << 20, "{bytes} bytes were taken");
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn a_connection_that_nobody_uses_is_closed_in_time() {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let body = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n\
                    data: [DONE]\n\n";
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: ";
        let (mut requests, mut read) = (0, [0; 64 * 1024]);
        let end = loop {
            match socket.read(&mut read) {
                // A request here comes in one piece.
                Ok(1..) => requests += 1,
                end => break end.map_err(|error| error.kind()),
            }
            socket.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        };
        sender.send((requests, end)).unwrap();
    });
    let deadlines = Deadlines { keep_alive: Duration::from_millis(500), ..Deadlines::default() };
    let (supervisor, _records) = start(config(&[("p", ProviderKind::OpenAi, base_url)]), deadlines);
    for _ in 0..3 {
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((text(&deltas).as_str(), result), ("hi", Ok(())));
    }
    // Nobody asks any more.
    assert_eq!(ended.await.unwrap(), (3, Ok(0)), "used again, and closed though it was never looked for");
}

fn list(models: &[&str]) -> Turn {
    let data: Vec<Value> = models.iter().map(|model| json!({ "id": model })).collect();
    Turn::Status(200, None, json!({ "object": "list", "data": data }).to_string())
}

#[actix::test]
async fn a_model_that_no_agent_names_is_the_first_that_its_server_lists() {
    for kind in WIRE {
        let (first, second) = (Upstream::start(), Upstream::start());
        let mut config = config(&[("p", kind, first.base_url()), ("q", kind, second.base_url())]);
        config.agents.get_mut(&"main".into()).unwrap().models[0].model.clear();
        let (supervisor, mut records) = start(config, Deadlines::default());
        first.then(list(&["nomic-embed-text", "tiny"]));
        for _ in 0..2 {
            let (deltas, result) = ask(&supervisor, "hi").await;
            assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())), "{kind}");
            assert_eq!(records.recv().await.unwrap().model, "tiny");
        }
        let asked: Vec<_> = first.requests().iter().map(|request| request.body["model"].clone()).collect();
        assert_eq!(asked, [Value::Null, json!("tiny"), json!("tiny")], "{kind}: the list is read once");
        let listed = &first.requests()[0];
        assert!(listed.head.starts_with("GET /v1/models") && listed.head.contains("key-of-p"), "{listed:?}");

        // The server goes on with another model: it is asked for its list again, and the answer comes.
        let unknown = json!({"error": {"type": "not_found_error", "message": "model 'tiny' not found"}});
        first.then(Turn::Status(404, None, unknown.to_string())).then(list(&["other"]));
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((text(&deltas).as_str(), result), ("You said: hi", Ok(())), "{kind}");
        assert_eq!(records.recv().await.unwrap().model, "other");
        assert_eq!(second.requests().len(), 0, "{kind}");

        // Once, and not for ever.
        first.then(Turn::Status(404, None, String::new())).then(list(&["other"]));
        first.then(Turn::Status(404, None, String::new()));
        let (deltas, _) = ask(&supervisor, "hi").await;
        assert_eq!(told(&deltas), ["p/other was not found: q/q-model is asked"], "{kind}");
        all_given_back(&supervisor).await;
    }
}

#[actix::test]
async fn a_server_without_a_list_says_what_to_do() {
    for (turn, message) in [
        (list(&[]), "p has no models: load one there (Ollama: `ollama pull MODEL`), then ask again"),
        (
            Turn::Status(404, None, String::new()),
            "p was asked for its models, since the agent names none, and does not list any (p answered 404 (check its \
             base_url and the model)): name one as its `model`",
        ),
        (Turn::Status(401, None, String::new()), "p answered 401 (check its api key)"),
    ] {
        let upstream = Upstream::start();
        upstream.then(turn.clone());
        let mut config = config(&[("p", ProviderKind::OpenAi, upstream.base_url())]);
        config.agents.get_mut(&"main".into()).unwrap().models[0].model.clear();
        let (supervisor, mut records) = start(config, Deadlines::default());
        let (deltas, result) = ask(&supervisor, "hi").await;
        assert_eq!((deltas, result.unwrap_err().message.as_str()), (Vec::new(), message), "{turn:?}");
        all_given_back(&supervisor).await;
        assert!(records.try_recv().is_err(), "nothing was counted");
    }
}

#[actix::test]
async fn what_a_provider_does_not_take_back_is_left_out() {
    let upstream = Upstream::start();
    let (supervisor, _records) =
        start(config(&[("p", ProviderKind::OpenAiResponses, upstream.base_url())]), Deadlines::default());
    let refused = json!({"error": {"message": "The encrypted content could not be verified.",
        "type": "invalid_request_error", "code": "invalid_encrypted_content"}});
    upstream.then(Turn::Status(400, None, refused.to_string()));
    let mut asked = chat("hi");
    let proof = SignatureData::Encrypted { id: "rs_1".into(), content: "of another key".into() };
    let call = ToolCall { id: "a".into(), name: "echo".into(), input: json!({}) };
    let result = ToolResult { call: "a".into(), content: "r".into(), is_error: false };
    let thoughts = vec![Thought { text: "hm".into(), at: 0, proof }];
    asked.request.messages.extend([
        ChatMessage::Assistant { text: String::new(), calls: vec![call], thoughts },
        ChatMessage::ToolResults(vec![result]),
    ]);
    let (deltas, result) = read(supervisor.send(asked).await.unwrap().unwrap()).await;
    assert_eq!((text(&deltas).as_str(), result), ("You said: r", Ok(())));
    assert_eq!(told(&deltas), ["p-model does not take back what was thought before: it is left out"]);
    let bodies: Vec<String> = upstream.requests().iter().map(|request| request.body.to_string()).collect();
    assert!(bodies[0].contains("of another key") && !bodies[1].contains("of another key"), "{bodies:?}");
}
