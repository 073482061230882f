//! One compiled module that runs one call at a time, each in a fresh instance.
//!
//! Instances of one compiled module share an engine, and ending one call ends every call in flight
//! on its engine. So calls that must be independent never share one: a plugin has as many engines
//! as it has calls at the same time. Compiling is the price (a quarter of a second); [`Cache`]
//! makes it milliseconds from the second engine on, and from the second start of the daemon.
//!
//! Everything here blocks: it belongs on a thread of the [`pool`](super::pool).

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extism::{CancelHandle, CompiledPlugin, DebugOptions, Manifest, PluginBuilder, Wasm};

use super::Limits;
use super::host::{self, CallState};
use super::source::Package;

/// The most bytes a plugin may answer with.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes of a guest's own error message that are kept.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The host ends a call at its deadline; where the host is late, the runtime does it by itself so
/// much later.
const BACKSTOP: Duration = Duration::from_secs(2);

/// Why a call gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It used up its fuel.
    OutOfFuel,
    /// It wanted more memory than it may have.
    OutOfMemory,
    /// Somebody ended it; who, is known to whoever did.
    Interrupted,
    /// It did what WASM does not allow, such as reaching `unreachable`.
    Trapped(String),
    /// It says itself that it failed.
    Reported(String),
    /// It answered with so many bytes, more than [`OUTPUT_BYTES_MAX`].
    Oversize(usize),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfFuel => f.write_str("ran out of fuel"),
            Self::OutOfMemory => f.write_str("ran out of memory"),
            Self::Interrupted => f.write_str("was ended"),
            Self::Trapped(why) => write!(f, "crashed: {why}"),
            Self::Reported(why) => write!(f, "failed: {why}"),
            Self::Oversize(bytes) => {
                write!(f, "answered with {bytes} bytes (limit {OUTPUT_BYTES_MAX})")
            }
        }
    }
}

/// Where compiled code is kept between starts. What is in it is run as native code: it must be
/// the daemon's own folder.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// The settings file the runtime reads; none where the folder can't be used.
    settings: OnceLock<Option<PathBuf>>,
}

impl Cache {
    /// In `folder`, which is made (0700) when first used.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, settings: OnceLock::new() }
    }

    fn settings(&self) -> Option<&Path> {
        self.settings
            .get_or_init(|| match Self::prepare(&self.folder) {
                Ok(settings) => Some(settings),
                Err(error) => {
                    tracing::warn!(folder = %self.folder.display(), %error, "no cache of compiled plugins");
                    None
                }
            })
            .as_deref()
            // Somebody may have cleared it away meanwhile.
            .filter(|settings| settings.exists())
    }

    fn prepare(folder: &Path) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let folder = folder.canonicalize()?;
        // A folder of its own: the runtime clears away whatever else it finds there.
        let compiled = folder.join("compiled");
        let text = compiled.to_str().ok_or_else(|| io::Error::other("its path is not UTF-8"))?;
        let settings = folder.join("wasmtime.toml");
        // Written anew at every start, beside and then in place, for another daemon may read it; beside
        // under a name of its own, for another part of this process may be doing the same.
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        let nth = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let fresh = folder.join(format!("wasmtime.toml.{}.{nth}", std::process::id()));
        let quoted = toml_string(text);
        fs::write(
            &fresh,
            format!("[cache]\ndirectory = {quoted}\nfiles-total-size-soft-limit = \"256Mi\"\n"),
        )?;
        let ours = fs::metadata(&fresh)?.uid();
        fs::rename(&fresh, &settings)?;
        let metadata = fs::metadata(&folder)?;
        if metadata.uid() != ours {
            return Err(io::Error::other("it belongs to another user"));
        }
        if metadata.permissions().mode() & 0o022 != 0 {
            return Err(io::Error::other("others may write to it, run chmod go-w on it"));
        }
        Ok(settings)
    }
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

/// One compiled module.
pub struct Engine {
    compiled: Arc<CompiledPlugin>,
    state: Arc<CallState>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Compiles the module of `package`.
    ///
    /// # Errors
    /// What the compiler says, for people.
    pub fn compile(package: &Package, cache: &Cache) -> Result<Self, String> {
        let Limits { timeout, fuel, .. } = package.limits;
        let manifest = Manifest::new([Wasm::data(package.module.clone())])
            .with_memory_max(package.inspected.pages_to_grow)
            .with_timeout(timeout.saturating_add(BACKSTOP));
        let state = Arc::new(CallState::default());
        let builder = PluginBuilder::new(manifest)
            .with_wasi(false)
            .with_fuel_limit(fuel.min(Limits::FUEL_MAX))
            .with_functions(host::functions(&package.name, &package.grants, &state))
            // Else environment variables would decide.
            .with_debug_options(DebugOptions {
                profiling_strategy: wasmtime::ProfilingStrategy::None,
                coredump: None,
                memdump: None,
                debug_info: false,
            });
        let builder = match cache.settings() {
            Some(settings) => builder.with_cache_config(settings),
            None => builder.with_cache_disabled(),
        };
        let compiled = builder.compile().map_err(|error| format!("{error:#}"))?;
        Ok(Self { compiled: Arc::new(compiled), state })
    }

