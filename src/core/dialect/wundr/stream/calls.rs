//! Calls of tools, as one road is told of them: asked for, waiting for approval, under way, answered.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{STREAM_CHUNK, TOOL_RESULT, TOOL_STATUS, Words, asked_for, chunk, session_status, status_of};
use crate::conversation::approval::Decision;
use crate::conversation::event::{Event, Logged, Published};
use crate::dialect::json::put;
use crate::dialect::wundr::sessions::{BUSY, PAUSED, RUNNING};
use crate::dialect::wundr::tools::{self, TOOL_REQUEST};
use crate::ids::{CallId, RunId};
use crate::time::Timestamp;
use crate::tools::call::ToolResult;

/// Calls under way that one road remembers.
const OPEN_MAX: usize = 4096;

/// What a tool is called whose call was not seen.
const UNKNOWN_TOOL: &str = "unknown";

/// Calls of tools that are under way.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The tool, and when it was called if that was seen.
    open: HashMap<(RunId, CallId), (String, Option<Timestamp>)>,
    /// Those whose result was told already.
    settled: HashSet<(RunId, CallId)>,
    /// Those that wait for approval.
    waiting: HashSet<(RunId, CallId)>,
}

impl Calls {
    /// The words for what happens to a call.
    pub(super) fn tell(&mut self, session: &str, run: &RunId, published: &Published) -> Words {
        let Logged { seq, at, event, .. } = &published.logged;
        let key = |call: &CallId| (run.clone(), call.clone());
        match event {
            Event::ToolCalled(call) => {
                self.begins(key(&call.id), call.name.to_string(), Some(*at));
                let status = |status| status_of(session, run, &call.id, call.name.as_str(), status, *seq);
                let asked = asked_for(session, run, call, *seq);
                vec![
                    (STREAM_CHUNK, asked),
                    (TOOL_STATUS, status("started")),
                    (TOOL_STATUS, status("running")),
                ]
            }
            Event::ApprovalAsked(asked) => {
                let request = tools::requested(session, run, asked, seq.0);
                let mut words =
                    vec![(STREAM_CHUNK, asked_for(session, run, &asked.call, *seq)), (TOOL_REQUEST, request)];
                if !self.waits(run) {
                    words.push(session_status(session, PAUSED, (Some(BUSY), None), *seq));
                }
                self.waiting.insert(key(&asked.call.id));
                words
            }
            Event::ApprovalDecided(decided) => {
                let name = decided.tool.as_str();
                let status = |status| status_of(session, run, &decided.call, name, status, *seq);
                let mut words = match tools::refusal(decided) {
                    None => {
                        self.begins(key(&decided.call), name.to_owned(), Some(*at));
                        vec![(TOOL_STATUS, status("started")), (TOOL_STATUS, status("running"))]
                    }
                    Some((outcome, why)) => {
                        let mut told = status(outcome);
                        told["error"] = why.into();
                        vec![(TOOL_STATUS, status("failed")), (TOOL_RESULT, told)]
                    }
                };
                self.waiting.remove(&key(&decided.call));
                match decided.decision {
                    // Its end follows.
                    Decision::Withdrawn => return words,
                    // What the model is told instead of a result is no second one.
                    Decision::Denied { .. } | Decision::TimedOut => {
                        self.settled.insert(key(&decided.call));
                    }
                    Decision::Approved { .. } => {}
                }
                if !self.waits(run) {
                    words.push(session_status(session, RUNNING, (Some(BUSY), None), *seq));
                }
                words
            }
            Event::ToolReturned(result) => {
                let open = self.open.remove(&key(&result.call));
                if self.settled.remove(&key(&result.call)) {
                    return Words::new();
                }
                let (name, called) = match open {
                    Some(known) => known,
                    None => (UNKNOWN_TOOL.to_owned(), None),
                };
                let took = called.map(|called| at.millis_since(called));
                let status = if result.is_error { "failed" } else { "completed" };
                let mut words = Words::new();
                if result.is_error {
                    let content = &result.content;
                    words.push((STREAM_CHUNK, chunk(session, run, "error", content, *seq)));
                }
                words.push((TOOL_STATUS, status_of(session, run, &result.call, &name, status, *seq)));
                let mut told = status_of(session, run, &result.call, &name, status, *seq);
                answered(&mut told, result, published.is_clipped(), took);
                words.push((TOOL_RESULT, told));
                words
            }
            _ => Words::new(),
        }
    }

    /// A call is under way. Who is told of calls and of no ends does not hear what becomes of those that
    /// an end cut off: the oldest is forgotten.
    pub(super) fn begins(&mut self, call: (RunId, CallId), name: String, at: Option<Timestamp>) {
        if self.open.len() >= OPEN_MAX
            && let Some(oldest) =
                self.open.iter().min_by_key(|(_, (_, at))| *at).map(|(call, _)| call.clone())
        {
            self.open.remove(&oldest);
        }
        self.open.insert(call, (name, at));
    }

    /// Whether a call of this run waits for approval.
    fn waits(&self, run: &RunId) -> bool {
        self.waiting.iter().any(|(of, _)| of == run)
    }

    /// Nothing more comes of this run.
    pub(super) fn forget(&mut self, run: &RunId) {
        self.open.retain(|(of, _), _| of != run);
        self.settled.retain(|(of, _)| of != run);
        self.waiting.retain(|(of, _)| of != run);
    }
}

fn answered(told: &mut Value, result: &ToolResult, is_clipped: bool, took: Option<u64>) {
    let member = if result.is_error { "error" } else { "result" };
    told[member] = result.content.as_str().into();
    put(told, "truncated", is_clipped.then_some(true));
    put(told, "durationMs", took);
}
