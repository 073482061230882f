//! JSON Web Tokens, as the Wundr protocol has them: HS256 and nothing else.
//!
//! No library of JWTs is used, because the protocol prescribes the order of the checks and a reason
//! for each, which those do not give; and because what they can do besides (other algorithms, keys
//! named by the token, leeway) is what attacks on JWTs are made of. What is left is a keyed hash over
//! two pieces of base64 and a small object.
//!
//! The order: size, three parts, algorithm, signature, JSON, claims, expiry, beginning, length of its
//! life, issuer, audience. Nothing of the payload is looked at before the signature was found good. A
//! token whose `exp` is this very second has expired, without leeway; one that was issued or begins
//! (`iat`, `nbf`) in the future is refused, with [`LEEWAY`] for clocks that differ. `kid` and `jku` are
//! not looked at; a header with `crit` is refused, since it names what must be understood.
//!
//! Base64 is read strictly (URL alphabet, no padding, no stray bits) and a name that stands twice is
//! refused, so that one token has one spelling and one meaning.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::de::{Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;

use super::Secret;
use crate::error::credential::Refusal;
use crate::scope::{Scope, Scopes};
use crate::time::Timestamp;

/// The longest token that is looked at, in bytes.
pub const BYTES_MAX: usize = 8 * 1024;

/// The fewest bytes of a secret: as many as the hash has.
pub const SECRET_BYTES_MIN: usize = 32;

/// The most bytes of a subject: it becomes the name of an owner.
pub const SUBJECT_BYTES_MAX: usize = 256;

/// Seconds since 1970 beyond this, either way, are no point in time that a client could name.
const SECONDS_MAX: f64 = 8_640_000_000_000.0;

/// How far the clock of who issues tokens may be ahead of ours.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// The only algorithm that is accepted.
const ALGORITHM: &str = "HS256";

/// What a token says that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `sub`: whom the token is about.
    pub subject: Arc<str>,
    /// What that one may do. Names that are no scope are left out; none at all is nothing.
    pub scopes: Scopes,
    /// `exp`: from when on it is refused.
    pub expires: Timestamp,
    /// Its own name, by which it can be revoked.
    pub id: Option<Arc<str>>,
}

/// Checks tokens and makes them.
#[derive(Clone)]
pub struct Signer {
    /// With the key in it.
    mac: Hmac<Sha256>,
    issuer: Arc<str>,
    audience: Arc<str>,
    life_max: Option<Duration>,
}

/// Does not show the key.
impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer")
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default, deserialize_with = "present")]
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Payload {
    sub: String,
    iss: String,
    aud: String,
    iat: f64,
    exp: f64,
    #[serde(default, deserialize_with = "present")]
    nbf: Option<f64>,
    #[serde(default, deserialize_with = "present")]
    scopes: Option<Vec<String>>,
    #[serde(default, deserialize_with = "present", rename = "claims")]
    _claims: Option<serde_json::Map<String, Value>>,
    /// Ours is text; what others put here is theirs.
    jti: Option<Value>,
}

#[derive(Serialize)]
struct Minted<'a> {
    sub: &'a str,
    iss: &'a str,
    aud: &'a str,
    iat: u64,
    exp: u64,
    scopes: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<&'a str>,
}

