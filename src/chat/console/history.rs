//! The prompts typed before, kept in a file of the home: one JSON string a line, the newest last.
//! Several chats may add to it at the same time.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The most prompts remembered.
const ENTRIES_MAX: usize = 1000;
/// Longer prompts are remembered only until the chat is left.
const ENTRY_BYTES_MAX: usize = 16 << 10;
/// The file is begun anew with the last prompts once it is larger.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<String>,
    file: Option<PathBuf>,
}

impl History {
    /// The prompts in `file`, and what is wrong with it, if anything. A file that is broken is set
    /// aside, and what can be read of it is kept.
    pub(super) fn open(file: Option<PathBuf>) -> (Self, Option<String>) {
        let Some(file) = file else { return (Self::default(), None) };
        let text = match fs::read(&file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                let why = format!("cannot read the history {}: {error}", file.display());
                return (Self::default(), Some(why));
            }
        };
        let (mut entries, mut broken) = (VecDeque::new(), false);
        for line in text.split_inclusive('\n') {
            match serde_json::from_str::<String>(line) {
                Ok(entry) => entries.push_back(entry),
                // A power cut may have left half a line.
                Err(_) => broken |= line.ends_with('\n') || line.contains('\0'),
            }
        }
        let torn = !text.is_empty() && !text.ends_with('\n');
        let many = entries.len() > 2 * ENTRIES_MAX || text.len() as u64 > FILE_BYTES_MAX;
        entries.drain(..entries.len().saturating_sub(ENTRIES_MAX));
        let mut history = Self { entries, file: Some(file.clone()) };
        let mut trouble = None;
        if broken {
            let aside = file.with_extension("broken");
            trouble = Some(match fs::rename(&file, &aside) {
                Ok(()) => format!(
                    "the history {} was damaged: it is set aside as {}, and what could be read of it is kept",
                    file.display(),
                    aside.display()
                ),
                Err(error) => format!("the history {} is damaged: {error}", file.display()),
            });
        }
        if (broken || torn || many)
            && let Err(error) = history.rewrite(&file)
        {
            trouble.get_or_insert(format!("cannot write the history {}: {error}", file.display()));
            history.file = None;
        }
        (history, trouble)
    }

    fn rewrite(&self, file: &Path) -> io::Result<()> {
        let new = file.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut text = String::new();
        for entry in &self.entries {
            text.push_str(&line(entry));
        }
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        out.write_all(text.as_bytes())?;
        fs::rename(&new, file)
    }

    /// Remembers a prompt; says what is wrong the first time the file can't be written.
    pub(super) fn add(&mut self, entry: &str) -> Option<String> {
        if entry.trim().is_empty() || self.entries.back().is_some_and(|last| last == entry) {
            return None;
        }
        if self.entries.len() >= ENTRIES_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(entry.to_owned());
        if entry.len() > ENTRY_BYTES_MAX {
            return None;
        }
        let file = self.file.take()?;
        match append(&file, &line(entry)) {
            Ok(()) => {
                self.file = Some(file);
                None
            }
            Err(error) => Some(format!("cannot write the history {}: {error}", file.display())),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&str> {
        self.entries.get(at).map(String::as_str)
    }

    /// The newest prompt before `before` that has `words` in it.
    pub(super) fn find(&self, words: &str, before: usize) -> Option<usize> {
        (0..before.min(self.len())).rev().find(|at| self.entries[*at].contains(words))
    }
}

fn line(entry: &str) -> String {
    format!("{}\n", serde_json::Value::from(entry))
}

fn append(file: &Path, line: &str) -> io::Result<()> {
    let mut out = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    if out.metadata()?.permissions().mode() & 0o077 != 0 {
        out.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    out.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(file: &Path) -> (Vec<String>, Option<String>) {
        let (history, trouble) = History::open(Some(file.to_owned()));
        (history.entries.into(), trouble)
    }

    #[test]
    fn prompts_outlive_the_chat_in_a_file_of_the_owners() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat_history");
        let (mut history, trouble) = History::open(Some(file.clone()));
        assert_eq!(trouble, None);
        for entry in ["one", "two\nlines", "two\nlines", "  "] {
            assert_eq!(history.add(entry), None);
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open(&file), (vec!["one".to_owned(), "two\nlines".to_owned()], None));
        assert_eq!(
            (history.find("o", 2), history.find("o", 1), history.find("o", 0)),
            (Some(1), Some(0), None)
        );
    }

    #[test]
    fn a_broken_file_is_set_aside_and_its_rest_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat_history");
        fs::write(&file, b"\"one\"\n\xff\xfe\n\"two\"\n").unwrap();
        let (entries, trouble) = open(&file);
        assert_eq!(entries, ["one", "two"]);
        assert!(trouble.unwrap().contains("set aside as"), "it is said");
        assert!(folder.path().join("chat_history.broken").exists());
        assert_eq!(open(&file), (vec!["one".to_owned(), "two".to_owned()], None));
    }

    #[test]
    fn half_a_line_is_what_a_power_cut_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat_history");
        fs::write(&file, "\"one\"\n\"tw").unwrap();
        assert_eq!(open(&file), (vec!["one".to_owned()], None));
        assert_eq!(fs::read_to_string(&file).unwrap(), "\"one\"\n");
    }

    #[test]
    fn the_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat_history");
        fs::write(&file, (0..3000).map(|n| line(&n.to_string())).collect::<String>()).unwrap();
        let (entries, _) = open(&file);
        assert_eq!((entries.len(), entries[0].as_str()), (ENTRIES_MAX, "2000"));
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), ENTRIES_MAX);
    }
}
