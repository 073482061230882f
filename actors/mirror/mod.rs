//! `Mirror`: stands in for a session that another daemon of the cluster writes.
//!
//! Clients of this daemon follow it and order of it as if it were here. Orders go to the daemon that owns it, and are
//! answered here once the store of this daemon has what the answer speaks of. Events come from the store, which
//! applies the same log; text of a step under way comes from the owner, as it is said.
//!
//! ```text
//!   client ──► SessionSupervisor ──► Mirror ──(order)──► owner ──► log ──► store here ──► Mirror ──► clients
//!                                      ▲                   │
//!                                      └── text, as said ──┘
//! ```
//!
//! Text that was lost on the way is asked for once more; without an answer it comes with the end of its step, from the
//! store. Nothing is told twice: what is published is numbered without gaps.
//!
//! Where the owner is gone, an order is passed to whoever owns the session next. One whose outcome is not known is
//! passed on as one that was asked before, which does nothing twice; one that can't be repeated fails then.

pub mod remote;
mod waiting;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::peer::{Answer, Answered, Ask, Ordered};
use clawmux_core::conversation::approval::ApprovalReply;
use clawmux_core::conversation::event::{Cause, Event, Logged, Outcome, Published};
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::reply::{Accepted, Detached, SessionReply};
use clawmux_core::daemon::announcement::{ChangeReason, SessionChange};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ApprovalId, Owner, RunId, Seq, SessionKey};
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use futures::StreamExt as _;
use serde_json::json;
use tokio::time::Instant;

use crate::runtime::ask::ask;
use crate::runtime::awaited::{Awaited, Awaits};
use crate::runtime::clock;
use crate::runtime::deliver::More;
use crate::runtime::observe::{Observe, Observed};
use crate::session::{
    Audience, Down, Drain, Ending, Forget, Report, Routed, Serves, SessionDeps, Sleep, Subscribers, read_row,
    serve,
};
use crate::store::{AskedBy, ReadEvents, ReadRow, SessionChanged};
use remote::{Place, Remote, Unanswered};

/// How long an order is passed on before it fails.
const PATIENCE: Duration = Duration::from_secs(15);

/// The pause before an order is passed on once more.
const PAUSE: Duration = Duration::from_millis(100);

/// How often the owner is told that somebody listens here.
const LISTENS_EVERY: Duration = Duration::from_secs(5);

/// How long text may be missing before it is asked for.
const GAP_PATIENCE: Duration = Duration::from_millis(200);

/// Pieces of text that may wait for what comes before them.
const EARLY_MAX: usize = 4096;

/// The bytes that they may have.
const EARLY_BYTES_MAX: usize = 4 << 20;

/// What is read of the store at once, in bytes.
const READ_BYTES: usize = 256 * 1024;

/// How often it is looked whether somebody needs it.
const IDLE_CHECK: Duration = Duration::from_secs(60);

/// Messages that may wait.
const MAILBOX: usize = 512;

/// Stands in for a session of another daemon.
pub struct Mirror {
    node: NodeName,
    remote: Arc<dyn Remote>,
    deps: Arc<SessionDeps>,
    drop_guard: DropGuard,
    /// Messages taken from the supervisor.
    received: u64,
    /// What was ordered and is not answered, in the order in which it came.
    orders: VecDeque<InTurn>,
    last_order: u64,
    /// The last number that the store has.
    head: Seq,
    /// Text that came before what precedes it, by its first number.
    early: BTreeMap<Seq, Logged>,
    is_reading: bool,
    /// Whether it is known where the session ends: nobody can follow it before.
    has_begun: bool,
    has_gap_timer: bool,
    hearing: Hearing,
    /// Who prompted runs in which a call may wait.
    prompted_by: HashMap<RunId, Owner>,
    /// It ends once all orders are settled, for this reason.
    leaves: Option<Ending>,
    awaited: Awaited<Self>,
}

