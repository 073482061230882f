//! What is done to a session besides prompting it: settings, new conversations, deletion, lists.

use clawmux_core::conversation::command::{
    Abort, Attach, Close, Compact, Configure, CreateSession, Delete, DescribeSession, Exists, Inject,
    PreviewSessions, ReadTranscript, Reset, SessionCommand, SessionFilter, Stop,
};
use clawmux_core::conversation::reply::{
    Compacted, Deleted, Injected, Preview, SessionReply, SessionRow, SessionState, Stopped,
};
use clawmux_core::conversation::transcript::{Said, Transcript};
use clawmux_core::error::ErrorCode;
use clawmux_core::prompt::settings::Patch;

use super::*;

fn label(label: &str) -> Patch {
    Patch { label: Some(Some(label.into())), ..Patch::default() }
}

fn filter() -> SessionFilter {
    SessionFilter { limit: 10, with_texts: true, ..SessionFilter::default() }
}

impl Peer {
    async fn asks(&mut self, command: Command) -> Result<Reply, clawmux_core::error::Error> {
        self.ask(command);
        loop {
            if let Deliver::Reply(_, reply) = self.next().await {
                return reply;
            }
        }
    }

    async fn settled(&mut self, command: Command) -> SessionRow {
        match self.asks(command).await {
            Ok(Reply::Session(SessionReply::Settled(row))) => *row,
            other => panic!("{other:?}"),
        }
    }

    async fn transcript(&mut self, account: &str, at: Option<Seq>) -> Transcript {
        let command = Command::Session(SessionCommand::ReadTranscript(ReadTranscript {
            target: target(account),
            limit: 100,
            bytes_max: 1 << 20,
            at,
        }));
        match self.asks(command).await {
            Ok(Reply::Session(SessionReply::Transcript(transcript))) => *transcript,
            other => panic!("{other:?}"),
        }
    }

