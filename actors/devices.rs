//! `Devices`: which devices of the OpenClaw protocol may come in, and who is told of those that want to.
//!
//! The rules are [`pairing`](clawmux_core::access::pairing)'s; here they are kept in the store and
//! carried out. What a decision changes is written down before anybody is told of it, one decision at
//! a time: those that come meanwhile wait in a bounded queue, so that two connections of one new
//! device get one token. Who is let in is noted with its link before it hears of it, so that none slips
//! through while its device is revoked: that closes all of its connections at once.
//!
//! In a cluster other daemons decide too. What they changed is read anew, between two decisions of this one, and the
//! connections are closed of devices that were revoked. Requests that wait for approval are known where they came alone.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::access::Admitted;
use clawmux_core::access::authority::Authority;
use clawmux_core::access::pairing::{Arrival, DeviceCommand, Moment, Registry, Step};
use clawmux_core::daemon::announcement::Announcement;
use clawmux_core::dialect::Fault;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Role;
use serde_json::json;
use tokio::sync::oneshot;

use crate::hub::{Announce, Hub};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Closer;
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{self, Store, TableChanged, WriteDevices, until_read, watch};

/// How many may wait for a decision.
const WAITING_MAX: usize = 1024;

/// How soon the devices are read again where that failed.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The paired devices.
pub struct Devices {
    registry: Registry,
    store: Addr<Store>,
    hub: Addr<Hub>,
    /// Those who wait while a decision is written down.
    waiting: VecDeque<Question>,
    is_writing: bool,
    /// Another daemon changed what is written down; dropped when that is read.
    changed: Option<oneshot::Sender<()>>,
    /// The connections of devices, as what they came; some may be gone.
    live: HashMap<Arc<str>, Vec<(Role, Closer)>>,
    admitted_total: u64,
    refused_total: u64,
}

/// Lets somebody in who comes from a device, or says why not.
#[derive(Debug, Message)]
#[rtype(result = "Result<Admitted, Error>")]
pub struct Admit {
    /// Who comes.
    pub arrival: Arrival,
    /// What ends the connection.
    pub link: Closer,
}

/// Something to decide, and who waits for it.
#[expect(clippy::large_enum_variant, reason = "a few under way at a time")]
enum Question {
    Admit(Admit, oneshot::Sender<Result<Admitted, Error>>),
    Manage(Request<DeviceCommand>),
}

/// A decision that is to be written down, and how it is told then.
struct Decision {
    step: Step<()>,
    tell: Tell,
}

