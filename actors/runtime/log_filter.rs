//! What of its doings the process writes to its log, as the daemon may look at and change it. The log
//! itself is the binary's.

use std::fmt::Debug;

/// The filter of a process's log.
pub trait LogFilter: Debug + Send + Sync {
    /// The directives in effect.
    fn directives(&self) -> String;

    /// Whether these are directives.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    fn check(&self, directives: &str) -> Result<(), String>;

    /// From now on these are in effect.
    ///
    /// # Errors
    /// As [`Self::check`]; then those of before stay.
    fn set(&self, directives: &str) -> Result<(), String>;
}
