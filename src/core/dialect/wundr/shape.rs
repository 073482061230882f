//! What parameters, results and payloads look like: one description that both checks a value and is
//! printed as JSON Schema, so that what is documented is what is done.
//!
//! A check finds all complaints at once. An optional member that is `null` counts as absent, members
//! that are not described are ignored, and defaults are filled in: who reads what was checked finds
//! every member that has one.

use serde_json::{Map, Value, json};

/// The most complaints that are told of one value.
const COMPLAINTS_MAX: usize = 16;

/// The most bytes of a name that a complaint repeats.
const NAME_BYTES_MAX: usize = 64;

/// The largest integer that every client can read.
pub(super) const INTEGER_MAX: i64 = (1 << 53) - 1;

/// What a value may be.
#[derive(Debug)]
pub(super) enum Shape {
    /// A string of so many characters.
    Text(usize, usize),
    /// A whole number within these bounds.
    Integer(i64, i64),
    /// A number within these bounds.
    Number(f64, f64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A date and time in UTC, ending in `Z`.
    Time,
    /// So many of the same.
    List(&'static Shape, usize, usize),
    /// An object with these members.
    Object(&'static [Field]),
    /// Any object.
    AnyObject,
    /// Any JSON value.
    Any,
}

/// A member of an object.
#[derive(Debug)]
pub(super) struct Field {
    /// The name of the member.
    pub(super) name: &'static str,
    /// The values it may have.
    pub(super) shape: Shape,
    /// Whether it has to be there.
    pub(super) need: Need,
    /// What it means, for people.
    pub(super) doc: &'static str,
}

/// Whether a member has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It has to be there.
    Required,
    /// It may be absent.
    Optional,
    /// Where it is absent it is this, as JSON.
    Default(&'static str),
}

/// Text that is not empty.
pub(super) const NAME: Shape = Shape::Text(1, 1024);
/// Text of any length, which the size of a frame bounds.
pub(super) const TEXT: Shape = Shape::Text(0, usize::MAX);
/// Text of any length that is not empty.
pub(super) const SAID: Shape = Shape::Text(1, usize::MAX);
/// A count of things, bytes, tokens or milliseconds.
pub(super) const COUNT: Shape = Shape::Integer(0, INTEGER_MAX);

/// A member that has to be there.
pub(super) const fn required(name: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field { name, shape, need: Need::Required, doc }
}

/// A member that may be absent.
pub(super) const fn optional(name: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field { name, shape, need: Need::Optional, doc }
}

/// A member that is this JSON where it is absent.
pub(super) const fn default(
    name: &'static str,
    shape: Shape,
    json: &'static str,
    doc: &'static str,
) -> Field {
    Field { name, shape, need: Need::Default(json), doc }
}

/// An object with the members that have to be there, or that one of them is needed of, each as simple as it may be.
pub(super) fn example(fields: &[Field]) -> Value {
    let is_needed = |field: &&Field| field.need == Need::Required || field.doc.contains("needed where");
    let needed = fields.iter().filter(is_needed);
    needed.map(|field| (field.name.to_owned(), field.shape.example(field.name))).collect::<Map<_, _>>().into()
}

impl Shape {
    /// A value of this shape. `name` is that of the member it is for.
    fn example(&self, name: &str) -> Value {
        match self {
            Self::Text(min, max) => {
                let text = match name {
                    "sessionId" | "teamId" | "agentId" | "memoryId" | "fileId" | "uploadId" => {
                        "7f1c0e2a-95b1-4c58-8f0e-3d2a41c6b9aa"
                    }
                    "content" | "prompt" | "task" | "message" => "hi",
                    "token" => "...",
                    other => other,
                };
                let text: String = text.chars().take(*max).collect();
                let missing = min.saturating_sub(text.chars().count());
                (text + &"x".repeat(missing)).into()
            }
            // The version of this protocol.
            Self::Integer(..) if name.ends_with("Protocol") => 2.into(),
            Self::Integer(min, max) => 1.clamp(*min, *max).into(),
            Self::Number(min, max) => json!(1.0_f64.clamp(*min, *max)),
            Self::Flag => true.into(),
            // A scratchpad wants more than the others.
            Self::OneOf(words) if name == "tier" => words.last().copied().into(),
            Self::OneOf(words) => words.first().copied().into(),
            Self::Time => "2026-01-31T09:00:00Z".into(),
            Self::List(of, min, max) => {
                let count = (*min).max(1).min(*max);
                std::iter::repeat_with(|| of.example(name)).take(count).collect()
            }
            Self::Object(fields) => example(fields),
            // Of a configuration.
            Self::AnyObject if name == "values" => json!({ "limits.queue": 128 }),
            Self::AnyObject => json!({}),
            Self::Any => Value::Null,
        }
    }
}

/// Checks an object against these members, and brings it into shape: without `null` for what is
/// absent, with defaults.
///
/// # Errors
/// All complaints, joined by `; `, each beginning with the path of what it is about.
pub(super) fn check(fields: &[Field], value: &mut Value) -> Result<(), String> {
    let mut complaints = Vec::new();
    check_object(fields, value, "", &mut complaints);
    if complaints.is_empty() {
        return Ok(());
    }
    let more = complaints.len().saturating_sub(COMPLAINTS_MAX);
    complaints.truncate(COMPLAINTS_MAX);
    if more > 0 {
        complaints.push(format!("and {more} more"));
    }
    Err(complaints.join("; "))
}

fn check_object(fields: &[Field], value: &mut Value, path: &str, complaints: &mut Vec<String>) {
    let Value::Object(object) = value else {
        return complaints.push(complaint(path, &format!("expected an object, got {}", kind(value))));
    };
    for Field { name, shape, need, .. } in fields {
        if object.get(*name).is_some_and(Value::is_null) && !matches!(shape, Shape::Any) {
            object.remove(*name);
        }
        match (object.get_mut(*name), need) {
            (Some(member), _) => check_value(shape, member, &join(path, name), complaints),
            (None, Need::Required) => complaints.push(complaint(&join(path, name), "required")),
            (None, Need::Optional) => {}
            (None, Need::Default(json)) => {
                object.insert((*name).to_owned(), serde_json::from_str(json).unwrap_or_default());
            }
        }
    }
}

fn check_value(shape: &Shape, value: &mut Value, path: &str, complaints: &mut Vec<String>) {
    let wrong = match (shape, &mut *value) {
        (Shape::Any, _) | (Shape::AnyObject, Value::Object(_)) | (Shape::Flag, Value::Bool(_)) => return,
        (Shape::Text(min, max), Value::String(text)) => {
            // Characters are counted only where bytes do not tell.
            if text.len() < *min || (*min > 1 && text.chars().count() < *min) {
                format!("must have at least {min} character{}", if *min == 1 { "" } else { "s" })
            } else if text.len() > *max && text.chars().count() > *max {
                format!("may have {max} characters")
            } else {
                return;
            }
        }
        (Shape::Integer(min, max), Value::Number(number)) => {
            let whole = number.as_i64().or_else(|| {
                let float = number.as_f64().filter(|float| float.fract() == 0.0)?;
                // Every integer of this size has a float of its own.
                (float.abs() <= INTEGER_MAX as f64).then_some(float as i64)
            });
            match whole {
                Some(whole) if (*min..=*max).contains(&whole) => {
                    *number = whole.into();
                    return;
                }
                Some(_) => format!("must be {}", between(*min, *max)),
                None => "must be an integer".into(),
            }
        }
        (Shape::Number(min, max), Value::Number(number)) => {
            match number.as_f64().is_some_and(|number| (*min..=*max).contains(&number)) {
                true => return,
                false => format!("must be from {min} to {max}"),
            }
        }
        (Shape::OneOf(words), Value::String(word)) => match words.contains(&&**word) {
            true => return,
            false => format!("must be one of {}", words.join(", ")),
        },
        (Shape::Time, Value::String(text)) => match is_time(text) {
            true => return,
            false => "must be a date and time in UTC".into(),
        },
        (Shape::List(of, min, max), Value::Array(all)) => {
            if all.len() < *min {
                format!("must have at least {min} item{}", if *min == 1 { "" } else { "s" })
            } else if all.len() > *max {
                format!("may have {max} items")
            } else {
                for (index, item) in all.iter_mut().enumerate() {
                    check_value(of, item, &join(path, &index.to_string()), complaints);
                    if complaints.len() > COMPLAINTS_MAX {
                        return;
                    }
                }
                return;
            }
        }
        (Shape::Object(fields), object @ Value::Object(_)) => {
            return check_object(fields, object, path, complaints);
        }
        (_, value) => format!("expected {}, got {}", shape.kind(), kind(value)),
    };
    complaints.push(complaint(path, &wrong));
}

fn between(min: i64, max: i64) -> String {
    if max == INTEGER_MAX { format!("at least {min}") } else { format!("from {min} to {max}") }
}

fn is_time(text: &str) -> bool {
    text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok()
}

fn complaint(path: &str, wrong: &str) -> String {
    if path.is_empty() { wrong.to_owned() } else { format!("{path}: {wrong}") }
}

fn join(path: &str, name: &str) -> String {
    let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl Shape {
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(..) | Self::OneOf(_) | Self::Time => "a string",
            Self::Integer(..) => "an integer",
            Self::Number(..) => "a number",
            Self::Flag => "a boolean",
            Self::List(..) => "an array",
            Self::Object(_) | Self::AnyObject => "an object",
            Self::Any => "anything",
        }
    }

    /// As JSON Schema (draft 2020-12).
    pub(super) fn schema(&self) -> Value {
        match self {
            Self::Text(min, max) => {
                let mut schema = json!({ "type": "string" });
                if *min > 0 {
                    schema["minLength"] = (*min).into();
                }
                if *max < usize::MAX {
                    schema["maxLength"] = (*max).into();
                }
                schema
            }
            Self::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Self::Number(min, max) => json!({ "type": "number", "minimum": min, "maximum": max }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::OneOf(words) => json!({ "type": "string", "enum": words }),
            Self::Time => json!({ "type": "string", "format": "date-time" }),
            Self::List(of, min, max) => {
                let mut schema = json!({ "type": "array", "items": of.schema() });
                if *min > 0 {
                    schema["minItems"] = (*min).into();
                }
                if *max < usize::MAX {
                    schema["maxItems"] = (*max).into();
                }
                schema
            }
            Self::Object(fields) => schema(fields),
            Self::AnyObject => json!({ "type": "object" }),
            Self::Any => json!({}),
        }
    }
}

/// An object with these members as JSON Schema.
pub(super) fn schema(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for Field { name, shape, need, doc } in fields {
        let mut property = shape.schema();
        property["description"] = (*doc).into();
        if let Need::Default(json) = need {
            property["default"] = serde_json::from_str(json).unwrap_or_default();
        }
        properties.insert((*name).to_owned(), property);
    }
    let required: Vec<&str> =
        fields.iter().filter(|field| field.need == Need::Required).map(|field| field.name).collect();
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static TASK: &[Field] = &[
        required("description", NAME, "what"),
        default("priority", Shape::OneOf(&["low", "medium"]), r#""medium""#, "how urgent"),
    ];
    static FIELDS: &[Field] = &[
        required("id", Shape::Text(1, 4), "a name"),
        optional("task", Shape::Object(TASK), "a task"),
        optional("count", Shape::Integer(1, 200), "how many"),
        optional("weights", Shape::List(&Shape::Number(0.0, 1.0), 1, 3), "numbers"),
        optional("at", Shape::Time, "when"),
        default("on", Shape::Flag, "true", "whether"),
        optional("any", Shape::Any, "anything"),
    ];

    fn checked(mut value: Value) -> Result<Value, String> {
        check(FIELDS, &mut value).map(|()| value)
    }

    #[test]
    fn defaults_are_filled_in_and_null_is_absent() {
        let given =
            json!({ "id": "a", "task": { "description": "d" }, "count": null, "x": [1], "any": null });
        let read = json!({ "id": "a", "task": { "description": "d", "priority": "medium" }, "x": [1], "any": null,
            "on": true });
        assert_eq!(checked(given).unwrap(), read);
        assert_eq!(checked(json!({ "id": "a", "count": 7.0 })).unwrap()["count"].to_string(), "7");
    }

    #[test]
    fn all_complaints_come_at_once_with_their_paths() {
        let given = json!({ "id": "", "task": { "priority": "now" }, "count": 0, "weights": [0.5, 2, "x"],
            "at": "today", "on": 1 });
        assert_eq!(
            checked(given).unwrap_err(),
            "id: must have at least 1 character; task.description: required; \
             task.priority: must be one of low, medium; count: must be from 1 to 200; \
             weights.1: must be from 0 to 1; weights.2: expected a number, got a string; \
             at: must be a date and time in UTC; on: expected a boolean, got a number"
        );
        assert_eq!(checked(json!([])).unwrap_err(), "expected an object, got an array");
        assert_eq!(checked(json!({})).unwrap_err(), "id: required");
        assert_eq!(checked(json!({ "id": "12345" })).unwrap_err(), "id: may have 4 characters");
        checked(json!({ "id": "üüüü" })).expect("characters are counted, not bytes");
        assert_eq!(checked(json!({ "id": "a", "count": 1.5 })).unwrap_err(), "count: must be an integer");
        assert_eq!(
            checked(json!({ "id": "a", "weights": [] })).unwrap_err(),
            "weights: must have at least 1 item"
        );
    }

    #[test]
    fn a_flood_of_complaints_is_told_in_short() {
        static MANY: &[Field] = &[required("all", Shape::List(&Shape::Flag, 0, usize::MAX), "flags")];
        let mut value = json!({ "all": vec![0; 100_000] });
        let complaints = check(MANY, &mut value).unwrap_err();
        assert!(complaints.ends_with("and 1 more") && complaints.len() < 2000, "{complaints}");
    }

    #[test]
    fn the_schema_says_what_is_checked() {
        let schema = schema(FIELDS);
        assert_eq!(schema["required"], json!(["id"]));
        assert_eq!(schema["properties"]["task"]["properties"]["priority"]["default"], "medium");
        assert_eq!(
            schema["properties"]["count"],
            json!({ "type": "integer", "minimum": 1, "maximum": 200, "description": "how many" })
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        let name = prop_oneof![Just("id"), Just("task"), Just("count"), Just("weights"), Just("description")];
        leaf.prop_recursive(3, 20, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((name.clone(), inner), 0..5).prop_map(|members| {
                    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        /// Whatever comes is refused or brought into shape, and what is in shape stays as it is.
        #[test]
        fn what_was_checked_is_in_shape(given in any_json()) {
            if let Ok(once) = checked(given) {
                prop_assert_eq!(checked(once.clone()), Ok(once));
            }
        }
    }
}
