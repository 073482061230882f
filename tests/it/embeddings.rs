//! What is remembered is found by what it means, by vectors of a provider: for its owner alone, after a crash and
//! with another model too; and by words where the provider makes none.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::eventually;
use crate::support::upstream::{Embedding, Request, Upstream};
use crate::support::wundr::Wundr;

const PEOPLE: [(&str, &str); 2] = [("ada", "user"), ("eve", "user")];

/// What a text is about: cars, drinks, or anything else.
fn meaning(text: &str) -> [f64; 3] {
    let says = |words: &[&str]| words.iter().any(|word| text.to_lowercase().contains(word));
    if says(&["car", "automobile"]) {
        [1.0, 0.1, 0.0]
    } else if says(&["tea", "beverage"]) {
        [0.0, 1.0, 0.1]
    } else {
        [0.0, 0.0, 1.0]
    }
}

/// The same, told otherwise: with vectors of [`meaning`] nothing of it would be found.
fn meaning_elsewhere(text: &str) -> [f64; 3] {
    let [a, b, c] = meaning(text);
    [b, -a, c]
}

fn config(upstream: &Upstream, more: &str) -> String {
    format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\n\
         [limits]\nrequests_burst = 0\n[memory]\nembeddings = \"up/embed\"\n{more}",
        upstream.base_url()
    )
}

fn connect(daemon: &Daemon, who: &str) -> Client {
    Client::connect_with(daemon.address, &key_of(who))
}

fn store(daemon: &Daemon, who: &str, content: &str) {
    let mut client = Wundr::connect_with(daemon.address, &key_of(who));
    client.call("memory.store", json!({ "content": content, "tier": "semantic" }));
}

fn search(client: &mut Client, query: &str) -> Vec<String> {
    let found = client.call("memory.search", json!({ "query": query }));
    let found = found["result"].as_array().unwrap_or_else(|| panic!("{found}"));
    found.iter().map(|memory| memory["content"].as_str().unwrap().to_owned()).collect()
}

fn finds(client: &mut Client, query: &str, all: &[&str]) {
    eventually(query, || (search(client, query) == all).then_some(()));
}

