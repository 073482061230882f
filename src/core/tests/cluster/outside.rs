//! Everything that outlives a daemon: the engine, what is on its way, what clients were told, which effects there were.

use std::cell::RefCell;
use std::collections::BTreeSet;

use clawmux_core::cluster::node::{Epoch, Heartbeat};
use clawmux_core::cluster::ownership::appender::Attempt;
use clawmux_core::cluster::ownership::slots::{Claim, Entry};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::{RecordId, Sequence, Stamp, Token};

use crate::engine::Engine;
use crate::rules::{self, Check};
use crate::table::Wanted;
use crate::toy::Body;

/// The steps of a history, for whoever wants to read it.
pub(crate) type Trace = RefCell<Vec<String>>;

/// What a driver does wrong on purpose: the rules must find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The token is the epoch of the process.
    TokenIsEpoch,
    /// A claim is held for accepted before the answer comes.
    ClaimsWithoutAsking,
    /// A session acts on what the replica has before its fence stands.
    ActsBeforeTheFence,
    /// What was published without an answer is published again behind whatever came since.
    ExpectsAnew,
    /// What was refused is held for not written.
    BelievesARefusal,
    /// What is not read back is held for not written.
    BelievesAnEmptyRead,
    /// A call is made before its intent is accepted.
    ActsBeforeTheAck,
    /// A prompt comes without the guard of its key.
    LeavesOutTheGuard,
    /// A higher token ends nothing.
    HeedsNoToken,
    /// A session that sleeps is not woken by what is applied later.
    SleepsOn,
    /// A record builds on one that is not settled, and has a guard.
    BuildsOnAGuard,
    /// A record of the table without an answer is published again behind whatever came since.
    MovesOnTooEarly,
    /// All nodes stamp their records of the table alike.
    StampsAlike,
    /// A record of the table that is written is held for made before it is applied.
    TakesWrittenForMade,
}

impl Flaw {
    pub(crate) const ALL: [Self; 14] = [
        Self::TokenIsEpoch,
        Self::ClaimsWithoutAsking,
        Self::ActsBeforeTheFence,
        Self::ExpectsAnew,
        Self::BelievesARefusal,
        Self::BelievesAnEmptyRead,
        Self::ActsBeforeTheAck,
        Self::LeavesOutTheGuard,
        Self::HeedsNoToken,
        Self::SleepsOn,
        Self::BuildsOnAGuard,
        Self::MovesOnTooEarly,
        Self::StampsAlike,
        Self::TakesWrittenForMade,
    ];
}

macro_rules! figures {
    ($($name:ident,)+) => {
        /// How often something happened: a simulation in which it never does proves nothing.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Figures {
            $(pub(crate) $name: u64,)+
            /// Depends on every record of every replica.
            pub(crate) print: u64,
            /// The most steps that it took to come to rest.
            pub(crate) quiet_most: u64,
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
                self.quiet_most = self.quiet_most.max(other.quiet_most);
            }
        }
    };
}

figures! {
    steps,
    requests,
    answered,
    answered_from_a_replica,
    answered_elsewhere,
    records,
    fences,
    fences_refused,
    takeovers,
    gained,
    lost_slots,
    handed_over,
    superseded,
    written,
    unknown,
    unknown_written,
    unknown_not_written,
    given_up,
    keys_taken,
    transient,
    refused_though_ours,
    refused_zombies,
    late_publishes,
    repeated_publishes,
    repeated_acks,
    lost_asks,
    lost_acks,
    stale_reads,
    stale_polls,
    claims,
    claims_refused,
    effects,
    interrupted,
    woken_late,
    stalled,
    flowed,
    crashes,
    fresh_disks,
    stood_still,
    blind,
    everybody_deaf,
    clocks_jumped,
    cut_off,
    cut_off_one_way,
    engine_away,
    drains,
    drained,
    called_off,
    wishes,
    names_given,
    names_refused,
    overtaken,
    unknown_of_the_table,
}

/// What is asked of the engine.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Publish {
        session: usize,
        attempt: Attempt,
        stamp: Stamp,
        expected: Sequence,
        body: Option<Body>,
        key: Option<u32>,
    },
    Read {
        session: usize,
        attempt: Attempt,
        after: Sequence,
    },
    Key {
        session: usize,
        attempt: Attempt,
        key: u32,
    },
    Want {
        attempt: Attempt,
        stamp: Stamp,
        expected: Sequence,
        record: Wanted,
    },
    Slots,
    Write {
        slot: Slot,
        expected: Token,
        claim: Claim,
    },
    Join,
}

