//! Files over real sockets: whole, resumed, refused, within their quota, and never in memory as a whole.
//!
//! `CLAWMUX_FILES_MIB` makes the large file larger than 64 MiB, to measure with.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::shim::{Disk, FULL};
use crate::support::daemon::{self, Daemon, key_of};
use crate::support::eventually;
use crate::support::process::resident_bytes;
use crate::support::wundr::{Incoming, Wundr};

const PIECE: usize = 64 * 1024;
const MIB: usize = 1 << 20;

const COMPRESSED: u8 = 1;
const CHUNKED: u8 = 2;
const FINAL: u8 = 4;

const UNLIMITED: &str = "[limits]\nrequests_burst = 0\n";

fn large_mib() -> usize {
    std::env::var("CLAWMUX_FILES_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(64)
}

/// A UUID as clients write it.
pub(crate) fn id(number: u8) -> String {
    format!("{number:02x}112233-4455-6677-8899-aabbccddeeff")
}

/// A binary frame, byte for byte.
fn frame(id: &str, flags: u8, meta: &Value, payload: &[u8]) -> Vec<u8> {
    let digits = id.replace('-', "");
    let uuid = (0..16).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap());
    let meta = if meta.is_null() { String::new() } else { meta.to_string() };
    let mut frame = vec![1, flags];
    frame.extend(uuid);
    frame.extend((meta.len() as u32).to_be_bytes());
    frame.extend(meta.as_bytes());
    frame.extend(payload);
    frame
}

/// A binary frame of the daemon: its id, flags, metadata and payload.
fn parse(frame: &[u8]) -> (String, u8, Value, &[u8]) {
    assert_eq!(frame[0], 1, "the version");
    let hex: String = frame[2..18].iter().map(|byte| format!("{byte:02x}")).collect();
    let id = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    let length = u32::from_be_bytes(frame[18..22].try_into().unwrap()) as usize;
    (id, frame[1], serde_json::from_slice(&frame[22..22 + length]).unwrap(), &frame[22 + length..])
}

pub(crate) fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a large file from an offset on, a piece at most: no two pieces are the same.
fn bytes(offset: usize, length: usize) -> Vec<u8> {
    const PERIOD: usize = MIB + 7;
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let word = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let once: Vec<u8> = (0..PERIOD as u64).flat_map(word).take(PERIOD).collect();
        once.repeat(3)
    });
    let at = offset % PERIOD;
    pattern[at..at + length].to_vec()
}

fn digest_of(length: usize) -> String {
    let mut hasher = Sha256::new();
    for at in (0..length).step_by(PIECE) {
        hasher.update(bytes(at, PIECE.min(length - at)));
    }
    hex(hasher.finalize())
}

/// Sends a part of the large file; the first frame begins it, or goes on.
fn send_part(client: &mut Wundr, id: &str, from: usize, to: usize, is_all: bool) {
    for at in (from..to).step_by(PIECE) {
        let payload = bytes(at, PIECE.min(to - at));
        let meta = match at {
            0 => json!({ "method": "file.upload", "filename": "large.bin", "chunkIndex": 0 }),
            _ if at == from => json!({ "extra": { "offset": at } }),
            _ => json!({ "chunkIndex": at / PIECE }),
        };
        let flags = if is_all && at + payload.len() == to { FINAL } else { CHUNKED };
        client.send_binary(frame(id, flags, &meta, &payload));
    }
}

/// A small file in one frame.
pub(crate) fn put(client: &mut Wundr, id: &str, payload: &[u8]) -> Result<Value, Value> {
    client.send_binary(frame(id, 0, &json!({ "method": "file.upload", "filename": "a.txt" }), payload));
    client.answer(id)
}

/// The first piece of a file of so many bytes.
#[cfg(feature = "nats")]
pub(crate) fn begin(client: &mut Wundr, id: &str, total: usize, payload: &[u8]) {
    let meta = json!({ "method": "file.upload", "filename": "a.txt", "totalSize": total });
    client.send_binary(frame(id, CHUNKED, &meta, payload));
}

/// The last piece of a file.
#[cfg(feature = "nats")]
pub(crate) fn end(client: &mut Wundr, id: &str, from: usize, payload: &[u8]) -> Result<Value, Value> {
    client.send_binary(frame(id, FINAL, &json!({ "extra": { "offset": from } }), payload));
    client.answer(id)
}

