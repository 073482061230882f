//! The YAML of a skill as a small tree, in which everything has its line.
//!
//! Anchors and aliases, tags and more than one document are refused: nothing a skill says needs them, and an
//! alias can make a few bytes stand for gigabytes.

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

/// How deep it may be nested.
const DEPTH_MAX: usize = 8;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Yaml {
    /// Text, or what else is a scalar, as it was written.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// Names and values, in order.
    Map(Vec<Entry>),
}

/// A name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The line of the name, from 1.
    pub(super) line: usize,
    /// The name.
    pub(super) name: String,
    /// The value.
    pub(super) value: Yaml,
}

/// What is wrong, and in which line, from 1.
pub(super) type Wrong = (usize, String);

/// Reads a document.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn read(text: &str) -> Result<Yaml, Wrong> {
    let mut reader = Reader { events: Parser::new_from_str(text) };
    let mut read = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(read.unwrap_or_else(|| Yaml::Text(String::new()))),
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if read.is_some() => return Err((span.start.line(), "more than one document".into())),
            event => read = Some(reader.value(event, span, 0)?),
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Wrong> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err((error.marker().line(), error.info().to_owned())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The value that begins with this event.
    fn value(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Yaml, Wrong> {
        let line = span.start.line();
        if depth > DEPTH_MAX {
            return Err((line, format!("nested more than {DEPTH_MAX} deep")));
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) if is_nothing(&text) => {
                Ok(Yaml::Text(String::new()))
            }
            Event::Scalar(text, _, 0, None) => Ok(Yaml::Text(text.into_owned())),
            Event::SequenceStart(0, None) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => return Ok(Yaml::List(list)),
                        (event, span) => list.push(self.value(event, span, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(0, None) => {
                let mut map: Vec<Entry> = Vec::new();
                loop {
                    let (name, line) = match self.next()? {
                        (Event::MappingEnd, _) => return Ok(Yaml::Map(map)),
                        (Event::Scalar(name, _, 0, None), span) => (name.into_owned(), span.start.line()),
                        (_, span) => return Err((span.start.line(), "expected the name of a field".into())),
                    };
                    if map.iter().any(|entry| entry.name == name) {
                        return Err((line, format!("{} stands twice", shown(&name))));
                    }
                    let (event, span) = self.next()?;
                    let value = self.value(event, span, depth + 1)?;
                    map.push(Entry { line, name, value });
                }
            }
            Event::Alias(_) => Err((line, "aliases are not taken: write the value out".into())),
            _ => Err((line, "anchors and tags are not taken: write the value alone".into())),
        }
    }
}

/// Whether a plain scalar stands for no value.
fn is_nothing(text: &str) -> bool {
    matches!(text, "~" | "null" | "Null" | "NULL")
}

/// A name as it is shown.
pub(super) fn shown(name: &str) -> String {
    format!("{:?}", &name[..name.floor_char_boundary(64)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_have_lines_and_what_could_grow_is_refused() {
        let Ok(Yaml::Map(map)) = read("a: 1\n# no\nb: >\n  two\n  lines\nc: {d: [x, 'y']}\n") else {
            panic!()
        };
        let lines: Vec<(usize, &str)> = map.iter().map(|entry| (entry.line, entry.name.as_str())).collect();
        assert_eq!(lines, [(1, "a"), (3, "b"), (6, "c")]);
        assert_eq!(map[1].value, Yaml::Text("two lines\n".into()));
        for (text, line, why) in [
            ("a: &x 1\nb: *x\n", 1, "anchors"),
            ("a: 1\nb: *x\n", 2, ""),
            ("a: !!binary abc\n", 1, "tags"),
            ("a: 1\na: 2\n", 2, "\"a\" stands twice"),
            ("a: b: c\n", 1, ""),
            ("a: [1\n", 2, ""),
            ("? [a]\n: b\n", 1, "name of a field"),
            ("a: [[[[[[[[[[1]]]]]]]]]]\n", 1, "nested"),
        ] {
            let (at, told) = read(text).unwrap_err();
            assert!(told.contains(why) && !told.is_empty(), "{text:?}: {told}");
            // Where the parser gave up it says itself.
            assert!(at == line || why.is_empty(), "{text:?}: line {at}: {told}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-c:>|&*!{}\\[\\]'\"\\- \n\t#,?]{0,200}") {
            let _ = read(&text);
        }
    }
}
