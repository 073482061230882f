//! What is remembered, against the database: durable, apart for each owner, found in parts.

use std::path::Path;

use actix::Addr;
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::daemon::operator::ListedMemory;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::memory::fact::CERTAIN;
use clawmux_core::memory::{
    ENTRIES_MAX, Embedding, Fact, Found, Kind, MemoryRecord, OWNER_BYTES_MAX, Question, Remembered, Source,
    Tier,
};
use clawmux_core::time::Timestamp;
use futures::future::join_all;

use super::*;
use crate::runtime::observe::Observe;
use crate::store::{Append, DAY_MS, Delete, Stop, Store};

fn ci() -> Owner {
    Owner::Credential("ci".into())
}

fn ops() -> Owner {
    Owner::Credential("ops".into())
}

fn memory(id: &str, owner: &Owner, content: &str) -> MemoryRecord {
    MemoryRecord {
        id: id.into(),
        owner: owner.clone(),
        tier: Tier::Semantic,
        kind: Kind::Knowledge,
        content: content.into(),
        metadata: None,
        session: None,
        embedding: None,
        fact: None,
        source: Source::default(),
        created: Timestamp::from_millis(7),
        superseded: None,
    }
}

fn recall(text: &str, owner: &Owner) -> Recall {
    let question = Question::new(Some(text), None, 0.7, 10).unwrap();
    Recall { question, owner: Some(owner.clone()), tier: None, session: None }
}

fn near(numbers: &[f64]) -> Embedding {
    Embedding::new(numbers).unwrap()
}

async fn remember(store: &Addr<Store>, memory: MemoryRecord) -> Result<(), Error> {
    store.send(Remember { memory: Box::new(memory), by_operator: false }).await.unwrap()
}

async fn ids(store: &Addr<Store>, asked: Recall) -> Vec<String> {
    let found = store.send(asked).await.unwrap().unwrap();
    assert_eq!(found.total, found.results.len() as u64, "all of them fit: {found:?}");
    found.results.into_iter().map(|result| result.id).collect()
}

async fn session(store: &Addr<Store>, name: &str, owner: &Owner) -> SessionKey {
    let session = SessionKey::new("main", "test", name, "main").unwrap().in_space(owner);
    let event = Event::Configured(Box::default());
    let logged = Logged { first_seq: Seq(1), seq: Seq(1), run: None, at: Timestamp::default(), event };
    let made = Append {
        session: session.clone(),
        events: [logged].into(),
        durable: true,
        reserve: None,
        to_say: Vec::new(),
    };
    store.send(made).await.unwrap().unwrap();
    session
}

async fn stop(store: Addr<Store>) {
    store.send(Stop).await.unwrap().unwrap();
}

/// How often a text stands in the database.
fn occurrences(path: &Path, text: &str) -> usize {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count()
}

#[actix::test]
async fn what_was_stored_is_found_after_a_restart_and_what_was_deleted_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    let store = Store::start(&path).await.unwrap();
    // Long enough for pages of its own.
    let secret = format!("the vault code is kumquat {}", "and so on ".repeat(1500));
    let metadata = serde_json::json!({ "from": "İ", "n": 1.5 }).as_object().cloned();
    let kept = MemoryRecord { metadata: metadata.clone(), ..memory("kept", &ci(), "Green tea is kept dry") };
    remember(&store, kept.clone()).await.unwrap();
    remember(&store, memory("gone", &ci(), &secret)).await.unwrap();
    let again = remember(&store, memory("kept", &ops(), "x")).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::Conflict);
    stop(store).await;
    assert_eq!(occurrences(&path, "kumquat"), 1);

    let store = Store::start(&path).await.unwrap();
    assert_eq!(ids(&store, recall("kumquat", &ci())).await, ["gone"]);
    let forget = |id: &str, owner| Forget { id: id.into(), owner };
    for (id, owner) in [("gone", Some(ops())), ("none", None), ("", Some(ci()))] {
        let refused = store.send(forget(id, owner)).await.unwrap().unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (ErrorCode::NotFound, "no such memory"));
    }
    store.send(forget("gone", Some(ci()))).await.unwrap().unwrap();
    stop(store).await;
    assert_eq!(occurrences(&path, "kumquat"), 0, "not a byte of it is left");

    let store = Store::start(&path).await.unwrap();
    assert!(ids(&store, recall("kumquat", &ci())).await.is_empty());
    let found = store.send(recall("TEA dry", &ci())).await.unwrap().unwrap();
    let expected = Remembered {
        id: "kept".into(),
        owner: ci(),
        tier: Tier::Semantic,
        kind: Kind::Knowledge,
        content: kept.content,
        metadata,
        session: None,
        score: found.results[0].score,
        created: kept.created,
        fact: None,
        source: Source::default(),
    };
    assert_eq!(found, Found { results: vec![expected], total: 1 });
    let totals = store.send(ReadMemoryTotals).await.unwrap().unwrap();
    assert_eq!(
        totals.iter().map(|of| (of.owner.clone(), of.entries)).collect::<Vec<_>>(),
        [(ci(), [0, 0, 1])]
    );
    stop(store).await;
}

