//! Subscriptions, and what a connection follows so that they get their events.
//!
//! Where a subscription is told of sessions from follows from its filter:
//!
//! | filter | source |
//! |---|---|
//! | on a `sessionId` | an attachment to that session; subscriptions from now on share one, one that goes on from a number has its own |
//! | on none | the watch over all sessions that the principal may see, one for the connection |
//!
//! Each subscription has one source for good, so nothing is told to it twice and nothing is lost
//! while others come and go. A source is let go with the last of its subscriptions. What is not in a
//! session's log ([`Wundr::announce`]) reaches all subscriptions alike.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::stream::{SESSION_EVENTS, Shared, Told};
use super::subscription::{Atom, Interest, SESSION_ID, Source, Subscription, Subscriptions};
use super::{Call, Request, Wundr, misfit};
use crate::auth::Scope;
use crate::command::{Command, Target};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::event::{Event, Published};
use crate::ids::{Seq, SessionKey, Ticket};
use crate::reply::Reply;

/// What a connection subscribed to and follows.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) subscriptions: Subscriptions,
    /// Subscriptions that are about to be.
    opening: usize,
    /// The watch over all sessions.
    watch: Option<Ticket>,
    /// The roads on which events come.
    roads: HashMap<Ticket, Road>,
}

/// An attachment, or the watch.
#[derive(Debug, Default)]
struct Road {
    /// What it is attached to; none for the watch.
    to: Option<Attached>,
    /// How many subscriptions it serves.
    serves: usize,
    told: Told,
}

#[derive(Debug)]
struct Attached {
    session: SessionKey,
    session_id: String,
    /// Everything after this number is told.
    after: Seq,
    /// Whether subscriptions from now on may share it.
    is_shared: bool,
}

/// A subscription that stands.
#[derive(Debug)]
pub(super) struct Stood {
    /// Its name.
    pub(super) id: String,
}

impl Following {
    pub(super) fn new(subscriptions_max: usize) -> Self {
        Self {
            subscriptions: Subscriptions::new(subscriptions_max),
            opening: 0,
            watch: None,
            roads: HashMap::new(),
        }
    }

    /// The attachment to this session that others may share.
    fn shared_with(&self, session_id: &str) -> Option<Ticket> {
        let is_it = |to: &Attached| to.is_shared && to.session_id == session_id;
        let found = self.roads.iter().find(|(_, road)| road.to.as_ref().is_some_and(is_it));
        found.map(|(ticket, _)| *ticket)
    }
}

impl Wundr {
    /// Whether there is room for one more subscription.
    ///
    /// # Errors
    /// `RateLimited` where there is not.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        self.following.subscriptions.check_room(self.following.opening)
    }
}

/// Whether events of sessions are among what is asked for.
fn concerns_sessions(interest: &Interest) -> bool {
    SESSION_EVENTS.iter().any(|name| interest.names(name))
}

