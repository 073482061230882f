//! A channel: conversations with people on a platform, through its adapter.
//!
//! ```text
//!  platform ──► inbox row ──► adapter: messages ──► who may write? ──► inbox rows, one a message
//!                                                         └─ nobody: a code, or nothing
//!  inbox row ──► prompt (its key is the row's) ──► in the session's log: inbox row gone
//!                    run ──► its end and the outbox row, at once (the session's doing)
//!  outbox row ──► adapter: requests ──► request after request ──► platform
//! ```
//!
//! Each arrow that must not be lost or taken twice is a transaction of the store, so a crash between two of them
//! goes on where it was: what was acknowledged is in the inbox, a prompt that was accepted is found again by its
//! key, and where its answer goes is a part of it. Messages of one conversation are prompted for one after the other,
//! and so are their answers sent ([`sending`]); conversations do not wait for each other.

mod adapter;
mod sending;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use actix_web::web::Bytes;
use clawmux_core::channel::admission::{Admission, Code, Entrance};
use clawmux_core::channel::{Answered, BODY_BYTES_MAX, Image, Incoming, Status};
use clawmux_core::config::{self, ChannelMode};
use clawmux_core::conversation::command::{SessionCommand, Submit};
use clawmux_core::conversation::event::{Event, Published};
use clawmux_core::conversation::outbox::ChannelAnswer;
use clawmux_core::conversation::reply::SessionReply;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, Ticket};
use clawmux_core::prompt::answer_to::AnswerTo;
use clawmux_core::prompt::attachment::{ATTACHMENT_BYTES_MAX, Attachment};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::request::reply::Reply;
use clawmux_core::swappable::Swappable;
use clawmux_core::target::Target;
use clawmux_core::time::{Timestamp, backoff};
use clawmux_core::tools::plugin::HttpRequest;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::outbound::fetch::Fetcher;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::{Deliver, cost};
use crate::runtime::line::{Begin, Line};
use crate::runtime::observe::{Observe, Observed};
use crate::runtime::say::{OutboxGrew, Say};
use crate::runtime::supervision::Guard;
use crate::sandbox_supervisor::{SandboxSupervisor, Tools};
use crate::session::AgentConfigs;
use crate::store::ledger::Ledger;
use crate::store::{ChannelChange, ChannelState, OutboxRow, ReadChannel, Saying, SendState, Store, Words};

use adapter::{Adapter, patiently};
use sending::{Fared, Flights, Sender};

/// Conversations whose next message is prompted for at once.
const RUNNING_MAX: usize = 64;

/// Runs that are followed at once, so that their platform is told of them.
const FOLLOWED_MAX: usize = 64;

/// Answers on their way at once.
const SENDING_MAX: usize = 16;

/// Deliveries and requests that may wait.
const MAILBOX: usize = 2048;

/// How soon a line that fell too far behind is noticed.
const LAG_CHECK: Duration = Duration::from_secs(5);

/// How often something that can't be done for the moment is tried, for a day; and the pause after it, times how often
/// it was.
const ATTEMPTS_MAX: u32 = 8640;
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The longest pause between questions to a platform that does not answer.
const POLL_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often a platform is told that an answer is under way, and how many times at most.
const TYPING: Duration = Duration::from_secs(5);
const TYPING_MAX: usize = 120;

/// How long requests that are on their way may take when the daemon stops, and how often that is looked at.
const LAND_MAX: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(20);

/// How long an image may take.
const IMAGE_MAX: Duration = Duration::from_secs(60);

/// So much is kept of why something failed, in characters.
const ERROR_CHARS_MAX: usize = 300;

/// What all channels share.
#[derive(Clone)]
pub struct Surroundings {
    /// Keeps what came in and is yet to be sent.
    pub store: Addr<Store>,
    /// The adapters.
    pub sandbox: Addr<SandboxSupervisor>,
    /// Where they are found.
    pub tools: Tools,
    /// Sends requests.
    pub fetcher: Fetcher,
    /// Who answers whom.
    pub agent_configs: Arc<Swappable<AgentConfigs>>,
}

/// A platform said this; durable when answered.
///
/// Errors: `Unavailable` where too much waits already.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Receive(pub String);

/// Lets somebody in who was told this code; answered with who that is.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<String, Error>")]
pub struct LetIn(pub String);

/// Lets somebody in no more.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct ShutOut(pub String);

/// What becomes of an answer that could not be sent, by its number.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub enum Unsent {
    /// It is sent from the request on that failed.
    Resend(i64),
    /// It is forgotten.
    Drop(i64),
}

