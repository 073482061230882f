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
//! be done next follows from the state alone ([`Turn::work`]). So a turn read back from the event log
//! goes on exactly where it was, and a finished step is never run again. Tool calls are journaled
//! together with the end of the answer that asks for them, before any of them is made, and with them
//! what the provider wants back with the model's thoughts. A call that needs approval waits, however
//! often the daemon restarts, until that is in the event log ([`crate::conversation::approval`]); the others
//! go on. Thoughts are kept while their run goes on and no longer: a later turn is not shown them.

#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::conversation::approval::{ApprovalRequest, Decided, Decision, Toolbox};
use crate::conversation::event::{Event, Incomplete, Outcome, Streamed};
use crate::conversation::transcript::STEP_JOINT;
use crate::error::ErrorCode;
use crate::ids::{CallId, PluginName};
use crate::provider::thought::{Thought, ThoughtSignature};
use crate::provider::usage::Usage;
use crate::provider::{ChatMessage, Delta, Stop};
use crate::time::Timestamp;
use crate::tools::call::{ToolCall, ToolResult};
use crate::tools::long_result;

/// The most answers a model may give within one run.
pub const STEPS_MAX: usize = 32;

/// The most tools a model may call in one answer.
pub const CALLS_MAX: usize = 32;

/// What a model is shown at the end of a past answer that was cut off: by an abort, a failure or a limit.
pub const CUT_MARK: &str = "\n[cut off here]";

/// One answer of the model with what came of its calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The text.
    pub text: String,
    /// The calls.
    pub calls: Vec<ToolCall>,
    /// Their results, in the order they came.
    pub results: Vec<ToolResult>,
    /// Which of the calls need approval; empty once all have their results.
    gates: Vec<Gate>,
    /// The thoughts that go back to the provider with the results.
    pub thoughts: Vec<Thought>,
}

/// What a call that needs approval has come to.
#[derive(Clone, Debug, PartialEq)]
struct Gate {
    call: CallId,
    asked: Timestamp,
    deadline: Timestamp,
    way: Gating,
}

#[derive(Clone, Debug, PartialEq)]
enum Gating {
    Pending,
    /// It may be made, with this input where there is one.
    Open(Option<Value>),
    /// It is not made.
    Denied,
}

impl Step {
    fn gate(&self, call: &CallId) -> Option<&Gate> {
        self.gates.iter().find(|gate| gate.call == *call)
    }

    /// The calls without a result.
    fn open(&self) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().filter(|call| !self.results.iter().any(|result| result.call == call.id))
    }

    /// The call as it is to be made; none while it is not approved.
    fn to_make(&self, call: &ToolCall) -> Option<ToolCall> {
        match self.gate(&call.id).map(|gate| &gate.way) {
            None | Some(Gating::Open(None)) => Some(call.clone()),
            Some(Gating::Open(Some(input))) => Some(ToolCall { input: input.clone(), ..call.clone() }),
            Some(Gating::Pending | Gating::Denied) => None,
        }
    }
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Ask the model; this is its answer number `step`, counted from 0.
    Ask {
        /// Which answer.
        step: usize,
    },
    /// Make these calls, which have no result yet; where there are none, all that is left to do is to
    /// wait for approvals.
    Act {
        /// The answer that asked for them.
        step: usize,
        /// The calls, as they are to be made.
        calls: Vec<ToolCall>,
    },
}

/// One run's loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    steps: Vec<Step>,
    usage: Usage,
    /// Whether its last answer is not complete.
    is_cut: bool,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// The model is being asked; what it said so far.
    Asking {
        /// Its text, in the event log already.
        text: String,
        /// Its calls: not in the event log before the answer ends.
        heard: Vec<ToolCall>,
        /// Which of these need approval.
        gates: Vec<Gate>,
        /// Its thoughts, in the event log already.
        thought: String,
        /// How many bytes of the text were said before the last piece of those.
        thought_at: usize,
        /// The ends of those: not in the event log before the answer ends.
        seals: Vec<ThoughtSignature>,
        /// Whether a restart cut it off before: it is said anew.
        is_anew: bool,
    },
    /// The calls of the last step are being made.
    Acting,
    /// Nothing follows.
    Ended,
}

impl State {
    fn asking() -> Self {
        let (text, thought) = (String::new(), String::new());
        let (heard, gates, seals) = (Vec::new(), Vec::new(), Vec::new());
        Self::Asking { text, heard, gates, thought, thought_at: 0, seals, is_anew: false }
    }
}

