//! From an entry of the configuration to a server that answers: started or reached, greeted, its tools listed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clawmux_core::config::{McpReach, McpServer};
use rmcp::model::{ClientConfig, Implementation};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::Surroundings;
use super::http::HttpClient;
use super::listing::{Listing, list};
use super::program::Program;
use super::stdio::Stdio;
use super::words::not_greeted;

/// How long a server may take until it answers: its program may have to be fetched first.
pub(super) const START_MAX: Duration = Duration::from_secs(120);

/// A server that answers.
pub(super) struct Connection {
    pub(super) client: RunningService<RoleClient, Listener>,
    /// Its program, where it was started.
    pub(super) program: Option<Program>,
    pub(super) listing: Listing,
    /// Changes whenever the server says that its tools have.
    pub(super) changes: watch::Receiver<u64>,
}

/// Takes what a server says unasked: what it wants to be done is refused, since there is nothing of a session
/// here that it may have.
#[derive(Debug)]
pub(super) struct Listener {
    version: &'static str,
    changes: watch::Sender<u64>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let mut own = ClientConfig::default();
        own.client_info = Implementation::new("clawmux", self.version);
        own
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// Starts or reaches a server, and asks for its tools.
///
/// # Errors
/// Why it does not answer, with what it said last where it is a program.
pub(super) async fn connect(server: &McpServer, around: &Surroundings) -> Result<Connection, String> {
    let (changed, changes) = watch::channel(0);
    let listener = Listener { version: around.version, changes: changed };
    let late = |_| format!("it did not answer within {} s", START_MAX.as_secs());
    let (client, program) = match &server.reach {
        McpReach::Command(command) => {
            let folder = own_folder(&around.home, &server.name);
            let started = Program::start(&around.keeper, &folder, command);
            let (program, stdout, stdin) =
                started.map_err(|error| format!("it can't be started: {error}"))?;
            let greeted = timeout(START_MAX, listener.serve(Stdio::new(stdout, stdin))).await;
            match greeted.map_err(late).and_then(|client| client.map_err(|error| not_greeted(&error))) {
                Ok(client) => (client, Some(program)),
                // Its input has ended with the transport.
                Err(why) => return Err(format!("{why}; {}", program.ended().await)),
            }
        }
        McpReach::Url(reach) => {
            let (http, serving) = HttpClient::new(around.fetcher.clone(), reach);
            // Over once the transport is.
            spawn_local(serving);
            let config = StreamableHttpClientTransportConfig::with_uri(reach.url.as_str());
            let transport = StreamableHttpClientTransport::with_client(http, config);
            let greeted = timeout(START_MAX, listener.serve(transport)).await.map_err(late)?;
            (greeted.map_err(|error| not_greeted(&error))?, None)
        }
    };
    match list(&server.name, client.peer()).await {
        Ok(listing) => Ok(Connection { client, program, listing, changes }),
        Err(why) => {
            // Its input ends with it.
            let _ = client.cancel().await;
            match program {
                Some(program) => Err(format!("{why}; {}", program.ended().await)),
                None => Err(why),
            }
        }
    }
}

/// The folder that is a server's own: its home, and where it may write.
fn own_folder(home: &Path, server: &str) -> PathBuf {
    home.join("mcp").join(server)
}
