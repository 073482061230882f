//! How much of the past the model sees word for word, and what stands for the rest.
//!
//! It moves by events of the log alone, and several turns at once: so a session that is read from the log sees
//! what it saw before, and one request begins with what the one before it said, as providers' caches want it.

use crate::conversation::event::{Event, Forgotten};
use crate::ids::Seq;

/// What of a conversation is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The number of the event that moved it last; 0 = none did.
    pub seq: Seq,
    /// Turns that ended up to this number are not seen.
    pub from: Seq,
    /// Of turns that ended up to this number, what was brought along is named and not shown.
    pub named: Seq,
    /// What was said in the turns that are not seen, in short; may be empty.
    pub summary: String,
}

impl Window {
    /// Takes in an event of the session with its number. Whether that moved it.
    pub fn apply(&mut self, seq: Seq, event: &Event) -> bool {
        match event {
            Event::Cleared(forgotten) => {
                let up_to = match forgotten {
                    Forgotten::Past | Forgotten::Conversation => seq,
                    Forgotten::UpTo(up_to) => seq.min(*up_to),
                };
                // A summary may tell what is to be forgotten.
                self.move_to(seq, up_to, Seq(0), String::new());
            }
            Event::Compacted(compacted) => {
                self.move_to(seq, compacted.up_to, compacted.named, compacted.summary.clone());
            }
            _ => return false,
        }
        true
    }

    fn move_to(&mut self, seq: Seq, from: Seq, named: Seq, summary: String) {
        let (from, named) = (self.from.max(from), self.named.max(named));
        *self = Self { seq, from, named, summary };
    }
}
