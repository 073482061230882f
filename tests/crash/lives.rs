//! The daemon's lives: started on one home again and again, and killed at moments that the seed
//! chooses: during the start, right after it, right after something was seen, and within a stop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};

use crate::database;
use crate::line::{Line, Stop};
use crate::plan::Random;
use crate::support::TIMEOUT;
use crate::support::daemon::{address_in, command};
use crate::support::running::Running;

/// How long a life waits for what is to be seen before its end.
/// Far longer than it takes, so that a busy machine gets as far between two kills as an idle one.
const LIFE_MAX: Duration = Duration::from_secs(4);

/// After so many lives each the database is checked as the kill left it.
const CHECK_EVERY: u32 = 25;

/// What clients see, and what a kill may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// A client is there again and follows on.
    Resumed,
    /// A prompt was acknowledged for the first time.
    Acknowledged,
    /// A run's end was asked for and heard, or came too late.
    Abort,
    // What happens in a session.
    Prompt,
    Text,
    ToolUse,
    ToolResult,
    Restart,
    Usage,
    Error,
    Done,
}

impl Seen {
    /// What an event is seen as.
    pub fn event(name: &str) -> Option<Self> {
        Some(match name {
            "prompt" => Self::Prompt,
            "text" => Self::Text,
            "tool_use" => Self::ToolUse,
            "tool_result" => Self::ToolResult,
            "restart" => Self::Restart,
            "usage" => Self::Usage,
            "error" => Self::Error,
            "done" => Self::Done,
            _ => return None,
        })
    }
}

/// When a life ends.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So long after the process was started, but no later than it is ready.
    Starting(Duration),
    /// So long after it said that it is ready.
    Ready(Duration),
    /// At once when this was seen so often.
    Seen(Seen, u64),
    /// So long after it was told to stop, if it has not stopped then; it is told so after the first.
    Stopping(Duration, Duration),
}

impl Moment {
    fn of(random: &mut Random) -> Self {
        let mut micros = |from, to| Duration::from_micros(random.range(from, to));
        match micros(0, 99).as_micros() {
            0..10 => return Self::Starting(micros(0, 50_000)),
            10..18 => return Self::Ready(micros(0, 60_000)),
            18..23 => return Self::Stopping(micros(0, 400_000), micros(0, 60_000)),
            _ => {}
        }
        let (seen, most) = *random.pick(&[
            (Seen::Resumed, 64),
            (Seen::Acknowledged, 8),
            (Seen::Abort, 1),
            (Seen::Text, 200),
            (Seen::Text, 500),
            (Seen::ToolUse, 2),
            (Seen::ToolUse, 8),
            (Seen::ToolUse, 16),
            (Seen::ToolResult, 12),
            (Seen::Restart, 40),
            (Seen::Usage, 4),
            (Seen::Done, 4),
            (Seen::Done, 12),
        ]);
        Self::Seen(seen, random.range(1, most))
    }
}

/// A running daemon's number, from 1, and where it listens.
pub type Life = (u32, SocketAddr);

/// The daemon, over all its lives, and what the test found out.
pub struct Lives {
    pub seed: u64,
    home: PathBuf,
    process: RefCell<Option<Running>>,
    number: Cell<u32>,
    /// The life under way, once it is ready.
    now: watch::Sender<Option<Life>>,
    /// What ends the life under way.
    until: Cell<Option<(Seen, u64)>>,
    killed: Notify,
    /// What was seen, over all lives.
    seen: RefCell<BTreeMap<Seen, u64>>,
    starts: RefCell<Vec<Duration>>,
    kills: Cell<u32>,
    wrong: RefCell<Option<String>>,
    went_wrong: Notify,
}

impl Lives {
    /// None yet, in this home.
    pub fn new(seed: u64, home: &Path) -> Self {
        std::fs::create_dir(home.join("logs")).expect("a folder for the logs");
        Self {
            seed,
            home: home.to_owned(),
            process: RefCell::default(),
            number: Cell::new(0),
            now: watch::Sender::new(None),
            until: Cell::new(None),
            killed: Notify::new(),
            seen: RefCell::default(),
            starts: RefCell::default(),
            kills: Cell::new(0),
            wrong: RefCell::default(),
            went_wrong: Notify::new(),
        }
    }

