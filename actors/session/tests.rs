//! Sessions with everything they work with, driven by a connection that is only a mailbox.

mod changes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::auth::{About, Owner, Principal, Scope, Scopes};
use clawmux_core::catalog::Catalog;
use clawmux_core::command::Command;
use clawmux_core::config::{Config, Recovery};
use clawmux_core::event::{Cause, Event, Logged, Outcome};
use clawmux_core::exchanged::Exchanged;
use clawmux_core::ids::{AgentId, ConnectionId, RunId, Seq, SessionKey, Ticket};
use clawmux_core::log::usage::UsageTotals;
use clawmux_core::manner::Manner;
use clawmux_core::node::{Invocation, NodeTool};
use clawmux_core::quota::Quota;
use clawmux_core::reply::Reply;
use clawmux_core::router::Router;
use clawmux_core::session::Limits;
use clawmux_core::session_command::{
    Abort, Attach, Clear, CreateSession, Detach, GetBudgets, ReadHistory, Reset, SessionCommand, Stop,
    Submit, Unwatch, Watch,
};
use clawmux_core::session_reply::{
    Aborted, Accepted, Attached, Detached, SessionReply, Stopped, Unwatched, Watching,
};
use clawmux_core::target::{Route, Target};
use clawmux_core::transcript::Role;
use tokio::sync::mpsc;

use super::{Approvals, Colleagues, Profile, Queued, Roster, Session, Watchers};
use crate::arbiters::Arbiters;
use crate::clock;
use crate::crew::{self, Crew, Kin};
use crate::deliver::{Asker, Client, Deliver, More, WINDOW_BYTES, cost};
use crate::dispatch::Request;
use crate::files::{self, Files};
use crate::hub::Hub;
use crate::hub::changes::Changes;
use crate::lane::Lanes;
use crate::meters::Meters;
use crate::nodes::{NodeJoins, NodeLeaves, Nodes, Resulted};
use crate::observe::Observe;
use crate::provider::purse::Purses;
use crate::provider_supervisor::ProviderSupervisor;
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::session_supervisor::{Idle, SessionSupervisor, Setup, Visit};
use crate::store::Store;

mod lanes;
mod provided;
#[path = "../../tests/support/upstream.rs"]
mod upstream;

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a session panic.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage;

impl Handler<Sabotage> for Session {
    type Result = ();

    fn handle(&mut self, _: Sabotage, _: &mut Self::Context) {
        panic!("sabotaged");
    }
}

fn user(name: &str) -> Principal {
    Principal::new(name, Scopes::of(&[Scope::Read, Scope::Write]))
}

/// A connection that hands on what it gets.
struct Mailbox(mpsc::UnboundedSender<Deliver>);

impl Actor for Mailbox {
    type Context = Context<Self>;
}

impl Handler<More> for Mailbox {
    type Result = ();

    fn handle(&mut self, _: More, _: &mut Self::Context) {}
}

impl Handler<Deliver> for Mailbox {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, _: &mut Self::Context) {
        let _ = self.0.send(deliver);
    }
}

struct World {
    supervisor: Addr<SessionSupervisor>,
    nodes: Addr<Nodes>,
    _home: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = Arc::new(config);
        let store = Store::open(home.path().join("clawmux.db")).await.unwrap();
        let (pen, store) = (store.pen(), store.start());
        let totals = UsageTotals::default();
        let providers =
            ProviderSupervisor::new(config.clone(), Some(store.clone().recipient()), totals).unwrap().start();
        let sandbox = SandboxSupervisor::new(Vec::new(), home.path().to_owned()).start();
        let nodes = Nodes::default().start();
        let id = AgentId::from("main");
        let catalog = Arc::new(Catalog::new(&config));
        let profile = Profile {
            id: id.clone(),
            soul: "".into(),
            models: config.agents[&id].models.clone(),
            max_tokens: 1000,
            tools: vec!["echo".into()],
            gated: Vec::new(),
            approval_timeout: Duration::from_secs(60),
            node_tools: vec![NodeTool::parse("node:phone/camera.snap").unwrap().unwrap()],
            context_tokens: 5000,
        };
        let hub = Hub::default().start();
        let kin = Kin::default();
        let crew = Crew::open(crew::Setup {
            rules: clawmux_core::crew::Setup::default(),
            store: store.clone(),
            hub: hub.clone(),
            log: pen.health(),
            purses: Purses::default(),
            kin: kin.clone(),
        });
        let crew = crew.await.unwrap().start();
        let files = files::Setup {
            folder: home.path().join("files"),
            store: store.clone(),
            quota_bytes: 1 << 20,
            upload_life: files::UPLOAD_LIFE,
            attachment_roots: vec![home.path().join("attachments")],
        };
        let files = Files::open(files).await.unwrap().start();
        let roster = Arc::new(Exchanged::new(Roster {
            router: Router::new(Vec::new(), Some(id.clone())),
            agents: HashMap::from([(id, Arc::new(profile))]),
            limits: Limits { queue: 4, episodic_turns: 5, context_tokens: 5000 },
            quota: Quota::default(),
            queued_bytes: 1 << 20,
            retention: None,
            store_bytes_max: None,
            recovery: Recovery::Resume,
            lag_bytes_max: 1 << 17,
            catalog,
        }));
        let supervisor = SessionSupervisor::new(Setup {
            arbiters: Arbiters::default(),
            colleagues: Colleagues {
                store,
                pen,
                providers,
                sandbox,
                roster: roster.clone(),
                nodes: nodes.clone(),
                files: files.clone(),
                lanes: Lanes::default(),
                watchers: Watchers::default(),
                approvals: Approvals::default(),
                queued: Queued::default(),
                changes: Changes::default(),
                meters: Meters::default(),
            },
            crew,
            kin,
            files,
        })
        .start();
        Self { supervisor, nodes, _home: home }
    }

    fn peer(&self, connection: u64) -> Peer {
        let (sender, inbox) = mpsc::unbounded_channel();
        let to = Mailbox(sender).start().recipient();
        Peer {
            client: Client {
                connection: ConnectionId(connection),
                to,
                window: Arc::default(),
                arbiter: actix::Arbiter::current(),
            },
            inbox,
            supervisor: self.supervisor.clone(),
            tickets: 0,
            generous: true,
        }
    }
}

