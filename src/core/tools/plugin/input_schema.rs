//! The JSON Schema that a tool's input has to fit, as its `describe` gives it.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value as Json;

/// The most complaints about one input.
const COMPLAINTS_MAX: usize = 5;

/// The longest complaint, in characters: it may quote the input.
const COMPLAINT_CHARS_MAX: usize = 300;

/// A schema, ready to check inputs.
#[derive(Debug)]
pub struct InputSchema(Validator);

impl InputSchema {
    /// Reads a schema. It refers to nothing outside itself, and its patterns are of the kind whose matching
    /// takes no longer than their text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(schema: &Json) -> Result<Self, String> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        options.build(schema).map(Self).map_err(|error| complaint(&error))
    }

    /// Checks an input.
    ///
    /// # Errors
    /// Where it does not fit, in words for the model that made it.
    pub fn check(&self, input: &Json) -> Result<(), String> {
        let mut complaints: Vec<String> =
            self.0.iter_errors(input).take(COMPLAINTS_MAX + 1).map(|error| complaint(&error)).collect();
        if complaints.is_empty() {
            return Ok(());
        }
        if complaints.len() > COMPLAINTS_MAX {
            complaints.truncate(COMPLAINTS_MAX);
            complaints.push("and more".to_owned());
        }
        Err(complaints.join("; "))
    }
}

fn complaint(error: &ValidationError<'_>) -> String {
    let place = error.instance_path().as_str().to_owned();
    let why = match error.kind() {
        // All of them: whoever has to choose one has to know them.
        ValidationErrorKind::Enum { options } => {
            let options = options.as_array().into_iter().flatten().map(Json::to_string);
            let options = options.collect::<Vec<_>>().join(", ");
            format!("expected one of {options}, found {}", error.instance())
        }
        _ => error.to_string(),
    };
    let mut text = if place.is_empty() { why } else { format!("{place}: {why}") };
    if let Some((end, _)) = text.char_indices().nth(COMPLAINT_CHARS_MAX) {
        text.truncate(end);
        text.push_str(" [...]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn schema() -> InputSchema {
        InputSchema::new(&json!({
            "type": "object",
            "properties": {
                "action": { "enum": ["save", "read"] },
                "name": { "type": "string", "minLength": 1, "pattern": "^[a-z]+$" },
            },
            "required": ["action"],
            "additionalProperties": false,
        }))
        .unwrap()
    }

    #[test]
    fn what_does_not_fit_is_said_with_its_place() {
        let schema = schema();
        assert_eq!(schema.check(&json!({ "action": "save", "name": "a" })), Ok(()));
        for (input, says) in [
            (json!({}), "\"action\" is a required property"),
            (json!({ "action": "drop" }), "/action: expected one of \"save\", \"read\", found \"drop\""),
            (json!({ "action": "read", "name": 7 }), "/name: 7 is not of type \"string\""),
            (json!({ "action": "read", "nam": "a" }), "('nam' was unexpected)"),
            (json!({ "action": "read", "name": "A" }), "/name: \"A\" does not match"),
            (json!([]), "[] is not of type \"object\""),
        ] {
            let error = schema.check(&input).unwrap_err();
            assert!(error.contains(says), "{input}: {error}");
        }
        let long = schema.check(&json!({ "action": "x".repeat(100_000) })).unwrap_err();
        assert!(long.len() < 400, "{}", long.len());
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for schema in [
            json!({ "type": "objekt" }),
            json!({ "properties": [] }),
            json!({ "$ref": "https://elsewhere.example/schema.json" }),
            json!({ "$ref": "file:///etc/passwd" }),
            json!({ "properties": { "a": { "pattern": "(" } } }),
            json!({ "properties": { "a": { "pattern": "(a)\\1" } } }),
        ] {
            assert!(InputSchema::new(&schema).is_err(), "{schema}");
        }
        assert!(InputSchema::new(&json!({ "type": "object", "properties": {} })).is_ok());
    }

    proptest! {
        #[test]
        fn no_input_panics(action in any::<String>(), name in any::<f64>()) {
            let _ = schema().check(&json!({ "action": action, "name": name }));
        }
    }
}
