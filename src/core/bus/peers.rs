//! Which message of which peer is next.
//!
//! The server delivers messages of all peers mixed, each at least once, and after a restart or a lost acknowledgement
//! not in their order. Here those of one peer are taken in the order of their numbers in the stream, one at a time
//! until its prompt is durable; those of different peers do not wait for each other.
//!
//! What there is no room for is given back, and is delivered again later. From then on nothing newer of that peer is
//! taken before it. What an earlier process had been given and not acknowledged is not known here: while there may be
//! such, the stream is asked which message of a peer is the oldest ([`Arrived::asks`], [`Peers::oldest_is`]).
//!
//! A peer of whom nothing is held or given back is not remembered.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// So many messages of one peer are held, whatever others do.
pub const HELD_OF_PEER_MAX: usize = 64;

/// While fewer than this are held of all together, a peer may have more.
pub const HELD_SHARED_MAX: usize = 2048;

/// No more than this are held.
pub const HELD_MAX: usize = 8192;

/// And no more bytes of them, in all.
pub const HELD_BYTES_MAX: usize = 64 << 20;

/// The messages of all peers. `M` is what it takes to prompt with one and to acknowledge it.
#[derive(Debug)]
pub struct Peers<M> {
    peers: HashMap<Arc<str>, Peer<M>>,
    held: usize,
    bytes: usize,
    given_back: usize,
}

#[derive(Debug)]
struct Peer<M> {
    /// The one that is being taken.
    taking: Option<Held<M>>,
    /// By place; the first is the next.
    held: VecDeque<Held<M>>,
    given_back: BTreeSet<Place>,
    /// Whether it is being asked whether those that were given back are still there.
    is_checking: bool,
    /// Whether there may be an older one that is not here.
    older: Older,
}

/// Of which place the oldest message is, before that was asked.
const UNKNOWN: Place = (i64::MIN, 0);

/// Where a message stands: when its stream was made, and its number there. A stream that is made anew counts anew.
pub type Place = (i64, u64);

#[derive(Debug)]
struct Held<M> {
    seq: Place,
    bytes: usize,
    message: M,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Older {
    None,
    /// It is being asked.
    Asked,
    /// This one is.
    Is(Place),
}

/// What became of a message that arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrived<M> {
    /// This is to be given back: it, or another that makes room for it.
    pub give_back: Option<M>,
    /// Whether the stream has to be asked which message of its peer is the oldest.
    pub asks: bool,
    /// Whether it has to be asked that because of those that were given back ([`Peers::still_there`]).
    pub checks: bool,
}

impl<M> Default for Peers<M> {
    fn default() -> Self {
        Self { peers: HashMap::new(), held: 0, bytes: 0, given_back: 0 }
    }
}

impl<M> Peer<M> {
    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.given_back.is_empty() && self.taking.is_none()
    }

    /// How many are here.
    fn len(&self) -> usize {
        self.held.len() + usize::from(self.taking.is_some())
    }

    /// Where a message of this number is, or belongs.
    fn place(&self, seq: Place) -> Result<usize, usize> {
        self.held.binary_search_by_key(&seq, |held| held.seq)
    }
}

