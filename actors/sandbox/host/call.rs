//! One call of a guest, as the host functions see it: what it is for, what it has used, what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawmux_core::ids::{CallId, RunId, SessionKey};
use clawmux_core::memory::Remembered;
use clawmux_core::tools::plugin::{GetValue, HostFunction, HttpRequest, ListKeys, SearchMemory, SetValue};
use extism::Error;
use tokio::sync::{mpsc, oneshot};

use crate::outbound::fetch::Fetched;
use crate::sandbox::Limits;
use crate::sandbox::pool::Pool;

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The session, by which also its agent and owner are known.
    pub session: SessionKey,
    /// The run.
    pub run: RunId,
    /// The call itself.
    pub call: CallId,
}

/// Answers a [`HostCall`]; the error is told to the guest.
pub type Reply<T> = oneshot::Sender<Result<T, String>>;

/// What a guest asks that takes time. Dropped unanswered, the guest is let go.
#[derive(Debug)]
pub enum HostCall {
    /// Send this request; the answer's body has at most so many bytes.
    Fetch(HttpRequest, usize, Reply<Fetched>),
    /// Read a value, which is JSON.
    Get(GetValue, Reply<Option<String>>),
    /// Keep a value.
    Set(SetValue, Reply<()>),
    /// List keys; says whether there are more.
    List(ListKeys, Reply<(Vec<String>, bool)>),
    /// Search what is remembered.
    Search(SearchMemory, Reply<Vec<Remembered>>),
}

/// What a guest may ask of in a call.
pub struct Asking {
    /// What it is for.
    pub origin: Origin,
    /// Who answers.
    pub to: mpsc::Sender<HostCall>,
    /// The threads guests run on, one of which waits meanwhile.
    pub pool: Pool,
}

/// What is left of a call.
pub struct Over {
    /// Its output, or of how many bytes that is where those are too many.
    pub output: Result<Vec<u8>, usize>,
    /// What it says of its failure.
    pub error: Option<Vec<u8>>,
    /// The grants that it made use of.
    pub used: Vec<String>,
    /// What it asked for, was not granted and may not do without.
    pub denied: Option<HostFunction>,
}

/// The most bytes of a guest's variables together; as extism has it.
pub(super) const VARIABLES_BYTES_MAX: usize = 1024 * 1024;

/// What the host functions of one engine share; an engine serves one call at a time.
#[derive(Default)]
pub struct CallState {
    call: Mutex<Call>,
    settings: BTreeMap<String, String>,
}

pub(super) struct Call {
    asking: Option<Asking>,
    calls_left: u32,
    pub(super) http_bytes_left: usize,
    /// Status and headers of the last response.
    pub(super) response: Option<(u16, BTreeMap<String, String>)>,
    pub(super) log_lines: u32,
    pub(super) output_bytes_max: usize,
    /// What it answers with, or of how many bytes where those are too many.
    pub(super) output: Result<Vec<u8>, usize>,
    /// What it says of its failure.
    pub(super) error: Option<Vec<u8>>,
    variables: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The grants that were made use of.
    used: BTreeSet<String>,
    denied: Option<HostFunction>,
}

impl Default for Call {
    fn default() -> Self {
        Self {
            asking: None,
            calls_left: 0,
            http_bytes_left: 0,
            response: None,
            log_lines: 0,
            output_bytes_max: 0,
            output: Ok(Vec::new()),
            error: None,
            variables: BTreeMap::new(),
            used: BTreeSet::new(),
            denied: None,
        }
    }
}

impl CallState {
    /// Of calls of a plugin with these settings.
    pub fn new(settings: BTreeMap<String, String>) -> Self {
        Self { settings, ..Self::default() }
    }

    /// What the plugin's configuration tells it.
    pub(super) fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// Begins a call; without `asking`, there is nobody to ask.
    pub fn begin(&self, limits: &Limits, asking: Option<Asking>) {
        *self.call() = Call {
            asking,
            calls_left: limits.host_calls,
            http_bytes_left: limits.http_bytes,
            output_bytes_max: limits.output_bytes,
            ..Call::default()
        };
    }

    /// Ends the call.
    pub fn end(&self) -> Over {
        let Call { output, error, used, denied, .. } = std::mem::take(&mut *self.call());
        Over { output, error, used: used.into_iter().collect(), denied }
    }

    /// A grant was made use of.
    pub(super) fn used(&self, grant: String) {
        self.call().used.insert(grant);
    }

    /// Something was asked for that was not granted.
    pub(super) fn denied(&self, function: HostFunction) {
        self.call().denied = Some(function);
    }

    // A poisoned lock is fine: nothing is half done between statements.
    pub(super) fn call(&self) -> MutexGuard<'_, Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest calls the host.
    ///
    /// # Errors
    /// Where it has called too often.
    pub(super) fn count_call(&self) -> Result<(), Error> {
        let mut call = self.call();
        match call.calls_left.checked_sub(1) {
            Some(left) => {
                call.calls_left = left;
                Ok(())
            }
            None => Err(Error::msg("made more calls of the host than host_calls allows")),
        }
    }

    /// What the call is for.
    pub(super) fn origin(&self) -> Result<Origin, Error> {
        self.call().asking.as_ref().map(|asking| asking.origin.clone()).ok_or_else(nobody)
    }

    /// Asks, and waits for the answer as long as the call may take. Blocks.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(Reply<T>) -> HostCall) -> Result<T, Error> {
        let (to, pool) = match &self.call().asking {
            Some(asking) => (asking.to.clone(), asking.pool.clone()),
            None => return Err(nobody()),
        };
        let (reply, answer) = oneshot::channel();
        let over = || Error::msg("timeout");
        to.blocking_send(ask(reply)).map_err(|_| over())?;
        pool.while_waiting(|| answer.blocking_recv()).map_err(|_| over())?.map_err(Error::msg)
    }

    pub(super) fn variable(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.call().variables.get(name).cloned()
    }

    /// Keeps a variable for the rest of the call; none = it is gone.
    pub(super) fn set_variable(&self, name: Vec<u8>, value: Option<Vec<u8>>) -> Result<(), Error> {
        let variables = &mut self.call().variables;
        variables.remove(&name);
        let Some(value) = value else { return Ok(()) };
        let used: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
        if used + name.len() + value.len() > VARIABLES_BYTES_MAX {
            return Err(Error::msg(format!("its variables have more than {VARIABLES_BYTES_MAX} bytes")));
        }
        variables.insert(name, value);
        Ok(())
    }
}

fn nobody() -> Error {
    Error::msg("the host answers this in calls of the tool only, not in describe")
}
