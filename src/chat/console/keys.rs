//! What a terminal sends when keys are pressed, as keys.

/// The most bytes of one paste, as of one message. What is beyond is dropped.
const PASTE_BYTES_MAX: usize = 8 << 20;
/// No key is longer.
const SEQUENCE_BYTES_MAX: usize = 64;

const PASTE_END: &[u8] = b"\x1b[201~";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// Control with a lower-case letter or a sign.
    Ctrl(char),
    Enter,
    /// Alt-Enter, Shift-Enter where the terminal tells it apart, Ctrl-J.
    Newline,
    Tab,
    BackTab,
    Backspace,
    Delete,
    BackspaceWord,
    DeleteWord,
    Up,
    Down,
    Left,
    Right,
    WordLeft,
    WordRight,
    Home,
    End,
    Esc,
    /// A whole paste, its line ends as `\n`.
    Paste(String),
}

/// Takes bytes as they come, in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    paste: Option<Vec<u8>>,
}

impl Keys {
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        self.bytes.extend_from_slice(bytes);
        loop {
            if self.paste.is_some() {
                match self.pasted() {
                    Some(text) => keys.push(Key::Paste(text)),
                    None => return keys,
                }
            }
            match self.next() {
                Next::Key(key, used) => {
                    self.bytes.drain(..used);
                    keys.extend(key);
                }
                Next::Paste(used) => {
                    self.bytes.drain(..used);
                    self.paste = Some(Vec::new());
                }
                Next::More => return keys,
            }
        }
    }

    /// Whether what came may be the Escape key or the beginning of something longer.
    pub(super) fn is_unsure(&self) -> bool {
        self.paste.is_none() && !self.bytes.is_empty()
    }

    /// Nothing followed.
    pub(super) fn give_up(&mut self) -> Option<Key> {
        (std::mem::take(&mut self.bytes) == [0x1b]).then_some(Key::Esc)
    }

    /// The paste under way, where its end has come.
    fn pasted(&mut self) -> Option<String> {
        let paste = self.paste.as_mut()?;
        let from = paste.len().saturating_sub(PASTE_END.len());
        paste.append(&mut self.bytes);
        let end = paste[from..].windows(PASTE_END.len()).position(|window| window == PASTE_END);
        let Some(end) = end else {
            // The last bytes may be the beginning of its end.
            let last = paste.len().saturating_sub(PASTE_END.len());
            if last > PASTE_BYTES_MAX {
                paste.drain(PASTE_BYTES_MAX..last);
            }
            return None;
        };
        let mut paste = self.paste.take()?;
        self.bytes = paste.split_off(from + end + PASTE_END.len());
        paste.truncate((from + end).min(PASTE_BYTES_MAX));
        let text = String::from_utf8_lossy(&paste).replace("\r\n", "\n").replace('\r', "\n");
        Some(text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect())
    }

    fn next(&self) -> Next {
        let one = |key| Next::Key(Some(key), 1);
        match self.bytes.as_slice() {
            [] => Next::More,
            [0x1b, rest @ ..] => escape(rest),
            [b'\r', ..] => one(Key::Enter),
            [b'\n', ..] => one(Key::Newline),
            [b'\t', ..] => one(Key::Tab),
            [0x7f | 0x08, ..] => one(Key::Backspace),
            [byte @ 0x01..=0x1a, ..] => one(Key::Ctrl(char::from(byte + b'a' - 1))),
            [0x1f, ..] => one(Key::Ctrl('_')),
            [0x00..=0x1f, ..] => Next::Key(None, 1),
            bytes => match character(bytes) {
                Some((c, used)) if c.is_control() => Next::Key(None, used),
                Some((c, used)) => Next::Key(Some(Key::Char(c)), used),
                None => Next::More,
            },
        }
    }
}

enum Next {
    /// A key, or something that is none, and how many bytes it has.
    Key(Option<Key>, usize),
    Paste(usize),
    More,
}

/// The first character and its bytes; none where it is not complete.
fn character(bytes: &[u8]) -> Option<(char, usize)> {
    let wanted = match bytes.first()? {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    match std::str::from_utf8(&bytes[..wanted.min(bytes.len())]) {
        Ok(text) => text.chars().next().map(|c| (c, c.len_utf8())),
        Err(error) if error.error_len().is_none() && bytes.len() < wanted => None,
        Err(_) => Some((char::REPLACEMENT_CHARACTER, 1)),
    }
}

/// What follows an escape character.
fn escape(rest: &[u8]) -> Next {
    let two = |key| Next::Key(Some(key), 2);
    match rest {
        [] | [b'O'] => Next::More,
        [0x1b, ..] => Next::Key(Some(Key::Esc), 1),
        [b'[', rest @ ..] => control(rest),
        [b'O', letter, ..] => Next::Key(direction(*letter, 1), 3),
        [b'\r' | b'\n', ..] => two(Key::Newline),
        [0x7f | 0x08, ..] => two(Key::BackspaceWord),
        [b'b', ..] => two(Key::WordLeft),
        [b'f', ..] => two(Key::WordRight),
        [b'd', ..] => two(Key::DeleteWord),
        bytes => match character(bytes) {
            Some((_, used)) => Next::Key(None, 1 + used),
            None => Next::More,
        },
    }
}

/// What follows `ESC [`.
fn control(rest: &[u8]) -> Next {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        let used = 2 + rest.len();
        return if used > SEQUENCE_BYTES_MAX { Next::Key(None, used) } else { Next::More };
    };
    let text = String::from_utf8_lossy(&rest[..end]);
    let number = |at: usize| {
        let text = text.split(';').nth(at).and_then(|text| text.split(':').next());
        text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(1)
    };
    let used = 2 + end + 1;
    let key = match rest[end] {
        b'Z' => Some(Key::BackTab),
        b'u' => with_modifiers(number(0), number(1)),
        b'~' => match number(0) {
            200 => return Next::Paste(used),
            1 | 7 => Some(Key::Home),
            4 | 8 => Some(Key::End),
            3 if number(1) > 2 => Some(Key::DeleteWord),
            3 => Some(Key::Delete),
            27 => with_modifiers(number(2), number(1)),
            _ => None,
        },
        letter => direction(letter, number(1)),
    };
    Next::Key(key, used)
}

