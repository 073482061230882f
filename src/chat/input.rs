//! Parsing what is typed: a prompt for the model, or a command for this chat.
//!
//! A command begins with `/` and a letter. An unknown command is refused and never sent, so that a typo
//! costs no tokens; `//x` sends `/x`. While the offline model answers, its own commands are sent
//! to it.

/// A command of the chat: its name, what it takes, what it does.
const COMMANDS: [(&str, &str, &str); 10] = [
    ("help", "", "show this list"),
    ("new", "[NAME]", "begin another session"),
    ("sessions", "", "list your sessions"),
    ("switch", "NAME", "go to another session: a name, a key, or the beginning of a key"),
    ("model", "[PROVIDER/MODEL]", "list the models, or use one from now on; `/model default` goes back"),
    ("agent", "[NAME]", "list the agents, or go to the session of the same name of another one"),
    ("abort", "", "end the answer under way (also Ctrl-C)"),
    ("usage", "", "show the tokens used and what the budgets leave"),
    ("attach", "FILE", "send a file with the next prompt"),
    ("quit", "", "leave; the session stays (also Ctrl-D)"),
];

/// The commands of the offline model, in the same format.
const OFFLINE: [(&str, &str, &str); 3] = [
    ("tool", "NAME {\"text\":\"hi\"}", "offline model: call a tool"),
    ("slow", "SECONDS", "offline model: take your time"),
    ("fail", "", "offline model: fail"),
];

/// The longest misspelled command that is quoted back, in characters.
const QUOTED_CHARS_MAX: usize = 40;

/// How many typos a word may have to be taken for a command, and how many letters it needs per typo.
const DISTANCE_MAX: usize = 2;
const LETTERS_PER_SLIP: usize = 3;

/// One input of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// For the model.
    Prompt(String),
    /// For the chat.
    Command(ChatCommand),
    /// Neither: why it is refused.
    Refused(String),
    /// Nothing was typed.
    Nothing,
}

/// A command of the chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    /// `/help`
    Help,
    /// `/new [NAME]`
    New(Option<String>),
    /// `/sessions`
    Sessions,
    /// `/switch NAME`
    Switch(String),
    /// `/model [PROVIDER/MODEL]`
    Model(Option<String>),
    /// `/agent [NAME]`
    Agent(Option<String>),
    /// `/abort`
    Abort,
    /// `/usage`
    Usage,
    /// `/attach FILE`
    Attach(String),
    /// `/quit`
    Quit,
}

/// Reads what was typed. `is_offline`: whether the offline model answers.
pub(super) fn read(typed: &str, is_offline: bool) -> Input {
    let text = typed.trim();
    let is_letter = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_alphabetic);
    match text.as_bytes() {
        [] => return Input::Nothing,
        // As programs comment.
        [b'/', b'*', ..] => return Input::Prompt(typed.to_owned()),
        [b'/', b'/', ..] if is_letter(2) => return Input::Prompt(text[1..].to_owned()),
        [b'/', b'/', ..] => return Input::Prompt(typed.to_owned()),
        [b'/', ..] => {}
        _ => return Input::Prompt(typed.to_owned()),
    }
    let (word, rest) = text[1..].split_once(char::is_whitespace).unwrap_or((&text[1..], ""));
    if is_offline && OFFLINE.iter().any(|(name, ..)| *name == word) {
        return Input::Prompt(text.to_owned());
    }
    let rest = rest.trim();
    let usage = |name: &str| {
        let takes = COMMANDS.iter().find(|(known, ..)| *known == name).map_or("", |(_, takes, _)| *takes);
        Input::Refused(if takes.is_empty() {
            format!("/{name} takes no arguments")
        } else {
            format!("usage: /{name} {takes}")
        })
    };
    let given = Some(rest.to_owned()).filter(|rest| !rest.is_empty());
    let is_one_word = !rest.contains(char::is_whitespace);
    match (word, given) {
        ("help", None) => Input::Command(ChatCommand::Help),
        ("new", name) if is_one_word => Input::Command(ChatCommand::New(name)),
        ("sessions", None) => Input::Command(ChatCommand::Sessions),
        ("switch", Some(name)) if is_one_word => Input::Command(ChatCommand::Switch(name)),
        ("model", model) if is_one_word => Input::Command(ChatCommand::Model(model)),
        ("agent", name) if is_one_word => Input::Command(ChatCommand::Agent(name)),
        ("abort", None) => Input::Command(ChatCommand::Abort),
        ("usage", None) => Input::Command(ChatCommand::Usage),
        ("attach", Some(file)) => Input::Command(ChatCommand::Attach(file)),
        ("quit", None) => Input::Command(ChatCommand::Quit),
        (word, _) if COMMANDS.iter().any(|(name, ..)| *name == word) => usage(word),
        _ => Input::Refused(unknown(word, is_offline)),
    }
}

