//! Reading JSON without building more than is asked for.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What can be read of it; none where it is something else, such as a figure that is none. For what an answer is good
/// without.
pub(super) fn if_readable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    Ok(T::deserialize(serde_json::Value::deserialize(deserializer)?).ok())
}

/// Text that is borrowed from the input wherever it holds no escape. (Within an `Option`, a plain `Cow`
/// would always be a copy.)
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Text, borrowed likewise; none where it is something else that the name is also used for.
#[derive(Debug)]
pub(super) struct Lenient<'a>(pub(super) Option<Cow<'a, str>>);

impl Lenient<'_> {
    /// The text, unless it is empty.
    pub(super) fn into_text(self) -> Option<String> {
        self.0.filter(|text| !text.is_empty()).map(Cow::into_owned)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Lenient<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Reading<'a> {
            type Value = Lenient<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Lenient(Some(text.into())))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Lenient(Some(text.to_owned().into())))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Lenient(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Lenient(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(Lenient(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(Lenient(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Lenient(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                IgnoredAny.visit_seq(items).map(|_| Lenient(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
                IgnoredAny.visit_map(fields).map(|_| Lenient(None))
            }
        }

        deserializer.deserialize_any(Reading(PhantomData))
    }
}

/// The first element of an array, the others read over; none where it is empty or null.
#[derive(Debug)]
pub(super) struct First<T>(pub(super) Option<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FirstOf<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstOf<T> {
            type Value = First<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(First(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let first = items.next_element()?;
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }

        deserializer.deserialize_any(FirstOf(PhantomData))
    }
}