struct Peer {
    client: Client,
    inbox: mpsc::UnboundedReceiver<Deliver>,
    supervisor: Addr<SessionSupervisor>,
    tickets: u64,
    /// Whether it gives the room of every event back.
    generous: bool,
}

fn target(account: &str) -> Target {
    Target::Route(Route { channel: "test".into(), account: account.into(), ..Route::default() })
}

fn prompt(account: &str, content: &str, key: Option<&str>) -> Command {
    Command::Session(SessionCommand::Submit(Submit {
        target: target(account),
        run: RunId::from_random(clock::random()),
        content: content.into(),
        idempotency_key: key.map(str::to_owned),
        attachments: Vec::new(),
        files: Vec::new(),
        enclosed: Vec::new(),
        manner: Manner::default(),
        follow: true,
    }))
}

impl Peer {
    fn ask(&mut self, command: Command) -> Ticket {
        self.ask_as(Principal::local(), command)
    }

    fn ask_as(&mut self, principal: Principal, command: Command) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let Command::Session(command) = command else { panic!("{command:?} is not about a session") };
        let asker = Asker::new(self.client.clone(), ticket);
        self.supervisor.try_send(Request { command, principal, asker }).unwrap();
        ticket
    }

    async fn next(&mut self) -> Deliver {
        tokio::time::timeout(PATIENCE, self.inbox.recv()).await.expect("in time").expect("open")
    }

    async fn reply(&mut self) -> Result<Reply, clawmux_core::error::Error> {
        match self.next().await {
            Deliver::Reply(_, reply) => reply,
            other => panic!("it overtook the reply: {other:?}"),
        }
    }

    async fn accepted(&mut self) -> Accepted {
        match self.reply().await {
            Ok(Reply::Session(SessionReply::Accepted(accepted))) => accepted,
            other => panic!("{other:?}"),
        }
    }

    /// The next event and the request it is told under.
    async fn told(&mut self) -> (Ticket, Logged) {
        loop {
            if let Deliver::Event { ticket, event, .. } = self.next().await {
                if self.generous {
                    self.client.window.give_back(cost(&event), self.client.connection);
                }
                return (ticket, event.logged.clone());
            }
        }
    }

    async fn event(&mut self) -> Logged {
        self.told().await.1
    }

    /// Events up to and with the end of the run.
    async fn rest(&mut self) -> Vec<Logged> {
        let mut events = Vec::new();
        loop {
            let logged = self.event().await;
            let end = matches!(logged.event, Event::Ended { .. });
            events.push(logged);
            if end {
                return events;
            }
        }
    }

    async fn answer(&mut self, account: &str) -> String {
        self.ask(Command::Session(SessionCommand::ReadHistory(ReadHistory {
            target: target(account),
            limit: 10,
            before: None,
        })));
        match self.reply().await {
            Ok(Reply::Session(SessionReply::History(history))) => {
                let last = history.messages.into_iter().rev().find(|m| m.role == Role::Assistant);
                last.map(|message| message.content).unwrap_or_default()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn text(events: &[Logged]) -> String {
    events
        .iter()
        .filter_map(|logged| match &logged.event {
            Event::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn contiguous(events: &[Logged]) {
    for pair in events.windows(2) {
        assert_eq!(pair[1].first_seq, pair[0].seq.next(), "a number is missing or twice: {pair:?}");
    }
}

#[actix::test]
async fn all_that_waits_for_a_session_to_wake_reaches_it() {
    const REQUESTS: usize = 200;
    let world = World::new().await;
    // It has its room from its first turn on.
    world.peer(0).ask(Command::Session(SessionCommand::Abort(Abort { target: target("nobody"), run: None })));
    tokio::task::yield_now().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "/slow 60", None));
    for _ in 0..REQUESTS {
        peer.ask(Command::Session(SessionCommand::Clear(Clear { target: target("ada") })));
    }
    peer.accepted().await;
    let mut cleared = 0;
    while cleared < REQUESTS {
        match peer.next().await {
            Deliver::Reply(_, reply) => {
                reply.expect("not busy");
                cleared += 1;
            }
            Deliver::Event { .. } | Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
        }
    }
}

#[actix::test]
async fn the_reply_precedes_the_events_and_no_number_is_missing() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of herons", None));
    let accepted = peer.accepted().await;
    let events = peer.rest().await;
    assert_eq!(events[0].seq, accepted.seq);
    assert!(matches!(events[0].event, Event::Prompted { .. }), "{events:?}");
    contiguous(&events);
    assert_eq!(text(&events), peer.answer("ada").await);
}

#[actix::test]
async fn without_room_nothing_is_sent_and_all_of_it_is_read_from_the_log_later() {
    let world = World::new().await;
    let (mut slow, mut quick) = (world.peer(1), world.peer(2));
    let others = WINDOW_BYTES - 1000;
    let from = Mailbox(mpsc::unbounded_channel().0).start().recipient::<More>();
    assert!(slow.client.window.take(others, &from), "other sessions have taken nearly all");
    slow.generous = false;
    slow.ask(prompt("ada", "tell me all there is to know of the great crested grebe", Some("k")));
    slow.accepted().await;
    quick.ask(prompt("ada", "the same key is the same run", Some("k")));
    assert!(quick.accepted().await.repeated);
    let all = quick.rest().await;

    let mut events = Vec::new();
    while slow.client.window.taken_bytes() < WINDOW_BYTES {
        events.push(slow.event().await);
    }
    while let Ok(Deliver::Event { event, .. }) = slow.inbox.try_recv() {
        events.push(event.logged.clone());
    }
    assert!(events.len() < all.len() / 2, "it had no more room: {} of {}", events.len(), all.len());
    slow.client.window.give_back(others, slow.client.connection);
    slow.generous = true;
    events.extend(slow.rest().await);
    contiguous(&events);
    assert_eq!(text(&events), text(&all), "nothing is missing");
}

#[actix::test]
async fn who_attaches_gets_exactly_what_follows_its_number() {
    let world = World::new().await;
    let (mut asks, mut follows) = (world.peer(1), world.peer(2));
    follows
        .ask(Command::Session(SessionCommand::Attach(Attach { target: target("ada"), after: Some(Seq(0)) })));
    assert!(matches!(
        follows.reply().await,
        Ok(Reply::Session(SessionReply::Attached(Attached { after: Seq(0), head: Seq(0), .. })))
    ));
    asks.ask(prompt("ada", "tell me of the smew", None));
    let told = asks.rest().await;
    let live = follows.rest().await;
    contiguous(&live);
    assert_eq!((live[0].first_seq, text(&live)), (Seq(1), text(&told)));

    for (connection, cut) in [(3, Seq(0)), (4, live[live.len() / 2].seq), (5, live[live.len() - 2].seq)] {
        let mut late = world.peer(connection);
        late.ask(Command::Session(SessionCommand::Attach(Attach {
            target: target("ada"),
            after: Some(cut),
        })));
        late.reply().await.unwrap();
        let rest = late.rest().await;
        contiguous(&rest);
        assert!(rest[0].first_seq <= cut.next() && rest[0].seq > cut, "after {cut}: {:?}", rest[0]);
        let missed: Vec<Logged> = live.iter().filter(|logged| logged.seq > cut).cloned().collect();
        assert_eq!(text(&rest), text(&missed), "after {cut}");
    }
    let mut early = world.peer(6);
    early.ask(Command::Session(SessionCommand::Attach(Attach {
        target: target("ada"),
        after: Some(Seq(9999)),
    })));
    let refused = early.reply().await.unwrap_err();
    assert!(refused.message.contains("no number 9999 yet"), "{refused}");
}

#[actix::test]
async fn what_a_connection_asked_for_itself_is_told_once() {
    let world = World::new().await;
    let (mut peer, mut other) = (world.peer(1), world.peer(2));
    let attach =
        peer.ask(Command::Session(SessionCommand::Attach(Attach { target: target("ada"), after: None })));
    peer.reply().await.unwrap();
    let own = peer.ask(prompt("ada", "my own words", None));
    peer.accepted().await;
    other.ask(prompt("ada", "the words of another", None));
    let theirs = other.accepted().await.run;
    let mut told = HashMap::new();
    loop {
        let (ticket, logged) = peer.told().await;
        let end = matches!(logged.event, Event::Ended { .. }) && logged.run.as_ref() == Some(&theirs);
        told.entry(ticket).or_insert_with(Vec::new).push(logged);
        if end {
            break;
        }
    }
    assert!(told[&own].iter().all(|logged| logged.run.as_ref() != Some(&theirs)), "{told:?}");
    assert!(told[&attach].iter().all(|logged| logged.run.as_ref() == Some(&theirs)), "{told:?}");
    assert!(matches!(told[&attach][0].event, Event::Prompted { .. }), "{told:?}");
    peer.ask(Command::Session(SessionCommand::Detach(Detach { target: target("ada"), follow: attach })));
    assert!(matches!(
        peer.reply().await,
        Ok(Reply::Session(SessionReply::Detached(Detached { found: true })))
    ));
}

#[actix::test]
async fn the_same_key_is_another_session_for_another_owner() {
    let world = World::new().await;
    let (mut waits, mut speaks) = (world.peer(1), world.peer(2));
    waits.ask_as(
        user("ada"),
        Command::Session(SessionCommand::Attach(Attach { target: target("x"), after: None })),
    );
    waits.reply().await.unwrap();
    waits.ask_as(user("ada"), Command::Session(SessionCommand::Clear(Clear { target: target("x") })));
    assert_eq!(waits.reply().await.unwrap_err().message, "no such session: main:test:x:main");
    speaks.ask_as(user("bob"), prompt("x", "mine", None));
    assert_eq!(speaks.accepted().await.session.as_str(), "bob/main:test:x:main");
    speaks.rest().await;
    waits.ask_as(
        user("ada"),
        Command::Session(SessionCommand::Attach(Attach { target: target("x"), after: None })),
    );
    let Ok(Reply::Session(SessionReply::Attached(Attached { head, .. }))) = waits.reply().await else {
        panic!("it is hers")
    };
    assert_eq!(head, Seq(0), "nothing was said in hers");
    assert!(waits.inbox.try_recv().is_err(), "it heard nothing of what is not its own");
}

#[actix::test]
async fn a_uuid_that_is_given_out_for_a_session_is_taken_by_no_prompt() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let key = SessionKey::parse("main:wundr:0f8fad5b-d9cb-469f-a165-70867728950e:main").unwrap();
    let named = || Target::Session(key.clone());
    let Command::Session(SessionCommand::Submit(submit)) = prompt("x", "mine", None) else {
        unreachable!("a prompt")
    };
    for command in [
        Command::Session(SessionCommand::Submit(Submit { target: named(), ..submit.clone() })),
        Command::Session(SessionCommand::Attach(Attach { target: named(), after: None })),
        Command::Session(SessionCommand::Reset(Reset { target: named() })),
    ] {
        peer.ask_as(user("eve"), command);
        assert_eq!(peer.reply().await.unwrap_err().message, format!("no such session: {key}"));
    }
    peer.ask_as(
        user("eve"),
        Command::Session(SessionCommand::CreateSession(CreateSession {
            target: named(),
            patch: clawmux_core::settings::Patch::default(),
        })),
    );
    let Ok(Reply::Session(SessionReply::Settled(row))) = peer.reply().await else {
        panic!("that is how it is made")
    };
    assert_eq!((row.session.owner(), row.session.uuid()), (user("eve").owner, key.uuid()));
    peer.ask_as(user("eve"), Command::Session(SessionCommand::Submit(Submit { target: named(), ..submit })));
    assert_eq!(peer.accepted().await.session, row.session);
}

#[actix::test]
async fn who_waits_for_a_session_hears_nothing_of_anothers_of_the_same_key() {
    let world = World::new().await;
    let (mut bob, mut eve) = (world.peer(1), world.peer(2));
    for peer in [("bob", &mut bob), ("eve", &mut eve)] {
        peer.1.ask_as(
            user(peer.0),
            Command::Session(SessionCommand::Attach(Attach { target: target("x"), after: None })),
        );
        peer.1.reply().await.unwrap();
    }
    bob.ask_as(user("bob"), prompt("x", "mine", None));
    bob.rest().await;
    assert!(eve.inbox.try_recv().is_err(), "it is another session");
}

#[actix::test]
async fn a_session_that_never_was_can_be_let_go_and_sleeps_then() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let follow =
        peer.ask(Command::Session(SessionCommand::Attach(Attach { target: target("x"), after: None })));
    let Ok(Reply::Session(SessionReply::Attached(Attached { session, .. }))) = peer.reply().await else {
        panic!("attached")
    };
    peer.ask(Command::Session(SessionCommand::Detach(Detach { target: target("x"), follow })));
    assert!(matches!(
        peer.reply().await,
        Ok(Reply::Session(SessionReply::Detached(Detached { found: true })))
    ));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while world.supervisor.send(Visit { key: session.clone() }).await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "it sleeps");
        tokio::task::yield_now().await;
    }
}

