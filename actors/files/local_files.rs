//! Files on this machine that are named by their path: those a prompt brings along over the Unix socket,
//! and those an agent sends back that way.
//!
//! Only under the folders of `files.attachment_roots`, wherever links lead: what is opened is asked where
//! it really is, so that a link that is changed meanwhile opens no door. Where a path leads out of them
//! nothing is told of what is there.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use actix::prelude::*;
use bytes::Bytes;
use clawmux_core::error::limit::Limit;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::prompt::attachment::{self, ATTACHMENT_BYTES_MAX, ATTACHMENTS_MAX, Attachment};
use clawmux_core::prompt::local_file::LocalFile;

use super::Files;

/// How much of a large file is looked at to tell what it is.
const HEAD_BYTES: usize = 64;

/// Reads files as what a prompt brings along: images and text whole, of others what they are.
///
/// Errors: `Forbidden` where one is not in a folder that is listed, `NotFound` where it is not there,
/// `InvalidRequest` where it is no file or can't be read, `TooLarge` as [`attachment::check`]'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Attachment>, Error>")]
pub struct Enclose(pub Vec<LocalFile>);

/// Looks at files that are to be sent back: gives them with their real paths, names, types and sizes.
///
/// Errors: as [`Enclose`]'s, but for sizes.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<LocalFile>, Error>")]
pub struct Look(pub Vec<LocalFile>);

/// From here on files may be in these folders.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct SetRoots(pub Vec<PathBuf>);

impl Handler<Enclose> for Files {
    type Result = ResponseFuture<Result<Vec<Attachment>, Error>>;

    fn handle(&mut self, Enclose(files): Enclose, _: &mut Self::Context) -> Self::Result {
        let roots = self.setup.attachment_roots.clone();
        self.on_a_thread(move || read_all(&roots, &files))
    }
}

impl Handler<Look> for Files {
    type Result = ResponseFuture<Result<Vec<LocalFile>, Error>>;

    fn handle(&mut self, Look(files): Look, _: &mut Self::Context) -> Self::Result {
        let roots = self.setup.attachment_roots.clone();
        self.on_a_thread(move || {
            files.into_iter().map(|file| open(&roots, file).map(|(_, looked_at)| looked_at)).collect()
        })
    }
}

impl Handler<SetRoots> for Files {
    type Result = ();

    fn handle(&mut self, SetRoots(roots): SetRoots, _: &mut Self::Context) {
        self.setup.attachment_roots = roots;
    }
}

impl Files {
    fn on_a_thread<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> ResponseFuture<Result<T, Error>> {
        let done = self.pool.run(job);
        Box::pin(async move {
            done?.await.unwrap_or_else(|_| Err(ErrorCode::Internal.error("the files were not read")))
        })
    }
}

fn read_all(roots: &[PathBuf], files: &[LocalFile]) -> Result<Vec<Attachment>, Error> {
    if files.len() > ATTACHMENTS_MAX {
        let limit = Detail::Limit { name: Limit::Attachments, limit: ATTACHMENTS_MAX as u64 };
        let why = format!("more than {ATTACHMENTS_MAX} attachments");
        return Err(ErrorCode::TooLarge.error(why).with(limit));
    }
    let mut read = Vec::with_capacity(files.len());
    for file in files {
        read.push(read_one(roots, file)?);
        // No more is read than may be taken.
        attachment::check(&read)?;
    }
    Ok(read)
}

/// Reads one.
fn read_one(roots: &[PathBuf], local_file: &LocalFile) -> Result<Attachment, Error> {
    let (mut file, looked_at) = open(roots, local_file.clone())?;
    let failed = |error: std::io::Error| unreadable(local_file, &error);
    let (name, media_type) = (looked_at.name.as_deref(), looked_at.media_type());
    let (size, caption) = (looked_at.size.unwrap_or_default(), looked_at.caption.clone());
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let attachment = if size > ATTACHMENT_BYTES_MAX {
        let mut head = [0; HEAD_BYTES];
        let length = file.read_at(&mut head, 0).map_err(failed)?;
        Attachment::of_large_file(name, media_type, Bytes::copy_from_slice(&head[..length]), size)?
    } else {
        let mut data = Vec::with_capacity(size);
        // It may grow while it is read.
        let most = ATTACHMENT_BYTES_MAX as u64 + 1;
        Read::by_ref(&mut file).take(most).read_to_end(&mut data).map_err(failed)?;
        Attachment::of_file(name, media_type, data.into())?
    };
    Ok(attachment.with_caption(caption))
}

