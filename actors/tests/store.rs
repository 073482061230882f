//! The log against a model, against concurrency and against `kill -9`.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use actix::{Addr, Handler};
use clawmux_actors::runtime::observe::Observe;
use clawmux_actors::store::{
    Among, Append, AskedBy, BeginCall, Delete, Describe, Described, FindCut, FindRun, FindSession, FindTurn,
    LOAD_BYTES_MAX, ListSessions, Load, Loaded, ReadEvents, ReadHistory, ReadPrompt, ReadRow, ReadSpent,
    ReadTranscript, RecordUsage, SEGMENT_BYTES_MAX, Stop, Store, Unfinished, UsageBy, UsageGroup, UsageSince,
};
use clawmux_core::conversation::command::Before;
use clawmux_core::conversation::context::PAST_IMAGE_BYTES_MAX;
use clawmux_core::conversation::event::{Cause, Compacted, Event, Forgotten, Logged, Outcome};
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::conversation::order::Cut;
use clawmux_core::conversation::transcript::{Message, Role, Said, Transcript};
use clawmux_core::conversation::window::Window;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::Settings;
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::price::Money;
use clawmux_core::provider::tally::{Spent, SpentBy};
use clawmux_core::provider::usage::Usage;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::{ToolCall, ToolResult};
use futures::FutureExt as _;
use futures::future::join_all;
use proptest::prelude::*;
use tempfile::TempDir;

fn key(name: &str) -> SessionKey {
    SessionKey::new("main", "test", name, "main").unwrap()
}

fn numbered(session: usize) -> SessionKey {
    key(&session.to_string())
}

fn logged(seq: u64, run: Option<&str>, event: Event) -> Logged {
    let at = Timestamp::from_millis(seq.saturating_add(1000));
    Logged { first_seq: Seq(seq), seq: Seq(seq), run: run.map(RunId::from), at, event }
}

fn prompt(content: &str, idempotency_key: Option<&str>) -> Event {
    let idempotency_key = idempotency_key.map(str::to_owned);
    Event::prompted(content, Owner::Admins, idempotency_key)
}

fn text(piece: &str) -> Event {
    Event::Text(piece.into())
}

fn step_ended() -> Event {
    Event::StepEnded { usage: Usage::new(1, 2) }
}

fn ended(outcome: Outcome) -> Event {
    Event::Ended { outcome, usage: Usage::default() }
}

fn append(session: &SessionKey, events: Vec<Logged>, durable: bool) -> Append {
    Append { session: session.clone(), events: events.into(), durable, reserve: None, to_say: Vec::new() }
}

/// Events of one run, numbered from `first` on.
fn of_run(first: u64, run: &str, events: Vec<Event>) -> Vec<Logged> {
    events.into_iter().zip(first..).map(|(event, seq)| logged(seq, Some(run), event)).collect()
}

/// What the store answers to a message that it does not refuse.
async fn ask<M, T>(store: &Addr<Store>, message: M) -> T
where
    M: actix::Message<Result = Result<T, Error>> + Send + 'static,
    T: Send + 'static,
    Store: Handler<M>,
{
    store.send(message).await.unwrap().unwrap()
}

/// Has events written durably.
async fn put(store: &Addr<Store>, session: &SessionKey, events: Vec<Logged>) {
    ask(store, append(session, events, true)).await;
}

/// Asks for the newest messages, before one of them where that is said.
fn page(session: &SessionKey, limit: usize, before: Option<Before>, max_bytes: usize) -> ReadHistory {
    ReadHistory { session: session.clone(), limit, before, max_bytes }
}

/// Asks for an owner's run that an idempotency key stands for.
fn run_of(owner: Owner, idempotency_key: &str) -> FindRun {
    FindRun { owner, idempotency_key: idempotency_key.to_owned(), or_id: false }
}

/// Asks for what came after a number, of one run where that is said.
fn since(session: &SessionKey, after: u64, run: Option<RunId>, max_bytes: usize) -> ReadEvents {
    ReadEvents { session: session.clone(), after: Seq(after), run, max_bytes }
}

async fn read(store: &Addr<Store>, session: &SessionKey, after: u64) -> Vec<Logged> {
    ask(store, since(session, after, None, usize::MAX)).await
}

async fn load(store: &Addr<Store>, session: &SessionKey, runs: usize) -> Option<Loaded> {
    let loaded = ask(store, Load { session: session.clone(), runs }).await;
    let described = ask(store, Describe { session: session.clone() }).await;
    let same = loaded.as_ref().map(|loaded| Described {
        owner: session.owner(),
        spent: Spent { tokens: loaded.spent.total(), cost: loaded.cost },
    });
    assert_eq!(described, same, "both questions are about one session");
    loaded
}

async fn history(store: &Addr<Store>, session: &SessionKey, limit: usize) -> Vec<(Role, String)> {
    let messages = ask(store, page(session, limit, None, usize::MAX)).await;
    messages.messages.into_iter().map(|message| (message.role, message.content)).collect()
}

struct Folder {
    folder: TempDir,
}

impl Folder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("clawmux.db")
    }

    async fn store(&self) -> Addr<Store> {
        Store::start(self.path()).await.unwrap()
    }

    /// What is there when this store has stopped and another begins.
    async fn reopened(&self, store: &Addr<Store>) -> Addr<Store> {
        ask(store, Stop).await;
        self.store().await
    }
}

#[actix::test]
async fn a_conversation_is_there_while_it_streams_when_it_is_over_and_after_a_restart() {
    let folder = Folder::new();
    let (mut store, session) = (folder.store().await, key("a"));
    assert_eq!(load(&store, &session, 5).await, None);

    let begin = of_run(1, "r1", vec![prompt("hi", None), Event::Started]);
    let begin = Append { reserve: Some(Seq(100)), ..append(&session, begin, true) };
    ask(&store, begin.clone()).await;
    for (seq, piece) in [(3, "Hel"), (4, "lo "), (5, "wörld")] {
        ask(&store, append(&session, of_run(seq, "r1", vec![text(piece)]), false)).await;
    }

    let streaming = Logged { first_seq: Seq(3), ..logged(5, Some("r1"), text("Hello wörld")) };
    for reopened in [false, true] {
        if reopened {
            store = folder.reopened(&store).await;
        }
        assert_eq!(read(&store, &session, 2).await, std::slice::from_ref(&streaming));
        assert_eq!(read(&store, &session, 4).await, [logged(5, Some("r1"), text("wörld"))]);
        assert_eq!(read(&store, &session, 5).await, []);
        assert_eq!(history(&store, &session, 9).await, [(Role::User, "hi".to_owned())]);
        assert_eq!(ask(&store, Unfinished).await, std::slice::from_ref(&session));
        let loaded = load(&store, &session, 0).await.unwrap();
        assert_eq!((loaded.head, loaded.reserved), (Seq(5), Seq(100)));
        assert_eq!(loaded.events, [&begin.events[..], std::slice::from_ref(&streaming)].concat());
    }

    // After a restart the numbers a client may have seen are passed over.
    let end = vec![text("!"), step_ended(), ended(Outcome::Completed)];
    let error = store.send(append(&session, of_run(6, "r1", end.clone()), true)).await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    put(&store, &session, of_run(101, "r1", end.clone())).await;

    let finished = [&begin.events[..], &[streaming], &of_run(101, "r1", end)].concat();
    for reopened in [false, true] {
        if reopened {
            store = folder.reopened(&store).await;
        }
        assert_eq!(read(&store, &session, 0).await, finished);
        assert_eq!(read(&store, &session, 4).await[0], logged(5, Some("r1"), text("wörld")));
        let answer = (Role::Assistant, "Hello wörld!".to_owned());
        assert_eq!(history(&store, &session, 9).await, [(Role::User, "hi".to_owned()), answer.clone()]);
        assert_eq!(history(&store, &session, 1).await, [answer]);
        assert_eq!(ask(&store, Unfinished).await, []);
        assert_eq!(load(&store, &session, 1).await.unwrap().events, finished);
        assert_eq!(load(&store, &session, 0).await.unwrap().events, []);
    }
    ask(&store, Stop).await;
    let error = store.send(Unfinished).await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
}

/// All of a session in portions, each asked for after the last number of the one before.
async fn portions(
    store: &Addr<Store>,
    session: &SessionKey,
    mut after: u64,
    max_bytes: usize,
) -> Vec<Logged> {
    let mut all = Vec::new();
    loop {
        let portion = ask(store, since(session, after, None, max_bytes)).await;
        let Some(last) = portion.last() else { return all };
        after = last.seq.0;
        let bytes = |logged: &Logged| if let Event::Text(text) = &logged.event { text.len() } else { 0 };
        let before: usize = portion[..portion.len() - 1].iter().map(bytes).sum();
        assert!(before < max_bytes, "{before} bytes were enough already");
        all.extend(portion);
    }
}

