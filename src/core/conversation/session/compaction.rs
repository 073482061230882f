//! What is done before a run asks its model for the first time: room is made in a conversation that has outgrown
//! its context, and what is remembered is put beside the prompt. Both are events, so that later turns and later
//! incarnations of the session see the same.

use super::fold::PAST_RESULT_BYTES_MAX;
use super::run::exchange;
use super::{Past, Session};
use crate::conversation::compaction::{Compaction, Cost, Room, summary_bytes_max};
use crate::conversation::context::Showing;
use crate::conversation::event::{Compacted, Event};
use crate::conversation::turn::Work;
use crate::ids::{RunId, Seq};
use crate::prompt::attachment::Attachment;
use crate::provider::notice::{Notice, NoticeKind};
use crate::time::Timestamp;

impl Session {
    /// Whether a run has its model still to ask for the first time.
    pub fn is_unasked(&self, run: &RunId) -> bool {
        self.work().is_some_and(|(of, work)| of == run && work == Work::Ask { step: 0 })
    }

    /// The turns that have to be left out before the run under way is answered, beside this system prompt; none where
    /// all fit.
    pub fn compaction(&self, system: &str) -> Option<Compaction> {
        let (run, _) = self.work()?;
        if !self.is_unasked(run) {
            return None;
        }
        let context_tokens = self.limits.context_tokens;
        let seen = self.seen();
        let costs: Vec<Cost> = seen.iter().map(|past| past.cost(context_tokens)).collect();
        let turns = (self.limits.turns(), self.limits.episodic_turns);
        let beside = (system, self.window.summary.as_str());
        let room = Room::beside(context_tokens, beside, turns, PAST_RESULT_BYTES_MAX / 2);
        let left_out = room.left_out(&costs);
        let up_to = seen[..left_out].iter().map(|past| past.ended).max().unwrap_or_default();
        // Something that was said while one of these was under way may have ended before it.
        let turns = seen.iter().filter(|past| past.ended <= up_to);
        let turns = turns.map(|past| exchange(past.prompt.as_ref(), &past.turn)).collect();
        let named = self.to_be_named(up_to);
        if up_to <= self.window.from && named <= self.window.named {
            return None;
        }
        Some(Compaction {
            seq: self.window.seq,
            up_to,
            named,
            turns,
            before: self.window.summary.clone(),
            bytes_max: summary_bytes_max(context_tokens),
            context_tokens,
        })
    }

    /// Up to which turn attachments are to be named only: all but the newest, once they are more than the model is
    /// shown. Several at once, as with turns.
    fn to_be_named(&self, up_to: Seq) -> Seq {
        let is_shown = |past: &&Past| past.ended > self.window.named.max(up_to);
        let is_gone = |attachment: &Attachment| attachment.data().is_empty() && attachment.bytes() > 0;
        let is_let_go = |past: &Past| past.attachments().any(is_gone);
        let seen = self.seen();
        if !seen.iter().copied().filter(is_shown).any(is_let_go) {
            return Seq(0);
        }
        let whole = Showing::beside(self.limits.context_tokens);
        let (mut newest, mut half, mut any) = (whole, whole.halved(), false);
        let stays = |past: &&Past| {
            let mut fits = true;
            for attachment in past.attachments() {
                fits &= if any { half.shows(attachment) } else { newest.shows(attachment) };
            }
            if !any && past.attachments().next().is_some() {
                any = true;
                for attachment in past.attachments() {
                    half.shows(attachment);
                }
            }
            fits
        };
        let mut older = seen.iter().copied().rev().skip_while(stays);
        older.next().map_or(Seq(0), |past| past.ended)
    }

    /// Leaves turns out of what the model sees from now on, with a summary that stands for them. Nothing where the
    /// run is over or asked meanwhile, or the window moved.
    pub fn compacted(&mut self, now: Timestamp, run: &RunId, compaction: &Compaction, summary: String) {
        if !self.is_unasked(run) || compaction.seq != self.window.seq {
            return;
        }
        let Compaction { up_to, named, .. } = *compaction;
        self.emit(now, None, Event::Compacted(Compacted { up_to, named, summary }));
        let told = match compaction.left_out() {
            0 => "older attachments of the conversation are only named from here on".to_owned(),
            1 => "the conversation has outgrown its context: its oldest turn is summed up from here on"
                .to_owned(),
            turns => {
                format!(
                    "the conversation has outgrown its context: its oldest {turns} turns are summed up from here on"
                )
            }
        };
        self.emit_run(now, Event::Noticed(Notice::new(NoticeKind::Compacted, told)));
    }

    /// All that was said, in short: as the last answer to `asked` has it, or by rules.
    pub(super) fn carried(&self, asked: &str, is_answered: bool) -> String {
        let context_tokens = self.limits.context_tokens;
        let is_asked = |past: &&Past| past.prompt.as_ref().is_some_and(|prompt| prompt.content == asked);
        let answer = self.past.iter().rev().find(is_asked).filter(|_| is_answered);
        let answer = answer.map(|past| past.turn.text().0);
        let past = self.past.iter().filter(|past| past.is_shown() && !is_asked(past));
        let compaction = Compaction {
            seq: self.window.seq,
            up_to: self.head,
            named: Seq(0),
            turns: past.map(|past| exchange(past.prompt.as_ref(), &past.turn)).collect(),
            before: self.window.summary.clone(),
            bytes_max: summary_bytes_max(context_tokens),
            context_tokens,
        };
        compaction.summary(answer.as_deref())
    }

    /// Whether what is remembered may still be put beside the prompt under way.
    pub fn may_recall(&self, run: &RunId) -> bool {
        let noted = self.run.as_ref().is_some_and(|(prompt, _)| !prompt.notes.is_empty());
        self.is_unasked(run) && !noted
    }

    /// What the user says whose prompt is under way.
    pub fn prompt(&self) -> Option<&str> {
        self.run.as_ref().map(|(prompt, _)| prompt.content.as_str())
    }

    /// The notes that the model sees already: the summary, and what was remembered before.
    pub fn noted(&self) -> String {
        let seen = self.seen();
        let prompts = seen.iter().filter_map(|past| past.prompt.as_ref());
        let notes = prompts.map(|prompt| prompt.notes.as_str());
        std::iter::once(self.window.summary.as_str()).chain(notes).collect::<Vec<_>>().join("\n")
    }

    /// Puts notes beside the prompt under way, for this turn and the later ones that see it.
    pub fn recalled(&mut self, now: Timestamp, run: &RunId, notes: String) {
        if !notes.is_empty() && self.may_recall(run) {
            self.emit_run(now, Event::Recalled { notes });
        }
    }
}
