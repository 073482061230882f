//! Calls of `job_add`, `job_list` and `job_remove` ([`clawmux_core::tools::jobs`]).

use actix::Recipient;
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::{GetJob, JobCommand, JobReply, RemoveJob};
use clawmux_core::tools::call::ToolCall;
use clawmux_core::tools::jobs::{Caller, added, command, is_for, listed, removed};

use super::asking::ask;
use crate::runtime::clock;
use crate::runtime::dispatch::Request;

/// Makes one.
///
/// # Errors
/// Why it was not made, for the model.
pub(super) async fn make(
    jobs: Recipient<Request<JobCommand>>,
    principal: Principal,
    caller: Caller,
    call: ToolCall,
) -> Result<String, String> {
    let command = command(call.name.as_str(), &call.input, &caller, clock::wall())?;
    if let JobCommand::Remove(RemoveJob { job }) = &command {
        let get = JobCommand::Get(GetJob { job: job.clone() });
        match ask(&jobs, get, principal.clone()).await {
            Ok(Reply::Job(JobReply::Job(view))) if !is_for(&view, &caller.session) => {
                return Ok(removed(false).into());
            }
            _ => {}
        }
    }
    match ask(&jobs, command, principal).await {
        Ok(Reply::Job(JobReply::Jobs(views))) => Ok(listed(&views, &caller.session)),
        Ok(Reply::Job(JobReply::Job(view))) => Ok(added(&view)),
        Ok(Reply::Job(JobReply::Removed(is_removed))) => Ok(removed(is_removed).into()),
        Ok(_) => Err("internal error".into()),
        Err(error) => Err(error.to_string()),
    }
}