/// Long answers of two runs that take turns, while they stream, when they are over, and after a
/// restart, from any number on, in any portions: what is read is what was written.
async fn is_read_in_portions(
    pieces: Vec<(bool, usize)>,
    asked: Vec<(u64, usize)>,
) -> Result<(), TestCaseError> {
    let (folder, session) = (Folder::new(), key("a"));
    let mut store = folder.store().await;
    let mut log: Vec<Logged> =
        ["r0", "r1"].into_iter().flat_map(|run| of_run(1, run, vec![prompt("hi", None)])).collect();
    log[1] = logged(2, Some("r1"), prompt("hi", None));
    for ((second, length), seq) in pieces.iter().zip(3..) {
        let letter = char::from(b'a' + u8::try_from(seq % 26).unwrap());
        let run = if *second { "r1" } else { "r0" };
        log.push(logged(seq, Some(run), text(&letter.to_string().repeat(*length))));
    }
    put(&store, &session, log.clone()).await;
    for round in 0..3 {
        if round == 1 {
            for (run, seq) in [("r0", log.len() as u64 + 1), ("r1", log.len() as u64 + 2)] {
                log.push(logged(seq, Some(run), ended(Outcome::Completed)));
            }
            let ends = log[log.len() - 2..].to_vec();
            put(&store, &session, ends).await;
        }
        if round == 2 {
            store = folder.reopened(&store).await;
        }
        for (after, max_bytes) in &asked {
            let after = after % (log.len() as u64 + 2);
            let mut next = after;
            for found in portions(&store, &session, after, *max_bytes).await {
                prop_assert_eq!(found.first_seq.0, next + 1, "round {}", round);
                let covered = &log[usize::try_from(next).unwrap()..usize::try_from(found.seq.0).unwrap()];
                next = found.seq.0;
                let Event::Text(text) = &found.event else {
                    prop_assert_eq!(covered, std::slice::from_ref(&found));
                    continue;
                };
                let mut whole = String::new();
                for piece in covered {
                    prop_assert_eq!(&piece.run, &found.run);
                    let Event::Text(piece) = &piece.event else { panic!("{piece:?} in {}", found.seq) };
                    whole.push_str(piece);
                }
                prop_assert!(covered.len() == 1 || text.len() <= SEGMENT_BYTES_MAX, "{} bytes", text.len());
                prop_assert_eq!(text, &whole);
            }
            prop_assert_eq!(next, after.max(log.len() as u64), "round {}", round);
        }
    }
    ask(&store, Stop).await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn long_text_is_read_in_portions(
        pieces in proptest::collection::vec(
            (proptest::bool::weighted(0.02), prop_oneof![9 => 0usize..600, 1 => 0usize..80_000]), 1..400),
        asked in proptest::collection::vec((any::<u64>(), prop_oneof![Just(1), 1usize..100_000, Just(usize::MAX)]), 1..6),
    ) {
        actix::System::new().block_on(is_read_in_portions(pieces, asked))?;
    }
}

#[actix::test]
async fn history_drops_what_a_restart_made_void_and_keeps_what_an_abort_cut_off() {
    let folder = Folder::new();
    let (store, session) = (folder.store().await, key("a"));
    let first = vec![
        prompt("one", None),
        Event::Started,
        text("Let me look. "),
        Event::ToolCalled(ToolCall { id: "c".into(), name: "echo".into(), input: 1.into() }),
        step_ended(),
        text("void"),
        Event::Restarted,
        text("It is 5."),
        step_ended(),
        ended(Outcome::Completed),
    ];
    put(&store, &session, of_run(1, "r1", first)).await;
    let second =
        vec![prompt("two", None), Event::Started, text("Well, "), ended(Outcome::Aborted(Cause::Asked))];
    put(&store, &session, of_run(11, "r2", second)).await;
    let third = vec![prompt("three", None), ended(Outcome::Failed(ErrorCode::Provider.error("no")))];
    put(&store, &session, of_run(15, "r3", third)).await;
    let said = |role, content: &str| (role, content.to_owned());
    let all = [
        said(Role::User, "one"),
        said(Role::Assistant, "Let me look. \n\nIt is 5."),
        said(Role::User, "two"),
        said(Role::Assistant, "Well, "),
        said(Role::User, "three"),
    ];
    assert_eq!(history(&store, &session, 9).await, all);
    assert_eq!(history(&store, &session, 2).await, all[3..]);
    assert_eq!(history(&store, &session, 0).await, []);
    // In pages of one message, either by number or by size.
    for (limit, max_bytes) in [(1, usize::MAX), (9, 300)] {
        let (mut pages, mut before) = (VecDeque::new(), None);
        loop {
            let page = ask(&store, page(&session, limit, before, max_bytes)).await;
            assert_eq!(page.messages.len(), 1);
            let Message { role, content, run, clipped, .. } = page.messages.into_iter().next().unwrap();
            assert!(!clipped, "{content}");
            before = Some(Before { run, role });
            pages.push_front((role, content));
            if !page.more {
                break;
            }
        }
        assert_eq!(pages, all);
    }
    let newest = ask(&store, page(&session, 9, None, 258)).await;
    assert_eq!((newest.messages.len(), newest.more), (1, true), "the newest one, whatever its size");
    assert_eq!((newest.messages[0].content.len(), newest.messages[0].clipped), (2, true));
    assert!(all.last().unwrap().1.starts_with(&newest.messages[0].content));
    let stranger = Some(Before { run: "none".into(), role: Role::User });
    let asked = page(&session, 9, stranger, 300);
    assert_eq!(store.send(asked).await.unwrap().unwrap_err().code, ErrorCode::NotFound);
    // The log itself drops nothing.
    assert!(read(&store, &session, 0).await.iter().any(|logged| logged.event == text("void")));

    put(&store, &session, vec![logged(17, None, Event::Cleared(Forgotten::Past))]).await;
    assert_eq!(history(&store, &session, 9).await, []);
    assert_eq!(load(&store, &session, 9).await.unwrap().events, []);
    assert_eq!(read(&store, &session, 16).await, [logged(17, None, Event::Cleared(Forgotten::Past))]);
    ask(&store, Stop).await;
}

#[actix::test]
async fn a_session_wakes_with_what_its_window_shows_and_what_stands_for_the_rest() {
    let folder = Folder::new();
    let (mut store, session) = (folder.store().await, key("a"));
    for run in 0..4_u64 {
        let events = vec![prompt("hi", None), Event::Started, text("yes"), ended(Outcome::Completed)];
        put(&store, &session, of_run(4 * run + 1, &format!("r{run}"), events)).await;
    }
    let compacted = Compacted { up_to: Seq(8), named: Seq(4), summary: "They said hi.".into() };
    put(&store, &session, vec![logged(17, None, Event::Compacted(compacted))]).await;
    for _ in 0..2 {
        let loaded = load(&store, &session, 9).await.unwrap();
        let summary = "They said hi.".to_owned();
        assert_eq!(loaded.window, Window { seq: Seq(17), from: Seq(8), named: Seq(4), summary });
        assert_eq!(loaded.events.first().map(|logged| logged.seq), Some(Seq(9)), "of the third run on");
        ask(&store, Stop).await;
        store = folder.store().await;
    }
    let told = ask(&store, page(&session, 99, None, usize::MAX)).await;
    assert_eq!(told.messages.len(), 8, "people see all of it");

    let part = logged(18, None, Event::Cleared(Forgotten::UpTo(Seq(4))));
    put(&store, &session, vec![part]).await;
    let loaded = load(&store, &session, 9).await.unwrap();
    let (seq, from, named) = (loaded.window.seq, loaded.window.from, loaded.window.named);
    assert_eq!((seq, from, named, &*loaded.window.summary), (Seq(18), Seq(8), Seq(4), ""));
    put(&store, &session, vec![logged(19, None, Event::Cleared(Forgotten::Past))]).await;
    let loaded = load(&store, &session, 9).await.unwrap();
    assert_eq!((loaded.window.from, loaded.events), (Seq(19), Vec::new()));
    ask(&store, Stop).await;
}

#[actix::test]
async fn a_session_wakes_with_as_much_of_its_past_as_its_memory_may_have() {
    let folder = Folder::new();
    let (store, session) = (folder.store().await, key("a"));
    for run in 0..6_u64 {
        let content = "x".repeat(3 << 20);
        let returned = Event::ToolReturned(ToolResult { call: "c".into(), content, is_error: false });
        let events = vec![prompt("hi", None), Event::Started, returned, ended(Outcome::Completed)];
        put(&store, &session, of_run(4 * run + 1, &format!("r{run}"), events)).await;
    }
    let waiting = of_run(25, "waiting", vec![prompt("and", None)]);
    put(&store, &session, waiting).await;
    let loaded = load(&store, &session, 6).await.unwrap();
    let bytes = LOAD_BYTES_MAX.div_ceil(3 << 20);
    let from = 25 - 4 * bytes;
    assert_eq!(loaded.events.len() as u64, 4 * bytes + 1, "whole runs, the newest, and what waits");
    assert_eq!(loaded.events[0].seq, Seq(from));
    assert_eq!(load(&store, &session, 1).await.unwrap().events.len(), 5);
    ask(&store, Stop).await;
}