/// See the module.
pub struct Channel {
    config: config::Channel,
    owner: Owner,
    around: Surroundings,
    line: Line<Waiting>,
    admission: Admission,
    cursor: Option<String>,
    /// Whether it is known who is let in.
    is_ready: bool,
    /// Up to where inbox and outbox were read.
    read: (i64, i64),
    is_reading: bool,
    /// Whether there is more to read than what is being read.
    reads_again: bool,
    /// What a platform said and no adapter has seen yet.
    raw: VecDeque<(i64, String)>,
    is_parsing: bool,
    /// Messages that wait, by conversation.
    messages: BTreeMap<String, VecDeque<(i64, Incoming)>>,
    /// Those that are prompted for, one a conversation.
    running: HashMap<String, Running>,
    /// Runs that are followed, and what tells their platform of them.
    followed: HashMap<Ticket, SpawnHandle>,
    /// Answers that wait, by conversation.
    outbox: BTreeMap<String, VecDeque<OutboxRow>>,
    sending: HashSet<String>,
    flights: Flights,
    /// Whether anything new is begun.
    is_open: bool,
    /// Which round of questions to the platform goes on: an earlier one ends.
    round: u64,
    /// Answers that could not be sent, by number.
    unsent: BTreeMap<i64, OutboxRow>,
    figures: Figures,
    _guard: Guard,
}

/// A request to the sessions: which conversation's, and for which row of the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    conversation: String,
    id: i64,
}

/// A message that is prompted for.
struct Running {
    id: i64,
    message: Arc<Incoming>,
    attachments: Vec<Attachment>,
    /// How often it was asked for.
    attempt: u32,
}

#[derive(Default)]
struct Figures {
    received: u64,
    shut_out: u64,
    answered: u64,
    sent: u64,
    last_error: Option<(String, Timestamp)>,
}

impl Channel {
    /// The channel of this entry; goes on with what waits when started.
    pub fn new(config: config::Channel, around: Surroundings, sessions: Begin, guard: Guard) -> Self {
        let owner = Owner::of_channel(&config.name);
        let admission =
            Admission { allow: config.allow.clone(), is_pairing: config.is_pairing, ..Admission::default() };
        Self {
            config,
            owner,
            around,
            line: Line::new("channel", sessions),
            admission,
            cursor: None,
            is_ready: false,
            read: (0, 0),
            is_reading: false,
            reads_again: false,
            raw: VecDeque::new(),
            is_parsing: false,
            messages: BTreeMap::new(),
            running: HashMap::new(),
            followed: HashMap::new(),
            outbox: BTreeMap::new(),
            sending: HashSet::new(),
            flights: Flights::default(),
            is_open: true,
            round: 0,
            unsent: BTreeMap::new(),
            figures: Figures::default(),
            _guard: guard,
        }
    }

    fn adapter(&self) -> Adapter {
        Adapter {
            channel: self.config.name.as_str().into(),
            name: self.config.adapter.clone(),
            owner: self.owner.clone(),
            answer_url: self.config.answer_url.as_deref().map(Arc::from),
            sandbox: self.around.sandbox.clone(),
            tools: self.around.tools.clone(),
        }
    }

