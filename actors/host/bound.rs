//! The claim on a home: a lock file that a second daemon can't take, and the operator's socket, which
//! goes away with it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use clawmux_core::error::{Error, ErrorCode};

use crate::host::group::Group;

/// A claimed home: its lock, and the bound socket. Both are let go when it is dropped.
#[derive(Debug)]
pub struct Bound {
    listener: Option<StdListener>,
    path: PathBuf,
    /// Whether somebody else bound it, whose file it is.
    passed: bool,
    /// Where a link to the path is, if it is not in the home.
    link: Option<PathBuf>,
    /// Whose members may use it, besides its owner.
    group: Option<Group>,
    /// Held for its lock.
    _lock: File,
}

/// A bound Unix socket.
#[derive(Debug)]
pub struct UnixSocket {
    /// The socket.
    pub listener: StdListener,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it goes on when this daemon stops: whoever passed it has it too.
    pub outlived: bool,
    /// Whose members may use it, besides the daemon's own user and root.
    pub group: Option<Group>,
}

/// Where the operator's socket of a home is.
pub fn socket_path(home: &Path) -> PathBuf {
    home.join(".xeno").join("gateway.sock")
}

impl Bound {
    /// Claims `home` and binds its socket, or `elsewhere`, for members of `group` too where one is given;
    /// a socket that was `passed` is served instead of both, wherever it is. Blocks: call it before the
    /// daemon runs.
    ///
    /// # Errors
    /// `Conflict` where another daemon has the home or the socket; `Unavailable` where the folder,
    /// the lock or the socket can't be made, or not be given to the group.
    pub fn new(
        home: &Path,
        elsewhere: Option<&Path>,
        group: Option<&Group>,
        passed: Option<StdListener>,
    ) -> Result<Self, Error> {
        let folder = home.join(".xeno");
        private_folder(&folder).map_err(|error| {
            let Error { code, message, .. } = cannot("make the folder", &folder, &error);
            code.error(format!(
                "{message}: the home must be writable for this user; --home DIR names another one"
            ))
        })?;
        let lock_path = folder.join("gateway.lock");
        let lock = lock(&lock_path, home)?;
        let usual = socket_path(home);
        if let Some(listener) = passed {
            return Self::adopt(listener, lock, usual, group.cloned());
        }
        remove_link(&usual)?;
        let path = match elsewhere {
            Some(path) => std::path::absolute(path).map_err(|error| cannot("find", path, &error))?,
            None => usual.clone(),
        };
        clear_stale(&path)?;
        let listener = StdListener::bind(&path)
            .and_then(|listener| {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .map_err(|error| cannot("bind the socket", &path, &error))?;
        let group = group.cloned();
        let bound = Self { listener: Some(listener), path, passed: false, link: None, group, _lock: lock };
        if let Some(group) = &bound.group {
            // The folder last: until then nobody else gets to what is in it.
            give(&bound.path, group, 0o660)?;
            give(&folder, group, 0o750)?;
            warn_of_walls(&bound.path, group);
        }
        bound.link_from(usual)
    }

    /// Takes a socket that was passed, and leaves its file alone.
    fn adopt(listener: StdListener, lock: File, usual: PathBuf, group: Option<Group>) -> Result<Self, Error> {
        let address =
            listener.local_addr().map_err(|error| cannot("find the socket passed for", &usual, &error))?;
        let path = address.as_pathname().map(Path::to_owned).ok_or_else(|| {
            ErrorCode::InvalidRequest
                .error("the Unix socket that was passed has no path: give it one in the socket unit")
        })?;
        listener.set_nonblocking(true).map_err(|error| cannot("serve the socket", &path, &error))?;
        if let (Some(group), Some(folder)) = (&group, usual.parent())
            && is_same(&path, &usual)
        {
            // Who may come to the socket may pass its folder.
            give(folder, group, 0o750)?;
        }
        Self { listener: Some(listener), path, passed: true, link: None, group, _lock: lock }.link_from(usual)
    }

    /// So that the commands find it by its home, wherever it is.
    fn link_from(mut self, usual: PathBuf) -> Result<Self, Error> {
        let is_linked = || fs::read_link(&usual).is_ok_and(|to| to == self.path);
        if !is_same(&self.path, &usual) && !is_linked() {
            remove_link(&usual)?;
            clear_stale(&usual)?;
            symlink(&self.path, &usual).map_err(|error| cannot("link", &usual, &error))?;
            // To a socket that outlives this daemon the link stays too.
            self.link = (!self.passed).then_some(usual);
        }
        Ok(self)
    }

    /// Claims another home besides `own` and binds its socket; none where it is the same one.
    ///
    /// # Errors
    /// As [`Self::new`]; `Unavailable` where there is no such folder.
    pub fn besides(own: &Path, other: &Path, group: Option<&Group>) -> Result<Option<Self>, Error> {
        let real =
            |path: &Path| fs::canonicalize(path).map_err(|error| cannot("find the home", path, &error));
        if real(own)? == real(other)? {
            return Ok(None);
        }
        Self::new(other, None, group, None).map(Some)
    }

    /// The socket, once.
    pub fn take_listener(&mut self) -> Option<UnixSocket> {
        self.listener.take().map(|listener| UnixSocket {
            listener,
            path: self.path.clone(),
            group: self.group.clone(),
            outlived: self.passed,
        })
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // While the lock is held nobody else can have bound this path.
        let own = (!self.passed).then_some(&self.path);
        for path in self.link.iter().chain(own) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether two names are of one file, though a folder may have several.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| Some((fs::canonicalize(path.parent()?).ok()?, path.file_name()?.to_owned()));
    one == other || place(one).is_some_and(|one| place(other) == Some(one))
}

/// Removes a link left by a daemon that served elsewhere and died, whose lock we have now.
fn remove_link(path: &Path) -> Result<(), Error> {
    if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
        fs::remove_file(path).map_err(|error| cannot("remove the stale link", path, &error))?;
    }
    Ok(())
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    let advice = match error.kind() {
        // The kernel takes about a hundred bytes for the path of a socket.
        io::ErrorKind::InvalidInput => "; take a shorter one with --socket or --home",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": free some space on its disk",
        _ => "",
    };
    ErrorCode::Unavailable.error(format!("cannot {what} {}: {error}{advice}", path.display()))
}

/// A folder of our own that nobody else looks into.
fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is not a folder"));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Lets a group have a part in what is there.
fn give(path: &Path, group: &Group, mode: u32) -> Result<(), Error> {
    chown(path, None, Some(group.id))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|error| {
            let name = &group.name;
            let why =
                format!("cannot give {} to the group {name} (gateway.socket_group): {error}", path.display());
            ErrorCode::Unavailable.error(format!("{why}; the daemon's own user has to be a member of it"))
        })
}

/// Says so where a folder above the socket keeps the group out, which the daemon does not open by itself.
fn warn_of_walls(path: &Path, group: &Group) {
    let is_wall = |folder: &&Path| {
        fs::metadata(folder).is_ok_and(|there| {
            let passage = if there.gid() == group.id { 0o010 } else { 0o001 };
            there.mode() & passage == 0
        })
    };
    if let Some(wall) = path.ancestors().skip(1).find(is_wall) {
        tracing::warn!(
            "members of the group {} can't reach the socket {}: the folder {} lets them not pass; open it \
             (chmod o+x), or put the socket elsewhere with --socket",
            group.name,
            path.display(),
            wall.display()
        );
    }
}

fn lock(path: &Path, home: &Path) -> Result<File, Error> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| cannot("open the lock", path, &error))?;
    match file.try_lock() {
        Ok(()) => {
            // Who has it is for the message below only: that it can't be written is no reason to stop.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = (&mut file).take(20).read_to_string(&mut pid);
            let pid: String = pid.chars().filter(char::is_ascii_digit).collect();
            Err(ErrorCode::Conflict.error(format!(
                "a clawmux daemon{} runs on {} already: stop it, or give this one another --home",
                if pid.is_empty() { String::new() } else { format!(" (pid {pid})") },
                home.display()
            )))
        }
        Err(fs::TryLockError::Error(error)) => Err(cannot("lock", path, &error)),
    }
}

