//! What a client says and how it reads what it is told.

use super::*;
use proptest::prelude::*;

#[test]
fn frames_are_understood() {
    let event = |event| ServerMessage::Event { id: "1".into(), place: None, event };
    let numbered = |seq, run: Option<&str>, is_clipped, event| {
        let place = Some(Place { seq, run: run.map(str::to_owned), is_clipped });
        ServerMessage::Event { id: "s".into(), place, event }
    };
    for (frame, told) in [
        (r#"{"ok":true,"version":"0.1.0"}"#, ServerMessage::Hello),
        (
            r#"{"error":"auth_failed","code":4001}"#,
            ServerMessage::Closing { error: AUTH_FAILED.into(), code: 4001 },
        ),
        (
            r#"{"id":"1","result":"pong"}"#,
            ServerMessage::Answer { id: "1".into(), outcome: Ok(json!("pong")) },
        ),
        (
            r#"{"id":1,"result":{},"error":null}"#,
            ServerMessage::Answer { id: "1".into(), outcome: Ok(json!({})) },
        ),
        (r#"{"id":"1","error":"no"}"#, ServerMessage::Answer { id: "1".into(), outcome: Err("no".into()) }),
        (r#"{"id":"1","event":"text","data":"hi"}"#, event(StreamEvent::Text("hi".into()))),
        (
            r#"{"id":"1","event":"tool_use","data":{"id":"c","name":"echo","input":{"text":"hi"}}}"#,
            event(StreamEvent::ToolUse {
                call: "c".into(),
                name: "echo".into(),
                input: json!({"text": "hi"}),
                approval: None,
            }),
        ),
        (
            r#"{"id":"1","event":"tool_use","data":{"id":"c","name":"rm","input":{},"approval":{"id":"7f"}}}"#,
            event(StreamEvent::ToolUse {
                call: "c".into(),
                name: "rm".into(),
                input: json!({}),
                approval: Some("7f".into()),
            }),
        ),
        (
            r#"{"id":"1","event":"tool_result","data":{"tool_use_id":"c","content":"hi"}}"#,
            event(StreamEvent::ToolResult { call: "c".into(), content: "hi".into(), is_error: false }),
        ),
        (
            r#"{"id":"1","event":"usage","data":{"input_tokens":1,"output_tokens":2}}"#,
            event(StreamEvent::Usage { input_tokens: 1, output_tokens: 2 }),
        ),
        (r#"{"id":"1","event":"error","data":"aborted"}"#, event(StreamEvent::Error(ABORTED.into()))),
        (r#"{"id":"1","event":"restart"}"#, event(StreamEvent::Restart)),
        (r#"{"id":"1","event":"done"}"#, event(StreamEvent::Done)),
        (r#"{"id":"1","event":"new","data":[]}"#, event(StreamEvent::Unknown)),
        (
            r#"{"id":"1","event":"accepted","data":{"run":"r","seq":7}}"#,
            event(StreamEvent::Accepted { run: "r".into(), seq: 7 }),
        ),
        (
            r#"{"id":"s","event":"prompt","data":"hi","by":"ada","attachments":[{"name":"a.png"},{"media_type":"image/png"}],"seq":3,"run":"r","clipped":true}"#,
            numbered(
                3,
                Some("r"),
                true,
                StreamEvent::Prompt {
                    content: "hi".into(),
                    by: Some("ada".into()),
                    attachments: vec!["a.png".into(), "image/png".into()],
                },
            ),
        ),
        (
            r#"{"id":"s","event":"thought","data":"hm","seq":4,"first_seq":3,"run":"r"}"#,
            numbered(4, Some("r"), false, StreamEvent::Thought("hm".into())),
        ),
        (
            r#"{"id":"s","event":"approval","data":{"id":"a","name":"rm","decision":"denied","by":"ada"},"seq":5,"run":"r"}"#,
            numbered(
                5,
                Some("r"),
                false,
                StreamEvent::Approval {
                    id: "a".into(),
                    name: "rm".into(),
                    decision: "denied".into(),
                    by: Some("ada".into()),
                },
            ),
        ),
        (
            r#"{"id":"s","event":"message","data":"hi","seq":6,"run":"m"}"#,
            numbered(6, Some("m"), false, StreamEvent::Message("hi".into())),
        ),
        (r#"{"id":"s","event":"clear","seq":7}"#, numbered(7, None, false, StreamEvent::Clear)),
        (r#"{"id":"s","event":"deleted","seq":8}"#, numbered(8, None, false, StreamEvent::Deleted)),
        ("[]", ServerMessage::Unknown),
        ("{", ServerMessage::Unknown),
    ] {
        assert_eq!(read(frame), told, "{frame}");
    }
}

#[test]
fn a_prompt_names_its_session() {
    let session = SessionKey::new("main", "cli", "a:b", "main").unwrap();
    let frame: Value = serde_json::from_str(&send("1", &session, "hi", "k")).unwrap();
    assert_eq!(frame["params"]["session"], "main:cli:a%3Ab:main");
    assert_eq!(frame["params"]["account"], "a:b");
}

#[test]
fn what_is_not_asked_for_is_not_said() {
    let session = SessionKey::new("main", "cli", "ada", "work").unwrap();
    let params = |frame: String| {
        let mut frame: Value = serde_json::from_str(&frame).unwrap();
        let mut params = frame["params"].take();
        for name in ["channel", "account", "peer", "session"] {
            params.as_object_mut().unwrap().remove(name);
        }
        (frame["method"].as_str().unwrap().to_owned(), params)
    };
    let file = File { name: "a.txt", media_type: Some("text/plain"), data: b"hi" };
    let (attachments, model) = (&[file, File { media_type: None, ..file }][..], Some("p/m"));
    let whole = Prompt { session: &session, content: "x", key: "k", model, attachments, follow: false };
    for (frame, method, said) in [
        (send("1", &session, "x", "k"), "chat.send", json!({ "content": "x", "idempotency_key": "k" })),
        (
            whole.frame("1"),
            "chat.send",
            json!({
                "content": "x", "idempotency_key": "k", "model": "p/m", "follow": false,
                "attachments": [
                    { "name": "a.txt", "media_type": "text/plain", "data": "aGk=" },
                    { "name": "a.txt", "data": "aGk=" },
                ],
            }),
        ),
        (
            attach("1", &session, Since::Turns(5), true),
            "session.attach",
            json!({ "turns": 5, "thoughts": true }),
        ),
        (
            attach("1", &session, Since::Seq(7), false),
            "session.attach",
            json!({ "after_seq": 7, "thoughts": false }),
        ),
        (detach("1", "s"), "session.detach", json!({ "id": "s" })),
        (abort_run("1", &session, None), "chat.abort", json!({})),
        (abort_run("1", &session, Some("r")), "chat.abort", json!({ "run": "r" })),
        (approve("1", "a", None), "approval.approve", json!({ "id": "a" })),
        (
            approve("1", "a", Some(&json!({ "n": 1 }))),
            "approval.approve",
            json!({ "id": "a", "input": { "n": 1 } }),
        ),
        (deny("1", "a", Some("no")), "approval.deny", json!({ "id": "a", "reason": "no" })),
        (approvals("1", None), "approval.list", json!({})),
        (approvals("1", Some(&session)), "approval.list", json!({})),
        (agents("1"), "agent.list", json!({})),
        (models("1"), "model.list", json!({})),
        (sessions("1"), "session.list", json!({})),
        (clear("1", &session), "session.clear", json!({})),
        (budget("1", &session), "budget.status", json!({})),
    ] {
        assert_eq!(params(frame), (method.to_owned(), said));
    }
}

#[test]
fn answers_are_understood() {
    let full = json!({ "session": "main:cli:ada:work", "seq": 9, "agent": "main", "model": "p/m" });
    let read = attached(&full).unwrap();
    assert_eq!((read.session.as_str(), read.seq), ("main:cli:ada:work", 9));
    assert_eq!((read.agent.as_deref(), read.model.as_deref()), (Some("main"), Some("p/m")));
    assert_eq!(attached(&json!({ "session": "x" })), None);
    let calls = waiting(&json!([
        { "id": "a", "session": "s", "name": "rm", "input": { "n": 1 }, "deadline": 5 },
        { "name": "of no use without an id" },
    ]));
    assert_eq!((calls.len(), &*calls[0].name, calls[0].deadline), (1, "rm", 5));
    let agents = agents_of(&json!([{ "name": "main", "provider": "p", "model": "m", "default": true }]));
    assert_eq!(agents, [Agent { name: "main".into(), model: "p/m".into(), is_default: true }]);
    let models = models_of(&json!([{ "model": "p/m", "available": false }, { "model": "p/n" }, 7]));
    assert_eq!(models.iter().map(|model| model.is_available).collect::<Vec<_>>(), [false, true]);
    assert!(models_of(&json!({})).is_empty());
}

proptest! {
    #[test]
    fn no_frame_panics(frame in any::<String>()) {
        read(&frame);
    }

    #[test]
    fn no_event_panics(event in "[a-z_]{0,12}", data in "[0-9\\[\\]{}\":a-z]{0,24}") {
        read(&format!(r#"{{"id":"1","event":"{event}","data":{data}}}"#));
    }
}
