//! The limit programs: as little as can be done for the same bytes on the same wires.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Echoes every WebSocket frame.
pub fn echo() {
    serve(|mut socket| async move {
        let mut frame = Vec::new();
        loop {
            if read_frame(&mut socket, &mut frame).await.is_err() {
                return;
            }
            if write_frame(socket.get_mut(), &frame).await.is_err() {
                return;
            }
        }
    });
}

/// For every frame of a client, asks the upstream and sends each piece of its answer on as it is.
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
            let mut piece = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = model.read(&mut piece).await {
                let frame = text_frame(&piece[..length]);
                for listener in &mut all {
                    let _ = listener.write_all(&frame).await;
                }
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
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {upstream}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    model.write_all(&[head.as_bytes(), body].concat()).await?;
    Ok(model)
}

async fn stream_on(upstream: SocketAddr, body: &[u8], client: &mut TcpStream) -> std::io::Result<()> {
    let mut model = ask(upstream, body).await?;
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = model.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        write_frame(client, &piece[..read]).await?;
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

async fn write_frame(socket: &mut TcpStream, payload: &[u8]) -> std::io::Result<()> {
    socket.write_all(&text_frame(payload)).await
}

/// A text frame with this payload.
fn text_frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + 10);
    frame.push(0x81);
    match payload.len() {
        length @ 0..=125 => frame.push(length as u8),
        length @ 126..=65535 => {
            frame.push(126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(payload);
    frame
}