#[actix::test]
async fn what_would_break_the_log_is_refused_whole_and_disturbs_nobody() {
    let folder = Folder::new();
    let (store, session, other) = (folder.store().await, key("a"), key("b"));
    let begin = of_run(1, "r1", vec![prompt("hi", Some("k"))]);
    put(&store, &session, begin).await;
    let at = |seq| logged(seq, Some("r1"), Event::Started);
    let two = |first: Logged, second: Logged| vec![first, second];
    let bad = [
        (vec![at(1)], "a number again"),
        (two(at(2), at(4)), "a gap"),
        (two(at(2), at(2)), "a number twice"),
        (vec![Logged { first_seq: Seq(2), event: text("x"), ..at(3) }], "text with two numbers"),
        (vec![at(u64::MAX)], "a number beyond the last"),
        (two(at(2), logged(3, Some("r9"), Event::Started)), "a run that never began"),
        (two(at(2), logged(3, None, Event::Started)), "no run"),
        (vec![logged(2, Some("r1"), Event::Cleared(Forgotten::Past))], "a run where none belongs"),
        (
            two(
                logged(2, Some("r1"), ended(Outcome::Aborted(Cause::Asked))),
                logged(3, Some("r1"), text("x")),
            ),
            "after the end",
        ),
        (two(at(2), logged(3, Some("r1"), prompt("again", None))), "a run twice"),
    ];
    let sent = bad.iter().map(|(events, _)| store.send(append(&session, events.clone(), true)));
    let others = (1..=10).map(|seq| {
        let event = if seq == 1 { prompt("hi", None) } else { text("x") };
        store.send(append(&other, of_run(seq, "other", vec![event]), seq % 2 == 0))
    });
    let (refused, fine) = futures::join!(join_all(sent), join_all(others));
    for (result, (_, why)) in refused.into_iter().zip(&bad) {
        let error = result.unwrap().expect_err(why);
        assert!(matches!(error.code, ErrorCode::Internal | ErrorCode::Conflict), "{why}: {error}");
    }
    for result in fine {
        result.unwrap().unwrap();
    }
    let beginning = of_run(5, "r5", vec![prompt("hi", None)]);
    store.send(append(&key("c"), beginning, true)).await.unwrap().expect_err("a session that begins with 5");
    assert_eq!(load(&store, &key("c"), 1).await, None);
    assert_eq!(load(&store, &session, 1).await.unwrap().head, Seq(1));
    assert_eq!(load(&store, &other, 1).await.unwrap().head, Seq(10));
    put(&store, &session, vec![at(2)]).await;
    ask(&store, Stop).await;
}

#[actix::test]
async fn of_all_who_bring_one_idempotency_key_one_wins_and_the_others_find_it() {
    let folder = Folder::new();
    let store = folder.store().await;
    let contender = |i: u64| {
        let store = store.clone();
        async move {
            let run = format!("r{i}");
            let events = of_run(1, &run, vec![prompt("hi", Some("same"))]);
            let result = store.send(append(&key(&run), events, true)).await.unwrap();
            let found =
                ask(&store, run_of(Owner::Admins, "same")).await.expect("it is there once anybody is told");
            (i, result, found)
        }
    };
    let results = join_all((0..50).map(contender)).await;
    let winners: Vec<u64> =
        results.iter().filter(|(_, result, _)| result.is_ok()).map(|(i, ..)| *i).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    let winner = format!("r{}", winners[0]);
    for (i, result, found) in &results {
        assert_eq!(*found, (key(&winner), RunId::from(winner.as_str()), Seq(1)));
        if *i != winners[0] {
            assert_eq!(result.as_ref().unwrap_err().code, ErrorCode::Conflict);
            assert_eq!(load(&store, &key(&format!("r{i}")), 1).await, None, "nothing of a loser is kept");
        }
    }
    // Within another owner the key is free.
    let owner = Owner::Credential("ci".into());
    assert_eq!(ask(&store, run_of(owner.clone(), "same")).await, None);
    let event = Event::prompted("hi", owner, Some("same".into()));
    put(&store, &key("ci"), of_run(1, "ci", vec![event])).await;
    ask(&store, Stop).await;
}

#[actix::test]
async fn a_session_is_found_by_the_id_of_its_present_conversation() {
    let folder = Folder::new();
    let store = folder.store().await;
    let find = async |id: &str| {
        ask(&store, FindSession { id: id.into(), owner: Owner::Admins, among: Among::OwnConversations }).await
    };
    let id = async || ask(&store, ReadRow(key("a"))).await.unwrap().session_id;
    let made = vec![logged(1, None, Event::Configured(Box::default()))];
    put(&store, &key("a"), made).await;
    let first = id().await;
    assert_eq!(find(&first).await, Some(key("a")));
    let reset = vec![logged(2, None, Event::Cleared(Forgotten::Conversation))];
    put(&store, &key("a"), reset).await;
    let second = id().await;
    assert_eq!((find(&second).await, find(&first).await), (Some(key("a")), None));
    assert_eq!(second, key("a").conversation_id(1001, Seq(2)));
    ask(&store, Stop).await;
}

#[actix::test]
async fn no_session_takes_the_uuid_of_another() {
    let folder = Folder::new();
    let store = folder.store().await;
    let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
    let of = |agent: &str| SessionKey::new(agent, "wundr", uuid, "main").unwrap();
    let made = || vec![logged(1, None, Event::Configured(Box::default()))];
    put(&store, &of("main"), made()).await;
    let refused = store.send(append(&of("other"), made(), true)).await.unwrap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused}");
    assert_eq!(load(&store, &of("other"), 1).await, None, "nothing of it is kept");
    let find = async |id: &str, owner: &Owner, among| {
        ask(&store, FindSession { id: id.into(), owner: owner.clone(), among }).await
    };
    let (admins, ada) = (Owner::Admins, Owner::Credential("ada".into()));
    assert_eq!(find(uuid, &admins, Among::All).await, Some(of("main")));
    // Others go on, and those that were given none are found by their own.
    put(&store, &key("ada"), made()).await;
    assert_eq!(find(&key("ada").uuid(), &admins, Among::All).await, Some(key("ada")));
    assert_eq!(find("no such", &admins, Among::All).await, None);
    // Another owner's is another session: nobody's is found in place of one's own, nor by who may not see it.
    let hers = of("main").in_space(&ada);
    put(&store, &hers, made()).await;
    for (owner, among, expected) in [
        (&admins, Among::All, of("main")),
        (&admins, Among::Own, of("main")),
        (&ada, Among::Own, hers.clone()),
        (&admins, Among::OwnConversations, of("main")),
        (&ada, Among::OwnConversations, hers.clone()),
    ] {
        assert_eq!(find(uuid, owner, among).await, Some(expected), "{owner:?} {among:?}");
    }
    let only_hers = key("only").in_space(&ada);
    put(&store, &only_hers, made()).await;
    assert_eq!(find(&only_hers.uuid(), &admins, Among::All).await, Some(only_hers.clone()));
    assert_eq!(find(&only_hers.uuid(), &admins, Among::Own).await, None);
    assert_eq!(find(&only_hers.uuid(), &Owner::Credential("bob".into()), Among::Own).await, None);
    ask(&store, Stop).await;
}

#[actix::test]
async fn many_sessions_at_once_share_commits_and_keep_their_order() {
    let folder = Folder::new();
    let store = folder.store().await;
    let (sessions, pieces) = (50, 40_u64);
    let all = (0..sessions).flat_map(|i| {
        let run = format!("r{i}");
        (1..=pieces + 3).map(move |seq| {
            let event = match seq {
                1 => prompt("go", None),
                seq if seq == pieces + 2 => step_ended(),
                seq if seq == pieces + 3 => ended(Outcome::Completed),
                seq => Event::Text(format!("{i}.{seq} ")),
            };
            let reserve = (seq == 1).then_some(Seq(1000));
            Append { reserve, ..append(&key(&run), of_run(seq, &run, vec![event]), false) }
        })
    });
    for result in join_all(all.map(|append| store.send(append))).await {
        result.unwrap().unwrap();
    }
    for i in 0..sessions {
        let run = format!("r{i}");
        let events = read(&store, &key(&run), 0).await;
        let whole: String = (2..=pieces + 1).map(|seq| format!("{i}.{seq} ")).collect();
        assert_eq!(events.len(), 4, "{events:?}");
        assert_eq!(
            events[1],
            Logged { first_seq: Seq(2), ..logged(pieces + 1, Some(&run), Event::Text(whole)) }
        );
    }
    let seen = store.send(Observe).await.unwrap().state;
    let (commits, writes) = (seen["commits"].as_u64().unwrap(), seen["writes"].as_u64().unwrap());
    assert_eq!(writes, sessions * (pieces + 3));
    assert!(commits < writes / 2, "{commits} commits for {writes} writes");
    assert_eq!((seen["queue"].as_u64(), seen["queue_bytes"].as_u64()), (Some(0), Some(0)), "{seen}");
    assert_eq!(seen["streaming_steps"].as_u64(), Some(0));
    ask(&store, Stop).await;
    let db = rusqlite::Connection::open(folder.path()).unwrap();
    let pages: i64 = db.query_row("SELECT count(*) FROM deltas", [], |row| row.get(0)).unwrap();
    assert_eq!(pages, 0, "no step streams, so no page is kept");
}

#[actix::test]
async fn the_write_ahead_log_begins_anew_however_busy_the_writer_is() {
    let folder = Folder::new();
    let store = folder.store().await;
    let wal = folder.folder.path().join("clawmux.db-wal");
    // Never a moment without a write: two sessions take turns and neither waits for the other.
    let stream = |i: u64| {
        let store = store.clone();
        async move {
            let run = format!("r{i}");
            for seq in 1..=400 {
                let event = if seq == 1 { prompt("go", None) } else { text(&"x".repeat(100_000)) };
                let reserve = (seq == 1).then_some(Seq(1000));
                let piece = append(&key(&run), of_run(seq, &run, vec![event]), false);
                ask(&store, Append { reserve, ..piece }).await;
            }
        }
    };
    futures::join!(stream(0), stream(1), stream(2));
    let (bytes, written) = (wal.metadata().unwrap().len(), 1200 * 100_000);
    let seen = store.send(Observe).await.unwrap().state;
    assert!(bytes < written * 3 / 4, "{bytes} bytes for {written} written: {seen}");
    ask(&store, Stop).await;
    assert!(wal.metadata().map_or(0, |meta| meta.len()) == 0, "what is closed is one file");
}

