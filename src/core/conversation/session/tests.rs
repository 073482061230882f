//! What a session does with prompts, answers, decisions and the end of its process.

use super::*;
use crate::conversation::approval::{Decided, Decision, Toolbox, Verdict};
use crate::conversation::context::{self, NOT_ANSWERED};
use crate::conversation::event::{Cause, Forgotten};
use crate::conversation::outbox::AnswerStatus;
use crate::conversation::turn::{CUT_MARK, Work};
use crate::ids::ApprovalId;
use crate::ids::CallId;
use crate::principal::Principal;
use crate::prompt::answer_to::AnswerTo;
use crate::prompt::attachment::{self, Attachment};
use crate::prompt::run_options::RunOptions;
use crate::prompt::settings::Patch;
use crate::prompt::thinking::Thinking;
use crate::provider::Stop;
use crate::provider::{ChatMessage, Delta};
use crate::scope::{Scope, Scopes};
use crate::tools::call::{ToolCall, ToolResult};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const NONE: Usage = Usage::new(0, 0);
const NOW: Timestamp = Timestamp::from_millis(1);

fn key() -> SessionKey {
    SessionKey::parse("main:websocket:ada:main").unwrap()
}

fn limits() -> Limits {
    Limits { queue: 3, episodic_turns: 2, context_tokens: 5000 }
}

fn session() -> Session {
    Session::new(key(), limits())
}

fn prompt(run: &str) -> Submission {
    Submission {
        run: run.into(),
        content: format!("prompt {run}"),
        owner: Owner::Admins,
        idempotency_key: Some(format!("key {run}")),
        attachments: Vec::new(),
        run_options: RunOptions::default(),
    }
}

fn image(bytes: usize) -> Attachment {
    let mut data = b"\xff\xd8\xff".to_vec();
    data.resize(bytes, 0);
    Attachment::new(Some("a.jpg"), None, data.into()).unwrap()
}

fn answer(text: &str) -> Vec<Delta> {
    let usage = Some(Usage::new(10, 1));
    vec![Delta::Text(text.into()), Delta::Finished { stop: Stop::End, usage }]
}

fn prompts(session: &Session) -> impl Iterator<Item = &Prompt> {
    session.past.iter().filter_map(|past| past.prompt.as_ref())
}

fn events(batch: &Batch) -> Vec<&Event> {
    batch.events.iter().map(|logged| &logged.event).collect()
}

#[test]
fn other_bounds_hold_at_once_but_for_what_the_run_under_way_is_shown() {
    let mut session = Session::new(key(), Limits { queue: 2, ..limits() });
    let other = Limits { queue: 1, episodic_turns: 1, context_tokens: 77 };
    session.run = Some((
        Prompt {
            run: "r".into(),
            seq: Seq(1),
            at: Timestamp::default(),
            content: String::new(),
            owner: Owner::Admins,
            idempotency_key: None,
            attachments: Vec::new(),
            run_options: RunOptions::default(),
            notes: String::new(),
            aside: 0,
        },
        Turn::new(),
    ));
    session.set_limits(other.clone());
    assert_eq!((session.limits.queue, session.limits.context_tokens), (1, limits().context_tokens));
    session.run = None;
    session.set_limits(other);
    assert_eq!(session.limits.context_tokens, 77);
}

#[test]
fn prompts_run_one_at_a_time_in_order() {
    let mut session = session();
    for run in ["a", "b", "c", "d"] {
        session.submit(NOW, prompt(run)).unwrap();
    }
    let full = session.submit(NOW, prompt("e")).unwrap_err();
    assert!(full.is_retryable() && full.message.contains("queue is full"), "{full}");
    for run in ["a", "b", "c", "d"] {
        assert_eq!(session.running().map(RunId::as_str), Some(run));
        session.said(NOW, &run.into(), 0, answer(run), &Toolbox::default());
    }
    assert!(session.running().is_none());
}

/// A prompt that came over a channel.
fn from_elsewhere(run: &str) -> Submission {
    let to = AnswerTo { channel: "c".into(), conversation: "x".into(), address: format!("address of {run}") };
    let run_options = RunOptions { answer_to: Some(Arc::new(to)), ..RunOptions::default() };
    Submission { run_options, ..prompt(run) }
}

#[test]
fn what_came_over_a_channel_is_answered_there_with_the_end_of_its_run() {
    let mut session = session();
    for submission in [from_elsewhere("a"), prompt("b"), from_elsewhere("c")] {
        session.submit(NOW, submission).unwrap();
    }
    assert_eq!(session.take().unwrap().to_say, []);
    session.said(NOW, &"a".into(), 0, answer("well"), &Toolbox::default());
    let batch = session.take().unwrap();
    assert!(events(&batch).iter().any(|event| matches!(event, Event::Ended { .. })));
    let [said] = &batch.to_say[..] else { panic!("{:?}", batch.to_say) };
    assert_eq!((said.to.address.as_str(), said.answer.text.as_str()), ("address of a", "well"));
    assert_eq!((said.answer.run.as_str(), said.answer.status), ("a", AnswerStatus::Completed));
    // One that waits is called off; one that nobody elsewhere asked for says nothing there.
    session.abort(NOW, Some(&"c".into()), NONE);
    session.said(NOW, &"b".into(), 0, answer("hm"), &Toolbox::default());
    let batch = session.take().unwrap();
    let [said] = &batch.to_say[..] else { panic!("{:?}", batch.to_say) };
    assert_eq!((said.answer.run.as_str(), said.answer.status), ("c", AnswerStatus::Aborted));
}

