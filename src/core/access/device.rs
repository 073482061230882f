//! A device proves that it holds its key: the Ed25519 signature over what it says in `connect`.
//!
//! A device is named by its public key: its id is the SHA-256 of the raw key in lower-case
//! hexadecimal digits. What it signs is one line, its parts joined by `|`:
//!
//! | payload | parts | accepted |
//! |---|---|---|
//! | `v1` | id, client id, mode, role, scopes joined by `,`, signed at (ms), token | over loopback, where the client knows no nonce |
//! | `v2` | the same, then the nonce of this connection | always |
//! | `v3` | the same, then platform and device family, trimmed and in lower case | always |
//!
//! The scopes and the token are those of the very request, so neither can be exchanged, and with the
//! nonce nothing can be said again on another connection. Parts are not escaped: one that holds a
//! separator could be read in two ways and makes the signature void.
//!
//! Deliberately absent: whether the device may come in. That is [`pairing`](super::pairing)'s.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ed25519_dalek::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::hex::hex;
use crate::time::Timestamp;

/// How far the clock of a device may be off ours.
pub const SKEW_MAX: Duration = Duration::from_secs(10 * 60);

/// What stands in front of a raw Ed25519 key in its DER form.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// What a client says of its device, with everything the signature is over. Not checked yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proof<'a> {
    /// The device id that the client claims: SHA-256 of its public key.
    pub id: &'a str,
    /// Its public key: base64url of the raw 32 bytes, ordinary base64 of them, or PEM.
    pub public_key: &'a str,
    /// The signature: base64url, or ordinary base64, of 64 bytes.
    pub signature: &'a str,
    /// When it signed, in milliseconds since 1970; none where that is no such number.
    pub signed_at_ms: Option<u64>,
    /// The nonce it was given, as it says.
    pub nonce: Option<&'a str>,
    /// `client.id` of the request.
    pub client_id: &'a str,
    /// `client.mode` of the request.
    pub mode: &'a str,
    /// The role asked for, as it is in the request (or what a missing one stands for).
    pub role: &'a str,
    /// The scopes, as they are in the request.
    pub scopes: &'a [String],
    /// The token of the request: `auth.token`, else `auth.deviceToken`, else `auth.bootstrapToken`.
    pub token: Option<&'a str>,
    /// `client.platform` of the request.
    pub platform: Option<&'a str>,
    /// `client.deviceFamily` of the request.
    pub device_family: Option<&'a str>,
}

/// What it is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// The nonce this connection was given.
    pub nonce: &'a str,
    /// Whether the peer came over loopback to a socket that nobody else can reach.
    pub is_loopback: bool,
    /// The time of the check.
    pub now: Timestamp,
}

/// A device that holds the key it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The device's id.
    pub id: Arc<str>,
    /// The device's Ed25519 public key.
    pub public_key: [u8; 32],
}

/// Why a proof is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The id is not that of the key, or there is no key that can be read.
    IdMismatch,
    /// It was signed too long ago, or will be signed some day.
    Expired,
    /// There is no nonce, and the peer is not on this host.
    NonceMissing,
    /// It is the nonce of another connection.
    NonceMismatch,
    /// The signature is not that of the key over what was asked.
    SignatureInvalid,
    /// The key is none that can sign.
    PublicKeyInvalid,
}

impl Refusal {
    /// Every refusal, in the order in which they are looked for.
    pub const ALL: [Self; 6] = [
        Self::IdMismatch,
        Self::Expired,
        Self::NonceMissing,
        Self::NonceMismatch,
        Self::PublicKeyInvalid,
        Self::SignatureInvalid,
    ];

