//! Which user of this host has the socket at the other end of a TCP connection within it.
//!
//! The kernel is asked for the one socket, by `sock_diag`, which takes some microseconds however many
//! there are and waits for nobody; where it has none, its table of sockets is read (`/proc/net/tcp` and
//! `tcp6`), off the thread that asks.
//!
//! A socket that nobody has any more has no user: the kernel tells 0, which is root, and no inode. So
//! who closes at once, having sent what it wanted, is nobody and not root. For the same reason what
//! is found must be the very connection that is asked for, and no socket that listens on its port.

use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// How long the kernel may take, which never takes any time.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The tables of the kernel's sockets.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// What tells whose socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A question to the kernel.
    SockDiag,
    /// Its tables.
    Tables,
}

/// What there is on this host; none where nothing tells. Tried once, on a connection to ourselves.
pub fn means() -> Option<Means> {
    static FOUND: OnceLock<Option<Means>> = OnceLock::new();
    *FOUND.get_or_init(find)
}

fn find() -> Option<Means> {
    let Ok((_listener, ours, theirs)) = pair() else {
        // Without loopback nobody comes over it; where a socket was passed from elsewhere, nothing is
        // found and nobody is let in.
        return Some(Means::SockDiag);
    };
    let (Ok(from), Ok(to), Ok(own)) = (ours.local_addr(), theirs.local_addr(), own_user()) else {
        return None;
    };
    [Means::SockDiag, Means::Tables].into_iter().find(|means| {
        let found = owner(*means, from, to);
        tracing::debug!(?means, ?found, "whose socket it is");
        found.is_ok_and(|owner| owner.user == own)
    })
}

fn pair() -> io::Result<(TcpListener, TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect_timeout(&listener.local_addr()?, TIMEOUT)?;
    let (theirs, _) = listener.accept()?;
    Ok((listener, ours, theirs))
}

/// The user this process runs as, as the kernel calls it at the other end of a socket.
///
/// # Errors
/// Where the kernel does not say.
pub fn own_user() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes into `peer`, which
    // has that many.
    let answer = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&one),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if answer == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

/// The daemon's own user and root.
pub(crate) fn may_use(peer: u32, own_user: u32) -> bool {
    const ROOT: u32 = 0;
    peer == own_user || peer == ROOT
}

/// Who has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub user: u32,
    /// The socket's inode, by which the processes that have it are found.
    pub inode: u32,
}

/// Who has the socket `from`, which is connected to ours, `to`.
///
/// # Errors
/// `NotFound` where nobody has it any more; where the kernel can't be asked.
pub fn owner(means: Means, from: SocketAddr, to: SocketAddr) -> io::Result<Owner> {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (from, to) = (canonical(from), canonical(to));
    match means {
        Means::SockDiag => sock_diag::ask(from, to),
        Means::Tables => TABLES
            .iter()
            .find_map(|table| match File::open(table).and_then(|file| look(BufReader::new(file), from, to)) {
                Ok(found) => found.map(Ok),
                // A kernel without IPv6 has no table of it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => Some(Err(error)),
            })
            .unwrap_or_else(|| Err(gone())),
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "its socket is not there any more")
}

/// The owner in a table of sockets: by text, as the kernel writes it.
fn look(mut table: impl BufRead, from: SocketAddr, to: SocketAddr) -> io::Result<Option<Owner>> {
    let spellings = spelled(from).into_iter().zip(spelled(to)).collect::<Vec<_>>();
    let mut line = String::new();
    loop {
        line.clear();
        if table.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(remote)) = (fields.next(), fields.next()) else { continue };
        if !spellings.iter().any(|(from, to)| local == from && remote == to) {
            continue;
        }
        // State, queues, timer, retransmissions; the user; a timeout; the inode.
        let user = fields.nth(4).and_then(|user| user.parse().ok());
        let inode = fields.nth(1).and_then(|inode| inode.parse().ok()).filter(|inode| *inode != 0);
        return user.zip(inode).map(|(user, inode)| Some(Owner { user, inode })).ok_or_else(gone);
    }
}

