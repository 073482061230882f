//! Prompts and their runs.

use super::*;

#[actix::test]
async fn a_refused_prompt_does_not_keep_its_idempotency_key() {
    let world = World::new().await;
    let (mut peer, mut bob) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/slow 100", None));
    peer.accepted().await;
    for n in 0..4 {
        peer.ask(prompt("ada", &format!("number {n}"), None));
    }
    let refused = peer.ask(prompt("ada", "one too many", Some("k")));
    loop {
        if let Deliver::Reply(ticket, reply) = peer.next().await
            && ticket == refused
        {
            assert!(reply.unwrap_err().message.contains("queue is full"));
            break;
        }
    }
    let mut other = world.peer(3);
    other.ask(prompt("elsewhere", "for another session", Some("k")));
    assert!(other.accepted().await.session.as_str().contains("elsewhere"));
    // Nor does one that was refused because the session is somebody else's.
    let Command::Session(SessionCommand::Submit(submit)) = prompt("ada", "may I?", Some("k")) else {
        unreachable!("a prompt")
    };
    let hers = SessionKey::parse("eve/main:test:ada:main").unwrap();
    bob.ask_as(user("bob"), Submit { target: Target::Session(hers), ..submit });
    assert!(bob.reply().await.unwrap_err().message.contains("no such session"));
    bob.ask_as(user("bob"), prompt("bob", "may I here?", Some("k")));
    assert!(bob.accepted().await.session.as_str().contains("bob"));
}

#[actix::test]
async fn one_key_in_two_sessions_at_once_is_one_run() {
    let world = World::new().await;
    let (mut one, mut two) = (world.peer(1), world.peer(2));
    one.ask(prompt("ada", "first", Some("k")));
    two.ask(prompt("bob", "second", Some("k")));
    let (first, second) = (one.accepted().await, two.accepted().await);
    assert_eq!((&first.run, &first.session), (&second.run, &second.session));
    assert_ne!(first.repeated, second.repeated);
    assert_eq!(text(&one.rest().await), text(&two.rest().await));
}

#[actix::test]
async fn what_comes_in_is_done_in_its_order_though_keys_are_looked_up_in_the_log() {
    let world = World::new().await;
    for round in 0..10 {
        let account = format!("ada {round}");
        let mut peer = world.peer(round);
        for (at, keyed) in [true, true, false, true, true].into_iter().enumerate() {
            let key = format!("{account} {at}");
            peer.ask(prompt(&account, "/slow 60", keyed.then_some(&key)));
        }
        // In another session, which nobody has named yet: its end must not come before it.
        let elsewhere = target(&format!("bob {round}"));
        let unwanted = RunId::from_random(clock::random());
        let submit = Submit {
            target: elsewhere.clone(),
            run: unwanted.clone(),
            content: "/slow 60".into(),
            idempotency_key: Some(account.clone()),
            attachments: Vec::new(),
            files: Vec::new(),
            local_files: Vec::new(),
            run_options: RunOptions::default(),
            follow: true,
        };
        peer.ask(submit);
        peer.ask(Abort { target: elsewhere, run: Some(unwanted.clone()) });
        let (mut seqs, mut aborted) = (Vec::new(), None);
        while seqs.len() < 6 || aborted.is_none() {
            match peer.next().await {
                Deliver::Reply(ticket, reply) => match reply.unwrap() {
                    Reply::Session(SessionReply::Accepted(accepted)) => seqs.push((ticket, accepted.seq)),
                    Reply::Session(SessionReply::Aborted(Aborted { run })) => aborted = Some(run),
                    other => panic!("{other:?}"),
                },
                Deliver::Event { .. } | Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
            }
        }
        seqs.sort();
        let in_order = seqs[..5].windows(2).all(|pair| pair[0].1 < pair[1].1);
        assert!(in_order, "round {round}: prompts overtook each other: {seqs:?}");
        assert_eq!(aborted, Some(Some(unwanted)), "round {round}: its end overtook it");
        peer.ask(Abort { target: target(&account), run: None });
    }
}