#[actix::test]
async fn a_refused_prompt_does_not_keep_its_idempotency_key() {
    let world = World::new().await;
    let (mut peer, mut bob) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/slow 100", None));
    peer.accepted().await;
    for n in 0..4 {
        peer.ask(prompt("ada", &format!("number {n}"), None));
    }
    let refused = peer.ask(prompt("ada", "one too many", Some("k")));
    loop {
        if let Deliver::Reply(ticket, reply) = peer.next().await
            && ticket == refused
        {
            assert!(reply.unwrap_err().message.contains("queue is full"));
            break;
        }
    }
    let mut other = world.peer(3);
    other.ask(prompt("elsewhere", "for another session", Some("k")));
    assert!(other.accepted().await.session.as_str().contains("elsewhere"));
    // Nor does one that was refused because the session is somebody else's.
    let Command::Session(SessionCommand::Submit(submit)) = prompt("ada", "may I?", Some("k")) else {
        unreachable!("a prompt")
    };
    let hers = SessionKey::parse("eve/main:test:ada:main").unwrap();
    bob.ask_as(
        user("bob"),
        Command::Session(SessionCommand::Submit(Submit { target: Target::Session(hers), ..submit })),
    );
    assert!(bob.reply().await.unwrap_err().message.contains("no such session"));
    bob.ask_as(user("bob"), prompt("bob", "may I here?", Some("k")));
    assert!(bob.accepted().await.session.as_str().contains("bob"));
}