fn unknown(word: &str, is_offline: bool) -> String {
    let shown: String = word.chars().take(QUOTED_CHARS_MAX).collect();
    let known = COMMANDS.iter().chain(OFFLINE.iter().filter(|_| is_offline)).map(|(name, ..)| *name);
    let hint = match meant(word, known) {
        Some(name) => format!("did you mean /{name}?"),
        None if OFFLINE.iter().any(|(name, ..)| *name == word) => {
            "only the offline model knows it".to_owned()
        }
        None => "/help lists the commands".to_owned(),
    };
    format!("unknown command /{shown}, not sent: {hint} (//{shown} sends it to the model)")
}

/// The command that `word` most likely stands for.
fn meant<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // What people know from other programs.
    let word = match word {
        "exit" | "q" | "bye" | "leave" => "quit",
        "?" | "h" | "commands" => "help",
        "ls" | "list" => "sessions",
        "stop" | "cancel" => "abort",
        "file" => "attach",
        "cost" | "tokens" | "budget" => "usage",
        "clear" | "reset" => "new",
        word => word,
    };
    nearest(word, known)
}

/// The one of `known` that `word` is a typo or a prefix of.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |name: &&str| {
        let is_beginning = word.len() >= 2 && name.starts_with(word);
        if is_beginning { 0 } else { distance(word, name) }
    };
    let most = DISTANCE_MAX.min(word.len() / LETTERS_PER_SLIP);
    known.map(|name| (near(&name), name)).filter(|(far, _)| *far <= most).min().map(|(_, name)| name)
}

