//! Sockets that were bound for this process before it began: systemd's socket activation.
//!
//! Whoever passes them keeps them too, so that while the daemon is away the kernel queues who
//! connects, and a restart refuses nobody. They win over the configured addresses; their files are
//! not ours, and stay when the daemon ends.
//!
//! Deliberately absent: connected sockets (`Accept=yes`), datagrams, and file descriptors kept by
//! systemd over a restart.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use clawmux_core::error::{Error, ErrorCode};
use socket2::{Domain, Socket, Type};

/// The listening sockets that were passed.
#[derive(Debug, Default)]
pub struct Passed {
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
}

impl Passed {
    /// Takes what `$LISTEN_FDS` counts, if `$LISTEN_PID` is this process, and takes these variables
    /// out of the environment, so that no child believes they are for it. Nothing where there are
    /// none. To be called once, before there are other threads.
    ///
    /// # Errors
    /// `InvalidRequest` where what was passed is not what a daemon can listen on.
    pub fn take() -> Result<Self, Error> {
        let fds: Vec<RawFd> = sd_notify::listen_fds().map_err(|error| wrong(&error.to_string()))?.collect();
        // While there are other threads the variables stay, which harms nobody: they name this process.
        if is_alone() {
            for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
                // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
                unsafe { std::env::remove_var(name) };
            }
        }
        let mut passed = Self::default();
        for fd in fds {
            // SAFETY: it is open, for it was just set to be closed on exec, and it is this process's
            // to use: that is what the variables say, which are read once.
            let owned = unsafe { OwnedFd::from_raw_fd(fd) };
            passed.add(fd, Socket::from(owned))?;
        }
        Ok(passed)
    }

    /// These sockets, as if they had been passed.
    pub fn of(tcp: Vec<TcpListener>, unix: Option<UnixListener>) -> Self {
        Self { tcp, unix }
    }

    fn add(&mut self, fd: RawFd, socket: Socket) -> Result<(), Error> {
        let unusable = |error: io::Error| wrong(&format!("file descriptor {fd}: {error}"));
        let is_listening = socket.is_listener().map_err(unusable)?;
        if !is_listening || socket.r#type().map_err(unusable)? != Type::STREAM {
            return Err(wrong(&format!(
                "file descriptor {fd} is no listening stream socket: use ListenStream= and Accept=no in the socket unit"
            )));
        }
        socket.set_nonblocking(true).map_err(unusable)?;
        match socket.local_addr().map_err(unusable)?.domain() {
            Domain::IPV4 | Domain::IPV6 => self.tcp.push(socket.into()),
            Domain::UNIX if self.unix.is_none() => self.unix = Some(socket.into()),
            Domain::UNIX => {
                return Err(wrong("there are two Unix sockets: one is served, leave the other out"));
            }
            _ => return Err(wrong(&format!("file descriptor {fd} is neither TCP nor a Unix socket"))),
        }
        Ok(())
    }

    /// Whether there is a TCP socket.
    pub fn has_tcp(&self) -> bool {
        !self.tcp.is_empty()
    }

    /// Whether there is anything.
    pub fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_none()
    }

    /// The TCP sockets once more, with their addresses.
    ///
    /// # Errors
    /// Where no file descriptor is left, or one has no address.
    pub fn tcp(&self) -> io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
        let sockets = self.tcp.iter().map(TcpListener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let addresses = sockets.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        Ok((sockets, addresses))
    }

    /// The Unix socket once more.
    ///
    /// # Errors
    /// Where no file descriptor is left.
    pub fn unix(&self) -> io::Result<Option<UnixListener>> {
        self.unix.as_ref().map(UnixListener::try_clone).transpose()
    }
}

fn wrong(why: &str) -> Error {
    ErrorCode::InvalidRequest.error(format!("the sockets that were passed (LISTEN_FDS): {why}"))
}

/// Whether this process has one thread.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(passed: &mut Passed, socket: impl Into<Socket>) -> Result<(), String> {
        passed.add(3, socket.into()).map_err(|error| error.message)
    }

    #[test]
    fn listening_sockets_are_told_apart_and_all_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let unix = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
        let mut passed = Passed::default();
        assert!(passed.is_empty());
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        add(&mut passed, tcp).unwrap();
        add(&mut passed, unix("a")).unwrap();
        assert!(add(&mut passed, unix("b")).unwrap_err().contains("two Unix sockets"));
        let client = std::net::TcpStream::connect(address).unwrap();
        assert!(add(&mut passed, client).unwrap_err().contains("no listening stream socket"));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(add(&mut passed, datagrams).unwrap_err().contains("file descriptor 3"));
        assert!(passed.has_tcp() && !passed.is_empty());
        assert_eq!(passed.tcp().unwrap().1, [address]);
        assert!(passed.unix().unwrap().is_some());
    }

    #[test]
    fn a_process_with_threads_is_not_alone() {
        std::thread::scope(|scope| {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv().ok());
            assert!(!is_alone());
            drop(go);
        });
    }
}