/// Opens a file, if it is one and really in one of these folders.
fn open(roots: &[PathBuf], local_file: LocalFile) -> Result<(File, LocalFile), Error> {
    local_file.check()?;
    let refuse = |code: ErrorCode, why: &str| code.error(format!("attachment {}: {why}", local_file.said()));
    if roots.is_empty() {
        let why =
            "no folder is listed in files.attachment_roots: list there the folders whose files may be sent";
        return Err(refuse(ErrorCode::Forbidden, why));
    }
    let outside = || {
        let why =
            "it is not in a folder of files.attachment_roots: list there the folders whose files may be sent";
        refuse(ErrorCode::Forbidden, why)
    };
    let real_roots: Vec<PathBuf> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    let is_inside = |path: &Path| real_roots.iter().any(|root| path.starts_with(root));
    let asked = Path::new(&local_file.path);
    let path = match asked.canonicalize() {
        Ok(path) if is_inside(&path) => path,
        Ok(_) => return Err(outside()),
        // Only of what is inside it is told that it is not there.
        Err(error) => {
            let folder = asked.parent().and_then(|folder| folder.canonicalize().ok());
            let is_inside = folder.is_some_and(|folder| is_inside(&folder));
            return Err(if is_inside { unreadable(&local_file, &error) } else { outside() });
        }
    };
    // Opening a device can do things, and a pipe waits for somebody.
    let is_file = |metadata: &std::fs::Metadata| metadata.is_file();
    let no_file = || refuse(ErrorCode::InvalidRequest, "it is no regular file");
    if !std::fs::metadata(&path).as_ref().is_ok_and(is_file) {
        return Err(no_file());
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&path)
        .map_err(|error| unreadable(&local_file, &error))?;
    let metadata = file.metadata().map_err(|error| unreadable(&local_file, &error))?;
    if !is_file(&metadata) {
        return Err(no_file());
    }
    let really = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let really = really.map_err(|error| unreadable(&local_file, &error))?;
    if !is_inside(&really) {
        return Err(outside());
    }
    let Some(real_path) = path.to_str() else {
        return Err(refuse(ErrorCode::InvalidRequest, "its path is not in UTF-8"));
    };
    let own_name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let looked_at = LocalFile {
        path: real_path.to_owned(),
        name: local_file.name.clone().or(own_name),
        size: Some(metadata.len()),
        ..local_file
    };
    let media_type = Some(looked_at.media_type().to_owned());
    Ok((file, LocalFile { media_type, ..looked_at }))
}