/// A value that is there is of its type: `null` is none.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl Signer {
    /// With this secret, for tokens of this issuer for this audience.
    ///
    /// # Errors
    /// Where the secret has fewer than [`SECRET_BYTES_MIN`] bytes.
    pub fn new(secret: &Secret, issuer: &str, audience: &str) -> Result<Self, ShortSecret> {
        let key = secret.expose().as_bytes();
        if key.len() < SECRET_BYTES_MIN {
            return Err(ShortSecret);
        }
        // It takes a key of any length.
        let mac = Hmac::new_from_slice(key).map_err(|_| ShortSecret)?;
        Ok(Self { mac, issuer: issuer.into(), audience: audience.into(), life_max: None })
    }

    /// The same, for tokens that live no longer than this; none = as long as they say.
    #[must_use]
    pub fn with_life_max(self, life_max: Option<Duration>) -> Self {
        Self { life_max, ..self }
    }

    /// What a token says, if it holds `now`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, Refusal> {
        if token.len() > BYTES_MAX {
            return Err(Refusal::Malformed);
        }
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refusal::Malformed);
        };
        let header: Header =
            decoded(header).and_then(|bytes| object(&bytes)).ok_or(Refusal::HeaderInvalid)?;
        if header.alg != ALGORITHM {
            return Err(Refusal::AlgorithmUnsupported);
        }
        if header.crit.is_some() {
            return Err(Refusal::HeaderInvalid);
        }
        let signature = decoded(signature).ok_or(Refusal::SignatureInvalid)?;
        let signed = token.rsplit_once('.').map_or("", |(signed, _)| signed);
        let mac = self.mac.clone().chain_update(signed.as_bytes());
        mac.verify_slice(&signature).map_err(|_| Refusal::SignatureInvalid)?;

        let bytes = decoded(payload).ok_or(Refusal::PayloadInvalid)?;
        serde_json::from_slice::<Value>(&bytes).map_err(|_| Refusal::PayloadInvalid)?;
        let payload: Payload = object(&bytes).ok_or(Refusal::PayloadSchemaInvalid)?;
        let is_a_time = |seconds: f64| seconds.abs() <= SECONDS_MAX;
        let is_named = !payload.sub.is_empty()
            && payload.sub.len() <= SUBJECT_BYTES_MAX
            && !payload.sub.chars().any(char::is_control);
        let times = [Some(payload.iat), Some(payload.exp), payload.nbf];
        if !is_named || !times.into_iter().flatten().all(is_a_time) {
            return Err(Refusal::PayloadSchemaInvalid);
        }
        let expires = timestamp(payload.exp);
        if expires <= now {
            return Err(Refusal::Expired { at: expires });
        }
        let begins = timestamp(payload.nbf.unwrap_or(payload.iat).max(payload.iat));
        if begins > now.after(LEEWAY) {
            return Err(Refusal::NotYetValid);
        }
        if self.life_max.is_some_and(|most| payload.exp - payload.iat > most.as_secs_f64()) {
            return Err(Refusal::LifeTooLong);
        }
        if payload.iss != *self.issuer {
            return Err(Refusal::IssuerMismatch);
        }
        if payload.aud != *self.audience {
            return Err(Refusal::AudienceMismatch);
        }
        let names = payload.scopes.unwrap_or_default();
        let scopes: Vec<Scope> = names.iter().filter_map(|name| Scope::from_name(name)).collect();
        Ok(Claims {
            subject: payload.sub.into(),
            scopes: Scopes::of(&scopes),
            expires,
            id: payload.jti.and_then(|id| id.as_str().map(Arc::from)),
        })
    }

    /// Makes a token that says this. Times are cut to seconds.
    pub fn mint(&self, claims: &Claims, now: Timestamp) -> Secret {
        let minted = Minted {
            sub: &claims.subject,
            iss: &self.issuer,
            aud: &self.audience,
            iat: now.as_millis() / 1000,
            exp: claims.expires.as_millis() / 1000,
            scopes: claims.scopes.names(),
            jti: claims.id.as_deref(),
        };
        // Text, numbers and lists of text have a form in JSON.
        let payload = serde_json::to_string(&minted).unwrap_or_default();
        Secret::new(self.signed(r#"{"alg":"HS256","typ":"JWT"}"#, &payload))
    }

    /// These two pieces of text, signed.
    fn signed(&self, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let signature = self.mac.clone().chain_update(signed.as_bytes()).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// That a secret is too short to sign with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortSecret;

/// Whether a text has the outer form of a token.
pub fn is_shaped(text: &str) -> bool {
    text.split('.').count() == 3
}

fn decoded(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

/// An object in JSON; no list, which would do for a struct as well.
fn object<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<T> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_object = text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{');
    is_object.then(|| serde_json::from_str(text).ok()).flatten()
}

/// A point in time of so many seconds since 1970; none before that.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to SECONDS_MAX, which are at most 54 bits of milliseconds; a cast saturates"
)]
fn timestamp(seconds: f64) -> Timestamp {
    Timestamp::from_millis((seconds * 1000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const NOW: u64 = 1_700_000_000;
    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn signer() -> Signer {
        Signer::new(&Secret::new(SECRET), "wundr-orchestrator", "wundr-daemon").unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::from_millis(NOW * 1000)
    }

    fn good() -> Value {
        json!({
            "sub": "alice", "iss": "wundr-orchestrator", "aud": "wundr-daemon", "iat": NOW, "exp": NOW + 60,
            "scopes": ["daemon.write", "operator.approvals", "root", ""],
        })
    }

    fn with(changes: Value) -> Value {
        let mut claims = good();
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    fn without(name: &str) -> Value {
        let mut claims = good();
        claims.as_object_mut().unwrap().remove(name);
        claims
    }

    fn token(header: &str, payload: &str) -> String {
        signer().signed(header, payload)
    }

    fn of(claims: &Value) -> String {
        token(r#"{"alg":"HS256"}"#, &claims.to_string())
    }

    fn verify(token: &str) -> Result<Claims, Refusal> {
        signer().verify(token, now())
    }

    fn refused(token: &str) -> Refusal {
        verify(token).expect_err(token)
    }

    #[test]
    fn one_that_holds_says_who_it_is_and_what_that_one_may_do() {
        let claims = verify(&of(&good())).unwrap();
        assert_eq!(&*claims.subject, "alice");
        assert_eq!(claims.scopes, Scopes::of(&[Scope::Read, Scope::Write, Scope::Approve]));
        assert_eq!((claims.expires.as_millis(), claims.id), ((NOW + 60) * 1000, None));
        for none in [without("scopes"), with(json!({"scopes": []})), with(json!({"scope": "daemon.admin"}))] {
            let none = verify(&of(&none)).unwrap();
            assert!(!none.scopes.allows(Scope::Admin), "{none:?}");
        }
        assert_eq!(verify(&of(&without("scopes"))).unwrap().scopes, Scopes::NONE);
        // As another program made it, with this secret and these claims.
        let foreign = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
            eyJzdWIiOiJhbGljZSIsImlzcyI6Ind1bmRyLW9yY2hlc3RyYXRvciIsImF1ZCI6Ind1bmRyLWRhZW1vbiIsImlhdCI6MTcwMDAwMDAwMCwiZXhwIjoxNzAwMDAwMDYwfQ.\
            46QxSd-6GqwXkaQCNbzu3cFwRdOSFxpRkKTGcH7yy-o";
        assert_eq!(&*verify(foreign).unwrap().subject, "alice");
    }

    #[test]
    fn what_it_makes_it_takes_and_nobody_else_does() {
        let claims = Claims {
            subject: "ci".into(),
            scopes: Scopes::USER,
            expires: Timestamp::from_millis((NOW + 5) * 1000),
            id: Some("cmx_1".into()),
        };
        let made = signer().mint(&claims, now());
        assert_eq!(verify(made.expose()), Ok(claims.clone()));
        let other = Signer::new(&Secret::new(SECRET.to_uppercase()), "wundr-orchestrator", "wundr-daemon");
        assert_eq!(other.unwrap().verify(made.expose(), now()), Err(Refusal::SignatureInvalid));
        assert!(Signer::new(&Secret::new(&SECRET[1..]), "", "").is_err(), "31 bytes");
        assert!(!format!("{:?}", signer()).contains("0123"), "no key is printed");
    }

    #[test]
    fn no_other_algorithm_is_let_in() {
        let payload = good().to_string();
        for alg in
            ["none", "None", "NONE", "", "RS256", "HS512", "HS384", "hs256", "Hs256", "HS256 ", "ES256"]
        {
            let header = json!({"alg": alg, "typ": "JWT"}).to_string();
            let signed = token(&header, &payload);
            assert_eq!(refused(&signed), Refusal::AlgorithmUnsupported, "{alg}");
            let (unsigned, _) = signed.rsplit_once('.').unwrap();
            assert_eq!(refused(&format!("{unsigned}.")), Refusal::AlgorithmUnsupported, "{alg}");
        }
        for header in [
            "{}",
            "[]",
            r#"["HS256"]"#,
            "null",
            r#""HS256""#,
            r#"{"alg":null}"#,
            r#"{"alg":["HS256"]}"#,
            r#"{"alg":1}"#,
            r#"{"ALG":"HS256"}"#,
            r#"{"alg":"HS256"}}"#,
            r#"{"alg":"HS256"} x"#,
            "",
            "{",
            r#"{"alg":"HS256","alg":"none"}"#,
            r#"{"alg":"none","alg":"HS256"}"#,
            r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
            r#"{"alg":"HS256","crit":null}"#,
        ] {
            assert_eq!(refused(&token(header, &payload)), Refusal::HeaderInvalid, "{header}");
        }
        // What names a key somewhere else is not followed.
        verify(&token(r#"{"alg":"HS256","kid":"../../dev/null","jku":"http://evil"}"#, &payload)).unwrap();
    }

    #[test]
    fn whatever_is_changed_is_noticed() {
        let whole = of(&good());
        let parts: Vec<&str> = whole.split('.').collect();
        for at in 0..whole.len() {
            for replacement in ['A', '_', '.', '=', '+', '\u{0}'] {
                if whole.as_bytes()[at] == replacement as u8 {
                    continue;
                }
                let mut changed = whole.clone();
                changed.replace_range(at..=at, &replacement.to_string());
                assert!(verify(&changed).is_err(), "{at}: {changed}");
            }
            let mut shorter = whole.clone();
            shorter.remove(at);
            assert!(verify(&shorter).is_err(), "{shorter}");
        }
        let richer = URL_SAFE_NO_PAD.encode(with(json!({"scopes": ["daemon.admin"]})).to_string());
        assert_eq!(refused(&format!("{}.{richer}.{}", parts[0], parts[2])), Refusal::SignatureInvalid);
        for signature in ["", "AAAA", &parts[2][1..], &format!("{}AAAA", parts[2]), parts[1]] {
            let signature = format!("{}.{}.{signature}", parts[0], parts[1]);
            assert_eq!(refused(&signature), Refusal::SignatureInvalid);
        }
        // Of several faults the first in the order is told.
        let expired = of(&with(json!({"exp": 1, "iss": "x", "aud": "y"})));
        assert!(matches!(refused(&expired), Refusal::Expired { .. }));
        assert_eq!(refused(&of(&with(json!({"iss": "x", "aud": "y"})))), Refusal::IssuerMismatch);
        let forged = format!("{}.{}.AAAA", parts[0], URL_SAFE_NO_PAD.encode("not json"));
        assert_eq!(refused(&forged), Refusal::SignatureInvalid, "no payload is read unsigned");
    }

    #[test]
    fn its_outer_form_is_strict() {
        let whole = of(&good());
        let parts: Vec<&str> = whole.split('.').collect();
        let (header, payload, signature) = (parts[0], parts[1], parts[2]);
        for text in
            ["", ".", "a", "a.b", &format!("{whole}."), &format!(".{whole}"), &format!("{whole}.{signature}")]
        {
            assert_eq!(refused(text), Refusal::Malformed, "{text}");
        }
        assert_eq!(refused(".."), Refusal::HeaderInvalid);
        assert_eq!(refused(&format!("{header}=.{payload}.{signature}")), Refusal::HeaderInvalid, "padding");
        assert_eq!(refused(&format!(" {whole}")), Refusal::HeaderInvalid);
        assert_eq!(refused(&format!("{whole}=")), Refusal::SignatureInvalid, "padding");
        assert_eq!(refused(&format!("{whole}\n")), Refusal::SignatureInvalid);
        // 43 characters carry 258 bits, two of them stray.
        let last = signature.chars().last().unwrap();
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let stray = alphabet.chars().nth(alphabet.find(last).unwrap() | 1).unwrap();
        let respelled = format!("{header}.{payload}.{}{stray}", &signature[..signature.len() - 1]);
        assert_eq!(refused(&respelled), Refusal::SignatureInvalid);
        // The other alphabet spells the same bytes and is another spelling.
        let odd = (0..200)
            .map(|n| of(&with(json!({ "n": n }))))
            .find(|token| token.rsplit('.').next().unwrap().contains(['-', '_']))
            .unwrap();
        let (signed, signature) = odd.rsplit_once('.').unwrap();
        let standard = format!("{signed}.{}", signature.replace('-', "+").replace('_', "/"));
        assert_eq!(refused(&standard), Refusal::SignatureInvalid);
        let long = with(json!({"claims": {"x": "x".repeat(BYTES_MAX)}}));
        assert_eq!(refused(&of(&long)), Refusal::Malformed, "longer than is looked at");
        assert_eq!(refused(&"a.b.c".repeat(1 << 20)), Refusal::Malformed);
        let fits = with(json!({"claims": {"x": "x".repeat(BYTES_MAX / 2)}}));
        verify(&of(&fits)).unwrap();
    }

    #[test]
    fn the_payload_is_one_object_of_json() {
        let good = good().to_string();
        for payload in
            ["", "{", &good[1..], &format!("{good}x"), &format!("{good}{good}"), &good.replace("60", "6e999")]
        {
            assert_eq!(refused(&token(r#"{"alg":"HS256"}"#, payload)), Refusal::PayloadInvalid, "{payload}");
        }
        let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
        let nested = good.replacen('{', &format!("{{\"x\":{deep},"), 1);
        assert_eq!(refused(&token(r#"{"alg":"HS256"}"#, &nested)), Refusal::PayloadInvalid, "nested");
        let list = r#"["alice","wundr-orchestrator","wundr-daemon",1700000000,1700000060]"#;
        for payload in ["null", "1", "[]", list, r#""x""#] {
            let refusal = refused(&token(r#"{"alg":"HS256"}"#, payload));
            assert_eq!(refusal, Refusal::PayloadSchemaInvalid, "{payload}");
        }
        for twice in [r#"{"sub":"root","#, r#"{"exp":99999999999,"#, r#"{"scopes":["daemon.admin"],"#] {
            let payload = good.replacen('{', twice, 1);
            let refusal = refused(&token(r#"{"alg":"HS256"}"#, &payload));
            assert_eq!(refusal, Refusal::PayloadSchemaInvalid, "{payload}");
        }
        let invalid = URL_SAFE_NO_PAD.encode(b"\xff\xfe");
        let signed = format!("{}.{invalid}", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#));
        let signature = signer().mac.clone().chain_update(signed.as_bytes()).finalize().into_bytes();
        let signature = URL_SAFE_NO_PAD.encode(signature);
        assert_eq!(refused(&format!("{signed}.{signature}")), Refusal::PayloadInvalid, "not UTF-8");
    }

    #[test]
    fn every_claim_is_there_and_of_its_type() {
        for name in ["sub", "iss", "aud", "iat", "exp"] {
            assert_eq!(refused(&of(&without(name))), Refusal::PayloadSchemaInvalid, "without {name}");
            for value in [json!(null), json!([]), json!({}), json!(true)] {
                let claims = with(json!({ name: value }));
                assert_eq!(refused(&of(&claims)), Refusal::PayloadSchemaInvalid, "{claims}");
            }
        }
        for bad in [
            json!({"aud": ["wundr-daemon"]}),
            json!({"aud": ["wundr-daemon", "other"]}),
            json!({"exp": "1700000060"}),
            json!({"iat": "1700000000"}),
            json!({"exp": 1e300}),
            json!({"exp": u64::MAX}),
            json!({"iat": -1e300}),
            json!({"sub": ""}),
            json!({"sub": "x".repeat(SUBJECT_BYTES_MAX + 1)}),
            json!({"sub": "a\u{1b}[2J"}),
            json!({"sub": 7}),
            json!({"scopes": "daemon.admin"}),
            json!({"scopes": null}),
            json!({"scopes": [1]}),
            json!({"scopes": [["daemon.admin"]]}),
            json!({"claims": null}),
            json!({"claims": []}),
            json!({"nbf": null}),
            json!({"nbf": "1700000000"}),
            json!({"nbf": 1e300}),
        ] {
            assert_eq!(refused(&of(&with(bad.clone()))), Refusal::PayloadSchemaInvalid, "{bad}");
        }
        for fine in [
            json!({"claims": {"any": [1, {"deep": null}]}}),
            json!({"nbf": NOW - 1000}),
            json!({"jti": 7}),
            json!({"iat": -5}),
            json!({"unknown": null}),
        ] {
            verify(&of(&with(fine))).unwrap();
        }
        assert_eq!(refused(&of(&with(json!({"iss": "Wundr-orchestrator"})))), Refusal::IssuerMismatch);
        assert_eq!(refused(&of(&with(json!({"aud": "wundr-daemon "})))), Refusal::AudienceMismatch);
    }

    #[test]
    fn what_begins_later_is_refused_but_for_clocks_that_differ() {
        let leeway = LEEWAY.as_secs();
        for name in ["iat", "nbf"] {
            verify(&of(&with(json!({ name: NOW + leeway })))).unwrap();
            for late in [json!(NOW + leeway + 1), json!(NOW as f64 + leeway as f64 + 0.5), json!(NOW * 2)] {
                let claims = with(json!({ name: late, "exp": NOW * 3 }));
                assert_eq!(refused(&of(&claims)), Refusal::NotYetValid, "{claims}");
            }
        }
        let claims = with(json!({"nbf": NOW - 5, "iat": NOW + 3600, "exp": NOW + 7200}));
        assert_eq!(refused(&of(&claims)), Refusal::NotYetValid, "either counts");
    }

    #[test]
    fn a_life_has_an_end_where_one_is_configured() {
        const DAY: u64 = 86_400;
        let signer = signer().with_life_max(Some(Duration::from_secs(DAY)));
        let lives = |iat: u64, exp: u64| {
            signer.verify(&of(&with(json!({ "iat": iat, "exp": exp }))), now()).map(|_| ())
        };
        assert_eq!(lives(NOW, NOW + DAY), Ok(()));
        assert_eq!(lives(NOW - 10, NOW + DAY), Err(Refusal::LifeTooLong));
        assert_eq!(lives(NOW, NOW + DAY + 1), Err(Refusal::LifeTooLong));
        assert_eq!(lives(0, NOW + 60), Err(Refusal::LifeTooLong), "however old it says it is");
        verify(&of(&with(json!({"exp": NOW * 2})))).expect("as long as it says, where nothing is configured");
    }

    #[test]
    fn it_expires_at_its_very_second() {
        let at = |exp: Value, now_ms: u64| {
            signer().verify(&of(&with(json!({ "exp": exp }))), Timestamp::from_millis(now_ms)).map(|_| ())
        };
        let expired = |at_ms| Err(Refusal::Expired { at: Timestamp::from_millis(at_ms) });
        assert_eq!(at(json!(NOW), NOW * 1000 - 1), Ok(()));
        assert_eq!(at(json!(NOW), NOW * 1000), expired(NOW * 1000));
        assert_eq!(at(json!(NOW), NOW * 1000 + 999), expired(NOW * 1000));
        assert_eq!(at(json!(1_700_000_000.5), NOW * 1000 + 499), Ok(()));
        assert_eq!(at(json!(1_700_000_000.5), NOW * 1000 + 500), expired(NOW * 1000 + 500));
        for past in [json!(0), json!(-1), json!(-0.0), json!(1e-3), json!(-8.64e12)] {
            assert!(matches!(at(past.clone(), NOW * 1000), Err(Refusal::Expired { .. })), "{past}");
        }
        assert_eq!(at(json!(8.64e12), NOW * 1000), Ok(()));
    }

    proptest! {
        #[test]
        fn no_text_panics_or_holds(text in any::<String>(), header in any::<Vec<u8>>(), payload in any::<Vec<u8>>()) {
            prop_assert!(verify(&text).is_err());
            let [header, payload] = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part));
            let forged = format!("{header}.{payload}.{payload}");
            prop_assert!(verify(&forged).is_err());
        }

        /// Also well signed: only what says all of it holds.
        #[test]
        fn no_signed_payload_panics(payload in any::<String>(), key in "[a-z]{1,6}", value in any::<i64>()) {
            let signed = token(r#"{"alg":"HS256"}"#, &payload);
            prop_assert!(verify(&signed).is_err());
            let _ = verify(&of(&with(json!({ key: value }))));
        }
    }
}
