//! Secrets that the host puts into a plugin's requests, which its guest never sees.
//!
//! A grant `secret:NAME@ORIGIN` lets the requests to that origin carry the secret NAME of `[secrets]`. The
//! secret is put in after a request was held against the grants, anew for each redirect, and cut out of
//! what comes back: a server that repeats what it was sent tells the guest nothing.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderName, HeaderValue};
use url::Url;

use super::HttpGrant;
use crate::access::Secret;

/// `secret:NAME@ORIGIN`: the secret of this name goes along with requests there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecretGrant {
    /// Its name in `[secrets]`.
    pub name: String,
    /// One origin; never `*`.
    pub to: HttpGrant,
}

/// A secret of `[secrets]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSecret {
    /// The secret itself.
    pub value: Secret,
    /// Where in a request it stands.
    pub place: SecretPlace,
}

/// Where in a request a secret stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    /// In this header, behind a prefix such as `Bearer `.
    Header {
        /// The header's name. What the guest says in it is replaced.
        name: HeaderName,
        /// What stands before the secret.
        prefix: String,
    },
    /// In the path of the URL, where the guest writes `{NAME}`.
    Path,
}

/// A secret that a plugin was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedSecret {
    /// The grant.
    pub grant: SecretGrant,
    /// What it stands for.
    pub secret: PluginSecret,
}

/// What stands in a response where a secret was.
const REDACTED: &[u8] = b"[secret]";

/// Secrets shorter than this are left where they are: every text has them somewhere.
const REDACTED_BYTES_MIN: usize = 6;

impl SecretGrant {
    /// Reads what stands behind `secret:`.
    ///
    /// # Errors
    /// Why it is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, to) = text.split_once('@').ok_or("it is written secret:NAME@HOST")?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(format!("the name {name:?} is not of the characters a-z, A-Z, 0-9, _ and -"));
        }
        match HttpGrant::parse(to)? {
            HttpGrant::Public => Err("a secret goes to one host, not to all".to_owned()),
            to @ HttpGrant::Origin(_) => Ok(Self { name: name.to_owned(), to }),
        }
    }
}

impl fmt::Display for SecretGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.to)
    }
}

impl PluginSecret {
    /// Whether the secret can stand where it is to.
    ///
    /// # Errors
    /// Why not, without the secret.
    pub fn check(&self) -> Result<(), &'static str> {
        let value = self.value.expose();
        match &self.place {
            SecretPlace::Header { prefix, .. } => match HeaderValue::from_str(&format!("{prefix}{value}")) {
                Ok(_) => Ok(()),
                Err(_) => Err("it has characters that a header can't hold"),
            },
            SecretPlace::Path => {
                let is_plain = |byte: u8| {
                    byte.is_ascii_alphanumeric()
                        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'=' | b'@')
                };
                if value.bytes().all(is_plain) && !matches!(value, "." | "..") {
                    Ok(())
                } else {
                    Err("it has characters that can't stand in a path as they are")
                }
            }
        }
    }
}

/// Puts secrets into a request to `url`: those whose grant is for it.
pub fn inject(granted: &[GrantedSecret], url: &mut Url, headers: &mut Vec<(HeaderName, HeaderValue)>) {
    let bare = url.clone();
    for GrantedSecret { grant, secret } in granted.iter().filter(|granted| granted.grant.to.matches(&bare)) {
        let value = secret.value.expose();
        match &secret.place {
            SecretPlace::Header { name, prefix } => {
                let Ok(mut value) = HeaderValue::from_str(&format!("{prefix}{value}")) else { continue };
                value.set_sensitive(true);
                headers.retain(|(given, _)| given != name);
                headers.push((name.clone(), value));
            }
            SecretPlace::Path => {
                let placeholder = format!("%7B{}%7D", grant.name);
                if url.path().contains(&placeholder) {
                    let path = url.path().replace(&placeholder, value);
                    url.set_path(&path);
                }
            }
        }
    }
}

/// What a guest is told of a text or body: without the secrets it was granted.
pub fn redact<'a>(granted: &[GrantedSecret], bytes: &'a [u8]) -> Cow<'a, [u8]> {
    redact_values(granted.iter().map(|granted| &granted.secret.value), bytes)
}

/// The same of these secrets.
pub fn redact_values<'a, 'b>(secrets: impl Iterator<Item = &'b Secret>, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    let values = secrets.map(|secret| secret.expose().as_bytes());
    values.filter(|value| value.len() >= REDACTED_BYTES_MIN).fold(Cow::Borrowed(bytes), without)
}

