//! The agent turn: one run's loop between the model and its tools, as a state machine.
//!
//! ```text
//!            +--------------------- every call has its result ---------------------+
//!            v                                                                     |
//!   start -> Asking --- the answer ends, with tool calls (StepEnded) ---------> Acting
//!            |  | ^                                                                |
//!            |  | +-- the daemon came back within the answer (Restarted)           |
//!            |  +---- the answer ends, without calls ----+                         |
//!            |        the provider fails                 v                         |
//!            +------- somebody aborts ----------------> Ended <--- aborted --------+
//! ```
//!
//! What happened is an [`Event`]; the state is the fold of the events ([`Turn::apply`]); what is to
//! be done next follows from the state alone ([`Turn::work`]). So a turn read back from the log
//! goes on exactly where it was, and a finished step is never run again. Tool calls are journaled
//! together with the end of the answer that asks for them, before any of them is made.

use serde_json::Value;

use crate::error::ErrorCode;
use crate::event::{Event, Outcome, ToolCall, ToolResult, Usage};
use crate::ids::{CallId, PluginName};
use crate::provider::{ChatMessage, Delta};
use crate::reply::STEP_JOINT;

/// The most answers a model may give within one run.
pub const STEPS_MAX: usize = 32;

/// The most tools a model may call in one answer.
pub const CALLS_MAX: usize = 32;

/// One answer of the model with what came of its calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The text.
    pub text: String,
    /// The calls.
    pub calls: Vec<ToolCall>,
    /// Their results, in the order they came.
    pub results: Vec<ToolResult>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Ask the model; this is its answer number `step`, counted from 0.
    Ask {
        /// Which answer.
        step: usize,
    },
    /// Make these calls, which have no result yet.
    Act {
        /// The answer that asked for them.
        step: usize,
        /// The calls.
        calls: Vec<ToolCall>,
    },
}

/// One run's loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    steps: Vec<Step>,
    usage: Usage,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// The model is being asked; what it said so far.
    Asking {
        /// Its text, in the log already.
        text: String,
        /// Its calls: not in the log before the answer ends.
        heard: Vec<ToolCall>,
    },
    /// The calls of the last step are being made.
    Acting,
    /// Nothing follows.
    Ended,
}

impl State {
    fn asking() -> Self {
        Self::Asking { text: String::new(), heard: Vec::new() }
    }
}

impl Turn {
    /// A turn that begins by asking the model.
    pub fn new() -> Self {
        Self { steps: Vec::new(), usage: Usage::default(), state: State::asking() }
    }

    /// A turn that is over and of which nothing is but this text.
    pub fn of_text(text: &str) -> Self {
        let steps = vec![Step { text: text.to_owned(), ..Step::default() }];
        Self { steps, usage: Usage::default(), state: State::Ended }
    }

    /// What is to be done; nothing once it ended.
    pub fn work(&self) -> Option<Work> {
        match &self.state {
            State::Asking { .. } => Some(Work::Ask { step: self.steps.len() }),
            State::Acting => {
                let step = self.steps.last()?;
                let open = |call: &&ToolCall| !step.results.iter().any(|result| result.call == call.id);
                Some(Work::Act {
                    step: self.steps.len() - 1,
                    calls: step.calls.iter().filter(open).cloned().collect(),
                })
            }
            State::Ended => None,
        }
    }

    /// Tokens of all finished steps.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What was said so far, the texts of steps joined by [`STEP_JOINT`], and where in it the step
    /// under way begins.
    pub fn text(&self) -> (String, usize) {
        let mut all = String::new();
        let mut add = |text: &str| {
            if !text.is_empty() {
                if !all.is_empty() {
                    all.push_str(STEP_JOINT);
                }
                all.push_str(text);
            }
            all.len()
        };
        let step_at = self.steps.iter().map(|step| add(&step.text)).last().unwrap_or_default();
        if let State::Asking { text, .. } = &self.state {
            add(text);
        }
        (all, step_at)
    }

