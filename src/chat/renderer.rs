//! How a chat is shown: on a terminal with an editor, as plain lines, or as JSON.

use std::time::Duration;

use serde_json::Value;

/// The name by which a daemon calls users of its Unix socket.
const OPERATOR: &str = "socket";

/// Shows a conversation. Texts of models, tools and other people come as they are: the renderer has to
/// escape them.
pub(super) trait Renderer {
    /// The agent, the model and the session.
    fn banner(&mut self, text: &str);
    /// The daemon has the prompt of this chat: it is durable.
    fn accepted(&mut self, _session: &str, _run: &str) {}
    /// A prompt of an earlier turn, or of somebody else.
    fn prompted(&mut self, text: &str, by: Option<&str>);
    /// A piece of the answer.
    fn answer(&mut self, piece: &str);
    /// A piece of what the model thinks.
    fn thought(&mut self, piece: &str);
    /// The text of this step is void: it was cut off and is run again.
    fn void_step(&mut self);
    /// A tool is called.
    fn tool_call(&mut self, call: &Call);
    /// It answered.
    fn tool_result(&mut self, content: &str, is_error: bool);
    /// A call that waited was decided.
    fn decided(&mut self, decision: &Decision);
    /// The answer is complete, as far as it got.
    fn end_answer(&mut self, end: &End);
    /// The first prompt that waits here is answered next.
    fn own_turn(&mut self) {}
    /// The prompt of this chat has to wait for those of others.
    fn queued(&mut self) {}
    /// Nothing is under way: a prompt may be typed.
    fn ready(&mut self) {}
    /// Something was typed, and Enter.
    fn entered(&mut self) {}
    /// Something about the conversation; may have several lines.
    fn note(&mut self, text: &str);
    /// What becomes of the answer besides its text: a model is asked again, the answer is cut.
    fn notice(&mut self, _kind: &str, message: &str) {
        self.note(message);
    }
    /// Something went wrong.
    fn error(&mut self, text: &str);
    /// Whether thoughts are shown at all.
    fn wants_thoughts(&self) -> bool {
        true
    }
    /// What is under way, for as long as nothing else shows it.
    fn status(&mut self, _text: Option<String>) {}
    /// Shows or hides a question that is answered with a single key.
    fn ask(&mut self, _question: Option<&str>) {}
    /// Puts text where it can be edited.
    fn edit(&mut self, _text: &str) {}
    /// The exit status once there is no point in continuing: 0 if nobody reads the answer, 1 if it can't be
    /// written.
    fn gone(&self) -> Option<u8> {
        None
    }
    /// Restores the terminal.
    fn close(self: Box<Self>);
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// The tool.
    pub(super) name: String,
    /// Its input.
    pub(super) input: Value,
    /// The id of the approval that it waits for.
    pub(super) approval: Option<String>,
}

/// What was decided about a call that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// The approval.
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// `approved`, `denied`, `timed_out` or `withdrawn`.
    pub(super) decision: String,
    /// Who decided, where that is known and somebody did.
    pub(super) by: Option<String>,
    /// Whether it was decided in this chat.
    pub(super) is_own: bool,
}

impl Decision {
    /// In words: `echo approved by ada`.
    pub(super) fn words(&self) -> String {
        let what = match self.decision.as_str() {
            "timed_out" => "denied: nobody decided in time",
            "withdrawn" => "no longer needs a decision",
            decision => decision,
        };
        match self.by.as_deref() {
            // The operator, who is at another terminal of the same daemon.
            Some(OPERATOR) if !self.is_own => format!("{} {what} in another terminal", self.name),
            Some(by) if !self.is_own => format!("{} {what} by {by}", self.name),
            _ => format!("{} {what}", self.name),
        }
    }
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// How.
    pub(super) outcome: Outcome,
    /// How long it took, where that was seen.
    pub(super) elapsed: Option<Duration>,
    /// Tokens read and written.
    pub(super) tokens: Option<(u64, u64)>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It said all it had to say.
    Completed,
    /// Somebody ended it.
    Aborted,
    /// It failed: why.
    Failed(String),
}

impl End {
    /// `3.2 s, 120 tokens in, 45 out`; none where nothing is known.
    pub(super) fn summary(&self) -> Option<String> {
        let elapsed = self.elapsed.map(|elapsed| {
            let seconds = elapsed.as_secs();
            if seconds < 60 { format!("{:.1} s", elapsed.as_secs_f64()) } else { span(elapsed) }
        });
        let tokens = self.tokens.map(|(read, written)| format!("{read} tokens in, {written} out"));
        match (elapsed, tokens) {
            (Some(elapsed), Some(tokens)) => Some(format!("{elapsed}, {tokens}")),
            (elapsed, tokens) => elapsed.or(tokens),
        }
    }
}

/// A time in whole seconds: `12 s`, `2 min 5 s`.
pub(super) fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_how_long_it_took_and_what_it_cost() {
        let end = |elapsed: Option<u64>, tokens| End {
            outcome: Outcome::Completed,
            elapsed: elapsed.map(Duration::from_millis),
            tokens,
        };
        for (end, says) in [
            (end(Some(1_234), Some((12, 3))), Some("1.2 s, 12 tokens in, 3 out")),
            (end(Some(125_900), None), Some("2 min 5 s")),
            (end(None, Some((1, 0))), Some("1 tokens in, 0 out")),
            (end(None, None), None),
        ] {
            assert_eq!(end.summary().as_deref(), says);
        }
    }

    #[test]
    fn decisions_say_who_made_them() {
        let decided = |decision: &str, by: Option<&str>, is_own| Decision {
            id: "a".into(),
            name: "rm".into(),
            decision: decision.into(),
            by: by.map(str::to_owned),
            is_own,
        };
        for (decision, words) in [
            (decided("approved", Some("ada"), false), "rm approved by ada"),
            (decided("denied", Some("ada"), true), "rm denied"),
            (decided("timed_out", None, false), "rm denied: nobody decided in time"),
            (decided("withdrawn", None, false), "rm no longer needs a decision"),
            (decided("approved", Some("socket"), false), "rm approved in another terminal"),
        ] {
            assert_eq!(decision.words(), words);
        }
    }
}
