//! Who may call a provider now, and who waits for a place.
//!
//! A place that becomes free goes round: to the owner whose turn it is, and of that owner's sessions to the one
//! whose turn it is there. So neither an owner with many sessions nor a session with many calls keeps others
//! waiting for longer than one call of each.
//!
//! ```text
//!            owners            sessions        calls
//!  next ->   ada    --next ->  a, b, c   -->   oldest first
//!            bob               d
//! ```
//!
//! So many may wait and no more. Where all those places are taken, a call of an owner who has few there takes
//! the place of the latest one of the owner who has most: who floods the queue keeps others out of it no more
//! than he keeps them out of the provider.

use std::collections::VecDeque;

use crate::ids::{Owner, SessionKey};

/// A call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

/// The calls of one provider: those under way, counted, and those that wait, with what each brought along.
#[derive(Debug)]
pub struct Queue<T> {
    limit: usize,
    waiting_max: usize,
    running: usize,
    waiting: usize,
    /// Those whose turn comes next first. None is empty.
    owners: VecDeque<OwnerLine<T>>,
    next: u64,
}

#[derive(Debug)]
struct OwnerLine<T> {
    owner: Owner,
    waiting: usize,
    /// Those whose turn comes next first. None is empty.
    sessions: VecDeque<SessionLine<T>>,
}

#[derive(Debug)]
struct SessionLine<T> {
    session: SessionKey,
    calls: VecDeque<(Position, T)>,
}

/// What becomes of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered<T> {
    /// It has a place. Whoever made it says when it is over ([`Queue::leave`]).
    Begins(T),
    /// It waits.
    Waits {
        /// As what.
        position: Position,
        /// The call that waits no more, for want of room.
        displaced: Option<T>,
    },
    /// Too many wait.
    Full(T),
}

impl<T> Queue<T> {
    /// With places for so many calls at once, at least one, and for so many that wait.
    pub const fn new(limit: usize, waiting_max: usize) -> Self {
        let limit = if limit == 0 { 1 } else { limit };
        Self { limit, waiting_max, running: 0, waiting: 0, owners: VecDeque::new(), next: 0 }
    }

    /// The most calls at once.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// The calls under way. More than [`Self::limit`] only since that was lowered.
    pub const fn running(&self) -> usize {
        self.running
    }

    /// The calls that wait.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// A session wants to call.
    pub fn enter(&mut self, session: &SessionKey, call: T) -> Entered<T> {
        // Nobody waits where there is room.
        if self.running < self.limit {
            self.running += 1;
            return Entered::Begins(call);
        }
        let owner = session.owner();
        let mut displaced = None;
        if self.waiting >= self.waiting_max {
            displaced = self.displace(&owner);
            if displaced.is_none() {
                return Entered::Full(call);
            }
        }
        let position = Position(self.next);
        self.next += 1;
        self.waiting += 1;
        let line = match self.owners.iter().position(|line| line.owner == owner) {
            Some(at) => &mut self.owners[at],
            None => {
                self.owners.push_back(OwnerLine { owner, waiting: 0, sessions: VecDeque::new() });
                let last = self.owners.len() - 1;
                &mut self.owners[last]
            }
        };
        line.waiting += 1;
        match line.sessions.iter_mut().find(|line| line.session == *session) {
            Some(line) => line.calls.push_back((position, call)),
            None => {
                let calls = VecDeque::from([(position, call)]);
                line.sessions.push_back(SessionLine { session: session.clone(), calls });
            }
        }
        Entered::Waits { position, displaced }
    }

    /// A call that had a place is over. The one that begins in its stead has it.
    pub fn leave(&mut self) -> Option<T> {
        self.running = self.running.saturating_sub(1);
        self.admit()
    }

    /// A call waits no more; gives what it brought along, unless it began before.
    pub fn cancel(&mut self, position: Position) -> Option<T> {
        for (at, line) in self.owners.iter_mut().enumerate() {
            for (of, session) in line.sessions.iter_mut().enumerate() {
                let found = session.calls.iter().position(|(known, _)| *known == position);
                let Some((_, call)) = found.and_then(|at| session.calls.remove(at)) else { continue };
                line.waiting -= 1;
                self.waiting -= 1;
                if session.calls.is_empty() {
                    line.sessions.remove(of);
                }
                if line.sessions.is_empty() {
                    self.owners.remove(at);
                }
                return Some(call);
            }
        }
        None
    }

