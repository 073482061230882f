//! Compiled code that is kept between starts.
//!
//! What is kept is run as native code, so nothing of it reaches the runtime that this daemon did not
//! write: each module's code has a seal, a keyed digest of all its files, which is checked each time
//! before the runtime looks at them. One bit that the disk has turned, a file of somebody else's, a
//! key that was lost: the code is thrown away and compiled anew.
//!
//! ```text
//! cache.key                   the key of the seals, 0600, beside the folder
//! cache/                      ours, and nobody else writes to it or to anything in it
//!   loading-PID-N             somebody loads code now: locked while its process lives
//!   compiled/DIGEST/seal      of the files in code/
//!   compiled/DIGEST/code/     in the layout of the runtime's own cache
//!   described/DIGEST          what a plugin said of itself
//! ```
//!
//! A daemon that died while it loaded code leaves its mark unlocked; the next one then trusts nothing
//! that was kept. Where the folder can't be used, a temporary one takes its place until the end.

mod described;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::fs::{File, OpenOptions};
use std::hash::{Hash as _, Hasher};
use std::io;
use std::io::{Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use clawmux_core::hex::hex;
use hmac::{Hmac, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::compiler::{self, CompileError, Compiler};

/// The most bytes that are kept; what was not used for longest goes first.
const KEPT_BYTES_MAX: u64 = 256 << 20;

/// The most bytes of the code of one module.
const CODE_BYTES_MAX: u64 = 256 << 20;

/// The files the runtime has for a module: the module's own, its kernel's, and that of what it imports WASI from.
const CODE_FILES: RangeInclusive<usize> = 2..=3;

/// How deep the runtime's folders go.
const DEPTH_MAX: usize = 4;

/// What was being compiled so long ago is not any more.
const UNFINISHED_MAX: Duration = Duration::from_secs(3600);

const SEAL: &str = "seal";
const CODE: &str = "code";
const COMPILED: &str = "compiled";
const MARK: &str = "loading-";
const FRESH: &str = ".new-";
const KEY_BYTES: usize = 32;

type Seal = Hmac<Sha256>;

/// Tells what one process makes from what another does.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Where compiled code is kept, and what compiles what is not there.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    compiler: Compiler,
    place: OnceLock<Result<Place, String>>,
    /// Held by whoever puts code in its place or takes it away: two plugins may share one module, and
    /// neither may take away what the other has just checked.
    changing: Mutex<()>,
    figures: Figures,
}

/// What came of it so far.
#[derive(Debug, Default)]
struct Figures {
    found: AtomicU64,
    compiled: AtomicU64,
    rejected: AtomicU64,
}

/// A folder that can be used.
struct Place {
    folder: PathBuf,
    /// Whose it is.
    us: u32,
    key: [u8; KEY_BYTES],
    /// Why it is a temporary one, which goes with it.
    instead: Option<String>,
    /// Whether what was kept is gone because a start died over it.
    cleared: bool,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.instead.is_some() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Code that was checked, for as long as it takes to load it.
#[derive(Debug)]
pub(super) struct Code {
    /// The file the runtime reads to find it.
    pub(super) settings: PathBuf,
    /// A folder that is not kept.
    dropped: Option<PathBuf>,
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(folder) = &self.dropped {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Says that code is being loaded, until it is dropped.
#[derive(Debug)]
pub struct Mark {
    path: Option<PathBuf>,
    _locked: Option<File>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Why code that is there is not used.
#[derive(Debug, PartialEq, Eq)]
enum Unusable {
    Missing,
    Bad(String),
}

impl Cache {
    /// In `folder`, which is made (0700) when first used, with its key beside it.
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            compiler: Compiler::default(),
            place: OnceLock::new(),
            changing: Mutex::new(()),
            figures: Figures::default(),
        }
    }

    /// In a folder of its own that goes with it.
    pub fn temporary() -> Self {
        let cache = Self::new(PathBuf::new());
        let _ = cache.place.set(Place::temporary("nothing is to be kept".to_owned()));
        cache
    }

    /// With this compiler.
    #[must_use]
    pub fn compiled_by(mut self, compiler: Compiler) -> Self {
        self.compiler = compiler;
        self
    }

    fn place(&self) -> Result<&Place, CompileError> {
        let place = self.place.get_or_init(|| {
            Place::open(&self.folder).or_else(|why| {
                tracing::warn!(folder = %self.folder.display(), %why, "compiled plugins are not kept");
                Place::temporary(why)
            })
        });
        place.as_ref().map_err(|why| CompileError::Unavailable(why.clone()))
    }

    /// Marks that code is being loaded, until the answer is dropped.
    pub fn mark(&self) -> Mark {
        match self.place() {
            Ok(place) if place.instead.is_none() => mark(&place.folder),
            // Nobody would see it.
            _ => Mark { path: None, _locked: None },
        }
    }

    /// The code of `module`: what is kept, or compiled anew for as long as it is `wanted`. Blocks.
    ///
    /// # Errors
    /// A [`CompileError`].
    pub(super) fn code(&self, module: &[u8], wanted: &dyn Fn() -> bool) -> Result<Code, CompileError> {
        let unavailable = |error: io::Error| CompileError::Unavailable(error.to_string());
        let place = self.place()?;
        let compiled = place.folder.join(COMPILED);
        let name = name(module);
        let kept = compiled.join(&name);
        if let Some(code) = self.kept(place, &kept, &name)? {
            return Ok(code);
        }
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let fresh = compiled.join(format!("{FRESH}{}-{nth}", std::process::id()));
        let _ = remove(&fresh);
        // Removes it, whatever happens, unless it is kept.
        let mut code = Code { settings: PathBuf::new(), dropped: Some(fresh.clone()) };
        make(&fresh.join(CODE)).map_err(unavailable)?;
        self.compiler.compile(module, &fresh.join(CODE), wanted)?;
        self.figures.compiled.fetch_add(1, Ordering::Relaxed);
        place.seal(&fresh, &name).map_err(unavailable)?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever compiled the same meanwhile may be loading what is there by now.
        let is_theirs = place.check(&kept, &name).is_ok();
        if is_theirs || (remove(&kept).is_ok() && fs::rename(&fresh, &kept).is_ok()) {
            code.settings = compiler::settings(&kept.join(CODE), &kept).map_err(unavailable)?;
            code.dropped = is_theirs.then_some(fresh);
        } else {
            code.settings = compiler::settings(&fresh.join(CODE), &fresh).map_err(unavailable)?;
        }
        prune(&compiled, &kept);
        Ok(code)
    }

    /// The code that is kept, where it can be used; what cannot is taken away.
    fn kept(&self, place: &Place, kept: &Path, name: &str) -> Result<Option<Code>, CompileError> {
        let unavailable = |error: io::Error| CompileError::Unavailable(error.to_string());
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match place.check(kept, name) {
            Ok(()) => {
                self.figures.found.fetch_add(1, Ordering::Relaxed);
                // What is used stays.
                if let Ok(seal) = OpenOptions::new().write(true).open(kept.join(SEAL)) {
                    let _ = seal.set_modified(SystemTime::now());
                }
                let settings = compiler::settings(&kept.join(CODE), kept).map_err(unavailable)?;
                Ok(Some(Code { settings, dropped: None }))
            }
            Err(Unusable::Missing) => Ok(None),
            Err(Unusable::Bad(why)) => {
                self.figures.rejected.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(folder = %kept.display(), %why, "discarded a compiled plugin: compiling it again");
                remove(kept).map_err(unavailable)?;
                Ok(None)
            }
        }
    }

    /// How it is, for people and scripts.
    pub fn state(&self) -> Value {
        let place = self.place.get().and_then(|place| place.as_ref().ok());
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        json!({
            "folder": place.map_or(&self.folder, |place| &place.folder).display().to_string(),
            "not_kept": place.and_then(|place| place.instead.as_deref()),
            "cleared_at_start": place.is_some_and(|place| place.cleared),
            "found_total": figure(&self.figures.found),
            "compiled_total": figure(&self.figures.compiled),
            "rejected_total": figure(&self.figures.rejected),
        })
    }
}

impl Place {
    fn open(folder: &Path) -> Result<Self, String> {
        let why = |error: io::Error| error.to_string();
        make(folder).map_err(why)?;
        let folder = folder.canonicalize().map_err(why)?;
        let us = this_user();
        ours(&folder, us)?;
        let compiled = folder.join(COMPILED);
        let mut cleared = false;
        // An older version's.
        let _ = fs::remove_file(folder.join("wasmtime.toml"));
        for mark in left_marks(&folder).map_err(why)? {
            if !cleared {
                tracing::warn!(
                    folder = %folder.display(),
                    "an earlier start crashed while it loaded compiled plugins: compiling all of them again"
                );
                for entry in fs::read_dir(&compiled).into_iter().flatten().flatten() {
                    remove(&entry.path()).map_err(why)?;
                }
                cleared = true;
            }
            fs::remove_file(mark).map_err(why)?;
        }
        make(&compiled).map_err(why)?;
        ours(&compiled, us)?;
        tidy(&compiled);
        let key = read_or_make_key(&key_path(&folder), us)?;
        Ok(Self { folder, us, key, instead: None, cleared })
    }

    fn temporary(instead: String) -> Result<Self, String> {
        let failed = |error: io::Error| format!("no place for compiled code: {error}");
        let name = hex(&random().map_err(failed)?[..8]);
        let folder = std::env::temp_dir().join(format!("clawmux-plugins-{name}"));
        // One that is there is somebody else's.
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        // From here on it is removed with the place.
        let key = random().map_err(failed)?;
        let place = Self { folder, us: this_user(), key, instead: Some(instead), cleared: false };
        make(&place.folder.join(COMPILED)).map_err(failed)?;
        Ok(place)
    }

    /// Whether the code in `folder` is as it was sealed, for what it is said to be the code of, and in
    /// nobody else's hands.
    fn check(&self, folder: &Path, name: &str) -> Result<(), Unusable> {
        let seal = match fs::read(folder.join(SEAL)) {
            Ok(seal) => seal,
            Err(_) if fs::symlink_metadata(folder).is_err() => return Err(Unusable::Missing),
            Err(error) => return Err(Unusable::Bad(format!("its seal: {error}"))),
        };
        ours(folder, self.us).map_err(Unusable::Bad)?;
        let digest = self.digest(folder, name).map_err(Unusable::Bad)?;
        digest.verify_slice(&seal).map_err(|_| Unusable::Bad("it is not as it was written".to_owned()))?;
        Ok(())
    }

    /// Seals what was just compiled from what is called `name`.
    fn seal(&self, folder: &Path, name: &str) -> io::Result<()> {
        own(&folder.join(CODE), 0)?;
        let digest = self.digest(folder, name).map_err(io::Error::other)?;
        let mut seal = OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(SEAL))?;
        seal.write_all(&digest.finalize().into_bytes())
    }

    /// The keyed digest of the code in `folder`, with the names of its files and its own.
    fn digest(&self, folder: &Path, name: &str) -> Result<Seal, String> {
        let mut files = Vec::new();
        let mut left = CODE_BYTES_MAX;
        read_code(&folder.join(CODE), "", self.us, &mut left, &mut files)?;
        if !CODE_FILES.contains(&files.len()) {
            return Err(format!("it has {} files of code instead of {CODE_FILES:?}", files.len()));
        }
        files.sort();
        let mut digest = Seal::new_from_slice(&self.key).map_err(|error| error.to_string())?;
        let mut add = |part: &[u8]| {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part);
        };
        add(name.as_bytes());
        for (path, bytes) in &files {
            add(path.as_bytes());
            add(bytes);
        }
        Ok(digest)
    }
}

/// What the code of `module` is called: it tells the module, the program that compiles and the
/// machine's abilities, as far as code depends on them.
fn name(module: &[u8]) -> String {
    static MAKER: OnceLock<[u8; 32]> = OnceLock::new();
    let maker = MAKER.get_or_init(|| {
        let mut digest = Digest(Sha256::new_with_prefix(program()));
        if let Ok(engine) = wasmtime::Engine::new(wasmtime::Config::new().consume_fuel(true)) {
            engine.precompile_compatibility_hash().hash(&mut digest);
        }
        digest.0.finalize().into()
    });
    hex(&Sha256::new().chain_update(maker).chain_update(module).finalize())
}

/// Tells this program from others, and from what it was before it was built anew.
fn program() -> [u8; 32] {
    static PROGRAM: OnceLock<[u8; 32]> = OnceLock::new();
    *PROGRAM.get_or_init(|| {
        let mut digest = Digest(Sha256::new());
        env!("CARGO_PKG_VERSION").hash(&mut digest);
        let program = std::env::current_exe().and_then(|program| program.metadata()?.modified());
        let age = program.ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        age.map(|age| age.as_nanos()).hash(&mut digest);
        digest.0.finalize().into()
    })
}

/// A digest of what can be hashed.
struct Digest(Sha256);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

/// The files of code in `folder`, each with its path from the first one. What else the runtime keeps
/// there, such as how often a file was used, has a dot in its name, and it never takes it for code.
fn read_code(
    folder: &Path,
    path: &str,
    us: u32,
    left: &mut u64,
    files: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), String> {
    let why = |error: io::Error| format!("{}: {error}", folder.display());
    ours(folder, us)?;
    if path.matches('/').count() > DEPTH_MAX {
        return Err(format!("{} is too deep", folder.display()));
    }
    for entry in fs::read_dir(folder).map_err(why)? {
        let entry = entry.map_err(why)?;
        let own = entry.file_name();
        let Some(own) = own.to_str() else { return Err(format!("{own:?} is none of the runtime's names")) };
        let (at, below) = (entry.path(), format!("{path}/{own}"));
        let kind = entry.file_type().map_err(why)?;
        if kind.is_dir() {
            read_code(&at, &below, us, left, files)?;
        } else if !own.contains('.') {
            ours(&at, us)?;
            let bytes = read_file(&at, *left).map_err(|error| format!("{}: {error}", at.display()))?;
            *left -= bytes.len() as u64;
            files.push((below, bytes));
        }
    }
    Ok(())
}

fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    (&file).take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other("it is too large"));
    }
    Ok(bytes)
}

