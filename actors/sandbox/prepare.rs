//! What is compiled of a module that passed the checks.
//!
//! The runtime does some things at a time when the host has no hold on them, so they are written out of the module:
//!
//! | in the module | left to the runtime | here |
//! |---|---|---|
//! | a start function, `_initialize`, `__wasm_call_ctors`, `hs_init` | runs before a call's time begins to count, with fuel of its own, and before the host can reach the guest's memory | what every call runs first |
//! | no `_start` | an instance more is made for each call, which nobody uses | one is exported: [`WAIT`] |
//! | exports that the host does not call | linked for each call | not exported |
//! | a table without a maximum | grows without bounds | stays as large as it starts |
//! | imports of WASI | | served by a second module, with which it shares its memory: see [`wasi`] |
//!
//! Functions, tables, memories and globals keep their indices; what is new comes after them. Custom sections, which
//! are for tools, are left out.

use std::collections::BTreeMap;

use extism::{Manifest, Wasm};
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemorySection, MemoryType, RawSection, RefType, SectionId, TableSection, TableType,
};
use wasmparser::{BinaryReaderError, ExternalKind, FuncType, Parser, Payload, TypeRef, ValType};

use super::{module, wasi};

/// What toolchains export to be called before anything else, and with how many zeros. The first calls the second
/// where there are both.
const INITIALIZERS: [(&str, usize); 3] = [("_initialize", 0), ("__wasm_call_ctors", 0), ("hs_init", 2)];

/// A function that keeps busy for about a millisecond, [`ROUNDS`], and does nothing. By its name the runtime knows a
/// module whose instances are made when it is called, not before.
pub const WAIT: &str = "_start";
const ROUNDS: i32 = 1_000_000;

/// What is to be compiled and linked of a module that passed the checks.
///
/// # Errors
/// Where it can't be read after all.
pub fn manifest(module: &[u8]) -> Result<Manifest, String> {
    let linked = || -> Result<Vec<Wasm>, Unreadable> {
        let guest = Module::of(module)?;
        let main = Wasm::data(guest.prepared()?).with_name("main");
        Ok(match guest.shared_memory() {
            None => vec![main],
            Some(memory) => {
                let serve = Module::of(wasi::SERVE)?.with_memory(memory);
                vec![Wasm::data(serve).with_name(wasi::NAMESPACE), main]
            }
        })
    };
    linked().map(Manifest::new).map_err(|Unreadable| "it can't be read".to_owned())
}

/// What no module that passed the checks is.
struct Unreadable;

impl From<BinaryReaderError> for Unreadable {
    fn from(_: BinaryReaderError) -> Self {
        Self
    }
}

/// A module, taken apart as far as it is written anew.
#[derive(Default)]
struct Module<'a> {
    /// The contents of all sections but custom ones.
    sections: BTreeMap<u8, &'a [u8]>,
    types: Vec<FuncType>,
    imports: Vec<wasmparser::Import<'a>>,
    /// The types of its own functions.
    functions: Vec<u32>,
    tables: Vec<wasmparser::TableType>,
    memory: Option<wasmparser::MemoryType>,
    /// Its functions that are exported.
    exports: Vec<(&'a str, u32)>,
    start: Option<u32>,
    /// The code of its own functions.
    bodies: Vec<&'a [u8]>,
}

