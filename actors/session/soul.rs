//! An agent's soul: what its file says. It is looked at again when a run begins, so that whoever edits it need not
//! tell the daemon.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::swappable::Swappable;

use crate::host::regular_file;

/// The longest soul, in bytes.
pub const SOUL_BYTES_MAX: u64 = 1 << 20;

/// An agent's soul, shared by its sessions.
#[derive(Debug)]
pub struct Soul {
    file: PathBuf,
    known: Swappable<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    text: Arc<str>,
    /// Of the file, as it was read; none where there was none.
    facts: Option<(SystemTime, u64)>,
}

impl Soul {
    /// That of this file; one that is not there is an empty soul. Blocks.
    ///
    /// # Errors
    /// `Unavailable` where it can't be read or is longer than [`SOUL_BYTES_MAX`], with its path.
    pub fn read(file: &Path) -> Result<Self, Error> {
        // Before it is read: what is written after that is noticed.
        let facts = facts(file);
        let known = Known { text: text(file)?.into(), facts };
        Ok(Self { file: file.to_owned(), known: Swappable::new(known) })
    }

    /// What it says, as far as is known.
    pub fn text(&self) -> Arc<str> {
        self.known.get().text.clone()
    }

    /// Looks at its file, and reads it where it was changed. One that can't be read leaves it as it was, with a word
    /// in the log. Blocks.
    pub fn look(&self) {
        let (facts, before) = (facts(&self.file), self.known.get());
        if facts == before.facts {
            return;
        }
        let mut known = Known { facts, ..(*before).clone() };
        match text(&self.file) {
            Ok(text) if *text == *before.text => {}
            Ok(text) => {
                tracing::info!(file = %self.file.display(), bytes = text.len(), "the soul was changed");
                known.text = text.into();
            }
            Err(error) => tracing::warn!(%error, "the soul stays as it was"),
        }
        self.known.set(known);
    }
}

fn facts(file: &Path) -> Option<(SystemTime, u64)> {
    let facts = fs::metadata(file).ok()?;
    Some((facts.modified().ok()?, facts.len()))
}

fn text(file: &Path) -> Result<String, Error> {
    match regular_file::read_text(file, SOUL_BYTES_MAX) {
        Ok(soul) => Ok(soul.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            Err(ErrorCode::Unavailable.error(format!("the soul {} can't be read: {error}", file.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_into_the_file_is_noticed_and_what_can_not_be_read_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("SOUL.md");
        let soul = Soul::read(&file).unwrap();
        assert_eq!(&*soul.text(), "");
        fs::write(&file, " Be kind.\n").unwrap();
        soul.look();
        assert_eq!(&*soul.text(), "Be kind.");
        fs::write(&file, b"\xff\xfe\xfd\xfc").unwrap();
        soul.look();
        assert_eq!(&*soul.text(), "Be kind.", "it is no text");
        fs::remove_file(&file).unwrap();
        soul.look();
        assert_eq!(&*soul.text(), "");
    }
}
