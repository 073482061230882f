//! The built-in tools `memory_search` and `memory_save`: an agent looks into what is remembered for the owner of
//! its session, and adds to it.
//!
//! It is the store that clients use by `memory.*`, so what one saved the other finds. Whoever prompts, an agent
//! sees what belongs to the owner of the session and nothing else, also in sessions of operators. The id of
//! what is saved follows from the call, so that a call that a crash cut off is made again and saved once.
//!
//! What is saved as a fact, with a subject, a predicate and an object, takes the place of what was known of that
//! before.

use serde_json::{Map, Value, json};

use crate::ids::{CallId, Owner, PluginName, RunId, uuid_of};
use crate::memory::fact::{CERTAIN, Fact};
use crate::memory::{
    CONTENT_BYTES_MAX, Found, Kind, MemoryCommand, NewMemory, Query, Question, Remembered, Source, Teller,
    Tier,
};
use crate::tools::call::ToolSpec;

/// The name under which models search.
pub const SEARCH: &str = "memory_search";

/// The name under which models save.
pub const SAVE: &str = "memory_save";

/// How many memories are found where the call does not say, and at most.
const RESULTS: usize = 5;
const RESULTS_MAX: usize = 20;

/// The longest question, in bytes.
const QUESTION_BYTES_MAX: usize = 4096;

/// `memory_search`, as a model is told of it.
pub fn search_spec() -> ToolSpec {
    ToolSpec {
        name: PluginName::from(SEARCH),
        description:
            "Searches what is remembered about the user from this and earlier conversations: facts, \
            preferences, decisions. Search before you say that you don't know something about them."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "What to look for: a question, or words." },
                "limit": { "type": "integer", "minimum": 1, "maximum": RESULTS_MAX,
                           "description": "How many memories at most; 5 where it is left out." },
            },
            "required": ["query"],
        }),
    }
}

/// `memory_save`, as a model is told of it.
pub fn save_spec() -> ToolSpec {
    let kinds = Kind::ALL.map(Kind::name);
    ToolSpec {
        name: PluginName::from(SAVE),
        description:
            "Remembers something about the user beyond this conversation: a fact, a preference, a decision. \
            Write one whole sentence that can be understood by itself; or a fact, as subject, predicate and \
            object, which takes the place of what was known of that before. Save no secrets."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "content": { "type": "string", "description": "What to remember, as a sentence." },
                "subject": { "type": "string", "description": "Of a fact: what it is about; \"user\" is the user." },
                "predicate": { "type": "string",
                               "description": "Of a fact: such as name, lives_in, works_at, likes, decided." },
                "object": { "type": "string", "description": "Of a fact: such as Lisbon." },
                "kind": { "type": "string", "enum": kinds, "description": "knowledge where it is left out." },
            },
        }),
    }
}

/// What a call of one of the tools asks for, for this owner.
///
/// # Errors
/// What is wrong with the input, for the model.
pub fn command(
    tool: &str,
    input: &Value,
    (run, call): (&RunId, &CallId),
    owner: &Owner,
) -> Result<MemoryCommand, String> {
    let input = input.as_object().ok_or("the input is not a JSON object")?;
    match tool {
        SEARCH => search(input),
        _ => save(input, run, call, owner),
    }
}

fn search(input: &Map<String, Value>) -> Result<MemoryCommand, String> {
    only(input, &["query", "limit"])?;
    let query = text(input, "query")?.ok_or("query: missing")?;
    if query.len() > QUESTION_BYTES_MAX {
        return Err(format!("query: longer than {QUESTION_BYTES_MAX} bytes"));
    }
    let limit = match input.get("limit") {
        None | Some(Value::Null) => RESULTS,
        Some(limit) => limit
            .as_u64()
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| (1..=RESULTS_MAX).contains(limit))
            .ok_or_else(|| format!("limit: expected 1 to {RESULTS_MAX}, found {limit}"))?,
    };
    let question = Question::about(query, limit).map_err(|error| error.message)?;
    Ok(MemoryCommand::Query(Query { question, tier: None, session: None }))
}

fn save(
    input: &Map<String, Value>,
    run: &RunId,
    call: &CallId,
    owner: &Owner,
) -> Result<MemoryCommand, String> {
    only(input, &["content", "subject", "predicate", "object", "kind"])?;
    let fact = match (text(input, "subject")?, text(input, "predicate")?, text(input, "object")?) {
        (None, None, None) => None,
        (Some(subject), Some(predicate), Some(object)) => {
            Some(Fact::new(subject, predicate, object, CERTAIN).map_err(|error| error.message)?)
        }
        _ => return Err("a fact has a subject, a predicate and an object".into()),
    };
    let content = match (text(input, "content")?, &fact) {
        (Some(content), _) => content.trim().to_owned(),
        (None, Some(fact)) => fact.sentence(),
        (None, None) => return Err("content: missing".into()),
    };
    if content.len() > CONTENT_BYTES_MAX {
        return Err(format!("content: longer than {CONTENT_BYTES_MAX} bytes"));
    }
    let kind = match text(input, "kind")? {
        None => Kind::Knowledge,
        Some(kind) => Kind::from_name(kind).ok_or_else(|| {
            format!("kind: expected one of {}, found {kind:?}", Kind::ALL.map(Kind::name).join(", "))
        })?,
    };
    Ok(MemoryCommand::Store(NewMemory {
        id: if fact.is_some() { id(run, call) } else { id_of_text(owner, &content) },
        tier: Tier::Semantic,
        kind,
        content,
        metadata: None,
        session: None,
        embedding: None,
        fact,
        source: Source { teller: Teller::Agent, run: Some(run.clone()) },
    }))
}