/// Whether text is heard as it is said.
enum Hearing {
    No,
    Beginning,
    Yes(SpawnHandle),
}

/// An order, and what came of it.
struct InTurn {
    number: u64,
    routed: Routed,
    passed: Option<Passed>,
}

/// What came of passing an order on.
enum Passed {
    Answered(Answer),
    /// The session is this daemon's now; `is_again` says that the order may have been carried out.
    Back {
        is_again: bool,
    },
}

/// Who supervises it.
#[derive(Clone)]
pub struct MirrorSupervisor {
    /// Is told how it fares.
    pub reports: Recipient<Report>,
    /// Takes back what is for a session of this daemon.
    pub back: Recipient<PassedOn>,
}

/// An order of a client of another daemon, or one that came back from there.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PassedOn {
    /// The order.
    pub routed: Routed,
    /// Whether it was asked before, and nobody knows what came of that.
    pub is_again: bool,
}

/// That daemon owns the session now.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct OwnedBy(pub NodeName);

/// The session is this daemon's now.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct OwnedHere;

/// The store has something that another daemon wrote in the session.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Changed(pub SessionChanged);

/// The store may have something of which nothing was said.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct LookAgain;

/// Text, as it was said.
struct Heard(Vec<Logged>);

struct DropGuard {
    audience: Audience,
    supervisor: MirrorSupervisor,
    ending: Ending,
}

impl Drop for DropGuard {
    #[expect(clippy::disallowed_methods, reason = "a lifecycle message to the parent must not be lost")]
    fn drop(&mut self) {
        self.supervisor.reports.do_send(Report::Down(Down {
            key: self.audience.key.clone(),
            subscribers: std::mem::take(&mut self.audience.subscribers),
            panicked: std::thread::panicking(),
            ending: self.ending,
        }));
    }
}

impl Mirror {
    /// Stands in for `key`, which `node` owns and these followed before, on this arbiter.
    pub fn start_on(
        arbiter: &ArbiterHandle,
        (key, node): (SessionKey, NodeName),
        subscribers: Subscribers,
        (remote, deps): (Arc<dyn Remote>, Arc<SessionDeps>),
        supervisor: MirrorSupervisor,
    ) -> Addr<Self> {
        let (sender, receiver) = actix::dev::channel::channel(MAILBOX);
        arbiter.spawn_fn(move || {
            let audience = Audience::new(key, subscribers, Seq::default());
            Context::with_receiver(receiver).run(Self {
                node,
                remote,
                deps,
                drop_guard: DropGuard { audience, supervisor, ending: Ending::Fell },
                received: 0,
                orders: VecDeque::new(),
                last_order: 0,
                head: Seq::default(),
                early: BTreeMap::new(),
                is_reading: true,
                has_begun: false,
                has_gap_timer: false,
                hearing: Hearing::No,
                prompted_by: HashMap::new(),
                leaves: None,
                awaited: Awaited::default(),
            });
        });
        Addr::new(sender)
    }

    fn key(&self) -> &SessionKey {
        &self.drop_guard.audience.key
    }

    /// Finds where the session ends in the store: what comes from there on is told as it comes.
    fn begin(&mut self) {
        let (store, key) = (self.deps.store.clone(), self.key().clone());
        let found = async move {
            let row = ask(&store, ReadRow(key.clone())).await.flatten()?;
            let head = row.map_or(Seq::default(), |row| row.head);
            Ok::<_, Error>((head, waiting::read(store, key, head).await?))
        };
        self.awaited.add(found, |mirror, found, ctx| {
            mirror.is_reading = false;
            match found {
                Ok((head, waiting)) => {
                    mirror.prompted_by = waiting.prompted_by;
                    waiting.calls.into_iter().for_each(|call| mirror.deps.approvals.asked(call));
                    let audience = &mut mirror.drop_guard.audience;
                    (audience.written, audience.published) = (head, head);
                    mirror.has_begun = true;
                    mirror.answer(ctx);
                }
                Err(error) => {
                    tracing::warn!(session = %mirror.key(), %error, "what another daemon writes can't be read here");
                    ctx.stop();
                }
            }
        });
    }

