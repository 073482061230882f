//! What is remembered besides conversations, against the binary as it ships: found, kept apart, and
//! there after SIGKILL.

use serde_json::{Value, json};

use crate::support::daemon::{Daemon, key_of};
use crate::support::wundr::Wundr;

fn guarded() -> Daemon {
    let people = [("alice", "user"), ("bob", "user"), ("eye", "readonly"), ("boss", "admin")];
    Daemon::shared("", &people, &[])
}

/// Stores a fact; gives its id.
fn store(client: &mut Wundr, content: &str, more: Value) -> String {
    let mut params = json!({ "content": content, "tier": "semantic" });
    for (name, value) in more.as_object().expect("an object") {
        params[name] = value.clone();
    }
    let stored = client.call("memory.store", params);
    assert_eq!(stored["memoryId"], stored["id"], "{stored}");
    stored["memoryId"].as_str().unwrap_or_else(|| panic!("{stored}")).to_owned()
}

/// The contents of what is found.
fn find(client: &mut Wundr, params: Value) -> Vec<String> {
    let found = client.call("memory.query", params);
    let results = found["results"].as_array().unwrap_or_else(|| panic!("{found}"));
    assert_eq!(found["total"], results.len(), "{found}");
    let scores: Vec<f64> = results.iter().filter_map(|result| result["score"].as_f64()).collect();
    assert!(
        scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..=1.0).contains(score)),
        "{found}"
    );
    results.iter().map(|result| result["content"].as_str().unwrap_or_default().to_owned()).collect()
}

fn about(query: &str) -> Value {
    json!({ "query": query })
}

#[test]
fn what_was_acknowledged_is_found_after_sigkill_and_what_was_deleted_is_not() {
    let (mut daemon, mut client) = Daemon::start().and(Wundr::connect);
    let metadata = json!({ "source": "İ", "n": [1.5, null] });
    store(&mut client, "The kettle is in the kitchen", json!({ "type": "knowledge", "metadata": metadata }));
    let gone = store(&mut client, "The kettle is broken", json!({ "tier": "episodic" }));
    assert_eq!(
        client.call("memory.delete", json!({ "memoryId": gone })),
        json!({ "ok": true, "memoryId": gone })
    );
    daemon = daemon.kill_and_restart();
    let mut client = Wundr::connect(daemon.address);
    let found = client.call("memory.query", about("kettle"));
    let result = &found["results"][0];
    assert_eq!(
        (&found["total"], &result["content"], &result["metadata"], &result["type"], &result["tier"]),
        (
            &json!(1),
            &json!("The kettle is in the kitchen"),
            &metadata,
            &json!("knowledge"),
            &json!("semantic")
        ),
        "{found}"
    );
    assert!(result["createdAt"].as_str().is_some_and(|at| at.ends_with('Z')), "{found}");
    let error = client.refused("memory.delete", json!({ "memoryId": gone }));
    assert_eq!((&error["code"], &error["message"]), (&json!("NOT_FOUND"), &json!("no such memory")));
}

#[test]
fn two_principals_never_see_each_others_memories() {
    let daemon = guarded();
    let mut alice = Wundr::connect_with(daemon.address, &key_of("alice"));
    let mut bob = Wundr::connect_with(daemon.address, &key_of("bob"));
    let hers = store(&mut alice, "green tea", json!({}));
    let before = alice.call("memory.query", about("green tea"));
    for n in 0..5 {
        store(&mut bob, &format!("green tea {n}"), json!({}));
    }
    assert_eq!(
        alice.call("memory.query", about("green tea")),
        before,
        "his change neither answers nor scores"
    );
    let his = bob.call("memory.query", json!({ "query": "green tea", "similarityThreshold": 0 }));
    assert_eq!(his["total"], 5, "{his}");
    let (error, unknown) = (
        bob.refused("memory.delete", json!({ "memoryId": hers })),
        bob.refused("memory.delete", json!({ "memoryId": "00000000-0000-4000-8000-000000000000" })),
    );
    assert_eq!(error, unknown, "whose it is is not told");

    let mut eye = Wundr::connect_with(daemon.address, &key_of("eye"));
    assert_eq!(find(&mut eye, about("green tea")), [""; 0]);
    for (method, params) in [
        ("memory.store", json!({ "content": "x", "tier": "semantic" })),
        ("memory.delete", json!({ "memoryId": hers })),
    ] {
        assert_eq!(eye.refused(method, params)["code"], "FORBIDDEN", "{method}");
    }

    // Operators see all.
    let mut boss = Wundr::connect_with(daemon.address, &key_of("boss"));
    assert_eq!(boss.call("memory.query", about("green tea"))["total"], 6);
    boss.call("memory.delete", json!({ "memoryId": hers }));
    assert_eq!(find(&mut alice, about("green tea")), [""; 0]);

    let owners = daemon.rows_of(&["memory"]);
    let of = |name: &str| owners.iter().find(|of| of["owner"] == name);
    assert_eq!(
        (of("alice").map(|of| &of["entries"]), of("bob").map(|of| &of["semantic"])),
        (Some(&json!(0)), Some(&json!(5))),
        "{owners:?}"
    );
    let table = daemon.stdout_of(&["memory", "--owner", "bob"]);
    assert!(table.starts_with("MEMORY") && table.matches("green tea").count() == 5, "{table}");
}

