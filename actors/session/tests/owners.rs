//! Sessions of several owners.

use super::*;

#[actix::test]
async fn the_same_key_is_another_session_for_another_owner() {
    let world = World::new().await;
    let (mut waits, mut speaks) = (world.peer(1), world.peer(2));
    waits.ask_as(user("ada"), Attach { target: target("x"), after: None });
    waits.reply().await.unwrap();
    waits.ask_as(user("ada"), Clear { target: target("x") });
    assert_eq!(waits.reply().await.unwrap_err().message, "no such session: main:test:x:main");
    speaks.ask_as(user("bob"), prompt("x", "mine", None));
    assert_eq!(speaks.accepted().await.session.as_str(), "bob/main:test:x:main");
    speaks.rest().await;
    waits.ask_as(user("ada"), Attach { target: target("x"), after: None });
    let Ok(Reply::Session(SessionReply::Attached(Attached { head, .. }))) = waits.reply().await else {
        panic!("it is hers")
    };
    assert_eq!(head, Seq(0), "nothing was said in hers");
    assert!(waits.inbox.try_recv().is_err(), "it heard nothing of what is not its own");
}

#[actix::test]
async fn a_uuid_that_is_given_out_for_a_session_is_taken_by_no_prompt() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let key = SessionKey::parse("main:wundr:0f8fad5b-d9cb-469f-a165-70867728950e:main").unwrap();
    let named = || Target::Session(key.clone());
    let Command::Session(SessionCommand::Submit(submit)) = prompt("x", "mine", None) else {
        unreachable!("a prompt")
    };
    for command in [
        Command::from(Submit { target: named(), ..submit.clone() }),
        Command::from(Attach { target: named(), after: None }),
        Command::from(Reset { target: named() }),
    ] {
        peer.ask_as(user("eve"), command);
        assert_eq!(peer.reply().await.unwrap_err().message, format!("no such session: {key}"));
    }
    peer.ask_as(
        user("eve"),
        CreateSession { target: named(), patch: clawmux_core::prompt::settings::Patch::default() },
    );
    let Ok(Reply::Session(SessionReply::Settled(row))) = peer.reply().await else {
        panic!("that is how it is made")
    };
    assert_eq!((row.session.owner(), row.session.uuid()), (user("eve").owner, key.uuid()));
    peer.ask_as(user("eve"), Submit { target: named(), ..submit });
    assert_eq!(peer.accepted().await.session, row.session);
}

#[actix::test]
async fn who_waits_for_a_session_hears_nothing_of_anothers_of_the_same_key() {
    let world = World::new().await;
    let (mut bob, mut eve) = (world.peer(1), world.peer(2));
    for peer in [("bob", &mut bob), ("eve", &mut eve)] {
        peer.1.ask_as(user(peer.0), Attach { target: target("x"), after: None });
        peer.1.reply().await.unwrap();
    }
    bob.ask_as(user("bob"), prompt("x", "mine", None));
    bob.rest().await;
    assert!(eve.inbox.try_recv().is_err(), "it is another session");
}

#[actix::test]
async fn a_session_of_somebody_else_is_not_there() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask_as(user("ada"), prompt("ada", "hello", None));
    let accepted = peer.accepted().await;
    peer.rest().await;
    let stranger = user("bob");
    let session = Target::Session(SessionKey::parse(accepted.session.as_str()).unwrap());
    for command in [
        Command::from(ReadHistory { target: session.clone(), limit: 1, before: None }),
        Command::from(Clear { target: session.clone() }),
        Command::from(Abort { target: session.clone(), run: None }),
        Command::from(GetBudgets { target: Some(session.clone()) }),
        Command::from(Submit {
            target: session.clone(),
            run: RunId::from_random(clock::random()),
            content: "hi".into(),
            idempotency_key: None,
            attachments: Vec::new(),
            files: Vec::new(),
            local_files: Vec::new(),
            run_options: RunOptions::default(),
            follow: true,
        }),
    ] {
        let shown = format!("{command:?}");
        peer.ask_as(stranger.clone(), command);
        let error = peer.reply().await.expect_err(&shown);
        assert!(error.message.contains("no such session"), "{shown}: {error}");
    }
}
