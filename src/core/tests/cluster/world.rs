//! A history: what clients, nodes, the network and the engine do, in an order that follows from the seed; then quiet,
//! in which everything has to come to its end.

use std::mem;

use clawmux_core::cluster::node::{Epoch, Incarnation, NodeName};
use clawmux_core::cluster::slot::{Slot, owner_of};
use clawmux_core::cluster::stamp::Token;

use crate::daemon::Daemon;
use crate::dice::Dice;
use crate::engine::Engine;
use crate::outside::{Answer, Ask, Figures, Flaw, Flight, Load, Outside, Request, Trace, Wish};
use crate::rules::{self, Check};
use crate::table::TABLE;

/// How many quiet steps may pass before everything is at its end.
const QUIET_STEPS_MAX: usize = 6_000;

const SESSIONS: usize = TABLE;

const SLOTS: u8 = 3;

/// What kind of a history it is: once in how many times something happens, 0 = never.
#[derive(Debug)]
struct Plan {
    steps: usize,
    nodes: usize,
    fault: usize,
    /// How often a question or an answer is lost, a message comes twice, a refusal means nothing, a read is stale.
    loss: usize,
    repeat: usize,
    spurious: usize,
    stale: usize,
    /// How often there is no answer in time.
    impatience: usize,
    keys: u32,
    /// Nobody hears anybody, and everybody holds everybody for dead.
    is_deaf: bool,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Pass,
    Deliver,
    Apply,
    Send,
    SendAgain,
    Want,
    WantAgain,
    Return,
    TimeOut,
    Hurry,
    Start,
    Crash,
    StandStill,
    GoOn,
    Jump,
    Cut,
    Heal,
    Leave,
    ComeBack,
    Drain,
    CallOff,
    Blind,
}

/// What a node reaches.
#[derive(Clone, Debug, Default)]
struct Links {
    /// Its heartbeats do not come to these.
    to: Vec<bool>,
    asks: bool,
    answers: bool,
}

/// A history under way.
struct World<'a> {
    dice: Dice,
    plan: Plan,
    outside: Outside<'a>,
    daemons: Vec<Daemon>,
    cut: Vec<Links>,
    now_ms: u64,
    quiet: bool,
}

/// Plays one seed through.
pub(crate) fn play(seed: u64, flaw: Option<Flaw>, trace: Option<&Trace>) -> Check<Figures> {
    let mut dice = Dice::new(seed);
    let plan = Plan {
        steps: 150 + dice.below(250),
        nodes: 2 + dice.below(2),
        fault: dice.pick(&[0, 8, 15, 30, 60]),
        loss: dice.pick(&[0, 5, 20]),
        repeat: dice.pick(&[0, 4, 20]),
        spurious: dice.pick(&[0, 3, 10, 40]),
        stale: dice.pick(&[0, 2, 4]),
        impatience: dice.pick(&[0, 2, 8]),
        keys: dice.pick(&[2, 6, 20]),
        is_deaf: dice.one_in(8),
    };
    let first = dice.below(250) as u8;
    let slots: Vec<Slot> = (first..first + SLOTS).map(Slot::new).collect();
    let mut outside = Outside::new(Engine::new(SESSIONS, slots.iter().copied()), flaw, trace);
    outside.note(|| format!("seed {seed}: {plan:?}"));
    outside.figures.everybody_deaf += u64::from(plan.is_deaf);
    let daemons = (0..plan.nodes).map(|number| Daemon::new(number, SESSIONS, slots.clone())).collect();
    let cut = vec![Links { to: vec![false; plan.nodes], ..Links::default() }; plan.nodes];
    let mut world = World { dice, plan, outside, daemons, cut, now_ms: 0, quiet: false };
    // Most histories begin once somebody owns something.
    world.daemons.iter_mut().for_each(|daemon| daemon.start(0));
    let is_early = world.dice.one_in(8);
    if !is_early {
        world.warm_up()?;
    }
    for _ in 0..world.plan.steps {
        let step = world.choose();
        world.step(step)?;
    }
    world.come_to_rest()?;
    world.look_back()?;
    let mut figures = world.outside.figures;
    figures.print = world.daemons[0].replica.digest ^ world.outside.engine.stream.len() as u64;
    Ok(figures)
}

