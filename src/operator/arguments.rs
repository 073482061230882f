//! The arguments of a tool, as a line for people.

use serde_json::Value;

/// What the schema of a tool's input says: each argument with its type, those that may be missing with a `?`.
pub(super) fn arguments(schema: &Value) -> String {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty())
    else {
        return "none".to_owned();
    };
    let (mut needed, mut optional) = (Vec::new(), Vec::new());
    for (name, about) in properties {
        let kind = kind(about).map(|kind| format!(" ({kind})")).unwrap_or_default();
        match required.contains(&name.as_str()) {
            true => needed.push(format!("{name}{kind}")),
            false => optional.push(format!("{name}?{kind}")),
        }
    }
    needed.append(&mut optional);
    needed.join(", ")
}

/// The type of a value, or which ones it may be.
fn kind(about: &Value) -> Option<String> {
    let texts = |values: &Vec<Value>| {
        let texts =
            values.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        texts.collect::<Vec<_>>().join("|")
    };
    match (&about["enum"], &about["type"]) {
        (Value::Array(values), _) | (_, Value::Array(values)) => Some(texts(values)),
        (_, Value::String(kind)) => Some(kind.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_argument_is_told_with_its_type_and_needed_ones_first() {
        let schema = json!({ "type": "object", "required": ["path", "how"], "properties": {
            "depth": { "type": ["integer", "null"] },
            "how": { "enum": ["read", 2] },
            "path": { "type": "string" },
            "what": {},
        }});
        assert_eq!(arguments(&schema), "how (read|2), path (string), depth? (integer|null), what?");
        for schema in [json!({}), json!(null), json!({ "properties": {} }), json!({ "properties": 1 })] {
            assert_eq!(arguments(&schema), "none");
        }
    }
}
