//! A daemon of a cluster: several daemons, one set of sessions, in one log on JetStream.
//!
//! What changes the store comes here first ([`Submission`]). It is written into the log, under its subject and with
//! the last sequence of that expected; every daemon follows the log and has its store apply it, this one too, and then
//! whoever waits is told how it went. Which sessions this daemon writes, and how it finds out what became of a record
//! without an answer, [`clawmux_core::cluster`] says; here it is done.
//!
//! ```text
//! Session, Scheduler, ... -> Store -> (Submission) -> Cluster -> engine -> log
//!                              ^                                            |
//!                              +----------------- Replay <- follow ---------+
//! ```
//!
//! | part | what it does |
//! |---|---|
//! | [`engine`] | everything that is asked of JetStream |
//! | [`beginning`] | how a cluster begins, and how a store gets to its log, before a daemon runs |
//! | [`contradiction`] | whether the log contradicts a store that another log is to begin with |
//! | `log_reader` | reads the log up to a record, for those two |
//! | [`verifying`] | whether a store is what its log says, before a daemon runs |
//! | `joining` | how a daemon comes to take part |
//! | `status` | how it is, and whether anything can be written |
//! | `writing` | what is to be written under one subject, in order |
//! | `large` | records that are too large for the log |
//! | `sessions` | tells this daemon's sessions what becomes of slots, and where each is written |
//! | [`remote`] | the other daemons, for this one's sessions |
//! | [`peers`] | what other daemons ask about this one's sessions and files |
//! | `files` | bytes of files that other daemons have |
//! | `rates` | what principals spend at one daemon counts at all |
//!
//! A session is written by the owner of its slot: a change of one that another daemon owns is refused, its orders go
//! there. What is kept beside sessions (a table) is owned by nobody: every daemon writes it, once it has joined, and its
//! epoch is the token of its records. Whether such a change can be made is decided when it is applied, by every store
//! alike; who asked for it is told then.
//!
//! Deliberately absent: a purge of the log. A replica is whole when it has the last record that there was, so that one
//! has to be there.

pub mod beginning;
pub mod contradiction;
pub mod engine;
mod files;
pub(crate) mod joining;
mod large;
mod log_reader;
pub mod peers;
mod rates;
pub mod remote;
mod sessions;
mod status;
pub mod verifying;
mod writing;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorContext as _, Addr, AsyncContext as _, Context, Handler, Message, SpawnHandle, StreamHandler,
};
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::ownership::appender::{Action as Deed, Appender, Input as News};
use clawmux_core::cluster::ownership::slots::{Action, Input, Ownership};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::{RecordId, Sequence, Stamp, Token};
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::replica::{Record, Subject, Write};
use futures::{Stream, StreamExt as _};
use serde_json::json;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::runtime::ask::ask;
use crate::runtime::awaited::{Awaited, Awaits};
use crate::runtime::clock;
use crate::runtime::lane::Lanes;
use crate::runtime::observe::{Observe, Observed};
use crate::store::{
    ChangedElsewhere, ReadLanes, ReadPosition, ReadSubject, Replay, Replayed, ShowText, Store, SubjectEnd,
    Submission,
};
use engine::{Beat, Engine, Published, RECORD_BYTES_MAX};
use large::{LARGE_BYTES_MAX, Reads, Whole, completed};
use status::Outlook;
use writing::{Answer, Stage, Waiting, What, Writing};

/// How often slots and records that wait are looked at.
const TICK: Duration = Duration::from_millis(20);

/// The pause before the log is followed again, or the store is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Records that the store has been given and has not applied.
const REPLAYS_MAX: usize = 256;

/// Records of one subject that are read at once to find out what became of one.
const READ_MAX: usize = 64;

/// So many subjects may be awake before some are put to sleep.
const AWAKE_MAX: usize = 16_384;

/// So many of them at once.
const SLEEPS_MAX: usize = 64;

/// How long a change waits for its slot before it is refused, in milliseconds.
const SLOT_WAIT_MS: u64 = 10_000;

/// That a session has another owner by now.
const OTHER_OWNER: &str = "another daemon of the cluster owns it now: try again";

/// That nobody knows what became of a change.
const UNSETTLED: &str =
    "the log of the cluster did not acknowledge the change in time: whether it was made is not known";

/// How a daemon takes part.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// Its name among the daemons.
    pub node: NodeName,
    /// The silence after which a daemon counts as dead, in milliseconds.
    pub lease_ms: u64,
    /// What is told of the runs that are in lanes.
    pub lanes: Lanes,
}

