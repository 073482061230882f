//! Cursors over a session: in order, bounded, without a gap and without a repeat.

use super::*;
use crate::conversation::event::Outcome;
use crate::ids::Owner;
use crate::provider::usage::Usage;
use crate::time::Timestamp;
use crate::tools::call::{ToolCall, ToolResult};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// A connection that takes so many events before it is full.
#[derive(Debug, Default)]
struct Peer {
    room: usize,
    got: Vec<(Ticket, Seq)>,
    /// Of each of them, the first number it covers.
    firsts: Vec<Seq>,
    bytes: usize,
    lags: usize,
}

#[derive(Clone, Debug, Default)]
struct Way(Rc<RefCell<Peer>>);

impl Sink for Way {
    fn send(&mut self, ticket: Ticket, first: Seq, event: &Arc<Published>) -> Sent {
        let mut peer = self.0.borrow_mut();
        if peer.room == 0 {
            return Sent::Full;
        }
        peer.room -= 1;
        peer.got.push((ticket, event.logged.seq));
        peer.firsts.push(first);
        peer.bytes += event.bytes();
        Sent::Taken
    }

    fn lag(&mut self) {
        self.0.borrow_mut().lags += 1;
    }

    fn is_open(&self) -> bool {
        true
    }

    fn has_room(&mut self) -> bool {
        self.0.borrow().room > 0
    }
}

fn key() -> SessionKey {
    SessionKey::new("main", "test", "a", "main").unwrap()
}

fn run(of: u64) -> RunId {
    RunId::new(format!("run{of}"))
}

/// Event `seq` of a log in which every run has five.
fn event(seq: u64) -> Logged {
    let (seq, is_end) = (Seq(seq), seq % 5 == 4);
    let end = Event::Ended { outcome: Outcome::Completed, usage: Usage::default() };
    let event = if is_end { end } else { Event::Text("x".into()) };
    Logged { first_seq: seq, seq, run: Some(run(seq.0 / 5)), at: Timestamp::default(), event }
}

/// What a connection asked for: under this ticket, a run or the session, after a number.
type Asked = (Ticket, Option<u64>, u64);

fn event_at(seq: u64) -> Logged {
    Logged { run: Some(run(0)), ..event(seq) }
}

struct World {
    followers: Followers<Way>,
    peers: Vec<Way>,
    asked: Vec<Vec<Asked>>,
    head: u64,
    reads: Vec<(Missing, u64)>,
}

impl World {
    fn new() -> Self {
        Self {
            followers: Followers::default(),
            peers: vec![Way::default(); 3].iter().map(|_| Way::default()).collect(),
            asked: vec![Vec::new(); 3],
            head: 0,
            reads: Vec::new(),
        }
    }

    fn follow(&mut self, peer: usize, of: Option<u64>, after: u64) {
        // A run is followed from before its first event on.
        let after = of.map_or(after, |run| (run * 5).saturating_sub(1));
        let ticket = Ticket(self.asked[peer].len() as u64);
        let all = if ticket.0.is_multiple_of(2) { Wanted::Session } else { Wanted::Watch };
        let (way, wanted) = (self.peers[peer].clone(), of.map_or(all, |of| Wanted::Run(run(of))));
        let who = (ConnectionId(peer as u64), ticket);
        self.followers.follow(who, (wanted, Seq(after)), Seq(self.head), || way);
        self.asked[peer].push((ticket, of, after));
    }

    fn publish(&mut self) {
        self.head += 1;
        self.followers.publish(&key(), &event(self.head), usize::MAX);
    }

    /// All that was published is in the event log.
    fn missing(&mut self) -> Vec<Missing> {
        self.followers.missing(Seq(self.head), Seq(self.head))
    }

    fn begin_reads(&mut self) {
        let as_of = self.head;
        let missing = self.missing();
        self.reads.extend(missing.into_iter().map(|missing| (missing, as_of)));
    }

