//! The message of a single turn: the words of the command line and what is piped in.

use std::io::{IsTerminal, Read, stdin};

use crate::exit::{FAILED, Failure, USAGE};

/// The most bytes of one message.
const MESSAGE_BYTES_MAX: u64 = 8 << 20;

/// Stands for the input among the words.
const INPUT: &str = "-";

/// The message; none if there is neither words nor input and stdin is a terminal.
///
/// # Errors
/// Status 2 if it is empty, 1 if the input can't be read.
pub(super) fn read(words: &[String]) -> Result<Option<String>, Failure> {
    if words.iter().filter(|word| *word == INPUT).count() > 1 {
        return Err(Failure::new(USAGE, "the input (-) can be named once"));
    }
    let is_named = words.iter().any(|word| word == INPUT);
    let input = if is_named || !stdin().is_terminal() { Some(piped()?) } else { None };
    if words.is_empty() && input.is_none() {
        return Ok(None);
    }
    let message = composed(words, input.as_deref().unwrap_or_default());
    if message.trim().is_empty() {
        return Err(Failure::new(USAGE, "the message is empty: give a MESSAGE, or pipe one in"));
    }
    Ok(Some(message))
}

/// The words on one line, a blank line, and the input; a `-` among the words is replaced by the input.
fn composed(words: &[String], input: &str) -> String {
    let at = words.iter().position(|word| word == INPUT).unwrap_or(words.len());
    let after = words.get(at + 1..).unwrap_or_default();
    let parts = [words[..at].join(" "), input.to_owned(), after.join(" ")];
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn piped() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let failed = |why: String| Failure::new(FAILED, why);
    let read = stdin().lock().take(MESSAGE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(format!("cannot read the input: {error}")))?;
    if bytes.len() as u64 > MESSAGE_BYTES_MAX {
        return Err(failed(format!("the input is larger than {MESSAGE_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| failed("the input is not text in UTF-8: send a file with --file".into()))?;
    // The line end is the shell's, not the sender's.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_input_are_one_message() {
        for (words, input, message) in [
            (&["explain"][..], "code\n  more", "explain\n\ncode\n  more"),
            (&["two", "words"], "", "two words"),
            (&[], "only input", "only input"),
            (&["-"], "only input", "only input"),
            (&["this:", "-", "in", "French"], "hi", "this:\n\nhi\n\nin French"),
            (&["-", "in French"], "hi", "hi\n\nin French"),
            (&["-"], "", ""),
            (&[" "], "", ""),
        ] {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(composed(&words, input), message, "{words:?} {input:?}");
        }
        let twice = read(&["-".to_owned(), "-".to_owned()]).unwrap_err();
        assert_eq!(twice.status, USAGE);
    }
}
