//! The lanes that sessions share: whose turn it is among runs of which one takes place at a time.
//!
//! The order is the core's ([`clawmux_core::conversation::lane`]). A run has a [`LaneGuard`] in its lane from when it is
//! sent to its session until it is over, however that comes about: the spot is given back when it is
//! dropped, so by the end of the run, by an abort, by a session that panics, falls asleep or is deleted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::conversation::lane::{Lane, LanePosition};
use clawmux_core::daemon::command::LaneRow;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{LaneName, RunId, SessionKey};
use clawmux_core::time::Timestamp;
use tokio::sync::oneshot;

use crate::runtime::clock;

/// The most runs in one lane.
pub const RUNS_MAX: usize = 256;
/// The most bytes of prompts in one lane, but for a single one.
pub const BYTES_MAX: usize = 64 << 20;

/// All lanes; shared by the supervisor of the sessions and these.
#[derive(Clone, Default)]
pub struct Lanes(Arc<Mutex<HashMap<LaneName, Lane<RunInLane>>>>);

/// A run in a lane.
struct RunInLane {
    session: SessionKey,
    run: RunId,
    /// What its prompt takes of memory.
    bytes: usize,
    turn: Option<oneshot::Sender<()>>,
}

impl RunInLane {
    fn new(session: &SessionKey, run: RunId, bytes: usize) -> (Self, oneshot::Receiver<()>) {
        let (turn, comes) = oneshot::channel();
        (Self { session: session.clone(), run, bytes, turn: Some(turn) }, comes)
    }
}

/// A run's place in a lane, until this is dropped.
pub struct LaneGuard {
    lanes: Lanes,
    lane: LaneName,
    place: LanePosition,
    turn: oneshot::Receiver<()>,
}

impl Lanes {
    /// The last spot, for a run that is on its way to its session and whose prompt takes so many bytes of
    /// memory.
    ///
    /// # Errors
    /// `RateLimited` where too many wait, or too much: a lane spans sessions, whose own bounds do not
    /// hold it.
    pub fn enter(
        &self,
        lane: &LaneName,
        session: &SessionKey,
        run: &RunId,
        bytes: usize,
    ) -> Result<LaneGuard, Error> {
        let (waiting, turn) = RunInLane::new(session, run.clone(), bytes);
        let now = clock::now();
        let place = self.with(lane, |lane| {
            let held: usize = lane.all().map(|(_, waiting)| waiting.bytes).sum();
            if lane.len() >= RUNS_MAX || (held > 0 && held + bytes > BYTES_MAX) {
                let (runs, mebibytes) = (lane.len(), held >> 20);
                return Err(ErrorCode::RateLimited.error(format!(
                    "too much waits for its turn ({runs} runs, {mebibytes} MiB): try again later"
                )));
            }
            Ok(lane.enter(now, waiting))
        })?;
        Ok(LaneGuard { lanes: self.clone(), lane: lane.clone(), place, turn })
    }

    /// The spots of the runs that a session read back from its log, in the order they have there:
    /// before what is on its way to it.
    pub fn enter_again(
        &self,
        session: &SessionKey,
        runs: impl Iterator<Item = (RunId, LaneName, Timestamp)>,
    ) -> Vec<(RunId, LaneGuard)> {
        let now = clock::now();
        let mut last: HashMap<LaneName, (Option<LanePosition>, Option<LanePosition>)> = HashMap::new();
        runs.map(|(run, lane, accepted)| {
            // It was let in before, and is in memory already.
            let (waiting, turn) = RunInLane::new(session, run.clone(), 0);
            let between = last.entry(lane.clone()).or_insert_with(|| {
                let on_its_way = |lane: &mut Lane<RunInLane>| {
                    lane.all().find(|(_, waiting)| waiting.session == *session).map(|(place, _)| place)
                };
                (None, self.with(&lane, on_its_way))
            });
            let place = self.with(&lane, |lane| lane.enter_again(now, accepted, *between, waiting));
            between.0 = Some(place);
            (run, LaneGuard { lanes: self.clone(), lane, place, turn })
        })
        .collect()
    }

    /// The run that is active in a lane, or about to be, and its session.
    pub fn current(&self, lane: &LaneName) -> Option<(SessionKey, RunId)> {
        let lanes = self.lock();
        lanes.get(lane)?.current().map(|waiting| (waiting.session.clone(), waiting.run.clone()))
    }

    /// Those in which runs are, by name.
    pub fn rows(&self) -> Vec<LaneRow> {
        let lanes = self.lock();
        let used = lanes.iter().filter(|(_, lane)| !lane.is_empty());
        let mut rows: Vec<_> = used
            .map(|(name, lane)| LaneRow { name: name.clone(), active: 1, waiting: lane.len() - 1 })
            .collect();
        drop(lanes);
        rows.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        rows
    }

