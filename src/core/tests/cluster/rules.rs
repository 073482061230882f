//! What must hold, whatever happens: one function for each promise. A breach names its rule.

use clawmux_core::cluster::stamp::{Sequence, Stamp, Token, accepts};

use crate::breach::demand;
pub(crate) use crate::breach::{Broken, Check};
use crate::replica::Replica;
use crate::toy::Body;

/// Nobody writes after somebody who outdid him.
pub(crate) fn tokens_never_decrease(highest: Token, session: usize, stamp: Stamp) -> Check {
    demand(accepts(highest, stamp.token), "tokens never decrease", || {
        format!("session {session}: {stamp:?} after {highest:?}")
    })
}

/// A record is in the stream once.
pub(crate) fn no_record_is_written_twice(is_again: bool, session: usize, stamp: Stamp) -> Check {
    demand(!is_again, "no record is written twice", || format!("session {session}: {stamp:?}"))
}

/// Every record builds on the one before it: its number is the next, and its event follows from the state.
pub(crate) fn a_record_follows(
    complaint: Result<(), &'static str>,
    session: usize,
    stamp: Stamp,
    body: &Body,
) -> Check {
    demand(complaint.is_ok(), "a record follows", || {
        format!("session {session}: {stamp:?} {body:?}: {}", complaint.err().unwrap_or_default())
    })
}

/// A session acts once its fence is in the stream, and on everything that is there before it.
pub(crate) fn an_open_session_has_everything(applied: Sequence, before: Option<Sequence>) -> Check {
    demand(before.is_some_and(|before| before <= applied), "an open session has everything", || {
        format!("the replica has applied {applied:?}; before the fence is {before:?}")
    })
}

/// One key is one prompt, in whatever sessions it is sent.
pub(crate) fn no_prompt_is_there_twice(key: u32, before: Option<u32>, run: u32) -> Check {
    demand(before.is_none(), "no prompt is there twice", || format!("key {key}: runs {before:?} and {run}"))
}

/// What an owner holds for written is in the stream, at that place: no two can hold different records for written
/// there.
pub(crate) fn what_is_written_is_at_its_place(found: Option<Stamp>, stamp: Stamp) -> Check {
    demand(found == Some(stamp), "what is written is at its place", || {
        format!("{stamp:?} was said to be written; there is {found:?}")
    })
}

/// What was given up is not in the stream, nor will it be.
pub(crate) fn what_is_given_up_is_never_written(is_there: bool, stamp: Stamp) -> Check {
    demand(!is_there, "what is given up is never written", || format!("{stamp:?}"))
}

/// Of each record it is said once what became of it.
pub(crate) fn the_outcome_is_said_once(is_known: bool, stamp: Stamp) -> Check {
    demand(is_known, "the outcome is said once", || format!("{stamp:?} was settled before"))
}

/// A prompt that was acknowledged is in the log, and its key stands for one run.
pub(crate) fn what_is_acknowledged_is_there(key: u32, run: u32, found: Option<u32>) -> Check {
    demand(found == Some(run), "what is acknowledged is there", || {
        format!("key {key} was answered with run {run}; the stream has {found:?}")
    })
}

/// Who wants a name is told that he has it if nobody had it before, and the same whenever he asks.
pub(crate) fn a_name_is_whose_it_is(name: u32, by: usize, is_told: bool, found: Option<usize>) -> Check {
    let holds = found.is_some() && is_told == (found == Some(by));
    demand(holds, "a name is whose it is", || {
        format!("wish {by} for name {name} was told {is_told}; the stream has {found:?}")
    })
}

/// Nothing is done outside before the intent is accepted.
pub(crate) fn an_effect_has_its_intent(has: bool, call: u32) -> Check {
    demand(has, "an effect has its intent", || format!("call {call} was made, and its intent is not there"))
}

/// No call is made twice.
pub(crate) fn no_effect_happens_twice(is_again: bool, call: u32) -> Check {
    demand(!is_again, "no effect happens twice", || format!("call {call}"))
}

/// After the last fault everything comes to its end: every client is answered, every run ends, every replica has
/// everything, every slot is where it should be.
pub(crate) fn nothing_is_stuck(rests: bool, steps: usize, what: impl FnOnce() -> String) -> Check {
    demand(rests, "nothing is stuck", || format!("after {steps} quiet steps: {}", what()))
}

/// All replicas are equal.
pub(crate) fn replicas_are_equal(one: &Replica, other: &Replica) -> Check {
    demand(one == other, "replicas are equal", || format!("{one:#?}\n{other:#?}"))
}
