//! JSON as all dialects read and write it: parameters with tolerance, values that always have a text.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, ErrorCode};

/// How much of a client's own text an error repeats, in bytes.
const QUOTE_BYTES_MAX: usize = 200;

/// The parameters of a request, not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Params<'a>(pub(super) Option<&'a RawValue>);

impl<'a> Params<'a> {
    /// Reads them as `T`; absent ones are an empty object.
    pub(super) fn read<T: Deserialize<'a>>(self, method: &str) -> Result<T, Error> {
        object(self.0.map_or("{}", RawValue::get)).map_err(|why| {
            // A position within the parameters would be taken for one within the frame.
            invalid(method, why.rsplit_once(" at line ").map_or(&*why, |(what, _)| what))
        })
    }
}

/// A struct's derived reader also takes an array; a frame is an object.
pub(super) fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    if !text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok() {
        return Err("expected an object".into());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The refusal of parameters.
pub(super) fn invalid(method: &str, why: &str) -> Error {
    ErrorCode::InvalidRequest.error(format!("invalid {method} params: {}", clip(why)))
}

/// A member that is there, whatever it holds.
pub(super) fn even_null<'de, D: serde::Deserializer<'de>>(
    input: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// JSON of a value that always has one: no map key but text, no writer that fails.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".into())
}

/// Gives an object this member, where there is one.
pub(super) fn put(object: &mut Value, name: &str, member: Option<impl Into<Value>>) {
    if let Some(member) = member {
        object[name] = member.into();
    }
}

/// The beginning of `text`, cut at a character.
pub(super) fn clip(text: &str) -> &str {
    if text.len() <= QUOTE_BYTES_MAX { text } else { &text[..text.floor_char_boundary(QUOTE_BYTES_MAX)] }
}
