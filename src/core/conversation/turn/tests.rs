//! A turn from its first answer to its end, and after restarts in between.

use super::*;
use crate::conversation::event::Cause;
use crate::prompt::thinking::Thinking;
use crate::provider::notice::{Notice, NoticeKind};
use crate::provider::thought::SignatureData;
use crate::provider::{ChatRequest, Decoder, ProviderKind, Stop, anthropic};
use proptest::prelude::*;
use serde_json::json;
use std::time::Duration;

const OFFERED: &str = "echo";

/// Waits for approval.
const GATED: &str = "delete";

const NOW: Timestamp = Timestamp::from_millis(1000);

fn tools() -> Toolbox {
    let timeout = Duration::from_millis(500);
    Toolbox {
        offered: vec![OFFERED.into(), GATED.into()],
        gated: vec![GATED.into()],
        timeout,
        ..Toolbox::default()
    }
}

fn call(id: &str, name: &str) -> Delta {
    Delta::ToolCall(ToolCall { id: id.into(), name: name.into(), input: json!({"text": "hi"}) })
}

fn finished(output_tokens: u64) -> Delta {
    Delta::Finished { stop: Stop::End, usage: Some(Usage::new(10, output_tokens)) }
}

fn feed(turn: &mut Turn, deltas: Vec<Delta>) -> Vec<Event> {
    let events = turn.said(NOW, deltas, &tools(), &[]);
    for event in &events {
        turn.apply(event);
    }
    events
}

#[test]
fn text_of_one_read_is_one_event_and_the_answer_ends_the_run() {
    let mut turn = Turn::new();
    let events = feed(&mut turn, vec![Delta::Text("Hel".into()), Delta::Text("lo".into()), finished(2)]);
    let usage = Usage::new(10, 2);
    assert_eq!(
        events,
        [
            Event::Text("Hello".into()),
            Event::StepEnded { usage },
            Event::Ended { outcome: Outcome::Completed, usage }
        ]
    );
    assert_eq!(turn.work(), None);
}

#[test]
fn why_a_model_stopped_is_the_end_of_its_run() {
    let usage = Usage::new(10, 1);
    let end = |said: Vec<Delta>, stop| {
        let mut turn = Turn::new();
        let finished = Delta::Finished { stop, usage: Some(usage) };
        let mut events = feed(&mut turn, said.into_iter().chain([finished]).collect());
        let Some(Event::Ended { outcome, .. }) = events.pop() else { panic!("{events:?}") };
        (outcome, turn)
    };
    let text = || vec![Delta::Text("so".into())];
    for (stop, outcome) in [
        (Stop::End, Outcome::Completed),
        (Stop::MaxTokens, Outcome::Incomplete(Incomplete::Length)),
        (Stop::Refused, Outcome::Incomplete(Incomplete::Refusal)),
        (Stop::Filtered, Outcome::Incomplete(Incomplete::ContentFilter)),
    ] {
        let (ended, turn) = end(text(), stop);
        assert_eq!(ended, outcome);
        let mark = if stop == Stop::End { "" } else { CUT_MARK };
        let seen: Vec<ChatMessage> = turn.messages(usize::MAX).collect();
        assert!(matches!(&seen[..], [ChatMessage::Assistant { text, .. }] if *text == format!("so{mark}")));
        let (ended, _) = end(vec![Delta::Thinking("hm".into())], stop);
        let Outcome::Failed(error) = ended else { panic!("an empty answer is no success: {ended:?}") };
        assert_eq!(error.code, ErrorCode::Provider, "{error}");
    }
    // Of what tools gave it need not say anything.
    let mut turn = Turn::new();
    feed(&mut turn, vec![call("a", OFFERED), finished(1)]);
    let result = ToolResult { call: "a".into(), content: "hi".into(), is_error: false };
    turn.apply(&turn.returned(result).expect("open"));
    let events = feed(&mut turn, vec![finished(1)]);
    assert!(matches!(events.last(), Some(Event::Ended { outcome: Outcome::Completed, .. })), "{events:?}");
}

#[test]
fn a_call_that_the_limit_cut_is_not_made_and_the_model_told_why() {
    let mut turn = Turn::new();
    let cut =
        Delta::ToolCall(ToolCall { id: "a".into(), name: OFFERED.into(), input: json!("{\"text\":\"h") });
    let events = feed(&mut turn, vec![cut, Delta::Finished { stop: Stop::MaxTokens, usage: None }]);
    let refused = events.iter().any(|event| {
        matches!(event, Event::ToolReturned(result) if result.is_error && result.content.contains("most tokens"))
    });
    assert!(refused, "{events:?}");
    assert_eq!(turn.work(), Some(Work::Ask { step: 1 }), "it may try again");
}

