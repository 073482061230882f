//! What jobs are, what they may be, and what is kept of them, tried.

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn new_job() -> NewJob {
    NewJob {
        name: "water".into(),
        description: None,
        is_enabled: true,
        plan: Plan::Every { every: Duration::from_secs(60), anchor: None },
        order: Order {
            place: Place::Own("main".into()),
            prompt: "water the herons".into(),
            run_options: RunOptions::default(),
            result_to: None,
        },
        misfire: Misfire::Once,
        is_deleted_after: false,
        note: None,
    }
}

fn make(new: NewJob) -> Result<Job, Error> {
    Job::new(new, "id-1".into(), Owner::Admins, NOW, "Europe/Berlin")
}

fn firing(state: FiringState) -> Firing {
    Firing {
        job: HEARTBEAT.into(),
        scheduled: NOW,
        is_manual: false,
        begun: NOW,
        ended: Some(NOW.after(Duration::from_millis(5))),
        state,
        missed: 0,
        run: None,
        text: None,
        usage: Usage::default(),
    }
}

#[test]
fn a_job_has_a_session_of_its_own_or_a_named_one() {
    let own = make(new_job()).unwrap();
    assert_eq!(own.task.session.as_str(), "main:cron:id-1:main");
    assert!(own.has_own_session() && own.settled == NOW);
    let mut named = new_job();
    named.order.place = Place::Session(SessionKey::parse("main:cli:ada:main").unwrap());
    assert!(!make(named).unwrap().has_own_session());
}

#[test]
fn what_can_not_be_is_named() {
    let why = |change: &dyn Fn(&mut NewJob)| {
        let mut new = new_job();
        change(&mut new);
        make(new).unwrap_err().message
    };
    assert!(why(&|new| new.name = " ".into()).contains("name"));
    assert!(why(&|new| new.order.prompt = "\n".into()).contains("prompt"));
    assert!(why(&|new| new.order.prompt = "x".repeat(PROMPT_BYTES_MAX + 1)).contains("65537 bytes"));
    assert!(why(&|new| new.name = "x".repeat(NAME_BYTES_MAX + 1)).contains("name"));
    let past = Timestamp::from_millis(NOW.as_millis() - 120_000);
    assert!(why(&|new| new.plan = Plan::At(past)).contains("has passed"));
    let own = SessionKey::parse("main:cron:id-1:main").unwrap();
    assert!(why(&|new| new.order.result_to = Some(own.clone())).contains("another one"));
}

#[test]
fn a_moment_in_the_past_is_still_due() {
    let mut new = new_job();
    let at = Timestamp::from_millis(NOW.as_millis() - 5);
    new.plan = Plan::At(at);
    let job = make(new).unwrap();
    let due = crate::schedule::due(&job.schedule, job.misfire, job.settled, NOW).unwrap();
    assert_eq!(due.scheduled, at);
}

#[test]
fn a_job_that_is_enabled_anew_missed_nothing() {
    let job = make(new_job()).unwrap();
    let off = JobPatch { is_enabled: Some(false), ..JobPatch::default() };
    let off = job.patched(off, NOW, "UTC").unwrap();
    let later = NOW.after(Duration::from_secs(3600));
    let on = JobPatch { is_enabled: Some(true), ..JobPatch::default() };
    let on = off.patched(on, later, "UTC").unwrap();
    assert_eq!((on.settled, on.updated, on.created), (later, later, NOW));
    assert_eq!(crate::schedule::due(&on.schedule, on.misfire, on.settled, later), None);
    let named = JobPatch { name: Some("other".into()), ..JobPatch::default() };
    let named = job.patched(named, later, "UTC").unwrap();
    assert_eq!(named.settled, NOW, "only a name");
}

#[test]
fn the_configuration_makes_the_built_in_jobs() {
    assert!(Job::built_in(None, None, None, NOW, "UTC").unwrap().is_empty());
    let heartbeat = Some(Duration::from_secs(1800));
    let elsewhere = SessionKey::parse("bus/main:matrix:main:ada").unwrap();
    let jobs = Job::built_in(heartbeat, Some(&elsewhere), Some("0 0 * * 1"), NOW, "Europe/Berlin").unwrap();
    assert_eq!(jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), [HEARTBEAT, NEW_SESSION]);
    assert!(jobs.iter().all(|job| job.is_built_in() && job.task.session.as_str() == BUILT_IN_SESSION));
    let user = Principal::new("ada", crate::scope::Scopes::USER);
    assert!(!jobs[0].is_seen_by(&user) && jobs[0].is_seen_by(&Principal::local()));
    assert!(
        Job::built_in(heartbeat, None, Some("0 0 * *"), NOW, "UTC").unwrap_err().message.contains("4 fields")
    );
}

#[test]
fn what_is_told_of_built_in_jobs_is_xenos() {
    let told = |firing: Firing| {
        let ran = Ran::of(&firing, None);
        (ran.is_ok, ran.message)
    };
    assert_eq!(told(firing(FiringState::Done)), (true, "Heartbeat completed.".into()));
    let new_session = Firing { job: NEW_SESSION.into(), ..firing(FiringState::Done) };
    assert_eq!(told(new_session), (true, "New session task completed.".into()));
    let off = |job| Ran::unavailable(job).map(|ran| (ran.is_ok, ran.message));
    for (job, begins, names) in [
        (HEARTBEAT, "Heartbeat task is unavailable or disabled.", "scheduler.heartbeat_minutes"),
        (NEW_SESSION, "New session task is unavailable or disabled.", "scheduler.new_session_cron"),
    ] {
        let (is_ok, message) = off(job).unwrap();
        assert!(!is_ok && message.starts_with(begins) && message.contains(names), "{message}");
    }
    assert_eq!(off("water"), None);
    let failed = FiringState::Failed(ErrorCode::Provider.error("it answered 500"));
    assert_eq!(told(firing(failed)), (false, "Heartbeat failed: it answered 500".into()));
    assert_eq!(Ran::of(&firing(FiringState::Done), None).took, Duration::from_millis(5));
}

#[test]
fn a_firing_is_known_by_its_job_and_time() {
    let one = firing(FiringState::Running);
    let other = Firing { scheduled: NOW.after(Duration::from_millis(1)), ..one.clone() };
    assert_eq!(one.key(), format!("job:heartbeat:{}", NOW.as_millis()));
    assert!(one.key() != other.key() && one.result_id() != other.result_id());
    assert_eq!(one.result_id(), Firing { is_manual: true, ..one.clone() }.result_id());
    let mut long = one;
    long.keep(&"ü".repeat(TEXT_BYTES_MAX));
    assert_eq!(long.text.unwrap().len(), TEXT_BYTES_MAX);
}