#[actix::test]
async fn sessions_are_listed_by_use_and_owner() {
    let folder = Folder::new();
    let store = folder.store().await;
    let ci = Owner::Credential("ci".into());
    for (i, owner) in [Owner::Admins, ci.clone(), Owner::Admins].into_iter().enumerate() {
        let run = format!("r{i}");
        let mut events = of_run(1, &run, vec![prompt("hi", None), ended(Outcome::Completed)]);
        events[0].at = Timestamp::from_millis(10 * i as u64);
        events[1].at = Timestamp::from_millis(100 - i as u64);
        if i == 2 {
            events.pop();
        }
        put(&store, &key(&run).in_space(&owner), events).await;
    }
    let list = async |limit, owner| {
        let listed = ask(&store, ListSessions { limit, owner, prefix: None, before: None }).await;
        listed
            .into_iter()
            .map(|s| (s.summary.session, s.summary.updated.as_millis(), s.summary.running, s.owner))
            .collect::<Vec<_>>()
    };
    let (a, b, c) = (
        (key("r0"), 100, false, Owner::Admins),
        (key("r1").in_space(&ci), 99, false, ci.clone()),
        (key("r2"), 20, true, Owner::Admins),
    );
    assert_eq!(list(9, None).await, [a.clone(), b.clone(), c.clone()]);
    assert_eq!(list(1, None).await, std::slice::from_ref(&a));
    assert_eq!(list(9, Some(ci)).await, std::slice::from_ref(&b));
    assert_eq!(list(9, Some(Owner::Admins)).await, [a.clone(), c.clone()]);

    // Page by page, also where several were used at one moment.
    for run in ["r3", "r4"] {
        let mut events = of_run(1, run, vec![prompt("hi", None)]);
        events[0].at = Timestamp::from_millis(20);
        put(&store, &key(run), events).await;
    }
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = ask(&store, ListSessions { limit: 2, owner: None, prefix: None, before }).await;
        let Some(last) = page.last() else { break };
        before = Some(last.place);
        seen.extend(page.into_iter().map(|s| (s.summary.session, s.head, s.prompts)));
    }
    let one = |run: &str, head| (key(run), Seq(head), 1);
    let of_ci = (b.0.clone(), Seq(2), 1);
    assert_eq!(seen, [one("r0", 2), of_ci, one("r4", 1), one("r3", 1), one("r2", 1)]);

    let beginning = async |prefix: &str, limit| {
        let prefix = Some(prefix.to_owned());
        let listed = ask(&store, ListSessions { limit, owner: None, prefix, before: None }).await;
        listed.into_iter().map(|s| s.summary.session).collect::<Vec<_>>()
    };
    let r1 = b.0.clone();
    assert_eq!(beginning(&r1.as_str()[..r1.as_str().len() - 5], 9).await, std::slice::from_ref(&r1));
    assert_eq!(beginning(r1.as_str(), 9).await, [r1]);
    assert_eq!(beginning("", 2).await.len(), 2);
    assert_eq!(beginning("main:test:%", 9).await, [], "no pattern of the database");
    ask(&store, Stop).await;
}

#[actix::test]
async fn calls_that_were_under_way_at_the_end_count_as_spent_once() {
    let folder = Folder::new();
    let store = folder.store().await;
    put(&store, &key("a"), of_run(1, "r", vec![prompt("hi", None)])).await;
    let reserved = UsageRecord {
        session: key("a"),
        run: "r".into(),
        agent: "main".into(),
        provider: "offline".into(),
        model: "m".into(),
        usage: Usage::new(100, 50),
        cost: Some(Money::from_nanos(30)),
        changed: None,
        at: Timestamp::from_millis(10),
    };
    for call in [7, 8] {
        ask(&store, BeginCall { call, reserved: reserved.clone() }).await;
    }
    ask(&store, RecordUsage { call: 8, records: Vec::new() }).await;
    let days = UsageSince { day_start: Timestamp::default(), month_start: Timestamp::default() };
    assert_eq!(ask(&store, days).await.day.calls, 0, "what is under way is not spent yet");
    ask(&store, Stop).await;
    for _ in 0..2 {
        let store = folder.store().await;
        let day = ask(&store, days).await.day;
        assert_eq!((day.usage, day.calls, day.cost), (Usage::new(100, 50), 1, Money::from_nanos(30)));
        assert_eq!(load(&store, &key("a"), 0).await.unwrap().spent, Usage::new(100, 50));
        ask(&store, Stop).await;
    }
}

#[actix::test]
async fn usage_is_summed_by_session_and_since_a_time() {
    let folder = Folder::new();
    let store = folder.store().await;
    put(&store, &key("a"), of_run(1, "r", vec![prompt("hi", None)])).await;
    const DAY: u64 = 86_400_000;
    for (session, at, input_tokens) in
        [("a", 10, 1), ("a", 20, 10), ("b", 30, 100), ("b", DAY + 5, 1000), ("b", 2 * DAY, 10_000)]
    {
        let record = UsageRecord {
            session: key(session),
            run: "r".into(),
            agent: "main".into(),
            provider: "offline".into(),
            model: "m".into(),
            usage: Usage { cache_read_tokens: input_tokens, ..Usage::new(input_tokens, 2 * input_tokens) },
            cost: (session == "a").then(|| Money::from_nanos(input_tokens)),
            changed: None,
            at: Timestamp::from_millis(at),
        };
        ask(&store, RecordUsage { call: 1, records: vec![record] }).await;
    }
    let usage = |input_tokens| Usage {
        cache_read_tokens: input_tokens,
        ..Usage::new(input_tokens, 2 * input_tokens)
    };
    let a = load(&store, &key("a"), 0).await.unwrap();
    assert_eq!((a.spent, a.cost), (usage(11), Money::from_nanos(11)));
    let since = async |at| {
        let at = Timestamp::from_millis(at);
        ask(&store, UsageSince { day_start: at, month_start: Timestamp::default() }).await
    };
    let all = since(20).await.day;
    assert_eq!((all.usage, all.calls, all.unpriced, all.cost), (usage(11_111), 5, 3, Money::from_nanos(11)));
    for (at, expected) in [(DAY, 11_000), (2 * DAY, 10_000), (3 * DAY, 0), (u64::MAX, 0)] {
        assert_eq!(since(at).await.day.usage, usage(expected), "since {at}");
    }
    let days = UsageSince { day_start: Timestamp::from_millis(2 * DAY), month_start: Timestamp::default() };
    let spent = ask(&store, ReadSpent(days)).await;
    let one = |tokens, cost| Spent { tokens, cost: Money::from_nanos(cost) };
    assert_eq!(
        spent,
        [SpentBy {
            agent: "main".into(),
            principal: Owner::Admins,
            day: one(30_000, 0),
            month: one(33_333, 11)
        }]
    );

    let by = async |group, since, limit| {
        let since = Timestamp::from_millis(since);
        let shares = ask(&store, UsageBy { since, group, limit }).await;
        shares
            .into_iter()
            .map(|share| {
                (share.of, share.tally.usage.input_tokens, share.tally.calls, share.last.as_millis())
            })
            .collect::<Vec<_>>()
    };
    let row = |of: &str, tokens, calls, last| (of.to_owned(), tokens, calls, last);
    let days = [
        row("1970-01-03", 10_000, 1, 2 * DAY),
        row("1970-01-02", 1000, 1, DAY + 5),
        row("1970-01-01", 111, 3, 30),
    ];
    assert_eq!(by(UsageGroup::Day, 0, 9).await, days);
    assert_eq!(by(UsageGroup::Day, DAY, 1).await, days[..1]);
    let (a, b) = (key("a"), key("b"));
    let sessions = [row(b.as_str(), 11_100, 3, 2 * DAY), row(a.as_str(), 11, 2, 20)];
    assert_eq!(by(UsageGroup::Session, 0, 9).await, sessions, "who spent most comes first");
    assert_eq!(by(UsageGroup::Agent, 0, 9).await, [row("main", 11_111, 5, 2 * DAY)]);
    assert_eq!(by(UsageGroup::Model, 3 * DAY, 9).await, []);
    assert_eq!(by(UsageGroup::Model, DAY, 9).await, [row("offline/m", 11_000, 2, 2 * DAY)]);
    ask(&store, Stop).await;
}