fn without<'a>(bytes: Cow<'a, [u8]>, value: &[u8]) -> Cow<'a, [u8]> {
    let next = |from: usize| {
        bytes[from..].windows(value.len()).position(|window| window == value).map(|at| from + at)
    };
    let Some(mut found) = next(0) else { return bytes };
    let (mut kept, mut from) = (Vec::with_capacity(bytes.len()), 0);
    loop {
        kept.extend_from_slice(&bytes[from..found]);
        kept.extend_from_slice(REDACTED);
        from = found + value.len();
        match next(from) {
            Some(at) => found = at,
            None => break,
        }
    }
    kept.extend_from_slice(&bytes[from..]);
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::AUTHORIZATION;

    fn granted(grant: &str, value: &str, place: SecretPlace) -> GrantedSecret {
        let secret = PluginSecret { value: Secret::new(value), place };
        secret.check().unwrap();
        GrantedSecret { grant: SecretGrant::parse(grant).unwrap(), secret }
    }

    fn bearer() -> SecretPlace {
        SecretPlace::Header { name: AUTHORIZATION, prefix: "Bearer ".to_owned() }
    }

    #[test]
    fn a_grant_names_a_secret_and_one_host() {
        assert_eq!(
            SecretGrant::parse("github@api.github.com").unwrap().to_string(),
            "github@https://api.github.com/"
        );
        for (text, says) in [
            ("github", "secret:NAME@HOST"),
            ("@api.github.com", "the name \"\""),
            ("a/b@api.github.com", "the name \"a/b\""),
            ("github@*", "to one host"),
            ("github@user@host", "user name"),
            ("github@ftp://host", "http or https"),
        ] {
            let error = SecretGrant::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_secret_goes_where_its_grant_says_and_nowhere_else() {
        let secrets = [
            granted("github@https://a.example/v1/", "s3cret-value", bearer()),
            granted("bot@https://a.example", "123:abc-DEF", SecretPlace::Path),
        ];
        for (url, sent_to, is_authorized) in [
            ("https://a.example/v1/x", "https://a.example/v1/x", true),
            ("https://a.example/v2/x", "https://a.example/v2/x", false),
            ("http://a.example/v1/x", "http://a.example/v1/x", false),
            ("https://b.example/v1/bot{bot}", "https://b.example/v1/bot%7Bbot%7D", false),
            (
                "https://a.example/bot{bot}/send?x={bot}",
                "https://a.example/bot123:abc-DEF/send?x={bot}",
                false,
            ),
        ] {
            let mut url = Url::parse(url).unwrap();
            let mut headers = vec![(AUTHORIZATION, HeaderValue::from_static("of the guest"))];
            inject(&secrets, &mut url, &mut headers);
            let value = if is_authorized { "Bearer s3cret-value" } else { "of the guest" };
            assert_eq!((url.as_str(), headers.len()), (sent_to, 1));
            assert_eq!(headers[0].1, value, "{url}");
            assert!(!format!("{headers:?}").contains("s3cret"), "a secret header is not shown");
        }
    }

    #[test]
    fn what_can_stand_nowhere_is_refused_and_never_shown() {
        for (value, place) in [
            ("a\r\nb", bearer()),
            ("a/b", SecretPlace::Path),
            ("a?b", SecretPlace::Path),
            ("..", SecretPlace::Path),
            ("a%2fb", SecretPlace::Path),
        ] {
            let secret = PluginSecret { value: Secret::new(value), place };
            assert!(secret.check().is_err(), "{value:?}");
            assert!(!format!("{secret:?}").contains(value));
        }
    }

    #[test]
    fn a_server_that_repeats_a_secret_tells_the_guest_nothing() {
        let secrets =
            [granted("a@a.example", "s3cret-value", bearer()), granted("b@a.example", "abc", bearer())];
        let said = redact(&secrets, b"you sent s3cret-values3cret-value abc");
        assert_eq!(&*said, b"you sent [secret][secret] abc");
        assert!(matches!(redact(&secrets, b"nothing"), Cow::Borrowed(_)));
        let unlucky = [granted("a@a.example", "secret", bearer())];
        assert_eq!(&*redact(&unlucky, b"a secret, and secretsecret"), b"a [secret], and [secret][secret]");
    }
}
