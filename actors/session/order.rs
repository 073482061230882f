//! What can be asked of one session, and how it is done.

use actix::prelude::*;
use clawmux_core::conversation::approval::{ApprovalReply, DecidedCall};
use clawmux_core::conversation::event::Cause;
use clawmux_core::conversation::follow::Wanted;
use clawmux_core::conversation::order::{Cut, Order, followed};
use clawmux_core::conversation::reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Detached, Injected, SessionReply, Stopped,
};
use clawmux_core::conversation::session::{Submission, Submitted};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::NEW_SESSION_PROMPT;

use super::{Answered, HeldKey, Session};
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::runtime::lane::LaneGuard;

/// A request that was found to be about this session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Routed {
    /// The session.
    pub session: SessionKey,
    /// Who waits for the answer.
    pub asker: Asker,
    /// On whose behalf.
    pub principal: Principal,
    /// What is asked.
    pub order: Order,
    /// The spot of a prompt that is in a lane.
    pub lane_guard: Option<LaneGuard>,
    /// The idempotency key of a prompt, remembered until this is gone.
    pub held: Option<HeldKey>,
}

impl Routed {
    /// Without an idempotency key that is held, and in no lane.
    pub fn new(session: SessionKey, order: Order, (asker, principal): (Asker, Principal)) -> Self {
        Self { session, asker, principal, order, lane_guard: None, held: None }
    }
}

/// What an order came to.
#[derive(Default)]
struct Done {
    /// What is answered once it is written down; none = the session as lists show it then.
    reply: Option<Reply>,
    /// What the client follows from then on, after which number.
    follow: Option<(Wanted, Seq)>,
}

impl Done {
    /// This is answered, and what comes of it is followed.
    fn of(reply: SessionReply, follow: bool) -> Self {
        let follow = if follow { followed(&reply) } else { None };
        Self { reply: Some(reply.into()), follow }
    }
}

impl From<SessionReply> for Done {
    fn from(reply: SessionReply) -> Self {
        Self { reply: Some(reply.into()), follow: None }
    }
}

impl Handler<Routed> for Session {
    type Result = ();

    fn handle(&mut self, routed: Routed, ctx: &mut Self::Context) {
        self.received += 1;
        self.look_at_roster();
        let Routed { session, asker, principal, order, lane_guard, held } = routed;
        let is_first = self.conversation.is_new();
        if let Err(error) = self.check_order(&session, &principal, &order) {
            drop(held);
            return asker.reply(Err(error));
        }
        let coming = match self.admit(&order, is_first) {
            Ok(coming) => coming,
            Err(error) => {
                drop(held);
                return self.refuse_over_quota(asker, error, ctx);
            }
        };
        let now = clock::now();
        let is_decision = matches!(order, Order::Decide { .. });
        let done = match order {
            Order::Submit { submission, follow } => self.submit(session, submission, follow, lane_guard, ctx),
            Order::Follow { run, seq, follow } => {
                Ok(self.accepted(session, Submitted { run, seq, repeated: true }, follow, 0))
            }
            Order::Attach { after, follow } => self.attach(session, (after, follow), &principal),
            Order::Detach { follow } => {
                let found = self.drop_guard.audience.subscribers.unfollow(asker.client().connection, follow);
                Ok(SessionReply::Detached(Detached { found }).into())
            }
            Order::Stop(cause) => {
                let partial = self.end_work(ctx);
                let runs = self.conversation.stop(now, cause, partial);
                Ok(self.stopped(session, runs))
            }
            Order::Close { reason } => self.conversation.check_reason(&reason).map(|()| {
                let partial = self.end_work(ctx);
                let runs = self.conversation.close(now, &reason, partial);
                self.stopped(session, runs)
            }),
            Order::Abort { run } => {
                let under_way = run.as_ref().is_none_or(|run| self.conversation.is_running(run));
                let partial = if under_way { self.end_work(ctx) } else { Usage::default() };
                let run = self.conversation.abort(now, run.as_ref(), partial);
                Ok(SessionReply::Aborted(Aborted { run }).into())
            }
            Order::Clear => {
                self.conversation.clear(now);
                Ok(SessionReply::Cleared(Cleared { session }).into())
            }
            Order::Renew => {
                self.conversation.renew(now, NEW_SESSION_PROMPT, !self.is_offline());
                Ok(SessionReply::Cleared(Cleared { session }).into())
            }
            Order::Create(_) if !is_first => Ok(Done::default()),
            Order::Create(patch) | Order::Configure(patch) => {
                self.conversation.configure(now, &patch).map(|()| Done::default())
            }
            Order::Reset => {
                let partial = self.end_work(ctx);
                if is_first {
                    // Nothing was said yet, so that it is enough to be there.
                    self.conversation.create(now);
                } else {
                    self.conversation.reset(now, partial);
                }
                Ok(Done::default())
            }
            Order::Compact(Cut { up_to, kept, forgotten }) => {
                self.conversation.compact(now, up_to);
                Ok(SessionReply::Compacted(Compacted { kept, forgotten }).into())
            }
            Order::Inject { content, id } => {
                let fresh = || RunId::new(format!("inject-{}", RunId::from_random(clock::random())));
                let id = id.unwrap_or_else(fresh);
                let seq = self.conversation.inject(now, id.clone(), content);
                Ok(SessionReply::Injected(Injected { message: id.to_string(), seq }).into())
            }
            Order::Decide { id, verdict } => {
                self.conversation.decide(now, &id, verdict, &principal).map(|(run, decided)| {
                    let reply = ApprovalReply::Decided(Box::new(DecidedCall { id, session, run, decided }));
                    Done { reply: Some(reply.into()), follow: None }
                })
            }
            Order::Delete => {
                let partial = self.end_work(ctx);
                self.conversation.stop(now, Cause::Asked, partial);
                self.deleting.push(asker);
                self.is_being_deleted = true;
                return self.proceed(ctx);
            }
        };
        match done {
            Ok(Done { reply, follow }) => {
                self.next.push(Answered { asker, principal, reply, follow, held, coming });
                self.proceed(ctx);
                self.sleep_if_nothing_was();
            }
            Err(error) => {
                // First of all, so that whoever hears of it may use the key elsewhere.
                drop(held);
                asker.reply(Err(error));
                if is_decision {
                    // The call's time may have come with this.
                    self.proceed(ctx);
                }
            }
        }
    }
}

