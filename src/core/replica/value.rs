//! How values stand in a record: as JSON, by the names of their fields.
//!
//! What is not there is none, so a field may be added without a new version as long as its type has a none. A type
//! says its fields once ([`fields`], [`variants`]); one that is forgotten does not compile.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value as Json};

use crate::conversation::log::record::{failure_from_json, failure_to_json};
use crate::error::{Error, ErrorCode};
use crate::ids::{
    AgentId, ApprovalId, CallId, JobId, LaneName, Owner, PluginName, RunId, Seq, SessionKey, SubAgentId,
    TeamId,
};
use crate::time::Timestamp;

/// A value that can stand in a record.
pub(crate) trait Value: Sized {
    /// It, as JSON; null where it is none.
    fn to_json(&self) -> Json;

    /// The value of this JSON.
    ///
    /// # Errors
    /// `InvalidRequest`, saying where and what was expected.
    fn from_json(json: Json) -> Result<Self, Error>;
}

/// The most that is said of what can't be read, in bytes: it may quote what a stranger wrote.
const WHY_BYTES_MAX: usize = 400;

/// What can't be read of a record.
pub(crate) fn unreadable(why: impl std::fmt::Display) -> Error {
    let mut said = format!("a record can't be read: {why}");
    said.truncate(said.floor_char_boundary(WHY_BYTES_MAX));
    ErrorCode::InvalidRequest.error(said)
}

fn expected(what: &str, found: &Json) -> Error {
    let found = match found {
        Json::Null => "nothing",
        Json::Bool(_) => "a truth value",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    };
    unreadable(format_args!("expected {what}, found {found}"))
}

/// Puts a field into an object, but for one that is none.
pub(crate) fn put(object: &mut Map<String, Json>, name: &str, value: &impl Value) {
    match value.to_json() {
        Json::Null => {}
        json => drop(object.insert(name.to_owned(), json)),
    }
}

/// Takes a field out of an object.
pub(crate) fn take<T: Value>(object: &mut Map<String, Json>, name: &str) -> Result<T, Error> {
    T::from_json(object.remove(name).unwrap_or_default()).map_err(|mut error| {
        error.message = format!("{}, at {name}", error.message);
        error
    })
}

pub(crate) fn object(json: Json) -> Result<Map<String, Json>, Error> {
    match json {
        Json::Object(object) => Ok(object),
        json => Err(expected("an object", &json)),
    }
}

/// The only entry of an object, of which a variant has its name.
pub(crate) fn variant(json: Json) -> Result<(String, Json), Error> {
    let mut entries = object(json)?.into_iter();
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry),
        _ => Err(unreadable("expected an object with one entry")),
    }
}

/// A variant by its name.
pub(crate) fn named(name: &str, json: Json) -> Json {
    Json::Object(Map::from_iter([(name.to_owned(), json)]))
}

/// A struct, by the names of its fields.
macro_rules! fields {
    ($($type:path { $($field:ident),+ $(,)? })+) => {$(
        impl $crate::replica::value::Value for $type {
            fn to_json(&self) -> serde_json::Value {
                let Self { $($field),+ } = self;
                let mut object = serde_json::Map::new();
                $($crate::replica::value::put(&mut object, stringify!($field), $field);)+
                serde_json::Value::Object(object)
            }

            fn from_json(json: serde_json::Value) -> Result<Self, $crate::error::Error> {
                let mut object = $crate::replica::value::object(json)?;
                Ok(Self { $($field: $crate::replica::value::take(&mut object, stringify!($field))?),+ })
            }
        }
    )+};
}

/// An enum, by the names of its variants: each has its values in a list.
macro_rules! variants {
    ($($type:path { $($name:literal => $variant:ident $(($($value:ident),+))? $({$($field:ident),+})?),+ $(,)? })+) => {$(
        impl $crate::replica::value::Value for $type {
            fn to_json(&self) -> serde_json::Value {
                match self {
                    $(Self::$variant $(($($value),+))? $({$($field),+})? => $crate::replica::value::named(
                        $name,
                        serde_json::Value::Array(vec![
                            $($($crate::replica::value::Value::to_json($value)),+)?
                            $($($crate::replica::value::Value::to_json($field)),+)?
                        ]),
                    ),)+
                }
            }

            fn from_json(json: serde_json::Value) -> Result<Self, $crate::error::Error> {
                let (name, values) = $crate::replica::value::variant(json)?;
                let mut values = <Vec<serde_json::Value> as $crate::replica::value::Value>::from_json(values)?.into_iter();
                let mut next = || values.next().unwrap_or_default();
                Ok(match &*name {
                    $($name => Self::$variant
                        $(($({
                            let $value = $crate::replica::value::Value::from_json(next())?;
                            $value
                        }),+))?
                        $({$($field: $crate::replica::value::Value::from_json(next())?),+})?,)+
                    _ => return Err($crate::replica::value::unreadable(format_args!(
                        concat!("there is no ", stringify!($type), " {:?}"), name
                    ))),
                })
            }
        }
    )+};
}

/// An enum that is its name.
macro_rules! names {
    ($($type:path),+ $(,)?) => {$(
        impl $crate::replica::value::Value for $type {
            fn to_json(&self) -> serde_json::Value {
                self.name().into()
            }

            fn from_json(json: serde_json::Value) -> Result<Self, $crate::error::Error> {
                let name = <String as $crate::replica::value::Value>::from_json(json)?;
                Self::from_name(&name).ok_or_else(|| $crate::replica::value::unreadable(format_args!(
                    concat!("there is no ", stringify!($type), " {:?}"), name
                )))
            }
        }
    )+};
}