    /// Takes in one event of this run.
    pub fn apply(&mut self, event: &Event) {
        match (event, &mut self.state) {
            (Event::Text(piece), State::Asking { text, .. }) => text.push_str(piece),
            (Event::Restarted, State::Asking { text, heard }) => {
                text.clear();
                heard.clear();
            }
            (Event::ToolCalled(call), State::Asking { heard, .. })
                if !heard.iter().any(|known| known.id == call.id) =>
            {
                heard.push(call.clone());
            }
            (Event::StepEnded { usage }, State::Asking { text, heard }) => {
                let step =
                    Step { text: std::mem::take(text), calls: std::mem::take(heard), results: Vec::new() };
                self.state = if step.calls.is_empty() { State::Ended } else { State::Acting };
                self.steps.push(step);
                self.usage += *usage;
            }
            (Event::ToolReturned(result), State::Acting) => {
                if let Some(step) = self.steps.last_mut() {
                    step.results.push(result.clone());
                    if step.results.len() == step.calls.len() {
                        self.state = State::asking();
                    }
                }
            }
            (Event::Ended { .. }, state) => {
                if let State::Asking { text, .. } = state
                    && !text.is_empty()
                {
                    // Cut off within an answer: what was said is kept.
                    self.steps.push(Step { text: std::mem::take(text), ..Step::default() });
                }
                self.state = State::Ended;
            }
            // Prompted and Started precede the turn; anything else is not a move of this state.
            _ => {}
        }
    }

    /// What follows from what the model said in one go. The events are yet to be applied.
    pub fn said(&mut self, deltas: Vec<Delta>, offered: &[PluginName]) -> Vec<Event> {
        let step = self.steps.len();
        let State::Asking { text, heard } = &mut self.state else {
            return Vec::new();
        };
        // Unique in the whole run: a result that comes late must not be taken for that of a later
        // step's call, and clients pair results with calls by their ids.
        let is_taken = |heard: &[ToolCall], id: &CallId| {
            let mut known = self.steps.iter().flat_map(|step| &step.calls).chain(heard);
            known.any(|known| known.id == *id)
        };
        let mut events = Vec::new();
        let mut piece = String::new();
        for delta in deltas {
            match delta {
                Delta::Text(more) if piece.is_empty() => piece = more,
                Delta::Text(more) => piece.push_str(&more),
                Delta::ToolCall(mut call) => {
                    let mut number = heard.len();
                    while call.id.as_str().is_empty() || is_taken(heard, &call.id) {
                        call.id = CallId::new(format!("call_{step}_{number}"));
                        number += 1;
                    }
                    heard.push(call);
                }
                Delta::Finished { usage, .. } => {
                    let text_bytes = text.len() + piece.len();
                    if !piece.is_empty() {
                        events.push(Event::Text(std::mem::take(&mut piece)));
                    }
                    let usage = usage
                        .unwrap_or(Usage { input_tokens: 0, output_tokens: text_bytes.div_ceil(4) as u64 });
                    let calls = std::mem::take(heard);
                    finish(&mut events, calls, usage, step, self.usage, offered);
                    return events;
                }
            }
        }
        if !piece.is_empty() {
            events.push(Event::Text(piece));
        }
        events
    }

    /// What follows from a tool's result: nothing where no such call is open.
    pub fn returned(&self, result: ToolResult) -> Option<Event> {
        let Some(Work::Act { calls, .. }) = self.work() else { return None };
        calls.iter().any(|call| call.id == result.call).then_some(Event::ToolReturned(result))
    }

    /// The run's end, where it has not ended yet. `partial` is what the answer under way has cost.
    pub fn end(&self, outcome: Outcome, partial: Usage) -> Option<Event> {
        let mut usage = self.usage;
        usage += partial;
        (self.state != State::Ended).then_some(Event::Ended { outcome, usage })
    }

    /// What a daemon that finds this turn in the log has to record before it goes on: the text of
    /// an unfinished answer is void, and calls that may have been made are not made again unless
    /// `idempotent` says that they may be.
    pub fn recover(&self, idempotent: impl Fn(&PluginName) -> bool) -> Vec<Event> {
        match self.work() {
            Some(Work::Ask { .. }) => vec![Event::Restarted],
            Some(Work::Act { calls, .. }) => calls
                .into_iter()
                .filter(|call| !idempotent(&call.name))
                .map(|call| {
                    refuse(
                        call.id,
                        "interrupted: the daemon stopped during this call; whether it took effect is unknown",
                    )
                })
                .collect(),
            None => Vec::new(),
        }
    }

    /// The run as a model sees it, without its prompt.
    pub fn messages(&self) -> impl Iterator<Item = ChatMessage> + '_ {
        self.steps.iter().flat_map(|step| {
            let said = ChatMessage::Assistant { text: step.text.clone(), calls: step.calls.clone() };
            let results = step.calls.iter().filter_map(|call| {
                step.results.iter().find(|result| result.call == call.id).cloned().or_else(|| {
                    // Only where the run was ended during its calls.
                    (self.state == State::Ended).then(|| ToolResult {
                        call: call.id.clone(),
                        content: "aborted".into(),
                        is_error: true,
                    })
                })
            });
            let results: Vec<_> = results.collect();
            std::iter::once(said)
                .filter(|_| !step.text.is_empty() || !step.calls.is_empty())
                .chain((!results.is_empty()).then_some(ChatMessage::ToolResults(results)))
        })
    }

    /// Whether the model said anything that the next turn should know of.
    pub fn has_answer(&self) -> bool {
        self.steps.iter().any(|step| !step.text.is_empty() || !step.calls.is_empty())
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}

