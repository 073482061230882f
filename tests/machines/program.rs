//! A program of a machine, through all its lives: it is started, killed, stopped in its tracks, and started again
//! where it ended by itself, as a service manager does.

use std::cell::{Cell, RefCell};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;

use crate::network::Network;
use crate::support::running::Running;

/// How many lines of a log a finding shows.
const TAIL_LINES: usize = 60;

/// A program.
pub struct Program {
    /// What it is, and of which machine.
    pub name: String,
    network: Rc<Network>,
    machine: usize,
    /// What is run in a life.
    command: Box<dyn Fn(u32) -> Command>,
    running: RefCell<Option<Running>>,
    /// Where each of its lives writes what it has to say.
    logs: PathBuf,
    lives: Cell<u32>,
    is_frozen: Cell<bool>,
    is_told_to_stop: Cell<bool>,
}

impl Program {
    /// One that does not run yet.
    pub fn new(
        name: String,
        network: Rc<Network>,
        machine: usize,
        logs: PathBuf,
        command: impl Fn(u32) -> Command + 'static,
    ) -> Self {
        std::fs::create_dir_all(&logs).unwrap();
        Self {
            name,
            network,
            machine,
            command: Box::new(command),
            running: RefCell::default(),
            logs,
            lives: Cell::new(0),
            is_frozen: Cell::new(false),
            is_told_to_stop: Cell::new(false),
        }
    }

    /// Starts it where it does not run.
    pub fn start(&self) {
        if self.running.borrow().is_some() {
            return;
        }
        self.is_told_to_stop.set(false);
        self.lives.set(self.lives.get() + 1);
        let log = std::fs::File::create(self.log_path(self.lives.get())).unwrap();
        let mut command = (self.command)(self.lives.get());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // SAFETY: both calls are async-signal-safe and take no memory.
        unsafe {
            command.pre_exec(|| {
                // It may live as long as its test, and no longer.
                libc::alarm(0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let started = self.network.of(self.machine).within(|| Running::start(&mut command));
        *self.running.borrow_mut() = Some(started);
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.is_frozen.set(false);
        if let Some(mut running) = self.running.take() {
            running.put_down();
        }
    }

    /// Has it stand still.
    pub fn freeze(&self) {
        if let Some(running) = &*self.running.borrow() {
            running.signal("STOP");
            self.is_frozen.set(true);
        }
    }

    /// Has it go on.
    pub fn thaw(&self) {
        if let Some(running) = self.running.borrow().as_ref().filter(|_| self.is_frozen.take()) {
            running.signal("CONT");
        }
    }

    /// Tells it to stop.
    pub fn terminate(&self) {
        if let Some(running) = &*self.running.borrow() {
            self.is_told_to_stop.set(true);
            running.signal("TERM");
        }
    }

    /// How it ended after it was told to stop; none where it has not.
    pub fn stopped(&self) -> Option<ExitStatus> {
        self.is_told_to_stop.get().then(|| self.ended()).flatten()
    }

    /// How it ended of itself; none where it has not.
    pub fn gave_up(&self) -> Option<ExitStatus> {
        (!self.is_told_to_stop.get()).then(|| self.ended()).flatten()
    }

    fn ended(&self) -> Option<ExitStatus> {
        let ended = self.running.borrow_mut().as_mut()?.try_wait().unwrap()?;
        self.running.take();
        Some(ended)
    }

    /// Whether it runs and is not frozen.
    pub fn is_awake(&self) -> bool {
        self.running.borrow().is_some() && !self.is_frozen.get()
    }

    /// What it has said in its last life, at the end of it.
    pub fn tail(&self) -> String {
        let said = self.log_of(self.lives.get());
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// What it said in each life.
    pub fn logs(&self) -> impl Iterator<Item = String> + '_ {
        (1..=self.lives.get()).map(|life| self.log_of(life))
    }

    fn log_of(&self, life: u32) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path(life)).unwrap_or_default()).into_owned()
    }

    fn log_path(&self, life: u32) -> PathBuf {
        self.logs.join(format!("{}-{life:04}.log", self.name))
    }
}
