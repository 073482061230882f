//! A disk that can be watched and made to fail: `disk.c`, compiled and preloaded into a daemon.

pub mod journal;
pub mod random;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library, compiled once for each test binary.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = folder.path().join("disk.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/shim/disk.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o"])
            .args([&library, &source])
            .args(["-ldl", "-lpthread"])
            .output()
            .expect("a C compiler, which the bundled SQLite needs too");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        (folder, library)
    });
    library
}

/// ENOSPC.
pub const FULL: i32 = 28;
/// EIO.
pub const BROKEN: i32 = 5;

/// The disk under one home.
pub struct Disk {
    home: PathBuf,
    /// Beside the home, not on its disk.
    folder: tempfile::TempDir,
}

impl Disk {
    /// The disk that this home is on.
    pub fn under(home: &Path) -> Self {
        Self { home: home.to_owned(), folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// What makes a daemon run on it.
    pub fn env(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        vec![
            ("LD_PRELOAD".into(), path(library())),
            ("CLAWMUX_DISK_HOME".into(), path(&self.home)),
            ("CLAWMUX_DISK_FAULT".into(), path(&self.fault())),
        ]
    }

    /// As [`Self::env`], and every change of the log is recorded.
    pub fn recording(&self) -> Vec<(String, String)> {
        let mut env = self.env();
        let journal = self.journal().to_str().expect("a path in UTF-8").to_owned();
        env.push(("CLAWMUX_DISK_JOURNAL".into(), journal));
        env
    }

    /// Where the changes are recorded.
    pub fn journal(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    /// From now on operations fail as this says: files, operation, error number, and after how many
    /// bytes; see `disk.c`.
    pub fn fail(&self, files: &str, operation: &str, error: i32, after_bytes: u64) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{files} {operation} {error} {after_bytes}\n")).expect("it is written");
        std::fs::rename(new, self.fault()).expect("it is put in place");
    }

    /// From now on all is well.
    pub fn heal(&self) {
        std::fs::remove_file(self.fault()).expect("it had failed");
    }

    fn fault(&self) -> PathBuf {
        self.folder.path().join("fault")
    }
}