#[actix::test]
async fn a_follower_that_is_too_far_behind_is_given_up() {
    let world = World::new().await;
    let (mut slow, mut asks) = (world.peer(1), world.peer(2));
    slow.generous = false;
    slow.ask(Command::Session(SessionCommand::Attach(Attach { target: target("ada"), after: None })));
    slow.reply().await.unwrap();
    let large = "x".repeat(400 * 1024);
    for _ in 0..5 {
        assert!(!slow.client.window.is_lagging() || slow.client.window.taken_bytes() > WINDOW_BYTES);
        asks.ask(prompt("ada", &large, None));
        asks.rest().await;
    }
    assert!(slow.client.window.is_lagging());
}

#[actix::test]
async fn a_stopped_session_ends_all_its_runs_and_sleeps() {
    let world = World::new().await;
    let (mut peer, mut operator) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/slow 1000", None));
    let first = peer.accepted().await.run;
    peer.ask(prompt("ada", "waits", None));
    let stop =
        || Command::Session(SessionCommand::Stop(Stop { target: target("ada"), cause: Cause::Stopped }));
    operator.ask(stop());
    let Ok(Reply::Session(SessionReply::Stopped(Stopped { session, runs }))) = operator.reply().await else {
        panic!("stopped")
    };
    assert_eq!((runs.len(), &runs[0]), (2, &first));
    for _ in 0..2 {
        let ended = peer.rest().await;
        assert!(matches!(ended.last().unwrap().event, Event::Ended { outcome: Outcome::Aborted(_), .. }));
    }
    operator.ask(stop());
    assert!(
        matches!(operator.reply().await, Ok(Reply::Session(SessionReply::Stopped(Stopped { runs, .. }))) if runs.is_empty())
    );
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while world.supervisor.send(Visit { key: session.clone() }).await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "it sleeps");
        tokio::task::yield_now().await;
    }
    operator.ask(Command::Session(SessionCommand::Stop(Stop {
        target: target("nobody"),
        cause: Cause::Stopped,
    })));
    assert!(operator.reply().await.unwrap_err().message.contains("no such session"));
}