    async fn list(&mut self, filter: SessionFilter) -> (Vec<String>, u64) {
        match self.asks(Command::Session(SessionCommand::ListSessions(filter))).await {
            Ok(Reply::Session(SessionReply::SessionList(list))) => {
                (list.rows.iter().map(|row| row.session.account().into_owned()).collect(), list.total)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn runs(&mut self, account: &str, content: &str) -> Accepted {
        self.ask(prompt(account, content, None));
        let accepted = self.accepted().await;
        self.rest().await;
        accepted
    }
}

#[actix::test]
async fn a_session_is_made_configured_and_read_back() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let made = peer
        .settled(Command::Session(SessionCommand::CreateSession(CreateSession {
            target: target("ada"),
            patch: label("Ada"),
        })))
        .await;
    assert_eq!((made.settings.label.as_deref(), made.running.len(), made.head), (Some("Ada"), 0, Seq(1)));
    assert_eq!(made.model.as_ref().map(ToString::to_string).as_deref(), Some("offline/offline"));
    let again = peer
        .settled(Command::Session(SessionCommand::CreateSession(CreateSession {
            target: target("ada"),
            patch: label("Bob"),
        })))
        .await;
    assert_eq!(again, made, "it is there");

    let model = |name: Option<&str>| Patch { model: Some(name.map(str::to_owned)), ..Patch::default() };
    let target = || target("ada");
    let set = Command::Session(SessionCommand::Configure(Configure {
        target: target(),
        patch: model(Some("offline/other")),
    }));
    let set = peer.settled(set).await;
    assert_eq!(set.settings.label.as_deref(), Some("Ada"), "the rest stays");
    assert_eq!(set.model.as_ref().map(ToString::to_string).as_deref(), Some("offline/other"));
    let bad = Command::Session(SessionCommand::Configure(Configure {
        target: target(),
        patch: model(Some("nowhere/m")),
    }));
    assert_eq!(peer.asks(bad).await.unwrap_err().code, ErrorCode::InvalidRequest);
    let cleared = peer
        .settled(Command::Session(SessionCommand::Configure(Configure {
            target: target(),
            patch: model(None),
        })))
        .await;
    assert_eq!(cleared.model, made.model);

    // Nobody follows it, so it sleeps when told to, and is read back.
    peer.asks(Command::Session(SessionCommand::Stop(Stop { target: target(), cause: Cause::Stopped })))
        .await
        .unwrap();
    let woken = peer
        .settled(Command::Session(SessionCommand::Configure(Configure {
            target: target(),
            patch: Patch::default(),
        })))
        .await;
    assert_eq!(woken.settings, cleared.settings);
    let other =
        Principal { owner: Owner::Credential("eve".into()), scopes: Scopes::USER, ..Principal::local() };
    peer.ask_as(
        other.clone(),
        Command::Session(SessionCommand::Inject(Inject { target: target(), content: "x".into(), id: None })),
    );
    assert_eq!(peer.reply().await.expect_err("she has none").code, ErrorCode::NotFound);
    // What she makes under the same key is another, and what she does to it is done to that.
    peer.ask_as(
        other.clone(),
        Command::Session(SessionCommand::Configure(Configure { target: target(), patch: label("mine") })),
    );
    let Ok(Reply::Session(SessionReply::Settled(hers))) = peer.reply().await else { panic!("it is hers") };
    assert_eq!((hers.owner, hers.settings.label.as_deref()), (other.owner.clone(), Some("mine")));
    peer.ask_as(other.clone(), Command::Session(SessionCommand::Delete(Delete { target: target() })));
    assert_eq!(peer.reply().await, Ok(Reply::Session(SessionReply::Deleted(Deleted { found: true }))));
    let mine = peer
        .settled(Command::Session(SessionCommand::Configure(Configure {
            target: target(),
            patch: Patch::default(),
        })))
        .await;
    assert_eq!(mine.settings, cleared.settings);
    peer.ask_as(
        other.clone(),
        Command::Session(SessionCommand::DescribeSession(DescribeSession { target: target() })),
    );
    assert!(matches!(peer.reply().await, Ok(Reply::Session(SessionReply::Session(None)))));
    peer.ask_as(other, Command::Session(SessionCommand::ListSessions(filter())));
    assert!(
        matches!(peer.reply().await, Ok(Reply::Session(SessionReply::SessionList(list))) if list.rows.is_empty() && list.total == 0)
    );
}

#[actix::test]
async fn the_model_that_is_set_is_the_one_that_answers() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.runs("ada", "hello").await;
    let patch = Patch { model: Some(Some("offline/other".into())), ..Patch::default() };
    peer.settled(Command::Session(SessionCommand::Configure(Configure { target: target("ada"), patch })))
        .await;
    peer.runs("ada", "hello again").await;
    let mut models = Vec::new();
    // What a call cost is on record a little after its answer.
    for _ in 0..1000 {
        let transcript = peer.transcript("ada", None).await;
        models = transcript
            .entries
            .iter()
            .filter_map(|entry| match &entry.said {
                Said::Assistant { model, .. } => Some(model.as_ref()?.to_string()),
                _ => None,
            })
            .collect();
        if models.len() == 2 {
            break;
        }
        actix::clock::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(models, ["offline/offline", "offline/other"]);
}

#[actix::test]
async fn a_new_conversation_knows_nothing_of_the_old_one() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let accepted = peer.runs("ada", "remember the smew").await;
    peer.settled(Command::Session(SessionCommand::Configure(Configure {
        target: target("ada"),
        patch: label("Ada"),
    })))
    .await;
    let before = peer.transcript("ada", None).await.row.unwrap();
    assert_eq!(before.title.as_deref(), Some("remember the smew"));
    assert_eq!(
        before.last_run.as_ref().map(|run| (run.run.clone(), run.is_aborted)),
        Some((accepted.run, false))
    );

    // Something is under way and something waits: both end.
    peer.ask(prompt("ada", "/slow 600", None));
    let slow = peer.accepted().await;
    peer.ask(prompt("ada", "waits", None));
    peer.ask(Command::Session(SessionCommand::Reset(Reset { target: target("ada") })));
    let (mut ends, mut row) = (Vec::new(), None);
    while ends.len() < 2 || row.is_none() {
        match peer.next().await {
            Deliver::Event { event, .. } => {
                peer.client.window.give_back(cost(&event), peer.client.connection);
                if let Event::Ended { outcome, .. } = &event.logged.event {
                    assert!(matches!(outcome, Outcome::Aborted(_)), "{outcome:?}");
                    ends.push(event.logged.run.clone());
                }
            }
            Deliver::Reply(_, Ok(Reply::Session(SessionReply::Settled(settled)))) => row = Some(settled),
            Deliver::Reply(_, reply) => drop(reply.unwrap()),
            Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
        }
    }
    assert!(ends.contains(&Some(slow.run)));
    let row = row.unwrap();
    assert_ne!(row.session_id, before.session_id);
    assert_eq!((row.settings.label.as_deref(), row.title, row.running.len()), (Some("Ada"), None, 0));
    let after = peer.transcript("ada", None).await;
    assert_eq!((after.entries.len(), after.total), (0, 0));

    let fresh = peer.settled(Command::Session(SessionCommand::Reset(Reset { target: target("new") }))).await;
    assert_eq!(fresh.head, Seq(1), "one that was not there is made");
}

#[actix::test]
async fn only_the_newest_messages_are_kept_and_a_note_is_among_them() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let missing = Command::Session(SessionCommand::Inject(Inject {
        target: target("ada"),
        content: "x".into(),
        id: None,
    }));
    assert_eq!(peer.asks(missing).await.unwrap_err().code, ErrorCode::NotFound);
    assert!(matches!(
        peer.asks(Command::Session(SessionCommand::Compact(Compact { target: target("ada"), keep: 1 })))
            .await,
        Ok(Reply::Session(SessionReply::Compacted(Compacted { kept: 0, forgotten: 0 })))
    ));
    for prompt in ["one", "two", "three"] {
        peer.runs("ada", prompt).await;
    }
    let note = Command::Session(SessionCommand::Inject(Inject {
        target: target("ada"),
        content: "a note".into(),
        id: None,
    }));
    let Ok(Reply::Session(SessionReply::Injected(Injected { message, .. }))) = peer.asks(note).await else {
        panic!("injected")
    };
    let before = peer.transcript("ada", None).await;
    let places: Vec<u64> = before.entries.iter().map(|entry| entry.place).collect();
    assert_eq!((places, before.total), ((1..=7).collect(), 7));
    assert_eq!(before.entries[6].id, message);