/// A daemon's part in its cluster.
pub struct Cluster {
    settings: ClusterSettings,
    engine: Rc<Engine>,
    store: Addr<Store>,
    ownership: Ownership,
    writings: HashMap<Subject, Writing>,
    /// Those that are awake, by the words of the log.
    awake: HashMap<String, Subject>,
    /// Whose appenders want to know what time it is, or that wait for their slot.
    restless: HashSet<Subject>,
    /// Under which tables are written; none before it has joined.
    epoch: Option<Token>,
    /// Every token of a slot that this process had.
    own: HashSet<Token>,
    /// How many records this process has numbered.
    records: u64,
    /// The last record that the store has applied.
    applied: u64,
    /// The replica is whole once it has this record; none where it was, or where that is not known yet.
    catches_up_to: Option<u64>,
    following: Option<SpawnHandle>,
    /// Whether it is about to be followed anew.
    is_to_follow: bool,
    /// What is read of records that are not in the log as a whole.
    reads: Reads,
    stalled: HashSet<Subject>,
    /// The same as `applied`, for those who wait for it.
    progress: watch::Sender<u64>,
    /// Who answers other daemons, once sessions can be asked.
    peers: Option<Addr<peers::Peers>>,
    /// Who says and hears what principals spend.
    rates: Option<Addr<rates::RateSharing>>,
    /// Who is told what becomes of slots.
    sessions: sessions::Sessions,
    /// Those whose key is another run's, told when the store has this place of the log.
    taken: Vec<(u64, Answer)>,
    figures: Figures,
    outlook: Outlook,
    awaited: Awaited<Self>,
}

/// What happened, for the operator.
#[derive(Debug, Default)]
struct Figures {
    written: u64,
    transient: u64,
    refused: u64,
    unknown: u64,
    followed_anew: u64,
}

/// A record that the store has applied, or why none can be.
struct Fed(Result<(Followed, Replayed), NotFed>);

