//! The rules, example by example, and all of them at once while the process dies at any moment.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::agents::subagent::Priority;
use crate::agents::team::{
    Coordination, Create, MESSAGE_BYTES_MAX, MESSAGES_MAX, Member, Message, TEAMS_MAX, TeamState, TeamStatus,
};
use crate::conversation::event::{Cause, Outcome};
use crate::error::limit::Limit;
use crate::scope::Scopes;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn principal(name: &str) -> Principal {
    let owner = Owner::Credential(name.into());
    Principal { owner, ..Principal::new(name, Scopes::USER) }
}

fn setup(running_max: usize) -> RegistrySettings {
    RegistrySettings {
        running_max,
        depth_max: 3,
        agents: ["main".into(), "work".into()].into(),
        default: Some("main".into()),
    }
}

fn task(text: &str) -> Task {
    Task { description: text.into(), priority: Priority::Medium }
}

fn said(text: &str) -> TurnEnd {
    let usage = Usage::new(3, 2);
    TurnEnd { outcome: Outcome::Completed, text: text.into(), usage }
}

fn failed() -> TurnEnd {
    TurnEnd { outcome: Outcome::Failed(ErrorCode::Provider.error("away")), ..said("") }
}

/// A registry, what of it is written down, and the sessions it works with.
struct World {
    registry: AgentRegistry,
    kept: Kept,
    setup: RegistrySettings,
    clock: u64,
    ids: u128,
    effects: VecDeque<Effect>,
    news: Vec<News>,
    /// By idempotency key: whose run it is, what it was prompted with, and how it ended.
    runs: BTreeMap<String, (SubAgentId, String, Option<TurnEnd>)>,
    /// What was put into conversations.
    notes: BTreeMap<String, Note>,
}