fn unreadable(local_file: &LocalFile, error: &std::io::Error) -> Error {
    let (code, why) = match error.kind() {
        ErrorKind::NotFound => (ErrorCode::NotFound, "there is no such file".to_owned()),
        ErrorKind::PermissionDenied => (ErrorCode::Forbidden, "the daemon may not read it".to_owned()),
        _ => (ErrorCode::InvalidRequest, format!("it can't be read: {error}")),
    };
    code.error(format!("attachment {}: {why}", local_file.said()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::prompt::attachment::Kind;
    use clawmux_core::prompt::local_file::Form;

    fn named(path: &Path) -> LocalFile {
        let (media_type, name, caption, size) = (None, None, None, None);
        let path = path.to_str().unwrap().to_owned();
        LocalFile { form: Form::Document, path, media_type, name, caption, size }
    }

    #[test]
    fn a_file_is_what_it_is_and_not_what_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let roots = [folder.path().to_owned()];
        let png: &[u8] = b"\x89PNG\r\n\x1a\n....";
        for (name, data, media_type) in [
            ("a.png", png, "image/png"),
            ("a.pdf", png, "image/png"),
            ("b.csv", b"a,b\n", "text/csv"),
            ("b", b"hello", "text/plain"),
            ("c.pdf", b"%PDF-1.7 \x00\xff", "application/pdf"),
            ("c.ogg", b"OggS\x00\xff", "audio/ogg"),
            ("d.txt", b"\xff\xfe\x00", "application/octet-stream"),
            ("e.txt", b"", "inode/x-empty"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, data).unwrap();
            let said = LocalFile { caption: Some("look".into()), ..named(&path) };
            let read = read_one(&roots, &said).unwrap();
            let told = (read.media_type(), read.bytes(), read.name(), read.caption());
            assert_eq!(told, (media_type, data.len(), Some(name), Some("look")));
            let is_shown = matches!(read.kind(), Kind::Image(_) | Kind::Text(_));
            assert_eq!(is_shown, !read.data().is_empty(), "{name}");
        }
        let named_otherwise = LocalFile { name: Some("x.md".into()), ..named(&folder.path().join("b")) };
        let read = read_one(&roots, &named_otherwise).unwrap();
        assert_eq!((read.name(), read.media_type()), (Some("x.md"), "text/markdown"));
    }

    #[test]
    fn only_files_in_the_folders_are_read_wherever_links_lead() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let roots = [folder.path().join("root"), folder.path().join("not there")];
        std::fs::create_dir(&roots[0]).unwrap();
        let secret = elsewhere.path().join("secret");
        std::fs::write(&secret, "s").unwrap();
        let link = |name: &str, to: &Path| {
            let path = roots[0].join(name);
            std::os::unix::fs::symlink(to, &path).unwrap();
            path
        };
        let good = roots[0].join("good");
        std::fs::write(&good, "g").unwrap();
        let inner = link("inner", &good);
        assert_eq!(read_one(&roots, &named(&inner)).unwrap().data(), "g");
        let fifo = roots[0].join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let up = roots[0].join("../../").join(elsewhere.path().file_name().unwrap()).join("secret");
        for (path, code, why) in [
            (secret.clone(), ErrorCode::Forbidden, "not in a folder"),
            (up, ErrorCode::Forbidden, "not in a folder"),
            (link("out", &secret), ErrorCode::Forbidden, "not in a folder"),
            (link("away", elsewhere.path()).join("secret"), ErrorCode::Forbidden, "not in a folder"),
            (elsewhere.path().join("nothing"), ErrorCode::Forbidden, "not in a folder"),
            (folder.path().join("root2/x"), ErrorCode::Forbidden, "not in a folder"),
            (roots[0].join("nothing"), ErrorCode::NotFound, "no such file"),
            (roots[0].clone(), ErrorCode::InvalidRequest, "no regular file"),
            (fifo, ErrorCode::InvalidRequest, "no regular file"),
        ] {
            let error = read_one(&roots, &named(&path)).unwrap_err();
            assert!(error.code == code && error.message.contains(why), "{path:?}: {error}");
        }
        let error = read_one(&[], &named(&good)).unwrap_err();
        assert!(error.message.contains("files.attachment_roots"), "{error}");
        let (_, looked_at) = open(&roots, named(&inner)).unwrap();
        let real = good.canonicalize().unwrap();
        assert_eq!((looked_at.path.as_str(), looked_at.size), (real.to_str().unwrap(), Some(1)));
    }

    #[test]
    fn what_is_too_large_is_refused_or_only_named() {
        let folder = tempfile::tempdir().unwrap();
        let roots = [folder.path().to_owned()];
        let large = |name: &str, head: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, head).unwrap();
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(ATTACHMENT_BYTES_MAX as u64 + 1)
                .unwrap();
            named(&path)
        };
        for file in [large("a.png", b"\x89PNG\r\n\x1a\n"), large("b.txt", b"x")] {
            assert_eq!(read_one(&roots, &file).unwrap_err().code, ErrorCode::TooLarge);
        }
        let film = read_one(&roots, &large("c.mp4", b"....ftyp")).unwrap();
        assert_eq!((film.media_type(), film.bytes()), ("video/mp4", ATTACHMENT_BYTES_MAX + 1));
        let many = vec![large("d.mp4", b"x"); ATTACHMENTS_MAX + 1];
        assert_eq!(read_all(&roots, &many).unwrap_err().code, ErrorCode::TooLarge);
        assert_eq!(read_all(&roots, &many[1..]).unwrap().len(), ATTACHMENTS_MAX, "names take no room");
    }
}