#[actix::test]
async fn another_owners_entries_change_neither_answers_nor_scores_nor_are_they_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    remember(&store, memory("mine", &ci(), "green tea")).await.unwrap();
    remember(&store, memory("half", &ci(), "tea with milk")).await.unwrap();
    let alone = store.send(recall("green tea", &ci())).await.unwrap().unwrap();
    let theirs = (0..300).map(|n| remember(&store, memory(&format!("t{n}"), &ops(), "green tea green tea")));
    join_all(theirs).await.into_iter().for_each(Result::unwrap);
    let looked_at = async || store.send(Observe).await.unwrap().state["memories_looked_at"].as_u64().unwrap();
    let before = looked_at().await;
    assert_eq!(store.send(recall("green tea", &ci())).await.unwrap().unwrap(), alone);
    assert_eq!(looked_at().await - before, 2);
    assert_eq!(alone.results.iter().map(|result| result.id.as_str()).collect::<Vec<_>>(), ["mine", "half"]);
    assert!(ids(&store, recall("green tea", &Owner::Credential("new".into()))).await.is_empty());
    // An operator finds everybody's, the same scores included.
    let all = store.send(Recall { owner: None, ..recall("green tea", &ci()) }).await.unwrap().unwrap();
    assert_eq!((all.total, &all.results[0]), (302, &alone.results[0]));
    stop(store).await;
}

#[actix::test]
async fn a_scratchpad_is_found_by_its_session_and_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let (one, other) = (session(&store, "one", &ci()).await, session(&store, "other", &ci()).await);
    let foreign = session(&store, "foreign", &ops()).await;
    let of = |id: &str, tier, session: Option<&SessionKey>| MemoryRecord {
        tier,
        session: session.cloned(),
        embedding: Some(near(&[1.0, 0.0])),
        ..memory(id, &ci(), "tea")
    };
    remember(&store, of("pad", Tier::Scratchpad, Some(&one))).await.unwrap();
    remember(&store, of("else", Tier::Scratchpad, Some(&other))).await.unwrap();
    remember(&store, of("event", Tier::Episodic, Some(&one))).await.unwrap();
    remember(&store, of("fact", Tier::Semantic, None)).await.unwrap();
    let none = SessionKey::new("main", "test", "none", "main").unwrap();
    for session in [&foreign, &none] {
        let refused = remember(&store, of("x", Tier::Episodic, Some(session))).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotFound);
    }
    let memory = Box::new(of("op", Tier::Scratchpad, Some(&foreign)));
    store.send(Remember { memory, by_operator: true }).await.unwrap().unwrap();

    let with = |tier, session: Option<&SessionKey>| Recall {
        tier,
        session: session.cloned(),
        ..recall("tea", &ci())
    };
    assert_eq!(ids(&store, with(None, None)).await, ["fact", "event"], "the newest first");
    assert_eq!(ids(&store, with(Some(Tier::Episodic), None)).await, ["event"]);
    assert_eq!(ids(&store, with(None, Some(&one))).await, ["event", "pad"]);
    assert_eq!(ids(&store, with(Some(Tier::Scratchpad), Some(&one))).await, ["pad"]);
    assert_eq!(ids(&store, with(Some(Tier::Semantic), Some(&one))).await, [""; 0]);

    store.send(Delete(one.clone())).await.unwrap().unwrap();
    assert_eq!(ids(&store, with(None, None)).await, ["fact", "event"]);
    let gone = store.send(with(None, Some(&one))).await.unwrap().unwrap();
    assert_eq!(gone, Found::default());
    // A session of the same name later is another one.
    let one = session(&store, "one", &ci()).await;
    assert_eq!(ids(&store, with(None, Some(&one))).await, [""; 0]);
    let totals = store.send(ReadMemoryTotals).await.unwrap().unwrap();
    let ListedMemory { bytes, dimensions, .. } = store
        .send(ListMemories { owner: ci(), limit: 1, with_history: false })
        .await
        .unwrap()
        .unwrap()
        .remove(0);
    assert_eq!((totals[0].entries, totals[0].embedded, dimensions), ([2, 1, 1], 4, 2));
    assert_eq!(totals[0].bytes, 4 * bytes);
    stop(store).await;
}

