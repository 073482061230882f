//! What goes wrong: which machines it befalls and for how long, by chance, and how it is made good again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;

use crate::machines::{Machine, Machines};
use crate::plan::Random;
use crate::program::Program;

/// How far a clock jumps ahead, and then behind the time, in seconds.
const JUMP_S: i64 = 7200;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillDaemon,
    FreezeDaemon,
    KillServer,
    /// That which leads the log.
    KillLeader,
    FreezeServer,
    KillMachine,
    FreezeMachine,
    /// A machine is off the wire.
    CutOff,
    /// What a machine sends to the others is lost.
    Mute,
    /// The clock of a daemon jumps ahead, and behind the time in the end.
    JumpClock,
    /// Two machines do not reach each other, and both reach the third.
    Estrange,
    KillDaemons,
    KillServers,
    KillAll,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::KillDaemon,
        Self::FreezeDaemon,
        Self::KillServer,
        Self::KillLeader,
        Self::FreezeServer,
        Self::KillMachine,
        Self::FreezeMachine,
        Self::CutOff,
        Self::Mute,
        Self::JumpClock,
        Self::Estrange,
        Self::KillDaemons,
        Self::KillServers,
        Self::KillAll,
    ];
}

/// One time that something goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    victim: usize,
    /// Whom it keeps from the victim, where it is two.
    other: usize,
    lasts: Duration,
}

/// The faults of a test, in their order: all kinds before any of them comes again.
pub struct Faults {
    random: Random,
    kinds: Vec<Kind>,
    left: Vec<Kind>,
    machines: usize,
}

impl Faults {
    /// Those of a seed, of these kinds, for so many machines.
    pub fn new(seed: u64, kinds: Vec<Kind>, machines: usize) -> Self {
        Self { random: Random::new(seed, "faults"), kinds, left: Vec::new(), machines }
    }

    /// The next one.
    pub fn next(&mut self) -> Fault {
        if self.left.is_empty() {
            self.left = self.kinds.clone();
        }
        let at = self.random.range(0, self.left.len() as u64 - 1) as usize;
        let kind = self.left.remove(at);
        let last = self.machines as u64 - 1;
        let victim = self.random.range(0, last) as usize;
        let other = (victim + self.random.range(1, last.max(1)) as usize) % self.machines;
        // Some are over before anybody has noticed, some take longer than a lease, some longer than an election.
        let lasts = *self.random.pick(&[(50, 500), (500, 2500), (4000, 6000), (6000, 11_000)]);
        let lasts = Duration::from_millis(self.random.range(lasts.0, lasts.1));
        Fault { kind, victim, other, lasts }
    }
}

impl Fault {
    /// What it was in the end, for whoever reads along.
    pub fn says(&self) -> String {
        let Self { kind, victim, other, lasts } = self;
        match kind {
            Kind::Estrange => format!("{kind:?} {victim} and {other} for {lasts:?}"),
            Kind::KillDaemons | Kind::KillServers | Kind::KillAll => format!("{kind:?} for {lasts:?}"),
            _ => format!("{kind:?} {victim} for {lasts:?}"),
        }
    }

    /// Lets it happen, and makes it good again.
    pub async fn befall(&mut self, machines: &Machines) {
        if self.kind == Kind::KillLeader {
            self.victim = machines.leader().await.unwrap_or(self.victim);
        }
        self.begin(machines);
        sleep(self.lasts).await;
        self.end(machines);
    }

    fn begin(&self, machines: &Machines) {
        let network = &machines.network;
        match self.kind {
            Kind::KillDaemon | Kind::KillServer | Kind::KillLeader | Kind::KillMachine => {
                self.programs(machines).into_iter().for_each(Program::kill);
            }
            Kind::KillDaemons | Kind::KillServers | Kind::KillAll => {
                // At the same moment.
                self.programs(machines).into_iter().for_each(Program::freeze);
                self.programs(machines).into_iter().for_each(Program::kill);
            }
            Kind::FreezeDaemon | Kind::FreezeServer | Kind::FreezeMachine => {
                self.programs(machines).into_iter().for_each(Program::freeze);
            }
            Kind::CutOff => network.cut_off(self.victim),
            Kind::JumpClock => machines.set_clock(self.victim, JUMP_S),
            Kind::Mute => self.others(machines).for_each(|other| network.lose(self.victim, other)),
            Kind::Estrange => {
                network.lose(self.victim, self.other);
                network.lose(self.other, self.victim);
            }
        }
    }

    fn end(&self, machines: &Machines) {
        let network = &machines.network;
        match self.kind {
            Kind::FreezeDaemon | Kind::FreezeServer | Kind::FreezeMachine => {
                self.programs(machines).into_iter().for_each(Program::thaw);
            }
            Kind::CutOff => network.put_back(self.victim),
            Kind::JumpClock => machines.set_clock(self.victim, -JUMP_S),
            Kind::Mute => self.others(machines).for_each(|other| network.find(self.victim, other)),
            Kind::Estrange => {
                network.find(self.victim, self.other);
                network.find(self.other, self.victim);
            }
            _ => self.programs(machines).into_iter().for_each(Program::start),
        }
    }

    /// The programs that it befalls.
    fn programs<'a>(&self, machines: &'a Machines) -> Vec<&'a Program> {
        let victims: Vec<&Machine> = match self.kind {
            Kind::KillDaemons | Kind::KillServers | Kind::KillAll => machines.all().collect(),
            _ => vec![machines.of(self.victim)],
        };
        let mut programs = Vec::new();
        for machine in victims {
            match self.kind {
                Kind::KillDaemon | Kind::FreezeDaemon | Kind::KillDaemons => programs.push(&machine.daemon),
                Kind::KillServer | Kind::KillLeader | Kind::FreezeServer | Kind::KillServers => {
                    programs.extend(&machine.server);
                }
                Kind::KillMachine | Kind::FreezeMachine | Kind::KillAll => {
                    programs.extend(machine.server.iter().chain([&machine.daemon]));
                }
                Kind::CutOff | Kind::Mute | Kind::JumpClock | Kind::Estrange => {}
            }
        }
        programs
    }

    fn others<'a>(&self, machines: &'a Machines) -> impl Iterator<Item = usize> + use<'a> {
        let victim = self.victim;
        (0..machines.count()).filter(move |other| *other != victim)
    }
}

/// How long it took after each fault until everything was answered that had been asked.
#[derive(Default)]
pub struct Recoveries(BTreeMap<Kind, Vec<Duration>>);

impl Recoveries {
    /// One more.
    pub fn add(&mut self, kind: Kind, took: Duration) {
        self.0.entry(kind).or_default().push(took);
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        self.0.values().flatten().max().copied().unwrap_or_default()
    }

    /// A line for each kind: how often, and how long at the median and at most.
    pub fn report(&mut self) {
        for (kind, times) in &mut self.0 {
            times.sort();
            let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
            println!(
                "{kind:?}: {} times, answered after {median:.1?} (median), {most:.1?} (at most)",
                times.len()
            );
        }
    }
}
