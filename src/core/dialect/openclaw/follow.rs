//! The sessions a connection follows, and how what happens in them reaches it.
//!
//! A client of this protocol does not say what it follows: it names a session, and is told of it
//! from then on. Its runs come under the ticket of the attachment, or under that of the request that
//! asked for them; whichever it is, a run comes from one feed ([`RunStream::comes_under`]) and is told once.
//!
//! | the feed of a run | gives |
//! |---|---|
//! | the watch of all sessions | what begins while it lasts |
//! | the attachment to a session | everything after a number, as of which is known what was under way |
//! | the run by itself: a prompt, or one that was asked for | all of it, from its prompt on |
//!
//! A run that comes by itself comes so to its end. One that is met in its midst, or whose feed ends
//! before it does, is asked for ([`OpenClaw::join`]) and comes by itself then.

use std::sync::Arc;
use std::time::Duration;

use super::stream::{End, Frame, RunStream, said, wire_run};
use super::{Calling, OpenClaw, chat, keys, message, target, wait};
use crate::conversation::command::{Attach, Detach, FollowRun, SessionFilter, Unwatch, Watch};
use crate::conversation::event::{Event, Published};
use crate::conversation::reply::{Accepted, Attached, SessionState, UnderWay};
use crate::dialect::Turn;
use crate::ids::{RunId, Seq, SessionKey, Ticket};
use crate::time::Timestamp;

/// How many runs that were told to their end are remembered, so that none is told again.
const ENDED_MAX: usize = 256;

/// How long after it came a connection that named no session is told which runs are under way: most
/// name one at once, or go.
const LOOK_AROUND: Duration = Duration::from_millis(250);

/// In how many sessions it is told of them; in others, once something happens there.
const LOOK_MAX: usize = 64;

/// How many runs may be asked for at once.
const JOINING_MAX: usize = 256;

/// A session that the client named.
#[derive(Debug)]
pub(super) struct Followed {
    /// How the client called it last.
    pub(super) key: String,
    /// The attachment.
    ticket: Ticket,
    /// Whether it is made; else it is asked for.
    is_attached: bool,
    /// Whether the client knows nothing of what is under way there.
    pub(super) knows_nothing: bool,
    /// Everything after this number is told.
    pub(super) from: Seq,
    /// When it was last named, counted in requests: the session that was not named for longest makes
    /// room for another.
    named: u64,
    /// Whether its messages are told as such.
    pub(super) wants_messages: bool,
}

/// Up to where a client knows a session, and what went on there.
#[derive(Debug)]
pub(super) struct Known {
    /// The last number it knows.
    pub(super) after: Seq,
    /// The run that was under way there.
    pub(super) under_way: Option<UnderWay>,
    /// The runs that waited there, with the idempotency keys they were asked with.
    pub(super) queued: Vec<(RunId, Option<String>)>,
}

/// What is told a little later.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) due: Timestamp,
    frames: Vec<Frame>,
    end: Option<(RunId, End)>,
}

impl OpenClaw {
    /// Follows all sessions, until one is named.
    pub(super) fn watch_all(&mut self, turn: &mut Turn<'_>) {
        self.watch = Some(self.aside(Watch, turn, |_, _, _| {}));
        self.look = Some(turn.now().after(LOOK_AROUND));
    }

    /// Tells a client that named no session of runs that are under way already.
    pub(super) fn look_around(&mut self, turn: &mut Turn<'_>) {
        if self.look.is_none_or(|look| look > turn.now()) {
            return;
        }
        self.look = None;
        if self.watch.is_none() {
            return;
        }
        for state in [SessionState::Running, SessionState::Paused] {
            let filter = SessionFilter { limit: LOOK_MAX, state: Some(state), ..SessionFilter::default() };
            self.aside(filter, turn, |dialect, list, turn| {
                let rows = list.map(|list| list.rows).unwrap_or_default();
                let is_watching = dialect.watch.is_some();
                for row in rows.iter().filter(|_| is_watching) {
                    // What waits begins in front of everybody.
                    let under_way = row.last_run.as_ref().filter(|last| last.ended.is_none());
                    let is_told = |run: &RunId| dialect.runs.values().any(|told| told.run() == run.as_str());
                    if let Some(last) = under_way.filter(|last| !is_told(&last.run)) {
                        dialect.join(&last.run.clone(), keys::write(&row.session, &dialect.owner), turn);
                    }
                }
            });
        }
    }

