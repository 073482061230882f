//! The daemon is killed again and again, and nothing that it promised is lost and nothing happens
//! twice.
//!
//! One daemon on one home, 64 sessions, a model provider that outlives it. Speakers ask, with
//! idempotency keys, several prompts ahead; followers follow a session each from the last number
//! they saw. SIGKILL comes at moments that the seed chooses: while the daemon starts, while it
//! recovers, right after an acknowledgement, within a call, within an answer, at the end of a run.
//! Every frame is held against the client's own record as it comes; in the end the record, the log
//! told anew from its start, the history, the traces of the tools and the database must agree.
//!
//! `CLAWMUX_CRASH_KILLS` and `CLAWMUX_CRASH_SEED` say how often and which seed. All that is random
//! comes from the seed; how far the daemon gets between two kills is the machine's.

#![allow(unreachable_pub, reason = "a test exports nothing")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the test prints its figures")]
#![allow(clippy::unwrap_used, reason = "a test says why it failed by failing")]

#[allow(unused, reason = "the crate `it` uses all of it")]
#[path = "../support/mod.rs"]
mod support;

mod audit;
mod database;
mod follower;
mod line;
mod lives;
mod model;
mod plan;
mod record;
mod speaker;
mod story;
mod telling;
mod tool;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use audit::Counts;
use lives::Lives;
use model::Model;
use record::Record;
use speaker::Company;

const SESSIONS: usize = 64;

/// How many sessions one connection speaks for.
const SPOKEN_FOR: usize = 8;

#[test]
fn kill_9_loses_nothing_that_was_acknowledged_and_does_nothing_twice() {
    let kills = number("CLAWMUX_CRASH_KILLS").unwrap_or(200);
    let counts = run(kills, "resume");
    assert_eq!(counts.interrupted_runs, 0, "every run goes on");
    if kills >= 50 {
        // Else it says nothing about what it is here for.
        let Counts { restarts, interrupted_calls, repeated_calls, aborted, .. } = counts;
        assert!(restarts > 0 && interrupted_calls > 0 && repeated_calls > 0 && aborted > 0, "{counts:?}");
    }
}

#[test]
fn runs_that_kill_9_cut_off_end_as_interrupted_where_the_operator_says_so() {
    let counts = run(20, "interrupt");
    assert_eq!(counts.restarts, 0, "no run goes on");
    assert!(counts.interrupted_runs > 0 && counts.completed > 0, "queued prompts run: {counts:?}");
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Kills a daemon so many times, and checks all there is to check.
fn run(kills: u64, recovery: &str) -> Counts {
    let seed = number("CLAWMUX_CRASH_SEED").unwrap_or(1);
    let mut home = support::daemon::home();
    home.disable_cleanup(true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all = async {
        let company = Rc::new(Company {
            lives: Lives::new(seed, home.path()),
            may_interrupt: recovery == "interrupt",
            is_closing: Cell::new(false),
            repeats: Cell::new(0),
            bytes: Cell::new(0),
        });
        let model = Rc::new(Model::new(seed, false));
        let finder = company.clone();
        let upstream = model.clone().listen(move |why| finder.lives.wrong(&why)).await;
        tool::install(home.path());
        let config = tool::config(&format!("base_url = \"http://{upstream}\"\n"));
        let config = format!("{config}[store]\nrecovery = \"{recovery}\"\n");
        std::fs::write(home.path().join("gateway.toml"), config).unwrap();
        let records: Vec<_> =
            (0..SESSIONS).map(|session| Rc::new(RefCell::new(Record::new(seed, session)))).collect();
        let speakers = records
            .chunks(SPOKEN_FOR)
            .map(|sessions| tokio::task::spawn_local(speaker::speak(company.clone(), sessions.to_vec())));
        let speakers: Vec<_> = speakers.collect();
        let follow = |record: &Rc<RefCell<Record>>| {
            tokio::task::spawn_local(follower::follow(company.clone(), record.clone()))
        };
        let followers: Vec<_> = records.iter().map(follow).collect();
        let lives = &company.lives;
        lives.unless_wrong(lives.kill(kills)).await;
        company.is_closing.set(true);
        lives.unless_wrong(lives.stay()).await;
        for speaker in speakers {
            lives.unless_wrong(speaker).await.unwrap();
        }
        for follower in followers {
            lives.unless_wrong(follower).await.unwrap();
        }
        let audit = async {
            let mut line = lives.line().await?;
            for record in &records {
                audit::session(&mut line, record).await?;
            }
            Ok(())
        };
        lives.unless_wrong(audit).await.unwrap_or_else(|why: line::Stop| lives.fail(&format!("{why:?}")));
        lives.terminate();
        let counted = audit::tools(&records, &tool::effects(lives.logs()));
        let counts = counted.unwrap_or_else(|why| lives.fail(&why));
        let checked = database::integrity(&home.path().join("clawmux.db"));
        let checked = checked.and_then(|()| database::log(&home.path().join("clawmux.db"), counts.prompts));
        checked.unwrap_or_else(|why| lives.fail(&why));
        report(&company, &model, &counts);
        counts
    };
    let tasks = tokio::task::LocalSet::new();
    let counts = tasks.block_on(&runtime, all);
    home.disable_cleanup(false);
    counts
}

fn report(company: &Company, model: &Model, counts: &Counts) {
    let Company { lives, repeats, bytes, .. } = company;
    let (number, kills) = lives.number();
    let (median, longest) = lives.time_to_ready();
    let seen: Vec<String> =
        lives.seen().into_iter().map(|(seen, times)| format!("{seen:?} {times}").to_lowercase()).collect();
    println!(
        "seed {}: {number} lives, {kills} ended by SIGKILL; ready after {median:?}, at most {longest:?}",
        lives.seed
    );
    println!(
        "{} prompts acknowledged, all of them run once: {} aborted, {} interrupted; {} sent again with their keys",
        counts.prompts,
        counts.aborted,
        counts.interrupted_runs,
        repeats.get()
    );
    println!(
        "{} steps asked of the model, {} restart markers; none asked again once it was finished",
        model.requests(),
        counts.restarts
    );
    println!(
        "{} tool calls with {} effects: {} reported as interrupted, {} refused by a busy tool, \
         {} made again by the idempotent tool",
        counts.calls, counts.effects, counts.interrupted_calls, counts.refused_calls, counts.repeated_calls
    );
    println!(
        "seen over all resumptions, without a gap or a repeat: {}; {} bytes",
        seen.join(", "),
        bytes.get()
    );
    println!("integrity of the database: ok");
}
