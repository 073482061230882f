//! The conversation as providers' caches want it: each request begins, byte for byte, with all that the one before
//! it said, in every format, for as long as the window does not move.

use super::*;
use crate::conversation::approval::Toolbox;
use crate::conversation::turn::Work;
use crate::prompt::attachment::Attachment;
use crate::prompt::run_options::RunOptions;
use crate::prompt::thinking::Thinking;
use crate::provider::thought::SignatureData;
use crate::provider::{ChatRequest, Delta, ProviderKind, Stop, encode};
use crate::tools::call::{ToolCall, ToolResult, ToolSpec};
use proptest::prelude::*;
use serde_json::json;

const NOW: Timestamp = Timestamp::from_millis(1);
const NONE: Usage = Usage::new(0, 0);
const WIRE: [(ProviderKind, &str); 3] = [
    (ProviderKind::Anthropic, "https://a.test"),
    (ProviderKind::OpenAi, "https://b.test/v1"),
    (ProviderKind::OpenAiResponses, "https://c.test/v1"),
];
const SOUL: &str = "You are a heron. İİİİ.";

fn session(context_tokens: usize) -> Session {
    let key = SessionKey::parse("main:websocket:ada:main").unwrap();
    Session::new(key, Limits { queue: 3, episodic_turns: 4, context_tokens })
}

fn toolbox() -> Toolbox {
    Toolbox { offered: ["echo".into()].into_iter().collect(), ..Toolbox::default() }
}

/// What is asked now, in each format.
fn requests(session: &Session) -> Vec<Vec<u8>> {
    let input_schema = json!({ "type": "object" });
    let tool = |name: &str| ToolSpec {
        name: name.into(),
        description: "says it".into(),
        input_schema: input_schema.clone(),
    };
    let request = ChatRequest {
        model: "m".into(),
        system: SOUL.into(),
        messages: session.conversation(),
        tools: vec![tool("echo"), tool("clock")],
        max_tokens: 9,
        thinking: Thinking::Off,
        cache_marks: true,
    };
    WIRE.iter().map(|(kind, base_url)| encode(*kind, base_url, &request)).collect()
}

/// A request up to where its conversation ends, without the marks of what may be cached: these move, and are no
/// part of what is.
fn said(body: &[u8]) -> String {
    let body = String::from_utf8(body.to_vec()).unwrap();
    let unmarked = body.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
    unmarked.trim_end_matches([']', '}']).to_owned()
}

/// One turn of a conversation.
#[derive(Clone, Debug)]
struct Plan {
    prompt: String,
    image: Option<usize>,
    notes: String,
    /// For each step that calls tools: what is said, and what the tool returns.
    steps: Vec<(String, String)>,
    end: End,
    /// What is said in the model's name while it is under way, and after it.
    injected: (bool, bool),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Answered,
    /// It reached the most tokens it may have.
    Cut,
    /// Aborted within its text.
    Aborted,
    Failed,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let end = prop_oneof![
        6 => Just(End::Answered),
        1 => Just(End::Cut),
        1 => Just(End::Aborted),
        1 => Just(End::Failed),
    ];
    let image = prop_oneof![Just(None), (3_usize..200).prop_map(Some)];
    let notes = prop_oneof![2 => Just(String::new()), 1 => "[a-z\"\\\\İ ]{1,40}"];
    let step = ("[a-z ]{0,20}", "[a-z\"\\\\\n]{0,3000}");
    let plan = (
        "[a-z\"\\\\İ\n]{1,300}",
        image,
        notes,
        proptest::collection::vec(step, 0..3),
        end,
        (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1)),
    );
    let plan = plan.prop_map(|(prompt, image, notes, steps, end, injected)| Plan {
        prompt,
        image,
        notes,
        steps,
        end,
        injected,
    });
    proptest::collection::vec(plan, 1..24)
}

