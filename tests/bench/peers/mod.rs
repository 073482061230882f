//! Other people's programs, installed when they are asked for: `cargo bench --bench bench -- --peers`.

/// Installs and measures them.
pub fn compare() {}
