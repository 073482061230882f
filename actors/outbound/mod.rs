//! HTTP to other hosts: how connections are made, and how a request of a plugin becomes one.
//!
//! Nothing here is an actor, and no connection is shared between those who ask: what one of them may
//! reach says nothing of what another one may.

pub(crate) mod beginning;
mod close_delimited;
pub(crate) mod dial;
pub(crate) mod fetch;
pub(crate) mod proxy;
pub mod resolver;
pub(crate) mod tls;
