//! What is asked about sessions and read from the store, on behalf of whoever asks.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::config::catalog::Catalog;
use clawmux_core::conversation::command::{self, SessionFilter};
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::reply::{
    Compacted, Deleted, Exported, Preview, SessionReply, SessionRow, Stopped,
};
use clawmux_core::conversation::transcript::History;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner, Seq, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::provider::budget::Whose;
use clawmux_core::provider::tally::Spent;
use clawmux_core::scope::Scope;

use crate::provider_supervisor::{BudgetStatus, ProviderSupervisor};
use crate::runtime::ask::ask;
use crate::session::{Session, WritePage};
use crate::store::{
    AskedBy, Describe, Described, FindCut, FindTurn, ListSessions, Namesakes, ReadHistory, ReadPreviews,
    ReadRow, ReadRows, ReadTranscript, Store, exported,
};

/// How many bytes a history has at most as JSON, so that a client that does not read it costs no
/// more than it may; of the newest message there is as much in it as fits.
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// Sessions in one list, and how many bytes they take at most: so much each besides its key.
const LIST_MAX: usize = 1000;
const LIST_BYTES_MAX: usize = 256 * 1024;
const SUMMARY_BYTES: usize = 128;

/// How many bytes a list of whole rows has at most, roughly.
const ROWS_BYTES_MAX: usize = 1024 * 1024;

/// Messages previewed of each session, and characters of each of those.
const PREVIEW_MAX: usize = 50;
const PREVIEW_CHARS_MAX: usize = 2000;

/// What becomes of a request once the store was read: an order for its session, or an answer at once.
pub(super) type Next = ControlFlow<SessionReply, Order>;

/// Reads the store for somebody.
pub(super) struct Reader {
    pub(super) store: Addr<Store>,
    /// Says which model answers in a session.
    pub(super) catalog: Arc<Catalog>,
    /// On whose behalf; the store is asked in the turn of this owner.
    pub(super) principal: Principal,
    /// The session that is asked about, where it is awake: it may have shown more than the store has.
    pub(super) session: Option<Addr<Session>>,
}

