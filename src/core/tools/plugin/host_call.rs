//! What guests ask of the host functions that take JSON, as they write it.
//!
//! Nothing is guessed: an unknown key is refused, so that a mistyped one is noticed where it was made.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::{KEY_BYTES_MAX, StoreGrant, VALUE_BYTES_MAX};

/// The most bytes of JSON that a host function takes: a value of [`VALUE_BYTES_MAX`] with every byte of it
/// escaped, and its key.
pub const HOST_CALL_BYTES_MAX: usize = 6 * (VALUE_BYTES_MAX + KEY_BYTES_MAX) + 1024;

/// The most answers of a search.
const SEARCH_LIMIT_MAX: usize = 50;

/// `store_get`: the value of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct GetValue {
    /// Where it is kept.
    pub namespace: StoreGrant,
    /// The key, at most [`KEY_BYTES_MAX`] long and not empty.
    pub key: String,
}

/// `store_set`: the value that a key has from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct SetValue {
    /// Where it is kept.
    pub namespace: StoreGrant,
    /// The key, at most [`KEY_BYTES_MAX`] long and not empty.
    pub key: String,
    /// JSON, at most [`VALUE_BYTES_MAX`] long; none = the key has none any more.
    pub value: Option<String>,
}

/// `store_list`: the keys that begin so and come after a key, in the order of their bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ListKeys {
    /// Where they are kept.
    pub namespace: StoreGrant,
    /// How they begin.
    pub prefix: String,
    /// They come after this one; empty for all.
    pub after: String,
}

/// `memory_search`: what is remembered for the owner of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchMemory {
    /// What to look for.
    pub query: String,
    /// At most so many answers.
    pub limit: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGet {
    #[serde(default)]
    namespace: Option<String>,
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSet {
    #[serde(default)]
    namespace: Option<String>,
    key: String,
    value: Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenList {
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSearch {
    query: String,
    #[serde(default)]
    limit: Option<usize>,
}

impl GetValue {
    /// Reads a guest's request.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(json: &[u8], granted: &[StoreGrant]) -> Result<Self, String> {
        let WrittenGet { namespace, key } = read("store_get", json)?;
        Ok(Self { namespace: granted_one(granted, namespace)?, key: checked(key)? })
    }
}

impl SetValue {
    /// Reads a guest's request.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(json: &[u8], granted: &[StoreGrant]) -> Result<Self, String> {
        let WrittenSet { namespace, key, value } = read("store_set", json)?;
        let value = Some(value).filter(|value| !value.is_null()).map(|value| value.to_string());
        if let Some(bytes) = value.as_ref().map(String::len).filter(|bytes| *bytes > VALUE_BYTES_MAX) {
            return Err(format!("store_set: the value has {bytes} bytes, more than {VALUE_BYTES_MAX}"));
        }
        Ok(Self { namespace: granted_one(granted, namespace)?, key: checked(key)?, value })
    }
}

impl ListKeys {
    /// Reads a guest's request.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(json: &[u8], granted: &[StoreGrant]) -> Result<Self, String> {
        let WrittenList { namespace, prefix, after } = read("store_list", json)?;
        Ok(Self { namespace: granted_one(granted, namespace)?, prefix, after })
    }
}

impl SearchMemory {
    /// Reads a guest's request.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        const LIMIT: usize = 10;
        let WrittenSearch { query, limit } = read("memory_search", json)?;
        match limit.unwrap_or(LIMIT) {
            limit @ 1..=SEARCH_LIMIT_MAX => Ok(Self { query, limit }),
            _ => Err(format!("memory_search: limit is 1 to {SEARCH_LIMIT_MAX}")),
        }
    }
}

fn read<T: DeserializeOwned>(function: &str, json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| format!("{function}: {error}"))
}

/// The namespace that is meant, which need not be named where there is one.
fn granted_one(granted: &[StoreGrant], named: Option<String>) -> Result<StoreGrant, String> {
    match (named, granted) {
        (Some(named), _) => match granted.iter().find(|grant| grant.namespace == named) {
            Some(grant) => Ok(grant.clone()),
            None => Err(format!("no grant of store:{named}")),
        },
        (None, [grant]) => Ok(grant.clone()),
        (None, []) => Err("no grant of store:NAMESPACE".to_owned()),
        (None, several) => {
            let names: Vec<&str> = several.iter().map(|grant| grant.namespace.as_str()).collect();
            Err(format!("name the namespace that is meant: {}", names.join(", ")))
        }
    }
}

fn checked(key: String) -> Result<String, String> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(key),
        0 => Err("the key is empty".to_owned()),
        bytes => Err(format!("the key has {bytes} bytes, more than {KEY_BYTES_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grants(names: &[&str]) -> Vec<StoreGrant> {
        names.iter().map(|name| StoreGrant::parse(name).unwrap()).collect()
    }

    #[test]
    fn reads_what_is_granted_and_nothing_else() {
        let one = grants(&["notes"]);
        let get = GetValue::read(br#"{"key":"a"}"#, &one).unwrap();
        assert_eq!((get.namespace.namespace.as_str(), get.key.as_str()), ("notes", "a"));
        let set = SetValue::read(br#"{"key":"a","value":{"x":[1, null]}}"#, &one).unwrap();
        assert_eq!(set.value.as_deref(), Some(r#"{"x":[1,null]}"#));
        assert_eq!(SetValue::read(br#"{"key":"a","value":null}"#, &one).unwrap().value, None);
        let list = ListKeys::read(b"{}", &one).unwrap();
        assert_eq!((list.prefix.as_str(), list.after.as_str()), ("", ""));
        let two = grants(&["notes", "more"]);
        let get = GetValue::read(br#"{"namespace":"more","key":"a"}"#, &two).unwrap();
        assert_eq!(get.namespace.namespace, "more");
        let long = format!(r#"{{"key":"{}"}}"#, "k".repeat(KEY_BYTES_MAX + 1));
        for (json, granted, says) in [
            (r#"{"key":"a"}"#, &two, "name the namespace that is meant: notes, more"),
            (r#"{"key":"a"}"#, &grants(&[]), "no grant of store:NAMESPACE"),
            (r#"{"namespace":"other","key":"a"}"#, &two, "no grant of store:other"),
            (r#"{"key":""}"#, &one, "the key is empty"),
            (&long, &one, "513 bytes"),
            (r#"{"keys":"a"}"#, &one, "unknown field `keys`"),
            ("", &one, "store_get: EOF"),
        ] {
            let error = GetValue::read(json.as_bytes(), granted).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
        assert!(SetValue::read(br#"{"key":"a"}"#, &one).unwrap_err().contains("missing field `value`"));
        let large = serde_json::json!({ "key": "a", "value": "x".repeat(VALUE_BYTES_MAX) }).to_string();
        assert!(SetValue::read(large.as_bytes(), &one).unwrap_err().contains("262146 bytes"));
        assert_eq!(SearchMemory::read(br#"{"query":"x"}"#).unwrap().limit, 10);
        assert!(SearchMemory::read(br#"{"query":"x","limit":51}"#).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(json in proptest::collection::vec(any::<u8>(), 0..64)) {
            let granted = grants(&["notes"]);
            let _ = GetValue::read(&json, &granted);
            let _ = SetValue::read(&json, &granted);
            let _ = ListKeys::read(&json, &granted);
            let _ = SearchMemory::read(&json);
        }
    }
}
