//! Guest plugins as small as can be, for tests that need one to behave so.

/// A tool whose `describe` answers with an empty object and whose `handle_tool_call` is `body`,
/// which may begin with locals and call `$empty_object`, or `$say` with the two bytes of its answer.
pub fn guest(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
            (import "extism:host/env" "store_u8" (func $store (param i64 i32)))
            (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
            (func $say (param $one i32) (param $other i32) (local $at i64)
                (local.set $at (call $alloc (i64.const 2)))
                (call $store (local.get $at) (local.get $one))
                (call $store (i64.add (local.get $at) (i64.const 1)) (local.get $other))
                (call $output_set (local.get $at) (i64.const 2)))
            (func $empty_object (call $say (i32.const 123) (i32.const 125)))
            (func (export "describe") (result i32) call $empty_object i32.const 0)
            (func (export "handle_tool_call") (result i32) {body}))"#
    );
    wat::parse_str(text).expect("a module")
}