    let compact = Command::Session(SessionCommand::Compact(Compact { target: target("ada"), keep: 2 }));
    assert!(matches!(
        peer.asks(compact).await,
        Ok(Reply::Session(SessionReply::Compacted(Compacted { kept: 3, forgotten: 4 })))
    ));
    let after = peer.transcript("ada", None).await;
    let ids = |entries: &[clawmux_core::conversation::transcript::Entry]| {
        entries.iter().map(|e| e.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&after.entries), ids(&before.entries[4..]), "what is kept stays what it was");
    assert_eq!(after.entries.iter().map(|entry| entry.place).collect::<Vec<_>>(), [1, 2, 3]);

    let preview = Command::Session(SessionCommand::PreviewSessions(PreviewSessions {
        targets: vec![target("ada"), target("nobody")],
        limit: 2,
        chars_max: 3,
    }));
    let Ok(Reply::Session(SessionReply::Previews(previews))) = peer.asks(preview).await else {
        panic!("previews")
    };
    let [Preview { messages: Some(messages) }, Preview { messages: None }] = &previews[..] else {
        panic!("{previews:?}");
    };
    assert_eq!((messages.len(), &messages[1]), (2, &(Role::Assistant, "a n".to_owned())));
    // The model is told too: the offline one says how much it was given.
    peer.runs("ada", "four").await;
    assert_eq!(peer.transcript("ada", None).await.total, 5);
}