impl<'a> Module<'a> {
    fn of(module: &'a [u8]) -> Result<Self, Unreadable> {
        let mut of = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            let payload = payload?;
            if let Some((id, range)) = payload.as_section().filter(|(id, _)| *id != SectionId::Custom as u8) {
                of.sections.insert(id, module.get(range).ok_or(Unreadable)?);
            }
            match payload {
                Payload::TypeSection(section) => {
                    of.types = section.into_iter_err_on_gc_types().collect::<Result<_, _>>()?;
                }
                Payload::ImportSection(section) => {
                    of.imports = section.into_imports().collect::<Result<_, _>>()?;
                }
                Payload::FunctionSection(section) => {
                    of.functions = section.into_iter().collect::<Result<_, _>>()?;
                }
                Payload::TableSection(section) => {
                    of.tables = section
                        .into_iter()
                        .map(|table| table.map(|table| table.ty))
                        .collect::<Result<_, _>>()?;
                }
                Payload::MemorySection(section) => of.memory = section.into_iter().next().transpose()?,
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        if export.kind == ExternalKind::Func {
                            of.exports.push((export.name, export.index));
                        }
                    }
                }
                Payload::StartSection { func, .. } => of.start = Some(func),
                Payload::CodeSectionEntry(body) => of.bodies.push(body.as_bytes()),
                _ => {}
            }
        }
        Ok(of)
    }

    /// Its memory, where WASI is served in it.
    fn shared_memory(&self) -> Option<MemoryType> {
        let imports_wasi = self.imports.iter().any(|import| import.module == wasi::NAMESPACE);
        self.memory.filter(|_| imports_wasi).map(|memory| MemoryType {
            minimum: memory.initial,
            maximum: memory.maximum,
            memory64: false,
            shared: false,
            page_size_log2: None,
        })
    }

    /// The number of a function's type.
    fn type_of(&self, function: u32) -> Option<u32> {
        let function = function as usize;
        match self.imports.get(function).map(|import| import.ty) {
            Some(TypeRef::Func(ty)) => Some(ty),
            Some(_) => None,
            None => self.functions.get(function - self.imports.len()).copied(),
        }
    }

    /// What is called before anything else, and with how many zeros.
    fn start_up(&self) -> Vec<(u32, usize)> {
        let initializer = |(name, zeros): (&str, usize)| {
            let function = self.exports.iter().find(|(export, _)| *export == name)?.1;
            let ty = self.types.get(self.type_of(function)? as usize)?;
            let fits = ty.results().is_empty() && ty.params() == &[ValType::I32; 2][..zeros];
            fits.then_some((function, zeros))
        };
        let start = self.start.map(|function| (function, 0));
        let [initialize, constructors, haskell] = INITIALIZERS;
        let own = initializer(initialize).or_else(|| initializer(constructors));
        start.into_iter().chain(own).chain(initializer(haskell)).collect()
    }

    /// It, as the head of this file says.
    fn prepared(&self) -> Result<Vec<u8>, Unreadable> {
        let start_up = self.start_up();
        let imported = u32::try_from(self.imports.len()).map_err(|_| Unreadable)?;
        let (mut functions, mut code) = (FunctionSection::new(), CodeSection::new());
        for ty in &self.functions {
            functions.function(*ty);
        }
        for body in &self.bodies {
            code.raw(body);
        }
        let mut exports = ExportSection::new();
        let mut wait = None;
        for (name, function) in self.exports.iter().filter(|(name, _)| module::CALLED.contains(name)) {
            let index = self.type_of(*function).ok_or(Unreadable)?;
            let ty = self.types.get(index as usize).ok_or(Unreadable)?;
            let mut add = |body| {
                functions.function(index);
                code.function(&body);
                functions.len() - 1 + imported
            };
            let called = match start_up.is_empty() {
                true => *function,
                false => add(after(&start_up, *function)),
            };
            exports.export(name, ExportKind::Func, called);
            if wait.is_none() {
                wait = Some(add(waiting(ty.results().len())));
            }
        }
        exports.export(WAIT, ExportKind::Func, wait.ok_or(Unreadable)?);

        let shared = self.shared_memory();
        let mut prepared = wasm_encoder::Module::new();
        for id in ORDER {
            let raw = self.sections.get(&id.into()).map(|data| RawSection { id: id.into(), data });
            match id {
                SectionId::Import if let Some(memory) = shared => prepared.section(&self.sharing(memory)?),
                SectionId::Memory if shared.is_some() => &mut prepared,
                SectionId::Function => prepared.section(&functions),
                SectionId::Table => prepared.section(&self.bounded_tables()?),
                SectionId::Export => prepared.section(&exports),
                SectionId::Code => prepared.section(&code),
                _ => match raw {
                    Some(raw) => prepared.section(&raw),
                    None => &mut prepared,
                },
            };
        }
        Ok(prepared.finish())
    }

    /// What it imports, and this memory of what serves WASI.
    fn sharing(&self, memory: MemoryType) -> Result<ImportSection, Unreadable> {
        let mut imports = ImportSection::new();
        for import in &self.imports {
            let TypeRef::Func(ty) = import.ty else { return Err(Unreadable) };
            imports.import(import.module, import.name, EntityType::Function(ty));
        }
        imports.import(wasi::NAMESPACE, wasi::MEMORY, memory);
        Ok(imports)
    }

    /// Its tables, each with a maximum.
    fn bounded_tables(&self) -> Result<TableSection, Unreadable> {
        let mut tables = TableSection::new();
        for table in &self.tables {
            let element_type = match table.element_type {
                wasmparser::RefType::FUNCREF => RefType::FUNCREF,
                wasmparser::RefType::EXTERNREF => RefType::EXTERNREF,
                _ => return Err(Unreadable),
            };
            tables.table(TableType {
                element_type,
                table64: false,
                minimum: table.initial,
                maximum: table.maximum.or(Some(table.initial)),
                shared: false,
            });
        }
        Ok(tables)
    }

    /// It, with another memory.
    fn with_memory(&self, memory: MemoryType) -> Vec<u8> {
        let mut module = wasm_encoder::Module::new();
        for (&id, data) in ORDER.iter().filter_map(|&id| self.sections.get_key_value(&id.into())) {
            match id == SectionId::Memory as u8 {
                true => module.section(MemorySection::new().memory(memory)),
                false => module.section(&RawSection { id, data }),
            };
        }
        module.finish()
    }
}