    /// Ends the oldest read, which gives at most two events.
    fn end_read(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let (missing, as_of) = self.reads.remove(0);
        let of_run = |logged: &Logged| missing.run.is_none() || logged.run == missing.run;
        let events: Vec<Logged> =
            (missing.after.0 + 1..=self.head).map(event).filter(of_run).take(2).collect();
        let is_all = as_of == self.head && events.last().is_none_or(|last| last.seq.0 >= self.head);
        self.followers.caught(&key(), &missing, events, is_all);
    }

    fn make_room(&mut self, peer: usize, room: usize) {
        self.peers[peer].0.borrow_mut().room += room;
        self.followers.room(ConnectionId(peer as u64));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish,
    Follow { peer: usize, run: Option<u64>, after: u64 },
    BeginReads,
    EndRead,
    Room { peer: usize, room: usize },
    Fall,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Publish),
        2 => (0..3usize, prop::option::of(0..6u64), 0..20u64)
            .prop_map(|(peer, run, after)| Step::Follow { peer, run, after }),
        3 => Just(Step::BeginReads),
        3 => Just(Step::EndRead),
        3 => (0..3usize, 0..4usize).prop_map(|(peer, room)| Step::Room { peer, room }),
        1 => Just(Step::Fall),
    ]
}

proptest! {
    /// However publishing, reading and room interleave: whoever follows gets what it asked for,
    /// all of it, in order and once.
    #[test]
    fn every_cursor_gets_exactly_what_it_asked_for(steps in prop::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Publish => world.publish(),
                Step::Follow { peer, run, after } => {
                    let is_late = run.is_some_and(|run| run * 5 > world.head + 1) || after > world.head;
                    let is_known = world.asked[peer].iter().any(|(_, of, _)| run.is_some() && *of == run);
                    // A run is asked for before the session is followed, or when it begins.
                    let crosses = run.is_some_and(|run| run * 5 + 4 <= world.head)
                        && world.asked[peer].iter().any(|(_, of, _)| of.is_none());
                    if !is_late && !is_known && !crosses {
                        world.follow(peer, run, after);
                    }
                }
                Step::BeginReads => world.begin_reads(),
                Step::EndRead => world.end_read(),
                Step::Room { peer, room } => world.make_room(peer, room),
                Step::Fall => {
                    world.reads.clear();
                    world.followers.fall_behind();
                }
            }
        }
        (0..3).for_each(|peer| world.make_room(peer, usize::MAX / 2));
        // Up to the end of a run, so that all that tell one are over.
        while world.head % 5 != 4 {
            world.publish();
        }
        for _ in 0..1000 {
            world.begin_reads();
            world.end_read();
        }
        for (way, asked) in world.peers.iter().zip(&world.asked) {
            let got = &way.0.borrow().got;
            for (ticket, of, after) in asked {
                let got: Vec<u64> = got.iter().filter(|(t, _)| t == ticket).map(|(_, seq)| seq.0).collect();
                let wanted = |seq: &u64| of.is_none_or(|of| seq / 5 == of);
                let all: Vec<u64> = (after + 1..=world.head).filter(wanted).collect();
                if of.is_some() {
                    prop_assert_eq!(&got, &all, "{:?} of {:?}", ticket, of);
                    continue;
                }
                // Left out is at most what the connection is told under another ticket.
                prop_assert!(got.is_sorted_by(|a, b| a < b), "{:?}", got);
                let missing = all.iter().filter(|seq| !got.contains(seq));
                for seq in missing {
                    prop_assert!(
                        asked.iter().any(|(_, of, _)| *of == Some(seq / 5)),
                        "{} is missing from {:?}, which got {:?}", seq, ticket, got
                    );
                }
            }
        }
    }
}

#[test]
fn runs_of_ones_own_are_told_once_and_those_before_are_told() {
    let mut world = World::new();
    world.make_room(0, 1000);
    world.follow(0, None, 0);
    (0..4).for_each(|_| world.publish());
    world.follow(0, Some(1), 0);
    (0..10).for_each(|_| world.publish());
    let got = &world.peers[0].0.borrow().got;
    let told =
        |ticket| got.iter().filter(|(t, _)| *t == Ticket(ticket)).map(|(_, s)| s.0).collect::<Vec<_>>();
    assert_eq!(told(0), [1, 2, 3, 4, 10, 11, 12, 13, 14]);
    assert_eq!(told(1), [5, 6, 7, 8, 9]);
    let firsts = &world.peers[0].0.borrow().firsts;
    let at = got.iter().position(|told| *told == (Ticket(0), Seq(10))).unwrap();
    assert_eq!(firsts[at], Seq(5), "it covers what was told elsewhere");
    assert!(world.followers.feeds[&ConnectionId(0)].own.is_empty(), "nothing of it is remembered");
}

