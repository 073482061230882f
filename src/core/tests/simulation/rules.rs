//! What must hold, whatever happens: one function for each promise. A breach names its rule.

use std::fmt::Write;

use clawmux_core::conversation::approval::{ApprovalRequest, Decided, Decision};
use clawmux_core::conversation::compaction::Compaction;
use clawmux_core::conversation::context::NOT_ANSWERED;
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::conversation::session::{Batch, Limits, PAGE_BYTES, Session};
use clawmux_core::conversation::turn::{CALLS_MAX, CUT_MARK};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{CallId, PluginName, RunId, Seq};
use clawmux_core::provider::ChatMessage;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::ToolCall;

use crate::book::{Book, Run, Stage};
use crate::breach::demand;
pub(crate) use crate::breach::{Broken, Check};
use crate::clients::{Peer, View};
use crate::driver::Late;
use crate::log::Log;

/// An event covers the number after the last one and as many more as it says.
pub(crate) fn numbers_have_no_gap(head: Seq, logged: &Logged) -> Check {
    demand(logged.first_seq == head.next() && logged.seq >= logged.first_seq, "numbers have no gap", || {
        format!("{}..={} after {head}: {:?}", logged.first_seq, logged.seq, logged.event)
    })
}

/// A number that somebody saw never stands for anything else, also after a power loss.
pub(crate) fn no_number_is_used_twice(seen: Seq, logged: &Logged) -> Check {
    demand(logged.seq > seen, "no number is used twice", || {
        format!("number {} was seen before (up to {seen}); now it is {:?}", logged.seq, logged.event)
    })
}

/// A number can be seen only where a power loss leaves numbering above it.
pub(crate) fn numbers_seen_are_reserved(log: &Log, seq: Seq) -> Check {
    demand(seq <= log.reserved(), "numbers seen are reserved", || {
        format!("number {seq} is published, reserved is up to {}", log.reserved())
    })
}

/// What moves the reserve is on the disk before anything of it is seen.
pub(crate) fn a_reserve_is_durable(batch: &Batch) -> Check {
    demand(batch.durable || batch.reserve.is_none(), "a reserve is durable", || format!("{batch:?}"))
}

/// An answer that a restart cut off starts anew, and says so before anything else.
pub(crate) fn an_answer_that_starts_anew_says_so(run: &RunId, first: Option<&Logged>) -> Check {
    let says = first.is_some_and(|l| l.run.as_ref() == Some(run) && l.event == Event::Restarted);
    demand(says, "an answer that starts anew says so", || format!("{run} is resumed with {first:?}"))
}

/// What is published follows what was published, range after range.
pub(crate) fn published_ranges_are_contiguous(published: Seq, logged: &Logged) -> Check {
    demand(logged.first_seq == published.next(), "published ranges are contiguous", || {
        format!("{}..={} was published after {published}", logged.first_seq, logged.seq)
    })
}

/// Only the text of a step under way is seen before it is in the log.
pub(crate) fn only_text_is_shown_before_it_is_written(logged: &Logged) -> Check {
    demand(logged.event.streamed().is_some(), "only text is shown before it is written", || {
        format!("{logged:?}")
    })
}

/// What is shown before it is written comes after all that is.
pub(crate) fn what_is_shown_is_ahead_of_the_log(head: Seq, logged: &Logged) -> Check {
    demand(logged.first_seq > head, "what is shown is ahead of the log", || {
        format!("{logged:?} is shown after {head}")
    })
}

/// What waits on the page is bounded.
pub(crate) fn the_page_is_bounded(session: &Session) -> Check {
    let bytes: usize = session.page().iter().rev().skip(1).map(|logged| logged.event.bytes()).sum();
    demand(bytes < PAGE_BYTES, "the page is bounded", || {
        format!("{} pieces, {bytes} bytes", session.page().len())
    })
}

