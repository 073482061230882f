//! `[bus]`: channel adapters on NATS JetStream.

use super::Bus;
use super::credentials::Secrets;
use super::nats::{Reach, reach};
use super::section::{Report, Section};
use crate::access::auth::Auth;
use crate::access::token::RESERVED;
use crate::ids::Owner;

/// The streams, as they are called where nobody says otherwise.
const STREAMS: [&str; 3] = ["EXOCLAW", "EXOCLAW_OUT", "EXOCLAW_DLQ"];

/// The longest name of a stream, in bytes.
const NAME_BYTES_MAX: usize = 64;

pub(super) fn bus(mut s: Section, r: &mut Report, secrets: &mut Secrets<'_>, auth: &Auth) -> Option<Bus> {
    if !s.is_written() {
        return None;
    }
    let Reach { servers, credential, ca_file, client_certificate } = reach(&mut s, r, secrets);
    let principal = s.text(r, "principal", Owner::BUS);
    if RESERVED.contains(&&*principal) && principal != Owner::BUS {
        r.complain(&s.origin("principal"), format!("bus.principal: {principal:?} is somebody else's name"));
    }
    let key = auth.api_keys.iter().find(|key| *key.name == *principal);
    let scopes = key.map(|key| key.scopes);
    let channels = s.texts(r, "channels", Some(&[])).unwrap_or_default();
    let channels = channels.into_iter().map(|name| name.value).filter(|name| !name.is_empty()).collect();
    let streams = streams(&mut s, r);
    let create = s.flag(r, "create").unwrap_or(true);
    s.finish(r);
    Some(Bus {
        servers,
        credential,
        ca_file,
        client_certificate,
        principal,
        scopes,
        channels,
        streams,
        create,
    })
}

/// Those of inbound messages, of answers and of dead letters.
fn streams(s: &mut Section, r: &mut Report) -> [String; 3] {
    let Some(written) = s.texts(r, "streams", Some(&STREAMS)) else { return STREAMS.map(str::to_owned) };
    let names: Vec<String> = written.into_iter().map(|name| name.value).collect();
    let is_name = |name: &String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
    };
    match <[String; 3]>::try_from(names) {
        Ok(names)
            if names.iter().all(is_name)
                && names[0] != names[1]
                && names[1] != names[2]
                && names[0] != names[2] =>
        {
            names
        }
        _ => {
            let why = "bus.streams: expected three different names of letters, digits, '-' and '_': of the stream of \
                inbound messages, of answers, of dead letters";
            r.complain(&s.origin("streams"), why);
            STREAMS.map(str::to_owned)
        }
    }
}