#[actix::test]
async fn text_and_vectors_find_together_and_other_dimensions_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let with = |id: &str, content: &str, numbers: &[f64]| MemoryRecord {
        embedding: (!numbers.is_empty()).then(|| near(numbers)),
        ..memory(id, &ci(), content)
    };
    for (id, content, numbers) in [
        ("word", "green tea", &[][..]),
        ("near", "a hot drink", &[1.0, 0.1]),
        ("both", "green apples", &[1.0, 0.0]),
        ("far", "a stone", &[-1.0, 0.0]),
        ("other", "a drink", &[1.0, 0.0, 0.0]),
        ("cjk", "我喜欢喝咖啡", &[]),
    ] {
        remember(&store, with(id, content, numbers)).await.unwrap();
    }
    let ask = |text, numbers: Option<&[f64]>| Recall {
        question: Question::new(text, numbers.map(near), 0.7, 10).unwrap(),
        ..recall("x", &ci())
    };
    assert_eq!(ids(&store, ask(None, Some(&[2.0, 0.0]))).await, ["both", "near"]);
    assert_eq!(ids(&store, ask(Some("green tea"), None)).await, ["word", "both"]);
    assert_eq!(ids(&store, ask(Some("green tea"), Some(&[2.0, 0.0]))).await, ["both", "word", "near"]);
    assert_eq!(ids(&store, ask(None, Some(&[0.0, 0.0, 1.0]))).await, [""; 0]);
    assert_eq!(ids(&store, ask(Some("咖啡"), None)).await, ["cjk"]);
    for text in [
        "\"",
        "a\" OR \"1\"=\"1",
        "NEAR(green tea)",
        "content:zebra",
        "gre*",
        "green AND zebra AND x",
        "'; DROP TABLE memories; --",
    ] {
        store.send(ask(Some(text), None)).await.unwrap().unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    assert_eq!(ids(&store, ask(Some("gre*"), None)).await, [""; 0]);
    assert_eq!(ids(&store, ask(Some("AND OR NOT"), None)).await, [""; 0]);
    stop(store).await;
}

#[actix::test]
async fn who_has_as_much_as_one_may_is_refused_and_keeps_what_he_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    let store = Store::start(&path).await.unwrap();
    remember(&store, memory("1", &ci(), "tea")).await.unwrap();
    stop(store).await;
    for (column, limit, name) in [
        ("semantic", ENTRIES_MAX, clawmux_core::error::limit::Limit::MemoryEntries),
        ("bytes", OWNER_BYTES_MAX, clawmux_core::error::limit::Limit::MemoryBytes),
    ] {
        let set = |value: u64| {
            let db = rusqlite::Connection::open(&path).unwrap();
            db.execute(
                &format!("UPDATE memory_owners SET {column} = ? WHERE owner = 'ci'"),
                [value.cast_signed()],
            )
            .unwrap();
        };
        set(limit);
        let store = Store::start(&path).await.unwrap();
        let full = remember(&store, memory("2", &ci(), "coffee")).await.unwrap_err();
        assert_eq!(
            (full.code, full.detail),
            (ErrorCode::TooLarge, Some(Detail::Limit { name, limit })),
            "{column}"
        );
        remember(&store, memory(column, &ops(), "others have room")).await.unwrap();
        assert_eq!(ids(&store, recall("tea", &ci())).await, ["1"]);
        store.send(Forget { id: "1".into(), owner: Some(ci()) }).await.unwrap().unwrap();
        remember(&store, memory("1", &ci(), "tea")).await.unwrap();
        stop(store).await;
        set(1000);
    }
}

