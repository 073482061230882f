//! What of WASI preview 1 a guest finds: enough for the runtimes of C, Go, JavaScript and others to start, and
//! nothing that reaches beyond the sandbox.
//!
//! | imported | what it comes to |
//! |---|---|
//! | `fd_write` | standard output and error are lines of the log, as those of `log_info` and `log_warn` |
//! | `fd_read` | standard input is empty |
//! | `clock_time_get` | the time in milliseconds, with the grant `host_function:clock` |
//! | `random_get` | random bytes, with the grant `host_function:random` |
//! | `args_*`, `environ_*` | none |
//! | `poll_oneoff` | returns at once: nobody sleeps here |
//! | `proc_exit` | ends the call as failed, with the status |
//! | other `fd_*`, `path_*`, `sock_*` | refused: no file, folder or socket is open, and none can be opened |
//!
//! Nothing of it is the host's: `serve.wat` is a second module, linked to the guest under the name that it
//! imports from and bound by the same fuel. It works on the guest's memory: that becomes an import of the other's
//! ([`prepare`](super::prepare)). What is left to the host are the four functions of [`HOST`], which go by the
//! guest's grants.
//!
//! `serve.wasm` is `serve.wat` assembled; a test compares them.

use wasmparser::{ExternalKind, Parser, Payload};

/// What guests import WASI from.
pub const NAMESPACE: &str = "wasi_snapshot_preview1";

/// What only [`SERVE`] imports from the host.
pub const HOST: &str = "clawmux:wasi";

/// The module that guests find under [`NAMESPACE`].
pub(super) const SERVE: &[u8] = include_bytes!("serve.wasm");

/// The name of its memory.
pub(super) const MEMORY: &str = "memory";

