//! Two daemons that are one cluster: clients of each find the same sessions, wherever they are.

use std::thread;

use serde_json::{Value, json};

use crate::bus::nats::Server;
use crate::cluster::{begun, server, status};
use crate::support::client::{Client, Stream};
use crate::support::daemon::{Daemon, home, key_of};
use crate::support::eventually;
use crate::support::tools::needs;
use crate::support::wundr::Wundr;

/// A daemon, and its name among the nodes.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) daemon: Daemon,
}

/// Two daemons, each of which owns its share.
pub(crate) fn pair() -> (Server, [Node; 2]) {
    pair_with("", &[])
}

/// The same, with this in the configuration and the environment of both.
pub(crate) fn pair_with(more: &str, env: &[(&str, &str)]) -> (Server, [Node; 2]) {
    let (server, config) = server();
    let home_of_a = begun(&config);
    let config = format!("{config}\n{more}");
    let a = Node { name: "a", daemon: Daemon::at(home_of_a, &config, env) };
    let config = config.replace("node = \"a\"", "node = \"b\"");
    let b = Node { name: "b", daemon: Daemon::at(home(), &config, env) };
    eventually("each owns some slots, and all are owned", || {
        let cluster = status(&a.daemon);
        let slots = |node: usize| cluster["nodes"][node]["slots"].as_u64().unwrap_or_default();
        slots(0) > 64 && slots(1) > 64 && slots(0) + slots(1) == 256
    });
    (server, [a, b])
}

/// Accounts whose sessions this node owns, and those of the other one: `main:websocket:NAME:main`.
pub(crate) fn accounts(node: &Node) -> (Vec<String>, Vec<String>) {
    let all = (0..24).map(|number| format!("ada{number}"));
    all.partition(|account| {
        let key = format!("main:websocket:{account}:main");
        node.daemon.rows_of(&["cluster", "slots", "--session", &key])[0]["owner"] == node.name
    })
}