/// Takes all that is in `folder` out of others' hands, whatever the process's mask left them.
fn own(folder: &Path, depth: usize) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth < DEPTH_MAX {
            own(&entry.path(), depth + 1)?;
        } else if kind.is_file() {
            match fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o600)) {
                // The runtime keeps notes beside the code, which come and go.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                set => set?,
            }
        }
    }
    Ok(())
}

/// This process's user.
fn this_user() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether `path` belongs to the user `us`, and is nobody else's to write to.
fn ours(path: &Path, us: u32) -> Result<(), String> {
    let meta = fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if meta.is_symlink() {
        Err(format!("{} is a symbolic link", path.display()))
    } else if meta.uid() != us {
        Err(format!("{} belongs to another user", path.display()))
    } else if meta.mode() & 0o022 != 0 {
        Err(format!("others may write to {}, run chmod go-w on it", path.display()))
    } else {
        Ok(())
    }
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Takes something away that may not be there. Its name is free afterwards; a thread of the runtime may
/// still be writing down how often it was used, so that what is left of it is for [`tidy`].
fn remove(folder: &Path) -> io::Result<()> {
    let nth = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = folder.with_file_name(format!("{FRESH}{}-{nth}-old", std::process::id()));
    match fs::rename(folder, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        outcome => outcome?,
    }
    // Something else than a folder may have had the name.
    let _ = fs::remove_dir_all(&aside).or_else(|_| fs::remove_file(&aside));
    Ok(())
}

/// Removes what is nobody's: what was being compiled when a daemon died, and what an older version kept.
fn tidy(compiled: &Path) {
    for entry in fs::read_dir(compiled).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_old = || {
            let age = entry.metadata().and_then(|meta| meta.modified()).map(|time| time.elapsed());
            age.is_ok_and(|age| age.is_ok_and(|age| age > UNFINISHED_MAX))
        };
        let is_kept = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_kept && (!name.starts_with(FRESH) || is_old()) {
            let _ = remove(&entry.path());
        }
    }
}

