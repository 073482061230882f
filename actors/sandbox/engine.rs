//! One compiled module that runs one call at a time, each in a fresh instance.
//!
//! Instances of one compiled module share an engine, and ending one call ends every call in flight
//! on its engine. So calls that must be independent never share one: a plugin has as many engines
//! as it has calls at the same time. Compiling is the price (a quarter of a second, in another
//! process); the [`Cache`] makes it milliseconds from the second engine on, and from the second start
//! of the daemon.
//!
//! Everything here blocks: it belongs on a thread of the [`pool`](super::pool).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clawmux_core::tools::audit::CallUsage;
use extism::{CancelHandle, CompiledPlugin};

use super::Limits;
use super::cache::{Cache, Mark};
use super::compiler::{self, CompileError};
use super::host;
use super::host::call::{Asking, CallState, Over};
use super::prepare;
use super::source::Package;

/// The most bytes of a guest's own error message that are kept.
pub(super) const MESSAGE_BYTES_MAX: usize = 4096;

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
    /// Its input does not fit its schema, and why; it was not called.
    Misfit(String),
    /// It answered with so many bytes, more than it may.
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
            Self::Misfit(why) => write!(f, "does not take that input: {why}"),
            Self::Oversize(bytes) => {
                write!(f, "answered with {bytes} bytes, more than output_bytes allows")
            }
        }
    }
}

