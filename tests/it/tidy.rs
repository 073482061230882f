//! The rules of the layout, as tests. A failure says which line breaks which rule and what to do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::circles::circles;

/// A source file of one of the three packages.
struct Source {
    /// From the root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Lines that are neither comment nor test, with their numbers. Test modules stand at the end of
    /// a file, behind `#[cfg(test)]`.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().take_while(|(_, line)| line.trim() != "#[cfg(test)]")
    }

    /// Lines that are no comment.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for folder in ["src", "actors", "tests"] {
        collect(&root().join(folder), &mut found);
    }
    assert!(found.len() > 20, "the sources are found");
    found
        .into_iter()
        .map(|path| Source {
            text: fs::read_to_string(&path).unwrap(),
            path: path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/"),
        })
        .collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
}

/// Fails with every breach and what to do about it.
fn none(breaches: &[String], rule: &str) {
    assert!(breaches.is_empty(), "{rule}\n  {}", breaches.join("\n  "));
}

/// Whether `word` stands in `line` with no letter, digit or `_` around it.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part)
            && !line[at + word.len()..].chars().next().is_some_and(part)
    })
}

#[test]
fn the_top_level_is_fixed() {
    const ALLOWED: [&str; 9] = [
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "actors",
        "gateway.toml",
        "plugins",
        "src",
        "tests",
    ];
    let here: BTreeSet<String> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    let extra: Vec<String> = here.iter().filter(|name| !ALLOWED.contains(&name.as_str())).cloned().collect();
    none(&extra, "the top level holds nothing but its fixed entries: move these into one of them");
    let missing: Vec<String> =
        ALLOWED.iter().filter(|name| !here.contains(**name)).map(ToString::to_string).collect();
    none(&missing, "the top level misses");
}

#[test]
fn the_core_is_pure() {
    // Addresses are plain data, so `std::net` as such is fine.
    const BANNED: [&str; 26] = [
        "actix",
        "actix_web",
        "tokio",
        "awc",
        "rusqlite",
        "extism",
        "getrandom",
        "rand",
        "std::fs",
        "std::io",
        "std::env",
        "std::process",
        "std::thread",
        "std::os",
        "SystemTime",
        "Instant",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "UnixStream",
        "UnixListener",
        "OsRng",
        "thread_rng",
        "Timestamp::now",
        "Zoned::now",
        "println!",
    ];
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/core/") && !source.is_test())
    {
        for (number, line) in source.code() {
            for word in BANNED.iter().filter(|word| has_word(line, word)) {
                breaches.push(format!("{}:{number}: {word}", source.path));
            }
            if line.contains("use std::{") {
                breaches.push(format!(
                    "{}:{number}: write one `use std::` a line, so that this test can read it",
                    source.path
                ));
            }
        }
    }
    none(
        &breaches,
        "the core takes files, sockets, time and randomness as arguments: do this in actors/ and pass it in",
    );

    let manifest = fs::read_to_string(root().join("src/core/Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let impure: Vec<String> =
        ["actix", "tokio", "awc", "rusqlite", "extism", "getrandom", "rand", "mio", "libc"]
            .iter()
            .filter(|name| dependencies.lines().any(|line| line.starts_with(**name)))
            .map(ToString::to_string)
            .collect();
    none(&impure, "src/core/Cargo.toml depends on what does I/O: it belongs to actors/Cargo.toml");
}

#[test]
fn words_of_a_protocol_stay_in_the_dialects() {
    // Words of the wire that no other part of the product has a use for.
    const WORDS: [&str; 9] = [
        "chat.send",
        "chat.abort",
        "chat.history",
        "auth_failed",
        "session.attach",
        "session.clear",
        "budget.status",
        "memory.search",
        "plugin.list",
    ];
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        if source.path.starts_with("src/core/dialect/") {
            continue;
        }
        for (number, line) in source.code() {
            // The operator's methods have names of their own.
            let line = line.replace("admin.session.", "").replace("admin.memory.", "");
            for word in WORDS.iter().filter(|word| line.contains(*word)) {
                breaches.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    none(
        &breaches,
        "only a dialect knows the words of its protocol: say it in the terms of command, reply and event",
    );
}

#[test]
fn one_file_names_the_websocket_crate() {
    // The benchmark measures against it alone.
    const NAMES_IT: [&str; 3] = ["actors/connection/ws.rs", "tests/bench/limit/actix.rs", "tests/it/tidy.rs"];
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| !NAMES_IT.contains(&source.path.as_str())) {
        for (number, line) in source.lines() {
            if line.contains("actix_web_actors") {
                breaches.push(format!("{}:{number}", source.path));
            }
        }
    }
    none(
        &breaches,
        "actix-web-actors is named in actors/connection/ws.rs alone, so that it can be replaced there",
    );
}

#[test]
fn three_folders_name_the_client_of_nats() {
    const NAME_IT: [&str; 3] = ["actors/nats/", "actors/bus/", "actors/cluster/engine/"];
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        if NAME_IT.iter().any(|folder| source.path.starts_with(folder)) {
            continue;
        }
        for (number, line) in source.lines() {
            if line.contains("async_nats::") {
                breaches.push(format!("{}:{number}", source.path));
            }
        }
    }
    none(&breaches, "async-nats is named in actors/nats, actors/bus and actors/cluster/engine alone");
}

#[test]
fn files_are_named_for_what_they_hold() {
    const BANNED: [&str; 9] =
        ["utils", "util", "helpers", "helper", "manager", "managers", "common", "misc", "shared"];
    let breaches: Vec<String> = sources()
        .into_iter()
        .map(|source| source.path)
        .filter(|path| path.split('/').any(|part| BANNED.contains(&part.trim_end_matches(".rs"))))
        .collect();
    none(&breaches, "a file is named for the one concept in it");
}

#[test]
fn every_file_says_why_it_is_there() {
    let mut breaches = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//! ") {
            breaches.push(format!("{}:1: begin with `//! ` and why the file is there", source.path));
        }
        for (index, line) in source.text.lines().enumerate() {
            let open = ["TODO", "FIXME", "XXX"].iter().any(|mark| has_word(line, mark));
            if open && source.path != "tests/it/tidy.rs" {
                breaches.push(format!(
                    "{}:{}: do it, or say what is deliberately absent",
                    source.path,
                    index + 1
                ));
            }
        }
    }
    none(&breaches, "files explain themselves");
}

