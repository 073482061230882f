//! The Unix group that may use the socket: which one a name means, and who is in it.
//!
//! The kernel keeps the groups of a peer as they were when it connected, the supplementary ones too, so
//! nothing is looked up while somebody waits.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use clawmux_core::error::{Error, ErrorCode};

/// What a look-up may take of memory, in bytes, at first and at most: groups can have many members.
const LOOKUP_BYTES: (usize, usize) = (1024, 4 << 20);

/// How many groups a process may have (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65536;

/// A group of this system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
}

impl Group {
    /// The group of this name. May ask a directory service: call it before the daemon runs.
    ///
    /// # Errors
    /// `InvalidRequest` where there is none, `Unavailable` where it can't be found out.
    pub fn named(name: &str) -> Result<Self, Error> {
        let unknown = || {
            let advice = "make it with groupadd, or set another";
            ErrorCode::InvalidRequest
                .error(format!("gateway.socket_group: there is no group {name:?}: {advice}"))
        };
        let wanted = CString::new(name).map_err(|_| unknown())?;
        let (mut bytes, most) = LOOKUP_BYTES;
        loop {
            let mut buffer = vec![0_u8; bytes];
            // SAFETY: all-zero bytes are a valid `group`: null pointers and a number.
            let mut entry: libc::group = unsafe { std::mem::zeroed() };
            let mut found: *mut libc::group = ptr::null_mut();
            // SAFETY: the name ends with a zero, the buffer has the length that is told, and everything
            // pointed to lives until the call is over; only a number is read of what it filled in.
            let code = unsafe {
                libc::getgrnam_r(
                    wanted.as_ptr(),
                    &raw mut entry,
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    &raw mut found,
                )
            };
            match code {
                0 if found.is_null() => return Err(unknown()),
                0 => return Ok(Self { id: entry.gr_gid, name: name.to_owned() }),
                libc::ERANGE if bytes < most => bytes *= 4,
                libc::ENOENT | libc::ESRCH => return Err(unknown()),
                code => {
                    let error = io::Error::from_raw_os_error(code);
                    let why = format!("gateway.socket_group: cannot look up the group {name:?}: {error}");
                    return Err(ErrorCode::Unavailable.error(why));
                }
            }
        }
    }

    /// Whether the peer of this socket, whose primary group is `primary`, was in it when it connected.
    pub fn has(&self, socket: &impl AsFd, primary: u32) -> bool {
        primary == self.id || supplementary(socket).is_ok_and(|groups| groups.contains(&self.id))
    }
}

/// The supplementary groups of the peer of this Unix socket.
fn supplementary(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = libc::socklen_t::try_from(size_of_val(&groups[..])).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel writes at most
        // `length` bytes into `groups`, which has that many.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<libc::gid_t>();
        if answer == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // It says how much it has.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn groups_are_found_by_their_names() {
        assert_eq!(Group::named("root").unwrap().id, 0);
        for name in ["no-such-group-here", "", "a\0b"] {
            let error = Group::named(name).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidRequest, "{name:?}: {error}");
            assert!(error.message.contains("socket_group: there is no group"), "{error}");
        }
    }

    #[test]
    fn a_peer_has_the_groups_of_this_process() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let own: Vec<u32> = status
            .lines()
            .find_map(|line| line.strip_prefix("Groups:"))
            .unwrap()
            .split_whitespace()
            .map(|group| group.parse().unwrap())
            .collect();
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(supplementary(&one).unwrap(), own);
        let none = Group { id: u32::MAX - 1, name: "none".into() };
        assert!(!none.has(&one, 0) && none.has(&one, u32::MAX - 1));
    }
}