/// The end of an answer: its calls, journaled together with it; refusals of those that can't be
/// made; and the run's end where there are none.
fn finish(
    events: &mut Vec<Event>,
    calls: Vec<ToolCall>,
    usage: Usage,
    step: usize,
    before: Usage,
    offered: &[PluginName],
) {
    let mut total = before;
    total += usage;
    if calls.is_empty() {
        events.push(Event::StepEnded { usage });
        events.push(Event::Ended { outcome: Outcome::Completed, usage: total });
        return;
    }
    let refusals: Vec<Event> = calls
        .iter()
        .enumerate()
        .filter_map(|(index, call)| {
            let why = if index >= CALLS_MAX {
                format!("not called: more than {CALLS_MAX} tool calls in one answer")
            } else if !offered.contains(&call.name) {
                format!("unknown tool: {}", call.name)
            } else if let Value::String(_) = call.input {
                "not called: the input is not a JSON object".to_owned()
            } else {
                return None;
            };
            Some(refuse(call.id.clone(), why))
        })
        .collect();
    events.extend(calls.into_iter().map(Event::ToolCalled));
    events.push(Event::StepEnded { usage });
    events.extend(refusals);
    if step + 1 >= STEPS_MAX {
        let error = ErrorCode::Provider
            .error(format!("the model called tools {STEPS_MAX} times in one run without an answer"));
        events.push(Event::Ended { outcome: Outcome::Failed(error), usage: total });
    }
}