#[actix::test]
async fn one_key_in_two_sessions_at_once_is_one_run() {
    let world = World::new().await;
    let (mut one, mut two) = (world.peer(1), world.peer(2));
    one.ask(prompt("ada", "first", Some("k")));
    two.ask(prompt("bob", "second", Some("k")));
    let (first, second) = (one.accepted().await, two.accepted().await);
    assert_eq!((&first.run, &first.session), (&second.run, &second.session));
    assert_ne!(first.repeated, second.repeated);
    assert_eq!(text(&one.rest().await), text(&two.rest().await));
}

#[actix::test]
async fn what_comes_in_is_done_in_its_order_though_keys_are_looked_up_in_the_log() {
    let world = World::new().await;
    for round in 0..10 {
        let account = format!("ada {round}");
        let mut peer = world.peer(round);
        for (at, keyed) in [true, true, false, true, true].into_iter().enumerate() {
            let key = format!("{account} {at}");
            peer.ask(prompt(&account, "/slow 60", keyed.then_some(&key)));
        }
        // In another session, which nobody has named yet: its end must not come before it.
        let elsewhere = target(&format!("bob {round}"));
        let unwanted = RunId::from_random(clock::random());
        let submit = Submit {
            target: elsewhere.clone(),
            run: unwanted.clone(),
            content: "/slow 60".into(),
            idempotency_key: Some(account.clone()),
            attachments: Vec::new(),
            files: Vec::new(),
            enclosed: Vec::new(),
            manner: Manner::default(),
            follow: true,
        };
        peer.ask(Command::Session(SessionCommand::Submit(submit)));
        peer.ask(Command::Session(SessionCommand::Abort(Abort {
            target: elsewhere,
            run: Some(unwanted.clone()),
        })));
        let (mut seqs, mut aborted) = (Vec::new(), None);
        while seqs.len() < 6 || aborted.is_none() {
            match peer.next().await {
                Deliver::Reply(ticket, reply) => match reply.unwrap() {
                    Reply::Session(SessionReply::Accepted(accepted)) => seqs.push((ticket, accepted.seq)),
                    Reply::Session(SessionReply::Aborted(Aborted { run })) => aborted = Some(run),
                    other => panic!("{other:?}"),
                },
                Deliver::Event { .. } | Deliver::Announced | Deliver::Invoke(_) | Deliver::Progress(..) => {}
            }
        }
        seqs.sort();
        let in_order = seqs[..5].windows(2).all(|pair| pair[0].1 < pair[1].1);
        assert!(in_order, "round {round}: prompts overtook each other: {seqs:?}");
        assert_eq!(aborted, Some(Some(unwanted)), "round {round}: its end overtook it");
        peer.ask(Command::Session(SessionCommand::Abort(Abort { target: target(&account), run: None })));
    }
}

