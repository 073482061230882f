//! Messages that are begun and never completed: what they hold is bounded, whoever sends them and however
//! many there are. The figures are printed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::process::{open_files_max, resident_bytes};
use crate::support::raw::{header, text, upgrade_request};
use crate::support::{TIMEOUT, eventually};

const TOKEN: &str = "a-token-of-24-characters";
const READER: &str = "a-reader-of-24-characters";

const MIB: usize = 1 << 20;

/// Upgraded, let in with this token, and answered.
fn connect(address: SocketAddr, token: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("it accepts");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    socket.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    let shown = text(&format!(r#"{{"token":"{token}"}}"#));
    socket.write_all(&[upgrade_request("/ws").into_bytes(), shown].concat()).expect("it takes that");
    let (mut read, mut piece) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&read).contains(r#"{"ok":true"#) {
        let bytes = socket.read(&mut piece).expect("an answer");
        assert!(bytes > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..bytes]);
    }
    socket
}

/// What is said before the end.
fn rest(mut socket: impl Read) -> String {
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    String::from_utf8_lossy(&rest).into_owned()
}

fn start(config: &str) -> Daemon {
    Daemon::with_env(config, &[("CLAWMUX_TOKEN", TOKEN), ("READER_KEY", READER)])
}

#[test]
fn readers_that_send_large_frames_hold_nothing() {
    const READERS: usize = 60;
    let config = "[gateway]\nmax_payload_bytes = 33554432\n[[auth.api_keys]]\nname = \"reader\"\n\
                  key_env = \"READER_KEY\"\nrole = \"readonly\"\n";
    let daemon = start(config);
    let before = resident_bytes(daemon.pid());
    let payload = vec![b' '; 256 * 1024];
    let sockets: Vec<TcpStream> = (0..READERS)
        .map(|_| {
            let mut socket = connect(daemon.address, READER);
            // All but sent: it may be closed before.
            let mut sent = socket.write_all(&header(0x81, 24 << 20));
            for _ in 0..95 {
                sent = sent.and_then(|()| socket.write_all(&payload));
            }
            socket
        })
        .collect();
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    println!("{READERS} readers with 24 MiB each: {} KiB more resident", grown / 1024);
    assert!(grown < 32 * MIB, "{grown} bytes");
    for socket in sockets {
        drop(socket);
    }
    assert_eq!(
        Client::connect_with(daemon.address, TOKEN).call("ping", serde_json::Value::Null)["result"],
        "pong"
    );
}

#[test]
fn a_thousand_that_never_finish_stay_within_the_room_there_is() {
    const ROOM: usize = 16 * MIB;
    const EACH: usize = 512 * 1024;
    let daemon = start("[gateway]\nmax_unfinished_bytes = 16777216\n");
    let count = 1000.min(open_files_max() / 4);
    let before = resident_bytes(daemon.pid());
    let payload = vec![b' '; EACH];
    let mut most = 0;
    let mut lines = UnixStream::connect(daemon.home().join(".xeno/gateway.sock")).expect("its socket");
    lines.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    // Lines count with frames, and this one is the largest of all.
    for _ in 0..64 {
        lines.write_all(&payload[..16 * 1024]).expect("it takes that");
    }
    let mut sockets = Vec::new();
    for number in 0..count {
        let mut socket = connect(daemon.address, TOKEN);
        // It may have to give way before all of it is sent.
        let _ = socket.write_all(&header(0x81, 1 << 20)).and_then(|()| socket.write_all(&payload));
        sockets.push(socket);
        if number % 50 == 0 {
            most = most.max(resident_bytes(daemon.pid()));
        }
    }
    most = most.max(resident_bytes(daemon.pid()));
    let grown = most.saturating_sub(before);
    // A connection costs some more, with what it has read and not looked at, and what is free again.
    let allowed = ROOM + count * 400 * 1024;
    println!(
        "{count} unfinished messages of {} MiB in all: {} KiB more resident",
        count * EACH / MIB,
        grown / 1024
    );
    assert!(grown < allowed, "{grown} bytes of {allowed}");
    let said = rest(&mut lines);
    assert!(said.contains("unfinished messages take too much room"), "{said}");
    let unfinished = || daemon.json_of(&["actors"]).to_string();
    let told = eventually("the books", || {
        let said = unfinished();
        let at = said.find(r#""unfinished_bytes":"#)? + r#""unfinished_bytes":"#.len();
        said[at..].split([',', '}']).next()?.parse::<usize>().ok()
    });
    assert!(told <= ROOM && told > ROOM / 2, "{told}");
    let client = &mut Client::connect_with(daemon.address, TOKEN);
    assert_eq!(client.call("ping", serde_json::Value::Null)["result"], "pong");
}

#[test]
fn a_line_has_to_be_complete_in_time() {
    let daemon = start("[gateway]\nmessage_timeout_ms = 400\n");
    let mut socket = UnixStream::connect(daemon.home().join(".xeno/gateway.sock")).expect("its socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let mut dripping = socket.try_clone().expect("a socket");
    let drips = std::thread::spawn(move || {
        while dripping.write_all(b" ").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let said = rest(&mut socket);
    assert!(said.contains("a message was not complete in time"), "{said}");
    drop(socket);
    drips.join().expect("it ends");
}
