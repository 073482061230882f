//! `clawmux chat`: a terminal client of the running daemon.
//!
//! It speaks exoclaw like any other client, over the daemon's Unix socket or a WebSocket, and attaches
//! to a session as one attaches to a terminal multiplexer: the last turns are shown, what runs is
//! joined, whoever began it, and two chats on one session see the same. The session lives in the
//! daemon: leaving ends nothing but this client.
//!
//! In a terminal there is an editor. Where stdout is none, or the terminal can't be drawn on, lines are
//! read and written. With a message, or piped input, one turn is made: stdout holds the model's answer
//! and nothing else, so that it can be piped; tool calls and complaints go to stderr.
//!
//! When the connection is lost, the daemon is waited for and the answer goes on where it was.

mod approval;
mod attaching;
mod attachments;
mod client;
mod commands;
mod console;
mod conversation;
mod endpoint;
mod input;
mod json;
mod keyboard;
mod leaving;
mod link;
mod link_error;
mod message;
mod plain;
mod prompting;
mod renderer;
mod replay;
mod signals;
mod unix;
mod web;

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use tokio::sync::mpsc;

use self::attachments::Attachments;
use self::client::Client;
use self::console::{Arguments, Completions, Console, UserInput};
use self::endpoint::Connected;
use self::json::JsonLines;
use self::plain::Plain;
use self::renderer::Renderer;
use crate::admin_client::home_of;
use crate::cli::{Chat, Global};
use crate::exit::{Failure, USAGE};
use crate::naming::SessionNames;

/// Shown if the daemon runs inside this process.
const EMBEDDED: &str = "no daemon runs on this home, so one runs inside this chat: other chats can join it, and it \
                        ends when you leave; what is unfinished then is stored and goes on at the next start\n\
                        `clawmux serve` keeps sessions running";

/// The file in the home that keeps the prompts that were typed.
const HISTORY: &str = "chat-history";

/// Runs the command.
///
/// # Errors
/// Status 1 if the run fails, 130 if it is aborted, 69 if the daemon is not reachable, 2 if the
/// command line makes no sense.
pub(crate) fn run(global: &Global, options: &Chat) -> Result<(), Failure> {
    let names = SessionNames::new(|name| std::env::var(name).ok());
    let named = names.named(options.session.as_deref(), options.agent.as_deref())?;
    let files = Attachments::read(&options.file)?;
    let message = message::read(&options.message)?;
    if message.is_none() && options.json {
        return Err(Failure::new(USAGE, "--json is for a single turn: give a MESSAGE, or pipe one in"));
    }
    actix_web::rt::System::new().block_on(async {
        let Connected { endpoint, link, embedded } = endpoint::find(global, options).await?;
        let talked = async {
            let here = (endpoint, link);
            match message {
                Some(message) => {
                    let renderer: Box<dyn Renderer> = if options.json {
                        Box::new(JsonLines::default())
                    } else {
                        Box::new(Plain::new(false))
                    };
                    Client::new(here, renderer, names, files, None, None)?.one_turn(&named, &message).await
                }
                None => {
                    let (mut renderer, typed, completions) = open_terminal(global)?;
                    if embedded.is_some() {
                        renderer.note(EMBEDDED);
                    }
                    Client::new(here, renderer, names, files, Some(typed), completions)?
                        .interactive(&named)
                        .await
                }
            }
        };
        let outcome = talked.await;
        if let Some(embedded) = embedded {
            leaving::stop(embedded).await;
        }
        outcome
    })
}

/// The renderer, the input, and the completions of an editor.
type Terminal = (Box<dyn Renderer>, mpsc::Receiver<UserInput>, Option<Completions>);

/// Opens an editor if the terminal can be drawn on; else reads and writes lines.
fn open_terminal(global: &Global) -> Result<Terminal, Failure> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if is_dumb || !stdout().is_terminal() {
        return Ok((Box::new(Plain::new(true)), keyboard::lines(), None));
    }
    let completions = Completions::default();
    for command in input::names() {
        completions.set(&command, Arguments::Words(Vec::new()));
    }
    completions.set("/attach", Arguments::Files);
    // Who chats with a daemon elsewhere may have no home here.
    let history: Option<PathBuf> =
        home_of(global).ok().filter(|home| home.is_dir()).map(|home| home.join(HISTORY));
    let (console, typed) = Console::open(history, completions.clone())?;
    Ok((Box::new(console), typed, Some(completions)))
}