    /// Starts it and kills it, so many times.
    pub async fn kill(&self, times: u64) {
        let mut random = Random::new(self.seed, "moments");
        while u64::from(self.kills.get()) < times && self.wrong.borrow().is_none() {
            self.live(Moment::of(&mut random)).await;
            if self.number.get().is_multiple_of(CHECK_EVERY) {
                self.check_database();
            }
        }
    }

    async fn live(&self, moment: Moment) {
        let ready = self.spawn();
        if let Moment::Starting(time) = moment {
            let _ = tokio::time::timeout(time, ready).await;
            return self.end();
        }
        if !self.get_ready(ready).await {
            return;
        }
        match moment {
            Moment::Starting(time) | Moment::Ready(time) => tokio::time::sleep(time).await,
            Moment::Seen(kind, times) => {
                self.until.set(Some((kind, times)));
                let _ = tokio::time::timeout(LIFE_MAX, self.killed.notified()).await;
            }
            Moment::Stopping(told, time) => {
                tokio::time::sleep(told).await;
                self.now.send_replace(None);
                self.signal_term();
                tokio::time::sleep(time).await;
                return self.end_of(true);
            }
        }
        self.end();
    }

    /// The database as the kill left it, in a copy, so that the daemon finds it untouched.
    fn check_database(&self) {
        let copy = tempfile::tempdir().expect("a folder");
        for name in ["clawmux.db", "clawmux.db-wal"] {
            // The kernel's index of the log (`-shm`) is made anew.
            if self.home.join(name).exists() {
                std::fs::copy(self.home.join(name), copy.path().join(name)).expect("it is copied");
            }
        }
        if let Err(why) = database::integrity(&copy.path().join("clawmux.db")) {
            self.wrong(&why);
        }
    }

    /// Starts it for good.
    pub async fn stay(&self) {
        let ready = self.spawn();
        self.get_ready(ready).await;
    }

    /// A connection to the life under way.
    pub async fn line(&self) -> Result<Line, Stop> {
        Line::open(self.after(0).await.1).await
    }

    fn spawn(&self) -> oneshot::Receiver<SocketAddr> {
        let number = self.number.get() + 1;
        self.number.set(number);
        let log = std::fs::File::create(self.log_path(number)).expect("a log");
        let mut command = command(&self.home);
        command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(log);
        let mut child = Running::start(&mut command);
        let stdout = child.stdout.take().expect("stdout is piped");
        let (ready, waiting) = oneshot::channel();
        std::thread::spawn(move || {
            let address = BufReader::new(stdout).lines().find_map(|line| address_in(&line.ok()?));
            address.map(|address| ready.send(address))
        });
        *self.process.borrow_mut() = Some(child);
        waiting
    }

    async fn get_ready(&self, ready: oneshot::Receiver<SocketAddr>) -> bool {
        let start = Instant::now();
        match tokio::time::timeout(TIMEOUT, ready).await {
            Ok(Ok(address)) => {
                self.starts.borrow_mut().push(start.elapsed());
                self.now.send_replace(Some((self.number.get(), address)));
                true
            }
            _ => {
                self.wrong("the daemon did not get ready");
                false
            }
        }
    }

    /// Something was seen: kills the daemon if that is what its life lasts until.
    pub fn saw(&self, kind: Seen) {
        *self.seen.borrow_mut().entry(kind).or_default() += 1;
        if let Some((wanted, times)) = self.until.get()
            && wanted == kind
        {
            self.until.set(Some((kind, times - 1)).filter(|(_, left)| *left > 0));
            if times == 1 {
                self.end();
                self.killed.notify_one();
            }
        }
    }

    /// SIGKILL, where that has not happened.
    fn end(&self) {
        self.end_of(false);
    }

    /// The same of one that may have stopped well.
    fn end_of(&self, was_told_to_stop: bool) {
        self.until.set(None);
        self.now.send_replace(None);
        let Some(mut child) = self.process.take() else { return };
        match child.try_wait().expect("it can be waited for") {
            Some(status) if was_told_to_stop && status.success() => {}
            Some(status) => self.wrong(&format!("the daemon ended by itself: {status}")),
            None => {
                child.kill().expect("it is killed");
                child.wait().expect("it is reaped");
                self.kills.set(self.kills.get() + 1);
            }
        }
    }

