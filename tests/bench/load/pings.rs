//! Requests of which so many are always under way on each of many connections.

use std::time::Duration;

use super::dialect::Dialect;
use super::poll::Poll;
use super::wire::Wire;
use crate::process::{Cpu, Process};

/// Connections, and what is asked on each.
pub struct Pings {
    wires: Vec<Wire>,
    poll: Poll,
    ping: Vec<u8>,
    pid: u32,
}

impl Pings {
    /// So many connections that ask what is asked in `says`; a limit program hears it without a handshake.
    pub fn connect(process: &Process, connections: usize, dialect: Dialect, says: Dialect) -> Self {
        let wires: Vec<Wire> = (0..connections).map(|_| dialect.connect(process)).collect();
        let (poll, ping) = (Poll::of(&wires), wires[0].framed(says.ping()));
        Self { wires, poll, ping, pid: process.pid() }
    }

    /// Asks at least so often, `depth` at once on each connection; gives the CPU time of one, in microseconds.
    pub fn cpu_us(&mut self, count: usize, depth: usize) -> f64 {
        let cpu = Cpu::of(self.pid);
        let asked = self.ask(count, depth);
        cpu.spent_us() / asked as f64
    }

    /// Gives how often it has asked.
    fn ask(&mut self, count: usize, depth: usize) -> usize {
        let many: Vec<u8> = self.ping.repeat(depth);
        let (mut sent, mut answered) = (0, 0);
        for wire in &mut self.wires {
            wire.send_framed(&many);
            sent += depth;
        }
        while answered < sent {
            for place in self.poll.ready(Duration::from_secs(60)) {
                let wire = &mut self.wires[place];
                wire.receive();
                let mut came = 0;
                while wire.take().is_some() {
                    came += 1;
                }
                answered += came;
                if sent < count && came > 0 {
                    // What else came, such as a tick, is no answer.
                    let again = came.min(depth);
                    wire.send_framed(&many[..self.ping.len() * again]);
                    sent += again;
                }
            }
        }
        answered
    }
}
