//! Everything that outlives a session: the log, what is on its way to it, what clients were told
//! and saw, which effects there were.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use clawmux_core::conversation::approval::{Decided, Decision, Toolbox};
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::conversation::session::{Batch, Limits};
use clawmux_core::ids::{CallId, Owner, PluginName, RunId, Seq, SessionKey};
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::ToolCall;

use crate::clients::{Asker, Peer};
use crate::log::Log;
use crate::rules::{self, Check};

/// How long a call waits for approval, in steps of a history.
const APPROVAL_MS: u64 = 15;

/// Names that all seeds share.
#[derive(Debug)]
pub(crate) struct Cast {
    pub(crate) session: SessionKey,
    pub(crate) owners: [Owner; 2],
    /// One that may be called again, one that may not, one that is not offered, and one that may not be
    /// called again and needs approval.
    pub(crate) tools: [PluginName; 4],
    /// Those that are offered.
    pub(crate) toolbox: Toolbox,
    /// What a provider calls a call.
    pub(crate) calls: [CallId; 4],
}

impl Cast {
    pub(crate) fn new() -> Self {
        let tools = ["again", "once", "unknown", "asks"].map(PluginName::from);
        let offered = [0, 1, 3].map(|tool: usize| tools[tool].clone()).to_vec();
        let (gated, timeout) = (vec![tools[3].clone()], Duration::from_millis(APPROVAL_MS));
        Self {
            toolbox: Toolbox { offered, gated, timeout, ..Toolbox::default() },
            session: SessionKey::parse("main:websocket:ada:main").expect("a key"),
            owners: [Owner::Admins, Owner::Credential("bob".into())],
            tools,
            calls: ["", "a", "b", "call_0_1"].map(CallId::from),
        }
    }

    pub(crate) fn is_idempotent(&self, tool: &PluginName) -> bool {
        *tool == self.tools[0]
    }
}

/// A prompt as a client sends it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) run: RunId,
    pub(crate) content: String,
    pub(crate) owner: Owner,
    pub(crate) key: Option<String>,
}

/// What a client is answered once it is written.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Accepted { request: usize, asker: Asker, run: RunId, seq: Seq, repeated: bool },
    Attached { asker: Asker, after: Seq },
    Aborted(Option<RunId>),
    Decided { run: RunId, decided: Decided },
    Stopped(Vec<RunId>),
    Altered,
}

/// A unit on its way to the log.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) incarnation: u32,
    pub(crate) batch: Batch,
    pub(crate) replies: Vec<Reply>,
}

/// A prompt that was acknowledged.
#[derive(Debug)]
struct Acknowledged {
    request: usize,
    run: RunId,
}

/// A tool call that was made.
#[derive(Debug)]
struct Made {
    run: RunId,
    step: usize,
    call: CallId,
    incarnation: u32,
}

macro_rules! figures {
    ($($name:ident),+ $(,)?) => {
        /// How often something happened: a simulation in which it never does proves nothing.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Figures {
            $(pub(crate) $name: u64,)+
            /// Depends on every event of every log.
            pub(crate) print: u64,
        }

        impl Figures {
            /// What never happened.
            pub(crate) fn never(&self) -> Vec<&'static str> {
                let mut never = Vec::new();
                $(if self.$name == 0 { never.push(stringify!($name)); })+
                never
            }
        }

        impl std::ops::AddAssign for Figures {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
                self.print = self.print.wrapping_add(other.print);
            }
        }
    };
}

figures! {
    steps,
    prompts,
    repeated,
    refused,
    aborted,
    altered,
    stopped,
    attached,
    told,
    caught_up,
    unreadable,
    lagging,
    detached,
    hung_up,
    asked,
    asked_with_thoughts,
    compacted,
    called,
    called_again,
    too_late,
    written,
    shown,
    shown_lost,
    wanted_pages,
    disk_failures,
    late_units,
    conflicts,
    kills,
    power_losses,
    texts_lost,
    panics,
    sleeps,
    drains,
    resumed,
    interrupted,
    many_steps,
    floods,
    asked_for_approval,
    approved,
    denied,
    decided_too_late,
    timed_out,
    withdrawn,
    waited_over_restart,
    called_with_approval,
}