/// Calls what starts up, with zeros, then `function`, which takes nothing.
fn after(start_up: &[(u32, usize)], function: u32) -> Function {
    let mut body = Function::new([]);
    let mut code = body.instructions();
    for (first, zeros) in start_up {
        for _ in 0..*zeros {
            code.i32_const(0);
        }
        code.call(*first);
    }
    code.call(function).end();
    body
}

/// The body of [`WAIT`], which gives so many zeros.
fn waiting(zeros: usize) -> Function {
    let mut body = Function::new([(1, wasm_encoder::ValType::I32)]);
    let mut code = body.instructions();
    code.i32_const(ROUNDS).local_set(0).loop_(BlockType::Empty);
    code.local_get(0).i32_const(1).i32_sub().local_tee(0).br_if(0).end();
    for _ in 0..zeros {
        code.i32_const(0);
    }
    code.end();
    body
}

/// The order of the sections of a module, without those that nothing here has.
const ORDER: [SectionId; 11] = [
    SectionId::Type,
    SectionId::Import,
    SectionId::Function,
    SectionId::Table,
    SectionId::Memory,
    SectionId::Global,
    SectionId::Export,
    SectionId::Element,
    SectionId::DataCount,
    SectionId::Code,
    SectionId::Data,
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A module that does at the start, and in `rest`, what guests do; its `describe` traps where that was not done
    /// `times` times.
    fn started(imports: &str, rest: &str, times: u32) -> Vec<u8> {
        let text = format!(
            r#"(module
                (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
                {imports}
                (table (export "t") 2 funcref) (table 1 externref) (memory 1) (global $n (mut i32) (i32.const 0))
                (func $more (global.set $n (i32.add (global.get $n) (i32.const 1))))
                (elem (i32.const 0) $more $alloc)
                {rest}
                (func (export "describe") (result i32)
                    (if (i32.ne (global.get $n) (i32.const {times})) (then unreachable))
                    i32.const 0)
                (func (export "handle_tool_call") (result i32) i32.const 0)
                (func (export "other") (param i32))
                (@custom "name" "x")
                (data (i32.const 0) "abc"))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn what_starts_by_itself_is_called_once_by_each_call() {
        for (rest, times) in [
            ("", 0),
            ("(start $more)", 1),
            (r#"(export "_initialize" (func $more))"#, 1),
            (r#"(export "__wasm_call_ctors" (func $more))"#, 1),
            (
                r#"(start $more) (export "_initialize" (func $more)) (export "__wasm_call_ctors" (func $more))"#,
                2,
            ),
            (r#"(start $more) (func (export "hs_init") (param i32 i32) (call $more))"#, 2),
            // Of another type than what is called at the start.
            (r#"(func (export "_initialize") (param i32) (call $more))"#, 0),
            (r#"(export "_start" (func $more))"#, 0),
        ] {
            let mut plugin =
                extism::Plugin::new(manifest(&started("", rest, times)).unwrap(), [], false).unwrap();
            assert_eq!(
                plugin.call::<&str, &[u8]>("describe", "").map_err(|why| why.to_string()),
                Ok(&[][..]),
                "{rest}"
            );
        }
    }

    #[test]
    fn nothing_is_left_that_the_runtime_would_run_or_that_grows_without_bounds() {
        let rest = r#"(start $more) (export "_initialize" (func $more)) (export "memory" (memory 0))"#;
        let whole = started("", rest, 2);
        let prepared = Module::of(&whole).ok().unwrap().prepared().ok().unwrap();
        wasmparser::validate(&prepared).unwrap();
        let read = Module::of(&prepared).ok().unwrap();
        let mut exports: Vec<&str> = read.exports.iter().map(|(name, _)| *name).collect();
        exports.sort_unstable();
        assert_eq!(exports, [WAIT, "describe", "handle_tool_call"]);
        assert_eq!(read.start, None);
        assert_eq!(read.tables.iter().map(|table| table.maximum).collect::<Vec<_>>(), [Some(2), Some(1)]);
        assert!(prepared.len() < whole.len() + 60, "custom sections are gone");
    }

    proptest! {
        #[test]
        fn whatever_is_in_a_module_nothing_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let wasi = r#"(import "wasi_snapshot_preview1" "sched_yield" (func (result i32)))"#;
            let mut module = started(wasi, "(start $more)", 1);
            let at = at.index(module.len());
            module[at] = byte;
            let _ = manifest(&module);
        }
    }
}
