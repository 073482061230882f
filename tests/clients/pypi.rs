//! Programs from PyPI, each in a Python environment of its own that is made once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::running::bounded;

/// The Python of an environment with this package, such as `ziglang==0.17.1`.
///
/// # Panics
/// Where it can't be installed, saying why.
pub fn with(package: &str) -> PathBuf {
    let name = package.split("==").next().unwrap_or(package);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pypi-{name}"));
    fs::create_dir_all(&folder).unwrap();
    // Two processes do not do it at once.
    let lock = File::create(folder.with_extension("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let (python, done) = (folder.join("bin/python"), folder.join("installed"));
    if fs::read_to_string(&done).is_ok_and(|installed| installed == package) {
        return python;
    }
    let run = |command: &mut Command| {
        let ended = bounded(command).output().expect("it runs");
        assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    };
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
    run(Command::new(&python).args(["-m", "pip", "install", "-q", package]));
    fs::write(done, package).unwrap();
    python
}