/// The steps of a history, kept where somebody wants to read them.
pub(crate) type Trace = RefCell<Vec<String>>;

/// Everything that outlives a session.
#[derive(Debug)]
pub(crate) struct Outside<'a> {
    pub(crate) cast: &'a Cast,
    pub(crate) limits: Limits,
    pub(crate) log: Log,
    /// Units on their way, in order.
    pub(crate) pipeline: VecDeque<Unit>,
    pub(crate) requests: Vec<Request>,
    /// Those who are connected.
    pub(crate) peers: Vec<Rc<Peer>>,
    /// How far behind the log one may fall, in bytes of it.
    pub(crate) lag_bytes_max: usize,
    /// Keys of prompts that were sent to the session and that it has not written yet.
    pub(crate) sent: Vec<(Owner, String)>,
    pub(crate) now: Timestamp,
    pub(crate) figures: Figures,
    acknowledged: Vec<Acknowledged>,
    aborted: Vec<RunId>,
    asked: Vec<(RunId, usize, u32)>,
    made: Vec<Made>,
    /// The numbers that somebody saw, with what they stood for.
    seen: Vec<(Seq, u64)>,
    /// Of these, the ones that went with the power.
    lost: Vec<Seq>,
    trace: Option<&'a Trace>,
}

impl<'a> Outside<'a> {
    pub(crate) fn new(cast: &'a Cast, limits: Limits, trace: Option<&'a Trace>) -> Self {
        Self {
            cast,
            limits,
            log: Log::default(),
            pipeline: VecDeque::new(),
            requests: Vec::new(),
            peers: Vec::new(),
            lag_bytes_max: usize::MAX,
            sent: Vec::new(),
            now: Timestamp::from_millis(0),
            figures: Figures::default(),
            acknowledged: Vec::new(),
            aborted: Vec::new(),
            asked: Vec::new(),
            made: Vec::new(),
            seen: Vec::new(),
            lost: Vec::new(),
            trace,
        }
    }