/// The edit distance: letters added, missing, changed or swapped.
fn distance(one: &str, other: &str) -> usize {
    let letters = |word: &str| -> Vec<char> { word.chars().take(QUOTED_CHARS_MAX).collect() };
    let (one, other) = (letters(one), letters(other));
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (at, a) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (column, b) in other.iter().enumerate() {
            let kept = rows[at][column] + usize::from(a != b);
            let mut least = kept.min(rows[at][column + 1] + 1).min(row[column] + 1);
            if at > 0 && column > 0 && one[at - 1] == *b && *a == other[column - 1] {
                least = least.min(rows[at - 1][column - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// The list that `/help` shows, a command a line.
pub(super) fn help(is_offline: bool) -> String {
    let offline = OFFLINE.iter().filter(|_| is_offline);
    let lines: Vec<String> = COMMANDS
        .iter()
        .chain(offline)
        .map(|(name, takes, does)| {
            let what = if takes.is_empty() { format!("/{name}") } else { format!("/{name} {takes}") };
            format!("{what:<26} {does}")
        })
        .collect();
    format!("{}\n{:<26} send a line that begins with a slash", lines.join("\n"), "//TEXT")
}

/// The commands as they are typed, for completion.
pub(super) fn names() -> Vec<String> {
    COMMANDS.iter().map(|(name, ..)| format!("/{name}")).collect()
}

/// Those of the offline model.
pub(super) fn offline_names() -> Vec<String> {
    OFFLINE.iter().map(|(name, ..)| format!("/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_are_told_from_prompts() {
        let prompt = |text: &str| Input::Prompt(text.into());
        let command = Input::Command;
        for (typed, line) in [
            ("hello", prompt("hello")),
            ("  indented\nlines ", prompt("  indented\nlines ")),
            ("what does /help do?", prompt("what does /help do?")),
            ("//help", prompt("/help")),
            ("//tool echo", prompt("/tool echo")),
            ("// a comment\ncode();", prompt("// a comment\ncode();")),
            ("/* a comment */", prompt("/* a comment */")),
            (" \n ", Input::Nothing),
            ("/help", command(ChatCommand::Help)),
            ("/new", command(ChatCommand::New(None))),
            ("/new work ", command(ChatCommand::New(Some("work".into())))),
            (" /sessions", command(ChatCommand::Sessions)),
            ("/switch main:cli:ada:x", command(ChatCommand::Switch("main:cli:ada:x".into()))),
            ("/model", command(ChatCommand::Model(None))),
            ("/model openai/gpt-4o", command(ChatCommand::Model(Some("openai/gpt-4o".into())))),
            ("/agent work", command(ChatCommand::Agent(Some("work".into())))),
            ("/abort", command(ChatCommand::Abort)),
            ("/usage", command(ChatCommand::Usage)),
            ("/attach my notes.txt", command(ChatCommand::Attach("my notes.txt".into()))),
            ("/quit", command(ChatCommand::Quit)),
        ] {
            assert_eq!(read(typed, false), line, "{typed}");
        }
    }

    #[test]
    fn what_is_no_command_is_refused_with_what_was_meant() {
        for (typed, says) in [
            ("/sesions", "unknown command /sesions, not sent: did you mean /sessions?"),
            ("/hlep", "did you mean /help?"),
            ("/foo", "not sent: /help lists the commands"),
            ("/exit", "did you mean /quit?"),
            ("/sess", "did you mean /sessions?"),
            ("/clear", "did you mean /new?"),
            ("/usr/bin/env is where?", "/help lists the commands (//usr/bin/env sends it"),
            ("/tool echo {}", "only the offline model knows it"),
            ("/", "unknown command /,"),
            ("/switch", "usage: /switch NAME"),
            ("/switch a b", "usage: /switch NAME"),
            ("/quit now", "/quit takes no arguments"),
            ("/attach", "usage: /attach FILE"),
            ("/help\nand more", "/help takes no arguments"),
        ] {
            match read(typed, false) {
                Input::Refused(why) => assert!(why.contains(says), "{typed}: {why}"),
                other => panic!("{typed}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_offline_model_has_commands_of_its_own() {
        for typed in ["/tool echo {\"text\":\"hi\"}", "/slow 3", "/fail"] {
            assert_eq!(read(typed, true), Input::Prompt(typed.into()));
            assert!(matches!(read(typed, false), Input::Refused(_)), "{typed}");
        }
        assert!(help(true).contains("/slow") && !help(false).contains("/slow"));
        match read("/foo", true) {
            Input::Refused(why) => assert!(!why.contains("did you mean"), "{why}"),
            other => panic!("{other:?}"),
        }
        for name in names() {
            assert!(help(false).lines().any(|line| line.starts_with(&name)), "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_typed_panics(typed in any::<String>(), word in "/[a-z?é]{0,12}( .{0,9})?") {
            read(&typed, true);
            read(&word, false);
        }

        #[test]
        fn a_distance_is_a_distance(one in "[ab]{0,6}", other in "[ab]{0,6}") {
            prop_assert_eq!(distance(&one, &other), distance(&other, &one));
            prop_assert_eq!(distance(&one, &other) == 0, one == other);
            prop_assert!(distance(&one, &other) >= one.len().abs_diff(other.len()));
        }
    }
}
