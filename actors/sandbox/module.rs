//! What a module must be before it is compiled: everything that limits at run time can't bound.
//!
//! Tables have no limit in the runtime, so each must declare a small maximum, or stays as large as it
//! starts. A proposal that no guest toolchain needs (threads, 64-bit memories, exceptions, garbage collection) is off: what
//! is off has no bugs.

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::Rights;
use wasmparser::{
    ExternalKind, FuncType, Parser, Payload, TableInit, TypeRef, ValType, Validator, WasmFeatures,
};

use super::{Limits, host, wasi};

/// The largest module, in bytes.
pub const BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most elements all tables of a module may have together.
pub const TABLE_ELEMENTS_MAX: u64 = 65_536;

/// The most functions a module may have, and the most bytes of one: what compiling takes grows with
/// both, to minutes and gigabytes for a module of a few megabytes made for that.
pub const FUNCTIONS_MAX: u32 = 50_000;
/// See [`FUNCTIONS_MAX`].
pub const FUNCTION_BYTES_MAX: usize = 512 * 1024;

/// The functions every tool exports.
pub const EXPORTS: [&str; 2] = ["describe", "handle_tool_call"];

/// The functions every channel adapter exports.
pub const ADAPTER_EXPORTS: [&str; 3] = ["describe", "parse_incoming", "format_outgoing"];

/// All functions of guests that are ever called.
pub const CALLED: [&str; 6] =
    ["describe", "handle_tool_call", "parse_incoming", "format_outgoing", "poll", "format_typing"];

const PAGES_PER_MIB: u64 = 16;

const FEATURES: WasmFeatures = WasmFeatures::MVP
    .union(WasmFeatures::MUTABLE_GLOBAL)
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST);

/// What the checks learnt of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// How far memory may grow beyond what the module starts with, in 64 KiB pages.
    pub pages_to_grow: u32,
    /// Whether it imports WASI.
    pub imports_wasi: bool,
    /// Of a channel adapter, which others than [`ADAPTER_EXPORTS`] it has; none = it is none.
    pub adapter: Option<AdapterExports>,
}

/// What a channel adapter may export besides what it has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterExports {
    /// `poll`, which asks its platform for messages.
    pub poll: bool,
    /// `format_typing`, which tells it that an answer is under way.
    pub format_typing: bool,
}

/// Checks `module`, loaded as `plugin`.
///
/// # Errors
/// `InvalidRequest` (or `TooLarge`, `Forbidden` for what was not granted) with the plugin's name,
/// what is wrong and what would be right.
pub fn inspect(
    plugin: &PluginName,
    module: &[u8],
    limits: &Limits,
    rights: &Rights,
) -> Result<Inspected, Error> {
    let refuse = |code: ErrorCode, why: String| Err(code.error(format!("plugin {plugin}: {why}")));
    if module.len() > BYTES_MAX {
        return refuse(
            ErrorCode::TooLarge,
            format!("the module has {} bytes, more than {BYTES_MAX}", module.len()),
        );
    }
    if !module.starts_with(b"\0asm") {
        return refuse(ErrorCode::InvalidRequest, "the file is not a WebAssembly module".to_owned());
    }
    if let Err(error) = Validator::new_with_features(FEATURES).validate_all(module) {
        return refuse(ErrorCode::InvalidRequest, format!("the module is not valid: {error}"));
    }
    let shape = match Shape::of(module) {
        Ok(shape) => shape,
        Err(error) => return refuse(ErrorCode::InvalidRequest, format!("the module is not valid: {error}")),
    };
    for (from, name, is_function) in &shape.imports {
        if let Err(why) = import(from, name, *is_function, rights) {
            return refuse(ErrorCode::Forbidden, why);
        }
    }
    let imports_wasi = shape.imports_wasi();
    if imports_wasi && shape.memories != 1 {
        let why = format!("it imports {} and has no memory of its own to be served in", wasi::NAMESPACE);
        return refuse(ErrorCode::InvalidRequest, why);
    }
    let exports = |name: &str| shape.exports.iter().any(|export| export == name);
    let is_adapter = exports("parse_incoming") || exports("format_outgoing");
    let (wanted, kind) = match is_adapter {
        true => (&ADAPTER_EXPORTS[..], "a channel adapter"),
        false => (&EXPORTS[..], "a tool"),
    };
    if let Some(missing) = wanted.iter().find(|name| !exports(name)) {
        let (last, first) = wanted.split_last().unwrap_or((&"", &[]));
        let why = format!("{kind} exports the functions {} and {last}", first.join(", "));
        return refuse(ErrorCode::InvalidRequest, format!("the module does not export {missing}: {why}"));
    }
    if let Some(name) = &shape.misfit {
        let why =
            format!("{name} takes nothing and gives nothing or an i32, the rest goes by input and output");
        return refuse(
            ErrorCode::InvalidRequest,
            format!("the module exports {name} with another type: {why}"),
        );
    }
    let adapter =
        is_adapter.then(|| AdapterExports { poll: exports("poll"), format_typing: exports("format_typing") });
    if shape.functions > FUNCTIONS_MAX {
        return refuse(
            ErrorCode::TooLarge,
            format!("it has {} functions, more than {FUNCTIONS_MAX}", shape.functions),
        );
    }
    if shape.function_bytes > FUNCTION_BYTES_MAX {
        return refuse(
            ErrorCode::TooLarge,
            format!("it has a function of {} bytes, more than {FUNCTION_BYTES_MAX}", shape.function_bytes),
        );
    }
    if shape.table_elements > TABLE_ELEMENTS_MAX {
        let elements = shape.table_elements;
        return refuse(
            ErrorCode::TooLarge,
            format!("its tables may have {elements} elements, more than {TABLE_ELEMENTS_MAX}"),
        );
    }
    let allowed = u64::from(limits.memory_mb) * PAGES_PER_MIB;
    let to_grow = allowed.saturating_sub(shape.pages);
    if to_grow < shape.pages + PAGES_PER_MIB {
        return refuse(
            ErrorCode::TooLarge,
            format!(
                "it starts with {} KiB of memory, which leaves too little of memory_mb = {}: at least {} is needed",
                shape.pages * 64,
                limits.memory_mb,
                (shape.pages * 2 + PAGES_PER_MIB).div_ceil(PAGES_PER_MIB),
            ),
        );
    }
    Ok(Inspected { pages_to_grow: u32::try_from(to_grow).unwrap_or(u32::MAX), imports_wasi, adapter })
}

