//! One connection of a client. It may end at any moment, since the daemon may; what else goes wrong
//! with it is a finding.

use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::TIMEOUT;

/// Why a client stopped.
#[derive(Debug)]
pub enum Stop {
    /// The connection is gone.
    Lost(String),
    /// The daemon refused: as it may while it stops.
    Refused(String),
    /// Something is as it must not be.
    Wrong(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

/// An open connection, its hello taken.
pub struct Line {
    socket: WebSocketStream<TcpStream>,
    next_id: u64,
}

impl Line {
    pub async fn open(address: SocketAddr) -> Result<Self, Stop> {
        let stream = TcpStream::connect(address).await;
        Self::over(stream.map_err(|error| Stop::Lost(error.to_string()))?, address).await
    }

    /// The same, over a stream to this address.
    pub async fn over(stream: TcpStream, address: SocketAddr) -> Result<Self, Stop> {
        let lost = |why: &dyn ToString| Stop::Lost(why.to_string());
        stream.set_nodelay(true).map_err(|error| lost(&error))?;
        let upgrade = tokio_tungstenite::client_async(format!("ws://{address}/ws"), stream);
        let (socket, _) = upgrade.await.map_err(|error| lost(&error))?;
        let mut line = Self { socket, next_id: 0 };
        let hello = line.receive().await?;
        if hello["ok"] == true { Ok(line) } else { Err(Stop::Wrong(format!("hello: {hello}"))) }
    }

    /// Sends a request; gives its id.
    pub async fn ask(&mut self, method: &str, params: Value) -> Result<String, Stop> {
        self.next_id += 1;
        let id = format!("r{}", self.next_id);
        let request = json!({"id": id, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(request)).await.map_err(|error| Stop::Lost(error.to_string()))?;
        Ok(id)
    }

    /// The next frame.
    pub async fn receive(&mut self) -> Result<Value, Stop> {
        loop {
            let message = match tokio::time::timeout(TIMEOUT, self.socket.next()).await {
                Ok(message) => message,
                Err(_) => return Err(Stop::Wrong(format!("nothing came for {TIMEOUT:?}"))),
            };
            match message {
                Some(Ok(Message::Text(text))) => match serde_json::from_str::<Value>(&text) {
                    Ok(frame) if frame["error"] == "draining" => {
                        return Err(Stop::Lost("the daemon says that it stops".into()));
                    }
                    Ok(frame) => return Ok(frame),
                    Err(error) => return Err(Stop::Wrong(format!("{error}: {text}"))),
                },
                Some(Ok(Message::Close(close))) => return Err(Stop::Lost(format!("closed: {close:?}"))),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Stop::Lost(error.to_string())),
                None => return Err(Stop::Lost("the end".into())),
            }
        }
    }

    /// The next frame with this id, others passed over.
    pub async fn reply(&mut self, id: &str) -> Result<Value, Stop> {
        loop {
            let frame = self.receive().await?;
            if frame["id"] == id {
                return Ok(frame);
            }
        }
    }

    /// Sends a request and takes its result.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, Stop> {
        let id = self.ask(method, params).await?;
        let mut reply = self.reply(&id).await?;
        match reply.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(Stop::Refused(format!("{method}: {reply}"))),
        }
    }
}