/// Only what streams, and was not yet on the disk, goes with the power.
pub(crate) fn only_what_streams_is_lost_with_the_power(lost: &[Logged], seen: Seq) -> Check {
    let other = lost.iter().find(|l| l.seq <= seen && l.event.streamed().is_none());
    demand(other.is_none(), "only what streams is lost with the power", || {
        format!("{other:?} was seen and is lost")
    })
}

/// The log takes what a session that knows it writes.
pub(crate) fn the_log_takes_what_the_session_writes(refused: Option<&str>) -> Check {
    demand(refused.is_none(), "the log takes what the session writes", || refused.unwrap_or_default().into())
}

/// A run's events come in an order that makes sense; the model of the log says why they do not.
pub(crate) fn the_log_makes_sense(logged: &Logged, complaint: Option<&'static str>) -> Check {
    demand(complaint.is_none(), "the log makes sense", || {
        format!("{}: {logged:?}", complaint.unwrap_or_default())
    })
}

/// Prompts run in the order in which they came, but for those that were aborted in the queue.
pub(crate) fn prompts_run_in_their_order(due: Option<&RunId>, started: &RunId) -> Check {
    demand(due == Some(started), "prompts run in their order", || format!("{started} began, {due:?} was due"))
}

/// A session read back goes on with the run that the log has as begun and not ended.
pub(crate) fn what_is_under_way_is_read_back(due: Option<&RunId>, session: &Session) -> Check {
    let found = session.running();
    demand(due == found, "what is under way is read back", || format!("{found:?}; the log says {due:?}"))
}

/// What waits is what was accepted.
pub(crate) fn the_queue_holds_what_was_accepted(session: &Session, waiting: usize) -> Check {
    demand(session.queued() == waiting, "the queue holds what was accepted", || {
        format!("{} wait, {waiting} were accepted and are not over", session.queued())
    })
}

/// Where nothing is under way the next prompt begins, but for a session that is stopping.
pub(crate) fn the_next_prompt_begins(session: &Session, draining: bool) -> Check {
    demand(draining || session.running().is_some() || session.queued() == 0, "the next prompt begins", || {
        format!("{} prompts wait and nothing is under way", session.queued())
    })
}

/// An answer that came for a run or a step that is over changes nothing; nor does a tool's second
/// result.
pub(crate) fn what_comes_too_late_changes_nothing(before: Seq, session: &Session, late: &Late) -> Check {
    demand(session.head() == before, "what comes too late changes nothing", || {
        format!("{late:?} gave the numbers {} to {}", before.next(), session.head())
    })
}

/// A prompt that was acknowledged is on the disk, under the number that the client was told.
pub(crate) fn acknowledged_means_durable(log: &Log, run: &RunId, seq: Seq) -> Check {
    let found = log.durable().iter().find(|l| l.seq == seq);
    let holds =
        found.is_some_and(|l| l.run.as_ref() == Some(run) && matches!(l.event, Event::Prompted { .. }));
    demand(holds, "acknowledged means durable", || {
        format!("{run} was acknowledged under number {seq}; there the disk has {found:?}")
    })
}

/// A prompt that was acknowledged is in the log for ever.
pub(crate) fn no_acknowledged_prompt_is_lost(book: &Book, run: &RunId) -> Check {
    demand(book.run(run).is_some(), "no acknowledged prompt is lost", || {
        format!("{run} was acknowledged and is not in the log")
    })
}

/// A run that was said to be aborted is over for ever.
pub(crate) fn an_acknowledged_abort_holds(book: &Book, run: &RunId) -> Check {
    let stage = book.run(run).map(|run| &run.stage);
    demand(matches!(stage, Some(Stage::Ended)), "an acknowledged abort holds", || {
        format!("{run} was said to be aborted; in the log it is {stage:?}")
    })
}

/// One key is one run.
pub(crate) fn the_same_key_is_the_same_run(key: &str, known: &RunId, given: &RunId) -> Check {
    demand(known == given, "the same key is the same run", || format!("{key}: {known}, then {given}"))
}