#[actix::test]
async fn what_is_deleted_is_gone_for_everybody() {
    let world = World::new().await;
    let (mut peer, mut follower) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "hello", Some("key")));
    let first = peer.accepted().await;
    peer.rest().await;
    peer.runs("bob", "hello").await;
    follower
        .ask(Command::Session(SessionCommand::Attach(Attach { target: target("ada"), after: Some(Seq(0)) })));
    follower.reply().await.unwrap();
    peer.ask(prompt("ada", "/slow 600", None));
    peer.accepted().await;
    assert!(matches!(
        peer.asks(Command::Session(SessionCommand::Delete(Delete { target: target("ada") }))).await,
        Ok(Reply::Session(SessionReply::Deleted(Deleted { found: true })))
    ));
    let mut last = follower.event().await;
    while last.event != Event::Deleted {
        last = follower.event().await;
    }
    assert!(matches!(
        peer.asks(Command::Session(SessionCommand::Delete(Delete { target: target("ada") }))).await,
        Ok(Reply::Session(SessionReply::Deleted(Deleted { found: false })))
    ));
    assert_eq!(peer.list(filter()).await, (vec!["bob".to_owned()], 1));
    assert!(peer.transcript("ada", None).await.row.is_none());
    let session = first.session.clone();
    assert!(matches!(
        peer.asks(Command::Session(SessionCommand::Exists(Exists { session }))).await,
        Ok(Reply::Session(SessionReply::Exists(false)))
    ));

    // The name and the key can be used again.
    peer.ask(prompt("ada", "hello", Some("key")));
    let again = peer.accepted().await;
    assert!(!again.repeated && again.seq == Seq(1) && again.run != first.run, "{again:?}");
    peer.rest().await;
}

#[actix::test]
async fn sessions_are_found_by_what_they_are() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    for (account, prompt) in [("ada", "tell me of the SMEW"), ("bob", "what is an auk?"), ("eve", "ÄÖÜ")] {
        peer.runs(account, prompt).await;
    }
    peer.settled(Command::Session(SessionCommand::Configure(Configure {
        target: target("bob"),
        patch: label("Birds"),
    })))
    .await;
    let find = |text: &str| SessionFilter { search: Some(text.into()), ..filter() };
    let all = ["eve", "bob", "ada"];
    for (filter, found) in [
        (filter(), &all[..]),
        (find("smew"), &["ada"]),
        (find("bIRD"), &["bob"]),
        (find("äöü"), &["eve"]),
        (find("TEST:EVE"), &["eve"]),
        (find("nothing"), &[]),
        (SessionFilter { label: Some("Birds".into()), ..filter() }, &["bob"]),
        (SessionFilter { label: Some("birds".into()), ..filter() }, &[]),
        (SessionFilter { agent: Some("main".into()), ..filter() }, &all),
        (SessionFilter { agent: Some("mai".into()), ..filter() }, &[]),
        (
            SessionFilter {
                active_since: Some(clock::now().after(std::time::Duration::from_secs(9))),
                ..filter()
            },
            &[],
        ),
    ] {
        let (rows, total) = peer.list(filter.clone()).await;
        assert_eq!(
            (&rows[..], total as usize),
            (&found.iter().map(ToString::to_string).collect::<Vec<_>>()[..], found.len()),
            "{filter:?}"
        );
    }
    let (rows, total) = peer.list(SessionFilter { limit: 1, ..filter() }).await;
    assert_eq!((rows.len(), total), (1, 3));
    for search in [None, Some("test:".to_owned())] {
        let mut paged = Vec::new();
        for offset in 0..4 {
            let page = SessionFilter { limit: 1, offset, search: search.clone(), ..filter() };
            let (rows, total) = peer.list(page).await;
            assert_eq!((rows.len(), total), (usize::from(offset < 3), 3));
            paged.extend(rows);
        }
        assert_eq!(paged, all, "page by page");
    }
}

