//! xeno's protocol: `gateway.*`, JSON-RPC 2.0 over lines, on the Unix socket.
//!
//! Its methods are not there yet: each request is refused by name.

use serde_json::Value;

use super::{Dialect, Frame, Input, Setup, Turn};
use crate::jsonrpc;
use crate::time::Timestamp;

/// xeno's protocol, on one connection.
#[derive(Debug)]
pub struct Xeno;

impl Xeno {
    /// For a connection whose peer is let in.
    pub fn new(_: Setup) -> Self {
        Self
    }

    /// Whether nothing is owed to a peer that asks for nothing more.
    pub fn is_idle(&self) -> bool {
        true
    }
}

impl Dialect for Xeno {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        let Input::Frame(Frame::Text(text)) = input else { return };
        let refusal = match jsonrpc::parse(text.as_bytes()) {
            Ok(request) => {
                let method = request.method;
                let later = if method.starts_with("gateway.") { " (it is not there yet)" } else { "" };
                let why = format!("unknown method: {method}{later}");
                match request.id {
                    None | Some(Value::Null) => return,
                    Some(id) => jsonrpc::failure(&id, jsonrpc::METHOD_NOT_FOUND, &why, None),
                }
            }
            Err(refusal) => refusal,
        };
        turn.send(refusal);
    }

    fn deadline(&self) -> Option<Timestamp> {
        None
    }
}