/// A record of the log.
struct Followed {
    subject: String,
    position: u64,
    stamp: Option<Stamp>,
    record: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Why a record was not applied.
enum NotFed {
    /// It did not come.
    Log(String),
    /// What its envelope stands for is not there.
    Blob(String),
    /// The store could not, or did not say in time.
    Store(String),
}

impl NotFed {
    /// Why, in words.
    fn into_why(self) -> String {
        match self {
            Self::Log(why) | Self::Blob(why) | Self::Store(why) => why,
        }
    }
}

/// A heartbeat that came.
struct Heard(Beat);

/// Begins with the log anew.
#[derive(Message)]
#[rtype(result = "()")]
struct Follow;

/// Ends: nothing more is written. What is on its way may be accepted all the same.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Leave;

impl Cluster {
    /// Takes part with this store, whose changes come as submissions.
    pub fn start(
        settings: ClusterSettings,
        engine: Engine,
        store: Addr<Store>,
        submissions: Receiver<Submission>,
    ) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.add_stream(futures::stream::unfold(submissions, async |mut submissions| {
                submissions.recv().await.map(|submission| (submission, submissions))
            }));
            Self {
                ownership: Ownership::new(settings.node.clone(), settings.lease_ms, Slot::all(), now_ms()),
                settings,
                engine: Rc::new(engine),
                store,
                writings: HashMap::new(),
                awake: HashMap::new(),
                restless: HashSet::new(),
                epoch: None,
                own: HashSet::new(),
                records: 0,
                applied: 0,
                catches_up_to: None,
                following: None,
                is_to_follow: false,
                reads: Reads::default(),
                stalled: HashSet::new(),
                progress: watch::Sender::default(),
                peers: None,
                rates: None,
                sessions: sessions::Sessions::default(),
                taken: Vec::new(),
                figures: Figures::default(),
                outlook: Outlook::new(now_ms()),
                awaited: Awaited::default(),
            }
        })
    }

    fn own(&mut self, input: Input<'_>, ctx: &mut Context<Self>) {
        let mut actions = Vec::new();
        self.ownership.handle(input, now_ms(), &mut actions);
        for action in actions {
            self.act(action, ctx);
        }
    }

    fn act(&mut self, action: Action, ctx: &mut Context<Self>) {
        let engine = Rc::clone(&self.engine);
        match action {
            Action::Join => {
                let node = self.settings.node.clone();
                let about = json!({ "version": env!("CARGO_PKG_VERSION") }).to_string();
                let joined = async move {
                    let epoch = engine.join(&node, about.into()).await?;
                    Ok::<_, String>((epoch, engine.extent().await?))
                };
                self.awaited.add(joined, |cluster, joined, ctx| match joined {
                    Ok((epoch, extent)) => {
                        cluster.catches_up_to = Some(extent.last.0);
                        cluster.epoch = Some(Token(epoch.0));
                        cluster.own(Input::Joined(epoch), ctx);
                        cluster.look_whether_whole(ctx);
                    }
                    Err(why) => tracing::warn!(why, "cluster: it can't be joined; it is tried again"),
                });
            }
            Action::Beat(beat) => {
                let beat = self.outlook.beat(beat);
                self.awaited.add(async move { engine.beat(&beat).await }, |_, sent, _| {
                    if let Err(why) = sent {
                        tracing::debug!(why, "cluster: a heartbeat was not sent");
                    }
                });
            }
            Action::ReadSlots => {
                self.awaited.add(async move { engine.read_slots().await }, |cluster, read, ctx| match read {
                    Ok(entries) => {
                        cluster.own(Input::SlotsRead(&entries), ctx);
                        cluster.tell_of_owners();
                    }
                    Err(why) => tracing::debug!(why, "cluster: the slots can't be read"),
                });
            }
            Action::WriteSlot { slot, expected, claim } => {
                let written = async move { engine.write_slot(slot, expected, &claim).await };
                self.awaited.add(written, move |cluster, written, ctx| match written {
                    Ok(Some(token)) => cluster.own(Input::Accepted(slot, token), ctx),
                    Ok(None) => {}
                    Err(why) => tracing::debug!(why, "cluster: a slot was not written"),
                });
            }
            Action::Gained(slot, token) => {
                self.own.insert(token);
                self.sessions.gained(slot);
                self.outlook.gained();
                for subject in self.subjects_of(slot) {
                    self.proceed(&subject, ctx);
                }
            }
            Action::Vacate(slot) => self.vacate(slot, ctx),
            Action::Lost(slot) => {
                self.sessions.lost(slot);
                self.outlook.lost();
                for subject in self.subjects_of(slot) {
                    self.tell(&subject, News::Lose, ctx);
                }
            }
            Action::Released(_) => {}
            Action::Drained => {
                tracing::info!("cluster: all slots are given away");
                self.outlook.drained();
            }
        }
    }

    fn subjects_of(&self, slot: Slot) -> Vec<Subject> {
        let of = self.writings.iter().filter(|(_, writing)| writing.slot == Some(slot));
        of.map(|(subject, _)| subject.clone()).collect()
    }

    fn look_whether_vacated(&mut self, slot: Slot, ctx: &mut Context<Self>) {
        let is_awake = |writing: &Writing| matches!(writing.stage, Stage::Awake(_) | Stage::Asking);
        if !self.sessions.is_awake(slot)
            && !self.writings.values().any(|writing| writing.slot == Some(slot) && is_awake(writing))
        {
            self.own(Input::Vacated(slot), ctx);
        }
    }

    /// The replica is whole once it has what was in the log when the daemon joined.
    fn look_whether_whole(&mut self, ctx: &mut Context<Self>) {
        if self.catches_up_to.is_some_and(|last| self.applied >= last) {
            self.catches_up_to = None;
            self.own(Input::CaughtUp, ctx);
        }
    }

    /// Does what is next under a subject, as far as that can be done now.
    fn proceed(&mut self, subject: &Subject, ctx: &mut Context<Self>) {
        while let Some(writing) = self.writings.get_mut(subject) {
            let is_open = matches!(&writing.stage, Stage::Awake(appender) if appender.is_open());
            let Some(Waiting { what, answer }) = writing.next() else { break };
            match what {
                What::Text(session, events) => {
                    let shown = self.store.send(ShowText { session, events });
                    self.awaited.add(shown, move |_, shown, _| {
                        answer.one_is(shown.unwrap_or_else(|_| Err(away("the store has stopped"))));
                    });
                }
                What::Open if is_open => answer.one_is(Ok(())),
                What::Record(write) if is_open => {
                    self.records += 1;
                    let id = RecordId(self.records);
                    let Stage::Awake(appender) = &writing.stage else { break };
                    let stamp = Stamp { token: appender.token(), record: id };
                    let (is_append, guard) = match &write {
                        Write::Append(appended) => (true, appended.guards().pop()),
                        _ => (false, None),
                    };
                    writing.is_append = is_append;
                    match (Record { stamp, write }).to_bytes() {
                        Ok(record) if record.len() > LARGE_BYTES_MAX => {
                            writing.failed();
                            answer.one_is(Err(too_large(record.len())))
                        }
                        Ok(record) => {
                            (writing.in_flight, writing.blob) = (Some((stamp, answer)), None);
                            writing.guard = guard;
                            match record.len() > RECORD_BYTES_MAX {
                                true => self.write_in_parts(subject, stamp, record.into(), ctx),
                                false => self.append(subject, stamp, record.into(), ctx),
                            }
                        }
                        Err(error) => answer.one_is(Err(error)),
                    }
                }
                what @ (What::Record(_) | What::Open) => {
                    writing.queue.push_front(Waiting { what, answer });
                    self.wake(subject);
                    break;
                }
            }
        }
    }

    /// Has the record that is on its way under this subject be written into the log.
    fn append(&mut self, subject: &Subject, stamp: Stamp, record: Bytes, ctx: &mut Context<Self>) {
        let Some(writing) = self.writings.get(subject) else { return };
        let has_guard = writing.guard.is_some();
        self.tell(subject, News::Append { id: stamp.record, record, has_guard }, ctx);
    }

    /// Under which token a subject can be written now.
    fn token(&self, writing: &Writing) -> Option<Token> {
        writing.slot.map_or(self.epoch, |slot| self.ownership.token(slot))
    }

    /// Begins to write under a subject, where its slot is ours, or none is needed.
    fn wake(&mut self, subject: &Subject) {
        let Some(writing) = self.writings.get(subject) else { return };
        let token = self.token(writing);
        let Some(writing) = self.writings.get_mut(subject) else { return };
        if !matches!(writing.stage, Stage::Asleep) {
            return;
        }
        let Some(token) = token else {
            writing.waits_since_ms.get_or_insert_with(now_ms);
            self.restless.insert(subject.clone());
            return;
        };
        (writing.stage, writing.waits_since_ms) = (Stage::Asking, None);
        let (asked, subject) = (self.store.send(ReadSubject(writing.name.clone())), subject.clone());
        self.awaited.add(asked, move |cluster, end, ctx| match end {
            Ok(Ok(end)) => cluster.begin(&subject, token, end, ctx),
            Ok(Err(error)) => cluster.give_up(&subject, &error, ctx),
            Err(_) => cluster.give_up(&subject, &away("the store has stopped"), ctx),
        });
    }

    fn begin(&mut self, subject: &Subject, token: Token, end: SubjectEnd, ctx: &mut Context<Self>) {
        let Some(writing) = self.writings.get_mut(subject) else { return };
        self.records += 1;
        let mut deeds = Vec::new();
        let last = Sequence(end.last);
        let appender = match writing.slot {
            Some(_) => Appender::new(token, RecordId(self.records), (last, end.token), now_ms(), &mut deeds),
            None => Appender::shared(token, last, &mut deeds),
        };
        writing.stage = Stage::Awake(Box::new(appender));
        writing.begun = self.records;
        self.awake.insert(writing.name.clone(), subject.clone());
        self.restless.insert(subject.clone());
        self.do_all(subject, deeds, ctx);
    }

    fn give_up(&mut self, subject: &Subject, error: &Error, ctx: &mut Context<Self>) {
        if let Some(writing) = self.writings.get_mut(subject) {
            writing.stage = Stage::Asleep;
            writing.refuse_all(error);
            if let Some(slot) = writing.slot {
                self.look_whether_vacated(slot, ctx);
            }
        }
    }

    fn tell(&mut self, subject: &Subject, news: News<'_, Bytes>, ctx: &mut Context<Self>) {
        let Some(writing) = self.writings.get_mut(subject) else { return };
        let Stage::Awake(appender) = &mut writing.stage else { return };
        let mut deeds = Vec::new();
        appender.handle(news, now_ms(), &mut deeds);
        self.restless.insert(subject.clone());
        self.do_all(subject, deeds, ctx);
    }

    /// The same of an answer to what was asked when the subject was begun under this number.
    fn tell_if(&mut self, (subject, begun): &(Subject, u64), news: News<'_, Bytes>, ctx: &mut Context<Self>) {
        if self.writings.get(subject).is_some_and(|writing| writing.begun == *begun) {
            self.tell(subject, news, ctx);
        }
    }

    fn do_all(&mut self, subject: &Subject, deeds: Vec<Deed<Bytes>>, ctx: &mut Context<Self>) {
        for deed in deeds {
            self.carry_out(subject, deed, ctx);
        }
    }

    fn carry_out(&mut self, subject: &Subject, deed: Deed<Bytes>, ctx: &mut Context<Self>) {
        let Some(writing) = self.writings.get_mut(subject) else { return };
        let (engine, of) = (Rc::clone(&self.engine), (subject.clone(), writing.begun));
        match deed {
            Deed::Publish { attempt, stamp, expected, record, has_guard } => {
                let record = match (record, subject) {
                    (Some(record), _) => Ok(record),
                    (None, Subject::Session(session)) => {
                        let take_over = Record { stamp, write: Write::TakeOver(session.clone()) };
                        take_over.to_bytes().map(Bytes::from)
                    }
                    (None, Subject::Table(table)) => {
                        Err(ErrorCode::Internal.error(format!("{table} is owned by nobody")))
                    }
                };
                let guard = writing.guard.clone().filter(|_| has_guard).map(|guard| {
                    let subject = engine.guard(&guard.hash());
                    let record = Record { stamp, write: Write::Guard(guard) };
                    record.to_bytes().map(|record| (subject, Bytes::from(record)))
                });
                let (name, begin) = (writing.name.clone(), Instant::now());
                let published = async move {
                    match (record, guard.transpose()) {
                        (Ok(record), Ok(None)) => engine.publish(&name, expected, record).await,
                        (Ok(record), Ok(Some((subject, guard)))) => {
                            engine.publish_guarded((&subject, guard), &name, expected, record).await
                        }
                        (Err(error), _) | (_, Err(error)) => Published::Unknown(error.message),
                    }
                };
                self.awaited.add(published, move |cluster, published, ctx| {
                    let news = match published {
                        Published::Acked(sequence) => {
                            cluster.outlook.acked(begin.elapsed());
                            News::Acked(stamp.record, sequence)
                        }
                        Published::Transient => {
                            cluster.figures.transient += 1;
                            News::Transient(attempt)
                        }
                        Published::Refused => {
                            cluster.figures.refused += 1;
                            News::Refused(attempt)
                        }
                        Published::Unknown(why) => {
                            cluster.figures.unknown += 1;
                            cluster.outlook.unknown(&why);
                            tracing::debug!(
                                why,
                                "cluster: what became of a record is not known; it is found out"
                            );
                            News::Unknown(attempt)
                        }
                    };
                    cluster.tell_if(&of, news, ctx);
                });
            }
            Deed::ReadSince(attempt, after) => {
                let name = writing.name.clone();
                let read = async move { engine.read_since(&name, after, READ_MAX).await };
                self.awaited.add(read, move |cluster, read, ctx| match read {
                    Ok(records) => {
                        let stamped = |(sequence, record): &(Sequence, Bytes)| (*sequence, stamp_of(record));
                        let records: Vec<_> = records.iter().map(stamped).collect();
                        cluster.tell_if(&of, News::ReadBack(attempt, &records), ctx);
                    }
                    Err(why) => {
                        tracing::debug!(why, "cluster: a subject can't be read");
                        cluster.tell_if(&of, News::Unknown(attempt), ctx);
                    }
                });
            }
            Deed::ReadKey(attempt, _) => {
                let Some(subject) = writing.guard.as_ref().map(|guard| engine.guard(&guard.hash())) else {
                    return;
                };
                let read = async move { engine.read_guard(&subject).await };
                self.awaited.add(read, move |cluster, read, ctx| {
                    let news = match read {
                        Ok(guard) => News::KeyIs(attempt, guard.as_ref().map(stamp_of)),
                        Err(why) => {
                            tracing::debug!(why, "cluster: the guard of a key can't be read");
                            News::Unknown(attempt)
                        }
                    };
                    cluster.tell_if(&of, news, ctx);
                });
            }
            Deed::Opened => self.proceed(subject, ctx),
            // Whoever waits is told once the store has it.
            Deed::Written(..) => self.figures.written += 1,
            Deed::Lost(id) => {
                if let Some((answer, blob)) = writing.give_up(|in_flight| in_flight.record == id) {
                    answer.one_is(Err(match writing.slot {
                        Some(_) => not_owner(OTHER_OWNER),
                        None => away("the change was not made: try again"),
                    }));
                    blob.into_iter().for_each(|blob| self.remove_blob(blob));
                }
            }
            Deed::Taken(id) => {
                if let Some((answer, blob)) = writing.give_up(|in_flight| in_flight.record == id) {
                    answer.fails();
                    blob.into_iter().for_each(|blob| self.remove_blob(blob));
                    self.taken(answer);
                }
                self.proceed(subject, ctx);
            }
            Deed::Stalled => {
                if self.stalled.is_empty() {
                    tracing::error!(
                        "cluster: nothing can be written to the log; it is tried again and again"
                    );
                }
                self.stalled.insert(subject.clone());
                self.tell_whether_it_can_be_written();
                self.give_no_hope(subject);
            }
            Deed::Flows => self.flows(subject),
            Deed::Ended(outdone) => {
                writing.stage = Stage::Asleep;
                let slot = writing.slot;
                // What was written at last is told when it is applied.
                if writing.in_flight.is_none() {
                    self.awake.remove(&writing.name);
                }
                self.restless.insert(subject.clone());
                self.flows(subject);
                match (slot, outdone) {
                    (Some(slot), Some(token)) => {
                        self.outdone(subject);
                        self.own(Input::Superseded(slot, token), ctx);
                    }
                    (Some(slot), None) => self.look_whether_vacated(slot, ctx),
                    (None, _) => {}
                }
            }
        }
    }

    /// Whoever waits for a subject is told that it takes too long. What is on its way may yet be written, and is not
    /// given up.
    fn give_no_hope(&mut self, subject: &Subject) {
        let Some(writing) = self.writings.get_mut(subject) else { return };
        if let Some((_, answer)) = &writing.in_flight {
            answer.one_is(Err(ErrorCode::Timeout.error(UNSETTLED)));
        }
        writing.refuse_all(&away("the log of the cluster takes nothing for now: try again"));
    }

    /// A key stands for another run. Who waits is told once the store has that run, to be able to find it.
    fn taken(&mut self, answer: Answer) {
        let engine = Rc::clone(&self.engine);
        self.awaited.add(async move { engine.extent().await }, |cluster, extent, _| match extent {
            Ok(extent) => {
                cluster.taken.push((extent.last.0, answer));
                cluster.answer_taken();
            }
            Err(why) => answer.one_is(Err(away(&format!("the log can't be asked whose a key is: {why}")))),
        });
    }

    fn answer_taken(&mut self) {
        for (_, answer) in self.taken.extract_if(.., |(last, _)| *last <= self.applied) {
            let why = "the idempotency key stands for another run already";
            answer.one_is(Err(ErrorCode::Conflict.error(why)));
        }
    }

    /// The store has the log up to here.
    fn progressed(&mut self, applied: u64, ctx: &mut Context<Self>) {
        if applied > self.applied {
            self.outlook.goes_on();
        }
        self.applied = self.applied.max(applied);
        self.progress.send_replace(self.applied);
        self.look_whether_whole(ctx);
        self.answer_taken();
    }

    fn outdone(&mut self, subject: &Subject) {
        if let Some(writing) = self.writings.get_mut(subject) {
            writing.refuse_all(&not_owner(OTHER_OWNER));
        }
    }

    fn flows(&mut self, subject: &Subject) {
        if self.stalled.remove(subject) && self.stalled.is_empty() {
            tracing::info!("cluster: the log is written again");
        }
    }

    /// The store has applied a record.
    fn fed(&mut self, followed: Followed, outcome: Replayed, ctx: &mut Context<Self>) {
        self.progressed(followed.position, ctx);
        if let Replayed::Made(Some(changed)) = &outcome {
            match changed.head {
                Some(_) => self.settings.lanes.changed(&changed.session, &changed.lanes),
                None => self.settings.lanes.deleted(&changed.session),
            }
        }
        self.tell_of_change(followed.stamp, &outcome);
        if outcome == Replayed::Known {
            // It was applied when the log was followed before, and that was not heard.
            self.sessions.has_missed();
        }
        let is_made = matches!(outcome, Replayed::Made(_));
        let is_told = self.answer(&followed, outcome, ctx);
        if is_made && !is_told {
            self.tell_who_keeps(&followed);
        }
    }

    /// Tells whoever asked for the change of this record here, and says whether anybody still waited for that.
    fn answer(&mut self, followed: &Followed, outcome: Replayed, ctx: &mut Context<Self>) -> bool {
        let Followed { subject: name, position, stamp, .. } = followed;
        let Some(subject) = self.awake.get(name).cloned() else { return false };
        let (position, stamp) = (*position, stamp.unwrap_or(NO_STAMP));
        self.tell(&subject, News::Applied(Sequence(position), stamp), ctx);
        let Some(writing) = self.writings.get_mut(&subject) else { return false };
        // It may be the last one under a token that is lost by now.
        let in_flight = writing.in_flight.take_if(|(in_flight, _)| *in_flight == stamp);
        let Some((_, answer)) = in_flight else {
            if let Some((answer, blob)) = writing.give_up_before(stamp) {
                answer.one_is(Err(not_owner("the change was not made: try again")));
                blob.into_iter().for_each(|blob| self.remove_blob(blob));
            }
            self.proceed(&subject, ctx);
            return false;
        };
        if matches!(outcome, Replayed::Refused(_)) {
            writing.failed();
        }
        if matches!(writing.stage, Stage::Asleep) {
            self.awake.remove(name);
            self.restless.insert(subject.clone());
        }
        let is_awaited = answer.is_awaited();
        answer.one_is(match outcome {
            Replayed::Made(_) | Replayed::Known => Ok(()),
            Replayed::Refused(error) => Err(error),
        });
        self.proceed(&subject, ctx);
        is_awaited
    }

    /// Tells those who keep in memory what this record changed, since nobody here knows of it.
    fn tell_who_keeps(&mut self, Followed { subject, stamp, record, .. }: &Followed) {
        let table = self.engine.table_of(subject);
        let token = stamp.map(|stamp| stamp.token);
        let is_ours = match table {
            Some(_) => token == self.epoch,
            None => token.is_some_and(|token| self.own.contains(&token)),
        };
        let spent = || Some(Record::usage_of(record)).filter(|records| !records.is_empty());
        let changed = match table {
            Some(table) if table != "calls" => Some(ChangedElsewhere::Table(table)),
            // What this process wrote for its sessions it knows, and what it spent it counted when it did.
            _ if is_ours => None,
            None if Record::may_say(record) => Some(ChangedElsewhere::Table("channels")),
            _ => spent().map(ChangedElsewhere::Usage),
        };
        if let Some(changed) = changed {
            self.awaited.add(self.store.send(changed), |_, _, _| {});
        }
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        self.own(Input::Tick, ctx);
        self.locate_again(ctx);
        self.sessions.tell_of_missed();
        self.put_some_to_sleep(ctx);
        let now = now_ms();
        for subject in std::mem::take(&mut self.restless) {
            let Some(writing) = self.writings.get_mut(&subject) else { continue };
            match &writing.stage {
                Stage::Awake(appender) => {
                    let Some(deadline) = appender.deadline_ms() else { continue };
                    if deadline <= now {
                        self.tell(&subject, News::Tick, ctx);
                    } else {
                        self.restless.insert(subject);
                    }
                }
                Stage::Asking => {}
                Stage::Asleep => self.wait_or_refuse(&subject, now, ctx),
            }
        }
    }

    /// A subject whose slot is not ours waits for it for a while, where nobody has it; a table until this daemon has
    /// joined.
    fn wait_or_refuse(&mut self, subject: &Subject, now: u64, ctx: &mut Context<Self>) {
        let Some(writing) = self.writings.get(subject) else { return };
        if self.token(writing).is_some() {
            return self.proceed(subject, ctx);
        }
        let Some(writing) = self.writings.get_mut(subject) else { return };
        let owner = writing.slot.and_then(|slot| self.ownership.owner(slot));
        let owner = owner.filter(|owner| **owner != self.settings.node);
        let waited = writing.waits_since_ms.map_or(0, |since| now.saturating_sub(since));
        if let Some(owner) = owner {
            writing.refuse_all(&not_owner(&format!("it is owned by {owner}, another daemon of the cluster")));
        } else if waited >= SLOT_WAIT_MS {
            writing.refuse_all(&match writing.slot {
                Some(_) => {
                    not_owner("no daemon of the cluster owns it, and this one could not take it: try again")
                }
                None => away("this daemon has not joined its cluster yet: try again"),
            });
        }
        match writing.is_idle() {
            true => drop(self.writings.remove(subject)),
            false => drop(self.restless.insert(subject.clone())),
        }
    }

    /// Puts some of those to sleep that have nothing to write, where there are many.
    fn put_some_to_sleep(&mut self, ctx: &mut Context<Self>) {
        if self.awake.len() <= AWAKE_MAX {
            return;
        }
        let idle =
            self.awake.values().filter(|subject| self.writings.get(subject).is_some_and(Writing::is_idle));
        for subject in idle.take(SLEEPS_MAX).cloned().collect::<Vec<_>>() {
            self.tell(&subject, News::Close, ctx);
        }
    }

    /// What the store has applied meanwhile is not known: every subject begins anew from what it has then. A record
    /// that is on its way may be in the log all the same.
    fn forget_what_is_awake(&mut self) {
        self.awake.clear();
        self.stalled.clear();
        for (subject, writing) in &mut self.writings {
            if let Some((_, answer)) = writing.in_flight.take() {
                let why = "the store did not apply the change in time: whether it was made is not known";
                writing.failed();
                answer.one_is(Err(ErrorCode::Timeout.error(why)));
            }
            writing.stage = Stage::Asleep;
            self.restless.insert(subject.clone());
        }
    }

    fn follow_later(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.is_to_follow, true) {
            return;
        }
        if let Some(following) = self.following.take() {
            ctx.cancel_future(following);
        }
        self.figures.followed_anew += 1;
        ctx.notify_later(Follow, PAUSE);
    }
}

