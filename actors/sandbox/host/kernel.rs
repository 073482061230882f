//! Those functions of extism's that read or write a guest's memory from outside, made ours: extism's own
//! take the sizes that they find in that memory at their word.

use std::sync::Arc;

use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::{HostFunction, Rights};
use extism::{CurrentPlugin, Error, Function, ValType};

use super::call::{CallState, VARIABLES_BYTES_MAX};
use super::{function, guest_memory};
use crate::sandbox::engine::MESSAGE_BYTES_MAX;

/// The longest name of a setting that is looked for.
const SETTING_BYTES_MAX: usize = 256;

/// The most lines one call may log; what is more is dropped.
const LOG_LINES_MAX: u32 = 32;

/// The most bytes of a logged line; what is more is cut off.
const LOG_LINE_BYTES_MAX: usize = 512;

const ENV: &str = extism::EXTISM_ENV_MODULE;

pub(super) fn functions(plugin: &PluginName, rights: &Rights, state: &Arc<CallState>) -> Vec<Function> {
    let may_log = rights.may_call(HostFunction::Log);
    let levels = ["log_error", "log_warn", "log_info", "log_debug", "log_trace"];
    let mut functions: Vec<Function> =
        levels.into_iter().map(|name| log(name, plugin.clone(), may_log, state)).collect();
    functions.push(function(ENV, "output_set", (2, None), state, |guest, state, inputs| {
        let length = usize::try_from(inputs[1])?;
        let output_max = state.call().output_bytes_max;
        let output = match length {
            0 => Ok(Vec::new()),
            1.. if length > output_max => Err(length),
            1.. => match guest_memory::load_start(guest, inputs[0], length)? {
                output if output.len() == length => Ok(output),
                _ => return Err(Error::msg("its output has more bytes than it allocated")),
            },
        };
        state.call().output = output;
        Ok(0)
    }));
    functions.push(function(ENV, "error_set", (1, None), state, |guest, state, inputs| {
        let error = guest_memory::load_start(guest, inputs[0], MESSAGE_BYTES_MAX)?;
        state.call().error = Some(error).filter(|error| !error.is_empty());
        Ok(0)
    }));
    functions.push(function(ENV, "config_get", (1, Some(ValType::I64)), state, |guest, state, inputs| {
        let name = guest_memory::take(guest, inputs[0], SETTING_BYTES_MAX)?;
        match std::str::from_utf8(&name).ok().and_then(|name| state.settings().get(name)) {
            Some(value) => guest_memory::store(guest, value.as_bytes()),
            None => Ok(0),
        }
    }));
    functions.push(function(ENV, "var_get", (1, Some(ValType::I64)), state, |guest, state, inputs| {
        let name = guest_memory::take(guest, inputs[0], VARIABLES_BYTES_MAX)?;
        match state.variable(&name) {
            Some(value) => guest_memory::store(guest, &value),
            None => Ok(0),
        }
    }));
    functions.push(function(ENV, "var_set", (2, None), state, |guest, state, inputs| {
        let name = guest_memory::take(guest, inputs[0], VARIABLES_BYTES_MAX)?;
        let value = match inputs[1] {
            0 => None,
            handle => Some(guest_memory::take(guest, handle, VARIABLES_BYTES_MAX)?),
        };
        state.set_variable(name, value)?;
        Ok(0)
    }));
    functions
}

/// A guest that may not log is not refused, since every development kit has it: what it says is there for
/// whoever looks for it, and never in the way.
fn log(name: &'static str, plugin: PluginName, may_log: bool, state: &Arc<CallState>) -> Function {
    function(ENV, name, (1, None), state, move |guest, state, inputs| {
        if log_line(guest, state, inputs[0], name, &plugin, may_log)? {
            guest_memory::free(guest, inputs[0])?;
        }
        Ok(0)
    })
}

/// Logs the bytes of a handle at the level of this function, where not too much was logged before; says whether
/// it did.
pub(super) fn log_line(
    guest: &mut CurrentPlugin,
    state: &CallState,
    handle: u64,
    level: &str,
    plugin: &PluginName,
    may_log: bool,
) -> Result<bool, Error> {
    let mut call = state.call();
    call.log_lines = call.log_lines.saturating_add(1);
    if call.log_lines > LOG_LINES_MAX {
        return Ok(false);
    }
    drop(call);
    let line = guest_memory::load_start(guest, handle, LOG_LINE_BYTES_MAX)?;
    let line = String::from_utf8_lossy(&line);
    let line = line.trim_end();
    match level {
        "log_error" | "log_warn" if may_log => tracing::warn!(%plugin, line = ?line, "plugin says"),
        "log_info" if may_log => tracing::info!(%plugin, line = ?line, "plugin says"),
        _ => tracing::debug!(%plugin, line = ?line, "plugin says"),
    }
    Ok(true)
}
