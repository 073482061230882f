//! Whether a webhook request comes from whom it says: as the adapter's manifest says, with the channel's secret.
//!
//! ```toml
//! [webhook]
//! check = "hmac-sha256"                          # or "token": the header is the secret itself
//! header = "x-slack-signature"                   # where the signature is
//! prefix = "v0="                                 # what stands before it
//! encoding = "hex"                               # or "base64"
//! signed = "v0:{x-slack-request-timestamp}:{body}" # what is signed: headers by name, and the body
//! timestamp = "x-slack-request-timestamp"        # seconds; five minutes are let pass
//! challenge_type = "url_verification"            # a request of this `type` wants a field of its own back
//! challenge_field = "challenge"
//! ```
//!
//! An adapter without a manifest is checked by `authorization: Bearer SECRET`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::access::Secret;
use crate::hex::hex;
use crate::time::Timestamp;

/// How old or how far ahead a signed request may be.
const TOLERANCE: Duration = Duration::from_secs(300);

/// The longest challenge that is sent back, in bytes.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// How requests are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCheck {
    /// The header with the secret or the signature; in lower case.
    pub header: String,
    /// What stands before it there.
    pub prefix: String,
    /// How it is signed; none = the header is the secret itself.
    pub signature: Option<Signature>,
    /// Which requests want something back: those of this `type`, this field of theirs.
    pub challenge: Option<(String, String)>,
}

/// How a request is signed: HMAC-SHA-256 under the channel's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Whether it is written in base64, else in hexadecimal digits.
    pub is_base64: bool,
    /// What is signed: `{body}` and `{HEADER}` stand for these.
    pub signed: String,
    /// The header with the time it was signed at, in seconds; none = requests may be of any age.
    pub timestamp: Option<String>,
}

/// What a request is taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// An update of the platform.
    Update,
    /// A question whether this is ours, and what it is answered.
    Challenge(String),
}

impl Default for WebhookCheck {
    fn default() -> Self {
        Self {
            header: "authorization".to_owned(),
            prefix: "Bearer ".to_owned(),
            signature: None,
            challenge: None,
        }
    }
}

