//! What a call of a plugin costs, against the same guest code in bare wasmtime in the same run:
//! `cargo run --release -p clawmux-actors --example plugin_calls`.
//!
//! Both copy their input to their output in a fresh instance for every call. Ours has fuel, a deadline, bounds of
//! memory and the host functions of a plugin without grants; the bare one has nothing but its memory.

#![expect(clippy::print_stdout, reason = "figures for people")]

use std::error::Error;
use std::time::{Duration, Instant};

use clawmux_actors::sandbox::cache::Cache;
use clawmux_actors::sandbox::engine::Engine;
use clawmux_actors::sandbox::source::{Package, Source};
use clawmux_core::ids::PluginName;
use wasmtime::{Instance, Linker, Module, Store};

const ROUNDS: usize = 15;
const CALLS: u32 = 200;

/// Copies input to output, eight bytes at a time, as development kits do.
const OURS: &str = r#"(module
    (import "extism:host/env" "input_length" (func $length (result i64)))
    (import "extism:host/env" "input_load_u64" (func $load (param i64) (result i64)))
    (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
    (import "extism:host/env" "store_u64" (func $store (param i64 i64)))
    (import "extism:host/env" "output_set" (func $output (param i64 i64)))
    (memory 2)
    (func (export "describe") (result i32) i32.const 0)
    (func (export "handle_tool_call") (result i32) (local $n i64) (local $to i64) (local $at i64)
        (local.set $n (call $length))
        (local.set $to (call $alloc (local.get $n)))
        (loop $next
            (i64.store (i32.wrap_i64 (local.get $at)) (call $load (local.get $at)))
            (call $store (i64.add (local.get $to) (local.get $at)) (i64.load (i32.wrap_i64 (local.get $at))))
            (local.set $at (i64.add (local.get $at) (i64.const 8)))
            (br_if $next (i64.lt_u (local.get $at) (local.get $n))))
        (call $output (local.get $to) (local.get $n))
        i32.const 0))"#;

/// The same on a memory that its host writes and reads.
const BARE: &str = r#"(module
    (memory (export "memory") 4)
    (func (export "call") (param $n i32) (result i32) (local $at i32)
        (loop $next
            (i64.store (i32.add (local.get $at) (i32.const 131072)) (i64.load (local.get $at)))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $next (i32.lt_u (local.get $at) (local.get $n))))
        i32.const 131072))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let cache = Cache::new(folder.path().join("cache"));
    let file = folder.path().join("copy.wasm");
    std::fs::write(&file, wat::parse_str(OURS)?)?;
    let package = package("copy", Source::Configured(file))?;

    let begun = Instant::now();
    let (mut engine, _) = Engine::load(&package, &cache, &|| true).map_err(|error| error.to_string())?;
    let cold = begun.elapsed();
    let begun = Instant::now();
    drop(Engine::load(&package, &cache, &|| true).map_err(|error| error.to_string())?);
    println!("load         {:>9} compiled anew  {:>9} from the cache", shown(cold), shown(begun.elapsed()));

    let wasm = wasmtime::Engine::default();
    let bare = Module::new(&wasm, wat::parse_str(BARE)?)?;
    let bare = Linker::<()>::new(&wasm).instantiate_pre(&bare)?;
    let instance = median(|| {
        let mut store = Store::new(&wasm, ());
        let _: Instance = bare.instantiate(&mut store).expect("an instance");
    });
    println!("an instance  {:>9} bare wasmtime", shown(instance));

    for bytes in [16, 64 * 1024] {
        let input = vec![b'x'; bytes];
        let ours = median(|| {
            let output = engine.call("handle_tool_call", &input, None, |_| {}).expect("an output");
            assert!(output == input);
        });
        let limit = median(|| {
            let mut store = Store::new(&wasm, ());
            let instance = bare.instantiate(&mut store).expect("an instance");
            let memory = instance.get_memory(&mut store, "memory").expect("a memory");
            let call = instance.get_typed_func::<i32, i32>(&mut store, "call").expect("a function");
            memory.write(&mut store, 0, &input).expect("it fits");
            let length = i32::try_from(bytes).expect("a small input");
            let at = call.call(&mut store, length).expect("it returns");
            let mut output = vec![0; bytes];
            memory.read(&store, usize::try_from(at).expect("an address"), &mut output).expect("it is there");
            assert!(output == input);
        });
        let ratio = ours.as_secs_f64() / limit.as_secs_f64();
        println!(
            "{bytes:>6} bytes {:>9} ours  {:>9} bare wasmtime  ratio {ratio:.1}",
            shown(ours),
            shown(limit)
        );
    }

    // Each plugin is a module of its own, as large as that of `echo`.
    let echo = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/echo/echo.wasm");
    let package = self::package("echo", Source::Configured(echo.into()))?;
    let load = || Engine::load(&package, &cache, &|| true).map(|(engine, _)| engine);
    let first = load().map_err(|error| error.to_string())?;
    let (before, many) = (resident_bytes()?, 32);
    let engines =
        (0..many).map(|_| load()).collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let each = resident_bytes()?.saturating_sub(before) / many;
    println!("memory       {:>6} KiB for each engine of echo ({} engines)", each / 1024, engines.len());
    drop(first);
    Ok(())
}

fn package(name: &str, source: Source) -> Result<Package, Box<dyn Error>> {
    Ok(source.read(&PluginName::from(name), None, &[]).map_err(|error| error.message)?)
}

/// The median over rounds of how long this takes once.
fn median(mut once: impl FnMut()) -> Duration {
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..CALLS).for_each(|_| once());
            begun.elapsed() / CALLS
        })
        .collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 2]
}

fn shown(time: Duration) -> String {
    match time.as_micros() {
        0..10_000 => format!("{:.1} µs", time.as_secs_f64() * 1e6),
        _ => format!("{:.1} ms", time.as_secs_f64() * 1e3),
    }
}

fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1024)
}