/// What it answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Acked { session: usize, record: RecordId, sequence: Sequence },
    Transient { session: usize, attempt: Attempt },
    Refused { session: usize, attempt: Attempt },
    Back { session: usize, attempt: Attempt, records: Vec<(Sequence, Stamp)> },
    Key { session: usize, attempt: Attempt, guard: Option<(Stamp, u32)> },
    Slots(Vec<Entry>),
    Accepted(Slot, Token),
    Joined(Epoch, usize),
}

impl Answer {
    /// The session that it is about, or the table.
    pub(crate) fn session(&self) -> Option<usize> {
        match self {
            Self::Acked { session, .. }
            | Self::Transient { session, .. }
            | Self::Refused { session, .. }
            | Self::Back { session, .. }
            | Self::Key { session, .. } => Some(*session),
            Self::Slots(_) | Self::Accepted(..) | Self::Joined(..) => None,
        }
    }
}

/// Something on its way, in no order.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) node: usize,
    pub(crate) process: u32,
    /// Which awakening of the session it belongs to.
    pub(crate) serial: u64,
    pub(crate) what: Load,
}

#[derive(Clone, Debug)]
pub(crate) enum Load {
    Ask(Ask),
    Answer(Answer),
}

/// A prompt as a client sends it, again and again until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: u32,
    pub(crate) session: usize,
    pub(crate) run: Option<u32>,
}

/// A name that a client wants, again and again until it is told whether it has it.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: u32,
    pub(crate) told: Option<bool>,
}

#[derive(Debug)]
pub(crate) struct Outside<'a> {
    pub(crate) engine: Engine,
    pub(crate) flights: Vec<Flight>,
    pub(crate) beats: Vec<(usize, Heartbeat)>,
    pub(crate) requests: Vec<Request>,
    pub(crate) wishes: Vec<Wish>,
    effects: BTreeSet<u32>,
    /// What its owner gave up.
    pub(crate) given_up: Vec<(usize, Stamp)>,
    /// What was published and had no answer.
    pub(crate) unknown: BTreeSet<(usize, u64, u64)>,
    pub(crate) runs: u32,
    pub(crate) serials: u64,
    pub(crate) flaw: Option<Flaw>,
    pub(crate) figures: Figures,
    trace: Option<&'a Trace>,
}

impl<'a> Outside<'a> {
    pub(crate) fn new(engine: Engine, flaw: Option<Flaw>, trace: Option<&'a Trace>) -> Self {
        Self {
            engine,
            flights: Vec::new(),
            beats: Vec::new(),
            requests: Vec::new(),
            wishes: Vec::new(),
            effects: BTreeSet::new(),
            given_up: Vec::new(),
            unknown: BTreeSet::new(),
            runs: 0,
            serials: 0,
            flaw,
            figures: Figures::default(),
            trace,
        }
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            trace.borrow_mut().push(what());
        }
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// A client is told which run its key stands for.
    pub(crate) fn answer(&mut self, request: usize, run: u32) -> Check {
        let Request { key, run: told, .. } = &mut self.requests[request];
        let (key, before) = (*key, *told);
        *told = Some(run);
        self.figures.answered += u64::from(before.is_none());
        self.note(|| format!("request {request} is answered: key {key} is run {run}"));
        rules::what_is_acknowledged_is_there(key, run, self.engine.prompts.get(&key).copied())
    }

    /// A client is told whether it has the name that it wants.
    pub(crate) fn told(&mut self, wish: usize, has: bool) -> Check {
        let Wish { name, told } = &mut self.wishes[wish];
        let (name, before) = (*name, told.replace(has));
        self.figures.names_given += u64::from(before.is_none() && has);
        self.figures.names_refused += u64::from(before.is_none() && !has);
        self.note(|| format!("wish {wish} for name {name} is told {has}"));
        rules::a_name_is_whose_it_is(name, wish, has, self.engine.names.get(&name).copied())
    }

    /// A call is made, outside.
    pub(crate) fn effect(&mut self, call: u32) -> Check {
        self.note(|| format!("call {call} is made"));
        self.figures.effects += 1;
        rules::an_effect_has_its_intent(self.engine.calls.contains(&call), call)?;
        rules::no_effect_happens_twice(!self.effects.insert(call), call)
    }
}
