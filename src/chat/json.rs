//! One turn as JSON Lines on stdout, for programs (`--json`).
//!
//! | `event` | fields |
//! |---|---|
//! | `accepted` | `session`, `run`: the prompt is durable |
//! | `thought`, `text` | `text`: a piece of it |
//! | `restart` | the `text` since the last `tool_result` is void and comes anew |
//! | `notice` | `kind` (`waiting`, `retrying`, `fallback`, `incomplete`, `reduced`, `compacted`), `message`: a place at the provider is waited for, a model is asked again, the next one is asked, the answer is cut, less was sent, the oldest turns are summed up |
//! | `tool_use` | `name`, `input`; `approval` where the call waits until that is approved |
//! | `approval` | `approval`, `name`, `decision` (`approved`, `denied`, `timed_out`, `withdrawn`), `by`? |
//! | `tool_result` | `content`, `is_error` |
//! | `done` | the last one: `outcome` (`completed`, `aborted`, `failed`), `error`?, `elapsed_ms`?, `input_tokens`?, `output_tokens`? |
//!
//! More events and fields may be added: skip those you don't know.

use serde_json::{Value, json};

use super::conversation::QUEUED;
use super::renderer::{Call, Decision, End, Outcome, Renderer};
use crate::terminal::{json_line, one_line, put, tell};

/// Renders one turn as JSON Lines.
#[derive(Debug, Default)]
pub(super) struct JsonLines {
    /// The exit status, once stdout can't be written to.
    gone: Option<u8>,
}

impl JsonLines {
    fn put(&mut self, event: &Value) {
        if self.gone.is_some() {
            return;
        }
        match put(&json_line(event)) {
            Ok(true) => {}
            Ok(false) => self.gone = Some(0),
            Err(failure) => {
                self.gone = Some(failure.status);
                tell(&failure.message);
            }
        }
    }
}

impl Renderer for JsonLines {
    fn banner(&mut self, _text: &str) {}

    fn accepted(&mut self, session: &str, run: &str) {
        self.put(&json!({ "event": "accepted", "session": session, "run": run }));
    }

    fn prompted(&mut self, _text: &str, _by: Option<&str>) {}

    fn answer(&mut self, piece: &str) {
        self.put(&json!({ "event": "text", "text": piece }));
    }

    fn thought(&mut self, piece: &str) {
        self.put(&json!({ "event": "thought", "text": piece }));
    }

    fn notice(&mut self, kind: &str, message: &str) {
        self.put(&json!({ "event": "notice", "kind": kind, "message": message }));
    }

    fn void_step(&mut self) {
        self.put(&json!({ "event": "restart" }));
    }

    fn tool_call(&mut self, call: &Call) {
        let mut event = json!({ "event": "tool_use", "name": call.name, "input": call.input });
        if let Some(id) = &call.approval {
            event["approval"] = json!(id);
        }
        self.put(&event);
    }

    fn tool_result(&mut self, content: &str, is_error: bool) {
        self.put(&json!({ "event": "tool_result", "content": content, "is_error": is_error }));
    }

    fn decided(&mut self, decision: &Decision) {
        let Decision { id, name, decision, by, .. } = decision;
        let mut event = json!({ "event": "approval", "approval": id, "name": name, "decision": decision });
        if let Some(by) = by {
            event["by"] = json!(by);
        }
        self.put(&event);
    }

    fn end_answer(&mut self, end: &End) {
        let (outcome, error) = match &end.outcome {
            Outcome::Completed => ("completed", None),
            Outcome::Aborted => ("aborted", None),
            Outcome::Failed(why) => ("failed", Some(why)),
        };
        let mut event = json!({ "event": "done", "outcome": outcome });
        if let Some(error) = error {
            event["error"] = json!(error);
        }
        if let Some(elapsed) = end.elapsed {
            event["elapsed_ms"] = json!(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some((read, written)) = end.tokens {
            (event["input_tokens"], event["output_tokens"]) = (json!(read), json!(written));
        }
        self.put(&event);
    }

    fn queued(&mut self) {
        tell(QUEUED);
    }

    fn note(&mut self, text: &str) {
        tell(&one_line(text, 400));
    }

    fn error(&mut self, text: &str) {
        tell(&format!("error: {}", one_line(text, 1000)));
    }

    fn gone(&self) -> Option<u8> {
        self.gone
    }

    fn close(self: Box<Self>) {}
}
