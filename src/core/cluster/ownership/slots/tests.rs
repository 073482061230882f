//! The slots of a node, step by step.

use super::*;

const LEASE_MS: u64 = 3000;

const EPOCH: Epoch = Epoch(40);

fn name(node: &str) -> NodeName {
    NodeName::new(node)
}

fn claim(node: &str, epoch: u64) -> Claim {
    Claim { owner: Some(Incarnation { node: name(node), epoch: Epoch(epoch) }), next: None }
}

/// What a machine says to this, heartbeats and polls left out.
fn say(ownership: &mut Ownership, now_ms: u64, input: Input<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    ownership.handle(input, now_ms, &mut actions);
    actions.retain(|action| !matches!(action, Action::Beat(_) | Action::ReadSlots));
    actions
}

fn read(ownership: &mut Ownership, now_ms: u64, slot: Slot, revision: u64, claim: Claim) -> Vec<Action> {
    say(ownership, now_ms, Input::SlotsRead(&[Entry { slot, revision: Token(revision), claim }]))
}

/// The first slot that this one of two nodes should have.
fn slot_of(node: &str) -> Slot {
    let both = [name("a"), name("b")];
    Slot::all().find(|slot| owner_of(*slot, &both) == Some(&name(node))).expect("each has a share")
}

/// `a`, which looks after one slot and is live.
fn live(slot: Slot) -> Ownership {
    let mut ownership = Ownership::new(name("a"), LEASE_MS, [slot], 0);
    assert_eq!(say(&mut ownership, 0, Input::Tick), [Action::Join]);
    say(&mut ownership, 0, Input::Joined(EPOCH));
    assert_eq!(say(&mut ownership, 0, Input::SlotsRead(&[])), []);
    say(&mut ownership, 0, Input::CaughtUp);
    ownership
}

fn hear_b(ownership: &mut Ownership, now_ms: u64) {
    let from = Incarnation { node: name("b"), epoch: Epoch(50) };
    let beat = Heartbeat { from, state: NodeState::Live, hears: vec![name("a")] };
    say(ownership, now_ms, Input::Tick);
    say(ownership, now_ms, Input::Heard(&beat));
}

fn write(slot: Slot, expected: u64, claim: Claim) -> Action {
    Action::WriteSlot { slot, expected: Token(expected), claim }
}

/// `a`, which holds the slot under token 3.
fn holding(slot: Slot) -> Ownership {
    let mut ownership = live(slot);
    assert_eq!(say(&mut ownership, 0, Input::SlotsRead(&[])), [write(slot, 0, claim("a", 40))]);
    assert_eq!(say(&mut ownership, 0, Input::Accepted(slot, Token(3))), [Action::Gained(slot, Token(3))]);
    assert_eq!((ownership.token(slot), ownership.owner(slot)), (Some(Token(3)), Some(&name("a"))));
    ownership
}

#[test]
fn a_claim_is_made_again_with_the_same_expectation_until_it_is_settled() {
    let slot = slot_of("a");
    let mut ownership = live(slot);
    for now_ms in [0, 1000, 2000] {
        assert_eq!(say(&mut ownership, now_ms, Input::SlotsRead(&[])), [write(slot, 0, claim("a", 40))]);
    }
    // The first one was accepted, and nobody said so.
    let gained = [Action::Gained(slot, Token(3))];
    assert_eq!(read(&mut ownership, 3000, slot, 3, claim("a", 40)), gained);
    assert_eq!(say(&mut ownership, 3000, Input::Accepted(slot, Token(3))), []);
    // A poll from the past changes nothing.
    assert_eq!(say(&mut ownership, 4000, Input::SlotsRead(&[])), []);
    assert_eq!(ownership.token(slot), Some(Token(3)));
}

#[test]
fn a_slot_is_taken_from_a_dead_node_alone_and_from_its_own_past() {
    let slot = slot_of("a");
    let mut ownership = live(slot);
    hear_b(&mut ownership, 100);
    assert_eq!(read(&mut ownership, 100, slot, 7, claim("b", 50)), []);
    assert_eq!(ownership.owner(slot), Some(&name("b")));
    (1..6).for_each(|step| drop(say(&mut ownership, step * 500, Input::Tick)));
    assert_eq!(read(&mut ownership, 3099, slot, 7, claim("b", 50)), []);
    assert_eq!(read(&mut ownership, 3100, slot, 7, claim("b", 50)), [write(slot, 7, claim("a", 40))]);
    let mut ownership = live(slot);
    hear_b(&mut ownership, 100);
    assert_eq!(read(&mut ownership, 100, slot, 7, claim("a", 39)), [write(slot, 7, claim("a", 40))]);
    // So is what a node that was heard anew has left behind.
    assert_eq!(read(&mut ownership, 200, slot, 8, claim("b", 49)), [write(slot, 8, claim("a", 40))]);
}

