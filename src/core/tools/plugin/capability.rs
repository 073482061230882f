//! What a plugin may be granted, as configuration and manifests write it.

use std::fmt;

use super::{HttpGrant, SecretGrant, StoreGrant};

/// Something a plugin may be granted, written `type:value`. Everything that is not granted is denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// `host_function:NAME`: may call this function of the host.
    HostFunction(HostFunction),
    /// `http:ORIGIN/PATH`: may send HTTP requests there.
    Http(HttpGrant),
    /// `secret:NAME@ORIGIN/PATH`: its requests there carry this secret.
    Secret(SecretGrant),
    /// `store:NAMESPACE`: may keep values there.
    Store(StoreGrant),
}

/// A function of the host that is granted by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostFunction {
    /// The current time.
    Clock,
    /// Lines in the daemon's log.
    Log,
    /// Bytes that nobody can guess.
    Random,
    /// Which session, agent and owner a call is for.
    SessionInfo,
    /// A search of what is remembered for the owner.
    MemorySearch,
}

impl HostFunction {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Clock, Self::Log, Self::Random, Self::SessionInfo, Self::MemorySearch];

    /// Its name, in grants and as guests import it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Log => "log",
            Self::Random => "random",
            Self::SessionInfo => "session_info",
            Self::MemorySearch => "memory_search",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|function| function.name() == name)
    }
}

impl Capability {
    /// Reads a grant.
    ///
    /// # Errors
    /// Why it is not understood, and what is allowed. A grant that is not understood refuses its plugin.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read = match text.split_once(':') {
            Some(("host_function", name)) => match HostFunction::of(name) {
                Some(function) => Ok(Self::HostFunction(function)),
                None => Err(format!("there is no host function {name:?}")),
            },
            Some(("http", to)) => HttpGrant::parse(to).map(Self::Http),
            Some(("secret", what)) => SecretGrant::parse(what).map(Self::Secret),
            Some(("store", namespace)) => StoreGrant::parse(namespace).map(Self::Store),
            _ => Err("it is not understood, it is written TYPE:VALUE".to_owned()),
        };
        read.map_err(|why| {
            let functions = HostFunction::ALL.map(HostFunction::name).join("|");
            format!(
                "capability {text:?}: {why}; allowed is http:SCHEME://HOST[:PORT][/PATH], http:HOST, http:*, \
                 secret:NAME@HOST, store:NAMESPACE, host_function:{functions}"
            )
        })
    }

    /// Whether whoever asks for this may be given `other`: the same, or less of it.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http(asked), Self::Http(granted)) => asked.covers(granted),
            (Self::Secret(asked), Self::Secret(granted)) => {
                asked.name == granted.name && asked.to.covers(&granted.to)
            }
            // A secret goes along with requests that are asked for; which secrets there are, the operator knows.
            (Self::Http(asked), Self::Secret(granted)) => asked.covers(&granted.to),
            (asked, granted) => asked == granted,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostFunction(function) => write!(f, "host_function:{}", function.name()),
            Self::Http(grant) => write!(f, "http:{grant}"),
            Self::Secret(grant) => write!(f, "secret:{grant}"),
            Self::Store(grant) => write!(f, "store:{grant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(text: &str) -> Capability {
        Capability::parse(text).unwrap()
    }

    #[test]
    fn grants_read_back_and_others_are_refused_by_name() {
        for text in [
            "host_function:clock",
            "http:https://api.example.com/v1/",
            "http:*",
            "secret:github@https://api.github.com/",
            "store:notes",
        ] {
            assert_eq!(capability(text).to_string(), text);
        }
        for (text, says) in [
            ("host_function:exec", "no host function \"exec\""),
            ("http:ftp://example.com/", "http or https"),
            ("store:", "a namespace is 1 to 64"),
            ("store:a/b", "a namespace is 1 to 64"),
            ("secret:github", "secret:NAME@HOST"),
            ("clock", "not understood"),
            ("", "not understood"),
            ("İİİİ:İ", "not understood"),
        ] {
            let error = Capability::parse(text).unwrap_err();
            assert!(error.contains(says) && error.contains("allowed is"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_asked_for_covers_the_same_and_less() {
        for (asked, granted, is_covered) in [
            ("host_function:clock", "host_function:clock", true),
            ("host_function:clock", "host_function:random", false),
            ("http:*", "http:example.com", true),
            ("http:example.com", "http:*", false),
            ("http:*", "host_function:clock", false),
            ("store:notes", "store:notes", true),
            ("store:notes", "store:other", false),
            ("secret:a@example.com", "secret:a@https://example.com/v1", true),
            ("secret:a@example.com", "secret:b@example.com", false),
            ("secret:a@example.com", "http:example.com", false),
            ("http:*", "secret:a@example.com", true),
            ("http:example.com/v1", "secret:a@example.com", false),
        ] {
            assert_eq!(capability(asked).covers(&capability(granted)), is_covered, "{asked} and {granted}");
        }
    }
}