    /// Reads what the store has and nobody was told, publishes text that is next, and serves who is behind.
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        if self.is_reading {
            return;
        }
        let audience = &mut self.drop_guard.audience;
        if self.head > audience.published {
            return self.read();
        }
        audience.written = audience.written.max(self.head);
        self.publish_early();
        self.listen();
        self.catch_up(ctx);
        self.end_if_done(ctx);
    }

    fn read(&mut self) {
        self.is_reading = true;
        let (key, after) = (self.key().clone(), self.drop_guard.audience.published);
        let question = ReadEvents { session: key.clone(), after, run: None, max_bytes: READ_BYTES };
        let read = self.deps.store.send(AskedBy { owner: key.owner(), question });
        self.awaited.add(read, |mirror, read, ctx| match read {
            Ok(Ok(events)) => {
                mirror.is_reading = false;
                mirror.publish(&events, ctx);
            }
            Ok(Err(error)) if error.is_retryable() => {
                ctx.run_later(PAUSE, |mirror, _| mirror.read());
            }
            failed => {
                tracing::warn!(session = %mirror.key(), ?failed, "what another daemon writes can't be read here");
                ctx.stop();
            }
        });
    }

    /// Events of the store, none of which was told.
    fn publish(&mut self, events: &[Logged], ctx: &mut Context<Self>) {
        let Some(last) = events.last().map(|logged| logged.seq) else {
            // It was deleted since, of which it is told.
            self.head = self.drop_guard.audience.published;
            return;
        };
        events.iter().for_each(|logged| self.note(logged));
        let lag_bytes_max = self.deps.agent_configs.get().lag_bytes_max;
        let audience = &mut self.drop_guard.audience;
        audience.let_watch(&self.deps, audience.published, || ctx.address().recipient());
        audience.written = audience.written.max(last);
        audience.publish(events, lag_bytes_max);
        self.go_on(ctx);
    }

    /// Publishes text that comes next, as far as it is here.
    fn publish_early(&mut self) {
        if self.awaits_follower() {
            return;
        }
        let lag_bytes_max = self.deps.agent_configs.get().lag_bytes_max;
        let audience = &mut self.drop_guard.audience;
        while let Some(first) = self.early.first_entry() {
            let next = audience.published.next();
            // What was told in part is asked for anew.
            if *first.key() < next {
                first.remove();
            } else if *first.key() == next {
                audience.publish(&[first.remove()], lag_bytes_max);
            } else {
                break;
            }
        }
    }

    /// Takes a note of what lists show and approvers are told.
    fn note(&mut self, logged: &Logged) {
        if let Some(reason) = ChangeReason::of(logged) {
            let (session, owner) = (self.key().clone(), self.key().owner());
            self.deps.changes.note(SessionChange { session, owner, reason });
        }
        let Some(run) = &logged.run else { return };
        match &logged.event {
            Event::Prompted { owner, .. } => drop(self.prompted_by.insert(run.clone(), owner.clone())),
            Event::Ended { .. } => drop(self.prompted_by.remove(run)),
            Event::ApprovalAsked(asked) => {
                let call = waiting::pending(self.key(), run, &self.prompted_by, asked);
                self.deps.approvals.asked(call);
            }
            Event::ApprovalDecided(decided) => {
                self.deps.approvals.decided(&ApprovalId::of(run, &decided.call), decided, logged.at);
            }
            _ => {}
        }
    }

    /// Whether somebody is about to follow: text that is told before that would be late for him.
    fn awaits_follower(&self) -> bool {
        self.orders.iter().any(|order| order.routed.order.is_followed())
    }

    /// Hears what is said, as long as somebody follows.
    fn listen(&mut self) {
        let is_needed = self.awaits_follower() || !self.drop_guard.audience.subscribers.is_empty();
        if !is_needed || !matches!(self.hearing, Hearing::No) {
            return;
        }
        self.hearing = Hearing::Beginning;
        let heard = self.remote.hear(self.key().clone());
        self.awaited.add(heard, |mirror, heard, ctx| match heard {
            Ok(said) => {
                mirror.hearing = Hearing::Yes(ctx.add_stream(said.map(Heard)));
                mirror.ask_to_hear(Some(mirror.drop_guard.audience.published));
            }
            Err(why) => {
                tracing::debug!(session = %mirror.key(), why, "text of another daemon can't be heard");
                mirror.hearing = Hearing::No;
            }
        });
    }

    /// Has the owner say what is said, and from after a number on what was said already.
    fn ask_to_hear(&mut self, after: Option<Seq>) {
        let asked = self.remote.ask(self.node.clone(), Ask::Follow(self.key().clone(), after));
        self.awaited.add(asked, |mirror, answered, ctx| {
            if let Ok(Answered { answer: Answer::Follows(said), .. }) = answered
                && said > mirror.drop_guard.audience.published
            {
                mirror.look_at_gap_later(ctx);
            }
        });
    }

    /// Asks for text that is missing, once it did not come by itself.
    fn look_at_gap_later(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.has_gap_timer, true) {
            return;
        }
        let before = self.drop_guard.audience.published;
        ctx.run_later(GAP_PATIENCE, move |mirror, _| {
            mirror.has_gap_timer = false;
            let published = mirror.drop_guard.audience.published;
            let is_next_here = mirror.early.keys().next().is_some_and(|first| *first <= published.next());
            if published == before && !mirror.is_reading && !is_next_here {
                mirror.ask_to_hear(Some(published));
            }
        });
    }

    fn stop_listening(&mut self, ctx: &mut Context<Self>) {
        if let Hearing::Yes(hearing) = std::mem::replace(&mut self.hearing, Hearing::No) {
            ctx.cancel_future(hearing);
        }
        self.early.clear();
    }

    /// Passes an order on.
    fn order(&mut self, routed: Routed, ctx: &mut Context<Self>) {
        self.last_order += 1;
        let number = self.last_order;
        // What follows here ends here, in its turn: it may not have begun.
        let passed = matches!(routed.order, Order::Detach { .. }).then(|| {
            Passed::Answered(Answer::Done(Box::new(SessionReply::Detached(Detached { found: false }))))
        });
        if passed.is_none() {
            let ordered = Ordered {
                session: routed.session.clone(),
                principal: routed.principal.clone(),
                order: routed.order.clone().unfollowed(),
                is_again: false,
            };
            let passed = pass_on(Arc::clone(&self.remote), self.node.clone(), ordered);
            self.awaited.add(passed, move |mirror, passed, ctx| {
                if let Some(order) = mirror.orders.iter_mut().find(|order| order.number == number) {
                    order.passed = Some(passed);
                }
                mirror.answer(ctx);
            });
        }
        self.orders.push_back(InTurn { number, routed, passed });
        self.answer(ctx);
    }

    /// Answers what came back, in the order in which it was asked.
    fn answer(&mut self, ctx: &mut Context<Self>) {
        if !self.has_begun {
            return;
        }
        while let Some(InTurn { routed, passed: Some(passed), .. }) =
            self.orders.pop_front_if(|order| order.passed.is_some())
        {
            self.settle(routed, passed, ctx);
        }
        self.go_on(ctx);
    }

    fn settle(&mut self, routed: Routed, passed: Passed, ctx: &mut Context<Self>) {
        let answer = match passed {
            Passed::Back { is_again } => {
                // Where the supervisor is too busy, the asker is told so by being dropped.
                let _ = self.drop_guard.supervisor.back.try_send(PassedOn { routed, is_again });
                return;
            }
            Passed::Answered(answer) => answer,
        };
        let Routed { asker, principal, order, held, .. } = routed;
        let held = match (held, &answer, &order) {
            (Some(held), Answer::Done(reply), Order::Submit { follow, .. })
                if let SessionReply::Accepted(Accepted { session, .. }) = &**reply
                    && session != self.key() =>
            {
                return held.taken((asker, principal), *follow);
            }
            (held, ..) => held,
        };
        match (answer, order) {
            (_, Order::Detach { follow }) => {
                let connection = asker.client().connection;
                let found = self.drop_guard.audience.subscribers.unfollow(connection, follow);
                asker.reply(Ok(SessionReply::Detached(Detached { found }).into()));
            }
            (Answer::Done(reply), order) => {
                let (client, ticket) = (asker.client().clone(), asker.ticket());
                let reply = Reply::Session(*reply);
                asker.reply(Ok(reply.clone()));
                if let Some(ticket) = ticket
                    && order.is_followed()
                {
                    let from = || ctx.address().recipient();
                    self.drop_guard.audience.follow_from((client, ticket), &reply, from);
                }
            }
            (Answer::Row, _) => {
                let row = read_row(self.deps.clone(), self.key().clone());
                self.awaited.add(row, |_, row, _| asker.reply(row));
            }
            (Answer::Decided(decided), _) => {
                asker.reply(Ok(Reply::Approval(ApprovalReply::Decided(decided))));
            }
            (Answer::Failed(error), _) => asker.reply(Err(error)),
            (Answer::Follows(_) | Answer::Elsewhere | Answer::Piece(_), _) => {
                asker.reply(Err(ErrorCode::Internal.error("another daemon answered something else")));
            }
        }
        drop(held);
    }

    /// The session was deleted: who follows it is told, and it ends.
    fn gone(&mut self, ctx: &mut Context<Self>) {
        let (now, key) = (clock::now(), self.key().clone());
        let mut subscribers = std::mem::take(&mut self.drop_guard.audience.subscribers);
        subscribers.end_runs(&key, |run| Logged {
            first_seq: Seq(u64::MAX),
            seq: Seq(u64::MAX),
            run: Some(run),
            at: now,
            event: Event::Ended { outcome: Outcome::Aborted(Cause::Asked), usage: Usage::default() },
        });
        let seq = self.drop_guard.audience.published.next();
        let last = Logged { first_seq: seq, seq, run: None, at: now, event: Event::Deleted };
        self.note(&last);
        subscribers.end_all(&Published::new(key, last));
        self.head = Seq::default();
        let audience = &mut self.drop_guard.audience;
        (audience.written, audience.published) = (Seq::default(), Seq::default());
        self.stop_listening(ctx);
        self.may_sleep();
    }

    fn end_if_done(&mut self, ctx: &mut Context<Self>) {
        if let Some(ending) = self.leaves.filter(|_| self.orders.is_empty()) {
            self.drop_guard.ending = ending;
            ctx.stop();
        }
    }

    /// Tells the supervisor that it is not needed, where it is not.
    fn may_sleep(&mut self) {
        self.drop_guard.audience.subscribers.forget_closed();
        let is_unneeded = self.drop_guard.audience.subscribers.is_unneeded();
        let is_asked = self.deps.approvals.wait_in(self.key());
        if self.orders.is_empty() && !self.is_reading && !is_asked && is_unneeded {
            // Lost where the supervisor is busy: it is said again later.
            let idle = Report::Idle { key: self.key().clone(), received: self.received };
            let _ = self.drop_guard.supervisor.reports.try_send(idle);
        }
    }
}

