//! `Hub`: who is connected, and what concerns all of them.
//!
//! Connections join with what they are and the way to them; the hub tells them what is not about one
//! session. That the daemon stops, or that a credential was revoked, ends a connection, and by its
//! link it does so in time also while its actor can't hear. Everything else is a picture that a newer
//! one replaces: who is there, how the daemon is, which sessions changed. Of these a connection that
//! reads slowly holds the latest and nothing more ([`inbox`]); they are put together for
//! [`COALESCE`], made once and shared by all who are told.
//!
//! The hub is not on the path of a token: sessions send to their followers directly, and leave what
//! changed of them where it finds it ([`changes`]). Who asks how the daemon is gets a picture that is
//! at most a second old, and nobody else hears of it because one has asked ([`overview`]).

pub mod changes;
pub mod inbox;
pub mod overview;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use clawmux_core::access::authority::Authority;
use clawmux_core::access::{About, Claim};
use clawmux_core::area::Noted;
use clawmux_core::conversation::approval::may_decide;
use clawmux_core::conversation::command::SessionFilter;
use clawmux_core::conversation::reply::SessionRow;
use clawmux_core::daemon::announcement::{Announcement, ChangeReason};
use clawmux_core::daemon::command::{DaemonReply, Overview};
use clawmux_core::daemon::health::Report;
use clawmux_core::daemon::presence::{PresenceReport, Presences, Present};
use clawmux_core::dialect::Fault;
use clawmux_core::error::Error;
use clawmux_core::ids::ConnectionId;
use clawmux_core::principal::{Grounds, Principal};
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::{Role, Scopes};
use clawmux_core::time::Timestamp;
use serde_json::json;

use self::changes::{Changed, Changes};
use self::inbox::{Inbox, WAITING_MAX};
use self::overview::{FRESH, Overviews, View, view};
use crate::nodes::{NodeJoins, NodeLeaves, Nodes};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::{Asker, Client, Closer, Deliver};
use crate::runtime::observe::{Observe, Observed};
use crate::store::{Health, ReadRows, Store};

/// For how long changes are put together before they are announced.
pub const COALESCE: Duration = Duration::from_millis(250);

/// How often everybody is told how the daemon is, though nothing changed.
const HEALTH_INTERVAL: Duration = Duration::from_secs(60);

/// Sessions named in a picture of the daemon.
const RECENT: usize = 10;

/// How many bytes those may take.
const RECENT_BYTES_MAX: usize = 64 * 1024;

/// Requests and lifecycle messages that may wait.
const MAILBOX: usize = 4096;

/// How many changes of sessions are told at once: fewer than an inbox holds, which has other things in
/// it as well.
const BURST_MAX: usize = WAITING_MAX / 2;

/// Whom the hub asks, and who asks it without a message.
#[derive(Clone, Default)]
pub struct HubSetup {
    /// What is said of the daemon itself.
    pub own: Option<Present>,
    /// Since when it is ready.
    pub started: Timestamp,
    /// Where the sessions are written down.
    pub store: Option<Addr<Store>>,
    /// Whether it can be written down.
    pub log: Health,
    /// Who knows the nodes.
    pub nodes: Option<Addr<Nodes>>,
    /// What changed of sessions, as they note it.
    pub changes: Changes,
    /// What connections find without asking.
    pub overviews: Overviews,
}

/// Who is connected.
pub struct Hub {
    setup: HubSetup,
    members: HashMap<ConnectionId, Member>,
    presence: Presences,
    /// Whether it is to be announced who is there.
    is_presence_due: bool,
    /// Whether what is due is going to be announced.
    is_flush_due: bool,
    views: HashMap<View, Seen>,
    /// How the parts of the daemon are, as was told last.
    report: Option<Arc<Report>>,
    /// Counts the pictures that differ.
    version: u64,
    /// How often it was looked at the log.
    looks: u64,
    announced: u64,
}

/// One connection.
struct Member {
    principal: Principal,
    link: Closer,
    role: Role,
    /// The paired device it comes from.
    device: Option<Arc<str>>,
    /// Where announcements go; none where its protocol has no words for them.
    takes: Option<Takes>,
}