/// A refusal is typed, says that it passes, and has a reason.
pub(crate) fn a_refusal_is_typed_and_has_a_reason(error: &Error, full: bool, draining: bool) -> Check {
    let typed = error.code == ErrorCode::Unavailable && error.is_retryable();
    demand(typed && (full || draining), "a refusal is typed and has a reason", || {
        format!("{error:?}, the queue full: {full}, draining: {draining}")
    })
}

/// The queue has a bound, and a session that stops takes nothing.
pub(crate) fn the_queue_is_bounded(waiting: usize, limit: usize, draining: bool) -> Check {
    demand(waiting <= limit && !draining, "the queue is bounded", || {
        format!("a prompt was accepted: {waiting} of {limit} wait now, draining: {draining}")
    })
}

/// Abort ends what is under way or waits, and nothing else.
pub(crate) fn abort_is_heard(
    asked: Option<&RunId>,
    due: Option<&RunId>,
    given: Option<&RunId>,
    now: Option<&RunId>,
) -> Check {
    demand(due == given && (given.is_none() || given != now), "abort is heard", || {
        format!("abort of {asked:?}: {due:?} was to end, {given:?} did, {now:?} is under way")
    })
}

/// A tool is called only when the disk has the intent, and neither a result nor the run's end.
pub(crate) fn a_call_follows_its_intent(log: &Log, run: &RunId, step: usize, call: &CallId) -> Check {
    let known = log.book().run(run);
    let durable =
        log.durable()
            .iter()
            .filter(|l| l.run.as_ref() == Some(run))
            .scan(0, |steps, l| {
                *steps += usize::from(matches!(l.event, Event::StepEnded { .. }));
                Some((*steps, l))
            })
            .any(|(steps, l)| {
                let asked = match &l.event {
                    Event::ToolCalled(called)
                    | Event::ApprovalAsked(ApprovalRequest { call: called, .. }) => called,
                    _ => return false,
                };
                steps == step && asked.id == *call
            });
    let open = known.is_some_and(|run| {
        matches!(run.stage, Stage::Acting) && run.steps.len() == step + 1 && run.is_open(call)
    });
    demand(durable && open, "a call follows its intent", || {
        format!("{run} calls {call} in step {step}; the intent durable: {durable}; in the log: {known:?}")
    })
}

/// A call that needs approval is made only when the disk has that, with the input that was approved.
pub(crate) fn a_gated_call_is_approved(log: &Log, run: &RunId, call: &ToolCall, gated: bool) -> Check {
    let of_run = || log.durable().iter().filter(|l| l.run.as_ref() == Some(run)).map(|l| &l.event);
    let asked = of_run().find_map(|event| match event {
        Event::ApprovalAsked(asked) if asked.call.id == call.id => Some(&asked.call),
        _ => None,
    });
    let decisions: Vec<_> = of_run()
        .filter_map(|event| match event {
            Event::ApprovalDecided(decided) if decided.call == call.id => Some(&decided.decision),
            _ => None,
        })
        .collect();
    let holds = match (asked, &decisions[..]) {
        (None, []) => !gated,
        (Some(asked), [Decision::Approved { input }]) => {
            gated && call.input == *input.as_ref().unwrap_or(&asked.input)
        }
        _ => false,
    };
    demand(holds, "a gated call is approved", || {
        format!("{run} makes {call:?}; gated: {gated}; the disk has {asked:?}, {decisions:?}")
    })
}

/// Who was told that his decision counts is in the log with it, and nobody else is.
pub(crate) fn the_first_decision_counts(log: &Log, run: &RunId, decided: &Decided) -> Check {
    let found: Vec<_> = log
        .durable()
        .iter()
        .filter(|l| l.run.as_ref() == Some(run))
        .filter_map(|l| match &l.event {
            Event::ApprovalDecided(found) if found.call == decided.call => Some(found),
            _ => None,
        })
        .collect();
    demand(matches!(&found[..], [found] if *found == decided), "the first decision counts", || {
        format!("{run}: somebody was told {decided:?}; the disk has {found:?}")
    })
}