fn direction(letter: u8, modifiers: u32) -> Option<Key> {
    Some(match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' if modifiers > 2 => Key::WordRight,
        b'D' if modifiers > 2 => Key::WordLeft,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        _ => return None,
    })
}

/// A key by its character, and one more than the sum of its modifiers: 1 Shift, 2 Alt, 4 Control.
fn with_modifiers(code: u32, modifiers: u32) -> Option<Key> {
    let (alt, control) = ((modifiers.max(1) - 1) & 2 != 0, (modifiers.max(1) - 1) & 4 != 0);
    Some(match char::from_u32(code)? {
        '\r' if modifiers > 1 => Key::Newline,
        '\r' => Key::Enter,
        '\t' if modifiers == 2 => Key::BackTab,
        '\t' => Key::Tab,
        '\u{1b}' => Key::Esc,
        '\u{7f}' if alt || control => Key::BackspaceWord,
        '\u{7f}' => Key::Backspace,
        c if control && !alt => Key::Ctrl(c.to_ascii_lowercase()),
        c if alt || c.is_control() => return None,
        c => Key::Char(c),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        Keys::default().feed(bytes)
    }

    #[test]
    fn keys_are_told_apart() {
        let text: Vec<Key> = "aé漢😀".chars().map(Key::Char).collect();
        assert_eq!(keys("aé漢😀".as_bytes()), text);
        assert_eq!(keys(b"\r\n\x1b\r\x1b[13;2u"), [Key::Enter, Key::Newline, Key::Newline, Key::Newline]);
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[1;5C\x1bb"), [Key::Up, Key::Down, Key::WordRight, Key::WordLeft]);
        assert_eq!(keys(b"\x03\x7f\x1b[3~\x1b[H"), [Key::Ctrl('c'), Key::Backspace, Key::Delete, Key::Home]);
        assert_eq!(
            keys(b"\x1b[99Xa\x1bxb\x00"),
            [Key::Char('a'), Key::Char('b')],
            "what is unknown is passed over"
        );
    }

    #[test]
    fn a_lone_escape_is_a_key_when_nothing_follows() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"\x1b"), []);
        assert!(keys.is_unsure());
        assert_eq!(keys.give_up(), Some(Key::Esc));
        assert_eq!(keys.feed(b"\x1b"), []);
        assert_eq!(keys.feed(b"[D"), [Key::Left]);
    }

    #[test]
    fn a_paste_is_one_however_it_comes() {
        let text = "one\ttab\ntwo 漢\n\nthree".to_owned();
        let sent = format!("a\x1b[200~{}\x1b[201~b", text.replace('\n', "\r"));
        for size in [1, 2, 3, 7, 1000] {
            let mut keys = Keys::default();
            let got: Vec<Key> = sent.as_bytes().chunks(size).flat_map(|bytes| keys.feed(bytes)).collect();
            assert_eq!(
                got,
                [Key::Char('a'), Key::Paste(text.clone()), Key::Char('b')],
                "in pieces of {size}"
            );
        }
        assert_eq!(keys(b"\x1b[200~a\x1b]0;x\x07b\x1b[201~"), [Key::Paste("a]0;xb".into())]);
    }

    #[test]
    fn a_paste_has_a_bound() {
        let mut keys = Keys::default();
        keys.feed(b"\x1b[200~");
        for _ in 0..9 {
            assert_eq!(keys.feed(&vec![b'x'; 1 << 20]), []);
        }
        let got = keys.feed(b"\x1b[201~y");
        assert!(matches!(&got[..], [Key::Paste(text), Key::Char('y')] if text.len() == PASTE_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_stops_it(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut keys = Keys::default();
            for key in keys.feed(&bytes) {
                if let Key::Char(c) = key {
                    prop_assert!(!c.is_control());
                }
            }
            keys.give_up();
            keys.feed(b"\x1b[201~");
            prop_assert_eq!(keys.feed(b"q"), [Key::Char('q')]);
        }
    }
}
