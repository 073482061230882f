//! Calls of `memory_search` and `memory_save` ([`clawmux_core::tools::memory`]).

use actix::Recipient;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::RunId;
use clawmux_core::memory::{MemoryCommand, MemoryReply};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::tools::call::ToolCall;
use clawmux_core::tools::memory::{SAVED, command, found};

use super::asking::ask;
use crate::runtime::dispatch::Request;

/// Makes one.
///
/// # Errors
/// Why it was not made, for the model.
pub(super) async fn make(
    memory: Recipient<Request<MemoryCommand>>,
    principal: Principal,
    run: RunId,
    call: ToolCall,
) -> Result<String, String> {
    let command = command(call.name.as_str(), &call.input, (&run, &call.id), &principal.owner)?;
    let is_store = matches!(command, MemoryCommand::Store(_));
    match ask(&memory, command, principal).await {
        Ok(Reply::Memory(MemoryReply::Found(results))) => Ok(found(&results)),
        Ok(Reply::Memory(MemoryReply::Stored(_))) => Ok(SAVED.into()),
        // By this very call, before a crash; or as the same text.
        Err(Error { code: ErrorCode::Conflict, .. }) if is_store => Ok(SAVED.into()),
        Ok(_) => Err("internal error".into()),
        Err(error) => Err(error.to_string()),
    }
}