/// Tells a decision, or why it could not be written down.
type Tell = Box<dyn FnOnce(&mut Devices, Result<(), Error>)>;

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
            changed: None,
            live: HashMap::new(),
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
        if !self.is_writing
            && let Some(changed) = self.changed.take()
        {
            return self.read_again(changed, ctx);
        }
        self.decide_waiting(ctx);
    }

    /// Goes over to what the store has; nothing is decided meanwhile.
    fn read_again(&mut self, changed: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.is_writing = true;
        let store = self.store.clone();
        let read = async move { ask(&store, store::ReadDevices).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|read, devices, ctx| {
            devices.is_writing = false;
            match read {
                Ok(store::Devices { secret, devices: kept }) => {
                    for (device, role) in devices.registry.replace(secret, kept) {
                        devices.close(&device, role);
                    }
                    drop(changed);
                    devices.go_on(ctx);
                }
                Err(error) => {
                    tracing::warn!(%error, "what another daemon changed of the devices can't be read");
                    devices.changed = Some(changed);
                    ctx.run_later(READ_AGAIN, Self::go_on);
                    devices.decide_waiting(ctx);
                }
            }
        }));
    }

    fn decide_waiting(&mut self, ctx: &mut Context<Self>) {
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
            Question::Admit(Admit { arrival, link }, to) => {
                let step = self.registry.admit(&arrival, &mut at);
                Decision::new(step, move |devices, answer| {
                    devices.note(&arrival, link, &answer);
                    let _ = to.send(answer);
                })
            }
            Question::Manage(Request { command, principal, asker }) => {
                let step = self.registry.answer(command, &principal, &mut at);
                Decision::new(step, move |_, answer| asker.reply(answer.map(Reply::Device)))
            }
        }
    }

    /// Notes who was let in, before he hears of it.
    fn note(&mut self, arrival: &Arrival, link: Closer, answer: &Result<Admitted, Error>) {
        if answer.is_err() {
            self.refused_total += 1;
            return;
        }
        self.admitted_total += 1;
        let live = self.live.entry(arrival.device.id.clone()).or_default();
        live.retain(|(_, link)| link.strong_count() > 0);
        live.push((arrival.claim.role, link));
    }

    /// Closes the connections of a device, in this role or in any.
    fn close(&mut self, device: &Arc<str>, role: Option<Role>) {
        let Some(live) = self.live.get_mut(device) else { return };
        let ended = live.extract_if(.., |(as_what, _)| role.is_none_or(|role| role == *as_what));
        let links: Vec<_> = ended.filter_map(|(_, link)| link.upgrade()).collect();
        tracing::info!(%device, role = role.map(Role::name), connections = links.len(), "a device is revoked");
        links.iter().for_each(|link| link.close(Fault::Revoked, clock::now()));
        if live.is_empty() {
            self.live.remove(device);
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
            tell(self, Ok(()));
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
                    tell(devices, Ok(()));
                    devices.follow_up(step);
                }
                Err(error) => tell(devices, Err(error)),
            }
            devices.go_on(ctx);
        }));
    }

    /// Tells the others, once who asked was told.
    #[expect(clippy::disallowed_methods, reason = "one message for each decision that was carried out")]
    fn follow_up(&mut self, step: Step<()>) {
        for (device, role) in step.ends {
            self.close(&device, role);
        }
        for news in step.news {
            self.hub.do_send(Announce(Arc::new(Announcement::Pairing(Arc::new(news)))));
        }
    }
}

impl Decision {
    fn new<A: 'static>(step: Step<A>, tell: impl FnOnce(&mut Devices, Result<A, Error>) + 'static) -> Self {
        let Step { answer, changes, is_idle, settles, news, ends } = step;
        let tell = Box::new(move |devices: &mut Devices, written: Result<(), Error>| {
            tell(devices, written.and(answer));
        });
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
            Self::Manage(Request { asker, .. }) => asker.reply(Err(error)),
        }
    }
}

impl Actor for Devices {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(WAITING_MAX);
        let store = self.store.clone();
        watch(&store, "devices", self, ctx);
    }
}

impl Handler<TableChanged> for Devices {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: TableChanged, ctx: &mut Self::Context) -> Self::Result {
        let (changed, read) = until_read();
        self.changed = Some(changed);
        self.go_on(ctx);
        read
    }
}

impl Handler<Admit> for Devices {
    type Result = ResponseFuture<Result<Admitted, Error>>;

    fn handle(&mut self, admit: Admit, ctx: &mut Self::Context) -> Self::Result {
        let (to, answer) = oneshot::channel();
        self.ask(Question::Admit(admit, to), ctx);
        let lost = |_| ErrorCode::Unavailable.error("the request was lost: try again");
        Box::pin(async move { answer.await.map_err(lost)? })
    }
}

impl Handler<Request<DeviceCommand>> for Devices {
    type Result = ();

    fn handle(&mut self, manage: Request<DeviceCommand>, ctx: &mut Self::Context) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::link::{Link, Peer};
    use crate::connection::registry::Registry as Connections;
    use clawmux_core::access::auth::{Auth, LoopbackPolicy};
    use clawmux_core::access::{Claim, Credentials, DeviceClaim, Secret};
    use clawmux_core::ids::ConnectionId;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Weak;