impl Wundr {
    /// Enters a subscription, from now on or (one on a session) from after a number; `then` makes the
    /// answer once it stands. Its events come after that.
    pub(super) fn open(
        &mut self,
        interest: Interest,
        after: Option<Seq>,
        turn: &mut Turn<'_>,
        then: impl FnOnce(&mut Wundr, Stood, &mut Turn<'_>) -> Result<Call, Error> + 'static,
    ) -> Result<Call, Error> {
        self.check_room()?;
        // Who may not read is told what is not about one session alone.
        if !self.scopes.allows(Scope::Read) || !concerns_sessions(&interest) {
            let stood = self.stand(interest, Source::Nowhere, turn);
            return then(self, stood, turn);
        }
        let shared = match (interest.session_id(), after) {
            (Some(session_id), None) => self.following.shared_with(session_id).map(Source::Attached),
            (Some(_), Some(_)) => None,
            (None, _) => self.following.watch.map(|_| Source::Watch),
        };
        if let Some(source) = shared {
            let stood = self.stand(interest, source, turn);
            return then(self, stood, turn);
        }
        let command = match interest.session_id() {
            Some(session_id) => Command::Attach { target: Target::Uuid(session_id.to_owned()), after },
            None => Command::Watch,
        };
        self.following.opening += 1;
        Call::ask(command, move |dialect, reply, turn| {
            dialect.following.opening -= 1;
            let source = dialect.source(reply, after.is_none())?;
            let stood = dialect.stand(interest, source, turn);
            then(dialect, stood, turn)
        })
    }

    /// The source that a reply opened.
    fn source(&mut self, reply: Result<Reply, Error>, is_shared: bool) -> Result<Source, Error> {
        let ticket = self.answering;
        match reply {
            Ok(Reply::Attached { session, after, .. }) => {
                let session_id = session.uuid();
                let to = Some(Attached { session, session_id, after, is_shared });
                self.following.roads.insert(ticket, Road { to, ..Road::default() });
                Ok(Source::Attached(ticket))
            }
            Ok(Reply::Watching) => {
                self.following.watch = Some(ticket);
                self.following.roads.insert(ticket, Road::default());
                Ok(Source::Watch)
            }
            // Another subscription asked for it at the same time.
            Err(error) if error.code == ErrorCode::Conflict && self.following.watch.is_some() => {
                Ok(Source::Watch)
            }
            Ok(_) => Err(misfit()),
            Err(error) => Err(error),
        }
    }

    /// The subscription is there from here on.
    fn stand(&mut self, interest: Interest, source: Source, turn: &mut Turn<'_>) -> Stood {
        let id = format!("sub_{}", turn.run_id());
        let ticket = match source {
            Source::Attached(ticket) => Some(ticket),
            Source::Watch => self.following.watch,
            Source::Nowhere => None,
        };
        if let Some(road) = ticket.and_then(|ticket| self.following.roads.get_mut(&ticket)) {
            road.serves += 1;
        }
        self.following.subscriptions.add(Subscription { id: id.clone(), interest, source });
        Stood { id }
    }

    /// The subscription is over, and what only it was told from.
    fn let_go(&mut self, id: &str, turn: &mut Turn<'_>) -> bool {
        let Some(subscription) = self.following.subscriptions.remove(id) else { return false };
        let ticket = match subscription.source {
            Source::Nowhere => None,
            Source::Watch => self.following.watch,
            Source::Attached(ticket) => Some(ticket),
        };
        let Some(ticket) = ticket else { return true };
        let Some(road) = self.following.roads.get_mut(&ticket) else { return true };
        road.serves -= 1;
        if road.serves > 0 {
            return true;
        }
        let command = match self.following.roads.remove(&ticket).and_then(|road| road.to) {
            Some(Attached { session, .. }) => {
                Command::Detach { target: Target::Session(session), follow: ticket }
            }
            None => {
                self.following.watch = None;
                Command::Unwatch { watch: ticket }
            }
        };
        self.ask_aside(command, turn, |_, _, _| Ok(Call::Elsewhere));
        true
    }

    /// Something happened in a session.
    pub(super) fn on_event(&mut self, ticket: Ticket, event: &Arc<Published>, turn: &mut Turn<'_>) {
        let is_watch = self.following.watch == Some(ticket);
        let source = if is_watch { Source::Watch } else { Source::Attached(ticket) };
        let Some(road) = self.following.roads.get_mut(&ticket) else { return };
        let after = road.to.as_ref().map_or(Seq(0), |to| to.after);
        let words = road.told.tell(event, after);
        if event.logged.event == Event::Deleted && !is_watch {
            // Nothing more comes of it.
            self.following.roads.remove(&ticket);
        }
        let session_id = Shared::of(event).session_id();
        for (name, payload) in words {
            self.tell(name, &payload, Some(session_id), Some(source), turn);
        }
    }

    /// Tells all who subscribed to it of something that is not in a session's log.
    pub(super) fn announce(&mut self, name: &'static str, payload: &Value, turn: &mut Turn<'_>) {
        self.tell(name, &payload.to_string(), None, None, turn);
    }

    /// Tells one subscription alone, if that is what it asked for.
    pub(super) fn tell_one(&mut self, id: &str, name: &'static str, payload: &Value, turn: &mut Turn<'_>) {
        let found = self.matching(name, &payload.to_string(), None, None);
        if found.iter().any(|found| found == id) {
            self.emit(name, &payload.to_string(), Some(id), turn);
        }
    }

    fn tell(
        &mut self,
        name: &'static str,
        payload: &str,
        session_id: Option<&str>,
        source: Option<Source>,
        turn: &mut Turn<'_>,
    ) {
        for id in self.matching(name, payload, session_id, source) {
            self.emit(name, payload, Some(&id), turn);
        }
    }

    /// The subscriptions to this event that come from this source, or from wherever.
    fn matching(
        &self,
        name: &str,
        payload: &str,
        session_id: Option<&str>,
        source: Option<Source>,
    ) -> Vec<String> {
        // Read where a filter looks at more than the session.
        let mut read: Option<Map<String, Value>> = None;
        let found = self.following.subscriptions.matching(name, &mut |member| {
            if let (SESSION_ID, Some(session_id)) = (member, session_id) {
                return Some(Atom::text(session_id));
            }
            let members = read.get_or_insert_with(|| serde_json::from_str(payload).unwrap_or_default());
            members.get(member).and_then(Atom::of).map(Atom::owned)
        });
        found
            .into_iter()
            .filter(|found| source.is_none_or(|source| found.source == source))
            .map(|found| found.id.clone())
            .collect()
    }
}

#[derive(Deserialize)]
struct Subscribe {
    events: Vec<String>,
    filter: Option<Map<String, Value>>,
}

/// `subscribe`
pub(super) fn subscribe(
    dialect: &mut Wundr,
    request: &mut Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    let Subscribe { events, filter } = request.read()?;
    let interest = Interest::read(events.iter().map(String::as_str), &filter.unwrap_or_default())
        .map_err(|error| request.invalid(&error.message))?;
    dialect.open(interest, None, turn, move |_, stood, _| {
        Ok(Call::Answer(json!({ "subscriptionId": stood.id, "events": events })))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Unsubscribe {
    subscription_id: String,
}

/// `unsubscribe`: from what this connection subscribed to. Those of others are none.
pub(super) fn unsubscribe(
    dialect: &mut Wundr,
    request: &mut Request<'_>,
    turn: &mut Turn<'_>,
) -> Result<Call, Error> {
    let Unsubscribe { subscription_id } = request.read()?;
    if dialect.let_go(&subscription_id, turn) {
        return Ok(Call::Answer(json!({ "ok": true })));
    }
    Err(ErrorCode::NotFound.error(format!("no such subscription: {}", clip(&subscription_id))))
}
