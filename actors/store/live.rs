//! The text and the thoughts of steps that still stream, shared by the writer and the reader.
//!
//! They lie on pages that nobody searches; what is asked of them is answered from here. The
//! writer holds it from before a group's first change until the group is committed, the reader
//! while it opens its view of the database and copies what it needs: so the two always agree.
//! Both pass a turnstile first, else a busy writer would take the lock again before a waiting
//! reader wakes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawmux_core::conversation::event::{Logged, Streamed};
use clawmux_core::conversation::log::segment::Segment;
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::time::Timestamp;

/// [`Live`], behind its turnstile.
#[derive(Debug, Default)]
pub(super) struct Shared {
    turnstile: Mutex<()>,
    live: Mutex<Live>,
}

impl Shared {
    /// Waits for its turn. The writer repairs what a panic left behind before it lets go, so a
    /// poisoned lock means nothing.
    pub(super) fn enter(&self) -> MutexGuard<'_, Live> {
        let _turn = self.turnstile.lock().unwrap_or_else(PoisonError::into_inner);
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of no page.
pub(super) const NO_PAGE: i64 = 0;

/// The text of one run's present step.
#[derive(Clone, Debug)]
pub(super) struct LiveRun {
    /// The run's number in the database.
    pub(super) row: i64,
    /// The run.
    pub(super) run: RunId,
    /// In order.
    pub(super) segments: Vec<Segment>,
    /// The pages that hold it, ascending.
    pub(super) pages: Vec<i64>,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Live {
    sessions: HashMap<SessionKey, Vec<LiveRun>>,
    /// Whether it could not be brought back to what is committed: nobody may look at it then.
    pub(super) broken: bool,
}

impl Live {
    /// Adds a piece; says whether the run was not on this page before.
    pub(super) fn push(
        &mut self,
        place: Place<'_>,
        (seq, at): (Seq, Timestamp),
        (of, text): (Streamed, &str),
    ) -> bool {
        // Looked up first, so that the key is cloned only for the first piece.
        let runs = match self.sessions.get_mut(place.session) {
            Some(runs) => runs,
            None => self.sessions.entry(place.session.clone()).or_default(),
        };
        let index = runs.iter().position(|run| run.row == place.row).unwrap_or_else(|| {
            let run = place.run.clone();
            runs.push(LiveRun { row: place.row, run, segments: Vec::new(), pages: Vec::new() });
            runs.len() - 1
        });
        let run = &mut runs[index];
        let joined = run.segments.last_mut().is_some_and(|segment| segment.push(of, seq, at, text));
        if !joined {
            run.segments.push(Segment::new(of, seq, at, text));
        }
        let fresh = run.pages.last() != Some(&place.page);
        if fresh {
            run.pages.push(place.page);
        }
        fresh
    }

    /// Has a run's text be this, whatever was said here; none = there is none of it.
    pub(super) fn replace(
        &mut self,
        session: &SessionKey,
        (row, run): (i64, &RunId),
        segments: Option<Vec<Segment>>,
    ) {
        let pages = self.take(session, row).map(|run| run.pages).unwrap_or_default();
        if let Some(segments) = segments.filter(|segments| !segments.is_empty()) {
            let run = LiveRun { row, run: run.clone(), segments, pages };
            self.sessions.entry(session.clone()).or_default().push(run);
        }
    }

    /// Takes out a run's text, if there is some.
    pub(super) fn take(&mut self, session: &SessionKey, row: i64) -> Option<LiveRun> {
        let runs = self.sessions.get_mut(session)?;
        let index = runs.iter().position(|run| run.row == row)?;
        let run = runs.swap_remove(index);
        if runs.is_empty() {
            self.sessions.remove(session);
        }
        Some(run)
    }

    /// Forgets a session's text that is on no page.
    pub(super) fn forget(&mut self, session: &SessionKey) {
        if let Some(runs) = self.sessions.get_mut(session) {
            runs.retain(|run| run.pages.iter().any(|page| *page != NO_PAGE));
            if runs.is_empty() {
                self.sessions.remove(session);
            }
        }
    }

    /// A session's text after a number and up to another, in order: that of one run or of all; not more
    /// once there are so many bytes of it.
    pub(super) fn between(
        &self,
        session: &SessionKey,
        run: Option<&RunId>,
        (after, up_to): (Seq, Seq),
        bytes_max: usize,
    ) -> Vec<Logged> {
        let runs = self.of(session).iter().filter(|live| run.is_none_or(|run| live.run == *run));
        let mut segments: Vec<(&RunId, &Segment)> = runs
            .flat_map(|live| live.segments.iter().map(|segment| (&live.run, segment)))
            .filter(|(_, segment)| segment.seq() > after)
            .collect();
        segments.sort_unstable_by_key(|(_, segment)| segment.seq());
        let mut bytes = 0;
        let mut rest = Vec::new();
        for (run, segment) in segments {
            if bytes >= bytes_max {
                break;
            }
            if let Some(logged) = segment.between(run, after, up_to) {
                bytes += logged.event.bytes();
                rest.push(logged);
            }
        }
        rest
    }

    fn of(&self, session: &SessionKey) -> &[LiveRun] {
        self.sessions.get(session).map_or(&[], Vec::as_slice)
    }

    /// The last number a session has here; 0 if none.
    pub(super) fn head(&self, session: &SessionKey) -> u64 {
        let last = self.of(session).iter().filter_map(|run| run.segments.last());
        last.map(|segment| segment.seq().0).max().unwrap_or(0)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sessions.clear();
    }

    /// How many steps stream.
    pub(super) fn len(&self) -> usize {
        self.sessions.values().map(Vec::len).sum()
    }
}

/// Where a piece of text belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) session: &'a SessionKey,
    pub(super) row: i64,
    pub(super) run: &'a RunId,
    pub(super) page: i64,
}
