//! Reads what a model wrote as the input of a built-in tool, and says in words for it what is wrong.

use serde_json::{Map, Value};

/// The members of an input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a Map<String, Value>);

impl<'a> Input<'a> {
    /// An input that has no members but these.
    ///
    /// # Errors
    /// Where it is no object, or has others.
    pub fn new(input: &'a Value, known: &[&str]) -> Result<Self, String> {
        let input = input.as_object().ok_or("the input is not a JSON object")?;
        match input.keys().find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => {
                let unknown = &unknown[..unknown.floor_char_boundary(64)];
                Err(format!("unknown field {unknown:?}: expected one of {}", known.join(", ")))
            }
            None => Ok(Self(input)),
        }
    }

    /// A text that may be left out; one that says nothing is none.
    ///
    /// # Errors
    /// Where it is something else, or longer than `bytes_max`.
    pub fn text(self, name: &str, bytes_max: usize) -> Result<Option<&'a str>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(Value::String(text)) if text.len() > bytes_max => {
                Err(format!("{name}: longer than {bytes_max} bytes"))
            }
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{name}: expected text")),
        }
    }

    /// A text that has to be there.
    ///
    /// # Errors
    /// As [`Self::text`], and where it is missing.
    pub fn required(self, name: &str, bytes_max: usize) -> Result<&'a str, String> {
        self.text(name, bytes_max)?.ok_or_else(|| format!("{name}: missing"))
    }

    /// A whole number that may be left out.
    ///
    /// # Errors
    /// Where it is something else, or out of these bounds.
    pub fn integer(self, name: &str, min: u64, max: u64) -> Result<Option<u64>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(number) => match number.as_u64().filter(|number| (min..=max).contains(number)) {
                Some(number) => Ok(Some(number)),
                None => {
                    let found = number.to_string();
                    let found = &found[..found.floor_char_boundary(64)];
                    Err(format!("{name}: expected {min} to {max}, found {found}"))
                }
            },
        }
    }

    /// A member as it is; null is none.
    pub fn value(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_model_wrote_is_read_or_refused_in_words() {
        let value = json!({ "a": "x", "b": " ", "c": 3, "d": null });
        let input = Input::new(&value, &["a", "b", "c", "d"]).unwrap();
        assert_eq!(
            (input.text("a", 9), input.text("b", 9), input.text("d", 9)),
            (Ok(Some("x")), Ok(None), Ok(None))
        );
        assert_eq!((input.integer("c", 1, 3), input.integer("d", 1, 3)), (Ok(Some(3)), Ok(None)));
        assert!(input.value("d").is_none() && input.value("c").is_some());
        for (told, why) in [
            (input.required("b", 9).unwrap_err(), "b: missing"),
            (input.text("c", 9).unwrap_err(), "c: expected text"),
            (input.text("a", 0).unwrap_err(), "a: longer than 0 bytes"),
            (input.integer("c", 4, 5).unwrap_err(), "c: expected 4 to 5, found 3"),
            (input.integer("a", 4, 5).unwrap_err(), "a: expected 4 to 5, found \"x\""),
            (Input::new(&value, &["a"]).unwrap_err(), "unknown field \"b\": expected one of a"),
            (Input::new(&json!([]), &["a"]).unwrap_err(), "the input is not a JSON object"),
        ] {
            assert_eq!(told, why);
        }
    }
}
