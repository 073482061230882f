//! The subjects of the bus: `exoclaw.{channel}.{account}.{peer}` for what a peer says, the same with `.answer` and
//! `.live` for what it is told, and `exoclaw-dlq.` before the three for what could not be taken. (Source: exoclaw,
//! architecture.)
//!
//! In a part every byte but `A-Z a-z 0-9 _ -` is written `%XX`. Any correct encoding is read, so one peer may come on
//! several subjects; what is written is the canonical one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::target::Route;

/// What subjects of peers begin with.
pub const PREFIX: &str = "exoclaw";

/// And those of dead letters.
pub const DEAD_PREFIX: &str = "exoclaw-dlq";

/// The most bytes of a part, decoded.
pub const PART_BYTES_MAX: usize = 256;

/// The most bytes of a subject that answers go to besides.
pub const REPLY_BYTES_MAX: usize = 256;

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// Whose a message is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The channel, such as `matrix`.
    pub channel: String,
    /// The account within the channel.
    pub account: String,
    /// The peer within the account.
    pub peer: String,
}

impl Peer {
    /// Whose a message on this subject is.
    ///
    /// # Errors
    /// What is wrong with the subject.
    pub fn of_subject(subject: &str) -> Result<Self, String> {
        let parts: Vec<&str> = subject.split('.').collect();
        let [PREFIX, channel, account, peer] = parts[..] else {
            return Err(format!("the subject is not {PREFIX}.CHANNEL.ACCOUNT.PEER"));
        };
        Ok(Self {
            channel: decoded("channel", channel)?,
            account: decoded("account", account)?,
            peer: decoded("peer", peer)?,
        })
    }

    /// Whose a dead letter is, by its subject; none where that is no whole one.
    pub fn of_dead_subject(subject: &str) -> Option<Self> {
        let rest = subject.strip_prefix(DEAD_PREFIX)?;
        Self::of_subject(&format!("{PREFIX}{rest}")).ok()
    }

    /// The subject on which it speaks.
    pub fn subject(&self) -> String {
        format!("{PREFIX}.{}", self.parts())
    }

    /// The subject on which it is answered.
    pub fn answer_subject(&self) -> String {
        format!("{PREFIX}.{}.answer", self.parts())
    }

    /// The subject on which it hears the text of an answer as it is said.
    pub fn live_subject(&self) -> String {
        format!("{PREFIX}.{}.live", self.parts())
    }

    /// The subject of what could not be taken of it.
    pub fn dead_subject(&self) -> String {
        format!("{DEAD_PREFIX}.{}", self.parts())
    }

    fn parts(&self) -> String {
        [&self.channel, &self.account, &self.peer]
            .map(|part| utf8_percent_encode(part, ESCAPED).to_string())
            .join(".")
    }

    /// Where it comes from, for bindings.
    pub fn route(&self, guild: Option<String>, team: Option<String>) -> Route {
        Route {
            channel: self.channel.clone(),
            account: self.account.clone(),
            peer: Some(self.peer.clone()),
            guild,
            team,
        }
    }
}

/// The subject of a dead letter that came on this one: the same parts, whatever is wrong with them.
pub fn dead_subject_of(subject: &str) -> String {
    match subject.strip_prefix(PREFIX) {
        Some(rest) => format!("{DEAD_PREFIX}{rest}"),
        None => format!("{DEAD_PREFIX}.{subject}"),
    }
}

fn decoded(what: &str, part: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let bytes = part.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let is_escape = bytes[at] == b'%'
            && bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        match is_escape {
            true => at += 3,
            false if is_plain(bytes[at]) => at += 1,
            false => {
                return Err(format!(
                    "the {what} in the subject is not encoded: a byte but A-Z a-z 0-9 _ - is written %XX"
                ));
            }
        }
    }
    let text = percent_decode_str(part).decode_utf8();
    let text = text.map_err(|_| format!("the {what} in the subject is not UTF-8"))?;
    if text.is_empty() || text.len() > PART_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "the {what} in the subject is empty, longer than {PART_BYTES_MAX} bytes or has control characters"
        ));
    }
    Ok(text.into_owned())
}

