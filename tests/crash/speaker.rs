//! Those who ask: each speaks on one connection for several sessions, a few prompts ahead in each,
//! and asks again with the same keys whenever its connection was lost.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value;

use crate::line::{Line, Stop};
use crate::lives::{Lives, Seen};
use crate::record::{Abort, Record};
use crate::story::Story;

/// What all clients of a test share.
pub struct Company {
    pub lives: Lives,
    /// Whether the daemon ends cut-off runs instead of going on with them.
    pub may_interrupt: bool,
    /// Nothing new is asked any more.
    pub is_closing: Cell<bool>,
    /// Requests that named a prompt which was acknowledged before.
    pub repeats: Cell<u64>,
    /// What followers got, in bytes.
    pub bytes: Cell<u64>,
}

/// A request in flight.
enum Asked {
    Prompt { session: usize, prompt: usize, story: Story, accepted: bool },
    Abort { session: usize, prompt: usize },
}

/// Speaks for these sessions until all that was asked has its end.
pub async fn speak(company: Rc<Company>, sessions: Vec<Rc<RefCell<Record>>>) {
    let speak = async |line| {
        let speaker = Speaker { company: company.clone(), sessions: sessions.clone(), asked: HashMap::new() };
        speaker.run(line).await
    };
    company.lives.in_each("a speaker", speak).await;
}

struct Speaker {
    company: Rc<Company>,
    sessions: Vec<Rc<RefCell<Record>>>,
    asked: HashMap<String, Asked>,
}

impl Speaker {
    async fn run(mut self, line: Result<Line, Stop>) -> Result<(), Stop> {
        let mut line = line?;
        for session in 0..self.sessions.len() {
            self.resume(session, &mut line).await?;
        }
        loop {
            for session in 0..self.sessions.len() {
                self.go_on(session, &mut line).await?;
            }
            if self.company.is_closing.get() && self.asked.is_empty() {
                return Ok(());
            }
            let frame = line.receive().await?;
            if let Some((session, prompt)) = self.hear(&frame)? {
                self.acknowledged(session, prompt, &mut line).await?;
            }
        }
    }

    /// Asks again for all that has no end yet, in its order, and now and then for what has one.
    async fn resume(&mut self, session: usize, line: &mut Line) -> Result<(), Stop> {
        let again: Vec<usize> = {
            let mut record = self.sessions[session].borrow_mut();
            let over = record.prompts.len() as u64;
            let old =
                (over > 0 && record.random.percent(15)).then(|| record.random.range(0, over - 1) as usize);
            let open: Vec<usize> = record.open().collect();
            old.into_iter().filter(|old| !open.contains(old)).chain(open.clone()).collect()
        };
        for prompt in again {
            self.send(session, prompt, line).await?;
        }
        Ok(())
    }

    /// Asks for more, where there is room.
    async fn go_on(&mut self, session: usize, line: &mut Line) -> Result<(), Stop> {
        while !self.company.is_closing.get() {
            let prompt = {
                let mut record = self.sessions[session].borrow_mut();
                let open = record.open().count();
                let depth = [1, 1, 2, 3][record.prompts.len() / 4 % 4];
                if open >= depth {
                    break;
                }
                record.think()
            };
            self.send(session, prompt, line).await?;
        }
        Ok(())
    }

    async fn send(&mut self, session: usize, prompt: usize, line: &mut Line) -> Result<(), Stop> {
        let params = {
            let record = self.sessions[session].borrow();
            if record.prompts[prompt].accepted.is_some() {
                self.company.repeats.set(self.company.repeats.get() + 1);
            }
            record.send(prompt)
        };
        let id = line.ask("chat.send", params).await?;
        self.asked.insert(id, Asked::Prompt { session, prompt, story: Story::default(), accepted: false });
        Ok(())
    }

    /// Takes a frame in; gives the prompt that it acknowledges.
    fn hear(&mut self, frame: &Value) -> Result<Option<(usize, usize)>, Stop> {
        let id = frame["id"].as_str().unwrap_or_default();
        let Some(asked) = self.asked.get_mut(id) else {
            return Err(Stop::Wrong(format!("a frame for nobody: {frame}")));
        };
        if let Some(error) = frame["error"].as_str() {
            return Err(Stop::Refused(format!("refused: {error}")));
        }
        let (session, prompt, story, accepted) = match asked {
            Asked::Abort { session, prompt } => {
                let heard = frame["result"]["aborted"].as_bool().ok_or(format!("chat.abort: {frame}"))?;
                let abort = if heard { Abort::Heard } else { Abort::TooLate };
                self.sessions[*session].borrow_mut().prompts[*prompt].abort = abort;
                self.asked.remove(id);
                self.company.lives.saw(Seen::Abort);
                return Ok(None);
            }
            Asked::Prompt { session, prompt, story, accepted } => (*session, *prompt, story, accepted),
        };
        let mut record = self.sessions[session].borrow_mut();
        record.note(&format!("asked: {frame}"));
        let wrong = |why: String, record: &Record| {
            let name = &record.prompts[prompt].name;
            Stop::Wrong(format!("{name}: {why}\nframes of its session:\n{}", record.tail()))
        };
        let (event, data) = (frame["event"].as_str().unwrap_or_default(), &frame["data"]);
        if !*accepted {
            let ("accepted", Some(run), Some(seq)) = (event, data["run"].as_str(), data["seq"].as_u64())
            else {
                return Err(wrong("was not accepted".into(), &record));
            };
            *accepted = true;
            let is_new = record.accept(prompt, run, seq).map_err(|why| wrong(why, &record))?;
            drop(record);
            if is_new {
                self.company.lives.saw(Seen::Acknowledged);
            }
            return Ok(Some((session, prompt)));
        }
        let script = record.prompts[prompt].script.clone();
        story.take(&script, event, data).map_err(|why| wrong(why, &record))?;
        if story.done {
            let story = std::mem::take(story);
            let may_interrupt = self.company.may_interrupt;
            record.check_end(prompt, &story, may_interrupt).map_err(|why| wrong(why, &record))?;
            record.tell(prompt, story).map_err(|why| wrong(why, &record))?;
            self.asked.remove(id);
        }
        Ok(None)
    }

    /// Some clients ask for an acknowledged prompt once more, and some for its end.
    async fn acknowledged(&mut self, session: usize, prompt: usize, line: &mut Line) -> Result<(), Stop> {
        let (again, abort) = {
            let mut record = self.sessions[session].borrow_mut();
            let session = record.session();
            let prompt = &mut record.prompts[prompt];
            let again = std::mem::take(&mut prompt.is_asked_twice);
            let mut abort = None;
            if prompt.is_unwanted && prompt.abort == Abort::No {
                prompt.abort = Abort::Asked;
                let mut params = session;
                params["run"] = prompt.accepted.as_ref().map(|(run, _)| run.as_str()).into();
                abort = Some(params);
            }
            (again, abort)
        };
        if again {
            self.send(session, prompt, line).await?;
        }
        if let Some(params) = abort {
            let id = line.ask("chat.abort", params).await?;
            self.asked.insert(id, Asked::Abort { session, prompt });
        }
        Ok(())
    }
}