impl Reader {
    async fn ask<Q, T>(&self, question: Q) -> Result<T, Error>
    where
        Store: Handler<AskedBy<Q>>,
        Q: Message<Result = Result<T, Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.settle().await;
        ask(&self.store, by(&self.principal, question)).await.flatten()
    }

    /// Waits until the store has what the session has shown.
    async fn settle(&self) {
        if let Some(session) = &self.session {
            // One that has gone meanwhile shows nothing more.
            let _ = ask(session, WritePage).await;
        }
    }

    /// As [`described`].
    async fn described(&self, session: &SessionKey) -> Result<Option<Described>, Error> {
        described(&self.store, session, &self.principal).await
    }

    /// Whose sessions a list is of; none = everybody's.
    fn owner(&self) -> Option<Owner> {
        (!self.principal.scopes.allows(Scope::Admin)).then(|| self.principal.owner.clone())
    }

    /// Adds to a row what follows from the configuration.
    fn fill_in(&self, row: &mut SessionRow) {
        row.model = self.catalog.answers(&row.session.agent(), &row.settings);
    }

    pub(super) async fn history(
        self,
        session: SessionKey,
        asked: command::ReadHistory,
    ) -> Result<SessionReply, Error> {
        let command::ReadHistory { limit, before, .. } = asked;
        let history = match self.described(&session).await? {
            Some(_) => self.ask(ReadHistory { session, limit, before, max_bytes: HISTORY_BYTES_MAX }).await?,
            None => History { session, messages: Vec::new(), more: false },
        };
        Ok(SessionReply::History(history))
    }

    pub(super) async fn summaries(self) -> Result<SessionReply, Error> {
        let list = ListSessions { limit: LIST_MAX, owner: self.owner(), prefix: None, before: None };
        let mut left = LIST_BYTES_MAX;
        let fitting = self.ask(list).await?.into_iter().map_while(|listed| {
            left = left.checked_sub(listed.summary.session.as_str().len() + SUMMARY_BYTES)?;
            Some(listed.summary)
        });
        Ok(SessionReply::Sessions(fitting.collect()))
    }

    pub(super) async fn list(self, filter: SessionFilter) -> Result<SessionReply, Error> {
        let filter = SessionFilter { limit: filter.limit.min(LIST_MAX), ..filter };
        let read = ReadRows { filter, owner: self.owner(), bytes_max: ROWS_BYTES_MAX };
        let mut list = self.ask(read).await?;
        list.rows.iter_mut().for_each(|row| self.fill_in(row));
        Ok(SessionReply::SessionList(list))
    }

    pub(super) async fn row(self, session: SessionKey) -> Result<SessionReply, Error> {
        let row = self.ask(ReadRow(session)).await?.filter(|row| self.principal.sees(&row.owner));
        Ok(SessionReply::Session(row.map(|mut row| {
            self.fill_in(&mut row);
            Box::new(row)
        })))
    }

    pub(super) async fn exists(self, session: SessionKey) -> Result<SessionReply, Error> {
        let described = self.ask(Describe { session }).await?;
        Ok(SessionReply::Exists(described.is_some_and(|described| self.principal.sees(&described.owner))))
    }

    pub(super) async fn transcript(
        self,
        session: SessionKey,
        asked: command::ReadTranscript,
    ) -> Result<SessionReply, Error> {
        let command::ReadTranscript { limit, bytes_max, at, .. } = asked;
        if self.described(&session).await?.is_none() {
            return Ok(SessionReply::Transcript(Box::default()));
        }
        let read = ReadTranscript { session, limit, bytes_max, at };
        let mut transcript = self.ask(read).await?.unwrap_or_default();
        if let Some(row) = &mut transcript.row {
            self.fill_in(row);
        }
        Ok(SessionReply::Transcript(Box::new(transcript)))
    }

    /// Of these sessions, in this order; `None` is one of which there is none.
    pub(super) async fn previews(
        self,
        found: Vec<Option<SessionKey>>,
        limit: usize,
        chars_max: usize,
    ) -> Result<SessionReply, Error> {
        let (limit, chars_max) = (limit.min(PREVIEW_MAX), chars_max.min(PREVIEW_CHARS_MAX));
        let sessions = found.iter().flatten().cloned().collect();
        let read = ReadPreviews { sessions, owner: self.owner(), limit, chars_max };
        let mut previews = self.ask(read).await?.into_iter();
        let previews = found.iter().map(|session| {
            let preview = session.as_ref().and_then(|_| previews.next());
            preview.unwrap_or(Preview { messages: None })
        });
        Ok(SessionReply::Previews(previews.collect()))
    }

    pub(super) async fn export(self, session: SessionKey, after: Seq) -> Result<SessionReply, Error> {
        match self.described(&session).await? {
            Some(_) => {
                self.settle().await;
                let events = exported(&self.store, &session, after).await?;
                Ok(SessionReply::Exported(Exported { session, events }))
            }
            None => Err(no_such(&session, &self.principal)),
        }
    }

    pub(super) async fn budgets(
        self,
        providers: Addr<ProviderSupervisor>,
        session: Option<SessionKey>,
    ) -> Result<SessionReply, Error> {
        let session_spent = match &session {
            None => None,
            Some(session) => {
                Some(self.described(session).await?.map_or_else(Spent::default, |described| described.spent))
            }
        };
        let mut budgets = ask(&providers, BudgetStatus { session_spent }).await?;
        // Of others' budgets nobody is told.
        let caller = session.map(|session| (AgentId::from(&*session.agent()), session.owner()));
        budgets.retain(|budget| match &caller {
            Some((agent, owner)) => budget.whose.concerns(agent, owner),
            None => budget.whose == Whose::default(),
        });
        Ok(SessionReply::Budget(budgets))
    }

    /// What stopping a session comes to that is not awake: nothing runs in it.
    pub(super) async fn stopped(self, session: SessionKey) -> Result<SessionReply, Error> {
        match self.described(&session).await? {
            Some(_) => Ok(SessionReply::Stopped(Stopped { session, runs: Vec::new() })),
            None => Err(missing(&self.store, &session, &self.principal).await),
        }
    }

    /// From where on a session is followed so that its last turns are told of.
    pub(super) async fn attach_turns(self, session: SessionKey, turns: usize) -> Result<Next, Error> {
        let after = self.ask(FindTurn { session, turns }).await?;
        Ok(Next::Continue(Order::Attach { after, follow: true }))
    }

    /// What a session forgets that is to keep so many messages.
    pub(super) async fn compact(self, session: SessionKey, keep: usize) -> Result<Next, Error> {
        let cut = match self.described(&session).await? {
            Some(_) => self.ask(FindCut { session, keep }).await?,
            None => None,
        };
        // Without a cut all of it is kept, however little that is.
        let kept = SessionReply::Compacted(Compacted { kept: 0, forgotten: 0 });
        Ok(cut.map_or(Next::Break(kept), |cut| Next::Continue(Order::Compact(cut))))
    }

    pub(super) async fn delete(self, session: SessionKey) -> Result<Next, Error> {
        Ok(match self.described(&session).await? {
            Some(_) => Next::Continue(Order::Delete),
            None => Next::Break(SessionReply::Deleted(Deleted { found: false })),
        })
    }
}

/// What the log says of a session that may not have been written yet.
pub(super) async fn described(
    store: &Addr<Store>,
    session: &SessionKey,
    principal: &Principal,
) -> Result<Option<Described>, Error> {
    match ask(store, by(principal, Describe { session: session.clone() })).await?? {
        Some(described) if !principal.sees(&described.owner) => Err(no_such(session, principal)),
        described => Ok(described),
    }
}

/// What is asked of the log for this principal, in its owner's turn.
fn by<M>(principal: &Principal, question: M) -> AskedBy<M> {
    AskedBy { owner: principal.owner.clone(), question }
}

pub(super) fn no_such(session: &SessionKey, who: &Principal) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {}", session.seen_by(&who.owner)))
}

/// The same; an operator is told to whom those belong that have the name in other spaces.
pub(crate) async fn missing(store: &Addr<Store>, session: &SessionKey, who: &Principal) -> Error {
    let error = no_such(session, who);
    if !who.is_operator() || !session.is_of(&Owner::Admins) {
        return error;
    }
    let others = ask(store, Namesakes(session.clone())).await.flatten().unwrap_or_default();
    let others: Vec<String> =
        others.iter().map(|other| format!("{other} belongs to {}", other.owner().as_str())).collect();
    if others.is_empty() {
        return error;
    }
    Error {
        message: format!("{}; {}", error.message, others.join(", ")),
        detail: Some(Detail::Namesakes),
        ..error
    }
}