/// Whether answers may go to this subject besides: one that is no wildcard, none of the server's own but inboxes, and
/// none of the bus, so that nothing that is said comes back as a prompt.
///
/// # Errors
/// What is wrong with it.
pub fn check_reply(subject: &str) -> Result<(), String> {
    let is_token = |token: &str| {
        !token.is_empty()
            && !token.contains(|c: char| c.is_whitespace() || c.is_control() || "*>".contains(c))
    };
    if subject.len() > REPLY_BYTES_MAX || !subject.split('.').all(is_token) {
        return Err(format!("expected a subject of at most {REPLY_BYTES_MAX} bytes, without wildcards"));
    }
    let first = subject.split('.').next().unwrap_or_default();
    if first.starts_with('$') || first == PREFIX || first.starts_with("exoclaw-") {
        return Err(format!("{subject}: answers go to no subject of the server's own ($...) or of the bus"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn any_correct_encoding_is_read_and_the_canonical_one_written() {
        let peer = Peer::of_subject("exoclaw.matrix.main.%40ada%3aexample%2Eorg").unwrap();
        assert_eq!(peer.peer, "@ada:example.org");
        assert_eq!(peer.subject(), "exoclaw.matrix.main.%40ada%3Aexample%2Eorg");
        assert_eq!(peer.answer_subject(), "exoclaw.matrix.main.%40ada%3Aexample%2Eorg.answer");
        assert_eq!(Peer::of_dead_subject(&peer.dead_subject()), Some(peer));
        assert_eq!(Peer::of_subject("exoclaw.m.a.%61").unwrap().peer, "a");
        for (subject, says) in [
            ("exoclaw.m.a", "is not exoclaw.CHANNEL"),
            ("exoclaw.m.a.b.c", "is not exoclaw.CHANNEL"),
            ("other.m.a.b", "is not exoclaw.CHANNEL"),
            ("exoclaw.m.a.b%4", "the peer in the subject is not encoded"),
            ("exoclaw.m.a.b%4g", "not encoded"),
            ("exoclaw.m.a@.b", "the account in the subject is not encoded"),
            ("exoclaw.%ff.a.b", "the channel in the subject is not UTF-8"),
            ("exoclaw.m.a.%0A", "control characters"),
            ("exoclaw.m.a.", "is empty"),
        ] {
            let why = Peer::of_subject(subject).unwrap_err();
            assert!(why.contains(says), "{subject}: {why}");
        }
        assert_eq!(dead_subject_of("exoclaw.m.a.b%4"), "exoclaw-dlq.m.a.b%4");
    }

    #[test]
    fn answers_go_to_no_subject_that_would_do_something() {
        for fine in ["_INBOX.abc.1", "adapters.matrix.7", "x"] {
            assert_eq!(check_reply(fine), Ok(()), "{fine}");
        }
        let long = "x".repeat(300);
        for bad in [
            "$JS.API.STREAM.DELETE.EXOCLAW",
            "exoclaw.a.b.c",
            "exoclaw-dlq.a",
            "a.*",
            "a.>",
            "a..b",
            "",
            "a b",
            &long,
        ] {
            assert!(check_reply(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(channel in "[^\\p{C}]{1,20}", account in "[^\\p{C}]{1,20}", peer in "[^\\p{C}]{1,20}") {
            let named = Peer { channel, account, peer };
            prop_assert_eq!(Peer::of_subject(&named.subject()), Ok(named.clone()));
            prop_assert_eq!(named.subject().split('.').count(), 4);
        }

        #[test]
        fn no_subject_panics(subject in "\\PC{0,60}", rest in "[%a-f0-9.*]{0,30}") {
            let _ = Peer::of_subject(&subject);
            let _ = Peer::of_subject(&format!("exoclaw.{rest}"));
            let _ = check_reply(&subject);
            let _ = dead_subject_of(&subject);
        }
    }
}