    /// What people and clients of protocol 3 are told; also the reason of the Close.
    pub const fn message(self) -> &'static str {
        match self {
            Self::IdMismatch => "device identity mismatch",
            Self::Expired => "device signature expired",
            Self::NonceMissing => "device nonce required",
            Self::NonceMismatch => "device nonce mismatch",
            Self::SignatureInvalid => "device signature invalid",
            Self::PublicKeyInvalid => "device public key invalid",
        }
    }

    /// `details.code`, by which clients of protocol 4 know it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::IdMismatch => "DEVICE_AUTH_DEVICE_ID_MISMATCH",
            Self::Expired => "DEVICE_AUTH_SIGNATURE_EXPIRED",
            Self::NonceMissing => "DEVICE_AUTH_NONCE_REQUIRED",
            Self::NonceMismatch => "DEVICE_AUTH_NONCE_MISMATCH",
            Self::SignatureInvalid => "DEVICE_AUTH_SIGNATURE_INVALID",
            Self::PublicKeyInvalid => "DEVICE_AUTH_PUBLIC_KEY_INVALID",
        }
    }

    /// `details.reason`, beside the code.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::IdMismatch => "device-id-mismatch",
            Self::Expired => "device-signature-stale",
            Self::NonceMissing => "device-nonce-missing",
            Self::NonceMismatch => "device-nonce-mismatch",
            Self::SignatureInvalid => "device-signature",
            Self::PublicKeyInvalid => "device-public-key",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

/// Checks a proof.
///
/// # Errors
/// The first thing that is wrong with it, in the order of [`Refusal::ALL`].
pub fn check(proof: &Proof<'_>, around: &Circumstances<'_>) -> Result<Checked, Refusal> {
    let public_key = public_key(proof.public_key).ok_or(Refusal::IdMismatch)?;
    let id = id_of(&public_key);
    if id != proof.id {
        return Err(Refusal::IdMismatch);
    }
    let signed = proof.signed_at_ms.map(Timestamp::from_millis).ok_or(Refusal::Expired)?;
    if around.now.since(signed) > SKEW_MAX || signed.since(around.now) > SKEW_MAX {
        return Err(Refusal::Expired);
    }
    let nonce = proof.nonce.map(trimmed).filter(|nonce| !nonce.is_empty());
    match nonce {
        None if !around.is_loopback => return Err(Refusal::NonceMissing),
        Some(nonce) if nonce != around.nonce => return Err(Refusal::NonceMismatch),
        _ => {}
    }
    let key = VerifyingKey::from_bytes(&public_key).map_err(|_| Refusal::PublicKeyInvalid)?;
    if key.is_weak() {
        return Err(Refusal::PublicKeyInvalid);
    }
    let signature = decoded(proof.signature)
        .and_then(|bytes| Signature::from_slice(&bytes).ok())
        .ok_or(Refusal::SignatureInvalid)?;
    let is_signed = payloads(proof, &id, nonce)
        .into_iter()
        .any(|payload| key.verify_strict(payload.as_bytes(), &signature).is_ok());
    if is_signed { Ok(Checked { id: id.into(), public_key }) } else { Err(Refusal::SignatureInvalid) }
}

/// The id of the device with this key.
pub fn id_of(public_key: &[u8; 32]) -> String {
    hex(&Sha256::digest(public_key))
}

/// A key as clients write it: base64url without padding.
pub fn public_key_text(public_key: &[u8; 32]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(public_key)
}

/// The lines that it may have signed; none where one of the parts holds a separator.
fn payloads(proof: &Proof<'_>, id: &str, nonce: Option<&str>) -> Vec<String> {
    let platform = lowered(proof.platform);
    let family = lowered(proof.device_family);
    let parts = [proof.client_id, proof.mode, proof.role, nonce.unwrap_or_default(), &platform, &family];
    if parts.iter().any(|part| part.contains('|')) || proof.scopes.iter().any(|s| s.contains(['|', ','])) {
        return Vec::new();
    }
    let common = format!(
        "{id}|{}|{}|{}|{}|{}|{}",
        proof.client_id,
        proof.mode,
        proof.role,
        proof.scopes.join(","),
        proof.signed_at_ms.unwrap_or_default(),
        proof.token.unwrap_or_default(),
    );
    match nonce {
        Some(nonce) => {
            vec![format!("v3|{common}|{nonce}|{platform}|{family}"), format!("v2|{common}|{nonce}")]
        }
        None => vec![format!("v1|{common}")],
    }
}

/// The raw key: 32 bytes.
fn public_key(text: &str) -> Option<[u8; 32]> {
    let Some((_, pem)) = text.split_once("-----BEGIN PUBLIC KEY-----") else {
        return decoded(text)?.try_into().ok();
    };
    let body: String = pem.split_once("-----END PUBLIC KEY-----")?.0.split_ascii_whitespace().collect();
    decoded(&body)?.strip_prefix(&SPKI_PREFIX)?.try_into().ok()
}

