//! Subscriptions, and what a connection follows so that they get their events.
//!
//! Where a subscription is told of sessions from follows from its filter:
//!
//! | filter | source |
//! |---|---|
//! | on a `sessionId` | an attachment to that session; subscriptions from now on share one |
//! | on none | the watch over all sessions that the principal may see, one for the connection; for one who decides about calls of others, also that over these |
//!
//! Who decides about calls of others and may read nothing has only that, whatever its filter.
//! Each subscription has one source for good, so nothing is told to it twice and nothing is lost
//! while others come and go; but for the one that a connection has on a session of its own accord
//! (`session.create`, `session.resume`), of which there is one however often it is asked for: it goes on
//! from a number again where a client says one. A source is let go with the last of its subscriptions. What is not in a
//! session's log ([`Wundr::announce`]) reaches all subscriptions alike.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::stream::{SESSION_EVENTS, Shared, StreamState};
use super::subscription::{Atom, Interest, SESSION_ID, Source, Subscription, Subscriptions};
use super::tools::{self, TOOL_REQUEST};
use super::{Answered, Call, Calling, Request, Wundr};
use crate::conversation::command::{Attach, Detach, Unwatch, Watch, WatchCalls};
use crate::conversation::event::{Event, Published};
use crate::conversation::reply::{self, UnderWay, Watching};
use crate::dialect::Turn;
use crate::dialect::json::clip;
use crate::error::{Error, ErrorCode};
use crate::ids::{RunId, Seq, SessionKey, Ticket};
use crate::request::ask::Ask;
use crate::scope::{Scope, Scopes};
use crate::target::Target;

/// How many of the prompts of a connection that are told in one piece are known, the latest.
const WHOLE_MAX: usize = 256;

/// What a connection subscribed to and follows.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) subscriptions: Subscriptions,
    /// Subscriptions that are about to be.
    opening: usize,
    /// The watch over all sessions.
    watch: Option<Ticket>,
    /// The watch over the calls of sessions of others.
    calls: Option<Ticket>,
    /// The roads on which events come.
    roads: HashMap<Ticket, Feed>,
    /// The subscriptions of its own accord, by the session's UUID.
    own: HashMap<String, String>,
    /// How many requests wait for such a one.
    opening_own: HashMap<String, usize>,
    /// What is to be told of a run under way to a subscription that begins within it, once its request
    /// is answered.
    begins: Vec<(String, &'static str, String)>,
    /// The prompts of this connection whose text is told in one piece at their end.
    whole: VecDeque<RunId>,
}

/// An attachment, or the watch.
#[derive(Debug, Default)]
struct Feed {
    /// What it is attached to; none for the watch.
    to: Option<Attached>,
    /// How many subscriptions it serves.
    serves: usize,
    told: StreamState,
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

/// Makes the answer once a subscription stands, of its id.
type Standing = Box<dyn FnOnce(String) -> Value>;

impl Following {
    pub(super) fn new(subscriptions_max: usize) -> Self {
        Self {
            subscriptions: Subscriptions::new(subscriptions_max),
            opening: 0,
            watch: None,
            calls: None,
            roads: HashMap::new(),
            own: HashMap::new(),
            opening_own: HashMap::new(),
            begins: Vec::new(),
            whole: VecDeque::new(),
        }
    }

    /// One request less waits for the subscription to this session.
    fn opened_own(&mut self, session_id: &str) {
        if let Some(waiting) = self.opening_own.get_mut(session_id) {
            *waiting -= 1;
            if *waiting == 0 {
                self.opening_own.remove(session_id);
            }
        }
    }

    /// The text of this prompt is told in one piece, at its end.
    pub(super) fn tell_whole(&mut self, run: RunId) {
        if self.whole.contains(&run) {
            return;
        }
        if self.whole.len() >= WHOLE_MAX {
            self.whole.pop_front();
        }
        self.whole.push_back(run);
    }

    /// The roads on which a source's events come.
    fn tickets(&self, source: Source) -> Vec<Ticket> {
        match source {
            Source::Nowhere => Vec::new(),
            Source::Watch => self.watch.into_iter().chain(self.calls).collect(),
            Source::Attached(ticket) => vec![ticket],
        }
    }

