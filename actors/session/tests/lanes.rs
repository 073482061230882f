//! Runs of several sessions that take place one at a time, and what an agent sends from one to another.

use clawmux_core::conversation::command::{Abort, AbortLane, SessionCommand};
use clawmux_core::conversation::event::Cause;
use clawmux_core::conversation::lane;
use clawmux_core::conversation::reply::{Aborted, SessionReply};
use clawmux_core::error::ErrorCode;
use clawmux_core::prompt::attachment::Kind;
use clawmux_core::prompt::local_file::{Form, LocalFile};
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::ToolResult;
use serde_json::{Value, json};

use super::*;

fn in_lane(account: &str, content: &str) -> Command {
    let Command::Session(SessionCommand::Submit(submit)) = prompt(account, content, None) else {
        unreachable!("a prompt")
    };
    let run_options = RunOptions { lane: Some(lane::xeno()), ..RunOptions::default() };
    Command::Session(SessionCommand::Submit(Submit { run_options, ..submit }))
}

fn abort_lane() -> Command {
    Command::Session(SessionCommand::AbortLane(AbortLane { lane: lane::xeno() }))
}

fn started(events: &[Logged]) -> Timestamp {
    events.iter().find(|logged| logged.event == Event::Started).expect("it began").at
}

fn outcome(events: &[Logged]) -> &Outcome {
    match &events.last().expect("it ended").event {
        Event::Ended { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    }
}

#[actix::test]
async fn sessions_take_their_turns_in_the_order_in_which_they_were_asked() {
    let world = World::new().await;
    let [mut ada, mut bob, mut eve] = [1, 2, 3].map(|n| world.peer(n));
    ada.ask(in_lane("ada", "/slow 60"));
    bob.ask(in_lane("bob", "hi"));
    eve.ask(prompt("eve", "hi", None));
    let run = ada.accepted().await.run;
    assert_eq!(bob.accepted().await.ahead, 1);
    assert_eq!(eve.accepted().await.ahead, 0);
    assert_eq!(outcome(&eve.rest().await), &Outcome::Completed, "who is in no lane waits for nobody");
    eve.ask(Command::Session(SessionCommand::Abort(Abort { target: target("ada"), run: Some(run) })));
    let (of_ada, of_bob) = (ada.rest().await, bob.rest().await);
    let end = of_ada.last().unwrap().at;
    assert!(started(&of_bob) >= end, "one after the other");
    assert_eq!(outcome(&of_bob), &Outcome::Completed);
}

#[actix::test]
async fn what_is_active_is_aborted_wherever_it_is_and_what_waits_stays() {
    let world = World::new().await;
    let [mut ada, mut bob, mut eve] = [1, 2, 3].map(|n| world.peer(n));
    eve.ask(abort_lane());
    assert_eq!(
        eve.reply().await,
        Ok(Reply::Session(SessionReply::Aborted(Aborted { run: None }))),
        "nothing is active"
    );
    // Not even awake yet.
    ada.ask(in_lane("ada", "/slow 60"));
    eve.ask(abort_lane());
    let run = ada.accepted().await.run;
    assert_eq!(eve.reply().await, Ok(Reply::Session(SessionReply::Aborted(Aborted { run: Some(run) }))));
    assert_eq!(outcome(&ada.rest().await), &Outcome::Aborted(Cause::Asked));

    ada.ask(in_lane("ada", "/slow 60"));
    bob.ask(in_lane("bob", "hi"));
    // One that waits is taken from the queue by its own session, and is no longer in the way.
    eve.ask(in_lane("eve", "never"));
    let (run, waiting) = (ada.accepted().await.run, eve.accepted().await.run);
    assert_eq!(bob.accepted().await.ahead, 1);
    eve.ask(Command::Session(SessionCommand::Abort(Abort { target: target("eve"), run: Some(waiting) })));
    assert_eq!(outcome(&eve.rest().await), &Outcome::Aborted(Cause::Asked));
    while !matches!(ada.event().await.event, Event::Text(_)) {}
    eve.ask(abort_lane());
    assert_eq!(eve.reply().await, Ok(Reply::Session(SessionReply::Aborted(Aborted { run: Some(run) }))));
    assert_eq!(outcome(&ada.rest().await), &Outcome::Aborted(Cause::Asked));
    assert_eq!(outcome(&bob.rest().await), &Outcome::Completed, "its turn came");
}

#[actix::test]
async fn a_session_that_falls_waits_anew_and_nobody_waits_for_ever() {
    let world = World::new().await;
    let [mut ada, mut bob] = [1, 2].map(|n| world.peer(n));
    ada.ask(in_lane("ada", "/slow 2"));
    bob.ask(in_lane("bob", "hi"));
    let session = ada.accepted().await.session;
    bob.accepted().await;
    while !matches!(ada.event().await.event, Event::Text(_)) {}
    let address = world.supervisor.send(Visit { key: session }).await.unwrap().expect("it is awake");
    address.try_send(Sabotage).unwrap();
    assert_eq!(outcome(&bob.rest().await), &Outcome::Completed);
    let rest = ada.rest().await;
    assert!(rest.iter().any(|logged| logged.event == Event::Restarted), "{rest:?}");
    assert_eq!(outcome(&rest), &Outcome::Completed);
    ada.ask(in_lane("ada", "hi"));
    assert_eq!(ada.accepted().await.ahead, 0, "the lane is empty");
}

fn result(events: &[Logged]) -> &ToolResult {
    let results = events.iter().find_map(|logged| match &logged.event {
        Event::ToolReturned(result) => Some(result),
        _ => None,
    });
    results.expect("the tool was called")
}

async fn sends(peer: &mut Peer, command: Command, as_: Principal) -> (bool, String) {
    peer.ask_as(as_, command);
    peer.accepted().await;
    let events = peer.rest().await;
    let ToolResult { content, is_error, .. } = result(&events);
    (*is_error, content.clone())
}

fn call(input: &Value) -> Command {
    in_lane("ada", &format!("/tool send_message {input}"))
}

#[actix::test]
async fn an_agent_speaks_in_sessions_that_who_asked_may_see() {
    let world = World::new().await;
    let [mut peer, mut other] = [1, 2].map(|n| world.peer(n));
    for (principal, account) in [(Principal::local(), "bob"), (user("eve"), "eve")] {
        other.ask_as(principal, prompt(account, "hi", None));
        other.accepted().await;
        other.rest().await;
    }
    let to = |account: &str| json!({ "text": "hello", "channel": "test", "account": account });
    let (is_error, said) = sends(&mut peer, call(&to("bob")), Principal::local()).await;
    assert!(!is_error && said.contains("message-"), "{said}");
    assert_eq!(peer.answer("bob").await, "hello");
    let (is_error, said) = sends(&mut peer, call(&to("eve")), Principal::local()).await;
    assert!(is_error && said.contains("eve/main:test:eve:main belongs to eve"), "{said}");
    let hers = json!({ "text": "hello", "session": "eve/main:test:eve:main" });
    let (is_error, said) = sends(&mut peer, call(&hers), Principal::local()).await;
    assert!(!is_error, "operators speak to all, where they say so: {said}");
    let (is_error, said) = sends(&mut peer, call(&to("nobody")), Principal::local()).await;
    assert!(!is_error, "a conversation begins where there is none: {said}");
    assert_eq!(peer.answer("nobody").await, "hello");
    let (is_error, said) = sends(&mut peer, call(&json!({ "text": 5 })), Principal::local()).await;
    assert!(is_error && said.contains("text: expected text"), "{said}");

    // Eve's agent sees her own alone.
    let mine = |account: &str| {
        let input = json!({ "text": "psst", "channel": "test", "account": account });
        let Command::Session(SessionCommand::Submit(submit)) = call(&input) else { unreachable!("a prompt") };
        Command::Session(SessionCommand::Submit(Submit { target: target("eve"), ..submit }))
    };
    let (is_error, said) = sends(&mut peer, mine("bob"), user("eve")).await;
    assert!(!is_error, "a conversation of her own begins: {said}");
    assert_eq!(peer.answer("bob").await, "hello", "the operators' is another one");
    let (is_error, said) = sends(&mut peer, mine("eve"), user("eve")).await;
    assert!(!is_error, "{said}");

    // Elsewhere it is not offered.
    peer.ask(prompt("bob", &format!("/tool send_message {}", to("bob")), None));
    peer.accepted().await;
    let events = peer.rest().await;
    assert!(text(&events).contains("There is no tool send_message"), "{}", text(&events));
}

fn local_files(content: &str, path: &std::path::Path) -> Command {
    let Command::Session(SessionCommand::Submit(submit)) = in_lane("ada", content) else {
        unreachable!("a prompt")
    };
    let path = path.to_str().unwrap().to_owned();
    let (media_type, name, caption, size) = (None, None, None, None);
    let local_files = vec![LocalFile { form: Form::Document, path, media_type, name, caption, size }];
    Command::Session(SessionCommand::Submit(Submit { local_files, ..submit }))
}

#[actix::test]
async fn files_are_read_for_a_prompt_and_sent_back_with_the_answer() {
    let world = World::new().await;
    let folder = world._home.path().join("attachments");
    std::fs::create_dir(&folder).unwrap();
    let (note, film) = (folder.join("note.md"), folder.join("film.mp4"));
    std::fs::write(&note, "birds").unwrap();
    std::fs::write(&film, b"....ftyp\x00\xff").unwrap();
    let mut peer = world.peer(1);
    for (path, kind) in [(&note, Kind::Text("text/markdown")), (&film, Kind::Named)] {
        peer.ask(local_files("look", path));
        peer.accepted().await;
        let events = peer.rest().await;
        let Event::Prompted { attachments, .. } = &events[0].event else { panic!("{events:?}") };
        assert_eq!(attachments[0].kind(), kind);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(text(&events).contains(&format!("You sent {name}")), "{}", text(&events));
    }
    let outside = world._home.path().join("clawmux.db");
    peer.ask(local_files("look", &outside));
    assert_eq!(peer.reply().await.unwrap_err().code, ErrorCode::Forbidden);

    let send = |path: &std::path::Path| {
        let file = json!({ "type": "video", "path": path.to_str().unwrap(), "caption": "see" });
        call(&json!({ "attachments": [file] }))
    };
    let (is_error, sent) = sends(&mut peer, send(&film), Principal::local()).await;
    let sent: Value = serde_json::from_str(&sent).unwrap();
    let real = film.canonicalize().unwrap();
    let expected = json!([{ "type": "video", "path": real.to_str().unwrap(), "mimeType": "video/mp4",
        "fileName": "film.mp4", "caption": "see", "size": 10 }]);
    assert_eq!((is_error, &sent["attachments"]), (false, &expected));
    let (is_error, why) = sends(&mut peer, send(&outside), Principal::local()).await;
    assert!(is_error && why.contains("not in a folder"), "{why}");
}
