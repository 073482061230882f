//! What a session has said over the channel that a prompt came over.
//!
//! Where an answer goes is a part of the prompt ([`RunOptions::answer_to`](crate::prompt::run_options::RunOptions)),
//! so of the session's log. With the run's end, and with each call of it that waits for an approval, the session gives
//! out an [`ChannelAnswer`], which the store puts into the outbox in the same transaction. So there is one of each, whatever
//! crashes and whoever restarts.

use serde::{Deserialize, Serialize};

use crate::conversation::approval::ApprovalRequest;
use crate::conversation::event::{Incomplete, Outcome};
use crate::conversation::turn::Turn;
use crate::error::{Error, ErrorCode};
use crate::ids::{ApprovalId, RunId};
use crate::prompt::answer_to::AnswerTo;
use crate::provider::usage::Usage;

/// Something that is to be said over a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToSay {
    /// Where.
    pub to: AnswerTo,
    /// What.
    pub answer: ChannelAnswer,
}

/// What became of a prompt, for whoever wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelAnswer {
    /// What it is known by: no other answer on the channel has the same.
    pub id: String,
    /// The run; the id of what was said without having been asked.
    pub run: String,
    /// The session, as its owner says it; empty where no session is known.
    #[serde(default)]
    pub session: String,
    /// What became of the prompt.
    pub status: AnswerStatus,
    /// What the agent said. Of an answer that was cut off, so much of it.
    #[serde(default)]
    pub text: String,
    /// Why there is no answer, or no whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AnswerError>,
    /// The call that waits for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<AnswerApproval>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<AnswerUsage>,
    /// Why the model stopped; none where there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

/// What became of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerStatus {
    /// It was answered.
    #[default]
    Completed,
    /// It could not be answered.
    Failed,
    /// Its answer was called off.
    Aborted,
    /// It was not taken: nothing is in the session.
    Refused,
    /// Its answer waits for an approval, and comes later.
    Waiting,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerError {
    /// Its code, as [`ErrorCode::name`](crate::error::ErrorCode).
    pub code: String,
    /// Why, in words.
    pub message: String,
}

impl From<&Error> for AnswerError {
    fn from(error: &Error) -> Self {
        Self { code: error.code.name().to_owned(), message: error.message.clone() }
    }
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerApproval {
    /// The id by which it is decided about.
    pub id: String,
    /// The tool.
    pub tool: String,
}

/// What an answer cost, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerUsage {
    /// Read by the model.
    pub input_tokens: u64,
    /// Written by it.
    pub output_tokens: u64,
}

impl From<Usage> for AnswerUsage {
    fn from(usage: Usage) -> Self {
        Self { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens }
    }
}

impl ChannelAnswer {
    /// That of a run that is over; `turn` is what was said in it, none where its turn never came.
    pub fn of_run(run: &RunId, session: &str, turn: Option<&Turn>, outcome: &Outcome, usage: Usage) -> Self {
        let text = turn.map(|turn| turn.text().0).unwrap_or_default();
        let (status, error, stop_reason) = match outcome {
            Outcome::Completed => (AnswerStatus::Completed, None, Some("end")),
            Outcome::Incomplete(why) => (AnswerStatus::Completed, None, Some(Incomplete::name(*why))),
            Outcome::Aborted(_) => (AnswerStatus::Aborted, None, None),
            Outcome::Failed(error) => {
                // Nothing was asked of a model: a budget has no room for it.
                let is_refused = error.code == ErrorCode::BudgetExceeded && text.is_empty();
                let status = if is_refused { AnswerStatus::Refused } else { AnswerStatus::Failed };
                (status, Some(error.into()), None)
            }
        };
        Self {
            id: run.to_string(),
            run: run.to_string(),
            session: session.to_owned(),
            status,
            text,
            error,
            approval: None,
            usage: Some(usage.into()),
            stop_reason: stop_reason.map(str::to_owned),
        }
    }

    /// That of a run with a call that waits.
    pub fn of_approval(run: &RunId, session: &str, asked: &ApprovalRequest) -> Self {
        let id = ApprovalId::of(run, &asked.call.id);
        Self {
            id: format!("{run}-approval-{}", id.as_str()),
            run: run.to_string(),
            session: session.to_owned(),
            status: AnswerStatus::Waiting,
            approval: Some(AnswerApproval { id: id.as_str().to_owned(), tool: asked.call.name.to_string() }),
            ..Self::default()
        }
    }

    /// That of a prompt that was not taken, which is known by this id.
    pub fn refused(inbound: &str, error: &Error) -> Self {
        let id = format!("refused-{inbound}");
        Self {
            run: id.clone(),
            id,
            status: AnswerStatus::Refused,
            error: Some(error.into()),
            ..Self::default()
        }
    }

    /// What is said without having been asked.
    pub fn said(id: &str, text: String) -> Self {
        Self { id: id.to_owned(), run: id.to_owned(), text, ..Self::default() }
    }

    /// As the store keeps it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What the store kept.
    ///
    /// # Errors
    /// Where that is not what [`Self::to_json`] gave.
    pub fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::event::Cause;

    #[test]
    fn an_answer_says_what_became_of_its_prompt() {
        let (run, turn) = (RunId::from("r-1"), Turn::of_text("so far"));
        let of = |outcome: Outcome| {
            let answer = ChannelAnswer::of_run(&run, "main:x:y:z", Some(&turn), &outcome, Usage::new(3, 4));
            assert_eq!(ChannelAnswer::from_json(&answer.to_json()).unwrap(), answer);
            serde_json::to_value(&answer).unwrap()
        };
        let whole = of(Outcome::Completed);
        assert_eq!((&whole["status"], &whole["text"]), (&"completed".into(), &"so far".into()));
        assert_eq!((&whole["stop_reason"], &whole["usage"]["output_tokens"]), (&"end".into(), &4.into()));
        assert_eq!(of(Outcome::Incomplete(Incomplete::Length))["stop_reason"], "length");
        let failed = of(Outcome::Failed(ErrorCode::Provider.error("away")));
        assert_eq!((&failed["status"], &failed["error"]["message"]), (&"failed".into(), &"away".into()));
        let spent = Outcome::Failed(ErrorCode::BudgetExceeded.error("spent"));
        let spent = ChannelAnswer::of_run(&run, "main:x:y:z", None, &spent, Usage::default());
        assert_eq!(spent.status, AnswerStatus::Refused);
        assert_eq!(of(Outcome::Aborted(Cause::Asked))["status"], "aborted");
        let refused = ChannelAnswer::refused("m-1", &ErrorCode::NotFound.error("no agent"));
        assert_eq!((refused.id.as_str(), refused.status), ("refused-m-1", AnswerStatus::Refused));
    }
}
