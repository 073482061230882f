//! A chat on a terminal that can be drawn on: the console shows it.

use super::console::Console;
use super::face::{Call, Decision, End, Face, Outcome};

impl Face for Console {
    fn banner(&mut self, text: &str) {
        Console::banner(self, text);
    }

    fn prompted(&mut self, text: &str, by: Option<&str>) {
        Console::prompted(self, text, by);
    }

    fn answer(&mut self, piece: &str) {
        Console::answer(self, piece);
    }

    fn thought(&mut self, piece: &str) {
        Console::thought(self, piece);
    }

    fn void_step(&mut self) {
        Console::void_step(self);
    }

    fn tool_call(&mut self, call: &Call) {
        Console::tool_call(self, &call.name, &call.input);
    }

    fn tool_result(&mut self, content: &str, is_error: bool) {
        Console::tool_result(self, content, is_error);
    }

    fn decided(&mut self, decision: &Decision) {
        Console::note(self, &decision.words());
    }

    fn end_answer(&mut self, end: &End) {
        let summary = end.summary();
        match &end.outcome {
            Outcome::Completed => Console::end_answer(self, summary.as_deref()),
            Outcome::Aborted => {
                let summary = summary.map_or_else(String::new, |summary| format!(", {summary}"));
                Console::end_answer(self, Some(&format!("aborted{summary}")));
            }
            Outcome::Failed(why) => {
                Console::error(self, why);
                Console::end_answer(self, summary.as_deref());
            }
        }
    }

    fn own_turn(&mut self) {
        Console::own_turn(self);
    }

    fn note(&mut self, text: &str) {
        Console::note(self, text);
    }

    fn error(&mut self, text: &str) {
        Console::error(self, text);
    }

    fn status(&mut self, text: Option<String>) {
        Console::status(self, text);
    }

    fn ask(&mut self, question: Option<&str>) {
        // With text in it the line is a prompt.
        let question = question.map(|question| format!("{question} (while the line is empty)"));
        Console::ask(self, question.as_deref());
    }

    fn edit(&mut self, text: &str) {
        Console::edit(self, text);
    }

    fn close(self: Box<Self>) {
        Console::close(*self);
    }
}
