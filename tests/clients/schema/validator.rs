//! As much of JSON schema (draft 7) as the published one uses.
//!
//! A crate for it changes the features of crates that the daemon is built with, and so the daemon that
//! the tests are about. Regular expressions and formats are not looked at: a text of any pattern will
//! do, and a property whose name has a pattern is looked at whatever its name.

use serde_json::Value;

/// Everything in `value` that `schema` does not allow; `at` is where it is.
pub fn breaches(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    match schema {
        Value::Bool(true) => return Vec::new(),
        Value::Bool(false) => return vec![format!("{at}: must not be there")],
        _ => {}
    }
    let mut found = Vec::new();
    typed(schema, value, at, &mut found);
    combined(schema, value, at, &mut found);
    match value {
        Value::Object(_) => object(schema, value, at, &mut found),
        Value::Array(_) => array(schema, value, at, &mut found),
        _ => {}
    }
    found
}

fn typed(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "object" => value.is_object(),
        "array" => value.is_array(),
        other => panic!("no such type: {other}"),
    };
    let fits = match &schema["type"] {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    };
    if !fits {
        found.push(format!("{at}: {value} is no {}", schema["type"]));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        found.push(format!("{at}: {value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        found.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    let bound = |name: &str| schema[name].as_f64();
    let size = match value {
        Value::String(text) => Some(("Length", text.chars().count() as f64)),
        Value::Array(items) => Some(("Items", items.len() as f64)),
        Value::Object(members) => Some(("Properties", members.len() as f64)),
        Value::Number(number) => number.as_f64().map(|number| ("imum", number)),
        _ => None,
    };
    if let Some((what, size)) = size {
        if bound(&format!("min{what}")).is_some_and(|least| size < least) {
            found.push(format!("{at}: {value} is less than min{what}"));
        }
        if bound(&format!("max{what}")).is_some_and(|most| size > most) {
            found.push(format!("{at}: {value} is more than max{what}"));
        }
    }
}

fn combined(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let list = |name: &str| schema[name].as_array().map(Vec::as_slice).unwrap_or_default();
    for part in list("allOf") {
        found.extend(breaches(part, value, at));
    }
    for (name, one) in [("anyOf", false), ("oneOf", true)] {
        let each: Vec<_> = list(name).iter().map(|part| breaches(part, value, at)).collect();
        let fitting = each.iter().filter(|breaches| breaches.is_empty()).count();
        if !each.is_empty() && (fitting == 0 || (one && fitting > 1)) {
            // What comes closest says most.
            let closest = each.into_iter().min_by_key(Vec::len).unwrap_or_default();
            found.push(format!("{at}: {fitting} of {name} fit; closest: {}", closest.join("; ")));
        }
    }
    if schema.get("not").is_some_and(|not| breaches(not, value, at).is_empty()) {
        found.push(format!("{at}: {value} is {}", schema["not"]));
    }
    if let Some(condition) = schema.get("if") {
        let branch = if breaches(condition, value, at).is_empty() { "then" } else { "else" };
        found.extend(schema.get(branch).map(|part| breaches(part, value, at)).unwrap_or_default());
    }
}

fn object(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let members = value.as_object().expect("an object");
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            found.push(format!("{at}: {name} is missing"));
        }
    }
    let patterns = schema["patternProperties"].as_object();
    for (name, member) in members {
        let at = format!("{at}/{name}");
        if let Some(known) = schema["properties"].get(name) {
            found.extend(breaches(known, member, &at));
        } else if let Some((_, known)) = patterns.and_then(|patterns| patterns.iter().next()) {
            found.extend(breaches(known, member, &at));
        } else if let Some(others) = schema.get("additionalProperties") {
            found.extend(breaches(others, member, &at));
        }
    }
}

fn array(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let items = value.as_array().expect("an array");
    for (index, item) in items.iter().enumerate() {
        let at = format!("{at}/{index}");
        match &schema["items"] {
            Value::Array(each) => {
                let known = each.get(index).or(schema.get("additionalItems"));
                found.extend(known.map(|known| breaches(known, item, &at)).unwrap_or_default());
            }
            Value::Null => {}
            known => found.extend(breaches(known, item, &at)),
        }
    }
    if schema["uniqueItems"] == true && items.iter().enumerate().any(|(at, item)| items[..at].contains(item))
    {
        found.push(format!("{at}: something is there twice"));
    }
    if let Some(wanted) = schema.get("contains")
        && !items.iter().any(|item| breaches(wanted, item, at).is_empty())
    {
        found.push(format!("{at}: none is as {wanted}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_fit_is_found_and_where() {
        let schema = json!({"type": "object", "required": ["id", "kind"], "additionalProperties": false,
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "kind": {"anyOf": [{"const": "a"}, {"type": "integer", "minimum": 3}]},
            "list": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}},
            "more": {"type": "object", "patternProperties": {"^.*$": {"type": "null"}}},
        }});
        let good = json!({"id": "x", "kind": 3, "list": [true], "more": {"y": null}});
        assert_eq!(breaches(&schema, &good, ""), Vec::<String>::new());
        for (path, wrong) in [
            ("/id", json!({"id": "", "kind": "a"})),
            ("/id", json!({"id": 5, "kind": "a"})),
            ("", json!({"id": "x"})),
            ("/kind", json!({"id": "x", "kind": 2})),
            ("/extra", json!({"id": "x", "kind": "a", "extra": 1})),
            ("/list/1", json!({"id": "x", "kind": "a", "list": [true, 1]})),
            ("/list", json!({"id": "x", "kind": "a", "list": [true, true, true]})),
            ("/more/y", json!({"id": "x", "kind": "a", "more": {"y": 1}})),
        ] {
            let found = breaches(&schema, &wrong, "");
            assert_eq!(found.len(), 1, "{wrong}: {found:?}");
            assert!(found[0].starts_with(&format!("{path}: ")), "{wrong}: {found:?}");
        }
    }
}
