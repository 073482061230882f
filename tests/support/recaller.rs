//! A model of questions and facts: it answers a question from what stands in the request and from nothing else, so
//! that it shows what a conversation still knows.
//!
//! A fact is a sentence `my X is Y.`, a question `What is my X?`. Asked to sum up, it writes down the facts.

use serde_json::Value;

/// What it says when it was told no such fact.
pub const UNKNOWN: &str = "I don't know.";

/// What it says to a request in either format.
pub fn answer(body: &Value) -> String {
    let texts = texts(body);
    let all = texts.join("\n");
    if all.contains("You keep the notes of a conversation") {
        let facts = facts(texts.last().map_or("", String::as_str));
        let lines = facts.iter().map(|(of, is)| format!("- the user said: my {of} is {is}."));
        return lines.collect::<Vec<_>>().join("\n");
    }
    let asked = texts
        .last()
        .and_then(|last| last.split("What is my ").nth(1))
        .and_then(|rest| rest.split('?').next());
    match asked {
        None => "Noted. That is quite a story, and I follow with interest what comes of it all. ".repeat(4),
        Some(asked) => {
            let known = facts(&all).into_iter().rev().find(|(of, _)| of == asked);
            known.map_or_else(|| UNKNOWN.to_owned(), |(of, is)| format!("Your {of} is {is}."))
        }
    }
}

/// The facts that a text states, in order.
fn facts(text: &str) -> Vec<(String, String)> {
    let stated = text.split(['.', '\n', '!', '?']).filter_map(|sentence| {
        let (_, rest) = sentence.split_once("my ")?;
        let (of, is) = rest.split_once(" is ")?;
        Some((of.trim().to_owned(), is.trim().to_owned()))
    });
    stated.collect()
}

/// All texts of a request, in order: the system prompt, then each block of each message.
pub fn texts(body: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    add(&body["system"], &mut texts);
    for message in body["messages"].as_array().into_iter().flatten() {
        add(&message["content"], &mut texts);
    }
    texts
}

fn add(content: &Value, texts: &mut Vec<String>) {
    match content {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(blocks) => {
            texts.extend(blocks.iter().filter_map(|block| block["text"].as_str()).map(str::to_owned));
        }
        _ => {}
    }
}
