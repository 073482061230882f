//! A history: what clients, the provider, tools, the disk and crashes do, in an order that follows
//! from the seed; then quiet, in which everything has to come to its end.

use std::collections::VecDeque;
use std::rc::Rc;

use clawmux_core::conversation::approval::Verdict;
use clawmux_core::conversation::follow::Followers;
use clawmux_core::conversation::session::{Limits, Recovery};
use clawmux_core::conversation::turn::{CALLS_MAX, STEPS_MAX};
use clawmux_core::ids::{RunId, Seq};
use clawmux_core::provider::notice::{Notice, NoticeKind};
use clawmux_core::provider::thought::SignatureData;
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{Delta, Stop};
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::ToolCall;
use serde_json::{Value, json};

use crate::book::Stage;
use crate::clients::{Peer, Way};
use crate::dice::Dice;
use crate::driver::{Alteration, Doing, Driver, Ear, Message, Piece};
use crate::log::Refusal;
use crate::outside::{Cast, Figures, Outside, Request, Trace, Unit};
use crate::rules::{self, Check};

/// How many quiet steps may pass before everything is at its end.
const QUIET_STEPS_MAX: usize = 4_000;

/// What kind of a history it is: once in how many times something happens, 0 = never.
#[derive(Debug)]
struct Plan {
    steps: usize,
    recovery: Recovery,
    crash: usize,
    disk_failure: usize,
    tools: usize,
    unheard: usize,
    keys: usize,
    /// How many clients there are, and how many events each takes at a time.
    clients: usize,
    room: usize,
    /// The model calls tools that are not there, for ever.
    stubborn: bool,
    /// An answer of more pieces than numbers are reserved.
    flood: bool,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Submit,
    Resend,
    Abort,
    Alter,
    Decide,
    Expire,
    Deliver,
    Commit,
    Page,
    Sync,
    Hear,
    Return,
    Late,
    Read,
    Retry,
    Connect,
    Attach,
    Detach,
    Room,
    HangUp,
    Stop,
    Kill,
    LosePower,
    Panic,
    Drain,
    Sleep,
    Wake,
}

/// A history under way.
struct World<'a> {
    dice: Dice,
    plan: Plan,
    outside: Outside<'a>,
    driver: Option<Driver>,
    /// What waits for the session to wake.
    waiting: VecDeque<Message>,
    /// Who followed the session that ended.
    followers: Followers<Way>,
    /// The last number that a client saw, of those that are to come back.
    gone: Vec<Seq>,
    connections: u64,
    /// Whether the daemon itself is gone.
    dead: bool,
    incarnations: u32,
    quiet: bool,
    words: u64,
}

/// Plays one seed through.
pub(crate) fn play(seed: u64, cast: &Cast, trace: Option<&Trace>) -> Check<Figures> {
    let mut dice = Dice::new(seed);
    let plan = Plan {
        steps: 20 + dice.below(61),
        recovery: if dice.one_in(3) { Recovery::Interrupt } else { Recovery::Resume },
        crash: dice.pick(&[0, 4, 10, 20]),
        disk_failure: dice.pick(&[0, 0, 6, 20]),
        tools: dice.pick(&[0, 1, 2, 4]),
        unheard: dice.pick(&[0, 8, 20]),
        keys: dice.pick(&[1, 2, 4]),
        clients: 1 + dice.below(3),
        room: dice.pick(&[0, 1, 3, 1000]),
        stubborn: dice.one_in(256),
        flood: dice.one_in(4096),
    };
    let limits = Limits {
        queue: 1 + dice.below(4),
        episodic_turns: 1 + dice.below(3),
        context_tokens: dice.pick(&[20, 400, 100_000, 100_000]),
    };
    let mut outside = Outside::new(cast, limits, trace);
    outside.lag_bytes_max = dice.pick(&[usize::MAX, usize::MAX, 600]);
    outside.note(|| format!("seed {seed}: {plan:?}, {:?}", outside.limits));
    let mut world = World {
        dice,
        plan,
        outside,
        driver: None,
        waiting: VecDeque::new(),
        followers: Followers::default(),
        gone: Vec::new(),
        connections: 0,
        dead: false,
        incarnations: 0,
        quiet: false,
        words: 0,
    };
    for _ in 0..world.plan.steps {
        let step = world.choose();
        world.step(step)?;
    }
    world.come_to_rest()?;
    world.look_back()?;
    let mut figures = world.outside.figures;
    for logged in world.outside.log.events() {
        figures.print =
            figures.print.wrapping_mul(31).wrapping_add(rules::fingerprint(logged) ^ logged.seq.0);
    }
    Ok(figures)
}

