//! Programs from PyPI, each in a Python environment of its own that is made once, and the sources of others.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::running::bounded;

/// The Python of an environment with this package, such as `ziglang==0.17.1`; others follow after spaces.
///
/// # Panics
/// Where it can't be installed, saying why.
pub fn with(package: &str) -> PathBuf {
    once(package, |folder| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder));
        run(Command::new(python(folder)).args(["-m", "pip", "install", "-q"]).args(package.split(' ')));
    })
    .join("bin/python")
}

/// The folder with the source of this package.
///
/// # Panics
/// As [`with`].
pub fn source_of(package: &str) -> PathBuf {
    once(package, |folder| {
        let _ = fs::remove_dir_all(folder);
        run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")));
        let download = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", package, "-d"];
        run(Command::new(python(&folder.join("venv"))).args(download).arg(folder.join("archive")));
        let archive = fs::read_dir(folder.join("archive")).unwrap().next().expect("an archive").unwrap();
        let unpack = ["--strip-components=1", "--no-same-owner", "-xzf"];
        run(Command::new("tar").args(unpack).arg(archive.path()).arg("-C").arg(folder));
    })
}

fn python(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn run(command: &mut Command) {
    let ended = bounded(command).output().expect("it runs");
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// The folder of this package, which is filled once.
fn once(package: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let name = package.split("==").next().unwrap_or(package);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pypi-{name}"));
    fs::create_dir_all(&folder).unwrap();
    // Two processes do not do it at once.
    let lock = File::create(folder.with_extension("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let done = folder.join("installed");
    if !fs::read_to_string(&done).is_ok_and(|installed| installed == package) {
        fill(&folder);
        fs::write(done, package).unwrap();
    }
    folder
}
