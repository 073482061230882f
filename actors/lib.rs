//! The cast of clawmux: its actors, their messages, and all I/O.
