//! Numbers as people read them: counts, sizes, how long something took.

use crate::when::span;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A number with its thousands apart, such as `1 234 567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Such as `1 session`, `2 sessions`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A size in bytes, KiB or MiB.
pub(super) fn bytes(bytes: u64) -> String {
    if bytes < 10 * KIB { format!("{bytes} B") } else { file_size(bytes) }
}

/// The size of a file, in KiB or MiB.
pub(crate) fn file_size(bytes: u64) -> String {
    if bytes < 10 * MIB { format!("{} KiB", bytes / KIB) } else { format!("{} MiB", bytes / MIB) }
}

/// How long something took, in milliseconds below a second.
pub(super) fn took(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { span(ms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_can_be_read() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!([10_239, 10_240, 20 << 20].map(bytes), ["10239 B", "10 KiB", "20 MiB"]);
    }
}
