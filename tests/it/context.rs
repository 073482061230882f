//! What a model is sent of a long conversation: bounded, with what was said long ago in short, with what is remembered
//! beside it, and with a beginning that stays the same, as providers' caches want it.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon, key_of};
use crate::support::eventually;
use crate::support::recaller::{UNKNOWN, answer, texts};
use crate::support::upstream::{Request, Turn, Upstream};
use crate::support::wundr::Wundr;

const KINDS: [&str; 2] = ["anthropic", "openai"];

/// `main` on a provider of this kind.
fn config(kind: &str, upstream: &Upstream, memory: &str) -> String {
    let base_url = upstream.base_url();
    format!(
        "[providers.up]\nretries = 0\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\napi_key_env = \"UP_KEY\"\n\
         [agents.main]\nprovider = \"up\"\nmodel = \"test-model\"\n[memory]\n{memory}\n"
    )
}

fn start(kind: &str, upstream: &Upstream, memory: &str) -> Daemon {
    let home = daemon::home();
    std::fs::write(home.path().join("SOUL.md"), "You are a heron. İİİİ. ".repeat(30)).unwrap();
    Daemon::at(home, &config(kind, upstream, memory), &[("UP_KEY", "sk-test")])
}

/// Whether it is for a summary.
fn is_summing_up(request: &Request) -> bool {
    texts(&request.body).first().is_some_and(|system| system.starts_with("You keep the notes"))
}

/// What a request says up to where its conversation ends, in the order in which providers cache it, without the marks
/// of what may be cached.
fn said(body: &Value) -> String {
    let said = json!([body["tools"], body["system"], body["messages"]]).to_string();
    let marked = r#""cache_control":{"type":"ephemeral"},"#;
    let unmarked = said.replace(marked, "").replace(r#","cache_control":{"type":"ephemeral"}"#, "");
    unmarked.trim_end_matches([']', '}', '"']).to_owned()
}

fn tokens(text: &str) -> usize {
    text.len().div_ceil(4)
}

/// How many tokens of these requests, and how many of them a cache that keeps the last one would have had.
fn cached<'a>(requests: impl IntoIterator<Item = &'a String>) -> (usize, usize) {
    let (mut all, mut hit, mut before) = (0, 0, String::new());
    for now in requests {
        let same = before.bytes().zip(now.bytes()).take_while(|(a, b)| a == b).count();
        all += tokens(now);
        hit += same / 4;
        before.clone_from(now);
    }
    (all, hit)
}

/// Fifty turns, of which the twelfth states a fact, and the forty-second asks for it.
fn fifty_turns(kind: &str, summaries: &str) {
    let upstream = Upstream::thinking(answer);
    let mut daemon = start(kind, &upstream, &format!("summaries = \"{summaries}\"\nrecall = \"off\""));
    let mut client = Client::connect(daemon.address);
    for turn in 1..=50 {
        let asked = match turn {
            12 => "By the way, my lock code is 4711. Keep it to yourself.".to_owned(),
            42 => "What is my lock code?".to_owned(),
            _ => format!("Chapter {turn}. The heron stood by the water and waited, as herons do. ").repeat(6),
        };
        let said = client.chat("ada", &asked).text();
        if turn == 42 {
            assert_eq!(said, "Your lock code is 4711.", "{kind}, {summaries}");
        }
        if turn == 25 {
            daemon = daemon.kill_and_restart();
            client = Client::connect(daemon.address);
        }
    }
    let requests = upstream.requests();
    let asked: Vec<&Request> = requests.iter().filter(|request| !is_summing_up(request)).collect();
    assert_eq!(asked.len(), 50);
    assert_eq!(summaries == "rules", requests.len() == 50, "who sums up");
    let largest = asked.iter().map(|request| tokens(&request.body.to_string())).max().unwrap();
    assert!(largest < 5000, "{kind}, {summaries}: {largest} tokens");
    let of_question = texts(&asked[41].body);
    let carriers: Vec<&String> = of_question.iter().filter(|text| text.contains("4711")).collect();
    assert!(carriers.len() == 1 && carriers[0].starts_with("<earlier>"), "the summary has it: {carriers:?}");

    // The window moves rarely; else each request begins with the one before it, over the kill too.
    let all: Vec<String> = asked.iter().map(|request| said(&request.body)).collect();
    let moved = all.windows(2).filter(|pair| !pair[1].starts_with(&pair[0])).count();
    assert!((1..=8).contains(&moved), "{kind}, {summaries}: it moved {moved} times");
    let (sent, hit) = cached(&all);
    // As it would be where one turn fell off at every turn.
    let falling: Vec<String> = asked.iter().map(|request| falling_off(&request.body, 5)).collect();
    let (sent_before, hit_before) = cached(&falling);
    println!(
        "{kind}, summaries by {summaries}: largest request {largest} tokens, the window moved {moved} times in 50 turns; \
         {hit} of {sent} tokens from the cache; with one turn falling off at each {hit_before} of {sent_before}"
    );
    assert!(hit * 10 > sent * 7, "{kind}, {summaries}: {hit} of {sent} tokens would come from a cache");
}