/// A decision that does not count was not the first, is too late, or comes while the session stops.
pub(crate) fn a_decision_is_refused_for_a_reason(
    error: &Error,
    waits: Option<&ApprovalRequest>,
    now: Timestamp,
    draining: bool,
) -> Check {
    let holds = match error.code {
        ErrorCode::Unavailable => draining,
        ErrorCode::Conflict | ErrorCode::NotFound => waits.is_none_or(|asked| asked.deadline <= now),
        _ => false,
    };
    demand(holds, "a decision is refused for a reason", || {
        format!("{error:?} at {now:?}, draining: {draining}; in the session: {waits:?}")
    })
}

/// What waited for approval before the daemon came back waits on with the deadline it had, unless that
/// is over.
pub(crate) fn what_waits_waits_on(due: &[ApprovalRequest], session: &Session) -> Check {
    let found: Vec<_> = session.pending().into_iter().map(|pending| pending.asked).collect();
    demand(due == found, "what waits waits on", || format!("the log says {due:?}, the session {found:?}"))
}

/// Only what is offered is called, with an input that is one, and not too often in one answer.
pub(crate) fn a_call_is_allowed(call: &ToolCall, offered: &[PluginName], before: usize) -> Check {
    let holds = offered.contains(&call.name) && call.input.is_object() && before < CALLS_MAX;
    demand(holds, "a call is allowed", || format!("{call:?}, after {before} calls of the same answer"))
}

/// A tool that is not idempotent is called once; an idempotent one once by each incarnation.
pub(crate) fn a_call_is_made_once(
    before: Option<u32>,
    incarnation: u32,
    idempotent: bool,
    call: &CallId,
) -> Check {
    let holds = before.is_none_or(|before| idempotent && before < incarnation);
    demand(holds, "a call is made once", || {
        format!("{call} was called by incarnation {before:?}, now by {incarnation}; idempotent: {idempotent}")
    })
}

/// What the log has as finished is not asked for again, and nothing is asked for twice by one
/// incarnation.
pub(crate) fn a_finished_step_is_never_asked_again(
    known: Option<&Run>,
    again: bool,
    run: &RunId,
    step: usize,
) -> Check {
    let finished = known.is_some_and(|run| matches!(run.stage, Stage::Ended) || run.steps.len() > step);
    demand(!finished && !again, "a finished step is never asked again", || {
        format!("{run} asks for step {step}; asked before: {again}; in the log: {known:?}")
    })
}

/// Every call that the model sees has its result, in order, right behind it; the last thing it
/// sees waits for an answer.
pub(crate) fn the_model_sees_every_call_with_its_result(messages: &[ChatMessage]) -> Check {
    let holds = messages.iter().enumerate().all(|(at, message)| match message {
        ChatMessage::User { .. } => true,
        ChatMessage::Assistant { calls, .. } if calls.is_empty() => at + 1 < messages.len(),
        ChatMessage::Assistant { calls, .. } => match messages.get(at + 1) {
            Some(ChatMessage::ToolResults(results)) => {
                results.iter().map(|r| &r.call).eq(calls.iter().map(|c| &c.id))
            }
            _ => false,
        },
        ChatMessage::ToolResults(_) => {
            at > 0 && matches!(&messages[at - 1], ChatMessage::Assistant { calls, .. } if !calls.is_empty())
        }
    });
    demand(holds && !messages.is_empty(), "the model sees every call with its result", || {
        format!("{messages:?}")
    })
}

