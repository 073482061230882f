//! Files beneath a folder, opened so that nothing leads out of it: a step at a time from the folder down, and no
//! step may be a symbolic link. What is no regular file is not opened.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, statat};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A regular file that these names lead to from a folder, which may itself be reached by links.
///
/// # Errors
/// As the operating system's; `InvalidInput` where a step is a link, or the last is no regular file.
pub(super) fn open(folder: &Path, steps: &[impl AsRef<str>]) -> Result<File> {
    let Some((last, above)) = steps.split_last() else {
        return Err(Error::new(ErrorKind::InvalidInput, "it names no file"));
    };
    let mut at: OwnedFd = openat(CWD, folder, FOLDER, Mode::empty())?;
    for step in above {
        let step = step.as_ref();
        check(statat(&at, step, AtFlags::SYMLINK_NOFOLLOW)?.st_mode, FileType::Directory)?;
        at = openat(&at, step, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
    }
    let last = last.as_ref();
    // Opening a device can do things, so it is looked first; it may be another one by then.
    check(statat(&at, last, AtFlags::SYMLINK_NOFOLLOW)?.st_mode, FileType::RegularFile)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&at, last, flags, Mode::empty())?;
    check(fstat(&file)?.st_mode, FileType::RegularFile)?;
    Ok(File::from(file))
}

fn check(mode: rustix::fs::RawMode, wanted: FileType) -> Result<()> {
    let why = match FileType::from_raw_mode(mode) {
        found if found == wanted => return Ok(()),
        FileType::Symlink => "links within a skill are not followed",
        _ if wanted == FileType::Directory => "a step of the path is no folder",
        _ => "it is no regular file",
    };
    Err(Error::new(ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leads_out_and_nothing_special_is_opened() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("skill/refs")).unwrap();
        fs::write(path("secret"), "no").unwrap();
        fs::write(path("skill/refs/a.md"), "yes").unwrap();
        symlink(path("secret"), path("skill/link")).unwrap();
        symlink(root.path(), path("skill/up")).unwrap();
        symlink(path("skill/refs"), path("skill/in")).unwrap();
        symlink(path("skill"), path("alias")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("skill/pipe")).status().unwrap().success());

        let read = |folder: &str, steps: &[&str]| {
            let mut text = String::new();
            open(&path(folder), steps)?.read_to_string(&mut text)?;
            Ok::<_, Error>(text)
        };
        for folder in ["skill", "alias"] {
            assert_eq!(read(folder, &["refs", "a.md"]).unwrap(), "yes");
        }
        for (steps, why) in [
            (&["link"][..], "links within a skill"),
            (&["up", "secret"], "links within a skill"),
            (&["in", "a.md"], "links within a skill"),
            (&["pipe"], "no regular file"),
            (&["refs"], "no regular file"),
            (&["refs", "a.md", "x"], "no folder"),
            (&["none"], "No such file"),
            (&[], "names no file"),
        ] {
            let error = read("skill", steps).unwrap_err().to_string();
            assert!(error.contains(why), "{steps:?}: {error}");
        }
    }
}
