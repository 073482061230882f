//! What is learned from conversations, from a prompt to `clawmux memory`: whose it is, what takes its place, and
//! what is not learned.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::upstream::{Turn, Upstream};
use crate::support::wundr::Wundr;

const PEOPLE: [(&str, &str); 3] = [("ada", "user"), ("eve", "user"), ("boss", "admin")];

fn connect(daemon: &Daemon, who: &str) -> Client {
    Client::connect_with(daemon.address, &key_of(who))
}

/// What `memory.search` finds.
fn search(client: &mut Client, query: &str) -> Vec<String> {
    let found = client.call("memory.search", json!({ "query": query }));
    let found = found["result"].as_array().unwrap_or_else(|| panic!("{found}"));
    assert!(
        found.iter().all(|memory| memory["score"].as_f64().is_some_and(|score| score > 0.0 && score <= 1.0))
    );
    found.iter().map(|memory| memory["content"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the best answer is this.
fn finds(client: &mut Client, query: &str, best: &str) {
    eventually(best, || search(client, query).first().is_some_and(|found| found == best).then_some(()));
}

/// How the learner is.
fn learner(daemon: &Daemon) -> Value {
    let actors = daemon.json_of(&["actors", "--children", "100"]);
    let children = actors["children"].as_array().unwrap_or_else(|| panic!("{actors}"));
    children.iter().find(|actor| actor["actor"] == "learner").unwrap_or_else(|| panic!("{actors}"))["state"]
        .clone()
}

/// Waits until so many exchanges were looked at.
fn looked_at(daemon: &Daemon, exchanges: u64) -> Value {
    eventually("exchanges to be looked at", || {
        let learner = learner(daemon);
        let is_over =
            learner["exchanges"] == exchanges && learner["queued"] == 0 && learner["looking"] == false;
        is_over.then_some(learner)
    })
}

#[test]
fn what_somebody_says_is_remembered_for_them_alone_and_what_is_new_takes_the_place_of_the_old() {
    let config = "[agents.main]\ntools = [\"memory\"]\n[limits]\nrequests_burst = 0\n";
    let mut daemon = Daemon::shared(config, &PEOPLE, &[]);
    let mut ada = connect(&daemon, "ada");
    ada.chat("home", "Hi! My name is Ada and I live in Porto. What is the weather?");
    finds(&mut ada, "where do I live?", "The user lives in Porto.");
    ada.chat("home", "I've moved to Lisbon. My cat is called Miu.");
    finds(&mut ada, "where do I live?", "The user lives in Lisbon.");
    finds(&mut ada, "what is my cat called?", "The user's cat is called Miu.");
    assert!(!search(&mut ada, "where do I live, Porto?").iter().any(|found| found.contains("Porto")));

    // Clients and agents find it in the same place.
    let mut client = Wundr::connect_with(daemon.address, &key_of("ada"));
    let found = client.call("memory.query", json!({ "query": "lives Lisbon" }));
    assert_eq!(found["results"][0]["content"], "The user lives in Lisbon.", "{found}");
    let told = ada.chat("work", r#"/tool memory_search {"query":"where does the user live?"}"#);
    let result = told.data("tool_result").next().unwrap()["content"].to_string();
    assert!(result.contains("lives in Lisbon") && !result.contains("Porto"), "{result}");

    // Nobody else does: by no method, tool or command about his own.
    for who in ["eve", "boss"] {
        let mut other = connect(&daemon, who);
        assert_eq!(search(&mut other, "where does Ada live, Lisbon?"), [""; 0], "{who}");
        let told = other.chat("peer", r#"/tool memory_search {"query":"Ada Lisbon Miu"}"#);
        assert_eq!(told.data("tool_result").next().unwrap()["content"], "nothing is remembered about that");
    }
    let mut eve = Wundr::connect_with(daemon.address, &key_of("eve"));
    let found = eve.call("memory.query", json!({ "query": "Ada lives Lisbon", "similarityThreshold": 0 }));
    assert_eq!(found["total"], 0, "{found}");
    assert_eq!(daemon.rows_of(&["memory", "export", "--owner", "eve"]), [Value::Null; 0]);
    assert_eq!(daemon.rows_of(&["memory", "search", "Lisbon", "--owner", "eve"]), [Value::Null; 0]);
    assert_eq!(daemon.rows_of(&["memory", "search", "Lisbon"]), [Value::Null; 0], "that of the operators");

    // Operators name her.
    let hits = daemon.rows_of(&["memory", "search", "where does she live?", "--owner", "ada"]);
    assert_eq!(hits[0]["content"], "The user lives in Lisbon.", "{hits:?}");
    let id = hits[0]["memory"].as_str().unwrap();
    let shown = daemon.json_of(&["memory", "show", &id[..8]]);
    assert_eq!(shown["history"][0]["content"], "The user lives in Porto.", "{shown}");
    assert_eq!(shown["history"][0]["superseded_by"], id, "{shown}");
    assert_eq!(
        (&shown["memory"]["source"], &shown["memory"]["session"]),
        (&json!("learned"), &json!("ada/main:websocket:home:main")),
        "{shown}"
    );

    // It is there once after a crash.
    let all = daemon.rows_of(&["memory", "export"]);
    assert_eq!(all.len(), 4, "{all:?}");
    daemon = daemon.kill_and_restart();
    assert_eq!(daemon.rows_of(&["memory", "export"]), all);
    let mut ada = connect(&daemon, "ada");
    ada.chat("home", "I live in Lisbon");
    looked_at(&daemon, 1);
    assert_eq!(daemon.rows_of(&["memory", "export"]), all, "that is known");
}

#[test]
fn operators_move_and_forget_what_is_remembered() {
    let daemon = Daemon::shared("[limits]\nrequests_burst = 0\n", &PEOPLE, &[]);
    let mut ada = connect(&daemon, "ada");
    ada.chat("home", "I live in Porto");
    ada.chat("home", "I live in Lisbon. I like tea");
    finds(&mut ada, "do I like tea?", "The user likes tea.");
    let exported = daemon.stdout_of(&["memory", "export", "--owner", "ada"]);
    let file = daemon.home().join("ada.jsonl");
    std::fs::write(&file, &exported).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(daemon.json_of(&["memory", "import", file]), json!({ "stored": 0, "known": 3 }));

    // For somebody else, once.
    let import = |owner: &str| daemon.json_of(&["memory", "import", file, "--owner", owner]);
    assert_eq!(import("eve"), json!({ "stored": 3, "known": 0 }));
    assert_eq!(import("eve"), json!({ "stored": 0, "known": 3 }));
    let mut eve = connect(&daemon, "eve");
    finds(&mut eve, "where do I live?", "The user lives in Lisbon.");
    assert!(!search(&mut eve, "Porto?").iter().any(|found| found.contains("Porto")), "history stays history");
    let bad = daemon.home().join("bad.jsonl");
    std::fs::write(&bad, format!("{exported}\n{{\"id\":\"x\"}}\n")).unwrap();
    let (status, _, said) = daemon.run(&["memory", "import", bad.to_str().unwrap(), "--owner", "boss"]);
    assert!(status == 1 && said.contains("memories[3]: missing field"), "{status} {said}");
    assert_eq!(daemon.rows_of(&["memory", "export", "--owner", "boss"]), [Value::Null; 0], "all or nothing");

    // Nobody is there to be asked.
    let tea = daemon.rows_of(&["memory", "search", "tea", "--owner", "ada"])[0]["memory"].clone();
    let tea = tea.as_str().unwrap();
    let (status, _, said) = daemon.run(&["memory", "forget", tea]);
    assert!(status == 2 && said.contains("likes tea") && said.contains("--yes"), "{status} {said}");
    daemon.stdout_of(&["memory", "forget", &tea[..8], "--yes"]);
    assert_eq!(search(&mut ada, "tea?"), [""; 0]);
    let (status, _, said) = daemon.run(&["memory", "forget", tea, "--yes"]);
    assert!(status == 1 && said.contains("no such memory"), "{status} {said}");
    let told = daemon.stdout_of(&["memory", "forget", "--all", "--owner", "ada", "--yes"]);
    assert!(told.contains("all 2 memories of ada"), "{told}");
    assert_eq!(daemon.rows_of(&["memory", "export", "--owner", "ada"]), [Value::Null; 0]);
    assert_eq!(daemon.rows_of(&["memory", "export", "--owner", "eve"]).len(), 3, "others keep theirs");
}

/// `main` on a model that is asked for facts.
fn with_model(upstream: &Upstream, memory: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n\
         [limits]\nrequests_burst = 0\n[memory]\n{memory}\n",
        upstream.base_url()
    )
}

fn say(text: impl Into<String>) -> Turn {
    Turn::Say(vec![text.into()])
}

fn facts(facts: &[(&str, &str, &str)]) -> Turn {
    let fact = |(subject, predicate, object): &(&str, &str, &str)| json!({ "subject": subject, "predicate": predicate, "object": object, "confidence": 0.9 });
    say(json!({ "facts": facts.iter().map(fact).collect::<Vec<_>>() }).to_string())
}

#[test]
fn a_model_finds_facts_which_are_checked_metered_and_in_nobody_elses_request() {
    let upstream = Upstream::start();
    let daemon = Daemon::shared(&with_model(&upstream, "learn = \"model\""), &PEOPLE, &[]);
    let mut ada = connect(&daemon, "ada");
    upstream.then(say("Noted.")).then(facts(&[
        ("user", "lives_in", "Zanzibar"),
        ("user", "works_at", "the ministry of made-up things"),
    ]));
    ada.chat("home", "These days you find me in Zanzibar, of all places");
    finds(&mut ada, "where do I live?", "The user lives in Zanzibar.");
    assert_eq!(search(&mut ada, "ministry works"), [""; 0], "what was never said is dropped");

    let requests = upstream.requests();
    assert_eq!(requests.len(), 2);
    let asked = requests[1].body.to_string();
    assert!(
        asked.contains("of all places") && asked.contains("Noted.") && !asked.contains("\"tools\""),
        "{asked}"
    );
    let usage = daemon.json_of(&["usage", "--by", "session"]);
    assert_eq!(usage["rows"][0]["calls"], 2, "it counts as any call: {usage}");

    // What a model answers otherwise teaches nothing, and nobody waits for it.
    for (at, reply) in ["I found nothing.", "{\"facts\":[{\"subject\":\"user\"}]}", ""].iter().enumerate() {
        upstream.then(say("ok")).then(say(*reply));
        assert_eq!(ada.chat("home", "I am in Zanzibar now and then").text(), "ok");
        looked_at(&daemon, at as u64 + 2);
    }
    upstream.then(say("ok")).then(Turn::Status(500, None, "{}".into()));
    assert_eq!(ada.chat("home", "I am there now and then").text(), "ok");
    let state = looked_at(&daemon, 5);
    assert_eq!((&state["facts"], &state["failed"]), (&json!(1), &json!(4)), "{state}");

    let before = upstream.requests().len();
    let mut eve = connect(&daemon, "eve");
    upstream.then(say("hello")).then(facts(&[]));
    eve.chat("home", "where does Ada live?");
    looked_at(&daemon, 6);
    for request in &upstream.requests()[before..] {
        assert!(!request.body.to_string().contains("Zanzibar"), "{}", request.body);
    }
    assert_eq!(search(&mut eve, "Zanzibar"), [""; 0]);
}

#[test]
fn learning_with_a_model_is_off_unless_it_is_asked_for_and_ends_with_its_tokens_for_the_day() {
    let upstream = Upstream::start();
    let daemon = Daemon::with(&with_model(&upstream, ""));
    let mut client = Client::connect(daemon.address);
    client.chat("home", "My name is Ada and I live in Lisbon");
    client.chat("home", "My name is Ada and I live in Lisbon");
    assert_eq!(upstream.requests().len(), 2, "one for each prompt");
    assert_eq!(learner(&daemon)["exchanges"], 0);

    let upstream = Upstream::start();
    // Room for one call, which reserves about 1,120.
    let mut daemon = Daemon::with(&with_model(&upstream, "learn = \"model\"\nlearn_tokens = 1150"));
    let mut client = Client::connect(daemon.address);
    upstream.then(say("ok")).then(Turn::Cut("{".into()));
    client.chat("home", "I live in Lisbon");
    looked_at(&daemon, 1);
    assert_eq!(upstream.requests().len(), 2);
    // What was set aside for the call that was cut off stays spent, also after a crash.
    client.chat("home", "I live in Lisbon, still");
    looked_at(&daemon, 2);
    assert_eq!(upstream.requests().len(), 3, "the prompt alone");
    daemon = daemon.kill_and_restart();
    let mut client = Client::connect(daemon.address);
    client.chat("home", "I live in Lisbon, again");
    looked_at(&daemon, 1);
    assert_eq!(upstream.requests().len(), 4, "the prompt alone");
}

#[test]
fn what_tools_return_and_jobs_say_is_not_learned() {
    let daemon = Daemon::with("[memory]\nlearn = \"rules\"\n");
    let mut client = Client::connect(daemon.address);
    client.chat("home", r#"/tool echo {"text":"My name is Mallory. I live in Rome."}"#);
    client.chat("home", "> I live in Rome\nis what they wrote. \"My name is Mallory\", they said.");
    daemon.stdout_of(&["job", "add", "--at", "+1h", "--name", "j", "--prompt", "I live in Rome"]);
    daemon.stdout_of(&["job", "run", "j"]);
    client.chat("home", "I live in Lisbon");
    let state = looked_at(&daemon, 3);
    assert_eq!(state["facts"], 1, "{state}");
    let all = daemon.rows_of(&["memory", "export"]);
    assert_eq!((all.len(), &all[0]["fact"]["object"]), (1, &json!("Lisbon")), "{all:?}");
}