    async fn devices(home: &std::path::Path) -> (Addr<Devices>, Addr<Store>) {
        let token = Some(Secret::new("right"));
        let auth = Auth { token, jwt: None, loopback: LoopbackPolicy::Auto, api_keys: Vec::new() };
        let store = Store::start(home.join("clawmux.db")).await.unwrap();
        let hub = Hub::default().start();
        let devices = Devices::open(Arc::new(Authority::new(&auth)), store.clone(), hub).await.unwrap();
        (devices.start(), store)
    }

    fn admit(seed: u8, link: Closer) -> Admit {
        let device = DeviceClaim { id: format!("device-{seed}").into(), public_key: [seed; 32], token: None };
        let claim = Claim {
            credentials: Credentials::Token(Secret::new("right")),
            device: Some(device.clone()),
            ..Claim::default()
        };
        Admit { arrival: Arrival { claim, device, peer: [127, 0, 0, 1].into(), is_loopback: true }, link }
    }

    fn nobody() -> Weak<Link> {
        Weak::new()
    }

    fn token(answer: Result<Result<Admitted, Error>, MailboxError>) -> String {
        answer.unwrap().unwrap().device_token.unwrap().token.expose().to_owned()
    }

    #[actix::test]
    async fn all_who_come_at_once_from_one_new_device_get_one_token() {
        let home = tempfile::tempdir().unwrap();
        let (devices, store) = devices(home.path()).await;
        let asked = (0..40).map(|at| devices.send(admit(at % 2, nobody())));
        let tokens: Vec<String> = futures::future::join_all(asked).await.into_iter().map(token).collect();
        for (at, token) in tokens.iter().enumerate() {
            assert_eq!(*token, tokens[at % 2]);
        }
        assert_ne!(tokens[0], tokens[1]);
        // A token that was told is on the disk: the next start knows it.
        store.send(store::Stop).await.unwrap().unwrap();
        let (again, _) = self::devices(home.path()).await;
        assert_eq!(token(again.send(admit(0, nobody())).await), tokens[0]);
    }

    #[actix::test]
    async fn what_is_not_written_down_did_not_happen() {
        let home = tempfile::tempdir().unwrap();
        let (devices, store) = devices(home.path()).await;
        let known = token(devices.send(admit(1, nobody())).await);
        store.send(store::Stop).await.unwrap().unwrap();
        let refused = devices.send(admit(2, nobody())).await.unwrap().unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
        let figures = devices.send(Observe).await.unwrap().state;
        assert_eq!((&figures["paired"], &figures["refused_total"]), (&json!(1), &json!(1)), "{figures}");
        assert_eq!(token(devices.send(admit(1, nobody())).await), known, "who is paired comes in");
    }

    #[actix::test]
    async fn who_was_let_in_and_has_not_heard_of_it_yet_is_closed_with_the_rest() {
        let home = tempfile::tempdir().unwrap();
        let (devices, _store) = devices(home.path()).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = Peer::Tcp { from: socket.peer_addr().unwrap(), to: socket.local_addr().unwrap() };
        let connections = Connections::new(16, 16);
        let link = Arc::new(Link::new(ConnectionId(1), &socket, peer, connections).unwrap());
        let weak: Weak<Link> = Arc::downgrade(&link);
        token(devices.send(admit(1, weak)).await);
        let id: Arc<str> = "device-1".into();
        devices.send(Close(id.clone(), Some(Role::Node))).await.unwrap();
        assert!(link.closing_since().is_none(), "another role");
        devices.send(Close(id, Some(Role::Operator))).await.unwrap();
        assert!(link.closing_since().is_some());
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Close(Arc<str>, Option<Role>);

    impl Handler<Close> for Devices {
        type Result = ();

        fn handle(&mut self, Close(device, role): Close, _: &mut Self::Context) {
            self.close(&device, role);
        }
    }
}
