//! What a client can ask for, in nobody's words: every dialect translates into these.

use crate::auth::Scope;
use crate::error::Error;
use crate::ids::{PluginName, RunId, Seq, SessionKey, Ticket};
use crate::reply::Role;

/// A request a dialect wants executed.
#[derive(Debug)]
pub struct Request {
    /// The scope it takes.
    pub needs: Scope,
    /// What it costs of the principal's rate (`[limits]` in the configuration).
    pub cost: u32,
    /// What to do; or why the request could not be understood, told to the client only after its
    /// scope and its rate were checked.
    pub command: Result<Command, Error>,
}

/// Where a message comes from, in the terms bindings are written in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The channel, such as `websocket` or `telegram`.
    pub channel: String,
    /// The account within the channel.
    pub account: String,
    /// The peer within the account.
    pub peer: Option<String>,
    /// The guild or server, for channels that have such.
    pub guild: Option<String>,
    /// The team within the guild.
    pub team: Option<String>,
}

/// Which session a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The one the router finds.
    Route(Route),
    /// This one.
    Session(SessionKey),
}

/// A prompt for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The session.
    pub target: Target,
    /// The id the run gets, unless `idempotency_key` names one that exists.
    pub run: RunId,
    /// What the user says.
    pub content: String,
    /// The same key from the same owner is the same run.
    pub idempotency_key: Option<String>,
}

/// A message of a conversation, which older ones are asked for before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// Its run.
    pub run: RunId,
    /// Who said it.
    pub role: Role,
}

/// Everything that can be asked of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// How the daemon is.
    Status,
    /// A prompt; its run's events follow the reply.
    Submit(Submit),
    /// End a run: `run`, or whichever run the session is in; a queued run is taken from the queue.
    Abort {
        /// The session.
        target: Target,
        /// The run; none means the one under way.
        run: Option<RunId>,
    },
    /// The last messages of a session.
    History {
        /// The session.
        target: Target,
        /// At most so many messages, the newest.
        limit: usize,
        /// Only those before this one.
        before: Option<Before>,
    },
    /// The sessions the caller may see, the latest used first.
    Sessions,
    /// Forget the conversation (the log keeps it).
    Clear {
        /// The session.
        target: Target,
    },
    /// Follow a session: everything that happens in it, until the connection ends or lets go.
    Attach {
        /// The session.
        target: Target,
        /// The last number already seen: what comes after it is given from the log. None = from now
        /// on.
        after: Option<Seq>,
    },
    /// Follow it no longer.
    Detach {
        /// The session.
        target: Target,
        /// The ticket of the `Attach`.
        follow: Ticket,
    },
    /// End the run under way and all that wait, and let the session sleep.
    Stop {
        /// The session.
        target: Target,
    },
    /// What the budgets leave, with the session's where one is named.
    Budget {
        /// The session.
        target: Option<Target>,
    },
    /// The loaded plugins.
    Plugins,
    /// Load a plugin: a configured one, or the file `path` under the plugins folder of the home.
    LoadPlugin {
        /// The name it gets.
        name: PluginName,
        /// The module; none means the configured or embedded one.
        path: Option<String>,
    },
    /// Unload a plugin.
    UnloadPlugin {
        /// Its name.
        name: PluginName,
    },
}
