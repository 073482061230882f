//! Sessions that wake, sleep and start anew.

use clawmux_core::conversation::approval::Toolbox;
use clawmux_core::conversation::session::{Batch, Session as Conversation, Submission};
use clawmux_core::conversation::window::Window;
use clawmux_core::prompt::settings::Settings;
use clawmux_core::provider::Delta;

use super::*;
use crate::provider_supervisor::account::Account;
use crate::session::{Report, Subscribers};

#[actix::test]
async fn all_that_waits_for_a_session_to_wake_reaches_it() {
    const REQUESTS: usize = 200;
    let world = World::new().await;
    // It has its room from its first turn on.
    world.peer(0).ask(Abort { target: target("nobody"), run: None });
    tokio::task::yield_now().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "/slow 60", None));
    for _ in 0..REQUESTS {
        peer.ask(Clear { target: target("ada") });
    }
    peer.accepted().await;
    let mut cleared = 0;
    while cleared < REQUESTS {
        match peer.next().await {
            Deliver::Reply(_, reply) => {
                reply.expect("not busy");
                cleared += 1;
            }
            Deliver::Event { .. } | Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
        }
    }
}

#[actix::test]
async fn a_session_that_never_was_can_be_let_go_and_sleeps_then() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let follow = peer.ask(Attach { target: target("x"), after: None });
    let Ok(Reply::Session(SessionReply::Attached(Attached { session, .. }))) = peer.reply().await else {
        panic!("attached")
    };
    peer.ask(Detach { target: target("x"), follow });
    assert!(matches!(
        peer.reply().await,
        Ok(Reply::Session(SessionReply::Detached(Detached { found: true })))
    ));
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while world.supervisor.send(Visit { key: session.clone() }).await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "it sleeps");
        tokio::task::yield_now().await;
    }
}

#[actix::test]
async fn a_stopped_session_ends_all_its_runs_and_sleeps() {
    let world = World::new().await;
    let (mut peer, mut operator) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/slow 1000", None));
    let first = peer.accepted().await.run;
    peer.ask(prompt("ada", "waits", None));
    let stop = || Command::from(Stop { target: target("ada"), cause: Cause::Stopped });
    operator.ask(stop());
    let Ok(Reply::Session(SessionReply::Stopped(Stopped { session, runs }))) = operator.reply().await else {
        panic!("stopped")
    };
    assert_eq!((runs.len(), &runs[0]), (2, &first));
    for _ in 0..2 {
        let ended = peer.rest().await;
        assert!(matches!(ended.last().unwrap().event, Event::Ended { outcome: Outcome::Aborted(_), .. }));
    }
    operator.ask(stop());
    assert!(
        matches!(operator.reply().await, Ok(Reply::Session(SessionReply::Stopped(Stopped { runs, .. }))) if runs.is_empty())
    );
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while world.supervisor.send(Visit { key: session.clone() }).await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "it sleeps");
        tokio::task::yield_now().await;
    }
    operator.ask(Stop { target: target("nobody"), cause: Cause::Stopped });
    assert!(operator.reply().await.unwrap_err().message.contains("no such session"));
}

#[actix::test]
async fn a_session_that_panics_starts_anew_from_its_log_and_its_followers_go_on() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of the bittern", None));
    let accepted = peer.accepted().await;
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Logged { event: Event::Text(_), .. })) {
        events.push(peer.event().await);
    }
    let visited = world.supervisor.send(Visit { key: accepted.session }).await.unwrap();
    visited.expect("awake").try_send(Sabotage).unwrap();
    events.extend(peer.rest().await);
    contiguous(&events);
    let restarted = events.iter().position(|logged| logged.event == Event::Restarted);
    let restarted = restarted.unwrap_or_else(|| panic!("no restart in {events:?}"));
    assert_eq!(text(&events[restarted..]), peer.answer("ada").await, "the step started anew");
    assert!(matches!(events.last().unwrap().event, Event::Ended { outcome: Outcome::Completed, .. }));
}

/// A read that began before the restart was written, and whose answer comes after it was published, must
/// not count as all there is: its follower would never be told of the restart.
#[actix::test]
async fn what_recovery_decided_is_not_published_before_it_is_written() {
    let world = World::new().await;
    let configs = world.deps.agent_configs.get();
    for recovery in [Recovery::Resume, Recovery::Interrupt] {
        let key = SessionKey::new("main", "test", "ada", "main").unwrap();
        let mut cut_off = Conversation::new(key.clone(), configs.limits.clone());
        let submission = Submission {
            run: "r".into(),
            content: "tell me of the bittern".into(),
            owner: Owner::Admins,
            idempotency_key: None,
            attachments: Vec::new(),
            run_options: RunOptions::default(),
        };
        cut_off.submit(clock::now(), submission).unwrap();
        let said = vec![Delta::Text("half".into())];
        cut_off.said(clock::now(), &"r".into(), 0, said, &Toolbox::default());
        let Batch { events, reserve, .. } = cut_off.take().unwrap();
        let in_log = events.last().unwrap().seq;

        let (limits, settings) = (configs.limits.clone(), Settings::default());
        let mut conversation =
            Conversation::restore(key, limits, in_log, reserve.unwrap(), settings, Window::default(), events);
        conversation.recover(clock::now(), recovery, |_| false);
        assert!(conversation.head() > in_log, "it decided something");
        let profile = configs.agents[&AgentId::from("main")].clone();
        let (deps, supervisor) = (world.deps.clone(), world.supervisor.clone());
        let conversation = (conversation, Account::default());
        let session =
            Session::new(conversation, Vec::new(), profile, deps, supervisor.into(), Subscribers::default());
        assert_eq!(session.drop_guard.audience.published, in_log, "{recovery:?}");
    }
}

#[actix::test]
async fn an_idle_session_sleeps_and_wakes_when_it_is_named() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of the dunlin", None));
    let key = peer.accepted().await.session;
    peer.rest().await;
    let visit = || world.supervisor.send(Visit { key: key.clone() });

    world.supervisor.send(Report::Idle { key: key.clone(), received: 0 }).await.unwrap();
    assert!(visit().await.unwrap().is_some(), "a message is on its way to it: it stays awake");

    // Who asks how it is just then is not told of one that is broken.
    let (observed, idle) = futures::join!(
        world.supervisor.send(Observe),
        world.supervisor.send(Report::Idle { key: key.clone(), received: 1 })
    );
    idle.unwrap();
    let observed = observed.unwrap();
    assert_eq!(observed.state["awake"], 1, "it was awake as they were counted");
    let silent: Vec<_> = observed.children.iter().filter_map(|child| child.silent.as_deref()).collect();
    assert_eq!((silent.len(), observed.children.len()), (0, 0), "{silent:?}");
    // What comes while it falls asleep is not lost.
    peer.ask(prompt("ada", "and of the knot", None));
    let accepted = peer.accepted().await;
    let events = peer.rest().await;
    assert_eq!(events[0].seq, accepted.seq, "it goes on where it was");
    assert!(text(&events).contains("knot"));
}
