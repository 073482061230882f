//! A tool that leaves a trace of every call: a line in the daemon's log, which is with the kernel
//! before the call goes on, and so outlives the daemon.

use std::collections::BTreeMap;
use std::path::Path;

use super::plan::{AGAIN, ONCE};

/// Turns of a loop for each byte of input: what makes a call last.
const TURNS: u64 = 80_000;

/// Logs its input, takes its time, and gives it back.
fn module() -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
            (import "extism:host/env" "store_u8" (func $store (param i64 i32)))
            (import "extism:host/env" "input_length" (func $length (result i64)))
            (import "extism:host/env" "input_load_u8" (func $input (param i64) (result i32)))
            (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
            (import "extism:host/env" "log_info" (func $log (param i64)))
            (func $copy (result i64) (local $to i64) (local $at i64)
                (local.set $to (call $alloc (call $length)))
                (block $end (loop $next
                    (br_if $end (i64.ge_u (local.get $at) (call $length)))
                    (call $store (i64.add (local.get $to) (local.get $at)) (call $input (local.get $at)))
                    (local.set $at (i64.add (local.get $at) (i64.const 1)))
                    (br $next)))
                (local.get $to))
            (func $last (local $left i64)
                (local.set $left (i64.mul (call $length) (i64.const {TURNS})))
                (loop $turn
                    (local.set $left (i64.sub (local.get $left) (i64.const 1)))
                    (br_if $turn (i64.gt_s (local.get $left) (i64.const 0)))))
            (func (export "describe") (result i32) (local $at i64)
                (local.set $at (call $alloc (i64.const 2)))
                (call $store (local.get $at) (i32.const 123))
                (call $store (i64.add (local.get $at) (i64.const 1)) (i32.const 125))
                (call $output_set (local.get $at) (i64.const 2))
                i32.const 0)
            (func (export "handle_tool_call") (result i32)
                (call $log (call $copy))
                (call $last)
                (call $output_set (call $copy) (call $length))
                i32.const 0))"#
    );
    wat::parse_str(text).expect("a module")
}

/// Puts both tools into a home.
pub fn install(home: &Path) {
    let folder = home.join("plugins");
    std::fs::create_dir_all(&folder).expect("a folder for plugins");
    for name in [ONCE, AGAIN] {
        std::fs::write(folder.join(format!("{name}.wasm")), module()).expect("the module is written");
    }
    std::fs::write(folder.join(format!("{AGAIN}.toml")), "idempotent = true\n").expect("a manifest");
}

/// A configuration whose agent asks a model and has both tools; `place` is the line that says where the model is.
pub fn config(place: &str) -> String {
    let entries = [ONCE, AGAIN].map(entry).concat();
    format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\n{place}\
         [agents.main]\nprovider = \"up\"\nmodel = \"m\"\ntools = [\"{ONCE}\", \"{AGAIN}\"]\n{entries}"
    )
}

fn entry(name: &str) -> String {
    format!(
        "[[plugins]]\nname = \"{name}\"\npath = \"plugins/{name}.wasm\"\nfuel = 100000000000\ntimeout_ms = 60000\n\
         capabilities = [\"host_function:log\"]\n"
    )
}

/// The calls that were begun, each with the lives in which it was.
pub type Effects = BTreeMap<String, Vec<u32>>;

/// Reads them from the logs of all lives.
pub fn effects(logs: impl Iterator<Item = (u32, String)>) -> Effects {
    let mut effects = Effects::new();
    for (life, log) in logs {
        for line in log.lines().filter(|line| line.contains("plugin says")) {
            let call = line.split_once(r#"call\":\""#).and_then(|(_, rest)| rest.split_once('\\'));
            let (call, _) = call.unwrap_or_else(|| panic!("a trace without a call: {line}"));
            effects.entry(call.to_owned()).or_default().push(life);
        }
    }
    effects
}
