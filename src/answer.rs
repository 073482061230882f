//! Reading what the daemon answers: the members of a JSON object, as commands show them.

use serde_json::Value;

/// The members of an object by name. One that is missing, or of another type, reads as nothing.
pub(crate) trait Members {
    /// A text; `-` for none.
    fn text(&self, name: &str) -> &str;
    /// A number; 0 for none.
    fn number(&self, name: &str) -> u64;
    /// A list; empty for none.
    fn list(&self, name: &str) -> &[Value];
    /// The texts of a list.
    fn texts(&self, name: &str) -> Vec<&str>;
    /// The texts of a list with spaces between them; `-` for none.
    fn words(&self, name: &str) -> String;
}

impl Members for Value {
    fn text(&self, name: &str) -> &str {
        self[name].as_str().unwrap_or("-")
    }

    fn number(&self, name: &str) -> u64 {
        self[name].as_u64().unwrap_or(0)
    }

    fn list(&self, name: &str) -> &[Value] {
        self[name].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn texts(&self, name: &str) -> Vec<&str> {
        self.list(name).iter().filter_map(Value::as_str).collect()
    }

    fn words(&self, name: &str) -> String {
        let texts = self.texts(name);
        if texts.is_empty() { "-".into() } else { texts.join(" ") }
    }
}