    /// The attachment to this session that others may share.
    fn shared_with(&self, session_id: &str) -> Option<Ticket> {
        let is_it = |to: &Attached| to.is_shared && to.session_id == session_id;
        let found = self.roads.iter().find(|(_, road)| road.to.as_ref().is_some_and(is_it));
        found.map(|(ticket, _)| *ticket)
    }
}

/// Whether events of sessions are among what is asked for.
fn concerns_sessions(interest: &Interest) -> bool {
    SESSION_EVENTS.iter().any(|name| interest.names(name))
}

impl Wundr {
    /// Whether there is room for one more subscription.
    ///
    /// # Errors
    /// `RateLimited` where there is not.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        let following = &self.following;
        following.subscriptions.check_room(following.opening + following.opening_own.len())
    }

    /// Enters a subscription, from now on; `told` makes the answer of its id once it stands. Its events come after
    /// that.
    pub(super) fn open(
        &mut self,
        interest: Interest,
        turn: &mut Turn<'_>,
        told: impl FnOnce(String) -> Value + 'static,
    ) -> Answered {
        self.check_room()?;
        let reads = self.scopes.allows(Scope::Read);
        // Who may not read is told what is not about one session alone.
        if !(reads || self.decides_for_others()) || !concerns_sessions(&interest) {
            return Ok(Call::Answer(told(self.stand(interest, Source::Nowhere, turn))));
        }
        let session_id = interest.session_id().filter(|_| reads).map(str::to_owned);
        let Some(session_id) = session_id else { return self.open_watch(interest, Box::new(told), turn) };
        if let Some(ticket) = self.following.shared_with(&session_id) {
            return Ok(Call::Answer(told(self.stand(interest, Source::Attached(ticket), turn))));
        }
        self.following.opening += 1;
        let attach = Attach { target: Target::Uuid(session_id), after: None };
        Call::ask_either(attach, move |dialect: &mut Wundr, reply, turn| {
            dialect.following.opening -= 1;
            let (source, _) = dialect.source(reply?, true);
            Ok(Call::Answer(told(dialect.stand(interest, source, turn))))
        })
    }

    /// Enters the one subscription that a connection has on a session of its own accord, or finds it.
    /// Where `after` is a number it is told what came after that, even if it was told it before; else a new
    /// one is told what is under way from its beginning, and one that stands nothing twice.
    pub(super) fn open_own(
        &mut self,
        (session_id, interest): (String, Interest),
        after: Option<Seq>,
        turn: &mut Turn<'_>,
        told: impl FnOnce(String) -> Value + 'static,
    ) -> Answered {
        match self.following.own.get(&session_id) {
            Some(id) if after.is_none() => return Ok(Call::Answer(told(id.clone()))),
            Some(_) => {}
            // However many ask for it, it will be one.
            None if self.following.opening_own.contains_key(&session_id) => {}
            None => self.check_room()?,
        }
        if !self.scopes.allows(Scope::Read) {
            return Ok(Call::Answer(told(self.stand(interest, Source::Nowhere, turn))));
        }
        let attach = Attach { target: Target::Uuid(session_id.clone()), after };
        *self.following.opening_own.entry(session_id.clone()).or_default() += 1;
        Call::ask_either(attach, move |dialect: &mut Wundr, reply, turn| {
            dialect.following.opened_own(&session_id);
            let (source, under_way) = dialect.source(reply?, after.is_none());
            let id = match dialect.following.own.get(&session_id).cloned() {
                // Another request was answered first.
                Some(id) if after.is_none() => {
                    dialect.leave(source, turn);
                    id
                }
                Some(id) => {
                    dialect.arrive(source);
                    if let Some(before) = dialect.following.subscriptions.move_to(&id, source) {
                        dialect.leave(before, turn);
                    }
                    id
                }
                None => {
                    let id = dialect.stand(interest, source, turn);
                    dialect.following.own.insert(session_id, id.clone());
                    if let Some(under_way) = under_way {
                        dialect.begin_within(&id, source, &under_way);
                    }
                    id
                }
            };
            Ok(Call::Answer(told(id)))
        })
    }

    /// A subscription begins within a run, whose text so far comes first.
    fn begin_within(&mut self, id: &str, source: Source, under_way: &UnderWay) {
        let Source::Attached(ticket) = source else { return };
        let Some(road) = self.following.roads.get_mut(&ticket) else { return };
        let Some(to) = &road.to else { return };
        let words = road.told.begin(&to.session_id, under_way);
        let begins = words.into_iter().map(|(name, payload)| (id.to_owned(), name, payload));
        self.following.begins.extend(begins);
    }

