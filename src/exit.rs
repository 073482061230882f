//! How a command ends: what is said on stderr and the exit status scripts rely on.

/// It failed.
pub(crate) const FAILED: u8 = 1;
/// It was called wrongly.
pub(crate) const USAGE: u8 = 2;
/// The configuration is bad.
pub(crate) const CONFIG: u8 = 64;
/// The daemon is not reachable.
pub(crate) const UNREACHABLE: u8 = 69;
/// Ctrl-C ended it, as shells count.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command ends with a status other than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// What to say, possibly several lines. Empty where everything is said.
    pub(crate) message: String,
}

impl Failure {
    /// With this status, saying so.
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<clawmux_core::error::Error> for Failure {
    fn from(error: clawmux_core::error::Error) -> Self {
        Self::new(FAILED, error.message)
    }
}
