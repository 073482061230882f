//! What a prompt brings along besides its text: images and text files.

use bytes::Bytes;

/// What kind of thing an attachment is, which decides how a model is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An image, with its media type.
    Image(ImageType),
    /// Text in UTF-8.
    Text,
}

/// The image formats that both providers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageType {
    /// `image/png`
    Png,
    /// `image/jpeg`
    Jpeg,
    /// `image/gif`
    Gif,
    /// `image/webp`
    Webp,
}

/// One attachment of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its file name, where the client gave one.
    pub name: Option<String>,
    /// What it is.
    pub kind: Kind,
    /// Its bytes; empty where a follower is told of it.
    pub data: Bytes,
}
