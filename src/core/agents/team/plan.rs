//! Whose turn at the task it is in a team: a function of how far each member has come.
//!
//! A member that failed or was stopped has no more turns and is waited for no longer, so that every
//! team comes to an end whatever becomes of its members.

use super::Coordination;

/// How far a member has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many of its turns at the task are over.
    pub turns: u32,
    /// Whether it has one now, at the task or at a message.
    pub is_busy: bool,
    /// Whether it has none any more.
    pub is_out: bool,
}

impl Progress {
    /// Whether it has turns at the task to come.
    fn is_owed(self, rounds: u32) -> bool {
        !self.is_out && self.turns < rounds
    }
}

/// The members whose turn at the task can begin now, in order.
pub fn due(strategy: Coordination, members: &[Progress]) -> Vec<usize> {
    let rounds = strategy.rounds();
    let owed = |place: &usize| members[*place].is_owed(rounds);
    match strategy {
        Coordination::Parallel => {
            (0..members.len()).filter(owed).filter(|at| !members[*at].is_busy).collect()
        }
        Coordination::Sequential | Coordination::RoundRobin { .. } => {
            // Who has had the fewest, the first of those.
            let next = (0..members.len()).filter(owed).min_by_key(|place| members[*place].turns);
            next.into_iter().filter(|place| !members[*place].is_busy).collect()
        }
    }
}

/// Whether no turn at the task is to come or under way.
pub fn is_over(strategy: Coordination, members: &[Progress]) -> bool {
    !members.iter().any(|member| member.is_owed(strategy.rounds()))
}

/// How much of the turns at the task is over, 0 to 1.
pub fn progress(strategy: Coordination, members: &[Progress]) -> f64 {
    let rounds = strategy.rounds();
    let all = f64::from(rounds) * members.len() as f64;
    let over: u32 =
        members.iter().map(|member| if member.is_out { rounds } else { member.turns.min(rounds) }).sum();
    if all > 0.0 { f64::from(over) / all } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn had(turns: u32) -> Progress {
        Progress { turns, is_busy: false, is_out: false }
    }

    #[test]
    fn each_strategy_has_its_order() {
        let busy = Progress { is_busy: true, ..had(0) };
        let out = Progress { is_out: true, ..had(0) };
        let rounds = Coordination::RoundRobin { rounds: 2 };
        assert_eq!(due(Coordination::Parallel, &[had(0), busy, had(0), out, had(1)]), [0, 2]);
        assert_eq!(due(Coordination::Sequential, &[had(0), had(0)]), [0]);
        assert_eq!(due(Coordination::Sequential, &[busy, had(0)]), [0usize; 0], "one after another");
        assert_eq!(due(Coordination::Sequential, &[out, had(0)]), [1], "who is out is waited for no longer");
        assert_eq!(due(rounds, &[had(1), had(0)]), [1]);
        assert_eq!(due(rounds, &[had(1), had(1)]), [0], "the next round");
        assert!(is_over(rounds, &[had(2), out]) && !is_over(rounds, &[had(2), had(1)]));
        assert!((progress(rounds, &[had(1), had(0)]) - 0.25).abs() < f64::EPSILON);
    }

    fn strategy() -> impl Strategy<Value = Coordination> {
        prop_oneof![
            Just(Coordination::Sequential),
            Just(Coordination::Parallel),
            (1u32..=4).prop_map(|rounds| Coordination::RoundRobin { rounds }),
        ]
    }

    proptest! {
        /// Begin whatever may begin, end what is under way in any order, lose anybody at any time: it is
        /// over after every owed turn was taken, and only those that lead the order are ever busy.
        #[test]
        fn every_plan_comes_to_an_end(
            strategy in strategy(), count in 1usize..6, dice in proptest::collection::vec(0usize..100, 200),
        ) {
            let mut members = vec![had(0); count];
            let mut last = 0.0;
            for roll in dice {
                for place in due(strategy, &members) {
                    members[place].is_busy = true;
                }
                let busy: Vec<usize> = (0..count).filter(|at| members[*at].is_busy).collect();
                if strategy != Coordination::Parallel {
                    prop_assert!(busy.len() <= 1, "one at a time: {members:?}");
                }
                if busy.is_empty() {
                    prop_assert!(is_over(strategy, &members), "stuck: {members:?}");
                    break;
                }
                let who = busy[roll % busy.len()];
                members[who].is_busy = false;
                if roll % 10 == 0 { members[who].is_out = true } else { members[who].turns += 1 }
                let now = progress(strategy, &members);
                prop_assert!(now >= last && now <= 1.0);
                last = now;
            }
            prop_assert!(is_over(strategy, &members));
            prop_assert!((progress(strategy, &members) - 1.0).abs() < f64::EPSILON);
            prop_assert!(members.iter().all(|m| m.is_out || m.turns == strategy.rounds()), "each had its turns");
        }
    }
}
