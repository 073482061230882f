//! What the crew asked of the sessions and is not over.

use std::rc::Rc;

use clawmux_core::crew::Effect;
use clawmux_core::ids::SubAgentId;
use clawmux_core::turn::Turn;

use super::Promise;

/// Something that was asked for and is not over.
pub(super) struct Waiting {
    /// What it is for.
    pub(super) effect: Effect,
    /// How often it was asked for.
    pub(super) attempt: u32,
    /// The run that is followed, where it is one.
    pub(super) run: Option<Followed>,
    /// Who waits for it: is answered when the last of these is dropped.
    pub(super) _promise: Option<Rc<Promise>>,
}

/// A turn whose run is followed.
pub(super) struct Followed {
    /// Whose.
    pub(super) agent: SubAgentId,
    /// Which.
    pub(super) turn: u32,
    /// The fold of its events so far.
    pub(super) fold: Turn,
}
