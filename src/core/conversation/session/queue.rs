//! The prompts that wait, and whose turn it is.

use super::{Prompt, QUEUE_BYTES_MAX, Session, Submission, Submitted, prompt_bytes};
use crate::conversation::event::{Event, Outcome};
use crate::error::limit::Limit;
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{LaneName, RunId, Seq};
use crate::prompt::attachment::{self, Attachment};
use crate::prompt::run_options::RunOptions;
use crate::provider::usage::Usage;
use crate::time::Timestamp;

impl Session {
    /// Takes a prompt into the queue; its turn begins at once where nothing is under way.
    ///
    /// # Errors
    /// `Conflict` where it was closed, `Unavailable` where the queue is full or the daemon is stopping,
    /// `TooLarge` where it brings along too much.
    pub fn submit(&mut self, now: Timestamp, submission: Submission) -> Result<Submitted, Error> {
        if let Some(known) = self.find(&submission) {
            let submitted = Submitted { run: known.run.clone(), seq: known.seq, repeated: true };
            self.adopt(&submitted.run, &submission.run_options);
            return Ok(submitted);
        }
        attachment::check(&submission.attachments)?;
        if self.settings.closed.is_some() {
            return Err(ErrorCode::Conflict.error(format!(
                "session {} was stopped and takes no more prompts: reset it, or use another",
                self.key
            )));
        }
        if self.draining {
            return Err(ErrorCode::Unavailable.error("the daemon is stopping: try again once it runs again"));
        }
        if self.queue.len() >= self.limits.queue {
            let limit = self.limits.queue;
            return Err(ErrorCode::Unavailable
                .error(format!("the session's queue is full ({limit} prompts wait): try again later"))
                .with(Detail::Limit { name: Limit::Queue, limit: limit as u64 }));
        }
        let waiting: usize = self.queue.iter().map(Prompt::bytes).sum();
        let more = prompt_bytes(&submission.content, &submission.attachments);
        if waiting > 0 && waiting.saturating_add(more) > QUEUE_BYTES_MAX {
            return Err(ErrorCode::Unavailable.error(format!(
                "the session's queue is full ({waiting} bytes of prompts wait): try again later"
            )));
        }
        let Submission { run, content, owner, idempotency_key, attachments, run_options } = submission;
        let prompted = Event::Prompted { content, owner, idempotency_key, attachments, run_options };
        let seq = self.emit(now, Some(run.clone()), prompted);
        self.start_next(now);
        Ok(Submitted { run, seq, repeated: false })
    }

    /// A prompt that was accepted by a clawmux which did not know where answers go is told of it when it is submitted
    /// again.
    fn adopt(&mut self, run: &RunId, options: &RunOptions) {
        let under_way = self.run.iter_mut().map(|(prompt, _)| prompt);
        let known = under_way.chain(&mut self.queue).find(|prompt| prompt.run == *run);
        if let Some(prompt) = known.filter(|prompt| prompt.run_options.answer_to.is_none()) {
            prompt.run_options.answer_to.clone_from(&options.answer_to);
        }
    }

    /// Whether this is a prompt that was submitted before, as far as that is in memory.
    pub fn has(&self, submission: &Submission) -> bool {
        self.find(submission).is_some()
    }

    /// The run a submission's idempotency key names, as far as it is in memory.
    fn find(&self, submission: &Submission) -> Option<&Prompt> {
        let key = submission.idempotency_key.as_ref()?;
        let past = self.past.iter().filter_map(|past| past.prompt.as_ref());
        self.open()
            .chain(past)
            .find(|prompt| prompt.idempotency_key.as_ref() == Some(key) && prompt.owner == submission.owner)
    }

    /// The runs that wait, in order, with the idempotency keys they were asked with.
    pub fn waiting(&self) -> impl Iterator<Item = (RunId, Option<String>)> {
        self.queue.iter().map(|prompt| (prompt.run.clone(), prompt.idempotency_key.clone()))
    }

    /// How many prompts wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many bytes of this prompt, which waits, are in memory; none where it does not wait.
    pub fn held_bytes(&self, run: &RunId) -> Option<usize> {
        let prompt = self.queue.iter().find(|prompt| prompt.run == *run)?;
        Some(prompt_bytes(&prompt.content, &prompt.attachments))
    }

