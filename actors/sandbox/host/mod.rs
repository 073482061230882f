//! The host's side of what guests may call.
//!
//! The table of host functions is here and nowhere else: [`link`] gives a guest those it was granted. The
//! rest is not linked, and a module that imports one is refused when it is loaded. Two kinds are always
//! there and refuse by themselves, since every development kit imports them: HTTP, whose requests are held
//! against the grants one by one, and logging.
//!
//! What can be answered at once is answered on the guest's thread. What takes time (HTTP, the store, a
//! search) goes as a [`HostCall`](call::HostCall) to whoever conducts the call, and the guest's thread waits: it is answered
//! or, at the call's deadline, let go.

pub mod call;

mod ask;
mod guest_memory;
mod http;
mod kernel;
mod wasi;

use std::sync::Arc;

use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::{HostFunction, Rights};
use extism::{CurrentPlugin, Error, Function, UserData, Val, ValType};

use call::CallState;

/// The WASM module that host functions are imported from.
pub const NAMESPACE: &str = extism::EXTISM_USER_MODULE;

/// What extism gives every guest: memory to pass bytes in, configuration (always empty here), variables
/// (gone with the instance), logging, HTTP. Those that read or write the guest's memory from outside are
/// replaced by ours.
pub const KERNEL: [&str; 31] = [
    "alloc",
    "config_get",
    "error_get",
    "error_set",
    "free",
    "get_log_level",
    "http_headers",
    "http_request",
    "http_status_code",
    "input_length",
    "input_load_u64",
    "input_load_u8",
    "input_offset",
    "input_set",
    "length",
    "length_unsafe",
    "load_u64",
    "load_u8",
    "log_debug",
    "log_error",
    "log_info",
    "log_trace",
    "log_warn",
    "memory_bytes",
    "output_length",
    "output_offset",
    "output_set",
    "store_u64",
    "store_u8",
    "var_get",
    "var_set",
];

/// Functions of the host that come with a grant `store:NAMESPACE`.
const STORE: [&str; 3] = ["store_get", "store_list", "store_set"];

/// Checks that a guest may import the function `name` of the host.
///
/// # Errors
/// Why not, and what would allow it.
pub fn check_import(name: &str, rights: &Rights) -> Result<(), String> {
    let (is_granted, grant) = if STORE.contains(&name) {
        (!rights.stores.is_empty(), "store:NAMESPACE".to_owned())
    } else {
        match HostFunction::of(name).filter(|function| *function != HostFunction::Log) {
            Some(function) => (rights.may_call(function), format!("host_function:{name}")),
            None => {
                let functions = HostFunction::ALL.map(HostFunction::name);
                let known = functions.into_iter().filter(|known| *known != "log").chain(STORE);
                return Err(format!(
                    "it imports the host function {name}, which does not exist, there is: {}",
                    known.collect::<Vec<_>>().join(", ")
                ));
            }
        }
    };
    if is_granted {
        Ok(())
    } else {
        Err(format!(
            "it imports the host function {name}, which it was not granted: capabilities = [\"{grant}\"]"
        ))
    }
}

/// The functions to link for a plugin with these rights, with what WASI takes where it imports that.
pub fn link(
    plugin: &PluginName,
    rights: &Arc<Rights>,
    state: &Arc<CallState>,
    imports_wasi: bool,
) -> Vec<Function> {
    let mut functions = kernel::functions(plugin, rights, state);
    if imports_wasi {
        functions.extend(wasi::functions(plugin, rights, state));
    }
    functions.extend(http::functions(rights, state));
    functions.extend(ask::functions(rights, state));
    functions
}

/// A host function in `namespace`, counted as a call of the host.
fn function(
    namespace: &'static str,
    name: &'static str,
    (takes, gives): (usize, Option<ValType>),
    state: &Arc<CallState>,
    body: impl Fn(&mut CurrentPlugin, &CallState, &[u64]) -> Result<u64, Error> + Send + Sync + 'static,
) -> Function {
    let (state, gives_int) = (Arc::clone(state), matches!(gives, Some(ValType::I32)));
    let call = move |guest: &mut CurrentPlugin, inputs: &[Val], results: &mut [Val], _: UserData<()>| {
        if name == "error_set" && inputs.iter().all(|input| input.i64() == Some(0)) {
            // The runtime itself does so before each call, also while an instance is made.
            state.call().error = None;
            return Ok(());
        }
        state.count_call()?;
        if namespace == NAMESPACE && !STORE.contains(&name) {
            state.used(format!("host_function:{name}"));
        }
        let inputs: Vec<u64> =
            inputs.iter().map(|input| input.i64().unwrap_or_default().cast_unsigned()).collect();
        let result = body(guest, &state, &inputs)?;
        if let Some(slot) = results.first_mut() {
            *slot = match gives_int {
                true => Val::I32(i32::try_from(result).unwrap_or(i32::MAX)),
                false => Val::I64(result.cast_signed()),
            };
        }
        Ok(())
    };
    Function::new(name, vec![ValType::I64; takes], gives, UserData::new(()), call).with_namespace(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::tools::plugin::Capability;
    use std::collections::BTreeMap;

    fn rights(grants: &[&str]) -> Rights {
        let grants: Vec<Capability> = grants.iter().map(|grant| Capability::parse(grant).unwrap()).collect();
        Rights::new(&grants, &BTreeMap::new())
    }

    #[test]
    fn what_is_linked_is_what_may_be_imported() {
        let all =
            ["clock", "random", "session_info", "memory_search", "store_get", "store_list", "store_set"];
        for grants in [&[][..], &["host_function:clock"], &["store:a", "host_function:log"], &["http:*"]] {
            let rights = Arc::new(rights(grants));
            let linked = link(&"x".into(), &rights, &Arc::new(CallState::default()), true);
            let linked: Vec<&str> =
                linked.iter().filter(|one| one.namespace() == Some(NAMESPACE)).map(Function::name).collect();
            let may: Vec<&str> = all.into_iter().filter(|name| check_import(name, &rights).is_ok()).collect();
            let sorted = |mut names: Vec<&'static str>| {
                names.sort_unstable();
                names
            };
            let linked = all.into_iter().filter(|name| linked.contains(name)).collect();
            assert_eq!(sorted(linked), sorted(may), "{grants:?}");
        }
        let every = rights(&HostFunction::ALL.map(|function| match function.name() {
            "clock" => "host_function:clock",
            "log" => "host_function:log",
            "random" => "host_function:random",
            "session_info" => "host_function:session_info",
            _ => "host_function:memory_search",
        }));
        assert_eq!(all.iter().filter(|name| check_import(name, &every).is_ok()).count(), 4);
        assert!(check_import("log", &every).unwrap_err().contains("does not exist"));
    }
}