/// The model sees the log: the last turns with an answer and the last ones without, what an abort cut off
/// included and marked, what a restart made void not; then the prompt and what came of it.
pub(crate) fn the_model_sees_what_the_log_says(
    book: &Book,
    limits: &Limits,
    run: &RunId,
    messages: &[ChatMessage],
) -> Check {
    let newer = |of: &Run| {
        let is_alike = |run: &&Run| run.has_answer() == of.has_answer();
        book.past().filter(is_alike).filter(|run| run.began_at > of.began_at).count()
    };
    let most = |of: &Run| if of.has_answer() { limits.turns() } else { limits.episodic_turns };
    let began_at = book.run(run).map_or(Seq(0), |run| run.began_at);
    let past = book.past().filter(|of| newer(of) < most(of) && of.ended < began_at);
    let expected = past.chain(book.run(run)).flat_map(|run| {
        let steps = run.steps.iter().filter(|step| !step.text.is_empty() || step.calls > 0);
        let said = steps.map(|step| ("assistant", step.text.as_str(), step.calls));
        let is_vain = run.stage == Stage::Ended && !run.has_answer();
        let nothing = is_vain.then_some(("assistant", NOT_ANSWERED, 0));
        std::iter::once(("user", run.content.as_str(), 0)).chain(said).chain(nothing)
    });
    let seen = messages.iter().filter_map(|message| match message {
        ChatMessage::User { text, .. } => Some(("user", text.as_str(), 0)),
        ChatMessage::Assistant { text, calls, .. } => {
            Some(("assistant", text.strip_suffix(CUT_MARK).unwrap_or(text), calls.len()))
        }
        ChatMessage::ToolResults(_) => None,
    });
    demand(seen.clone().eq(expected.clone()), "the model sees what the log says", || {
        let (seen, expected): (Vec<_>, Vec<_>) = (seen.collect(), expected.collect());
        format!("it sees {seen:?}; the log says {expected:?}")
    })
}

/// What is left out is more than what stands for it.
pub(crate) fn a_compaction_makes_room(compaction: &Compaction, summary: &str) -> Check {
    let said = format!("{compaction:?}").len();
    let holds = compaction.left_out() > 0 && summary.len() < said;
    demand(holds, "a compaction makes room", || format!("{compaction:?}: {summary:?}"))
}

/// After one there is no need for another.
pub(crate) fn a_compaction_is_enough(holds: bool) -> Check {
    demand(holds, "a compaction is enough", String::new)
}

/// Within its run the model has back the thoughts that were sealed in each answer that asked for tools,
/// in order; those of turns that are over, and those a restart made void, are not shown to it.
pub(crate) fn the_model_has_its_thoughts_back(book: &Book, run: &RunId, messages: &[ChatMessage]) -> Check {
    let steps = book.run(run).map_or(&[][..], |run| &run.steps);
    let said = |message: &ChatMessage| matches!(message, ChatMessage::Assistant { .. });
    let count = steps.iter().filter(|step| !step.text.is_empty() || step.calls > 0).count();
    let past = messages.iter().filter(|message| said(message)).count().saturating_sub(count);
    let none = Vec::new();
    let expected = std::iter::repeat_n(&none, past).chain(
        steps.iter().filter(|step| !step.text.is_empty() || step.calls > 0).map(|step| &step.thoughts),
    );
    let seen = messages.iter().filter_map(|message| match message {
        ChatMessage::Assistant { thoughts, .. } => {
            Some(thoughts.iter().map(|thought| thought.text.clone()).collect::<Vec<_>>())
        }
        _ => None,
    });
    demand(seen.clone().eq(expected.clone().cloned()), "the model has its thoughts back", || {
        let (seen, expected): (Vec<_>, Vec<_>) = (seen.collect(), expected.collect());
        format!("it sees {seen:?}; the log says {expected:?}")
    })
}

/// The queue, the run and the past of a session.
pub(crate) fn state(session: &Session) -> String {
    let mut text = String::with_capacity(1024);
    write!(text, "{session:?}").expect("a string takes it");
    let from = text.find(", past: ").expect("a session has a past");
    let to = text.find(", draining: ").expect("a session may be draining");
    text.truncate(to);
    text.split_off(from)
}

/// The session in memory, the session read back and the fold of the whole log are one.
pub(crate) fn the_state_is_the_fold_of_the_log(live: &Session, folded: &Session, when: &str) -> Check {
    let (live, folded) = (state(live), state(folded));
    demand(live == folded, "the state is the fold of the log", || {
        format!("{when}:\n  one is  {live}\n  other is {folded}")
    })
}

