//! An answer as it is put on the screen, once, however often it is told.
//!
//! When the connection is lost, the prompt is sent again under its idempotency key and the daemon
//! tells its run from the start: what was shown is passed over. When the daemon was restarted
//! within the answer, the text of that step is void and comes anew: what says the same is passed
//! over as well, and what says something else is shown on a line of its own.

use clawmux_core::dialect::exoclaw::client::StreamEvent;

/// What was told of an answer, and what of it is to be shown.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Bytes of text and other events so far, as told the last time.
    told: Told,
    /// The most of both, however often it was told.
    most: Told,
    /// What of a retelling is still to be passed over.
    known: Told,
    /// The text of the present step.
    step: String,
    /// Text that was made void and that the new text has not repeated yet.
    void: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    text_bytes: usize,
    others: usize,
}

/// What is to be done for an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Show {
    /// Nothing: it was shown before.
    Nothing,
    /// More text.
    Text(String),
    /// Text in place of what was shown of this step.
    Instead(String),
    /// The event itself.
    Event(StreamEvent),
}

impl Answer {
    /// All of it will be told again.
    pub(super) fn is_told_again(&mut self) {
        self.known = self.most;
        self.told = Told::default();
    }

    /// Takes the next event.
    pub(super) fn tell(&mut self, event: StreamEvent) -> Show {
        match event {
            StreamEvent::Text(text) => self.text(&text),
            event => {
                self.told.others += 1;
                self.most.others = self.most.others.max(self.told.others);
                if self.known.others > 0 {
                    self.known.others -= 1;
                    return Show::Nothing;
                }
                match event {
                    StreamEvent::Restart => {
                        // A power cut may have taken the last of what was shown.
                        self.known.text_bytes = 0;
                        self.most.text_bytes = self.told.text_bytes;
                        self.void = std::mem::take(&mut self.step);
                    }
                    StreamEvent::ToolUse { .. } => self.step.clear(),
                    _ => {}
                }
                Show::Event(event)
            }
        }
    }

    fn text(&mut self, text: &str) -> Show {
        self.told.text_bytes += text.len();
        self.most.text_bytes = self.most.text_bytes.max(self.told.text_bytes);
        let known = self.known.text_bytes.min(text.len());
        self.known.text_bytes -= known;
        // Cut within a character only where the daemon tells something else than before.
        let Some(new) = text.get(known..).filter(|new| !new.is_empty()) else { return Show::Nothing };
        self.step.push_str(new);
        if self.void.is_empty() {
            return Show::Text(new.to_owned());
        }
        let same = new.bytes().zip(self.void.bytes()).take_while(|(new, void)| new == void).count();
        let same = new.floor_char_boundary(same);
        if same == new.len() {
            self.void.drain(..same);
            return Show::Nothing;
        }
        if same == self.void.len() {
            self.void.clear();
            return Show::Text(new[same..].to_owned());
        }
        self.void.clear();
        Show::Instead(self.step.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(answer: &mut Answer, events: &[&str]) -> String {
        let mut shown = String::new();
        for event in events {
            let event = match *event {
                "RESTART" => StreamEvent::Restart,
                "TOOL" => {
                    StreamEvent::ToolUse { name: "echo".into(), input: serde_json::json!({}), approval: None }
                }
                text => StreamEvent::Text(text.into()),
            };
            match answer.tell(event) {
                Show::Nothing => {}
                Show::Text(text) => shown.push_str(&text),
                Show::Instead(text) => shown.push_str(&format!("<{text}>")),
                Show::Event(StreamEvent::Restart) => shown.push('!'),
                Show::Event(_) => shown.push('*'),
            }
        }
        shown
    }

    #[test]
    fn what_is_told_again_is_shown_once() {
        let mut answer = Answer::default();
        assert_eq!(shown(&mut answer, &["a", "b", "TOOL", "c"]), "ab*c");
        answer.is_told_again();
        assert_eq!(shown(&mut answer, &["ab", "TOOL", "cd", "e"]), "de");
        answer.is_told_again();
        assert_eq!(shown(&mut answer, &["ab"]), "", "and lost again before it was through");
        answer.is_told_again();
        assert_eq!(shown(&mut answer, &["ab", "TOOL", "cdef"]), "f");
    }

    #[test]
    fn a_step_that_starts_anew_and_says_the_same_is_shown_once() {
        let mut answer = Answer::default();
        assert_eq!(shown(&mut answer, &["one", "TOOL", "half an"]), "one*half an");
        answer.is_told_again();
        let again = ["one", "TOOL", "half an", "RESTART", "half", " an answ", "er"];
        assert_eq!(shown(&mut answer, &again), "! answer");
    }

    #[test]
    fn a_step_that_says_something_else_is_shown_anew() {
        let mut answer = Answer::default();
        assert_eq!(shown(&mut answer, &["half"]), "half");
        answer.is_told_again();
        assert_eq!(shown(&mut answer, &["half", "RESTART", "ha", "ppy", " day"]), "!<happy> day");
    }

    #[test]
    fn text_that_a_power_cut_took_is_not_waited_for() {
        let mut answer = Answer::default();
        shown(&mut answer, &["said and lost"]);
        answer.is_told_again();
        assert_eq!(shown(&mut answer, &["said", "RESTART", "other"]), "!<other>");
    }
}
