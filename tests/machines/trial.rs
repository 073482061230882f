//! A trial: machines under load, whatever befalls them, and what must be so in the end.

use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::timeout;

use crate::audit::{self, Counts};
use crate::company::Company;
use crate::disk::Disk;
use crate::findings::Findings;
use crate::follower::follow;
use crate::log;
use crate::machines::Machines;
use crate::model::Model;
use crate::network::Network;
use crate::replicas;
use crate::speaker::speak;
use crate::support::daemon::home;
use crate::tell;
use crate::telling::Telling;
use crate::tool;

/// How long anybody may wait for an answer once everything is well again.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Every so many sessions one is followed.
const FOLLOWED_EVERY: usize = 4;

/// How large a trial is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub seed: u64,
    pub machines: usize,
    /// One cluster; else each daemon is on its own.
    pub is_cluster: bool,
    pub sessions: usize,
    /// The machine that has a small disk.
    pub small_disk: Option<usize>,
}

impl Size {
    /// A cluster of three machines.
    pub fn cluster(seed: u64, sessions: usize) -> Self {
        Self { seed, machines: 3, is_cluster: true, sessions, small_disk: None }
    }
}

/// A trial under way.
pub struct Trial {
    pub size: Size,
    pub machines: Rc<Machines>,
    pub company: Rc<Company>,
    pub small_disk: Option<Disk>,
    model: Rc<Model>,
    speakers: Vec<JoinHandle<Option<()>>>,
    followers: Vec<(usize, JoinHandle<Option<Telling>>)>,
}

