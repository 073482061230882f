//! What is done to a session besides prompting it: it is set, forgets, is closed and begun anew.

use super::Session;
use crate::conversation::event::{Cause, Compacted, Event, Forgotten};
use crate::error::Error;
use crate::ids::{RunId, Seq};
use crate::prompt::settings::{Patch, Settings};
use crate::provider::usage::Usage;
use crate::time::Timestamp;

impl Session {
    /// Makes a session in which nothing happened yet.
    pub fn create(&mut self, now: Timestamp) {
        if self.is_new() {
            self.emit(now, None, Event::Configured(Box::default()));
        }
    }

    /// Changes what it is set to. What changes nothing leaves no trace, but in a session that begins
    /// with it.
    ///
    /// # Errors
    /// As [`Settings::patched`]'s.
    pub fn configure(&mut self, now: Timestamp, patch: &Patch) -> Result<(), Error> {
        let settings = self.settings.patched(patch)?;
        if settings != self.settings || self.is_new() {
            self.emit(now, None, Event::Configured(Box::new(settings)));
        }
        Ok(())
    }

    /// Whether it can be closed for this reason.
    ///
    /// # Errors
    /// As [`Settings::patched`]'s.
    pub fn check_reason(&self, reason: &str) -> Result<(), Error> {
        self.settings.patched(&closed(reason)).map(drop)
    }

    /// Ends the run under way and all that wait, and takes no more prompts until it is reset, for a
    /// reason that was checked. Gives those runs; one that was closed before keeps its reason.
    /// `partial` is what the answer under way has cost.
    pub fn close(&mut self, now: Timestamp, reason: &str, partial: Usage) -> Vec<RunId> {
        if self.settings.closed.is_some() {
            return Vec::new();
        }
        let ended = self.stop(now, Cause::Stopped, partial);
        let mut settings = self.settings.clone();
        settings.apply(&closed(reason));
        self.emit(now, None, Event::Configured(Box::new(settings)));
        ended
    }

    /// Forgets the past turns; what is under way or queued goes on.
    pub fn clear(&mut self, now: Timestamp) {
        self.emit(now, None, Event::Cleared(Forgotten::Past));
    }

    /// Forgets the past turns that ended up to this number.
    pub fn compact(&mut self, now: Timestamp, up_to: Seq) {
        self.emit(now, None, Event::Cleared(Forgotten::UpTo(up_to)));
    }

    /// Begins a new conversation; what is under way or waits goes on, in that one. What was said in this one is
    /// carried into it in short: as the answer to `asked` has it, where that is in the past and `is_answered` by a model
    /// that can sum up; else by rules.
    pub fn renew(&mut self, now: Timestamp, asked: &str, is_answered: bool) {
        let summary = self.carried(asked, is_answered);
        let up_to = self.emit(now, None, Event::Cleared(Forgotten::Conversation));
        if !summary.is_empty() {
            self.emit(now, None, Event::Compacted(Compacted { up_to, named: Seq(0), summary }));
        }
    }

    /// Ends whatever is under way or waits, and begins a new conversation with the same settings; one
    /// that was closed is open again.
    /// `partial` is what the answer under way has cost.
    pub fn reset(&mut self, now: Timestamp, partial: Usage) {
        self.stop(now, Cause::Asked, partial);
        if self.settings.closed.is_some() {
            let settings = Settings { closed: None, ..self.settings.clone() };
            self.emit(now, None, Event::Configured(Box::new(settings)));
        }
        self.emit(now, None, Event::Cleared(Forgotten::Conversation));
    }

    /// Takes something said in the model's name under this id, outside any prompt's run. Gives its
    /// number.
    pub fn inject(&mut self, now: Timestamp, id: RunId, content: String) -> Seq {
        self.emit(now, Some(id), Event::Injected { content })
    }
}

/// The change that closes a session.
fn closed(reason: &str) -> Patch {
    Patch { closed: Some(Some(reason.to_owned())), ..Patch::default() }
}
