//! `Devices`: which devices of the OpenClaw protocol may come in, and who is told of those that want to.
//!
//! The rules are [`pairing`](clawmux_core::auth::pairing)'s; here they are kept in the store and
//! carried out. What a decision changes is written down before anybody is told of it, one decision at
//! a time: those that come meanwhile wait in a bounded queue, so that two connections of one new
//! device get one token. A device that is revoked has its connections closed at once, by the hub.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::announcement::Announcement;
use clawmux_core::auth::authority::Authority;
use clawmux_core::auth::pairing::{Arrival, Moment, Registry, Step};
use clawmux_core::auth::{Admitted, Principal};
use clawmux_core::command::DeviceCommand;
use clawmux_core::error::{Error, ErrorCode};
use serde_json::json;
use tokio::sync::oneshot;

use crate::ask::ask;
use crate::clock;
use crate::deliver::Asker;
use crate::hub::{Announce, Broadcast, Hub, Notice, Whose};
use crate::observe::{Observe, Observed};
use crate::store::{self, Store, WriteDevices};

/// How many may wait for a decision.
const WAITING_MAX: usize = 1024;

/// The paired devices.
pub struct Devices {
    registry: Registry,
    store: Addr<Store>,
    hub: Addr<Hub>,
    /// Those who wait while a decision is written down.
    waiting: VecDeque<Question>,
    is_writing: bool,
    admitted_total: u64,
    refused_total: u64,
}

/// Lets somebody in who comes from a device, or says why not.
#[derive(Debug, Message)]
#[rtype(result = "Result<Admitted, Error>")]
pub struct Admit(pub Arrival);

/// Does something about devices and answers who asked.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Manage {
    /// What.
    pub command: DeviceCommand,
    /// For whom; that it has the pairing scope was checked.
    pub principal: Principal,
    /// Who is answered.
    pub asker: Asker,
}

/// Something to decide, and who waits for it.
enum Question {
    Admit(Arrival, oneshot::Sender<Result<Admitted, Error>>),
    Manage(Manage),
}