/// A download: its digest, the answer behind it, and how many frames it had.
pub(crate) fn get(client: &mut Wundr, id: &str, params: Value) -> (String, Value, usize) {
    let from = params["offset"].as_u64().unwrap_or(0);
    client.request_as(id, "file.download", params);
    let (mut hasher, mut frames, mut at) = (Sha256::new(), 0, from);
    loop {
        let frame = client.binary();
        let (of, flags, meta, payload) = parse(&frame);
        assert_eq!((of.as_str(), &meta["chunkIndex"]), (id, &json!(frames)), "{meta}");
        assert_eq!(meta["extra"]["offset"], at, "{meta}");
        hasher.update(payload);
        (frames, at) = (frames + 1, at + payload.len() as u64);
        if flags & FINAL != 0 {
            let answer = client.answer(id).unwrap();
            assert_eq!(answer["sentBytes"], at - from, "{answer}");
            return (hex(hasher.finalize()), answer, frames);
        }
        assert_eq!(flags, CHUNKED);
    }
}

/// How far an upload has come, once all that was sent was written.
fn received(client: &mut Wundr, id: &str) -> usize {
    client.call("file.status", json!({ "uploadId": id }))["size"].as_u64().unwrap() as usize
}

#[test]
fn a_large_file_goes_there_and_back_while_requests_are_answered() {
    let (daemon, mut client) = Daemon::with(UNLIMITED).and(Wundr::connect);
    assert!(client.hello()["methods"].as_array().unwrap().contains(&json!("file.upload")));
    assert!(client.hello()["server"]["capabilities"].as_array().unwrap().contains(&json!("binary")));
    let size = large_mib() * MIB;
    let digest = digest_of(size);
    let before = resident_bytes(daemon.pid());
    let (mut most, mut pings) = (before, 0);

    let started = Instant::now();
    let part = 4 * MIB;
    for from in (0..size).step_by(part) {
        let to = size.min(from + part);
        for at in (from..to).step_by(PIECE) {
            let meta = match at {
                0 => json!({ "method": "file.upload", "filename": "large.bin", "totalSize": size,
                    "chunkIndex": 0, "extra": { "sha256": digest } }),
                _ => json!({ "chunkIndex": at / PIECE }),
            };
            let flags = if at + PIECE >= size { CHUNKED | FINAL } else { CHUNKED };
            client.send_binary(frame(&id(1), flags, &meta, &bytes(at, PIECE)));
        }
        client.call("health.ping", json!({}));
        pings += 1;
        most = most.max(resident_bytes(daemon.pid()));
    }
    let file = client.answer(&id(1)).unwrap();
    let up = started.elapsed();
    assert_eq!(
        (&file["size"], &file["sha256"], &file["filename"]),
        (&json!(size), &json!(digest), &json!("large.bin"))
    );
    assert_eq!(file["status"], "complete");

    let file = json!({ "fileId": file["fileId"] });
    let started = Instant::now();
    client.request_as(&id(2), "file.download", file.clone());
    let (mut hasher, mut frames, mut asked, mut answered) = (Sha256::new(), 0, 0, 0);
    loop {
        if asked < 10 && frames % 50 == 10 * (asked % 5) {
            asked += 1;
            client.request_as(&format!("ping{asked}"), "health.ping", json!({}));
        }
        match client.next() {
            Incoming::Binary(frame) => {
                hasher.update(parse(&frame).3);
                frames += 1;
                most = most.max(resident_bytes(daemon.pid()));
            }
            Incoming::Frame(frame) if frame["id"] == id(2) => {
                assert_eq!(frame["payload"]["sha256"], digest, "{frame}");
                break;
            }
            Incoming::Frame(frame) => answered += usize::from(frame["type"] == "res"),
        }
    }
    let down = started.elapsed();
    assert_eq!(hex(hasher.finalize()), digest);
    assert!(asked > 0 && answered == asked, "{answered} of {asked} requests were answered before its end");
    let rate = |took: std::time::Duration| size as f64 / MIB as f64 / took.as_secs_f64();
    eprintln!(
        "{} MiB: up {:.0} MiB/s, down {:.0} MiB/s in {frames} frames, {pings} pings; memory {} -> at most {} KiB",
        size / MIB,
        rate(up),
        rate(down),
        before / 1024,
        most / 1024
    );
    assert!(most < before + 24 * MIB, "{before} -> {most}: a whole file is in memory");

    let (rest, answer, _) = get(&mut client, &id(3), json!({ "fileId": file["fileId"], "offset": size - 5 }));
    assert_eq!((rest, &answer["sentBytes"]), (hex(Sha256::digest(bytes(size - 5, 5))), &json!(5)));
    let part = json!({ "fileId": file["fileId"], "offset": 3, "length": 7 });
    assert_eq!(get(&mut client, &id(4), part).0, hex(Sha256::digest(bytes(3, 7))));
    assert_eq!(client.call("file.delete", file.clone())["ok"], true);
    client.request_as(&id(5), "file.download", file.clone());
    assert_eq!(client.answer(&id(5)).unwrap_err()["code"], "NOT_FOUND");
    assert_eq!(client.call("file.list", json!({}))["total"], 0);
    assert_eq!(std::fs::read_dir(daemon.home().join("files")).unwrap().count(), 0);
}

