//! What turns modules into machine code: a process of its own.
//!
//! A compiler is no sandbox. A module of a few hundred kilobytes can be made to take gigabytes or
//! minutes of it, and nothing in this process could end that. So the daemon starts its own program
//! anew for each module, with limits of memory and time, and kills it at the end of them; what a
//! compiler's own fault would take with it is that process and not the daemon.
//!
//! The child reads the module from its standard input and writes the code into a folder, in the
//! layout of the runtime's cache. It has no environment and needs no right that the daemon has not.

use std::fmt;
use std::fs;
use std::io;
use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clawmux_core::error::ErrorCode;
use extism::{DebugOptions, Manifest, PluginBuilder};

use super::{module, prepare};

/// The command of the program that compiles: `compile-plugin FOLDER MEMORY SECONDS`.
pub const COMMAND: &str = "compile-plugin";

/// The exit status of a child whose module the compiler does not take.
pub const REFUSED: u8 = 3;

/// The most bytes of machine code on the disk, in any one file.
const CODE_BYTES_MAX: u64 = 128 << 20;

/// So much is read of what a child says of its failure, in bytes.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// What compiling one module may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most memory, in bytes, besides what the program has before it begins.
    pub memory: u64,
    /// The most time, both by the clock and of all its threads together.
    pub time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        // A runtime of some megabytes, as Go's, takes 20 s where others use the processors, too.
        Self { memory: 512 << 20, time: Duration::from_secs(60) }
    }
}

/// Where modules are compiled.
#[derive(Clone, Debug, Default)]
pub enum Compiler {
    /// In this process, without bounds. For tests, and for modules that are ours.
    #[default]
    Here,
    /// In a child.
    Child {
        /// The program, which is one that knows [`COMMAND`].
        program: PathBuf,
        /// What it may take.
        bounds: Bounds,
    },
}

/// Why a module was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The compiler does not take it, and says why.
    Refused(String),
    /// It takes more memory than this, in bytes.
    Memory(u64),
    /// It takes more time than this.
    Time(Duration),
    /// It makes more machine code than this, in bytes.
    Size(u64),
    /// The compiler came to grief over it.
    Crashed(String),
    /// Nobody wants it any more.
    Abandoned,
    /// There is no compiler, or no place for what it makes.
    Unavailable(String),
}

impl CompileError {
    /// The kind of error it is to a client.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) | Self::Crashed(_) => ErrorCode::InvalidRequest,
            Self::Memory(_) | Self::Size(_) => ErrorCode::TooLarge,
            Self::Time(_) => ErrorCode::Timeout,
            Self::Abandoned | Self::Unavailable(_) => ErrorCode::Unavailable,
        }
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "it cannot be compiled: {why}"),
            Self::Memory(most) => {
                write!(f, "compiling it takes more than {} MiB of memory, the limit", most >> 20)
            }
            Self::Time(most) => {
                write!(f, "compiling it takes longer than {} ms, the limit", most.as_millis())
            }
            Self::Size(most) => write!(f, "compiled it has more than {} MiB, the limit", most >> 20),
            Self::Crashed(how) => write!(f, "the compiler failed on it: {how}"),
            Self::Abandoned => f.write_str("nobody waits for it any more"),
            Self::Unavailable(why) => write!(f, "it cannot be compiled now: {why}"),
        }
    }
}

impl Compiler {
    /// In children of the program that runs now, even where another one has taken its place on the
    /// disk.
    pub fn child() -> Self {
        Self::Child { program: "/proc/self/exe".into(), bounds: Bounds::default() }
    }

    /// Compiles `module` into `folder`, which is there and empty, for as long as it is `wanted`.
    /// Blocks.
    ///
    /// # Errors
    /// A [`CompileError`]; the folder may then hold anything.
    pub fn compile(
        &self,
        module: &[u8],
        folder: &Path,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), CompileError> {
        match self {
            Self::Here => compile(module, folder).map_err(CompileError::Refused),
            Self::Child { program, bounds } => in_child(program, *bounds, module, folder, wanted),
        }
    }
}

/// A child that ends with whoever waits for it.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a child's life ended.
enum End {
    By(ExitStatus),
    Late,
    Unwanted,
}