#[test]
fn one_that_was_accepted_without_an_address_is_answered_once_it_is_known() {
    let mut session = session();
    session.submit(NOW, prompt("a")).unwrap();
    let again = session.submit(NOW, Submission { run: "other".into(), ..from_elsewhere("a") }).unwrap();
    assert!(again.repeated);
    session.said(NOW, &"a".into(), 0, answer("well"), &Toolbox::default());
    assert_eq!(session.take().unwrap().to_say.len(), 1);
}

#[test]
fn the_same_key_is_the_same_run() {
    let mut session = session();
    let first = session.submit(NOW, prompt("a")).unwrap();
    let again = session.submit(NOW, Submission { run: "z".into(), ..prompt("a") }).unwrap();
    assert_eq!(again, Submitted { repeated: true, ..first });
    let other = Submission { owner: Owner::Credential("bob".into()), run: "b".into(), ..prompt("a") };
    assert!(!session.submit(NOW, other).unwrap().repeated, "a key counts within its owner");
}

fn gated() -> Toolbox {
    let offered = vec![PluginName::from("delete"), PluginName::from("echo")];
    Toolbox {
        gated: vec![offered[0].clone()],
        offered,
        timeout: Duration::from_millis(100),
        ..Toolbox::default()
    }
}

fn asks(tools: &[&str]) -> Vec<Delta> {
    let call = |name: &&str| {
        let (id, name) = (CallId::from(*name), PluginName::from(*name));
        Delta::ToolCall(ToolCall { id, name, input: json!({ "of": "model" }) })
    };
    let end = Delta::Finished { stop: Stop::ToolUse, usage: None };
    tools.iter().map(call).chain([end]).collect()
}

/// A session in which a call that needs approval waits, and one goes on that does not.
fn waiting() -> (Session, ApprovalId) {
    let mut session = session();
    session.submit(NOW, prompt("a")).unwrap();
    session.said(NOW, &"a".into(), 0, asks(&["delete", "echo"]), &gated());
    let id = session.pending()[0].id.clone();
    assert_eq!(id, ApprovalId::of(&"a".into(), &"delete".into()));
    (session, id)
}

fn by(name: &str) -> Principal {
    Principal::new(name, Scopes::of(&[Scope::Approve]))
}

#[test]
fn who_prompted_a_run_decides_and_who_owns_the_session_does_not() {
    let user = |name: &str| Principal::new(name, Scopes::USER);
    let approve = || Verdict::Approve { input: None };
    let mut session = Session::new(key().in_space(&Owner::Credential("ada".into())), limits());
    // An operator prompts in ada's session.
    session.submit(NOW, prompt("a")).unwrap();
    session.said(NOW, &"a".into(), 0, asks(&["delete", "echo"]), &gated());
    let id = session.pending()[0].id.clone();
    let hers = session.decide(NOW, &id, approve(), &user("ada")).unwrap_err();
    assert_eq!(hers.code, ErrorCode::Forbidden, "she knows of it");
    let strangers = session.decide(NOW, &id, approve(), &user("eve")).unwrap_err();
    assert_eq!(strangers.code, ErrorCode::NotFound);
    let operator = Principal::local().narrowed(Some(Scopes::of(&[Scope::Write])));
    session.decide(NOW, &id, approve(), &operator).unwrap();
    let late = session.decide(NOW, &id, approve(), &user("eve")).unwrap_err();
    assert_eq!(late.code, ErrorCode::NotFound, "not even that it was");
}

fn to_make(session: &Session) -> Vec<(String, Value)> {
    let Some((_, Work::Act { calls, .. })) = session.work() else { return Vec::new() };
    calls.into_iter().map(|call| (call.name.to_string(), call.input)).collect()
}

fn result(call: &str) -> ToolResult {
    ToolResult { call: call.into(), content: "done".into(), is_error: false }
}

#[test]
fn a_call_waits_for_approval_while_others_are_made() {
    let (mut session, id) = waiting();
    assert_eq!(to_make(&session), [("echo".to_owned(), json!({ "of": "model" }))]);
    session.returned(NOW, &"a".into(), result("delete"));
    assert_eq!(session.pending().len(), 1, "a result of what was not made is none");
    session.returned(NOW, &"a".into(), result("echo"));
    assert_eq!(to_make(&session), [], "the run waits");
    let input = json!({ "of": "ada" });
    let approve = Verdict::Approve { input: Some(input.clone()) };
    let (run, decided) = session.decide(NOW, &id, approve, &by("ada")).unwrap();
    assert_eq!((run.as_str(), decided.by.as_deref()), ("a", Some("ada")));
    assert_eq!(to_make(&session), [("delete".to_owned(), input)]);
    session.returned(NOW, &"a".into(), result("delete"));
    assert!(matches!(session.work(), Some((_, Work::Ask { step: 1 }))));
    let conversation = format!("{:?}", session.conversation());
    assert!(conversation.contains("model") && !conversation.contains("ada\""), "{conversation}");
}