#[test]
fn an_upload_goes_on_after_a_cut_and_after_sigkill() {
    let daemon = Daemon::with(UNLIMITED);
    let size = 40 * MIB;
    let mut client = Wundr::connect(daemon.address);
    send_part(&mut client, &id(1), 0, 20 * MIB, false);
    // Answered in order: all of that was read. What a cut finds on the way is lost.
    client.call("health.ping", json!({}));
    drop(client);
    let mut client = Wundr::connect(daemon.address);
    let at = eventually("what was sent to be written", || {
        let at = received(&mut client, &id(1));
        (at == 20 * MIB).then_some(at)
    });
    // Elsewhere it does not go on, and without saying where neither; nothing comes of either.
    client.send_binary(frame(&id(1), FINAL, &json!({ "extra": { "offset": 7 } }), b"x"));
    let wrong = client.answer(&id(1)).unwrap_err();
    assert_eq!((&wrong["code"], &wrong["details"]["received"]), (&json!("CONFLICT"), &json!(at)), "{wrong}");
    client.send_binary(frame(&id(1), FINAL, &Value::Null, b"x"));
    assert_eq!(client.answer(&id(1)).unwrap_err()["details"]["received"], at);
    send_part(&mut client, &id(1), at, at + 10 * MIB, false);
    eventually("what was sent to be written", || received(&mut client, &id(1)) == 30 * MIB);

    let (daemon, mut client) = daemon.kill_and_restart().and(Wundr::connect);
    let at = received(&mut client, &id(1));
    assert!((22 * MIB..=30 * MIB).contains(&at), "{at}: a few megabytes may be lost");
    send_part(&mut client, &id(1), at, size, true);
    let file = client.answer(&id(1)).unwrap();
    assert_eq!((&file["size"], &file["sha256"]), (&json!(size), &json!(digest_of(size))));
    // It was told to be there: it is.
    let (_daemon, mut client) = daemon.kill_and_restart().and(Wundr::connect);
    assert_eq!(client.call("file.status", json!({ "uploadId": id(1) })), file);
    let begun = json!({ "fileId": file["fileId"], "offset": 39 * MIB });
    assert_eq!(get(&mut client, &id(2), begun).0, hex(Sha256::digest(bytes(39 * MIB, MIB))));
    assert_eq!(put(&mut client, &id(1), b"x").unwrap_err()["code"], "CONFLICT", "it is complete");
}