/// One compiled module.
pub struct Engine {
    compiled: Arc<CompiledPlugin>,
    state: Arc<CallState>,
    limits: Limits,
    /// What the last call used.
    usage: CallUsage,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// The module of `package`, compiled: from `cache`, or anew for as long as it is `wanted`. Should the
    /// process end while the mark is held, the next start does not trust what was loaded.
    ///
    /// # Errors
    /// A [`CompileError`].
    pub fn load(
        package: &Package,
        cache: &Cache,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(Self, Mark), CompileError> {
        let limits = package.limits;
        let Limits { timeout, fuel, .. } = limits;
        let code = cache.code(&package.module, wanted)?;
        let mark = cache.mark();
        let manifest = prepare::manifest(&package.module)
            .map_err(CompileError::Refused)?
            .with_memory_max(package.inspected.pages_to_grow)
            .with_timeout(timeout.saturating_add(BACKSTOP));
        let state = Arc::new(CallState::new(package.settings.clone()));
        // Finds all it would compile in what was compiled with the same settings.
        let compiled = compiler::builder(manifest)
            .with_fuel_limit(fuel.min(Limits::FUEL_MAX))
            .with_functions(host::link(
                &package.name,
                &package.rights,
                &state,
                package.inspected.imports_wasi,
            ))
            .with_cache_config(&code.settings)
            .compile()
            .map_err(|error| CompileError::Refused(format!("{error:#}")))?;
        Ok((Self { compiled: Arc::new(compiled), state, limits, usage: CallUsage::default() }, mark))
    }

    /// What the last call used.
    pub fn usage(&self) -> &CallUsage {
        &self.usage
    }

    /// Calls `export` with `input` in a fresh instance. What the guest asks of its host goes to `asking`;
    /// without it, there is nobody to ask. `begun` is told how to end the call, just before guest code runs.
    /// An engine whose call was interrupted is not to be used again: the interruption may arrive late.
    ///
    /// # Errors
    /// A [`Failure`]. The engine can be used for the next call all the same.
    pub fn call(
        &mut self,
        export: &str,
        input: &[u8],
        asking: Option<Asking>,
        begun: impl FnOnce(Interrupt),
    ) -> Result<Vec<u8>, Failure> {
        self.state.begin(&self.limits, asking);
        let mut instance =
            extism::Plugin::new_from_compiled(&self.compiled).map_err(|error| failure(&error))?;
        begun(Interrupt { handle: instance.cancel_handle(), compiled: Arc::clone(&self.compiled) });
        let called = instance.call::<&[u8], ()>(export, input);
        let Over { output, error: said, used, denied } = self.state.end();
        self.usage = CallUsage { fuel: instance.fuel_consumed(), grants: used };
        let said =
            || said.map(|said| Failure::Reported(shortened(String::from_utf8_lossy(&said).into_owned())));
        match called {
            Ok(()) => match (said(), output) {
                (Some(failure), _) => Err(failure),
                (None, Ok(output)) => Ok(output),
                (None, Err(bytes)) => Err(Failure::Oversize(bytes)),
            },
            Err(error) => match (failure(&error), said()) {
                // What the guest says is more than that it failed.
                (Failure::Reported(_) | Failure::Trapped(_), Some(said)) => Err(said),
                (Failure::Reported(why) | Failure::Trapped(why), None) if let Some(denied) = denied => {
                    let name = denied.name();
                    Err(Failure::Trapped(format!(
                        "{why}; before that it asked for {name}, which takes the grant host_function:{name}"
                    )))
                }
                (failure, _) => Err(failure),
            },
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

    /// Ends whatever runs on the call's engine, by interrupting another instance on it, one that waits
    /// meanwhile. Blocks for some milliseconds; may have to be used again.
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
            let _ = other.call::<&[u8], &[u8]>(prepare::WAIT, b"");
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
    use clawmux_core::tools::plugin::Rights;

    /// A package of a tool whose `handle_tool_call` is `body`.
    fn package(rest: &str, body: &str, limits: Limits) -> Package {
        let text = format!(
            r#"(module
                (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
                (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
                (import "extism:host/env" "error_set" (func $error_set (param i64)))
                (import "extism:host/env" "log_info" (func $log_info (param i64)))
                (import "extism:host/env" "store_u64" (func $store_u64 (param i64 i64)))
                (import "extism:host/env" "length" (func $length (param i64) (result i64)))
                (import "extism:host/env" "free" (func $free (param i64)))
                (import "extism:host/env" "var_set" (func $var_set (param i64 i64)))
                (import "extism:host/env" "var_get" (func $var_get (param i64) (result i64)))
                (import "extism:host/env" "config_get" (func $config_get (param i64) (result i64)))
                (import "extism:host/env" "http_request" (func $http_request (param i64 i64) (result i64)))
                {rest}
                (func (export "describe") (result i32) i32.const 0)
                (func (export "handle_tool_call") (result i32) {body}))"#
        );
        let module = wat::parse_str(text).unwrap();
        let inspected = module::inspect(&"x".into(), &module, &limits, &Rights::default()).unwrap();
        Package {
            name: "x".into(),
            module,
            sha256: [0; 32],
            inspected,
            manifest: clawmux_core::tools::plugin::Manifest::default(),
            signer: None,
            grants: Vec::new(),
            rights: Arc::default(),
            limits,
            settings: std::collections::BTreeMap::new(),
        }
    }

    fn run(rest: &str, body: &str) -> Result<Vec<u8>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { fuel: 10_000_000, memory_mb: 8, ..Limits::default() };
        let package = package(rest, body, limits);
        let mut engine =
            Engine::load(&package, &Cache::new(folder.path().join("cache")), &|| true).unwrap().0;
        let input = vec![b' '; 300_000];
        let first = engine.call("handle_tool_call", &input, None, |_| ());
        let second = engine.call("handle_tool_call", &input, None, |_| ());
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
        let calls = "made more calls of the host than host_calls allows".to_owned();
        assert_eq!(run("", log), Err(Failure::Reported(calls)));
    }

    #[test]
    fn what_starts_by_itself_is_a_part_of_the_call() {
        let starts = |begin: &str| {
            [
                format!("(func $s {begin}) (start $s)"),
                format!("(func (export \"_initialize\") {begin})"),
                format!("(func (export \"__wasm_call_ctors\") {begin})"),
                format!("(func (export \"hs_init\") (param i32 i32) {begin})"),
            ]
        };
        for call in [
            "(drop (call $config_get (call $alloc (i64.const 16))))",
            "(call $log_info (call $alloc (i64.const 16)))",
        ] {
            for rest in starts(call) {
                assert_eq!(run(&rest, "i32.const 0"), Ok(Vec::new()), "{rest}");
            }
        }
        for rest in starts("(call $error_set (call $alloc (i64.const 3)))") {
            assert_eq!(run(&rest, "i32.const 0"), Err(Failure::Reported("\0\0\0".to_owned())), "{rest}");
        }
        let folder = tempfile::tempdir().unwrap();
        for rest in starts("(loop $l (br $l))") {
            let limits = Limits { fuel: u64::MAX, ..Limits::default() };
            let package = package(&rest, "i32.const 0", limits);
            let mut engine =
                Engine::load(&package, &Cache::new(folder.path().join("cache")), &|| true).unwrap().0;
            std::thread::scope(|scope| {
                let (sender, handles) = std::sync::mpsc::channel();
                let call = scope.spawn(move || {
                    engine.call("handle_tool_call", b"{}", None, |handle| sender.send(handle).unwrap())
                });
                let running = handles.recv().unwrap();
                running.ask();
                while !call.is_finished() {
                    running.force();
                }
                assert_eq!(call.join().unwrap(), Err(Failure::Interrupted), "{rest}");
            });
        }
    }

    /// What a guest does to the sizes of a block at `$p`, which the runtime keeps before it.
    const FORGE: &str = "(local $p i64) (local.set $p (call $alloc (i64.const 16)))
        (call $store_u64 (i64.sub (local.get $p) (i64.const 8)) (i64.const 0x7000000070000000))";

    #[test]
    fn forged_sizes_reach_no_memory_that_is_not_the_guests() {
        for call in [
            "(call $log_info (local.get $p))",
            "(call $error_set (local.get $p))",
            "(call $output_set (local.get $p) (i64.const 1000000))",
            "(call $output_set (local.get $p) (call $length (local.get $p)))",
            "(call $var_set (local.get $p) (local.get $p))",
            "(drop (call $var_get (local.get $p)))",
            "(drop (call $config_get (local.get $p)))",
            "(drop (call $http_request (local.get $p) (local.get $p)))",
            // The next block is carved out of what the guest says is free.
            "(call $free (local.get $p)) (drop (call $alloc (i64.const 300000)))
                (call $output_set (local.get $p) (i64.const 300000))",
        ] {
            let over = run("", &format!("{FORGE} {call} i32.const 0"));
            match over {
                Ok(output) => assert!(output.len() <= 1_000_000, "{call}"),
                Err(Failure::Reported(why)) => assert!(!why.is_empty(), "{call}"),
                Err(Failure::Oversize(bytes)) => assert_eq!(bytes, 0x7000_0000, "{call}"),
                Err(Failure::Trapped(_)) => {}
                Err(why) => panic!("{call}: {why}"),
            }
        }
    }

    #[test]
    fn a_guest_that_overwrites_all_it_can_reach_breaks_only_itself() {
        let everywhere = "(local $at i64)
            (loop $l
                (call $store_u64 (local.get $at) (i64.const 0x7fffffff7fffffff))
                (local.set $at (i64.add (local.get $at) (i64.const 8)))
                (br_if $l (i64.lt_u (local.get $at) (i64.const 200000))))";
        for call in [
            "(call $log_info (i64.const 65600))",
            "(call $error_set (i64.const 65600))",
            "(call $output_set (i64.const 65600) (i64.const 1000000))",
            "(call $output_set (i64.const 4294967295) (i64.const 1000000))",
            "(drop (call $var_get (call $alloc (i64.const 100000))))",
            "(call $error_set (call $alloc (i64.const 100000)))",
        ] {
            let _ = run("", &format!("{everywhere} {call} i32.const 0"));
            // Before the host hands over the input.
            let _ = run(&format!("(func $s {everywhere}) (start $s)"), &format!("{call} i32.const 0"));
        }
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
        let cache = Cache::new(folder.path().join("cache"));
        let limits = Limits { fuel: u64::MAX, ..Limits::default() };
        let package = package("", "(loop $l (br $l)) i32.const 0", limits);
        let mut engines = [(); 2].map(|()| Engine::load(&package, &cache, &|| true).unwrap().0);
        let [first, second] = &mut engines;
        std::thread::scope(|scope| {
            let (sender, handles) = std::sync::mpsc::channel();
            let other = sender.clone();
            let first = scope.spawn(move || {
                first.call("handle_tool_call", b"{}", None, |handle| sender.send(handle).unwrap())
            });
            let ended = handles.recv().unwrap();
            let second = scope.spawn(move || {
                second.call("handle_tool_call", b"{}", None, |handle| other.send(handle).unwrap())
            });
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
    fn messages_are_cut_between_characters() {
        assert_eq!(shortened("short".to_owned()), "short");
        let long = shortened("İ".repeat(MESSAGE_BYTES_MAX));
        assert!(long.len() <= MESSAGE_BYTES_MAX + 6 && long.ends_with("İ [...]"));
    }
}
