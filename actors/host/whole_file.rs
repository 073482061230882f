//! How a file is written: whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Puts a new file in the place of the old one: there is always one of them, whole, whatever happens. It has
/// the old one's permissions and owner, or `mode` where there is none.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    // Where it is a link, what that leads to is meant.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(ErrorKind::InvalidInput));
    };
    let begin = format!(".{}.", name.to_string_lossy());
    clean_up(folder, &begin)?;
    let new = folder.join(format!("{begin}{}.new", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        if let Ok(old) = fs::metadata(&path) {
            file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
            // Only root can give a file away; for others it is theirs already.
            let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    File::open(folder)?.sync_all()
}

/// Removes what was left by processes that ended while they wrote.
fn clean_up(folder: &Path, begin: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let writer = name
            .to_str()
            .and_then(|name| name.strip_prefix(begin)?.strip_suffix(".new")?.parse::<u32>().ok());
        if let Some(writer) = writer
            && (writer == std::process::id() || !Path::new("/proc").join(writer.to_string()).exists())
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether it could be written: whether a file can be put beside it.
pub(crate) fn is_writable(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let try_out: PathBuf = folder.join(format!(".{}.{}.try", name.to_string_lossy(), std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&try_out);
    let _ = made.is_ok().then(|| fs::remove_file(&try_out));
    made.is_ok()
}
