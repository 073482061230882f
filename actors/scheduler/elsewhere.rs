//! What other daemons of a cluster changed of the jobs.
//!
//! It is read anew, as at the start, and what is known of each job is what the store has then. That says nothing of what
//! this daemon is having written down meanwhile: what was read while something was is read again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::schedule::job::{Job, JobChange};
use tokio::sync::oneshot;

use super::{Entry, Scheduler};
use crate::runtime::ask::ask;
use crate::store::{KeptJobs, ReadJobs, TableChanged, until_read};

/// How soon the jobs are read again where something was being written down.
const READ_AGAIN: Duration = Duration::from_millis(50);

/// Counts what is being written down.
#[derive(Debug, Default)]
pub(super) struct Writes(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: Cell<u64>,
    over: Cell<u64>,
}

/// Something is being written down, until this is dropped.
pub(super) struct Writing(Rc<Counts>);

impl Writes {
    pub(super) fn begin(&self) -> Writing {
        self.0.begun.set(self.0.begun.get() + 1);
        Writing(Rc::clone(&self.0))
    }

    /// How many there were, where none is under way.
    fn rest(&self) -> Option<u64> {
        let begun = self.0.begun.get();
        (self.0.over.get() == begun).then_some(begun)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.over.set(self.0.over.get() + 1);
    }
}

impl Scheduler {
    fn read_again(&mut self, changed: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        let Some(before) = self.writes.rest() else {
            ctx.run_later(READ_AGAIN, |scheduler, ctx| scheduler.read_again(changed, ctx));
            return;
        };
        let store = self.setup.store.clone();
        let read = async move { ask(&store, ReadJobs).await.flatten() };
        ctx.spawn(read.into_actor(self).map(move |read, scheduler, ctx| match read {
            Ok(kept) if scheduler.writes.rest() == Some(before) => {
                scheduler.replace(kept);
                scheduler.look(ctx);
                drop(changed);
            }
            read => {
                if let Err(error) = read {
                    tracing::warn!(%error, "what another daemon changed of the jobs can't be read");
                }
                ctx.run_later(READ_AGAIN, |scheduler, ctx| scheduler.read_again(changed, ctx));
            }
        }));
    }

    /// The jobs are these, and what is new of them is told; what goes on here goes on.
    fn replace(&mut self, KeptJobs { jobs, last, .. }: KeptJobs) {
        let mut before = std::mem::take(&mut self.jobs);
        let mut news = Vec::new();
        let mut last: BTreeMap<_, _> = last.into_iter().map(|firing| (firing.job.clone(), firing)).collect();
        for job in jobs {
            let last = last.remove(&job.id);
            let entry = match before.remove(&job.id) {
                Some(entry) => {
                    // That it was done is told as its end.
                    if entry.job != (Job { settled: entry.job.settled, ..job.clone() }) {
                        news.push((job.clone(), JobChange::Updated));
                    }
                    if let Some(firing) = last.as_ref().filter(|last| entry.last.as_ref() != Some(last)) {
                        news.push((job.clone(), JobChange::Finished(Box::new(firing.clone()))));
                    }
                    Entry { job, last, ..entry }
                }
                None => {
                    news.push((job.clone(), JobChange::Added));
                    Entry::new(job, last)
                }
            };
            self.jobs.insert(entry.job.id.clone(), entry);
        }
        news.extend(before.into_values().map(|entry| (entry.job, JobChange::Removed)));
        for (job, what) in news {
            self.announce(&job, what);
        }
    }
}

impl Handler<TableChanged> for Scheduler {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: TableChanged, ctx: &mut Self::Context) -> Self::Result {
        let (changed, read) = until_read();
        self.read_again(changed, ctx);
        read
    }
}