impl WebhookCheck {
    /// Reads `[webhook]` of a manifest.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read<'a>(entries: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Result<Self, String> {
        let mut check = None;
        let (mut header, mut prefix, mut encoding, mut signed) = (None, String::new(), "hex", None);
        let (mut timestamp, mut challenge_type, mut challenge_field) = (None, None, None);
        for (key, value) in entries {
            let value = value.ok_or_else(|| format!("webhook.{key}: expected text"))?;
            match key {
                "check" => check = Some(value),
                "header" => header = Some(value.to_ascii_lowercase()),
                "prefix" => value.clone_into(&mut prefix),
                "encoding" => encoding = value,
                "signed" => signed = Some(value.to_owned()),
                "timestamp" => timestamp = Some(value.to_ascii_lowercase()),
                "challenge_type" => challenge_type = Some(value.to_owned()),
                "challenge_field" => challenge_field = Some(value.to_owned()),
                _ => {
                    return Err(format!(
                        "webhook.{key}: unknown key, known are check, header, prefix, encoding, signed, timestamp, \
                         challenge_type, challenge_field"
                    ));
                }
            }
        }
        let is_base64 = match encoding {
            "hex" => false,
            "base64" => true,
            _ => return Err(format!("webhook.encoding: expected \"hex\" or \"base64\", found {encoding:?}")),
        };
        let signature = match check {
            Some("token") => None,
            Some("hmac-sha256") => {
                let signed = signed.unwrap_or_else(|| "{body}".to_owned());
                if !signed.contains("{body}") {
                    return Err("webhook.signed: it leaves out {body}".to_owned());
                }
                if let Some(timestamp) = &timestamp
                    && !signed.to_ascii_lowercase().contains(&format!("{{{timestamp}}}"))
                {
                    return Err(format!("webhook.signed: it leaves out {{{timestamp}}}"));
                }
                Some(Signature { is_base64, signed, timestamp })
            }
            _ => return Err("webhook.check: expected \"token\" or \"hmac-sha256\"".to_owned()),
        };
        let challenge = match (challenge_type, challenge_field) {
            (None, None) => None,
            (Some(of_type), Some(field)) => Some((of_type, field)),
            _ => return Err("webhook: challenge_type and challenge_field belong together".to_owned()),
        };
        let header = header.ok_or("webhook.header: it is missing")?;
        Ok(Self { header, prefix, signature, challenge })
    }

    /// Whether the header alone tells whether a request is let in, before its body is read; then whether it is.
    pub fn by_header<'a>(
        &self,
        secret: &Secret,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Result<(), String>> {
        match self.signature {
            Some(_) => None,
            None => {
                let shown = self.shown(&header);
                Some(shown.and_then(|shown| {
                    let is_it = bool::from(shown.as_bytes().ct_eq(secret.expose().as_bytes()));
                    if is_it { Ok(()) } else { Err("the secret is another one".to_owned()) }
                }))
            }
        }
    }

    /// What a request with this body is, where it may come in.
    ///
    /// # Errors
    /// Why it may not.
    pub fn admit<'a>(
        &self,
        secret: &Secret,
        header: impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Checked, String> {
        if let Some(decided) = self.by_header(secret, &header) {
            decided?;
        }
        if let Some(signature) = &self.signature {
            let shown = self.shown(&header)?;
            let made = signature.of(secret, &header, body).ok_or("a header that is signed is missing")?;
            if !bool::from(shown.as_bytes().ct_eq(made.as_bytes())) {
                return Err("the signature is not of this request under the channel's secret".to_owned());
            }
            // After that it is known that nobody else wrote it.
            if let Some(name) = &signature.timestamp {
                let at: u64 = header(name)
                    .and_then(|text| text.trim().parse().ok())
                    .ok_or("its time is no number of seconds")?;
                let now = now.as_millis() / 1000;
                if now.abs_diff(at) > TOLERANCE.as_secs() {
                    return Err(
                        "it was signed more than five minutes ago, or one of the clocks is wrong".to_owned()
                    );
                }
            }
        }
        Ok(self.challenge(body).map_or(Checked::Update, Checked::Challenge))
    }

    fn shown<'a>(&self, header: &impl Fn(&str) -> Option<&'a str>) -> Result<&'a str, String> {
        let name = &self.header;
        let value = header(name).ok_or_else(|| format!("the header {name} is missing"))?;
        let prefix = self.prefix.as_str();
        value.strip_prefix(prefix).ok_or_else(|| format!("the header {name} does not begin with {prefix:?}"))
    }

    fn challenge(&self, body: &[u8]) -> Option<String> {
        let (of_type, field) = self.challenge.as_ref()?;
        let json: Value = serde_json::from_slice(body).ok()?;
        let wanted = json.get(field)?.as_str()?;
        (json["type"] == **of_type && wanted.len() <= CHALLENGE_BYTES_MAX).then(|| wanted.to_owned())
    }
}

