//! Reads one section of the raw tree key by key: checks types and bounds, collects every
//! complaint instead of stopping at the first, and at the end complains of the keys nobody asked
//! for. Which keys there are is thereby said in one place, the reading code.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::keys::{Key, Keys, Kind};
use super::tree::{Complaint, Node, Origin, Table, Value, parse_value};

/// What was found out while reading.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) complaints: Vec<Complaint>,
    pub(super) warnings: Vec<Complaint>,
    /// Every key that may be written, as `section.key`; `*` stands for a free name, `[]` for the
    /// items of a list.
    pub(super) keys: Keys,
    /// What all keys say, whoever said it, in the kinds of values that their keys want.
    pub(super) effective: Json,
    /// Where it was written what keys say, as `section.key`; those of lists as wholes.
    pub(super) origins: BTreeMap<String, Origin>,
}

/// A step on the way to a value.
#[derive(Clone, Debug)]
enum Step {
    Name(String),
    Item(usize),
}

/// Puts a value where `place` leads, making what is not there on the way.
fn put(at: &mut Json, place: &[Step], value: Json) {
    match place.split_first() {
        // A section that is there says nothing by itself.
        None if value.is_object() && at.is_object() => {}
        None => *at = value,
        Some((Step::Name(name), rest)) => {
            if !at.is_object() {
                *at = Json::Object(Map::new());
            }
            if let Json::Object(map) = at {
                put(map.entry(name).or_insert(Json::Null), rest, value);
            }
        }
        Some((Step::Item(item), rest)) => {
            if !at.is_array() {
                *at = Json::Array(Vec::new());
            }
            if let Json::Array(list) = at {
                list.resize(list.len().max(item + 1), Json::Null);
                put(&mut list[*item], rest, value);
            }
        }
    }
}

impl Report {
    pub(super) fn complain(&mut self, at: &Origin, message: impl Into<String>) {
        self.complaints.push(Complaint { at: at.clone(), message: message.into() });
    }

    /// Brings them into the order of layers and lines.
    pub(super) fn sort(&mut self) {
        self.complaints.sort();
        self.complaints.dedup();
        self.warnings.sort();
    }

    pub(super) fn warn(&mut self, at: &Origin, message: impl Into<String>) {
        self.warnings.push(Complaint { at: at.clone(), message: message.into() });
    }
}

/// A list item with its place.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

/// One table of the tree. Keys are taken out of it as they are read.
pub(super) struct Section {
    /// As people write it: `agents.main`.
    path: String,
    /// With free names as `*`: `agents.*`.
    pattern: String,
    place: Vec<Step>,
    origin: Origin,
    table: Table,
    origins: BTreeMap<&'static str, Origin>,
    asked: Vec<&'static str>,
}

impl Section {
    pub(super) fn root(table: Table) -> Self {
        Self::new(String::new(), String::new(), Vec::new(), Origin::Default, table)
    }

    /// A section that no layer has.
    pub(super) fn absent(path: &str, pattern: &str) -> Self {
        let place = path.split('.').map(|name| Step::Name(name.to_owned())).collect();
        Self::new(path.to_owned(), pattern.to_owned(), place, Origin::Default, Table::new())
    }

    fn new(path: String, pattern: String, place: Vec<Step>, origin: Origin, table: Table) -> Self {
        Self { path, pattern, place, origin, table, origins: BTreeMap::new(), asked: Vec::new() }
    }

    fn below(&self, step: Step) -> Vec<Step> {
        self.place.iter().cloned().chain([step]).collect()
    }

    /// Records the value in effect for `key`.
    fn says(&self, report: &mut Report, key: &str, value: Json) {
        put(&mut report.effective, &self.below(Step::Name(key.to_owned())), value);
    }

