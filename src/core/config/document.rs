//! A configuration file as JSON and back: what is shown of it to those who may change it, and how
//! what they send is written into it.
//!
//! The file stays what its author made of it: only what was changed is written, where it stands, so
//! that comments and order remain. Nothing that may be a secret is shown: in its place stands
//! [`HIDDEN`], and who sends that back leaves what is there.

use serde_json::{Map, Value as Json};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::keys::{KEYS, Kind};
use super::section::unknown;
use super::tree::{Complaint, File, Origin, Value as Raw, parse_file, parse_value};

/// Stands for what is not shown.
pub const HIDDEN: &str = "(hidden)";

/// What a file says, as JSON, with all that may be a secret hidden.
///
/// # Errors
/// Where it is not TOML.
pub(super) fn shown_file(file: &File<'_>) -> Result<Json, Complaint> {
    Ok(shown(&Raw::Table(parse_file(0, file)?).to_json()))
}

/// The same without what may be a secret.
pub(super) fn shown(value: &Json) -> Json {
    show(value, "")
}

fn show(value: &Json, path: &str) -> Json {
    match value {
        Json::Object(map) if path.is_empty() || KEYS.is_section(path) => map
            .iter()
            .map(|(name, value)| {
                // What is written under a name that is no key may be anything.
                let shown = KEYS.below(path, name).map_or_else(|| HIDDEN.into(), |path| show(value, &path));
                (name.clone(), shown)
            })
            .collect(),
        Json::Array(list) if KEYS.is_section(&format!("{path}[]")) => {
            list.iter().map(|item| show(item, &format!("{path}[]"))).collect()
        }
        value if KEYS.get(path).is_some() && !may_be_secret(path, value) => value.clone(),
        _ => HIDDEN.into(),
    }
}

fn may_be_secret(path: &str, value: &Json) -> bool {
    let Some(text) = value.as_str() else {
        let each_as = path.strip_suffix('s').filter(|path| path.ends_with("_env"));
        let list = each_as.and_then(|path| Some((path, value.as_array()?)));
        return list.is_some_and(|(path, list)| list.iter().any(|item| may_be_secret(path, item)));
    };
    match path.rsplit('.').next().unwrap_or_default() {
        // A weak key can be guessed from it.
        "sha256" => true,
        "base_url" => text.contains(['@', '?', '#']),
        key if key.ends_with("_env") => {
            !text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
        }
        _ if path.starts_with("mcp[].env.") || path.starts_with("providers.*.headers.") => {
            !text.starts_with("secret:")
        }
        _ => false,
    }
}

/// What a merge patch makes of a document (RFC 7386): null removes a key.
pub fn patched(base: &Json, patch: &Json) -> Json {
    let Json::Object(patch) = patch else { return patch.clone() };
    let mut map = base.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            let changed = patched(map.get(key).unwrap_or(&Json::Null), value);
            map.insert(key.clone(), changed);
        }
    }
    Json::Object(map)
}

/// What a document is with these places (`section.key`, or a section) saying these values: null takes
/// a place away. Where it is to `merge`, what an object does not name is kept, rather than gone.
///
/// # Errors
/// Every place that can't be one, or that lies within another.
pub fn placed(base: &Json, values: &[(String, Json)], merge: bool) -> Result<Json, Vec<Complaint>> {
    let mut document = if base.is_object() { base.clone() } else { Json::Object(Map::new()) };
    let mut complaints = Vec::new();
    for (path, value) in values {
        let inside =
            |other: &String| path.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with('.'));
        if let Some((other, _)) = values.iter().find(|(other, _)| inside(other)) {
            complaints.push(complaint(path, &format!("lies within {other}, which is set as well")));
        } else if path.split('.').any(str::is_empty) {
            complaints.push(complaint(path, "is no key: write it as section.key"));
        } else if !place(&mut document, path, value, merge) {
            complaints.push(complaint(path, "what it lies in is no section"));
        }
    }
    if complaints.is_empty() { Ok(document) } else { Err(complaints) }
}

/// Says a value at one place; false where there can't be such a place.
fn place(document: &mut Json, path: &str, value: &Json, merge: bool) -> bool {
    let (sections, key) = path.rsplit_once('.').map_or((None, path), |(sections, key)| (Some(sections), key));
    let mut at = document;
    for name in sections.into_iter().flat_map(|sections| sections.split('.')) {
        let Json::Object(section) = at else { return false };
        if value.is_null() && !section.contains_key(name) {
            return true;
        }
        at = section.entry(name).or_insert_with(|| Json::Object(Map::new()));
    }
    let Json::Object(section) = at else { return false };
    if value.is_null() {
        section.remove(key);
    } else if merge {
        let merged = patched(section.get(key).unwrap_or(&Json::Null), value);
        section.insert(key.to_owned(), merged);
    } else {
        section.insert(key.to_owned(), value.clone());
    }
    true
}

