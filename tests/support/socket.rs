//! A WebSocket of JSON frames: what clients of all protocols are made of.

use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::TIMEOUT;

/// One connection.
pub struct Socket {
    /// For what is no frame of a protocol, such as a ping.
    pub inner: WebSocket<TcpStream>,
    seen: Vec<String>,
    reason: String,
}

/// What the daemon sends.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A text frame.
    Frame(Value),
    /// A binary frame.
    Binary(Vec<u8>),
}

impl Socket {
    /// Opens a path.
    pub fn open(address: SocketAddr, path: &str) -> Self {
        let request = format!("ws://{address}{path}").into_client_request().expect("a request");
        Self::upgrade(address, request).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Opens with this request.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn upgrade(address: SocketAddr, request: Request) -> Result<Self, String> {
        let stream = TcpStream::connect(address).expect("it accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
        stream.set_nodelay(true).expect("no delay");
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (socket, _) = tungstenite::client::client_with_config(request, stream, Some(config))
            .map_err(|error| error.to_string())?;
        Ok(Self { inner: socket, seen: Vec::new(), reason: String::new() })
    }

    /// Sends a text frame as it is.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send_text(&mut self, text: &str) -> Result<(), String> {
        self.inner.send(Message::text(text)).map_err(|error| error.to_string())
    }

    /// Sends a binary frame.
    pub fn send_binary(&mut self, bytes: impl Into<Vec<u8>>) {
        self.inner.send(Message::binary(bytes.into())).expect("it takes frames");
    }

    /// The next frame.
    ///
    /// # Errors
    /// How the connection ended: the code of the Close, or why there is none.
    pub fn read(&mut self) -> Result<Incoming, String> {
        loop {
            match self.inner.read() {
                Ok(Message::Text(text)) => {
                    self.seen.push(text.to_string());
                    let frame = serde_json::from_str(&text);
                    return Ok(Incoming::Frame(frame.unwrap_or_else(|error| panic!("{error}: {text}"))));
                }
                Ok(Message::Binary(bytes)) => return Ok(Incoming::Binary(bytes.to_vec())),
                Ok(Message::Close(Some(close))) => {
                    self.reason = close.reason.to_string();
                    return Err(u16::from(close.code).to_string());
                }
                Ok(Message::Close(None)) => return Err("no code".into()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Every text frame so far, as it came.
    pub fn seen(&self) -> &[String] {
        &self.seen
    }

    /// The reason of the Close.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