fn in_child(
    program: &Path,
    bounds: Bounds,
    module: &[u8],
    folder: &Path,
    wanted: &dyn Fn() -> bool,
) -> Result<(), CompileError> {
    let unavailable = |error: io::Error| CompileError::Unavailable(error.to_string());
    let begun = Instant::now();
    let spawned = Command::new(program)
        .arg0("clawmux")
        .arg(COMMAND)
        .arg(folder)
        .arg(bounds.memory.to_string())
        .arg(bounds.time.as_secs().max(1).to_string())
        // Neither secrets nor what would change how it compiles.
        .env_clear()
        // An arena for each thread would count as memory though nothing is in it.
        .env("MALLOC_ARENA_MAX", "1")
        .env("RAYON_NUM_THREADS", "2")
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = Owned(spawned.map_err(unavailable)?);
    let (stdin, stderr) = (child.0.stdin.take(), child.0.stderr.take());
    let end = std::thread::scope(|scope| {
        // Not here: a child that does not read would hold it up for ever. Its end ends the writing.
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(module)));
        let end = wait(&mut child.0, begun, bounds.time, wanted);
        if !matches!(end, Ok(End::By(_))) {
            let _ = child.0.kill();
        }
        end
    });
    let status = match end.map_err(unavailable)? {
        End::By(status) if status.success() => return Ok(()),
        End::By(status) => status,
        End::Late => return Err(CompileError::Time(bounds.time)),
        End::Unwanted => return Err(CompileError::Abandoned),
    };
    let mut says = Vec::new();
    // It has ended, and it alone had the other end: this waits for nobody.
    if let Some(stderr) = stderr {
        let _ = stderr.take(COMPLAINT_BYTES_MAX).read_to_end(&mut says);
    }
    Err(failure(status, String::from_utf8_lossy(&says).trim(), bounds))
}

