//! Many connections on one thread.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// So many events are taken at once.
const EVENTS: usize = 256;

/// Says which of many sockets have something to be read.
pub struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    /// Of nothing.
    pub fn new() -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        Self { epoll, events: Vec::with_capacity(EVENTS) }
    }

    /// Of all these, each by its place.
    pub fn of(sockets: &[impl AsFd]) -> Self {
        let poll = Self::new();
        for (place, socket) in sockets.iter().enumerate() {
            poll.add(socket, place);
        }
        poll
    }

    /// And of this one.
    pub fn add(&self, socket: impl AsFd, place: usize) {
        epoll::add(&self.epoll, socket, EventData::new_u64(place as u64), EventFlags::IN)
            .expect("epoll takes it");
    }

    /// No longer of this one.
    pub fn leave(&self, socket: impl AsFd) {
        epoll::delete(&self.epoll, socket).expect("it was there");
    }

    /// The places of those that have something, after waiting for the first of them, for at most so long.
    pub fn ready(&mut self, patience: Duration) -> impl Iterator<Item = usize> + use<> {
        self.events.clear();
        let patience = Timespec::try_from(patience).expect("a short time");
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&patience));
        let places: Vec<usize> = self.events.iter().map(|event| event.data.u64() as usize).collect();
        places.into_iter()
    }
}
