//! The text of a run's answer as people read it: that of all its steps, without what a restart made
//! void.

use crate::conversation::event::Event;
use crate::conversation::transcript::STEP_JOINT;

/// An answer while the model writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    text: String,
    step_at: usize,
}

impl Answer {
    /// Takes in the next event of the run.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Text(piece) => self.push(piece),
            Event::StepEnded { .. } => self.step_at = self.text.len(),
            Event::Restarted => self.text.truncate(self.step_at),
            _ => {}
        }
    }

    /// Takes in the next piece of text.
    pub fn push(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        if self.step_at > 0 && self.text.len() == self.step_at {
            self.text.push_str(STEP_JOINT);
        }
        self.text.push_str(piece);
    }

    /// All of it so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where in it the step under way begins.
    pub fn step_at(&self) -> usize {
        self.step_at
    }

    /// All of it so far.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::usage::Usage;

    #[test]
    fn steps_are_joined_and_what_a_restart_made_void_is_not_there() {
        let step = || Event::StepEnded { usage: Usage::default() };
        let text = |piece: &str| Event::Text(piece.into());
        let mut answer = Answer::default();
        for (event, expected) in [
            (step(), ""),
            (text("He"), "He"),
            (text("llo"), "Hello"),
            (step(), "Hello"),
            (text("vo"), "Hello\n\nvo"),
            (text("id"), "Hello\n\nvoid"),
            (Event::Restarted, "Hello"),
            (text("again"), "Hello\n\nagain"),
            (step(), "Hello\n\nagain"),
            (step(), "Hello\n\nagain"),
            (text("."), "Hello\n\nagain\n\n."),
        ] {
            answer.apply(&event);
            assert_eq!(answer.text(), expected, "{event:?}");
        }
        assert_eq!(answer.step_at(), "Hello\n\nagain".len());
    }
}