/// The keys, as `section.key`, at which two documents differ.
pub fn differences(one: &Json, other: &Json) -> Vec<String> {
    let mut found = Vec::new();
    differ(Some(one), Some(other), "", &mut found);
    found
}

fn differ(one: Option<&Json>, other: Option<&Json>, path: &str, found: &mut Vec<String>) {
    let map = |json: Option<&Json>| json.and_then(Json::as_object).cloned();
    match (map(one), map(other)) {
        (Some(a), Some(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                differ(a.get(name), b.get(name), &path, found);
            }
        }
        _ if one != other => found.push(path.to_owned()),
        _ => {}
    }
}

/// What stands at a place; none where there is nothing, or no such place.
pub fn at<'a>(document: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(document, |at, name| at.as_object()?.get(name))
}

/// Whether there is such a key or section, said or not.
pub fn is_known(path: &str) -> bool {
    let below = |at: String, name: &str| KEYS.below(&at, name);
    path.split('.').try_fold(String::new(), below).is_some()
}

/// What is wrong with a path that is no key, and what may be meant; none where it is one.
pub fn no_such_key(path: &str) -> Option<String> {
    let mut pattern = String::new();
    let mut above: Vec<&str> = Vec::new();
    for name in path.split('.') {
        match KEYS.below(&pattern, name) {
            Some(below) => pattern = below,
            // A key without its section.
            None if above.is_empty() && !path.contains('.') => {
                let ends =
                    |known: &&str| known.rsplit('.').next() == Some(name) && !known.contains(['*', '[']);
                let meant: Vec<&str> = KEYS.all().map(|(known, _)| known).filter(ends).collect();
                return Some(match meant[..] {
                    [] => unknown("", name, &KEYS.names_below("")),
                    _ => format!("{name}: unknown key; did you mean {}?", meant.join(" or ")),
                });
            }
            None => return Some(unknown(&above.join("."), name, &KEYS.names_below(&pattern))),
        }
        above.push(name);
    }
    None
}

/// The keys below `path` (empty: all) that may be said and are not, and have no default, with sections of free names
/// as far as `said` has those.
pub fn unsaid(said: &Json, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (pattern, _) in KEYS.all().filter(|(pattern, _)| !pattern.contains('[')) {
        expand(said, &pattern.split('.').collect::<Vec<_>>(), &mut Vec::new(), &mut found);
    }
    let is_below = |key: &String| {
        path.is_empty() || key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    found.retain(|key| is_below(key) && at(said, key).is_none());
    found
}

fn expand(said: &Json, pattern: &[&str], path: &mut Vec<String>, found: &mut Vec<String>) {
    let Some((name, rest)) = pattern.split_first() else { return found.push(path.join(".")) };
    let names = match *name {
        "*" => said.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect(),
        name => vec![name.to_owned()],
    };
    for name in names {
        let below = said.get(&name).unwrap_or(&Json::Null);
        path.push(name.clone());
        expand(below, rest, path, found);
        path.pop();
    }
}

/// What a document is without what stands at this place, and without the sections that said nothing else. One of a
/// free name stays: that it is there says something.
pub fn unset(base: &Json, path: &str) -> Json {
    let mut document = base.clone();
    let names: Vec<&str> = path.split('.').collect();
    for length in (1..=names.len()).rev() {
        let (above, name) = (names[..length - 1].join("."), names[length - 1]);
        let section = if above.is_empty() { Some(&mut document) } else { at_mut(&mut document, &above) };
        let Some(Json::Object(section)) = section else { continue };
        let is_asked = length == names.len();
        let says_nothing = section.get(name).and_then(Json::as_object).is_some_and(Map::is_empty);
        let pattern = names[..length].iter().try_fold(String::new(), |at, name| KEYS.below(&at, name));
        let is_named = pattern.is_some_and(|pattern| pattern.ends_with('*'));
        if !is_asked && (!says_nothing || is_named) {
            break;
        }
        section.remove(name);
    }
    document
}

fn at_mut<'a>(document: &'a mut Json, path: &str) -> Option<&'a mut Json> {
    path.split('.').try_fold(document, |at, name| at.as_object_mut()?.get_mut(name))
}