    /// Asks for a run that is under way, to tell all of it to its end.
    fn join(&mut self, run: &RunId, key: String, turn: &mut Turn<'_>) {
        if self.joining.len() >= JOINING_MAX || self.joining.contains_key(run) {
            return;
        }
        self.joining.insert(run.clone(), key);
        let run = run.clone();
        self.aside(FollowRun { run: run.clone() }, turn, move |dialect, reply, turn| {
            let key = dialect.joining.remove(&run);
            match (reply, key) {
                (Ok(Accepted { run, .. }), Some(key)) => {
                    let (protocol, feed) = (dialect.protocol, dialect.calls.replying());
                    if !dialect.ended.contains(&run) {
                        let new = || RunStream::new(protocol, run.as_str(), Some(&key), feed).nameless();
                        let told = dialect.runs.entry(run.clone()).or_insert_with(new);
                        told.tell_as(&key);
                        told.comes_whole(feed);
                    }
                }
                // What happens next in it asks again.
                _ => {
                    let waiting = dialect.runs.remove(&run).map(|told| told.waiting).unwrap_or_default();
                    for (id, _) in waiting {
                        turn.send(super::wire::answer(&id, &wait::in_vain(run.as_str())));
                    }
                }
            }
        });
    }

    /// Has the runs that come under this ticket come by themselves.
    fn join_all(&mut self, feed: Ticket, turn: &mut Turn<'_>) {
        self.join_those(feed, |_| true, turn);
    }

    /// The same of those that are meant.
    fn join_those(&mut self, feed: Ticket, is_meant: impl Fn(&RunId) -> bool, turn: &mut Turn<'_>) {
        let is_fed = |told: &RunStream| told.comes_under(feed) && !told.is_whole();
        let fed = self.runs.iter().filter(|(run, told)| is_fed(told) && is_meant(run));
        let fed: Vec<(RunId, String)> =
            fed.filter_map(|(run, told)| Some((run.clone(), told.key()?.to_owned()))).collect();
        for (run, key) in fed {
            self.join(&run, key, turn);
        }
    }

    /// The run that a request asked for, to whose end it waits: told as well, where its session is.
    pub(super) fn await_end(&mut self, accepted: &Accepted, name: &str) -> &mut RunStream {
        let (protocol, feed) = (self.protocol, self.calls.replying());
        // One that was told to its end is read again, for its end.
        let was_told = self.ended.contains(&accepted.run);
        self.ended.retain(|run| *run != accepted.run);
        let key = match self.followed.get(&accepted.session) {
            _ if accepted.is_over || was_told => None,
            Some(followed) => Some(followed.key.clone()),
            None => self.watch.map(|_| keys::write(&accepted.session, &self.owner)),
        };
        let told = self.runs.entry(accepted.run.clone());
        let told = told.or_insert_with(|| RunStream::new(protocol, name, key.as_deref(), feed));
        told.comes_whole(feed);
        told
    }

    /// The client named a session: it is followed from here on. Where it says up to which number it
    /// knows it (and what was under way there), from that number on.
    pub(super) fn follow(
        &mut self,
        session: &SessionKey,
        key: &str,
        known: Option<Known>,
        turn: &mut Turn<'_>,
    ) {
        self.named += 1;
        let named = self.named;
        if let Some(watch) = self.watch.take() {
            self.aside(Unwatch { watch }, turn, |_, _, _| {});
            self.join_all(watch, turn);
        }
        let (mut wants_messages, mut before) = (false, None);
        if let Some(followed) = self.followed.get_mut(session) {
            followed.key = key.to_owned();
            followed.named = named;
            wants_messages = followed.wants_messages;
            let (ticket, is_attached) = (followed.ticket, followed.is_attached);
            match &known {
                // What lies before it was attached is told again, and only that.
                Some(known) if known.after < followed.from && is_attached => {}
                Some(Known { under_way: Some(under_way), .. }) => {
                    return self.is_known(under_way, key, ticket, is_attached);
                }
                _ => return,
            }
            before = self.unfollow(session, turn);
        }
        if self.followed.len() >= self.setup.subscriptions
            && let Some(oldest) = self.followed.iter().min_by_key(|(_, f)| f.named).map(|(k, _)| k.clone())
            && let Some(feed) = self.unfollow(&oldest, turn)
        {
            self.join_all(feed, turn);
        }
        let after = known.as_ref().map(|known| known.after);
        let attach = Attach { target: target(session), after };
        let (of, is_from_now) = (session.clone(), after.is_none());
        let ticket = self.aside(attach, turn, move |dialect, reply, turn| {
            let ticket = dialect.calls.replying();
            let followed = dialect.followed.get_mut(&of).filter(|followed| followed.ticket == ticket);
            match (reply, followed) {
                (Ok(Attached { after, under_way, queued, .. }), Some(followed)) => {
                    followed.from = after;
                    let (key, is_known) = (followed.key.clone(), !followed.knows_nothing);
                    dialect.resume((under_way.as_deref(), &queued), (&key, is_known), ticket);
                    if is_from_now {
                        // What a history had under way may be over by now.
                        let is_open = |run: &RunId| {
                            under_way.as_ref().is_some_and(|under_way| under_way.run == *run)
                                || queued.iter().any(|(queued, _)| queued == run)
                        };
                        dialect.join_those(ticket, |run| !is_open(run), turn);
                    }
                }
                (Ok(_), None) => {}
                // What the client asked of the session says what is wrong with it.
                (_, followed) => {
                    if followed.is_some() {
                        dialect.followed.remove(&of);
                    }
                    dialect.join_all(ticket, turn);
                }
            }
        });
        // What came under the attachment before comes under this one, and again from there on.
        for told in self.runs.values_mut().filter(|told| before.is_some_and(|feed| told.comes_under(feed))) {
            told.comes_anew(ticket, None);
        }
        if let Some(Known { under_way, queued, .. }) = known {
            self.resume((under_way.as_ref(), &queued), (key, true), ticket);
        }
        let (key, from) = (key.to_owned(), after.unwrap_or_default());
        let knows_nothing = false;
        let followed =
            Followed { key, ticket, is_attached: false, knows_nothing, from, named, wants_messages };
        self.followed.insert(session.clone(), followed);
    }

