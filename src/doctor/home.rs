//! The home: who may look into it and write, its secrets and its socket, and the disk it is on.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clawmux_actors::host::regular_file;
use clawmux_actors::store::Severity;
use clawmux_core::config::Config;

use super::{Findings, HomeOwner};

/// So much of the heartbeat's file is looked at, in bytes.
const HEARTBEAT_BYTES_MAX: u64 = 1 << 20;

/// A disk that takes longer than this to keep a few bytes makes every prompt wait as long.
const SYNC_SLOW: Duration = Duration::from_millis(250);

/// The home; says whose it is.
pub(super) fn folder(home: &Path, found: &mut Findings) -> HomeOwner {
    let name = home.display();
    let meta = match fs::metadata(home) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            found.fine("home", format!("{name} is not there yet: `clawmux serve` makes it"));
            return HomeOwner::Missing;
        }
        Err(error) => {
            let advice = "see to the permissions of the folders above it";
            found.error("home", format!("can't look at {name}: {error}"), advice);
            return HomeOwner::Missing;
        }
    };
    if !meta.is_dir() {
        let advice = "move it away, or name another home with --home or CLAWMUX_HOME";
        found.error("home", format!("{name} is not a folder"), advice);
        return HomeOwner::Missing;
    }
    let us = fs::metadata("/proc/self").map(|own| own.uid()).ok();
    match us {
        Some(us) if us != meta.uid() => {
            let what = format!("{name} belongs to user {}, this is user {us}", meta.uid());
            let advice = format!(
                "run clawmux as the user who owns its home: sudo -u '#{}' clawmux doctor",
                meta.uid()
            );
            let severity = if us == 0 { Severity::Warning } else { Severity::Error };
            found.add("home", severity, what, advice);
            return if us == 0 { HomeOwner::Us } else { HomeOwner::Other };
        }
        _ if meta.mode() & 0o022 != 0 => {
            let what =
                format!("others than its owner may write into {name} (mode {:o})", meta.mode() & 0o777);
            found.error("home", what, format!("chmod 700 {name}"));
        }
        _ if meta.mode() & 0o077 != 0 => {
            let what = format!("others than its owner may look into {name} (mode {:o})", meta.mode() & 0o777);
            found.warning("home", what, format!("chmod 700 {name}"));
        }
        _ => found.fine("home", format!("{name}, for its owner only")),
    }
    HomeOwner::Us
}

/// The operator's socket and its folder, for their owner and perhaps a group.
pub(super) fn socket(home: &Path, has_group: bool, found: &mut Findings) {
    let folder = home.join(".xeno");
    let allowed: u32 = if has_group { 0o060 } else { 0 };
    for (path, more, right) in [
        (folder.clone(), if has_group { 0o050 } else { 0 }, if has_group { "750" } else { "700" }),
        (folder.join("gateway.sock"), allowed, if has_group { "660" } else { "600" }),
    ] {
        let Ok(meta) = fs::metadata(&path) else { continue };
        if meta.mode() & 0o077 & !more != 0 {
            let what = format!("others may reach {} (mode {:o})", path.display(), meta.mode() & 0o777);
            found.error("home", what, format!("chmod {right} {}", path.display()));
        }
    }
}

/// Files that hold secrets, and the configuration's own.
pub(super) fn secrets(home: &Path, files: &[(PathBuf, String)], found: &mut Findings) {
    for (path, text) in files {
        if let Ok(meta) = fs::metadata(path)
            && meta.mode() & 0o022 != 0
        {
            let what = format!("others may change {} (mode {:o})", path.display(), meta.mode() & 0o777);
            found.error("secret", what, format!("chmod go-w {}", path.display()));
        }
        for secret in text.lines().filter_map(secret_file) {
            let path = home.join(secret);
            match fs::metadata(&path) {
                Ok(meta) if meta.mode() & 0o077 != 0 => {
                    let what = format!("others may read {} (mode {:o})", path.display(), meta.mode() & 0o777);
                    found.error("secret", what, format!("chmod 600 {}", path.display()));
                }
                Ok(_) => found.fine("secret", format!("{} is for its owner only", path.display())),
                // The configuration is complained of.
                Err(_) => {}
            }
        }
    }
}

