//! Signing a plugin, and looking at who signed one; with files alone, no daemon.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::tools::plugin::Manifest;
use clawmux_core::tools::plugin::signature::{self, PublicKey, SECRET_KEY_BYTES};
use sha2::{Digest as _, Sha256};

use super::module;
use super::source::{self, signature_file};
use crate::host::whole_file;

/// Of manifests and signatures that are new: whoever runs the daemon reads them.
const MODE: u32 = 0o644;

/// What a plugin says of itself, and who vouches for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// The SHA-256 of its module, in hexadecimal digits.
    pub sha256: String,
    /// Its manifest; an empty one where there is none.
    pub manifest: Manifest,
    /// Who signed that; none where nobody did.
    pub signer: Option<PublicKey>,
}

/// Looks at a module, its manifest and its signature.
///
/// # Errors
/// Where one of them can't be read, or they don't belong together.
pub fn verify(file: &Path) -> Result<Verified, Error> {
    let module = read(file)?;
    let (manifest, signer) = source::read_manifest(file)?;
    let sha256 = Sha256::digest(&module).into();
    source::check_module(&sha256, &manifest, None)
        .map_err(|why| ErrorCode::Forbidden.error(format!("{}: {why}", file.display())))?;
    Ok(Verified { sha256: hex(&sha256), manifest, signer })
}

/// Writes the digest of a module into its manifest, which is made where there is none, and signs that with
/// the secret key in `key`, which is made where there is none.
///
/// # Errors
/// Where a file can't be read or written, or the manifest or the key is none.
pub fn sign(file: &Path, key: &Path) -> Result<Verified, Error> {
    let module = read(file)?;
    let place = file.with_extension("toml");
    let failed =
        |path: &Path, error: io::Error| ErrorCode::Unavailable.error(format!("{}: {error}", path.display()));
    let text = match fs::read_to_string(&place) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(&place, error)),
    };
    let sha256 = hex(&Sha256::digest(&module));
    let text = Manifest::with_sha256(&place.display().to_string(), &text, &sha256)?;
    let secret = secret_key(key)?;
    // The signature first: what is read between the two is refused, and never taken for unsigned.
    let signed = signature_file(file);
    let signature = signature::sign(&secret, text.as_bytes());
    whole_file::write(&signed, &signature, MODE).map_err(|error| failed(&signed, error))?;
    whole_file::write(&place, &text, MODE).map_err(|error| failed(&place, error))?;
    verify(file)
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let module = source::read_file(file, module::BYTES_MAX).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Unavailable,
        };
        code.error(format!("can't read {}: {error}", file.display()))
    })?;
    if module.starts_with(b"\0asm") {
        Ok(module)
    } else {
        Err(ErrorCode::InvalidRequest.error(format!("{} is not a WebAssembly module", file.display())))
    }
}

/// The secret key in a file, which is made where there is none, for its owner alone.
fn secret_key(path: &Path) -> Result<[u8; SECRET_KEY_BYTES], Error> {
    let failed = |why: String| ErrorCode::Unavailable.error(format!("the key {}: {why}", path.display()));
    match fs::read_to_string(path) {
        Ok(text) => {
            let mode = fs::metadata(path).map_err(|error| failed(error.to_string()))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(failed(format!("others may read it: chmod 600 {}", path.display())));
            }
            let bytes = STANDARD.decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
            bytes.ok_or_else(|| {
                failed("it does not hold a secret key made by `clawmux plugin sign`".to_owned())
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut secret = [0; SECRET_KEY_BYTES];
            getrandom::fill(&mut secret).map_err(|error| failed(error.to_string()))?;
            make(path, &format!("{}\n", STANDARD.encode(secret)))
                .map_err(|error| failed(error.to_string()))?;
            Ok(secret)
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Makes a file that is not there yet, for its owner alone, and brings it to the disk.
fn make(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_verified_until_something_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (file, key) = (folder.path().join("x.wasm"), folder.path().join("key"));
        fs::write(&file, wat::parse_str("(module)").unwrap()).unwrap();
        assert_eq!(verify(&file).unwrap().signer, None);
        fs::write(file.with_extension("toml"), "# mine\nversion = \"1\"\n").unwrap();
        let signed = sign(&file, &key).unwrap();
        assert_eq!(signed, verify(&file).unwrap());
        assert_eq!(signed.manifest.version.as_deref(), Some("1"));
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(file.with_extension("toml")).unwrap();
        assert_eq!(text, format!("# mine\nversion = \"1\"\nsha256 = \"{}\"\n", signed.sha256));
        assert_eq!(sign(&file, &key).unwrap(), signed, "with the same key");

        fs::write(&file, wat::parse_str("(module (func))").unwrap()).unwrap();
        let error = verify(&file).unwrap_err();
        assert!(error.message.contains("its manifest is for"), "{error}");
        let again = sign(&file, &key).unwrap();
        assert_eq!(again.signer, signed.signer);
        fs::write(file.with_extension("toml"), text).unwrap();
        let error = verify(&file).unwrap_err();
        assert!(error.message.contains("not one of this manifest"), "{error}");

        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(sign(&file, &key).unwrap_err().message.contains("chmod 600"));
        fs::write(&file, "text").unwrap();
        assert!(sign(&file, &key).unwrap_err().message.contains("not a WebAssembly module"));
        assert!(sign(&folder.path().join("none.wasm"), &key).unwrap_err().message.contains("none.wasm"));
    }
}