#[test]
fn a_slot_that_another_should_have_is_handed_over_once_it_was_held_for_a_lease() {
    let slot = slot_of("b");
    let mut ownership = holding(slot);
    hear_b(&mut ownership, 2900);
    assert_eq!(read(&mut ownership, 2999, slot, 3, claim("a", 40)), []);
    assert_eq!(read(&mut ownership, 3000, slot, 3, claim("a", 40)), [Action::Vacate(slot)]);
    assert_eq!(ownership.token(slot), None);
    let free = Claim { owner: None, next: Some(name("b")) };
    assert_eq!(say(&mut ownership, 3100, Input::Vacated(slot)), [write(slot, 3, free.clone())]);
    assert_eq!(read(&mut ownership, 3200, slot, 3, claim("a", 40)), [write(slot, 3, free.clone())]);
    assert_eq!(read(&mut ownership, 3300, slot, 4, free), [Action::Released(slot)]);
    assert_eq!(ownership.owner(slot), Some(&name("b")));
}

#[test]
fn who_is_named_next_takes_the_slot_whatever_it_thinks() {
    let slot = slot_of("b");
    let mut ownership = live(slot);
    hear_b(&mut ownership, 100);
    let free = |next| Claim { owner: None, next: Some(name(next)) };
    assert_eq!(read(&mut ownership, 100, slot, 5, free("b")), []);
    assert_eq!(read(&mut ownership, 100, slot, 6, free("a")), [write(slot, 6, claim("a", 40))]);
}

#[test]
fn a_slot_is_lost_when_a_poll_or_a_record_says_so() {
    let slot = slot_of("a");
    let mut ownership = holding(slot);
    assert_eq!(read(&mut ownership, 100, slot, 9, claim("b", 50)), [Action::Lost(slot)]);
    let mut ownership = holding(slot);
    assert_eq!(say(&mut ownership, 100, Input::Superseded(slot, Token(3))), []);
    assert_eq!(say(&mut ownership, 100, Input::Superseded(slot, Token(9))), [Action::Lost(slot)]);
    // What is older than that record says nothing.
    assert_eq!(read(&mut ownership, 200, slot, 3, claim("a", 40)), []);
    assert_eq!((ownership.token(slot), ownership.owner(slot)), (None, None));
    assert_eq!(read(&mut ownership, 300, slot, 9, claim("b", 50)), []);
    assert_eq!(ownership.owner(slot), Some(&name("b")));
}

#[test]
fn a_drain_gives_everything_away_and_says_so_once() {
    let slot = slot_of("a");
    let mut ownership = holding(slot);
    hear_b(&mut ownership, 100);
    assert_eq!(say(&mut ownership, 100, Input::Drain), [Action::Vacate(slot)]);
    let free = Claim { owner: None, next: Some(name("b")) };
    assert_eq!(say(&mut ownership, 200, Input::Vacated(slot)), [write(slot, 3, free)]);
    let released = [Action::Released(slot), Action::Drained];
    assert_eq!(say(&mut ownership, 300, Input::Accepted(slot, Token(4))), released);
    assert_eq!(say(&mut ownership, 300, Input::Drain), []);
    // A claim from before that arrives late is given away, too.
    let late = read(&mut ownership, 400, slot, 6, claim("a", 40));
    assert_eq!(late, [Action::Gained(slot, Token(6)), Action::Vacate(slot)]);
}

#[test]
fn a_node_that_is_behind_claims_nothing_and_says_so() {
    let slot = slot_of("a");
    let mut ownership = Ownership::new(name("a"), LEASE_MS, [slot], 0);
    say(&mut ownership, 0, Input::Tick);
    say(&mut ownership, 0, Input::Joined(EPOCH));
    assert_eq!(say(&mut ownership, 0, Input::SlotsRead(&[])), []);
    let mut actions = Vec::new();
    ownership.handle(Input::Tick, 1000, &mut actions);
    let beat = Heartbeat {
        from: Incarnation { node: name("a"), epoch: EPOCH },
        state: NodeState::Joining,
        hears: Vec::new(),
    };
    assert_eq!(actions, [Action::Beat(beat), Action::ReadSlots]);
}

#[test]
fn slots_move_a_few_at_a_time() {
    let mut ownership = Ownership::new(name("a"), LEASE_MS, Slot::all(), 0);
    for input in [Input::Tick, Input::Joined(EPOCH), Input::CaughtUp] {
        say(&mut ownership, 0, input);
    }
    assert_eq!(say(&mut ownership, 0, Input::SlotsRead(&[])).len(), Slot::COUNT);
    for slot in Slot::all() {
        let token = Token(1 + u64::from(slot.number()));
        assert_eq!(say(&mut ownership, 0, Input::Accepted(slot, token)).len(), 1);
    }
    (1..8).for_each(|step| hear_b(&mut ownership, step * 500));
    let held =
        |slot: Slot| Entry { slot, revision: Token(1 + u64::from(slot.number())), claim: claim("a", 40) };
    let entries: Vec<Entry> = Slot::all().map(held).collect();
    assert_eq!(say(&mut ownership, 3600, Input::SlotsRead(&entries)).len(), VACATING_MAX);
    assert_eq!(say(&mut ownership, 4600, Input::SlotsRead(&entries)).len(), 0);
    assert!(say(&mut ownership, 4700, Input::Drain).len() > Slot::COUNT - 2 * VACATING_MAX);
}