impl World {
    fn new(running_max: usize) -> Self {
        let setup = setup(running_max);
        Self {
            registry: AgentRegistry::restore(setup.clone(), Kept::default()),
            kept: Kept::default(),
            setup,
            clock: 0,
            ids: 0,
            effects: VecDeque::new(),
            news: Vec::new(),
            runs: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    fn moment<T>(&mut self, decide: impl FnOnce(&mut AgentRegistry, &mut Moment<'_>) -> T) -> T {
        self.clock += 1;
        let ids = &mut self.ids;
        let mut random = || {
            *ids += 1;
            ids.to_be_bytes()
        };
        decide(&mut self.registry, &mut Moment { now: at(self.clock), random: &mut random })
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        at(self.clock)
    }

    fn spawn(&mut self, parent: Option<SessionKey>, text: &str) -> Result<AgentStatus, Error> {
        let by = principal("ada");
        let parent = parent.map(|session| (session, by.owner.clone()));
        let spawn = Spawn {
            parent: None,
            kind: "work".into(),
            task: task(text),
            tokens_max: None,
            model: None,
            call: None,
        };
        let status = self.moment(|registry, at| registry.spawn(at, &by, spawn, parent));
        self.write();
        status
    }

    fn team(&mut self, strategy: Coordination, members: usize) -> Result<TeamStatus, Error> {
        let by = principal("ada");
        let members = (0..members)
            .map(|at| Member { kind: "helper".into(), role: format!("r{at}"), tokens_max: None, model: None })
            .collect();
        let (name, description) = ("crew".into(), Some("to try it".into()));
        let create = Create { name, description, members, strategy, task: task("solve it") };
        let status = self.moment(|registry, at| registry.create(at, &by, create));
        self.write();
        status
    }

    fn message(&mut self, team: &TeamId, from: &str, to: Option<&str>, text: &str) -> Result<String, Error> {
        let message = Message {
            team: team.clone(),
            from: from.into(),
            to: to.map(str::to_owned),
            content: text.into(),
            metadata: None,
        };
        let sent = self.moment(|registry, at| registry.message(at, &principal("ada"), message));
        self.write();
        Ok(sent?.0)
    }

    /// What was decided is written down and will be done.
    fn write(&mut self) {
        let Step { changes, effects, news } = self.registry.take();
        changes.into_iter().for_each(|change| keep(&mut self.kept, change));
        self.effects.extend(effects);
        self.news.extend(news);
    }

    /// Does the next thing there is to do.
    fn act(&mut self) -> bool {
        let Some(effect) = self.effects.pop_front() else { return false };
        let now = self.now();
        match effect {
            Effect::Make(_) => {}
            Effect::Prompt(id) => {
                let Some(agent) = self.registry.agent(&id) else { return true };
                let Phase::Turn { content, .. } = &agent.phase else { return true };
                let run = (id.clone(), content.clone(), None);
                let (_, _, end) = self.runs.entry(agent.turn_key()).or_insert(run);
                if let Some(end) = end.clone() {
                    let turn = agent.turns;
                    self.registry.turn_ended(now, &id, turn, end);
                }
            }
            Effect::Stop(id) => {
                for (whose, _, end) in self.runs.values_mut().filter(|(_, _, end)| end.is_none()) {
                    if *whose == id {
                        *end = Some(TurnEnd { outcome: Outcome::Aborted(Cause::Asked), ..said("half") });
                    }
                }
                self.registry.settled(&id);
            }
            Effect::Note(note) => {
                self.registry.noted(&note.id);
                self.notes.entry(note.id.clone()).or_insert(note);
            }
        }
        self.write();
        true
    }

    fn settle(&mut self) {
        while self.act() {}
    }

    /// The keys of the runs under way.
    fn open(&self) -> Vec<String> {
        self.runs.iter().filter(|(_, run)| run.2.is_none()).map(|(key, _)| key.clone()).collect()
    }

    /// A run ends, and the registry hears of it.
    fn end(&mut self, key: &str, end: TurnEnd) {
        let (id, _, ended) = self.runs.get_mut(key).expect("it is under way");
        *ended = Some(end.clone());
        let (id, now) = (id.clone(), self.now());
        let heard = self.registry.agent(&id).filter(|agent| agent.turn_key() == key).map(|agent| agent.turns);
        if let Some(turn) = heard {
            self.registry.turn_ended(now, &id, turn, end);
        }
        self.write();
    }

    /// Ends the one run that is under way, and gives what it was prompted with.
    fn next(&mut self, end: TurnEnd) -> String {
        self.settle();
        let open = self.open();
        assert_eq!(open.len(), 1, "{open:?}");
        let prompt = self.runs[&open[0]].1.clone();
        self.end(&open[0], end);
        self.settle();
        prompt
    }

    /// The process dies: what is not written is gone, what was to be done is not done.
    fn crash(&mut self) {
        self.effects.clear();
        self.registry = AgentRegistry::restore(self.setup.clone(), self.kept.clone());
        let now = self.now();
        self.registry.resume(now);
        self.write();
    }

    fn status(&self, id: &SubAgentId) -> AgentStatus {
        self.registry.status(&principal("ada"), id).unwrap()
    }

    fn team_status(&self, id: &TeamId) -> TeamStatus {
        self.registry.status_of_team(&principal("ada"), id).unwrap()
    }
}

/// What a store does with a change.
fn keep(kept: &mut Kept, change: Change) {
    match change {
        Change::Agent(agent) => {
            kept.agents.retain(|old| old.id != agent.id);
            kept.agents.push(*agent);
        }
        Change::ForgetAgent(id) => kept.agents.retain(|agent| agent.id != id),
        Change::Team(team) => match kept.teams.iter_mut().find(|old| old.id == team.id) {
            Some(old) => *old = Team { said: std::mem::take(&mut old.said), ..*team },
            None => kept.teams.push(*team),
        },
        Change::ForgetTeam(id) => kept.teams.retain(|team| team.id != id),
        Change::Said { team, number, place, text } => {
            let team = kept.teams.iter_mut().find(|old| old.id == team).expect("a team that is kept");
            assert_eq!(team.said.len(), number);
            team.said.push((place, text));
        }
        Change::ForgetSaid(id) => {
            kept.teams.iter_mut().filter(|team| team.id == id).for_each(|team| team.said.clear());
        }
        Change::Mail(mail) => kept.mail.push(mail),
        Change::ForgetMail(number) => kept.mail.retain(|mail| mail.number != number),
        Change::Note(note) => kept.notes.push(note),
        Change::ForgetNote(id) => kept.notes.retain(|note| note.id != id),
    }
}

fn session(name: &str) -> SessionKey {
    SessionKey::new("main", "wundr", name, "main").unwrap()
}

#[test]
fn what_others_decided_is_told_and_done_by_who_reads_it() {
    let mut world = World::new(4);
    let team = world.team(Coordination::Parallel, 2).unwrap().team;
    let status = world.spawn(None, "count").unwrap();
    let read = |world: &World| AgentRegistry::restore(world.setup.clone(), world.kept.clone());
    let nothing = AgentRegistry::restore(world.setup.clone(), Kept::default());
    let spawned = read(&world);
    let told = spawned.news_since(&nothing);
    let is_spawned = |news: &&News| matches!(news, News::Agent(told) if told.what == AgentChange::Spawned);
    assert_eq!((told.len(), told.iter().filter(is_spawned).count()), (4, 3), "{told:?}");
    // Whoever put them to work may have died before it made their sessions.
    let outstanding = spawned.outstanding();
    let made = Effect::Make(status.agent.clone());
    let prompted = Effect::Prompt(status.agent.clone());
    let at = |effect| outstanding.iter().position(|found| *found == effect).unwrap();
    assert!(at(made) < at(prompted), "{outstanding:?}");
    assert_eq!(outstanding.len(), 6, "{outstanding:?}");

    assert!(spawned.news_since(&read(&world)).is_empty(), "nothing was decided since");
    let now = world.now();
    world.registry.dissolve(now, &principal("ada"), &team, None).unwrap();
    world.registry.stop(now, &principal("ada"), &status.agent, None, false).unwrap();
    world.write();
    let told = read(&world).news_since(&spawned);
    let is_stopped = |news: &&News| matches!(news, News::Agent(told) if told.what == AgentChange::Stopped);
    assert_eq!(told.iter().filter(is_stopped).count(), 3, "{told:?}");
    let is_dissolved =
        |news: &News| matches!(news, News::Team(told) if matches!(&**told, TeamNews::Dissolved { .. }));
    assert!(is_dissolved(told.last().unwrap()), "{told:?}");
}

#[test]
fn an_agent_does_its_task_and_its_parent_is_told() {
    let mut world = World::new(10);
    let agent = world.spawn(Some(session("s")), "count to ten").unwrap();
    assert_eq!((agent.state, agent.depth), (AgentState::Running, 1));
    assert_eq!(agent.session.agent(), "work");
    assert_eq!(world.next(said("1 to 10")), "count to ten");
    let status = world.status(&agent.agent);
    assert_eq!((status.state, status.turns_completed), (AgentState::Completed, 1));
    assert_eq!((status.answer.as_deref(), status.usage.total()), (Some("1 to 10"), 5));
    let [note] = world.notes.values().collect::<Vec<_>>()[..] else { panic!("{:?}", world.notes) };
    assert_eq!(note.session, session("s"));
    assert!(note.content.contains("completed") && note.content.ends_with("\n\n1 to 10"), "{}", note.content);
    let whats: Vec<_> =
        world
            .news
            .iter()
            .filter_map(|news| {
                if let News::Agent(news) = news { Some((news.what, news.status.state)) } else { None }
            })
            .collect();
    assert_eq!(
        whats,
        [(AgentChange::Spawned, AgentState::Running), (AgentChange::Changed, AgentState::Completed)]
    );
}

#[test]
fn number_and_depth_are_limited_and_strangers_see_nothing() {
    let mut world = World::new(4);
    let mut parent = Some(session("s"));
    for depth in 1..=3 {
        let agent = world.spawn(parent, "dig").unwrap();
        assert_eq!(agent.depth, depth);
        parent = Some(agent.session);
    }
    let deep = world.spawn(parent.clone(), "dig").unwrap_err();
    assert_eq!(deep.code, ErrorCode::Conflict);
    assert_eq!(deep.detail, Some(Detail::Limit { name: Limit::AgentDepth, limit: 3 }));
    let last = world.spawn(None, "dig").unwrap();
    let many = world.spawn(None, "dig").unwrap_err();
    assert_eq!(many.code, ErrorCode::Unavailable);
    assert_eq!(many.detail, Some(Detail::Limit { name: Limit::Agents, limit: 4 }));
    let bob = principal("bob");
    assert_eq!(world.registry.status(&bob, &last.agent).unwrap_err().code, ErrorCode::NotFound);
    let stop = world.registry.stop(at(99), &bob, &last.agent, None, true);
    assert_eq!(stop.unwrap_err().code, ErrorCode::NotFound);
    let spawn = Spawn {
        parent: None,
        kind: "x".into(),
        task: task("spy"),
        tokens_max: None,
        model: None,
        call: None,
    };
    let parent = parent.map(|session| (session, principal("ada").owner));
    let spied = world.moment(|registry, at| registry.spawn(at, &bob, spawn, parent));
    assert_eq!(spied.unwrap_err().code, ErrorCode::NotFound);
    world.registry.session_ends(at(100), &bob, &session("s"));
    assert_eq!(world.registry.running(), 4, "nobody stops what is another's by stopping his session");
}

#[test]
fn who_is_stopped_takes_with_him_who_works_for_him_and_twice_is_a_conflict() {
    let mut world = World::new(10);
    let top = world.spawn(Some(session("s")), "a").unwrap();
    let below = world.spawn(Some(top.session.clone()), "b").unwrap();
    let other = world.spawn(Some(session("s")), "c").unwrap();
    world.settle();
    let ada = principal("ada");
    let now = world.now();
    let stopped = world.registry.stop(now, &ada, &top.agent, Some("enough".into()), false).unwrap();
    world.write();
    world.settle();
    assert_eq!(stopped.state, AgentState::Stopped);
    assert_eq!(world.status(&below.agent).state, AgentState::Stopped);
    assert_eq!(world.status(&other.agent).state, AgentState::Running);
    assert_eq!(world.open().len(), 1);
    assert_eq!(world.notes.len(), 1, "the parent is told of its own, not of the one below");
    assert!(
        world.notes.values().all(|note| note.content.contains("stopped") && note.content.contains("enough"))
    );
    let again = world.registry.stop(now, &ada, &top.agent, None, false).unwrap_err();
    assert_eq!(again.code, ErrorCode::Conflict);
    assert!(world.registry.stop(now, &ada, &top.agent, None, true).is_ok());
    world.registry.session_ends(now, &ada, &session("s"));
    world.write();
    world.settle();
    assert_eq!(world.status(&other.agent).state, AgentState::Stopped);
    assert_eq!((world.open().len(), world.notes.len()), (0, 1), "a session that is stopped is told nothing");
}

#[test]
fn in_sequence_each_is_told_what_was_said_before() {
    let mut world = World::new(10);
    let team = world.team(Coordination::Sequential, 3).unwrap();
    assert_eq!(team.state, TeamState::Active);
    let first = world.next(said("one"));
    assert!(first.starts_with("solve it\n\n[You are r0 in the team crew (to try it)."), "{first}");
    assert!(!first.contains("What was said"), "{first}");
    let second = world.next(said("two"));
    assert!(second.contains("You are r1") && second.ends_with("\n\nr0: one"), "{second}");
    assert!((world.team_status(&team.team).progress - 2.0 / 3.0).abs() < 0.01);
    let third = world.next(said("three"));
    assert!(third.ends_with("\n\nr0: one\n\nr1: two"), "{third}");
    let done = world.team_status(&team.team);
    assert_eq!((done.state, done.progress), (TeamState::Completed, 1.0));
    let answers: Vec<_> = done.members.iter().map(|member| member.answer.as_deref().unwrap()).collect();
    assert_eq!(answers, ["one", "two", "three"]);
    assert!(done.members.iter().all(|member| member.state == AgentState::Completed));
}

#[test]
fn in_turns_there_are_rounds_and_in_parallel_no_more_than_may_run() {
    let mut world = World::new(2);
    let team = world.team(Coordination::RoundRobin { rounds: 2 }, 2).unwrap();
    for (turn, expected) in ["r0", "r1", "r0", "r1"].iter().enumerate() {
        let prompt = world.next(said(&format!("t{turn}")));
        assert!(prompt.contains(&format!("You are {expected}")), "{prompt}");
        assert!(prompt.contains(&format!("Round {} of 2", turn / 2 + 1)), "{prompt}");
        assert_eq!(prompt.matches("\n\nr").count(), turn, "{prompt}");
    }
    assert_eq!(world.team_status(&team.team).state, TeamState::Completed);

    let team = world.team(Coordination::Parallel, 3).unwrap();
    world.settle();
    assert_eq!(world.open().len(), 2);
    let states: Vec<_> = team.members.iter().map(|member| member.state.name()).collect();
    assert_eq!(states, ["running", "running", "initializing"]);
    world.end(&world.open()[0].clone(), failed());
    world.settle();
    assert_eq!(world.open().len(), 2, "the third has begun");
    for _ in 0..2 {
        world.end(&world.open()[0].clone(), said("x"));
        world.settle();
    }
    let done = world.team_status(&team.team);
    assert_eq!(done.state, TeamState::Completed, "two of three could");
    assert_eq!(done.members[0].why.as_ref().unwrap().message, "away");
    let team = world.team(Coordination::Sequential, 1).unwrap();
    world.next(failed());
    assert_eq!(world.team_status(&team.team).state, TeamState::Failed);
}

#[test]
fn messages_are_read_in_order_and_answered_to_who_sent_them() {
    let mut world = World::new(10);
    let team = world.team(Coordination::Parallel, 2).unwrap().team;
    world.settle();
    let members = world.team_status(&team).members;
    world.message(&team, "r0", Some("r1"), "first?").unwrap();
    world.message(&team, members[0].agent.as_str(), None, "second?").unwrap();
    world.settle();
    assert_eq!(world.open().len(), 2, "messages wait until it knows its task");
    let [a, b] = &world.open()[..] else { panic!("{:?}", world.open()) };
    let (a, b) = (a.clone(), b.clone());
    world.end(&a, said("x"));
    world.end(&b, said("y"));
    let first = world.next(said("to the first"));
    assert!(first.starts_with("first?\n\n[This is a message from r0 of the team crew"), "{first}");
    assert_eq!(world.team_status(&team).state, TeamState::Active, "one waits");
    world.next(said("to the second"));
    assert_eq!(world.team_status(&team).state, TeamState::Completed);
    let told: Vec<&Note> = world.notes.values().collect();
    assert!(told.len() == 2 && told.iter().all(|note| note.session == members[0].session), "{told:?}");
    assert!(told[0].content.ends_with("answers the message \"first?\":]\n\nto the first"), "{told:?}");
    let relayed: Vec<(&str, Option<&str>)> = world
        .news
        .iter()
        .filter_map(|news| match news {
            News::Team(news) => match &**news {
                TeamNews::Message(relayed) => Some((&*relayed.content, relayed.answers.as_deref())),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(relayed.len(), 4);
    assert!(relayed[2].0 == "to the first" && relayed[2].1.is_some(), "{relayed:?}");

    let error = |world: &mut World, from: &str, to: Option<&str>, text: &str| {
        world.message(&team, from, to, text).unwrap_err().code
    };
    assert_eq!(error(&mut world, "r0", None, "too late"), ErrorCode::Conflict);
    assert_eq!(error(&mut world, "nobody", None, "hi"), ErrorCode::NotFound);
    assert_eq!(error(&mut world, "r0", Some("nobody"), "hi"), ErrorCode::NotFound);
    assert_eq!(error(&mut world, "r0", Some("r0"), "hi"), ErrorCode::InvalidRequest);
    let long = "x".repeat(MESSAGE_BYTES_MAX + 1);
    assert_eq!(error(&mut world, "r0", Some("r1"), &long), ErrorCode::TooLarge);
    let stranger =
        Message { team: team.clone(), from: "r0".into(), to: None, content: "hi".into(), metadata: None };
    let refused = world.moment(|registry, at| registry.message(at, &principal("bob"), stranger));
    assert_eq!(refused.unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_team_of_one_has_nobody_to_send_a_message_to() {
    let mut world = World::new(10);
    let team = world.team(Coordination::Parallel, 1).unwrap().team;
    let refused = world.message(&team, "r0", None, "hello").unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("has one member: there is nobody to send a message to"), "{refused}");
}

#[test]
fn a_mailbox_has_a_bound() {
    let mut world = World::new(10);
    let team = world.team(Coordination::Sequential, 2).unwrap().team;
    for _ in 0..MESSAGES_MAX {
        world.message(&team, "r0", Some("r1"), "hello").unwrap();
    }
    let full = world.message(&team, "r0", Some("r1"), "one more").unwrap_err();
    assert_eq!(full.code, ErrorCode::Unavailable);
    assert_eq!(world.kept.mail.len(), MESSAGES_MAX);
}

#[test]
fn a_team_is_dissolved_with_all_who_work_for_its_members() {
    let mut world = World::new(10);
    let team = world.team(Coordination::RoundRobin { rounds: 3 }, 2).unwrap();
    world.next(said("x"));
    world.settle();
    let below = world.spawn(Some(team.members[0].session.clone()), "help").unwrap();
    world.message(&team.team, "r0", Some("r1"), "hello").unwrap();
    world.settle();
    let (ada, now) = (principal("ada"), world.now());
    let over = world.registry.dissolve(now, &ada, &team.team, Some("enough".into())).unwrap();
    world.write();
    world.settle();
    assert_eq!((over.state, over.why.as_deref()), (TeamState::Dissolved, Some("enough")));
    assert!((over.progress - 1.0 / 6.0).abs() < 0.01, "{}", over.progress);
    assert_eq!(world.status(&below.agent).state, AgentState::Stopped);
    assert!(world.open().is_empty() && world.kept.mail.is_empty() && world.notes.is_empty());
    let again = world.registry.dissolve(now, &ada, &team.team, None).unwrap_err();
    assert_eq!(again.code, ErrorCode::Conflict);
}

#[test]
fn what_is_asked_for_is_checked() {
    let mut world = World::new(10);
    let empty = world.spawn(None, " \n").unwrap_err();
    assert_eq!(empty.code, ErrorCode::InvalidRequest);
    let large = world.spawn(None, &"x".repeat(70_000)).unwrap_err();
    assert_eq!(large.code, ErrorCode::TooLarge);
    for (strategy, members) in [
        (Coordination::Parallel, 0),
        (Coordination::Parallel, 17),
        (Coordination::RoundRobin { rounds: 11 }, 1),
    ] {
        assert_eq!(world.team(strategy, members).unwrap_err().code, ErrorCode::InvalidRequest);
    }
    for _ in 0..TEAMS_MAX {
        world.team(Coordination::Sequential, 1).unwrap();
    }
    assert_eq!(world.team(Coordination::Sequential, 1).unwrap_err().code, ErrorCode::Unavailable);
    let gone = world.spawn(Some(SessionKey::new("main", CHANNEL, "x", "main").unwrap()), "a").unwrap_err();
    assert_eq!(gone.code, ErrorCode::Conflict);
    let custom = Coordination::from_name("custom", None).unwrap_err();
    assert!(custom.message.contains("custom"), "{custom}");
}

#[test]
fn those_that_are_over_are_forgotten_when_there_are_too_many() {
    let mut world = World::new(10);
    let mut first = None;
    for _ in 0..OVER_AGENTS_MAX + 5 {
        let agent = world.spawn(None, "a").unwrap();
        first.get_or_insert(agent.agent);
        world.next(said("x"));
    }
    assert_eq!(world.kept.agents.len(), OVER_AGENTS_MAX);
    let forgotten = world.registry.status(&principal("ada"), &first.unwrap()).unwrap_err();
    assert_eq!(forgotten.code, ErrorCode::NotFound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CREW_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200)
    ))]

    /// Whatever is asked, whenever whatever ends and wherever the process dies: no more have a turn than
    /// may, nobody has two at once, nothing runs twice, what is over stays over, who is stopped leaves
    /// nobody at work for him, and in the end everybody is at rest and every note was put once.
    #[test]
    fn everybody_comes_to_an_end(
        running_max in 1usize..5,
        script in proptest::collection::vec((0u8..16, 0usize..64), 1..120),
    ) {
        let mut world = World::new(running_max);
        let ada = principal("ada");
        let mut over: BTreeMap<SubAgentId, AgentState> = BTreeMap::new();
        for (move_, n) in script {
            let agents: Vec<SubAgentId> = world.registry.agents.keys().cloned().collect();
            let teams: Vec<TeamId> = world.registry.teams.keys().cloned().collect();
            let some_agent = agents.get(n % agents.len().max(1)).cloned();
            let some_team = teams.get(n % teams.len().max(1)).cloned();
            let now = world.now();
            match (move_, some_agent, some_team) {
                (0, agent, _) => {
                    let sessions = agent.map(|id| world.registry.agents[&id].session.clone());
                    let parent = sessions.filter(|_| n % 3 > 0).or((n % 2 > 0).then(|| session("s")));
                    let _ = world.spawn(parent, "a task");
                }
                (1, ..) => {
                    let rounds = 1 + n as u32 % 3;
                    let strategy = [Coordination::Sequential, Coordination::Parallel, Coordination::RoundRobin { rounds }][n % 3];
                    let _ = world.team(strategy, 1 + n % 4);
                }
                (2 | 3, _, Some(team)) => {
                    let to = format!("r{}", n / 4 % 4);
                    let _ = world.message(&team, &format!("r{}", n % 4), (n % 5 > 0).then_some(&*to), "hello");
                }
                (4, Some(agent), _) => {
                    let _ = world.registry.stop(now, &ada, &agent, None, n % 2 > 0);
                }
                (5, _, Some(team)) if n % 3 == 0 => {
                    let _ = world.registry.dissolve(now, &ada, &team, None);
                }
                (6, Some(agent), _) if n % 4 == 0 => {
                    let session = world.registry.agents[&agent].session.clone();
                    world.registry.session_ends(now, &ada, &session);
                }
                (7, ..) if n % 16 == 0 => world.registry.session_ends(now, &ada, &session("s")),
                (8, ..) => world.crash(),
                // Before anything of it was written.
                (9, Some(agent), _) => {
                    let _ = world.registry.stop(now, &ada, &agent, None, true);
                    world.crash();
                }
                (10..=12, ..) => {
                    let open = world.open();
                    if let Some(key) = open.get(n % open.len().max(1)) {
                        let end = [said("done"), said(""), failed(), TurnEnd { outcome: Outcome::Aborted(Cause::Asked), ..said("h") }];
                        world.end(key, end[n % 4].clone());
                    }
                }
                _ => { world.act(); }
            }
            world.write();
            for agent in world.registry.agents.values() {
                prop_assert!(world.registry.running_for(&agent.owner) <= running_max);
            }
            let restored = AgentRegistry::restore(world.setup.clone(), world.kept.clone());
            prop_assert_eq!(&restored.agents, &world.registry.agents, "what is written is what is");
            prop_assert_eq!(&restored.teams, &world.registry.teams);
            prop_assert_eq!(&restored.mail, &world.registry.mail);
            prop_assert_eq!(&restored.notes, &world.registry.notes);
            for agent in world.registry.agents.values() {
                prop_assert!(agent.depth <= 3);
                if let Some(state) = over.get(&agent.id) {
                    prop_assert_eq!(*state, agent.state(), "what is over stays over");
                }
                if agent.is_over() {
                    over.insert(agent.id.clone(), agent.state());
                }
                if agent.state() == AgentState::Stopped {
                    let works = |other: &&Agent| other.parent.as_ref() == Some(&agent.session) && !other.is_over();
                    prop_assert!(world.registry.agents.values().find(works).is_none());
                }
                let open = world.runs.iter().filter(|(_, run)| run.0 == agent.id && run.2.is_none());
                prop_assert!(open.count() <= 1, "one turn at a time");
            }
        }
        for _ in 0..2000 {
            world.settle();
            let open = world.open();
            let Some(key) = open.first() else { break };
            world.end(key, said("done"));
        }
        world.settle();
        prop_assert!(world.open().is_empty(), "nothing runs on: {:?}", world.open());
        prop_assert!(world.registry.agents.values().all(|a| matches!(a.phase, Phase::Over { settling: false, .. })), "{:?}", world.registry.agents);
        prop_assert!(world.registry.teams.values().all(|team| team.state.is_over()), "{:?}", world.registry.teams);
        prop_assert!(world.kept.mail.is_empty() && world.kept.notes.is_empty());
        prop_assert!(world.kept.teams.iter().all(|team| team.said.is_empty()));
    }
}
