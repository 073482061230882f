//! The writer of a session, step by step.

use super::*;

type Acts = Vec<Action<&'static str>>;

const TOKEN: Token = Token(7);

const FENCE: RecordId = RecordId(1);

fn stamp(token: u64, record: u64) -> Stamp {
    Stamp { token: Token(token), record: RecordId(record) }
}

/// What a machine says to this.
fn say(appender: &mut Appender<&'static str>, now_ms: u64, input: Input<'_, &'static str>) -> Acts {
    let mut actions = Vec::new();
    appender.handle(input, now_ms, &mut actions);
    actions
}

fn append(id: u64, record: &'static str, has_guard: bool) -> Input<'static, &'static str> {
    Input::Append { id: RecordId(id), record, has_guard }
}

/// A publish of the record with this number, or of the fence.
fn publish(attempt: u64, id: u64, expected: u64, record: Option<&'static str>) -> Action<&'static str> {
    let (attempt, stamp, expected) = (Attempt(attempt), stamp(TOKEN.0, id), Sequence(expected));
    Action::Publish { attempt, stamp, expected, record, has_guard: false }
}

/// A session with a fence at 11 behind a record at 10.
fn open() -> Appender<&'static str> {
    let mut actions = Vec::new();
    let mut appender = Appender::new(TOKEN, FENCE, (Sequence(10), Token(5)), 0, &mut actions);
    assert_eq!(actions, [publish(1, 1, 10, None)]);
    assert_eq!(say(&mut appender, 0, Input::Acked(FENCE, Sequence(11))), [Action::Opened]);
    assert!(appender.is_open());
    appender
}

#[test]
fn records_are_written_one_at_a_time_behind_the_fence() {
    let mut actions = Vec::new();
    let mut appender = Appender::new(TOKEN, FENCE, (Sequence(0), Token(0)), 0, &mut actions);
    assert_eq!(actions, [publish(1, 1, 0, None)]);
    assert_eq!(say(&mut appender, 1, append(2, "a", false)), []);
    let opened = say(&mut appender, 2, Input::Acked(FENCE, Sequence(4)));
    assert_eq!(opened, [Action::Opened, publish(2, 2, 4, Some("a"))]);
    assert_eq!(say(&mut appender, 3, append(3, "b", false)), []);
    let written = say(&mut appender, 4, Input::Acked(RecordId(2), Sequence(9)));
    assert_eq!(written, [Action::Written(RecordId(2), Sequence(9)), publish(3, 3, 9, Some("b"))]);
    assert_eq!(say(&mut appender, 5, Input::Close), []);
    // The replica may say it as well, and first.
    let closed = say(&mut appender, 6, Input::Applied(Sequence(12), stamp(7, 3)));
    assert_eq!(closed, [Action::Written(RecordId(3), Sequence(12)), Action::Ended(None)]);
    assert_eq!(say(&mut appender, 7, append(4, "c", false)), [Action::Lost(RecordId(4))]);
}

#[test]
fn the_fence_waits_until_the_replica_has_what_came() {
    let mut actions = Vec::new();
    let mut appender: Appender<&str> = Appender::new(TOKEN, FENCE, (Sequence(10), Token(5)), 0, &mut actions);
    assert_eq!(
        say(&mut appender, 1, Input::Refused(Attempt(1))),
        [Action::ReadSince(Attempt(2), Sequence(10))]
    );
    let came = [(Sequence(12), stamp(5, 90)), (Sequence(15), stamp(6, 3))];
    assert_eq!(say(&mut appender, 2, Input::ReadBack(Attempt(2), &came)), []);
    assert_eq!(say(&mut appender, 3, Input::Applied(Sequence(12), stamp(5, 90))), []);
    let behind = say(&mut appender, 4, Input::Applied(Sequence(15), stamp(6, 3)));
    assert_eq!(behind, [publish(3, 1, 15, None)]);
}

#[test]
fn what_is_unknown_is_published_again_with_the_same_expectation() {
    let mut appender = open();
    assert_eq!(say(&mut appender, 0, append(2, "a", false)), [publish(2, 2, 11, Some("a"))]);
    let read = say(&mut appender, 0, Input::Unknown(Attempt(2)));
    assert_eq!(read, [Action::ReadSince(Attempt(3), Sequence(11))]);
    assert_eq!(say(&mut appender, 0, Input::ReadBack(Attempt(3), &[])), []);
    assert_eq!(appender.deadline_ms(), Some(5));
    assert_eq!(say(&mut appender, 4, Input::Tick), []);
    assert_eq!(say(&mut appender, 5, Input::Tick), [publish(4, 2, 11, Some("a"))]);
    // The first one was accepted, late; its own copy is refused for that.
    let read = say(&mut appender, 6, Input::Refused(Attempt(4)));
    assert_eq!(read, [Action::ReadSince(Attempt(5), Sequence(11))]);
    let came = [(Sequence(13), stamp(7, 2))];
    let written = say(&mut appender, 7, Input::ReadBack(Attempt(5), &came));
    assert_eq!(written, [Action::Written(RecordId(2), Sequence(13))]);
    assert_eq!(say(&mut appender, 8, Input::Acked(RecordId(2), Sequence(13))), []);
}

