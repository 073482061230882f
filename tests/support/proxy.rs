//! An HTTP proxy for tests, on a port of its own: connects (CONNECT) and forwards (a whole URL), to this host
//! whatever the name is, and keeps what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A running proxy; stops when dropped.
pub struct Proxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    /// One that wants to be shown this `Proxy-Authorization`, where there is one.
    pub fn start(wants: Option<&str>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (shared, wants) = (heads.clone(), wants.map(str::to_owned));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        tokio::spawn(serve(stream, shared.clone(), wants.clone()));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address: started.recv().unwrap(), heads, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The heads of the requests that began each of its connections so far.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection, which is of one server.
async fn serve(mut client: TcpStream, heads: Arc<Mutex<Vec<String>>>, wants: Option<String>) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    heads.lock().unwrap().push(head.clone());
    let shown = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization").then(|| value.to_owned())
    });
    if wants != shown {
        let refusal =
            "HTTP/1.1 407 Who\r\nproxy-authenticate: Basic realm=\"p\"\r\ncontent-length: 0\r\n\r\n";
        return client.write_all(refusal.as_bytes()).await.ok();
    }
    let target = head.split(' ').nth(1)?;
    let authority =
        target.strip_prefix("http://").map_or(target, |rest| rest.split('/').next().unwrap_or(rest));
    let port = authority.rsplit_once(':').map_or("80", |(_, port)| port).parse::<u16>().ok()?;
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return client.write_all(b"HTTP/1.1 502 Not there\r\ncontent-length: 0\r\n\r\n").await.ok();
    };
    server.set_nodelay(true).ok()?;
    if head.starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.ok()?;
    } else {
        // As it came: servers take whole URLs as well.
        server.write_all(&bytes).await.ok()?;
    }
    copy_bidirectional(&mut client, &mut server).await.ok().map(|_| ())
}