/// The way to a connection that takes announcements.
#[derive(Clone, Debug)]
pub struct Takes {
    /// What it has not taken yet.
    pub inbox: Arc<Inbox>,
    /// Who is told that there is something.
    pub to: Recipient<Deliver>,
}

/// What was last seen of the sessions of one view.
#[derive(Default)]
struct Seen {
    picture: Option<Picture>,
    /// Those who wait for the next.
    waiting: Vec<Asker>,
    /// Whether one is being taken.
    is_looking: bool,
    /// How many sessions there were when it was last looked, and whether something was wrong.
    told: Option<(u64, bool)>,
    /// Whether everybody is to be told, though nothing changed.
    is_due: bool,
}

/// What the log says.
#[derive(Clone)]
struct Picture {
    at: Timestamp,
    version: u64,
    sessions: u64,
    recent: Vec<SessionRow>,
    fault: Option<Error>,
    report: Option<Arc<Report>>,
    took: Duration,
}

impl Picture {
    /// It is not true any more.
    fn age(&mut self) {
        self.at = Timestamp::default();
    }
}

/// A connection has completed its handshake.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Join {
    /// Which, and the way to it.
    pub client: Client,
    /// As whom.
    pub principal: Principal,
    /// What ends it; held by the connection.
    pub link: Closer,
    /// Where it comes from.
    pub ip: IpAddr,
    /// As what it comes, in its own words.
    pub client_info: ClientInfo,
    /// What it has not taken of announcements; none where it takes none.
    pub inbox: Option<Arc<Inbox>>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct ClientInfo {
    /// As what it comes.
    pub role: Role,
    /// What it says of itself.
    pub about: About,
    /// Its device.
    pub device: Option<Arc<str>>,
    /// Whether that was let in as a paired one.
    pub is_paired: bool,
}

impl ClientInfo {
    /// Who claims this, over `protocol`.
    pub fn new(claim: &Claim, protocol: &str) -> Self {
        let mut about = claim.about.clone();
        if about.client_id.is_empty() {
            protocol.clone_into(&mut about.client_id);
        }
        let device = claim.device.as_ref().map(|device| device.id.clone());
        Self { role: claim.role, about, device, is_paired: false }
    }
}

/// A connection shows another credential, of the same principal.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Renew {
    /// Its number.
    pub connection: ConnectionId,
    /// As whom it is there from now on.
    pub principal: Principal,
}

/// A connection is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Leave {
    /// Its number.
    pub connection: ConnectionId,
}

/// What concerns a connection as such, and ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The daemon stops.
    Draining,
    /// What the connection was let in for does not hold any more.
    Revoked,
    /// It can't be known any more whether that holds.
    CutOff,
}

/// Tells some connections, or all.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Broadcast {
    /// What they are told.
    pub notice: Notice,
    /// Whose connections.
    pub whose: Whose,
}

/// Some of the connections.
#[derive(Clone, Debug)]
pub enum Whose {
    /// All.
    All,
    /// Those of the principal with this name.
    Principal(Arc<str>),
    /// Those that were let in by this credential of the store.
    Token(Arc<str>),
    /// Those that this does not uphold any more.
    NotUpheld(Arc<Authority>),
    /// Those of this device, in this role or in any.
    Device(Arc<str>, Option<Role>),
}

impl Whose {
    fn includes(&self, member: &Member) -> bool {
        match self {
            Self::All => true,
            Self::Principal(name) => *name == member.principal.name,
            Self::Token(id) => member.principal.grounds.token() == Some(id),
            Self::NotUpheld(authority) => !authority.upholds(&member.principal),
            Self::Device(device, role) => {
                member.device.as_ref() == Some(device) && role.is_none_or(|role| role == member.role)
            }
        }
    }
}

/// Announces something to all who take announcements; each tells its client what that may know of it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Announce(pub Arc<Announcement>);

/// Answers how the daemon is.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct GetOverview {
    /// Who waits for it.
    pub asker: Asker,
    /// On whose behalf.
    pub principal: Principal,
}

/// Shows something among who is there.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Tell {
    /// Who is answered that it is shown.
    pub asker: Asker,
    /// What is shown.
    pub told: PresenceReport,
}

/// How many connections are present?
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "usize")]
pub struct Connected;

