//! The bus while things fail: what is said is run once and answered once, in order, whatever is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use serde_json::json;

use super::nats::{Adapter, Answer, Server};
use super::{ADA, config, started, status};
use crate::support::daemon::Daemon;
use crate::support::tools::needs;
use crate::support::{TIMEOUT, eventually};

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// That every message was answered, each once by id, and those of a peer in the order in which they were said.
fn check(answers: &[Answer], said: &BTreeMap<String, Vec<String>>) {
    let mut by_id: BTreeMap<&str, &Answer> = BTreeMap::new();
    let mut in_order: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut runs: BTreeMap<&str, &str> = BTreeMap::new();
    for answer in answers {
        // A consumer that looks at ids takes the first of several with one.
        if by_id.insert(&answer.id, answer).is_some() {
            continue;
        }
        assert_eq!(answer.body["status"], "completed", "{answer:?}");
        in_order.entry(&answer.subject).or_default().push(&answer.to);
        if let Some(other) = runs.insert(&answer.to, &answer.id) {
            panic!("{} was run twice: {other} and {}", answer.to, answer.id);
        }
    }
    for (subject, ids) in said {
        let answered = in_order.get(format!("{subject}.answer").as_str()).cloned().unwrap_or_default();
        assert_eq!(&answered, ids, "of {subject}");
    }
}

/// Messages of many peers while daemon and server are killed again and again. `CLAWMUX_BUS_MESSAGES` and
/// `CLAWMUX_BUS_KILLS` say how many.
#[test]
fn every_message_is_run_once_and_answered_once_through_kills() {
    needs!("nats-server");
    let (messages, kills) = (number("CLAWMUX_BUS_MESSAGES", 600), number("CLAWMUX_BUS_KILLS", 6));
    let peers = 20;
    let (mut server, mut daemon, adapter) = started("[limits]\nqueue = 1000\n");
    let url = server.url();
    let is_over = Arc::new(AtomicBool::new(false));
    let speaker = {
        let is_over = is_over.clone();
        std::thread::spawn(move || {
            let adapter = Adapter::new(&[url]);
            let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for n in 0..messages {
                let (subject, id) = (format!("exoclaw.load.main.p{}", n % peers), format!("m{n}"));
                adapter.say(&subject, &id, &format!("{n}"));
                said.entry(subject).or_default().push(id);
            }
            is_over.store(true, Relaxed);
            said
        })
    };
    // Spread over the whole of it: with each kill so many more are answered.
    for kill in 0..kills {
        let wanted = messages * (kill + 1) / (kills + 2);
        let start = Instant::now();
        while adapter.answers().len() < wanted && start.elapsed() < TIMEOUT {
            std::thread::yield_now();
        }
        match kill % 3 {
            0 => daemon = daemon.kill_and_restart(),
            1 => {
                server.kill();
                server.start_again();
            }
            _ => {
                server.kill();
                daemon = daemon.kill_and_restart();
                server.start_again();
            }
        }
    }
    let said = speaker.join().unwrap();
    assert!(is_over.load(Relaxed));
    let patience = Instant::now();
    let answers = loop {
        let answers = adapter.answers();
        let distinct: std::collections::BTreeSet<&str> = answers.iter().map(|answer| &*answer.to).collect();
        if distinct.len() == messages {
            break answers;
        }
        assert!(
            patience.elapsed() < TIMEOUT * 5,
            "{} of {messages}: {}\n{}",
            distinct.len(),
            status(&daemon),
            daemon.log()
        );
        std::thread::yield_now();
    };
    check(&answers, &said);
    eventually("nothing is left in the outbox", || status(&daemon)["outbox"] == 0);
    eventually("nothing is left in the stream", || adapter.count("EXOCLAW") == 0);
    assert_eq!(adapter.count("EXOCLAW_DLQ"), 0);
}

#[test]
fn a_daemon_without_its_server_works_and_catches_up() {
    needs!("nats-server");
    let mut server = Server::start();
    let url = server.url();
    server.kill();
    let daemon = Daemon::with(&config(&[&server], ""));
    eventually("the server is missed", || status(&daemon)["bus"] == "away");
    assert_eq!(daemon.get("/readyz").0, 200);
    server.start_again();
    let adapter = Adapter::new(&[url]);
    adapter.await_streams();
    adapter.say(ADA, "1", "/slow 2");
    eventually("it is being answered", || status(&daemon)["prompted_total"] == 1);
    // It is answered while nobody can hear it, and heard once somebody can.
    server.kill();
    eventually("the server is missed again", || status(&daemon)["bus"] == "away");
    eventually("the answer waits", || {
        status(&daemon)["outbox"].as_u64() > Some(0) || {
            daemon
                .stdout_of(&["session", "show", "bus/main:matrix:main:@ada%3Aexample.org"])
                .contains("completed")
        }
    });
    server.start_again();
    assert_eq!(adapter.answer_to("1").body["status"], "completed");
    assert_eq!(adapter.answers().len(), 1);
}