    /// How many runs are in all lanes together.
    pub fn len(&self) -> usize {
        self.lock().values().map(Lane::len).sum()
    }

    /// Whether none is in any.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does something with a lane, and tells whose turn it is then.
    fn with<T>(&self, name: &LaneName, change: impl FnOnce(&mut Lane<RunInLane>) -> T) -> T {
        let mut lanes = self.lock();
        let lane = lanes.entry(name.clone()).or_insert_with(|| Lane::new(clock::now()));
        let changed = change(lane);
        if let Some(turn) = lane.turn().and_then(|waiting| waiting.turn.take()) {
            // One that is dropped at this moment leaves next.
            let _ = turn.send(());
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LaneName, Lane<RunInLane>>> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneGuard {
    /// The run is in the queue of its session: from here on its turn may come.
    pub fn ready(&self) {
        self.lanes.with(&self.lane, |lane| lane.ready(self.place));
    }

    /// How many come before it.
    pub fn ahead(&self) -> usize {
        self.lanes.with(&self.lane, |lane| lane.ahead(self.place))
    }

    /// Whether its turn has come; asked once, whoever waits for it asks [`Self::turn`].
    pub fn has_turn(&mut self) -> bool {
        self.turn.try_recv().is_ok()
    }

    /// What says that its turn has come; an error says that it never will.
    pub fn turn(&mut self) -> oneshot::Receiver<()> {
        let (_, never) = oneshot::channel();
        std::mem::replace(&mut self.turn, never)
    }
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        self.lanes.with(&self.lane, |lane| lane.leave(self.place));
    }
}

impl fmt::Debug for LaneGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spot").field("lane", &self.lane).field("place", &self.place).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lanes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(account: &str) -> SessionKey {
        SessionKey::new("main", "test", account, "main").unwrap()
    }

    #[test]
    fn a_spot_that_is_dropped_lets_the_next_begin() {
        let (lanes, lane) = (Lanes::default(), LaneName::from("l"));
        let [mut a, mut b, mut c] =
            ["a", "b", "c"].map(|run| lanes.enter(&lane, &key(run), &RunId::from(run), 1).unwrap());
        b.ready();
        c.ready();
        assert!(!a.has_turn() && !b.has_turn(), "the first is on its way");
        a.ready();
        assert!(a.has_turn() && !b.has_turn());
        assert_eq!((b.ahead(), c.ahead(), lanes.len()), (1, 2, 3));
        assert_eq!(lanes.rows(), [LaneRow { name: lane.clone(), active: 1, waiting: 2 }]);
        drop(a);
        assert!(b.has_turn() && !c.has_turn());
        assert_eq!(lanes.current(&lane), Some((key("b"), "b".into())));
        let mut turn = c.turn();
        drop(c);
        assert!(turn.try_recv().is_err(), "it never comes");
        drop(b);
        assert!(lanes.is_empty() && lanes.current(&lane).is_none());
    }

    #[test]
    fn a_lane_is_bounded_in_number_and_in_bytes() {
        let (lanes, lane) = (Lanes::default(), LaneName::from("l"));
        let enter = |bytes| lanes.enter(&lane, &key("a"), &"r".into(), bytes);
        let large = enter(BYTES_MAX + 1).unwrap();
        assert_eq!(enter(1).unwrap_err().code, ErrorCode::RateLimited, "one alone may be larger");
        drop(large);
        let spots: Vec<LaneGuard> = (0..RUNS_MAX).map(|_| enter(0).unwrap()).collect();
        assert!(enter(0).unwrap_err().message.contains("256 runs"));
        drop(spots);
        let half = enter(BYTES_MAX / 2).unwrap();
        let _rest = enter(BYTES_MAX / 2).unwrap();
        assert!(enter(1).is_err());
        drop(half);
        enter(1).unwrap();
    }

    #[test]
    fn what_a_session_reads_back_is_before_what_is_on_its_way_to_it() {
        let (lanes, lane) = (Lanes::default(), LaneName::from("l"));
        let mut new = lanes.enter(&lane, &key("a"), &"new".into(), 1).unwrap();
        let now = clock::now();
        let runs = ["one", "two"].map(|run| (RunId::from(run), lane.clone(), now));
        let mut back = lanes.enter_again(&key("a"), runs.into_iter());
        new.ready();
        assert!(back[0].1.has_turn() && !back[1].1.has_turn() && !new.has_turn());
        back.remove(0);
        assert!(back[0].1.has_turn());
        drop(back);
        assert!(new.has_turn());
    }
}
