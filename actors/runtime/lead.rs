//! What is done once in a cluster, by one daemon for all: following agents, firing jobs, serving channels and the bus.

use actix::Message;

/// From here on this daemon does what one does for all, or does it no more; answered when nothing of it is on its way.
/// A daemon alone does it always.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Lead(pub bool);
