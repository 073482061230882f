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

impl Store {
    /// Tells a watcher, unless it reads.
    fn tell(&mut self, nth: usize, ctx: &mut Context<Self>) {
        let Some(watcher) = self.watchers.tables.get_mut(nth) else { return };
        watcher.is_due = watcher.reads;
        if std::mem::replace(&mut watcher.reads, true) {
            return;
        }
        // One that is gone is told of nothing more.
        let Some(who) = watcher.who.upgrade() else { return };
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
        self.watchers.tables.push(Watcher { table, who: who.downgrade(), reads: false, is_due: false });
        if self.watchers.changed.contains(table) {
            self.tell(self.watchers.tables.len() - 1, ctx);
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
