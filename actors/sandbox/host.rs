//! The host's side of what guests may call.
//!
//! The table of host functions is here and nowhere else. A guest sees those it was granted; the
//! rest is not linked, and a module that imports one is refused when it is loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::Capability;
use extism::{CurrentPlugin, Function, UserData, Val, ValType};

use crate::runtime::clock;

/// The WASM module that host functions are imported from.
pub const NAMESPACE: &str = extism::EXTISM_USER_MODULE;

/// The host functions there are; each needs the grant `host_function:NAME`.
pub const FUNCTIONS: [&str; 1] = ["clock"];

/// What extism itself gives every guest: memory to pass bytes in, configuration (always empty
/// here), variables (gone with the instance), logging. HTTP is not among them.
pub const KERNEL: [&str; 28] = [
    "alloc",
    "config_get",
    "error_get",
    "error_set",
    "free",
    "get_log_level",
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

/// The most lines one call may log; what is more is dropped.
const LOG_LINES_MAX: u32 = 32;

/// The most bytes of a logged line.
const LOG_LINE_BYTES_MAX: usize = 512;

/// Checks grants against the table.
///
/// # Errors
/// `InvalidRequest` for a grant of something that does not exist, by name.
pub fn check_grants(plugin: &PluginName, grants: &[Capability]) -> Result<(), Error> {
    for grant in grants {
        let Capability::HostFunction(name) = grant;
        if !FUNCTIONS.contains(&name.as_str()) {
            return Err(ErrorCode::InvalidRequest.error(format!(
                "plugin {plugin}: there is no host function {name:?} to grant, there is: {}",
                FUNCTIONS.join(", ")
            )));
        }
    }
    Ok(())
}

/// Whether `grants` holds the host function `name`.
pub fn granted(grants: &[Capability], name: &str) -> bool {
    grants.iter().any(|grant| matches!(grant, Capability::HostFunction(granted) if granted == name))
}

/// What the host functions of one engine share; an engine serves one call at a time.
#[derive(Debug, Default)]
pub struct CallState {
    log_lines: AtomicU32,
}

impl CallState {
    /// Ready for the next call.
    pub fn reset(&self) {
        self.log_lines.store(0, Ordering::Relaxed);
    }
}

/// The functions to link: those granted, and logging that a guest can't flood the log with.
pub fn functions(plugin: &PluginName, grants: &[Capability], state: &Arc<CallState>) -> Vec<Function> {
    let mut functions: Vec<Function> = ["log_error", "log_warn", "log_info", "log_debug", "log_trace"]
        .into_iter()
        .map(|name| log_function(name, plugin.clone(), Arc::clone(state)))
        .collect();
    if granted(grants, "clock") {
        functions.push(
            Function::new("clock", [], [ValType::I64], UserData::new(()), |_, _, results, _| {
                let millis = clock::now().as_millis();
                results[0] = Val::I64(i64::try_from(millis).unwrap_or(i64::MAX));
                Ok(())
            })
            .with_namespace(NAMESPACE),
        );
    }
    functions
}

fn log_function(name: &'static str, plugin: PluginName, state: Arc<CallState>) -> Function {
    let log = move |guest: &mut CurrentPlugin, inputs: &[Val], _: &mut [Val], _: UserData<()>| {
        let Some(handle) = guest.memory_from_val(&inputs[0]) else { return Ok(()) };
        if state.log_lines.fetch_add(1, Ordering::Relaxed) < LOG_LINES_MAX {
            let bytes = guest.memory_bytes(handle)?;
            let line = String::from_utf8_lossy(&bytes[..bytes.len().min(LOG_LINE_BYTES_MAX)]);
            match name {
                "log_error" | "log_warn" => tracing::warn!(%plugin, line = ?line, "plugin says"),
                "log_info" => tracing::info!(%plugin, line = ?line, "plugin says"),
                _ => tracing::debug!(%plugin, line = ?line, "plugin says"),
            }
        }
        guest.memory_free(handle)
    };
    Function::new(name, [ValType::I64], [], UserData::new(()), log).with_namespace(extism::EXTISM_ENV_MODULE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_of_nothing_that_exists_is_refused_by_name() {
        let grants = [Capability::HostFunction("exec".to_owned())];
        let error = check_grants(&"shell".into(), &grants).unwrap_err();
        assert_eq!(
            error.message,
            "plugin shell: there is no host function \"exec\" to grant, there is: clock"
        );
        assert_eq!(FUNCTIONS, Capability::HOST_FUNCTIONS, "what is granted and what exists are one list");
    }
}
