//! What the host does for [`wasi`](crate::sandbox::wasi): it logs, and gives the time and random bytes to who was
//! granted them.

use std::sync::Arc;

use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::{HostFunction, Rights};
use extism::{Error, Function, ValType};

use super::ask::random;
use super::call::CallState;
use super::kernel::log_line;
use super::{function, guest_memory};
use crate::runtime::clock;
use crate::sandbox::wasi::HOST;

/// The most random bytes that are asked for at once.
const RANDOM_BYTES_MAX: u64 = 4096;

const STANDARD_ERROR: u64 = 2;

pub(super) fn functions(plugin: &PluginName, rights: &Rights, state: &Arc<CallState>) -> [Function; 4] {
    let handle = Some(ValType::I64);
    let (may_log, plugin) = (rights.may_call(HostFunction::Log), plugin.clone());
    let (has_clock, has_random) =
        (rights.may_call(HostFunction::Clock), rights.may_call(HostFunction::Random));
    [
        function(HOST, "write", (2, None), state, move |guest, state, inputs| {
            let level = if inputs[0] == STANDARD_ERROR { "log_warn" } else { "log_info" };
            log_line(guest, state, inputs[1], level, &plugin, may_log)?;
            guest_memory::free(guest, inputs[1])?;
            Ok(0)
        }),
        function(HOST, "clock", (1, handle.clone()), state, move |_, state, _| {
            if !has_clock {
                state.denied(HostFunction::Clock);
                return Ok(u64::MAX);
            }
            state.used("host_function:clock".to_owned());
            Ok(clock::now().as_millis().saturating_mul(1_000_000))
        }),
        function(HOST, "random", (1, handle), state, move |guest, state, inputs| {
            if !has_random {
                state.denied(HostFunction::Random);
                return Ok(0);
            }
            state.used("host_function:random".to_owned());
            random(guest, inputs[0].min(RANDOM_BYTES_MAX))
        }),
        function(HOST, "exit", (1, None), state, |_, _, inputs| {
            Err(Error::msg(format!("it exited with status {}", inputs[0])))
        }),
    ]
}
