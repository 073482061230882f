//! Who follows a session is told all of it, in order and once.

use super::*;

#[actix::test]
async fn the_reply_precedes_the_events_and_no_number_is_missing() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of herons", None));
    let accepted = peer.accepted().await;
    let events = peer.rest().await;
    assert_eq!(events[0].seq, accepted.seq);
    assert!(matches!(events[0].event, Event::Prompted { .. }), "{events:?}");
    contiguous(&events);
    assert_eq!(text(&events), peer.answer("ada").await);
}

#[actix::test]
async fn without_room_nothing_is_sent_and_all_of_it_is_read_from_the_log_later() {
    let world = World::new().await;
    let (mut slow, mut quick) = (world.peer(1), world.peer(2));
    let others = WINDOW_BYTES - 1000;
    let from = Mailbox(mpsc::unbounded_channel().0).start().recipient::<More>();
    assert!(slow.client.window.take(others, &from), "other sessions have taken nearly all");
    slow.generous = false;
    slow.ask(prompt("ada", "tell me all there is to know of the great crested grebe", Some("k")));
    slow.accepted().await;
    quick.ask(prompt("ada", "the same key is the same run", Some("k")));
    assert!(quick.accepted().await.repeated);
    let all = quick.rest().await;

    let mut events = Vec::new();
    while slow.client.window.taken_bytes() < WINDOW_BYTES {
        events.push(slow.event().await);
    }
    while let Ok(Deliver::Event { event, .. }) = slow.inbox.try_recv() {
        events.push(event.logged.clone());
    }
    assert!(events.len() < all.len() / 2, "it had no more room: {} of {}", events.len(), all.len());
    slow.client.window.give_back(others, slow.client.connection);
    slow.generous = true;
    events.extend(slow.rest().await);
    contiguous(&events);
    assert_eq!(text(&events), text(&all), "nothing is missing");
}

#[actix::test]
async fn who_attaches_gets_exactly_what_follows_its_number() {
    let world = World::new().await;
    let (mut asks, mut follows) = (world.peer(1), world.peer(2));
    follows.ask(Attach { target: target("ada"), after: Some(Seq(0)) });
    assert!(matches!(
        follows.reply().await,
        Ok(Reply::Session(SessionReply::Attached(Attached { after: Seq(0), head: Seq(0), .. })))
    ));
    asks.ask(prompt("ada", "tell me of the smew", None));
    let told = asks.rest().await;
    let live = follows.rest().await;
    contiguous(&live);
    assert_eq!((live[0].first_seq, text(&live)), (Seq(1), text(&told)));

    for (connection, cut) in [(3, Seq(0)), (4, live[live.len() / 2].seq), (5, live[live.len() - 2].seq)] {
        let mut late = world.peer(connection);
        late.ask(Attach { target: target("ada"), after: Some(cut) });
        late.reply().await.unwrap();
        let rest = late.rest().await;
        contiguous(&rest);
        assert!(rest[0].first_seq <= cut.next() && rest[0].seq > cut, "after {cut}: {:?}", rest[0]);
        let missed: Vec<Logged> = live.iter().filter(|logged| logged.seq > cut).cloned().collect();
        assert_eq!(text(&rest), text(&missed), "after {cut}");
    }
    let mut early = world.peer(6);
    early.ask(Attach { target: target("ada"), after: Some(Seq(9999)) });
    let refused = early.reply().await.unwrap_err();
    assert!(refused.message.contains("no number 9999 yet"), "{refused}");
}

#[actix::test]
async fn what_a_connection_asked_for_itself_is_told_once() {
    let world = World::new().await;
    let (mut peer, mut other) = (world.peer(1), world.peer(2));
    let attach = peer.ask(Attach { target: target("ada"), after: None });
    peer.reply().await.unwrap();
    let own = peer.ask(prompt("ada", "my own words", None));
    peer.accepted().await;
    other.ask(prompt("ada", "the words of another", None));
    let theirs = other.accepted().await.run;
    let mut told = HashMap::new();
    loop {
        let (ticket, logged) = peer.told().await;
        let end = matches!(logged.event, Event::Ended { .. }) && logged.run.as_ref() == Some(&theirs);
        told.entry(ticket).or_insert_with(Vec::new).push(logged);
        if end {
            break;
        }
    }
    assert!(told[&own].iter().all(|logged| logged.run.as_ref() != Some(&theirs)), "{told:?}");
    assert!(told[&attach].iter().all(|logged| logged.run.as_ref() == Some(&theirs)), "{told:?}");
    assert!(matches!(told[&attach][0].event, Event::Prompted { .. }), "{told:?}");
    peer.ask(Detach { target: target("ada"), follow: attach });
    assert!(matches!(
        peer.reply().await,
        Ok(Reply::Session(SessionReply::Detached(Detached { found: true })))
    ));
}

