//! Every event comes back from its record as it was.

use super::*;
use crate::error::limit::Limit;
use crate::error::{Detail, ErrorCode};
use crate::provider::usage::Usage;
use crate::scope::Scope;
use proptest::prelude::*;

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn failed() -> impl Strategy<Value = Error> {
    let detail = prop_oneof![
        Just(None),
        proptest::sample::select(Scope::ALL.to_vec()).prop_map(|s| Some(Detail::MissingScope(s))),
        Just(Some(Detail::KeyRefused)),
        any::<u64>().prop_map(|ms| Some(Detail::RetryAfter(Duration::from_millis(ms)))),
        (proptest::sample::select(Limit::ALL), any::<u64>())
            .prop_map(|(name, limit)| Some(Detail::Limit { name, limit })),
    ];
    (proptest::sample::select(ErrorCode::ALL.to_vec()), any::<String>(), detail)
        .prop_map(|(code, message, detail)| Error { code, message, detail })
}

fn settings() -> impl Strategy<Value = Settings> {
    let thinking = proptest::option::of(proptest::sample::select(Thinking::ALL.to_vec()));
    let display = proptest::collection::btree_map(any::<String>(), json(), 0..3);
    let texts = proptest::array::uniform3(any::<Option<String>>());
    let allowed = proptest::collection::vec(any::<String>().prop_map(PluginName::new), 0..3);
    (texts, thinking, proptest::option::of(assignment()), allowed, display).prop_map(
        |([label, model, closed], thinking, assignment, allowed, display)| Settings {
            label,
            model,
            thinking,
            assignment: assignment.map(Box::new),
            closed,
            allowed,
            display,
        },
    )
}

fn assignment() -> impl Strategy<Value = Assignment> {
    (proptest::array::uniform5(any::<String>()), json()).prop_map(
        |([lead, kind, task, description, priority], metadata)| Assignment {
            lead,
            kind,
            task,
            description,
            priority,
            metadata,
        },
    )
}

fn attachments() -> impl Strategy<Value = Vec<Attachment>> {
    let media_type = proptest::sample::select(vec!["image/webp", "text/csv", "video/x-unheard"]);
    let caption = proptest::option::of("[a-zİ]{1,9}");
    let one = (any::<Option<String>>(), media_type, any::<usize>(), caption).prop_filter_map(
        "a type that is known",
        |(name, media_type, bytes, caption)| {
            Some(Attachment::remembered(name, media_type, bytes)?.with_caption(caption))
        },
    );
    proptest::collection::vec(one, 0..3)
}

fn run_options() -> impl Strategy<Value = RunOptions> {
    let thinking = proptest::option::of(proptest::sample::select(Thinking::ALL.to_vec()));
    let lane = proptest::option::of("[a-z]{1,4}");
    let timeout = proptest::option::of(any::<u64>().prop_map(Duration::from_millis));
    let answer_to = any::<(String, String, String)>()
        .prop_map(|(channel, conversation, address)| Arc::new(AnswerTo { channel, conversation, address }));
    let answer_to = proptest::option::of(answer_to);
    (thinking, any::<Option<String>>(), any::<Option<u32>>(), lane, timeout, answer_to).prop_map(
        |(thinking, model, max_tokens, lane, timeout, answer_to)| RunOptions {
            thinking,
            model,
            max_tokens,
            lane: lane.map(Into::into),
            timeout,
            answer_to,
        },
    )
}

fn seal() -> impl Strategy<Value = ThoughtSignature> {
    let proof = prop_oneof![
        Just(SignatureData::Bare),
        any::<String>().prop_map(SignatureData::Signature),
        any::<String>().prop_map(SignatureData::Redacted),
        any::<(String, String)>().prop_map(|(id, content)| SignatureData::Encrypted { id, content }),
        any::<(usize, String)>().prop_map(|(nth, signature)| SignatureData::OfCall { nth, signature }),
    ];
    (any::<usize>(), any::<usize>(), proof).prop_map(|(thought_bytes, text_bytes, proof)| ThoughtSignature {
        thought_bytes,
        text_bytes,
        proof,
    })
}