    fn sender(&self) -> Sender {
        Sender {
            adapter: self.adapter(),
            fetcher: self.around.fetcher.clone(),
            ledger: self.ledger(),
            flights: self.flights.clone(),
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger { channel: self.config.name.as_str().into(), store: self.around.store.clone() }
    }

    fn write(&self, changes: Vec<ChannelChange>) -> impl Future<Output = Result<(), Error>> + use<> {
        let ledger = self.ledger();
        async move { ledger.try_write(changes).await }
    }

    /// Keeps why something failed.
    fn note(&mut self, why: &str) {
        self.figures.last_error = Some((shortened(why), clock::now()));
    }

    /// Reads what is in the store and not here yet.
    fn refill(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.is_reading, true) {
            self.reads_again = true;
            return;
        }
        let (store, (inbox_after, outbox_after)) = (self.around.store.clone(), self.read);
        let read = ReadChannel { channel: self.config.name.clone(), inbox_after, outbox_after };
        let read = async move { ask(&store, read).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|state, channel, ctx| {
            channel.is_reading = false;
            match state {
                Ok(state) => {
                    let has_more = channel.take(state, ctx);
                    if std::mem::take(&mut channel.reads_again) || has_more {
                        channel.refill(ctx);
                    }
                }
                Err(error) => {
                    channel.note(&error.message);
                    channel.reads_again = false;
                    ctx.run_later(RETRY_MAX, |channel, ctx| channel.refill(ctx));
                }
            }
        }));
    }

    /// Takes in what was read; whether there was anything new.
    fn take(&mut self, state: ChannelState, ctx: &mut Context<Self>) -> bool {
        let ChannelState { cursor, inbox, outbox, peers, codes } = state;
        (self.cursor, self.admission.paired, self.admission.codes) = (cursor, peers, codes);
        self.is_ready = true;
        let has_more = !inbox.is_empty() || !outbox.is_empty();
        let mut unreadable = Vec::new();
        for row in inbox {
            self.read.0 = row.id;
            if !row.is_message {
                self.raw.push_back((row.id, row.body));
                continue;
            }
            match Incoming::read(&row.body).ok().and_then(|messages| messages.into_iter().next()) {
                Some(message) => {
                    let waiting = self.messages.entry(message.conversation()).or_default();
                    waiting.push_back((row.id, message));
                }
                None => unreadable.push(ChannelChange::Taken(row.id)),
            }
        }
        for row in outbox {
            self.read.1 = row.id;
            match &row.state {
                SendState::Waits(_) => {
                    self.figures.answered += u64::from(matches!(row.words, Words::Answer(_)));
                    self.outbox.entry(row.conversation.clone()).or_default().push_back(row);
                }
                SendState::Sending => {
                    let why = "the daemon was stopped while it was being sent".to_owned();
                    let (channel, answer) = (self.config.name.as_str(), row.id);
                    tracing::warn!(%channel, answer, "an answer may have been sent or not: it is not sent again");
                    unreadable.push(ChannelChange::Send(row.id, SendState::Unknown(why.clone())));
                    self.unsent.insert(row.id, OutboxRow { state: SendState::Unknown(why), ..row });
                }
                SendState::Failed(_) | SendState::Unknown(_) => {
                    self.unsent.insert(row.id, row);
                }
            }
        }
        if !unreadable.is_empty() {
            let written = self.write(unreadable);
            ctx.spawn(written.into_actor(self).map(|written, channel, _| {
                if let Err(error) = written {
                    channel.note(&error.message);
                }
            }));
        }
        self.parse_next(ctx);
        self.run_next(ctx);
        self.send_next(ctx);
        has_more
    }

    /// Has the adapter read what its platform said, in order.
    fn parse_next(&mut self, ctx: &mut Context<Self>) {
        if self.is_parsing || !self.is_open {
            return;
        }
        let Some((id, body)) = self.raw.pop_front() else { return };
        self.is_parsing = true;
        let (adapter, admission) = (self.adapter(), self.admission.clone());
        let (agent_configs, ledger) = (self.around.agent_configs.clone(), self.ledger());
        let channel = self.config.name.clone();
        let parsed = async move {
            let (messages, failed) = match patiently(async || adapter.parse(&body).await).await {
                Ok(messages) => (messages, None),
                Err(why) => (Vec::new(), Some(why)),
            };
            let (received, mut shut_out, mut untold) = (messages.len(), 0, None);
            let (mut kept, mut changes) = (Vec::new(), Vec::new());
            let (mut admission, now) = (admission, clock::now());
            for message in messages {
                let is_bound = agent_configs.get().router.is_bound(&message.route(&channel));
                match admission.of(message.names(), is_bound, now, clock::random()) {
                    Entrance::Open => kept.push((message.id.clone(), message.to_json())),
                    Entrance::Shut => shut_out += 1,
                    Entrance::Tell { name, code } => {
                        shut_out += 1;
                        let told = tell(&channel, &code);
                        match adapter.format(&message, &told).await {
                            Ok(requests) => {
                                changes.push(ChannelChange::Tell(name.clone(), code.clone()));
                                let words = Words::Requests(requests.to_json());
                                changes.push(ChannelChange::Say(saying(&message, words)));
                            }
                            Err(why) => {
                                untold = Some(format!("{name} wrote first and can't be told a code: {why}"))
                            }
                        }
                        admission.codes.insert(name, Code { code, told: now });
                    }
                }
            }
            changes.extend(admission.expired(now).into_iter().map(ChannelChange::Forget));
            changes.push(ChannelChange::Parsed(id, kept));
            // What it says is not lost: it is written down before the next one is looked at.
            ledger.write(changes, |_| {}).await;
            (received, shut_out, failed, untold, admission.codes)
        };
        ctx.spawn(parsed.into_actor(self).map(|(received, shut_out, failed, untold, codes), channel, ctx| {
            channel.is_parsing = false;
            // The next one is held against them before they are read back.
            channel.admission.codes = codes;
            channel.figures.received += received as u64;
            channel.figures.shut_out += shut_out;
            if let Some(why) = untold {
                channel.note(&why);
                tracing::warn!(channel = %channel.config.name, error = ?shortened(&why), "a pairing code was not told");
            }
            if let Some(why) = failed {
                channel.note(&why);
                let name = channel.config.name.as_str();
                tracing::warn!(channel = %name, error = ?shortened(&why), "what a platform said was not understood: it is dropped");
            }
            channel.refill(ctx);
            channel.parse_next(ctx);
        }));
    }

    /// Prompts for the next message of each conversation that is not being answered.
    fn run_next(&mut self, ctx: &mut Context<Self>) {
        let room = if self.is_open { RUNNING_MAX.saturating_sub(self.running.len()) } else { 0 };
        let is_idle = |conversation: &&String| !self.running.contains_key(*conversation);
        let next: Vec<String> = self.messages.keys().filter(is_idle).take(room).cloned().collect();
        for conversation in next {
            let Some(waiting) = self.messages.get_mut(&conversation) else { continue };
            let Some((id, message)) = waiting.pop_front() else { continue };
            if waiting.is_empty() {
                self.messages.remove(&conversation);
            }
            let message = Arc::new(message);
            let running = Running { id, message: Arc::clone(&message), attachments: Vec::new(), attempt: 0 };
            self.running.insert(conversation.clone(), running);
            if message.images.is_empty() {
                self.prompt(&conversation, ctx);
                continue;
            }
            let (adapter, fetcher) = (self.adapter(), self.around.fetcher.clone());
            let fetched = async move { images(&adapter, &fetcher, &message.images).await };
            ctx.spawn(fetched.into_actor(self).map(move |(attachments, failed), channel, ctx| {
                if let Some(why) = failed {
                    channel.note(&why);
                }
                if let Some(running) = channel.running.get_mut(&conversation) {
                    running.attachments = attachments;
                }
                channel.prompt(&conversation, ctx);
            }));
        }
    }

    fn prompt(&mut self, conversation: &str, ctx: &mut Context<Self>) {
        let Some(running) = self.running.get_mut(conversation) else { return };
        let answer_to = AnswerTo {
            channel: self.config.name.clone(),
            conversation: conversation.to_owned(),
            address: running.message.address(),
        };
        let submit = SessionCommand::Submit(Submit {
            target: Target::Route(running.message.route(&self.config.name)),
            run: RunId::from_random(clock::random()),
            content: running.message.content.clone(),
            idempotency_key: Some(format!("inbox {}", running.id)),
            attachments: running.attachments.clone(),
            files: Vec::new(),
            local_files: Vec::new(),
            run_options: RunOptions { answer_to: Some(Arc::new(answer_to)), ..RunOptions::default() },
            follow: self.followed.len() < FOLLOWED_MAX,
        });
        let waiting = Waiting { conversation: conversation.to_owned(), id: running.id };
        let to = ctx.address().recipient();
        if self.line.ask(self.owner.clone(), submit, waiting.clone(), to).is_err() {
            self.refused(&waiting, ErrorCode::Unavailable.error("the daemon is busy"), ctx);
        }
    }

    /// The message that a request was for, where it is still being answered.
    fn running(&mut self, waiting: &Waiting) -> Option<&mut Running> {
        self.running.get_mut(&waiting.conversation).filter(|running| running.id == waiting.id)
    }

    fn refused(&mut self, waiting: &Waiting, error: Error, ctx: &mut Context<Self>) {
        let Some(running) = self.running(waiting) else { return };
        if error.is_retryable() && running.attempt < ATTEMPTS_MAX {
            running.attempt += 1;
            let delay = (RETRY * running.attempt).min(RETRY_MAX);
            let waiting = waiting.clone();
            ctx.run_later(delay, move |channel, ctx| {
                if channel.running(&waiting).is_some() {
                    channel.prompt(&waiting.conversation, ctx);
                }
            });
            return;
        }
        self.note(&error.message);
        let refused = ChannelAnswer::refused(&waiting.id.to_string(), &error);
        let say = |running: &mut Running| saying(&running.message, Words::Answer(refused.to_json()));
        let said = self.running(waiting).map(say).map(ChannelChange::Say);
        self.taken(waiting, said, ctx);
    }

    fn replied(&mut self, ticket: Ticket, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        match reply {
            Ok(Reply::Session(SessionReply::Accepted(accepted))) => {
                let Some(waiting) = self.line.waiting(ticket).cloned() else { return };
                if accepted.is_over || self.followed.len() >= FOLLOWED_MAX {
                    let _ = self.line.over(ticket);
                } else {
                    self.show_typing(ticket, &waiting, ctx);
                }
                self.taken(&waiting, None, ctx);
            }
            reply => {
                let Some(waiting) = self.line.over(ticket) else { return };
                if let Err(error) = reply {
                    self.refused(&waiting, error, ctx);
                }
            }
        }
    }

    /// Tells the platform, as long as an answer is under way. Nothing depends on it.
    fn show_typing(&mut self, ticket: Ticket, waiting: &Waiting, ctx: &mut Context<Self>) {
        let sender = self.sender();
        let Some(running) = self.running(waiting) else { return };
        let message = Arc::clone(&running.message);
        let told = async move {
            for _ in 0..TYPING_MAX {
                let Ok(Some(requests)) = sender.adapter.typing(&message).await else { return };
                sender.send_lightly(&requests).await;
                sleep(TYPING).await;
            }
        };
        let typing = ctx.spawn(told.into_actor(self));
        self.followed.insert(ticket, typing);
    }

    fn heard(&mut self, ticket: Ticket, event: &Published, ctx: &mut Context<Self>) {
        self.line.taken(cost(event));
        if matches!(event.logged.event, Event::Ended { .. }) {
            let _ = self.line.over(ticket);
            if let Some(typing) = self.followed.remove(&ticket) {
                ctx.cancel_future(typing);
            }
        }
    }

    /// A message is done with here: its prompt is in the log, or this is said instead.
    fn taken(&mut self, waiting: &Waiting, said: Option<ChannelChange>, ctx: &mut Context<Self>) {
        let (ledger, waiting) = (self.ledger(), waiting.clone());
        let changes = said.into_iter().chain([ChannelChange::Taken(waiting.id)]).collect();
        let written = async move { ledger.write(changes, |_| {}).await };
        ctx.spawn(written.into_actor(self).map(move |(), channel, ctx| {
            if channel.running(&waiting).is_some() {
                channel.running.remove(&waiting.conversation);
            }
            channel.refill(ctx);
            channel.run_next(ctx);
        }));
    }

    /// Sends the next answer of each conversation.
    fn send_next(&mut self, ctx: &mut Context<Self>) {
        let room = if self.is_open { SENDING_MAX.saturating_sub(self.sending.len()) } else { 0 };
        let is_idle = |conversation: &&String| !self.sending.contains(*conversation);
        let next: Vec<String> = self.outbox.keys().filter(is_idle).take(room).cloned().collect();
        for conversation in next {
            let Some(waiting) = self.outbox.get_mut(&conversation) else { continue };
            let Some(row) = waiting.pop_front() else { continue };
            if waiting.is_empty() {
                self.outbox.remove(&conversation);
            }
            self.sending.insert(conversation.clone());
            let (sender, address) = (self.sender(), ctx.address());
            let sent = async move {
                let fared =
                    sender.send(row.clone(), |why| drop(address.try_send(Paused(why.to_owned())))).await;
                (row, fared)
            };
            ctx.spawn(sent.into_actor(self).map(move |(row, fared), channel, ctx| {
                channel.sending.remove(&conversation);
                match fared {
                    Fared::Sent => channel.figures.sent += 1,
                    Fared::Stopped(next, state) => {
                        if let SendState::Failed(why) | SendState::Unknown(why) = &state {
                            channel.note(why);
                            let (name, answer) = (channel.config.name.as_str(), row.id);
                            tracing::warn!(channel = %name, answer, error = ?shortened(why), "an answer was not sent");
                        }
                        channel.unsent.insert(row.id, OutboxRow { next, state, ..row });
                    }
                }
                channel.send_next(ctx);
            }));
        }
    }

    /// Asks the platform for what it has to say, again and again.
    fn poll(&mut self, round: u64, failures: u32, ctx: &mut Context<Self>) {
        let ChannelMode::Poll(interval) = self.config.mode else { return };
        if round != self.round || !self.is_open {
            return;
        }
        let (adapter, cursor) = (self.adapter(), self.cursor.clone());
        let ledger = self.ledger();
        let polled = async move {
            let fetched = adapter.poll(cursor.as_deref()).await?;
            let next = fetched.cursor.to_string();
            let updates = fetched.updates.iter().map(ToString::to_string);
            let mut changes: Vec<ChannelChange> =
                updates.filter(|text| text.len() <= BODY_BYTES_MAX).map(ChannelChange::Receive).collect();
            if changes.is_empty() && (fetched.cursor.is_null() || cursor.as_ref() == Some(&next)) {
                return Ok((false, cursor));
            }
            let has_news = !changes.is_empty();
            changes.push(ChannelChange::Advance(next.clone()));
            ledger.try_write(changes).await.map_err(|error| error.message)?;
            Ok((has_news, Some(next)))
        };
        ctx.spawn(polled.into_actor(self).map(move |polled: Result<_, String>, channel, ctx| {
            if round != channel.round {
                // What it has brought is in the store; the next round reads from there how far it got.
                return channel.refill(ctx);
            }
            let pause = match polled {
                Ok((has_news, cursor)) => {
                    channel.cursor = cursor;
                    if has_news {
                        channel.refill(ctx);
                    }
                    ctx.run_later(interval, move |channel, ctx| channel.poll(round, 0, ctx));
                    return;
                }
                Err(why) => {
                    if failures == 0 {
                        let name = channel.config.name.as_str();
                        tracing::warn!(channel = %name, error = ?shortened(&why), "the platform can't be asked for messages: it is tried again");
                    }
                    channel.note(&why);
                    backoff(interval, failures, POLL_PAUSE_MAX.max(interval))
                }
            };
            ctx.run_later(pause, move |channel, ctx| channel.poll(round, failures.saturating_add(1), ctx));
        }));
    }
}