#[actix::test]
async fn sessions_are_listed_by_how_they_are() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.settled(Command::Session(SessionCommand::CreateSession(CreateSession {
        target: target("new"),
        patch: Patch::default(),
    })))
    .await;
    peer.runs("idle", "hello").await;
    peer.runs("failed", "/fail").await;
    peer.runs("reset", "/fail").await;
    peer.settled(Command::Session(SessionCommand::Reset(Reset { target: target("reset") }))).await;
    peer.runs("closed", "hello").await;
    peer.asks(Command::Session(SessionCommand::Close(Close {
        target: target("closed"),
        reason: String::new(),
    })))
    .await
    .unwrap();
    peer.ask(prompt("running", "/slow 60", None));
    peer.accepted().await;
    let mut other = world.peer(2);
    let state = |state| SessionFilter { state: Some(state), ..filter() };
    for (filter, found) in [
        (state(SessionState::New), &["reset", "new"][..]),
        (state(SessionState::Running), &["running"]),
        (state(SessionState::Idle), &["idle"]),
        (state(SessionState::Failed), &["failed"]),
        (state(SessionState::Closed), &["closed"]),
        (state(SessionState::Paused), &[]),
        (SessionFilter { is_open: true, ..filter() }, &["running", "reset", "failed", "idle", "new"]),
    ] {
        let (mut rows, total) = other.list(filter.clone()).await;
        assert_eq!(total as usize, rows.len(), "{filter:?}");
        let mut found = found.to_vec();
        rows.sort();
        found.sort_unstable();
        assert_eq!(rows, found, "{filter:?}");
        if let Some(state) = filter.state {
            let Ok(Reply::Session(SessionReply::SessionList(list))) =
                other.asks(Command::Session(SessionCommand::ListSessions(filter))).await
            else {
                panic!()
            };
            assert!(list.rows.iter().all(|row| row.state == state), "as each row says: {list:?}");
        }
    }
    peer.ask(Command::Session(SessionCommand::Abort(Abort { target: target("running"), run: None })));
    peer.rest().await;
}

#[actix::test]
async fn a_closed_session_takes_no_prompts_until_it_is_reset() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let close = |reason: &str| {
        Command::Session(SessionCommand::Close(Close { target: target("ada"), reason: reason.to_owned() }))
    };
    assert_eq!(peer.asks(close("x")).await.unwrap_err().code, ErrorCode::NotFound, "there is none");
    peer.runs("ada", "hello").await;
    peer.ask(prompt("ada", "/slow 60", None));
    let running = peer.accepted().await;
    let mut other = world.peer(2);
    let long = "x".repeat(clawmux_core::prompt::settings::SETTINGS_BYTES_MAX + 1);
    assert_eq!(other.asks(close(&long)).await.unwrap_err().code, ErrorCode::InvalidRequest);
    let Ok(Reply::Session(SessionReply::Stopped(Stopped { runs, .. }))) = other.asks(close("enough")).await
    else {
        panic!("it is closed")
    };
    assert_eq!(runs, [running.run]);
    peer.rest().await;
    // Again, asleep, read back: it stays closed, for the reason it was closed for.
    for _ in 0..2 {
        peer.asks(Command::Session(SessionCommand::Stop(Stop {
            target: target("ada"),
            cause: Cause::Stopped,
        })))
        .await
        .unwrap();
        let Ok(Reply::Session(SessionReply::Stopped(Stopped { runs, .. }))) =
            other.asks(close("once more")).await
        else {
            panic!()
        };
        assert_eq!(runs, []);
        peer.ask(prompt("ada", "still there?", None));
        let refused = peer.reply().await.unwrap_err();
        assert!(refused.code == ErrorCode::Conflict && refused.message.contains("reset it"), "{refused}");
        let Ok(Reply::Session(SessionReply::Session(Some(row)))) = peer
            .asks(Command::Session(SessionCommand::DescribeSession(DescribeSession {
                target: target("ada"),
            })))
            .await
        else {
            panic!("it is there")
        };
        assert_eq!((row.state, row.settings.closed.as_deref()), (SessionState::Closed, Some("enough")));
    }
    let row = peer.settled(Command::Session(SessionCommand::Reset(Reset { target: target("ada") }))).await;
    assert_eq!((row.state, row.settings.closed), (SessionState::New, None));
    peer.runs("ada", "still there?").await;
}

