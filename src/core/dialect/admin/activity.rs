//! What runs: which sessions are awake and what each is about, as they say of themselves.

use std::collections::HashMap;

use serde_json::Value;

use crate::daemon::operator::Snapshot;

/// What runs.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// The sessions that are awake, by their keys.
    pub(super) awake: HashMap<String, Awake>,
    /// How many are being read from the log, because they have something to do.
    pub(super) waking: u64,
}

/// A session that is awake.
#[derive(Debug, Default)]
pub(super) struct Awake {
    /// The run under way.
    pub(super) run: Option<String>,
    /// What it is about, in words.
    pub(super) doing: String,
    /// What it has spent, calls under way left out.
    pub(super) spent_tokens: u64,
    /// How many prompts wait.
    pub(super) queued: u64,
    /// The last number of its log.
    pub(super) seq: u64,
    /// How many connections follow it.
    pub(super) followers: u64,
}

impl Activity {
    /// What the supervisor of sessions says of those that are awake.
    pub(super) fn of(observed: &Snapshot) -> Self {
        let number = |state: &Value, name: &str| state[name].as_u64().unwrap_or(0);
        let awake = observed.children.iter().filter_map(|child| {
            let key = child.actor.strip_prefix("session ")?.to_owned();
            let run = child.state["run"].as_str().map(str::to_owned);
            let number = |name: &str| number(&child.state, name);
            let awake = Awake {
                run,
                doing: child.state["doing"].as_str().unwrap_or_default().to_owned(),
                spent_tokens: number("spent_tokens"),
                queued: number("queued"),
                seq: number("seq"),
                followers: number("followers"),
            };
            Some((key, awake))
        });
        Self {
            awake: awake.collect(),
            waking: number(&observed.state, "waking") + number(&observed.state, "recovering"),
        }
    }

    /// Runs under way.
    pub(super) fn running(&self) -> usize {
        self.awake.values().filter(|session| session.run.is_some()).count()
    }

    /// Prompts that wait for their turn.
    pub(super) fn queued(&self) -> u64 {
        self.awake.values().map(|session| session.queued).sum()
    }
}