fn shortened(why: &str) -> String {
    why.chars().take(ERROR_CHARS_MAX).collect()
}

/// What is said where this message came from.
fn saying(message: &Incoming, words: Words) -> Saying {
    Saying { conversation: message.conversation(), address: message.address(), words }
}

/// What a stranger is told.
fn tell(channel: &str, code: &str) -> Answered {
    let content = format!(
        "You are not known here yet. To be let in, have the operator run: clawmux channel pair {channel} {code}"
    );
    Answered { status: Status::Notice, content }
}

/// The images of a message, and why one could not be fetched.
async fn images(adapter: &Adapter, fetcher: &Fetcher, images: &[Image]) -> (Vec<Attachment>, Option<String>) {
    let (mut attachments, mut failed) = (Vec::new(), None);
    let rights = match adapter.rights().await {
        Ok(rights) => rights,
        Err(why) => return (attachments, Some(why)),
    };
    for image in images {
        let request = HttpRequest {
            method: http::Method::GET,
            url: image.url.clone(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        let fetched = timeout(IMAGE_MAX, fetcher.fetch(&rights, request, ATTACHMENT_BYTES_MAX)).await;
        let taken = match fetched {
            Ok(Ok(fetched)) if (200..300).contains(&fetched.status) => {
                let (name, mime) = (image.name.as_deref(), image.mime.as_deref());
                Attachment::new(name, mime, Bytes::from(fetched.body)).map_err(|error| error.message)
            }
            Ok(Ok(fetched)) => Err(format!("an image: HTTP {}", fetched.status)),
            Ok(Err(why)) => Err(format!("an image: {why}")),
            Err(_) => Err(format!("an image did not come within {} s", IMAGE_MAX.as_secs())),
        };
        match taken {
            Ok(attachment) => attachments.push(attachment),
            Err(why) => failed = Some(why),
        }
    }
    (attachments, failed)
}

impl Actor for Channel {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.refill(ctx);
        // Once it is known how far it had asked.
        ctx.run_later(RETRY, |channel, ctx| channel.begin_polling(0, ctx));
        ctx.run_interval(LAG_CHECK, |channel, ctx| {
            // Should it not have heard of what was put there.
            channel.refill(ctx);
            if channel.line.is_lagging() {
                tracing::warn!(channel = %channel.config.name, "the channel fell behind: it reads its runs again from the store");
                channel.line = channel.line.anew();
                for (_, typing) in channel.followed.drain() {
                    ctx.cancel_future(typing);
                }
                let running: Vec<String> = channel.running.keys().cloned().collect();
                for conversation in running {
                    channel.prompt(&conversation, ctx);
                }
            }
        });
    }
}

impl Channel {
    fn begin_polling(&mut self, round: u64, ctx: &mut Context<Self>) {
        if round == self.round && self.is_reading {
            ctx.run_later(RETRY, move |channel, ctx| channel.begin_polling(round, ctx));
        } else {
            self.poll(round, 0, ctx);
        }
    }
}

/// From now on the channel is like this; none = nothing new is begun until it is there again. What is under way
/// goes on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Configure(pub Option<config::Channel>);

/// Nothing new is begun any more; answered when of every request that went it is written down what became of it,
/// or after a while. Then it ends.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Land;

impl Handler<Configure> for Channel {
    type Result = ();

    fn handle(&mut self, Configure(config): Configure, ctx: &mut Self::Context) {
        self.round += 1;
        self.is_open = config.is_some();
        let Some(config) = config else { return };
        self.admission.allow.clone_from(&config.allow);
        self.admission.is_pairing = config.is_pairing;
        self.config = config;
        self.refill(ctx);
        let round = self.round;
        ctx.run_later(RETRY, move |channel, ctx| channel.begin_polling(round, ctx));
    }
}

impl Handler<Land> for Channel {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: Land, _: &mut Self::Context) -> Self::Result {
        self.round += 1;
        self.is_open = false;
        self.flights.ground(true);
        let flights = self.flights.clone();
        let landed = async move {
            let over = async {
                while !flights.are_over() {
                    sleep(LOOK).await;
                }
            };
            let _ = timeout(LAND_MAX, over).await;
        };
        Box::pin(landed.into_actor(self).map(|(), _, ctx| ctx.stop()))
    }
}

