//! Examples of commands, for the help and the manual pages. A test has each of them read by the parser.

/// What can be typed, and what it does.
pub(super) type Example = (&'static str, &'static str);

/// The examples of a command by its words, such as `session tail`.
pub(super) fn of(words: &str) -> Vec<Example> {
    all().filter(|(command, _)| *command == words).map(|(_, example)| example).collect()
}

/// Every example with its command.
fn all() -> impl Iterator<Item = (&'static str, Example)> {
    let mut command = "";
    EXAMPLES.lines().filter_map(move |line| {
        if let Some(words) = line.strip_prefix('[') {
            command = words.trim_end_matches(']');
        }
        Some((command, line.split_once("  # ")?))
    })
}

/// Each command in brackets, and its examples: what can be typed, and behind a `#` what it does.
const EXAMPLES: &str = include_str!("examples.txt");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{Command, CommandFactory, Parser};

    /// The words of a command line, with quotes as in a shell.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        words.push(word);
        words
    }

    #[test]
    fn every_example_is_understood() {
        assert_eq!(all().count(), EXAMPLES.lines().filter(|line| line.starts_with("clawmux ")).count());
        for (command, (line, what)) in all() {
            assert!(!what.is_empty() && !what.ends_with('.'), "{line}: {what}");
            let parsed = Cli::try_parse_from(words(line));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            assert!(line.contains(command), "{command}: {line}");
        }
    }

    /// Commands that others document.
    const ELSEWHERE: [&str; 4] = ["chat", "setup", "models", "restore"];

    #[test]
    fn every_command_that_takes_something_has_an_example() {
        fn look(command: &Command, words: &str, missing: &mut Vec<String>) {
            let own = |arg: &&clap::Arg| {
                !["json", "help", "version", "config", "home"].contains(&arg.get_id().as_str())
            };
            let is_leaf = command.get_subcommands().next().is_none();
            let is_elsewhere = ELSEWHERE.contains(&words) || words.starts_with("token");
            if is_leaf
                && command.get_arguments().any(|arg| own(&arg))
                && of(words).is_empty()
                && !is_elsewhere
            {
                missing.push(words.to_owned());
            }
            for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
                look(child, format!("{words} {}", child.get_name()).trim(), missing);
            }
        }
        let mut missing = Vec::new();
        look(&Cli::command(), "", &mut missing);
        assert!(missing.is_empty(), "{missing:?}");
    }
}
