//! Files that somebody named in the configuration: read so that none makes the reader wait.
//!
//! A pipe waits for its other end and opening a device can do things, so neither is opened; what gives no
//! more bytes for the moment is an error. Only a file system that does not answer can hold a reader up.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The bytes of a regular file of at most `bytes_max`.
///
/// # Errors
/// As the operating system's; `InvalidInput` where it is no regular file, `FileTooLarge`.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Its text.
///
/// # Errors
/// As [`read`]'s; `InvalidData` where it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    let not_text = |_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(read(path, bytes_max)?).map_err(not_text)
}

/// A regular file, for reading.
///
/// # Errors
/// As the operating system's; `InvalidInput` where it is no regular file.
pub fn open(path: &Path) -> Result<File> {
    let is_regular = |facts: fs::Metadata| {
        let refused = || Error::new(ErrorKind::InvalidInput, "it is no regular file");
        facts.is_file().then_some(()).ok_or_else(refused)
    };
    is_regular(fs::metadata(path)?)?;
    // It may be another one by now.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    is_regular(file.metadata()?)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink(path("pipe"), path("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for name in ["pipe", "link", "socket", ".", "/dev/zero", "/dev/tty"] {
            let error = read(&path(name), 9).unwrap_err();
            assert_eq!(error.to_string(), "it is no regular file", "{name}");
        }
        assert_eq!(read(&path("none"), 9).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn so_much_is_read_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "123456789").unwrap();
        assert_eq!(read_text(&path, 9).unwrap(), "123456789");
        assert_eq!(read(&path, 8).unwrap_err().to_string(), "it is larger than 8 bytes");
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 9).unwrap_err().to_string(), "it is not UTF-8 text");
    }
}