#[actix::test]
async fn a_second_daemon_on_one_database_is_refused() {
    let folder = Folder::new();
    let store = folder.store().await;
    let error = Store::open(folder.path()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("another clawmux"), "{error}");
    ask(&store, Stop).await;
    Store::open(folder.path()).await.unwrap();
    let error = Store::open(folder.path().join("no/such/folder")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
}

#[actix::test]
async fn what_prompts_bring_along_is_read_by_who_wakes_the_session_and_by_nobody_else() {
    let folder = Folder::new();
    let (mut store, session) = (folder.store().await, key("a"));
    let large = PAST_IMAGE_BYTES_MAX / 2 - 1;
    let brings = |number, attachments: Vec<Attachment>| Event::Prompted {
        content: format!("prompt {number}"),
        owner: Owner::Admins,
        idempotency_key: None,
        attachments,
        run_options: Some(Thinking::Low).into(),
    };
    let mut seq = 1;
    for number in 0..3 {
        let prompted = brings(number, vec![file("a,b"), image(number, large)]);
        let events = vec![prompted, Event::Started, text("nice"), step_ended(), ended(Outcome::Completed)];
        let events = of_run(seq, &format!("r{number}"), events);
        seq += events.len() as u64;
        put(&store, &session, events).await;
    }
    let unanswered =
        vec![brings(3, vec![image(3, 50)]), Event::Started, ended(Outcome::Aborted(Cause::Asked))];
    put(&store, &session, of_run(seq, "r3", unanswered)).await;
    let waits = of_run(seq + 3, "r4", vec![brings(4, vec![image(4, 3 * large), file("x")])]);
    put(&store, &session, waits).await;
    for is_reopened in [false, true] {
        if is_reopened {
            store = folder.reopened(&store).await;
        }
        let loaded = load(&store, &session, 9).await.unwrap();
        let mut held = loaded.events.iter().filter_map(|logged| match &logged.event {
            Event::Prompted {
                attachments,
                run_options: RunOptions { thinking: Some(Thinking::Low), .. },
                ..
            } => Some(attachments),
            _ => None,
        });
        let whole: Vec<Vec<bool>> =
            held.clone().map(|of| of.iter().map(|a| a.bytes() == a.data().len()).collect()).collect();
        assert_eq!(
            whole,
            [vec![true, false], vec![true, true], vec![true, true], vec![false], vec![false, false]],
            "the newest images that fit, and nothing of what waits and is large"
        );
        assert!(held.next_back().is_some());
        let aside: Vec<_> = loaded.aside.iter().map(|(run, bytes)| (run.as_str(), *bytes > large)).collect();
        assert_eq!(aside, [("r4", true)]);
        let (_, brought) =
            ask(&store, ReadPrompt { session: session.clone(), seq: Seq(seq + 3) }).await.unwrap();
        assert_eq!(brought, [image(4, 3 * large), file("x")]);

        let told = read(&store, &session, 0).await;
        let bytes: usize = told.iter().map(|logged| logged.event.bytes()).sum();
        assert!(bytes < 4096, "{bytes} bytes of {told:?}");
        let history = ask(&store, page(&session, 1, None, 10_000)).await;
        let named: Vec<_> =
            history.messages[0].attachments.iter().map(|a| (a.name(), a.media_type(), a.bytes())).collect();
        assert_eq!(named, [(Some("a.jpg"), "image/jpeg", 3 * large), (None, "text/csv", 1)]);
        assert!(history.messages[0].attachments.iter().all(|a| a.data().is_empty()));
    }
    ask(&store, Stop).await;
}

// ---- against a model ----

/// What to do, in terms that make sense in every state: numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Append { session: usize, acts: Vec<Act>, durable: bool, reserve: Option<u64> },
    Wrong { session: usize, off: i64 },
    Load { session: usize, runs: usize },
    Read { session: usize, after: u64, run: Option<usize>, max_bytes: usize },
    History { session: usize, limit: usize },
    Transcript { session: usize, limit: usize, at: Option<u64> },
    Cut { session: usize, keep: usize },
    Turn { session: usize, turns: usize },
    Delete { session: usize },
    Reopen,
}

#[derive(Clone, Debug)]
enum Act {
    Prompt(Option<u8>, bool),
    /// The first that waits, where none is under way.
    Start,
    Text(usize, String),
    Thought(usize, String),
    Tool(usize),
    StepEnd(usize),
    Restart(usize),
    End(usize, u8),
    Clear(Option<u64>),
    Reset,
    Inject,
    Configure(Option<u8>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (proptest::option::weighted(0.2, 0u8..4), proptest::bool::weighted(0.3))
            .prop_map(|(key, brings)| Act::Prompt(key, brings)),
        4 => (0usize..4, "[a-zİ]{0,5}").prop_map(|(run, text)| Act::Thought(run, text)),
        3 => Just(Act::Start),
        8 => (0usize..4, "[a-zİ]{0,5}").prop_map(|(run, text)| Act::Text(run, text)),
        1 => (0usize..4).prop_map(Act::Tool),
        2 => (0usize..4).prop_map(Act::StepEnd),
        1 => (0usize..4).prop_map(Act::Restart),
        2 => (0usize..4, 0u8..4).prop_map(|(run, how)| Act::End(run, how)),
        1 => proptest::option::of(0u64..30).prop_map(Act::Clear),
        1 => prop_oneof![3 => Just(Act::Inject), 1 => Just(Act::Reset)],
        1 => proptest::option::of(0u8..3).prop_map(Act::Configure),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let session = || 0usize..3;
    prop_oneof![
        8 => (session(), proptest::collection::vec(act(), 1..5), any::<bool>(), proptest::option::weighted(0.2, 0u64..9))
            .prop_map(|(session, acts, durable, reserve)| Step::Append { session, acts, durable, reserve }),
        1 => (session(), prop_oneof![-2i64..=0, 2i64..4]).prop_map(|(session, off)| Step::Wrong { session, off }),
        2 => (session(), 0usize..4).prop_map(|(session, runs)| Step::Load { session, runs }),
        3 => (session(), 0u64..40, proptest::option::weighted(0.3, 0usize..6), prop_oneof![Just(usize::MAX), 1usize..300])
            .prop_map(|(session, after, run, max_bytes)| Step::Read { session, after, run, max_bytes }),
        2 => (session(), 0usize..6).prop_map(|(session, limit)| Step::History { session, limit }),
        3 => (session(), 0usize..9, proptest::option::of(0u64..40))
            .prop_map(|(session, limit, at)| Step::Transcript { session, limit, at }),
        1 => (session(), 0usize..9).prop_map(|(session, keep)| Step::Cut { session, keep }),
        2 => (session(), 0usize..5).prop_map(|(session, turns)| Step::Turn { session, turns }),
        1 => session().prop_map(|session| Step::Delete { session }),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Clone, Debug, Default)]
struct ModelSession {
    log: Vec<Logged>,
    reserved: u64,
    /// Whether it was written to since the last start.
    current: bool,
    /// Runs in order of their prompts, and whether they ended.
    runs: Vec<(RunId, bool)>,
}

impl ModelSession {
    fn head(&self) -> u64 {
        self.log.last().map_or(0, |logged| logged.seq.0)
    }

    fn next(&self) -> u64 {
        if self.current { self.head() + 1 } else { self.head().max(self.reserved) + 1 }
    }

    fn open(&self) -> Vec<RunId> {
        self.runs.iter().filter(|(_, over)| !over).map(|(run, _)| run.clone()).collect()
    }

    /// What ended up to this number is forgotten.
    fn cleared(&self) -> u64 {
        let cleared = self.log.iter().filter_map(|logged| match logged.event {
            Event::Cleared(Forgotten::UpTo(seq)) => Some(seq.0),
            Event::Cleared(_) => Some(logged.seq.0),
            _ => None,
        });
        cleared.max().unwrap_or(0)
    }

    fn of<'a>(&'a self, run: &'a RunId) -> impl DoubleEndedIterator<Item = &'a Logged> {
        self.log.iter().filter(move |logged| logged.run.as_ref() == Some(run))
    }

    /// When something of a run happened.
    fn when(&self, run: &RunId, what: impl Fn(&Event) -> bool) -> Option<u64> {
        self.of(run).find(|logged| what(&logged.event)).map(|logged| logged.seq.0)
    }

    fn ended(&self, run: &RunId) -> Option<u64> {
        self.when(run, |event| matches!(event, Event::Ended { .. } | Event::Injected { .. }))
    }

    fn started(&self, run: &RunId) -> Option<u64> {
        self.when(run, |event| *event == Event::Started)
    }

    /// Runs that are not forgotten, in the order of their prompts.
    fn remembered(&self) -> impl Iterator<Item = &RunId> {
        let cleared = self.cleared();
        let runs = self.runs.iter().map(|(run, _)| run);
        runs.filter(move |run| self.ended(run).is_none_or(|ended| ended > cleared))
    }

    /// What was said in a run up to a number, and where its step under way begins.
    fn said(&self, run: &RunId, from: u64, up_to: u64) -> (String, usize) {
        let (mut said, mut valid) = (String::new(), 0);
        for logged in self.of(run).filter(|logged| (from..=up_to).contains(&logged.seq.0)) {
            match &logged.event {
                Event::Text(text) if !text.is_empty() && valid > 0 && said.len() == valid => {
                    said.push_str("\n\n");
                    said.push_str(text);
                }
                Event::Text(text) => said.push_str(text),
                Event::StepEnded { .. } => valid = said.len(),
                Event::Restarted => said.truncate(valid),
                _ => {}
            }
        }
        (said, valid)
    }

    /// Every message that is remembered: who, what, why not.
    fn told(&self) -> Vec<(&'static str, String, &Logged)> {
        let mut told = Vec::new();
        for run in self.remembered() {
            for logged in self.of(run) {
                match &logged.event {
                    Event::Prompted { content, .. } => told.push(("user", content.clone(), logged)),
                    Event::ToolReturned(result) => told.push(("tool", result.content.clone(), logged)),
                    Event::Injected { content } => told.push(("assistant", content.clone(), logged)),
                    Event::Ended { outcome, .. } => {
                        let (said, _) = self.said(run, 0, u64::MAX);
                        if !said.is_empty() || matches!(outcome, Outcome::Failed(_)) {
                            told.push(("assistant", said, logged));
                        }
                    }
                    _ => {}
                }
            }
        }
        told
    }

    fn history(&self, limit: usize) -> Vec<Message> {
        let told = self
            .told()
            .into_iter()
            .filter(|(who, said, _)| *who != "tool" && !(*who == "assistant" && said.is_empty()));
        let messages: Vec<Message> = told
            .map(|(who, content, logged)| Message {
                role: if who == "user" { Role::User } else { Role::Assistant },
                content,
                at: logged.at,
                run: logged.run.clone().unwrap(),
                clipped: false,
                attachments: match without_data(logged).event {
                    Event::Prompted { attachments, .. } => attachments,
                    _ => Vec::new(),
                },
            })
            .collect();
        messages[messages.len().saturating_sub(limit)..].to_vec()
    }