/// Passes an order to the owner of its session, whoever that comes to be.
async fn pass_on(remote: Arc<dyn Remote>, mut node: NodeName, mut ordered: Ordered) -> Passed {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let why = match remote.ask(node.clone(), Ask::Order(Box::new(ordered.clone()))).await {
            Ok(Answered { answer: Answer::Elsewhere, .. }) => format!("{node} does not own the session"),
            // It may be the first one that is carried out yet.
            Ok(Answered { answer: Answer::Failed(error), .. })
                if ordered.is_again && error.code == ErrorCode::Unavailable =>
            {
                return Passed::Answered(Answer::Failed(not_known(&node, &error.message)));
            }
            Ok(Answered { applied, answer }) => {
                if !matches!(answer, Answer::Failed(_)) {
                    remote.applied(applied).await;
                }
                return Passed::Answered(answer);
            }
            Err(Unanswered::NotAsked(why)) => why,
            Err(Unanswered::Unknown(why)) if !ordered.order.is_repeatable() => {
                return Passed::Answered(Answer::Failed(not_known(&node, &why)));
            }
            Err(Unanswered::Unknown(why)) => {
                ordered.is_again = true;
                why
            }
        };
        if Instant::now() >= deadline {
            let failed = match ordered.is_again {
                true => not_known(&node, &why),
                false => away(&format!("the session is owned by {node}, which does not answer: {why}")),
            };
            return Passed::Answered(Answer::Failed(failed));
        }
        actix::clock::sleep(PAUSE).await;
        match remote.locate(ordered.session.clone()).await {
            Ok(Place::There(owner)) => node = owner,
            Ok(Place::Here) => return Passed::Back { is_again: ordered.is_again },
            Err(error) if ordered.is_again => {
                return Passed::Answered(Answer::Failed(not_known(&node, &error.message)));
            }
            Err(error) => return Passed::Answered(Answer::Failed(error)),
        }
    }
}