#[actix::test]
async fn among_ten_thousand_entries_the_best_are_found_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let words = ["tea", "coffee", "water", "milk", "stone", "tree", "house"];
    let content = |n: usize| match n {
        77 | 9_999 => format!("green dragon tea {n}"),
        n => format!("{} {} note {n}", words[n % 7], words[n / 7 % 7]),
    };
    for chunk in (0..10_000).collect::<Vec<_>>().chunks(1000) {
        let some = chunk.iter().map(|n| remember(&store, memory(&n.to_string(), &ci(), &content(*n))));
        join_all(some).await.into_iter().for_each(Result::unwrap);
    }
    let looked_at = async || store.send(Observe).await.unwrap().state["memories_looked_at"].as_u64().unwrap();
    let before = looked_at().await;
    assert_eq!(ids(&store, recall("dragon green", &ci())).await, ["9999", "77"]);
    assert_eq!(looked_at().await - before, 10_000, "each once");
    let found = store.send(recall("tea note", &ci())).await.unwrap().unwrap();
    assert_eq!((found.results.len(), found.total), (10, 9_998 + 2), "both words, or one of them");
    assert!(found.results.iter().all(|result| result.content.contains("tea") && result.score > 0.99));
    stop(store).await;
}

fn fact(predicate: &str, object: &str) -> Fact {
    Fact::new("user", predicate, object, CERTAIN).unwrap()
}

/// A fact that was stored at this time.
fn told(id: &str, owner: &Owner, fact: Fact, at: u64) -> MemoryRecord {
    let created = Timestamp::from_millis(at);
    MemoryRecord { created, fact: Some(fact.clone()), ..memory(id, owner, &fact.sentence()) }
}

fn about(text: &str, owner: &Owner) -> Recall {
    let question = Question::about(text, 10).unwrap();
    Recall { question, owner: Some(owner.clone()), tier: None, session: None }
}

/// What is known of an owner, the newest first: each with what took its place.
async fn history(store: &Addr<Store>, id: &str) -> Vec<(String, Option<String>)> {
    let shown = store.send(ReadMemory { id: id.into() }).await.unwrap().unwrap();
    let all = shown.named.into_iter().chain(shown.history);
    all.map(|memory| (memory.id, memory.superseded.map(|by| by.by))).collect()
}