    /// The run under way at a number, and what it had said by then.
    fn under_way(&self, at: u64) -> Option<(RunId, String, usize, Timestamp)> {
        let run = self.runs.iter().map(|(run, _)| run).find(|run| {
            self.started(run).is_some_and(|started| started <= at)
                && self.ended(run).is_none_or(|ended| ended > at)
        })?;
        let started = self.of(run).find(|logged| logged.event == Event::Started)?;
        let (said, valid) = self.said(run, started.seq.0, at);
        Some((run.clone(), said, valid, started.at))
    }

    fn settings(&self) -> Settings {
        let last = self.log.iter().rev().find_map(|logged| match &logged.event {
            Event::Configured(settings) => Some((**settings).clone()),
            _ => None,
        });
        last.unwrap_or_default()
    }

    /// In the order in which prompts and answers belong together.
    fn load(&self, runs: usize) -> Vec<Logged> {
        let of = |logged: &Logged, run: &RunId| logged.run.as_ref() == Some(run);
        let answered = |run: &RunId| {
            let (mut said, mut answered) = (false, false);
            for logged in self.log.iter().filter(|logged| of(logged, run)) {
                match logged.event {
                    Event::Text(_) => said = true,
                    Event::ToolCalled(_) => answered = true,
                    Event::Restarted => said = false,
                    Event::StepEnded { .. } | Event::Ended { .. } => answered |= said,
                    _ => {}
                }
            }
            answered
        };
        let cleared = self.cleared();
        let ended = self
            .log
            .iter()
            .filter(|logged| matches!(logged.event, Event::Ended { .. }) && logged.seq.0 > cleared)
            .filter_map(|logged| logged.run.clone());
        let injected: Vec<RunId> = self
            .log
            .iter()
            .filter(|logged| matches!(logged.event, Event::Injected { .. }) && logged.seq.0 > cleared)
            .filter_map(|logged| logged.run.clone())
            .collect();
        let begun = |run: &RunId| {
            self.log.iter().any(|logged| of(logged, run) && matches!(logged.event, Event::Started))
        };
        let (said, rest): (Vec<RunId>, Vec<RunId>) = ended.partition(answered);
        let silent: Vec<RunId> = rest.into_iter().filter(begun).collect();
        let newest = |done: Vec<RunId>| done[done.len().saturating_sub(runs)..].to_vec();
        let mut wanted: HashSet<RunId> =
            newest(said).into_iter().chain(newest(silent)).chain(newest(injected)).collect();
        wanted.extend(self.open());
        // Nobody is shown what a prompt without an answer brought along, unless it is yet to be answered.
        let shown = |logged: &Logged| {
            let run = logged.run.as_ref();
            run.is_some_and(|run| self.open().contains(run) || answered(run))
        };
        let log = coalesced(
            self.log.iter().filter(|logged| logged.run.as_ref().is_some_and(|run| wanted.contains(run))),
        );
        log.into_iter().map(|logged| if shown(&logged) { logged } else { without_data(&logged) }).collect()
    }
}

/// An event as it is read by all but who wakes a session.
fn without_data(logged: &Logged) -> Logged {
    let mut logged = logged.clone();
    logged.event.let_go();
    logged
}

fn image(number: u64, bytes: usize) -> Attachment {
    let mut data = b"\xff\xd8\xff".to_vec();
    data.extend(number.to_le_bytes());
    data.resize(bytes, 7);
    Attachment::new(Some("a.jpg"), Some("image/jpeg"), data.into()).unwrap()
}

fn file(text: &str) -> Attachment {
    Attachment::new(None, Some("text/csv"), text.to_owned().into()).unwrap()
}

/// Pieces of text or thoughts of one run whose numbers follow each other, in one; they are small here.
fn coalesced<'a>(log: impl Iterator<Item = &'a Logged>) -> Vec<Logged> {
    let mut out: Vec<Logged> = Vec::new();
    for logged in log {
        if let (Some(last), Some((of, piece))) = (out.last_mut(), logged.event.streamed())
            && last.run == logged.run
            && last.seq.next() == logged.first_seq
            && last.event.streamed().is_some_and(|(last, _)| last == of)
            && let Event::Text(text) | Event::Thought(text) = &mut last.event
        {
            text.push_str(piece);
            (last.seq, last.at) = (logged.seq, logged.at);
            continue;
        }
        out.push(logged.clone());
    }
    out
}

/// Which run of which session an idempotency key stands for.
type Keys = HashMap<u8, (usize, RunId, Seq)>;

#[derive(Default)]
struct Model {
    sessions: HashMap<usize, ModelSession>,
    keys: Keys,
    run_count: usize,
}

impl Model {
    /// The append that these acts come to, what the model is after it, and whether it is taken.
    fn plan(
        &mut self,
        session: usize,
        acts: &[Act],
        durable: bool,
        reserve: Option<u64>,
    ) -> (Append, ModelSession, Keys, bool) {
        let mut after = self.sessions.get(&session).cloned().unwrap_or_default();
        let (mut keys, mut fine) = (self.keys.clone(), true);
        let mut next = if after.log.is_empty() { 1 } else { after.next() };
        let mut events = Vec::new();
        for act in acts {
            let open = after.open();
            let pick = |at: usize| open.get(at % open.len().max(1)).cloned();
            let (run, event) = match act {
                Act::Prompt(idempotency, brings) => {
                    self.run_count += 1;
                    let run = RunId::new(format!("run-{}", self.run_count));
                    after.runs.push((run.clone(), false));
                    if let Some(name) = idempotency {
                        fine &= keys.insert(*name, (session, run.clone(), Seq(next))).is_none();
                    }
                    let name = idempotency.map(|name| name.to_string());
                    let mut event = prompt(&format!("p{next}"), name.as_deref());
                    if let (true, Event::Prompted { attachments, run_options, .. }) = (*brings, &mut event) {
                        attachments.extend([image(next, 20), file(&format!("file {next}"))]);
                        run_options.thinking = Some(Thinking::High);
                    }
                    (Some(run), event)
                }
                Act::Clear(None) => (None, Event::Cleared(Forgotten::Past)),
                Act::Clear(Some(back)) => {
                    (None, Event::Cleared(Forgotten::UpTo(Seq(next.saturating_sub(*back)))))
                }
                Act::Reset => (None, Event::Cleared(Forgotten::Conversation)),
                Act::Configure(label) => {
                    let label = label.map(|label| label.to_string());
                    (None, Event::Configured(Box::new(Settings { label, ..Settings::default() })))
                }
                Act::Inject => {
                    self.run_count += 1;
                    let run = RunId::new(format!("inject-{}", self.run_count));
                    after.runs.push((run.clone(), true));
                    (Some(run), Event::Injected { content: format!("note {next}") })
                }
                Act::Start => {
                    let is_running = |run: &&RunId| after.started(run).is_some();
                    let first = open.iter().find(|run| after.started(run).is_none());
                    (first.filter(|_| !open.iter().any(|run| is_running(&run))).cloned(), Event::Started)
                }
                Act::Tool(at) => {
                    let result =
                        ToolResult { call: "c".into(), content: format!("t{next}"), is_error: false };
                    (pick(*at), Event::ToolReturned(result))
                }
                Act::Text(at, piece) => (pick(*at), text(piece)),
                Act::Thought(at, piece) => (pick(*at), Event::Thought(piece.clone())),
                Act::StepEnd(at) => (pick(*at), step_ended()),
                Act::Restart(at) => (pick(*at), Event::Restarted),
                Act::End(at, how) => {
                    let outcome = match how {
                        0 => Outcome::Aborted(Cause::Asked),
                        1 => Outcome::Failed(ErrorCode::Provider.error("away")),
                        _ => Outcome::Completed,
                    };
                    (pick(*at), ended(outcome))
                }
            };
            if run.is_none() && !matches!(event, Event::Cleared(_) | Event::Configured(_)) {
                continue;
            }
            if let Event::Ended { .. } = event {
                after
                    .runs
                    .iter_mut()
                    .filter(|(known, _)| Some(known) == run.as_ref())
                    .for_each(|(_, over)| *over = true);
            }
            let logged = logged(next, run.as_ref().map(RunId::as_str), event);
            after.log.push(logged.clone());
            events.push(logged);
            next += 1;
        }
        let reserve = reserve.map(|ahead| Seq(after.head() + ahead));
        fine &= !after.log.is_empty();
        after.reserved = after.reserved.max(reserve.map_or(0, |reserve| reserve.0));
        after.current |= !events.is_empty();
        (Append { reserve, ..append(&numbered(session), events, durable) }, after, keys, fine)
    }
}

