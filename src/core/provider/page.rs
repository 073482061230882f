//! Web pages, which come where a model was asked: a login, a proxy's refusal. Their title says what they are.

/// Whether this is HTML or XML.
pub(super) fn is_page(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

/// The title of a page, where it has one.
pub(super) fn page_title(page: &str) -> Option<&str> {
    let lower = page.to_ascii_lowercase();
    let begin = lower.find("<title")?;
    let begin = begin + lower[begin..].find('>')? + 1;
    let end = begin + lower[begin..].find('<')?;
    Some(page[begin..end].trim()).filter(|title| !title.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_is_known_by_its_title() {
        for (text, is, title) in [
            ("\r\n <!DOCTYPE html><TITLE lang=de> An </title>", true, Some("An")),
            ("<html>", true, None),
            ("<title>", true, None),
            ("<title></title>", true, None),
            ("data: <title>x</title>", false, Some("x")),
            ("", false, None),
        ] {
            assert_eq!((is_page(text), page_title(text)), (is, title), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(<|title|>|İ|[ -~]|\\PC){0,30}") {
            let _ = page_title(&text);
        }
    }
}