#[test]
fn a_tool_that_was_allowed_for_the_session_asks_no_more_also_after_a_restart() {
    let (mut session, id) = waiting();
    session.decide(NOW, &id, Verdict::ApproveForSession, &by("ada")).unwrap();
    assert!(to_make(&session).iter().any(|(name, _)| name == "delete"));
    session.returned(NOW, &"a".into(), result("echo"));
    session.returned(NOW, &"a".into(), result("delete"));
    session.said(NOW, &"a".into(), 1, asks(&["delete"]), &gated());
    assert_eq!((session.pending().len(), to_make(&session).len()), (0, 1), "in the same run");
    assert_eq!(session.settings().allowed, ["delete".into()]);

    let settings = session.settings().clone();
    let mut again = Session::restore(
        key(),
        limits(),
        session.head(),
        session.head(),
        settings,
        Window::default(),
        Vec::new(),
    );
    again.submit(NOW, prompt("b")).unwrap();
    again.said(NOW, &"b".into(), 0, asks(&["delete"]), &gated());
    assert_eq!((again.pending().len(), to_make(&again).len()), (0, 1), "in a later one");

    let mut other = Session::new(key(), limits());
    other.submit(NOW, prompt("c")).unwrap();
    other.said(NOW, &"c".into(), 0, asks(&["delete"]), &gated());
    assert_eq!(other.pending().len(), 1, "another session asks");
    assert!(Verdict::approve(Some(json!({})), true).is_err());
}

#[test]
fn the_first_decision_counts() {
    let (mut session, id) = waiting();
    session.decide(NOW, &id, Verdict::Deny { reason: Some("too bold".into()) }, &by("ada")).unwrap();
    let late = session.decide(NOW, &id, Verdict::Approve { input: None }, &by("bob")).unwrap_err();
    assert_eq!(late.code, ErrorCode::Conflict);
    assert!(!to_make(&session).iter().any(|(name, _)| name == "delete"));
    session.returned(NOW, &"a".into(), result("echo"));
    let told = format!("{:?}", session.conversation());
    assert!(told.contains("denied: too bold"), "the model is told: {told}");
    session.said(NOW, &"a".into(), 1, answer("oh"), &gated());
    let late = session.decide(NOW, &id, Verdict::Approve { input: None }, &by("bob")).unwrap_err();
    assert_eq!(late.code, ErrorCode::Conflict, "also when its run is over");
    let unknown = session.decide(NOW, &"x".into(), Verdict::Approve { input: None }, &by("bob")).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);
}

#[test]
fn who_does_not_decide_in_time_denies_and_the_deadline_outlives_the_daemon() {
    let (mut live, id) = waiting();
    let deadline = NOW.after(gated().timeout);
    let events = live.take().unwrap().events;
    let back = |now| {
        let (head, settings) = (live.head(), Settings::default());
        let mut back =
            Session::restore(key(), limits(), head, head, settings, Window::default(), events.clone());
        back.recover(now, Recovery::Resume, |_| false);
        back
    };
    let mut early = back(NOW);
    assert_eq!(early.deadline(), Some(deadline));
    assert_eq!(early.pending(), live.pending(), "it waits as before");
    assert_eq!(to_make(&early), [], "what may have been made is not made again");
    early.expire(Timestamp::from_millis(deadline.as_millis() - 1));
    assert_eq!(early.pending().len(), 1);
    let late = early.decide(deadline, &id, Verdict::Approve { input: None }, &by("ada")).unwrap_err();
    assert_eq!(late.code, ErrorCode::Conflict, "its time is over");
    for late in [early, back(deadline)] {
        assert_eq!((late.pending(), late.deadline()), (Vec::new(), None));
        assert!(matches!(late.work(), Some((_, Work::Ask { step: 1 }))), "{:?}", late.work());
        assert!(format!("{:?}", late.conversation()).contains("nobody decided within 100 ms"));
    }
}

