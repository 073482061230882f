//! What owners have at other daemons of a cluster counts against their quota here, too.
//!
//! Here it is counted as it is written; what another daemon does is in the store a moment later. Whenever that is heard
//! the store is asked how much each owner has, and that counts from then on, with what uploads here have received since
//! the store was told. Of an upload that goes on at another daemon its whole size counts, where that was announced; else
//! what its daemon has told the store, a few megabytes at a time. An upload that another daemon removed is given up. An owner whose uploads go on meanwhile is counted a moment later. So who uploads to several
//! daemons at once may have more than the quota, by what was put within a moment.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::Error;
use clawmux_core::ids::Owner;
use clawmux_core::memory::file::FileId;

use super::uploads::State;
use super::{Account, Files};
use crate::runtime::ask::ask;
use crate::store::{FileTotals, ReadFile, ReadFileTotals, TableChanged};

/// The pause before those are counted whose uploads went on.
const SOON: Duration = Duration::from_secs(1);

/// How much was counted when the store was asked.
#[derive(Debug)]
struct Counted {
    used: HashMap<Owner, u64>,
    /// What each upload had, but for those that were under way.
    received: HashMap<FileId, u64>,
}

impl Handler<TableChanged> for Files {
    type Result = ResponseActFuture<Self, ()>;

    /// What another daemon removed is removed here with the next look.
    fn handle(&mut self, _: TableChanged, _: &mut Self::Context) -> Self::Result {
        self.is_changed_elsewhere = true;
        self.count_anew()
    }
}

impl Files {
    /// Asks the store what owners have, and again where that can't be said now.
    fn count_anew(&self) -> ResponseActFuture<Self, ()> {
        let (before, store) = (self.counted(), self.setup.store.clone());
        let asked: Vec<FileId> = before.received.keys().copied().collect();
        let totals = async move {
            let totals = ask(&store, ReadFileTotals).await.flatten()?;
            let there: HashSet<FileId> = totals.unfinished.iter().map(|row| row.id).collect();
            let mut removed = Vec::new();
            for id in asked.into_iter().filter(|id| !there.contains(id)) {
                // One that is complete is there.
                if ask(&store, ReadFile(id)).await.flatten()?.is_none() {
                    removed.push(id);
                }
            }
            Ok::<_, Error>((totals, removed))
        };
        Box::pin(totals.into_actor(self).map(move |totals, files, ctx| {
            for id in totals.iter().flat_map(|(_, removed)| removed) {
                if files.uploads.get(id).is_some_and(|upload| matches!(upload.state, State::Idle(_))) {
                    files.give_up(*id, None, ctx);
                }
            }
            // A store that can't be read says so itself.
            if !totals.is_ok_and(|(totals, _)| files.count(&totals, &before)) {
                ctx.run_later(SOON, |files, ctx| {
                    let counted = files.count_anew();
                    ctx.spawn(counted);
                });
            }
        }))
    }

    fn counted(&self) -> Counted {
        let used = self.accounts.iter().map(|(owner, account)| (owner.clone(), account.allowance.used()));
        let received = self.uploads.iter().filter_map(|(id, upload)| match &upload.state {
            State::Idle(writing) => Some((*id, writing.received())),
            _ => None,
        });
        Counted { used: used.collect(), received: received.collect() }
    }

    /// Takes these totals over for owners of whom nothing has changed since. Whether those are all.
    fn count(&mut self, totals: &FileTotals, before: &Counted) -> bool {
        let now = self.counted();
        let mut here: HashMap<&Owner, (u64, bool)> = HashMap::new();
        for (id, upload) in &self.uploads {
            let (received, is_at_rest) = here.entry(&upload.row.owner).or_insert((0, true));
            let same = before.received.get(id).filter(|before| now.received.get(id) == Some(before));
            *is_at_rest &= same.is_some();
            *received += same.unwrap_or(&0);
        }
        for owner in self.removing.values() {
            here.entry(owner).or_insert((0, true)).1 = false;
        }
        let mut told: HashMap<&Owner, u64> = HashMap::new();
        let mut found: HashMap<&Owner, (u64, u64)> =
            totals.owners.iter().map(|(owner, files, bytes)| (owner, (*files, *bytes))).collect();
        for row in &totals.unfinished {
            if self.uploads.contains_key(&row.id) {
                *told.entry(&row.owner).or_default() += row.size;
            } else if let Some((_, bytes)) = found.get_mut(&row.owner) {
                *bytes = bytes.saturating_add(row.about.total.unwrap_or(0).saturating_sub(row.size));
            }
        }
        for owner in self.accounts.keys() {
            found.entry(owner).or_default();
        }
        let mut are_all = true;
        let mut counted = Vec::new();
        for (owner, (files, bytes)) in found {
            let (received, is_at_rest) = here.get(owner).copied().unwrap_or((0, true));
            if !is_at_rest || before.used.get(owner) != now.used.get(owner) {
                are_all = false;
                continue;
            }
            let told = told.get(owner).copied().unwrap_or_default();
            counted.push((owner.clone(), files, bytes.saturating_sub(told).saturating_add(received)));
        }
        for (owner, files, used) in counted {
            let Account { allowance, files: known, .. } = self.account(&owner);
            allowance.set_used(used);
            *known = files;
        }
        are_all
    }
}