/// The texts of each request for vectors by this model.
fn embedded(upstream: &Upstream, model: &str) -> Vec<Vec<String>> {
    let texts = |request: Request| {
        let input = request.body["input"].as_array().unwrap().clone();
        input.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let is_meant =
        |request: &Request| request.path.ends_with("/embeddings") && request.body["model"] == model;
    upstream.requests().into_iter().filter(is_meant).map(texts).collect()
}

fn problems(daemon: &Daemon) -> String {
    daemon.json_of(&["status"])["problems"].to_string()
}

#[test]
fn what_means_the_same_is_found_by_its_owner_in_every_way_and_what_that_takes_is_counted() {
    let upstream = Upstream::start();
    upstream.embed(Embedding::Made(meaning));
    let daemon = Daemon::shared(&config(&upstream, ""), &PEOPLE, &[]);
    let (mut ada, mut eve) = (connect(&daemon, "ada"), connect(&daemon, "eve"));
    store(&daemon, "ada", "Ada drives an old car.");
    store(&daemon, "eve", "Eve sold her car.");
    store(&daemon, "ada", "Ada likes green tea.");
    finds(&mut ada, "which automobile?", &["Ada drives an old car."]);
    finds(&mut ada, "beverages", &["Ada likes green tea."]);
    finds(&mut eve, "which automobile?", &["Eve sold her car."]);

    let told = ada.chat("home", "Which automobile should I fetch?");
    let asked = upstream.requests().into_iter().rfind(|request| request.path.ends_with("/chat/completions"));
    let asked = asked.unwrap().body.to_string();
    assert!(asked.contains("Ada drives an old car.") && !asked.contains("Eve"), "{asked} {}", told.text());
    let hits = daemon.rows_of(&["memory", "search", "automobile", "--owner", "ada"]);
    assert_eq!(hits[0]["content"], "Ada drives an old car.", "{hits:?}");
    assert_eq!(
        daemon.rows_of(&["memory", "search", "automobile"]),
        [Value::Null; 0],
        "that of the operators"
    );

    for texts in embedded(&upstream, "embed") {
        let of = |name: &str| texts.iter().any(|text| text.contains(name));
        assert!(!(of("Ada") && of("Eve")), "{texts:?}");
    }
    let key = upstream.requests().iter().all(|request| !request.body.to_string().contains("key-of"));
    assert!(key, "no credential goes out");
    let usage = daemon.json_of(&["usage", "--by", "session"]);
    for owner in ["ada", "eve"] {
        let session = format!("{owner}/main:memory:embeddings:main");
        let row = usage["rows"].as_array().unwrap().iter().find(|row| row.to_string().contains(&session));
        let row = row.unwrap_or_else(|| panic!("{session}: {usage}"));
        assert!(row["input_tokens"].as_u64().is_some_and(|tokens| tokens >= 14 && tokens % 7 == 0), "{row}");
        assert_eq!(row["output_tokens"], 0, "{row}");
    }
    assert_eq!(problems(&daemon), "[]");
    let (_, doctor, _) = daemon.run(&["doctor"]);
    assert!(doctor.contains("memories are found by vectors of up/embed"), "{doctor}");
}

#[test]
fn what_was_stored_before_a_crash_or_with_another_model_gets_its_vector_later() {
    let upstream = Upstream::start();
    upstream.embed(Embedding::Hung);
    let mut daemon = Daemon::shared(&config(&upstream, ""), &PEOPLE, &[]);
    store(&daemon, "ada", "Ada drives an old car.");
    eventually("a request for vectors", || (!embedded(&upstream, "embed").is_empty()).then_some(()));
    upstream.embed(Embedding::Made(meaning));
    daemon = daemon.kill_and_restart();
    let mut ada = connect(&daemon, "ada");
    finds(&mut ada, "which automobile?", &["Ada drives an old car."]);

    upstream.embed(Embedding::Made(meaning_elsewhere));
    daemon.stdout_of(&["config", "set", "memory.embeddings", "up/other"]);
    eventually("it to be embedded anew", || {
        embedded(&upstream, "other").contains(&vec!["Ada drives an old car.".to_owned()]).then_some(())
    });
    finds(&mut ada, "which automobile?", &["Ada drives an old car."]);
    let (status, _, said) = daemon.run(&["config", "set", "memory.embeddings", "offline/x"]);
    assert!(status != 0 && said.contains("memory.embeddings"), "{status} {said}");
    daemon.stdout_of(&["config", "set", "memory.embeddings", "off"]);
    let before = upstream.requests().len();
    assert_eq!(search(&mut ada, "which automobile?"), [""; 0]);
    assert_eq!(search(&mut ada, "whose car?"), ["Ada drives an old car."]);
    assert_eq!(upstream.requests().len(), before, "nobody is asked");
}

#[test]
fn without_a_provider_or_a_budget_words_answer_at_once_and_the_daemon_says_so() {
    let upstream = Upstream::start();
    upstream.embed(Embedding::Refused(503));
    let mut daemon = Daemon::shared(&config(&upstream, ""), &PEOPLE, &[]);
    let mut ada = connect(&daemon, "ada");
    store(&daemon, "ada", "Ada drives an old car.");
    for _ in 0..5 {
        assert_eq!(search(&mut ada, "whose car is old?"), ["Ada drives an old car."]);
    }
    // It is left alone by now, and one that hangs does not hold up anybody.
    upstream.embed(Embedding::Hung);
    let (before, begun) = (embedded(&upstream, "embed").len(), Instant::now());
    for _ in 0..20 {
        assert_eq!(search(&mut ada, "whose car is old?"), ["Ada drives an old car."]);
    }
    ada.chat("home", "whose car is old?");
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    assert!(embedded(&upstream, "embed").len() <= before + 1);
    let said = problems(&daemon);
    assert!(said.contains("memory.embeddings: no vectors of up/embed"), "{said}");
    assert_eq!(daemon.log().matches("there are no vectors of memory.embeddings").count(), 1);
    let (_, doctor, _) = daemon.run(&["doctor"]);
    assert!(doctor.contains("memories are found by the built-in ones"), "{doctor}");

    upstream.embed(Embedding::Made(meaning));
    daemon = daemon.restart();
    let mut ada = connect(&daemon, "ada");
    finds(&mut ada, "which automobile?", &["Ada drives an old car."]);
    eventually("all to be well", || (problems(&daemon) == "[]").then_some(()));

    let upstream = Upstream::start();
    upstream.embed(Embedding::Made(meaning));
    let daemon = Daemon::shared(&config(&upstream, "[budgets]\ndaily = 2\n"), &PEOPLE, &[]);
    let mut ada = connect(&daemon, "ada");
    store(&daemon, "ada", "Ada drives an old car.");
    assert_eq!(search(&mut ada, "whose car is old?"), ["Ada drives an old car."]);
    assert_eq!(search(&mut ada, "which automobile?"), [""; 0]);
    assert_eq!(upstream.requests().len(), 0);
    assert!(problems(&daemon).contains("a budget is used up"));
}