#[actix::test]
async fn a_run_asked_for_twice_on_one_connection_is_told_twice() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    let first = peer.ask(prompt("ada", "tell me of the whimbrel", Some("k")));
    peer.accepted().await;
    let mut told: HashMap<Ticket, Vec<Logged>> = HashMap::new();
    while !told.values().flatten().any(|logged| matches!(logged.event, Event::Text(_))) {
        let (ticket, logged) = peer.told().await;
        told.entry(ticket).or_default().push(logged);
    }
    let second = peer.ask(prompt("ada", "again", Some("k")));
    while told.values().flatten().filter(|logged| matches!(logged.event, Event::Ended { .. })).count() < 2 {
        let (ticket, logged) = peer.told().await;
        told.entry(ticket).or_default().push(logged);
    }
    let answer = peer.answer("ada").await;
    for ticket in [first, second] {
        let events = &told[&ticket];
        contiguous(events);
        assert!(matches!(events[0].event, Event::Prompted { .. }), "from its start: {events:?}");
        assert_eq!(text(events), answer);
    }
}

#[actix::test]
async fn a_full_queue_is_a_typed_refusal_and_abort_empties_it() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "/slow 100", None));
    peer.accepted().await;
    for n in 0..4 {
        peer.ask(prompt("ada", &format!("number {n}"), None));
    }
    peer.ask(prompt("ada", "one too many", None));
    let mut refused = None;
    for _ in 0..5 {
        loop {
            if let Deliver::Reply(_, reply) = peer.next().await {
                refused = refused.or(reply.err());
                break;
            }
        }
    }
    let refused = refused.expect("one was refused");
    assert!(refused.is_retryable() && refused.message.contains("queue is full"), "{refused}");
    for _ in 0..5 {
        peer.ask(Command::Session(SessionCommand::Abort(Abort { target: target("ada"), run: None })));
        let ended = peer.rest().await;
        assert!(matches!(ended.last().unwrap().event, Event::Ended { outcome: Outcome::Aborted(_), .. }));
    }
}

#[actix::test]
async fn a_session_that_panics_starts_anew_from_its_log_and_its_followers_go_on() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of the bittern", None));
    let accepted = peer.accepted().await;
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Logged { event: Event::Text(_), .. })) {
        events.push(peer.event().await);
    }
    let visited = world.supervisor.send(Visit { key: accepted.session }).await.unwrap();
    visited.expect("awake").try_send(Sabotage).unwrap();
    events.extend(peer.rest().await);
    contiguous(&events);
    let restarted = events.iter().position(|logged| logged.event == Event::Restarted);
    let restarted = restarted.unwrap_or_else(|| panic!("no restart in {events:?}"));
    assert_eq!(text(&events[restarted..]), peer.answer("ada").await, "the step started anew");
    assert!(matches!(events.last().unwrap().event, Event::Ended { outcome: Outcome::Completed, .. }));
}

