//! Calls of the tools that are built in ([`clawmux_core::tools::built_in`]): done here, without a plugin.
//!
//! On behalf of whom the session belongs to, whoever prompted the run.

mod asking;
mod memory;
mod send_message;

use clawmux_core::ids::RunId;
use clawmux_core::tools::built_in::is_built_in;
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::{long_result, memory as memory_tools, messenger};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::Session;
use send_message::SendMessage;

/// What a call came to: the result, or why it was not made, both for the model.
type Made = LocalBoxFuture<'static, Result<String, String>>;

impl Session {
    /// Makes a call of a tool that is built in; none where it is of another tool.
    pub(super) fn call_built_in(
        &self,
        run: &RunId,
        call: &ToolCall,
    ) -> Option<LocalBoxFuture<'static, ToolResult>> {
        let name = call.name.as_str();
        if name == long_result::NAME {
            return Some(std::future::ready(self.conversation.read_result(call)).boxed_local());
        }
        let (run, id) = (run.clone(), call.id.clone());
        let made: Made = match name {
            messenger::NAME => self.send_message(run, call.clone()),
            memory_tools::SEARCH | memory_tools::SAVE => self.use_memory(run, call.clone()),
            _ => {
                debug_assert!(!is_built_in(name), "{name}");
                return None;
            }
        };
        let result = made.map(|made| {
            let is_error = made.is_err();
            ToolResult { call: id, content: made.unwrap_or_else(|why| why), is_error }
        });
        Some(result.boxed_local())
    }

    fn send_message(&self, run: RunId, call: ToolCall) -> Made {
        let owner = self.conversation.owner().clone();
        let files = self.deps.files.clone();
        let sessions = self.drop_guard.supervisor.requests.clone();
        SendMessage { run, call, owner, files, sessions }.make().boxed_local()
    }

    fn use_memory(&self, run: RunId, call: ToolCall) -> Made {
        let whom = self.drop_guard.supervisor.memory.clone();
        memory::make(whom, self.conversation.owner().clone(), run, call).boxed_local()
    }
}
