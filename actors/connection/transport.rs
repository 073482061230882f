//! What a connection needs of that which carries its frames: a WebSocket ([`ws`](super::ws)) or lines
//! of a Unix socket ([`lines`](super::lines)).

use actix::AsyncContext;
use actix::dev::ToEnvelope;
use clawmux_core::dialect::Frame;

use super::link::Link;
use super::{Connection, ConnectionControl};
use crate::runtime::deliver::Deliver;

/// What carries the frames of a connection.
///
/// Incoming frames it gives to the connection itself, as long as its [`Link`] says that more may be read.
/// What it is given to send it bounds by not reading on, and tells the link of what it took and when
/// its peer had room.
pub trait Transport: Sized + Unpin + 'static {
    /// Where the actor lives.
    type Context: AsyncContext<Connection<Self>>
        + ToEnvelope<Connection<Self>, Deliver>
        + ToEnvelope<Connection<Self>, ConnectionControl>;

    /// The connection has begun: spawns what it takes besides.
    fn begin(&mut self, context: &mut Self::Context);

    /// Sends a frame.
    fn send(&mut self, context: &mut Self::Context, link: &Link, frame: Frame);

    /// Asks whether the peer is there, where the transport has a way to.
    fn ping(&mut self, context: &mut Self::Context, link: &Link);

    /// Sends a farewell behind everything that was sent, where the transport has one; the connection
    /// stops a little later, or as soon as the peer has taken it.
    fn close(&mut self, context: &mut Self::Context, link: &Link, code: u16, reason: &str);

    /// Bounds how many deliveries may wait.
    fn set_mailbox_capacity(context: &mut Self::Context, capacity: usize);
}