#[test]
fn a_run_that_takes_too_long_is_ended_also_while_it_waits_and_after_a_restart() {
    let within = |run: &str, millis| {
        let timeout = Some(Duration::from_millis(millis));
        Submission { run_options: RunOptions { timeout, ..RunOptions::default() }, ..prompt(run) }
    };
    let mut live = session();
    live.submit(NOW, within("a", 100)).unwrap();
    live.submit(NOW, within("b", 50)).unwrap();
    live.submit(NOW, within("c", 200)).unwrap();
    live.submit(NOW, prompt("d")).unwrap();
    live.said(NOW, &"a".into(), 0, vec![Delta::Text("half".into())], &Toolbox::default());
    let (head, log) = (live.head(), live.take().unwrap().events);
    let restart = |now| {
        let settings = Settings::default();
        let mut back =
            Session::restore(key(), limits(), head, head, settings, Window::default(), log.clone());
        back.recover(now, Recovery::Resume, |_| false);
        back
    };
    let timed_out = |session: &mut Session| -> Vec<String> {
        let events = session.take().map(|batch| batch.events).unwrap_or_default();
        let is_end = |logged: &&Logged| {
            matches!(logged.event, Event::Ended { outcome: Outcome::Aborted(Cause::TimedOut), .. })
        };
        events.iter().filter(is_end).map(|logged| logged.run.as_ref().unwrap().to_string()).collect()
    };
    assert_eq!(live.deadline(), Some(NOW.after(Duration::from_millis(50))));
    let at = |millis| NOW.after(Duration::from_millis(millis));
    live.time_out(at(49), NONE);
    assert!(timed_out(&mut live).is_empty() && !live.is_overdue(at(50)) && live.is_overdue(at(100)));
    live.time_out(at(50), NONE);
    assert_eq!((timed_out(&mut live), live.running()), (vec!["b".to_owned()], Some(&"a".into())));
    live.time_out(at(100), NONE);
    assert_eq!((timed_out(&mut live), live.running()), (vec!["a".to_owned()], Some(&"c".into())));
    for (millis, ended, running) in
        [(10, vec![], "a"), (60, vec!["b"], "a"), (150, vec!["b", "a"], "c"), (900, vec!["b", "c", "a"], "d")]
    {
        let mut back = restart(at(millis));
        assert_eq!(back.running(), Some(&running.into()), "after {millis} ms");
        assert_eq!(timed_out(&mut back), ended, "after {millis} ms");
    }
    let mut stopping = restart(at(10));
    stopping.drain();
    stopping.time_out(at(900), NONE);
    assert_eq!(timed_out(&mut stopping).len(), 0, "the next start finds it");
}

#[test]
fn a_daemon_that_stops_decides_nothing() {
    let (mut session, id) = waiting();
    session.drain();
    let refused = session.decide(NOW, &id, Verdict::Approve { input: None }, &by("ada")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable);
    session.expire(Timestamp::from_millis(u64::MAX));
    assert_eq!(session.pending().len(), 1);
}

#[test]
fn whoever_ends_the_run_withdraws_what_waits() {
    let ends: [fn(&mut Session); 3] = [
        |session| assert!(session.abort(NOW, None, NONE).is_some()),
        |session| session.reset(NOW, NONE),
        |session| session.recover(NOW, Recovery::Interrupt, |_| true),
    ];
    for end in ends {
        let (mut session, id) = waiting();
        session.take();
        end(&mut session);
        let batch = session.take().unwrap();
        let events = events(&batch);
        let withdrawn = |event: &&Event| {
            matches!(event, Event::ApprovalDecided(Decided { decision: Decision::Withdrawn, by: None, .. }))
        };
        assert!(withdrawn(&events[0]) && matches!(events[1], Event::Ended { .. }), "{events:?}");
        assert!(session.pending().is_empty() && session.deadline().is_none());
        assert!(session.decide(NOW, &id, Verdict::Approve { input: None }, &by("ada")).is_err());
    }
}

#[test]
fn prompts_wait_up_to_a_number_of_bytes() {
    let mut session = Session::new(key(), Limits { queue: 64, ..limits() });
    let large = |run: &str| Submission { content: "x".repeat(QUEUE_BYTES_MAX - 1), ..prompt(run) };
    session.submit(NOW, large("running")).unwrap();
    session.submit(NOW, large("waits")).unwrap();
    let error = session.submit(NOW, Submission { content: "xx".into(), ..prompt("c") }).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("queue is full"), "{}", error.message);
    session.abort(NOW, Some(&"waits".into()), NONE);
    let huge = Submission { content: "x".repeat(QUEUE_BYTES_MAX + 1), ..prompt("d") };
    session.submit(NOW, huge).expect("one may always wait");
}

#[test]
fn what_prompts_bring_along_counts_and_too_much_is_refused_before_it_is_taken() {
    let mut session = Session::new(key(), Limits { queue: 64, ..limits() });
    let large = |run: &str| Submission { attachments: vec![image(9 << 20)], ..prompt(run) };
    session.submit(NOW, large("running")).unwrap();
    session.submit(NOW, large("waits")).unwrap();
    let error = session.submit(NOW, large("c")).unwrap_err();
    assert!(error.code == ErrorCode::Unavailable && error.message.contains("queue is full"), "{error}");
    let head = session.head();
    let many = Submission { attachments: vec![image(9 << 20); 2], ..prompt("d") };
    assert_eq!(session.submit(NOW, many).unwrap_err().code, ErrorCode::TooLarge);
    assert_eq!(session.head(), head);
}

#[test]
fn a_session_holds_bounded_bytes_of_past_images_and_the_model_is_told_of_the_others() {
    let mut session = Session::new(key(), Limits { episodic_turns: 9, ..limits() });
    for run in ["a", "b", "c", "d"] {
        let attachments = vec![image(1_500_000)];
        session.submit(NOW, Submission { attachments, ..prompt(run) }).unwrap();
        session.said(NOW, &run.into(), 0, answer("nice"), &Toolbox::default());
        let held: usize = prompts(&session).map(|prompt| attachment::held_bytes(&prompt.attachments)).sum();
        assert!(held <= context::PAST_IMAGE_BYTES_MAX + 64, "{held}");
    }
    session.submit(NOW, Submission { run_options: Some(Thinking::High).into(), ..prompt("e") }).unwrap();
    assert_eq!(session.thinking(), Some(Thinking::High));
    let seen = session.conversation();
    let shown: Vec<bool> = seen
        .iter()
        .filter_map(|message| match message {
            ChatMessage::User { attachments, .. } => attachments.first(),
            _ => None,
        })
        .map(|attachment| !attachment.data().is_empty())
        .collect();
    assert_eq!(shown, [false, false, true, true], "{seen:?}");
}

