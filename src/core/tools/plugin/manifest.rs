//! A plugin's manifest: NAME.toml beside NAME.wasm, what the host cannot learn from the module.
//!
//! A manifest asks, it never grants: what a plugin gets is the operator's to say, except for the
//! plugins that ship in the binary.

use toml_edit::{Document, DocumentMut, Item, Value};

use crate::channel::check::WebhookCheck;
use crate::error::{Error, ErrorCode};
use crate::hex::from_hex;
use crate::tools::plugin::Capability;

/// What a plugin says of itself. All of it may be absent: a plugin works without a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its name; must be the one it is loaded under.
    pub name: Option<String>,
    /// The plugin's version, as its author gives it.
    pub version: Option<String>,
    /// What it does, for people. The model is told what the module's `describe` says.
    pub description: Option<String>,
    /// The SHA-256 of the module that it is for.
    pub sha256: Option<[u8; 32]>,
    /// Whether a call that was cut off may be made again.
    pub idempotent: bool,
    /// The capabilities it needs, and no others may be granted to it; none = it does not say.
    pub capabilities: Option<Vec<Capability>>,
    /// Others that it can make use of where it is granted them.
    pub optional: Vec<Capability>,
    /// Of a channel adapter: how webhook requests are checked; none = by a token.
    pub webhook: Option<WebhookCheck>,
}

impl Manifest {
    /// The largest manifest, in bytes.
    pub const BYTES_MAX: usize = 64 * 1024;

    /// Reads a manifest; `file` is what messages call it.
    ///
    /// # Errors
    /// `InvalidRequest` with every complaint, each with file and line: what is not TOML, keys that
    /// do not exist, values of the wrong type, capabilities that are not understood.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        if text.len() > Self::BYTES_MAX {
            return Err(ErrorCode::TooLarge.error(format!(
                "{file}: {} bytes of manifest, more than {}",
                text.len(),
                Self::BYTES_MAX
            )));
        }
        let document = Document::parse(text).map_err(|error| {
            let line = line_at(text, error.span().map_or(0, |span| span.start));
            ErrorCode::InvalidRequest.error(format!("{file}:{line}: {}", error.message().replace('\n', ", ")))
        })?;
        let mut manifest = Self::default();
        let mut complaints = Vec::new();
        for (key, item) in document.iter() {
            let span = document.key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
            let line = line_at(text, span.map_or(0, |span| span.start));
            if let Err(why) = manifest.set(key, item) {
                complaints.push(format!("{file}:{line}: {why}"));
            }
        }
        if complaints.is_empty() {
            Ok(manifest)
        } else {
            Err(ErrorCode::InvalidRequest.error(complaints.join("\n")))
        }
    }

    /// The text of a manifest with this digest of its module in it, the rest as it is.
    ///
    /// # Errors
    /// As [`Self::parse`]'s.
    pub fn with_sha256(file: &str, text: &str, sha256: &str) -> Result<String, Error> {
        Self::parse(file, text)?;
        let mut document: DocumentMut =
            text.parse().map_err(|error| ErrorCode::InvalidRequest.error(format!("{file}: {error}")))?;
        document["sha256"] = toml_edit::value(sha256);
        Ok(document.to_string())
    }

    fn set(&mut self, key: &str, item: &Item) -> Result<(), String> {
        let text = || {
            item.as_str()
                .map(str::to_owned)
                .ok_or_else(|| format!("{key} is {}, expected text", item.type_name()))
        };
        match key {
            "name" => self.name = Some(text()?),
            "version" => self.version = Some(text()?),
            "description" => self.description = Some(text()?),
            "sha256" => {
                let digest = from_hex(&text()?);
                self.sha256 = Some(digest.ok_or("sha256: expected 64 hexadecimal digits")?);
            }
            "idempotent" => {
                self.idempotent = item
                    .as_bool()
                    .ok_or_else(|| format!("idempotent is {}, expected true or false", item.type_name()))?;
            }
            "capabilities" => self.capabilities = Some(capabilities(key, item)?),
            "optional" => self.optional = capabilities(key, item)?,
            "webhook" => {
                let table = item
                    .as_table_like()
                    .ok_or_else(|| format!("webhook is {}, expected a table", item.type_name()))?;
                self.webhook =
                    Some(WebhookCheck::read(table.iter().map(|(key, item)| (key, item.as_str())))?);
            }
            _ => {
                return Err(format!(
                    "unknown key {key:?}, known are name, version, description, sha256, idempotent, capabilities, \
                     optional, webhook"
                ));
            }
        }
        Ok(())
    }
}

fn capabilities(key: &str, item: &Item) -> Result<Vec<Capability>, String> {
    let list =
        item.as_array().ok_or_else(|| format!("{key} is {}, expected a list of texts", item.type_name()))?;
    list.iter().map(capability).collect()
}

fn capability(value: &Value) -> Result<Capability, String> {
    let text =
        value.as_str().ok_or_else(|| format!("capabilities holds {}, expected texts", value.type_name()))?;
    Capability::parse(text)
}

/// The line of a byte offset, counted from 1.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::plugin::HostFunction;
    use proptest::prelude::*;

    #[test]
    fn reads_what_it_knows() {
        let text = format!(
            "name = \"clock\"\nversion = \"0.1.0\"\ndescription = \"tells the time\"\nsha256 = \"{}\"\n\
             idempotent = true\ncapabilities = [\"host_function:clock\"]\n",
            "aB".repeat(32)
        );
        assert_eq!(
            Manifest::parse("clock.toml", &text).unwrap(),
            Manifest {
                name: Some("clock".to_owned()),
                version: Some("0.1.0".to_owned()),
                description: Some("tells the time".to_owned()),
                sha256: Some([0xab; 32]),
                idempotent: true,
                capabilities: Some(vec![Capability::HostFunction(HostFunction::Clock)]),
                ..Manifest::default()
            }
        );
        assert_eq!(Manifest::parse("x.toml", "").unwrap(), Manifest::default());
    }

    #[test]
    fn says_all_that_is_wrong_with_file_and_line() {
        let text = "version = 1\nauthor = \"me\"\n\nidempotent = \"yes\"\ncapabilities = [\"exec:sh\"]\n[more]\nx = 1\n";
        let error = Manifest::parse("x.toml", text).unwrap_err().message;
        let complaints: Vec<&str> = error.lines().collect();
        assert_eq!(complaints.len(), 5, "{error}");
        assert!(complaints[0].starts_with("x.toml:1: version is integer, expected text"), "{error}");
        assert!(complaints[1].starts_with("x.toml:2: unknown key \"author\""), "{error}");
        assert!(complaints[2].starts_with("x.toml:4: idempotent is string"), "{error}");
        assert!(complaints[3].starts_with("x.toml:5: capability \"exec:sh\""), "{error}");
        assert!(complaints[4].starts_with("x.toml:6: unknown key \"more\""), "{error}");
        let error = Manifest::parse("x.toml", "sha256 = \"zz\"").unwrap_err().message;
        assert!(error.contains("sha256: expected 64 hexadecimal digits"), "{error}");
        let error = Manifest::parse("x.toml", "\nname = \n").unwrap_err().message;
        assert!(error.starts_with("x.toml:2: "), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), key in "[a-z]{1,12}", value in any::<String>()) {
            let _ = Manifest::parse("x.toml", &text);
            let _ = Manifest::parse("x.toml", &format!("{key} = {value}"));
        }
    }
}