/// An address as the tables have it: the numbers of the kernel's memory. One of IPv4 may be an IPv6
/// socket's.
fn spelled(address: SocketAddr) -> Vec<String> {
    let word = |bytes: &[u8]| {
        let bytes = <[u8; 4]>::try_from(bytes).unwrap_or_default();
        format!("{:08X}", u32::from_ne_bytes(bytes))
    };
    let port = address.port();
    let long = |octets: [u8; 16]| format!("{}:{port:04X}", octets.chunks(4).map(word).collect::<String>());
    match address.ip() {
        IpAddr::V4(ip) => {
            vec![format!("{}:{port:04X}", word(&ip.octets())), long(ip.to_ipv6_mapped().octets())]
        }
        IpAddr::V6(ip) => vec![long(ip.octets())],
    }
}

/// The kernel's `sock_diag`: one message with the two ends of a connection, one with its socket.
/// (Source: `linux/inet_diag.h`; numbers are in the host's order, ports and addresses in the network's.)
mod sock_diag {
    use super::*;

    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLMSG_ERROR: u16 = 2;
    const NLM_F_REQUEST: u16 = 1;
    /// Of a netlink message.
    const HEADER_BYTES: usize = 16;
    /// Of a question, and where the ends of the connection stand in it and in the answer.
    const QUESTION_BYTES: usize = 56;
    const ENDS: (usize, usize) = (8, 4);
    /// Both ports and both addresses.
    const ENDS_BYTES: usize = 36;
    /// Of an answer, and where in it the user and the inode stand.
    const ANSWER_BYTES: usize = 72;
    const USER: usize = 64;
    const INODE: usize = 68;

    pub(super) fn ask(from: SocketAddr, to: SocketAddr) -> io::Result<Owner> {
        let domain = Domain::from(libc::AF_NETLINK);
        let mut socket = Socket::new(domain, Type::RAW, Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.write_all(&question(from, to))?;
        let mut answer = [0; 1024];
        let length = socket.read(&mut answer)?;
        read(&answer[..length], from, to)
    }

    /// Both ends: ports, then addresses, each of the room of an IPv6 one.
    fn ends(from: SocketAddr, to: SocketAddr, is_mapped: bool) -> Vec<u8> {
        let mut ends = Vec::with_capacity(ENDS_BYTES);
        ends.extend(from.port().to_be_bytes());
        ends.extend(to.port().to_be_bytes());
        for address in [from, to] {
            match address.ip() {
                IpAddr::V4(ip) if is_mapped => ends.extend(ip.to_ipv6_mapped().octets()),
                IpAddr::V4(ip) => {
                    ends.extend(ip.octets());
                    ends.extend([0; 12]);
                }
                IpAddr::V6(ip) => ends.extend(ip.octets()),
            }
        }
        ends
    }

    fn question(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let length = HEADER_BYTES + QUESTION_BYTES;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.extend(NLM_F_REQUEST.to_ne_bytes());
        bytes.extend([0; 8]);
        let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
        // In any state.
        bytes.extend(u32::MAX.to_ne_bytes());
        bytes.extend(ends(from, to, false));
        // By any interface, with any cookie.
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([0xff; 8]);
        bytes
    }

    pub(super) fn read(answer: &[u8], from: SocketAddr, to: SocketAddr) -> io::Result<Owner> {
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer can't be read");
        let number = |bytes: &[u8], at: usize| {
            let bytes = bytes.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            bytes.map(u32::from_ne_bytes).ok_or_else(odd)
        };
        let kind = answer.get(4..6).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok()).map(u16::from_ne_bytes);
        let body = answer.get(HEADER_BYTES..).ok_or_else(odd)?;
        match kind {
            Some(SOCK_DIAG_BY_FAMILY) if body.len() >= ANSWER_BYTES => {
                let found = &body[ENDS.1..ENDS.1 + ENDS_BYTES];
                let is_it = [false, true].iter().any(|is_mapped| found == ends(from, to, *is_mapped));
                let inode = number(body, INODE)?;
                if !is_it || inode == 0 {
                    return Err(gone());
                }
                Ok(Owner { user: number(body, USER)?, inode })
            }
            Some(NLMSG_ERROR) => match number(body, 0)?.cast_signed() {
                code if code == -libc::ENOENT => Err(gone()),
                code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            },
            _ => Err(odd()),
        }
    }

