//! What a durable record takes that no run follows: a message put into a session. Each daemon is told of them over one
//! connection, for who has an OpenClaw connection is told what changes in all sessions.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Cluster, PATIENCE, beside_publishes};
use crate::figures::Figure;
use crate::load::dialect::Dialect;
use crate::load::fresh_name;
use crate::load::model::Model;
use crate::load::poll::Poll;
use crate::load::wire::Wire;
use crate::rows::Extent;

/// Records of one session, one after the other.
const EACH: usize = 16;

/// Who puts messages into sessions that have been spoken in.
pub(super) struct Speaker {
    wires: Vec<Wire>,
    poll: Poll,
    /// The message of each session; those of a daemon's connection are as many apart as there are daemons.
    messages: Vec<String>,
}

impl Speaker {
    /// One with so many sessions.
    pub(super) fn new(cluster: &Cluster, sessions: usize) -> Self {
        let mut wires: Vec<Wire> =
            cluster.daemons.iter().map(|daemon| Dialect::OpenClaw.connect(daemon)).collect();
        let message = |place: usize| {
            let (wires, name) = (&mut wires, fresh_name());
            let wire = &mut wires[place % cluster.daemons.len()];
            let prompt = Dialect::OpenClaw.prompt(wire, &name);
            wire.send(&prompt);
            while !Dialect::OpenClaw.is_end(wire.next().as_bytes()) {}
            let params = json!({"sessionKey": format!("agent:main:{name}"), "message": "noted"});
            json!({"type": "req", "id": place.to_string(), "method": "chat.inject", "params": params})
                .to_string()
        };
        let messages = (0..sessions).map(message).collect();
        Self { poll: Poll::of(&wires), wires, messages }
    }

    /// Puts a message into this session.
    pub(super) fn send(&mut self, session: usize) {
        let of_daemon = session % self.wires.len();
        self.wires[of_daemon].send(&self.messages[session]);
    }

    /// Waits for answers, at most so long, and gives the sessions whose message is in them.
    ///
    /// # Panics
    /// Where one was refused.
    pub(super) fn answered(&mut self, patience: Duration) -> Vec<usize> {
        let mut sessions = Vec::new();
        for place in self.poll.ready(patience) {
            let wire = &mut self.wires[place];
            wire.receive();
            while let Some(message) = wire.take() {
                let Some(rest) = message.strip_prefix(br#"{"type":"res","id":""#) else { continue };
                let text = String::from_utf8_lossy(rest);
                let (id, rest) = text.split_once('"').expect("an id");
                assert!(rest.starts_with(r#","ok":true"#), "it was refused: {text}");
                // Others are of the prompts before.
                sessions.extend(id.parse::<usize>());
            }
        }
        sessions
    }
}

/// Records of so many sessions, wherever they are, in microseconds for each.
pub(super) fn records(name: &str, extent: Extent, sessions: usize) -> Vec<Figure> {
    let cluster = Cluster::start(&Model::new(1, Duration::ZERO));
    beside_publishes(name, extent, &cluster, sessions, || each(&cluster, sessions))
}

fn each(cluster: &Cluster, sessions: usize) -> f64 {
    let mut speaker = Speaker::new(cluster, sessions);
    let mut left = vec![EACH; sessions];
    let begin = Instant::now();
    (0..sessions).for_each(|session| speaker.send(session));
    while left.iter().any(|left| *left > 0) {
        for session in speaker.answered(PATIENCE) {
            left[session] -= 1;
            if left[session] > 0 {
                speaker.send(session);
            }
        }
        assert!(begin.elapsed() < PATIENCE, "some are not answered: {left:?}");
    }
    begin.elapsed().as_secs_f64() * 1e6 / (sessions * EACH) as f64
}