#[test]
fn answers_wait_for_room_in_a_full_stream() {
    needs!("nats-server");
    let server = Server::start();
    let adapter = Adapter::new(&[server.url()]);
    let full = stream::Config {
        name: "EXOCLAW_OUT".to_owned(),
        subjects: vec!["exoclaw.*.*.*.answer".to_owned()],
        max_messages: 1,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let stream = adapter.wait(adapter.js.create_stream(full)).unwrap();
    let daemon = Daemon::with(&config(&[&server], ""));
    adapter.await_streams();
    for id in ["1", "2", "3"] {
        adapter.say(&format!("exoclaw.matrix.main.p{id}"), id, "hi");
    }
    eventually("two wait", || {
        let bus = status(&daemon);
        bus["outbox"] == 2 && bus["publish_failures_total"].as_u64() >= Some(2)
    });
    assert!(status(&daemon)["last_error"].as_str().unwrap().contains("maximum messages exceeded"));
    // Also over a restart. Each answer that is taken makes room for the next.
    let daemon = daemon.kill_and_restart();
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let answer: Answer = eventually("an answer", || adapter.answers().pop());
        heard.push(answer.to);
        adapter.wait(async { stream.purge().await }).unwrap();
    }
    heard.sort();
    assert_eq!(heard, ["1", "2", "3"]);
    eventually("nothing waits", || status(&daemon)["outbox"] == 0);
}

