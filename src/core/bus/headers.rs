//! Whether the headers of a message can be read, before a client tries: one that can't read them ends its connection.

/// What headers begin with.
const VERSION: &[u8] = b"NATS/1.0\r\n";

/// Whether these bytes are headers as the client of this daemon reads them: lines of a name and a value, in UTF-8,
/// without a stray end of a line. (Source: NATS, ADR-4.)
///
/// # Errors
/// What is wrong with them.
pub fn check(bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.is_empty() {
        return Ok(());
    }
    let rest = bytes.strip_prefix(VERSION).ok_or("they do not begin with NATS/1.0")?;
    let text = std::str::from_utf8(rest).map_err(|_| "they are not UTF-8")?;
    for line in text.split("\r\n").filter(|line| !line.is_empty()) {
        if line.contains(['\r', '\n']) {
            return Err("a value has a stray end of a line");
        }
        let (name, _) = line.split_once(':').ok_or("a line has no colon")?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a name is empty or has spaces or other bytes that no name has");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_would_stumble_over_is_found() {
        for fine in [&b""[..], b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: a b\xc3\xa4\r\nX:\r\n\r\n"] {
            assert_eq!(check(fine), Ok(()));
        }
        for bad in [
            &b"NATS/1.0\r\nNats-Msg-Id: a\rb\r\n\r\n"[..],
            b"NATS/1.0\r\nX: a\nb\r\n\r\n",
            b"NATS/1.0\r\nX-Foo: a\xffb\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\na name: x\r\n\r\n",
            b"NATS/1.0\r\n: x\r\n\r\n",
            b"NATS/1.0 abc\r\n\r\n",
        ] {
            assert!(check(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