impl Handler<OutboxGrew> for Channel {
    type Result = ();

    fn handle(&mut self, _: OutboxGrew, ctx: &mut Self::Context) {
        self.refill(ctx);
    }
}

/// Why an answer has to wait.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Paused(String);

impl Handler<Paused> for Channel {
    type Result = ();

    fn handle(&mut self, Paused(why): Paused, _: &mut Self::Context) {
        self.note(&why);
    }
}

impl Handler<Deliver> for Channel {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => self.replied(ticket, reply, ctx),
            Deliver::Event { ticket, event, .. } => self.heard(ticket, &event, ctx),
            Deliver::Announced | Deliver::Progress(..) | Deliver::Invoke(_) => {}
        }
    }
}

impl Handler<Receive> for Channel {
    type Result = ResponseActFuture<Self, Result<(), Error>>;

    fn handle(&mut self, Receive(body): Receive, _: &mut Self::Context) -> Self::Result {
        let written = self.write(vec![ChannelChange::Receive(body)]);
        Box::pin(written.into_actor(self).map(|written, channel, ctx| {
            channel.refill(ctx);
            written
        }))
    }
}

impl Handler<Say> for Channel {
    type Result = ResponseActFuture<Self, Result<Owner, Error>>;

    fn handle(&mut self, say: Say, _: &mut Self::Context) -> Self::Result {
        let message = Incoming {
            content: String::new(),
            account: say.account,
            peer: Some(say.peer),
            guild: None,
            team: None,
            id: None,
            sender: None,
            context: Value::Null,
            images: Vec::new(),
        };
        if let Err(error) = self.may_say(&message) {
            return Box::pin(fut::ready(Err(error)));
        }
        let (adapter, ledger) = (self.adapter(), self.ledger());
        let said = async move {
            let answer = Answered { status: Status::Answer, content: say.text };
            let no_words = |why: String| ErrorCode::InvalidRequest.error(why);
            let requests = adapter.format(&message, &answer).await.map_err(no_words)?;
            if requests.is_empty() {
                return Err(no_words("the channel's adapter makes nothing of it".to_owned()));
            }
            let saying = saying(&message, Words::Requests(requests.to_json()));
            ledger.try_write(vec![ChannelChange::SayOnce(format!("said {}", say.id), saying)]).await
        };
        Box::pin(said.into_actor(self).map(|written, channel, ctx| {
            channel.refill(ctx);
            written.map(|()| channel.owner.clone())
        }))
    }
}

