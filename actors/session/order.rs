//! What can be asked of one session, and how it is done.

use actix::prelude::*;
use clawmux_core::conversation::approval::{ApprovalReply, DecidedCall, Verdict};
use clawmux_core::conversation::event::Cause;
use clawmux_core::conversation::follow::Wanted;
use clawmux_core::conversation::reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Detached, Injected, SessionReply, Stopped,
};
use clawmux_core::conversation::session::{Submission, Submitted, prompt_bytes};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ApprovalId, Owner, RunId, Seq, SessionKey, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::settings::Patch;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::NEW_SESSION_PROMPT;

use super::{Answered, HeldKey, Session};
use crate::runtime::clock;
use crate::runtime::deliver::Asker;
use crate::runtime::lane::LaneGuard;
use crate::store::Cut;

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
    /// The idempotency key of a prompt, remembered until this is gone.
    pub held: Option<HeldKey>,
}

impl Routed {
    /// Without an idempotency key that is held.
    pub fn new(session: SessionKey, order: Order, (asker, principal): (Asker, Principal)) -> Self {
        Self { session, asker, principal, order, held: None }
    }
}

/// What can be asked of one session.
#[derive(Debug)]
pub enum Order {
    /// Take a prompt.
    Submit {
        /// The prompt.
        submission: Submission,
        /// Whether its run is followed.
        follow: bool,
        /// Its spot, where it is in a lane.
        lane_guard: Option<LaneGuard>,
    },
    /// Answer with a run that is in the log already, and follow it from its prompt on.
    Follow {
        /// The run.
        run: RunId,
        /// The number of its prompt.
        seq: Seq,
        /// Whether it is followed.
        follow: bool,
    },
    /// Follow the whole session.
    Attach {
        /// After this number; none = from now on.
        after: Option<Seq>,
    },
    /// Follow it no longer.
    Detach {
        /// The ticket of the `Attach`.
        follow: Ticket,
    },
    /// End everything that is under way or waits, for this cause.
    Stop(Cause),
    /// The same, and take no more prompts until there is a new conversation.
    Close {
        /// Why.
        reason: String,
    },
    /// End a run.
    Abort {
        /// Which; none means the one under way.
        run: Option<RunId>,
    },
    /// Forget the conversation.
    Clear,
    /// Make the session with these settings, if it is not there.
    Create(Patch),
    /// Change its settings.
    Configure(Patch),
    /// Begin a new conversation.
    Reset,
    /// The same, without ending what is under way or waits.
    Renew,
    /// Forget the beginning of the conversation.
    Compact(Cut),
    /// Say something in the model's name.
    Inject {
        /// What.
        content: String,
        /// Under which id, which was not used before; none = a fresh one.
        id: Option<RunId>,
    },
    /// Decide about a call that waits for approval.
    Decide {
        /// Which.
        id: ApprovalId,
        /// What.
        verdict: Verdict,
    },
    /// Remove the session.
    Delete,
}

impl Order {
    /// Whether a session that is not there begins with it.
    pub fn begins(&self) -> bool {
        matches!(self, Self::Submit { .. } | Self::Create(_) | Self::Configure(_) | Self::Reset)
    }

    /// How many bytes it adds to the log, about; none where it ends something, or only looks.
    pub(super) fn adds(&self) -> Option<usize> {
        match self {
            Self::Submit { submission, .. } => {
                Some(prompt_bytes(&submission.content, &submission.attachments))
            }
            Self::Inject { content, id: None } => Some(content.len()),
            Self::Create(_)
            | Self::Configure(_)
            | Self::Reset
            | Self::Renew
            | Self::Clear
            | Self::Compact(_) => Some(0),
            // What is put into a conversation under an id is a part of what was begun before.
            Self::Inject { .. }
            | Self::Follow { .. }
            | Self::Attach { .. }
            | Self::Detach { .. }
            | Self::Stop(_)
            | Self::Close { .. }
            | Self::Abort { .. }
            | Self::Decide { .. }
            | Self::Delete => None,
        }
    }

    /// Whether it is about what is in the session, so that there must be something.
    fn needs_something(&self) -> bool {
        matches!(
            self,
            Self::Clear
                | Self::Renew
                | Self::Stop(_)
                | Self::Close { .. }
                | Self::Compact(_)
                | Self::Inject { .. }
                | Self::Decide { .. }
                | Self::Delete
        )
    }

    /// Whether this principal may have it carried out in a session of this owner. Who may decide about a
    /// call is said by the call.
    fn is_for(&self, principal: &Principal, owner: &Owner) -> bool {
        matches!(self, Self::Decide { .. }) || principal.sees(owner)
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
        let Routed { session, asker, principal, order, held } = routed;
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
            Order::Submit { submission, follow, lane_guard } => {
                self.submit(session, submission, follow, lane_guard, ctx)
            }
            Order::Follow { run, seq, follow } => {
                Ok(self.accepted(session, Submitted { run, seq, repeated: true }, follow, 0))
            }
            Order::Attach { after } => self.attach(session, after, &principal),
            Order::Detach { follow } => {
                let found = self.drop_guard.subscribers.unfollow(asker.client().connection, follow);
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
                self.next.push(Answered { asker, reply, follow, held, coming });
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
        let submitted = self.conversation.submit(clock::now(), submission)?;
        let mut ahead = 0;
        if let Some(lane_guard) = lane_guard.filter(|_| !submitted.repeated) {
            lane_guard.ready();
            ahead = lane_guard.ahead() + self.conversation.ahead(&submitted.run);
            self.await_turn(submitted.run.clone(), lane_guard, ctx);
        }
        Ok(self.accepted(session, submitted, follow, ahead))
    }

    fn accepted(&self, session: SessionKey, submitted: Submitted, follow: bool, ahead: usize) -> Done {
        let Submitted { run, seq, repeated } = submitted;
        let follow = follow.then(|| (Wanted::Run(run.clone()), Seq(seq.0 - 1)));
        let is_over = !self.conversation.is_open(&run);
        let accepted = Accepted { session, run, seq, repeated, is_over, ahead };
        Done { reply: Some(SessionReply::Accepted(accepted).into()), follow }
    }

    fn attach(&self, session: SessionKey, after: Option<Seq>, by: &Principal) -> Result<Done, Error> {
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
        Ok(Done {
            reply: Some(SessionReply::Attached(attached).into()),
            follow: Some((Wanted::Session, after)),
        })
    }

    /// These runs were ended, and it sleeps as soon as it may.
    fn stopped(&mut self, session: SessionKey, runs: Vec<RunId>) -> Done {
        self.is_stopped = true;
        SessionReply::Stopped(Stopped { session, runs }).into()
    }
}
