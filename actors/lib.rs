//! The cast of clawmux: its actors, their messages, and all I/O.

pub mod clock;
pub mod deliver;
pub mod observe;
pub mod plugin;
pub mod sandbox;
pub mod sandbox_supervisor;
pub mod supervision;
