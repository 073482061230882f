//! Rules that say which calls wait for approval, by what they are about.
//!
//! A rule is for calls of a tool whose input has a text like a pattern. A model can write one thing in many ways, so
//! the two kinds of rule read an input differently:
//!
//! | | `ask` | `never` |
//! |---|---|---|
//! | of several values in a list | one that fits is enough | all have to fit |
//! | a path such as `/srv/../etc/x` or `//etc/x` | fits as it is written, or as what it leads to | does not fit with a `..` in it, nor with control characters |
//!
//! That makes rules of the kind `ask` hard to miss by accident; a fence they are not: what a tool makes of its input,
//! only the tool knows. A fence is to ask always, and to say with rules of the kind `never` what is harmless.

use std::borrow::Cow;

use serde_json::Value;

use super::approval::is_among;
use crate::glob::is_like;
use crate::ids::PluginName;
use crate::tools::call::ToolCall;

/// A rule about calls that match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The tool, as models know it. One that ends in `*` stands for all that begin so.
    pub tool: PluginName,
    /// What has to be in the input; none = any input.
    pub input: Option<Pattern>,
    /// Whether such calls wait for approval.
    pub asks: bool,
}

/// What has to be in the input of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The member: its name, or the names that lead to it with dots between them.
    pub member: String,
    /// What it is, whatever the case of its letters: `*` stands for anything. Of what is no text, its JSON.
    pub glob: String,
}

impl Rule {
    /// Whether it is for this call.
    pub(super) fn is_for(&self, call: &ToolCall) -> bool {
        is_among(&call.name, std::slice::from_ref(&self.tool))
            && self.input.as_ref().is_none_or(|pattern| pattern.is_in(&call.input, self.asks))
    }
}

impl Pattern {
    fn is_in(&self, input: &Value, asks: bool) -> bool {
        let mut found = Vec::new();
        reach(input, Some(&self.member), &mut found);
        match asks {
            true => found.iter().any(|text| is_like(text, &self.glob) || is_like(&led_to(text), &self.glob)),
            false => {
                !found.is_empty() && found.iter().all(|text| is_plain(text) && is_like(text, &self.glob))
            }
        }
    }
}

/// Adds what a member is, of each value of a list on the way.
fn reach<'a>(value: &'a Value, member: Option<&str>, found: &mut Vec<Cow<'a, str>>) {
    match (value, member) {
        (Value::Array(values), _) => values.iter().for_each(|value| reach(value, member, found)),
        (Value::Object(members), Some(name)) => {
            if let Some(value) = members.get(name) {
                reach(value, None, found);
            }
            // A name may have dots itself.
            for (at, _) in name.match_indices('.') {
                if let Some(value) = members.get(&name[..at]) {
                    reach(value, Some(&name[at + 1..]), found);
                }
            }
        }
        (_, Some(_)) => {}
        (Value::String(text), None) => found.push(Cow::Borrowed(text)),
        (value, None) => found.push(Cow::Owned(value.to_string())),
    }
}

/// What a path leads to; without control characters and spaces around it.
fn led_to(path: &str) -> String {
    let text: String = path.chars().filter(|c| !c.is_control()).collect();
    let text = text.trim();
    let mut names = Vec::new();
    for name in text.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let root = if text.starts_with('/') { "/" } else { "" };
    format!("{root}{}", names.join("/"))
}

/// Whether a text is what it seems: it leads to nowhere else.
fn is_plain(text: &str) -> bool {
    let climbs = |name: &str| name.to_ascii_lowercase().replace("%2e", ".") == "..";
    !text.chars().any(char::is_control) && !text.split(['/', '\\']).any(climbs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn fits(member: &str, glob: &str, asks: bool, input: &Value) -> bool {
        Pattern { member: member.to_owned(), glob: glob.to_owned() }.is_in(input, asks)
    }

    #[test]
    fn what_asks_is_found_however_it_is_written() {
        for path in [
            "/etc/passwd",
            "/ETC/passwd",
            "//etc/passwd",
            "/./etc/passwd",
            "/srv/../etc/passwd",
            "/../etc/x",
            " /etc/x",
            "/etc\0/x",
            "/etc//x",
        ] {
            assert!(fits("path", "/etc/*", true, &json!({ "path": path })), "{path}");
            assert!(fits("path", "/etc/*", true, &json!({ "path": ["/srv/a", path] })), "{path}");
            assert!(
                fits("a.b", "/etc/*", true, &json!({ "a": [{ "b": "/srv" }, { "b": [path] }] })),
                "{path}"
            );
            assert!(fits("a.b.c", "/etc/*", true, &json!({ "a.b": { "c": path } })), "{path}");
        }
        assert!(fits("a.b", "x", true, &json!({ "a.b": "x", "a": { "b": "y" } })));
        assert!(fits("n", "12", true, &json!({ "n": 12 })));
        assert!(!fits("path", "/etc/*", true, &json!({ "path": "/srv/etc/x" })));
        assert!(!fits("path", "*", true, &json!({ "other": "/etc/x" })));
    }

    #[test]
    fn what_never_asks_is_taken_at_its_word_only() {
        assert!(fits("path", "/srv/*", false, &json!({ "path": "/srv/a..b/c" })));
        assert!(fits("path", "/srv/*", false, &json!({ "path": ["/srv/a", "/srv/b"] })));
        for input in [
            json!({ "path": "/srv/../etc/passwd" }),
            json!({ "path": "/srv/%2E%2e/etc/passwd" }),
            json!({ "path": "/srv/..\\etc" }),
            json!({ "path": "/srv/a\n/etc/passwd" }),
            json!({ "path": ["/srv/a", "/etc/passwd"] }),
            json!({ "path": [] }),
            json!({}),
        ] {
            assert!(!fits("path", "/srv/*", false, &input), "{input}");
        }
    }

    proptest! {
        #[test]
        fn no_way_through_a_folder_hides_where_a_path_leads(
            detours in prop::collection::vec(prop_oneof![Just("/"), Just("/."), Just("/srv/.."), Just("/a/b/../..")], 0..6),
        ) {
            let path = format!("{}/etc/passwd", detours.concat());
            prop_assert!(fits("path", "/etc/*", true, &json!({ "path": path })), "{}", path);
            prop_assert_eq!(fits("path", "*", false, &json!({ "path": path })), !path.contains(".."));
        }
    }
}
