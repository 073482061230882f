//! One connection: a socket, a dialect, and nothing else.
//!
//! The dialect says what should happen and the connection makes it happen: it sends, has
//! credentials checked, checks a request's scope and then its rate, and hands it on. It knows no
//! protocol's words, and not how frames are carried: that is its [`Transport`]'s, a WebSocket
//! ([`ws`]) or lines of a Unix socket ([`lines`]).
//!
//! A dialect that panics ends its own connection and nothing else.

pub mod rates;
pub mod strangers;

mod frames;
pub mod guard;
pub mod lines;
pub mod link;
mod outbox;
mod partial;
pub mod registry;
pub mod transport;
pub mod ws;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use actix::dev::SendError;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, Arbiter, AsyncContext, Handler, Message, Recipient,
    SpawnHandle, WrapFuture,
};
use clawmux_core::access::authority::Authority;
use clawmux_core::access::pairing::Arrival;
use clawmux_core::access::strangers::Source;
use clawmux_core::access::token::Shown;
use clawmux_core::access::{Admitted, Claim};
use clawmux_core::config::{Gateway, OpenClaw, Xeno};
use clawmux_core::daemon::command::{DaemonCommand, DaemonReply, GetOverview};
use clawmux_core::dialect::{Action, Dialect, DialectSetup, Fault, Frame, Input, Turn, message_bytes_max};
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::Ticket;
use clawmux_core::memory::file::PIECE_BYTES;
use clawmux_core::principal::Principal;
use clawmux_core::request::command::{Command, Request};
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Role;
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use serde_json::json;

use self::link::Link;
use self::outbox::Outbox;
use self::registry::NoPlace;
use self::transport::Transport;
use crate::connection::rates::{Rates, Spending};
use crate::connection::strangers::{Hold, Said, Strangers};
use crate::devices::Admit;
use crate::hub::inbox::Inbox;
use crate::hub::overview::Overviews;
use crate::hub::{ClientInfo, Join, Leave, Renew};
use crate::runtime::clock;
use crate::runtime::deliver::{Client, Closer, Deliver, cost};
use crate::runtime::dispatch::{Gone, Routes};
use crate::tokens::Used;

/// Above so many unsent bytes a connection reads no further, until its socket has taken them.
pub const OUTPUT_MARK_BYTES: usize = 64 * 1024;

/// Above so much weight of requests without their reply a connection reads no further: requests
/// and replies are what may come in any size. A small request weighs 1.
pub const UNANSWERED_MARK: usize = 32;

// A piece of a file fills what may be unsent, so that who gets it is told when there is room again.
const _: () = assert!(PIECE_BYTES >= OUTPUT_MARK_BYTES);

/// How long it may take to decide about a device.
const ADMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer has to answer a Close before the socket is closed.
pub const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long to wait for the end of a credential before the wall clock is looked at again, at least and
/// at most: it may be set meanwhile.
const EXPIRY_WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// Deliveries that may wait: each follows from a request in flight or takes room of the window, so
/// this is not met while both are bounded.
const MAILBOX: usize = 8192;

/// What the configuration says of connections. One keeps the terms it began under, but for the rates,
/// which are of principals and hold at once.
#[derive(Debug)]
pub struct Terms {
    /// What dialects are told of the daemon; what is about one connection is filled in when it opens.
    pub setup: DialectSetup,
    /// Limits and deadlines.
    pub gateway: Gateway,
    /// What is special to connections of the OpenClaw protocol.
    pub openclaw: OpenClaw,
    /// What is special to connections of xeno's protocol.
    pub xeno: Xeno,
    /// What principals may spend.
    pub rates: Arc<Rates>,
}