    /// The client asks for a run of a session that it names: it knows nothing of it, should it be under
    /// way already.
    pub(super) fn knows_nothing(&mut self, session: &SessionKey) {
        if let Some(followed) = self.followed.get_mut(session).filter(|followed| !followed.is_attached) {
            followed.knows_nothing = followed.from == Seq::default();
        }
    }

    /// The client was told what a run said so far, of a session whose attachment may be on its way.
    fn is_known(&mut self, under_way: &UnderWay, key: &str, feed: Ticket, is_attached: bool) {
        let UnderWay { run, idempotency_key, .. } = under_way;
        if let Some(there) = self.runs.get_mut(run) {
            there.is_known(under_way);
        } else if !is_attached && !self.ended.contains(run) {
            let told =
                RunStream::new(self.protocol, wire_run(run, idempotency_key.as_deref()), Some(key), feed);
            self.runs.insert(run.clone(), told.resumed(under_way, true));
        }
    }

    /// Whether a session that is followed has its messages told as such.
    pub(super) fn want_messages(&mut self, session: &SessionKey, wants: bool) {
        if let Some(followed) = self.followed.get_mut(session) {
            followed.wants_messages = wants;
        }
    }

    /// The attachment to a session was made under this ticket.
    pub(super) fn attached(&mut self, ticket: Ticket, session: &SessionKey) {
        if let Some(followed) = self.followed.get_mut(session).filter(|followed| followed.ticket == ticket) {
            followed.is_attached = true;
        }
    }

    /// Lets a session go; gives the attachment there was.
    fn unfollow(&mut self, session: &SessionKey, turn: &mut Turn<'_>) -> Option<Ticket> {
        let Followed { ticket: follow, .. } = self.followed.remove(session)?;
        self.aside(Detach { target: target(session), follow }, turn, |_, _, _| {});
        Some(follow)
    }

    /// What was under way where a feed begins is told from there on, and what waited there under its
    /// name; the client calls the session `key`, and may know what was said.
    fn resume(
        &mut self,
        (under_way, queued): (Option<&UnderWay>, &[(RunId, Option<String>)]),
        (key, is_known): (&str, bool),
        feed: Ticket,
    ) {
        let protocol = self.protocol;
        let known = under_way.map(|known| (&known.run, known.idempotency_key.as_deref(), Some(known)));
        let queued = queued.iter().map(|(run, name)| (run, name.as_deref(), None));
        for (run, name, known) in known.into_iter().chain(queued) {
            if self.ended.contains(run) {
                continue;
            }
            match self.runs.get_mut(run) {
                Some(there) => {
                    there.tell_as(key);
                    if let Some(known) = known.filter(|_| is_known) {
                        there.is_known(known);
                    }
                    // Not those that come by themselves, or will.
                    if !there.is_whole() && !self.joining.contains_key(run) {
                        there.comes_anew(feed, known);
                    }
                }
                None => {
                    let told = RunStream::new(protocol, wire_run(run, name), Some(key), feed);
                    let told = match known {
                        Some(known) => told.resumed(known, is_known),
                        None => told,
                    };
                    self.runs.insert(run.clone(), told);
                }
            }
        }
    }

