//! What other daemons of the cluster changed, told to the actors here that keep it in memory.
//!
//! Such an actor watches its table ([`Watch`]). Whoever has the store apply the log says what in it was decided
//! elsewhere ([`ChangedElsewhere`]), and the actor reads its table anew, as at its start. One is told once at a time:
//! of what comes while it reads it is told when it has, in one. What model calls of others cost is told as it is
//! ([`SpentElsewhere`]), since it is added to what is known.
//!
//! What was changed before somebody watches is told at once. A daemon alone is told nothing.

use std::collections::HashSet;

use actix::WeakRecipient;
use actix::prelude::*;
use clawmux_core::conversation::log::usage::UsageRecord;
use tokio::sync::oneshot;

use super::Store;

/// Tells of a table from now on.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Watch {
    /// Its name, as [`Subject`](clawmux_core::replica::Subject) has it.
    pub table: &'static str,
    /// Who is told.
    pub who: Recipient<TableChanged>,
}

/// Another daemon changed a table; answered when what is kept of it is what the store has.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct TableChanged;

/// Tells from now on what model calls of others cost.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct WatchSpending(pub Recipient<SpentElsewhere>);

/// Model calls of another daemon cost this.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct SpentElsewhere(pub Vec<UsageRecord>);

/// The store has applied something of the log that nobody here was told of.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub enum ChangedElsewhere {
    /// This table.
    Table(&'static str),
    /// What calls of models cost.
    Usage(Vec<UsageRecord>),
}

/// Who is told of what.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    tables: Vec<Watcher>,
    /// What was changed since the store was opened.
    changed: HashSet<&'static str>,
    spending: Vec<WeakRecipient<SpentElsewhere>>,
}

#[derive(Debug)]
struct Watcher {
    table: &'static str,
    who: WeakRecipient<TableChanged>,
    /// Whether it was told and has not read it yet.
    reads: bool,
    /// Whether there is something since.
    is_due: bool,
}

/// Has an actor be told when another daemon changed this table.
pub(crate) fn watch<A>(store: &Addr<Store>, table: &'static str, actor: &mut A, ctx: &mut Context<A>)
where
    A: Actor<Context = Context<A>> + Handler<TableChanged>,
{
    let asked = store.send(Watch { table, who: ctx.address().recipient() });
    ctx.spawn(asked.into_actor(actor).map(|_, _, _| ()));
}

/// A change that is to be read: whoever told of it goes on when the first is dropped, for which the second waits.
pub(crate) fn until_read() -> (oneshot::Sender<()>, ResponseFuture<()>) {
    let (changed, read) = oneshot::channel::<()>();
    let read = Box::pin(async move {
        // Never sent, only dropped.
        let _ = read.await;
    });
    (changed, read)
}

impl Store {
    /// Tells a watcher, unless it reads.
    fn tell(&mut self, nth: usize, ctx: &mut Context<Self>) {
        let Some(watcher) = self.watchers.tables.get_mut(nth) else { return };
        watcher.is_due = watcher.reads;
        // One that is gone is told of nothing more.
        let Some(who) = watcher.who.upgrade().filter(|_| !watcher.reads) else { return };
        watcher.reads = true;
        let told = who.send(TableChanged);
        ctx.spawn(told.into_actor(self).map(move |_, store, ctx| {
            let Some(watcher) = store.watchers.tables.get_mut(nth) else { return };
            watcher.reads = false;
            if watcher.is_due {
                store.tell(nth, ctx);
            }
        }));
    }
}

impl Handler<Watch> for Store {
    type Result = ();

    fn handle(&mut self, Watch { table, who }: Watch, ctx: &mut Self::Context) {
        let Watchers { tables, changed, .. } = &mut self.watchers;
        let watcher = Watcher { table, who: who.downgrade(), reads: false, is_due: false };
        // In the place of one that is gone.
        let nth =
            tables.iter().position(|old| !old.reads && old.who.upgrade().is_none()).unwrap_or(tables.len());
        match tables.get_mut(nth) {
            Some(place) => *place = watcher,
            None => tables.push(watcher),
        }
        if changed.contains(table) {
            self.tell(nth, ctx);
        }
    }
}

impl Handler<WatchSpending> for Store {
    type Result = ();

    fn handle(&mut self, WatchSpending(who): WatchSpending, _: &mut Self::Context) {
        self.watchers.spending.push(who.downgrade());
    }
}

impl Handler<ChangedElsewhere> for Store {
    type Result = ();

    fn handle(&mut self, changed: ChangedElsewhere, ctx: &mut Self::Context) {
        match changed {
            ChangedElsewhere::Table(table) => {
                self.watchers.changed.insert(table);
                let tables = self.watchers.tables.iter().enumerate();
                let watching: Vec<usize> =
                    tables.filter(|(_, watcher)| watcher.table == table).map(|(nth, _)| nth).collect();
                watching.into_iter().for_each(|nth| self.tell(nth, ctx));
            }
            ChangedElsewhere::Usage(records) => {
                for who in self.watchers.spending.iter().filter_map(WeakRecipient::upgrade) {
                    let told = who.send(SpentElsewhere(records.clone()));
                    ctx.spawn(told.into_actor(self).map(|_, _, _| ()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;

    /// Says when it is told, and reads until it is let go.
    struct Reader(UnboundedSender<oneshot::Sender<()>>);

    impl Actor for Reader {
        type Context = Context<Self>;
    }

    impl Handler<TableChanged> for Reader {
        type Result = ResponseFuture<()>;

        fn handle(&mut self, _: TableChanged, _: &mut Self::Context) -> Self::Result {
            let (go, read) = oneshot::channel();
            // Nobody lets it go any more where nobody hears.
            let _ = self.0.send(go);
            Box::pin(async move {
                let _ = read.await;
            })
        }
    }

    async fn watching(
        store: &Addr<Store>,
        table: &'static str,
    ) -> (Addr<Reader>, UnboundedReceiver<oneshot::Sender<()>>) {
        let (told, reads) = unbounded_channel();
        let reader = Reader(told).start();
        store.send(Watch { table, who: reader.clone().recipient() }).await.unwrap();
        (reader, reads)
    }

    #[actix::test]
    async fn who_reads_is_told_once_of_all_that_comes_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
        let change = async |table| store.send(ChangedElsewhere::Table(table)).await.unwrap();
        let (_jobs, mut jobs) = watching(&store, "jobs").await;
        change("jobs").await;
        let reads = jobs.recv().await.unwrap();
        for _ in 0..100 {
            change("jobs").await;
            change("tokens").await;
        }
        assert!(jobs.try_recv().is_err(), "it reads still");
        reads.send(()).unwrap();
        jobs.recv().await.unwrap().send(()).unwrap();
        // Of what was changed before, whoever watches later is told at once.
        let (tokens, mut of_tokens) = watching(&store, "tokens").await;
        of_tokens.recv().await.unwrap().send(()).unwrap();
        assert!(jobs.try_recv().is_err(), "a hundred changes were one");
        // One that is gone leaves its place to another.
        drop((tokens, of_tokens));
        change("tokens").await;
        let (_later, mut later) = watching(&store, "tokens").await;
        later.recv().await.unwrap().send(()).unwrap();
        store.send(crate::store::Stop).await.unwrap().unwrap();
    }
}