/// What all connections are given.
pub struct Services {
    /// What the configuration says of connections.
    pub terms: Swappable<Terms>,
    /// Checks credentials.
    pub authority: Arc<Authority>,
    /// Who decides about those who come from a device.
    pub devices: Recipient<Admit>,
    /// Where requests go.
    pub routes: Routes,
    /// Who is told that a connection is gone.
    pub gone: Recipient<Gone>,
    /// Who is told of a connection that was let in.
    pub join: Recipient<Join>,
    /// Who is told that it left.
    pub leave: Recipient<Leave>,
    /// Who is told that one of them shows another credential now.
    pub renew: Recipient<Renew>,
    /// Who is told that a credential of the store was used.
    pub used: Recipient<Used>,
    /// How the daemon is, as far as that was looked at just now.
    pub overviews: Overviews,
    /// What is known of those who are not let in.
    pub strangers: Arc<Strangers>,
}

impl Spending for Services {
    fn take(&self) -> Vec<(Arc<str>, u32)> {
        self.terms.get().rates.take_spent()
    }

    fn heard(&self, principal: &str, units: u32) {
        self.terms.get().rates.spent_elsewhere(principal, units);
    }
}

impl Services {
    /// Has it noted that the credential of this principal was used from there.
    pub(crate) fn was_used(&self, principal: &Principal, origin: IpAddr) {
        if let Some(shown) = Shown::of(principal, &self.authority) {
            // Lost, it is not known that it was used.
            let _ = self.used.try_send(Used { shown, origin: origin.to_canonical() });
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// A protocol that is served.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// The path it is found under.
    pub path: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Whether `auth.loopback = "skip"` is for it.
    pub may_skip: bool,
    /// The largest frame after the handshake, in bytes.
    pub max_payload_bytes: fn(&Terms) -> usize,
    /// Whether it has words for what is not about one session.
    pub is_announced_to: bool,
    /// Makes its dialect.
    pub dialect: fn(DialectSetup) -> Box<dyn Dialect>,
}

/// The actor of one connection, whose frames `T` carries.
pub struct Connection<T> {
    transport: T,
    link: Arc<Link>,
    services: Arc<Services>,
    terms: Arc<Terms>,
    protocol: Protocol,
    approach: Approach,
    dialect: Box<dyn Dialect>,
    principal: Option<Principal>,
    is_trusted_node: bool,
    client: Option<Client>,
    actions: Vec<Action>,
    tickets: u64,
    /// Requests that were handed on and not answered, each with its weight.
    unanswered: Vec<(Ticket, usize)>,
    alarm: Option<(Timestamp, SpawnHandle)>,
    /// When its credential ends, by the wall clock, and what looks whether it does.
    expiry: Option<(Timestamp, SpawnHandle)>,
    outbox: Outbox,
    inbox: Arc<Inbox>,
    phase: Phase,
    /// What it claims and is not looked at yet, because others from there have guessed.
    held: VecDeque<Claim>,
    disconnect_guard: DisconnectGuard,
}

/// How a peer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approach {
    /// Whether it came to the operator's Unix socket, and may: it is the operator.
    pub is_socket: bool,
    /// Whether it came over loopback to a socket that nobody else can reach.
    pub is_loopback: bool,
    /// Whether a proxy sent it.
    pub is_forwarded: bool,
    /// Whether it must show who it is.
    pub credentials_required: bool,
    /// From where it comes, as far as it may be guessing.
    pub source: Source,
}

impl Approach {
    /// Whether it is somebody on this host, as far as can be told.
    fn is_local(self) -> bool {
        self.is_loopback && !self.is_forwarded
    }

    /// That of somebody who may use the operator's Unix socket.
    pub const SOCKET: Self = Self {
        is_socket: true,
        is_loopback: true,
        is_forwarded: false,
        credentials_required: false,
        source: Source::Others,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Somebody was asked who the peer is; nothing is read until the answer.
    Waiting,
    /// A Close was sent; the peer's is awaited.
    Closing,
}

/// What its listener tells a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub enum ConnectionControl {
    /// The peer was silent for a while: ask whether it is there.
    Ping,
    /// Something is wrong with the connection.
    Fault(Fault),
}

/// Says that the connection is gone, however it ends; its socket must follow.
struct DisconnectGuard {
    link: Arc<Link>,
    services: Arc<Services>,
    joined: bool,
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        let connection = self.link.id();
        if self.link.dialect().is_some() {
            self.link.close_begins(clock::now());
        }
        #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
        {
            self.services.gone.do_send(Gone { connection });
            if self.joined {
                self.services.leave.do_send(Leave { connection });
            }
        }
    }
}

