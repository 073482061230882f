//! `Peers`: what other daemons ask about the sessions and the files of this one.
//!
//! Orders go the road of all: to the supervisor, and what the session answers goes back. As long as a daemon listens to
//! a session, `Peers` follows it like a client and says its text to all who hear it; what is settled they have from the
//! log. Nobody who asks is waited for: an answer that is late or lost is asked for again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::peer::{Answer, Answered, Ask, Ordered, said_to_bytes};
use clawmux_core::conversation::event::{Logged, Published};
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::reply::SessionReply;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, Seq, SessionKey, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::engine::{Question, ReplyTo};
use super::remote::ToOthers;
use crate::files::ReadHere;
use crate::mirror::PassedOn;
use crate::mirror::remote::Place;
use crate::runtime::awaited::{Awaited, Awaits};
use crate::runtime::deliver::{Asker, Client, Deliver, Window, cost};
use crate::runtime::observe::{Observe, Observed};
use crate::session::Routed;

/// The number of the connection that other daemons have: that of no client, and of no actor that asks by itself.
const CONNECTION: ConnectionId = ConnectionId(1 << 60);

/// Questions that may wait for their sessions.
const ANSWERS_MAX: usize = 16_384;

/// How long a session is followed after somebody has said that he listens.
const LISTENED_FOR: Duration = Duration::from_secs(15);

/// How often it is looked whether anybody still listens, and whether questions come.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The pause before it is tried again to hear questions.
const PAUSE: Duration = Duration::from_secs(1);

/// Messages that may wait.
const MAILBOX: usize = 4096;

/// What other daemons ask.
pub struct Peers {
    me: NodeName,
    others: ToOthers,
    sessions: Recipient<PassedOn>,
    files: Recipient<ReadHere>,
    client: Option<Client>,
    last_ticket: AtomicU64,
    /// What was asked about sessions of which it is being found out whether they are here.
    located: HashMap<SessionKey, Vec<(Ask, ReplyTo)>>,
    waiting: usize,
    /// Who waits for which answer.
    answers: HashMap<Ticket, ReplyTo>,
    /// The sessions that are followed for others.
    feeds: HashMap<SessionKey, Feed>,
    /// Which of them has which ticket.
    tickets: HashMap<Ticket, SessionKey>,
    said: Option<mpsc::UnboundedSender<Arc<Published>>>,
    /// Whether it was said that a question can't be read.
    has_told: bool,
    awaited: Awaited<Self>,
}

/// A session that is followed for others.
struct Feed {
    ticket: Ticket,
    /// The last number that was said; none until the session has answered.
    said: Option<Seq>,
    until: Instant,
    /// Who is answered when the session has.
    waiting: Vec<ReplyTo>,
}

