//! Prompts that bring images and text along, and models that think: from a session to its provider's
//! wire, through the log, and back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawmux_core::access::Secret;
use clawmux_core::config;
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::error::ErrorCode;
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::ProviderKind;
use clawmux_core::provider::model::ModelRef;
use serde_json::{Value, json};

use super::upstream::{self, Turn, Upstream};
use super::*;

const KINDS: [ProviderKind; 3] =
    [ProviderKind::Anthropic, ProviderKind::OpenAi, ProviderKind::OpenAiResponses];

/// A world whose agent has a model of this kind at the upstream.
async fn world(kind: ProviderKind, upstream: &Upstream) -> World {
    let mut config = Config::default();
    let (base_url, api_key) = (upstream.base_url(), Some(Secret::new("k")));
    let patience = config::Patience { retries: 0, ..config::Patience::default() };
    let provider = config::Provider { patience, ..config::Provider::new(kind, &base_url, api_key) };
    config.providers.insert("up".into(), provider);
    let agent = config.agents.get_mut(&AgentId::from("main")).expect("the default agent");
    agent.models = vec![ModelRef { provider: "up".into(), model: "test-model".into() }];
    World::with(config).await
}

/// Every byte there is, in an image's clothes, some 100 kB of it.
fn picture() -> Attachment {
    let mut data = b"\x89PNG\r\n\x1a\n".to_vec();
    data.extend((0..400).flat_map(|_| 0..=255_u8));
    data.push(7);
    Attachment::new(Some("heron İ.png"), Some("image/png"), data.into()).unwrap()
}

fn table() -> Attachment {
    Attachment::new(Some("birds.csv"), Some("text/csv"), "heron,1\nbittern,2\n".into()).unwrap()
}

fn brings(content: &str, attachments: Vec<Attachment>, thinking: Option<Thinking>) -> Command {
    let Command::Session(SessionCommand::Submit(submit)) = prompt("ada", content, None) else {
        unreachable!("a prompt")
    };
    Command::Session(SessionCommand::Submit(Submit { attachments, run_options: thinking.into(), ..submit }))
}

/// The bytes of all images of a message, in any format.
fn images(message: &Value) -> Vec<Vec<u8>> {
    let parts = message["content"].as_array().into_iter().flatten();
    let encoded = parts.filter_map(|part| match part["type"].as_str() {
        Some("image") => part["source"]["data"].as_str(),
        Some("image_url") => part["image_url"]["url"].as_str()?.strip_prefix("data:image/png;base64,"),
        Some("input_image") => part["image_url"].as_str()?.strip_prefix("data:image/png;base64,"),
        _ => None,
    });
    encoded.map(|data| STANDARD.decode(data).unwrap()).collect()
}

/// The messages of the request with this number.
fn messages(upstream: &Upstream, request: usize) -> Vec<Value> {
    let body = upstream.requests()[request].body.clone();
    let messages = body["messages"].as_array().or(body["input"].as_array());
    messages.unwrap().iter().filter(|m| m["role"] != "system").cloned().collect()
}

fn thoughts(events: &[Logged]) -> String {
    events
        .iter()
        .filter_map(|logged| match &logged.event {
            Event::Thought(thought) => Some(thought.as_str()),
            _ => None,
        })
        .collect()
}

fn think(pieces: &[&str], turn: Turn) -> Turn {
    Turn::Think(pieces.iter().map(ToString::to_string).collect(), Box::new(turn))
}

fn say(text: &str) -> Turn {
    Turn::Say(vec![text.into()])
}