impl<M> Peers<M> {
    /// A message of this place and size arrived. `is_settled` says that whatever was delivered to an earlier process
    /// was acknowledged.
    pub fn arrived(
        &mut self,
        subject: &Arc<str>,
        seq: Place,
        bytes: usize,
        message: M,
        is_settled: bool,
    ) -> Arrived<M> {
        let (is_crowded, is_full) =
            (self.held >= HELD_SHARED_MAX, self.held >= HELD_MAX || self.bytes + bytes > HELD_BYTES_MAX);
        let peer = self.peers.entry(subject.clone()).or_insert_with(|| Peer {
            taking: None,
            held: VecDeque::new(),
            given_back: BTreeSet::new(),
            is_checking: false,
            older: if is_settled { Older::None } else { Older::Is(UNKNOWN) },
        });
        let asks = peer.older == Older::Is(UNKNOWN);
        if asks {
            peer.older = Older::Asked;
        }
        if peer.older == Older::Is(seq) {
            peer.older = Older::None;
        }
        if peer.given_back.remove(&seq) {
            self.given_back -= 1;
        }
        // It was delivered again: the later delivery is the one that is acknowledged.
        if let Some(taking) = peer.taking.as_mut().filter(|taking| taking.seq == seq) {
            taking.message = message;
            return Arrived { give_back: None, asks, checks: false };
        }
        let at = match peer.place(seq) {
            Ok(at) => {
                peer.held[at].message = message;
                return Arrived { give_back: None, asks, checks: false };
            }
            Err(at) => at,
        };
        let has_older_elsewhere = peer.given_back.first().is_some_and(|first| *first < seq);
        // The oldest of a peer always has a place, or it could wait for ever.
        let has_room = at == 0 || (!is_full && (!is_crowded || peer.len() < HELD_OF_PEER_MAX));
        let given_back = if has_older_elsewhere || (!has_room && at == peer.held.len()) {
            Some((seq, message))
        } else {
            peer.held.insert(at, Held { seq, bytes, message });
            (self.held, self.bytes) = (self.held + 1, self.bytes + bytes);
            // The last one makes room for it.
            let gives_way = (!has_room || (at == 0 && is_full)) && peer.held.len() > 1;
            let last = gives_way.then(|| peer.held.pop_back()).flatten();
            last.map(|last| {
                (self.held, self.bytes) = (self.held - 1, self.bytes - last.bytes);
                (last.seq, last.message)
            })
        };
        let checks = has_older_elsewhere && !std::mem::replace(&mut peer.is_checking, has_older_elsewhere);
        let give_back = given_back.map(|(seq, message)| {
            self.given_back += usize::from(peer.given_back.insert(seq));
            message
        });
        Arrived { give_back, asks, checks }
    }

    /// The oldest message of a peer that the stream still has; none where that could not be asked. Those that were given
    /// back and are older do not come again.
    pub fn still_there(&mut self, subject: &str, oldest: Option<Place>) {
        let Some(peer) = self.peers.get_mut(subject) else { return };
        peer.is_checking = false;
        if let Some(oldest) = oldest {
            let before = peer.given_back.len();
            peer.given_back = peer.given_back.split_off(&oldest);
            self.given_back -= before - peer.given_back.len();
        }
        if peer.is_idle() {
            self.peers.remove(subject);
        }
    }

    /// The oldest message of a peer that the stream still has; none where it has none or could not be asked. Says
    /// whether it has to be asked again, later.
    pub fn oldest_is(&mut self, subject: &str, oldest: Option<Place>) -> bool {
        let Some(peer) = self.peers.get_mut(subject) else { return false };
        let first = peer.held.front().map(|held| held.seq);
        peer.older = match (oldest, first) {
            (Some(oldest), Some(first)) if oldest < first => Older::Is(oldest),
            (Some(_), _) => Older::None,
            (None, Some(_)) => Older::Asked,
            (None, None) => Older::None,
        };
        peer.older != Older::None
    }

    /// The next message of a peer, where it may be taken; it is being taken from now on.
    pub fn next(&mut self, subject: &str) -> Option<(Place, &M)> {
        let peer = self.peers.get_mut(subject)?;
        if peer.taking.is_some() || peer.older != Older::None {
            return None;
        }
        peer.taking = Some(peer.held.pop_front()?);
        self.taking(subject)
    }

    /// The message of a peer that is being taken.
    pub fn taking(&self, subject: &str) -> Option<(Place, &M)> {
        let taking = self.peers.get(subject)?.taking.as_ref()?;
        Some((taking.seq, &taking.message))
    }