pub(crate) use {fields, names, variants};

impl Value for Json {
    fn to_json(&self) -> Json {
        self.clone()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        Ok(json)
    }
}

impl Value for bool {
    fn to_json(&self) -> Json {
        (*self).into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        json.as_bool().ok_or_else(|| expected("true or false", &json))
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn to_json(&self) -> Json {
                (*self).into()
            }

            fn from_json(json: Json) -> Result<Self, Error> {
                let whole = json.as_u64().and_then(|number| Self::try_from(number).ok());
                let number = whole.or_else(|| json.as_i64().and_then(|number| Self::try_from(number).ok()));
                number.ok_or_else(|| expected(concat!("a number (", stringify!($type), ")"), &json))
            }
        }
    )+};
}

numbers!(u8, u32, u64, i64, usize);

impl Value for String {
    fn to_json(&self) -> Json {
        self.as_str().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        match json {
            Json::String(text) => Ok(text),
            json => Err(expected("text", &json)),
        }
    }
}

impl Value for Arc<str> {
    fn to_json(&self) -> Json {
        (&**self).into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        String::from_json(json).map(Into::into)
    }
}

/// Ids that are any text.
macro_rules! texts {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn to_json(&self) -> Json {
                self.as_str().into()
            }

            fn from_json(json: Json) -> Result<Self, Error> {
                String::from_json(json).map(Self::from)
            }
        }
    )+};
}

texts!(AgentId, ApprovalId, CallId, JobId, LaneName, PluginName, RunId, SubAgentId, TeamId);

impl Value for SessionKey {
    fn to_json(&self) -> Json {
        self.as_str().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        Self::parse(&String::from_json(json)?).map_err(unreadable)
    }
}

impl Value for Owner {
    fn to_json(&self) -> Json {
        self.as_str().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        String::from_json(json).map(|name| Self::from_name(&name))
    }
}

impl Value for Seq {
    fn to_json(&self) -> Json {
        self.0.into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        u64::from_json(json).map(Self)
    }
}

/// In milliseconds.
impl Value for Timestamp {
    fn to_json(&self) -> Json {
        self.as_millis().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        u64::from_json(json).map(Self::from_millis)
    }
}

/// In microseconds.
impl Value for Duration {
    fn to_json(&self) -> Json {
        u64::try_from(self.as_micros()).unwrap_or(u64::MAX).into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        u64::from_json(json).map(Self::from_micros)
    }
}

impl Value for IpAddr {
    fn to_json(&self) -> Json {
        self.to_string().into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        String::from_json(json)?.parse().map_err(unreadable)
    }
}

/// Bytes, as Base64.
impl<const N: usize> Value for [u8; N] {
    fn to_json(&self) -> Json {
        BASE64.encode(self).into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let bytes = bytes(&String::from_json(json)?)?;
        bytes.try_into().map_err(|_| unreadable(format_args!("expected {N} bytes")))
    }
}

/// The bytes that a text is in Base64.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>, Error> {
    BASE64.decode(text).map_err(unreadable)
}

/// What bytes are in Base64.
pub(crate) fn text_of(bytes: &[u8]) -> Json {
    BASE64.encode(bytes).into()
}

impl<T: Value> Value for Option<T> {
    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::to_json)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        match json {
            Json::Null => Ok(None),
            json => T::from_json(json).map(Some),
        }
    }
}

impl<T: Value> Value for Box<T> {
    fn to_json(&self) -> Json {
        T::to_json(self)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        T::from_json(json).map(Self::new)
    }
}

impl<T: Value> Value for Arc<T> {
    fn to_json(&self) -> Json {
        T::to_json(self)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        T::from_json(json).map(Self::new)
    }
}

impl<T: Value> Value for Vec<T> {
    fn to_json(&self) -> Json {
        self.iter().map(T::to_json).collect()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        match json {
            Json::Null => Ok(Self::new()),
            Json::Array(values) => values.into_iter().map(T::from_json).collect(),
            json => Err(expected("a list", &json)),
        }
    }
}

impl<A: Value, B: Value> Value for (A, B) {
    fn to_json(&self) -> Json {
        Json::Array(vec![self.0.to_json(), self.1.to_json()])
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        match <[Json; 2]>::try_from(Vec::from_json(json)?) {
            Ok([a, b]) => Ok((A::from_json(a)?, B::from_json(b)?)),
            Err(_) => Err(unreadable("expected two values")),
        }
    }
}

impl<T: Value> Value for BTreeMap<String, T> {
    fn to_json(&self) -> Json {
        Json::Object(self.iter().map(|(name, value)| (name.clone(), value.to_json())).collect())
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        match json {
            Json::Null => Ok(Self::new()),
            json => object(json)?.into_iter().map(|(name, value)| Ok((name, T::from_json(value)?))).collect(),
        }
    }
}

impl Value for Map<String, Json> {
    fn to_json(&self) -> Json {
        Json::Object(self.clone())
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        object(json)
    }
}

/// Its code and its message, and with a detail that, as event logs have it.
impl Value for Error {
    fn to_json(&self) -> Json {
        match &self.detail {
            Some(_) => failure_to_json(self),
            None => Json::Array(vec![self.code.name().into(), self.message.as_str().into()]),
        }
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        if json.is_object() {
            return failure_from_json(&json);
        }
        let (code, message) = <(String, String)>::from_json(json)?;
        let code = ErrorCode::from_name(&code).unwrap_or(ErrorCode::Internal);
        Ok(code.error(message))
    }
}
