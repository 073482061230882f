//! Who knows the MCP servers: name to actor, starting anew what crashed, and going over to another
//! configuration.
//!
//! They live on a thread of their own, since what they have to read is as long as a server likes; there is
//! none as long as no server is configured. Sessions find them in [`McpTools`] and ask nobody here.

mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use actix::prelude::*;
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use futures::future::join_all;
use serde_json::json;
use tokio::sync::watch;

use crate::mcp_server::{Agree, End, McpServer, Offered, Restart, Surroundings};
use crate::runtime::ask::{ask, gone};
use crate::runtime::meters::Meters;
use crate::runtime::observe::{Observe, Observed, TIMEOUT, observe};
use crate::runtime::supervision::{Down, Guard, Restarts};

pub use tools::McpTools;

use tools::{Server, Servers};

/// Requests that wait in the mailbox.
const MAILBOX: usize = 256;

/// See the module.
pub struct McpSupervisor {
    around: Surroundings,
    meters: Meters,
    configured: Vec<config::McpServer>,
    servers: BTreeMap<String, Entry>,
    shared: watch::Sender<Arc<Servers>>,
    /// The thread of the servers.
    arbiter: Option<Arbiter>,
    generation: u64,
}

struct Entry {
    config: config::McpServer,
    to: Addr<McpServer>,
    offered: watch::Receiver<Offered>,
    generation: u64,
    restarts: Restarts,
}

/// Goes over to these servers: those that are as they were go on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure(pub Vec<config::McpServer>);

/// Starts or reaches a server anew.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct RestartServer(pub String);

/// Agrees to what a server says of its tools now; answered with those that were held.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<String>, Error>")]
pub struct AgreeToServer {
    /// The server.
    pub server: String,
    /// The digest of what was looked at; see [`Agree`].
    pub digest: Option<String>,
}

/// Ends all servers; answered when they and all they have started are gone.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct EndAll;

impl McpSupervisor {
    /// For these servers, which are started with it.
    pub fn new(configured: Vec<config::McpServer>, around: Surroundings, meters: Meters) -> Self {
        Self {
            around,
            meters,
            configured,
            servers: BTreeMap::new(),
            shared: watch::Sender::default(),
            arbiter: None,
            generation: 0,
        }
    }

    /// The tools of its servers, as they come and go.
    pub fn tools(&self) -> McpTools {
        McpTools::new(self.shared.subscribe())
    }

    fn begin(&mut self, config: config::McpServer, restarts: Restarts, ctx: &Context<Self>) {
        self.generation += 1;
        let generation = self.generation;
        let meters = self.meters.clone();
        let arbiter = self.arbiter.get_or_insert_with(|| {
            let arbiter = Arbiter::new();
            arbiter.spawn_fn(move || meters.watch_arbiter("mcp"));
            arbiter
        });
        let (sender, offered) = watch::channel(Offered::default());
        let guard = Guard::new(config.name.as_str(), generation, ctx.address().recipient());
        let server = McpServer::new(config.clone(), self.around.clone(), sender, guard);
        let to = McpServer::start_in_arbiter(&arbiter.handle(), |_| server);
        let entry = Entry { config, to, offered, generation, restarts };
        self.servers.insert(entry.config.name.clone(), entry);
    }

    fn share(&self) {
        let server = |entry: &Entry| Server { to: entry.to.clone(), offered: entry.offered.clone() };
        let servers = self.servers.iter().map(|(name, entry)| (name.clone(), server(entry)));
        self.shared.send_replace(Arc::new(servers.collect()));
    }

    fn named(&self, name: &str) -> Result<Addr<McpServer>, Error> {
        let known = self.servers.get(name).map(|entry| entry.to.clone());
        known.ok_or_else(|| {
            let names: Vec<&str> = self.servers.keys().map(String::as_str).collect();
            let there = match names.is_empty() {
                true => "none is configured".to_owned(),
                false => format!("there are: {}", names.join(", ")),
            };
            ErrorCode::NotFound.error(format!("there is no MCP server {name:?}; {there}"))
        })
    }
}

impl Actor for McpSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        for config in std::mem::take(&mut self.configured) {
            self.begin(config, Restarts::default(), ctx);
        }
        self.share();
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        if let Some(arbiter) = &self.arbiter {
            arbiter.stop();
        }
    }
}

impl Handler<Reconfigure> for McpSupervisor {
    type Result = ();

    fn handle(&mut self, Reconfigure(configured): Reconfigure, ctx: &mut Self::Context) {
        let is_as_it_was = |entry: &Entry| configured.contains(&entry.config);
        let (stay, go) =
            std::mem::take(&mut self.servers).into_iter().partition(|(_, entry)| is_as_it_was(entry));
        self.servers = stay;
        let go: BTreeMap<String, Entry> = go;
        for (name, entry) in go {
            tracing::info!(server = %name, "MCP server ends: it is no longer configured like this");
            // It ends by itself where it does not hear it: nobody has its address any more.
            let _ = entry.to.try_send(End);
        }
        for config in configured {
            if !self.servers.contains_key(&config.name) {
                self.begin(config, Restarts::default(), ctx);
            }
        }
        self.share();
    }
}

impl Handler<RestartServer> for McpSupervisor {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, RestartServer(name): RestartServer, _: &mut Self::Context) -> Self::Result {
        let to = self.named(&name);
        Box::pin(async move { ask(&to?, Restart).await })
    }
}

impl Handler<AgreeToServer> for McpSupervisor {
    type Result = ResponseFuture<Result<Vec<String>, Error>>;

    fn handle(&mut self, message: AgreeToServer, _: &mut Self::Context) -> Self::Result {
        let AgreeToServer { server, digest } = message;
        let to = self.named(&server);
        Box::pin(async move { to?.send(Agree { digest }).await.map_err(|_| gone::<McpServer>())? })
    }
}

impl Handler<EndAll> for McpSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: EndAll, _: &mut Self::Context) -> Self::Result {
        let all = std::mem::take(&mut self.servers);
        self.share();
        Box::pin(async move {
            join_all(all.into_values().map(|entry| async move { entry.to.send(End).await })).await;
        })
    }
}

impl Handler<Down> for McpSupervisor {
    type Result = ();

    fn handle(&mut self, down: Down, ctx: &mut Self::Context) {
        // One that was ended is not in the table any more, or a later start is.
        let Some(entry) = self.servers.get_mut(&down.name) else { return };
        if entry.generation != down.generation {
            return;
        }
        if entry.restarts.allow(Instant::now()) {
            tracing::error!(server = %down.name, panicked = down.panicked, "MCP server: its actor stopped: restarting it");
            let (config, restarts) = (entry.config.clone(), std::mem::take(&mut entry.restarts));
            self.begin(config, restarts, ctx);
            self.share();
        } else {
            tracing::error!(server = %down.name, "MCP server: its actor crashed too often: it is out of order");
        }
    }
}

impl Handler<Observe> for McpSupervisor {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let restarts: u64 = self.servers.values().map(|entry| entry.restarts.total()).sum();
        let state = json!({ "servers": self.servers.len(), "restarts_total": restarts });
        let observed = Observed::leaf("mcp supervisor", state);
        let asked = self.servers.iter().map(|(name, entry)| {
            let (name, to) = (name.clone(), entry.to.clone());
            async move {
                let mut child = observe(format!("mcp server {name}"), to, TIMEOUT).await;
                child.state["server"] = name.into();
                child
            }
        });
        let asked = join_all(asked);
        Box::pin(async move { observed.with_children(asked.await) })
    }
}
