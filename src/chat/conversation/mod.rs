//! A session as an attached client sees it: what runs, what waits, what needs approval.
//!
//! ```text
//!   prompt ──► waiting ──► thinking, answering, calling a tool ──► done
//!                 ▲                        │
//!                 └── restart: the step ◄──┘
//! ```
//!
//! All events of the session arrive under one `session.attach`, numbered, whoever caused them. A client that
//! reconnects asks for those after the last number it saw. Events of this chat's own prompts arrive there too;
//! which run is its own is known once the prompt is accepted, so events are held back until then.
//!
//! Pure: no clock, no connection.

mod run;
mod show;

use std::time::{Duration, Instant};

use clawmux_core::dialect::exoclaw::client::{Place, StreamEvent};
use serde_json::Value;

use self::run::{Doing, Run};
use super::renderer::{Outcome, Renderer, span};

/// After this time without an event the past is complete: the last numbers may belong to events that exoclaw
/// does not send.
const QUIET: Duration = Duration::from_millis(300);

/// How many events are held back at most while a prompt waits to be accepted.
const HELD_MAX: usize = 1000;

/// Shown for a prompt while others are answered.
pub(super) const QUEUED: &str = "queued behind another prompt";

/// A change that the chat has to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A run of this chat is over.
    Ended(Outcome),
    /// The session is gone.
    Deleted,
}

/// A tool call that waits for approval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PendingApproval {
    /// The id of the approval.
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// Its input.
    pub(super) input: Value,
    run: Option<String>,
}

/// An event of the attached session.
#[derive(Debug)]
pub(super) struct SessionEvent {
    /// Its number and run, if it has any.
    pub(super) place: Option<Place>,
    /// What happened.
    pub(super) event: StreamEvent,
}

/// Where a conversation is shown, and the present time.
pub(super) struct Output<'a> {
    pub(super) renderer: &'a mut dyn Renderer,
    pub(super) now: Instant,
}

/// One session.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The last number seen.
    seq: u64,
    /// Events up to this number happened before this chat attached.
    past: u64,
    /// When the last event came.
    heard: Option<Instant>,
    /// Runs that are not over, in order: the first is under way.
    runs: Vec<Run>,
    /// The runs of this chat.
    own: Vec<String>,
    /// Calls that wait, in order.
    pending: Vec<PendingApproval>,
    /// Calls that were decided here and not yet confirmed by an event.
    deciding: Vec<PendingApproval>,
    /// Whether a prompt of this chat waits to be accepted.
    is_sending: bool,
    held: Vec<SessionEvent>,
    /// Whether to ignore the runs of others.
    is_private: bool,
    /// In a private conversation: runs of others that are ahead of this chat's first.
    ahead: Vec<Option<String>>,
}

impl Conversation {
    /// A conversation that shows only this chat's own runs.
    pub(super) fn private() -> Self {
        Self { is_private: true, ..Self::default() }
    }

    /// The session was attached for the first time: events up to number `head` are the past.
    pub(super) fn begins(&mut self, head: u64, now: Instant) {
        (self.past, self.seq, self.heard) = (head, 0, Some(now));
    }

    /// Whether the past is complete.
    pub(super) fn is_caught_up(&self, now: Instant) -> bool {
        self.seq >= self.past || self.heard.is_none_or(|at| now.saturating_duration_since(at) >= QUIET)
    }

    /// The connection was lost: events that are held back will be sent again. Returns the last number seen, to
    /// continue from; none if nothing was seen yet.
    pub(super) fn lost(&mut self) -> Option<u64> {
        self.held.clear();
        // Nor is it known what was decided.
        self.pending.splice(0..0, self.deciding.drain(..));
        let seen = if self.is_private { self.seq.max(self.past) } else { self.seq };
        (seen > 0 || self.past == 0).then_some(seen)
    }

    /// A prompt of this chat is on its way.
    pub(super) fn sends(&mut self) {
        self.is_sending = true;
    }

    /// The prompt is accepted as this run: shows what was held back.
    pub(super) fn accepted(&mut self, run: &str, output: &mut Output<'_>) -> Vec<Change> {
        self.own.push(run.to_owned());
        for known in self.runs.iter_mut().filter(|known| known.id.as_deref() == Some(run)) {
            known.is_own = true;
        }
        self.release(output)
    }