/// Base64 in either alphabet, with its padding or without.
fn decoded(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
    const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
    let engine = if text.contains(['+', '/']) { STANDARD } else { URL };
    engine.decode(text).ok()
}

fn lowered(text: Option<&str>) -> String {
    trimmed(text.unwrap_or_default()).to_ascii_lowercase()
}

/// Without what JavaScript takes for white space around it.
fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| (c.is_whitespace() && c != '\u{85}') || c == '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::{Signer, SigningKey};
    use proptest::prelude::*;

    const NOW: u64 = 1_795_292_306_475;
    const NONCE: &str = "7f3c1a52-0a2b-4b19-9f6d-3f0a9c6e1d11";

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.into()).collect()
    }

    fn around(nonce: &str, is_loopback: bool, now: u64) -> Circumstances<'_> {
        Circumstances { nonce, is_loopback, now: Timestamp::from_millis(now) }
    }

    /// Made with the `crypto` module of Node.js, the keys from seeds of one byte repeated.
    #[test]
    fn what_another_implementation_signed_is_accepted() {
        let v1_scopes = texts(&["operator.admin"]);
        let v1 = Proof {
            id: "34750f98bd59fcfc946da45aaabe933be154a4b5094e1c4abf42866505f3c97e",
            public_key: "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w",
            signature: "zRxBaAM9CaHeOWiOpzBjS53ew4kgeNz0HpnllxYMR69JkquW-HvL88KlP6uCvrt0gF6xjbT5Ag5Dx86bWcwHBg",
            signed_at_ms: Some(NOW),
            client_id: "cli",
            mode: "cli",
            role: "operator",
            scopes: &v1_scopes,
            token: Some("s3cret-token-0123"),
            ..Proof::default()
        };
        check(&v1, &around(NONCE, true, NOW)).unwrap();
        assert_eq!(check(&v1, &around(NONCE, false, NOW)), Err(Refusal::NonceMissing));
        assert_eq!(
            check(&Proof { nonce: Some(NONCE), ..v1 }, &around(NONCE, true, NOW)),
            Err(Refusal::SignatureInvalid),
            "a v1 signature is not one of a connection with a nonce"
        );

        let v2_scopes = texts(&["operator.admin", "operator.approvals", "operator.pairing"]);
        let v2 = Proof {
            id: "6a3803d5f059902a1c6dafbc9ba4729212f7caac08634cc3ae76b27529f03827",
            public_key: "gTl3Dqh9F19Wo1Rmw0x-zMuNipG07jeiXfYPW4_Js5Q",
            signature: "O8H8aMbTVsVG_SgueuesTBcWm-iL2QpjClRoY2IZ-hLizWuP2WzN1d4f01Hj0sew3S9589hhDTo0m4jMuCxTDw",
            signed_at_ms: Some(NOW),
            nonce: Some(NONCE),
            client_id: "clawdbot-control-ui",
            mode: "webchat",
            role: "operator",
            scopes: &v2_scopes,
            token: Some("s3cret-token-0123"),
            platform: Some("Linux x86_64"),
            ..Proof::default()
        };
        let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAgTl3Dqh9F19Wo1Rmw0x+zMuNipG07jeiXfYPW4/Js5Q=\n-----END PUBLIC KEY-----\n";
        let crlf = pem.replace('\n', "\r\n");
        for public_key in [v2.public_key, "gTl3Dqh9F19Wo1Rmw0x+zMuNipG07jeiXfYPW4/Js5Q=", pem, &crlf] {
            for is_loopback in [true, false] {
                let checked = check(&Proof { public_key, ..v2 }, &around(NONCE, is_loopback, NOW)).unwrap();
                assert_eq!(
                    (&*checked.id, public_key_text(&checked.public_key).as_str()),
                    (v2.id, v2.public_key)
                );
            }
        }

        let v3_scopes = texts(&["operator.admin", "operator.read"]);
        let v3 = Proof {
            id: "b62e867fa2f33afe62d5d6b1642e1621d543307846b2a57b897e710919b76709",
            public_key: "7UkoxijRwsbq6QM4kFmVYSlZJzpcY_k2NsFGFKyHN9E",
            signature: "2ykTPVXsoEILUEmDyQ6KzkRMnhx7oHuKsOk6zmndlfqp6q03rfqwm3hL8QskHd2g5-LbuJNDLP64PatSSi2cBQ",
            signed_at_ms: Some(NOW),
            nonce: Some(NONCE),
            client_id: "openclaw-tui",
            mode: "ui",
            role: "operator",
            scopes: &v3_scopes,
            token: None,
            platform: Some(" Linux İ\u{feff}"),
            device_family: Some("MacOS "),
        };
        check(&v3, &around(NONCE, false, NOW)).unwrap();

        let bare = Proof {
            id: "c5b940ed3f65c391965de8295fc5d25f474fa57b48d36eb10ad363b8539c1b79",
            public_key: "ypOsFwUYcHHWe4PH_w7-gQjo7EUwV113JoeTM9vavnw",
            signature: "9zEeKRMA_XkkiwJKOw0z5OjVApVryLUhthfK9S2y2TX0tz1AK3-I4ubspt8q45BpSgrLwWJQ7_AuQxV4PwzqAQ",
            signed_at_ms: Some(0),
            nonce: Some("n"),
            client_id: "node-host",
            mode: "node",
            role: "node",
            token: Some("a|b"),
            ..Proof::default()
        };
        check(&bare, &around("n", false, 600_000)).unwrap();
        assert_eq!(check(&bare, &around("n", false, 600_001)), Err(Refusal::Expired));
    }

    #[test]
    fn what_real_clients_sent_is_accepted() {
        let recorded = [
            // `clawdbot devices list`, 2026.1.24-3
            (
                "cli",
                "cli",
                &["operator.admin", "operator.approvals", "operator.pairing"][..],
                None,
                "6342b1c919bfa877405236886129f66be6e243e8976c666df5245efec4bea174",
                "zISvgNw4x-VoeyZ98ipuWqgMdXiSiKa7M-5L6hoZeNg",
                "48Pg7f68jlxWx5LcV15g02t8rjZ1pCMfw_SKdfQ5t5ljkp1laCC-r-jXJMHSmxfpao9RxQcs9VLwKAZIA--jCw",
                1795328288402,
            ),
            // openclaw-node 0.14.0
            (
                "gateway-client",
                "backend",
                &["operator.read", "operator.write"][..],
                None,
                "b1a8fe1a5cf821f22076b3ada93f472fff7f4f64fbd9a0dce2a0702686a59fac",
                "WKtgMlLucr_ZgmhH1MD2bmVsB-Otok0mmCQoDMMhO6E",
                "iFnq2Dgt-M3SvvTEHnHtyoj8NZQx1fnzakztKvv9y0NinOeJ1RCmusW_-ZbddVTVEkJZqmBj4dDvzpUApDaZBA",
                1795324765780,
            ),
            // `openclaw tui`, 2026.9.6
            (
                "openclaw-tui",
                "ui",
                &["operator.admin", "operator.read", "operator.write", "operator.approvals"][..],
                Some("Linux"),
                "686c5b7c4f34608c0ea60ed9bf2f1c21771a6ab80671a3c514b442428fca9b52",
                "h6knj77X1ab3kxlFSGKX6ry1bWiXMGqjopqYy3k1QrY",
                "TTjlEughdXtQss43iOgN1yQ-ev9OcWuoKhpDAdC8N4PL9WHfrGlJ6iFVsnwRJkiAEJpmS_7eJVakZ4XRt1fEBg",
                1795324772698,
            ),
        ];
        for (client_id, mode, scopes, device_family, id, public_key, signature, at) in recorded {
            let scopes = texts(scopes);
            let proof = Proof {
                id,
                public_key,
                signature,
                signed_at_ms: Some(at),
                nonce: Some("5a0c3a3e-6a0b-4f0b-8a53-2b6a3f0d9c77"),
                client_id,
                mode,
                role: "operator",
                scopes: &scopes,
                token: Some("t3st-token-abcdef"),
                platform: Some("linux"),
                device_family,
            };
            let here = around("5a0c3a3e-6a0b-4f0b-8a53-2b6a3f0d9c77", false, at);
            assert_eq!(
                check(&proof, &here).map(|checked| checked.id.to_string()),
                Ok(id.to_owned()),
                "{client_id}"
            );
            let other = Proof { token: Some("t3st-token-abcdeg"), ..proof };
            assert_eq!(check(&other, &here), Err(Refusal::SignatureInvalid), "{client_id}");
        }
    }

    /// A request of one's own, with what it is over owned.
    #[derive(Clone, Debug)]
    struct Owned {
        key: [u8; 32],
        id: String,
        public_key: String,
        signature: String,
        signed_at_ms: u64,
        nonce: Option<String>,
        client_id: String,
        mode: String,
        role: String,
        scopes: Vec<String>,
        token: Option<String>,
        platform: Option<String>,
        device_family: Option<String>,
    }

    impl Owned {
        fn new(seed: u8) -> Self {
            let key = [seed; 32];
            let public = SigningKey::from_bytes(&key).verifying_key().to_bytes();
            let mut owned = Self {
                key,
                id: id_of(&public),
                public_key: public_key_text(&public),
                signature: String::new(),
                signed_at_ms: NOW,
                nonce: Some(NONCE.into()),
                client_id: "cli".into(),
                mode: "cli".into(),
                role: "operator".into(),
                scopes: texts(&["operator.read", "operator.write"]),
                token: Some("the-token-of-all".into()),
                platform: Some("linux".into()),
                device_family: None,
            };
            owned.sign(0);
            owned
        }

        fn proof(&self) -> Proof<'_> {
            Proof {
                id: &self.id,
                public_key: &self.public_key,
                signature: &self.signature,
                signed_at_ms: Some(self.signed_at_ms),
                nonce: self.nonce.as_deref(),
                client_id: &self.client_id,
                mode: &self.mode,
                role: &self.role,
                scopes: &self.scopes,
                token: self.token.as_deref(),
                platform: self.platform.as_deref(),
                device_family: self.device_family.as_deref(),
            }
        }

        /// Signs the payload at this place of those that are accepted.
        fn sign(&mut self, at: usize) {
            let lines = payloads(&self.proof(), &self.id, self.nonce.as_deref());
            let signature = SigningKey::from_bytes(&self.key).sign(lines[at].as_bytes());
            self.signature = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(signature.to_bytes());
        }
    }

    #[test]
    fn each_fault_has_its_refusal_and_the_first_is_told() {
        let good = Owned::new(7);
        let here = around(NONCE, false, NOW);
        check(&good.proof(), &here).unwrap();
        let other = Owned::new(8);
        let late = NOW + 600_001;
        let upper = good.id.to_uppercase();
        let (early, far) = (NOW - 600_001, u64::MAX);
        let cases: Vec<(&str, Proof<'_>, Circumstances<'_>, Refusal)> = vec![
            ("another's id", Proof { id: &other.id, ..good.proof() }, here, Refusal::IdMismatch),
            (
                "another's key",
                Proof { public_key: &other.public_key, ..good.proof() },
                here,
                Refusal::IdMismatch,
            ),
            ("no key", Proof { public_key: "", ..good.proof() }, here, Refusal::IdMismatch),
            ("no base64", Proof { public_key: "İİİİ", ..good.proof() }, here, Refusal::IdMismatch),
            (
                "half a PEM",
                Proof { public_key: "-----BEGIN PUBLIC KEY-----", ..good.proof() },
                here,
                Refusal::IdMismatch,
            ),
            ("upper case", Proof { id: &upper, ..good.proof() }, here, Refusal::IdMismatch),
            ("no time", Proof { signed_at_ms: None, ..good.proof() }, here, Refusal::Expired),
            ("late", good.proof(), around(NONCE, false, late), Refusal::Expired),
            ("early", good.proof(), around(NONCE, false, early), Refusal::Expired),
            ("end of time", Proof { signed_at_ms: Some(far), ..good.proof() }, here, Refusal::Expired),
            ("no nonce", Proof { nonce: None, ..good.proof() }, here, Refusal::NonceMissing),
            ("blank nonce", Proof { nonce: Some(" \t"), ..good.proof() }, here, Refusal::NonceMissing),
            ("other nonce", Proof { nonce: Some("other"), ..good.proof() }, here, Refusal::NonceMismatch),
            ("replayed", good.proof(), around("next", false, NOW), Refusal::NonceMismatch),
            ("no signature", Proof { signature: "", ..good.proof() }, here, Refusal::SignatureInvalid),
            (
                "another's",
                Proof { signature: &other.signature, ..good.proof() },
                here,
                Refusal::SignatureInvalid,
            ),
        ]
        .into_iter()
        .collect();
        for (what, proof, around, refusal) in cases {
            assert_eq!(check(&proof, &around), Err(refusal), "{what}");
        }
    }

    #[test]
    fn a_key_of_small_order_signs_nothing() {
        // The neutral element: every signature with R = sB would hold under a lenient check.
        let mut weak = [0; 32];
        weak[0] = 1;
        let mut owned = Owned::new(9);
        (owned.id, owned.public_key) = (id_of(&weak), public_key_text(&weak));
        assert_eq!(check(&owned.proof(), &around(NONCE, false, NOW)), Err(Refusal::PublicKeyInvalid));
        // No point of the curve.
        weak[0] = 2;
        (owned.id, owned.public_key) = (id_of(&weak), public_key_text(&weak));
        assert_eq!(check(&owned.proof(), &around(NONCE, false, NOW)), Err(Refusal::PublicKeyInvalid));
    }

    #[test]
    fn parts_that_can_be_read_in_two_ways_are_not_signed() {
        let here = around(NONCE, false, NOW);
        let mut owned = Owned::new(3);
        owned.scopes = texts(&["operator.read,operator.admin"]);
        let line = format!(
            "v2|{}|cli|cli|operator|operator.read,operator.admin|{NOW}|the-token-of-all|{NONCE}",
            owned.id
        );
        let signature = SigningKey::from_bytes(&owned.key).sign(line.as_bytes());
        owned.signature = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(signature.to_bytes());
        assert_eq!(check(&owned.proof(), &here), Err(Refusal::SignatureInvalid));
        owned.scopes = texts(&["operator.read", "operator.admin"]);
        check(&owned.proof(), &here).unwrap();
        for part in ["a|b", "|"] {
            let mut owned = owned.clone();
            owned.mode = part.into();
            assert_eq!(check(&owned.proof(), &here), Err(Refusal::SignatureInvalid));
        }
    }

    fn word() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z.]{0,12}",
            "\\PC{0,12}",
            Just("operator.admin".to_owned()),
            Just("İ|,\u{0}".to_owned())
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever part of a signed request is another, the signature does not hold for it.
        #[test]
        fn no_part_can_be_exchanged(which in 0..9_usize, payload in 0..2_usize, text in word(), more in word()) {
            let mut owned = Owned::new(5);
            owned.sign(payload);
            let here = around(NONCE, true, NOW);
            prop_assert!(check(&owned.proof(), &here).is_ok());
            let signed = payloads(&owned.proof(), &owned.id, owned.nonce.as_deref())[payload].clone();
            match which {
                0 => owned.client_id = text,
                1 => owned.mode = text,
                2 => owned.role = text,
                3 => owned.scopes = vec![text, more],
                4 => owned.scopes.clear(),
                5 => owned.signed_at_ms += 1,
                6 => owned.token = Some(text),
                7 => owned.nonce = None,
                _ => (owned.platform, owned.device_family) = (Some(text), Some(more)),
            }
            let same = payloads(&owned.proof(), &owned.id, owned.nonce.as_deref()).contains(&signed);
            prop_assert_eq!(check(&owned.proof(), &here).is_ok(), same, "{:?}", owned);
            prop_assert!(!same || [0, 1, 2, 6].contains(&which) || which == 8, "{:?}", owned);
        }

        /// No bytes in any field end in anything but a refusal.
        #[test]
        fn anything_is_refused(id in word(), key in word(), signature in word(), nonce in word(), at in any::<u64>()) {
            let proof = Proof {
                id: &id, public_key: &key, signature: &signature, nonce: Some(&nonce), signed_at_ms: Some(at),
                ..Proof::default()
            };
            prop_assert!(check(&proof, &around(NONCE, false, NOW)).is_err());
        }

        /// One bit of the signature more or less.
        #[test]
        fn no_bit_of_the_signature_is_free(bit in 0..512_usize) {
            let mut owned = Owned::new(6);
            let mut bytes = decoded(&owned.signature).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            owned.signature = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&bytes);
            prop_assert_eq!(check(&owned.proof(), &around(NONCE, false, NOW)), Err(Refusal::SignatureInvalid));
        }
    }
}