#[test]
fn a_plain_half_match_is_found_and_a_threshold_narrows() {
    let (_daemon, mut client) = Daemon::start().and(Wundr::connect);
    for content in
        ["green tea", "Tea with milk, and a long story of how it came to be so", "green apples", "coffee"]
    {
        store(&mut client, content, json!({}));
    }
    let found = find(&mut client, about("GREEN téa"));
    assert_eq!((found[0].as_str(), found.len()), ("green tea", 3), "{found:?}");
    assert_eq!(find(&mut client, json!({ "query": "green tea", "similarityThreshold": 0.8 })), ["green tea"]);
    assert_eq!(find(&mut client, json!({ "query": "green tea leaves" })), ["green tea"]);
    assert_eq!(
        find(&mut client, json!({ "query": "cocoa", "similarityThreshold": 0 })),
        [""; 0],
        "nothing in common"
    );
    let first = client.call("memory.query", json!({ "query": "green tea", "limit": 1 }));
    assert_eq!((first["results"].as_array().map(Vec::len), &first["total"]), (Some(1), &json!(3)), "{first}");
}

#[test]
fn text_vectors_and_both_find() {
    let (_daemon, mut client) = Daemon::start().and(Wundr::connect);
    store(&mut client, "a hot drink", json!({ "embedding": [10, 1] }));
    store(&mut client, "green apples", json!({ "embedding": [1, 0] }));
    store(&mut client, "a stone", json!({ "embedding": [-1, 0] }));
    store(&mut client, "of another model", json!({ "embedding": [1, 0, 0] }));
    store(&mut client, "green tea", json!({}));
    assert_eq!(find(&mut client, json!({ "embedding": [5, 0] })), ["green apples", "a hot drink"]);
    assert_eq!(
        find(&mut client, json!({ "query": "green tea", "embedding": [5, 0] })),
        ["green tea", "green apples", "a hot drink"],
        "the same text and the same direction are equals: the newest first"
    );
    for (embedding, says) in [
        (json!([0, 0]), "zero"),
        (json!([1, 1e30]), "embedding[1]"),
        (json!([]), "embedding: must have at least 1 item"),
        (json!(["1"]), "embedding.0: expected a number"),
        (json!(vec![1; 4097]), "embedding: may have 4096 items"),
    ] {
        for method in ["memory.query", "memory.store"] {
            let params = json!({ "query": "x", "content": "x", "tier": "semantic", "embedding": embedding });
            let error = client.refused(method, params);
            assert!(error["message"].as_str().is_some_and(|why| why.contains(says)), "{method}: {error}");
        }
    }
    // No number of JSON, so the frame is none.
    client.send_text(
        r#"{"type":"req","id":"nan","method":"memory.query","params":{"query":"x","embedding":[1e999]}}"#,
    );
    assert_eq!(client.answer("nan").unwrap_err()["code"], "INVALID_REQUEST");
    assert_eq!(find(&mut client, about("stone")), ["a stone"], "none of these was stored or did harm");
}

#[test]
fn any_script_is_found_and_nothing_is_syntax() {
    let (_daemon, mut client) = Daemon::start().and(Wundr::connect);
    let texts = [
        "我喜欢喝咖啡",
        "東京タワーへ行く",
        "커피를 마신다",
        "ฉันชอบกาแฟ",
        "Straße nach İzmir",
        "don't panic",
    ];
    for content in texts {
        store(&mut client, content, json!({}));
    }
    for (query, content) in
        ["咖啡", "タワー", "커피", "กาแฟ", "STRASSE izmir", "PANIC"].into_iter().zip(texts)
    {
        assert_eq!(find(&mut client, about(query)), [content], "{query}");
    }
    for query in [
        "AND",
        "a OR NOT b",
        "\"",
        "\"\"\"",
        "pan*",
        "NEAR(zebra t2, 5)",
        "content:zebra",
        "{content} : zebra",
        "^zebra",
        "- zebra",
        "(",
        "');--",
        "zebra\u{0}",
        "rank:bm25(1)",
        "🙂",
    ] {
        let found = client.call("memory.query", about(query));
        assert_eq!(found["total"], 0, "{query}: {found}");
    }
    assert_eq!(find(&mut client, about("\"don't\" panic*")), ["don't panic"], "as if there were no marks");
}

#[test]
fn what_is_too_much_is_refused_and_a_question_of_1500_words_finds_its_answer() {
    let (_daemon, mut client) = Daemon::start().and(Wundr::connect);
    let long = "ü".repeat(16 * 1024);
    store(&mut client, &long, json!({}));
    let error = client.refused("memory.store", json!({ "content": format!("{long}x"), "tier": "semantic" }));
    assert_eq!(
        (&error["code"], &error["details"]["limit"], &error["details"]["max"]),
        (&json!("INVALID_REQUEST"), &json!("memory_content_bytes"), &json!(32 * 1024)),
        "{error}"
    );
    let error = client.refused(
        "memory.store",
        json!({ "content": "x", "tier": "semantic", "metadata": { "m": "x".repeat(9000) } }),
    );
    assert_eq!(error["details"]["limit"], "memory_metadata_bytes", "{error}");
    let words: String = (0..1500).map(|n| format!("w{n} ")).collect();
    store(&mut client, &words, json!({}));
    assert_eq!(find(&mut client, about(&words)), [words.as_str()]);
    let error = client.refused("memory.query", about(&"x ".repeat(5000)));
    assert!(
        error["message"].as_str().is_some_and(|why| why.contains("query: may have 8192 characters")),
        "{error}"
    );
}