#[actix::test]
async fn a_full_queue_is_a_typed_refusal_and_abort_empties_it() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "/slow 100", None));
    peer.accepted().await;
    for n in 0..4 {
        peer.ask(prompt("ada", &format!("number {n}"), None));
    }
    peer.ask(prompt("ada", "one too many", None));
    let mut refused = None;
    for _ in 0..5 {
        loop {
            if let Deliver::Reply(_, reply) = peer.next().await {
                refused = refused.or(reply.err());
                break;
            }
        }
    }
    let refused = refused.expect("one was refused");
    assert!(refused.is_retryable() && refused.message.contains("queue is full"), "{refused}");
    for _ in 0..5 {
        peer.ask(Abort { target: target("ada"), run: None });
        let ended = peer.rest().await;
        assert!(matches!(ended.last().unwrap().event, Event::Ended { outcome: Outcome::Aborted(_), .. }));
    }
}

#[actix::test]
async fn an_aborted_answer_says_what_it_has_cost() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of the turnstone", None));
    peer.accepted().await;
    while !matches!(peer.event().await.event, Event::Text(_)) {}
    peer.ask(Abort { target: target("ada"), run: None });
    let ended = peer.rest().await.pop().unwrap().event;
    let Event::Ended { outcome: Outcome::Aborted(_), usage } = ended else { panic!("{ended:?}") };
    assert!(usage.input_tokens > 0 && usage.output_tokens > 0, "{usage:?}");
}

#[actix::test]
async fn a_granted_command_of_a_node_is_a_tool_while_it_is_connected() {
    let world = World::new().await;
    let (mut phone, mut peer) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/tool node_phone_camera_snap {}", None));
    assert!(text(&peer.rest().await).contains("There is no tool node_phone_camera_snap"), "not offered");

    let about = About {
        instance_id: Some("phone".into()),
        commands: vec!["camera.snap".into(), "system.run".into()],
        ..About::default()
    };
    let (client, host) = (phone.client.clone(), String::from("::1"));
    let joins = NodeJoins { client, owner: Owner::Admins, host, about, device: None };
    world.nodes.send(joins).await.unwrap();
    let invocation = async |phone: &mut Peer| -> Arc<Invocation> {
        match phone.next().await {
            Deliver::Invoke(invocation) => invocation,
            other => panic!("{other:?}"),
        }
    };
    let returned = |events: &[Logged]| {
        events.iter().find_map(|logged| match &logged.event {
            Event::ToolReturned(result) => Some(result.clone()),
            _ => None,
        })
    };
    peer.ask(prompt("ada", r#"/tool node_phone_camera_snap {"facing":"front"}"#, None));
    let asked = invocation(&mut phone).await;
    assert_eq!(
        (asked.command.as_str(), asked.params.as_deref()),
        ("camera.snap", Some(r#"{"facing":"front"}"#))
    );
    let (connection, outcome) = (phone.client.connection, Ok(Some(r#"{"seen":"a cat"}"#.to_owned())));
    world.nodes.send(Resulted { connection, invocation: asked.id.clone(), outcome }).await.unwrap();
    let events = peer.rest().await;
    let result = returned(&events).expect("it is in the log");
    assert_eq!((result.content.as_str(), result.is_error), (r#"{"seen":"a cat"}"#, false));
    assert!(text(&events).contains("a cat"), "the model is told: {}", text(&events));
    let not_granted = peer.ask(prompt("ada", "/tool node_phone_system_run {}", None));
    assert_eq!(not_granted, Ticket(3));
    assert!(text(&peer.rest().await).contains("There is no tool"), "only what was granted");

    // It leaves in the middle of a call.
    peer.ask(prompt("ada", "/tool node_phone_camera_snap {}", None));
    invocation(&mut phone).await;
    world.nodes.send(NodeLeaves { connection }).await.unwrap();
    let result = returned(&peer.rest().await).expect("it is in the log");
    assert!(result.is_error && result.content.starts_with("NOT_CONNECTED: "), "{result:?}");
}