impl Channel {
    /// Whether something may be said where this message would come from.
    fn may_say(&self, message: &Incoming) -> Result<(), Error> {
        let name = &self.config.name;
        if !self.is_open || !self.is_ready {
            return Err(
                ErrorCode::Unavailable.error(format!("the channel {name} says nothing at the moment"))
            );
        }
        let is_bound = self.around.agent_configs.get().router.is_bound(&message.route(name));
        match self.admission.of(message.names(), is_bound, clock::now(), [0; 16]) {
            Entrance::Open => Ok(()),
            Entrance::Tell { .. } | Entrance::Shut => {
                let peer = message.peer.as_deref().unwrap_or_default();
                let peer = &peer[..peer.floor_char_boundary(64)];
                let why = format!("{peer:?} is not let in on the channel {name}, so nothing is said to them");
                Err(ErrorCode::Forbidden.error(why))
            }
        }
    }
}

impl Handler<LetIn> for Channel {
    type Result = ResponseActFuture<Self, Result<String, Error>>;

    fn handle(&mut self, LetIn(code): LetIn, _: &mut Self::Context) -> Self::Result {
        let Some(name) = self.admission.whose(&code, clock::now()).map(str::to_owned) else {
            let why =
                format!("nobody was told this code on the channel {} within the hour", self.config.name);
            return Box::pin(fut::ready(Err(ErrorCode::NotFound.error(why))));
        };
        let written =
            self.write(vec![ChannelChange::LetIn(name.clone()), ChannelChange::Forget(name.clone())]);
        Box::pin(written.into_actor(self).map(|written, channel, ctx| {
            written?;
            channel.admission.paired.insert(name.clone());
            channel.refill(ctx);
            Ok(name)
        }))
    }
}