#[test]
fn pauses_grow_and_are_bounded() {
    let mut appender = open();
    let (mut now_ms, mut attempt, mut pauses) = (0, 2, Vec::new());
    say(&mut appender, 0, append(2, "a", false));
    for _ in 0..10 {
        say(&mut appender, now_ms, Input::Unknown(Attempt(attempt)));
        say(&mut appender, now_ms, Input::Unknown(Attempt(attempt + 1)));
        let due_ms = appender.deadline_ms().unwrap();
        pauses.push(due_ms - now_ms);
        (now_ms, attempt) = (due_ms, attempt + 2);
        assert_eq!(say(&mut appender, now_ms, Input::Tick), [publish(attempt, 2, 11, Some("a"))]);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 640, 640]);
}

#[test]
fn a_refusal_for_a_moment_is_tried_again_at_once_but_not_for_ever() {
    let mut appender = open();
    say(&mut appender, 0, append(2, "a", false));
    let mut now_ms = 0;
    for attempt in 2..2 + u64::from(TRANSIENTS_MAX) {
        assert_eq!(say(&mut appender, now_ms, Input::Transient(Attempt(attempt))), []);
        now_ms += TRANSIENT_MS;
        assert_eq!(say(&mut appender, now_ms, Input::Tick), [publish(attempt + 1, 2, 11, Some("a"))]);
    }
    let last = Attempt(2 + u64::from(TRANSIENTS_MAX));
    let read = say(&mut appender, now_ms, Input::Transient(last));
    assert_eq!(read, [Action::ReadSince(Attempt(last.0 + 1), Sequence(11))]);
}

#[test]
fn a_higher_token_ends_it_and_says_what_was_not_written() {
    let mut appender = open();
    say(&mut appender, 0, append(2, "a", false));
    say(&mut appender, 0, append(3, "b", false));
    let lost = say(&mut appender, 1, Input::Applied(Sequence(20), stamp(8, 1)));
    let ended = Action::Ended(Some(Token(8)));
    assert_eq!(lost, [Action::Lost(RecordId(2)), Action::Lost(RecordId(3)), ended.clone()]);
    assert_eq!(say(&mut appender, 2, Input::Acked(RecordId(2), Sequence(21))), []);
    // What was written before the other came was written.
    let mut appender = open();
    say(&mut appender, 0, append(2, "a", false));
    say(&mut appender, 0, append(3, "b", false));
    say(&mut appender, 1, Input::Unknown(Attempt(2)));
    let came = [(Sequence(19), stamp(7, 2)), (Sequence(20), stamp(8, 1))];
    let lost = say(&mut appender, 2, Input::ReadBack(Attempt(3), &came));
    assert_eq!(lost, [Action::Written(RecordId(2), Sequence(19)), Action::Lost(RecordId(3)), ended]);
}

#[test]
fn a_session_that_was_outdone_does_not_begin() {
    let mut actions: Acts = Vec::new();
    let appender = Appender::new(TOKEN, FENCE, (Sequence(10), Token(8)), 0, &mut actions);
    assert_eq!(actions, [Action::Ended(Some(Token(8)))]);
    assert!(!appender.is_open() && appender.deadline_ms().is_none());
}

#[test]
fn who_loses_the_slot_settles_what_was_published() {
    let mut appender = open();
    say(&mut appender, 0, append(2, "a", false));
    say(&mut appender, 0, append(3, "b", false));
    assert_eq!(say(&mut appender, 1, Input::Lose), [Action::Lost(RecordId(3))]);
    assert!(!appender.is_open());
    let written = say(&mut appender, 2, Input::Acked(RecordId(2), Sequence(12)));
    assert_eq!(written, [Action::Written(RecordId(2), Sequence(12)), Action::Ended(None)]);
}

#[test]
fn a_key_that_is_anothers_is_found_by_asking() {
    let mut appender = open();
    say(&mut appender, 0, append(2, "a", true));
    say(&mut appender, 0, Input::Refused(Attempt(2)));
    let asked = say(&mut appender, 0, Input::ReadBack(Attempt(3), &[]));
    assert_eq!(asked, [Action::ReadKey(Attempt(4), RecordId(2))]);
    // Its own guard says that the record is there, and the read was stale.
    assert_eq!(say(&mut appender, 0, Input::KeyIs(Attempt(4), Some(stamp(7, 2)))), []);
    say(&mut appender, 5, Input::Tick);
    say(&mut appender, 5, Input::Refused(Attempt(5)));
    say(&mut appender, 5, Input::ReadBack(Attempt(6), &[]));
    let taken = say(&mut appender, 5, Input::KeyIs(Attempt(7), Some(stamp(3, 2))));
    assert_eq!(taken, [Action::Taken(RecordId(2))]);
    assert_eq!(say(&mut appender, 6, append(3, "b", false)), [publish(8, 3, 11, Some("b"))]);
}

