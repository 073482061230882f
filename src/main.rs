//! The clawmux binary.

fn main() {}
