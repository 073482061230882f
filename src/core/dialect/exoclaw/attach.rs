//! A session that is attached: which of its events are told, and with which numbers.
//!
//! Who asks for turns or for thoughts is told more than others: who sent each prompt and what it brought
//! along, what was decided about calls that waited, and thoughts where they are asked for.

use std::sync::Arc;

use super::wire::{self, Id};
use super::{Call, Exoclaw, Opens, Stream, Streaming, TURNS_MAX, Turn, answer, payload};
use crate::conversation::command::{Attach, AttachTurns};
use crate::conversation::event::{Event, Logged, Published};
use crate::conversation::reply::Attached;
use crate::dialect::json::invalid;
use crate::error::Error;
use crate::ids::{RunId, Seq, SessionKey, Ticket};
use crate::target::Target;

/// What a `session.attach` asks for besides what everybody is told who attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wants {
    /// Who prompted, what came along, what was decided; and in the answer the agent and the model.
    details: bool,
    /// What the model thinks.
    thoughts: bool,
    /// Only runs from their prompt on: it begins with a prompt, before which others may have begun.
    whole_runs: bool,
}

/// The request in neutral words.
///
/// # Errors
/// `InvalidRequest` where it says twice where to begin, or asks for too many turns.
pub(super) fn call(asked: &wire::SessionAttach, target: Target) -> Result<Call, Error> {
    let method = "session.attach";
    let wants = Wants {
        details: asked.turns.is_some() || asked.thoughts.is_some(),
        thoughts: asked.thoughts == Some(true),
        whole_runs: asked.turns.is_some(),
    };
    let follow =
        move |exoclaw: &mut Exoclaw, (ticket, id): (Ticket, Id), told: Attached, turn: &mut Turn<'_>| {
            let Attached { session, after, head, model, .. } = told;
            let agent = session.agent();
            let banner = wants.details.then_some((&*agent, model.as_ref()));
            turn.send(answer::attached(&id, session.seen_by(&exoclaw.who.owner), head, banner));
            let told = Streaming::Session(SessionStream::new(session, wants, after, head));
            exoclaw.streams.push(Stream { ticket, id, told });
        };
    let call = match (asked.turns, asked.after_seq) {
        (Some(_), Some(_)) => return Err(invalid(method, "give turns or after_seq, not both")),
        (Some(turns), None) => {
            let turns = usize::try_from(turns).ok().filter(|_| turns <= TURNS_MAX);
            let turns = turns.ok_or_else(|| invalid(method, &format!("turns must be 0 to {TURNS_MAX}")))?;
            Call::ask_on(AttachTurns { target, turns }, follow)
        }
        (None, after) => Call::ask_on(Attach { target, after: after.map(Seq) }, follow),
    };
    Ok(Call { opens: Opens::Session, ..call })
}

/// All that a `session.attach` follows.
#[derive(Debug)]
pub(super) struct SessionStream {
    pub(super) session: SessionKey,
    wants: Wants,
    /// The last number heard of.
    heard: Seq,
    /// The first number the next frame covers.
    from: Seq,
    /// The last number there was when it was attached: what is told up to it is the past.
    head: Seq,
    /// While the past is told of whole runs: those whose prompts were told and whose ends were not.
    begun: Option<Vec<RunId>>,
}

impl SessionStream {
    /// One that is told what comes after `after`.
    fn new(session: SessionKey, wants: Wants, after: Seq, head: Seq) -> Self {
        let begun = (wants.whole_runs && after < head).then(Vec::new);
        Self { session, wants, heard: after, from: after.next(), head, begun }
    }

    /// Says what happened in a session, with its numbers. A frame also covers the numbers before it
    /// that exoclaw has no word for, or that were told elsewhere; never those of a hole in the log.
    pub(super) fn tell(&mut self, id: &Id, first: Seq, event: &Arc<Published>, turn: &mut Turn<'_>) {
        if first > self.heard.next() {
            self.from = first;
        }
        self.heard = event.logged.seq;
        if !self.is_wanted(&event.logged.event) || !self.is_whole(&event.logged) {
            return;
        }
        let payload = payload(event);
        let details = if self.wants.details { wire::details(&event.logged.event) } else { String::new() };
        let frames = payload.lines().count() as u64;
        for (line, left) in payload.lines().zip((0..frames).rev()) {
            let seq = Seq(event.logged.seq.0.saturating_sub(left));
            // The beginning of an end that was cut off: the client has it.
            if seq >= self.from {
                turn.send(wire::numbered(id, line, &details, (self.from, seq), event));
                self.from = seq.next();
            }
        }
    }

    fn is_wanted(&self, event: &Event) -> bool {
        match event {
            Event::Thought(_) => self.wants.thoughts,
            Event::ApprovalDecided(_) => self.wants.details,
            _ => true,
        }
    }

    /// Whether an event is of a run whose prompt was told, where only those are to be told. All that had
    /// not ended when it was attached are told from their prompts on.
    fn is_whole(&mut self, logged: &Logged) -> bool {
        if logged.seq > self.head {
            self.begun = None;
        }
        let (Some(begun), Some(run)) = (&mut self.begun, &logged.run) else { return true };
        let at = begun.iter().position(|begun| begun == run);
        match &logged.event {
            Event::Prompted { .. } => {
                begun.push(run.clone());
                true
            }
            Event::Injected { .. } => true,
            Event::Ended { .. } => at.map(|at| begun.swap_remove(at)).is_some(),
            _ => at.is_some(),
        }
    }
}
