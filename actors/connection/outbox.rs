//! What a connection has written and its socket has not asked for.
//!
//! What is written waits in the frame encoder until the socket asks for it, and a connection whose
//! socket does not ask is not even polled: so there is no queue here, only the count of what must
//! be given back to its [`Window`](crate::runtime::deliver::Window). An event's room is given back once the
//! socket has asked again after its frames were taken, in one sum for all sessions.

use std::collections::VecDeque;

/// Room to be given back.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// How often the socket had asked when events of so many bytes were written; in order.
    owed: VecDeque<(u64, usize)>,
    full: bool,
}

impl Outbox {
    /// An event of this cost was written while the socket had asked `polls` times.
    pub(super) fn owe(&mut self, cost: usize, polls: u64) {
        match self.owed.back_mut() {
            Some((at, bytes)) if *at == polls => *bytes += cost,
            _ => self.owed.push_back((polls, cost)),
        }
    }

    /// How much has left now that the socket has asked `polls` times; said once.
    pub(super) fn left(&mut self, polls: u64) -> usize {
        let mut bytes = 0;
        while let Some((_, cost)) = self.owed.pop_front_if(|(at, _)| *at < polls) {
            bytes += cost;
        }
        bytes
    }

    /// Notes that more is written than should be.
    pub(super) fn filled(&mut self) {
        self.full = true;
    }

    /// Whether there is room again after it was [`filled`](Self::filled); says so once.
    pub(super) fn drained(&mut self, has_room: bool) -> bool {
        has_room && std::mem::take(&mut self.full)
    }
}