impl Default for Hub {
    fn default() -> Self {
        Self::new(HubSetup::default())
    }
}

impl Hub {
    /// Nobody is there yet.
    pub fn new(setup: HubSetup) -> Self {
        let own = setup.own.clone().unwrap_or_else(|| own("", "localhost"));
        Self {
            setup,
            members: HashMap::new(),
            presence: Presences::new(own),
            is_presence_due: false,
            is_flush_due: false,
            views: HashMap::new(),
            report: None,
            version: 0,
            looks: 0,
            announced: 0,
        }
    }

    fn presence_changed(&mut self, ctx: &mut Context<Self>) {
        // Who asks from here on is told.
        self.setup.overviews.clear();
        self.is_presence_due = true;
        self.flush_soon(ctx);
    }

    fn flush_soon(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.is_flush_due, true) {
            ctx.run_later(COALESCE, Self::flush);
        }
    }

    /// Announces what is due.
    fn flush(&mut self, ctx: &mut Context<Self>) {
        self.is_flush_due = false;
        // No more at once than a connection that reads has room for.
        let (changes, are_more) = self.setup.changes.take(BURST_MAX);
        if are_more {
            self.flush_soon(ctx);
        }
        if changes.iter().any(|change| matches!(change.reason, ChangeReason::Created | ChangeReason::Deleted))
        {
            // Who asks from here on is told how many sessions there are now.
            self.setup.overviews.clear();
            self.views.values_mut().filter_map(|seen| seen.picture.as_mut()).for_each(Picture::age);
        }
        for change in changes {
            let owner = change.owner.clone();
            let announcement = Arc::new(Announcement::SessionChanged(change));
            self.announce(&announcement, |principal| principal.sees(&owner));
        }
        if std::mem::take(&mut self.is_presence_due) {
            let shown = self.presence.show(clock::now());
            self.announce(&Arc::new(Announcement::Presence(shown)), |_| true);
        }
    }

    /// Tells those of whom `may_know` says that they may know of it.
    fn announce(&mut self, announcement: &Arc<Announcement>, may_know: impl Fn(&Principal) -> bool) {
        self.announced += 1;
        for member in self.members.values() {
            if let Some(Takes { inbox, to }) = &member.takes
                && may_know(&member.principal)
                && inbox.put(announcement)
                && to.try_send(Deliver::Announced).is_err()
            {
                inbox.unheard();
            }
        }
    }

    /// The picture of a view with who is there now.
    fn compose(&mut self, picture: &Picture) -> Arc<Overview> {
        let now = clock::now();
        self.presence.expire(now);
        Arc::new(Overview {
            version: picture.version,
            at: picture.at,
            started: self.setup.started,
            sessions: picture.sessions,
            recent: picture.recent.clone(),
            fault: picture.fault.clone(),
            report: picture.report.clone(),
            took: picture.took,
            presence: self.presence.show(now),
        })
    }

    /// Looks at the sessions of a view; who waits for it is answered when that is done.
    fn look(&mut self, view: View, ctx: &mut Context<Self>) {
        let seen = self.views.entry(view.clone()).or_default();
        if std::mem::replace(&mut seen.is_looking, true) {
            return;
        }
        self.looks += 1;
        let store = self.setup.store.clone();
        let (owner, begun) = (view.clone(), Instant::now());
        let look = async move {
            let Some(store) = store else { return Ok((0, Vec::new())) };
            let filter = SessionFilter { limit: RECENT, ..SessionFilter::default() };
            let list = ask(&store, ReadRows { filter, owner, bytes_max: RECENT_BYTES_MAX }).await??;
            Ok((list.total, list.rows))
        };
        ctx.spawn(look.into_actor(self).map(move |looked, hub, _| hub.looked(view, looked, begun.elapsed())));
    }

    fn looked(&mut self, view: View, looked: Result<(u64, Vec<SessionRow>), Error>, took: Duration) {
        let Some(mut seen) = self.views.remove(&view) else { return };
        seen.is_looking = false;
        let waiting = std::mem::take(&mut seen.waiting);
        match looked {
            Err(error) => waiting.into_iter().for_each(|asker| asker.reply(Err(error.clone()))),
            Ok((sessions, recent)) => {
                let (at, fault) = (clock::now(), self.setup.log.fault());
                let report = self.report.clone();
                let same = seen.picture.as_ref().filter(|old| {
                    (old.sessions, &old.recent, &old.fault, &old.report)
                        == (sessions, &recent, &fault, &report)
                });
                let version = same.map(|same| same.version).unwrap_or_else(|| {
                    self.version += 1;
                    self.version
                });
                let picture = Picture { at, version, sessions, recent, fault, report, took };
                let overview = self.compose(&picture);
                self.setup.overviews.put(view.clone(), overview.clone());
                for asker in waiting {
                    asker.reply(Ok(Reply::Daemon(DaemonReply::Overview(overview.clone()))));
                }
                let now = (sessions, picture.fault.is_some());
                let changed = seen.told.replace(now).is_some_and(|told| told != now);
                if std::mem::take(&mut seen.is_due) || changed {
                    self.tell_health(&view, overview);
                }
                seen.picture = Some(picture);
            }
        }
        self.views.insert(view, seen);
    }

    fn tell_health(&mut self, of: &View, overview: Arc<Overview>) {
        self.announce(&Arc::new(Announcement::Health(overview)), |principal| view(principal) == *of);
    }

    /// Everybody is told how the daemon is, whether it changed or not.
    fn tell_all_health(&mut self, ctx: &mut Context<Self>) {
        let takers = self.members.values().filter(|member| member.takes.is_some());
        let views: HashSet<View> = takers.map(|member| view(&member.principal)).collect();
        self.views.retain(|view, seen| views.contains(view) || seen.is_looking);
        for view in views {
            self.views.entry(view.clone()).or_default().is_due = true;
            self.look(view, ctx);
        }
    }
}