#[actix::test]
async fn a_newer_fact_takes_the_place_of_an_older_one_which_stays_as_history() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    remember(&store, told("porto", &ci(), fact("lives_in", "Porto"), 1)).await.unwrap();
    remember(&store, told("theirs", &ops(), fact("lives_in", "Rome"), 9)).await.unwrap();
    remember(&store, told("tea", &ci(), fact("likes", "tea"), 2)).await.unwrap();
    remember(&store, told("coffee", &ci(), fact("likes", "coffee"), 3)).await.unwrap();
    remember(&store, told("lisbon", &ci(), fact("lives_in", "Lisbon"), 5)).await.unwrap();
    // What is older than what is known is history at once.
    remember(&store, told("faro", &ci(), fact("lives_in", "Faro"), 4)).await.unwrap();
    remember(&store, told("no tea", &ci(), fact("dislikes", "Tea"), 6)).await.unwrap();

    assert_eq!(ids(&store, recall("lives", &ci())).await, ["lisbon"]);
    assert_eq!(ids(&store, recall("tea", &ci())).await, ["no tea"]);
    assert_eq!(ids(&store, recall("coffee", &ci())).await, ["coffee"], "two may be liked");
    let relevant = ids(&store, about("where do I live?", &ci())).await;
    assert_eq!(relevant.first().map(String::as_str), Some("lisbon"), "{relevant:?}");
    assert!(!relevant.iter().any(|id| ["porto", "faro", "theirs"].contains(&&**id)), "{relevant:?}");

    let known = history(&store, "lisbon").await;
    let by = |by: &str| Some(by.to_owned());
    assert_eq!(
        known,
        [("lisbon".into(), None), ("faro".into(), by("lisbon")), ("porto".into(), by("lisbon"))]
    );
    let list = async |with_history| {
        store.send(ListMemories { owner: ci(), limit: 10, with_history }).await.unwrap().unwrap().len()
    };
    assert_eq!((list(false).await, list(true).await), (3, 6));

    // Forgetting deletes, and brings nothing back.
    store.send(Forget { id: "lisbon".into(), owner: Some(ci()) }).await.unwrap().unwrap();
    assert_eq!(ids(&store, recall("lives", &ci())).await, [""; 0]);
    store.send(ForgetAll(ci())).await.unwrap().unwrap();
    let totals = store.send(ReadMemoryTotals).await.unwrap().unwrap();
    let of = |name: &Owner| totals.iter().find(|of| of.owner == *name).map(|of| (of.entries, of.bytes > 0));
    assert_eq!((of(&ci()), of(&ops())), (Some(([0, 0, 0], false)), Some(([0, 0, 1], true))));
    stop(store).await;
}

#[actix::test]
async fn what_is_learned_twice_or_known_is_left_as_it_is_and_all_of_a_run_is_learned_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clawmux.db");
    let store = Store::start(&path).await.unwrap();
    let one = session(&store, "one", &ci()).await;
    let learned = |run: &str, facts: &[Fact], at: u64| {
        let (run, at) = (RunId::from(run), Timestamp::from_millis(at));
        Learn(facts.iter().map(|fact| MemoryRecord::learned(fact.clone(), (&run, &one), at)).collect())
    };
    let count = async |store: &Addr<Store>| {
        let all = ListMemories { owner: ci(), limit: 100, with_history: true };
        store.send(all).await.unwrap().unwrap().len()
    };
    let facts = [fact("lives_in", "Porto"), fact("likes", "tea")];
    for _ in 0..2 {
        store.send(learned("r", &facts, 1)).await.unwrap().unwrap();
        assert_eq!(count(&store).await, 2, "the same run");
    }
    store.send(learned("s", &[fact("likes", "Tea!")], 2)).await.unwrap().unwrap();
    assert_eq!(count(&store).await, 2, "it says what is known");
    store.send(learned("s", &[fact("lives_in", "Lisbon"), fact("likes", "tea")], 3)).await.unwrap().unwrap();
    assert_eq!(count(&store).await, 3);
    assert_eq!(ids(&store, recall("lives", &ci())).await.len(), 1);

    // As much as one may have: nothing of it, and what is known stays.
    stop(store).await;
    let set = |value: u64| {
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute("UPDATE memory_owners SET semantic = ?", [value.cast_signed()]).unwrap();
    };
    set(ENTRIES_MAX - 1);
    let store = Store::start(&path).await.unwrap();
    let full = store.send(learned("t", &[fact("lives_in", "Rome"), fact("likes", "wine")], 4)).await.unwrap();
    assert_eq!(full.unwrap_err().code, ErrorCode::TooLarge);
    assert_eq!(count(&store).await, 3);
    store.send(learned("t", &[fact("lives_in", "Rome")], 5)).await.unwrap().unwrap();
    // Of a session that is gone nothing is learned.
    store.send(Delete(one.clone())).await.unwrap().unwrap();
    let gone = store.send(learned("u", &[fact("likes", "wine")], 6)).await.unwrap().unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    stop(store).await;
}