impl<T: Transport> Connection<T> {
    /// For a socket whose peer may speak `protocol`.
    pub fn new(
        transport: T,
        link: Arc<Link>,
        services: Arc<Services>,
        protocol: Protocol,
        approach: Approach,
    ) -> Self {
        let terms = services.terms.get();
        let dialect = (protocol.dialect)(DialectSetup {
            credentials_required: approach.credentials_required,
            is_loopback: approach.is_local(),
            handshake_deadline: clock::now().after(terms.gateway.handshake_timeout),
            connection: link.id(),
            max_payload_bytes: (protocol.max_payload_bytes)(&terms),
            ..terms.setup.clone()
        });
        let disconnect_guard =
            DisconnectGuard { link: link.clone(), services: services.clone(), joined: false };
        Self {
            transport,
            link,
            services,
            terms,
            protocol,
            approach,
            dialect,
            principal: None,
            is_trusted_node: false,
            client: None,
            actions: Vec::new(),
            tickets: 0,
            unanswered: Vec::new(),
            alarm: None,
            expiry: None,
            outbox: Outbox::default(),
            inbox: Arc::default(),
            phase: Phase::Open,
            held: VecDeque::new(),
            disconnect_guard,
        }
    }

    fn is_closing(&self) -> bool {
        self.phase == Phase::Closing
    }

    fn on_frame(&mut self, frame: Frame, context: &mut T::Context) {
        self.link.speaks();
        self.tell(Input::Frame(frame), context);
    }

    /// Tells the dialect, and does what it wants done.
    fn tell(&mut self, input: Input<'_>, context: &mut T::Context) {
        if self.is_closing() {
            return;
        }
        let mut answers = VecDeque::new();
        self.step(input, &mut answers, context);
        while let Some(answer) = answers.pop_front() {
            self.step(answer, &mut answers, context);
        }
        if self.link.buffered_bytes() >= OUTPUT_MARK_BYTES {
            self.outbox.filled();
        }
        self.set_alarm(context);
        self.set_expiry(context);
    }

    fn step(&mut self, input: Input<'_>, answers: &mut VecDeque<Input<'static>>, context: &mut T::Context) {
        if self.is_closing() {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        let (dialect, tickets) = (&mut self.dialect, &mut self.tickets);
        let handled = catch_unwind(AssertUnwindSafe(|| {
            dialect.handle(input, &mut Turn::new(clock::now(), &mut actions, tickets, &mut clock::random));
        }));
        if handled.is_err() {
            tracing::error!(
                connection = self.link.id().0,
                dialect = self.protocol.name,
                "dialect panicked; its connection is closed"
            );
            self.link.closes("panic", clock::now());
            return self.end(1011, "internal error", context);
        }
        for action in actions.drain(..) {
            match action {
                Action::Send(frame) => self.transport.send(context, &self.link, frame),
                Action::Authenticate(claim) => answers.extend(self.authenticate(claim, context)),
                Action::Execute(ticket, request) => {
                    if let Some(reply) = self.execute(ticket, request).transpose() {
                        answers.push_back(Input::Reply(ticket, reply));
                    }
                }
                Action::Introduce(introduction) => self.link.introduced(introduction),
                Action::Close { code, reason } => self.end(code, &reason, context),
            }
        }
        self.actions = actions;
    }

    /// Checks what somebody claims: at once, so that nothing is read before the answer; or, for one
    /// who comes from a device or from where somebody guesses, soon, and nothing is read until then.
    fn authenticate(&mut self, claim: Claim, context: &mut T::Context) -> Option<Input<'static>> {
        if !self.held.is_empty() {
            self.held.push_back(claim);
            return None;
        }
        if self.approach.credentials_required && claim.credentials.token().is_some() {
            match self.services.strangers.hold(self.approach.source) {
                Ok(None) => {}
                Ok(Some(hold)) => {
                    self.held.push_back(claim);
                    self.wait_out(hold, context);
                    return None;
                }
                Err(error) => return Some(self.not_admitted(&claim, error)),
            }
        }
        self.examine(claim, context)
    }

