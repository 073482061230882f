//! Those who are not let in: what is told of them, and how fast they may guess.
//!
//! All that is written to the log of what somebody says who has not shown who it is goes through
//! [`Strangers::tell`]: short, and one line a minute for each address.

use std::fmt;
use std::hash::BuildHasher;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use clawmux_core::access::Credentials;
use clawmux_core::access::guesses::Guesses;
use clawmux_core::access::strangers::{Source, Tally, Untold, words};
use clawmux_core::error::{Detail, Error};

use crate::connection::link::Peer;
use crate::runtime::clock;

/// What is known of strangers; shared by all connections.
#[derive(Debug, Default)]
pub struct Strangers {
    tally: Mutex<Tally>,
    guesses: Mutex<Guesses>,
    /// Tells credentials apart.
    marks: RandomState,
}

/// What a stranger said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// The `Origin` of its request.
    pub origin: Option<&'a str>,
    /// The `Host` of its request.
    pub host: Option<&'a str>,
    /// What it asked for.
    pub path: Option<&'a str>,
    /// The device it says it is.
    pub device: Option<&'a str>,
}

/// Somebody who has to wait before the credential it shows is looked at.
#[derive(Debug)]
pub struct Hold {
    strangers: Arc<Strangers>,
    source: Source,
    /// How long.
    pub wait: Duration,
}

impl Drop for Hold {
    fn drop(&mut self) {
        lock(&self.strangers.guesses).waited(self.source);
    }
}

impl Strangers {
    /// Writes down that `peer` did `what`, unless that was done within the last minute.
    pub fn tell(&self, peer: Peer, what: &'static str, why: &dyn fmt::Display, said: Said<'_>) {
        let Some(told) = lock(&self.tally).note(peer.ip().into(), what, clock::now()) else { return };
        let [origin, host, path, device] =
            [said.origin, said.host, said.path, said.device].map(|said| said.map(words));
        let left_out = (told.count > 0).then_some(told.count);
        tracing::warn!(
            %peer,
            origin = origin.as_deref(),
            host = host.as_deref(),
            path = path.as_deref(),
            device = device.as_deref(),
            left_out,
            "{what}: {}",
            words(&why.to_string())
        );
    }

    /// Writes down how much was left out, where nothing followed.
    pub(crate) fn tell_due(&self) {
        let due = lock(&self.tally).due(clock::now());
        for Untold { source, what, count } in due {
            tracing::warn!(peer = %source, left_out = count, "{what}: and more of the same");
        }
    }

    /// Somebody shows a credential: none = it is looked at now.
    ///
    /// # Errors
    /// `RateLimited`, where too many from there wait already.
    pub fn hold(self: &Arc<Self>, source: Source) -> Result<Option<Hold>, Error> {
        let wait = lock(&self.guesses).wait(source, clock::now())?;
        Ok((!wait.is_zero()).then(|| Hold { strangers: self.clone(), source, wait }))
    }

    /// Somebody was not let in: whether it guesses is noted, and told.
    pub fn refused(
        &self,
        source: Source,
        peer: Peer,
        shown: &Credentials,
        error: &Error,
        device: Option<&str>,
    ) {
        if let Some(Detail::Credential(fault)) = &error.detail
            && fault.is_guess()
        {
            let mark = self.marks.hash_one(shown.token().map(|token| token.expose()));
            lock(&self.guesses).failed(source, mark, clock::now());
        }
        self.tell(peer, "not let in", error, Said { device, ..Said::default() });
    }

    /// How many sources have guessed lately, and how many connections wait because of that.
    pub(crate) fn guessing(&self) -> (usize, usize) {
        lock(&self.guesses).counts()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic leaves half of a change behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
