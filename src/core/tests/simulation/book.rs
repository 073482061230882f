//! What the log says, read by somebody who knows the meaning of events and nothing of how a
//! session works: the other opinion that the session is compared with.

use clawmux_core::conversation::approval::{ApprovalRequest, Decided, Decision};
use clawmux_core::conversation::context::NO_PROMPT;
use clawmux_core::conversation::event::{Compacted, Event, Forgotten, Logged, Outcome};
use clawmux_core::conversation::window::Window;
use clawmux_core::ids::{CallId, Owner, RunId, Seq};
use clawmux_core::prompt::settings::Settings;

use crate::rules::{self, Check};

/// One run, as far as the log goes.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) seq: Seq,
    pub(crate) content: String,
    pub(crate) owner: Owner,
    pub(crate) key: Option<String>,
    pub(crate) stage: Stage,
    /// Whether its turn came, and when; of what was injected that is when it was said.
    pub(crate) began: bool,
    pub(crate) began_at: Seq,
    /// Whether it was said without a prompt.
    pub(crate) is_injected: bool,
    /// What was put beside its prompt.
    pub(crate) notes: String,
    /// Its finished answers, and the one that an end cut off.
    pub(crate) steps: Vec<Step>,
    /// What the answer under way has said.
    pub(crate) text: String,
    /// What it has thought, and how much of that each seal covers.
    pub(crate) thought: String,
    pub(crate) seals: Vec<usize>,
    /// The calls of the last answer, and whether each has its result.
    pub(crate) calls: Vec<(CallId, bool)>,
    /// All that ever waited for approval, and what was decided.
    pub(crate) gates: Vec<(ApprovalRequest, Option<Decision>)>,
    /// The tokens of its steps.
    pub(crate) tokens: u64,
    /// The number of its end.
    pub(crate) ended: Seq,
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) text: String,
    pub(crate) calls: usize,
    /// The thoughts that were sealed in it.
    pub(crate) thoughts: Vec<String>,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Asking,
    Acting,
    /// Its last answer called nothing: only the end can follow.
    Done,
    Ended,
}

impl Run {
    /// Whether a call of the last answer has no result.
    pub(crate) fn is_open(&self, call: &CallId) -> bool {
        self.calls.iter().any(|(known, returned)| known == call && !returned)
    }

    /// Whether this call waited for approval, and what was decided.
    pub(crate) fn gate(&self, call: &CallId) -> Option<&(ApprovalRequest, Option<Decision>)> {
        self.gates.iter().find(|(asked, _)| asked.call.id == *call)
    }

    /// The calls that wait for approval.
    pub(crate) fn waits(&self) -> impl Iterator<Item = &ApprovalRequest> {
        self.gates.iter().filter(|(_, decision)| decision.is_none()).map(|(asked, _)| asked)
    }

    /// Whether the model said anything.
    pub(crate) fn has_answer(&self) -> bool {
        self.steps.iter().any(|step| !step.text.is_empty() || step.calls > 0)
    }
}

/// All runs of a log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    runs: Vec<Run>,
    /// In the order in which they ended after having begun.
    past: Vec<usize>,
    window: Window,
    settings: Settings,
}

impl Book {
    /// What these events say.
    pub(crate) fn of(events: &[Logged]) -> Check<Self> {
        let mut book = Self::default();
        for logged in events {
            book.read(logged)?;
        }
        Ok(book)
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn run(&self, id: &RunId) -> Option<&Run> {
        self.runs.iter().rev().find(|run| run.id == *id)
    }

    /// The run that has a key.
    pub(crate) fn of_key(&self, owner: &Owner, key: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.key.as_deref() == Some(key) && run.owner == *owner)
    }

    /// The one under way.
    pub(crate) fn running(&self) -> Option<&Run> {
        self.runs.iter().find(|run| matches!(run.stage, Stage::Asking | Stage::Acting | Stage::Done))
    }