fn not_known(node: &NodeName, why: &str) -> Error {
    let why =
        format!("{node}, which owns the session, did not answer: whether it was done is not known ({why})");
    ErrorCode::Timeout.error(why)
}

fn away(why: &str) -> Error {
    ErrorCode::Unavailable.error(why)
}

impl Serves for Mirror {
    fn audience(&mut self) -> (&mut Audience, &Arc<SessionDeps>) {
        (&mut self.drop_guard.audience, &self.deps)
    }

    fn catch_up(&mut self, ctx: &mut Context<Self>) {
        serve(self, ctx);
    }
}

impl Awaits for Mirror {
    fn awaited(&mut self) -> &mut Awaited<Self> {
        &mut self.awaited
    }
}

impl Actor for Mirror {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        Self::begin_to_wait(ctx);
        let from = ctx.address().recipient();
        self.drop_guard.audience.subscribers.roads().for_each(|sink| sink.starts_at(from.clone()));
        ctx.run_interval(LISTENS_EVERY, |mirror, ctx| {
            if mirror.drop_guard.audience.subscribers.is_empty() {
                mirror.stop_listening(ctx);
            } else if matches!(mirror.hearing, Hearing::Yes(_)) {
                mirror.ask_to_hear(None);
            } else {
                mirror.listen();
            }
        });
        ctx.run_interval(IDLE_CHECK, |mirror, _| mirror.may_sleep());
        self.begin();
    }
}

