//! Files attached to a prompt: read whole, limited in size, and checked before anything is sent.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clawmux_core::dialect::exoclaw::client;
use clawmux_core::prompt::attachment::{
    ATTACHMENT_BYTES_MAX, ATTACHMENTS_BYTES_MAX, ATTACHMENTS_MAX, Attachment,
};

use crate::exit::{FAILED, Failure};

/// Media types known by file extension; all others are told from the content: text or an image.
const BY_EXTENSION: [(&str, &str); 14] = [
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("tsv", "text/tab-separated-values"),
    ("html", "text/html"),
    ("css", "text/css"),
    ("xml", "text/xml"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("yaml", "text/yaml"),
    ("yml", "text/yaml"),
    ("toml", "application/toml"),
    ("js", "text/javascript"),
    ("sql", "application/sql"),
    ("svg", "image/svg+xml"),
];

/// Files for the next prompt.
#[derive(Clone, Debug, Default)]
pub(super) struct Attachments(Vec<Attachment>);

impl Attachments {
    /// Reads these files.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut files = Self::default();
        for path in paths {
            files.add(path)?;
        }
        Ok(files)
    }

    /// Reads one more file and returns its description.
    ///
    /// # Errors
    /// Status 1 if it can't be read, is no regular file, is empty, too large, or nothing a model
    /// can be shown; where it would be one too many. All name it.
    pub(super) fn add(&mut self, path: &Path) -> Result<String, Failure> {
        let refuse = |why: String| Failure::new(FAILED, format!("{}: {why}", path.display()));
        if self.0.len() >= ATTACHMENTS_MAX {
            return Err(refuse(format!("a prompt takes {ATTACHMENTS_MAX} files at most")));
        }
        let data = contents(path).map_err(refuse)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let file = Attachment::new(name.as_deref(), by_extension(path), data)
            .map_err(|error| Failure::new(FAILED, error.message))?;
        let all = self.0.iter().map(Attachment::bytes).sum::<usize>() + file.bytes();
        if all > ATTACHMENTS_BYTES_MAX {
            return Err(refuse(format!(
                "the files of a prompt have {all} bytes together, more than {ATTACHMENTS_BYTES_MAX}"
            )));
        }
        let said = format!("{} ({}, {} bytes)", path.display(), file.media_type(), file.bytes());
        self.0.push(file);
        Ok(said)
    }

    /// The files as a prompt sends them.
    pub(super) fn files(&self) -> Vec<client::File<'_>> {
        let file = |file| {
            let file: &Attachment = file;
            client::File {
                name: file.name().unwrap_or("file"),
                media_type: Some(file.media_type()),
                data: file.data(),
            }
        };
        self.0.iter().map(file).collect()
    }
}

fn contents(path: &Path) -> Result<Bytes, String> {
    // Without waiting for whoever writes into a pipe.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file: File = file.map_err(|error| format!("cannot read it: {error}"))?;
    let about = file.metadata().map_err(|error| format!("cannot read it: {error}"))?;
    if about.is_dir() {
        return Err("it is a folder: name a file".into());
    }
    if !about.is_file() {
        return Err("it is no regular file".into());
    }
    let too_large = |bytes: u64| format!("it has {bytes} bytes, more than {ATTACHMENT_BYTES_MAX}");
    if about.len() > ATTACHMENT_BYTES_MAX as u64 {
        return Err(too_large(about.len()));
    }
    let mut data = Vec::new();
    // It may grow meanwhile.
    let read = file.take(ATTACHMENT_BYTES_MAX as u64 + 1).read_to_end(&mut data);
    read.map_err(|error| format!("cannot read it: {error}"))?;
    if data.len() > ATTACHMENT_BYTES_MAX {
        return Err(too_large(data.len() as u64));
    }
    Ok(data.into())
}

fn by_extension(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    BY_EXTENSION.iter().find(|(known, _)| *known == extension).map(|(_, media_type)| *media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_what_their_bytes_and_names_say() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        let paths = [write("a.md", b"# hi"), write("b.bin", png), write("c", b"plain")];
        let files = Attachments::read(&paths).unwrap();
        let types: Vec<_> =
            files.files().iter().map(|file| (file.name.to_owned(), file.media_type)).collect();
        assert_eq!(
            types,
            [
                ("a.md".to_owned(), Some("text/markdown")),
                ("b.bin".to_owned(), Some("image/png")),
                ("c".to_owned(), Some("text/plain")),
            ]
        );
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("empty"), b"").unwrap();
        std::fs::write(path("binary"), b"\0\x01\xff").unwrap();
        File::create(path("large")).unwrap().set_len(ATTACHMENT_BYTES_MAX as u64 + 1).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("/nowhere", path("dangling")).unwrap();
        for (name, says) in [
            ("missing", "No such file"),
            (".", "it is a folder"),
            ("empty", "it is empty"),
            ("binary", "can't be shown"),
            ("large", "more than 10485760"),
            ("pipe", "no regular file"),
            ("dangling", "No such file"),
        ] {
            let failure = Attachments::default().add(&path(name)).unwrap_err();
            let names = name == "." || failure.message.contains(name);
            assert!(failure.status == FAILED && failure.message.contains(says) && names, "{failure:?}");
        }
        std::fs::write(path("some"), b"x").unwrap();
        let mut files = Attachments::read(&vec![path("some"); ATTACHMENTS_MAX]).unwrap();
        assert!(files.add(&path("some")).unwrap_err().message.contains("16 files at most"));
    }
}
