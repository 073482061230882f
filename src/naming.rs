//! Which session is meant: by a name, a key, or the beginning of a key.

use clawmux_core::ids::SessionKey;

use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::one_line;

/// The agent of a session NAME if none is given.
const AGENT: &str = "main";
/// The user's name if the environment has none.
const USER: &str = "user";
/// How many of several matching sessions are named.
const SHOWN_MAX: usize = 8;
/// The longest key that is quoted, in characters.
const QUOTED_CHARS_MAX: usize = 200;

/// Translates names of sessions into keys, for one user.
#[derive(Clone, Debug)]
pub(crate) struct SessionNames {
    user: String,
}

/// A session as it was given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionRef {
    /// The session with this key, whether it exists or not.
    Key(SessionKey),
    /// The session whose key begins with this.
    Prefix(String),
}

impl SessionNames {
    /// `env` reads a variable.
    pub(crate) fn new(env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| env(name).filter(|user| !user.is_empty());
        Self { user: set("USER").or_else(|| set("LOGNAME")).unwrap_or_else(|| USER.into()) }
    }

    /// The user's session `name` of this agent; without a name the main one.
    ///
    /// # Errors
    /// Status 2 if the name makes no valid key.
    pub(crate) fn session(&self, name: Option<&str>, agent: Option<&str>) -> Result<SessionKey, Failure> {
        let name = name.unwrap_or(SessionKey::DEFAULT_PEER);
        SessionKey::new(agent.unwrap_or(AGENT), "cli", &self.user, name)
            .map_err(|error| Failure::new(USAGE, error.message))
    }

    /// The session that `text` refers to. Without a colon it is the name of a session of `agent`.
    ///
    /// # Errors
    /// Status 2 if it is no valid key or beginning of one.
    pub(crate) fn named(&self, text: Option<&str>, agent: Option<&str>) -> Result<SessionRef, Failure> {
        let Some(text) = text.filter(|text| text.contains(':')) else {
            return Ok(SessionRef::Key(self.session(text, agent)?));
        };
        // As a table shows what is too long for it.
        let text = text.trim_end_matches('…');
        if let Some(agent) = agent {
            let why = format!(
                "--agent {} names the agent of a session NAME; {} is a key, which names its agent itself",
                one_line(agent, QUOTED_CHARS_MAX),
                one_line(text, QUOTED_CHARS_MAX)
            );
            return Err(Failure::new(USAGE, why));
        }
        match SessionKey::parse(text) {
            Ok(key) => Ok(SessionRef::Key(key)),
            // Four parts and wrong, or more than any key has.
            Err(error) if text.matches(':').count() >= 3 && !text.ends_with(':') => {
                Err(Failure::new(USAGE, error.message))
            }
            Err(_) => Ok(SessionRef::Prefix(text.to_owned())),
        }
    }

    /// The session's name if it is one of this user's, else its key.
    pub(crate) fn called(&self, key: &str) -> String {
        match SessionKey::parse(key) {
            Ok(parsed) if parsed.as_str() == key => {
                let (agent, peer) = (parsed.agent().to_string(), parsed.peer().into_owned());
                let is_named = self.session(Some(&peer), Some(AGENT)).is_ok_and(|own| own == parsed);
                if is_named && agent == AGENT && !peer.contains(':') { peer } else { key.to_owned() }
            }
            _ => key.to_owned(),
        }
    }
}