#[actix::test]
async fn an_export_is_imported_once_with_its_history_and_for_another_owner_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let vector = MemoryRecord { embedding: Some(near(&[3.0, 4.0])), ..memory("v", &ci(), "a hot drink") };
    remember(&store, vector).await.unwrap();
    remember(&store, told("porto", &ci(), fact("lives_in", "Porto"), 1)).await.unwrap();
    remember(&store, told("lisbon", &ci(), fact("lives_in", "Lisbon"), 2)).await.unwrap();
    remember(&store, memory("theirs", &ops(), "secret")).await.unwrap();
    let export = async |store: &Addr<Store>, owner: &Owner| {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let part =
                store.send(ExportMemories { owner: Some(owner.clone()), after }).await.unwrap().unwrap();
            if part.memories.is_empty() {
                return all;
            }
            all.extend(part.memories);
            after = part.last;
        }
    };
    let all = export(&store, &ci()).await;
    assert_eq!(all.iter().map(|memory| &*memory.id).collect::<Vec<_>>(), ["v", "porto", "lisbon"]);

    let other = tempfile::tempdir().unwrap();
    let elsewhere = Store::start(other.path().join("clawmux.db")).await.unwrap();
    for _ in 0..2 {
        elsewhere.send(Import(all.clone())).await.unwrap().unwrap();
        assert_eq!(export(&elsewhere, &ci()).await, all);
    }
    let bob = Owner::Credential("bob".into());
    let copies: Vec<MemoryRecord> =
        all.iter().map(|memory| MemoryRecord::from_json(&memory.to_json(), Some(&bob)).unwrap()).collect();
    for _ in 0..2 {
        elsewhere.send(Import(copies.clone())).await.unwrap().unwrap();
    }
    assert_eq!(export(&elsewhere, &bob).await.len(), 3);
    assert_eq!(ids(&elsewhere, recall("lives", &bob)).await, [copies[2].id.as_str()]);
    let known = elsewhere.send(CountKnown { ids: vec!["v".into(), "none".into()] }).await.unwrap().unwrap();
    assert_eq!(known, 1);
    let stolen = vec![MemoryRecord { owner: bob, ..all[0].clone() }, memory("new", &ci(), "x")];
    let refused = elsewhere.send(Import(stolen)).await.unwrap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert_eq!(export(&elsewhere, &ci()).await, all, "all of it or nothing");
    stop(store).await;
    stop(elsewhere).await;
}

#[actix::test]
async fn what_learning_spends_is_counted_day_by_day() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let (today, tomorrow) = (Timestamp::from_millis(DAY_MS), Timestamp::from_millis(2 * DAY_MS));
    let spend = async |at, tokens| store.send(SpendOnLearning { at, tokens }).await.unwrap().unwrap();
    let spent = async |at| store.send(ReadLearningTokens(at)).await.unwrap().unwrap();
    spend(today, 1000).await;
    spend(today, -400).await;
    assert_eq!((spent(today).await, spent(tomorrow).await), (600, 0));
    spend(today, -10_000).await;
    assert_eq!(spent(today).await, 0, "never below");
    stop(store).await;
}

/// How long a search takes among as many entries as one owner may have. Told, not judged.
#[actix::test]
async fn what_is_relevant_among_twenty_thousand_facts_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
    let words = ["tea", "coffee", "water", "milk", "stone", "tree", "house"];
    for chunk in (0..ENTRIES_MAX).collect::<Vec<_>>().chunks(500) {
        let some = chunk.iter().map(|n| {
            let (subject, object) =
                (format!("person {n}"), format!("{} number {}", words[*n as usize % 7], n / 7));
            let object = if *n == 777 { "the clinic in Faro".into() } else { object };
            let fact = Fact::new(&subject, "works_at", &object, CERTAIN).unwrap();
            remember(&store, told(&n.to_string(), &ci(), fact, *n))
        });
        join_all(some).await.into_iter().for_each(Result::unwrap);
    }
    let began = std::time::Instant::now();
    let found = ids_of(&store, about("who works at the clinic in Faro?", &ci())).await;
    println!("20,000 facts: {:?}", began.elapsed());
    assert_eq!(found.first().map(String::as_str), Some("777"), "{found:?}");
    stop(store).await;
}

async fn ids_of(store: &Addr<Store>, asked: Recall) -> Vec<String> {
    let found = store.send(asked).await.unwrap().unwrap();
    found.results.into_iter().map(|result| result.id).collect()
}