impl Peers {
    /// Answers for this node; orders go to `sessions`, `files` has the bytes of files.
    pub fn start(
        me: NodeName,
        others: ToOthers,
        sessions: Recipient<PassedOn>,
        files: Recipient<ReadHere>,
    ) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            Self {
                me,
                others,
                sessions,
                files,
                client: None,
                last_ticket: AtomicU64::new(0),
                located: HashMap::new(),
                waiting: 0,
                answers: HashMap::new(),
                feeds: HashMap::new(),
                tickets: HashMap::new(),
                said: None,
                has_told: false,
                awaited: Awaited::default(),
            }
        })
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.last_ticket.fetch_add(1, Relaxed) + 1)
    }

    fn listen(&mut self) {
        let (engine, me) = (self.others.engine.clone(), self.me.clone());
        let questions = async move { engine.questions(&me).await };
        self.awaited.add(questions, |_, questions, ctx| match questions {
            Ok(questions) => {
                ctx.add_stream(questions);
            }
            Err(why) => {
                tracing::debug!(why, "cluster: it is tried again");
                ctx.run_later(PAUSE, |peers, _| peers.listen());
            }
        });
    }

    fn answer(&self, to: ReplyTo, answer: Answer) {
        let answered = Answered { applied: self.others.position(), answer }.to_bytes();
        let engine = self.others.engine.clone();
        self.awaited.add(async move { engine.answer(to, answered).await }, |_, sent, _| {
            if let Err(why) = sent {
                tracing::debug!(why, "cluster: an answer was not sent");
            }
        });
    }

    /// Does what was asked about a session, in the order in which it was asked, now that it is known where that is.
    fn found(&mut self, session: &SessionKey, place: &Result<Place, Error>) {
        for (ask, reply) in self.located.remove(session).unwrap_or_default() {
            self.waiting -= 1;
            match (place, ask) {
                (Ok(Place::There(_)), _) => self.answer(reply, Answer::Elsewhere),
                // It may be somebody's in a moment: whoever asks finds out.
                (Err(error), _) if error.code == ErrorCode::Unavailable => {
                    self.answer(reply, Answer::Elsewhere);
                }
                (Err(error), _) => self.answer(reply, Answer::Failed(error.clone())),
                (Ok(Place::Here), Ask::Order(ordered)) => {
                    let ticket = self.ticket();
                    self.answers.insert(ticket, reply);
                    self.order(ticket, *ordered);
                }
                (Ok(Place::Here), Ask::Follow(session, after)) => self.follow(session, after, reply),
                (Ok(Place::Here), Ask::Piece(..)) => self.answer(reply, Answer::Elsewhere),
            }
        }
    }

    /// Answers with bytes of a file, where they are here.
    fn read_here(&mut self, asked: ReadHere, reply: ReplyTo) {
        self.waiting += 1;
        self.awaited.add(self.files.send(asked), |peers, read, _| {
            peers.waiting -= 1;
            peers.answer(
                reply,
                match read {
                    Ok(Ok(Some(bytes))) => Answer::Piece(bytes),
                    Ok(Ok(None)) => Answer::Elsewhere,
                    Ok(Err(error)) => Answer::Failed(error),
                    Err(_) => Answer::Failed(ErrorCode::Unavailable.error("the files can't be asked")),
                },
            );
        });
    }

    /// Sends an order to its session.
    fn order(&mut self, ticket: Ticket, ordered: Ordered) {
        let Some(client) = self.client.clone() else { return };
        let Ordered { session, principal, order, is_again } = ordered;
        let routed = Routed::new(session, order, (Asker::new(client, ticket), principal));
        // Where the supervisor is too busy, the asker says so by being dropped.
        let _ = self.sessions.try_send(PassedOn { routed, is_again });
    }

    fn follow(&mut self, session: SessionKey, after: Option<Seq>, reply: ReplyTo) {
        let until = Instant::now() + LISTENED_FOR;
        let feed = self.feeds.get_mut(&session);
        match (feed, after) {
            (Some(feed), None) => {
                feed.until = until;
                match feed.said {
                    Some(said) => self.answer(reply, Answer::Follows(said)),
                    None => feed.waiting.push(reply),
                }
            }
            (feed, after) => {
                // What was said is said anew, from there on.
                let waiting = feed.map(|feed| std::mem::take(&mut feed.waiting)).unwrap_or_default();
                self.unfollow(&session);
                let ticket = self.ticket();
                let waiting = waiting.into_iter().chain([reply]).collect();
                self.feeds.insert(session.clone(), Feed { ticket, said: None, until, waiting });
                self.tickets.insert(ticket, session.clone());
                let order = Order::Attach { after, follow: true };
                self.order(
                    ticket,
                    Ordered { session, principal: Principal::socket(), order, is_again: false },
                );
            }
        }
    }

    fn unfollow(&mut self, session: &SessionKey) {
        if let Some(feed) = self.feeds.remove(session) {
            self.tickets.remove(&feed.ticket);
            let order = Order::Detach { follow: feed.ticket };
            let (session, principal) = (session.clone(), Principal::socket());
            self.order(self.ticket(), Ordered { session, principal, order, is_again: false });
        }
    }

    fn replied(&mut self, ticket: Ticket, reply: Result<Reply, Error>) {
        if let Some(to) = self.answers.remove(&ticket) {
            return self.answer(to, Answer::to_order(reply));
        }
        // Else it is the end of a feed.
        let Some(session) = self.tickets.get(&ticket).cloned() else { return };
        let Some(feed) = self.feeds.get_mut(&session) else { return };
        let waiting = std::mem::take(&mut feed.waiting);
        let answer = match reply {
            Ok(Reply::Session(SessionReply::Attached(attached))) => {
                feed.said = Some(attached.head);
                Answer::Follows(attached.head)
            }
            Ok(_) => Answer::Failed(ErrorCode::Internal.error("the session can't be followed")),
            Err(error) => Answer::Failed(error),
        };
        if matches!(answer, Answer::Failed(_)) {
            self.feeds.remove(&session);
            self.tickets.remove(&ticket);
        }
        for to in waiting {
            self.answer(to, answer.clone());
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        let over = self.feeds.iter().filter(|(_, feed)| feed.until <= now);
        for session in over.map(|(session, _)| session.clone()).collect::<Vec<_>>() {
            self.unfollow(&session);
        }
    }
}