/// What somebody means who writes `text` behind a key on a command line: a value as TOML has it, or a
/// bare text where the key wants one; for a list of texts also texts parted by commas.
pub fn value_of_text(path: &str, text: &str) -> Json {
    let pattern = path.split('.').try_fold(String::new(), |at, name| KEYS.below(&at, name));
    let kind = pattern.as_deref().and_then(|pattern| KEYS.get(pattern)).map(|key| &key.kind);
    let written = parse_value(text, &Origin::Default).filter(|value| !matches!(value, Raw::Other(_)));
    match (written.map(|value| value.to_json()), kind) {
        (Some(value), Some(Kind::Text | Kind::Choice(_))) if !value.is_string() => text.into(),
        (Some(value), Some(Kind::Texts)) if value.is_array() => value,
        (value, Some(Kind::Texts)) => {
            let bare = value.as_ref().and_then(Json::as_str).unwrap_or(text);
            bare.split(',').map(str::trim).filter(|text| !text.is_empty()).map(Json::from).collect()
        }
        (Some(value), _) => value,
        (None, _) => text.into(),
    }
}

/// The text of a file that says what `asked` says. `file` and `effective` are what was shown of it
/// and of all that is in effect: what is asked to be as it is shown there is left as it is.
///
/// # Errors
/// What can't be said in TOML, or a text that is none.
pub fn edit(text: &str, asked: &Json, file: &Json, effective: &Json) -> Result<String, Vec<Complaint>> {
    let mut complaints = Vec::new();
    let Json::Object(asked) = asked else {
        return Err(vec![complaint("", "expected an object of sections")]);
    };
    let mut document: DocumentMut =
        text.parse().map_err(|_| vec![complaint("", "the file is not valid TOML: correct it first")])?;
    let known = Known { file: Some(file), effective: Some(effective) };
    keep_comments(&mut document, asked);
    table(document.as_table_mut(), asked, known, "", &mut complaints);
    if !complaints.is_empty() {
        return Err(complaints);
    }
    // The parser knows one line end only.
    let new = document.to_string();
    let lines = text.matches('\n').count();
    Ok(if new == text.replace("\r\n", "\n") {
        text.to_owned()
    } else if lines > 0 && text.matches("\r\n").count() == lines {
        new.replace('\n', "\r\n")
    } else {
        new
    })
}

/// Moves the comments above sections that go to what stands behind them: they may be about the whole file.
fn keep_comments(document: &mut DocumentMut, asked: &Map<String, Json>) {
    let comments = |table: &Table| {
        let prefix = table.decor().prefix()?.as_str()?.to_owned();
        prefix.contains('#').then_some(prefix)
    };
    let gone: Vec<_> = document
        .iter()
        .filter(|(key, _)| !asked.contains_key(*key))
        .filter_map(|(_, item)| item.as_table().and_then(|table| Some((table.position()?, comments(table)?))))
        .collect();
    for (position, comments) in gone {
        let stays = document.iter().filter(|(key, _)| asked.contains_key(*key));
        let positions = stays.flat_map(|(_, item)| positions(item));
        match positions.filter(|other| *other > position).min() {
            Some(next) => {
                document.iter_mut().for_each(|(_, item)| put_above(item, next, &comments));
            }
            None => {
                let own = document.trailing().as_str().unwrap_or_default();
                let both = format!("{comments}{own}");
                document.set_trailing(both);
            }
        }
    }
}

/// Where the sections of an item stand in the file.
fn positions(item: &Item) -> Vec<isize> {
    let of = |table: &Table| {
        let below = table.iter().flat_map(|(_, item)| positions(item));
        below.chain(table.position()).collect::<Vec<_>>()
    };
    match item {
        Item::Table(table) => of(table),
        Item::ArrayOfTables(tables) => tables.iter().flat_map(of).collect(),
        Item::None | Item::Value(_) => Vec::new(),
    }
}

/// Puts comments above the section that stands there.
fn put_above(item: &mut Item, position: isize, comments: &str) {
    let put = |table: &mut Table| {
        if table.position() == Some(position) {
            let own = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
            let both = format!("{comments}{own}");
            table.decor_mut().set_prefix(both);
        }
        table.iter_mut().for_each(|(_, item)| put_above(item, position, comments));
    };
    match item {
        Item::Table(table) => put(table),
        Item::ArrayOfTables(tables) => tables.iter_mut().for_each(put),
        Item::None | Item::Value(_) => {}
    }
}