#[test]
fn what_the_model_will_not_see_is_not_kept() {
    let mut session = session();
    let mut say = |run: &str, content: String, said: Option<&str>| {
        session.submit(NOW, Submission { content, ..prompt(run) }).unwrap();
        match said {
            Some(text) => session.said(NOW, &run.into(), 0, answer(text), &Toolbox::default()),
            None => session.failed(NOW, &run.into(), 0, ErrorCode::Provider.error("x"), NONE),
        }
        let bytes: usize = prompts(&session).map(|prompt| prompt.content.len()).sum();
        let runs: Vec<String> = prompts(&session).map(|prompt| prompt.run.to_string()).collect();
        (runs.join(" "), bytes)
    };
    assert_eq!(say("a", "short".into(), Some("yes")), ("a".into(), 5));
    assert_eq!(say("b", "x".repeat(1_000_000), None), ("a b".into(), 5), "a failed run costs no other");
    let kept = 40_000 + CUT_MARK.len();
    assert_eq!(say("c", "x".repeat(1_000_000), Some("yes")), ("a b c".into(), 5 + kept), "its beginning");
    assert_eq!(say("d", "again".into(), Some("yes")), ("a b c d".into(), 10 + kept));
    for run in ["e", "f", "g"] {
        say(run, "x".repeat(1_000_000), Some("yes"));
    }
    assert_eq!(
        say("h", "x".repeat(1_000_000), Some("yes")).0,
        "b f g h",
        "more than is ever sent is not held"
    );
}

#[test]
fn abort_is_heard_in_the_queue_and_under_way_and_the_next_begins() {
    let mut session = session();
    for run in ["a", "b", "c"] {
        session.submit(NOW, prompt(run)).unwrap();
    }
    session.said(NOW, &"a".into(), 0, vec![Delta::Text("half".into())], &Toolbox::default());
    assert_eq!(session.abort(NOW, Some(&"b".into()), NONE), Some("b".into()));
    assert_eq!(session.abort(NOW, None, NONE), Some("a".into()));
    assert_eq!(session.running(), Some(&"c".into()));
    assert_eq!(session.abort(NOW, Some(&"b".into()), NONE), None);
    session.said(NOW, &"a".into(), 0, answer("too late"), &Toolbox::default());
    let batch = session.take().unwrap();
    let ends = events(&batch).iter().filter(|e| matches!(e, Event::Ended { .. })).count();
    assert_eq!(ends, 2);
    let seen = session.conversation();
    assert!(
        matches!(&seen[1], ChatMessage::Assistant { text, .. } if text == "half\n[cut off here]"),
        "{seen:?}"
    );
}