#[test]
fn a_record_under_an_older_token_is_passed_over() {
    let mut appender = open();
    say(&mut appender, 0, append(2, "a", false));
    let again = say(&mut appender, 1, Input::Applied(Sequence(12), stamp(6, 40)));
    assert_eq!(again, [publish(3, 2, 12, Some("a"))]);
    // One under its own token that it does not know cannot be: somebody else writes here.
    let ended = say(&mut appender, 2, Input::Applied(Sequence(13), stamp(7, 40)));
    assert_eq!(ended, [Action::Lost(RecordId(2)), Action::Ended(Some(TOKEN))]);
}

#[test]
fn a_session_that_is_not_written_says_so_and_goes_on() {
    let mut appender = open();
    say(&mut appender, 100, append(2, "a", false));
    assert_eq!(appender.deadline_ms(), Some(100 + STALL_MS));
    assert_eq!(say(&mut appender, 99 + STALL_MS, Input::Tick), []);
    assert_eq!(say(&mut appender, 100 + STALL_MS, Input::Tick), [Action::Stalled]);
    assert_eq!(say(&mut appender, 200 + STALL_MS, Input::Tick), []);
    let flows = say(&mut appender, 300 + STALL_MS, Input::Acked(RecordId(2), Sequence(12)));
    assert_eq!(flows, [Action::Written(RecordId(2), Sequence(12)), Action::Flows]);
}

/// A table that others write as well, whose last record is at 10.
fn shared() -> Appender<&'static str> {
    let mut actions = Vec::new();
    let appender = Appender::shared(TOKEN, Sequence(10), &mut actions);
    assert_eq!(actions, [Action::Opened]);
    assert!(appender.is_open() && appender.deadline_ms().is_none());
    appender
}

#[test]
fn a_shared_subject_needs_no_fence_and_heeds_no_order_of_tokens() {
    let mut appender = shared();
    assert_eq!(say(&mut appender, 0, Input::Applied(Sequence(12), stamp(9, 4))), []);
    assert_eq!(say(&mut appender, 0, append(2, "a", false)), [publish(1, 2, 12, Some("a"))]);
    assert_eq!(say(&mut appender, 0, append(3, "b", false)), []);
    // Another's record came first, under a token that is higher, and one under a lower.
    let came = [(Sequence(13), stamp(9, 5)), (Sequence(15), stamp(3, 2))];
    let read = say(&mut appender, 1, Input::Refused(Attempt(1)));
    assert_eq!(read, [Action::ReadSince(Attempt(2), Sequence(12))]);
    assert_eq!(say(&mut appender, 1, Input::ReadBack(Attempt(2), &came)), [publish(3, 2, 15, Some("a"))]);
    let written = say(&mut appender, 2, Input::Acked(RecordId(2), Sequence(16)));
    assert_eq!(written, [Action::Written(RecordId(2), Sequence(16)), publish(4, 3, 16, Some("b"))]);
    // The replica may be the one to say so, of what is on its way too.
    let again = say(&mut appender, 3, Input::Applied(Sequence(17), stamp(3, 3)));
    assert_eq!(again, [publish(5, 3, 17, Some("b"))]);
    assert_eq!(say(&mut appender, 3, Input::Refused(Attempt(4))), []);
    assert_eq!(say(&mut appender, 3, Input::Close), []);
    let closed = say(&mut appender, 4, Input::Applied(Sequence(18), stamp(7, 3)));
    assert_eq!(closed, [Action::Written(RecordId(3), Sequence(18)), Action::Ended(None)]);
}

#[test]
fn what_is_unknown_of_a_shared_subject_is_decided_by_the_first_record_that_comes() {
    let mut appender = shared();
    say(&mut appender, 0, append(2, "a", false));
    say(&mut appender, 0, Input::Unknown(Attempt(1)));
    assert_eq!(say(&mut appender, 0, Input::ReadBack(Attempt(2), &[])), []);
    assert_eq!(say(&mut appender, 5, Input::Tick), [publish(3, 2, 10, Some("a"))]);
    say(&mut appender, 6, Input::Unknown(Attempt(3)));
    // It is there, and others behind it.
    let came = [(Sequence(11), stamp(7, 2)), (Sequence(14), stamp(8, 2))];
    let written = say(&mut appender, 7, Input::ReadBack(Attempt(4), &came));
    assert_eq!(written, [Action::Written(RecordId(2), Sequence(11))]);
    assert_eq!(say(&mut appender, 8, append(3, "b", false)), [publish(5, 3, 14, Some("b"))]);
    // One of its own token that it does not know is one that was forgotten: another's, as all are.
    let again = say(&mut appender, 9, Input::Applied(Sequence(15), stamp(7, 1)));
    assert_eq!(again, [publish(6, 3, 15, Some("b"))]);
}

#[test]
fn a_shared_subject_that_is_not_written_says_so_though_others_get_on() {
    let mut appender = shared();
    say(&mut appender, 100, append(2, "a", false));
    for at in 11..30 {
        let again = say(&mut appender, 200, Input::Applied(Sequence(at), stamp(8, at)));
        assert_eq!(again, [publish(at - 9, 2, at, Some("a"))]);
    }
    assert_eq!(say(&mut appender, 100 + STALL_MS, Input::Tick), [Action::Stalled]);
}