/// Whether a guest may import a function of this name.
pub fn serves(name: &str) -> bool {
    let exports = |payload| match payload {
        Ok(Payload::ExportSection(section)) => section
            .into_iter()
            .flatten()
            .any(|export| export.kind == ExternalKind::Func && export.name == name),
        _ => false,
    };
    Parser::new(0).parse_all(SERVE).any(exports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use clawmux_core::tools::plugin::{Capability, Rights};

    use crate::sandbox::cache::Cache;
    use crate::sandbox::engine::{Engine, Failure};
    use crate::sandbox::source::Package;
    use crate::sandbox::{Limits, module};

    /// A tool that imports these functions and answers with the eight bytes of `answer`.
    fn tool(imports: &str, rest: &str, answer: &str) -> String {
        format!(
            r#"(module
                (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
                (import "extism:host/env" "store_u64" (func $store_u64 (param i64 i64)))
                (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
                {imports}
                (memory (export "memory") 1)
                {rest}
                (func $answer (result i64) {answer})
                (func (export "describe") (result i32) i32.const 0)
                (func (export "handle_tool_call") (result i32) (local $at i64)
                    (local.set $at (call $alloc (i64.const 8)))
                    (call $store_u64 (local.get $at) (call $answer))
                    (call $output_set (local.get $at) (i64.const 8))
                    i32.const 0))"#
        )
    }

    fn imported(name: &str, ty: &str) -> String {
        format!("(import \"{NAMESPACE}\" \"{name}\" (func ${name} {ty}))\n")
    }

    fn package(text: &str, grants: &[&str]) -> Package {
        let module = wat::parse_str(text).unwrap();
        let grants: Vec<Capability> = grants.iter().map(|grant| Capability::parse(grant).unwrap()).collect();
        let rights = Rights::new(&grants, &Default::default());
        let limits = Limits { fuel: 10_000_000, ..Limits::default() };
        let inspected = module::inspect(&"x".into(), &module, &limits, &rights).unwrap();
        Package {
            name: "x".into(),
            module,
            sha256: [0; 32],
            inspected,
            manifest: Default::default(),
            signer: None,
            grants,
            rights: Arc::new(rights),
            limits,
            settings: Default::default(),
        }
    }

    fn engine(text: &str, grants: &[&str]) -> Engine {
        let package = package(text, grants);
        Engine::load(&package, &Cache::temporary(), &|| true).unwrap_or_else(|why| panic!("{why}")).0
    }

    fn call(engine: &mut Engine) -> Result<i64, Failure> {
        let output = engine.call("handle_tool_call", b"{}", None, |_| {})?;
        Ok(i64::from_le_bytes(output.try_into().unwrap()))
    }

    #[test]
    fn the_served_module_is_as_its_text_says() {
        let assembled = wat::parse_str(include_str!("serve.wat")).unwrap();
        assert!(assembled == SERVE, "assemble serve.wat again, into serve.wasm");
    }

    #[test]
    fn every_function_comes_to_what_the_table_says() {
        let errno = |call: &str| format!("(i64.extend_i32_u {call})");
        let loaded = |call: &str, at: u32| format!("(drop {call}) (i64.load32_u (i32.const {at}))");
        let zeros = |count: usize| "(i32.const 0)".repeat(count);
        let (clock, random) = ("host_function:clock", "host_function:random");
        let read_clock = "(call $f (i32.const 0) (i64.const 1) (i32.const 64))";
        let read_random = "(call $f (i32.const 64) (i32.const 5000))";
        for (name, ty, answer, grants, wanted) in [
            (
                "fd_read",
                "(param i32 i32 i32 i32) (result i32)",
                errno("(call $f (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 64))"),
                &[][..],
                0,
            ),
            (
                "fd_read",
                "(param i32 i32 i32 i32) (result i32)",
                errno("(call $f (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 64))"),
                &[],
                8,
            ),
            ("fd_close", "(param i32) (result i32)", errno("(call $f (i32.const 2))"), &[], 0),
            ("fd_close", "(param i32) (result i32)", errno("(call $f (i32.const 3))"), &[], 8),
            (
                "fd_seek",
                "(param i32 i64 i32 i32) (result i32)",
                errno("(call $f (i32.const 1) (i64.const 0) (i32.const 0) (i32.const 0))"),
                &[],
                70,
            ),
            (
                "fd_fdstat_get",
                "(param i32 i32) (result i32)",
                loaded("(call $f (i32.const 1) (i32.const 64))", 72),
                &[],
                64,
            ),
            (
                "fd_fdstat_get",
                "(param i32 i32) (result i32)",
                loaded("(call $f (i32.const 0) (i32.const 64))", 72),
                &[],
                2,
            ),
            (
                "fd_filestat_get",
                "(param i32 i32) (result i32)",
                loaded("(call $f (i32.const 0) (i32.const 64))", 80),
                &[],
                2,
            ),
            (
                "fd_prestat_get",
                "(param i32 i32) (result i32)",
                errno(&format!("(call $f {})", zeros(2))),
                &[],
                8,
            ),
            (
                "path_open",
                "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)",
                errno(&format!("(call $f {} (i64.const 0) (i64.const 0) {})", zeros(5), zeros(2))),
                &[],
                76,
            ),
            (
                "sock_accept",
                "(param i32 i32 i32) (result i32)",
                errno(&format!("(call $f {})", zeros(3))),
                &[],
                76,
            ),
            (
                "args_sizes_get",
                "(param i32 i32) (result i32)",
                errno("(call $f (i32.const 64) (i32.const 68))"),
                &[],
                0,
            ),
            (
                "environ_sizes_get",
                "(param i32 i32) (result i32)",
                loaded("(call $f (i32.const 64) (i32.const 68))", 64),
                &[],
                0,
            ),
            ("clock_time_get", "(param i32 i64 i32) (result i32)", errno(read_clock), &[], 76),
            ("clock_time_get", "(param i32 i64 i32) (result i32)", errno(read_clock), &[clock], 0),
            ("random_get", "(param i32 i32) (result i32)", errno(read_random), &[], 76),
            ("random_get", "(param i32 i32) (result i32)", errno(read_random), &[random], 0),
            (
                "poll_oneoff",
                "(param i32 i32 i32 i32) (result i32)",
                loaded("(call $f (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128))", 128),
                &[],
                1,
            ),
            (
                "poll_oneoff",
                "(param i32 i32 i32 i32) (result i32)",
                errno(&format!("(call $f {})", zeros(4))),
                &[],
                28,
            ),
            ("sched_yield", "(result i32)", errno("(call $f)"), &[], 0),
            ("proc_raise", "(param i32) (result i32)", errno("(call $f (i32.const 9))"), &[], 52),
        ] {
            let text = tool(&imported(name, ty), "", &answer.replace("$f", &format!("${name}")));
            assert_eq!(call(&mut engine(&text, grants)), Ok(wanted), "{name} {grants:?}");
        }
    }

    #[test]
    fn what_is_written_is_taken_in_pieces_and_what_is_random_is_all_filled() {
        // Two pieces, of which the first is empty; the second has 5000 bytes.
        let text = tool(
            &imported("fd_write", "(param i32 i32 i32 i32) (result i32)"),
            r#"(data (i32.const 0) "\00\00\00\00\00\00\00\00\40\00\00\00\88\13\00\00")"#,
            "(drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 2) (i32.const 32)))
             (i64.load32_u (i32.const 32))",
        );
        assert_eq!(call(&mut engine(&text, &[])), Ok(4096));
        let text = tool(
            &imported("random_get", "(param i32 i32) (result i32)"),
            "",
            "(drop (call $random_get (i32.const 64) (i32.const 5000)))
             (i64.or (i64.load (i32.const 4152)) (i64.load (i32.const 5056)))",
        );
        assert_ne!(call(&mut engine(&text, &["host_function:random"])), Ok(0));
    }

    #[test]
    fn a_guest_is_initialized_once_in_each_instance() {
        for export in ["_initialize", "__wasm_call_ctors"] {
            let count = "(i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))";
            let rest = format!("(func (export \"{export}\") {count})");
            let text = tool(&imported("sched_yield", "(result i32)"), &rest, "(i64.load32_u (i32.const 8))");
            let mut engine = engine(&text, &[]);
            assert_eq!((call(&mut engine), call(&mut engine)), (Ok(1), Ok(1)), "{export}");
        }
        // The host answers already.
        let random = format!(
            "{}{}",
            imported("sched_yield", "(result i32)"),
            imported("random_get", "(param i32 i32) (result i32)")
        );
        let ask = "(func (export \"_initialize\") (drop (call $random_get (i32.const 64) (i32.const 8))))";
        let text = tool(&random, ask, "(i64.load (i32.const 64))");
        assert_ne!(call(&mut engine(&text, &["host_function:random"])), Ok(0));
        let endless = "(func (export \"_initialize\") (loop $l (br $l)))";
        let text = tool(&imported("sched_yield", "(result i32)"), endless, "(i64.const 0)");
        assert_eq!(call(&mut engine(&text, &[])), Err(Failure::OutOfFuel));
    }

    #[test]
    fn an_exit_and_what_was_not_granted_are_in_the_failure() {
        let text =
            tool(&imported("proc_exit", "(param i32)"), "", "(call $proc_exit (i32.const 3)) (i64.const 0)");
        assert_eq!(call(&mut engine(&text, &[])), Err(Failure::Reported("it exited with status 3".into())));
        let text = tool(
            &imported("clock_time_get", "(param i32 i64 i32) (result i32)"),
            "",
            "(if (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 64)) (then unreachable)) (i64.const 0)",
        );
        let failure = call(&mut engine(&text, &[])).unwrap_err().to_string();
        assert!(failure.ends_with("which takes the grant host_function:clock"), "{failure}");
    }

    #[test]
    fn hostile_modules_are_refused_or_fail_by_themselves() {
        let inspect = |text: &str| {
            let module = wat::parse_str(text).unwrap();
            module::inspect(&"x".into(), &module, &Limits::default(), &Rights::default())
        };
        let unknown = tool(&imported("fd_fly", ""), "", "(i64.const 0)");
        assert!(inspect(&unknown).unwrap_err().message.contains("fd_fly"));
        let other = unknown.replace(NAMESPACE, "wasi_unstable");
        assert!(inspect(&other).unwrap_err().message.contains("wasi_unstable::fd_fly"));
        let own = unknown.replace(NAMESPACE, HOST).replace("fd_fly", "clock");
        assert!(inspect(&own).unwrap_err().message.contains("does not exist"));
        let bare = tool(&imported("sched_yield", "(result i32)"), "", "(i64.const 0)")
            .replace("(memory (export \"memory\") 1)", "");
        assert!(inspect(&bare).unwrap_err().message.contains("no memory of its own"), "{bare}");

        // A wrong signature, and pointers that lead nowhere.
        let wrong = package(&tool(&imported("fd_close", "(result i64)"), "", "(call $fd_close)"), &[]);
        let mut loaded = Engine::load(&wrong, &Cache::temporary(), &|| true).unwrap().0;
        let failure = call(&mut loaded).unwrap_err();
        assert!(failure.to_string().contains("types incompatible"), "{failure}");
        let text = tool(
            &imported("fd_write", "(param i32 i32 i32 i32) (result i32)"),
            "",
            "(i64.extend_i32_u (call $fd_write (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 0)))",
        );
        assert!(matches!(call(&mut engine(&text, &[])), Err(Failure::Trapped(_))));

        // In a table, as what starts, and exported again.
        let text = tool(
            &imported("sched_yield", "(result i32)"),
            r#"(table 3 funcref) (elem (i32.const 0) $sched_yield $begin) (func $begin (drop (call $sched_yield)))
               (start $begin) (export "again" (func $sched_yield))"#,
            "(i64.extend_i32_u (call_indirect (result i32) (i32.const 0)))",
        );
        assert_eq!(call(&mut engine(&text, &[])), Ok(0));
        // Its table stays as large as it starts.
        let text = text.replace(
            "(call_indirect (result i32) (i32.const 0))",
            "(table.grow (ref.null func) (i32.const 1))",
        );
        assert_eq!(call(&mut engine(&text, &[])), Ok(i64::from(u32::MAX)));
    }
}
