//! `Configuration`: what the daemon is configured to, and changes of it from afar.
//!
//! The files are read anew for every answer, so that an answer tells of what stands there and not of
//! what was there at the start. A change is written to one file, whole or not at all: it is tried
//! together with all other layers first, and what a daemon could not start on is refused with
//! everything that is wrong. What is written takes effect with the next start; an answer says so.
//!
//! Files are read and written on threads for that, one change at a time.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use actix::prelude::*;
use clawmux_core::command::ConfigRequest;
use clawmux_core::config::{self, Complaint, Config, Examined, Flag, Sources};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::reply::{ConfigIssue, ConfigSnapshot};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::observe::{Observe, Observed};
use crate::store;

/// The most bytes of a configuration file or a secret.
const BYTES_MAX: u64 = 1 << 20;

/// How many requests may be under way.
const UNDER_WAY_MAX: usize = 16;

/// How many complaints one answer tells.
const COMPLAINTS_MAX: usize = 50;

/// The actor.
pub struct Configuration {
    layers: Arc<Layers>,
    /// What was in effect when the daemon started.
    started: Arc<Json>,
    /// Held by the thread that changes a file.
    changing: Arc<Mutex<()>>,
    under_way: Arc<Semaphore>,
    changes: u64,
}

/// Asks, or asks for a change on behalf of somebody.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<ConfigSnapshot, Error>")]
pub struct Configure {
    /// What.
    pub request: ConfigRequest,
    /// Who.
    pub by: Arc<str>,
}

/// What a configuration is made of: where its files are, and what the process was started with.
#[derive(Clone, Default)]
pub struct Layers {
    /// Where relative paths start.
    pub home: PathBuf,
    /// The file for all users of a machine, which need not be there.
    pub system: PathBuf,
    /// The file over it, which changes are written to.
    pub file: PathBuf,
    /// Whether that one was named, and so must be there.
    pub is_named: bool,
    /// The environment: values and secrets.
    pub env: Vec<(String, String)>,
    /// The addresses that the command line wants.
    pub listen: Vec<String>,
    /// What else is wrong with a configuration, which only the file system or others know.
    pub look: Option<fn(&Config, &Path) -> Vec<String>>,
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers")
            .field("system", &self.system)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Layers {
    /// The files that are there, the weakest first, with their texts.
    ///
    /// # Errors
    /// Which can't be read, and why.
    pub fn files(&self) -> Result<Vec<(PathBuf, String)>, String> {
        let mut files = Vec::new();
        for path in [&self.system, &self.file] {
            match text(path) {
                Ok(text) => files.push((path.clone(), text)),
                Err(_) if path.as_os_str().is_empty() => {}
                Err(Unread::Absent) if !(self.is_named && *path == self.file) => {}
                Err(why) => return Err(format!("{}: can't be read: {why}", path.display())),
            }
        }
        Ok(files)
    }

    /// Hands them to a function that puts them together.
    pub fn with<T>(&self, files: &[(PathBuf, String)], put_together: impl FnOnce(Sources<'_>) -> T) -> T {
        let names: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        let files: Vec<config::File<'_>> =
            names.iter().zip(files).map(|(name, (_, text))| config::File { name, text }).collect();
        let flag = Flag { name: "--listen", key: "gateway.listen", values: &self.listen };
        put_together(Sources {
            files: &files,
            env: &self.env,
            flags: if self.listen.is_empty() { &[] } else { std::slice::from_ref(&flag) },
            home: &self.home,
            read_secret: &mut |path| text(path).map_err(|why| why.to_string()),
            is_file: &mut |path| path.is_file(),
            has_issued: &mut store::has_issued,
        })
    }
}

/// Why there is no text.
#[derive(Debug)]
enum Unread {
    Absent,
    Otherwise(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("No such file or directory (os error 2)"),
            Self::Otherwise(why) => f.write_str(why),
        }
    }
}

fn text(path: &Path) -> Result<String, Unread> {
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text)) {
        Ok(bytes) if bytes as u64 > BYTES_MAX => {
            Err(Unread::Otherwise(format!("it is larger than {BYTES_MAX} bytes")))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Unread::Absent,
            ErrorKind::InvalidData => Unread::Otherwise("it is not UTF-8 text".into()),
            _ => Unread::Otherwise(error.to_string()),
        }),
    }
}

