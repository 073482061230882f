//! What patterns fit, what filters compare, and that the index finds no less and no more.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn interest(patterns: &[&str], filter: &Value) -> Result<Interest, Error> {
    Interest::read(patterns.iter().copied(), filter.as_object().unwrap())
}

fn fits(pattern: &str, name: &str) -> bool {
    Pattern::read(pattern).unwrap().fits(name)
}

fn add(all: &mut Subscriptions, id: &str, patterns: &[&str], filter: &Value) {
    let interest = interest(patterns, filter).unwrap();
    all.add(Subscription { id: id.into(), interest, source: Source::Nowhere });
}

fn ids(all: &Subscriptions, event: &str, payload: &Value) -> Vec<String> {
    let found = all.matching(event, &mut |name| payload.get(name).and_then(Atom::of));
    found.iter().map(|subscription| subscription.id.clone()).collect()
}

#[test]
fn only_whole_segments_are_wildcards() {
    for (pattern, fitting, others) in [
        ("*", &["stream.chunk", "x", "a.b.c"][..], &[][..]),
        ("**", &["stream.chunk", "x", "a.b.c"], &[]),
        ("stream.*", &["stream.chunk"], &["stream", "stream.a.b", "streams.chunk", "tool.status"]),
        ("*.status", &["tool.status", "agent.status"], &["status", "a.b.status", "tool.state"]),
        ("*.*", &["a.b"], &["a", "a.b.c"]),
        ("a.**", &["a", "a.b", "a.b.c"], &["b.a", "ab"]),
        ("**.c", &["c", "a.c", "a.b.c"], &["a.c.b"]),
        ("a.**.c", &["a.c", "a.b.c", "a.c.c", "a.b.b.c"], &["a", "a.b", "c"]),
        ("**.a.**.b", &["a.b", "x.a.y.b", "a.a.b.b"], &["b.a", "a.x"]),
        ("**.*", &["a", "a.b"], &[]),
        ("stream.chunk", &["stream.chunk"], &["stream.chunk.x", "stream"]),
    ] {
        for name in fitting {
            assert!(fits(pattern, name), "{pattern} does not fit {name}");
        }
        for name in others {
            assert!(!fits(pattern, name), "{pattern} fits {name}");
        }
    }
}

#[test]
fn what_can_not_be_asked_for_is_refused_by_name() {
    let none = json!({});
    let long = "a".repeat(PATTERN_BYTES_MAX + 1);
    for (pattern, why) in [
        ("", "must not be empty"),
        ("tool.re*", "whole segment"),
        ("***", "whole segment"),
        ("a..b", "without a name"),
        (".", "without a name"),
        (&*long, "bytes"),
    ] {
        let error = interest(&[pattern], &none).unwrap_err();
        assert!(error.message.contains(why), "{pattern:?}: {error}");
        assert_eq!(error.code, ErrorCode::InvalidRequest);
    }
    assert!(interest(&[], &none).is_err());
    assert!(interest(&vec!["a.b"; PATTERNS_MAX], &none).is_ok());
    let error = interest(&vec!["a.b"; PATTERNS_MAX + 1], &none).unwrap_err();
    assert!(error.message.contains("65"), "{error}");
    let keys = |count: usize| Value::Object((0..count).map(|n| (n.to_string(), json!(n))).collect());
    assert!(interest(&["*"], &keys(FILTER_MAX)).is_ok());
    assert!(interest(&["*"], &keys(FILTER_MAX + 1)).is_err());
    for value in [json!({}), json!([1])] {
        let error = interest(&["*"], &json!({ "task": value })).unwrap_err();
        assert!(error.message.contains("filter.task"), "{error}");
    }
    let error = interest(&["*"], &json!({ "a": "x".repeat(FILTER_BYTES_MAX + 1) })).unwrap_err();
    assert!(error.message.contains("filter.a"), "{error}");
}

#[test]
fn one_subscription_is_found_once_and_several_in_their_order() {
    let mut all = Subscriptions::new(10);
    add(&mut all, "b", &["stream.*", "stream.chunk", "*.chunk", "*"], &json!({}));
    add(&mut all, "a", &["stream.chunk"], &json!({ "sessionId": "s" }));
    add(&mut all, "c", &["tool.*"], &json!({}));
    assert_eq!(ids(&all, "stream.chunk", &json!({ "sessionId": "s" })), ["b", "a"]);
    assert_eq!(ids(&all, "stream.chunk", &json!({ "sessionId": "t" })), ["b"]);
    assert_eq!(ids(&all, "tool.status", &json!({})), ["b", "c"]);
    assert_eq!(all.remove("b").map(|gone| gone.id).as_deref(), Some("b"));
    assert!(all.remove("b").is_none() && all.remove("sub_of_another").is_none());
    assert_eq!(ids(&all, "stream.chunk", &json!({ "sessionId": "s" })), ["a"]);
    assert_eq!(all.iter().map(|one| &*one.id).collect::<Vec<_>>(), ["a", "c"]);
    all.remove("a");
    all.remove("c");
    assert!(all.index.filtered.is_empty() && all.index.open.is_empty(), "nothing is left of them");
}