#[test]
fn turns_with_an_answer_and_turns_without_are_bounded_each_by_themselves() {
    let mut session = session();
    for run in ["a", "b", "c"] {
        session.submit(NOW, prompt(run)).unwrap();
        session.said(NOW, &run.into(), 0, answer(run), &Toolbox::default());
    }
    for run in ["f1", "f2", "f3", "f4"] {
        session.submit(NOW, prompt(run)).unwrap();
        session.failed(NOW, &run.into(), 0, ErrorCode::Provider.error("away"), NONE);
    }
    let past: Vec<&str> = prompts(&session).map(|prompt| prompt.run.as_str()).collect();
    assert_eq!(past, ["a", "b", "c", "f3", "f4"]);
    session.submit(NOW, prompt("z")).unwrap();
    let seen = session.conversation();
    let said: Vec<&str> = seen
        .iter()
        .filter_map(|message| match message {
            ChatMessage::Assistant { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(said, ["a", "b", "c", NOT_ANSWERED, NOT_ANSWERED], "what was not answered can be referred to");
    let asked = |text: &str| seen.iter().any(|m| matches!(m, ChatMessage::User { text: t, .. } if t == text));
    let of = |run: &str| prompts(&session).find(|prompt| prompt.run.as_str() == run).unwrap().content.clone();
    assert!(asked(&of("f4")), "{seen:?}");

    // One that would take too much of the context is known by its key alone.
    let mut session = self::session();
    let long = Submission { content: "x".repeat(10_000), ..prompt("long") };
    session.submit(NOW, long).unwrap();
    session.failed(NOW, &"long".into(), 0, ErrorCode::Provider.error("away"), NONE);
    session.submit(NOW, prompt("z")).unwrap();
    assert_eq!(session.conversation().len(), 1);
    assert_eq!(prompts(&session).next().unwrap().run.as_str(), "long");
}

#[test]
fn a_cut_off_run_is_resumed_or_ends_by_policy_and_numbers_are_never_reused() {
    let mut before = session();
    before.submit(NOW, prompt("a")).unwrap();
    before.submit(NOW, prompt("b")).unwrap();
    let batch = before.take().unwrap();
    assert!(batch.durable && batch.reserve == Some(Seq(3 + SEQ_RESERVE)));
    before.said(NOW, &"a".into(), 0, vec![Delta::Text("half".into())], &Toolbox::default());
    let lost = before.take().unwrap();
    assert!(!lost.durable, "text does not wait for the disk");

    for recovery in [Recovery::Resume, Recovery::Interrupt] {
        let mut after = Session::restore(
            key(),
            limits(),
            Seq(3),
            Seq(3 + SEQ_RESERVE),
            Settings::default(),
            Window::default(),
            batch.events.clone(),
        );
        after.recover(NOW, recovery, |_| false);
        assert_eq!(after.taken(), Seq(3), "what it decided is not in the log yet");
        let written = after.take().unwrap();
        assert_eq!(after.taken(), after.head());
        assert_eq!(written.events[0].first_seq, Seq(4), "no number is missing");
        assert!(written.events[0].seq > lost.events[0].seq, "and none is used twice");
        match recovery {
            Recovery::Resume => {
                assert_eq!(events(&written), [&Event::Restarted]);
                assert_eq!(after.work(), Some((&"a".into(), Work::Ask { step: 0 })));
            }
            Recovery::Interrupt => {
                assert!(matches!(events(&written)[..], [Event::Ended { .. }, Event::Started]));
                assert_eq!(after.running(), Some(&"b".into()));
            }
        }
    }
}

#[test]
fn text_is_shown_before_it_is_written_up_to_a_page_and_with_numbers_that_are_reserved() {
    let mut session = session();
    session.submit(NOW, prompt("a")).unwrap();
    assert_eq!(session.show(), 0, "a prompt is written first");
    let say = |session: &mut Session, text: &str| {
        session.said(NOW, &"a".into(), 0, vec![Delta::Text(text.into())], &Toolbox::default());
    };
    let batch = session.take().unwrap();
    say(&mut session, "early");
    assert_eq!(session.show(), 0, "nothing is reserved yet");
    session.reserved(batch.reserve.unwrap());
    say(&mut session, "later");
    assert_eq!((session.show(), session.show(), session.page().len()), (2, 0, 2));
    assert!(!session.has_unseen() && !session.is_taken());

    say(&mut session, &"x".repeat(PAGE_BYTES));
    say(&mut session, "more");
    assert_eq!((session.show(), session.is_page_full(), session.has_unseen()), (1, true, true));
    let page = session.take().unwrap();
    assert_eq!((page.shown, page.unseen().len(), page.durable, page.reserve), (3, 1, false, None));
    assert!(session.is_taken() && session.page().is_empty());

    let mut reserve = None;
    while reserve.is_none() {
        say(&mut session, "t");
        assert_eq!(session.show(), 1, "there are numbers left while more are reserved");
        let page = session.take().unwrap();
        assert_eq!(page.durable, page.reserve.is_some());
        reserve = page.reserve;
    }
    assert!(reserve > batch.reserve);
    say(&mut session, "t");
    assert_eq!(session.show(), 1);
    session.abort(NOW, None, NONE);
    assert_eq!((session.show(), session.has_unseen()), (0, true), "an end is written first");
    assert_eq!(session.take().unwrap().shown, 1);
}

#[test]
fn what_is_forgotten_what_stays_and_what_is_said_without_a_prompt() {
    let mut session = session();
    for run in ["a", "b"] {
        session.submit(NOW, prompt(run)).unwrap();
        session.said(NOW, &run.into(), 0, answer(run), &Toolbox::default());
    }
    let first = session.past[0].ended;
    session.inject(NOW, "inject-1".into(), "a note".into());
    session.configure(NOW, &Patch { label: Some(Some("x".into())), ..Patch::default() }).unwrap();
    let head = session.head();
    session.configure(NOW, &Patch { label: Some(Some("x".into())), ..Patch::default() }).unwrap();
    assert_eq!(session.head(), head, "what changes nothing leaves no trace");
    session.compact(NOW, first);
    session.submit(NOW, prompt("c")).unwrap();
    let seen = session.conversation();
    let users: Vec<&str> = seen
        .iter()
        .filter_map(|m| if let ChatMessage::User { text, .. } = m { Some(&**text) } else { None })
        .collect();
    assert_eq!(users, ["prompt b", context::NO_PROMPT, "prompt c"]);
    session.submit(NOW, prompt("d")).unwrap();
    let patch = Patch { thinking: Some(Some(Thinking::Low)), ..Patch::default() };
    session.configure(NOW, &patch).unwrap();
    assert_eq!(session.thinking(), Some(Thinking::Low), "as the session is set");
    session.reset(NOW, NONE);
    assert!(session.is_idle() && session.past.is_empty());
    assert_eq!(session.settings().label.as_deref(), Some("x"));
    let events = session.take().unwrap().events;
    let ends = events
        .iter()
        .filter(|logged| matches!(logged.event, Event::Ended { outcome: Outcome::Aborted(_), .. }));
    assert_eq!(ends.count(), 2, "the run under way and the one that waited");
    assert_eq!(events.last().unwrap().event, Event::Cleared(Forgotten::Conversation));
}

#[test]
fn settings_are_checked_and_bounded() {
    let mut session = session();
    let label = |text: &str| Patch { label: Some(Some(text.into())), ..Patch::default() };
    for bad in ["", " ", &"x".repeat(513)] {
        let error = session.configure(NOW, &label(bad)).unwrap_err();
        assert!(error.message.starts_with("invalid label"), "{error}");
    }
    let huge = Patch { display: [("x".to_owned(), "y".repeat(20_000).into())].into(), ..Patch::default() };
    assert_eq!(session.configure(NOW, &huge).unwrap_err().code, ErrorCode::InvalidRequest);
    assert!(session.is_new());
    session.configure(NOW, &Patch::default()).unwrap();
    assert!(!session.is_new(), "a session can begin with its settings");
}

#[test]
fn a_run_of_a_lane_begins_when_its_turn_has_come_there_and_in_the_session() {
    let lane = |run: &str| {
        let run_options = RunOptions { lane: Some("l".into()), ..RunOptions::default() };
        Submission { run_options, ..prompt(run) }
    };
    let mut session = Session::new(key(), Limits { queue: 9, ..limits() });
    session.submit(NOW, lane("a")).unwrap();
    session.submit(NOW, prompt("b")).unwrap();
    session.submit(NOW, lane("c")).unwrap();
    assert_eq!((session.running(), session.ahead(&"c".into())), (None, 1), "nothing overtakes it");
    session.admit(NOW, &"c".into());
    assert_eq!(session.running(), None, "the queue keeps its order");
    session.admit(NOW, &"a".into());
    assert_eq!(session.work(), Some((&"a".into(), Work::Ask { step: 0 })));
    let before = session.take().unwrap().events;
    session.said(NOW, &"a".into(), 0, answer("a"), &Toolbox::default());
    session.said(NOW, &"b".into(), 0, answer("b"), &Toolbox::default());
    assert_eq!(session.running(), Some(&"c".into()), "its turn came long ago");

    // Cut off, each waits for its lane anew.
    let mut after =
        Session::restore(key(), limits(), Seq(4), Seq(4), Settings::default(), Window::default(), before);
    after.recover(NOW, Recovery::Resume, |_| false);
    assert_eq!((after.running(), after.work()), (Some(&"a".into()), None));
    let waiting: Vec<&str> = after.in_lanes().map(|(run, ..)| run.as_str()).collect();
    assert_eq!(waiting, ["a", "c"]);
    after.admit(NOW, &"a".into());
    assert_eq!(after.work(), Some((&"a".into(), Work::Ask { step: 0 })));
    assert_eq!(after.abort(NOW, Some(&"c".into()), NONE), Some("c".into()), "also while it waits");
    after.admit(NOW, &"c".into());
    after.abort(NOW, None, NONE);
    assert_eq!(after.running(), Some(&"b".into()));
    assert!(after.admitted.is_empty() && after.in_lanes().next().is_none());
}

#[test]
fn what_waits_is_set_aside_and_begins_in_its_turn_once_it_is_given_back() {
    let mut session = Session::new(key(), Limits { queue: 9, ..limits() });
    let with = |run: &str| Submission { attachments: vec![image(1000)], ..prompt(run) };
    for run in ["a", "b", "c", "d"] {
        session.submit(NOW, with(run)).unwrap();
    }
    let log = session.take().unwrap().events;
    let bytes = session.held_bytes(&"b".into()).unwrap();
    for run in ["a", "b", "c"] {
        session.set_aside(&run.into());
    }
    assert_eq!(session.held_bytes(&"a".into()), None, "what is under way stays");
    assert!(session.held_bytes(&"b".into()).unwrap() < 50 && bytes > 1000);
    assert_eq!(session.queue[0].bytes(), bytes, "it counts as before");
    assert_eq!(session.wanted(), None, "its turn has not come");

    session.said(NOW, &"a".into(), 0, answer("a"), &Toolbox::default());
    assert_eq!((session.running(), session.queued()), (None, 3));
    assert_eq!(session.wanted(), Some((&"b".into(), log[2].seq)));
    let submitted = with("b");
    let again = session.submit(NOW, with("b")).unwrap();
    assert!(again.repeated && session.has(&submitted));
    session.give_back(NOW, &"b".into(), Ok((submitted.content, submitted.attachments)));
    let told = session.conversation();
    let Some(ChatMessage::User { text, attachments, .. }) = told.last() else { panic!("{told:?}") };
    assert_eq!((&**text, attachments[0].data().len()), ("prompt b", 1000));

    session.abort(NOW, None, NONE);
    assert_eq!(session.wanted().map(|(run, _)| run.clone()), Some("c".into()));
    session.give_back(NOW, &"c".into(), Err(ErrorCode::Internal.error("it is damaged")));
    assert_eq!(session.running(), Some(&"d".into()), "the next has its turn");
    session.drain();
    assert_eq!(session.wanted(), None);

    // Read back without what they say, they wait as well.
    let mut after =
        Session::restore(key(), limits(), Seq(5), Seq(5), Settings::default(), Window::default(), log);
    after.is_aside(&"b".into(), bytes);
    after.recover(NOW, Recovery::Interrupt, |_| false);
    assert_eq!((after.running(), after.wanted().is_some()), (None, true));
    assert_eq!(after.abort(NOW, Some(&"b".into()), NONE), Some("b".into()));
    assert_eq!(after.running(), Some(&"c".into()));
}

#[test]
fn a_draining_session_begins_nothing() {
    let mut session = session();
    session.submit(NOW, prompt("a")).unwrap();
    session.submit(NOW, prompt("b")).unwrap();
    session.drain();
    session.said(NOW, &"a".into(), 0, answer("done"), &Toolbox::default());
    assert_eq!((session.running(), session.queued()), (None, 1));
    assert_eq!(session.submit(NOW, prompt("c")).unwrap_err().code, ErrorCode::Unavailable);
}

proptest! {
    /// Whatever happens and wherever the process dies, the session read back from what was
    /// written is the session that wrote it, and every accepted prompt ends at most once.
    #[test]
    fn the_state_is_the_fold_of_the_log(script in proptest::collection::vec((0u8..12, 0u8..6), 0..80)) {
        let mut live = session();
        let mut log: Vec<Logged> = Vec::new();
        let (mut reserved, mut seen) = (Seq(0), Seq(0));
        for (move_, n) in script {
            let run = RunId::new(format!("r{n}"));
            match move_ {
                // A run is submitted once, unless a kill took the submission with it.
                0 | 1 if !log.iter().chain(&live.unwritten).any(|l| l.run.as_ref() == Some(&run)) => {
                    let _ = live.submit(NOW, prompt(run.as_str()));
                }
                2 => { live.abort(NOW, (n > 2).then_some(&run), NONE); }
                3 => live.said(NOW, &run, 0, vec![Delta::Text("t".into())], &Toolbox::default()),
                4 => live.said(NOW, &run, 0, answer("t"), &Toolbox::default()),
                5 => live.failed(NOW, &run, 0, ErrorCode::Provider.error("x"), NONE),
                6 if n == 0 => live.clear(NOW),
                6 if n == 1 => live.reset(NOW, NONE),
                8 => live.compact(NOW, Seq(live.head().0.saturating_sub(u64::from(n) * 5))),
                9 if n > 1 => {
                    live.inject(NOW, RunId::new(format!("i{}", live.head())), format!("note {n}"));
                }
                10 => {
                    let label = Some((n > 0).then(|| format!("{n}")));
                    live.configure(NOW, &Patch { label, ..Patch::default() }).unwrap();
                }
                11 => {
                    // What waits is out of memory and back again.
                    let said = |run: &RunId| prompt(run.as_str());
                    live.set_aside(&run);
                    live.abort(NOW, None, NONE);
                    while let Some(wanted) = live.wanted().map(|(run, _)| run.clone()) {
                        let Submission { content, attachments, .. } = said(&wanted);
                        live.give_back(NOW, &wanted, Ok((content, attachments)));
                    }
                    if live.held_bytes(&run).is_some() {
                        let Submission { content, attachments, .. } = said(&run);
                        live.give_back(NOW, &run, Ok((content, attachments)));
                    }
                }
                7 => {
                    // Killed: what was not written is gone.
                    let head = log.last().map_or(Seq(0), |l| l.seq);
                    live = Session::restore(
                        key(), limits(), head, reserved, Settings::default(), Window::default(), log.clone());
                    live.recover(NOW, Recovery::Resume, |_| false);
                }
                _ => {}
            }
            // Text may be seen before it is written, with numbers that are reserved.
            let fresh = live.show();
            for logged in &live.page()[live.page().len() - fresh..] {
                prop_assert!(logged.seq <= reserved && logged.seq > seen, "{logged:?}");
                seen = logged.seq;
            }
            if n != 5 && let Some(batch) = live.take() {
                reserved = batch.reserve.unwrap_or(reserved);
                live.reserved(reserved);
                prop_assert!(batch.unseen().first().is_none_or(|logged| logged.seq > seen));
                log.extend(batch.events);
            }
        }
        if let Some(batch) = live.take() {
            log.extend(batch.events);
        }
        let mut next = Seq(1);
        for logged in &log {
            prop_assert_eq!(logged.first_seq, next, "no gap, no repeat");
            prop_assert!(logged.seq >= logged.first_seq);
            next = logged.seq.next();
        }
        for n in 0..6 {
            let run = RunId::new(format!("r{n}"));
            let ends = log.iter()
                .filter(|l| l.run.as_ref() == Some(&run) && matches!(l.event, Event::Ended { .. }))
                .count();
            prop_assert!(ends <= 1);
        }
        let folded = Session::restore(
            key(), limits(), live.head(), reserved, Settings::default(), Window::default(), log);
        prop_assert_eq!(folded.running(), live.running());
        prop_assert_eq!(folded.work(), live.work());
        prop_assert_eq!(&folded.queue, &live.queue);
        prop_assert_eq!(&folded.past, &live.past);
        prop_assert_eq!(&folded.settings, &live.settings);
    }
}