/// The one key of `keys` that begins with `beginning`.
///
/// # Errors
/// Status 1 if no key or more than one matches; the message lists them.
pub(crate) fn chosen(beginning: &str, keys: &[String]) -> Result<SessionKey, Failure> {
    let begin: Vec<&String> = keys.iter().filter(|key| key.starts_with(beginning)).collect();
    let quoted = one_line(beginning, QUOTED_CHARS_MAX);
    let failed = |why: String| Err(Failure::new(FAILED, why));
    match begin.as_slice() {
        [one] => SessionKey::parse(one).map_err(|error| Failure::new(FAILED, error.message)),
        [] if keys.is_empty() => failed(format!(
            "no session begins with {quoted}: there is none yet; a new one has a NAME without a colon, or a key \
             AGENT:CHANNEL:ACCOUNT:PEER"
        )),
        [] => failed(format!("no session begins with {quoted}; there are: {}", some(keys))),
        several => {
            failed(format!("several sessions begin with {quoted}: {}; type more of the key", some(several)))
        }
    }
}

fn some<T: AsRef<str>>(keys: &[T]) -> String {
    let shown: Vec<String> =
        keys.iter().take(SHOWN_MAX).map(|key| one_line(key.as_ref(), QUOTED_CHARS_MAX)).collect();
    let more = keys.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> SessionNames {
        SessionNames::new(|name| (name == "USER").then(|| "ada".into()))
    }

    fn key(text: &str) -> SessionKey {
        SessionKey::parse(text).unwrap()
    }

    #[test]
    fn a_session_is_named_in_short_or_by_its_key() {
        for (text, agent, meant) in [
            (None, None, "main:cli:ada:main"),
            (None, Some("work"), "work:cli:ada:main"),
            (Some("plan"), None, "main:cli:ada:plan"),
            (Some("plan"), Some("work"), "work:cli:ada:plan"),
            (Some("100%"), None, "main:cli:ada:100%25"),
            (Some("main:telegram:bot:bob"), None, "main:telegram:bot:bob"),
            (Some("ada/main:websocket:ada:main"), None, "ada/main:websocket:ada:main"),
        ] {
            assert_eq!(
                names().named(text, agent).unwrap(),
                SessionRef::Key(key(meant)),
                "{text:?} {agent:?}"
            );
        }
        for text in ["main:cli", "main:cli:ada:", "ada/main:", "main:telegram:b…"] {
            let beginning = SessionRef::Prefix(text.trim_end_matches('…').into());
            assert_eq!(names().named(Some(text), None).unwrap(), beginning);
        }
        for (text, agent, says) in [
            ("a:b:c:d:e", None, "agent:channel:account:peer"),
            ("a:b:c:%zz", None, "%25"),
            ("a:b:c:d", Some("work"), "names its agent itself"),
            ("", None, "peer is empty"),
        ] {
            let failure = names().named(Some(text), agent).unwrap_err();
            assert!(failure.status == USAGE && failure.message.contains(says), "{text}: {failure:?}");
        }
        let nobody = SessionNames::new(|_| None).named(None, None).unwrap();
        assert_eq!(nobody, SessionRef::Key(key("main:cli:user:main")));
    }

    #[test]
    fn a_beginning_means_the_one_key_that_begins_so() {
        let keys = ["main:cli:ada:main", "main:cli:ada:plan", "main:wundr:7f:main"].map(String::from);
        assert_eq!(chosen("main:w", &keys).unwrap(), key("main:wundr:7f:main"));
        let several = chosen("main:cli", &keys).unwrap_err().message;
        assert!(several.contains("main:cli:ada:main, main:cli:ada:plan; type more"), "{several}");
        let none = chosen("work:", &keys).unwrap_err().message;
        assert!(none.contains("no session begins with work:; there are: main:cli:ada:main,"), "{none}");
        assert!(chosen("x:", &[]).unwrap_err().message.contains("none yet"));
    }

    #[test]
    fn own_sessions_are_called_by_their_names() {
        for (key, called) in [
            ("main:cli:ada:plan", "plan"),
            ("work:cli:ada:plan", "work:cli:ada:plan"),
            ("main:cli:bob:plan", "main:cli:bob:plan"),
            ("bob/main:cli:ada:plan", "bob/main:cli:ada:plan"),
            ("what is no key", "what is no key"),
        ] {
            assert_eq!(names().called(key), called);
        }
    }
}