/// The id of a text that this owner has saved: the same text is there once. (A fact that says the same as another
/// is known by what it says.)
fn id_of_text(owner: &Owner, content: &str) -> String {
    uuid_of(&format!("memory|{}|{content}", owner.as_str()))
}

/// The id of the fact that this call saves.
fn id(run: &RunId, call: &CallId) -> String {
    let (run, call) = (run.as_str(), call.as_str());
    uuid_of(&format!("memory|{}|{run}|{call}", run.len()))
}

fn only(input: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    match input.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => {
            let unknown = &unknown[..unknown.floor_char_boundary(64)];
            Err(format!("unknown field {unknown:?}: expected one of {}", known.join(", ")))
        }
        None => Ok(()),
    }
}

fn text<'a>(input: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match input.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name}: expected text")),
    }
}

/// What a search found, in words for the model: one line each, the best first.
pub fn found(found: &Found) -> String {
    if found.results.is_empty() {
        return "nothing is remembered about that".into();
    }
    let line = |memory: &Remembered| {
        let day = memory.created.to_rfc3339();
        let day = day.get(..10).unwrap_or_default().to_owned();
        format!("- {} ({}, {day})", memory.content.replace('\n', " "), memory.kind.name())
    };
    let mut lines: Vec<String> = found.results.iter().map(line).collect();
    if found.total > found.results.len() as u64 {
        lines.push(format!("{} of {} memories that fit", found.results.len(), found.total));
    }
    lines.join("\n")
}

/// The result of a call that saved something.
pub const SAVED: &str = "saved";

#[cfg(test)]
mod tests {
    use super::*;

    use crate::time::Timestamp;

    fn read(tool: &str, input: Value) -> Result<MemoryCommand, String> {
        command(tool, &input, (&RunId::from("r"), &CallId::from("c")), &Owner::Admins)
    }

    #[test]
    fn what_a_model_wrote_is_read_or_refused_in_words() {
        assert!(matches!(read(SEARCH, json!({ "query": "tea" })), Ok(MemoryCommand::Query(_))));
        let Ok(MemoryCommand::Store(new)) = read(SAVE, json!({ "content": " likes tea\n", "kind": null }))
        else {
            panic!()
        };
        assert_eq!(
            (new.content.as_str(), new.tier, new.kind),
            ("likes tea", Tier::Semantic, Kind::Knowledge)
        );
        let id_for = |content: &str, call: &str, owner: &Owner| {
            let input = json!({ "content": content });
            match command(SAVE, &input, (&RunId::from("r"), &CallId::from(call)), owner) {
                Ok(MemoryCommand::Store(new)) => new.id,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            new.id,
            id_for("likes tea", "another call", &Owner::Admins),
            "the same text is there once"
        );
        assert_ne!(new.id, id_for("likes coffee", "c", &Owner::Admins));
        assert_ne!(new.id, id_for("likes tea", "c", &Owner::Credential("ada".into())), "each has his own");
        let fact = json!({ "subject": "user", "predicate": "lives in", "object": "Lisbon" });
        let Ok(MemoryCommand::Store(new)) = read(SAVE, fact) else { panic!() };
        assert_eq!(new.content, "The user lives in Lisbon.");
        assert_eq!(new.fact.map(|fact| fact.predicate().to_owned()).as_deref(), Some("lives_in"));
        assert_eq!((new.source.teller, new.source.run), (Teller::Agent, Some(RunId::from("r"))));
        for (tool, input, why) in [
            (SEARCH, json!([]), "not a JSON object"),
            (SEARCH, json!({}), "query: missing"),
            (SEARCH, json!({ "query": " " }), "query: missing"),
            (SEARCH, json!({ "query": 5 }), "query: expected text"),
            (SEARCH, json!({ "query": "x".repeat(5000) }), "longer than"),
            (SEARCH, json!({ "query": "x", "limit": 0 }), "limit: expected 1 to 20"),
            (SEARCH, json!({ "query": "x", "limit": "3" }), "limit: expected 1 to 20"),
            (SEARCH, json!({ "query": "x", "owner": "bob" }), "unknown field \"owner\""),
            (SAVE, json!({}), "content: missing"),
            (SAVE, json!({ "content": "x".repeat(CONTENT_BYTES_MAX + 1) }), "longer than"),
            (SAVE, json!({ "subject": "user", "object": "x" }), "a fact has a subject"),
            (SAVE, json!({ "subject": "user", "predicate": "?", "object": "x" }), "predicate: expected"),
            (SAVE, json!({ "content": "x", "kind": "fact" }), "kind: expected one of interaction"),
        ] {
            let error = read(tool, input.clone()).unwrap_err();
            assert!(error.contains(why) && error.len() < 300, "{input}: {error}");
        }
    }

    #[test]
    fn what_was_found_is_a_line_each() {
        let memory = Remembered {
            id: "1".into(),
            owner: Owner::Admins,
            tier: Tier::Semantic,
            kind: Kind::Knowledge,
            content: "The cat is\ncalled Miu.".into(),
            metadata: None,
            session: None,
            score: 0.5,
            created: Timestamp::from_millis(1_700_000_000_000),
            fact: None,
            source: Source::default(),
        };
        let told = found(&Found { results: vec![memory], total: 3 });
        assert_eq!(told, "- The cat is called Miu. (knowledge, 2023-11-14)\n1 of 3 memories that fit");
        assert_eq!(found(&Found::default()), "nothing is remembered about that");
    }
}
