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
