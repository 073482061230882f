//! Files that are named by their path instead of being sent: what a prompt over the Unix socket brings
//! along, and what an agent sends back that way. The peers are on the same machine.
//!
//! A path is a wish: whoever reads it looks whether that is allowed.

use crate::error::{Error, ErrorCode};

/// The longest path, in bytes: what the system takes.
const PATH_BYTES_MAX: usize = 4096;

/// The longest caption, in bytes.
pub const CAPTION_BYTES_MAX: usize = 4096;

/// What a file is meant as. (Source: the types of xeno's gateway.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A picture.
    Image,
    /// A film.
    Video,
    /// Something to listen to.
    Audio,
    /// A voice message.
    Voice,
    /// Anything else.
    Document,
    /// A film without sound that is shown again and again.
    Animation,
    /// A small picture that is sent instead of words.
    Sticker,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 7] =
        [Self::Image, Self::Video, Self::Audio, Self::Voice, Self::Document, Self::Animation, Self::Sticker];

    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Video => "video",
            Self::Audio => "audio",
            Self::Voice => "voice",
            Self::Document => "document",
            Self::Animation => "animation",
            Self::Sticker => "sticker",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }
}

/// A file that somebody names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalFile {
    /// What it is meant as.
    pub form: Form,
    /// The path of the file.
    pub path: String,
    /// Its media type, where that is said.
    pub media_type: Option<String>,
    /// What it is called, where that is not the end of its path.
    pub name: Option<String>,
    /// What is said of it.
    pub caption: Option<String>,
    /// Its size in bytes, where that is known.
    pub size: Option<u64>,
}

impl LocalFile {
    /// Whether its path can be one.
    ///
    /// # Errors
    /// `InvalidRequest` where it is too long, not absolute, or holds a NUL.
    pub fn check(&self) -> Result<(), Error> {
        let refuse =
            |why: &str| Err(ErrorCode::InvalidRequest.error(format!("attachment {}: {why}", self.said())));
        if self.path.len() > PATH_BYTES_MAX {
            return refuse(&format!("its path is longer than {PATH_BYTES_MAX} bytes"));
        }
        if !self.path.starts_with('/') {
            return refuse("its path is not absolute");
        }
        if self.path.contains('\0') {
            return refuse("its path holds a NUL");
        }
        Ok(())
    }

    /// How it is called.
    pub fn said(&self) -> String {
        let path = &self.path[self.path.ceil_char_boundary(self.path.len().saturating_sub(200))..];
        format!("{path:?}")
    }

    /// The media type that is said of it, else the one its name says.
    pub fn media_type(&self) -> &str {
        let said = self.media_type.as_deref().map(str::trim).filter(|said| !said.is_empty());
        said.unwrap_or_else(|| {
            let name = self.name.as_deref().unwrap_or(&self.path);
            let extension = name.rsplit(['/', '.']).next().unwrap_or_default();
            let of_name = BY_EXTENSION.iter().find(|(ending, _)| ending.eq_ignore_ascii_case(extension));
            of_name
                .filter(|_| name.contains('.'))
                .map_or("application/octet-stream", |(_, media_type)| media_type)
        })
    }
}

/// The media types that are told by the end of a file's name.
const BY_EXTENSION: [(&str, &str); 46] = [
    ("txt", "text/plain"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("tsv", "text/tab-separated-values"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("js", "text/javascript"),
    ("ts", "application/typescript"),
    ("ics", "text/calendar"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
    ("sql", "application/sql"),
    ("sh", "application/x-sh"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("heic", "image/heic"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("bmp", "image/bmp"),
    ("pdf", "application/pdf"),
    ("zip", "application/zip"),
    ("gz", "application/gzip"),
    ("tar", "application/x-tar"),
    ("doc", "application/msword"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("mp3", "audio/mpeg"),
    ("m4a", "audio/mp4"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("wav", "audio/wav"),
    ("mp4", "video/mp4"),
    ("mov", "video/quicktime"),
    ("webm", "video/webm"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str) -> LocalFile {
        let (media_type, name, caption, size) = (None, None, None, None);
        LocalFile { form: Form::Document, path: path.into(), media_type, name, caption, size }
    }

    #[test]
    fn a_name_says_what_a_file_is() {
        for (path, media_type) in [
            ("/a/b.PDF", "application/pdf"),
            ("/a.txt/b", "application/octet-stream"),
            ("/txt", "application/octet-stream"),
            ("/a/b.unheard", "application/octet-stream"),
            ("/a/x.y.ogg", "audio/ogg"),
        ] {
            assert_eq!(named(path).media_type(), media_type, "{path}");
        }
        let said = LocalFile { media_type: Some(" audio/x ".into()), ..named("/a.pdf") };
        assert_eq!(said.media_type(), "audio/x");
        let renamed = LocalFile { name: Some("b.md".into()), ..named("/a.pdf") };
        assert_eq!(renamed.media_type(), "text/markdown");
    }

    #[test]
    fn only_an_absolute_path_is_one() {
        named("/a").check().unwrap();
        for path in ["a", "./a", "~/a", "", "/a\0b", &format!("/{}", "x".repeat(5000))] {
            let error = named(path).check().unwrap_err();
            assert!(error.message.starts_with("attachment ") && error.message.len() < 300, "{error}");
        }
        assert!(Form::ALL.into_iter().all(|form| Form::from_name(form.name()) == Some(form)));
    }
}