/// Places, ids, what was said and what the list says of the session.
fn is_the_transcript(
    found: &Transcript,
    known: &ModelSession,
    limit: usize,
    at: Option<Seq>,
) -> Result<(), TestCaseError> {
    let told = known.told();
    prop_assert_eq!((found.total, found.head.0), (told.len() as u64, known.head()));
    let first = told.len().saturating_sub(limit);
    prop_assert_eq!(found.entries.len(), told.len() - first);
    let mut ids = HashSet::new();
    for (entry, ((who, said, logged), place)) in
        found.entries.iter().zip(told[first..].iter().zip(first as u64 + 1..))
    {
        let role = match &entry.said {
            Said::User { .. } => "user",
            Said::Assistant { .. } => "assistant",
            Said::Tool { .. } => "tool",
        };
        prop_assert_eq!(
            (entry.place, role, entry.said.text(), entry.at),
            (place, *who, said.as_str(), logged.at)
        );
        prop_assert!(ids.insert(entry.id.clone()), "{} twice", entry.id);
    }
    let now = known.head();
    let due = known.under_way(at.map_or(now, |at| at.0.min(now)));
    let under_way = found.under_way.as_ref();
    prop_assert_eq!(under_way.map(|u| (u.run.clone(), u.text.clone(), u.step_at, u.started)), due);
    let row = found.row.as_ref().expect("a session that is there has a row");
    prop_assert_eq!(&row.settings, &known.settings());
    let begun = known.log.iter().rev().find(|l| l.event == Event::Cleared(Forgotten::Conversation));
    let id = row.session.conversation_id(row.created.as_millis(), begun.map_or(Seq(0), |logged| logged.seq));
    prop_assert_eq!(&row.session_id, &id);
    prop_assert_eq!(row.running.len(), known.open().len());
    let last = known.runs.iter().rev().find_map(|(run, _)| Some((run, known.started(run)?)));
    let last = last.map(|(run, started)| {
        (known.log.iter().find(|l| l.seq.0 == started).unwrap().at, known.ended(run).is_some())
    });
    prop_assert_eq!(row.last_run.as_ref().map(|run| (run.started, run.ended.is_some())), last);
    Ok(())
}

async fn follows_the_model(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let folder = Folder::new();
    let mut store = folder.store().await;
    let mut model = Model::default();
    for step in steps {
        let blank = ModelSession::default();
        match step {
            Step::Append { session, acts, durable, reserve } => {
                let (append, after, keys, fine) = model.plan(session, &acts, durable, reserve);
                let result: Result<(), Error> = store.send(append.clone()).await.unwrap();
                prop_assert_eq!(result.is_ok(), fine, "{:?} of {:?}", result, append);
                if fine {
                    model.keys = keys;
                    model.sessions.insert(session, after);
                }
            }
            Step::Wrong { session, off } => {
                let known = model.sessions.get(&session).unwrap_or(&blank);
                let next = i64::try_from(known.head()).unwrap() + off;
                // Upwards, above the reserve, a gap is allowed in a session that is there.
                if next > i64::try_from(known.head().max(known.reserved)).unwrap() && !known.log.is_empty() {
                    continue;
                }
                let events = of_run(u64::try_from(next).unwrap_or(0), "wrong", vec![prompt("x", None)]);
                let result = store.send(append(&numbered(session), events, false)).await.unwrap();
                prop_assert!(result.is_err(), "number {} after {:?}", next, known);
            }
            Step::Load { session, runs } => {
                let found = load(&store, &numbered(session), runs).await;
                let expected = model.sessions.get(&session);
                prop_assert_eq!(found.is_some(), expected.is_some());
                if let (Some(found), Some(expected)) = (found, expected) {
                    prop_assert_eq!(found.events, expected.load(runs));
                    prop_assert_eq!((found.head.0, found.reserved.0), (expected.head(), expected.reserved));
                }
            }
            Step::Read { session, after, run, max_bytes } => {
                let known = model.sessions.get(&session).unwrap_or(&blank);
                let run = run
                    .filter(|_| !known.runs.is_empty())
                    .map(|at| known.runs[at % known.runs.len()].0.clone());
                let wanted = known.log.iter().filter(|l| l.seq.0 > after && (run.is_none() || l.run == run));
                let expected: Vec<Logged> = coalesced(wanted).iter().map(without_data).collect();
                let found = ask(&store, since(&numbered(session), after, run, max_bytes)).await;
                prop_assert_eq!(&found[..], &expected[..found.len()]);
                prop_assert!(max_bytes != usize::MAX || found.len() == expected.len());
                prop_assert!(expected.is_empty() || !found.is_empty());
            }
            Step::History { session, limit } => {
                let known = model.sessions.get(&session).unwrap_or(&blank);
                let found = ask(&store, page(&numbered(session), limit, None, usize::MAX)).await;
                prop_assert_eq!(found.messages, known.history(limit));
            }
            Step::Transcript { session, limit, at } => {
                let known = model.sessions.get(&session);
                let at = at.map(Seq);
                let (session, bytes_max) = (numbered(session), usize::MAX);
                let found = ask(&store, ReadTranscript { session, limit, bytes_max, at }).await;
                prop_assert_eq!(found.is_some(), known.is_some());
                if let (Some(found), Some(known)) = (found, known) {
                    is_the_transcript(&found, known, limit, at)?;
                }
            }
            Step::Cut { session, keep } => {
                let known = model.sessions.get(&session).unwrap_or(&blank);
                let found = ask(&store, FindCut { session: numbered(session), keep }).await;
                let total = known.told().len();
                let Some(Cut { up_to, kept, forgotten }) = found else {
                    let ends = known.remembered().filter(|run| known.ended(run).is_some()).count();
                    prop_assert!(keep > 0 || ends == 0, "{ends} runs ended");
                    continue;
                };
                prop_assert_eq!(kept + forgotten, total);
                prop_assert!(kept >= keep);
                let mut after = known.clone();
                after.log.push(logged(after.next(), None, Event::Cleared(Forgotten::UpTo(up_to))));
                prop_assert_eq!(after.told().len(), kept);
            }
            Step::Turn { session, turns } => {
                let known = model.sessions.get(&session).unwrap_or(&blank);
                let found = ask(&store, FindTurn { session: numbered(session), turns }).await;
                let (remembered, open) = (known.remembered().collect::<Vec<_>>(), known.open());
                let last = remembered.iter().rev().take(turns).copied().chain(&open);
                let begins = last.filter_map(|run| known.of(run).next()).map(|logged| logged.seq.0);
                prop_assert_eq!(found, begins.min().map(|begin| Seq(begin - 1)));
            }
            Step::Delete { session } => {
                let known = model.sessions.get(&session);
                let result = store.send(Delete(numbered(session))).await.unwrap();
                let code = result.as_ref().err().map(|error| error.code);
                match known {
                    None => prop_assert_eq!(code, Some(ErrorCode::NotFound)),
                    Some(known) if !known.open().is_empty() => {
                        prop_assert_eq!(code, Some(ErrorCode::Conflict))
                    }
                    Some(_) => {
                        prop_assert_eq!(code, None);
                        model.sessions.remove(&session);
                        model.keys.retain(|_, (of, ..)| *of != session);
                    }
                }
            }
            Step::Reopen => {
                store = folder.reopened(&store).await;
                model.sessions.values_mut().for_each(|session| session.current = false);
            }
        }
    }
    for (name, found) in &model.keys {
        let (session, run, seq) = found.clone();
        prop_assert_eq!(
            ask(&store, run_of(Owner::Admins, &name.to_string())).await,
            Some((numbered(session), run, seq))
        );
    }
    let unfinished: HashSet<SessionKey> = ask(&store, Unfinished).await.into_iter().collect();
    let open = model.sessions.iter().filter(|(_, session)| !session.open().is_empty());
    prop_assert_eq!(unfinished, open.map(|(session, _)| numbered(*session)).collect::<HashSet<_>>());
    ask(&store, Stop).await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_log_does_what_a_list_in_memory_would(steps in proptest::collection::vec(step(), 1..50)) {
        actix::System::new().block_on(follows_the_model(steps))?;
    }
}

// ---- against kill -9 ----

/// Numbers below a bound by xorshift: every run of a test draws the same.
fn drawn_from(mut random: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    }
}

const CHILD: &str = "CLAWMUX_TEST_STORE_CHILD";
const CHILD_SESSIONS: u64 = 4;

/// The process that is killed: runs one after the other in every session, each acknowledged
/// append told on a line of its own.
#[test]
fn child_that_appends_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    actix::System::new().block_on(async {
        let store = Store::start(path).await.unwrap();
        join_all((0..CHILD_SESSIONS).map(|i| appends_for_ever(&store, i))).await;
    });
}

