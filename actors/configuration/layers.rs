//! What a configuration is made of, and how that is read.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clawmux_core::config::{self, Config, Flag, Sources};

use super::BYTES_MAX;
use crate::host::{machine, regular_file};
use crate::store;

/// What a configuration is made of: where its files are, and what the process was started with.
#[derive(Clone, Default)]
pub struct Layers {
    /// Where relative paths start.
    pub home: PathBuf,
    /// The file for all users of a machine, which need not be there.
    pub system: PathBuf,
    /// The file over it, which changes are written to.
    pub file: PathBuf,
    /// Whether that one was named, and so must be there.
    pub is_named: bool,
    /// The environment: values and secrets.
    pub env: Vec<(String, String)>,
    /// The addresses that the command line wants.
    pub listen: Vec<String>,
    /// What else is wrong with a configuration, which only the file system or others know.
    pub look: Option<fn(&Config, &Path) -> Vec<String>>,
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers")
            .field("system", &self.system)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Layers {
    /// The files that are there, the weakest first, with their texts.
    ///
    /// # Errors
    /// Which can't be read, and why.
    pub fn files(&self) -> Result<Vec<(PathBuf, String)>, String> {
        let mut files = Vec::new();
        for path in [&self.system, &self.file] {
            match text(path) {
                Ok(text) => files.push((path.clone(), text)),
                Err(_) if path.as_os_str().is_empty() => {}
                Err(Unread::Absent) if !(self.is_named && *path == self.file) => {}
                Err(why) => return Err(format!("{}: can't be read: {why}", path.display())),
            }
        }
        Ok(files)
    }

    /// Hands them to a function that puts them together.
    pub fn with<T>(&self, files: &[(PathBuf, String)], put_together: impl FnOnce(Sources<'_>) -> T) -> T {
        let names: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        let files: Vec<config::File<'_>> =
            names.iter().zip(files).map(|(name, (_, text))| config::File { name, text }).collect();
        let flag = Flag { name: "--listen", key: "gateway.listen", values: &self.listen };
        put_together(Sources {
            files: &files,
            env: &self.env,
            flags: if self.listen.is_empty() { &[] } else { std::slice::from_ref(&flag) },
            home: &self.home,
            host: &machine::host(),
            read_secret: &mut |path| text(path).map_err(|why| why.to_string()),
            is_file: &mut |path| path.is_file(),
            has_issued: &mut store::has_issued,
        })
    }
}

/// Why there is no text.
#[derive(Debug)]
enum Unread {
    Absent,
    Otherwise(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("No such file or directory (os error 2)"),
            Self::Otherwise(why) => f.write_str(why),
        }
    }
}

fn text(path: &Path) -> Result<String, Unread> {
    regular_file::read_text(path, BYTES_MAX).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Unread::Absent,
        _ => Unread::Otherwise(error.to_string()),
    })
}
