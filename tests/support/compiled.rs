//! Compiled code of the plugins that come with the binary: made once, given to every home.
//!
//! To compile them takes more processor time than all else that most tests have a daemon do. Tests of what a daemon
//! does without it empty `cache/` or take a bare temporary folder.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use super::daemon::{Daemon, binary};

/// Of a home, what makes compiled code good there, and that code.
const KEPT: [&str; 2] = ["cache.key", "cache"];

/// Has a daemon of `home` find what is compiled already.
pub fn give(home: &Path) {
    for name in KEPT {
        copy(&made().join(name), &home.join(name));
    }
}

/// A home that has it, of this very binary: code is good for the program that made it.
fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let built = fs::metadata(binary()).and_then(|binary| binary.modified()).expect("it is built");
        let age = built.duration_since(SystemTime::UNIX_EPOCH).expect("it was built after 1970").as_nanos();
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = all.join(format!("compiled-{age}"));
        if !folder.exists() {
            let home = tempfile::tempdir_in(all).expect("a folder");
            let mut daemon = Daemon::at(home, "", &[]);
            for plugin in ["echo", "clock"] {
                daemon.stdout_of(&["plugins", plugin, "--json"]);
                daemon.stdout_of(&["plugin", "call", plugin, r#"{"text":""}"#]);
            }
            assert!(daemon.terminate().success(), "{}", daemon.log());
            // Another process may have been as fast.
            let _ = fs::rename(daemon.home(), &folder);
        }
        folder
    })
}

/// Copies a file, or a folder that only its owner may read, but for what names the folder it is in.
fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        return;
    }
    fs::DirBuilder::new().mode(0o700).create(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    for entry in fs::read_dir(from).expect("it is read") {
        let name = entry.expect("it is read").file_name();
        if name != "wasmtime.toml" {
            copy(&from.join(&name), &to.join(&name));
        }
    }
}
