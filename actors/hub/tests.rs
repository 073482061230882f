//! The hub with connections that are only mailboxes, some of which nobody reads.

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clawmux_core::area::Noted;
use clawmux_core::daemon::announcement::{ChangeReason, SessionChange};
use clawmux_core::daemon::command::DaemonReply;
use clawmux_core::ids::{Owner, SessionKey, Ticket};
use clawmux_core::scope::Scope;
use tokio::sync::mpsc;

use super::*;
use crate::connection::link::Link;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection: one that takes what there is when it is told so, or one that never does.
struct Peer {
    inbox: Arc<Inbox>,
    takes: bool,
    knocks: Arc<AtomicUsize>,
    got: mpsc::UnboundedSender<Got>,
}

/// What reached it.
#[derive(Debug)]
enum Got {
    Announced(Arc<Announcement>),
    Reply(Result<Reply, Error>),
}

impl Actor for Peer {
    type Context = Context<Self>;
}

impl Handler<Deliver> for Peer {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, _: &mut Self::Context) {
        match deliver {
            Deliver::Announced => {
                self.knocks.fetch_add(1, Relaxed);
                let all = if self.takes { self.inbox.take() } else { Default::default() };
                all.into_iter().for_each(|one| drop(self.got.send(Got::Announced(one))));
            }
            Deliver::Reply(_, reply) => drop(self.got.send(Got::Reply(reply))),
            other => panic!("{other:?}"),
        }
    }
}

/// The test's end of it.
struct Connected {
    client: Client,
    principal: Principal,
    inbox: Arc<Inbox>,
    knocks: Arc<AtomicUsize>,
    got: mpsc::UnboundedReceiver<Got>,
}

impl Connected {
    async fn join(hub: &Addr<Hub>, id: u64, principal: Principal, takes: bool, mode: &str) -> Self {
        let (inbox, knocks) = (Arc::<Inbox>::default(), Arc::<AtomicUsize>::default());
        let (sender, got) = mpsc::unbounded_channel();
        let to =
            Peer { inbox: inbox.clone(), takes, knocks: knocks.clone(), got: sender }.start().recipient();
        let client = Client {
            connection: ConnectionId(id),
            to,
            window: Arc::default(),
            arbiter: actix::Arbiter::current(),
        };
        let join = Join {
            client: client.clone(),
            principal: principal.clone(),
            link: Weak::<Link>::new(),
            ip: [127, 0, 0, 1].into(),
            client_info: ClientInfo {
                about: About { mode: mode.into(), ..About::default() },
                ..ClientInfo::default()
            },
            inbox: Some(inbox.clone()),
        };
        hub.send(join).await.unwrap();
        Self { client, principal, inbox, knocks, got }
    }

    fn ask(&self, hub: &Addr<Hub>) {
        let (asker, principal) = (Asker::new(self.client.clone(), Ticket(1)), self.principal.clone());
        hub.try_send(GetOverview { asker, principal }).unwrap();
    }

    async fn next(&mut self) -> Got {
        tokio::time::timeout(TIMEOUT, self.got.recv()).await.expect("in time").expect("open")
    }

    async fn announced(&mut self) -> Arc<Announcement> {
        match self.next().await {
            Got::Announced(announcement) => announcement,
            other => panic!("{other:?}"),
        }
    }