fn call_echo() -> Turn {
    Turn::Call("Let me see.".into(), vec![("echo".into(), r#"{"text":"hi"}"#.into())])
}

/// That what the assistant said, which begins with `message`, gives back what was thought before its tool call.
fn gives_back(kind: ProviderKind, message: &Value, thought: &str) {
    match kind {
        ProviderKind::OpenAiResponses => {
            let item = json!({
                "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": thought}],
                "encrypted_content": format!("{}{thought}", upstream::SIGNATURE),
            });
            assert_eq!(*message, item);
        }
        ProviderKind::Anthropic => {
            let block = json!({
                "type": "thinking", "thinking": thought,
                "signature": format!("{}{thought}", upstream::SIGNATURE),
            });
            assert_eq!(message["content"][0], block, "{message}");
            assert_eq!(message["content"][1]["text"], "Let me see.", "{message}");
        }
        _ => assert_eq!(message["reasoning_content"], thought, "{message}"),
    }
}

#[actix::test]
async fn an_image_arrives_unchanged_and_thoughts_come_through_and_go_back() {
    for kind in KINDS {
        let upstream = Upstream::start();
        upstream
            .then(think(&["I look at it, ", "İ see."], call_echo()))
            .then(say("A heron."))
            .then(say("As I said."));
        let world = world(kind, &upstream).await;
        let mut peer = world.peer(1);
        peer.ask(brings("what is it?", vec![picture(), table()], Some(Thinking::Medium)));
        peer.accepted().await;
        let events = peer.rest().await;
        contiguous(&events);

        // Who follows is told what came along, and what is thought, and gets no data.
        let Event::Prompted { attachments, run_options, .. } = &events[0].event else { panic!("{events:?}") };
        let told: Vec<_> = attachments.iter().map(|a| (a.name(), a.media_type(), a.bytes())).collect();
        let picture_bytes = picture().bytes();
        let expected =
            [(Some("heron İ.png"), "image/png", picture_bytes), (Some("birds.csv"), "text/csv", 18)];
        assert_eq!((told.as_slice(), run_options.thinking), (&expected[..], Some(Thinking::Medium)));
        assert!(attachments.iter().all(|attachment| attachment.data().is_empty()), "{kind}");
        assert_eq!(thoughts(&events), "I look at it, İ see.", "{kind}: {events:?}");
        assert_eq!(text(&events), "Let me see.A heron.", "{kind}: {events:?}");

        // The model sees it, is asked to think, and has its thought back with the tool's result.
        for request in 0..2 {
            let body = upstream.requests()[request].body.clone();
            match kind {
                ProviderKind::Anthropic => {
                    // The answer keeps its room beside the thoughts.
                    let asked = json!({"type": "enabled", "budget_tokens": 1000 + 4096 - 1024});
                    assert_eq!((&body["thinking"], &body["max_tokens"]), (&asked, &json!(1000 + 4096)));
                }
                ProviderKind::OpenAiResponses => {
                    assert_eq!(body["reasoning"], json!({"effort": "medium", "summary": "auto"}), "{body}");
                    assert_eq!(
                        (&body["store"], &body["include"][0]),
                        (&json!(false), &json!("reasoning.encrypted_content"))
                    );
                }
                _ => assert_eq!(body["reasoning_effort"], "medium", "{body}"),
            }
            let user = &messages(&upstream, request)[0];
            assert_eq!(images(user), [picture().data().to_vec()], "{kind}, request {request}");
            let shown = "<attachment name=\\\"birds.csv\\\" type=\\\"text/csv\\\">\\nheron,1\\nbittern,2\\n</attachment>";
            assert!(user.to_string().contains(shown), "{kind}: {user}");
        }
        gives_back(kind, &messages(&upstream, 1)[1], "I look at it, İ see.");

        // The next turn sees the image again, is not asked to think, and sees no old thought.
        peer.ask(prompt("ada", "sure?", None));
        peer.accepted().await;
        assert_eq!(text(&peer.rest().await), "As I said.");
        let body = upstream.requests()[2].body.to_string();
        assert_eq!(images(&messages(&upstream, 2)[0]), [picture().data().to_vec()]);
        for gone in ["thinking", "reasoning", "I look at it"] {
            assert!(!body.contains(gone), "{kind}: {gone} in {body}");
        }
    }
}

#[actix::test]
async fn what_came_along_and_what_was_thought_is_there_after_a_fall_in_the_next_step() {
    for kind in KINDS {
        let upstream = Upstream::start();
        upstream
            .then(think(&["first"], call_echo()))
            .then(think(&["void"], Turn::HangBody("half".into())))
            .then(think(&["anew"], say("A heron.")));
        let world = world(kind, &upstream).await;
        let mut peer = world.peer(1);
        peer.ask(brings("what is it?", vec![picture()], Some(Thinking::Low)));
        let accepted = peer.accepted().await;
        let mut events = Vec::new();
        while !events.iter().any(|logged: &Logged| logged.event == Event::Text("half".into())) {
            events.push(peer.event().await);
        }
        let visited = world.supervisor.send(Visit { key: accepted.session }).await.unwrap();
        visited.expect("awake").try_send(Sabotage).unwrap();
        events.extend(peer.rest().await);
        contiguous(&events);
        assert_eq!(thoughts(&events), "firstvoidanew", "{kind}: {events:?}");
        let restarted = events.iter().position(|logged| logged.event == Event::Restarted).unwrap();
        assert_eq!(thoughts(&events[restarted..]), "anew");
        assert_eq!(upstream.requests().len(), 3, "{kind}: the finished step is not asked again");
        let messages = messages(&upstream, 2);
        assert_eq!(images(&messages[0]), [picture().data().to_vec()], "{kind}: read back from the log");
        gives_back(kind, &messages[1], "first");
        assert!(!messages.iter().any(|message| message.to_string().contains("void")), "{messages:?}");
        assert_eq!(peer.answer("ada").await, "Let me see.\n\nA heron.", "thoughts are no answer");
    }
}

#[actix::test]
async fn what_is_too_much_is_refused_before_it_is_accepted() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(brings("look", vec![table(); 17], None));
    let refused = peer.reply().await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
    assert!(refused.message.contains("at most 16"), "{refused}");
    // The offline provider says what it is sent, and thinks where it is asked to.
    peer.ask(brings("look", vec![picture(), table()], Some(Thinking::Low)));
    peer.accepted().await;
    let events = peer.rest().await;
    let (said, thought) = (text(&events), thoughts(&events));
    assert!(said.contains("You sent heron İ.png (image/png, 102409 bytes). You sent birds.csv"), "{said}");
    assert!(thought.starts_with("I am to think (low)"), "{thought}");
    contiguous(&events);
}