    #[test]
    fn questions_are_as_long_as_they_say() {
        let address = "127.0.0.1:1".parse().unwrap();
        let question = question(address, address);
        assert_eq!(question.len(), HEADER_BYTES + QUESTION_BYTES);
        assert_eq!(question[HEADER_BYTES + ENDS.0..][..ENDS_BYTES], ends(address, address, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const NOBODY: u32 = 65534;

    /// Every way there is here, which is both wherever tests run.
    const BOTH: [Means; 2] = [Means::SockDiag, Means::Tables];

    #[test]
    fn our_own_sockets_are_ours_in_both_families() {
        let own = own_user().unwrap();
        assert_eq!(means(), Some(Means::SockDiag));
        for (listen, connect) in [
            ("127.0.0.1:0", None),
            ("[::1]:0", None),
            ("[::]:0", Some("[::ffff:127.0.0.1]")),
            ("127.0.0.1:0", Some("[::ffff:127.0.0.1]")),
        ] {
            let listener = TcpListener::bind(listen).unwrap();
            let address = listener.local_addr().unwrap();
            let address = connect.map_or(address, |ip| format!("{ip}:{}", address.port()).parse().unwrap());
            let ours = TcpStream::connect(address).unwrap();
            let (theirs, from) = listener.accept().unwrap();
            let to = theirs.local_addr().unwrap();
            for means in BOTH {
                assert_eq!(owner(means, from, to).unwrap().user, own, "{means:?} {listen} {connect:?}");
                let swapped = owner(means, ours.peer_addr().unwrap(), to);
                assert_eq!(swapped.unwrap_err().kind(), io::ErrorKind::NotFound, "no such connection");
            }
        }
    }

    #[test]
    fn who_has_gone_is_nobody_and_not_root() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, from) = listener.accept().unwrap();
        let to = theirs.local_addr().unwrap();
        ours.write_all(b"something that is still to be read").unwrap();
        drop(ours);
        for means in BOTH {
            let found = owner(means, from, to);
            assert_eq!(found.unwrap_err().kind(), io::ErrorKind::NotFound, "{means:?}");
        }
    }

    #[test]
    fn another_users_socket_is_that_users() {
        if own_user().unwrap() != 0 || Command::new("setpriv").arg("--version").output().is_err() {
            return;
        }
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(listen).unwrap();
            let address = listener.local_addr().unwrap();
            let script = format!("exec 3<>/dev/tcp/{}/{}; read line <&3", address.ip(), address.port());
            let user = NOBODY.to_string();
            let mut child = Command::new("setpriv")
                .args(["--reuid", &user, "--regid", &user, "--clear-groups", "bash", "-c", &script])
                .spawn()
                .unwrap();
            let (theirs, from) = listener.accept().unwrap();
            let found = BOTH.map(|means| owner(means, from, theirs.local_addr().unwrap()).unwrap().user);
            drop(theirs);
            child.wait().unwrap();
            assert_eq!(found, [NOBODY; 2], "{listen}");
        }
    }

    #[test]
    fn a_table_is_read_whatever_it_holds() {
        let (from, to) = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:18789".parse().unwrap());
        let [short, long] = <[String; 2]>::try_from(spelled(from)).unwrap();
        assert_eq!((short.len(), long.len()), (13, 37));
        let ends = format!("{} {}", spelled(from)[1], spelled(to)[1]);
        let row = |state, inode| format!("  0: {ends} {state} 0:0 0:0 0 1000 0 {inode} 1\n");
        let user = |table: String| look(table.as_bytes(), from, to);
        let found = user(format!("  sl local\n\nx\n{}", row("01", "77"))).unwrap();
        assert_eq!(found, Some(Owner { user: 1000, inode: 77 }));
        assert!(user(row("06", "0")).is_err(), "nobody's");
        assert!(user(format!("0: {ends}\n")).is_err(), "cut off");
        assert_eq!(user(String::new()).unwrap(), None);
        for bytes in [&b""[..], &[0; 20], &[20; 100]] {
            assert!(sock_diag::read(bytes, from, to).is_err());
        }
    }
}