/// What is shown of the daemon itself.
pub fn own(version: &str, host: &str) -> Present {
    Present {
        connection: None,
        host: String::new(),
        about: About {
            version: version.into(),
            mode: "gateway".into(),
            platform: std::env::consts::OS.into(),
            model_identifier: Some(std::env::consts::ARCH.into()),
            display_name: Some(host.into()),
            ..About::default()
        },
        device: None,
        role: Role::Operator,
        scopes: Scopes::NONE,
        reason: "self".into(),
        text: Some(format!("Gateway: {host} · clawmux {version}")),
        idle: None,
        at: Timestamp::default(),
    }
}

impl Actor for Hub {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.setup.changes.tell(ctx.address().recipient());
        ctx.run_interval(HEALTH_INTERVAL, |hub, ctx| {
            if hub.presence.expire(clock::now()) {
                hub.presence_changed(ctx);
            }
            hub.tell_all_health(ctx);
        });
    }
}

impl Handler<Join> for Hub {
    type Result = ();

    fn handle(&mut self, join: Join, ctx: &mut Self::Context) {
        let Join { client, principal, link, ip, client_info, inbox } = join;
        let ClientInfo { role, about, device, is_paired } = client_info;
        let connection = client.connection;
        if role == Role::Node
            && let Some(nodes) = &self.setup.nodes
        {
            #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
            nodes.do_send(NodeJoins {
                client: client.clone(),
                owner: principal.owner.clone(),
                host: ip.to_string(),
                about: about.clone(),
                device: device.clone(),
            });
        }
        let paired = device.clone().filter(|_| is_paired);
        let present = Present {
            connection: Some(connection),
            host: ip.to_string(),
            about,
            device,
            role,
            scopes: principal.scopes,
            reason: "connect".into(),
            text: None,
            idle: None,
            at: clock::now(),
        };
        // Who comes over the Unix socket is mostly a command that asks one thing, and nobody to be seen.
        if principal.grounds != Grounds::Socket && self.presence.join(connection, present) {
            self.presence_changed(ctx);
        }
        let takes = inbox.map(|inbox| Takes { inbox, to: client.to });
        self.members.insert(connection, Member { principal, link, role, device: paired, takes });
    }
}

impl Handler<Renew> for Hub {
    type Result = ();

    fn handle(&mut self, Renew { connection, principal }: Renew, _: &mut Self::Context) {
        if let Some(member) = self.members.get_mut(&connection) {
            member.principal = principal;
        }
    }
}

