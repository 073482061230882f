//! What servers did with their disks, as strace saw it: what was written into which file, and when that was synced.
//!
//! Each sync is delayed: who acknowledges without waiting for it is long ahead of it.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How much later each sync ends.
const DELAY: Duration = Duration::from_millis(10);

/// A call, with when it began and ended: since 1970.
#[derive(Debug)]
struct Call {
    begun: Duration,
    ended: Duration,
    is_sync: bool,
    /// The path of the file.
    file: String,
    /// The line.
    what: String,
}

/// What one server did.
#[derive(Debug)]
pub struct Syncs(Vec<Call>);

/// The file in a server's folder that strace writes.
const TRACE: &str = "trace";

/// `program` under strace, which notes what is done with the disk.
pub fn traced(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("strace");
    let delay = format!("inject=fsync,fdatasync:delay_exit={}", DELAY.as_micros());
    // The program is the child, and not of strace: it is killed as ever.
    command.args(["-D", "-f", "-ttt", "-T", "-y", "-s", "16384", "--seccomp-bpf"]);
    command
        .args(["-e", "trace=write,pwrite64,fsync,fdatasync", "-e", &delay, "-o"])
        .arg(folder.join(TRACE))
        .arg(program);
    command
}

impl Syncs {
    /// What was traced of the server with this folder.
    pub fn read(folder: &Path) -> Self {
        let text = std::fs::read(folder.join(TRACE)).expect("the trace is read");
        let mut under_way = HashMap::new();
        let mut calls = Vec::new();
        for line in String::from_utf8_lossy(&text).lines() {
            // The last one may have been cut off.
            let Some((thread, rest)) = line.split_once(' ') else { continue };
            let Some((at, what)) = rest.trim_start().split_once(' ') else { continue };
            if let Some((begun, _)) = what.split_once("<unfinished ...>") {
                under_way.insert(thread.to_owned(), (at.to_owned(), begun.to_owned()));
                continue;
            }
            let call = match what.split_once(" resumed>") {
                Some((_, end)) => {
                    under_way.remove(thread).and_then(|(at, begun)| Call::read(&at, &format!("{begun}{end}")))
                }
                None => Call::read(at, what),
            };
            calls.extend(call);
        }
        Self(calls)
    }

    /// When what contains `text` was synced first; none where it never was.
    pub fn synced(&self, text: &str) -> Option<Duration> {
        let writes = self.0.iter().filter(|call| !call.is_sync && call.what.contains(text));
        let syncs = writes.filter_map(|write| {
            let covers = |sync: &&Call| sync.is_sync && sync.file == write.file && sync.begun >= write.ended;
            self.0.iter().filter(covers).map(|sync| sync.ended).min()
        });
        syncs.min()
    }
}

impl Call {
    /// None where it is none that was carried out.
    fn read(at: &str, what: &str) -> Option<Self> {
        let begun = seconds(at)?;
        let (_, took) = what.rsplit_once(" <")?;
        let took = seconds(took.trim_end().strip_suffix('>')?)?;
        let (_, came_of_it) = what.rsplit_once(" = ")?;
        let is_done = came_of_it.starts_with(|digit: char| digit.is_ascii_digit());
        let is_sync = what.starts_with("fsync(") || what.starts_with("fdatasync(");
        let (_, file) = what.split_once('<')?;
        let (file, _) = file.split_once('>')?;
        let ended = begun + took + if is_sync { DELAY } else { Duration::ZERO };
        is_done.then(|| Self { begun, ended, is_sync, file: file.to_owned(), what: what.to_owned() })
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let (whole, micros) = text.split_once('.')?;
    Some(Duration::from_secs(whole.parse().ok()?) + Duration::from_micros(micros.parse().ok()?))
}

#[test]
fn a_write_is_synced_by_the_first_sync_of_its_file_that_begins_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "\
        7 1.000000 pwrite64(9</a>, \"one\", 3, 0) = 3 <0.000010>\n\
        8 1.000005 fsync(9</a> <unfinished ...>\n\
        7 1.000020 fsync(10</b>) = 0 (DELAYED) <0.000100>\n\
        8 1.000050 <... fsync resumed>) = 0 (DELAYED) <0.000045>\n\
        7 1.000060 fsync(9</a>) = -1 EIO (Input/output error) (DELAYED) <0.000001>\n\
        7 1.000070 fsync(9</a>) = 0 (DELAYED) <0.000003>\n\
        7 1.000080 pwrite64(9</a>, \"two\", 3, 3) = 3 <0.000010>\n\
        7 1.0001";
    std::fs::write(folder.path().join(TRACE), lines).unwrap();
    let syncs = Syncs::read(folder.path());
    assert_eq!(syncs.synced("one"), Some(Duration::from_micros(1_000_073) + DELAY));
    assert_eq!((syncs.synced("two"), syncs.synced("three")), (None, None));
}
