//! What the clients of a test have in common: where they connect to, what they know together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::book::Book;
use super::findings::Findings;
use super::line::{Line, Stop};
use super::machines::Machines;
use super::plan::Random;

/// How long a client hears nothing before it goes to another machine: longer than a daemon without its cluster
/// takes to say so.
const PATIENCE: Duration = Duration::from_secs(12);

/// How long it waits before it asks again, in milliseconds.
const PAUSE_MS: (u64, u64) = (50, 400);

/// All that clients share.
pub struct Company {
    pub machines: Rc<Machines>,
    pub book: RefCell<Book>,
    pub findings: Rc<Findings>,
    /// Nothing new is asked any more.
    pub is_closing: Cell<bool>,
    /// Between two prompts of a session, at most, in milliseconds.
    pub pause_max_ms: Cell<u64>,
}

impl Company {
    /// With this many sessions, of which nothing is known.
    pub fn new(seed: u64, sessions: usize, machines: Rc<Machines>, findings: Rc<Findings>) -> Rc<Self> {
        Rc::new(Self {
            machines,
            book: RefCell::new(Book::new(seed, sessions)),
            findings,
            is_closing: Cell::new(false),
            pause_max_ms: Cell::new(3000),
        })
    }

    /// Has somebody speak over one connection after the other, to whichever machine, until he is done. Meanwhile
    /// any daemon may be away, refuse, or be silent; what else goes wrong is a finding.
    pub async fn in_each(
        &self,
        who: &str,
        random: &mut Random,
        note: impl Fn(&str),
        mut speak: impl AsyncFnMut(&mut Line) -> Result<(), Stop>,
    ) {
        loop {
            let machine = random.range(0, self.machines.count() as u64 - 1) as usize;
            let done = match self.machines.line(machine).await {
                Ok(mut line) => speak(&mut line).await,
                Err(stop) => Err(stop),
            };
            match done {
                Ok(()) => return,
                Err(Stop::Wrong(why)) => {
                    return self.findings.wrong(format!("{who} on machine {machine}: {why}"));
                }
                Err(Stop::Refused(why)) => {
                    note(&format!("m{machine} refused: {why}"));
                    self.book.borrow_mut().refuse(&why);
                }
                Err(Stop::Lost(why)) => {
                    note(&format!("m{machine} lost: {why}"));
                    self.book.borrow_mut().lost += 1;
                }
            }
            sleep(Duration::from_millis(random.range(PAUSE_MS.0, PAUSE_MS.1))).await;
        }
    }

    /// The next frame, within a client's patience.
    ///
    /// # Errors
    /// [`Stop::Lost`] where there is none.
    pub async fn receive(&self, line: &mut Line) -> Result<Value, Stop> {
        timeout(PATIENCE, line.receive()).await.unwrap_or_else(|_| {
            self.book.borrow_mut().silent += 1;
            Err(Stop::Lost(format!("nothing came for {PATIENCE:?}")))
        })
    }

    /// Waits until everything is answered that is asked by now, and every daemon is ready: how long that takes.
    ///
    /// # Errors
    /// Where it takes longer than this.
    pub async fn settle(&self, within: Duration) -> Result<Duration, String> {
        let (begin, open) = (Instant::now(), self.book.borrow().open());
        loop {
            let waiting: Vec<String> = {
                let book = self.book.borrow();
                let still_open =
                    open.iter().map(|prompt| &book.prompts[*prompt]).filter(|p| p.told.is_none());
                still_open.map(|p| format!("{} {:?}: {}", p.name, p.accepted, p.last)).collect()
            };
            if waiting.is_empty() && self.machines.are_ready().await {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > within {
                let mut not_ready = Vec::new();
                for machine in 0..self.machines.count() {
                    if !self.machines.ready(machine).await {
                        not_ready.push(self.machines.name(machine).to_owned());
                    }
                }
                return Err(format!(
                    "after {within:?} {} of {} prompts have no answer, and {not_ready:?} are not ready:\n{}",
                    waiting.len(),
                    open.len(),
                    waiting.join("\n")
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