    /// No prompt is on its way any more: shows what was held back.
    pub(super) fn release(&mut self, output: &mut Output<'_>) -> Vec<Change> {
        self.is_sending = false;
        let held = std::mem::take(&mut self.held);
        held.into_iter().filter_map(|event| self.show(event, output)).collect()
    }

    /// Handles an event of the attached session.
    pub(super) fn take(&mut self, event: SessionEvent, output: &mut Output<'_>) -> Option<Change> {
        self.heard = Some(output.now);
        if self.is_sending && self.held.len() < HELD_MAX {
            self.held.push(event);
            return None;
        }
        self.show(event, output)
    }

    /// The first call that waits for approval. None until the past is complete.
    pub(super) fn question(&self, now: Instant) -> Option<&PendingApproval> {
        self.pending.first().filter(|_| self.is_caught_up(now))
    }

    /// It is decided here.
    pub(super) fn decides(&mut self, id: &str) {
        if let Some(at) = self.pending.iter().position(|asked| asked.id == id) {
            self.deciding.push(self.pending.remove(at));
        }
    }

    /// Whether this call still waits.
    pub(super) fn is_asked(&self, id: &str) -> bool {
        self.pending.iter().any(|asked| asked.id == id)
    }

    /// Whether anything is under way or waits.
    pub(super) fn is_busy(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Whether prompts of others are answered before this chat's. Known in a private conversation only.
    pub(super) fn is_queued(&self) -> bool {
        !self.ahead.is_empty() && !self.runs.is_empty()
    }

    /// Whether the session is empty.
    pub(super) fn is_new(&self) -> bool {
        self.past == 0 && self.seq == 0 && self.runs.is_empty()
    }

    /// The run that an abort ends: the first of this chat, else the one under way.
    pub(super) fn abortable(&self) -> Option<String> {
        let own = self.runs.iter().find(|run| run.is_own);
        own.or_else(|| self.runs.first())?.id.clone()
    }

    /// The current status in words; none if nothing is running.
    pub(super) fn status(&self, now: Instant) -> Option<String> {
        let run = self.runs.first()?;
        let doing = match &run.doing {
            Doing::Waiting => "waiting".to_owned(),
            Doing::Thinking => "thinking".to_owned(),
            Doing::Answering => "answering".to_owned(),
            Doing::Calling(calls) => {
                let names: Vec<&str> = calls.iter().map(|(_, name)| name.as_str()).collect();
                let waits = self.pending.iter().any(|asked| asked.run == run.id);
                format!("{} {}", if waits { "waiting for approval of" } else { "calling" }, names.join(", "))
            }
        };
        let elapsed = run.elapsed(now);
        if self.is_queued() {
            return Some(format!("{QUEUED}, {}", span(elapsed)));
        }
        let said = format!("{doing}, {}", span(elapsed));
        let behind = self.runs.iter().skip(1).filter(|run| run.is_own).count();
        Some(match behind {
            0 => said,
            _ if !run.is_own => format!("{QUEUED} ({said})"),
            1 => format!("{said}; 1 prompt is queued"),
            more => format!("{said}; {more} prompts are queued"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::renderer::{Call, Decision, End};
    use clawmux_core::dialect::exoclaw::client::ABORTED;
    use serde_json::json;

    /// Writes down what it is shown.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Renderer for Notes {
        fn banner(&mut self, _text: &str) {}
        fn prompted(&mut self, text: &str, by: Option<&str>) {
            self.0.push(format!("{}> {text}", by.unwrap_or_default()));
        }
        fn answer(&mut self, piece: &str) {
            self.0.push(piece.into());
        }
        fn thought(&mut self, piece: &str) {
            self.0.push(format!("({piece})"));
        }
        fn void_step(&mut self) {
            self.0.push("VOID".into());
        }
        fn tool_call(&mut self, call: &Call) {
            self.0.push(format!("call {} {}", call.name, call.input));
        }
        fn tool_result(&mut self, content: &str, _is_error: bool) {
            self.0.push(format!("result {content}"));
        }
        fn decided(&mut self, decision: &Decision) {
            self.0.push(decision.words());
        }
        fn end_answer(&mut self, end: &End) {
            self.0.push(format!("{:?} {}", end.outcome, end.summary().unwrap_or_default()));
        }
        fn note(&mut self, text: &str) {
            self.0.push(format!("note {text}"));
        }
        fn error(&mut self, _text: &str) {}
        fn close(self: Box<Self>) {}
    }

    /// A conversation and what is seen of it, second by second.
    struct Seen {
        conversation: Conversation,
        notes: Notes,
        now: Instant,
        seq: u64,
    }

    impl Seen {
        fn new(conversation: Conversation) -> Self {
            Self { conversation, notes: Notes::default(), now: Instant::now(), seq: 0 }
        }

        fn told(&mut self, run: &str, event: StreamEvent) -> Option<Change> {
            self.seq += 1;
            self.now += Duration::from_secs(1);
            let place = Some(Place { seq: self.seq, run: Some(run.into()), is_clipped: false });
            let output = &mut Output { renderer: &mut self.notes, now: self.now };
            self.conversation.take(SessionEvent { place, event }, output)
        }

        fn accepted(&mut self, run: &str) -> Vec<Change> {
            self.conversation.accepted(run, &mut Output { renderer: &mut self.notes, now: self.now })
        }

        fn prompt(&mut self, run: &str, text: &str) {
            let prompt =
                StreamEvent::Prompt { content: text.into(), by: Some("ada".into()), attachments: Vec::new() };
            self.told(run, prompt);
        }

        fn text(&mut self, run: &str, text: &str) {
            self.told(run, StreamEvent::Text(text.into()));
        }

        fn call(&mut self, run: &str, name: &str, approval: Option<&str>) {
            let approval = approval.map(str::to_owned);
            let input = json!({});
            self.told(run, StreamEvent::ToolUse { call: "c".into(), name: name.into(), input, approval });
        }

        fn question(&self) -> Option<PendingApproval> {
            self.conversation.question(self.now).cloned()
        }

        fn status(&self) -> String {
            self.conversation.status(self.now).unwrap_or_default()
        }

        fn take(&mut self) -> Vec<String> {
            std::mem::take(&mut self.notes.0)
        }
    }

    #[test]
    fn a_prompt_of_this_chat_is_not_shown_again_whatever_comes_first() {
        let mut seen = Seen::new(Conversation::default());
        seen.conversation.sends();
        seen.prompt("r", "mine");
        seen.text("r", "hi");
        assert!(seen.take().is_empty(), "until it is known whose it is");
        assert!(seen.accepted("r").is_empty());
        assert_eq!(seen.take(), ["hi"]);
        seen.prompt("other", "theirs");
        assert!(seen.take().is_empty(), "their turn has not come");
        seen.told("r", StreamEvent::Usage { input_tokens: 5, output_tokens: 2 });
        let ended = seen.told("r", StreamEvent::Done);
        assert_eq!(ended, Some(Change::Ended(Outcome::Completed)));
        assert_eq!(seen.take(), ["Completed 3.0 s, 5 tokens in, 2 out", "ada> theirs"]);
        assert_eq!(seen.told("other", StreamEvent::Done), None, "nobody here waits for it");
    }

    #[test]
    fn the_past_is_shown_and_has_no_duration() {
        let mut seen = Seen::new(Conversation::default());
        let now = seen.now;
        seen.conversation.begins(4, now);
        seen.prompt("r", "earlier");
        seen.text("r", "said");
        seen.call("r", "rm", Some("a"));
        assert_eq!(seen.question(), None, "it may have been decided long ago");
        seen.prompt("s", "waits");
        assert_eq!(seen.question().map(|asked| asked.id), Some("a".into()));
        let approval = |decision: &str| StreamEvent::Approval {
            id: "a".into(),
            name: "rm".into(),
            decision: decision.into(),
            by: Some("bob".into()),
        };
        seen.told("r", approval("denied"));
        assert_eq!(seen.question(), None);
        seen.told("r", StreamEvent::Done);
        let shown = seen.take();
        assert_eq!(shown[..4], ["ada> earlier", "said", "call rm {}", "rm denied by bob"]);
        assert_eq!(shown[4..], ["Completed ", "ada> waits"], "when it was begun is not known");
    }

    #[test]
    fn what_waits_is_asked_for_even_where_the_last_of_the_past_has_no_words() {
        let mut seen = Seen::new(Conversation::default());
        let now = seen.now;
        seen.conversation.begins(9, now);
        seen.prompt("r", "earlier");
        seen.call("r", "rm", Some("a"));
        assert_eq!(seen.question(), None);
        seen.now += QUIET;
        assert_eq!(seen.question().map(|asked| asked.id), Some("a".into()));
    }

    #[test]
    fn there_is_a_sign_of_life_while_nothing_is_said() {
        let mut seen = Seen::new(Conversation::default());
        assert_eq!(seen.status(), "");
        seen.prompt("r", "theirs");
        seen.conversation.own.push("mine".into());
        assert_eq!(seen.status(), "waiting, 0 s");
        seen.prompt("mine", "mine");
        assert_eq!(seen.status(), "queued behind another prompt (waiting, 1 s)");
        assert_eq!(seen.conversation.abortable().as_deref(), Some("mine"));
        seen.told("r", StreamEvent::Done);
        assert_eq!(seen.status(), "waiting, 0 s");
        seen.told("mine", StreamEvent::Thought("hm".into()));
        seen.told("mine", StreamEvent::Thought("hm".into()));
        assert_eq!(seen.status(), "thinking, 1 s");
        seen.call("mine", "echo", None);
        assert_eq!(seen.status(), "calling echo, 0 s");
        let result = StreamEvent::ToolResult { call: "c".into(), content: "x".into(), is_error: false };
        seen.told("mine", result);
        assert_eq!(seen.status(), "waiting, 0 s");
        seen.call("mine", "rm", Some("a"));
        assert_eq!(seen.status(), "waiting for approval of rm, 0 s");
        seen.told("mine", StreamEvent::Error(ABORTED.into()));
        assert_eq!(seen.told("mine", StreamEvent::Done), Some(Change::Ended(Outcome::Aborted)));
        assert_eq!(seen.question(), None, "nothing waits in what is over");
        assert_eq!(seen.status(), "");
    }

    #[test]
    fn what_was_seen_is_not_shown_again_and_a_restart_voids_the_step() {
        let mut seen = Seen::new(Conversation::default());
        seen.prompt("r", "x");
        seen.text("r", "half");
        seen.seq -= 1;
        seen.text("r", "half");
        assert_eq!(seen.take(), ["ada> x", "half", "half"], "several frames may have one number");
        seen.seq = 0;
        seen.text("r", "old");
        assert!(seen.take().is_empty());
        seen.seq = 1000;
        seen.told("r", StreamEvent::Restart);
        assert_eq!(
            seen.take(),
            ["note the answer was cut off and goes on: its last step begins anew", "VOID"]
        );
        assert_eq!(seen.conversation.lost(), Some(1001));
    }

    #[test]
    fn what_becomes_of_an_answer_is_told_while_one_waits_for_it() {
        let mut seen = Seen::new(Conversation::default());
        seen.prompt("r", "x");
        seen.take();
        let (kind, message) =
            ("retrying".to_owned(), "p/m is overloaded: it is asked again in 2 s".to_owned());
        seen.told("r", StreamEvent::Notice { kind, message });
        seen.text("r", "here");
        assert_eq!(seen.take(), ["note p/m is overloaded: it is asked again in 2 s", "here"]);
    }

    #[test]
    fn in_private_only_ones_own_counts() {
        let mut seen = Seen::new(Conversation::private());
        let now = seen.now;
        seen.conversation.begins(0, now);
        seen.prompt("r", "theirs");
        seen.conversation.sends();
        seen.prompt("mine", "mine");
        seen.text("r", "theirs");
        assert!(!seen.conversation.is_queued());
        seen.accepted("mine");
        assert!(seen.conversation.is_queued());
        assert_eq!(seen.status(), "queued behind another prompt, 0 s");
        seen.prompt("later", "waits for it");
        assert_eq!(seen.told("r", StreamEvent::Done), None);
        assert_eq!(seen.status(), "waiting, 0 s");
        seen.text("mine", "hi");
        assert_eq!(seen.take(), ["hi"]);
        assert_eq!(seen.told("mine", StreamEvent::Done), Some(Change::Ended(Outcome::Completed)));
    }

    #[test]
    fn a_decision_of_ones_own_takes_the_question_away_at_once() {
        let mut seen = Seen::new(Conversation::default());
        seen.prompt("r", "x");
        seen.call("r", "rm", Some("a"));
        seen.conversation.decides("a");
        assert_eq!(seen.question(), None);
        seen.conversation.lost();
        assert!(seen.conversation.is_asked("a"), "nobody knows whether the decision arrived");
        seen.conversation.decides("a");
        seen.take();
        let approved = "approved".to_owned();
        seen.told(
            "r",
            StreamEvent::Approval {
                id: "a".into(),
                name: "rm".into(),
                decision: approved,
                by: Some("me".into()),
            },
        );
        assert_eq!(seen.take(), ["rm approved"]);
    }
}
