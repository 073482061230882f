//! What the clients of one session know: what they asked, what was promised, what they were told.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::plan::{Random, Script, content};
use crate::story::Story;
use crate::telling::Telling;

/// Frames kept for the message of a failed test.
const TAIL: usize = 40;

/// One session, as its clients know it.
pub struct Record {
    pub seed: u64,
    pub account: String,
    pub prompts: Vec<Prompt>,
    /// What its follower was told.
    pub followed: Telling,
    pub random: Random,
    tail: VecDeque<String>,
}

/// A prompt that was sent at least once.
pub struct Prompt {
    pub name: String,
    pub script: Script,
    /// What the daemon promised: its run, and its number.
    pub accepted: Option<(String, u64)>,
    pub abort: Abort,
    /// Its run, once its end was told to somebody who asked for it.
    pub told: Option<Story>,
    /// Whether its client asks for it twice, and whether it asks for its end.
    pub is_asked_twice: bool,
    pub is_unwanted: bool,
}

/// Whether somebody asked for a run's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    No,
    /// Asked for, not answered (yet): it may have been heard or not.
    Asked,
    Heard,
    /// There was nothing to abort any more.
    TooLate,
}

impl Record {
    /// Nothing yet.
    pub fn new(seed: u64, session: usize) -> Self {
        let account = format!("c{session}");
        Self {
            seed,
            random: Random::new(seed, &account),
            account,
            prompts: Vec::new(),
            followed: Telling::default(),
            tail: VecDeque::new(),
        }
    }

    /// The fields that name the session.
    pub fn session(&self) -> Value {
        json!({"channel": "websocket", "account": self.account})
    }

    /// Thinks of another prompt; gives its index.
    pub fn think(&mut self) -> usize {
        let name = format!("{}.p{}", self.account, self.prompts.len());
        let script = Script::of(self.seed, &name);
        let mut run_options = Random::new(self.seed, &format!("manner of {name}"));
        self.prompts.push(Prompt {
            name,
            script,
            accepted: None,
            abort: Abort::No,
            told: None,
            is_asked_twice: run_options.percent(8),
            is_unwanted: run_options.percent(6),
        });
        self.prompts.len() - 1
    }

    /// The request that sends a prompt, for the first time or again.
    pub fn send(&self, index: usize) -> Value {
        let mut params = self.session();
        let name = &self.prompts[index].name;
        params["content"] = json!(content(name));
        params["idempotency_key"] = json!(name);
        params
    }

    /// The prompts whose end was not told yet.
    pub fn open(&self) -> impl Iterator<Item = usize> + '_ {
        self.prompts.iter().enumerate().filter(|(_, prompt)| prompt.told.is_none()).map(|(index, _)| index)
    }

    /// The daemon acknowledges a prompt; says whether for the first time.
    ///
    /// # Errors
    /// Where that is another run than before, or it overtook the prompt before it.
    pub fn accept(&mut self, index: usize, run: &str, seq: u64) -> Result<bool, String> {
        let name = self.prompts[index].name.clone();
        match &self.prompts[index].accepted {
            Some((known, at)) if known != run || *at != seq => {
                return Err(format!("{name} was run {known} at {at} and is now {run} at {seq}"));
            }
            Some(_) => return Ok(false),
            None => {}
        }
        for (at, other) in self.prompts.iter().enumerate() {
            if let Some((other_run, other_seq)) = &other.accepted
                && (other_run == run || (at < index) != (*other_seq < seq))
            {
                return Err(format!(
                    "{name} is run {run} at {seq}, but {} {other_run} at {other_seq}",
                    other.name
                ));
            }
        }
        self.prompts[index].accepted = Some((run.to_owned(), seq));
        Ok(true)
    }

    /// Somebody who asked for a prompt was told its whole run.
    ///
    /// # Errors
    /// Where somebody else was told otherwise.
    pub fn tell(&mut self, index: usize, story: Story) -> Result<(), String> {
        let prompt = &mut self.prompts[index];
        match &prompt.told {
            Some(told) if !told.is_like(&story) => Err(format!("told as {told:?}, and now as {story:?}")),
            _ => {
                prompt.told = Some(story);
                Ok(())
            }
        }
    }

    /// Whether the end of a run is one that its prompt may have.
    ///
    /// # Errors
    /// Where nobody asked for such an end.
    pub fn check_end(&self, index: usize, story: &Story, may_interrupt: bool) -> Result<(), String> {
        let Prompt { name, abort, .. } = &self.prompts[index];
        let fits = match story.error.as_deref() {
            Some("aborted") => matches!(abort, Abort::Asked | Abort::Heard),
            Some(error) => may_interrupt && error.starts_with("interrupted") && *abort != Abort::Heard,
            None => *abort != Abort::Heard,
        };
        if fits { Ok(()) } else { Err(format!("{name} ended with {:?}, its abort: {abort:?}", story.error)) }
    }

    /// Remembers a frame for the message of a failed test.
    pub fn note(&mut self, what: &str) {
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(what.chars().take(400).collect());
    }

    /// The last frames.
    pub fn tail(&self) -> String {
        self.tail.iter().map(|line| format!("  {line}\n")).collect()
    }
}