impl StreamHandler<Heard> for Mirror {
    fn handle(&mut self, Heard(said): Heard, ctx: &mut Self::Context) {
        // Hardly ever is there anything that came early.
        let bytes: usize = self.early.values().chain(&said).map(|logged| logged.event.bytes()).sum();
        if self.early.len() + said.len() > EARLY_MAX || bytes > EARLY_BYTES_MAX {
            // It comes with the end of its step.
            self.early.clear();
            return;
        }
        let published = self.drop_guard.audience.published;
        let fresh = said.into_iter().filter(|logged| logged.seq > published);
        self.early.extend(fresh.map(|logged| (logged.first_seq, logged)));
        if !self.is_reading {
            self.publish_early();
            self.catch_up(ctx);
        }
        if !self.early.is_empty() {
            self.look_at_gap_later(ctx);
        }
    }

    fn finished(&mut self, _: &mut Self::Context) {
        self.hearing = Hearing::No;
    }
}

impl Handler<Routed> for Mirror {
    type Result = ();

    fn handle(&mut self, routed: Routed, ctx: &mut Self::Context) {
        self.received += 1;
        self.order(routed, ctx);
    }
}

impl Handler<Changed> for Mirror {
    type Result = ();

    fn handle(&mut self, Changed(changed): Changed, ctx: &mut Self::Context) {
        match changed.head {
            Some(head) => {
                self.head = self.head.max(head);
                self.go_on(ctx);
            }
            None => self.gone(ctx),
        }
    }
}