    /// Something happened in a session.
    pub(super) fn on_event(&mut self, ticket: Ticket, event: &Arc<Published>, turn: &mut Turn<'_>) {
        if event.logged.event == Event::Deleted {
            // Should it be named again, it is another one.
            self.followed.remove(&event.session);
        }
        let Some(run) = &event.logged.run else { return };
        // Most of what happens is in a run that is being told, and that costs one look.
        if !self.runs.contains_key(run) && !self.begins(ticket, run, event, turn) {
            return;
        }
        let Some(told) = self.runs.get_mut(run).filter(|told| told.comes_under(ticket)) else { return };
        let mut frames = Vec::new();
        let wanted = self.followed.get(&event.session).filter(|followed| followed.wants_messages);
        if let Some(Followed { key, .. }) = wanted
            && told.is_news(&event.logged)
        {
            frames.extend(message::prompted(&event.session, key, told, &event.logged));
        }
        let end = told.take(&event.logged, &mut frames);
        if let (Some(end), Some(Followed { key, .. })) = (&end, wanted)
            && let Some(answer) = message::answered(&event.session, key, told, run, end)
        {
            // Before the end of the run, which is the last.
            frames.insert(frames.len().saturating_sub(1), answer);
        }
        if end.is_none() {
            told.tell_due(turn.now(), &mut frames);
        }
        let due = match &end {
            Some(_) => told.quiet_until.max(turn.now()),
            None => turn.now(),
        };
        self.tell_at(due, frames, end.map(|end| (run.clone(), end)), turn);
    }

    /// Something happened in a run that is not being told: whether it is from here on.
    fn begins(&mut self, ticket: Ticket, run: &RunId, event: &Published, turn: &mut Turn<'_>) -> bool {
        if self.ended.contains(run) {
            return false;
        }
        let followed = self.followed.get(&event.session).map(|followed| followed.key.clone());
        if let Event::Injected { content } = &event.logged.event {
            let key = followed.unwrap_or_else(|| keys::write(&event.session, &self.owner));
            let seq = event.logged.seq.0;
            self.remember_ended(run);
            self.emit("chat", &said(run.as_str(), &key, seq, content, event.logged.at, false), turn);
            return false;
        }
        // What is on its way from a feed that was let go comes from another one.
        let is_fed = self.watch == Some(ticket)
            || self.followed.get(&event.session).is_some_and(|followed| followed.ticket == ticket);
        if !is_fed || self.joining.contains_key(run) {
            return false;
        }
        let key = followed.unwrap_or_else(|| keys::write(&event.session, &self.owner));
        if let Event::Prompted { .. } = &event.logged.event {
            let told = RunStream::new(self.protocol, run.as_str(), Some(&key), ticket).nameless();
            self.runs.insert(run.clone(), told);
            return true;
        }
        self.join(run, key, turn);
        false
    }

    /// Tells this at once, or when it is due; what is told later keeps its order.
    pub(super) fn tell_at(
        &mut self,
        due: Timestamp,
        frames: Vec<Frame>,
        end: Option<(RunId, End)>,
        turn: &mut Turn<'_>,
    ) {
        let due = self.held.back().map_or(due, |held| held.due.max(due));
        if due > turn.now() || !self.held.is_empty() {
            return self.held.push_back(Held { due, frames, end });
        }
        self.send_all(frames, turn);
        if let Some((run, end)) = end {
            self.run_ended(&run, &end, turn);
        }
    }

    /// Tells what was held and is due.
    pub(super) fn tell_held(&mut self, turn: &mut Turn<'_>) {
        while let Some(Held { frames, end, .. }) = self.held.pop_front_if(|held| held.due <= turn.now()) {
            self.send_all(frames, turn);
            if let Some((run, end)) = end {
                self.run_ended(&run, &end, turn);
            }
        }
    }

    /// Nothing more is told of this run.
    pub(super) fn remember_ended(&mut self, run: &RunId) {
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(run.clone());
    }

    fn run_ended(&mut self, run: &RunId, end: &End, turn: &mut Turn<'_>) {
        self.remember_ended(run);
        let Some(told) = self.runs.remove(run) else { return };
        for id in &told.asked {
            turn.send(chat::agent_ended(id, &told, end, turn.now()));
        }
        for (id, _) in &told.waiting {
            turn.send(super::wire::answer(id, &wait::waited(&told, end)));
        }
    }

    fn send_all(&mut self, frames: Vec<Frame>, turn: &mut Turn<'_>) {
        for frame in frames {
            match frame {
                Frame::Chat(payload) => self.emit("chat", &payload, turn),
                Frame::Agent(payload) => self.emit("agent", &payload, turn),
                Frame::Message(payload) => self.emit("session.message", &payload, turn),
            }
        }
    }

    /// Tells what is due of all runs; who waited long enough is told that.
    pub(super) fn tell_due(&mut self, turn: &mut Turn<'_>) {
        self.tell_held(turn);
        let now = turn.now();
        let mut frames = Vec::new();
        for told in self.runs.values_mut() {
            told.tell_due(now, &mut frames);
            let in_vain: Vec<_> = told.waiting.extract_if(.., |(_, until)| *until <= now).collect();
            for (id, _) in in_vain {
                turn.send(super::wire::answer(&id, &wait::in_vain(told.run())));
            }
        }
        self.tell_at(now, frames, None, turn);
    }
}