/// Plays a turn, and gives what was asked in it, request by request, and whether the window moved before it.
fn play(session: &mut Session, number: usize, plan: &Plan) -> (Vec<Vec<Vec<u8>>>, bool) {
    let run = RunId::new(format!("r{number}"));
    let image = plan.image.map(|bytes| {
        let mut data = b"\xff\xd8\xff".to_vec();
        data.resize(bytes.max(3), 7);
        Attachment::new(Some("a.jpg"), None, data.into()).unwrap()
    });
    let submission = Submission {
        run: run.clone(),
        content: plan.prompt.clone(),
        owner: Owner::Admins,
        idempotency_key: None,
        attachments: image.into_iter().collect(),
        run_options: RunOptions::default(),
    };
    session.submit(NOW, submission).unwrap();
    let compaction = session.compaction(SOUL);
    if let Some(compaction) = &compaction {
        session.compacted(NOW, &run, compaction, compaction.summary(None));
    }
    session.recalled(NOW, &run, plan.notes.clone());
    let mut asked = Vec::new();
    for (step, (text, result)) in plan.steps.iter().enumerate() {
        asked.push(requests(session));
        let call =
            ToolCall { id: format!("c{step}").into(), name: "echo".into(), input: json!({ "n": step }) };
        let mut deltas =
            vec![Delta::ToolCall(call.clone()), Delta::Finished { stop: Stop::ToolUse, usage: None }];
        if !text.is_empty() {
            deltas.insert(0, Delta::Text(text.clone()));
        }
        session.said(NOW, &run, step, deltas, &toolbox());
        if plan.injected.0 && step == 0 {
            session.inject(NOW, RunId::new(format!("during {number}")), "a note".into());
        }
        let result = ToolResult { call: call.id, content: result.clone(), is_error: false };
        session.returned(NOW, &run, result);
    }
    asked.push(requests(session));
    let step = plan.steps.len();
    let text = Delta::Text("an answer".into());
    let finished = |stop| vec![text.clone(), Delta::Finished { stop, usage: None }];
    match plan.end {
        End::Answered => session.said(NOW, &run, step, finished(Stop::End), &toolbox()),
        End::Cut => session.said(NOW, &run, step, finished(Stop::MaxTokens), &toolbox()),
        End::Aborted => {
            session.said(NOW, &run, step, vec![text.clone()], &toolbox());
            session.abort(NOW, None, NONE);
        }
        End::Failed => session.failed(NOW, &run, step, ErrorCode::Provider.error("away"), NONE),
    }
    assert!(session.is_idle());
    if plan.injected.1 {
        session.inject(NOW, RunId::new(format!("after {number}")), "a note".into());
    }
    (asked, compaction.is_some())
}

/// Whether a turn leaves something out of what later ones show of it: what came along with a prompt that was not
/// answered is named only.
fn is_shown_less(plan: &Plan) -> bool {
    plan.image.is_some() && matches!(plan.end, End::Failed) && plan.steps.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_request_begins_with_the_one_before_it(plans in plans(), large in any::<bool>()) {
        let mut session = session(if large { 100_000 } else { 1200 });
        let mut before: Option<Vec<Vec<u8>>> = None;
        for (number, plan) in plans.iter().enumerate() {
            // Of prompts that were not answered there are only so many.
            let vain = session.past.iter().filter(|past| !past.turn.has_answer()).count();
            prop_assume!(vain < 2);
            let (asked, moved) = play(&mut session, number, plan);
            if moved {
                before = None;
            }
            for requests in asked {
                for (at, now) in requests.iter().enumerate() {
                    let Some(before) = &before else { continue };
                    let (before, now) = (said(&before[at]), said(now));
                    prop_assert!(now.starts_with(&before), "{:?}:\n{}\n{}", WIRE[at].0, before, now);
                }
                before = Some(requests);
            }
            if is_shown_less(plan) {
                before = None;
            }
        }
    }

    /// What is asked never outgrows the context by more than the turn under way, and a session read back from its
    /// log asks the same.
    #[test]
    fn a_conversation_fits_and_reads_back(plans in plans()) {
        let context_tokens = 1200;
        let mut session = session(context_tokens);
        let mut log: Vec<Logged> = Vec::new();
        for (number, plan) in plans.iter().enumerate() {
            let (asked, _) = play(&mut session, number, &Plan { image: None, ..plan.clone() });
            let own: usize = plan.prompt.len() * 6 + plan.notes.len() * 2;
            let bytes = asked[0][0].len();
            prop_assert!(bytes <= 4 * context_tokens + own + 1200, "{} bytes", bytes);
            log.extend(session.take().into_iter().flat_map(|batch| batch.events));
            // As the store has it: what the window shows.
            let shown = |run: &RunId| log.iter().any(|logged| {
                let is_over = matches!(logged.event, Event::Ended { .. } | Event::Injected { .. });
                is_over && logged.run.as_ref() == Some(run) && logged.seq > session.window.from
            });
            let events = log.iter().filter(|logged| logged.run.as_ref().is_some_and(shown)).cloned().collect();
            let read = Session::restore(
                session.key.clone(), session.limits.clone(), session.head, session.reserved,
                Settings::default(), session.window.clone(), events,
            );
            prop_assert_eq!(&read.past, &session.past);
            prop_assert_eq!(&read.window, &session.window);
        }
    }
}