    /// Lets go of what a prompt says that waits; it is in the event log.
    pub fn set_aside(&mut self, run: &RunId) {
        let Some(prompt) = self.queue.iter_mut().find(|prompt| prompt.run == *run) else { return };
        let held = prompt_bytes(&prompt.content, &prompt.attachments);
        prompt.content = String::new();
        prompt.attachments.iter_mut().for_each(Attachment::let_go);
        prompt.aside += held - prompt_bytes("", &prompt.attachments);
    }

    /// The same of one that was read back without what it says, which has so many bytes.
    pub fn is_aside(&mut self, run: &RunId, bytes: usize) {
        if let Some(prompt) = self.queue.iter_mut().find(|prompt| prompt.run == *run) {
            prompt.aside = bytes.max(1);
        }
    }

    /// The prompt that was set aside and whose turn has come, and the number of its event: it begins
    /// once it is given back.
    pub fn wanted(&self) -> Option<(&RunId, Seq)> {
        let prompt = self.next_in_line().filter(|prompt| prompt.aside > 0)?;
        Some((&prompt.run, prompt.seq))
    }

    /// Gives back what a prompt says that was set aside, or ends it as failed where that can't be read.
    pub fn give_back(&mut self, now: Timestamp, run: &RunId, said: Result<(String, Vec<Attachment>), Error>) {
        let Some(prompt) = self.queue.iter_mut().find(|prompt| prompt.run == *run) else { return };
        match said {
            Ok((content, attachments)) => {
                prompt.content = content;
                prompt.attachments = attachments;
                prompt.aside = 0;
            }
            Err(error) => {
                let end = Event::Ended { outcome: Outcome::Failed(error), usage: Usage::default() };
                self.emit(now, Some(run.clone()), end);
            }
        }
        self.start_next(now);
    }

    /// Those that are in a lane, in order: the run, its lane, and when it was accepted.
    pub fn in_lanes(&self) -> impl Iterator<Item = (&RunId, &LaneName, Timestamp)> {
        self.open().filter_map(|prompt| Some((&prompt.run, prompt.run_options.lane.as_ref()?, prompt.at)))
    }

    /// How many runs of no lane are under way or wait before this one.
    pub fn ahead(&self, run: &RunId) -> usize {
        let before = self.open().take_while(|prompt| prompt.run != *run);
        before.filter(|prompt| prompt.run_options.lane.is_none()).count()
    }

    /// The lane of the run under way.
    pub fn lane(&self) -> Option<&LaneName> {
        self.run.as_ref().and_then(|(prompt, _)| prompt.run_options.lane.as_ref())
    }

    /// The turn of this run has come in its lane: it begins as soon as it does in the session, or goes
    /// on where a restart cut it off.
    pub fn admit(&mut self, now: Timestamp, run: &RunId) {
        if self.is_open(run) && !self.admitted.contains(run) {
            self.admitted.push(run.clone());
            self.start_next(now);
        }
    }

    /// Whether nothing else is to be waited for.
    pub(super) fn is_admitted(&self, prompt: &Prompt) -> bool {
        prompt.run_options.lane.is_none() || self.admitted.contains(&prompt.run)
    }

    /// Whether this run is under way or waits.
    pub fn is_open(&self, run: &RunId) -> bool {
        self.open().any(|prompt| prompt.run == *run)
    }

    /// Those that are under way or wait, in order.
    pub(super) fn open(&self) -> impl Iterator<Item = &Prompt> {
        self.run.iter().map(|(prompt, _)| prompt).chain(&self.queue)
    }

    pub(super) fn start_next(&mut self, now: Timestamp) {
        if let Some(prompt) = self.next_in_line().filter(|prompt| prompt.aside == 0) {
            let run = prompt.run.clone();
            self.emit(now, Some(run), Event::Started);
        }
    }

    /// The prompt whose turn has come.
    fn next_in_line(&self) -> Option<&Prompt> {
        let is_free = self.run.is_none() && !self.draining;
        self.queue.front().filter(|prompt| is_free && self.is_admitted(prompt))
    }
}
