//! What plugins said of themselves, kept between starts: all that a start needs of one. So what has said it
//! once is neither compiled nor loaded before it is called, and the runtime not made.
//!
//! It is kept in `described/`, beside `compiled/`, under the keyed digest of the plugin with all that was
//! decided about it and of this program. A file begins with its seal.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use clawmux_core::hex::hex;
use hmac::Mac as _;

use super::{COUNT, Cache, FRESH, Place, Seal, make, program, read_file};
use crate::sandbox::source::Package;

const DESCRIBED: &str = "described";

/// The most bytes of what one says.
const BYTES_MAX: u64 = 1 << 20;

/// The most files; what was not used for longest goes first.
const FILES_MAX: usize = 1024;

const SEAL_BYTES: usize = 32;

impl Cache {
    /// What this plugin said of itself, where that is kept. Blocks.
    pub(crate) fn described(&self, package: &Package) -> Option<Vec<u8>> {
        let (place, path) = self.description_of(package)?;
        let mut said = read_file(&path, BYTES_MAX).ok()?;
        if said.len() < SEAL_BYTES {
            return None;
        }
        let seal: Vec<u8> = said.drain(..SEAL_BYTES).collect();
        sealed(place, &path, &said)?.verify_slice(&seal).ok()?;
        // What is used stays.
        if let Ok(file) = OpenOptions::new().write(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(said)
    }

    /// Keeps what this plugin said of itself; where that is not possible it is asked again. Blocks.
    pub(crate) fn keep_described(&self, package: &Package, said: &[u8]) {
        let Some((place, path)) = self.description_of(package) else { return };
        if let Err(error) = keep(place, &path, said) {
            tracing::debug!(%error, "what a plugin said of itself is not kept");
        }
    }

    /// Where it is kept; nowhere where nothing is.
    fn description_of(&self, package: &Package) -> Option<(&Place, PathBuf)> {
        let place = self.place().ok().filter(|place| place.instead.is_none())?;
        let mut name = Seal::new_from_slice(&place.key).ok()?;
        name.update(DESCRIBED.as_bytes());
        name.update(&program());
        name.update(&package.digest());
        let name = hex(&name.finalize().into_bytes());
        Some((place, place.folder.join(DESCRIBED).join(name)))
    }
}

/// The seal of what is said in the file at `path`.
fn sealed(place: &Place, path: &Path, said: &[u8]) -> Option<Seal> {
    let mut seal = Seal::new_from_slice(&place.key).ok()?;
    seal.update(path.file_name()?.as_encoded_bytes());
    seal.update(said);
    Some(seal)
}

fn keep(place: &Place, path: &Path, said: &[u8]) -> io::Result<()> {
    let folder = place.folder.join(DESCRIBED);
    make(&folder)?;
    let seal = sealed(place, path, said).ok_or_else(|| io::Error::other("there is no key"))?;
    let nth = COUNT.fetch_add(1, Ordering::Relaxed);
    let fresh = folder.join(format!("{FRESH}{}-{nth}", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).open(&fresh).and_then(|mut file| {
        file.write_all(&seal.finalize().into_bytes())?;
        file.write_all(said)
    });
    written.and_then(|()| fs::rename(&fresh, path)).inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    prune(&folder, FILES_MAX);
    Ok(())
}

/// Removes what was not used for longest, until there are so many files.
fn prune(folder: &Path, files_max: usize) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut kept: Vec<(SystemTime, PathBuf)> =
        entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    kept.sort();
    for (_, path) in &kept[..kept.len().saturating_sub(files_max)] {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::source::{Source, embedded};

    fn package(name: &str) -> Package {
        let own = Source::own(&embedded(), &name.into(), None).unwrap();
        own.read(&name.into(), None, &[]).unwrap()
    }

    #[test]
    fn what_a_plugin_said_is_found_as_it_was_and_nothing_else_is() {
        let home = tempfile::tempdir().unwrap();
        let cache = || Cache::new(home.path().join("cache"));
        let (echo, clock) = (package("echo"), package("clock"));
        assert_eq!(cache().described(&echo), None);
        cache().keep_described(&echo, b"echoes");
        assert_eq!(cache().described(&echo).as_deref(), Some(&b"echoes"[..]));
        assert_eq!(cache().described(&clock), None);
        let mut told = echo.clone();
        told.settings.insert("tone".into(), "low".into());
        assert_eq!(cache().described(&told), None, "it may say something else now");
        assert_eq!(Cache::temporary().described(&echo), None);

        let folder = home.path().join("cache").join(DESCRIBED);
        let [path] =
            &fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..]
        else {
            panic!("one file")
        };
        let whole = fs::read(path).unwrap();
        for at in [0, SEAL_BYTES - 1, SEAL_BYTES, whole.len() - 1] {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(path, bad).unwrap();
            assert_eq!(cache().described(&echo), None, "a bit turned at {at}");
        }
        fs::write(path, &whole[..SEAL_BYTES - 1]).unwrap();
        assert_eq!(cache().described(&echo), None, "cut off");
        cache().keep_described(&echo, b"anew");
        assert_eq!(cache().described(&echo).as_deref(), Some(&b"anew"[..]));
        fs::remove_file(home.path().join("cache.key")).unwrap();
        assert_eq!(cache().described(&echo), None, "under another key");
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        for age in [1, 3, 2] {
            let file = fs::File::create(folder.path().join(age.to_string())).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        prune(folder.path(), 2);
        assert_eq!(["1", "2", "3"].map(|name| folder.path().join(name).exists()), [true, true, false]);
    }
}