    /// The message that was being taken is done with. Says as well whether the stream has to be asked which one is the
    /// oldest now.
    pub fn taken(&mut self, subject: &str, is_settled: bool) -> Option<(M, bool)> {
        let peer = self.peers.get_mut(subject)?;
        let taken = peer.taking.take()?;
        (self.held, self.bytes) = (self.held - 1, self.bytes - taken.bytes);
        let asks = !is_settled && !peer.held.is_empty();
        if asks {
            peer.older = Older::Asked;
        }
        if peer.is_idle() {
            self.peers.remove(subject);
        }
        Some((taken.message, asks))
    }

    /// All that are held.
    pub fn held(&self) -> impl Iterator<Item = &M> {
        self.peers.values().flat_map(|peer| peer.taking.iter().chain(&peer.held)).map(|held| &held.message)
    }

    /// How many messages are held.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// How many were given back and did not come again.
    pub fn given_back(&self) -> usize {
        self.given_back
    }

    /// How many peers are remembered.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn subject(n: usize) -> Arc<str> {
        format!("p{n}").into()
    }

    /// Of the one stream there is.
    fn at(seq: u64) -> Place {
        (1, seq)
    }

    fn arrives<M>(peers: &mut Peers<M>, subject: &Arc<str>, seq: u64, message: M) -> Arrived<M> {
        peers.arrived(subject, at(seq), 1, message, true)
    }

    #[test]
    fn one_message_of_a_peer_is_taken_at_a_time_in_order() {
        let (mut peers, a) = (Peers::default(), subject(0));
        for seq in [3, 1, 2] {
            assert_eq!(
                arrives(&mut peers, &a, seq, seq),
                Arrived { give_back: None, asks: false, checks: false }
            );
        }
        for seq in 1..=3 {
            assert_eq!(peers.next(&a), Some((at(seq), &seq)));
            assert_eq!(peers.next(&a), None);
            assert_eq!(peers.taken(&a, true), Some((seq, false)));
        }
        assert_eq!((peers.len(), peers.peers(), peers.taken(&a, true)), (0, 0, None));
    }

    #[test]
    fn a_message_that_comes_again_is_acknowledged_by_its_later_delivery() {
        let (mut peers, a) = (Peers::default(), subject(0));
        arrives(&mut peers, &a, 1, "first");
        assert_eq!(peers.next(&a), Some((at(1), &"first")));
        assert_eq!(arrives(&mut peers, &a, 1, "again").give_back, None);
        assert_eq!(peers.taken(&a, true), Some(("again", false)));
    }

    #[test]
    fn an_older_one_that_comes_late_does_not_take_the_place_of_the_one_that_is_taken() {
        let (mut peers, a) = (Peers::default(), subject(0));
        arrives(&mut peers, &a, 5, "five");
        peers.next(&a);
        arrives(&mut peers, &a, 4, "four");
        // One of a stream that was made anew, with the same number.
        peers.arrived(&a, (2, 5), 1, "another five", true);
        assert_eq!((peers.taking(&a), peers.len()), (Some((at(5), &"five")), 3));
        for name in ["five", "four", "another five"] {
            assert_eq!(peers.taken(&a, true), Some((name, false)));
            peers.next(&a);
        }
    }

    #[test]
    fn after_a_restart_what_an_older_one_was_is_waited_for() {
        let (mut peers, a) = (Peers::default(), subject(0));
        assert!(peers.arrived(&a, at(7), 1, 7, false).asks);
        assert_eq!(peers.next(&a), None);
        assert!(peers.oldest_is(&a, Some(at(5))));
        assert!(!peers.arrived(&a, at(6), 1, 6, false).asks);
        assert_eq!(peers.next(&a), None);
        peers.arrived(&a, at(5), 1, 5, false);
        for seq in 5..=7 {
            assert_eq!(peers.next(&a), Some((at(seq), &seq)));
            let asks = peers.taken(&a, false).unwrap().1;
            assert_eq!((asks, peers.next(&a)), (seq < 7, None));
            peers.oldest_is(&a, Some(at(seq + 1)));
        }
        // The oldest itself, or one whose elders are gone meanwhile.
        assert!(peers.arrived(&a, at(9), 1, 9, false).asks);
        assert!(!peers.oldest_is(&a, Some(at(9))));
        assert_eq!(peers.next(&a), Some((at(9), &9)));
    }

    #[test]
    fn one_who_floods_leaves_room_for_others() {
        let mut peers = Peers::default();
        let flood = subject(0);
        // Whether the stream still has what was given back is asked once, not for each.
        let checks = (0..10_000).filter(|&seq| arrives(&mut peers, &flood, seq, seq).checks).count();
        assert_eq!(checks, 1);
        peers.still_there(&flood, Some(at(HELD_SHARED_MAX as u64)));
        assert_eq!((peers.len(), peers.given_back()), (HELD_SHARED_MAX, 10_000 - HELD_SHARED_MAX));
        for n in 1..90 {
            for seq in 0..64 {
                let arrived = arrives(&mut peers, &subject(n), 20_000 + seq, seq);
                assert_eq!(arrived.give_back, None, "{n} {seq}");
            }
        }
        // What was given back comes before what is newer, though there is room.
        for _ in 0..HELD_SHARED_MAX {
            peers.next(&flood);
            peers.taken(&flood, true);
        }
        let newer = arrives(&mut peers, &flood, 10_000, 10_000);
        assert_eq!((newer.give_back, newer.checks), (Some(10_000), true));
        let next = HELD_SHARED_MAX as u64;
        assert_eq!(arrives(&mut peers, &flood, next, next).give_back, None);
        assert_eq!(peers.next(&flood), Some((at(next), &next)));
        // Those that are no longer in the stream are not waited for.
        peers.taken(&flood, true);
        peers.still_there(&flood, Some(at(10_000)));
        assert_eq!(peers.given_back(), 1);
        assert_eq!(arrives(&mut peers, &flood, 10_000, 10_000).give_back, None);
        assert_eq!(peers.next(&flood), Some((at(10_000), &10_000)));
        assert_eq!(peers.given_back(), 0);
    }

    proptest! {
        /// Whatever is delivered when, and however often: every message of a peer is taken once, in order.
        #[test]
        fn order_holds(
            deliveries in proptest::collection::vec((0_usize..3, 0_usize..4), 1..200),
            count in 1_u64..12,
        ) {
            let mut peers: Peers<u64> = Peers::default();
            let mut stream: BTreeMap<usize, BTreeSet<Place>> =
                (0..3).map(|peer| (peer, (1..=count).map(|n| at(n * 3 + peer as u64)).collect())).collect();
            let mut last = [(0, 0); 3];
            let mut step = |peers: &mut Peers<u64>, stream: &mut BTreeMap<usize, BTreeSet<Place>>, peer: usize, nth: usize| {
                let there = &stream[&peer];
                let Some(seq) = there.iter().nth(nth % there.len().max(1)).copied() else { return Ok(()) };
                let subject = subject(peer);
                if peers.arrived(&subject, seq, 1, seq.1, false).asks {
                    let oldest = stream[&peer].first().copied();
                    peers.oldest_is(&subject, oldest);
                }
                while let Some((seq, _)) = peers.next(&subject) {
                    prop_assert!(seq > last[peer], "{seq:?} after {:?}", last[peer]);
                    prop_assert_eq!(Some(&seq), stream[&peer].first());
                    last[peer] = seq;
                    stream.get_mut(&peer).unwrap().remove(&seq);
                    if peers.taken(&subject, false).is_some_and(|(_, asks)| asks) {
                        peers.oldest_is(&subject, stream[&peer].first().copied());
                    }
                }
                Ok(())
            };
            for (peer, nth) in deliveries {
                step(&mut peers, &mut stream, peer, nth)?;
            }
            // In the end everything is delivered again until it is acknowledged.
            for peer in 0..3 {
                for _ in 0..count {
                    step(&mut peers, &mut stream, peer, 0)?;
                }
                prop_assert!(stream[&peer].is_empty());
            }
            prop_assert_eq!((peers.len(), peers.peers()), (0, 0));
        }
    }
}