#[test]
fn what_was_not_published_is_read_and_what_is_not_there_is_not_covered() {
    let mut world = World::new();
    world.make_room(0, 1000);
    world.follow(0, None, 0);
    world.publish();
    world.head += 2;
    world.publish();
    assert_eq!(world.peers[0].0.borrow().got.len(), 1, "it does not go past what it was not given");
    for _ in 0..5 {
        world.begin_reads();
        world.end_read();
    }
    let peer = world.peers[0].0.borrow();
    assert_eq!(peer.got.iter().map(|(_, seq)| seq.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(peer.firsts, [Seq(1), Seq(2), Seq(3), Seq(4)]);
    drop(peer);
    // A log with a hole in it: the hole shows.
    let missing = Missing { connection: ConnectionId(0), ticket: Ticket(0), run: None, after: Seq(4) };
    world.followers.fall_behind();
    assert_eq!(world.missing(), std::slice::from_ref(&missing));
    world.followers.caught(&key(), &missing, vec![event(9)], true);
    assert_eq!(world.peers[0].0.borrow().firsts[4], Seq(9));
}

#[test]
fn who_follows_the_session_is_told_long_things_in_short_and_who_asked_for_them_is_told_all() {
    let result = |content| Event::ToolReturned(ToolResult { call: "c".into(), content, is_error: false });
    let long = |seq| Logged { event: result("é".repeat(CLIP_BYTES)), ..event(seq) };
    let mut bytes = Vec::new();
    for (of, is_read) in [(None, false), (None, true), (Some(0), false)] {
        let mut world = World::new();
        world.make_room(0, 1000);
        world.follow(0, of, 0);
        if is_read {
            world.followers.fall_behind();
            let missing = world.missing().remove(0);
            world.followers.caught(&key(), &missing, vec![long(1)], true);
        } else {
            world.followers.publish(&key(), &long(1), usize::MAX);
        }
        bytes.push(world.peers[0].0.borrow().bytes);
    }
    assert!(bytes[0] <= CLIP_BYTES + 100 && bytes[0] == bytes[1] && bytes[2] > 2 * CLIP_BYTES, "{bytes:?}");
}

#[test]
fn who_watches_keeps_nobody_awake_once_it_was_told_all() {
    let mut followers = Followers::<Way>::default();
    assert!(followers.is_unneeded());
    let (way, who) = (Way::default(), (ConnectionId(1), Ticket(7)));
    let watch = (Wanted::Watch, Seq(0));
    followers.follow(who, watch.clone(), Seq(0), || way.clone());
    assert!(followers.is_unneeded() && followers.has(ConnectionId(1), Ticket(7)));
    assert!(!followers.has(ConnectionId(1), Ticket(8)) && !followers.has(ConnectionId(2), Ticket(7)));
    // It takes nothing: what it has not got yet is in the log, and needs the session.
    followers.publish(&key(), &event(1), usize::MAX);
    assert!(!followers.is_unneeded());
    way.0.borrow_mut().room = 9;
    followers.room(ConnectionId(1));
    let missing = followers.missing(Seq(1), Seq(1)).remove(0);
    followers.caught(&key(), &missing, vec![event(1)], true);
    assert!(followers.is_unneeded());
    assert_eq!(way.0.borrow().got, [(Ticket(7), Seq(1))]);
    let session = (Wanted::Session, Seq(1));
    followers.follow((ConnectionId(1), Ticket(8)), session, Seq(1), || way.clone());
    assert!(!followers.is_unneeded(), "who follows for good keeps it awake");
    assert!(followers.unfollow(ConnectionId(1), Ticket(8)) && followers.is_unneeded());
}

#[test]
fn who_decides_about_calls_of_others_is_told_of_calls_and_nothing_else() {
    let call = ToolCall { id: "c".into(), name: "rm".into(), input: serde_json::json!({}) };
    let result = ToolResult { call: "c".into(), content: "done".into(), is_error: false };
    let secret = || Event::Text("secret".into());
    let events = [
        Event::prompted("secret", Owner::Admins, None),
        secret(),
        Event::ToolCalled(call),
        secret(),
        Event::ToolReturned(result),
        secret(),
        Event::Injected { content: "secret".into() },
    ];
    let logged = |(index, event): (usize, Event)| Logged { event, ..event_at(index as u64 + 1) };
    let all: Vec<Logged> = events.into_iter().enumerate().map(logged).collect();
    for is_read in [false, true] {
        let (mut followers, way) = (Followers::<Way>::default(), Way::default());
        way.0.borrow_mut().room = 100;
        let (asked, calls) = ((ConnectionId(1), Ticket(7)), (Wanted::Calls, Seq(0)));
        followers.follow(asked, calls, Seq(0), || way.clone());
        assert!(followers.is_unneeded(), "nobody stays awake for it");
        if is_read {
            followers.fall_behind();
            let missing = followers.missing(Seq(7), Seq(7)).remove(0);
            followers.caught(&key(), &missing, all.clone(), true);
        } else {
            all.iter().for_each(|logged| followers.publish(&key(), logged, usize::MAX));
        }
        let gone = Logged { event: Event::Deleted, run: None, ..event_at(8) };
        followers.end_all(&Published::new(key(), gone));
        let peer = way.0.borrow();
        assert_eq!(peer.got, [(Ticket(7), Seq(3)), (Ticket(7), Seq(5))], "read: {is_read}");
        assert_eq!(peer.firsts, [Seq(1), Seq(4)], "what was left out is covered");
    }
}

#[test]
fn a_connection_reads_for_one_cursor_at_a_time_and_they_take_turns() {
    let mut world = World::new();
    (0..4).for_each(|_| world.publish());
    (0..3).for_each(|_| world.follow(0, None, 0));
    assert_eq!(world.missing(), [], "no room, no read");
    world.make_room(0, 7);
    let mut turns = Vec::new();
    for _ in 0..3 {
        let missing = world.missing();
        assert_eq!((missing.len(), world.missing().len()), (1, 0));
        turns.push(missing[0].ticket);
        world.followers.caught(&key(), &missing[0], vec![event(1), event(2)], false);
    }
    assert_eq!(turns, [Ticket(0), Ticket(1), Ticket(2)]);
}

#[test]
fn one_that_falls_too_far_behind_is_given_up_once() {
    let mut world = World::new();
    world.follow(0, None, 0);
    world.follow(1, None, 0);
    world.make_room(1, 1000);
    for seq in 1..100 {
        world.followers.publish(&key(), &event(seq), 1000);
    }
    assert_eq!(world.peers[0].0.borrow().lags, 1);
    assert_eq!(world.peers[1].0.borrow().lags, 0);
    assert_eq!((world.peers[1].0.borrow().got.len(), world.followers.len()), (99, 1));
}

#[test]
fn what_is_published_and_not_in_the_log_is_wanted_there_before_it_is_read() {
    let mut world = World::new();
    world.follow(0, None, 0);
    (0..4).for_each(|_| world.publish());
    assert!(!world.followers.want(Seq(2), Seq(4)), "it has no room");
    world.make_room(0, 9);
    assert!(!world.followers.want(Seq(2), Seq(4)), "two of them can be read now");
    let missing = world.followers.missing(Seq(2), Seq(4)).remove(0);
    world.followers.caught(&key(), &missing, vec![event(1), event(2)], false);
    assert!(world.followers.want(Seq(2), Seq(4)));
    assert_eq!(world.followers.missing(Seq(2), Seq(4)), [], "there is nothing to be read");
    assert!(!world.followers.want(Seq(4), Seq(4)) && world.followers.missing(Seq(4), Seq(4)).len() == 1);
}
