//! What Tab completes: commands, and what may follow them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The most candidates shown at once.
const CANDIDATES_MAX: usize = 200;

/// What may follow a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::chat) enum Arguments {
    /// One of these words, such as the names of sessions.
    Words(Vec<String>),
    /// A file.
    Files,
}

/// The commands and what may follow them. Clones share one list: what is set later is completed
/// from then on.
#[derive(Clone, Debug, Default)]
pub(in crate::chat) struct Completions(Arc<Mutex<BTreeMap<String, Arguments>>>);

impl Completions {
    /// Sets what may follow `command`, such as `/switch`, and makes it one that is completed itself.
    pub(in crate::chat) fn set(&self, command: &str, arguments: Arguments) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(command.to_owned(), arguments);
    }

    /// Completes this command no longer.
    pub(in crate::chat) fn unset(&self, command: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(command);
    }

    /// What can stand in place of the last word of `typed`: where that word begins, and the words.
    pub(super) fn of(&self, typed: &str) -> (usize, Vec<String>) {
        if !typed.starts_with('/') || typed.contains('\n') {
            return (typed.len(), Vec::new());
        }
        let commands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((command, rest)) = typed.split_once(' ') else {
            let words = commands.keys().filter(|command| command.starts_with(typed));
            return (0, words.cloned().collect());
        };
        let start = typed.len() - rest.trim_start().len();
        let begun = &typed[start..];
        let words = match commands.get(command) {
            None => Vec::new(),
            Some(Arguments::Files) => files(begun),
            Some(Arguments::Words(words)) => {
                let like = |like: fn(&str, &str) -> bool| -> Vec<String> {
                    words.iter().filter(|word| like(word, begun)).take(CANDIDATES_MAX).cloned().collect()
                };
                let mut found = like(|word, begun| word.starts_with(begun));
                if found.is_empty() {
                    found = like(|word, begun| word.contains(begun));
                }
                found
            }
        };
        (start, words)
    }
}

/// The files whose paths begin so; folders with a slash at the end.
fn files(begun: &str) -> Vec<String> {
    let (folder, name) = begun
        .rsplit_once('/')
        .map_or(("", begun), |(folder, name)| (if folder.is_empty() { "/" } else { folder }, name));
    let shown = |file: &str| match folder {
        "" => file.to_owned(),
        "/" => format!("/{file}"),
        folder => format!("{folder}/{file}"),
    };
    let home = std::env::var("HOME").unwrap_or_default();
    let real = match folder {
        "" => ".".to_owned(),
        folder => folder.strip_prefix('~').map_or_else(|| folder.to_owned(), |rest| format!("{home}{rest}")),
    };
    let Ok(entries) = std::fs::read_dir(Path::new(&real)) else { return Vec::new() };
    let mut files: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let hidden = file.starts_with('.') && !name.starts_with('.');
            let slash = if entry.path().is_dir() { "/" } else { "" };
            (file.starts_with(name) && !hidden).then(|| format!("{}{slash}", shown(&file)))
        })
        .take(CANDIDATES_MAX)
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Arguments {
        Arguments::Words(words.iter().map(|word| word.to_string()).collect())
    }

    #[test]
    fn commands_and_their_arguments_are_completed() {
        let completions = Completions::default();
        completions.set("/switch", words(&["main:cli:ann:home", "main:cli:ann:work"]));
        completions.set("/sessions", words(&[]));
        assert_eq!(completions.of("/s"), (0, vec!["/sessions".into(), "/switch".into()]));
        assert_eq!(completions.of("/switch main:cli:ann:h"), (8, vec!["main:cli:ann:home".into()]));
        assert_eq!(completions.of("/switch work"), (8, vec!["main:cli:ann:work".into()]));
        completions.set("/slow", words(&[]));
        assert_eq!(completions.of("/sl"), (0, vec!["/slow".into()]));
        completions.unset("/slow");
        assert_eq!(completions.of("/sl"), (0, vec![]));
        assert_eq!(completions.of("hello"), (5, vec![]));
        assert_eq!(completions.of("/unknown x"), (9, vec![]));
    }

    #[test]
    fn files_are_completed_by_their_paths() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("notes")).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        std::fs::write(folder.path().join(".hidden"), "").unwrap();
        let completions = Completions::default();
        completions.set("/attach", Arguments::Files);
        let base = folder.path().display();
        let (start, found) = completions.of(&format!("/attach {base}/no"));
        assert_eq!((start, found), (8, vec![format!("{base}/notes.txt"), format!("{base}/notes/")]));
        assert_eq!(completions.of(&format!("/attach {base}/")).1.len(), 2);
    }
}