    /// Another number of places, at least one. Those that begin now have theirs.
    pub fn set_limit(&mut self, limit: usize) -> Vec<T> {
        self.limit = limit.max(1);
        std::iter::from_fn(|| self.admit()).collect()
    }

    /// Begins the call whose turn it is, where there is a place.
    fn admit(&mut self) -> Option<T> {
        if self.running >= self.limit {
            return None;
        }
        let mut owner = self.owners.pop_front()?;
        let mut session = owner.sessions.pop_front()?;
        let (_, call) = session.calls.pop_front()?;
        owner.waiting -= 1;
        self.waiting -= 1;
        self.running += 1;
        if !session.calls.is_empty() {
            owner.sessions.push_back(session);
        }
        if !owner.sessions.is_empty() {
            self.owners.push_back(owner);
        }
        Some(call)
    }

    /// Takes the latest call of the owner who has most, in favour of one who has fewer even with one more.
    fn displace(&mut self, in_favour_of: &Owner) -> Option<T> {
        let of_owner = |owner: &Owner| self.owners.iter().find(|line| line.owner == *owner);
        let own = of_owner(in_favour_of).map_or(0, |line| line.waiting);
        let most = self.owners.iter().max_by_key(|line| line.waiting)?;
        if most.waiting <= own + 1 {
            return None;
        }
        let latest = most.sessions.iter().filter_map(|line| line.calls.back()).map(|(at, _)| *at).max()?;
        self.cancel(latest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// A session of `ada`, `bob`, ... by number.
    fn session(owner: usize, name: usize) -> SessionKey {
        let key = SessionKey::new("main", "test", &format!("s{name}"), "main").unwrap();
        let owner = ["ada", "bob", "eve", "tim"][owner % 4];
        key.in_space(&Owner::Credential(owner.into()))
    }

    fn begins<T: std::fmt::Debug>(entered: Entered<T>) {
        assert!(matches!(entered, Entered::Begins(_)), "{entered:?}");
    }

    fn waits<T: std::fmt::Debug>(entered: Entered<T>) -> Position {
        match entered {
            Entered::Waits { position, displaced: None } => position,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn places_go_round_between_owners_and_then_between_their_sessions() {
        let mut queue = Queue::new(1, 100);
        begins(queue.enter(&session(0, 0), "first"));
        for (owner, name, call) in
            [(0, 0, "a1"), (0, 0, "a2"), (0, 0, "a3"), (0, 1, "b1"), (1, 0, "c1"), (1, 0, "c2")]
        {
            waits(queue.enter(&session(owner, name), call));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.leave()).collect();
        assert_eq!(order, ["a1", "c1", "b1", "c2", "a2", "a3"]);
        assert_eq!((queue.running(), queue.waiting()), (0, 0));
    }

    #[test]
    fn who_floods_the_queue_keeps_nobody_out_of_it() {
        let mut queue = Queue::new(1, 3);
        begins(queue.enter(&session(0, 0), "a0"));
        for call in ["a1", "a2", "a3"] {
            waits(queue.enter(&session(0, 0), call));
        }
        assert_eq!(queue.enter(&session(0, 0), "a4"), Entered::Full("a4"), "his own places are taken");
        let entered = queue.enter(&session(1, 0), "b1");
        assert!(matches!(entered, Entered::Waits { displaced: Some("a3"), .. }), "{entered:?}");
        assert_eq!(queue.enter(&session(1, 0), "b2"), Entered::Full("b2"), "he would have as many");
        assert_eq!(queue.waiting(), 3);
        assert_eq!(std::iter::from_fn(|| queue.leave()).collect::<Vec<_>>(), ["a1", "b1", "a2"]);
    }

    #[test]
    fn another_limit_loses_nobody() {
        let mut queue = Queue::new(2, 100);
        for call in 0..6 {
            queue.enter(&session(0, call), call);
        }
        assert_eq!(queue.set_limit(1), [0; 0]);
        assert_eq!((queue.running(), queue.waiting()), (2, 4), "what runs goes on");
        assert_eq!(queue.leave(), None, "there are too many still");
        assert_eq!(queue.leave(), Some(2));
        assert_eq!(queue.set_limit(3), [3, 4]);
        assert_eq!((queue.running(), queue.waiting()), (3, 1));
        assert_eq!(queue.set_limit(0), [0; 0], "there is one place at least");
        assert_eq!(queue.limit(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(usize, usize),
        Leave,
        Cancel(usize),
        Limit(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..4usize, 0..3usize).prop_map(|(owner, name)| Step::Enter(owner, name)),
            3 => Just(Step::Leave),
            1 => any::<usize>().prop_map(Step::Cancel),
            1 => (0..6usize).prop_map(Step::Limit),
        ]
    }

    proptest! {
        /// Whatever comes: never more than the limit begin, nobody waits beside a free place, every call is
        /// in one place, and while an owner or a session waits no other gets more than one turn more than it.
        #[test]
        fn nobody_starves_and_nothing_leaks(steps in prop::collection::vec(step(), 0..200), waiting_max in 1..20usize) {
            let mut queue = Queue::new(2, waiting_max);
            let (mut running, mut limit) = (0usize, 2usize);
            // Those who wait, and how often each other owner, and each other session of its owner, began since
            // its own last turn.
            let mut waiting: BTreeMap<usize, (Position, SessionKey)> = BTreeMap::new();
            let mut overtaken: BTreeMap<(String, String), usize> = BTreeMap::new();
            for (call, step) in steps.into_iter().enumerate() {
                let mut begun = Vec::new();
                match step {
                    Step::Enter(owner, name) => {
                        let key = session(owner, name);
                        match queue.enter(&key, (call, key.clone())) {
                            Entered::Begins(_) => running += 1,
                            Entered::Waits { position, displaced } => {
                                if let Some((gone, _)) = displaced {
                                    prop_assert!(waiting.remove(&gone).is_some());
                                }
                                waiting.insert(call, (position, key));
                            }
                            Entered::Full(_) => prop_assert_eq!(waiting.len(), waiting_max),
                        }
                    }
                    Step::Leave if running > 0 => {
                        running -= 1;
                        begun.extend(queue.leave());
                    }
                    Step::Leave => {}
                    Step::Cancel(which) => {
                        if let Some(call) = waiting.keys().nth(which % waiting.len().max(1)).copied() {
                            let (position, key) = waiting.remove(&call).unwrap();
                            prop_assert_eq!(queue.cancel(position), Some((call, key)));
                            prop_assert_eq!(queue.cancel(position), None);
                        }
                    }
                    Step::Limit(now) => {
                        limit = now.max(1);
                        begun.extend(queue.set_limit(now));
                    }
                }
                for (call, key) in begun {
                    running += 1;
                    prop_assert!(running <= limit);
                    prop_assert!(waiting.remove(&call).is_some(), "it waited");
                    let turn = |key: &SessionKey| [format!("{:?}", key.owner()), key.as_str().to_owned()];
                    let [owner, own] = turn(&key);
                    overtaken.retain(|(passed, _), _| *passed != owner && *passed != own);
                    for (_, other) in waiting.values() {
                        let [its_owner, its_own] = turn(other);
                        let pair = if its_owner != owner { Some((its_owner, owner.clone())) }
                            else if its_own != own { Some((its_own, own.clone())) } else { None };
                        if let Some(pair) = pair {
                            overtaken.entry(pair).or_insert(0);
                        }
                    }
                    for ((passed, by), times) in &mut overtaken {
                        let still = waiting.values().any(|(_, other)| turn(other).contains(passed));
                        if still && (*by == owner || *by == own) {
                            *times += 1;
                            prop_assert!(*times <= 1, "{passed} was overtaken by {by}");
                        }
                    }
                }
                let waits: Vec<_> = waiting.values().map(|(_, key)| [format!("{:?}", key.owner()), key.as_str().to_owned()]).collect();
                overtaken.retain(|(passed, _), _| waits.iter().any(|of| of.contains(passed)));
                prop_assert_eq!((queue.running(), queue.waiting(), queue.limit()), (running, waiting.len(), limit));
                prop_assert!(waiting.is_empty() || running >= limit, "nobody waits beside a free place");
            }
            // All of it comes to an end.
            while running > 0 || !waiting.is_empty() {
                prop_assert!(running > 0);
                running -= 1;
                if let Some((call, _)) = queue.leave() {
                    waiting.remove(&call);
                    running += 1;
                }
            }
            prop_assert!(queue.owners.is_empty() && queue.running() == 0);
        }
    }
}