/// Says text to all who hear it, in order, as much of a session at once as there is.
async fn say(others: ToOthers, window: Arc<Window>, mut said: mpsc::UnboundedReceiver<Arc<Published>>) {
    while let Some(first) = said.recv().await {
        let mut room = cost(&first);
        let mut batch: Vec<(SessionKey, Vec<Logged>)> = Vec::new();
        let mut add = |event: Arc<Published>| {
            let Published { session, logged, .. } = &*event;
            match batch.iter_mut().find(|(of, _)| of == session) {
                Some((_, events)) => events.push(logged.clone()),
                None => batch.push((session.clone(), vec![logged.clone()])),
            }
        };
        add(first);
        while let Ok(next) = said.try_recv() {
            room += cost(&next);
            add(next);
        }
        for (session, events) in batch {
            if let Err(why) = others.engine.say(&session, said_to_bytes(&events)).await {
                // Who misses it asks for it.
                tracing::debug!(why, "cluster: text was not said");
            }
        }
        window.give_back(room, CONNECTION);
    }
}

impl Awaits for Peers {
    fn awaited(&mut self) -> &mut Awaited<Self> {
        &mut self.awaited
    }
}

impl Actor for Peers {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        Self::begin_to_wait(ctx);
        let window = Arc::<Window>::default();
        self.client = Some(Client {
            connection: CONNECTION,
            to: ctx.address().recipient(),
            window: Arc::clone(&window),
            arbiter: Arbiter::current(),
        });
        // Bounded by the window.
        let (said, to_say) = mpsc::unbounded_channel();
        self.said = Some(said);
        self.awaited.add(say(self.others.clone(), window, to_say), |_, (), _| {});
        ctx.run_interval(LOOK_EVERY, |peers, _| peers.look());
        self.listen();
    }
}

impl StreamHandler<Question> for Peers {
    fn handle(&mut self, Question { asked, reply }: Question, _: &mut Self::Context) {
        let asked = asked.map_err(|why| ErrorCode::Unavailable.error(why));
        let ask = match asked.and_then(|asked| Ask::from_bytes(&asked)) {
            Ok(ask) => ask,
            Err(error) => {
                if !std::mem::replace(&mut self.has_told, true) {
                    tracing::warn!(%error, "cluster: another daemon asks what can't be read; it is said once");
                }
                return self.answer(reply, Answer::Failed(error));
            }
        };
        if self.answers.len() + self.waiting >= ANSWERS_MAX {
            let busy = ErrorCode::Unavailable.error(format!("{} has too much to answer: try again", self.me));
            return self.answer(reply, Answer::Failed(busy));
        }
        let session = match &ask {
            Ask::Order(ordered) => ordered.session.clone(),
            Ask::Follow(session, _) => session.clone(),
            Ask::Piece(file, offset, bytes_max) => {
                let (file, offset, bytes_max) = (*file, *offset, *bytes_max);
                return self.read_here(ReadHere { file, offset, bytes_max }, reply);
            }
        };
        self.waiting += 1;
        if let Some(located) = self.located.get_mut(&session) {
            return located.push((ask, reply));
        }
        self.located.insert(session.clone(), vec![(ask, reply)]);
        let place = self.others.locate_now(session.clone());
        self.awaited.add(place, move |peers, place, _| peers.found(&session, &place));
    }

    /// Questions end only where the connection does.
    fn finished(&mut self, ctx: &mut Self::Context) {
        ctx.run_later(PAUSE, |peers, _| peers.listen());
    }
}

impl Handler<Deliver> for Peers {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, _: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => self.replied(ticket, reply),
            Deliver::Event { ticket, event, .. } => {
                let feed = self.tickets.get(&ticket).and_then(|session| self.feeds.get_mut(session));
                if let Some(feed) = feed {
                    feed.said = Some(event.logged.seq);
                }
                if let Some(said) = &self.said {
                    // Also of a feed that ended: its room has to be given back.
                    let _ = said.send(event);
                }
            }
            Deliver::Progress(..) | Deliver::Announced | Deliver::Invoke(_) => {}
        }
    }
}

impl Handler<Observe> for Peers {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf("peers", json!({ "answers": self.answers.len(), "feeds": self.feeds.len() }))
    }
}