    /// Calls `export` with `input` in a fresh instance. `begun` is told how to end the call, just
    /// before guest code runs. An engine whose call was interrupted is not to be used again: the
    /// interruption may arrive late.
    ///
    /// # Errors
    /// A [`Failure`]. The engine can be used for the next call all the same.
    pub fn call(
        &mut self,
        export: &str,
        input: &[u8],
        begun: impl FnOnce(Interrupt),
    ) -> Result<Vec<u8>, Failure> {
        self.state.reset();
        let mut instance =
            extism::Plugin::new_from_compiled(&self.compiled).map_err(|error| failure(&error))?;
        begun(Interrupt { handle: instance.cancel_handle(), compiled: Arc::clone(&self.compiled) });
        match instance.call::<&[u8], &[u8]>(export, input) {
            Ok(output) if output.len() > OUTPUT_BYTES_MAX => Err(Failure::Oversize(output.len())),
            Ok(output) => Ok(output.to_vec()),
            Err(error) => Err(failure(&error)),
        }
    }
}

/// Ends a call, from any thread.
///
/// The runtime's own way to do so is lost when it is used too early: before the guest is under
/// way it does nothing, and at the very moment the guest is entered it is used up without effect.
/// So it takes patience ([`Self::ask`], again and again) and, where that does not help, force.
pub struct Interrupt {
    handle: CancelHandle,
    compiled: Arc<CompiledPlugin>,
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").finish_non_exhaustive()
    }
}

impl Interrupt {
    /// Asks the runtime to end the call. Does not block.
    pub fn ask(&self) {
        if self.handle.cancel().is_err() {
            tracing::error!("the sandbox's timer is gone, a call cannot be ended");
        }
    }

    /// Ends whatever runs on the call's engine, by interrupting another instance on it, one that
    /// describes itself meanwhile. Blocks for as long as that takes; may have to be used again.
    pub fn force(&self) {
        const ATTEMPTS_MAX: usize = 100_000;
        let Ok(mut other) = extism::Plugin::new_from_compiled(&self.compiled) else { return };
        let handle = other.cancel_handle();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ATTEMPTS_MAX {
                    if over.load(Ordering::Acquire) || handle.cancel().is_err() {
                        return;
                    }
                    std::thread::yield_now();
                }
            });
            // Interrupted or not: nobody wants its answer.
            let _ = other.call::<&[u8], &[u8]>("describe", b"{}");
            over.store(true, Ordering::Release);
        });
    }
}