impl Handler<LookAgain> for Mirror {
    type Result = ();

    fn handle(&mut self, _: LookAgain, _: &mut Self::Context) {
        let (store, key) = (self.deps.store.clone(), self.key().clone());
        let row = async move { ask(&store, ReadRow(key)).await.flatten() };
        self.awaited.add(row, |mirror, row, ctx| match row {
            Ok(Some(row)) => {
                mirror.head = mirror.head.max(row.head);
                mirror.go_on(ctx);
            }
            // It was deleted, unless nothing was ever in it.
            Ok(None) if mirror.drop_guard.audience.published > Seq::default() => mirror.gone(ctx),
            Ok(None) => {}
            Err(_) => {
                ctx.run_later(PAUSE, |_, ctx| ctx.notify(LookAgain));
            }
        });
    }
}

impl Handler<OwnedBy> for Mirror {
    type Result = ();

    fn handle(&mut self, OwnedBy(node): OwnedBy, _: &mut Self::Context) {
        if node != self.node {
            self.node = node;
            // What was said and not written down is void.
            self.early.clear();
            if matches!(self.hearing, Hearing::Yes(_)) {
                self.ask_to_hear(None);
            }
        }
    }
}

impl Handler<OwnedHere> for Mirror {
    type Result = ();

    fn handle(&mut self, _: OwnedHere, ctx: &mut Self::Context) {
        self.leaves = Some(Ending::Moved);
        // Who owned it may answer no more: what it did is found here.
        for order in self.orders.iter_mut().filter(|order| order.passed.is_none()) {
            order.passed = Some(match order.routed.order.is_repeatable() {
                true => Passed::Back { is_again: true },
                false => Passed::Answered(Answer::Failed(not_known(&self.node, "the session has moved"))),
            });
        }
        self.answer(ctx);
        self.end_if_done(ctx);
    }
}

impl Handler<More> for Mirror {
    type Result = ();

    fn handle(&mut self, more: More, ctx: &mut Self::Context) {
        self.drop_guard.audience.subscribers.room(more.connection);
        self.catch_up(ctx);
    }
}

impl Handler<Forget> for Mirror {
    type Result = ();

    fn handle(&mut self, Forget(connection): Forget, _: &mut Self::Context) {
        self.drop_guard.audience.subscribers.forget(connection);
    }
}

impl Handler<Sleep> for Mirror {
    type Result = ();

    fn handle(&mut self, _: Sleep, ctx: &mut Self::Context) {
        self.drop_guard.ending = Ending::Done;
        ctx.stop();
    }
}

/// The daemon stops: what was asked of other daemons is answered before.
impl Handler<Drain> for Mirror {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        self.leaves = Some(Ending::Done);
        self.end_if_done(ctx);
    }
}

impl Handler<Observe> for Mirror {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            format!("session {}", self.key()),
            json!({
                "doing": format!("standing in for {}", self.node),
                "seq": self.drop_guard.audience.published.0,
                "followers": self.drop_guard.audience.subscribers.len(),
                "orders": self.orders.len(),
            }),
        )
    }
}