    /// Lets the first of those wait that are held. The dialect's deadline for the handshake goes on
    /// meanwhile.
    fn wait_out(&mut self, hold: Hold, context: &mut T::Context) {
        self.phase = Phase::Waiting;
        self.link.awaits_answer(true);
        let waited = async move {
            tokio::time::sleep(hold.wait).await;
        };
        context.spawn(waited.into_actor(self).map(|(), connection, context| {
            connection.link.awaits_answer(false);
            if connection.phase != Phase::Waiting {
                return;
            }
            connection.phase = Phase::Open;
            let mut held = std::mem::take(&mut connection.held).into_iter();
            let answer = held.next().and_then(|claim| connection.examine(claim, context));
            answer.into_iter().for_each(|answer| connection.tell(answer, context));
            // The next ones may have to wait again.
            for claim in held {
                let answer = connection.authenticate(claim, context);
                answer.into_iter().for_each(|answer| connection.tell(answer, context));
            }
            // What came meanwhile is asked for anew where anything is new in the context.
            context.spawn(actix::fut::ready(()));
        }));
    }

    /// Says that somebody is not let in, and remembers it.
    fn not_admitted(&self, claim: &Claim, error: Error) -> Input<'static> {
        let device = claim.device.as_ref().map(|device| &*device.id);
        let (strangers, source) = (&self.services.strangers, self.approach.source);
        strangers.refused(source, self.link.peer(), &claim.credentials, &error, device);
        Input::Authenticated(Err(error))
    }

    /// Checks what somebody claims.
    fn examine(&mut self, claim: Claim, context: &mut T::Context) -> Option<Input<'static>> {
        if let Some(known) = self.principal.take() {
            return Some(self.authenticate_again(known, &claim));
        }
        let Approach { is_socket, is_loopback, credentials_required: required, .. } = self.approach;
        let may_skip = self.protocol.may_skip;
        if !is_socket && !required && self.services.authority.credentials_required(is_loopback, may_skip) {
            // It came before the first credential was given out.
            return Some(self.is_revoked());
        }
        let mut client_info = ClientInfo::new(&claim, self.protocol.name);
        if required && let Some(device) = claim.device.clone() {
            client_info.is_paired = true;
            self.ask_devices(
                client_info,
                Arrival { claim, device, peer: self.link.peer().ip(), is_loopback: self.approach.is_local() },
                context,
            );
            return None;
        }
        Some(match self.check(&claim) {
            Ok(principal) => self.admitted(principal.narrowed(claim.scopes).into(), client_info),
            Err(error) => self.not_admitted(&claim, error),
        })
    }

    /// Who claims this; where nothing is required, nothing is looked at.
    fn check(&self, claim: &Claim) -> Result<Principal, Error> {
        let authority = &self.services.authority;
        if self.approach.is_socket {
            Ok(Principal::socket())
        } else if self.approach.credentials_required {
            authority.authenticate(&claim.credentials, clock::wall())
        } else {
            Ok(authority.local(self.protocol.may_skip))
        }
    }

    /// Somebody who was let in shows another credential: of the same principal, and never for more
    /// scopes. Where it does not hold, everything stays as it was.
    fn authenticate_again(&mut self, known: Principal, claim: &Claim) -> Input<'static> {
        let renewed = self.check(claim).and_then(|shown| known.renewed(&shown));
        let (principal, answer) = match renewed {
            Ok(renewed) => {
                let renewed = renewed.narrowed(claim.scopes);
                (renewed.clone(), Ok(renewed.into()))
            }
            Err(error) => {
                let answer = self.not_admitted(claim, error);
                self.principal = Some(known);
                return answer;
            }
        };
        if answer.is_ok() {
            let renew = Renew { connection: self.link.id(), principal: principal.clone() };
            #[expect(clippy::disallowed_methods, reason = "an operator who revokes it has to find it")]
            self.services.renew.do_send(renew);
            self.was_used(&principal);
        }
        let stays = self.services.authority.upholds(&principal);
        if self.link.principal().is_some() {
            self.link.set_frame_limit(self.message_bytes_max(&principal));
        }
        self.principal = Some(principal);
        if stays { Input::Authenticated(answer) } else { self.is_revoked() }
    }

    /// Closes it, because what it was let in for does not hold any more.
    fn is_revoked(&self) -> Input<'static> {
        self.link.closes("revoked", clock::now());
        Input::Fault(Fault::Revoked)
    }

    /// Has it noted that its credential was used.
    fn was_used(&self, principal: &Principal) {
        self.services.was_used(principal, self.link.peer().ip());
    }

    /// The dialect's deadline for the handshake goes on meanwhile.
    fn ask_devices(&mut self, client_info: ClientInfo, arrival: Arrival, context: &mut T::Context) {
        self.phase = Phase::Waiting;
        self.link.awaits_answer(true);
        let claim = arrival.claim.clone();
        let answer = self.services.devices.send(Admit { arrival, link: self.closer() });
        let answer = async move {
            let asked = tokio::time::timeout(ADMIT_TIMEOUT, answer).await;
            let why = match asked {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => "the daemon is stopping",
                Err(_) => "it takes too long, try again",
            };
            Err(ErrorCode::Unavailable.error(format!("unavailable: {why}")))
        };
        context.spawn(answer.into_actor(self).map(move |answer, connection, context| {
            if connection.phase == Phase::Waiting {
                connection.phase = Phase::Open;
                let input = match answer {
                    Ok(admitted) => connection.admitted(admitted, client_info),
                    Err(error) => connection.not_admitted(&claim, error),
                };
                connection.tell(input, context);
            }
            connection.link.awaits_answer(false);
            // What came meanwhile is asked for anew where anything is new in the context.
            context.spawn(actix::fut::ready(()));
        }));
    }

    /// Takes it in, where there is a place for it.
    fn admitted(&mut self, admitted: Admitted, client_info: ClientInfo) -> Input<'static> {
        let principal = &admitted.principal;
        if principal.has_expired(clock::wall()) {
            // That of the credential a device was paired with.
            return Input::Authenticated(Err(expired()));
        }
        if self.principal.is_none()
            && let Some(client) = &self.client
        {
            self.is_trusted_node = client_info.role == Role::Node
                && (client_info.is_paired || !self.approach.credentials_required);
            match self.link.admit(principal, self.message_bytes_max(principal)) {
                Ok(()) => {}
                Err(NoPlace::Full) => {
                    self.link.closes("overloaded", clock::now());
                    return Input::Fault(Fault::Overloaded);
                }
                Err(NoPlace::OfPrincipal { max }) => {
                    let error = too_many(&principal.name, max);
                    let said = Said::default();
                    self.services.strangers.tell(self.link.peer(), "not let in", &error, said);
                    return Input::Authenticated(Err(error));
                }
            }
            self.disconnect_guard.joined = true;
            let join = self.joins(client.clone(), principal.clone(), client_info);
            #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
            self.services.join.do_send(join);
        }
        // From here on a revocation finds it among those who joined; one before is seen here.
        if !self.services.authority.upholds(principal) {
            return self.is_revoked();
        }
        self.was_used(principal);
        self.principal = Some(principal.clone());
        Input::Authenticated(Ok(admitted))
    }

    /// How large its messages may be: what a node answers that was paired may be a picture.
    fn message_bytes_max(&self, principal: &Principal) -> usize {
        let limit = (self.protocol.max_payload_bytes)(&self.terms);
        if self.is_trusted_node { limit } else { message_bytes_max(principal.scopes, limit) }
    }

    /// What ends this connection, for those who may have to.
    fn closer(&self) -> Closer {
        let link: Weak<Link> = Arc::downgrade(&self.link);
        link
    }

    fn joins(&self, client: Client, principal: Principal, client_info: ClientInfo) -> Join {
        Join {
            client,
            principal,
            link: self.closer(),
            ip: self.link.peer().ip(),
            client_info,
            inbox: self.protocol.is_announced_to.then(|| self.inbox.clone()),
        }
    }

    /// Scope, then rate, then whether it could be understood; and on its way it goes, unless the
    /// answer is at hand.
    fn execute(&mut self, ticket: Ticket, request: Request) -> Result<Option<Reply>, Error> {
        let (Some(principal), Some(client)) = (&self.principal, &self.client) else {
            return Err(ErrorCode::Unauthenticated.error("not authenticated"));
        };
        if principal.has_expired(clock::wall()) {
            self.link.close(Fault::Expired, clock::now());
            return Err(expired());
        }
        if !principal.scopes.allows(request.needs) {
            return Err(ErrorCode::Forbidden
                .error(format!("needs {}", request.needs.name()))
                .with(Detail::MissingScope(request.needs)));
        }
        self.services.terms.get().rates.spend(principal, request.cost)?;
        let command = request.command?;
        if command == Command::Daemon(DaemonCommand::GetOverview(GetOverview))
            && let Some(overview) = self.services.overviews.fresh(clock::now(), principal)
        {
            return Ok(Some(Reply::Daemon(DaemonReply::Overview(overview))));
        }
        let weight = command.weight().unwrap_or(UNANSWERED_MARK);
        let sent = self.services.routes.send(command, principal.clone(), client.clone(), ticket);
        sent.map_err(|error| {
            let why = match error {
                SendError::Full(_) => "too much to do at the moment, try again",
                SendError::Closed(_) => "the daemon is stopping",
            };
            ErrorCode::Unavailable.error(format!("unavailable: {why}"))
        })?;
        self.unanswered.push((ticket, weight));
        self.link.request_began(weight);
        Ok(None)
    }

    fn answered(&mut self, ticket: Ticket) {
        if let Some(at) = self.unanswered.iter().position(|(asked, _)| *asked == ticket) {
            let (_, weight) = self.unanswered.swap_remove(at);
            self.link.request_ended(weight);
        }
    }

    /// Sends a Close, once, and waits for the peer's.
    fn end(&mut self, code: u16, reason: &str, context: &mut T::Context) {
        if self.is_closing() {
            return;
        }
        self.phase = Phase::Closing;
        // Unless it is closed for a fault already.
        self.link.closes("dialect", clock::now());
        tracing::debug!(connection = self.link.id().0, code, reason, "connection closed");
        self.transport.close(context, &self.link, code, reason);
        self.link.says_goodbye();
        context.run_later(CLOSE_GRACE, |_, context| context.stop());
    }

    /// One timer, set anew only when the dialect's deadline changes.
    fn set_alarm(&mut self, context: &mut T::Context) {
        let deadline = if self.is_closing() { None } else { self.dialect.deadline() };
        if deadline == self.alarm.map(|(at, _)| at) {
            return;
        }
        if let Some((_, handle)) = self.alarm.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = deadline {
            let handle = context.run_later(at.since(clock::now()), |connection, context| {
                connection.alarm = None;
                connection.tell(Input::Tick, context);
            });
            self.alarm = Some((at, handle));
        }
    }

    /// One timer, set anew only when somebody else's end is to be waited for.
    fn set_expiry(&mut self, context: &mut T::Context) {
        let expires = self.principal.as_ref().filter(|_| !self.is_closing()).and_then(|p| p.expires);
        if expires == self.expiry.map(|(at, _)| at) {
            return;
        }
        if let Some((_, handle)) = self.expiry.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = expires {
            self.await_expiry(at, context);
        }
    }

    fn await_expiry(&mut self, at: Timestamp, context: &mut T::Context) {
        let (least, most) = EXPIRY_WAIT;
        let wait = at.since(clock::wall()).clamp(least, most);
        let handle = context.run_later(wait, move |connection, context| {
            if at <= clock::wall() {
                connection.link.close(Fault::Expired, clock::now());
            } else {
                connection.await_expiry(at, context);
            }
        });
        self.expiry = Some((at, handle));
    }

    /// Tells what there is of announcements, where there is room for it; else when there is.
    fn take_announcements(&mut self, context: &mut T::Context) {
        if self.link.has_room() {
            for announcement in self.inbox.take() {
                self.tell(Input::Announced(&announcement), context);
            }
        } else {
            self.outbox.filled();
        }
    }

    /// The socket has asked for more.
    fn on_room(&mut self, context: &mut T::Context) {
        self.link.window().give_back(self.outbox.left(self.link.polls()), self.link.id());
        if self.outbox.drained(self.link.has_room()) {
            self.tell(Input::Drained, context);
            self.take_announcements(context);
        }
    }
}