impl Handler<ShutOut> for Channel {
    type Result = ResponseActFuture<Self, Result<(), Error>>;

    fn handle(&mut self, ShutOut(name): ShutOut, _: &mut Self::Context) -> Self::Result {
        if !self.admission.paired.contains(&name) {
            let why = format!("{name:?} was not let in on the channel {} with a code", self.config.name);
            return Box::pin(fut::ready(Err(ErrorCode::NotFound.error(why))));
        }
        let written = self.write(vec![ChannelChange::ShutOut(name.clone())]);
        Box::pin(written.into_actor(self).map(move |written, channel, _| {
            written?;
            channel.admission.paired.remove(&name);
            Ok(())
        }))
    }
}

impl Handler<Unsent> for Channel {
    type Result = ResponseActFuture<Self, Result<(), Error>>;

    fn handle(&mut self, unsent: Unsent, _: &mut Self::Context) -> Self::Result {
        let (Unsent::Resend(id) | Unsent::Drop(id)) = unsent;
        let Some(row) = self.unsent.get(&id).cloned() else {
            let why = format!("the channel {} has no answer {id} that was not sent", self.config.name);
            return Box::pin(fut::ready(Err(ErrorCode::NotFound.error(why))));
        };
        let change = match unsent {
            Unsent::Resend(_) => ChannelChange::Send(id, SendState::Waits(row.next)),
            Unsent::Drop(_) => ChannelChange::Sent(id),
        };
        let written = self.write(vec![change]);
        Box::pin(written.into_actor(self).map(move |written, channel, ctx| {
            written?;
            channel.unsent.remove(&id);
            if matches!(unsent, Unsent::Resend(_)) {
                let row = OutboxRow { state: SendState::Waits(row.next), made: clock::now(), ..row };
                channel.outbox.entry(row.conversation.clone()).or_default().push_back(row);
                channel.send_next(ctx);
            }
            Ok(())
        }))
    }
}

