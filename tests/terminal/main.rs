//! `clawmux chat` as somebody has it who sits at a terminal: typed and pasted at, resized, closed.
//!
//! What is asked is what a person sees, and what the program writes to the terminal for it. Besides
//! what `cargo test` needs anyway these need `tmux`.

#![expect(clippy::unwrap_used, reason = "a test says why it failed by failing")]
#![allow(unreachable_pub, reason = "one crate in several files")]

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/upstream.rs"]
mod upstream;

mod drawing;
mod leaving;
mod picture;
mod sessions;
mod stage;
mod typing;