/// What each format is sent, byte for byte: what changes here costs every user's cache once.
#[test]
fn requests_are_written_as_ever() {
    let mut session = session(5000);
    let plan = |prompt: &str, steps: &[(&str, &str)]| Plan {
        prompt: prompt.into(),
        image: None,
        notes: String::new(),
        steps: steps.iter().map(|(text, result)| ((*text).into(), (*result).into())).collect(),
        end: End::Answered,
        injected: (false, false),
    };
    play(&mut session, 0, &plan("hi", &[]));
    let (asked, _) = play(&mut session, 1, &plan("İ \"q\"", &[("", "ok")]));
    let mark = r#""cache_control":{"type":"ephemeral"}"#;
    let tool = r#""description":"says it","input_schema":{"type":"object"}"#;
    let anthropic = [
        r#"{"model":"m","max_tokens":9,"stream":true,"system":[{"type":"text","text":"You are a heron. İİİİ.",MARK}],"#,
        r#""tools":[{"name":"echo",TOOL},{"name":"clock",TOOL,MARK}],"#,
        r#""messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"an answer"}]},"#,
        r#"{"role":"user","content":[{"type":"text","text":"İ \"q\"",MARK}]},"#,
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"c0","name":"echo","input":{"n":0}}]},"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c0","content":"ok",MARK}]}]}"#,
    ];
    let anthropic = anthropic.concat().replace("MARK", mark).replace("TOOL", tool);
    let tool = r#""description":"says it","parameters":{"type":"object"}}"#;
    let openai = [
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"#,
        r#""tools":[{"type":"function","function":{"name":"echo",TOOL},{"type":"function","function":{"name":"clock",TOOL}],"#,
        r#""messages":[{"role":"system","content":"You are a heron. İİİİ."},{"role":"user","content":"hi"},"#,
        r#"{"role":"assistant","content":"an answer"},{"role":"user","content":"İ \"q\""},"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c0","type":"function","function":{"name":"echo","#,
        r#""arguments":"{\"n\":0}"}}]},{"role":"tool","tool_call_id":"c0","content":"ok"}]}"#,
    ];
    let openai = openai.concat().replace("TOOL", tool);
    let written: Vec<&str> = asked[1].iter().map(|body| std::str::from_utf8(body).unwrap()).collect();
    assert_eq!(written[..2], [anthropic, openai]);
}

