//! Whether a rule holds, and what was found where it does not.

/// A rule that does not hold.
#[derive(Debug)]
pub(crate) struct Broken {
    /// Which.
    pub(crate) rule: &'static str,
    /// What was found.
    pub(crate) why: String,
}

/// Whether the rules hold so far.
pub(crate) type Check<T = ()> = Result<T, Broken>;

/// Holds a rule to what was found.
pub(crate) fn demand(holds: bool, rule: &'static str, why: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(Broken { rule, why: why() }) }
}
