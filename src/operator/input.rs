//! JSON objects that commands take from a file or from stdin.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

/// The largest input, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What is in this file, or comes from stdin where it is `-` or there is none.
///
/// # Errors
/// Why it can't be read.
pub(super) fn read(file: Option<&Path>) -> Result<String, String> {
    let source: Box<dyn Read> = match file.filter(|file| file.as_os_str() != "-") {
        Some(file) => Box::new(File::open(file).map_err(|error| error.to_string())?),
        None => Box::new(std::io::stdin()),
    };
    let mut text = String::new();
    source.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

/// The JSON object that this is.
///
/// # Errors
/// Why it is none.
pub(super) fn object(text: &str) -> Result<Value, String> {
    if text.len() as u64 > BYTES_MAX {
        return Err(format!("more than {BYTES_MAX} bytes"));
    }
    let input: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if input.is_object() {
        Ok(input)
    } else {
        Err("expected a JSON object, such as {\"text\":\"hi\"}".into())
    }
}
