//! Every key there is, as the readers of the sections tell it, and the schema made of that.
//!
//! Kinds, bounds and defaults come from the reading code, texts for people from the comments of the
//! sample `gateway.toml`: nothing is said a second time here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value as Json, json};

use super::load::{Sources, read};
use super::tree::File;

/// The sample, whose comments say what keys are for.
const SAMPLE: &str = include_str!("../../../gateway.toml");

/// One of each section that has a free name or is an item of a list, so that its keys are read; of
/// providers more, so that a default that depends on another key is found not to be one.
const ONE_OF_EACH: &str = "[[auth.api_keys]]\n[agents.main]\n[[bindings]]\n[[plugins]]\nsettings = { a = \"\" }\n[channels.x]\n[bus]\n[cluster]\n[[approvals.rules]]\n[[budgets.rules]]\n[models.x]\n[[mcp]]\nenv = { A = \"\" }\n[secrets.key]\n\
    [providers.anthropic]\n[providers.openai]\n[providers.lab]\nkind = \"openai\"\nbase_url = \"http://lab\"\nheaders = { A = \"\" }\n";

/// A configuration key and what it accepts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) kind: Kind,
    /// What holds where it is not written.
    pub(super) default: Option<Json>,
}

/// The values that a key accepts.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Integer {
        least: u64,
        most: u64,
    },
    Text,
    Choice(Vec<&'static str>),
    Texts,
    /// A number from 0 on that may have a fraction.
    Decimal {
        most: f64,
    },
    /// Yes or no.
    Flag,
}

/// All keys, as `section.key`; `*` stands for a free name, `[]` for the items of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(BTreeMap<String, Key>);

impl Keys {
    pub(super) fn add(&mut self, path: String, key: Key) {
        match self.0.get_mut(&path) {
            Some(known) if known.default != key.default => known.default = None,
            Some(_) => {}
            None => {
                self.0.insert(path, key);
            }
        }
    }

    /// The key of this path.
    pub(super) fn get(&self, path: &str) -> Option<&Key> {
        self.0.get(path)
    }

    /// Every key, by path.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Key)> {
        self.0.iter().map(|(path, key)| (path.as_str(), key))
    }

    /// The path of what is called `name` below `path`; none where there is no such thing.
    pub(super) fn below(&self, path: &str, name: &str) -> Option<String> {
        let dot = if path.is_empty() { "" } else { "." };
        [name, "*"].into_iter().map(|name| format!("{path}{dot}{name}")).find(|path| {
            self.0.contains_key(path) || self.is_section(path) || self.is_section(&format!("{path}[]"))
        })
    }

    /// What may be written right below `path`, but for free names.
    pub(super) fn names_below(&self, path: &str) -> Vec<&str> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
        let below = self.0.keys().filter_map(|known| known.strip_prefix(&prefix));
        let names = below.map(|rest| rest.split('.').next().unwrap_or(rest).trim_end_matches("[]"));
        let mut names: Vec<&str> = names.filter(|name| *name != "*").collect();
        names.dedup();
        names
    }

    /// Whether keys are below `path`.
    pub(super) fn is_section(&self, path: &str) -> bool {
        let prefix = format!("{path}.");
        self.0.range(prefix.clone()..).next().is_some_and(|(path, _)| path.starts_with(&prefix))
    }
}

/// All keys, without any configuration.
pub(super) static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let files = &[File { name: "", text: ONE_OF_EACH }];
    let read_secret = &mut |_: &Path| Err(String::new());
    let is_file = &mut |_: &Path| false;
    let (home, has_issued) = (Path::new(""), &mut |_: &Path| false);
    let sources = Sources { files, env: &[], flags: &[], home, host: "", read_secret, is_file, has_issued };
    // What it complains of is that the examples are empty.
    read(sources).map(|(_, report)| report.keys).unwrap_or_default()
});

/// All configuration keys with what they accept.
#[derive(Clone, Debug)]
pub struct Schema {
    /// As a JSON Schema, draft 7.
    pub json: Json,
    /// What people should be told of sections and keys.
    pub hints: Vec<Hint>,
}

/// What people should be told of a section or key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which one, `*` standing for a free name; nothing stands for the places of a list.
    pub path: String,
    /// What it is for; empty where its name says it.
    pub help: String,
    /// Its place in the sample, from 1.
    pub order: usize,
}

/// The schema of this version.
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let mut json = object();
        for (path, key) in KEYS.all() {
            let mut at = &mut json;
            let names: Vec<&str> = path.split('.').collect();
            let (key_name, sections) = names.split_last().expect("a split gives at least one");
            for name in sections {
                at = section(at, name);
            }
            at["properties"][*key_name] = key.schema();
        }
        json["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        json["title"] = json!("clawmux");
        Schema { json, hints: hints() }
    });
    &SCHEMA
}

fn object() -> Json {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// The section `name` of the one at `at`, made where it is not there.
fn section<'a>(at: &'a mut Json, name: &str) -> &'a mut Json {
    match (name.strip_suffix("[]"), name) {
        (Some(name), _) => {
            let list = &mut at["properties"][name];
            if list.is_null() {
                *list = json!({ "type": "array", "items": object(), "default": [] });
            }
            &mut list["items"]
        }
        (None, "*") => {
            let any = &mut at["additionalProperties"];
            if !any.is_object() {
                *any = object();
            }
            any
        }
        (None, name) => {
            let section = &mut at["properties"][name];
            if section.is_null() {
                *section = object();
            }
            section
        }
    }
}

impl Key {
    fn schema(&self) -> Json {
        let mut schema = match &self.kind {
            Kind::Integer { least, most } => {
                let mut schema = json!({ "type": "integer", "minimum": least });
                if *most <= i64::MAX as u64 {
                    schema["maximum"] = json!(most);
                }
                schema
            }
            Kind::Text => json!({ "type": "string" }),
            Kind::Choice(names) => json!({ "type": "string", "enum": names }),
            Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Kind::Decimal { most } => json!({ "type": "number", "minimum": 0, "maximum": most }),
            Kind::Flag => json!({ "type": "boolean" }),
        };
        if let Some(default) = &self.default {
            schema["default"] = default.clone();
        }
        schema
    }
}

/// Reads them from the sample: the sections and keys of its lines, also of those that are examples,
/// with what the comments behind them say.
fn hints() -> Vec<Hint> {
    let mut hints: Vec<Hint> = Vec::new();
    let mut section = String::new();
    for line in SAMPLE.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        let (code, help) = line.split_once(" # ").unwrap_or((line, ""));
        let code = code.trim();
        let path = match code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => {
                let name = name.trim_start_matches('[').trim_end_matches(']');
                let free = name.split_once('.').filter(|(first, _)| KEYS.is_section(&format!("{first}.*")));
                section = free.map_or_else(|| name.to_owned(), |(first, _)| format!("{first}.*"));
                section.clone()
            }
            None => match code.split_once(" = ") {
                Some((key, _)) if key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') => {
                    format!("{section}.{key}")
                }
                _ => continue,
            },
        };
        if !hints.iter().any(|hint| hint.path == path) {
            hints.push(Hint { path, help: help.trim().to_owned(), order: hints.len() + 1 });
        }
    }
    hints
}