    /// Where `key` was written: call it after the key was read. Where the section is, if nowhere.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).unwrap_or(&self.origin).clone()
    }

    /// Whether any layer has this section.
    pub(super) fn is_written(&self) -> bool {
        !matches!(self.origin, Origin::Default)
    }

    /// Whether `key`, which was read before, was written anywhere.
    pub(super) fn has(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// `section.key`, as people write it.
    pub(super) fn name(&self, key: &str) -> String {
        join(&self.path, key)
    }

    fn take(&mut self, key: &'static str) -> Option<Node> {
        self.asked.push(key);
        let node = self.table.remove(key)?;
        self.origins.insert(key, node.origin.clone());
        Some(node)
    }

    /// Takes a key of this kind; where it is not written it says `default`, if there is one.
    fn take_known(
        &mut self,
        report: &mut Report,
        key: &'static str,
        kind: Kind,
        default: Option<Json>,
    ) -> Option<Node> {
        if let Some(default) = &default {
            self.says(report, key, default.clone());
        }
        report.keys.add(join(&self.pattern, key), Key { kind, default });
        let node = self.take(key)?;
        self.was_written(report, key, &node.origin);
        Some(node)
    }

    /// Notes where a key was written, unless it is of an item of a list.
    fn was_written(&self, report: &mut Report, key: &str, at: &Origin) {
        if self.place.iter().all(|step| matches!(step, Step::Name(_))) {
            report.origins.insert(self.name(key), at.clone());
        }
    }

    fn wrong(&self, report: &mut Report, key: &str, node: &Node, expected: &str) {
        report.complain(
            &node.origin,
            format!("{}: expected {expected}, found {}", self.name(key), describe(&node.value)),
        );
    }

    pub(super) fn integer(
        &mut self,
        report: &mut Report,
        key: &'static str,
        default: u64,
        allowed: RangeInclusive<u64>,
    ) -> u64 {
        let kind = Kind::Integer { least: *allowed.start(), most: *allowed.end() };
        let Some(node) = self.take_known(report, key, kind, Some(json!(default))) else { return default };
        let number = match &node.value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Env(text) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        };
        match number {
            Some(number) if allowed.contains(&number) => {
                self.says(report, key, json!(number));
                number
            }
            _ => {
                let expected = match (*allowed.start(), *allowed.end()) {
                    (least, most) if most >= i64::MAX as u64 => format!("a whole number of at least {least}"),
                    (least, most) => format!("a whole number from {least} to {most}"),
                };
                self.wrong(report, key, &node, &expected);
                default
            }
        }
    }

    /// A whole number; none where it is not written.
    pub(super) fn whole(
        &mut self,
        report: &mut Report,
        key: &'static str,
        allowed: RangeInclusive<u64>,
    ) -> Option<u64> {
        let kind = Kind::Integer { least: *allowed.start(), most: *allowed.end() };
        let node = self.take_known(report, key, kind, None)?;
        let number = match &node.value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Env(text) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        };
        let Some(number) = number.filter(|number| allowed.contains(number)) else {
            let (least, most) = (allowed.start(), allowed.end());
            self.wrong(report, key, &node, &format!("a whole number from {least} to {most}"));
            return None;
        };
        self.says(report, key, json!(number));
        Some(number)
    }

    /// A number from 0 to `most` that may have a fraction; `default` where it is not written or is none.
    pub(super) fn decimal(
        &mut self,
        report: &mut Report,
        key: &'static str,
        default: Option<f64>,
        most: f64,
    ) -> Option<f64> {
        let Some(node) = self.take_known(report, key, Kind::Decimal { most }, default.map(as_written)) else {
            return default;
        };
        let number = match &node.value {
            Value::Integer(number) => Some(*number as f64),
            Value::Decimal(text) | Value::Env(text) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        };
        let Some(number) = number.filter(|number| (0.0..=most).contains(number)) else {
            self.wrong(report, key, &node, &format!("a number from 0 to {most}"));
            return default;
        };
        self.says(report, key, as_written(number));
        Some(number)
    }

    /// Yes or no; none where it is not written.
    pub(super) fn flag(&mut self, report: &mut Report, key: &'static str) -> Option<bool> {
        let node = self.take_known(report, key, Kind::Flag, None)?;
        let flag = match &node.value {
            Value::Bool(flag) => Some(*flag),
            Value::Env(text) => text.trim().parse().ok(),
            _ => None,
        };
        match flag {
            Some(flag) => self.says(report, key, json!(flag)),
            None => self.wrong(report, key, &node, "true or false"),
        }
        flag
    }

    /// [`Self::integer`] for what this machine counts in.
    pub(super) fn count(
        &mut self,
        report: &mut Report,
        key: &'static str,
        default: usize,
        allowed: RangeInclusive<u64>,
    ) -> usize {
        usize::try_from(self.integer(report, key, default as u64, allowed)).unwrap_or(usize::MAX)
    }

    pub(super) fn millis(&mut self, report: &mut Report, key: &'static str, default_ms: u64) -> Duration {
        const DAY_MS: u64 = 86_400_000;
        Duration::from_millis(self.integer(report, key, default_ms, 1..=DAY_MS))
    }

    pub(super) fn text(&mut self, report: &mut Report, key: &'static str, default: &str) -> String {
        self.text_or(report, key, Some(default)).unwrap_or_else(|| default.to_owned())
    }

    /// Text, of which the empty one means none.
    pub(super) fn optional(&mut self, report: &mut Report, key: &'static str) -> Option<String> {
        self.text_or(report, key, None).filter(|text| !text.is_empty())
    }

    /// A text as it was written; none = it was not.
    pub(super) fn text_or(
        &mut self,
        report: &mut Report,
        key: &'static str,
        default: Option<&str>,
    ) -> Option<String> {
        let node = self.take_known(report, key, Kind::Text, default.map(Json::from))?;
        match node.value {
            Value::Text(text) | Value::Env(text) => {
                self.says(report, key, json!(text));
                Some(text)
            }
            _ => {
                self.wrong(report, key, &node, "text");
                None
            }
        }
    }

    pub(super) fn choice<T: Copy + PartialEq>(
        &mut self,
        report: &mut Report,
        key: &'static str,
        default: T,
        allowed: &[(&'static str, T)],
    ) -> T {
        let kind = Kind::Choice(allowed.iter().map(|(name, _)| *name).collect());
        let usual = allowed.iter().find(|(_, value)| *value == default).map(|(name, _)| json!(name));
        let Some(node) = self.take_known(report, key, kind, usual) else { return default };
        if let Value::Text(text) | Value::Env(text) = &node.value
            && let Some((name, value)) = allowed.iter().find(|(name, _)| name == text)
        {
            self.says(report, key, json!(name));
            return *value;
        }
        let names: Vec<String> = allowed.iter().map(|(name, _)| format!("{name:?}")).collect();
        self.wrong(report, key, &node, &names.join(" or "));
        default
    }

    /// A list of texts; none where it is not written, which means `default`. In an environment
    /// variable: a TOML list, or texts parted by commas.
    pub(super) fn texts(
        &mut self,
        report: &mut Report,
        key: &'static str,
        default: Option<&[&str]>,
    ) -> Option<Vec<At<String>>> {
        let node = self.take_known(report, key, Kind::Texts, default.map(|texts| json!(texts)))?;
        let list = match &node.value {
            Value::List(list) => Some(list.clone()),
            Value::Env(text) if text.trim_start().starts_with('[') => match parse_value(text, &node.origin) {
                Some(Value::List(list)) => Some(list),
                _ => None,
            },
            Value::Env(text) => Some(
                text.split(',')
                    .map(str::trim)
                    .filter(|text| !text.is_empty())
                    .map(|text| Node { value: Value::Text(text.to_owned()), origin: node.origin.clone() })
                    .collect(),
            ),
            _ => None,
        };
        let Some(list) = list else {
            self.wrong(report, key, &node, "a list of strings");
            return None;
        };
        let mut texts = Vec::with_capacity(list.len());
        for item in list {
            match item.value {
                Value::Text(value) => texts.push(At { value, origin: item.origin }),
                _ => self.wrong(report, key, &item, "a list of strings"),
            }
        }
        self.says(report, key, texts.iter().map(|text| json!(text.value)).collect());
        Some(texts)
    }

    /// The table under `key`; an empty one where there is none.
    pub(super) fn section(&mut self, report: &mut Report, key: &'static str) -> Self {
        let (path, pattern) = (self.name(key), join(&self.pattern, key));
        let place = self.below(Step::Name(key.to_owned()));
        match self.take(key) {
            Some(Node { value: Value::Table(table), origin }) => {
                put(&mut report.effective, &place, json!({}));
                Self::new(path, pattern, place, origin, table)
            }
            Some(node) => {
                self.wrong(report, key, &node, &format!("a section [{path}]"));
                Self::new(path, pattern, place, node.origin, Table::new())
            }
            None => Self::new(path, pattern, place, Origin::Default, Table::new()),
        }
    }

    /// The tables of a section whose keys are free names.
    pub(super) fn named(self, report: &mut Report) -> Vec<(String, Self)> {
        let mut sections = Vec::new();
        for (name, node) in self.table {
            let path = join(&self.path, &name);
            let place: Vec<Step> = self.place.iter().cloned().chain([Step::Name(name.clone())]).collect();
            match node.value {
                Value::Table(table) => {
                    let pattern = join(&self.pattern, "*");
                    put(&mut report.effective, &place, json!({}));
                    sections.push((name, Self::new(path, pattern, place, node.origin, table)));
                }
                value => report.complain(
                    &node.origin,
                    format!("{path}: expected a section [{path}], found {}", describe(&value)),
                ),
            }
        }
        sections
    }

    /// The texts of a section whose keys are free names.
    pub(super) fn named_texts(self, report: &mut Report) -> Vec<(String, At<String>)> {
        report.keys.add(join(&self.pattern, "*"), Key { kind: Kind::Text, default: None });
        let mut texts = Vec::new();
        for (name, node) in &self.table {
            match &node.value {
                Value::Text(text) | Value::Env(text) => {
                    self.says(report, name, json!(text));
                    self.was_written(report, name, &node.origin);
                    texts.push((name.clone(), At { value: text.clone(), origin: node.origin.clone() }));
                }
                _ => self.wrong(report, name, node, "text"),
            }
        }
        texts
    }

    /// A list of tables, written `[[key]]`.
    pub(super) fn list(&mut self, report: &mut Report, key: &'static str) -> Vec<Self> {
        self.says(report, key, json!([]));
        let Some(node) = self.take(key) else { return Vec::new() };
        self.was_written(report, key, &node.origin);
        let (path, pattern) = (self.name(key), format!("{}[]", join(&self.pattern, key)));
        let expected = format!("sections [[{path}]]");
        let list = match &node.value {
            Value::List(list) => list.clone(),
            Value::Env(text) => match parse_value(text, &node.origin) {
                Some(Value::List(list)) => list,
                _ => {
                    self.wrong(report, key, &node, &expected);
                    return Vec::new();
                }
            },
            _ => {
                self.wrong(report, key, &node, &expected);
                return Vec::new();
            }
        };
        let mut sections = Vec::with_capacity(list.len());
        let place = self.below(Step::Name(key.to_owned()));
        for (index, item) in list.into_iter().enumerate() {
            match item.value {
                Value::Table(table) => {
                    let place: Vec<Step> = place.iter().cloned().chain([Step::Item(index)]).collect();
                    put(&mut report.effective, &place, json!({}));
                    sections.push(Self::new(path.clone(), pattern.clone(), place, item.origin, table));
                }
                _ => self.wrong(report, key, &item, &expected),
            }
        }
        sections
    }

    /// Complains of every key that was not asked for.
    pub(super) fn finish(self, report: &mut Report) {
        for (key, node) in &self.table {
            report.complain(&node.origin, unknown(&self.path, key, &self.asked));
        }
    }
}

/// What is said of a key that nobody knows in the section at `path`, where `known` are.
pub(super) fn unknown(path: &str, key: &str, known: &[&str]) -> String {
    const SECRETS: [&str; 8] =
        ["token", "api_key", "apikey", "key", "secret", "password", "jwt_secret", "shared_token"];
    let mut message = format!("{}: unknown key", join(path, key));
    if SECRETS.contains(&key) {
        let says_where = |name: &&str| name.ends_with("_env") || name.ends_with("_file") || *name == "sha256";
        let allowed: Vec<&str> =
            known.iter().copied().filter(says_where).filter(|name| *name != "ca_file").collect();
        message.push_str("; secrets are never written here");
        if !allowed.is_empty() {
            message.push_str(&format!(": use {}", allowed.join(" or ")));
        }
    } else if let Some(near) = nearest(key, known.iter().copied()) {
        message.push_str(&format!("; did you mean {near}?"));
    } else if !known.is_empty() {
        message.push_str(&format!("; known here: {}", known.join(", ")));
    }
    message
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A number as people write it: a whole one without a fraction.
fn as_written(number: f64) -> Json {
    if number.fract() == 0.0 && number < 9e15 { json!(number as u64) } else { json!(number) }
}

fn describe(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let short = |text: &str| {
        let cut: String = text.chars().take(CHARS_MAX).collect();
        if cut.len() < text.len() { format!("{cut:?}...") } else { format!("{cut:?}") }
    };
    match value {
        Value::Text(text) | Value::Env(text) => short(text),
        Value::Integer(number) => number.to_string(),
        Value::Decimal(number) => number.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::List(_) => "a list".into(),
        Value::Table(_) => "a section".into(),
        Value::Other(kind) => (*kind).into(),
    }
}

/// The name that is at most two edits (one for short ones) away.
pub(super) fn nearest<'a>(name: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = if name.chars().count() > 4 { 2 } else { 1 };
    among
        .into_iter()
        .map(|known| (edits(name, known), known))
        .filter(|(edits, _)| *edits <= allowed)
        .min()
        .map(|(_, known)| known)
}

/// How many letters to put in, take out, replace or swap with the next one make one name the other.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}
