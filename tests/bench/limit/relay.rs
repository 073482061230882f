//! The limit of a token: each event of what a provider says is sent on in a frame, not read and not kept.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// What is read at once, in bytes.
const PIECE: usize = 64 * 1024;

/// For every frame of a client, asks the upstream and sends each event of its answer on as it is.
pub fn relay(upstream: &str) {
    let upstream: SocketAddr = upstream.parse().expect("an address");
    serve(move |mut socket| async move {
        let mut frame = Vec::new();
        while read_frame(&mut socket, &mut frame).await.is_ok() {
            if stream_on(upstream, &frame, socket.get_mut()).await.is_err() {
                return;
            }
        }
    });
}

/// Sends what the upstream answers to everybody who is connected; a frame of one of them asks for it.
pub fn fan(upstream: &str) {
    let upstream: SocketAddr = upstream.parse().expect("an address");
    let listeners = Rc::new(RefCell::new(Vec::<OwnedWriteHalf>::new()));
    serve(move |socket| {
        let listeners = listeners.clone();
        async move {
            let (read, write) = socket.into_inner().into_split();
            listeners.borrow_mut().push(write);
            let (mut read, mut frame) = (BufReader::new(read), Vec::new());
            if read_frame(&mut read, &mut frame).await.is_err() {
                return;
            }
            let mut all = std::mem::take(&mut *listeners.borrow_mut());
            let Ok(mut model) = ask(upstream, &frame).await else { return };
            let (mut said, mut frames, mut is_over) = (Vec::with_capacity(PIECE), Vec::new(), false);
            while !is_over {
                is_over = matches!(model.read_buf(&mut said).await, Ok(0) | Err(_));
                frame_events(&mut said, is_over, &mut frames);
                for listener in &mut all {
                    let _ = listener.write_all(&frames).await;
                }
                frames.clear();
            }
            // Whoever listens reads to the end.
            std::future::pending::<()>().await;
        }
    });
}

async fn ask(upstream: SocketAddr, body: &[u8]) -> std::io::Result<TcpStream> {
    let mut model = TcpStream::connect(upstream).await?;
    model.set_nodelay(true)?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {upstream}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    model.write_all(&[head.as_bytes(), body].concat()).await?;
    Ok(model)
}

async fn stream_on(upstream: SocketAddr, body: &[u8], client: &mut TcpStream) -> std::io::Result<()> {
    let mut model = ask(upstream, body).await?;
    let (mut said, mut frames) = (Vec::with_capacity(PIECE), Vec::with_capacity(PIECE));
    loop {
        let is_over = model.read_buf(&mut said).await? == 0;
        frame_events(&mut said, is_over, &mut frames);
        client.write_all(&frames).await?;
        frames.clear();
        if is_over {
            return Ok(());
        }
    }
}

/// A frame for each event that has come whole, which is then no longer in `said`; after the last an empty one.
fn frame_events(said: &mut Vec<u8>, is_over: bool, frames: &mut Vec<u8>) {
    let mut begin = 0;
    while let Some(length) = event_length(&said[begin..]) {
        push_frame(frames, &said[begin..begin + length]);
        begin += length;
    }
    said.drain(..begin);
    if is_over {
        push_frame(frames, &[]);
    }
}

/// The length of the first event, where it is whole.
pub fn event_length(said: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + said[from..].iter().position(|byte| *byte == b'\n')?;
        if *said.get(at + 1)? == b'\n' {
            return Some(at + 2);
        }
        from = at + 1;
    }
}

fn serve<F>(connection: impl Fn(BufReader<TcpStream>) -> F + Clone + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("http://{}", listener.local_addr().expect("an address"));
        loop {
            let Ok((socket, _)) = listener.accept().await else { return };
            let connection = connection.clone();
            tokio::task::spawn_local(async move {
                let _ = socket.set_nodelay(true);
                let mut socket = BufReader::new(socket);
                if handshake(&mut socket).await.is_ok() {
                    connection(socket).await;
                }
            });
        }
    });
}

async fn handshake(socket: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut key = String::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("sec-websocket-key")
        {
            key = value.trim().to_owned();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let accept = derive_accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    socket.get_mut().write_all(answer.as_bytes()).await
}

/// Reads one masked frame; its payload goes to `frame`.
async fn read_frame<R>(socket: &mut BufReader<R>, frame: &mut Vec<u8>) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
{
    let mut head = [0; 2];
    socket.read_exact(&mut head).await?;
    let length = match head[1] & 0x7f {
        126 => usize::from(socket.read_u16().await?),
        127 => socket.read_u64().await? as usize,
        length => usize::from(length),
    };
    let mut mask = [0; 4];
    socket.read_exact(&mut mask).await?;
    frame.resize(length, 0);
    socket.read_exact(frame).await?;
    for (index, byte) in frame.iter_mut().enumerate() {
        *byte ^= mask[index % 4];
    }
    Ok(())
}

/// A text frame with this payload.
fn push_frame(frames: &mut Vec<u8>, payload: &[u8]) {
    frames.push(0x81);
    match payload.len() {
        length @ 0..=125 => frames.push(length as u8),
        length @ 126..=65535 => {
            frames.push(126);
            frames.extend((length as u16).to_be_bytes());
        }
        length => {
            frames.push(127);
            frames.extend((length as u64).to_be_bytes());
        }
    }
    frames.extend(payload);
}