#[test]
fn notices_keep_their_place_and_are_no_part_of_the_answer() {
    let notice = Notice::new(NoticeKind::Retrying, "it is asked again in 2 s");
    let mut turn = Turn::new();
    let said = vec![Delta::Notice(notice.clone()), Delta::Text("hi".into()), finished(1)];
    let events = feed(&mut turn, said);
    assert_eq!(events[..2], [Event::Noticed(notice), Event::Text("hi".into())]);
    let seen: Vec<ChatMessage> = turn.messages(usize::MAX).collect();
    assert!(matches!(&seen[..], [ChatMessage::Assistant { text, .. }] if text == "hi"));
}

#[test]
fn only_a_call_that_can_be_made_waits_for_approval() {
    let mut turn = Turn::new();
    let bad = Delta::ToolCall(ToolCall { id: "b".into(), name: GATED.into(), input: json!("{") });
    let calls = vec![call("a", GATED), bad, call("c", OFFERED), call("d", "unknown"), finished(1)];
    let events = feed(&mut turn, calls);
    let kinds: String = events
        .iter()
        .map(|event| match event {
            Event::ApprovalAsked(asked) => {
                assert_eq!((asked.call.id.as_str(), asked.asked), ("a", NOW));
                assert_eq!(asked.deadline, NOW.after(tools().timeout));
                '?'
            }
            Event::ToolCalled(_) => 'c',
            Event::StepEnded { .. } => '.',
            Event::ToolReturned(result) if result.is_error => '!',
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, "?ccc.!!");
    let Some(Work::Act { calls, .. }) = turn.work() else { panic!("{:?}", turn.work()) };
    assert_eq!(calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["c"]);
}

#[test]
fn nothing_is_asked_in_an_answer_that_ends_the_run() {
    let mut turn = Turn::new();
    for step in 0..STEPS_MAX {
        let events = feed(&mut turn, vec![call("", GATED), finished(1)]);
        let asked = events.iter().any(|event| matches!(event, Event::ApprovalAsked(_)));
        assert_eq!(asked, step + 1 < STEPS_MAX);
        let waiting: Vec<ApprovalRequest> = turn.waiting().collect();
        for asked in waiting {
            for event in turn.decided(&asked.call.id, Decision::TimedOut, None) {
                turn.apply(&event);
            }
        }
    }
    assert_eq!(turn.work(), None);
}

#[test]
fn every_call_has_an_id_of_its_own_whatever_the_provider_says() {
    let mut turn = Turn::new();
    let ids = ["call_0_1", "call_0_1", "", "call_0_3", "call_0_2"];
    let calls = ids.into_iter().map(|id| call(id, OFFERED)).chain([finished(1)]).collect();
    feed(&mut turn, calls);
    let Some(Work::Act { calls, .. }) = turn.work() else { panic!("{:?}", turn.work()) };
    let ids: std::collections::HashSet<_> = calls.iter().map(|call| call.id.clone()).collect();
    assert_eq!((calls.len(), ids.len()), (5, 5), "{calls:?}");
}

#[test]
fn a_second_result_is_not_taken_for_that_of_a_later_step() {
    let mut turn = Turn::new();
    let result = ToolResult { call: "a".into(), content: "hi".into(), is_error: false };
    feed(&mut turn, vec![call("a", OFFERED), finished(1)]);
    turn.apply(&turn.returned(result.clone()).expect("open"));
    feed(&mut turn, vec![call("a", OFFERED), finished(1)]);
    assert_eq!(turn.returned(result), None, "it is that of the first step's call");
    let Some(Work::Act { step: 1, calls }) = turn.work() else { panic!("{:?}", turn.work()) };
    assert_eq!(calls[0].id.as_str(), "call_1_0");
}

#[test]
fn calls_are_journaled_with_the_end_of_their_answer_and_then_made() {
    let mut turn = Turn::new();
    assert_eq!(feed(&mut turn, vec![Delta::Text("Let me see".into()), call("a", OFFERED)]).len(), 1);
    assert_eq!(turn.work(), Some(Work::Ask { step: 0 }), "not before the answer ended");
    let events = feed(&mut turn, vec![call("a", OFFERED), call("c", "rm"), finished(3)]);
    assert!(matches!(&events[..3], [Event::ToolCalled(a), Event::ToolCalled(b), Event::ToolCalled(c)]
        if a.id.as_str() == "a" && b.id.as_str() == "call_0_1" && c.id.as_str() == "c"));
    assert!(matches!(&events[4], Event::ToolReturned(r) if r.is_error && r.content == "unknown tool: rm"));
    let Some(Work::Act { step: 0, calls }) = turn.work() else { panic!("{:?}", turn.work()) };
    assert_eq!(calls.len(), 2, "the refused one is answered already");
    for id in ["call_0_1", "a"] {
        let result = ToolResult { call: id.into(), content: "hi".into(), is_error: false };
        let event = turn.returned(result.clone()).expect("open");
        turn.apply(&event);
        assert_eq!(turn.returned(result), None, "one result per call");
    }
    assert_eq!(turn.work(), Some(Work::Ask { step: 1 }));
    let seen: Vec<_> = turn.messages(usize::MAX).collect();
    assert!(matches!(&seen[1], ChatMessage::ToolResults(r) if r.len() == 3 && r[0].call.as_str() == "a"));
}

#[test]
fn a_tool_is_given_an_object_or_is_not_called() {
    let calls = [json!([1]), json!("x"), json!(7), json!(null), json!({})];
    let calls = calls.into_iter().enumerate().map(|(n, input)| {
        Delta::ToolCall(ToolCall { id: format!("c{n}").into(), name: OFFERED.into(), input })
    });
    let mut turn = Turn::new();
    let events = feed(&mut turn, calls.chain([finished(1)]).collect());
    let refused = events.iter().filter(|event| {
        matches!(event, Event::ToolReturned(r) if r.is_error && r.content.contains("not a JSON object"))
    });
    assert_eq!(refused.count(), 4, "{events:?}");
    let Some(Work::Act { calls, .. }) = turn.work() else { panic!("{:?}", turn.work()) };
    assert_eq!(calls.len(), 1);
}

#[test]
fn a_model_that_never_stops_calling_is_stopped() {
    let mut turn = Turn::new();
    for step in 0..STEPS_MAX {
        let events = feed(&mut turn, vec![call("x", "unknown"), finished(1)]);
        let ended = events.iter().any(|e| matches!(e, Event::Ended { outcome: Outcome::Failed(_), .. }));
        assert_eq!(ended, step + 1 == STEPS_MAX, "step {step}");
    }
    assert_eq!(turn.work(), None);
}

#[test]
fn thoughts_are_streamed_apart_and_go_back_with_their_seals_while_the_run_goes_on() {
    let thought = |text: &str| Delta::Thinking(text.into());
    let mut turn = Turn::new();
    let events = feed(&mut turn, vec![thought("I "), thought("see"), Delta::Text("Let ".into())]);
    assert_eq!(events, [Event::Thought("I see".into()), Event::Text("Let ".into())]);
    let seal = |proof: &str| Delta::Sealed(SignatureData::Signature(proof.into()));
    // Sealed in another batch than it was thought, and a second one without text.
    feed(
        &mut turn,
        vec![seal("s1"), Delta::Text("me".into()), Delta::Sealed(SignatureData::Redacted("r".into()))],
    );
    feed(&mut turn, vec![thought("İ again"), seal("s2"), thought("unsealed")]);
    let events = feed(&mut turn, vec![call("a", OFFERED), finished(3)]);
    assert!(
        matches!(&events[..], [Event::Sealed(seals), Event::ToolCalled(_), Event::StepEnded { .. }]
        if seals.len() == 3),
        "{events:?}"
    );
    let Some(ChatMessage::Assistant { text, thoughts, .. }) = turn.messages(usize::MAX).next() else {
        panic!()
    };
    let thought = |text: &str, at, proof| Thought { text: text.into(), at, proof };
    assert_eq!(text, "Let me");
    assert_eq!(
        thoughts,
        [
            thought("I see", 0, SignatureData::Signature("s1".into())),
            thought("", 6, SignatureData::Redacted("r".into())),
            thought("İ again", 6, SignatureData::Signature("s2".into())),
        ]
    );
    turn.apply(&turn.end(Outcome::Aborted(Cause::Asked), Usage::default())[0]);
    assert!(
        matches!(turn.messages(usize::MAX).next(), Some(ChatMessage::Assistant { thoughts, .. }) if thoughts.is_empty())
    );
}

/// Of llama.cpp's server, which signs a thought only after all that follows it.
#[test]
fn a_thought_whose_signature_comes_late_goes_back_where_it_was_and_the_model_thinks_on() {
    let stream = include_bytes!("../../provider/streams/anthropic-llama-cpp.sse");
    // In one read, and event by event.
    for pieces in [vec![&stream[..]], stream.split_inclusive(|byte| *byte == b'\n').collect()] {
        let mut turn = Turn::new();
        let mut decoder = Decoder::new(ProviderKind::Anthropic, "p").unwrap();
        for piece in pieces {
            let mut deltas = Vec::new();
            decoder.push(piece, &mut deltas).unwrap();
            feed(&mut turn, deltas);
        }
        let request = ChatRequest {
            model: "heron".into(),
            system: String::new(),
            messages: [ChatMessage::user("hi")].into_iter().chain(turn.messages(usize::MAX)).collect(),
            tools: Vec::new(),
            max_tokens: 8192,
            thinking: Thinking::Medium,
            cache_marks: false,
        };
        let body: serde_json::Value = serde_json::from_slice(&anthropic::encode(&request)).unwrap();
        assert_eq!(body["thinking"]["type"], "enabled", "{body}");
        let said = &body["messages"][1]["content"];
        assert_eq!(
            [&said[0], &said[1]],
            [
                &json!({ "type": "thinking", "thinking": "I see a heron.\n", "signature": "" }),
                &json!({ "type": "text", "text": "Let me look.\n" })
            ],
            "{body}"
        );
        assert_eq!(said[2]["name"], "clock", "{body}");
    }
}

#[test]
fn a_thought_that_a_restart_made_void_is_gone_and_a_thought_is_no_answer() {
    let mut turn = Turn::new();
    feed(
        &mut turn,
        vec![Delta::Thinking("hm".into()), Delta::Sealed(SignatureData::Signature("old".into()))],
    );
    let [restarted] = &turn.recover(|_| false)[..] else { panic!() };
    turn.apply(restarted);
    let anew = vec![Delta::Thinking("new".into()), Delta::Sealed(SignatureData::Signature("new".into()))];
    feed(&mut turn, anew);
    let events = feed(&mut turn, vec![call("a", OFFERED), finished(1)]);
    let Event::Sealed(seals) = &events[0] else { panic!("{events:?}") };
    assert_eq!(
        seals,
        &[ThoughtSignature {
            thought_bytes: 3,
            text_bytes: 0,
            proof: SignatureData::Signature("new".into())
        }]
    );

    let mut turn = Turn::new();
    let events = feed(
        &mut turn,
        vec![Delta::Thinking("hmmmmmm".into()), Delta::Finished { stop: Stop::End, usage: None }],
    );
    assert!(matches!(&events[1], Event::StepEnded { usage } if usage.output_tokens == 2), "{events:?}");
    assert!(!turn.has_answer());
    assert_eq!(turn.messages(usize::MAX).count(), 0);
}

#[test]
fn an_unfinished_answer_starts_anew_and_an_open_call_is_not_repeated() {
    let mut turn = Turn::new();
    feed(&mut turn, vec![Delta::Text("half".into())]);
    let [restarted] = &turn.recover(|_| false)[..] else { panic!() };
    turn.apply(restarted);
    feed(&mut turn, vec![Delta::Text("whole".into()), call("a", OFFERED), finished(1)]);
    assert!(
        matches!(turn.messages(usize::MAX).next(), Some(ChatMessage::Assistant { text, .. }) if text == "whole")
    );
    assert_eq!(turn.recover(|_| true), [], "an idempotent tool is called again");
    for event in turn.recover(|_| false) {
        assert!(matches!(&event, Event::ToolReturned(r) if r.content.starts_with("interrupted")));
        turn.apply(&event);
    }
    assert_eq!(turn.work(), Some(Work::Ask { step: 1 }));
}

proptest! {
    /// Whatever a model says in whatever pieces, the state is the fold of the events.
    #[test]
    fn the_state_is_the_fold_of_the_events(script in proptest::collection::vec(0u8..8, 0..60)) {
        let mut live = Turn::new();
        let mut log = Vec::new();
        for move_ in script {
            let events = match move_ {
                0 => live.said(NOW, vec![Delta::Text("t".into())], &tools(), &[]),
                1 => live.said(NOW, vec![call("a", OFFERED), call("", "other")], &tools(), &[]),
                2 => live.said(NOW, vec![finished(1)], &tools(), &[]),
                3 => live.returned(ToolResult { call: "a".into(), content: String::new(), is_error: false })
                    .into_iter().collect(),
                4 => live.recover(|_| false),
                5 => live.said(NOW, vec![Delta::Thinking("hm".into())], &tools(), &[]),
                6 => live.said(NOW, vec![Delta::Sealed(SignatureData::Bare)], &tools(), &[]),
                _ => live.end(Outcome::Aborted(Cause::Asked), Usage::default()),
            };
            for event in &events {
                live.apply(event);
            }
            log.extend(events);
        }
        let mut folded = Turn::new();
        for event in &log {
            folded.apply(event);
        }
        prop_assert_eq!(folded.work(), live.work());
        prop_assert_eq!(folded.usage(), live.usage());
        prop_assert_eq!(folded.messages(usize::MAX).collect::<Vec<_>>(), live.messages(usize::MAX).collect::<Vec<_>>());
        let ends = log.iter().filter(|e| matches!(e, Event::Ended { .. })).count();
        prop_assert!(ends <= 1, "one terminal event");
        prop_assert_eq!(ends == 1, live.work().is_none());
    }
}
