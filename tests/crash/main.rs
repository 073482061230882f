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

#![allow(unreachable_pub, missing_docs, reason = "a test in several files")]
#![allow(clippy::print_stdout, reason = "the test's figures")]
#![expect(clippy::unwrap_used, reason = "a test says why it failed by failing")]

#[path = "../support/mod.rs"]
mod support;

mod line;
mod lives;
mod model;
mod plan;
mod record;
mod speaker;
mod story;
mod tool;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lives::{Lives, Seen};
use model::Model;
use plan::{AGAIN, ONCE};
use record::Record;
use speaker::Company;

const SESSIONS: usize = 64;

/// How many sessions one connection speaks for.
const SPOKEN_FOR: usize = 8;

#[test]
fn kill_9_loses_nothing_that_was_acknowledged_and_does_nothing_twice() {
    let kills = number("CLAWMUX_CRASH_KILLS").unwrap_or(200);
    run(kills as u32, number("CLAWMUX_CRASH_SEED").unwrap_or(1), "resume");
}

#[test]
fn runs_that_kill_9_cut_off_end_as_interrupted_where_the_operator_says_so() {
    run(20, number("CLAWMUX_CRASH_SEED").unwrap_or(1), "interrupt");
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

fn run(kills: u32, seed: u64, recovery: &str) {
    let mut home = support::daemon::home();
    home.disable_cleanup(true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all = async {
        let company = Rc::new(Company {
            lives: Lives::new(seed, home.path()),
            may_interrupt: recovery == "interrupt",
            is_closing: Cell::new(false),
            repeats: Cell::new(0),
        });
        let model = Rc::new(Model::new(seed));
        let finder = company.clone();
        let upstream = model.clone().listen(move |why| finder.lives.wrong(&why)).await;
        let tools = tool::install(home.path());
        let config = format!(
            "[providers.up]\nkind = \"openai\"\nbase_url = \"http://{upstream}\"\n\
             [agents.main]\nprovider = \"up\"\nmodel = \"m\"\ntools = [\"{ONCE}\", \"{AGAIN}\"]\n\
             [store]\nrecovery = \"{recovery}\"\n{tools}"
        );
        std::fs::write(home.path().join("gateway.toml"), config).unwrap();
        let records: Vec<_> =
            (0..SESSIONS).map(|session| Rc::new(RefCell::new(Record::new(seed, session)))).collect();
        let speakers = records
            .chunks(SPOKEN_FOR)
            .map(|sessions| tokio::task::spawn_local(speaker::speak(company.clone(), sessions.to_vec())));
        let speakers: Vec<_> = speakers.collect();
        let lives = &company.lives;
        lives.unless_wrong(lives.kill(kills)).await;
        company.is_closing.set(true);
        lives.unless_wrong(lives.stay()).await;
        for speaker in speakers {
            lives.unless_wrong(speaker).await.unwrap();
        }
        let prompts: usize = records.iter().map(|record| record.borrow().prompts.len()).sum();
        let acked: usize = records
            .iter()
            .map(|record| record.borrow().prompts.iter().filter(|prompt| prompt.accepted.is_some()).count())
            .sum();
        let effects = tool::effects(lives.logs());
        let twice = effects.values().filter(|lives| lives.len() > 1).count();
        println!(
            "seed {seed}, {kills} kills, recovery {recovery}: {prompts} prompts, {acked} acknowledged, {} repeats",
            company.repeats.get()
        );
        println!("model asked {} times, tool calls {}, run again {twice}", model.requests(), effects.len());
        println!("restarts seen {}, time to ready {:?}", lives.count(Seen::Restart), lives.time_to_ready());
        lives.terminate();
    };
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, all);
    home.disable_cleanup(false);
}
