//! The clients that people have, unmodified, on a daemon: command line, terminal UI and Control UI of
//! both generations of OpenClaw, the Node library, and what the Moltz desktop app does.
//!
//! They come from npm ([`npm`]) and are driven as a person would: typed at in a terminal, clicked in
//! a browser. What is asked is what a person sees: an answer once and whole, an abort that aborts, a
//! conversation that is there again after a reload and after a crash of the daemon. What the frames
//! look like is asked in `it/dialects.rs` and in [`schema`].
//!
//! Of Wundr's protocol the validators of its own package are asked about every frame ([`judge`]).

#![allow(unreachable_pub, reason = "a test exports nothing")]
#![allow(clippy::unwrap_used, reason = "a test says why it failed by failing")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a failed test shows the log of its daemon")]

#[allow(unused, reason = "the crate `it` uses all of it")]
#[path = "../support/mod.rs"]
mod support;

mod command_line;
mod control_ui;
mod desktop;
mod guests;
mod judge;
mod library;
mod llama_cpp;
mod mcp_servers;
mod npm;
mod page;
mod pypi;
mod schema;
mod stage;
mod terminal_ui;
mod theirs;