impl World<'_> {
    fn warm_up(&mut self) -> Check {
        for _ in 0..12 {
            self.pass(400)?;
            while !self.outside.flights.is_empty() {
                let at = self.outside.flights.len() - 1;
                self.deliver(at)?;
            }
        }
        Ok(())
    }

    /// What happens next, out of what can.
    fn choose(&mut self) -> Move {
        let mut weights = [(Move::Pass, 0); 22];
        let mut known = 0;
        let mut may = |weight: usize, what: Move| {
            if weight > 0 {
                weights[known] = (what, weight);
                known += 1;
            }
        };
        let asks = self.outside.requests.iter().any(|request| request.run.is_none());
        let daemons = &self.daemons;
        may(6, Move::Pass);
        may(if self.outside.flights.is_empty() { 0 } else { 24 }, Move::Deliver);
        let behind = |daemon: &Daemon| daemon.replica.applied < self.outside.engine.stream.len();
        may(if daemons.iter().any(behind) { 9 } else { 0 }, Move::Apply);
        may(if asks { 4 } else { 0 }, Move::SendAgain);
        may(if self.outside.wishes.iter().any(|wish| wish.told.is_none()) { 2 } else { 0 }, Move::WantAgain);
        may(if daemons.iter().any(|daemon| daemon.calling().next().is_some()) { 5 } else { 0 }, Move::Return);
        let impatient = self.dice.one_in(if self.quiet { 8 } else { self.plan.impatience });
        may(if impatient { 6 } else { 0 }, Move::TimeOut);
        may(1, Move::Hurry);
        may(if daemons.iter().any(|daemon| daemon.running.is_none()) { 2 } else { 0 }, Move::Start);
        if !self.quiet {
            may(4, Move::Send);
            may(2, Move::Want);
            may(if daemons.iter().any(|daemon| daemon.stands_still) { 2 } else { 0 }, Move::GoOn);
            may(1, Move::Heal);
            may(if self.outside.engine.is_away { 3 } else { 0 }, Move::ComeBack);
            if self.dice.one_in(self.plan.fault) {
                may(16, Move::Crash);
                may(16, Move::StandStill);
                may(6, Move::Jump);
                may(16, Move::Cut);
                may(6, Move::Leave);
                may(8, Move::Drain);
                may(4, Move::CallOff);
                may(8, Move::Blind);
            }
        }
        self.dice.weighed(&weights[..known])
    }

    fn step(&mut self, what: Move) -> Check {
        self.outside.figures.steps += 1;
        let number = self.dice.below(self.daemons.len());
        let (outside, daemon, now_ms) = (&mut self.outside, &mut self.daemons[number], self.now_ms);
        match what {
            Move::Pass => {
                let ms = 50 + self.dice.below(500) as u64;
                return self.pass(ms);
            }
            Move::Deliver => {
                let at = self.dice.below(outside.flights.len());
                return self.deliver(at);
            }
            Move::Apply => {
                if daemon.is_up() && !self.cut[number].answers {
                    for _ in 0..=self.dice.below(4) {
                        daemon.apply(outside, now_ms)?;
                    }
                }
            }
            Move::Send => return self.send(),
            Move::SendAgain => {
                let open = outside.requests.iter().enumerate().filter(|(_, request)| request.run.is_none());
                let open: Vec<usize> = open.map(|(number, _)| number).collect();
                let request = self.dice.pick(&open);
                if daemon.is_up() {
                    daemon.prompt(outside, now_ms, request)?;
                }
            }
            Move::Want => return self.want(),
            Move::WantAgain => {
                let open = outside.wishes.iter().enumerate().filter(|(_, wish)| wish.told.is_none());
                let open: Vec<usize> = open.map(|(number, _)| number).collect();
                let wish = self.dice.pick(&open);
                if daemon.is_up() {
                    daemon.want(outside, now_ms, wish)?;
                }
            }
            Move::Return => {
                let session = daemon.calling().next();
                if let Some(session) = session.filter(|_| daemon.is_up()) {
                    daemon.returned(outside, now_ms, session)?;
                }
            }
            Move::TimeOut => {
                let sessions: Vec<usize> = daemon.asking().collect();
                if daemon.is_up() && !sessions.is_empty() {
                    let session = self.dice.pick(&sessions);
                    daemon.time_out(outside, now_ms, session)?;
                }
            }
            Move::Hurry => {
                if daemon.is_up() {
                    daemon.hurry(outside, now_ms)?;
                }
                self.end_drained();
            }
            Move::Start => {
                if daemon.running.is_none() {
                    daemon.start(now_ms);
                }
            }
            _ => self.fault(what, number)?,
        }
        self.send_beats()
    }

    fn fault(&mut self, what: Move, number: usize) -> Check {
        self.outside.note(|| format!("{what:?}: node {number}"));
        let (outside, daemon) = (&mut self.outside, &mut self.daemons[number]);
        let figures = &mut outside.figures;
        match what {
            Move::Crash if daemon.running.is_some() => {
                figures.crashes += 1;
                daemon.stop();
                if self.dice.one_in(6) {
                    figures.fresh_disks += 1;
                    daemon.replica = crate::replica::Replica::new(SESSIONS);
                }
            }
            Move::StandStill if daemon.running.is_some() => {
                figures.stood_still += 1;
                daemon.stands_still = true;
            }
            Move::GoOn => daemon.stands_still = false,
            Move::Jump => {
                figures.clocks_jumped += 1;
                daemon.ahead_ms += 500 * self.dice.below(40) as u64;
            }
            Move::Cut => self.cut(number),
            Move::Heal => self.cut.iter_mut().for_each(|links| links.heal()),
            Move::Leave => {
                figures.engine_away += 1;
                outside.engine.is_away = true;
            }
            Move::ComeBack => outside.engine.is_away = false,
            Move::Drain if daemon.is_up() => {
                figures.drains += 1;
                daemon.drain(outside, self.now_ms)?;
            }
            Move::CallOff if daemon.running.as_ref().is_some_and(|running| running.is_draining) => {
                figures.called_off += 1;
                daemon.call_off(outside, self.now_ms)?;
            }
            Move::Blind if daemon.running.as_ref().is_some_and(|running| !running.held.is_empty()) => {
                figures.blind += u64::from(!daemon.is_blind);
                daemon.is_blind = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Cuts some of what a node reaches.
    fn cut(&mut self, number: usize) {
        let other = (number + 1 + self.dice.below(self.daemons.len() - 1)) % self.daemons.len();
        match self.dice.below(5) {
            0 => {
                self.outside.figures.cut_off += 1;
                for links in &mut self.cut {
                    links.to[number] = true;
                }
                let to = vec![true; self.daemons.len()];
                self.cut[number] = Links { to, asks: true, answers: true };
            }
            1 => self.cut[number].asks = true,
            2 => self.cut[number].answers = true,
            3 => (self.cut[number].to[other], self.cut[other].to[number]) = (true, true),
            _ => {
                self.outside.figures.cut_off_one_way += 1;
                self.cut[number].to[other] = true;
            }
        }
    }

    fn pass(&mut self, ms: u64) -> Check {
        self.now_ms += ms;
        for daemon in self.daemons.iter_mut().filter(|daemon| daemon.is_up()) {
            daemon.tick(&mut self.outside, self.now_ms)?;
        }
        self.end_drained();
        self.send_beats()
    }

    /// A node that has given everything away ends.
    fn end_drained(&mut self) {
        for daemon in &mut self.daemons {
            if daemon.running.as_ref().is_some_and(|running| running.is_drained && running.awake.is_empty()) {
                daemon.stop();
            }
        }
    }

    fn send_beats(&mut self) -> Check {
        for (from, beat) in mem::take(&mut self.outside.beats) {
            if self.plan.is_deaf && !self.quiet {
                continue;
            }
            for to in 0..self.daemons.len() {
                let is_lost = !self.quiet && self.dice.one_in(self.plan.loss);
                if to != from && !self.cut[from].to[to] && self.daemons[to].is_up() && !is_lost {
                    self.daemons[to].hear(&mut self.outside, self.now_ms, &beat)?;
                }
            }
        }
        Ok(())
    }

    /// A client sends a prompt; some keys to two sessions at once.
    fn send(&mut self) -> Check {
        let key = self.dice.below(self.plan.keys as usize) as u32;
        let known = self.outside.requests.len();
        for _ in 0..=usize::from(self.dice.one_in(4)) {
            let session = self.dice.below(SESSIONS);
            self.outside.requests.push(Request { key, session, run: None });
        }
        for request in known..self.outside.requests.len() {
            self.outside.figures.requests += 1;
            let number = self.dice.below(self.daemons.len());
            if self.daemons[number].is_up() {
                self.daemons[number].prompt(&mut self.outside, self.now_ms, request)?;
            }
        }
        self.send_beats()
    }

    /// A client wants a name; some that another wants at the same time.
    fn want(&mut self) -> Check {
        let name = self.dice.below(self.plan.keys as usize) as u32;
        for _ in 0..=usize::from(self.dice.one_in(2)) {
            self.outside.figures.wishes += 1;
            self.outside.wishes.push(Wish { name, told: None });
            let number = self.dice.below(self.daemons.len());
            if self.daemons[number].is_up() {
                let wish = self.outside.wishes.len() - 1;
                self.daemons[number].want(&mut self.outside, self.now_ms, wish)?;
            }
        }
        self.send_beats()
    }

    // The network.

    fn deliver(&mut self, at: usize) -> Check {
        let Flight { node, process, .. } = self.outside.flights[at];
        let is_gone = self.daemons[node].process != process || self.daemons[node].running.is_none();
        let is_lost = !self.quiet && self.dice.one_in(2 * self.plan.loss);
        let (links, repeats) = (&self.cut[node], !self.quiet && self.dice.one_in(self.plan.repeat));
        let flight = match &self.outside.flights[at].what {
            Load::Ask(_) if links.asks || self.outside.engine.is_away => return Ok(()),
            Load::Ask(_) if is_lost => {
                self.outside.figures.lost_asks += 1;
                self.outside.flights.swap_remove(at);
                return Ok(());
            }
            Load::Ask(Ask::Publish { .. } | Ask::Want { .. }) if repeats => {
                self.outside.figures.repeated_publishes += 1;
                self.outside.flights[at].clone()
            }
            Load::Answer(_) if is_gone => {
                self.outside.flights.swap_remove(at);
                return Ok(());
            }
            Load::Answer(_) if links.answers || self.daemons[node].stands_still => return Ok(()),
            Load::Answer(Answer::Acked { .. }) if repeats => {
                self.outside.figures.repeated_acks += 1;
                self.outside.flights[at].clone()
            }
            _ => self.outside.flights.swap_remove(at),
        };
        let Flight { serial, what, .. } = flight;
        match what {
            Load::Ask(ask) => {
                let answer = self.serve(node, ask)?;
                if !self.quiet && self.dice.one_in(self.plan.loss) {
                    self.outside.figures.lost_acks += u64::from(matches!(answer, Some(Answer::Acked { .. })));
                } else if let Some(answer) = answer {
                    let what = Load::Answer(answer);
                    self.outside.flights.push(Flight { node, process, serial, what });
                }
            }
            Load::Answer(answer) => {
                self.daemons[node].answered(&mut self.outside, self.now_ms, serial, answer)?;
            }
        }
        self.send_beats()
    }

    /// The engine does what it is asked.
    fn serve(&mut self, node: usize, ask: Ask) -> Check<Option<Answer>> {
        let is_stale = !self.quiet && self.dice.one_in(self.plan.stale);
        let is_spurious = !self.quiet && self.dice.one_in(self.plan.spurious);
        let Outside { engine, figures, unknown, .. } = &mut self.outside;
        let dice = &mut self.dice;
        Ok(Some(match ask {
            Ask::Publish { session, attempt, .. } if is_spurious => {
                figures.transient += 1;
                if dice.one_in(4) {
                    Answer::Refused { session, attempt }
                } else {
                    Answer::Transient { session, attempt }
                }
            }
            Ask::Publish { session, attempt, stamp, expected, body, key } => {
                let (is_ours, before) = (engine.has(session, stamp), engine.subjects[session].highest);
                let is_fence = u64::from(body.is_none());
                match engine.publish(session, expected, stamp, body, key)? {
                    Some(sequence) => {
                        figures.fences += is_fence;
                        figures.takeovers += u64::from(before > Token(0) && before < stamp.token);
                        let is_late = unknown.contains(&(session, stamp.token.0, stamp.record.0));
                        figures.late_publishes += u64::from(is_late);
                        self.outside.note(|| {
                            format!("stream: {sequence:?} of session {session}: {stamp:?} {body:?}")
                        });
                        Answer::Acked { session, record: stamp.record, sequence }
                    }
                    None => {
                        figures.fences_refused += is_fence;
                        figures.refused_though_ours += u64::from(is_ours);
                        figures.refused_zombies += u64::from(before > stamp.token);
                        Answer::Refused { session, attempt }
                    }
                }
            }
            Ask::Want { attempt, .. } if is_spurious => match dice.one_in(4) {
                true => Answer::Refused { session: TABLE, attempt },
                false => Answer::Transient { session: TABLE, attempt },
            },
            Ask::Want { attempt, stamp, expected, record } => match engine.want(expected, stamp, record)? {
                Some(sequence) => {
                    self.outside.note(|| format!("stream: {sequence:?} of the table: {stamp:?} {record:?}"));
                    Answer::Acked { session: TABLE, record: stamp.record, sequence }
                }
                None => Answer::Refused { session: TABLE, attempt },
            },
            Ask::Read { session, attempt, after } => {
                let (records, is_stale) = engine.read(session, after, is_stale.then_some(dice));
                figures.stale_reads += u64::from(is_stale);
                Answer::Back { session, attempt, records }
            }
            Ask::Key { session, attempt, key } => {
                Answer::Key { session, attempt, guard: engine.guards.get(&key).copied() }
            }
            Ask::Slots => {
                let (entries, is_stale) = engine.poll(is_stale.then_some(dice));
                figures.stale_polls += u64::from(is_stale);
                Answer::Slots(entries)
            }
            Ask::Write { slot, expected, claim } => {
                let (is_claim, written) = (claim.owner.is_some(), engine.write_slot(slot, expected, claim));
                figures.claims += u64::from(is_claim && written.is_some());
                figures.claims_refused += u64::from(is_claim && written.is_none());
                self.outside.note(|| format!("slots: node {node} writes {slot:?}: {written:?}"));
                return Ok(written.map(|revision| Answer::Accepted(slot, revision)));
            }
            Ask::Join => Answer::Joined(Epoch(engine.join()), engine.stream.len()),
        }))
    }

    // The end.

    /// Nothing fails any more, and nobody asks for anything new: all that was accepted ends.
    fn come_to_rest(&mut self) -> Check {
        if !self.quiet {
            self.quiet = true;
            self.outside.note(|| "quiet from here on".into());
            self.outside.engine.is_away = false;
            self.cut.iter_mut().for_each(Links::heal);
            for daemon in &mut self.daemons {
                daemon.stands_still = false;
                daemon.look_again(&mut self.outside, self.now_ms)?;
            }
        }
        for steps in 0..QUIET_STEPS_MAX {
            if self.rests() {
                self.outside.figures.quiet_most = self.outside.figures.quiet_most.max(steps as u64);
                return Ok(());
            }
            let step = self.choose();
            self.step(step)?;
        }
        let (engine, requests) = (&self.outside.engine, &self.outside.requests);
        rules::nothing_is_stuck(false, QUIET_STEPS_MAX, || {
            let open: Vec<&Request> = requests.iter().filter(|request| request.run.is_none()).collect();
            let idle = engine.subjects.iter().map(|subject| subject.conversation.is_idle());
            let idle: Vec<bool> = idle.collect();
            let (entries, length) = (engine.poll(None).0, engine.stream.len());
            format!(
                "{open:?} {:?}\nidle: {idle:?}, {length} messages\n{entries:?}\n{:?}",
                self.outside.wishes, self.daemons
            )
        })
    }

    /// Whether nothing is left to do: for clients, runs, replicas and slots.
    fn rests(&self) -> bool {
        let Outside { engine, requests, wishes, .. } = &self.outside;
        requests.iter().all(|request| request.run.is_some())
            && wishes.iter().all(|wish| wish.told.is_some())
            && engine.subjects.iter().all(|subject| subject.conversation.is_idle())
            && self.daemons.iter().all(|daemon| daemon.is_at_rest())
            && self.daemons.iter().all(|daemon| daemon.replica.applied == engine.stream.len())
            && self.slots_are_where_they_should_be()
    }

    fn slots_are_where_they_should_be(&self) -> bool {
        let names: Vec<&NodeName> = self.daemons.iter().map(|daemon| &daemon.name).collect();
        let (entries, _) = self.outside.engine.poll(None);
        let process = |daemon: &Daemon| {
            let epoch = daemon.running.as_ref()?.epoch?;
            Some(Incarnation { node: daemon.name.clone(), epoch })
        };
        let holds = |daemon: &Daemon, slot, token| {
            daemon.running.as_ref().is_some_and(|running| running.held.get(&slot) == Some(&token))
        };
        entries.len() == usize::from(SLOTS)
            && entries.iter().all(|entry| {
                let owner = self.daemons.iter().find(|daemon| {
                    let process = process(daemon);
                    process.is_some() && process == entry.claim.owner
                });
                owner.is_some_and(|owner| {
                    let wanted = owner_of(entry.slot, names.iter().copied());
                    wanted == Some(&owner.name) && holds(owner, entry.slot, entry.revision)
                })
            })
    }

    /// All ended as promised, whatever still arrives; every session takes a new prompt.
    fn look_back(&mut self) -> Check {
        for session in 0..SESSIONS {
            let key = 1000 + session as u32;
            self.outside.requests.push(Request { key, session, run: None });
        }
        self.come_to_rest()?;
        for flight in mem::take(&mut self.outside.flights) {
            if let Load::Ask(ask @ (Ask::Publish { .. } | Ask::Want { .. })) = flight.what {
                self.serve(flight.node, ask)?;
            }
        }
        let Outside { engine, given_up, .. } = &self.outside;
        for (session, stamp) in given_up {
            rules::what_is_given_up_is_never_written(engine.has(*session, *stamp), *stamp)?;
        }
        for request in &self.outside.requests {
            let (key, run) = (request.key, request.run.unwrap_or_default());
            rules::what_is_acknowledged_is_there(key, run, engine.prompts.get(&key).copied())?;
        }
        for daemon in &mut self.daemons {
            while let Some(stored) = engine.stream.get(daemon.replica.applied) {
                daemon.replica.apply(stored);
            }
        }
        self.daemons
            .windows(2)
            .try_for_each(|two| rules::replicas_are_equal(&two[0].replica, &two[1].replica))
    }
}

impl Links {
    fn heal(&mut self) {
        *self = Self { to: vec![false; self.to.len()], ..Self::default() };
    }
}
