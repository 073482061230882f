//! The sessions a connection follows, and how what happens in them reaches it.
//!
//! A client of this protocol does not say what it follows: it names a session, and is told of it
//! from then on. Its runs come under the ticket of the attachment, or under that of the request that
//! asked for them; whichever it is, a run is told once, by its number in the log.

use std::sync::Arc;

use super::stream::{End, Frame, Told, said, wire_run};
use super::{Call, OpenClaw, chat, keys, message, target, wait};
use crate::command::Command;
use crate::dialect::Turn;
use crate::event::{Event, Published};
use crate::ids::{RunId, Seq, SessionKey, Ticket};
use crate::reply::{Reply, UnderWay};
use crate::time::Timestamp;

/// How many runs that were told to their end are remembered, so that none is told again.
const ENDED_MAX: usize = 256;

/// A session that the client named.
#[derive(Debug)]
pub(super) struct Followed {
    /// How the client called it last.
    pub(super) key: String,
    /// The attachment; none while it is asked for.
    ticket: Option<Ticket>,
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
        let ticket = self.ask_aside(Command::Watch, turn, |_, _, _| Ok(Call::Elsewhere));
        self.watch = Some(ticket);
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
            self.ask_aside(Command::Unwatch { watch }, turn, |_, _, _| Ok(Call::Elsewhere));
        }
        let mut wants_messages = false;
        if let Some(followed) = self.followed.get_mut(session) {
            followed.key = key.to_owned();
            followed.named = named;
            wants_messages = followed.wants_messages;
            match &known {
                // What lies before it was attached is told again, and only that.
                Some(known) if known.after < followed.from && followed.ticket.is_some() => {}
                _ => return,
            }
            self.unfollow(session, turn);
        }
        if self.followed.len() >= self.setup.subscriptions
            && let Some(oldest) = self.followed.iter().min_by_key(|(_, f)| f.named).map(|(k, _)| k.clone())
        {
            self.unfollow(&oldest, turn);
        }
        let after = known.as_ref().map(|known| known.after);
        if let Some(Known { under_way, queued, .. }) = known {
            self.resume(under_way.as_ref(), &queued, key);
        }
        let (key, from) = (key.to_owned(), after.unwrap_or_default());
        let followed = Followed { key, ticket: None, from, named, wants_messages };
        self.followed.insert(session.clone(), followed);
        let (attach, session) = (Command::Attach { target: target(session), after }, session.clone());
        self.ask_aside(attach, turn, move |dialect, reply, _| {
            match reply {
                Ok(Reply::Attached { after, under_way, queued, .. }) => {
                    let key = dialect.followed.get_mut(&session).map(|followed| {
                        followed.from = after;
                        followed.key.clone()
                    });
                    if let Some(key) = key {
                        dialect.resume(under_way.as_deref(), &queued, &key);
                    }
                }
                // What the client asked of the session says what is wrong with it.
                _ => drop(dialect.followed.remove(&session)),
            }
            Ok(Call::Elsewhere)
        });
    }

    /// Whether a session that is followed has its messages told as such.
    pub(super) fn want_messages(&mut self, session: &SessionKey, wants: bool) {
        if let Some(followed) = self.followed.get_mut(session) {
            followed.wants_messages = wants;
        }
    }

    /// The attachment to a session was made under this ticket.
    pub(super) fn attached(&mut self, ticket: Ticket, session: &SessionKey) {
        if let Some(followed) = self.followed.get_mut(session) {
            followed.ticket = Some(ticket);
        }
    }

    fn unfollow(&mut self, session: &SessionKey, turn: &mut Turn<'_>) {
        if let Some(Followed { ticket: Some(follow), .. }) = self.followed.remove(session) {
            let detach = Command::Detach { target: target(session), follow };
            self.ask_aside(detach, turn, |_, _, _| Ok(Call::Elsewhere));
        }
    }

    /// A run that is under way is told from where it is on, and those that wait under their names.
    fn resume(&mut self, under_way: Option<&UnderWay>, queued: &[(RunId, Option<String>)], key: &str) {
        let told = |run: &RunId, idempotency_key: Option<&str>| {
            Told::new(self.protocol, wire_run(run, idempotency_key), Some(key))
        };
        let under_way = under_way.map(|under_way| {
            let told = told(&under_way.run, under_way.idempotency_key.as_deref());
            (under_way.run.clone(), told.resumed(under_way))
        });
        let queued = queued.iter().map(|(run, name)| (run.clone(), told(run, name.as_deref())));
        let resumed: Vec<_> = under_way.into_iter().chain(queued).collect();
        for (run, told) in resumed {
            if !self.ended.contains(&run) {
                self.runs.entry(run).or_insert(told);
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
        let Some(told) = self.runs.get_mut(run) else { return };
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
            let key = followed.unwrap_or_else(|| keys::write(&event.session));
            let seq = event.logged.seq.0;
            self.remember_ended(run);
            self.emit("chat", &said(run.as_str(), &key, seq, content, event.logged.at, false), turn);
            return false;
        }
        let is_watched = self.watch == Some(ticket);
        let key = match followed {
            Some(key) => key,
            None if is_watched => keys::write(&event.session),
            None => return false,
        };
        let told = match &event.logged.event {
            Event::Prompted { idempotency_key, .. } => {
                Told::new(self.protocol, wire_run(run, idempotency_key.as_deref()), Some(&key))
            }
            // Its beginning was not seen, so its text can't be told.
            _ if is_watched => return false,
            _ => Told::new(self.protocol, run.as_str(), Some(&key)),
        };
        self.runs.insert(run.clone(), told);
        true
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
    fn remember_ended(&mut self, run: &RunId) {
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
