//! The tools that are built in, as an agent calls them that was granted them: whose memory is searched, and
//! what a model is told.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{Daemon, key_of};
use crate::support::wundr::Wundr;

/// Calls a tool as an agent does: what it is told, and whether that is an error.
fn call(client: &mut Client, tool: &str, input: Value) -> (String, bool) {
    let stream = client.chat("peer", &format!("/tool {tool} {input}"));
    assert_eq!((stream.events().last(), stream.error()), (Some(&"done"), ""), "the run goes on: {stream:?}");
    // What it is not offered the model says in words.
    let Some(result) = stream.data("tool_result").next() else { return (stream.text(), true) };
    (result["content"].as_str().unwrap().to_owned(), result["is_error"] == true)
}

#[test]
fn an_agent_remembers_for_the_owner_of_its_session_and_for_nobody_else() {
    let people = [("ada", "user"), ("eve", "user"), ("boss", "admin")];
    let config = "[agents.main]\ntools = [\"memory\"]\n[limits]\nrequests_burst = 0\n";
    let mut daemon = Daemon::shared(config, &people, &[]);
    let search = |client: &mut Client| call(client, "memory_search", json!({ "query": "kettle" }));
    let connect = |daemon: &Daemon, who: &str| Client::connect_with(daemon.address, &key_of(who));

    let mut ada = connect(&daemon, "ada");
    let saved = call(&mut ada, "memory_save", json!({ "content": "Ada's kettle is red." }));
    assert_eq!(saved, ("saved".into(), false));
    for who in ["eve", "boss"] {
        let (told, is_error) = search(&mut connect(&daemon, who));
        assert_eq!((told.as_str(), is_error), ("nothing is remembered about that", false), "{who}");
    }
    daemon = daemon.kill_and_restart();
    let (told, _) = search(&mut connect(&daemon, "ada"));
    assert!(told.starts_with("- Ada's kettle is red. (knowledge, "), "{told}");

    // What clients keep and what agents learn is one store.
    let mut client = Wundr::connect_with(daemon.address, &key_of("ada"));
    let found = client.call("memory.query", json!({ "query": "kettle" }));
    assert_eq!(found["results"][0]["content"], "Ada's kettle is red.", "{found}");
    client.call("memory.store", json!({ "content": "The kettle leaks.", "tier": "episodic" }));
    let (told, _) = search(&mut connect(&daemon, "ada"));
    assert!(told.contains("The kettle leaks.") && told.contains("red"), "{told}");

    for (tool, input, why) in [
        ("memory_save", json!({ "content": "" }), "content: missing"),
        ("memory_search", json!({ "query": "x", "owner": "eve" }), "unknown field"),
        ("send_message", json!({ "text": "x" }), "send_message"),
    ] {
        let (told, is_error) = call(&mut connect(&daemon, "ada"), tool, input);
        assert!(is_error && told.contains(why), "{tool}: {told}");
    }
}

#[test]
fn an_agent_that_was_not_granted_them_has_none() {
    let daemon = Daemon::start();
    let mut client = Client::connect(daemon.address);
    let (told, is_error) = call(&mut client, "memory_search", json!({ "query": "kettle" }));
    assert!(is_error && told.contains("memory_search"), "{told}");
}
