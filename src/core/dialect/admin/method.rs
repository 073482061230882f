//! The table of methods: what each is called, what it takes, and what reads that and asks the daemon.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Call, actors, approvals, bus, channels, cluster, config, connections, devices, jobs, log, mcp, memory,
    plugins, session, sessions, skills, status, tokens, upkeep, usage,
};
use crate::error::{Error, ErrorCode};
use crate::request::ask::Ask;

/// A method.
pub(super) struct Method {
    /// Its name.
    pub(super) name: &'static str,
    /// What it takes, as people write it; `?` marks what may be left out.
    pub(super) params: &'static str,
    /// Whether it begins to follow something.
    pub(super) follows: bool,
    /// Reads its parameters, and answers or asks the daemon.
    handle: fn(&Request) -> Result<Call, Error>,
}

/// A request for a method.
pub(super) struct Request {
    method: &'static Method,
    params: Value,
}

/// A row of the table.
pub(super) const fn method(
    name: &'static str,
    params: &'static str,
    handle: fn(&Request) -> Result<Call, Error>,
) -> Method {
    Method { name, params, follows: false, handle }
}

/// All of them by topic, but for `admin.auth` and `admin.unfollow`, which are about the connection.
static TOPICS: &[&[Method]] = &[
    status::METHODS,
    connections::METHODS,
    actors::METHODS,
    plugins::METHODS,
    mcp::METHODS,
    channels::METHODS,
    bus::METHODS,
    cluster::METHODS,
    skills::METHODS,
    usage::METHODS,
    sessions::METHODS,
    session::METHODS,
    devices::METHODS,
    tokens::METHODS,
    approvals::METHODS,
    jobs::METHODS,
    memory::METHODS,
    upkeep::METHODS,
    config::METHODS,
    log::METHODS,
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Method> {
    TOPICS.iter().copied().flatten()
}

/// The method of this name.
///
/// # Errors
/// `UnknownMethod`.
pub(super) fn find(name: &str) -> Result<&'static Method, Error> {
    let unknown = || ErrorCode::UnknownMethod.error(format!("unknown method: {name}"));
    all().find(|method| method.name == name).ok_or_else(unknown)
}

impl Method {
    /// The same, of one that begins to follow something.
    pub(super) const fn following(self) -> Self {
        Self { follows: true, ..self }
    }

    /// What becomes of a request for it.
    ///
    /// # Errors
    /// `InvalidRequest` where the parameters are wrong.
    pub(super) fn call(&'static self, params: Value) -> Result<Call, Error> {
        (self.handle)(&Request { method: self, params })
    }
}

impl Request {
    /// Its parameters: an object whose names and types are checked.
    ///
    /// # Errors
    /// `InvalidRequest`, with what is wrong and what the method takes.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let Method { name, params: takes, .. } = self.method;
        let refuse = |why: &str| {
            ErrorCode::InvalidRequest.error(format!("invalid {name} params: {why}; it takes {takes}"))
        };
        let none = json!({});
        let params = match &self.params {
            Value::Array(list) if list.is_empty() => &none,
            Value::Array(_) => return Err(refuse("expected names and values, not a list")),
            params => params,
        };
        T::deserialize(params).map_err(|error| refuse(&error.to_string()))
    }

    /// Makes sure that there are no parameters.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn takes_nothing(&self) -> Result<(), Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        self.read().map(|Nothing {}| ())
    }
}

/// The refusal of a value.
pub(super) fn invalid(why: &str) -> Error {
    ErrorCode::InvalidRequest.error(why)
}

/// Asks the daemon; `told` makes the answer of the reply.
pub(super) fn ask<Q: Ask + 'static>(
    question: Q,
    told: impl FnOnce(Q::Reply) -> Value + 'static,
) -> Result<Call, Error> {
    ask_on(question, |reply| Ok(Call::Answer(told(reply))))
}

/// The same, where more may be asked then.
pub(super) fn ask_on<Q: Ask + 'static>(
    question: Q,
    then: impl FnOnce(Q::Reply) -> Result<Call, Error> + 'static,
) -> Result<Call, Error> {
    Call::ask_on(question, |_, reply, _| then(reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_stands_twice() {
        let mut seen = HashSet::new();
        for name in all().map(|method| method.name) {
            assert!(seen.insert(name), "{name} stands twice");
            assert!(name.starts_with("admin."), "{name}");
        }
        for method in all() {
            assert!(method.params.starts_with('{') && method.params.ends_with('}'), "{}", method.name);
        }
    }
}