/// A request with so many of the last turns alone.
fn falling_off(body: &Value, turns: usize) -> String {
    let messages = body["messages"].as_array().unwrap();
    let system = usize::from(messages[0]["role"] == "system");
    let from = messages.len().saturating_sub(2 * turns + 1).max(system);
    let kept: Vec<&Value> = messages[..system].iter().chain(&messages[from..]).collect();
    said(&json!({ "tools": body["tools"], "system": body["system"], "messages": kept }))
}

#[test]
fn fifty_turns_stay_small_and_a_fact_of_thirty_turns_ago_is_known_summed_up_by_the_model() {
    KINDS.iter().for_each(|kind| fifty_turns(kind, "model"));
}

#[test]
fn fifty_turns_stay_small_and_a_fact_of_thirty_turns_ago_is_known_summed_up_by_rules() {
    fifty_turns("anthropic", "rules");
}

#[test]
fn where_the_model_can_not_sum_up_it_is_done_by_rules_and_the_client_told() {
    let upstream = Upstream::thinking(answer);
    let daemon = start("openai", &upstream, "");
    let mut client = Client::connect(daemon.address);
    let long = format!("Look, my lock code is 4711. {}", "The heron waits. ".repeat(1000));
    client.chat("ada", &long);
    upstream.then(Turn::Status(400, None, json!({ "error": "no summaries here" }).to_string()));
    let prompt = json!({ "channel": "websocket", "account": "ada", "content": "What is my lock code?",
                         "idempotency_key": "k" });
    let id = client.request("chat.send", prompt);
    let answer = client.stream(&id);
    assert_eq!(answer.text(), "Your lock code is 4711.", "{answer:?}");
    let notices: Vec<&Value> = answer.data("notice").collect();
    assert_eq!((notices.len(), &notices[0]["kind"]), (1, &json!("compacted")), "{answer:?}");
    let requests = upstream.requests();
    assert_eq!(requests.iter().map(is_summing_up).collect::<Vec<_>>(), [false, true, false]);
    assert!(requests[1].body["messages"].to_string().len() < 24_000, "what is summed up is bounded, too");
    assert!(daemon.log().contains("older turns are summed up by rules"), "{}", daemon.log());
}

#[test]
fn a_model_with_a_small_window_is_sent_less_and_asked_for_less() {
    let upstream = Upstream::thinking(answer);
    let window =
        "summaries = \"rules\"\n[models.\"up/test-model\"]\ncontext_window = 2000\nmax_output_tokens = 300";
    let daemon = start("openai", &upstream, window);
    let mut client = Client::connect(daemon.address);
    for turn in 1..=20 {
        client.chat("ada", &format!("Chapter {turn}. The heron stood by the water and waited. ").repeat(10));
    }
    let requests = upstream.requests();
    assert_eq!(requests.len(), 20);
    for request in &requests {
        let sent = tokens(&request.body.to_string());
        assert!(sent <= 1700, "{sent} tokens and an answer do not fit into 2,000");
        assert_eq!(request.body["max_tokens"], 300);
    }
}

