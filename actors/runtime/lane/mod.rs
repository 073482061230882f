//! The lanes that sessions share: whose turn it is among runs of which one takes place at a time.
//!
//! The order is the core's ([`clawmux_core::conversation::lane`]). A run has a [`LaneGuard`] in its lane from when it is
//! sent to its session until it is over, however that comes about: the spot is given back when it is
//! dropped, so by the end of the run, by an abort, by a session that panics, falls asleep or is deleted. In a cluster the
//! order is that of the log ([`of_log`]), and a guard is only who waits there.

mod of_log;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::conversation::lane::{Lane, LaneChange, LanePosition};
use clawmux_core::daemon::command::LaneRow;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{LaneName, RunId, SessionKey};
use clawmux_core::time::Timestamp;
use tokio::sync::oneshot;

use crate::runtime::clock;
use of_log::LanesOfLog;

/// The most runs in one lane.
pub const RUNS_MAX: usize = 256;
/// The most bytes of prompts in one lane, but for a single one.
pub const BYTES_MAX: usize = 64 << 20;

/// All lanes; shared by the supervisor of the sessions and these.
#[derive(Clone, Default)]
pub struct Lanes {
    order: Arc<Mutex<HashMap<LaneName, Lane<RunInLane>>>>,
    /// In a cluster, instead of it.
    of_log: Option<Arc<LanesOfLog>>,
}

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
    place: Place,
    turn: oneshot::Receiver<()>,
}

enum Place {
    Here(LanePosition),
    InLog(Arc<LanesOfLog>, of_log::Run),
}

impl Lanes {
    /// Those of a cluster: they are told what its log says.
    pub fn of_log() -> Self {
        Self { of_log: Some(Arc::default()), ..Self::default() }
    }

    /// All runs that are in a lane, in the order of the log.
    pub fn read(&self, all: Vec<(LaneName, SessionKey, RunId)>) {
        if let Some(lanes) = &self.of_log {
            lanes.read(all.into_iter().map(|(lane, session, run)| (lane, (session, run))).collect());
        }
    }

    /// What a record of the log did to a session.
    pub fn changed(&self, session: &SessionKey, changes: &[LaneChange]) {
        if let Some(lanes) = self.of_log.as_ref().filter(|_| !changes.is_empty()) {
            lanes.changed(session, changes);
        }
    }

    /// A session of the log is no more.
    pub fn deleted(&self, session: &SessionKey) {
        if let Some(lanes) = &self.of_log {
            lanes.deleted(session);
        }
    }

    /// The place of a run whose prompt is in the log by now; none where it took its place before.
    pub fn written(&self, lane: &LaneName, session: &SessionKey, run: &RunId) -> Option<LaneGuard> {
        let of_log = self.of_log.as_ref()?;
        let run = (session.clone(), run.clone());
        let turn = of_log.turn(run.clone());
        let place = Place::InLog(Arc::clone(of_log), run);
        Some(LaneGuard { lanes: self.clone(), lane: lane.clone(), place, turn })
    }

    /// How many runs come before one whose prompt is not in the log yet.
    pub fn ahead_of_new(&self, lane: &LaneName) -> usize {
        self.of_log.as_ref().map_or(0, |lanes| lanes.ahead(lane, None))
    }

    /// The last spot, for a run that is on its way to its session and whose prompt takes so many bytes of
    /// memory; none in a cluster, where it takes it once it is written.
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
    ) -> Result<Option<LaneGuard>, Error> {
        if let Some(lanes) = &self.of_log {
            let ahead = lanes.ahead(lane, None);
            return if ahead < RUNS_MAX { Ok(None) } else { Err(too_much(ahead, 0)) };
        }
        let (waiting, turn) = RunInLane::new(session, run.clone(), bytes);
        let now = clock::now();
        let place = self.with(lane, |lane| {
            let held: usize = lane.all().map(|(_, waiting)| waiting.bytes).sum();
            if lane.len() >= RUNS_MAX || (held > 0 && held + bytes > BYTES_MAX) {
                return Err(too_much(lane.len(), held));
            }
            Ok(lane.enter(now, waiting))
        })?;
        Ok(Some(LaneGuard { lanes: self.clone(), lane: lane.clone(), place: Place::Here(place), turn }))
    }

    /// The spots of the runs that a session read back from its log, in the order they have there:
    /// before what is on its way to it.
    pub fn enter_again(
        &self,
        session: &SessionKey,
        runs: impl Iterator<Item = (RunId, LaneName, Timestamp)>,
    ) -> Vec<(RunId, LaneGuard)> {
        if self.of_log.is_some() {
            let back =
                runs.filter_map(|(run, lane, _)| Some((run.clone(), self.written(&lane, session, &run)?)));
            return back.collect();
        }
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
            (run, LaneGuard { lanes: self.clone(), lane, place: Place::Here(place), turn })
        })
        .collect()
    }

    /// The run that is active in a lane, or about to be, and its session.
    pub fn current(&self, lane: &LaneName) -> Option<(SessionKey, RunId)> {
        if let Some(lanes) = &self.of_log {
            return lanes.current(lane);
        }
        let lanes = self.lock();
        lanes.get(lane)?.current().map(|waiting| (waiting.session.clone(), waiting.run.clone()))
    }

    /// Those in which runs are, by name.
    pub fn rows(&self) -> Vec<LaneRow> {
        let mut rows = match &self.of_log {
            Some(lanes) => lanes.rows(),
            None => self.lock().iter().filter_map(|(name, lane)| row(name, lane.len())).collect(),
        };
        rows.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        rows
    }

    /// How many runs are in all lanes together.
    pub fn len(&self) -> usize {
        self.rows().iter().map(|row| row.active + row.waiting).sum()
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
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane as lists show it; none where nothing is in it.
fn row(name: &LaneName, runs: usize) -> Option<LaneRow> {
    Some(LaneRow { name: name.clone(), active: 1, waiting: runs.checked_sub(1)? })
}

fn too_much(runs: usize, held: usize) -> Error {
    let mebibytes = held >> 20;
    let why = format!("too much waits for its turn ({runs} runs, {mebibytes} MiB): try again later");
    ErrorCode::RateLimited.error(why)
}

impl LaneGuard {
    /// The run is in the queue of its session: from here on its turn may come.
    pub fn ready(&self) {
        if let Place::Here(place) = self.place {
            self.lanes.with(&self.lane, |lane| lane.ready(place));
        }
    }

    /// How many come before it.
    pub fn ahead(&self) -> usize {
        match &self.place {
            Place::Here(place) => self.lanes.with(&self.lane, |lane| lane.ahead(*place)),
            Place::InLog(of_log, run) => of_log.ahead(&self.lane, Some(run)),
        }
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
        match &self.place {
            Place::Here(place) => drop(self.lanes.with(&self.lane, |lane| lane.leave(*place))),
            Place::InLog(of_log, run) => of_log.forget(run),
        }
    }
}

impl fmt::Debug for LaneGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spot").field("lane", &self.lane).finish_non_exhaustive()
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
            ["a", "b", "c"].map(|run| lanes.enter(&lane, &key(run), &RunId::from(run), 1).unwrap().unwrap());
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
        let enter = |bytes| lanes.enter(&lane, &key("a"), &"r".into(), bytes).map(Option::unwrap);
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
        let mut new = lanes.enter(&lane, &key("a"), &"new".into(), 1).unwrap().unwrap();
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
