//! Reloads and changes of a configuration, whole or not at all.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
async fn a_change_is_written_where_the_file_is() {
    let home = Home::new(Some(TEXT));
    fs::set_permissions(home.folder.path().join("gateway.toml"), fs::Permissions::from_mode(0o640)).unwrap();
    let before = home.get().await;
    assert!(before.exists && !before.needs_restart && before.complaints.is_empty(), "{before:?}");
    assert_eq!(before.file, json!({ "limits": { "queue": 3 } }));
    assert_eq!(
        (&before.effective["budgets"]["daily"], &before.effective["limits"]["queue"]),
        (&json!(7), &json!(3))
    );

    let same = home.set(before.effective.clone(), &before.hash).await.unwrap();
    assert_eq!((same.hash.as_str(), home.text().as_str()), (before.hash.as_str(), TEXT), "nothing was asked");

    let mut asked = before.effective;
    asked["limits"]["queue"] = 4.into();
    let after = home.set(asked, &before.hash).await.unwrap();
    assert!(!after.needs_restart && after.hash != before.hash, "{after:?}");
    assert_eq!(home.text(), "# mine\n[limits]\nqueue = 4 # few\n");
    assert_eq!(fs::metadata(home.folder.path().join("gateway.toml")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(home.names(), ["gateway.toml"], "nothing is left behind");
    let other = home.patch(json!({ "store": { "path": "other.db" } })).await.unwrap();
    assert_eq!((other.needs_restart, other.pending), (true, vec!["store.path".to_owned()]));
    let back = home.patch(json!({ "store": { "path": "clawmux.db" } })).await.unwrap();
    assert!(!back.needs_restart && back.pending.is_empty(), "as at the start again");
}

#[actix::test]
async fn what_is_wrong_is_refused_as_a_whole() {
    let home = Home::new(Some(TEXT));
    let hash = home.get().await.hash;
    let asked = json!({ "limits": { "queue": 0, "queu": 1 }, "auth": { "token": "s3cret" }, "nonsense": {} });
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
    assert_eq!(now.effective["budgets"]["daily"], json!(7));
    assert!(now.pending.is_empty() && !now.needs_restart, "it holds at once");
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
async fn a_key_is_set_in_the_file_it_comes_from() {
    let home = Home::new(Some(TEXT));
    let (system, file) = (home.folder.path().join("system.toml"), home.folder.path().join("gateway.toml"));
    fs::write(&system, "[memory] # all\nepisodic_turns = 2\n[limits]\nqueue = 9\nagents = 4\n").unwrap();
    let layers = Layers {
        home: home.folder.path().to_owned(),
        system: system.clone(),
        file: file.clone(),
        env: vec![("CLAWMUX__BUDGETS__DAILY".into(), "7".into())],
        listen: vec!["127.0.0.1:0".into()],
        ..Layers::default()
    };
    let of = |path: &str, value: Json| Draft::of_key(&layers, path, &value);
    for (path, from) in [
        ("memory.episodic_turns", &system),
        ("limits.queue", &file),
        ("limits.agents", &system),
        ("approvals.timeout_ms", &file),
    ] {
        let draft = of(path, json!(5)).unwrap();
        assert!(draft.file == *from && draft.is_change(), "{path}: {draft:?}");
        draft.write().unwrap();
        let now = draft.then().settings(Some(path)).unwrap();
        assert_eq!((now.len(), &now[0].value), (1, &json!(5)), "{path}");
    }
    assert_eq!(
        fs::read_to_string(&system).unwrap(),
        "[memory] # all\nepisodic_turns = 5\n[limits]\nqueue = 9\nagents = 5\n"
    );
    assert!(home.text().starts_with("# mine\n[limits]\nqueue = 5 # few\n"), "{}", home.text());
    for (path, says) in [
        ("budgets.daily", "the environment variable CLAWMUX__BUDGETS__DAILY"),
        ("gateway.listen", "--listen on the command line"),
        ("limits.queu", "limits.queu: unknown key; did you mean queue?"),
    ] {
        let error = of(path, json!(5)).unwrap_err();
        assert!(error.message.contains(says), "{path}: {error}");
    }
    // Taken away, what the weaker file says holds again.
    let draft = of("limits.queue", Json::Null).unwrap();
    draft.write().unwrap();
    assert_eq!(draft.then().settings(Some("limits.queue")).unwrap()[0].value, json!(9));
    assert_eq!(of("heartbeat", Json::Null).unwrap_err().code, ErrorCode::NotFound);
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