/// That a principal has as many connections as it may have.
fn too_many(name: &str, max: usize) -> Error {
    let why = format!("{name} has {max} connections already (limits.connections): close one of them");
    let limit = Detail::Limit { name: clawmux_core::error::limit::Limit::Connections, limit: max as u64 };
    ErrorCode::RateLimited.error(why).with(limit)
}

fn expired() -> Error {
    ErrorCode::Unauthenticated.error("the credential has expired")
}

impl<T: Transport> Actor for Connection<T> {
    type Context = T::Context;

    fn started(&mut self, context: &mut Self::Context) {
        T::set_mailbox_capacity(context, MAILBOX);
        let address: Addr<Self> = context.address();
        self.client = Some(Client {
            connection: self.link.id(),
            to: address.clone().recipient::<Deliver>(),
            window: self.link.window().clone(),
            arbiter: Arbiter::current(),
        });
        self.link.upgraded(self.protocol.name, address.recipient());
        tracing::debug!(
            connection = self.link.id().0,
            peer = %self.link.peer(),
            dialect = self.protocol.name,
            "connection opened"
        );
        self.tell(Input::Opened, context);
        self.transport.begin(context);
    }
}

impl<T: Transport> Handler<Deliver> for Connection<T> {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, context: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => {
                self.answered(ticket);
                self.tell(Input::Reply(ticket, reply), context);
            }
            Deliver::Progress(ticket, progress) => self.tell(Input::Progress(ticket, progress), context),
            Deliver::Announced => self.take_announcements(context),
            Deliver::Invoke(invocation) => self.tell(Input::Invoked(&invocation), context),
            Deliver::Event { ticket, first, event } => {
                self.tell(Input::Event { ticket, first, event: &event }, context);
                if self.link.buffered_bytes() == 0 {
                    // It has no words for it, so the socket will not ask because of it.
                    self.link.window().give_back(cost(&event), self.link.id());
                } else {
                    self.outbox.owe(cost(&event), self.link.polls());
                }
            }
        }
    }
}