    /// Tells what subscriptions begin with whose requests are answered now.
    pub(super) fn tell_beginnings(&mut self, turn: &mut Turn<'_>) {
        for (id, name, payload) in std::mem::take(&mut self.following.begins) {
            self.emit(name, &payload, Some(&id), turn);
        }
    }

    /// Whether calls of sessions are told that are not otherwise.
    fn decides_for_others(&self) -> bool {
        self.scopes.allows(Scope::Approve) && !self.scopes.allows(Scope::Admin)
    }

    /// Enters a subscription that is told of all sessions, once what is watched for it is.
    fn open_watch(&mut self, interest: Interest, told: Standing, turn: &mut Turn<'_>) -> Answered {
        if self.scopes.allows(Scope::Read) && self.following.watch.is_none() {
            self.begin_watch(Watch, |following| &mut following.watch, interest, told)
        } else if self.decides_for_others() && self.following.calls.is_none() {
            self.begin_watch(WatchCalls, |following| &mut following.calls, interest, told)
        } else {
            Ok(Call::Answer(told(self.stand(interest, Source::Watch, turn))))
        }
    }

    /// Begins to watch, whose ticket is kept in this `place`; then goes on with the subscription.
    fn begin_watch(
        &mut self,
        watch: impl Ask<Reply = Watching> + 'static,
        place: fn(&mut Following) -> &mut Option<Ticket>,
        interest: Interest,
        told: Standing,
    ) -> Answered {
        self.following.opening += 1;
        Call::ask_either(watch, move |dialect: &mut Wundr, reply, turn| {
            let ticket = dialect.calls.replying();
            let following = &mut dialect.following;
            following.opening -= 1;
            match reply {
                Ok(Watching) => {
                    *place(following) = Some(ticket);
                    following.roads.insert(ticket, Feed::default());
                }
                // Another subscription asked for it at the same time.
                Err(error) if error.code == ErrorCode::Conflict && place(following).is_some() => {}
                Err(error) => return Err(error),
            }
            dialect.open_watch(interest, told, turn)
        })
    }

    /// The source that a reply opened, and the run that is under way there.
    fn source(&mut self, opened: reply::Attached, is_shared: bool) -> (Source, Option<Box<UnderWay>>) {
        let reply::Attached { session, after, under_way, .. } = opened;
        let ticket = self.calls.replying();
        let session_id = session.uuid();
        let to = Some(Attached { session, session_id, after, is_shared });
        self.following.roads.insert(ticket, Feed { to, ..Feed::default() });
        (Source::Attached(ticket), under_way)
    }

    /// The subscription is there from here on.
    fn stand(&mut self, interest: Interest, source: Source, turn: &mut Turn<'_>) -> String {
        let id = format!("sub_{}", turn.run_id());
        self.arrive(source);
        let is_asked = source != Source::Nowhere && interest.names(TOOL_REQUEST);
        self.following.subscriptions.add(Subscription { id: id.clone(), interest, source });
        if is_asked {
            self.introduce(&id, turn);
        }
        id
    }

    /// The subscription is over, and what only it was told from.
    fn let_go(&mut self, id: &str, turn: &mut Turn<'_>) -> bool {
        let Some(subscription) = self.following.subscriptions.remove(id) else { return false };
        self.introduced.forget(id);
        self.following.own.retain(|_, own| own != id);
        self.leave(subscription.source, turn);
        true
    }

    /// One subscription more is told from there.
    fn arrive(&mut self, source: Source) {
        for ticket in self.following.tickets(source) {
            if let Some(road) = self.following.roads.get_mut(&ticket) {
                road.serves += 1;
            }
        }
    }

    /// One less; what is told to none is let go.
    fn leave(&mut self, source: Source, turn: &mut Turn<'_>) {
        for ticket in self.following.tickets(source) {
            let Some(road) = self.following.roads.get_mut(&ticket) else { continue };
            road.serves = road.serves.saturating_sub(1);
            if road.serves > 0 {
                continue;
            }
            match self.following.roads.remove(&ticket).and_then(|road| road.to) {
                Some(Attached { session, .. }) => {
                    let detach = Detach { target: Target::Session(session), follow: ticket };
                    self.aside(detach, turn, |_, _, _| {});
                }
                None => {
                    let following = &mut self.following;
                    let (watch, calls) = (&mut following.watch, &mut following.calls);
                    [watch, calls].into_iter().for_each(|place| *place = place.filter(|at| *at != ticket));
                    self.aside(Unwatch { watch: ticket }, turn, |_, _, _| {});
                }
            }
        }
    }