/// Removes what was not used for longest, until the rest is small enough; never `but`.
fn prune(compiled: &Path, but: &Path) {
    let mut kept = Vec::new();
    for entry in fs::read_dir(compiled).into_iter().flatten().flatten() {
        let path = entry.path();
        let seal = fs::symlink_metadata(path.join(SEAL));
        if path != but
            && let Ok(used) = seal.and_then(|seal| seal.modified())
        {
            kept.push((used, size(&path, 0), path));
        }
    }
    kept.sort();
    let mut sum = size(but, 0) + kept.iter().map(|(_, size, _)| size).sum::<u64>();
    for (_, size, path) in kept {
        if sum <= KEPT_BYTES_MAX {
            return;
        }
        if remove(&path).is_ok() {
            sum -= size;
        }
    }
}

/// The bytes of all files in a folder.
fn size(folder: &Path, depth: usize) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(meta) if meta.is_file() => sum += meta.len(),
            Ok(meta) if meta.is_dir() && depth <= DEPTH_MAX => sum += size(&entry.path(), depth + 1),
            _ => {}
        }
    }
    sum
}

fn mark(folder: &Path) -> Mark {
    let nth = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("{MARK}{}-{nth}", std::process::id()));
    let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    // Unlocked it would be a dead one's to anybody who looks.
    match made.and_then(|file| file.lock().map(|()| file)) {
        Ok(file) => Mark { path: Some(path), _locked: Some(file) },
        Err(error) => {
            tracing::debug!(%error, "nothing says that compiled code is being loaded");
            let _ = fs::remove_file(&path);
            Mark { path: None, _locked: None }
        }
    }
}