#[test]
fn core_and_binary_forbid_unsafe_code() {
    for path in ["src/main.rs", "src/core/lib.rs"] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{path}: put `#![forbid(unsafe_code)]` back");
    }
}

#[test]
fn every_actor_can_be_observed() {
    let sources: Vec<Source> = sources()
        .into_iter()
        .filter(|source| source.path.starts_with("actors/") && !source.is_test())
        .collect();
    let mut observed = BTreeSet::new();
    let mut actors = Vec::new();
    for source in &sources {
        for (number, line) in source.code() {
            let implements = |what: &str| {
                let rest = line.trim().strip_prefix("impl")?.trim_start();
                let name = rest.strip_prefix(what)?.trim().trim_end_matches('{').trim();
                Some(name.split('<').next().unwrap_or(name).to_owned())
            };
            if let Some(name) = implements("Actor for ").or_else(|| implements("actix::Actor for ")) {
                actors.push((name, format!("{}:{number}", source.path)));
            }
            for what in ["Handler<Observe> for ", "actix::Handler<Observe> for "] {
                observed.extend(implements(what));
            }
        }
    }
    assert!(!actors.is_empty(), "the cast is found");
    let breaches: Vec<String> = actors
        .iter()
        .filter(|(name, _)| !observed.contains(name))
        .map(|(name, at)| format!("{at}: write `impl Handler<Observe> for {name}`"))
        .collect();
    none(&breaches, "every actor answers `Observe` with its figures");
}

#[test]
fn plugins_ship_with_source_module_and_digest() {
    let mut breaches = Vec::new();
    let mut plugins = 0;
    for entry in fs::read_dir(root().join("plugins")).unwrap() {
        let folder = entry.unwrap().path();
        let Some(name) = folder.file_name().and_then(|name| name.to_str()).filter(|_| folder.is_dir()) else {
            continue;
        };
        if name == "target" {
            continue;
        }
        plugins += 1;
        for file in [
            "Cargo.toml".into(),
            format!("{name}.wasm"),
            format!("{name}.wasm.sha256"),
            format!("{name}.toml"),
        ] {
            if !folder.join(&file).is_file() {
                breaches.push(format!("plugins/{name}/{file} is missing"));
            }
        }
    }
    none(
        &breaches,
        "a fresh clone runs without a WASM toolchain: build the module and commit it with its digest",
    );
    assert!(plugins >= 2, "echo and clock ship");
}

#[test]
fn no_folders_of_the_actors_import_each_other_in_a_circle() {
    let circles: Vec<String> = circles(&root().join("actors")).into_iter().flatten().collect();
    none(&circles, "no circle of imports: move what both sides need to where neither is needed");
}

#[test]
fn a_circle_is_found_in_code_and_not_in_its_tests() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    write("a/x.rs", "#[cfg(test)]\nmod tests {\n    use crate::b;\n}\nuse crate::{d, b::{x, c}, e};\n");
    write("b.rs", "use crate::c;\n// crate::a\n#[cfg(test)]\nuse crate::a;\n");
    write("c.rs", "fn c() -> crate::d::D {}");
    write("d.rs", "use crate::b;");
    assert_eq!(circles(root.path()), [["b.rs -> c", "c.rs -> d", "d.rs -> b"]]);
}
