//! What a plugin may be granted, as configuration and manifests write it.

use std::fmt;

use super::HttpGrant;

/// Something a plugin may be granted, written `type:value`. Everything that is not granted is denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// `host_function:NAME`: may call this function of the host.
    HostFunction(HostFunction),
    /// `http:ORIGIN/PATH`: may send HTTP requests there.
    Http(HttpGrant),
}

/// A function of the host that is granted by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostFunction {
    /// The current time.
    Clock,
}

impl HostFunction {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Clock];

    /// Its name, in grants and as guests import it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
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
        let refuse = |why: String| {
            let functions: Vec<&str> = HostFunction::ALL.iter().map(|function| function.name()).collect();
            let functions = functions.join("|");
            Err(format!(
                "capability {text:?}{why}; allowed is http:SCHEME://HOST[:PORT][/PATH], http:HOST, http:*, \
                 host_function:{functions}"
            ))
        };
        match text.split_once(':') {
            Some(("host_function", name)) => match HostFunction::of(name) {
                Some(function) => Ok(Self::HostFunction(function)),
                None => refuse(format!(": there is no host function {name:?}")),
            },
            Some(("http", target)) => match HttpGrant::parse(target) {
                Ok(grant) => Ok(Self::Http(grant)),
                Err(why) => refuse(format!(": {why}")),
            },
            Some(("store", _)) => refuse(": store grants are not implemented yet".to_owned()),
            _ => refuse(" is not understood, it is written TYPE:VALUE".to_owned()),
        }
    }

    /// Whether whoever asks for this may be given `other`: the same, or less of it.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::HostFunction(asked), Self::HostFunction(granted)) => asked == granted,
            (Self::Http(asked), Self::Http(granted)) => asked.covers(granted),
            _ => false,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostFunction(function) => write!(f, "host_function:{}", function.name()),
            Self::Http(grant) => write!(f, "http:{grant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_read_back_and_others_are_refused_by_name() {
        for text in ["host_function:clock", "http:https://api.example.com/v1/", "http:*"] {
            assert_eq!(Capability::parse(text).unwrap().to_string(), text);
        }
        for (text, says) in [
            ("host_function:exec", "no host function \"exec\""),
            ("http:ftp://example.com/", "http or https"),
            ("store:notes", "store grants are not implemented yet"),
            ("clock", "not understood"),
            ("", "not understood"),
            ("İİİİ:İ", "not understood"),
        ] {
            let error = Capability::parse(text).unwrap_err();
            assert!(error.contains(says) && error.contains("allowed is"), "{text}: {error}");
        }
    }

    #[test]
    fn one_kind_of_grant_covers_no_other() {
        let clock = Capability::parse("host_function:clock").unwrap();
        let all = Capability::parse("http:*").unwrap();
        assert!(clock.covers(&clock) && all.covers(&Capability::parse("http:example.com").unwrap()));
        assert!(!clock.covers(&all) && !all.covers(&clock));
    }
}
