//! A session as its log tells it: numbered, without a gap, from the beginning to the end.

use serde_json::Value;

use super::plan::{Script, content, named};
use super::story::Story;

/// What was told so far.
#[derive(Default)]
pub struct Telling {
    /// The last number that was told.
    pub last: u64,
    /// The runs, in the order of their prompts.
    pub runs: Vec<Run>,
    /// All of it, texts of one run that follow each other joined.
    pub events: Vec<Told>,
}

/// One run of it.
pub struct Run {
    pub id: String,
    /// The prompt's number.
    pub seq: u64,
    /// That of its prompt.
    pub name: String,
    script: Script,
    pub story: Story,
}

/// One event and the last number it covers.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub seq: u64,
    pub run: String,
    pub event: String,
    pub data: Value,
}

impl Telling {
    /// All of it but the text that a kill cut off: it was shown before it was kept, so that a client may know more
    /// of it than the log.
    pub fn lasting(&self) -> Vec<&Told> {
        let mut cut_off = vec![false; self.events.len()];
        for (at, cut) in self.events.iter().enumerate() {
            let interrupts = cut.event == "usage"
                && self.events[at..].iter().any(|told| {
                    let says = |data: &Value| data.as_str().is_some_and(|why| why.starts_with("interrupted"));
                    told.run == cut.run && told.event == "error" && says(&told.data)
                });
            if cut.event == "restart" || interrupts {
                let of_run =
                    self.events[..at].iter().enumerate().rev().filter(|(_, told)| told.run == cut.run);
                of_run.take_while(|(_, told)| told.event == "text").for_each(|(at, _)| cut_off[at] = true);
            }
        }
        self.events.iter().zip(cut_off).filter(|(_, cut_off)| !cut_off).map(|(told, _)| told).collect()
    }

    /// Takes in the next frame of a session, in which the prompt of the nth run may have this name; gives the run
    /// that it ends.
    ///
    /// # Errors
    /// Where it is not the next, or not what can happen next.
    pub fn take(
        &mut self,
        seed: u64,
        may_be: impl FnOnce(usize, &str) -> bool,
        frame: &Value,
    ) -> Result<Option<usize>, String> {
        let event = frame["event"].as_str().ok_or("no event")?;
        let run = frame["run"].as_str().ok_or("no run")?;
        let (seq, data) = (frame["seq"].as_u64().ok_or("no seq")?, &frame["data"]);
        let first = frame["first_seq"].as_u64().unwrap_or(seq);
        if first != self.last + 1 || seq < first {
            return Err(format!("covers {first} to {seq} after {}", self.last));
        }
        self.last = seq;
        match self.events.last_mut() {
            Some(Told { seq: last, run: same, event: before, data: Value::String(text) })
                if event == "text" && before == "text" && same == run =>
            {
                *last = seq;
                text.push_str(data.as_str().unwrap_or_default());
            }
            _ => self.events.push(Told { seq, run: run.into(), event: event.into(), data: data.clone() }),
        }
        if event == "prompt" {
            let name = named(data.as_str().unwrap_or_default());
            let is_known = self.runs.iter().any(|known| known.id == run);
            if *data != *content(name) || is_known || !may_be(self.runs.len(), name) {
                return Err(format!("{name} is not the prompt that comes next, or has the run of another"));
            }
            let script = Script::of(seed, name);
            let name = name.to_owned();
            self.runs.push(Run { id: run.into(), seq, name, script, story: Story::default() });
            return Ok(None);
        }
        let at = self.runs.iter().position(|known| known.id == run).ok_or("of a run without a prompt")?;
        let is_end = matches!(event, "usage" | "error" | "done");
        if !is_end && self.runs[..at].iter().any(|before| !before.story.done) {
            return Err("of a run whose turn has not come".into());
        }
        let Run { script, story, .. } = &mut self.runs[at];
        story.take(script, event, data)?;
        Ok(story.done.then_some(at))
    }
}