impl World<'_> {
    /// What happens next, out of what can.
    fn choose(&mut self) -> Move {
        let mut weights = [(Move::Sync, 1); 27];
        let mut known = 1;
        let mut may = |weight: usize, what: Move| {
            if weight > 0 {
                weights[known] = (what, weight);
                known += 1;
            }
        };
        may(if self.outside.pipeline.is_empty() { 0 } else { 14 }, Move::Commit);
        if let Some(driver) = &self.driver {
            may(if driver.mailbox.is_empty() { 0 } else { 14 }, Move::Deliver);
            match &driver.doing {
                Doing::Asking { ear: Ear::Opening | Ear::Open, .. } => may(14, Move::Hear),
                Doing::Acting { open, .. } if !open.is_empty() => may(10, Move::Return),
                _ => {}
            }
            may(usize::from(!driver.session.page().is_empty()) * 4, Move::Page);
            let due = driver.session.deadline().is_some_and(|at| at <= self.outside.now);
            may(usize::from(due && !driver.draining) * 10, Move::Expire);
            may(if driver.late.is_empty() { 0 } else { 5 }, Move::Late);
            may(driver.reads.len() * 8, Move::Read);
            may(usize::from(driver.retrying) * 5, Move::Retry);
            may(usize::from(driver.is_done() && driver.followers.is_empty()) * 2, Move::Sleep);
        } else if self.outside.pipeline.is_empty() {
            may(14, Move::Wake);
        }
        let peers = &self.outside.peers;
        if !self.dead {
            let missed = self.quiet && !self.gone.is_empty();
            may(
                if missed || (!self.quiet && peers.len() < self.plan.clients) { 7 } else { 0 },
                Move::Connect,
            );
            may(if peers.iter().any(|peer| peer.is_full.get()) { 5 } else { 0 }, Move::Room);
            may(if peers.iter().any(|peer| peer.lags.get()) { 5 } else { 0 }, Move::HangUp);
        }
        if !self.quiet {
            if !self.dead && !peers.is_empty() {
                may(2, Move::Attach);
                may(1, Move::Detach);
                may(1, Move::HangUp);
                may(usize::from(self.dice.one_in(4)), Move::Stop);
                may(7, Move::Submit);
                may(if self.outside.requests.is_empty() { 0 } else { 4 }, Move::Resend);
                let waits = self.outside.log.book().running().is_some_and(|run| run.waits().next().is_some());
                may(if waits { 12 } else { 1 }, Move::Decide);
                may(3, Move::Abort);
                may(2, Move::Alter);
            }
            if let Some(driver) = &self.driver {
                let drains = !driver.draining && self.dice.one_in(3);
                may(usize::from(drains), Move::Drain);
            }
            if self.dice.one_in(self.plan.crash) {
                may(10, Move::Kill);
                may(10, Move::LosePower);
                may(if self.driver.is_some() { 10 } else { 0 }, Move::Panic);
            }
        }
        self.dice.weighed(&weights[..known])
    }

    fn step(&mut self, what: Move) -> Check {
        self.outside.now = Timestamp::from_millis(self.outside.now.as_millis() + 1);
        self.outside.figures.steps += 1;
        match what {
            Move::Submit => self.submit(),
            Move::Resend => self.resend(),
            Move::Abort => self.abort(),
            Move::Alter => self.alter(),
            Move::Decide => self.decide(),
            Move::Expire => return self.drive(|driver, outside| driver.expire(outside)),
            Move::Stop => self.send(Message::Stop),
            Move::Connect => self.connect(),
            Move::Attach => self.attach(),
            Move::Detach => self.detach(),
            Move::Room => self.make_room(),
            Move::HangUp => self.hang_up(),
            Move::Read => return self.read(),
            Move::Retry => {
                if let Some(driver) = &mut self.driver {
                    driver.retrying = false;
                    return driver.catch_up(&mut self.outside);
                }
            }
            Move::Deliver => return self.drive(|driver, outside| driver.receive(outside)),
            Move::Commit => return self.commit(),
            Move::Page => return self.drive(|driver, outside| driver.want_page(outside).map(|()| false)),
            Move::Sync => self.outside.log.sync(),
            Move::Hear => return self.hear(),
            Move::Return => return self.tool_returns(),
            Move::Late => return self.late(),
            Move::Kill => return self.kill(),
            Move::LosePower => return self.lose_power(),
            Move::Panic => return self.panic(),
            Move::Drain => {
                self.outside.figures.drains += 1;
                self.send(Message::Drain);
            }
            Move::Sleep => {
                self.outside.figures.sleeps += 1;
                self.outside.note(|| "the session sleeps".into());
                return self.end_session();
            }
            Move::Wake => return self.wake(),
        }
        Ok(())
    }

    // What clients do.

    fn submit(&mut self) {
        let number = self.outside.requests.len();
        let key = self.dice.one_in(self.plan.keys).then(|| format!("k{number}"));
        let owner = self.outside.cast.owners[usize::from(self.dice.one_in(4))].clone();
        self.request(Request { run: RunId::new(""), content: format!("p{number}"), owner, key });
    }

    /// A client that was not answered, or does not know, sends its prompt again under the same key;
    /// sometimes somebody else uses the same key.
    fn resend(&mut self) {
        let count = self.outside.requests.len();
        let mut request = self.outside.requests[self.dice.below(count)].clone();
        if request.key.is_some() {
            if self.dice.one_in(6) {
                request.owner = self.outside.cast.owners[self.dice.below(2)].clone();
            }
            self.request(request);
        }
    }

    /// To the session that has the key, else to the session: as the supervisor does it.
    fn request(&mut self, request: Request) {
        let number = self.outside.requests.len();
        let run = RunId::new(format!("r{number}"));
        let asker = self.peer().asker();
        let mut message = Message::Submit { request: number, asker: asker.clone() };
        if let Some(key) = &request.key {
            let name = (request.owner.clone(), key.clone());
            if !self.outside.sent.contains(&name) {
                match self.outside.log.find(&request.owner, key) {
                    Some((run, seq)) => message = Message::Follow { request: number, asker, run, seq },
                    None => self.outside.sent.push(name),
                }
            }
        }
        self.outside.note(|| format!("client sends {run}: {request:?}"));
        self.outside.requests.push(Request { run, ..request });
        self.send(message);
    }

    /// One of those who are connected; in the end somebody who comes for that.
    fn peer(&mut self) -> Rc<Peer> {
        if self.outside.peers.is_empty() {
            self.connect();
        }
        self.outside.peers[self.dice.below(self.outside.peers.len())].clone()
    }

    /// Somebody comes, or comes back and wants what it missed.
    fn connect(&mut self) {
        self.connections += 1;
        let room = if self.quiet { usize::MAX } else { self.plan.room };
        let peer = Peer::new(self.connections, room);
        self.outside.peers.push(peer.clone());
        let seen = self.gone.pop();
        self.outside.note(|| format!("c{} connects, it saw {seen:?}", self.connections));
        if seen.is_some() {
            self.send(Message::Attach { asker: peer.asker(), after: seen });
        }
    }

    /// A client follows the session, from now on or from some number on.
    fn attach(&mut self) {
        let peer = self.peer();
        if peer.follow().is_none() {
            let head = self.outside.log.head().0;
            let after = match self.dice.below(3) {
                0 => None,
                1 => Some(Seq(0)),
                _ => Some(Seq(self.dice.below(1 + head as usize) as u64)),
            };
            self.send(Message::Attach { asker: peer.asker(), after });
        }
    }

    fn detach(&mut self) {
        let peer = self.peer();
        if let Some(follow) = peer.follow() {
            self.outside.note(|| format!("c{} lets {follow:?} go", peer.connection.0));
            peer.detach(follow);
            self.send(Message::Detach { connection: peer.connection, follow });
        }
    }

    /// A client that was slow reads on.
    fn make_room(&mut self) {
        let full = self.outside.peers.iter().find(|peer| peer.is_full.get());
        let Some(peer) = full.cloned() else { return };
        let room = if self.quiet { usize::MAX } else { 1 + self.dice.below(4) };
        peer.room.set(peer.room.get().saturating_add(room));
        peer.is_full.set(false);
        self.send(Message::More(peer.connection));
    }

    /// A connection ends, first of all one that is too slow.
    fn hang_up(&mut self) {
        let count = self.outside.peers.len();
        let lags = self.outside.peers.iter().position(|peer| peer.lags.get());
        self.outside.figures.lagging += u64::from(lags.is_some());
        self.outside.figures.hung_up += 1;
        let peer = self.outside.peers.swap_remove(lags.unwrap_or_else(|| self.dice.below(count)));
        self.outside.note(|| format!("c{} hangs up", peer.connection.0));
        self.leave(&peer);
        self.followers.forget(peer.connection);
        self.send(Message::Gone(peer.connection));
    }

    /// What was followed is remembered.
    fn leave(&mut self, peer: &Peer) {
        peer.is_closed.set(true);
        self.gone.extend(peer.seen());
    }

    fn read(&mut self) -> Check {
        let Some(driver) = &mut self.driver else { return Ok(()) };
        let index = self.dice.below(driver.reads.len());
        let fails = !self.quiet && self.dice.one_in(12);
        driver.read(&mut self.outside, index, fails, &mut self.dice)
    }

    fn abort(&mut self) {
        let count = self.outside.requests.len();
        let run = match self.dice.below(3) {
            0 => None,
            1 if count > 0 => Some(self.outside.requests[self.dice.below(count)].run.clone()),
            _ => {
                // What is known to wait or to be under way.
                let mut open = self.outside.log.book().runs().iter().filter(|run| run.stage != Stage::Ended);
                open.next_back().map(|run| run.id.clone())
            }
        };
        self.send(Message::Abort(run));
    }

    /// Somebody decides about a call that waits, or about one that did.
    fn decide(&mut self) {
        let runs = self.outside.log.book().runs().iter().rev().take(3);
        let asked = runs.flat_map(|run| run.gates.iter().map(|(asked, _)| (&run.id, &asked.call.id)));
        let asked: Vec<_> = asked.map(|(run, call)| (run.clone(), call.clone())).collect();
        if asked.is_empty() {
            return;
        }
        let (run, call) = asked[self.dice.below(asked.len())].clone();
        let verdict = match self.dice.below(4) {
            0 => Verdict::Approve { input: Some(json!({ "instead": self.outside.now.as_millis() })) },
            1 | 2 => Verdict::Approve { input: None },
            _ => Verdict::Deny { reason: None },
        };
        let by = self.dice.pick(&["ada", "bob"]);
        self.send(Message::Decide { run, call, verdict, by });
    }

    fn alter(&mut self) {
        let alteration = match self.dice.below(9) {
            0 | 1 => Alteration::Clear,
            2 => Alteration::Reset,
            3 | 4 => Alteration::Compact { back: self.dice.below(60) as u64 },
            5 | 6 => Alteration::Configure { label: self.dice.below(3) as u64 },
            // No two notes are made in one step.
            _ => Alteration::Inject { note: self.outside.now.as_millis() },
        };
        self.send(Message::Alter(alteration));
    }

    fn send(&mut self, message: Message) {
        match &mut self.driver {
            Some(driver) => driver.mailbox.push_back(message),
            None => self.waiting.push_back(message),
        }
    }

    // What becomes of what the session does.

    fn drive(&mut self, act: impl FnOnce(&mut Driver, &mut Outside<'_>) -> Check<bool>) -> Check {
        let Some(driver) = &mut self.driver else { return Ok(()) };
        if act(driver, &mut self.outside)? {
            self.outside.note(|| "the session stops, and the daemon".into());
            return self.die();
        }
        Ok(())
    }

    /// The next unit is written, or is not.
    fn commit(&mut self) -> Check {
        let Some(Unit { incarnation, batch, replies }) = self.outside.pipeline.pop_front() else {
            return Ok(());
        };
        let fails = !self.quiet && self.dice.one_in(self.plan.disk_failure);
        let result = if fails { self.outside.log.fail(&batch) } else { self.outside.log.commit(&batch)? };
        let own = self.driver.as_mut().filter(|driver| driver.incarnation == incarnation);
        self.outside.note(|| format!("the log: {result:?}, for the session that waits: {}", own.is_some()));
        if own.is_none() {
            self.outside.figures.late_units += 1;
            return Ok(());
        };
        if let Err(refusal) = result {
            match &refusal {
                Refusal::Disk => self.outside.figures.disk_failures += 1,
                Refusal::Conflict => self.outside.figures.conflicts += 1,
                Refusal::Order(why) => {
                    rules::the_log_takes_what_the_session_writes(Some(why))?;
                }
            }
            // It is ahead of the log, and goes back to it.
            self.outside.sent.clear();
            self.followers = self.driver.take().map(|driver| driver.followers).unwrap_or_default();
            return Ok(());
        }
        self.outside.figures.written += 1;
        self.drive(|driver, outside| {
            driver.written(outside, &batch, replies)?;
            driver.proceed(outside)
        })
    }

    fn wake(&mut self) -> Check {
        // A daemon that is not told otherwise goes on where it was.
        let recovery =
            if !self.quiet && self.dice.one_in(10) { Recovery::Interrupt } else { self.plan.recovery };
        self.dead = false;
        self.incarnations += 1;
        let lost = self.outside.log.forget_shown();
        self.outside.figures.shown_lost += lost.len() as u64;
        self.outside.lose(&lost)?;
        let runs = self.outside.limits.turns();
        let loaded = self.outside.log.load(runs, &mut self.dice);
        self.outside.note(|| {
            let head = loaded.head;
            format!("incarnation {} is read back from {head}, {recovery:?}", self.incarnations)
        });
        let draining = !self.quiet && self.dice.one_in(20);
        let followers = std::mem::take(&mut self.followers);
        let number = self.incarnations;
        let mut driver = Driver::wake(&mut self.outside, loaded, number, recovery, draining, followers)?;
        self.outside.promises_hold()?;
        driver.mailbox = std::mem::take(&mut self.waiting);
        self.driver = Some(driver);
        self.drive(|driver, outside| driver.proceed(outside))
    }

    /// The session ends in order, or falls with nothing lost that it knew.
    fn end_session(&mut self) -> Check {
        self.outside.sent.clear();
        let Some(mut driver) = self.driver.take() else { return Ok(()) };
        self.followers = std::mem::take(&mut driver.followers);
        driver.end(&self.outside)
    }

    // What goes wrong.

    /// The daemon is gone, between any two steps: of what is on its way, the first units may have
    /// been written.
    fn die(&mut self) -> Check {
        self.end_session()?;
        self.waiting.clear();
        self.followers = Followers::default();
        for peer in std::mem::take(&mut self.outside.peers) {
            self.leave(&peer);
        }
        while let Some(unit) = self.outside.pipeline.pop_front() {
            if self.dice.one_in(2) || self.outside.log.commit(&unit.batch)?.is_err() {
                break;
            }
        }
        self.outside.pipeline.clear();
        self.outside.log.crash(&mut self.dice)?;
        self.dead = true;
        Ok(())
    }

    fn kill(&mut self) -> Check {
        self.outside.figures.kills += 1;
        self.outside.note(|| "the daemon is killed".into());
        self.die()
    }

    fn lose_power(&mut self) -> Check {
        self.outside.figures.power_losses += 1;
        self.die()?;
        let lost = self.outside.log.lose_power(&mut self.dice)?;
        self.outside.note(|| format!("the power is lost, and with it {lost:?}"));
        self.outside.lose(&lost)
    }

    /// The session panics. What it sent to the log goes on its way; what it was about to send does
    /// not.
    fn panic(&mut self) -> Check {
        self.outside.figures.panics += 1;
        self.outside.note(|| "the session panics".into());
        let incarnation = self.driver.as_ref().map(|driver| driver.incarnation);
        self.end_session()?;
        if self.dice.one_in(3) && self.outside.pipeline.back().map(|unit| unit.incarnation) == incarnation {
            self.outside.pipeline.pop_back();
        }
        Ok(())
    }

    // What the provider and the tools do.

    fn hear(&mut self) -> Check {
        let Some(Driver { doing: Doing::Asking { ear, step, .. }, .. }) = &self.driver else { return Ok(()) };
        let (ear, step) = (*ear, *step);
        if self.plan.flood && ear == Ear::Open {
            return self.flood();
        }
        let piece = if !self.quiet && self.dice.one_in(self.plan.unheard) {
            Piece::Failed
        } else if ear == Ear::Opening {
            Piece::Opened
        } else {
            Piece::Said(self.deltas(step))
        };
        self.outside.note(|| format!("provider: {piece:?}"));
        self.drive(|driver, outside| driver.heard(outside, piece))
    }

    /// What a model says in one go.
    fn deltas(&mut self, step: usize) -> Vec<Delta> {
        let mut deltas = Vec::new();
        for _ in 0..self.dice.pick(&[0, 1, 1, 2]) {
            deltas.push(self.text());
            if self.dice.one_in(3) {
                self.words += 1;
                deltas.push(Delta::Thinking(format!("{} ", self.words)));
            }
            if self.dice.one_in(4) {
                deltas.push(Delta::Sealed(SignatureData::Signature(self.words.to_string())));
            }
        }
        if self.plan.stubborn {
            let tool = self.outside.cast.tools[2].clone();
            deltas.push(Delta::ToolCall(ToolCall { id: "x".into(), name: tool, input: json!({}) }));
            self.outside.figures.many_steps += u64::from(step + 1 == STEPS_MAX);
        } else if !self.quiet && self.dice.one_in(self.plan.tools) {
            let calls = if self.dice.one_in(100) { CALLS_MAX + 2 } else { 1 + self.dice.below(3) };
            for _ in 0..calls {
                let call = self.call();
                deltas.push(Delta::ToolCall(call));
            }
        }
        if self.plan.stubborn || self.dice.one_in(3) {
            let stops = [Stop::End, Stop::ToolUse, Stop::MaxTokens, Stop::Refused, Stop::Filtered];
            let stop = self.dice.pick(&stops);
            if self.dice.one_in(8) {
                deltas.push(Delta::Notice(Notice::new(NoticeKind::Incomplete, "the answer was cut")));
            }
            let usage = (!self.dice.one_in(3)).then_some(Usage::new(10, 1));
            deltas.push(Delta::Finished { stop, usage });
            if self.dice.one_in(16) {
                // What follows the end of an answer is no part of it.
                deltas.push(self.text());
            }
        }
        deltas
    }

    fn text(&mut self) -> Delta {
        self.words += 1;
        Delta::Text(format!("{} ", self.words))
    }

    fn call(&mut self) -> ToolCall {
        let id = self.dice.pick(&[0, 1, 2, 3]);
        let tool = self.dice.pick(&[0, 0, 1, 1, 1, 2, 3, 3]);
        // What a model wrote that is not JSON is kept as text.
        let input = if self.dice.one_in(8) { Value::from("{") } else { json!({}) };
        let cast = self.outside.cast;
        ToolCall { id: cast.calls[id].clone(), name: cast.tools[tool].clone(), input }
    }

    /// An answer of more pieces than numbers are reserved ahead, each written by itself.
    fn flood(&mut self) -> Check {
        self.plan.flood = false;
        self.outside.figures.floods += 1;
        let pieces = self.dice.pick(&[4_200, 8_200, 8_300]);
        self.outside.note(|| format!("provider: {pieces} pieces"));
        for _ in 0..pieces {
            while !self.outside.pipeline.is_empty() {
                self.commit()?;
            }
            if !matches!(&self.driver, Some(Driver { doing: Doing::Asking { ear: Ear::Open, .. }, .. })) {
                break;
            }
            let text = self.text();
            self.drive(|driver, outside| driver.heard(outside, Piece::Said(vec![text])))?;
        }
        Ok(())
    }

    fn tool_returns(&mut self) -> Check {
        let Some(Driver { doing: Doing::Acting { open, .. }, .. }) = &self.driver else { return Ok(()) };
        let index = self.dice.below(open.len());
        let again = self.dice.one_in(4);
        self.drive(|driver, outside| driver.returned(outside, index, again))
    }

    fn late(&mut self) -> Check {
        let piece = if self.dice.one_in(3) { Piece::Failed } else { Piece::Said(self.deltas(0)) };
        let Some(driver) = &mut self.driver else { return Ok(()) };
        let late = driver.late.swap_remove(self.dice.below(driver.late.len()));
        driver.too_late(&mut self.outside, late, piece)
    }

    // The end.

    /// Nothing fails any more, and nobody asks for anything: all that was accepted ends.
    fn come_to_rest(&mut self) -> Check {
        self.quiet = true;
        self.outside.note(|| "quiet from here on".into());
        for _ in 0..QUIET_STEPS_MAX {
            if self.rests() {
                return Ok(());
            }
            let step = self.choose();
            self.step(step)?;
        }
        rules::nothing_is_stuck(false, QUIET_STEPS_MAX, || {
            format!("{:#?}\n{:?}", self.driver, self.outside.peers)
        })
    }

    /// Whether nothing is left to do, and everybody was told everything.
    fn rests(&self) -> bool {
        let told = |peer: &Rc<Peer>| peer.has_everything(&self.outside.log);
        self.driver.as_ref().is_some_and(|driver| driver.is_done() && !driver.draining)
            && self.outside.pipeline.is_empty()
            && self.gone.is_empty()
            && self.outside.peers.iter().all(told)
    }

    /// All ended as promised; every key still stands for its run; the session takes a new prompt;
    /// and what is read back is what was there.
    fn look_back(&mut self) -> Check {
        rules::every_prompt_ends(self.outside.log.book())?;
        self.outside.promises_hold()?;
        let sent = self.outside.requests.len();
        for number in 0..sent {
            let request = self.outside.requests[number].clone();
            if request.key.is_some() {
                self.request(request);
            }
        }
        self.come_to_rest()?;
        let number = self.outside.requests.len();
        let (content, owner) = ("last".to_owned(), self.outside.cast.owners[0].clone());
        self.request(Request { run: RunId::new(""), content, owner, key: Some("last".into()) });
        self.come_to_rest()?;
        let run = self.outside.run_of(number).cloned();
        rules::nothing_is_stuck(run.is_some(), 0, || "the last prompt was not acknowledged".into())?;
        rules::every_prompt_ends(self.outside.log.book())?;
        self.outside.promises_hold()?;
        // A session may not hear that a connection is gone; with the next event it finds out.
        let followed = self.driver.as_ref().map_or(0, |driver| driver.followers.len());
        rules::who_is_gone_is_forgotten(followed, self.outside.peers.len())?;
        self.end_session()
    }
}