/// Has the store apply these records of the log, which come `after` this one, in their order.
fn applied(
    store: Addr<Store>,
    mut after: u64,
    records: impl Stream<Item = Result<Whole, NotFed>>,
) -> impl Stream<Item = impl Future<Output = Result<(Followed, Replayed), NotFed>>> {
    records.map(move |whole| {
        let replayed = whole.map(|whole| {
            let content = whole.content();
            let Whole { record, whole, room } = whole;
            let position = record.sequence.0;
            let followed = Followed {
                subject: record.subject.clone(),
                position,
                stamp: Record::stamp_of(&record.record),
                record: content,
                _room: room,
            };
            let (subject, record) = (record.subject, record.record);
            let replay = Replay { position, after, subject, record, whole };
            after = position;
            (followed, store.send(replay))
        });
        async move {
            let (followed, replayed) = replayed?;
            match replayed.await {
                Ok(Ok(outcome)) => Ok((followed, outcome)),
                Ok(Err(error)) => Err(NotFed::Store(error.message)),
                Err(_) => Err(NotFed::Store("it has stopped".to_owned())),
            }
        }
    })
}

/// What a record is taken for whose stamp can't be read: none of an owner's.
const NO_STAMP: Stamp = Stamp { token: Token(0), record: RecordId(0) };