    fn signal_term(&self) {
        self.process.borrow().as_ref().expect("it runs").signal("TERM");
    }

    /// SIGTERM, which must end it well.
    pub fn terminate(&self) {
        self.signal_term();
        let status = self.process.take().expect("it runs").ended();
        assert!(status.success(), "a clean stop exits 0: {status}\n{}", self.log());
    }

    /// The next life after that with the number `last`, once it is ready.
    pub async fn after(&self, last: u32) -> Life {
        let mut now = self.now.subscribe();
        let newer = now.wait_for(|life| life.is_some_and(|(number, _)| number > last)).await;
        newer.ok().and_then(|life| *life).expect("the sender is alive")
    }

    /// Has somebody speak with one life after the other, until he is done or something is wrong. A life
    /// that is over, or told to stop, may refuse him and hang up.
    pub async fn in_each(&self, who: &str, speak: impl AsyncFn(Result<Line, Stop>) -> Result<(), Stop>) {
        let mut life = 0;
        loop {
            let (number, address) = self.after(life).await;
            life = number;
            match speak(Line::open(address).await).await {
                Ok(()) => return,
                Err(Stop::Wrong(why)) => return self.wrong(&why),
                Err(Stop::Refused(_) | Stop::Lost(_)) if !self.is_now(life) => {}
                Err(Stop::Refused(why)) => return self.wrong(&why),
                Err(Stop::Lost(why)) => return self.wrong(&format!("{who} lost its connection: {why}")),
            }
        }
    }

    /// Whether this life is still under way, and not told to stop.
    fn is_now(&self, number: u32) -> bool {
        self.now.borrow().is_some_and(|(now, _)| now == number)
    }

    /// How many lives there were, and how many of them SIGKILL ended.
    pub fn number(&self) -> (u32, u32) {
        (self.number.get(), self.kills.get())
    }

    /// What was seen how often.
    pub fn seen(&self) -> BTreeMap<Seen, u64> {
        self.seen.borrow().clone()
    }

    /// How long it took to get ready: the median, and the longest.
    pub fn time_to_ready(&self) -> (Duration, Duration) {
        let mut starts = self.starts.borrow().clone();
        starts.sort();
        (
            starts.get(starts.len() / 2).copied().unwrap_or_default(),
            starts.last().copied().unwrap_or_default(),
        )
    }

    /// Something is as it must not be; the first such finding counts.
    pub fn wrong(&self, why: &str) {
        let mut wrong = self.wrong.borrow_mut();
        if wrong.is_none() {
            *wrong = Some(format!("in life {}: {why}", self.number.get()));
        }
        self.went_wrong.notify_one();
    }

    /// Waits for `future`, but no longer than everything is as it must be.
    ///
    /// # Panics
    /// As [`Self::fail`], with what went wrong.
    pub async fn unless_wrong<T>(&self, future: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.went_wrong.notified() => self.fail(&self.wrong.take().unwrap_or_default()),
            output = future => output,
        }
    }

    /// Gives up.
    ///
    /// # Panics
    /// Always: with the reason, the seed, the end of the log, and where the home is.
    pub fn fail(&self, why: &str) -> ! {
        let seed = format!("CLAWMUX_CRASH_SEED={}", self.seed);
        panic!("{why}\n{seed}, home {}, the daemon's log:\n{}", self.home.display(), self.log());
    }

    /// What the daemon logged in its last lives.
    fn log(&self) -> String {
        let last = self.number.get();
        let read = |number| std::fs::read_to_string(self.log_path(number)).unwrap_or_default();
        let tail = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        (last.saturating_sub(1).max(1)..=last)
            .map(|number| format!("--- life {number}\n{}\n", tail(read(number))))
            .collect()
    }

    /// What was logged in each life, with its number.
    pub fn logs(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        (1..=self.number.get())
            .map(|number| (number, std::fs::read_to_string(self.log_path(number)).unwrap_or_default()))
    }

    fn log_path(&self, number: u32) -> PathBuf {
        self.home.join("logs").join(format!("{number:06}.log"))
    }
}