#[actix::test]
async fn a_follower_that_is_too_far_behind_is_given_up() {
    let world = World::new().await;
    let (mut slow, mut asks) = (world.peer(1), world.peer(2));
    slow.generous = false;
    slow.ask(Attach { target: target("ada"), after: None });
    slow.reply().await.unwrap();
    let large = "x".repeat(400 * 1024);
    for _ in 0..5 {
        assert!(!slow.client.window.is_lagging() || slow.client.window.taken_bytes() > WINDOW_BYTES);
        asks.ask(prompt("ada", &large, None));
        asks.rest().await;
    }
    assert!(slow.client.window.is_lagging());
}

#[actix::test]
async fn a_run_asked_for_twice_on_one_connection_is_told_twice() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let first = peer.ask(prompt("ada", "tell me of the whimbrel", Some("k")));
    peer.accepted().await;
    let mut told: HashMap<Ticket, Vec<Logged>> = HashMap::new();
    while !told.values().flatten().any(|logged| matches!(logged.event, Event::Text(_))) {
        let (ticket, logged) = peer.told().await;
        told.entry(ticket).or_default().push(logged);
    }
    let second = peer.ask(prompt("ada", "again", Some("k")));
    while told.values().flatten().filter(|logged| matches!(logged.event, Event::Ended { .. })).count() < 2 {
        let (ticket, logged) = peer.told().await;
        told.entry(ticket).or_default().push(logged);
    }
    let answer = peer.answer("ada").await;
    for ticket in [first, second] {
        let events = &told[&ticket];
        contiguous(events);
        assert!(matches!(events[0].event, Event::Prompted { .. }), "from its start: {events:?}");
        assert_eq!(text(events), answer);
    }
}

/// What each of these accounts was told of, up to the end of a run in each.
async fn watched(peer: &mut Peer, accounts: &[&str]) -> Vec<(String, Event)> {
    let mut told: Vec<(String, Event)> = Vec::new();
    let is_over = |told: &[(String, Event)], account: &&str| {
        told.iter().any(|(of, event)| of == account && matches!(event, Event::Ended { .. }))
    };
    while !accounts.iter().all(|account| is_over(&told, account)) {
        if let Deliver::Event { event, .. } = peer.next().await {
            peer.client.window.give_back(cost(&event), peer.client.connection);
            told.push((event.session.account().into_owned(), event.logged.event.clone()));
        }
    }
    told
}

#[actix::test]
async fn who_watches_is_told_all_it_may_see_and_keeps_nothing_awake() {
    let world = World::new().await;
    let (mut operator, mut ada) = (world.peer(1), world.peer(2));
    operator.ask(Watch);
    assert_eq!(operator.reply().await.unwrap(), Reply::Session(SessionReply::Watching(Watching)));
    operator.ask(Watch);
    assert!(operator.reply().await.is_err(), "once per connection");
    ada.ask_as(user("ada"), Watch);
    assert_eq!(ada.reply().await.unwrap(), Reply::Session(SessionReply::Watching(Watching)));

    // One session of each, which did not exist when they began to watch.
    let (mut of_ada, mut of_bob) = (world.peer(3), world.peer(4));
    of_bob.ask_as(user("bob"), prompt("bob", "hi", None));
    of_bob.rest().await;
    of_ada.ask_as(user("ada"), prompt("ada", "hi", None));
    of_ada.rest().await;
    let all = watched(&mut operator, &["ada", "bob"]).await;
    for account in ["ada", "bob"] {
        let of: Vec<&Event> = all.iter().filter(|(of, _)| of == account).map(|(_, event)| event).collect();
        assert!(
            matches!(of[..], [Event::Prompted { .. }, Event::Started, .., Event::Ended { .. }]),
            "{of:?}"
        );
    }
    let own = watched(&mut ada, &["ada"]).await;
    assert!(own.iter().all(|(account, _)| account == "ada"), "not another's: {own:?}");

    // Nobody needs the session: it sleeps, and is watched again as soon as something happens.
    let key = SessionKey::new("main", "test", "ada", "main").unwrap().in_space(&user("ada").owner);
    let session = world.supervisor.send(Visit { key }).await.unwrap().unwrap();
    of_ada.ask_as(user("ada"), Stop { target: target("ada"), cause: Cause::Stopped });
    of_ada.reply().await.unwrap();
    tokio::time::timeout(TIMEOUT, async {
        while session.connected() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it sleeps though it is watched");
    of_ada.ask_as(user("ada"), prompt("ada", "again", None));
    of_ada.rest().await;
    let again = watched(&mut operator, &["ada"]).await;
    assert!(matches!(&again[0].1, Event::Prompted { content, .. } if content == "again"), "{again:?}");
    watched(&mut ada, &["ada"]).await;

    operator.ask(Unwatch { watch: Ticket(1) });
    assert_eq!(operator.reply().await.unwrap(), Reply::Session(SessionReply::Unwatched(Unwatched)));
    of_ada.ask_as(user("ada"), prompt("ada", "unseen", None));
    of_ada.rest().await;
    watched(&mut ada, &["ada"]).await;
    assert!(operator.inbox.try_recv().is_err(), "it watches no longer");
}