fn refuse(call: CallId, why: impl Into<String>) -> Event {
    Event::ToolReturned(ToolResult { call, content: why.into(), is_error: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Stop;
    use proptest::prelude::*;
    use serde_json::json;

    const OFFERED: &str = "echo";

    fn offered() -> Vec<PluginName> {
        vec![OFFERED.into()]
    }

    fn call(id: &str, name: &str) -> Delta {
        Delta::ToolCall(ToolCall { id: id.into(), name: name.into(), input: json!({"text": "hi"}) })
    }

    fn finished(output_tokens: u64) -> Delta {
        Delta::Finished { stop: Stop::End, usage: Some(Usage { input_tokens: 10, output_tokens }) }
    }

    fn feed(turn: &mut Turn, deltas: Vec<Delta>) -> Vec<Event> {
        let events = turn.said(deltas, &offered());
        for event in &events {
            turn.apply(event);
        }
        events
    }

    #[test]
    fn text_of_one_read_is_one_event_and_the_answer_ends_the_run() {
        let mut turn = Turn::new();
        let events = feed(&mut turn, vec![Delta::Text("Hel".into()), Delta::Text("lo".into()), finished(2)]);
        let usage = Usage { input_tokens: 10, output_tokens: 2 };
        assert_eq!(
            events,
            [
                Event::Text("Hello".into()),
                Event::StepEnded { usage },
                Event::Ended { outcome: Outcome::Completed, usage }
            ]
        );
        assert_eq!(turn.work(), None);
    }

    #[test]
    fn every_call_has_an_id_of_its_own_whatever_the_provider_says() {
        let mut turn = Turn::new();
        let ids = ["call_0_1", "call_0_1", "", "call_0_3", "call_0_2"];
        let calls = ids.into_iter().map(|id| call(id, OFFERED)).chain([finished(1)]).collect();
        feed(&mut turn, calls);
        let Some(Work::Act { calls, .. }) = turn.work() else { panic!("{:?}", turn.work()) };
        let ids: std::collections::HashSet<_> = calls.iter().map(|call| call.id.clone()).collect();
        assert_eq!((calls.len(), ids.len()), (5, 5), "{calls:?}");
    }

    #[test]
    fn a_second_result_is_not_taken_for_that_of_a_later_step() {
        let mut turn = Turn::new();
        let result = ToolResult { call: "a".into(), content: "hi".into(), is_error: false };
        feed(&mut turn, vec![call("a", OFFERED), finished(1)]);
        turn.apply(&turn.returned(result.clone()).expect("open"));
        feed(&mut turn, vec![call("a", OFFERED), finished(1)]);
        assert_eq!(turn.returned(result), None, "it is that of the first step's call");
        let Some(Work::Act { step: 1, calls }) = turn.work() else { panic!("{:?}", turn.work()) };
        assert_eq!(calls[0].id.as_str(), "call_1_0");
    }

    #[test]
    fn calls_are_journaled_with_the_end_of_their_answer_and_then_made() {
        let mut turn = Turn::new();
        assert_eq!(feed(&mut turn, vec![Delta::Text("Let me see".into()), call("a", OFFERED)]).len(), 1);
        assert_eq!(turn.work(), Some(Work::Ask { step: 0 }), "not before the answer ended");
        let events = feed(&mut turn, vec![call("a", OFFERED), call("c", "rm"), finished(3)]);
        assert!(matches!(&events[..3], [Event::ToolCalled(a), Event::ToolCalled(b), Event::ToolCalled(c)]
            if a.id.as_str() == "a" && b.id.as_str() == "call_0_1" && c.id.as_str() == "c"));
        assert!(
            matches!(&events[4], Event::ToolReturned(r) if r.is_error && r.content == "unknown tool: rm")
        );
        let Some(Work::Act { step: 0, calls }) = turn.work() else { panic!("{:?}", turn.work()) };
        assert_eq!(calls.len(), 2, "the refused one is answered already");
        for id in ["call_0_1", "a"] {
            let result = ToolResult { call: id.into(), content: "hi".into(), is_error: false };
            let event = turn.returned(result.clone()).expect("open");
            turn.apply(&event);
            assert_eq!(turn.returned(result), None, "one result per call");
        }
        assert_eq!(turn.work(), Some(Work::Ask { step: 1 }));
        let seen: Vec<_> = turn.messages().collect();
        assert!(matches!(&seen[1], ChatMessage::ToolResults(r) if r.len() == 3 && r[0].call.as_str() == "a"));
    }

    #[test]
    fn a_model_that_never_stops_calling_is_stopped() {
        let mut turn = Turn::new();
        for step in 0..STEPS_MAX {
            let events = feed(&mut turn, vec![call("x", "unknown"), finished(1)]);
            let ended = events.iter().any(|e| matches!(e, Event::Ended { outcome: Outcome::Failed(_), .. }));
            assert_eq!(ended, step + 1 == STEPS_MAX, "step {step}");
        }
        assert_eq!(turn.work(), None);
    }

    #[test]
    fn an_unfinished_answer_starts_anew_and_an_open_call_is_not_repeated() {
        let mut turn = Turn::new();
        feed(&mut turn, vec![Delta::Text("half".into())]);
        let [restarted] = &turn.recover(|_| false)[..] else { panic!() };
        turn.apply(restarted);
        feed(&mut turn, vec![Delta::Text("whole".into()), call("a", OFFERED), finished(1)]);
        assert!(
            matches!(turn.messages().next(), Some(ChatMessage::Assistant { text, .. }) if text == "whole")
        );
        assert_eq!(turn.recover(|_| true), [], "an idempotent tool is called again");
        for event in turn.recover(|_| false) {
            assert!(matches!(&event, Event::ToolReturned(r) if r.content.starts_with("interrupted")));
            turn.apply(&event);
        }
        assert_eq!(turn.work(), Some(Work::Ask { step: 1 }));
    }

    proptest! {
        /// Whatever a model says in whatever pieces, the state is the fold of the events.
        #[test]
        fn the_state_is_the_fold_of_the_events(script in proptest::collection::vec(0u8..6, 0..60)) {
            let mut live = Turn::new();
            let mut log = Vec::new();
            for move_ in script {
                let events = match move_ {
                    0 => live.said(vec![Delta::Text("t".into())], &offered()),
                    1 => live.said(vec![call("a", OFFERED), call("", "other")], &offered()),
                    2 => live.said(vec![finished(1)], &offered()),
                    3 => live.returned(ToolResult { call: "a".into(), content: String::new(), is_error: false })
                        .into_iter().collect(),
                    4 => live.recover(|_| false),
                    _ => live.end(Outcome::Aborted, Usage::default()).into_iter().collect(),
                };
                for event in &events {
                    live.apply(event);
                }
                log.extend(events);
            }
            let mut folded = Turn::new();
            for event in &log {
                folded.apply(event);
            }
            prop_assert_eq!(folded.work(), live.work());
            prop_assert_eq!(folded.usage(), live.usage());
            let ends = log.iter().filter(|e| matches!(e, Event::Ended { .. })).count();
            prop_assert!(ends <= 1, "one terminal event");
            prop_assert_eq!(ends == 1, live.work().is_none());
        }
    }
}
