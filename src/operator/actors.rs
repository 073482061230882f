//! `clawmux actors`: the supervision tree, and how far each actor is behind.

use serde_json::{Value, json};

use super::print;
use super::table::{Cell, table_within};
use crate::answer::Members;
use crate::cli::{Actors, Global};
use crate::exit::Failure;
use crate::terminal::{Tone, columns};

/// A mailbox whose messages wait longer than this is highlighted, in microseconds.
const BEHIND_US: u64 = 100_000;

/// Terminals of at least this width show all columns.
const WIDE: usize = 60;

/// Runs `actors`.
pub(crate) fn run(global: &Global, options: &Actors) -> Result<(), Failure> {
    print::done(global, "admin.actors", &json!({ "children": options.children }), |tree| {
        let mut rows = Vec::new();
        rows_of(tree, "", "", options.figures, &mut rows);
        fitting(&rows, columns())
    })
}

/// The table for a terminal of this width.
fn fitting(rows: &[[Cell; 5]], columns: Option<usize>) -> String {
    if columns.is_none_or(|columns| columns >= WIDE) {
        let head = ["ACTOR", "WAIT", "QUEUED", "RESTARTS", "FIGURES"];
        return table_within(head, &["FIGURES", "ACTOR"], rows, columns);
    }
    let few: Vec<[Cell; 3]> =
        rows.iter().map(|[actor, wait, queued, ..]| [actor, wait, queued].map(Clone::clone)).collect();
    table_within(["ACTOR", "WAIT", "QUEUED"], &["ACTOR"], &few, columns)
}

/// The rows of an actor and its children: the first begins with `lead`, those below with `indent`.
fn rows_of(actor: &Value, lead: &str, indent: &str, with_figures: bool, rows: &mut Vec<[Cell; 5]>) {
    let number = |name: &str| actor[name].as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string());
    let name = format!("{lead}{}", actor.text("actor"));
    let silent = actor["silent"].as_str();
    let wait = match actor["mailbox_wait_us"].as_u64() {
        Some(us) if us >= BEHIND_US => Cell::toned(micros(us), Tone::Warn),
        Some(us) => micros(us).into(),
        // Why, there is room for on a wide terminal alone.
        None if silent.is_some() => Cell::toned("silent", Tone::Bad),
        None => "-".into(),
    };
    rows.push([
        Cell::toned(name, if silent.is_some() { Tone::Bad } else { Tone::Plain }),
        wait,
        number("queued").into(),
        number("restarts").into(),
        match silent {
            Some(why) => Cell::toned(why, Tone::Bad),
            None => figures(&actor["state"], with_figures).into(),
        },
    ]);
    let children = actor.list("children");
    let left_out = actor.number("children_total").saturating_sub(children.len() as u64);
    for (at, child) in children.iter().enumerate() {
        let is_last = at + 1 == children.len() && left_out == 0;
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        rows_of(child, &format!("{indent}{branch}"), &format!("{indent}{below}"), with_figures, rows);
    }
    if left_out > 0 {
        let more = format!("{indent}└─ and {left_out} more: --children N");
        rows.push([more.into(), "".into(), "".into(), "".into(), "".into()]);
    }
}

/// An actor's own figures: numbers above 0 and short texts, or all of them.
fn figures(state: &Value, all: bool) -> String {
    let Value::Object(state) = state else { return String::new() };
    let shown = state.iter().filter_map(|(name, value)| {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let says_much = match value {
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::Bool(yes) => *yes,
            Value::String(text) => !text.is_empty() && text.len() <= 40,
            _ => false,
        };
        (all || says_much).then(|| format!("{name}={text}"))
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn micros(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        10_000..10_000_000 => format!("{} ms", us / 1000),
        _ => format!("{} s", us / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::width;

    #[test]
    fn the_tree_is_drawn_and_who_is_stuck_stands_out() {
        let leaf = |name: &str| {
            json!({ "actor": name, "mailbox_wait_us": 7, "queued": 1, "state": {"a": 1, "b": 0},
            "children": [], "children_total": 0 })
        };
        let tree = json!({ "actor": "gateway", "restarts": null, "children_total": 3, "children": [
            { "actor": "hub", "silent": "no answer in 1000 ms", "state": {}, "children": [], "children_total": 0 },
            { "actor": "sessions", "mailbox_wait_us": 250_000, "restarts": 2, "state": {}, "children": [leaf("one")],
              "children_total": 1 },
        ] });
        let mut rows = Vec::new();
        rows_of(&tree, "", "", false, &mut rows);
        let names: Vec<Cell> = rows.iter().map(|row| row[0].clone()).collect();
        let wanted = [
            Cell::from("gateway"),
            Cell::toned("├─ hub", Tone::Bad),
            "├─ sessions".into(),
            "│  └─ one".into(),
            "└─ and 1 more: --children N".into(),
        ];
        assert_eq!(names, wanted);
        assert_eq!(rows[1][4], Cell::toned("no answer in 1000 ms", Tone::Bad));
        for columns in 40..100 {
            let shown = fitting(&rows, Some(columns));
            assert!(shown.lines().all(|line| width(line) <= columns), "{columns}: {shown}");
        }
        let narrow = fitting(&rows, Some(40));
        assert!(narrow.lines().next().is_some_and(|head| head.ends_with("QUEUED")), "{narrow}");
        assert!(fitting(&rows, None).contains("no answer in 1000 ms"));
        assert_eq!((&rows[2][1], &rows[2][3]), (&Cell::toned("250 ms", Tone::Warn), &"2".into()));
        assert_eq!(rows[3][1..], ["7 µs", "1", "-", "a=1"].map(Cell::from));
        assert_eq!(figures(&json!({"a": 0, "b": null, "c": [1]}), true), "a=0 c=[1]");
    }
}