impl Configuration {
    /// For a daemon that starts on these layers.
    pub fn new(layers: Layers) -> Self {
        // What can't be read now is complained of when it is asked for.
        let started = layers.files().map(|files| layers.with(&files, config::examine).effective);
        Self {
            layers: Arc::new(layers),
            started: Arc::new(started.unwrap_or_default()),
            changing: Arc::default(),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            changes: 0,
        }
    }
}

/// The layers as they are now.
struct Now {
    files: Vec<(PathBuf, String)>,
    /// The text of the file that changes are written to; none where there is none.
    text: Option<String>,
    found: Examined,
}

impl Now {
    fn read(layers: &Layers) -> Result<Self, Error> {
        Self::of(layers, layers.files().map_err(|why| ErrorCode::Unavailable.error(why))?)
    }

    fn of(layers: &Layers, files: Vec<(PathBuf, String)>) -> Result<Self, Error> {
        let text = files.iter().find(|(path, _)| *path == layers.file).map(|(_, text)| text.clone());
        // The strongest file is the one that is shown, also where it is not there.
        let mut shown = files.clone();
        if text.is_none() {
            shown.push((layers.file.clone(), String::new()));
        }
        let mut found = layers.with(&shown, config::examine);
        if found.complaints.is_empty()
            && let (Some(look), Some(config)) = (layers.look, &found.config)
        {
            let complaint = |message| Complaint { at: config::Origin::Default, message };
            found.complaints = look(config, &layers.home).into_iter().map(complaint).collect();
        }
        Ok(Self { files, text, found })
    }