/// The file that a line of TOML names a secret by.
fn secret_file(line: &str) -> Option<&str> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let is_secret = key.ends_with("_file") && key != "ca_file" && !key.starts_with('#');
    let value = value.trim().strip_prefix(['"', '\''])?;
    is_secret.then(|| value.split(['"', '\'']).next()).flatten().filter(|path| !path.is_empty())
}

/// What the heartbeat would read.
pub(super) fn heartbeat(home: &Path, config: &Config, found: &mut Findings) {
    let path = home.join("HEARTBEAT.md");
    let text = regular_file::read_text(&path, HEARTBEAT_BYTES_MAX);
    let is_empty = text.as_ref().is_ok_and(|text| text.trim().is_empty());
    match (config.scheduler.heartbeat, text) {
        (None, _) => {}
        (Some(_), Ok(_)) if !is_empty => found.fine("home", format!("{} says what to do", path.display())),
        (Some(_), read) => {
            let why =
                read.err().map_or_else(|| "is empty".to_owned(), |error| format!("can't be read ({error})"));
            let what =
                format!("scheduler.heartbeat_minutes is set and {} {why}: no heartbeat runs", path.display());
            let advice = "write into it what is to be looked after, or set heartbeat_minutes = 0";
            found.warning("home", what, advice);
        }
    }
}

/// Whether the home's disk takes and keeps a few bytes, and how fast.
pub(super) fn disk(home: &Path, found: &mut Findings) {
    let path = home.join(format!(".doctor-{}", std::process::id()));
    let begun = Instant::now();
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(|mut file| {
            file.write_all(&[0; 4096])?;
            file.sync_all()
        });
    let took = begun.elapsed();
    let _ = fs::remove_file(&path);
    match written {
        Err(error) => {
            let advice = "make room, remount it writable, or see to the permissions; without it new work is refused";
            found.error("disk", format!("can't write into {}: {error}", home.display()), advice);
        }
        Ok(()) if took > SYNC_SLOW => found.warning(
            "disk",
            format!("writing 4 KiB into {} took {} ms", home.display(), took.as_millis()),
            "every prompt waits as long before it is acknowledged: put the home on a faster disk, or see what else uses it",
        ),
        Ok(()) => found.fine("disk", format!("writing 4 KiB takes {} ms", took.as_millis())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_home_that_others_write_into_is_wrong() {
        let home = tempfile::tempdir().unwrap();
        for (mode, severity) in
            [(0o700, Severity::Fine), (0o755, Severity::Warning), (0o770, Severity::Error)]
        {
            fs::set_permissions(home.path(), fs::Permissions::from_mode(mode)).unwrap();
            let mut found = Findings::default();
            assert_eq!(folder(home.path(), &mut found), HomeOwner::Us);
            assert_eq!(found.0[0].severity, severity, "{mode:o}: {}", found.0[0].what);
        }
        let mut found = Findings::default();
        disk(home.path(), &mut found);
        assert_ne!(found.0[0].severity, Severity::Error, "{}", found.0[0].what);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left");
        disk(&home.path().join("away"), &mut found);
        assert_eq!(found.0[1].severity, Severity::Error, "{}", found.0[1].what);
    }

    #[test]
    fn files_of_secrets_are_found() {
        for (line, file) in [
            ("token_file = \"t\"", Some("t")),
            ("  api_key_file='/a b' # x", Some("/a b")),
            ("ca_file = \"x\"", None),
            ("# token_file = \"t\"", None),
            ("token_file = \"\"", None),
            ("token_file", None),
        ] {
            assert_eq!(secret_file(line), file, "{line}");
        }
    }

    #[test]
    fn a_socket_is_for_its_owner_or_a_group() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".xeno");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("gateway.sock"), "").unwrap();
        let count = |of_folder: u32, of_socket: u32, has_group: bool| {
            fs::set_permissions(&folder, fs::Permissions::from_mode(of_folder)).unwrap();
            fs::set_permissions(folder.join("gateway.sock"), fs::Permissions::from_mode(of_socket)).unwrap();
            let mut found = Findings::default();
            socket(home.path(), has_group, &mut found);
            found.0.len()
        };
        assert_eq!([count(0o700, 0o600, false), count(0o750, 0o660, true)], [0, 0]);
        assert_eq!(
            [count(0o755, 0o666, false), count(0o750, 0o660, false), count(0o755, 0o666, true)],
            [2, 2, 2]
        );
    }
}