#[test]
fn who_joins_takes_a_share_of_the_slots_and_moves_nothing_else() {
    needs!("nats-server");
    let (_server, [a, _b]) = pair();
    let owners = || {
        let slots = a.daemon.rows_of(&["cluster", "slots"]);
        slots.iter().map(|slot| slot["owner"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let before = owners();
    let config = std::fs::read_to_string(a.daemon.home().join("gateway.toml")).unwrap();
    let _c = Daemon::at(home(), &config.replace("node = \"a\"", "node = \"c\""), &[]);
    let after = eventually("the third has its share, and all are owned", || {
        let owners = owners();
        let of_c = owners.iter().filter(|owner| *owner == "c").count();
        (of_c > 42 && owners.iter().all(|owner| !owner.is_empty())).then_some(owners)
    });
    let moved: Vec<&String> =
        before.iter().zip(&after).filter(|(before, after)| before != after).map(|(_, after)| after).collect();
    assert!(moved.iter().all(|owner| *owner == "c"), "{moved:?}");
    assert!(moved.len() < 128, "a third of 256, give or take: {}", moved.len());
}

#[test]
fn a_client_of_either_daemon_speaks_to_any_session_and_reads_what_it_wrote() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (of_a, of_b) = accounts(&a);
    assert!(!of_a.is_empty() && !of_b.is_empty(), "{of_a:?} {of_b:?}");
    let (mut at_a, mut at_b) = (Client::connect(a.daemon.address), Client::connect(b.daemon.address));
    for account in of_a.iter().take(3).chain(of_b.iter().take(3)) {
        let first = at_a.chat(account, "hello");
        assert_eq!(first.events().last(), Some(&"done"), "{account}: {:?}", first.events());
        // The same session, with what was said at the other daemon.
        let second = at_b.chat(account, "again");
        assert!(second.text().contains("I remember 1 earlier message"), "{account}: {}", second.text());
        let key = format!("main:websocket:{account}:main");
        let exported = b.daemon.stdout_of(&["session", "export", &key, "--json"]);
        assert!(exported.contains("again"), "what was answered at B can be read there at once: {exported}");
        eventually("A has it too", || a.daemon.stdout_of(&["session", "export", &key, "--json"]) == exported);
    }
}

#[test]
fn who_follows_at_another_daemon_is_told_text_as_it_is_said_and_everything_once() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (of_a, of_b) = accounts(&a);
    for (account, speaks, follows) in [(&of_a[0], &a, &b), (&of_b[0], &a, &b), (&of_a[1], &b, &a)] {
        let mut follower = Client::connect(follows.daemon.address);
        let mut speaker = Client::connect(speaks.daemon.address);
        assert_eq!(speaker.chat(account, "hello").events().last(), Some(&"done"));
        let key = format!("main:websocket:{account}:main");
        let attach = follower.request("session.attach", json!({ "session": key }));
        let attached = follower.reply(&attach);
        assert!(attached["error"].is_null(), "{attached}");
        let prompt = speaker.prompt(account, "/slow 2");
        let mut frames: Vec<Value> = Vec::new();
        while frames.last().is_none_or(|last| last["event"] != "done") {
            let frame = follower.find(|frame| frame["id"] == attach.as_str() && frame["event"].is_string());
            frames.push(frame);
        }
        let texts = frames.iter().filter(|frame| frame["event"] == "text").count();
        assert!(texts > 1, "text came in one piece, with the end of its step: {frames:?}");
        let numbers = |frame: &Value| {
            let seq = frame["seq"].as_u64().unwrap();
            (frame["first_seq"].as_u64().unwrap_or(seq), seq)
        };
        for pair in frames.windows(2) {
            assert_eq!(numbers(&pair[1]).0, numbers(&pair[0]).1 + 1, "{pair:?}");
        }
        assert_eq!(speaker.stream(&prompt).events().last(), Some(&"done"));
    }
}

#[test]
fn a_key_that_comes_to_two_sessions_at_once_is_one_run_that_both_are_told() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (of_a, of_b) = accounts(&a);
    for round in 0..12 {
        // Each session is at hand for who asks in it, or each at the other daemon.
        let (first, second) = if round % 2 == 0 { (&of_a[0], &of_b[0]) } else { (&of_b[0], &of_a[0]) };
        let asks = [(&a, first), (&b, second)].map(|(node, account)| {
            let (address, account) = (node.daemon.address, account.clone());
            thread::spawn(move || {
                let mut client = Client::connect(address);
                let prompt = client.request(
                    "chat.send",
                    json!({
                        "channel": "websocket", "account": account,
                        "content": "hello", "idempotency_key": format!("round {round}"),
                    }),
                );
                client.stream(&prompt)
            })
        });
        let [here, there] = asks.map(|ask| ask.join().unwrap());
        for stream in [&here, &there] {
            assert_eq!(stream.events().last(), Some(&"done"), "round {round}: {:?}", stream.0);
        }
        let run = |stream: &Stream| stream.0.last().unwrap()["run"].clone();
        assert_eq!(run(&here), run(&there), "round {round}");
        assert_eq!(here.lasting_text(), there.lasting_text(), "round {round}");
    }
}

#[test]
fn a_daemon_that_is_drained_gives_its_sessions_away_and_takes_them_back() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (_, of_b) = accounts(&a);
    let mut at_b = Client::connect(b.daemon.address);
    let prompt = at_b.prompt(&of_b[0], "/slow 3");
    at_b.find(|frame| frame["event"] == "text");
    let told = b.daemon.stdout_of(&["drain"]);
    assert!(told.starts_with("drained: the other daemons have its sessions"), "{told}");
    assert!(b.daemon.rows_of(&["cluster", "slots"]).iter().all(|slot| slot["owner"] == "a"));
    assert_eq!((b.daemon.get("/readyz").0, a.daemon.get("/readyz").0), (503, 200));
    // What ran is said to its end, and what comes is answered.
    let stream = at_b.stream(&prompt);
    assert!(stream.lasting_text().ends_with("1 2 3 done."), "{}", stream.lasting_text());
    assert_eq!(at_b.chat(&of_b[1], "hello").events().last(), Some(&"done"));
    b.daemon.stdout_of(&["drain", "--off"]);
    assert_eq!(b.daemon.get("/readyz").0, 200);
    eventually("it has its share again", || {
        let slots = b.daemon.rows_of(&["cluster", "slots"]);
        slots.iter().filter(|slot| slot["owner"] == "b").count() > 64
    });
    assert_eq!(at_b.chat(&of_b[1], "again").events().last(), Some(&"done"));
}