impl Handler<Leave> for Hub {
    type Result = ();

    fn handle(&mut self, Leave { connection }: Leave, ctx: &mut Self::Context) {
        if let Some(member) = self.members.remove(&connection)
            && member.role == Role::Node
            && let Some(nodes) = &self.setup.nodes
        {
            #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
            nodes.do_send(NodeLeaves { connection });
        }
        if self.presence.leave(clock::now(), connection) {
            self.presence_changed(ctx);
        }
    }
}

impl Handler<Changed> for Hub {
    type Result = ();

    fn handle(&mut self, _: Changed, ctx: &mut Self::Context) {
        self.flush_soon(ctx);
    }
}

impl Handler<Broadcast> for Hub {
    type Result = ();

    fn handle(&mut self, Broadcast { notice, whose }: Broadcast, _: &mut Self::Context) {
        let fault = match notice {
            Notice::Draining => Fault::Draining,
            Notice::Revoked => Fault::Revoked,
            Notice::CutOff => Fault::CutOff,
        };
        for member in self.members.values() {
            if whose.includes(member)
                && let Some(link) = member.link.upgrade()
            {
                link.close(fault, clock::now());
            }
        }
    }
}

impl Handler<Announce> for Hub {
    type Result = ();

    fn handle(&mut self, Announce(announcement): Announce, ctx: &mut Self::Context) {
        if let Announcement::Report(report) = &*announcement {
            self.report = Some(report.clone());
            self.setup.overviews.clear();
            self.views.values_mut().filter_map(|seen| seen.picture.as_mut()).for_each(Picture::age);
            self.tell_all_health(ctx);
        }
        match &*announcement {
            Announcement::Approval(news) => {
                let prompted_by = &news.pending().prompted_by;
                self.announce(&announcement, |principal| may_decide(principal, prompted_by));
            }
            _ => self.announce(&announcement, |principal| announcement.may_know(principal)),
        }
    }
}

impl Handler<GetOverview> for Hub {
    type Result = ();

    fn handle(&mut self, GetOverview { asker, principal }: GetOverview, ctx: &mut Self::Context) {
        let view = view(&principal);
        let seen = self.views.entry(view.clone()).or_default();
        let picture = seen.picture.as_ref().filter(|picture| clock::now().since(picture.at) < FRESH);
        let Some(picture) = picture.cloned() else {
            seen.waiting.push(asker);
            return self.look(view, ctx);
        };
        let overview = self.compose(&picture);
        self.setup.overviews.put(view, overview.clone());
        asker.reply(Ok(Reply::Daemon(DaemonReply::Overview(overview))));
    }
}

impl Handler<Tell> for Hub {
    type Result = ();

    fn handle(&mut self, Tell { asker, told }: Tell, ctx: &mut Self::Context) {
        self.presence.tell(clock::now(), told);
        self.presence_changed(ctx);
        asker.reply(Ok(Reply::Daemon(DaemonReply::Noted(Noted))));
    }
}

impl Handler<Connected> for Hub {
    type Result = usize;

    fn handle(&mut self, _: Connected, _: &mut Self::Context) -> usize {
        self.members.len()
    }
}

impl Handler<Observe> for Hub {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let mut principals = std::collections::BTreeMap::<&str, usize>::new();
        for member in self.members.values() {
            *principals.entry(&member.principal.name).or_default() += 1;
        }
        let takes = || self.members.values().filter_map(|member| member.takes.as_ref());
        Observed::leaf(
            "hub",
            json!({
                "connections": self.members.len(),
                "connections_by_principal": principals,
                "connections_announced_to": takes().count(),
                "presence_entries": self.presence.len(),
                "announcements": self.announced,
                "announcements_not_taken": takes().map(|takes| takes.inbox.len()).sum::<usize>(),
                "pictures_taken": self.looks,
                "pictures_that_differed": self.version,
            }),
        )
    }
}

/// Makes the hub panic, for tests of what follows.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage;

#[cfg(test)]
impl Handler<Sabotage> for Hub {
    type Result = ();

    fn handle(&mut self, _: Sabotage, _: &mut Self::Context) {
        panic!("sabotaged");
    }
}