fn stamp_of(record: &Bytes) -> Stamp {
    Record::stamp_of(record).unwrap_or(NO_STAMP)
}

fn now_ms() -> u64 {
    clock::now().as_millis()
}

fn too_large(bytes: usize) -> Error {
    let why = format!("it is a record of {bytes} bytes, and a cluster takes {LARGE_BYTES_MAX}");
    ErrorCode::TooLarge.error(why)
}

fn away(why: &str) -> Error {
    ErrorCode::Unavailable.error(why)
}

fn not_owner(why: &str) -> Error {
    away(why).with(Detail::NotOwner)
}

impl Awaits for Cluster {
    fn awaited(&mut self) -> &mut Awaited<Self> {
        &mut self.awaited
    }
}

impl Actor for Cluster {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        Self::begin_to_wait(ctx);
        ctx.run_interval(TICK, |cluster, ctx| cluster.tick(ctx));
        self.begin_to_look(ctx);
        let engine = Rc::clone(&self.engine);
        self.awaited.add(async move { engine.heartbeats().await }, |_, heard, ctx| match heard {
            Ok(heard) => drop(ctx.add_stream(heard.map(Heard))),
            Err(why) => tracing::error!(why, "cluster: other daemons can't be heard"),
        });
        ctx.notify(Follow);
    }
}