    fn hash(&self) -> String {
        let digest = Sha256::digest(self.text.as_deref().unwrap_or_default());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn snapshot(self, layers: &Layers, started: &Json) -> ConfigSnapshot {
        let issues = |complaints: &[Complaint]| complaints.iter().map(issue).collect();
        ConfigSnapshot {
            path: layers.file.display().to_string(),
            exists: self.text.is_some(),
            hash: self.hash(),
            needs_restart: self.found.effective != *started,
            pending: config::differences(started, &self.found.effective),
            complaints: issues(&self.found.complaints),
            warnings: issues(&self.found.warnings),
            file: self.found.file,
            effective: self.found.effective,
        }
    }
}

fn issue(complaint: &Complaint) -> ConfigIssue {
    let (path, message) = complaint.split();
    let message = match &complaint.at {
        config::Origin::Default => message.to_owned(),
        at => format!("{message} ({at})"),
    };
    ConfigIssue { path: path.to_owned(), message }
}

fn invalid(complaints: &[Complaint]) -> Error {
    let said: Vec<&str> =
        complaints.iter().take(COMPLAINTS_MAX).map(|complaint| complaint.message.as_str()).collect();
    ErrorCode::InvalidRequest.error(format!("invalid config: {}", said.join("; ")))
}

/// Has the file say what is asked.
fn change(layers: &Layers, asked: &Json, is_patch: bool, base_hash: &str) -> Result<Now, Error> {
    let now = Now::read(layers)?;
    if now.hash() != base_hash {
        return Err(ErrorCode::Conflict.error("config changed since last load; re-run config.get and retry"));
    }
    let patched = is_patch.then(|| config::patched(&now.found.file, asked));
    say(layers, now, patched.as_ref().unwrap_or(asked))
}

/// Has the file say what is asked at some places.
fn place(layers: &Layers, values: &[(String, Json)], merge: bool) -> Result<Now, Error> {
    let now = Now::read(layers)?;
    let asked = config::placed(&now.found.file, values, merge).map_err(|complaints| invalid(&complaints))?;
    say(layers, now, &asked)
}

/// Has the file say all of this.
fn say(layers: &Layers, now: Now, asked: &Json) -> Result<Now, Error> {
    let Examined { file, effective, .. } = &now.found;
    let old = now.text.as_deref().unwrap_or_default();
    let new = config::edit(old, asked, file, effective).map_err(|complaints| invalid(&complaints))?;
    if new == old {
        return Ok(now);
    }
    if new.len() as u64 > BYTES_MAX {
        let why = format!("invalid config: it is larger than {BYTES_MAX} bytes");
        return Err(ErrorCode::InvalidRequest.error(why));
    }
    let mut files = now.files;
    match files.iter_mut().find(|(path, _)| *path == layers.file) {
        Some((_, text)) => text.clone_from(&new),
        None => files.push((layers.file.clone(), new.clone())),
    }
    let then = Now::of(layers, files)?;
    if !then.found.complaints.is_empty() {
        return Err(invalid(&then.found.complaints));
    }
    write(&layers.file, &new).map_err(|error| {
        ErrorCode::Unavailable.error(format!("{} can't be written: {error}", layers.file.display()))
    })?;
    Ok(then)
}

/// Puts a new file in the place of the old one: there is always one of them, whole, whatever happens.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // Where it is a link, what that leads to is meant.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(ErrorKind::InvalidInput));
    };
    let begin = format!(".{}.", name.to_string_lossy());
    clean_up(folder, &begin)?;
    let new = folder.join(format!("{begin}{}.new", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        if let Ok(old) = fs::metadata(&path) {
            file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
            // Only root can give a file away; for others it is theirs already.
            let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    File::open(folder)?.sync_all()
}

/// Removes what was left by processes that ended while they wrote.
fn clean_up(folder: &Path, begin: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let writer = name
            .to_str()
            .and_then(|name| name.strip_prefix(begin)?.strip_suffix(".new")?.parse::<u32>().ok());
        if let Some(writer) = writer
            && (writer == std::process::id() || !Path::new("/proc").join(writer.to_string()).exists())
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl Actor for Configuration {
    type Context = Context<Self>;
}

impl Handler<Configure> for Configuration {
    type Result = ResponseFuture<Result<ConfigSnapshot, Error>>;

    fn handle(&mut self, Configure { request, by }: Configure, _: &mut Self::Context) -> Self::Result {
        let Ok(permit) = self.under_way.clone().try_acquire_owned() else {
            return Box::pin(async {
                Err(ErrorCode::Unavailable.error("too much is asked of the configuration: try again"))
            });
        };
        let (layers, started, changing) = (self.layers.clone(), self.started.clone(), self.changing.clone());
        if matches!(request, ConfigRequest::Set { .. } | ConfigRequest::Place { .. }) {
            self.changes += 1;
        }
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let now = match request {
                ConfigRequest::Get | ConfigRequest::Look => Now::read(&layers)?,
                asked @ (ConfigRequest::Set { .. } | ConfigRequest::Place { .. }) => {
                    let _one_at_a_time = changing.lock().unwrap_or_else(PoisonError::into_inner);
                    let now = match asked {
                        ConfigRequest::Place { values, merge } => place(&layers, &values, merge)?,
                        ConfigRequest::Set { asked, is_patch, base_hash } => {
                            change(&layers, &asked, is_patch, &base_hash)?
                        }
                        ConfigRequest::Get | ConfigRequest::Look => Now::read(&layers)?,
                    };
                    tracing::info!(file = %layers.file.display(), %by, "the configuration was set");
                    now
                }
            };
            Ok(now.snapshot(&layers, &started))
        });
        Box::pin(async move {
            done.await.map_err(|_| ErrorCode::Internal.error("the configuration could not be looked at"))?
        })
    }
}

impl Handler<Observe> for Configuration {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let under_way = UNDER_WAY_MAX - self.under_way.available_permits();
        let file = self.layers.file.display().to_string();
        Observed::leaf(
            "configuration",
            json!({ "file": file, "changes_asked": self.changes, "under_way": under_way }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# mine\n[limits]\nqueue = 3 # few\n";

    struct Home {
        folder: tempfile::TempDir,
        actor: Addr<Configuration>,
    }

    impl Home {
        fn new(text: Option<&str>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            if let Some(text) = text {
                fs::write(folder.path().join("gateway.toml"), text).unwrap();
            }
            let layers = Layers {
                home: folder.path().to_owned(),
                file: folder.path().join("gateway.toml"),
                env: vec![("CLAWMUX__BUDGETS__DAILY".into(), "7".into())],
                look: Some(|config, _| match config.log.filter.as_str() {
                    "nonsense" => vec!["log.filter: it is none".into()],
                    _ => Vec::new(),
                }),
                ..Layers::default()
            };
            Self { actor: Configuration::new(layers).start(), folder }
        }

        async fn ask(&self, request: ConfigRequest) -> Result<ConfigSnapshot, Error> {
            self.actor.send(Configure { request, by: "me".into() }).await.unwrap()
        }

        async fn get(&self) -> ConfigSnapshot {
            self.ask(ConfigRequest::Get).await.unwrap()
        }

        async fn set(&self, asked: Json, base_hash: &str) -> Result<ConfigSnapshot, Error> {
            let base_hash = base_hash.to_owned();
            self.ask(ConfigRequest::Set { asked, is_patch: false, base_hash }).await
        }

        async fn patch(&self, asked: Json) -> Result<ConfigSnapshot, Error> {
            let base_hash = self.get().await.hash;
            self.ask(ConfigRequest::Set { asked, is_patch: true, base_hash }).await
        }

        fn text(&self) -> String {
            fs::read_to_string(self.folder.path().join("gateway.toml")).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let names = fs::read_dir(self.folder.path()).unwrap();
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    #[actix::test]
    async fn a_change_is_written_where_the_file_is_and_needs_a_restart() {
        let home = Home::new(Some(TEXT));
        fs::set_permissions(home.folder.path().join("gateway.toml"), fs::Permissions::from_mode(0o640))
            .unwrap();
        let before = home.get().await;
        assert!(before.exists && !before.needs_restart && before.complaints.is_empty(), "{before:?}");
        assert_eq!(before.file, json!({ "limits": { "queue": 3 } }));
        assert_eq!(
            (&before.effective["budgets"]["daily"], &before.effective["limits"]["queue"]),
            (&json!(7), &json!(3))
        );

        let same = home.set(before.effective.clone(), &before.hash).await.unwrap();
        assert_eq!(
            (same.hash.as_str(), home.text().as_str()),
            (before.hash.as_str(), TEXT),
            "nothing was asked"
        );

        let mut asked = before.effective;
        asked["limits"]["queue"] = 4.into();
        let after = home.set(asked, &before.hash).await.unwrap();
        assert!(after.needs_restart && after.hash != before.hash, "{after:?}");
        assert_eq!(home.text(), "# mine\n[limits]\nqueue = 4 # few\n");
        assert_eq!(fs::metadata(home.folder.path().join("gateway.toml")).unwrap().mode() & 0o777, 0o640);
        assert_eq!(home.names(), ["gateway.toml"], "nothing is left behind");
        let back = home.patch(json!({ "limits": { "queue": 3 } })).await.unwrap();
        assert!(!back.needs_restart, "as at the start again");
    }

    #[actix::test]
    async fn what_is_wrong_is_refused_as_a_whole() {
        let home = Home::new(Some(TEXT));
        let hash = home.get().await.hash;
        let asked =
            json!({ "limits": { "queue": 0, "queu": 1 }, "auth": { "token": "s3cret" }, "nonsense": {} });
        let error = home.set(asked, &hash).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        for says in [
            "limits.queue: expected a whole number",
            "limits.queu: unknown key",
            "nonsense: unknown key",
            "use token_env",
        ] {
            assert!(error.message.contains(says), "{says}: {error}");
        }
        assert!(!error.message.contains("s3cret"), "{error}");
        let error = home.patch(json!({ "log": { "filter": "nonsense" } })).await.unwrap_err();
        assert!(error.message.contains("log.filter: it is none"), "{error}");
        let error = home.set(json!({}), "another").await.unwrap_err();
        assert_eq!(error.message, "config changed since last load; re-run config.get and retry");
        assert_eq!(home.text(), TEXT);
        assert_eq!(home.names(), ["gateway.toml"]);
    }

    #[actix::test]
    async fn a_file_that_is_not_there_is_made_and_a_broken_one_is_left() {
        let home = Home::new(None);
        let before = home.get().await;
        assert!(!before.exists && before.file == json!({}) && !before.hash.is_empty(), "{before:?}");
        home.patch(json!({ "memory": { "episodic_turns": 9 } })).await.unwrap();
        assert_eq!(home.text(), "[memory]\nepisodic_turns = 9\n");
        assert_eq!(fs::metadata(home.folder.path().join("gateway.toml")).unwrap().mode() & 0o777, 0o600);

        let broken = "[limits\ntoken = \"s3cret\"";
        let home = Home::new(Some(broken));
        let found = home.get().await;
        assert!(found.file.is_null() && !found.complaints.is_empty(), "{found:?}");
        assert!(!format!("{found:?}").contains("s3cret"), "{found:?}");
        home.set(json!({}), &found.hash).await.unwrap_err();
        assert_eq!(home.text(), broken);
    }

    #[actix::test]
    async fn places_are_set_and_what_they_do_not_name_stays_or_goes() {
        let home = Home::new(Some("# mine\n[limits]\nqueue = 3 # few\nagents = 4\n"));
        let set = async |values: &[(&str, Json)], merge| {
            let values = values.iter().map(|(path, value)| ((*path).to_owned(), value.clone())).collect();
            home.ask(ConfigRequest::Place { values, merge }).await
        };
        let now = set(&[("limits.queue", json!(5)), ("budgets", json!({ "daily": 9 }))], true).await.unwrap();
        // The environment says another daily budget than the file.
        assert_eq!((now.pending.as_slice(), now.needs_restart), (&["limits.queue".to_owned()][..], true));
        assert_eq!(home.text(), "# mine\n[limits]\nqueue = 5 # few\nagents = 4\n\n[budgets]\ndaily = 9\n");
        set(&[("limits", json!({ "queue": 6 })), ("budgets", Json::Null)], false).await.unwrap();
        assert_eq!(home.text(), "# mine\n[limits]\nqueue = 6 # few\n", "the section is what was asked");
        let before = home.text();
        for (values, says) in [
            (
                &[("limits.queue", json!(0)), ("limits.queu", json!(1)), ("nonsense", json!({}))][..],
                "limits.queu: unknown key",
            ),
            (&[("limits", json!({})), ("limits.queue", json!(1))], "limits.queue: lies within limits"),
            (&[("limits.queue.x", json!(1))], "what it lies in is no section"),
            (&[("limits.", json!(1))], "limits.: is no key"),
            (&[("", json!(1))], "is no key"),
            (&[("auth.token", json!("s3cret"))], "use token_env"),
        ] {
            for merge in [true, false] {
                let error = set(values, merge).await.unwrap_err();
                assert!(error.message.contains(says) && !error.message.contains("s3cret"), "{says}: {error}");
            }
        }
        let error = set(&[("limits.queue", json!(0)), ("limits.queu", json!(1))], true).await.unwrap_err();
        assert!(error.message.contains("limits.queue: expected"), "all at once: {error}");
        assert_eq!(home.text(), before);
    }

    #[actix::test]
    async fn a_link_stays_one() {
        let home = Home::new(None);
        // Of a process that can't be, which left it half written.
        let left = home.folder.path().join(".real.toml.4294967295.new");
        fs::write(&left, "[lim").unwrap();
        let real = home.folder.path().join("real.toml");
        fs::write(&real, TEXT).unwrap();
        std::os::unix::fs::symlink(&real, home.folder.path().join("gateway.toml")).unwrap();
        home.patch(json!({ "limits": { "queue": 5 } })).await.unwrap();
        assert!(fs::symlink_metadata(home.folder.path().join("gateway.toml")).unwrap().is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("queue = 5 # few"));
        assert!(!left.exists(), "what was left is cleaned up: {:?}", home.names());
    }

    #[actix::test]
    async fn of_changes_of_the_same_one_is_made_and_readers_see_whole_files() {
        let home = Home::new(Some(TEXT));
        let path = home.folder.path().join("gateway.toml");
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let reading = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let mut seen = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let text = fs::read_to_string(&path).unwrap();
                    assert!(
                        text.starts_with("# mine\n[limits]\nqueue = ") && text.ends_with(" # few\n"),
                        "{text:?}"
                    );
                    seen += 1;
                }
                seen
            }
        });
        for round in 10..30 {
            let hash = home.get().await.hash;
            let sets = (0..4).map(|who| home.set(json!({ "limits": { "queue": round * 10 + who } }), &hash));
            let outcomes = futures::future::join_all(sets).await;
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reading.join().unwrap() > 0);
    }
}