#[actix::test]
async fn a_prompt_chooses_its_model_and_how_long_its_answer_may_be_and_the_next_does_not() {
    for kind in KINDS {
        let upstream = Upstream::start();
        upstream.then(say("one")).then(say("two"));
        let world = world(kind, &upstream).await;
        let mut peer = world.peer(1);
        let asks = |run_options: RunOptions| {
            let Command::Session(SessionCommand::Submit(submit)) = prompt("ada", "hi", None) else {
                unreachable!("a prompt")
            };
            Command::Session(SessionCommand::Submit(Submit { run_options, ..submit }))
        };
        let unknown = RunOptions { model: Some("nobody's".into()), ..RunOptions::default() };
        peer.ask(asks(unknown));
        assert_eq!(peer.reply().await.unwrap_err().code, ErrorCode::InvalidRequest);
        let chosen = RunOptions {
            model: Some("up/other-model".into()),
            max_tokens: Some(70),
            ..RunOptions::default()
        };
        for run_options in [chosen, RunOptions { max_tokens: Some(u32::MAX), ..RunOptions::default() }] {
            peer.ask(asks(run_options));
            peer.accepted().await;
            peer.rest().await;
        }
        let asked: Vec<Value> = upstream.requests().iter().map(|request| request.body.clone()).collect();
        let most = |body: &Value| {
            let names = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
            names.iter().find_map(|name| body.get(name)).cloned()
        };
        let asked: Vec<_> = asked.iter().map(|body| (body["model"].clone(), most(body))).collect();
        let expected = [(json!("other-model"), Some(json!(70))), (json!("test-model"), Some(json!(1000)))];
        assert_eq!(asked, expected, "{kind}: no more than the agent may give");
    }
}