#[actix::test]
async fn an_aborted_answer_says_what_it_has_cost() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of the turnstone", None));
    peer.accepted().await;
    while !matches!(peer.event().await.event, Event::Text(_)) {}
    peer.ask(Command::Session(SessionCommand::Abort(Abort { target: target("ada"), run: None })));
    let ended = peer.rest().await.pop().unwrap().event;
    let Event::Ended { outcome: Outcome::Aborted(_), usage } = ended else { panic!("{ended:?}") };
    assert!(usage.input_tokens > 0 && usage.output_tokens > 0, "{usage:?}");
}

#[actix::test]
async fn an_idle_session_sleeps_and_wakes_when_it_is_named() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask(prompt("ada", "tell me of the dunlin", None));
    let key = peer.accepted().await.session;
    peer.rest().await;
    let visit = || world.supervisor.send(Visit { key: key.clone() });

    world.supervisor.send(Idle { key: key.clone(), received: 0 }).await.unwrap();
    assert!(visit().await.unwrap().is_some(), "a message is on its way to it: it stays awake");

    // Who asks how it is just then is not told of one that is broken.
    let (observed, idle) = futures::join!(
        world.supervisor.send(Observe),
        world.supervisor.send(Idle { key: key.clone(), received: 1 })
    );
    idle.unwrap();
    let observed = observed.unwrap();
    assert_eq!(observed.state["awake"], 1, "it was awake as they were counted");
    let silent: Vec<_> = observed.children.iter().filter_map(|child| child.silent.as_deref()).collect();
    assert_eq!((silent.len(), observed.children.len()), (0, 0), "{silent:?}");
    // What comes while it falls asleep is not lost.
    peer.ask(prompt("ada", "and of the knot", None));
    let accepted = peer.accepted().await;
    let events = peer.rest().await;
    assert_eq!(events[0].seq, accepted.seq, "it goes on where it was");
    assert!(text(&events).contains("knot"));
}

#[actix::test]
async fn a_session_of_somebody_else_is_not_there() {
    let world = World::new().await;
    let mut peer = world.peer(1);
    peer.ask_as(user("ada"), prompt("ada", "hello", None));
    let accepted = peer.accepted().await;
    peer.rest().await;
    let stranger = user("bob");
    let session = Target::Session(SessionKey::parse(accepted.session.as_str()).unwrap());
    for command in [
        Command::Session(SessionCommand::ReadHistory(ReadHistory {
            target: session.clone(),
            limit: 1,
            before: None,
        })),
        Command::Session(SessionCommand::Clear(Clear { target: session.clone() })),
        Command::Session(SessionCommand::Abort(Abort { target: session.clone(), run: None })),
        Command::Session(SessionCommand::GetBudgets(GetBudgets { target: Some(session.clone()) })),
        Command::Session(SessionCommand::Submit(Submit {
            target: session.clone(),
            run: RunId::from_random(clock::random()),
            content: "hi".into(),
            idempotency_key: None,
            attachments: Vec::new(),
            files: Vec::new(),
            enclosed: Vec::new(),
            manner: Manner::default(),
            follow: true,
        })),
    ] {
        let shown = format!("{command:?}");
        peer.ask_as(stranger.clone(), command);
        let error = peer.reply().await.expect_err(&shown);
        assert!(error.message.contains("no such session"), "{shown}: {error}");
    }
}

/// What each of these accounts was told of, up to the end of a run in each.
async fn watched(peer: &mut Peer, accounts: &[&str]) -> Vec<(String, Event)> {
    let mut told: Vec<(String, Event)> = Vec::new();
    let is_over = |told: &[(String, Event)], account: &&str| {
        told.iter().any(|(of, event)| of == account && matches!(event, Event::Ended { .. }))
    };
    while !accounts.iter().all(|account| is_over(&told, account)) {
        if let Deliver::Event { event, .. } = peer.next().await {
            peer.client.window.give_back(cost(&event), peer.client.connection);
            told.push((event.session.account().into_owned(), event.logged.event.clone()));
        }
    }
    told
}

