//! What can be asked of one session, and how it is done.

use actix::prelude::*;
use clawmux_core::access::{Owner, Principal};
use clawmux_core::conversation::approval::{ApprovalReply, Verdict};
use clawmux_core::conversation::event::{Cause, Usage};
use clawmux_core::conversation::follow::Wanted;
use clawmux_core::conversation::reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Detached, Injected, SessionReply, Stopped,
};
use clawmux_core::conversation::session::{Submission, Submitted, prompt_bytes};
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::{ApprovalId, RunId, Seq, SessionKey, Ticket};
use clawmux_core::prompt::settings::Patch;
use clawmux_core::request::reply::Reply;

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

impl Handler<Routed> for Session {
    type Result = ();

    fn handle(&mut self, routed: Routed, ctx: &mut Self::Context) {
        self.received += 1;
        self.look_at_roster();
        let Routed { session, asker, principal, order, held } = routed;
        let is_first = self.conversation.is_new();
        let is_there = !is_first || !order.needs_something();
        let seen = session.seen_by(&principal.owner);
        if !is_there || !order.is_for(&principal, self.conversation.owner()) {
            drop(held);
            return asker.reply(Err(ErrorCode::NotFound.error(format!("no such session: {seen}"))));
        }
        if self.is_being_deleted {
            drop(held);
            let busy = format!("session {seen} is being deleted: try again");
            return asker.reply(Err(ErrorCode::Unavailable.error(busy)));
        }
        let coming = match self.admit(&order, is_first) {
            Ok(coming) => coming,
            Err(error) => {
                drop(held);
                return self.refuse_over_quota(asker, error, ctx);
            }
        };
        let now = clock::now();
        let mut followed = None;
        let reply = match order {
            Order::Submit { submission, follow, lane_guard } => {
                let Submitted { run, seq, repeated } = match self.conversation.submit(now, submission) {
                    Ok(submitted) => submitted,
                    Err(error) => {
                        // First of all, so that whoever hears of it may use the key elsewhere.
                        drop(held);
                        return asker.reply(Err(error));
                    }
                };
                let mut ahead = 0;
                let is_over = !self.conversation.is_open(&run);
                if let Some(lane_guard) = lane_guard.filter(|_| !repeated) {
                    lane_guard.ready();
                    ahead = lane_guard.ahead() + self.conversation.ahead(&run);
                    self.await_turn(run.clone(), lane_guard, ctx);
                }
                followed = follow.then(|| (Wanted::Run(run.clone()), Seq(seq.0 - 1)));
                Some(Reply::Session(SessionReply::Accepted(Accepted {
                    session,
                    run,
                    seq,
                    repeated,
                    is_over,
                    ahead,
                })))
            }
            Order::Follow { run, seq, follow } => {
                followed = follow.then(|| (Wanted::Run(run.clone()), Seq(seq.0 - 1)));
                let is_over = !self.conversation.is_open(&run);
                Some(Reply::Session(SessionReply::Accepted(Accepted {
                    session,
                    run,
                    seq,
                    repeated: true,
                    is_over,
                    ahead: 0,
                })))
            }
            Order::Attach { after } => {
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
                    return asker.reply(Err(ErrorCode::InvalidRequest.error(format!(
                        "session {seen} has no number {after} yet, its last is {head}: attach after 0"
                    ))));
                }
                followed = Some((Wanted::Session, after));
                let model =
                    self.agent_configs.catalog.answers(&session.agent(), self.conversation.settings());
                Some(Reply::Session(SessionReply::Attached(Attached {
                    session,
                    after,
                    head,
                    under_way,
                    queued,
                    model,
                })))
            }
            Order::Detach { follow } => {
                let connection = asker.client().connection;
                Some(Reply::Session(SessionReply::Detached(Detached {
                    found: self.drop_guard.subscribers.unfollow(connection, follow),
                })))
            }
            Order::Stop(cause) => {
                let partial = self.end_work(ctx);
                let runs = self.conversation.stop(now, cause, partial);
                self.is_stopped = true;
                Some(Reply::Session(SessionReply::Stopped(Stopped { session, runs })))
            }
            Order::Close { reason } => {
                if let Err(error) = self.conversation.check_reason(&reason) {
                    return asker.reply(Err(error));
                }
                let partial = self.end_work(ctx);
                let runs = self.conversation.close(now, &reason, partial);
                self.is_stopped = true;
                Some(Reply::Session(SessionReply::Stopped(Stopped { session, runs })))
            }
            Order::Abort { run } => {
                let under_way = run.as_ref().is_none_or(|run| self.conversation.is_running(run));
                let partial = if under_way { self.end_work(ctx) } else { Usage::default() };
                Some(Reply::Session(SessionReply::Aborted(Aborted {
                    run: self.conversation.abort(now, run.as_ref(), partial),
                })))
            }
            Order::Clear => {
                self.conversation.clear(now);
                Some(Reply::Session(SessionReply::Cleared(Cleared { session })))
            }
            Order::Renew => {
                self.conversation.renew(now);
                Some(Reply::Session(SessionReply::Cleared(Cleared { session })))
            }
            Order::Create(_) if !is_first => None,
            Order::Create(patch) | Order::Configure(patch) => {
                if let Err(error) = self.conversation.configure(now, &patch) {
                    return asker.reply(Err(error));
                }
                None
            }
            Order::Reset => {
                let partial = self.end_work(ctx);
                if is_first {
                    // Nothing was said yet, so that it is enough to be there.
                    self.conversation.create(now);
                } else {
                    self.conversation.reset(now, partial);
                }
                None
            }
            Order::Compact(Cut { up_to, kept, forgotten }) => {
                self.conversation.compact(now, up_to);
                Some(Reply::Session(SessionReply::Compacted(Compacted { kept, forgotten })))
            }
            Order::Inject { content, id } => {
                let fresh = || RunId::new(format!("inject-{}", RunId::from_random(clock::random())));
                let id = id.unwrap_or_else(fresh);
                let seq = self.conversation.inject(now, id.clone(), content);
                Some(Reply::Session(SessionReply::Injected(Injected { message: id.to_string(), seq })))
            }
            Order::Decide { id, verdict } => match self.conversation.decide(now, &id, verdict, &principal) {
                Ok((run, decided)) => {
                    let reply = ApprovalReply::Decided { id, session, run, decided };
                    Some(Reply::Approval(Box::new(reply)))
                }
                Err(error) => {
                    asker.reply(Err(error));
                    // Its time may have come with this.
                    return self.proceed(ctx);
                }
            },
            Order::Delete => {
                let partial = self.end_work(ctx);
                self.conversation.stop(now, Cause::Asked, partial);
                self.deleting.push(asker);
                self.is_being_deleted = true;
                return self.proceed(ctx);
            }
        };
        self.next.push(Answered { asker, reply, follow: followed, held, coming });
        self.proceed(ctx);
        self.sleep_if_nothing_was();
    }
}