/// The marks of those that died.
fn left_marks(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_mark = path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(MARK));
        if is_mark && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            left.push(path);
        }
    }
    Ok(left)
}

/// Where the key of the seals in `folder` is.
fn key_path(folder: &Path) -> PathBuf {
    folder.with_extension("key")
}

fn random() -> io::Result<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// The key, where it is one and nobody else can read or change it.
fn read_key(path: &Path, us: u32) -> Result<[u8; KEY_BYTES], String> {
    ours(path, us)?;
    let why = |error: io::Error| format!("{}: {error}", path.display());
    let mode = fs::symlink_metadata(path).map_err(why)?.mode();
    if mode & 0o077 != 0 {
        return Err(format!("others may read {} (mode {:o})", path.display(), mode & 0o777));
    }
    let bytes = read_file(path, KEY_BYTES as u64).map_err(why)?;
    bytes.try_into().map_err(|_| format!("{} is no key", path.display()))
}

fn read_or_make_key(path: &Path, us: u32) -> Result<[u8; KEY_BYTES], String> {
    match read_key(path, us) {
        Ok(key) => return Ok(key),
        Err(why) if path.exists() => tracing::warn!(%why, "made a new key for compiled plugins"),
        Err(_) => {}
    }
    let nth = COUNT.fetch_add(1, Ordering::Relaxed);
    let fresh = path.with_extension(format!("key.{}-{nth}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&random()?)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().map_err(|error| format!("{}: {error}", path.display()))?;
    // Another process's, where it did the same a moment later.
    read_key(path, us)
}

/// What is wrong with the code kept in `folder` and with its key, for whoever owns the folder around
/// it; nothing where none is kept. Blocks.
pub fn complaints(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let (Ok(folder), Some(Ok(home))) = (folder.canonicalize(), folder.parent().map(fs::metadata)) else {
        return found;
    };
    let us = home.uid();
    let (compiled, path) = (folder.join(COMPILED), key_path(&folder));
    found.extend(ours(&folder, us).err());
    match left_marks(&folder) {
        Ok(left) if left.is_empty() => {}
        Ok(_) => {
            found.push("a start died while it loaded them: the next one compiles all of them anew".to_owned())
        }
        Err(error) => found.push(format!("{}: {error}", folder.display())),
    }
    if !compiled.exists() {
        return found;
    }
    found.extend(ours(&compiled, us).err());
    match read_key(&path, us) {
        Ok(key) => {
            let place = Place { folder, us, key, instead: None, cleared: false };
            for entry in fs::read_dir(&compiled).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|name| !name.starts_with(FRESH)) else { continue };
                if let Err(Unusable::Bad(why)) = place.check(&entry.path(), name) {
                    found.push(format!("{}: {why}", entry.path().display()));
                }
            }
        }
        Err(why) => found.push(why),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(answer: u8) -> Vec<u8> {
        wat::parse_str(format!("(module (func (export \"describe\") (result i32) i32.const {answer}))"))
            .unwrap()
    }

    /// What a start on this cache found kept, compiled, and threw away.
    fn start(folder: &Path, modules: &[Vec<u8>]) -> [u64; 3] {
        let cache = Cache::new(folder.to_owned());
        for module in modules {
            let code = cache.code(module, &|| true).unwrap();
            let manifest = super::super::prepare::manifest(module).unwrap();
            let plugin = compiler::builder(manifest).with_cache_config(&code.settings).compile().unwrap();
            let mut plugin = extism::Plugin::new_from_compiled(&plugin).unwrap();
            plugin.call::<&[u8], &[u8]>("describe", b"").unwrap_err();
        }
        let state = cache.state();
        ["found_total", "compiled_total", "rejected_total"].map(|figure| state[figure].as_u64().unwrap())
    }

    /// All files below a folder that are sealed, and the seals.
    fn sealed(folder: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files.extend(sealed(&path));
            } else if !path.file_name().unwrap().to_str().unwrap().contains('.') {
                files.push(path);
            }
        }
        files
    }

    #[test]
    fn what_was_compiled_once_is_found_and_nothing_else_is_compiled_beside_it() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a \"quoted\" \\ İ");
        let modules = [module(1), module(2)];
        assert_eq!(start(&folder, &modules), [0, 2, 0]);
        let before = sealed(&folder);
        assert_eq!(before.len(), 6, "two seals, and two files for each: {before:?}");
        assert_eq!(start(&folder, &modules), [2, 0, 0]);
        assert_eq!(sealed(&folder), before, "the runtime found what it looked for");
        assert_eq!(complaints(&folder), Vec::<String>::new());
    }

    #[test]
    fn plugins_that_share_a_module_load_it_together() {
        let home = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let cache = Cache::new(home.path().join(format!("cache{round}")));
            let module = module(1);
            let start = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                let load = || {
                    start.wait();
                    let code = cache.code(&module, &|| true).expect("what is compiled is not taken away");
                    assert!(code.settings.exists(), "round {round}");
                };
                let loads: Vec<_> = (0..4).map(|_| scope.spawn(load)).collect();
                loads.into_iter().for_each(|load| load.join().unwrap());
            });
            assert_eq!(complaints(&cache.folder), Vec::<String>::new(), "round {round}");
            assert!(cache.folder.join(COMPILED).join(name(&module)).exists(), "round {round}");
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_seen_before_the_runtime_looks() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cache");
        let modules = [module(1)];
        assert_eq!(start(&folder, &modules), [0, 1, 0]);
        let mut flipped = 0;
        for path in sealed(&folder) {
            let bytes = fs::read(&path).unwrap();
            for at in [0, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
                let mut bad = fs::read(&path).unwrap();
                let at = at.min(bad.len() - 1);
                bad[at] ^= 1;
                fs::write(&path, bad).unwrap();
                let told = complaints(&folder);
                assert!(told.len() == 1 && told[0].ends_with("it is not as it was written"), "{told:?}");
                assert_eq!(start(&folder, &modules), [0, 1, 1], "{} at {at}", path.display());
                assert_eq!(start(&folder, &modules), [1, 0, 0], "what was compiled anew is kept");
                flipped += 1;
            }
        }
        assert_eq!(flipped, 12);
    }

    #[test]
    fn code_of_another_module_or_under_another_key_is_not_run() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cache");
        let modules = [module(1), module(2)];
        start(&folder, &modules);
        let [one, two] = [0, 1].map(|at| folder.join(COMPILED).join(name(&modules[at])));
        remove(&two).unwrap();
        fs::rename(&one, &two).unwrap();
        assert_eq!(start(&folder, &modules), [0, 2, 1]);
        let key = home.path().join("cache.key");
        assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        for spoil in [
            (|key: &Path| fs::remove_file(key)) as fn(&Path) -> io::Result<()>,
            |key| fs::write(key, [7; KEY_BYTES]),
            |key| fs::write(key, "short"),
            |key| fs::set_permissions(key, fs::Permissions::from_mode(0o644)),
        ] {
            assert_eq!(start(&folder, &modules), [2, 0, 0]);
            spoil(&key).unwrap();
            assert!(!complaints(&folder).is_empty());
            assert_eq!(start(&folder, &modules), [0, 2, 2]);
            assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_start_that_died_while_it_loaded_clears_what_was_kept() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cache");
        let modules = [module(1)];
        start(&folder, &modules);
        let alive = mark(&folder.canonicalize().unwrap());
        assert_eq!(start(&folder, &modules), [1, 0, 0], "somebody who lives loads too");
        drop(alive);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a mark goes with whoever made it");
        fs::write(folder.join("loading-1-0"), "").unwrap();
        assert!(complaints(&folder)[0].contains("a start died"));
        assert_eq!(start(&folder, &modules), [0, 1, 0]);
        assert_eq!((complaints(&folder).len(), start(&folder, &modules)), (0, [1, 0, 0]));
    }

    #[test]
    fn what_others_can_write_to_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cache");
        let modules = [module(1)];
        start(&folder, &modules);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o770)).unwrap();
        let kept = folder.join(COMPILED).join(name(&modules[0]));
        for path in [
            kept.clone(),
            kept.join(CODE),
            kept.join(CODE).join("modules"),
            sealed(&kept.join(CODE))[0].clone(),
        ] {
            open(&path);
            assert!(complaints(&folder)[0].contains("others may write to"));
            assert_eq!(start(&folder, &modules), [0, 1, 1], "{}", path.display());
        }
        for path in [folder.join(COMPILED), folder.clone()] {
            open(&path);
            assert!(complaints(&folder)[0].contains("others may write to"));
            let cache = Cache::new(folder.clone());
            let code = cache.code(&modules[0], &|| true).unwrap();
            let elsewhere = cache.state()["folder"].as_str().map(PathBuf::from).unwrap();
            assert!(!elsewhere.starts_with(&folder) && code.settings.starts_with(&elsewhere));
            drop(cache);
            assert!(!elsewhere.exists(), "a temporary one goes with it");
        }
        remove(&folder).unwrap();
        std::os::unix::fs::symlink(home.path(), home.path().join("link")).unwrap();
        fs::write(&folder, "a file").unwrap();
        assert!(Cache::new(folder).place().unwrap().instead.is_some());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let home = tempfile::tempdir().unwrap();
        let put = |name: &str, age: u64, bytes: u64| {
            let folder = home.path().join(name);
            make(&folder.join(CODE)).unwrap();
            File::create(folder.join(CODE).join("x")).unwrap().set_len(bytes).unwrap();
            let seal = File::create(folder.join(SEAL)).unwrap();
            seal.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            folder
        };
        let third = KEPT_BYTES_MAX / 3;
        let [new, middle, old, but] =
            [put("new", 1, third), put("middle", 2, third), put("old", 3, third), put("but", 4, third)];
        prune(home.path(), &but);
        assert_eq!([new, middle, old, but].map(|folder| folder.exists()), [true, true, false, true]);
    }
}