    /// Those that wait, in order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.stage == Stage::Waiting)
    }

    /// Whether any has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.runs.iter().any(|run| run.stage != Stage::Ended)
    }

    /// Those that began and ended and are in the window, in the order in which they began.
    pub(crate) fn past(&self) -> impl Iterator<Item = &Run> + Clone {
        let runs = self.past.iter().map(|index| &self.runs[*index]);
        let mut past: Vec<&Run> = runs.filter(|run| run.ended > self.window.from).collect();
        past.sort_by_key(|run| run.began_at);
        past.into_iter()
    }

    /// What of the past the model sees.
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// What the session is set to.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reads the next event.
    pub(crate) fn read(&mut self, logged: &Logged) -> Check {
        let complaint = self.take_in(logged)?;
        rules::the_log_makes_sense(logged, complaint)
    }

    /// Gives what is wrong with it, if anything is.
    fn take_in(&mut self, logged: &Logged) -> Check<Option<&'static str>> {
        let Some(id) = &logged.run else {
            match &logged.event {
                Event::Cleared(forgotten) => {
                    let up_to = if let Forgotten::UpTo(seq) = forgotten { *seq } else { logged.seq };
                    self.window.from = self.window.from.max(up_to);
                    (self.window.seq, self.window.summary) = (logged.seq, String::new());
                }
                Event::Compacted(Compacted { up_to, named, summary }) => {
                    if *up_to < self.window.from && *named <= self.window.named {
                        return Ok(Some("a window that moves back"));
                    }
                    self.window.from = self.window.from.max(*up_to);
                    self.window.named = self.window.named.max(*named);
                    (self.window.seq, self.window.summary) = (logged.seq, summary.clone());
                }
                Event::Configured(settings) => self.settings.clone_from(settings),
                _ => return Ok(Some("an event without a run")),
            }
            return Ok(None);
        };
        if let Event::Injected { content } = &logged.event {
            let again = self.run(id).is_some();
            self.past.push(self.runs.len());
            self.runs.push(Run {
                id: id.clone(),
                seq: logged.seq,
                content: NO_PROMPT.into(),
                owner: Owner::Admins,
                key: None,
                stage: Stage::Ended,
                began: true,
                began_at: logged.seq,
                is_injected: true,
                notes: String::new(),
                steps: vec![Step { text: content.clone(), calls: 0, thoughts: Vec::new() }],
                text: String::new(),
                thought: String::new(),
                seals: Vec::new(),
                calls: Vec::new(),
                gates: Vec::new(),
                tokens: 0,
                ended: logged.seq,
            });
            return Ok(again.then_some("something injected under the id of a run"));
        }
        if let Event::Prompted { content, owner, idempotency_key, .. } = &logged.event {
            let again = self.run(id).is_some()
                || idempotency_key.as_ref().is_some_and(|key| self.of_key(owner, key).is_some());
            self.runs.push(Run {
                id: id.clone(),
                seq: logged.seq,
                content: content.clone(),
                owner: owner.clone(),
                key: idempotency_key.clone(),
                stage: Stage::Waiting,
                began: false,
                began_at: Seq(0),
                is_injected: false,
                notes: String::new(),
                steps: Vec::new(),
                text: String::new(),
                thought: String::new(),
                seals: Vec::new(),
                calls: Vec::new(),
                gates: Vec::new(),
                tokens: 0,
                ended: Seq(0),
            });
            return Ok(again.then_some("a second prompt of one run or one key"));
        }
        if logged.event == Event::Started {
            rules::prompts_run_in_their_order(self.waiting().next().map(|run| &run.id), id)?;
            if self.running().is_some() {
                return Ok(Some("two runs at a time"));
            }
        }
        let Some(index) = self.runs.iter().rposition(|run| run.id == *id) else {
            return Ok(Some("a run without a prompt"));
        };
        let run = &mut self.runs[index];
        rules::an_end_sums_up(run, logged)?;
        match (&logged.event, run.stage) {
            (Event::Started, Stage::Waiting) => {
                run.stage = Stage::Asking;
                run.began = true;
                run.began_at = logged.seq;
            }
            (Event::Text(text), Stage::Asking) => run.text.push_str(text),
            (Event::Thought(thought), Stage::Asking) => run.thought.push_str(thought),
            // No part of what is said.
            (Event::Noticed(_), Stage::Asking) => {}
            (Event::Recalled { notes }, Stage::Asking) => {
                if !run.steps.is_empty() || !run.text.is_empty() || !run.notes.is_empty() {
                    return Ok(Some("what is remembered is put beside a prompt once, before it is answered"));
                }
                run.notes.clone_from(notes);
            }
            (Event::Sealed(seals), Stage::Asking) => {
                run.seals = seals.iter().map(|seal| seal.thought_bytes).collect();
                if seals.is_empty() || run.seals.iter().sum::<usize>() > run.thought.len() {
                    return Ok(Some("seals of thoughts that there are not"));
                }
            }
            (Event::Restarted, Stage::Asking) => {
                run.text.clear();
                run.thought.clear();
            }
            (Event::ToolCalled(call) | Event::ApprovalAsked(ApprovalRequest { call, .. }), Stage::Asking) => {
                // Those of the answer before have their results.
                run.calls.retain(|(_, returned)| !*returned);
                if run.is_open(&call.id) {
                    return Ok(Some("two calls of one answer with one id"));
                }
                run.calls.push((call.id.clone(), false));
                if let Event::ApprovalAsked(asked) = &logged.event {
                    if run.gate(&call.id).is_some() || asked.asked != logged.at {
                        return Ok(Some("a call is asked for once, when it is"));
                    }
                    run.gates.push((asked.clone(), None));
                }
            }
            (Event::ApprovalDecided(Decided { call, decision, .. }), Stage::Acting) => {
                let is_open = run.is_open(call);
                let gate = run.gates.iter_mut().find(|(asked, _)| asked.call.id == *call);
                let Some((asked, decided @ None)) = gate.filter(|_| is_open) else {
                    return Ok(Some("a decision about a call that does not wait"));
                };
                let is_late = logged.at >= asked.deadline;
                if is_late != (*decision == Decision::TimedOut) && *decision != Decision::Withdrawn {
                    return Ok(Some("a decision at its deadline that is none, or before it that is one"));
                }
                *decided = Some(decision.clone());
            }
            (Event::StepEnded { usage }, Stage::Asking) => {
                run.calls.retain(|(_, returned)| !*returned);
                run.tokens += usage.total();
                let (text, calls) = (std::mem::take(&mut run.text), run.calls.len());
                let mut rest = std::mem::take(&mut run.thought);
                let cut = |bytes| rest.drain(..bytes).collect();
                let thoughts = std::mem::take(&mut run.seals).into_iter().map(cut).collect();
                run.steps.push(Step { text, calls, thoughts });
                run.stage = if run.calls.is_empty() { Stage::Done } else { Stage::Acting };
            }
            (Event::ToolReturned(result), Stage::Acting) => {
                let Some((_, returned)) =
                    run.calls.iter_mut().find(|(call, returned)| *call == result.call && !*returned)
                else {
                    return Ok(Some("a result without an open call"));
                };
                *returned = true;
                if run.waits().any(|asked| asked.call.id == result.call) {
                    return Ok(Some("a result of a call that waits for approval"));
                }
                if run.calls.iter().all(|(_, returned)| *returned) {
                    run.stage = Stage::Asking;
                }
            }
            (Event::Ended { outcome, .. }, stage) if stage != Stage::Ended => {
                if stage == Stage::Waiting && !matches!(outcome, Outcome::Aborted(_)) {
                    return Ok(Some("a prompt that never began can only be aborted"));
                }
                if run.waits().next().is_some() {
                    return Ok(Some("a run ends and leaves calls waiting"));
                }
                if !run.text.is_empty() {
                    let text = std::mem::take(&mut run.text);
                    run.steps.push(Step { text, calls: 0, thoughts: Vec::new() });
                }
                run.stage = Stage::Ended;
                run.ended = logged.seq;
                if run.began {
                    self.past.push(index);
                }
            }
            _ => return Ok(Some("no move of this run")),
        }
        Ok(None)
    }
}