/// The runtime tells these apart by their text only.
fn failure(error: &extism::Error) -> Failure {
    if let Some(trap) = error.downcast_ref::<wasmtime::Trap>() {
        return match trap {
            wasmtime::Trap::OutOfFuel => Failure::OutOfFuel,
            wasmtime::Trap::Interrupt => Failure::Interrupted,
            trap => Failure::Trapped(trap.to_string()),
        };
    }
    let text = error.root_cause().to_string();
    match text.as_str() {
        "plugin ran out of fuel" => Failure::OutOfFuel,
        "oom" => Failure::OutOfMemory,
        "timeout" => Failure::Interrupted,
        _ => Failure::Reported(shortened(text)),
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        let mut end = MESSAGE_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(" [...]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::module;
    use clawmux_core::plugin::Capability;

    /// A package of a tool whose `handle_tool_call` is `body`.
    fn package(rest: &str, body: &str, limits: Limits) -> Package {
        let text = format!(
            r#"(module
                (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
                (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
                (import "extism:host/env" "error_set" (func $error_set (param i64)))
                (import "extism:host/env" "log_info" (func $log_info (param i64)))
                {rest}
                (func (export "describe") (result i32) i32.const 0)
                (func (export "handle_tool_call") (result i32) {body}))"#
        );
        let module = wat::parse_str(text).unwrap();
        let inspected = module::inspect(&"x".into(), &module, &limits, &[] as &[Capability]).unwrap();
        Package {
            name: "x".into(),
            module,
            inspected,
            manifest: clawmux_core::plugin::Manifest::default(),
            grants: Vec::new(),
            limits,
        }
    }

    fn run(rest: &str, body: &str) -> Result<Vec<u8>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { fuel: 10_000_000, memory_mb: 8, ..Limits::default() };
        let package = package(rest, body, limits);
        let mut engine = Engine::compile(&package, &Cache::new(folder.path().join("cache"))).unwrap();
        let first = engine.call("handle_tool_call", b"{}", |_| ());
        let second = engine.call("handle_tool_call", b"{}", |_| ());
        assert_eq!(first, second, "every call finds the engine and a fresh instance as the first did");
        first
    }

    #[test]
    fn every_way_to_fail_is_told_apart_and_leaves_the_engine_usable() {
        assert_eq!(run("", "i32.const 0"), Ok(Vec::new()));
        assert_eq!(run("", "(loop $l (br $l)) i32.const 0"), Err(Failure::OutOfFuel));
        assert_eq!(run("(func $s (loop $l (br $l))) (start $s)", "i32.const 0"), Err(Failure::OutOfFuel));
        assert_eq!(
            run("", "unreachable"),
            Err(Failure::Trapped("wasm trap: wasm `unreachable` instruction executed".to_owned()))
        );
        assert_eq!(
            run("(func $r (call $r))", "call $r i32.const 0"),
            Err(Failure::Trapped("wasm trap: call stack exhausted".to_owned()))
        );
        let grow = "(loop $l (drop (memory.grow (i32.const 1))) (br $l)) i32.const 0";
        assert_eq!(run("(memory 1)", grow), Err(Failure::OutOfMemory));
        let kernel = "(loop $l (drop (call $alloc (i64.const 1000000))) (br $l)) i32.const 0";
        assert_eq!(run("", kernel), Err(Failure::OutOfMemory));
        let table = "(loop $l (drop (table.grow (ref.null func) (i32.const 64))) (br $l)) i32.const 0";
        assert_eq!(run("(table 1 1000 funcref)", table), Err(Failure::OutOfFuel));
        let report = "(call $error_set (call $alloc (i64.const 3))) i32.const 1";
        assert_eq!(run("", report), Err(Failure::Reported("\0\0\0".to_owned())));
        let huge = "(call $output_set (call $alloc (i64.const 2000000)) (i64.const 2000000)) i32.const 0";
        assert_eq!(run("", huge), Err(Failure::Oversize(2_000_000)));
        let log = "(loop $l (call $log_info (call $alloc (i64.const 9))) (br $l)) i32.const 0";
        assert_eq!(run("", log), Err(Failure::OutOfFuel));
    }

    #[test]
    fn an_instance_keeps_nothing_for_the_next_call() {
        let count = "(global.set $n (i32.add (global.get $n) (i32.const 1)))
            (if (i32.ne (global.get $n) (i32.const 1)) (then unreachable)) i32.const 0";
        assert_eq!(run("(global $n (mut i32) (i32.const 0))", count), Ok(Vec::new()));
    }

    #[test]
    fn ending_a_call_leaves_calls_on_other_engines_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_path_buf());
        let limits = Limits { fuel: u64::MAX, ..Limits::default() };
        let package = package("", "(loop $l (br $l)) i32.const 0", limits);
        let mut engines =
            [Engine::compile(&package, &cache).unwrap(), Engine::compile(&package, &cache).unwrap()];
        let [first, second] = &mut engines;
        std::thread::scope(|scope| {
            let (sender, handles) = std::sync::mpsc::channel();
            let other = sender.clone();
            let first = scope
                .spawn(move || first.call("handle_tool_call", b"{}", |handle| sender.send(handle).unwrap()));
            let ended = handles.recv().unwrap();
            let second = scope
                .spawn(move || second.call("handle_tool_call", b"{}", |handle| other.send(handle).unwrap()));
            let running = handles.recv().unwrap();
            // Nobody asked first, as if asking had been lost.
            while !first.is_finished() {
                ended.force();
            }
            assert_eq!(first.join().unwrap(), Err(Failure::Interrupted));
            assert!(!second.is_finished(), "the other engine's call runs on");
            running.ask();
            while !second.is_finished() {
                running.force();
            }
        });
    }

    #[test]
    fn a_cache_others_can_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("mine"));
        let settings = cache.settings().unwrap();
        assert_eq!(fs::metadata(settings.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Cache::new(open).settings(), None);
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(Cache::new(folder.path().join("file")).settings(), None);
        let odd = Cache::new(folder.path().join("a \"quoted\" \\ İ"));
        let package = package("", "i32.const 0", Limits::default());
        assert!(Engine::compile(&package, &odd).is_ok());
    }

    #[test]
    fn messages_are_cut_between_characters() {
        assert_eq!(shortened("short".to_owned()), "short");
        let long = shortened("İ".repeat(MESSAGE_BYTES_MAX));
        assert!(long.len() <= MESSAGE_BYTES_MAX + 6 && long.ends_with("İ [...]"));
    }
}