/// Removes a socket that nobody serves any more, and nothing else.
fn clear_stale(path: &Path) -> Result<(), Error> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(
            ErrorCode::Conflict.error(format!("{} is there and no socket: move it away", path.display()))
        );
    }
    if StdStream::connect(path).is_ok() {
        return Err(ErrorCode::Conflict.error(format!("somebody else serves the socket {}", path.display())));
    }
    fs::remove_file(path).map_err(|error| cannot("remove the stale socket", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_socket_is_private_and_one_daemon_has_the_home() {
        let home = tempfile::tempdir().unwrap();
        let bound = Bound::new(home.path(), None, None, None).unwrap();
        let path = socket_path(home.path());
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let refused = Bound::new(home.path(), None, None, None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains(&format!("(pid {})", std::process::id())), "{}", refused.message);
        assert!(path.exists(), "the refused one took nothing away");
        drop(bound);
        assert!(!path.exists());
        Bound::new(home.path(), None, None, None).unwrap();
    }

    #[test]
    fn another_home_is_claimed_besides_and_has_to_be_there() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let _own = Bound::new(own.path(), None, None, None).unwrap();
        assert!(Bound::besides(own.path(), &own.path().join("."), None).unwrap().is_none(), "the same one");
        let bound = Bound::besides(own.path(), other.path(), None).unwrap();
        assert!(socket_path(other.path()).exists());
        let refused = Bound::besides(own.path(), other.path(), None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        drop(bound);
        let missing = other.path().join("nowhere");
        let refused = Bound::besides(own.path(), &missing, None).unwrap_err();
        assert!(refused.message.contains("cannot find the home") && !missing.exists(), "{refused}");
    }

    #[test]
    fn a_group_gets_its_part_and_loses_it_again() {
        let home = tempfile::tempdir().unwrap();
        // The one group of which anybody who runs this is a member.
        let id = fs::metadata(home.path()).unwrap().gid();
        let group = Group { id, name: "ours".into() };
        let path = socket_path(home.path());
        let bound = Bound::new(home.path(), None, Some(&group), None).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o750));
        assert_eq!(mode(&path.with_file_name("gateway.lock")), 0o600);
        drop(bound);
        let _bound = Bound::new(home.path(), None, None, None).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn only_stale_sockets_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind by a process that died");
        let bound = Bound::new(home.path(), Some(&path), None, None).unwrap();
        let other = tempfile::tempdir().unwrap();
        let refused = Bound::new(other.path(), Some(&path), None, None).unwrap_err();
        assert!(refused.message.contains("somebody else serves"), "{}", refused.message);
        drop(bound);
        fs::write(&path, "precious").unwrap();
        let refused = Bound::new(home.path(), Some(&path), None, None).unwrap_err();
        assert!(refused.message.contains("no socket"), "{}", refused.message);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = home.path().join("x".repeat(200));
        assert_eq!(
            Bound::new(home.path(), Some(&long), None, None).unwrap_err().code,
            ErrorCode::Unavailable
        );
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_answered_with_what_to_do() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s".repeat(120));
        let refused = Bound::new(home.path(), Some(&path), None, None).unwrap_err();
        assert!(refused.message.ends_with("with --socket or --home"), "{}", refused.message);
    }

    #[test]
    fn a_socket_elsewhere_is_found_from_the_home() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("elsewhere.sock");
        let bound = Bound::new(home.path(), Some(&path), None, None).unwrap();
        assert_eq!(bound.path(), path);
        StdStream::connect(socket_path(home.path())).unwrap();
        drop(bound);
        assert!(
            fs::symlink_metadata(&path).is_err() && fs::symlink_metadata(socket_path(home.path())).is_err()
        );
        // As after a crash: a link that leads nowhere.
        symlink(&path, socket_path(home.path())).unwrap();
        drop(Bound::new(home.path(), None, None, None).unwrap());
    }

    #[test]
    fn a_socket_that_was_passed_is_served_and_its_file_left_alone() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let usual = socket_path(home.path());
        let path = other.path().join("passed.sock");
        let theirs = StdListener::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        for _ in 0..2 {
            let passed = theirs.try_clone().unwrap();
            let bound = Bound::new(home.path(), Some(Path::new("/nowhere")), None, Some(passed)).unwrap();
            assert_eq!(bound.path(), path);
            StdStream::connect(&usual).unwrap();
            let second = Bound::new(home.path(), None, None, Some(theirs.try_clone().unwrap())).unwrap_err();
            assert_eq!(second.code, ErrorCode::Conflict, "one daemon per home: {second}");
        }
        StdStream::connect(&usual).expect("who looks in the home finds it between two daemons too");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(Bound::new(home.path(), None, None, None).unwrap());
        assert!(fs::symlink_metadata(&usual).is_err(), "the next daemon without it has the place back");

        // The home by another name: it is the usual place all the same.
        let theirs = StdListener::bind(&usual).unwrap();
        let alias = other.path().join("home");
        symlink(home.path(), &alias).unwrap();
        drop(Bound::new(&alias, None, None, Some(theirs.try_clone().unwrap())).unwrap());
        StdStream::connect(&usual).unwrap();
    }
}
