//! The home: the folder that holds the store, the soul, the plugins and the sockets of one daemon.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::exit::{FAILED, Failure};

/// Where it is: `--home`, else `$CLAWMUX_HOME`, else `$STATE_DIRECTORY` (systemd), else `~/.clawmux`.
/// `env` reads a variable.
///
/// # Errors
/// Where none of them is set.
pub(crate) fn resolve(flag: Option<&Path>, env: impl Fn(&str) -> Option<String>) -> Result<PathBuf, Failure> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    // systemd parts several state directories by colons; the first is the unit's own.
    let state = || set("STATE_DIRECTORY").and_then(|all| all.split(':').next().map(PathBuf::from));
    let home = flag
        .map(Path::to_owned)
        .or_else(|| set("CLAWMUX_HOME").map(PathBuf::from))
        .or_else(state)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".clawmux")))
        .ok_or_else(|| {
            Failure::new(FAILED, "there is no home: HOME is not set. Give --home DIR, or set CLAWMUX_HOME")
        })?;
    std::path::absolute(&home)
        .map_err(|error| Failure::new(FAILED, format!("home {}: {error}", home.display())))
}

/// Makes it, for its owner only, where it is not there.
///
/// # Errors
/// If it can't be made.
pub(crate) fn create(home: &Path) -> Result<(), Failure> {
    if home.exists() && !home.is_dir() {
        return Err(Failure::new(FAILED, format!("the home {} is not a folder", home.display())));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(|error| {
        let advice = "see to the permissions of the folders above it, or choose another home with --home DIR";
        Failure::new(FAILED, format!("can't make the home {}: {error}: {advice}", home.display()))
    })
}

/// Whether files can be made in this folder, or in the first above it that is there: it would be made.
/// Nothing is left behind.
///
/// # Errors
/// Why not, with the folder.
pub(crate) fn usable(folder: &Path) -> Result<(), String> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    // A file without a name.
    let made = OpenOptions::new().write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(there);
    match made {
        Ok(_) => Ok(()),
        // Not every file system has those.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(error) if there == folder => Err(format!("can't write into {}: {error}", folder.display())),
        Err(error) => Err(format!("{}: can't write into {}: {error}", folder.display(), there.display())),
    }
}

/// The process that holds the home, by its lock; it may not say which it is.
pub(crate) fn holder(home: &Path) -> Option<String> {
    let path = home.join(".xeno").join("gateway.lock");
    let lock = File::open(&path).ok()?;
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let pid: String =
                fs::read_to_string(&path).ok()?.chars().filter(char::is_ascii_digit).take(10).collect();
            Some(if pid.is_empty() { "unknown process".into() } else { format!("process {pid}") })
        }
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_first_that_is_named_wins() {
        let all = [("CLAWMUX_HOME", "/a"), ("STATE_DIRECTORY", "/b:/c"), ("HOME", "/d")];
        let with = |from: usize, flag: Option<&str>| {
            let env =
                |name: &str| all[from..].iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
            resolve(flag.map(Path::new), env).map(|home| home.display().to_string())
        };
        assert_eq!(with(0, Some("/flag")).unwrap(), "/flag");
        assert_eq!(with(0, None).unwrap(), "/a");
        assert_eq!(with(1, None).unwrap(), "/b");
        assert_eq!(with(2, None).unwrap(), "/d/.clawmux");
        assert!(with(3, None).unwrap_err().message.contains("CLAWMUX_HOME"));
        let empty = resolve(None, |name| (name == "CLAWMUX_HOME").then(String::new));
        assert!(empty.is_err(), "an empty variable names nothing");
    }

    #[test]
    fn a_new_home_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("a/b");
        create(&home).unwrap();
        create(&home).unwrap();
        assert_eq!(std::fs::metadata(&home).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_is_no_home() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let failure = create(file.path()).unwrap_err();
        assert!(failure.message.ends_with("is not a folder"), "{failure:?}");
    }
}