#[actix::test]
async fn who_watches_is_told_all_it_may_see_and_keeps_nothing_awake() {
    let world = World::new().await;
    let (mut operator, mut ada) = (world.peer(1), world.peer(2));
    operator.ask(Command::Session(SessionCommand::Watch(Watch)));
    assert_eq!(operator.reply().await.unwrap(), Reply::Session(SessionReply::Watching(Watching)));
    operator.ask(Command::Session(SessionCommand::Watch(Watch)));
    assert!(operator.reply().await.is_err(), "once per connection");
    ada.ask_as(user("ada"), Command::Session(SessionCommand::Watch(Watch)));
    assert_eq!(ada.reply().await.unwrap(), Reply::Session(SessionReply::Watching(Watching)));

    // One session of each, which did not exist when they began to watch.
    let (mut of_ada, mut of_bob) = (world.peer(3), world.peer(4));
    of_bob.ask_as(user("bob"), prompt("bob", "hi", None));
    of_bob.rest().await;
    of_ada.ask_as(user("ada"), prompt("ada", "hi", None));
    of_ada.rest().await;
    let all = watched(&mut operator, &["ada", "bob"]).await;
    for account in ["ada", "bob"] {
        let of: Vec<&Event> = all.iter().filter(|(of, _)| of == account).map(|(_, event)| event).collect();
        assert!(
            matches!(of[..], [Event::Prompted { .. }, Event::Started, .., Event::Ended { .. }]),
            "{of:?}"
        );
    }
    let own = watched(&mut ada, &["ada"]).await;
    assert!(own.iter().all(|(account, _)| account == "ada"), "not another's: {own:?}");

    // Nobody needs the session: it sleeps, and is watched again as soon as something happens.
    let key = SessionKey::new("main", "test", "ada", "main").unwrap().in_space(&user("ada").owner);
    let session = world.supervisor.send(Visit { key }).await.unwrap().unwrap();
    of_ada.ask_as(
        user("ada"),
        Command::Session(SessionCommand::Stop(Stop { target: target("ada"), cause: Cause::Stopped })),
    );
    of_ada.reply().await.unwrap();
    tokio::time::timeout(PATIENCE, async {
        while session.connected() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it sleeps though it is watched");
    of_ada.ask_as(user("ada"), prompt("ada", "again", None));
    of_ada.rest().await;
    let again = watched(&mut operator, &["ada"]).await;
    assert!(matches!(&again[0].1, Event::Prompted { content, .. } if content == "again"), "{again:?}");
    watched(&mut ada, &["ada"]).await;

    operator.ask(Command::Session(SessionCommand::Unwatch(Unwatch { watch: Ticket(1) })));
    assert_eq!(operator.reply().await.unwrap(), Reply::Session(SessionReply::Unwatched(Unwatched)));
    of_ada.ask_as(user("ada"), prompt("ada", "unseen", None));
    of_ada.rest().await;
    watched(&mut ada, &["ada"]).await;
    assert!(operator.inbox.try_recv().is_err(), "it watches no longer");
}

#[actix::test]
async fn a_granted_command_of_a_node_is_a_tool_while_it_is_connected() {
    let world = World::new().await;
    let (mut phone, mut peer) = (world.peer(1), world.peer(2));
    peer.ask(prompt("ada", "/tool node_phone_camera_snap {}", None));
    assert!(text(&peer.rest().await).contains("There is no tool node_phone_camera_snap"), "not offered");

    let about = About {
        instance_id: Some("phone".into()),
        commands: vec!["camera.snap".into(), "system.run".into()],
        ..About::default()
    };
    let (client, host) = (phone.client.clone(), String::from("::1"));
    let joins = NodeJoins { client, owner: Owner::Admins, host, about, device: None };
    world.nodes.send(joins).await.unwrap();
    let invocation = async |phone: &mut Peer| -> Arc<Invocation> {
        match phone.next().await {
            Deliver::Invoke(invocation) => invocation,
            other => panic!("{other:?}"),
        }
    };
    let returned = |events: &[Logged]| {
        events.iter().find_map(|logged| match &logged.event {
            Event::ToolReturned(result) => Some(result.clone()),
            _ => None,
        })
    };
    peer.ask(prompt("ada", r#"/tool node_phone_camera_snap {"facing":"front"}"#, None));
    let asked = invocation(&mut phone).await;
    assert_eq!(
        (asked.command.as_str(), asked.params.as_deref()),
        ("camera.snap", Some(r#"{"facing":"front"}"#))
    );
    let (connection, outcome) = (phone.client.connection, Ok(Some(r#"{"seen":"a cat"}"#.to_owned())));
    world.nodes.send(Resulted { connection, invocation: asked.id.clone(), outcome }).await.unwrap();
    let events = peer.rest().await;
    let result = returned(&events).expect("it is in the log");
    assert_eq!((result.content.as_str(), result.is_error), (r#"{"seen":"a cat"}"#, false));
    assert!(text(&events).contains("a cat"), "the model is told: {}", text(&events));
    let not_granted = peer.ask(prompt("ada", "/tool node_phone_system_run {}", None));
    assert_eq!(not_granted, Ticket(3));
    assert!(text(&peer.rest().await).contains("There is no tool"), "only what was granted");

    // It leaves in the middle of a call.
    peer.ask(prompt("ada", "/tool node_phone_camera_snap {}", None));
    invocation(&mut phone).await;
    world.nodes.send(NodeLeaves { connection }).await.unwrap();
    let result = returned(&peer.rest().await).expect("it is in the log");
    assert!(result.is_error && result.content.starts_with("NOT_CONNECTED: "), "{result:?}");
}
