//! What the clients know: what they asked, what was promised, what they were told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::plan::{Script, content};
use super::story::Story;

/// Every so many prompts of a session, one is asked in two sessions at once under one key.
const SHARED_EVERY: usize = 20;

/// All that is known.
#[derive(Default)]
pub struct Book {
    seed: u64,
    pub prompts: Vec<Prompt>,
    /// The prompts that were asked in each session.
    pub of_session: Vec<Vec<usize>>,
    /// How many prompts each session thought of.
    thought: Vec<usize>,
    /// Whether some are asked in two sessions at once.
    pub shares: bool,
    /// What was refused, how often, numbers left out.
    pub refusals: BTreeMap<String, u64>,
    /// How often a client lost its connection, or heard nothing for too long.
    pub lost: u64,
    pub silent: u64,
    /// The longest that a client waited for the next frame of an answer that it got.
    pub longest_pause: Duration,
}

/// A prompt that was asked at least once.
pub struct Prompt {
    /// Its idempotency key too.
    pub name: String,
    pub script: Script,
    /// Where it was asked: once, or in two sessions at the same moment.
    pub sessions: Vec<usize>,
    asked: Instant,
    /// What a daemon promised: its run, and its number.
    pub accepted: Option<(String, u64)>,
    /// Its run, once its end was told to whoever asked for it.
    pub told: Option<Story>,
    /// How long it took from the first time that it was asked to the end.
    pub took: Duration,
    /// What became of the last attempt to ask it.
    pub last: String,
}

/// The fields that name a session.
pub fn session(session: usize) -> Value {
    json!({"channel": "websocket", "account": format!("s{session}")})
}

impl Book {
    /// Nothing yet, of so many sessions.
    pub fn new(seed: u64, sessions: usize) -> Self {
        let of_session = vec![Vec::new(); sessions];
        Self { seed, of_session, thought: vec![0; sessions], shares: true, ..Self::default() }
    }

    /// Thinks of another prompt of a session; gives its index.
    pub fn think(&mut self, session: usize) -> usize {
        let nth = self.thought[session];
        self.thought[session] += 1;
        let other = (session + 1) % self.of_session.len();
        let is_shared = self.shares && nth % SHARED_EVERY == session % SHARED_EVERY && other != session;
        let sessions = if is_shared { vec![session, other] } else { vec![session] };
        self.add(format!("s{session}.p{nth}"), sessions)
    }

    /// Adds a prompt of this name that is asked in these sessions; gives its index.
    pub fn add(&mut self, name: String, sessions: Vec<usize>) -> usize {
        let index = self.prompts.len();
        sessions.iter().for_each(|session| self.of_session[*session].push(index));
        self.prompts.push(Prompt {
            script: Script::of(self.seed, &name),
            name,
            sessions,
            asked: Instant::now(),
            accepted: None,
            told: None,
            took: Duration::ZERO,
            last: String::new(),
        });
        index
    }

    /// The seed of all scripts.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The request that asks a prompt in a session, for the first time or again.
    pub fn request(&self, prompt: usize, in_session: usize) -> Value {
        let name = &self.prompts[prompt].name;
        let mut params = session(in_session);
        params["content"] = json!(content(name));
        params["idempotency_key"] = json!(name);
        params
    }

    /// The prompts whose end was not told yet.
    pub fn open(&self) -> Vec<usize> {
        let is_open = |prompt: &usize| self.prompts[*prompt].told.is_none();
        (0..self.prompts.len()).filter(is_open).collect()
    }

    /// Whether a prompt of this name was asked in a session.
    pub fn is_of(&self, session: usize, name: &str) -> bool {
        self.of_session[session].iter().any(|prompt| self.prompts[*prompt].name == name)
    }

    /// A daemon acknowledges a prompt.
    ///
    /// # Errors
    /// Where that is another run than before, or the run of another prompt.
    pub fn accept(&mut self, prompt: usize, run: &str, seq: u64) -> Result<(), String> {
        let Prompt { name, accepted, .. } = &self.prompts[prompt];
        if let Some((known, at)) = accepted {
            return match known == run && *at == seq {
                true => Ok(()),
                false => Err(format!("{name} was run {known} at {at} and is now {run} at {seq}")),
            };
        }
        self.prompts[prompt].accepted = Some((run.to_owned(), seq));
        Ok(())
    }

    /// Somebody who asked for a prompt was told its whole run.
    ///
    /// # Errors
    /// Where it is not an end that a run may have, or somebody else was told otherwise.
    pub fn tell(&mut self, prompt: usize, story: Story) -> Result<(), String> {
        let Prompt { name, told, took, asked, .. } = &mut self.prompts[prompt];
        if let Some(error) = &story.error {
            return Err(format!("{name} ended with the error {error:?}"));
        }
        match told {
            Some(told) if !told.is_like(&story) => {
                Err(format!("{name} was told as {told:?}, and is now {story:?}"))
            }
            Some(_) => Ok(()),
            None => {
                *took = asked.elapsed();
                *told = Some(story);
                Ok(())
            }
        }
    }

    /// A client waited so long for the next frame of an answer.
    pub fn paused(&mut self, pause: Duration) {
        self.longest_pause = self.longest_pause.max(pause);
    }

    /// A request was refused.
    pub fn refuse(&mut self, why: &str) {
        *self.refusals.entry(kind_of(why)).or_default() += 1;
    }
}

/// A sentence without what is different each time.
fn kind_of(why: &str) -> String {
    let is_special = |word: &&str| word.chars().any(|c| c.is_ascii_digit());
    why.split(' ').map(|word| if is_special(&word) { "#" } else { word }).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_gets_a_second_run_is_noticed() {
        let mut book = Book::new(1, 2);
        let prompt = book.think(0);
        book.accept(prompt, "a", 1).unwrap();
        book.accept(prompt, "a", 1).unwrap();
        book.accept(prompt, "b", 1).unwrap_err();
        book.accept(prompt, "a", 2).unwrap_err();
    }

    #[test]
    fn a_run_that_ends_with_an_error_is_noticed() {
        let mut book = Book::new(1, 2);
        let prompt = book.think(0);
        let mut story = Story::default();
        story.error = Some("gone".to_owned());
        book.tell(prompt, story).unwrap_err();
    }

    #[test]
    fn one_in_twenty_is_asked_in_two_sessions() {
        let mut book = Book::new(1, 3);
        let prompts: Vec<usize> = (0..40).map(|_| book.think(2)).collect();
        let shared = prompts.iter().filter(|prompt| book.prompts[**prompt].sessions == [2, 0]);
        assert_eq!(shared.count(), 2);
        assert_eq!(book.of_session[0].len(), 2);
    }
}