    async fn overview(&mut self) -> Arc<Overview> {
        loop {
            match self.next().await {
                Got::Reply(Ok(Reply::Daemon(DaemonReply::Overview(overview)))) => return overview,
                Got::Announced(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Changes up to and with that of this session.
    async fn changes_until(&mut self, last: &SessionKey) -> Vec<SessionChange> {
        let mut changes = Vec::new();
        loop {
            if let Announcement::SessionChanged(change) = &*self.announced().await {
                changes.push(change.clone());
                if change.session == *last {
                    return changes;
                }
            }
        }
    }
}

fn user(name: &str) -> Principal {
    Principal::new(name, Scopes::of(&[Scope::Read]))
}

fn key(account: impl std::fmt::Display) -> SessionKey {
    SessionKey::new("main", "test", &account.to_string(), "main").unwrap()
}

fn change(account: impl std::fmt::Display, owner: &str, reason: ChangeReason) -> SessionChange {
    SessionChange { session: key(account), owner: Owner::from_name(owner), reason }
}

#[actix::test]
async fn changes_are_told_once_to_who_may_see_the_session() {
    let changes = Changes::default();
    let hub = Hub::new(HubSetup { changes: changes.clone(), ..HubSetup::default() }).start();
    let mut admin = Connected::join(&hub, 1, Principal::local(), true, "cli").await;
    let mut ada = Connected::join(&hub, 2, user("ada"), true, "cli").await;
    for _ in 0..100 {
        for account in ["one", "two"] {
            changes.note(change(account, "ada", ChangeReason::Started));
        }
    }
    changes.note(change("one", "ada", ChangeReason::Ended));
    changes.note(change("of-bob", "bob", ChangeReason::Created));
    let mut got = Vec::new();
    while got.len() < 3 {
        match &*admin.announced().await {
            Announcement::SessionChanged(change) => got.push(change.clone()),
            other => panic!("{other:?}"),
        }
    }
    got.sort_by_key(|change| change.session.clone());
    let expected = [
        change("of-bob", "bob", ChangeReason::Created),
        change("one", "ada", ChangeReason::Ended),
        change("two", "ada", ChangeReason::Started),
    ];
    assert_eq!(got, expected, "the last of each session, once");
    // The next burst comes after the first: what ada got until then is hers alone.
    changes.note(change("last", "ada", ChangeReason::Created));
    let own = ada.changes_until(&key("last")).await;
    assert_eq!(own.len(), 3, "{own:?}");
    assert!(own.iter().all(|change| change.owner == user("ada").owner), "{own:?}");
    assert!(admin.knocks.load(Relaxed) <= 3, "one knock for a burst");
}

#[actix::test]
async fn one_that_takes_nothing_holds_little_and_delays_nobody() {
    let changes = Changes::default();
    let hub = Hub::new(HubSetup { changes: changes.clone(), ..HubSetup::default() }).start();
    let stuck = Connected::join(&hub, 1, Principal::local(), false, "ui").await;
    let mut reader = Connected::join(&hub, 2, Principal::local(), true, "cli").await;
    for burst in 0..3 {
        for n in 0..600 {
            changes.note(change(n, "", ChangeReason::Started));
        }
        changes.note(change(format!("end of {burst}"), "", ChangeReason::Ended));
        let told = reader.changes_until(&key(format!("end of {burst}"))).await;
        assert_eq!(told.len(), 601, "who reads is told all");
        Connected::join(&hub, 100 + burst, Principal::local(), true, "ui").await;
    }
    reader.inbox.take();
    assert_eq!(stuck.inbox.len(), inbox::WAITING_MAX, "a bounded number of them");
    assert_eq!(stuck.knocks.load(Relaxed), 1, "its mailbox holds one message");
    let waiting = stuck.inbox.take();
    assert!(
        waiting.iter().any(|waiting| matches!(&**waiting, Announcement::SessionChanged(change)
        if change.session == key("end of 2"))),
        "the newest are those it will hear of"
    );
    let pictures = waiting.iter().filter(|waiting| matches!(&***waiting, Announcement::Presence(_)));
    assert!(pictures.count() <= 1, "one picture of each kind");
}

#[actix::test]
async fn who_is_there_is_announced_in_one_picture_for_many_comings() {
    let hub = Hub::default().start();
    let mut watching = Connected::join(&hub, 1, Principal::local(), true, "ui").await;
    let mut others = Vec::new();
    for id in 2..52 {
        others.push(Connected::join(&hub, id, Principal::local(), true, "ui").await);
        others.push(Connected::join(&hub, 1000 + id, Principal::local(), true, "cli").await);
    }
    let mut pictures = 0;
    let last = loop {
        if let Announcement::Presence(presence) = &*watching.announced().await {
            pictures += 1;
            if presence.present.len() == 52 {
                break presence.clone();
            }
        }
    };
    assert!(pictures <= 20, "{pictures} pictures of 50 comings");
    assert_eq!(last.present[0].reason, "self");
    assert!(
        last.present[1..].iter().all(|present| present.about.mode == "ui" && present.reason == "connect")
    );

    hub.send(Leave { connection: ConnectionId(2) }).await.unwrap();
    loop {
        if let Announcement::Presence(presence) = &*watching.announced().await {
            assert!(presence.version > last.version);
            let left = presence.present.iter().filter(|present| present.reason == "disconnect").count();
            assert_eq!((presence.present.len(), left), (52, 1), "it is shown a while longer");
            break;
        }
    }
}

#[actix::test]
async fn many_who_ask_cost_one_look_and_nobody_else_hears_of_it() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path().join("clawmux.db")).await.unwrap().start();
    let overviews = Overviews::default();
    let setup = HubSetup { store: Some(store.clone()), overviews: overviews.clone(), ..HubSetup::default() };
    let hub = Hub::new(setup).start();
    let mut peers = Vec::new();
    for id in 0..64 {
        peers.push(Connected::join(&hub, id, Principal::local(), true, "cli").await);
    }
    assert_eq!(overviews.fresh(clock::now(), &Principal::local()), None);
    for _ in 0..10 {
        peers.iter().for_each(|peer| peer.ask(&hub));
    }
    let mut answers = Vec::new();
    for peer in &mut peers {
        for _ in 0..10 {
            answers.push(peer.overview().await);
        }
    }
    let looks = looks(&hub).await;
    // One a second at most; a machine that is busy may take more than one for all of this.
    assert!((1..=20).contains(&looks), "{looks} looks for 640 who ask");
    let pictures: HashSet<u64> = answers.iter().map(|overview| overview.version).collect();
    assert_eq!(pictures.len(), 1, "all see the same: {pictures:?}");
    assert!(peers.iter().all(|peer| peer.knocks.load(Relaxed) == 0), "nobody is told that somebody asked");

    // What was looked at just now is at hand without a message, for those who may see it.
    peers[0].ask(&hub);
    let at_hand = peers[0].overview().await;
    assert!(
        overviews.fresh(at_hand.at, &Principal::local()).is_some_and(|found| Arc::ptr_eq(&found, &at_hand))
    );
    assert_eq!(overviews.fresh(at_hand.at.after(FRESH), &Principal::local()), None, "not for long");
    assert_eq!(overviews.fresh(at_hand.at, &user("ada")), None, "a user has another picture");
    // Somebody comes: who asks from then on sees it.
    Connected::join(&hub, 99, Principal::local(), true, "ui").await;
    assert_eq!(overviews.fresh(at_hand.at, &Principal::local()), None);
    peers[0].ask(&hub);
    let overview = peers[0].overview().await;
    assert_eq!(overview.presence.present.len(), 2, "{:?}", overview.presence);
}

/// How often the hub looked at the log.
async fn looks(hub: &Addr<Hub>) -> u64 {
    let observed = hub.send(Observe).await.unwrap();
    observed.state["pictures_taken"].as_u64().unwrap_or_else(|| panic!("{}", observed.state))
}

#[actix::test]
async fn what_is_told_is_shown_at_once() {
    let hub = Hub::default().start();
    let mut peer = Connected::join(&hub, 1, Principal::local(), true, "cli").await;
    let told = PresenceReport {
        text: "the cat sits on it".into(),
        device: Some("d".into()),
        ..PresenceReport::default()
    };
    hub.send(Tell { asker: Asker::new(peer.client.clone(), Ticket(1)), told }).await.unwrap();
    assert!(matches!(peer.next().await, Got::Reply(Ok(Reply::Daemon(DaemonReply::Noted(Noted))))));
    peer.ask(&hub);
    let overview = peer.overview().await;
    assert_eq!(overview.presence.present[1].text.as_deref(), Some("the cat sits on it"));
}