impl Handler<Observe> for Channel {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let waiting: usize = self.messages.values().map(VecDeque::len).sum();
        let unsent = self.unsent.values().map(|row| {
            let (state, why) = match &row.state {
                SendState::Unknown(why) => ("unknown", why.as_str()),
                SendState::Failed(why) => ("failed", why.as_str()),
                SendState::Waits(_) | SendState::Sending => ("waits", ""),
            };
            json!({ "answer": row.id, "state": state, "error": why, "made_ms": row.made.as_millis() })
        });
        let codes = self.admission.codes.iter();
        Observed::leaf(
            format!("channel {}", self.config.name),
            json!({
                "channel": self.config.name,
                "adapter": self.config.adapter.as_str(),
                "mode": match self.config.mode {
                    ChannelMode::Poll(_) => "poll",
                    ChannelMode::Webhook(_) => "webhook",
                },
                "pairing": if self.config.is_pairing { "code" } else { "off" },
                "allow": self.config.allow,
                "paired": self.admission.paired,
                "codes": codes.map(|(name, told)| json!({ "name": name, "told_ms": told.told.as_millis() }))
                    .collect::<Vec<_>>(),
                "inbox": self.raw.len() + waiting,
                "running": self.running.len() + self.followed.len(),
                "outbox": self.outbox.values().map(VecDeque::len).sum::<usize>() + self.sending.len(),
                "unsent": unsent.collect::<Vec<_>>(),
                "received_total": self.figures.received,
                "shut_out_total": self.figures.shut_out,
                "answered_total": self.figures.answered,
                "sent_total": self.figures.sent,
                "last_error": self.figures.last_error.as_ref().map(|(error, _)| error),
                "last_error_ms": self.figures.last_error.as_ref().map(|(_, at)| at.as_millis()),
            }),
        )
    }
}