impl Trial {
    /// Runs one: the machines are up and nobody speaks yet; what `act` does in it is up to it. Its folder is kept
    /// where anything goes wrong.
    pub fn run(size: Size, act: impl AsyncFnOnce(&mut Self) -> Result<(), String>) {
        // As many machines at once as there are is enough.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _others_wait = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut folder = home();
        folder.disable_cleanup(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (findings, tasks) = (Rc::<Findings>::default(), LocalSet::new());
        let outcome = tasks.block_on(&runtime, async {
            let mut trial = Self::new(&folder, size, findings.clone());
            let outcome = findings.unless_wrong(async {
                trial.machines.begin().await?;
                let machines = trial.machines.clone();
                let revive = async move { machines.revive().await };
                let reviving = findings.watch("who starts them again".to_owned(), revive);
                act(&mut trial).await?;
                reviving.abort();
                Ok(())
            });
            let outcome = outcome.await.and_then(|outcome| outcome);
            if outcome.is_err() {
                for machine in 0..size.machines {
                    trial.machines.note_actors(machine).await;
                }
            }
            trial.machines.kill_all();
            outcome
        });
        if let Err(why) = outcome {
            panic!("{why}\nseed {}, all logs and homes: {}", size.seed, folder.path().display());
        }
        folder.disable_cleanup(false);
    }

    fn new(folder: &TempDir, size: Size, findings: Rc<Findings>) -> Self {
        let config = tool::config("UPSTREAM");
        let network = Network::new(size.machines);
        let small_disk = size.small_disk.map(|machine| Disk::mount(folder.path(), machine));
        let machines = Machines::new(folder.path(), network, size.is_cluster, &config, findings.clone());
        let machines = Rc::new(machines);
        let model = Rc::new(Model::new(size.seed, true));
        for machine in 0..size.machines {
            tool::install(machines.of(machine).home());
            let findings = findings.clone();
            model.clone().listen_on(machines.model_listener(machine), move |why| findings.wrong(why));
        }
        let company = Company::new(size.seed, size.sessions, machines.clone(), findings.clone());
        Self { size, machines, company, small_disk, model, speakers: Vec::new(), followers: Vec::new() }
    }

    /// Has clients speak in all sessions, and follow some; until each has had an answer.
    pub async fn speak(&mut self) -> Result<(), String> {
        for session in 0..self.size.sessions {
            let speaking = speak(self.company.clone(), session);
            self.speakers.push(self.company.findings.watch(format!("the speaker of s{session}"), speaking));
        }
        for session in (0..self.size.sessions).step_by(FOLLOWED_EVERY) {
            let following = follow(self.company.clone(), session);
            let following = self.company.findings.watch(format!("the follower of s{session}"), following);
            self.followers.push((session, following));
        }
        let everybody = async || {
            let book = self.company.book.borrow();
            book.of_session.iter().all(|prompts| prompts.iter().any(|at| book.prompts[*at].told.is_some()))
        };
        self.machines.until("every session has an answer", everybody).await
    }

    /// How many prompts have their answer.
    pub fn answered(&self) -> usize {
        self.company.book.borrow().prompts.iter().filter(|prompt| prompt.told.is_some()).count()
    }

    /// Has nothing new asked, waits for what was, and looks whether everything is as it must be.
    pub async fn close(&mut self) -> Result<Counts, String> {
        self.company.is_closing.set(true);
        self.company.settle(ANSWERED_WITHIN).await?;
        let speakers = std::mem::take(&mut self.speakers);
        let over = timeout(ANSWERED_WITHIN, futures::future::join_all(speakers)).await;
        over.map_err(|_| "those who speak do not come to an end")?;
        let mut followed = Vec::new();
        for (session, follower) in std::mem::take(&mut self.followers) {
            let telling = timeout(ANSWERED_WITHIN, follower).await;
            let telling = telling.map_err(|_| format!("the follower of s{session} is not told the end"))?;
            followed.extend(telling.ok().flatten().map(|telling| (session, telling)));
        }
        let told = tell::all(&self.company, self.size.sessions).await?;
        let mut counts = audit::sessions(&self.company.book.borrow(), &told)?;
        for (session, followed) in &followed {
            audit::followed(followed, &told[*session][0].telling)
                .map_err(|why| format!("s{session}: {why}"))?;
        }
        self.replicas(counts.prompts).await?;
        let book = self.company.book.borrow();
        audit::tools(&book, &tool::effects(self.machines.daemon_logs()), &mut counts)?;
        Ok(counts)
    }

    /// Ends everything, and looks into the databases.
    async fn replicas(&self, prompts: usize) -> Result<(), String> {
        let all: Vec<_> = (0..self.machines.count()).map(|machine| self.machines.database(machine)).collect();
        let mut rest = replicas::Rest::of(&all);
        let are_at_rest = async || rest.is_there();
        self.machines.until("all replicas have the same and nothing comes any more", are_at_rest).await?;
        if self.size.is_cluster {
            let lines = self.machines.log()?;
            log::one_at_a_time(&lines)?;
            log::each_once(&lines)?;
        }
        self.machines.kill_all();
        replicas::agree(&all, prompts)
    }

    /// What there is to report.
    pub fn report(&self, counts: &Counts) {
        let book = self.company.book.borrow();
        let mut took: Vec<Duration> = book.prompts.iter().map(|prompt| prompt.took).collect();
        took.sort();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        println!(
            "seed {}: {} prompts acknowledged, all of them run once; {} of them asked in two sessions at once",
            self.size.seed, counts.prompts, counts.shared
        );
        println!("{} steps asked of the model, {} restarts", self.model.requests(), counts.restarts);
        println!(
            "{} tool calls with {} effects: {} reported as interrupted, {} refused by a busy tool, \
             {} made again by the idempotent tool",
            counts.calls,
            counts.effects,
            counts.interrupted_calls,
            counts.refused_calls,
            counts.repeated_calls
        );
        println!(
            "answers took {:.1?} (median), {:.1?} (99 %), {:.1?} (at most); {} connections lost, {} silent; \
             the longest pause within an answer {:.1?}; {} daemons gave up",
            at(0.5),
            at(0.99),
            at(1.0),
            book.lost,
            book.silent,
            book.longest_pause,
            self.machines.gave_up()
        );
        for (why, times) in &book.refusals {
            println!("refused {times} times: {why}");
        }
    }
}
