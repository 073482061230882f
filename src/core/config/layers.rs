//! One layer over the other, by the `config` crate: tables are merged key by key, anything else is
//! replaced.
//!
//! Its values carry a text that says where they come from. Ours is the place of an [`Origin`] in a
//! list, so that a complaint still knows the line. A table that was merged has no origin of its
//! own there; those are remembered by path, the latest layer's.

use std::collections::BTreeMap;

use config::{Map, Source, ValueKind};

use super::tree::{Complaint, Node, Origin, Table, Value};

/// The layers of the configuration, the weakest first.
#[derive(Debug, Default)]
pub(super) struct Layers {
    layers: Vec<Layer>,
    /// Where values were written, and what those are that no key wants.
    origins: Vec<(Origin, Option<&'static str>)>,
    tables: BTreeMap<Vec<String>, Origin>,
}

#[derive(Clone, Debug)]
struct Layer(Map<String, config::Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, config::Value>, config::ConfigError> {
        Ok(self.0.clone())
    }
}

impl Layers {
    /// Adds a layer over the others.
    pub(super) fn push(&mut self, table: Table) {
        let layer = self.table(table, Some(&mut Vec::new()));
        self.layers.push(Layer(layer));
    }

    /// All of them as one.
    ///
    /// # Errors
    /// Where the crate can't put them together.
    pub(super) fn merge(self) -> Result<Table, Vec<Complaint>> {
        let builder = self
            .layers
            .iter()
            .fold(config::Config::builder(), |builder, layer| builder.add_source(layer.clone()));
        let merged = builder.build().map_err(|error| {
            vec![Complaint {
                at: Origin::Default,
                message: format!("the layers of the configuration can't be merged: {error}"),
            }]
        })?;
        match self.node(merged.cache, &mut Vec::new()).value {
            Value::Table(table) => Ok(table),
            _ => Ok(Table::new()),
        }
    }

    /// `path` is where the table is, unless it is within a list.
    fn table(&mut self, table: Table, mut path: Option<&mut Vec<String>>) -> Map<String, config::Value> {
        table
            .into_iter()
            .map(|(key, node)| {
                if let Some(path) = &mut path {
                    path.push(key.clone());
                }
                let value = self.value(node, path.as_deref_mut());
                if let Some(path) = &mut path {
                    path.pop();
                }
                (key, value)
            })
            .collect()
    }

    fn value(&mut self, Node { value, origin }: Node, path: Option<&mut Vec<String>>) -> config::Value {
        let place = self.origins.len().to_string();
        self.origins.push((origin.clone(), None));
        let kind = match value {
            Value::Text(text) | Value::Env(text) => ValueKind::String(text),
            Value::Integer(number) => ValueKind::I64(number),
            Value::Decimal(text) => text.parse().map_or(ValueKind::String(text), ValueKind::Float),
            Value::Bool(flag) => ValueKind::Boolean(flag),
            Value::List(nodes) => {
                ValueKind::Array(nodes.into_iter().map(|node| self.value(node, None)).collect())
            }
            Value::Table(table) => {
                if let Some(path) = &path {
                    self.tables.insert(path.to_vec(), origin);
                }
                ValueKind::Table(self.table(table, path))
            }
            Value::Other(kind) => {
                if let Some(last) = self.origins.last_mut() {
                    last.1 = Some(kind);
                }
                ValueKind::Nil
            }
        };
        config::Value::new(Some(&place), kind)
    }

    fn node(&self, value: config::Value, path: &mut Vec<String>) -> Node {
        let place = value.origin().and_then(|place| place.parse::<usize>().ok());
        let known = place.and_then(|place| self.origins.get(place));
        let (mut origin, other) = known.cloned().unwrap_or((Origin::Default, None));
        let value = match value.kind {
            ValueKind::String(text) if matches!(origin, Origin::Env(_)) => Value::Env(text),
            ValueKind::String(text) => Value::Text(text),
            ValueKind::I64(number) => Value::Integer(number),
            ValueKind::Float(number) => Value::Decimal(number.to_string()),
            ValueKind::Boolean(flag) => Value::Bool(flag),
            ValueKind::Array(values) => {
                Value::List(values.into_iter().map(|value| self.node(value, &mut Vec::new())).collect())
            }
            ValueKind::Table(values) => {
                if place.is_none()
                    && let Some(written) = self.tables.get(path)
                {
                    origin = written.clone();
                }
                let node = |(key, value): (String, config::Value)| {
                    path.push(key.clone());
                    let node = self.node(value, path);
                    path.pop();
                    (key, node)
                };
                Value::Table(values.into_iter().map(node).collect())
            }
            _ => Value::Other(other.unwrap_or("nothing")),
        };
        Node { value, origin }
    }
}