#[test]
fn one_who_floods_keeps_nobody_else_waiting() {
    needs!("nats-server");
    let (_server, daemon, adapter) = started("[limits]\nqueue = 4\n");
    // Far more than is held for all together, each of which takes a while.
    adapter.wait(async {
        let mut acks = Vec::new();
        for n in 0..3000 {
            let sent = adapter.js.publish("exoclaw.load.main.flood", format!("/slow 1 {n}").into()).await;
            acks.push(sent.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
    });
    for n in 0..20 {
        adapter.say(&format!("exoclaw.load.main.p{n}"), &format!("other {n}"), "hi");
    }
    for n in 0..20 {
        adapter.answer_to(&format!("other {n}"));
    }
    let bus = status(&daemon);
    let left = adapter.count("EXOCLAW");
    assert!(left > 2500 && bus["dead_letters"] == 0, "{left} are left: {bus}");
    assert!(bus["given_back_total"].as_u64() > Some(0), "{bus}");
    let flooded: Vec<_> =
        adapter.answers().into_iter().filter(|answer| answer.subject.contains("flood")).collect();
    let order: Vec<u64> =
        flooded.iter().map(|answer| answer.to.split(':').nth(1).unwrap().parse().unwrap()).collect();
    assert!(order.is_sorted(), "{order:?}");
}

/// A message that ends the daemon each time it is taken is no more taken in the end. Here it is one that was delivered
/// often and noted as tried, as that leaves it.
#[test]
fn what_was_delivered_too_often_has_one_more_chance() {
    needs!("nats-server");
    let (server, daemon, adapter) = started("");
    eventually("messages are taken", || status(&daemon)["bus"] == "running");
    daemon_gone(daemon, |daemon| {
        adapter.say(ADA, "often", "hi");
        let consumer = adapter.wait(async {
            let stream = adapter.js.get_stream("EXOCLAW").await.unwrap();
            stream.get_consumer::<async_nats::jetstream::consumer::pull::Config>("clawmux").await.unwrap()
        });
        for _ in 0..20 {
            adapter.wait(async {
                use futures::StreamExt as _;
                let mut batch = consumer
                    .batch()
                    .max_messages(1)
                    .expires(Duration::from_secs(5))
                    .messages()
                    .await
                    .unwrap();
                let message = batch.next().await.unwrap().unwrap();
                message.ack_with(async_nats::jetstream::AckKind::Nak(None)).await.unwrap();
            });
        }
        let daemon = daemon.start_again();
        assert_eq!(adapter.answer_to("often").body["status"], "completed", "{}", status(&daemon));
        assert_eq!(adapter.count("EXOCLAW_DLQ"), 0);
        drop(daemon);
    });
    drop(server);
}

/// With a daemon that is stopped.
fn daemon_gone(mut daemon: Daemon, then: impl FnOnce(crate::support::daemon::Stopped)) {
    daemon.terminate();
    then(daemon.stopped());
}

/// The client of the daemon ends its connection over such headers, or panics.
#[test]
fn headers_that_nobody_can_read_keep_nobody_from_being_answered() {
    needs!("nats-server");
    let (server, daemon, adapter) = started("");
    for (n, header) in [&b"Nats-Msg-Id: a\rb"[..], b"X-Foo: a\xffb", b"no colon"].into_iter().enumerate() {
        let headers = [b"NATS/1.0\r\n", header, b"\r\n\r\n"].concat();
        server.publish_raw(&format!("exoclaw.raw.main.p{n}"), &headers, b"hello");
        adapter.say(ADA, &format!("fine {n}"), "hi");
    }
    for n in 0..3 {
        assert_eq!(adapter.answer_to(&format!("fine {n}")).body["status"], "completed");
    }
    eventually("they are dead letters", || {
        adapter.count("EXOCLAW_DLQ") == 3 && adapter.count("EXOCLAW") == 0
    });
    let letters = daemon.rows_of(&["bus", "dlq", "list"]);
    assert!(
        letters.iter().all(|letter| letter["reason"].to_string().contains("headers can't be read")),
        "{letters:?}"
    );
    eventually("the bus works", || status(&daemon)["bus"] == "running");
}

#[test]
fn an_id_that_says_nothing_is_none_and_letters_of_one_id_are_all_replayed() {
    needs!("nats-server");
    let (server, daemon, adapter) = started("");
    for n in 0..3 {
        server.publish_raw(
            "exoclaw.raw.main.p",
            b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n",
            format!("hello {n}").as_bytes(),
        );
    }
    eventually("all are answered", || adapter.answers().len() == 3);
    // The server does not see that these are of one id, for it forgets where a stream is another one; here it is an
    // empty payload under no id, and the letters get the same.
    for n in 0..3 {
        adapter.say_with(&format!("exoclaw.raw.main.q{n}"), " ", &[("X", "y")]);
    }
    eventually("they are dead letters", || daemon.rows_of(&["bus", "dlq", "list"]).len() == 3);
    daemon.stdout_of(&["bus", "dlq", "replay", "--all"]);
    eventually("all came again", || {
        let letters = daemon.rows_of(&["bus", "dlq", "list"]);
        letters.len() == 3 && letters.iter().all(|letter| letter["id"].to_string().contains("#replay-1"))
    });
}

#[test]
fn one_that_stood_still_runs_nothing_that_another_one_was_given() {
    needs!("nats-server");
    let (server, first, adapter) = started("[limits]\nqueue = 1\n");
    // Two have room in the session, the others are held.
    for id in ["1", "2", "3", "4"] {
        adapter.say(ADA, id, if id == "1" { "/slow 8" } else { "hi" });
    }
    eventually("they are held", || status(&first)["held"] == 2);
    first.signal("STOP");
    let second = Daemon::with(&config(&[&server], ""));
    for id in ["3", "4"] {
        adapter.answer_to(id);
    }
    first.signal("CONT");
    for id in ["1", "2"] {
        adapter.answer_to(id);
    }
    eventually("one of them stands back", || {
        [&first, &second].iter().any(|daemon| status(daemon)["bus"] == "claimed")
    });
    let answers = adapter.answers();
    assert_eq!(answers.len(), 4, "{answers:?}");
}

/// Three servers, the one that leads the stream of which is killed.
#[test]
fn of_three_servers_one_may_go() {
    needs!("nats-server");
    let mut servers = Server::cluster();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let adapter = Adapter::new(&urls);
    eventually("the three are one", || adapter.wait(adapter.js.query_account()).is_ok());
    let daemon = Daemon::with(&config(&servers.each_ref(), ""));
    adapter.await_streams();
    eventually("messages are taken", || status(&daemon)["bus"] == "running");
    let info =
        adapter.wait(async { adapter.js.get_stream("EXOCLAW").await.unwrap().get_info().await }).unwrap();
    assert_eq!(info.config.num_replicas, 3, "what is made on a cluster has replicas");
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for n in 0..60 {
        if n == 20 {
            let leader = info.cluster.as_ref().and_then(|cluster| cluster.leader.clone()).unwrap();
            let leads = |server: &&mut Server| format!("n{}", server.route()) == leader;
            servers.iter_mut().find(leads).unwrap().kill();
        }
        let (subject, id) = (format!("exoclaw.load.main.p{}", n % 3), format!("m{n}"));
        adapter.say(&subject, &id, "hi");
        said.entry(subject).or_default().push(id);
    }
    let answers = eventually("all answers", || {
        let answers = adapter.answers();
        (answers.len() >= 60).then_some(answers)
    });
    check(&answers, &said);
    assert_eq!(status(&daemon)["dead_letters"], json!(0));
}