/// What was seen is in the log; but for text that went with the power, whose numbers stand for
/// nothing else now.
pub(crate) fn what_was_seen_is_in_the_log(log: &Log, seen: &[(Seq, u64)], lost: &[Seq]) -> Check {
    let mut events = log.events().iter().peekable();
    for (seq, print) in seen {
        while events.next_if(|logged| logged.seq < *seq).is_some() {}
        let there = events.peek().filter(|logged| logged.seq == *seq);
        let holds = match there {
            Some(logged) => fingerprint(logged) == *print,
            None => lost.contains(seq),
        };
        demand(holds, "what was seen is in the log", || format!("number {seq}: the log has {there:?}"))?;
    }
    Ok(())
}

/// A client is told what it follows before anything of it.
pub(crate) fn an_answer_comes_before_its_events(view: Option<usize>, logged: &Logged) -> Check<usize> {
    view.ok_or_else(|| Broken {
        rule: "an answer comes before its events",
        why: format!("nobody was told that {logged:?} would come"),
    })
}

/// Who follows a session is not told the runs there that are told to it by themselves.
pub(crate) fn nothing_is_told_under_two_tickets(view: &View, views: &[View], logged: &Logged) -> Check {
    let Some(run) = logged.run.as_ref().filter(|_| view.run().is_none()) else { return Ok(()) };
    let elsewhere = views.iter().any(|other| !other.is_over && other.run() == Some(run));
    demand(!elsewhere && !view.left_out.contains(run), "nothing is told under two tickets", || {
        format!("{logged:?} was told to {view:?} too")
    })
}

/// The log is read for those who have room for what it says.
pub(crate) fn nothing_is_read_for_one_that_is_full(peer: Option<&Peer>) -> Check {
    let full = peer.is_some_and(|peer| peer.is_known_full.get() && !peer.lags.get());
    demand(!full, "nothing is read for one that is full", || format!("{peer:?}"))
}

/// What a client is told is what the log says; text may come in one piece.
pub(crate) fn what_is_told_is_the_log(log: &Log, logged: &Logged) -> Check {
    let covered = log.between(logged.first_seq, logged.seq);
    let holds = match (&covered[..], &logged.event) {
        ([one], _) => {
            // But for what only the model and its provider are shown.
            let mut event = one.event.clone();
            event.let_go();
            event == logged.event && one.seq == logged.seq && one.run == logged.run
        }
        (several, event) => event.streamed().is_some_and(|(of, text)| {
            let mut rest = Some(text);
            for logged_piece in several {
                rest = match logged_piece.event.streamed() {
                    Some((same, piece)) if same == of && logged_piece.run == logged.run => {
                        rest.and_then(|rest| rest.strip_prefix(piece))
                    }
                    _ => None,
                };
            }
            rest == Some("")
        }),
    };
    demand(holds, "what is told is the log", || format!("{logged:?} was told; the log has {covered:?}"))
}

/// A client is told everything after its number, once and in order: but for one who follows the
/// session, the runs that it asked for itself, and for one who follows a run, all others.
pub(crate) fn what_is_told_follows_what_was_told(
    log: &Log,
    view: &View,
    views: &[View],
    logged: &Logged,
) -> Check {
    let due = view.last.next();
    let whole = logged.event.streamed().is_none();
    let follows = logged.seq >= due && (logged.first_seq >= due || whole) && !view.is_over;
    let left_out =
        if logged.first_seq > due { log.between(due, Seq(logged.first_seq.0 - 1)) } else { Vec::new() };
    let may_be_left_out = |logged: &Logged| match (view.run(), &logged.run) {
        (Some(wanted), run) => run.as_ref() != Some(wanted),
        (None, Some(run)) => views.iter().any(|view| view.run() == Some(run)),
        (None, None) => false,
    };
    let wrong = left_out.iter().find(|logged| !may_be_left_out(logged));
    let wanted = view.run().is_none_or(|run| logged.run.as_ref() == Some(run));
    demand(follows && wanted && wrong.is_none(), "what is told follows what was told", || {
        format!("{logged:?} was told to {view:?}; left out was {wrong:?}")
    })
}

