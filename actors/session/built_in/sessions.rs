//! Calls of `session_list` and `session_read` ([`clawmux_core::tools::sessions`]).

use actix::Recipient;
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::conversation::reply::SessionReply;
use clawmux_core::ids::SessionKey;
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::tools::call::ToolCall;
use clawmux_core::tools::sessions::{command, listed, said};

use super::asking::ask;
use crate::runtime::dispatch::Request;

/// Makes one, in this session.
///
/// # Errors
/// Why it was not made, for the model.
pub(super) async fn make(
    sessions: Recipient<Request<SessionCommand>>,
    principal: Principal,
    own: SessionKey,
    call: ToolCall,
) -> Result<String, String> {
    let command = command(call.name.as_str(), &call.input, &own)?;
    match ask(&sessions, command, principal).await {
        Ok(Reply::Session(SessionReply::SessionList(list))) => Ok(listed(&list, &own)),
        Ok(Reply::Session(SessionReply::History(history))) => Ok(said(&history)),
        Ok(_) => Err("internal error".into()),
        Err(error) => Err(error.to_string()),
    }
}