fn decision() -> impl Strategy<Value = Decision> {
    let object = proptest::collection::btree_map(any::<String>(), json(), 0..3)
        .prop_map(|map| Value::Object(map.into_iter().collect()));
    prop_oneof![
        proptest::option::of(object).prop_map(|input| Decision::Approved { input }),
        any::<Option<String>>().prop_map(|reason| Decision::Denied { reason }),
        Just(Decision::TimedOut),
        Just(Decision::Withdrawn),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let usage = || {
        any::<[u64; 4]>().prop_map(|[input_tokens, output_tokens, cache_read_tokens, cache_write_tokens]| {
            Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens }
        })
    };
    prop_oneof![
        (any::<String>(), "[a-z]{0,4}", any::<Option<String>>(), attachments(), run_options()).prop_map(
            |(content, owner, idempotency_key, attachments, run_options)| {
                let owner = Owner::from_name(&owner);
                Event::Prompted { content, owner, idempotency_key, attachments, run_options }
            }
        ),
        Just(Event::Started),
        any::<String>().prop_map(Event::Text),
        any::<String>().prop_map(Event::Thought),
        proptest::collection::vec(seal(), 0..3).prop_map(Event::Sealed),
        (any::<String>(), any::<String>(), json()).prop_map(|(id, name, input)| Event::ToolCalled(
            ToolCall { id: CallId::new(id), name: PluginName::new(name), input }
        )),
        (any::<String>(), any::<String>(), json(), any::<u64>(), any::<u64>()).prop_map(
            |(id, name, input, asked, deadline)| Event::ApprovalAsked(ApprovalRequest {
                call: ToolCall { id: CallId::new(id), name: PluginName::new(name), input },
                asked: Timestamp::from_millis(asked),
                deadline: Timestamp::from_millis(deadline),
            })
        ),
        (any::<String>(), any::<String>(), decision(), any::<Option<String>>()).prop_map(
            |(call, tool, decision, by)| {
                let (call, tool) = (CallId::new(call), PluginName::new(tool));
                Event::ApprovalDecided(Decided { call, tool, decision, by })
            }
        ),
        (any::<String>(), any::<String>(), any::<bool>()).prop_map(|(call, content, is_error)| {
            Event::ToolReturned(ToolResult { call: CallId::new(call), content, is_error })
        }),
        usage().prop_map(|usage| Event::StepEnded { usage }),
        Just(Event::Restarted),
        (prop::sample::select(NoticeKind::ALL.to_vec()), ".{0,40}")
            .prop_map(|(kind, message)| Event::Noticed(Notice::new(kind, message))),
        (
            prop_oneof![
                Just(Outcome::Completed),
                prop::sample::select(Incomplete::ALL.to_vec()).prop_map(Outcome::Incomplete),
                proptest::sample::select(vec![Cause::Asked, Cause::Stopped, Cause::TimedOut])
                    .prop_map(Outcome::Aborted),
                failed().prop_map(Outcome::Failed)
            ],
            usage()
        )
            .prop_map(|(outcome, usage)| Event::Ended { outcome, usage }),
        prop_oneof![
            Just(Forgotten::Past),
            Just(Forgotten::Conversation),
            any::<u64>().prop_map(|seq| Forgotten::UpTo(Seq(seq)))
        ]
        .prop_map(Event::Cleared),
        any::<String>().prop_map(|content| Event::Injected { content }),
        any::<String>().prop_map(|notes| Event::Recalled { notes }),
        (any::<u64>(), any::<u64>(), any::<String>()).prop_map(|(up_to, named, summary)| {
            Event::Compacted(Compacted { up_to: Seq(up_to), named: Seq(named), summary })
        }),
        settings().prop_map(|settings| Event::Configured(Box::new(settings))),
        Just(Event::Deleted),
    ]
}

