//! Answers that stream to many clients at once.

use std::time::{Duration, Instant};

use super::dialect::Dialect;
use super::model::Model;
use super::poll::Poll;
use super::wire::Wire;
use super::{clock_us, fresh_name};
use crate::process::{Cpu, Process};

/// What was seen of streams.
#[derive(Default)]
pub struct Seen {
    /// Of the process, for each token, in microseconds.
    pub cpu_us: f64,
    /// How old each token was when it came, in microseconds; OpenClaw's protocol gathers them, so of that there are none.
    pub ages_us: Vec<f64>,
    /// From when its prompt was sent to the first piece of each answer, in milliseconds.
    pub first_ms: Vec<f64>,
    /// Tokens that came; of OpenClaw's protocol none are counted.
    pub tokens: usize,
    /// Messages that came.
    pub frames: usize,
    /// From the first prompt to the last end, in seconds.
    pub seconds: f64,
}

/// Connections that ask for an answer each, in sessions that are new.
pub struct Streams {
    clients: Vec<Client>,
    under_way: usize,
    poll: Poll,
    pids: Vec<u32>,
}

struct Client {
    wire: Wire,
    dialect: Dialect,
    prompt: Vec<u8>,
    sent: Instant,
    has_begun: bool,
    has_ended: bool,
}

impl Client {
    fn new(wire: Wire, dialect: Dialect, prompt: Option<&str>) -> Self {
        let prompt = prompt.map(|prompt| wire.framed(prompt)).unwrap_or_default();
        Self { wire, dialect, prompt, sent: Instant::now(), has_begun: false, has_ended: false }
    }
}

impl Streams {
    /// One connection and session for each of these.
    pub fn connect(process: &Process, dialects: impl IntoIterator<Item = Dialect>) -> Self {
        let client = |dialect: Dialect| {
            let mut wire = dialect.connect(process);
            let prompt = dialect.prompt(&mut wire, &fresh_name());
            Client::new(wire, dialect, Some(&prompt))
        };
        Self::of(vec![process.pid()], dialects.into_iter().map(client).collect())
    }

    /// One connection to each of these, for the session of this account; the CPU time is that of all these processes.
    pub fn across(dialect: Dialect, clients: Vec<(&Process, String)>, pids: &[u32]) -> Self {
        let client = |(process, account): (&Process, String)| {
            let mut wire = dialect.connect(process);
            let prompt = dialect.prompt(&mut wire, &account);
            Client::new(wire, dialect, Some(&prompt))
        };
        Self::of(pids.to_vec(), clients.into_iter().map(client).collect())
    }

    /// One connection that sends this prompt, and others that hear the same answer.
    pub fn heard(
        process: &Process,
        dialect: Dialect,
        (wire, prompt): (Wire, String),
        others: Vec<Wire>,
    ) -> Self {
        let mut clients = vec![Client::new(wire, dialect, Some(&prompt))];
        clients.extend(others.into_iter().map(|wire| Client::new(wire, dialect, None)));
        Self::of(vec![process.pid()], clients)
    }

    fn of(pids: Vec<u32>, clients: Vec<Client>) -> Self {
        let poll = Poll::new();
        for (place, client) in clients.iter().enumerate() {
            poll.add(&client.wire, place);
        }
        Self { under_way: clients.len(), clients, poll, pids }
    }

    /// Sends all prompts and takes all answers; the CPU time is that of everything, for each of so many tokens.
    pub fn run(mut self, tokens: usize) -> Seen {
        let (cpu, begin) = (Cpu::of_all(&self.pids), Instant::now());
        let mut seen = Seen::default();
        self.send();
        while self.under_way > 0 {
            self.receive(&mut seen);
        }
        seen.cpu_us = cpu.spent_us() / tokens as f64;
        seen.seconds = begin.elapsed().as_secs_f64();
        seen
    }

    /// The same; the CPU time is that of the middle, when all answers stream and none begins or ends: from the first to
    /// the last quarter of the `tokens` of all of them.
    pub fn run_steady(mut self, model: &Model, tokens: usize) -> Seen {
        let (mut seen, begin) = (Seen::default(), Instant::now());
        let first = model.said();
        let (mut cpu, mut from, mut is_over) = (None, 0, false);
        self.send();
        while self.under_way > 0 {
            self.receive(&mut seen);
            let said = model.said() - first;
            match &cpu {
                None if said > tokens / 4 => (cpu, from) = (Some(Cpu::of_all(&self.pids)), said),
                Some(spent) if !is_over && said > tokens * 3 / 4 => {
                    seen.cpu_us = spent.spent_us() / (said - from) as f64;
                    is_over = true;
                }
                _ => {}
            }
        }
        assert!(is_over, "the answers were too short to be measured");
        seen.seconds = begin.elapsed().as_secs_f64();
        seen
    }

    fn send(&mut self) {
        for client in &mut self.clients {
            client.sent = Instant::now();
            client.wire.send_framed(&client.prompt);
        }
    }

    fn receive(&mut self, seen: &mut Seen) {
        for place in self.poll.ready(Duration::from_secs(60)) {
            let client = &mut self.clients[place];
            client.wire.receive();
            let now = clock_us();
            while let Some(message) = client.wire.take() {
                seen.frames += 1;
                if !client.has_begun && message.contains(&b'<') {
                    client.has_begun = true;
                    seen.first_ms.push(client.sent.elapsed().as_secs_f64() * 1e3);
                }
                if client.dialect != Dialect::OpenClaw {
                    seen.tokens += note_tokens(message, now, &mut seen.ages_us);
                }
                if !client.has_ended && client.dialect.is_end(message) {
                    client.has_ended = true;
                    self.under_way -= 1;
                }
            }
        }
    }
}

/// Notes how old each token in this message is at this time; gives how many there are. Tokens of answers that are
/// not paced have a time of no meaning.
pub fn note_tokens(message: &[u8], now_us: u64, ages_us: &mut Vec<f64>) -> usize {
    let (mut rest, mut tokens) = (message, 0);
    while let Some(at) = rest.iter().position(|byte| *byte == b'<') {
        rest = &rest[at + 1..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let sent = digits.fold(0u64, |sent, digit| sent * 10 + u64::from(digit - b'0'));
        tokens += 1;
        if sent > 0 {
            ages_us.push(now_us.saturating_sub(sent) as f64);
        }
    }
    tokens
}