impl Handler<Follow> for Cluster {
    type Result = ();

    fn handle(&mut self, _: Follow, _: &mut Self::Context) {
        let (store, engine) = (self.store.clone(), Rc::clone(&self.engine));
        let lanes = self.settings.lanes.clone();
        let followed = async move {
            let position = store.send(ReadPosition).await.map_err(|_| "the store has stopped".to_owned())?;
            let applied = position.map_err(|error| error.message)?.applied;
            // What is applied meanwhile is told once more.
            lanes.read(ask(&store, ReadLanes).await.flatten().map_err(|error| error.message)?);
            Ok::<_, String>((applied, engine.follow(Sequence(applied)).await?))
        };
        self.awaited.add(followed, |cluster, followed, ctx| match followed {
            Ok((applied, records)) => {
                cluster.is_to_follow = false;
                if applied > cluster.applied {
                    // Something was applied and nobody said so here: whoever keeps a table reads it.
                    for table in Subject::TABLES {
                        let changed = cluster.store.send(ChangedElsewhere::Table(table));
                        cluster.awaited.add(changed, |_, _, _| {});
                    }
                    // So it may be what somebody waits for.
                    cluster.forget_what_is_awake();
                    cluster.sessions.has_missed();
                }
                cluster.progressed(applied, ctx);
                let records = completed(Rc::clone(&cluster.engine), records, cluster.reads.clone());
                let fed = self::applied(cluster.store.clone(), applied, records);
                cluster.following = Some(ctx.add_stream(fed.buffered(REPLAYS_MAX).map(Fed)));
            }
            Err(why) => {
                tracing::debug!(why, "cluster: the log can't be followed");
                cluster.is_to_follow = false;
                cluster.follow_later(ctx);
            }
        });
    }
}