    /// Writes a line of the history, where it is kept.
    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            trace.borrow_mut().push(format!("{:>4}  {}", self.now.as_millis(), line()));
        }
    }

    /// A client is told.
    pub(crate) fn tell(&mut self, reply: Reply) -> Check {
        self.note(|| format!("client is told {reply:?}"));
        match reply {
            Reply::Accepted { request, run, seq, repeated, .. } => {
                rules::acknowledged_means_durable(&self.log, &run, seq)?;
                let Request { owner, key, .. } = &self.requests[request];
                if let Some(key) = key {
                    for known in &self.acknowledged {
                        let other = &self.requests[known.request];
                        if other.key.as_ref() == Some(key) && other.owner == *owner {
                            rules::the_same_key_is_the_same_run(key, &known.run, &run)?;
                        }
                    }
                    if !repeated {
                        self.sent.retain(|sent| sent.0 != *owner || sent.1 != *key);
                    }
                }
                self.figures.repeated += u64::from(repeated);
                self.acknowledged.push(Acknowledged { request, run });
            }
            Reply::Aborted(Some(run)) => {
                rules::an_acknowledged_abort_holds(self.log.book(), &run)?;
                self.figures.aborted += 1;
                self.aborted.push(run);
            }
            Reply::Stopped(runs) => {
                for run in &runs {
                    rules::an_acknowledged_abort_holds(self.log.book(), run)?;
                }
                self.figures.stopped += 1;
                self.aborted.extend(runs);
            }
            Reply::Decided { run, decided } => {
                rules::the_first_decision_counts(&self.log, &run, &decided)?;
                match decided.decision {
                    Decision::Approved { .. } => self.figures.approved += 1,
                    _ => self.figures.denied += 1,
                }
            }
            Reply::Attached { .. } => self.figures.attached += 1,
            Reply::Aborted(None) => {}
            Reply::Altered => self.figures.altered += 1,
        }
        Ok(())
    }

    /// Everybody sees an event.
    pub(crate) fn publish(&mut self, logged: &Logged) -> Check {
        rules::no_number_is_used_twice(self.seen.last().map_or(Seq(0), |(seq, _)| *seq), logged)?;
        rules::numbers_seen_are_reserved(&self.log, logged.seq)?;
        self.seen.push((logged.seq, rules::fingerprint(logged)));
        match &logged.event {
            Event::ApprovalAsked(_) => self.figures.asked_for_approval += 1,
            Event::ApprovalDecided(decided) => match decided.decision {
                Decision::TimedOut => self.figures.timed_out += 1,
                Decision::Withdrawn => self.figures.withdrawn += 1,
                Decision::Approved { .. } | Decision::Denied { .. } => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// Everybody looks at what has come.
    pub(crate) fn look(&mut self) -> Check {
        for peer in &self.peers {
            self.figures.told += peer.look(&self.log)?;
        }
        Ok(())
    }

    /// This went with the power.
    pub(crate) fn lose(&mut self, lost: &[Logged]) -> Check {
        let seen = self.seen.last().map_or(Seq(0), |(seq, _)| *seq);
        rules::only_what_streams_is_lost_with_the_power(lost, seen)?;
        self.lost.extend(lost.iter().map(|logged| logged.seq));
        let texts = lost.iter().filter(|logged| matches!(logged.event, Event::Text(_))).count();
        self.figures.texts_lost += texts as u64;
        Ok(())
    }

    /// What clients were told and saw holds.
    pub(crate) fn promises_hold(&self) -> Check {
        for acknowledged in &self.acknowledged {
            rules::no_acknowledged_prompt_is_lost(self.log.book(), &acknowledged.run)?;
        }
        for run in &self.aborted {
            rules::an_acknowledged_abort_holds(self.log.book(), run)?;
        }
        rules::what_was_seen_is_in_the_log(&self.log, &self.seen, &self.lost)
    }

    /// The run that a key was acknowledged with.
    pub(crate) fn run_of(&self, request: usize) -> Option<&RunId> {
        self.acknowledged.iter().find(|known| known.request == request).map(|known| &known.run)
    }

    /// A model is asked.
    pub(crate) fn ask(&mut self, run: &RunId, step: usize, incarnation: u32) -> Check {
        self.note(|| format!("model is asked for step {step} of {run}"));
        let again = self.asked.iter().any(|a| a.0 == *run && a.1 == step && a.2 == incarnation);
        let known = self.log.book().run(run);
        rules::a_finished_step_is_never_asked_again(known, again, run, step)?;
        self.asked.push((run.clone(), step, incarnation));
        self.figures.asked += 1;
        Ok(())
    }

    /// A tool is called.
    pub(crate) fn call(&mut self, run: &RunId, step: usize, call: &ToolCall, incarnation: u32) -> Check {
        self.note(|| format!("tool is called in step {step} of {run}: {call:?}"));
        let ToolCall { id, name, .. } = call;
        rules::a_call_follows_its_intent(&self.log, run, step, id)?;
        let of_step = || self.made.iter().filter(|made| made.run == *run && made.step == step);
        let now = of_step().filter(|made| made.incarnation == incarnation).count();
        rules::a_call_is_allowed(call, &self.cast.toolbox.offered, now)?;
        rules::a_gated_call_is_approved(&self.log, run, call, self.cast.toolbox.is_gated(name))?;
        let before = of_step().rfind(|made| made.call == *id).map(|made| made.incarnation);
        rules::a_call_is_made_once(before, incarnation, self.cast.is_idempotent(name), id)?;
        self.figures.called += 1;
        self.figures.called_with_approval += u64::from(self.cast.toolbox.is_gated(name));
        self.figures.called_again += u64::from(before.is_some());
        self.made.push(Made { run: run.clone(), step, call: id.clone(), incarnation });
        Ok(())
    }
}