/// A client that comes back with the last number it saw is let in.
pub(crate) fn who_comes_back_is_let_in(session: &Session, after: Seq) -> Check {
    demand(after <= session.head(), "who comes back is let in", || {
        format!("a client saw number {after}; the session is at {}", session.head())
    })
}

/// Nothing is kept for a connection that is gone.
pub(crate) fn who_is_gone_is_forgotten(followers: usize, connected: usize) -> Check {
    demand(followers <= connected, "who is gone is forgotten", || {
        format!("{followers} connections are followed up, {connected} are there")
    })
}

/// Who stops a session ends the run under way and all that wait, in order.
pub(crate) fn stop_ends_all(due: &[RunId], ended: &[RunId], session: &Session) -> Check {
    demand(due == ended && session.is_idle(), "stop ends all", || {
        format!("{due:?} were to end, {ended:?} did; idle: {}", session.is_idle())
    })
}

/// Every prompt in the log ends in exactly one end (a second one makes no sense to the log).
pub(crate) fn every_prompt_ends(book: &Book) -> Check {
    let open = book.runs().iter().find(|run| !matches!(run.stage, Stage::Ended));
    demand(open.is_none(), "every prompt ends", || format!("{open:?} has not ended"))
}

/// With nothing failing any more, everything comes to its end in bounded time.
pub(crate) fn nothing_is_stuck(done: bool, after: usize, what: impl FnOnce() -> String) -> Check {
    demand(done, "nothing is stuck", || format!("after {after} quiet steps: {}", what()))
}

/// A run's end says what its steps have cost, and that it was completed only where it was.
pub(crate) fn an_end_sums_up(run: &Run, logged: &Logged) -> Check {
    let Event::Ended { outcome, usage } = &logged.event else { return Ok(()) };
    let holds = match outcome {
        Outcome::Completed | Outcome::Incomplete(_) => {
            usage.total() == run.tokens && matches!(run.stage, Stage::Done)
        }
        Outcome::Aborted(_) => usage.total() >= run.tokens,
        Outcome::Failed(error) => {
            usage.total() >= run.tokens
                && matches!(error.code, ErrorCode::Provider | ErrorCode::Interrupted)
                // The model said nothing at all, or it could not be heard.
                && (matches!(run.stage, Stage::Asking | Stage::Acting) || !run.has_answer())
        }
    };
    demand(holds, "an end sums up", || format!("{logged:?} ends {run:?}"))
}

/// A number for what an event says.
pub(crate) fn fingerprint(logged: &Logged) -> u64 {
    let (kind, text): (u8, &str) = match &logged.event {
        Event::Prompted { content, .. } => (1, content),
        Event::Started => (2, ""),
        Event::Text(text) => (3, text),
        Event::ToolCalled(call) => (4, call.id.as_str()),
        Event::ToolReturned(result) => (5, result.call.as_str()),
        Event::StepEnded { .. } => (6, ""),
        Event::Restarted => (7, ""),
        Event::Ended { .. } => (8, ""),
        Event::Cleared(_) => (9, ""),
        Event::Injected { content } => (10, content),
        Event::Configured(_) => (11, ""),
        Event::Deleted => (12, ""),
        Event::Thought(thought) => (13, thought),
        Event::Sealed(_) => (14, ""),
        Event::ApprovalAsked(asked) => (15, asked.call.id.as_str()),
        Event::ApprovalDecided(decided) => (16, decided.call.as_str()),
        Event::Noticed(notice) => (17, &notice.message),
        // Told without what it says.
        Event::Recalled { .. } => (18, ""),
        Event::Compacted(_) => (19, ""),
    };
    let run = logged.run.as_ref().map_or("", RunId::as_str);
    let start = (logged.first_seq.0 << 8) ^ u64::from(kind);
    text.bytes()
        .chain(run.bytes())
        .fold(start, |print, byte| (print ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(5))
}
