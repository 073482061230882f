//! The lanes of a cluster: their order is that of the prompts in its log, which all daemons read.
//!
//! A run is in its lane from when its prompt is in the log until its end is; the first one has its turn. Whoever has the
//! prompt has all that came before it: so no two runs of a lane take place at once, wherever their sessions are.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawmux_core::conversation::lane::LaneChange;
use clawmux_core::daemon::command::LaneRow;
use clawmux_core::ids::{LaneName, RunId, SessionKey};
use tokio::sync::oneshot;

use super::row;

/// A run, and its session.
pub(super) type Run = (SessionKey, RunId);

/// All lanes.
#[derive(Default)]
pub(super) struct LanesOfLog(Mutex<Order>);

#[derive(Default)]
struct Order {
    lanes: HashMap<LaneName, Vec<Run>>,
    /// Who waits here for the turn of a run, which may not be in its lane yet.
    waiting: HashMap<Run, oneshot::Sender<()>>,
}

impl LanesOfLog {
    /// What a record did to a session. Told twice, it happens once.
    pub(super) fn changed(&self, session: &SessionKey, changes: &[LaneChange]) {
        let mut order = self.lock();
        for change in changes {
            match change {
                LaneChange::Entered(run, lane) => {
                    let of = (session.clone(), run.clone());
                    let lane = order.lanes.entry(lane.clone()).or_default();
                    if !lane.contains(&of) {
                        lane.push(of);
                    }
                }
                LaneChange::Left(run) => order.leave(|(of, left)| left == run && of == session),
            }
        }
        order.give_turns();
    }

    /// A session is no more.
    pub(super) fn deleted(&self, session: &SessionKey) {
        let mut order = self.lock();
        order.leave(|(of, _)| of == session);
        order.give_turns();
    }

    /// All runs that are in a lane, in their order.
    pub(super) fn read(&self, all: Vec<(LaneName, Run)>) {
        let mut order = self.lock();
        order.lanes.clear();
        for (lane, run) in all {
            order.lanes.entry(lane).or_default().push(run);
        }
        order.give_turns();
    }

    /// What says that the turn of a run has come.
    pub(super) fn turn(&self, run: Run) -> oneshot::Receiver<()> {
        let (turn, comes) = oneshot::channel();
        let mut order = self.lock();
        order.waiting.insert(run, turn);
        order.give_turns();
        comes
    }

    /// Nobody waits for the turn of a run any more.
    pub(super) fn forget(&self, run: &Run) {
        self.lock().waiting.remove(run);
    }

    /// The first run of a lane.
    pub(super) fn current(&self, lane: &LaneName) -> Option<Run> {
        self.lock().lanes.get(lane)?.first().cloned()
    }

    /// How many come before a run; all, where it is not there yet.
    pub(super) fn ahead(&self, lane: &LaneName, run: Option<&Run>) -> usize {
        let order = self.lock();
        let Some(lane) = order.lanes.get(lane) else { return 0 };
        run.and_then(|run| lane.iter().position(|of| of == run)).unwrap_or(lane.len())
    }

    /// Those in which runs are.
    pub(super) fn rows(&self) -> Vec<LaneRow> {
        self.lock().lanes.iter().filter_map(|(name, lane)| row(name, lane.len())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Order> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn leave(&mut self, has_left: impl Fn(&Run) -> bool) {
        self.lanes.retain(|_, lane| {
            lane.retain(|run| !has_left(run));
            !lane.is_empty()
        });
    }

    /// Tells who waits for a turn that has come.
    fn give_turns(&mut self) {
        for first in self.lanes.values().filter_map(|lane| lane.first()) {
            if let Some(turn) = self.waiting.remove(first) {
                // One that is dropped at this moment leaves by the log.
                let _ = turn.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str) -> SessionKey {
        SessionKey::new("main", "test", name, "main").unwrap()
    }

    fn entered(run: &str) -> [LaneChange; 1] {
        [LaneChange::Entered(run.into(), "l".into())]
    }

    fn left(run: &str) -> [LaneChange; 1] {
        [LaneChange::Left(run.into())]
    }

    #[test]
    fn the_turn_comes_in_the_order_of_the_log_whoever_waits_first() {
        let (lanes, lane) = (LanesOfLog::default(), LaneName::from("l"));
        let [a, b] = ["a", "b"].map(|name| (session(name), RunId::from(name)));
        let mut second = lanes.turn(b.clone());
        lanes.changed(&a.0, &entered("a"));
        lanes.changed(&b.0, &entered("b"));
        lanes.changed(&b.0, &entered("b"));
        assert!(second.try_recv().is_err(), "a is elsewhere, and is first");
        assert_eq!((lanes.current(&lane), lanes.ahead(&lane, Some(&b))), (Some(a.clone()), 1));
        assert_eq!(lanes.ahead(&lane, None), 2);
        assert!(lanes.turn(a.clone()).try_recv().is_ok(), "it is at once, where it is first");
        lanes.changed(&b.0, &left("a"));
        assert!(second.try_recv().is_err(), "the run of that name of another session has left");
        lanes.changed(&a.0, &left("a"));
        assert!(second.try_recv().is_ok());
        lanes.deleted(&b.0);
        assert_eq!((lanes.current(&lane), lanes.rows()), (None, Vec::new()));
    }

    #[test]
    fn what_is_read_anew_keeps_who_waits() {
        let lanes = LanesOfLog::default();
        let [a, b] = ["a", "b"].map(|name| (session(name), RunId::from(name)));
        let mut turn = lanes.turn(b.clone());
        lanes.read(vec![("l".into(), a), ("l".into(), b.clone())]);
        assert!(turn.try_recv().is_err());
        lanes.read(vec![("l".into(), b)]);
        assert!(turn.try_recv().is_ok());
    }

    #[test]
    fn nobody_waits_for_a_run_that_was_let_go() {
        let lanes = LanesOfLog::default();
        let a = (session("a"), RunId::from("a"));
        let mut turn = lanes.turn(a.clone());
        lanes.forget(&a);
        lanes.changed(&a.0, &entered("a"));
        assert!(turn.try_recv().is_err());
    }
}