    /// Ends the subscriptions that somebody with these scopes could not make.
    pub(super) fn end_subscriptions_beyond(&mut self, scopes: Scopes, turn: &mut Turn<'_>) {
        let reads = scopes.allows(Scope::Read);
        let decides = scopes.allows(Scope::Approve);
        let may_be_told =
            |ticket: &Ticket| if self.following.calls == Some(*ticket) { decides } else { reads };
        let beyond: Vec<String> = self
            .following
            .subscriptions
            .iter()
            .filter(|subscription| !self.following.tickets(subscription.source).iter().all(may_be_told))
            .map(|subscription| subscription.id.clone())
            .collect();
        for id in beyond {
            self.let_go(&id, turn);
        }
    }

    /// Something happened in a session.
    pub(super) fn on_event(&mut self, ticket: Ticket, event: &Arc<Published>, turn: &mut Turn<'_>) {
        let is_calls = self.following.calls == Some(ticket);
        let is_watch = is_calls || self.following.watch == Some(ticket);
        let source = if is_watch { Source::Watch } else { Source::Attached(ticket) };
        let Some(road) = self.following.roads.get_mut(&ticket) else { return };
        let after = road.to.as_ref().map_or(Seq(0), |to| to.after);
        let whole = &self.following.whole;
        let is_whole = event.logged.run.as_ref().is_some_and(|run| whole.contains(run));
        let words = road.told.tell(event, after, is_whole);
        if event.logged.event == Event::Deleted && !is_watch {
            // Nothing more comes of it, and another of its name is another one.
            self.following.roads.remove(&ticket);
            self.following.own.remove(Shared::of(event).session_id());
        }
        let session_id = Shared::of(event).session_id();
        let approval = tools::approval_of(&event.logged);
        if let (Some(id), Event::ApprovalDecided(_)) = (&approval, &event.logged.event) {
            self.introduced.decided(id);
        }
        for (name, payload) in words {
            // Nothing else of sessions that are not shown otherwise.
            if is_calls && !name.starts_with("tool.") {
                continue;
            }
            if let (TOOL_REQUEST, Some(approval)) = (name, &approval) {
                for id in self.matching(name, &payload, Some(session_id), Some(source)) {
                    if self.introduced.is_news(&id, approval) {
                        self.emit(name, &payload, Some(&id), turn);
                    }
                }
                continue;
            }
            self.tell(name, &payload, Some(session_id), Some(source), turn);
        }
    }

    /// Tells all who subscribed to it of something that is not in a session's log.
    pub(super) fn announce(&mut self, name: &'static str, payload: &Value, turn: &mut Turn<'_>) {
        self.tell(name, &payload.to_string(), None, None, turn);
    }

    /// The same, and besides all who subscribed to it in another session than its `sessionId`.
    pub(super) fn announce_also_to(
        &mut self,
        name: &'static str,
        payload: &Value,
        other: Option<&str>,
        turn: &mut Turn<'_>,
    ) {
        let payload = payload.to_string();
        let mut found = self.matching(name, &payload, None, None);
        if other.is_some() {
            let more = self.matching(name, &payload, other, None);
            found.extend(more.into_iter().filter(|id| !found.contains(id)).collect::<Vec<_>>());
        }
        for id in found {
            self.emit(name, &payload, Some(&id), turn);
        }
    }

    /// Tells one subscription alone, if that is what it asked for.
    pub(super) fn tell_one(&mut self, id: &str, name: &'static str, payload: &Value, turn: &mut Turn<'_>) {
        let payload = payload.to_string();
        if self.matching(name, &payload, None, None).iter().any(|found| found == id) {
            self.emit(name, &payload, Some(id), turn);
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
pub(super) fn subscribe(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let Subscribe { events, filter } = request.read()?;
    let interest = Interest::read(events.iter().map(String::as_str), &filter.unwrap_or_default())
        .map_err(|error| request.invalid(&error.message))?;
    wundr.open(interest, turn, move |id| json!({ "subscriptionId": id, "events": events }))
}

/// `unsubscribe`: from what this connection subscribed to. Those of others are none.
pub(super) fn unsubscribe(wundr: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let subscription_id = request.text("subscriptionId");
    if wundr.let_go(&subscription_id, turn) {
        return Ok(Call::Answer(json!({ "ok": true })));
    }
    Err(ErrorCode::NotFound.error(format!("no such subscription: {}", clip(&subscription_id))))
}
