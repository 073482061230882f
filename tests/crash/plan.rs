//! What happens by chance, and what does not: everything here is a function of the seed.

use serde_json::json;

/// The tool that must never be called twice, and the one whose manifest says that it may be.
pub const ONCE: &str = "once";
pub const AGAIN: &str = "again";

/// A stream of numbers that look random (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed and purpose.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut random = Self(seed);
        for byte in purpose.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `from..=to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.range(0, of.len() as u64 - 1) as usize]
    }
}

/// How a model answers one prompt: all of it is known from the prompt's name alone, but for what
/// became of the calls, which the next answer repeats.
#[derive(Clone, Debug)]
pub struct Script {
    pub steps: Vec<Step>,
}

/// One answer within it.
#[derive(Clone, Debug)]
pub struct Step {
    pieces: Vec<String>,
    /// Between two pieces.
    pub pace_ms: u64,
    pub calls: Vec<Call>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub tool: &'static str,
    /// JSON, as the model writes it.
    pub input: String,
}

/// What became of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Counted,
    Interrupted,
    /// Too many calls waited already: it was not made.
    Refused,
}

impl Outcome {
    /// What a call's error says, where it is one that may be.
    pub fn of_error(says: &str) -> Option<Self> {
        let is_busy = says.starts_with("plugin ") && says.contains(" is busy: ");
        match says.starts_with("interrupted") {
            true => Some(Self::Interrupted),
            false => is_busy.then_some(Self::Refused),
        }
    }

    /// What is wrong with it, where a call of this tool was made, or was not.
    pub fn contradicts(self, tool: &str, was_made: bool) -> Option<&'static str> {
        match (self, was_made) {
            (Self::Counted, false) => Some("has a result and was never made"),
            // One that may be made again can have been cut off before it was refused.
            (Self::Refused, true) if tool != AGAIN => Some("was refused and made"),
            _ => None,
        }
    }
}

impl Script {
    /// The script of a prompt.
    pub fn of(seed: u64, prompt: &str) -> Self {
        let mut random = Random::new(seed, prompt);
        let tools = if random.percent(45) { 0 } else { random.range(1, 3) };
        let steps = (0..=tools).map(|step| {
            let calls = if step == tools { 0 } else { random.range(1, 2) };
            let pieces = random.range(if calls == 0 { 2 } else { 0 }, 8);
            let first = random.range(0, 1) as usize;
            Step {
                pieces: (0..pieces).map(|piece| format!("{prompt}/{step}/{piece} İ😀 ")).collect(),
                pace_ms: random.range(2, 30),
                calls: (0..calls)
                    .map(|call| {
                        let id = format!("{prompt}/{step}/call{call}");
                        // The tool takes the longer the more it is given.
                        let pad = "x".repeat(random.range(0, 40) as usize);
                        let input = json!({"call": id, "pad": pad}).to_string();
                        // Two calls are of both tools, so that neither is busy for so many sessions.
                        Call { tool: [ONCE, AGAIN][(first + call as usize) % 2], id, input }
                    })
                    .collect(),
            }
        });
        Self { steps: steps.collect() }
    }

    /// What the model says in one step, piece by piece, having heard what became of the calls of the
    /// step before.
    pub fn says(&self, step: usize, heard: &[Outcome]) -> Vec<String> {
        let heard = (!heard.is_empty()).then(|| format!("{heard:?} "));
        heard.into_iter().chain(self.steps[step].pieces.iter().cloned()).collect()
    }
}

/// What a prompt says; its name is in front.
pub fn content(prompt: &str) -> String {
    format!("{prompt} İ tell me more")
}

/// The prompt that says this.
pub fn named(content: &str) -> &str {
    content.split(' ').next().unwrap_or_default()
}
