//! Patterns in which `*` stands for anything.

/// Whether a text is like a pattern, whatever the case of their letters.
pub fn is_like(text: &str, glob: &str) -> bool {
    let (text, glob) = (text.to_lowercase(), glob.to_lowercase());
    let mut parts = glob.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (text, glob, is_it) in [
            ("abc", "abc", true),
            ("abc", "a*c", true),
            ("abc", "*", true),
            ("", "*", true),
            ("", "", true),
            ("abc", "", false),
            ("abc", "a*b", false),
            ("a/b/c/b", "a*b", true),
            ("abcabc", "*abc*abc", true),
            ("abc", "*abc*abc", false),
            ("aXbYc", "a*b*c", true),
            ("İa", "i\u{307}*", true),
        ] {
            assert_eq!(is_like(text, glob), is_it, "{text} {glob}");
        }
    }

    proptest! {
        #[test]
        fn a_text_is_like_itself_with_any_part_starred(text in "[a-z/]{0,12}", from in 0usize..12, len in 0usize..12) {
            let from = from.min(text.len());
            let to = (from + len).min(text.len());
            let glob = format!("{}*{}", &text[..from], &text[to..]);
            prop_assert!(is_like(&text, &glob));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,20}", glob in "\\PC{0,20}") {
            let _ = is_like(&text, &glob);
        }
    }
}