#[test]
fn unknown_kinds_are_refused_by_name_and_unknown_fields_passed_over() {
    let error = read("dreamed", b"{}").unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    assert!(error.message.contains("dreamed"), "{error}");
    let body = br#"{"input":1,"output":2,"dreamed":3}"#;
    let usage = Usage::new(1, 2);
    assert_eq!(read(STEP_ENDED, body).unwrap(), Event::StepEnded { usage });
    let mut written = Vec::new();
    write(&Event::StepEnded { usage }, &mut written);
    assert_eq!(
        std::str::from_utf8(&written).unwrap(),
        r#"{"input":1,"output":2}"#,
        "as before caches were told"
    );
}

#[test]
fn what_forgot_all_before_there_was_a_choice_still_does() {
    assert_eq!(read(CLEARED, b"{}").unwrap(), Event::Cleared(Forgotten::Past));
}

#[test]
fn a_prompt_of_the_released_format_reads_and_one_without_more_is_written_as_then() {
    let body = br#"{"content":"hi","owner":"ci","key":"k"}"#;
    let event = read(PROMPTED, body).unwrap();
    let mut written = Vec::new();
    write(&event, &mut written);
    assert_eq!(std::str::from_utf8(&written).unwrap(), std::str::from_utf8(body).unwrap());
}

#[test]
fn what_a_newer_version_attached_is_refused_by_name() {
    for (body, what) in [
        (&br#"{"content":"","attachments":[{"type":"hologram","bytes":1}]}"#[..], "hologram"),
        (br#"{"content":"","thinking":"forever"}"#, "forever"),
    ] {
        assert!(read(PROMPTED, body).unwrap_err().message.contains(what));
    }
}

#[test]
fn a_tool_input_as_deep_as_the_parser_allows_reads_back() {
    let text = format!("{}{}", "[".repeat(127), "]".repeat(127));
    let input: Value = serde_json::from_str(&text).unwrap();
    let event = Event::ToolCalled(ToolCall { id: "c".into(), name: "echo".into(), input });
    let mut body = Vec::new();
    let kind = write(&event, &mut body);
    assert_eq!(read(kind, &body).unwrap(), event);
}

#[test]
fn a_limit_of_another_name_keeps_its_message() {
    let detail = Some(Detail::Limit { name: Limit::Queue, limit: 3 });
    let failed = Error { code: ErrorCode::RateLimited, message: "out of patience".into(), detail };
    let event = Event::Ended { outcome: Outcome::Failed(failed.clone()), usage: Usage::default() };
    let mut body = Vec::new();
    let kind = write(&event, &mut body);
    let body = String::from_utf8(body).unwrap().replace("limits.queue", "patience");
    let outcome = Outcome::Failed(Error { detail: None, ..failed });
    assert_eq!(read(kind, body.as_bytes()).unwrap(), Event::Ended { outcome, usage: Usage::default() });
}

proptest! {
    #[test]
    fn every_event_reads_back(event in event()) {
        let mut body = Vec::new();
        let kind = write(&event, &mut body);
        prop_assert_eq!(read(kind, &body).unwrap(), event);
    }

    #[test]
    fn no_bytes_panic(kind in 0usize..16, body in any::<Vec<u8>>()) {
        let kinds = [PROMPTED, STARTED, TEXT, TOOL_CALLED, TOOL_RETURNED, STEP_ENDED, RESTARTED, ENDED, CLEARED, INJECTED, CONFIGURED, THOUGHT, SEALED, RECALLED, COMPACTED, ""];
        let _ = read(kinds[kind], &body);
    }

    #[test]
    fn damaged_bodies_never_panic(event in event(), at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let mut body = Vec::new();
        let kind = write(&event, &mut body);
        let at = at.index(body.len());
        body[at] = byte;
        let _ = read(kind, &body);
    }
}