#[test]
fn daemons_that_are_all_to_give_their_sessions_away_keep_them() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (of_a, of_b) = accounts(&a);
    // At the same time, so that each may take the other one for a taker.
    thread::scope(|scope| {
        for node in [&a, &b] {
            scope.spawn(|| node.daemon.run(&["cluster", "handover", node.name]));
        }
    });
    let mut client = Client::connect(a.daemon.address);
    for account in [&of_a[0], &of_b[0]] {
        assert_eq!(client.chat(account, "hello").events().last(), Some(&"done"), "{account}");
    }
}

#[test]
fn what_a_killed_daemon_was_doing_goes_on_at_the_other_one_and_nothing_is_done_twice() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (_, of_b) = accounts(&a);
    let runs: Vec<_> = of_b
        .iter()
        .take(4)
        .map(|account| {
            let (address, account) = (a.daemon.address, account.clone());
            thread::spawn(move || {
                let stream = Client::connect(address).chat(&account, "/slow 3");
                (account, stream.events().last().map(|last| (*last).to_owned()), stream.lasting_text())
            })
        })
        .collect();
    eventually("runs are under way at B", || {
        b.daemon.rows_of(&["sessions"]).iter().filter(|row| row["state"] == "running").count() == 4
    });
    b.daemon.signal("KILL");
    for run in runs {
        let (account, last, text) = run.join().unwrap();
        assert_eq!(last.as_deref(), Some("done"), "{account}: {text}");
        assert!(text.ends_with("1 2 3 done."), "{account}: {text}");
        let key = format!("main:websocket:{account}:main");
        let exported = a.daemon.stdout_of(&["session", "export", &key, "--json"]);
        assert_eq!(exported.matches("\"/slow 3\"").count(), 1, "{exported}");
    }
    eventually("A owns everything", || {
        a.daemon.rows_of(&["cluster", "slots"]).iter().all(|slot| slot["owner"] == "a")
    });
}

#[test]
fn what_a_principal_spends_at_one_daemon_counts_at_the_other() {
    needs!("nats-server");
    let key = key_of("ada");
    let config = "[limits]\nrequests_burst = 200\nrequests_per_second = 1\n\
                  [[auth.api_keys]]\nname = \"ada\"\nkey_env = \"KEY_ada\"\nrole = \"user\"\n";
    let (_server, [a, b]) = pair_with(config, &[("KEY_ada", &key)]);
    let mut clients = [&a, &b].map(|node| Wundr::connect_with(node.daemon.address, &key));
    let mut spent = 0;
    let mut is_refused = |client: &mut Wundr| {
        // There is none, and it costs 1 to be told that.
        let id = client.request("prompt.cancel", json!({ "promptId": "none" }));
        let is_refused = client.answer(&id).is_err_and(|error| error["code"] == "RATE_LIMITED");
        spent += usize::from(!is_refused);
        is_refused
    };
    while !is_refused(&mut clients[0]) {}
    eventually("it is refused at the other", || is_refused(&mut clients[1]));
    // Alone each would let him spend all of it.
    assert!(spent < 300, "{spent}");
}

#[test]
fn a_call_that_waits_for_approval_is_known_to_a_daemon_that_starts_later() {
    needs!("nats-server");
    let (_server, [a, b]) = pair_with("[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n", &[]);
    let (of_a, _) = accounts(&a);
    let mut at_a = Client::connect(a.daemon.address);
    at_a.prompt(&of_a[0], r#"/tool echo {"text":"hi"}"#);
    let waits = |daemon: &Daemon| {
        eventually("a call that waits", || daemon.rows_of(&["approvals"]).pop())["approval"].clone()
    };
    let id = waits(&a.daemon);
    assert!(id.is_string(), "{id}");
    assert_eq!(waits(&b.daemon), id);
    let b = b.daemon.kill_and_restart();
    assert_eq!(waits(&b), id, "nothing has happened in its session since");
}