fn import(from: &str, name: &str, is_function: bool, rights: &Rights) -> Result<(), String> {
    if from == wasi::NAMESPACE && is_function && wasi::serves(name) {
        return Ok(());
    }
    if from.starts_with("wasi") {
        let taken = wasi::NAMESPACE;
        return Err(format!("it imports {from}::{name}: of WASI there are the functions of {taken} only"));
    }
    if !is_function {
        return Err(format!("it imports {from}::{name}, which is not a function"));
    }
    match from {
        extism::EXTISM_ENV_MODULE if host::KERNEL.contains(&name) => Ok(()),
        host::NAMESPACE => host::check_import(name, rights),
        _ => Err(format!("it imports {from}::{name}, which does not exist")),
    }
}

/// What of a module the rules are about.
#[derive(Default)]
struct Shape {
    imports: Vec<(String, String, bool)>,
    exports: Vec<String>,
    /// One of [`CALLED`] that has another type than is called.
    misfit: Option<String>,
    /// The most elements its tables may have together. One without a maximum stays as large as it starts.
    table_elements: u64,
    /// The memory it starts with, in 64 KiB pages.
    pages: u64,
    /// How many memories those are.
    memories: usize,
    functions: u32,
    /// The size of its largest function.
    function_bytes: usize,
}