impl StreamHandler<Fed> for Cluster {
    fn handle(&mut self, Fed(fed): Fed, ctx: &mut Self::Context) {
        match fed {
            Ok((followed, outcome)) => self.fed(followed, outcome, ctx),
            // What was behind the record that failed.
            Err(_) if self.is_to_follow => {}
            Err(NotFed::Log(why)) => {
                tracing::warn!(why, "cluster: the log is followed anew");
                self.follow_later(ctx);
            }
            Err(NotFed::Blob(why)) => {
                let why = format!(
                    "{why}; where that is lost, `clawmux cluster rebuild` on the node whose store is furthest begins \
                     another log"
                );
                if self.outlook.is_held_up(&why) {
                    tracing::error!(why, "cluster: the store can't go on with the log; it is tried again");
                }
                self.follow_later(ctx);
            }
            Err(NotFed::Store(why)) => {
                if self.outlook.is_held_up(&why) {
                    tracing::error!(why, "cluster: the store can't apply the log; it is tried again");
                }
                self.outlook.is_able(false);
                self.forget_what_is_awake();
                self.follow_later(ctx);
            }
        }
    }

    /// The log ends only where the connection does.
    fn finished(&mut self, ctx: &mut Self::Context) {
        if self.following.is_some() {
            self.follow_later(ctx);
        }
    }
}

impl StreamHandler<Heard> for Cluster {
    fn handle(&mut self, Heard(beat): Heard, ctx: &mut Self::Context) {
        self.outlook.heard(&beat);
        self.own(Input::Heard(&beat.heartbeat), ctx);
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}

impl StreamHandler<Submission> for Cluster {
    fn handle(&mut self, submission: Submission, ctx: &mut Self::Context) {
        let subject = submission.change.subject();
        let writing = self.writings.entry(subject.clone()).or_insert_with(|| match &subject {
            Subject::Session(session) => {
                let slot = Slot::of(session);
                Writing::new(self.engine.session(session, slot), Some(slot))
            }
            Subject::Table(table) => Writing::new(self.engine.table(table), None),
        });
        writing.submit(submission);
        self.proceed(&subject, ctx);
    }

    /// The store has stopped.
    fn finished(&mut self, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<Leave> for Cluster {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<Observe> for Cluster {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf("cluster", self.state())
    }
}
