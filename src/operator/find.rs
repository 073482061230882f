//! Which entry of a list somebody means: by its id, the beginning of the id, or its name.

use std::borrow::Borrow;

use serde_json::Value;

use crate::answer::Members;

/// How many characters the beginning of an id needs at least.
pub(super) const PREFIX_CHARS_MIN: usize = 4;

/// The one row whose `member` is `id`, else all rows that `is_named` accepts or whose `member` begins with
/// `id`, where that has at least `chars_min` characters.
pub(super) fn matching<'a>(
    rows: &'a [Value],
    member: &str,
    id: &str,
    chars_min: usize,
    is_named: impl Fn(&Value) -> bool,
) -> Vec<&'a Value> {
    if let Some(exact) = rows.iter().find(|row| row.text(member) == id) {
        return vec![exact];
    }
    let is_prefix = id.chars().count() >= chars_min;
    let is_meant = |row: &&Value| is_named(row) || is_prefix && row.text(member).starts_with(id);
    rows.iter().filter(is_meant).collect()
}

/// The first `most` of several, and whether there are others.
pub(super) fn some(all: &[impl Borrow<str>], most: usize) -> String {
    let others = if all.len() > most { " and others" } else { "" };
    format!("{}{others}", all[..all.len().min(most)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_id_means_itself_before_what_begins_with_it() {
        let rows = [json!({"id": "abcd"}), json!({"id": "abcd1"}), json!({"id": "abcd2", "name": "x"})];
        let of = |id: &str| {
            let found = matching(&rows, "id", id, PREFIX_CHARS_MIN, |row| row.text("name") == id);
            found.iter().map(|row| row.text("id").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            (of("abcd"), of("abcd2"), of("x")),
            (vec!["abcd".into()], vec!["abcd2".into()], of("abcd2"))
        );
        assert!(of("abc").is_empty() && of("").is_empty(), "too short to be a beginning");
        assert_eq!(matching(&rows[1..], "id", "abcd", PREFIX_CHARS_MIN, |_| false).len(), 2);
        assert_eq!((some(&["a", "b"], 2), some(&["a", "b"], 1)), ("a, b".into(), "a and others".into()));
    }
}