/// Waits for the child, looking often at first: small modules take a tenth of a second.
fn wait(child: &mut Child, begun: Instant, most: Duration, wanted: &dyn Fn() -> bool) -> io::Result<End> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::By(status));
        }
        if begun.elapsed() >= most {
            return Ok(End::Late);
        }
        if !wanted() {
            return Ok(End::Unwanted);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// What it means that a child ended like this.
fn failure(status: ExitStatus, says: &str, bounds: Bounds) -> CompileError {
    // The allocator's last words, and the system's.
    let out_of_memory = says.contains("memory allocation of") || says.contains("Cannot allocate memory");
    match (status.code(), status.signal()) {
        _ if out_of_memory => CompileError::Memory(bounds.memory),
        // Nobody here killed it: the system did, because it was short of memory.
        (_, Some(libc::SIGKILL)) => CompileError::Memory(bounds.memory),
        (_, Some(libc::SIGXCPU)) => CompileError::Time(bounds.time),
        (_, Some(libc::SIGXFSZ)) => CompileError::Size(CODE_BYTES_MAX),
        (Some(code), _) if code == i32::from(REFUSED) => CompileError::Refused(says.to_owned()),
        _ => {
            let said = says.lines().next().filter(|line| !line.is_empty());
            let said = said.map(|line| format!(", {line}")).unwrap_or_default();
            CompileError::Crashed(format!("{status}{said}"))
        }
    }
}

/// What the child does: confines itself, reads a module from standard input and compiles it into
/// `folder`.
///
/// # Errors
/// What the compiler says, for people; the program then exits with [`REFUSED`].
pub fn serve(folder: &Path, bounds: Bounds) -> Result<(), String> {
    confine(bounds).map_err(|error| format!("the limits of the compiler cannot be set: {error}"))?;
    let mut module = Vec::new();
    let most = module::BYTES_MAX as u64 + 1;
    io::stdin().take(most).read_to_end(&mut module).map_err(|error| error.to_string())?;
    compile(&module, folder)
}

/// Limits what this process may use, for good, and ties its life to its parent's.
fn confine(bounds: Bounds) -> io::Result<()> {
    // SAFETY: these take numbers and touch no memory of ours.
    unsafe {
        // The thread that started it waits for it, so it is there for as long as it is wanted.
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::umask(0o077);
        // Sessions go first; where that may not be said it is as fast as they are.
        libc::nice(5);
    }
    // Where the system itself runs short of memory, this process goes first.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let pages: u64 = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    // The program itself is mapped into memory, most of it never read.
    let mapped = pages * 4096;
    // The parent looks at the clock: this is for where it does not, and for two threads that are busy.
    let processor_secs = bounds.time.as_secs();
    for (resource, most) in [
        (libc::RLIMIT_AS, mapped + bounds.memory),
        (libc::RLIMIT_CPU, processor_secs),
        (libc::RLIMIT_FSIZE, CODE_BYTES_MAX),
        (libc::RLIMIT_CORE, 0),
    ] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the limit outlives the call, which only reads it.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Compiles `module` as it will be run, into `folder`.
fn compile(module: &[u8], folder: &Path) -> Result<(), String> {
    let settings = settings(folder, folder.parent().unwrap_or(folder)).map_err(|error| error.to_string())?;
    let manifest = prepare::manifest(module)?;
    builder(manifest).with_cache_config(settings).compile().map_err(|error| format!("{error:#}"))?;
    Ok(())
}

/// A plugin as far as it decides what code it is compiled to.
pub(super) fn builder<'a>(manifest: Manifest) -> PluginBuilder<'a> {
    PluginBuilder::new(manifest)
        .with_wasi(false)
        // That there is a limit is compiled in, which one is not.
        .with_fuel_limit(1)
        // Else environment variables would decide.
        .with_debug_options(DebugOptions {
            profiling_strategy: wasmtime::ProfilingStrategy::None,
            coredump: None,
            memdump: None,
            debug_info: false,
        })
}

/// Writes, where it is not there already, the file in `beside` that has the runtime read and write
/// code in `folder`.
pub(super) fn settings(folder: &Path, beside: &Path) -> io::Result<PathBuf> {
    let folder = folder.canonicalize()?;
    let quoted = toml_string(folder.to_str().ok_or_else(|| io::Error::other("its path is not UTF-8"))?);
    // What was written stays as it was: it is sealed.
    let text = format!(
        "[cache]\ndirectory = {quoted}\ncleanup-interval = \"3650d\"\n\
         optimized-compression-usage-counter-threshold = \"1000000000\"\n"
    );
    let path = beside.join("wasmtime.toml");
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(path);
    }
    // In place at once: another thread may be reading it.
    let fresh = beside.join(format!("wasmtime.toml.{:?}", std::thread::current().id()));
    fs::write(&fresh, text)?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

/// A basic string of TOML.
fn toml_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// What becomes of compiling where the child is this script.
    fn script(body: &str, time: Duration, wanted: &dyn Fn() -> bool) -> (CompileError, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("compiler");
        fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let compiler = Compiler::Child { program, bounds: Bounds { memory: 64 << 20, time } };
        let begun = Instant::now();
        // More than a pipe holds, so that a child that does not read it holds up whoever writes.
        let outcome = compiler.compile(&vec![0; 1 << 20], folder.path(), wanted);
        (outcome.unwrap_err(), begun.elapsed())
    }

    #[test]
    fn every_end_of_a_child_is_told_apart() {
        let patience = Duration::from_secs(60);
        for (body, error) in [
            ("cat > /dev/null; echo too odd >&2; exit 3", CompileError::Refused("too odd".to_owned())),
            ("echo memory allocation of 7 bytes failed >&2; kill -ABRT $$", CompileError::Memory(64 << 20)),
            ("kill -KILL $$", CompileError::Memory(64 << 20)),
            ("kill -XCPU $$", CompileError::Time(patience)),
            ("kill -XFSZ $$", CompileError::Size(CODE_BYTES_MAX)),
        ] {
            assert_eq!(script(body, patience, &|| true).0, error, "{body}");
        }
        let (crashed, _) = script("kill -SEGV $$", patience, &|| true);
        assert!(crashed.to_string().contains("the compiler failed on it: signal: 11"), "{crashed}");
        let nowhere = Compiler::Child { program: "/nowhere".into(), bounds: Bounds::default() };
        let error = nowhere.compile(b"", Path::new("/"), &|| true).unwrap_err();
        assert!(matches!(error, CompileError::Unavailable(_)), "{error}");
    }

    #[test]
    fn a_child_that_takes_too_long_or_is_not_wanted_is_killed() {
        let time = Duration::from_millis(300);
        let (error, took) = script("exec sleep 600", time, &|| true);
        assert_eq!(
            (error.to_string().as_str(), error.code()),
            ("compiling it takes longer than 300 ms, the limit", ErrorCode::Timeout)
        );
        assert!(took < Duration::from_secs(30), "{took:?}");
        let begun = Instant::now();
        let wanted = || begun.elapsed() < Duration::from_millis(100);
        let (error, took) = script("exec sleep 600", Duration::from_secs(600), &wanted);
        assert_eq!(error, CompileError::Abandoned);
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