/// What is shown of one place.
#[derive(Clone, Copy)]
struct Known<'a> {
    file: Option<&'a Json>,
    effective: Option<&'a Json>,
}

impl<'a> Known<'a> {
    fn at(self, name: &str) -> Self {
        let at = |json: Option<&'a Json>| json.and_then(|json| json.get(name));
        Self { file: at(self.file), effective: at(self.effective) }
    }

    fn item(self, index: usize) -> Self {
        let at = |json: Option<&'a Json>| json.and_then(|json| json.get(index));
        Self { file: at(self.file), effective: at(self.effective) }
    }

    fn is(self, value: &Json) -> bool {
        self.file == Some(value) || self.effective == Some(value)
    }
}

fn complaint(path: &str, why: &str) -> Complaint {
    let path = if path.is_empty() { "configuration" } else { path };
    Complaint { at: Origin::Default, message: format!("{path}: {why}") }
}

fn table(
    at: &mut dyn TableLike,
    asked: &Map<String, Json>,
    known: Known<'_>,
    path: &str,
    complaints: &mut Vec<Complaint>,
) {
    let gone: Vec<String> =
        at.iter().map(|(key, _)| key.to_owned()).filter(|key| !asked.contains_key(key)).collect();
    for key in gone {
        at.remove(&key);
    }
    for (key, value) in asked {
        let known = known.at(key);
        if known.is(value) {
            continue;
        }
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (value, at.get_mut(key).filter(|item| !item.is_none())) {
            (Json::Object(asked), Some(item)) if item.is_table_like() => {
                if let Some(below) = item.as_table_like_mut() {
                    table(below, asked, known, &path, complaints);
                }
            }
            (Json::Object(asked), _) => {
                let mut below = Table::new();
                table(&mut below, asked, known, &path, complaints);
                // All it says is so already.
                let is_idle = below.is_empty() && known.effective.is_some_and(Json::is_object);
                // `[a]` need not be written for `[a.b]`.
                below.set_implicit(!below.is_empty() && below.iter().all(|(_, item)| item.is_table()));
                if !is_idle {
                    at.insert(key, Item::Table(below));
                }
            }
            (Json::Array(list), Some(Item::ArrayOfTables(tables))) if list.iter().all(Json::is_object) => {
                if list.is_empty() {
                    at.remove(key);
                } else {
                    items(tables, list, known, &path, complaints);
                }
            }
            (Json::Array(list), None) if !list.is_empty() && list.iter().all(Json::is_object) => {
                let mut tables = ArrayOfTables::new();
                items(&mut tables, list, known, &path, complaints);
                at.insert(key, Item::ArrayOfTables(tables));
            }
            (value, item) => match simple(value) {
                Err(why) => complaints.push(complaint(&path, why)),
                Ok(mut new) => match item {
                    Some(Item::Value(old)) => {
                        // The comment behind it.
                        *new.decor_mut() = old.decor().clone();
                        *old = new;
                    }
                    _ => {
                        at.insert(key, Item::Value(new));
                    }
                },
            },
        }
    }
}

fn items(
    tables: &mut ArrayOfTables,
    asked: &[Json],
    known: Known<'_>,
    path: &str,
    complaints: &mut Vec<Complaint>,
) {
    while tables.len() > asked.len() {
        tables.remove(tables.len() - 1);
    }
    for (index, item) in asked.iter().enumerate() {
        let known = known.item(index);
        if tables.len() <= index {
            tables.push(Table::new());
        } else if known.is(item) {
            continue;
        }
        if let (Some(below), Json::Object(asked)) = (tables.get_mut(index), item) {
            table(below, asked, known, path, complaints);
        }
    }
}

/// A value as TOML has it.
fn simple(value: &Json) -> Result<Value, &'static str> {
    Ok(match value {
        Json::Null => return Err("null is no value: leave the key out"),
        Json::Bool(flag) => (*flag).into(),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(whole)) if whole.fract() == 0.0 && whole.abs() < 9e15 => (whole as i64).into(),
            (None, Some(fraction)) if number.is_f64() => fraction.into(),
            _ => return Err("the number is too large"),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(list) => list.iter().map(simple).collect::<Result<Array, _>>()?.into(),
        Json::Object(map) => {
            let mut table = InlineTable::new();
            for (key, value) in map {
                table.insert(key, simple(value)?);
            }
            table.into()
        }
    })
}
