//! Bytes in hexadecimal digits.

use std::fmt::Write as _;

/// Bytes in lower-case digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The SHA-256 that is written so, in digits of either case; none where it is none.
pub fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_digest_is_none() {
        assert_eq!([from_hex(&"+f".repeat(32)), from_hex(&"İ".repeat(32)), from_hex("")], [None; 3]);
        assert_eq!(hex(&[]), "");
    }

    proptest! {
        #[test]
        fn a_digest_is_read_as_it_is_written(bytes in any::<[u8; 32]>(), text in any::<String>()) {
            prop_assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
            prop_assert_eq!(from_hex(&hex(&bytes).to_uppercase()), Some(bytes));
            let _ = from_hex(&text);
        }
    }
}
