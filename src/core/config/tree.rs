//! The raw configuration: layers of values that remember where they were written.
//!
//! A later layer replaces what an earlier one said, table by table and key by key. Nothing is known
//! here of sections or types; [`super::section`] reads the merged tree against those.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value as Json;
use toml_edit::{Document, Item};

use super::layers::Layers;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Written nowhere: the default applies.
    Default,
    /// In this file, on this line (from 1). `layer` is the file's place among the layers.
    File {
        /// The file's place among the layers.
        layer: usize,
        /// The line, counted from 1.
        line: usize,
        /// The file's name.
        name: Arc<str>,
    },
    /// In the environment variable of this name.
    Env(Arc<str>),
    /// In this option of the command line.
    Flag(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line, .. } => write!(f, "{name}:{line}"),
            Self::Env(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Something about the configuration that people should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// Where the value was written.
    pub at: Origin,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl Complaint {
    /// The key it is about, as far as it names one, and the rest of what it says.
    pub fn split(&self) -> (&str, &str) {
        let is_path = |text: &str| {
            !text.is_empty()
                && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.".contains(c))
        };
        match self.message.split_once(": ") {
            Some((path, rest)) if is_path(path) => (path, rest),
            _ => ("", &self.message),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

/// One configuration file, already read.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The file's name in complaints.
    pub name: &'a str,
    /// The file's contents.
    pub text: &'a str,
}

/// One value of the command line.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a> {
    /// The option, as complaints call it, such as `--listen`.
    pub name: &'a str,
    /// The key it sets, such as `gateway.listen`: always a list.
    pub key: &'a str,
    /// The values given, in order.
    pub values: &'a [String],
}

/// Variables that start so are configuration; `__` also parts the sections of a key.
pub const ENV_PREFIX: &str = "CLAWMUX__";

pub(super) type Table = BTreeMap<String, Node>;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    /// A number with a fraction, as it is written.
    Decimal(String),
    Bool(bool),
    List(Vec<Node>),
    Table(Table),
    /// Text of an environment variable: becomes what its key wants.
    Env(String),
    /// A kind of value that no key wants.
    Other(&'static str),
}

impl Value {
    /// As JSON; text of the environment as it is, and what no key wants by its name.
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Text(text) | Self::Env(text) => Json::from(text.as_str()),
            Self::Integer(number) => Json::from(*number),
            Self::Decimal(text) => text.parse::<f64>().map_or(Json::Null, Json::from),
            Self::Bool(flag) => Json::from(*flag),
            Self::List(list) => list.iter().map(|node| node.value.to_json()).collect(),
            Self::Table(table) => {
                table.iter().map(|(key, node)| (key.clone(), node.value.to_json())).collect()
            }
            Self::Other(kind) => Json::from(*kind),
        }
    }
}

/// The layers put together: files in this order, then the environment, then the command line.
pub(super) fn merge(
    files: &[File<'_>],
    env: &[(String, String)],
    flags: &[Flag<'_>],
) -> Result<Table, Vec<Complaint>> {
    let mut complaints = Vec::new();
    let mut layers = Layers::default();
    for (layer, file) in files.iter().enumerate() {
        match parse_file(layer, file) {
            Ok(table) => layers.push(table),
            Err(complaint) => complaints.push(complaint),
        }
    }
    for (name, value) in env {
        if let Some(key) = name.strip_prefix(ENV_PREFIX) {
            let origin = Origin::Env(name.as_str().into());
            let path: Vec<String> = key.split("__").map(str::to_ascii_lowercase).collect();
            if path.iter().any(String::is_empty) {
                let message = format!("expected {ENV_PREFIX}SECTION__KEY");
                complaints.push(Complaint { at: origin, message });
            } else {
                layers.push(nest(&path, Node { value: Value::Env(value.clone()), origin }));
            }
        }
    }
    for flag in flags {
        let origin = Origin::Flag(flag.name.into());
        let path: Vec<String> = flag.key.split('.').map(str::to_owned).collect();
        let node = |value| Node { value, origin: origin.clone() };
        let values = flag.values.iter().map(|value| node(Value::Text(value.clone()))).collect();
        layers.push(nest(&path, node(Value::List(values))));
    }
    if complaints.is_empty() { layers.merge() } else { Err(complaints) }
}

/// A layer that sets one key.
fn nest(path: &[String], node: Node) -> Table {
    let (key, rest) = path.split_first().expect("a path has a key");
    let node = if rest.is_empty() {
        node
    } else {
        let origin = node.origin.clone();
        Node { value: Value::Table(nest(rest, node)), origin }
    };
    Table::from([(key.clone(), node)])
}

pub(super) fn parse_file(layer: usize, file: &File<'_>) -> Result<Table, Complaint> {
    let name: Arc<str> = file.name.into();
    let at = |span: Option<Range<usize>>| Origin::File {
        layer,
        name: Arc::clone(&name),
        line: line(file.text, span.map_or(0, |span| span.start)),
    };
    let document = Document::parse(file.text).map_err(|error| Complaint {
        at: at(error.span()),
        message: format!("not valid TOML: {}", error.message().trim().replace('\n', ", ")),
    })?;
    Ok(table_of(document.as_table(), &at))
}

/// A TOML value as it may stand in an environment variable, such as `["a", "b"]`.
pub(super) fn parse_value(text: &str, origin: &Origin) -> Option<Value> {
    let text = format!("x = {text}");
    let document = Document::parse(text.as_str()).ok()?;
    if document.as_table().len() != 1 {
        return None;
    }
    document.get("x").map(|item| value_of(item, &|_| origin.clone()))
}

fn table_of(table: &dyn toml_edit::TableLike, at: &dyn Fn(Option<Range<usize>>) -> Origin) -> Table {
    table
        .iter()
        .filter_map(|(key, item)| {
            let span = table.key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
            if item.is_none() {
                return None;
            }
            Some((key.to_owned(), Node { value: value_of(item, at), origin: at(span) }))
        })
        .collect()
}

fn value_of(item: &Item, at: &dyn Fn(Option<Range<usize>>) -> Origin) -> Value {
    match item {
        Item::None => Value::Other("nothing"),
        Item::Table(table) => Value::Table(table_of(table, at)),
        Item::ArrayOfTables(tables) => Value::List(
            tables
                .iter()
                .map(|table| Node { value: Value::Table(table_of(table, at)), origin: at(table.span()) })
                .collect(),
        ),
        Item::Value(value) => match value {
            toml_edit::Value::String(text) => Value::Text(text.value().clone()),
            toml_edit::Value::Integer(number) => Value::Integer(*number.value()),
            toml_edit::Value::Boolean(flag) => Value::Bool(*flag.value()),
            toml_edit::Value::Float(number) => Value::Decimal(number.value().to_string()),
            toml_edit::Value::Datetime(_) => Value::Other("a date"),
            toml_edit::Value::InlineTable(table) => Value::Table(table_of(table, at)),
            toml_edit::Value::Array(values) => Value::List(
                values
                    .iter()
                    .map(|value| {
                        let item = Item::Value(value.clone());
                        Node { origin: at(value.span()), value: value_of(&item, at) }
                    })
                    .collect(),
            ),
        },
    }
}

fn line(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
