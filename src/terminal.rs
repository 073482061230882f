//! Output for people: results go to stdout, everything else to stderr. Text of others is escaped first,
//! because a terminal obeys control characters.

use std::io::{self, IsTerminal, Write, stdout};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::exit::{FAILED, Failure};

/// Writes a line to stdout. It is no failure if nobody reads it any more.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Writes one of many lines to stdout; returns whether anybody still reads.
///
/// # Errors
/// Status 1 if it can't be written, such as for want of space.
pub(crate) fn put(line: &str) -> Result<bool, Failure> {
    write(&format!("{line}\n"))
}

/// Writes text to stdout and flushes it; returns whether anybody still reads.
pub(crate) fn write(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(FAILED, format!("cannot write the output: {error}"))),
    }
}

/// Writes a line to stderr.
pub(crate) fn tell(line: &str) {
    let _ = Stderr.write_all(format!("{line}\n").as_bytes());
}

/// Takes text that would go to stderr.
pub(crate) type Shown = Box<dyn Fn(&str) + Send>;

static INSTEAD: Mutex<Option<Shown>> = Mutex::new(None);

/// Redirects stderr to whatever draws on the terminal; none ends that. If stderr is not a terminal, nothing
/// changes.
pub(crate) fn show_instead(shown: Option<Shown>) {
    let shown = shown.filter(|_| io::stderr().is_terminal());
    *INSTEAD.lock().unwrap_or_else(PoisonError::into_inner) = shown;
}

/// Stderr, or what stands in for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &*INSTEAD.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(shown) => {
                shown(&String::from_utf8_lossy(bytes));
                Ok(bytes.len())
            }
            None => io::stderr().lock().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// The meaning of a text that its colour shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// The head of something.
    Head,
    /// Of minor importance.
    Dim,
    /// At work, or well.
    Good,
    /// Waits for somebody, or soon will.
    Warn,
    /// Does not work.
    Bad,
}

impl Tone {
    /// `text` in its colour; as it is where `colored` is false.
    pub(crate) fn paint(self, text: &str, colored: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Head => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "31",
        };
        if colored && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Whether output to `stream` may be coloured: it is a terminal, and NO_COLOR and TERM allow it.
pub(crate) fn may_color(stream: &impl IsTerminal) -> bool {
    let objects = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    stream.is_terminal() && !objects
}

/// The width of the terminal behind stdout, if it is one and has a known width.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The width of `text` on a terminal, in columns.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// `text` cut to this many columns, with an ellipsis.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let wide = c.width().unwrap_or(0);
        let fits = wide <= left;
        left = left.saturating_sub(wide);
        fits
    };
    let mut short: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        short.push('…');
    }
    short
}

/// `text` without what a terminal would obey or what would disguise it: control characters but
/// line ends and tabs, the characters that turn the direction of writing, and those that show nothing.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !is_obeyed(*c)).collect()
}

/// `text` with what a terminal would obey written out, such as `\u{1b}`; line ends and tabs stay.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if !matches!(c, '\n' | '\t') && is_obeyed(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// `value` as JSON on one line, in which also those characters are escaped that JSON lets stand and
/// a terminal obeys.
pub(crate) fn json_line(value: &Value) -> String {
    escaped(&value.to_string())
}

/// The same over several lines, for people.
pub(crate) fn json_pretty(value: &Value) -> String {
    escaped(&serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()))
}

/// JSON with what a terminal obeys escaped.
fn escaped(json: &str) -> String {
    let mut out = String::new();
    for c in json.chars() {
        // Outside of strings JSON has no such characters but line ends.
        if c != '\n' && is_obeyed(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a terminal obeys `c` instead of showing it, or shows nothing where it stands: control
/// characters, line and paragraph separators, and what Unicode calls default-ignorable, which has
/// the characters that turn the direction of writing, zero-width spaces and joiners, variation
/// selectors and tags. An emoji made of several falls apart into them: terminals disagree about its
/// width, and text could hide in the joints.
pub(crate) fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// `text` on one line of at most `chars_max` characters.
pub(crate) fn one_line(text: &str, chars_max: usize) -> String {
    let flat = harmless(text).replace(['\n', '\t'], " ");
    let mut short: String = flat.chars().take(chars_max).collect();
    if short.len() < flat.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_sequences_lose_their_power() {
        assert_eq!(harmless("a\u{1b}]0;title\u{7}b\u{9b}2Jc\r\u{202e}d\n\te"), "a]0;titleb2Jcd\n\te");
        assert_eq!(one_line("İİİİ\nİ", 5), "İİİİ …");
        let hidden = "a\u{200b}b\u{feff}c\u{2060}d\u{200d}e\u{e0041}f\u{fe0f}g\u{ad}h\u{2028}i\u{61c}j";
        assert_eq!(harmless(hidden), "abcdefghij");
        assert_eq!(json_line(&Value::String("\u{e0041}".into())), r#""\udb40\udc41""#);
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        assert_eq!(Tone::Bad.paint("x", true), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!((Tone::Bad.paint("x", false), Tone::Plain.paint("x", true)), ("x".into(), "x".into()));
    }

    proptest! {
        #[test]
        fn what_is_cut_fits_and_is_a_beginning(text in "\\PC{0,30}", columns in 0_usize..20) {
            let short = cut(&text, columns);
            prop_assert!(width(&short) <= columns, "{short:?}");
            prop_assert!(short == text || text.starts_with(short.trim_end_matches('…')));
        }

        #[test]
        fn nothing_is_left_to_obey(text in any::<String>(), most in 0_usize..20) {
            prop_assert!(!harmless(&text).chars().any(|c| is_obeyed(c) && c != '\n' && c != '\t'));
            prop_assert!(one_line(&text, most).chars().count() <= most + 1);
            prop_assert!(!visible(&text).chars().any(|c| is_obeyed(c) && c != '\n' && c != '\t'));
            let line = json_line(&Value::String(text.clone()));
            prop_assert!(!line.chars().any(is_obeyed));
            let value = Value::String(text);
            prop_assert_eq!(&serde_json::from_str::<Value>(&line).unwrap(), &value);
            let several = json_pretty(&serde_json::json!({ "a": value }));
            prop_assert!(!several.chars().any(|c| is_obeyed(c) && c != '\n'));
            prop_assert_eq!(&serde_json::from_str::<Value>(&several).unwrap()["a"], &value);
        }
    }
}