#[test]
fn filters_compare_as_javascript_does() {
    let mut all = Subscriptions::new(10);
    let filter = json!({ "index": 1, "final": true, "toolName": "echo", "error": null });
    add(&mut all, "a", &["*"], &filter);
    let payload = |index: &str| {
        let text = format!(r#"{{"index":{index},"final":true,"toolName":"echo","error":null,"more":[1]}}"#);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(ids(&all, "x.y", &payload("1")), ["a"]);
    assert_eq!(ids(&all, "x.y", &payload("1.0")), ["a"]);
    for (member, other) in [
        ("index", json!("1")),
        ("index", json!(2)),
        ("final", json!("true")),
        ("final", json!(1)),
        ("toolName", json!(["echo"])),
        ("error", json!(false)),
    ] {
        let mut payload = payload("1");
        payload[member] = other;
        assert!(ids(&all, "x.y", &payload).is_empty(), "{payload}");
    }
    let mut payload = payload("1");
    payload.as_object_mut().unwrap().remove("error");
    assert!(ids(&all, "x.y", &payload).is_empty(), "what is absent is not null");
    add(&mut all, "zero", &["*"], &json!({ "index": 0 }));
    assert_eq!(ids(&all, "x.y", &serde_json::from_str(r#"{"index":-0.0}"#).unwrap()), ["zero"]);
}

#[test]
fn there_are_no_more_than_there_may_be() {
    let mut all = Subscriptions::new(2);
    all.check_room(1).unwrap();
    add(&mut all, "a", &["*"], &json!({}));
    all.check_room(0).unwrap();
    let error = all.check_room(1).unwrap_err();
    assert_eq!(
        error.detail,
        Some(Detail::Limit { name: crate::error::limit::Limit::Subscriptions, limit: 2 })
    );
    add(&mut all, "b", &["*"], &json!({}));
    assert!(all.check_room(0).is_err());
    all.remove("a");
    all.check_room(0).unwrap();
}

/// What an event costs where others are subscribed to other sessions and other events: not one of
/// them is looked at.
#[test]
fn unrelated_subscriptions_are_not_looked_at() {
    let mut all = Subscriptions::new(usize::MAX);
    for number in 0..1000 {
        add(&mut all, &format!("s{number}"), &["*"], &json!({ "sessionId": format!("{number}") }));
        add(&mut all, &format!("t{number}"), &["team.*", "team.**"], &json!({}));
    }
    let mut found = Vec::new();
    all.index.open.collect("stream", &mut found);
    assert!(found.is_empty());
    let mut asked = Vec::new();
    let matching = all.matching("stream.chunk", &mut |name| {
        asked.push(name.to_owned());
        (name == SESSION_ID).then(|| Atom::text("7"))
    });
    assert_eq!(matching.iter().map(|one| &*one.id).collect::<Vec<_>>(), ["s7"]);
    assert_eq!(asked, [SESSION_ID, SESSION_ID], "to find it, and to be sure");
}

/// The meaning of a pattern, written as what it says.
fn naive(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        (["**", rest @ ..], name) => (0..=name.len()).any(|taken| naive(rest, &name[taken..])),
        ([one, rest @ ..], [segment, others @ ..]) => (*one == "*" || one == segment) && naive(rest, others),
        _ => false,
    }
}

fn naively(pattern: &str, name: &str) -> bool {
    let segments = |text: &'static str| text.split('.').collect::<Vec<_>>();
    let (pattern, name) = (pattern.to_owned().leak(), name.to_owned().leak());
    pattern == "*" || naive(&segments(pattern), &segments(name))
}

fn name() -> impl Strategy<Value = String> {
    prop::collection::vec("[abc]", 1..5).prop_map(|segments| segments.join("."))
}

fn pattern() -> impl Strategy<Value = String> {
    let segment = prop_oneof![3 => "[abc]", 1 => Just("*".to_owned()), 1 => Just("**".to_owned())];
    prop::collection::vec(segment, 1..6).prop_map(|segments| segments.join("."))
}

fn atom() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[st]".prop_map(Value::from),
        (0..2).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null)
    ]
}

fn members() -> impl Strategy<Value = Map<String, Value>> {
    let name = prop_oneof![Just(SESSION_ID), Just("a"), Just("z")];
    prop::collection::vec((name, atom()), 0..3)
        .prop_map(|all| all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Of a subscription: its patterns and its filter, and whether it is taken back later.
type Made = (Vec<String>, Map<String, Value>, bool);

fn made() -> impl Strategy<Value = Vec<Made>> {
    prop::collection::vec((prop::collection::vec(pattern(), 1..4), members(), any::<bool>()), 0..12)
}

proptest! {
    #[test]
    fn a_pattern_fits_what_it_says(pattern in pattern(), name in name()) {
        prop_assert_eq!(fits(&pattern, &name), naively(&pattern, &name), "{} {}", pattern, name);
    }

    /// The index finds what looking at every subscription finds, whatever came and went.
    #[test]
    fn the_index_finds_what_a_search_finds(made in made(), name in name(), payload in members()) {
        let mut all = Subscriptions::new(usize::MAX);
        for (number, (patterns, filter, _)) in made.iter().enumerate() {
            let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
            add(&mut all, &number.to_string(), &patterns, &Value::Object(filter.clone()));
        }
        for (number, (.., is_removed)) in made.iter().enumerate() {
            prop_assert_eq!(*is_removed, *is_removed && all.remove(&number.to_string()).is_some());
        }
        let wanted: Vec<String> = made.iter().enumerate().filter(|(_, (patterns, filter, is_removed))| {
            !is_removed
                && patterns.iter().any(|pattern| naively(pattern, &name))
                && filter.iter().all(|(name, value)| payload.get(name) == Some(value))
        }).map(|(number, _)| number.to_string()).collect();
        prop_assert_eq!(ids(&all, &name, &Value::Object(payload)), wanted);
    }

    #[test]
    fn no_pattern_ends_the_reader(pattern in ".{0,24}", name in ".{0,24}") {
        if let Ok(pattern) = Pattern::read(&pattern) {
            let _ = pattern.fits(&name);
        }
    }
}