impl<T: Transport> Handler<ConnectionControl> for Connection<T> {
    type Result = ();

    fn handle(&mut self, control: ConnectionControl, context: &mut Self::Context) {
        match control {
            ConnectionControl::Ping if self.is_closing() => {}
            ConnectionControl::Ping => self.transport.ping(context, &self.link),
            ConnectionControl::Fault(fault) => {
                self.tell(Input::Fault(fault), context);
                // A dialect may have no words for it; the connection ends all the same.
                self.end(1011, "closed by the daemon", context);
            }
        }
    }
}

impl Link {
    /// The connection's figures.
    pub fn figures(&self) -> serde_json::Value {
        let introduction = self.introduction();
        json!({
            "id": self.id().0,
            "peer": self.peer().to_string(),
            "dialect": self.dialect(),
            "principal": self.principal().map(|name| &**name),
            "client": introduction.client,
            "user": introduction.user,
            "age_ms": clock::now().millis_since(self.opened()),
            "buffered_bytes": self.buffered_bytes(),
            "events_bytes": self.window().taken_bytes(),
            "sent_bytes": self.taken_bytes(),
            "received_bytes": self.received_bytes(),
            "silent_ms": self.silence(clock::now()).as_millis(),
            "blocked": self.is_blocked(),
            "closing": self.closing_since().is_some(),
        })
    }
}
