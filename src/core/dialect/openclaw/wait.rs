//! Waiting for the end of a run, by the name it was asked for with.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::chat::IDEMPOTENCY_KEY_BYTES_MAX;
use super::stream::{End, RunStream, incomplete, stop_reason};
use super::{Answered, Asker, Call, Calling, OpenClaw, Request, wire};
use crate::conversation::command::FollowRun;
use crate::conversation::event::{Cause, Outcome};
use crate::dialect::Turn;
use crate::error::ErrorCode;
use crate::scope::Scope;
use crate::time::Timestamp;

/// How long `agent.wait` waits where the client does not say, and at most.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// How many `agent.wait` of one connection may wait at once.
const WAITING_MAX: usize = 256;

/// How often is looked whether a run that nobody knew has begun.
const LOOK: Duration = Duration::from_millis(500);

/// An `agent.wait` for a run that nobody knows.
#[derive(Clone, Debug)]
pub(super) struct Vain {
    /// The request.
    pub(super) id: String,
    /// The run.
    pub(super) run: String,
    /// Until when it waits.
    pub(super) until: Timestamp,
    /// When is looked for the run again.
    pub(super) look: Timestamp,
}

/// `agent.wait`: answered when the run has ended, or after a while.
pub(super) fn agent_wait(dialect: &mut OpenClaw, request: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wait {
        run_id: Option<String>,
        timeout_ms: Option<u64>,
    }
    let asked: Wait = request.read()?;
    let run = asked.run_id.filter(|run| !run.is_empty());
    let run = run.ok_or_else(|| request.invalid("must have required property 'runId'"))?;
    if run.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let why = format!("at /runId: must have at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
        return Err(request.invalid(&why));
    }
    let timeout = asked.timeout_ms.map_or(WAIT_DEFAULT, Duration::from_millis).min(WAIT_MAX);
    let (now, id) = (turn.now(), request.id.to_owned());
    let waiting: usize = dialect.runs.values().map(|told| told.waiting.len()).sum();
    if waiting + dialect.vain.len() >= WAITING_MAX {
        return Err(ErrorCode::RateLimited.error(format!("too many agent.wait at once ({WAITING_MAX})")));
    }
    dialect.wait(Vain { id, run, until: now.after(timeout), look: now })
}

impl OpenClaw {
    /// Waits for a run; one that is not told here is looked for.
    fn wait(&mut self, vain: Vain) -> Answered {
        if let Some(told) = self.runs.values_mut().find(|told| told.run() == vain.run) {
            told.waiting.push((vain.id, vain.until));
            return Ok(Call::Elsewhere);
        }
        Call::ask_either(FollowRun { run: vain.run.as_str().into() }, move |dialect, reply, turn| {
            match reply {
                Err(error) if error.code == ErrorCode::NotFound => {
                    let look = turn.now().after(LOOK).min(vain.until);
                    dialect.vain.push(Vain { look, ..vain });
                }
                accepted => {
                    dialect.await_end(&accepted?, &vain.run).waiting.push((vain.id, vain.until));
                }
            }
            Ok(Call::Elsewhere)
        })
    }

    /// Looks again for runs that nobody knew; who waited long enough is told that.
    pub(super) fn wait_on(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now();
        let due: Vec<_> = self.vain.extract_if(.., |vain| vain.look <= now).collect();
        for vain in due {
            if vain.until <= now {
                turn.send(wire::answer(&vain.id, &in_vain(&vain.run)));
                continue;
            }
            let id = vain.id.clone();
            let call = self.wait(vain);
            self.proceed(Some(Asker { id, needs: Scope::Read }), 0, call, turn);
        }
    }
}

/// The answer to an `agent.wait` whose run has ended.
pub(super) fn waited(told: &RunStream, end: &End) -> Value {
    let mut payload = json!({ "runId": told.run(), "status": "ok", "endedAt": end.at.as_millis() });
    if let Some(started) = told.started {
        payload["startedAt"] = started.as_millis().into();
    }
    match &end.outcome {
        Outcome::Completed => {}
        Outcome::Incomplete(why) => payload["stopReason"] = incomplete(*why).into(),
        // What `chat.abort` ends is called this here.
        Outcome::Aborted(Cause::Asked) => payload["stopReason"] = "aborted".into(),
        Outcome::Aborted(cause) => payload["stopReason"] = stop_reason(*cause).into(),
        Outcome::Failed(error) => {
            payload["status"] = "error".into();
            payload["error"] = error.message.as_str().into();
        }
    }
    payload
}

/// The answer to an `agent.wait` that waited for nothing.
pub(super) fn in_vain(run: &str) -> Value {
    json!({ "runId": run, "status": "timeout" })
}
