//! Who vouches for a plugin: the Ed25519 signature over its manifest, which names the digest of its module.
//!
//! It stands beside the manifest, in `NAME.toml.sig`: one line with the public key and the signature, both in
//! base64.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{SIGNATURE_LENGTH, Signature, Signer as _, SigningKey, VerifyingKey};

/// What every signature of a manifest is over besides the manifest: it is one for nothing else.
const CONTEXT: &[u8] = b"clawmux plugin manifest 1\n";

/// The bytes of a secret key.
pub const SECRET_KEY_BYTES: usize = 32;

/// A public key, in text the base64 of its 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads a key.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes: Option<[u8; 32]> =
            STANDARD.decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
        let key = bytes.and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok()).filter(|key| !key.is_weak());
        key.map(Self).ok_or_else(|| "expected the base64 of an Ed25519 public key".to_owned())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The public key of a secret one.
pub fn public_key(secret: &[u8; SECRET_KEY_BYTES]) -> PublicKey {
    PublicKey(SigningKey::from_bytes(secret).verifying_key())
}

/// The text of `NAME.toml.sig` for this manifest.
pub fn sign(secret: &[u8; SECRET_KEY_BYTES], manifest: &[u8]) -> String {
    let key = SigningKey::from_bytes(secret);
    let signature = key.sign(&message(manifest));
    format!("{} {}\n", public_key(secret), STANDARD.encode(signature.to_bytes()))
}

/// Whose signature of this manifest `text` is.
///
/// # Errors
/// Why it is nobody's.
pub fn signer(text: &str, manifest: &[u8]) -> Result<PublicKey, String> {
    let bad = || "it is not a line with a public key and a signature".to_owned();
    let (key, signature) = text.trim_end().split_once(' ').ok_or_else(bad)?;
    let key = PublicKey::parse(key).map_err(|_| bad())?;
    let signature = STANDARD.decode(signature).map_err(|_| bad())?;
    let signature: [u8; SIGNATURE_LENGTH] = signature.try_into().map_err(|_| bad())?;
    match key.0.verify_strict(&message(manifest), &Signature::from_bytes(&signature)) {
        Ok(()) => Ok(key),
        Err(_) => Err("the signature is not one of this manifest".to_owned()),
    }
}

fn message(manifest: &[u8]) -> Vec<u8> {
    [CONTEXT, manifest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_signature_is_for_one_manifest_and_by_one_key() {
        let (secret, other) = ([7; 32], [8; 32]);
        let text = sign(&secret, b"name = \"x\"\n");
        assert_eq!(signer(&text, b"name = \"x\"\n"), Ok(public_key(&secret)));
        assert_eq!(PublicKey::parse(&public_key(&secret).to_string()), Ok(public_key(&secret)));
        assert!(signer(&text, b"name = \"y\"\n").is_err());
        let (_, signature) = text.split_once(' ').unwrap();
        assert!(signer(&format!("{} {signature}", public_key(&other)), b"name = \"x\"\n").is_err());
        let plain = SigningKey::from_bytes(&secret).sign(b"name = \"x\"\n");
        let plain = format!("{} {}", public_key(&secret), STANDARD.encode(plain.to_bytes()));
        assert!(signer(&plain, b"name = \"x\"\n").is_err(), "signed for something else");
        for bad in ["", "a b", "a", &text.replace(' ', "")] {
            assert!(signer(bad, b"").is_err(), "{bad:?}");
        }
        for bad in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "x"] {
            assert!(PublicKey::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_changed_text_is_a_signature(at in any::<prop::sample::Index>(), flip in 1u8..=255) {
            let mut text = sign(&[7; 32], b"m").into_bytes();
            let at = at.index(text.len() - 1);
            text[at] ^= flip;
            let text = String::from_utf8_lossy(&text).into_owned();
            prop_assert!(signer(&text, b"m").is_err());
        }
    }
}
