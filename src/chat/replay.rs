//! Output that can't be taken back, as in a pipe.
//!
//! When an answer was cut off, as by a restart of the daemon, the text of that step is void and is sent again: text
//! that is the same is skipped; if it differs, the step is written again on a line of its own.

/// The text of the present step.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// What was said in it.
    step: String,
    /// Text from before the restart that was not repeated yet.
    void: String,
}

/// What is to be written for a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Nothing: it is there already.
    Nothing,
    /// This.
    Text(String),
    /// This, in place of what is there of the step.
    Instead(String),
}

impl Replay {
    /// A step begins.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// The text of the step is void.
    pub(super) fn void(&mut self) {
        let said = std::mem::take(&mut self.step);
        // Where the new text had not caught up when the daemon was restarted again, more is there than it said.
        if !said.is_empty() || self.void.is_empty() {
            self.void.insert_str(0, &said);
        }
    }

    /// A piece of text.
    pub(super) fn text(&mut self, text: &str) -> Write {
        self.step.push_str(text);
        if self.void.is_empty() {
            return if text.is_empty() { Write::Nothing } else { Write::Text(text.to_owned()) };
        }
        let same = text.bytes().zip(self.void.bytes()).take_while(|(new, void)| new == void).count();
        let same = text.floor_char_boundary(same);
        if same == text.len() {
            self.void.drain(..same);
            return Write::Nothing;
        }
        if same == self.void.len() {
            self.void.clear();
            return Write::Text(text[same..].to_owned());
        }
        self.void.clear();
        Write::Instead(self.step.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(events: &[&str]) -> String {
        let mut replay = Replay::default();
        let mut written = String::new();
        for event in events {
            match *event {
                "RESTART" => replay.void(),
                "STEP" => replay.begin(),
                text => match replay.text(text) {
                    Write::Nothing => {}
                    Write::Text(text) => written.push_str(&text),
                    Write::Instead(text) => written.push_str(&format!("<{text}>")),
                },
            }
        }
        written
    }

    #[test]
    fn a_step_that_says_the_same_again_is_written_once() {
        for events in [
            &["one ", "STEP", "half an", "RESTART", "half", " an answ", "er"][..],
            &["one ", "STEP", "half an", "RESTART", "half an answer"],
            &["one ", "STEP", "half an", "RESTART", "ha", "RESTART", "half an", " answer"],
            &["one ", "STEP", "half an", "RESTART", "RESTART", "half", " an answer"],
        ] {
            assert_eq!(written(events), "one half an answer", "{events:?}");
        }
    }

    #[test]
    fn a_step_that_says_something_else_is_written_anew() {
        assert_eq!(written(&["half", "RESTART", "ha", "ppy", " day"]), "half<happy> day");
        assert_eq!(written(&["é", "RESTART", "è"]), "é<è>");
    }
}
