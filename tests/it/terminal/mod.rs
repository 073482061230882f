//! `clawmux chat` as somebody has it who sits at a terminal: typed and pasted at, resized, closed.
//!
//! What is asked is what a person sees, and what the program writes to the terminal for it.

mod drawing;
mod leaving;
mod picture;
mod sessions;
mod stage;
mod typing;