#[actix::test]
async fn a_session_is_found_by_its_uuid_by_those_who_may_see_it() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let key = peer.runs("ada", "hello").await.session;
    let uuid = || Target::Uuid(key.uuid());
    let describe = || Command::Session(SessionCommand::DescribeSession(DescribeSession { target: uuid() }));
    let Ok(Reply::Session(SessionReply::Session(Some(row)))) = peer.asks(describe()).await else {
        panic!("it is found")
    };
    assert_eq!(row.session, key);
    // What is asked of it is done in order.
    for _ in 0..20 {
        peer.ask(Command::Session(SessionCommand::Configure(Configure {
            target: uuid(),
            patch: label("first"),
        })));
        peer.ask(Command::Session(SessionCommand::Configure(Configure {
            target: uuid(),
            patch: label("then"),
        })));
        let labels = [peer.reply().await, peer.reply().await].map(|reply| match reply {
            Ok(Reply::Session(SessionReply::Settled(row))) => row.settings.label,
            other => panic!("{other:?}"),
        });
        assert_eq!(labels[1].as_deref(), Some("then"), "{labels:?}");
    }
    let eve =
        Principal { owner: Owner::Credential("eve".into()), scopes: Scopes::USER, ..Principal::local() };
    let mut refusals = Vec::new();
    for target in [uuid(), Target::Uuid("no-such".into())] {
        let text = format!("{target:?}");
        for command in [
            Command::Session(SessionCommand::DescribeSession(DescribeSession { target: target.clone() })),
            Command::Session(SessionCommand::Attach(Attach { target: target.clone(), after: None })),
            Command::Session(SessionCommand::Close(Close { target: target.clone(), reason: String::new() })),
            Command::Session(SessionCommand::Abort(Abort { target, run: None })),
        ] {
            peer.ask_as(eve.clone(), command);
            let refused = peer.reply().await.expect_err("it is not hers");
            assert_eq!(refused.code, ErrorCode::NotFound, "{text}: {refused}");
            refusals.push(refused.message.replace(&key.uuid(), "no-such"));
        }
    }
    assert_eq!(refusals[..4], refusals[4..], "one is like the other");
    // It is another one, should it be made anew.
    peer.asks(Command::Session(SessionCommand::Delete(Delete { target: uuid() }))).await.unwrap();
    assert_eq!(peer.asks(describe()).await.unwrap_err().code, ErrorCode::NotFound);
    peer.ask_as(
        eve.clone(),
        Command::Session(SessionCommand::CreateSession(CreateSession {
            target: Target::Session(key.clone()),
            patch: label("mine"),
        })),
    );
    let Ok(Reply::Session(SessionReply::Settled(hers))) = peer.reply().await else { panic!("it is hers") };
    assert_ne!(hers.session.uuid(), key.uuid());
    peer.ask_as(eve.clone(), describe());
    assert_eq!(peer.reply().await.expect_err("hers has another").code, ErrorCode::NotFound);
    let describe = Command::Session(SessionCommand::DescribeSession(DescribeSession {
        target: Target::Uuid(hers.session.uuid()),
    }));
    peer.ask_as(eve, describe);
    assert!(matches!(peer.reply().await, Ok(Reply::Session(SessionReply::Session(Some(_))))));
}

#[actix::test]
async fn who_was_cut_off_goes_on_exactly_where_it_was() {
    let world = World::new().await;
    let (mut peer, mut other) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/slow 60", Some("its-key")));
    peer.accepted().await;
    let (mut seen, mut last) = (String::new(), Seq(0));
    while seen.len() < 9 {
        let logged = peer.event().await;
        last = logged.seq;
        if let Event::Text(text) = &logged.event {
            seen.push_str(text);
        }
    }
    for over in [false, true] {
        if over {
            peer.ask(Command::Session(SessionCommand::Abort(Abort { target: target("ada"), run: None })));
            peer.rest().await;
        }
        let under_way = other.transcript("ada", Some(last)).await.under_way.expect("it was under way there");
        assert_eq!((under_way.text.as_str(), under_way.seq), (seen.as_str(), last), "over: {over}");
        assert_eq!(under_way.idempotency_key.as_deref(), Some("its-key"));
        assert_eq!(other.transcript("ada", None).await.under_way.is_some(), !over);
        assert_eq!(other.transcript("ada", Some(Seq(1))).await.under_way, None, "it had not begun");
    }
}