impl Turn {
    /// A turn that begins by asking the model.
    pub fn new() -> Self {
        Self { steps: Vec::new(), usage: Usage::default(), is_cut: false, state: State::asking() }
    }

    /// A turn that is over and of which nothing is but this text.
    pub fn of_text(text: &str) -> Self {
        let steps = vec![Step { text: text.to_owned(), ..Step::default() }];
        Self { steps, usage: Usage::default(), is_cut: false, state: State::Ended }
    }

    /// What is to be done; nothing once it ended.
    pub fn work(&self) -> Option<Work> {
        match &self.state {
            State::Asking { .. } => Some(Work::Ask { step: self.steps.len() }),
            State::Acting => {
                let step = self.steps.last()?;
                let calls = step.open().filter_map(|call| step.to_make(call)).collect();
                Some(Work::Act { step: self.steps.len() - 1, calls })
            }
            State::Ended => None,
        }
    }

    /// The calls that wait for approval.
    pub fn waiting(&self) -> impl Iterator<Item = ApprovalRequest> + '_ {
        let step = self.steps.last().filter(|_| self.state == State::Acting);
        step.into_iter().flat_map(|step| {
            step.open().filter_map(|call| {
                let Gate { asked, deadline, way, .. } = step.gate(&call.id)?;
                let (asked, deadline) = (*asked, *deadline);
                (*way == Gating::Pending).then(|| ApprovalRequest { call: call.clone(), asked, deadline })
            })
        })
    }

    /// When the first of them has waited for long enough.
    pub fn deadline(&self) -> Option<Timestamp> {
        let step = self.steps.last().filter(|_| self.state == State::Acting)?;
        step.gates.iter().filter(|gate| gate.way == Gating::Pending).map(|gate| gate.deadline).min()
    }

    /// Whether the answer under way is said anew because a restart cut it off.
    pub fn is_anew(&self) -> bool {
        matches!(self.state, State::Asking { is_anew: true, .. })
    }

    /// The calls that are being made.
    pub fn made(&self) -> Vec<ToolCall> {
        match self.work() {
            Some(Work::Act { calls, .. }) => calls,
            Some(Work::Ask { .. }) | None => Vec::new(),
        }
    }

    /// All calls the model asked for.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.steps.iter().flat_map(|step| &step.calls)
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
            (Event::Thought(piece), State::Asking { text, thought, thought_at, .. }) => {
                thought.push_str(piece);
                *thought_at = text.len();
            }
            (Event::Restarted, state @ State::Asking { .. }) => {
                *state = State::asking();
                if let State::Asking { is_anew, .. } = state {
                    *is_anew = true;
                }
            }
            (Event::Sealed(sealed), State::Asking { seals, .. }) => seals.clone_from(sealed),
            (Event::ToolCalled(call), State::Asking { heard, .. })
                if !heard.iter().any(|known| known.id == call.id) =>
            {
                heard.push(call.clone());
            }
            (
                Event::ApprovalAsked(ApprovalRequest { call, asked, deadline }),
                State::Asking { heard, gates, .. },
            ) if !heard.iter().any(|known| known.id == call.id) => {
                let (asked, deadline) = (*asked, *deadline);
                gates.push(Gate { call: call.id.clone(), asked, deadline, way: Gating::Pending });
                heard.push(call.clone());
            }
            (Event::ApprovalDecided(Decided { call, decision, .. }), State::Acting) => {
                let gates = self.steps.last_mut().into_iter().flat_map(|step| &mut step.gates);
                for gate in gates.filter(|gate| gate.call == *call && gate.way == Gating::Pending) {
                    gate.way = match decision {
                        Decision::Approved { input } => Gating::Open(input.clone()),
                        Decision::Denied { .. } | Decision::TimedOut | Decision::Withdrawn => Gating::Denied,
                    };
                }
            }
            (Event::StepEnded { usage }, State::Asking { text, heard, gates, thought, seals, .. }) => {
                let step = Step {
                    text: std::mem::take(text),
                    calls: std::mem::take(heard),
                    results: Vec::new(),
                    gates: std::mem::take(gates),
                    thoughts: sealed(thought, std::mem::take(seals)),
                };
                self.state = if step.calls.is_empty() { State::Ended } else { State::Acting };
                self.steps.push(step);
                self.usage += *usage;
            }
            (Event::ToolReturned(result), State::Acting) => {
                if let Some(step) = self.steps.last_mut() {
                    step.results.push(result.clone());
                    if step.results.len() == step.calls.len() {
                        step.gates.clear();
                        self.state = State::asking();
                    }
                }
            }
            (Event::Ended { outcome, .. }, state) => {
                if let State::Asking { text, .. } = state
                    && !text.is_empty()
                {
                    // Cut off within an answer: what was said is kept.
                    self.steps.push(Step { text: std::mem::take(text), ..Step::default() });
                }
                for step in &mut self.steps {
                    step.thoughts.clear();
                    step.gates.clear();
                }
                self.is_cut = *outcome != Outcome::Completed;
                self.state = State::Ended;
            }
            // Prompted and Started precede the turn; anything else is not a move of this state.
            _ => {}
        }
    }

    /// What follows from what the model said in one go. The events are yet to be applied.
    pub fn said(
        &mut self,
        now: Timestamp,
        deltas: Vec<Delta>,
        tools: &Toolbox,
        allowed: &[PluginName],
    ) -> Vec<Event> {
        let step = self.steps.len();
        let State::Asking { text, heard, thought, thought_at, seals, .. } = &mut self.state else {
            return Vec::new();
        };
        let mut thought_at = *thought_at;
        let sealed_bytes: usize = seals.iter().map(|seal| seal.thought_bytes).sum();
        let (mut text_bytes, mut thought_bytes) = (text.len(), thought.len().saturating_sub(sealed_bytes));
        let mut said_bytes = text.len() + thought.len();
        // Unique in the whole run: a result that comes late must not be taken for that of a later
        // step's call, and clients pair results with calls by their ids.
        let is_taken = |heard: &[ToolCall], id: &CallId| {
            let mut known = self.steps.iter().flat_map(|step| &step.calls).chain(heard);
            known.any(|known| known.id == *id)
        };
        let mut events = Vec::new();
        let mut piece = (Streamed::Text, String::new());
        for delta in deltas {
            match delta {
                Delta::Text(more) => {
                    text_bytes += more.len();
                    add(&mut events, &mut piece, Streamed::Text, more);
                }
                Delta::Thinking(more) => {
                    (thought_bytes, thought_at) = (thought_bytes + more.len(), text_bytes);
                    add(&mut events, &mut piece, Streamed::Thought, more);
                }
                Delta::Sealed(proof) => {
                    // The proof may come long after the thought, which is where its last piece was.
                    let text_bytes = if thought_bytes > 0 { thought_at } else { text_bytes };
                    seals.push(ThoughtSignature { thought_bytes, text_bytes, proof });
                    thought_bytes = 0;
                }
                Delta::ToolCall(mut call) => {
                    let mut number = heard.len();
                    while call.id.as_str().is_empty() || is_taken(heard, &call.id) {
                        call.id = CallId::new(format!("call_{step}_{number}"));
                        number += 1;
                    }
                    heard.push(call);
                }
                Delta::Notice(notice) => {
                    flush(&mut events, &mut piece);
                    events.push(Event::Noticed(notice));
                }
                Delta::Finished { stop, usage } => {
                    flush(&mut events, &mut piece);
                    said_bytes +=
                        events.iter().filter_map(Event::streamed).map(|(_, p)| p.len()).sum::<usize>();
                    let usage = usage.unwrap_or(Usage::new(0, said_bytes.div_ceil(4) as u64));
                    let (calls, seals) = (std::mem::take(heard), std::mem::take(seals));
                    if !calls.is_empty() && !seals.is_empty() {
                        events.push(Event::Sealed(seals));
                    }
                    let is_empty = step == 0 && text_bytes == 0;
                    let end = End { now, calls, stop, usage, step, before: self.usage, is_empty };
                    finish(&mut events, end, (tools, allowed));
                    return events;
                }
            }
        }
        flush(&mut events, &mut piece);
        events
    }

    /// What follows from a tool's result: nothing where no such call is open.
    pub fn returned(&self, result: ToolResult) -> Option<Event> {
        let Some(Work::Act { calls, .. }) = self.work() else { return None };
        calls.iter().any(|call| call.id == result.call).then_some(Event::ToolReturned(result))
    }

    /// What follows from a decision about a call: nothing where it does not wait. One that is not
    /// made has a result of its own, for the model.
    pub fn decided(&self, call: &CallId, decision: Decision, by: Option<&str>) -> Vec<Event> {
        let Some(asked) = self.waiting().find(|asked| asked.call.id == *call) else { return Vec::new() };
        let told = match &decision {
            Decision::Denied { reason: Some(reason) } => Some(format!("{DENIED}: {reason}")),
            Decision::Denied { reason: None } => Some(DENIED.to_owned()),
            Decision::TimedOut => {
                let ms = asked.deadline.since(asked.asked).as_millis();
                Some(format!("not called: it needs approval, and nobody decided within {ms} ms"))
            }
            Decision::Approved { .. } | Decision::Withdrawn => None,
        };
        let (call, by) = (call.clone(), by.map(str::to_owned));
        let refusal = told.map(|told| refuse(call.clone(), told));
        let decided = Decided { call, tool: asked.call.name, decision, by };
        std::iter::once(Event::ApprovalDecided(decided)).chain(refusal).collect()
    }

    /// The run's end, where it has not ended yet, with what it means for calls that wait. `partial` is
    /// what the answer under way has cost.
    pub fn end(&self, outcome: Outcome, partial: Usage) -> Vec<Event> {
        if self.state == State::Ended {
            return Vec::new();
        }
        let mut usage = self.usage;
        usage += partial;
        let withdrawn = self.waiting().map(|ApprovalRequest { call, .. }| {
            let decision = Decision::Withdrawn;
            Event::ApprovalDecided(Decided { call: call.id, tool: call.name, decision, by: None })
        });
        withdrawn.chain([Event::Ended { outcome, usage }]).collect()
    }

    /// What a daemon that finds this turn in the event log has to record before it goes on: the text of
    /// an unfinished answer is void, and calls that may have been made are not made again unless
    /// `idempotent` says that they may be. Those that wait for approval wait on.
    pub fn recover(&self, idempotent: impl Fn(&PluginName) -> bool) -> Vec<Event> {
        match self.work() {
            Some(Work::Ask { .. }) => vec![Event::Restarted],
            Some(Work::Act { calls, .. }) => calls
                .into_iter()
                .filter(|call| !idempotent(&call.name))
                .map(|call| {
                    refuse(
                        call.id,
                        "interrupted: the session had to begin anew during this call; whether it took effect is unknown",
                    )
                })
                .collect(),
            None => Vec::new(),
        }
    }

    /// The whole result of this call.
    pub fn result(&self, call: &CallId) -> Option<&ToolResult> {
        self.steps.iter().rev().flat_map(|step| &step.results).find(|result| result.call == *call)
    }

    /// Whether a call has a result of more bytes.
    pub fn has_result_over(&self, bytes: usize) -> bool {
        self.steps.iter().flat_map(|step| &step.results).any(|result| result.content.len() > bytes)
    }

    /// How many bytes the results of its calls have.
    pub fn result_bytes(&self) -> usize {
        self.steps.iter().flat_map(|step| &step.results).map(|result| result.content.len()).sum()
    }

    /// The run as a model sees it, without its prompt: of each result at most `shown` bytes.
    pub fn messages(&self, shown: usize) -> impl Iterator<Item = ChatMessage> + '_ {
        let last = self.steps.len().saturating_sub(1);
        self.steps.iter().enumerate().flat_map(move |(at, step)| {
            let is_cut = self.is_cut && at == last && step.calls.is_empty() && !step.text.is_empty();
            let said = ChatMessage::Assistant {
                text: if is_cut { format!("{}{CUT_MARK}", step.text) } else { step.text.clone() },
                calls: step.calls.clone(),
                thoughts: step.thoughts.clone(),
            };
            let results = step.calls.iter().filter_map(|call| {
                let returned = step.results.iter().find(|result| result.call == call.id);
                let returned = returned.map(|result| ToolResult {
                    call: call.id.clone(),
                    content: long_result::shown(&call.name, result, shown).into_owned(),
                    is_error: result.is_error,
                });
                returned.or_else(|| {
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

/// Adds a piece to what is streamed in one go, which becomes one event as long as it is of one kind.
fn add(events: &mut Vec<Event>, piece: &mut (Streamed, String), of: Streamed, more: String) {
    if piece.0 != of {
        flush(events, piece);
        piece.0 = of;
    }
    if piece.1.is_empty() {
        piece.1 = more;
    } else {
        piece.1.push_str(&more);
    }
}

fn flush(events: &mut Vec<Event>, (of, piece): &mut (Streamed, String)) {
    if !piece.is_empty() {
        events.push(of.event(std::mem::take(piece)));
    }
}

/// A step's thoughts, cut where its seals say. What is not sealed stays out: no provider wants it.
fn sealed(thought: &mut String, seals: Vec<ThoughtSignature>) -> Vec<Thought> {
    let thought = std::mem::take(thought);
    let mut rest = thought.as_str();
    let cut = |seal: ThoughtSignature| {
        let (text, after) = rest.split_at(rest.floor_char_boundary(seal.thought_bytes));
        rest = after;
        Thought { text: text.to_owned(), at: seal.text_bytes, proof: seal.proof }
    };
    seals.into_iter().map(cut).collect()
}

/// The end of an answer.
struct End {
    now: Timestamp,
    calls: Vec<ToolCall>,
    /// Why the model stopped.
    stop: Stop,
    /// What it cost.
    usage: Usage,
    /// Which answer of the run it is, and what those before it cost.
    step: usize,
    before: Usage,
    /// Whether nothing was said in the whole run.
    is_empty: bool,
}

/// The end of an answer: its calls, journaled together with it; refusals of those that can't be
/// made; and the run's end where there are none. A call of an `allowed` tool waits for nobody.
fn finish(events: &mut Vec<Event>, end: End, (tools, allowed): (&Toolbox, &[PluginName])) {
    let End { now, calls, stop, usage, step, before, is_empty } = end;
    let mut total = before;
    total += usage;
    if calls.is_empty() {
        let outcome = match Incomplete::of(stop) {
            // Of an answer without a word nobody could tell.
            incomplete if is_empty => Outcome::Failed(ErrorCode::Provider.error(nothing_said(incomplete))),
            Some(incomplete) => Outcome::Incomplete(incomplete),
            None => Outcome::Completed,
        };
        events.push(Event::StepEnded { usage });
        events.push(Event::Ended { outcome, usage: total });
        return;
    }
    let refusals: Vec<Event> = calls
        .iter()
        .enumerate()
        .filter_map(|(index, call)| {
            let why = if index >= CALLS_MAX {
                format!("not called: more than {CALLS_MAX} tool calls in one answer")
            } else if !tools.offers(&call.name) {
                format!("unknown tool: {}", call.name)
            } else if !call.input.is_object() && stop == Stop::MaxTokens {
                "not called: the answer reached its most tokens within this call; ask for less in one call"
                    .to_owned()
            } else if !call.input.is_object() {
                "not called: the input is not a JSON object".to_owned()
            } else {
                return None;
            };
            Some(refuse(call.id.clone(), why))
        })
        .collect();
    let is_last = step + 1 >= STEPS_MAX;
    let is_refused = |call: &ToolCall| {
        refusals.iter().any(|event| matches!(event, Event::ToolReturned(result) if result.call == call.id))
    };
    events.extend(calls.into_iter().map(|call| {
        let is_gated = tools.waits(&call) && !allowed.contains(&call.name);
        if is_last || !is_gated || is_refused(&call) {
            return Event::ToolCalled(call);
        }
        Event::ApprovalAsked(ApprovalRequest { call, asked: now, deadline: now.after(tools.timeout) })
    }));
    events.push(Event::StepEnded { usage });
    events.extend(refusals);
    if is_last {
        let error = ErrorCode::Provider
            .error(format!("the model called tools {STEPS_MAX} times in one run without an answer"));
        events.push(Event::Ended { outcome: Outcome::Failed(error), usage: total });
    }
}

/// That a model said nothing, and why.
fn nothing_said(incomplete: Option<Incomplete>) -> &'static str {
    match incomplete {
        None => "the model's answer is empty",
        Some(Incomplete::Length) => {
            "the model's answer is empty: it reached the most tokens it may have before its first word; raise \
            max_tokens, or let it think less"
        }
        Some(Incomplete::Refusal) => "the model refused to answer",
        Some(Incomplete::ContentFilter) => "the provider's content filter withheld the answer",
    }
}

/// What the model is told of a call that somebody did not approve.
const DENIED: &str = "not called: it needs approval, and that was denied";

fn refuse(call: CallId, why: impl Into<String>) -> Event {
    Event::ToolReturned(ToolResult { call, content: why.into(), is_error: true })
}
