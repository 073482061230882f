//! Clients that speak in several sessions, each at whichever daemon, while a test does what it does to the wire.
//!
//! They are those of the crate `machines`: a key for each prompt, which is asked again where the connection ends, a
//! daemon refuses or is silent for long; some keys in two sessions at once; runs with and without calls of tools.
//! What they were told is held against what every daemon tells in the end.

use std::net::TcpListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::audit::{self, Counts};
use super::book::Book;
use super::company::Company;
use super::findings::Findings;
use super::machines::Machines;
use super::model::Model;
use super::replicas::Rest;
use super::speaker::speak;
use super::tell;

/// How long anybody may wait for an answer once everything is well again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Between two prompts of a session, at most, in milliseconds.
const PAUSE_MAX_MS: u64 = 60;

/// Of what the scripts of the model are made.
pub const SEED: u64 = 7;

const LOOK: Duration = Duration::from_millis(20);

/// Clients under way, on a thread of their own.
pub struct Load {
    thread: JoinHandle<Option<(Book, Counts)>>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    answers: AtomicUsize,
    /// Nothing new is to be asked.
    closes: AtomicBool,
    /// What is not as it must be.
    wrong: OnceLock<String>,
}

impl Load {
    /// Has clients speak in so many sessions. `model` is where the daemons ask for answers, `databases` are theirs.
    pub fn begin(model: TcpListener, daemons: Machines, databases: Vec<PathBuf>, sessions: usize) -> Self {
        let state = Arc::<State>::default();
        let told = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (findings, tasks) = (Rc::<Findings>::default(), LocalSet::new());
            tasks.block_on(&runtime, async {
                model.set_nonblocking(true).unwrap();
                let model = tokio::net::TcpListener::from_std(model).unwrap();
                let finds = findings.clone();
                Rc::new(Model::new(SEED, true)).listen_on(model, move |why| finds.wrong(why));
                let company = Company::new(SEED, sessions, Rc::new(daemons), findings.clone());
                let spoken = findings.unless_wrong(speak_all(&company, &databases, &told));
                let spoken = spoken.await.and_then(|spoken| spoken);
                spoken.inspect_err(|why| drop(told.wrong.set(why.clone()))).ok()
            })
        });
        Self { thread, state }
    }

    /// How many prompts have an answer.
    ///
    /// # Panics
    /// Where something is not as it must be.
    pub fn answers(&self) -> usize {
        if let Some(why) = self.state.wrong.get() {
            panic!("{why}");
        }
        self.state.answers.load(Relaxed)
    }

    /// Has nothing new asked, waits for the answers to what was, and holds what the clients know against what every
    /// daemon tells.
    ///
    /// # Panics
    /// Where anything is not as it must be.
    pub fn close(self) -> (Book, Counts) {
        self.state.closes.store(true, Relaxed);
        let closed = self.thread.join().unwrap();
        closed.unwrap_or_else(|| panic!("{}", self.state.wrong.get().unwrap()))
    }
}

async fn speak_all(
    company: &Rc<Company>,
    databases: &[PathBuf],
    state: &State,
) -> Result<(Book, Counts), String> {
    company.pause_max_ms.set(PAUSE_MAX_MS);
    let sessions = company.book.borrow().of_session.len();
    let speakers = (0..sessions).map(|session| {
        company.findings.watch(format!("the speaker of s{session}"), speak(company.clone(), session))
    });
    let speakers: Vec<_> = speakers.collect();
    while !state.closes.load(Relaxed) {
        let answers = company.book.borrow().prompts.iter().filter(|prompt| prompt.told.is_some()).count();
        state.answers.store(answers, Relaxed);
        sleep(LOOK).await;
    }
    company.is_closing.set(true);
    company.settle(ANSWERED_WITHIN).await?;
    let over = timeout(ANSWERED_WITHIN, futures::future::join_all(speakers)).await;
    over.map_err(|_| "those who speak do not come to an end")?;
    let mut rest = Rest::of(databases);
    let at_rest = async {
        while !rest.is_there() {
            sleep(LOOK).await;
        }
    };
    timeout(ANSWERED_WITHIN, at_rest).await.map_err(|_| "the replicas do not come to have the same")?;
    let told = tell::all(company, sessions).await?;
    let counts = audit::sessions(&company.book.borrow(), &told)?;
    Ok((company.book.take(), counts))
}