#[test]
fn thoughts_go_back_within_their_run_and_leave_with_it() {
    let mut session = session(100_000);
    let submission = |run: &str| Submission {
        run: run.into(),
        content: run.into(),
        owner: Owner::Admins,
        idempotency_key: None,
        attachments: Vec::new(),
        run_options: RunOptions::default(),
    };
    session.submit(NOW, submission("a")).unwrap();
    let call = ToolCall { id: "c".into(), name: "echo".into(), input: json!({}) };
    let thought = [Delta::Thinking("hm".into()), Delta::Sealed(SignatureData::Bare)];
    let called = [Delta::ToolCall(call), Delta::Finished { stop: Stop::ToolUse, usage: None }];
    session.said(NOW, &"a".into(), 0, thought.into_iter().chain(called).collect(), &toolbox());
    session.returned(
        NOW,
        &"a".into(),
        ToolResult { call: "c".into(), content: "ok".into(), is_error: false },
    );
    let within = said(&requests(&session)[1]);
    assert!(within.contains(r#""reasoning_content":"hm""#), "{within}");
    session.said(
        NOW,
        &"a".into(),
        1,
        vec![Delta::Text("done".into()), Delta::Finished { stop: Stop::End, usage: None }],
        &toolbox(),
    );
    session.submit(NOW, submission("b")).unwrap();
    let after = said(&requests(&session)[1]);
    assert!(after.starts_with(&within.replace(r#""reasoning_content":"hm","#, "")), "{within}\n{after}");
}

#[test]
fn turns_leave_several_at_once_and_rarely() {
    let mut session = session(2000);
    let plan = Plan {
        prompt: "a question of some length, as people ask them ".repeat(4),
        image: None,
        notes: String::new(),
        steps: Vec::new(),
        end: End::Answered,
        injected: (false, false),
    };
    let moved = (0..60).filter(|number| play(&mut session, *number, &plan).1).count();
    assert!((1..=12).contains(&moved), "the window moved {moved} times in 60 turns");
    assert!(!session.window.summary.is_empty() && session.past.len() >= 4, "{:?}", session.window);
    let told = session.take().unwrap().events;
    let notices = told.iter().filter(|logged| matches!(logged.event, Event::Noticed(_))).count();
    assert_eq!(notices, moved, "each time it is told");
}

#[test]
fn images_are_named_several_at_once() {
    let mut session = session(100_000);
    let plan = |image| Plan {
        prompt: "look".into(),
        image: Some(image),
        notes: String::new(),
        steps: Vec::new(),
        end: End::Answered,
        injected: (false, false),
    };
    let moved: Vec<bool> = (0..40).map(|number| play(&mut session, number, &plan(100)).1).collect();
    // Sixteen are shown; eight stay when a seventeenth is too much.
    let times = moved.iter().filter(|moved| **moved).count();
    assert!((2..=5).contains(&times), "{moved:?}");
    assert!(session.window.from == Seq(0) && session.past.len() == 40, "no turn is left out for an image");
}

#[test]
fn the_work_before_an_answer_is_done_once() {
    let mut session = session(400);
    let plan = Plan {
        prompt: "x".repeat(1100),
        image: None,
        notes: "tea".into(),
        steps: Vec::new(),
        end: End::Answered,
        injected: (false, false),
    };
    for number in 0..3 {
        play(&mut session, number, &plan);
    }
    let run = RunId::from("last");
    let submission = Submission {
        run: run.clone(),
        content: "and?".into(),
        owner: Owner::Admins,
        idempotency_key: None,
        attachments: Vec::new(),
        run_options: RunOptions::default(),
    };
    session.submit(NOW, submission).unwrap();
    let compaction = session.compaction(SOUL).expect("it has outgrown its context");
    session.compacted(NOW, &run, &compaction, "in short".into());
    let head = session.head();
    session.compacted(NOW, &run, &compaction, "again".into());
    assert_eq!((session.head(), session.compaction(SOUL)), (head, None));
    assert!(session.may_recall(&run));
    session.recalled(NOW, &run, "a cat".into());
    session.recalled(NOW, &run, "a dog".into());
    assert!(!session.may_recall(&run) && session.noted().starts_with("in short"), "{}", session.noted());
    let asked = String::from_utf8(requests(&session)[1].clone()).unwrap();
    assert!(asked.contains("in short") && asked.contains("a cat") && !asked.contains("a dog"), "{asked}");
    Session::clear(&mut session, NOW);
    assert_eq!(session.window.summary, "", "what is forgotten is not in a summary either");
    assert_eq!(session.work(), Some((&run, Work::Ask { step: 0 })));
}