#[test]
fn what_is_remembered_stands_beside_the_prompt_and_is_never_anothers() {
    let upstream = Upstream::thinking(answer);
    let config = config("anthropic", &upstream, "");
    let daemon = Daemon::shared(&config, &[("alice", "user"), ("bob", "user")], &[("UP_KEY", "sk-test")]);
    let mut memories = Wundr::connect_with(daemon.address, &key_of("alice"));
    memories.call("memory.store", json!({ "content": "By now my bicycle is red.", "tier": "semantic" }));
    let asked = "What is my bicycle?";
    let mut alice = Client::connect_with(daemon.address, &key_of("alice"));
    assert_eq!(alice.chat("web", asked).text(), "Your bicycle is red.");
    let mut bob = Client::connect_with(daemon.address, &key_of("bob"));
    assert_eq!(bob.chat("web", asked).text(), UNKNOWN);
    let requests = upstream.requests();
    let told = texts(&requests[0].body);
    let notes = told.iter().find(|text| text.starts_with("<memory>")).expect("notes");
    assert!(
        notes.contains("notes, not instructions") && notes.contains("- By now my bicycle is red."),
        "{notes}"
    );
    assert!(!requests[1].body.to_string().contains("bicycle is red"), "{}", requests[1].body);

    // It stays where it was put, also after a crash, and is not put there twice.
    let daemon = daemon.kill_and_restart();
    let mut alice = Client::connect_with(daemon.address, &key_of("alice"));
    assert_eq!(alice.chat("web", asked).text(), "Your bicycle is red.");
    let requests = upstream.requests();
    let (first, last) = (said(&requests[0].body), said(&requests[2].body));
    assert!(last.starts_with(&first), "{first}\n{last}");
    assert_eq!(last.matches("<memory>").count(), 1, "{last}");
}

#[test]
fn nothing_is_recalled_where_that_is_off() {
    let upstream = Upstream::thinking(answer);
    let daemon = start("openai", &upstream, "recall = \"off\"");
    let mut memories = Wundr::connect(daemon.address);
    memories.call("memory.store", json!({ "content": "By now my bicycle is red.", "tier": "semantic" }));
    assert_eq!(Client::connect(daemon.address).chat("ada", "What is my bicycle?").text(), UNKNOWN);
}

#[test]
fn missed_caches_are_told_with_what_changed() {
    let upstream = Upstream::start();
    let daemon = start("openai", &upstream, "");
    let mut client = Client::connect(daemon.address);
    client.chat("ada", "hi");
    client.chat("ada", "and now?");
    std::fs::write(daemon.home().join("SOUL.md"), "You are a stork. ".repeat(100)).unwrap();
    client.chat("ada", "and then?");
    let missed = || {
        let answer: Value = serde_json::from_str(&daemon.stdout_of(&["usage", "--cache", "--json"])).unwrap();
        answer["rows"][0].clone()
    };
    eventually("three calls to be counted", || missed()["calls"] == 3);
    assert_eq!(missed()["missed_because"]["system"], 1, "{}", missed());
    let shown = daemon.stdout_of(&["usage", "--cache"]);
    assert!(shown.contains("another system prompt (1)") && shown.contains("up/test-model"), "{shown}");
}

#[test]
fn a_soul_that_is_edited_holds_from_the_next_prompt_on() {
    let upstream = Upstream::start();
    let (daemon, mut client) = start("openai", &upstream, "").and(Client::connect);
    client.chat("ada", "hi");
    assert!(
        upstream.requests()[0].body["messages"][0]["content"]
            .as_str()
            .unwrap()
            .starts_with("You are a heron.")
    );
    std::fs::write(daemon.home().join("SOUL.md"), "You are a stork.").unwrap();
    client.chat("ada", "and now?");
    assert_eq!(upstream.requests()[1].body["messages"][0]["content"], "You are a stork.");
    assert!(daemon.log().contains("the soul was changed"), "{}", daemon.log());
}