impl Session {
    /// Whether it is there for whoever gives this order.
    fn check_order(&self, key: &SessionKey, principal: &Principal, order: &Order) -> Result<(), Error> {
        let is_there = !self.conversation.is_new() || !order.needs_something();
        let seen = key.seen_by(&principal.owner);
        if !is_there || !order.is_for(principal, self.conversation.owner()) {
            return Err(ErrorCode::NotFound.error(format!("no such session: {seen}")));
        }
        if self.is_being_deleted {
            return Err(ErrorCode::Unavailable.error(format!("session {seen} is being deleted: try again")));
        }
        Ok(())
    }

    fn submit(
        &mut self,
        session: SessionKey,
        submission: Submission,
        follow: bool,
        lane_guard: Option<LaneGuard>,
        ctx: &mut Context<Self>,
    ) -> Result<Done, Error> {
        let lane = submission.run_options.lane.as_ref();
        let mut ahead = lane.map_or(0, |lane| self.deps.lanes.ahead_of_new(lane));
        let submitted = self.conversation.submit(clock::now(), submission)?;
        if let Some(lane_guard) = lane_guard.filter(|_| !submitted.repeated) {
            lane_guard.ready();
            ahead = lane_guard.ahead() + self.conversation.ahead(&submitted.run);
            self.await_turn(submitted.run.clone(), lane_guard, ctx);
        }
        Ok(self.accepted(session, submitted, follow, ahead))
    }

    fn accepted(&self, session: SessionKey, submitted: Submitted, follow: bool, ahead: usize) -> Done {
        let Submitted { run, seq, repeated } = submitted;
        let is_over = !self.conversation.is_open(&run);
        Done::of(SessionReply::Accepted(Accepted { session, run, seq, repeated, is_over, ahead }), follow)
    }

    fn attach(
        &self,
        session: SessionKey,
        (after, follow): (Option<Seq>, bool),
        by: &Principal,
    ) -> Result<Done, Error> {
        let head = self.conversation.head();
        let (under_way, queued) = match after {
            None => {
                let under_way = self.conversation.under_way().map(Box::new);
                (under_way, self.conversation.waiting().collect())
            }
            Some(_) => (None, Vec::new()),
        };
        let after = after.unwrap_or(head);
        if after > head {
            let seen = session.seen_by(&by.owner);
            return Err(ErrorCode::InvalidRequest.error(format!(
                "session {seen} has no number {after} yet, its last is {head}: attach after 0"
            )));
        }
        let model = self.agent_configs.catalog.answers(&session.agent(), self.conversation.settings());
        let attached = Attached { session, after, head, under_way, queued, model };
        Ok(Done::of(SessionReply::Attached(attached), follow))
    }

    /// These runs were ended, and it sleeps as soon as it may.
    fn stopped(&mut self, session: SessionKey, runs: Vec<RunId>) -> Done {
        self.is_stopped = true;
        SessionReply::Stopped(Stopped { session, runs }).into()
    }
}
