//! Parameters of a method: an object whose names and types are checked, and refused in words that
//! say what the method takes.

use clawmux_core::error::{Error, ErrorCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::methods::{Call, params_of};

impl Call {
    /// Reads them.
    ///
    /// # Errors
    /// `InvalidRequest`, with what is wrong and what the method takes.
    pub(super) fn params<T: DeserializeOwned>(&self, method: &str) -> Result<T, Error> {
        read(method, &self.params)
    }

    /// Makes sure that there are none.
    ///
    /// # Errors
    /// As [`Self::params`].
    pub(super) fn takes_nothing(&self, method: &str) -> Result<(), Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        self.params(method).map(|Nothing {}| ())
    }
}

/// Reads the parameters of a method.
///
/// # Errors
/// As [`Call::params`].
pub(super) fn read<T: DeserializeOwned>(method: &str, params: &Value) -> Result<T, Error> {
    let refuse = |why: &str| {
        let takes = params_of(method);
        ErrorCode::InvalidRequest.error(format!("invalid {method} params: {why}; it takes {takes}"))
    };
    let none = json!({});
    let params = match params {
        Value::Array(list) if list.is_empty() => &none,
        Value::Array(_) => return Err(refuse("expected names and values, not a list")),
        params => params,
    };
    T::deserialize(params).map_err(|error| refuse(&error.to_string()))
}