async fn appends_for_ever(store: &Addr<Store>, i: u64) {
    let session = key(&format!("s{i}"));
    let loaded = load(store, &session, 0).await;
    let mut seq = loaded.as_ref().map_or(0, |loaded| loaded.head.max(loaded.reserved).0);
    let mut open: Vec<RunId> = Vec::new();
    for logged in loaded.into_iter().flat_map(|loaded| loaded.events) {
        if let Event::Prompted { .. } = logged.event {
            open.extend(logged.run);
        }
    }
    loop {
        // What the last life left open is ended first.
        let (run, events) = match open.pop() {
            Some(run) => (run, vec![Event::Restarted, text("again"), ended(Outcome::Aborted(Cause::Asked))]),
            None => {
                let run = format!("s{i}-{}", seq + 1);
                let mut events = vec![prompt("go", Some(&run)), Event::Started];
                events.push(Event::Thought(format!("{} ", seq + 1)));
                events.extend((0..7).map(|n| Event::Text(format!("{n}/{} ", seq + 1))));
                events.extend([step_ended(), ended(Outcome::Completed)]);
                (RunId::from(run.as_str()), events)
            }
        };
        for event in events {
            seq += 1;
            let is_text = event.streamed().is_some();
            let reserve = matches!(event, Event::Started | Event::Restarted).then_some(Seq(seq + 20));
            let logged = logged(seq, Some(run.as_str()), event);
            ask(store, Append { reserve, ..append(&session, vec![logged], !is_text) }).await;
            let mut out = std::io::stdout().lock();
            writeln!(out, "acked {i} {seq}").unwrap();
            out.flush().unwrap();
        }
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let folder = Folder::new();
    let mut acked: HashMap<u64, HashSet<u64>> = HashMap::new();
    let mut draw = drawn_from(0x9e37_79b9_7f4a_7c15);
    for round in 0..15 {
        let lines = 1 + draw(400);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_appends_until_it_is_killed", "--exact", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut take = |line: &str| {
            let mut words = line.split(' ').skip_while(|word| !word.ends_with("acked")).skip(1);
            let mut number = || words.next()?.parse::<u64>().ok();
            let (Some(session), Some(seq)) = (number(), number()) else { return false };
            assert!(
                acked.entry(session).or_default().insert(seq),
                "round {round}: {session} {seq} was acked twice"
            );
            true
        };
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut taken) = (String::new(), 0);
        while taken < lines {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "round {round}: the child ended by itself");
            taken += u64::from(take(line.trim_end()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had said before it died counts too; a line that was cut does not.
        loop {
            line.clear();
            if out.read_line(&mut line).unwrap() == 0 {
                break;
            }
            if line.ends_with('\n') {
                take(line.trim_end());
            }
        }
        actix::System::new().block_on(everything_is_there(&folder.path(), &acked, round));
    }
    assert!(acked.values().map(HashSet::len).sum::<usize>() > 1000);
}

async fn everything_is_there(path: &Path, acked: &HashMap<u64, HashSet<u64>>, round: usize) {
    let store = Store::start(path).await.unwrap();
    for (i, acked) in acked {
        let session = key(&format!("s{i}"));
        let events = read(&store, &session, 0).await;
        let (mut last, mut covered) = (0, HashSet::new());
        let mut open: Option<RunId> = None;
        for logged in &events {
            assert!(logged.first_seq.0 > last, "round {round}: {} comes after {last}", logged.first_seq);
            let gap = logged.first_seq.0 - last - 1;
            let is_restart =
                logged.event == Event::Restarted || matches!(logged.event, Event::Prompted { .. });
            // Numbers are passed over only where a new life begins: a restart, or a run after one
            // that had ended when the process died, or whose reserve was left.
            let is_new_life = is_restart || matches!(logged.event, Event::Started | Event::Ended { .. });
            assert!(gap == 0 || is_new_life, "round {round}: {gap} numbers are missing before {logged:?}");
            last = logged.seq.0;
            covered.extend(logged.first_seq.0..=logged.seq.0);
            match &logged.event {
                Event::Prompted { .. } => assert_eq!(std::mem::replace(&mut open, logged.run.clone()), None),
                Event::Ended { .. } => assert_eq!(open.take(), logged.run),
                _ => assert_eq!(open, logged.run),
            }
            if let (Event::Text(text), Some(run)) = (&logged.event, &logged.run)
                && text != "again"
            {
                let first: u64 = run.as_str().rsplit('-').next().unwrap().parse().unwrap();
                let expected: String =
                    (0..logged.seq.0 - logged.first_seq.0 + 1).map(|n| format!("{n}/{first} ")).collect();
                assert_eq!(*text, expected, "round {round}");
            }
        }
        let lost: Vec<_> = acked.difference(&covered).collect();
        assert!(lost.is_empty(), "round {round}: session {i} lost {lost:?}");
    }
    ask(&store, Stop).await;
    let db = rusqlite::Connection::open(path).unwrap();
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "round {round}");
}

// ---- against a power cut ----

/// What a power cut leaves is modelled as the write-ahead log cut off anywhere after what was last
/// synced: so nothing durable may need more of it than there was when it was acknowledged, and no
/// number that was ever acknowledged may come again.
#[actix::test]
async fn a_power_cut_takes_no_durable_event_and_no_number_comes_again() {
    let session = key("a");
    let mut draw = drawn_from(0x2545_f491_4f6c_dd1d);
    let mut lost = 0;
    for round in 0..12 {
        let (folder, rest) = (Folder::new(), Folder::new());
        let beside = |folder: &Folder| folder.folder.path().join("clawmux.db-wal");
        let store = folder.store().await;
        let (mut log, mut durable_head, mut synced_bytes) = (Vec::new(), 0, 0);
        for seq in 1..=30 {
            let (event, durable) = match seq {
                1 => (prompt("hi", Some("k")), true),
                _ if draw(8) == 0 => (Event::Started, true),
                _ => (Event::Text(format!("{seq} ")), false),
            };
            log.push(logged(seq, Some("r"), event));
            let reserve = (seq == 1).then_some(Seq(100));
            let one = append(&session, vec![log[log.len() - 1].clone()], durable);
            ask(&store, Append { reserve, ..one }).await;
            if durable {
                (durable_head, synced_bytes) = (seq, beside(&folder).metadata().unwrap().len());
            }
        }
        let bytes = std::fs::read(beside(&folder)).unwrap();
        let cut = synced_bytes + draw(bytes.len() as u64 - synced_bytes + 1);
        std::fs::copy(folder.path(), rest.path()).unwrap();
        std::fs::write(beside(&rest), &bytes[..usize::try_from(cut).unwrap()]).unwrap();
        ask(&store, Stop).await;

        let store = rest.store().await;
        let loaded = load(&store, &session, 0).await.expect("the session was durable");
        let head = loaded.head.0;
        assert!(head >= durable_head, "round {round}: {head} is left, {durable_head} was durable");
        assert_eq!(loaded.events, coalesced(log.iter().take(usize::try_from(head).unwrap())));
        lost += 30 - head;
        assert_eq!(loaded.reserved, Seq(100), "round {round}");
        assert!(ask(&store, run_of(Owner::Admins, "k")).await.is_some(), "round {round}");
        let at = |seq| append(&session, vec![logged(seq, Some("r"), Event::Restarted)], true);
        store.send(at(head + 1)).await.unwrap().expect_err("a number that a client may have seen");
        ask(&store, at(101)).await;
        ask(&store, Stop).await;
    }
    assert!(lost > 0, "no round lost anything: the model cuts nothing");
}

// ---- against a disk that takes no more ----

const FULL_CHILD: &str = "CLAWMUX_TEST_STORE_FULL_CHILD";

/// The process whose files may not grow: appends until it is refused, then says how that went.
#[test]
fn child_whose_disk_is_full() {
    let Ok(path) = std::env::var(FULL_CHILD) else { return };
    actix::System::new().block_on(async {
        let (store, session) = (Store::start(path).await.unwrap(), key("a"));
        let mut seq = 0;
        let error = loop {
            let run = format!("r{}", seq + 1);
            let events = of_run(seq + 1, &run, vec![prompt(&"x".repeat(10_000), None)]);
            match store.send(append(&session, events, true)).await.unwrap() {
                Ok(()) => seq += 1,
                Err(error) => break error,
            }
            assert!(seq < 10_000, "the disk is never full");
        };
        // What is there can still be read, and others are answered.
        assert_eq!(load(&store, &session, 0).await.unwrap().head, Seq(seq));
        assert_eq!(read(&store, &session, seq - 1).await.len(), 1);
        let failed = store.send(Observe).await.unwrap().state["failed_commits"].as_u64();
        println!("refused-after {seq} {failed:?} {:?} {error}", error.code);
    });
}

#[test]
fn a_full_disk_is_an_answer_and_not_an_end() {
    let folder = Folder::new();
    // A bound on the size of files makes writes fail as a full disk does, once its signal is ignored.
    let out = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2400; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["child_whose_disk_is_full", "--exact", "--nocapture"])
        .env(FULL_CHILD, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let told =
        said.lines().find_map(|line| line.split_once("refused-after ").map(|(_, told)| told.to_owned()));
    let told = told.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&out.stderr)));
    let (seq, how) = told.split_once(' ').unwrap();
    assert!(how.contains("Some(1) Unavailable the store can't be written: "), "{how}");
    let seq: u64 = seq.parse().unwrap();
    assert!(seq > 0);
    // With room again it goes on where it was.
    actix::System::new().block_on(async {
        let (store, session) = (folder.store().await, key("a"));
        assert_eq!(load(&store, &session, 0).await.unwrap().head, Seq(seq));
        let run = format!("r{}", seq + 1);
        let next = of_run(seq + 1, &run, vec![prompt("y", None)]);
        put(&store, &session, next).await;
        ask(&store, Stop).await;
    });
}

#[actix::test]
async fn who_asks_for_much_keeps_nobody_else_waiting() {
    const HISTORIES: usize = 800;
    let (folder, session) = (Folder::new(), key("a"));
    let store = folder.store().await;
    let mut seq = 1;
    for run in 0..40 {
        let said =
            vec![prompt(&"p".repeat(4000), None), Event::Started, text(&"t".repeat(4000)), step_ended()];
        let events = [said, vec![ended(Outcome::Completed)]].concat();
        let count = events.len() as u64;
        ask(&store, append(&session, of_run(seq, &format!("r{run}"), events), false)).await;
        seq += count;
    }
    let (one, other) = (Owner::from_name("one"), Owner::from_name("other"));
    let of_one = || {
        let question = page(&session, 100, None, usize::MAX);
        store.send(AskedBy { owner: one.clone(), question })
    };
    let mut histories: Vec<_> = (0..HISTORIES).map(|_| Box::pin(of_one())).collect();
    let question = ListSessions { limit: 10, owner: Some(other.clone()), prefix: None, before: None };
    let list = ask(&store, AskedBy { owner: other, question }).await;
    assert!(list.is_empty());
    let answered = histories.iter_mut().filter_map(|history| history.as_mut().now_or_never()).count();
    println!("{answered} of {HISTORIES} histories were answered before another owner's list");
    assert!(answered < HISTORIES / 4, "it waited behind {answered}");
}