fn zlib(payload: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(payload).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_pieces_are_inflated_and_bombs_stopped() {
    let (daemon, mut client) = Daemon::with(UNLIMITED).and(Wundr::connect);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(b" and a gzip").unwrap();
    let meta = json!({ "method": "file.upload", "totalSize": 24 });
    client.send_binary(frame(&id(1), COMPRESSED | CHUNKED, &meta, &zlib(b"a zlib")));
    client.send_binary(frame(&id(1), COMPRESSED | CHUNKED, &Value::Null, &gzip.finish().unwrap()));
    client.send_binary(frame(&id(1), FINAL, &Value::Null, b" piece!"));
    let file = client.answer(&id(1)).unwrap();
    assert_eq!(file["sha256"], hex(Sha256::digest("a zlib and a gzip piece!")), "{file}");

    let bomb = zlib(&vec![0; 300 * MIB]);
    let before = resident_bytes(daemon.pid());
    for (number, flags) in [(2, COMPRESSED), (3, COMPRESSED | CHUNKED)] {
        client.send_binary(frame(&id(number), flags, &json!({ "method": "file.upload" }), &bomb));
        let refused = client.answer(&id(number)).unwrap_err();
        assert_eq!(
            (&refused["code"], &refused["details"]["reason"]),
            (&json!("INVALID_REQUEST"), &json!("too_large"))
        );
        assert_eq!(received(&mut client, &id(number)), 0);
    }
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    assert!(grown < 16 * MIB, "{grown} bytes for a bomb of {}", bomb.len());
    client.send_binary(frame(&id(4), COMPRESSED, &json!({ "method": "file.upload" }), b"not compressed"));
    assert_eq!(client.answer(&id(4)).unwrap_err()["code"], "INVALID_REQUEST");
}

#[test]
fn every_bad_frame_is_answered_and_the_connection_goes_on() {
    let daemon = Daemon::with(UNLIMITED);
    let mut stranger = Wundr::open(daemon.address, "/v2");
    stranger.send_binary(frame(&id(1), 0, &Value::Null, b"x"));
    assert_eq!(stranger.closed(), "1008", "binary before auth.connect");

    let mut client = Wundr::connect(daemon.address);
    let meta = json!({ "method": "file.upload" });
    let whole = frame(&id(1), 0, &meta, b"x");
    let with = |at: usize, byte: u8| {
        let mut bad = whole.clone();
        bad[at] = byte;
        bad
    };
    for (bad, under, code) in [
        (vec![], "invalid", "INVALID_REQUEST"),
        (whole[..10].to_vec(), "invalid", "INVALID_REQUEST"),
        (whole[..20].to_vec(), &*id(1), "INVALID_REQUEST"),
        (with(0, 2), &*id(1), "INVALID_REQUEST"),
        (with(1, 0x10), &*id(1), "INVALID_REQUEST"),
        (with(18, 0xff), &*id(1), "INVALID_REQUEST"),
        (with(22, b'['), &*id(1), "INVALID_REQUEST"),
        (
            frame(&id(2), 0, &json!({ "method": "file.upload", "totalSize": "7" }), b"x"),
            &*id(2),
            "INVALID_REQUEST",
        ),
        (frame(&id(2), 0, &json!({ "method": "session.create" }), b"x"), &*id(2), "INVALID_REQUEST"),
        (
            frame(&id(2), 0, &json!({ "method": "file.upload", "filename": "x".repeat(300) }), b""),
            &*id(2),
            "INVALID_REQUEST",
        ),
        (
            frame(&id(2), 0, &json!({ "method": "file.upload", "totalSize": 2 }), b"x"),
            &*id(2),
            "INVALID_REQUEST",
        ),
        (
            frame(&id(3), 0, &json!({ "method": "file.upload", "totalSize": 0 }), b"x"),
            &*id(3),
            "INVALID_REQUEST",
        ),
        (
            frame(
                &id(4),
                0,
                &json!({ "method": "file.upload", "extra": { "sha256": "0".repeat(64) } }),
                b"x",
            ),
            &*id(4),
            "INVALID_REQUEST",
        ),
        (frame(&id(5), 0, &json!({ "method": "file.upload", "chunkIndex": 3 }), b"x"), &*id(5), "NOT_FOUND"),
        (
            frame(&id(5), 0, &json!({ "method": "file.upload", "extra": { "offset": 3 } }), b"x"),
            &*id(5),
            "NOT_FOUND",
        ),
        (frame(&id(5), 0, &Value::Null, b"x"), &*id(5), "NOT_FOUND"),
    ] {
        client.send_binary(bad);
        let refused = client.answer(under).unwrap_err();
        assert_eq!(refused["code"], code, "{refused}");
    }
    // One answer for an upload of which a piece in the middle is refused, however much comes behind it.
    client.send_binary(frame(&id(6), CHUNKED, &meta, b"abc"));
    client.send_binary(frame(&id(6), CHUNKED | COMPRESSED, &Value::Null, b"def"));
    for _ in 0..20 {
        client.send_binary(frame(&id(6), CHUNKED, &Value::Null, b"ghi"));
    }
    client.send_binary(frame(&id(6), FINAL, &Value::Null, b"jkl"));
    assert_eq!(client.answer(&id(6)).unwrap_err()["code"], "INVALID_REQUEST");
    client.call("health.ping", json!({}));
    let again = client.kept().filter(|kept| matches!(kept, Incoming::Frame(f) if f["id"] == id(6))).count();
    assert_eq!((again, received(&mut client, &id(6))), (0, 3), "one answer, and nothing behind the gap");
    assert_eq!(put(&mut client, &id(7), b"").unwrap()["size"], 0, "an empty file is one");
    let empty = client.call("file.status", json!({ "uploadId": id(7) }))["fileId"].clone();
    assert_eq!(get(&mut client, &id(8), json!({ "fileId": empty })).2, 1, "one frame without a byte");
    let no_uuid = client.refused("file.download", json!({ "fileId": empty }));
    assert!(no_uuid["message"].as_str().unwrap().contains("UUID"), "{no_uuid}");
    client.refused("file.status", json!({}));
    client.refused("file.status", json!({ "fileId": "../../clawmux.db" }));
}

/// A daemon that two users and one who may only look have keys for.
fn shared(limits: &str) -> Daemon {
    Daemon::shared(limits, &[("ada", "user"), ("bob", "user"), ("eve", "readonly")], &[])
}

#[test]
fn a_file_is_its_owners_and_the_quota_holds_whatever_comes_at_once() {
    let daemon = shared("[limits]\nrequests_burst = 0\nfile_quota_bytes = 1000000\n");
    let connect = |name: &str| Wundr::connect_with(daemon.address, &key_of(name));
    let (mut ada, mut bob, mut eve) = (connect("ada"), connect("bob"), connect("eve"));
    let hers = put(&mut ada, &id(1), b"hers").unwrap();
    let his = put(&mut bob, &id(1), b"his").unwrap();
    assert_ne!(hers["fileId"], his["fileId"], "under the same name");
    for method in ["file.status", "file.delete"] {
        let refused = bob.refused(method, json!({ "fileId": hers["fileId"] }));
        let none = bob.refused(method, json!({ "fileId": id(9) }));
        assert_eq!((&refused["code"], &none["code"]), (&json!("NOT_FOUND"), &json!("NOT_FOUND")));
    }
    bob.request_as(&id(2), "file.download", json!({ "fileId": hers["fileId"] }));
    assert_eq!(bob.answer(&id(2)).unwrap_err()["code"], "NOT_FOUND");
    assert_eq!(bob.call("file.list", json!({}))["files"], json!([his]));
    assert_eq!(put(&mut eve, &id(1), b"x").unwrap_err()["code"], "FORBIDDEN");
    assert_eq!(eve.call("file.list", json!({}))["total"], 0);

    // Ten at once, on as many connections, of which six find room.
    let taken: usize = std::thread::scope(|scope| {
        let senders: Vec<_> = (10..20)
            .map(|number| {
                let mut client = connect("ada");
                scope.spawn(move || match put(&mut client, &id(number), &vec![number; 150_000]) {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error["details"]["limit"], "file_quota_bytes", "{error}");
                        0
                    }
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    assert_eq!(taken, 6);
    let on_disk: u64 = std::fs::read_dir(daemon.home().join("files"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(on_disk, 6 * 150_000 + 4 + 3, "and nothing besides");
    bob.send_binary(frame(
        &id(3),
        CHUNKED,
        &json!({ "method": "file.upload", "totalSize": 2_000_000 }),
        b"x",
    ));
    assert_eq!(bob.answer(&id(3)).unwrap_err()["details"]["max"], 1_000_000, "before it is sent");
}

#[test]
fn many_uploads_and_readers_that_do_not_read_take_little_memory() {
    let (daemon, mut client) = Daemon::with(UNLIMITED).and(Wundr::connect);
    let size = 32 * MIB;
    send_part(&mut client, &id(1), 0, size, true);
    let file = client.answer(&id(1)).unwrap()["fileId"].clone();
    let before = resident_bytes(daemon.pid());
    let address = daemon.address;
    std::thread::scope(|scope| {
        let senders: Vec<_> = (10..18)
            .map(|number| {
                scope.spawn(move || {
                    let mut client = Wundr::connect(address);
                    send_part(&mut client, &id(number), 0, 8 * MIB, true);
                    client.answer(&id(number)).unwrap()["sha256"].clone()
                })
            })
            .collect();
        let mut most = before;
        while !senders.iter().all(|sender| sender.is_finished()) {
            most = most.max(resident_bytes(daemon.pid()));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        eprintln!("8 uploads: memory {} -> at most {} KiB", before / 1024, most / 1024);
        assert!(most < before + 48 * MIB, "{before} -> {most}");
        for sender in senders {
            assert_eq!(sender.join().unwrap(), digest_of(8 * MIB));
        }
    });

    // Readers that stop reading: what waits for them is a piece or two each, not the file.
    let before = resident_bytes(daemon.pid());
    let mut stuck: Vec<Wundr> = (0..16).map(|_| Wundr::connect(address)).collect();
    for client in &mut stuck {
        for number in 0..4 {
            client.request_as(&id(number), "file.download", json!({ "fileId": file }));
        }
    }
    eventually("the sockets to be full", || {
        let read = crate::support::daemon::get(address, "/healthz").0 == 200;
        let queues = crate::support::process::send_queues(address.port());
        read && queues.iter().filter(|bytes| **bytes > 0).count() >= 16
    });
    for _ in 0..20 {
        client.call("health.ping", json!({}));
    }
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    eprintln!("16 stuck readers of 4 downloads each: {} KiB", grown / 1024);
    assert!(grown < 16 * 512 * 1024 + 8 * MIB, "{grown} bytes for 16 readers");
    // One of them reads on, and gets all of them.
    let mut reader = stuck.pop().unwrap();
    let mut digests = vec![Sha256::new(); 4];
    let mut left = 4;
    while left > 0 {
        match reader.next() {
            Incoming::Binary(frame) => {
                let (of, _, _, payload) = parse(&frame);
                digests[usize::from_str_radix(&of[..2], 16).unwrap()].update(payload);
            }
            Incoming::Frame(frame) => left -= usize::from(frame["type"] == "res"),
        }
    }
    for digest in digests {
        assert_eq!(hex(digest.finalize()), digest_of(size));
    }
}

#[test]
fn a_full_disk_is_said_and_the_upload_goes_on_when_there_is_room() {
    let home = daemon::home();
    let disk = Disk::under(home.path());
    let (daemon, mut client) = Daemon::at_with(home, UNLIMITED, disk.env()).and(Wundr::connect);
    send_part(&mut client, &id(1), 0, MIB, false);
    eventually("what was sent to be written", || received(&mut client, &id(1)) == MIB);
    disk.fail("home", "write", FULL, 1000);
    send_part(&mut client, &id(1), MIB, 2 * MIB, true);
    let full = client.answer(&id(1)).unwrap_err();
    assert_eq!((&full["code"], &full["retryable"]), (&json!("UNAVAILABLE"), &json!(true)), "{full}");
    assert!(full["message"].as_str().unwrap().contains("the disk is full"), "{full}");
    assert_eq!(kept_bytes(daemon.home()), vec![MIB as u64], "cut back to what is known");
    disk.heal();
    assert_eq!(received(&mut client, &id(1)), MIB);
    eventually("the log to be written again", || {
        let at = received(&mut client, &id(1));
        if at < 2 * MIB {
            send_part(&mut client, &id(1), at, 2 * MIB, true);
        } else {
            client.send_binary(frame(&id(1), FINAL, &json!({ "extra": { "offset": at } }), b""));
        }
        client.answer(&id(1)).ok().map(|file| assert_eq!(file["sha256"], digest_of(2 * MIB)))
    });
    let file = client.call("file.status", json!({ "uploadId": id(1) }))["fileId"].clone();
    assert_eq!(get(&mut client, &id(2), json!({ "fileId": file })).0, digest_of(2 * MIB));
}

fn kept_bytes(home: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(home.join("files")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect()
}

#[test]
fn a_file_goes_along_with_a_prompt() {
    let (_daemon, mut client) = Daemon::with(UNLIMITED).and(Wundr::connect);
    let file = put(&mut client, &id(1), b"a walrus is a mammal").unwrap()["fileId"].clone();
    let task = json!({ "type": "general", "description": "look" });
    let session = client.call(
        "session.create",
        json!({ "orchestratorId": "main", "sessionType": "claude-code", "task": task }),
    );
    let submit = |file: &Value| json!({ "sessionId": session["id"], "prompt": "what is in it?", "attachments": [{ "fileId": file }] });
    let none = client.refused("prompt.submit", submit(&json!(id(9))));
    assert_eq!(none["code"], "NOT_FOUND", "{none}");
    let prompt = client.call("prompt.submit", submit(&file));
    let (text, end) = client.answer_of(prompt["promptId"].as_str().unwrap());
    assert_eq!(end["event"], "stream.end", "{end}");
    assert!(text.contains("a.txt") && text.contains("20 bytes"), "the model was shown it: {text}");
}
