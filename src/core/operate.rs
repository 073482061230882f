//! What only operators ask for: the methods `admin.*` that are no command of their own.

use serde_json::Value as Json;

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Operate {
    /// Its name, such as `admin.status`.
    pub method: String,
    /// Its parameters, not looked at yet.
    pub params: Json,
}

/// How far one of them is that takes long.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is told, such as `admin.backup.progress`.
    pub name: &'static str,
    /// How far.
    pub params: Json,
}