impl Shape {
    fn of(module: &[u8]) -> Result<Self, wasmparser::BinaryReaderError> {
        let (mut shape, mut types, mut functions) = (Self::default(), Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        let is_function = match import.ty {
                            TypeRef::Func(ty) => {
                                functions.push(ty);
                                true
                            }
                            _ => false,
                        };
                        shape.imports.push((import.module.to_owned(), import.name.to_owned(), is_function));
                    }
                }
                Payload::TypeSection(section) => {
                    types = section.into_iter_err_on_gc_types().collect::<Result<_, _>>()?;
                }
                Payload::FunctionSection(section) => {
                    for ty in section {
                        functions.push(ty?);
                    }
                }
                Payload::TableSection(section) => {
                    for table in section {
                        let table = table?;
                        debug_assert!(matches!(table.init, TableInit::RefNull | TableInit::Expr(_)));
                        let most = table.ty.maximum.unwrap_or(table.ty.initial);
                        shape.table_elements = shape.table_elements.saturating_add(most);
                    }
                }
                Payload::MemorySection(section) => {
                    for memory in section {
                        shape.pages = shape.pages.saturating_add(memory?.initial);
                        shape.memories += 1;
                    }
                }
                Payload::CodeSectionStart { count, .. } => shape.functions = count,
                Payload::CodeSectionEntry(body) => {
                    shape.function_bytes = shape.function_bytes.max(body.range().len());
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        if export.kind == ExternalKind::Func {
                            let ty = functions.get(export.index as usize);
                            let ty = ty.and_then(|ty: &u32| types.get(*ty as usize));
                            if CALLED.contains(&export.name) && !ty.is_some_and(is_called) {
                                shape.misfit = Some(export.name.to_owned());
                            }
                            shape.exports.push(export.name.to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(shape)
    }

    fn imports_wasi(&self) -> bool {
        self.imports.iter().any(|(from, ..)| from == wasi::NAMESPACE)
    }
}

/// Whether a function of this type can be called by the host.
fn is_called(ty: &FuncType) -> bool {
    ty.params().is_empty() && matches!(ty.results(), [] | [ValType::I32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::tools::plugin::HostFunction;
    use proptest::prelude::*;

    /// A tool with these lines in its module.
    fn tool(lines: &str) -> Vec<u8> {
        let text = format!(
            "(module {lines} (func (export \"describe\") (result i32) i32.const 0)
                (func (export \"handle_tool_call\") (result i32) i32.const 0))"
        );
        wat::parse_str(text).unwrap()
    }

    fn clock() -> Rights {
        Rights { functions: vec![HostFunction::Clock], ..Rights::default() }
    }

    #[test]
    fn a_plain_tool_passes_and_its_memory_counts() {
        let module = tool("(memory 16) (table 10 10 funcref)");
        let inspected = inspect(&"x".into(), &module, &Limits::default(), &Rights::default()).unwrap();
        assert_eq!(inspected.pages_to_grow, 64 * 16 - 16);
    }

    #[test]
    fn what_cannot_be_bounded_or_was_not_granted_is_refused_by_name() {
        let user =
            |name: &str| tool(&format!("(import \"extism:host/user\" \"{name}\" (func (result i64)))"));
        let env = |name: &str| tool(&format!("(import \"extism:host/env\" \"{name}\" (func))"));
        for (module, says) in [
            (b"not wasm".to_vec(), "not a WebAssembly module"),
            (b"(module)".to_vec(), "not a WebAssembly module"),
            (b"\0asm\x01\0\0\0\xff".to_vec(), "not valid"),
            (wat::parse_str("(module)").unwrap(), "does not export describe"),
            (
                wat::parse_str("(module (func (export \"describe\")) (func (export \"parse_incoming\")))")
                    .unwrap(),
                "export format_outgoing: a channel adapter exports the functions",
            ),
            (
                wat::parse_str("(module (memory (export \"describe\") 1))").unwrap(),
                "does not export describe: a tool exports the functions",
            ),
            (
                tool("(func (export \"poll\") (param i32))"),
                "exports poll with another type: poll takes nothing and gives nothing or an i32",
            ),
            (tool("(func (export \"poll\") (result i64) i64.const 0)"), "exports poll with another type"),
            (tool("(table 70000 funcref)"), "70000 elements, more than 65536"),
            (tool("(table 1 1000000 funcref)"), "1000000 elements, more than 65536"),
            (tool("(table 1 40000 funcref) (table 1 40000 externref)"), "80000 elements"),
            (tool(&"(func)".repeat(FUNCTIONS_MAX as usize)), "50002 functions, more than 50000"),
            (
                tool(&format!("(func {})", "nop ".repeat(FUNCTION_BYTES_MAX))),
                "a function of 524290 bytes, more than 524288",
            ),
            (tool("(memory 600)"), "memory_mb = 64: at least 76 is needed"),
            (tool("(memory 65536)"), "memory_mb = 64"),
            (tool("(memory i64 1)"), "not valid"),
            (tool("(memory 1) (memory 1)"), "not valid"),
            (tool("(memory 1 1 shared)"), "not valid"),
            (
                tool("(import \"wasi_unstable\" \"fd_write\" (func))"),
                "imports wasi_unstable::fd_write: of WASI there are the functions of wasi_snapshot_preview1 only",
            ),
            (tool("(import \"env\" \"abort\" (func))"), "imports env::abort, which does not exist"),
            (tool("(import \"extism:host/env\" \"memory\" (memory 1))"), "which is not a function"),
            (env("exec"), "extism:host/env::exec, which does not exist"),
            (user("clock"), "imports the host function clock, which it was not granted"),
            (
                user("exec"),
                "the host function exec, which does not exist, there is: clock, random, session_info, memory_search, store_get",
            ),
            (user("store_get"), "store_get, which it was not granted: capabilities = [\"store:NAMESPACE\"]"),
        ] {
            let error = inspect(&"x".into(), &module, &Limits::default(), &Rights::default()).unwrap_err();
            assert!(
                error.message.starts_with("plugin x: ") && error.message.contains(says),
                "{says}: {error}"
            );
        }
        assert!(inspect(&"x".into(), &env("http_request"), &Limits::default(), &Rights::default()).is_ok());
        assert!(inspect(&"x".into(), &user("clock"), &Limits::default(), &clock()).is_ok());
        assert!(inspect(&"x".into(), &user("exec"), &Limits::default(), &clock()).is_err());
        let big = [b"\0asm".as_slice(), &vec![0; BYTES_MAX]].concat();
        assert_eq!(
            inspect(&"x".into(), &big, &Limits::default(), &Rights::default()).unwrap_err().code,
            ErrorCode::TooLarge
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), flip in any::<u8>()) {
            let _ = inspect(&"x".into(), &bytes, &Limits::default(), &Rights::default());
            let _ = inspect(&"x".into(), &[b"\0asm\x01\0\0\0".as_slice(), &bytes].concat(), &Limits::default(), &Rights::default());
            let mut module = tool("(import \"extism:host/env\" \"alloc\" (func)) (memory 1) (table 1 2 funcref)");
            let at = at.index(module.len());
            module[at] ^= flip;
            let _ = inspect(&"x".into(), &module, &Limits::default(), &Rights::default());
        }
    }
}