impl Signature {
    /// That of a request; none where a header it is over is missing.
    fn of<'a>(
        &self,
        secret: &Secret,
        header: &impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
    ) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes())
            .expect("HMAC takes a key of any length");
        let mut rest = self.signed.as_str();
        while let Some((before, (name, after))) =
            rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            mac.update(before.as_bytes());
            match name {
                "body" => mac.update(body),
                name => mac.update(header(&name.to_ascii_lowercase())?.as_bytes()),
            }
            rest = after;
        }
        mac.update(rest.as_bytes());
        let made = mac.finalize().into_bytes();
        Some(if self.is_base64 { STANDARD.encode(made) } else { hex(&made) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLACK: [(&str, Option<&str>); 8] = [
        ("check", Some("hmac-sha256")),
        ("header", Some("X-Slack-Signature")),
        ("prefix", Some("v0=")),
        ("encoding", Some("hex")),
        ("signed", Some("v0:{x-slack-request-timestamp}:{body}")),
        ("timestamp", Some("x-slack-request-timestamp")),
        ("challenge_type", Some("url_verification")),
        ("challenge_field", Some("challenge")),
    ];

    /// The example of Slack's documentation of its signatures.
    const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";
    const BODY: &str = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    const SIGNED: &str = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    const AT: &str = "1531420618";

    fn admit(
        check: &WebhookCheck,
        headers: &[(&str, &str)],
        body: &str,
        now_s: u64,
    ) -> Result<Checked, String> {
        let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        check.admit(&Secret::new(SECRET), header, body.as_bytes(), Timestamp::from_millis(now_s * 1000))
    }

    #[test]
    fn slacks_own_example_is_let_in_and_nothing_near_it() {
        let check = WebhookCheck::read(SLACK.into_iter()).unwrap();
        let headers = [("x-slack-signature", SIGNED), ("x-slack-request-timestamp", AT)];
        assert_eq!(admit(&check, &headers, BODY, 1_531_420_700), Ok(Checked::Update));
        for (headers, body, now, says) in [
            (&headers[..], "x", 1_531_420_700, "not of this request"),
            (&headers[..], BODY, 1_531_421_000, "five minutes"),
            (&headers[..], BODY, 1_531_420_000, "five minutes"),
            (&headers[1..], BODY, 1_531_420_700, "the header x-slack-signature is missing"),
            (&headers[..1], BODY, 1_531_420_700, "missing"),
            (
                &[("x-slack-signature", SIGNED), ("x-slack-request-timestamp", "1531420619")],
                BODY,
                1_531_420_700,
                "not of this",
            ),
            (&[("x-slack-signature", &SIGNED[3..]), headers[1]], BODY, 1_531_420_700, "does not begin with"),
        ] {
            let why = admit(&check, headers, body, now).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_challenge_is_answered_where_it_is_signed() {
        let check = WebhookCheck { signature: None, ..WebhookCheck::read(SLACK.into_iter()).unwrap() };
        let value = format!("v0={SECRET}");
        let headers = [("x-slack-signature", value.as_str())];
        let body = r#"{"type":"url_verification","challenge":"3eZbrw1a"}"#;
        assert_eq!(admit(&check, &headers, body, 0), Ok(Checked::Challenge("3eZbrw1a".into())));
        assert!(admit(&check, &[], body, 0).is_err());
        assert_eq!(admit(&check, &headers, r#"{"type":"other","challenge":"x"}"#, 0), Ok(Checked::Update));
    }

    #[test]
    fn a_token_is_the_secret_itself() {
        let check = WebhookCheck::default();
        let value = format!("Bearer {SECRET}");
        assert_eq!(admit(&check, &[("authorization", &value)], "x", 0), Ok(Checked::Update));
        for headers in [
            &[][..],
            &[("authorization", "Bearer ")],
            &[("authorization", SECRET)],
            &[("authorization", "Bearer 8f74")],
        ] {
            assert!(admit(&check, headers, "x", 0).is_err(), "{headers:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (entries, says) in [
            (&[][..], "webhook.check"),
            (&[("check", Some("rsa"))], "webhook.check"),
            (&[("check", Some("token"))], "webhook.header"),
            (&[("check", None)], "webhook.check: expected text"),
            (&[("colour", Some("red"))], "webhook.colour: unknown key"),
            (
                &[("check", Some("hmac-sha256")), ("header", Some("x")), ("signed", Some("x"))],
                "leaves out {body}",
            ),
            (
                &[("check", Some("hmac-sha256")), ("header", Some("x")), ("timestamp", Some("t"))],
                "leaves out {t}",
            ),
            (
                &[("check", Some("token")), ("header", Some("x")), ("encoding", Some("rot13"))],
                "webhook.encoding",
            ),
            (
                &[("check", Some("token")), ("header", Some("x")), ("challenge_type", Some("a"))],
                "belong together",
            ),
        ] {
            let why = WebhookCheck::read(entries.iter().copied()).unwrap_err();
            assert!(why.contains(says), "{entries:?}: {why}");
        }
    }

    proptest! {
        #[test]
        fn only_the_signature_under_the_secret_is_let_in(body in proptest::collection::vec(any::<u8>(), 0..200), shown in "[0-9a-f]{64}", signed in "\\PC{0,20}") {
            let signature = Signature { is_base64: false, signed: format!("{signed}{{body}}"), timestamp: None };
            let none = |_: &str| -> Option<&str> { None };
            if let Some(made) = signature.of(&Secret::new("k"), &none, &body) {
                let check = WebhookCheck { header: "s".into(), prefix: String::new(), signature: Some(signature), challenge: None };
                let ok = check.admit(&Secret::new("k"), |_| Some(made.as_str()), &body, Timestamp::from_millis(0));
                let has_brace = signed.contains('{');
                prop_assert!(ok.is_ok() || has_brace);
                let no = check.admit(&Secret::new("k"), |_| Some(shown.as_str()), &body, Timestamp::from_millis(0));
                prop_assert_eq!(no.is_ok(), shown == made);
            }
        }
    }
}