/// A decision that is to be written down, and how it is told then.
struct Decision {
    step: Step<()>,
    tell: Box<dyn FnOnce(Result<(), Error>)>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl Devices {
    /// Of what the store has.
    ///
    /// # Errors
    /// As the store's.
    pub async fn open(authority: Arc<Authority>, store: Addr<Store>, hub: Addr<Hub>) -> Result<Self, Error> {
        let store::Devices { secret, devices } = ask(&store, store::ReadDevices).await??;
        Ok(Self {
            registry: Registry::new(authority, secret, devices),
            store,
            hub,
            waiting: VecDeque::new(),
            is_writing: false,
            admitted_total: 0,
            refused_total: 0,
        })
    }

    /// Decides this now, or when what is being written down is.
    fn ask(&mut self, question: Question, ctx: &mut Context<Self>) {
        if self.waiting.len() >= WAITING_MAX {
            return question.refuse(ErrorCode::Unavailable.error("too many devices at once: try again"));
        }
        self.waiting.push_back(question);
        self.go_on(ctx);
    }

    fn go_on(&mut self, ctx: &mut Context<Self>) {
        while !self.is_writing
            && let Some(question) = self.waiting.pop_front()
        {
            if question.is_void() {
                continue;
            }
            let decision = self.decide(question);
            self.carry_out(decision, ctx);
        }
    }

    fn decide(&mut self, question: Question) -> Decision {
        let mut at = Moment { now: clock::now(), random: &mut clock::random };
        match question {
            Question::Admit(arrival, to) => {
                let step = self.registry.admit(&arrival, &mut at);
                match &step.answer {
                    Ok(_) => self.admitted_total += 1,
                    Err(error) => {
                        self.refused_total += 1;
                        tracing::info!(device = %arrival.device.id, peer = %arrival.peer, "not let in: {error}");
                    }
                }
                Decision::new(step, move |answer| drop(to.send(answer)))
            }
            Question::Manage(Manage { command, principal, asker }) => {
                Decision::new(self.registry.answer(command, &principal, &mut at), move |answer| {
                    asker.reply(answer);
                })
            }
        }
    }

    /// Has it written down, then tells.
    fn carry_out(&mut self, decision: Decision, ctx: &mut Context<Self>) {
        let Decision { mut step, tell } = decision;
        let write = WriteDevices { changes: std::mem::take(&mut step.changes), durable: !step.is_idle };
        if write.changes.is_empty() || step.is_idle {
            self.registry.apply(&write.changes, step.settles.as_deref());
            if !write.changes.is_empty() {
                // Lost, it is known a minute less exactly when it was used.
                let _ = self.store.try_send(write);
            }
            tell(Ok(()));
            return self.follow_up(step);
        }
        self.is_writing = true;
        let changes = write.changes.clone();
        let store = self.store.clone();
        let written = async move { ask(&store, write).await.and_then(|written| written) };
        ctx.spawn(written.into_actor(self).map(move |written, devices, ctx| {
            devices.is_writing = false;
            match written {
                Ok(()) => {
                    devices.registry.apply(&changes, step.settles.as_deref());
                    tell(Ok(()));
                    devices.follow_up(step);
                }
                Err(error) => tell(Err(error)),
            }
            devices.go_on(ctx);
        }));
    }

    /// Tells the others, once who asked was told.
    #[expect(clippy::disallowed_methods, reason = "one message for each decision that was carried out")]
    fn follow_up(&self, step: Step<()>) {
        for (device, role) in step.ends {
            tracing::info!(%device, role = role.map(|role| role.name()), "its connections are closed");
            let whose = Whose::Device(device, role);
            self.hub.do_send(Broadcast { notice: Notice::Revoked, whose });
        }
        for news in step.news {
            self.hub.do_send(Announce(Arc::new(Announcement::Pairing(Arc::new(news)))));
        }
    }
}

impl Decision {
    fn new<A: 'static>(step: Step<A>, tell: impl FnOnce(Result<A, Error>) + 'static) -> Self {
        let Step { answer, changes, is_idle, settles, news, ends } = step;
        let tell = Box::new(move |written: Result<(), Error>| tell(written.and(answer)));
        Self { step: Step { answer: Ok(()), changes, is_idle, settles, news, ends }, tell }
    }
}

impl Question {
    /// Whether nobody waits for it any more.
    fn is_void(&self) -> bool {
        matches!(self, Self::Admit(_, to) if to.is_closed())
    }

    fn refuse(self, error: Error) {
        match self {
            Self::Admit(_, to) => drop(to.send(Err(error))),
            Self::Manage(Manage { asker, .. }) => asker.reply(Err(error)),
        }
    }
}

impl Actor for Devices {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(WAITING_MAX);
    }
}

impl Handler<Admit> for Devices {
    type Result = ResponseFuture<Result<Admitted, Error>>;

    fn handle(&mut self, Admit(arrival): Admit, ctx: &mut Self::Context) -> Self::Result {
        let (to, answer) = oneshot::channel();
        self.ask(Question::Admit(arrival, to), ctx);
        let lost = |_| ErrorCode::Unavailable.error("the request was lost: try again");
        Box::pin(async move { answer.await.map_err(lost)? })
    }
}

impl Handler<Manage> for Devices {
    type Result = ();

    fn handle(&mut self, manage: Manage, ctx: &mut Self::Context) {
        self.ask(Question::Manage(manage), ctx);
    }
}

impl Handler<Observe> for Devices {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let (paired, pending) = self.registry.counts();
        Observed::leaf(
            "devices",
            json!({
                "paired": paired,
                "pending": pending,
                "waiting": self.waiting.len(),
                "admitted_total": self.admitted_total,
                "refused_total": self.refused_total,
            }),
        )
    }
}
